"""Write docs/results/circuits.md from measurements, which are kept beside it.

python -m circuits.page [--jarilab MEASURED.json] [--others OTHERS.json] [--trained ...] [--backups ...]

Keeps the measurements in docs/results/circuits.json, where they take the place of earlier ones of the same models, and
writes the page. The files are those of `circuits`, `circuits.others`, `circuits.trained` and `circuits.backups`.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .expected import EXPECTED, METHODS
from .families import FAMILIES
from .scoring import RIGHT, THRESHOLDS, WRONG, Tally, Verdict, verdicts, wilson
from .trained_page import section, wrapped

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


SOURCES = ("jarilab", "TransformerLens", "trained", "backups")
"""Of the kept measurements."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for source in SOURCES:
        option = "others" if source == "TransformerLens" else source
        parser.add_argument(f"--{option}", dest=source, type=Path, metavar="FILE.json")
    files = vars(parser.parse_args())
    before = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    sources = {source: _together(before.get(source, []), files[source]) for source in SOURCES}
    lines = [
        f'"{source}":[\n' + ",\n".join(json.dumps(each, separators=(",", ":")) for each in records) + "\n]"
        for source, records in sources.items()
    ]
    KEPT.write_text("{" + ",\n".join(lines) + "}\n")
    PAGE.write_text(page(sources["jarilab"], sources["TransformerLens"], sources["trained"], sources["backups"]))


def _together(before: Sequence[Record], path: Path | None) -> list[Record]:
    """Earlier and new records, in the order of seeds and families."""
    new = [] if path is None else [kept(record) for record in json.loads(path.read_text())]
    for record in new:
        names = record.get("names", {})
        scores = record.get("measured", {}).get("composition", {})
        judged = {pair: each for pair, each in scores.items() if "noise" not in map(names.get, pair.split())}
        if judged != scores:
            record["measured"]["composition"] = judged
    records = {(record.get("family", ""), record["seed"]): record for record in [*before, *new]}
    order = list(FAMILIES)
    return sorted(
        records.values(), key=lambda each: (each["seed"], order.index(each["family"]) if "family" in each else 0)
    )


def kept(value: Any) -> Any:
    """Measurements with three decimals, which are enough for the thresholds; an effect of three zeros is 0."""
    if isinstance(value, dict):
        return {key: kept(each) for key, each in value.items()}
    if isinstance(value, list):
        rounded = [kept(each) for each in value]
        return 0 if rounded[:3] == [0.0, 0.0, 0.0] else rounded
    return round(value, 3) + 0.0 if isinstance(value, float) else value


def page(
    records: Sequence[Record],
    others: Sequence[Record] = (),
    trained: Sequence[Record] = (),
    backups: Sequence[Record] = (),
) -> str:
    """The page: how it is measured, methods, families, and all answers that are not right."""
    items = [verdict for record in records for verdict in verdicts(record)]
    parts = [_head(records), _summary(items), _methods(items), _families(records, items), _cells(items)]
    parts += [_not_right(records, items, backups), _others(others), *([section(trained, TITLES)] if trained else [])]
    return "\n\n".join([*parts, _expected()]) + "\n"


