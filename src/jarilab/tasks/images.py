"""Classification of your own images, and of scikit-learn's handwritten digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, final

import torch
from annotated_types import Ge, Gt, Le, Lt

from jarilab.core.errors import UserError
from jarilab.data.captions.digit_images import scans
from jarilab.data.images.labelled import Labelled, Wanted, read_labelled, read_resized
from jarilab.data.images.resize import Fit, Size, resize
from jarilab.tasks.base import registry
from jarilab.tasks.classification import Augmentation, ClassificationTask


@registry.register("images")
@final
class ImageClassification(ClassificationTask):
    """Classify images: a folder with a folder for each class, MNIST's idx files, or a CSV of path and label.

    train: folder or file of the training images. valid: held-out data of the same kind. Without it, a share of `train`
    is held out, chosen by content; of a folder of idx files, those not named train-*. size: height and width in pixels
    to resize to; not needed if all images agree. colours: grey or colour. fit: stretch ignores the aspect ratio, crop
    cuts, pad adds background. held_out: share of the images to hold out if `valid` is not given. shift: maximal shift
    of a training image in pixels, in each direction. flip: mirror half of the training images. mixup: parameter of the
    beta distribution for mixing two whole images; 0 for none. cutmix: parameter of the beta distribution for pasting a
    rectangle of another image; 0 for none.
    """

    def __init__(
        self,
        *,
        train: str = "",
        valid: str = "",
        size: Annotated[int, Ge(1), Le(4096)] | None = None,
        colours: Literal["grey", "colour"] = "grey",
        fit: Fit = "stretch",
        held_out: Annotated[float, Gt(0), Lt(1)] = 0.1,
        shift: Annotated[int, Ge(0), Le(512)] = 2,
        flip: bool = False,
        mixup: Annotated[float, Ge(0), Le(10)] = 0.0,
        cutmix: Annotated[float, Ge(0), Le(10)] = 0.0,
    ):
        super().__init__(Augmentation(shift, flip, mixup, cutmix), fit)
        self.train, self.valid, self.share = train, valid, held_out
        self.size, self.channels = size, {"grey": 1, "colour": 3}[colours]
        self._images: Labelled | None = None

    @classmethod
    def defaults(cls, model: str) -> Mapping[str, Any]:
        return {
            "model.patch_size": 4,
            "model.d_model": 64,
            "model.n_layers": 6,
            **cls._training_defaults(epochs=10),
        }

    def hold_out(self, paths: Sequence[str]) -> None:
        if len(paths) != 1:
            raise UserError(
                f"--data expects one folder, idx file or CSV, got {len(paths)}; give one"
            )
        self.valid = paths[0]
        self._held_out = self._read(self.valid, held_out=True)

    @property
    def held_out_of(self) -> tuple[str, ...]:
        return () if self.valid else (self.train,)

    def _read_data(self) -> Labelled:
        if not self.train:
            raise UserError(
                "--train names no images; write --train FOLDER, an idx file or a CSV of path and label"
            )
        self._images = self._read(self.train)
        return self._images if self.valid else self._images.split(self.share)[0]

    def _read_held_out(self) -> Labelled:
        if self.valid:
            held_out = self._read(self.valid, held_out=True)
            if self._images is not None:
                held_out.notices += held_out.shared(self._images)
            return held_out
        images = self._images or self._read(self.train)
        held_out = images.split(self.share)[1]
        if held_out.shape == self.shape:
            return held_out
        if self.size is None:  # trained as the files are, so these have no more details
            return held_out.resized(self.shape[1:], self._fit)
        resized = read_resized(Path(self.train), held_out, self._wanted())
        return resized or self._read(self.train).split(self.share)[1]

    def _read(self, path: str, *, held_out: bool = False) -> Labelled:
        return read_labelled(Path(path), self._wanted(), held_out=held_out)

    def _wanted(self) -> Wanted:
        size = None if self.size is None else (self.size, self.size)
        known = None
        if self._facts:  # what is read later must be as the training images are
            size, known = self.shape[1:], self.classes
        return Wanted(self.channels, size, self._fit, known)

    def describe(self) -> str:
        channels, height, width = self.shape
        colours = "grey" if channels == 1 else "colour"
        return f"{Path(self.train).name}: {self.training_size:,} {colours} images of {height} x {width} pixels"

    def purpose(self) -> tuple[str, str]:
        count = len(self.classes)
        return (
            f"Says which of {count} classes an image belongs to.",
            f"이미지가 {count}가지 중 어디에 속하는지 말합니다.",
        )

    def fingerprint(self) -> str:
        if self._train is None:
            self.prepare()
        return f"sha256 {self._training.fingerprint()}"


HELD_OUT = 5  # one scan in five


@registry.register("digits")
@final
class Digits(ClassificationTask):
    """Classify scans of digits: scikit-learn's copy of the optical digits of Alpaydin and Kaynak (1998).

    One scan in five is held out. shift: maximal shift of a training image in pixels, in each direction. mixup:
    parameter of the beta distribution for mixing two whole images; 0 for none. cutmix: parameter of the beta
    distribution for pasting a rectangle of another image; 0 for none.
    """

    def __init__(
        self,
        *,
        shift: Annotated[int, Ge(0), Le(4)] = 1,
        mixup: Annotated[float, Ge(0), Le(10)] = 0.0,
        cutmix: Annotated[float, Ge(0), Le(10)] = 0.0,
    ):
        super().__init__(Augmentation(shift, False, mixup, cutmix))

    @classmethod
    def defaults(cls, model: str) -> Mapping[str, Any]:
        return {
            "model.patch_size": 2,
            "model.d_model": 64,
            "model.n_layers": 4,
            **cls._training_defaults(epochs=40),
        }

    def _read_data(self) -> Labelled:
        return _scans(held_out=False)

    def _read_held_out(self) -> Labelled:
        return _scans(held_out=True, size=self.shape[1:])

    def describe(self) -> str:
        return f"{self.training_size:,} handwritten digits of 8 x 8 pixels"

    def purpose(self) -> tuple[str, str]:
        return (
            "Says which digit is written in an image of 8 x 8 pixels.",
            "8 x 8 픽셀 이미지에 손으로 쓴 숫자가 무엇인지 말합니다.",
        )

    def fingerprint(self) -> str:
        return f"{self.describe()}, sha256 {self._training.fingerprint()}"


def _scans(*, held_out: bool, size: Size = (8, 8)) -> Labelled:
    grey, labels = scans()
    pixels = resize((grey * 255).round().to(torch.uint8).unsqueeze(1), size)
    number = torch.arange(len(grey))
    read = Labelled(pixels, labels, [str(digit) for digit in range(10)], number)
    return read.only(number[(number % HELD_OUT == 0) == held_out])
