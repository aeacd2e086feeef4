"""Tapes of models of other libraries: recorded maps equal those that the model computed."""

import importlib.util
import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as imported_by_name

import jarilab
from helpers.architectures import IDS, LEFT, MODELS, RIGHT, configured, of_text, pytorch
from jarilab.core.errors import UserError
from jarilab.explorer.tape_subject import view_of_tape
from jarilab.inspect.explain.walk import walk_of
from jarilab.inspect.intervene.interventions import HeadOff, Link, operate
from jarilab.inspect.measure.heads import measure
from jarilab.inspect.measure.maps import Map

QUICK = ["Bert", "GPT2", "Llama", "Mistral", "T5", "Marian", "Swin", "Whisper", "DebertaV2", "Bloom", "nn.Transformer"]
SEEN = {"DebertaV2", "GPTNeo", "GPTJ", "CodeGen", "Bloom", "Gemma2", "XGLM", "MPNet", "LED", "WavLM"}
"""Models that compute their softmax themselves."""
KINDS = {
    "T5": {"encoder.1": "encoder", "decoder.1.self": "decoder", "decoder.1.cross": "cross"},
    "Llama": {"decoder.1.self": "decoder"},
    "Swin": {"encoder.1.1": "encoder"},
    "nn.Transformer": {"encoder.1": "encoder", "decoder.1.self": "decoder", "decoder.0.cross": "cross"},
    "Bloom": {"decoder.0.self": "decoder"},
}

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # warnings of other libraries at import
]


