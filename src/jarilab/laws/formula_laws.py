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
from jarilab.encodings.formulas.oracle import Cell, Oracle, Position
from jarilab.laws.attention import SCALE, call_of
from jarilab.laws.checks import POSITIONS, BrokenError, SkippedError, check_close
from jarilab.laws.fixtures import BATCH, VALUE_WIDTH, noise
from jarilab.laws.law_subject import GRAPH, Subject
from jarilab.laws.spec_oracle import double_loop, scores_of
from jarilab.positions.masks import Mask

MISSING = (
    "no formula is known; write jarilab.Oracle(score=..., value=..., embed=...) and pass it as "
    "check_encoding(spec, oracle) or make it the class attribute `oracle`"
)
RESTARTED = (0, 1, 2, 0, 1, 2, 3)
MANY = 40
NEAR = 300
"""Distances that are all compared."""
FURTHEST = 4200
FAR = sorted({*range(NEAR, FURTHEST, 50), *(2**n + by for n in range(8, 13) for by in (-1, 0, 1))})
"""Longer distances, of which a formula for single pairs is compared at these."""
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
    by_order: bool = False
    """Whether a causal mask hides keys by their number in place of their position."""

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
        """True for pairs whose key is not later than the query, `(Q, K)`; all True unless causal.

        A later cell is in a later row, or further right in its own.
        """
        pairs_QK = torch.ones(len(self.q_at), len(self.k_at), dtype=torch.bool)
        if self.by_order:
            return pairs_QK.tril()
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


@np.errstate(over="ignore")  # far distances: a sigmoid of -1,000 is 0
def formula(subject: Subject) -> str:
    """Input, scores over every distance and output match a double loop in float64."""
    if subject.oracle is None:
        raise SkippedError(MISSING)
    if subject.labels:
        raise SkippedError(GRAPH)
    differences = []
    for trial in _trials(subject):
        differences += _trial_apart(subject, subject.oracle, trial)
    for causal in {subject.causal_only, True}:
        differences += _rows_apart(subject, subject.oracle, causal)
    if not subject.causal_only:
        differences += _columns_apart(subject, subject.oracle)
    others = [other for other in subject.with_other_options() if other.oracle is not None]
    for other in others:
        assert other.oracle is not None
        for trial in _trials_of_options(other):
            differences += _trial_apart(other, other.oracle, trial)
    first, last = subject.starts()[0], subject.starts()[-1]
    options = f", and with {len(others)} other options" if others else ""
    return f"largest difference {max(differences):.1g}, from position {first} to {last} on{options}"


def _trial_apart(subject: Subject, oracle: Oracle, trial: FormulaTrial) -> Iterator[float]:
    yield _output_apart(subject, oracle, trial)
    what = f"what is added to the input {trial.where}"
    yield _input_apart(subject, oracle, trial.encoding, trial.k_at, what)


def _trials(subject: Subject) -> Iterator[FormulaTrial]:
    """Sites and positions of all kinds."""
    some, causals = [5, 1, 3], sorted({subject.causal_only, True})
    for start, causal in itertools.product(subject.starts(), causals):
        k_at = subject.scattered(start)
        encoding = subject.encoding(site=subject.site(causal))
        where = f"at positions {_short(k_at)}{', causal' * causal}"
        yield FormulaTrial(encoding, [k_at[i] for i in some], k_at, causal, where)
    k_at = subject.scattered(subject.starts()[1])
    for site in subject.other_sites():
        where = f"at positions {_short(k_at)}, {site.n_heads} heads of width {site.d_head}"
        encoding = subject.encoding(site=site)
        yield FormulaTrial(encoding, [k_at[i] for i in some], k_at, site.causal, where, 1)
    yield _restarted(subject)
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


def _restarted(subject: Subject) -> FormulaTrial:
    """Positions that begin again in one row, where each query sees all earlier tokens."""
    row = subject.row(len(RESTARTED))
    at = [row[min(i, len(row) - 1)] for i in RESTARTED]
    encoding = subject.encoding(site=subject.site(causal=True))
    where = f"at the restarted positions {_short(at)}, causal"
    return FormulaTrial(encoding, at, at, True, where, 1, by_order=True)


def _trials_of_options(subject: Subject) -> Iterator[FormulaTrial]:
    """A trial near and one far, for an encoding with an option other than given."""
    for start in dict.fromkeys((subject.starts()[0], subject.starts()[-1])):
        k_at = subject.scattered(start)
        where = f"of {subject.spec} at positions {_short(k_at)}"
        causal = subject.causal_only
        yield FormulaTrial(subject.encoding(), [k_at[5], k_at[1]], k_at, causal, where, 1)


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


