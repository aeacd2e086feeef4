"""The inputs and outputs of models in one form.

Inputs are tokens or images. Outputs are scores at L places: after each token, of the whole image (L = 1), or of each
object query.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.positions.boxes import Detected
from jarilab.positions.coordinates import Tokens
from jarilab.positions.patches import Images

Inputs = tuple[Any, ...]
"""The arguments of a model, Tokens or Images. The last ones are the tokens of the answer, or the images it is about."""


def scores_of(outputs: Any) -> Float[Tensor, "B L V"]:
    """The scores at each place. Raises UserError for outputs that are no scores."""
    if isinstance(outputs, Detected):
        return outputs.scores[-1]
    if not isinstance(outputs, Tensor) or outputs.ndim not in (2, 3):
        raise UserError(
            f"expected a model that gives scores of tokens, of classes or of objects, got {type(outputs).__name__}; "
            "look at its maps with jarilab.record, which works for all outputs"
        )
    return outputs.unsqueeze(1) if outputs.ndim == 2 else outputs


def to_float64(inputs: Inputs) -> Inputs:
    """The same inputs for a model in float64."""
    return tuple(
        replace(batch, pixels=batch.pixels.double()) if isinstance(batch, Images) else batch
        for batch in inputs
    )


def repeat_batch(batch: Tokens | Images, copies: int) -> Tokens | Images:
    """The batch `copies` times, one copy below the other."""

    def repeat(tensor: Tensor | None, axes: int) -> Tensor | None:
        # A tensor with fewer axes has none for the batch.
        if tensor is None or tensor.ndim < axes:
            return tensor
        return tensor.repeat(copies, *[1] * (axes - 1))

    if isinstance(batch, Images):
        pixels = batch.pixels.repeat(copies, 1, 1, 1)
        return Images(pixels, repeat(batch.keep, 3))
    places = batch.positions
    positions = replace(
        places,
        coordinates=repeat(places.coordinates, 3),
        unplaced=repeat(places.unplaced, 2),
        relations=repeat(places.relations, 3),
        extent=repeat(places.extent, 2),
    )
    return replace(
        batch,
        ids=batch.ids.repeat(copies, 1),
        positions=positions,
        keep=repeat(batch.keep, 2),
        documents=repeat(batch.documents, 2),
    )
