"""Sum what several runs of `python -m drills` and of benchmarks/serve_soak.py printed, as a table.

python -m drills.totals LOG [LOG ...], from tests/
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

FLIPS = {"flipped bit": 1, "flipped bit of a finished run": 4}
"""Bits that a drill of each kind flips."""
PASSED = re.compile(r"^(?P<passed>\d+) drills passed, (?P<failed>\d+) failed, in (?P<minutes>[\d.]+) minutes$")
ENDED = re.compile(r"^(?P<processes>\d+) processes, (?P<killed>\d+) killed,.* (?P<refused>\d+) refused with a message$")
EQUAL = re.compile(r"^(?P<held>\d+) runs held .*: (?P<equal>\d+) equal bit by bit, (?P<other>\d+) not$")


SERVED = re.compile(r"^\| [\d.]+ \| (?P<requests>[\d,]+) \| (?P<megabytes>\d+) \|", re.MULTILINE)
"""A sample of a server under load."""


def served(log: str) -> list[tuple[str, str]]:
    """The rows of a server's memory; none if the log is one of drills."""
    samples = list(SERVED.finditer(log))
    if not samples:
        return []
    middle, last = samples[len(samples) // 2], samples[-1]
    memory = f"{middle['megabytes']} MB after {middle['requests']}, {last['megabytes']} MB after {last['requests']}"
    return [
        ("requests to one `jarilab serve`", last["requests"]),
        ("its memory after half of the time, at the end", memory),
    ]


def totals(logs: list[str]) -> list[tuple[str, str]]:
    """The rows of the table. logs: what runs printed."""
    sums: Counter[str] = Counter()
    drills: Counter[str] = Counter()
    hurt: Counter[str] = Counter()
    for line in "\n".join(logs).splitlines():
        for pattern in (PASSED, ENDED, EQUAL):
            if found := pattern.match(line):
                sums.update({name: float(value) for name, value in found.groupdict().items()})  # type: ignore[arg-type]
        sums["runs"] += PASSED.match(line) is not None
        if line.startswith('{"drills"'):
            counts = json.loads(line)
            drills.update(counts["drills"])
            hurt.update(counts["hurt"])
    of_ranks = sum(count for family, count in hurt.items() if family.startswith("two ranks"))
    flips = sum(count * drills[name] for name, count in FLIPS.items())
    return [
        ("calls of `python -m drills`; minutes", f"{sums['runs']:,.0f}; {sums['minutes']:,.0f}"),
        ("drills that passed; that failed", f"{sums['passed']:,.0f}; {sums['failed']:,.0f}"),
        ("processes; refused with a message", f"{sums['processes']:,.0f}; {sums['refused']:,.0f}"),
        ("kills", f"{sums['killed']:,.0f}"),
        ("kills and signals to runs of two ranks", f"{of_ranks:,}"),
        ("flipped bits", f"{flips:,}"),
        ("full disks", f"{drills['full disk']:,}"),
        (
            "runs brought to their end; equal to the undisturbed one, bit by bit",
            f"{sums['held']:,.0f}; {sums['equal']:,.0f}",
        ),
        ("lost, or silently another result", f"{sums['other']:,.0f}"),
    ]


def main() -> int:
    logs = [Path(name).read_text() for name in sys.argv[1:]]
    rows = [*totals(logs), *(row for log in logs for row in served(log))]
    print("\n".join(["| what | figure |", "| :--- | ---: |", *(f"| {what} | {figure} |" for what, figure in rows)]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
