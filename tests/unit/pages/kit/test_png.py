"""A small image as a PNG."""

import base64

import numpy

from helpers.browser import decode_png
from jarilab.pages.kit.images import data_url, png


def test_an_image_comes_back_as_it_was() -> None:
    pixels = numpy.random.default_rng(0).integers(0, 256, (5, 7, 3))
    assert (decode_png(png(pixels)) == pixels).all()


def test_an_address_holds_it() -> None:
    kind, _, data = data_url(b"image").partition(",")
    assert (kind, base64.b64decode(data)) == ("data:image/png;base64", b"image")
