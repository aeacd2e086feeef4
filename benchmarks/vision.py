"""How fast does a Vision Transformer of jari train, beside vit-pytorch's of equal shape, and what do encodings cost it?

    pip install --no-deps vit-pytorch einops    the file that is needed of it needs einops, and no torchvision
    python benchmarks/vision.py                 without it, jari stands alone

train: pictures per CPU-second of whole training steps (forward, backward, clipping, fused AdamW; jari also with Muon,
its default) in one thread, on batches of 128 pictures. Two shapes: 28 x 28 pixels in patches of 4 (49 tokens), 6
layers; 8 x 8 in patches of 2 (16 tokens), 4 layers; both grey, width 64, 4 heads, a feed-forward of 256, ten classes
read from the mean of the patches, no dropout. In float32, and in bfloat16 by autocast. The peer adds one learned vector
for each patch, which is `learned2d:layout=table`; it has two more norms, around the embedding of the patches. It need
not be deterministic.

own: the same, each in the precision that it takes by itself: jari in what `auto` chooses, the peer in float32.

encodings: the same step of jari with each 2-D encoding, over the step with none, without the peer.

Ratios are taken within a round of interleaved ones, then their median and quartiles.

Measured 2026-11-21, PyTorch 2.13, one core of an otherwise idle Intel Xeon with AVX-512 BF16 and AMX, 7 rounds, in
float32; bfloat16: vit-pytorch 1.26 takes 1.03; 1.03 times as long as jari with AdamW at 28 x 28 (1.12 to 1.24 beside
other jobs), 0.97; 1.08 times at 8 x 8. jari with Muon 1.07; 1.09 and 1.21; 1.28. Each in its own precision: the peer
1.83 and 1.71 (two measurements) times as long as jari with AdamW at 28 x 28, 1.33 and 1.27 at 8 x 8.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, Literal

import steps
import timing
import torch
from torch import Tensor, nn
from torch.nn import functional

from jari.init import initialise
from jari.models.vision import VisionTransformer
from jari.training.loop import autocast, deterministic
from jari.training.optim import BETAS, EPSILON, build_optimizers
from jari.training.options import Training
from jari.training.precision import choose_precision

WIDTH, HEADS, HIDDEN, CLASSES, BATCH, SMOOTHING = 64, 4, 256, 10, 128, 0.1
AIM = 1.3
PEER, BASE = "vit-pytorch", "learned2d:layout=table"
ENCODINGS = (
    "sinusoidal2d",
    "learned2d",
    "rotary2d",
    "rotary2d:frequencies=mixed",
    "alibi2d",
    "table2d",
    "shaw2d",
)
PARTS = ("train", "own", "encodings")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Shape:
    """side: of a picture, in pixels."""

    side: int
    patch: int
    layers: int

    def __str__(self) -> str:
        return f"{self.side} x {self.side}, patch {self.patch}"


SHAPES = {"28": Shape(28, 4, 6), "8": Shape(8, 2, 4)}


# The contenders -------------------------------------------------------------------------------------------------------


def ours(shape: Shape, encoding: str) -> nn.Module:
    pictures, options = (1, shape.side, shape.side), {"hidden": HIDDEN, "encoding": encoding}
    model = VisionTransformer(
        pictures, CLASSES, patch=shape.patch, width=WIDTH, heads=HEADS, layers=shape.layers, **options
    )
    initialise(model, 1)
    return model


def peer() -> ModuleType | None:
    """vit-pytorch's `vit`, by its path: the package imports all its other models too, and with them torchvision."""
    found = importlib.util.find_spec("vit_pytorch")
    places = found.submodule_search_locations if found else None
    try:
        if not places:
            raise ImportError("No module named 'vit_pytorch'")
        spec = importlib.util.spec_from_file_location("vit", Path(places[0]) / "vit.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        print(f"{PEER} is left out: {error}; pip install --no-deps vit-pytorch einops", file=sys.stderr)
        return None
    return module


def theirs(module: ModuleType, shape: Shape) -> nn.Module:
    torch.manual_seed(1)
    return module.ViT(
        image_size=shape.side, patch_size=shape.patch, num_classes=CLASSES, dim=WIDTH, depth=shape.layers, heads=HEADS,
        dim_head=WIDTH // HEADS, mlp_dim=HIDDEN, pool="mean", channels=1,
    )  # fmt: skip


def step(model: nn.Module, shape: Shape, precision: str, optimizers: Iterable[torch.optim.Optimizer]) -> steps.Step:
    """As `jari.training.loop` takes it, always on the same pictures."""
    generator = torch.Generator().manual_seed(1)
    pixels_BCHW = torch.randn(BATCH, 1, shape.side, shape.side, generator=generator)
    labels_B = torch.randint(CLASSES, (BATCH,), generator=generator)

    def loss() -> Tensor:
        with autocast(precision):
            scores = model(pixels_BCHW)
        return functional.cross_entropy(scores.float(), labels_B, label_smoothing=SMOOTHING)

    return steps.training_step(model, loss, optimizers, 1.0)


def our_step(shape: Shape, encoding: str, precision: str, optimizer: Literal["adamw", "muon"] = "adamw") -> steps.Step:
    model, options = ours(shape, encoding), Training(optimizer=optimizer, learning_rate=1e-4)
    return step(model, shape, precision, build_optimizers(model, options).values())


def their_step(module: ModuleType, shape: Shape, precision: str) -> Callable[[], object]:
    model = theirs(module, shape).train()
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=BETAS, eps=EPSILON, weight_decay=0.0, fused=True)
    return steps.not_deterministic(step(model, shape, precision, [adamw]))


