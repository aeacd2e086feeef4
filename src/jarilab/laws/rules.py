"""The laws by name, in the order in which they are tried. Each returns what it has compared, or raises."""

from __future__ import annotations

from collections.abc import Callable

from jarilab.laws import (
    beside,
    computing_laws,
    distance_laws,
    formula_laws,
    instance_laws,
    model_laws,
    position_laws,
    precision_laws,
)
from jarilab.laws.subject import Subject

Law = Callable[[Subject], str]

FORMULA = "agrees with its formula"

LAWS: dict[str, Law] = {
    "training and evaluation agree": precision_laws.modes,
    "calls leave nothing behind": instance_laws.repeats,
    "instances share nothing": instance_laws.independence,
    FORMULA: formula_laws.formula,
    "a place means the same beside any others": beside.beside,
    "every kernel equals the definition": computing_laws.kernels,
    "a query without a key gives zeros": computing_laws.rows_without_keys,
    "hooks by distance are as claimed": distance_laws.claimed,
    "every precision hears the same": precision_laws.precisions,
    "gradients are slopes": precision_laws.slopes,
    "cached decoding equals the full forward": model_laws.steps,
    "padding changes no real token": model_laws.padding,
    "packed documents equal separate ones": model_laws.packing,
    "shift invariance is as claimed": position_laws.shift,
    "rotation keeps norms": computing_laws.norms,
    "order is heard": position_laws.order,
    "the end is announced": position_laws.end,
    "places between whole ones are as claimed": position_laws.fractions,
    "round trips change nothing": instance_laws.round_trips,
    "every parameter learns": model_laws.gradients,
    "tokens without a place have none": position_laws.unplaced,
    "samples do not mix": model_laws.batch,
    "a grid of one row is a line": position_laws.line,
    "initial values are those of the seed": model_laws.initial_values,
}

GROUNDS = tuple(LAWS)[:3]
"""Whoever breaks one of these breaks others by chance: what those say is its echo."""
