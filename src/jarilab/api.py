"""The verbs of jarilab as functions. The command line is a thin layer over them.

Where a function takes several values, a single one stands for a list of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, Le

from jarilab.comparison.launchers.resources import Resources
from jarilab.core.devices import parse_device
from jarilab.core.errors import UserError
from jarilab.core.options import options_of, read_options
from jarilab.core.storage.files import checked_folder, write_text
from jarilab.runs import origins
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_run
from jarilab.runs.loaded import Checkpoint, OpenRun, load, with_encoding
from jarilab.runs.training_options import Precision
from jarilab.tasks.predictors.base import (
    AT_ONCE,
    Prediction,
    chunks,
    predictor_for,
    untrained_positions,
)
from jarilab.training.determinism import deterministic
from jarilab.training.execution import Execution, Report

if TYPE_CHECKING:
    from jarilab.inspect.explain.walk import Walk

MAX_THREADS_PER_CORE = 8
MAX_WALK_TOKENS = 2048
"""The largest input of `walk`, in tokens; its maps grow with the square."""


def write_examples(task: str, out: str | Path, settings: Mapping[str, Any] | None = None) -> int:
    """Write the examples of a task to a file, one per line; returns their number.

    Raises UserError for a task that reads its data from files.
    """
    instance = Experiment.of(task, None, settings).resolved.build_task()
    lines = getattr(instance, "lines", None)
    if lines is None:
        raise UserError(
            f"expected a task that generates its data, got {task}, which reads files; use a task such as arithmetic"
        )
    count = 0

    def counted() -> Iterator[str]:
        nonlocal count
        for chunk in chunks(lines(), 65536):
            count += len(chunk)
            yield "".join(f"{line}\n" for line in chunk)

    write_text(Path(out), counted())
    return count


def check_data(
    task: str,
    files: str | Path | Sequence[str | Path],
    settings: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Check files as `train` would read them, and return the findings (`jarilab.data.finding.Finding`), the most
    serious first.

    Raises UserError for files that cannot be read, and for a task that makes its own data.
    """
    option = options_of(Experiment.of(task, None, settings).resolved.task_class).get("train")
    if option is None:
        raise UserError(
            f"expected a task that reads files, got {task}, which makes its own data; leave out --check"
        )
    names = [str(path) for path in _listed(files)]
    value = names if option.several else names[0]
    if not option.several and len(names) > 1:
        raise UserError(f"--check: expected one file or folder, got {len(names)}; give one")
    settings = {**(settings or {}), "task.train": value}
    resolved = Experiment.of(task, None, settings).resolved
    return resolved.check_data()


