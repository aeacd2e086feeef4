"""Intervals against published tables."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jarilab.comparison.statistics import mean_interval, student_quantile, wilson

# Student (1908), as every table has it: two-sided 95 % and 99 %.
PUBLISHED = {1: (12.706, 63.657), 2: (4.303, 9.925), 4: (2.776, 4.604), 9: (2.262, 3.250), 29: (2.045, 2.756)}


@pytest.mark.parametrize("freedom", PUBLISHED)
def test_student_quantiles_are_those_of_the_tables(freedom):
    half, ninety_nine = PUBLISHED[freedom]
    assert student_quantile(freedom) == pytest.approx(half, abs=5e-4)
    assert student_quantile(freedom, 0.99) == pytest.approx(ninety_nine, abs=5e-4)


def test_student_quantiles_in_closed_form():
    assert student_quantile(1) == pytest.approx(math.tan(0.475 * math.pi), rel=1e-12)
    assert student_quantile(2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-12)


# Wilson (1927); the examples of Newcombe (1998), table I, method 3.
@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_is_what_newcombe_printed(hits, count, low, high):
    assert wilson(hits / count, count) == pytest.approx((low, high), abs=5e-5)


@given(count=st.integers(1, 10**5), hits=st.integers(0, 10**5))
def test_wilson_is_that_of_scipy(count, hits):
    hits = min(hits, count)
    ends = stats.binomtest(hits, count).proportion_ci(method="wilson")
    assert wilson(hits / count, count) == pytest.approx((ends.low, ends.high), rel=1e-12, abs=1e-12)


@given(count=st.integers(1, 10**7), share=st.floats(0, 1))
def test_wilson_holds_the_share_and_stays_within_0_and_1(count, share):
    low, high = wilson(share, count)
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1


@given(count=st.integers(1, 10**5), hits=st.integers(0, 10**5))
def test_wilson_is_where_the_score_test_turns(count, hits):
    # The ends solve |p - share| = z sqrt(p (1 - p) / n), which is how the interval is defined.
    share = min(hits, count) / count
    for end in wilson(share, count):
        if 0 < end < 1:
            assert abs(end - share) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / count), rel=1e-5, abs=1e-7)


def test_the_interval_of_three_seeds_by_hand():
    interval = mean_interval([0.50, 0.54, 0.58], held_out=1000)
    half = 4.302653 * 0.04 / math.sqrt(3)
    low, high = wilson(0.54, 1000)
    ends = (0.54 - math.hypot(half, 0.54 - low), 0.54 + math.hypot(half, high - 0.54))
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.54, *ends), rel=1e-6)
    assert interval.how == "95 % over 3 seeds (Student's t) and 1,000 examples (Wilson)"


def test_with_many_examples_seeds_decide_alone():
    half = 4.302653 * 0.04 / math.sqrt(3)
    interval = mean_interval([0.50, 0.54, 0.58], held_out=10**12)
    assert (interval.low, interval.high) == pytest.approx((0.54 - half, 0.54 + half), rel=1e-6)


def test_an_interval_of_shares_ends_at_0_and_1():
    assert mean_interval([0.9, 1.0], 10).high == 1.0
    assert mean_interval([0.0, 0.1], 10).low == 0.0


def test_the_interval_of_one_seed_is_that_of_its_examples():
    interval = mean_interval([0.25], held_out=40_000)
    assert (interval.low, interval.high) == wilson(0.25, 40_000)
    assert interval.how == "95 % for sampling 40,000 examples; one seed, so nothing about others"


@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
def test_seeds_that_agree_by_chance_have_the_interval_of_their_examples(share):
    interval = mean_interval([share] * 3, 1000)
    assert (interval.low, interval.high) == pytest.approx(wilson(share, 1000))
    assert interval.high - interval.low > 0.003


def test_equal_seeds_without_shares_have_no_interval():
    interval = mean_interval([31.3, 31.3], 1000, share=False)
    assert (interval.mean, interval.low, interval.high) == (31.3, None, None)
    assert interval.how == "not known from equal seeds"


@given(hits=st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_the_interval_of_a_share_always_has_a_width_and_holds_the_mean(hits):
    interval = mean_interval([hit / 50 for hit in hits], 50)
    assert 0 <= interval.low <= interval.mean <= interval.high <= 1
    assert interval.high - interval.low > 0.05


def test_the_interval_of_other_metrics_may_leave_0_to_1():
    interval = mean_interval([0.1, 31.3], 1000, share=False)
    half = 12.7062 * 15.6
    assert (interval.low, interval.high) == pytest.approx((15.7 - half, 15.7 + half), rel=1e-4)
    assert interval.how == "95 % over 2 seeds (Student's t)"


def test_one_seed_without_shares_has_no_interval():
    interval = mean_interval([31.3], 1000, share=False)
    assert (interval.mean, interval.low, interval.high) == (31.3, None, None)
    assert interval.how == "not known from one seed"
