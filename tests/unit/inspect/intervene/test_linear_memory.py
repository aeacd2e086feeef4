"""Linear layers that are not computed again: the same bits as a whole forward."""

import importlib.util

import pytest
import torch
from torch import nn

from helpers.any_models import hugging_face
from helpers.linear_count import Count
from jarilab.inspect.intervene import linear_memory
from jarilab.inspect.intervene.interventions import HeadOff, Link, TokenOff, operate
from jarilab.inspect.intervene.linear_memory import LinearMemory
from jarilab.inspect.record.capture import record

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@torch.no_grad()
def computed(run, memory=None):
    """The layers that are computed, and what `run` returns."""
    with Count() as count:
        if memory is None:
            return run(), count.layers
        with memory.reuse():
            return run(), count.layers


@torch.no_grad()
def recorded(run):
    memory = LinearMemory()
    with memory.record():
        run()
    return memory


def bits(x):
    return x.contiguous().view(torch.int32)


def edits_of(tape):
    names = tape.sites
    middle = names[len(names) // 2]
    return [
        [HeadOff(names[0], 1)],
        [HeadOff(middle, 3)],
        [HeadOff(names[-1], 0)],
        [HeadOff(names[-1], 0), Link(middle, None, 2, 1, "erase"), HeadOff(middle, 2)],
        [TokenOff.everywhere(tape, tape.site(names[0]).keys, 3)],
    ]


@needs_transformers
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "llama"])
def test_edited_forwards_have_the_bits_of_whole_ones(name):
    model, batch = hugging_face(name)

    def run():
        return batch.forward(model)

    def edited(edits):
        with operate(model, edits), record(model) as tape:
            outputs = run()
        return outputs, tape

    with torch.no_grad(), record(model) as tape:
        run()
    memory, shares = recorded(run), []
    for edits in edits_of(tape):
        (expected, whole), all_layers = computed(lambda edits=edits: edited(edits))
        (outputs, reused), layers = computed(lambda edits=edits: edited(edits), memory)
        assert torch.equal(bits(outputs[0]), bits(expected[0]))
        assert reused.sites == whole.sites
        for site in whole.sites:
            assert torch.equal(bits(reused.weights(site)), bits(whole.weights(site)))
            assert torch.equal(bits(reused.recorded(site).output), bits(whole.recorded(site).output))
            assert reused.site(site) == whole.site(site)
        shares.append(layers / all_layers)
    assert shares[0] > shares[1] > shares[2] > 0, "the later the edit, the fewer are computed"


def two_layers():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)).eval()


def test_other_inputs_are_computed():
    model, x = two_layers(), torch.randn(1, 3, 4)
    memory = recorded(lambda: model(x))
    assert computed(lambda: model(x), memory)[1] == 0
    other = x.clone()
    other[0, 2, 1] += 1
    for each in (other, x[:, :2], -x, x.transpose(1, 2).contiguous().transpose(1, 2).repeat(2, 1, 1)):
        output, layers = computed(lambda each=each: model(each), memory)
        assert layers > 0
        assert torch.equal(output, model(each))


def test_zeros_of_another_sign_are_another_input():
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data.fill_(1.0)
    zero = torch.zeros(1, 2)
    memory = recorded(lambda: layer(zero))
    output, layers = computed(lambda: layer(-zero), memory)
    assert (bool(output.signbit()), layers) == (bool(layer(-zero).signbit()), 1)


def test_what_is_written_into_later_is_not_given_again():
    model, x = two_layers(), torch.randn(1, 3, 4)
    memory, before = recorded(lambda: model(x)), model(x)
    given, _ = computed(lambda: model(x), memory)
    given.zero_()
    assert torch.equal(computed(lambda: model(x), memory)[0], before)
    with torch.no_grad():
        x.mul_(2)
    assert torch.equal(computed(lambda: model(x), memory)[0], model(x))
    with torch.no_grad():
        model[0].weight.mul_(2)
    output, layers = computed(lambda: model(x), recorded(lambda: model(x)))
    assert (torch.equal(output, model(x)), layers) == (True, 0)
    memory = recorded(lambda: model(x))
    with torch.no_grad():
        model[2].weight.mul_(2)
    output, layers = computed(lambda: model(x), memory)
    assert (torch.equal(output, model(x)), layers) == (True, 1)


def test_gradients_are_not_lost():
    model, x = two_layers(), torch.randn(1, 3, 4)
    memory = recorded(lambda: model(x))
    with memory.reuse():
        model(x).sum().backward()
    assert model[0].weight.grad is not None


def test_memory_is_bounded(monkeypatch):
    model, x = two_layers(), torch.randn(1, 3, 4)
    monkeypatch.setattr(linear_memory, "MAX_BYTES", 100)
    memory = recorded(lambda: model(x))
    output, layers = computed(lambda: model(x), memory)
    assert (torch.equal(output, model(x)), layers) == (True, 1)


def test_a_slice_counts_as_the_storage_that_it_keeps(monkeypatch):
    monkeypatch.setattr(linear_memory, "MAX_BYTES", 1000)
    layer, x = nn.Linear(2, 2), torch.randn(1000, 2)
    memory = recorded(lambda: layer(x[:1]))
    assert computed(lambda: layer(x[:1]), memory)[1] == 1
