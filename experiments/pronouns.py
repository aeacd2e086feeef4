"""Which head knows what `it` refers to? What the maps show, and what is left when a head is switched off.

    jarilab train pronouns --out runs/pronouns
    python experiments/pronouns.py runs/pronouns

On held-out sentences `the A did not V the T because it was too R` in which the genders of A and T differ: for each head
the weight from where the pronoun is made (`it` in the encoder, the place that writes er, sie or es in the decoder) on
the noun that is meant and on the other one, and the share of right pronouns without that head; then without all heads
of a site, and without the links from `it` to both nouns. The words before the pronoun are the right ones.

Minutes: under one. Expected: of the default model, the map of a decoder head is the picture of the textbooks (0.99 on
the noun that is meant, 0.00 on the other), and no pronoun is lost without it; in a model of one head a layer
(`--n-heads 1 --n-decoder-layers 1`) most are lost without any of them, and none without the links from `it`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

import jarilab
from jarilab.data.text import FIRST
from jarilab.inspect.intervene.interventions import Edit, HeadOff, Link, operate
from jarilab.positions.coordinates import Tokens
from jarilab.runs.loaded import OpenRun
from jarilab.tasks.pronoun_sentences import ANIMALS, THINGS, is_of_animal
from jarilab.tasks.pronouns import genders_differ, pronoun_of

FORM = ["the", "A", "did", "not", "V", "the", "T", "because", "it", "was", "too", "R"]
SHOWN = ["the-A", "A", "did", "not", "V", "the-T", "T", "because", "it", "was", "too", "R", "end"]
ANIMAL, THING, IT = (FORM.index(word) for word in ("A", "T", "it"))


@dataclass(frozen=True)
class Sentences:
    """Held-out sentences of one form, so that each kind of word stands at the same place in all of them."""

    run: OpenRun
    pairs: list[tuple[str, str]]

    @staticmethod
    def of(run: OpenRun) -> Sentences:
        """Raises UserError for a run of another task."""
        if run.experiment.task != "pronouns":
            raise jarilab.UserError(f"expected a run of the task pronouns, got one of {run.experiment.task}")
        task: Any = run.task
        pairs = task.held_out
        return Sentences(run, [pair for pair in pairs if _has_form(pair[0]) and genders_differ(pair[0])])

    @cached_property
    def inputs(self) -> tuple[Tokens, Tokens]:
        """English, and the German words before each that is written."""
        task: Any = self.run.task
        sources = task.sources([task.read(english) for english, _ in self.pairs])
        return sources, Tokens.of(torch.tensor([[FIRST, *ids] for ids in self._answers]), "target")

    @cached_property
    def _answers(self) -> list[list[int]]:
        task: Any = self.run.task
        target = task.tokenizers[1]
        return [target.encode(german) for _, german in self.pairs]

    @cached_property
    def written_at(self) -> int:
        """Where the pronoun is written."""
        german = self.pairs[0][1]
        words = german.replace(",", " ,").split()
        return words.index(str(pronoun_of(german)))

    @property
    def meant(self) -> Tensor:
        """The place of the noun that is meant."""
        return torch.tensor([ANIMAL if is_of_animal(english.split()) else THING for english, _ in self.pairs])

    @torch.no_grad()
    def right(self, edits: Sequence[Edit] = ()) -> float:
        """The share of right pronouns under edits."""
        with operate(self.run.model, list(edits)):
            scores_BQV = self.run.model(*self.inputs)
        expected_B = torch.tensor([ids[self.written_at] for ids in self._answers])
        hits_B = scores_BQV[:, self.written_at].argmax(-1) == expected_B
        return float(hits_B.double().mean())


def _has_form(english: str) -> bool:
    words = english.split()
    if len(words) != len(FORM):
        return False
    changing = {"V", "R"}
    named = {noun.english: kind for kind, nouns in (("A", ANIMALS), ("T", THINGS)) for noun in nouns}
    pairs = zip(words, FORM, strict=True)
    return all(wanted in changing or named.get(word, word) == wanted for word, wanted in pairs)


def table_of(sentences: Sentences) -> str:
    """A row for each head that looks at the English sentence, in Markdown."""
    tape = recorded(sentences)
    head = [
        "head",
        "from",
        "on the noun meant",
        "on the other",
        "most on, of an animal",
        "of a thing",
        "right without it",
    ]
    rows = [head, [":---"] * 2 + ["---:"] * 2 + [":---"] * 2 + ["---:"]]
    rows += [row for site in tape.sites_of("encoder") for row in _rows(sentences, tape, site, IT, "it")]
    place = sentences.written_at
    rows += [row for site in tape.sites_of("cross") for row in _rows(sentences, tape, site, place, "er, sie, es")]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _rows(sentences: Sentences, tape: jarilab.Tape, site: str, place: int, name: str) -> Iterator[list[str]]:
    meant_B = sentences.meant
    every_B, of_animal_B = torch.arange(len(meant_B)), meant_B == ANIMAL
    weights_BHK = tape.weights(site)[:, :, place]
    for head, weights_BK in enumerate(weights_BHK.unbind(1)):
        on_meant = float(weights_BK[every_B, meant_B].mean())
        on_other = float(weights_BK[every_B, ANIMAL + THING - meant_B].mean())
        most = [_most(weights_BK[of_animal_B]), _most(weights_BK[~of_animal_B])]
        left = sentences.right([HeadOff(site, head)])
        yield [f"{site} {head}", name, f"{on_meant:.2f}", f"{on_other:.2f}", *most, f"{left:.1%}"]


def _most(weights_BK: Tensor) -> str:
    """The word with the largest weight, by its mean."""
    mean_K = weights_BK.mean(0)
    place = int(mean_K.argmax())
    return f"{SHOWN[place]} {float(mean_K[place]):.2f}"


def recorded(sentences: Sentences) -> jarilab.Tape:
    """The maps of all sentences."""
    with torch.no_grad(), jarilab.record(sentences.run.model) as tape:
        sentences.run.model(*sentences.inputs)
    return tape


def removals_of(sentences: Sentences) -> str:
    """Right pronouns without all heads of a site, and without links, in Markdown."""
    tape = recorded(sentences)
    edits: dict[str, list[Edit]] = {"nothing": []}
    for site in (*tape.sites_of("encoder"), *tape.sites_of("cross")):
        edits[f"all heads of `{site}`"] = [HeadOff(site, head) for head in range(tape.weights(site).shape[1])]
    edits["the encoder's links from `it` to both nouns"] = [
        Link(site, None, IT, noun, "erase") for site in tape.sites_of("encoder") for noun in (ANIMAL, THING)
    ]
    rows = [[name, f"{sentences.right(removed):.1%}"] for name, removed in edits.items()]
    head = ["removed", f"right of {len(sentences.pairs)} pronouns"]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, [":---", "---:"], *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="Which head knows what a pronoun refers to.")
    parser.add_argument("run", help="the folder of a run of the task pronouns")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        sentences = Sentences.of(jarilab.load(given.run))
        print(table_of(sentences), removals_of(sentences), sep="\n")
    except jarilab.UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
