"""The ways in which models are called, so that laws ask all of them by the names that transformers has.

`input_ids` (or `pixel_values`) is what a model reads, `decoder_input_ids` what it writes. Beside them: `attention_mask`
`(B, K)`, of all tokens so far; `position_ids` and `decoder_position_ids` `(B, L)`; with `use_cache` the output has
`past_key_values`, which go into the next step.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.encodings.base import Encoding
from jarilab.models.base import Cache, Generates, State
from jarilab.positions.coordinates import Positions, Tokens

READ, WRITTEN, IMAGE = "input_ids", "decoder_input_ids", "pixel_values"
BESIDE = ("mask", "position", "length", "segment", "type")
"""What the name of an argument has that says something about the ids before it."""


class Way(Protocol):
    """How one model is called."""

    takes: set[str]
    """The arguments that it has an answer to."""
    longest: int | None
    """The positions that it declares."""
    steps_differ: str | None
    """Why steps with a cache are no full forward, where that is meant to be so."""

    def call(self, model: nn.Module, given: dict[str, Any]) -> Any:
        """What this model, or a copy of it, says."""
        ...

    def spelled(self, name: str) -> str:
        """The model's own word for an argument."""
        ...

    def packed(self, document: Int[Tensor, "1 L"], places: Int[Tensor, "1 L"]) -> dict[str, Any]:
        """What keeps documents in one row apart."""
        ...

    def knows_places(self, model: nn.Module) -> bool:
        """Whether it has something of its own for each place."""
        ...


class ByName:
    """By the names of its forward; a first argument of another name is what it reads, and of two that must be given the
    second is what it writes."""

    steps_differ: str | None = None

    def __init__(self, model: nn.Module, *, images: bool):
        parameters = inspect.signature(model.forward).parameters
        names = list(parameters)
        read = IMAGE if images or IMAGE in names else READ
        self._own = {} if read in names else {read: names[0]}
        needed = [name for name, each in parameters.items() if _must_be_given(each)]
        if self._own and read == READ and len(needed) == 2 and not _is_beside(needed[1]):
            self._own[WRITTEN] = needed[1]
        self.takes = {*names, *self._own} - set(self._own.values())
        config: Any = getattr(model, "config", None)
        declared = ("max_position_embeddings", "n_positions", "max_seq_len")
        found = [getattr(config, name, None) for name in declared]
        self.longest = next((each for each in found if isinstance(each, int)), None)

    def call(self, model: nn.Module, given: dict[str, Any]) -> Any:
        return model(**{self.spelled(name): each for name, each in given.items()})

    def spelled(self, name: str) -> str:
        return self._own.get(name, name)

    def packed(self, document: Int[Tensor, "1 L"], places: Int[Tensor, "1 L"]) -> dict[str, Any]:
        """By a mask of pairs."""
        allowed = (document.mT == document).tril()
        lowest = torch.finfo(torch.float32).min
        pairs = torch.zeros(allowed.shape).masked_fill(~allowed, lowest)
        return {"attention_mask": pairs[None, None], "position_ids": places}

    def knows_places(self, model: nn.Module) -> bool:
        """Whether a table has a row for each declared position, and perhaps some more."""
        longest = self.longest
        if longest is None:
            return False
        tensors = [*model.parameters(), *model.buffers()]
        tables = [len(each) for each in tensors if each.ndim == 2]
        return any(longest <= rows <= longest + 4 for rows in tables)


@dataclass(frozen=True, eq=False)
class Answer:
    """What a model of jari says, as transformers puts it."""

    logits: Float[Tensor, "B L V"]
    past_key_values: Held | None


@dataclass(frozen=True, eq=False)
class Held:
    """What a model of jari keeps between two steps. length: how many tokens it has read."""

    state: State
    cache: Cache
    length: int


