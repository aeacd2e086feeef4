"""How long does a person wait for nothing? Wall time of `import jarilab` and `jarilab --help`, beside an empty Python.

Each is a process of its own, started in turns. Targets: 0.3 s to import, 0.5 s for the help.

Measured 2026-11-20 on a busy machine: an empty Python 0.02 s, import jarilab 0.05, jarilab --help 0.07 to 0.13, and
import torch, which most commands need, 1.4 to 3.8.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import timing

COMMANDS = {
    "python -c pass": ([sys.executable, "-c", "pass"], ""),
    "import jarilab": ([sys.executable, "-c", "import jarilab"], 0.3),
    "jarilab --help": ([sys.executable, "-m", "jarilab", "--help"], 0.5),
    "import torch": ([sys.executable, "-c", "import torch"], ""),
}


def runner(command: list[str]) -> Callable[[], object]:
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    given = timing.arguments(__doc__, rounds=7).parse_args()
    table = timing.Table(given.json)
    contenders = {name: runner(command) for name, (command, _) in COMMANDS.items()}
    times = timing.measure(contenders, given.rounds, seconds=0.0, clock=time.perf_counter)
    for name, (_, target) in COMMANDS.items():
        table.add(
            command=name,
            seconds=timing.Spread.of(times[name]),
            fastest=round(min(times[name]), 3),
            above_python=round(statistics.median(times[name]) - statistics.median(times["python -c pass"]), 3),
            target=target,
        )
    table.close()


if __name__ == "__main__":
    main()
