"""Names of numbers: against num2words, there and back, what is held out, and the ceiling by a plain count."""

import random
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from num2words import num2words

from helpers.tasks import training_pairs
from jarilab.core.errors import UserError
from jarilab.data.text import END, PADDING
from jarilab.tasks import number_words
from jarilab.tasks.base import registry
from jarilab.tasks.number_words import LARGEST, NumberWords

CORNERS = [10_000, 10_001, 11_111, 20_000, 100_000, 100_100, 110_000, 999_999]
SOME = [*CORNERS, *random.Random(5).sample(range(LARGEST), 2000)]

Pairs = list[tuple[str, str]]


def english(number: int) -> str:
    return num2words(number, lang="en").replace(" and ", " ").replace(",", "")


def korean(number: int) -> str:
    return num2words(number, lang="ko")


def made(maximum: int, direction: str = "both") -> NumberWords:
    task = registry.spec(f"number-words:maximum={maximum},direction={direction}").build()
    task.prepare()
    return task


@pytest.fixture(scope="module")
def task() -> NumberWords:
    return made(10_001)


@pytest.fixture(scope="module")
def every(task: NumberWords) -> Pairs:
    return training_pairs(task) + task.held_out


@pytest.fixture(scope="module")
def names() -> Pairs:
    """Korean and English, of all numbers up to 10,001."""
    return [(korean(n), english(n)) for n in range(10_002)]


def test_names_are_those_of_num2words(every: Pairs, names: Pairs) -> None:
    assert sorted(every) == sorted(names + [(other, one) for one, other in names])


def test_large_numbers_have_the_names_of_num2words(task: NumberWords) -> None:
    source, _ = task.tokenizers
    ids = number_words._names_of(np.array(SOME))
    for language, name in (("ko", korean), ("en", english)):
        assert [source.decode(row.tolist()) for row in ids[language]] == [name(n) for n in SOME]


def test_names_are_read_as_the_tokens_they_are_written_with(task: NumberWords) -> None:
    for number in SOME:
        for name in (korean(number), num2words(number, lang="en")):
            assert task.read(name) == task.tokenizers[0].encode(name.replace(" and ", " ").replace(",", ""))
            assert task.write([*task.read(name), END, 7]) == name.replace(" and ", " ").replace(",", "")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Two hundred and twenty-two", "two hundred twenty-two"),
        ("twenty two", "twenty-two"),
        (" TWENTY -  two\t", "twenty-two"),
        ("one thousand, two hundred and one", "one thousand two hundred one"),
        ("이백이십이 ", "이백이십이"),
        ("이만,  이천", "이만 이천"),
        ("이 백 이십", "이백이십"),
    ],
)
def test_a_name_is_read_as_people_write_it(task: NumberWords, text: str, name: str) -> None:
    assert task.write(task.read(text)) == name


@pytest.mark.parametrize(
    ("text", "word"),
    [("twentytwo", "twentytwo"), ("two hundert", "hundert"), ("222", "2"), ("이백억", "억"), ("<eos>", "<")],
)
def test_what_is_no_name(task: NumberWords, text: str, word: str) -> None:
    with pytest.raises(UserError, match=f"^'{word}' is no word for a number; write such as 이백이십이 or two hundred"):
        task.read(text)


@pytest.mark.parametrize("text", ["", " ", "and", "- ,"])
def test_a_line_of_nothing(task: NumberWords, text: str) -> None:
    with pytest.raises(UserError, match="the line is empty"):
        task.read(text)


def test_tokens_have_the_names_a_person_reads(task: NumberWords) -> None:
    assert task.show_source([*task.read("이만 이백 two"), END]) == ["이", "만", " ", "이", "백", "two", "<eos>"]


def test_no_number_is_both_trained_on_and_held_out(task: NumberWords) -> None:
    trained_on = {frozenset(pair) for pair in training_pairs(task)}
    held_out = {frozenset(pair) for pair in task.held_out}
    assert not trained_on & held_out
    # Each held-out number is asked for in both directions, and they are about one in a hundred.
    assert len(task.held_out) == 2 * len(held_out)
    assert 0.005 < len(held_out) / len(trained_on) < 0.015


@pytest.mark.parametrize("direction", ["ko-en", "en-ko"])
def test_one_direction_alone(direction: str) -> None:
    task = made(999, direction)
    pairs = training_pairs(task) + task.held_out
    assert len(pairs) == 1000
    assert {source.isascii() for source, _ in pairs} == {direction == "en-ko"}
    assert task.groups == ("all",)


def test_directions_are_groups(task: NumberWords) -> None:
    assert task.groups == ("all", "ko-en", "en-ko")
    assert task.group_of("이십", "twenty") == "ko-en"
    assert task.group_of("twenty", "이십") == "en-ko"


def test_examples_have_the_tokens_they_say(task: NumberWords) -> None:
    batch = task.training_batch(torch.arange(task.training_size), torch.Generator())
    sides = (batch.inputs[0].ids != PADDING).sum(1), (batch.labels != PADDING).sum(1)
    assert torch.equal(task.training_lengths, torch.stack(sides, 1))
    assert max(batch.inputs[0].ids.shape[1], batch.labels.shape[1]) <= task.longest["source"]


def best_for_bags(pairs: list[tuple[list[int], str]]) -> float:
    """The share of answers that are the commonest one for their bag of words."""
    answers: dict[tuple[int, ...], Counter[str]] = defaultdict(Counter)
    for words, answer in pairs:
        answers[tuple(sorted(words))][answer] += 1
    return sum(max(counts.values()) for counts in answers.values()) / len(pairs)


def test_the_ceiling_is_a_count(task: NumberWords, names: Pairs) -> None:
    to_english = best_for_bags([(task.read(one), other) for one, other in names[:10_000]])
    to_korean = best_for_bags([(task.read(other), one) for one, other in names[:10_000]])
    ceiling = made(9999).ceiling()
    assert ceiling == pytest.approx({"all": (to_english + to_korean) / 2, "ko-en": to_english, "en-ko": to_korean})
    assert made(9999, "en-ko").ceiling() == pytest.approx({"all": to_korean})


@pytest.mark.long
@pytest.mark.slow
def test_the_ceiling_of_the_whole_task() -> None:
    # The figures that the documentation gives.
    assert NumberWords().ceiling() == pytest.approx({"all": 0.0440165, "ko-en": 0.015618, "en-ko": 0.072415}, abs=5e-7)


def test_numbers_that_cannot_be() -> None:
    for maximum in ("98", "1000000"):
        with pytest.raises(UserError, match="number-words: maximum: expected"):
            registry.spec(f"number-words:maximum={maximum}")
