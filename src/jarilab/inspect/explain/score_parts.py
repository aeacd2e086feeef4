"""Split the scores of a head into summands.

A product of sums is a sum of products. If positions were added to the input, q.k is the sum of the four products of
content and position (`content_and_position.py`). If the encoding rotates q and k, q.k is the sum over the components
that rotate together. Whatever an encoding adds to the scores is a summand of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from jarilab.attention.definition import AttentionCall, Summands
from jarilab.attention.module import Attention
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import Encoding
from jarilab.inspect.explain.content_and_position import scores_by_part, split_sides
from jarilab.inspect.record.calls import largest
from jarilab.inspect.record.capture import Tape
from jarilab.positions.coordinates import Positions

SUM_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Largest difference of the sum from the scores, relative to the largest number in either."""
SUM_TOLERANCE_IN_HALF = 1e-2


@dataclass(frozen=True, eq=False)
class Parts:
    """The summands of a head's scores before the mask: the scores are `sum(matrices)`, each `(Q, K)`.

    about: a description for people. error: the largest absolute difference of the sum from the scores.
    """

    names: list[str]
    matrices: list[Float[Tensor, "Q K"]]
    about: str
    error: float


@torch.no_grad()
def parts_of(tape: Tape, site: str, head: int) -> Parts:
    """Split the scores of `head` at `site`. tape: of one input, recorded with `inside=True`.

    Positions that were added to the input are split from content in a pre-norm stack. Each norm keeps its divisor, so
    that it is linear. Content is all the rest: biases, and what earlier layers computed from positions. Without such
    positions, q.k is split by the components that a rotation turns together.
    Raises UserError for an unknown site or head, and for self-attention after a norm of a post-norm stack that adds
    positions. Raises RuntimeError if the sum of the parts is not the scores.
    """
    attention = tape.head(site, head).owner
    calls = [recorded.call for recorded in tape.calls[site]]
    summands = tape.summands(site, head)
    sides = split_sides(tape, site) if isinstance(attention, Attention) else None
    has_positions = sides is not None and any(side.position is not None for side in sides)
    if isinstance(attention, Attention) and sides and has_positions:
        parts, about = scores_by_part(attention, calls[0], sides, head)
    else:
        parts, about = _scores_by_component(calls, summands, head)
        if sides and any(side.mixed for side in sides):
            about.append(
                "What was added to the input by place has been through norms and cannot be told apart here."
            )
    if summands.terms is not None:
        parts["terms"] = summands.terms * summands.scale
        about.append("Terms: what the encoding adds by content and place together.")
    if summands.bias is not None:
        parts["bias"] = summands.bias.to(calls[0].q.dtype)
        about.append("Bias: what the encoding adds by place alone.")
    matrices = list(parts.values())
    error = largest(torch.stack(matrices).sum(0) - summands.scores)
    size = max(map(largest, (summands.scores, *matrices)))
    if not error <= SUM_TOLERANCE.get(matrices[0].dtype, SUM_TOLERANCE_IN_HALF) * size:
        raise RuntimeError(
            f"the parts of head {head} at {site} add up to something {error:g} away from its scores"
        )
    return Parts(list(parts), matrices, " ".join(about), error)


def _scores_by_component(
    calls: list[AttentionCall], summands: Summands, head: int
) -> tuple[dict[str, Tensor], list[str]]:
    """The scaled q.k, split by the components that rotate together; or the model's own score, whole."""
    first = calls[0]
    if first.score is not None:
        about = "Score: how well each key fits each query, by the model's own comparison."
        return {"score": summands.scale * summands.product}, [about]
    width = first.q.shape[3]
    groups = {"q . k": list(range(width))}
    about = "q . k: how well each key fits each query, by content."
    geometry = first.geometry
    if "rotate" in geometry.encoding.hooks:
        groups = rotated_together(geometry.encoding, geometry.q_pos, first.q, head)
        about = "The share of q . k of the components that the rotation turns together, from fast to slow."
    parts = {}
    for name, components in groups.items():
        rows = [_product(call, head, components) for call in calls]
        parts[name] = torch.cat(rows)
    return parts, [about]


def _product(call: AttentionCall, head: int, components: list[int]) -> Float[Tensor, "Q K"]:
    q_QC = call.q[0, head][:, components]
    k_KC = call.k[0, head][:, components]
    scaled_QC = call.scale * q_QC
    return scaled_QC @ k_KC.t()


# Rotations ----------------------------------------------------------------------------------------------------------


def rotated_together(
    encoding: Encoding, positions: Positions, q: Float[Tensor, "B H Q E"], head: int
) -> dict[str, list[int]]:
    """The groups of components of a head that the encoding's rotation mixes, by name.

    The name of a pair has its period in positions. Components that do not change are the last group.
    """
    # Rotating unit vectors to position 1 shows the groups of every encoding.
    rotated_EE = _rotated_unit_vectors(encoding, positions, q, head)
    groups: dict[str, list[int]] = {}
    unchanged = []
    for group in _groups((rotated_EE != 0) | (rotated_EE != 0).t()):
        if len(group) < 2:
            unchanged += group
            continue
        name = f"components {', '.join(map(str, group))}"
        if len(group) == 2 and len(positions.axes) == 1:
            cosine, sine = rotated_EE[group[0], group].tolist()
            period = 2 * math.pi / math.atan2(abs(sine), cosine)
            name = f"pair {len(groups)}, a turn in {period:.4g}"
        groups[name] = group
    if unchanged:
        groups["not turned"] = unchanged
    return groups


def _rotated_unit_vectors(
    encoding: Encoding, positions: Positions, q: Tensor, head: int
) -> Float[Tensor, "E E"]:
    """Each unit vector, rotated to position 1."""
    first = positions.coordinates.reshape(-1, len(positions.axes))[:1]
    position_one = replace(
        positions,
        coordinates=torch.ones_like(first),
        order=torch.zeros_like(positions.order[:1]),
        unplaced=None,
        relations=None,
    )
    width = q.shape[3]
    units = torch.eye(width, dtype=q.dtype, device=q.device)
    units = units.view(width, 1, 1, width)
    all_heads = units.expand(-1, q.shape[1], -1, -1)
    rotation = encoding.rotation_for(position_one, "query", position_one)
    return encoding.rotate(all_heads, rotation)[:, head, 0]


def _groups(linked: Bool[Tensor, "E E"]) -> list[list[int]]:
    """The connected components of a graph."""
    from scipy.sparse.csgraph import connected_components

    # Two rotations one after the other may pair components differently.
    count, labels_E = connected_components(linked.cpu().numpy(), directed=False)
    return [(labels_E == label).nonzero()[0].tolist() for label in range(count)]
