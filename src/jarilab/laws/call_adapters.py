"""Adapters that let the laws call any model by the argument names of transformers.

`input_ids` (or `pixel_values`) is what a model reads, `decoder_input_ids` what it generates. `attention_mask` `(B, K)`
covers all tokens so far. `position_ids` and `decoder_position_ids` are `(B, L)`. With `use_cache` the output has
`past_key_values`, which are passed to the next step.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.encodings.base import Encoding
from jarilab.models.base import Cache, Generates, State
from jarilab.positions.coordinates import Positions, Tokens

READ, WRITTEN, IMAGE = "input_ids", "decoder_input_ids", "pixel_values"
ANNOTATING_WORDS = ("mask", "position", "length", "segment", "type")
"""Parts of the names of arguments that describe the ids of another argument."""


class NamedArgumentAdapter:
    """Calls a model by the argument names of its forward.

    A first argument of another name is what it reads. Of two required arguments the second is what it generates.

    arguments: those that it accepts, by their names in transformers. longest: the number of positions that the model
    declares; None if unknown. steps_differ: why cached steps differ from a full forward on purpose; None if they do
    not.
    """

    steps_differ: str | None = None

    def __init__(self, model: nn.Module, *, images: bool):
        parameters = inspect.signature(model.forward).parameters
        names = list(parameters)
        read = IMAGE if images or IMAGE in names else READ
        self._own = {} if read in names else {read: names[0]}
        needed = [name for name, each in parameters.items() if _must_be_given(each)]
        if (
            self._own
            and read == READ
            and len(needed) == 2
            and not any(word in needed[1] for word in ANNOTATING_WORDS)
        ):
            self._own[WRITTEN] = needed[1]
        self.arguments = {*names, *self._own} - set(self._own.values())
        config: Any = getattr(model, "config", None)
        declared = ("max_position_embeddings", "n_positions", "max_seq_len")
        lengths = [getattr(config, name, None) for name in declared]
        self.longest = next((each for each in lengths if isinstance(each, int)), None)

    def call(self, model: nn.Module, arguments: dict[str, Any]) -> Any:
        """The output of this model, or of a copy of it."""
        return model(**{self.argument_name(name): each for name, each in arguments.items()})

    def argument_name(self, name: str) -> str:
        """The model's own name of an argument."""
        return self._own.get(name, name)

    def packing_arguments(
        self, document: Int[Tensor, "1 L"], places: Int[Tensor, "1 L"]
    ) -> dict[str, Any]:
        """A mask of pairs `(1, 1, L, L)`, which is added to scores, and the position IDs: they separate documents."""
        allowed = (document.mT == document).tril()
        # As transformers: minus infinity would give NaN in a row without any key.
        lowest = torch.finfo(torch.float32).min
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, lowest)
        return {"attention_mask": mask[None, None], "position_ids": places}

    def has_absolute_positions(self, model: nn.Module) -> bool:
        """Whether a table has a row for each declared position, or up to four more."""
        longest = self.longest
        if longest is None:
            return False
        tensors = [*model.parameters(), *model.buffers()]
        tables = [len(each) for each in tensors if each.ndim == 2]
        # The tables of BART and OPT have two rows before the first position.
        return any(longest <= rows <= longest + 4 for rows in tables)


@dataclass(frozen=True, eq=False)
class ModelOutput:
    """The output of a jari model, with the names of transformers."""

    logits: Float[Tensor, "B L V"]
    past_key_values: DecodingState | None


@dataclass(frozen=True, eq=False)
class DecodingState:
    """The state of a jari model between two steps. length: the number of tokens read."""

    state: State
    cache: Cache
    length: int


