"""Do models answer texts longer than those they were trained on? It depends on where tokens are told to be.

    python experiments/longer.py addition --out runs/longer-addition --seeds 5
    python experiments/longer.py reversal --out runs/longer-reversal --seeds 5

addition: sums of two numbers of 1 to 10 digits, all written from the ones up, measured on up to 20 digits; the setting
of *Transformers Can Do Arithmetic with the Right Embeddings* (McLeish et al. 2024) and *Position Coupling* (Cho et al.
2024), small. reversal: lines of 1 to 40 numbers, measured on up to 100; of *Randomized Positional Encodings* (Ruoss et
al. 2023), small. The same model, data and seeds under each position policy. Writes longer.md: exact match on lengths
that were trained on and on longer ones, after the last step and at the best on the way, since what is learned of longer
texts comes and goes; every seed by itself, since seeds differ more than policies do.

Minutes: about 1 of a core for each training of `addition` with --examples 100000, 4 times that by default; 3 for
`reversal` with --examples 180000.
Expected: addition, one seed, 100,000 examples, exact match on trained lengths and on longer ones after the last step
(best on the way): coupling 100 % and 47 % (58 %), abacus 100 % and 31 % (50 %), sequential 96 % and 0 % (0 %),
randomized 16 % and 0 % (0 %), which needs more training than this. What is right of longer sums peaks early and
erodes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np
from annotated_types import Ge, Le

import jarilab
from jarilab.data.text import PADDING, CharacterVocabulary
from jarilab.tasks.policies.base import Numbers
from jarilab.tasks.seq2seq import Matrix, PairsTask, Rows, Vocabulary

VOCABULARY = CharacterVocabulary("0123456789+")
DIGITS = tuple(VOCABULARY.number[digit] for digit in "0123456789")
GROUPS = ("all", "seen_lengths", "longer")
MODEL = {"model.d_model": 64, "model.n_heads": 4, "model.encoding": "rotary", "model.cross_encoding": "rotary"}

Outcome = Mapping[str, Any]
"""What `jarilab.train` gave."""


@final
class Characters:
    """The characters as a task of two texts asks for them."""

    def __len__(self) -> int:
        return len(VOCABULARY)

    def encode(self, text: str) -> list[int]:
        return VOCABULARY.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return VOCABULARY.decode(ids)

    def names(self, ids: Sequence[int]) -> list[str]:
        return [VOCABULARY.tokens[token] for token in ids]


@final
class Addition(PairsTask):
    """Sums of two numbers of equally many digits, all written from the ones up: `12+99` is 21 + 99, answer `021`.

    digits: the most that a number to train on has. test_digits: the most that a held-out one has. lines: how many sums
    to train on. held_out: how many others to measure on. data_seed: decides them.
    """

    def __init__(
        self,
        *,
        digits: Annotated[int, Ge(1), Le(100)] = 10,
        test_digits: Annotated[int, Ge(1), Le(100)] = 20,
        lines: Annotated[int, Ge(1), Le(10_000_000)] = 200_000,
        held_out: Annotated[int, Ge(1), Le(1_000_000)] = 1000,
        data_seed: Annotated[int, Ge(0)] = 42,
    ):
        super().__init__(2 * max(digits, test_digits) + 1)
        self.digits, self.test_digits = digits, test_digits
        self.size, self.size_held_out, self.data_seed = lines, held_out, data_seed

    @property
    def tokenizers(self) -> tuple[Vocabulary, Vocabulary]:
        return Characters(), Characters()

    def numbers(self, frame: str) -> Numbers:
        return Numbers(DIGITS, ones_first=True)

    @property
    def groups(self) -> tuple[str, ...]:
        return GROUPS

    def group_of(self, source: str, target: str) -> str:
        return "longer" if source.index("+") > self.digits else "seen_lengths"

    def _read_data(self) -> tuple[Rows, Rows]:
        pairs = self._pairs(0, self.size, self.digits)
        return _rows([source for source, _ in pairs]), _rows([target for _, target in pairs])

    def _read_held_out(self) -> list[tuple[str, str]]:
        return self._pairs(1, self.size_held_out, self.test_digits)

    def _pairs(self, stream: int, count: int, most: int) -> list[tuple[str, str]]:
        """stream: 0 to train on, 1 held out, drawn apart from it."""
        chance = np.random.default_rng([self.data_seed, stream])
        lengths = chance.integers(1, most + 1, count)
        digits = chance.integers(0, 10, (count, 2, most))
        pairs = []
        for length, (left, right) in zip(lengths, digits, strict=True):
            numbers = ["".join(map(str, number[:length])) for number in (left, right)]
            total = sum(int(number[::-1]) for number in numbers)
            pairs.append(("+".join(numbers), str(total).zfill(length)[::-1]))
        return pairs

    def sample_inputs(self) -> list[str]:
        return ["12+99", "123+456"]

    def describe(self) -> str:
        return f"sums of 1 to {self.digits} digits from the ones up, held out up to {self.test_digits}"

    def fingerprint(self) -> str:
        return f"{self.describe()}, {self.size:,} lines, seed {self.data_seed}"


def _rows(texts: Sequence[str]) -> Matrix:
    lengths = np.array([len(text) for text in texts])
    ids = np.full((len(texts), lengths.max()), PADDING)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = VOCABULARY.encode(text)
    return Matrix(ids, lengths)


TASKS = {
    "addition": f"{__file__}:Addition",
    "reversal": "reverse:symbols=10,lengths=1..40,test_lengths=1..100",
}
POLICIES = {
    "addition": ("sequential", "randomized:longest=256", "abacus:largest=30", "coupling:largest=30"),
    "reversal": ("sequential", "offset:largest=100", "randomized:longest=512"),
}


def table_of(found: Mapping[tuple[str, int], Outcome]) -> str:
    """A row for each training, in Markdown."""
    head = ["positions", "seed", "trained lengths, last", "longer, last", "trained lengths, best", "longer, best"]
    rows = [head, [":---"] + ["---:"] * (len(head) - 1)]
    for (policy, seed), outcome in found.items():
        shares = [share_of(one, group) for one in (outcome, outcome["best"]) for group in GROUPS[1:]]
        rows.append([policy, str(seed), *shares])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def share_of(measured: Outcome, group: str) -> str:
    """Exact match of a group of lengths, in percent."""
    share = measured.get(f"exact_match_{group}")
    return "-" if share is None else f"{share:.1%}"


def run(kind: str, out: Path, policies: Sequence[str], seeds: int, examples: int) -> str:
    """Train what is not trained yet, seed by seed, write longer.md into `out`, and give the table. Raises UserError."""
    found: dict[tuple[str, int], Outcome] = {}
    for seed in range(1, seeds + 1):
        for policy in policies:
            budget = {"training.examples": examples, "training.batch_size": 128, "training.evaluations": 10}
            settings = {**MODEL, **budget, "training.lr": 4e-3, "training.positions": policy}
            folder = out / f"{policy.partition(':')[0]}-{seed}"
            found[policy, seed] = jarilab.train(TASKS[kind], folder, settings=settings, seed=seed, threads=1)
            print(f"{policy}, seed {seed}: longer {share_of(found[policy, seed], 'longer')}", file=sys.stderr)
    table = table_of(found)
    (out / "longer.md").write_text(table, encoding="utf-8")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="Longer texts than those trained on, by position policy.")
    parser.add_argument("kind", choices=tuple(TASKS), help="what to train on")
    parser.add_argument("--out", required=True, type=Path, help="the folder for runs and table")
    parser.add_argument("--policies", help="with spaces between (those of the table above)")
    parser.add_argument("--seeds", default=5, type=int, help="trainings of each (%(default)s)")
    parser.add_argument("--examples", default=400_000, type=int, help="of each training (%(default)s)")
    given = parser.parse_args(arguments)
    policies = POLICIES[given.kind] if given.policies is None else given.policies.split()
    try:
        print(run(given.kind, given.out, policies, given.seeds, given.examples), end="")
    except jarilab.UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
