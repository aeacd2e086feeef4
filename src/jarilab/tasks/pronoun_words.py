"""The words of sentences with a pronoun, English and German, and their templates."""

from __future__ import annotations

from typing import NamedTuple


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
