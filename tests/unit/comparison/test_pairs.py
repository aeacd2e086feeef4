"""All pairs of encodings: how often equals are called different, and differences seen, in studies that are drawn."""

import itertools
import math

import numpy as np
import pytest

from jarilab.comparison.pairs import (
    common_noise,
    compare_pairs,
    seed_half_widths,
    tukey_quantile,
)
from jarilab.comparison.statistics import student_quantile, wilson

STUDIES = 3000
# Of this many studies, a share of 5 % is seen as more than 6.1 % once in 300 times.
AT_MOST = 0.05 + 2.75 * math.sqrt(0.05 * 0.95 / STUDIES)


def called(numbers_MES, among=None):
    """The share of studies that call some pair of the first `among` encodings different."""
    means_ME = numbers_MES.mean(-1)
    first, second = np.triu_indices(means_ME.shape[1], 1)
    among = means_ME.shape[1] if among is None else among
    different_MP = np.abs(means_ME[:, first] - means_ME[:, second]) > seed_half_widths(numbers_MES)
    return float(different_MP[:, second < among].any(1).mean())


def drawn(encodings, seeds, kind="normal"):
    """Studies of equal encodings, with something that each seed does to all of them."""
    chance = np.random.default_rng([encodings, seeds])
    of_seed = chance.standard_normal((STUDIES, 1, seeds))
    noise_MES = chance.standard_normal((STUDIES, encodings, seeds))
    if kind == "skewed":
        noise_MES = chance.exponential(size=noise_MES.shape)
    if kind == "learned or not":  # as runs that find the answer with a chance of 0.8
        noise_MES = (chance.random(noise_MES.shape) < 0.8) + 0.01 * noise_MES
    return of_seed + noise_MES


@pytest.mark.parametrize(("encodings", "seeds"), [(6, 3), (6, 8), (12, 3), (12, 8), (2, 3), (2, 5)])
@pytest.mark.parametrize("kind", ["normal", "skewed", "learned or not"])
def test_at_most_5_percent_of_studies_call_equal_encodings_different(encodings, seeds, kind):
    assert called(drawn(encodings, seeds, kind)) <= AT_MOST


@pytest.mark.parametrize(("encodings", "seeds"), [(6, 3), (6, 8), (12, 3), (12, 8)])
def test_so_it_is_where_encodings_scatter_unequally(encodings, seeds):
    numbers_MES = drawn(encodings, seeds)
    noise_E = np.geomspace(1, 0.05, encodings)
    assert called(numbers_MES * noise_E[:, None]) <= AT_MOST
    # Two loud and equal ones among many that are quiet and far away.
    quiet_E = np.full(encodings, 0.02)
    quiet_E[:2] = 1
    far_E = 10.0 * np.arange(encodings)
    far_E[:2] = 0
    assert called(numbers_MES * quiet_E[:, None] + far_E[:, None], among=2) <= AT_MOST


def test_the_check_can_fail():
    """A test of each pair by itself, as it was before, calls some of six equals different in every second study."""
    numbers_MES = drawn(6, 3)
    first, second = np.triu_indices(6, 1)
    pairs_MPS = numbers_MES[:, first] - numbers_MES[:, second]
    t_MP = np.abs(pairs_MPS.mean(-1)) / pairs_MPS.std(-1, ddof=1) * math.sqrt(3)
    assert (t_MP > student_quantile(2)).any(1).mean() > 0.4


@pytest.mark.parametrize("held_out", [50, 2000])
def test_so_it_is_of_shares_of_the_same_examples(held_out):
    """Equal encodings that are right on the same examples by chance: hard ones are hard for all."""
    chance = np.random.default_rng(held_out)
    wrong = 0
    for _ in range(300):
        skill_ES = chance.normal(2.0, 0.3, (6, 3))
        hard_N = chance.normal(0, 1.5, held_out)
        right_ESN = chance.random((6, 3, held_out)) < 1 / (1 + np.exp(hard_N - skill_ES[..., None]))
        values = {str(number): row.tolist() for number, row in enumerate(right_ESN.mean(-1))}
        wrong += any(one.ranked for one in compare_pairs(values, held_out).differences)
    assert wrong <= 0.05 * 300


@pytest.mark.parametrize(("encodings", "seeds"), [(2, 3), (5, 5), (8, 5)])
def test_four_of_five_studies_detect_the_detectable_difference(encodings, seeds):
    chance = np.random.default_rng(1)
    numbers_MES = 0.3 * chance.standard_normal((400, encodings, seeds))
    told = []
    for numbers_ES in numbers_MES:
        values = {str(number): row.tolist() for number, row in enumerate(numbers_ES)}
        told.append(compare_pairs(values, 1, share=False).detectable)
    numbers_MES[:, 0] += np.sqrt(np.mean(np.square(told)))
    first_M = numbers_MES[:, 0].mean(-1) - numbers_MES[:, 1].mean(-1)
    assert (first_M > seed_half_widths(numbers_MES)[:, 0]).mean() == pytest.approx(0.8, abs=0.07)


