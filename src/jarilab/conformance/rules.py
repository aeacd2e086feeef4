"""The laws by name, in the order in which they are tried. Each returns what it has compared, or raises."""

from __future__ import annotations

from collections.abc import Callable

from jarilab.conformance import computing_laws, instance_laws, model_laws, position_laws
from jarilab.conformance.subject import Subject

Law = Callable[[Subject], str]

LAWS: dict[str, Law] = {
    "agrees with its formula": computing_laws.formula,
    "every kernel equals the definition": computing_laws.kernels,
    "cached decoding equals the full forward": model_laws.steps,
    "padding changes no real token": model_laws.padding,
    "packed documents equal separate ones": model_laws.packing,
    "shift invariance is as claimed": position_laws.shift,
    "rotation keeps norms": computing_laws.norms,
    "order is heard": position_laws.order,
    "the end is announced": position_laws.end,
    "instances share nothing": instance_laws.independence,
    "round trips change nothing": instance_laws.round_trips,
    "every parameter learns": model_laws.gradients,
    "tokens without a place have none": position_laws.unplaced,
    "samples do not mix": model_laws.batch,
    "a grid of one row is a line": position_laws.line,
    "the rest starts out the same": model_laws.initial_values,
}
