"""Detection as translation from patches to objects: DETR (*End-to-End Object Detection with Transformers*, Carion et
al. 2020), whose queries may carry a box that each layer refines (DAB-DETR, Liu et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Annotated, Any, Literal, final

import torch
from annotated_types import Ge, Le, Lt
from torch import nn
from torch.nn import functional

from jarilab.attention.geometry import geometry_of
from jarilab.attention.kernels import Kernel
from jarilab.boxes import Detected
from jarilab.encodings.base import Encoding, Site
from jarilab.encodings.compose import LayerEncodings, Sum, part_spec, parts_of
from jarilab.errors import UserError
from jarilab.masks import Mask
from jarilab.models.base import registry
from jarilab.models.encoder_decoder import DecoderLayer, Encoder, LayerOptions
from jarilab.nn.layers import Activation, NormPlace, Table
from jarilab.patches import Images, grid_of, patch_keep, patchify
from jarilab.positions import Positions
from jarilab.shapes import Bool, Float, Tensor

STRIDE = 8
"""Pixels along a side of what becomes one token."""

QUERIES = "queries"
"""The frame of queries that have no place in the image."""

Stem = Literal["convolutions", "patches"]
QueryPositions = Literal["boxes", "vectors"]


@registry.register("detector")
@final
class Detector(nn.Module):
    """Images in, and for each of N object queries a box and scores of its classes, the last of which is "nothing".

        model = jarilab.Detector(1, 10)
        found = model(pixels_BCHW)          # found.scores (S, B, N, 11), found.boxes (S, B, N, 4), of all S layers

    channels: of the images. classes: how many there are, without "nothing". queries: the most objects of an image.
    query_positions: where queries are. `boxes`: each starts at a learned box, whose middle is a place in the image
    like that of a patch, so that any encoding works between the two. `vectors`: nowhere; a learned vector is added to
    its queries and keys in each layer (DETR). refinement: each layer moves the boxes, and looks from where the one
    before left them; otherwise each starts from the learned ones anew. stem: what makes tokens of 8 x 8 pixels, three
    convolutions of stride 2 or a linear map of patches; the former see across, and know the rim from its zeros.
    encoding: the spec for encoder, decoder and the attention between; DETR's is
    sinusoidal2d:where=inject,normalised=true, with which less was found. encoder_encoding, decoder_encoding,
    cross_encoding: for one of them alone.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        width: Annotated[int, Ge(4), Le(65536)] = 96,
        heads: Annotated[int, Ge(1), Le(1024)] = 8,
        encoder_layers: Annotated[int, Ge(1), Le(1000)] = 3,
        decoder_layers: Annotated[int, Ge(1), Le(1000)] = 3,
        hidden: Annotated[int, Ge(1), Le(262144)] | None = None,
        queries: Annotated[int, Ge(1), Le(10000)] = 8,
        query_positions: QueryPositions = "boxes",
        refinement: bool = True,
        stem: Stem = "convolutions",
        encoding: str = "rotary2d",
        encoder_encoding: str | None = None,
        decoder_encoding: str | None = None,
        cross_encoding: str | None = None,
        norm: NormPlace = "pre",
        activation: Activation = "relu",
        dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
        kernel: Kernel = "auto",
    ):
        super().__init__()
        self.channels = channels
        self.stem = (
            ConvolutionStem(channels, width)
            if stem == "convolutions"
            else PatchStem(channels, width)
        )
        options = LayerOptions(width, heads, hidden, norm, activation, dropout, kernel)
        self.encoder = Encoder(
            layers=encoder_layers, encoding=encoder_encoding or encoding, **asdict(options)
        )
        _check_axes(self.encoder.encoding)
        specs = decoder_encoding or encoding, cross_encoding or encoding
        if query_positions == "boxes":
            _check_fractions(*specs)
        self.decoder = QueryDecoder(
            options, decoder_layers, specs, queries, query_positions, refinement
        )
        self.generator = nn.Linear(width, classes + 1)
        self.box = nn.Sequential(
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 4),
        )

    @staticmethod
    def check(options: Mapping[str, Any]) -> None:
        """Raises UserError for options of which no detector can be made, whatever its images are."""
        Detector(1, 1, **{**options, "encoder_layers": 1, "decoder_layers": 1})

    def forward(self, images: Float[Tensor, "B C H W"] | Images) -> Detected:
        """What each layer of the decoder says. Padding stands below and to the right of images, and boxes are shares
        of what is no padding. Raises UserError for images of other channels."""
        images = self._padded(Images.of(images))
        places, keep = self.places(images), patch_keep(images.keep, STRIDE)
        memory = self.encoder(self.stem(images.pixels), positions=places, keep=keep)
        scores, boxes = [], []
        for said_BND, reference_BN4 in self.decoder(memory, places, keep, self.box):
            scores.append(self.generator(said_BND).float())
            boxes.append(reference_BN4.sigmoid())
        return Detected(torch.stack(scores), torch.stack(boxes))

    def places(self, images: Images) -> Positions:
        """Where the tokens of the image are: rows and columns in row-major order."""
        images = self._padded(images)
        places = Positions.grid(*grid_of(images.size, STRIDE), device=images.pixels.device)
        if images.keep is None:
            return places
        sides = [images.keep.any(axis).sum(1) for axis in (2, 1)]
        return replace(places, extent=torch.stack(sides, 1) / STRIDE)

    def max_positions(self) -> dict[str, int | None]:
        """Nothing that a task could be too long for: an encoding with an end says so when it is passed."""
        return {}

    def _padded(self, images: Images) -> Images:
        """The images with sides that the stride divides, black where there is padding."""
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
        return Images(
            functional.pad(pixels, (0, beside, 0, below)),
            functional.pad(keep, (0, beside, 0, below)),
        )


