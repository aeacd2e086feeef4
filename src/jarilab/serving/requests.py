"""The pydantic models of requests, made from the options of a predictor."""

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
from jarilab.data.images.image_files import size_of
from jarilab.serving.queue import Refusal
from jarilab.tasks.predictors.base import Predictor

MAX_TEXTS = 64
"""Values of an option that takes several."""
MAX_NUMBER = 2.0**31
"""The largest number for an option without bounds of its own."""
MAX_IMAGE_BYTES = 2**23
"""Bytes of a request that may contain images."""
_HELD_OUT = re.compile(rf"{HELD_OUT}\d{{1,9}}")


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Limits of a server.

    queue: most requests that wait or are being answered; further ones are refused.
    batch_size: inputs per batch.
    deadline: seconds for a request, including its waiting time.
    grace: seconds to finish open requests after Ctrl-C or SIGTERM; further ones are refused.
    inputs: most inputs per request.
    characters: most characters per input.
    pixels: most pixels per image, by its header.
    """

    queue: Annotated[int, Ge(1)] = 64
    batch_size: Annotated[int, Ge(1)] = 32
    deadline: Annotated[float, Ge(0.1)] = 30.0
    grace: Annotated[float, Ge(0)] = 3.0
    inputs: Annotated[int, Ge(1)] = 32
    characters: Annotated[int, Ge(1)] = 2048
    pixels: Annotated[int, Ge(1)] = 2**22


class Strict(BaseModel):
    """A model without conversions and without unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Image(Strict):
    """An image: a PNG, JPEG, GIF, BMP, WebP, TIFF or PPM file in base64."""

    image: str = Field(max_length=MAX_IMAGE_BYTES)


class RequestSchema:
    """The requests of a run: `model` parses one; `options` and `sources` convert it for the predictor."""

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
        default = Field(default_factory=options)
        return create_model(
            "Request", __base__=Strict, inputs=(inputs, ...), options=(options, default)
        )

    @property
    def max_body(self) -> int:
        """The largest body of a request, in bytes."""
        # A character may take twelve bytes, as two JSON escapes.
        texts = 12 * self.limits.inputs * self.limits.characters
        return max(2**20, texts, MAX_IMAGE_BYTES if self.predictor.reads_images else 0)

    def options(self, body: Any) -> Any:
        """The predictor's options in a parsed body. Raises UserError for values that they refuse."""
        values = body.options.model_dump()
        for name, option in self._options.items():
            if option.several:
                values[name] = tuple(values[name])
        return self.predictor.options(**values)

    def _field(self, option: Option) -> Any:
        """The pydantic field of an option, within the limits of a server."""
        info: dict[str, Any] = {"default": option.default, "description": option.meaning}
        if option.several:
            each = Annotated[str, Field(max_length=self.limits.characters)]
            several = Annotated[list[each], Field(max_length=MAX_TEXTS)]
            several_info: dict[str, Any] = {**info, "default": list(option.default)}
            return several, Field(**several_info)
        if option.kind == "text":
            return option.annotation, Field(**info)
        most = self.predictor.served_at_most.get(option.name)
        if most is None and typing.get_origin(option.annotation) is not Annotated:
            most = MAX_NUMBER
        least = None if most is None else -MAX_NUMBER
        # The option's own bounds stay in its annotation.
        within = Annotated[option.annotation, Field(ge=least, le=most)]
        return within, Field(**info)

    def sources(self, inputs: Sequence[str | Image], folder: Path) -> tuple[list[str], list[str]]:
        """The arguments of `predict`, and the name of each in the answer. An image is written into `folder`.

        Raises Refusal for the name of a file and for invalid base64. Raises UserError for invalid and large images.
        """
        sources, names = [], []
        for number, entry in enumerate(inputs, 1):
            if isinstance(entry, str):
                self._check_text(entry)
                sources.append(entry)
                names.append(entry)
                continue
            name = f"image {number}"
            path = folder / name
            path.write_bytes(self._image(entry, name))
            sources.append(str(path))
            names.append(name)
        return sources, names

    def _check_text(self, text: str) -> None:
        """Raises Refusal for a text that names a file of this machine."""
        if self.predictor.names_image(text) and not _HELD_OUT.fullmatch(text.strip()):
            raise Refusal(
                400,
                f'expected an image as {{"image": BASE64}}, or the number of a held-out one, such as {HELD_OUT}3; got '
                "a text that names a file",
            )

    def _image(self, image: Image, name: str) -> bytes:
        try:
            data = base64.b64decode(image.image, validate=True)
        except (binascii.Error, ValueError):
            raise Refusal(400, f"{name}: expected base64 of an image file; encode it") from None
        width, height = size_of(data, name)
        if width * height > self.limits.pixels:
            raise UserError(
                f"{name}: expected at most {self.limits.pixels:,} pixels; its header says {width:,} x {height:,}; make "
                "it smaller"
            )
        return data
