"""Whole maps from the calls of `generate`, step by step."""

import importlib.util

import pytest
import torch

import jarilab
from helpers.architectures import IDS, LEFT, RIGHT, configured, of_text
from jarilab.core.errors import UserError
from jarilab.explorer.tape_subject import view_of_tape
from jarilab.inspect.intervene.edits import HeadOff
from jarilab.inspect.intervene.interventions import operate

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


# Against the maps of transformers ----------------------------------------------------------------------------------


@torch.no_grad()
def eager_maps(model, **inputs):
    """The maps of one forward by site, as transformers returns them."""
    model.set_attn_implementation("eager")
    outputs = model(**inputs, output_attentions=True)
    model.set_attn_implementation("sdpa")
    is_decoder_only = "attentions" in outputs
    stacks = (
        {"decoder.{}.self": outputs.attentions}
        if is_decoder_only
        else {
            "encoder.{}": outputs.encoder_attentions,
            "decoder.{}.self": outputs.decoder_attentions,
            "decoder.{}.cross": outputs.cross_attentions,
        }
    )
    return {name.format(layer): maps for name, stack in stacks.items() for layer, maps in enumerate(stack)}


def check_against_eager(merged, maps, lengths=None, real=None):
    """lengths: of the rows of each decoder. real: False on padding of a prompt."""
    assert set(merged.sites) == set(maps)
    for site, expected in maps.items():
        actual = merged.weights(site)
        assert actual.shape == expected.shape
        assert merged.trust(site).rebuild_error < 1e-5
        rows = torch.ones(actual.shape[0], actual.shape[2], dtype=torch.bool)
        if real is not None:
            rows = real
        if lengths is not None and site.startswith("decoder"):
            rows = torch.arange(actual.shape[2]) < lengths[:, None]
        assert torch.allclose(actual.transpose(1, 2)[rows], expected.transpose(1, 2)[rows], atol=1e-5)


def positions_of(mask):
    return (mask.cumsum(1) - 1).clamp_min(0)


@pytest.mark.parametrize("way", ["sdpa", "eager"])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_heads_that_share_keys_merge_under_left_padding(key_heads, way):
    model = build("Llama", "ForCausalLM", num_key_value_heads=key_heads)
    model.set_attn_implementation(way)
    tape, written = generated(model, input_ids=IDS, attention_mask=LEFT)
    mask = torch.cat([LEFT, torch.ones(2, 4, dtype=torch.long)], 1)
    whole = {"input_ids": written[:, :-1], "attention_mask": mask, "position_ids": positions_of(mask)}
    check_against_eager(tape.merged_steps(), eager_maps(model, **whole), real=mask.bool())


@torch.no_grad()
def test_prompt_in_pieces_merges():
    model = build("Llama", "ForCausalLM", num_key_value_heads=2)
    mask, cache = torch.cat([LEFT, torch.ones(2, 1, dtype=torch.long)], 1), None
    ids = torch.cat([IDS, IDS[:, :1]], 1)
    places = positions_of(mask)
    with jarilab.record(model) as tape:
        for start, stop in ((0, 3), (3, 6), (6, 7), (7, 8)):
            outputs = model(
                ids[:, start:stop],
                attention_mask=mask[:, :stop],
                position_ids=places[:, start:stop],
                past_key_values=cache,
                use_cache=True,
            )
            cache = outputs.past_key_values
    whole = eager_maps(model, input_ids=ids, attention_mask=mask, position_ids=places)
    check_against_eager(tape.merged_steps(), whole, real=mask.bool())


def test_prompt_of_one_token_is_of_a_decoder():
    tape, _ = generated(build("GPT2", "LMHeadModel"), input_ids=IDS[:, :1])
    assert {tape.site(site).kind for site in tape.sites} == {"decoder"}


@pytest.mark.parametrize("way", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("name", "kind", "vocabulary"), [("Llama", "ForCausalLM", 6), ("T5", "ForConditionalGeneration", 9)]
)
@torch.no_grad()
def test_rejected_tokens_of_speculative_decoding_are_left_out(name, kind, vocabulary, way):
    """The vocabulary is small, so that some tokens that the prompt suggests are accepted."""
    model = build(name, kind, written=name == "T5", vocab_size=vocabulary)
    model.set_attn_implementation(way)
    prompt = {"input_ids": torch.tensor([[5, 3, 4, 5, 3, 4, 5, 3]])}
    with jarilab.record(model) as tape:
        written = model.generate(**prompt, prompt_lookup_num_tokens=3, **{**GREEDY, "max_new_tokens": 12})
    whole = {**prompt, "decoder_input_ids": written} if name == "T5" else {"input_ids": written}
    merged = tape.merged_steps()
    maps = eager_maps(model, **whole)
    assert set(merged.sites) == set(maps)
    for site, expected in maps.items():
        actual = merged.weights(site)
        assert actual.shape[2] < sum(call.output.shape[2] for call in tape.calls[site]) or "encoder" in site
        # The last call may have rejected tokens as well, which no later call shows.
        rows, keys = (min(sizes) for sizes in zip(actual.shape[2:], expected.shape[2:], strict=True))
        assert rows >= (8 if "encoder" in site else 12)
        assert torch.allclose(actual[:, :, :rows, :keys], expected[:, :, :rows, :keys], atol=1e-5)


