"""The folder of a run: run.json (what makes it), metrics.jsonl (the curve), result.json (the end), checkpoints/."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jarilab.core.errors import UserError
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
from jarilab.runs import curve
from jarilab.runs.artifacts import check_artifacts
from jarilab.runs.environment import environment_record, what_changed
from jarilab.runs.experiment import Experiment
from jarilab.runs.leftovers import is_foreign, remove_leftovers, set_aside
from jarilab.runs.lock import FolderLock, locked
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
"""What run.json holds; `kernels` are added at the first step."""


MOST_NAMED = 20
"""Runs in a folder that are named where one of them is expected."""


NOTHING: Mapping[str, Any] = {}


class Run:
    """An open run folder, locked against a second process."""

    def __init__(self, folder: Path, record: dict[str, Any], lock: FolderLock):
        self.folder = folder
        self.record = record
        self._lock = lock
        self.checkpoints = folder / "checkpoints"
        self._metrics = folder / "metrics.jsonl"
        self._lines = 0  # of the curve, once `cut_metrics` has read it
        self.result: dict[str, Any] | None = None

    @classmethod
    def open(
        cls,
        folder: Path,
        experiment: Experiment,
        fingerprint: str,
        kept: Mapping[str, bytes],
        computed: Mapping[str, Any] = NOTHING,
    ) -> Run:
        """Make the folder, or take up the same run in it. Raises UserError if it holds anything else.

        fingerprint: of the training data. kept: the files that answering needs, by name.
        computed: what else decides bits, such as the device.
        """
        path = folder / "run.json"
        if folder.exists() and (
            not folder.is_dir() or (not path.exists() and is_foreign(folder, kept))
        ):
            raise UserError(f"{folder} exists and is no run of jari; choose another --out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error}") from None
        lock = locked(folder, "is training")
        remove_leftovers(folder)
        environment = {**environment_record(), **computed}
        record = {
            "format": FORMAT,
            "hash": experiment.hash,
            "experiment": experiment.as_dict(),
            "data": fingerprint,
            "kept": {name: sha256(held) for name, held in kept.items()},
            "environment": environment,
        }
        run = cls(folder, record, lock)
        try:
            if path.exists():
                run._compare(read_run(folder), experiment, fingerprint)
            else:
                for name, held in kept.items():
                    write_bytes(folder / name, held)
                write_json(path, seal_record(record))
            if (folder / "result.json").exists():
                run.result = read_result(folder, experiment.hash)
        except BaseException:
            lock.close()
            raise
        return run

    def _compare(self, held: dict[str, Any], experiment: Experiment, fingerprint: str) -> None:
        there = read_experiment(held, self.folder / "run.json")
        differences = experiment.difference(there)
        kept = self.record["kept"]
        if held["kept"] != kept:
            differences.append(
                "vocabulary: another here than there, made from other data or by another tokenizers library"
            )
        if fingerprint != held["data"]:
            differences.append(f"data: {fingerprint!r} here, {held['data']!r} there")
        if differences:
            lines = "\n  ".join(differences)
            raise UserError(
                f"{self.folder} holds another run; choose another --out, or give its settings:\n  {lines}"
            )
        check_artifacts(held, self.folder)
        before, now = held["environment"], self.record["environment"]
        changed = what_changed(before, now)
        if changed and not (self.folder / "result.json").exists():
            self.notice(f"from here on not bit-exact, because {'; '.join(changed)}")
        self.record = {**held, "environment": now}

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def notice(self, text: str) -> None:
        """Say something on standard error."""
        print(f"jarilab: {text}", file=sys.stderr)

    def note_kernels(self, kernels: dict[str, str]) -> None:
        self.check_exists()
        self.record["kernels"] = kernels
        write_json(self.folder / "run.json", seal_record(self.record))

    def log(self, row: dict[str, Any]) -> None:
        """Append a line to the curve."""
        self.check_exists()
        (line,) = curve.sealed_lines([row], self.record["hash"], self._lines + 1)
        try:
            with self._metrics.open("a", encoding="utf-8", newline="\n") as file:
                file.write(line)
            self._lines += 1
        except OSError as error:
            raise UserError(
                f"{self._metrics} cannot be written: {error}; the last checkpoint is untouched"
            ) from None

    def fsync(self) -> None:
        """Wait until the curve is on the disk: a checkpoint must not outlive the rows before it in a power cut."""
        if self._metrics.exists():
            fsync(self._metrics)

    @property
    def rows(self) -> int:
        """Of the curve, once `cut_metrics` has read it."""
        return self._lines

    def cut_metrics(self, step: int, rows: int | None) -> None:
        """Drop what was logged after `step`, which is about to be computed again. rows: how many there were up to there
        when its checkpoint was written, where that is known; lost ones are told of."""
        if not self._metrics.exists():
            if rows:
                self.notice(f"{self._metrics} is gone, with the {rows} rows up to step {step}")
            return
        found = read_curve(self.folder)
        if found.problems:
            copy = set_aside(self.folder, self._metrics)
            for problem in found.problems:
                self.notice(f"{problem}; it is left out, and {copy} is a copy of all of it")
        kept = [row for row in found.rows if row["step"] <= step]
        if rows is not None and len(kept) < rows and not found.problems:
            copy = set_aside(self.folder, self._metrics)
            self.notice(
                f"{self._metrics} is damaged: {rows - len(kept)} of the {rows} rows up to step {step} are missing at "
                f"its end; the curve goes on without them, and {copy} is a copy of it"
            )
        self.write_curve(kept)

    def write_curve(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Put these rows in the place of the curve."""
        write_text(self._metrics, curve.sealed_lines(rows, self.record["hash"]))
        self._lines = len(rows)

    def finish(self, result: dict[str, Any]) -> None:
        self.check_exists()
        result["curve_rows"] = self._lines  # so that lines which are lost at its end are missed
        self.result = result
        write_json(self.folder / "result.json", seal_record(result))

    def check_exists(self) -> None:
        """Raises UserError where the folder was removed, or another one stands in its place: half a run would."""
        if not self._lock.stands or not (self.folder / "run.json").exists():
            raise UserError(
                f"{self.folder} was removed or replaced while it was trained into, so nothing more is written there; "
                "the same command begins anew"
            )


