"""Results as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jarilab.tasks.metrics import METRICS, Metric

NARROWEST = 20
"""Characters of the column of names; of that of encodings, the length of its title."""

# What was measured ---------------------------------------------------------------------------------------------------


def metrics_text(metrics: Mapping[str, Any], folder: str) -> str:
    """What `train` and `evaluate` measured."""
    rows = list(_rows(metrics))
    titles = [title for title, _ in rows]
    width = max(NARROWEST, _longest(titles))
    encoding = metrics["encoding"]
    examples = int(metrics["examples"])
    counted = "example" if examples == 1 else "examples"
    lines = [f"{folder}: {encoding}, {examples:,} held-out {counted}"]
    for title, value in rows:
        lines.append(f"  {title.ljust(width)} {value}")
    if "signature" in metrics:
        lines.append(f"  sacreBLEU {metrics['signature']}")
    lines += _best(metrics, width)
    lines += _cost(metrics)
    return "\n".join(lines)


def _rows(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each number that was measured: its name, and its value with the ceiling beside it."""
    judged_by = metrics["metric"]
    ceiling = metrics.get("ceiling") or {}
    for metric in METRICS.values():
        for key, number in metrics.items():
            group = _group_of(key, metric)
            if group is None:
                continue
            value = _figure(metric, number)
            if metric.name == judged_by and group in ceiling:
                most = metric.text(ceiling[group])
                value += f"   (without positions at most {most} on average)"
            yield _title(metric, group), value


def _group_of(key: str, metric: Metric) -> str | None:
    """Which examples a result is of, `all` or a group of them; None where it is no result of this metric."""
    if key == metric.name:
        return "all"
    prefix = f"{metric.name}_"
    return key.removeprefix(prefix) if key.startswith(prefix) else None


def _title(metric: Metric, group: str) -> str:
    if group == "all":
        return metric.title
    words = group.replace("_", " ")
    return f"{metric.title} {words}"


def _figure(metric: Metric, number: float) -> str:
    return metric.text(number).rjust(8)


def _best(metrics: Mapping[str, Any], width: int) -> list[str]:
    """The best on the way, where that was not the last."""
    best = metrics.get("best")
    if best is None or best["step"] == metrics["steps"]:
        return []
    metric = METRICS[metrics["metric"]]
    title = "best on the way".ljust(width)
    value = _figure(metric, best[metric.name])
    return [f"  {title} {value} at step {best['step']}"]


def _cost(metrics: Mapping[str, Any]) -> list[str]:
    """What training took, where there was one."""
    if "cpu_seconds" not in metrics:
        return []
    seconds = metrics["cpu_seconds"]
    digits = 0 if seconds >= 10 else 1
    examples = metrics["trained_examples"]
    return [f"  trained on {examples:,} examples in {seconds:.{digits}f} CPU-seconds"]


# A comparison --------------------------------------------------------------------------------------------------------


def table_text(table: Mapping[str, Any], out: Path) -> str:
    """What `compare` found."""
    metric = METRICS[table["metric"]]
    encodings = table["encodings"]
    names = [row["encoding"] for row in encodings]
    groups = list(encodings[0]["groups"])
    width = max(len("encoding"), _longest(names))
    title = "encoding".ljust(width)
    named = [group.rjust(_group_width(group)) for group in groups]
    head = _columns(title, metric.title, "95 % interval", "best", named)
    lines = [table["describe"], "", f"{head}   parameters  s/step  memory"]
    for row in encodings:
        lines.append(_encoding(row, metric, groups, width))
    if table["ceiling"]:
        lines.append(_ceiling(table["ceiling"], metric, groups, width))
    lines.append("")
    for row in table["differences"]:
        lines.append(_difference(row, metric))
    if table.get("tuning"):
        chosen = [f"{row['encoding']} {row['lr']:g}" for row in encodings]
        lines.append(f"learning rates, tuned at seed 0 with equal budgets: {', '.join(chosen)}")
    for row in table["unfinished"]:
        lines.append(f"left out: {row['encoding']}, seed {row['seed']}: {row['reason']}")
    pairs = table["pairs"]
    lines += [sentence for sentence in (pairs["correction"], pairs["power"]) if sentence]
    interval = encodings[0]["interval"]
    report = out / "report.html"
    return "\n".join([*lines, f"interval: {interval}", f"report: {report}"])


def _columns(name: str, figure: str, interval: str, best: str, groups: Sequence[str]) -> str:
    """The columns that the head of the table, an encoding and the ceiling have in common."""
    columns = f"{name}  {figure.rjust(12)}   {interval.ljust(17)}{best.rjust(9)}"
    return columns + "".join(groups)


def _encoding(row: Mapping[str, Any], metric: Metric, groups: Sequence[str], width: int) -> str:
    """One encoding: the mean of its trials, interval, groups, and what it costs."""
    name = row["encoding"].ljust(width)
    mean = metric.text(row["mean"])
    interval = ""
    if row["low"] is not None:
        low = metric.text(row["low"])
        high = metric.text(row["high"])
        interval = f"{low} - {high}"
    of_groups = _of_groups(row["groups"], metric, groups)
    columns = _columns(name, mean, interval, metric.text(row["best_mean"]), of_groups)
    cost = f"{row['parameters']:10,}  {row['seconds_per_step']:.4f}"
    if row["peak_memory"] is not None:  # unknown on Windows
        cost += f"  {row['peak_memory'] / 2**20:,.0f} MB"
    return f"{columns}   {cost}"


def _ceiling(
    ceiling: Mapping[str, float], metric: Metric, groups: Sequence[str], width: int
) -> str:
    """The line of what no model without positions can pass."""
    name = "ceiling".ljust(width)
    most = metric.text(ceiling["all"])
    of_groups = _of_groups(ceiling, metric, groups)
    columns = _columns(name, most, "", "", of_groups)
    return f"{columns}   of any model without positions, on average"


def _of_groups(values: Mapping[str, float], metric: Metric, groups: Sequence[str]) -> list[str]:
    return [metric.text(values[group]).rjust(_group_width(group)) for group in groups]


def _group_width(group: str) -> int:
    return 2 + max(7, len(group))


def _difference(row: Mapping[str, Any], metric: Metric) -> str:
    """Two encodings against each other."""
    pair = f"{row['first']} - {row['second']}"
    difference = metric.text(row["difference"], "+")
    if row["low"] is not None:
        low = metric.text(row["low"], "+")
        high = metric.text(row["high"], "+")
        difference += f" ({low} to {high})"
    return f"{pair}: {difference}: {row['verdict']}"


def _longest(names: Sequence[str]) -> int:
    return max((len(name) for name in names), default=0)
