"""What is trained in the drills: a line for each family, of which a run takes a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from drills.processes import PATIENCE

BUDGET = {
    "training.batch_size": 16,
    "training.examples": 16 * 12,
    "training.evaluations": 4,
    "training.evaluation_examples": 8,
}
SMALL = {"model.d_model": 16, "model.n_heads": 2}
TWO_STACKS = SMALL | {"model.n_encoder_layers": 1, "model.n_decoder_layers": 1}
ONE_STACK = SMALL | {"model.n_layers": 1}

IMPATIENT = {"JARILAB_RANK_TIMEOUT": f"{10 * PATIENCE:g}"}
"""Ranks whose agent was killed before they met wait some three times as many seconds for each other."""


@dataclass(frozen=True)
class Family:
    """A kind of run.

    words: of `jarilab train`, before the settings. data: the file or folder of data that it reads, if any, beside the
    runs. environment: of its processes. ranks: processes that train it together, started by torchrun. dear: whether it
    takes many seconds, so that it is for `make chaos` alone.
    """

    name: str
    words: tuple[str, ...]
    settings: Mapping[str, object]
    data: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 1
    dear: bool = False

    def command(self, materials: Path, out: Path, seed: int = 1) -> list[str]:
        """The words after `jarilab`."""
        settings = dict(self.settings)
        if self.data is not None:
            settings["task.train"] = materials / self.data
        words = ["train", *self.words, "--out", str(out), "--seed", str(seed), "--threads", "1"]
        words += ["--precision", "float32"]
        for name, value in settings.items():
            words += ["--set", f"{name}={value}"]
        return words


FAMILIES = (
    Family(
        "seq2seq, sinusoidal, dropout",
        ("arithmetic:maximum=30", "--encoding", "sinusoidal"),
        BUDGET | TWO_STACKS | {"model.dropout": 0.1},
    ),
    Family(
        "seq2seq, rotary, averaged weights",
        ("arithmetic:maximum=30", "--encoding", "rotary", "--snapshots", "3"),
        BUDGET | TWO_STACKS | {"training.average": 0.9, "training.optimizer": "adamw"},
    ),
    Family(
        "recurrent",
        ("reverse", "--model", "recurrent"),
        BUDGET | {"model.d_model": 16, "task.lines": 200, "task.held_out": 20},
    ),
    Family(
        "decoder, tokenizer, alibi",
        ("text", "--encoding", "alibi"),
        BUDGET | ONE_STACK | {"task.context_length": 16, "task.tokenizer": "characters", "model.dropout": 0.1},
        data="text.txt",
    ),
    Family("text classes", ("classify", "--encoding", "rotary"), BUDGET | ONE_STACK | {"model.dropout": 0.1}),
    Family("vit, rotary2d", ("digits", "--encoding", "rotary2d"), BUDGET | ONE_STACK | {"model.patch_size": 2}),
    Family(
        "detection",
        ("detection",),
        BUDGET
        | TWO_STACKS
        | {"training.examples": 16 * 6, "training.evaluations": 3, "training.evaluation_examples": 2}
        | {"model.d_ff": 16, "model.queries": 4, "task.scenes": 16},
    ),
    Family(
        "text_to_image",
        ("captions",),
        BUDGET
        | ONE_STACK
        | {"training.batch_size": 8, "training.examples": 8 * 6, "training.evaluation_examples": 2}
        | {"task.size": 16, "task.code_steps": 4},
        data="images",
    ),
    Family(
        "two passes a step",
        ("arithmetic:maximum=30", "--encoding", "shaw", "--accumulate", "2"),
        BUDGET | TWO_STACKS | {"model.dropout": 0.1},
    ),
    Family(
        "compiled",
        ("text", "--encoding", "rotary", "--compile"),
        BUDGET | ONE_STACK | {"task.context_length": 16, "task.tokenizer": "characters"},
        data="text.txt",
        environment={"TORCHINDUCTOR_COMPILE_THREADS": "1"},
        dear=True,
    ),
    Family(
        "two ranks, a copy on each",
        ("arithmetic:maximum=30", "--encoding", "t5", "--snapshots", "3"),
        BUDGET | TWO_STACKS | {"model.dropout": 0.1},
        environment=IMPATIENT,
        ranks=2,
        dear=True,
    ),
    Family(
        "two ranks, a part on each",
        ("arithmetic:maximum=30", "--encoding", "sinusoidal", "--shard"),
        BUDGET | TWO_STACKS | {"training.optimizer": "adamw"},
        environment=IMPATIENT,
        ranks=2,
        dear=True,
    ),
)


def make_materials(folder: Path) -> None:
    """The data that families read."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text("one two three four five six seven eight nine ten\n" * 40)
    (folder / "images").mkdir(exist_ok=True)
    for number in range(60):
        grey = np.full((16, 16, 3), 4 * number, dtype="uint8")
        Image.fromarray(grey).save(folder / "images" / f"p{number}.png")
        (folder / "images" / f"p{number}.txt").write_text("light" if number > 30 else "dark")
