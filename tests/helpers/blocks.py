"""What the explorer's page reads out of a block."""

import base64
from typing import Any

import numpy as np

TYPES = {"uint8": "<u1", "uint16": "<u2", "float32": "<f4"}


def unpacked(block: dict[str, Any]) -> np.ndarray:
    numbers = np.frombuffer(base64.b64decode(block["data"]), TYPES[block["dtype"]]).reshape(block["shape"])
    return numbers / 65535 if block["dtype"] == "uint16" else numbers
