"""Transformers models copied into models of jarilab compute the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import astuple
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jarilab
from jarilab.huggingface.families import FAMILIES

pytestmark = [
    pytest.mark.skipif(find_spec("transformers") is None, reason="pip install transformers"),
    pytest.mark.filterwarnings("ignore"),
]
WORDS, SHORT, LONG = 31, 5, 9
TEXT = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDE = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
GPT2 = {**TEXT, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 16}
LLAMA = {**TEXT, **WIDE, "num_key_value_heads": 2, "max_position_embeddings": 16}
T5 = {**TEXT, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": 0}
BART: dict[str, Any] = {**TEXT, "d_model": 24, "max_position_embeddings": 16, "decoder_start_token_id": 0}
for side in ("encoder", "decoder"):
    BART |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 40}
BERT = {**TEXT, **WIDE, "max_position_embeddings": 16}
VIT = {**WIDE, "image_size": (12, 8), "patch_size": 4, "num_channels": 3, "num_labels": 5}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
"""Which LLaMA ignores."""

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt2_untied": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {**GPT2, "n_inner": 40, "activation_function": "relu", "tie_word_embeddings": False},
    ),
    "neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**TEXT, **WIDE, "rotary_pct": 0.34}),
    "neox_sequential": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**TEXT, **WIDE, "rotary_pct": 1.0, "use_parallel_residual": False, "attention_bias": False},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "llama3": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**LLAMA, "head_dim": 8, "tie_word_embeddings": True, "rope_parameters": LLAMA3, "attention_bias": True},
    ),
    "llama_whole": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "rope_parameters": PARTIAL}),
    "llama_linear": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 3.0}, "mlp_bias": True},
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": 4}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "t5_gated": (
        "T5ForConditionalGeneration",
        "T5Config",
        {**T5, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 1, "tie_word_embeddings": False},
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART),
    "marian": ("MarianMTModel", "MarianConfig", {**BART, "scale_embedding": True, "activation_function": "swish"}),
    "blenderbot": ("BlenderbotForConditionalGeneration", "BlenderbotConfig", BART),
    "bert": ("BertModel", "BertConfig", BERT),
    "bert_words": ("BertForMaskedLM", "BertConfig", BERT),
    "vit": ("ViTForImageClassification", "ViTConfig", VIT),
    "vit_bare": ("ViTForImageClassification", "ViTConfig", {**VIT, "qkv_bias": False}),
}
QUICK = {"gpt2", "neox_sequential", "llama3", "llama_whole", "mistral", "t5_gated", "marian", "bert_words", "vit"}
"""One of each family, in every run of the tests."""
CAUSAL = ("gpt2", "neox", "llama", "mistral")
TRANSLATORS = ("t5", "t5_gated", "bart", "marian", "blenderbot")
READERS = ("bert", "bert_words")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def build(name: str) -> Path:
        folder = tmp_path_factory.mktemp("folders") / name
        model_of(*MODELS[name]).save_pretrained(folder)
        return folder

    return build


def model_of(kind: str, config: str, settings: dict[str, Any]) -> Any:
    """A model with weights that are large enough for each to matter."""
    import transformers

    model = getattr(transformers, kind)(getattr(transformers, config)(**settings))
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        spread = 0.3 if parameter.ndim > 1 else 0.5
        drawn = torch.randn(parameter.shape, generator=generator) * spread
        parameter.data.copy_(drawn + parameter.data.mean().round())
    if getattr(model, "final_logits_bias", None) is not None:
        model.final_logits_bias.normal_(generator=generator)
    return model.eval()


def both(folder: Path) -> tuple[Any, Any]:
    """The transformers model and its copy."""
    from jarilab.huggingface.loading import load

    return load(folder).model, jarilab.from_huggingface(folder)


def ids_of(length: int, seed: int = 1) -> Tensor:
    return torch.randint(3, WORDS, (2, length), generator=torch.Generator().manual_seed(seed))


def outputs(name: str, original: nn.Module, copy: nn.Module) -> tuple[Tensor, Tensor]:
    """The outputs of both for the same input."""
    if name.startswith("vit"):
        pixels = torch.randn(2, 3, 12, 8, generator=torch.Generator().manual_seed(1))
        return original(pixels).logits, copy(pixels)
    if name in TRANSLATORS:
        source, target = ids_of(LONG), ids_of(SHORT, 2)
        return original(input_ids=source, decoder_input_ids=target).logits, copy(source, target)
    outputs = original(ids_of(LONG))
    scores = outputs.last_hidden_state if name == "bert" else outputs.logits
    return scores, copy(ids_of(LONG))


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((one - other).abs().max() / one.abs().max())


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in MODELS]
)
@torch.no_grad()
def test_the_copy_computes_the_same_and_every_weight_matters(name: str, folder_of: Callable[[str], Path]) -> None:
    original, copy = both(folder_of(name))
    expected, got = outputs(name, original, copy)
    assert apart(expected, got) <= 1e-5
    for path, parameter in copy.named_parameters():
        if path.endswith("key.bias"):
            continue  # the same for all keys, so that no weight changes where nothing turns it
        before = parameter.clone()
        parameter.add_(0.1 * torch.randn_like(parameter))
        assert apart(expected, outputs(name, original, copy)[1]) > 1e-5, f"{path} could be anything"
        parameter.copy_(before)


def test_every_family_is_tested() -> None:
    assert {kind for kind, _, _ in MODELS.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", ["t5_gated", "marian", "bert_words"])
@torch.no_grad()
def test_right_padding_is_hidden(name: str, folder_of: Callable[[str], Path]) -> None:
    original, copy = both(folder_of(name))
    ids, keep = ids_of(LONG), torch.ones(2, LONG, dtype=torch.bool)
    keep[1, 6:] = False
    tokens = jarilab.Tokens(ids, jarilab.Positions.sequence(LONG), keep)
    if name in READERS:
        padded = original(ids, attention_mask=keep.long())
        expected = (padded.last_hidden_state if name == "bert" else padded.logits)[keep]
        got = copy(tokens)[keep]
        unpadded = copy(ids)[keep]
    else:
        target = ids_of(SHORT, 2)
        expected = original(input_ids=ids, attention_mask=keep.long(), decoder_input_ids=target).logits
        got, unpadded = copy(tokens, target), copy(ids, target)
    assert apart(expected, got) <= 1e-5
    assert apart(expected, unpadded) > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "mistral"])
@torch.no_grad()
def test_left_padding_and_caches_generate_the_same(name: str, folder_of: Callable[[str], Path]) -> None:
    original, copy = both(folder_of(name))
    ids, keep = ids_of(SHORT), torch.ones(2, SHORT, dtype=torch.bool)
    keep[1, :2] = False
    written = original.generate(ids, attention_mask=keep.long(), max_new_tokens=6, do_sample=False, num_beams=1)
    written = nn.functional.pad(written, (0, SHORT + 6 - written.shape[1]))
    for cached in (True, False):
        prompt = jarilab.Tokens(ids[:, :-1], jarilab.Positions.from_mask(keep[:, :-1]), keep[:, :-1])
        after = jarilab.positions_after(prompt)
        state, cache = copy.start(prompt), copy.new_cache() if cached else None
        rows = torch.arange(2)
        generated = ids[:, -1:]
        for step in range(6):
            new = generated[:, -1:] if cached and step else generated
            start = generated.shape[1] - new.shape[1]
            scores = copy.step(state, new, after(generated, start, rows), cache)
            generated = torch.cat((generated, scores[:, -1].argmax(-1, keepdim=True)), 1)
        for row in range(2):
            expected = written[row, SHORT:].tolist()
            ended = expected.index(2) + 1 if 2 in expected else 6
            assert generated[row, 1 : 1 + ended].tolist() == expected[:ended]


@pytest.mark.parametrize("name", ["llama", "t5_gated", "bert_words", "vit"])
def test_the_copy_trains_and_is_recorded(name: str, folder_of: Callable[[str], Path]) -> None:
    original, copy = both(folder_of(name))
    with jarilab.record(copy) as tape:
        _, got = outputs(name, original, copy)
    assert all(max(astuple(tape.trust(site))) < 1e-5 for site in tape.sites)
    got.square().mean().backward()
    assert all(parameter.grad is not None for parameter in copy.parameters())


def test_segments_equal_those_of_bert(folder_of: Callable[[str], Path]) -> None:
    original, copy = both(folder_of("bert"))
    ids, segments = ids_of(LONG), torch.arange(LONG).expand(2, -1) % 2
    expected = original(ids, token_type_ids=segments).last_hidden_state
    assert apart(expected, copy(ids, segments)) <= 1e-5
    assert apart(expected, copy(ids)) > 1e-3
    with pytest.raises(jarilab.UserError, match=r"knows no segments.*segments=2"):
        jarilab.TextEncoder(5)(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, dtype=torch.long))


# What cannot be copied ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "kind dynamic.*linear",
        ),
        ("llama", {"hidden_act": "tanh"}, "the activation tanh.*expected one of relu"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True.*expected False"),
        ("bart", {"decoder_ffn_dim": 48}, "encoder_ffn_dim=40 and decoder_ffn_dim=48.*the same"),
        ("vit", {"patch_size": (4, 2)}, "patches of 4 x 2.*squares"),
        ("bert_words", {"tie_word_embeddings": False}, "an output matrix of its own.*tied to the word embeddings"),
    ],
)
def test_unsupported_settings_are_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    kind, config, settings = MODELS[name]
    model_of(kind, config, {**settings, **changes}).save_pretrained(tmp_path)
    with pytest.raises(jarilab.UserError, match=message):
        jarilab.from_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("gpt2", "lm_head.weight"),
        ("llama3", "lm_head.weight"),
        ("bart", "lm_head.weight"),
        ("bert_words", "cls.predictions.decoder.bias"),
    ],
)
@torch.no_grad()
def test_weights_that_differ_are_not_tied(name: str, weight: str, folder_of: Callable[[str], Path]) -> None:
    """transformers reads them so, although the configuration ties them."""
    from jarilab.huggingface.copying import WeightCopier
    from jarilab.huggingface.loading import load

    loaded = load(folder_of(name))
    owner, _, kind = weight.rpartition(".")
    own = nn.Parameter(loaded.model.get_parameter(weight) + 0.3 * torch.randn(WORDS, *[24] * (kind == "weight")))
    setattr(loaded.model.get_submodule(owner), kind, own)
    assert apart(*outputs(name, loaded.model, FAMILIES[MODELS[name][0]](WeightCopier(loaded)))) <= 1e-5


def test_embeddings_of_one_side_are_refused(folder_of: Callable[[str], Path]) -> None:
    from jarilab.huggingface.copying import WeightCopier
    from jarilab.huggingface.loading import load

    loaded = load(folder_of("t5_gated"))
    loaded.model.encoder.embed_tokens = nn.Embedding(WORDS, 24)
    with pytest.raises(jarilab.UserError, match="embeddings of the encoder alone"):
        FAMILIES["T5ForConditionalGeneration"](WeightCopier(loaded))


def test_unsupported_models_are_refused(tmp_path: Path) -> None:
    model_of("GPT2Model", "GPT2Config", GPT2).save_pretrained(tmp_path)
    with pytest.raises(jarilab.UserError, match=r"holds a GPT2Model.*GPT2LMHeadModel.*jarilab\.record"):
        jarilab.from_huggingface(tmp_path)


def test_weights_that_are_left_over_are_refused(folder_of: Callable[[str], Path]) -> None:
    from jarilab.huggingface.copying import WeightCopier
    from jarilab.huggingface.loading import load

    loaded = load(folder_of("bert"))
    loaded.model.register_parameter("strange", nn.Parameter(torch.zeros(1)))
    with pytest.raises(jarilab.UserError, match="no place in a model of jari: strange"):
        FAMILIES["BertModel"](WeightCopier(loaded))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 3}, r"lacks weights that its config\.json asks for: model\.layers\.2\."),
        ({"num_attention_heads": 8, "head_dim": 6}, r"of other sizes than its config\.json says: model\.layers\.0\."),
    ],
)
def test_weights_that_do_not_fit_the_configuration_are_refused(
    changes: dict[str, Any], message: str, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folder_of("llama"), tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(jarilab.UserError, match=message):
        jarilab.from_huggingface(folder)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(jarilab.UserError, match="has no weights"):
        jarilab.from_huggingface(tmp_path)
