"""What an image run keeps of its data as JSON: the classes, and mean and standard deviation of the pixels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len

from jarilab.core.errors import UserError
from jarilab.core.options import check_fields
from jarilab.core.storage.files import read_json

Side = Annotated[int, Ge(1), Le(4096)]
Colours = Annotated[int, Ge(1), Le(4)]
CLASSES: dict[str, Any] = {"classes": Annotated[list[str], Len(1, 1_000_000)]}
OF_IMAGES: dict[str, Any] = CLASSES | {"shape": tuple[Colours, Side, Side]}
OF_DETECTION: dict[str, Any] = CLASSES | {"channels": Literal[1, 3]}


def read_facts(path: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Read a file's fields, with a mean and a deviation for each channel. Raises UserError naming a bad field.

    fields: the expected types.
    """
    try:
        facts = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; the run cannot answer without it") from None
    if isinstance(facts, dict) and isinstance(facts.get("shape"), list):
        facts["shape"] = tuple(facts["shape"])  # as it was before it was JSON
    check_fields(str(path), fields, facts)
    channels = facts["shape"][0] if "shape" in fields else facts["channels"]
    several = Len(channels, channels)
    level, spread = Annotated[float, Ge(-1e6), Le(1e6)], Annotated[float, Gt(0), Le(1e6)]
    of_pixels = {
        "mean": Annotated[list[level], several],
        "deviation": Annotated[list[spread], several],
    }
    check_fields(str(path), of_pixels, facts)
    return facts
