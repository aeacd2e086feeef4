"""The law that an encoding computes its formula."""

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
from jarilab.laws.checks import POSITIONS, BrokenError, SkippedError, check_close, user_error_of
from jarilab.laws.fixtures import BATCH, VALUE_WIDTH, noise
from jarilab.laws.law_subject import GRAPH, Subject
from jarilab.laws.spec_oracle import double_loop, scores_of
from jarilab.positions.masks import Mask

MISSING = (
    "no formula is known; write jarilab.Oracle(score=..., value=..., embed=...) and pass it as "
    "check_encoding(spec, oracle) or make it the class attribute `oracle`"
)
OTHER_SITES = ((1, 20), (8, 8), (12, 20))
"""Heads, and their width."""
MANY = 40
FURTHEST = 300
ROW_HEADS = 2


@dataclass(frozen=True, eq=False)
class FormulaTrial:
    """Queries and keys at positions of a site, with random vectors."""

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
        """The inputs of the attention from which the keys are computed."""
        return noise("x", self.batch, len(self.k_at), self.site.d_model)

    @property
    def scale(self) -> float:
        return SCALE * self.encoding.scale_factor

    @property
    def allowed(self) -> Tensor:
        """True for pairs whose key is not at a later position than the query, `(Q, K)`; all True unless causal."""
        pairs_QK = torch.ones(len(self.q_at), len(self.k_at), dtype=torch.bool)
        for query, key in np.ndindex(*pairs_QK.shape):
            pairs_QK[query, key] = self.k_at[key] <= self.q_at[query] or not self.causal
        return pairs_QK

    def call(self, subject: Subject) -> AttentionCall:
        """The attention between them; in cross-attention, queries and keys have different frames."""
        frame = "source" if self.site.cross else "sequence"
        k_pos = replace(subject.at(self.k_at), frame=frame)
        mask = Mask(pairs=self.allowed) if self.causal else None
        q_pos = subject.at(self.q_at)
        return call_of(self.encoding, self.q, self.k, self.v, q_pos, k_pos, mask, self.x)


def formula(subject: Subject) -> str:
    """Input, scores over every distance and output match a double loop in float64."""
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


def _trials(subject: Subject) -> Iterator[FormulaTrial]:
    """Sites and positions of all kinds."""
    some, causals = [5, 1, 3], sorted({subject.causal_only, True})
    for start, causal in itertools.product(subject.starts(), causals):
        k_at = subject.scattered(start)
        encoding = subject.encoding(site=subject.site(causal))
        where = f"at positions {_short(k_at)}{', causal' * causal}"
        yield FormulaTrial(encoding, [k_at[i] for i in some], k_at, causal, where)
    k_at = subject.scattered(subject.starts()[1])
    for heads, width in OTHER_SITES:
        encoding = _other_site(subject, heads, width)
        site = encoding.site
        where = f"at positions {_short(k_at)}, {heads} heads of width {site.d_head}"
        yield FormulaTrial(encoding, [k_at[i] for i in some], k_at, site.causal, where, 1)
    if subject.crosses:
        encoding = subject.encoding(site=subject.site(cross=True))
        start_index = 0 if subject.max_distance is None else 1
        q_at = subject.scattered(subject.starts()[start_index])[1:5]
        where = f"at positions {_short(k_at)}, in cross-attention from {_short(q_at)}"
        yield FormulaTrial(encoding, q_at, k_at, False, where, 1)
    row = subject.row(MANY)
    encoding = subject.encoding(site=subject.site(n_heads=ROW_HEADS))
    where = f"at {len(row)} positions from 0 on"
    yield FormulaTrial(encoding, [row[i] for i in (-1, 3)], row, subject.causal_only, where, 1)
    halves = _halves(subject)
    if _taken(subject, halves):
        yield halves


def _other_site(subject: Subject, n_heads: int, d_head: int) -> Encoding:
    """The encoding with other heads; with the default head width if it refuses this one."""
    site = subject.site(n_heads=n_heads, d_head=d_head)
    if user_error_of(lambda: build(subject.spec, site)) is not None:
        site = subject.site(n_heads=n_heads)
    return subject.encoding(site=site)


def _halves(subject: Subject) -> FormulaTrial:
    """Positions between whole numbers."""
    k_at = subject.halves()
    q_at, where = [k_at[5], k_at[1]], f"at positions {_short(k_at)}"
    return FormulaTrial(subject.encoding(), q_at, k_at, subject.causal_only, where, 1)


