"""The drawings of an encoding, one set for each of its hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jarilab.pages.encodings import adding, plane, rotating, scoring
from jarilab.pages.encodings.drawn_encoding import DrawnEncoding
from jarilab.pages.encodings.facts import facts
from jarilab.pages.encodings.svg import Drawing, Words

Draw = Callable[[DrawnEncoding, str], list[Drawing]]

ON_A_LINE: dict[str, Draw] = {
    "embed": adding.drawings,
    "inject": adding.drawings,
    "rotate": rotating.drawings,
    "bias": scoring.biases,
    "terms": scoring.terms,
    "values": scoring.values,
}
IN_A_PLANE: dict[str, Draw] = {
    "embed": plane.adding,
    "inject": plane.adding,
    "rotate": plane.rotating,
    "bias": plane.scoring,
    "terms": plane.scoring,
    "values": plane.values,
}
BY_AXES = {1: ON_A_LINE, 2: IN_A_PLANE}


@dataclass(frozen=True, eq=False)
class Column:
    """The name, sentences, facts and drawings of one encoding or softmax."""

    name: str
    sentences: list[str]
    facts: list[Words]
    drawings: list[Drawing]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "what": self.sentences,
            "facts": [words[0] for words in self.facts],
            "drawings": [drawing.as_dict() for drawing in self.drawings],
        }


def column_of(subject: DrawnEncoding) -> Column:
    """All drawings of an encoding. Raises UserError if one of its hooks fails."""
    drawings_by_name: dict[str, Drawing] = {}
    for axes in subject.axes:
        for hook in subject.hooks:
            for drawing in BY_AXES[axes][hook](subject, hook):
                drawings_by_name.setdefault(drawing.name, drawing)
    return Column(subject.spec, subject.sentences, facts(subject), list(drawings_by_name.values()))
