"""Batches by a budget of tokens: nothing left out, nothing twice, nothing over the budget, and little padding."""

import itertools
import math
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jarilab.core.errors import UserError
from jarilab.nn.init import generator_for
from jarilab.runs.training_options import Training
from jarilab.training import batching as order_module
from jarilab.training.batching import FixedSizeBatches, TokenBudgetBatches, batches_of

PAIRS = st.lists(st.tuples(st.integers(1, 15), st.integers(1, 15)), min_size=1, max_size=150).map(torch.tensor)
SINGLE = st.lists(st.tuples(st.integers(1, 30)), min_size=1, max_size=150).map(torch.tensor)
LENGTHS = PAIRS | SINGLE
TOKENS = st.integers(30, 400)
SEEDS = st.integers(0, 2**63 - 1)


def loop(lengths, tokens, number, seed, batches_in_a_pool):
    """The batches of a pass, an example at a time."""
    generator = generator_for(seed, f"data/{number}")
    pool = max(1, batches_in_a_pool * tokens // max(1, math.ceil(sum(map(sum, lengths)) / len(lengths))))
    batches = []
    for some in torch.randperm(len(lengths), generator=generator).split(pool):
        batch = []
        for example in sorted(some.tolist(), key=lambda example: (max(lengths[example]), *lengths[example])):
            if size_of([*batch, example], lengths) > tokens:
                batches.append(batch)
                batch = []
            batch.append(example)
        batches.append(batch)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def size_of(batch, lengths):
    """Tokens of a batch, padding counted."""
    return len(batch) * sum(max(sides) for sides in zip(*(lengths[example] for example in batch), strict=True))


def walked(order):
    return [order.at(step) for step in range(order.steps)]


@given(lengths=LENGTHS, tokens=TOKENS, seed=SEEDS, passes=st.integers(1, 3))
def test_each_pass_has_every_example_once(lengths, tokens, seed, passes):
    order = TokenBudgetBatches(lengths, tokens, passes * len(lengths), seed)
    seen = torch.cat(walked(order)).split(len(lengths))
    assert [sorted(one.tolist()) for one in seen] == passes * [list(range(len(lengths)))]
    assert order.examples == passes * len(lengths)


@given(lengths=LENGTHS, tokens=TOKENS, seed=SEEDS)
def test_no_batch_is_empty_or_over_the_budget(lengths, tokens, seed):
    order = TokenBudgetBatches(lengths, tokens, 2 * len(lengths), seed)
    for batch in walked(order):
        assert 1 <= len(batch) <= tokens // int(lengths[batch].amax(0).sum())


@given(lengths=LENGTHS, tokens=TOKENS, seed=SEEDS, budget=st.integers(1, 400))
def test_training_ends_with_the_batch_that_uses_up_the_examples(lengths, tokens, seed, budget):
    order = TokenBudgetBatches(lengths, tokens, budget, seed)
    sizes = [len(batch) for batch in walked(order)]
    assert sum(sizes) == order.examples >= budget
    assert sum(sizes[:-1]) < budget


@given(lengths=LENGTHS, tokens=TOKENS, seed=SEEDS, random=st.randoms(use_true_random=False))
def test_a_step_computed_alone_is_the_one_in_sequence(lengths, tokens, seed, random):
    order = TokenBudgetBatches(lengths, tokens, 3 * len(lengths), seed)
    sequence = walked(order)
    steps = random.sample(range(order.steps), min(5, order.steps))
    jumping = TokenBudgetBatches(lengths, tokens, 3 * len(lengths), seed)
    for step in steps:
        assert torch.equal(jumping.at(step), sequence[step])
        assert torch.equal(TokenBudgetBatches(lengths, tokens, 3 * len(lengths), seed).at(step), sequence[step])


def test_passes_and_seeds_differ():
    lengths = torch.randint(1, 30, (300, 1))
    order, other = TokenBudgetBatches(lengths, 100, 600, 1), TokenBudgetBatches(lengths, 100, 600, 2)
    first, second = (torch.cat(walked(order)).split(300)[number] for number in (0, 1))
    assert not torch.equal(first, second)
    assert not torch.equal(first, torch.cat(walked(other))[:300])


def test_little_of_a_batch_is_padding():
    lengths = torch.randint(1, 101, (8000, 1))
    batches = walked(TokenBudgetBatches(lengths, 2000, 8000, 1))
    sizes = [len(batch) * int(lengths[batch].max()) for batch in batches]
    assert 1 - int(lengths.sum()) / sum(sizes) < 0.03
    assert sum(sizes) / len(sizes) > 0.9 * 2000, "batches are as large as the budget allows"
    by_chance = [len(batch) * int(lengths[batch].max()) for batch in torch.randperm(8000).split(40)]
    assert 1 - int(lengths.sum()) / sum(by_chance) > 0.4, "what sorting saves"


def test_source_and_target_are_sorted_together():
    generator = torch.Generator().manual_seed(1)
    source = (14 * (0.3 * torch.randn(8000, generator=generator)).exp()).long() + 1
    target = (source * (0.2 * torch.randn(8000, generator=generator)).exp()).long() + 1
    lengths = torch.stack((source, target), 1)
    batches = walked(TokenBudgetBatches(lengths, 2000, 8000, 1))
    padded = sum(size_of(batch.tolist(), lengths.tolist()) for batch in batches)
    assert 1 - int(lengths.sum()) / padded < 0.1
    by_sum = lengths.sum(1).argsort().split(60)
    padded_by_sum = sum(size_of(batch.tolist(), lengths.tolist()) for batch in by_sum)
    assert 1 - int(lengths.sum()) / padded_by_sum > 0.15, "what sorting by both together leaves"


def test_short_and_long_batches_come_in_any_order():
    lengths = torch.randint(1, 101, (8000, 1))
    longest = [int(lengths[batch].max()) for batch in walked(TokenBudgetBatches(lengths, 2000, 8000, 1))]
    rising = sum(a <= b for a, b in itertools.pairwise(longest))
    assert 0.4 < rising / len(longest) < 0.6, "sorted within a pool, but never trained in that order"


def test_the_order_does_not_touch_the_global_generator():
    before = torch.get_rng_state()
    TokenBudgetBatches(torch.arange(1, 30).unsqueeze(1), 30, 100, 1).at(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_example_over_the_budget_is_refused():
    with pytest.raises(UserError) as error:
        TokenBudgetBatches(torch.tensor([[3], [41], [7]]), 40, 10, 1)
    assert str(error.value) == (
        "training.tokens=40 holds no example of 41 tokens; use training.tokens=41 or more, or shorter examples"
    )
    assert len(walked(TokenBudgetBatches(torch.tensor([[3], [41], [7]]), 41, 3, 1))) == 2, "as the error says"


def test_the_options_choose_the_order():
    lengths = torch.tensor([[3], [4], [5]])
    assert isinstance(batches_of(Training(tokens=10, examples=9), 3, lengths, 1), TokenBudgetBatches)
    assert isinstance(batches_of(Training(batch_size=2, examples=9), 3, lengths, 1), FixedSizeBatches)
    assert batches_of(Training(tokens=10, epochs=2.0), 3, lengths, 1).examples == 6
    assert batches_of(Training(batch_size=2, epochs=1.5), 4, None, 1).examples == 6
    with pytest.raises(UserError, match=r"^training\.tokens expects .*; use training\.batch_size$"):
        batches_of(Training(tokens=10), 3, None, 1)


@given(tokens=st.integers(13, 60), seed=SEEDS, size=st.sampled_from([1, 2, 64]))
def test_the_order_is_that_of_a_loop(tokens, seed, size):
    lengths = torch.randint(1, 7, (151, 2), generator=generator_for(seed, "lengths"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_module, "POOL", size)  # so few examples would all be in one pool
        order = TokenBudgetBatches(lengths, tokens, 2 * len(lengths), seed)
    expected = [batch for number in (0, 1) for batch in loop(lengths.tolist(), tokens, number, seed, size)]
    assert [batch.tolist() for batch in walked(order)] == expected


def test_a_budget_far_beyond_the_data_costs_no_memory():
    order = TokenBudgetBatches(torch.tensor([[2], [3], [2]]), 10**13, 3, 1)
    assert [sorted(batch.tolist()) for batch in walked(order)] == [[0, 1, 2]]


def test_a_planned_example_takes_few_bytes():
    lengths_NS = torch.randint(4, 40, (10_000, 2))
    batches = TokenBudgetBatches(lengths_NS, 4096, 10_000, 1)
    assert batches.at(0).dtype == torch.int64
    held = batches._lengths.nbytes + batches._ranks.nbytes + batches._plan(0).examples.nbytes
    assert held <= 14 * 10_000, "int32 for two lengths and an index, int16 for a rank"


def test_planning_takes_no_copies_in_memory():
    lengths_NS = torch.randint(4, 40, (1_000_000, 2), dtype=torch.int32)
    tracemalloc.start()
    try:
        TokenBudgetBatches(lengths_NS, 4096, 1_000_000, 1)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000, "NumPy's share: 2 bytes an example for its rank"
    finally:
        tracemalloc.stop()
    assert FixedSizeBatches(1000, 10, 1000, 1)._permutation(0).dtype == torch.int32


@pytest.mark.parametrize("size", [5, 100_003])
def test_an_order_is_that_of_64_bits(size):
    order = FixedSizeBatches(size, size, size, 7).at(0)
    assert order.dtype == torch.int64
    assert torch.equal(order, torch.randperm(size, generator=generator_for(7, "data/0")))
