"""Notices about images: what was omitted, and what makes a score unreliable."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import UInt8, UInt64

from jarilab.core.errors import UserError, counted, printable
from jarilab.core.shapes import Tensor

MAX_UNREADABLE = 10
"""Unreadable files tolerated in any dataset. A tenth of the files is tolerated in larger ones."""

# Below 30 images, one counts for more than 3 percentage points, and a share of a half has a 95 % interval of 18 points
# either way.
MIN_HELD_OUT = 30
"""Fewer held-out images give a notice."""

_MAX_NAME = 200  # characters
_UNREADABLE = "files left out, which cannot be read as images"
_DISPUTED = "equal images in different classes, which nothing can tell apart"


@final
class Notices:
    """Counts problems found while reading, with the first three names of each."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int, list[str]]] = {}
        self._totals: dict[str, int] = {}
        self.first_error = ""

    def add(self, what: str, name: str, count: int = 1) -> None:
        """Count the problem `what` for this name, `count` times."""
        number, calls, names = self._counts.get(what, (0, 0, []))
        name = printable(name)
        if len(name) > _MAX_NAME:
            name = name[:_MAX_NAME] + "..."
        first_three = [*names, name][:3]
        self._counts[what] = number + count, calls + 1, first_three

    def add_each(self, problems: Iterable[str], name: str) -> None:
        """Count each of these problems for this name."""
        for what in problems:
            self.add(what, name)

    def among(self, total: int, what: str, names: Sequence[str]) -> None:
        """Count `what` for these names, out of `total` images."""
        for name in names:
            self.add(what, name)
        self._totals[what] = total

    def unreadable(self, name: str, error: UserError, tried: int, where: Path) -> None:
        """Count an unreadable file out of `tried`. Raises UserError if there are too many."""
        self.add(_UNREADABLE, name)
        self.first_error = self.first_error or printable(str(error))
        number = self._counts[_UNREADABLE][0]
        if number == tried or number > max(MAX_UNREADABLE, tried // 10):
            raise UserError(
                f"{where}: expected images; got {number:,} of {tried:,} files that cannot be read, the first: "
                f"{self.first_error}; mend them, or take them away"
            )

    def disputed(
        self, pixels: UInt8[Tensor, "N C H W"], classes: Sequence[str], names: Sequence[str]
    ) -> None:
        """Count images that have the same pixels as one of another class, by hashes of 8 bytes."""
        _, group_N = np.unique(digests(pixels), return_inverse=True)
        order_N = np.argsort(group_N, kind="stable")
        sorted_N = group_N[order_N]
        starts = np.flatnonzero(np.diff(sorted_N)) + 1
        disputed = []
        for group in np.split(order_N, starts):
            if len({classes[number] for number in group}) > 1:
                disputed.append(group.tolist())
        for number in itertools.chain(*sorted(disputed)):
            self.add(_DISPUTED, f"{names[number]} of {classes[number]}")

    def lines(self) -> list[str]:
        """Return one sentence for each problem."""
        return [self._line(what, *counted) for what, counted in self._counts.items()]

    def _line(self, what: str, number: int, calls: int, names: Sequence[str]) -> str:
        named = ", ".join(names)
        if calls > len(names):
            named += f" and {calls - len(names):,} more"
        if what in self._totals:
            total = self._totals[what]
            verb = "was" if number == 1 else "were"
            return f"{number:,} of {counted(total, 'images')} {verb} {what} ({named})"
        line = f"{what}: {number:,} ({named})"
        return f"{line}; {self.first_error}" if what == _UNREADABLE else line

    def tail(self) -> str:
        """Return all notices as the end of a sentence."""
        return "".join(f"; {line}" for line in self.lines())


def digests(pixels: UInt8[Tensor, "N C H W"]) -> UInt64[np.ndarray, " N"]:
    """Return 8 bytes for each image, equal for equal pixels."""
    hashes = (hashlib.blake2b(image.numpy().tobytes(), digest_size=8) for image in pixels)
    return np.frombuffer(b"".join(each.digest() for each in hashes), dtype=np.uint64)


def few_held_out(held_out: int, total: int, remedy: str = "name more with --valid") -> list[str]:
    """Return a notice if too few of `total` images are held out for a reliable score."""
    if held_out >= MIN_HELD_OUT:
        return []
    share = 100 / held_out
    return [
        f"only {held_out} of {total:,} images are held out, so that one alone counts for {share:.1f} % of the score; "
        f"{remedy}"
    ]


def too_crowded(counts: Mapping[str, int], queries: int) -> list[str]:
    """Return a notice about images with more objects than a detector has queries."""
    if not counts:
        return []
    largest = max(counts.values())
    names = ", ".join(list(counts)[:3])
    return [
        f"{counted(len(counts), 'images', 'have')} more objects than the {queries} queries, up to {largest} ({names}); "
        f"objects that cost most to match are not trained but count in AP; set model.queries={largest}"
    ]
