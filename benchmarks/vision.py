"""How fast does a Vision Transformer of jari train, beside vit-pytorch's of equal shape, and what do encodings cost it?

    pip install --no-deps vit-pytorch einops    the file that is needed of it needs einops, and no torchvision
    python benchmarks/vision.py                 without it, jari stands alone

train: images per CPU-second of whole training steps (forward, backward, clipping, fused AdamW; jari also with Muon,
its default) in one thread, on batches of 128 images. Two shapes: 28 x 28 pixels in patches of 4 (49 tokens), 6
layers; 8 x 8 in patches of 2 (16 tokens), 4 layers; both grey, width 64, 4 heads, a feed-forward of 256, ten classes.
Three settings: `readme`, that of the peer's README, a class token and dropout of 0.1 (but for dropout of the embedding,
which jari has not); `class`, a class token without dropout; `mean`, the mean of the patches without dropout. In float32
and in bfloat16 by autocast. The peer adds one learned vector for each patch, which is `learned2d:layout=table`; it has
two more norms, around the embedding of the patches, and no bias of queries, keys and values. It need not be
deterministic. Both have what `jarilab train` does to keep freed memory, since they are timed in one process.

own: the same, each as it trains by itself, in processes of their own: jari in the precision of `auto` and keeping
freed memory; the peer in float32, with PyTorch's settings of memory. And jari in float32, which is what it takes where
the processor has no bfloat16. The rounds are shared out to four starts of new processes.

encodings: the same step of jari with each 2-D encoding, over the step with none, without the peer.

Ratios are taken within a round of interleaved ones, then their median and quartiles.

Measured 2026-11-22, PyTorch 2.13, one core of an Intel Xeon with AVX-512 BF16 and AMX. vit-pytorch 1.26 takes as many
times as long as jari with AdamW in `readme`, `class`, `mean`, at 28 x 28; at 8 x 8. `own`, 12 rounds, jari in bfloat16:
2.11, 1.90, 1.72; 1.80, 1.68, 1.48; in float32: 1.53, 1.41, 1.26; 1.57, 1.30, 1.17. `train`, 9 rounds, float32: 1.55,
1.26, 1.10; 1.47, 1.14, 1.02; bfloat16: 1.62, 1.12, 1.00; 1.49, 1.14, 1.07. As jari with Muon: `own`, bfloat16: 1.95,
1.64, 1.72; 1.40, 1.09, 1.07; float32: 1.52, 1.35, 1.08; 1.30, 1.03, 0.94.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, Literal

import steps
import timing
import torch
from torch import Tensor, nn
from torch.nn import functional

from jarilab.core.devices import autocast
from jarilab.models.vision import VisionTransformer
from jarilab.nn.init import initialise
from jarilab.runs.training_options import Training, choose_precision
from jarilab.training.determinism import deterministic
from jarilab.training.memory import keep_freed_memory
from jarilab.training.optimization import BETAS, EPSILON, build_optimizers

WIDTH, HEADS, HIDDEN, CLASSES, BATCH, SMOOTHING = 64, 4, 256, 10, 128, 0.1
AIM = 1.3
STARTS = 4  # of new processes
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
    """side: of an image, in pixels."""

    side: int
    patch: int
    layers: int

    def __str__(self) -> str:
        return f"{self.side} x {self.side}, patch {self.patch}"


SHAPES = {"28": Shape(28, 4, 6), "8": Shape(8, 2, 4)}


@dataclass(frozen=True)
class Setting:
    """pool: what the classes are read from, `class` token or `mean` of the patches."""

    pool: Literal["class", "mean"]
    dropout: float


SETTINGS = {"readme": Setting("class", 0.1), "class": Setting("class", 0.0), "mean": Setting("mean", 0.0)}


# The contenders -------------------------------------------------------------------------------------------------------


def ours(shape: Shape, setting: Setting, encoding: str) -> nn.Module:
    model = VisionTransformer(
        (1, shape.side, shape.side), CLASSES, patch_size=shape.patch, d_model=WIDTH, n_heads=HEADS,
        n_layers=shape.layers, d_ff=HIDDEN, encoding=encoding, pool=setting.pool, dropout=setting.dropout,
    )  # fmt: skip
    initialise(model, 1)
    return model.train()


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


def theirs(module: ModuleType, shape: Shape, setting: Setting, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return module.ViT(
        image_size=shape.side, patch_size=shape.patch, num_classes=CLASSES, dim=WIDTH, depth=shape.layers, heads=HEADS,
        dim_head=WIDTH // HEADS, mlp_dim=HIDDEN, pool={"class": "cls", "mean": "mean"}[setting.pool], channels=1,
        dropout=setting.dropout,
    ).train()  # fmt: skip


def step(
    model: nn.Module, shape: Shape, precision: str, optimizers: Iterable[torch.optim.Optimizer], *options: Any
) -> steps.Step:
    """As `jarilab.training.loop` takes it, always on the same images. options: of the model's forward."""
    generator = torch.Generator().manual_seed(1)
    pixels_BCHW = torch.randn(BATCH, 1, shape.side, shape.side, generator=generator)
    labels_B = torch.randint(CLASSES, (BATCH,), generator=generator)

    def loss() -> Tensor:
        with autocast(precision):
            scores = model(pixels_BCHW, *options)
        return functional.cross_entropy(scores.float(), labels_B, label_smoothing=SMOOTHING)

    return steps.training_step(model, loss, optimizers, 1.0)


