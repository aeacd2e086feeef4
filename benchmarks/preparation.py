"""How much memory and time does it take to prepare a text, by its size?

Files of random words, 200,000 different ones. Each is prepared by `jarilab data text --check` in a process of its own,
with byte-level BPE of 8,000 and an empty cache. Prints the largest resident memory and the CPU-seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write(path: Path, megabytes: int) -> None:
    draw = random.Random(1)
    words = ["".join(draw.choices(LETTERS, k=draw.randint(2, 12))) for _ in range(200_000)]
    with path.open("w") as file:
        while file.tell() < 1_000_000 * megabytes:
            file.writelines(" ".join(draw.choices(words, k=12)) + "\n" for _ in range(1_000))


def prepare(path: Path, cache: Path) -> resource.struct_rusage:
    words = ["data", "text", "--check", str(path), "--tokenizer", "bpe", "--vocab-size", "8000"]
    child = subprocess.Popen(
        [sys.executable, "-m", "jarilab", *words],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"expected jarilab data text to end with 0, got {os.waitstatus_to_exitcode(status)}")
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[5, 20, 100])
    given = parser.parse_args()
    print("| size of the text | largest resident memory | CPU-seconds |\n| ---: | ---: | ---: |")
    for megabytes in given.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "text.txt"
            write(text, megabytes)
            used = prepare(text, Path(folder) / "cache")
        seconds = used.ru_utime + used.ru_stime
        print(f"| {megabytes} MB | {used.ru_maxrss / 1024:.0f} MB | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
