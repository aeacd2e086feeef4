"""Images and their patches, split here for models, encodings and drawings alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import UInt8

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.positions.coordinates import Positions

# Patches of an image. One pass over so many already takes minutes.
MAX_PATCHES = 1 << 16


@dataclass(frozen=True, eq=False)
class Images:
    """A batch of images, with padding.

    pixels: `(B, C, H, W)`, normalized as the task specifies. keep: `(B, H, W)`, False on padding, or None.
    """

    pixels: Float[Tensor, "B C H W"]
    keep: Bool[Tensor, "B H W"] | None = None

    @staticmethod
    def of(images: Float[Tensor, "B C H W"] | Images) -> Images:
        """Convert pixels `(B, C, H, W)` to Images; returns Images unchanged. Raises UserError for other shapes."""
        if isinstance(images, Images):
            return images
        if images.ndim != 4 or not images.is_floating_point():
            raise UserError(
                f"images are (B, C, H, W) in a floating-point type, got {tuple(images.shape)} in {images.dtype}; "
                "add the missing axes with unsqueeze(0), and bring pixels to about -1 ... 1"
            )
        return Images(images)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, in pixels."""
        return self.pixels.shape[2], self.pixels.shape[3]


def grid_of(size: tuple[int, int], patch: int) -> tuple[int, int]:
    """Rows and columns of patches. Raises UserError if `patch` does not divide the sides or gives too many patches."""
    height, width = size
    if any(side < patch or side % patch for side in size):
        rows, columns = (max(1, side // patch) for side in size)
        raise UserError(
            f"patches of {patch} x {patch} pixels do not fill an image of {height} x {width}; use images of "
            f"{rows * patch} x {columns * patch}, or a patch that divides both sides"
        )
    rows, columns = height // patch, width // patch
    if rows * columns > MAX_PATCHES:
        raise UserError(
            f"an image of {height} x {width} pixels has {rows * columns:,} patches of {patch} x {patch}: expected "
            f"{MAX_PATCHES:,} at most, since attention compares all pairs; make the image smaller or the patch larger"
        )
    return rows, columns


def patchify(pixels: Float[Tensor, "B C H W"], patch: int) -> Float[Tensor, "B L N"]:
    """Patches in row-major order, each N = C * patch * patch values by channel, row and column.

    patch: side in pixels. Raises UserError if it does not divide height and width.
    """
    height, width = pixels.shape[2:]
    rows, columns = grid_of((height, width), patch)
    cut = pixels.unflatten(3, (columns, patch)).unflatten(2, (rows, patch))  # B C rows P columns P
    patches = cut.permute(0, 2, 4, 1, 3, 5)  # B rows columns C P P
    return patches.flatten(3).flatten(1, 2)


def patch_keep(keep: Bool[Tensor, "B H W"] | None, patch: int) -> Bool[Tensor, "B L"] | None:
    """True for patches with any pixel that is not padding."""
    if keep is None:
        return None
    patches = patchify(keep.unsqueeze(1).float(), patch)
    return (patches > 0).any(-1)


def most_varied(
    patches: Float[Tensor, "B L N"], keep: Bool[Tensor, "B L"] | None, count: int
) -> Int[Tensor, "B K"]:
    """Indices of the `count` patches whose values vary most, in ascending order; all if there are fewer.

    keep: padding comes last. Of blank patches, the first are taken.
    """
    variance_BL = patches.var(-1, correction=0)
    if keep is not None:
        variance_BL = variance_BL.masked_fill(~keep, -1)
    # Without it, ties are broken by the program that sorts: PyTorch and ONNX Runtime would hide different patches.
    earlier_first_L = torch.linspace(0, -1e-6, patches.shape[1], device=patches.device)
    chosen_BK = (variance_BL + earlier_first_L).topk(min(count, patches.shape[1]), -1).indices
    return chosen_BK.sort(-1).values


def patch_names(positions: Positions) -> list[str]:
    """Names of the tokens of the first image of a batch.

    `3,0` for row 3, column 0; `[0]`, `[1]`, ... for tokens without a position.
    """
    coordinates_LA = _of_first(positions.coordinates, 2).tolist()
    unplaced_L = [False] * positions.length
    if positions.unplaced is not None:
        unplaced_L = _of_first(positions.unplaced, 1).tolist()
    names, count = [], 0
    for coordinates, unplaced in zip(coordinates_LA, unplaced_L, strict=True):
        if unplaced:
            names.append(f"[{count}]")
            count += 1
        else:
            names.append(",".join(f"{number:g}" for number in coordinates))
    return names


def _of_first(values: Tensor, axes: int) -> Tensor:
    """Values of the first image of a batch; all values if there is no batch axis."""
    return values if values.ndim == axes else values[0]


@dataclass(frozen=True, eq=False)
class PatchedImage:
    """An image and the grid of its patches.

    pixels: `(C, H, W)`. rows, columns: of patches. height, width: of the image in patches; less than rows and columns
    if there is padding. first: the number of tokens before the first patch. pool: what classification reads, `mean` of
    the patches, `class` token, or None. seconds: of the sound whose spectrogram it is, or None.
    """

    pixels: UInt8[Tensor, "C H W"]
    rows: int
    columns: int
    height: int | float
    width: int | float
    first: int
    pool: str | None = None
    seconds: float | None = None
