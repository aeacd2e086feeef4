"""Measure which attention kernel is the fastest at which length on this machine, and keep that."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from jarilab.cli.arguments import Parser, Words


def arguments(parser: Parser, words: Words) -> None:
    from jarilab import api
    from jarilab.options import options_of

    parser.add_options("verb", options_of(api.tune), without=("report",))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = (
        "Runs keep the lengths that they were begun with. JARILAB_TUNED=off uses the package's."
    )


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.terminal import say, show

    if options.verb.get("forget"):
        found = api.tune(**options.verb)
        text = "nothing was kept: kernels are chosen by the package's crossing points, as before"
        if found["forgotten"] is not None:
            text = f"{found['forgotten']} is removed: kernels are chosen by the package's crossing points again"
        show(options, found, text)
        return
    threads = api.checked_threads(options.verb.get("threads"))
    say(f"measuring attention with {_threads(threads)}, for about a minute")
    with Progress() as progress:
        found = api.tune(report=progress.update, **options.verb)
    show(options, found, _text(found))


class Progress:
    """How many measurements are done: a bar on a terminal, plain lines where there is none."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        columns = (
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
        )
        self._bar = progress.Progress(*columns, console=console, transient=True)
        self._is_terminal = console.is_terminal
        self._task = self._bar.add_task("", total=None)
        self._said = time.monotonic()

    def __enter__(self) -> Progress:
        if self._is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._bar.stop()

    def update(self, done: int, count: int) -> None:
        from jarilab.training.progress import PLAIN_EVERY

        self._bar.update(self._task, completed=done, total=count)
        if not self._is_terminal and time.monotonic() - self._said >= PLAIN_EVERY:
            self._said = time.monotonic()
            print(f"{done} of {count} measured", file=sys.stderr, flush=True)


def _text(found: dict[str, Any]) -> str:
    """Times over that of the fastest kernel, and what follows."""
    from jarilab.cli.terminal import table

    kernels = list(dict.fromkeys(name for row in found["rows"] for name in row["over_best"]))
    head = ["for", "dtype", "encoding", "keys", "best", *kernels]
    rows = [_row(row, kernels) for row in found["rows"]]
    measured = {row["point"] for row in found["rows"]}
    points = [["from so many keys on", "here", "package"]]
    for name, own in found["package"].items():
        here = str(found["crossings"][name]) if name in measured else "not measured"
        points.append([name, here, str(own)])
    lines = [
        f"forward and backward with {_threads(found['threads'])}; each kernel's time over the best one's:",
        table([head, *rows]),
        "",
        table(points),
        "",
    ]
    if found["gpu"] is None:
        lines.append("no NVIDIA GPU here: only the processor was measured")
    if found["kept"] is None:
        lines.append("nothing was kept; without --dry-run kernels are chosen by these")
    else:
        lines.append(
            f"kept in {found['kept']}: kernels are chosen by these from now on, on this machine"
        )
        lines.append(
            "runs that were begun keep theirs; `jarilab tune --forget` goes back to the package's"
        )
    return "\n".join(lines)


def _row(row: dict[str, Any], kernels: list[str]) -> list[str]:
    over = [f"{row['over_best'][name]:.2f}" if name in row["over_best"] else "" for name in kernels]
    best = f"{min(row['milliseconds'].values()):.2f} ms"
    return [row["point"], row["dtype"], row["added"], str(row["keys"]), best, *over]


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''} of PyTorch"
