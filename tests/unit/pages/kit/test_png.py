"""PNG files."""

import base64

import numpy

from helpers.browser import decode_png
from jarilab.pages.kit.image_data import data_url, png


def test_png_round_trip() -> None:
    pixels = numpy.random.default_rng(0).integers(0, 256, (5, 7, 3))
    assert (decode_png(png(pixels)) == pixels).all()


def test_data_url() -> None:
    kind, _, data = data_url(b"image").partition(",")
    assert (kind, base64.b64decode(data)) == ("data:image/png;base64", b"image")
