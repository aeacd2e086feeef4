"""Sound encodings of all kinds, as persons write theirs: every law has to let them be."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from helpers.places import placed, turn, waves
from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import PROVIDED, Encoding, Site
from jarilab.laws import Oracle
from jarilab.positions.coordinates import Positions, distance, offsets, undefined_pairs


def index_of(pos: Positions) -> Tensor:
    return pos.index() if pos.unplaced is None else pos.index().masked_fill(pos.unplaced, 0)


def away(q_pos: Positions, k_pos: Positions) -> Tensor:
    return distance(q_pos, k_pos).abs()


def of_pairs(bias: Tensor, q_pos: Positions, k_pos: Positions) -> Tensor:
    """0 for pairs of which one has no place."""
    apart = undefined_pairs(q_pos, k_pos)
    return bias if apart is None else bias.masked_fill(apart.unsqueeze(-3), 0.0)


class ParameterNamedV(Encoding):
    """Has parameters with the names of the attention's own tensors."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.v = nn.Parameter(torch.empty(site.n_heads))
        self.q = nn.Parameter(torch.empty(site.n_heads))
        self.reset()

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        far = away(q_pos, k_pos).unsqueeze(-3)
        return self.v.view(-1, 1, 1) * far.double().log1p() + self.q.view(-1, 1, 1) * (far > 2)


class Perceptron(Encoding):
    """A network of one hidden layer with ReLU makes biases of logarithmic distances, as Swin V2 has it."""

    def __init__(self, site: Site, *, hidden: int = 16):
        super().__init__(site)
        self.hidden = hidden
        self.network = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, site.n_heads))
        self.reset()

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        ahead = distance(q_pos, k_pos).double()
        far = ahead.sign() * ahead.abs().log1p()
        with torch.autocast("cpu", enabled=False):
            bias = self.network(far.unsqueeze(-1).to(self.network[0].weight.dtype))
        return of_pairs(bias.movedim(-1, -3), q_pos, k_pos)


