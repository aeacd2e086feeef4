"""The command line: a thin cover over `jari.verbs`.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 2 the user's mistake, 1 ours,
130 and 143 on Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from jari._version import __version__
from jari.errors import UserError, unknown

LONGEST_LINE = 1 << 20  # bytes of a line on standard input


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    try:
        options = _parser().parse_args(arguments)
        code = options.run(options)
        sys.stdout.flush()  # here, where a reader that has gone away is no fault
        return code
    except UserError as error:
        print(f"jari: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever reads our output has had enough; nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BaseException as error:
        number = getattr(error, "number", None)
        if type(error).__name__ != "Interrupted" or number is None:
            raise
        print("jari: stopped; the checkpoint is written, and the same command goes on from it", file=sys.stderr)
        return 128 + number


class _Parser(argparse.ArgumentParser):
    """Names the nearest command for a misspelt one, in one line."""

    def error(self, message: str) -> Any:
        match = re.search(r"argument (?:COMMAND|command): invalid choice: '(.*?)'", message)
        if match:
            raise unknown("command", match[1], COMMANDS)
        raise UserError(f"{message}; `{self.prog} --help` shows what there is")


COMMANDS = ("data", "train", "evaluate", "predict", "compare", "walk", "laws")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="jari", description="Train attention models, choose how they know order, and see what they attend to."
    )
    parser.add_argument("--version", action="version", version=f"jari {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")

    command = commands.add_parser("data", help="write a task's examples to a file")
    _task(command)
    command.add_argument("--out", metavar="FILE", help="the file to write")
    command.set_defaults(run=_data)

    command = commands.add_parser("train", help="train a model into a folder, or go on with it")
    _task(command)
    command.add_argument("--encoding", metavar="SPEC", help="how the model knows order, such as rotary:base=500")
    command.add_argument("--out", metavar="RUN", help="the folder of the run")
    command.add_argument("--seed", type=int, default=1, help="decides initial values, data order and dropout (1)")
    _precision(command)
    _threads(command)
    _json(command)
    command.set_defaults(run=_train)

    command = commands.add_parser("evaluate", help="measure a run on all held-out data, by free generation")
    _run(command)
    _threads(command)
    _json(command)
    command.set_defaults(run=_evaluate)

    command = commands.add_parser("predict", help="answer each line of standard input")
    _run(command)
    _json(command, "one JSON object a line, with the probability of every token")
    command.set_defaults(run=_predict)

    command = commands.add_parser("compare", help="train the same model under several encodings, and compare")
    _task(command)
    command.add_argument("--encodings", metavar="SPEC,SPEC,...", help="such as none,sinusoidal,rotary")
    command.add_argument("--seeds", type=int, default=1, help="how many seeds for each, paired (1)")
    command.add_argument("--out", metavar="FOLDER", help="where runs, table.json and report.html go")
    command.add_argument("--jobs", type=int, help="trials at once, one thread each (as many as keep all cores busy)")
    _precision(command)
    _json(command)
    command.set_defaults(run=_compare)

    command = commands.add_parser("walk", help="follow one head of an attention, matrix by matrix")
    _run(command)
    command.add_argument("--input", required=True, help="such as 12+1")
    command.add_argument(
        "--site", default="encoder.0", help="encoder.0, decoder.1.self, decoder.1.cross, ... (encoder.0)"
    )
    command.add_argument("--head", type=int, default=0, help="0, 1, ... (0)")
    command.add_argument(
        "--softmax", action="store_true", help="what becomes of the softmax if scores are not divided by sqrt(d_k)"
    )
    _json(command)
    command.set_defaults(run=_walk)

    command = commands.add_parser("laws", help="check an encoding against the laws every encoding must keep")
    command.add_argument("encoding", metavar="SPEC", help="such as rotary or my_encoding.py:Mine")
    _json(command)
    command.set_defaults(run=_laws)
    return parser


def _task(command: argparse.ArgumentParser) -> None:
    command.add_argument("task", help="such as arithmetic, arithmetic:maximum=99 or my_task.py:Mine")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="an option of the task, the model or the training, such as model.width=128; "
        "`jari train TASK --set help` lists them with their defaults",
    )


def _run(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="RUN", help="the folder of a run")
    command.add_argument(
        "--trust-code", action="store_true", help="execute the Python file that the run's encoding or task names"
    )


def _precision(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--precision",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="bfloat16 where the machine really has it and the model gains by it (auto)",
    )


def _threads(command: argparse.ArgumentParser) -> None:
    command.add_argument("--threads", type=int, help="of PyTorch; all cores by default. Bits depend on it")


def _json(command: argparse.ArgumentParser, what: str = "one JSON object on standard output") -> None:
    command.add_argument("--json", action="store_true", help=what)


# The commands --------------------------------------------------------------------------------------------------------


def _data(options: argparse.Namespace) -> int:
    from jari import verbs

    if _listed(options):
        return 0
    _needed(options, "out")
    count = verbs.data(options.task, options.out, _settings(options.settings))
    print(f"{count:,} lines in {options.out}")
    return 0


def _train(options: argparse.Namespace) -> int:
    from jari import verbs
    from jari.progress import TrainingProgress

    if _listed(options):
        return 0
    _needed(options, "out")
    name = Path(options.out).name
    with TrainingProgress() as progress:
        result = verbs.train(
            options.task,
            options.out,
            encoding=options.encoding,
            seed=options.seed,
            settings=_settings(options.settings),
            precision=options.precision,
            threads=_at_least_one("--threads", options.threads),
            report=lambda row: progress.update(name, row),
        )
    _show(options, result, _metrics_text(result, options.out))
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from jari import verbs

    threads = _at_least_one("--threads", options.threads)
    metrics = verbs.evaluate(options.folder, threads=threads, trust_code=options.trust_code)
    _show(options, metrics, _metrics_text(metrics, options.folder))
    return 0


def _predict(options: argparse.Namespace) -> int:
    from jari import verbs

    loaded = verbs.load(options.folder, trust_code=options.trust_code)
    at_once = 1 if sys.stdin.isatty() else verbs.AT_ONCE
    failed = 0
    for answer in verbs.predict(loaded, _lines(sys.stdin.buffer), at_once=at_once):
        if answer.error is not None:
            failed += 1
            print(f"jari: line {answer.line}: {answer.error}", file=sys.stderr)
        if options.json:
            record = asdict(answer)
            record["tokens"] = [{"token": token, "probability": probability} for token, probability in answer.tokens]
            print(json.dumps(record, ensure_ascii=False), flush=at_once == 1)
        else:
            # A line that cannot be answered is an empty line, so that answers stay beside their questions.
            print(answer.answer or "", flush=at_once == 1)
    return 2 if failed else 0


def _compare(options: argparse.Namespace) -> int:
    from jari import verbs

    if _listed(options):
        return 0
    _needed(options, "encodings", "out")
    table = verbs.compare(
        options.task,
        options.out,
        encodings=_specs(options.encodings),
        seeds=options.seeds,
        settings=_settings(options.settings),
        precision=options.precision,
        jobs=_at_least_one("--jobs", options.jobs),
    )
    _show(options, table, _table_text(table, Path(options.out)))
    return 0


def _walk(options: argparse.Namespace) -> int:
    from jari import verbs
    from jari.inspect import text
    from jari.inspect.walk import softmax_lens

    followed = verbs.walk(
        options.folder, options.input, site=options.site, head=options.head, trust_code=options.trust_code
    )
    walked = followed.walk
    record: dict[str, Any] = {"input": followed.input, "answer": followed.answer}
    headline = f"{followed.input} -> {followed.answer}"
    if options.softmax:
        divisors = [divisor.as_dict() for divisor in softmax_lens(walked.call, walked.head)]
        record |= {"site": walked.site, "head": walked.head, "divisors": divisors}
        _show(options, record, text.lens_text(walked, headline))
    else:
        _show(options, record | walked.as_dict(), text.walk_text(walked, headline))
    return 0


def _laws(options: argparse.Namespace) -> int:
    from jari.conformance import laws

    outcomes = laws(options.encoding)
    lines = [
        f"{outcome.verdict:8} {outcome.law}" + (f": {outcome.detail}" if outcome.detail else "") for outcome in outcomes
    ]
    counts = {verdict: sum(o.verdict == verdict for o in outcomes) for verdict in ("holds", "broken", "skipped")}
    lines.append(f"{counts['holds']} hold, {counts['broken']} broken, {counts['skipped']} skipped")
    _show(options, {"encoding": options.encoding, **counts, "laws": [asdict(o) for o in outcomes]}, "\n".join(lines))
    return 2 if counts["broken"] else 0


# Reading and showing -------------------------------------------------------------------------------------------------


def _settings(pairs: Iterable[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set expects KEY=VALUE, got {pair!r}; write --set {pair}=VALUE")
        settings[key] = value
    return settings


def _listed(options: argparse.Namespace) -> bool:
    """Answer `--set help`."""
    if "help" not in options.settings:
        return False
    from jari.training.experiment import settings_of

    for key, default in settings_of(options.task).items():
        print(f"{key}={default}")
    return True


def _needed(options: argparse.Namespace, *names: str) -> None:
    """Refuse a command without these: argparse cannot, as `--set help` does without them."""
    missing = [f"--{name}" for name in names if getattr(options, name) is None]
    if missing:
        raise UserError(f"{' and '.join(missing)} missing; `jari {options.command} --help` shows what there is")


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


def _at_least_one(name: str, number: int | None) -> int | None:
    if number is not None and number < 1:
        raise UserError(f"{name} must be 1 or more, got {number}")
    return number


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


def _metrics_text(metrics: dict[str, Any], folder: str) -> str:
    lines = [f"{folder}: {metrics['encoding']}, {int(metrics['examples']):,} held-out examples"]
    ceiling = metrics.get("ceiling") or {}
    for key, value in metrics.items():
        if key == "exact_match" or key.startswith("exact_match_"):
            group = key.removeprefix("exact_match").removeprefix("_") or "all"
            beside = f"   (without positions at most {ceiling[group]:.2%})" if group in ceiling else ""
            lines.append(f"  exact match {group:>4}  {value:8.3%}{beside}")
    if "best" in metrics and metrics["best"]["step"] != metrics["steps"]:
        lines.append(f"  best on the way  {metrics['best']['exact_match']:8.3%} at step {metrics['best']['step']}")
    if "cpu_seconds" in metrics:
        lines.append(
            f"  trained on {metrics['trained_examples']:,} examples in {metrics['cpu_seconds']:.0f} CPU-seconds"
        )
    return "\n".join(lines)


def _table_text(table: dict[str, Any], out: Path) -> str:
    width = max(8, *(len(row["encoding"]) for row in table["encodings"]))
    groups = list(table["encodings"][0]["groups"])
    head = "".join(f"{group:>9}" for group in groups)
    lines = [
        table["describe"],
        "",
        f"{'encoding':<{width}}  exact match   95 % interval    {head}   parameters  s/step",
    ]
    for row in table["encodings"]:
        per_group = "".join(f"{row['groups'][group]:9.2%}" for group in groups)
        lines.append(
            f"{row['encoding']:<{width}}     {row['mean']:8.3%}   {row['low']:7.2%} - {row['high']:7.2%} {per_group}"
            f"   {row['parameters']:10,}  {row['seconds_per_step']:.4f}"
        )
    if table["ceiling"]:
        per_group = "".join(f"{table['ceiling'][group]:9.2%}" for group in groups)
        ceiling = f"{table['ceiling']['all']:8.3%}"
        lines.append(f"{'ceiling':<{width}}     {ceiling}   {'':17} {per_group}   of any model without positions")
    lines.append("")
    for row in table["differences"]:
        ends = "" if row["low"] is None else f" ({row['low']:+.2%} to {row['high']:+.2%})"
        lines.append(f"{row['first']} - {row['second']}: {row['difference']:+.2%}{ends}: {row['verdict']}")
    lines.append(f"interval: {table['encodings'][0]['interval']}")
    lines.append(f"report: {out / 'report.html'}")
    return "\n".join(lines)
