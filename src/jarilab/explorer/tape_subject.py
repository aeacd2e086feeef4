"""A recorded forward as a subject: its maps alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jarilab.explorer import payload
from jarilab.explorer.subject import Subject
from jarilab.inspect.measure.maps import is_numbered, names_of_sides
from jarilab.inspect.measure.words import WordsOf, merged_groups
from jarilab.inspect.record.capture import Tape

Tokens = Mapping[str, Sequence[str]] | Sequence[str] | None
"""Token names of each side, or of both; positions if None."""


class TapeSubject(Subject):
    """A tape of one input, whatever model it was recorded from."""

    def __init__(self, tape: Tape, tokens: Tokens, title: str, words: WordsOf = None):
        self.name, self._tape, self._tokens, self._words = title, tape, tokens, words

    def tape(self, line: str, step: int) -> Tape:
        return self._tape

    def view(self, line: str, step: int) -> dict[str, Any]:
        return view_of_tape(self._tape, self._tokens, self.name, self._words)


def view_of_tape(tape: Tape, tokens: Tokens, title: str, words: WordsOf = None) -> dict[str, Any]:
    """The view of a tape, without answer, measures of training or edits.

    Raises UserError for names or words that do not fit.
    """
    names = names_of_sides(tape, tokens)
    groups = merged_groups(names, words)
    sites = payload.sites_of(tape, names, words=groups)
    purpose = _numbered(names)
    if groups is not None:
        names = {side: group.names for side, group in groups.items()}
    first = tape.calls[tape.sites[0]][0].call
    encoding = type(first.geometry.encoding).__name__
    first_side = next(iter(names.values()))
    return {
        "run": title,
        "name": title,
        "task": None,
        "purpose": purpose,
        "model": None,
        "encoding": encoding.lower(),
        "seed": None,
        "step": 0,
        "steps": [0],
        "experiment": None,
        "curve": [],
        "metric": None,
        "input": " ".join(first_side),
        "answer": None,
        "expected": None,
        "sides": {side: {"tokens": tokens_of} for side, tokens_of in names.items()},
        "outputs": [],
        "sites": sites,
        "vocabulary": None,
        "rollout": None,
        "checks": [],
        "lens": None,
        "words": [],
        "edits": [],
        "opens": [],
        "says": None,
    }


def _numbered(names: Mapping[str, Sequence[str]]) -> list[str] | None:
    """A note, in English and Korean, on sequences whose length differs from the tokens'."""
    numbered = [side for side in names if is_numbered(side)]
    if not numbered:
        return None
    listed = ", ".join(numbered)
    return [
        "Some attention layers have more or fewer places than tokens, as after pooling. These are numbered: "
        f"{listed}.",
        f"풀링 등으로 자리의 수가 토큰과 다른 어텐션 층이 있으며, 그 자리는 번호로 나타냅니다: {listed}.",
    ]
