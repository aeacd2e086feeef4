"""Encodings broken on purpose, each in one way that somebody might well break theirs. The laws have to see it.

They are named as a user names their own: `broken.py:CountsQueries`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge
from torch import nn

from helpers.places import placed, turn, waves
from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import PROVIDED, Encoding, Site
from jarilab.encodings.distance_forms import AffineBias, DistanceVectors, VectorTable
from jarilab.laws import Oracle
from jarilab.positions.coordinates import Positions, distance


class Absolute(Encoding):
    """A sound encoding, and its formula: what the broken ones below mean to be. The laws hold."""

    shift_invariant = False
    cross = False
    oracle: ClassVar[Any] = Oracle(
        embed=lambda encoding, position: np.sin(
            position * 100.0 ** -(np.arange(encoding.site.d_model) / encoding.site.d_model)
        )
    )

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.index(), x.shape[-1]), pos)


class OffByOne(Encoding):
    shift_invariant = False
    cross = False
    oracle: ClassVar[Any] = Absolute.oracle

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.index() + 1, x.shape[-1]), pos)


class CountsInBfloat16(Encoding):
    """Right up to position 256."""

    shift_invariant = False
    cross = False
    oracle: ClassVar[Any] = Absolute.oracle

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.index().bfloat16(), x.shape[-1]), pos)


class InfiniteWindow(Encoding):
    """Hides keys with minus infinity, which leaves no gradient to check."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        far = distance(q_pos, k_pos).abs().unsqueeze(-3) > 8
        return torch.zeros(self.site.n_heads, 1, 1).masked_fill(far, -torch.inf)


class WrongHead(Encoding):
    """The slopes of the heads are in the wrong order."""

    oracle: ClassVar[Any] = Oracle(
        score=lambda encoding, q_E, k_E, i, j, head, scale: scale * float(q_E @ k_E) - abs(i - j) / (head + 1)
    )

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        slope = 1 / torch.arange(self.site.n_heads, 0, -1)
        return -slope.view(-1, 1, 1) * distance(q_pos, k_pos).abs().unsqueeze(-3)


class SharesSlopes(Encoding):
    """Where the heads are no power of two, the last ones repeat the first."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        heads = self.site.n_heads
        power = 1 << (heads.bit_length() - 1)
        slope = 1 / (1 + torch.arange(heads) % power)
        return -slope.view(-1, 1, 1) * distance(q_pos, k_pos).abs().unsqueeze(-3)


class WrongValues(Encoding):
    """Means to add to each value its distance, and adds twice that."""

    oracle: ClassVar[Any] = Oracle(value=lambda encoding, v_E, i, j, head: v_E + np.tanh(j - i))

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return distance(q_pos, k_pos)

    def values(self, weights: Tensor, relation: Tensor) -> Tensor:
        relation = relation if relation.ndim == 3 else relation[None]
        total = (weights * 2 * relation.tanh()[:, None].to(weights.dtype)).sum(-1, keepdim=True)
        return total.expand(-1, -1, -1, self.site.d_value)


class HidesValues(Encoding):
    """Does not say that it needs the weights, so the fused kernel is not refused."""

    @property
    def hooks(self) -> frozenset[str]:
        return super().hooks - {"values"} | {"terms"}

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return distance(q_pos, k_pos)

    def values(self, weights: Tensor, relation: Tensor) -> Tensor:
        relation = relation if relation.ndim == 3 else relation[None]
        total = (weights * relation.tanh()[:, None].to(weights.dtype)).sum(-1, keepdim=True)
        return total.expand(-1, -1, -1, self.site.d_value)


class Coarse(Encoding):
    """Works in half precision whatever the model is in: some 40 times less than float32 deserves."""

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return distance(q_pos, k_pos)

    def terms(self, q: Tensor, k: Tensor, relation: Tensor) -> Tensor:
        relation = relation if relation.ndim == 3 else relation[None]
        half = torch.float64 if q.dtype is torch.float64 else torch.float16
        return (q.to(half).sum(-1, keepdim=True) * relation.tanh()[:, None].to(half)).to(q.dtype)


class CutsGradients(Encoding):
    """Has a faster way for float32, in which it forgets the queries' gradient."""

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return distance(q_pos, k_pos)

    def terms(self, q: Tensor, k: Tensor, relation: Tensor) -> Tensor:
        relation = relation if relation.ndim == 3 else relation[None]
        q = q.detach() if q.dtype is torch.float32 else q
        return q.sum(-1, keepdim=True) * relation.tanh()[:, None].to(q.dtype)


