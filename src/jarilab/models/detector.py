"""Detection by object queries: DETR (*End-to-End Object Detection with Transformers*, Carion et al. 2020).

Queries may have a box that each layer refines (DAB-DETR, Liu et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal, Unpack, final

import torch
from annotated_types import Ge, Le
from torch import nn
from torch.nn import functional

from jarilab.core.errors import UserError, unknown
from jarilab.core.options import unpack_options
from jarilab.core.shapes import Float, Tensor
from jarilab.models.base import registry
from jarilab.models.layers import LayerKeywords, LayerOptions, Layers
from jarilab.models.object_queries import QueryDecoder, QueryPositions, check_axes, check_fractions
from jarilab.models.stacks import Encoder
from jarilab.positions.boxes import Detected
from jarilab.positions.coordinates import Positions
from jarilab.positions.patches import Images, grid_of, patch_keep, patchify

STRIDE = 8
"""Side of the patch of one token, in pixels."""

Stem = Literal["convolutions", "patches"]


@registry.register("detector")
@final
class Detector(nn.Module):
    """Images in, a box and class scores for each of N object queries out. The last class is "no object".

        model = jarilab.Detector(1, 10)
        detections = model(pixels_BCHW)  # scores (S, B, N, 11) and boxes (S, B, N, 4) of all S layers

    channels: of the images. classes: number of classes, without "no object". queries: largest number of objects in an
    image. query_positions: position of a query in the image: the centre of its learned box (boxes), or none, with a
    learned vector in each layer as in DETR (vectors). refinement: each layer
    starts from the boxes of the layer before; otherwise from the learned boxes. stem: what computes tokens of 8 x 8
    pixels: three convolutions of stride 2, or a linear map of patches. encoding: of encoder, decoder and
    cross-attention; DETR has sinusoidal2d:where=inject,normalised=true. encoder_encoding: encoding of the encoder alone
    (default: `encoding`). decoder_encoding: encoding of the decoder alone (default: `encoding`). cross_encoding:
    encoding of the cross-attention alone (default: `encoding`). n_encoder_layers: layers of the encoder.
    n_decoder_layers: layers of the decoder.

    `__init__` has the options of layers, from `d_model` to `kernel`.
    """

    @unpack_options(LayerOptions(d_model=96))
    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        n_encoder_layers: Layers = 3,
        n_decoder_layers: Layers = 3,
        queries: Annotated[int, Ge(1), Le(10000)] = 8,
        query_positions: QueryPositions = "boxes",
        refinement: bool = True,
        stem: Stem = "convolutions",
        encoding: str = "rotary2d",
        encoder_encoding: str | None = None,
        decoder_encoding: str | None = None,
        cross_encoding: str | None = None,
        **layer: Unpack[LayerKeywords],
    ):
        super().__init__()
        self.channels = channels
        if stem not in STEMS:
            raise unknown("stem", stem, STEMS)
        options = LayerOptions(**layer)
        d_model = options.d_model
        self.stem = STEMS[stem](channels, d_model)
        spec = encoder_encoding or encoding
        self.encoder = Encoder(n_layers=n_encoder_layers, encoding=spec, **layer)
        check_axes(self.encoder.encoding)
        specs = decoder_encoding or encoding, cross_encoding or encoding
        if query_positions == "boxes":
            check_fractions(*specs)
        self.decoder = QueryDecoder(
            options, n_decoder_layers, specs, queries, query_positions, refinement
        )
        self.generator = nn.Linear(d_model, classes + 1)
        self.box = nn.Sequential(
            nn.Linear(d_model, d_model),
            nn.ReLU(),
            nn.Linear(d_model, d_model),
            nn.ReLU(),
            nn.Linear(d_model, 4),
        )

    @staticmethod
    def check(options: Mapping[str, Any]) -> None:
        """Raises UserError for options that no detector can have."""
        # All layers have the same options, so that one of each is enough to check them.
        Detector(1, 1, **{**options, "n_encoder_layers": 1, "n_decoder_layers": 1})

    def forward(self, images: Float[Tensor, "B C H W"] | Images) -> Detected:
        """Return the scores and boxes of each decoder layer. Boxes are fractions of the image without padding.

        Padding is below and to the right of images. Raises UserError for images with other channels.
        """
        images = self._padded(Images.of(images))
        places, keep = self.places(images), patch_keep(images.keep, STRIDE)
        memory = self.encoder(self.stem(images.pixels), positions=places, keep=keep)
        of_layers = self.decoder(memory, places, keep, self.box)
        scores_SBNK = torch.stack([self.generator(x_BND).float() for x_BND, _ in of_layers])
        boxes_SBN4 = torch.stack([logits_BN4.sigmoid() for _, logits_BN4 in of_layers])
        return Detected(scores_SBNK, boxes_SBN4)

    def places(self, images: Images) -> Positions:
        """Return the positions of the image's tokens: rows and columns in row-major order."""
        images = self._padded(images)
        places = Positions.grid(*grid_of(images.size, STRIDE), device=images.pixels.device)
        if images.keep is None:
            return places
        sides = [images.keep.any(axis).sum(1) for axis in (2, 1)]
        return replace(places, extent=torch.stack(sides, 1) / STRIDE)

    def max_positions(self) -> dict[str, int | None]:
        """Return no limits: an encoding with a limit raises in its forward."""
        return {}

    def _padded(self, images: Images) -> Images:
        """Pad images with black to sides that the stride divides."""
        pixels, keep = images.pixels, images.keep
        if pixels.shape[1] != self.channels:
            raise UserError(
                f"the model reads images of {self.channels} channels, got {pixels.shape[1]}; convert them to "
                f"{'grey' if self.channels == 1 else 'colour'}"
            )
        below, beside = (-side % STRIDE for side in images.size)
        if not below and not beside:
            return images
        if keep is None:
            keep = torch.ones_like(pixels[:, 0], dtype=torch.bool)
        padding = (0, beside, 0, below)
        return Images(functional.pad(pixels, padding), functional.pad(keep, padding))


@final
class ConvolutionStem(nn.Module):
    """Three convolutions of stride 2: `(B, C, H, W)` to `(B, L, D)`, row by row."""

    def __init__(self, channels: int, d_model: int):
        super().__init__()
        widths = (channels, max(1, d_model // 4), max(1, d_model // 2), d_model)
        self.layers = nn.ModuleList(
            nn.Conv2d(narrow, wide, 3, stride=2, padding=1) for narrow, wide in pairwise(widths)
        )
        self.norm = nn.LayerNorm(d_model)

    def forward(self, pixels: Float[Tensor, "B C H W"]) -> Float[Tensor, "B L D"]:
        x_BDHW = pixels
        for layer in self.layers:
            x_BDHW = functional.gelu(layer(x_BDHW))
        x_BLD = x_BDHW.flatten(2).transpose(1, 2)
        return self.norm(x_BLD)


@final
class PatchStem(nn.Module):
    """One linear map of each patch: `(B, C, H, W)` to `(B, L, D)`, row by row."""

    def __init__(self, channels: int, d_model: int):
        super().__init__()
        self.map = nn.Linear(channels * STRIDE**2, d_model)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, pixels: Float[Tensor, "B C H W"]) -> Float[Tensor, "B L D"]:
        return self.norm(self.map(patchify(pixels, STRIDE)))


STEMS: dict[Stem, Callable[[int, int], nn.Module]] = {
    "convolutions": ConvolutionStem,
    "patches": PatchStem,
}
