"""Replaced parts: every architecture, against hooks written by hand."""

import pytest
import torch
from torch import Tensor

from helpers.any_models import ARCHITECTURES, LENGTHS, any_model
from helpers.circuits import Circuit, examples, previous
from jarilab.core.errors import UserError
from jarilab.inspect.cause.copies import Copies
from jarilab.inspect.cause.parts import KINDS, ModelParts
from jarilab.inspect.study.losses import logits_of

COUNTS = {"bert": (12, 3, 3, 4), "t5": (24, 6, 4, 6), "jarilab": (24, 6, 4, 6)}


def logits(outputs) -> Tensor:
    """The logits, or the last hidden states of an encoder without a head."""
    result = logits_of(outputs)
    return outputs.last_hidden_state if result is None else result


def copies_of(name: str, dtype=torch.float64):
    model, batch = any_model(name, dtype)
    copies = Copies(ModelParts(model, batch))
    clean = copies.run_clean(batch)
    copies.check(clean, lambda outputs, batch: logits(outputs).flatten(1))
    return copies, clean


def keep(part, call, value):
    return value


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_parts_of_every_architecture_are_listed(name):
    copies, clean = copies_of(name)
    parts = copies.parts.select()
    counts = tuple(sum(part.kind == kind for part in parts) for kind in KINDS)
    assert counts == COUNTS.get(name, (12, 3, 3, 4))
    assert len({part.short for part in parts}) == len(parts)
    for part in parts:
        assert all(len(value) == len(clean.batch) for value in copies.values(clean, part))
    assert copies.can_replay
    assert copies.can_freeze


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_replacing_nothing_is_bit_identical(name):
    copies, clean = copies_of(name, torch.float32)
    for part in copies.parts.select():
        for each in (part, part.at(-1)):
            outputs = copies.run(clean, [(each,)], keep)
            assert torch.equal(logits(outputs), logits(clean.outputs)), part.short


@pytest.mark.parametrize("name", ["llama", "bert", "jarilab", "jarilab decoder"])
def test_copies_equal_hooks_by_hand(name):
    copies, clean = copies_of(name)
    parts = [part for part in copies.parts.select(["mlp", "stream"]) if not part.index]
    groups = [(part,) for part in parts] + [(part.at(2),) for part in parts]
    for numbers in copies.forwards(clean, groups):
        together = copies.run(clean, [groups[each] for each in numbers], lambda part, call, value: 2 * value + 1)
        for number, output in zip(numbers, logits(together).split(len(clean.batch)), strict=True):
            assert torch.allclose(output, by_hand(copies, clean, groups[number][0]), atol=1e-9)


def by_hand(copies, clean, part) -> Tensor:
    """The logits with twice the part's value plus one."""

    def change(tensor: Tensor) -> Tensor:
        places = slice(None) if part.position is None else slice(part.position, part.position + 1)
        tensor = tensor.clone()
        tensor[:, places] = 2 * tensor[:, places] + 1
        return tensor

    if part.kind == "stream":
        module = copies.model.get_submodule(part.site)
        hook = module.register_forward_pre_hook(lambda module, args: (change(args[0]), *args[1:]))
    else:
        (path,) = copies.parts.mlps[part.site]
        hook = copies.model.get_submodule(path).register_forward_hook(lambda module, args, output: change(output))
    try:
        with torch.no_grad():
            return logits(clean.batch.forward(copies.model))
    finally:
        hook.remove()


def test_an_attention_is_all_its_heads():
    copies, clean = copies_of("llama")
    attention = copies.parts.select(["attention"])[1]
    heads = tuple(part for part in copies.parts.select(["head"]) if part.site == attention.site)
    outputs = copies.run(clean, [(attention.at(1),), tuple(head.at(1) for head in heads)], lambda part, call, z: -z)
    one, other = logits(outputs).split(len(clean.batch))
    assert torch.equal(one, other)
    assert (one - logits(clean.outputs)).abs().max() > 1e-3


def test_positions_count_tokens_without_padding():
    copies, clean = copies_of("llama")
    part = copies.parts.select(["stream"])[0]
    places = [row.nonzero()[:, 0].tolist() for row in copies.positions(clean, part.at(-2))]
    assert places == [[length - 2] for length in LENGTHS]
    with pytest.raises(UserError, match=r"L0 stream, row 3: expected a position from -6 to 5, got 7"):
        copies.run(clean, [(part.at(7),)], keep)


def test_a_model_without_layers_has_no_stream():
    class Flat(Circuit):
        def __init__(self):
            super().__init__([previous()])
            self.only = self.layers[0]
            del self.layers
            self.__dict__["layers"] = [self.only]

    parts = ModelParts(Flat(), examples(4))
    assert len(parts.select(["head", "attention"])) == 2
    for kind in ("stream", "mlp"):
        with pytest.raises(UserError, match=r"list of layers.*Flat.*replace heads"):
            parts.select([kind])
    with pytest.raises(UserError, match="none in Circuit"):
        ModelParts(Circuit([previous()]), examples(4)).select(["mlp"])
    with pytest.raises(UserError, match="neuron"):
        parts.select(["neuron"])
