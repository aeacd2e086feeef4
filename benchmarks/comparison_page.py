"""Write docs/results/comparison.md from comparison.json, the measurements of `comparison_error.py`.

python benchmarks/comparison_page.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results"
METHODS = ("compare", "Tukey", "Holm", "mixed model", "pairs alone")
ON_EXAMPLES = ("compare", "without outcomes", "Tukey", "Holm", "mixed model", "statsmodels", "bootstrap")
LEAD_GAP, LEAD_SCATTER = 0.054, 0.005
"""The gap, and the scatter of runs, whose power stands above the tables."""
Measured = Mapping[str, Any]


def main() -> None:
    measured = json.loads((RESULTS / "comparison.json").read_text())
    (RESULTS / "comparison.md").write_text(page(measured))


def page(measured: Measured) -> str:
    """The page in Markdown."""
    worst = max(measured["errors"], key=lambda row: row["compare"])
    parts = [
        _head(measured, worst),
        "## Error: equal encodings called different",
        "Share of studies that call some pair of equal encodings different, by encodings x seeds. *Equal* means that "
        "the runs of both have the same distribution; where scatter is unequal, the same mean.",
        _errors(measured["errors"]),
        _other_methods(measured["errors"]),
        *([_fitted(measured["fitted"])] if measured["fitted"] else []),
        "## Power: a true gap",
        "One of six encodings is better than five equal ones, which answer 75 % right. All answer the same held-out "
        "examples, and a hard example is hard for all. *Scatter* is the standard deviation of the true share of a run, "
        "in percentage points. *Error* is the share of studies that call some pair of the five different.",
        _power([row for row in measured["examples"] if row["gap"]]),
        "## Error on few shared examples",
        "All encodings are equal, on 500 shared examples; scatter 0.5 points.",
        _few([row for row in measured["examples"] if not row["gap"]]),
        "## Intervals of single means",
        "Share of intervals that hold the true mean, 95 % intended. Where some encodings toss a coin, only they count.",
        _coverage(measured["coverage"]),
        _limits(),
    ]
    return "\n\n".join(parts) + "\n"


def _head(measured: Measured, worst: Measured) -> str:
    studies, seconds = measured["errors"][0]["studies"], measured["cpu_seconds"]
    noise = 100 * 1.96 * (0.05 * 0.95 / studies) ** 0.5
    seen = {row["seeds"]: row["power"]["compare"] for row in measured["examples"] if _is_lead_gap(row)}
    power = ", ".join(f"{100 * share:.0f} % with {seeds} seeds" for seeds, share in seen.items())
    by = f"by statsmodels {measured['statsmodels']}" if measured["fitted"] else "not measured: it was not installed"
    return f"""# Comparisons of encodings: error and power

<!-- Written by benchmarks/comparison_page.py from comparison.json. -->

- **Error:** `jarilab compare` calls equal encodings different in {_percent(worst["compare"])} % of studies in the worst
  case found ({worst["case"]}; {worst["encodings"]} x {worst["seeds"]}).
- **Power:** a gap of {100 * LEAD_GAP:g} points on 1,000 shared examples is seen in {power}.
- **So take 5 seeds rather than 3.** The [guide](../explanation/comparing.md) explains the verdicts.

The studies are simulated: {studies:,} a cell for errors, {seconds:,} CPU-seconds in all. With so many, a true 5 % is
measured as {5 - noise:.1f} to {5 + noise:.1f} % in 95 of 100 cells.

    python benchmarks/comparison_error.py

The other methods in the tables:

- *Tukey*: Tukey's range test with encodings and seeds as factors. *Holm*: paired t-tests with Holm's correction.
- *Mixed model*: random seeds, and crossed random examples where there are outcomes; Wald tests with Holm's correction.
  This is the closed form for balanced studies. *statsmodels*: the same with random seeds alone, fitted
  {by}; a crossed effect of each example is too slow to fit.
- *Bootstrap*: paired, over examples, with Bonferroni's correction. *Pairs alone*: paired t-tests without a correction.
- *Without outcomes*: `compare` on trials that did not keep the outcome of each example."""


def _is_lead_gap(row: Measured) -> bool:
    return row["gap"] == LEAD_GAP and row["scatter"] == LEAD_SCATTER and row["examples"] == 1000


def _cells(rows: Iterable[Measured]) -> list[str]:
    return [f"{row['encodings']} x {row['seeds']}" for row in rows]


def _by_case(rows: Sequence[Measured]) -> dict[str, list[Measured]]:
    cases: dict[str, list[Measured]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    return cases


def _errors(rows: Sequence[Measured]) -> str:
    cases = _by_case(rows)
    heads = ["`compare`, %", *_cells(next(iter(cases.values())))]
    lines = [[name, *(_percent(row["compare"]) for row in cells)] for name, cells in cases.items()]
    return _table(heads, lines)


def _other_methods(rows: Sequence[Measured]) -> str:
    lines = []
    for name, cells in _by_case(rows).items():
        lines.append([name, *(_percent(max(row[method] for row in cells)) for method in METHODS)])
    return "The largest of these nine shares, beside other methods:\n\n" + _table(["%, at worst", *METHODS], lines)


def _fitted(rows: Sequence[Measured]) -> str:
    cells = [name for name in rows[0] if " x " in name]
    heads = ["mixed model, %", *(f"{cell}, {kind}" for cell in cells for kind in ("closed form", "statsmodels"))]
    lines = [[row["case"], *(_percent(share) for cell in cells for share in row[cell].values())] for row in rows]
    return f"Mixed models, {rows[0]['studies']} studies a cell:\n\n" + _table(heads, lines)


def _power(rows: Sequence[Measured]) -> str:
    heads = ["gap, points", "examples", "scatter", "seeds", *ON_EXAMPLES, "error of `compare`"]
    lines = []
    for row in rows:
        setting = [f"{100 * row['gap']:g}", f"{row['examples']:,}", f"{100 * row['scatter']:g}", str(row["seeds"])]
        power = [f"{100 * row['power'][method]:.0f}" if method in row["power"] else "-" for method in ON_EXAMPLES]
        lines.append([*setting, *power, _percent(row["error"]["compare"])])
    counts = sorted({row["studies"] for row in rows})
    return f"Studies a row: {' to '.join(map(str, counts))}. Percent of studies that see the gap:\n\n" + _table(
        heads, lines
    )


def _few(rows: Sequence[Measured]) -> str:
    lines = []
    for cell, row in zip(_cells(rows), rows, strict=True):
        lines.append(
            [cell, *(_percent(row["error"][method]) if method in row["error"] else "-" for method in ON_EXAMPLES)]
        )
    return f"{rows[0]['studies']} studies a row.\n\n" + _table(["%", *ON_EXAMPLES], lines)


def _coverage(rows: Sequence[Measured]) -> str:
    lines = []
    for name, cells in _by_case(rows).items():
        for method in ("compare", "Student's t"):
            lines.append([f"{name}: {method}", *(_percent(row[method]) for row in cells)])
    return _table(["%", *_cells(next(iter(_by_case(rows).values())))], lines)


def _limits() -> str:
    return """## What cannot be promised

With three seeds, no method controls the error for every distribution. If a run tosses a coin and every run of another
encoding reaches half, their means are equal, and three heads show a clear difference in a quarter of all studies.
`compare` promises 5 % for runs that are distributed alike, as far as the cases above go. Two encodings that both toss a
coin are called different in one of 32 studies of three seeds: three heads beside three tails."""


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


if __name__ == "__main__":
    main()
