"""What is to be told of images that were read: what was left out, and what makes a score say little."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import UInt8, UInt64

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor

TOLERATED = 10
"""Files that may be unreadable in any set; beyond that, a tenth of all may."""

FEW = 30
"""Held-out images below which one alone is more than 3 percentage points, and chance (95 %, of a share of a half) is
18 points either way or more."""

_NAMED = 200  # characters of a name that are told
_UNREADABLE = "files left out, which cannot be read as images"
_DISPUTED = "equal images in different classes, which nothing can tell apart"


@final
class Notices:
    """What is to be said of things met while reading: of how many, and the first three by name."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, list[str]]] = {}
        self._wholes: dict[str, int] = {}
        self.first_error = ""

    def add(self, what: str, name: str, count: int = 1) -> None:
        """`what` holds of the image, file or line of this name, or of `count` of them."""
        number, names = self._found.get(what, (0, []))
        name = printable(name)
        if len(name) > _NAMED:
            name = name[:_NAMED] + "..."
        first_three = [*names, name][:3]
        self._found[what] = number + count, first_three

    def among(self, whole: int, what: str, names: Sequence[str]) -> None:
        """`what` holds of the images of these names, of `whole` in all."""
        for name in names:
            self.add(what, name)
        self._wholes[what] = whole

    def unreadable(self, name: str, error: UserError, tried: int, where: Path) -> None:
        """A file that cannot be read, of `tried`. Raises UserError where they are too many to leave out."""
        self.add(_UNREADABLE, name)
        self.first_error = self.first_error or printable(str(error))
        number = self._found[_UNREADABLE][0]
        if number == tried or number > max(TOLERATED, tried // 10):
            raise UserError(
                f"{where}: expected images; got {number:,} of {tried:,} files that cannot be read, the first: "
                f"{self.first_error}; mend them, or take them away"
            )

    def disputed(
        self, pixels: UInt8[Tensor, "N C H W"], classes: Sequence[str], names: Sequence[str]
    ) -> None:
        """Tell which images have the same pixels as one of another class; 8 bytes are kept of each."""
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
        """A sentence for each matter."""
        found = self._found.items()
        return [self._line(what, number, names) for what, (number, names) in found]

    def _line(self, what: str, number: int, names: Sequence[str]) -> str:
        named = ", ".join(names)
        if number > len(names):
            named += ", ..."
        if what in self._wholes:
            whole = self._wholes[what]
            verb = "was" if number == 1 else "were"
            return f"{number:,} of {whole:,} images {verb} {what} ({named})"
        line = f"{what}: {number:,} ({named})"
        return f"{line}; {self.first_error}" if what == _UNREADABLE else line

    def tail(self) -> str:
        """All of it as the end of a sentence."""
        return "".join(f"; {line}" for line in self.lines())


def digests(pixels: UInt8[Tensor, "N C H W"]) -> UInt64[np.ndarray, " N"]:
    """8 bytes for each image, equal where its pixels are."""
    whole = b"".join(_digest(image) for image in pixels)
    return np.frombuffer(whole, dtype=np.uint64)


def _digest(image: UInt8[Tensor, "C H W"]) -> bytes:
    pixels = image.numpy().tobytes()
    return hashlib.blake2b(pixels, digest_size=8).digest()


def few_held_out(held_out: int, whole: int, remedy: str = "name more with --valid") -> list[str]:
    """What to say where a share of all images was held out, and these are so few that their score says little."""
    if held_out >= FEW:
        return []
    share = 100 / held_out
    return [
        f"only {held_out} of {whole:,} images are held out, so that one alone counts for {share:.1f} % of the score; "
        f"{remedy}"
    ]


def too_crowded(counts: Mapping[str, int], queries: int) -> list[str]:
    """What to say of images, by their names, that have more things than the queries of a detector."""
    if not counts:
        return []
    most = max(counts.values())
    names = ", ".join(list(counts)[:3])
    return [
        f"{len(counts):,} images have more things than the {queries} queries can find, up to {most} ({names}); those "
        f"that cost most to match train nothing, and all count in AP: model.queries={most} finds them"
    ]


def printable(text: str) -> str:
    """Text of a stranger for a line in a terminal: what cannot be printed is written as an escape."""
    letters = [letter if letter.isprintable() else _escaped(letter) for letter in text]
    return "".join(letters)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()
