"""Results as a person reads them in a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jarilab.tasks.metrics import METRICS


def metrics_text(metrics: dict[str, Any], folder: str) -> str:
    """What `train` and `evaluate` measured."""
    lines = [f"{folder}: {metrics['encoding']}, {int(metrics['examples']):,} held-out examples"]
    ceiling = metrics.get("ceiling") or {}
    rows = []
    for name, metric in METRICS.items():
        for key in [k for k in metrics if k == name or k.startswith(f"{name}_")]:
            group = key.removeprefix(name).removeprefix("_") or "all"
            known = name == metrics["metric"] and group in ceiling
            beside = (
                f"   (without positions at most {metric.text(ceiling[group])})" if known else ""
            )
            title = metric.title if group == "all" else f"{metric.title} {group.replace('_', ' ')}"
            rows.append((title, f"{metric.text(metrics[key]):>8}{beside}"))
    width = max([20, *(len(title) for title, _ in rows)])
    lines += [f"  {title:<{width}} {value}" for title, value in rows]
    if "signature" in metrics:
        lines.append(f"  sacreBLEU {metrics['signature']}")
    if "best" in metrics and metrics["best"]["step"] != metrics["steps"]:
        best, metric = metrics["best"], METRICS[metrics["metric"]]
        lines.append(
            f"  {'best on the way':<{width}} {metric.text(best[metric.name]):>8} at step {best['step']}"
        )
    if "cpu_seconds" in metrics:
        seconds = metrics["cpu_seconds"]
        shown = f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"
        lines.append(
            f"  trained on {metrics['trained_examples']:,} examples in {shown} CPU-seconds"
        )
    return "\n".join(lines)


def table_text(table: dict[str, Any], out: Path) -> str:
    """What `compare` found."""
    metric = METRICS[table["metric"]]
    width = max(8, *(len(row["encoding"]) for row in table["encodings"]))
    groups = list(table["encodings"][0]["groups"])
    head = "".join(f"{group:>9}" for group in groups)
    lines = [
        table["describe"],
        "",
        f"{'encoding':<{width}}  {metric.title:>12}   95 % interval    {head}   parameters  s/step",
    ]
    for row in table["encodings"]:
        per_group = "".join(f"{metric.text(row['groups'][group]):>9}" for group in groups)
        interval = (
            "" if row["low"] is None else f"{metric.text(row['low'])} - {metric.text(row['high'])}"
        )
        lines.append(
            f"{row['encoding']:<{width}}  {metric.text(row['mean']):>12}   {interval:<17}{per_group}"
            f"   {row['parameters']:10,}  {row['seconds_per_step']:.4f}"
        )
    if table["ceiling"]:
        per_group = "".join(f"{metric.text(table['ceiling'][group]):>9}" for group in groups)
        ceiling = metric.text(table["ceiling"]["all"])
        lines.append(
            f"{'ceiling':<{width}}  {ceiling:>12}   {'':17}{per_group}   of any model without positions"
        )
    lines.append("")
    for row in table["differences"]:
        ends = (
            ""
            if row["low"] is None
            else f" ({metric.text(row['low'], '+')} to {metric.text(row['high'], '+')})"
        )
        difference = metric.text(row["difference"], "+")
        lines.append(f"{row['first']} - {row['second']}: {difference}{ends}: {row['verdict']}")
    lines.append(f"interval: {table['encodings'][0]['interval']}")
    lines.append(f"report: {out / 'report.html'}")
    return "\n".join(lines)
