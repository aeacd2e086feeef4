"""Drawings of encodings, from their hooks alone, and of the softmax: a page, SVG files, numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge, Le

from jarilab.core.errors import UserError
from jarilab.encodings.base import Site
from jarilab.inspect.explain.softmax import Number, Softmax, softmax_of
from jarilab.pages.encodings import figures, softmax
from jarilab.pages.encodings.page import Drawings
from jarilab.pages.encodings.subject import subject_of

__all__ = ["Drawings", "draw_encodings", "draw_softmax"]


def draw_encodings(
    *specs: str,
    length: Annotated[int, Ge(2), Le(1024)] = 128,
    width: Annotated[int, Ge(1), Le(4096)] = 128,
    heads: Annotated[int, Ge(1), Le(256)] = 8,
    causal: bool = False,
    seed: int = 1,
) -> Drawings:
    """Draw encodings side by side: what each adds, turns or subtracts, against positions and distances, in each head.

    specs: such as `rotary:base=500`, `t5+alibi` or `my_encoding.py:Mine`, whose file is executed. length: the tokens it
    is drawn for; distances go to twice that, and images have as many patches. width: of the model. heads: that share
    it. causal: draw it where queries never see later keys. seed: of the initial values of what learns.
    Raises UserError for an encoding that is not there, cannot have such heads, or fails in a hook.
    """
    if not specs:
        raise UserError("no encoding to draw; name one or more, such as rotary or t5,alibi")
    if min(length, width, heads) < 1 or length < 2:
        raise UserError(
            f"expected a length of 2 or more and a width and heads of 1 or more, got length={length}, "
            f"width={width}, heads={heads}"
        )
    if width % heads:
        near = heads * max(1, round(width / heads))
        raise UserError(
            f"heads share the width, so it must be a multiple of their number: got width {width} and {heads} "
            f"heads; use width {near}"
        )
    head_width = width // heads
    site = Site(width, heads, head_width, head_width, causal=causal)
    subjects = {}
    for spec in specs:
        subject = subject_of(spec, site, length, seed)
        subjects[subject.spec] = subject  # once, if it is named twice
    columns = [figures.column_of(subject) for subject in subjects.values()]
    settings = (
        f"Length {length}, model width {width}, {heads} {'head' if heads == 1 else 'heads'} of width {head_width}.",
        f"길이 {length}, 모델 폭 {width}, 폭 {head_width}의 헤드 {heads}개.",
    )
    record = {"length": length, "width": width, "heads": heads, "causal": causal, "seed": seed}
    return Drawings(" · ".join(subjects), settings, record, columns)


def draw_softmax(*rows: Sequence[Number], divide: Sequence[Number] = ()) -> Drawings:
    """Draw the softmax of each row of numbers and its derivative; divide: once more for the numbers divided by the
    square root of each of these. Raises UserError for a row that has no two numbers, or a number that is none."""
    return drawn(softmax_of(rows, divide))


def drawn(found: Sequence[Softmax]) -> Drawings:
    """Draw softmaxes that were computed."""
    columns = [softmax.column_of(one) for one in found]
    settings = ("The softmax and its derivative.", "소프트맥스와 그 도함수.")
    return Drawings("softmax", settings, {}, columns)