class ForgetsGradients(Encoding):
    """Forgets it always: the definition, which asks the same encoding, is then no better."""

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return distance(q_pos, k_pos)

    def terms(self, q: Tensor, k: Tensor, relation: Tensor) -> Tensor:
        relation = relation if relation.ndim == 3 else relation[None]
        return q.detach().sum(-1, keepdim=True) * relation.tanh()[:, None].to(q.dtype)


class DoubleOnly(Encoding):
    """Refuses what most models are in."""

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return distance(q_pos, k_pos)

    def terms(self, q: Tensor, k: Tensor, relation: Tensor) -> Tensor:
        if q.dtype is not torch.float64:
            raise UserError(f"expected float64, got {q.dtype}; use .double()")
        relation = relation if relation.ndim == 3 else relation[None]
        return q.sum(-1, keepdim=True) * relation.tanh()[:, None]


class WakesTheDead(Encoding):
    """Adds something even for a query that no key has any weight for."""

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return distance(q_pos, k_pos)

    def values(self, weights: Tensor, relation: Tensor) -> Tensor:
        return torch.ones(*weights.shape[:3], self.site.d_value, dtype=weights.dtype)


class CountsQueries(Encoding):
    """Looks at how many tokens there are and not at where they are."""

    shift_invariant = False
    cross = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(torch.arange(x.shape[1]), x.shape[-1]), pos)


class Centred(Encoding):
    """Counts from the middle of what it sees: right for whole sequences."""

    cross = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        index = pos.index().double()
        return placed(x, waves(index - index.mean(-1, keepdim=True), x.shape[-1]), pos)


class ByOrder(Encoding):
    """Takes the order of the tokens for their places, which start anew in each document."""

    shift_invariant = False
    cross = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.order, x.shape[-1]), pos)


class ClaimsTooMuch(Encoding):
    """Knows places, and says that moving them changes nothing."""

    cross = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.index(), x.shape[-1]), pos)


class ClaimsTooLittle(Encoding):
    """Knows distances, and says that moving the places changes something."""

    shift_invariant = False

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        slope = 1 / torch.arange(1.0, self.site.n_heads + 1)
        return -slope.view(-1, 1, 1) * distance(q_pos, k_pos).abs().unsqueeze(-3)