# The parts ------------------------------------------------------------------------------------------------------------


def train(given: Any, table: timing.Table) -> None:
    """A row for each contender; what is aimed at is the peer's time over jari's."""
    module = peer()
    for shape in (SHAPES[name] for name in given.shapes):
        for precision in given.precisions:
            contenders: dict[str, Callable[[], object]] = {
                "jari": our_step(shape, BASE, precision),
                "jari, muon": our_step(shape, BASE, precision, "muon"),
                "jari, rotary2d": our_step(shape, "rotary2d", precision),
            }
            if module is not None:
                contenders[PEER] = their_step(module, shape, precision)
            times = timing.measure(contenders, given.rounds)
            for name in contenders:
                table.add(
                    shape=str(shape),
                    precision=precision,
                    contender=name,
                    pictures_per_s=round(BATCH / median(times[name])),
                    time_over_jari=timing.ratio(times, name, "jari"),
                    aim=AIM if name == PEER else "",
                )


def own(given: Any, table: timing.Table) -> None:
    """As `train`, without a precision asked for."""
    module, precision = peer(), choose_precision(WIDTH)
    for shape in (SHAPES[name] for name in given.shapes):
        contenders: dict[str, Callable[[], object]] = {
            "jari": our_step(shape, BASE, precision),
            "jari, muon": our_step(shape, BASE, precision, "muon"),
        }
        if module is not None:
            contenders[PEER] = their_step(module, shape, "float32")
        times = timing.measure(contenders, given.rounds)
        for name in contenders:
            table.add(
                shape=str(shape),
                precision="float32" if name == PEER else precision,
                contender=name,
                pictures_per_s=round(BATCH / median(times[name])),
                time_over_jari=timing.ratio(times, name, "jari"),
                time_over_jari_muon=timing.ratio(times, name, "jari, muon"),
                aim=AIM if name == PEER else "",
            )


def encodings(given: Any, table: timing.Table) -> None:
    for shape in (SHAPES[name] for name in given.shapes):
        for precision in given.precisions:
            contenders = {name: our_step(shape, name, precision) for name in ("none", *given.encodings)}
            timing.compare_encodings(contenders, "none", {}, given.rounds, table, shape=str(shape), precision=precision)


def main() -> None:
    parser = timing.arguments(__doc__, rounds=9)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=tuple(SHAPES), help="sides in pixels")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--encodings", nargs="+", default=list(ENCODINGS), help="2-D specs, such as table2d:rows=6")
    given = parser.parse_args()
    deterministic(threads=1)
    table = timing.Table(given.json)
    for part in given.parts:
        {"train": train, "own": own, "encodings": encodings}[part](given, table)
    table.close()


if __name__ == "__main__":
    main()
