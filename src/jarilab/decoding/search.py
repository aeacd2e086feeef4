"""The likeliest answer: token by token, or by beam search."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from jarilab.errors import UserError
from jarilab.models.base import Generates
from jarilab.positions import Positions, Tokens
from jarilab.shapes import Float, Int, Tensor

NEVER = float("-inf")

# Of tokens, when the likeliest are looked for.
BLOCK = 64


@dataclass(frozen=True, eq=False)
class Written:
    """ids: `(B, L)`, what was written after the first token, the end included and padding behind it.
    log_probabilities: `(B, L)`, of each token written, 0 on padding."""

    ids: Int[Tensor, "B L"]
    log_probabilities: Float[Tensor, "B L"]


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One answer to one source.

    ids: `(L,)`, what was written after the first token, the end included if it came. log_probabilities: `(L,)`, of
    each. total: their sum. score: what it is ranked by, `total / L ** length_penalty`.
    """

    ids: Int[Tensor, " L"]
    log_probabilities: Float[Tensor, " L"]
    total: float
    score: float


@torch.no_grad()
def greedy(
    model: Generates,
    source: Tokens,
    *,
    first: int,
    end: int,
    padding: int,
    longest: int,
    cached: bool = True,
) -> Written:
    """Take the likeliest token each time, up to `end` or `longest` tokens: beam search of width 1, without its price.

    first, end, padding: the numbers of these tokens. cached: keep keys and values (the same answer, faster).
    A row that has ended is read no more. Raises UserError if `longest` is below 1.
    """
    _check_longest(torch.tensor(longest), 0, 1)
    state = model.start(source)
    batch, device = source.ids.shape[0], source.ids.device
    cache = model.new_cache() if cached else None
    written = torch.full((batch, longest + 1), padding, device=device)
    written[:, 0] = first
    log_probabilities = torch.zeros(batch, longest, device=device)
    rows = torch.arange(batch, device=device)
    length = 0
    while len(rows) and length < longest:
        start = length if cached else 0
        positions = Positions.sequence(length + 1 - start, start, frame="target", device=device)
        scores_RV = model.step(state, written[rows, start : length + 1], positions, cache)[
            :, -1
        ].float()
        best = scores_RV.log_softmax(-1).max(-1)
        length += 1
        written[rows, length] = best.indices
        log_probabilities[rows, length - 1] = best.values
        open_R = (best.indices != end).nonzero().squeeze(1)
        if len(open_R) < len(rows):
            rows, state = rows[open_R], state.select(open_R)
            if cache is not None:
                cache.select(open_R, open_R)
    return Written(written[:, 1 : length + 1], log_probabilities[:, :length])


