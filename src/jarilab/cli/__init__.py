"""The command line: a thin cover over `jarilab.api`.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 2 the user's mistake, 1 ours,
130 and 143 on Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from jarilab.cli.arguments import parse
from jarilab.cli.show import metrics_text, table_text
from jarilab.errors import UserError

_DECODING = ("beam", "length_penalty", "no_repeat", "shortest", "longest")
_SAMPLING = (
    "tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "stop",
    "seed",
)
_PAINTING = ("count", "out", "guidance", "rerank")
_FINDING = ("draw", "threshold")
LONGEST_LINE = 1 << 20  # bytes of a line on standard input


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    # Threads that wait for each other by spinning stand still beside a busy neighbour: a step of two threads on two
    # cores then takes ten times as long. OpenMP reads this when torch is imported, which no command has done yet.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        code = _COMMANDS[options.command](options)
        if sys.stdout is not None:  # closed by whoever called
            sys.stdout.flush()  # here, where a reader that has gone away is no fault
        return code
    except UserError as error:
        print(f"jarilab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever reads our output has had enough; nothing more can be said.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A full disk, a name that is too long, a folder that is not ours: nothing that a traceback would help with.
        where = "standard output" if error.filename is None else error.filename
        print(f"jarilab: {where}: {error.strerror or error}", file=sys.stderr)
        return 2
    except BaseException as error:
        number = getattr(error, "number", None)
        if type(error).__name__ != "Interrupted" or number is None:
            raise
        print(
            "jarilab: stopped; the checkpoint is written, and the same command goes on from it",
            file=sys.stderr,
        )
        return 128 + number


# The commands --------------------------------------------------------------------------------------------------------


def _data(options: argparse.Namespace) -> int:
    from jarilab import api

    count = api.data(options.task, options.out, options.settings)
    print(f"{count:,} lines in {options.out}")
    return 0


def _train(options: argparse.Namespace) -> int:
    from jarilab import api
    from jarilab.training.progress import TrainingProgress

    name = Path(options.out).name
    with TrainingProgress() as progress:
        chosen = _given(options, ("model", "seed", "settings", "precision", "threads", "snapshots"))
        result = api.train(
            options.task, options.out, **chosen, report=lambda row: progress.update(name, row)
        )
    _show(options, result, metrics_text(result, options.out))
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from jarilab import api

    chosen = _given(options, ("data", "threads", "trust_code"))
    metrics = api.evaluate(
        options.folder, checkpoint=options.checkpoint, **chosen, **_given(options, _DECODING)
    )
    for notice in metrics["notices"]:
        print(f"jarilab: {notice}", file=sys.stderr)
    _show(options, metrics, metrics_text(metrics, options.folder))
    return 0


def _predict(options: argparse.Namespace) -> int:
    from jarilab import api
    from jarilab.predictors.base import AT_ONCE

    api.use_threads(options.threads)
    run = api.load(options.folder, checkpoint=options.checkpoint, trust_code=options.trust_code)
    chosen = _given(options, (*_DECODING, *_SAMPLING, *_PAINTING, *_FINDING, "n_best"))
    at_once = 1 if sys.stdin.isatty() else AT_ONCE
    failed = False
    for prediction in api.predict(run, _asked(options), at_once=at_once, **chosen):
        failed |= prediction.error is not None
        for message in prediction.messages:
            print(f"jarilab: {message}", file=sys.stderr)
        if options.json:
            record = prediction.record()
            print(json.dumps(record, ensure_ascii=False), flush=at_once == 1)
            continue
        for piece in prediction.text():
            print(piece, end="", flush=True)
    return 2 if failed else 0


def _asked(options: argparse.Namespace) -> Iterable[str | UserError]:
    """What is to be answered: the words of the command line, the prompt, or lines of standard input."""
    if options.images and options.prompt is not None:
        raise UserError("give sources or --prompt, not both")
    if options.images:
        return options.images
    return [options.prompt] if options.prompt is not None else _lines(sys.stdin.buffer)


def _export(options: argparse.Namespace) -> int:
    from jarilab import export

    export.ctranslate2(options.folder, options.out, trust_code=options.trust_code)
    print(f"{options.to} model in {options.out}")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from jarilab import api

    chosen = _given(options, ("seeds", "model", "settings", "precision", "jobs", "snapshots"))
    table = api.compare(options.task, options.out, encodings=_specs(options.encodings), **chosen)
    _show(options, table, table_text(table, Path(options.out)))
    return 0


def _walk(options: argparse.Namespace) -> int:
    from jarilab import api
    from jarilab.inspect import text
    from jarilab.inspect.softmax_lens import softmax_lens

    chosen = _given(options, ("site", "head", "step", "trust_code"))
    followed = api.walk(options.folder, options.input, **chosen)
    walked = followed.walk
    record: dict[str, Any] = {"input": followed.input, "answer": followed.answer}
    headline = (
        followed.input if followed.answer is None else f"{followed.input} -> {followed.answer}"
    )
    if options.softmax:
        divisors = [divisor.as_dict() for divisor in softmax_lens(walked.call, walked.head)]
        record |= {"site": walked.site, "head": walked.head, "divisors": divisors}
        _show(options, record, text.lens_text(walked, headline))
    else:
        _show(options, record | walked.as_dict(), text.walk_text(walked, headline))
    return 0


def _explore(options: argparse.Namespace) -> int:
    from jarilab import api, explorer

    api.use_threads(options.threads)
    if options.save and not Path(options.save).parent.is_dir():  # told before the page is made
        raise UserError(f"{options.save}: its folder is not there; make it first")
    if options.save and Path(options.save).is_dir():
        raise UserError(
            f"{options.save} is a folder; expected the name of a file, such as page.html"
        )
    session = explorer.Explorer(options.folders, align=options.align, trust_code=options.trust_code)
    chosen = {"site": options.site, "head": options.head or 0}
    if options.save:
        page = explorer.page(session, options.input, **chosen)
        page.save(options.save)
        print(
            f"{options.save}: {len(page.html.encode()) / 1e6:.1f} MB, opens in any browser without a network"
        )
        return 0
    from jarilab.explorer import server

    session.look(options.input, live=True, **chosen)  # a mistake is told here and not in a browser
    listening = server.listen(options.host, options.port)
    host, port = listening.getsockname()[:2]
    print(f"http://{f'[{host}]' if ':' in host else host}:{port}/    Ctrl-C ends it", flush=True)
    server.serve(session, options.input, listening, **chosen)
    return 0


def _laws(options: argparse.Namespace) -> int:
    from jarilab.conformance import laws

    outcomes = laws(options.encoding)
    lines = [
        f"{outcome.verdict:8} {outcome.law}" + (f": {outcome.detail}" if outcome.detail else "")
        for outcome in outcomes
    ]
    counts = {
        verdict: sum(o.verdict == verdict for o in outcomes)
        for verdict in ("holds", "broken", "skipped")
    }
    lines.append(f"{counts['holds']} hold, {counts['broken']} broken, {counts['skipped']} skipped")
    _show(
        options,
        {"encoding": options.encoding, **counts, "laws": [asdict(o) for o in outcomes]},
        "\n".join(lines),
    )
    return 2 if counts["broken"] else 0


# Reading and showing -------------------------------------------------------------------------------------------------


def _given(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Those of these options that were given."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _specs(text: str) -> list[str]:
    """`none,rotary:base=500,fraction=0.5` names two encodings: a piece `key=value` belongs to the one before it."""
    specs: list[str] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        if specs and "=" in piece and ":" not in piece.partition("=")[0]:
            specs[-1] += f",{piece}"
        else:
            specs.append(piece)
    if not specs:
        raise UserError("--encodings names none; write --encodings none,sinusoidal,rotary")
    return specs


def _lines(stream: IO[bytes]) -> Iterator[str | UserError]:
    """The lines of a stream, each at most LONGEST_LINE bytes of UTF-8; for any other a UserError in its place."""
    encoding = "utf-8-sig"  # a byte order mark may stand before the first line
    while line := stream.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            length = len(line)
            while not line.endswith(b"\n") and (line := stream.readline(LONGEST_LINE)):
                length += len(line)
            yield UserError(f"{length:,} bytes are too many for a line; at most {LONGEST_LINE:,}")
            continue
        try:
            yield line.decode(encoding).removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            yield UserError(f"byte {error.start + 1} is no UTF-8; save the file as UTF-8")
        encoding = "utf-8"


def _show(options: argparse.Namespace, value: Any, text: str) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False) if options.json else text)


_COMMANDS = {
    "data": _data,
    "train": _train,
    "evaluate": _evaluate,
    "predict": _predict,
    "compare": _compare,
    "walk": _walk,
    "explore": _explore,
    "laws": _laws,
    "export": _export,
}
