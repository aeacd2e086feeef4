"""Put a circuit into a model, disguised by a seed.

The residual stream of N coordinates is rotated into D > N + 1 dimensions by an orthonormal basis of vectors that sum to
0. One more direction of the basis has a constant M much larger than the rest, so that every norm divides by nearly the
same number, which its scale undoes. Heads are permuted, a random basis is chosen in each head, all weights get noise,
and heads of random weights fill each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.losses import logits_of
from jarilab.inspect.study.model_batches import batch_of
from jarilab.inspect.study.probes import ProbeInput

from .families import FAMILIES, Draw, Family
from .hosts import HOSTS, AttentionWeights, Host, MlpWeights, Size, Weights, empty_model, norms_of
from .stream import FAST_PAIRS, STATIC_PAIR, Array, Circuit, HeadDesign, MlpDesign
from .tasks import NONE, Pair, Task

CONSTANT = 80.0
"""M: the norm of the rest of the residual stream is about 2.5."""
NOISE = (0.02, 0.10)
"""Standard deviation of the noise of a weight, over the root mean square of its matrix."""
NOISE_HEAD, SHARP_SHARE, SHARPNESS = 0.05, 0.5, (10, 60)
"""Noise heads: weights times the square root of N; the share that attends unevenly; the factor of its W_Q and W_K."""
MIN_NOISE_WIDTH = 8
MAX_DRAWS = 50
CHECKED_ROWS = 64


@dataclass(frozen=True)
class PlantedModel:
    """A model with a known circuit. names: of the designs of its heads, by their short names in a study."""

    family: str
    host: str
    seed: int
    model: nn.Module
    task: Task
    circuit: Circuit
    names: dict[str, str]
    draws: int

    @property
    def start(self) -> int:
        """The id of the start token."""
        return self.circuit.stream.vocabulary

    def batch(self, ids: Array | Sequence[Array] | Sequence[Sequence[int]], answers: Array | None = None) -> Batch:
        """Rows of ids as a batch; its extras are the right answers."""
        tensor = torch.as_tensor(np.asarray(ids))
        host = HOSTS[self.host]
        inputs: Any = {"input_ids": tensor} if host.keywords else (tensor,) * host.sources
        batch = batch_of(inputs, self.token_names)
        return batch if answers is None else replace(batch, extras=[row.tolist() for row in answers])

    def token_names(self, ids: Sequence[int]) -> list[str]:
        return [self.task.name(token, self.start) for token in ids]

    def examples(self, rows: int, number: int = 0) -> Batch:
        """Examples of the task. number: of the batch."""
        generator = np.random.default_rng([self.seed, 11, number])
        drawn = [self.task.row(generator) for _ in range(rows)]
        ids, answers = (np.stack(each) for each in zip(*drawn, strict=True))
        return self.batch(ids, answers)

    def trees(self, rows: int) -> Batch:
        """Examples of a task with links, which are their extras."""
        batch = self.examples(rows, 4)
        ids = next(iter(batch.ids.values()))
        assert self.task.links is not None
        words = [None, *range(1, ids.shape[1])]
        return replace(
            batch,
            extras=[Tree(self.task.links(row)) for row in ids.numpy()],
            words=[dict.fromkeys(tokens, words) for tokens in batch.tokens],
        )

    def pairs(self, rows: int) -> list[Pair]:
        """Pairs for patching that are read at one position, which is drawn; none if the task has none."""
        generator = np.random.default_rng([self.seed, 13])
        by_position: dict[int, list[Pair]] = {}
        while self.task.pair is not None:
            pair = self.task.pair(generator)
            members = by_position.setdefault(pair.position, [])
            members.append(pair)
            if len(members) == rows:
                return members
        return []

    def probes(self) -> ProbeInput:
        """How random sequences are made for the model."""
        length = self.circuit.stream.length
        return ProbeInput(self.batch, range(self.start), [self.start], longest=length, pads=False)

    def accuracy(self, rows: int = CHECKED_ROWS) -> float:
        """The share of right answers, of those that can be right."""
        batch = self.examples(rows, 1)
        answers = torch.tensor(batch.extras)
        with torch.no_grad():
            logits = logits_of(batch.forward(self.model))
        assert logits is not None
        is_asked = answers != NONE
        return float((logits.argmax(-1) == answers)[is_asked].double().mean())


@dataclass(frozen=True)
class Tree:
    """Gold links of a row: (relation, dependent, head)."""

    links: Sequence[tuple[str, int, int]]
    possible: Sequence[tuple[int, int]] = ()
    cross: bool = False
    origin: str = "drawn"


def answer_loss(outputs: Any, batch: Batch) -> Tensor:
    """The mean cross-entropy of the right answers of each row, in nats."""
    logits, answers = logits_of(outputs), torch.tensor(batch.extras)
    assert logits is not None
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), answers, reduction="none", ignore_index=NONE)
    return losses.sum(1) / (answers != NONE).sum(1)


def plant(family: str, seed: int, host: str | None = None) -> PlantedModel:
    """The model of one family and seed; the host follows from the seed unless it is given.

    Draws again until all answers are right, and counts the draws.
    """
    members = FAMILIES[family]
    host = members.hosts[seed % len(members.hosts)] if host is None else host
    for attempt in range(MAX_DRAWS):
        generator = np.random.default_rng([seed, members.number, attempt])
        planted = replace(_plant(members, host, seed, generator), draws=attempt + 1)
        if planted.task.chance_labels or planted.accuracy() == 1.0:
            return planted
    raise RuntimeError(f"{family} in {host}, seed {seed}: no model of {MAX_DRAWS} answers right; change its weights")


def _plant(family: Family, name: str, seed: int, generator: np.random.Generator) -> PlantedModel:
    host = HOSTS[name]
    draw = Draw.of(generator, rotary=host.rotary, causal=host.causal)
    circuit, task = family.make(draw)
    groups = 2 if family.grouped else 1
    n_heads = 4 if family.grouped else int(generator.integers(4, 6))
    sites = 3 if host.sources == 2 else len(circuit.layers)
    size = _size_of(circuit, n_heads, n_heads // groups, sites, host)
    designs = [[]] * (sites - len(circuit.layers)) + [layer.heads for layer in circuit.layers]
    width = size.d_head - (2 * STATIC_PAIR if host.rotary else 0)
    layers = [_filled(heads, size.n_heads, width, family, circuit, generator) for heads in designs]
    model, weights = empty_model(host, size)
    _Planting(circuit, size, host, generator).fill(model, weights, layers)
    names = {
        f"{site.prefix}H{index}": head.name
        for site, heads in zip(weights.attention, layers, strict=True)
        for index, head in enumerate(heads)
    }
    return PlantedModel(family.name, name, seed, model, task, circuit, names, 1)


def _size_of(circuit: Circuit, n_heads: int, n_kv_heads: int, layers: int, host: Host) -> Size:
    stream = circuit.stream
    heads = [head for layer in circuit.layers for head in layer.heads]
    scores = max((head.query.shape[1] for head in heads), default=stream.vocabulary)
    if host.rotary:
        # Noise heads need some width too.
        scores = 2 * STATIC_PAIR + max(scores, MIN_NOISE_WIDTH)
    width = max(scores, *(head.value.shape[1] for head in heads), -(-(stream.size + 3) // n_heads))
    width += width % 2
    hidden = max((layer.mlp.up.shape[1] for layer in circuit.layers if layer.mlp is not None), default=8)
    return Size(n_heads * width, n_heads, width, n_kv_heads, hidden, stream.vocabulary + 1, stream.length, layers)


def _filled(
    heads: list[HeadDesign], n_heads: int, width: int, family: Family, circuit: Circuit, generator: np.random.Generator
) -> list[HeadDesign]:
    """The heads of a layer in random order, with noise heads of `width`."""
    stream = circuit.stream
    scale = NOISE_HEAD / np.sqrt(stream.size)
    together = list(heads)
    for _ in range(n_heads - len(heads)):
        is_sharp = family.sharp_noise or generator.random() < SHARP_SHARE
        sharpness = float(generator.uniform(*SHARPNESS)) if is_sharp else 1.0
        together.append(stream.noise_head(generator, width, scale, sharpness))
    return [together[index] for index in generator.permutation(n_heads)]


class _Planting:
    """Fills the weights of one model."""

    def __init__(self, circuit: Circuit, size: Size, host: Host, generator: np.random.Generator):
        self.circuit, self.size, self.host, self.generator = circuit, size, host, generator
        self.noise = generator.uniform(*NOISE)
        self.scale = float(np.sqrt((CONSTANT**2 + 6.0) / size.d_model))
        # The first column is the vector of ones, which no other has a part of.
        raw = generator.standard_normal((size.d_model, circuit.stream.size + 2))
        raw[:, 0] = 1.0
        basis, _ = np.linalg.qr(raw)
        self.constant, self.basis = basis[:, 1] * CONSTANT, basis[:, 2:]

    def fill(self, model: nn.Module, weights: Weights, layers: list[list[HeadDesign]]) -> None:
        for norm in norms_of(model):
            norm.fill_(self.scale)
        tokens = self._noisy(self.circuit.token_vectors()) @ self.basis.T + self.constant
        for each in weights.tokens:
            _set(each, tokens)
        positions = self._noisy(self.circuit.position_vectors()) @ self.basis.T
        for each in weights.positions:
            _set(each, positions)
        _set(weights.read_out, self.basis @ self._noisy(self.circuit.read_out()))
        for site, heads in zip(weights.attention, layers, strict=True):
            self._fill_attention(site, heads)
        for mlp, layer in zip(weights.mlps, self.circuit.layers, strict=False):
            if layer.mlp is not None:
                self._fill_mlp(mlp, layer.mlp)

    def _fill_mlp(self, mlp: MlpWeights, design: MlpDesign) -> None:
        up = self.basis @ self._noisy(design.up)
        _set(mlp.down, self._noisy(design.down) @ self.basis.T)
        if mlp.gate is None:
            _set(mlp.up, up)
            return
        one = np.outer(self.circuit.stream.unit("C"), np.ones(up.shape[1]))
        _set(mlp.gate, up)
        _set(mlp.up, self.basis @ one)

    def _fill_attention(self, site: AttentionWeights, heads: list[HeadDesign]) -> None:
        width, each = self.size.d_head, self.size.n_heads // self.size.n_kv_heads
        for group in range(self.size.n_kv_heads):
            members = heads[group * each : (group + 1) * each]
            # A designed head, if there is one, decides about keys and values of its group.
            shared = next((head for head in members if head.name != "noise"), members[0])
            score_basis, value_basis = self._score_basis(), self._value_basis()
            key = self._noisy(self._arranged(shared, "key")) @ score_basis[1]
            value = self._noisy(_padded(shared.value, width)) @ value_basis
            at = slice(group * width, (group + 1) * width)
            _set(site.key[:, at], self.basis @ key)
            _set(site.value[:, at], self.basis @ value)
            for number, head in enumerate(members):
                at = slice((group * each + number) * width, (group * each + number + 1) * width)
                query = self._noisy(self._arranged(head, "query") * np.sqrt(width)) @ score_basis[0]
                output = np.linalg.inv(value_basis) @ self._noisy(_padded(head.output.T, width).T)
                _set(site.query[:, at], self.basis @ query)
                _set(site.output[at], output @ self.basis.T)

    def _arranged(self, head: HeadDesign, side: str) -> Array:
        """The weights `(N, E)` of queries or keys; in a rotary model content uses the slow pairs."""
        content, width = getattr(head, side), self.size.d_head
        if not self.host.rotary:
            return _padded(content, width)
        half = width // 2
        weights = np.zeros((len(content), width))
        slow = [*range(STATIC_PAIR, half), *range(half + STATIC_PAIR, width)]
        weights[:, slow[: content.shape[1]]] = content
        if head.offset is not None:
            back, strength = head.offset
            pairs = np.arange(FAST_PAIRS)
            angles = back * self.size.rotary_base ** (-pairs / half)
            row = self.circuit.stream["C"].start
            if side == "query":
                weights[row, pairs] = strength
            else:
                weights[row, pairs], weights[row, half + pairs] = np.cos(angles), np.sin(angles)
        return weights

    def _score_basis(self) -> tuple[Array, Array]:
        """Two matrices `(E, E)`, of queries and of keys, that leave the scores as they are."""
        width = self.size.d_head
        if not self.host.rotary:
            matrix = self._value_basis()
            return matrix, np.linalg.inv(matrix).T
        # Only rotations and scales of each pair commute with those of positions.
        half = width // 2
        angle, scale = self.generator.uniform(0, 2 * np.pi, half), np.exp(0.3 * self.generator.standard_normal(half))
        cosine, sine = np.diag(np.cos(angle)), np.diag(np.sin(angle))
        turn, scales = np.block([[cosine, sine], [-sine, cosine]]), np.diag(np.concatenate([scale, scale]))
        return turn @ scales, turn @ np.linalg.inv(scales)

    def _value_basis(self) -> Array:
        """A random well-conditioned matrix `(E, E)`."""
        width = self.size.d_head
        left, right = (np.linalg.qr(self.generator.standard_normal((width, width)))[0] for _ in range(2))
        return left @ np.diag(np.exp(0.3 * self.generator.standard_normal(width))) @ right

    def _noisy(self, weights: Array) -> Array:
        spread = self.noise * float(np.sqrt(np.mean(weights**2))) if weights.size else 0.0
        return weights + spread * self.generator.standard_normal(weights.shape)


def _padded(weights: Array, width: int) -> Array:
    return np.pad(weights, ((0, 0), (0, width - weights.shape[1])))


def _set(view: Tensor, values: Array) -> None:
    view.copy_(torch.from_numpy(values))
