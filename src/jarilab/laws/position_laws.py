"""Laws about positions: token order, shifts, the longest position, unplaced tokens."""

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
from jarilab.encodings.skew import skew
from jarilab.laws.attention import call_of
from jarilab.laws.checks import (
    EXACT,
    NOTICEABLE,
    POSITIONS,
    BrokenError,
    SkippedError,
    check_close,
    max_difference,
    user_error_of,
)
from jarilab.laws.fixtures import BATCH, LENGTH, noise
from jarilab.laws.hooks import PAIR_HOOKS, TOKEN_HOOKS, HookInputs, call_hooks, hook_outputs
from jarilab.laws.law_subject import Start, Subject
from jarilab.laws.trial_stacks import Stack, causal_stack, encoder, stacks
from jarilab.positions.coordinates import Positions, distance

SHIFTS = (1, 100, 5000)
UNPLACED = 2  # the number of the token without a place
PLACED = [number for number in range(LENGTH) if number != UNPLACED]


def shift(subject: Subject) -> str:
    """Shifting all positions changes no output if `shift_invariant` is claimed, and changes some otherwise."""
    x_BLD, is_claimed, largest = subject.encoder_input(), subject.claims("shift_invariant"), 0.0
    index_L = torch.arange(LENGTH)
    for stack in stacks(subject):
        original = stack(x_BLD, subject.places(index_L))
        for step in _moves(subject):
            shifted = stack(x_BLD, subject.places(index_L, step))
            largest = max(largest, max_difference(original, shifted))
            if is_claimed:
                what = f"output of {stack.name} with all positions shifted by {step}"
                check_close(shifted, original, POSITIONS, what)
    if is_claimed and subject.crosses:
        _check_cross(subject)
    if is_claimed:
        return f"claimed, and outputs differ by {largest:.1g}"
    if largest < NOTICEABLE and subject.denies("shift_invariant"):
        raise BrokenError(
            f"it says shift_invariant = False, but shifted positions change nothing (at most {largest:.1g}); claim True"
        )
    return f"not claimed: outputs differ by {largest:.1g}"


def _check_cross(subject: Subject) -> None:
    """Shift queries and keys of a cross-attention together."""
    encoding = subject.encoding(site=subject.site(cross=True))
    q_L, k_L = torch.arange(1, 4), torch.arange(LENGTH)
    scores = []
    for by in (0, *_moves(subject)):
        q_pos = replace(subject.places(q_L, by), frame="target")
        k_pos = replace(subject.places(k_L, by), frame="source")
        inputs = HookInputs.random(encoding.site, q_pos, k_pos)
        call = call_of(encoding, inputs.q, inputs.k, inputs.k, q_pos, k_pos, None)
        scores.append(definition.weights(call))
    for by, weights in zip(_moves(subject), scores[1:], strict=True):
        what = f"weights of a cross-attention with all positions shifted by {by}"
        check_close(weights, scores[0], POSITIONS, what)


def _moves(subject: Subject) -> list[Start]:
    """All shifts, near and far, that keep positions within the encoding's limit."""
    end = subject.max_positions
    furthest = SHIFTS[-1] if end is None else end - subject.span
    steps = [by for by in SHIFTS if by <= furthest]
    return [move for by in steps for move in subject.moves(by)]


