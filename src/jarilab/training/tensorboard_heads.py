"""Attention heads that TensorBoard shows: their maps as images and their measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jarilab.core.errors import UserError
from jarilab.inspect.measure.heads import measure
from jarilab.inspect.measure.maps import Map, Scored
from jarilab.inspect.record.capture import Tape
from jarilab.pages.encodings.colours import PLAIN, gradient
from jarilab.tasks.predictors.base import Trace
from jarilab.training.event_writer import EventWriter

MAX_INPUTS = 3
"""Inputs whose maps are shown."""
MAX_INPUT_LENGTH = 512
"""Tokens of an input: a map has their square."""
MAX_HEADS = 8
"""Heads that are shown by default."""
MIN_SIDE = 320
"""Pixels of the longer side of a map."""
MASKED_GREY = 128
"""The grey of a masked cell."""


class HeadName(NamedTuple):
    """A head of a site, typed as `decoder.1.cross:2`."""

    site: str
    number: int

    def __str__(self) -> str:
        return f"{self.site}:{self.number}"

    @staticmethod
    def read(text: str) -> HeadName:
        """The head that a text such as `decoder.1.cross:2` names. Raises UserError for any other text."""
        site, _, number = text.strip().rpartition(":")
        if not site or not number.isdecimal():
            raise UserError(
                f"expected SITE:HEAD, got {text.strip()!r}; write such as decoder.1.cross:2,encoder.0:0"
            )
        return HeadName(site, int(number))


def first_heads(tape: Tape) -> list[HeadName]:
    """The first heads of each site, `MAX_HEADS` at most; of many sites an evenly spread selection."""
    count = min(MAX_HEADS, len(tape.sites))
    step = (len(tape.sites) - 1) / max(count - 1, 1)
    sites = [tape.sites[round(number * step)] for number in range(count)]
    heads_per_site = MAX_HEADS // count
    counts = {site: tape.recorded(site, 0).call.q.shape[1] for site in sites}
    return [
        HeadName(site, head) for site in sites for head in range(min(heads_per_site, counts[site]))
    ]


def map_of(tape: Tape, head: HeadName, names: Mapping[str, Sequence[str]]) -> Map:
    """The attention map of one head. names: of the tokens of each sequence."""
    site = tape.site(head.site)
    maps = Map.of(tape, head.site, names[site.queries], names[site.keys])
    rows = slice(head.number, head.number + 1)
    return replace(maps, weights=maps.weights[rows], scores=maps.scores[rows])


def pixels_of(map: Map) -> np.ndarray:
    """The first head of a map as an image of bytes `(height, width, 3)`: dark is 0, light is 1.

    Grey cells are masked or NaN.
    """
    is_number_QK = map.weights[0].isfinite()
    weights_QK = map.weights[0].nan_to_num(0.0).clamp(0, 1).numpy()
    colours_QKC = gradient(PLAIN, 256)[np.rint(255 * weights_QK).astype(np.intp)]
    colours_QKC[~(map.allowed & is_number_QK).numpy()] = MASKED_GREY
    cell = max(1, round(MIN_SIDE / max(weights_QK.shape)))
    return colours_QKC.repeat(cell, 0).repeat(cell, 1)


class MeasuredInput(NamedTuple):
    """An input with the map of each head. number: counted from 1. text: of it, in Markdown."""

    number: int
    text: str
    maps: Mapping[HeadName, Map]


def write_heads(writer: EventWriter, inputs: Iterable[MeasuredInput], step: int) -> None:
    """Write the mean measures of all inputs, and texts and maps of the first `MAX_INPUTS`."""
    measured: list[dict[str, dict[str, Scored]]] = []
    for number, text, maps in inputs:
        measured.append({str(head): measure(map) for head, map in maps.items()})
        if number > MAX_INPUTS:
            continue
        writer.write("add_text", f"inputs/{number}", text, step)
        for head, map in maps.items():
            tag = f"maps of {head}/input {number}"
            writer.write("add_image", tag, pixels_of(map), step, dataformats="HWC")
    for tag, value in means_of(measured).items():
        writer.write("add_scalar", tag, value, step)
    writer.write("flush")


def described(trace: Trace) -> str:
    """An input, its answer and its tokens, as a code block in Markdown, which TensorBoard renders."""
    fields: dict[str, str | None] = {"input": trace.line, "answer": trace.answer}
    fields["expected"] = trace.expected
    for frame, sequence in trace.sequences.items():
        fields[f"tokens of the {frame}"] = " ".join(map(str, sequence.names))
    return code_block({name: text for name, text in fields.items() if text is not None})


def code_block(fields: Mapping[str, str]) -> str:
    """Names and texts as a code block in Markdown, in which TensorBoard renders no HTML."""
    entries = [f"{name}: {text}" for name, text in fields.items()]
    lines = [line for entry in entries for line in entry.splitlines()]
    return "\n".join(f"    {line}" for line in lines)


def means_of(every: Sequence[Mapping[str, Mapping[str, Scored]]]) -> dict[str, float]:
    """Each measure of each head and its chance level, as means over the inputs that determine it."""
    by_tag: dict[str, list[float]] = {}
    for measured in every:
        for head, scores in measured.items():
            for name, scored in scores.items():
                by_tag.setdefault(f"measures, {name}/{head}", []).append(float(scored.value))
                tag = f"measures, {name}/{head} by chance"
                by_tag.setdefault(tag, []).append(float(scored.chance))
    arrays = {tag: np.array(values) for tag, values in by_tag.items()}
    finite = {tag: values[np.isfinite(values)] for tag, values in arrays.items()}
    return {tag: float(values.mean()) for tag, values in finite.items() if values.size}
