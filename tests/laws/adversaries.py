"""More encodings broken on purpose: each is right for what one tries first, and wrong beyond. A law has to see it.

`SEEN` in test_adversaries.py says which laws do. They are named as a user names their own: `adversaries.py:TopLeft`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from helpers.places import placed, turn, waves
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import PROVIDED, Encoding, Site
from jarilab.laws import Oracle
from jarilab.positions.coordinates import Positions, distance, offsets


def slope(site: Site) -> Tensor:
    return 1 / torch.arange(1.0, site.n_heads + 1).view(-1, 1, 1)


def away(q_pos: Positions, k_pos: Positions) -> Tensor:
    return distance(q_pos, k_pos).abs().unsqueeze(-3)


def sloped(encoding: Any, q_E: Any, k_E: Any, i: float, j: float, head: int, scale: float) -> float:
    return scale * float(q_E @ k_E) - abs(i - j) / (head + 1)


SLOPED = Oracle(score=sloped)


class Added(Encoding):
    """Of what is added to the input; knows places."""

    shift_invariant = False
    cross = False


class Minded(Encoding):
    """Of what minds distances; `-distance / (head + 1)` where it is right."""

    oracle: ClassVar[Any] = SLOPED

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return -slope(self.site) * away(q_pos, k_pos)


# Far away, and in other precisions -----------------------------------------------------------------------------------


class HalfDistances(Minded):
    """Counts distances in bfloat16: right up to 256."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return -slope(self.site) * away(q_pos, k_pos).bfloat16().float()


class ClipsFarther(Minded):
    """Takes all distances beyond 256 for that."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return -slope(self.site) * away(q_pos, k_pos).clamp(max=256)


class HoleInTheMiddle(Minded):
    """A bucket is off by one between 100 and 127."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        far = away(q_pos, k_pos)
        wrong = (far >= 100) & (far < 128)
        return -slope(self.site) * (far + wrong)


class LooksAhead(Minded):
    """Behind and ahead are one only up to 200 steps ahead."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        ahead = distance(q_pos, k_pos).clamp(max=200).unsqueeze(-3)
        return -slope(self.site) * ahead.abs()


class AddsInTheInputsPrecision(Added):
    """Counts in what the input is in."""

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.index().to(x.dtype), x.shape[-1]), pos)


class Widens(Added):
    """Gives float64 whatever it gets."""

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x.double(), waves(pos.index(), x.shape[-1]), pos)


class SpoiltByAutocast(Encoding):
    """Works angles out as a product of matrices, which autocast does in bfloat16."""

    def rotation(self, pos: Positions) -> Tensor:
        index = pos.index() if pos.unplaced is None else pos.index().masked_fill(pos.unplaced, 0)
        frequency = torch.tensor([[0.123]])
        return (index.float().unsqueeze(-1) @ frequency).squeeze(-1)

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class InjectsCoarsely(Encoding):
    """Its waves are in bfloat16 unless the model is in float64."""

    shift_invariant = False

    def inject(self, x: Tensor, pos: Positions) -> Tensor:
        wide = x.dtype is torch.float64
        index = pos.index().double() if wide else pos.index().bfloat16().double()
        return placed(x, waves(index, x.shape[-1]), pos)


class LearnsInHalf(Encoding):
    """Its learned frequency meets the places in the model's precision."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.frequency = nn.Parameter(torch.empty(1))
        self.reset()

    def rotation(self, pos: Positions) -> Tensor:
        index = pos.index() if pos.unplaced is None else pos.index().masked_fill(pos.unplaced, 0)
        return index.to(self.frequency.dtype) * self.frequency

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


# Sites: heads, widths, cross-attention, causal stacks ----------------------------------------------------------------


class TwelveHeads(Minded):
    """Knows the slopes of up to 8 heads and repeats them."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        head = torch.arange(self.site.n_heads) % 8
        return -away(q_pos, k_pos) / (head + 1.0).view(-1, 1, 1)


class OneHead(Minded):
    """Forgets the head of a single one."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        factor = 2.0 if self.site.n_heads == 1 else 1.0
        return -factor * slope(self.site) * away(q_pos, k_pos)


