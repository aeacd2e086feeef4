"""Other encodings in models of transformers."""

import copy
import importlib.util
import json
import logging
import subprocess
import sys

import pytest
import torch
from torch import nn

import jarilab
from helpers.architectures import GROUPED, IDS, LEFT, MODELS, of_images, of_text
from jarilab.core.errors import UserError
from jarilab.huggingface.swapping import SWAP_RULES, NoRotation, ZeroPositions
from jarilab.inspect.intervene.interventions import HeadOff, operate

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
]

FAMILIES = [name.removesuffix("Config") for name in SWAP_RULES]


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def make_model(family):
    torch.manual_seed(0)
    return MODELS[family]()


def run(model, inputs):
    output = model(**inputs)
    return output[0]


def zeroed(model, family):
    """The same model with zero positions and its own attention."""
    if family in ("GPT2", "Bert", "Bart", "Marian"):
        for name, parameter in model.named_parameters():
            if any(word in name for word in ("wpe", "position_embeddings", "embed_positions")):
                parameter.data.zero_()
    elif family == "ViT":
        model.embeddings.position_embeddings.data.zero_()
    elif family == "T5":
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                parameter.data.zero_()
    else:
        for module in model.modules():
            if hasattr(module, "rotary_emb"):
                module.rotary_emb.inv_freq.zero_()
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_none_is_the_model_with_zero_positions(family):
    model, inputs = make_model(family)
    plain = zeroed(copy.deepcopy(model), family)
    with torch.no_grad():
        expected = run(plain, inputs)
        outputs = run(jarilab.swap(model, "none"), inputs)
    mask = inputs.get("attention_mask")
    real = torch.ones(expected.shape[:2], dtype=torch.bool)
    if mask is not None and mask.shape == real.shape and "decoder_input_ids" not in inputs:
        real = mask.bool()
    assert torch.allclose(expected[real], outputs[real], atol=2e-6)


@pytest.mark.parametrize("family", ["GPT2", "Bert", "T5", "Llama", "Bart"])
@pytest.mark.parametrize("spec", ["alibi", "shaw", "rotary+t5"])
def test_a_swapped_model_trains_is_recorded_and_saved(family, spec):
    model, inputs = make_model(family)
    before = run(jarilab.swap(copy.deepcopy(model), "none"), inputs)
    model = jarilab.swap(model, spec)
    after = run(model, inputs)
    assert not torch.allclose(before, after)
    after.square().mean().backward()
    learned = list(model.jari_encodings.parameters())
    assert (spec == "alibi") == (not learned)
    assert all(parameter.grad is not None for parameter in learned)
    with torch.no_grad(), jarilab.record(model) as tape:
        run(model, inputs)
    assert max(tape.trust(site).rebuild_error for site in tape.sites) < 1e-6
    again = jarilab.swap(make_model(family)[0], spec)
    again.load_state_dict(model.state_dict())
    assert torch.allclose(run(again, inputs), after)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", ["alibi", "shaw", "none"])
def test_a_swapped_model_survives_saving(family, spec, tmp_path):
    """A folder is restored with its encoding; transformers and from_huggingface refuse it."""
    model, inputs = make_model(family)
    model = jarilab.swap(model, spec).eval()
    for parameter in model.jari_encodings.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path / "one")
    again = jarilab.load_swapped(tmp_path / "one")
    with torch.no_grad():
        assert torch.equal(run(again, inputs), run(model, inputs))
    again.save_pretrained(tmp_path / "two")
    with torch.no_grad():
        assert torch.equal(run(jarilab.load_swapped(tmp_path / "two"), inputs), run(model, inputs))
        with pytest.raises(UserError, match=r"jarilab\.swap has changed.*jarilab\.load_swapped"):
            run(type(model).from_pretrained(tmp_path / "one"), inputs)
    with pytest.raises(UserError, match=r"jarilab\.load_swapped"):
        jarilab.from_huggingface(tmp_path / "one")


@pytest.mark.slow
def test_transformers_alone_refuses_a_swapped_folder(tmp_path):
    jarilab.swap(make_model("Llama")[0], "alibi").save_pretrained(tmp_path)
    code = "import sys, transformers; transformers.AutoModel.from_pretrained(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode
    assert 'attn_implementation="jarilab"` is not supported' in done.stderr


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (7, r"expected jarilab_swap to name an encoding, got 7"),
        ("code.py:Encoding", r"code\.py.*jarilab\.trust_code"),
        ("t5", r"expected the parameters of t5, got others: .*Missing"),
    ],
)
def test_a_wrong_entry_in_a_swapped_folder_is_refused(entry, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text("raise SystemExit('executed')")
    jarilab.swap(make_model("Llama")[0], "alibi").save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps({**config, "jarilab_swap": entry}))
    with pytest.raises(UserError, match=message):
        jarilab.load_swapped("model")


