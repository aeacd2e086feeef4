"""Figures for papers: what is text stays text, sizes are exact, and files name no machine and no date."""

import re
import sys
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.font_manager
import numpy as np
import pytest
import torch

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.figures.figure import Figure
from jarilab.inspect.figures.maps import colours_of, draw_grid, draw_map
from jarilab.inspect.figures.style import FONTS, label
from jarilab.pages.encodings.colours import PLAIN, SIGNED, gradient

HOSTILE = ["$x_1$", "a_b^2", r"\frac{1}{2}", "new\nline", "\x1b[31m", "</text><script>", " the", "", "\ud800", "‮RTL"]
INSTALLED = {face.name for face in matplotlib.font_manager.fontManager.ttflist}


def weights_of(queries: int, keys: int) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(keys), queries)


def texts_of(svg: bytes) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def hostile_figure(**options) -> Figure:
    count = len(HOSTILE)
    return draw_map(weights_of(count, count), HOSTILE, HOSTILE, np.tri(count), **options)


def tape_of_decoder() -> jarilab.Tape:
    torch.manual_seed(0)
    model = jarilab.LanguageModel(11, d_model=16, n_heads=2, n_layers=2, encoding="rotary").eval()
    with torch.no_grad(), jarilab.record(model) as tape:
        model(torch.arange(6)[None])
    return tape


def test_tokens_are_text_in_svg_and_never_mathematics():
    texts = texts_of(hostile_figure().to_bytes(".svg"))
    assert [texts.count(label(token)) for token in HOSTILE] == [2] * len(HOSTILE)
    assert {"query", "key", "attention weight", "masked"} <= set(texts)
    assert {"$x_1$", r"\frac{1}{2}", "new↵line", "‹1B›[31m", "␣the", "∅", "‹D800›"} <= set(texts)


@pytest.mark.parametrize(("width", "height"), [(8.5, None), (17.5, 20), (4.25, 9.13)])
def test_sizes_are_exact(width, height):
    figure = draw_map(weights_of(5, 7), list("abcde"), list("tuvwxyz"), width=width, height=height, font_size=6)
    assert figure.size[0] == pytest.approx(width)
    height = figure.size[1] if height is None else height
    svg = ElementTree.fromstring(figure.to_bytes(".svg"))
    points = [float(svg.attrib[side].removesuffix("pt")) for side in ("width", "height")]
    (box,) = re.findall(rb"/MediaBox \[ 0 0 (\S+) (\S+) \]", figure.to_bytes(".pdf"))
    for measured in (points, map(float, box)):
        assert [side / 72 * 2.54 for side in measured] == pytest.approx([width, height], abs=1e-3)
    png = figure.to_bytes(".png", dpi=200)
    pixels = [int.from_bytes(png[start : start + 4], "big") for start in (16, 20)]
    assert pixels == pytest.approx([width / 2.54 * 200, height / 2.54 * 200], abs=1)


@pytest.mark.parametrize("suffix", [".svg", ".pdf", ".png"])
def test_files_are_the_same_bytes_and_name_no_machine_and_no_date(suffix):
    contents = hostile_figure().to_bytes(suffix)
    assert contents == hostile_figure().to_bytes(suffix)
    pieces = [contents]
    for start in re.finditer(rb"stream\r?\n", contents):
        try:
            pieces.append(zlib.decompressobj().decompress(contents[start.end() :]))
        except zlib.error:
            continue
    for path in (Path.home(), Path.cwd(), Path(matplotlib.__file__).parent, "/usr/share", "/tmp"):
        assert not any(str(path).encode() in piece for piece in pieces)
    assert not re.search(rb"CreationDate|<dc:date>|tIME", contents)


