"""What a tensor was computed from: inputs and parameters, by name."""

from __future__ import annotations

from dataclasses import dataclass

Sources = frozenset[str]
"""Names of the inputs and parameters that a tensor was computed from. Empty for constants."""

INPUT, PARAMETER, UNKNOWN, SLICE, STATE = "input ", "parameter ", "unknown ", "slice ", "state "
NOTHING: Sources = frozenset()


@dataclass(frozen=True)
class History:
    """The concatenations and the attentions that a tensor went through.

    first, last: the sources of the first and of the last tensors of concatenations. attentions: for each the outermost
    module, and its number in the forward.
    """

    first: frozenset[Sources] = frozenset()
    last: frozenset[Sources] = frozenset()
    attentions: frozenset[tuple[str, int]] = frozenset()

    def __or__(self, other: History) -> History:
        """The history of a result of two tensors."""
        if self is other:
            return self
        return History(
            self.first | other.first, self.last | other.last, self.attentions | other.attentions
        )


NO_HISTORY = History()


def union(all_sources: list[Sources], *, joins: bool = False) -> Sources:
    """Sources of a result. Parameters that are only added or multiplied to other tensors do not count."""
    if not joins:
        from_data = [sources for sources in all_sources if not are_parameters(sources)]
        all_sources = from_data or all_sources
    return frozenset().union(*all_sources)


def are_of_different_inputs(all_sources: list[Sources]) -> bool:
    """Whether some of these are of inputs that the first does not have."""
    inputs = [frozenset(filter(_is_input, sources)) for sources in all_sources]
    inputs = [names for names in inputs if names]
    return any(not names & inputs[0] for names in inputs[1:])


def _is_input(name: str) -> bool:
    return name.startswith(INPUT)


def are_parameters(sources: Sources) -> bool:
    """Whether all of them are parameters."""
    return all(name.startswith(PARAMETER) for name in sources)


def are_unknown(sources: Sources) -> bool:
    """Whether all of them are tensors that the recording did not see computed."""
    return all(name.startswith(UNKNOWN) for name in sources)
