"""The files of a folder are all read, or the folder is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jarilab.core.errors import UserError
from jarilab.data.example_files import ExampleFile


def test_files_of_subfolders_are_read_and_hidden_ones_are_not(tmp_path: Path) -> None:
    for name in ("10.png", "2.png", "deep/1.png", ".hidden/3.png", ".4.png", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    rows = list(ExampleFile.of(str(tmp_path), None, None))
    assert [row.origin for row in rows] == ["2.png", "10.png", "deep/1.png"]


def test_a_subfolder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "1.png").touch()
    scandir = os.scandir

    def refuse(path: str) -> os._ScandirIterator[str]:
        if Path(path).name == "deep":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"deep: expected a folder, got one that cannot be read \(Permission denied\)"):
        list(ExampleFile.of(str(tmp_path), None, None))
