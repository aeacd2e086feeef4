"""All that a new encoding, task, measure, verb or option needs beside its code; CONTRIBUTING.md has the same table.

Each missing piece fails with a message that names the file to write.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drills.hostile import commands_on
from jarilab.cli import commands
from jarilab.cli.arguments import parser_of
from jarilab.core.options import options_of
from jarilab.core.registry import first_sentence
from jarilab.encodings.base import registry as encodings
from jarilab.inspect.measure.measures import MEASURES
from jarilab.laws.spec_oracle import formula_of
from jarilab.models.base import registry as models
from jarilab.runs.descriptions import describe_encoding
from jarilab.tasks.base import registry as tasks
from jarilab.tasks.predictors.base import registry as predictors

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LANGUAGES = ("en", "ko")
SECTIONS = {"en": ("**Used by**", "**When to use it**"), "ko": ("**쓰는 곳**", "**쓸 때**")}
NOT_CITED = {"none"}
NEW = "unheard_of"
"""A name that nothing has."""
Check = Callable[[str], Iterator[tuple[str, str]]]


def text(file: str) -> str:
    """The text of a file of the repository; nothing if there is none."""
    path = ROOT / file
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def all_text(folder: str, pattern: str) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).rglob(pattern)))


def source_of(target: object) -> str:
    file = inspect.getsourcefile(target)  # type: ignore[arg-type]
    assert file is not None
    return str(Path(file).relative_to(ROOT))


def encoding(name: str) -> Iterator[tuple[str, str]]:
    """The pieces that an encoding lacks: a file, and what to write there."""
    if name not in encodings.names():
        yield "src/jarilab/encodings/", f'a class with @registry.register("{name}")'
    else:
        if name not in NOT_CITED and describe_encoding(name)["cited"] is None:
            yield source_of(encodings.spec(name).target), "its paper in the module docstring, as (Author et al. 2021)"
    if name not in encodings.names() or formula_of(name) is None:
        yield "src/jarilab/encodings/formulas/", "its formula in numpy, with the number of the paper's equation"
    for language in LANGUAGES:
        file = f"docs/site/{language}/encodings/{name}.md"
        page = text(file)
        marks = f"<!-- generated: facts {name} {language} -->\n", f"<!-- encoding-{name}-{language} -->\n"
        wanted = (f"# {name}\n", "```text\n", *SECTIONS[language], *marks)
        for part in wanted:
            if part not in page:
                yield file, f"{part.strip()!r}, as in {file.replace(name, 'rotary')}"
    if name not in json.loads(text("docs/build/costs.json")):
        yield "docs/build/costs.json", f"the cost that `jarilab encodings {name} --measure --json` prints"


def task(name: str) -> Iterator[tuple[str, str]]:
    if name not in tasks.names():
        yield "src/jarilab/tasks/", f'a class with @registry.register("{name}")'
    elif not first_sentence(tasks.spec(name).target):
        yield source_of(tasks.spec(name).target), "a docstring, whose first sentence says what is learned"
    for folder in ("docs/how-to/", "docs/ko/how-to/"):
        if not re.search(rf"jarilab (train|compare) {re.escape(name)}\b", all_text(folder, "*.md")):
            yield folder, f"a page that shows `jarilab train {name}`"
    if not re.search(rf'"{re.escape(name)}[":]', all_text("tests/unit/tasks", "*.py")):
        yield "tests/unit/tasks/", f'a test of the task "{name}"'


def measure(name: str) -> Iterator[tuple[str, str]]:
    file = "src/jarilab/inspect/measure/measures.py"
    if name not in MEASURES:
        yield file, f'a subclass of Measure with @_measure("{name}")'
    elif not MEASURES[name].about.endswith("."):
        yield file, f"a docstring of {type(MEASURES[name]).__name__} that defines it, in whole sentences"
    words = "src/jarilab/explorer/static/measure_words.js"
    for key in ("label", "plain"):
        if not re.search(rf"\b{key}_{name}: \[\"[^\"]+\", \"[^\"]+\"\]", text(words)):
            yield words, f"{key}_{name}, in English and Korean"
    test = "tests/unit/inspect/measure/test_measures.py"
    if f'"{name}"' not in text(test):
        yield test, f'a map by hand whose "{name}" is known'


def verb(name: str) -> Iterator[tuple[str, str]]:
    file = f"src/jarilab/cli/commands/{name}.py"
    if name not in commands.names():
        yield file, "arguments(parser, words) and run(options)"
    else:
        if not commands.summary(name).endswith("."):
            yield file, "a docstring, whose first line says what the verb does"
        if "RUN" in parser_of(name, []).usage_words and name not in {
            line[0] for line in commands_on(ROOT, "", ROOT).values()
        }:
            yield "tests/drills/hostile.py", f"{name} and {name} --help in commands_on: a run may be hostile"
    for folder in ("docs/", "docs/ko/"):
        if f"jarilab {name}" not in all_text(folder, "*.md"):
            yield folder, f"a guide that shows `jarilab {name}`"
    if f'"{name}"' not in all_text("tests/e2e", "*.py") + all_text("tests/unit", "*.py"):
        yield "tests/e2e/", f'a test that runs command("{name}", ...)'


def owners() -> dict[str, object]:
    """Everything whose keyword-only parameters are options."""
    found: dict[str, object] = {}
    for registry in (tasks, models, encodings):
        found |= {f"{registry.kind} {name}": registry.spec(name).target for name in registry.names()}
    for name in predictors.names():
        predictor = predictors.spec(name).target
        found |= {f"predict {name}": predictor.options, f"evaluate {name}": predictor.scoring}
    return found


def option(owner: str) -> Iterator[tuple[str, str]]:
    target = owners().get(owner)
    if target is None:
        yield "src/jarilab/", f"a class for {owner}"
        return
    for name, one in options_of(target).items():  # type: ignore[arg-type]
        if not one.meaning:
            yield source_of(target), f"`{name}: ...` in the docstring of {owner}: it is the help of the option"


KINDS: dict[str, tuple[Check, list[str]]] = {
    "encoding": (encoding, encodings.names()),
    "task": (task, tasks.names()),
    "measure": (measure, list(MEASURES)),
    "verb": (verb, commands.names()),
    "options of": (option, list(owners())),
}


def missing(kind: str, name: str) -> list[str]:
    """A sentence for each piece that is missing: what lacks it, which file, what to write."""
    check, _ = KINDS[kind]
    return [f"the {kind} {name} lacks a piece: write into {file} {what}" for file, what in check(name)]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_missing(kind: str) -> None:
    lines = [line for name in KINDS[kind][1] for line in missing(kind, name)]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        (
            "encoding",
            ["src/jarilab/encodings/", "docs/site/en/encodings/unheard_of.md", "docs/site/ko/encodings/unheard_of.md"],
        ),
        ("encoding", ["docs/build/costs.json"]),
        ("task", ["src/jarilab/tasks/", "docs/how-to/", "docs/ko/how-to/", "tests/unit/tasks/"]),
        ("measure", ["measures.py", "measure_words.js", "test_measures.py"]),
        ("verb", ["src/jarilab/cli/commands/unheard_of.py", "docs/", "tests/e2e/"]),
        ("options of", ["src/jarilab/"]),
    ],
)
def test_what_is_missing_names_the_file_to_write(kind: str, files: list[str]) -> None:
    lines = "\n".join(missing(kind, NEW))
    assert [file for file in files if f"{file} " not in lines] == []


@pytest.mark.parametrize("kind", KINDS)
def test_contributing_names_every_obligation(kind: str) -> None:
    check, _ = KINDS[kind]
    files = {file.replace(NEW, "NAME") for file, _ in check(NEW)}
    assert [file for file in files if f"`{file}`" not in CONTRIBUTING] == []
