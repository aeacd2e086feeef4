"""The numbers of lessons that need no training: they follow from formulas, and from models as they start out."""

from __future__ import annotations

import math
from typing import Any

import torch

import jarilab
from jarilab import Mask, Positions
from jarilab.encodings.base import Site, registry

Numbers = dict[str, Any]
WIDTH, HEADS = 64, 8


def encoding(spec: str, *, width: int = WIDTH, heads: int = HEADS, causal: bool = False) -> Any:
    """An encoding as a model would build it."""
    each = width // heads
    return registry.spec(spec).build(Site(width, heads, each, each, causal=causal))


def size(module: torch.nn.Module) -> int:
    """The numbers that it learns."""
    return sum(parameter.numel() for parameter in module.parameters())


def sqrt() -> Numbers:
    """Why sqrt(d): how far products of random vectors spread, and what the softmax makes of 30, 40, 10."""
    generator = torch.Generator().manual_seed(1)
    count = 100_000
    q, k = torch.randn(2, count, 64, generator=generator, dtype=torch.float64)
    spread = (q * k).sum(-1)
    found: Numbers = {
        "sqrt.count": count,
        "sqrt.spread": float(spread.std()),
        "sqrt.divided": float((spread / 8).std()),
    }
    for name, divisor in (("raw", 1), ("scaled", 8)):
        scores = torch.tensor([30.0, 40.0, 10.0], dtype=torch.float64) / divisor
        weights = scores.softmax(0)
        found[f"sqrt.{name}"] = weights.tolist()
        found[f"sqrt.{name}_slope"] = float(1 - weights.square().sum())
    return found


def sinusoids() -> Numbers:
    """Waves of width 128: their first numbers, the longest, and how alike two places are."""
    waves = encoding("sinusoidal", width=128)
    rows = waves.embed(torch.zeros(1, 200, 128, dtype=torch.float64), Positions.sequence(200))[0]
    near, far = (rows[first] @ rows[first + 3] for first in (0, 100))
    return {
        "sinusoids.first": rows[1, :2].tolist(),
        "sinusoids.shortest": 2 * math.pi,
        "sinusoids.longest": 2 * math.pi * 10_000 ** (126 / 128),
        "sinusoids.itself": float(rows[5] @ rows[5]),
        "sinusoids.three": float(near),
        "sinusoids.elsewhere": float(abs(near - far)),
    }


def where() -> Numbers:
    """What encodings learn in a model of width 64 with 8 heads, and the numbers that two of them add."""
    line = Positions.sequence(256)
    t5 = encoding("t5")
    torch.nn.init.normal_(next(t5.parameters()), generator=torch.Generator().manual_seed(1))
    row = t5.bias(line, line)[0, 0]
    steps = (row[1:] != row[:-1]).nonzero()[:, 0] + 1
    slopes = -encoding("alibi").bias(line, line)[:, 0, 1]
    return {
        "where.learned": size(encoding("learned")),
        "where.shaw": size(encoding("shaw")),
        "where.t5": size(encoding("t5")),
        "where.alibi": size(encoding("alibi")),
        "where.slopes": [float(slopes[0]), float(slopes[1]), float(slopes[-1])],
        "where.alone": int((steps.diff() == 1).sum()) + 1,
        "where.last_bucket": int(steps[-1]),
    }


def rotary() -> Numbers:
    """Two spellings of one rotation: the same up to the order of components, and what it costs to mix them up."""
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=generator, dtype=torch.float64)
    half, other = (encoding(f"rotary:pairing={name}") for name in ("half", "interleaved"))

    def score(turn: Any, first: int, second: int, order: list[int] | None = None) -> float:
        pick = slice(None) if order is None else order
        turned = [
            turn.rotate(x[..., pick], turn.rotation(Positions.sequence(1, place)))
            for x, place in ((q, first), (k, second))
        ]
        return float((turned[0] * turned[1]).sum())

    order = [0, 4, 1, 5, 2, 6, 3, 7]
    at = score(half, 50, 43)
    return {
        "rotary.score": at,
        "rotary.moved": score(half, 150, 143),
        "rotary.shift": abs(at - score(half, 150, 143)),
        "rotary.respelled": abs(at - score(other, 50, 43, order)),
        "rotary.mixed": abs(at - score(other, 50, 43)),
        "rotary.mixed_at_0": abs(score(half, 0, 0) - score(other, 0, 0)),
    }


def language() -> Numbers:
    """How far the last token's scores move when tokens before it change places, without positions."""
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    dealt = ids[:, [4, 0, 6, 2, 5, 1, 3, 7]]
    found: Numbers = {}
    for name, layers in (("one", 1), ("two", 2)):
        model = jarilab.LanguageModel(
            12, d_model=WIDTH, n_heads=HEADS, n_layers=layers, encoding="none"
        )
        jarilab.initialise(model, seed=1)
        model = model.double().eval()
        with torch.no_grad():
            moved = (model(ids)[:, -1] - model(dealt)[:, -1]).abs().max()
        found[f"language.{name}"] = float(moved)
    return found


def heads() -> Numbers:
    """What heads cost: nothing in parameters, and a square in weights."""
    sizes = [size(jarilab.Attention(WIDTH, n_heads=count)) for count in (1, 8)]
    return {
        "heads.one": sizes[0],
        "heads.eight": sizes[1],
        "heads.square": 2048**2,
        "heads.arithmetic": 6 * HEADS,
    }


def norms() -> Numbers:
    """What a norm reads: a token's own row, or the rows of others too."""
    generator = torch.Generator().manual_seed(1)
    first, second, other = torch.randn(3, 4, WIDTH, generator=generator, dtype=torch.float64)
    found: Numbers = {}
    for name, norm in (
        ("layer", torch.nn.LayerNorm(WIDTH, dtype=torch.float64)),
        ("batch", torch.nn.BatchNorm1d(WIDTH, dtype=torch.float64)),
    ):
        beside, changed = (norm(torch.cat((first, rows)))[:4] for rows in (second, 3 * other))
        found[f"norms.{name}"] = float((beside - changed).abs().max().detach())
    row = torch.nn.LayerNorm(WIDTH, dtype=torch.float64)(first)[0].detach()
    return found | {
        "norms.mean": abs(float(row.mean())),
        "norms.deviation": float(row.std(correction=0)),
    }


def masks() -> Numbers:
    """Of 20 tokens, what share of the pairs a causal mask leaves."""
    line = Positions.sequence(20)
    allowed = Mask(causal=True).dense(line, line)
    return {
        "masks.allowed": int(allowed.sum()) if allowed is not None else 0,
        "masks.pairs": 20 * 20,
    }


def all_numbers() -> Numbers:
    """Those of all lessons."""
    found: Numbers = {}
    for lesson in (sqrt, sinusoids, where, rotary, language, heads, norms, masks):
        found |= lesson()
    return found
