"""All numbers that lessons quote."""

from __future__ import annotations

from typing import Any

import computed
import trained


def all_numbers() -> dict[str, Any]:
    """By name, as `expected.py` has them."""
    return computed.all_numbers() | trained.all_numbers()
