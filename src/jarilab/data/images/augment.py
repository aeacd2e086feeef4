"""Random changes of images for training, reproducible by the generator's state.

Pixels may have any scale; nothing here depends on which value is black.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Num

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.positions.boxes import area, to_cxcywh, to_xyxy
from jarilab.positions.patches import Images

Pixels = Float[Tensor, "B C H W"]

Targets = Float[Tensor, "B V"]
"""The share of each class in each image."""


def background(pixels_BCHW: Num[Tensor, "B C H W"]) -> Num[Tensor, "B C 1 1"]:
    """Return each image's background per channel: the median of its border pixels."""
    top, bottom = pixels_BCHW[..., 0, :], pixels_BCHW[..., -1, :]
    left, right = pixels_BCHW[..., 0], pixels_BCHW[..., -1]
    border = torch.cat((top, bottom, left, right), -1)
    median_BC = border.median(-1).values
    return median_BC[..., None, None]


def shift(pixels_BCHW: Pixels, most: int, generator: torch.Generator) -> Pixels:
    """Shift each image by up to `most` whole pixels in each direction, filling with its `background`."""
    if most < 0:
        raise UserError(
            f"images are moved by 0 pixels or more; got {most}; give the most they may move"
        )
    batch, _, height, width = pixels_BCHW.shape
    moves_2B1 = torch.randint(-most, most + 1, (2, batch, 1), generator=generator)
    down_B1, right_B1 = moves_2B1
    row_BH, inside_BH = _sources(down_B1, height)
    column_BW, inside_BW = _sources(right_B1, width)
    image_B11 = torch.arange(batch).view(-1, 1, 1)
    moved_BHWC = pixels_BCHW[image_B11, :, row_BH.unsqueeze(2), column_BW.unsqueeze(1)]
    moved_BCHW = moved_BHWC.movedim(-1, 1)
    inside_BHW = inside_BH.unsqueeze(2) & inside_BW.unsqueeze(1)
    return torch.where(inside_BHW.unsqueeze(1), moved_BCHW, background(pixels_BCHW))


def _sources(moves_B1: Int[Tensor, "B 1"], count: int) -> tuple[Tensor, Tensor]:
    """Return, along one axis, the source of each pixel of a shifted image, and whether it lies inside."""
    source_BN = torch.arange(count) - moves_B1
    inside_BN = (source_BN >= 0) & (source_BN < count)
    return source_BN.clamp(0, count - 1), inside_BN


def flip(pixels_BCHW: Pixels, generator: torch.Generator) -> Pixels:
    """Mirror each image left to right with probability one half."""
    mirrored_B111 = torch.rand((len(pixels_BCHW), 1, 1, 1), generator=generator) < 0.5
    return torch.where(mirrored_B111, pixels_BCHW.flip(-1), pixels_BCHW)


@dataclass(frozen=True, eq=False)
class CropWindows:
    """Windows that are cut from B images and enlarged to the image's size.

    In shares of the image. corner: left and top. side: of both width and height, so nothing is distorted.
    """

    corner: Float[Tensor, "B 2"]
    side: Float[Tensor, " B"]

    @staticmethod
    def draw(count: int, most: float, generator: torch.Generator) -> CropWindows:
        """Draw windows: half are the whole image, as in DETR (Carion et al. 2020, section 4).

        The other half have sides from 1 - most to 1, anywhere in the image. Raises UserError if `most` leaves nothing.
        """
        if not 0 <= most < 1:
            raise UserError(
                f"images lose from 0 to less than 1 of each side; got {most}; give the most they may lose"
            )
        chance_4B = torch.rand((4, count), generator=generator)
        cut_B = chance_4B[1] < 0.5
        side_B = 1 - most * chance_4B[0] * cut_B
        room_B = 1 - side_B
        return CropWindows(chance_4B[2:].T * room_B.unsqueeze(1), side_B)

    def pixels(self, images: Images) -> Images:
        """Return the windows' pixels (bilinear). Whole images and padding stay bit-identical."""
        keep, (height, width) = images.keep, images.size
        high_B = torch.full_like(self.side, height)
        wide_B = torch.full_like(self.side, width)
        if keep is not None:
            high_B = keep.any(2).sum(1)
            wide_B = keep.any(1).sum(1)
        row_BH = self._sources(self.corner[:, 1], high_B, height)
        column_BW = self._sources(self.corner[:, 0], wide_B, width)
        cut = _interpolated(images.pixels, 2, row_BH)
        cut = _interpolated(cut, 3, column_BW)
        if keep is not None:
            cut = torch.where(keep.unsqueeze(1), cut, images.pixels)
        return Images(cut, keep)

    def _sources(self, corner_B: Tensor, real_B: Tensor, count: int) -> Float[Tensor, "B N"]:
        """Return the source coordinate of each of `count` pixels in a row or column of `real` pixels."""
        start_B1 = (corner_B * real_B).unsqueeze(1)
        middle_N = torch.arange(count) + 0.5
        source_BN = start_B1 + middle_N * self.side.unsqueeze(1) - 0.5
        last_B1 = (real_B - 1).unsqueeze(1)
        return source_BN.clamp_min(0.0).minimum(last_B1)

    def boxes(
        self, boxes_BM4: Float[Tensor, "B M 4"]
    ) -> tuple[Float[Tensor, "B M 4"], Float[Tensor, "B M"]]:
        """Convert boxes (centre, width, height, in shares of the image) to shares of the windows, cut at their edges.

        Also returns the share of each box's area that is left. Boxes of whole images stay bit-identical.
        """
        side_B11 = self.side.view(-1, 1, 1)
        corners_B14 = self.corner.repeat(1, 2).unsqueeze(1)
        whole_BM4 = to_xyxy(boxes_BM4)
        inside_BM4 = (whole_BM4 - corners_B14) / side_B11
        inside_BM4 = inside_BM4.clamp(0.0, 1.0)
        low_BM2, high_BM2 = inside_BM4.split(2, -1)
        sides_BM2 = (high_BM2 - low_BM2) * side_B11
        left_BM = sides_BM2.prod(-1) / area(whole_BM4)
        # Converting a box to corners and back may change its last digit.
        cut_BM4 = torch.where(side_B11 < 1, to_cxcywh(inside_BM4), boxes_BM4)
        return cut_BM4, left_BM


