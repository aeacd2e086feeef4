"""The interface of one model in the explorer: a run, a Hugging Face folder, or a tape."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torch import nn

from jarilab.core.errors import UserError
from jarilab.data.images import HELD_OUT
from jarilab.explorer.effects import EffectsInProgress
from jarilab.explorer.intervention import InterventionRequest
from jarilab.inspect.intervene.controls import Proceed
from jarilab.inspect.measure.link import TokenLinkHead
from jarilab.inspect.record.capture import Tape
from jarilab.pages.program.inputs import Inputs

MAX_CACHED = 8
"""Inputs and models that a subject keeps, the last used ones."""

Writer = Callable[[nn.Module, Inputs], dict[str, Any]]
"""Exports a model as a program for a page, traced on example inputs."""
T = TypeVar("T")


class Subject(ABC):
    """A model that reads one input at a time.

    Methods raise UserError for an input that it cannot read, and for a site or head that it does not have. `step` is
    a training step.
    """

    name: str
    steps: Sequence[int] = (0,)
    """Training steps whose weights exist."""
    saves_details: ClassVar[bool] = False
    """Whether saved pages hold the details of its heads."""
    reads_files: bool = False
    """Whether an input may be, or begin with, the name of a file."""
    reads_image_and_text: bool = False
    """Whether an input is the name of an image, `IMAGE_END` and a text."""

    def example(self) -> str:
        """An input to begin with. Raises UserError if its task has none."""
        raise UserError(f"{self.name} has no example; say what it reads with --input")

    def check_input(self, line: str, first: str) -> None:  # noqa: B027
        """Raises UserError for a file that a page may not read; see `check_file`."""

    def model_step(self, step: int | None) -> int:
        """The step to look at; the newest for None. Raises UserError for a step without weights."""
        if step:
            raise UserError(
                f"{self.name} is no run of jari, and keeps no training steps; got step {step}, leave it out"
            )
        return 0

    def recipe(self, step: int) -> str | None:
        """A text that is equal for models that differ only in their seed; None if unknown."""
        return None

    @abstractmethod
    def tape(self, line: str, step: int) -> Tape:
        """The recorded forward over the input and its answer."""

    @abstractmethod
    def view(self, line: str, step: int) -> dict[str, Any]:
        """The payload of this model."""

    def tokens(self, line: str) -> Sequence[str] | None:
        """The source tokens, which must be equal in all subjects that have some here."""
        return None

    def links(self, line: str, query: str, key: str) -> list[TokenLinkHead]:
        """The heads that connect two tokens, the strongest first. Raises UserError if there are none."""
        raise UserError(
            f"{self.name} lists no heads of a link; give the folder of a model, --model"
        )

    def detail(self, line: str, step: int, site: str, head: int, query: int) -> dict[str, Any]:
        """The payload of one head. query: the decoding step of a recurrent decoder."""
        raise UserError(f"{self.name} is a tape without a model; explore a run or a model")

    def intervene(
        self,
        line: str,
        step: int,
        intervention: InterventionRequest,
        *,
        proceed: Proceed | None,
        draft: bool = False,
    ) -> tuple[Tape, dict[str, Any]]:
        """The tape and the effect of a changed forward.

        proceed: of controls at random other places; None without. draft: without the answer if it takes many forwards.
        """
        raise UserError(f"{self.name} has no model to change; explore a run or a model")

    def effects(self, line: str, step: int) -> EffectsInProgress | None:
        """The effects of all heads on the answer; None for a tape."""
        return None

    def engine(self, line: str, step: int, program: Writer) -> dict[str, Any] | None:
        """The `program` and `text` with which a saved page computes, or `why` it cannot; None for still pages only."""
        return None


class LRU(OrderedDict[Hashable, T]):
    """The last `MAX_CACHED` values that were used."""

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, made by `make` if it is missing."""
        if key not in self:
            self[key] = make()
            while len(self) > MAX_CACHED:
                self.popitem(last=False)
        self.move_to_end(key)
        return self[key]


def check_file(line: str, first: str, *, numbered: bool) -> None:
    """Raises UserError unless a page may read the file that an input names.

    first: the input of the command line; other files of its folder may be read. numbered: whether an input may be the
    number of a held-out image.
    """
    # No files of other folders: errors quote how a file begins, and pages show images.
    if line == first or (numbered and re.fullmatch(rf"{HELD_OUT}\d+", line)):
        return
    names_file = first and not (numbered and first.startswith(HELD_OUT))
    folder = Path(first).parent.resolve() if names_file else None
    try:
        if folder is not None and Path(line).resolve().parent == folder:
            return
    except (OSError, ValueError, RuntimeError):  # no valid path, or a loop of links
        pass
    expected = [f"the number of a held-out image, such as {HELD_OUT}3"] if numbered else []
    kind = "an image" if numbered else "a file"
    expected += [f"{kind} in the folder {folder}"] if folder is not None else []
    raise UserError(
        f"expected {', or '.join(expected)}; got {line[:80]!r}; open the page with --input and {kind} to look at "
        "those in its folder"
    )
