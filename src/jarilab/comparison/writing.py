"""The table for other programs: CSV, one line for each figure and one for each trial, and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jarilab.tasks.metrics import METRICS, Metric

FIGURES = (
    "encoding", "seeds", "checkpoint", "by", "of", "examples", "metric", "value", "low", "high",
)  # fmt: skip
"""The columns of table.csv. by, of: what an example is told by and its value there, such as `group`, `longer`."""
TRIALS = (
    "encoding", "seed", "value", "best_value", "held_out", "examples", "steps", "lr", "parameters",
    "seconds_per_step", "cpu_seconds", "peak_memory", "hash", "run", "command",
)  # fmt: skip
"""The columns of trials.csv: what `trials` of table.json has for each."""
SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip
"""Characters that mean something to LaTeX, and how they are printed."""


def figures_csv(table: Mapping[str, Any]) -> str:
    """Every mean of every encoding with its interval: of all examples, of each group, and by what examples are like."""
    rows = []
    for row in table["encodings"]:
        shared = {"encoding": row["encoding"], "seeds": row["trials"], "metric": table["metric"]}
        for figure in _figures(row):
            rows.append(shared | figure)
    return _csv(FIGURES, rows)


def _figures(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    of_all = {"examples": row["held_out"]}
    ends = {"low": row["low"], "high": row["high"]}
    yield {"checkpoint": "last", "value": row["mean"], **of_all, **ends}
    yield {"checkpoint": "best", "value": row["best_mean"], **of_all}

    for group, value in row["groups"].items():
        low, high = row["group_intervals"].get(group, (None, None))
        of_group = {"by": "group", "of": group, "examples": row["group_examples"].get(group)}
        measured = {"value": value, "low": low, "high": high}
        yield {"checkpoint": "last", **of_group, **measured}

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
    return text.getvalue()


def latex(table: Mapping[str, Any]) -> str:
    """The table of encodings as a tabular, with the commands of its trials as comments."""
    metric = METRICS[table["metric"]]
    groups = list(table["encodings"][0]["groups"])
    titles = ["encoding", metric.title, "95 % interval", "best", *groups, "parameters", "s/step"]
    columns = "l" + "r" * (len(titles) - 1)
    lines = _comments(_said(table))
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\hline", _line(titles), r"\hline"]
    for row in table["encodings"]:
        trials = [one for one in table["trials"] if one["encoding"] == row["encoding"]]
        lines += _comments(one["command"] for one in trials)
        lines.append(_line(_cells(row, metric, groups)))
    if table["ceiling"]:
        lines.append(_line(_ceiling(table["ceiling"], metric, groups)))
    lines += [r"\hline", r"\end{tabular}", ""]
    return "\n".join(lines)


def _comments(texts: Iterable[str]) -> list[str]:
    """Each in one line, whatever lines it has."""
    return [f"% {' '.join(text.split())}" for text in texts]


def _said(table: Mapping[str, Any]) -> list[str]:
    """What is to be known of the figures."""
    sentences = [table["describe"], table["encodings"][0]["interval"]]
    for row in table["differences"]:
        sentences.append(f"{row['first']} - {row['second']}: {row['verdict']}")
    for about in ("correction", "power"):
        if table["pairs"][about]:
            sentences.append(table["pairs"][about])
    return sentences


def _cells(row: Mapping[str, Any], metric: Metric, groups: Sequence[str]) -> list[str]:
    mean, best = metric.text(row["mean"]), metric.text(row["best_mean"])
    interval = ""
    if row["low"] is not None:
        interval = f"{metric.text(row['low'])} -- {metric.text(row['high'])}"
    of_groups = [metric.text(row["groups"][group]) for group in groups]
    size, speed = f"{row['parameters']:,}", f"{row['seconds_per_step']:.4f}"
    return [row["encoding"], mean, interval, best, *of_groups, size, speed]


def _ceiling(ceiling: Mapping[str, float], metric: Metric, groups: Sequence[str]) -> list[str]:
    most = metric.text(ceiling["all"])
    of_groups = [metric.text(ceiling[group]) for group in groups]
    return ["ceiling, on average", most, "", "", *of_groups, "", ""]


def _line(cells: Sequence[str]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _escaped(text: str) -> str:
    return "".join(SPECIAL.get(sign, sign) for sign in text)
