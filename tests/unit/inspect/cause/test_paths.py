"""Path patching equals two runs by hand, and the paths of a linear model add up to the total effect."""

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import jarilab
from helpers.any_models import ARCHITECTURES, any_model
from helpers.circuits import Circuit, examples, previous
from jarilab.core.errors import UserError
from jarilab.inspect.cause.answers import logit_difference, logit_over_mean
from jarilab.inspect.cause.copies import Copies
from jarilab.inspect.cause.parts import ModelParts
from jarilab.inspect.cause.paths import Edge, PathPatching
from jarilab.inspect.study.example import Batch

H, E, L = 4, 4, 9


def unpadded(name: str) -> tuple[torch.nn.Module, Batch]:
    model, batch = any_model(name, torch.float64)
    ids = batch.kwargs["input_ids"][:2]
    return model, Batch((), {"input_ids": ids}, tokens=[{}] * 2)


def heads_of(projected, heads=H):
    """(B, L, N) as (B, H, L, E), those of a group repeated as neighbours."""
    return projected.unflatten(-1, (heads, -1)).transpose(1, 2).repeat_interleave(H // heads, 1)


def queries_keys_values(name: str, model, layer: int, stream):
    if name == "gpt2":
        block = model.transformer.h[layer]
        return [heads_of(each) for each in block.attn.c_attn(block.ln_1(stream)).chunk(3, -1)]
    block = model.model.layers[layer]
    x = block.input_layernorm(stream)
    q, k, v = (getattr(block.self_attn, f"{each}_proj")(x) for each in "qkv")
    cos, sin = model.model.rotary_emb(x, torch.arange(L)[None])
    return *apply_rotary_pos_emb(heads_of(q), heads_of(k, 2), cos, sin), heads_of(v, 2)


def by_hand(name: str, model, batch, sender: int, receiver: int, kind: str, score):
    """Layer 0 to layer 2: the stream without the sender, one input computed from it, then the rest of the model."""
    layers = model.transformer.h if name == "gpt2" else model.model.layers
    projections = [layer.attn.c_proj if name == "gpt2" else layer.self_attn.o_proj for layer in layers]
    weights = [each.weight if name == "gpt2" else each.weight.T for each in projections]
    kept = {}
    hooks = [projections[0].register_forward_pre_hook(lambda module, args: kept.update(z=args[0]))]
    hooks += [layers[2].register_forward_pre_hook(lambda module, args: kept.update(stream=args[0]))]
    clean = score(batch.forward(model), batch)
    for hook in hooks:
        hook.remove()
    columns = slice(sender * E, (sender + 1) * E)
    without = kept["stream"] - kept["z"][..., columns] @ weights[0][columns]
    inputs = dict(zip("qkv", queries_keys_values(name, model, 2, kept["stream"]), strict=True))
    changed = dict(zip("qkv", queries_keys_values(name, model, 2, without), strict=True))
    inputs[kind][:, receiver] = changed[kind][:, receiver]
    z_BHLE = functional.scaled_dot_product_attention(*inputs.values(), is_causal=True)

    def replaced(module, args):
        z_BLN = args[0].clone()
        z_BLN[..., receiver * E : (receiver + 1) * E] = z_BHLE[:, receiver]
        return (z_BLN,)

    hook = projections[2].register_forward_pre_hook(replaced)
    patched = score(batch.forward(model), batch)
    hook.remove()
    return clean - patched


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.no_grad()
def test_paths_are_those_of_two_runs_by_hand(name):
    model, batch = unpadded(name)
    score = logit_difference(5, 7)
    patching = PathPatching(model, batch, score)
    parts = {part.short: part for part in map(patching.parts.of_head, patching.parts.heads)}
    pairs = [(0, 1), (3, 2), (3, 3)]
    edges = [Edge(parts[f"L0H{one}"], parts[f"L2H{two}"], kind) for one, two in pairs for kind in ("q", "k", "v")]
    # A receiver between them does not pass on what it reads.
    between = Edge(parts["L0H3"], parts["L1H0"], "v")
    effects = patching.effects([*edges, between])
    for column, edge in enumerate(edges):
        expected = by_hand(name, model, batch, edge.sender.index, edge.receiver.index, edge.input, score)
        torch.testing.assert_close(effects[:, column], expected, rtol=1e-4, atol=1e-6)
        assert bool(effects[:, column].abs().max() > 1e-5)


@torch.no_grad()
def test_paths_through_multihead_attention_are_those_of_two_runs_by_hand():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, H, 32, 0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).double().eval()
    batch = Batch((torch.randn(2, L, 16).double(),), {}, tokens=[{}] * 2)
    patching = PathPatching(model, batch, lambda outputs, batch: outputs[:, -1, 3])
    sender, receiver = (patching.parts.of_head(patching.parts.heads[number]) for number in (1, 2 * H + 2))
    effects = patching.effects([Edge(sender, receiver, "v"), Edge(sender, receiver, "q")])

    first, last = model.layers[0], model.layers[2]
    with jarilab.record(model) as tape:
        clean = model(*batch.args)[:, -1, 3]

    def written(layer, site, head, x):
        """What a head writes of the values of x; the biases are 0."""
        columns, attention = slice(head * E, (head + 1) * E), layer.self_attn
        value, out = attention.in_proj_weight[2 * H * E :][columns], attention.out_proj.weight[:, columns]
        return tape.weights(site)[:, head].double() @ layer.norm1(x) @ value.T @ out.T

    stream = model.layers[1](first(*batch.args))
    without = stream - written(first, "encoder.0", 1, *batch.args)
    lost = written(last, "encoder.2", 2, stream) - written(last, "encoder.2", 2, without)
    last.self_attn.register_forward_hook(lambda module, args, output: (output[0] - lost, *output[1:]))
    torch.testing.assert_close(effects[:, 0], clean - model(*batch.args)[:, -1, 3], rtol=1e-4, atol=1e-7)
    assert effects.abs().min() > 1e-6


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_sender_that_stays_changes_nothing_at_all(name):
    model, batch = any_model(name)
    score = logit_over_mean(5) if name != "bert" else (lambda outputs, batch: outputs.last_hidden_state[:, 0, 3])
    patching = PathPatching(model, batch, score, donors=batch)
    last = patching.parts.heads[-1].site
    edges = [
        Edge(patching.parts.of_head(patching.parts.heads[0]), patching.parts.of_head(head), kind)
        for head in patching.parts.heads
        for kind in ("q", "k", "v")
        if head.site == last
    ]
    assert not bool(patching.effects(edges).abs().gt(1e-6).any())
    rows = PathPatching(model, batch, score).rows(patching.parts.heads[0])
    assert len(rows) == 3 * (len(patching.parts.heads) - H)
    assert any(abs(row["effect"]) > 1e-6 for row in rows)
    sizes = [abs(row["effect"]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)


def uniform(write: float):
    """Attends to all keys equally, so that its output is linear in the stream."""
    q_DE, k_DE, ov_DD = previous(write)
    generator = torch.Generator().manual_seed(int(write * 10))
    return q_DE * 0, k_DE, 0.2 * torch.randn(ov_DD.shape, generator=generator)


def test_direct_effect_and_paths_add_up_to_the_total_in_a_linear_model():
    model = Circuit([uniform(1.0), uniform(2.0)], [uniform(3.0), uniform(4.0)])
    batch = examples(4)

    def score(outputs, batch):
        return (outputs[:, -1, 3] - outputs[:, -1, 5]).double()

    patching = PathPatching(model, batch, score)
    copies = Copies(ModelParts(model, batch))
    clean = copies.run_clean(batch)
    for head in patching.parts.heads[:2]:
        group = [(patching.parts.of_head(head),)]
        total, direct = (
            score(clean.outputs, batch)
            - score(copies.run(clean, group, lambda part, call, z: torch.zeros_like(z), frozen=frozen), batch)
            for frozen in (False, True)
        )
        edges = [
            Edge(group[0][0], patching.parts.of_head(other), kind)
            for other in patching.parts.heads[2:]
            for kind in ("q", "k", "v")
        ]
        effects = patching.effects(edges)
        torch.testing.assert_close(direct + effects.sum(1), total, rtol=1e-4, atol=1e-4)
        assert not bool(effects[:, [0, 1, 3, 4]].any()), "no queries, so only values carry anything"
        assert bool((effects[:, [2, 5]].abs() > 1e-3).all())


# Refusals -------------------------------------------------------------------------------------------------------------


def test_bad_edges_are_refused():
    model, batch = any_model("gpt2")
    patching = PathPatching(model, batch, logit_over_mean(5))
    first, same, later = (patching.parts.of_head(patching.parts.heads[each]) for each in (0, 1, 5))
    with pytest.raises(UserError, match=r"runs after L1H1, got L0H0; choose"):
        patching.effects([Edge(later, first, "q")])
    with pytest.raises(UserError, match=r"runs after L0H0, got L0H1"):
        patching.effects([Edge(first, same, "q")])
    wrong = Edge(first, later, "q")
    object.__setattr__(wrong, "input", "z")
    with pytest.raises(UserError, match="unknown input 'z'"):
        patching.effects([wrong])
    assert patching.rows(patching.parts.heads[-1]) == []
    with pytest.raises(UserError, match="evaluation mode"):
        PathPatching(model.train(), batch, logit_over_mean(5))


def test_an_attention_with_scores_of_its_own_has_paths_by_values_alone():

    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    torch.manual_seed(0)
    config = transformers.Gemma2Config(**sizes, intermediate_size=24, num_key_value_heads=2, pad_token_id=0)
    model = transformers.Gemma2ForCausalLM(config).eval()
    batch = Batch((torch.randint(3, 40, (2, L)),), tokens=[{}] * 2)
    patching = PathPatching(model, batch, logit_over_mean(5))
    assert {row["input"] for row in patching.rows(patching.parts.heads[0])} == {"v"}
    first, later = map(patching.parts.of_head, (patching.parts.heads[0], patching.parts.heads[-1]))
    with pytest.raises(UserError, match=r"L1H3: expected queries and keys.*input v"):
        patching.effects([Edge(first, later, "k")])
