"""Measure planted models and print how often each method is right.

python -m circuits --seeds 0 20 [--only FAMILY ...] [--json MEASURED.json] [--jobs 2]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .families import FAMILIES
from .methods import MEASURES, measure_model
from .scoring import RIGHT, Tally, Verdict, verdicts

Record = dict[str, Any]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 20), metavar=("FIRST", "END"))
    parser.add_argument("--only", nargs="+", choices=list(FAMILIES), default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--methods", nargs="+", choices=list(MEASURES), default=list(MEASURES), metavar="METHOD")
    parser.add_argument("--json", type=Path, help="where to keep the records")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    options = parser.parse_args(words)
    records: dict[tuple[str, int], Record] = {}
    if options.json is not None and options.json.exists():
        records = {(each["family"], each["seed"]): each for each in json.loads(options.json.read_text())}
    done = {key: record["methods"] for key, record in records.items()}
    models: list[tuple[str, int]] = [(family, seed) for seed in range(*options.seeds) for family in options.only]
    jobs: list[tuple[str, int, tuple[str, ...]]] = []
    for family, seed in models:
        missing = tuple(method for method in options.methods if method not in done.get((family, seed), ()))
        if missing:
            jobs.append((family, seed, missing))
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for record in pool.map(measure_model, jobs):
            _report(record)
            key = record["family"], record["seed"]
            records[key] = _merged(records[key], record) if key in records else record
            if options.json is not None:
                options.json.write_text("[\n" + ",\n".join(map(json.dumps, records.values())) + "\n]\n")
    _print_table(verdict for record in records.values() for verdict in verdicts(record))


def _merged(old: Record, new: Record) -> Record:
    """The record of a model with what both have measured. Raises RuntimeError for different models."""
    if old["names"] != new["names"]:
        raise RuntimeError(f"{old['family']}, seed {old['seed']}: expected the same heads; measure all methods again")
    both: Record = {key: old[key] | new[key] for key in ("measured", "errors")}
    both["methods"] = [*old["methods"], *new["methods"]]
    return old | both | {"seconds": round(old["seconds"] + new["seconds"], 1)}


def _report(record: Record) -> None:
    """A line about one model, and a line for each answer that is not right."""
    name = f"{record['family']}, {record['host']}, seed {record['seed']}"
    print(f"{name}: {record['seconds']} s, {record['draws']} draws", file=sys.stderr, flush=True)
    for method, error in record["errors"].items():
        print(f"  not measured: {method}: {error}")
    for each in verdicts(record):
        if each.outcome != RIGHT:
            print(f"  {each.outcome}: {each.method} of {each.head} ({each.design}): {each.said}, not {each.right}")
    sys.stdout.flush()


def _print_table(items: Iterable[Verdict]) -> None:
    by_method: dict[str, list[Verdict]] = {}
    for each in items:
        by_method.setdefault(each.method, []).append(each)
    for method, members in by_method.items():
        tally = Tally.of([each.outcome for each in members])
        print(f"{method:22} right {tally.right:5} wrong {tally.wrong:4} undecided {tally.undecided:4}")


if __name__ == "__main__":
    main()
