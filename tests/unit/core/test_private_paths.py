"""Paths of the home directory in text that leaves the machine."""

from pathlib import Path

import pytest

from jarilab.core.private_paths import without_home
from jarilab.runs.environment import typed_command


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


def test_a_folder_outside_of_the_home_does_not_name_it(home, monkeypatch, tmp_path):
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path / "scratch")
    assert without_home(f"--train {home}/data/a.de {home}") == "--train ~/data/a.de ~"


def test_a_home_that_is_a_link_is_found_by_both_names(home, monkeypatch, tmp_path):
    (tmp_path / "linked").symlink_to(home)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "linked")
    assert without_home(f"{home}/data/a.de {tmp_path}/linked/data/b.de") == "../data/a.de ~/data/b.de"


def test_a_home_at_the_root_changes_nothing(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert without_home("/a/b") == "/a/b"


@pytest.mark.parametrize("program", ["/bin/jarilab", "/x/jarilab/__main__.py", "/x/jarilab/cli/supervised_child.py"])
def test_a_recorded_command_is_one_of_jarilab_without_the_home(home, monkeypatch, program):
    monkeypatch.setattr("sys.argv", [program, "train", "text", "--train", f"{home}/a.de"])
    assert typed_command() == "jarilab train text --train ../a.de"
