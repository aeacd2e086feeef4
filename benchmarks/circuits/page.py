"""Write docs/results/circuits.md from measurements, which are kept beside it.

python -m circuits.page MEASURED.json [OTHERS.json]    # keeps them in docs/results/circuits.json and writes the page

OTHERS.json: of `circuits.others`, what TransformerLens measures.
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
    records = [kept(record) for record in json.loads(Path(sys.argv[1]).read_text())]
    for record in records:
        scores = record["measured"].get("composition", {})
        judged = {pair: each for pair, each in scores.items() if "noise" not in map(record["names"].get, pair.split())}
        record["measured"]["composition"] = judged
    records.sort(key=lambda record: (record["seed"], list(FAMILIES).index(record["family"])))
    others = json.loads(Path(sys.argv[2]).read_text()) if len(sys.argv) > 2 else []
    lines = [",\n".join(json.dumps(each, separators=(",", ":")) for each in rows) for rows in (records, others)]
    KEPT.write_text(f'{{"jarilab":[\n{lines[0]}\n],\n"TransformerLens":[\n{lines[1]}\n]}}\n')
    PAGE.write_text(page(records, others))


def kept(value: Any) -> Any:
    """Measurements with three decimals, which are enough for the thresholds; an effect of three zeros is 0."""
    if isinstance(value, dict):
        return {key: kept(each) for key, each in value.items()}
    if isinstance(value, list):
        rounded = [kept(each) for each in value]
        return 0 if rounded[:3] == [0.0, 0.0, 0.0] else rounded
    return round(value, 3) + 0.0 if isinstance(value, float) else value


def page(records: Sequence[Record], others: Sequence[Record] = ()) -> str:
    """The page: how it is measured, methods, families, and all answers that are not right."""
    items = [verdict for record in records for verdict in verdicts(record)]
    parts = [_head(records), _summary(items), _methods(items), _families(records, items), _cells(items)]
    return "\n\n".join([*parts, _not_right(records, items), _others(others), _expected()]) + "\n"


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
head that has a backup, and mean ablation in a head that writes a constant.

Development used seeds 0 to 10. The thresholds of roles, ablations, patching and contributions are those of the first
run there. Three things were decided there: the threshold of composition, that composition with heads of random weights
is not judged, and that such heads may attend by content alone in rotary models. Seeds {seeds[0]} to {seeds[-1]} are
shown here. They were measured once, with one exception. After seed 107 it was seen that heads of random weights had no
width in some rotary models. The rotary models up to this seed were built and measured again.

An effect is named if its 95 % interval lies beyond the threshold and its Holm-adjusted p is below 0.05. It is "no" if
the interval lies within the threshold, and undecided otherwise. Thresholds: {THRESHOLDS["zero"]} nats a token for
ablations, {THRESHOLDS["denoising"]} of the answer for patching, {THRESHOLDS["contribution"]:g} logit (of about 10) for
contributions. A confident "no" about a head that matters is wrong, not undecided. No name of a role is undecided where
one is expected. A method that refuses a model is undecided about all its heads.

These weights are sparse and clean, unlike trained ones: a method that fails here is wrong, a method that passes may
still fail on a trained model. No trained model is among them, and no circuit that sorts, carries digits of a sum, or
follows syntax."""


def _summary(items: Sequence[Verdict]) -> str:
    noise = [each for each in items if set(each.design.replace(" > ", " + ").split(" + ")) == {"noise"}]
    of_noise = set(map(id, noise))
    lines = ["## All methods", "", *_table_head("unit: model x head x method")]
    lines.append(_row("all", items))
    lines.append(_row("heads of the circuit and decoys", [each for each in items if id(each) not in of_noise]))
    lines.append(_row("heads of random weights", noise))
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
        f"| {name} | {tally.count:,} | {share:.2%} | {low:.2%} to {high:.2%} | {tally.wrong} | {most:.2%} "
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
            f"| {family} | {models} | {draws[family]} | {tally.count:,} | {tally.right / max(1, tally.count):.2%} "
            f"| {low:.2%} to {high:.2%} | {tally.wrong} | {tally.undecided} |"
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
    lines = [
        "## Answers that are not right",
        "",
        "In rotary models, zero ablation of a head with a backup changes the loss by up to 0.15 nats, expected was 0.",
        "",
    ]
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


def _others(others: Sequence[Record]) -> str:
    """What TransformerLens answers about the same models."""
    lines = ["## TransformerLens and captum", ""]
    if not others:
        return "\n".join([*lines, "Not installed, so not measured."])
    methods = ("denoising", "contribution")
    gaps = [max(record["gaps"].get(method, 0.0) for record in others) for method in methods]
    items = [each for record in others for each in verdicts(record)]
    rows = [_row(TITLES[method], [each for each in items if each.method == method]) for method in methods]
    decoys = [record for record in others if record["family"] == "offset decoy of induction"]
    fooled = sum(
        record["measured"]["roles"][head] == "induction"
        for record in decoys
        for head, design in record["names"].items()
        if design == "decoy"
    )
    lines += [
        f"""TransformerLens ran on the {len(others)} of these models that are GPT-2
([`others.py`](../../benchmarks/circuits/others.py)). Its numbers have no intervals: here each is its own interval,
with the same thresholds. The largest differences from jarilab's numbers are {gaps[0]:.0e} of the recovered fraction
and {gaps[1]:.0e} logits of the contribution, of about 10; TransformerLens computes some of them in float32.
""",
        *_table_head("TransformerLens"),
        *rows,
        f"""
Its `detect_head` scores three roles on one text and has no rule for a name, so it is not counted. On blocks of 8, it
gives the head at offset 7 an induction score of at least 0.5 in {fooled} of {len(decoys)} models. It has no table of
ablations, pairs or intervals. captum has no method for heads.""",
    ]
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
