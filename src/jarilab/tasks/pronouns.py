"""What `it` refers to, by translation: German must write er, sie or es.

The common example of attention (*The animal didn't cross the street because it was too tired*) as a task with an exact
answer. The right pronoun requires the right referent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from jarilab.data.text.spelling import Spelling
from jarilab.tasks.base import registry
from jarilab.tasks.ceiling import bag_ceiling
from jarilab.tasks.metrics import METRICS, Metric
from jarilab.tasks.pronoun_sentences import (
    ANIMALS,
    LONGEST,
    PRONOUNS,
    THINGS,
    Sentences,
    articles,
    english,
    every_sentence,
    german,
    is_of_animal,
    parse_sentence,
    sentence_tokens,
)
from jarilab.tasks.seq2seq import Matrix, PairsTask, Rows, Vocabulary, scattered

HELD_OUT = 40  # one choice of animal, thing and reason in forty
PICTURE = (
    "the animal did not cross the street because it was too tired",
    "the animal did not cross the street because it was too wide",
)
METRICS.setdefault("pronouns", Metric("pronouns", "right pronouns", share=True))


@registry.register("pronouns")
@final
class Pronouns(PairsTask):
    """Translate sentences such as `the animal did not cross the street because it was too tired` into German.

    One combination of animal, thing and reason in forty is held out, in every wording, and so is this example. Beside
    exact match, `pronouns` is the share of right pronouns where the genders of animal and thing differ.
    """

    words = None

    def __init__(self) -> None:
        super().__init__(LONGEST)

    @classmethod
    def defaults(cls, model: str) -> Mapping[str, Any]:
        return {
            "training.examples": 150_000,
            "training.batch_size": 256,
            "training.evaluation_examples": 1000,
        }

    @property
    def tokenizers(self) -> tuple[Vocabulary, Vocabulary]:
        return english().vocabulary, german().vocabulary

    @property
    def groups(self) -> tuple[str, ...]:
        return ("all", "animal", "thing")

    def group_of(self, source: str, target: str) -> str:
        return "animal" if is_of_animal(source.split()) else "thing"

    def _read_data(self) -> tuple[Rows, Rows]:
        sentences = every_sentence()
        source, target = sentence_tokens(sentences[~_held_out(sentences)])
        return Matrix.of(source), Matrix.of(target)

    def _read_held_out(self) -> list[tuple[str, str]]:
        sentences = every_sentence()
        source, target = sentence_tokens(sentences[_held_out(sentences)])
        sources = _texts(source, english().vocabulary)
        return list(zip(sources, _texts(target, german().vocabulary), strict=True))

    def own_metrics(
        self, pairs: Sequence[tuple[str, str]], written: Sequence[str]
    ) -> dict[str, float]:
        right = [
            pronoun_of(answer) == pronoun_of(target)
            for (source, target), answer in zip(pairs, written, strict=True)
            if genders_differ(source)
        ]
        return {"pronouns": sum(right) / len(right)} if right else {}

    def ceiling(self) -> dict[str, float] | None:
        """Return the ceiling over all sentences.

        An encoder without positions knows a sentence's words, but not which noun an attribute belongs to, and which
        clause came first.
        """
        if self.one_sequence:  # the causal mask gives the order, too
            return None
        sentences = every_sentence()
        source, target = sentence_tokens(sentences)
        parts = {"animal": sentences.of_animal, "thing": ~sentences.of_animal}
        shares = {name: bag_ceiling(source[part], target[part]) for name, part in parts.items()}
        return {"all": bag_ceiling(source, target)} | shares

    def ceiling_sentence(self) -> str:
        return (
            "Without positions the encoder sees only which words a sentence has, not which clause comes first nor "
            "which noun an attribute stands before. Sentences of the same words get the same answer, and at best the "
            "commonest one: counted over all sentences, this is the share of exact answers that no such model can "
            "pass on average."
        )

    @property
    def spelling(self) -> Spelling:
        plain = (("didn['’]t", "did not"), (",", " "), (r"^[ .\t\n]+|[ .\t\n]+$", ""))
        return Spelling(english().vocabulary.reading(*plain), german().vocabulary.writing())

    @property
    def target_spelling(self) -> Spelling:
        words = german().vocabulary
        return Spelling(replace(words.reading(), lowercase=""), words.writing())

    def read(self, line: str) -> list[int]:
        return super().read(_plain(line))

    def expected(self, line: str) -> str | None:
        sentence = parse_sentence(_plain(line).split())
        if sentence is None:
            return None
        (text,) = _texts(sentence_tokens(sentence)[1], german().vocabulary)
        return text

    def sample_inputs(self) -> list[str]:
        return [
            *PICTURE,
            "because it was too heavy the old dog did not carry the small ladder",
            "the cat ate the bread although it was sick",
        ]

    def describe(self) -> str:
        return (
            f"{len(every_sentence()):,} sentences of {len(ANIMALS)} animals and {len(THINGS)} things with a pronoun, "
            f"one choice of animal, thing and reason in {HELD_OUT} held out"
        )

    def purpose(self) -> tuple[str, str]:
        return (
            "Translates a sentence into German, where “it” becomes er, sie or es by the noun that it means.",
            "영어 문장을 독일어로 옮깁니다. it은 가리키는 명사에 따라 er, sie, es가 됩니다.",
        )


def pronoun_of(text: str) -> str | None:
    """Return the pronoun of a German sentence."""
    return next((word for word in text.split() if word in PRONOUNS.values()), None)


def genders_differ(source: str) -> bool:
    """Whether the pronoun of an English sentence depends on its referent."""
    of_animal, of_thing = articles(source.split())
    return of_animal != of_thing


def _plain(line: str) -> str:
    """Normalize a line: `The dog didn't ...` becomes `the dog did not ...`."""
    return (
        line.lower()
        .replace("didn't", "did not")
        .replace("didn’t", "did not")
        .replace(",", " ")
        .strip(" .\t\n")
    )


def _texts(ids: np.ndarray, vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.decode(row) for row in ids.tolist()]


def _held_out(sentences: Sentences) -> np.ndarray:
    """Return which sentences are held out, by Knuth's hash of their meaning, and the example of the figure."""
    keys = sentences.key()
    hashed = scattered(keys) >> np.uint64(8)
    pictured = [parse_sentence(line.split()) for line in PICTURE]
    of_picture = [sentence.key() for sentence in pictured if sentence is not None]
    return (hashed % np.uint64(HELD_OUT) == 0) | np.isin(keys, of_picture)