def test_a_folder_that_was_not_swapped_is_refused(tmp_path):
    make_model("Llama")[0].save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"got one with its own positions; read it by"):
        jarilab.load_swapped(tmp_path)


SITES = ["encoder.0", "encoder.1", "decoder.0.self", "decoder.0.cross", "decoder.1.self", "decoder.1.cross"]


@pytest.mark.parametrize("family", ["T5", "Bart", "Marian"])
def test_cross_attention_does_not_change(family):
    model, inputs = make_model(family)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][0, -2:] = 0
    plain = zeroed(copy.deepcopy(model), family)
    plain.set_attn_implementation("eager")
    model = jarilab.swap(model, "none")
    expected = plain(**inputs, output_attentions=True)
    with jarilab.record(model) as tape:
        outputs = run(model, inputs)
    assert tape.sites == SITES
    assert all(tape.verified(site) for site in SITES)
    maps = {"encoder": expected.encoder_attentions, "decoder": expected.decoder_attentions}
    maps["cross"] = expected.cross_attentions
    for kind, of_layers in maps.items():
        assert len(tape.sites_of(kind)) == 2
        for site, weights in zip(tape.sites_of(kind), of_layers, strict=True):
            assert torch.allclose(tape.weights(site), weights, atol=2e-6)
    (outputs - 1).square().mean().backward()
    (expected[0] - 1).square().mean().backward()
    for name, parameter in plain.named_parameters():
        if "EncDecAttention" in name or "encoder_attn" in name:
            assert parameter.grad.abs().max() > 0
            assert torch.allclose(model.get_parameter(name).grad, parameter.grad, atol=1e-6)


@torch.no_grad()
def test_a_head_of_cross_attention_can_be_switched_off():
    model, inputs = make_model("Marian")
    model = jarilab.swap(model, "alibi")
    before = run(model, inputs)
    with operate(model, [HeadOff("decoder.1.cross", 0)]):
        after = run(model, inputs)
    assert not torch.allclose(before, after, atol=1e-6)
    assert torch.equal(run(model, inputs), before)


@pytest.mark.parametrize(("family", "options"), [("GPT2", {}), ("Bert", {"is_decoder": True})])
def test_cross_attention_of_a_language_model_is_kept(family, options):
    kind = "Model" if family == "GPT2" else "LMHeadModel"
    model, _ = of_text(family, kind=kind, add_cross_attention=True, **options)
    states = torch.randn(2, 5, 32)
    plain = zeroed(copy.deepcopy(model), family)
    with torch.no_grad(), jarilab.record(jarilab.swap(model, "none")) as tape:
        outputs = run(model, {"input_ids": IDS, "encoder_hidden_states": states})
        expected = run(plain, {"input_ids": IDS, "encoder_hidden_states": states})
    assert torch.allclose(outputs, expected, atol=2e-6)
    assert len(tape.sites_of("cross")) == 2


