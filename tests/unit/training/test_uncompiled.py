"""Optimizers without PyTorch's compiler: the same steps, the same state, and nothing that is imported for them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from jarilab.runs.options import Training
from jarilab.training.optim import build_optimizers
from jarilab.training.uncompiled import AdamW

SCRIPT = """
import sys
import torch
from jarilab.runs.options import Training
from jarilab.training.optim import build_optimizers

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


def test_steps_are_those_of_torch_bit_for_bit() -> None:
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


def test_its_own_are_built() -> None:
    found = build_optimizers(nn.Linear(64, 64), Training(optimizer="adamw"))
    assert isinstance(found["adamw"], AdamW)
    assert found["adamw"].param_groups[0]["fused"]
