"""A model of whoever built it, as something that laws can ask: token ids or an image in, scores out.

What a law allows is not guessed: it is a few times what rounding does to this very model, which is how far it is in
float32 from itself in float64; or, where it does not compute in float64, from itself with weights that are off by half
a digit of float32.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.laws.checks import SkippedError, apart, near
from jarilab.laws.ways import IMAGE, READ, WRITTEN, scores_of, way_of
from jarilab.nn.layers import TokenEmbedding

ROWS, LENGTH, ANSWER = 3, 11, 5
FIRST_ID = 5
"""Ids below are mostly special tokens, which a model may treat in its own way."""
ALLOWED = 16
"""What a law allows, in roundings of this model."""
SEED = 7


class WholeModel:
    """What laws ask of a model. Raises UserError for one that reads neither ids nor images.

    vocab_size: how many ids it reads; needed for one without a configuration or a table of them. image: the shape
    `(C, H, W)` that it reads, where its configuration does not say. causal: no token of what it reads may see a later
    one; needed for one that writes without a cache.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        vocab_size: int | None = None,
        image: tuple[int, int, int] | None = None,
        causal: bool = False,
    ):
        _check_forward(model)
        self._told_causal = causal
        self._given = model
        self.config: Any = getattr(model, "config", None)
        self.way = way_of(model, images=image is not None)
        self.reads_images = IMAGE in self.way.takes
        read = getattr(model, "main_input_name", None)
        if read not in (None, READ, IMAGE):
            raise UserError(
                f"{type(model).__name__} reads {read}; laws of whole models are for those that read ids or images"
            )
        self._image = image
        self._vocabulary = vocab_size
        if not self.reads_images:
            self._vocabulary = self._count_ids() if vocab_size is None else vocab_size
            if self._vocabulary <= FIRST_ID:
                raise UserError(
                    f"laws draw ids from {FIRST_ID} on, since those below are often special: expected a vocabulary of "
                    f"more than {FIRST_ID}, got {self._vocabulary}; make the model with a larger one"
                )
        elif image is not None and min(image) < 1:
            raise UserError(f"expected image=(C, H, W) of 1 or more each, got {image}")

    @cached_property
    def model(self) -> nn.Module:
        """A copy in float32, in evaluation."""
        return copy.deepcopy(self._given).eval().cpu().float()

    @cached_property
    def rounding(self) -> float:
        """What rounding does to its scores, relative to the largest."""
        scores = self.ask(self.inputs)
        other = copy.deepcopy(self.model)
        try:
            exact = scores_of(self._call(other.double(), self.inputs))
        except RuntimeError:  # a part of it is float32 whatever it is told
            exact = scores_of(self._call(_off_by_a_digit(other.float()), self.inputs))
        off = apart(scores, exact)
        return off / max(1.0, float(scores.abs().max()))

    def near(self, found: Tensor, expected: Tensor, what: str) -> str:
        """What was compared. Raises BrokenError."""
        allowed = ALLOWED * self.rounding
        off = near(found, expected, allowed, what)
        return f"off by {off:.1g}, allowed {allowed:.1g}"

    # What goes in --------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """A batch without padding."""
        drawn = torch.Generator().manual_seed(SEED)
        if self.reads_images:
            shape = self._image or self._configured_image()
            return {IMAGE: torch.randn(ROWS, *shape, generator=drawn)}
        assert self._vocabulary is not None
        given = {READ: _ids(LENGTH, self._vocabulary, drawn)}
        if self.writes:
            given[WRITTEN] = _ids(ANSWER, self._count_written(given), drawn)
        return given

    def ids(self) -> Int[Tensor, "B L"]:
        """Raises SkippedError for a model of images."""
        if self.reads_images:
            raise SkippedError("it reads images")
        return self.inputs[READ]

    def takes(self, name: str) -> None:
        """Raises SkippedError where the model has no such argument."""
        if name not in self.way.takes:
            raise SkippedError(f"it takes no {name}")

    def steps(self) -> None:
        """Raises SkippedError where steps with a cache are meant to be no full forward."""
        if self.way.steps_differ is not None:
            raise SkippedError(self.way.steps_differ)

    @property
    def writes(self) -> bool:
        """Whether it is an encoder and a decoder."""
        return WRITTEN in self.way.takes

    @cached_property
    def causal(self) -> bool:
        """Whether it writes, token by token, what it reads: it keeps a cache when it is asked to."""
        if self.reads_images or self.writes or "past_key_values" not in self.way.takes:
            return False
        return (
            getattr(self._outputs(self.inputs, use_cache=True), "past_key_values", None) is not None
        )

    def needs_causal(self) -> None:
        """Raises SkippedError."""
        if not self.causal:
            raise SkippedError("it reads whole inputs, and keeps no cache")

    def written(self) -> str:
        """The name of what it writes, token by token. Raises SkippedError."""
        if self.writes:
            return WRITTEN
        if self.causal or self._told_causal:
            return READ
        raise SkippedError(
            "it keeps no cache, so it is taken to read whole inputs; causal=True says that it may not"
        )

    @property
    def longest(self) -> int | None:
        """The positions that it declares."""
        return self.way.longest

    def at(self, first: int) -> dict[str, Tensor]:
        """The places of all that it reads and writes, from `first` on."""
        names = {READ: "position_ids", WRITTEN: "decoder_position_ids"}
        return {
            names[name]: torch.arange(first, first + ids.shape[1]).expand(len(ids), -1)
            for name, ids in self.inputs.items()
            if names[name] in self.way.takes
        }

    def positions(self, mask: Bool[Tensor, "B L"]) -> dict[str, Any]:
        """As generation makes them: the first token is at 0, wherever padding is. Nothing where the model has no
        argument for them, or counts by itself."""
        if not self.causal or "position_ids" not in self.way.takes:
            return {}
        return {"position_ids": (mask.long().cumsum(-1) - 1).clamp_min(0)}

    # What comes out ------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises UserError where it cannot be asked at all."""
        self._asked(self.inputs)

    def _asked(self, inputs: dict[str, Tensor]) -> Tensor:
        """Its scores. Raises UserError for whatever it raises."""
        try:
            return self.ask(inputs)
        except UserError:
            raise
        except Exception as error:
            shapes = ", ".join(
                f"{self.way.spelled(name)}={tuple(each.shape)}" for name, each in inputs.items()
            )
            first = str(error).partition("\n")[0]
            raise UserError(
                f"{type(self._given).__name__} could not be asked for anything by model({shapes}): "
                f"{type(error).__name__}: {first[:200]}; wrap it in a module whose forward reads that, or give "
                "vocab_size= or image= as it expects them"
            ) from None

    @torch.no_grad()
    def ask(self, inputs: dict[str, Tensor], **rest: Any) -> Float[Tensor, "B *L V"]:
        """The scores, or the hidden state where it has no head."""
        return scores_of(self._outputs(inputs, **rest))

    @torch.no_grad()
    def step(self, inputs: dict[str, Tensor], cache: Any, **rest: Any) -> tuple[Tensor, Any]:
        """Scores and the cache after them. Raises SkippedError where it gives none."""
        output = self._outputs(inputs, past_key_values=cache, use_cache=True, **rest)
        kept = getattr(output, "past_key_values", None)
        if kept is None:
            raise SkippedError("it gives no cache")
        return scores_of(output), kept

    def of_ids(self, ids: Int[Tensor, "B L"], rows: slice = slice(None), **rest: Any) -> Tensor:
        """The scores of other ids, beside what else the rows read."""
        return self.ask(self.beside(ids, rows), **rest)

    def beside(self, ids: Int[Tensor, "B L"], rows: slice = slice(None)) -> dict[str, Tensor]:
        """Ids, and what else the rows read."""
        return {name: each[rows] for name, each in self.inputs.items()} | {READ: ids}

    @contextmanager
    def as_copy(self) -> Iterator[nn.Module]:
        """Inside the block another copy is asked."""
        kept = self.model
        self.__dict__["model"] = copy.deepcopy(kept)
        try:
            yield self.model
        finally:
            self.__dict__["model"] = kept

    def _outputs(self, inputs: dict[str, Tensor], **rest: Any) -> Any:
        return self._call(self.model, inputs, **rest)

    @torch.no_grad()
    def _call(self, model: nn.Module, inputs: dict[str, Tensor], **rest: Any) -> Any:
        kind = next((each.dtype for each in model.parameters()), torch.float32)
        given = {
            name: each.to(kind) if each.is_floating_point() else each
            for name, each in inputs.items()
        }
        return self.way.call(model, given | rest)

    def _count_written(self, given: dict[str, Tensor]) -> int:
        """How many ids it writes: those that it scores, where no configuration says that it is one vocabulary."""
        assert self._vocabulary is not None
        if hasattr(self.config, "vocab_size"):
            return self._vocabulary
        first = given[READ].new_full((ROWS, ANSWER), FIRST_ID)
        scored = self._asked(given | {WRITTEN: first}).shape[-1]
        return max(FIRST_ID + 1, min(self._vocabulary, scored))

    def _count_ids(self) -> int:
        count = getattr(self.config, "vocab_size", None)
        tables = [
            each
            for each in self._given.modules()
            if isinstance(each, nn.Embedding | TokenEmbedding)
        ]
        if count is None and tables:
            count = len(tables[0].weight)
        if count is None:
            raise UserError(
                f"{type(self._given).__name__} has no table of ids and no configuration that says how many it reads; "
                "give vocab_size=, or image=(C, H, W) for a model of images"
            )
        return int(count)

    def _configured_image(self) -> tuple[int, int, int]:
        size = getattr(self.config, "image_size", None)
        if size is None:
            raise UserError(
                f"the configuration of {type(self._given).__name__} does not say which images it reads; give "
                "image=(C, H, W)"
            )
        height, width = (size, size) if isinstance(size, int) else size
        return getattr(self.config, "num_channels", 3), height, width


def _check_forward(model: Any) -> None:
    """Raises UserError for what is no model, and for one whose forward reads nothing."""
    forward = getattr(type(model), "forward", nn.Module.forward)
    if forward is nn.Module.forward or not inspect.signature(model.forward).parameters:
        raise UserError(
            f"{type(model).__name__} has no forward that reads anything: expected a torch.nn.Module that reads token "
            "ids or images"
        )


def _ids(length: int, vocab_size: int, drawn: torch.Generator) -> Int[Tensor, "B L"]:
    return torch.randint(FIRST_ID, vocab_size, (ROWS, length), generator=drawn)


def _off_by_a_digit(model: nn.Module) -> nn.Module:
    """The model with each weight off by half the last digit of float32, more or less."""
    drawn = torch.Generator().manual_seed(SEED)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=drawn)
        parameter.data *= 1 + noise * torch.finfo(torch.float32).eps / 2
    return model
