"""What one of several processes knows of the others; they themselves are tried in `test_ranks.py`."""

import pytest
from torch import distributed

from jarilab import cli
from jarilab.errors import UserError
from jarilab.training import world
from jarilab.training.world import World


def waiting(rank, store):
    """A process that notices that not all of three do what it does."""
    one = World(rank, 3)
    one._store = store
    with pytest.raises(UserError) as caught, one.together():
        raise RuntimeError("Gloo: Connection closed by peer\nand more")
    return caught.value


def test_the_first_that_is_left_says_who_is_gone(monkeypatch):
    monkeypatch.setattr(world, "LATE", 0.0)
    store = distributed.HashStore()
    store.set("jari/heard/0", "0.0 7")
    store.set("jari/waits/2", "")
    first = waiting(1, store)
    assert str(first).startswith("rank 1 waits in vain for the others: rank 0 was last heard of ")
    assert "at step 7; the last checkpoint is whole" in str(first)
    assert str(first).endswith("(Gloo: Connection closed by peer)")
    assert first.said_here
    assert not waiting(2, store).said_here


def test_nobody_speaks_for_a_process_that_waits_too(monkeypatch):
    monkeypatch.setattr(world, "LATE", 0.0)
    store = distributed.HashStore()
    assert "rank 1 was never heard of, rank 2 was never heard of" in str(waiting(0, store))
    assert not waiting(1, store).said_here


@pytest.mark.parametrize("said_here", [False, True])
def test_an_error_is_told_by_the_process_that_says_it(monkeypatch, capsys, said_here):
    def run(_):
        error = UserError("rank 0 is gone")
        error.said_here = said_here
        raise error

    monkeypatch.setattr(cli, "_run", run)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert cli._code([]) == 2
    assert capsys.readouterr().err == ("jarilab: rank 0 is gone\n" if said_here else "")
