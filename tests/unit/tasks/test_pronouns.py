"""Sentences with a pronoun: what they say, against grammar written out by hand; what is held out; what is measured."""

import re
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch

from helpers.tasks import training_pairs
from jarilab.core.errors import UserError
from jarilab.data.text import END, PADDING
from jarilab.tasks.base import registry
from jarilab.tasks.pronoun_sentences import ANIMALS, THINGS, every_sentence, parse_sentence, sentence_tokens
from jarilab.tasks.pronouns import PICTURE, Pronouns, genders_differ, pronoun_of

# Written out by hand, apart from the tables of the task: noun, article, accusative, pronoun.
NOUNS = {
    "dog": "Hund der den er", "cat": "Katze die die sie", "animal": "Tier das das es", "river": "Fluss der den er",
    "street": "Straße die die sie", "ice": "Eis das das es", "soup": "Suppe die die sie", "bread": "Brot das das es",
    "cheese": "Käse der den er", "boat": "Boot das das es", "table": "Tisch der den er", "box": "Kiste die die sie",
}  # fmt: skip
SAID = [
    (PICTURE[0], "das Tier überquerte die Straße nicht, weil es zu müde war"),
    (PICTURE[1], "das Tier überquerte die Straße nicht, weil sie zu breit war"),
    (
        "because it was too heavy the old dog did not carry the small ladder",
        "weil sie zu schwer war, trug der alte Hund die kleine Leiter nicht",
    ),
    ("the cat ate the old cheese although it was sick", "die Katze fraß den alten Käse, obwohl sie krank war"),
    (
        "although it was salty the beautiful rabbit ate the beautiful egg",
        "obwohl es salzig war, fraß das schöne Kaninchen das schöne Ei",
    ),
    ("the dog did not cross the river because it was too dark",
     "der Hund überquerte den Fluss nicht, weil er zu dunkel war"),
]  # fmt: skip


@pytest.fixture(scope="module")
def task() -> Pronouns:
    task = registry.spec("pronouns").build()
    task.prepare()
    return task


@pytest.fixture(scope="module")
def trained(task: Pronouns) -> list[tuple[str, str]]:
    return training_pairs(task)


