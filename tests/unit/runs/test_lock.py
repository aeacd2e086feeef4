"""One process at a time works in a folder."""

import subprocess
import sys

import pytest

from jarilab.core.errors import UserError
from jarilab.runs.lock import is_training, locked

HOLDER = """
import sys, time
from pathlib import Path
from jarilab.runs.lock import locked
held = locked(Path(sys.argv[1]), "is training")
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_ends_with_its_process_even_by_kill_9(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        said_by_others = is_training(tmp_path)
        with pytest.raises(UserError) as refused:
            locked(tmp_path, "is training")
        holder.kill()
    assert said_by_others
    assert str(refused.value) == f"another process is training in {tmp_path}; wait for it, or choose another --out"
    assert not is_training(tmp_path)


def test_a_lock_is_held_until_it_is_closed(tmp_path):
    with locked(tmp_path, "compares") as lock:
        assert lock.is_valid
        assert is_training(tmp_path)
        with pytest.raises(UserError, match="another process compares in"):
            locked(tmp_path, "compares")
    assert not is_training(tmp_path)


def test_a_folder_that_was_replaced_is_noticed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(folder, "is training") as lock:
        folder.rename(tmp_path / "aside")
        assert not lock.is_valid
        folder.mkdir()
        (folder / ".lock").touch()
        assert not lock.is_valid


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"\.lock is a link, .*; remove the link"):
        locked(tmp_path, "is training")
    assert not (tmp_path / "elsewhere").exists()


def test_asking_makes_no_folder(tmp_path):
    assert not is_training(tmp_path / "never")
    assert list(tmp_path.iterdir()) == []
