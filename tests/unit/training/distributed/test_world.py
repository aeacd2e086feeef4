"""What one of several processes knows of the others; they themselves are tried in `test_ranks.py`."""

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from jarilab import cli
from jarilab.core.devices import CPU
from jarilab.core.errors import UserError
from jarilab.runs.experiment import Experiment
from jarilab.training import loop
from jarilab.training.distributed import world
from jarilab.training.distributed.world import World

LOST = [
    "[transport/tcp/pair.cc:537] Read error [127.0.0.1]:3203: Connection reset by peer",
    "Broken pipe",  # of the store, which was torchrun's own process
]


def waiting(rank, store):
    """A process that notices that not all of three do what it does."""
    one = World(rank, 3)
    one._store = store
    with pytest.raises(UserError) as caught, one.collective():
        raise RuntimeError("Gloo: Connection closed by peer\nand more")
    return caught.value


def test_the_first_that_is_left_says_who_is_gone(monkeypatch):
    monkeypatch.setattr(world, "LATE", 0.0)
    store = distributed.HashStore()
    store.set("jari/heartbeat/0", "0.0 7")
    store.set("jari/waits/2", "")
    first = waiting(1, store)
    assert str(first).startswith("rank 1 waits in vain for the others: rank 0 sent its last heartbeat ")
    assert "at step 7; the last checkpoint is whole" in str(first)
    assert str(first).endswith("(Gloo: Connection closed by peer)")
    assert first.print_on_this_rank
    assert not waiting(2, store).print_on_this_rank


def test_nobody_speaks_for_a_process_that_waits_too(monkeypatch):
    monkeypatch.setattr(world, "LATE", 0.0)
    store = distributed.HashStore()
    assert "rank 1 sent no heartbeat, rank 2 sent no heartbeat" in str(waiting(0, store))
    assert not waiting(1, store).print_on_this_rank


@pytest.mark.parametrize("print_on_this_rank", [False, True])
def test_an_error_is_told_by_the_process_that_says_it(monkeypatch, capsys, print_on_this_rank):
    def run(_):
        error = UserError("rank 0 is gone")
        error.print_on_this_rank = print_on_this_rank
        raise error

    monkeypatch.setattr(cli, "_run", run)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert cli._exit_code([]) == 2
    assert capsys.readouterr().err == ("jarilab: rank 0 is gone\n" if print_on_this_rank else "")


@pytest.mark.parametrize("said", LOST)
def test_a_process_that_is_gone_is_told_wherever_it_is_missed(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missed(*given: Any) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(loop, "join_world", lambda device: (World(0, 2), CPU))
    monkeypatch.setattr(loop, "Trainer", missed)
    with pytest.raises(UserError, match=r"rank 0 waits in vain for the others: .* the same command goes on from it"):
        loop.train(Experiment.of("arithmetic", "none", {}, 1, "float32"), tmp_path / "run")


def test_an_error_of_ones_own_stays_one() -> None:
    with pytest.raises(RuntimeError, match="shapes"), World(0, 2).collective():
        raise RuntimeError("the shapes differ")
    with pytest.raises(RuntimeError, match="gloo"), World().collective():
        raise RuntimeError("gloo")


def test_a_group_that_ended_does_not_go_with_the_last_model_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end waits for a thread that may wait for Python: whoever holds it last must let Python go on meanwhile, as a
    name in Python does, and the C++ part of a model does not."""
    kept: list[Any] = []
    monkeypatch.setattr(world, "_closed_groups", kept)
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "JARILAB_RANK_TIMEOUT": "5"}.items():
        monkeypatch.setenv(name, value)
    alone = {"store": distributed.HashStore(), "rank": 0, "world_size": 1}
    monkeypatch.setattr(
        world, "init_process_group", lambda backend, _: distributed.init_process_group(backend, **alone)
    )
    here, _ = world.join_world(CPU)
    group = distributed.group.WORLD
    here.close()
    assert not distributed.is_initialized()
    assert kept == [group]


def test_a_store_that_never_answers_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        variables = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "JARILAB_RANK_TIMEOUT": "1"}
        variables |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1"}
        for name, value in (variables | {"MASTER_PORT": f"{mute.getsockname()[1]}"}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(cli, "_run", lambda _: world.join_world(CPU))
        begun = time.monotonic()
        assert cli._exit_code([]) == 2
        assert time.monotonic() - begun < 30
    assert "got: no answer within 1 seconds; start them by torchrun" in capsys.readouterr().err
