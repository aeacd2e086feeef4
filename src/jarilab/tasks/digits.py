"""Handwritten digits of scikit-learn: 1,797 scans of 8 x 8 pixels, without a download."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, final

import torch
from annotated_types import Ge, Le

from jarilab.data.captions.digit_images import scans
from jarilab.data.images.labelled import Labelled
from jarilab.data.images.resize import Size, resize
from jarilab.tasks.base import registry
from jarilab.tasks.classification import Augmentation, ClassificationTask

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
