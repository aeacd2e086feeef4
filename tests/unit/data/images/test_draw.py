"""Grids of images and boxes on one: sizes, colours, and words that are only words."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageFont

from jarilab.core.errors import UserError
from jarilab.data.images.draw import COLOURS, boxes, cut, grid, ink, png


def plain(value: int, height: int = 8, width: int = 8, channels: int = 1) -> torch.Tensor:
    return torch.full((channels, height, width), value, dtype=torch.uint8)


def array(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB")).astype(int)


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5))


def has(image: Image.Image, colour: tuple[int, ...]) -> int:
    return int((array(image) == colour).all(-1).sum())


def test_images_stand_in_rows_enlarged_by_a_whole_number() -> None:
    sheet = grid([plain(10), plain(20, channels=3), plain(30, 4, 8)], 2)
    assert [has(sheet, (gray,) * 3) for gray in (10, 20, 30)] == [72 * 72, 72 * 72, 36 * 72]
    pixels = array(sheet)[..., 0]
    assert (pixels[10, 10], pixels[10, 100], pixels[100, 10], pixels[100, 100]) == (10, 20, 30, 255)
    assert grid([plain(1, 100, 90)], 5).size == (90 + 12, 100 + 12)


def test_captions_are_only_words() -> None:
    bare = grid([plain(255)] * 2, 2)
    captioned = grid([plain(255)] * 2, 2, ["3", ""])
    assert captioned.height > bare.height
    assert has(captioned, (0, 0, 0)) > 0
    assert array(captioned)[:, captioned.width // 2 + 6 :].min() == 255  # nothing beside its own image
    for text in ("a\nb\x1b[31m\0", "\udc80", "<b>&", "%s{0}", "가나다", "x" * 10**6, "\u202eabc"):
        sheet = grid([plain(255)] * 2, 2, [text, ""])
        assert sheet.size == captioned.size
        assert array(sheet)[:, sheet.width // 2 + 6 :].min() == 255


def test_korean_words_are_drawn_by_a_font_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, default = [], ImageFont.load_default(14)

    def system(name: str, size: int) -> object:
        asked.append(name)
        if "Nanum" in name:
            raise OSError("cannot open resource")
        return default

    monkeypatch.setattr(ImageFont, "load_default", lambda size: default)
    monkeypatch.setattr(ImageFont, "truetype", system)
    assert boxes(plain(0), [((1.0, 1.0, 9.0, 9.0), "고양이 98%")]).size == boxes(plain(0), []).size
    assert len(asked) == 2  # the first one that is there
    grid([plain(0)], 1, ["cat"])
    assert len(asked) == 2  # ASCII needs none
    monkeypatch.setattr(ImageFont, "truetype", lambda name, size: system("Nanum", size))
    grid([plain(0)], 1, ["고양이"])  # boxes instead of letters, where there is none


def test_long_words_are_cut_with_dots() -> None:
    font = ImageFont.load_default(14)
    assert cut("three", 100, font) == "three"
    short = cut("three one seven four", 60, font)
    assert short.startswith("thr")
    assert short.endswith("...")
    assert font.getlength(short) <= 60
    assert cut("three", 3, font) == ""


def test_boxes_stand_where_they_are() -> None:
    sheet = boxes(plain(128, 480, 640, 3), [((100.0, 200.0, 300.0, 400.0), "")])
    orange = (array(sheet) == rgb(COLOURS[0])).all(-1)
    rows, columns = orange.any(1).nonzero()[0], orange.any(0).nonzero()[0]
    assert (columns.min(), rows.min(), columns.max(), rows.max()) == (100, 200, 300, 400)
    assert sheet.size == (640, 480)
    assert boxes(plain(0, 48, 48), []).size == (480, 480)


def test_a_kind_has_one_colour_whatever_its_probability() -> None:
    labelled = [
        ((5.0, 5.0, 20.0, 20.0), "cat 98%"),
        ((40.0, 40.0, 60.0, 60.0), "dog 7%"),
        ((70.0, 70.0, 90.0, 90.0), "cat 5%"),
    ]
    sheet = boxes(plain(0, 100, 100), labelled)
    assert [has(sheet, rgb(colour)) > 0 for colour in COLOURS[:3]] == [True, True, False]
    assert (
        len(boxes(plain(0, 100, 100), [(box, str(n)) for n, (box, _) in enumerate(labelled * 4)]).getcolors(10**6)) > 9
    )


def test_lines_and_words_are_seen_on_light_and_dark() -> None:
    for gray in (0, 128, 255):
        changed = array(boxes(plain(gray, 480, 480), [((50.0, 50.0, 300.0, 300.0), "x")]))
        assert np.abs(changed[100:200, 48:56] - gray).max(-1).max(-1).min() >= 100  # along the left side
    for colour in COLOURS:
        light = [((part / 255 + 0.055) / 1.055) ** 2.4 if part > 10 else part / 255 / 12.92 for part in rgb(colour)]
        luminance = math.sumprod((0.2126, 0.7152, 0.0722), light) if hasattr(math, "sumprod") else sum(
            w * x for w, x in zip((0.2126, 0.7152, 0.0722), light, strict=True))  # fmt: skip
        words = 0.0 if ink(colour) == "black" else 1.0
        contrast = (max(words, luminance) + 0.05) / (min(words, luminance) + 0.05)
        assert contrast >= 4.5, colour


@pytest.mark.parametrize("box", [(-50, -50, 1e9, 1e9), (0, 0, 0, 0), (479, 479, 480, 480), (900, 900, 950, 950)])
def test_boxes_beyond_the_image_are_drawn_at_its_border(box: tuple[float, ...]) -> None:
    for text in ("", "x", "long " * 10**5, "\n\0\udc80"):
        sheet = boxes(plain(0, 480, 480), [(tuple(map(float, box)), text)])
        assert sheet.size == (480, 480)
        assert has(sheet, rgb(COLOURS[0])) > 0


def test_tiny_images_can_be_drawn_on() -> None:
    assert boxes(plain(0, 1, 1), [((0.0, 0.0, 1.0, 1.0), "a long name 98%")]).size == (480, 480)
    assert boxes(plain(0, 1, 2000), [((0.0, 0.0, 9.0, 1.0), "x")]).size == (2000, 1)


@pytest.mark.parametrize("box", [(math.nan, 0, 1, 1), (0, 0, math.inf, 1), (5, 0, 1, 1), (0, 5, 1, 1)])
def test_boxes_that_are_none_are_refused(box: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match=r"expected a box as left, top, right, bottom; got .* of 'cat'; mend it"):
        boxes(plain(0), [(tuple(map(float, box)), "cat")])


def test_grids_of_nothing_and_too_much_are_refused() -> None:
    with pytest.raises(UserError, match="expected images and a column or more; got 0 in 3"):
        grid([], 3)
    with pytest.raises(UserError, match="got 1 in 0"):
        grid([plain(0)], 0)
    with pytest.raises(UserError, match="expected a caption for each of 2 images; got 1"):
        grid([plain(0)] * 2, 2, ["x"])
    with pytest.raises(UserError, match="expected a grid of at most 67,108,864 pixels; got"):
        grid([plain(0)] * 20_000, 10)


def test_png_is_a_file_that_comes_back() -> None:
    sheet = grid([plain(7)], 1)
    assert np.array_equal(array(Image.open(io.BytesIO(png(sheet)))), array(sheet))
