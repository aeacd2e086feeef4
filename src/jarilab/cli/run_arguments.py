"""Arguments that name runs, and the options that depend on what a run can answer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jarilab.cli.arguments import Parser, Words, first_positional, flag_of, nargs_of

if TYPE_CHECKING:
    from jarilab.core.options import Option
    from jarilab.tasks.predictors.base import Predictor

TRUST = "--trust-code"


def add_run(parser: Parser) -> None:
    """Add the folder of a run."""
    parser.add_argument("run", metavar="RUN", help="folder of a run, such as runs/add")


def add_runs(parser: Parser, help: str, *, optional: bool = False) -> None:
    """Add the folders of one run or more. optional: allow none."""
    parser.add_argument("runs", metavar="RUN", nargs="*" if optional else "+", help=help)
    parser.more = "runs"


def add_open(parser: Parser, page: str) -> None:
    """Add `--open`, which opens the written page."""
    parser.add_argument("--open", action="store_true", help=f"open {page} in a browser")


def add_listening(parser: Parser) -> None:
    """Add the address and port of a server."""
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, local only)"
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="port; 0 takes a free one (default: 8000)"
    )


def add_shared(parser: Parser, *names: str) -> None:
    """Add options of `jarilab.evaluate` that other verbs have too."""
    from jarilab import api
    from jarilab.core.options import options_of

    options = options_of(api.evaluate)
    parser.add_options("verb", {name: options[name] for name in names})


def add_memory_limit(parser: Any) -> None:
    """Add `--limit-memory`, which `limit_memory` applies."""
    parser.add_argument(
        "--limit-memory",
        type=float,
        metavar="GB",
        help="memory for a Hugging Face model (default: 1.5 GB + 4 x its files, at most half of what is free)",
    )


def limit_memory(options: Any) -> None:
    """Apply `--limit-memory` to the folders of Hugging Face that are opened next."""
    if options.limit_memory is not None:
        from jarilab.core.bounds import use_memory

        use_memory(options.limit_memory)


def add_answer_options(parser: Parser, words: Words, kind: str, title: str) -> None:
    """Add the options of the run that is named, as the group `answer`; none if no run is named.

    kind: attribute of a predictor that holds them, `options` or `scoring`.
    """
    from jarilab.core.options import options_of

    verb = parser.prog.split()[-1]
    parser.help_command = f"jarilab {verb} RUN --help"
    parser.epilog = f"`{parser.help_command}` also lists the options of that run."
    parser.set_defaults(answer={})
    parser.answers = kind
    run = first_positional(words, lambda: _nargs_of_answer_options(kind) | nargs_of(parser))
    if run is None:
        return
    parser.help_command = f"jarilab {verb} {run} --help"
    parser.epilog = None
    trusted = TRUST in itertools.takewhile(lambda word: word != "--", words)
    options = options_of(getattr(predictor_of(Path(run), trust_code=trusted), kind))
    parser.add_options("answer", options, title=f"{title} {run}")
    names = ", ".join(map(flag_of, options))
    parser.unknown_hint = (
        f"the options of this run are {names}" if names else "this run has no such options"
    )


def predictor_of(run: Path, *, trust_code: bool) -> type[Predictor]:
    """The predictor class of a run, from its run.json.

    trust_code: whether a Python file that it names may be executed. Raises UserError if it names one and this is False,
    and if there is no run.
    """
    from jarilab.runs.folder import read_experiment, read_run
    from jarilab.tasks.base import registry
    from jarilab.tasks.predictors.base import predictor_class

    where = run / "run.json"
    experiment = read_experiment(read_run(run), where).trust(str(where), trust_code)
    return predictor_class(registry.spec(experiment.task).target)


def _nargs_of_answer_options(kind: str) -> dict[str, Any]:
    """argparse's nargs of the options of every predictor of the package."""
    parser = Parser("", "")
    parser.conflict_handler = "resolve"
    parser.more = "sources"
    for options in all_answer_options(kind):
        for name, option in options.items():
            parser.add_option(parser, name, name, option)
    return nargs_of(parser)


def all_answer_options(kind: str) -> list[Mapping[str, Option]]:
    """The options of every predictor of the package."""
    from jarilab.core.options import options_of
    from jarilab.tasks.predictors.base import registry

    targets = [registry.spec(name).target for name in registry.names()]
    # Several predictors may share one class of options.
    classes = dict.fromkeys(getattr(target, kind) for target in targets)
    return [options_of(options) for options in classes]


def add_measures(specs: Sequence[str]) -> None:
    """Add the measures that a user typed; their files are trusted."""
    from jarilab.core.registry import spec_file, trust_code
    from jarilab.inspect.measure.measures import add_measure

    for spec in specs:
        file = spec_file(spec)
        if file is not None:
            trust_code(file)
        add_measure(spec)
