"""The page of the curves of runs: round numbers on its axes, and lines where the numbers are."""

import re

import pytest

from jarilab.comparison.chart import BOTTOM, LEFT, RIGHT, TOP, Line, chart, round_numbers


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 192, [0, 50, 100, 150]),
        (2.1, 3.8, [2.5, 3.0, 3.5]),
        (7, 7, [7]),
        (-1, 1, [-1.0, -0.5, 0.0, 0.5, 1.0]),
    ],
)
def test_round_numbers(low, high, expected):
    assert round_numbers(low, high) == pytest.approx(expected)


def points_of(svg: str) -> list[list[tuple[float, ...]]]:
    lines = re.findall(r'<polyline class="c\d" points="([^"]*)"', svg)
    return [[tuple(map(float, point.split(","))) for point in line.split()] for line in lines]


def test_lines_lie_where_their_numbers_are():
    svg = chart([Line(0, [(0, 1.0), (5, 2.0), (10, 3.0)]), Line(1, [(0, 3.0), (10, 1.0)])], "loss", "examples")
    first, second = points_of(svg)
    middle = (TOP + BOTTOM) / 2
    assert first == [(LEFT, BOTTOM), ((LEFT + RIGHT) / 2, middle), (RIGHT, TOP)]
    assert second == [(LEFT, TOP), (RIGHT, BOTTOM)]


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors_and_nothing_below_0():
    svg = chart([Line(0, [(0, 1.0), (1, 10.0), (2, 100.0), (3, 0.0)])], "loss", "examples", logarithmic=True)
    ((_, first), (_, second), (_, third)) = points_of(svg)[0]
    assert second - first == pytest.approx(third - second)


def test_one_point_is_a_dot_and_none_is_no_chart():
    svg = chart([Line(2, [(4, 1.0)]), Line(3, [])], 'a "b" <c>', "examples")
    assert re.search(r'<circle class="c2" cx="[\d.]+" cy="[\d.]+"', svg)
    assert 'aria-label="a &quot;b&quot; &lt;c&gt;"' in svg
    assert chart([Line(0, [])], "loss", "examples") == ""