def train(
    task: str,
    out: str | Path | None = None,
    *,
    encoding: str | None = None,
    model: str | None = None,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    init: str | Path | None = None,
    precision: Precision = "auto",
    threads: Annotated[int, Ge(1)] | None = None,
    device: str = "auto",
    accumulate: Annotated[int, Ge(1), Le(100_000)] = 1,
    recompute: bool = False,
    compile: bool = False,
    shard: bool = False,
    tensorboard: bool = False,
    tensorboard_heads: str | None = None,
    checkpoint_minutes: Annotated[float, Gt(0), Le(1_000_000)] | None = None,
    snapshots: Annotated[int, Ge(0), Le(100_000)] = 0,
    eval_lengths: Sequence[int] = (),
    report: Report | None = None,
) -> dict[str, Any]:
    """Train a model on `task` into the folder `out`, or continue; returns the final metrics.

    out: folder of the run (default: runs/TASK-ENCODING-SEED).
    encoding: positional encoding, such as rotary or sinusoidal+t5; see `jarilab encodings` (default: the model's).
    model: kind of model, such as decoder or recurrent, or your own as FILE.py:CLASS (default: that of the task).
    seed: seed of initial values, data order and dropout.
    settings: `{"model.d_model": 128, "training.examples": 400000, ...}`.
    init: start from the weights of this run, or of a folder of transformers: see `jarilab.runs.origins.settings_from`.
    precision: float32 or bfloat16; auto takes the faster one for this processor and model.
    threads: CPU threads of PyTorch; the last bits of results depend on it (default: OMP_NUM_THREADS, or all cores).
    device: cpu, cuda, cuda:1 or mps; auto takes an accelerator if there is one.
    accumulate: parts of a batch that are computed one after the other, to save memory.
    recompute: compute each layer again in the backward pass, which saves memory and takes time.
    compile: compile the model with torch.compile.
    shard: under torchrun, divide the model over the processes (FSDP2) instead of copying it (DDP).
    tensorboard: write curves, attention maps and measures for TensorBoard, to the folder `tensorboard` of the run.
    tensorboard_heads: heads for TensorBoard, such as decoder.1.cross:2 (default: the first heads of each layer).
    checkpoint_minutes: minutes between checkpoints, in addition to those at evaluations (default: no others).
    snapshots: number of steps, spread over the training, whose weights are kept for the explorer.
    eval_lengths: further lengths of held-out data to measure after training, such as 256,512. A finished run is
        measured only at new ones. `jarilab evaluate --help` says what a length counts.
    report: callback after each step, with its metrics.

    Raises UserError, before a step, for unknown names or options, data that cannot be read, and a folder with another
    run. Raises UserError during training if memory runs out or the loss is not finite.
    """
    # `predict` and others need no training loop.
    from jarilab.training import loop

    execution = Execution(
        device=parse_device(device),
        accumulate=accumulate,
        recompute=recompute,
        compile=compile,
        shard=shard,
        tensorboard=tensorboard,
        tensorboard_heads=tensorboard_heads,
        checkpoint_minutes=checkpoint_minutes,
        eval_lengths=tuple(sorted(set(_listed(eval_lengths)))),
    )
    settings = dict(settings or {})
    if init is not None:
        settings["training.init"] = str(init)
    model, settings = with_origin(task, model, encoding, settings)
    experiment = Experiment.of(
        task, encoding, settings, seed, precision, model, device=execution.device
    )
    folder = checked_folder(experiment.folder if out is None else out)
    options = {"threads": checked_threads(threads), "snapshots": snapshots, "report": report}
    return loop.train(experiment, folder, execution=execution, **options)


def with_origin(
    task: str, model: str | None, encoding: str | None, settings: Mapping[str, Any]
) -> tuple[str | None, Mapping[str, Any]]:
    """The kind of model and the settings of a training, completed by the weights of `training.init` if it is set.

    Raises UserError for weights that cannot be read.
    """
    init = settings.get("training.init")
    if init in (None, "null"):
        return model, settings
    files = origins.typed_files(task, model, settings.get("model.encoding", encoding))
    which = settings.get("training.init_checkpoint", "last")
    origin = origins.read_origin(str(init), which, files)
    return origins.settings_from(origin, task, model, encoding, settings)


