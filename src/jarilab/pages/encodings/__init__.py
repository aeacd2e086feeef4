"""Drawings of encodings, made from their hooks, and of the softmax: a page, SVG files, numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge, Le

from jarilab.core.errors import UserError
from jarilab.encodings.base import Site
from jarilab.inspect.explain.softmax import Number, Softmax, softmax_of
from jarilab.pages.encodings import figures, softmax_page
from jarilab.pages.encodings.drawn_encoding import subject_of
from jarilab.pages.encodings.encoding_page import Drawings

__all__ = ["Drawings", "draw_encodings", "draw_softmax"]


def draw_encodings(
    *specs: str,
    length: Annotated[int, Ge(2), Le(1024)] = 128,
    d_model: Annotated[int, Ge(1), Le(4096)] = 128,
    n_heads: Annotated[int, Ge(1), Le(256)] = 8,
    causal: bool = False,
    seed: int = 1,
) -> Drawings:
    """Draw encodings side by side: what each hook does, against positions and distances, in each head.

    specs: such as `rotary:base=500`, `t5+alibi` or `my_encoding.py:Mine`, whose file is executed.
    length: tokens in the drawing; distances reach twice as far, and images have as many patches.
    d_model: model dimension.
    n_heads: number of heads.
    causal: draw the encoding for queries that never see later keys.
    seed: seed of the initial values of learned encodings.

    Raises UserError for an encoding that is unknown, cannot have such heads, or fails in a hook.
    """
    if not specs:
        raise UserError("no encoding to draw; name one or more, such as rotary or t5,alibi")
    if min(length, d_model, n_heads) < 1 or length < 2:
        raise UserError(
            f"expected a length of 2 or more and a width and heads of 1 or more, got length={length}, "
            f"d_model={d_model}, n_heads={n_heads}"
        )
    if d_model % n_heads:
        near = n_heads * max(1, round(d_model / n_heads))
        raise UserError(
            f"heads share d_model, so it must be a multiple of n_heads: got d_model={d_model} and n_heads={n_heads}"
            f"; use d_model={near}"
        )
    d_head = d_model // n_heads
    site = Site(d_model, n_heads, d_head, d_head, causal=causal)
    subjects = {}
    for spec in specs:
        subject = subject_of(spec, site, length, seed)
        subjects[subject.spec] = subject  # once, if it is named twice
    columns = [figures.column_of(subject) for subject in subjects.values()]
    settings = (
        f"Length {length}, d_model {d_model}, {n_heads} {'head' if n_heads == 1 else 'heads'}, d_head {d_head}.",
        f"길이 {length}, d_model {d_model}, 헤드 {n_heads}개, d_head {d_head}.",
    )
    record = {
        "length": length,
        "d_model": d_model,
        "n_heads": n_heads,
        "causal": causal,
        "seed": seed,
    }
    return Drawings(" · ".join(subjects), settings, record, columns)


def draw_softmax(*rows: Sequence[Number], divide: Sequence[Number] = ()) -> Drawings:
    """Draw the softmax of each row of scores, and its derivative.

    divide: each row is also drawn with its scores divided by the square root of each of these numbers. Raises
    UserError for a row of fewer than two numbers, and for one that is not finite.
    """
    return drawn(softmax_of(rows, divide))


def drawn(softmaxes: Sequence[Softmax]) -> Drawings:
    """Drawings of computed softmaxes."""
    columns = [softmax_page.column_of(one) for one in softmaxes]
    settings = ("The softmax and its derivative.", "소프트맥스와 그 도함수.")
    return Drawings("softmax", settings, {}, columns)