@pytest.fixture(autouse=True)
def quiet():
    """Silence warnings of other libraries about small configurations."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def build(name):
    torch.manual_seed(0)
    return MODELS[name]()


def forward(model, inputs):
    torch.manual_seed(1)  # some models mask patches at random
    with torch.no_grad():
        output = model(**inputs)
    return output if isinstance(output, torch.Tensor) else output[0]


def recorded(model, inputs):
    with jarilab.record(model) as tape:
        output = forward(model, inputs)
    return tape, output


def rest_is_long(name):
    return name if name in QUICK else pytest.param(name, marks=pytest.mark.long)


@pytest.mark.parametrize("name", [rest_is_long(name) for name in MODELS])
def test_maps_rebuild_the_outputs(name):
    model, inputs = build(name)
    plain = forward(model, inputs)
    tape, output = recorded(model, inputs)
    assert torch.allclose(plain, output, atol=1e-6), "to record changes nothing"
    for site in tape.sites:
        for index in range(len(tape.calls[site])):
            trust = tape.trust(site, index)
            assert trust.rebuild_error < 1e-6
            assert trust.row_sum_error < 1e-6
            assert trust.masked_weight == 0.0
        assert tape.verified(site) == (name not in SEEN) or "head" in site
    for site, kind in KINDS.get(name, {}).items():
        assert tape.site(site).kind == kind


@pytest.mark.parametrize("name", ["Bert", "Llama", "T5", "Bloom"])
def test_maps_equal_those_of_eager_attention(name):
    model, inputs = build(name)
    tape, _ = recorded(model, inputs)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    if name == "T5":
        eager_weights = dict(zip(("encoder.0", "encoder.1"), output.encoder_attentions, strict=True))
        eager_weights |= dict(zip(("decoder.0.self", "decoder.1.self"), output.decoder_attentions, strict=True))
        eager_weights |= dict(zip(("decoder.0.cross", "decoder.1.cross"), output.cross_attentions, strict=True))
    else:
        eager_weights = dict(zip(tape.sites, output.attentions, strict=True))
    assert set(eager_weights) == set(tape.sites)
    real = inputs["attention_mask"].bool()
    for site, weights in eager_weights.items():
        rows = real if tape.site(site).queries == "source" or name != "T5" else torch.ones(2, 4, dtype=torch.bool)
        ours = tape.weights(site).transpose(1, 2)[rows]
        assert torch.allclose(ours, weights.transpose(1, 2)[rows], atol=1e-5)


# Traps ---------------------------------------------------------------------------------------------------------------


class OwnAttention(nn.Module):
    """An attention whose function was imported by name."""

    def __init__(self, **options):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.options = options

    def forward(self, x, source=None):
        source = x if source is None else source
        q, k, v = (
            each(of).unflatten(-1, (2, 4)).transpose(1, 2)
            for each, of in zip(self.maps, (x, source, source), strict=True)
        )
        return imported_by_name(q, k, v, **self.options).transpose(1, 2).flatten(2)


def test_function_imported_by_name_is_recorded():
    tape, _ = recorded(OwnAttention().eval(), {"x": torch.randn(2, 5, 8)})
    assert tape.sites == ["attention"]
    assert tape.trust("attention").rebuild_error < 1e-6


def test_causal_flag_with_fewer_queries_means_the_first_ones():
    tape, _ = recorded(OwnAttention(is_causal=True).eval(), {"x": torch.randn(1, 3, 8), "source": torch.randn(1, 5, 8)})
    assert tape.weights("attention")[0, 0].gt(0).int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert tape.trust("attention").rebuild_error < 1e-6
    assert tape.site("attention").kind == "cross"


def test_bias_of_pytorch_hides_the_keys_that_it_names():
    from torch.nn.attention.bias import causal_lower_right

    model = OwnAttention(attn_mask=causal_lower_right(3, 5)).eval()
    tape, _ = recorded(model, {"x": torch.randn(1, 3, 8), "source": torch.randn(1, 5, 8)})
    assert tape.weights("attention")[0, 0].gt(0).int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert tape.trust("attention").rebuild_error < 1e-6


def test_mask_is_split_into_bias_and_hidden_keys():
    mask = torch.randn(2, 2, 5, 5)
    mask[:, :, :, 4] = torch.finfo(torch.float32).min
    mask[0, 1, 2, 3] = -float("inf")  # hidden from one head
    tape, _ = recorded(OwnAttention(attn_mask=mask).eval(), {"x": torch.randn(2, 5, 8)})
    assert tape.trust("attention").rebuild_error < 1e-6
    assert tape.summands("attention", 0).bias[:, :4].equal(mask[0, 0, :, :4])
    assert tape.weights("attention")[0, 1, 2, 3] == 0 == tape.weights("attention")[..., 4].sum()


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_head_whose_mask_hides_all_keys_has_zero_weights(dtype):
    allowed = torch.ones(1, 2, 5, 5, dtype=torch.bool).tril()
    allowed[:, 1, :3] = False  # rows of one head
    allowed[:, 1, 3, 1:] = False  # the head's only key in this row is 0
    allowed[:, :, 4] = False  # rows of all heads
    mask = allowed if dtype is torch.bool else torch.zeros(1, 2, 5, 5).masked_fill(~allowed, float("-inf"))
    model, inputs = OwnAttention(attn_mask=mask).eval(), {"x": torch.randn(2, 5, 8)}
    tape, output = recorded(model, inputs)
    assert output.isfinite().all()
    rows = tape.weights("attention")[0].sum(-1)
    assert torch.allclose(rows, allowed[0].any(-1).float())
    trust = tape.trust("attention")
    assert trust.rebuild_error < 1e-6
    assert trust.row_sum_error < 1e-6
    with torch.no_grad(), operate(model, [Link("attention", 1, 3, 0, "erase")]):
        edited = model(**inputs)
    assert edited.isfinite().all()
    assert edited[:, :3].equal(output[:, :3])
    assert not edited[:, 3].equal(output[:, 3])


def test_autocast_and_dropout_are_recorded():
    model = OwnAttention(dropout_p=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        tape, _ = recorded(model, {"x": torch.randn(2, 5, 8)})
    assert tape.recorded("attention").call.q.dtype is torch.bfloat16
    assert tape.trust("attention").dropout == 0.5
    with torch.autocast("cpu", torch.bfloat16):
        tape, _ = recorded(OwnAttention(), {"x": torch.randn(2, 5, 8)})
    assert tape.trust("attention").rebuild_error < 1e-2


def test_nested_recordings_are_equal():
    model, x = OwnAttention().eval(), torch.randn(1, 3, 8)
    with jarilab.record(model) as outer:
        with jarilab.record(model) as inner:
            model(x)
        model(x)
    assert (len(outer.calls["attention"]), len(inner.calls["attention"])) == (2, 1)
    assert outer.weights("attention", 0).equal(inner.weights("attention"))


def test_hooks_are_removed_after_an_error():
    model = OwnAttention().eval()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), jarilab.record(model):
        model(torch.randn(1, 3, 7))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    tape, _ = recorded(model, {"x": torch.randn(1, 3, 8)})
    assert tape.sites == ["attention"]


def test_gradients_flow_while_recording():
    model, x = OwnAttention(), torch.randn(1, 3, 8)
    with jarilab.record(model) as tape:
        model(x).sum().backward()
    assert model.maps[0].weight.grad is not None
    assert not tape.weights("attention").requires_grad


def test_generation_records_a_call_each_step():
    model, _ = of_text("GPT2", kind="LMHeadModel")
    with jarilab.record(model) as tape:
        model.generate(IDS, attention_mask=LEFT, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert [tape.weights("decoder.0.self", step).shape[2:] for step in range(3)] == [(7, 7), (1, 8), (1, 9)]
    assert tape.recorded("decoder.0.self", 2).call.geometry.q_pos.order.tolist() == [8]
    assert tape.site("decoder.0.self").kind == "decoder"
    assert max(tape.trust("decoder.1.self", step).rebuild_error for step in range(3)) < 1e-6


def test_grouped_queries_stay_heads_in_generation():
    model, _ = of_text("Llama", kind="ForCausalLM", num_key_value_heads=2)
    torch.manual_seed(4)
    with jarilab.record(model) as tape:
        written = model.generate(
            IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=3, do_sample=False, pad_token_id=0
        )
    assert tape.weights("decoder.1.self", 2).shape == (2, 4, 1, 9)
    assert tape.trust("decoder.1.self", 2).rebuild_error < 1e-6
    with jarilab.record(model) as whole:
        model(written[:, :-1])
    assert torch.allclose(whole.weights("decoder.1.self")[:, :, 8:], tape.weights("decoder.1.self", 2), atol=1e-6)


def test_overwritten_cache_raises():
    model, _ = of_text("Llama", kind="ForCausalLM", num_key_value_heads=2)
    with jarilab.record(model) as tape:
        model.generate(IDS, max_new_tokens=3, cache_implementation="static", do_sample=False, disable_compile=True)
    with pytest.raises(UserError, match="written over the keys or values of decoder"):
        tape.weights("decoder.0.self", 0)


@pytest.mark.parametrize("way", ["sdpa", "eager"])
def test_overwritten_cache_is_copied_in_inference_mode(way):
    """PyTorch does not count writes there."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = configured(transformers.MistralConfig, sliding_window=4, num_key_value_heads=4)
    model = transformers.MistralForCausalLM(config).eval()
    model.set_attn_implementation(way)
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "disable_compile": True}
    with torch.inference_mode(), jarilab.record(model) as tape:
        model.generate(IDS, cache_implementation="static", **options)
    assert max(tape.trust("decoder.0.self", step).rebuild_error for step in range(4)) < 1e-6


