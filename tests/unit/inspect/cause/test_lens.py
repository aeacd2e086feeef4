"""The logit lens equals norm and unembedding by hand, and says where it cannot be read."""

import pytest
import torch
from torch import nn

import jarilab
from helpers.any_models import any_model
from helpers.circuits import Circuit, examples, previous
from jarilab.core.errors import UserError
from jarilab.inspect.cause.answers import logit_difference, logit_over_mean
from jarilab.inspect.cause.contributions import contributions
from jarilab.inspect.cause.lens import lens_rows, logit_lens
from jarilab.inspect.cause.parts import ModelParts
from jarilab.inspect.study.example import Batch

PRE_NORM = ["gpt2", "llama", "t5", "jarilab", "jarilab decoder"]


def streams_of(layers, batch, model) -> list[torch.Tensor]:
    """What enters each layer, and what leaves the last."""
    streams = []

    def keep(tensor):
        streams.append(tensor if isinstance(tensor, torch.Tensor) else tensor[0])

    hooks = [layer.register_forward_pre_hook(lambda module, args: keep(args)) for layer in layers]
    hooks.append(layers[-1].register_forward_hook(lambda module, args, output: keep(output)))
    with torch.no_grad():
        batch.forward(model)
    for hook in hooks:
        hook.remove()
    return streams


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_each_layer_is_read_by_the_norm_with_its_own_scale(name):
    model, batch = any_model(name)
    lens = logit_lens(ModelParts(model, batch), batch)
    layers, norm = model.transformer.h if name == "gpt2" else model.model.layers, None
    norm = model.transformer.ln_f if name == "gpt2" else model.model.norm
    streams = streams_of(layers, batch, model)
    assert [part.short for part in lens.streams] == ["L0 stream", "L1 stream", "L2 stream", "L2 stream out"]
    with torch.no_grad():
        by_hand = torch.stack([model.lm_head(norm(x_BLD)) for x_BLD in streams])
        last_scale = streams[-1].var(-1, correction=0, keepdim=True).sqrt() if name == "gpt2" else None
    torch.testing.assert_close(lens.logits, by_hand, rtol=1e-5, atol=1e-5)
    assert not lens.warning
    if last_scale is not None:
        frozen = ((streams[0] - streams[0].mean(-1, keepdim=True)) / last_scale * norm.weight + norm.bias).detach()
        assert not torch.allclose(lens.logits[0], frozen @ model.lm_head.weight.T, atol=1e-2)


@pytest.mark.parametrize("name", PRE_NORM)
def test_the_last_stream_gives_the_model_s_own_logits(name):
    model, batch = any_model(name)
    with torch.no_grad():
        outputs = batch.forward(model)
    lens = logit_lens(ModelParts(model, batch), batch)
    torch.testing.assert_close(lens.logits[-1], getattr(outputs, "logits", outputs), rtol=1e-5, atol=1e-6)
    assert len(lens.logits) == (3 if name in ("t5", "jarilab") else 4), "of the decoder alone"
    assert not lens.warning
    assert not torch.allclose(lens.logits[0], lens.logits[1], atol=1e-3)


def test_rows_are_the_means_of_a_metric_over_batches():
    model, batch = any_model("llama")
    answer = logit_difference(5, 7)
    rows = lens_rows(model, [batch, batch], answer)
    lens = logit_lens(ModelParts(model, batch), batch)
    assert [row["part"] for row in rows] == [part.short for part in lens.streams]
    for row, logits in zip(rows, lens.logits, strict=True):
        assert row["value"] == pytest.approx(float(answer(logits, batch).mean()), abs=1e-5)
        assert row["value_low"] <= row["value"] <= row["value_high"]
        assert row["warning"] == ""


def test_the_lens_and_the_contributions_are_different_numbers():
    model, batch = any_model("gpt2")
    answer, parts = logit_difference(5, 7), ModelParts(model, batch)
    direct = contributions(parts, batch, answer)
    embedded = sum(value for name, value in direct.others.items() if name != "biases")
    assert not torch.allclose(answer(logit_lens(parts, batch).logits[0], batch), embedded, atol=1e-3)


# Models that cannot be read so ----------------------------------------------------------------------------------------


def test_post_norm_models_carry_a_warning_by_name():
    torch.manual_seed(0)
    ids = torch.randint(3, 40, (2, 7))
    for model in (
        jarilab.LanguageModel(40, d_model=16, n_heads=4, norm="post"),
        jarilab.TextEncoder(40, d_model=16, n_heads=4, words=True),
    ):
        batch = Batch((ids,), tokens=[{}] * 2)
        (row, *_) = lens_rows(model.eval(), [batch], logit_over_mean(5))
        assert f"{type(model).__name__} is a post-norm model" in row["warning"]


def test_a_model_without_a_final_norm_is_refused():
    batch = examples(4)
    model = Circuit([previous()])
    with pytest.raises(UserError, match=r"norm between the last layer of Circuit and its logits, got none.*patching"):
        logit_lens(ModelParts(model, batch), batch)
    model, batch = any_model("gpt2")
    model.transformer.ln_f = nn.Identity()
    with pytest.raises(UserError, match="GPT2LMHeadModel and its logits, got none"):
        logit_lens(ModelParts(model, batch), batch)


def test_a_model_without_a_head_or_without_batches_is_refused():
    model, batch = any_model("bert")
    with pytest.raises(UserError, match="layers and logits, got BertModel"):
        logit_lens(ModelParts(model, batch), batch)
    with pytest.raises(UserError, match="got none"):
        lens_rows(model, [], logit_over_mean(5))


def test_a_model_with_a_norm_of_another_kind_is_refused():
    model, batch = any_model("gpt2")
    model.transformer.ln_f = nn.Softmax(-1)
    with pytest.raises(UserError, match="got none"):
        logit_lens(ModelParts(model, batch), batch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_norm_of_a_model_in_half_precision_is_known(name, dtype):
    model, batch = any_model(name, dtype)
    parts = ModelParts(model, batch)
    assert not logit_lens(parts, batch).warning
    assert contributions(parts, batch, logit_over_mean(3)).residue < 0.03