def _interpolated(
    pixels: Float[Tensor, "B C H W"], axis: int, place_BN: Float[Tensor, "B N"]
) -> Float[Tensor, "B C h w"]:
    """Interpolate rows (axis 2) or columns (axis 3) at fractional coordinates."""
    shape = [len(pixels), 1, 1, 1]
    sizes = list(pixels.shape)
    shape[axis] = sizes[axis] = -1

    def taken(index_BN: Float[Tensor, "B N"]) -> Tensor:
        index = index_BN.long().view(shape)
        return pixels.gather(axis, index.expand(sizes))

    below_BN = place_BN.floor()
    above_BN = (below_BN + 1).clamp_max(pixels.shape[axis] - 1)
    share_BN = place_BN - below_BN
    return taken(below_BN).lerp(taken(above_BN), share_BN.view(shape))


def mixup(
    pixels_BCHW: Pixels,
    targets_BV: Targets,
    alpha: float,
    generator: torch.Generator,
) -> tuple[Pixels, Targets]:
    """Mix each image and its target with another's (Zhang et al. 2018, mixup, section 2).

    Each image has its own share from Beta(alpha, alpha); the paper draws one share for a batch.
    """
    share_B = _shares(len(pixels_BCHW), alpha, generator)
    partner_B = torch.randperm(len(pixels_BCHW), generator=generator)
    return _mixed(pixels_BCHW, partner_B, share_B), _mixed(targets_BV, partner_B, share_B)


def cutmix(
    pixels_BCHW: Pixels,
    targets_BV: Targets,
    alpha: float,
    generator: torch.Generator,
) -> tuple[Pixels, Targets]:
    """Replace a rectangle of each image by another's, and mix the targets by their shares of pixels.

    Yun et al. 2019, CutMix, equations 1 and 2: the share left is from Beta(alpha, alpha), the centre is uniform.
    """
    batch, _, height, width = pixels_BCHW.shape
    share_B = _shares(batch, alpha, generator)
    partner_B = torch.randperm(batch, generator=generator)
    row_B1, column_B1 = torch.rand((2, batch, 1), generator=generator)
    # The rectangle has the image's aspect ratio and covers 1 - share of its area.
    half_B1 = (1 - share_B).sqrt()[:, None] / 2
    row_H = (torch.arange(height) + 0.5) / height
    column_W = (torch.arange(width) + 0.5) / width
    inside_BH = (row_H - row_B1).abs() < half_B1
    inside_BW = (column_W - column_B1).abs() < half_B1
    cut_BHW = inside_BH.unsqueeze(2) & inside_BW.unsqueeze(1)
    left_B = 1 - cut_BHW.float().mean((1, 2))
    others_BCHW = pixels_BCHW[partner_B]
    mixed_BCHW = torch.where(cut_BHW.unsqueeze(1), others_BCHW, pixels_BCHW)
    return mixed_BCHW, _mixed(targets_BV, partner_B, left_B)


def _mixed(
    values: Float[Tensor, "B *rest"], partner_B: Tensor, share_B: Tensor
) -> Float[Tensor, "B *rest"]:
    others = [1] * (values.ndim - 1)
    share = share_B.to(values.dtype).view(-1, *others)
    return share * values + (1 - share) * values[partner_B]


def _shares(count: int, alpha: float, generator: torch.Generator) -> Float[Tensor, " B"]:
    if not alpha > 0:
        raise UserError(
            f"images are mixed by shares from Beta(alpha, alpha): expected alpha above 0; got {alpha}"
        )
    # torch's gamma distribution takes no generator.
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    shares = np.random.default_rng(seed).beta(alpha, alpha, count)
    return torch.from_numpy(shares).float()