class EightWide(Encoding):
    """Takes every head for 8 wide."""

    oracle: ClassVar[Any] = Oracle(
        score=lambda encoding, q_E, k_E, i, j, head, scale: (
            scale * (float(q_E @ k_E) + float(q_E.sum()) / len(q_E) * np.tanh(j - i))
        )
    )

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        ahead = distance(q_pos, k_pos)
        return ahead if ahead.ndim == 3 else ahead[None]

    def terms(self, q: Tensor, k: Tensor, relation: Tensor) -> Tensor:
        return q.sum(-1, keepdim=True) / 8 * relation.tanh()[:, None].to(q.dtype)


class BackwardsInCross(Encoding):
    """Exchanges queries and keys where they are of two frames."""

    oracle: ClassVar[Any] = Oracle(
        score=lambda encoding, q_E, k_E, i, j, head, scale: scale * float(q_E @ k_E) + np.tanh((j - i) / 9) / (head + 1)
    )

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        sign = -1 if self.site.cross else 1
        return slope(self.site) * (sign * distance(q_pos, k_pos) / 9).tanh().unsqueeze(-3)


class QueriesOnlyInCross(Encoding):
    """Turns queries alone where keys are of another frame: their distance then means nothing."""

    def rotation(self, pos: Positions, *, side: str = PROVIDED) -> Tensor:
        still = self.site.cross and side == "key"
        index = pos.index() if pos.unplaced is None else pos.index().masked_fill(pos.unplaced, 0)
        return index * (0.0 if still else 0.3)

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class SixteenKeys(Minded):
    """Has no slope for keys after the sixteenth."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        bias = -slope(self.site) * away(q_pos, k_pos)
        return bias * (torch.arange(k_pos.length) < 16)


class CausalShortcut(Encoding):
    """One row of biases for all queries: the softmax of a causal decoder does not mind, that of an encoder does."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        last = k_pos.index().amax(-1, keepdim=True)
        row = (k_pos.index() - last).unsqueeze(-2).unsqueeze(-3)
        bias = slope(self.site) * row
        if k_pos.unplaced is not None:
            bias = bias.masked_fill(k_pos.unplaced.unsqueeze(-2).unsqueeze(-3), 0.0)
        return bias.expand(*bias.shape[:-2], q_pos.length, k_pos.length)


class SilentInDecoders(Encoding):
    """Wired up where queries see everything, and nowhere else."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return -slope(self.site) * away(q_pos, k_pos) * (0.0 if self.site.causal else 1.0)


class Leaks(Encoding):
    """Sums gates over all keys, those that a query may not see too."""

    causal_only = True
    cross = False

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return distance(q_pos, k_pos)

    def terms(self, q: Tensor, k: Tensor, relation: Tensor, *, product: Tensor = PROVIDED) -> Tensor:
        return product.sigmoid().flip(-1).cumsum(-1).flip(-1)


class MixesDocuments(Encoding):
    """For causal decoders: counts how many keys there are before the query, of whatever document."""

    causal_only = True
    cross = False

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        behind = (q_pos.order.unsqueeze(-1) - k_pos.order).clamp_min(0)
        bias = -slope(self.site) * behind
        for pos, axis in ((q_pos, -1), (k_pos, -2)):
            if pos.unplaced is not None:
                bias = bias.masked_fill(pos.unplaced.unsqueeze(axis).unsqueeze(-3), 0.0)
        return bias


class CausalBatch(Encoding):
    """For causal decoders: the places of the first row for all."""

    causal_only = True
    cross = False

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        far = away(q_pos, k_pos)
        return -slope(self.site) * (far if far.ndim == 3 else far[:1])


class CausalAbsolute(Encoding):
    """For causal decoders: says that moving places changes nothing, and looks at them."""

    causal_only = True
    cross = False

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        first = (k_pos.index() == 0).unsqueeze(-2).unsqueeze(-3)
        return -slope(self.site) * away(q_pos, k_pos) + 2.0 * first


class MeanState(Encoding):
    """What it remembers of a key depends on all that were read with it."""

    causal_only = True
    cross = False

    def remember(self, x: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)).sum(-1)[:, None, :, None].tanh()

    def terms(self, q: Tensor, k: Tensor, relation: Any, *, state: Tensor = PROVIDED) -> Tensor:
        return state.transpose(-1, -2).expand(*q.shape[:3], k.shape[2]).to(q.dtype)


# What is left behind -------------------------------------------------------------------------------------------------


class KeepsItsRelation(Encoding):
    """Uses the last relation that it worked out, and not the one that it is given."""

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        ahead = distance(q_pos, k_pos)
        self.last = ahead if ahead.ndim == 3 else ahead[None]
        return self.last

    def terms(self, q: Tensor, k: Tensor, relation: Tensor) -> Tensor:
        return q.sum(-1, keepdim=True) * self.last.tanh()[:, None].to(q.dtype)


class KeepsItsAngles(Encoding):
    """As above, for rotations."""

    def rotation(self, pos: Positions) -> Tensor:
        index = pos.index() if pos.unplaced is None else pos.index().masked_fill(pos.unplaced, 0)
        self.angle = 0.3 * index
        return self.angle

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, self.angle if self.angle.shape == rotation.shape else rotation)


class UsesUpItsRelation(Encoding):
    """Changes in place what the next layer is to use."""

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        ahead = distance(q_pos, k_pos).double()
        return ahead if ahead.ndim == 3 else ahead[None]

    def terms(self, q: Tensor, k: Tensor, relation: Tensor) -> Tensor:
        return q.sum(-1, keepdim=True) * relation.tanh_()[:, None].to(q.dtype)


class AddsInPlace(Added):
    """Changes the input that it is given."""

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        with torch.no_grad():
            x += placed(torch.zeros_like(x), waves(pos.index(), x.shape[-1]), pos)
        return x


class MovesPlaces(Added):
    """Changes the places that it is given."""

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        added = waves(pos.index(), x.shape[-1])
        pos.coordinates.add_(1)
        return placed(x, added, pos)


class Tires(Minded):
    """Minds less each time that it is asked, from the tenth on."""

    asked = 0

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        self.asked += 1
        return -slope(self.site) * away(q_pos, k_pos) / max(1, self.asked - 10)


class NeverShrinks(Added):
    """Slows its waves for a long input, and leaves them so."""

    farthest = 100

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        self.farthest = max(self.farthest, int(pos.index().max()))
        return placed(x, waves(pos.index() * (100 / self.farthest), x.shape[-1]), pos)


class KeyedByLength(Minded):
    """Keeps the distances of each instance by how many tokens there are."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.kept: dict[tuple[int, int], Tensor] = {}

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        key = (q_pos.length, k_pos.length)
        if key not in self.kept:
            self.kept[key] = away(q_pos, k_pos)
        return -slope(self.site) * self.kept[key]


