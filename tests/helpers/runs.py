"""Runs of a second: their experiments, what they leave behind, and a power cut on the way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jarilab import api
from jarilab.core.storage.files import read_json, seal_record, unseal_record, write_json
from jarilab.runs import checkpoint
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_metrics
from jarilab.training import loop

TIMES = ("seconds", "cpu_seconds", "peak_memory", "sha256")
"""What is another at each training; the digest of a result is one of its times too."""
TINY_MODEL = {"model.d_model": 16, "model.n_heads": 2, "model.n_encoder_layers": 1, "model.n_decoder_layers": 1}
TINY = {
    **TINY_MODEL,
    "model.dropout": 0.1,
    "training.batch_size": 16,
    "training.examples": 16 * 12,
    "training.evaluations": 4,
    "training.evaluation_examples": 20,
}


def dotted(settings: dict[str, Any]) -> dict[str, Any]:
    """Keywords as names of settings: `training__batch_size` is `training.batch_size`."""
    return {key.replace("__", "."): value for key, value in settings.items()}


def tiny(encoding: str = "shaw", **settings: Any) -> Experiment:
    """An experiment of 12 steps with dropout, a look and a checkpoint after every third."""
    return Experiment.of("arithmetic:maximum=30", encoding, {**TINY, **dotted(settings)}, 1, "float32")


def train(folder: Path, experiment: Experiment | None = None, **options: Any) -> dict[str, Any]:
    return loop.train(experiment or tiny(), folder, threads=1, **options)


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in TIMES}


def outcome(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Everything a run leaves behind, apart from times."""
    checkpoints = {
        path.name: (
            (path / "model.safetensors").read_bytes(),
            (path / "optimizer.safetensors").read_bytes(),
            timeless(json.loads((path / "state.json").read_text())),
        )
        for path in (folder / "checkpoints").iterdir()
    }
    result = timeless(json.loads((folder / "result.json").read_text()))
    return checkpoints, [timeless(row) for row in read_metrics(folder)], result


def held(path: Path) -> dict[str, Any]:
    """What is sealed in a JSON file of a run."""
    return unseal_record(path, read_json(path))


def seal(path: Path, record: dict[str, Any]) -> None:
    """Write it as jari would: with a checksum that fits."""
    write_json(path, seal_record(record))


def newest_of(folder: Path) -> Path:
    """The newest checkpoint of a run."""
    return sorted((folder / "checkpoints").glob("step-*"))[-1]


class PowerCutError(Exception):
    pass


def cut() -> None:
    raise PowerCutError


def at(step: int, do: Callable[[], object]) -> Callable[[dict[str, Any]], None]:
    """A report that does something at a step, such as `cut`."""

    def report(row: dict[str, Any]) -> None:
        if row["step"] == step:
            do()

    return report


LANGUAGE = {
    "task.context_length": 16,
    "model.d_model": 16,
    "model.n_heads": 2,
    "model.n_layers": 1,
    "model.encoding": "rotary",
    "training.epochs": None,
    "training.examples": 320,
    "training.batch_size": 16,
    "training.evaluations": 1,
}


def language_run(folder: Path, **settings: Any) -> Path:
    """A language model of 20 steps, trained on a text in this folder."""
    (folder / "text.txt").write_text("one two three four five " * 40)
    settings = LANGUAGE | {"task.train": str(folder / "text.txt")} | dotted(settings)
    api.train("text", folder / "run", settings=settings, threads=1)
    return folder / "run"


def save_checkpoint(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizers: dict[str, torch.optim.Optimizer],
    state: dict[str, Any] | None = None,
    keep: set[int] | None = None,
) -> Path:
    """A checkpoint of a model and its optimizers, as training writes it."""
    tensors, groups = checkpoint.training_tensors(optimizers)
    tensors["random"] = torch.get_rng_state()
    state = {"groups": groups, **(state or {})}
    return checkpoint.save(folder, step, model.state_dict(), tensors, state, keep or set())
