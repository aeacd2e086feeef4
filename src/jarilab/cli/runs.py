"""Runs as arguments, and the options that a run's kind of answer has."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jarilab.cli.arguments import Parser, Words, first_word, taken

if TYPE_CHECKING:
    from jarilab.core.options import Option
    from jarilab.tasks.predictors.base import Predictor

TRUST = "--trust-code"


def add_run(parser: Parser) -> None:
    """The folder of a run."""
    parser.add_argument("run", metavar="RUN", help="the folder of a run, such as runs/add")


def add_runs(parser: Parser, help: str, *, optional: bool = False) -> None:
    """Folders of runs, one at least unless they are optional."""
    parser.add_argument("runs", metavar="RUN", nargs="*" if optional else "+", help=help)
    parser.more = "runs"


def add_open(parser: Parser, what: str) -> None:
    """Whether to open what was written."""
    parser.add_argument("--open", action="store_true", help=f"open {what} in a browser")


def add_shared(parser: Parser, *names: str) -> None:
    """Options of `evaluate` that other commands have too."""
    from jarilab import api
    from jarilab.core.options import options_of

    options = options_of(api.evaluate)
    parser.add_options("verb", {name: options[name] for name in names})


def add_answer_options(parser: Parser, words: Words, kind: str, title: str) -> None:
    """The options of the run at hand, group `answer`. kind: the attribute of a predictor that holds them, `options` or
    `scoring`. Without a run among the words there are none."""
    from jarilab.core.options import options_of

    verb = parser.prog.split()[-1]
    parser.help_command = f"jarilab {verb} RUN --help"
    parser.epilog = f"`{parser.help_command}` lists what this run can do, too."
    parser.set_defaults(answer={})
    parser.answers = kind
    run = _run_among(parser, words, kind)
    if run is None:
        return
    parser.help_command = f"jarilab {verb} {run} --help"
    parser.epilog = None
    trusted = TRUST in itertools.takewhile(lambda word: word != "--", words)
    options = options_of(getattr(predictor_of(Path(run), trust_code=trusted), kind))
    parser.add_options("answer", options, title=f"{title} {run}")
    parser.beside = _beside(options)


def _beside(options: Mapping[str, Option]) -> str:
    from jarilab.cli.flags import flag_of

    named = ", ".join(map(flag_of, options))
    return f"the options of this run are {named}" if named else "this run has no such options"


def predictor_of(run: Path, *, trust_code: bool) -> type[Predictor]:
    """The kind of answer of a run, by its run.json. A Python file that it names is executed only where trust_code says
    so. Raises UserError."""
    from jarilab.runs.folder import read_experiment, read_run
    from jarilab.tasks.base import registry
    from jarilab.tasks.predictors.base import predictor_class

    where = run / "run.json"
    experiment = read_experiment(read_run(run), where).trust(str(where), trust_code)
    return predictor_class(registry.spec(experiment.task).target)


def _run_among(parser: Parser, words: Words, kind: str) -> str | None:
    """The run: the first word that no option before it takes."""
    if not words or not words[0].startswith("-"):
        return next(iter(words), None)
    return first_word(words, _taken_by_answers(kind) | taken(parser))


def _taken_by_answers(kind: str) -> dict[str, Any]:
    """How many words each option takes that a kind of answer of the package has."""
    parser = Parser("", "")
    parser.conflict_handler = "resolve"
    parser.more = "sources"
    for options in all_answer_options(kind):
        for name, option in options.items():
            parser.add_option(parser, name, name, option)
    return taken(parser)


def all_answer_options(kind: str) -> list[Mapping[str, Option]]:
    """The options of every kind of answer of the package."""
    from jarilab.core.options import options_of
    from jarilab.tasks.predictors.base import registry

    targets = [registry.spec(name).target for name in registry.names()]
    # Several kinds of answer may have the same options.
    classes = dict.fromkeys(getattr(target, kind) for target in targets)
    return [options_of(options) for options in classes]
