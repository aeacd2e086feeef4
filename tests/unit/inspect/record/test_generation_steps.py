"""Whole maps from the calls of `generate`, step by step."""

import importlib.util

import pytest
import torch

import jarilab
from helpers.architectures import IDS, LEFT, RIGHT, of_text
from jarilab.core.errors import UserError
from jarilab.explorer.tape_subject import view_of_tape

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # warnings of other libraries at import
]
GREEDY = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}


def build(name, kind, **options):
    """A model with large weights, so that attention has an effect."""
    torch.manual_seed(0)
    model, _ = of_text(name, kind=kind, **options)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    model.generation_config.decoder_start_token_id = 1
    return model


@torch.no_grad()
def generated(model, **inputs):
    with jarilab.record(model) as tape:
        written = model.generate(**inputs, **GREEDY)
    return tape, written


@torch.no_grad()
def at_once(model, **inputs):
    with jarilab.record(model) as tape:
        model(**inputs)
    return tape


def check_equal(joined, whole, real):
    """real: False on padding, where queries are the tokens of a padded prompt."""
    assert joined.sites == whole.sites
    for site in whole.sites:
        actual, expected = joined.weights(site), whole.weights(site)
        assert actual.shape == expected.shape
        assert joined.site(site) == whole.site(site)
        assert joined.trust(site).rebuild_error < 1e-6
        rows = real if actual.shape[2] == real.shape[1] else torch.ones(len(real), actual.shape[2], dtype=torch.bool)
        assert torch.allclose(actual.mT.transpose(1, 3)[rows], expected.mT.transpose(1, 3)[rows], atol=1e-5)


@pytest.mark.parametrize("way", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_generated_text_of_a_language_model_is_one_map(name, way):
    kind = "ForCausalLM" if name == "Llama" else "LMHeadModel"
    model = build(name, kind)
    model.set_attn_implementation(way)
    tape, written = generated(model, input_ids=IDS, attention_mask=LEFT)
    mask = torch.cat([LEFT, torch.ones(2, 4, dtype=torch.long)], 1)
    places = (mask.cumsum(1) - 1).clamp_min(0)
    whole = at_once(model, input_ids=written[:, :-1], attention_mask=mask, position_ids=places)
    assert len(tape.calls["decoder.0.self"]) == 5
    check_equal(tape.merged_steps(), whole, mask.bool())
    assert tape.merged_steps().verified("decoder.0.self") == (way == "sdpa")


@pytest.mark.parametrize("name", ["T5", "Bart"])
def test_generated_text_of_an_encoder_decoder_is_one_map_a_site(name):
    model = build(name, "ForConditionalGeneration", written=True)
    inputs = {"input_ids": IDS, "attention_mask": RIGHT}
    tape, written = generated(model, **inputs)
    whole = at_once(model, **inputs, decoder_input_ids=written[:, :-1])
    joined = tape.merged_steps()
    assert {joined.site(site).kind for site in joined.sites} == {"encoder", "decoder", "cross"}
    check_equal(joined, whole, RIGHT.bool())
    assert all(joined.verified(site) == whole.verified(site) for site in whole.sites)


def test_merged_tape_has_a_page():
    model = build("Llama", "ForCausalLM")
    tape, _ = generated(model, input_ids=IDS[:1])
    view = view_of_tape(tape.merged_steps(), [f"t{i}" for i in range(11)], "written")
    assert [shown["shape"] for shown in view["sites"]] == [[11, 11], [11, 11]]
    assert tape.merged_steps().measures()["decoder.0.self"]


def test_calls_that_do_not_continue_raise():
    model = build("Llama", "ForCausalLM")
    with jarilab.record(model) as twice, torch.no_grad():
        model(IDS)
        model(IDS)
    with pytest.raises(UserError, match=r"do not continue each other: expected call 1 to have the first 14 keys"):
        twice.merged_steps()
    with jarilab.record(model) as beams, torch.no_grad():
        model.generate(IDS, num_beams=3, **GREEDY)
    with pytest.raises(UserError, match=r"decoder\.0\.self do not continue each other.*reorders its beams"):
        beams.merged_steps()
    with jarilab.record(model) as uncached, torch.no_grad():
        model.generate(IDS, **{**GREEDY, "use_cache": False})
    with pytest.raises(UserError, match=r"use_cache=False\), where the last call has the whole map: index=-1"):
        uncached.merged_steps()
    assert uncached.weights("decoder.0.self", -1).shape[-2:] == (11, 11)


def test_steps_of_jari_raise():
    model = jarilab.LanguageModel(40, d_model=16, n_heads=2)
    with jarilab.record(model) as tape, torch.no_grad():
        model(IDS % 40)
        model(IDS % 40)
    with pytest.raises(UserError, match=r"decoder\.0\.self is an attention of jari.*record one forward"):
        tape.merged_steps()
