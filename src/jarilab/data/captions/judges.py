"""Two digit classifiers for generated images: a judge that measures, and a scorer for `rerank`.

They are trained from different seeds on different halves of the real digits. So the judge did not choose the images
that it measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import UInt8
from torch import Tensor

from jarilab.core.shapes import Float, Int
from jarilab.core.storage.content_cache import cached
from jarilab.data.captions.attributes import describe_images, matches_caption
from jarilab.data.captions.digit_classifier import DigitClassifier, halves, train_digit_classifier
from jarilab.data.captions.sources import SceneSource
from jarilab.data.captions.styles import Style
from jarilab.data.images.fitting import note, progress_bar
from jarilab.data.images.image_tokenizer import ImageTokenizer

JUDGE, SCORER = "judge.safetensors", "scorer.safetensors"
REAL_IMAGES = 2000  # on which the accuracy of a judge is measured
BLANK = "an empty image"

Pixels = UInt8[Tensor, "B 3 H W"]


@final
@dataclass(frozen=True, eq=False)
class Judges:
    """The judge that measures images of a style, and the scorer that ranks them."""

    style: Style
    judge: DigitClassifier
    scorer: DigitClassifier

    @staticmethod
    def train(source: SceneSource, steps: int) -> Judges:
        """Train both on the digits of a source, or take them from the cache."""

        def make(folder: Path) -> dict[str, Any]:
            note(f"training the judge and the scorer of images, {steps:,} steps each")
            one, other = halves(source.digits("training"))
            for seed, (name, half) in enumerate(((JUDGE, one), (SCORER, other)), 1):
                with progress_bar(f"digit classifier {seed} of 2") as progress:
                    made = train_digit_classifier(
                        source.style, half, seed=seed, steps=steps, progress=progress
                    )
                (folder / name).write_bytes(made.to_bytes())
            return {}

        facts = {"what": "judges", "data": source.fingerprint, "steps": steps}
        return cached(facts, make, lambda folder, _: Judges.read(source.style, folder))

    @staticmethod
    def read(style: Style, folder: Path) -> Judges:
        """Read the files of `artifacts` from a folder. Raises UserError."""
        judge = DigitClassifier.from_file(style, folder / JUDGE)
        scorer = DigitClassifier.from_file(style, folder / SCORER)
        return Judges(style, judge, scorer)

    def artifacts(self) -> dict[str, bytes]:
        """Return the files of both, by name."""
        return {JUDGE: self.judge.to_bytes(), SCORER: self.scorer.to_bytes()}

    def metrics(self, images: Pixels, values: Int[Tensor, "B P"]) -> dict[str, float]:
        """Return the shares of images that match their captions: exactly, by digit, and by attribute.

        values: the words of the captions, as word indices of the style.
        """
        return {name: float(value.mean()) for name, value in self.right(images, values).items()}

    def right(
        self, images: Pixels, values: Int[Tensor, "B P"]
    ) -> Mapping[str, Float[Tensor, " B"]]:
        """Return whether each image matches its caption, by name of the share."""
        return matches_caption(self.style, values, images, self.judge.read(images))

    def ceiling(self, source: SceneSource, codes: ImageTokenizer) -> dict[str, float]:
        """Return the judge's accuracy on real images of held-out digits, and on their reconstructions from codes."""
        held_out = source.held_out(torch.arange(REAL_IMAGES))
        real, values = held_out.images, held_out.values
        assert values is not None, "scenes have words"
        right: Mapping[str, dict[str, float]] = {
            "real": self.metrics(real, values),
            "reconstructed": self.metrics(codes.decode(codes.encode(real)), values),
        }
        named = [(name, which) for name in ("digit", "exact_match") for which in right]
        return {f"{name}_{which}": right[which][name] for name, which in named}

    def best(
        self, images: Pixels, values: Int[Tensor, "N P"], count: int
    ) -> UInt8[Tensor, "M 3 H W"]:
        """Return the `count` likeliest images of each caption by the scorer. Images of a caption are adjacent."""
        drawn = len(images) // len(values)
        scores = self.scorer.score(images, values.repeat_interleave(drawn, 0))
        best = scores.view(-1, drawn).topk(count, 1).indices
        first = torch.arange(len(values)).unsqueeze(1) * drawn
        return images[(best + first).flatten()]

    def caption(self, image: UInt8[Tensor, "3 H W"]) -> str:
        """Describe an image as a caption of the style, by judge and rules."""
        images = image.unsqueeze(0)
        (caption,) = describe_images(self.style, images, self.judge.read(images))
        return caption or BLANK