def evaluate(
    run: str | Path | OpenRun,
    *,
    data: Sequence[str] = (),
    length: int | None = None,
    stride: int | None = None,
    encoding: str | None = None,
    checkpoint: Checkpoint = "last",
    threads: Annotated[int, Ge(1)] | None = None,
    device: str = "auto",
    trust_code: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Metrics of a run on its held-out data, measured on freely generated answers, with the ceiling.

    data: files to measure on (default: the held-out data of the task). Files of a translation after the second are
        further references.
    length: measure held-out data of this length (default: as in training). For text it counts tokens of a window, for
        arithmetic digits of the operands. For copy, reverse and sort it counts numbers of a line, for images pixels of
        the longer side. For a translation it counts source tokens: it takes sources up to this length, and longer than
        half of it.
    stride: for text, tokens between the beginnings of windows (default: length, so windows do not overlap). A token
        counts in the first window that reads it. After the first window, each has at least length - stride tokens of
        context.
    encoding: measure with another encoding that has the same parameters, such as yarn:factor=4,trained_length=128 for a
        model trained with rotary at 128 tokens (default: the trained encoding).
    checkpoint: the last checkpoint, or the best one by the metric of the task.
    threads: CPU threads of PyTorch; the last bits of results depend on it (default: OMP_NUM_THREADS, or all cores).
    device: cpu, cuda, cuda:1 or mps; auto takes an accelerator if there is one.
    trust_code: execute the Python files that the run names.
    options: how answers are generated, such as `beam_size=5`, for runs that generate.

    The metrics include `notices`, which say what part of the data was left out. Raises UserError for a folder that is
    not a run, unknown options, and held-out data that cannot be read or have changed since training.
    """
    use_threads(threads)
    opened = open_run(run, checkpoint=checkpoint, trust_code=trust_code, device=device)
    if encoding is not None:
        opened = with_encoding(opened, encoding)
    task = opened.task
    if data:
        task = copy(task)  # an open run keeps its held-out data
        task.hold_out([str(path) for path in _listed(data)])
    else:
        _check_held_out(opened)
    notices: list[str] = []
    other = {}
    if length is not None or stride is not None:
        if length is None:
            length = task.trained_length or 0  # without lengths, the stride is refused below
        task = task.at_length(length, stride)
        notices = untrained_positions(opened.model, opened.task, task)
        other = {"length": length, "trained_length": opened.task.trained_length, "stride": stride}
    predictor = opened.predictor if task is opened.task else predictor_for(opened.model, task)
    scoring = _options("evaluate", predictor.scoring, options)
    metrics = predictor.evaluate(options=scoring)
    experiment = opened.experiment
    return {
        "run": str(opened.folder),
        "encoding": experiment.encoding,
        "seed": experiment.seed,
        "step": opened.step,
        "metric": task.metric.name,
        **other,
        **metrics,
        "ceiling": None if other else task.ceiling(),
        "notices": [*task.held_out_notices(), *notices],
    }


def predict(
    run: str | Path | OpenRun,
    sources: str | Path | Iterable[str | Path | UserError],
    *,
    at_once: int = AT_ONCE,
    checkpoint: Checkpoint = "last",
    device: str = "auto",
    trust_code: bool = False,
    **options: Any,
) -> Iterator[Prediction]:
    """Predictions of a run for each source: answers, continued texts, classes, boxes or painted images.

    sources: lines of text, prompts, captions, names of image files, or held-out images such as `#5`; or one of them.
    at_once: sources per batch.
    checkpoint: the last checkpoint, or the best one by the metric of the task.
    device: cpu, cuda, cuda:1 or mps; auto takes an accelerator if there is one.
    trust_code: execute the Python files that the run names.
    options: of the run's predictor, such as `beam_size=5`, `temperature=0.8`, `threshold=0.7` or `count=4`;
        `jarilab predict RUN --help` lists them.

    A source that cannot be read has a prediction with an error. Raises UserError for unknown options.
    """
    opened = open_run(run, checkpoint=checkpoint, trust_code=trust_code, device=device)
    predictor = opened.predictor
    chosen = _options("predict", predictor.options, options)
    texts = (str(source) if isinstance(source, Path) else source for source in _listed(sources))
    return predictor.predict(texts, chosen, at_once=at_once)


def compare(
    task: str | Path,
    out: str | Path | None = None,
    *,
    encodings: Sequence[str] = (),
    seeds: Annotated[int, Le(10_000)] | None = None,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    precision: Precision = "auto",
    jobs: Annotated[int, Ge(1), Le(100_000)] | None = None,
    snapshots: Annotated[int, Ge(0), Le(100_000)] = 0,
    rates: Sequence[float] = (),
    eval_lengths: Sequence[int] = (),
    train: bool = True,
    trust_code: bool = False,
    sbatch: bool = False,
    resources: Resources | None = None,
) -> dict[str, Any]:
    """Train the same model with each encoding and seed, and compare; returns the table.

    Writes table.json and report.html to `out`. Trials run in parallel with one thread each. An interrupted study
    continues with its unfinished trials. A failed trial does not stop the others.

    task: a task, or the folder of a study, to which `compare("runs/why", encodings=["+t5"], seeds=8)` adds trials.
    encodings: encodings to compare, such as none,sinusoidal,rotary.
    seeds: seeds of each encoding, the same for all (default: 1).
    model, settings, precision, snapshots: as for `train`.
    jobs: trials that run at the same time (default: one for each core, or each GPU).
    eval_lengths: as for `train`; each length has a column in the table, and its own verdicts.
    rates: learning rates to try at seed 0, which is not compared; each encoding is compared at its best one.
    train: False returns the table of the finished trials of a study.
    trust_code: execute the Python files that the study names.
    sbatch: write `trials.sbatch` with a command for each trial, to be submitted to SLURM, and train nothing.
    resources: of each trial in SLURM.

    Raises UserError for unknown names or options, a study whose settings are passed again, and if no trial finishes.
    """
    # Loaded here, since most verbs compare nothing.
    from jarilab.comparison import run_study, study
    from jarilab.comparison.launchers.launcher import Launcher

    encodings, rates, eval_lengths = map(_listed, (encodings, rates, eval_lengths))
    launcher = Launcher(jobs, cores(), sbatch, resources)
    if study.is_study(task):
        fixed = settings or rates or snapshots or model is not None or precision != "auto"
        if out is not None or fixed:
            raise UserError(
                f"{task} is a study, whose settings are fixed; pass only encodings, seeds and eval_lengths"
            )
        folder = Path(task)
        saved = study.Study.read(folder)
        saved.trust(folder, trust_code)
        if not train:
            added = {"encodings": encodings, "seeds": seeds, "eval_lengths": eval_lengths}
            _check_adds_nothing({**added, "sbatch": sbatch})
            return run_study.report_study(saved, folder)
        return run_study.run(saved.extend(encodings, seeds, eval_lengths), folder, launcher)
    if not train:
        raise UserError(f"train=False expects the folder of a study as task, got {task}")
    if out is None or not encodings:
        raise UserError(
            f"compare expects encodings and a folder for {task}; pass encodings and out"
        )
    seeds = 1 if seeds is None else seeds
    chosen = (encodings, seeds, settings or {}, precision, model, snapshots, rates, eval_lengths)
    requested = study.Study.of(str(task), *chosen)
    return run_study.run(requested, checked_folder(out), launcher)


def _check_adds_nothing(options: Mapping[str, Any]) -> None:
    """Raises UserError for options that a table without training would ignore."""
    ignored = [name for name, value in options.items() if value]
    if ignored:
        names = ", ".join(ignored)
        raise UserError(
            f"expected no {names} with train=False, or --report, which adds nothing; omit {names}, or train"
        )


def report(runs: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write a page with the training curves of one run or of several; returns its path.

    out: page to write (default: report.html in the folder of one run, or beside several; curves.html beside several
    trials of a study, whose own page is report.html). Raises UserError for a folder that is not a run or has no curve
    yet.
    """
    from jarilab.comparison import curves

    return curves.write(_listed(runs), out)


@dataclass(frozen=True, eq=False)
class WalkResult:
    """An input, the answer of the run, and the walk through one head.

    answer: for a run that paints, the caption that its judge reads in the image; None without a judge.
    """

    input: str
    answer: str | None
    walk: Walk


def walk(
    run: str | Path | OpenRun,
    input: str | None = None,
    *,
    site: str | None = None,
    head: int = 0,
    step: int | None = None,
    trust_code: bool = False,
) -> WalkResult:
    """Follow one attention head in float64, matrix by matrix, from the embedding to its output.

    input: input of the model (default: an example of the task).
    site: attention layer, such as encoder.0, decoder.1.self or decoder.1.cross (default: the first).
    head: number of the head, from 0.
    step: step of a recurrent decoder (default: the first).
    trust_code: execute the Python files that the run names.

    Raises UserError for an input that cannot be read, and for an unknown site, head or step.
    """
    from jarilab.inspect.explain.walk import goes_step_by_step, walk_of
    from jarilab.inspect.record.capture import look_inside
    from jarilab.inspect.record.model_io import to_float64

    opened = open_run(run, trust_code=trust_code)
    predictor = opened.predictor
    trace = predictor.trace(opened.example() if input is None else input, MAX_WALK_TOKENS)
    # The answer is that of `predict`. Only the walk is computed in float64.
    # In a copy: an open run keeps its model in float32.
    model = deepcopy(predictor.traced_model).double()
    tape = look_inside(model, to_float64(trace.inputs))
    site = tape.sites[0] if site is None else site
    where = tape.site(site)
    names = {"queries": trace.names(where.queries), "keys": trace.names(where.keys)}
    vocabulary = None
    if goes_step_by_step(tape, site):  # such a walk ends at the scores of the next token
        size = next(reversed(opened.task.model_options.values()))
        vocabulary = predictor.names(range(size))
    walked = walk_of(tape, site, head, **names, step=step, vocabulary=vocabulary)
    return WalkResult(trace.line, trace.answer, walked)


def open_run(
    run: str | Path | OpenRun,
    *,
    checkpoint: Checkpoint = "last",
    trust_code: bool = False,
    device: str = "cpu",
) -> OpenRun:
    """Open a run, or return one that is open.

    Raises UserError for the best checkpoint of a run that is open with its last one.
    """
    if isinstance(run, OpenRun):
        if checkpoint == "best" != run.checkpoint:
            raise UserError(
                f"{run.folder} is open with its last checkpoint; for the best one, open it with "
                "jarilab.load(run, checkpoint='best')"
            )
        return run
    return load(run, checkpoint=checkpoint, trust_code=trust_code, device=parse_device(device))


def use_threads(threads: int | None) -> None:
    """Set the number of threads, see `checked_threads`, and use deterministic algorithms."""
    deterministic(checked_threads(threads))


def checked_threads(threads: int | None) -> int:
    """The number of threads. None: OMP_NUM_THREADS, as PyTorch reads it, or all cores.

    Raises UserError for too many.
    """
    # Some thousands of threads end the process.
    limit = MAX_THREADS_PER_CORE * cores()
    if threads is not None and not 1 <= threads <= limit:
        raise UserError(f"threads: expected 1 to {limit}, for {cores()} cores; got {threads:,}")
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if threads is None and asked.isdecimal() and int(asked):
        return min(int(asked), limit)
    return threads or cores()


def cores() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _listed(values: Any) -> Any:
    """Several values, or a list of a single one: as a sequence, a text would be its letters."""
    is_single = isinstance(values, str) or not isinstance(values, Iterable)
    return [values] if is_single else values


def _options(verb: str, target: type, values: Mapping[str, Any]) -> Any:
    """The options of a predictor. Raises UserError for an unknown one, with a list of all."""
    return target(**read_options(f"{verb} of this run", options_of(target), values))


def _check_held_out(opened: OpenRun) -> None:
    """Raises UserError if the files that the held-out data are part of have changed since training."""
    files = opened.task.held_out_of
    if not files:
        return
    before = str(read_run(opened.folder).get("data"))
    now = opened.task.fingerprint()
    if now != before:
        raise UserError(
            f"{opened.folder}: expected {' and '.join(files)} as they were at training, {before!r}, got {now!r}. The "
            "model may have been trained on any part of them; restore the files, or measure on others with --data"
        )
