"""Letters for the axes of tensors, and annotations with them.

    B batch            L length           Q query length      K key length
    D d_model          H heads            E d_head            F d_ff
    V vocabulary       A axes of a position (1 for text, 2 for images)

Names of local tensors end with these letters (`q_BHQE`). Public signatures have jaxtyping annotations
(`Float[Tensor, "B H Q E"]`), which only the tests check at run time. Query and key length always have different
letters, since confusing them is the most common mistake in attention.
"""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Bool", "Float", "Int", "Tensor"]
