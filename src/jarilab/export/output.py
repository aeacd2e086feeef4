"""The folder that an export writes: all of it, or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.runs.loaded import OpenRun


def check_empty(out: str | Path) -> Path:
    """Raises UserError for a folder that holds anything, and for a file."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is no empty folder; choose another --out")
    return out


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """Where to write what becomes `out` when the block ends. After an error nothing of it is left."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


NEAR = 1e-5
"""The largest difference of a score that is no fault, as a share of the largest score where that is above 1."""


def check_close(pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """The largest difference between what another program says and what the run says, and the largest score of the run.
    Raises UserError where they differ, and where the other program cannot say anything."""
    difference = largest = 0.0
    try:
        for theirs, own in pairs:
            away = float((theirs - own).abs().max())
            difference = away if away != away else max(difference, away)
            largest = max(largest, float(own.abs().max()))
    except Exception as error:  # of many classes, by who runs it and what sizes it cannot read
        why = str(error).strip().partition("\n")[0]
        raise UserError(
            f"the exported model does not read inputs of other sizes ({why}), so nothing was written; answer with "
            "`jarilab predict`, or train with another --encoding"
        ) from error
    bound = NEAR * max(1.0, largest)
    if not difference <= bound:  # nor where it is no number
        raise UserError(
            f"the exported model answers otherwise than the run: its scores differ by {difference:.1e}, expected "
            f"{bound:.1e} at most; nothing was written. Please report this with the run's model and encoding"
        )
    return {"largest_difference": difference, "largest_score": largest}


def check_places(loaded: OpenRun) -> None:
    """Raises UserError for a run whose tokens are placed by more than their number."""
    if not loaded.task.policy.plain:
        raise UserError(
            f"an exported model counts tokens 0, 1, 2, ..., and this run was trained with --positions "
            f"{loaded.experiment.options.positions}; answer with `jarilab predict`, or train with --positions "
            "sequential"
        )