@pytest.fixture(scope="module")
def every(task: Pronouns, trained: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return trained + task.held_out


@pytest.mark.parametrize(("english", "german"), SAID)
def test_what_a_sentence_becomes(task: Pronouns, english: str, german: str) -> None:
    assert task.expected(english) == german
    assert task.write([*task.tokenizers[1].encode(german), END, 7]) == german


@pytest.mark.long
def test_every_sentence_is_there_once_and_has_one_translation(every: list[tuple[str, str]]) -> None:
    assert len(every) == len({source for source, _ in every}) == len(every_sentence()) == 518_400
    assert dict(every)[SAID[2][0]] == SAID[2][1]


@pytest.mark.slow
def test_articles_and_pronouns_are_those_of_the_nouns(every: list[tuple[str, str]]) -> None:
    pairs = set()
    for english, german in every[::97]:
        words, german_words = english.split(), german.replace(",", "").split()
        animal = next(noun.english for noun in ANIMALS if noun.english in words)
        thing = next(noun.english for noun in THINGS if noun.english in words)
        tired = {"tired", "weak", "sick", "lazy", "young", "nervous"} & set(words)
        if not {animal, thing} <= NOUNS.keys():
            continue
        who, article, _, of_animal = NOUNS[animal].split()
        what, _, accusative, of_thing = NOUNS[thing].split()
        between = r"( \w+e)? " if accusative != "den" else r"( \w+en)? "
        assert re.search(rf"\b{article}( \w+e)? {who}\b", german), german
        assert re.search(rf"\b{accusative}{between}{what}\b", german), german
        assert pronoun_of(german) == (of_animal if tired else of_thing)
        assert sum(word in ("er", "sie", "es") for word in german_words) == 1
        pairs.add((animal, thing))
    assert len(pairs) > 10


@pytest.mark.parametrize(
    "line",
    [
        "The animal didn't cross the street because it was too tired.",
        "the animal didn’t cross the street, because it was too tired",
        "  THE ANIMAL DID NOT CROSS THE STREET BECAUSE IT WAS TOO TIRED\n",
    ],
)
def test_a_sentence_is_read_as_people_write_it(task: Pronouns, line: str) -> None:
    assert task.read(line) == task.read(PICTURE[0])
    assert task.expected(line) == SAID[0][1]


@pytest.mark.parametrize(
    "line",
    [
        "the animal did not cross the street because it was too hot",
        "the animal did not eat the street because it was too tired",
        "the street did not cross the animal because it was too tired",
        "the animal cross the street because it was too tired",
        "it was too tired",
        "the dog the dog crossed the street although it was tired",
    ],
)
def test_what_is_no_sentence_of_the_task_has_no_expected_answer(task: Pronouns, line: str) -> None:
    assert task.expected(line) is None
    assert task.read(line)


def test_an_unknown_word_is_told_with_the_nearest(task: Pronouns) -> None:
    with pytest.raises(UserError, match="unknown word 'stret'; did you mean 'street'"):
        task.read("the animal did not cross the stret")
    with pytest.raises(UserError, match="unknown word '<eos>'"):
        task.read("the <eos>")
    with pytest.raises(UserError, match="the line is empty"):
        task.read(" . ")


def test_what_is_held_out_is_never_told_otherwise(task: Pronouns, trained: list[tuple[str, str]]) -> None:
    def meant(english: str) -> tuple[int, ...]:
        sentence = parse_sentence(english.split())
        assert sentence is not None
        return tuple(sentence.key().tolist())

    # Each is told in several ways: by 4 orders, 16 attributes, and 3 verbs at most.
    held_out = {meant(english) for english, _ in task.held_out[::7]}
    assert not held_out & {meant(english) for english, _ in trained[::211]}
    assert len(held_out) == 123, "of 4,860 choices of animal, thing and reason"
    assert set(PICTURE) <= {english for english, _ in task.held_out}


def test_groups_are_what_it_refers_to(task: Pronouns) -> None:
    assert task.groups == ("all", "animal", "thing")
    assert [task.group_of(english, "") for english in PICTURE] == ["animal", "thing"]
    assert genders_differ(PICTURE[0])
    assert not genders_differ("the cat did not cross the street because it was too tired")


def test_right_pronouns_are_counted_where_genders_differ(task: Pronouns) -> None:
    pairs = [*SAID[:2], ("the cat did not cross the street because it was too tired", "die Katze")]
    written = [SAID[0][1], SAID[0][1], "nothing"]
    assert task.own_metrics(pairs, written) == {"pronouns": 0.5}
    assert task.own_metrics(pairs[2:], written[2:]) == {}


def test_the_ceiling_is_a_count(task: Pronouns) -> None:
    sentences = every_sentence()
    some = sentences[np.flatnonzero((sentences.animal == 3) & (sentences.thing == 5))]
    answers: dict[tuple[int, ...], Counter[tuple[int, ...]]] = defaultdict(Counter)
    for source, target in zip(*(rows.tolist() for rows in sentence_tokens(some)), strict=True):
        answers[tuple(sorted(source))][tuple(target)] += 1
    by_hand = sum(max(counts.values()) for counts in answers.values()) / len(some)
    assert task.ceiling() == pytest.approx({"all": by_hand, "animal": by_hand, "thing": by_hand})


def test_examples_have_the_tokens_they_say(task: Pronouns) -> None:
    batch = task.training_batch(torch.arange(0, task.training_size, 7), torch.Generator())
    sides = (batch.inputs[0].ids != PADDING).sum(1), (batch.labels != PADDING).sum(1)
    assert torch.equal(task.training_lengths[::7], torch.stack(sides, 1))
    assert max(batch.inputs[0].ids.shape[1], batch.labels.shape[1]) <= task.longest["source"]


def test_samples_are_sentences(task: Pronouns) -> None:
    assert all(task.expected(line) for line in task.sample_inputs())
    assert task.describe().startswith("518,400 sentences of 15 animals and 27 things")
