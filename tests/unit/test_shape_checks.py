"""The tests' own look at shapes: each kind of call, and each kind of result, is looked at, and only once."""

import dataclasses
import functools
from typing import Any

import beartype
import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from helpers.shape_checks import check_shapes

ORIGINAL = jaxtyping._decorator.jaxtyped
LOOKS: list[Any] = []


@pytest.fixture(autouse=True)
def no_looks() -> None:
    LOOKS.clear()


def noticed(function: Any) -> Any:
    """A type checker that notes what it looks at."""
    look = beartype.beartype(function)

    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        LOOKS.append(args)
        return look(*args, **kwargs)

    return noting


def checked(what: Any) -> Any:
    return check_shapes(ORIGINAL, what, typechecker=noticed)


def mixed(a_BL: Float[Tensor, "B L"], b_BL: Float[Tensor, "B L"], width: int = 1) -> Float[Tensor, "B D"]:
    return a_BL[:, :1].expand(-1, width) if width else a_BL[0]


def test_what_was_looked_at_is_not_looked_at_again() -> None:
    function = checked(mixed)
    ones = torch.ones(2, 3)
    function(ones, ones)
    first = len(LOOKS)
    function(ones * 2, b_BL=ones)
    assert len(LOOKS) == 2 * first, "by name it is another kind of call"
    function(ones, ones * 2)
    function(ones, b_BL=ones * 2)
    assert len(LOOKS) == 2 * first
    function(ones[:1], ones[:1])
    assert len(LOOKS) == 3 * first


@pytest.mark.parametrize("other", [torch.ones(2, 4), torch.ones(2, 3, 1), torch.ones(2, 3, dtype=torch.int64), None])
def test_a_wrong_argument_is_an_error_after_right_ones(other: Any) -> None:
    function = checked(mixed)
    ones = torch.ones(2, 3)
    function(ones, ones)
    with pytest.raises(jaxtyping.TypeCheckError, match=r"parameters of.*mixed"):
        function(ones, other)


def test_a_wrong_result_is_an_error_after_right_ones_and_nothing_is_called_twice() -> None:
    called = []

    def mixing(a_BL: Float[Tensor, "B L"], width: int) -> Float[Tensor, "B D"]:
        called.append(width)
        return mixed(a_BL, a_BL, width)

    function = checked(mixing)
    ones = torch.ones(2, 3)
    assert [function(ones, width).shape for width in (1, 2, 2)] == [(2, 1), (2, 2), (2, 2)]
    for _ in range(2):
        with pytest.raises(jaxtyping.TypeCheckError, match=r"return value of.*mixing"):
            function(ones, 0)
    assert called == [1, 2, 2, 0, 0]


def test_a_data_class_is_looked_at_too() -> None:
    @checked
    @dataclasses.dataclass
    class Pair:
        one: Float[Tensor, "B L"]
        other: Float[Tensor, "B L"]

    Pair(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(jaxtyping.TypeCheckError, match="Pair"):
        Pair(torch.ones(2, 3), torch.ones(2, 4))


def test_shapes_within_what_holds_tensors_count() -> None:
    def count(rows: tuple[Float[Tensor, "B L"], ...]) -> int:
        return len(rows)

    function = checked(count)
    assert function((torch.ones(2, 3),)) == 1
    with pytest.raises(jaxtyping.TypeCheckError, match="count"):
        function((torch.ones(2),))


def test_functions_without_axes_are_left_to_pyright() -> None:
    def plain(number: int) -> int:
        return number

    assert checked(plain) is plain