class KeyedByEnds(Added):
    """Keeps waves by the number of tokens, the first place and the last."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.kept: dict[Any, Tensor] = {}

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        index = pos.index()
        if index.ndim == 2:
            return placed(x, waves(index, x.shape[-1]), pos)
        key = (len(index), float(index[0]), float(index[-1]))
        if key not in self.kept:
            self.kept[key] = waves(torch.linspace(key[1], key[2], key[0]), x.shape[-1])
        return placed(x, self.kept[key], pos)


class CountsInstances(Added):
    """From the third instance on its waves are slower."""

    built: ClassVar[int] = 0

    def __init__(self, site: Site):
        super().__init__(site)
        type(self).built += 1
        self.base = 100.0 if type(self).built <= 2 else 200.0

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.index(), x.shape[-1], self.base), pos)


class FirstOneWins(Added):
    """All instances have the option of the first."""

    base: ClassVar[float | None] = None

    def __init__(self, site: Site, *, base: float = 100.0):
        super().__init__(site)
        if type(self).base is None:
            type(self).base = base

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        assert self.base is not None
        return placed(x, waves(pos.index(), x.shape[-1], self.base), pos)


class HashedTable(Added):
    """Draws from a generator seeded with the hash of a text, which is another in every process."""

    def __init__(self, site: Site):
        super().__init__(site)
        generator = torch.Generator().manual_seed(hash("table") % 2**31)
        self.table = torch.randn(16, site.d_model, generator=generator)

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, self.table[pos.index() % 16], pos)


# Training and evaluation, and gradients ------------------------------------------------------------------------------


class SilentInEvaluation(Minded):
    """Drops its bias once training is over."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return super().bias(q_pos, k_pos) * (1.0 if self.training else 0.0)


class ShortcutWithoutGradients(Minded):
    """Has a faster way for generation, which counts from the first key."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        if torch.is_grad_enabled():
            return super().bias(q_pos, k_pos)
        return slope(self.site) * (k_pos.index() - k_pos.index()[..., :1]).unsqueeze(-2).unsqueeze(-3)


class DropsUnsaid(Minded):
    """Drops some of its bias in training, and does not say that it draws random numbers."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return nn.functional.dropout(super().bias(q_pos, k_pos), 0.2, self.training)


