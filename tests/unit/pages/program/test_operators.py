"""Each operator of the page equals that of PyTorch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from jarilab.pages.kit.page import bundle
from jarilab.pages.program.graph import OPERATORS

pytestmark = pytest.mark.browser

SIZES = {name for name in OPERATORS if name.startswith(("operator.", "torch.", "sym_"))}

torch.manual_seed(5)
X, Y = torch.randn(2, 3, 4), torch.randn(3, 1)
POSITIVE = X.abs() + 0.1
WHOLE, OTHER = torch.tensor([[3, -7, 0], [5, 2, -1]]), torch.tensor([[2, 3, 5], [-4, 1, 3]])
TRUE, FALSE = WHOLE > 0, OTHER > 1
SQUARE, PAIR = torch.randn(3, 4), torch.randn(4, 2)
PICK = torch.tensor([[0, 2], [1, 1]])
INDEX = torch.randint(0, 3, (2, 3, 4))
HALVES = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.2, -0.7, float("inf"), float("nan")])
INFINITE = float("inf")

CASES: list[tuple[str, tuple[Any, ...]]] = [
    *[
        (f"{name}.default", (X,))
        for name in ("abs", "sign", "neg", "exp", "exp2", "expm1", "sin", "cos", "tan", "atan")
    ],
    *[(f"{name}.default", (3 * X,)) for name in ("tanh", "erf", "sigmoid", "relu", "silu", "floor", "ceil", "trunc")],
    *[(f"{name}.default", (POSITIVE,)) for name in ("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal")],
    *[(f"{name}.Tensor", (X, Y)) for name in ("add", "sub", "mul", "div", "fmod", "remainder")],
    *[(f"{name}.Scalar", (X, 0.7)) for name in ("add", "sub", "mul", "div", "fmod", "remainder")],
    *[
        (f"{name}.{kind}", (WHOLE, with_what))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for kind, with_what in (("Tensor", OTHER), ("Scalar", 2))
    ],
    *[(f"{name}.default", (X, X.flip(0))) for name in ("maximum", "minimum", "atan2", "hypot")],
    *[(f"logical_{name}.default", (WHOLE, TRUE)) for name in ("and", "or", "xor")],
    *[(f"bitwise_{name}.Tensor", pair) for name in ("and", "or", "xor") for pair in ((TRUE, FALSE), (WHOLE, OTHER))],
    ("bitwise_and.Scalar", (WHOLE, 3)),
    ("bitwise_or.Scalar", (WHOLE, 4)),
    ("bitwise_not.default", (WHOLE,)),
    ("bitwise_not.default", (TRUE,)),
    ("logical_not.default", (WHOLE,)),
    ("isnan.default", (HALVES,)),
    ("isinf.default", (HALVES,)),
    ("round.default", (HALVES,)),
    ("remainder.Scalar", (WHOLE, 3)),
    ("fmod.Scalar", (WHOLE, 3)),
    ("div.Tensor_mode", (WHOLE, OTHER)),
    ("div.Tensor", (WHOLE, OTHER)),
    ("gelu.default", (3 * X,)),
    ("pow.Tensor_Scalar", (POSITIVE, 1.5)),
    ("pow.Scalar", (10000.0, X)),
    ("pow.Tensor_Tensor", (POSITIVE, X)),
    ("clamp.default", (WHOLE, -2, 2)),
    ("clamp.default", (X, None, 0.5)),
    ("clamp.Tensor", (X, X * 0.5, X * 2)),
    ("clamp_min.default", (X, 0.1)),
    ("clamp_max.default", (X, 0.1)),
    ("where.self", (TRUE, WHOLE, OTHER)),
    ("where.ScalarOther", (TRUE, WHOLE, 7)),
    ("where.ScalarSelf", (TRUE, 7, WHOLE)),
    ("where.Scalar", (TRUE, 1.5, -INFINITE)),
    ("masked_fill.Scalar", (WHOLE, TRUE, 9)),
    ("masked_fill.Tensor", (X, X > 0, torch.tensor(-INFINITE))),
    ("mm.default", (SQUARE, PAIR)),
    ("bmm.default", (X, X.transpose(1, 2))),
    ("mv.default", (SQUARE, PAIR[:, 0])),
    ("dot.default", (PAIR[:, 0], PAIR[:, 1])),
    ("addmm.default", (PAIR[0], SQUARE, PAIR)),
    ("baddbmm.default", (X[:, :, :3], X, X.transpose(1, 2))),
    *[(f"{name}.default", (X,)) for name in ("sum", "mean", "prod", "max", "min", "argmax", "argmin", "any", "all")],
    *[(f"{name}.dim", (X, 1, True)) for name in ("max", "min")],
    *[(f"{name}.dim", (TRUE, -1, True)) for name in ("any", "all")],
    *[(f"{name}.dims", (TRUE, [0, 1])) for name in ("any", "all")],
    *[(f"{name}.default", (X, [0, 2])) for name in ("amax", "amin")],
    *[(f"{name}.default", (X, 1, True)) for name in ("argmax", "argmin")],
    ("sum.dim_IntList", (X, [0, -1])),
    ("sum.dim_IntList", (TRUE, [1])),
    ("mean.dim", (X, [1], True)),
    ("prod.dim_int", (X, 1)),
    ("var.correction", (X, [1])),
    ("var.dim", (X, [2], False)),
    ("cumsum.default", (TRUE.long(), 0)),
    ("_softmax.default", (X, 1, False)),
    ("_log_softmax.default", (X, -1, False)),
    ("native_layer_norm.default", (X, [4], SQUARE[0], SQUARE[1], 1e-5)),
    ("view.default", (X, [6, -1])),
    ("_unsafe_view.default", (X, [24])),
    ("reshape.default", (X, [4, 6])),
    *[(f"{name}.default", (X,)) for name in ("alias", "detach", "clone", "lift_fresh_copy")],
    ("_to_copy.default", (3 * X, torch.int64)),
    ("_to_copy.default", (X, torch.bool)),
    ("_to_copy.default", (TRUE, torch.float64)),
    ("permute.default", (X, [2, 0, -2])),
    ("transpose.int", (X, 0, -1)),
    ("t.default", (SQUARE,)),
    ("expand.default", (Y, [2, -1, 4])),
    ("unsqueeze.default", (X, -2)),
    ("squeeze.default", (Y,)),
    ("squeeze.dim", (Y, 1)),
    ("squeeze.dims", (Y, [0, 1])),
    ("slice.Tensor", (X, 2, 1, 9223372036854775807, 2)),
    ("slice.Tensor", (X, 1, -2)),
    ("select.int", (X, 1, -1)),
    ("flip.default", (X, [0, 2])),
    ("cat.default", ([X, X[:, :1]], 1)),
    ("stack.default", ([SQUARE, SQUARE], -1)),
    ("repeat.default", (SQUARE, [2, 1, 3])),
    ("split_with_sizes.default", (X, [1, 3], -1)),
    ("split.Tensor", (X, 3, 2)),
    ("unbind.int", (X, 1)),
    ("constant_pad_nd.default", (X, [1, -1, 0, 2], 0.5)),
    ("embedding.default", (SQUARE, PICK)),
    ("index_select.default", (X, 1, PICK[0])),
    ("index.Tensor", (X, [None, PICK])),
    ("index.Tensor", (X, [torch.tensor([1]), None, PICK])),
    ("index.Tensor", (X, [torch.tensor([[1], [0]]), PICK])),
    ("gather.default", (X, 1, INDEX)),
    ("gather.default", (X, -1, PICK[None])),
    ("scatter.src", (X, 1, INDEX[:, :1], X + 1)),
    ("scatter.value", (X, 2, PICK[None], 7.0)),
    ("scatter_add.default", (X, 1, INDEX, X)),
    ("full.default", ([2, 3], -INFINITE)),
    ("full_like.default", (X, 3)),
    ("scalar_tensor.default", (-INFINITE,)),
    ("zeros.default", ([2, 0],)),
    ("ones.default", ([2],)),
    ("zeros_like.default", (X,)),
    ("ones_like.default", (WHOLE,)),
    ("new_zeros.default", (X, [2, 2])),
    ("fill.Scalar", (X, 2)),
    ("arange.default", (4,)),
    ("arange.start", (2, 5)),
    ("arange.start_step", (5, 0, -2)),
    ("tril.default", (X, 1)),
    ("triu.default", (X, -1)),
]
UNTRIED = {"empty.memory_format", "div.Scalar_mode"}  # what is there has no meaning; the same function as Tensor_mode


def js_of(value: Any) -> Any:
    """An argument as the page has it in its hands."""
    if isinstance(value, torch.Tensor):
        return {"shape": list(value.shape), "dtype": name_of(value), "numbers": value.double().flatten().tolist()}
    return [js_of(one) for one in value] if isinstance(value, list | tuple) else value


def name_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


RUN = """([name, dtype, given]) => {
    const held = (value) => Array.isArray(value) ? value.map(held) : value?.numbers
        ? tensors.converted(tensors.tensor("float64", value.shape, Float64Array.from(value.numbers)), value.dtype)
        : value;
    const numbered = ({ dtype, shape, data }) => ({ dtype, shape, numbers: [...data] });
    const plain = (value) => Array.isArray(value) ? value.map(numbered) : numbered(value);
    return plain(operators.OPERATORS[name](dtype, ...given.map(held)));
}"""


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page()
    script = bundle("jarilab.pages.kit", "kit/program.js")
    opened.add_script_tag(
        content=f"{script}\nwindow.operators = kit_program_operators$; window.tensors = kit_program_tensors$;"
    )
    yield opened
    opened.close()


def filled(operator: Any, given: tuple[Any, ...]) -> list[Any]:
    """The arguments as a program has them: those that were left out too, and none that says where numbers are kept."""
    without = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"}
    arguments = operator._schema.arguments
    whole = [*given, *(argument.default_value for argument in arguments[len(given) :])]
    return [value for argument, value in zip(arguments, whole, strict=True) if argument.name not in without]


@pytest.mark.parametrize(("name", "given"), CASES, ids=[f"{i} {case[0]}" for i, case in enumerate(CASES)])
def test_operator_equals_pytorch(page: Any, name: str, given: tuple[Any, ...]) -> None:
    packet, overload = name.split(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload)
    dtype = next((one for one in given if isinstance(one, torch.dtype)), None)
    given = tuple(one for one in given if not isinstance(one, torch.dtype))
    args = filled(operator, given)
    if name == "div.Tensor_mode":
        wanted = operator(*given, rounding_mode="floor")
        args = [*given, "floor"]
    else:
        wanted = operator(*given) if dtype is None else operator(*given, dtype=dtype)
    several = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
    dtypes = [name_of(one) for one in several]
    found = page.evaluate(RUN, [name, dtypes if len(dtypes) > 1 else dtypes[0], [js_of(one) for one in args]])
    found = found if isinstance(found, list) else [found]
    assert len(found) == len(several)
    for one, expected in zip(found, several, strict=True):
        assert (one["dtype"], one["shape"]) == (name_of(expected), list(expected.shape))
        numbers = [np.nan if number is None else number for number in one["numbers"]]
        np.testing.assert_allclose(numbers, expected.double().flatten().numpy(), rtol=2e-6, atol=1e-6)


def test_every_operator_is_tested() -> None:
    assert OPERATORS - SIZES - {name for name, _ in CASES} == UNTRIED
    assert {name for name, _ in CASES} <= OPERATORS
