"""Results as text for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jarilab.comparison.table_export import at_lengths, interval_sentences, other_lengths
from jarilab.core.columns import left, right, terminal_width
from jarilab.core.errors import printable
from jarilab.tasks.metrics import METRICS, Metric, confusion_table, score_notes

MIN_TITLE_WIDTH = 20
"""Characters."""
WORSE_BEST = (
    "best: the checkpoint with the best evaluation during training, over fewer examples; "
    "over all of them it may be worse than the last"
)
DEFAULT_SEEDS = 5
"""Seeds that are proposed at least."""

# Metrics of one run --------------------------------------------------------------------------------------------------


def metrics_text(metrics: Mapping[str, Any], folder: str) -> str:
    """The result of `train` and `evaluate`."""
    rows = list(_rows(metrics))
    titles = [title for title, _ in rows]
    width = max([MIN_TITLE_WIDTH, *map(terminal_width, titles)])
    encoding = metrics["encoding"]
    examples = int(metrics["examples"])
    counted = "example" if examples == 1 else "examples"
    lines = [f"{folder}: {encoding}, {examples:,} held-out {counted}{_of_length(metrics)}"]
    for title, value in rows:
        lines.append(f"  {left(title, width)} {value}")
    lines += [f"  {note}" for note in score_notes(metrics)]
    if "refused" in metrics:
        lines.append(
            f"  {metrics['refused']:,} further lines were not measured: predict refuses their sources"
        )
    lines += _best(metrics, width)
    lines += _cost(metrics)
    lines += _confusion(metrics)
    return "\n".join(lines)


def _of_length(metrics: Mapping[str, Any]) -> str:
    """The length that was measured and the trained one, if the length was passed."""
    if "length" not in metrics:
        return ""
    trained, stride = metrics["trained_length"], metrics["stride"]
    at_trained = "" if trained is None else f", trained at {trained:,}"
    return f" of length {metrics['length']:,}{at_trained}" + (
        "" if stride is None else f", stride {stride:,}"
    )


def _rows(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Title and value of each metric, with the ceiling."""
    main_metric = metrics["metric"]
    ceiling = metrics.get("ceiling") or {}
    for metric in METRICS.values():
        for key, number in metrics.items():
            group = _group_of(key, metric)
            if group is None:
                continue
            value = _figure(metric, number)
            if metric.name == main_metric and group in ceiling:
                limit = metric.text(ceiling[group])
                value += f"   (without positions at most {limit} on average)"
            yield _title(metric, group), value


def _group_of(key: str, metric: Metric) -> str | None:
    """The group of examples of a result, `all` or one of them; None if it is of another metric."""
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
    """The best checkpoint, if it is not the last."""
    best = metrics.get("best")
    if best is None or best["step"] == metrics["steps"]:
        return []
    metric = METRICS[metrics["metric"]]
    title = "best checkpoint".ljust(width)
    value = _figure(metric, best[metric.name])
    return [f"  {title} {value} at step {best['step']}"]


def _cost(metrics: Mapping[str, Any]) -> list[str]:
    """The cost of training, if the run was trained now."""
    if "cpu_seconds" not in metrics:
        return []
    seconds = metrics["cpu_seconds"]
    digits = 0 if seconds >= 10 else 1
    examples = metrics["trained_examples"]
    return [f"  trained on {examples:,} examples in {seconds:.{digits}f} CPU-seconds"]


def _confusion(metrics: Mapping[str, Any]) -> Iterator[str]:
    """The table of classes and answers, if there is one."""
    table = confusion_table(metrics)
    if len(table) < 2:
        return
    rows = [list(map(printable, row)) for row in table]
    widths = [max(map(terminal_width, column)) for column in zip(*rows, strict=True)]
    yield "  answers (columns) to each class"
    for row in rows:
        cells = map(right, row, widths)
        yield f"  {'  '.join(cells)}"


# A comparison --------------------------------------------------------------------------------------------------------


def table_text(table: Mapping[str, Any], out: Path) -> str:
    """The result of `compare`."""
    metric = METRICS[table["metric"]]
    encodings = table["encodings"]
    names = [row["encoding"] for row in encodings]
    groups = list(encodings[0]["groups"])
    width = max([len("encoding"), *map(len, names)])
    title = "encoding".ljust(width)
    titles = [right(group, _group_width(group)) for group in groups]
    titles += [f"at {at['length']:,}".rjust(11) for at in other_lengths(table)]
    head = _columns(title, metric.title, "95 % interval", "best", titles)
    lines = [table["describe"], *table["notes"], "", f"{head}   parameters  s/step  memory"]
    for row in encodings:
        lines.append(_encoding(row, metric, groups, width, _at_lengths(table, row, metric)))
    if table["ceiling"]:
        blank = [" " * 11] * (len(titles) - len(groups))
        lines.append(_ceiling(table["ceiling"], metric, groups, width, blank))
    if any(metric.better(row["mean"], row["best_mean"]) for row in encodings):
        lines.append(WORSE_BEST)
    lines.append("")
    lines += _of_lengths(table["lengths"])
    lines += _differences(table["differences"], metric)
    lines += _more_seeds(table, out)
    if table.get("tuning"):
        chosen = [f"{row['encoding']} {row['lr']:g}" for row in encodings]
        lines.append(f"learning rates, tuned at seed 0 with equal budgets: {', '.join(chosen)}")
    for row in table["unfinished"]:
        lines.append(f"left out: {row['encoding']}, seed {row['seed']}: {row['reason']}")
    pairs = table["pairs"]
    lines += [sentence for sentence in (pairs["correction"], pairs["power"]) if sentence]
    report = out / "report.html"
    return "\n".join([*lines, *interval_sentences(table), f"report: {report}"])


