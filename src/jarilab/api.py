"""What a person does with jari, as functions: the command line is a thin cover over these."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from jarilab.comparison import study
from jarilab.decoding import Hypothesis, sample
from jarilab.errors import UserError
from jarilab.inspect import walk as walking
from jarilab.inspect.capture import record
from jarilab.inspect.model_io import precise
from jarilab.inspect.walk import Walk
from jarilab.runs import checkpoint, former
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import check_kept, read_experiment, read_run
from jarilab.runs.precision import Precision
from jarilab.storage.files import write_text
from jarilab.tasks.base import Task, TokenTask
from jarilab.text import END
from jarilab.training import answering, loop
from jarilab.training.answering import GREEDY, Answering, Decoding, answered
from jarilab.training.loop import Report

AT_ONCE = 256

Which = Literal["last", "best"]


@dataclass(frozen=True, eq=False)
class Loaded:
    """A trained run: its experiment, task, and model in evaluation mode, in float32."""

    experiment: Experiment
    task: Task
    model: torch.nn.Module
    step: int


def load(run: str | Path, *, which: Which = "last", trust_code: bool = False) -> Loaded:
    """The model of a run, from its newest whole checkpoint, or from the best on the way to it.

    Nothing of the run is executed, unless its encoding or task is a Python file and `trust_code` says it may be.
    Raises UserError for a folder that is no run, has no checkpoint yet, or is damaged.
    """
    folder = Path(run)
    record = read_run(folder)
    experiment = read_experiment(record, folder / "run.json").trust(
        str(folder / "run.json"), trust_code
    )
    path, problems = checkpoint.newest(folder / "checkpoints")
    if path is None:
        raise UserError(
            f"{folder} has no checkpoint yet; train it first, with the command in its run.json"
        )
    if problems:
        raise UserError(
            "; ".join(problems) + f"; {path} before it is whole: remove the damaged one to use that"
        )
    if which == "best":
        path = checkpoint.best(folder / "checkpoints", path)
    check_kept(record, folder)
    task = experiment.task_instance(folder)
    model = experiment.model_instance(task)
    checkpoint.load_model(path, model, experiment.hash)
    return Loaded(experiment, task, model.eval(), int(path.name.removeprefix("step-")))


def data(task: str, out: str | Path, settings: Mapping[str, Any] | None = None) -> int:
    """Write a task's examples to a file, one a line, in generation order; gives their number."""
    instance = Experiment.of(task, None, settings).task_instance()
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
    out: str | Path,
    *,
    encoding: str | None = None,
    model: str | None = None,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    precision: Precision = "auto",
    threads: int | None = None,
    snapshots: int = 0,
    report: Report | None = None,
) -> dict[str, Any]:
    """Train a model of `task` into the folder `out`, going on where it was left off; gives the final metrics.

    model: its kind, such as `recurrent`; the task's usual one by default. threads: all cores by default.
    snapshots: at how many steps to keep the weights for good, to look at how the model came about.
    settings: `{"model.width": 128, "training.examples": 400000, ...}`.
    """
    experiment = Experiment.of(task, encoding, settings, seed, precision, model)
    return loop.train(
        experiment, Path(out), threads=threads or cores(), snapshots=snapshots, report=report
    )


