"""Does an encoder without positions model language at all? Masked characters, as Haviv et al. 2022 masked words.

    python experiments/masked.py --text text.txt --out runs/masked --seeds 3

15 % of the characters of each window are masked, and an encoder of two layers guesses them from all others. A causal
model hears order from its mask; an encoder without positions has no such mask and sees a bag. The same model, windows
and masks under each encoding; the loss is of the last tenth of the text, which nothing is trained on, with one fixed
mask. Beside it what is lost by saying the commonest shares of characters, whatever is read. Writes masked.md, and what
each training ended with beside it; a training that is there already is not repeated.

Minutes: 14 of one core for 3 seeds (45 CPU-seconds a training).
Expected: on tinyshakespeare, one seed: 3.25 nats without positions, where frequencies alone give 3.35; 1.82 with
sinusoidal and 2.17 with learned. After 500 steps, two seeds: rotary 1.89, t5 2.39, alibi 2.50, while sinusoidal (2.95)
and learned (3.30) have hardly begun.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from images import at_least_one, markdown, told
from torch import nn
from torch.nn import functional

import jarilab
from jarilab.core.registry import split_specs
from jarilab.core.storage.files import read_json, write_json
from jarilab.nn.sublayers import TokenEmbedding

ENCODINGS = "none,sinusoidal,learned,rotary,t5,alibi"
WIDTH, HEADS, LAYERS = 64, 4, 2
LENGTH, BATCH, HELD_OUT = 64, 32, 256
MASKED = 0.15
LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Text:
    """The characters of a text as numbers; one more number, `vocabulary - 1`, masks them."""

    vocabulary: int
    training: torch.Tensor
    held_out: torch.Tensor

    @staticmethod
    def of(path: Path) -> Text:
        """Raises UserError for what is no text, or too short a one."""
        text = text_of(path)
        alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
        ids_N = torch.tensor([alphabet[character] for character in text])
        cut = len(ids_N) * 9 // 10
        return Text(len(alphabet) + 1, ids_N[:cut], ids_N[cut:])


def text_of(path: Path) -> str:
    """Raises UserError for what is no text, or has too few characters."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise jarilab.UserError(f"--text expects a file of text in UTF-8, got {path}: {error}; name another") from None
    if len(text) < 20 * LENGTH:
        needed = f"--text expects {20 * LENGTH:,} characters or more"
        raise jarilab.UserError(f"{needed}, got {path} with {len(text):,}; give a longer text")
    return text


class Guesser(nn.Module):
    """Scores of each character that was masked."""

    def __init__(self, vocabulary: int, encoding: str):
        super().__init__()
        self.embedding = TokenEmbedding(vocabulary, WIDTH)
        self.encoder = jarilab.Encoder(WIDTH, HEADS, LAYERS, encoding=encoding)
        self.generator = nn.Linear(WIDTH, vocabulary)

    def forward(self, ids_BL: torch.Tensor, masked_BL: torch.Tensor) -> torch.Tensor:
        covered_BL = ids_BL.masked_fill(masked_BL, self.generator.out_features - 1)
        return self.generator(self.encoder(self.embedding(covered_BL))[masked_BL])


def windows(ids_N: torch.Tensor, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows from anywhere, and which of their characters are masked."""
    start_B = torch.randint(len(ids_N) - LENGTH + 1, (count,), generator=generator)
    ids_BL = ids_N[start_B[:, None] + torch.arange(LENGTH)]
    return ids_BL, torch.rand(ids_BL.shape, generator=generator) < MASKED


def trained(text: Text, encoding: str, seed: int, steps: int) -> float:
    """The loss on held-out text, in nats for each masked character."""
    model = Guesser(text.vocabulary, encoding)
    jarilab.initialise(model, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids_BL, masked_BL = windows(text.training, BATCH, generator)
        loss = functional.cross_entropy(model(ids_BL, masked_BL), ids_BL[masked_BL])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    ids_BL, masked_BL = held_out(text)
    with torch.no_grad():
        return float(functional.cross_entropy(model.eval()(ids_BL, masked_BL), ids_BL[masked_BL]))


def held_out(text: Text) -> tuple[torch.Tensor, torch.Tensor]:
    """The same windows and masks for every model."""
    return windows(text.held_out, HELD_OUT, torch.Generator().manual_seed(0))


def by_frequency(text: Text) -> float:
    """The loss of saying, whatever is read, how often each character is in the text trained on."""
    count_V = torch.bincount(text.training, minlength=text.vocabulary).double() + 1
    ids_BL, masked_BL = held_out(text)
    return float(-(count_V / count_V.sum()).log()[ids_BL[masked_BL]].mean())


def losses(text: Text, encodings: Sequence[str], seeds: int, steps: int, out: Path) -> Iterator[tuple[str, float]]:
    """Encoding and loss of each training, seed by seed; those that are there are read."""
    of_what = {"characters": len(text.training), "steps": steps}
    for seed in range(1, seeds + 1):
        for encoding in encodings:
            path = out / f"{encoding.replace(':', '_')}-{seed}.json"
            if not path.exists():
                write_json(path, {**of_what, "loss": trained(text, encoding, seed, steps)})
            found = read_json(path)
            if {name: found[name] for name in of_what} != of_what:
                raise jarilab.UserError(f"{path} is of another text or budget; choose another --out, or remove it")
            print(f"{encoding}, seed {seed}: {found['loss']:.4f}", file=sys.stderr)
            yield encoding, found["loss"]


def table_of(found: Mapping[str, Sequence[float]], frequency: float) -> str:
    """A row for each encoding, in Markdown."""
    rows = []
    for encoding, of_seeds in found.items():
        mean = sum(of_seeds) / len(of_seeds)
        span = f"{min(of_seeds):.3f} to {max(of_seeds):.3f}"
        rows.append([f"`{encoding}`", f"{mean:.3f}", span, f"{math.exp(mean):.2f}"])
    rows.append(["*frequency of characters alone*", f"{frequency:.3f}", "", f"{math.exp(frequency):.2f}"])
    return markdown(["encoding", "loss, mean", "lowest to highest seed", "perplexity"], rows)


def run(path: Path, out: Path, encodings: Sequence[str], seeds: int, steps: int) -> str:
    """Train what is not trained yet, write masked.md into `out`; the table. Raises UserError."""
    torch.set_num_threads(1)
    text = Text.of(path)
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[float]] = {}
    for encoding, loss in losses(text, encodings, seeds, steps, out):
        found.setdefault(encoding, []).append(loss)
    table = table_of(found, by_frequency(text))
    (out / "masked.md").write_text(table, encoding="utf-8")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="Masked characters, guessed by an encoder with and without positions.")
    parser.add_argument("--text", required=True, type=Path, help="a file of text in UTF-8")
    parser.add_argument("--out", required=True, type=Path, help="the folder for results and table")
    parser.add_argument("--encodings", default=ENCODINGS, help="with commas between (%(default)s)")
    parser.add_argument("--seeds", default=3, type=at_least_one, help="trainings of each (%(default)s)")
    parser.add_argument("--steps", default=1500, type=at_least_one, help="of each training (%(default)s)")
    given = parser.parse_args(arguments)
    return told(lambda: run(given.text, given.out, split_specs(given.encodings), given.seeds, given.steps))


if __name__ == "__main__":
    sys.exit(main())
