"""What does a translator look at when it writes his, her, its or their? Real sentences beside the task `pronouns`.

    jarilab train translation --train train.de.gz train.en.gz --valid val.de.gz val.en.gz --encoding rotary \
        --d-model 128 --n-heads 4 --d-ff 512 --n-encoder-layers 2 --n-decoder-layers 2 --vocab-size 4000 --dropout 0.1 \
        --epochs 8 --threads 1 --out runs/deen-small
    python experiments/possessives.py runs/deen-small --data test_2016_flickr.de.gz test_2016_flickr.en.gz

German says *sein* of a man, a child and a dog and *ihr* of a woman and of several, so what a possessive becomes in
English is decided by the noun it refers to. Taken are held-out pairs (the run's own, and those of --data) with one
possessive on each side, and one noun before it, of a list of persons and animals, that it can refer to. English words
before the pronoun are those of the reference; an answer is the likeliest of his, her, its and their. For each head the
weight on that noun and on the possessive itself, from where the pronoun is written (of an encoder's head, from the
possessive), and the share of right pronouns without the head; then without all heads of a site, and without links.
Beside all sentences stand those in which the possessive alone misleads: his is usual for *sein*, her for *ihr*.

Minutes: 8 of one core for the training, under one for this. Expected: no head of the decoder looks at the noun, most
look at the possessive; without the links to the noun nothing is lost. docs/results/text.md has the figures.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import jarilab
from jarilab.data.text import FIRST
from jarilab.inspect.intervene.interventions import Edit, HeadOff, Link, operate
from jarilab.positions.coordinates import Tokens
from jarilab.runs.loaded import OpenRun
from jarilab.tasks.base import right_padded

PRONOUNS = ("his", "her", "its", "their")
USUAL = {"sein": "his", "ihr": "her"}
"""What a possessive mostly becomes."""
POSSESSIVE = re.compile(r"\b(sein|ihr)(?:e|em|en|er|es)?\b")
OF_SEIN = "Mann Junge Vater Sohn Bub Kerl Herr Arbeiter Spieler Sportler Fahrer Hund Kind Baby Kleinkind Typ Sänger"
OF_IHR = "Frau Dame Mutter Tochter Person Gruppe Männer Frauen Kinder Leute Menschen Jungen Hunde Personen Damen"
OF_BOTH = "Mädchen Paar"
"""One of them, by grammar or by sense, or several."""
REFERENTS = {
    **{noun: {"sein"} for noun in OF_SEIN.split()},
    **{noun: {"ihr"} for noun in OF_IHR.split()},
    **{noun: {"sein", "ihr"} for noun in OF_BOTH.split()},
}


@dataclass(frozen=True)
class Sentence:
    """A German sentence, and the English one up to the pronoun. Places are those of tokens; a word may have several."""

    source: list[int]
    before: list[int]
    pronoun: str
    stem: str
    possessive: list[int]
    referent: list[int]
    elsewhere: list[int]
    """A word that is neither, to compare with."""

    @property
    def misleads(self) -> bool:
        """Whether the possessive alone speaks for another pronoun."""
        return USUAL[self.stem] != self.pronoun


def sentences_of(run: OpenRun, data: Sequence[str]) -> list[Sentence]:
    """Those of the held-out pairs that are plain. Raises UserError where there are none."""
    if run.experiment.task != "translation":
        raise jarilab.UserError(f"expected a run of the task translation, got one of {run.experiment.task}")
    task: Any = run.task
    pairs = list(task.held_out)
    if data:
        task.hold_out(data)
        pairs += task.held_out
    found = [read for german, english in pairs if (read := _read(task, german, english))]
    if not found:
        raise jarilab.UserError(
            f"none of {len(pairs):,} pairs is German to English with one possessive and one noun that it can refer "
            "to; give such a run, and files with --data"
        )
    return found


def _read(task: Any, german: str, english: str) -> Sentence | None:
    """The sentence, where it is plain what the possessive refers to."""
    possessives = list(POSSESSIVE.finditer(german))
    pronouns = [word for word in re.finditer(r"\b\w+\b", english) if word[0] in PRONOUNS]
    if len(possessives) != 1 or len(pronouns) != 1:
        return None
    possessive, pronoun = possessives[0], pronouns[0]
    stem = possessive[1]
    words = list(re.finditer(r"\w+", german))
    nouns = [word for word in words if stem in REFERENTS.get(word[0], ())]
    others = [word for word in words if word.start() not in {possessive.start(), *(noun.start() for noun in nouns)}]
    if len(nouns) != 1 or nouns[0].start() > possessive.start() or not others:
        return None
    reader, writer = task.tokenizers
    other = random.Random(german).choice(others)
    places = [_places(reader, german, word) for word in (possessive, nouns[0], other)]
    before = writer.encode(english[: pronoun.start()].rstrip())
    return Sentence(reader.encode(german), before, pronoun[0], stem, *places)


def _places(tokenizer: Any, text: str, word: re.Match[str]) -> list[int]:
    """Of the tokens of a word: no token crosses the space before it."""
    first = len(tokenizer.encode(text[: word.start()].rstrip()))
    return list(range(first, len(tokenizer.encode(text[: word.end()]))))


@dataclass(frozen=True)
class Measured:
    """The model, asked for the pronoun of each sentence."""

    run: OpenRun
    sentences: list[Sentence]

    def inputs(self, chosen: Sequence[Sentence]) -> tuple[Tokens, Tokens]:
        """German, and the English words before the pronoun, padded."""
        task: Any = self.run.task
        before = right_padded([[FIRST, *one.before] for one in chosen])
        return task.sources([one.source for one in chosen]), Tokens.of(before, "target")

    @torch.no_grad()
    def right(self, chosen: Sequence[Sentence], edits: Sequence[Edit] = ()) -> list[bool]:
        """Whether the right one of the four pronouns is the likeliest under edits, for each sentence."""
        with operate(self.run.model, list(edits)):
            scores_BQV = self.run.model(*self.inputs(chosen))
        place_B = torch.tensor([len(one.before) for one in chosen])
        scores_BV = scores_BQV[torch.arange(len(chosen)), place_B]
        best_B = scores_BV[:, self._numbers].argmax(-1).tolist()
        return [PRONOUNS[best] == one.pronoun for best, one in zip(best_B, chosen, strict=True)]

    @property
    def _numbers(self) -> list[int]:
        """The first token of each pronoun, as it stands inside a sentence."""
        task: Any = self.run.task
        writer = task.tokenizers[1]
        return [writer.encode(f"a {word}")[len(writer.encode("a"))] for word in PRONOUNS]

    def without_links(self, links: Any) -> list[bool]:
        """The same without the links that `links` gives for a sentence."""
        return [self.right([one], links(one))[0] for one in self.sentences]

    def cells(self, right: Sequence[bool]) -> list[str]:
        """The share of right ones among all sentences, and among those whose possessive misleads."""
        misled = [is_right for is_right, one in zip(right, self.sentences, strict=True) if one.misleads]
        return [f"{sum(right) / len(right):.1%}", f"{sum(misled) / len(misled):.1%}" if misled else "none"]


def table_of(measured: Measured) -> str:
    """A row for each head that sees the German sentence, in Markdown."""
    head = ["head", "from", "on the noun", "on the possessive", "right without it", "of those misled"]
    rows = [head, [":---"] * 2 + ["---:"] * 4, *_rows(measured)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


KINDS: tuple[tuple[Literal["encoder", "cross"], str], ...] = (("encoder", "sein, ihr"), ("cross", "the pronoun"))


def _rows(measured: Measured) -> Iterator[list[str]]:
    tape = recorded(measured)
    for kind, name in KINDS:
        for site in tape.sites_of(kind):
            for head, weights_BQK in enumerate(tape.weights(site).unbind(1)):
                told = zip(weights_BQK, measured.sentences, strict=True)
                shares = [_shares(weights_QK, one, kind) for weights_QK, one in told]
                means = [f"{sum(column) / len(shares):.2f}" for column in zip(*shares, strict=True)]
                right = measured.right(measured.sentences, [HeadOff(site, head)])
                yield [f"{site} {head}", name, *means, *measured.cells(right)]


def _shares(weights_QK: Tensor, one: Sentence, kind: str) -> tuple[float, float]:
    """What the noun and the possessive get, all their tokens together."""
    query = one.possessive[-1] if kind == "encoder" else len(one.before)
    row_K = weights_QK[query]
    return float(row_K[one.referent].sum()), float(row_K[one.possessive].sum())


def recorded(measured: Measured) -> jarilab.Tape:
    """The maps of all sentences."""
    with torch.no_grad(), jarilab.record(measured.run.model) as tape:
        measured.run.model(*measured.inputs(measured.sentences))
    return tape


def removals_of(measured: Measured) -> str:
    """Right pronouns without all heads of a site, and without links, in Markdown."""
    misled = sum(one.misleads for one in measured.sentences)
    head = ["removed", f"right of {len(measured.sentences)}", f"of {misled} misled"]
    rows = [head, [":---", "---:", "---:"], *_removals(measured)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _removals(measured: Measured) -> Iterator[list[str]]:
    tape, every = recorded(measured), measured.sentences
    encoder, cross = tape.sites_of("encoder"), tape.sites_of("cross")

    def links(sites: Sequence[str], one: Sentence, query: Sequence[int], keys: Sequence[int]) -> list[Edit]:
        return [Link(site, None, q, key, "erase") for site in sites for q in query for key in keys]

    def written(name: str) -> Any:
        return lambda one: links(cross, one, [len(one.before)], getattr(one, name))

    yield ["always *his* for *sein*, *her* for *ihr*", *measured.cells([not one.misleads for one in every])]
    yield ["nothing", *measured.cells(measured.right(every))]
    for site in (*encoder, *tape.sites_of("decoder"), *cross):
        heads = range(tape.weights(site).shape[1])
        right = measured.right(every, [HeadOff(site, head) for head in heads])
        yield [f"all heads of `{site}`", *measured.cells(right)]
    for key, place in (("the noun", "referent"), ("the possessive", "possessive"), ("a random word", "elsewhere")):
        right = measured.without_links(written(place))
        yield [f"the decoder's links from the pronoun to {key}", *measured.cells(right)]
    of_encoder = measured.without_links(lambda one: links(encoder, one, one.possessive, one.referent))
    yield ["the encoder's links from the possessive to the noun", *measured.cells(of_encoder)]
    both = measured.without_links(
        lambda one: links(encoder, one, one.possessive, one.referent) + written("referent")(one)
    )
    yield ["all links to the noun", *measured.cells(both)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="What a translator looks at when it writes his, her, its or their.")
    parser.add_argument("run", help="the folder of a run that translates from German to English")
    parser.add_argument("--data", nargs=2, default=(), metavar="FILE", help="more held-out pairs, German and English")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        run = jarilab.load(given.run)
        measured = Measured(run, sentences_of(run, given.data))
        print(table_of(measured), removals_of(measured), sep="\n")
    except jarilab.UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