class TokensAdapter:
    """Calls a jari model with `Tokens`, of one sequence or of source and target.

    A model that `Generates` is stepped with its state and its cache.
    """

    def __init__(self, model: nn.Module):
        self._own: dict[str, str] = dict(zip((READ, WRITTEN), _of_tokens(model), strict=False))
        self.arguments = {*self._own, "attention_mask", "position_ids"}
        if self._writes:
            self.arguments.add("decoder_position_ids")
        if isinstance(model, Generates):
            self.arguments.add("past_key_values")
        limits = getattr(model, "max_positions", dict)().values()
        self.longest = min((limit for limit in limits if limit is not None), default=None)
        encodings = [each for each in model.modules() if isinstance(each, Encoding)]
        self._invariant = all(each.shift_invariant for each in encodings)
        reason = (
            "its encoding depends on the number of keys, so cached steps differ from a full forward"
        )
        self.steps_differ = reason if any(each.depends_on_length for each in encodings) else None

    @staticmethod
    def suits(model: nn.Module) -> bool:
        """Whether the first argument of its forward takes Tokens."""
        first = next(iter(inspect.signature(model.forward).parameters), None)
        return first in _of_tokens(model)

    @property
    def _writes(self) -> bool:
        return WRITTEN in self._own

    def call(self, model: nn.Module, arguments: dict[str, Any]) -> Any:
        if arguments.get("use_cache"):
            return self._stepped(model, arguments) if isinstance(model, Generates) else None
        sequences = [self._read(arguments)]
        if self._writes:
            sequences.append(self._written(arguments, 0))
        return model(*sequences)

    def argument_name(self, name: str) -> str:
        return self._own.get(name, name)

    def packing_arguments(
        self, document: Int[Tensor, "1 L"], places: Int[Tensor, "1 L"]
    ) -> dict[str, Any]:
        """The document of each token."""
        return {"documents": document, "position_ids": places}

    def has_absolute_positions(self, model: nn.Module) -> bool:
        """What its encodings claim."""
        return not self._invariant

    def _stepped(self, model: Generates, arguments: dict[str, Any]) -> ModelOutput:
        decoding: DecodingState | None = arguments.get("past_key_values")
        start = 0 if decoding is None else decoding.length
        piece = self._written(arguments, start) if self._writes else self._read(arguments, start)
        length = start + piece.positions.length
        if decoding is None:
            source = self._read(arguments) if self._writes else None
            if piece.keep is not None:  # padded tokens are a prompt
                source, piece = _before_last(piece)
            decoding = DecodingState(model.start(source), model.new_cache(), 0)
        scores = model.step(decoding.state, piece.ids, piece.positions, decoding.cache)
        return ModelOutput(scores, replace(decoding, length=length))

    def _read(self, arguments: dict[str, Any], start: int = 0) -> Tokens:
        mask, documents = arguments.get("attention_mask"), arguments.get("documents")
        keep = None if mask is None else mask.bool()[:, start:]
        places = arguments.get("position_ids")
        frame = "source" if self._writes else "target"
        if places is None and keep is not None:
            places = Positions.from_mask(keep).index()
        tokens = _tokens(arguments[READ], start, frame, places)
        return replace(tokens, keep=keep, documents=documents)

    def _written(self, arguments: dict[str, Any], start: int) -> Tokens:
        return _tokens(arguments[WRITTEN], start, "target", arguments.get("decoder_position_ids"))


CallAdapter: TypeAlias = NamedArgumentAdapter | TokensAdapter


def call_adapter_for(model: nn.Module, *, images: bool) -> CallAdapter:
    """The adapter for a model. images: whether it reads them, whatever its arguments are called."""
    if not images and TokensAdapter.suits(model):
        return TokensAdapter(model)
    return NamedArgumentAdapter(model, images=images)


def scores_of(output: Any) -> Tensor:
    """The scores of a model's output, or its last hidden state. Raises UserError if it has no tensor."""
    for name in ("logits", "last_hidden_state"):
        value = getattr(output, name, None)
        if isinstance(value, torch.Tensor):
            return value
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
    """A padded prompt, and the token after it, which is not padding."""
    last = tokens.positions.length - 1
    keep: Bool[Tensor, "B L"] | None = tokens.keep
    assert keep is not None
    prompt = Tokens(tokens.ids[:, :last], tokens.positions.slice(0, last), keep[:, :last])
    return prompt, Tokens(tokens.ids[:, last:], tokens.positions.slice(last, last + 1))


def _of_tokens(model: nn.Module) -> list[str]:
    """The arguments of its forward that take Tokens.

    They are annotated so. For a model that `Generates`, all required arguments do, by its protocol.
    """
    parameters = inspect.signature(model.forward).parameters
    annotated = [name for name, each in parameters.items() if "Tokens" in str(each.annotation)]
    if annotated or not isinstance(model, Generates):
        return annotated
    return [name for name, each in parameters.items() if _must_be_given(each)]


def _must_be_given(parameter: inspect.Parameter) -> bool:
    by_place = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return by_place and parameter.default is parameter.empty