class ReluOfQueries(Encoding):
    """A kink in the content."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.weight = nn.Parameter(torch.empty(site.d_head))
        self.reset()

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        ahead = distance(q_pos, k_pos)
        return (ahead if ahead.ndim == 3 else ahead[None]).double().tanh()[:, None]

    def terms(self, q: Tensor, k: Tensor, relation: Tensor) -> Tensor:
        wanted = (q * self.weight.to(q.dtype)).relu().sum(-1, keepdim=True)
        return wanted * relation.to(q.dtype)


class Normed(Encoding):
    """Layer norm of the waves before they are added."""

    shift_invariant = False
    cross = False

    def __init__(self, site: Site):
        super().__init__(site)
        self.norm = nn.LayerNorm(site.d_model)

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        added = waves(pos.index(), x.shape[-1])
        return placed(x, self.norm(added.to(self.norm.weight.dtype)), pos)


class Float32Constants(Encoding):
    """Frequencies in float32, as most code has them."""

    def rotation(self, pos: Positions) -> Tensor:
        return index_of(pos).float() * torch.tensor(0.321, dtype=torch.float32)

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class Window(Encoding):
    """Hides all keys more than eight positions away. Among nearer ones, order makes no difference."""

    integer_only = True

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        if any(pos.index().is_floating_point() for pos in (q_pos, k_pos)):
            raise UserError("expected whole positions, got others; round them")
        far = away(q_pos, k_pos).unsqueeze(-3) > 8
        return torch.zeros(self.site.n_heads, 1, 1).masked_fill(far, -10_000.0)


class LearnedFrequency(Encoding):
    """One learned speed."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.frequency = nn.Parameter(torch.empty(()))
        self.reset()

    def rotation(self, pos: Positions) -> Tensor:
        return index_of(pos).double() * self.frequency.double()

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class FixedFrequency(LearnedFrequency):
    """A constant as a parameter that is not trained."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.frequency = nn.Parameter(torch.tensor(0.321, dtype=torch.float64), requires_grad=False)

    def reset(self) -> None:
        nn.init.constant_(self.frequency, 0.321)


class LearnedSpeeds(Encoding):
    """Learned waves, added to the input."""

    shift_invariant = False
    cross = False

    def __init__(self, site: Site):
        super().__init__(site)
        self.speed = nn.Parameter(torch.empty(site.d_model))
        self.reset()

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        angle = pos.index().double().unsqueeze(-1) * self.speed.double()
        return placed(x, angle.sin(), pos)


class OfEachLayer(Encoding):
    """An instance for each layer, with slopes that depend on which it is in."""

    shared = False

    def __init__(self, site: Site):
        super().__init__(site)
        self.slope = nn.Parameter(torch.empty(site.n_heads))
        self.reset()

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        power = 1 + self.site.layer / self.site.n_layers
        return -self.slope.abs().view(-1, 1, 1) * away(q_pos, k_pos).unsqueeze(-3) ** power


class CausalSlopes(Encoding):
    """For causal decoders alone; grows where a key is ahead."""

    causal_only = True
    cross = False
    oracle: ClassVar[Any] = Oracle(
        score=lambda encoding, q_E, k_E, i, j, head, scale: scale * float(q_E @ k_E) + (j - i) / (head + 1)
    )

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        slope = 1 / torch.arange(1.0, self.site.n_heads + 1)
        return slope.view(-1, 1, 1) * distance(q_pos, k_pos).unsqueeze(-3)


class CausalGates(Encoding):
    """For causal decoders alone: each key says how much of what came before it is kept."""

    causal_only = True

    def __init__(self, site: Site):
        super().__init__(site)
        self.gate = nn.Linear(site.d_model, site.n_heads)
        self.reset()

    def remember(self, x: Tensor) -> Tensor:
        gates = nn.functional.linear(x, self.gate.weight.to(x.dtype), self.gate.bias.to(x.dtype))
        return nn.functional.logsigmoid(gates).transpose(1, 2).unsqueeze(-1)

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor | None:
        return undefined_pairs(q_pos, k_pos)

    def terms(
        self,
        q: Tensor,
        k: Tensor,
        relation: Tensor | None,
        *,
        allowed: Tensor | None = PROVIDED,
        state: Tensor = PROVIDED,
    ) -> Tensor:
        gates = state.transpose(-1, -2).expand(*q.shape[:3], k.shape[2])
        gates = gates if allowed is None else gates.masked_fill(~allowed, 0.0)
        since = gates.flip(-1).cumsum(-1).flip(-1) - gates
        since = since if relation is None else since.masked_fill(relation.unsqueeze(-3), 0.0)
        return since.to(q.dtype)


class CausalTable(Encoding):
    """For causal decoders alone, with an end."""

    causal_only = True
    shift_invariant = False
    integer_only = True
    cross = False

    def __init__(self, site: Site, *, positions: int = 400):
        super().__init__(site)
        self.positions = positions
        self.table = nn.Parameter(torch.empty(positions, site.d_model))
        self.reset()

    @property
    def max_positions(self) -> int | None:
        return self.positions

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        index = pos.index()
        if index.is_floating_point():
            raise UserError(f"CausalTable looks whole places up, got {index.dtype}")
        if int(index.max()) >= self.positions:
            raise UserError(f"CausalTable has {self.positions} rows, got {int(index.max())}")
        return placed(x, self.table[index], pos)


class PlainTable(Encoding):
    """Says nothing of whole places: PyTorch refuses others."""

    shift_invariant = False
    cross = False

    def __init__(self, site: Site):
        super().__init__(site)
        self.table = nn.Embedding(64, site.d_model)
        self.reset()

    @property
    def max_positions(self) -> int | None:
        return 64

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        if int(pos.index().max()) > 63:
            raise UserError(f"64 rows, got {int(pos.index().max())}")
        return placed(x, self.table(pos.index()), pos)


class Jittered(Encoding):
    """Moves all places by a number drawn in training."""

    shift_invariant = False
    cross = False
    random_in_training = True

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        by = torch.randint(1, 100, ()) if self.training else 0
        return placed(x, waves(pos.index() + by, x.shape[-1]), pos)


class DropsBias(Encoding):
    """Drops some of a learned bias in training."""

    random_in_training = True

    def __init__(self, site: Site, *, share: float = 0.2):
        super().__init__(site)
        self.share = share
        self.slope = nn.Parameter(torch.empty(site.n_heads))
        self.reset()

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        bias = -self.slope.abs().view(-1, 1, 1) * away(q_pos, k_pos).unsqueeze(-3)
        return nn.functional.dropout(bias, self.share, self.training)


class ManyOptions(Encoding):
    """Options of every kind."""

    oracle: ClassVar[Any] = Oracle(
        score=lambda encoding, q_E, k_E, i, j, head, scale: (
            scale * float(q_E @ k_E) - encoding.size * encoding.shape_of(abs(i - j))
        )
    )

    def __init__(
        self,
        site: Site,
        *,
        shape: Literal["log", "root"] = "log",
        size: float = 0.5,
        near: int = 2,
        flat: bool = False,
    ):
        super().__init__(site)
        self.shape: Literal["log", "root"] = shape
        self.size, self.near, self.flat = size, near, flat

    def shape_of(self, far: float) -> float:
        far = max(0.0, far - self.near) if self.flat else far
        return math.log1p(far) if self.shape == "log" else math.sqrt(1 + far)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        far = away(q_pos, k_pos).double()
        far = (far - self.near).clamp_min(0) if self.flat else far
        shaped = far.log1p() if self.shape == "log" else (1 + far).sqrt()
        bias = of_pairs(-self.size * shaped.unsqueeze(-3), q_pos, k_pos)
        return bias.expand(*bias.shape[:-3], self.site.n_heads, -1, -1).float()


class Injected(Encoding):
    """Into the queries and keys of every layer, through a learned map."""

    shift_invariant = False

    def __init__(self, site: Site):
        super().__init__(site)
        self.map = nn.Linear(site.d_model, site.d_model, bias=False)
        self.reset()

    def inject(self, x: Tensor, pos: Positions) -> Tensor:
        added = waves(pos.index(), x.shape[-1]).to(self.map.weight.dtype)
        return placed(x, self.map(added), pos)


class Weighed(Encoding):
    """Adds to the output alone, with a learned direction."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.direction = nn.Parameter(torch.empty(site.d_value))
        self.reset()

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        ahead = distance(q_pos, k_pos)
        return (ahead if ahead.ndim == 3 else ahead[None]).double().tanh()[:, None]

    def values(self, weights: Tensor, relation: Tensor) -> Tensor:
        total = (weights * relation.to(weights.dtype)).sum(-1, keepdim=True)
        return total * self.direction.to(weights.dtype)


