"""Measure every head over a data set, and name what it does."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jarilab.cli.arguments import Parser, Words
from jarilab.cli.run_arguments import add_measures, add_memory_limit, add_shared, limit_memory
from jarilab.core.errors import UserError, import_optional, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from jarilab.cli.heads_inputs import Reader
    from jarilab.data.example_files import ExampleFile
    from jarilab.inspect.study.study import Study

DEFAULT_BATCH = 8
DEFAULT_IMPORTANCE_EXAMPLES = 24


def arguments(parser: Parser, words: Words) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="folder of a run, or of a Hugging Face model"
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="FILE",
        help="examples: a file with one text a line, or two with a tab between them, or in CoNLL-U, also gzipped; or a "
        "folder of images or sounds (.wav)",
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
        "--figure",
        metavar="FILE",
        help="also draw the role of every head for a paper, into a file that ends in .pdf, .svg or .png",
    )
    parser.add_argument(
        "--measure",
        action="append",
        default=[],
        metavar="SPEC",
        help="a measure of your own to add, such as mine.py:Mine; may be repeated",
    )
    _add_further(parser)
    _add_importance(parser)
    parser.add_argument("--json", action="store_true", help="print the rows as one JSON object")
    add_memory_limit(parser)
    add_shared(parser, "threads", "trust_code")


def _add_further(parser: Parser) -> None:
    """Add the options of further tables."""
    parser.add_argument(
        "--gold",
        metavar="FILE",
        help="file of links between words, in Pharaoh format or as a .tsv of example, query and key. A CoNLL-U file "
        "has its own links",
    )
    parser.add_argument(
        "--mean-maps",
        action="store_true",
        help="also write the mean map of each head, aligned from the left, from the right and by offset",
    )
    parser.add_argument(
        "--against",
        metavar="MODEL2",
        help="folder of a second model with the same tokenizer: match each head with one of its heads, and list those "
        "that changed",
    )


def _add_importance(parser: Parser) -> None:
    """Add the options of ablations."""
    group = parser.add_argument_group("importance of heads")
    group.add_argument(
        "--importance",
        metavar="KINDS",
        help="also ablate each head, and measure the effect: zero, mean, mean by position or resample; separate "
        "several with commas",
    )
    group.add_argument(
        "--importance-examples",
        type=_positive,
        default=DEFAULT_IMPORTANCE_EXAMPLES,
        metavar="N",
        help=f"ablate on the first N examples (default: {DEFAULT_IMPORTANCE_EXAMPLES})",
    )
    group.add_argument(
        "--importance-by",
        choices=("loss", "embedding"),
        default="loss",
        help="what an ablation changes: the loss in nats a token, or the pooled embedding of an encoder without a loss "
        "(default: loss)",
    )


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return number


def run(options: argparse.Namespace) -> None:
    from jarilab import api
    from jarilab.cli.heads_inputs import check_rows, open_reader
    from jarilab.cli.terminal import say, show
    from jarilab.data.example_files import ExampleFile
    from jarilab.inspect.study.study import check_folder
    from jarilab.training.progress import working

    api.use_threads(options.verb.pop("threads", None))
    limit_memory(options)
    add_measures(options.measure)
    folder = _folder(options)
    check_folder(folder)
    if options.figure:
        _check_figure(Path(options.figure))
    data = ExampleFile.of(options.data, options.limit, options.gold)
    with working(f"opening {options.model}"):
        reader = open_reader(options.model, trust_code=options.verb.get("trust_code", False))
    with working(f"checking {options.data}"):
        count = check_rows(reader, data)
    study = _study(options, reader, data, count, folder)
    importance = None if options.importance is None else _importance(options, reader, data, folder)
    comparison = None if options.against is None else _comparison(options, reader, data, folder)
    _add_examples(options, study, reader, data)
    with working("probing the heads with random sequences"):
        probes = reader.probe_input(next(iter(data)))
        study.name_roles(reader.model, probes)
    if probes is not None and probes.shortage is not None:
        say(probes.shortage)
    tables = {} if importance is None else importance()
    tables |= {} if comparison is None else comparison(count)
    for name, table in tables.items():
        study.add_table(name, table)
    other = "" if options.out else "; --out names another folder"
    say(f"{_files_text(study.write())}{other}")
    if options.figure:
        study.figure().save(options.figure)
        say(f"wrote {options.figure}")
    if study.all_rows().get("gold_links") == []:
        say(f"no table gold_links: {NO_LINKS}, got {study.examples} examples; read more")
    rows = study.rows()
    show(options, {**study.about, "heads": rows}, _text(study, rows))


def _check_figure(file: Path) -> None:
    """Raises UserError, before the work, if a figure cannot be written to this file."""
    from jarilab.cli.terminal import check_file
    from jarilab.inspect.figures.figure import FORMATS

    check_file(file)
    import_optional("matplotlib", "figures")
    if file.suffix.lower() not in FORMATS:
        raise UserError(
            f"--figure: expected a file that ends in {', '.join(FORMATS)}, got {file}; name it such as heads.pdf"
        )


def _folder(options: argparse.Namespace) -> Path:
    from jarilab.core.storage.files import checked_folder

    if options.out is not None:
        return checked_folder(options.out)
    model, data = (Path(name).resolve().name for name in (options.model, options.data))
    return checked_folder(f"heads-{model}-{data.partition('.')[0]}")


def _study(
    options: argparse.Namespace, reader: Reader, data: ExampleFile, count: int, folder: Path
) -> Study:
    """The study in its folder, checked but not yet continued."""
    from jarilab.cli.heads_inputs import about, heads_of_reader, statistics_of
    from jarilab.cli.terminal import say
    from jarilab.inspect.study.study import Study

    facts = about(reader, data, count)
    for line in _facts_text(facts):
        say(line)
    heads = heads_of_reader(reader, data)
    statistics = statistics_of(heads, data, mean_maps=options.mean_maps)
    return Study(heads, folder, accumulators=statistics, about=facts)


def _add_examples(
    options: argparse.Namespace, study: Study, reader: Reader, data: ExampleFile
) -> None:
    """Run the study, or what is left of it."""
    from itertools import islice

    from jarilab.cli.terminal import say
    from jarilab.training.progress import CountProgress

    count = study.about["examples"]
    if study.examples:
        say(f"continuing after {study.examples} of {count} examples")
    left = islice(data, study.examples, None)
    with CountProgress(study.about["model"], count, study.examples) as progress:
        for batch in reader.batches(left, options.batch):
            study.add_batch(reader.model, batch)
            progress.update(study.examples)


def _comparison(
    options: argparse.Namespace, reader: Reader, data: ExampleFile, folder: Path
) -> Callable[[int], dict[str, list[dict[str, Any]]]]:
    """The table of `--against`, checked but not yet computed: a function of the number of examples.

    Raises UserError if the other model cannot read the data or has other layers or tokens.
    """
    from itertools import islice

    from jarilab.cli.heads_inputs import check_rows, first_batch, identity_of, open_reader
    from jarilab.inspect.study.against import Against, compare_heads
    from jarilab.inspect.study.progress_file import ProgressFile
    from jarilab.training.progress import CountProgress, working

    with working(f"opening {options.against}"):
        other = open_reader(options.against, trust_code=options.verb.get("trust_code", False))
    with working(f"checking {options.data}"):
        check_rows(other, data)
        pair = first_batch(reader, data), first_batch(other, data)
        first = compare_heads((reader.model, other.model), [pair])
    identity = {**identity_of(reader, data), "against": other.about()}
    file = ProgressFile(folder / "against.safetensors", identity)
    against = Against(*(model.heads for model in first.models))
    if file.arrays:
        against.load(file.arrays)

    def tables(count: int) -> dict[str, list[dict[str, Any]]]:
        start = against.examples
        batches = zip(
            reader.batches(islice(data, start, None), options.batch),
            other.batches(islice(data, start, None), options.batch),
            strict=True,
        )
        name = f"comparison with {options.against}"
        with CountProgress(name, count, against.examples) as progress:
            models = reader.model, other.model
            compare_heads(models, batches, progress.update, against=against, progress=file)
        return {against.name: against.rows()}

    return tables


def _facts_text(facts: dict[str, Any]) -> list[str]:
    """What the model reads of the first example."""
    start = facts["start_token"]
    lines = []
    for side, names in facts["tokens"].items():
        cut = [*names[:MAX_TOKENS], *([f"... ({len(names)})"] if len(names) > MAX_TOKENS else [])]
        lines.append(f"{side} tokens of {facts['first']}: {' '.join(cut)}")
    if facts["kind"] in ("image", "sound"):
        return lines
    lines.append(f"{'no start token' if start is None else f'the start token {start}'} is added")
    if facts["unread"] is not None:
        model, kind = facts["model"], facts["unread"]
        lines.append(f"no {kind} was read: {model} reads {kind}s too, and this is text alone")
    return lines


def _importance(
    options: argparse.Namespace, reader: Reader, data: ExampleFile, folder: Path
) -> Callable[[], dict[str, list[dict[str, Any]]]]:
    """The tables of `--importance`, checked but not yet computed. Raises UserError for an unknown kind."""
    from jarilab.cli.heads_inputs import importance_of
    from jarilab.core.errors import unknown
    from jarilab.inspect.study.importance import KINDS
    from jarilab.training.progress import CountProgress

    by_name: dict[str, Any] = {kind.replace("_", " "): kind for kind in KINDS}
    names = [name.strip().replace("_", " ") for name in options.importance.split(",")]
    for name in names:
        if name not in by_name:
            raise unknown("kind of ablation", name, by_name)
    progress = CountProgress("ablations", 1, unit="batches")

    def report(done: int, total: int) -> None:
        progress.total = total
        progress.update(done)

    by_embedding = options.importance_by == "embedding"
    importance = importance_of(
        reader,
        data,
        options.importance_examples,
        options.batch,
        by_embedding=by_embedding,
        report=report,
        file=folder / "importance.safetensors",
    )

    def tables() -> dict[str, list[dict[str, Any]]]:
        asked: list[Any] = [by_name[name] for name in names]
        kinds: list[Any] = list(dict.fromkeys([*importance.finished_kinds, *asked]))
        with progress:
            rows = importance.rows(kinds)
            pairs = [row for kind in kinds for row in importance.pair_rows(rows, kind)]
        return {"importance": rows, "importance_pairs": pairs}

    return tables


MAX_TOKENS = 40
"""Tokens of the first example that the terminal shows."""
MAX_ROWS = 40
"""Heads with a role that the terminal shows."""
MAX_OTHERS = 5
"""Heads without a role that it shows."""
MAX_LINKS = 16
"""Relations that it shows."""
NO_LINKS = "expected a relation with links in two examples, one that chooses its head and one that reports it"
MAX_ABLATIONS = 10
"""Heads of each kind of ablation that it shows."""


def _files_text(files: list[Path]) -> str:
    """The written tables in one line."""
    tables = ", ".join(dict.fromkeys(file.stem for file in files))
    endings = ", ".join(dict.fromkeys(file.suffix for file in files))
    return f"wrote {tables} ({endings}) to {files[0].parent}"


def _text(study: Study, rows: list[dict[str, Any]]) -> str:
    """A table for the terminal: the heads with a role, then others with the highest scores."""
    from jarilab.cli.terminal import table
    from jarilab.inspect.study.role_sums import MIN_EXAMPLES
    from jarilab.inspect.study.roles import NO_PATTERN, NOT_TESTABLE

    header = ["head", "role", "score [95 %]", "on data", "margin over rival [low]", "queries"]
    order = sorted(rows, key=lambda row: (row["role_low"] is None, -(row["role_low"] or 0)))
    named = [row for row in order if row["role"] not in (NO_PATTERN, NOT_TESTABLE)]
    others = [row for row in order if row["role"] in (NO_PATTERN, NOT_TESTABLE)]
    shown = [_line(row) for row in named[:MAX_ROWS] + others[:MAX_OTHERS]]
    lines = [f"{len(named)} of {len(rows)} heads have a role", table([header, *shown])]
    lines += _rest_text(len(rows), len(shown), "heads", "heads")
    if study.examples < MIN_EXAMPLES:
        got = study.examples
        lines.append(
            f"roles that are scored on your data need {MIN_EXAMPLES} examples, got {got}; add some"
        )
    lines += _links_text(study, table) + _importance_text(study, table)
    return "\n".join(lines + _against_text(study, table))


def _rest_text(count: int, shown: int, what: str, name: str) -> list[str]:
    """Where the rows are that are not shown."""
    return [f"{count - shown} more {what} are in {name}.csv"] if count > shown else []


def _line(row: dict[str, Any]) -> list[str]:
    role = row["role"]
    if row["role_partial"]:
        role += f" ({row['role_partial']})"
    elif row["role_candidate"] and row["role_candidate"] != role:
        role += f" (closest: {row['role_candidate']})"
    score = _number(row["role_score"])
    if row["role_low"] is not None:
        score += f" [{row['role_low']:.2f}, {row['role_high']:.2f}]"
    margin = "-"
    if row["role_rival"] is not None:
        margin = f"{row['role_margin']:.2f} over {row['role_rival']} [{row['role_margin_low']:.2f}]"
    queries = "-" if row["role_queries"] is None else f"{row['role_queries']:,}"
    return [row["head"], role, score, _number(row["role_data_score"]), margin, queries]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _links_text(study: Study, table: Any) -> list[str]:
    """The gold links, if the data have some."""
    links = study.all_rows().get("gold_links", [])
    if not links:
        return []
    header = ["relation", "direction", "head", "found [95 %]", "best offset", "words"]
    lines = [header]
    for row in links[:MAX_LINKS]:
        share = f"{row['accuracy']:.1%} [{row['accuracy_low']:.1%}, {row['accuracy_high']:.1%}]"
        baseline = f"{row['baseline']:.1%} ({row['baseline_offset']:+d})"
        names = [printable(row["relation"]), printable(row["direction"]), row["head"]]
        lines.append([*names, share, baseline, f"{row['count']:,}"])
    return ["", table(lines), *_rest_text(len(links), len(lines) - 1, "relations", "gold_links")]


def _importance_text(study: Study, table: Any) -> list[str]:
    """The heads whose ablation changes most, by kind of ablation, if some were ablated."""
    rows = study.tables.get("importance", [])
    lines = [["ablation", "head", "change [95 %]", "direct", "unit", "examples"]]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        tested = [row for row in rows if row["kind"] == kind and row["total"] is not None]
        for row in sorted(tested, key=lambda row: row["rank"])[:MAX_ABLATIONS]:
            change = f"{row['total']:+.4f} [{row['total_low']:+.4f}, {row['total_high']:+.4f}]"
            direct = "-" if row["direct"] is None else f"{row['direct']:+.4f}"
            cells = (kind.replace("_", " "), row["head"], change, direct, row["unit"])
            lines.append([*cells, str(row["examples"])])
    if len(lines) == 1:
        return []
    return ["", table(lines), *_rest_text(len(rows), len(lines) - 1, "rows", "importance")]


def _against_text(study: Study, table: Any) -> list[str]:
    """The heads that differ most from those of the other model, if there is one."""
    rows = [row for row in study.tables.get("against", []) if row["match"] is not None]
    if not rows:
        return []
    changed = [row for row in rows if row["has_moved"]]
    summary = f"{len(changed)} of {len(rows)} heads moved by more than the noise of the data"
    lines = [["head", "in MODEL2", "distance [95 %]", "noise", "moved by"]]
    for row in sorted(changed, key=lambda row: -row["moved"])[:MAX_ROWS]:
        interval = f"{row['distance']:.3f} [{row['distance_low']:.3f}, {row['distance_high']:.3f}]"
        noise, moved = f"{row['noise']:.3f}", f"{row['moved']:+.3f}"
        lines.append([row["head"], row["match"], interval, noise, moved])
    more = _rest_text(len(rows), len(lines) - 1, "heads", "against")
    return ["", summary, *([table(lines)] if changed else []), *more]
