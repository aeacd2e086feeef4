"""The processes that train one model together, as one of them has them."""

from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from jarilab.devices import CPU
from jarilab.errors import UserError
from jarilab.runs.experiment import Experiment
from jarilab.training import loop, world
from jarilab.training.world import World

LOST = [
    "[transport/tcp/pair.cc:537] Read error [127.0.0.1]:3203: Connection reset by peer",
    "Broken pipe",  # of the store, which was torchrun's own process
]


@pytest.mark.parametrize("said", LOST)
def test_a_process_that_is_gone_is_told_wherever_it_is_missed(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missed(*given: Any) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(loop, "joined", lambda device: (World(0, 2), CPU))
    monkeypatch.setattr(loop, "Training", missed)
    with pytest.raises(UserError, match=r"rank 0 waits in vain for the others: .* the same command goes on from it"):
        loop.train(Experiment.of("arithmetic", "none", {}, 1, "float32"), tmp_path / "run")


def test_an_error_of_ones_own_stays_one() -> None:
    with pytest.raises(RuntimeError, match="shapes"), World(0, 2).together():
        raise RuntimeError("the shapes differ")
    with pytest.raises(RuntimeError, match="gloo"), World().together():
        raise RuntimeError("gloo")


def test_a_group_that_ended_does_not_go_with_the_last_model_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end waits for a thread that may wait for Python: whoever holds it last must let Python go on meanwhile, as a
    name in Python does, and the C++ part of a model does not."""
    kept: list[Any] = []
    monkeypatch.setattr(world, "_parted", kept)
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "JARILAB_RANK_TIMEOUT": "5"}.items():
        monkeypatch.setenv(name, value)
    init = distributed.init_process_group
    store = distributed.HashStore()
    monkeypatch.setattr(
        distributed, "init_process_group", lambda backend, timeout: init(backend, store=store, rank=0, world_size=1)
    )
    here, _ = world.joined(CPU)
    group = distributed.group.WORLD
    here.end()
    assert not distributed.is_initialized()
    assert kept == [group]