class DropsAlways(Minded):
    """Says that it draws in training, and draws in evaluation too."""

    random_in_training = True

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return nn.functional.dropout(super().bias(q_pos, k_pos), 0.2, True)


class DropsNever(Minded):
    """Says that it draws in training, and draws nothing."""

    random_in_training = True


class Table(Added):
    """Sound, if a table of 64 rows refused the 65th: each below spoils its gradient or its values."""

    integer_only = True

    def __init__(self, site: Site):
        super().__init__(site)
        self.table = nn.Parameter(torch.empty(64, site.d_model))
        self.reset()

    @property
    def max_positions(self) -> int | None:
        return 64

    def rows(self, table: Tensor, pos: Positions) -> Tensor:
        last = int(pos.index().max())
        if last > 63:
            raise IndexError(f"64 rows, got {last}")
        return table[pos.index()]

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, self.rows(self.table, pos), pos)


class HalfAGradient(Table):
    """Every other column learns."""

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        half = x.shape[-1] // 2
        table = torch.cat((self.table[:, :half], self.table[:, half:].detach()), -1)
        return placed(x, self.rows(table, pos), pos)


class FirstRowStill(Encoding):
    """The row of distance 0 learns nothing."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.table = nn.Parameter(torch.empty(9, site.n_heads))
        self.reset()

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        row = away(q_pos, k_pos).squeeze(-3).long().clamp(max=8)
        table = torch.cat((self.table[:1].detach(), self.table[1:]))
        bias = table[row].movedim(-1, -3)
        for pos, axis in ((q_pos, -1), (k_pos, -2)):
            if pos.unplaced is not None:
                bias = bias.masked_fill(pos.unplaced.unsqueeze(axis).unsqueeze(-3), 0.0)
        return bias


class LearnsInEvaluation(Table):
    """Cuts its gradient off in training."""

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        table = self.table.detach() if self.training else self.table
        return placed(x, self.rows(table, pos), pos)


class LearnsInDouble(Table):
    """Cuts its gradient off in float32."""

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        table = self.table if x.dtype is torch.float64 else self.table.detach()
        return placed(x, self.rows(table, pos), pos)


class CutsTheInput(Encoding):
    """Half of what goes into queries and keys has no gradient."""

    shift_invariant = False

    def inject(self, x: Tensor, pos: Positions) -> Tensor:
        half = x.shape[-1] // 2
        x = torch.cat((x[..., :half], x[..., half:].detach()), -1)
        return placed(x, waves(pos.index(), x.shape[-1]), pos)


class CutsWeights(Encoding):
    """What it adds to the output has no gradient towards the weights."""

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        ahead = distance(q_pos, k_pos)
        return (ahead if ahead.ndim == 3 else ahead[None]).tanh()[:, None]

    def values(self, weights: Tensor, relation: Tensor) -> Tensor:
        added = (weights.detach() * relation.to(weights.dtype)).sum(-1, keepdim=True)
        return added.expand(-1, -1, -1, self.site.d_value)


class RootOfNothing(Encoding):
    """The gradient of a square root at a distance of 0 is not a number."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.size = nn.Parameter(torch.empty(site.n_heads))
        self.reset()

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        size = self.size.abs().view(-1, 1, 1)
        return -(size * away(q_pos, k_pos)).sqrt()


class RootOfPlaces(Encoding):
    """The same towards places."""

    axes = (2,)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        down, right = offsets(q_pos, k_pos)
        return -slope(self.site) * (down.double() ** 2 + right.double() ** 2).sqrt().unsqueeze(-3).float()


# Places --------------------------------------------------------------------------------------------------------------


class Rounds(Added):
    """Takes the place 1.5 for 1."""

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        return placed(x, waves(pos.index().long(), x.shape[-1]), pos)


class Relative(Added):
    """Measures places by the last."""

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        index = pos.index().double()
        share = 10 * index / index.amax(-1, keepdim=True).clamp_min(1)
        return placed(x, waves(share, x.shape[-1]), pos)


