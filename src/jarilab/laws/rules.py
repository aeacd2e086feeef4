"""The laws of encodings by name, in the order of their run. Each returns what it compared, or raises."""

from __future__ import annotations

from collections.abc import Callable

from jarilab.laws import (
    computing_laws,
    distance_laws,
    formula_laws,
    independence,
    instance_laws,
    model_laws,
    position_laws,
    precision_laws,
)
from jarilab.laws.law_subject import Subject

Law = Callable[[Subject], str]

FORMULA = "agrees with its formula"

LAWS: dict[str, Law] = {
    "training and evaluation agree": precision_laws.modes,
    "calls leave nothing behind": instance_laws.repeats,
    "instances share nothing": instance_laws.separate,
    FORMULA: formula_laws.formula,
    "a position means the same among any others": independence.same_among_others,
    "every kernel equals the definition": computing_laws.kernels,
    "a query without a key gives zeros": computing_laws.rows_without_keys,
    "hooks by distance are as claimed": distance_laws.distance_forms,
    "results agree across precisions": precision_laws.precisions,
    "gradients match finite differences": precision_laws.slopes,
    "cached decoding equals the full forward": model_laws.steps,
    "padding changes no real token": model_laws.padding,
    "packed documents equal separate ones": model_laws.packing,
    "shift invariance is as claimed": position_laws.shift,
    "rotation keeps norms": computing_laws.norms,
    "output depends on token order": position_laws.order,
    "the longest position is enforced": position_laws.end,
    "fractional positions are as claimed": position_laws.fractions,
    "round trips change nothing": instance_laws.round_trips,
    "every parameter learns": model_laws.gradients,
    "unplaced tokens get no position": position_laws.unplaced,
    "samples do not mix": model_laws.batch,
    "a grid of one row is a line": position_laws.line,
    "initial values are those of the seed": model_laws.initial_values,
}

BASIC_LAWS = tuple(LAWS)[:3]
"""If one of these is broken, later failures may be consequences of it."""
