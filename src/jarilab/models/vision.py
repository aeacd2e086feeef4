"""The Vision Transformer: *An Image is Worth 16x16 Words* (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, Unpack, get_args

import torch
from annotated_types import Ge, Le
from torch import nn
from torch.nn import functional

from jarilab.core.devices import constant
from jarilab.core.errors import UserError, unknown
from jarilab.core.options import unpack_options
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.models.base import registry
from jarilab.models.layers import LayerKeywords, LayerOptions, Layers, Share
from jarilab.models.stacks import Encoder, mean_of_tokens
from jarilab.nn.sublayers import Table
from jarilab.positions.coordinates import Positions
from jarilab.positions.patches import (
    MAX_PATCHES,
    Images,
    grid_of,
    most_varied,
    patch_keep,
    patchify,
)

Pool = Literal["mean", "class"]
Resolution = Literal["refuse", "resize", "rescale", "extrapolate"]


@registry.register("vit")
class VisionTransformer(nn.Module):
    """The Vision Transformer: images in, class scores out.

        model = jarilab.VisionTransformer((1, 28, 28), 10, patch_size=4, encoding="rotary2d")
        scores_BV = model(pixels_BCHW)

    shape: channels, height and width of the training images. classes: number of classes.
    patch_size: pixels along a side of a patch.
    encoding: positional encoding; one for a single axis counts the patches row by row.
    pool: classify by the mean of the patches (mean), or by a class token without a position (class).
    registers: additional tokens without a position (Darcet et al. 2024).
    kept_patches: read only so many patches of each image, those whose pixels vary most, and hide the others as padding
        is hidden. In training they are not computed at all: half of a scanned digit is blank. None reads all.
    drop_path: probability that an example skips a sublayer of the last layer in training.
    resolution: what to do with images of another size than in training: raise an error (refuse), resize the image,
        rescale patch positions to those of training, or extrapolate to further positions. Rescaling interpolates the
        tables of learned2d and table2d, and refuses encodings that accept integer positions only.
    n_layers: layers of the encoder.

    `__init__` has the options of layers, from `d_model` to `kernel`.
    """

    @unpack_options(LayerOptions(n_heads=4, activation="gelu"))
    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        patch_size: Annotated[int, Ge(1), Le(1024)] = 4,
        n_layers: Layers = 4,
        encoding: str = "sinusoidal2d",
        pool: Pool = "mean",
        registers: Annotated[int, Ge(0), Le(1024)] = 0,
        kept_patches: Annotated[int, Ge(1), Le(MAX_PATCHES)] | None = None,
        drop_path: Share = 0.0,
        resolution: Resolution = "refuse",
        **layer: Unpack[LayerKeywords],
    ):
        super().__init__()
        for name, value, choices in (("pool", pool, Pool), ("resolution", resolution, Resolution)):
            if value not in get_args(choices):
                raise unknown(name, value, get_args(choices))
        d_model = LayerOptions(**layer).d_model
        self.shape, self.patch_size = shape, patch_size
        self.pool, self.resolution = pool, resolution
        self.grid, self.kept_patches = grid_of((shape[1], shape[2]), patch_size), kept_patches
        self.embedding = nn.Linear(shape[0] * patch_size**2, d_model)
        nowhere = registers + (pool == "class")
        self.nowhere = Table(nowhere, d_model) if nowhere else None
        self.encoder = Encoder(n_layers=n_layers, encoding=encoding, drop_path=drop_path, **layer)
        self._check_patches(encoding)
        self.generator = nn.Linear(d_model, classes)

    @property
    def _on_axes(self) -> bool:
        """Whether the encoding uses rows and columns; otherwise patches are numbered."""
        return self.encoder.encoding.supports_axes(2)

    def forward(
        self, images: Float[Tensor, "B C H W"] | Images, answer_only: bool = False
    ) -> Float[Tensor, "B V"]:
        """Return the scores of the classes.

        answer_only: if a class token gives the scores, compute it alone in the last layer, as in training. The last map
        then has one row. Raises UserError for images that the model cannot read.
        """
        images = self._fitting(Images.of(images))
        positions = self.places(images)
        unplaced = 0 if self.nowhere is None else len(self.nowhere.weight)
        patches_BLN = patchify(images.pixels, self.patch_size)
        keep_BL = patch_keep(images.keep, self.patch_size)
        if self.kept_patches is not None:
            index_BK = most_varied(patches_BLN, keep_BL, self.kept_patches)
            if self.training:
                patches_BLN = patches_BLN.take_along_dim(index_BK.unsqueeze(-1), 1)
                keep_BL = None if keep_BL is None else keep_BL.take_along_dim(index_BK, 1)
                placed = positions.slice(unplaced, positions.length)
                positions = positions.slice(0, unplaced).concat(placed.take(index_BK))
            else:
                is_kept_BL = patches_BLN.new_zeros(patches_BLN.shape[:2], dtype=torch.bool)
                is_kept_BL = is_kept_BL.scatter(1, index_BK, True)
                keep_BL = is_kept_BL if keep_BL is None else keep_BL & is_kept_BL
        x_BLD = self.embedding(patches_BLN)
        if self.nowhere is not None:
            x_BLD = torch.cat((self.nowhere(x_BLD.shape[0]), x_BLD), 1)
            if keep_BL is not None:
                keep_BL = functional.pad(keep_BL, (unplaced, 0), value=True)
        first = 1 if answer_only and self.pool == "class" else None
        x_BLD = self.encoder(x_BLD, positions=positions, keep=keep_BL, first=first)
        if self.pool == "class":
            return self.generator(x_BLD[:, 0])
        patches_BPD = x_BLD[:, unplaced:]
        keep_BP = None if keep_BL is None else keep_BL[:, unplaced:]
        return self.generator(mean_of_tokens(patches_BPD, keep_BP))

    def places(self, images: Images) -> Positions:
        """Return the positions of the tokens: those without a position first, then patches in row-major order."""
        images = self._fitting(images)
        grid = grid_of(images.size, self.patch_size)
        positions = Positions.grid(*grid, device=images.pixels.device)
        if images.keep is not None:
            positions = self._in_padded(positions, images.keep)
        extent = positions.extent
        assert extent is not None
        if self.resolution == "rescale":
            trained_A = constant(self.grid, extent.device)
            is_other = grid != self.grid
            if images.keep is not None:
                is_other = bool((extent != trained_A).any())
            if is_other:
                positions = self._rescaled(positions, trained_A / extent)
        if not self._on_axes:
            row_L, column_L = positions.coordinates.unbind(-1)
            columns = grid[1] if images.keep is None else extent[:, 1:].ceil().long()
            columns = self.grid[1] if self.resolution == "rescale" else columns
            index_L = row_L * columns + column_L
            positions = Positions(index_L.unsqueeze(-1), positions.order, frame="image")
        if self.nowhere is None:
            return positions
        return Positions.nowhere(len(self.nowhere.weight), positions).concat(positions)

    def _in_padded(self, positions: Positions, keep: Bool[Tensor, "B H W"]) -> Positions:
        """Give each image its own extent, so that its positions do not depend on its padding."""
        positions = replace(positions, extent=_sides(keep) / self.patch_size)
        if self._on_axes and self.resolution != "rescale":
            return positions
        # Padding may lie beyond the last position of its image: it gets the first one.
        is_patch_BL = patch_keep(keep, self.patch_size)
        assert is_patch_BL is not None
        return replace(positions, coordinates=positions.coordinates * is_patch_BL.unsqueeze(-1))

    def _rescaled(self, positions: Positions, scale: Float[Tensor, "*B 2"]) -> Positions:
        """Map the centres of patches to the training grid. Raises UserError if the encoding needs integer positions."""
        if any(encoding.integer_only for encoding in self.encoder.encoding.by_layer):
            raise UserError(
                "the encoding accepts integer positions only, but rescaled patches lie between those of training; use "
                "resolution=extrapolate or resize, or another encoding"
            )
        # Coordinate 0 is the centre of the first patch, half a patch from the edge.
        coordinates = (positions.coordinates + 0.5) * scale.unsqueeze(-2) - 0.5
        extent_A = constant(self.grid, scale.device)
        return replace(positions, coordinates=coordinates, extent=extent_A)

    def max_positions(self) -> dict[str, int | None]:
        """Return how many positions the encoding supports, if larger images read further ones."""
        if self.resolution != "extrapolate":
            return {}
        axes = "rows and columns" if self._on_axes else "patches"
        return {axes: self.encoder.encoding.max_positions}

    def _check_patches(self, encoding: str) -> None:
        """Raises UserError if the encoding supports fewer positions than the image has, or needs hidden patches."""
        known, patches = self.encoder.encoding.max_positions, self.grid[0] * self.grid[1]
        if known is not None and not self._on_axes and known < patches:
            raise UserError(
                f"{encoding} knows {known} positions, but an image has {patches} patches; use positions={patches}, a "
                "larger patch or an encoding without an end"
            )
        if self.kept_patches is not None and self.encoder.encoding.by_layer[0].depends_on_length:
            raise UserError(
                f"{encoding} depends on the number of patches, and kept_patches={self.kept_patches} hides some; omit "
                "kept_patches or choose another encoding"
            )

    def _fitting(self, images: Images) -> Images:
        """Return the images, resized if that option is set. Raises UserError for other channels or sizes."""
        channels, height, width = self.shape
        if images.pixels.shape[1] != channels:
            raise UserError(
                f"the model reads images of {channels} channels, got {images.pixels.shape[1]}; convert them to "
                f"{'grey' if channels == 1 else 'colour'}"
            )
        is_whole = images.keep is None or self.resolution != "resize"
        if images.size == (height, width) and is_whole:
            return images
        if self.resolution == "refuse":
            raise UserError(
                f"the model was trained on images of {height} x {width} pixels, got {images.size[0]} x "
                f"{images.size[1]}; resize them, or say what to do with resolution=resize, rescale or extrapolate"
            )
        return _resized(images, (height, width)) if self.resolution == "resize" else images


def _sides(keep: Bool[Tensor, "B H W"]) -> Int[Tensor, "B 2"]:
    """Return height and width of each image in pixels, without the padding below and to the right."""
    sides = []
    for other_axis in (2, 1):
        is_used_BN = keep.any(other_axis)
        number_N = torch.arange(1, is_used_BN.shape[1] + 1, device=keep.device)
        sides.append((is_used_BN * number_N).amax(1).clamp_min(1))
    return torch.stack(sides, 1)


def _resized(images: Images, size: tuple[int, int]) -> Images:
    """Return the images at another size, each without the padding below and to the right."""
    if images.keep is None:
        return Images(_interpolated(images.pixels, size))
    pixels, keeps = [], []
    for row, (height, width) in enumerate(_sides(images.keep).tolist()):
        part = slice(row, row + 1), slice(height), slice(width)
        pixels.append(_interpolated(images.pixels[part[0], :, part[1], part[2]], size))
        keep_1HW = images.keep[part].float()
        keeps.append(functional.interpolate(keep_1HW.unsqueeze(1), size, mode="nearest")[:, 0] > 0)
    keep_BHW = torch.cat(keeps)
    return Images(torch.cat(pixels), None if bool(keep_BHW.all()) else keep_BHW)


def _interpolated(
    pixels: Float[Tensor, "B C H W"], size: tuple[int, int]
) -> Float[Tensor, "B C h w"]:
    return functional.interpolate(pixels, size, mode="bilinear", antialias=True)
