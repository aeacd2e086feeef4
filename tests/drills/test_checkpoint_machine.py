"""The checkpoints of a run under any order of saving, being killed while saving, damage, and loading, against a model
of what must be there."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import nn

from drills import points
from drills.points import KilledError, Plan
from helpers.runs import save_checkpoint
from jarilab.core.errors import UserError
from jarilab.runs import checkpoint
from jarilab.runs.folder import remove_partial_files

RUN = "0123456789ab"
FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


class Trained:
    """A model of six numbers with its optimizer, which can take a step."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(2, 2)
        self.optimizers = {"adamw": torch.optim.AdamW(self.model.parameters())}

    def step(self) -> None:
        self.model(torch.randn(3, 2)).square().sum().backward()
        self.optimizers["adamw"].step()
        self.optimizers["adamw"].zero_grad()

    def save(self, folder: Path, step: int, best: int | None) -> None:
        state = {"step": step, "run": RUN, "best": None if best is None else {"step": best}}
        keep = set() if best is None else {best}
        save_checkpoint(folder, step, self.model, self.optimizers, state, keep)

    def load(self, path: Path) -> dict[str, Any]:
        checkpoint.load_model(path, self.model, RUN)
        state, random = checkpoint.load_training(path, self.optimizers)
        torch.set_rng_state(random["random"])
        return state

    def contents(self) -> dict[str, Any]:
        """All that a checkpoint keeps of it."""
        optimizer = self.optimizers["adamw"].state_dict()["state"]
        return copy.deepcopy(
            {"model": self.model.state_dict(), "optimizer": optimizer, "random": torch.get_rng_state()}
        )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other)


class Checkpoints(RuleBasedStateMachine):
    """written: what each step held when it was saved. whole: the steps that must be there, unharmed. perhaps: those
    that may be there, since a save or a removal was cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp()) / "checkpoints"
        self.written: dict[int, dict[str, Any]] = {}
        self.whole: set[int] = set()
        self.perhaps: set[int] = set()
        self.best: int | None = None
        self.last = 0
        self.trained = Trained()

    def teardown(self) -> None:
        points.disarm()
        shutil.rmtree(self.folder.parent)

    @initialize()
    def begin(self) -> None:
        self.trained = Trained()

    def _about_to_save(self, is_best: bool) -> int:
        self.trained.step()
        self.last += 1
        if is_best:
            self.best = self.last
        self.written[self.last] = self.trained.contents()
        return self.last

    def _kept_after(self, step: int) -> set[int]:
        """The newest two folders, damaged ones counted, and the best."""
        present = {int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*")}
        newest = sorted(one for one in present | {step} if one <= step)[-checkpoint.KEEP_NEWEST :]
        newer = {one for one in present if one > step}
        return (self.whole | {step}) & ({*newest, self.best} | newer)

    @rule(is_best=st.booleans())
    def save(self, is_best: bool) -> None:
        step = self._about_to_save(is_best)
        self.perhaps |= self.whole
        self.whole = self._kept_after(step)
        self.trained.save(self.folder, step, self.best)

    @rule(is_best=st.booleans(), at=st.integers(1, 45))
    def save_and_be_killed(self, is_best: bool, at: int) -> None:
        step = self._about_to_save(is_best)
        replaced = step in self.whole
        after = self._kept_after(step)
        points.arm(Plan(str(self.folder), at, "die"))
        try:
            self.trained.save(self.folder, step, self.best)
        except KilledError:
            points.disarm()
            self.perhaps |= self.whole | {step}
            # Nothing older goes before the new one is there.
            self.whole = after if self._is_whole(step) else self.whole - {step}
            assert not replaced, "a step is saved again only where it was damaged"
        else:
            self.perhaps |= self.whole
            self.whole = after
        finally:
            points.disarm()
        self.go_on()

    def _is_whole(self, step: int) -> bool:
        try:
            checkpoint.verify(self.folder / f"step-{step:09d}")
        except UserError:
            return False
        return True

    @rule()
    def go_on(self) -> None:
        """A new process: leftovers go, and the newest whole checkpoint is taken up."""
        remove_partial_files(self.folder.parent)
        assert not list(self.folder.glob("*.partial"))
        self.trained = Trained()
        path = self._newest()
        self.last = 0
        if path is not None:
            held = self.trained.load(path)
            self.last = held["step"]
            self.best = None if held["best"] is None else held["best"]["step"]
            assert same(self.trained.contents(), self.written[self.last])

    @precondition(lambda self: len(self.whole) > 1)
    @rule(data=st.data(), name=st.sampled_from(FILES), harm=st.sampled_from(["flip", "cut", "empty", "remove"]))
    def damage(self, data: st.DataObject, name: str, harm: str) -> None:
        step = data.draw(st.sampled_from(sorted(self.whole)))
        path = self.folder / f"step-{step:09d}" / name
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        if harm == "flip":
            content[place] ^= 1 << data.draw(st.integers(0, 7))
            path.write_bytes(content)
        elif harm == "cut":
            os.truncate(path, place)
        elif harm == "empty":
            path.write_bytes(b"")
        else:
            path.unlink()
        self.whole.discard(step)
        self.perhaps.discard(step)

    def _newest(self) -> Path | None:
        try:
            return checkpoint.newest(self.folder)[0]
        except UserError:
            assert not self.whole, "there is a whole one"
            return None

    @invariant()
    def the_newest_is_whole_and_what_was_saved(self) -> None:
        path = self._newest()
        if path is None:
            assert not self.whole
            return
        step = int(path.name.removeprefix("step-"))
        assert step in self.whole | self.perhaps
        assert not self.whole or step >= max(self.whole)

    @invariant()
    def what_must_be_there_is_whole(self) -> None:
        for step in self.whole:
            checkpoint.verify(self.folder / f"step-{step:09d}")


Checkpoints.TestCase.settings = settings(max_examples=20, stateful_step_count=12)
TestCheckpoints = Checkpoints.TestCase