def test_pdf_files_embed_their_fonts():
    pdf = draw_map(weights_of(2, 2), ["ab", "cd"], ["한국", "어"]).to_bytes(".pdf")
    fonts = re.findall(rb"/FontDescriptor /FontName.*?>>", pdf, re.DOTALL)
    assert fonts
    assert all(b"/FontFile2" in font for font in fonts)
    assert b"/Type3" not in pdf
    for font in re.finditer(rb"<< /Length1 .*?>>\nstream\r?\n", pdf, re.DOTALL):
        # PostScript outlines in a stream for TrueType: printers refuse them.
        assert zlib.decompressobj().decompress(pdf[font.end() :])[:4] == b"\0\1\0\0"


@pytest.mark.skipif(not INSTALLED & set(FONTS), reason="no font with Hangul is installed")
def test_korean_tokens_are_text():
    tokens = ["나는", "학교에", "간다"]
    texts = texts_of(draw_map(weights_of(3, 3), tokens, tokens, title="첫 층").to_bytes(".svg"))
    assert {*tokens, "첫 층"} <= set(texts)


def test_letters_without_a_font_are_named():
    with pytest.raises(UserError, match=r"no installed font has the letters \U000f0000.*install.*font="):
        Figure({}, ["\U000f0000"])


def drawn(maps: list[np.ndarray], values: np.ndarray) -> np.ndarray:
    """The colours of values on the scale of some maps, from 0 to 255."""
    colours = colours_of(maps, None)
    shares = (values - colours["vmin"]) / (colours["vmax"] - colours["vmin"])
    return colours["cmap"](shares, bytes=True).astype(int)


def test_masked_keys_are_hatched_and_not_the_colour_of_zero():
    map_QK = np.array([[1.0, np.nan], [0.0, 1.0]])
    assert drawn([map_QK], map_QK)[..., 3].tolist() == [[255, 0], [255, 255]]
    hatched = draw_map([[1, 0], [0, 1]], "ab", "ab", [[1, 0], [1, 1]]).to_bytes(".svg")
    assert b"<pattern" in hatched
    plain = draw_map([[1, 0], [0, 1]], "ab", "ab").to_bytes(".svg")
    assert b"<pattern" not in plain
    assert b"masked" not in plain


def test_colours_are_those_of_the_pages():
    colours = drawn([np.ones((2, 2))], np.linspace(0, 1, 256))[:, :3]
    assert np.abs(colours - gradient(PLAIN, 256)).max() <= 8


def test_numbers_below_0_have_the_signed_colours_of_the_pages():
    map_QK = np.array([[-0.5, 2.0]])
    scale = colours_of([map_QK], None)
    assert (scale["vmin"], scale["vmax"]) == (-2, 2)
    colours = drawn([map_QK], np.linspace(-2, 2, 256))[:, :3]
    assert np.abs(colours - gradient(SIGNED, 256)).max() <= 4


def test_the_scale_ends_at_1_for_few_tokens_and_at_the_largest_weight_for_many():
    assert colours_of([np.full((24, 24), 0.25)], None)["vmax"] == 1
    assert colours_of([np.full((25, 25), 0.25)], None)["vmax"] == 0.25
    assert colours_of([np.full((25, 25), 0.25)], 0.5)["vmax"] == 0.5


def test_a_transparent_figure_has_no_ground():
    ground = b'style="fill: #ffffff"'
    assert ground in hostile_figure().to_bytes(".svg")
    assert ground not in hostile_figure(transparent=True).to_bytes(".svg")


def test_a_figure_of_a_tape_has_its_weights():
    tape = tape_of_decoder()
    figure = tape.figure("decoder.1.self", 1, tokens=list("abcdef"))
    expected = draw_map(tape.weights("decoder.1.self")[0, 1].double(), "abcdef", "abcdef", np.tri(6))
    assert figure.to_bytes(".svg") == expected.to_bytes(".svg")


def test_a_grid_of_a_tape_has_a_map_for_each_head():
    texts = texts_of(tape_of_decoder().figure().to_bytes(".svg"))
    assert {"L0", "L1", "0", "1", "layer", "head", "masked"} <= set(texts)
    svg = tape_of_decoder().figure("decoder.0.self").to_bytes(".svg")
    assert svg.count(b"<image") == 2 + 1, "two heads and the bar"


