"""Sentences with an ambiguous `it`, in English and in German.

    the animal did not cross the street because it was too tired
    das Tier überquerte die Straße nicht, weil es zu müde war
    the animal did not cross the street because it was too wide
    das Tier überquerte die Straße nicht, weil sie zu breit war

Animals can be tired, streets cannot. German uses er, sie or es by the gender of the noun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, final

import numpy as np

from jarilab.core.errors import unknown
from jarilab.data.text import END, PADDING, SPECIAL, ListedVocabulary
from jarilab.data.text.spelling import PARTED, Reading, Rule, Writing
from jarilab.tasks.seq2seq import padding_last

# Words and templates -------------------------------------------------------------------------------------------------


class Noun(NamedTuple):
    """article: of the German noun in the nominative, which shows its gender."""

    english: str
    article: str
    german: str


def _nouns(text: str) -> list[Noun]:
    return [Noun(*line.split()) for line in text.split(", ")]


def _pairs(text: str) -> list[tuple[str, str]]:
    words = [line.split() for line in text.split(", ")]
    return [(english, german) for english, german in words]


ANIMALS = _nouns(
    "dog der Hund, fox der Fuchs, wolf der Wolf, donkey der Esel, bear der Bär, cat die Katze, cow die Kuh, "
    "goat die Ziege, duck die Ente, mouse die Maus, animal das Tier, horse das Pferd, sheep das Schaf, "
    "pig das Schwein, rabbit das Kaninchen"
)
TO_CROSS = _nouns(
    "river der Fluss, square der Platz, path der Weg, street die Straße, bridge die Brücke, meadow die Wiese, "
    "field das Feld, ice das Eis, valley das Tal"
)
TO_EAT = _nouns(
    "apple der Apfel, cake der Kuchen, cheese der Käse, soup die Suppe, pear die Birne, carrot die Karotte, "
    "bread das Brot, egg das Ei, meat das Fleisch"
)
TO_MOVE = _nouns(
    "stone der Stein, sack der Sack, table der Tisch, box die Kiste, bag die Tasche, ladder die Leiter, "
    "wheel das Rad, barrel das Fass, boat das Boot"
)
THINGS = TO_CROSS + TO_EAT + TO_MOVE
OF_ANIMALS = _pairs("tired müde, weak schwach, sick krank, lazy faul, young jung, nervous nervös")
OF_THINGS = [
    _pairs(
        "wide breit, long lang, dangerous gefährlich, slippery glatt, muddy matschig, dark dunkel"
    ),
    _pairs("hot heiß, cold kalt, sour sauer, salty salzig, dry trocken, hard hart"),
    _pairs(
        "heavy schwer, bulky sperrig, wet nass, dirty schmutzig, fragile zerbrechlich, big groß"
    ),
]
"""Kinds of things: crossed, eaten and moved."""
ATTRIBUTES = _pairs("old alt, small klein, beautiful schön")


class Verb(NamedTuple):
    """things: its kind in `OF_THINGS`."""

    english: str
    past: str
    german: str
    things: int


VERBS = [
    Verb("cross", "crossed", "überquerte", 0),
    Verb("eat", "ate", "fraß", 1),
    Verb("carry", "carried", "trug", 2),
    Verb("push", "pushed", "schob", 2),
    Verb("pull", "pulled", "zog", 2),
]
ONE_KIND = len(TO_CROSS)  # things of a kind
REASONS = len(OF_ANIMALS)  # of an animal, and as many of each kind of thing

PRONOUNS = {"der": "er", "die": "sie", "das": "es"}
ACCUSATIVE = {"der": "den", "die": "die", "das": "das"}
ENGLISH = (
    "the {attribute} {animal} did not {verb} the {quality} {thing} because it was too {reason}",
    "because it was too {reason} the {attribute} {animal} did not {verb} the {quality} {thing}",
    "the {attribute} {animal} {past} the {quality} {thing} although it was {reason}",
    "although it was {reason} the {attribute} {animal} {past} the {quality} {thing}",
)
GERMAN = (
    "{who} {attribute} {animal} {past} {what} {quality} {thing} nicht , weil {pronoun} zu {reason} war",
    "weil {pronoun} zu {reason} war , {past} {who} {attribute} {animal} {what} {quality} {thing} nicht",
    "{who} {attribute} {animal} {past} {what} {quality} {thing} , obwohl {pronoun} {reason} war",
    "obwohl {pronoun} {reason} war , {past} {who} {attribute} {animal} {what} {quality} {thing}",
)
"""The German templates, in the same order. Attributes may be missing."""
LONGEST = max(len(template.split()) for template in ENGLISH + GERMAN)

# Sentences as numbers ------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False)
class Sentences:
    """N sentences, each field `(N,)`: indices into the lists above.

    attribute, quality: of the animal and of the thing, 0 for none. reason: below REASONS one of animals, above it one
    of this kind of things.
    """

    template: np.ndarray
    animal: np.ndarray
    attribute: np.ndarray
    verb: np.ndarray
    thing: np.ndarray
    quality: np.ndarray
    reason: np.ndarray

    def __len__(self) -> int:
        return len(self.template)

    def __getitem__(self, chosen: np.ndarray) -> Sentences:
        return Sentences(*(field[chosen] for field in vars(self).values()))

    @property
    def of_animal(self) -> np.ndarray:
        """Whether `it` is the animal."""
        return self.reason < REASONS

    def key(self) -> np.ndarray:
        """A number for animal, thing and reason, independent of the wording."""
        return (self.animal * len(THINGS) + self.thing) * 2 * REASONS + self.reason


def every_sentence() -> Sentences:
    """Return all sentences."""
    actions = [
        (number, thing)
        for number, verb in enumerate(VERBS)
        for thing in range(verb.things * ONE_KIND, (verb.things + 1) * ONE_KIND)
    ]
    attributes = 1 + len(ATTRIBUTES)
    counts = (len(ENGLISH), len(ANIMALS), attributes, len(actions), attributes, 2 * REASONS)
    template, animal, attribute, action, quality, reason = np.indices(counts, np.int16).reshape(
        len(counts), -1
    )
    verb, thing = np.array(actions, np.int16)[action].T
    return Sentences(template, animal, attribute, verb, thing, quality, reason)


# Words as numbers ----------------------------------------------------------------------------------------------------


@final
class Words(ListedVocabulary):
    """A vocabulary with a token for each word and for the comma."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's words. Raises UserError for an unknown word, with the nearest known one."""
        words = text.replace(",", " , ").split()
        for word in words:
            if word not in self.number or word in SPECIAL:
                raise unknown("word", word, self.tokens[len(SPECIAL) :])
        return [self.number[word] for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.written(ids)).replace(" ,", ",")

    def reading(self, *rules: Rule) -> Reading:
        """Return the rules of `encode` as data. rules: applied before, in lower case."""
        return Reading(PARTED, "text", (*rules, (",", " , ")), end=END)

    def writing(self) -> Writing:
        """Return the rules of `decode` as data."""
        return Writing(join=" ", rules=((" ,", ","),))

    def table(self, words: Sequence[str]) -> np.ndarray:
        """Return the ids of words, padding for a missing one."""
        return np.array([self.number[word] if word else PADDING for word in words])


