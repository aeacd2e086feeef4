"""Write docs/results/circuits.md from measurements, which are kept beside it.

python -m circuits.page MEASURED.json    # copies it to docs/results/circuits.json and writes the page
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .expected import EXPECTED, METHODS
from .families import FAMILIES
from .scoring import RIGHT, THRESHOLDS, WRONG, Tally, Verdict, verdicts, wilson

RESULTS = Path(__file__).parents[2] / "docs" / "results"
KEPT, PAGE = RESULTS / "circuits.json", RESULTS / "circuits.md"
TITLES = {
    "roles": "role",
    "zero": "zero ablation",
    "mean": "mean ablation",
    "mean_by_position": "mean by position",
    "resample": "resample ablation",
    "direct": "direct effect",
    "pairs": "pairs of heads",
    "denoising": "patching, denoising",
    "noising": "patching, noising",
    "denoising_difference": "denoising, logit difference",
    "noising_difference": "noising, logit difference",
    "contribution": "direct contribution",
    "attribution": "attribution patching",
    "composition": "composition",
}
MAX_LISTED = 60
Record = dict[str, Any]


def main() -> None:
    records = json.loads(Path(sys.argv[1]).read_text())
    KEPT.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    PAGE.write_text(page(records))


def page(records: Sequence[Record]) -> str:
    """The page: how it is measured, methods, families, and all answers that are not right."""
    items = [verdict for record in records for verdict in verdicts(record)]
    parts = [_head(records), _summary(items), _methods(items), _families(records, items), _cells(items)]
    return "\n\n".join([*parts, _not_right(records, items), _expected()]) + "\n"


def _head(records: Sequence[Record]) -> str:
    seeds = sorted({record["seed"] for record in records})
    hosts = Counter(record["host"] for record in records)
    return f"""# How often methods name the right heads: {len(records)} models whose circuit is known

Each model is built by hand, so it is known which heads answer and how. A seed permutes the heads, rotates the residual
stream, chooses a random basis in each head, adds noise of 2 to 10 % to all weights, and fills each layer with heads of
random weights. {len(FAMILIES)} families of circuits stand in {len(hosts)} kinds of model in float64:
{", ".join(f"{host} ({count})" for host, count in sorted(hosts.items()))}.
[`benchmarks/circuits`](../../benchmarks/circuits/__init__.py) builds and measures them.

The right answer of each method, its sign included, was written down before any method ran
([`expected.py`](../../benchmarks/circuits/expected.py)). It is often "no": zero ablation is right to find nothing in a
head that has a backup, and mean ablation in a head that writes a constant. Thresholds were chosen on seeds from 0 to
19. Seeds {seeds[0]} to {seeds[-1]} were measured once and are shown here.

An effect is named if its 95 % interval lies beyond the threshold and its Holm-adjusted p is below 0.05. It is "no" if
the interval lies within the threshold, and undecided otherwise. Thresholds: {THRESHOLDS["zero"]} nats a token for
ablations, {THRESHOLDS["denoising"]} of the answer for patching, {THRESHOLDS["contribution"]:g} logit (of about 10) for
contributions. A confident "no" about a head that matters is wrong, not undecided. No name of a role is undecided where
one is expected. A method that refuses a model is undecided about all its heads.