def evaluate(
    run: str | Path,
    *,
    data: Sequence[str] = (),
    decoding: Decoding = GREEDY,
    which: Which = "last",
    threads: int | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """The metrics of a run's newest or best checkpoint on all held-out data, by free generation, with the ceiling.

    data: files to measure on instead of the task's own held-out data. decoding: how answers are written.
    `notices` among the metrics says what of the data was left out.
    """
    use_threads(threads)
    loaded = load(run, which=which, trust_code=trust_code)
    if data:
        loaded.task.hold_out(data)
    elif named := loaded.task.held_out_of:
        there, here = read_run(Path(run)).get("data"), loaded.task.fingerprint()
        if not former.same_data(here, str(there)):
            raise UserError(
                f"{run} held out a part of {' and '.join(named)} as it was when training began; now it is another "
                f"text, of which the model may have seen any part: {there!r} then, {here!r} now; put the old one back, "
                "or name what to measure on with --data"
            )
    metrics = answering.evaluate(loaded.model, loaded.task, decoding=decoding)
    who = {
        "run": str(run),
        "encoding": loaded.experiment.encoding,
        "seed": loaded.experiment.seed,
        "step": loaded.step,
    }
    told = {"ceiling": loaded.task.ceiling(), "notices": loaded.task.held_out_notices()}
    return {**who, "metric": loaded.task.metric.name, **metrics, **told}


@dataclass(frozen=True)
class Answer:
    """An answer to one line, or why there is none.

    rank: 1 for the best of the answers to this line. tokens: what was written, the end included, with probabilities.
    score: log_probability over the length to the power of the length penalty.
    """

    line: int
    input: str
    answer: str | None = None
    rank: int = 1
    log_probability: float | None = None
    score: float | None = None
    tokens: tuple[tuple[str, float], ...] = ()
    error: str | None = None


def predict(
    run: str | Path | Loaded,
    lines: Iterable[str | UserError],
    *,
    decoding: Decoding = GREEDY,
    at_once: int = AT_ONCE,
    trust_code: bool = False,
) -> Iterator[Answer]:
    """`decoding.best` Answers for each line, in order; a line that cannot be read gets its error and stops nothing.

    at_once: how many lines to answer together. A UserError among the lines is one that could not even be decoded.
    Raises UserError for a language model, which has no answers: see `generate`.
    """
    loaded = run if isinstance(run, Loaded) else load(run, trust_code=trust_code)
    if continues(loaded.task):
        raise UserError(
            "a language model goes on with a text instead of answering lines; give it one with --prompt"
        )
    for chunk in chunks(enumerate(lines, 1), at_once):
        readable: list[tuple[int, str, Any]] = []
        found: dict[int, list[Answer]] = {}
        for number, line in chunk:
            try:
                if isinstance(line, UserError):
                    raise line
                readable.append((number, line, loaded.task.read(line)))
            except UserError as error:
                shown = "" if isinstance(line, UserError) else line[:80]
                found[number] = [Answer(number, shown, error=str(error))]
        # Lines of like length together: none waits for a much longer one, and little is padded.
        readable.sort(key=lambda item: len(item[2]) if isinstance(item[2], list) else 0)
        for some in chunks(readable, max(1, AT_ONCE // max(1, decoding.beam))):
            written = answering.answers(
                loaded.model, loaded.task, [read for _, _, read in some], decoding
            )
            for (number, line, read), hypotheses in zip(some, written, strict=True):
                found[number] = [
                    _answer(loaded, number, line, read, rank, hypothesis)
                    for rank, hypothesis in enumerate(hypotheses, 1)
                ]
        for number, _ in chunk:
            yield from found[number]


def _answer(
    loaded: Loaded, number: int, line: str, source: Any, rank: int, hypothesis: Hypothesis
) -> Answer:
    task, ids = loaded.task, hypothesis.ids.tolist()
    text = task.answer(Answering(loaded.model, task), line.strip(), source, ids)
    probabilities = hypothesis.log_probabilities.exp().tolist()
    tokens = tuple(zip(task.show_target(ids), probabilities, strict=True))
    return Answer(number, line.strip(), text, rank, hypothesis.total, hypothesis.score, tokens)


def generate(
    run: str | Path | Loaded,
    prompt: str = "",
    *,
    tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Sequence[str] = (),
    seed: int = 1,
    trust_code: bool = False,
) -> Iterator[str]:
    """What a language model writes after `prompt`, piece by piece as it is drawn.

    tokens: at most so many. stop: texts before which it ends. The other options are those of `jarilab.sample`.
    Raises UserError for a run that is no language model.
    """
    loaded = run if isinstance(run, Loaded) else load(run, trust_code=trust_code)
    task = loaded.task
    if not isinstance(task, TokenTask) or not task.continues:
        raise UserError(
            "only a language model goes on with a text; give lines to answer on standard input instead"
        )
    if "" in stop:
        raise UserError(
            "a text to stop at has one character or more, got an empty one; leave it out"
        )
    model: Any = loaded.model
    read = task.read(prompt)
    drawn = sample(
        model,
        task.sources([read]).ids,
        end=END,
        longest=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        context=task.longest["target"],
    )
    return _pieces(task, read, (int(token.ids[0]) for token in drawn), stop)


def _pieces(
    task: TokenTask, prompt: Sequence[int], numbers: Iterable[int], stop: Sequence[str]
) -> Iterator[str]:
    """Text as soon as it is certain: whole characters only, and nothing that may be the beginning of a stop."""
    written = list(
        prompt
    )  # where words are put together with spaces, one stands between the prompt and the first
    begun = len(task.write(written))
    given = 0
    waiting = max((len(text) for text in stop), default=1) - 1
    text = ""
    for number in numbers:
        written.append(number)
        text = task.write(written)[begun:]
        found = min(
            (at for at in (text.find(s, max(0, given - waiting)) for s in stop) if at >= 0),
            default=None,
        )
        if found is not None:
            yield text[given:found]
            return
        # A character cut off inside its bytes shows as U+FFFD until the rest is there.
        certain = max(given, len(text.rstrip("\ufffd")) - waiting)
        if certain > given:
            yield text[given:certain]
            given = certain
    yield text[given:]


def compare(
    task: str,
    out: str | Path,
    *,
    encodings: Sequence[str],
    seeds: int = 1,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    precision: Precision = "auto",
    jobs: int | None = None,
    snapshots: int = 0,
) -> dict[str, Any]:
    """Train the same model under each encoding and seed, side by side, and compare: gives the table.

    Writes table.json and report.html into `out`. Trials run `jobs` at a time with one thread each; a study that was
    cut off goes on with the trials that are not finished. snapshots: as for `train`.
    """
    jobs = jobs or study.jobs_for(len(encodings) * seeds, cores())
    return study.run(
        task, Path(out), encodings, seeds, dict(settings or {}), precision, model, jobs, snapshots
    )


@dataclass(frozen=True, eq=False)
class Followed:
    """An input, the run's answer to it, and the walk through one head on the way.

    answer: of a run that paints, what is read in the image, as a caption; None where nobody reads it.
    """

    input: str
    answer: str | None
    walk: Walk


def walk(
    run: str | Path,
    line: str,
    *,
    site: str | None = None,
    head: int = 0,
    step: int | None = None,
    trust_code: bool = False,
) -> Followed:
    """Follow one head of one attention, matrix by matrix, from the embedding to its output, in float64.

    site: the first one of the model by default. step: of a recurrent decoder, the first by default.
    """
    loaded = load(run, trust_code=trust_code)
    model, task = loaded.model, loaded.task
    read = task.read(line)
    # The answer is what `predict` gives; the numbers on the way to it are followed in float64.
    said = answered(model, task, read)
    text = answering.text_of(model, task, line.strip(), read, said)
    model, inputs = answering.inside(model, task).double(), precise(said.inputs)
    with record(model) as tape:
        model(*inputs)
    site = tape.sites[0] if site is None else site
    queries = said.source if site.startswith("encoder") else said.target
    keys = said.target if site.endswith(".self") else said.source
    vocabulary = None
    if loaded.experiment.model == "recurrent":  # whose walk ends at the tokens that may come next
        vocabulary = task.show_target(range(next(reversed(task.model_options.values()))))
    followed = walking.walk(
        model,
        inputs,
        site=site,
        head=head,
        queries=queries,
        keys=keys,
        step=step,
        vocabulary=vocabulary,
    )
    return Followed(line.strip(), text, followed)


def continues(task: Task) -> bool:
    """Whether a model of the task goes on with what it was given, as a language model does."""
    return isinstance(task, TokenTask) and task.continues


def use_threads(threads: int | None) -> None:
    """Compute with so many threads, all cores by default, and so that results depend on nothing else."""
    loop.deterministic(threads or cores())


def cores() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """The items in lists of `size`, the last perhaps shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
