"""What a person does with runs that see or paint images, as functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import UInt8

from jarilab.api import Loaded, load
from jarilab.errors import UserError
from jarilab.images import draw as drawing
from jarilab.images.files import read_image
from jarilab.images.tokenizer import decibels
from jarilab.storage.files import write_bytes
from jarilab.tasks.captions import Captions
from jarilab.tasks.classification import HELD_OUT, ImageTask
from jarilab.training import answering

MOST_SHOWN = 100
"""Images beside their codes in one grid."""


@dataclass(frozen=True)
class Found:
    """A thing in an image. box: left, top, right, bottom in pixels of the file."""

    label: str
    probability: float
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Looked:
    """What was found in one image, the surest first, or why it could not be read."""

    input: str
    objects: tuple[Found, ...] = ()
    error: str | None = None


def find(
    run: str | Path | Loaded,
    images: Iterable[str | Path | UserError],
    *,
    at_least: float = 0.5,
    trust_code: bool = False,
) -> Iterator[Looked]:
    """What is in each image, and where. at_least: the probability of what is told.

    An image that cannot be read gets its error and stops nothing. Raises UserError for a run that finds nothing.
    """
    loaded = run if isinstance(run, Loaded) else load(run, trust_code=trust_code)
    task = loaded.task
    if not isinstance(task, ImageTask) or not task.finds:
        raise UserError(
            "this run does not say where things are; train one with `jarilab train detection`"
        )
    if not 0 <= at_least <= 1:
        raise UserError(f"a probability is from 0 to 1, got {at_least:g}")
    for asked in images:
        name = "" if isinstance(asked, UserError) else str(asked)
        try:
            if isinstance(asked, UserError):  # a line that could not even be decoded
                raise asked
            read = task.read(name)
        except UserError as error:
            yield Looked(name, error=str(error))
            continue
        (said,) = answering.seen(loaded.model, task, [read])
        told = [one for one in said if one.probability >= at_least and one.box is not None]
        yield Looked(
            name, tuple(Found(task.classes[one.number], one.probability, one.box) for one in told)
        )  # type: ignore[arg-type]


def paint(
    run: str | Path | Loaded,
    prompt: str,
    *,
    n: int = 8,
    guidance: float | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    rerank: int = 1,
    seed: int = 1,
    trust_code: bool = False,
) -> Iterator[UInt8[torch.Tensor, "n 3 H W"]]:
    """`n` images of what the prompt says, again after each row of codes that is drawn; the last are whole.

    guidance: 1 for none; above, away from what is drawn without a caption. It and temperature are the run's by default.
    rerank: draw so many times as many, and keep those that a second model thinks fit best. Each image follows from
    seed and number, so the first is the same however many there are. Raises UserError for a run that paints nothing.
    """
    loaded = run if isinstance(run, Loaded) else load(run, trust_code=trust_code)
    task, model = _painter(loaded), loaded.model
    drawing = {
        "guidance": task.guidance if guidance is None else guidance,
        "temperature": task.temperature if temperature is None else temperature,
        "top_k": top_k,
        "top_p": top_p,
    }
    return task.images(cast(Any, model), prompt, n, rerank=rerank, seed=seed, **drawing)


@dataclass(frozen=True, eq=False)
class Reconstructed:
    """An image beside what its codes stand for, or why it could not be read. decibels: how alike they are (PSNR)."""

    input: str
    images: UInt8[torch.Tensor, "2 3 H W"] | None = None
    decibels: float | None = None
    error: str | None = None


def reconstruct(
    run: str | Path | Loaded, images: Iterable[str | Path], *, trust_code: bool = False
) -> Iterator[Reconstructed]:
    """What the image tokenizer of a run that paints makes of images.

    images: files, of which the middle is taken at the run's size, or held-out ones, `#5`. One that cannot be read
    gets its error and stops nothing. Raises UserError for a run that paints nothing.
    """
    task = _painter(run if isinstance(run, Loaded) else load(run, trust_code=trust_code))
    for name in map(str, images):
        try:
            whole = task.image(name)
        except UserError as error:
            yield Reconstructed(name, error=str(error))
            continue
        again = task.codes.decode(task.codes.encode(whole.unsqueeze(0)))[0]
        yield Reconstructed(name, torch.stack((whole, again)), decibels(whole, again))


def _painter(loaded: Loaded) -> Captions:
    if not isinstance(loaded.task, Captions):
        raise UserError("this run paints no images; train one with `jarilab train captions`")
    return loaded.task


def draw(loaded: Loaded, looked: Looked, out: str | Path) -> None:
    """Write the image with the boxes of what was found, as PNG. Raises UserError where `out` is the image itself,
    or the name of another kind of file."""
    task = loaded.task
    assert isinstance(task, ImageTask)
    path = Path(looked.input)
    _check_out(out, [path])
    pixels = (
        task.read(looked.input).pixels if looked.input.startswith(HELD_OUT) else read_image(path, 3)
    )
    told = [(found.box, f"{found.label} {found.probability:.0%}") for found in looked.objects]
    write_bytes(Path(out), drawing.png(drawing.boxes(pixels, told)))


def paint_to(loaded: Loaded, prompt: str, out: str | Path, **how: Any) -> None:
    """Write a grid of what `paint` paints, as PNG; the file is there from the first row of codes on, and fills. Raises
    UserError where `out` is the name of another kind of file."""
    _check_out(out)
    for images in paint(loaded, prompt, **how):
        columns = math.ceil(math.sqrt(len(images)))
        write_bytes(Path(out), drawing.png(drawing.grid(list(images), columns)))


def reconstruct_to(loaded: Loaded, images: Sequence[str], out: str | Path) -> list[Reconstructed]:
    """Write the images of `reconstruct` as a grid, as PNG: each, and to its right what its codes stand for. Raises
    UserError where `out` is one of them, or the name of another kind of file, and for too many."""
    _check_out(out, map(Path, images))
    if len(images) > MOST_SHOWN:
        raise UserError(
            f"expected at most {MOST_SHOWN} images in a grid, got {len(images):,}; name fewer"
        )
    found = list(reconstruct(loaded, images))
    read = [one for one in found if one.images is not None]
    if read:
        cells = [image for one in read for image in cast(torch.Tensor, one.images)]
        words = [text for one in read for text in (Path(one.input).name, f"{one.decibels:.1f} dB")]
        columns = 2 * math.ceil(math.sqrt(len(read)))
        write_bytes(Path(out), drawing.png(drawing.grid(cells, columns, words)))
    return found


def _check_out(out: str | Path, read: Iterable[Path] = ()) -> None:
    """Raises UserError for a file that is no PNG, or one of those that are read."""
    if Path(out).suffix.lower() != ".png":
        raise UserError(
            f"{out}: expected a name that ends in .png, since PNG is what is written; choose such a name"
        )
    if Path(out).is_file() and any(path.is_file() and path.samefile(out) for path in read):
        raise UserError(
            f"{out}: expected another file than the image itself, which would be gone; choose another name"
        )
