"""What works where jarilab was installed without extras, and what it says of the rest."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TRAIN = [
    "train",
    "arithmetic:maximum=30",
    "--out",
    "run",
    "--examples",
    "192",
    "--batch-size",
    "16",
    "--evaluations",
    "1",
]
SMALL = ["--d-model", "16", "--n-heads", "2", "--n-encoder-layers", "1", "--n-decoder-layers", "1"]

WITHOUT = """
import json, sys
from importlib.machinery import PathFinder

installed = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in MISSING else installed(name, path, target)

MISSING, commands = json.loads(sys.argv[1])
PathFinder.find_spec = find_spec
from jarilab.cli import main
for command in commands:
    try:
        code = main(command)
    except SystemExit as ended:
        code = ended.code
    print("CODE", code or 0, flush=True)
"""


def required(lines: list[str]) -> set[str]:
    return {re.split(r"[<>=;\[ ]", line)[0].lower() for line in lines}


def missing_without_extras() -> list[str]:
    """The packages that extras alone bring, as they are imported."""
    extras = required([line for lines in PROJECT["optional-dependencies"].values() for line in lines])
    ours = extras - required(PROJECT["dependencies"]) - {"jarilab"}
    of_package = metadata.packages_distributions()
    return [name for name, distributions in of_package.items() if {d.lower() for d in distributions} <= ours]


@pytest.mark.slow
def test_the_core_trains_shows_and_checks_and_names_the_extra_of_the_rest(tmp_path: Path) -> None:
    missing = missing_without_extras()
    assert {"tokenizers", "sacrebleu", "num2words", "fastapi", "hypercorn", "PIL", "sklearn"} <= set(missing)
    (tmp_path / "pairs.tsv").write_text("".join(f"eins {n}\tone {n}\n" for n in range(40)))
    works = [
        [*TRAIN, *SMALL],
        ["predict", "run", "1+1"],
        ["explore", "run", "--save", "page.html"],
        ["report", "run"],
        ["data", "arithmetic:maximum=9", "--out", "expressions.txt"],
        ["completion", "bash"],
        ["tasks"],
        ["encodings"],
        ["serve", "--help"],
    ]
    refused = {
        "text": ["train", "translation", "--train", "pairs.tsv", "--out", "translation"],
        "explore": ["serve", "run"],
        "vision": ["train", "digits", "--out", "digits"],
        "tensorboard": [*TRAIN, *SMALL, "--tensorboard"],
    }
    given = json.dumps([missing, [*works, *refused.values(), ["explore", "run"]]])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, given],
        cwd=tmp_path,
        env={**os.environ, "JARILAB_CACHE": str(tmp_path / "cache")},
        text=True,
        capture_output=True,
        timeout=300,
    )
    codes = re.findall(r"^CODE (\d)$", done.stdout, re.MULTILINE)
    assert codes == ["0"] * len(works) + ["2"] * 5, done.stderr
    said = re.findall(r"this needs the package [\w-]+; pip install 'jarilab\[(\w+)\]'", done.stderr)
    assert said == [*refused, "explore"]
    assert (tmp_path / "page.html").stat().st_size > 100_000