def test_generation_with_a_cache_equals_generation_without():
    model, _ = of_text("Llama", kind="ForCausalLM", num_key_value_heads=2)
    model = jarilab.swap(model, "rotary+alibi")
    options = {"attention_mask": LEFT, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert model.generate(IDS, **options).equal(model.generate(IDS, use_cache=False, **options))


def test_alibi_in_gpt2_depends_on_distance_only():
    model, _ = make_model("GPT2")
    model = jarilab.swap(model, "alibi")
    padded = torch.cat((torch.zeros(2, 3, dtype=torch.long), IDS), 1)
    mask = torch.cat((torch.zeros(2, 3, dtype=torch.long), torch.ones_like(IDS)), 1)
    with torch.no_grad():
        alone, shifted = run(model, {"input_ids": IDS}), run(model, {"input_ids": padded, "attention_mask": mask})
    assert torch.allclose(alone, shifted[:, 3:], atol=1e-5)


def padded_left(spec, family, **own):
    """A swapped model, and its scores of tokens alone and after hidden ones."""
    torch.manual_seed(0)
    model = jarilab.swap(of_text(family, kind="ForCausalLM" if own else "Model", **own)[0], spec)
    for parameter in model.jari_encodings.parameters():
        nn.init.normal_(parameter, std=0.3)
    padded, mask = (torch.cat((row.new_zeros(2, 3), row), 1) for row in (IDS, torch.ones_like(IDS)))
    return model, model(IDS)[0], model(padded, attention_mask=mask)[0][:, 3:]


@pytest.mark.parametrize(
    "spec",
    ["alibi", "rotary+log_length", "rotary_dynamic:trained_length=5", "longrope:trained_length=7", "fire:length=5"],
)
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(spec):
    model, alone, padded = padded_left(spec, "Llama", **GROUPED)
    torch.testing.assert_close(padded, alone)
    options = {"use_cache": True}
    step = model(IDS[:, :4], attention_mask=LEFT[:, :4], **options)
    last = model(IDS[:, 4:], attention_mask=LEFT, past_key_values=step.past_key_values, **options)
    once = model(IDS, attention_mask=LEFT)
    if "trained_length" not in spec:  # there, the length changes earlier states
        torch.testing.assert_close(last.logits, once.logits[:, 4:])
    if "fire" not in spec:  # for decoders only
        _, alone, padded = padded_left(spec, "Bert")
        torch.testing.assert_close(padded, alone)


@pytest.mark.parametrize("family", ["Llama", "Mistral"])
@torch.no_grad()
def test_its_own_rotation_places_tokens_as_before(family):
    """Other positions, packed texts, and generation after padding, with a sliding cache."""
    own = {"sliding_window": 3} if family == "Mistral" else {}
    model, _ = of_text(family, kind="ForCausalLM", **GROUPED, **own)
    swapped = jarilab.swap(copy.deepcopy(model), "rotary")
    for ids in (torch.arange(7) * 2, torch.tensor([0, 1, 2, 3, 0, 1, 2])):
        inputs = {"position_ids": ids[None], "use_cache": False}
        torch.testing.assert_close(swapped(IDS, **inputs)[0], model(IDS, **inputs)[0])
    between = LEFT.clone()
    between[0, 3] = 0
    inputs = {"attention_mask": between}
    torch.testing.assert_close(swapped(IDS, **inputs)[0][between > 0], model(IDS, **inputs)[0][between > 0])
    for mask in (LEFT, between)[: 2 - len(own)]:
        options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
        scored = {"output_scores": True, "return_dict_in_generate": True, "eos_token_id": -1}
        expected, scores = (each.generate(IDS, **options, **scored).scores for each in (model, swapped))
        torch.testing.assert_close(scores, expected)


@pytest.mark.parametrize("spec", ["alibi", "rotary+log_length", "fire:length=3"])
@torch.no_grad()
def test_a_sliding_cache_gives_the_same_token_by_token(spec):
    torch.manual_seed(0)
    model = jarilab.swap(of_text("Mistral", kind="ForCausalLM", **GROUPED, sliding_window=3)[0], spec)
    for parameter in model.jari_encodings.parameters():
        nn.init.normal_(parameter, std=0.3)
    from transformers import DynamicCache

    for make_cache in (lambda: None, DynamicCache):  # the second keeps all keys
        cache, scores = make_cache(), []
        for ids in IDS.split(1, 1):
            output = model(ids, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            scores.append(output.logits)
        torch.testing.assert_close(torch.cat(scores, 1), model(IDS).logits)


@torch.no_grad()
def test_positions_that_a_cache_cannot_know_are_refused():
    apart = {"position_ids": torch.arange(7)[None] * 2}
    model = jarilab.swap(of_text("Llama", kind="ForCausalLM")[0], "rotary")
    cache = model(IDS, **apart).past_key_values
    with pytest.raises(UserError, match=r"stores no positions.* got \[14\]; pass position_ids="):
        model(IDS[:, :1], past_key_values=cache, position_ids=torch.tensor([[14]]))
    sliding, _ = of_text("Mistral", kind="ForCausalLM", **GROUPED, sliding_window=3)
    with pytest.raises(UserError, match="or use_cache=False"):
        jarilab.swap(copy.deepcopy(sliding), "rotary")(IDS, **apart)
    model = jarilab.swap(sliding, "log_length")
    with pytest.raises(UserError, match="stores no positions"):
        model(IDS, attention_mask=LEFT)
    counted, between = (LEFT.cumsum(-1) - 1).clamp(min=0), torch.ones_like(LEFT)
    between[:, 6] = 0
    with pytest.raises(UserError, match="stores no positions"):  # is the hidden token counted?
        jarilab.swap(model, "alibi").generate(IDS, attention_mask=between, max_new_tokens=2, pad_token_id=0)
    model = jarilab.swap(model, "log_length")
    scores = model(IDS, attention_mask=LEFT, position_ids=counted)[0]
    assert scores.equal(model(IDS, attention_mask=LEFT, use_cache=False)[0])


def test_other_models_and_encodings_are_refused():
    model, _ = of_text("Bloom")
    with pytest.raises(UserError, match=r"positions of BloomModel cannot be removed: expected one of GPT2, Bert, ViT"):
        jarilab.swap(model, "alibi")
    with pytest.raises(UserError, match="positions of Linear cannot"):
        jarilab.swap(nn.Linear(2, 2), "alibi")
    with pytest.raises(UserError, match="sinusoidal adds to the input"):
        jarilab.swap(make_model("GPT2")[0], "sinusoidal")
    with pytest.raises(UserError, match="forgetting needs the inputs of keys"):
        jarilab.swap(make_model("GPT2")[0], "forgetting")
    with pytest.raises(UserError, match="unknown encoding"):
        jarilab.swap(make_model("GPT2")[0], "alibye")


def test_replaced_positions_are_zero():
    assert ZeroPositions(4)(IDS).shape == (1, 1, 4)
    cosine, sine = NoRotation(8)(torch.randn(2, 7, 32), IDS)
    assert cosine.eq(1).all()
    assert sine.eq(0).all()
    images, inputs = of_images("ViT")
    assert run(jarilab.swap(images, "none"), inputs).shape == (2, 17, 32)


SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}


@torch.no_grad()
def test_a_bert_decoder_is_causal():
    from transformers import BertConfig, BertLMHeadModel

    torch.manual_seed(0)
    model = jarilab.swap(BertLMHeadModel(BertConfig(**SMALL, is_decoder=True)).eval(), "none")
    ids, other = IDS.clone() % 64, IDS.clone() % 64
    other[:, -1] = 63 - other[:, -1]
    for inputs in ({}, {"attention_mask": torch.ones_like(ids)}):
        one, two = (model(each, **inputs).logits for each in (ids, other))
        assert torch.equal(one[:, :-1], two[:, :-1])
        assert not torch.equal(one[:, -1], two[:, -1])


@torch.no_grad()
def test_a_mask_of_numbers_is_added():
    """Its smallest numbers hide keys; others are summands, of single heads, too."""
    model, _ = of_text("Llama", kind="ForCausalLM", num_key_value_heads=2)
    swapped = jarilab.swap(copy.deepcopy(model), "rotary")
    hidden = torch.full((7, 7), torch.finfo(torch.float32).min).triu(1)[None, None]
    for mask in (hidden.expand(2, 1, 7, 7), hidden - torch.rand(2, 1, 7, 7), hidden - torch.rand(2, 4, 7, 7)):
        torch.testing.assert_close(swapped(IDS, attention_mask=mask)[0], model(IDS, attention_mask=mask)[0])


def test_a_static_cache_is_refused():
    torch.manual_seed(0)
    model, _ = of_text("Llama", kind="ForCausalLM")
    model = jarilab.swap(model, "alibi")
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with pytest.raises(UserError, match=r"expected a cache that grows.*without cache_implementation"):
        model.generate(IDS, cache_implementation="static", disable_compile=True, **options)
    assert torch.equal(model.generate(IDS, **options), model.generate(IDS, use_cache=False, **options))


@pytest.mark.parametrize("family", ["GPT2", "T5", "Llama"])
def test_a_swapped_model_can_be_swapped_again(family):
    (model, inputs), (once, _) = make_model(family), make_model(family)
    jarilab.swap(jarilab.swap(model, "t5"), "none")
    with torch.no_grad():
        assert torch.equal(run(model, inputs), run(jarilab.swap(once, "none"), inputs))


def test_stacks_can_differ_in_their_number_of_heads():
    from transformers import BartConfig, BartModel

    layers = {"encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 2}
    widths = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 64}
    model = jarilab.swap(BartModel(BartConfig(**layers, **heads, **widths)).eval(), "alibi")
    with torch.no_grad(), jarilab.record(model) as tape:
        model(input_ids=IDS % 64, decoder_input_ids=IDS % 64)
    assert {tape.weights(site).shape[1] for site in tape.sites} == {4, 2}
