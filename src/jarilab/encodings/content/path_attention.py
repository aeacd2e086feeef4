"""PaTH: keys that are multiplied by Householder-like matrices of later tokens."""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from annotated_types import Ge
from torch import nn
from torch.nn import functional

from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import PROVIDED, Encoding, Site, registry
from jarilab.encodings.numbers import at_least_float32, without_autocast, zero_out
from jarilab.positions.coordinates import Positions, undefined_pairs

# Keys that are processed at once. It changes no score, only the time.
CHUNK = 32


@final
@registry.register("path_attention", "path")
class PathAttention(Encoding):
    """Multiplies each key by `I - beta w w'` of every later token up to the query before its product with the query.

    w has length 1 and beta lies between 0 and 2. Both are computed from the token, for each head. w comes from a
    low-rank map; the authors' short convolution after it is omitted, since a cache stores one state for each token.
    Tokens without a position multiply earlier keys like any other, and their own products do not change. The keys that
    a query can see are assumed to be consecutive, as under padding, packed documents and windows.

    Source: PaTH: *PaTH Attention: Position Encoding via Accumulating Householder Transformations* (Yang et al. 2025),
    sections 3.1 and 3.2.

    rank: of the map that computes w.
    """

    causal_only = True
    cross = False
    shared = False

    def __init__(self, site: Site, *, rank: Annotated[int, Ge(1)] = 32):
        super().__init__(site)
        self.rank = rank
        self.low = nn.Linear(site.d_model, rank, bias=False)
        self.direction = nn.Linear(rank, site.n_heads * site.d_head, bias=False)
        self.strength = nn.Linear(site.d_model, site.n_heads)
        self.reset()

    def remember(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B H K _"]:
        """w and beta of each head, concatenated, in float32 so that w has length 1."""
        low_BKR = functional.linear(x, self.low.weight.to(x.dtype))
        w_BKN = functional.linear(low_BKR, self.direction.weight.to(x.dtype))
        w_BHKE = at_least_float32(w_BKN).unflatten(-1, (self.site.n_heads, -1)).transpose(1, 2)
        weight, bias = self.strength.weight.to(x.dtype), self.strength.bias.to(x.dtype)
        # The bias is added separately: with it, PyTorch's exporter takes the length for a constant.
        beta_BKH = 2 * at_least_float32(functional.linear(x, weight) + bias).sigmoid()
        beta_BHK1 = beta_BKH.transpose(1, 2).unsqueeze(-1)
        return torch.cat((functional.normalize(w_BHKE, dim=-1), beta_BHK1), -1)

    def relation(self, q_pos: Positions, k_pos: Positions) -> Bool[Tensor, "*B Q K"] | None:
        """True for pairs in which a token has no position."""
        return undefined_pairs(q_pos, k_pos)

    def terms(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: Any,
        *,
        allowed: Bool[Tensor, "#B 1 #Q K"] | None = PROVIDED,
        state: Float[Tensor, "B H K _"] = PROVIDED,
    ) -> Float[Tensor, "B H Q K"]:
        with without_autocast(q.device):
            terms_BHQK = _terms(at_least_float32(q), at_least_float32(k), allowed, state)
        return zero_out(terms_BHQK, relation).to(q.dtype)


def _terms(
    q_BHQE: Tensor, k_BHKE: Tensor, allowed: Tensor | None, state: Tensor
) -> Float[Tensor, "B H Q K"]:
    w_BHKE, beta_BHK1 = state[..., :-1], state[..., -1:]
    product_BHQK = q_BHQE @ w_BHKE.transpose(-1, -2)
    # Tokens that a query cannot see, such as later ones and padding, multiply no key.
    if allowed is not None:
        product_BHQK = product_BHQK.masked_fill(~allowed, 0.0)
        beta_BHK1 = beta_BHK1.masked_fill(_hidden_between(allowed).unsqueeze(-1), 0.0)
    starts = range(0, k_BHKE.shape[2], CHUNK) or range(1)
    first_queries = _first_queries(allowed, starts)
    return _solve_chunks(product_BHQK, w_BHKE, beta_BHK1 * w_BHKE, k_BHKE, first_queries)


def _hidden_between(allowed: Bool[Tensor, "#B 1 #Q K"]) -> Bool[Tensor, "#B 1 K"]:
    """Keys that no query can see, between those that queries see: padding.

    Hidden keys before and after them change no product.
    """
    # The row of a query without any key is True. Only the last query can really see all keys.
    has_no_key = allowed.all(-1, keepdim=True)
    has_no_key = torch.cat((has_no_key[..., :-1, :], torch.zeros_like(has_no_key[..., -1:, :])), -2)
    is_visible = (allowed & ~has_no_key).any(-2)
    is_after = is_visible.cumsum(-1) > 0
    is_before = is_visible.flip(-1).cumsum(-1).flip(-1) > 0
    return ~is_visible & is_after & is_before


def _first_queries(allowed: Tensor | None, starts: range) -> list[int]:
    """For each chunk of keys the first query that sees a key in or after it.

    Earlier queries need no work, which halves the work under a causal mask.
    """
    if allowed is None or not allowed.numel() or torch.compiler.is_compiling():
        return [0] * len(starts)
    key_K = torch.arange(allowed.shape[-1], device=allowed.device)
    allowed_QK = allowed.flatten(0, 1).any(0)
    last_Q = (allowed_QK * key_K).amax(-1)
    start_C1 = torch.tensor(starts, device=allowed.device).unsqueeze(-1)
    reaches_CQ = last_Q >= start_C1
    return reaches_CQ.int().argmax(-1).tolist()


def _solve_chunks(
    product_BHQK: Tensor,
    w_BHKE: Tensor,
    scaled_BHKE: Tensor,
    k_BHKE: Tensor,
    first_queries: list[int],
) -> Float[Tensor, "B H Q K"]:
    """`-Y tril(beta W K', -1)`, where `Y (I + tril(beta W W', -1)) = product`.

    Y holds the coefficient of each token's w in the query, after the matrices of later tokens. Chunks are solved from
    the last to the first, so that no product of matrices is computed; later chunks enter by their sum of `Y beta W`.

    product: queries times w, `(B, H, Q, K)`. scaled: beta times w. first_queries: for each chunk, the first query that
    needs it.
    """
    batch, heads, queries, _ = product_BHQK.shape
    w_chunks, scaled_chunks, k_chunks = (x.split(CHUNK, -2) for x in (w_BHKE, scaled_BHKE, k_BHKE))
    product_chunks = product_BHQK.split(CHUNK, -1)
    later_BHQE = product_BHQK.new_zeros(batch, heads, 0, w_BHKE.shape[-1])
    terms = []
    for chunk in reversed(range(len(first_queries))):
        w_BHCE, scaled_BHCE, k_BHCE = w_chunks[chunk], scaled_chunks[chunk], k_chunks[chunk]
        w_BHEC, k_BHEC = w_BHCE.transpose(-1, -2), k_BHCE.transpose(-1, -2)
        # The queries from `start` on: more with each chunk.
        start = first_queries[chunk]
        new_queries = queries - start - later_BHQE.shape[2]
        later_BHQE = functional.pad(later_BHQE, (0, 0, new_queries, 0))
        right_BHQC = product_chunks[chunk][:, :, start:] - later_BHQE @ w_BHEC
        # `unitriangular` takes the diagonal as 1.
        within_BHCC = scaled_BHCE @ w_BHEC
        y_BHQC = torch.linalg.solve_triangular(
            within_BHCC, right_BHQC, upper=False, left=False, unitriangular=True
        )
        before_BHCC = (scaled_BHCE @ k_BHEC).tril(-1)
        terms_BHQC = later_BHQE @ k_BHEC + y_BHQC @ before_BHCC
        terms.append(functional.pad(-terms_BHQC, (0, 0, start, 0)))
        later_BHQE = later_BHQE + y_BHQC @ scaled_BHCE
    return torch.cat(terms[::-1], -1)
