"""What cannot be recorded is refused by its name."""

import types

import pytest
import torch
from torch import nn
from torch.nn import functional

import jarilab
from jarilab.core.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x).unsqueeze(1)
        return functional.scaled_dot_product_attention(y, y, y)


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


X = torch.randn(2, 3, 8)


@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, X)])
def test_scripted_model_is_refused(make):
    model = make(Attention().eval())
    with pytest.raises(UserError, match=r"torch\.jit"), jarilab.record(model):
        model(X)


def test_scripted_part_of_a_model_is_named():
    model = Around(torch.jit.script(Attention())).eval()
    with pytest.raises(UserError, match=r"torch\.jit \(in inner\)"), jarilab.record(model):
        model(X)


def test_exported_graph_is_named():
    program = torch.export.export(Attention().eval(), (X,))
    model = program.module()
    with pytest.raises(UserError, match=r"graph of torch\.export \("), jarilab.record(model):
        model(X)
    with pytest.raises(UserError, match="ExportedProgram"), jarilab.record(program):
        pass


class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q):
        with torch._C.DisableTorchFunction():  # as a kernel that is not of PyTorch
            return (q @ q.mT).softmax(-1) @ q


class Custom(nn.Module):
    def forward(self, x):
        return Kernel.apply(x)


def test_custom_autograd_function_is_named():
    model = Around(Custom())
    with pytest.raises(UserError, match=r"Kernel \(in "), jarilab.record(model):
        model(X)


def test_extension_is_named(monkeypatch):
    kernel = types.FunctionType(Custom.forward.__code__, {}, "flash_attn_func")
    kernel.__module__ = "flash_attn.flash_attn_interface"
    monkeypatch.setitem(globals(), "flash_attn_func", kernel)
    model = Custom()
    with pytest.raises(UserError, match="extension flash_attn "), jarilab.record(model):
        pass


def test_attention_implementation_is_named():
    model = Custom()
    model.config = types.SimpleNamespace(_attn_implementation="flash_attention_2")
    with pytest.raises(UserError, match="flash_attention_2"), jarilab.record(model):
        pass


def test_a_scripted_attention_beside_recorded_ones_is_missing():
    model = nn.Sequential(Attention(), torch.jit.script(Attention()), torch.jit.script(nn.GELU()))
    with pytest.warns(UserWarning, match=r"tape\.missing.*1: .*torch\.jit"), jarilab.record(model) as tape:
        model[2](model[1](model[0](X)[:, 0]))
    assert list(tape.missing) == ["1"]
