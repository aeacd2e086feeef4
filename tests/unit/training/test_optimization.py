"""Optimizers compute what PyTorch's do and import no compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Literal

import pytest
import torch
from torch import nn

from jarilab.core.devices import CPU, has_bfloat16
from jarilab.nn.sublayers import TokenEmbedding
from jarilab.runs.training_options import Training
from jarilab.training import optimization
from jarilab.training.optimization import AdamW, StackedMuon, build_optimizers

SHAPES = (
    [(64, 64)] * 5
    + [(128, 64)] * 2
    + [(64, 256)] * 3
    + [(256, 64)]
    + [(96, 33), (8, 64), (8, 64), (200, 160), (200, 160)]
)
OPTIONS: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}


def matrices() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def give_gradients(parameters: list[nn.Parameter], step: int) -> None:
    """One matrix is not used in every other step."""
    generator = torch.Generator().manual_seed(step)
    for number, parameter in enumerate(parameters):
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None if number == 2 and step % 2 else drawn


@pytest.fixture
def with_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that has bfloat16 products, as far as the optimizer knows."""
    monkeypatch.setattr(optimization, "has_bfloat16", lambda device: True)


def states(optimizer: torch.optim.Optimizer) -> dict[int, torch.Tensor]:
    return {number: held["momentum_buffer"] for number, held in optimizer.state_dict()["state"].items()}


@pytest.mark.skipif(not has_bfloat16(CPU), reason="without bfloat16 products the iteration is in float32")
@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        {**OPTIONS, "adjust_lr_fn": None, "nesterov": False, "weight_decay": 0.0},
        {**OPTIONS, "ns_steps": 3, "momentum": 0.5, "adjust_lr_fn": "original"},
    ],
    ids=["ours", "original", "other"],
)
def test_ten_steps_are_those_of_torch_bit_for_bit(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stacked: list[int] = []
    orthogonalised = optimization._orthogonalised

    def counted(updates: list[torch.Tensor], *rest: Any) -> list[torch.Tensor]:
        stacked.append(len(updates))
        return orthogonalised(updates, *rest)

    monkeypatch.setattr(optimization, "_orthogonalised", counted)
    theirs, ours = matrices(), matrices()
    plain, own = torch.optim.Muon(theirs, **options), StackedMuon(ours, **options)
    for step in range(10):
        for parameters, optimizer in ((theirs, plain), (ours, own)):
            give_gradients(parameters, step)
            optimizer.step()
        assert all(torch.equal(one, other) for one, other in zip(theirs, ours, strict=True)), step
    assert stacked[:4] == [5, 2, 4, 1], (
        "all of one shape, or of it transposed, at once, but for those that are too small or too large"
    )
    left, right = states(plain), states(own)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[number], right[number]) for number in left)
    assert plain.state_dict()["param_groups"] == own.state_dict()["param_groups"]


def orthogonalised_exactly(update: torch.Tensor) -> torch.Tensor:
    """Five iterations of Newton and Schulz as Jordan et al. (2024) write them, in float64."""
    wide = update.shape[0] <= update.shape[1]
    x = (update if wide else update.mT).double()
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x if wide else x.mT


def test_without_bfloat16_the_iteration_is_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimization, "has_bfloat16", lambda device: False)
    parameters, before = matrices(), matrices()
    optimizer = StackedMuon(parameters, lr=0.02, weight_decay=0.0, nesterov=False, adjust_lr_fn="match_rms_adamw")
    give_gradients(parameters, 0)
    optimizer.step()
    for parameter, start in zip(parameters, before, strict=True):
        assert parameter.grad is not None
        size = 0.02 * 0.2 * max(parameter.shape) ** 0.5
        expected = start.double() - size * orthogonalised_exactly(parameter.grad)
        # In bfloat16 the difference is a hundred times as large.
        torch.testing.assert_close(parameter.double(), expected, atol=1e-5 * size, rtol=1e-6)


