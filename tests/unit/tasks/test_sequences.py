"""Copy, reverse and sort: the answers against a loop, which lines there are, and what a person may write."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tasks import training_pairs
from jarilab.core.errors import UserError
from jarilab.data.text import END, PADDING
from jarilab.tasks.base import registry
from jarilab.tasks.sequences import Copy, NumberSequences, Reverse, Sort

LOOPS = {Copy: list, Reverse: lambda line: list(reversed(line)), Sort: sorted}
every_task = pytest.mark.parametrize("kind", LOOPS, ids=lambda kind: kind.__name__)


def prepared(kind: type[NumberSequences] = Reverse, **options: Any) -> NumberSequences:
    task = kind(**{"lines": 200, "held_out": 50} | options)
    task.prepare()
    return task


def answer(kind: type[NumberSequences], source: str) -> str:
    return " ".join(map(str, LOOPS[kind]([int(word) for word in source.split()])))


@every_task
@given(lines=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=7), min_size=1, max_size=5), behind=st.data())
def test_answers_are_those_of_a_loop(
    kind: type[NumberSequences], lines: list[list[int]], behind: st.DataObject
) -> None:
    longest = max(map(len, lines))
    rest = behind.draw(st.lists(st.integers(0, 9), min_size=longest, max_size=longest))
    matrix = np.array([line + rest[len(line) :] for line in lines])
    answers = kind(symbols=10, lengths="1..7").answers(matrix, np.array([len(line) for line in lines]))
    for line, answer in zip(lines, answers.tolist(), strict=True):
        assert answer[: len(line)] == LOOPS[kind](line)


@every_task
def test_every_example_has_the_right_answer(kind: type[NumberSequences]) -> None:
    task = prepared(kind)
    pairs = training_pairs(task)
    assert len(pairs) == task.training_size == 200
    assert len(task.held_out) == 50
    for source, target in pairs + task.held_out:
        assert target == answer(kind, source) == task.expected(source)


def test_lines_have_the_lengths_and_numbers_asked_for() -> None:
    task = prepared(symbols=7, lines=2000, held_out=2000, lengths="3..6", test_lengths="3..9")
    trained, held_out = training_pairs(task), task.held_out
    assert {len(source.split()) for source, _ in trained} == {3, 4, 5, 6}
    assert {len(source.split()) for source, _ in held_out} == {3, 4, 5, 6, 7, 8, 9}
    assert {int(word) for pair in trained + held_out for word in pair[0].split()} == set(range(7))
    assert task.longest == {"source": 10, "target": 10}
    assert task.model_options == {"source_vocab_size": 10, "target_vocab_size": 10}
    lengths = [2 * [len(source.split()) + 1] for source, _ in trained]
    assert task.training_lengths.tolist() == lengths


def test_held_out_lines_are_others_and_the_seed_decides_them() -> None:
    task = prepared(lengths="8..25")
    trained, held_out = training_pairs(task), task.held_out
    assert not {source for source, _ in trained} & {source for source, _ in held_out}
    again, other = prepared(lengths="8..25"), prepared(lengths="8..25", data_seed=1)
    assert (training_pairs(again), again.held_out) == (trained, held_out)
    assert training_pairs(other) != trained
    assert other.held_out != held_out
    assert again.fingerprint() == task.fingerprint() != other.fingerprint()


def test_longer_lines_are_a_group_of_their_own() -> None:
    task = prepared(lengths="1..4", test_lengths="1..6")
    assert task.groups == ("all", "seen_lengths", "longer")
    groups = {len(source.split()): task.group_of(source, target) for source, target in task.held_out}
    expected = dict.fromkeys(range(1, 5), "seen_lengths")
    assert groups == expected | {5: "longer", 6: "longer"}
    assert prepared().groups == ("all",)
    assert prepared(lengths="1..5", test_lengths="1..3").groups == ("all",)


@given(line=st.lists(st.integers(0, 49), max_size=30))
def test_text_to_numbers_and_back(line: list[int]) -> None:
    source, _ = Copy().tokenizers
    text = " ".join(map(str, line))
    ids = source.encode(text)
    assert ids == [3 + number for number in line]
    assert source.decode(ids) == source.decode([*ids, END, 7]) == source.decode([*ids, PADDING, 7]) == text
    assert source.names([*ids, END]) == [*map(str, line), "<eos>"]


@pytest.mark.parametrize("word", ["50", "-1", "1.5", "x", "²", "٣", "9" * 5000])
def test_what_is_no_number_of_the_task(word: str) -> None:
    quoted = word if len(word) <= 200 else r"9{100,120} \.\.\. 9{50,60}"
    message = f"expected numbers from 0 to 49, got '{quoted}'; write such as 3 1 4"
    with pytest.raises(UserError, match=f"^{message}$"):
        prepared().read(f"1 {word} 2")


def test_a_line_is_read_whatever_its_spaces() -> None:
    task = prepared(lengths="1..4")
    assert task.read(" 1\t 2  3 ") == [4, 5, 6]
    with pytest.raises(UserError, match="5 tokens are too many; this run reads at most 4: cut the line"):
        task.read("1 2 3 4 5")
    with pytest.raises(UserError, match="the line is empty"):
        task.read("  ")


def test_inputs_worth_looking_at_can_be_read() -> None:
    for longest, count in ((5, 3), (4, 1), (3, 0)):
        task = prepared(symbols=2, lengths=f"1..{longest}")
        assert len([task.read(line) for line in task.sample_inputs()]) == count


def test_lengths_to_be_tested_on_may_begin_elsewhere() -> None:
    task = prepared(lengths="3..4", test_lengths="1..6")
    assert task.groups == ("all", "shorter", "seen_lengths", "longer")
    assert {len(source.split()) for source, _ in task.held_out} == {1, 2, 3, 4, 5, 6}
    assert task.fingerprint().startswith("reverse: 200 lines of 3 to 4 numbers below 50, held out 50 of 1 to 6, seed")
    only = prepared(lengths="3", test_lengths="5..6")
    assert only.groups == ("all",), "they are all longer"
    assert {len(source.split()) for source, _ in training_pairs(only)} == {3}


@pytest.mark.parametrize("text", ["", "5..3", "0..4", "1..99999", "1-20", "one", "1..", "1...3", "-1..3"])
@pytest.mark.parametrize("option", ["lengths", "test_lengths"])
def test_lengths_that_cannot_be(option: str, text: str) -> None:
    message = (
        f"^{option}: expected the fewest and the most numbers of a line, from 1 to 10,000, such as 1..20; got '{text}'"
    )
    with pytest.raises(UserError, match=message):
        Sort(**{option: text})


@pytest.mark.parametrize("spec", ["copy:symbols=1", "sort:lines=0", "sort:held_out=0"])
def test_options_that_cannot_be(spec: str) -> None:
    with pytest.raises(UserError, match=r"expected [012] or more, got"):
        registry.spec(spec).build()


@pytest.mark.parametrize(
    "options", [{"lengths": "1..4", "test_lengths": "1..6"}, {"lengths": "1..6", "test_lengths": "1..4"}]
)
def test_lines_that_are_both_trained_on_and_held_out_are_told_of(options: dict[str, str]) -> None:
    task = prepared(symbols=5, lines=300, held_out=1000, **options)
    known = {source for source, _ in training_pairs(task)}
    both = [source for source, _ in task.held_out if source in known]
    longest = max(len(source.split()) for source in both)
    assert 100 < len(both) < 1000
    assert task.notices() == [
        f"{len(both)} of the 1,000 held-out lines are among the training lines too, all of them of {longest} numbers "
        f"or fewer; --lengths from {longest + 1} on leave such short ones out"
    ]
    assert task.describe().endswith(f", of which {len(both)}, all of {longest} numbers or fewer, were trained on too")
    assert "of which" not in task.fingerprint()


def test_where_no_line_is_both_nothing_is_told() -> None:
    task = prepared(lengths="8..25")
    assert task.notices() == []
    assert task.describe() == "reverse: 200 lines of 8 to 25 numbers below 50, held out 50 of up to 25"
