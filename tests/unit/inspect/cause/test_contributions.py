"""Direct contributions: they add up to the score of every kind of model, and equal the formula where there is one."""

import pytest
import torch
import transformers
from torch import nn

import jarilab
from helpers.any_models import any_model
from jarilab.core.errors import UserError
from jarilab.inspect.cause.answers import log_probability, logit_difference, logit_over_mean
from jarilab.inspect.cause.contributions import BIASES, contribution_rows, contributions
from jarilab.inspect.cause.parts import ModelParts
from jarilab.inspect.study.example import Batch

ROWS, LENGTH = 3, 7
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 24, "max_position_embeddings": 32, "pad_token_id": 0}
GROUPS = SIZES | {"num_key_value_heads": 2}
HUGGING_FACE = {
    "gemma 2": (transformers.Gemma2ForCausalLM, transformers.Gemma2Config(**GROUPS, head_dim=8)),
    "bert": (transformers.BertForMaskedLM, transformers.BertConfig(**SIZES)),
    "bert for classes": (transformers.BertForSequenceClassification, transformers.BertConfig(**SIZES)),
    "roberta": (transformers.RobertaForMaskedLM, transformers.RobertaConfig(**SIZES)),
    "olmo 2": (transformers.Olmo2ForCausalLM, transformers.Olmo2Config(**GROUPS, bos_token_id=1, eos_token_id=2)),
    "neox": (transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig(**SIZES, bos_token_id=1, eos_token_id=2)),
    "qwen 3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config(**GROUPS, head_dim=8)),
    "mixtral": (transformers.MixtralForCausalLM, transformers.MixtralConfig(**GROUPS, num_local_experts=3)),
    "granite": (
        transformers.GraniteForCausalLM,
        transformers.GraniteConfig(**GROUPS, logits_scaling=3.0, residual_multiplier=0.5, embedding_multiplier=2.0),
    ),
}
CHANGED_AFTERWARDS = {"gemma 2": "lm_head", "granite": "lm_head"}