@final
class Language:
    """The wording of sentences. slots: for each name in braces, the possible words."""

    def __init__(self, templates: Sequence[str], slots: Mapping[str, Sequence[str]]):
        literal = [word for template in templates for word in template.split() if word[0] != "{"]
        listed = [word for words in slots.values() for word in words]
        self.vocabulary = Words(sorted({*literal, *listed} - {""}))
        self._templates = [template.split() for template in templates]
        self._tables = {name: self.vocabulary.table(words) for name, words in slots.items()}

    def tokens(self, sentences: Sentences, chosen: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return tokens `(N, LONGEST)`, padded. chosen: for each slot the index of its word in each sentence."""
        rows = np.full((len(sentences), LONGEST), PADDING, np.uint8)
        for number, template in enumerate(self._templates):
            some = np.flatnonzero(sentences.template == number)
            for place, word in enumerate(template):
                name = word.strip("{}")
                slot = name != word
                rows[some, place] = (
                    self._tables[name][chosen[name][some]] if slot else self.vocabulary.number[word]
                )
        return padding_last(rows)


@cache
def english() -> Language:
    """Return the source language."""
    return Language(
        ENGLISH,
        {
            "animal": [noun.english for noun in ANIMALS],
            "thing": [noun.english for noun in THINGS],
            "verb": [verb.english for verb in VERBS],
            "past": [verb.past for verb in VERBS],
            "attribute": ["", *(word for word, _ in ATTRIBUTES)],
            "quality": ["", *(word for word, _ in ATTRIBUTES)],
            "reason": [word for word, _ in _reasons()],
        },
    )


@cache
def german() -> Language:
    """Return the target language."""
    stems = [word for _, word in ATTRIBUTES]
    # den alten Weg, but die alte Straße, das alte Feld
    of_masculine = [f"{stem}en" for stem in stems]
    return Language(
        GERMAN,
        {
            "animal": [noun.german for noun in ANIMALS],
            "thing": [noun.german for noun in THINGS],
            "past": [verb.german for verb in VERBS],
            "attribute": ["", *(f"{stem}e" for stem in stems)],
            "quality": ["", *(f"{stem}e" for stem in stems), "", *of_masculine],
            "reason": [word for _, word in _reasons()],
            "who": [noun.article for noun in ANIMALS],
            "what": [ACCUSATIVE[noun.article] for noun in THINGS],
            "pronoun": [PRONOUNS[noun.article] for noun in ANIMALS + THINGS],
        },
    )


def _reasons() -> list[tuple[str, str]]:
    """Return the reasons of animals, then those of each kind of things."""
    return [*OF_ANIMALS, *(pair for kind in OF_THINGS for pair in kind)]


def sentence_tokens(sentences: Sentences) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of the English and the German sentences, `(N, LONGEST)` each."""
    kind = sentences.thing // ONE_KIND
    chosen = {
        "animal": sentences.animal,
        "thing": sentences.thing,
        "verb": sentences.verb,
        "past": sentences.verb,
        "attribute": sentences.attribute,
        "quality": sentences.quality,
        "reason": np.where(
            sentences.of_animal, sentences.reason, sentences.reason + kind * REASONS
        ),
    }
    source = english().tokens(sentences, chosen)
    masculine = np.array([noun.article == "der" for noun in THINGS])[sentences.thing]
    chosen["quality"] = sentences.quality + masculine * (1 + len(ATTRIBUTES))
    chosen["who"], chosen["what"] = sentences.animal, sentences.thing
    meant_thing = sentences.thing + len(ANIMALS)
    chosen["pronoun"] = np.where(sentences.of_animal, sentences.animal, meant_thing)
    return source, german().tokens(sentences, chosen)


def is_of_animal(words: Sequence[str]) -> bool:
    """Whether the reason in an English sentence is one of animals."""
    return not {word for word, _ in OF_ANIMALS}.isdisjoint(words)


def articles(words: Sequence[str]) -> tuple[str, str]:
    """Return the German articles of animal and thing in an English sentence."""
    animal = next(noun.article for noun in ANIMALS if noun.english in words)
    thing = next(noun.article for noun in THINGS if noun.english in words)
    return animal, thing


def parse_sentence(words: Sequence[str]) -> Sentences | None:
    """Return the sentence of these English words, or None."""
    animals = [number for number, noun in enumerate(ANIMALS) if noun.english in words]
    things = [number for number, noun in enumerate(THINGS) if noun.english in words]
    verbs = [number for number, verb in enumerate(VERBS) if {verb.english, verb.past} & set(words)]
    if not (animals and things and verbs):
        return None
    animal, thing, verb = animals[0], things[0], verbs[0]
    if VERBS[verb].things != thing // ONE_KIND:
        return None
    reasons = [*OF_ANIMALS, *OF_THINGS[thing // ONE_KIND]]
    matches = [number for number, (word, _) in enumerate(reasons) if word in words]
    if not matches:
        return None
    template = 2 * ("although" in words) + (words[0] != "the")
    attributes = [
        _attribute_before(noun.english, words) for noun in (ANIMALS[animal], THINGS[thing])
    ]
    fields = (template, animal, attributes[0], verb, thing, attributes[1], matches[0])
    sentence = Sentences(*(np.array([field]) for field in fields))
    (tokens,), _ = sentence_tokens(sentence)
    vocabulary = english().vocabulary
    return sentence if vocabulary.decode(tokens.tolist()).split() == list(words) else None


def _attribute_before(noun: str, words: Sequence[str]) -> int:
    """Return the index of the attribute before a noun, 0 for none."""
    before = words[words.index(noun) - 1]
    known = ["", *(word for word, _ in ATTRIBUTES)]
    return known.index(before) if before in known else 0
