"""Score functions that compare queries and keys, besides the plain product.

| score | formula | source |
| --- | --- | --- |
| dot | `q . k` | Luong et al. 2015, equation 8 |
| general | `q^T W_a k` | Luong et al. 2015, equation 8 |
| concat | `v^T tanh(W_a [q; k])` | Luong et al. 2015, equation 8 |
| additive | `v^T tanh(W q + U k)` | Bahdanau et al. 2015, appendix A.1.2 |

Each maps queries and keys once and then compares the results. `dot` and `general` compare by the plain product, which
every kernel supports. `concat` and `additive` represent the same functions. Their initial values differ, since a row of
W_a reads both query and key.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, final

import torch
from torch import nn
from torch.nn import functional

from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Float, Tensor

ScoreName = Literal["dot", "general", "concat", "additive"]


@final
class TanhSum(nn.Module):
    """`v^T tanh(q + k)` for every query and key, instead of their product.

    Takes memory for B x H x Q x K x E numbers, which the backward pass needs as well.
    """

    def __init__(self, d_model: int):
        super().__init__()
        # A matrix of one row, not a vector, so that `jarilab.nn.init` draws it by its fan-in.
        initial = nn.init.normal_(torch.empty(1, d_model), std=d_model**-0.5)
        self.v = nn.Parameter(initial)

    def forward(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"]
    ) -> Float[Tensor, "B H Q K"]:
        # In place: half the peak memory.
        sums_BHQKE = q.unsqueeze(3) + k.unsqueeze(2)
        pairs_BHQKE = sums_BHQKE.tanh_()
        v_1E = self.v.to(pairs_BHQKE.dtype)
        scores_BHQK1 = functional.linear(pairs_BHQKE, v_1E)
        return scores_BHQK1.squeeze(-1)


class Score(nn.Module):
    """Maps of queries and keys, and their comparison.

    d_model: dimension that both are mapped to. compare: None for the plain product.
    """

    def __init__(self, d_model: int, compare: TanhSum | None = None):
        super().__init__()
        self.d_model = d_model
        self.compare = compare

    @abstractmethod
    def queries(self, x: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q E"]:
        """The queries, mapped."""

    @abstractmethod
    def keys(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B K E"]:
        """The keys, mapped."""

    @abstractmethod
    def maps(self) -> tuple[tuple[str, Tensor] | None, tuple[str, Tensor] | None]:
        """Name and matrix `(D, E)` of the linear maps of queries and of keys; None for none."""


@final
class Dot(Score):
    """`q . k`, without parameters. Raises UserError if the dimensions differ."""

    def __init__(self, query_width: int, key_width: int):
        if query_width != key_width:
            raise UserError(
                f"score=dot expected queries and keys of one dimension, got {query_width} and {key_width}; use "
                "score=general, which maps the queries"
            )
        super().__init__(key_width)

    def queries(self, x: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q E"]:
        return x

    def keys(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B K E"]:
        return x

    def maps(self) -> tuple[tuple[str, Tensor] | None, tuple[str, Tensor] | None]:
        return None, None


@final
class General(Score):
    """`q^T W_a k`: the queries are mapped into the space of the keys."""

    def __init__(self, query_width: int, key_width: int):
        super().__init__(key_width)
        self.query = nn.Linear(query_width, key_width, bias=False)

    def queries(self, x: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q E"]:
        return self.query(x)

    def keys(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B K E"]:
        return x

    def maps(self) -> tuple[tuple[str, Tensor] | None, tuple[str, Tensor] | None]:
        return ("W_a", self.query.weight.t()), None


@final
class Concat(Score):
    """`v^T tanh(W_a [q; k])`, with W_a split in two to avoid a tensor of all pairs [q; k]."""

    def __init__(self, query_width: int, key_width: int):
        super().__init__(key_width, TanhSum(key_width))
        self.query_width = query_width
        self.pair = nn.Linear(query_width + key_width, key_width, bias=False)

    def queries(self, x: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q E"]:
        return functional.linear(x, self.pair.weight[:, : self.query_width])

    def keys(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B K E"]:
        return functional.linear(x, self.pair.weight[:, self.query_width :])

    def maps(self) -> tuple[tuple[str, Tensor] | None, tuple[str, Tensor] | None]:
        rows = self.pair.weight.t()
        cut = self.query_width
        return (f"W_a[:{cut}]", rows[:cut]), (f"W_a[{cut}:]", rows[cut:])


@final
class Additive(Score):
    """`v^T tanh(W q + U k)`."""

    def __init__(self, query_width: int, key_width: int):
        super().__init__(key_width, TanhSum(key_width))
        self.query = nn.Linear(query_width, key_width, bias=False)
        self.key = nn.Linear(key_width, key_width, bias=False)

    def queries(self, x: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q E"]:
        return self.query(x)

    def keys(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B K E"]:
        return self.key(x)

    def maps(self) -> tuple[tuple[str, Tensor] | None, tuple[str, Tensor] | None]:
        return ("W", self.query.weight.t()), ("U", self.key.weight.t())


SCORES = {"dot": Dot, "general": General, "concat": Concat, "additive": Additive}


def build_score(name: str, query_width: int, key_width: int) -> Score:
    """The score of this name. Raises UserError for an unknown name or unsuitable dimensions."""
    if name not in SCORES:
        raise unknown("score", name, SCORES)
    return SCORES[name](query_width, key_width)