def test_words_are_merged_as_in_measures():
    tape = tape_of_decoder()
    texts = texts_of(tape.figure("decoder.0.self", 0, tokens=list("abcdef"), words=[0, 0, 1, 1, 2, 2]).to_bytes(".svg"))
    assert {"ab", "cd", "ef"} <= set(texts)


def test_a_figure_is_saved_by_the_ending_of_its_name(tmp_path):
    figure = draw_grid([[weights_of(3, 3)], [weights_of(2, 4), weights_of(3, 3)]], ["L0", "L1"])
    for name, start in {"a.svg": b"<?xml", "b.PDF": b"%PDF", "c.png": b"\x89PNG"}.items():
        assert figure.save(tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(UserError, match=r"dpi from 10 to 2400 .*got 0; journals"):
        figure.save(tmp_path / "x.png", dpi=0)
    with pytest.raises(UserError, match=r"ends in \.svg, \.pdf, \.png, got the ending '\.jpg'; name"):
        figure.save(tmp_path / "x.jpg")
    assert {path.name for path in tmp_path.iterdir()} == {"a.svg", "b.PDF", "c.png"}


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("decoder.9", 0), {}, "unknown site 'decoder.9'.*decoder.1.self"),
        (("decoder.0.self", 7), {}, "heads 0 to 1, got 7"),
        ((None, 1), {}, "site and head, got site=None and head=1; give such as"),
        (("decoder.0.self", 0, "pie"), {}, "unknown kind of figure 'pie'"),
        (("decoder.0.self", 0, "grid"), {}, "kind grid needs no head"),
        (
            ("decoder.0.self", 0, "lines"),
            {"height": 2, "font_size": 40},
            "no room in 8.5 x 2 ",
        ),
        (("decoder.0.self", 0), {"font": __file__}, "expected a font file, got .*test_maps.py, which cannot be read"),
        (("decoder.0.self", 0), {"widht": 9}, "unknown option of figures 'widht'; did you mean 'width'"),
        (("decoder.0.self", 0), {"width": 0.1}, "width from 3 to 100 centimetres, got 0.1;"),
        (("decoder.0.self", 0), {"font": "Nonesuch"}, "got 'Nonesuch'; leave font out"),
        (("decoder.0.self", 0), {"high": 0}, "above 0, got 0"),
        (("decoder.0.self", 0), {"width": 3, "font_size": 20}, "no room in 3 x"),
        (("decoder.0.self", 0), {"tokens": ["a"]}, "each of the 6 queries, got 1"),
    ],
)
def test_bad_requests_are_refused(arguments, options, message):
    with pytest.raises(UserError, match=message):
        tape_of_decoder().figure(*arguments, **options)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.font_manager", None)
    with pytest.raises(UserError, match=r"matplotlib; pip install 'jarilab\[figures\]'"):
        draw_map([[1]], "a", "a")


def test_a_map_of_one_query_is_high_enough_for_its_title():
    narrow = draw_map(weights_of(1, 60), ["q"], [str(key) for key in range(60)])
    svg = ElementTree.fromstring(narrow.to_bytes(".svg"))
    (title,) = (node for node in svg.iter() if node.text == "query")
    half = narrow.width_of(["query"]) / 2.54 * 72 / 2
    assert float(title.attrib["y"]) > half - 0.06 / 2.54 * 72, "the rotated title begins within the figure"


def test_a_title_is_one_line_of_text():
    texts = texts_of(draw_map([[1]], "a", "a", title=" $x$\n\x1b[1m ").to_bytes(".svg"))
    assert "$x$ ‹1B›[1m" in texts


def test_settings_of_matplotlib_change_nothing():
    expected = draw_map(weights_of(2, 2), "ab", "ab").to_bytes(".svg")
    settings: Any = {"svg.fonttype": "path", "font.size": 30, "text.usetex": True, "axes.linewidth": 9}
    with matplotlib.rc_context(settings):
        assert draw_map(weights_of(2, 2), "ab", "ab").to_bytes(".svg") == expected
        assert matplotlib.rcParams["text.usetex"]
