"""What may be asked of a run, within limits: pydantic's models, made of the options of its kind of answer."""

from __future__ import annotations

import base64
import binascii
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import BaseModel, ConfigDict, Field, create_model

from jarilab.core.errors import UserError
from jarilab.core.options import Option, options_of
from jarilab.data.images import HELD_OUT
from jarilab.data.images.files import size_of
from jarilab.serving.queue import Refusal
from jarilab.tasks.predictors.base import Predictor

MOST_TEXTS = 64
"""Values of an option that takes several."""
NUMBERS = 2.0**31
"""The most that a server takes of a number of which nothing else is said."""
IMAGES = 2**23
"""Bytes of a request that may hold images."""
_HELD_OUT = re.compile(rf"{HELD_OUT}\d{{1,9}}")


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What a server takes.

    queue: requests that wait or are answered; more are sent away. batch_size: inputs that are answered together.
    deadline: seconds for a request, its waiting included. inputs: in one request. characters: of an input. pixels: of
    an image, by its header.
    """

    queue: Annotated[int, Ge(1)] = 64
    batch_size: Annotated[int, Ge(1)] = 32
    deadline: Annotated[float, Ge(0.1)] = 30.0
    inputs: Annotated[int, Ge(1)] = 32
    characters: Annotated[int, Ge(1)] = 2048
    pixels: Annotated[int, Ge(1)] = 2**22


class Strict(BaseModel):
    """Nothing is converted, and no field is let pass that is not known."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Image(Strict):
    """An image: a PNG, JPEG, GIF, BMP, WebP, TIFF or PPM file in base64."""

    image: str = Field(max_length=IMAGES)


class Asking:
    """What may be asked of a run: `model` reads a request, and gives inputs and options of the run's own kind."""

    def __init__(self, predictor: Predictor, limits: Serving):
        self.predictor, self.limits = predictor, limits
        options = options_of(predictor.options)
        self._options = {name: options[name] for name in options if name not in predictor.writes}

    @cached_property
    def model(self) -> type[BaseModel]:
        """The body of a request."""
        text = Annotated[str, Field(max_length=self.limits.characters)]
        each = (text | Image) if self.predictor.reads_images else text
        inputs: Any = Annotated[list[each], Field(min_length=1, max_length=self.limits.inputs)]
        fields = {name: self._field(option) for name, option in self._options.items()}
        options: Any = create_model("Options", __base__=Strict, **fields)
        given = Field(default_factory=options)
        return create_model(
            "Asked", __base__=Strict, inputs=(inputs, ...), options=(options, given)
        )

    @property
    def largest(self) -> int:
        """Bytes of a body: every character may take twelve, as two escapes of JSON."""
        texts = 12 * self.limits.inputs * self.limits.characters
        return max(2**20, texts, IMAGES if self.predictor.reads_images else 0)

    def options(self, asked: Any) -> Any:
        """The options of the run's kind of answer. Raises UserError."""
        given = asked.options.model_dump()
        for name, option in self._options.items():
            if option.several:
                given[name] = tuple(given[name])
        return self.predictor.options(**given)

    def _field(self, option: Option) -> Any:
        """An option as pydantic reads it, within what a server takes of it."""
        told: dict[str, Any] = {"default": option.default, "description": option.meaning}
        if option.several:
            each = Annotated[str, Field(max_length=self.limits.characters)]
            several = Annotated[list[each], Field(max_length=MOST_TEXTS)]
            each_told: dict[str, Any] = {**told, "default": list(option.default)}
            return several, Field(**each_told)
        if option.kind == "text":
            return option.annotation, Field(**told)
        most = self.predictor.served_at_most.get(option.name)
        if most is None and not _is_bounded(option.annotation):
            most = NUMBERS
        least = None if most is None else -NUMBERS
        # Beside the bounds that the option has itself.
        within = Annotated[option.annotation, Field(ge=least, le=most)]
        return within, Field(**told)

    def sources(self, inputs: Sequence[str | Image], folder: Path) -> tuple[list[str], list[str]]:
        """What `predict` is given for each input, and what it is called in the answer. An image becomes a file of
        `folder`. Raises Refusal for the name of a file, and for an image that is none or too large, by its header."""
        sources, names = [], []
        for number, given in enumerate(inputs, 1):
            if isinstance(given, str):
                self._check_text(given)
                sources.append(given)
                names.append(given)
                continue
            name = f"image {number}"
            path = folder / name
            path.write_bytes(self._image(given, name))
            sources.append(str(path))
            names.append(name)
        return sources, names

    def _check_text(self, text: str) -> None:
        """Raises Refusal for what would be read as a file of this machine."""
        if self.predictor.names_image(text) and not _HELD_OUT.fullmatch(text.strip()):
            raise Refusal(
                400,
                f'expected an image as {{"image": BASE64}}, or the number of a held-out one, such as {HELD_OUT}3; got '
                "a text that names a file",
            )

    def _image(self, given: Image, name: str) -> bytes:
        try:
            data = base64.b64decode(given.image, validate=True)
        except (binascii.Error, ValueError):
            raise Refusal(400, f"{name}: expected base64 of an image file; encode it") from None
        width, height = size_of(data, name)
        if width * height > self.limits.pixels:
            raise UserError(
                f"{name}: expected at most {self.limits.pixels:,} pixels; its header says {width:,} x {height:,}; make "
                "it smaller"
            )
        return data


def _is_bounded(annotation: Any) -> bool:
    """Whether an option says itself how large it may be, such as a seed, which costs nothing."""
    return typing.get_origin(annotation) is Annotated