@torch.no_grad()
def beam(
    model: Generates,
    source: Tokens,
    *,
    width: int,
    first: int,
    end: int,
    longest: int | Sequence[int] | Int[Tensor, " B"],
    length_penalty: float = 1.0,
    best: int = 1,
    shortest: int = 0,
    no_repeat: int = 0,
) -> list[list[Hypothesis]]:
    """The `best` likeliest answers to each source that a beam of `width` open hypotheses finds, best first.

    They are ranked by `sum of log-probabilities / length ** length_penalty`, where the length counts the end token, as
    in fairseq and Marian; 0 ranks by probability alone, more favours longer ones. Log-probabilities are the model's
    own, whatever is forbidden. Fewer than `best` come back only where the rules below leave fewer.

    first, end: the numbers of these tokens. longest, shortest: tokens written, the end included; `longest` may
    be one number for each source. A hypothesis that is cut off at `longest` counts as one that ended there.
    no_repeat: no n-gram of this many tokens is written twice; 0 for no such rule.

    A hypothesis ends when its end token is among the `width` best continuations of its source. A source is done, and
    read no more, when `width` hypotheses have ended and the best open one now ranks below the `best` of them (the rule
    of Hugging Face's default; a longer one may yet have come to rank higher), or when no open one can rank above them:
    since no log-probability is above 0, one whose sum is s now will never score above `s / longest ** length_penalty`.

    Raises UserError for numbers that contradict each other.
    """
    batch, device = source.ids.shape[0], source.ids.device
    longest_B = torch.as_tensor(longest, device=device)
    _check_longest(longest_B, shortest, batch)
    _check_beam(width, best, no_repeat, length_penalty)
    search = _Search(longest_B.expand(batch), width, best, length_penalty, end)
    state, cache = model.start(source), model.new_cache()
    ids_R1 = torch.full((batch, 1), first, device=device)
    answers: list[list[Hypothesis]] = [[] for _ in range(batch)]
    for length in itertools.count(1):
        positions = Positions.sequence(1, length - 1, frame="target", device=device)
        log_RV = model.step(state, ids_R1, positions, cache)[:, -1].float().log_softmax(-1)
        if length < shortest:
            log_RV[:, end] = NEVER
        if no_repeat:
            _forbid_repeats(log_RV, search.open.ids.flatten(0, 1), no_repeat)
        from_R, moved = search.extend(log_RV, length)
        # The one place where the host waits for the device.
        *done, moved = torch.cat((search.done(length), moved.view(1))).tolist()
        sources = None
        if any(done):
            sources, from_R = search.leave(torch.tensor(done, device=device), from_R, answers)
            if not len(sources):
                return answers
            state = state.select(sources)
        if moved or sources is not None:
            cache.select(from_R, sources)
        ids_R1 = search.open.ids[..., -1].reshape(-1, 1)
    raise AssertionError("every source is done at its longest")


@dataclass(frozen=True, eq=False)
class _Hypotheses:
    """N hypotheses about each of B sources: `(B, N)` sums and lengths, `(B, N, L)` tokens and their log-probabilities.
    A sum of minus infinity marks the place of none."""

    totals: Tensor
    lengths: Tensor
    ids: Tensor
    logs: Tensor

    @staticmethod
    def empty(batch: int, number: int, total: float, device: torch.device) -> _Hypotheses:
        totals_BN = torch.full((batch, number), total, device=device)
        ids_BN0 = torch.empty(batch, number, 0, dtype=torch.long, device=device)
        return _Hypotheses(totals_BN, torch.ones_like(totals_BN), ids_BN0, ids_BN0.float())

    def scores(self, length_penalty: float) -> Tensor:
        return self.totals / self.lengths**length_penalty

    def pick(self, index_BM: Tensor) -> _Hypotheses:
        """Some of each source."""
        index_BML = index_BM.unsqueeze(-1).expand(-1, -1, self.ids.shape[2])
        return _Hypotheses(
            self.totals.gather(1, index_BM),
            self.lengths.gather(1, index_BM),
            self.ids.gather(1, index_BML),
            self.logs.gather(1, index_BML),
        )

    def of(self, sources: Tensor) -> _Hypotheses:
        """All of some sources."""
        return _Hypotheses(
            self.totals[sources], self.lengths[sources], self.ids[sources], self.logs[sources]
        )

    def extended(
        self, totals_BN: Tensor, ids_BN: Tensor, logs_BN: Tensor, length: int
    ) -> _Hypotheses:
        """Each with one more token."""
        return _Hypotheses(
            totals_BN,
            torch.full_like(totals_BN, length),
            torch.cat((self.ids, ids_BN.unsqueeze(-1)), -1),
            torch.cat((self.logs, logs_BN.unsqueeze(-1)), -1),
        )

    def beside(self, longer: _Hypotheses) -> _Hypotheses:
        """These and those, whose tokens are `L` or more: what is missing here is filled up, behind the length."""
        room = (0, longer.ids.shape[2] - self.ids.shape[2])
        return _Hypotheses(
            torch.cat((self.totals, longer.totals), 1),
            torch.cat((self.lengths, longer.lengths), 1),
            torch.cat((functional.pad(self.ids, room), longer.ids), 1),
            torch.cat((functional.pad(self.logs, room), longer.logs), 1),
        )

    def listed(self, length_penalty: float) -> list[list[Hypothesis]]:
        """Those of each source, one by one."""
        columns = (self.totals, self.scores(length_penalty), self.lengths)
        totals, scores, lengths = (column.tolist() for column in columns)
        return [
            [
                Hypothesis(
                    self.ids[b, n, : int(length)], self.logs[b, n, : int(length)], total, score
                )
                for n, (total, score, length) in enumerate(
                    zip(totals[b], scores[b], lengths[b], strict=True)
                )
                if total > NEVER
            ]
            for b in range(len(totals))
        ]


