"""Weights that a run starts from: of another run, or of a transformers model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jarilab.core.errors import UserError, no_model
from jarilab.core.options import options_of
from jarilab.core.registry import spec_file
from jarilab.core.storage.files import read_json, sha256
from jarilab.data.text.vocabulary import SPECIAL
from jarilab.encodings import compose
from jarilab.models.base import registry as models
from jarilab.runs import checkpoint as checkpoints
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import check_artifacts, read_experiment, read_run
from jarilab.runs.loaded import Checkpoint, checkpoint_of
from jarilab.runs.task_settings import complete, encodings_in, list_settings, look_up, trust_specs
from jarilab.runs.weights import parts_named, read_tensors
from jarilab.tasks.base import Task
from jarilab.tasks.predictors.base import predictor_for

MEASURED_WIDTH, WIDE_RATE_SHARE = 256, 0.1
"""From weights, the rate of the task learns most (docs/results/text.md), up to this width of a model.

A wider transformers model takes this share by default, near the rates of its training. That is not measured here.
"""
FREE = ("dropout", "drop_path", "kernel", "resolution")
"""Options of a model that weights do not decide."""
MAX_NAMED = 5
"""Parameters that an error lists."""


@dataclass(frozen=True)
class Origin:
    """Trained weights.

    folder: where they are. model, model_options: the kind of model and all its options. record: what a run that starts
    from them records. weights: reads them for the vocabulary of a task. answers: all that the model can answer.
    has_tokenizer: whether the folder has one. kept: checksums of the files that a run keeps of its data. rate_share:
    the share of the task's learning rate to take by default. positions: the position policy of their training; None if
    it is not known.
    """

    folder: Path
    model: str
    model_options: dict[str, Any]
    record: dict[str, Any]
    weights: Callable[[Task], dict[str, Tensor]]
    answers: str | None = None
    has_tokenizer: bool = False
    kept: Mapping[str, str] = field(default_factory=dict)
    rate_share: float = 1.0
    positions: str | None = None

    def load_into(self, model: nn.Module, experiment: Experiment, task: Task) -> None:
        """Give a model these weights. Raises UserError that says what does not fit, and what to do."""
        self._check_options(experiment)
        fresh = parts_named(model, experiment.options.fresh, "fresh")
        if "generator.weight" not in fresh:
            self._check_answers(model, task)
        weights, state = self.weights(task), model.state_dict()
        problems = [
            _problem(name, state.get(name), weights.get(name))
            for name in sorted(state.keys() | weights.keys())
            if name not in fresh and _shape(state.get(name)) != _shape(weights.get(name))
        ]
        if problems:
            more = [f"and {len(problems) - MAX_NAMED} more"] * (len(problems) > MAX_NAMED)
            lines = "\n  ".join([*problems[:MAX_NAMED], *more])
            raise UserError(
                f"the weights of {self.folder} do not fit this model and its data:\n  {lines}\nUse data with the same "
                "vocabulary, classes and sizes; or let such parts begin anew: --fresh PART,..., such as --fresh "
                "generator"
            )
        model.load_state_dict(
            {name: old if name in fresh else weights[name] for name, old in state.items()}
        )

    def _check_options(self, experiment: Experiment) -> None:
        """Raises UserError if an experiment has another model than these weights."""
        if experiment.model != self.model:
            raise UserError(
                f"{self.folder} has weights of the model {self.model}: expected it, got {experiment.model}; omit "
                "--model"
            )
        given, expected = experiment.model_options, self.model_options
        others = [
            name for name in expected if name not in FREE and given.get(name) != expected[name]
        ]
        if others:
            lines = "\n  ".join(
                f"model.{name}: expected {expected[name]}, got {given.get(name)}" for name in others
            )
            raise UserError(
                f"the weights of {self.folder} belong to other options of the model, which cannot change:\n  {lines}\n"
                "Omit these options, so that those of the weights are taken"
            )

    def _check_answers(self, model: nn.Module, task: Task) -> None:
        """Raises UserError if the task has another vocabulary, or other classes, than these weights."""
        for name, contents in task.artifacts().items():
            if name.startswith("vocabulary") and sha256(contents) != self.kept.get(
                name, sha256(contents)
            ):
                raise UserError(
                    f"{self.folder} was trained with another vocabulary ({name}) than the one given; omit --tokenizer, "
                    "so that its own is taken"
                )
        answers = predictor_for(model, task).vocabulary
        if self.answers is not None and answers != self.answers:
            pairs = enumerate(zip(answers, self.answers, strict=False))
            start = max(0, next((n for n, (one, other) in pairs if one != other), 0) - 20)
            expected, given = (
                " ".join(text[start : start + 60].split()) for text in (self.answers, answers)
            )
            raise UserError(
                f"{self.folder} answers with other tokens or classes than these data: expected '... {expected} "
                f"...', got '... {given} ...'; use data with the same, or let the last map begin anew with --fresh "
                "generator"
            )


def _shape(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)


def _problem(name: str, expected: Tensor | None, got: Tensor | None) -> str:
    """A line about a parameter that does not fit."""
    words = [
        "nothing" if shape is None else " x ".join(map(str, shape)) or "a number"
        for shape in (_shape(expected), _shape(got))
    ]
    return f"{name}: expected {words[0]}, got {words[1]}"


def origin_of(experiment: Experiment) -> Origin | None:
    """The weights that an experiment starts from, or None. Raises UserError."""
    options = experiment.options
    if options.init is None:
        return None
    return read_origin(options.init, options.init_checkpoint, experiment.files)


def read_origin(
    init: str, checkpoint: Checkpoint = "last", trusted: Collection[Path] = ()
) -> Origin:
    """The weights in a folder. trusted: Python files that may be executed. Raises UserError."""
    folder = Path(init)
    if (folder / "run.json").is_file():
        return _of_run(folder, checkpoint, trusted)
    if (folder / "config.json").is_file():
        return _of_huggingface(folder)
    raise UserError(f"training.init: {no_model(folder, or_run=True)}")


def _of_run(folder: Path, which: Checkpoint, trusted: Collection[Path]) -> Origin:
    record, where = read_run(folder), folder / "run.json"
    experiment = read_experiment(record, where)
    experiment.trust(str(where), set(experiment.files) <= set(trusted))
    path = checkpoint_of(folder, which)
    check_artifacts(record, folder)
    task = experiment.resolved.build_task(folder)
    with torch.device("meta"):
        answers = predictor_for(experiment.resolved.build_model(task), task).vocabulary
    facts = {
        "name": folder.resolve().name,
        "task": experiment.task,
        "step": checkpoints.step_of(path),
        "weights": str(read_json(path / "manifest.json")["model.safetensors"]),
    }
    return Origin(
        folder,
        experiment.model,
        experiment.model_options,
        facts | ({"origin": record["origin"]} if "origin" in record else {}),
        lambda _: read_tensors(path / "model.safetensors"),
        answers,
        any(name.startswith("vocabulary") for name in record["kept"]),
        record["kept"],
        positions=experiment.options.positions,
    )


def _of_huggingface(folder: Path) -> Origin:
    from jarilab.huggingface.families import copied
    from jarilab.huggingface.loading import load

    loaded = load(folder, swapped=False)
    model, options = copied(loaded)
    options |= {name: compose.canonical(spec) for name, spec in encodings_in(options).items()}
    kind = next(name for name in models.names() if models.spec(name).target is type(model))
    options = complete(f"model ({kind})", type(model), options)
    files = sorted(folder.glob("*.safetensors"))
    checksums = "".join(sha256(file) for file in files)
    record = {
        "name": loaded.name,
        "task": loaded.kind,
        "weights": checksums if len(files) == 1 else sha256(checksums.encode()),
    }
    return Origin(
        folder,
        kind,
        options,
        record,
        partial(_with_special_tokens, model.state_dict(), loaded),
        has_tokenizer=(folder / "tokenizer.json").is_file(),
        rate_share=1.0 if options["d_model"] <= MEASURED_WIDTH else WIDE_RATE_SHARE,
    )


def _with_special_tokens(weights: dict[str, Tensor], loaded: Any, task: Task) -> dict[str, Tensor]:
    """Weights whose rows of tokens are those of a task with the tokenizer of the folder.

    jarilab puts its special tokens first. Their rows are those of the tokens with the same use, or the mean of all.
    """
    sizes = [size for name, size in task.model_options.items() if name.endswith("vocab_size")]
    if not sizes:
        return weights
    special, tokenizer = len(SPECIAL) + 1, loaded.tokenizer
    start = getattr(loaded.config, "decoder_start_token_id", None)
    uses = (
        (tokenizer.pad_token_id,),
        (start, tokenizer.bos_token_id, tokenizer.cls_token_id, tokenizer.eos_token_id),
        (tokenizer.eos_token_id, tokenizer.sep_token_id),
        (tokenizer.unk_token_id,),
    )
    rows = [next(filter(lambda number: number is not None, use), None) for use in uses]

    def changed(tensor: Tensor) -> Tensor:
        if not tensor.ndim or len(tensor) != loaded.config.vocab_size:
            return tensor
        mean = tensor.mean(0)
        first = [mean if row is None else tensor[row] for row in rows]
        return torch.cat((torch.stack(first), tensor[: sizes[0] - special]))

    return {name: changed(tensor) for name, tensor in weights.items()}


def settings_from(
    origin: Origin, task: str, model: str | None, encoding: str | None, settings: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The kind of model, and the settings of a training from these weights.

    What is not given is taken from the weights: options of the model, the tokenizer, and the position policy. The
    learning rate is that of the task by default, or the `rate_share` of it.
    """
    trust_specs(task, model)
    kind = model or origin.model
    task_spec, model_spec = look_up(task, kind)
    defaults = {f"model.{name}": value for name, value in origin.model_options.items()}
    if encoding is not None:
        defaults.pop("model.encoding", None)
    if kind != origin.model:
        defaults = {}  # `load_into` refuses it, in its own words
    rate = float(list_settings(task_spec, model_spec)["training.lr"].default)
    defaults["training.lr"] = float(f"{origin.rate_share * rate:.6g}")
    if origin.positions is not None:
        defaults["training.positions"] = origin.positions
    if origin.has_tokenizer and "tokenizer" in options_of(task_spec.target):
        defaults["task.tokenizer"] = str(origin.folder)
    return kind, {**defaults, **settings}


def typed_files(task: str, model: str | None, encoding: str | None) -> list[Path]:
    """The Python files that a person typed."""
    files = [path for path in map(spec_file, (task, model or "")) if path is not None]
    return files + (compose.files_of(encoding) if encoding else [])


def history(record: Mapping[str, Any]) -> list[str]:
    """What a run went through before its last budget, one line each, from its record.

    The weights that it started from, and theirs, the nearest first; and the budgets after which it was finished before.
    """
    lines, origin = [], record.get("origin")
    while isinstance(origin, dict):
        step = f" at step {origin['step']:,}" if isinstance(origin.get("step"), int) else ""
        word = "which came from" if lines else "weights of"
        lines.append(
            f"{word} {origin.get('name')}{step} (sha256 {str(origin.get('weights'))[:12]})"
        )
        origin = origin.get("origin")
    earlier = record["experiment"].get("earlier", [])
    return [*lines, *(f"warm restart after step {budget['step']:,}" for budget in earlier)]