def randomized(model: nn.Module) -> nn.Module:
    """Random gammas, betas and biases too, large enough that a wrong scale shows."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    for name, buffer in model.named_buffers():
        if name.endswith("norm.mean"):
            buffer.normal_()
        elif name.endswith("variance"):
            buffer.uniform_(0.5, 2)
    return model.eval()


def batch_of(*args, **kwargs) -> Batch:
    return Batch(args, kwargs, tokens=[{}] * ROWS)


def ids() -> torch.Tensor:
    return torch.randint(3, 40, (ROWS, LENGTH), generator=torch.Generator().manual_seed(2))


def checked_sum(model: nn.Module, batch: Batch, answer, tolerance: float = 1e-5):
    """The contributions, whose sum is compared with the score of the model itself."""
    direct = contributions(ModelParts(model, batch), batch, answer)
    total = torch.stack([*direct.values.values(), *direct.others.values()]).sum(0)
    torch.testing.assert_close(total, direct.score, rtol=0, atol=tolerance)
    assert direct.residue == pytest.approx(float((total - direct.score).abs().max()))
    with torch.no_grad():
        expected = answer(batch.forward(model), batch)
    if not direct.unembedding:
        torch.testing.assert_close(direct.score, expected, rtol=1e-5, atol=1e-6)
    return direct


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_contributions_add_up_in_models_of_transformers(name):
    cls, config = HUGGING_FACE[name]
    model = randomized(cls(config))
    answer = logit_difference(1, 0) if "classes" in name else logit_over_mean(5)
    direct = checked_sum(model, batch_of(input_ids=ids()), answer)
    assert len(direct.values) == 2 * (4 + 1)
    assert all(bool(value.any()) for value in direct.values.values())
    assert direct.unembedding == CHANGED_AFTERWARDS.get(name, "")


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5", "jarilab", "jarilab decoder", "jarilab encoder"])
def test_contributions_add_up_with_padding_and_two_stacks(name):
    model, batch = any_model(name)
    direct = checked_sum(model, batch, logit_difference(5, 7))
    for part, value in direct.values.items():
        in_encoder = part.site.startswith("encoder") and name in ("t5", "jarilab")
        assert bool(value.any()) != in_encoder, "an encoder acts through the cross-attention alone"


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("kind", ["layer", "rms", "batch"])
def test_contributions_add_up_for_every_norm_of_jarilab(place, kind):
    options = {"d_model": 16, "n_heads": 4, "norm": place, "norm_kind": kind, "generator_bias": True}
    model = randomized(jarilab.LanguageModel(40, n_kv_heads=2, embedding_norm=True, **options))
    checked_sum(model, batch_of(ids()), logit_over_mean([5, 6, 7]))
    model = randomized(jarilab.EncoderDecoder(40, 40, embedding_norm=True, **options))
    checked_sum(model, batch_of(ids(), ids().flip(1)), logit_over_mean([5, 6, 7]))


def test_contributions_add_up_with_parallel_sublayers():
    model = randomized(jarilab.LanguageModel(40, d_model=16, n_heads=4, parallel=True, encoding="alibi"))
    checked_sum(model, batch_of(ids()), logit_over_mean(5))


def folded_contributions(z_BHW, out_HWD, norm, x_BD, unembedding_VD, centered: bool):
    """c_h[t] = ((o_h - mean o_h) / sigma * gamma) W_U by hand, all tokens t: (B, H, V)."""
    o_BHD = torch.einsum("bhw,hwd->bhd", z_BHW, out_HWD)
    if centered:
        x_BD, o_BHD = x_BD - x_BD.mean(-1, keepdim=True), o_BHD - o_BHD.mean(-1, keepdim=True)
    eps = getattr(norm, "eps", None) or norm.variance_epsilon
    sigma_B11 = (x_BD.square().mean(-1) + eps).sqrt()[:, None, None]
    # Gamma is folded into the unembedding instead of applied to the stream.
    return o_BHD / sigma_B11 @ (unembedding_VD * norm.weight).T


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_head_contributes_what_the_formula_says(name):
    model, batch = any_model(name, torch.float64)
    randomized(model)
    batch = batch_of(input_ids=batch.kwargs["input_ids"][:ROWS])
    with jarilab.record(model) as tape, torch.no_grad():
        stream = model(**batch.kwargs, output_hidden_states=True)
    direct = contributions(ModelParts(model, batch), batch, logit_difference(5, 7))
    norm = model.transformer.ln_f if name == "gpt2" else model.model.norm
    entered = []
    handle = norm.register_forward_pre_hook(lambda module, args: entered.append(args[0][:, -1]))
    with torch.no_grad():
        model(**batch.kwargs)
    handle.remove()
    assert stream.logits.shape == (ROWS, 9, 40)
    for layer, site in enumerate(tape.sites):
        layers = model.transformer.h if name == "gpt2" else model.model.layers
        out_HWD = layers[layer].attn.c_proj.weight if name == "gpt2" else layers[layer].self_attn.o_proj.weight.T
        z_BHW = tape.recorded(site).output[:, :, -1]
        expected = folded_contributions(
            z_BHW, out_HWD.unflatten(0, (4, 4)), norm, entered[0], model.lm_head.weight, name == "gpt2"
        )
        for part, value in direct.values.items():
            if part.kind == "head" and part.site == site:
                by_hand = expected[:, part.index, 5] - expected[:, part.index, 7]
                torch.testing.assert_close(value, by_hand, rtol=1e-5, atol=1e-6 if name == "llama" else 1e-12)
    if name == "gpt2":
        betas = model.lm_head.weight @ norm.bias
        outs = sum(layer.attn.c_proj.bias for layer in layers)
        outs = (outs - outs.mean()) * norm.weight
        centered = entered[0] - entered[0].mean(-1, keepdim=True)
        sigma_B = (centered.square().mean(-1) + norm.eps).sqrt()
        by_hand = betas[5] - betas[7] + (outs @ (model.lm_head.weight[5] - model.lm_head.weight[7])) / sigma_B
        torch.testing.assert_close(direct.others[BIASES], by_hand, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_recomputed_effect_is_the_difference_of_two_unembeddings(name):
    model, batch = any_model(name, torch.float64)
    batch = batch_of(input_ids=batch.kwargs["input_ids"][:ROWS])
    rows = {row["part"]: row for row in contribution_rows(model, [batch], logit_difference(5, 7))}
    norm = model.transformer.ln_f if name == "gpt2" else model.model.norm
    streams = []
    handle = norm.register_forward_pre_hook(lambda module, args: streams.append(args[0]))
    with jarilab.record(model) as tape, torch.no_grad():
        model(**batch.kwargs)
    handle.remove()
    layers = model.transformer.h if name == "gpt2" else model.model.layers
    for layer, site in enumerate(tape.sites):
        out = layers[layer].attn.c_proj.weight if name == "gpt2" else layers[layer].self_attn.o_proj.weight.T
        o_BLHD = torch.einsum("bhlw,hwd->blhd", tape.recorded(site).output, out.unflatten(0, (4, 4)))
        for head in range(4):
            with torch.no_grad():
                both = [model.lm_head(norm(x)) for x in (streams[0], streams[0] - o_BLHD[:, :, head])]
            clean, without = (each[:, -1, 5] - each[:, -1, 7] for each in both)
            assert rows[f"L{layer}H{head}"]["recomputed"] == pytest.approx(float((clean - without).mean()), abs=1e-6)
            assert rows[f"L{layer}H{head}"]["recomputed"] != rows[f"L{layer}H{head}"]["contribution"]


def test_a_decoy_contributes_nothing_though_the_scale_moves_without_it():
    model, batch = any_model("llama", torch.float64)
    batch = batch_of(input_ids=batch.kwargs["input_ids"][:ROWS])
    with torch.no_grad():
        model.lm_head.weight[:, 3] = 0  # nobody reads coordinate 3
        out = model.model.layers[2].self_attn.o_proj.weight
        out[:, 4:8] = 0
        out[3, 4:8] = 5.0
    rows = {row["part"]: row for row in contribution_rows(model, [batch], logit_difference(5, 7))}
    assert abs(rows["L2H1"]["contribution"]) < 1e-6
    assert abs(rows["L2H1"]["recomputed"]) > 0.01
    assert rows["L2H1"]["contribution_high"] is not None


def test_rows_are_of_all_examples_and_say_where_the_score_is_read():
    cls, config = HUGGING_FACE["gemma 2"]
    model = randomized(cls(config))
    batches = [batch_of(input_ids=ids()), batch_of(input_ids=ids().flip(1))]
    rows = contribution_rows(model, batches, logit_over_mean(5))
    assert sum(row["contribution"] for row in rows) == pytest.approx(rows[0]["score"], abs=1e-5)
    sizes = [abs(row["contribution"]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert {row["kind"] for row in rows} == {"head", "mlp", "embedding", "bias"}
    assert all(row["unembedding"] == "lm_head" and row["residue"] < 1e-5 for row in rows)
    for row in rows:
        assert (row["recomputed"] is None) == (row["kind"] in ("embedding", "bias"))
        assert row["contribution_low"] <= row["contribution"] <= row["contribution_high"]


def test_padding_does_not_change_the_contributions_of_a_row():
    model, batch = any_model("gpt2", torch.float64)
    answer = logit_difference(5, 7)
    direct = contributions(ModelParts(model, batch), batch, answer)
    alone = batch_of(input_ids=batch.kwargs["input_ids"][2:3, :6])
    alone = Batch((), alone.kwargs, tokens=[{}])
    single = contributions(ModelParts(model, alone), alone, answer)
    for part, value in direct.values.items():
        other = next(each for each in single.values if each.short == part.short)
        torch.testing.assert_close(value[2:3], single.values[other], rtol=1e-8, atol=1e-10)


# Refusals -------------------------------------------------------------------------------------------------------------


class Squashed(nn.Module):
    """Not linear, and no activation with f(0) = 0."""

    def forward(self, x):
        return x.sigmoid()


def test_what_is_not_linear_is_refused_by_name():
    model, batch = any_model("gpt2")
    model.lm_head = nn.Sequential(Squashed(), model.lm_head)
    with pytest.raises(UserError, match=r"lm_head\.0.*total effects"):
        contributions(ModelParts(model, batch), batch, logit_difference(5, 7))


def test_an_answer_that_is_not_linear_is_refused():
    model, batch = any_model("gpt2")
    with pytest.raises(UserError, match=r"row \d: expected contributions that add up.*answer"):
        contributions(ModelParts(model, batch), batch, log_probability(5))
    with torch.inference_mode(), pytest.raises(UserError, match=r"with a gradient, got one without.*inference_mode"):
        contributions(ModelParts(model, batch), batch, logit_over_mean(5))


def test_an_answer_without_the_axis_of_the_batch_is_refused_by_its_shape():
    model, batch = any_model("gpt2")
    parts = ModelParts(model, batch)
    with pytest.raises(UserError, match=r"each of 4 rows.*\(9,\)"):
        contributions(parts, batch, lambda logits, batch: getattr(logits, "logits", logits)[0, :, 5])


def test_models_without_logits_or_batches_are_refused():
    model, batch = any_model("bert")
    parts = ModelParts(model, batch)
    with pytest.raises(UserError, match=r"logits.*BaseModelOutput.*head"):
        contributions(parts, batch, logit_over_mean(5))
    with pytest.raises(UserError, match="got none"):
        contribution_rows(model, [], logit_over_mean(5))
    model.train()
    with pytest.raises(UserError, match="evaluation mode"):
        contributions(parts, batch, logit_over_mean(5))


def test_parameters_need_gradients_as_before():
    model = randomized(jarilab.LanguageModel(40, d_model=16, n_heads=4, generator_bias=True)).requires_grad_(False)
    checked_sum(model, batch_of(ids()), logit_over_mean(5))
    assert not any(each.requires_grad for each in model.parameters())
    assert all(each.grad is None for each in model.parameters())
