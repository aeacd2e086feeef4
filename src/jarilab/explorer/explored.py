"""What a live page asks of whoever looks into models for it: runs of jari, or models of other libraries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jarilab.core.errors import UserError
from jarilab.data.images import HELD_OUT


class Explored(Protocol):
    """Models side by side, each of them a view with a number. One caller at a time computes; the others wait.

    Raises UserError, whatever is asked, for an input that a model cannot read, and for a view, a step, a site or a head
    that is not there.
    """

    def check(self, line: str, first: str) -> None:
        """Raises UserError for an input that names a file which nobody has shown: see `check_file`. first: the input
        that the page was opened with."""
        ...

    def look(
        self,
        line: str,
        steps: Mapping[int, int] | None = None,
        *,
        live: bool,
        site: str | None = None,
        head: int | None = None,
    ) -> dict[str, Any]:
        """The whole page for one input. steps: of training, by the number of the view; the newest by default. site,
        head: what it opens at; by default, the head that says most."""
        ...

    def head(
        self, line: str, view: int, site: str, head: int, step: int | None = None, query: int = 0
    ) -> dict[str, Any]:
        """What is shown of one head that is opened."""
        ...

    def operate(
        self,
        line: str,
        view: int,
        changes: Sequence[Mapping[str, Any]],
        step: int | None = None,
        *,
        controls: bool = True,
    ) -> dict[str, Any]:
        """What becomes of one view's answer and maps under changes; see `Operation`. controls: and under the same
        changes at random other places."""
        ...


def check_file(asked: str, first: str, *, numbered: bool) -> None:
    """Raises UserError for a file that nobody has shown: errors quote how a file begins, and pages show images.

    first: the input from the command line, in whose folder the others may lie. numbered: whether an input may also be
    the number of a held-out image.
    """
    if asked == first or (numbered and re.fullmatch(rf"{HELD_OUT}\d+", asked)):
        return
    named = first and not (numbered and first.startswith(HELD_OUT))
    folder = Path(first).parent.resolve() if named else None
    try:
        if folder is not None and Path(asked).resolve().parent == folder:
            return
    except (OSError, ValueError, RuntimeError):  # no path at all, or one that leads in a circle
        pass
    expected = [f"the number of a held-out image, such as {HELD_OUT}3"] if numbered else []
    kind = "an image" if numbered else "a file"
    expected += [f"{kind} in the folder {folder}"] if folder is not None else []
    raise UserError(
        f"expected {', or '.join(expected)}; got {asked[:80]!r}; open the page with --input and {kind} to look at "
        "those in its folder"
    )
