"""The law that an encoding computes what its formula says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding, Site
from jarilab.encodings.compose import build
from jarilab.encodings.formulas.oracle import Cell, Oracle, Position
from jarilab.laws.attention import SCALE, call_of
from jarilab.laws.checks import POSITIONS, BrokenError, SkippedError, complaint, near
from jarilab.laws.material import BATCH, VALUE_WIDTH, noise
from jarilab.laws.oracle import double_loop, scores_of
from jarilab.laws.subject import GRAPH, Subject
from jarilab.positions.masks import Mask

MISSING = (
    "no formula was given; write jarilab.Oracle(score=..., value=..., embed=...) and pass it as "
    "check_encoding(spec, oracle) or make it the class attribute `oracle`"
)
OTHER_SITES = ((1, 20), (8, 8), (12, 20))
"""Heads, and their width."""
MANY = 40
FURTHEST = 300
ROW_HEADS = 2


@dataclass(frozen=True, eq=False)
class Trial:
    """Places of queries and keys at a site, with vectors by chance."""

    encoding: Encoding
    q_at: list[Position]
    k_at: list[Position]
    causal: bool
    where: str
    batch: int = BATCH

    @property
    def site(self) -> Site:
        return self.encoding.site

    @property
    def q(self) -> Tensor:
        return noise("q", self.batch, self.site.n_heads, len(self.q_at), self.site.d_head)

    @property
    def k(self) -> Tensor:
        return noise("k", self.batch, self.site.n_heads, len(self.k_at), self.site.d_head)

    @property
    def v(self) -> Tensor:
        return noise("v", self.batch, self.site.n_heads, len(self.k_at), VALUE_WIDTH)

    @property
    def x(self) -> Tensor:
        """What the keys are made of."""
        return noise("x", self.batch, len(self.k_at), self.site.d_model)

    @property
    def scale(self) -> float:
        return SCALE * self.encoding.scale_factor

    @property
    def allowed(self) -> Tensor:
        """A query sees what is not at a later place."""
        pairs_QK = torch.ones(len(self.q_at), len(self.k_at), dtype=torch.bool)
        for query, key in np.ndindex(*pairs_QK.shape):
            pairs_QK[query, key] = self.k_at[key] <= self.q_at[query] or not self.causal
        return pairs_QK

    def call(self, subject: Subject) -> AttentionCall:
        """The attention between them, in two frames where the site is a cross-attention's."""
        frame = "source" if self.site.cross else "sequence"
        k_pos = replace(subject.at(self.k_at), frame=frame)
        mask = Mask(pairs=self.allowed) if self.causal else None
        q_pos = subject.at(self.q_at)
        return call_of(self.encoding, self.q, self.k, self.v, q_pos, k_pos, mask, self.x)


def formula(subject: Subject) -> str:
    """What it adds to the input, the scores over every distance, and the output with all that it adds, are those of a
    float64 double loop."""
    if subject.oracle is None:
        raise SkippedError(MISSING)
    if subject.labels:
        raise SkippedError(GRAPH)
    differences = []
    for trial in _trials(subject):
        differences.append(_output_apart(subject, subject.oracle, trial))
        what = f"what is added to the input {trial.where}"
        differences.append(_input_apart(subject, subject.oracle, trial.encoding, trial.k_at, what))
    for causal in {subject.causal_only, True}:
        differences += _rows_apart(subject, subject.oracle, causal)
    first, last = subject.starts()[0], subject.starts()[-1]
    return f"largest difference {max(differences):.1g}, from position {first} to {last} on"


def _trials(subject: Subject) -> Iterator[Trial]:
    """Sites and places of all kinds."""
    some, causals = [5, 1, 3], sorted({subject.causal_only, True})
    for start, causal in itertools.product(subject.starts(), causals):
        k_at = subject.scattered(start)
        encoding = subject.encoding(site=subject.site(causal))
        where = f"at positions {_short(k_at)}{', causal' * causal}"
        yield Trial(encoding, [k_at[i] for i in some], k_at, causal, where)
    k_at = subject.scattered(subject.starts()[1])
    for heads, width in OTHER_SITES:
        encoding = _other_site(subject, heads, width)
        site = encoding.site
        where = f"at positions {_short(k_at)}, {heads} heads of width {site.d_head}"
        yield Trial(encoding, [k_at[i] for i in some], k_at, site.causal, where, 1)
    if subject.crosses:
        encoding = subject.encoding(site=subject.site(cross=True))
        apart = 0 if subject.max_distance is None else 1
        q_at = subject.scattered(subject.starts()[apart])[1:5]
        where = f"at positions {_short(k_at)}, in cross-attention from {_short(q_at)}"
        yield Trial(encoding, q_at, k_at, False, where, 1)
    many = subject.row(MANY)
    encoding = subject.encoding(site=subject.site(n_heads=ROW_HEADS))
    where = f"at {len(many)} positions from 0 on"
    yield Trial(encoding, [many[i] for i in (-1, 3)], many, subject.causal_only, where, 1)
    halves = _halves(subject)
    if _taken(subject, halves):
        yield halves


def _other_site(subject: Subject, n_heads: int, d_head: int) -> Encoding:
    """One with other heads; of the usual width where it refuses this one."""
    site = subject.site(n_heads=n_heads, d_head=d_head)
    if complaint(lambda: build(subject.spec, site)) is not None:
        site = subject.site(n_heads=n_heads)
    return subject.encoding(site=site)