def order(subject: Subject) -> str:
    """Outputs depend on token order, unless the encoding has no hooks or says `uses_order = False`.

    Then an encoder's outputs follow every permutation of its tokens. In one causal layer the last token is compared,
    under permutations of those before it. Options that leave an encoding nothing to add, such as Shaw's with all
    distances clipped to 0, break this law on purpose: the encoding costs time and the model remains a bag of tokens.
    """
    hooks = ", ".join(sorted(subject.encoding().hooks))
    uses_order = bool(hooks) and subject.claims("uses_order")
    note = ""
    for stack in _bags(subject):
        differences = {}
        for start, (name, shuffle) in itertools.product(
            subject.starts(), subject.shuffles().items()
        ):
            difference = _order_effect(subject, stack, start, shuffle)
            differences[f"{name} within {difference:.1g} (from position {start} on)"] = difference
            if not uses_order and difference > EXACT:
                claim = "uses_order = False" if hooks else "that it uses no hook"
                raise BrokenError(
                    f"it says {claim}, but a permutation changes outputs by {difference:.1g}"
                )
        # The last token of a causal layer may not distinguish some of the earlier ones. If the length matters, far
        # tokens may have nearly equal results.
        any_suffices = stack.causal or subject.claims("depends_on_length")
        smallest = max(differences.values()) if any_suffices else min(differences.values())
        if uses_order and not smallest > NOTICEABLE:
            if stack.causal and not subject.causal_only and _is_same_in_causal_site(subject):
                note = "; the last token of a causal layer cannot tell earlier ones apart"
                continue
            description = next(
                words for words, difference in differences.items() if difference == smallest
            )
            raise BrokenError(
                f"it overrides {hooks}, but the outputs of {stack.name} follow a permutation {description}: "
                "the hook has no effect, or nothing to add with these options; return what depends on the positions, "
                "or say uses_order = False"
            )
    return (
        f"through {hooks}{note}"
        if uses_order
        else "through nothing, as claimed: the encoder sees a bag of tokens"
    )


def _is_same_in_causal_site(subject: Subject) -> bool:
    """Whether the hooks give a visible pair the same at a causal site as at any other."""
    inputs = HookInputs.random(subject.site(), subject.sequence(0))
    visible_QK = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    sites = subject.site(), subject.site(causal=True)
    plain, causal = (call_hooks(subject.encoding(site=site), inputs) for site in sites)
    for hook, answer in plain.items():
        other = causal[hook]
        if hook in PAIR_HOOKS:
            hidden_QK = ~visible_QK if hook != "values" else ~visible_QK.unsqueeze(-1)
            answer, other = (x.masked_fill(hidden_QK, 0.0) for x in (answer, other))
        if max_difference(answer, other) > EXACT:
            return False
    return True


def _bags(subject: Subject) -> list[Stack]:
    """Stacks that see a bag of tokens without positions: in a causal layer, those before the last."""
    one_layer = causal_stack(subject, n_layers=1)
    return [one_layer] if subject.causal_only else [encoder(subject), one_layer]


def _order_effect(subject: Subject, stack: Stack, start: int, shuffle: Tensor) -> float:
    """The difference between outputs of shuffled tokens and shuffled outputs."""
    last = LENGTH - 1
    shuffle = torch.cat((shuffle[shuffle != last], torch.tensor([last])))
    x_BLD, first = subject.encoder_input(), last if stack.causal else 0
    arranged = [subject.sequence(start)]
    is_limited = subject.max_positions is not None or subject.max_distance is not None
    if subject.axes == 1 and not is_limited and not subject.labels:
        # Near tokens may be alike, as in buckets or a window of several positions.
        arranged += [subject.places(by * torch.arange(LENGTH), start) for by in (5, 40)]
    differences = []
    for pos in arranged:
        from_shuffled = stack(x_BLD[:, shuffle], pos)
        shuffled = stack(x_BLD, pos)[:, shuffle]
        differences.append(max_difference(from_shuffled[:, first:], shuffled[:, first:]))
    return max(differences)


def end(subject: Subject) -> str:
    """The longest position is read, and the next one is refused with a UserError that names it.

    Without a longest position, the millionth is read.
    """
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
    refusal = user_error_of(partial(stack, x_BLD, beyond))
    if refusal is None:
        raise BrokenError(
            f"it has {count} positions, so the last is {count - 1}, but {count} is accepted"
        )
    if not re.search(rf"\b{count}\b", refusal):
        raise BrokenError(f"position {count} is refused without being named: {refusal!r}")


def _furthest(subject: Subject) -> str:
    """The largest distance is read, and the next one is refused by its number."""
    furthest = subject.max_distance
    if furthest is None:
        return ""
    stack, x_B2D = stacks(subject)[0], subject.encoder_input()[:, :2]
    away = [subject._at(_two_apart(subject, by)) for by in (furthest, furthest + 1)]
    if not stack(x_B2D, away[0]).isfinite().all():
        raise BrokenError(f"the output over the distance {furthest} is not finite")
    refusal = user_error_of(partial(stack, x_B2D, away[1]))
    if refusal is None or not re.search(rf"\b{furthest + 1}\b", refusal):
        raise BrokenError(
            f"its largest distance is {furthest}, but {furthest + 1} is not refused by its number: {refusal!r}"
        )
    return f"distance {furthest} can be compared, {furthest + 1} is refused; "


