"""What does an encoding cost? A training step (forward, backward, optimizers) with each, over the step with none.

Shapes: the arithmetic task at its defaults (batch 512, width 64, 8 heads, 2+2 layers, sequences of 5 to 7); an encoder
of width 256 with 8 heads and 2 layers on 4 sequences of up to 512, padded, in float32 and bfloat16; and a
language model of that size on 32 sequences of 64 or 2 of 512, where those that need a causal mask can be. One thread.
`target` is what we hold ourselves to.

Measured: docs/results/arithmetic.md, but for the causal cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import steps
import timing
import torch

from jarilab.models.decoder import LanguageModel
from jarilab.models.stacks import Encoder
from jarilab.nn.init import initialise
from jarilab.runs.experiment import Experiment, Training
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.training.determinism import deterministic
from jarilab.training.memory import keep_freed_memory
from jarilab.training.optimization import build_optimizers

TARGETS = {"sinusoidal": 1.02, "learned": 1.05, "rotary": 1.15, "shaw": 1.5, "t5": 1.15, "alibi": 1.10}
BIASES = ("kerple", "sandwich", "fire", "dynamic_bias")
BY_CONTENT = ("transformer_xl", "deberta", "cope", "forgetting", "path")
CAUSAL_TARGETS = TARGETS | dict.fromkeys((*BIASES, "xpos"), 1.3) | dict.fromkeys(BY_CONTENT, 2.5)
CAUSAL = {"causal, 64": (64, 32), "causal, 512": (512, 2)}
CASES = ("arithmetic", "512, float32", "512, bfloat16", *CAUSAL)
LENGTHS = (512, 480, 448, 384)


def arithmetic(encodings: list[str]) -> dict[str, Callable[[], object]]:
    task = Arithmetic()
    batches = steps.batches_of(task)

    def step(encoding: str) -> steps.Step:
        settings = {"training.lr": 1e-3}
        experiment = Experiment.of("arithmetic", encoding, settings)
        return steps.arithmetic_step(task, itertools.cycle(batches), experiment)[1]

    return {encoding: step(encoding) for encoding in encodings}


def encoder(encodings: list[str], precision: str) -> dict[str, Callable[[], object]]:
    torch.manual_seed(1)
    x_BLD = torch.randn(len(LENGTHS), max(LENGTHS), 256)
    keep_BL = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(-1)

    def step(encoding: str) -> steps.Step:
        model = Encoder(256, 8, 2, encoding=encoding)
        initialise(model, 1)
        return steps.encoder_step(model, x_BLD, keep_BL, precision)

    return {encoding: step(encoding) for encoding in encodings}


def causal(encodings: list[str], length: int, batch: int) -> dict[str, Callable[[], object]]:
    ids_BL = torch.randint(100, (batch, length), generator=torch.Generator().manual_seed(1))
    options = Training(lr=1e-4)

    def step(encoding: str) -> steps.Step:
        model = LanguageModel(100, d_model=256, n_heads=8, n_layers=2, encoding=encoding)
        initialise(model, 1)
        optimizers = build_optimizers(model, options).values()
        return steps.training_step(model, lambda: model(ids_BL).square().mean(), optimizers, options.clip)

    return {encoding: step(encoding) for encoding in encodings}


def contenders_of(case: str, encodings: list[str]) -> dict[str, Callable[[], object]]:
    if case == "arithmetic":
        return arithmetic(encodings)
    if case in CAUSAL:
        return causal(encodings, *CAUSAL[case])
    return encoder(encodings, case.removeprefix("512, "))


def main() -> None:
    parser = timing.arguments(__doc__, rounds=11)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--encodings", nargs="+", help="specs, such as rotary:fraction=0.5")
    given = parser.parse_args()
    deterministic(threads=1)
    keep_freed_memory()
    table = timing.Table(given.json)
    for case in given.cases:
        targets = CAUSAL_TARGETS if case in CAUSAL else TARGETS
        contenders = contenders_of(case, ["none", *(given.encodings or targets)])
        timing.compare_encodings(contenders, "none", targets, given.rounds, table, case=case)
    table.close()


if __name__ == "__main__":
    main()
