"""Numbers in a page's JSON: little-endian bytes in base64, with their type and shape."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from jarilab.core.shapes import Tensor

FIXED = 65535
"""Represents 1 in `uint16`, which holds numbers from 0 to 1."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def block(values: Tensor, dtype: str) -> dict[str, Any]:
    """A tensor as JSON. dtype: `uint16` for fixed point from 0 to 1, or the name of a torch dtype."""
    numbers = values.detach().cpu()
    if dtype == "uint16":
        numbers = (numbers.double() * FIXED).round()
    flat = numbers.to(getattr(torch, dtype)).contiguous().flatten()
    # As integers, since numpy has no bfloat16.
    bits = flat.view(_BITS[flat.element_size()]).numpy()
    # Little-endian on every machine, as JavaScript's typed arrays are where browsers run.
    raw = bits.astype(bits.dtype.newbyteorder("<")).tobytes()
    return {
        "dtype": dtype,
        "shape": list(values.shape),
        "data": base64.b64encode(raw).decode("ascii"),
    }


def unpacked(packed: Mapping[str, Any]) -> np.ndarray:
    """The array in a block, in its shape; `uint16` becomes float64 from 0 to 1. bfloat16 is not supported."""
    data = base64.b64decode(packed["data"])
    dtype = np.dtype(packed["dtype"]).newbyteorder("<")
    numbers = np.frombuffer(data, dtype).reshape(packed["shape"])
    return numbers / FIXED if packed["dtype"] == "uint16" else numbers