@final
class QueryDecoder(nn.Module):
    """The layers through which object queries read an image."""

    def __init__(
        self,
        options: LayerOptions,
        layers: int,
        specs: tuple[str, str],
        queries: int,
        positions: QueryPositions,
        refinement: bool,
    ):
        super().__init__()
        self.refinement = refinement and positions == "boxes"
        self.encoding = options.encodings(specs[0], layers)
        _check_axes(self.encoding)
        self.cross_encoding = _between(options, specs[1], layers)
        self.layers = nn.ModuleList(DecoderLayer(options) for _ in range(layers))
        self.norm = options.last_norm()
        self.content = Table(queries, options.width)
        self.anchors = Table(queries, 4) if positions == "boxes" else None
        self.slots = (
            Slots(self.encoding.of_layer[0].site, queries) if positions == "vectors" else None
        )

    def forward(
        self,
        memory: Float[Tensor, "B L D"],
        places: Positions,
        keep: Bool[Tensor, "B L"] | None,
        box: nn.Module,
    ) -> list[tuple[Float[Tensor, "B N D"], Float[Tensor, "B N 4"]]]:
        """For each layer the queries, and the logits of their boxes, which `box` moves."""
        x = self.content(len(memory))
        reference_BN4 = (
            x.new_zeros(*x.shape[:2], 4) if self.anchors is None else self.anchors(len(memory))
        )
        mask = None if keep is None else Mask(keys=keep)
        found = []
        for i, layer in enumerate(self.layers):
            q_pos = self._places(reference_BN4, places)
            own = geometry_of(self._with_slots(self.encoding, i), q_pos, q_pos)
            cross = geometry_of(self._with_slots(self.cross_encoding, i), q_pos, places, mask)
            x = layer(self.encoding.embed(x, q_pos) if i == 0 else x, memory, own, cross)
            said = self.norm(x)
            moved_BN4 = reference_BN4 + box(said).float()
            found.append((said, moved_BN4))
            if self.refinement:
                # Each layer answers for its own step only (Deformable DETR, Zhu et al. 2021, appendix A.4).
                reference_BN4 = moved_BN4.detach()
        return found

    def _places(self, reference_BN4: Float[Tensor, "B N 4"], places: Positions) -> Positions:
        """The middles of the boxes on the grid of patches; nowhere where queries have no boxes."""
        count = reference_BN4.shape[1]
        if self.anchors is None:
            return replace(Positions.nowhere(count, places), frame=QUERIES)
        assert places.extent is not None
        extent = places.extent if places.extent.ndim == 1 else places.extent.unsqueeze(1)
        # A patch's place is that of its middle, and a box is x, y, ... where a grid is row, column.
        coordinates = reference_BN4[..., [1, 0]].float().sigmoid() * extent - 0.5
        return replace(
            places, coordinates=coordinates, order=torch.arange(count, device=coordinates.device)
        )

    def _with_slots(self, encodings: LayerEncodings, layer: int) -> Encoding:
        encoding = encodings.of_layer[layer]
        return encoding if self.slots is None else Sum([encoding, self.slots])


