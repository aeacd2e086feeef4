"""Images, and the patches that attention reads them by: cut here and nowhere else, so that models, encodings and
drawings agree on which patch is which."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import UInt8

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.positions.coordinates import Positions

MOST = 1 << 16
"""Patches of an image: a pass over so many already takes minutes."""


@dataclass(frozen=True, eq=False)
class Images:
    """What a model of images reads.

    pixels: `(B, C, H, W)`, normalised as the task says. keep: `(B, H, W)`, False on what was added to make images of
    several sizes alike, or None where there is nothing such.
    """

    pixels: Float[Tensor, "B C H W"]
    keep: Bool[Tensor, "B H W"] | None = None

    @staticmethod
    def of(images: Float[Tensor, "B C H W"] | Images) -> Images:
        """Plain pixels are whole images; Images stay what they are. Raises UserError for anything else."""
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
    """Rows and columns of the patches of an image. Raises UserError where they do not divide it."""
    height, width = size
    if any(side < patch or side % patch for side in size):
        rows, columns = (max(1, side // patch) for side in size)
        raise UserError(
            f"patches of {patch} x {patch} pixels do not fill an image of {height} x {width}; use images of "
            f"{rows * patch} x {columns * patch}, or a patch that divides both sides"
        )
    rows, columns = height // patch, width // patch
    if rows * columns > MOST:
        raise UserError(
            f"an image of {height} x {width} pixels has {rows * columns:,} patches of {patch} x {patch}: expected "
            f"{MOST:,} at most, for each looks at all; make the image smaller or the patch larger"
        )
    return rows, columns


def patchify(pixels: Float[Tensor, "B C H W"], patch: int) -> Float[Tensor, "B L N"]:
    """The patches in row-major order, each the N = C * patch * patch numbers of its channels, rows and columns."""
    height, width = pixels.shape[2:]
    rows, columns = grid_of((height, width), patch)
    cut = pixels.unflatten(3, (columns, patch)).unflatten(2, (rows, patch))  # B C rows P columns P
    patches = cut.permute(0, 2, 4, 1, 3, 5)  # B rows columns C P P
    return patches.flatten(3).flatten(1, 2)


def patch_keep(keep: Bool[Tensor, "B H W"] | None, patch: int) -> Bool[Tensor, "B L"] | None:
    """Which patches hold anything of their image."""
    if keep is None:
        return None
    patches = patchify(keep.unsqueeze(1).float(), patch)
    return (patches > 0).any(-1)


def patch_names(positions: Positions) -> list[str]:
    """Each token of an image as a person reads it: `3,0` is the patch in row 3, column 0; those without a place are
    `[0]`, `[1]`, ..."""
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
    """Those of the first image of a batch; of values without a batch, all."""
    return values if values.ndim == axes else values[0]


@dataclass(frozen=True, eq=False)
class PatchedImage:
    """An image, and where the patches lie on it.

    pixels: `(C, H, W)`. rows, columns: of patches. height, width: of the image, in patches; less than rows and columns
    where padding was added. first: the number of tokens before the first patch. pool: what a class is read from, `mean`
    of the patches, `class` token, or None.
    """

    pixels: UInt8[Tensor, "C H W"]
    rows: int
    columns: int
    height: int | float
    width: int | float
    first: int
    pool: str | None = None
