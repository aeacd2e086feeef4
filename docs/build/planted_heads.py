"""Models whose circuit is known, as Hugging Face folders that lessons look into."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from places import CACHE, ROOT

CIRCUITS = {"decoy": "decoy that writes nothing", "backup": "backup head"}
"""By folder below `circuits`: the families of benchmarks/circuits."""
SEED = 1
TEXT = "<s> w3 w7 w1 w9 w4 w2 w8"
ANSWERS = {"decoy": "w9", "backup": "w2"}
"""After `TEXT`: the token three places before, and the one before."""


def make() -> None:
    """Write the folders. Those that are there stay."""
    for name in CIRCUITS:
        folder = CACHE / "circuits" / name
        if not (folder / "config.json").exists():
            write(name, folder)


def write(name: str, folder: Path) -> None:
    """A planted GPT-2, and a tokenizer of its words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    sys.path.insert(0, str(ROOT))
    from benchmarks.circuits.planting import plant  # pyright: ignore[reportMissingImports]

    planted: Any = plant(CIRCUITS[name], SEED, "gpt2")
    planted.model.float().save_pretrained(folder)
    words = planted.token_names(range(planted.start + 1))
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=words[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
