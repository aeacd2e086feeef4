"""What the package says of itself: its extras, its types, how it is cited."""

import re
import tomllib
from pathlib import Path

from jarilab._version import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_an_error_names_an_extra_that_there_is():
    named = set()
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        named |= set(re.findall(r'import_optional\("[\w.]+", "(\w+)"\)', text))
        for extras in re.findall(r"jarilab\[([a-z0-9,]+)\]", text):
            named |= set(extras.split(","))
    assert {"text", "vision", "explore", "huggingface"} <= named <= set(EXTRAS)


def test_all_is_every_extra_that_a_user_has_use_for():
    (line,) = EXTRAS["all"]
    of_all = set(line.removeprefix("jarilab[").removesuffix("]").split(","))
    assert of_all == set(EXTRAS) - {"all", "dev", "docs", "release"}


def test_type_checkers_see_its_types():
    assert (ROOT / "src" / "jarilab" / "py.typed").exists()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_it_is_cited_as_the_version_that_it_is():
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    told = dict(line.split(": ", 1) for line in lines if re.match(r"[a-z-]+: ", line))
    assert told["version"] == __version__
    assert told["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "type"} <= set(told)
