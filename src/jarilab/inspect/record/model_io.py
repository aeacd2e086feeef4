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

    def repeat(tensor: Tensor) -> Tensor:
        return tensor.repeat(copies, *[1] * (tensor.ndim - 1))

    if isinstance(batch, Images):
        return Images(repeat(batch.pixels), None if batch.keep is None else repeat(batch.keep))
    return replace(
        batch,
        ids=repeat(batch.ids),
        positions=batch.positions.map_rows(repeat),
        keep=None if batch.keep is None else repeat(batch.keep),
        documents=None if batch.documents is None else repeat(batch.documents),
    )