def test_multihead_attention_of_pytorch_is_recorded():
    attention = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x, source = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    for needed in (False, True):
        with jarilab.record(attention) as tape:
            _, weights = attention(x, source, source, need_weights=needed, average_attn_weights=False)
        assert tape.verified("attention") is not needed
        assert tape.site("attention").kind == "cross"
        if needed:
            assert torch.allclose(tape.weights("attention"), weights, atol=1e-6)


# Uses of a tape -------------------------------------------------------------------------------------------


def test_head_off_and_erased_link_change_the_output():
    model, inputs = build("Bert")
    tape, plain = recorded(model, inputs)
    with operate(model, [HeadOff("encoder.1", 2)]):
        off = forward(model, inputs)
    assert not torch.allclose(plain, off)

    attention = model.encoder.layer[1].attention.self
    values = attention.value.weight.data.clone(), attention.value.bias.data.clone()
    attention.value.weight.data[16:24] = attention.value.bias.data[16:24] = 0  # the values of head 2
    assert torch.allclose(forward(model, inputs), off, atol=1e-6)
    attention.value.weight.data, attention.value.bias.data = values

    with operate(model, [Link("encoder.0", None, query=1, key=3, how="erase")]), jarilab.record(model) as cut:
        forward(model, inputs)
    assert not torch.allclose(cut.weights("encoder.1"), tape.weights("encoder.1"))
    with pytest.raises(UserError, match="nothing was edited at encoder"), operate(model, [HeadOff("encoder.7", 0)]):
        forward(model, inputs)
    with pytest.raises(UserError, match="heads 0 to 3, got 4"), operate(model, [HeadOff("encoder.0", 4)]):
        forward(model, inputs)


