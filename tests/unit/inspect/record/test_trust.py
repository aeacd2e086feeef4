"""The comparison of maps with recorded outputs: rounding in half precision, outputs changed in place, NaN."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from jarilab.core.errors import UserError
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.record.foreign_call import versions_of
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens

HALF = [torch.bfloat16, torch.float16]
every_half = pytest.mark.parametrize("dtype", HALF, ids=str)


class Fused(nn.Module):
    """Causal attention by PyTorch's kernel; `change` gets its output."""

    def __init__(self, change=None):
        super().__init__()
        torch.manual_seed(0)
        self.maps = nn.Linear(16, 48)
        self.change = change

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.maps(x).chunk(3, -1))
        output = scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.change is not None:
            self.change(output)
        return output.transpose(1, 2).flatten(2)


class Eager(Fused):
    """The same, with a softmax of its own."""

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.maps(x).chunk(3, -1))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(2, 3) / 8**0.5).masked_fill(later, float("-inf"))
        weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
        return (weights @ v).transpose(1, 2).flatten(2)


def tape_of(model, dtype=torch.float32, length=50):
    with torch.no_grad(), record(model := model.to(dtype)) as tape:
        model(torch.randn(2, length, 16, generator=torch.Generator().manual_seed(1)).to(dtype))
    return tape


@every_half
@pytest.mark.parametrize("model", [Fused, Eager])
def test_right_maps_in_half_precision_hold(dtype, model):
    tape = tape_of(model(), dtype)
    trust = tape.trust(tape.sites[0])
    assert trust.rebuild_error <= 1e-6
    assert 1e-4 < trust.rounding < 2e-2
    assert trust.holds


def swap_heads(call):
    return {"k": call.k.flip(1)}


def shift_mask(call):
    queries, keys = call.q.shape[2], call.k.shape[2]
    return {"is_causal": False, "mask": torch.ones(1, 1, queries, keys, dtype=torch.bool).tril(1)}


def scale_twice(call):
    return {"scale": 2 * call.scale}


@every_half
@pytest.mark.parametrize("change", [swap_heads, shift_mask, scale_twice])
def test_wrong_maps_in_half_precision_do_not_hold(dtype, change):
    tape = tape_of(Fused(), dtype)
    (site,) = tape.sites
    recorded = tape.recorded(site)
    wrong = replace(recorded.source, **change(recorded.source))
    wrong = replace(wrong, versions=versions_of(wrong.q, wrong.k, wrong.v, wrong.mask, wrong.weights))
    trust = Tape({site: [replace(recorded, source=wrong)]}).trust(site)
    assert trust.rebuild_error > 0.02
    assert not trust.holds


@every_half
@pytest.mark.parametrize("kernel", ["explicit", "fused", "blocks", "definition"])
@pytest.mark.parametrize("spec", ["rotary", "t5", "shaw"])
def test_kernels_of_jarilab_in_half_precision_hold(dtype, kernel, spec):
    if (kernel, spec) == ("fused", "shaw"):
        pytest.skip("needs the weights")
    model = EncoderDecoder(9, 9, d_model=16, n_heads=2, encoding=spec, kernel=kernel)
    initialise(model, 2)
    keep = torch.ones(2, 60, dtype=torch.bool)
    keep[1, :2] = False
    ids = torch.randint(9, (2, 60), generator=torch.Generator().manual_seed(1))
    source = Tokens(ids, Positions.from_mask(keep, frame="source"), keep)
    with torch.no_grad(), record(model := model.eval().to(dtype)) as tape:
        model(source, ids[:, 1:])
    assert all(tape.trust(site).holds for site in tape.sites)


def test_float32_has_no_rounding_allowance():
    tape = tape_of(Fused())
    trust = tape.trust(tape.sites[0])
    assert 0 < trust.rebuild_error < 1e-6
    assert trust.rounding == 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_output_changed_in_place_is_compared_as_it_was(mode):
    model = Fused(lambda output: output.add_(1.0))
    with mode(), record(model) as tape:
        model(torch.randn(1, 5, 16))
    assert tape.trust(tape.sites[0]).holds


def test_nan_raises_one_sentence_and_hooks_are_removed():
    model = Fused()
    with torch.no_grad():
        model.maps.weight[0, 0] = float("nan")
    with torch.no_grad(), record(model) as tape:
        model(torch.randn(1, 5, 16))
    with pytest.raises(UserError, match=r"NaN or infinity for 5 of 5 queries"):
        tape.trust(tape.sites[0])
    with pytest.raises(UserError, match="NaN or infinity"):
        tape.show()
    assert not model._forward_hooks
    assert not model.maps._forward_pre_hooks


def test_empty_batch_has_nothing_to_compare():
    model = Fused()
    with torch.no_grad(), record(model) as tape:
        model(torch.randn(0, 5, 16))
    with pytest.raises(UserError, match=r"empty shape \(0, 2, 5, 8\).*at least one input"):
        tape.trust(tape.sites[0])


def test_meta_device_raises_and_hooks_are_removed():
    model = EncoderDecoder(9, 9, d_model=16, n_heads=2, encoding="rotary").eval().to("meta")
    ids = torch.zeros(1, 5, dtype=torch.long, device="meta")
    with pytest.raises(UserError, match="meta device"), torch.no_grad(), record(model):
        model(ids, ids)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
