"""Draw drills until the time is over; one line for each that fails says how to repeat it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before numpy and torch are imported
    os.environ.setdefault(name, "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from drills.disks import why_no_disks  # noqa: E402
from drills.drill import Counts, Drill, Golden, make_golden  # noqa: E402
from drills.families import FAMILIES, Family, make_materials  # noqa: E402
from drills.processes import warm_up  # noqa: E402
from drills.table import FAULTS  # noqa: E402

T = TypeVar("T")

REAL = 0.05
"""The share of drills in which each process is the real command."""


def main() -> int:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="jari-chaos-", dir=options.folder))
    families = _chosen(options.family, {one.name: one for one in FAMILIES if not (options.forks and one.dear)})
    names = list(_chosen(options.fault, FAULTS))
    no_disks = why_no_disks(folder)
    if no_disks:
        names = [name for name in names if not FAULTS[name].disk]
        print(f"SKIPPED: drills on small disks, since {no_disks}", flush=True)
    make_materials(folder / "materials")
    warm_up()
    chaos = Chaos(folder, options.seed, list(families.values()), names, real=not options.forks)
    begun = time.monotonic()
    numbers = [options.only] if options.only is not None else _numbers(begun + 60 * options.minutes)
    for number in numbers:
        chaos.drill(number)
    print(chaos.summary(time.monotonic() - begun), flush=True)
    if not chaos.failures:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if chaos.failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="drills", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of one drill, as a failure names it")
    parser.add_argument("--family", default="", help="only families with this in their name")
    parser.add_argument("--fault", default="", help="only faults with this in their name")
    parser.add_argument("--forks", action="store_true", help="nothing that takes many seconds: no real command")
    parser.add_argument("--folder", help="where to work (the folder for temporary files)")
    return parser.parse_args()


def _chosen(word: str, table: dict[str, T]) -> dict[str, T]:
    chosen = {name: value for name, value in table.items() if word in name}
    if not chosen:
        sys.exit(f"none has {word!r} in its name; there are {', '.join(table)}")
    return chosen


def _numbers(end: float) -> Iterator[int]:
    number = 1
    while time.monotonic() < end:
        yield number
        number += 1


class Chaos:
    """Drills, and what came of them."""

    def __init__(self, folder: Path, seed: int, families: list[Family], faults: list[str], *, real: bool):
        self.folder, self.seed, self.real = folder, seed, real
        self.families, self.faults = families, faults
        self.counts = Counts()
        self.failures: list[str] = []
        self._goldens: dict[str, Golden] = {}

    def drill(self, number: int) -> None:
        """The drill of this number: what is drawn depends on the seed and the number alone."""
        chance = random.Random(f"{self.seed}/{number}")
        family = chance.choice(self.families)
        weights = [FAULTS[name].weight for name in self.faults]
        name = chance.choices(self.faults, weights)[0]
        own = FAULTS[name]
        real = chance.random() < REAL and self.real
        if own.real and not self.real:
            return
        folder = self.folder / f"drill-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        begun = time.monotonic()
        drill = Drill(
            family, self._golden(family), folder, self.counts, f"{self.seed}/{number}/drill", real=real or own.real
        )
        try:
            own.fault(drill)
        except Exception as error:  # whatever it is, the other drills go on
            again = f"make chaos SEED={self.seed} ONLY={number}"
            line = f"FAILED {name} | {family.name} | {again} | {folder} | {type(error).__name__}: {error}"
            self.failures.append(line)
            print(line, flush=True)
        else:
            self.counts.drills[name] += 1
            with contextlib.suppress(OSError):
                shutil.rmtree(folder)
        if os.environ.get("JARI_CHAOS_SAY"):
            print(f"{number} {name} | {family.name} | {time.monotonic() - begun:.1f} s", flush=True)

    def _golden(self, family: Family) -> Golden:
        if family.name not in self._goldens:
            place = self.folder / f"golden-{self.families.index(family)}"
            place.mkdir()
            (place / "materials").symlink_to(self.folder / "materials")
            self._goldens[family.name] = make_golden(family, place, self.counts)
        return self._goldens[family.name]

    def summary(self, seconds: float) -> str:
        counts = self.counts
        lost = counts.ended - counts.equal
        told = [
            f"{sum(counts.drills.values())} drills passed, {len(self.failures)} failed, in {seconds / 60:.1f} minutes",
            f"{counts.attempts} processes, {counts.kills} killed, {counts.hurt.total()} killed or told to end, "
            f"{counts.refused} refused with a message",
            f"{counts.ended} runs held against undisturbed ones: {counts.equal} equal bit by bit, {lost} not",
            json.dumps({"drills": counts.drills, "hurt": counts.hurt}, ensure_ascii=False),
        ]
        return "\n".join(told)


if __name__ == "__main__":
    raise SystemExit(main())