These weights are sparse and clean, unlike trained ones: a method that fails here is wrong, a method that passes may
still fail on a trained model."""


def _summary(items: Sequence[Verdict]) -> str:
    circuit = [each for each in items if set(each.design.replace(" > ", " + ").split(" + ")) != {"noise"}]
    lines = ["## All methods", "", *_table_head("unit: model x head x method")]
    lines.append(_row("all", items))
    lines.append(_row("heads of the circuit and decoys", circuit))
    lines.append(_row("heads of random weights", [each for each in items if each not in set(circuit)]))
    return "\n".join(lines)


def _table_head(first: str) -> list[str]:
    return [
        f"| {first} | answers | right | 95 % interval | wrong | at most | undecided |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |",
    ]


def _row(name: str, items: Sequence[Verdict]) -> str:
    tally = Tally.of(items)
    low, high = wilson(tally.right, tally.count)
    most = wilson(tally.wrong, tally.count)[1]
    share = tally.right / max(1, tally.count)
    return (
        f"| {name} | {tally.count:,} | {share:.1%} | {low:.1%} to {high:.1%} | {tally.wrong} | {most:.1%} "
        f"| {tally.undecided} |"
    )


def _grouped(items: Sequence[Verdict], key: Callable[[Verdict], str]) -> dict[str, list[Verdict]]:
    groups: dict[str, list[Verdict]] = {}
    for each in items:
        groups.setdefault(key(each), []).append(each)
    return groups


def _methods(items: Sequence[Verdict]) -> str:
    groups = _grouped(items, lambda each: each.method)
    lines = ["## Methods", "", *_table_head("method")]
    lines += [_row(title, groups[method]) for method, title in TITLES.items() if method in groups]
    return "\n".join(lines)


def _families(records: Sequence[Record], items: Sequence[Verdict]) -> str:
    groups = _grouped(items, lambda each: each.family)
    draws: Counter[str] = Counter()
    for record in records:
        draws[record["family"]] += record["draws"] - 1
    lines = [
        "## Families",
        "",
        "Drawn again: models that did not answer right, and were replaced by another draw before any method ran.",
        "",
        "| family | models | drawn again | answers | right | 95 % interval | wrong | undecided |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for family, members in groups.items():
        tally = Tally.of(members)
        low, high = wilson(tally.right, tally.count)
        models = sum(record["family"] == family for record in records)
        lines.append(
            f"| {family} | {models} | {draws[family]} | {tally.count:,} | {tally.right / max(1, tally.count):.1%} "
            f"| {low:.1%} to {high:.1%} | {tally.wrong} | {tally.undecided} |"
        )
    return "\n".join(lines)


def _cells(items: Sequence[Verdict]) -> str:
    """Right answers of each family and method, of heads of the circuit alone."""
    designed = [each for each in items if "noise" not in each.design]
    methods = [method for method in TITLES if any(each.method == method for each in designed)]
    lines = [
        "## Heads of the circuit and decoys, by family and method",
        "",
        "Right answers of all; a cell is empty where the method has no answer that follows from the circuit. 20 of 20",
        "shows no more than 84 %.",
        "",
        f"| family | {' | '.join(TITLES[method] for method in methods)} |",
        f"| --- | {' | '.join('---:' for _ in methods)} |",
    ]
    for family, members in _grouped(designed, lambda each: each.family).items():
        cells = []
        for method in methods:
            of_method = [each for each in members if each.method == method]
            tally = Tally.of(of_method)
            cells.append(f"{tally.right}/{tally.count}" if of_method else "")
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _not_right(records: Sequence[Record], items: Sequence[Verdict]) -> str:
    lines = ["## Answers that are not right", ""]
    kinds = Counter((e.outcome, e.family, e.host, e.method, e.design, e.said, e.right) for e in items)
    rows = [(key, count) for key, count in kinds.items() if key[0] != RIGHT]
    rows.sort(key=lambda each: (each[0][0] != WRONG, -each[1]))
    if not rows:
        return "\n".join([*lines, "None."])
    lines += ["| outcome | family | model | method | head | said | right | times |", "| --- " * 7 + "| ---: |"]
    for (outcome, family, host, method, design, said, right), count in rows[:MAX_LISTED]:
        title = TITLES[method]
        lines.append(f"| {outcome} | {family} | {host} | {title} | {design} | {said} | {right} | {count} |")
    if len(rows) > MAX_LISTED:
        lines += ["", f"{len(rows) - MAX_LISTED} more kinds are in `circuits.json`."]
    errors = Counter(
        (record["host"], method, error) for record in records for method, error in record["errors"].items()
    )
    for (host, method, error), count in errors.items():
        lines += ["", f"Not measured, {count} times: {method} of {host}: {error}"]
    return "\n".join(lines)


def _expected() -> str:
    lines = [
        "## What was expected",
        "",
        "+: the head matters for the answer. -: it works against it. no: neither. Empty: no answer follows from the",
        "circuit alone. Heads of random weights: no role or uniform, and no everywhere.",
        "",
        f"| family | head | role | {' | '.join(TITLES[method] for method in METHODS)} |",
        f"| --- | --- | --- | {' | '.join('---' for _ in METHODS)} |",
    ]
    for family, heads in EXPECTED.items():
        for design, answers in heads.items():
            if design != "noise":
                cells = [getattr(answers, method) or "" for method in METHODS]
                roles = " or ".join(answers.roles).replace("{}", "k")
                lines.append(f"| {family} | {design} | {roles} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