def read_run(folder: Path) -> dict[str, Any]:
    """run.json of a run. Raises UserError if there is none."""
    path = folder / "run.json"
    if not path.is_file():
        raise _no_run(folder)
    record = read_json(path)
    # Before the seal, which a run of another version need not have.
    check_format(path, FORMAT, record)
    record = unseal_record(path, record)
    check_fields(str(path), FIELDS, record)
    return record


def _no_run(folder: Path) -> UserError:
    """Why a folder is no run, and what to do."""
    if not folder.exists():
        return UserError(
            f"{folder} does not exist; name the folder of a run, as `jarilab runs` lists them"
        )
    inside = sorted(path.parent for path in folder.glob("*/run.json")) if folder.is_dir() else []
    if not inside:
        return UserError(f"{folder} is no run of jari: it has no run.json")
    named = "\n  ".join(map(str, inside[:MOST_NAMED]))
    more = f"\n  and {len(inside) - MOST_NAMED} more" if len(inside) > MOST_NAMED else ""
    return UserError(f"{folder} holds runs, and is none itself; name one:\n  {named}{more}")


def read_experiment(record: dict[str, Any], where: Path) -> Experiment:
    """The experiment of a run.json. Raises UserError."""
    experiment = Experiment.read(record["experiment"], str(where))
    if experiment.hash != record["hash"]:
        raise UserError(
            f"{where} is damaged: its experiment has the hash {experiment.hash}, and {record['hash']} stands there; "
            "put the file back as it was written"
        )
    return experiment


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The curve. Raises UserError where a line of it is damaged, and says how to drop it."""
    found = read_curve(folder)
    if found.problems:
        told = "\n  ".join(found.problems[:MOST_NAMED])
        raise UserError(
            f"{told}; `jarilab verify {folder} --repair` keeps a copy and the lines that are whole"
        )
    return found.rows


def read_curve(folder: Path) -> curve.CurveFile:
    """The whole rows of the curve, and what is wrong with the others. Raises UserError where it cannot be read."""
    record = read_run(folder)
    lines = None
    if (folder / "result.json").exists():
        with contextlib.suppress(UserError):  # whoever reads the result says so
            lines = read_result(folder, record["hash"]).get("curve_rows")
    return curve.read(folder / "metrics.jsonl", record["hash"], lines)
