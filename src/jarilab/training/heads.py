"""Heads of a model on its way: which are shown, their maps as images, and what they measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jarilab.core.errors import UserError
from jarilab.inspect.measure.maps import Map, Scored
from jarilab.inspect.record.capture import Tape
from jarilab.pages.encodings.colours import PLAIN, gradient
from jarilab.tasks.predictors.base import Trace

MOST_HEADS = 8
"""Heads that are shown where none are named."""
SIDE = 320
"""Pixels that the longer side of a map has at least."""
NOT_ALLOWED = 128
"""The grey of a cell that no query may look at."""


class Head(NamedTuple):
    """A head of a site, as people type it: `decoder.1.cross:2`."""

    site: str
    number: int

    def __str__(self) -> str:
        return f"{self.site}:{self.number}"

    @staticmethod
    def read(text: str) -> Head:
        """Raises UserError."""
        site, _, number = text.strip().rpartition(":")
        if not site or not number.isdecimal():
            raise UserError(
                f"tensorboard_heads: expected SITE:HEAD with commas between, such as decoder.1.cross:2,encoder.0:0; "
                f"got {text.strip()!r}"
            )
        return Head(site, int(number))


def first_heads(tape: Tape) -> list[Head]:
    """The first heads of each site, so many of each that they are `MOST_HEADS` at most; of many sites some, evenly
    taken."""
    sites = tape.sites
    some = min(MOST_HEADS, len(sites))
    taken = [sites[round(number * (len(sites) - 1) / max(some - 1, 1))] for number in range(some)]
    each = MOST_HEADS // some
    counts = {site: tape.recorded(site, 0).call.q.shape[1] for site in taken}
    return [Head(site, head) for site in taken for head in range(min(each, counts[site]))]


def map_of(tape: Tape, head: Head, names: Mapping[str, Sequence[str]]) -> Map:
    """The map of one head."""
    site = tape.site(head.site)
    whole = Map.of(tape, head.site, names[site.queries], names[site.keys])
    own = slice(head.number, head.number + 1)
    return replace(whole, weights=whole.weights[own], scores=whole.scores[own])


def pixels_of(map: Map) -> np.ndarray:
    """The first head of a map as an image `(height, width, 3)`: a row for each query, dark 0 and light 1; what no
    query may look at is grey."""
    shares_QK = map.weights[0].clamp(0, 1).numpy()
    colours_QKC = gradient(PLAIN, 256)[np.rint(255 * shares_QK).astype(np.intp)]
    colours_QKC[~map.allowed.numpy()] = NOT_ALLOWED
    cell = max(1, round(SIDE / max(shares_QK.shape)))
    return colours_QKC.repeat(cell, 0).repeat(cell, 1)


def described(trace: Trace) -> str:
    """An input, its answer and its tokens, as code: TensorBoard reads texts as Markdown."""
    told: dict[str, str | None] = {"input": trace.line, "answer": trace.answer}
    told["expected"] = trace.expected
    for frame, sequence in trace.sequences.items():
        told[f"tokens of the {frame}"] = " ".join(map(str, sequence.names))
    known = [f"{name}: {text}" for name, text in told.items() if text is not None]
    lines = [line for text in known for line in text.splitlines()]
    return "\n".join(f"    {line}" for line in lines)


def means_of(every: Sequence[Mapping[str, Mapping[str, Scored]]]) -> dict[str, float]:
    """Each measure of each head, and what chance would give: means over the inputs that determine it."""
    found: dict[str, list[float]] = {}
    for measured in every:
        for head, scores in measured.items():
            for name, scored in scores.items():
                found.setdefault(f"measures, {name}/{head}", []).append(float(scored.value))
                tag = f"measures, {name}/{head} by chance"
                found.setdefault(tag, []).append(float(scored.chance))
    means = {tag: np.array(values) for tag, values in found.items()}
    known = {tag: values[np.isfinite(values)] for tag, values in means.items()}
    return {tag: float(values.mean()) for tag, values in known.items() if values.size}
