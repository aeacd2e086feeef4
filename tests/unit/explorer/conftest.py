from pathlib import Path

import pytest

from helpers.runs import tiny, train
from jari.training.experiment import Experiment

TEXT = "one two three four five six seven eight nine ten\n" * 40


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of small runs: none, rotary (arithmetic), recurrent, lm (a language model)."""
    folder = tmp_path_factory.mktemp("runs")
    for encoding in ("none", "rotary"):
        train(folder / encoding, tiny(encoding))
    budget = {"training.batch": 16, "training.examples": 64, "training.passes": None, "training.tokens": None}
    small = {**budget, "training.evaluations": 1, "training.evaluation_examples": 8, "model.width": 16}
    train(folder / "recurrent", Experiment.of("reverse", None, small, 1, "float32", "recurrent"))
    (folder / "text.txt").write_text(TEXT)
    text = {"task.train": str(folder / "text.txt"), "task.context": 32, "task.tokenizer": "characters"}
    train(folder / "lm", Experiment.of("text", "alibi", {**small, **text, "model.heads": 2}, 1, "float32"))
    return folder
