"""One way to tell a person what went wrong: what was expected, what was got, what to do."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class UserError(ValueError):
    """A mistake that the person at the keyboard can mend. The command line prints it alone and exits 2.

    print_on_this_rank: this one of several processes says it, since the one that usually speaks may be gone.
    """

    print_on_this_rank = False


NAME_SIMILARITY = 0.65
"""How alike two names are, from 0 to 1, where one may be a slip of the other. `rope` and `none` share half."""


def closest_match(name: str, choices: Iterable[str]) -> str | None:
    """The choice that `name` was most likely meant to be, or None if nothing comes near. Case is no difference, and
    `d_model` is meant by `model.d_model`."""
    choices = list(choices)
    within = [choice for choice in choices if choice.rpartition(".")[2] == name]
    if within:
        return within[0]
    spelled = {choice.lower(): choice for choice in choices}
    cutoff = NAME_SIMILARITY if len(name) > 2 else 0.5  # `t6` and `t5` share half
    matches = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=cutoff)
    return spelled[matches[0]] if matches else None


def unknown(kind: str, name: str, choices: Iterable[str], also: Iterable[str] = ()) -> UserError:
    """The error for a name nobody registered: `unknown encoding 'rotery'; did you mean 'rotary'? Known: ...`.

    also: what may be meant too, without being listed."""
    known = sorted(choices)
    match = closest_match(name, [*known, *also])
    guess = f" did you mean {match!r}?" if match else ""
    return UserError(f"unknown {kind} {name!r};{guess} Known: {', '.join(known) or 'nothing'}")


DISTRIBUTIONS = {
    "PIL": "pillow",
    "prometheus_client": "prometheus-client",
    "sklearn": "scikit-learn",
}
"""What an index calls a package, where that is not what it is imported as."""


def import_optional(module: str, extra: str) -> ModuleType:
    """A module of a library that only some uses need, imported when used. Raises UserError naming the library and the
    extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        library = DISTRIBUTIONS.get(package, package)
        raise UserError(
            f"this needs the package {library}; pip install 'jarilab[{extra}]'"
        ) from None
