"""Every file of a run against what it was when it was written: what is damaged, and what can still be used.

Nothing is executed and no model is built. What is damaged can be put aside, so that the rest is used; nothing is
deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.storage.files import seal_record, write_json, write_text
from jarilab.runs import checkpoint, curve, snapshots
from jarilab.runs.artifacts import check_artifact
from jarilab.runs.folder import read_curve, read_experiment, read_run
from jarilab.runs.leftovers import DAMAGED as ASIDE
from jarilab.runs.leftovers import leftovers, remove_leftovers, set_aside
from jarilab.runs.lock import locked
from jarilab.runs.results import read_result
from jarilab.runs.weights import read_tensors

WHOLE, DAMAGED, OTHER = "whole", "damaged", "no part of the run"


@dataclass(frozen=True)
class CheckedFile:
    """A file of a run, or the folder of a checkpoint. about: what is wrong with it."""

    file: str
    state: str
    about: str = ""


@dataclass(frozen=True)
class VerifiedRun:
    """files: each with its state. answers_from: the newest step whose weights are whole, where all else is there that
    an answer needs. goes_on_from: the step that training goes on from; None where it is finished, or cannot. repaired:
    what was done, a sentence each."""

    run: str
    files: list[CheckedFile]
    finished: bool
    answers_from: int | None
    goes_on_from: int | None
    repaired: list[str]

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged."""
        return all(one.state != DAMAGED for one in self.files)

    def as_dict(self) -> dict[str, Any]:
        return {"whole": self.whole, **asdict(self)}


def verify(run: str | Path, *, repair: bool = False) -> VerifiedRun:
    """Compare every file of a run with its checksum; says what is damaged and what can still be used.

    repair: put what is damaged into the folder `damaged` of the run, where nothing is read, so that the rest is used;
    of the curve a copy goes there, and its whole lines stay. Raises UserError for a folder that is no run.
    """
    folder = Path(run)
    if not (folder / "checkpoints").is_dir():
        read_run(folder)  # says why it is none
    repaired = _repair(folder) if repair else []
    files = _checked(folder)
    usable = not any(one.state == DAMAGED for one in files if one.file in _needed(folder))
    whole = [
        one.file for one in files if one.state == WHOLE and one.file.startswith("checkpoints/")
    ]
    steps = [checkpoint.step_of(Path(file)) for file in whole]
    newest = max(steps, default=None) if usable else None
    states = {one.file: one.state for one in files}
    finished = states.get("result.json") == WHOLE
    return VerifiedRun(str(folder), files, finished, newest, None if finished else newest, repaired)


def _needed(folder: Path) -> set[str]:
    """What no answer is given without."""
    try:
        return {"run.json", *read_run(folder)["kept"]}
    except UserError:
        return {"run.json"}


def _checked(folder: Path) -> list[CheckedFile]:
    files = [_record(folder)]
    try:
        record = read_run(folder)
    except UserError:
        record = {"kept": {}, "hash": None}
    owner = record["hash"]
    files += [_artifact(record, folder, name) for name in record["kept"]]
    if owner is not None:
        files += _curve(folder) + _result(folder, owner)
    files += [_checkpoint(path, owner) for path in _steps(folder / "checkpoints")]
    files += [_snapshot(path, owner) for path in _steps(folder / snapshots.FOLDER)]
    known = {one.file.partition("/")[0] for one in files}
    return files + list(_others(folder, known))


def _record(folder: Path) -> CheckedFile:
    path = folder / "run.json"
    try:
        read_experiment(read_run(folder), path)
    except UserError as error:
        return CheckedFile(path.name, DAMAGED, str(error))
    return CheckedFile(path.name, WHOLE)


def _artifact(record: dict[str, Any], folder: Path, name: str) -> CheckedFile:
    try:
        check_artifact(record, folder, name)
    except UserError as error:
        return CheckedFile(name, DAMAGED, str(error))
    return CheckedFile(name, WHOLE)


def _curve(folder: Path) -> list[CheckedFile]:
    name = "metrics.jsonl"
    if not _is_there(folder / name) and not _is_there(folder / "result.json"):
        return []  # not begun
    try:
        found = read_curve(folder)
    except UserError as error:
        return [CheckedFile(name, DAMAGED, str(error))]
    if found.problems:
        return [CheckedFile(name, DAMAGED, "; ".join(found.problems))]
    return [CheckedFile(name, WHOLE)]


def _result(folder: Path, owner: str) -> list[CheckedFile]:
    path = folder / "result.json"
    if not _is_there(path):
        return []
    try:
        read_result(folder, owner)
    except UserError as error:
        return [CheckedFile(path.name, DAMAGED, str(error))]
    return [CheckedFile(path.name, WHOLE)]


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _checkpoint(path: Path, owner: str | None) -> CheckedFile:
    name = f"{path.parent.name}/{path.name}"
    try:
        checkpoint.verify(path)
        if owner is not None:
            checkpoint.check_owner(path, owner)
    except UserError as error:
        return CheckedFile(name, DAMAGED, str(error))
    return CheckedFile(name, WHOLE)


def _snapshot(path: Path, owner: str | None) -> CheckedFile:
    name = f"{path.parent.name}/{path.name}"
    try:
        snapshots.check(path, owner, read_tensors(path))
    except UserError as error:
        return CheckedFile(name, DAMAGED, str(error))
    return CheckedFile(name, WHOLE)


def _others(folder: Path, known: set[str]) -> Iterator[CheckedFile]:
    left = set(leftovers(folder))
    for path in sorted(left):
        about = "left behind by a write that was cut off; the next start of the training removes it"
        yield CheckedFile(str(path.relative_to(folder)), OTHER, about)
    own = known | {".lock", "checkpoints", snapshots.FOLDER, ASIDE, "metrics.jsonl", "result.json"}
    for path in sorted(folder.iterdir()):
        if path.name not in own and path not in left:
            yield CheckedFile(path.name, OTHER)


def _is_there(path: Path) -> bool:
    """A link that leads nowhere is there too."""
    return path.exists() or path.is_symlink()


# Repair --------------------------------------------------------------------------------------------------------------


def _repair(folder: Path) -> list[str]:
    with locked(folder, "is training"):
        done = [f"{path} was a leftover, and is removed" for path in leftovers(folder)]
        remove_leftovers(folder)
        for one in _checked(folder):
            if one.state == DAMAGED and one.file not in _needed(folder):
                done.append(_put_aside(folder, one.file))
    return done


def _put_aside(folder: Path, name: str) -> str:
    """Gives what was done."""
    path = folder / name
    if name != "metrics.jsonl":
        return f"{name} is now {set_aside(folder, path, move=True)}"
    try:
        rows = read_curve(folder).rows
    except UserError:
        if _is_there(path):
            return f"{name} is now {set_aside(folder, path, move=True)}"
        rows = []
    copy = set_aside(folder, path) if _is_there(path) else "nothing"
    owner = read_run(folder)["hash"]
    write_text(path, curve.sealed_lines(rows, owner))
    _tell_result(folder, owner, len(rows))
    return f"{name} keeps its {len(rows)} whole lines; {copy} is a copy of all of it"


def _tell_result(folder: Path, owner: str, count: int) -> None:
    """The result says how many lines the curve has; where it is damaged it is put aside too."""
    try:
        result = read_result(folder, owner)
    except UserError:
        return
    write_json(folder / "result.json", seal_record({**result, "curve_rows": count}))
