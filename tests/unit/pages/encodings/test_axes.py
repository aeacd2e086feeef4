"""Round numbers on the axes of drawings."""

import pytest

from jarilab.pages.encodings.svg import round_numbers


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
