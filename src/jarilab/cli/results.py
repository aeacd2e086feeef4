"""Results as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jarilab.tasks.metrics import METRICS, Metric

NARROWEST = 20
"""Characters of the column of names."""


def metrics_text(metrics: Mapping[str, Any], folder: str) -> str:
    """What `train` and `evaluate` measured."""
    rows = list(_rows(metrics))
    width = max([NARROWEST, *(len(title) for title, _ in rows)])
    examples = int(metrics["examples"])
    lines = [f"{folder}: {metrics['encoding']}, {examples:,} held-out examples"]
    lines += [f"  {title:<{width}} {value}" for title, value in rows]
    if "signature" in metrics:
        lines.append(f"  sacreBLEU {metrics['signature']}")
    lines += _best(metrics, width)
    lines += _cost(metrics)
    return "\n".join(lines)


def _rows(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each number that was measured: its name, and its value with the ceiling beside it."""
    ceiling = metrics.get("ceiling") or {}
    for metric in METRICS.values():
        for key in _keys(metric, metrics):
            group = key.removeprefix(metric.name).removeprefix("_") or "all"
            title = metric.title
            if group != "all":
                title += f" {group.replace('_', ' ')}"
            value = f"{metric.text(metrics[key]):>8}"
            if metric.name == metrics["metric"] and group in ceiling:
                most = metric.text(ceiling[group])
                value += f"   (without positions at most {most})"
            yield title, value


def _keys(metric: Metric, metrics: Mapping[str, Any]) -> list[str]:
    """Where a metric stands among the results: of everything, and of groups."""
    of_group = f"{metric.name}_"
    return [key for key in metrics if key == metric.name or key.startswith(of_group)]


def _best(metrics: Mapping[str, Any], width: int) -> list[str]:
    """The best on the way, where that was not the last."""
    best = metrics.get("best")
    if best is None or best["step"] == metrics["steps"]:
        return []
    metric = METRICS[metrics["metric"]]
    value = metric.text(best[metric.name])
    return [f"  {'best on the way':<{width}} {value:>8} at step {best['step']}"]


def _cost(metrics: Mapping[str, Any]) -> list[str]:
    """What training took, where there was one."""
    if "cpu_seconds" not in metrics:
        return []
    seconds = metrics["cpu_seconds"]
    shown = f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"
    examples = metrics["trained_examples"]
    return [f"  trained on {examples:,} examples in {shown} CPU-seconds"]


def table_text(table: Mapping[str, Any], out: Path) -> str:
    """What `compare` found."""
    metric = METRICS[table["metric"]]
    encodings = table["encodings"]
    width = max(8, *(len(row["encoding"]) for row in encodings))
    groups = list(encodings[0]["groups"])
    head = "".join(f"{group:>9}" for group in groups)
    title = f"{'encoding':<{width}}  {metric.title:>12}"
    lines = [table["describe"], ""]
    lines.append(f"{title}   95 % interval    {head}   parameters  s/step")
    lines += [_encoding(row, metric, groups, width) for row in encodings]
    if table["ceiling"]:
        lines.append(_ceiling(table["ceiling"], metric, groups, width))
    lines.append("")
    lines += [_difference(row, metric) for row in table["differences"]]
    lines.append(f"interval: {encodings[0]['interval']}")
    lines.append(f"report: {out / 'report.html'}")
    return "\n".join(lines)


def _encoding(row: Mapping[str, Any], metric: Metric, groups: Sequence[str], width: int) -> str:
    """One encoding: the mean of its trials, interval, groups, and what it costs."""
    interval = ""
    if row["low"] is not None:
        low, high = metric.text(row["low"]), metric.text(row["high"])
        interval = f"{low} - {high}"
    mean = metric.text(row["mean"])
    per_group = _per_group(row["groups"], metric, groups)
    cost = f"{row['parameters']:10,}  {row['seconds_per_step']:.4f}"
    return f"{row['encoding']:<{width}}  {mean:>12}   {interval:<17}{per_group}   {cost}"


def _ceiling(
    ceiling: Mapping[str, float], metric: Metric, groups: Sequence[str], width: int
) -> str:
    """The line of what no model without positions can pass."""
    most = metric.text(ceiling["all"])
    per_group = _per_group(ceiling, metric, groups)
    beside = "   of any model without positions"
    return f"{'ceiling':<{width}}  {most:>12}   {'':17}{per_group}{beside}"


def _per_group(values: Mapping[str, float], metric: Metric, groups: Sequence[str]) -> str:
    texts = [metric.text(values[group]) for group in groups]
    return "".join(f"{text:>9}" for text in texts)


def _difference(row: Mapping[str, Any], metric: Metric) -> str:
    """Two encodings against each other."""
    ends = ""
    if row["low"] is not None:
        low, high = metric.text(row["low"], "+"), metric.text(row["high"], "+")
        ends = f" ({low} to {high})"
    difference = metric.text(row["difference"], "+")
    return f"{row['first']} - {row['second']}: {difference}{ends}: {row['verdict']}"