def test_measures_and_page_of_a_foreign_tape():
    model, inputs = build("GPT2")
    one = {name: value[:1] for name, value in inputs.items()}
    tape, _ = recorded(model, one)
    tokens = [f"t{number}" for number in IDS[0].tolist()]
    measures = measure(Map.of(tape, "decoder.1.self", tokens, tokens))
    assert measures["previous"].value.shape == (4,)
    page = tape.show(tokens)._repr_html_()
    assert "decoder.1.self" in page


def test_unknown_quantities_raise():
    model, inputs = build("Llama")
    tape, _ = recorded(model, inputs)
    with pytest.raises(UserError, match="after their rotation"):
        tape.before_rotation("decoder.0.self")
    with pytest.raises(UserError, match="inside=True records stacks"), jarilab.record(model, inside=True):
        pass
    with pytest.raises(UserError, match="is a LlamaAttention: expected jarilab"):
        walk_of(tape, "decoder.0.self", 0, queries=["a"] * 7, keys=["a"] * 7)
    model, inputs = build("Bloom")
    tape, _ = recorded(model, inputs)
    with pytest.raises(UserError, match="computed its scores itself"):
        tape.summands("decoder.0.self", 0)


def test_recording_nothing_explains_why():
    with (
        pytest.raises(UserError, match="Linear made no attention call that can be recorded"),
        jarilab.record(nn.Linear(3, 3)) as _,
    ):
        pass
    model, inputs = pytorch()
    with (
        pytest.raises(UserError, match=r"unknown site 'decoder\.9'.*decoder\.0\.self"),
        jarilab.record(model, ["decoder.9"]),
    ):
        model(**inputs)


def test_selected_sites_are_recorded():
    model, inputs = pytorch()
    with torch.no_grad(), jarilab.record(model, ["decoder.1.cross"]) as tape:
        model(**inputs)
    assert tape.sites == ["decoder.1.cross"]
    hidden = tape.weights("decoder.1.cross")
    assert RIGHT.shape[1] == hidden.shape[-1]


def test_tape_measures_equal_those_of_each_map():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, batch_first=True, dropout=0.0).eval()
    model = nn.TransformerEncoder(layer, 2)
    with torch.no_grad(), jarilab.record(model) as tape:
        model(torch.randn(1, 5, 16))
    names = list("abcab")
    measures = tape.measures(names)
    assert list(measures) == tape.sites
    for site in tape.sites:
        expected = measure(Map.of(tape, site, names, names))
        assert all(torch.equal(measures[site][name].value, of_map.value) for name, of_map in expected.items())
    assert not measures[tape.sites[0]]["duplicate"].value.equal(tape.measures()[tape.sites[0]]["duplicate"].value)
    with pytest.raises(UserError, match="5"):
        tape.measures(["one"])


class Half(nn.Module):
    """One attention that is recorded, and one whose weights are not multiplied with values by a matrix product."""

    def __init__(self):
        super().__init__()
        self.recorded = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mixed = Mixed()

    def forward(self, x):
        return self.mixed(self.recorded(x, x, x)[0])


class Mixed(nn.Module):
    def forward(self, x):
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        weights = torch.softmax(heads @ heads.mT, -1)
        return (weights.unsqueeze(-1) * heads.unsqueeze(2)).cumsum(-2)[..., -1, :]


def test_missing_attentions_are_named_in_a_warning():
    model = Half().eval()
    warning = pytest.warns(UserWarning, match="mixed: its weights are not multiplied")
    with warning as raised, jarilab.record(model) as tape:
        model(torch.randn(1, 5, 8))
    assert (list(tape.missing), len(tape.sites), raised[0].filename) == (["mixed"], 1, __file__)