class ByTokens:
    """As models of jari are: `Tokens` go in, with their places, of one sequence or of source and target. One that
    `Generates` is stepped by its state and its cache."""

    def __init__(self, model: nn.Module):
        self._own: dict[str, str] = dict(zip((READ, WRITTEN), _of_tokens(model), strict=False))
        self.takes = {*self._own, "attention_mask", "position_ids"}
        if self._writes:
            self.takes.add("decoder_position_ids")
        if isinstance(model, Generates):
            self.takes.add("past_key_values")
        ends = getattr(model, "max_positions", dict)().values()
        self.longest = min((end for end in ends if end is not None), default=None)
        encodings = [each for each in model.modules() if isinstance(each, Encoding)]
        self._invariant = all(each.shift_invariant for each in encodings)
        told = "its encoding goes by how many keys there are, so that steps are no full forward"
        self.steps_differ = told if any(each.depends_on_length for each in encodings) else None

    @staticmethod
    def suits(model: nn.Module) -> bool:
        """Whether its forward takes Tokens, first of all."""
        first = next(iter(inspect.signature(model.forward).parameters), None)
        return first in _of_tokens(model)

    @property
    def _writes(self) -> bool:
        return WRITTEN in self._own

    def call(self, model: nn.Module, given: dict[str, Any]) -> Any:
        if given.get("use_cache"):
            return self._stepped(model, given) if isinstance(model, Generates) else None
        sequences = [self._read(given)]
        if self._writes:
            sequences.append(self._written(given, 0))
        return model(*sequences)

    def spelled(self, name: str) -> str:
        return self._own.get(name, name)

    def packed(self, document: Int[Tensor, "1 L"], places: Int[Tensor, "1 L"]) -> dict[str, Any]:
        """By the number of each token's document."""
        return {"documents": document, "position_ids": places}

    def knows_places(self, model: nn.Module) -> bool:
        """What its encodings claim."""
        return not self._invariant

    def _stepped(self, model: Generates, given: dict[str, Any]) -> Answer:
        held: Held | None = given.get("past_key_values")
        start = 0 if held is None else held.length
        new = self._written(given, start) if self._writes else self._read(given, start)
        length = start + new.positions.length
        if held is None:
            source = self._read(given) if self._writes else None
            if new.keep is not None:  # what is padded is a prompt
                source, new = _before_last(new)
            held = Held(model.start(source), model.new_cache(), 0)
        scores = model.step(held.state, new.ids, new.positions, held.cache)
        return Answer(scores, replace(held, length=length))

    def _read(self, given: dict[str, Any], start: int = 0) -> Tokens:
        mask, documents = given.get("attention_mask"), given.get("documents")
        keep = None if mask is None else mask.bool()[:, start:]
        places = given.get("position_ids")
        frame = "source" if self._writes else "target"
        if places is None and keep is not None:
            places = Positions.from_mask(keep).index()
        read = _tokens(given[READ], start, frame, places)
        return replace(read, keep=keep, documents=documents)

    def _written(self, given: dict[str, Any], start: int) -> Tokens:
        return _tokens(given[WRITTEN], start, "target", given.get("decoder_position_ids"))


def way_of(model: nn.Module, *, images: bool) -> Way:
    """How this model is called. images: whether it is to read them, whatever its arguments are called."""
    if not images and ByTokens.suits(model):
        return ByTokens(model)
    return ByName(model, images=images)


def scores_of(output: Any) -> Tensor:
    """What a model says: its scores, or the last hidden state. Raises UserError where it gives no tensor."""
    for name in ("logits", "last_hidden_state"):
        found = getattr(output, name, None)
        if isinstance(found, torch.Tensor):
            return found
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, torch.Tensor):
        raise UserError(
            f"expected a tensor of scores, or an output with `logits`; got {type(output).__name__}: wrap the model in "
            "a module whose forward returns its scores"
        )
    return first


def _tokens(
    ids: Int[Tensor, "B L"], start: int, frame: str, places: Int[Tensor, "B L"] | None
) -> Tokens:
    positions = Positions.sequence(ids.shape[1], start, frame=frame)
    if places is not None:
        positions = replace(positions, coordinates=places.unsqueeze(-1))
    return Tokens(ids, positions)


def _before_last(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """A prompt with its padding, and the token behind it, which is none of padding."""
    last = tokens.positions.length - 1
    keep: Bool[Tensor, "B L"] | None = tokens.keep
    assert keep is not None
    prompt = Tokens(tokens.ids[:, :last], tokens.positions.slice(0, last), keep[:, :last])
    return prompt, Tokens(tokens.ids[:, last:], tokens.positions.slice(last, last + 1))


def _of_tokens(model: nn.Module) -> list[str]:
    """The arguments of its forward that may be Tokens: those that say so, or what must be given to one that
    `Generates`, whose protocol has them."""
    parameters = inspect.signature(model.forward).parameters
    said = [name for name, each in parameters.items() if "Tokens" in str(each.annotation)]
    if said or not isinstance(model, Generates):
        return said
    return [name for name, each in parameters.items() if _must_be_given(each)]


def _must_be_given(parameter: inspect.Parameter) -> bool:
    by_place = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return by_place and parameter.default is parameter.empty


def _is_beside(name: str) -> bool:
    return any(word in name for word in BESIDE)
