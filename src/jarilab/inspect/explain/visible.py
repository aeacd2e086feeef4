"""Tokens as a terminal can show them, in the signs of the pages (`token` in kit/static/tokens.js): ` der` is `␣der`."""

from __future__ import annotations

import unicodedata

SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "⍽"}
NOTHING = "∅"
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"}
_JOINER = "\u200d"  # makes one emoji of two, and is left alone
_SYMBOLS = {"So", "Sk"}


def visible(token: str) -> str:
    """White space at its ends, control and direction marks and broken letters get a sign; a space inside stays."""
    if token == "":
        return NOTHING
    letters = [_shown(token, place) for place in range(len(token))]
    return "".join(letters)


def _shown(token: str, place: int) -> str:
    letter = token[place]
    inside = 0 < place < len(token) - 1
    if letter == " " and inside:
        return letter
    if unicodedata.category(letter) not in _UNSEEN or _joins(token, place):
        return letter
    if letter in SIGNS:
        return SIGNS[letter]
    if ord(letter) < 32:
        return chr(0x2400 + ord(letter))
    return f"‹{ord(letter):X}›"


def _joins(token: str, place: int) -> bool:
    before = token[:place].removesuffix("\ufe0f")[-1:]
    after = token[place + 1 : place + 2]
    if token[place] != _JOINER or not before or not after:
        return False
    return {unicodedata.category(before), unicodedata.category(after)} <= _SYMBOLS