@pytest.mark.long
def test_parallel_models_on_two_processes_have_the_same_maps(tmp_path):
    tests = Path(__file__).parents[3]
    command = [sys.executable, tests / "helpers" / "foreign_ranks.py", tmp_path / "store"]
    environment = {**os.environ, "PYTHONPATH": str(tests), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("DIFFERENCES ")]
    for copies, parts, rebuilt in json.loads(line.removeprefix("DIFFERENCES ")).values():
        assert (copies, parts) == (0.0, 0.0)
        assert rebuilt <= 1e-6


# Attention written by hand ------------------------------------------------------------------------------------------


class ByHand(nn.Module):
    """An attention layer that calls `attend` with queries, keys and values `(B, H, L, E)`."""

    def __init__(self, attend, width=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.attend, self.heads = attend, 2

    def forward(self, x_BLD, place_BLD=0.0):
        read = (x_BLD + place_BLD, x_BLD + place_BLD, x_BLD)
        maps = (self.q, self.k, self.v)
        q, k, v = (
            each(one).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each, one in zip(maps, read, strict=True)
        )
        return self.attend(q, k, v).transpose(1, 2).flatten(-2)


class Within(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.layers = nn.ModuleList([ByHand(attend)])

    def forward(self, x_BLD, *rest):
        return self.layers[0](x_BLD, *rest)


def by_hand(attend, *rest):
    torch.manual_seed(0)
    model, x_BLD = Within(attend), torch.randn(1, 6, 16)
    with jarilab.record(model) as tape, torch.no_grad():
        model(x_BLD, *rest)
    return tape


LATER = torch.ones(6, 6, dtype=torch.bool).triu(1)


def hidden_by(least):
    def fused(q, k, v):
        return imported_by_name(q, k, v, torch.zeros(6, 6).masked_fill(LATER, least))

    def written(q, k, v):
        scores = (q @ k.transpose(-1, -2)).masked_fill(LATER, least)
        return scores.softmax(-1) @ v

    return fused, written


@pytest.mark.parametrize("least", [-1e4, -1e9])
@pytest.mark.parametrize("how", [0, 1], ids=["fused", "written"])
def test_large_negative_number_hides_like_minus_infinity(least, how):
    tape, wanted = (by_hand(hidden_by(number)[how]) for number in (least, float("-inf")))
    assert tape.sites == wanted.sites == ["decoder.0.self"]
    assert torch.equal(tape.weights("decoder.0.self"), wanted.weights("decoder.0.self"))
    (one,), (other,) = tape.measures().values(), wanted.measures().values()
    for name, measured in one.items():
        both = torch.stack((measured.value, measured.chance)), torch.stack((other[name].value, other[name].chance))
        assert torch.allclose(*both, equal_nan=True), name


def test_scores_that_differ_by_thousands_are_no_mask():
    distance = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    tape = by_hand(lambda q, k, v: (q @ k.transpose(-1, -2) - 6e3 * distance).softmax(-1) @ v)
    assert tape.sites == ["encoder.0"]
    assert tape.trust("encoder.0").holds
    assert tape.recorded("encoder.0").call.geometry.allowed is None


def test_a_key_that_two_masks_hide_is_hidden():
    padding = torch.tensor([0.0, 0, 0, 0, 0, -1e4])
    causal = torch.zeros(6, 6).masked_fill(LATER, -1e4)
    tape = by_hand(lambda q, k, v: (q @ k.transpose(-1, -2) + causal + padding).softmax(-1) @ v)
    assert tape.site("decoder.0.self").causal


def test_positions_added_to_queries_and_keys_make_no_second_sequence():
    tape = by_hand(imported_by_name, torch.randn(1, 6, 16))
    assert tape.site("encoder.0").kind == "encoder"


class Assembled(nn.Module):
    """Keys that are written piece by piece into a new tensor, as in DeepSeek V3."""

    def forward(self, x):
        q = x.unflatten(-1, (2, 8)).transpose(1, 2)
        k = q.new_empty(q.shape)
        k[..., :4].copy_(q[..., :4])
        k.transpose(1, 2)[..., 4:].copy_(q[..., 4:].transpose(1, 2))
        return imported_by_name(q, k, k)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_keys_written_into_a_new_tensor_come_from_what_was_written(mode):
    model = Assembled()
    with mode(), jarilab.record(model) as tape:
        model(torch.randn(2, 5, 16))
    assert tape.recorded(tape.sites[0]).source.facts.relation == "self"


def test_each_softmax_of_a_module_is_recorded():
    used = []

    def differential(q, k, v):
        scores_BHLL = q @ k.transpose(-1, -2)
        used[:] = scores_BHLL.softmax(-1), scores_BHLL.mul(2).softmax(-1)
        return used[0] @ v - 0.5 * (used[1] @ v)

    tape = by_hand(differential)
    (site,) = tape.sites
    for index, weights in enumerate(used):
        assert torch.allclose(tape.weights(site, index=index), weights)
    assert not torch.allclose(*used)


def halved(scores, weights):
    return weights.mul_(0.5)


def emptied(scores, weights):
    scores.zero_()
    return weights


def halved_and_dropped(scores, weights):
    return nn.functional.dropout(weights.mul_(0.5), 0.1)


def emptied_and_dropped(scores, weights):
    scores.zero_()
    return nn.functional.dropout(weights, 0.1)


@pytest.mark.parametrize("spoil", [halved, emptied, halved_and_dropped, emptied_and_dropped])
def test_overwritten_weights_are_recorded_as_they_were_used(spoil):
    used = []

    def attend(q, k, v):
        scores = q @ k.transpose(-1, -2)
        weights = spoil(scores, scores.softmax(-1))
        used[:] = [weights.clone()]
        return weights @ v

    tape = by_hand(attend)
    weights, (used,) = tape.weights(tape.sites[0]), used
    assert torch.allclose(weights[used > 0], used[used > 0] * (0.9 if "dropped" in spoil.__name__ else 1))


class Pools(nn.Module):
    """Two layers, the second with half the tokens."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([ByHand(imported_by_name), ByHand(imported_by_name)])

    def forward(self, x_BLD):
        return self.layers[1](self.layers[0](x_BLD)[:, ::2])


def test_pooling_model_has_a_page_and_measures():
    model = Pools()
    with jarilab.record(model) as tape, torch.no_grad():
        model(torch.randn(1, 6, 16))
    words = list("abcdef")
    for tokens in (None, words, {"source": words}):
        view = view_of_tape(tape, tokens, "pools")
        sides = {name: side["tokens"] for name, side in view["sides"].items()}
        expected = words if tokens else list("012345")
        assert sides == {"source": expected, "source (3 places)": ["0", "1", "2"]}
        assert [shown["keys"] for shown in view["sites"]] == ["source", "source (3 places)"]
        assert "These are numbered: source (3 places)" in view["purpose"][0]
        assert tape.measures(tokens)["encoder.1"]["distance"].value.shape == (2,)
    assert "source (3 places)" in tape.show(words).html
    # Names for the pooled tokens only, and names that match no site.
    few = view_of_tape(tape, list("xyz"), "pools")["sides"]
    assert {name: len(side["tokens"]) for name, side in few.items()} == {"source": 3, "source (6 places)": 6}
    with pytest.raises(UserError, match="expected a name for each of the 6 queries, got 4"):
        tape.show(list("abcd"))


def test_tape_with_matching_tokens_has_no_numbered_sequence():
    tape = by_hand(imported_by_name)
    assert view_of_tape(tape, None, "whole")["purpose"] is None


def test_sites_may_be_one_name_and_pooled_keys_have_their_own():
    def pooled(q, k, v):
        return imported_by_name(q, k[..., ::2, :], v[..., ::2, :])

    tape = by_hand(pooled)
    (site,) = tape.sites
    assert tape.weights(site).shape == (1, 2, 6, 3)
    assert tape.measures()[site]
    model = Within(imported_by_name)
    with jarilab.record(model, sites="encoder.0") as tape, torch.no_grad():
        model(torch.randn(1, 6, 16))
    assert tape.sites == ["encoder.0"]
