"""Which attention kernel is faster at which shape: explicit products, PyTorch's fused one, or blocks of queries?

Forward and backward with a padding mask, in one thread; `MIN_FUSED_KEYS` and
`MIN_BLOCKS_KEYS` in `jarilab/attention/kernels.py` should lie where the winner changes. With --encoding, only blocks
compute the bias in each call: `long.py --before` measures all of it.

Measured 2026-11-20, PyTorch 2.13, one core of an AMD EPYC with AVX-512 BF16 that others used too: in
bfloat16 explicit wins up to 512 keys, in float32 up to 33 (by 1.1) but for the 8 wide heads of 7 keys (0.74). With
`--dropout 0.1`, 2026-11-22, one core of an Intel Xeon with AVX-512 BF16 and AMX: explicit wins at every
length, by 1.25 to 1.9 in float32 and 1.9 to 3.4 in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable

import timing
import torch

from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.kernels import Kernel, attend
from jarilab.encodings import compose
from jarilab.encodings.base import Site
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask
from jarilab.training.determinism import deterministic

KERNELS: tuple[Kernel, ...] = ("explicit", "fused", "blocks")
SHAPES = (
    (512, 8, 7, 8),
    (512, 8, 7, 16),
    (170, 8, 14, 32),
    (71, 8, 33, 32),
    (32, 8, 64, 32),
    (16, 8, 128, 64),
    (8, 8, 256, 64),
    (4, 8, 512, 64),
    (2, 8, 1024, 64),
)


def call_of(
    shape: tuple[int, int, int, int], dtype: torch.dtype, encoding: str, dropout: float, kernel: Kernel
) -> AttentionCall:
    """Self-attention over rows that end in up to a quarter of padding, in the form that a kernel reads."""
    batch, heads, length, width = shape
    q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
    lengths_B = length - torch.arange(batch) * (length // 4) // batch
    positions = Positions.sequence(length)
    built = compose.build(encoding, Site(heads * width, heads, width, width))
    with torch.no_grad():
        mask = Mask(keys=torch.arange(length) < lengths_B.unsqueeze(-1))
        geometry = geometry_of(built, positions, positions, mask, blockwise=kernel == "blocks")
    return AttentionCall(q, k, v, geometry, width**-0.5, dropout)


def forward_backward(call: AttentionCall, kernel: Kernel) -> Callable[[], object]:
    # The gradient comes in the order in which the output projection hands it back, the heads side by side.
    batch, heads, length, width = call.q.shape
    gradient = torch.randn(batch, length, heads, width, dtype=call.q.dtype).transpose(1, 2)
    return lambda: torch.autograd.grad(attend(call, kernel), (call.q, call.k, call.v), gradient)


def main() -> None:
    parser = timing.arguments(__doc__, rounds=11)
    parser.add_argument("--encoding", default="none", help="a spec, such as alibi, whose bias is held constant")
    parser.add_argument("--dropout", type=float, default=0.0, help="the share of weights to drop")
    given = parser.parse_args()
    deterministic(threads=1)
    table = timing.Table(given.json)
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            calls: dict[Kernel, AttentionCall] = {
                kernel: call_of(shape, dtype, given.encoding, given.dropout, kernel) for kernel in KERNELS
            }
            times = timing.measure({name: forward_backward(call, name) for name, call in calls.items()}, given.rounds)
            table.add(
                dtype=str(dtype).removeprefix("torch."),
                B_H_L_E=str(shape),
                **{f"{name}_ms": timing.milliseconds(times, name) for name in KERNELS},
                fused_over_explicit=timing.ratio(times, "fused", "explicit"),
                blocks_over_fused=timing.ratio(times, "blocks", "fused"),
                wins=min(KERNELS, key=lambda name: timing.milliseconds(times, name)),
            )
    table.close()


if __name__ == "__main__":
    main()
