"""What models are called with and what they say, brought to one form: tokens or images in, and out the scores of what
is said at each of L places: after each token, of the whole image (L = 1), by each object query."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.positions.boxes import Detected
from jarilab.positions.coordinates import Tokens
from jarilab.positions.patches import Images

Inputs = tuple[Any, ...]
"""What a model is called with, Tokens or Images. The last of them holds the tokens after each of which something is
written, or the images of which something is said."""


def scores_of(outputs: Any) -> Float[Tensor, "B L V"]:
    """What a model says at each place. Raises UserError for outputs that are no scores."""
    if isinstance(outputs, Detected):
        return outputs.scores[-1]
    if not isinstance(outputs, Tensor) or outputs.ndim not in (2, 3):
        raise UserError(
            f"expected a model that gives scores of tokens, of classes or of objects, got {type(outputs).__name__}; "
            "look at its maps with jarilab.record, which asks nothing of the outputs"
        )
    return outputs.unsqueeze(1) if outputs.ndim == 2 else outputs


def keep_of(inputs: Inputs) -> Bool[Tensor, "B L"] | None:
    """False at places of the answer that are padding; None where there are none such."""
    return inputs[-1].keep if isinstance(inputs[-1], Tokens) else None


def precise(inputs: Inputs) -> Inputs:
    """The same for a model in float64."""
    return tuple(
        replace(one, pixels=one.pixels.double()) if isinstance(one, Images) else one
        for one in inputs
    )


def repeated(one: Tokens | Images, copies: int) -> Tokens | Images:
    """The batch so many times, one copy below the other."""

    def of(held: Tensor | None, axes: int) -> Tensor | None:
        if held is None or held.ndim < axes:
            return held
        return held.repeat(copies, *[1] * (axes - 1))

    if isinstance(one, Images):
        pixels = one.pixels.repeat(copies, 1, 1, 1)
        return Images(pixels, of(one.keep, 3))
    places = one.positions
    positions = replace(
        places,
        coordinates=of(places.coordinates, 3),
        unplaced=of(places.unplaced, 2),
        relations=of(places.relations, 3),
        extent=of(places.extent, 2),
    )
    return replace(
        one,
        ids=one.ids.repeat(copies, 1),
        positions=positions,
        keep=of(one.keep, 2),
        documents=of(one.documents, 2),
    )
