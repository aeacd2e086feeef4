"""The matrices W_Q, W_K, W_V and W_O of each head, found by what they compute in one forward.

A linear part belongs to queries, keys or values if its output, cut into heads, is what the attention was called with.
Queries and keys may be scaled and rotated between the two. No name of an architecture is used, and a wrong split of a
fused matrix or of groups does not match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from jarilab.attention.module import AttentionKernel
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.inspect.cause.forward_notes import ForwardNotes, NormCall
from jarilab.inspect.cause.frozen_norms import matrix_of
from jarilab.inspect.cause.parts import is_within
from jarilab.inspect.record.foreign_call import repeat_groups

TOLERANCE = 1e-3
"""Largest difference of a projection from what the attention was called with, relative to the largest number."""

Comparison = Callable[[Tensor, Tensor], bool]
"""Whether the output of a linear part fits what the attention was called with."""


@dataclass(frozen=True, eq=False)
class Rotation:
    """Pairs of components that turn by an angle for each position.

    first, second: the components of the pairs. angle: of a step from one position to the next.
    """

    first: Int[Tensor, " R"]
    second: Int[Tensor, " R"]
    angle: Float[Tensor, " R"]

    def turned(self, x: Float[Tensor, "*L E"], positions: int | Tensor) -> Float[Tensor, "*L E"]:
        """The vectors, turned by a number of positions; a tensor of them broadcasts to `(*L, R)`."""
        angle = (self.angle * positions).to(x)
        a, b = x[..., self.first], x[..., self.second]
        result = x.clone()
        result[..., self.first] = a * angle.cos() - b * angle.sin()
        result[..., self.second] = a * angle.sin() + b * angle.cos()
        return result


@dataclass(frozen=True, eq=False)
class Projection:
    """A projection to queries, keys or values, up to a factor. Heads of a group have equal keys and values.

    weight: without bias. input: what it reads. norm: whose output that is; None if it is the residual stream.
    """

    weight: Float[Tensor, "H D E"]
    input: Tensor
    norm: NormCall | None
    output: Float[Tensor, "B H L E"]


@dataclass(frozen=True, eq=False)
class HeadMatrices:
    """The projections of the heads of a site.

    norm_after: the norm that reads their output. rotation: of queries and keys; None without one. has_scores: the model
    computes its scores itself, so that a rotation cannot be seen.
    """

    q: Projection
    k: Projection
    v: Projection
    o: Float[Tensor, "H W D"]
    norm_after: NormCall | None
    rotation: Rotation | None
    has_scores: bool


def head_matrices(notes: ForwardNotes, site: str) -> HeadMatrices:
    """The matrices of the heads of a site.

    Raises UserError for an attention whose queries, keys, values or output are no linear map of what it reads, up to a
    rotation, as where queries are normalized.
    """
    call, z_BHQW = notes.calls[site]
    heads = z_BHQW.shape[1]
    has_scores = not call.q.shape[3]
    v = _projection(notes, site, "values", repeat_groups(call.v, heads), (_is_equal,))
    rotation = None
    if has_scores:
        q, k = (_named(notes, site, name, heads) for name in ("queries", "keys"))
    else:
        kinds = (_is_equal, _has_equal_norms)
        q = _projection(notes, site, "queries", call.q, kinds)
        k = _projection(notes, site, "keys", repeat_groups(call.k, heads), kinds)
        if not _is_equal(q.output, call.q):
            rotation = _rotation_between(q.output, call.q)
            if rotation is None:
                raise _not_linear(site, "queries", "they are rotated, not in fixed pairs")
    paths = list(notes.parts.output_projections(notes.events, [site]))
    joined = z_BHQW.transpose(1, 2).flatten(2)
    x, y = notes.linear.get(paths[0], (z_BHQW, z_BHQW)) if len(paths) == 1 else (z_BHQW, z_BHQW)
    if x.shape != joined.shape or not _is_equal(x, joined):
        raise _not_linear(site, "the output", "no linear part reads its heads side by side")
    o_HWD = matrix_of(notes.parts.linear[paths[0]], x).unflatten(0, z_BHQW.shape[1::2])
    return HeadMatrices(q, k, v, o_HWD, notes.norm_after(y), rotation, has_scores)


def _projection(
    notes: ForwardNotes, site: str, what: str, target: Tensor, kinds: tuple[Comparison, ...]
) -> Projection:
    """The projection whose output is `target` `(B, H, L, E)`, by the first comparison that finds one."""
    shape = target.shape[1], target.shape[3]
    candidates = [each for path in _near(notes, site) for each in _cut(notes, path, what, *shape)]
    for fits in kinds:
        for path, columns, output in candidates:
            if output.shape == target.shape and fits(output, target):
                return _made(notes, path, columns, output)
    raise _not_linear(site, what, "no linear part computes them, as where they are normalized")


def _named(notes: ForwardNotes, site: str, what: str, heads: int) -> Projection:
    """The projection whose name begins as queries or keys do, where the model computes its scores itself."""
    named = {path.rpartition(".")[2][0]: path for path in reversed(_near(notes, site))}
    if "q" in named and what[0] in named:
        width = notes.linear[named["q"]][1].shape[-1] // heads
        for cut in _cut(notes, named[what[0]], what, heads, width):
            return _made(notes, *cut)
    reason = "the model computes its scores itself, and no linear part has their name"
    raise _not_linear(site, what, reason)


def _near(notes: ForwardNotes, site: str) -> list[str]:
    """The linear parts inside the module that attends; for one of jarilab, inside its owner."""
    path = notes.parts.sites[site]
    if isinstance(notes.parts.model.get_submodule(path), AttentionKernel):
        path = path.rpartition(".")[0]
    return [each for each in notes.linear if is_within(each, path)]


def _made(notes: ForwardNotes, path: str, columns: Tensor, output: Tensor) -> Projection:
    x = notes.linear[path][0]
    weight_HDE = matrix_of(notes.parts.linear[path], x)[:, columns].transpose(0, 1)
    return Projection(weight_HDE, x, notes.norm_of(x), output)


def _cut(
    notes: ForwardNotes, path: str, what: str, heads: int, width: int
) -> Iterator[tuple[str, Int[Tensor, "H E"], Float[Tensor, "B H L E"]]]:
    """The columns of a linear part that may belong to each head, and their outputs: it is one projection, or fused."""
    y = notes.linear[path][1]
    count, rest = divmod(y.shape[-1], width)
    groups = (count - heads) // 2
    columns_NE = torch.arange(count * width).view(count, width)
    kinds = ("queries", "keys", "values")
    options: list[Tensor] = []
    if count == heads or (what != "queries" and count and not heads % count):
        options.append(columns_NE)
    if groups > 0 and heads + 2 * groups == count and not heads % groups:
        options.append(columns_NE.split([heads, groups, groups])[kinds.index(what)])
        # Queries of a group, then its key and its value, as in GPT-NeoX and Falcon.
        grouped = columns_NE.view(groups, -1, width).split([heads // groups, 1, 1], 1)
        options.append(grouped[kinds.index(what)].flatten(0, 1))
    for option_NE in options if y.ndim == 3 and not rest else ():
        columns_HE = option_NE.repeat_interleave(heads // len(option_NE), 0)
        yield path, columns_HE, y[..., columns_HE.to(y.device)].transpose(1, 2)


def _is_equal(output: Tensor, target: Tensor) -> bool:
    """Whether two tensors are equal up to a positive factor."""
    output, target = output.double(), target.double()
    size = target.abs().max()
    if not size:
        return not bool(output.any())
    factor = (output * target).sum() / output.square().sum().clamp_min(1e-30)
    return bool(factor > 0) and bool(((factor * output - target).abs() <= TOLERANCE * size).all())


def _has_equal_norms(output: Tensor, target: Tensor) -> bool:
    """Whether the vectors have equal norms up to a factor, as before and after a rotation."""
    return _is_equal(output.norm(dim=-1), target.norm(dim=-1))


def _rotation_between(
    before: Float[Tensor, "B H L E"], after: Float[Tensor, "B H L E"]
) -> Rotation | None:
    """The rotation of pairs, in halves or neighbours, of some first components; None if there is none that fits.

    Positions are counted from the first vector of each row.
    """
    before, after = before.double(), after.double()
    before = before * (after.norm() / before.norm().clamp_min(1e-30))
    steps_L1 = torch.arange(before.shape[2], dtype=torch.double, device=before.device)[:, None]
    width = before.shape[-1]
    for size in range(width - width % 2, 0, -2):
        index = torch.arange(size, device=before.device)
        for first, second in (index.chunk(2), (index[::2], index[1::2])):
            old, new = (torch.complex(x[..., first], x[..., second]) for x in (before, after))
            turn_LR = (old.conj() * new).sum((0, 1))
            start = Rotation(first, second, turn_LR[0].angle())
            angle_R = (turn_LR[1:] * turn_LR[:-1].conj()).sum(0).angle()
            rotation = Rotation(first, second, angle_R)
            rotated = rotation.turned(start.turned(before, 1), steps_L1)
            if bool((rotated - after).abs().max() <= TOLERANCE * after.abs().max()):
                return rotation
    return None


def _not_linear(site: str, what: str, reason: str) -> UserError:
    return UserError(
        f"{site}: expected {what} that are a linear map of what the attention reads, up to a rotation, got others: "
        f"{reason}. Composition cannot be computed; use path patching"
    )
