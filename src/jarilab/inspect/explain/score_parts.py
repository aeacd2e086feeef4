"""What a head's scores are the sum of.

A product of sums is a sum of products. Where positions were added to the input, q and k are each the sum of what comes
of the content and what comes of the position, and q.k is the sum of four (`origins.py`); where an encoding turns q and
k, q.k is the sum of what the components that turn together give (`rotations.py`); what an encoding adds to the scores
is a summand as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from jarilab.attention.definition import AttentionCall, Summands
from jarilab.attention.module import Attention
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.explain.origins import by_origin, sides_of
from jarilab.inspect.explain.rotations import turned_together
from jarilab.inspect.record.calls import largest
from jarilab.inspect.record.capture import Tape, look_inside

ADDS_UP = {torch.float64: 1e-6, torch.float32: 1e-4}
"""How far the sum may be from the scores, relative to the largest number in either."""
ADDS_UP_IN_HALF = 1e-2


@dataclass(frozen=True, eq=False)
class Parts:
    """The scores of a head before the mask, as a sum: `sum(matrices)`, each `(Q, K)`.

    about: what the parts are, for a person. error: the largest absolute difference of the sum from the scores.
    """

    names: list[str]
    matrices: list[Float[Tensor, "Q K"]]
    about: str
    error: float


def parts(model: nn.Module, inputs: Sequence[Any], site: str, head: int) -> Parts:
    """`parts_of` while the model runs on `inputs`, a batch of one."""
    return parts_of(look_inside(model, inputs), site, head)


@torch.no_grad()
def parts_of(tape: Tape, site: str, head: int) -> Parts:
    """Take the scores of `head` at `site` apart. tape: of one input, recorded with `inside=True`.

    Positions that were added to the input are told apart from content in a pre-norm stack, where they lie on the
    residual path as they were added; each norm's divisor is held at what it was, which makes the norm linear. Content
    is all the rest: biases, and what earlier layers have made of positions. Without positions in the input, a rotation
    is told apart by the components that it turns together.
    Raises UserError for an unknown site or head, and for self-attention after a norm of a post-norm stack that adds
    positions to its input: they cannot be told apart there. Raises RuntimeError where the parts are not the scores.
    """
    attention = tape.head(site, head).owner
    calls = [recorded.call for recorded in tape.calls[site]]
    summands = tape.summands(site, head)
    sides = sides_of(tape, site) if isinstance(attention, Attention) else None
    if isinstance(attention, Attention) and sides and sides.told_apart:
        found, about = by_origin(attention, calls[0], sides, head)
    else:
        found, about = _by_component(calls, summands, head)
        if sides and sides.mixed:
            about.append(
                "What was added to the input by place has been through norms and cannot be told apart here."
            )
    if summands.terms is not None:
        found["terms"] = summands.terms * summands.scale
        about.append("Terms: what the encoding adds by content and place together.")
    if summands.bias is not None:
        found["bias"] = summands.bias.to(calls[0].q.dtype)
        about.append("Bias: what the encoding adds by place alone.")
    matrices = list(found.values())
    error = _error(matrices, summands.scores, f"head {head} at {site}")
    return Parts(list(found), matrices, " ".join(about), error)


def _error(matrices: list[Tensor], scores: Tensor, where: str) -> float:
    """How far the sum of the parts is from the scores. Raises RuntimeError where it is something else."""
    total = torch.stack(matrices).sum(0)
    error = largest(total - scores)
    size = max(largest(matrix) for matrix in (scores, *matrices))
    allowed = ADDS_UP.get(matrices[0].dtype, ADDS_UP_IN_HALF)
    if not error <= allowed * size:
        raise RuntimeError(
            f"the parts of {where} add up to something {error:g} away from its scores"
        )
    return error


def _by_component(
    calls: list[AttentionCall], summands: Summands, head: int
) -> tuple[dict[str, Tensor], list[str]]:
    """q.k, or the score in its place, in as many parts as the rotation has."""
    first = calls[0]
    if first.score is not None:
        about = "Score: how well each key fits each query, by the model's own comparison."
        return {"score": summands.scale * summands.product}, [about]
    width = first.q.shape[3]
    groups = {"q . k": list(range(width))}
    about = "q . k: how well each key fits each query, by content."
    geometry = first.geometry
    if "rotate" in geometry.encoding.hooks:
        groups = turned_together(geometry.encoding, geometry.q_pos, first.q, head)
        about = "The share of q . k of the components that the rotation turns together, from fast to slow."
    found = {}
    for name, components in groups.items():
        rows = [_product(call, head, components) for call in calls]
        found[name] = torch.cat(rows)
    return found, [about]


def _product(call: AttentionCall, head: int, components: list[int]) -> Float[Tensor, "Q K"]:
    """What these components of q and k give together."""
    q_QC = call.q[0, head][:, components]
    k_KC = call.k[0, head][:, components]
    scaled_QC = call.scale * q_QC
    return scaled_QC @ k_KC.t()