def _halves(subject: Subject) -> Trial:
    """Places between whole ones."""
    k_at = subject.halves()
    q_at, where = [k_at[5], k_at[1]], f"at positions {_short(k_at)}"
    return Trial(subject.encoding(), q_at, k_at, subject.causal_only, where, 1)


def _taken(subject: Subject, trial: Trial) -> bool:
    """Whether both the encoding and its formula take these places; that they should is another law."""
    assert subject.oracle is not None
    try:
        trial.call(subject)
        trial.encoding.embed(trial.x, subject.at(trial.k_at))
        subject.oracle.embed(trial.encoding, trial.k_at[1])
        _scored(subject.oracle, trial, 0)
    except (UserError, IndexError, TypeError, ValueError, RuntimeError):
        return False
    return True


def _scored(oracle: Oracle, trial: Trial, head: int) -> Tensor:
    """The formula's scores of a head, `(Q, K)`."""
    given = (trial.q[0, head].numpy(), trial.k[0, head].numpy(), trial.x[0].numpy())
    places = (trial.q_at, trial.k_at, trial.allowed.numpy(), head, trial.scale)
    return torch.from_numpy(scores_of(oracle)(trial.encoding, *given, *places))


def _short(places: list[Position]) -> list[Position]:
    return [tuple(at[:2]) if isinstance(at, Cell) else at for at in places]


def _output_apart(subject: Subject, oracle: Oracle, trial: Trial) -> float:
    """How far the definition's output is from the double loop's."""
    looped = double_loop(
        oracle,
        trial.encoding,
        trial.q.numpy(),
        trial.k.numpy(),
        trial.v.numpy(),
        trial.x.numpy(),
        trial.q_at,
        trial.k_at,
        scale=trial.scale,
        causal=trial.causal,
    )
    found = definition.output(trial.call(subject))
    return near(found, torch.from_numpy(looped), POSITIONS, f"output {trial.where}")


def _input_apart(
    subject: Subject, oracle: Oracle, encoding: Encoding, at: list[Position], what: str
) -> float:
    """How far what is added to the input is from what the formula adds."""
    zeros_1LD = torch.zeros(1, len(at), encoding.site.d_model, dtype=torch.float64)
    added_LD = encoding.embed(zeros_1LD, subject.at(at))[0]
    embedded = np.stack([oracle.embed(encoding, place) for place in at])
    return near(added_LD, torch.from_numpy(embedded), POSITIONS, what)


def _rows_apart(subject: Subject, oracle: Oracle, causal: bool) -> Iterator[float]:
    """The same over every distance up to the furthest, both ways: a softmax would hide what is far."""
    encoding = subject.encoding(site=subject.site(causal, n_heads=ROW_HEADS))
    row = subject.row(FURTHEST + 1)
    where = f"over the distances 0 to {len(row) - 1}{', causal' * causal}"
    trial = Trial(encoding, [row[0], row[-1]], row, causal, where, 1)
    if encoding.hooks & {"rotate", "bias", "terms"}:
        yield _scores_apart(subject, oracle, trial)
    if "values" in encoding.hooks:
        yield _values_apart(subject, oracle, trial)
    if "embed" in encoding.hooks:
        yield _input_apart(subject, oracle, encoding, row, f"what is added to the input {where}")


def _scores_apart(subject: Subject, oracle: Oracle, trial: Trial) -> float:
    """Scores, but for a number that all of a query's have in common, which no softmax hears."""
    allowed_QK, worst = trial.allowed, 0.0
    found_BHQK = definition.scores(trial.call(subject)).detach()
    for head in range(ROW_HEADS):
        looped_QK = _scored(oracle, trial, head)
        for query, number in ((0, 0), (1, len(trial.k_at) - 1)):
            seen = allowed_QK[query]
            found_K, expected_K = found_BHQK[0, head, query], looped_QK[query]
            apart_K = (found_K - found_K[number]) - (expected_K - expected_K[number])
            relative_K = apart_K.abs() / expected_K.abs().clamp_min(1.0)
            largest = float(relative_K[seen].max())
            worst = max(worst, largest)
            if not largest <= POSITIONS:
                at = int(relative_K.masked_fill(~seen, 0.0).nan_to_num(float("inf")).argmax())
                pair = _short([trial.q_at[query], trial.k_at[at]])
                raise BrokenError(
                    f"scores of head {head} {trial.where}: off by {largest:.2g}, most at the query "
                    f"{pair[0]} and the key {pair[1]}, allowed {POSITIONS:g}"
                )
    return worst


def _values_apart(subject: Subject, oracle: Oracle, trial: Trial) -> float:
    """What the last query takes from each key that it looks at alone."""
    keys, heads = len(trial.k_at), trial.site.n_heads
    q_pos, k_pos = subject.at(trial.q_at[-1:]), subject.at(trial.k_at)
    weights_KH1K = torch.eye(keys, dtype=torch.float64)[:, None, None].expand(-1, heads, -1, -1)
    relation = trial.encoding.relation(q_pos, k_pos)
    added = trial.encoding.values(weights_KH1K, relation)
    assert added is not None
    nothing, last = np.zeros(VALUE_WIDTH), trial.q_at[-1]
    for head in range(heads):
        expected = [oracle.value(trial.encoding, nothing, last, at, head) for at in trial.k_at]
        what = f"values of head {head} {trial.where}"
        near(added[:, head, 0], torch.from_numpy(np.stack(expected)), POSITIONS, what)
    return 0.0
