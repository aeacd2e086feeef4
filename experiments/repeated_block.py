"""Heads of a language model that a repeated block of words needs: zero and mean ablation, by `jarilab causes`.

    python experiments/repeated_block.py FOLDER --heads L16H0 L2H2 L18H6 --blocks 2

FOLDER: a model for text that save_pretrained wrote. A block is --words words of its vocabulary, drawn by seed. It
stands twice, and the second one is the continuation that is scored: zero and mean are the nats that a token of it
loses. The mean is taken over the positions of the text. A head whose zero ablation hurts and whose mean ablation does
not writes a constant. A block of SmolLM2-135M takes about 12 minutes of one core, because all heads are ablated.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from images import markdown

import jarilab
from jarilab.huggingface import load


def block_of(folder: Path, words: int, seed: int) -> str:
    """Words that are one token each after a space, so that the second block is read as the first is."""
    tokenizer = load(folder).tokenizer
    names = sorted({tokenizer.decode([number]) for number in range(len(tokenizer))})
    known = [name for name in names if name[:1] == " " and name[1:].isascii() and name[1:].isalpha() and len(name) > 3]
    return "".join(random.Random(seed).sample(known, words))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--heads", nargs="+", required=True, help="such as L16H0")
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--words", type=int, default=20)
    options = parser.parse_args(arguments)
    rows = []
    for seed in range(1, options.blocks + 1):
        block = block_of(options.folder, options.words, seed)
        causes = jarilab.causes(options.folder, block, continuation=block, controls=1)
        by_name = {row["head"]: row for row in causes.rows}
        for name in options.heads:
            row = by_name[name]
            rows.append([str(seed), name, f"{row['total']:+.2f}", f"{row['mean']:+.2f}", row["words"]])
    print(markdown(["block", "head", "zero", "mean", "verdict"], rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
