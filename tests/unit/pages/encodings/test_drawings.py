"""Drawings of encodings equal the papers' equations."""

import base64
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import jarilab
from helpers.browser import assert_count
from jarilab.core.errors import UserError
from jarilab.encodings.base import Site, registry
from jarilab.encodings.formulas.bias import alibi_slopes, t5_bucket
from jarilab.encodings.formulas.content import shaw_row
from jarilab.encodings.formulas.oracle import Cell, package_oracles
from jarilab.encodings.formulas.rotary import rotary2d_frequencies, rotate_rotary
from jarilab.nn.init import generator_for
from jarilab.pages.encodings import colours, figures
from jarilab.pages.encodings.drawn_encoding import DrawnEncoding, subject_of
from jarilab.pages.encodings.heatmaps import HeatMap
from jarilab.pages.encodings.lines import BOTTOM, LEFT, RIGHT, TOP, Chart, Line
from jarilab.pages.kit.page import read

EXAMPLES = Path(__file__).parents[4] / "examples"
HELPERS = Path(__file__).parents[3] / "helpers"
KERPLE = f"{EXAMPLES / 'my_encoding.py'}:Kerple"
LENGTH, WIDTH, HEADS = 20, 24, 3
HEAD_WIDTH = WIDTH // HEADS
SPECS = [
    *registry.names(),
    "sinusoidal:layout=concatenated",
    "sinusoidal:layout=tensor2tensor",
    "learned:positions=30",
    "rotary:pairing=interleaved,fraction=0.5",
    "shaw:clip=3,values=false",
    "shaw:keys=false",
    "sinusoidal2d:where=inject",
    "learned2d:layout=table,rows=5,columns=5",
    "rotary2d:frequencies=mixed",
    "table2d:rows=3,columns=2",
    "sinusoidal+rotary+alibi",
    "rotary+shaw",
    KERPLE,
    f"{EXAMPLES / 'my_encoding2d.py'}",
    f"{HELPERS / 'toy_encodings.py'}:Wave",
    f"{HELPERS / 'toy_encodings.py'}:Steps",
]
POSITION_TOLERANCE = {"abs": 1e-5, "rel": 1e-5}
"""Angles are computed in float32."""


def subject(spec: str, *, causal: bool = False, heads: int = HEADS, length: int = LENGTH) -> DrawnEncoding:
    width = HEAD_WIDTH * heads
    return subject_of(spec, Site(width, heads, HEAD_WIDTH, HEAD_WIDTH, causal=causal), length, 1)


def drawn(spec: DrawnEncoding | str, **how) -> dict[str, dict]:
    """The numbers of each drawing, by its name."""
    of = subject(spec, **how) if isinstance(spec, str) else spec
    return {one.name: one.as_dict() for one in figures.column_of(of).drawings}


def near(found, expected):
    assert found == pytest.approx(expected, **POSITION_TOLERANCE)


def middle(side: int) -> int:
    return side // 2


# What is drawn is what the formulas say -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    ["sinusoidal", "sinusoidal:layout=concatenated", "sinusoidal:layout=tensor2tensor,base=500", "learned"],
)
def test_added_matrix(spec):
    of = subject(spec)
    told, formula = drawn(of), package_oracles()[spec.partition(":")[0]]
    expected = np.array([formula.embed(of.encoding, p) for p in range(2 * LENGTH)])
    near(told["embed-matrix"]["values"], expected[:LENGTH])
    assert (told["embed-matrix"]["rows"], told["embed-matrix"]["columns"]) == ("position", "dimension")
    for line in told["embed-waves"]["lines"]:
        near(line["y"], expected[:, int(line["label"].removeprefix("dim "))])
    (line,) = told["embed-products"]["lines"]
    products = [[expected[i] @ expected[i + d] for i in range(2 * LENGTH - d)] for d in range(2 * LENGTH)]
    near(line["y"], [np.mean(row) for row in products])
    near(line["low"], [min(row) for row in products])
    near(line["high"], [max(row) for row in products])
    assert line["x"] == list(range(2 * LENGTH))


