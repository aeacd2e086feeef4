"""What a person does with jari, as functions: the command line is a thin cover over these."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from jarilab.comparison import comparing, curves, study
from jarilab.comparison.places import ClusterKind, Place
from jarilab.comparison.resources import Resources
from jarilab.core.devices import parse_device
from jarilab.core.errors import UserError
from jarilab.core.options import options_of, read_options
from jarilab.core.storage.files import checked_folder, write_text
from jarilab.inspect.explain.walk import Walk, goes_step_by_step, walk_of
from jarilab.inspect.record.capture import look_inside
from jarilab.inspect.record.model_io import to_float64
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_run
from jarilab.runs.loaded import Checkpoint, OpenRun, load
from jarilab.runs.options import Precision
from jarilab.tasks.predictors.base import AT_ONCE, Prediction, predictor_for
from jarilab.tasks.predictors.reading import chunks
from jarilab.training import loop
from jarilab.training.determinism import deterministic
from jarilab.training.execution import Execution
from jarilab.training.loop import Report

MOST_THREADS = 8
"""For each core."""
LONGEST_INPUT = 2048
"""Tokens of an input that is walked through: a map has their square."""


def write_examples(task: str, out: str | Path, settings: Mapping[str, Any] | None = None) -> int:
    """Write a task's examples to a file, one a line, in generation order; gives their number."""
    instance = Experiment.of(task, None, settings).resolved.build_task()
    lines = getattr(instance, "lines", None)
    if lines is None:
        raise UserError(f"{task} has no data to write: it reads the files it is given")
    count = 0

    def counted() -> Iterator[str]:
        nonlocal count
        for some in chunks(lines(), 65536):
            count += len(some)
            yield "".join(f"{line}\n" for line in some)

    write_text(Path(out), counted())
    return count


def train(
    task: str,
    out: str | Path | None = None,
    *,
    encoding: str | None = None,
    model: str | None = None,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
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
    report: Report | None = None,
) -> dict[str, Any]:
    """Train a model of `task` into the folder `out`, going on where it was left off; gives the final metrics.

    out: `runs/TASK-ENCODING-SEED` by default. model: its kind, such as `recurrent`, or a file and class of one's own;
    the task's usual one by default. seed: decides initial values, data order and dropout. precision: bfloat16 where the
    machine really has it and the model gains by it, or the one that is named. threads: of PyTorch, all cores by
    default; bits depend on it. device: auto (an accelerator where there is one), cpu, cuda, cuda:1 or mps. accumulate:
    passes that make up a step, each over a part of its batch, where memory does not hold all of it. recompute: compute
    each layer again for its gradient: less memory, more time. compile: let torch.compile fuse the model's operations.
    shard: under torchrun, cut the model into parts, one for each process (FSDP2); else each has a copy (DDP).
    tensorboard: write the curve, and maps and measures of some heads at each evaluation, for TensorBoard, into the
    folder `tensorboard` of the run. tensorboard_heads: those heads, such as `decoder.1.cross:2,encoder.0:0`; the first
    ones of each site by default.
    checkpoint_minutes: write a checkpoint as often as that, beside those at each evaluation. snapshots: at how many
    steps to keep the weights for good, to look at how the model came about. settings: `{"model.d_model": 128,
    "training.examples": 400000, ...}`.
    """
    execution = Execution(
        device=parse_device(device),
        accumulate=accumulate,
        recompute=recompute,
        compile=compile,
        shard=shard,
        tensorboard=tensorboard,
        tensorboard_heads=tensorboard_heads,
        checkpoint_minutes=checkpoint_minutes,
    )
    experiment = Experiment.of(
        task, encoding, settings, seed, precision, model, device=execution.device
    )
    folder = checked_folder(experiment.folder if out is None else out)
    options = {"threads": checked_threads(threads), "snapshots": snapshots, "report": report}
    return loop.train(experiment, folder, execution=execution, **options)