def _between(options: LayerOptions, spec: str, layers: int) -> LayerEncodings:
    """The encoding between queries and image. Raises UserError that says what to do where it can be in the encoder
    and the decoder only."""
    try:
        encodings = options.encodings(spec, layers, cross=True)
    except UserError as error:
        _check_axes(options.encodings(spec, layers))  # what is wrong everywhere is told as it is
        raise UserError(
            f"{error}, and none between queries and image, where there is no input to add to: "
            "--set model.cross_encoding=none"
        ) from None
    _check_axes(encodings)
    return encodings


def _check_axes(encodings: LayerEncodings) -> None:
    """Raises UserError for an encoding that is not of an image's rows and columns."""
    encodings.check_axes(Positions.grid(1, 1).axes)


def _check_fractions(decoder: str, cross: str) -> None:
    """Raises UserError where queries with boxes, which stand between patches, get an encoding of whole places."""
    given = {"decoder_encoding": decoder, "cross_encoding": cross}
    specs = {name: [part_spec(part)[0] for part in parts_of(spec)] for name, spec in given.items()}
    whole = {
        name: next((s for s in of if getattr(s.target, "whole", False)), None)
        for name, of in specs.items()
    }
    if any(whole.values()):
        first = next(filter(None, whole.values()))
        others = " ".join(f"--set model.{name}=rotary2d" for name, found in whole.items() if found)
        raise UserError(
            f"{first} knows whole places alone, and object queries stand between patches; leave it to the encoder and "
            f"choose another for the queries, {others}, or let queries stand nowhere, --set "
            "model.query_positions=vectors"
        )


@final
class Slots(Encoding):
    """A learned vector for each object query, added wherever queries and keys are made of it (DETR, section 3.2)."""

    axes = (1, 2)

    def __init__(self, site: Site, queries: int):
        super().__init__(site)
        self.weight = nn.Parameter(torch.empty(queries, site.width))
        self.reset()

    def inject(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return x + self.weight.to(x.dtype) if pos.frame == QUERIES else x

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        nn.init.normal_(parameter, generator=generator)


@final
class ConvolutionStem(nn.Module):
    """Three convolutions of stride 2: `(B, C, H, W)` to `(B, L, D)`, row by row."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        widths = (channels, max(1, width // 4), max(1, width // 2), width)
        self.layers = nn.ModuleList(
            nn.Conv2d(narrow, wide, 3, stride=2, padding=1) for narrow, wide in pairwise(widths)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, pixels: Float[Tensor, "B C H W"]) -> Float[Tensor, "B L D"]:
        x = pixels
        for layer in self.layers:
            x = functional.gelu(layer(x))
        return self.norm(x.flatten(2).transpose(1, 2))


@final
class PatchStem(nn.Module):
    """One linear map of each patch: `(B, C, H, W)` to `(B, L, D)`, row by row."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.map = nn.Linear(channels * STRIDE**2, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, pixels: Float[Tensor, "B C H W"]) -> Float[Tensor, "B L D"]:
        return self.norm(self.map(patchify(pixels, STRIDE)))
