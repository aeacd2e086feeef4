"""Maps of heads and gold links as a study has them, by hand."""

from dataclasses import dataclass

import torch

from jarilab.inspect.measure.maps import Map
from jarilab.inspect.study.example import HeadMaps
from jarilab.inspect.study.head import Head

HEADS = [Head(f"encoder.{layer}", index, f"L{layer}H{index}") for layer in range(2) for index in range(3)]


@dataclass
class Links:
    links: tuple
    possible: tuple = ()
    cross: bool = False
    origin: str = "gold.txt:7"


def head_maps(weights: torch.Tensor, first: int = 0, sides=("source", "source"), allowed=None) -> HeadMaps:
    _, q, k = weights.shape
    allowed = torch.ones(q, k, dtype=torch.bool) if allowed is None else allowed
    weights = weights.double() * allowed
    at = [torch.arange(size) for size in (q, k)]
    map = Map(weights, weights, allowed, list("q" * q), list("k" * k), *(each[:, None].double() for each in at), *at,
              same=sides[0] == sides[1])  # fmt: skip
    return HeadMaps(first, *sides, map)
