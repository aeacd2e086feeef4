"""The folder of a run: run.json (experiment and environment), metrics.jsonl (curve), result.json and checkpoints/."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, final

from jarilab.core.errors import UserError, shortened
from jarilab.core.options import check_fields
from jarilab.core.storage.files import (
    check_format,
    fsync,
    read_json,
    seal_record,
    sha256,
    unseal_record,
    write_bytes,
    write_json,
    write_text,
)
from jarilab.runs import metrics_log
from jarilab.runs.environment import environment_record, what_changed
from jarilab.runs.experiment import BUDGET, Experiment
from jarilab.runs.lock import FolderLock, locked
from jarilab.runs.outcomes import FILE as OUTCOMES
from jarilab.runs.outcomes import Outcomes, read_outcomes, write_outcomes
from jarilab.runs.results import read_result

FORMAT = "jari run 1"
FIELDS = {
    "format": Literal["jari run 1"],
    "hash": str,
    "experiment": dict[str, Any],
    "data": str,
    "kept": dict[str, str],
    "environment": dict[str, Any],
}
"""The fields of run.json; `origin` is added for a run that starts from weights, `kernels` at the first step."""
MAX_NAMED = 20
"""Runs, or problems, that an error lists."""
MAX_ARTIFACT_BYTES = 2**30
NOTHING: Mapping[str, Any] = {}


class Run:
    """An open run folder, locked against a second process.

    record: the fields of run.json. checkpoints: the folder of checkpoints. result: the fields of result.json, or None.
    """

    def __init__(self, folder: Path, record: dict[str, Any], lock: FolderLock):
        self.folder = folder
        self.record = record
        self._lock = lock
        self.checkpoints = folder / "checkpoints"
        self._metrics = folder / "metrics.jsonl"
        self._lines = 0
        self.result: dict[str, Any] | None = None

    @classmethod
    def open(
        cls,
        folder: Path,
        experiment: Experiment,
        fingerprint: str,
        kept: Mapping[str, bytes],
        computed: Mapping[str, Any] = NOTHING,
        origin: Mapping[str, Any] | None = None,
    ) -> Run:
        """Create the folder, or reopen the same run in it. Raises UserError if it holds anything else.

        fingerprint: of the training data. kept: files that predictions need, by name.
        computed: fields of the execution that decide bits, such as the device. origin: the weights that it starts from.
        """
        path = folder / "run.json"
        if folder.exists() and (
            not folder.is_dir() or (not path.exists() and is_foreign(folder, kept))
        ):
            raise UserError(f"{folder} exists and is not a run; choose another --out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error}") from None
        refuse_links(folder)
        lock = locked(folder, "is training")
        remove_partial_files(folder)
        environment = {**environment_record(), **computed}
        record = {
            "format": FORMAT,
            "hash": experiment.hash,
            "experiment": experiment.as_dict(),
            "data": fingerprint,
            "kept": {name: sha256(content) for name, content in kept.items()},
            "environment": environment,
            **({} if origin is None else {"origin": dict(origin)}),
        }
        run = cls(folder, record, lock)
        try:
            if path.exists():
                run._continue(experiment, fingerprint)
                run._compare(read_run(folder), experiment, fingerprint)
            else:
                for name, content in kept.items():
                    write_bytes(folder / name, content)
                write_json(path, seal_record(record))
            if (folder / "result.json").exists():
                run.result = read_result(folder, experiment.hash)
        except (
            BaseException
        ):  # also for Ctrl-C: a notebook's process lives on and would hold the lock
            lock.close()
            raise
        return run

    def _continue(self, experiment: Experiment, fingerprint: str) -> None:
        """Record that the finished run goes on to a larger budget, and remove its result."""
        path, record = self.folder / "run.json", read_run(self.folder)
        recorded = read_experiment(record, path)
        if not experiment.earlier or recorded.earlier not in (
            experiment.earlier,
            experiment.earlier[:-1],
        ):
            return
        if recorded.earlier != experiment.earlier:
            unchanged = replace(experiment, training=recorded.training, earlier=recorded.earlier)
            self._compare(record, unchanged, fingerprint)
            write_json(path, seal_record({**record, "experiment": experiment.as_dict()}))
        # Also after a power cut between both.
        result = self.folder / "result.json"
        is_old = result.exists() and read_result(self.folder, experiment.hash)["steps"]
        if is_old and is_old <= experiment.restart:
            (self.folder / OUTCOMES).unlink(missing_ok=True)
            result.unlink()

    def _compare(self, record: dict[str, Any], experiment: Experiment, fingerprint: str) -> None:
        """Raises UserError if the recorded run differs from this one; notes another environment."""
        differences = experiment.difference(read_experiment(record, self.folder / "run.json"))
        if record["kept"] != self.record["kept"]:
            differences.append(
                "vocabulary: another here than there, made from other data or by another tokenizers library"
            )
        if fingerprint != record["data"]:
            differences.append(f"data: {fingerprint!r} here, {record['data']!r} there")
        here, there = (str(each.get("origin", {}).get("weights")) for each in (self.record, record))
        if here != there:
            differences.append(f"weights that it starts from: {here[:12]} here, {there[:12]} there")
        if differences:
            lines = "\n  ".join(differences)
            raise UserError(
                f"{self.folder} holds another run; choose another --out, or give its settings:\n  {lines}"
            )
        check_artifacts(record, self.folder)
        environment = self.record["environment"]
        changed = what_changed(record["environment"], environment)
        if changed and not (self.folder / "result.json").exists():
            self.notice(f"from here on not bit-exact, because {'; '.join(changed)}")
        self.record = {**record, "environment": environment}

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def notice(self, text: str) -> None:
        """Print a line on standard error."""
        print(f"jarilab: {text}", file=sys.stderr)

    def note_kernels(self, kernels: dict[str, str]) -> None:
        """Record the kernel of each site in run.json. Raises UserError if the folder was removed."""
        self.check_exists()
        self.record["kernels"] = kernels
        write_json(self.folder / "run.json", seal_record(self.record))

    def log(self, row: dict[str, Any]) -> None:
        """Append a row to the curve. Raises UserError if the disk is full or the folder was removed."""
        self.check_exists()
        (line,) = metrics_log.sealed_lines([row], self.record["hash"], self._lines + 1)
        try:
            with self._metrics.open("a", encoding="utf-8", newline="\n") as file:
                file.write(line)
            self._lines += 1
        except OSError as error:
            raise UserError(
                f"{self._metrics} cannot be written: {error}; the last checkpoint is untouched"
            ) from None

    def fsync(self) -> None:
        """Sync the curve to the disk."""
        if self._metrics.exists():
            fsync(self._metrics)

    @property
    def rows(self) -> int:
        """The number of rows of the curve, once `cut_metrics` has read it."""
        return self._lines

    def cut_metrics(self, step: int, rows: int | None) -> None:
        """Drop the rows after `step`, whose steps are computed again.

        rows: the number of rows up to `step` when its checkpoint was written, or None; missing ones are reported.
        """
        if not self._metrics.exists():
            if rows:
                self.notice(f"{self._metrics} is gone, with the {rows} rows up to step {step}")
            return
        log = read_curve(self.folder)
        if log.problems:
            copy = set_aside(self.folder, self._metrics)
            for problem in log.problems:
                self.notice(f"{problem}; it is left out, and {copy} is a copy of the whole file")
        remaining = [row for row in log.rows if row["step"] <= step]
        if step == 0 and len(log.rows) > len(remaining):
            self.notice(
                f"{self.checkpoints} has no checkpoint: training begins again at step 0, and the curve, which reached "
                f"step {log.rows[-1]['step']}, with it"
            )
        if rows is not None and len(remaining) < rows and not log.problems:
            copy = set_aside(self.folder, self._metrics)
            self.notice(
                f"{self._metrics} is damaged: {rows - len(remaining)} of the {rows} rows up to step {step} are missing "
                f"at its end; the curve goes on without them, and {copy} is a copy of it"
            )
        self.write_curve(remaining)

    def write_curve(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace the curve by these rows."""
        write_text(self._metrics, metrics_log.sealed_lines(rows, self.record["hash"]))
        self._lines = len(rows)

    def finish(self, result: dict[str, Any], outcomes: Outcomes) -> None:
        """Write result.json, and outcomes.json beside those at other lengths.

        Raises UserError if the disk is full or the folder was removed.
        """
        self.check_exists()
        if outcomes:
            former: Outcomes = {}
            with contextlib.suppress(UserError):  # a damaged file is replaced
                former = read_outcomes(self.folder, self.record["hash"])
            write_outcomes(self.folder, self.record["hash"], former | outcomes)
        # Each line has its own checksum, so only this number shows that lines at the end are missing.
        result["curve_rows"] = self._lines
        self.result = result
        write_json(self.folder / "result.json", seal_record(result))

    def check_exists(self) -> None:
        """Raises UserError if the folder was removed or replaced."""
        # Writing on would create half a run, without its run.json.
        if not self._lock.is_valid or not (self.folder / "run.json").exists():
            raise UserError(
                f"{self.folder} was removed or replaced during training, so nothing more is written there; the same "
                "command starts anew"
            )


