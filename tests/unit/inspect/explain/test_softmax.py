"""The softmax of given numbers, and its derivative by finite differences."""

import math

import numpy
import pytest

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.explain.softmax import softmax_of
from jarilab.inspect.explain.walk_text import softmax_text

ROWS = [[0.3, 0.4, 0.1], [30.0, 40.0, 10.0]]


def by_hand(scores):
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def test_weights_and_derivative_by_hand():
    for softmax, scores in zip(softmax_of(ROWS), ROWS, strict=True):
        p = by_hand(scores)
        assert softmax.weights.tolist() == pytest.approx(p)
        assert softmax.trace == pytest.approx(1 - sum(one**2 for one in p))
        assert softmax.entropy == pytest.approx(-sum(one * math.log(one) for one in p))
        assert softmax.max_entropy == pytest.approx(math.log(3))
        step = 1e-6
        for j in range(3):
            moved = [score + step * (i == j) for i, score in enumerate(scores)]
            by_steps = [(after - before) / step for after, before in zip(by_hand(moved), p, strict=True)]
            assert softmax.jacobian[:, j].tolist() == pytest.approx(by_steps, abs=1e-6)


def test_scaling_restores_the_derivative():
    plain, divided, more = softmax_of([ROWS[1]], [64, 1024])
    assert divided.scores.tolist() == [30 / 8, 5.0, 10 / 8]
    assert divided.weights.tolist() == pytest.approx(by_hand([30 / 8, 5.0, 10 / 8]))
    assert plain.trace < 1e-3 < divided.trace < more.trace
    assert [one.divided for one in (plain, divided, more)] == [None, 64, 1024]


def test_large_numbers_do_not_overflow():
    (softmax,) = softmax_of([[1e4, 0.0]])
    assert softmax.weights.tolist() == [1.0, 0.0]
    assert (softmax.entropy, softmax.trace) == (0.0, 0.0)


def test_softmax_as_text():
    text = softmax_text(softmax_of([[0.0, 0.0]], [4]))
    assert "softmax of 0, 0\n" in text
    assert "softmax of (0, 0) / √4\n" in text
    assert text.count("1 - sum p^2: 0.5000    entropy: 0.6931 of at most 0.6931") == 2
    assert "    1  -0.2500   0.2500" in text


@pytest.mark.parametrize("row", [[], [1.0], [1.0, math.inf], [0.0] * 257])
def test_invalid_rows_raise(row):
    with pytest.raises(UserError, match="expected 2 to 256 finite numbers in a row"):
        softmax_of([row])


def test_divisors_are_above_0():
    with pytest.raises(UserError, match="a number above 0, got -1; give such as 64"):
        softmax_of(ROWS, [-1])
    with pytest.raises(UserError, match="no numbers to take the softmax of"):
        softmax_of([])


def test_drawings_contain_the_numbers():
    page = jarilab.draw_softmax(*ROWS, divide=[64])
    assert [column.name for column in page.columns][:2] == ["0.3, 0.4, 0.1", "(0.3, 0.4, 0.1) / √64"]
    weights, derivative = (drawing.as_dict() for drawing in page.columns[0].drawings)
    assert weights["weights"] == pytest.approx(by_hand(ROWS[0]), rel=1e-5)
    expected = softmax_of(ROWS)[0].jacobian.numpy()
    assert numpy.array(derivative["values"]) == pytest.approx(expected, rel=1e-5)
    svg = page.columns[0].drawings[1].file()
    assert svg.count('class="middle on-') == 9
    assert ">0.225</text>" in svg