class _Search:
    """Where a beam search stands: the open hypotheses and the best that ended, of the sources that are not done."""

    def __init__(self, longest_B: Tensor, width: int, best: int, length_penalty: float, end: int):
        batch, device = len(longest_B), longest_B.device
        self.width, self.best, self.length_penalty, self.end = width, best, length_penalty, end
        self.longest_B = longest_B
        self.source_B = torch.arange(batch, device=device)
        self.ended_B = torch.zeros_like(self.source_B)
        self.open = _Hypotheses.empty(batch, 1, 0.0, device)
        self.ended = _Hypotheses.empty(batch, best, NEVER, device)

    def extend(self, log_RV: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Give each open hypothesis its likeliest next tokens; take what ends out and keep W of the rest open.

        Returns the row that each of the new ones grew from, `(B * W,)`, and whether any has moved.
        """
        parents_BC, grown = self._continuations(log_RV, length)
        is_end_BC = grown.ids[..., -1] == self.end
        over_BC = (is_end_BC | (self.longest_B == length).unsqueeze(1)) & (grown.totals > NEVER)
        over_BC[:, self.width :] = False
        self.ended_B = self.ended_B + over_BC.sum(1)
        both = self.ended.beside(replace(grown, totals=grown.totals.masked_fill(~over_BC, NEVER)))
        self.ended = both.pick(both.scores(self.length_penalty).topk(self.best).indices)

        # W hypotheses have W ends at most, so that of 2 W continuations W or more go on.
        grown = replace(grown, totals=grown.totals.masked_fill(is_end_BC, NEVER))
        chosen_BW = grown.totals.topk(self.width).indices
        hypotheses = self.open.ids.shape[1]
        self.open = grown.pick(chosen_BW)
        first_row_B1 = hypotheses * torch.arange(len(chosen_BW), device=chosen_BW.device).unsqueeze(
            1
        )
        from_R = (first_row_B1 + parents_BC.gather(1, chosen_BW)).flatten()
        return from_R, _moved(from_R, len(log_RV))

    def _continuations(self, log_RV: Tensor, length: int) -> tuple[Tensor, _Hypotheses]:
        """The 2 W likeliest of each source, best first, and which open hypothesis each continues."""
        wanted, (batch, hypotheses) = 2 * self.width, self.open.totals.shape
        logs_RN, ids_RN = _likeliest(log_RV, min(wanted, log_RV.shape[1]))
        each = ids_RN.shape[1]
        totals_BC = (self.open.totals.view(-1, 1) + logs_RN).view(batch, hypotheses * each)
        missing = (0, max(0, wanted - hypotheses * each))
        totals_BC, index_BC = functional.pad(totals_BC, missing, value=NEVER).topk(wanted)
        index_BC = index_BC.clamp_max(hypotheses * each - 1)
        ids_BC, logs_BC = (t.reshape(batch, -1).gather(1, index_BC) for t in (ids_RN, logs_RN))
        parents_BC = index_BC // each
        return parents_BC, self.open.pick(parents_BC).extended(totals_BC, ids_BC, logs_BC, length)

    def done(self, length: int) -> Tensor:
        """Which sources are, `(B,)`."""
        worst_B = self.ended.scores(self.length_penalty).amin(1)
        open_B = self.open.totals.amax(1)
        beaten_B = open_B / self.longest_B**self.length_penalty <= worst_B
        behind_B = (self.ended_B >= self.width) & (open_B / length**self.length_penalty <= worst_B)
        return behind_B | beaten_B | (self.longest_B == length)

    def leave(
        self, done_B: Tensor, from_R: Tensor, answers: list[list[Hypothesis]]
    ) -> tuple[Tensor, Tensor]:
        """Let the sources that are done go, into `answers`. Returns the others, and what is left of `from_R`."""
        left, gone = (~done_B).nonzero().squeeze(1), done_B.nonzero().squeeze(1)
        listed = self.ended.of(gone).listed(self.length_penalty)
        for source, hypotheses in zip(self.source_B[gone].tolist(), listed, strict=True):
            answers[source] = hypotheses
        self.longest_B, self.source_B, self.ended_B = (
            self.longest_B[left],
            self.source_B[left],
            self.ended_B[left],
        )
        self.open, self.ended = self.open.of(left), self.ended.of(left)
        return left, from_R.view(len(done_B), -1)[left].flatten()


def _likeliest(log_RV: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The largest of each row, and where they are: `topk`, in half its time on a CPU for thousands of tokens.

    A value among the largest is in one of the blocks whose largest are the largest, or in what no block covers.
    """
    blocks = log_RV.shape[1] // BLOCK
    if blocks <= number:
        largest = log_RV.topk(number)
        return largest.values, largest.indices
    covered, offset_K = blocks * BLOCK, torch.arange(BLOCK, device=log_RV.device)
    chosen_RN = (
        log_RV[:, :covered]
        .unflatten(1, (blocks, BLOCK))
        .amax(-1)
        .topk(number, sorted=False)
        .indices
    )
    rest = torch.arange(covered, log_RV.shape[1], device=log_RV.device).expand(len(log_RV), -1)
    ids_RM = torch.cat(((chosen_RN.unsqueeze(-1) * BLOCK + offset_K).flatten(1), rest), 1)
    largest = log_RV.gather(1, ids_RM).topk(number)
    return largest.values, ids_RM.gather(1, largest.indices)


def _moved(from_R: Tensor, rows: int) -> Tensor:
    """Whether choosing these of so many rows changes anything."""
    if len(from_R) != rows:
        return torch.ones((), dtype=torch.bool, device=from_R.device)
    return (from_R != torch.arange(rows, device=from_R.device)).any()


def _forbid_repeats(log_RV: Tensor, ids_RL: Tensor, number: int) -> None:
    """Forbid, in place, each token that would repeat an n-gram of `number` tokens."""
    if ids_RL.shape[1] < number:
        return
    grams_RGN = ids_RL.unfold(1, number, 1)
    last_RN = ids_RL[:, ids_RL.shape[1] - number + 1 :]
    repeats_RG = (grams_RGN[..., :-1] == last_RN.unsqueeze(1)).all(-1)
    forbidden_RG = torch.zeros_like(repeats_RG, dtype=log_RV.dtype).masked_fill(repeats_RG, NEVER)
    # Log-probabilities are 0 at most, so the smaller of the two is the token's own where nothing is forbidden.
    log_RV.scatter_reduce_(1, grams_RGN[..., -1], forbidden_RG, "amin")


def _check_longest(longest_B: Tensor, shortest: int, batch: int) -> None:
    if longest_B.shape not in ((), (batch,)):
        raise UserError(
            f"longest is one number, or one for each of the {batch} sources; got {tuple(longest_B.shape)}"
        )
    least = int(longest_B.min())
    if not 0 <= shortest <= least or least < 1:
        raise UserError(
            f"expected 0 <= shortest <= longest and longest 1 or more, got shortest {shortest} and longest {least}; "
            "both count the end token"
        )


def _check_beam(width: int, best: int, no_repeat: int, length_penalty: float) -> None:
    if width < 1:
        raise UserError(
            f"a beam is 1 hypothesis wide or more, got width {width}; 1 is greedy, 4 or 5 is usual"
        )
    if not 1 <= best <= width:
        raise UserError(
            f"a beam of width {width} can be asked for its 1 to {width} best answers, got best {best}; widen the beam"
        )
    if no_repeat < 0:
        raise UserError(f"no_repeat is the length of an n-gram, or 0 for no rule; got {no_repeat}")
    if not 0 <= length_penalty < float("inf"):
        raise UserError(
            f"the length penalty is 0 or more, got {length_penalty}; 0 ranks by probability alone, 1 by its mean"
        )