def our_step(
    shape: Shape, setting: Setting, precision: str, encoding: str, optimizer: Literal["adamw", "muon"] = "adamw"
) -> steps.Step:
    model, options = ours(shape, setting, encoding), Training(optimizer=optimizer, lr=1e-4)
    return step(model, shape, precision, build_optimizers(model, options).values(), True)


def their_step(module: ModuleType, shape: Shape, setting: Setting, precision: str) -> steps.Step:
    model = theirs(module, shape, setting)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=BETAS, eps=EPSILON, weight_decay=0.0, fused=True)
    return step(model, shape, precision, [adamw])


def our_step_alone(*case: Any) -> steps.Step:
    """In a process of its own, as `jarilab train` prepares it."""
    deterministic(threads=1)
    keep_freed_memory()
    return our_step(*case)


def their_step_alone(shape: Shape, setting: Setting) -> steps.Step:
    """In a process of its own, as PyTorch is."""
    torch.set_num_threads(1)
    module = peer()
    assert module is not None
    return their_step(module, shape, setting, "float32")


# The parts ------------------------------------------------------------------------------------------------------------


def train(given: Any, table: timing.Table) -> None:
    """A row for each contender; what is aimed at is the peer's time over jari's."""
    module = peer()
    for shape, setting in itertools.product(given.shapes, given.settings):
        case = SHAPES[shape], SETTINGS[setting]
        for precision in given.precisions:
            contenders: dict[str, Callable[[], object]] = {
                "jari": our_step(*case, precision, BASE),
                "jari, muon": our_step(*case, precision, BASE, "muon"),
                "jari, rotary2d": our_step(*case, precision, "rotary2d"),
            }
            if module is not None:
                contenders[PEER] = steps.not_deterministic(their_step(module, *case, precision))
            times = timing.measure(contenders, given.rounds)
            add_rows(table, times, shape=str(case[0]), setting=setting, precision=precision)


def own(given: Any, table: timing.Table) -> None:
    """As `train`, in processes of their own and in the precision of `auto` and float32; the peer in float32."""
    has_peer = peer() is not None
    for shape, setting in itertools.product(given.shapes, given.settings):
        case = SHAPES[shape], SETTINGS[setting]
        for precision in sorted({"float32", choose_precision(WIDTH)}):
            contenders = {
                "jari": partial(our_step_alone, *case, precision, BASE),
                "jari, muon": partial(our_step_alone, *case, precision, BASE, "muon"),
            }
            if has_peer:
                contenders[PEER] = partial(their_step_alone, *case)
            times = timing.measure_apart(contenders, STARTS, -(-given.rounds // STARTS))
            add_rows(table, times, shape=str(case[0]), setting=setting, precision_of_jari=precision)


def add_rows(table: timing.Table, times: timing.Times, **case: str) -> None:
    for name in times:
        table.add(
            **case,
            contender=name,
            images_per_s=round(BATCH / median(times[name])),
            time_over_jari=timing.ratio(times, name, "jari"),
            time_over_jari_muon=timing.ratio(times, name, "jari, muon"),
            aim=AIM if name == PEER else "",
        )


def encodings(given: Any, table: timing.Table) -> None:
    for shape in (SHAPES[name] for name in given.shapes):
        for precision in given.precisions:
            contenders = {
                name: our_step(shape, SETTINGS["mean"], precision, name) for name in ("none", *given.encodings)
            }
            timing.compare_encodings(contenders, "none", {}, given.rounds, table, shape=str(shape), precision=precision)


def main() -> None:
    parser = timing.arguments(__doc__, rounds=9)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=tuple(SHAPES), help="sides in pixels")
    parser.add_argument("--settings", nargs="+", choices=tuple(SETTINGS), default=tuple(SETTINGS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="but for `own`")
    parser.add_argument("--encodings", nargs="+", default=list(ENCODINGS), help="2-D specs, such as table2d:rows=6")
    given = parser.parse_args()
    deterministic(threads=1)
    keep_freed_memory()
    table = timing.Table(given.json)
    for part in given.parts:
        {"train": train, "own": own, "encodings": encodings}[part](given, table)
    table.close()


if __name__ == "__main__":
    main()