def _taken(subject: Subject, trial: FormulaTrial) -> bool:
    """Whether the encoding and its formula both take these positions. Another law says that they should."""
    assert subject.oracle is not None
    try:
        trial.call(subject)
        trial.encoding.embed(trial.x, subject.at(trial.k_at))
        subject.oracle.embed(trial.encoding, trial.k_at[1])
        _scored(subject.oracle, trial, 0)
    except (UserError, IndexError, TypeError, ValueError, RuntimeError):
        return False
    return True


def _scored(oracle: Oracle, trial: FormulaTrial, head: int) -> Tensor:
    """The formula's scores of a head, `(Q, K)`."""
    vectors = (trial.q[0, head].numpy(), trial.k[0, head].numpy(), trial.x[0].numpy())
    places = (trial.q_at, trial.k_at, trial.allowed.numpy(), head, trial.scale)
    return torch.from_numpy(scores_of(oracle)(trial.encoding, *vectors, *places))


def _short(places: list[Position]) -> list[Position]:
    return [tuple(at[:2]) if isinstance(at, Cell) else at for at in places]


def _output_apart(subject: Subject, oracle: Oracle, trial: FormulaTrial) -> float:
    """The difference between the definition's output and the double loop's."""
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
    output = definition.output(trial.call(subject))
    return check_close(output, torch.from_numpy(looped), POSITIONS, f"output {trial.where}")


def _input_apart(
    subject: Subject, oracle: Oracle, encoding: Encoding, at: list[Position], what: str
) -> float:
    """The difference between the vectors added to the input and the formula's."""
    zeros_1LD = torch.zeros(1, len(at), encoding.site.d_model, dtype=torch.float64)
    added_LD = encoding.embed(zeros_1LD, subject.at(at))[0]
    embedded = np.stack([oracle.embed(encoding, place) for place in at])
    return check_close(added_LD, torch.from_numpy(embedded), POSITIONS, what)


def _rows_apart(subject: Subject, oracle: Oracle, causal: bool) -> Iterator[float]:
    """The same over every distance, both ways. A softmax would hide far keys."""
    encoding = subject.encoding(site=subject.site(causal, n_heads=ROW_HEADS))
    row = subject.row(FURTHEST + 1)
    where = f"over the distances 0 to {len(row) - 1}{', causal' * causal}"
    trial = FormulaTrial(encoding, [row[0], row[-1]], row, causal, where, 1)
    if encoding.hooks & {"rotate", "bias", "terms"}:
        yield _scores_apart(subject, oracle, trial)
    if "values" in encoding.hooks:
        yield _values_apart(subject, oracle, trial)
    if "embed" in encoding.hooks:
        yield _input_apart(subject, oracle, encoding, row, f"what is added to the input {where}")


def _scores_apart(subject: Subject, oracle: Oracle, trial: FormulaTrial) -> float:
    """The difference of scores, up to a constant a query, which the softmax removes."""
    allowed_QK, worst = trial.allowed, 0.0
    scores_BHQK = definition.scores(trial.call(subject)).detach()
    for head in range(ROW_HEADS):
        looped_QK = _scored(oracle, trial, head)
        for query, number in ((0, 0), (1, len(trial.k_at) - 1)):
            visible_K = allowed_QK[query]
            scores_K, expected_K = scores_BHQK[0, head, query], looped_QK[query]
            apart_K = (scores_K - scores_K[number]) - (expected_K - expected_K[number])
            relative_K = apart_K.abs() / expected_K.abs().clamp_min(1.0)
            largest = float(relative_K[visible_K].max())
            worst = max(worst, largest)
            if not largest <= POSITIONS:
                farthest = int(
                    relative_K.masked_fill(~visible_K, 0.0).nan_to_num(float("inf")).argmax()
                )
                pair = _short([trial.q_at[query], trial.k_at[farthest]])
                raise BrokenError(
                    f"scores of head {head} {trial.where}: off by {largest:.2g}, most at the query "
                    f"{pair[0]} and the key {pair[1]}, allowed {POSITIONS:g}"
                )
    return worst


def _values_apart(subject: Subject, oracle: Oracle, trial: FormulaTrial) -> float:
    """Check the value of each key, alone, for the last query."""
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
        check_close(added[:, head, 0], torch.from_numpy(np.stack(expected)), POSITIONS, what)
    return 0.0