@pytest.mark.usefixtures("with_bfloat16")
@pytest.mark.parametrize(("first", "then"), [(torch.optim.Muon, StackedMuon), (StackedMuon, torch.optim.Muon)])
def test_either_goes_on_from_the_state_of_the_other(first: type, then: type) -> None:
    ours, theirs = matrices(), matrices()
    begun, whole = first(ours, **OPTIONS), first(theirs, **OPTIONS)
    for step in range(2):
        for parameters, optimizer in ((ours, begun), (theirs, whole)):
            give_gradients(parameters, step)
            optimizer.step()
    continued = then(ours, **OPTIONS)
    continued.load_state_dict(begun.state_dict())
    for parameters, optimizer in ((ours, continued), (theirs, whole)):
        give_gradients(parameters, 2)
        optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_step_that_fails_leaves_the_groups_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = matrices()
    optimizer = StackedMuon(parameters, **OPTIONS)
    give_gradients(parameters, 0)

    def fails(*_: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(torch.optim.Muon, "step", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        optimizer.step()
    assert [len(group["params"]) for group in optimizer.param_groups] == [len(SHAPES)]
    assert "all" not in optimizer.param_groups[0]


# Without the compiler -------------------------------------------------------------------------------------------------


SCRIPT = """
import sys
import torch
from jarilab.runs.training_options import Training
from jarilab.training.optimization import build_optimizers

model = torch.nn.Linear(64, 64)
for optimizer in build_optimizers(model, Training(optimizer=sys.argv[1])).values():
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
print({"torch._dynamo", "sympy"} & sys.modules.keys())
"""


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_imports_nothing_that_compiles(optimizer: str) -> None:
    command = [sys.executable, "-c", SCRIPT, optimizer]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n"


def test_steps_of_adamw_are_those_of_torch_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(1)
    start = [torch.randn(shape, generator=generator) for shape in ((3, 5), (7,))]
    theirs, ours = ([nn.Parameter(each.clone()) for each in start] for _ in range(2))
    options = {"lr": 0.1, "betas": (0.9, 0.98), "weight_decay": 0.1, "fused": True}
    plain, own = torch.optim.AdamW(theirs, **options), AdamW(ours, **options)
    for _ in range(3):
        for one, other in zip(theirs, ours, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        assert plain.step(lambda: 2.0) == own.step(lambda: 2.0) == 2.0
        assert all(torch.equal(one, other) for one, other in zip(theirs, ours, strict=True))
    left, right = plain.state_dict(), own.state_dict()
    assert left["param_groups"] == right["param_groups"]
    for number, values in left["state"].items():
        assert all(torch.equal(value, right["state"][number][name]) for name, value in values.items())


@pytest.mark.parametrize("freeze", ["weight", "bias"])
def test_adamw_has_no_empty_group(freeze: str) -> None:
    model = nn.Linear(64, 64)
    model.get_parameter(freeze).requires_grad_(False)
    (group,) = build_optimizers(model, Training(optimizer="adamw", weight_decay=0.1))["adamw"].param_groups
    assert group["weight_decay"] == (0.1 if freeze == "bias" else 0.0)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_tied_weights_are_updated_once_as_a_table(optimizer: Literal["adamw", "muon"]) -> None:
    model = nn.ModuleDict({"scores": nn.Linear(4, 8, bias=False), "tokens": TokenEmbedding(8, 4)})
    model["scores"].weight = model["tokens"].weight
    (built,) = build_optimizers(model, Training(optimizer=optimizer)).values()
    (group,) = built.param_groups
    assert isinstance(built, AdamW)
    assert (len(group["params"]), group["weight_decay"]) == (1, 0.0)


def test_its_own_are_built() -> None:
    found = build_optimizers(nn.Linear(64, 64), Training(optimizer="adamw"))
    assert isinstance(found["adamw"], AdamW)
    assert found["adamw"].param_groups[0]["fused"]
