"""The matrices of heads equal the model's own slices, and composition scores the formula with whole matrices."""

from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn

import jarilab
from helpers.any_models import any_model
from jarilab.core.errors import UserError
from jarilab.inspect.cause.composition import compositions
from jarilab.inspect.cause.forward_notes import ForwardNotes
from jarilab.inspect.cause.parts import ModelParts
from jarilab.inspect.cause.projections import head_matrices
from jarilab.inspect.study.example import Batch

H, D, E, L = 4, 16, 4, 9
SIZES = {"vocab_size": 40, "hidden_size": D, "num_hidden_layers": 3, "num_attention_heads": H}
SIZES |= {"intermediate_size": 24, "max_position_embeddings": 32, "pad_token_id": 0}


def unpadded(name: str) -> tuple[nn.Module, Batch]:
    """A model with random gammas and betas in float64, and two rows of L tokens."""
    if name == "neox":
        torch.manual_seed(1)
        model = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES, bos_token_id=1, eos_token_id=2))
    else:
        model, _ = any_model(name)
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(3, 40, (2, L), generator=torch.Generator().manual_seed(2))
    kwargs = {"decoder_input_ids": ids.flip(1)} if name == "t5" else {}
    batch = Batch((ids,), kwargs, tokens=[{}] * 2)
    return model.eval().double().requires_grad_(False), batch


def thirds(weight_DN):
    return [each.unflatten(1, (H, E)).transpose(0, 1) for each in weight_DN.chunk(3, 1)]