class MisstatesVectors(Encoding):
    """A vector for each distance up to 3, and says that those ahead are those behind."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.table = nn.Parameter(torch.randn(7, site.d_head))

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return distance(q_pos, k_pos).long().clamp(-3, 3) + 3

    def terms(self, q: Tensor, k: Tensor, relation: Any) -> Tensor:
        return torch.einsum("bhqe,...qke->bhqk", q, self.table[relation])

    def distance_vectors(self, first: int, last: int) -> DistanceVectors:
        return DistanceVectors(keys=VectorTable(self.table.flip(0).unsqueeze(0), -3))


class ForgetsToLearn(Encoding):
    """A learned slope, and lines by distance that do not learn it."""

    shift_invariant = False

    def __init__(self, site: Site):
        super().__init__(site)
        self.slope = nn.Parameter(torch.ones(site.n_heads))

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        by_place = q_pos.index().unsqueeze(-1) + 1
        away = distance(q_pos, k_pos).abs() / by_place
        return self.slope.view(-1, 1, 1) * away.to(self.slope.dtype).unsqueeze(-3)

    def affine_bias(self, q_pos: Positions, first: int, last: int) -> AffineBias:
        share_Q = 1 / (q_pos.index() + 1).to(self.slope.dtype)
        away_R = torch.arange(first, last + 1).abs()
        slope_HR = self.slope.detach().unsqueeze(1) * away_R
        return AffineBias(torch.zeros_like(slope_HR), share_Q, slope_HR)


class Swells(Encoding):
    """Rotates, and lengthens what is far away a little."""

    shift_invariant = False

    def rotation(self, pos: Positions) -> Tensor:
        return pos.index().double()

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        size = (1 + rotation / 1e6).to(x.dtype)
        return turn(x, rotation) * (size[None, None, :, None] if size.ndim == 1 else size[:, None, :, None])


class WiredToNothing(Encoding):
    """Works out the waves and forgets to add them."""

    shift_invariant = False
    cross = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        waves(pos.index(), x.shape[-1])
        return x


class Smuggler(Encoding):
    """Says that it uses no hook, and adds to the input."""

    cross = False

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset()

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.index(), x.shape[-1]), pos)


class Table(Encoding):
    """Has 64 rows, and lets each subclass deal with the 65th in its way. Sound for a table that says so."""

    shift_invariant = False
    cross = False

    def __init__(self, site: Site):
        super().__init__(site)
        self.table = nn.Parameter(torch.empty(64, site.d_model))
        self.reset()

    @property
    def max_positions(self) -> int | None:
        return 64

    def row(self, index: Tensor) -> Tensor:
        raise NotImplementedError

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, self.table[self.row(pos.index())], pos)


class ForgetsTheEnd(Table):
    def row(self, index: Tensor) -> Tensor:
        return index.clamp(max=63)


class MumblesTheEnd(Table):
    def row(self, index: Tensor) -> Tensor:
        if int(index.max()) > 63:
            raise UserError("too far")
        return index


class OverstatesTheEnd(Table):
    """Refuses its last position too."""

    def row(self, index: Tensor) -> Tensor:
        if int(index.max()) > 62:
            raise UserError(f"table knows 0 to 62, got {int(index.max())}")
        return index


class DeniesTheEnd(Table):
    @property
    def max_positions(self) -> int | None:
        return None

    def row(self, index: Tensor) -> Tensor:
        return index


class SharedCache(Encoding):
    """Keeps its waves for next time, by their number, where all instances find them."""

    shift_invariant = False
    cross = False
    kept: ClassVar[dict[int, Tensor]] = {}

    def __init__(self, site: Site, *, base: float = 100.0):
        super().__init__(site)
        self.base = base

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        if x.shape[1] not in self.kept or self.kept[x.shape[1]].shape[-1] != x.shape[-1]:
            self.kept[x.shape[1]] = waves(torch.arange(x.shape[1]), x.shape[-1], self.base)
        return placed(x, self.kept[x.shape[1]], pos)


class LastBuiltWins(Encoding):
    """Keeps its option in the class."""

    shift_invariant = False
    cross = False
    base: ClassVar[float] = 100.0

    def __init__(self, site: Site, *, base: float = 100.0):
        super().__init__(site)
        type(self).base = base

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.index(), x.shape[-1], self.base), pos)


class CastsWithTheModel(Encoding):
    """Holds its frequencies in a buffer: bfloat16 spoils them, the meta device loses them."""

    def __init__(self, site: Site, *, persistent: bool = True):
        super().__init__(site)
        self.persistent = persistent
        self.register_buffer("frequency", torch.tensor([0.1234567]), persistent=persistent)

    def rotation(self, pos: Positions) -> Tensor:
        return pos.index() * self.frequency.detach()

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class RollsDice(Encoding):
    """Its random numbers are in no state dict."""

    shift_invariant = False
    cross = False

    def __init__(self, site: Site, *, clip: Annotated[int, Ge(1)] = 8):
        super().__init__(site)
        self.clip = clip
        self.table = torch.randn(clip, site.d_model)

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, self.table[pos.index() % self.clip], pos)


class LosesOptions(Encoding):
    """Counts on `deepcopy` calling the constructor."""

    shift_invariant = False
    cross = False

    def __init__(self, site: Site, *, base: float = 100.0):
        super().__init__(site)
        self.base = base

    def __deepcopy__(self, memo: dict[int, Any]) -> LosesOptions:
        return LosesOptions(self.site, base=10 * self.base)

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.index(), x.shape[-1], self.base), pos)


class Idle(Encoding):
    """One of its two parameters does nothing."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.slope, self.idle = nn.Parameter(torch.empty(site.n_heads)), nn.Parameter(torch.empty(3))
        self.reset()

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return self.slope.view(-1, 1, 1) * distance(q_pos, k_pos).abs().unsqueeze(-3)


class FrozenFrequency(Encoding):
    """Has a frequency in each layer, and cuts it off from its gradient."""

    shared = False

    def __init__(self, site: Site):
        super().__init__(site)
        self.frequency = nn.Parameter(torch.empty(1))
        self.reset()

    def rotation(self, pos: Positions) -> Tensor:
        return pos.index() * self.frequency.detach()

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class PlacesEverybody(Encoding):
    """Does not look whether a token has a place: in the input, ..."""

    shift_invariant = False
    cross = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return x + waves(pos.index(), x.shape[-1]).to(x.dtype)


