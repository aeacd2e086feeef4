"""What it does to take the largest weights of a head away, beside random ones (Serrano and Smith 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.intervene.edit import Edit
from jarilab.inspect.intervene.edits import Cut
from jarilab.inspect.intervene.interventions import operate_on_copies
from jarilab.inspect.intervene.likelihood import Written, labels_of, log_softmax, mean_over, picked
from jarilab.inspect.record.model_io import Inputs, repeated


@final
@dataclass(frozen=True, eq=False)
class Erasure:
    """What it does to take the largest weights away, and random ones, the mean over `draws`.

    largest, random: the change of the answer's log-probability. largest_flips, random_flips: the share of places
    where another token is now the likeliest.
    """

    largest: float
    random: float
    largest_flips: float
    random_flips: float
    draws: int


def erasure(
    model: nn.Module,
    inputs: Inputs,
    written: Written,
    site: str,
    head: int | None,
    k: int,
    draws: int = 10,
    seed: int = 0,
    *,
    at_once: int | None = None,
) -> Erasure:
    """Take from every query its `k` most attended keys, and `k` random ones instead.

    Weights that say what matters do more harm than random ones. A query with `k` keys or fewer loses all, both ways.
    at_once: how many copies of the input are read in one forward, all that are needed by default: `draws` and two.
    written: see `jarilab.inspect.intervene.likelihood`.
    """
    if draws < 1:
        raise UserError(f"expected 1 or more random draws, got {draws}")
    labels = labels_of(inputs, written)
    largest = Cut(site, head, k)
    random = [Cut(site, head, k, "random", seed + draw) for draw in range(draws)]
    edits: list[list[Edit]] = [[], *([cut] for cut in [largest, *random])]
    before, *after = _logs_of_copies(model, inputs, edits, at_once or len(edits))
    changes, flips = [], []
    for logs in after:
        change_BL = picked(logs, labels) - picked(before, labels)
        changes.append(float(change_BL.sum()))
        flipped_BL = before.argmax(-1) != logs.argmax(-1)
        flips.append(float(mean_over(flipped_BL.double(), inputs)))
    return Erasure(
        largest=changes[0],
        random=sum(changes[1:]) / draws,
        largest_flips=flips[0],
        random_flips=sum(flips[1:]) / draws,
        draws=draws,
    )


@torch.no_grad()
def _logs_of_copies(
    model: nn.Module, inputs: Inputs, edits: Sequence[Sequence[Edit]], at_once: int
) -> list[Float[Tensor, "B L V"]]:
    """The log-probabilities of the next token with each of the edits."""
    found: list[Tensor] = []
    for first in range(0, len(edits), at_once):
        some = edits[first : first + at_once]
        copies = [repeated(one, len(some)) for one in inputs]
        with operate_on_copies(model, some):
            logs_RLV = log_softmax(model(*copies))
        found += logs_RLV.chunk(len(some))
    return found
