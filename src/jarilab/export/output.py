"""The folder of an export, written completely or not at all, and the check of its scores."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.models.base import Generates
from jarilab.runs.loaded import OpenRun


def check_empty(out: str | Path) -> Path:
    """Raises UserError for a file and for a folder that is not empty."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is no empty folder; choose another --out")
    return out


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """Yields a folder that becomes `out` at the end of the block. After an error nothing remains."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(out)  # takes the place of an empty folder, too
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


NEAR = 1e-5
"""Tolerance of scores, relative to the largest score if that is above 1."""


def check_close(pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """The largest difference between the scores of another program and of the run, and the largest score.

    pairs: scores of the other program, scores of the run. Raises UserError if they differ or the program fails.
    """
    difference = largest = 0.0
    try:
        for scores, expected in pairs:
            error = float((scores - expected).abs().max())
            difference = error if error != error else max(difference, error)  # NaN stays
            largest = max(largest, float(expected.abs().max()))
    except Exception as error:  # of many classes
        why = str(error).strip().partition("\n")[0]
        raise UserError(
            f"the exported model does not read inputs of other sizes ({why}), so nothing was written; answer with "
            "`jarilab predict`, or train with another --encoding"
        ) from error
    bound = NEAR * max(1.0, largest)
    if not difference <= bound:  # NaN fails, too
        raise UserError(
            f"the exported model differs from the run: its scores differ by {difference:.1e}, expected "
            f"{bound:.1e} at most; nothing was written. Please report this with the run's model and encoding"
        )
    return {"largest_difference": difference, "largest_score": largest}


def check_places(loaded: OpenRun) -> None:
    """Raises UserError for a run whose position IDs are not 0, 1, 2, ..."""
    if not loaded.task.policy.plain:
        raise UserError(
            f"an exported model counts tokens 0, 1, 2, ..., and this run was trained with --positions "
            f"{loaded.experiment.options.positions}; answer with `jarilab predict`, or train with --positions "
            "sequential"
        )


def longest_of(loaded: OpenRun) -> dict[str, int]:
    """The tokens of the longest input that a run allows, by `source` and `target`; nothing for images."""
    task: Any = loaded.task
    model: Any = loaded.model
    if not isinstance(loaded.model, Generates):
        return {}
    return {side: task.tokens_read(side) for side in model.max_positions()}