def test_layouts_permute_columns():
    paper, sorted_ = (
        np.array(drawn(spec)["embed-matrix"]["values"]) for spec in ("sinusoidal", "sinusoidal:layout=concatenated")
    )
    assert np.array_equal(np.concatenate((paper[:, 0::2], paper[:, 1::2]), 1), sorted_)
    near(paper[5, 6], np.sin(5 / 10000 ** (6 / WIDTH)))
    near(sorted_[5, WIDTH // 2 + 3], np.cos(5 / 10000 ** (6 / WIDTH)))


@pytest.mark.parametrize(
    ("spec", "pairs"),
    [
        ("rotary", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("rotary:pairing=interleaved", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("rotary:fraction=0.5", [[0, 2], [1, 3]]),
        ("rotary2d", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ],
)
def test_pairs_of_components(spec, pairs):
    told = drawn(spec)["rotate-pairs"]
    assert (told["groups"], told["components"]) == (pairs, HEAD_WIDTH)


@pytest.mark.parametrize("spec", ["rotary", "rotary:pairing=interleaved,base=50", "rotary:fraction=0.5"])
def test_rotation_angles(spec):
    of = subject(spec)
    told, encoding = drawn(of), of.encoding
    rotated = encoding.rotated
    for i, fan in enumerate(told["rotate-fans"]["fans"]):
        speed = encoding.base ** (-2 * i / rotated)
        turned = [p * speed for p in range(8)]
        near(np.exp(1j * np.array(fan["angles"])), np.exp(1j * np.array(turned)))
        near(np.array(told["rotate-angles"]["values"][i]), np.cos(speed * np.arange(LENGTH)))
    ones = np.ones(HEAD_WIDTH)
    for line in told["rotate-products"]["lines"]:
        assert line["label"] == "all heads"
        assert line["x"] == list(range(-2 * LENGTH, 2 * LENGTH + 1))
        near(line["y"], [rotate_rotary(encoding, ones, d) @ ones / HEAD_WIDTH for d in line["x"]])


def test_slopes_of_heads():
    told = drawn("alibi")
    for slope, line in zip(alibi_slopes(HEADS), told["bias-distance"]["lines"], strict=True):
        near(line["y"], [-slope * abs(d) for d in line["x"]])
    size = np.arange(LENGTH)
    near(np.array(told["bias-map"]["values"]), -alibi_slopes(HEADS)[0] * np.abs(size[:, None] - size))
    assert "bias-distance-near" not in told  # it changes everywhere


@pytest.mark.parametrize("causal", [False, True])
def test_buckets(causal):
    of = subject("t5:buckets=8,distance=20", causal=causal)
    told = drawn(of)
    table = of.encoding.table.detach().numpy()
    buckets = [t5_bucket(int(d), 8, 20, not causal) for d in told["bias-distance"]["lines"][0]["x"]]
    for head, line in enumerate(told["bias-distance"]["lines"]):
        assert max(line["x"]) == (0 if causal else 2 * LENGTH)
        near(line["y"], table[buckets, head])
    closer = told["bias-distance-near"]
    first, columns = closer["first"][1], len(closer["values"][0])
    expected = [t5_bucket(int(first) + step, 8, 20, not causal) for step in range(columns)]
    assert np.array(closer["values"]) == pytest.approx(table[expected].T, rel=1e-5)


def test_hidden_pairs_are_transparent():
    values = drawn("alibi", causal=True)["bias-map"]["values"]
    assert all((values[i][j] is None) == (j > i) for i, j in np.ndindex(LENGTH, LENGTH))


def test_clipped_relations_of_a_query():
    of = subject("shaw:clip=3")
    told, encoding = drawn(of), of.encoding
    query = of._vectors(False)[0][:, 0].numpy()
    key_table, value_table = (t.detach().numpy() for t in (encoding.key_table, encoding.value_table))
    for head, line in enumerate(told["terms-distance"]["lines"]):
        rows = [shaw_row(encoding, 0, d) for d in line["x"]]
        near(line["y"], key_table[rows] @ query[head] / np.sqrt(HEAD_WIDTH))
        assert len(set(line["y"][: 2 * LENGTH - 2])) == 1  # flat from the clip on
    vectors = told["values-vectors"]
    assert vectors["first"][1] == -4  # nothing changes farther off
    rows = [shaw_row(encoding, 0, d) for d in range(-4, 5)]
    near(np.array(vectors["values"]), value_table[rows].T)


def test_rows_and_columns_rotate_separately():
    of = subject("rotary2d", length=36)
    told = drawn(of)
    side = 11
    for t, one in enumerate(told["rotate-plane-angles"]["maps"]):
        by_row, by_column = rotary2d_frequencies(of.encoding, t, HEAD_WIDTH, 0)
        rows, columns = np.mgrid[:side, :side]
        near(np.array(one["values"]), np.cos(by_row * rows + by_column * columns))
    (products,) = told["rotate-plane-products"]["maps"]
    held_against_the_formula(of, products["values"], np.ones((HEADS, 2, HEAD_WIDTH)), 0, 1 / HEAD_WIDTH)


def test_each_head_of_a_mixed_rotation_is_drawn():
    of = subject("rotary2d:frequencies=mixed")
    maps = drawn(of)["rotate-plane-products"]["maps"]
    assert [one["label"] for one in maps] == ["head 0", "head 1", "head 2"]
    for head, one in enumerate(maps):
        ones = np.ones((HEADS, 2, HEAD_WIDTH))
        held_against_the_formula(of, one["values"], ones, head, 1 / HEAD_WIDTH)


@pytest.mark.parametrize("spec", ["alibi2d", "alibi2d:distance=manhattan", "table2d", "shaw2d:clip=2"])
def test_what_is_added_to_scores_on_the_plane(spec):
    of = subject(spec)
    hook = "bias" if "bias" in of.hooks else "terms"
    query, key = (vectors[:, 0].numpy() for vectors in of._vectors(False))
    maps = drawn(of)[f"{hook}-plane"]["maps"]
    assert len(maps) == HEADS
    for head, one in enumerate(maps):
        added = np.array(one["values"])
        plain = query[head] @ key[head] / np.sqrt(HEAD_WIDTH)
        vectors = np.stack((query, key), 1)
        held_against_the_formula(of, added + plain, vectors, head, HEAD_WIDTH**-0.5)


def held_against_the_formula(of, values, vectors, head, scale):
    """Scores of the query in the middle with every cell."""
    formula = package_oracles()[of.spec.partition(":")[0]]
    side = len(values)
    at = Cell(middle(side), middle(side), side, side)
    q_E, k_E = vectors[head]
    for row, column in np.ndindex(side, side):
        expected = formula.score(of.encoding, q_E, k_E, at, Cell(row, column, side, side), head, scale)
        near(values[row][column], expected)


@pytest.mark.parametrize("spec", ["sinusoidal2d", "learned2d", "learned2d:layout=table"])
def test_what_is_added_on_the_plane(spec):
    of = subject(spec)
    told = drawn(of)
    side = len(told["embed-plane-products"]["maps"][0]["values"])
    formula = package_oracles()[spec.partition(":")[0]]
    cells = [Cell(row, column, side, side) for row, column in np.ndindex(side, side)]
    added = np.array([formula.embed(of.encoding, cell) for cell in cells]).reshape(side, side, WIDTH)
    for one in told["embed-plane-dimensions"]["maps"]:
        near(np.array(one["values"]), added[..., int(one["label"].removeprefix("dim "))])
    products = added @ added[middle(side), middle(side)]
    near(np.array(told["embed-plane-products"]["maps"][0]["values"]), products)


def test_an_encoding_of_a_file():
    told = drawn(f"{KERPLE}:slope=0.5")
    (line,) = told["bias-distance"]["lines"]
    assert line["label"] == "all heads"
    near(line["y"], [-0.5 * np.log1p(abs(d)) for d in line["x"]])


def test_one_that_takes_lines_and_planes_is_drawn_on_both():
    told = drawn(f"{HELPERS / 'toy_encodings.py'}:Steps")
    assert {"bias-distance", "bias-map", "bias-plane"} == set(told)
    plane = np.array(told["bias-plane"]["maps"][0]["values"])
    rows, columns = np.mgrid[: len(plane), : len(plane)] - middle(len(plane))
    near(plane, -(abs(rows) + 10.0 * abs(columns)))


# Where it ends --------------------------------------------------------------------------------------------------------


def test_a_drawing_stops_where_positions_end_and_says_so():
    page = jarilab.draw_encodings("learned:positions=30", "learned", length=LENGTH, d_model=8, n_heads=1)
    short, long = page.columns
    lines = {one.name: one for one in short.drawings}["embed-waves"]
    assert len(lines.as_dict()["lines"][0]["y"]) == 30
    assert "positions up to 29; the drawing ends there" in lines.caption[0]
    assert "29까지만" in lines.caption[1]
    assert not any("stops" in one.caption[0] for one in long.drawings)


def test_distances_stop_where_positions_end():
    page = jarilab.draw_encodings("learned:positions=30+alibi", "alibi", length=LENGTH, d_model=8, n_heads=1)
    short, long = ({one.name: one for one in column.drawings}["bias-distance"] for column in page.columns)
    assert short.as_dict()["lines"][0]["x"] == list(range(-14, 16))
    assert "positions up to 29; the drawing ends there" in short.caption[0]
    assert "stops" not in long.caption[0]


def test_a_plane_stops_where_offsets_end():
    (one,) = drawn("table2d:rows=3,columns=2")["bias-plane"]["maps"][:1]
    assert np.array(one["values"]).shape == (5, 5)


# Drawings as files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_everything_can_be_drawn(spec):
    how = {"length": 12, "d_model": 24, "n_heads": 3}
    page = jarilab.draw_encodings(spec, **how)
    (column,) = page.columns
    assert bool(column.drawings) == bool(subject(spec).hooks)
    json.dumps(page.as_dict(), allow_nan=False)
    for drawing in column.drawings:
        root = ElementTree.fromstring(drawing.file())
        assert root.attrib["role"] == "img"
        title = root.find("{http://www.w3.org/2000/svg}title")
        assert title is not None
        assert title.text == root.attrib["aria-label"] == drawing.title[0]
        assert re.search("[가-힣]", root.attrib["data-ko"])
        assert "nan" not in drawing.inside
        assert "http" not in drawing.inside
        assert inside_its_box(root)
    again = jarilab.draw_encodings(spec, **how)
    assert again.html == page.html
    assert [one.file() for one in again.files().values()] == [one.file() for one in page.files().values()]


def inside_its_box(root: ElementTree.Element) -> bool:
    """Whether every line and every word begins inside the drawing."""
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    found = [one for one in root.iter() if "x" in one.attrib or "points" in one.attrib]
    places = [(float(one.attrib["x"]), float(one.attrib["y"])) for one in found if "x" in one.attrib]
    for one in found:
        places += [tuple(map(float, point.split(","))) for point in one.attrib.get("points", "").split()]
    return bool(places) and all(-1 <= x <= width + 1 and -1 <= y <= height + 1 for x, y in places)


def test_none_has_no_drawing():
    told = jarilab.draw_encodings("none").as_dict()["columns"][0]
    assert told["drawings"] == []
    assert told["facts"][0].startswith("changes no vector")


def test_facts_equal_the_attributes():
    facts = jarilab.draw_encodings("learned:positions=9+alibi", "shaw", seed=7, d_model=8, n_heads=2).as_dict()[
        "columns"
    ]
    assert "supports positions 0 to 8 and refuses larger ones" in facts[0]["facts"]
    assert "absolute: depends on where each token stands" in facts[0]["facts"]
    assert (
        f"{9 * 8} parameters, one set for all layers; drawn with their initial values of seed 7, untrained"
        in (facts[0]["facts"])
    )
    assert (
        f"{2 * 33 * 4} parameters, a set for each layer; drawn with their initial values of seed 7, untrained"
        in (facts[1]["facts"])
    )
    assert "relative: moving all positions by the same amount changes nothing" in facts[1]["facts"]


def test_the_seed_decides_initial_values():
    first, second, other = (
        jarilab.draw_encodings("t5", length=9, seed=seed).as_dict()["columns"] for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other
    table = torch.empty(32, 8).normal_(std=0.3, generator=generator_for(1, "table"))  # as a model has it
    near(first[0]["drawings"][0]["lines"][0]["y"][2 * 9], table[0, 0].item())


def test_points_of_lines():
    x = np.array([0.0, 5.0, 10.0])
    chart = Chart([Line(("a", "a"), x, np.array([0.0, 1.0, -1.0]))], ("x", "x"), ("y", "y"), (0.0, 10.0))
    found = re.findall(r'<polyline class="curve t0" points="([^"]*)"', chart.inside())
    ((first, zero), (half, top), (last, low)) = (map(float, point.split(",")) for point in found[0].split())
    assert (first, half, last) == (LEFT, (LEFT + RIGHT) / 2, RIGHT)
    assert zero == pytest.approx((TOP + BOTTOM) / 2)
    assert top - TOP == pytest.approx(BOTTOM - low)


def test_band_of_a_line():
    x = np.array([0.0, 1.0])
    line = Line(("a", "a"), x, np.array([2.0, 2.0]), np.array([0.0, 1.0]), np.array([4.0, 3.0]))
    chart = Chart([line], ("x", "x"), ("y", "y"), (0.0, 1.0))
    (points,) = re.findall(r'<polygon class="band t0" points="([^"]*)"', chart.inside())
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert heights == [TOP + 6, TOP + 6 + (BOTTOM - TOP - 12) / 4, BOTTOM - 6 - (BOTTOM - TOP - 12) / 4, BOTTOM - 6]


def pixels(svg: str) -> np.ndarray:
    """The first image of a drawing: row, column, red green blue alpha."""
    image = pytest.importorskip("PIL.Image")
    (data, *_) = re.findall(r'href="data:image/png;base64,([^"]*)"', svg)
    return np.array(image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA"))


def test_colours_of_a_map():
    values = np.array([[-2.0, 0.0, 2.0], [np.nan, 1.0, -1.0]])
    drawn = HeatMap(values, ("r", "r"), ("c", "c"), (0, 2), (0, 3))
    found = pixels(drawn.inside())
    assert found.shape == (2, 3, 4)
    assert found[0].tolist() == [[8, 48, 107, 255], [245, 245, 242, 255], [122, 50, 3, 255]]
    assert found[1, 0, 3] == 0  # not a number: left open
    assert found[1, 1, 0] > found[1, 1, 2]  # warm above 0
    assert found[1, 2, 0] < found[1, 2, 2]  # cold below


def test_colours_of_signs_equal_the_pages():
    script = read("jarilab.pages.kit", "kit/draw.js")
    assert f'colourStops("{colours.SIGNED}")' in script


# The page -------------------------------------------------------------------------------------------------------------


def test_a_page_of_three_is_small():
    page = jarilab.draw_encodings("sinusoidal", "t5", "alibi", n_heads=8, length=128)
    assert len(page.html.encode()) < 1_500_000
    assert len(page.columns) == 3
    assert "<h2>t5</h2>" in page.html


def test_an_encoding_named_twice_is_drawn_once():
    page = jarilab.draw_encodings("rotary", "rope", "rotary:base=10000", length=8, d_model=8, n_heads=2)
    assert [column.name for column in page.columns] == ["rotary"]


def test_files_are_named_by_what_they_show(tmp_path):
    page = jarilab.draw_encodings("alibi", f"{KERPLE}:slope=2", length=8, d_model=8, n_heads=2)
    written = page.save_svgs(tmp_path / "new" / "svgs")
    names = [path.name for path in written]
    assert names[:2] == ["alibi-bias-distance.svg", "alibi-bias-map.svg"]
    assert names[2].endswith("my_encoding-py-Kerple-slope-2-bias-distance.svg")
    assert all(path.read_text().startswith("<svg ") for path in written)
    with pytest.raises(UserError, match=r"is a file; expected a folder to write SVG files into"):
        page.save_svgs(written[0])


def test_names_are_escaped(tmp_path):
    path = tmp_path / "a<b>&.py"
    path.write_text("import jarilab\n\nclass Mine(jarilab.Encoding):\n    '''Does `<i>` or <i>nothing</i>.'''\n")
    page = jarilab.draw_encodings(f"{path}:Mine", length=4, d_model=4, n_heads=1)
    assert "<i>" not in page.html
    assert "a&lt;b&gt;&amp;.py" in page.html
    assert "<code>&lt;i&gt;</code> or &lt;i&gt;" in page.html


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_has_two_languages(pages, scheme):
    html = jarilab.draw_encodings("sinusoidal", "rotary", "shaw", "alibi2d", length=16, d_model=16, n_heads=2).html
    page = pages.open(html, color_scheme=scheme)
    seen = page.locator("figure h3").first.inner_text()
    label = page.locator("svg.drawing").first.get_attribute("aria-label")
    assert seen == label == "What is added: position × dimension"
    page.get_by_role("button", name="한국어").click()
    assert page.locator("figure h3").first.inner_text() == "더해지는 값: 위치 × 차원"
    assert page.locator("svg.drawing title").first.text_content() == "더해지는 값: 위치 × 차원"
    assert page.locator("html").get_attribute("lang") == "ko"
    assert page.get_by_text("위치", exact=True).first.is_visible()
    assert not page.get_by_text("position", exact=True).first.is_visible()


@pytest.mark.browser
@pytest.mark.parametrize("width", [420, 1440])
def test_the_page_fits_the_window(pages, width):
    html = jarilab.draw_encodings("sinusoidal:layout=concatenated", "t5", KERPLE, length=16, d_model=16, n_heads=2).html
    page = pages.open(html, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    lefts = {page.locator("section").nth(n).bounding_box()["x"] for n in range(3)}
    assert len(lefts) == (1 if width == 420 else 3)


@pytest.mark.browser
def test_an_address_shows_one_drawing(pages, tmp_path):
    drawn = jarilab.draw_encodings("rotary", "rotary:pairing=interleaved", length=16, d_model=16, n_heads=2)
    names = [path.stem for path in drawn.save_svgs(tmp_path)]
    page = pages.open(drawn.html, at=f"#only={names[1]}")
    shown = page.locator("figure").filter(visible=True)
    assert [figure.get_attribute("id") for figure in shown.all()] == names[1:2]
    assert page.locator(".top, .lede, li").filter(visible=True).count() == 0, "nothing else"
    page.evaluate("name => { location.hash = `#only=${name}` }", names[-1])  # as a link of a lesson does
    page.locator(f"#{names[-1]}").wait_for()
    assert_count(shown, 1)
    assert page.locator("h2").filter(visible=True).inner_text() == "rotary:pairing=interleaved"
    page.evaluate("location.hash = '#only=payload'")
    page.locator("li").first.wait_for()
    assert_count(shown, len(names))  # no drawing has this name


# Mistakes -------------------------------------------------------------------------------------------------------------

FAULTY = '''
import jarilab

class Faulty(jarilab.Encoding):
    """Divides by nothing."""

    def bias(self, q_pos, k_pos):
        return 1 / 0

class Nothing:
    pass
'''


def refused(*specs: str, **how) -> str:
    with pytest.raises(UserError) as error:
        jarilab.draw_encodings(*specs, **how)
    return str(error.value)


def test_errors(tmp_path):
    assert "did you mean 'rotary'?" in refused("rotery")
    assert refused() == "no encoding to draw; name one or more, such as rotary or t5,alibi"
    assert refused("t5", d_model=100, n_heads=8).endswith("got d_model=100 and n_heads=8; use d_model=96")
    assert refused("t5", length=0).startswith("expected a length of 2 or more")
    assert "draw its parts without their @" in refused("learned@text+rotary2d@image")
    assert "numbers of axes: none that all of its parts take" in refused("rotary+alibi2d")
    assert "rotary needs an even head width" in refused("rotary", d_model=6, n_heads=2)
    assert "shaw:labels=4 cannot be drawn: shaw:labels needs positions with" in refused("shaw:labels=4")
    path = tmp_path / "faulty.py"
    path.write_text(FAULTY)
    told = refused(f"{path}:Faulty")
    assert "cannot be drawn: its bias raised ZeroDivisionError: division by zero; `jarilab laws" in told
    assert "Nothing: expected a subclass" in refused(f"{path}:Nothing")
    path = tmp_path / "none.py"
    path.write_text("x = 1\n")
    assert "has no class that could be the encoding; write one" in refused(str(path))


def test_a_page_into_a_folder_is_refused(tmp_path):
    page = jarilab.draw_encodings("alibi", length=4, d_model=4, n_heads=1)
    with pytest.raises(UserError, match="is a folder; expected the name of a file"):
        page.save(tmp_path)
    with pytest.raises(UserError, match="its folder is not there; make it first"):
        page.save(tmp_path / "new" / "page.html")
    assert page.save(tmp_path / "page.html").read_text() == page.html
