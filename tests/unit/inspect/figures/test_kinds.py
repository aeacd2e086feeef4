"""Lines, dots of roles, and weights over an image."""

import base64
import io
import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.figures.heads import COLOURS, draw_lines, draw_roles
from jarilab.inspect.figures.images import draw_over_image, patch_grid
from jarilab.inspect.figures.style import label


def texts_of(svg: bytes) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_lines_are_as_dark_as_the_weights():
    weights = np.array([[0.75, 0.25], [0.0, 1.0]])
    svg = draw_lines(weights, ["a", "$b$"], ["c", "d"]).to_bytes(".svg").decode()
    opacities = [float(one) for one in re.findall(r"stroke-opacity: ([\d.]+)", svg)]
    drawn = [0.75, 0.25, 0.1, 0.5]  # then those of the scale; full opacity is not written
    assert opacities == pytest.approx(drawn)
    assert {"a", "$b$", "c", "d", "query", "key", "attention weight", "0.1", "0.5", "1"} == set(texts_of(svg.encode()))


def test_masked_keys_have_no_line():
    svg = draw_lines([[0.75, 0.25], [0.5, 0.5]], "ab", "cd", [[1, 0], [1, 1]]).to_bytes(".svg").decode()
    assert "stroke-opacity: 0.75" in svg
    assert "stroke-opacity: 0.25" not in svg


def test_a_role_has_one_colour_whatever_the_other_roles():
    some = draw_roles([["induction", "previous"]], ["L0"]).to_bytes(".svg").decode()
    more = draw_roles([["induction", "next", "uniform"]], ["L0"]).to_bytes(".svg").decode()
    induction, following = COLOURS[3], COLOURS[1]
    assert all(induction in svg for svg in (some, more))
    assert following in more
    assert following not in some


def test_roles_are_named_in_the_legend():
    roles = [["previous", "no simple pattern"], ["not testable here", "nsubj <b>"]]
    svg = draw_roles(roles, ["L0", "L1"], [[0.9, 0], [float("nan"), 0.5]], width=12, size_name="score").to_bytes(".svg")
    named = {"previous", "no simple pattern", "not testable here", "nsubj <b>", "L0", "L1", "area of a dot: score"}
    assert named <= set(texts_of(svg))


@pytest.mark.parametrize(
    ("roles", "names", "sizes"),
    [
        ([], [], None),
        ([[]], ["L0"], None),
        ([["a"]], ["L0"], []),
        ([["a"]], ["L0", "L1"], None),
        ([["a", "b"]], ["L0"], [[1.0]]),
    ],
)
def test_roles_that_do_not_fit_are_refused(roles, names, sizes):
    with pytest.raises(UserError, match=r"each layer, got .* names.*give one"):
        draw_roles(roles, names, sizes)


def images_in(svg: bytes) -> list[np.ndarray]:
    encoded = re.findall(rb"data:image/png;base64,\s*([\w+/=\s]+)", svg)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one))).convert("RGBA")) for one in encoded]


def test_weights_cover_their_patches():
    pixels = np.zeros((40, 60, 3), dtype=np.uint8)
    weights = np.zeros((1, 2, 3))
    weights[0, 1, 2] = 0.5
    figure = draw_over_image(pixels, weights, ["[CLS]"], width=7)
    drawn = np.asarray(Image.open(io.BytesIO(figure.to_bytes(".png", 200))).convert("RGB")).astype(int)
    red, _, blue = np.moveaxis(drawn[:, drawn.shape[1] // 2 :], -1, 0)
    panel, covered = np.argwhere(red < 20), np.argwhere((red > 180) & (blue < 90))
    covered = covered[covered[:, 0] <= panel[:, 0].max()]  # without the colour scale
    (top, left), (bottom, right) = panel.min(0), covered.max(0) + 1
    shares = (covered.min(0) - (top, left)) / (bottom - top, right - left)
    assert shares == pytest.approx([1 / 2, 2 / 3], abs=0.03)
    assert {"image", "[CLS]", "attention weight"} <= set(texts_of(figure.to_bytes(".svg")))


@pytest.mark.parametrize("size", [(32, 48), (900, 20)])
@pytest.mark.parametrize("name", ["a", "internationalization"])
def test_titles_over_images_do_not_overlap(size, name):
    pixels, weights = np.zeros((*size, 3)), np.ones((5, 2, 2))
    figure = draw_over_image(pixels, weights, [name] * 5)
    titles = [node for node in ElementTree.fromstring(figure.to_bytes(".svg")).iter() if node.text == label(name)]
    assert len(titles) == 5
    for first, second in itertools.pairwise(titles):
        size = float(re.findall(r"font-size: ([\d.]+)", first.attrib["style"])[0])
        assert 5 <= size <= 8
        width = figure.width_of([label(name)], size) / 2.54 * 72
        x, y = (float(second.attrib[axis]) - float(first.attrib[axis]) for axis in "xy")
        assert x > width or y > size


@pytest.mark.parametrize(
    ("keys", "size", "expected"), [(197, (224, 224), (14, 14)), (7, (40, 60), (2, 3)), (261, (64, 64), (16, 16))]
)
def test_the_grid_of_patches_follows_from_the_keys(keys, size, expected):
    assert patch_grid(keys, np.zeros((*size, 3)), None) == expected


def test_no_grid_of_patches_is_refused():
    with pytest.raises(UserError, match=r"among the 7 keys.*40 x 40.*give grid="):
        patch_grid(7, np.zeros((40, 40, 3)), (3, 3))


@pytest.mark.parametrize(
    ("pixels", "weights", "message"),
    [
        (np.zeros((3, 8, 9)), np.ones((1, 2, 2)), r"\(height, width, 3\), got the shape \(3, 8, 9\).*permute"),
        (np.zeros((8, 9, 3)), np.ones((2, 2)), r"\(N, rows, columns\).*got \(2, 2\)"),
        (np.full((8, 9, 3), 200.0), np.ones((1, 2, 2)), r"from 0 to 1, got numbers from 200 to 200; divide by 255"),
        (np.full((8, 9, 3), -0.5), np.ones((1, 2, 2)), r"got numbers from -0.5 to -0.5.*normalization"),
        (np.full((8, 9, 3), np.nan), np.ones((1, 2, 2)), r"got numbers from nan to nan"),
    ],
)
def test_images_of_other_shapes_are_refused(pixels, weights, message):
    with pytest.raises(UserError, match=message):
        draw_over_image(pixels, weights, ["a"])


def test_figures_of_a_tape_of_images():
    torch.manual_seed(0)
    model = jarilab.VisionTransformer(
        (3, 8, 12), 5, patch_size=4, d_model=16, n_heads=2, n_layers=1, pool="class"
    ).eval()
    with torch.no_grad(), jarilab.record(model) as tape:
        model(torch.zeros(1, 3, 8, 12))
    pixels = torch.zeros(8, 12, 3)
    figure = tape.figure("encoder.0", 1, image=pixels, queries=[0, 2])
    weights = tape.weights("encoder.0")[0, 1][[0, 2], -6:].reshape(2, 2, 3)
    assert figure.to_bytes(".png") == draw_over_image(pixels, weights, ["0", "2"]).to_bytes(".png")
    assert tape.figure("encoder.0", 1, "lines").to_bytes(".svg")
    with pytest.raises(UserError, match=r"queries from 0 to .*got \[99\]"):
        tape.figure("encoder.0", 1, image=pixels, queries=[99])
    with pytest.raises(UserError, match="image needs site, head and image"):
        tape.figure("encoder.0", 1, "image")
