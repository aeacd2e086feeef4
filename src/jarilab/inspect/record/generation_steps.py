"""The attention calls of generation steps, merged into one call a site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch.nn import functional

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.record.edited_output import UsedWeights, WeightEdit
from jarilab.inspect.record.foreign_call import ForeignCall, repeat_groups, versions_of
from jarilab.inspect.record.recorded_call import RecordedCall

Calls = Mapping[str, Sequence[RecordedCall]]

HOW_TO_GET_BEAM_INDICES = (
    "Call generate with return_dict_in_generate=True and output_scores=True, and pass "
    "tape.merged_steps(beam_indices=generated.beam_indices)"
)


Accepted = dict[tuple[int, ...], Sequence[int]]
"""How many queries of each call were merged, by the numbers of queries of the calls of a site."""


class _NotMergedError(Exception):
    """The calls of one site are not the steps of a generation."""


@dataclass(frozen=True, eq=False)
class _Step:
    """One call of a site. ended: rows of the batch whose sequence ended before it."""

    recorded: RecordedCall
    source: ForeignCall
    ended: Bool[Tensor, " B"]

    @staticmethod
    def of(recorded: RecordedCall, rows: Int[Tensor, " B"] | None = None) -> _Step:
        """rows: of the batch, -1 for a sequence that ended; all rows by default."""
        ended_B = torch.zeros(len(recorded.output), dtype=torch.bool, device=recorded.output.device)
        if rows is not None:
            recorded, ended_B = recorded.select_rows(rows.clamp_min(0)), rows < 0
        return _Step(recorded, cast(ForeignCall, recorded.source), ended_B)

    @property
    def keys(self) -> int:
        return self.source.v.shape[2]

    @property
    def queries(self) -> int:
        return self.source.q.shape[2]

    def first_queries(self, count: int, *, is_cross: bool) -> _Step:
        """The step with its first queries alone; within one sequence also without the keys of the others."""
        if count == self.queries:
            return self
        source, rows = self.source, slice(count)
        columns = slice(None if is_cross else self.keys - self.queries + count)
        q, k, v = source.q[:, :, rows], source.k[:, :, columns], source.v[:, :, columns]
        mask, weights = (
            each if each is None else each[..., rows, columns]
            for each in (source.mask, source.weights)
        )
        versions = versions_of(q, k, v, mask, weights)
        source = replace(
            source, q=q, k=k, v=v, mask=mask, explicit_weights=weights, versions=versions
        )
        recorded = replace(self.recorded, source=source, output=self.recorded.output[:, :, rows])
        return replace(self, recorded=recorded, source=source)

    @property
    def output(self) -> Float[Tensor, "B H Q W"]:
        """The output, 0 after the end of a sequence."""
        return self.recorded.output.masked_fill(self.ended[:, None, None, None], 0.0)


def merge_steps(
    calls: Calls, beam_indices: Tensor | None = None
) -> tuple[dict[str, list[RecordedCall]], dict[str, str]]:
    """One call for each site that could be merged, and the reason for each other site.

    beam_indices: for each returned sequence and token, the row of the batch that the token was chosen from, and -1
        after its end, as transformers' `generate` returns them. The merged batch then has these S sequences.
    Raises UserError if no site can be merged, if beams were reordered and `beam_indices` is None, and for
    `beam_indices` that do not fit.
    """
    batch = max((len(steps[0].output) for steps in calls.values()), default=0)
    rows_ST = None if beam_indices is None else _check_beam_indices(beam_indices, batch)
    size = batch if rows_ST is None else len(rows_ST)
    merged: dict[str, list[RecordedCall]] = {}
    reasons: dict[str, str] = {}
    accepted: Accepted = {}
    for site in sorted(calls, key=lambda site: _is_cross(calls[site][0])):
        steps = calls[site]
        if len(steps[0].output) < batch and len(steps) == 1:
            merged[site] = [_repeat_rows(steps[0], size)]
            continue
        try:
            merged[site] = [_merge(site, steps, rows_ST, accepted)]
        except _NotMergedError as error:
            reasons[site] = str(error)
    # The keys of cross-attention do not show whether its queries continue each other.
    firsts = [calls[site][0] for site in merged if len(calls[site]) > 1]
    if reasons and all(map(_is_cross, firsts)):
        raise UserError(next(iter(reasons.values())))
    return {site: merged[site] for site in calls if site in merged}, reasons


def _is_cross(recorded: RecordedCall) -> bool:
    return isinstance(recorded.source, ForeignCall) and recorded.source.is_cross


def _repeat_rows(recorded: RecordedCall, size: int) -> RecordedCall:
    """A call that ran once for several sequences, as of an encoder, with a row for each."""
    batch = len(recorded.output)
    if size % batch or size == batch:
        return recorded
    # transformers expands inputs by repeat_interleave, for beams and for num_return_sequences.
    rows = torch.arange(batch, device=recorded.output.device).repeat_interleave(size // batch)
    return recorded.select_rows(rows)


# Beams --------------------------------------------------------------------------------------------------------------


def _check_beam_indices(beam_indices: Tensor, batch: int) -> Int[Tensor, "S T"]:
    """The indices on the CPU. Raises UserError unless they are rows of the batch, then -1."""
    rows_ST = torch.as_tensor(beam_indices).cpu()
    is_table = rows_ST.ndim == 2 and rows_ST.numel() and not rows_ST.is_floating_point()
    if not is_table:
        raise UserError(
            "expected beam_indices (sequences, tokens) of whole numbers, got "
            f"{rows_ST.dtype} of shape {tuple(rows_ST.shape)}. {HOW_TO_GET_BEAM_INDICES}"
        )
    ended_ST = rows_ST < 0
    ends_once = not bool((ended_ST[:, :-1] & ~ended_ST[:, 1:]).any() or ended_ST[:, 0].any())
    if int(rows_ST.max()) >= batch or not ends_once:
        raise UserError(
            f"expected beam_indices from 0 to {batch - 1}, the rows of the recorded steps, and -1 after the end of a "
            f"sequence alone; got {rows_ST.tolist()}. Pass those of the generation that was recorded"
        )
    return rows_ST


def _beams(
    site: str, steps: Sequence[RecordedCall], rows_ST: Int[Tensor, "S T"]
) -> Iterator[list[_Step]]:
    """The steps that wrote the returned sequences, each with the rows of these sequences.

    A prompt in pieces may end with a piece of one token, which looks like a step; a second list counts it as a piece.
    """
    lengths = [step.output.shape[2] for step in steps]
    # A prompt given in pieces makes several calls before the first token is chosen.
    pieces = max((number for number, length in enumerate(lengths) if length > 1), default=0)
    tokens = rows_ST.shape[1]
    if pieces + tokens > len(steps):
        raise UserError(
            f"beam_indices are of {tokens} tokens, but {site} ran {len(steps) - pieces} times; pass those of the "
            "generation that was recorded, and record its whole generate"
        )
    last = pieces + 1 if pieces and pieces + tokens < len(steps) else pieces
    for count in range(pieces, last + 1):
        rows_of_steps = [rows_ST[:, 0]] * count + list(rows_ST.unbind(1))
        yield [
            _Step.of(step, rows_S.to(step.output.device))
            for step, rows_S in zip(steps, rows_of_steps, strict=False)
        ]


# Keys ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Keys:
    """Keys and values of all steps. first: the column of the first key of each step."""

    k: Float[Tensor, "B G K E"]
    v: Float[Tensor, "B G K W"]
    first: list[int]

    @staticmethod
    def of(site: str, steps: Sequence[_Step]) -> _Keys:
        """All keys of the first step, and of each later step those of its own tokens; of cross-attention the first.

        Raises _NotMergedError if a step reads no earlier keys.
        """
        groups = min(step.source.v.shape[1] for step in steps)
        if steps[0].source.is_cross:  # of later steps, which take keys from a cache, it is unknown
            return _Keys(steps[0].source.k, steps[0].source.v, [0] * len(steps))
        first, chunks, total = [], [], 0
        for number, step in enumerate(steps):
            new = step.queries if number else step.keys
            total += new
            if step.keys > total or (number and step.keys == new):
                raise _NotMergedError(
                    f"the calls of {site} do not continue each other: expected call {number} to read its own "
                    f"{step.queries} keys and some of the {total - step.queries} before, got {step.keys} keys. Without "
                    "a cache (use_cache=False) the last call has the whole map: index=-1. Otherwise record one "
                    "generation alone, or pass the index of a call"
                )
            # A cache with a window has forgotten the first keys.
            first.append(total - step.keys)
            chunks.append(
                [
                    _one_of_each_group(part, groups)[:, :, step.keys - new :]
                    for part in (step.source.k, step.source.v)
                ]
            )
        k, v = (torch.cat(parts, 2) for parts in zip(*chunks, strict=True))
        return _Keys(k, v, first)

    def pad(self, rows: Tensor, first: int, value: float) -> Tensor:
        """Rows of a step over the columns of all keys."""
        later = self.v.shape[2] - first - rows.shape[3]
        return functional.pad(rows, (first, later), value=value)

    def are_read_by(self, step: _Step, first: int) -> bool:
        """Whether the keys and values of a step are these from column `first` on."""
        columns = slice(first, first + step.keys)
        parts = (step.source.k, self.k), (step.source.v, self.v)
        for part, merged in parts:
            expected = repeat_groups(merged[:, :, columns], part.shape[1])
            if not bool((_equal_rows(part, expected) | step.ended).all()):
                return False
        return True

    def are_read_in_other_rows_by(self, step: _Step, first: int) -> bool:
        """Whether each row of a step has the earlier keys of some row."""
        earlier = slice(0, step.keys - step.queries)
        step_v = _one_of_each_group(step.source.v, self.v.shape[1])[:, :, earlier]
        before = self.v[:, :, first : first + step_v.shape[2]]
        return all(bool(_equal_rows(row.expand_as(before), before).any()) for row in step_v)


def _one_of_each_group(tensor: Tensor, groups: int) -> Tensor:
    """Keys or values without the copies for heads that share them."""
    return tensor[:, :: tensor.shape[1] // groups]


def _equal_rows(x: Tensor, y: Tensor) -> Bool[Tensor, " B"]:
    """True for rows of the batch whose numbers are all equal, NaN to NaN."""
    if x.shape != y.shape:
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    return ((x == y) | (x.isnan() & y.isnan())).flatten(1).all(1)


# Merging ------------------------------------------------------------------------------------------------------------


def _merge(
    site: str, calls: Sequence[RecordedCall], rows_ST: Tensor | None, accepted: Accepted
) -> RecordedCall:
    """One call with the queries of all steps. Raises _NotMergedError if the steps do not continue each other."""
    if len(calls) == 1 and rows_ST is None:
        return calls[0]
    if not all(step.is_foreign for step in calls):
        raise _NotMergedError(
            f"{site} is an attention of jarilab, whose encoding may differ between a whole text and its steps; record "
            "one forward over the text that was generated"
        )
    for step in calls:
        try:
            step.check_unchanged(site)
        except UserError as error:
            raise _NotMergedError(str(error)) from None
    queries = tuple(step.output.shape[2] for step in calls)
    orders = (
        _all_or_accepted(calls, accepted.get(queries))
        if rows_ST is None
        else ((queries, steps) for steps in _beams(site, calls, rows_ST))
    )
    error: Exception | None = None
    for counts, steps in orders:
        keys = _Keys.of(site, steps)
        wrong = (not keys.are_read_by(*pair) for pair in zip(steps, keys.first, strict=True))
        number = next((number for number, is_wrong in enumerate(wrong) if is_wrong), None)
        if number is None:
            accepted[queries] = counts
            output = torch.cat([step.output for step in steps], 2)
            source, edit = _merge_sources(steps, keys), _merge_edits(steps, keys)
            return replace(steps[0].recorded, source=source, output=output, edit=edit)
        error = error or _mismatch(site, number, steps, keys, has_beams=rows_ST is not None)
    assert error is not None
    raise error


def _all_or_accepted(
    calls: Sequence[RecordedCall], accepted: Sequence[int] | None
) -> Iterator[tuple[Sequence[int], list[_Step]]]:
    """The steps with all queries, then with those of accepted tokens; and how many of each call these are.

    accepted: how many another site has. The keys of cross-attention do not show it.
    """
    steps = list(map(_Step.of, calls))
    is_cross = steps[0].source.is_cross

    def select(counts: Sequence[int]) -> list[_Step]:
        pairs = zip(steps, counts, strict=True)
        return [step.first_queries(count, is_cross=is_cross) for step, count in pairs if count]

    counts = [step.queries for step in steps]
    if is_cross:
        counts = accepted or counts
    yield counts, select(counts)
    # An edit computes the weights of a whole call.
    if not is_cross and all(call.edit is None for call in calls):
        counts = _accepted_queries(steps)
        yield counts, select(counts)


def _accepted_queries(steps: Sequence[_Step]) -> list[int]:
    """How many queries of each step belong to accepted tokens, as far as later steps show it.

    In speculative decoding a step does not read the keys of rejected tokens, which are the last of those before.
    """
    counts: list[int] = []
    before = steps[0].keys - steps[0].queries
    for step in steps:
        rejected = before + sum(counts) - (step.keys - step.queries)
        for number in reversed(range(len(counts))):
            removed = min(max(rejected, 0), counts[number])
            counts[number] -= removed
            rejected -= removed
        counts.append(step.queries)
    return counts


def _mismatch(
    site: str, number: int, steps: Sequence[_Step], keys: _Keys, *, has_beams: bool
) -> Exception:
    """The error for a step whose earlier keys are not those of the steps before."""
    if has_beams:
        return UserError(
            f"beam_indices do not fit {site}: expected call {number} to continue the rows that they name, got other "
            "keys. Pass those of the generation that was recorded"
        )
    step, first = steps[number], keys.first[number]
    if not steps[0].source.is_cross and keys.are_read_in_other_rows_by(step, first):
        return UserError(
            f"the calls of {site} are of a beam search, which reorders its beams: call {number} continues other rows "
            f"than call {number - 1}. Expected beam_indices, got none. {HOW_TO_GET_BEAM_INDICES}"
        )
    return _NotMergedError(
        f"the calls of {site} do not continue each other: expected call {number} to read the keys of the calls "
        "before, got others. Causes are another text, and a cache that changes earlier keys. Record one generation "
        "with its usual cache, or pass the index of a call"
    )


def _merge_sources(steps: Sequence[_Step], keys: _Keys) -> ForeignCall:
    q = torch.cat([step.source.q for step in steps], 2)
    mask = _merge_masks(steps, keys)
    weights = None
    if any(step.source.explicit_weights is not None for step in steps):
        rows = [
            keys.pad(definition.weights(step.recorded.call), first, 0.0)
            for step, first in zip(steps, keys.first, strict=True)
        ]
        weights = torch.cat(rows, 2)
    first = steps[0].source
    return replace(
        first,
        q=q,
        k=keys.k,
        v=keys.v,
        mask=mask,
        is_causal=False,
        verified=all(step.source.verified for step in steps),
        explicit_weights=weights,
        versions=versions_of(q, keys.k, keys.v, mask, weights),
        # Padded rows attend to all keys of their step and to no later ones, so the mask cannot tell.
        backward_only=not first.is_cross,
    )


def _merge_masks(steps: Sequence[_Step], keys: _Keys) -> Tensor:
    """The masks of all steps, below each other; keys that a step does not have are hidden from it.

    Boolean `(B, 1, Q, K)`, or added to scores `(B, H, Q, K)` if a step has a bias.
    """
    parts = [step.source.allowed_and_bias() for step in steps]
    has_bias = any(bias is not None for _, bias in parts)
    masks = []
    for step, (allowed, bias), first in zip(steps, parts, keys.first, strict=True):
        if allowed is None:
            allowed = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=step.ended.device)
        mask = allowed & ~step.ended[:, None, None, None]
        if has_bias:
            added = torch.zeros((), device=mask.device) if bias is None else bias
            mask = added.masked_fill(~mask, float("-inf"))
        heads = step.source.q.shape[1] if has_bias else 1
        mask = mask.expand(len(step.ended), heads, step.queries, step.keys)
        masks.append(keys.pad(mask, first, float("-inf") if has_bias else False))
    return torch.cat(masks, 2)


def _merge_edits(steps: Sequence[_Step], keys: _Keys) -> WeightEdit | None:
    """The weights of all steps after their edits; None if no step was edited."""
    if all(step.recorded.edit is None for step in steps):
        return None

    def weights_after(_: AttentionCall) -> UsedWeights:
        weights, allowed = [], []
        for step, first in zip(steps, keys.first, strict=True):
            ended = step.ended[:, None, None, None]
            for *_block, used in step.recorded.blocks():
                links = torch.ones_like(used.weights, dtype=torch.bool)
                links = links if used.allowed is None else links & used.allowed
                weights.append(keys.pad(used.weights.masked_fill(ended, 0.0), first, 0.0))
                allowed.append(keys.pad(links & ~ended, first, False))
        return UsedWeights(torch.cat(weights, 2), torch.cat(allowed, 2))

    return weights_after
