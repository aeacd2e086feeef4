"""Beam search."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.models.base import Generates, Places, in_order
from jarilab.models.decoding.greedy_search import check_longest
from jarilab.models.decoding.hypotheses import NEVER, Hypotheses, Hypothesis, rank
from jarilab.positions.coordinates import Tokens

# Tokens of a block in the search for the most likely ones.
BLOCK = 128
WIDEST = 1000
"""Maximal hypotheses of a beam, whose scores and caches are all in memory."""
MOST_PENALTY = 100
"""Maximal length penalty. Above it, scores overflow."""


@torch.no_grad()
def beam(
    model: Generates,
    source: Tokens,
    *,
    beam_size: int,
    first: int,
    end: int,
    longest: int | Sequence[int] | Int[Tensor, " B"],
    length_penalty: float = 1.0,
    best: int = 1,
    shortest: int = 0,
    no_repeat: int = 0,
    places: Places = in_order,
) -> list[list[Hypothesis]]:
    """Return the `best` best answers to each source by a beam of `beam_size` open hypotheses, best first.

    Answers are ranked by `sum of log-probabilities / length ** length_penalty`, where the length counts the end token,
    as in fairseq and Marian. 0 ranks by probability alone; more favours longer answers. Forbidden tokens do not change
    the log-probabilities. Fewer than `best` answers come back only if the rules below leave fewer.

    first, end: ids of these tokens. longest, shortest: limits of written tokens, with the end; `longest` may differ
    between sources. A hypothesis that is cut off at `longest` counts as ended. no_repeat: forbid repeated n-grams of
    this many tokens; 0 allows all. places: positions of the answers' tokens, which may differ between hypotheses.

    A hypothesis ends when its end token is among the `beam_size` best continuations of its source. A source is finished
    in one of two cases. First: `beam_size` hypotheses have ended, and the best open one now ranks below the `best` of
    them (Hugging Face's default rule; a longer one might still overtake). Second: no open hypothesis can overtake.

    Raises UserError for options that contradict each other.
    """
    batch, device = source.ids.shape[0], source.ids.device
    longest_B = torch.as_tensor(longest, device=device)
    check_longest(longest_B, shortest, batch)
    _check_beam(beam_size, best, no_repeat, length_penalty)
    search = _Search(longest_B.expand(batch), beam_size, best, length_penalty, end)
    state, cache = model.start(source), model.new_cache()
    ids_RL = torch.full((batch, 1), first, device=device)
    answers: list[list[Hypothesis]] = [[] for _ in range(batch)]
    for length in itertools.count(1):
        positions = places(ids_RL, length - 1, search.sources)
        scores_R1V = model.step(state, ids_RL[:, -1:], positions, cache)
        scores_RV = scores_R1V[:, -1].float()
        log_RV = scores_RV.log_softmax(-1)
        # After the softmax, so that the other log-probabilities stay the model's.
        if no_repeat:
            _forbid_repeats(log_RV, search.open.ids.flatten(0, 1), no_repeat)
        if length < shortest:
            _forbid_end(log_RV, end)
        from_R, moved = search.extend(log_RV, length)
        # The one place where the host waits for the device.
        flags = torch.cat((search.done(length), moved.view(1)))
        *done, moved = flags.tolist()
        sources = None
        if any(done):
            sources, from_R = search.leave(torch.tensor(done, device=device), from_R, answers)
            if not len(sources):
                return answers
            state = state.select(sources)
        if moved or sources is not None:
            cache.select(from_R, sources)
        written_RL = search.open.ids.flatten(0, 1)
        ids_RL = functional.pad(written_RL, (1, 0), value=first)
    raise AssertionError("every source is done at its longest")


class _Search:
    """The state of a beam search: open hypotheses and the best ended ones, of unfinished sources."""

    def __init__(
        self, longest_B: Tensor, beam_size: int, best: int, length_penalty: float, end: int
    ):
        batch, device = len(longest_B), longest_B.device
        self.beam_size, self.best = beam_size, best
        self.length_penalty, self.end = length_penalty, end
        self.longest_B = longest_B
        self.source_B = torch.arange(batch, device=device)
        self.ended_B = torch.zeros_like(self.source_B)
        self.open = Hypotheses.empty(batch, 1, 0.0, device)
        self.ended = Hypotheses.empty(batch, best, NEVER, device)

    def extend(self, log_RV: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Extend each open hypothesis by its most likely tokens, move ended ones out, and keep W open ones.

        Returns the row that each new hypothesis grew from, `(B * W,)`, and whether any row moved.
        """
        parents_BC, grown = self._continuations(log_RV, length)
        is_end_BC = grown.ids[..., -1] == self.end
        self._take_ended(grown, is_end_BC, length)

        # W hypotheses have W ends at most, so that of 2 W continuations W or more go on.
        grown = replace(grown, totals=grown.totals.masked_fill(is_end_BC, NEVER))
        chosen_BW = grown.totals.topk(self.beam_size).indices
        batch, hypotheses = self.open.ids.shape[:2]
        self.open = grown.pick(chosen_BW)
        first_row_B = hypotheses * torch.arange(batch, device=chosen_BW.device)
        from_BW = first_row_B.unsqueeze(1) + parents_BC.gather(1, chosen_BW)
        from_R = from_BW.flatten()
        return from_R, _moved(from_R, len(log_RV))

    def _take_ended(self, grown: Hypotheses, is_end_BC: Tensor, length: int) -> None:
        """Move hypotheses among the W most likely that end now, by end token or length, to the ended ones."""
        cut_off_B1 = (self.longest_B == length).unsqueeze(1)
        over_BC = (is_end_BC | cut_off_B1) & (grown.totals > NEVER)
        over_BC[:, self.beam_size :] = False
        self.ended_B = self.ended_B + over_BC.sum(1)
        over = replace(grown, totals=grown.totals.masked_fill(~over_BC, NEVER))
        both = self.ended.beside(over)
        best_BN = both.ranks(self.length_penalty).topk(self.best).indices
        self.ended = both.pick(best_BN)

    def _continuations(self, log_RV: Tensor, length: int) -> tuple[Tensor, Hypotheses]:
        """Return the hypothesis that each continues, and the 2 W most likely continuations, best first."""
        batch, hypotheses = self.open.totals.shape
        log_BHV = log_RV.view(batch, hypotheses, -1)
        totals_BC, index_BC = _likeliest(log_BHV, self.open.totals, 2 * self.beam_size)
        parents_BC, ids_BC = index_BC // log_BHV.shape[2], index_BC % log_BHV.shape[2]
        logs_BC = log_BHV.flatten(1).gather(1, index_BC)
        parents = self.open.pick(parents_BC)
        return parents_BC, parents.extended(totals_BC, ids_BC, logs_BC, length)

    @property
    def sources(self) -> Int[Tensor, " R"]:
        """The source of each open hypothesis."""
        return self.source_B.repeat_interleave(self.open.ids.shape[1])

    def done(self, length: int) -> Tensor:
        """Return which sources are finished, `(B,)`."""
        penalty = self.length_penalty
        worst_B = self.ended.ranks(penalty).amin(1)
        open_B = self.open.totals.amax(1)
        # A sum of log-probabilities only falls, so it scores at most what it would score at the greatest length.
        beaten_B = rank(open_B, self.longest_B, penalty) <= worst_B
        behind_B = rank(open_B, torch.full_like(self.longest_B, length), penalty) <= worst_B
        enough_B = self.ended_B >= self.beam_size
        return (enough_B & behind_B) | beaten_B | (self.longest_B == length)

    def leave(
        self, done_B: Tensor, from_R: Tensor, answers: list[list[Hypothesis]]
    ) -> tuple[Tensor, Tensor]:
        """Move finished sources into `answers`. Returns the other sources, and the remaining rows of `from_R`."""
        left = (~done_B).nonzero().squeeze(1)
        gone = done_B.nonzero().squeeze(1)
        listed = self.ended.of(gone).listed(self.length_penalty)
        for source, hypotheses in zip(self.source_B[gone].tolist(), listed, strict=True):
            answers[source] = hypotheses
        self.longest_B = self.longest_B[left]
        self.source_B = self.source_B[left]
        self.ended_B = self.ended_B[left]
        self.open = self.open.of(left)
        self.ended = self.ended.of(left)
        from_BW = from_R.view(len(done_B), -1)
        return left, from_BW[left].flatten()


def _likeliest(log_BHV: Tensor, totals_BH: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return the largest sums of each source and their indices in H * V, as `topk` does in more time on a CPU.

    A largest sum lies in one of the blocks with the largest maxima, or outside all blocks.
    """
    batch, hypotheses, vocabulary = log_BHV.shape
    blocks = vocabulary // BLOCK
    if blocks * hypotheses <= number:
        totals_BA = (totals_BH.unsqueeze(-1) + log_BHV).flatten(1)
        # One hypothesis, as in the first step, has no 2 W continuations if the vocabulary is small. Added entries
        # stand for any token: their total of minus infinity marks them as unused.
        missing = (0, max(0, number - totals_BA.shape[1]))
        largest = functional.pad(totals_BA, missing, value=NEVER).topk(number)
        return largest.values, largest.indices.clamp_max(totals_BA.shape[1] - 1)
    device, covered = log_BHV.device, blocks * BLOCK
    blocks_BHNK = log_BHV[..., :covered].unflatten(2, (blocks, BLOCK))
    maxima_BHN = totals_BH.unsqueeze(-1) + blocks_BHNK.amax(-1)
    chosen_BC = maxima_BHN.flatten(1).topk(number, sorted=False).indices
    first_BC = chosen_BC // blocks * vocabulary + chosen_BC % blocks * BLOCK
    inside_BCK = first_BC.unsqueeze(-1) + torch.arange(BLOCK, device=device)
    row_H1 = vocabulary * torch.arange(hypotheses, device=device).unsqueeze(1)
    rest_HM = row_H1 + torch.arange(covered, vocabulary, device=device)
    index_BA = torch.cat((inside_BCK.flatten(1), rest_HM.flatten().expand(batch, -1)), 1)
    totals_BA = log_BHV.flatten(1).gather(1, index_BA)
    totals_BA += totals_BH.gather(1, index_BA // vocabulary)
    largest = totals_BA.topk(number)
    return largest.values, index_BA.gather(1, largest.indices)


def _moved(from_R: Tensor, rows: int) -> Tensor:
    """Whether selecting these rows changes anything."""
    if len(from_R) != rows:
        return torch.ones((), dtype=torch.bool, device=from_R.device)
    return (from_R != torch.arange(rows, device=from_R.device)).any()


def _forbid_repeats(log_RV: Tensor, ids_RL: Tensor, number: int) -> None:
    """Forbid, in place, each token that would repeat an n-gram of `number` tokens."""
    if ids_RL.shape[1] < number:
        return
    grams_RGN = ids_RL.unfold(1, number, 1)
    start = ids_RL.shape[1] - number + 1
    last_RN = ids_RL[:, start:]
    equal_RGN = grams_RGN[..., :-1] == last_RN.unsqueeze(1)
    repeats_RG = equal_RGN.all(-1)
    zeros_RG = torch.zeros_like(repeats_RG, dtype=log_RV.dtype)
    forbidden_RG = zeros_RG.masked_fill(repeats_RG, NEVER)
    # Log-probabilities are 0 at most, so the smaller of the two is the token's own where nothing is forbidden.
    log_RV.scatter_reduce_(1, grams_RGN[..., -1], forbidden_RG, "amin")


def _forbid_end(log_RV: Tensor, end: int) -> None:
    """Forbid the end, in place, except where all other tokens are forbidden."""
    end_R = log_RV[:, end].clone()
    log_RV[:, end] = NEVER
    log_RV[:, end] = end_R.where(log_RV.amax(-1) == NEVER, NEVER)


def _check_beam(beam_size: int, best: int, no_repeat: int, length_penalty: float) -> None:
    if beam_size > WIDEST:
        raise UserError(
            f"a beam is {WIDEST:,} hypotheses wide at most, got beam_size {beam_size:,}; 4 or 5 is usual"
        )
    if beam_size < 1:
        raise UserError(
            f"a beam is 1 hypothesis wide or more, got beam_size {beam_size}; 1 is greedy, 4 or 5 is usual"
        )
    if not 1 <= best <= beam_size:
        raise UserError(
            f"a beam has as many answers as hypotheses: expected 1 to {beam_size}, got best {best}; "
            "raise beam_size"
        )
    if no_repeat < 0:
        raise UserError(f"no_repeat is the length of an n-gram, or 0 for no rule; got {no_repeat}")
    if not 0 <= length_penalty <= MOST_PENALTY:
        most = f", {MOST_PENALTY} at most" if length_penalty > MOST_PENALTY else ""
        raise UserError(
            f"the length penalty is 0 or more{most}, got {length_penalty}; 0 ranks by probability alone, 1 by its mean"
        )