def cut(linear, heads=H):
    """The matrices of a linear layer's heads, (H, D, E), those of a group repeated."""
    return linear.weight.T.unflatten(1, (heads, -1)).transpose(0, 1).repeat_interleave(H // heads, 0)


def own_slices(name: str, model, layer: int):
    """W_Q, W_K, W_V and W_O of a layer as the code of the model cuts them."""
    if name == "gpt2":
        attention = model.transformer.h[layer].attn
        return *thirds(attention.c_attn.weight), attention.c_proj.weight.unflatten(0, (H, E))
    if name == "neox":
        attention = model.gpt_neox.layers[layer].attention
        fused_HXD = attention.query_key_value.weight.view(H, 3 * E, D)
        return *(each.transpose(1, 2) for each in fused_HXD.chunk(3, 1)), attention.dense.weight.T.unflatten(0, (H, E))
    if name == "llama":
        attention = model.model.layers[layer].self_attn
        names, groups = ("q_proj", "k_proj", "v_proj", "o_proj"), 2
    elif name == "t5":
        attention = model.encoder.block[layer].layer[0].SelfAttention
        names, groups = ("q", "k", "v", "o"), H
    elif name == "bert":
        attention = model.encoder.layer[layer].attention
        q, k, v = (cut(getattr(attention.self, each)) for each in ("query", "key", "value"))
        return q, k, v, attention.output.dense.weight.T.unflatten(0, (H, E))
    else:
        attention = model.decoder.in_order()[layer].attention
        names, groups = ("query", "key", "value", "out"), 2
    q, k, v, o = (getattr(attention, each) for each in names)
    return cut(q), cut(k, groups), cut(v, groups), o.weight.T.unflatten(0, (H, E))


@pytest.mark.parametrize("name", ["gpt2", "neox", "llama", "t5", "bert", "jarilab decoder"])
def test_matrices_are_the_slices_of_the_model(name):
    model, batch = unpadded(name)
    notes = ForwardNotes(ModelParts(model, batch), batch)
    for layer, site in enumerate(list(notes.calls)[:2]):
        matrices = head_matrices(notes, site)
        slices = own_slices(name, model, layer)
        actual = [matrices.q.weight, matrices.k.weight, matrices.v.weight, matrices.o]
        for one, other in zip(actual, slices, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_heads_of_a_group_are_neighbours_not_every_second_one():
    model, batch = unpadded("llama")
    notes = ForwardNotes(ModelParts(model, batch), batch)
    k_HDE = head_matrices(notes, "decoder.1.self").k.weight
    assert torch.equal(k_HDE[0], k_HDE[1])
    assert torch.equal(k_HDE[2], k_HDE[3])
    assert not torch.allclose(k_HDE[0], k_HDE[2])


def test_rotary_angles_are_found_from_the_forward():
    model, batch = unpadded("llama")
    notes = ForwardNotes(ModelParts(model, batch), batch)
    rotation = head_matrices(notes, "decoder.0.self").rotation
    torch.testing.assert_close(rotation.angle, model.model.rotary_emb.inv_freq.double(), rtol=1e-5, atol=1e-7)
    x_BHLE = torch.randn(1, 1, L, E).double()
    cos, sin = model.model.rotary_emb(x_BHLE[0], torch.arange(L)[None])
    expected, _ = transformers.models.llama.modeling_llama.apply_rotary_pos_emb(x_BHLE, x_BHLE, cos, sin)
    actual = rotation.turned(x_BHLE, torch.arange(L).double()[:, None])
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def norm_of(x_DD):
    return torch.linalg.matrix_norm(x_DD)


def by_hand(name: str, model, distance: int, head: int, to: int) -> dict[str, float]:
    """The scores of a head of layer 0 and one of layer 2, from (D, D) matrices."""
    layers = model.transformer.h if name == "gpt2" else model.model.layers
    gammas = [each.ln_1.weight if name == "gpt2" else each.input_layernorm.weight for each in layers]
    center_DD = torch.eye(D).double() - (1 / D if name == "gpt2" else 0)
    _, _, v1, o1 = (each[head] for each in own_slices(name, model, 0))
    q2, k2, v2, o2 = (each[to] for each in own_slices(name, model, 2))
    v1 = center_DD @ torch.diag(gammas[0]) @ v1
    q2, k2, v2 = (center_DD @ torch.diag(gammas[2]) @ each for each in (q2, k2, v2))
    turn_EE = torch.eye(E).double()
    if name == "llama":
        angle_R = distance * model.model.rotary_emb.inv_freq.double()
        for pair, angle in enumerate(angle_R):
            rows = torch.tensor([[pair, pair], [pair + E // 2, pair + E // 2]])
            turn = torch.tensor([[angle.cos(), angle.sin()], [-angle.sin(), angle.cos()]]).double()
            turn_EE[rows, rows.T] = turn
    ov1, qk2, ov2 = v1 @ o1 @ center_DD, q2 @ turn_EE @ k2.T, v2 @ o2 @ center_DD
    others = {"q": qk2, "k": qk2.T, "v": ov2}
    return {each: float(norm_of(ov1 @ other) / norm_of(ov1) / norm_of(other)) for each, other in others.items()}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_scores_are_those_of_whole_matrices(name):
    model, batch = unpadded(name)
    rows = compositions(ModelParts(model, batch), batch)
    assert len(rows) == 3 * H * H * 3
    assert [row["value"] for row in rows] == sorted((row["value"] for row in rows), reverse=True)
    found = {(row["head"], row["to"], row["input"]): row for row in rows}
    for head, to in ((0, 3), (2, 1)):
        scores = [by_hand(name, model, distance, head, to) for distance in range(L if name == "llama" else 1)]
        for kind in ("q", "k", "v"):
            row, values = found[f"L0H{head}", f"L2H{to}", kind], [each[kind] for each in scores]
            assert row["value"] == pytest.approx(max(values), rel=1e-5)
            assert row["mean"] == pytest.approx(sum(values) / len(values), rel=1e-5)
            assert row["to_chance"] == pytest.approx(row["value"] * D**0.5)
            assert ("rotary" in row["positions"]) == (name == "llama" and kind != "v")
    for kind in ("q", "k", "v"):
        ratios = [row["to_shuffled"] for row in rows if row["input"] == kind]
        assert sum(ratios) / len(ratios) == pytest.approx(1)


def test_unrelated_heads_have_the_score_of_chance():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES | {"hidden_size": 64, "num_attention_heads": 8})
    model = transformers.LlamaForCausalLM(config).eval()
    batch = Batch((torch.randint(3, 40, (2, L)),), tokens=[{}] * 2)
    rows = [row for row in compositions(ModelParts(model, batch), batch) if row["input"] == "v"]
    assert sum(row["to_chance"] for row in rows) / len(rows) == pytest.approx(1, abs=0.05)


def test_a_head_that_reads_what_another_writes_stands_out():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES | {"hidden_size": 64, "num_attention_heads": 8})
    model = transformers.LlamaForCausalLM(config).eval()
    batch = Batch((torch.randint(3, 40, (2, L)),), tokens=[{}] * 2)
    with torch.no_grad():
        written = model.model.layers[0].self_attn.o_proj.weight[:, 8:16]
        model.model.layers[2].self_attn.k_proj.weight[16:24] = written.T
    first, second, *_ = compositions(ModelParts(model, batch), batch)
    assert (first["head"], first["to"], first["input"]) == ("L0H1", "L2H2", "k")
    assert first["value"] > 1.5 * second["value"]


def test_decoders_with_a_source_compose_by_the_queries_of_their_cross_attention_alone():
    model, batch = unpadded("t5")
    rows = compositions(ModelParts(model, batch), batch)
    cross = [row for row in rows if row["to"].startswith("cross.")]
    assert {row["input"] for row in cross} == {"q"}
    assert not any(row["head"].startswith("enc.") != row["to"].startswith("enc.") for row in rows)


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "jarilab encoder"])
def test_post_norm_models_are_refused_by_name(name):
    model, batch = any_model(name)
    with pytest.raises(UserError, match=rf"norms before.*{type(model).__name__}.*path patching"):
        compositions(ModelParts(model, batch), batch)


def test_normalized_queries_are_refused_by_name():
    config = transformers.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8)
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config).eval()
    nn.init.normal_(model.model.layers[0].self_attn.q_norm.weight)
    batch = Batch((torch.randint(3, 40, (2, L)),), tokens=[{}] * 2)
    with pytest.raises(UserError, match=r"decoder\.0\.self: expected queries that are a linear map.*path patching"):
        compositions(ModelParts(model, batch), batch)


def test_scores_of_the_model_s_own_say_that_a_rotation_is_not_seen():
    config = transformers.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8)
    torch.manual_seed(0)
    model = transformers.Gemma2ForCausalLM(config).eval()
    batch = Batch((torch.randint(3, 40, (2, L)),), tokens=[{}] * 2)
    rows = compositions(ModelParts(model, batch), batch)
    assert all(("distance 0 only" in row["positions"]) == (row["input"] != "v") for row in rows)


def test_another_rotation_than_that_of_pairs_is_refused():
    model = jarilab.LanguageModel(40, d_model=16, n_heads=4, encoding="none").eval()
    batch = Batch((torch.randint(3, 40, (2, L)),), tokens=[{}] * 2)
    notes = ForwardNotes(ModelParts(model, batch), batch)
    call, output = notes.calls["decoder.0.self"]

    turn_EE = torch.linalg.qr(torch.randn(E, E)).Q
    notes.calls["decoder.0.self"] = replace(call, q=call.q @ turn_EE, k=call.k @ turn_EE), output
    with pytest.raises(UserError, match="not in fixed pairs"):
        head_matrices(notes, "decoder.0.self")