@torch.no_grad()
def test_recording_may_begin_after_the_prompt():
    model = build("Llama", "ForCausalLM")
    cache = model(IDS[:, :4], use_cache=True).past_key_values
    with jarilab.record(model) as tape:
        for place in range(4, 7):
            model(IDS[:, place : place + 1], past_key_values=cache, use_cache=True)
    for site, expected in eager_maps(model, input_ids=IDS).items():
        assert torch.allclose(tape.merged_steps().weights(site), expected[:, :, 4:], atol=1e-5)


def test_layers_with_a_window_merge_beside_full_ones():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = configured(
        transformers.Gemma3TextConfig,
        num_key_value_heads=1,
        sliding_window=4,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )
    model = transformers.Gemma3ForCausalLM(config).eval()
    tape, written = generated(model, input_ids=IDS, attention_mask=LEFT)
    assert tape.calls["decoder.0.self"][-1].source.v.shape[2] == 4
    mask = torch.cat([LEFT, torch.ones(2, 4, dtype=torch.long)], 1)
    whole = {"input_ids": written[:, :-1], "attention_mask": mask, "position_ids": positions_of(mask)}
    maps = eager_maps(model, **whole)
    merged = tape.merged_steps()
    check_against_eager(merged, maps, real=mask.bool())
    assert merged.unmerged == {}
    assert float(merged.weights("decoder.0.self")[0, :, -1, :7].max()) == 0


@torch.no_grad()
def searched(model, **options):
    """A tape of a search, what it returned, and how many tokens each sequence has."""
    options = {
        "max_new_tokens": 6,
        "pad_token_id": 0,
        "return_dict_in_generate": True,
        "output_scores": True,
        **options,
    }
    with jarilab.record(model) as tape:
        generation = model.generate(**options)
    return tape, generation


@pytest.mark.parametrize("pieces", [None, 3])
@pytest.mark.parametrize("way", ["sdpa", "eager"])
def test_beams_of_a_language_model_merge(way, pieces):
    model = build("GPT2", "LMHeadModel")
    model.set_attn_implementation(way)
    prompt = {"input_ids": IDS, "attention_mask": LEFT, "prefill_chunk_size": pieces}
    tape, generation = searched(model, **prompt, num_beams=4, num_return_sequences=3, min_new_tokens=6)
    assert len(tape.calls["decoder.0.self"]) == (6 if pieces is None else 8)
    beams = generation.beam_indices
    assert bool((beams[:, 1:] != beams[:, :1]).any())
    written = generation.sequences[:, :-1]
    mask = torch.cat([LEFT.repeat_interleave(3, 0), torch.ones(6, 5, dtype=torch.long)], 1)
    whole = eager_maps(model, input_ids=written, attention_mask=mask, position_ids=positions_of(mask))
    check_against_eager(tape.merged_steps(beams), whole, real=mask.bool())


@pytest.mark.parametrize("name", ["T5", "Bart"])
def test_beams_that_end_early_merge(name):
    model = build(name, "ForConditionalGeneration", written=True)
    model.generation_config.eos_token_id = list(range(2, 99, 4))
    inputs = {"input_ids": IDS, "attention_mask": RIGHT}
    tape, generation = searched(model, **inputs, num_beams=4, num_return_sequences=4, length_penalty=0.0)
    lengths = (generation.beam_indices >= 0).sum(1)
    assert len(set(lengths.tolist())) > 1
    merged = tape.merged_steps(generation.beam_indices)
    repeated = {name: value.repeat_interleave(4, 0) for name, value in inputs.items()}
    written = generation.sequences[:, :-1]
    check_against_eager(merged, eager_maps(model, **repeated, decoder_input_ids=written), lengths)
    shortest = int(lengths.argmin())
    for site in ("decoder.0.self", "decoder.1.cross"):
        assert float(merged.weights(site)[shortest, :, lengths.min() :].abs().max()) == 0


