"""Source and target as one sequence: what a language model trains on, and what it is given to answer."""

import pytest
import torch

from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST, PADDING
from jarilab.data.text.tokenizers import train
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.tasks.policies.base import build
from jarilab.tasks.sequences import Copy, Reverse
from jarilab.tasks.translation import Translation


def joined(kind=Copy, positions="sequential", **options):
    task = kind(symbols=10, lines=20, held_out=5, lengths="1..4", **options)
    task.join()
    task.set_position_policy(build(positions))
    task.prepare()
    return task


def test_a_source_its_answer_and_what_is_to_be_said():
    task = joined()
    source, answers = torch.full((2, 4), PADDING), torch.full((2, 4), PADDING)
    source[0, :3] = torch.tensor([11, 12, END])
    answers[0, :2] = torch.tensor([13, END])
    source[1, :2] = torch.tensor([14, END])
    answers[1, :4] = torch.tensor([15, 16, 17, END])
    batch = task.joined(source, answers)
    (tokens,) = batch.inputs
    assert tokens.ids.tolist() == [[11, 12, END, FIRST, 13, END], [14, END, FIRST, 15, 16, 17]]
    assert batch.labels.tolist() == [[PADDING, PADDING, PADDING, 13, END, PADDING], [PADDING, PADDING, 15, 16, 17, END]]
    assert tokens.keep is None
    assert tokens.positions.index().tolist() == [0, 1, 2, 3, 4, 5]


def test_what_is_trained_on_holds_the_answers_alone():
    task = joined(Reverse)
    batch = task.training_batch(torch.arange(20), torch.Generator())
    for read, labels in zip(batch.inputs[0].ids.tolist(), batch.labels.tolist(), strict=True):
        first = read.index(FIRST)
        source, answer = read[: first - 1], [token for token in labels if token != PADDING]
        assert read[first - 1] == END
        assert set(labels[:first]) <= {PADDING}
        assert answer == [*reversed(source), END]


def test_prompts_have_their_padding_before_them():
    tokens = joined().sources([[11], [12, 13, 14]])
    assert tokens.ids.tolist() == [[PADDING, PADDING, 11, END], [12, 13, 14, END]]
    assert tokens.keep is not None
    assert tokens.keep.tolist() == [[False, False, True, True], [True] * 4]
    assert tokens.positions.index().tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    assert joined().sources([[11], [12]]).keep is None


@pytest.mark.parametrize("positions", ["sequential", "offset:largest=9", "randomized:longest=64"])
def test_what_is_written_goes_on_where_its_source_ends(positions):
    task = joined(positions=positions)
    sources = task.sources([[11], [12, 13, 14]])
    places = task.answer_places(sources)
    written, rows = torch.tensor([[FIRST, 15]] * 3), torch.tensor([1, 0, 0])
    positions_of_answers = places(written, 0, rows).index()
    (short,) = task.answered([11], [15, END])
    (long,) = task.answered([12, 13, 14], [15, END])
    of_each = [tokens.positions.index().flatten()[-2:].tolist() for tokens in (long, short, short)]
    assert positions_of_answers.tolist() == of_each
    assert places(written, 1, rows).index().tolist() == positions_of_answers[:, 1:].tolist()


def test_a_model_needs_as_many_positions_as_both_have_together():
    task = joined()
    assert task.longest == {"source": 5, "target": 5}
    assert task.tokens_read("target") == 10
    apart = Copy(lengths="1..4")
    assert (apart.tokens_read("source"), apart.tokens_read("target")) == (5, 5)


def test_training_by_places_drawn_at_random_draws_as_many_as_there_are_tokens():
    task = joined(positions="randomized:longest=64")
    batch = task.training_batch(torch.arange(20), torch.Generator().manual_seed(1))
    (tokens,) = batch.inputs
    for row, ids_L in zip(tokens.positions.index(), tokens.ids, strict=True):
        places = row[ids_L != PADDING]
        assert (places.diff() > 0).all()


def test_no_ceiling_holds_where_the_causal_mask_tells_of_order():
    task = Arithmetic(maximum=9)
    assert task.ceiling() is not None
    task.join()
    assert task.ceiling() is None


def test_two_vocabularies_are_refused():
    task = Translation(train=("a", "b"))
    task.join()
    task._tokenizers = tuple(train("characters", [text], size=9) for text in ("ab", "cd"))
    with pytest.raises(UserError, match="reads source and target as one sequence, got two; use --joint if"):
        task.check_model({})