def _columns(name: str, figure: str, interval: str, best: str, groups: Sequence[str]) -> str:
    """The columns that every line of the table has."""
    columns = f"{name}  {figure.rjust(12)}   {interval.ljust(17)}{best.rjust(9)}"
    return columns + "".join(groups)


def _at_lengths(table: Mapping[str, Any], row: Mapping[str, Any], metric: Metric) -> list[str]:
    """The mean of an encoding at each other length; a star marks the best of a length."""
    cells = []
    for at, cell in at_lengths(table, row["encoding"]):
        mark = "*" if at["best"] == row["encoding"] else " "
        cells.append(f"{metric.text(cell['mean'])}{mark}".rjust(11))
    return cells


def _of_lengths(lengths: Mapping[str, Any] | None) -> Iterator[str]:
    """What a length counts, the verdict at each, and what encodings read that they never trained on."""
    if lengths is None:
        return
    trained = lengths["trained"]
    at_trained = "" if trained is None else f"; trained at {trained:,}"
    yield f"lengths: {lengths['unit']}{at_trained}; * is the best mean; pairs are corrected for each length alone"
    for at in lengths["at"]:
        verdict = f"{at['best']} is best, ranked above all others"
        if at["pairs"]["seeds"] < 2:  # without a common seed there are no pairs at all
            few = "with fewer than two seeds in common"
            reason = few if at["pairs"]["missing"] else "of one seed each"
            verdict = f"{at['best']} is best, {reason}, so not ranked"
        elif at["unranked"]:
            verdict = f"{at['best']} is best, not ranked above {', '.join(at['unranked'])}"
        if len(at["encodings"]) > 1:
            yield f"at {at['length']:,}: {verdict}"
        for row in at["encodings"]:
            yield from (
                f"at {at['length']:,}, {row['encoding']}: {notice}" for notice in row["notices"]
            )


def _more_seeds(table: Mapping[str, Any], out: Path) -> list[str]:
    """The command that trains more seeds, if a pair is not ranked."""
    unranked = [row for row in table["differences"] if row["better"] is None]
    at_lengths = table["lengths"]["at"] if table["lengths"] else []
    pairs, again = table["pairs"], f"jarilab compare {shlex.quote(str(out))}"
    # Without a common seed there are no pairs.
    if pairs["seeds"] and not unranked and not any(at["unranked"] for at in at_lengths):
        return []
    if pairs["missing"]:
        lacking = ", ".join(pairs["missing"])
        return [f"to rank more pairs, train the missing seeds of {lacking}: {again}"]
    seeds = pairs["seeds"]
    enough = [row["scattered"]["seeds"] for row in unranked if row["scattered"]]
    count = max([DEFAULT_SEEDS, 2 * seeds, *enough])
    return [f"to rank more pairs, add seeds: {again} --seeds {count}"]


def _encoding(
    row: Mapping[str, Any], metric: Metric, groups: Sequence[str], width: int, at: Sequence[str]
) -> str:
    """One encoding: the mean of its trials, interval, groups, means at other lengths, and cost."""
    name = row["encoding"].ljust(width)
    mean = metric.text(row["mean"])
    interval = ""
    if row["low"] is not None:
        low = metric.text(row["low"])
        high = metric.text(row["high"])
        interval = f"{low} - {high}"
    of_groups = [*_of_groups(row["groups"], metric, groups), *at]
    columns = _columns(name, mean, interval, metric.text(row["best_mean"]), of_groups)
    cost = f"{row['parameters']:10,}  {row['seconds_per_step']:.4f}"
    if row["peak_memory"] is not None:  # unknown on Windows
        cost += f"  {row['peak_memory'] / 2**20:,.0f} MB"
    return f"{columns}   {cost}"


def _ceiling(
    ceiling: Mapping[str, float],
    metric: Metric,
    groups: Sequence[str],
    width: int,
    at: Sequence[str],
) -> str:
    """The upper bound of models without positions."""
    name = "ceiling".ljust(width)
    limit = metric.text(ceiling["all"])
    of_groups = [*_of_groups(ceiling, metric, groups), *at]
    columns = _columns(name, limit, "", "", of_groups)
    return f"{columns}   of any model without positions, on average"


def _of_groups(values: Mapping[str, float], metric: Metric, groups: Sequence[str]) -> list[str]:
    return [metric.text(values[group]).rjust(_group_width(group)) for group in groups]


def _group_width(group: str) -> int:
    return 2 + max(7, terminal_width(group))


def _differences(rows: Sequence[Mapping[str, Any]], metric: Metric) -> list[str]:
    """One line for each pair of encodings. A reason that several unranked pairs share is printed once, below."""
    unranked = [row["verdict"] for row in rows if row["better"] is None]
    is_shared = len(unranked) > 1 and len(set(unranked)) == 1
    lines = []
    for row in rows:
        line = _difference(row, metric)
        lines.append(line if is_shared and row["better"] is None else f"{line}: {row['verdict']}")
    if is_shared and len(unranked) < len(rows):
        lines.append(f"the other pairs: {unranked[0]}")
    elif is_shared:
        lines.append(unranked[0])
    return lines


def _difference(row: Mapping[str, Any], metric: Metric) -> str:
    """The difference of two encodings, with its interval."""
    pair = f"{row['first']} - {row['second']}"
    difference = metric.text(row["difference"], "+")
    if row["low"] is not None:
        low = metric.text(row["low"], "+")
        high = metric.text(row["high"], "+")
        difference += f" ({low} to {high})"
    return f"{pair}: {difference}"
