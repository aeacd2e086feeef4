"""Feed every reader for some seconds, from its corpus on, by atheris; one process for each."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
MEMORY = 2048
"""Megabytes that a reader may take."""
SLOWEST = 10
"""Seconds that an input of a few kilobytes may take."""
LONGEST = 4096
"""Bytes of an input."""


def main() -> int:
    try:
        import atheris
    except ImportError:
        print("fuzzing takes atheris, which is there for Python 3.11: pip install atheris")
        return 2
    with atheris.instrument_imports(include=["jarilab"]):
        from fuzz.targets import TARGETS, feed, remove_folder
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--target", choices=list(TARGETS))
    parser.add_argument("--here", action="store_true", help="in this process: for those that are started for each")
    options = parser.parse_args()
    if not options.here:
        return _all([options.target] if options.target else list(TARGETS), options.seconds)
    target = TARGETS[options.target]
    found = tempfile.mkdtemp(prefix=f"jari-fuzz-{options.target}-")
    words = [sys.argv[0], found, str(CORPUS / options.target), f"-max_total_time={options.seconds}", "-seed=1"]
    words += [f"-rss_limit_mb={MEMORY}", f"-timeout={SLOWEST}", f"-max_len={LONGEST}", f"-artifact_prefix={found}/"]
    atheris.Setup([*words, "-print_final_stats=1", "-verbosity=1"], lambda data: feed(target, data))
    try:
        atheris.Fuzz()
    finally:
        remove_folder()
    return 0


def _all(names: list[str], seconds: int) -> int:
    failed = []
    for name in names:
        words = [sys.executable, "-m", "fuzz", "--here", "--target", name, "--seconds", str(seconds)]
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        lines = done.stderr.splitlines() + done.stdout.splitlines()
        runs = next((line.split()[-1] for line in lines if "number_of_executed_units" in line), "?")
        print(f"{name}: {runs} inputs in {seconds} s: {'clean' if not done.returncode else 'FAILED'}", flush=True)
        if done.returncode:
            failed.append(name)
            print("\n".join(lines[-25:]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