def _two_apart(subject: Subject, by: int) -> Tensor:
    """Coordinates of two tokens `by` apart along all axes."""
    return torch.tensor([[0], [by]]).expand(-1, subject.axes)


def unplaced(subject: Subject) -> str:
    """A token marked as unplaced gets no vector, no rotation and no relation; other tokens do not change."""
    encoding = subject.encoding()
    mark_L = torch.arange(LENGTH) == UNPLACED
    marks = (mark_L, mark_L.expand(BATCH, -1))
    untouched = _untouched(encoding)
    for start, mark in itertools.product(subject.starts(), marks):
        pos = subject.places(torch.arange(LENGTH), start)
        marked = hook_outputs(encoding, replace(pos, unplaced=mark))
        plain = hook_outputs(encoding, pos)
        for hook, output in marked.items():
            where = f"{hook} at an unplaced token, from position {start} on"
            placed = f"{hook} next to an unplaced token"
            unplaced_query, placed_query = output[:, :, UNPLACED], output[:, :, PLACED]
            expected = plain[hook][:, :, PLACED]
            if hook in TOKEN_HOOKS:
                check_close(unplaced_query, untouched[hook][:, :, UNPLACED], EXACT, where)
                check_close(placed_query, expected, EXACT, placed)
            else:
                _check_zero(unplaced_query, f"{where}, as query")
                _check_zero(output[:, :, :, UNPLACED], f"{where}, as key")
                pairs = placed_query[:, :, :, PLACED]
                check_close(pairs, expected[:, :, :, PLACED], EXACT, placed)
    return "marked for all rows and row by row"


def _untouched(encoding: Encoding) -> dict[str, Tensor]:
    """The vectors that an encoding without hooks leaves."""
    inputs = HookInputs.random(encoding.site, Positions.sequence(LENGTH))
    x_B1LD = inputs.x.unsqueeze(1)
    return dict(zip(TOKEN_HOOKS, (x_B1LD, x_B1LD, inputs.q, inputs.k), strict=True))


def _check_zero(values: Tensor, what: str) -> None:
    check_close(values, torch.zeros_like(values), EXACT, what)


def fractions(subject: Subject) -> str:
    """Fractional positions are read without rounding, or refused if the class says `integer_only`."""
    encoding = subject.encoding()
    integers = subject.places(torch.arange(LENGTH))
    # The last position is fractional too: some encodings depend on it alone.
    fractional = replace(integers, coordinates=integers.coordinates * 1.25)
    if _same(encoding, integers, replace(integers, coordinates=integers.coordinates * 2)):
        raise SkippedError("it uses no positions")
    try:
        hook_outputs(encoding, fractional)
    except (UserError, IndexError, TypeError, RuntimeError) as error:
        if subject.claims("integer_only"):
            return "the position 1.25 is refused, as claimed"
        raise SkippedError(
            f"the position 1.25 raises {type(error).__name__}: say integer_only = True, and refuse it with a UserError"
        ) from error
    if subject.claims("integer_only"):
        raise BrokenError(
            "it says integer_only = True, but accepts the position 1.25; refuse it with a UserError, or "
            "claim False"
        )
    for rounding in (torch.floor, torch.round, torch.ceil):
        if _same(
            encoding, fractional, replace(fractional, coordinates=rounding(fractional.coordinates))
        ):
            raise BrokenError(
                "fractional positions are rounded; say integer_only = True and refuse them"
            )
    _check_slope_of_places(encoding, fractional)
    return "the position 1.25 differs from 1 and 2"


def _same(encoding: Encoding, first: Positions, second: Positions) -> bool:
    """Whether two sets of positions give equal results."""
    others = hook_outputs(encoding, second)
    results = hook_outputs(encoding, first).items()
    return all(torch.equal(answer, others[hook]) for hook, answer in results)


