"""Images in another size: averaged, cropped, padded or stretched."""

import numpy as np
import pytest
import torch
from PIL import Image

from jarilab.data.images.resize import resize


def test_resizing_averages_and_agrees_with_pillow() -> None:
    pixels = torch.randint(0, 256, (2, 3, 60, 90), dtype=torch.uint8)
    resized = resize(pixels, (20, 31))
    other = Image.fromarray(pixels[1].permute(1, 2, 0).numpy()).resize((31, 20), Image.Resampling.BILINEAR)
    assert (resized[1].permute(1, 2, 0).int() - torch.from_numpy(np.array(other)).int()).abs().max() <= 1


def test_ways_to_fit() -> None:
    wide = torch.full((1, 1, 4, 12), 50, dtype=torch.uint8)
    wide[..., 4:8] = 200  # the middle third
    assert (resize(wide, (4, 4), "crop") == 200).all()
    padded = resize(wide, (12, 12), "pad")
    assert (padded[0, 0, 4:8] == wide).all()
    assert (padded[0, 0, :4] == 50).all()  # the median of the border, not black
    assert (padded[0, 0, 8:] == 50).all()
    assert resize(wide, (2, 3), "stretch")[0, 0, 0].tolist() == pytest.approx([50, 200, 50], abs=40)
    for fit in ("stretch", "crop", "pad"):
        assert torch.equal(resize(wide, (4, 12), fit), wide)
        assert resize(torch.zeros(1, 3, 1, 100_000, dtype=torch.uint8), (5, 7), fit).shape == (1, 3, 5, 7)
