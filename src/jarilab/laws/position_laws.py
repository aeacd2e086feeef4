"""Laws of what positions mean to an encoding: order, shifts, the end, none at all."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import partial

import torch

from jarilab.attention import definition
from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding
from jarilab.laws.attention import call_of
from jarilab.laws.checks import (
    EXACT,
    NOTICEABLE,
    POSITIONS,
    BrokenError,
    SkippedError,
    apart,
    complaint,
    near,
)
from jarilab.laws.hooks import OF_TOKENS, Question, answers, hook_outputs
from jarilab.laws.material import BATCH, LENGTH
from jarilab.laws.stacks import Stack, causal_stack, encoder, stacks
from jarilab.laws.subject import Start, Subject
from jarilab.positions.coordinates import Positions

SHIFTS = (1, 100, 5000)
UNPLACED = 2  # the number of the token without a place
PLACED = [number for number in range(LENGTH) if number != UNPLACED]


def shift(subject: Subject) -> str:
    """Moving all positions by the same amount changes no output where that is claimed, and some where it is not."""
    x_BLD, claimed, worst = subject.encoder_input(), subject.claims("shift_invariant"), 0.0
    index_L = torch.arange(LENGTH)
    for stack in stacks(subject):
        here = stack(x_BLD, subject.places(index_L))
        for by in _moves(subject):
            there = stack(x_BLD, subject.places(index_L, by))
            worst = max(worst, apart(here, there))
            if claimed:
                what = f"output of {stack.name} with all positions moved by {by}"
                near(there, here, POSITIONS, what)
    if claimed and subject.crosses:
        _check_cross(subject)
    if claimed:
        return f"claimed, and outputs differ by {worst:.1g}"
    if worst < NOTICEABLE and subject.denies("shift_invariant"):
        raise BrokenError(
            f"it says shift_invariant = False, but moved positions change nothing (at most {worst:.1g}); claim True"
        )
    return f"not claimed: outputs differ by {worst:.1g}"


def _check_cross(subject: Subject) -> None:
    """Between two frames, queries and keys moved together."""
    encoding = subject.encoding(site=subject.site(cross=True))
    q_L, k_L = torch.arange(1, 4), torch.arange(LENGTH)
    scores = []
    for by in (0, *_moves(subject)):
        q_pos = replace(subject.places(q_L, by), frame="target")
        k_pos = replace(subject.places(k_L, by), frame="source")
        asked = Question.about(encoding.site, q_pos, k_pos)
        call = call_of(encoding, asked.q, asked.k, asked.k, q_pos, k_pos, None)
        scores.append(definition.weights(call))
    for by, found in zip(_moves(subject), scores[1:], strict=True):
        what = f"weights of a cross-attention with all positions moved by {by}"
        near(found, scores[0], POSITIONS, what)


def _moves(subject: Subject) -> list[Start]:
    """All ways to move positions by near and far steps that leave them where the encoding can read them."""
    end = subject.max_positions
    furthest = SHIFTS[-1] if end is None else end - subject.span
    steps = [by for by in SHIFTS if by <= furthest]
    return [move for by in steps for move in subject.moves(by)]


def order(subject: Subject) -> str:
    """An encoder under an encoding without hooks, or that says uses_order = False, follows every permutation of its
    tokens; under any other it does not. In one causal layer, the last token's output follows every permutation of those
    before it in the same way.

    An encoding whose options leave it nothing to tell, such as Shaw's with all distances clipped to 0, is broken by
    this law, and rightly: it costs what an encoding costs, and the model stays a bag of tokens.
    """
    hooks = ", ".join(sorted(subject.encoding().hooks))
    hears = bool(hooks) and subject.claims("uses_order")
    for stack in _bags(subject):
        heard = {}
        for start, (which, shuffle) in itertools.product(
            subject.starts(), subject.shuffles().items()
        ):
            difference = _heard(subject, stack, start, shuffle)
            heard[f"{which} within {difference:.1g} (from position {start} on)"] = difference
            if not hears and difference > EXACT:
                says = "uses_order = False" if hooks else "that it uses no hook"
                raise BrokenError(
                    f"it says {says}, but a permutation changes outputs by {difference:.1g}"
                )
        # The last token of a causal layer may rightly not tell some of those before it apart, and where the length
        # decides far ones may be close together.
        somewhere = stack.causal or subject.claims("depends_on_length")
        least = max(heard.values()) if somewhere else min(heard.values())
        if hears and not least > NOTICEABLE:
            unheard = next(words for words, difference in heard.items() if difference == least)
            raise BrokenError(
                f"it overrides {hooks}, but the outputs of {stack.name} follow a permutation {unheard}: it is wired "
                "to nothing, or has nothing to tell with these options"
            )
    return "by " + hooks if hears else "by nothing, as it says: the encoder sees a bag of tokens"


def _bags(subject: Subject) -> list[Stack]:
    """Stacks to which, without positions, tokens are a bag: for one causal layer those before the last are."""
    one_layer = causal_stack(subject, n_layers=1)
    return [one_layer] if subject.causal_only else [encoder(subject), one_layer]


def _heard(subject: Subject, stack: Stack, start: int, shuffle: Tensor) -> float:
    """How far the outputs of shuffled tokens are from shuffled outputs; after them stands one that stays."""
    last = LENGTH - 1
    shuffle = torch.cat((shuffle[shuffle != last], torch.tensor([last])))
    x_BLD, pos = subject.encoder_input(), subject.sequence(start)
    of_shuffled = stack(x_BLD[:, shuffle], pos)
    shuffled = stack(x_BLD, pos)[:, shuffle]
    first = last if stack.causal else 0
    return apart(of_shuffled[:, first:], shuffled[:, first:])


def end(subject: Subject) -> str:
    """It reads its longest position and refuses the next one with a UserError that names it; without a longest position
    it reads the millionth."""
    x_BLD, count, index_L = subject.encoder_input(), subject.max_positions, torch.arange(LENGTH)
    last = 1_000_000 if count is None else count - 1
    for stack in stacks(subject):
        within = subject.places(index_L, last + 1 - subject.span)
        if not stack(x_BLD, within).isfinite().all():
            raise BrokenError(f"the output of {stack.name} at position {last} is not finite")
        if count is not None:
            beyond = subject.places(index_L, last + 2 - subject.span)
            _check_refusal(stack, x_BLD, beyond, count)
    return f"{_furthest(subject)}" + (
        f"no end is claimed, and position {last:,} can be read"
        if count is None
        else f"position {last} can be read, {last + 1} is refused by its number"
    )


def _check_refusal(stack: Stack, x_BLD: Tensor, beyond: Positions, count: int) -> None:
    refusal = complaint(partial(stack, x_BLD, beyond))
    if refusal is None:
        raise BrokenError(
            f"it has {count} positions, so the last is {count - 1}, but {count} passes without a word"
        )
    if not re.search(rf"\b{count}\b", refusal):
        raise BrokenError(f"position {count} is refused without being named: {refusal!r}")


def _furthest(subject: Subject) -> str:
    """It compares tokens over its largest distance, and refuses the next one by its number."""
    furthest = subject.max_distance
    if furthest is None:
        return ""
    stack, x_B2D = stacks(subject)[0], subject.encoder_input()[:, :2]
    away = [subject._at(_two_apart(subject, by)) for by in (furthest, furthest + 1)]
    if not stack(x_B2D, away[0]).isfinite().all():
        raise BrokenError(f"the output over the distance {furthest} is not finite")
    refusal = complaint(partial(stack, x_B2D, away[1]))
    if refusal is None or not re.search(rf"\b{furthest + 1}\b", refusal):
        raise BrokenError(
            f"its largest distance is {furthest}, but {furthest + 1} is not refused by its number: {refusal!r}"
        )
    return f"distance {furthest} can be compared, {furthest + 1} is refused; "


def _two_apart(subject: Subject, by: int) -> Tensor:
    """Coordinates of two tokens so far apart, along all axes."""
    return torch.tensor([[0], [by]]).expand(-1, subject.axes)


def unplaced(subject: Subject) -> str:
    """A token marked as unplaced gets no vector, no rotation, and nothing between it and others; they are as ever."""
    encoding = subject.encoding()
    mark_L = torch.arange(LENGTH) == UNPLACED
    marks = (mark_L, mark_L.expand(BATCH, -1))
    untouched = _untouched(encoding)
    for start, mark in itertools.product(subject.starts(), marks):
        pos = subject.places(torch.arange(LENGTH), start)
        marked = hook_outputs(encoding, replace(pos, unplaced=mark))
        plain = hook_outputs(encoding, pos)
        for hook, output in marked.items():
            where = f"{hook} at a token without a place, from position {start} on"
            beside = f"{hook} beside a token without a place"
            unplaced_query, placed_query = output[:, :, UNPLACED], output[:, :, PLACED]
            expected = plain[hook][:, :, PLACED]
            if hook in OF_TOKENS:
                near(unplaced_query, untouched[hook][:, :, UNPLACED], EXACT, where)
                near(placed_query, expected, EXACT, beside)
            else:
                _check_zero(unplaced_query, f"{where}, as query")
                _check_zero(output[:, :, :, UNPLACED], f"{where}, as key")
                rest = placed_query[:, :, :, PLACED]
                near(rest, expected[:, :, :, PLACED], EXACT, beside)
    return "marked for all rows and row by row"


def _untouched(encoding: Encoding) -> dict[str, Tensor]:
    """What an encoding without hooks leaves of all vectors."""
    asked = Question.about(encoding.site, Positions.sequence(LENGTH))
    x_B1LD = asked.x.unsqueeze(1)
    return dict(zip(OF_TOKENS, (x_B1LD, x_B1LD, asked.q, asked.k), strict=True))


def _check_zero(found: Tensor, what: str) -> None:
    near(found, torch.zeros_like(found), EXACT, what)


def fractions(subject: Subject) -> str:
    """Places between whole ones are read, and not rounded; or refused, where the class says integer_only."""
    encoding = subject.encoding()
    whole = subject.places(torch.arange(LENGTH))
    # The last of them, which may decide, is between whole ones too.
    between = replace(whole, coordinates=whole.coordinates * 1.25)
    if _same(encoding, whole, replace(whole, coordinates=whole.coordinates * 2)):
        raise SkippedError("it looks at no places")
    try:
        hook_outputs(encoding, between)
    except (UserError, IndexError, TypeError, RuntimeError) as error:
        if subject.claims("integer_only"):
            return "the place 1.25 is refused, as claimed"
        raise SkippedError(
            f"the place 1.25 raises {type(error).__name__}: say integer_only = True, and refuse it with a UserError"
        ) from error
    if subject.claims("integer_only"):
        raise BrokenError(
            "it says integer_only = True, but takes the place 1.25 without a word; refuse it with a UserError, or "
            "claim False"
        )
    for rounding in (torch.floor, torch.round, torch.ceil):
        if _same(encoding, between, replace(between, coordinates=rounding(between.coordinates))):
            raise BrokenError(
                "places between whole ones are rounded without a word; say integer_only = True and refuse them"
            )
    _check_slope_of_places(encoding, between)
    return "the place 1.25 is told from 1 and 2"


def _same(encoding: Encoding, first: Positions, second: Positions) -> bool:
    """Whether two sets of places are one to the encoding."""
    others = hook_outputs(encoding, second)
    found = hook_outputs(encoding, first).items()
    return all(torch.equal(answer, others[hook]) for hook, answer in found)


def _check_slope_of_places(encoding: Encoding, between: Positions) -> None:
    """Gradients with respect to places are finite, where there are any, also between a token and itself."""
    coordinates = between.coordinates.double().requires_grad_()
    pos = replace(between, coordinates=coordinates)
    outputs = answers(encoding, Question.about(encoding.site, pos))
    total = torch.stack([output.sum() for output in outputs.values()]).sum()
    if not total.requires_grad:
        return
    (gradient,) = torch.autograd.grad(total, coordinates, allow_unused=True)
    if gradient is not None and not gradient.isfinite().all():
        raise BrokenError("the gradient with respect to places is not finite at a distance of 0")


def line(subject: Subject) -> str:
    """An encoding for one axis and for two gives an image of 1 x n what it gives a sequence of n."""
    if not {1, 2} <= set(subject.encoding().axes):
        raise SkippedError("it does not take both one axis and two")
    x_BLD = subject.encoder_input()
    for stack in stacks(subject):
        grid = stack(x_BLD, Positions.grid(1, LENGTH))
        sequence = stack(x_BLD, Positions.sequence(LENGTH))
        near(grid, sequence, EXACT, f"output of {stack.name} for a grid of 1 x {LENGTH}")
    return f"1 x {LENGTH}"