@pytest.mark.parametrize("name", ["GPT2", "T5"])
def test_sampled_rows_merge(name):
    kind = "ForConditionalGeneration" if name == "T5" else "LMHeadModel"
    model = build(name, kind, written=name == "T5")
    tape, generation = searched(model, input_ids=IDS, do_sample=True, num_return_sequences=3, min_new_tokens=6)
    written, prompt = generation.sequences[:, :-1], IDS.repeat_interleave(3, 0)
    whole = {"input_ids": prompt, "decoder_input_ids": written} if name == "T5" else {"input_ids": written}
    merged = tape.merged_steps()
    maps = eager_maps(model, **whole)
    check_against_eager(merged, maps)
    for site, expected in maps.items():
        assert torch.allclose(merged.row(4).weights(site)[0], expected[4], atol=1e-5)


@torch.no_grad()
def test_edited_steps_merge_to_the_edited_map():
    model = build("Llama", "ForCausalLM")
    edits = [HeadOff("decoder.0.self", 1)]
    with operate(model, edits):
        tape, written = generated(model, input_ids=IDS)
    with operate(model, edits):
        whole = at_once(model, input_ids=written[:, :-1])
    merged = tape.merged_steps()
    assert not merged.weights("decoder.0.self")[:, 1].any()
    check_equal(merged, whole, torch.ones(2, 11, dtype=torch.bool))
    assert torch.equal(merged.row(1).weights("decoder.0.self")[0], merged.weights("decoder.0.self")[1])


# What cannot be merged ---------------------------------------------------------------------------------------------


def test_calls_that_do_not_continue_raise():
    model = build("Llama", "ForCausalLM")
    with jarilab.record(model) as twice, torch.no_grad():
        model(IDS)
        model(IDS)
    with pytest.raises(UserError, match=r"expected call 1 to read its own 7 keys and some of the 7 before, got 7"):
        twice.merged_steps()
    with jarilab.record(model) as uncached, torch.no_grad():
        model.generate(IDS, **{**GREEDY, "use_cache": False})
    with pytest.raises(UserError, match=r"use_cache=False\) the last call has the whole map: index=-1"):
        uncached.merged_steps()
    assert uncached.weights("decoder.0.self", -1).shape[-2:] == (11, 11)
    with jarilab.record(model) as static, torch.no_grad():
        model.generate(IDS, **GREEDY, cache_implementation="static")
    with pytest.raises(UserError, match=r"decoder\.0\.self.*fixed size"):
        static.merged_steps()


def test_beams_without_their_indices_raise():
    model = build("Llama", "ForCausalLM")
    tape, generation = searched(model, input_ids=IDS, num_beams=3)
    with pytest.raises(UserError, match=r"beam search.*got none.*return_dict_in_generate=True.*beam_indices="):
        tape.merged_steps()
    rows = generation.beam_indices
    with pytest.raises(UserError, match=r"beam_indices do not fit decoder\.0\.self: expected call \d"):
        tape.merged_steps(rows.index_fill(1, torch.arange(1, 3), 3))
    with pytest.raises(UserError, match=r"beam_indices from 0 to 5, .*got \[\[6"):
        tape.merged_steps(torch.full_like(rows, 6))
    with pytest.raises(UserError, match=r"-1 after the end of a sequence alone"):
        tape.merged_steps(torch.tensor([[0, -1, 0]]))
    with pytest.raises(UserError, match=r"expected beam_indices \(sequences, tokens\).*shape \(3,\)"):
        tape.merged_steps(torch.tensor([0, 1, 2]))
    with pytest.raises(UserError, match=r"of 9 tokens, but decoder\.0\.self ran 6 times"):
        tape.merged_steps(rows[:, :1].expand(-1, 9))


def test_a_site_that_cannot_be_merged_is_left_out():
    model = build("Llama", "ForCausalLM")
    tape, _ = generated(model, input_ids=IDS)
    tape.calls["decoder.0.self"][1].source.k.zero_()
    with pytest.warns(UserWarning, match=r"left out of the merged tape.*decoder\.0\.self"):
        merged = tape.merged_steps()
    assert merged.sites == ["decoder.1.self"]
    assert "decoder.0.self" in merged.unmerged["decoder.0.self"]


def test_cross_attention_alone_does_not_show_a_generation():
    model = build("T5", "ForConditionalGeneration", written=True)
    with jarilab.record(model) as twice, torch.no_grad():
        model(IDS, decoder_input_ids=IDS)
        model(IDS, decoder_input_ids=IDS)
    with pytest.raises(UserError, match="expected call 1"):
        twice.merged_steps()


def test_steps_of_jari_raise():
    model = jarilab.LanguageModel(40, d_model=16, n_heads=2)
    with jarilab.record(model) as tape, torch.no_grad():
        model(IDS % 40)
        model(IDS % 40)
    with pytest.raises(UserError, match=r"decoder\.0\.self is an attention of jari.*record one forward"):
        tape.merged_steps()
