"""Measure every head over a data set, and name what it does."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import add_shared

if TYPE_CHECKING:
    from jarilab.cli.heads_inputs import Reader
    from jarilab.data.example_files import ExampleFile
    from jarilab.inspect.study.study import Study

DEFAULT_BATCH = 16


def arguments(parser: Parser, words: Words) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="folder of a run, or one that save_pretrained wrote"
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="FILE",
        help="examples: lines of text, pairs of texts with a tab between them, a CoNLL-U file, or a folder of images "
        "or of sounds (.wav); text files may be gzipped",
    )
    parser.add_argument(
        "--limit", type=_positive, metavar="N", help="read the first N examples (default: all)"
    )
    parser.add_argument(
        "--batch",
        type=_positive,
        default=DEFAULT_BATCH,
        metavar="N",
        help=f"examples at a time (default: {DEFAULT_BATCH})",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="folder of the study; the same command continues it (default: heads-MODEL-FILE)",
    )
    parser.add_argument(
        "--measure",
        action="append",
        default=[],
        metavar="SPEC",
        help="a measure of your own to add, such as mine.py:Mine; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the rows as one JSON object")
    add_shared(parser, "threads", "trust_code")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1, got {number}")
    return number


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.commands.explore import _add_measures
    from jarilab.cli.heads_inputs import check_rows, open_reader
    from jarilab.cli.terminal import say, show
    from jarilab.data.example_files import ExampleFile
    from jarilab.training.progress import working

    api.use_threads(options.verb.pop("threads", None))
    _add_measures(options.measure)
    data = ExampleFile.of(options.data, options.limit)
    with working(f"opening {options.model}"):
        reader = open_reader(options.model, trust_code=options.verb.get("trust_code", False))
    with working(f"checking {options.data}"):
        count = check_rows(reader, data)
    study = _study(options, reader, data, count)
    with working("probing the heads with random sequences"):
        study.name_roles(reader.model, reader.probe_input(next(iter(data))))
    files = study.write()
    for file in files:
        say(f"wrote {file}")
    rows = study.rows()
    show(options, {**study.about, "heads": rows}, _text(study, rows))


def _folder(options: argparse.Namespace) -> Path:
    """The folder of the study."""
    from jarilab.core.storage.files import checked_folder

    if options.out is not None:
        return checked_folder(options.out)
    model, data = (Path(name).resolve().name for name in (options.model, options.data))
    return checked_folder(f"heads-{model}-{data.partition('.')[0]}")


def _study(options: argparse.Namespace, reader: Reader, data: ExampleFile, count: int) -> Study:
    """Run the study, or what is left of it."""
    from itertools import islice

    from jarilab.cli.heads_inputs import about, heads_of_reader
    from jarilab.cli.terminal import say
    from jarilab.inspect.study.study import Study
    from jarilab.training.progress import Counted

    facts = about(reader, data, count)
    for line in _facts_text(facts):
        say(line)
    study = Study(heads_of_reader(reader, data), _folder(options), about=facts)
    if study.examples:
        say(f"continuing after {study.examples} of {count} examples")
    left = islice(data, study.examples, None)
    with Counted(f"{facts['model']}", count, study.examples) as progress:
        for batch in reader.batches(left, options.batch):
            study.add_batch(reader.model, batch)
            progress.update(study.examples)
    return study


def _facts_text(facts: dict[str, Any]) -> list[str]:
    """What the model reads of the first example."""
    start = facts["start_token"]
    lines = [
        f"{side} tokens of {facts['first']}: {' '.join(names)}"
        for side, names in facts["tokens"].items()
    ]
    added = "no start token is added" if start is None else f"the start token {start} is added"
    return [*lines, added]


COLUMNS = ("entropy", "confidence", "previous", "duplicate", "induction", "sink")


def _text(study: Study, rows: list[dict[str, Any]]) -> str:
    """A table for the terminal: a head a line, with some of the measures."""
    from jarilab.cli.terminal import table

    names = [name for name in COLUMNS if name in rows[0]]
    lines = [["head", *names]]
    for row in rows:
        lines.append([row["head"], *(_cell(row, name) for name in names)])
    return table(lines)


def _cell(row: dict[str, Any], name: str) -> str:
    value, low, high = (row[key] for key in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        return "-"
    return f"{value:.3f}" if low is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"
