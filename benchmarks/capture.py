"""What does looking inside cost? Nothing as long as no one looks, is the claim.

A forward of the arithmetic model (batch 512, width 64) that could be recorded but is not, over the same whose
`AttentionKernel` modules are replaced by plain calls of the kernel; then a forward that is recorded, and one that is
recorded and has all its maps computed. One thread, no gradients.

Measured 2026-11-20, PyTorch 2.13, one core of an AMD EPYC with AVX-512 BF16 that others used too: not
recording 1.00, recording 1.02, with maps 1.5; at batch 1 1.0, 1.3, 1.6; give or take 0.05.
"""

from __future__ import annotations

import copy
from functools import partial

import steps
import timing
import torch
from torch import nn

from jarilab.attention.kernels import attend
from jarilab.attention.module import Attention
from jarilab.inspect.record.capture import record
from jarilab.nn.init import initialise
from jarilab.runs.experiment import Experiment
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.training.determinism import deterministic


def without_attend(model: nn.Module) -> nn.Module:
    """A copy whose attentions call the kernel themselves."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        if isinstance(module, Attention):
            kernel = module.attend.kernel
            del module.attend
            module.attend = partial(attend, kernel=kernel)  # type: ignore[assignment]
            module.attend.kernel = kernel
    return model


def main() -> None:
    parser = timing.arguments(__doc__, rounds=31)
    parser.add_argument("--encoding", default="sinusoidal")
    parser.add_argument("--batch-size", type=int, default=512, help="the smaller, the more a hook weighs")
    given = parser.parse_args()
    deterministic(threads=1)
    task, table = Arithmetic(), timing.Table(given.json)
    inputs = steps.batches_of(task, 1, given.batch_size)[0].inputs
    model = Experiment.of("arithmetic", given.encoding).resolved.build_model(task).eval()
    initialise(model, 1)
    direct = without_attend(model)

    def recorded(maps: bool) -> None:
        with record(model) as tape:
            model(*inputs)
        if maps:
            for site in tape.sites:
                tape.weights(site)

    contenders = {
        "kernels called directly": lambda: direct(*inputs),
        "not recording": lambda: model(*inputs),
        "recording": lambda: recorded(maps=False),
        "recording and maps": lambda: recorded(maps=True),
    }
    with torch.no_grad():
        times = timing.measure(contenders, given.rounds)
    for name in contenders:
        table.add(
            contender=name,
            ms=timing.milliseconds(times, name),
            over_direct=timing.ratio(times, name, "kernels called directly"),
        )
    table.close()


if __name__ == "__main__":
    main()
