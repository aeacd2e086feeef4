"""Numbers as a page reads them: bytes, little end first, in base64, with their type and shape."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from jarilab.core.shapes import Tensor

FIXED = 65535
"""What stands for 1 in `uint16`, which is for numbers from 0 to 1."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def block(values: Tensor, dtype: str) -> dict[str, Any]:
    """dtype: `uint16` is fixed point for 0 ... 1; otherwise what torch calls it."""
    given = values.detach().cpu()
    counted = (given.double() * FIXED).round() if dtype == "uint16" else given
    flat = counted.to(getattr(torch, dtype)).contiguous().flatten()
    # As whole numbers, since numpy knows no bfloat16.
    bits = flat.view(_BITS[flat.element_size()]).numpy()
    raw = bits.astype(bits.dtype.newbyteorder("<")).tobytes()
    return {
        "dtype": dtype,
        "shape": list(values.shape),
        "data": base64.b64encode(raw).decode("ascii"),
    }


def unpacked(packed: Mapping[str, Any]) -> np.ndarray:
    """The numbers of a block, of a type that numpy has."""
    data = base64.b64decode(packed["data"])
    dtype = np.dtype(packed["dtype"]).newbyteorder("<")
    numbers = np.frombuffer(data, dtype).reshape(packed["shape"])
    return numbers / FIXED if packed["dtype"] == "uint16" else numbers
