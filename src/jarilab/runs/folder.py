"""The folder of a run: run.json (what makes it), metrics.jsonl (the curve), result.json (the end), checkpoints/."""

from __future__ import annotations

import fcntl
import json
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal

import torch

from jarilab._version import __version__
from jarilab.errors import UserError
from jarilab.options import check_fields
from jarilab.runs import former
from jarilab.runs.experiment import Experiment
from jarilab.storage.files import (
    read_json,
    sha256,
    synchronise,
    write_bytes,
    write_json,
    write_text,
)

FORMAT = 1
FIELDS = {
    "format": Literal[1],
    "hash": str,
    "experiment": dict[str, Any],
    "data": str,
    "kept": dict[str, str],
    "environment": dict[str, Any],
}
"""What run.json holds; `kernels` are added at the first step."""


MOST_NAMED = 20
"""Runs in a folder that are named where one of them is expected."""


class Run:
    """An open run folder, locked against a second process."""

    def __init__(self, folder: Path, record: dict[str, Any], lock: IO[str]):
        self.folder = folder
        self.record = record
        self._lock = lock
        self.checkpoints = folder / "checkpoints"
        self._metrics = folder / "metrics.jsonl"
        self.result: dict[str, Any] | None = None

    @classmethod
    def open(
        cls, folder: Path, experiment: Experiment, fingerprint: str, kept: Mapping[str, bytes]
    ) -> Run:
        """Make the folder, or take up the same run in it. Raises UserError if it holds anything else.

        fingerprint: of the training data. kept: the files that answering needs, by name.
        """
        path = folder / "run.json"
        if folder.exists() and (
            not folder.is_dir() or (not path.exists() and _foreign(folder, kept))
        ):
            raise UserError(f"{folder} exists and is no run of jari; choose another --out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / ".lock").open("a+")
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise UserError(
                f"another process is training in {folder}; wait for it, or choose another --out"
            ) from None
        environment = environment_record()
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
                held = read_run(folder)
                run._compare(held, experiment, fingerprint)
                check_artifacts(held, folder)
            else:
                for name, held in kept.items():
                    write_bytes(folder / name, held)
                write_json(path, record)
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
        if not former.same_data(fingerprint, held["data"]):
            differences.append(f"data: {fingerprint!r} here, {held['data']!r} there")
        if differences:
            lines = "\n  ".join(differences)
            raise UserError(
                f"{self.folder} holds another run; choose another --out, or give its settings:\n  {lines}"
            )
        before, now = held["environment"], self.record["environment"]
        for key in ("torch", "threads", "cpu", "capability"):
            if before.get(key) != now[key]:
                self.notice(
                    f"not bit-exact from here on: {key} was {before.get(key)}, is {now[key]}"
                )
        self.record = {**held, "environment": now}

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def notice(self, text: str) -> None:
        """Say something on standard error."""
        print(f"jarilab: {text}", file=sys.stderr)

    def note_kernels(self, kernels: dict[str, str]) -> None:
        self.record["kernels"] = kernels
        write_json(self.folder / "run.json", self.record)

    def log(self, row: dict[str, Any]) -> None:
        """Append a line to the curve."""
        try:
            with self._metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(
                f"{self._metrics} cannot be written: {error}; the last checkpoint is untouched"
            ) from None

    def synchronise(self) -> None:
        """Wait until the curve is on the disk: a checkpoint must not outlive the rows before it in a power cut."""
        if self._metrics.exists():
            synchronise(self._metrics)

    def cut_metrics(self, step: int) -> None:
        """Drop what was logged after `step`, which is about to be computed again."""
        if self._metrics.exists():
            kept = [row for row in read_metrics(self.folder) if row["step"] <= step]
            write_text(self._metrics, "".join(json.dumps(row) + "\n" for row in kept))

    def finish(self, result: dict[str, Any]) -> None:
        self.result = result
        write_json(self.folder / "result.json", result)


def read_run(folder: Path) -> dict[str, Any]:
    """run.json of a run. Raises UserError if there is none."""
    path = folder / "run.json"
    if not path.is_file():
        raise _no_run(folder)
    record = read_json(path)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise UserError(f"{path} is not of this version of jari (format {FORMAT})")
    record.setdefault("kept", {})  # absent from runs of before there were tasks that keep something
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
    return Experiment.read(record["experiment"], str(where))


def check_artifacts(record: dict[str, Any], folder: Path) -> None:
    """Raises UserError where a vocabulary or another file that the run keeps is not the one it was trained with."""
    for name, digest in record["kept"].items():
        path = folder / Path(name).name
        try:
            found = sha256(path)
        except OSError as error:
            raise UserError(
                f"{path} cannot be read: {error.strerror}; the run cannot answer without it"
            ) from None
        if found != digest:
            raise UserError(f"{path} is not the one this run was trained with; put it back")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The curve, up to the first line that is none of ours, such as a last one that was cut off."""
    rows: list[dict[str, Any]] = []
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{folder / 'metrics.jsonl'} cannot be read: {reason}") from None
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not _is_row(row):
            break
        rows.append(row)
    return rows


NUMBERS: dict[str, Any] = {"step": int, "steps": int, "examples": int, "loss": int | float}
"""What the fields of a row of the curve are, where they are there."""


def _is_row(row: Any) -> bool:
    """Whether a line of the curve is one of ours: its step is there, and its numbers are numbers."""
    if not isinstance(row, dict) or "step" not in row:
        return False
    return all(isinstance(row[name], kind) for name, kind in NUMBERS.items() if name in row)


def read_result(folder: Path, run: str) -> dict[str, Any]:
    """result.json of the run with this hash. Raises UserError if it is anything else."""
    path = folder / "result.json"
    result = read_json(path)
    ours = isinstance(result, dict) and result.get("hash") == run
    if not ours or not isinstance(result.get(str(result.get("metric"))), float):
        raise UserError(
            f"{path} is not the result of the run {run}; remove it, and the same command measures again"
        )
    return result


def environment_record() -> dict[str, Any]:
    """What else decides the bits of a result."""
    capabilities = torch.cpu.get_capabilities()
    return {
        "jari": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu": str(capabilities.get("cpu_name", platform.processor())),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "system": platform.platform(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": " ".join(sys.argv),
    }


def _foreign(folder: Path, kept: Mapping[str, bytes]) -> bool:
    # A start that was cut off leaves the lock, files that a run keeps, and a half-written one of these or run.json.
    partials = [f".{name}.*.partial" for name in ("run.json", *kept)]

    def ours(path: Path) -> bool:
        whole = path.name in kept and path.is_file() and path.read_bytes() == kept[path.name]
        return whole or path.name == ".lock" or any(path.match(partial) for partial in partials)

    return not all(ours(path) for path in folder.iterdir())