def read_run(folder: Path) -> dict[str, Any]:
    """The record of a run, run.json. Raises UserError if there is none, or it is damaged."""
    path = folder / "run.json"
    if not path.is_file():
        raise _not_a_run(folder)
    record = read_json(path)
    # Before the seal, which a run of another version need not have.
    check_format(path, FORMAT, record)
    record = unseal_record(path, record)
    check_fields(str(path), FIELDS, record)
    check_fields(f"{path}: environment", {"threads": int}, record["environment"])
    return record


def _not_a_run(folder: Path) -> UserError:
    """The error for a folder that is not a run; it names runs inside."""
    if not folder.exists():
        return UserError(
            f"{folder} does not exist; name the folder of a run, as `jarilab runs` lists them. No model is downloaded "
            "by its name: for one of Hugging Face, pass its folder to `jarilab explore --model FOLDER`"
        )
    inside = sorted(path.parent for path in folder.glob("*/run.json")) if folder.is_dir() else []
    if (folder / "config.json").is_file():
        return UserError(
            f"{folder} is not a run but a model of transformers: it has a config.json and no run.json; look into it "
            f"with `jarilab explore --model {folder}`"
        )
    if not inside:
        return UserError(
            f"{folder} is not a run: it has no run.json; name a folder that `jarilab runs` lists"
        )
    names = "\n  ".join(map(str, inside[:MAX_NAMED]))
    more = f"\n  and {len(inside) - MAX_NAMED} more" if len(inside) > MAX_NAMED else ""
    return UserError(f"{folder} holds runs and is not a run itself; name one:\n  {names}{more}")


