"""Laws of whole models: what must not change what a model says, whoever built it.

for outcome in check_model(model):
    print(outcome.verdict, outcome.law, outcome.detail)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from jarilab.core.shapes import Bool, Tensor
from jarilab.laws import Outcome, judge, without_echoes
from jarilab.laws.checks import BrokenError, SkippedError, apart, unstored
from jarilab.laws.ways import WRITTEN
from jarilab.laws.whole_model import ALLOWED, LENGTH, WholeModel

PADDED = 3
"""Places of padding."""
SHIFT = 7
FARTHEST = 4096
"""Declared positions up to which the last one is tried."""


def determinism(asked: WholeModel) -> str:
    """In evaluation a model says the same to the same."""
    torch.manual_seed(1)
    first = asked.ask(asked.inputs)
    if bool(first.isnan().any()):
        raise BrokenError("its scores are no numbers (NaN), so that nothing else can be told of it")
    torch.manual_seed(2)
    second = asked.ask(asked.inputs)
    if not torch.equal(first, second):
        raise BrokenError(
            f"the same input again: off by {apart(first, second):.2g}; is dropout on in evaluation, or does it draw?"
        )
    return "the same input twice, bit for bit"


def batch(asked: WholeModel) -> str:
    """A row alone says what it says among others."""
    together = asked.ask(asked.inputs)
    said = ""
    for row in range(len(together)):
        of_row = slice(row, row + 1)
        alone = asked.ask({name: each[of_row] for name, each in asked.inputs.items()})
        said = asked.near(alone, together[of_row], f"row {row} alone")
    return f"each row alone and in a batch of {len(together)}: {said}"


def future(asked: WholeModel) -> str:
    """Of a model that writes, later tokens change nothing before them."""
    name = asked.written()
    ids, plain = asked.inputs[name], asked.ask(asked.inputs)
    if plain.shape[:2] != ids.shape:
        raise SkippedError("it says nothing of each token")
    half = ids.shape[1] // 2
    other = ids.clone()
    other[:, half:] = ids[:, half:].flip(0)
    changed = asked.ask(asked.inputs | {name: other})
    return asked.near(
        changed[:, :half], plain[:, :half], "earlier places, after later tokens changed"
    )


def right_padding(asked: WholeModel) -> str:
    """As batches are padded to train."""
    return _padding(asked, right=True)


def left_padding(asked: WholeModel) -> str:
    """As prompts are padded to go on, with positions as generation makes them."""
    asked.needs_causal()
    return _padding(asked, right=False)


def cached(asked: WholeModel) -> str:
    """What is written a token at a time is what one forward says."""
    ids = asked.ids()
    asked.steps()
    if asked.writes:
        return _cached_decoder(asked)
    asked.needs_causal()
    full = asked.of_ids(ids)
    start = 3
    scores, cache = asked.step(asked.beside(ids[:, :start]), None)
    said = [scores]
    for place in range(start, LENGTH):
        scores, cache = asked.step(asked.beside(ids[:, place : place + 1]), cache)
        said.append(scores)
    return asked.near(torch.cat(said, 1), full, f"{start} tokens, then one at a time")


def cached_after_padding(asked: WholeModel) -> str:
    """As `generate` goes on with a batch of prompts of several lengths."""
    asked.needs_causal()
    asked.steps()
    asked.takes("attention_mask")
    ids = asked.ids()
    padded, mask = _padded(asked, ids, right=False)
    positions = asked.positions(mask)
    start = PADDED + 3
    first = {name: each[:, :start] for name, each in positions.items()}
    scores, cache = asked.step(
        asked.beside(padded[:, :start]), None, attention_mask=mask[:, :start].long(), **first
    )
    said = [scores]
    for place in range(start, padded.shape[1]):
        here = slice(place, place + 1)
        at = {name: each[:, here] for name, each in positions.items()}
        scores, cache = asked.step(
            asked.beside(padded[:, here]), cache, attention_mask=mask[:, : place + 1].long(), **at
        )
        said.append(scores)
    stepped = torch.cat(said, 1)
    last = stepped.shape[1]  # of a prompt some models score the last token alone
    told = ""
    for row, real in enumerate(mask):
        of_row = slice(row, row + 1)
        alone = asked.of_ids(padded[of_row, real], of_row)
        found = stepped[of_row, real[-last:]]
        padding = int((~real).sum())
        told = asked.near(found, alone[:, -found.shape[1] :], f"row {row}, {padding} of padding")
    return told


def packing(asked: WholeModel) -> str:
    """Two documents in one row, kept apart by a mask of pairs and by positions that begin anew."""
    asked.needs_causal()
    asked.takes("attention_mask")
    asked.takes("position_ids")
    window = getattr(asked.config, "sliding_window", None)
    if isinstance(window, int) and window < LENGTH:
        raise SkippedError(f"its window of {window} takes a mask of pairs for the whole mask")
    ids, cut = asked.ids()[:1], LENGTH // 2
    document = torch.arange(LENGTH).ge(cut).long()[None]
    places = torch.cat([torch.arange(cut), torch.arange(LENGTH - cut)])[None]
    row = slice(0, 1)
    apart_BLV = torch.cat([asked.of_ids(ids[:, :cut], row), asked.of_ids(ids[:, cut:], row)], 1)
    try:
        packed = asked.of_ids(ids, row, **asked.way.packed(document, places))
    except (RuntimeError, ValueError, TypeError) as error:
        raise SkippedError(f"it takes no mask of pairs: {type(error).__name__}") from None
    said = asked.near(packed, apart_BLV, "two documents in a row")
    alone = asked.of_ids(ids, row, position_ids=places)
    kept = apart(alone, apart_BLV) <= ALLOWED * asked.rounding * max(
        1.0, float(apart_BLV.abs().max())
    )
    return f"{said}; by positions alone they are {'kept apart' if kept else 'MIXED'}"


def shift(asked: WholeModel) -> str:
    """Relative positions alone: all places further along say the same."""
    asked.takes("position_ids")
    if asked.longest is not None and asked.longest < LENGTH + SHIFT:
        raise SkippedError(f"it declares {asked.longest} positions")
    here = asked.ask(asked.inputs, **asked.at(0))
    there = asked.ask(asked.inputs, **asked.at(SHIFT))
    what = f"{SHIFT} places further on"
    try:
        return asked.near(there, here, what)
    except BrokenError as broken:
        if not asked.way.knows_places(asked.model):
            raise
        raise SkippedError(f"it has something for each place, so it may differ: {broken}") from None


def precision(asked: WholeModel) -> str:
    """Weights that bfloat16 can hold, to bfloat16 and back, are the same model."""
    with asked.as_copy() as model:
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16().float()
        before = asked.ask(asked.inputs)
        buffers = {name: each.clone() for name, each in model.named_buffers()}
        model.bfloat16().float()
        changed = [
            name for name, each in model.named_buffers() if not torch.equal(each, buffers[name])
        ]
        after = asked.ask(asked.inputs)
    what = "weights that bfloat16 can hold, there and back"
    if changed:
        what += f" (buffers lost digits: {', '.join(changed[:2])})"
    return asked.near(after, before, what)


def stored(asked: WholeModel) -> str:
    """All that it says is in its state_dict, but for what it is built with."""
    expected = asked.ask(asked.inputs)
    state = {name: each.clone() for name, each in asked.model.state_dict().items()}
    with asked.as_copy() as model:
        for each in model.state_dict().values():
            if each.is_floating_point():
                each.normal_()
        model.load_state_dict(state)
        found = asked.ask(asked.inputs)
    if not torch.equal(found, expected):
        raise BrokenError(f"state_dict put back: off by {apart(found, expected):.2g}")
    return f"{len(state)} tensors put back, bit for bit{unstored(asked.model)}"


def far(asked: WholeModel) -> str:
    """Up to the last position that it declares it says numbers."""
    longest = asked.longest
    ids = asked.ids()
    if longest is None or longest > FARTHEST:
        raise SkippedError(f"it declares {longest or 'no'} positions")
    row = ids[:1].repeat(1, longest // LENGTH + 2)
    said = asked.of_ids(row[:, :longest], slice(0, 1))
    if not bool(said.isfinite().all()):
        raise BrokenError(f"{longest} tokens, which it declares, give numbers that are none")
    try:
        behind = asked.of_ids(row[:, : longest + 1], slice(0, 1))
    except Exception as error:
        return f"{longest} tokens; one more raises {type(error).__name__}"
    if not bool(behind.isfinite().all()):
        raise BrokenError(
            f"{longest + 1} tokens, one more than declared, silently give numbers that are none"
        )
    return f"{longest} tokens; one more is answered, too"


LAWS: dict[str, Callable[[WholeModel], str]] = {
    "evaluation draws nothing": determinism,
    "rows do not mix": batch,
    "no token sees a later one": future,
    "right padding changes nothing": right_padding,
    "left padding changes nothing": left_padding,
    "cached steps equal the full forward": cached,
    "cached steps after left padding equal rows alone": cached_after_padding,
    "packed documents equal separate ones": packing,
    "a shift of all places changes nothing": shift,
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
    """Try all laws of whole models on one: seconds for a small one, since it is copied and asked some fifty times.

    Arguments as transformers names them (`attention_mask`, `position_ids`, `past_key_values`) are used where the
    model's forward has them; a law that needs one it lacks is skipped. The other arguments, and errors: as `WholeModel`
    says.
    """
    asked = WholeModel(model, vocab_size=vocab_size, image=image, causal=causal)
    asked.check()
    outcomes = [judge(name, law, asked) for name, law in LAWS.items()]
    return without_echoes(outcomes, tuple(LAWS)[:1])


# Padding -----------------------------------------------------------------------------------------


def _padding(asked: WholeModel, *, right: bool) -> str:
    asked.takes("attention_mask")
    ids = asked.ids()
    padded, mask = _padded(asked, ids, right=right)
    together = asked.of_ids(padded, attention_mask=mask.long(), **asked.positions(mask))
    said = ""
    for row, real in enumerate(mask):
        of_row = slice(row, row + 1)
        alone = asked.of_ids(padded[of_row, real], of_row)
        found = together[of_row]
        if not asked.writes and found.shape[1] == len(real):
            found = found[:, real]
        said = asked.near(found, alone, f"row {row}, {int((~real).sum())} of padding")
    return said


def _padded(asked: WholeModel, ids: Tensor, *, right: bool) -> tuple[Tensor, Bool[Tensor, "B L"]]:
    """Rows with 0 to PADDED places of padding, and which tokens are real."""
    padding = getattr(asked.config, "pad_token_id", None) or 0
    rows, length = ids.shape
    counts = torch.arange(rows).clamp_max(PADDED)[:, None] + (1 if rows <= PADDED else 0)
    whole = torch.cat([ids, ids[:, :PADDED]], 1)
    places = torch.arange(length + PADDED)
    real = places < length + PADDED - counts if right else places >= counts
    return whole.masked_fill(~real, padding), real


def _cached_decoder(asked: WholeModel) -> str:
    asked.takes("past_key_values")
    written = asked.inputs[WRITTEN]
    full = asked.ask(asked.inputs)
    cache: Any = None
    said = []
    for place in range(written.shape[1]):
        step = asked.inputs | {WRITTEN: written[:, place : place + 1]}
        scores, cache = asked.step(step, cache)
        said.append(scores)
    return asked.near(torch.cat(said, 1), full, "the answer, a token at a time")
