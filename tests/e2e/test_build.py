"""What is released is built from the sources alone, and the same whoever builds it."""

import hashlib
import os
import subprocess
import sys
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
