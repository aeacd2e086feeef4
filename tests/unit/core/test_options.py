"""Options are the keyword-only parameters of a function, some of which several functions share."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict, Unpack

import pytest
from annotated_types import Ge

from jarilab.core.errors import UserError
from jarilab.core.options import check_fields, options_of, read_options, unpack_options


def test_options_are_the_keyword_only_parameters():
    class Thing:
        def __init__(self, place, *, size: Annotated[int, Ge(1)] = 2, kind: Literal["a", "b"] = "a"):
            pass

    assert {name: option.default for name, option in options_of(Thing).items()} == {"size": 2, "kind": "a"}


def test_a_sentence_of_two_options_is_said_of_both() -> None:
    class Both:
        """What it is.

        shift: how far. mixup, cutmix: how much. flip: whether.
        """

        def __init__(self, *, shift: int = 1, mixup: float = 0.0, cutmix: float = 0.0, flip: bool = False):
            pass

    meanings = {name: option.meaning for name, option in options_of(Both).items()}
    assert meanings == {"shift": "how far", "mixup": "how much", "cutmix": "how much", "flip": "whether"}


class PaintKeywords(TypedDict, total=False):
    coats: Annotated[int, Ge(1)]
    colour: Literal["red", "blue"]


@dataclass(frozen=True)
class Paint:
    """How it is painted.

    coats: of paint. colour: of the last one.
    """

    coats: int = 1
    colour: str = "red"
    price: float = 3.0


class House:
    """A house.

    doors: how many.
    """

    @unpack_options(Paint(colour="blue"))
    def __init__(self, rooms: int, *, doors: int = 2, **paint: Unpack[PaintKeywords]):
        self.rooms, self.doors, self.paint = rooms, doors, Paint(**paint)


def test_shared_options_are_options_like_any_other() -> None:
    options = options_of(House)
    assert [(one.name, one.default, one.meaning) for one in options.values()] == [
        ("coats", 1, "of paint"),
        ("colour", "blue", "of the last one"),
        ("doors", 2, "how many"),
    ]
    assert read_options("a house", options, {"coats": "3"}) == {"coats": 3}
    with pytest.raises(UserError, match="a house: coats: expected 1 or more, got '0'"):
        read_options("a house", options, {"coats": "0"})


def test_a_function_gets_every_shared_option() -> None:
    assert House(3).paint == Paint(colour="blue")
    assert House(3, coats=2).paint == Paint(coats=2, colour="blue")
    assert House(rooms=3, colour="red", doors=1).paint == Paint()


def test_the_signature_names_shared_options() -> None:
    assert list(inspect.signature(House).parameters) == ["rooms", "coats", "colour", "doors"]
    assert "coats: of paint" in (House.__init__.__doc__ or "")


@pytest.mark.parametrize("keywords", [{"coat": 2}, {"price": 4.0}, {"paint": Paint()}])
def test_a_keyword_that_is_not_there_is_refused(keywords) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(keywords))}'"):
        House(3, **keywords)


@pytest.mark.parametrize("value", [[[["rotary"]]] * 5000, {"sum": ["rotary"] * 5000}])
def test_a_long_value_of_a_record_is_shortened(value: object) -> None:
    with pytest.raises(UserError) as refused:
        check_fields("run.json", {"encoding": str}, {"encoding": value})
    assert len(str(refused.value)) < 300
    assert str(refused.value).endswith("; put the file back as it was written")