class Sided(Encoding):
    """Turns queries one way and keys the other, so that the sum of places counts."""

    shift_invariant = False

    def rotation(self, pos: Positions, *, side: str = PROVIDED) -> Tensor:
        return index_of(pos).double() * (0.3 if side == "query" else -0.2)

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class ByLength(Encoding):
    """Turns more slowly for texts of more than `trained` tokens: what dynamic NTK does."""

    shift_invariant = False
    depends_on_length = True

    def __init__(self, site: Site, *, trained: int = 20):
        super().__init__(site)
        self.trained = trained

    def rotation(self, pos: Positions, *, keys: Positions = PROVIDED) -> Tensor:
        read = keys.index().amax(-1, keepdim=True) + 1
        return index_of(pos).double() * (0.3 * self.trained / read.clamp_min(self.trained))

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class Centred(Encoding):
    """Counts from the middle of the keys, which no product of a query and a key hears."""

    def rotation(self, pos: Positions, *, keys: Positions = PROVIDED) -> Tensor:
        index = keys.index().double()
        middle = (index.amax(-1, keepdim=True) + index.amin(-1, keepdim=True)) / 2
        angle = 0.3 * (pos.index() - middle)
        return angle if pos.unplaced is None else angle.masked_fill(pos.unplaced, 0.0)

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        return turn(x, rotation)


class Scaled(Encoding):
    """Scores counted half, less a distance."""

    scale_factor = 0.5
    oracle: ClassVar[Any] = Oracle(
        score=lambda encoding, q_E, k_E, i, j, head, scale: scale * float(q_E @ k_E) - np.log1p(abs(i - j))
    )

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        bias = -away(q_pos, k_pos).double().log1p().unsqueeze(-3)
        return bias.expand(*bias.shape[:-3], self.site.n_heads, -1, -1)