def read_experiment(record: dict[str, Any], where: Path) -> Experiment:
    """The experiment in the record of a run. Raises UserError if it does not match its hash. where: its path."""
    experiment = Experiment.read(record["experiment"], str(where))
    if experiment.hash != record["hash"]:
        raise UserError(
            f"{where} is damaged: its experiment has the hash {experiment.hash}, and "
            f"{shortened(record['hash'])} stands there; "
            "put the file back as it was written"
        )
    return experiment


def continued(experiment: Experiment, folder: Path) -> Experiment:
    """The experiment as a continuation of the finished run in `folder`, if only its budget is another.

    The same experiment for any other folder. Raises UserError for a damaged run.
    """
    if not (folder / "run.json").is_file():
        return experiment
    recorded = read_experiment(read_run(folder), folder / "run.json")
    budget = {name: experiment.training[name] for name in BUDGET}
    if replace(recorded, training=recorded.training | budget, earlier=[]) != experiment:
        return experiment
    if recorded.training == experiment.training:
        return recorded
    if not (folder / "result.json").exists():
        return experiment
    result = read_result(folder, recorded.hash)
    stage = {name: recorded.training[name] for name in BUDGET}
    stage |= {"step": result["steps"], result["metric"]: result[result["metric"]]}
    return replace(experiment, earlier=[*recorded.earlier, stage])


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of the curve. Raises UserError if a line is damaged."""
    log = read_curve(folder)
    if log.problems:
        problems = "\n  ".join(log.problems[:MAX_NAMED])
        raise UserError(
            f"{problems}; `jarilab verify {folder} --repair` keeps a copy and the undamaged lines"
        )
    return log.rows


def read_curve(folder: Path) -> metrics_log.MetricsLog:
    """The undamaged rows of the curve, and its problems. Raises UserError if it cannot be read."""
    record = read_run(folder)
    lines = None
    if (folder / "result.json").exists():
        # A damaged result is reported where it is read.
        with contextlib.suppress(UserError):
            lines = read_result(folder, record["hash"]).get("curve_rows")
    return metrics_log.read(folder / "metrics.jsonl", record["hash"], lines)


# Artifacts: files that a run keeps of its data, such as vocabularies, so that it predicts without the data.


def check_artifacts(record: dict[str, Any], folder: Path) -> None:
    """Raises UserError if a file that the run keeps is not the one that it was trained with."""
    for name in record["kept"]:
        check_artifact(record, folder, name)


def check_artifact(record: dict[str, Any], folder: Path, name: str) -> None:
    """Raises UserError if the artifact `name` is missing or not the one that the run was trained with."""
    path = folder / Path(name).name  # without its folders: run.json may be hostile
    try:
        checksum = sha256(path, MAX_ARTIFACT_BYTES)
    except UserError as error:
        raise UserError(f"{error}; the run cannot answer without it: put back a copy") from None
    if checksum != record["kept"][name]:
        raise UserError(f"{path} is not the one this run was trained with; put it back")


@final
class ReadOnlyRun(Run):
    """A run folder that is read and never written; it prints no notices.

    result: the result of the run if it is finished.
    """

    def __init__(self, folder: Path, result: dict[str, Any] | None):
        self.folder, self.result, self.record = folder, result, {}
        self.checkpoints = folder / "checkpoints"
        self._lines = 0

    def _do_nothing(self, *_: Any, **__: Any) -> None:
        return

    __exit__ = notice = note_kernels = check_exists = fsync = log = _do_nothing
    cut_metrics = _do_nothing

    def finish(self, result: dict[str, Any], outcomes: Outcomes) -> None:
        self.result = result


# Partial files -------------------------------------------------------------------------------------------------------


ATOMIC_FOLDERS = (".", "checkpoints", "snapshots")
"""Folders of a run in which files are written under another name and then renamed."""
DAMAGED = "damaged"
"""The folder of a run for copies of damaged files; nothing is read from it."""


def vocabulary_of(record: Mapping[str, Any]) -> str | None:
    """Return the digest of the vocabulary of answers in a run.json; None for tasks without a learned one."""
    names = ("vocabulary.target.json", "vocabulary.json")
    return next((record["kept"][name] for name in names if name in record["kept"]), None)


def is_foreign(folder: Path, kept: Mapping[str, bytes]) -> bool:
    """Whether a folder without run.json holds more than an interrupted start of a run.

    Such a start leaves the lock, files that a run keeps, and partial writes. kept: those files, by name.
    """
    partial_names = [f".{name}.*.partial" for name in ("run.json", *kept)]

    def is_of_start(path: Path) -> bool:
        is_kept = path.name in kept and path.is_file() and path.read_bytes() == kept[path.name]
        return is_kept or path.name == ".lock" or any(map(path.match, partial_names))

    return not all(map(is_of_start, folder.iterdir()))


def partial_files(folder: Path) -> list[Path]:
    """Files and folders that interrupted writes left in a run folder."""
    folders = [folder / name for name in ATOMIC_FOLDERS]
    return [path for parent in folders for path in sorted(parent.glob(".*.partial"))]


def refuse_links(folder: Path) -> None:
    """Raises UserError if a link stands where a run writes or removes: it may lead to files that are not the run's."""
    places = [
        folder / name for name in (*ATOMIC_FOLDERS[1:], "tensorboard", "metrics.jsonl", DAMAGED)
    ]
    inner = [path for place in places if place.is_dir() for path in place.iterdir()]
    link = next((path for path in (*places, *inner) if path.is_symlink()), None)
    if link is not None:
        raise UserError(
            f"{link} is a link, and a run writes only to its own folder; replace the link by what it leads to, or "
            "choose another --out"
        )


def remove_partial_files(folder: Path) -> None:
    """Remove them. Call it only under the run's lock: another process may be writing."""
    for path in partial_files(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def set_aside(folder: Path, path: Path, *, move: bool = False) -> Path:
    """Copy a damaged file into the folder `damaged` of the run, or `move` it; returns its new path."""
    target_folder = folder / DAMAGED
    target_folder.mkdir(exist_ok=True)
    numbered = (target_folder / f"{path.name}.{number}" for number in itertools.count(1))
    target = next(candidate for candidate in numbered if not candidate.exists())
    if move:
        path.rename(target)
    else:
        shutil.copyfile(path, target)
    return target
