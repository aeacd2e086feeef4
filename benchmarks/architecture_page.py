"""Write docs/results/architectures.md from the measurements of `architectures.py`, which are kept beside it.

python benchmarks/architecture_page.py MEASURED.json ...    # adds rows to architectures.json and writes the page
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results"
KEPT, PAGE = RESULTS / "architectures.json", RESULTS / "architectures.md"
FIELDS = (
    *("family", "name", "class", "expected", "counts", "maps", "gap", "own_remark", "equal", "deterministic"),
    *("missing", "partial", "not_attending", "cost", "ms", "remark", "stage", "error", "problems"),
)
LETTERS = {
    "e": "self-attention",
    "d": "causal self-attention",
    "o": "self-attention of learned queries, or of a target without a causal mask",
    "c": "cross-attention, also of learned queries",
    "n": "layers without attention, named in `tape.not_attending` where others attend",
}
TITLES = {
    "transformers": "transformers",
    "timm": "timm",
    "diffusers": "diffusers",
    "x-transformers": "x-transformers",
    "torch": "PyTorch",
}


def main() -> None:
    rows = {(row["family"], row["name"]): row for row in json.loads(KEPT.read_text())} if KEPT.exists() else {}
    for path in sys.argv[1:]:
        for row in json.loads(Path(path).read_text()):
            if "not built" not in row["problems"]:
                rows[row["family"], row["name"]] = {key: row[key] for key in FIELDS if row.get(key) not in (None, "")}
    KEPT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows.values()) + "\n]\n")
    PAGE.write_text(page(list(rows.values())))


def page(rows: list[dict[str, Any]]) -> str:
    """The page: a summary, what differs, and a table for each library."""
    parts = [_head(rows), _summary(rows), _differences(rows)]
    for family, title in TITLES.items():
        members = [row for row in rows if row["family"] == family]
        if members:
            parts.append(f"## {title}\n\n" + _table(members))
    return "\n\n".join(parts) + "\n"


def _head(rows: list[dict[str, Any]]) -> str:
    letters = "\n".join(f"- **{letter}**: {meaning}" for letter, meaning in LETTERS.items())
    return f"""# What `jarilab.record` records of {len(rows)} architectures

Each row is a small model with random weights that ran once plain and once recorded, in eval mode on a CPU.
[`benchmarks/architectures.py`](../../benchmarks/architectures.py) measures it. The expected layers are counted by hand
from the definition of the architecture
([`architecture_list.py`](../../benchmarks/architecture_list.py),
[`architecture_others.py`](../../benchmarks/architecture_others.py)).

Letters count the attention layers of one forward:

{letters}

*Gap* is the largest difference of a recorded map to the model's own map (`output_attentions` of eager attention). It is
empty if the model gives no maps of that shape. *Cost* is the time of a recorded forward over a plain one. It was
measured beside other programs, and these models are so small that Python takes most of the time: compare it with care.
With 12 layers, width 768 and 512 tokens, on one thread of a machine with other work, it is 1.06 for GPT-2 and 1.09
for BERT.

Some counts were corrected after a run, each from the definition: FSMT (no causal mask with a cache), BLIP (no
causal mask in its text), the pooling queries of AIMv2 and SigLIP, the six default layers of Reformer, and
bert2bert (its decoder needs two options)."""


def _summary(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| library | architectures | right and complete | maps | largest gap | outputs changed |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for family, title in TITLES.items():
        members = [row for row in rows if row["family"] == family]
        if not members:
            continue
        right = sum(not row["problems"] for row in members)
        maps = sum(row.get("maps", 0) for row in members)
        gaps = [row["gap"] for row in members if "gap" in row]
        largest = f"{max(gaps):.0e}" if gaps else ""
        changed = sum(row.get("deterministic", False) and not row.get("equal", True) for row in members)
        lines.append(f"| {title} | {len(members)} | {right} | {maps:,} | {largest} | {changed} |")
    costs = [row["cost"] for row in rows if "cost" in row]
    return "\n".join(lines) + (
        f"\n\nThe median cost is {statistics.median(costs):.1f} times a plain forward of these tiny models."
    )


def _differences(rows: Iterable[Mapping[str, Any]]) -> str:
    lines = ["## What is not recorded, or not as expected", "", "| architecture | what | |", "| --- | --- | --- |"]
    for row in rows:
        for group, text in row["problems"].items():
            plain = " ".join(text.split()).replace("|", "/").replace("<", "&lt;")
            lines.append(f"| {row['name']} | {group} | {plain[:240]} |")
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| architecture | expected | recorded | maps | gap | complete | cost | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: row["name"].lower()):
        gap = f"{row['gap']:.0e}" if "gap" in row else ""
        cost = f"{row['cost']:.1f}" if "cost" in row else ""
        remark = "; ".join(row[key] for key in ("remark", "own_remark") if key in row)
        complete = "yes" if not row.get("missing") and not row.get("partial") else "said what is missing"
        if row["stage"] == "record":
            complete = "says that nothing attends" if not row["problems"] else "says that nothing was recorded"
        cells = (row["name"], row["expected"], row.get("counts", ""), row.get("maps", ""), gap, complete, cost, remark)
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