def _check_slope_of_places(encoding: Encoding, between: Positions) -> None:
    """Gradients with respect to positions are finite, also between a token and itself."""
    coordinates = between.coordinates.double().requires_grad_()
    pos = replace(between, coordinates=coordinates)
    outputs = call_hooks(encoding, HookInputs.random(encoding.site, pos))
    total = torch.stack([output.sum() for output in outputs.values()]).sum()
    if not total.requires_grad:
        return
    (gradient,) = torch.autograd.grad(total, coordinates, allow_unused=True)
    if gradient is not None and not gradient.isfinite().all():
        raise BrokenError("the gradient with respect to positions is not finite at a distance of 0")


def line(subject: Subject) -> str:
    """An encoding for one axis and two gives an image of 1 x n what it gives a sequence of n."""
    if not {1, 2} <= set(subject.encoding().axes):
        raise SkippedError("it does not take both one axis and two")
    x_BLD = subject.encoder_input()
    for stack in stacks(subject):
        grid = stack(x_BLD, Positions.grid(1, LENGTH))
        sequence = stack(x_BLD, Positions.sequence(LENGTH))
        check_close(grid, sequence, EXACT, f"output of {stack.name} for a grid of 1 x {LENGTH}")
    return f"1 x {LENGTH}"


# Forms by distance ---------------------------------------------------------------------------------------------------


def distance_forms(subject: Subject) -> str:
    """`distance_vectors`, `affine_bias` and `bias_slopes` match `terms`, `values` and `bias`, with equal gradients."""
    if subject.axes != 1 or subject.labels:
        raise SkippedError("it has no distances on one axis")
    compared = dict[str, None]()
    for start in subject.starts():
        encoding, k_pos = subject.encoding(), subject.sequence(start)
        q_pos = k_pos.slice(2, 5)
        inputs = HookInputs.random(encoding.site, q_pos, k_pos).with_weights()
        results = _distance_results(encoding, inputs, q_pos, k_pos)
        if not results:
            raise SkippedError("it has no distance form")
        expected = call_hooks(encoding, inputs)
        for hook, answer in results.items():
            where = f"in distance form, from position {start} on"
            check_close(answer, expected[hook], EXACT, f"{hook} {where}")
            slopes = _gradients(encoding, expected[hook])
            for name, gradient in _gradients(encoding, answer).items():
                check_close(
                    gradient, slopes[name], EXACT, f"gradient of {name} through {hook} {where}"
                )
        compared |= dict.fromkeys(results)
    return " and ".join(compared)


def _distance_results(
    encoding: Encoding, inputs: HookInputs, q_pos: Positions, k_pos: Positions
) -> dict[str, Tensor]:
    """The result of each hook in its distance form."""
    ahead_QK = distance(q_pos, k_pos)
    first, last = int(ahead_QK.min()), int(ahead_QK.max())
    results = dict[str, Tensor | None]()
    vectors = encoding.distance_vectors(first, last)
    if vectors is not None and "terms" in encoding.hooks:
        terms = vectors.terms(inputs.q, inputs.k, ahead_QK)
        results["terms"] = terms.masked_fill(ahead_QK > 0, 0.0) if encoding.site.causal else terms
    if vectors is not None and "values" in encoding.hooks:
        assert inputs.weights is not None
        results["values"] = vectors.weighted_sum(inputs.weights, ahead_QK)
    lines = encoding.affine_bias(q_pos, first, last) if "bias" in encoding.hooks else None
    if lines is not None:
        bias_HQK = skew(lines.materialized(q_pos.length), k_pos.length)
        results["bias"] = bias_HQK.expand(*inputs.q.shape[:3], LENGTH)
    bias_slopes = encoding.bias_slopes(ahead_QK.device) if "bias" in encoding.hooks else None
    if bias_slopes is not None:
        bias_HQK = -bias_slopes.to(inputs.q.dtype).view(-1, 1, 1) * ahead_QK.abs()
        results["bias"] = bias_HQK.expand(*inputs.q.shape[:3], LENGTH)
    return {hook: answer for hook, answer in results.items() if answer is not None}


def _gradients(encoding: Encoding, answer: Tensor) -> dict[str, Tensor]:
    """The gradients of the parameters, by name."""
    named = {name: each for name, each in encoding.named_parameters() if each.requires_grad}
    if not answer.requires_grad:
        return {name: torch.zeros_like(each) for name, each in named.items()}
    gradients = torch.autograd.grad(
        answer,
        list(named.values()),
        noise("towards", *answer.shape),
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(named, gradients, strict=True))
