"""A training step of a language model under an encoding, here and in x-transformers under the one of the same name.

    pip install x-transformers
    python benchmarks/encodings_beside.py

Two pre-norm layers of width 256, 8 heads and feed-forward 1,024 with a GELU over a vocabulary of 100, on 32 sequences
of 64 tokens and 2 of 512: forward, backward and AdamW, float32, one thread, in turns. Both have the same parameters
but for biases and norms, and both choose their attention's kernel themselves: x-transformers its fused one wherever
it allows that. Shown is its CPU time over ours: above 1 we are faster.

Measured 2026-11-23, PyTorch 2.13, x-transformers 2.31.10, one core of an AMD EPYC that much other work used too, five
rounds, at 64 and at 512 tokens: none 1.05; 0.98. rotary 1.04; 1.04. xpos 1.07; 1.02. t5 1.01; 1.27. alibi 1.04; 1.05.
dynamic_bias 1.01; 1.18. cope 0.97; 0.98. forgetting 1.02; 0.98. pope 0.96; 0.78. pope: x-transformers doubles the
width of queries and keys for the fused kernel, we add a second product.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import timing
import torch
from torch import Tensor, nn
from torch.nn import functional

from jarilab.models.decoder import LanguageModel
from jarilab.nn.init import initialise
from jarilab.training.determinism import deterministic
from jarilab.training.memory import keep_freed_memory

VOCABULARY, WIDTH, HEADS, LAYERS = 100, 256, 8, 2
SHAPES = {64: 32, 512: 2}

NAMES: dict[str, dict[str, Any]] = {
    "none": {},
    "rotary": {"rotary_pos_emb": True},
    "xpos": {"rotary_xpos": True},
    "t5": {"rel_pos_bias": True},
    "alibi": {"alibi_pos_bias": True},
    "dynamic_bias": {"dynamic_pos_bias": True},
    "cope": {"attn_use_cope": True},
    "forgetting": {"attn_data_dependent_alibi": True},
    "pope": {"polar_pos_emb": True},
}
"""What x-transformers calls each."""
WITHOUT_FUSED = ("cope", "t5", "dynamic_bias")  # it refuses its fused attention there


def ours(name: str) -> nn.Module:
    model = LanguageModel(
        VOCABULARY, d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, d_ff=4 * WIDTH, activation="gelu", encoding=name
    )
    initialise(model, 1)
    return model


def theirs(name: str) -> nn.Module:
    library = importlib.import_module("x_transformers")
    fused = name not in WITHOUT_FUSED
    layers = library.Decoder(
        dim=WIDTH, depth=LAYERS, heads=HEADS, attn_dim_head=WIDTH // HEADS, attn_flash=fused, **NAMES[name]
    )
    options = {"num_tokens": VOCABULARY, "max_seq_len": max(SHAPES), "use_abs_pos_emb": False, "tie_embedding": True}
    return library.TransformerWrapper(attn_layers=layers, **options)


def step_of(model: nn.Module, ids_BL: Tensor) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        scores_BLV = model(ids_BL[:, :-1])
        loss = functional.cross_entropy(scores_BLV.flatten(0, 1), ids_BL[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = timing.arguments(__doc__, rounds=11)
    parser.add_argument("--encodings", nargs="+", choices=list(NAMES), default=list(NAMES))
    given = parser.parse_args()
    deterministic(threads=1)
    keep_freed_memory()
    table = timing.Table(given.json)
    for length, batch in SHAPES.items():
        ids_BL = torch.randint(VOCABULARY, (batch, length + 1), generator=torch.Generator().manual_seed(1))
        for name in given.encodings:
            contenders = {"jari": step_of(ours(name), ids_BL), "x-transformers": step_of(theirs(name), ids_BL)}
            times = timing.measure(contenders, given.rounds)
            ratio = timing.ratio(times, "x-transformers", "jari")
            milliseconds = {who: timing.milliseconds(times, who) for who in contenders}
            table.add(tokens=length, encoding=name, **milliseconds, theirs_over_ours=ratio)
    table.close()


if __name__ == "__main__":
    main()