def evaluate(
    run: str | Path | OpenRun,
    *,
    data: Sequence[str] = (),
    checkpoint: Checkpoint = "last",
    threads: Annotated[int, Ge(1)] | None = None,
    device: str = "auto",
    trust_code: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """The metrics of a run's newest or best checkpoint on all held-out data, by free generation, with the ceiling.

    data: files to measure on instead of the task's own held-out data. checkpoint: the newest, `last`, or the `best` on
    the way. threads: of PyTorch, all cores by default; bits depend on it. device: auto (an accelerator where there is
    one), cpu, cuda, cuda:1 or mps. trust_code: execute the Python files that the run names. options: how answers are
    written, such as `beam_size=5`, for runs that write answers. `notices` among the metrics says what of the data was
    left out.
    """
    use_threads(threads)
    opened = open_run(run, checkpoint=checkpoint, trust_code=trust_code, device=device)
    task, predictor = opened.task, opened.predictor
    if data:
        task = copy(task)  # the run, which may be open for more, keeps its own held-out data
        task.hold_out(data)
        predictor = predictor_for(opened.model, task)
    else:
        _check_held_out(opened)
    scoring = _options("evaluate", predictor.scoring, options)
    metrics = predictor.evaluate(options=scoring)
    experiment = opened.experiment
    who = {"run": str(opened.folder), "encoding": experiment.encoding, "seed": experiment.seed}
    told = {"ceiling": task.ceiling(), "notices": task.held_out_notices()}
    return {**who, "step": opened.step, "metric": task.metric.name, **metrics, **told}


def predict(
    run: str | Path | OpenRun,
    sources: Iterable[str | Path | UserError],
    *,
    at_once: int = AT_ONCE,
    checkpoint: Checkpoint = "last",
    device: str = "auto",
    trust_code: bool = False,
    **options: Any,
) -> Iterator[Prediction]:
    """What a run says of each source: an answer, text that goes on, classes, things with their boxes, painted images.

    sources: lines of text, prompts, captions, names of image files, or held-out images such as `#5`. at_once: how many
    to answer together. checkpoint: the newest, `last`, or the `best` on the way. device: auto (an accelerator where
    there is one), cpu, cuda, cuda:1 or mps. trust_code: execute the Python files
    that the run names. options: those of the run's kind of answer, such as `beam_size=5`, `temperature=0.8`,
    `threshold=0.7`, `count=4`; `jarilab predict RUN --help` lists them. A source that cannot be read gets its error
    and stops nothing. Raises UserError for options that this run has not.
    """
    opened = open_run(run, checkpoint=checkpoint, trust_code=trust_code, device=device)
    predictor = opened.predictor
    chosen = _options("predict", predictor.options, options)
    texts = (str(source) if isinstance(source, Path) else source for source in sources)
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
    train: bool = True,
    trust_code: bool = False,
    cluster: ClusterKind | None = None,
    resources: Resources | None = None,
) -> dict[str, Any]:
    """Train the same model under each encoding and seed, side by side, and compare: gives the table.

    Writes table.json and report.html into `out`. Trials run at the same time with one thread each; a study that was
    cut off goes on with the trials that are not finished, and one that fails stops nothing else. encodings: such as
    none,sinusoidal,rotary. seeds: how many for each, paired; 1 by default. model, settings, precision, snapshots: as
    for `train`. jobs: trials at once; as many as keep all cores, or GPUs, busy by default. rates: learning rates, of
    which each encoding gets the one that it is best with at seed 0, which is not compared; all are tried for all.

    task: or the folder of a study, to go on with it: `compare("runs/why", encodings=["+t5"], seeds=8)` adds an encoding
    and seeds, and trains only these. train: whether to train at all, of a study that is there; else the table is that
    of the trials which are finished. trust_code: execute the Python files that the study names.

    cluster: `slurm` runs the trials as jobs that go on when this process ends and are found again, `local` does the
    same on this machine, `script` writes a script for sbatch and stops: `script` and `commands` are then given. By
    default trials end with this process. resources: what each trial asks of the cluster.
    """
    place = Place(jobs, cores(), cluster, resources)
    if study.is_study(task):
        if out is not None or settings or model is not None or rates:
            raise UserError(
                f"{task} holds a study, which has its settings; give encodings and seeds alone"
            )
        folder = Path(task)
        held = study.Study.read(folder).trusted(folder, trust_code)
        if not train:
            return comparing.report(held, folder)
        return comparing.run(held.extended(encodings, seeds), folder, place)
    if out is None or not encodings:
        raise UserError(
            f"{task} is compared under encodings, into a folder; give encodings and out"
        )
    seeds = 1 if seeds is None else seeds
    asked = study.Study.of(
        str(task), encodings, seeds, settings or {}, precision, model, snapshots, rates
    )
    return comparing.run(asked, checked_folder(out), place)


