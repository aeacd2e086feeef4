"""The letters that name the axes of a tensor, and the annotations built from them.

    B batch            L length           Q query length      K key length
    D model width      H heads            E width of one head F feed-forward width
    V vocabulary       A axes of a position (1 for text, 2 for images)

Inside function bodies a tensor's name carries its letters (`q_BHQE`); public signatures carry jaxtyping annotations
(`Float[Tensor, "B H Q E"]`), which only the tests check at run time. Query and key length always have different
letters: mixing them up is the classic fault of this subject.
"""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Bool", "Float", "Int", "Tensor"]