def _head(records: Sequence[Record]) -> str:
    seeds = sorted({record["seed"] for record in records})
    hosts = Counter(record["host"] for record in records)
    return f"""# How often methods name the right heads: {len(records)} models whose circuit is known

Each model is built by hand, so it is known which heads answer and how. A seed permutes the heads, rotates the residual
stream, chooses a random basis in each head, adds noise of 2 to 10 % to all weights, and fills each layer with heads of
random weights. {len(FAMILIES)} families of circuits stand in {len(hosts)} kinds of model in float64:
{", ".join(f"{host} ({count})" for host, count in sorted(hosts.items()))}.
[`benchmarks/circuits`](../../benchmarks/circuits/__init__.py) builds and measures them.

The right answer of each method, its sign included, is written down in
[`expected.py`](../../benchmarks/circuits/expected.py), and was before the seeds shown here were run. Development runs
had led to the few corrections that are named below. The answer is often "no": zero ablation is right to find nothing in
a head that has a backup, and mean ablation in a head that writes a constant.

Development used seeds 0 to 10, and seeds 0 to 19 of {_listed(LATER)}, which came later. The
thresholds of roles, ablations, patching and contributions are those of the first run there. Five things were decided
there: the threshold of composition, that composition with heads of random weights is not judged, that such heads may
attend by content alone in rotary models, that they may do so in the models that sort, whose positions are one number,
and that no answer follows about the head that counts there together with a head of random weights. Seeds {seeds[0]} to
{seeds[-1]} are shown here. They were measured once, with one exception. After seed 107 it was seen that heads of random
weights had no width in some rotary models. The rotary models up to this seed were built and measured again.

An effect is named if its 95 % interval lies beyond the threshold and its Holm-adjusted p is below 0.05. It is "no" if
the interval lies within the threshold, and undecided otherwise. Thresholds: {THRESHOLDS["zero"]} nats a token for
ablations, {THRESHOLDS["denoising"]} of the answer for patching, {THRESHOLDS["contribution"]:g} logit (of about 10) for
contributions. A confident "no" about a head that matters is wrong, not undecided. No name of a role is undecided where
one is expected. A method that refuses a model is undecided about all its heads.

These weights are sparse and clean, unlike trained ones: a method that fails here is wrong, a method that passes may
still fail on a trained model. [Trained models](#five-trained-models-apart) stand in a table of their own."""


LATER = ("carry of a sum", "sort", "syntactic relation")
"""Families that were added after the first publication."""


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


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
    tally = Tally.of([each.outcome for each in items])
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
        tally = Tally.of([each.outcome for each in members])
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
            tally = Tally.of([each.outcome for each in of_method])
            cells.append(f"{tally.right}/{tally.count}" if of_method else "")
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _backups(records: Sequence[Record], backups: Sequence[Record]) -> str:
    """Why zero ablation of a head with a backup finds an effect in rotary models."""
    zero = {
        (each["seed"], head): np.ravel(values)[0]
        for each in records
        if each["family"] == "backup head"
        for head, values in each["measured"].get("zero", {}).items()
    }
    gap = max(abs(each["change"] - zero[each["seed"], each["head"]]) for each in backups)
    rests = sum(sum(each["rests"]) for each in backups)
    last = 2 + max(at for each in backups for at, count in enumerate(each["rests"]) if count)
    text = f"""Zero ablation of a head with a backup changes the loss of {len(backups)} rotary models by up to
    {max(each["change"] for each in backups):.3f} nats; expected was 0. The ablation is right, and the models are not as
    they were designed. If the head's output weights are set to 0 by hand, the loss changes by the same number (largest
    difference of the kept numbers {gap:.3f} nats). But the backup stays at rest for {rests} of
    {sum(each["queries"] for each in backups):,} queries, all of them among the tokens 2 to {last}. It rests at the
    start token if the output is filled. For these tokens the start token is next to the one that the backup should
    attend to, so that its rotary score is nearly the same, and the noise in the empty output decides
    ([`backups.py`](../../benchmarks/circuits/backups.py)). The expected answer was not changed."""
    return wrapped(text)


def _not_right(records: Sequence[Record], items: Sequence[Verdict], backups: Sequence[Record]) -> str:
    lines = ["## Answers that are not right", ""]
    if backups:
        lines += [_backups(records, backups), ""]
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
    unmeasured = [family for family in LATER if all(record["family"] != family for record in others)]
    missing = f", but not on {_listed(unmeasured)}" if len(unmeasured) > 1 else ""
    decoys = [record for record in others if record["family"] == "offset decoy of induction"]
    fooled = sum(
        record["measured"]["roles"][head] == "induction"
        for record in decoys
        for head, design in record["names"].items()
        if design == "decoy"
    )
    lines += [
        f"""TransformerLens ran on {len(others)} of these models, all GPT-2{missing}
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