def test_a_difference_is_paired():
    # The seeds differ by far more than the encodings: unpaired, nothing could be said.
    half = 4.302653 * 0.01 / math.sqrt(3)
    pairs = compare_pairs({"a": [0.2, 0.5, 0.8], "b": [0.1, 0.41, 0.69]}, 10**12)
    (found,) = pairs.differences
    assert (found.low, found.high) == pytest.approx((0.1 - half, 0.1 + half), rel=1e-5)
    assert found.ranked
    assert pairs.seeds == 3


def test_two_encodings_go_by_students_t():
    for freedom in (1, 4, 9):
        assert tukey_quantile(2, freedom) == pytest.approx(student_quantile(freedom), rel=1e-6)


# Harter (1960), as every table has it: the upper 5 % of the studentized range.
@pytest.mark.parametrize(
    ("encodings", "freedom", "range"), [(3, 10, 3.88), (6, 10, 4.91), (5, 20, 4.23), (8, 60, 4.44)]
)
def test_quantiles_are_those_of_the_tables(encodings, freedom, range):
    assert tukey_quantile(encodings, freedom) * math.sqrt(2) == pytest.approx(range, abs=5e-3)


def test_the_common_noise_by_hand():
    # Encodings 1 and 3, seeds 0 and 2, and 0.5 up and down crosswise: what is left is 0.5 four times, of freedom 1.
    numbers_ES = np.array([[1 + 0.5, 3 - 0.5], [3 - 0.5, 5 + 0.5]])
    assert common_noise(numbers_ES) == pytest.approx(1.0)


def test_half_widths_by_hand_with_the_degrees_of_freedom_of_each_noise():
    # Residuals (u, -u, 0) with u = (1, -1, 1, -1): a common variance of 8 / ((3 - 1)(4 - 1)). Tables: q(3, 6), q(3, 3).
    u_S, of_seed_S = np.array([1.0, -1.0, 1.0, -1.0]), np.array([0.0, 5.0, -3.0, 1.0])
    numbers_ES = np.stack([u_S, -u_S, 0 * u_S]) + of_seed_S + np.array([[1.0], [4.0], [9.0]])
    by_all = 4.339 * math.sqrt(8 / 6) / math.sqrt(4)
    by_pair = 5.910 / math.sqrt(2) * math.sqrt(16 / 3) / math.sqrt(4)
    assert by_pair > by_all > by_pair / 2
    assert seed_half_widths(numbers_ES) == pytest.approx([by_pair, by_all, by_all], rel=2e-4)


def test_another_sample_of_examples_moves_each_end_by_its_own_share():
    (found,) = compare_pairs({"a": [0.95] * 2, "b": [0.5] * 2}, 100).differences
    (low_a, high_a), (low_b, high_b) = wilson(0.95, 100), wilson(0.5, 100)
    below, above = math.hypot(0.95 - low_a, high_b - 0.5), math.hypot(high_a - 0.95, 0.5 - low_b)
    assert (found.low, found.high) == pytest.approx((0.45 - below, 0.45 + above), rel=1e-6)


def test_seeds_that_agree_leave_the_noise_of_the_examples():
    (found,) = compare_pairs({"a": [1.0] * 3, "b": [1.0] * 3}, 1000).differences
    low, _ = wilson(1.0, 1000)
    assert (found.low, found.high) == pytest.approx((low - 1, 1 - low))


def test_seeds_that_agree_by_chance_do_not_make_a_pair_sure():
    """Three seeds of two encodings agree; those of the others say how far seeds can be apart."""
    values = {"a": [0.9, 0.9, 0.9], "b": [0.8, 0.8, 0.8], "c": [0.9, 0.5, 0.7], "d": [0.5, 0.8, 0.9]}
    found = {(one.first, one.second): one for one in compare_pairs(values, 10**9).differences}
    assert not found["a", "b"].ranked
    alone = compare_pairs({"a": values["a"], "b": values["b"]}, 10**9).differences[0]
    assert alone.ranked


def test_equal_values_that_are_no_shares_have_no_interval():
    pairs = compare_pairs({"a": [2.0, 2.0], "b": [1.0, 1.0]}, 1000, share=False)
    assert (pairs.differences[0].low, pairs.differences[0].high, pairs.detectable) == (None, None, None)


def test_one_seed_has_no_intervals():
    pairs = compare_pairs({"a": [0.2], "b": [0.1], "c": [0.4]}, 1000)
    assert [(one.first, one.second) for one in pairs.differences] == list(itertools.combinations("abc", 2))
    assert {(one.low, one.high, one.ranked) for one in pairs.differences} == {(None, None, False)}
    assert pairs.detectable is None


def test_one_encoding_has_no_pairs():
    assert compare_pairs({"a": [0.2, 0.3]}, 1000).differences == []
