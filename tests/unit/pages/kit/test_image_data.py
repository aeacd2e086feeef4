"""Payloads of images."""

import torch

from jarilab.pages.kit.data_blocks import unpacked
from jarilab.pages.kit.image_data import picture_of
from jarilab.positions.patches import PatchedImage


def test_large_image_is_scaled_down() -> None:
    pixels = torch.full((3, 640, 1280), 77, dtype=torch.uint8)
    shown = unpacked(picture_of(PatchedImage(pixels, 4, 8, 4, 8, 0))["pixels"])
    assert shown.shape == (160, 320, 3)
    assert bool((shown == 77).all())


def test_small_image_keeps_its_pixels() -> None:
    pixels = torch.arange(12, dtype=torch.uint8).reshape(1, 3, 4)
    shown = picture_of(PatchedImage(pixels, 2, 2, 1.5, 2, 3, "class"))
    assert unpacked(shown["pixels"])[..., 0].tolist() == pixels[0].tolist()
    assert {name: shown[name] for name in ("rows", "columns", "height", "width", "first", "pool")} == {
        "rows": 2,
        "columns": 2,
        "height": 1.5,
        "width": 2,
        "first": 3,
        "pool": "class",
    }
