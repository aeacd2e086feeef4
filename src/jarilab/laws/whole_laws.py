"""Laws of whole models: what must not change the scores of any PyTorch model.

for outcome in check_model(model):
    print(outcome.verdict, outcome.law, outcome.detail)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from jarilab.core.shapes import Bool, Tensor
from jarilab.laws import Outcome, run_law, skip_consequences
from jarilab.laws.call_adapters import WRITTEN
from jarilab.laws.checks import BrokenError, SkippedError, max_difference, unsaved_tensors
from jarilab.laws.whole_model import ALLOWED, LENGTH, WholeModel

PADDED = 3
"""Largest number of padding tokens in a row."""
SHIFT = 7
FARTHEST = 4096
"""Models that declare more positions are not tested at the last one."""


def determinism(subject: WholeModel) -> str:
    """In evaluation, equal inputs give equal scores."""
    # Two seeds: a model that draws random numbers then gives other scores.
    torch.manual_seed(1)
    first = subject.run(subject.inputs)
    if bool(first.isnan().any()):
        raise BrokenError("its scores are NaN, so no other law can be tested")
    torch.manual_seed(2)
    second = subject.run(subject.inputs)
    if not torch.equal(first, second):
        raise BrokenError(
            f"the same input again: off by {max_difference(first, second):.2g}; does it use dropout or other random "
            "numbers in evaluation?"
        )
    return "the same input twice, bit for bit"


def batch(subject: WholeModel) -> str:
    """A row alone gives the scores that it has in a batch."""
    together = subject.run(subject.inputs)
    detail = ""
    for row in range(len(together)):
        row_slice = slice(row, row + 1)
        alone = subject.run({name: each[row_slice] for name, each in subject.inputs.items()})
        detail = subject.check_close(alone, together[row_slice], f"row {row} alone")
    return f"each row alone and in a batch of {len(together)}: {detail}"


def future(subject: WholeModel) -> str:
    """In a causal model, later tokens change no earlier scores."""
    name = subject.causal_input()
    ids, plain = subject.inputs[name], subject.run(subject.inputs)
    if plain.shape[:2] != ids.shape:
        raise SkippedError("it has no score for each token")
    half = ids.shape[1] // 2
    other = ids.clone()
    other[:, half:] = ids[:, half:].flip(0)
    changed = subject.run(subject.inputs | {name: other})
    return subject.check_close(
        changed[:, :half], plain[:, :half], "earlier positions, after later tokens changed"
    )


def right_padding(subject: WholeModel) -> str:
    """Padding as in training batches changes nothing."""
    return _padding(subject, right=True)


def left_padding(subject: WholeModel) -> str:
    """Padding as in prompts of generation changes nothing, with the positions that generation uses."""
    subject.require_causal()
    return _padding(subject, right=False)


def cached(subject: WholeModel) -> str:
    """Scores of one token at a time with a cache are those of one forward."""
    ids = subject.ids()
    subject.require_steps()
    if subject.writes:
        return _cached_decoder(subject)
    subject.require_causal()
    full = subject.run_ids(ids)
    start = 3
    scores, cache = subject.step(subject.with_ids(ids[:, :start]), None)
    pieces = [scores]
    for index in range(start, LENGTH):
        scores, cache = subject.step(subject.with_ids(ids[:, index : index + 1]), cache)
        pieces.append(scores)
    return subject.check_close(torch.cat(pieces, 1), full, f"{start} tokens, then one at a time")


def cached_after_padding(subject: WholeModel) -> str:
    """Cached steps after prompts of several lengths give the scores of each row alone, as in `generate`."""
    subject.require_causal()
    subject.require_steps()
    subject.require("attention_mask")
    ids = subject.ids()
    padded, mask = _padded(subject, ids, right=False)
    positions = subject.generation_positions(mask)
    start = PADDED + 3
    first = {name: each[:, :start] for name, each in positions.items()}
    scores, cache = subject.step(
        subject.with_ids(padded[:, :start]), None, attention_mask=mask[:, :start].long(), **first
    )
    pieces = [scores]
    for index in range(start, padded.shape[1]):
        here = slice(index, index + 1)
        at = {name: each[:, here] for name, each in positions.items()}
        scores, cache = subject.step(
            subject.with_ids(padded[:, here]),
            cache,
            attention_mask=mask[:, : index + 1].long(),
            **at,
        )
        pieces.append(scores)
    stepped = torch.cat(pieces, 1)
    last = stepped.shape[1]  # some models score only the last token of a prompt
    detail = ""
    for row, real in enumerate(mask):
        row_slice = slice(row, row + 1)
        alone = subject.run_ids(padded[row_slice, real], row_slice)
        scores = stepped[row_slice, real[-last:]]
        padding = int((~real).sum())
        detail = subject.check_close(
            scores, alone[:, -scores.shape[1] :], f"row {row}, {padding} of padding"
        )
    return detail


def packing(subject: WholeModel) -> str:
    """Two documents in one row, separated by a mask of pairs and restarted positions, equal separate ones."""
    subject.require_causal()
    subject.require("attention_mask")
    subject.require("position_ids")
    window = getattr(subject.config, "sliding_window", None)
    if isinstance(window, int) and window < LENGTH:
        raise SkippedError(f"its window of {window} is ignored under a mask of pairs")
    ids, cut = subject.ids()[:1], LENGTH // 2
    document = torch.arange(LENGTH).ge(cut).long()[None]
    places = torch.cat([torch.arange(cut), torch.arange(LENGTH - cut)])[None]
    row = slice(0, 1)
    apart_BLV = torch.cat(
        [subject.run_ids(ids[:, :cut], row), subject.run_ids(ids[:, cut:], row)], 1
    )
    try:
        packed = subject.run_ids(ids, row, **subject.adapter.packing_arguments(document, places))
    except (RuntimeError, ValueError, TypeError) as error:
        raise SkippedError(f"it accepts no mask of pairs: {type(error).__name__}") from None
    detail = subject.check_close(packed, apart_BLV, "two documents in a row")
    alone = subject.run_ids(ids, row, position_ids=places)
    separate = max_difference(alone, apart_BLV) <= ALLOWED * subject.rounding * max(
        1.0, float(apart_BLV.abs().max())
    )
    return f"{detail}; with positions alone they are {'separate' if separate else 'MIXED'}"


def shift(subject: WholeModel) -> str:
    """With relative positions alone, shifting all position IDs changes nothing."""
    subject.require("position_ids")
    if subject.longest is not None and subject.longest < LENGTH + SHIFT:
        raise SkippedError(f"it declares {subject.longest} positions")
    here = subject.run(subject.inputs, **subject.positions_from(0))
    there = subject.run(subject.inputs, **subject.positions_from(SHIFT))
    what = f"{SHIFT} positions further on"
    try:
        return subject.check_close(there, here, what)
    except BrokenError as broken:
        if not subject.adapter.has_absolute_positions(subject.model):
            raise
        raise SkippedError(f"it may use absolute positions, so it may differ: {broken}") from None


def precision(subject: WholeModel) -> str:
    """Weights that bfloat16 can represent survive a cast to bfloat16 and back."""
    with subject.on_copy() as model:
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16().float()
        expected = subject.run(subject.inputs)
        buffers = {name: each.clone() for name, each in model.named_buffers()}
        model.bfloat16().float()
        changed = [
            name for name, each in model.named_buffers() if not torch.equal(each, buffers[name])
        ]
        actual = subject.run(subject.inputs)
    what = "weights that bfloat16 can hold, there and back"
    if changed:
        what += f" (buffers lost digits: {', '.join(changed[:2])})"
    return subject.check_close(actual, expected, what)


def stored(subject: WholeModel) -> str:
    """The state_dict contains everything that decides the scores, except constructor arguments."""
    expected = subject.run(subject.inputs)
    state = {name: each.clone() for name, each in subject.model.state_dict().items()}
    with subject.on_copy() as model:
        for each in model.state_dict().values():
            if each.is_floating_point():
                each.normal_()
        model.load_state_dict(state)
        actual = subject.run(subject.inputs)
    if not torch.equal(actual, expected):
        raise BrokenError(f"state_dict put back: off by {max_difference(actual, expected):.2g}")
    return f"{len(state)} tensors put back, bit for bit{unsaved_tensors(subject.model)}"


def far(subject: WholeModel) -> str:
    """Scores are finite up to the last declared position."""
    longest = subject.longest
    ids = subject.ids()
    if longest is None or longest > FARTHEST:
        raise SkippedError(f"it declares {longest or 'no'} positions")
    row = ids[:1].repeat(1, longest // LENGTH + 2)
    scores = subject.run_ids(row[:, :longest], slice(0, 1))
    if not bool(scores.isfinite().all()):
        raise BrokenError(f"{longest} tokens, which it declares, give NaN or Inf")
    try:
        beyond = subject.run_ids(row[:, : longest + 1], slice(0, 1))
    except Exception as error:
        return f"{longest} tokens; one more raises {type(error).__name__}"
    if not bool(beyond.isfinite().all()):
        raise BrokenError(f"{longest + 1} tokens, one more than declared, silently give NaN or Inf")
    return f"{longest} tokens; one more is computed, too"


LAWS: dict[str, Callable[[WholeModel], str]] = {
    "evaluation draws nothing": determinism,
    "rows do not mix": batch,
    "no token sees a later one": future,
    "right padding changes nothing": right_padding,
    "left padding changes nothing": left_padding,
    "cached steps equal the full forward": cached,
    "cached steps after left padding equal rows alone": cached_after_padding,
    "packed documents equal separate ones": packing,
    "shifting all positions changes nothing": shift,
    "weights survive bfloat16": precision,
    "state_dict holds all of it": stored,
    "declared positions are computed": far,
}


def check_model(
    model: nn.Module,
    *,
    vocab_size: int | None = None,
    image: tuple[int, int, int] | None = None,
    causal: bool = False,
) -> list[Outcome]:
    """Test a model against all laws, in seconds for a small one: it is copied and called about fifty times.

    Arguments with the names of transformers (`attention_mask`, `position_ids`, `past_key_values`) are used if the
    model's forward has them. A law that needs another one is skipped. The other arguments and errors are those of
    `WholeModel`.
    """
    subject = WholeModel(model, vocab_size=vocab_size, image=image, causal=causal)
    subject.check()
    outcomes = [run_law(name, law, subject) for name, law in LAWS.items()]
    return skip_consequences(outcomes, tuple(LAWS)[:1])


# Padding -----------------------------------------------------------------------------------------


def _padding(subject: WholeModel, *, right: bool) -> str:
    subject.require("attention_mask")
    ids = subject.ids()
    padded, mask = _padded(subject, ids, right=right)
    together = subject.run_ids(
        padded, attention_mask=mask.long(), **subject.generation_positions(mask)
    )
    detail = ""
    for row, real in enumerate(mask):
        row_slice = slice(row, row + 1)
        alone = subject.run_ids(padded[row_slice, real], row_slice)
        scores = together[row_slice]
        if not subject.writes and scores.shape[1] == len(real):
            scores = scores[:, real]
        detail = subject.check_close(scores, alone, f"row {row}, {int((~real).sum())} of padding")
    return detail


def _padded(subject: WholeModel, ids: Tensor, *, right: bool) -> tuple[Tensor, Bool[Tensor, "B L"]]:
    """Rows with 0 to PADDED padding tokens, and the mask of real ones."""
    padding = getattr(subject.config, "pad_token_id", None) or 0
    rows, length = ids.shape
    counts = torch.arange(rows).clamp_max(PADDED)[:, None] + (1 if rows <= PADDED else 0)
    extended = torch.cat([ids, ids[:, :PADDED]], 1)
    places = torch.arange(length + PADDED)
    real = places < length + PADDED - counts if right else places >= counts
    return extended.masked_fill(~real, padding), real


def _cached_decoder(subject: WholeModel) -> str:
    subject.require("past_key_values")
    written = subject.inputs[WRITTEN]
    full = subject.run(subject.inputs)
    cache: Any = None
    pieces = []
    for index in range(written.shape[1]):
        step = subject.inputs | {WRITTEN: written[:, index : index + 1]}
        scores, cache = subject.step(step, cache)
        pieces.append(scores)
    return subject.check_close(torch.cat(pieces, 1), full, "the answer, a token at a time")