class Cached(Encoding):
    """Keeps a table of its own in a buffer, and rows by number: nobody else finds it."""

    def __init__(self, site: Site):
        super().__init__(site)
        self.register_buffer("slope", 1 / torch.arange(1.0, site.n_heads + 1))
        self.kept: dict[int, Tensor] = {}

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        if 0 not in self.kept:
            self.kept[0] = 1 / torch.arange(1.0, self.site.n_heads + 1)
        return -self.kept[0].view(-1, 1, 1) * away(q_pos, k_pos).unsqueeze(-3)


class PlaneDistance(Encoding):
    """Straight distances on an image, without a kink at 0."""

    axes = (2,)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        down, right = offsets(q_pos, k_pos)
        far = (1 + down.double() ** 2 + right.double() ** 2).sqrt() - 1
        slope = 1 / torch.arange(1.0, self.site.n_heads + 1)
        return -slope.view(-1, 1, 1) * far.unsqueeze(-3)


class PlaneShare(Encoding):
    """Places as a share of the image, of each its own."""

    axes = (2,)
    shift_invariant = False
    cross = False

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        extent = torch.ones(2) if pos.extent is None else pos.extent
        share = pos.plane().float() / extent.unsqueeze(-2)
        row, column = (9.0 * share).unbind(-1)
        half = x.shape[-1] // 2
        return placed(x, torch.cat((waves(row, half), waves(column, x.shape[-1] - half)), -1), pos)


class LineOrPlane(Encoding):
    """On one axis or two."""

    axes = (1, 2)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        apart = q_pos.coordinates.unsqueeze(-2) - k_pos.coordinates.unsqueeze(-3)
        far = apart.abs().sum(-1).unsqueeze(-3)
        slope = 1 / torch.arange(1.0, self.site.n_heads + 1)
        return of_pairs(-slope.view(-1, 1, 1) * far, q_pos, k_pos)


class Sides(Encoding):
    """A vector for the values of keys before, at and after the query: alike for all earlier ones."""

    integer_only = True
    oracle: ClassVar[Any] = Oracle(
        value=lambda encoding, v_E, i, j, head: v_E + encoding.side.detach().numpy()[int(np.sign(j - i)) + 1]
    )

    def __init__(self, site: Site):
        super().__init__(site)
        self.side = nn.Parameter(torch.empty(3, site.d_value))
        self.reset()

    def relation(self, q_pos: Positions, k_pos: Positions) -> Tensor:
        apart = distance(q_pos, k_pos)
        if apart.is_floating_point() and bool((apart != apart.round()).any()):
            raise UserError("expected whole positions, got others; round them")
        sides = nn.functional.one_hot(apart.sign().long() + 1, 3)
        undefined = undefined_pairs(q_pos, k_pos)
        return sides if undefined is None else sides.masked_fill(undefined.unsqueeze(-1), 0)

    def values(self, weights: Tensor, relation: Tensor) -> Tensor:
        relation = (relation if relation.ndim == 4 else relation[None]).to(weights.dtype)
        relation = relation.expand(len(weights), -1, -1, -1)
        return torch.einsum("bhqk,bqkr,re->bhqe", weights, relation, self.side.to(weights.dtype))


class TableForBoth(Encoding):
    """A vector for each place, also built for cross-attention, where it adds nothing."""

    shift_invariant = False
    integer_only = True

    def __init__(self, site: Site, *, longest: int = 64):
        super().__init__(site)
        self.longest = longest
        self.rows = nn.Parameter(torch.empty(longest, site.d_model))
        self.reset()

    @property
    def max_positions(self) -> int:
        return self.longest

    def embed(self, x: Tensor, pos: Positions) -> Tensor:
        index = index_of(pos)
        if index.is_floating_point():
            raise UserError("expected whole positions, got others; round them")
        if int(index.max()) >= self.longest:
            raise UserError(f"expected positions up to {self.longest - 1}, got {int(index.max())}; use longest=")
        return placed(x, self.rows[index], pos)


class NeedsNumbers(Encoding):
    """Its constructor reads the numbers of a tensor, which the meta device does not have."""

    def __init__(self, site: Site):
        super().__init__(site)
        generator = torch.Generator().manual_seed(5)
        self.order = torch.randperm(site.d_head, generator=generator).tolist()

    def rotation(self, pos: Positions) -> Tensor:
        return index_of(pos).double()

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        order = torch.tensor(self.order)
        return turn(x[..., order], rotation)[..., order.argsort()]


class Nothing(Encoding):
    """Overrides nothing."""