def report(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write a page with the curves of runs, finished or not, which opens without a network; gives its path.

    out: `report.html` in the folder of the one run, or beside several, by default. Raises UserError for a folder that
    is no run, or has no curve yet.
    """
    return curves.write(runs, out)


@dataclass(frozen=True, eq=False)
class WalkResult:
    """An input, the run's answer to it, and the walk through one head on the way.

    answer: of a run that paints, what is read in the image, as a caption; None where nobody reads it.
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
    """Follow one head of one attention, matrix by matrix, from the embedding to its output, in float64.

    input: an example of the task by default. site: such as encoder.0, decoder.1.self, decoder.1.cross; the first one of
    the model by default. head: counted from 0. step: of a recurrent decoder, the first by default. trust_code: execute
    the Python files that the run names.
    """
    opened = open_run(run, trust_code=trust_code)
    predictor = opened.predictor
    trace = predictor.trace(opened.example() if input is None else input, LONGEST_INPUT)
    # The answer is what `predict` gives; the numbers on the way to it are followed in float64.
    tape = look_inside(predictor.traced_model.double(), to_float64(trace.inputs))
    site = tape.sites[0] if site is None else site
    where = tape.site(site)
    names = {"queries": trace.names(where.queries), "keys": trace.names(where.keys)}
    vocabulary = None
    if goes_step_by_step(tape, site):  # whose walk ends at the tokens that may come next
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
    """A run that is open already, with the weights it was opened with and where it is, or one to open. Raises
    UserError where the best checkpoint is asked for of a run that was opened with its last one."""
    if isinstance(run, OpenRun):
        if checkpoint == "best" != run.checkpoint:
            raise UserError(
                f"{run.folder} is open with its last checkpoint; for the best one, open it with "
                "jarilab.load(run, checkpoint='best')"
            )
        return run
    return load(run, checkpoint=checkpoint, trust_code=trust_code, device=parse_device(device))


def use_threads(threads: int | None) -> None:
    """Compute with so many threads, all cores by default, and so that results depend on nothing else."""
    deterministic(checked_threads(threads))


def checked_threads(threads: int | None) -> int:
    """Raises UserError for more threads than help anyone: some thousands end a process."""
    most = MOST_THREADS * cores()
    if threads is not None and not 1 <= threads <= most:
        raise UserError(f"threads: expected 1 to {most}, for {cores()} cores; got {threads:,}")
    return threads or cores()


def cores() -> int:
    """The processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _options(verb: str, target: type, given: Mapping[str, Any]) -> Any:
    """The options of a kind of answer. Raises UserError for one that it has not, naming those that it has."""
    return target(**read_options(f"{verb} of this run", options_of(target), given))


def _check_held_out(opened: OpenRun) -> None:
    """Raises UserError where held-out data were a part of files that have changed since."""
    named = opened.task.held_out_of
    if not named:
        return
    there = str(read_run(opened.folder).get("data"))
    here = opened.task.fingerprint()
    if here != there:
        raise UserError(
            f"{opened.folder} held out a part of {' and '.join(named)} as it was when training began; now it is "
            f"another text, of which the model may have seen any part: {there!r} then, {here!r} now; put the old one "
            "back, or name what to measure on with --data"
        )
