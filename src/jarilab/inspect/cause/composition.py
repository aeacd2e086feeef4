"""How much of what one head writes another can read, from their weights (composition scores).

    rows = compositions(parts, batch)

With W_OV1 of an earlier head and W_QK2, W_OV2 of a later one, and Frobenius norms:

    q: |W_OV1 W_QK2| / (|W_OV1| |W_QK2|)    k: |W_OV1 W_QK2^T| / (...)    v: |W_OV1 W_OV2| / (|W_OV1| |W_OV2|)

Gamma and the centering of norms are folded into the weights first, biases are left out. Unrelated heads have about
1 / sqrt(D), not 0. A score is a possibility: `paths.py` measures what happens (Elhage et al. 2021, "A Mathematical
Framework for Transformer Circuits").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Literal, get_args

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.cause.forward_notes import ForwardNotes
from jarilab.inspect.cause.parts import ModelParts, is_within
from jarilab.inspect.cause.projections import HeadMatrices, Projection, Rotation, head_matrices
from jarilab.inspect.study.example import Batch

Input = Literal["q", "k", "v"]
INPUTS: tuple[Input, ...] = get_args(Input)
"""Which input of the later head reads the earlier one."""

NO_ROTATION = "no rotation"
UNKNOWN_ROTATION = (
    "distance 0 only: the model computes its scores itself, so a rotation would not be seen"
)


@dataclass(frozen=True, eq=False)
class _Folded:
    """The matrices of a site's heads in float64 with the norms folded in. W_OV is v o."""

    q: Float[Tensor, "H D E"]
    k: Float[Tensor, "H D E"]
    v: Float[Tensor, "H D W"]
    o: Float[Tensor, "H W D"]
    rotation: Rotation | None

    @staticmethod
    def of(matrices: HeadMatrices) -> _Folded:
        folded = {}
        for name in INPUTS:
            projection: Projection = getattr(matrices, name)
            folded[name] = projection.weight.double()
            if projection.norm is not None:
                folded[name] = projection.norm.matrix.double() @ folded[name]
        o_HWD = matrices.o.double()
        if matrices.norm_after is not None:
            o_HWD = o_HWD @ matrices.norm_after.matrix.double()
        if matrices.q.norm is not None and matrices.q.norm.is_centered:
            o_HWD = o_HWD - o_HWD.mean(-1, keepdim=True)  # norms do not see the mean of the stream
        return _Folded(**folded, o=o_HWD, rotation=matrices.rotation)


def compositions(parts: ModelParts, batch: Batch) -> list[dict[str, Any]]:
    """A row for each pair of heads of one stack and each input, the largest first.

    value: the score; with rotary positions, the largest over the distances 0 to L - 1, and `mean` the mean over these.
    to_chance: value times sqrt(D). to_shuffled: value over the mean of all pairs with this input. A cross-attention
    composes by its queries alone, since its keys and values are of another stack.
    Raises UserError for a post-norm model, and for heads without matrices, see `head_matrices`.
    """
    notes = ForwardNotes(parts, batch)
    matrices = {site: head_matrices(notes, site) for site in notes.calls}
    for site, each in matrices.items():
        if each.q.norm is not None and notes.is_stream(each.q.input):
            raise UserError(
                f"{site}: expected norms before the attention, got the residual stream of a post-norm model, "
                f"{type(parts.model).__name__}, which is normalized between two heads; use path patching"
            )
    folded = {site: _Folded.of(each) for site, each in matrices.items()}
    heads = {(head.site, head.index): head.short for head in parts.heads}
    rows: list[dict[str, Any]] = []
    for one, other in _pairs(parts, list(folded)):
        is_cross = not torch.equal(matrices[other].q.input, matrices[other].k.input)
        for name in INPUTS[:1] if is_cross else INPUTS:
            scores_THG = _scores(folded[one], folded[other], name, matrices[other].k.input.shape[1])
            text = NO_ROTATION
            if name != "v" and matrices[other].has_scores:
                text = UNKNOWN_ROTATION
            elif name != "v" and matrices[other].rotation is not None:
                last = len(scores_THG) - 1
                text = f"rotary: the largest and the mean over the distances 0 to {last}"
            values, distances = scores_THG.max(0)
            means = scores_THG.mean(0)
            for first, second in product(*map(range, values.shape)):
                value = float(values[first, second])
                row = {"head": heads[one, first], "to": heads[other, second], "input": name}
                row |= {"value": value, "mean": float(means[first, second])}
                row |= {"distance": int(distances[first, second]), "positions": text}
                rows.append(row | {"to_chance": value * folded[one].o.shape[-1] ** 0.5})
    for name in INPUTS:
        values = [row["value"] for row in rows if row["input"] == name]
        for row in rows:
            if row["input"] == name:
                row["to_shuffled"] = row["value"] / max(sum(values) / len(values), 1e-30)
    return sorted(rows, key=lambda row: -row["value"])


def _pairs(parts: ModelParts, sites: list[str]) -> Iterator[tuple[str, str]]:
    """Sites of one stack, the earlier one first."""

    def stack_of(site: str) -> str:
        path = parts.sites[site]
        return next((stack for stack in parts.layers if is_within(path, stack)), "")

    pairs = combinations(sites, 2)
    return ((one, other) for one, other in pairs if stack_of(one) == stack_of(other))


def _scores(one: _Folded, other: _Folded, name: Input, length: int) -> Float[Tensor, "T H G"]:
    """The scores of all heads H of one site and G of another, at each distance."""
    operands = {"q": (other.q, other.k), "k": (other.k, other.q), "v": (other.v, other.o.mT)}
    read, rest = operands[name]
    middle_HGWE = torch.einsum("hwd,gde->hgwe", one.o, read)
    # With |A M B^T|^2 = sum of (M^T A^T A M) * (B^T B), a rotation between M and B turns the small B^T B alone.
    left_HGEE = middle_HGWE.mT @ _gram(one.v)[:, None] @ middle_HGWE
    norm_H = (_gram(one.v) * _gram(one.o.mT)).sum((-1, -2)).sqrt()
    rest_GEE = _gram(rest)
    scores = []
    for distance in range(length if other.rotation is not None and name != "v" else 1):
        turned_GEE = rest_GEE
        if other.rotation is not None and name != "v":
            steps = distance if name == "k" else -distance
            turned_GEE = other.rotation.turned(rest_GEE, steps)
            turned_GEE = other.rotation.turned(turned_GEE.mT, steps)
        norm_HG = (left_HGEE * turned_GEE).sum((-1, -2))
        norm_G = (_gram(read) * turned_GEE).sum((-1, -2))
        scores.append(
            (norm_HG.clamp_min(0) / norm_G.clamp_min(1e-60)).sqrt()
            / norm_H.clamp_min(1e-30)[:, None]
        )
    return torch.stack(scores)


def _gram(x: Float[Tensor, "H D E"]) -> Float[Tensor, "H E E"]:
    return x.mT @ x
