"""The trainings that the site looks into. Each is a command, and each goes on where it was left."""

from __future__ import annotations

import time

import counting
from places import CACHE, RUNS, jarilab

ARITHMETIC = ("arithmetic", "--examples", "500000")
COUNTING = (
    *(
        "text",
        "--train",
        "counting.txt",
        "--context-length",
        "64",
        "--n-layers",
        "2",
        "--n-heads",
        "4",
    ),
    *("--d-model", "64", "--dropout", "0", "--batch-size", "32", "--examples", "24000"),
)
TRAININGS: dict[str, tuple[str, ...]] = {
    "add-none": (*ARITHMETIC, "--encoding", "none"),
    "add-rotary": (*ARITHMETIC, "--encoding", "rotary"),
    "reverse": (
        *("reverse", "--model", "recurrent", "--score", "general", "--lengths", "1..8"),
        *("--symbols", "10", "--d-model", "64", "--examples", "60000"),
    ),
    "digits-none": ("digits", "--encoding", "none"),
    "digits-rotary2d": ("digits", "--encoding", "rotary2d"),
    "count-none": (*COUNTING, "--encoding", "none"),
    "count-sinusoidal": (*COUNTING, "--encoding", "sinusoidal"),
    "count-rotary": (*COUNTING, "--encoding", "rotary"),
    "count-alibi": (*COUNTING, "--encoding", "alibi"),
    "pronouns": ("pronouns",),
}


def make() -> None:
    """All runs, on one thread each, so that their bits do not depend on the machine's cores. Those that are there are
    taken, and one that was cut off goes on."""
    RUNS.mkdir(parents=True, exist_ok=True)
    counting.write(CACHE / "counting.txt")
    for name, words in TRAININGS.items():
        done = RUNS / name / "of_the_site"
        if done.exists():
            continue
        start = time.monotonic()
        jarilab("train", *words, "--threads", "1", "--out", f"runs/{name}")
        done.touch()
        print(f"  run {name}: {time.monotonic() - start:.0f} s", flush=True)
