"""Paths of the home directory in text that leaves the machine."""

from pathlib import Path

import pytest

from jarilab.core.private_paths import without_home


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    home = tmp_path / "anna"
    (home / "proj").mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.chdir(home / "proj")
    return home


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jarilab train --train={}/data/a.de", "jarilab train --train=../data/a.de"),
        ('"{}/proj/run","x"', '"run","x"'),
        ('task.train=["{}/a.de", "{}/a.en"]', 'task.train=["../a.de", "../a.en"]'),
        ("{}", ".."),
        ("{}-other/a", "{}-other/a"),
        ("/backup{}/a", "/backup{}/a"),
        ("no path", "no path"),
    ],
)
def test_paths_of_the_home_directory_become_relative(home, text, expected):
    assert without_home(text.replace("{}", str(home))) == expected.replace("{}", str(home))


def test_a_home_at_the_root_changes_nothing(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert without_home("/a/b") == "/a/b"
