"""Permutation tests by enumeration, and Holm's correction by hand."""

from itertools import product

import numpy as np
import pytest

from jarilab.inspect.study.permutation import FEW_EXAMPLES, adjusted_p, draws_needed, holm, sign_flip_p


@pytest.mark.parametrize(("tests", "draws"), [(72, 1439), (144, 2879), (270, 5399), (1024, 20479)])
def test_draws_that_holm_needs(tests, draws):
    assert draws_needed(tests) == draws
    assert 1 / (draws + 1) <= 0.05 / tests < 1 / draws


def test_too_few_examples_are_said():
    changes = np.random.default_rng(0).normal(1, 0.1, (40, 72))
    assert max(adjusted_p(changes)) < 0.05
    assert adjusted_p(changes[:11]) == [FEW_EXAMPLES] * 72
    assert adjusted_p(changes[:12])[0] != FEW_EXAMPLES
    missing = np.concatenate([changes, np.full((1, 72), np.nan)])
    assert adjusted_p(missing) == adjusted_p(changes)


def test_p_is_the_share_of_signs_with_as_large_a_sum():
    changes = np.array([[0.5, 1.0], [0.2, 1.0], [-0.1, 1.0], [0.9, 1.0], [0.4, 1.0], [0.3, -1.0]])
    signs = np.array(list(product([-1, 1], repeat=6)))
    expected = (np.abs(signs @ changes) >= np.abs(changes.sum(0)) - 1e-12).mean(0)
    assert sign_flip_p(changes, 20_000) == pytest.approx(expected, abs=0.01)
    assert sign_flip_p(np.zeros((6, 1)), 100).tolist() == [1.0]
    assert sign_flip_p(np.ones((40, 1)), 19).tolist() == [0.05], "never 0"


def test_holm_by_hand():
    assert holm(np.array([0.01, 0.04, 0.03, 0.5])).tolist() == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]
