"""The recipes of others, for `time_to_quality.py`: each trains its model as its authors do and tells how good it is.

Each takes the folder of data, a folder of its own, a seed, a budget and `tell`, which it calls with the CPU-seconds of
training so far, looks not counted, and what was measured on the held-out data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import arithmetic
import steps
import torch
import vision
from torch import Tensor, nn
from torch.nn import functional

from jarilab.data.images import idx
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.training.batching import FixedSizeBatches

LOOKS = 40
Tell = Callable[[float, float], None]


@dataclass(frozen=True)
class Budget:
    """share: of the steps of the recipe, to try the script with. seconds: a recipe that owns its loop ends after so
    many CPU-seconds, or as soon as a look is as good as `mark`."""

    share: float
    seconds: float
    mark: float


class EnoughError(Exception):
    """Ends a training loop that is not ours."""


class Watch:
    """CPU-seconds of training: while one looks, it stands still."""

    def __init__(self, budget: Budget, tell: Tell):
        self._budget, self._tell = budget, tell
        self._begin, self._looking = time.process_time(), 0.0

    def look(self, measure: Callable[[], float]) -> None:
        begin = time.process_time()
        seconds, value = begin - self._begin - self._looking, measure()
        self._tell(seconds, value)
        self._looking += time.process_time() - begin
        if value >= self._budget.mark or seconds >= self._budget.seconds:
            raise EnoughError


def take(step: steps.Step, measure: Callable[[], float], count: int, tell: Tell) -> None:
    """Takes so many steps and looks LOOKS times; only steps are counted."""
    every, seconds = max(1, count // LOOKS), 0.0
    for taken in range(1, count + 1):
        begin = time.process_time()
        step()
        seconds += time.process_time() - begin
        if taken % every == 0 or taken == count:
            tell(seconds, measure())


def warmed(count: int, rate: float, warmup: int, least: float, linear: bool = False) -> Iterator[float]:
    """A learning rate for each step: up to `rate`, then down to `least` by a cosine or a line."""
    for step in range(count):
        left = 1 - max(0, step - warmup) / max(1, count - warmup)
        part = left if linear else 0.5 * (1 - math.cos(math.pi * left))
        yield rate * (step + 1) / warmup if step < warmup else least + (rate - least) * part


def nn_transformer(data: Path, out: Path, seed: int, budget: Budget, tell: Tell) -> None:
    count = max(2, int(4000 * budget.share))
    task = Arithmetic()
    order = FixedSizeBatches(task.training_size, 512, count * 512, seed)
    rates = warmed(count, 1e-3, max(1, count // 50), 0.0, linear=True)
    model, step = arithmetic.peer_step(task, 64, arithmetic.batches_in_order(task, order), rates, seed)
    take(step, lambda: arithmetic.exact_match(task, model), count, tell)


class Block(nn.Module):
    """nanoGPT's: norms before, no bias."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x_BLD: Tensor) -> Tensor:
        qkv_BLD = self.qkv(self.norms[0](x_BLD)).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in qkv_BLD)
        y_BHLE = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BLD = x_BLD + self.out(y_BHLE.transpose(1, 2).flatten(-2))
        return x_BLD + self.down(functional.gelu(self.up(self.norms[1](x_BLD))))


class NanoGPT(nn.Module):
    def __init__(self, vocabulary: int, width: int = 128, layers: int = 4, heads: int = 4, context: int = 64):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, ids_BL: Tensor) -> Tensor:
        x_BLD = self.tokens(ids_BL) + self.places.weight[: ids_BL.shape[1]]
        return functional.linear(self.norm(self.blocks(x_BLD)), self.tokens.weight)


def nanogpt(data: Path, out: Path, seed: int, budget: Budget, tell: Tell) -> None:
    count, context, batch = max(2, int(2000 * budget.share)), 64, 12
    text = (data / "tinyshakespeare" / "input.txt").read_text()
    letters = sorted(set(text))
    number = {letter: place for place, letter in enumerate(letters)}
    ids = torch.tensor([number[letter] for letter in text])
    learned, held_out = ids[: int(0.9 * len(ids))], ids[int(0.9 * len(ids)) :]
    torch.manual_seed(seed)
    model = NanoGPT(len(letters))
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)

    def loss_of(windows_BL: Tensor) -> Tensor:
        scores = model(windows_BL[:, :-1])
        return functional.cross_entropy(scores.flatten(0, 1), windows_BL[:, 1:].flatten())

    def loss() -> Tensor:
        starts = torch.randint(len(learned) - context, (batch,))
        return loss_of(learned[starts.unsqueeze(1) + torch.arange(context + 1)])

    @torch.no_grad()
    def measure() -> float:
        return float(loss_of(held_out.unfold(0, context + 1, context)))

    rates = warmed(count, 1e-3, min(100, max(1, count // 20)), 1e-4)
    take(steps.training_step(model, loss, [adamw], 1.0, rates), measure, count, tell)


def vit_pytorch(data: Path, out: Path, seed: int, budget: Budget, tell: Tell) -> None:
    module = vision.peer()
    if module is None:
        return
    learned, held_out = mnist(data, held_out=False), mnist(data, held_out=True)
    torch.manual_seed(seed)
    model = vision.theirs(module, vision.SHAPES["28"], vision.SETTINGS["class"])
    count = max(2, int(budget.share * 4 * len(learned[0]) // vision.BATCH))
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    order = FixedSizeBatches(len(learned[0]), vision.BATCH, count * vision.BATCH, seed)
    numbers = iter(range(count))

    def loss() -> Tensor:
        rows = torch.as_tensor(order.at(next(numbers)))
        return functional.cross_entropy(model(learned[0][rows]), learned[1][rows], label_smoothing=vision.SMOOTHING)

    @torch.no_grad()
    def measure() -> float:
        model.eval()
        parts = zip(held_out[0].split(500), held_out[1].split(500), strict=True)
        right = sum(int((model(pixels).argmax(-1) == labels).sum()) for pixels, labels in parts)
        model.train()
        return right / len(held_out[1])

    rates = warmed(count, 1e-3, max(1, count // 50), 0.0)
    take(steps.training_step(model, loss, [adamw], 1.0, rates), measure, count, tell)


def mnist(data: Path, held_out: bool) -> tuple[Tensor, Tensor]:
    """Images of mean 0 and variance 1, `(N, 1, 28, 28)`, and their classes."""
    path = idx.find(data / "mnist", held_out)
    assert path is not None
    pixels_NHW = idx.read(path, idx.IMAGES).float() / 255
    labels_N = idx.read(idx.labels_of(path), idx.LABELS).long()
    return ((pixels_NHW - 0.1307) / 0.3081).unsqueeze(1), labels_N
