"""Protocols that other packages require of a model, and the registry of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.registry import Registry
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.positions.patches import Images

registry = Registry("model", "jarilab.models")
registry.base(nn.Module)

COLDEST, HOTTEST = 0.001, 1000
"""Range of temperatures above 0. Scores divided by smaller ones may overflow."""


@runtime_checkable
class Checks(Protocol):
    """A class of models that checks its options before any data are read."""

    @staticmethod
    def check(options: Mapping[str, Any]) -> None:
        """Raises UserError for options that no model can have."""
        ...


@runtime_checkable
class State(Protocol):
    """A model that keeps encoded sources. They do not change while an answer is written."""

    def select(self, rows: Int[Tensor, " R"]) -> State:
        """Return the state of these sources in this order."""
        ...


@runtime_checkable
class Cache(Protocol):
    """A cache of the tokens read: keys and values, or the state of a recurrent cell."""

    def select(self, rows: Int[Tensor, " R"], sources: Int[Tensor, " S"] | None = None) -> None:
        """Keep these rows of hypotheses in this order, repeats allowed.

        sources: the sources to keep, as passed to the state's `select`; None to keep all.
        """
        ...


@runtime_checkable
class Generates(Protocol):
    """A model that can write token by token.

    A state of B sources takes B * W rows of tokens: row r is a hypothesis about source r // W. A language model, which
    has no source, starts from None and takes any number of rows.
    """

    def start(self, source: Tokens | None) -> State:
        """Read the source and return the state for every `step`."""
        ...

    def step(
        self, state: Any, ids: Int[Tensor, "R L"], positions: Positions, cache: Any
    ) -> Float[Tensor, "R L V"]:
        """Return the scores of the next token after each of `ids` at `positions`. Earlier tokens are in the cache."""
        ...

    def new_cache(self) -> Cache:
        """Return an empty cache for one state and its selections."""
        ...


@runtime_checkable
class ReadsImages(Protocol):
    """A model that reads images."""

    def places(self, images: Images) -> Positions:
        """Return the positions of the tokens that the model makes of images."""
        ...


@runtime_checkable
class Paints(Protocol):
    """A model that paints images of codes for captions."""

    def steps(
        self,
        captions: Int[Tensor, "B T"],
        *,
        guidance: float = 2.0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int,
    ) -> Iterator[Int[Tensor, " B"]]:
        """Yield each code of all images as soon as it is drawn."""
        ...

    def joined(self, captions: Int[Tensor, "B T"], codes: Int[Tensor, "B N"]) -> Tokens:
        """Return captions and codes as one sequence."""
        ...

    def one_sequence(self) -> nn.Module:
        """Return the same modules as a language model of words and codes."""
        ...


def check_protocol(model: type, protocol: type, task: str) -> None:
    """Raises UserError if a class of models lacks a method of a protocol. task: the task that requires it."""
    methods = [name for name, value in vars(protocol).items() if callable(value) and name[0] != "_"]
    missing = [name for name in methods if not hasattr(model, name)]
    if missing:
        what = (protocol.__doc__ or "").partition(".")[0]
        raise UserError(
            f"{task} needs {what[0].lower()}{what[1:]}, jarilab.models.base.{protocol.__name__}; {model.__name__} has "
            f"no {missing[0]}: write {' and '.join(missing)}, or use another model"
        )


def check_layers(n_layers: int) -> int:
    """Return the number of layers of a stack. Raises UserError below 1."""
    if n_layers < 1:
        raise UserError(f"a stack has 1 layer or more, got {n_layers}")
    return n_layers


def one_a_row(tokens: Tokens | None) -> Tokens:
    """Return the tokens of a model that reads each row as one sequence.

    Raises UserError for None, and for several documents packed into a row.
    """
    if tokens is None:
        raise UserError(
            "this model reads a source: expected Tokens, got None; pass jarilab.Tokens.of(ids_BK)"
        )
    if tokens.documents is not None:
        raise UserError(
            "this model reads each row as one sequence; give each document a row of its own"
        )
    return tokens


def read_from_start(target: Tokens) -> Tokens:
    """Return the target of a model that reads each row from its first token.

    Raises UserError for padding before a token, and as `one_a_row` does.
    """
    target = one_a_row(target)
    if target.keep is not None and bool((target.keep[:, 1:] & ~target.keep[:, :-1]).any()):
        raise UserError(
            "expected padding behind the tokens of the target, got some before; move it to the end"
        )
    return target


Places = Callable[[Tensor, int, Tensor], Positions]
"""Returns the positions of the tokens from an index on, given all ids `(R, L)`, that index, and the source of each row
`(R,)`.
"""


def in_order(ids: Int[Tensor, "R L"], start: int, rows: Int[Tensor, " R"]) -> Positions:
    """Return the positions 0, 1, 2, ... in the frame `target`."""
    return Positions.sequence(ids.shape[1] - start, start, frame="target", device=ids.device)
