"""The table for other programs: CSV with a line for each figure and each trial, and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jarilab.core.private_paths import without_home
from jarilab.tasks.metrics import METRICS, Metric

FIGURES = (
    "encoding", "seeds", "checkpoint", "by", "of", "examples", "metric", "value", "low", "high",
)  # fmt: skip
"""The columns of table.csv. by, of: a property of examples and its value, such as `group`, `longer`."""
TRIALS = (
    "encoding", "seed", "value", "best_value", "held_out", "examples", "steps", "lr", "parameters",
    "seconds_per_step", "cpu_seconds", "peak_memory", "hash", "run", "command",
)  # fmt: skip
"""The columns of trials.csv: fields of `trials` in table.json."""
SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip
"""LaTeX's special characters, and the commands that print them."""


def figures_csv(table: Mapping[str, Any]) -> str:
    """Every mean of every encoding with its interval: of all examples, each group, part and other length."""
    rows = []
    for row in table["encodings"]:
        shared = {"encoding": row["encoding"], "seeds": row["trials"], "metric": table["metric"]}
        for figure in _figures(row):
            rows.append(shared | figure)
        for at, cell in at_lengths(table, row["encoding"]):
            fields = {"by": "length", "of": at["length"], "examples": at["examples"]}
            estimate = {"value": cell["mean"], "low": cell["low"], "high": cell["high"]}
            rows.append({**shared, "checkpoint": "last", **fields, **estimate})
    return _csv(FIGURES, rows)


def at_lengths(
    table: Mapping[str, Any], encoding: str
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each other length of the table, and the figures of an encoding at it."""
    for at in other_lengths(table):
        yield at, next(row for row in at["encodings"] if row["encoding"] == encoding)


def other_lengths(table: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What was measured at each other length; empty without other lengths."""
    return table["lengths"]["at"] if table["lengths"] else ()


def _figures(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    all_examples = {"examples": row["held_out"]}
    interval = {"low": row["low"], "high": row["high"]}
    yield {"checkpoint": "last", "value": row["mean"], **all_examples, **interval}
    yield {"checkpoint": "best", "value": row["best_mean"], **all_examples}

    for group, value in row["groups"].items():
        low, high = row["group_intervals"].get(group, (None, None))
        group_fields = {"by": "group", "of": group, "examples": row["group_examples"].get(group)}
        estimate = {"value": value, "low": low, "high": high}
        yield {"checkpoint": "last", **group_fields, **estimate}

    for by, parts in row["parts"].items():
        for name, part in parts.items():
            yield {"checkpoint": "last", "by": by, "of": name, **part}


def trials_csv(table: Mapping[str, Any]) -> str:
    """Every trial, with the command that trains it."""
    return _csv(TRIALS, table["trials"])


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return without_home(text.getvalue())


def latex(table: Mapping[str, Any]) -> str:
    """The table of encodings as a LaTeX tabular, with the commands of its trials as comments."""
    metric = METRICS[table["metric"]]
    groups = list(table["encodings"][0]["groups"])
    lengths = [f"at {at['length']}" for at in other_lengths(table)]
    titles = ["encoding", metric.title, "95 % interval", "best", *groups, *lengths]
    titles += ["parameters", "s/step"]
    alignment = "l" + "r" * (len(titles) - 1)
    lines = _comments(_sentences(table))
    lines += [rf"\begin{{tabular}}{{{alignment}}}", r"\hline", _line(titles), r"\hline"]
    for row in table["encodings"]:
        trials = [trial for trial in table["trials"] if trial["encoding"] == row["encoding"]]
        lines += _comments(trial["command"] for trial in trials)
        at = [metric.text(cell["mean"]) for _, cell in at_lengths(table, row["encoding"])]
        lines.append(_line(_cells(row, metric, groups, at)))
    if table["ceiling"]:
        blank = [""] * len(lengths)
        lines.append(_line(_ceiling(table["ceiling"], metric, groups, blank)))
    lines += [r"\hline", r"\end{tabular}", ""]
    return without_home("\n".join(lines))


def _comments(texts: Iterable[str]) -> list[str]:
    """Each text as one line of a LaTeX comment."""
    return [f"% {' '.join(text.split())}" for text in texts]


def interval_sentences(table: Mapping[str, Any]) -> list[str]:
    """What the intervals of the encodings cover: one sentence, or one for each kind of them."""
    encodings: dict[str, list[str]] = {}
    for row in table["encodings"]:
        encodings.setdefault(row["interval"], []).append(row["encoding"])
    if len(encodings) == 1:
        return [f"interval: {how}" for how in encodings]
    return [f"interval of {', '.join(names)}: {how}" for how, names in encodings.items()]


def _sentences(table: Mapping[str, Any]) -> list[str]:
    sentences = [table["describe"], *table["notes"], *interval_sentences(table)]
    for row in table["differences"]:
        sentences.append(f"{row['first']} - {row['second']}: {row['verdict']}")
    for about in ("correction", "power"):
        if table["pairs"][about]:
            sentences.append(table["pairs"][about])
    return sentences


def _cells(
    row: Mapping[str, Any], metric: Metric, groups: Sequence[str], at: Sequence[str]
) -> list[str]:
    mean, best = metric.text(row["mean"]), metric.text(row["best_mean"])
    interval = ""
    if row["low"] is not None:
        interval = f"{metric.text(row['low'])} -- {metric.text(row['high'])}"
    group_cells = [metric.text(row["groups"][group]) for group in groups]
    size, speed = f"{row['parameters']:,}", f"{row['seconds_per_step']:.4f}"
    return [row["encoding"], mean, interval, best, *group_cells, *at, size, speed]


def _ceiling(
    ceiling: Mapping[str, float], metric: Metric, groups: Sequence[str], at: Sequence[str]
) -> list[str]:
    limit = metric.text(ceiling["all"])
    group_cells = [metric.text(ceiling[group]) for group in groups]
    return ["ceiling, on average", limit, "", "", *group_cells, *at, "", ""]


def _line(cells: Sequence[str]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _escaped(text: str) -> str:
    return "".join(SPECIAL.get(sign, sign) for sign in text)
