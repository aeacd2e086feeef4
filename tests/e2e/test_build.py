"""What is released is built from the sources alone, and the same whoever builds it."""

import hashlib
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def built(out: Path) -> dict[str, str]:
    """The files of a build and their digests."""
    command = [sys.executable, "-m", "build", "--outdir", out, ROOT]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


@pytest.mark.long
def test_two_builds_have_equal_bytes_and_all_that_pages_are_made_of(tmp_path):
    """The wheel is built from the sdist, so that what is missing there is missing in both."""
    first, second = built(tmp_path / "first"), built(tmp_path / "second")
    assert first == second
    assert sorted(Path(name).suffix for name in first) == [".gz", ".whl"]
    (wheel,) = (tmp_path / "first").glob("*.whl")
    package = ROOT / "src"
    wanted = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name and ".egg-info" not in name}
    with zipfile.ZipFile(wheel) as held:
        assert wanted - set(held.namelist()) == set()


def lowest() -> str:
    """The oldest versions that the package says it works with, as constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return "\n".join(line.split(";")[0].replace(">=", "==") for line in project["dependencies"])


@pytest.mark.long
@pytest.mark.parametrize("versions", ["lowest", "newest"])
def test_a_wheel_in_a_new_environment_trains_looks_and_checks(tmp_path, versions):
    """Without extras, on the oldest and the newest versions of what it stands on."""
    built(tmp_path / "dist")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(lowest() if versions == "lowest" else "")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel]
    installed = subprocess.run(install, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    subprocess.run([python, "-m", "pip", "check"], check=True, capture_output=True)
    small = ["--examples", "640", "--batch", "16", "--evaluations", "1", "--width", "16", "--heads", "2"]
    for command in (
        ["train", "arithmetic:maximum=30", "--out", "run", *small],
        ["predict", "run", "1+1"],
        ["explore", "run", "--save", "page.html"],
        ["laws", "rotary"],
    ):
        done = subprocess.run(
            [environment / "bin" / "jarilab", *command],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (command, done.stderr)