def _scored(
    oracle: Oracle, trial: FormulaTrial, head: int, allowed_QK: Tensor | None = None
) -> Tensor:
    """The formula's scores of a head, `(Q, K)`. allowed_QK: the pairs that are needed; those of the mask by default."""
    allowed_QK = trial.allowed if allowed_QK is None else allowed_QK
    vectors = (trial.q[0, head].numpy(), trial.k[0, head].numpy(), trial.x[0].numpy())
    places = (trial.q_at, trial.k_at, allowed_QK.numpy(), head, trial.scale)
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
        allowed_QK=trial.allowed.numpy(),
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
    """The same over every near and some far distances, both ways. A softmax would hide far keys.

    With a causal mask there is one query over many keys, as in cached decoding.
    """
    encoding = subject.encoding(site=subject.site(causal, n_heads=ROW_HEADS))
    # A formula for whole rows takes time with the square of the length.
    furthest = FURTHEST if oracle.scores is None and subject.axes == 1 else NEAR
    row = subject.row(furthest + 1)
    where = f"over the distances 0 to {len(row) - 1}{', causal' * causal}"
    last = len(row) - 1
    queries = [last] if causal else [0, last]
    trial = FormulaTrial(encoding, [row[i] for i in queries], row, causal, where, 1)
    if encoding.hooks & {"rotate", "bias", "terms"}:
        compared_QK = torch.zeros_like(trial.allowed)
        for query, number in enumerate(queries):
            compared_QK[query, _compared(number, len(row))] = True
        yield _scores_apart(subject, oracle, trial, compared_QK & trial.allowed, queries)
    if "values" in encoding.hooks:
        yield _values_apart(subject, oracle, trial)
    if "embed" in encoding.hooks:
        at = [row[i] for i in _compared(0, len(row))]
        yield _input_apart(subject, oracle, encoding, at, f"what is added to the input {where}")


def _columns_apart(subject: Subject, oracle: Oracle) -> Iterator[float]:
    """The same for many queries over some keys."""
    encoding = subject.encoding(site=subject.site(n_heads=ROW_HEADS))
    if oracle.scores is None and encoding.hooks & {"rotate", "bias", "terms"}:
        row = subject.row(FURTHEST + 1 if subject.axes == 1 else NEAR + 1)
        trial = FormulaTrial(encoding, row, row[::NEAR], False, f"over {len(row)} queries", 1)
        compared_QK = torch.zeros_like(trial.allowed)
        compared_QK[_compared(0, len(row))] = True
        yield _scores_apart(subject, oracle, trial, compared_QK, [0] * len(row))


def _compared(query: int, keys: int) -> list[int]:
    """The keys that are compared for a query at one end of a row."""
    distances = [*range(NEAR + 1), *FAR]
    numbers = {abs(query - each) for each in distances if each < keys}
    return sorted(numbers)


def _scores_apart(
    subject: Subject, oracle: Oracle, trial: FormulaTrial, compared_QK: Tensor, base: list[int]
) -> float:
    """The difference of scores, up to a constant a query, which the softmax removes.

    base: the key of each query whose score is subtracted.
    """
    worst, base_Q1 = 0.0, torch.tensor(base).unsqueeze(-1)
    scores_BHQK = definition.scores(trial.call(subject)).detach()
    for head in range(ROW_HEADS):
        expected_QK, scores_QK = _scored(oracle, trial, head, compared_QK), scores_BHQK[0, head]
        apart_QK = scores_QK - scores_QK.gather(1, base_Q1)
        apart_QK = apart_QK - (expected_QK - expected_QK.gather(1, base_Q1))
        relative_QK = (apart_QK.abs() / expected_QK.abs().clamp_min(1.0)).nan_to_num(float("inf"))
        relative_QK = relative_QK.masked_fill(~compared_QK, 0.0)
        largest = float(relative_QK.max())
        worst = max(worst, largest)
        if not largest <= POSITIONS:
            query, key = divmod(int(relative_QK.argmax()), relative_QK.shape[1])
            pair = _short([trial.q_at[query], trial.k_at[key]])
            raise BrokenError(
                f"scores of head {head} {trial.where}: off by {largest:.2g}, most at the query "
                f"{pair[0]} and the key {pair[1]}, allowed {POSITIONS:g}"
            )
    return worst


def _values_apart(subject: Subject, oracle: Oracle, trial: FormulaTrial) -> float:
    """Check the value of single keys, each alone, for the last query."""
    keys, heads = len(trial.k_at), trial.site.n_heads
    numbers = _compared(keys - 1, keys)
    q_pos, k_pos = subject.at(trial.q_at[-1:]), subject.at(trial.k_at)
    weights_NK = torch.eye(keys, dtype=torch.float64)[numbers]
    weights_NH1K = weights_NK[:, None, None].expand(-1, heads, -1, -1)
    relation = trial.encoding.relation(q_pos, k_pos)
    added = trial.encoding.values(weights_NH1K, relation)
    assert added is not None
    nothing, last = np.zeros(VALUE_WIDTH), trial.q_at[-1]
    for head in range(heads):
        expected = [
            oracle.value(trial.encoding, nothing, last, trial.k_at[number], head)
            for number in numbers
        ]
        what = f"values of head {head} {trial.where}"
        check_close(added[:, head, 0], torch.from_numpy(np.stack(expected)), POSITIONS, what)
    return 0.0
