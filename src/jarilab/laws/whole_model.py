"""Any PyTorch model as a subject of laws: token ids or an image in, scores out.

The tolerance of a law is a few times the rounding error of this model. That is its difference in float32 from itself in
float64. If it cannot compute in float64, it is the difference from itself with weights off by half a digit of float32.
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
from jarilab.laws.call_adapters import IMAGE, READ, WRITTEN, call_adapter_for, scores_of
from jarilab.laws.checks import SkippedError, check_close, max_difference
from jarilab.nn.sublayers import TokenEmbedding

ROWS, LENGTH, ANSWER = 3, 11, 5
FIRST_ID = 5
"""Ids below are mostly special tokens, which a model may treat in its own way."""
ALLOWED = 16
"""Tolerance of the laws, in rounding errors of the model."""
SEED = 7


class WholeModel:
    """Adapter that lets the laws call any PyTorch model.

    vocab_size: how many ids it reads; required without a configuration or an embedding. image: the shape `(C, H, W)`
    that it reads, if its configuration has none. causal: whether tokens must not see later ones; required for a model
    that generates without a cache. Raises UserError if it reads neither ids nor images.
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
        self._declared_causal = causal
        self._original = model
        self.config: Any = getattr(model, "config", None)
        self.adapter = call_adapter_for(model, images=image is not None)
        self.reads_images = IMAGE in self.adapter.arguments
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
        return copy.deepcopy(self._original).eval().cpu().float()

    @cached_property
    def rounding(self) -> float:
        """The rounding error of its scores, relative to the largest."""
        scores = self.run(self.inputs)
        other = copy.deepcopy(self.model)
        try:
            exact = scores_of(self._call(other.double(), self.inputs))
        except RuntimeError:  # a part of it computes in float32 only
            exact = scores_of(self._call(_off_by_a_digit(other.float()), self.inputs))
        difference = max_difference(scores, exact)
        return difference / max(1.0, float(scores.abs().max()))

    def check_close(self, actual: Tensor, expected: Tensor, what: str) -> str:
        """Compare scores within the tolerance and return a description. Raises BrokenError."""
        tolerance = ALLOWED * self.rounding
        difference = check_close(actual, expected, tolerance, what)
        return f"off by {difference:.1g}, allowed {tolerance:.1g}"

    # Inputs --------------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """A batch without padding."""
        generator = torch.Generator().manual_seed(SEED)
        if self.reads_images:
            shape = self._image or self._configured_image()
            return {IMAGE: torch.randn(ROWS, *shape, generator=generator)}
        assert self._vocabulary is not None
        inputs = {READ: _ids(LENGTH, self._vocabulary, generator)}
        if self.writes:
            inputs[WRITTEN] = _ids(ANSWER, self._count_written(inputs), generator)
        return inputs

    def ids(self) -> Int[Tensor, "B L"]:
        """The ids that it reads. Raises SkippedError for a model of images."""
        if self.reads_images:
            raise SkippedError("it reads images")
        return self.inputs[READ]

    def require(self, name: str) -> None:
        """Raises SkippedError if the model has no such argument."""
        if name not in self.adapter.arguments:
            raise SkippedError(f"it has no argument {name}")

    def require_steps(self) -> None:
        """Raises SkippedError if its cached steps differ from a full forward on purpose."""
        if self.adapter.steps_differ is not None:
            raise SkippedError(self.adapter.steps_differ)

    @property
    def writes(self) -> bool:
        """Whether it is an encoder-decoder."""
        return WRITTEN in self.adapter.arguments

    @cached_property
    def causal(self) -> bool:
        """Whether it continues what it reads, token by token: it returns a cache on request."""
        if self.reads_images or self.writes or "past_key_values" not in self.adapter.arguments:
            return False
        return (
            getattr(self._outputs(self.inputs, use_cache=True), "past_key_values", None) is not None
        )

    def require_causal(self) -> None:
        """Raises SkippedError if it does not continue what it reads."""
        if not self.causal:
            raise SkippedError("it reads whole inputs, and returns no cache")

    def causal_input(self) -> str:
        """The name of the sequence that it generates. Raises SkippedError if there is none."""
        if self.writes:
            return WRITTEN
        if self.causal or self._declared_causal:
            return READ
        raise SkippedError(
            "it returns no cache, so it may read whole inputs; pass causal=True if it must not"
        )

    @property
    def longest(self) -> int | None:
        """The number of positions that it declares."""
        return self.adapter.longest

    def positions_from(self, first: int) -> dict[str, Tensor]:
        """The position IDs of its inputs, from `first` on."""
        names = {READ: "position_ids", WRITTEN: "decoder_position_ids"}
        return {
            names[name]: torch.arange(first, first + ids.shape[1]).expand(len(ids), -1)
            for name, ids in self.inputs.items()
            if names[name] in self.adapter.arguments
        }

    def generation_positions(self, mask: Bool[Tensor, "B L"]) -> dict[str, Any]:
        """Position IDs as generation makes them: the first real token is at 0.

        Empty if the model has no argument for them, or counts by itself.
        """
        if not self.causal or "position_ids" not in self.adapter.arguments:
            return {}
        return {"position_ids": (mask.long().cumsum(-1) - 1).clamp_min(0)}

    # Outputs -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises UserError if the model cannot be called at all."""
        self._first_scores(self.inputs)

    def _first_scores(self, inputs: dict[str, Tensor]) -> Tensor:
        """Its scores. Raises UserError for any error of the model."""
        try:
            return self.run(inputs)
        except UserError:
            raise
        except Exception as error:
            shapes = ", ".join(
                f"{self.adapter.argument_name(name)}={tuple(each.shape)}"
                for name, each in inputs.items()
            )
            first = str(error).partition("\n")[0]
            raise UserError(
                f"{type(self._original).__name__} could not be called with model({shapes}): "
                f"{type(error).__name__}: {first[:200]}; wrap it in a module whose forward reads that, or give "
                "vocab_size= or image= as it expects them"
            ) from None

    @torch.no_grad()
    def run(self, inputs: dict[str, Tensor], **rest: Any) -> Float[Tensor, "B *L V"]:
        """Its scores, or the hidden state if it has no head."""
        return scores_of(self._outputs(inputs, **rest))

    @torch.no_grad()
    def step(self, inputs: dict[str, Tensor], cache: Any, **rest: Any) -> tuple[Tensor, Any]:
        """Scores and the new cache. Raises SkippedError if it returns none."""
        output = self._outputs(inputs, past_key_values=cache, use_cache=True, **rest)
        new_cache = getattr(output, "past_key_values", None)
        if new_cache is None:
            raise SkippedError("it returns no cache")
        return scores_of(output), new_cache

    def run_ids(self, ids: Int[Tensor, "B L"], rows: slice = slice(None), **rest: Any) -> Tensor:
        """The scores of other ids, with the other inputs of these rows."""
        return self.run(self.with_ids(ids, rows), **rest)

    def with_ids(self, ids: Int[Tensor, "B L"], rows: slice = slice(None)) -> dict[str, Tensor]:
        """These ids, with the other inputs of these rows."""
        return {name: each[rows] for name, each in self.inputs.items()} | {READ: ids}

    @contextmanager
    def on_copy(self) -> Iterator[nn.Module]:
        """Within the block, the laws call another copy."""
        original = self.model
        self.__dict__["model"] = copy.deepcopy(original)
        try:
            yield self.model
        finally:
            self.__dict__["model"] = original

    def _outputs(self, inputs: dict[str, Tensor], **rest: Any) -> Any:
        return self._call(self.model, inputs, **rest)

    @torch.no_grad()
    def _call(self, model: nn.Module, inputs: dict[str, Tensor], **rest: Any) -> Any:
        dtype = next((each.dtype for each in model.parameters()), torch.float32)
        typed = {
            name: each.to(dtype) if each.is_floating_point() else each
            for name, each in inputs.items()
        }
        return self.adapter.call(model, typed | rest)

    def _count_written(self, inputs: dict[str, Tensor]) -> int:
        """How many ids it generates: the size of its scores, unless the configuration has one vocabulary."""
        assert self._vocabulary is not None
        if hasattr(self.config, "vocab_size"):
            return self._vocabulary
        first = inputs[READ].new_full((ROWS, ANSWER), FIRST_ID)
        scored = self._first_scores(inputs | {WRITTEN: first}).shape[-1]
        return max(FIRST_ID + 1, min(self._vocabulary, scored))

    def _count_ids(self) -> int:
        count = getattr(self.config, "vocab_size", None)
        tables = [
            each
            for each in self._original.modules()
            if isinstance(each, nn.Embedding | TokenEmbedding)
        ]
        if count is None and tables:
            count = len(tables[0].weight)
        if count is None:
            raise UserError(
                f"{type(self._original).__name__} has no table of ids, and no configuration that says how many it "
                "reads; give vocab_size=, or image=(C, H, W) for a model of images"
            )
        return int(count)

    def _configured_image(self) -> tuple[int, int, int]:
        size = getattr(self.config, "image_size", None)
        if size is None:
            raise UserError(
                f"the configuration of {type(self._original).__name__} does not say which images it reads; give "
                "image=(C, H, W)"
            )
        height, width = (size, size) if isinstance(size, int) else size
        return getattr(self.config, "num_channels", 3), height, width


def _check_forward(model: Any) -> None:
    """Raises UserError for anything that is no model, or has a forward without arguments."""
    forward = getattr(type(model), "forward", nn.Module.forward)
    if forward is nn.Module.forward or not inspect.signature(model.forward).parameters:
        raise UserError(
            f"{type(model).__name__} has no forward that reads anything: expected a torch.nn.Module that reads token "
            "ids or images"
        )


def _ids(length: int, vocab_size: int, generator: torch.Generator) -> Int[Tensor, "B L"]:
    return torch.randint(FIRST_ID, vocab_size, (ROWS, length), generator=generator)


def _off_by_a_digit(model: nn.Module) -> nn.Module:
    """The model with each weight off by about half the last digit of float32."""
    generator = torch.Generator().manual_seed(SEED)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data *= 1 + noise * torch.finfo(torch.float32).eps / 2
    return model
