"""Change what attentions put out, one by one, in a model of jari or of any other library."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from jarilab.attention.definition import AttentionCall
from jarilab.attention.module import AttentionKernel
from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Tensor
from jarilab.inspect.record.frames import Frame, Sites
from jarilab.inspect.record.function_mode import Door
from jarilab.inspect.record.heard import Heard
from jarilab.inspect.record.recorded import Recorded
from jarilab.inspect.record.sites import attentions_of, heard_at

Change = Callable[[str, AttentionCall, Tensor], Tensor]
"""Of a site, its call and its output `(B, H, Q, W)`: the output that the model goes on with."""


@contextmanager
def changing(
    model: nn.Module, change: Change, sites: Collection[str] | None = None
) -> Iterator[None]:
    """Inside the block the attentions at `sites`, all by default, give what `change` makes of their output."""
    placed = attentions_of(model)
    if not placed:
        with Door(model, _heard(model, change, sites)):
            yield
        return
    chosen = placed if sites is None else sites
    handles = [placed[site].listen(_hook(site, change)) for site in chosen]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def hear(
    model: nn.Module,
    calls: dict[str, list[Recorded]],
    unheard: list[str],
    sites: Collection[str] | None,
) -> Iterator[None]:
    """Keep the attentions of a model of another library, those at `sites` or all. unheard: takes the modules that may
    have attended without being heard. Raises UserError at the end of the block for a site that is not there, and where
    nothing was heard."""
    names, passed = Sites(model), set()

    def keep(frame: Frame, heard: Heard, output: Tensor) -> Tensor:
        site = names.of(frame, heard)
        passed.add(site)
        if sites is None or site in sites:
            recorded = Recorded.heard(heard, output, heard_at(model, frame.path))
            calls.setdefault(site, []).append(recorded)
        return output

    with Door(model, keep) as door:
        yield
    unheard += door.unheard
    if unheard:
        warnings.warn(_missing(unheard), stacklevel=5)  # at the `with` of whoever records
    if not passed:
        raise UserError(
            f"nothing was recorded: {type(model).__name__} computed no attention that could be heard inside the block. "
            "Heard are scaled_dot_product_attention, and a softmax over keys that is multiplied with values, of the "
            "model itself, in this thread; a compiled model runs past (call its original, compiled._orig_mod), and so "
            'do FlexAttention and extensions (load the model with attn_implementation="sdpa")'
        )
    for site in sites or ():
        if site not in passed:
            raise unknown("site", site, sorted(passed))


def _missing(unheard: Sequence[str]) -> str:
    shown = ", ".join(unheard[:3])
    more = f" and {len(unheard) - 3} more" if len(unheard) > 3 else ""
    return (
        f"{shown}{more} seem to attend in a way that cannot be heard, so their maps are not on the tape "
        "(tape.unheard); a model that multiplies its weights with values itself, or calls "
        "scaled_dot_product_attention over four axes, is heard"
    )


def _hook(site: str, change: Change) -> Any:
    def hook(module: AttentionKernel, arguments: tuple[AttentionCall], output: Tensor) -> Tensor:
        return change(site, arguments[0].materialized, output)

    return hook


def _heard(model: nn.Module, change: Change, sites: Collection[str] | None) -> Any:
    names = Sites(model)

    def listener(frame: Frame, heard: Heard, output: Tensor) -> Tensor:
        site = names.of(frame, heard)
        chosen = sites is None or site in sites
        return change(site, heard.materialized, output) if chosen else output

    return listener