class TopLeft(Minded):
    """Makes a square of biases and cuts it from the first row on."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        square = -slope(self.site) * away(k_pos, k_pos)
        return square[..., : q_pos.length, :]


class ByRank(Minded):
    """Counts the tokens between, and not the places."""

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        steps = (k_pos.order - q_pos.order.unsqueeze(-1)).abs()
        related = (distance(q_pos, k_pos) != 0) | (steps != 0)
        bias = -slope(self.site) * (steps * related)
        for pos, axis in ((q_pos, -1), (k_pos, -2)):
            if pos.unplaced is not None:
                bias = bias.masked_fill(pos.unplaced.unsqueeze(axis).unsqueeze(-3), 0.0)
        return bias


class Sorts(Added):
    """Numbers the tokens by their places."""

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        rank = pos.index().argsort(-1).argsort(-1)
        start = pos.index().amin(-1, keepdim=True)
        return placed(x, waves(start + rank, x.shape[-1]), pos)


class OneFrame(Added):
    """Takes the size of the first image for everybody's."""

    axes = (2,)

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        extent = pos.extent if pos.extent is None or pos.extent.ndim == 1 else pos.extent[0]
        row, column = pos.plane().unbind(-1)
        height, width = (1, 1) if extent is None else extent.tolist()
        half = x.shape[-1] // 2
        added = (waves(9.0 * row / height, half), waves(9.0 * column / width, x.shape[-1] - half))
        return placed(x, torch.cat(added, -1), pos)


class TurnsUnplacedKeys(Encoding):
    """Leaves queries without a place alone, and turns such keys."""

    def rotation(self, pos: Positions, *, side: str = PROVIDED) -> Tensor:
        index = pos.index() + 1
        if pos.unplaced is not None and side == "query":
            index = index.masked_fill(pos.unplaced, 0)
        return 0.3 * index

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class SwellsKeys(Encoding):
    """Makes keys longer, and says that it keeps their length."""

    def rotation(self, pos: Positions, *, side: str = PROVIDED) -> tuple[Tensor, float]:
        index = pos.index() if pos.unplaced is None else pos.index().masked_fill(pos.unplaced, 0)
        return 0.3 * index, 1.1 if side == "key" and pos.unplaced is None else 1.0

    def rotate(self, x: Tensor, rotation: tuple[Tensor, float]) -> Tensor:
        return turn(x, rotation[0]) * rotation[1]


class StaleKeys(Encoding):
    """Turns by how many tokens come at once."""

    shift_invariant = False

    def rotation(self, pos: Positions) -> Tensor:
        index = pos.index() if pos.unplaced is None else pos.index().masked_fill(pos.unplaced, 0)
        return index * (0.3 / max(1, pos.length))

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class LengthUnsaid(Encoding):
    """The number of keys decides, which it does not say."""

    shift_invariant = False

    def rotation(self, pos: Positions, *, keys: Positions = PROVIDED) -> Tensor:
        index = pos.index() if pos.unplaced is None else pos.index().masked_fill(pos.unplaced, 0)
        return index * (0.3 / max(1, keys.length))

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class LengthOverstated(Encoding):
    """Says that the number of keys decides, which it does not."""

    depends_on_length = True

    def rotation(self, pos: Positions, *, keys: Positions = PROVIDED) -> Tensor:
        index = pos.index() if pos.unplaced is None else pos.index().masked_fill(pos.unplaced, 0)
        return 0.3 * index

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class OverstatesItsDistance(Minded):
    """Says that it compares over 50 steps at most, and takes the 51st for the 50th."""

    @property
    def max_distance(self) -> int | None:
        return 50

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return -slope(self.site) * away(q_pos, k_pos).clamp(max=50)


# Initial values ------------------------------------------------------------------------------------------------------


class DrawsElsewhere(Minded):
    """Draws its initial values from torch's global generator."""

    oracle: ClassVar[Any] = None

    def __init__(self, site: Site):
        super().__init__(site)
        self.size = nn.Parameter(torch.empty(site.n_heads))
        self.reset()

    def initial_value(self, name: str, parameter: Tensor, generator: Any) -> None:
        nn.init.normal_(parameter)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        return -self.size.view(-1, 1, 1) * away(q_pos, k_pos)


class FillsHalf(DrawsElsewhere):
    """Fills half of them, and leaves the others as it found them."""

    def initial_value(self, name: str, parameter: Tensor, generator: Any) -> None:
        half = len(parameter) // 2
        nn.init.normal_(parameter[:half], generator=generator)
        nn.init.normal_(parameter[half:])


class NumbersInstances(DrawsElsewhere):
    """Each instance starts a little larger than the one before."""

    built: ClassVar[int] = 0

    def initial_value(self, name: str, parameter: Tensor, generator: Any) -> None:
        type(self).built += 1
        nn.init.normal_(parameter, std=1 + 0.01 * type(self).built, generator=generator)
