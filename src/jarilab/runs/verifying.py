"""Check every file of a run against its checksum, and move damaged files aside.

Nothing is executed, no model is built and nothing is deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.storage.files import seal_record, write_json, write_text
from jarilab.runs import checkpoint, metrics_log, snapshots
from jarilab.runs.folder import DAMAGED as ASIDE
from jarilab.runs.folder import (
    check_artifact,
    partial_files,
    read_curve,
    read_experiment,
    read_run,
    refuse_links,
    remove_partial_files,
    set_aside,
)
from jarilab.runs.lock import locked
from jarilab.runs.outcomes import FILE as OUTCOMES
from jarilab.runs.outcomes import read_outcomes
from jarilab.runs.results import read_result
from jarilab.runs.weights import read_tensors

WHOLE, DAMAGED, OTHER = "whole", "damaged", "no part of the run"


@dataclass(frozen=True)
class CheckedFile:
    """A file of a run, or the folder of a checkpoint. state: whole, damaged or no part. about: the problem."""

    file: str
    state: str
    about: str = ""


@dataclass(frozen=True)
class VerifiedRun:
    """The files of a run and what can be used of it.

    answers_from: newest step with undamaged weights, if predictions can be computed; else None. goes_on_from: the step
    from which training resumes; None if it is finished or cannot. repaired: a sentence for each repair.
    """

    run: str
    files: list[CheckedFile]
    finished: bool
    answers_from: int | None
    goes_on_from: int | None
    repaired: list[str]

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged."""
        return all(checked.state != DAMAGED for checked in self.files)

    def as_dict(self) -> dict[str, Any]:
        return {"whole": self.whole, **asdict(self)}


def verify(run: str | Path, *, repair: bool = False) -> VerifiedRun:
    """Check every file of a run against its checksum.

    repair: move damaged files into the folder `damaged` of the run, so that the others are used. A damaged curve is
    copied there and keeps its undamaged lines. Raises UserError for a folder that is not a run.
    """
    folder = Path(run)
    # With checkpoints it is a run, even if run.json is damaged or gone; else `read_run` raises the error.
    if not (folder / "checkpoints").is_dir():
        read_run(folder)
    repaired = _repair(folder) if repair else []
    files = _checked(folder)
    states = {checked.file: checked.state for checked in files}
    usable = all(states.get(name) != DAMAGED for name in _needed(folder))
    whole = [n for n, state in states.items() if state == WHOLE and n.startswith("checkpoints/")]
    newest = max((checkpoint.step_of(Path(name)) for name in whole), default=None)
    newest = newest if usable else None
    finished = states.get("result.json") == WHOLE
    return VerifiedRun(str(folder), files, finished, newest, None if finished else newest, repaired)


def _needed(folder: Path) -> set[str]:
    """The files that predictions need."""
    try:
        return {"run.json", *read_run(folder)["kept"]}
    except UserError:
        return {"run.json"}


def _checked(folder: Path) -> list[CheckedFile]:
    def record() -> None:
        read_experiment(read_run(folder), folder / "run.json")

    def curve() -> None:
        problems = read_curve(folder).problems
        if problems:
            raise UserError("; ".join(problems))

    files = [_check("run.json", record)]
    run: dict[str, Any] = {"kept": {}, "hash": None}
    with contextlib.suppress(UserError):
        run = read_run(folder)
    files += [_check(name, check_artifact, run, folder, name) for name in run["kept"]]
    owner = run["hash"]
    if owner is not None:
        if any(_is_there(folder / name) for name in ("metrics.jsonl", "result.json")):
            files.append(_check("metrics.jsonl", curve))
        for name, read in (("result.json", read_result), (OUTCOMES, read_outcomes)):
            if _is_there(folder / name):
                files.append(_check(name, read, folder, owner))
    for parent, check in (("checkpoints", _check_checkpoint), (snapshots.FOLDER, _check_snapshot)):
        for path in sorted((folder / parent).glob("step-*")):
            files.append(_check(f"{parent}/{path.name}", check, path, owner))
    known = {checked.file.partition("/")[0] for checked in files}
    return files + list(_others(folder, known))


def _check(name: str, check: Callable[..., object], *arguments: Any) -> CheckedFile:
    """The state of a file by a check that raises UserError if it is damaged."""
    try:
        check(*arguments)
    except UserError as error:
        return CheckedFile(name, DAMAGED, str(error))
    return CheckedFile(name, WHOLE)


def _check_checkpoint(path: Path, owner: str | None) -> None:
    checkpoint.verify(path)
    if owner is not None:
        checkpoint.check_owner(path, owner)


def _check_snapshot(path: Path, owner: str | None) -> None:
    snapshots.check(path, owner, read_tensors(path))


def _others(folder: Path, known: set[str]) -> Iterator[CheckedFile]:
    partial = set(partial_files(folder))
    for path in sorted(partial):
        about = "a partial write; the next start of the training removes it"
        yield CheckedFile(str(path.relative_to(folder)), OTHER, about)
    parts = known | {
        ".lock",
        "checkpoints",
        snapshots.FOLDER,
        ASIDE,
        "metrics.jsonl",
        "result.json",
        OUTCOMES,
    }
    for path in sorted(folder.iterdir()):
        if path.name not in parts and path not in partial:
            yield CheckedFile(path.name, OTHER)


def _is_there(path: Path) -> bool:
    """Whether a file or link exists, even a link to nothing."""
    return path.exists() or path.is_symlink()


# Repair --------------------------------------------------------------------------------------------------------------


def _repair(folder: Path) -> list[str]:
    refuse_links(folder)
    with locked(folder, "is training"):
        repaired = [f"{path} was a partial write and is removed" for path in partial_files(folder)]
        remove_partial_files(folder)
        for checked in _checked(folder):
            # What predictions need stays: without it, only a copy that the user puts back helps.
            if checked.state == DAMAGED and checked.file not in _needed(folder):
                repaired.append(_move_aside(folder, checked.file))
    return repaired


def _move_aside(folder: Path, name: str) -> str:
    """Move a damaged file aside, or copy a damaged curve; gives a sentence about it."""
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
    write_text(path, metrics_log.sealed_lines(rows, owner))
    _update_result(folder, owner, len(rows))
    return f"{name} keeps its {len(rows)} undamaged lines; {copy} is a copy of the whole file"


def _update_result(folder: Path, owner: str, count: int) -> None:
    """Write the number of lines of the curve into the result, unless that is damaged, too."""
    try:
        result = read_result(folder, owner)
    except UserError:
        return
    write_json(folder / "result.json", seal_record({**result, "curve_rows": count}))