class TurnsEverybody(Encoding):
    """... in rotations, ..."""

    def rotation(self, pos: Positions) -> Tensor:
        return pos.index().double()

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class MeasuresEverybody(Encoding):
    """... and in distances."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        away = (k_pos.index().unsqueeze(-2) - q_pos.index().unsqueeze(-1)).abs().unsqueeze(-3)
        return -away / torch.arange(1.0, self.site.n_heads + 1).view(-1, 1, 1)


class NumbersSamples(Encoding):
    """Counts along the first axis that it finds as well, which is the batch."""

    shift_invariant = False
    cross = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        samples = waves(torch.arange(x.shape[0]), x.shape[-1]).unsqueeze(1)
        return placed(x + samples.to(x.dtype), waves(pos.index(), x.shape[-1]), pos)


class FirstRowForAll(Encoding):
    """Takes the first row's positions for everybody's."""

    shift_invariant = False
    cross = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        index = pos.index()
        return placed(x, waves(index if index.ndim == 1 else index[0], x.shape[-1]), pos)


class SetsTheDefaultDtype(Encoding):
    """Wants precise waves, and changes how everything built later is drawn."""

    shift_invariant = False
    cross = False

    def __init__(self, site: Site):
        super().__init__(site)
        torch.set_default_dtype(torch.float64)

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.index(), x.shape[-1]), pos)


class Crashes(Encoding):
    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        raise ZeroDivisionError("by the length of nothing")


class LooksBackOnly(Encoding):
    """A sound encoding for causal decoders alone."""

    causal_only = True
    cross = False

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        slope = 1 / torch.arange(1.0, self.site.n_heads + 1)
        return -slope.view(-1, 1, 1) * distance(q_pos, k_pos).abs().unsqueeze(-3)


def plane_waves(first: Tensor, second: Tensor, width: int) -> Tensor:
    """Something to add to the input of an image."""
    return torch.cat((waves(first, width // 2), waves(second, width - width // 2)), -1)


def numpy_waves(encoding: Encoding, at: Any) -> Any:
    half = encoding.site.d_model // 2
    speed = 100.0 ** -(np.arange(half) / half)
    return np.sin(np.concatenate((at.row * speed, at.column * speed)))


class Plane(Encoding):
    """A sound encoding of images, and its formula. The laws hold."""

    axes = (2,)
    shift_invariant = False
    cross = False
    oracle: ClassVar[Any] = Oracle(embed=numpy_waves)

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        row, column = pos.plane().unbind(-1)
        return placed(x, plane_waves(row, column, x.shape[-1]), pos)


class Transposed(Encoding):
    """Takes columns for rows."""

    axes = (2,)
    shift_invariant = False
    cross = False
    oracle: ClassVar[Any] = Plane.oracle

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        row, column = pos.plane().unbind(-1)
        return placed(x, plane_waves(column, row, x.shape[-1]), pos)


class RowsOnly(Encoding):
    """Cannot tell apart what stands in one row."""

    axes = (2,)
    shift_invariant = False
    cross = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.plane()[..., 0], x.shape[-1]), pos)


class Diagonal(Encoding):
    """Knows on which diagonal a token is: moved along one axis it is on another, and it says that nothing changes."""

    axes = (2,)
    cross = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        row, column = pos.plane().unbind(-1)
        return placed(x, waves(row - column, x.shape[-1]), pos)


class Erases(Encoding):
    """Keeps zeros as the cosine and sine of tokens without a place, which erases their queries and keys."""

    axes = (2,)

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        row, column = pos.plane().unbind(-1)
        angle = row.double() + 0.3 * column.double()
        size = torch.ones_like(angle) if pos.unplaced is None else (~pos.unplaced).double().expand(angle.shape)
        return angle, size

    def rotate(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        angle, size = rotation
        return turn(x, angle) * (size[None, None, :, None] if size.ndim == 1 else size[:, None, :, None]).to(x.dtype)


class FirstAxisOnly(Encoding):
    """For lines and images, of which it reads the first coordinate."""

    axes = (1, 2)
    shift_invariant = False
    cross = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.coordinates[..., 0], x.shape[-1]), pos)


class ByLength(Encoding):
    """Turns faster the longer the text is, and does not say so."""

    shift_invariant = False

    def rotation(self, pos: Positions, *, keys: Positions = PROVIDED) -> Tensor:
        length = keys.index().amax(-1, keepdim=True) + 1
        angle = pos.index().double() * length.double().log()
        return angle if pos.unplaced is None else angle.masked_fill(pos.unplaced, 0.0)

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class CountsQueriesByLength(CountsQueries):
    """Counts queries from 0 on at each step, and says that the length decides."""

    depends_on_length = True


class SaysItHearsNothing(Encoding):
    """Adds places to the input, and says that it hears no order."""

    shift_invariant = False
    cross = False
    uses_order = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.index(), x.shape[-1]), pos)
