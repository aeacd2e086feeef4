"""Reading images: every way to store one, and every way to damage it."""

import os
import struct
import tracemalloc
import warnings
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, JpegImagePlugin

from jarilab.core.errors import UserError
from jarilab.data.images import image_files
from jarilab.data.images.image_files import decode, read_bytes, read_image

COLOURS = torch.tensor([[[250, 0], [0, 90], [40, 255]], [[0, 240], [0, 90], [120, 255]], [[0, 0], [230, 90], [9, 255]]],
                       dtype=torch.uint8)  # (3, 3, 2)  # fmt: skip


BMP_OF_NOTHING = b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, 0, 0, 1, 24, 0, 0, 0, 0, 0, 0)


def image(pixels: torch.Tensor = COLOURS, mode: str = "RGB") -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).numpy()).convert(mode)


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    stream = BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def noise(height: int, width: int) -> Image.Image:
    return image(torch.randint(0, 256, (3, height, width), dtype=torch.uint8))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int) -> bytes:
    """A few bytes whose header claims a size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def refused(source: Path | bytes, channels: int = 3) -> str:
    with pytest.raises(UserError) as error:
        read_image(source, channels)
    return str(error.value)


@pytest.mark.parametrize("form", ["PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF"])
def test_what_is_stored_without_loss_comes_back_exactly(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"  # what a file is called does not matter
    path.write_bytes(saved(image(), form, **({"lossless": True} if form == "WEBP" else {})))
    assert torch.equal(read_image(path, 3), COLOURS)
    assert torch.equal(read_image(path.read_bytes(), 3), COLOURS)


def test_jpeg_comes_back_nearly() -> None:
    smooth = torch.linspace(0, 255, 64).expand(3, 48, 64).to(torch.uint8).contiguous()
    pixels = read_image(saved(image(smooth), "JPEG", quality=95), 3)
    assert pixels.shape == (3, 48, 64)
    assert (pixels.int() - smooth.int()).abs().max() <= 4


def test_gray_is_weighed_and_gray_files_have_three_equal_channels() -> None:
    gray = read_image(saved(image(), "PNG"), 1)
    weighed = torch.einsum("chw,c->hw", COLOURS.double(), torch.tensor([0.299, 0.587, 0.114]).double())
    assert gray.shape == (1, 3, 2)
    torch.testing.assert_close(gray[0].double(), weighed, atol=0.51, rtol=0)
    three = read_image(saved(image(mode="L"), "PNG"), 3)
    assert torch.equal(three, gray.expand(3, -1, -1))


@pytest.mark.parametrize("mode", ["1", "P", "YCbCr", "CMYK"])
def test_other_modes_become_colours(mode: str) -> None:
    black_white = torch.tensor([[[0, 255], [255, 0]]] * 3, dtype=torch.uint8)
    form = "TIFF" if mode in ("CMYK", "YCbCr") else "PNG"
    assert torch.equal(read_image(saved(image(black_white, mode), form), 3), black_white)


def test_cmyk_jpeg() -> None:
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(3, 1, 1).expand(3, 16, 16).contiguous()
    pixels = read_image(saved(image(red, "CMYK"), "JPEG", quality=100), 3)
    assert (pixels.int() - red.int()).abs().max() <= 4


def test_twelve_bits_of_grey_are_spread_over_all() -> None:
    """Two samples in three bytes: 0x800, half of white, and 0xFFF."""
    tags = [(256, 2), (257, 1), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 3)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    data = (
        b"II*\0"
        + struct.pack("<I", 12)
        + bytes((0x80, 0x0F, 0xFF, 0))
        + struct.pack("<H", len(tags))
        + entries
        + bytes(4)
    )
    assert read_image(data, 1).tolist() == [[[128, 255]]]


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_become_eight(form: str) -> None:
    values = np.array([[0, 255, 256, 0x8000, 0xFFFF]], dtype=np.uint16)
    stored = {"PPM": b"P5 5 1 65535 " + values.astype(">u2").tobytes()}
    data = stored.get(form) or saved(Image.fromarray(values), form)
    assert read_image(data, 1).tolist() == [[[0, 0, 1, 128, 255]]]


@pytest.mark.parametrize(("mode", "words"), [("I", "32 bits"), ("F", "fractions")])
def test_pixels_without_a_white_are_refused(mode: str, words: str) -> None:
    assert f"expected 8 or 16 bits a channel; got {words}" in refused(saved(image(mode=mode), "TIFF"))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode: str) -> None:
    if mode == "P":
        image = Image.fromarray(np.array([[0, 1]], dtype=np.uint8)).convert("P")
        image.putpalette([0, 0, 0, 200, 200, 200])
        data = saved(image, "PNG", transparency=0)
    else:
        image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
        image.putpixel((1, 0), (200, 200, 200, 255))
        data = saved(image.convert(mode), "PNG")
    assert read_image(data, 1).tolist() == [[[255, 200]]]


def test_half_transparent_is_half_white() -> None:
    assert read_image(saved(Image.new("RGBA", (1, 1), (0, 0, 0, 128)), "PNG"), 1).item() == pytest.approx(127, abs=1)


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame_is_taken_and_that_is_said(form: str) -> None:
    first, second = Image.new("RGB", (4, 4), "black"), Image.new("RGB", (4, 4), "white")
    still = decode(saved(first, form), 1)
    moving = decode(saved(first, form, save_all=True, append_images=[second]), 1)
    assert (still.animated, moving.animated) == (False, True)
    assert moving.pixels.max() < 3


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright(form: str, orientation: int) -> None:
    """The four corners of an L, stored as each orientation would have it (EXIF 2.3, section 4.6.4, tag 274)."""
    upright = torch.zeros(1, 64, 32, dtype=torch.uint8)
    upright[0, :32, :16] = 255
    undo = {1: [], 2: ["h"], 3: ["h", "v"], 4: ["v"], 5: ["t"], 6: ["t", "v"], 7: ["t", "h", "v"], 8: ["t", "h"]}
    stored = upright
    for step in undo[orientation]:
        stored = stored.mT if step == "t" else stored.flip(2 if step == "h" else 1)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(image(stored.expand(3, -1, -1).contiguous()), form, exif=exif)
    decoded = decode(data, 1)
    assert (decoded.height, decoded.width) == (64, 32)
    torch.testing.assert_close(decoded.pixels.int(), upright.int(), atol=12, rtol=0)


def test_long_images_are_scaled_down_and_short_ones_are_not() -> None:
    data = saved(noise(40, 100), "PNG")
    decoded = decode(data, 3, longest=50)
    assert decoded.pixels.shape == (3, 20, 50)
    assert (decoded.height, decoded.width) == (40, 100)
    assert read_image(data, 3, 100).shape == (3, 40, 100)
    assert read_image(saved(noise(1, 500), "PNG"), 3, 20).shape == (3, 1, 20)


def test_large_photographs_are_decoded_small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    load = JpegImagePlugin.JpegImageFile.load

    def spied(image: ImageFile.ImageFile) -> Any:
        sizes.append(image.size)
        return load(image)

    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load", spied)
    data = saved(noise(1600, 2400), "JPEG")
    decoded = decode(data, 3, longest=300)
    assert decoded.pixels.shape == (3, 200, 300)
    assert (decoded.height, decoded.width) == (1600, 2400)
    assert decode(data, 3, enough=150).pixels.shape == (3, 200, 300)
    assert decode(data, 3, enough=250).pixels.shape == (3, 400, 600)
    assert sizes[0] == (600, 400)
    assert min(min(size) for size in sizes) >= 200


def test_bombs_are_refused_by_their_header() -> None:
    for width, height in ((8192, 8193), (10_000, 10_000)):
        assert (
            f"expected at most 67,108,864 pixels; its header says {width:,} x {height:,}; make it smaller"
            in refused(png(width, height))
        )
    assert "its header says more; make it smaller" in refused(png(100_000, 100_000))
    assert "damaged or cut" in refused(png(8192, 8192))  # as many as may be: what follows is looked at


def test_large_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.png"
    with path.open("wb") as stream:
        stream.truncate(image_files.MAX_FILE_BYTES + 1)
    assert f"{path}: expected an image of at most 536,870,912 bytes; got 536,870,913" in refused(path)
    monkeypatch.setattr(image_files, "MAX_FILE_BYTES", 10)
    path.write_bytes(bytes(10))
    assert read_bytes(path) == bytes(10)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_cut_files_are_refused_wherever_they_are_cut(form: str, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    data = saved(noise(40, 40), form)
    path = tmp_path / "cut.png"
    for size in (1, 5, 20, len(data) // 3, len(data) // 2, len(data) * 9 // 10):
        path.write_bytes(data[:size])
        assert refused(path).startswith(f"{path}: expected ")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_damaged_files_are_read_or_refused(form: str, capfd: pytest.CaptureFixture) -> None:
    intact = saved(noise(12, 12), form, **({"exif": Image.Exif()} if form == "JPEG" else {}))
    generator = np.random.default_rng(3)
    outcomes = set()
    for _ in range(200):
        data = bytearray(intact)
        for place in generator.integers(0, min(len(data), 200), 3):
            data[place] = generator.integers(256)
        try:
            outcomes.add(read_image(bytes(data), 3).dtype)
        except UserError as error:
            outcomes.add(str(error).partition("expected")[0])
    # Each part of a PNG carries a checksum.
    assert outcomes == {"the image: "} | (set() if form == "PNG" else {torch.uint8})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "data", [b"<!DOCTYPE html><html>", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"text", png(0, 5), bytes(5000),
             b"P6 0 3 255 ", BMP_OF_NOTHING, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"]
)  # fmt: skip
def test_what_is_no_image_is_refused(data: bytes) -> None:
    words = refused(data)
    assert words.startswith("the image: expected PNG, JPEG, GIF, BMP, WebP, TIFF or PPM with at least one pixel; ")
    assert repr(data[:12]) in words


def test_nothing_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    empty, pipe = tmp_path / "empty.png", tmp_path / "pipe.png"
    empty.touch()
    os.mkfifo(pipe)
    assert refused(empty) == f"{empty}: expected an image; got an empty file; fetch or save it again"
    assert refused(tmp_path) == f"{tmp_path}: expected a file; got a folder; name a file"
    assert refused(pipe) == f"{pipe}: expected a file; got no regular file; name a file"
    assert "got a path that does not exist" in refused(tmp_path / "none.png")


def test_channels_are_one_or_three() -> None:
    assert refused(b"", 4) == "expected 1 channel (gray) or 3 (RGB); got 4; ask for one of them"


def test_no_warning_of_pillow_is_seen() -> None:
    transparent = image()
    transparent.info["transparency"] = b"\0"
    palette = Image.new("P", (2, 2))
    data = saved(palette, "PNG", transparency=bytes([0, 128]))  # Pillow warns of transparency in bytes
    huge = saved(image(mode="RGB"), "TIFF")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_image(data, 3)
        read_image(huge[:8] + huge[8:], 3)
        refused(png(10_000, 9_000))  # a decompression bomb for Pillow too
    assert not caught


@pytest.mark.parametrize(("brightest", "bits"), [(255, 8), (880, 10), (4095, 12)])
@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_few_bits_of_grey_stored_in_sixteen_are_spread_over_all(form: str, brightest: int, bits: int) -> None:
    values = np.array([[0, brightest // 2, brightest]], dtype=np.uint16)
    decoded = decode(saved(Image.fromarray(values), form), 1)
    assert decoded.pixels.flatten().tolist() == [value >> bits - 8 for value in values[0].tolist()]
    assert decoded.remarks() == [f"images of 16 bits whose values need {bits}, scaled as such"]


def test_sixteen_bits_that_are_used_or_black_have_no_remark() -> None:
    for brightest in (0, 4096):
        values = np.array([[0, brightest]], dtype=np.uint16)
        decoded = decode(saved(Image.fromarray(values), "PNG"), 1)
        assert decoded.remarks() == []
        assert decoded.pixels.flatten().tolist() == [0, brightest >> 8]


def deep_png(brightest: int, kind: int) -> bytes:
    """A pixel of colours (kind 2) or of gray with alpha (kind 4), of 16 bits, on opaque ground."""
    samples = {2: [0, brightest, 0], 4: [brightest, 0xFFFF]}[kind]
    header = struct.pack(">IIBBBBB", 1, 1, 16, kind, 0, 0, 0)
    data = zlib.compress(b"\0" + struct.pack(f">{len(samples)}H", *samples))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", [2, 4])
def test_few_bits_of_colours_stored_in_sixteen_are_refused(kind: int) -> None:
    for brightest in (0, 0xFFFF):
        assert read_image(deep_png(brightest, kind), 3).max() == brightest >> 8
    words = refused(deep_png(1023, kind))
    assert "expected colours that use 16 bits; got a brightest value of 15 of 255 or less" in words
    assert "multiply the values by 64 or 16" in words


def test_a_small_file_takes_little_memory_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "small.png"
    path.write_bytes(bytes(3000))
    tracemalloc.start()
    try:
        assert len(read_bytes(path)) == 3000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
