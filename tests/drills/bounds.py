"""Hostile and huge inputs, each opened in a fork with bounds on memory and time, and what came of them as a table.

    python -m drills.bounds [--seed 1], from tests/

Sounds with random headers, run folders with links, systems that refuse locks, files, sizes and processes, long inputs,
millions of lines, and files of 5 GB of which nothing is written.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from drills.families import FAMILIES, make_materials  # noqa: E402
from drills.faults import contents  # noqa: E402
from drills.measured import Bounds, Measured  # noqa: E402
from drills.processes import called, warm_up  # noqa: E402

GOOD = ("read", "refused", "trained")
TOKENS = 16_384
LINES = 10_000_000
SPARSE = 5 << 30
SOUNDS = 2_000
"""Sounds, all in one process."""
LINKED = ("checkpoints", "snapshots", "tensorboard", "metrics.jsonl", "run.json", "result.json", ".lock")
"""Names in a run that may be links."""


class Drills:
    """Runs of the drills, and the rows of their table."""

    def __init__(self, root: Path, seed: int):
        self.root, self.chance = root, random.Random(seed)
        self.rows: list[tuple[str, str]] = []
        self.bad = 0
        make_materials(root / "materials")
        warm_up()
        self.family = FAMILIES[0]
        self.train = self.family.command(root / "materials", root / "run")
        code = self.child(lambda: called(self.train, None)).code
        assert code == 0, (root / "log.txt").read_text()

    def child(self, call: Callable[[], int], **bounds: int) -> Measured:
        """A call in a fork with bounds, once it has ended."""
        return Measured.of(self.root / "log.txt", call, Bounds(**bounds))

    def note(self, outcomes: Counter[str], outcome: str, child: Measured, what: str) -> None:
        """Count an outcome, and print what was said if it must not be."""
        outcomes[outcome] += 1
        if outcome not in GOOD:
            print(f"{what}: {outcome} {child.code}: {child.said[-900:]}", file=sys.stderr)

    def row(self, what: str, outcomes: Counter[str], peak: int = 0) -> None:
        """Add what came of one drill."""
        told = ", ".join(f"{count:,} {name}" for name, count in sorted(outcomes.items()))
        memory = f"; {peak >> 20:,} MB" if peak else ""
        self.bad += sum(count for name, count in outcomes.items() if name not in GOOD)
        self.rows.append((what, told + memory))

    def sounds(self) -> None:
        """Headers and samples of .wav files with random numbers."""
        path, counts = self.root / "sound.wav", self.root / "counts"

        def read_all() -> int:
            outcomes = Counter()
            for _ in range(SOUNDS):
                path.write_bytes(self._sound())
                outcomes["refused" if read_sound(path) else "read"] += 1
            counts.write_text(json.dumps(outcomes))
            return 0

        child = self.child(read_all)
        outcomes = Counter(json.loads(counts.read_text())) if child.code == 0 else Counter({child.outcome: 1})
        self.row(f"{SOUNDS:,} sounds with random headers", outcomes, child.peak)

    def _sound(self) -> bytes:
        chance = self.chance
        numbers = (0, 1, 2, 65535, 8000, 2**31, 2**32 - 1)
        rate, channels, bits = (
            chance.choice((8000, *numbers)),
            chance.choice((1, 2, 65535, 0)),
            chance.choice((8, 16, 24, 32, 64, 7)),
        )
        body = struct.pack(
            "<HHIIHH", chance.choice((1, 3, 0xFFFE, 2)), channels, rate % 2**32, rate * channels * bits // 8 % 2**32,
            channels * bits // 8 % 2**16, bits,
        )  # fmt: skip
        data = chance.randbytes(chance.choice((0, 3, 64, 4096)))
        size = chance.choice((len(data), 2**32 - 1, 0))
        whole = (
            b"RIFF"
            + struct.pack("<I", 36 + len(data))
            + b"WAVEfmt "
            + struct.pack("<I", chance.choice((16, 16, 18, 2**31)))
        )
        return whole + body + b"data" + struct.pack("<I", size) + data

    def links(self) -> None:
        """A run whose names lead elsewhere: nothing that they lead to is written, cut or removed."""
        outcomes: Counter[str] = Counter()
        for name in LINKED:
            for verb in ("train", "verify", "predict", "runs"):
                run, victim = self.root / "linked" / "run", self.root / "victim"
                for folder in (run.parent, victim):
                    shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(self.root / "run", run)
                shutil.copytree(self.root / "run", victim)
                (run / "result.json").unlink()
                (victim / "result.json").unlink()
                path = run / name
                if path.is_dir():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
                path.symlink_to(victim / name)
                before = contents(victim)
                words = {
                    "train": self.family.command(self.root / "materials", run),
                    "verify": ["verify", str(run)],
                    "predict": ["predict", str(run), "1+2"],
                    "runs": ["runs", str(run.parent)],
                }
                child = self.child(lambda words=words[verb]: called(words, None))
                changed = contents(victim) != before
                if (verb, child.outcome, "Traceback" in child.said) == ("verify", "traceback", False):
                    child.outcome = "refused"  # it ends with 1 if a run is damaged
                self.note(
                    outcomes,
                    "changed files that a link leads to" if changed else child.outcome,
                    child,
                    f"{name} {verb}",
                )
        self.row(f"runs with one of {len(LINKED)} names as a link, by 4 verbs", outcomes)

    def systems(self) -> None:
        """Systems that refuse: locks, as some network file systems do; files, sizes and processes beyond a number."""
        outcomes: dict[str, Counter[str]] = {}
        for what, prepare in refusing_systems():
            out = self.root / "refused"
            for begun in (False, True):
                shutil.rmtree(out, ignore_errors=True)
                if begun:
                    shutil.copytree(self.root / "run", out)
                    (out / "result.json").unlink()
                words = self.family.command(self.root / "materials", out)

                def call(prepare: Callable[[], None] = prepare, words: list[str] = words) -> int:
                    prepare()
                    return called(words, None)

                child = self.child(call)
                outcome = "trained" if child.outcome == "read" else child.outcome
                self.note(outcomes.setdefault(what, Counter()), outcome, child, what)
        for what, each in outcomes.items():
            self.row(what, each)

    def long_inputs(self) -> None:
        """A forward of many tokens is recorded; a map is read for one query."""

        def record_all() -> int:
            import torch

            from jarilab import record

            attention = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
            x = torch.randn(1, TOKENS, 16)
            with torch.no_grad(), record(attention) as tape:
                attention(x, x, x, need_weights=False)
            return 0 if tape.recorded(next(iter(tape.sites))).call.q.shape[2] == TOKENS else 1

        child = self.child(record_all, seconds=120)
        self.row(f"{TOKENS:,} tokens through `record`", Counter({child.outcome: 1}), child.peak)

    def lines(self) -> None:
        """A text of many lines is counted."""
        path = self.root / "lines.txt"
        with path.open("wb") as file:
            for _ in range(LINES // 10_000):
                file.write(b"one two\n" * 10_000)

        def count() -> int:
            from jarilab.data.text import text_files

            return 0 if sum(1 for _ in text_files.lines(path)) == LINES else 1

        child = self.child(count, seconds=120)
        self.row(f"a text of {LINES:,} lines", Counter({child.outcome: 1}), child.peak)
        path.unlink()

    def sparse(self) -> None:
        """Files of 5 GB of which nothing is written, in place of data and of files of a run."""
        path, outcomes, peak = self.root / "sparse", Counter[str](), 0
        for name in ("t.txt", "t.txt.gz", "t.tsv", "p.png", "t-images-idx3-ubyte", "vocabulary.json"):
            file = path / name
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            _sparse(file)
            task = "images" if name in ("p.png", "t-images-idx3-ubyte") else "text"
            words = ["train", task, "--train", str(file), "--out", str(self.root / "of-sparse"), "--threads", "1"]
            if name == "vocabulary.json":
                words = [
                    "train",
                    "text",
                    "--train",
                    str(self.root / "materials" / "text.txt"),
                    "--tokenizer",
                    str(file),
                ]
                words += ["--out", str(self.root / "of-sparse")]
            child = self.child(lambda words=words: called(words, None))
            self.note(outcomes, child.outcome, child, name)
            peak = max(peak, child.peak)
        for name in ("run.json", "result.json", "metrics.jsonl"):
            run = self.root / "sparse-run"
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(self.root / "run", run)
            _sparse(run / name)
            child = self.child(lambda run=run: called(["predict", str(run), "1+2"], None))
            self.note(outcomes, child.outcome, child, name)
            peak = max(peak, child.peak)
        _sparse(path / "wave.wav")
        child = self.child(lambda: read_sound(path / "wave.wav"))
        self.note(outcomes, child.outcome, child, "wave.wav")
        self.row("sparse files of 5 GB, as data and in a run", outcomes, peak)


def read_sound(path: Path) -> int:
    """Exit code 0 for a sound whose samples are numbers, 2 for one that is refused."""
    from jarilab.core.errors import UserError
    from jarilab.huggingface.model_inputs import _read_wave

    try:
        samples = _read_wave(path)[1]
    except UserError:
        return 2
    assert samples.double().isfinite().all()
    return 0


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SPARSE)


def refusing_systems() -> Iterator[tuple[str, Callable[[], None]]]:
    """What a system refuses, and a function that has it refuse in this process."""

    def no_locks(number: int) -> Callable[[], None]:
        def refuse(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        return lambda: setattr(fcntl, "flock", refuse)

    def limited(kind: int, value: int) -> Callable[[], None]:
        return lambda: resource.setrlimit(kind, (value, value))

    def no_big_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    for number in (errno.ENOLCK, errno.ENOSYS, errno.EIO):
        yield f"a file system without locks ({errno.errorcode[number]})", no_locks(number)
    for count in (8, 16, 40):
        yield f"at most {count} open files", limited(resource.RLIMIT_NOFILE, count)
    yield "files of at most 4,096 bytes", no_big_files
    if os.geteuid():  # root has no such limit
        yield "no further process or thread", limited(resource.RLIMIT_NPROC, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only drills with this in their name")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="jari-bounds-"))
    drills = Drills(root, options.seed)
    for drill in (drills.sounds, drills.links, drills.systems, drills.long_inputs, drills.lines, drills.sparse):
        if options.only in drill.__name__:
            drill()
    print(
        "\n".join(["| what | outcome; most memory |", "| :--- | :--- |", *(f"| {a} | {b} |" for a, b in drills.rows)])
    )
    shutil.rmtree(root, ignore_errors=True)
    return 1 if drills.bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
