"""What each method should answer about each head, written down before any method ran.

A method has its own right answer: ablation by the mean is right to say that a constant does not matter, and zero
ablation is right to say that a head with a backup does not. The numbers in comments are changes of the loss in nats.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from jarilab.inspect.study.roles import NO_PATTERN

UP, DOWN, NO = "+", "-", "no"
"""The head matters for the answer, it works against the answer, or neither."""
UNDEFINED = None
"""The method has no answer here that follows from the circuit alone."""
FREE = (NO_PATTERN, "uniform")
"""Roles of heads with random weights, some of which are so small that their attention is nearly even.

Where the residual stream holds tokens alone or nearly so, they may attend by content alone: see `roles_of`.
"""

Sign = str | None


@dataclass(frozen=True)
class Answers:
    """Right answers about one head.

    roles: each of these names is right; `{}` stands for the number of tokens back that was drawn. zero to resample: the
    total effect of ablation. direct: of zero ablation, with later parts at their clean outputs. denoising, noising: of
    activation patching, measured by the answer's logit less the mean logit; the same with `_difference` by the logit
    difference of the two answers. contribution: direct contribution to the answer's logit. attribution: attribution
    patching.
    """

    roles: tuple[str, ...]
    zero: Sign
    mean: Sign
    mean_by_position: Sign
    resample: Sign
    direct: Sign
    denoising: Sign
    noising: Sign
    denoising_difference: Sign
    noising_difference: Sign
    contribution: Sign
    attribution: Sign


METHODS = tuple(field.name for field in fields(Answers) if field.name != "roles")


def _answers(
    roles: str | tuple[str, ...],
    ablation: tuple[Sign, ...],
    patching: tuple[Sign, ...],
    contribution: Sign,
    attribution: Sign,
) -> Answers:
    names = (roles,) if isinstance(roles, str) else roles
    return Answers(names, *(*ablation, *patching, contribution, attribution))


def _all(roles: str | tuple[str, ...], sign: Sign) -> Answers:
    """All methods agree."""
    return _answers(roles, (sign,) * 5, (sign,) * 4, sign, sign)


def _through_others(roles: str | tuple[str, ...], attribution: Sign) -> Answers:
    """A head whose output only later heads read: no direct effect, no direct contribution."""
    return _answers(roles, (UP, UP, UP, UP, NO), (UP,) * 4, NO, attribution)


NOISE = _all(FREE, NO)
UNPATCHED = (UNDEFINED,) * 4
"""Of tasks in which no change of the input changes the answer."""
NOISE_UNPATCHED = _answers(FREE, (NO,) * 5, UNPATCHED, NO, UNDEFINED)
INDUCTION = {
    # The key's gradient is small where the softmax is saturated; how small follows from the strength of the scores.
    "previous": _through_others("previous", UNDEFINED),
    "induction": _all("induction", UP),
    "noise": NOISE,
}

EXPECTED: dict[str, dict[str, Answers]] = {
    "previous token": {"previous": _all("previous", UP), "noise": NOISE},
    "fixed offset, sinusoids": {"offset": _all("offset -{}", UP), "noise": NOISE},
    "fixed offset, rotary": {"offset": _all("offset -{}", UP), "noise": NOISE},
    "same token": {"same token": _all("same token", UP), "noise": NOISE},
    "copy by cross-attention": {"copy": _all("offset 0", UP), "noise": NOISE},
    "reverse": {"reverse": _all("position alone", UP), "noise": NOISE},
    "largest so far": {"largest": _all("content alone", UP), "noise": NOISE},
    "uniform head that counts": {"count": _all(FREE, UP), "noise": NOISE},
    "constant from the sink": {
        # Its output is the same everywhere, so that a mean or another row's output changes nothing.
        "sink": _answers("first token", (UP, NO, NO, NO, UP), UNPATCHED, UP, UNDEFINED),
        "noise": NOISE_UNPATCHED,
    },
    "decoy that writes nothing": {
        "decoy": _all("previous", NO),
        "unread decoy": _all("previous", NO),
        "offset": _all("offset -{}", UP),
        "noise": NOISE,
    },
    "OR of two heads": {
        # One arm is enough: removing one changes nothing, but another row's output adds a second answer. The direct
        # effect keeps what the feed-forward network takes off for two arms. One clean arm restores the answer, one
        # corrupt arm does not destroy it; the rival's logit hides both.
        "arm": _answers("previous", (NO, NO, NO, UP, UP), (UP, NO, UP, UP), UP, UP),
        "noise": NOISE,
    },
    "AND of two heads": {
        # The feed-forward network stands between the arms and the logits.
        "arm": _answers("previous", (UP, UP, UP, UP, NO), (NO, UP, UP, UP), NO, NO),
        "noise": NOISE,
    },
    "negative head": {
        "positive": _all("previous", UP),
        "negative": _all("previous", DOWN),
        "noise": NOISE,
    },
    "delimiter": {"delimiter": _all("delimiter", UP), "noise": NOISE},
    "syntactic relation": {"relation": _all("relation nsubj (key to query)", UP), "noise": NOISE},
    "carry of a sum": {
        # The feed-forward network stands between the heads and the logits, and both its ramps are flat at the inputs.
        # The two inputs of a pair have the same digits at the place, so that the digit is no part of the difference.
        "digit": _answers("offset -{}", (UP, UP, UP, UP, NO), (NO,) * 4, NO, NO),
        "carry": _answers("position alone", (UP, UP, UP, UP, NO), (UP,) * 4, NO, NO),
        "noise": NOISE,
    },
    "grouped queries": {"previous": _all("previous", UP), "noise": NOISE},
    "noise only": {"noise": NOISE_UNPATCHED},
    "induction, K-composition": INDUCTION,
    "two back, V-composition": {
        "first": _through_others("previous", UP),
        "second": _all("previous", UP),
        "noise": NOISE,
    },
    "induction, Q-composition": {
        "same token": _through_others("same token", UNDEFINED),
        "induction": _all("induction", UP),
        "noise": NOISE,
    },
    "sort": {
        # What the sorter attends to depends on the other tokens and on its position: this has no name.
        "counter": _through_others(FREE, UNDEFINED),
        "sorter": _all(NO_PATTERN, UP),
        "noise": NOISE,
    },
    "offset decoy of induction": {**INDUCTION, "decoy": _all("offset -7", NO)},
    "backup head": {
        # Zero ablation wakes the backup. A mean or another row's output keeps the output filled, and the backup asleep.
        "primary": _answers("previous", (NO, UP, UP, UP, UP), (UP,) * 4, UP, UP),
        "backup": _all("first token", NO),
        "noise": NOISE,
    },
}

PAIRS: dict[str, dict[tuple[str, str], Sign]] = {
    "OR of two heads": {("arm", "arm"): UP},
    "backup head": {("backup", "primary"): UP},
    # The second of two that are both needed costs nothing more.
    "AND of two heads": {("arm", "arm"): DOWN},
    "negative head": {("negative", "positive"): DOWN},
    "induction, K-composition": {("induction", "previous"): DOWN},
    "induction, Q-composition": {("induction", "same token"): DOWN},
    "offset decoy of induction": {("induction", "previous"): DOWN},
    "two back, V-composition": {("first", "second"): DOWN},
    "carry of a sum": {("carry", "digit"): DOWN},
    # Without counts all tokens tie, and the noise of any other head decides.
    "sort": {("counter", "sorter"): DOWN, ("counter", "noise"): UNDEFINED},
}
"""The sign of the excess of a pair of heads, zero ablation of both less the two alone, by sorted names; others: no."""

COMPOSITION: dict[str, dict[tuple[str, str], str]] = {
    "induction, K-composition": {("previous", "induction"): "k"},
    "offset decoy of induction": {("previous", "induction"): "k"},
    "induction, Q-composition": {("same token", "induction"): "q"},
    "two back, V-composition": {("first", "second"): "v"},
    "backup head": {("primary", "backup"): "q"},
}
"""What a later head reads of an earlier one: its queries, keys or values; other pairs of designed heads: nothing.

The sorter of `sort` reads what a feed-forward network makes of the counts, so that its weights read nothing of them.

Pairs with heads of random weights are not judged. These use the N dimensions of the circuit alone, so that their
composition is about sqrt(D / N) times that of unrelated heads of D dimensions.
"""


def roles_of(family: str, head: str, facts: dict[str, int], *, rotary: bool) -> tuple[str, ...]:
    """The right roles of a head. facts: that were drawn for the circuit."""
    names = tuple(name.format(facts.get("back", "")) for name in EXPECTED[family][head].roles)
    # The positions of `sort` are one number.
    has_tokens_alone = rotary or family == "sort"
    return (*names, "content alone") if head == "noise" and has_tokens_alone else names
