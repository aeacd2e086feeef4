"""All pairs of encodings: how often equals are called different, and differences seen, in studies that are drawn."""

import itertools
import math

import numpy as np
import pytest

from jarilab.comparison.pairs import compare_pairs
from jarilab.comparison.seed_noise import (
    common_noise,
    largest_rank_sum,
    noise_half_widths,
    seed_gaps,
    seed_half_widths,
    seeds_that_settle,
    tukey_quantile,
    without_seed_effects,
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
    if kind == "heavy":
        noise_MES = chance.standard_t(2, noise_MES.shape)
    return of_seed + noise_MES


def tossed(encodings, seeds, tossing, noise):
    """Studies in which the first `tossing` encodings learn or not at the toss of a coin, and the others never do."""
    chance = np.random.default_rng([encodings, seeds, tossing])
    numbers_MES = noise * chance.standard_normal((STUDIES, encodings, seeds))
    numbers_MES[:, :tossing] += chance.random((STUDIES, tossing, seeds)) < 0.5
    return numbers_MES


@pytest.mark.parametrize(("encodings", "seeds"), [(6, 3), (6, 8), (12, 3), (12, 8), (2, 3), (2, 5)])
@pytest.mark.parametrize("kind", ["normal", "skewed", "heavy", "learned or not"])
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


@pytest.mark.parametrize(("encodings", "tossing"), [(2, 2), (3, 3), (6, 6), (12, 12), (6, 3), (12, 6), (12, 2)])
@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_so_it_is_where_runs_toss_a_coin(encodings, tossing, seeds, noise):
    numbers_MES = tossed(encodings, seeds, tossing, noise)
    assert called(numbers_MES, among=tossing) <= AT_MOST
    if (encodings, tossing, seeds) == (12, 6, 3):  # by their noise alone, some pair of equals is called different
        means_ME = numbers_MES.mean(-1)
        first, second = np.triu_indices(12, 1)
        alone_MP = np.abs(means_ME[:, first] - means_ME[:, second]) > noise_half_widths(numbers_MES)
        assert alone_MP[:, second < tossing].any(1).mean() > 0.1


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


def test_noises_by_hand():
    # Residuals (u, -u, 0) with u = (1, -1, 1, -1): a common variance of 8 / ((3 - 1)(4 - 1)). Tables: q(3, 6).
    u_S = np.array([1.0, -1.0, 1.0, -1.0])
    numbers_ES = np.stack([u_S, -u_S, 0 * u_S]) + np.array([[1.0], [4.0], [9.0]])
    from_all = 4.339 * math.sqrt(8 / 6) / math.sqrt(4)
    loudest = 1.1 * 3.18245 * math.sqrt(4 / 3) / math.sqrt(4)
    # A freedom of 2 * 3 (3 - 1) / 3 = 4 and a variance of 4 / 2 each; with the third, half of both.
    of_pair, of_third = 5.040 / math.sqrt(2) * math.sqrt(4 / 4), 8.331 / math.sqrt(2) * math.sqrt(2 / 4)
    assert loudest < of_pair < of_third
    assert loudest < from_all
    assert noise_half_widths(numbers_ES) == pytest.approx([from_all] * 3, rel=2e-4)
    quiet_ES = np.concatenate([numbers_ES, np.arange(5)[:, None] + 0 * u_S])
    loudest_of_eight = noise_half_widths(quiet_ES)
    assert loudest_of_eight[0] == pytest.approx(loudest, rel=2e-4)
    assert loudest_of_eight[-1] == pytest.approx(
        tukey_quantile(8, 21) * math.sqrt(2) * common_noise(quiet_ES) / 2, rel=1e-6
    ), "a pair without noise of its own has the common noise"


def test_what_a_seed_does_to_all_is_removed_where_it_is_clear():
    generator = np.random.default_rng(0)
    noise_ES = 0.01 * generator.standard_normal((4, 5))
    assert without_seed_effects(noise_ES) == pytest.approx(noise_ES, abs=0)
    of_seed_S = np.array([0.0, 5.0, -3.0, 1.0, 2.0])
    cleared_ES = without_seed_effects(noise_ES + of_seed_S)
    assert cleared_ES.mean(1) == pytest.approx(noise_ES.mean(1) + of_seed_S.mean())
    residual_ES = noise_ES - noise_ES.mean(1, keepdims=True) - noise_ES.mean(0) + noise_ES.mean()
    assert cleared_ES - cleared_ES.mean(1, keepdims=True) == pytest.approx(4 / 3 * residual_ES)
    assert noise_half_widths(noise_ES + of_seed_S).max() < 0.1


# Mann and Whitney (1947), as every table has it: two-sided 5 %.
@pytest.mark.parametrize(("seeds", "largest"), [(3, -1), (4, 0), (5, 2), (6, 5), (7, 8), (8, 13), (10, 23), (20, 127)])
def test_rank_sums_are_those_of_the_tables(seeds, largest):
    assert largest_rank_sum(seeds, 1) == largest


def test_seeds_that_settle_are_those_that_ranks_need():
    assert [seeds_that_settle(pairs) for pairs in (1, 3, 15, 66)] == [4, 5, 6, 7]


def test_ranks_settle_what_gaps_do_not():
    """With ten seeds, encodings that are apart are ranked though another one tosses a coin."""
    generator = np.random.default_rng(1)
    numbers_ES = 0.01 * generator.standard_normal((3, 10)) + np.array([[0.1], [0.9], [0.5]])
    numbers_ES[2] += np.tile([-0.5, 0.5], 5)
    assert seed_gaps(numbers_ES).max() > 0.9
    assert noise_half_widths(numbers_ES)[0] < 0.8
    assert seed_half_widths(numbers_ES)[0] == noise_half_widths(numbers_ES)[0]
    assert seed_half_widths(numbers_ES[:, 5:])[0] == pytest.approx(noise_half_widths(numbers_ES[:, 5:])[0])
    assert seed_half_widths(numbers_ES[:, 6:])[0] > 0.9, "four seeds of three pairs are too few"


def drawn_outcomes(generator, skills, seeds, examples, *, scatter=0.05):
    """Outcomes of encodings of these skills: hard examples are hard for all."""
    skill_ES = scatter * generator.standard_normal((len(skills), seeds)) + np.array(skills)[:, None]
    hard_N = 1.5 * generator.standard_normal(examples)
    chance_ESN = 1 / (1 + np.exp(hard_N - skill_ES[..., None]))
    return (generator.random(chance_ESN.shape) < chance_ESN).astype(np.float32)


def compare_outcomes(outcomes_ESN, *, kept=True):
    outcomes = {str(number): values_SN for number, values_SN in enumerate(outcomes_ESN)}
    values = {name: values_SN.mean(1).tolist() for name, values_SN in outcomes.items()}
    return compare_pairs(values, outcomes_ESN.shape[2], outcomes=outcomes if kept else None)


def test_pairing_over_examples_sees_what_was_not_seen():
    """A gap of 5.4 points on 1,000 examples, as three and five seeds of six encodings see it."""
    generator = np.random.default_rng(2)
    seen = {(seeds, kept): 0 for seeds in (3, 5) for kept in (True, False)}
    for seeds in (3, 5):
        for _ in range(60):
            outcomes_ESN = drawn_outcomes(generator, [1.91, 1.5, 1.5, 1.5, 1.5, 1.5], seeds, 1000)
            for kept in (True, False):
                seen[seeds, kept] += compare_outcomes(outcomes_ESN, kept=kept).differences[0].ranked
    assert seen[3, False] < 0.2 * 60
    assert seen[3, True] > 0.4 * 60
    assert seen[5, False] < 0.4 * 60
    assert seen[5, True] > 0.9 * 60


def test_equals_on_few_examples_are_seldom_called_different():
    generator = np.random.default_rng(3)
    wrong = 0
    for _ in range(300):
        wrong += any(one.ranked for one in compare_outcomes(drawn_outcomes(generator, [2.0] * 4, 3, 50)).differences)
    assert wrong <= 0.05 * 300


def test_examples_by_hand():
    """What two seeds share over examples, with one more example in favour of each encoding."""
    first_SN = np.array([[1, 1, 1, 0, 1, 1, 0, 1], [1, 1, 1, 0, 0, 1, 1, 1]], dtype=np.float32)
    second_SN = np.array([[0, 0, 1, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 1, 0, 1]], dtype=np.float32)
    (one,) = compare_outcomes(np.stack([first_SN, second_SN])).differences
    difference_SN = first_SN - second_SN
    covariance = np.cov(difference_SN)[0, 1]
    of_examples = tukey_quantile(2, 7) * math.sqrt((8 * covariance + 2) / 64)
    of_seeds = float(seed_half_widths(np.stack([first_SN, second_SN]).mean(-1).astype(np.float64))[0])
    assert one.high - one.difference == pytest.approx(min(math.hypot(of_examples, of_seeds), 1 - one.difference))
    assert one.difference - one.low == pytest.approx(math.hypot(of_examples, of_seeds), rel=1e-6)


def test_examples_without_losses_of_their_own_leave_the_seeds():
    """Where two seeds share nothing over examples, their noise is counted once, with the seeds."""
    difference_SN = np.array([[0.1, -0.1, 0.1, -0.1], [0.1, 0.1, -0.1, -0.1]]) + np.array([[0.5], [0.6]])
    outcomes = {"a": difference_SN, "b": 0 * difference_SN}
    values = {name: values_SN.mean(1).tolist() for name, values_SN in outcomes.items()}
    paired = compare_pairs(values, 4, share=False, outcomes=outcomes).differences[0]
    alone = compare_pairs(values, 4, share=False).differences[0]
    assert (paired.low, paired.high) == pytest.approx((alone.low, alone.high))


def test_a_pair_that_gaps_keep_unranked_names_the_encoding():
    values = {"a": [0.02, 0.03, 0.02], "b": [0.98, 0.99, 0.98], "c": [0.03, 0.99, 0.98]}
    pairs = {(one.first, one.second): one for one in compare_pairs(values, 10**9).differences}
    assert not pairs["a", "b"].ranked
    assert pairs["a", "b"].scattered == ("c", pytest.approx(0.95))
    values = {name: [*seeds, *seeds[:2]] for name, seeds in values.items()}
    values["c"] = [0.98, 0.99, 0.98, 0.99, 0.03]
    pairs = {(one.first, one.second): one for one in compare_pairs(values, 10**9).differences}
    assert pairs["a", "b"].ranked, "five seeds of three pairs are enough for ranks"
    for name in "defg":
        values[name] = values["b"]
    pairs = {(one.first, one.second): one for one in compare_pairs(values, 10**9).differences}
    assert pairs["a", "b"].scattered == ("c", pytest.approx(0.95))
    assert not pairs["a", "b"].ranked


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
