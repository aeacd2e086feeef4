"""Batch, heads, sequences and completeness of recorded calls, from the tensors that a model computes with."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.intervene.interventions import HeadOff, Link, operate
from jarilab.inspect.record.capture import Tape

HEADS, WIDTH = 3, 4


class Projected(nn.Module):
    """Projects its input to queries, keys and values `(B, L, E)`, and calls `attend`."""

    def __init__(self, attend):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(12, HEADS * WIDTH) for _ in range(3))
        self.attend = attend

    def forward(self, x_BLD, source_BLD=None):
        source_BLD = x_BLD if source_BLD is None else source_BLD
        return self.attend(self.q(x_BLD), self.k(source_BLD), self.v(source_BLD))


def tape_of(model, *inputs, quiet=True):
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore" if quiet else "error")
        with jarilab.record(model.eval()) as tape:
            model(*inputs)
    return tape


def recorded_weights(attend, batch=2, length=5):
    model = Projected(attend)
    tape = tape_of(model, torch.randn(batch, length, 12), quiet=False)
    return tape.weights(tape.sites[0])


def split(x_BLE):
    return x_BLE.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)


def softmax_of(q, k):
    return (q @ k.transpose(-1, -2) / WIDTH**0.5).softmax(-1)


# Batch and heads ----------------------------------------------------------------------------------------------------


def batch_first(q, k, v):
    weights = softmax_of(*(each.reshape(-1, *each.shape[2:]) for each in (split(q), split(k))))
    return weights, weights @ split(v).reshape(-1, *v.shape[1:2], WIDTH)


def head_first(q, k, v):
    q, k, v = (torch.cat(each.chunk(HEADS, -1), 0) for each in (q, k, v))
    weights = softmax_of(q, k)
    return weights.unflatten(0, (HEADS, -1)).transpose(0, 1), weights @ v


def head_slices(q, k, v):
    q, k, v = (torch.cat([x[..., start : start + WIDTH] for start in (0, 4, 8)], 0) for x in (q, k, v))
    weights = softmax_of(q, k)
    return weights.unflatten(0, (HEADS, -1)).transpose(0, 1), weights @ v


def length_first(q, k, v):
    """As fairseq folds batch and heads."""
    q, k, v = (x.transpose(0, 1).contiguous() for x in (q, k, v))
    q, k, v = (x.view(len(x), x.shape[1] * HEADS, WIDTH).transpose(0, 1) for x in (q, k, v))
    weights = torch.bmm(q, k.transpose(1, 2)).div(WIDTH**0.5).softmax(-1)
    return weights, torch.bmm(weights, v)


def blocks_before_heads(q, k, v):
    """Five axes: batch, heads and blocks of queries."""
    q, k, v = (split(x).unflatten(2, (2, -1)) for x in (q, k, v))
    weights = softmax_of(q, k)
    return weights.transpose(1, 2).flatten(0, 1), weights @ v


@pytest.mark.parametrize("attend", [batch_first, head_first, head_slices, length_first, blocks_before_heads])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_batch_and_heads_that_share_an_axis_are_told_apart(attend, batch):
    weights = []

    def keep(q, k, v):
        used, output = attend(q, k, v)
        weights.append(used)
        return output

    recorded = recorded_weights(keep, batch=batch, length=6)
    expected = weights[0]
    if expected.ndim == 3:
        expected = expected.unflatten(0, (batch, HEADS))
    assert recorded.shape == expected.shape
    assert torch.allclose(recorded, expected, atol=1e-6)


def test_fused_attention_of_one_head_without_a_batch_is_recorded():
    def attend(q, k, v):
        return functional.scaled_dot_product_attention(q[0], k[0], v[0])

    assert recorded_weights(attend).shape == (1, 1, 5, 5)


@pytest.mark.parametrize("broadcast", ["queries", "keys"])
def test_queries_or_keys_of_all_inputs_are_broadcast(broadcast):
    shared = torch.randn(1, HEADS, 4, WIDTH)

    def attend(q, k, v):
        q, k, v = split(q), split(k), split(v)
        if broadcast == "queries":
            return functional.scaled_dot_product_attention(shared, k, v)
        return functional.scaled_dot_product_attention(q, shared[0], shared[0])

    tape = tape_of(Projected(attend), torch.randn(2, 5, 12), quiet=False)
    (site,) = tape.sites
    assert tape.weights(site).shape[:2] == (2, HEADS)
    assert tape.trust(site).holds


def test_heads_of_an_unclear_axis_are_refused():
    """Blocks of tokens are merged with the batch, so that the axis may have heads or blocks."""

    def attend(q, k, v):
        q, k, v = (x.reshape(x.shape[0] * 2, -1, x.shape[-1]) for x in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v)

    tape = tape_of(Projected(attend), torch.randn(2, 6, 12))
    (name,) = tape.sites
    assert tape.site(name).folded == 4
    assert tape.weights(name).shape == (1, 4, 3, 3)
    with pytest.raises(UserError, match="batch and heads in one axis of 4"):
        tape.measures()


def test_edit_of_a_folded_axis_changes_the_head_of_every_input():
    model, x = Projected(lambda q, k, v: head_first(q, k, v)[1]).eval(), torch.randn(2, 5, 12)
    name = tape_of(model, x).sites[0]
    plain = model(x).unflatten(0, (HEADS, 2))
    with torch.no_grad(), operate(model, [HeadOff(name, 1)]):
        edited = model(x).unflatten(0, (HEADS, 2))
    assert not edited[1].any()
    assert torch.equal(edited[[0, 2]], plain[[0, 2]])


# Self or cross ------------------------------------------------------------------------------------------------------


class Latents(nn.Module):
    """Learned queries that attend to an input, and then to each other."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 4, 12))
        self.layers = nn.ModuleList([nn.MultiheadAttention(12, HEADS, batch_first=True) for _ in range(2)])

    def forward(self, x_BLD):
        latents = self.latents.expand(len(x_BLD), -1, -1)
        latents = latents + self.layers[0](latents, torch.cat([x_BLD, latents], 1), torch.cat([x_BLD, latents], 1))[0]
        return self.layers[1](latents, latents, latents)[0]


def test_learned_queries_are_another_sequence():
    tape = tape_of(Latents(), torch.randn(2, 6, 12))
    first, second = (tape.site(name) for name in tape.sites)
    assert (first.relation, first.kind, first.note) == ("cross", "cross", "learned queries")
    assert (second.relation, second.queries, second.note) == ("self", "target", "learned queries")
    assert (second.path, second.short) == ("layers.1", "L1")


def test_a_class_token_before_its_keys_has_the_first_position():
    """As in CrossViT, whose class token attends to itself and to the patches of another size."""

    class ClassAttention(Projected):
        def forward(self, token, patches):
            keys = torch.cat((token, patches), 1)
            return self.attend(self.q(token), self.k(keys), self.v(keys))

    model = ClassAttention(lambda q, k, v: functional.scaled_dot_product_attention(split(q), split(k), split(v)))
    tape = tape_of(model, torch.randn(1, 1, 12), torch.randn(1, 9, 12))
    (site,) = tape.sites
    assert tape.site(site).kind == "encoder"
    assert tape.recorded(site).call.geometry.q_pos.order.tolist() == [0]


def test_keys_that_are_appended_leave_the_positions_of_queries():
    class Appends(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.MultiheadAttention(12, HEADS, batch_first=True, add_bias_kv=True)

        def forward(self, x_BLD):
            later = torch.ones(5, 5, dtype=torch.bool).triu(1)
            return self.layer(x_BLD, x_BLD, x_BLD, attn_mask=later, need_weights=False)[0]

    model, x_BLD = Appends().eval(), torch.randn(2, 5, 12)
    tape = tape_of(model, x_BLD)
    (site,) = tape.sites
    assert tape.site(site).kind == "decoder"
    with torch.no_grad(), operate(model, [Link(site, 0, query=1, key=0, how="erase")]):
        edited = model(x_BLD)
    changed = (edited - model(x_BLD)).abs().amax((0, 2)) > 0
    assert changed.tolist() == [False, True, False, False, False]


def test_class_token_has_no_known_position_and_no_measure_of_one():
    class ClassAttention(Projected):
        def forward(self, x_BLD):
            return self.attend(self.q(x_BLD[:, :1]), self.k(x_BLD), self.v(x_BLD))

    model = ClassAttention(lambda q, k, v: functional.scaled_dot_product_attention(split(q), split(k), split(v)))
    tape = tape_of(model, torch.randn(1, 5, 12))
    (name,) = tape.sites
    site = tape.site(name)
    assert (site.relation, site.placed, site.causal) == ("self", False, None)
    measures = tape.measures()[name]
    assert measures["distance"].value.isnan().all()
    assert measures["self"].value.isnan().all()
    assert measures["entropy"].value.isfinite().all()


def test_unknown_keys_are_of_unknown_relation():
    outside = torch.randn(1, 5, 12)

    class FromOutside(Projected):
        def forward(self, x_BLD):
            return self.attend(self.q(x_BLD), self.k(outside), self.v(outside))

    model = FromOutside(lambda q, k, v: functional.scaled_dot_product_attention(split(q), split(k), split(v)))
    tape = tape_of(model, torch.randn(1, 5, 12))
    assert tape.site(tape.sites[0]).kind == "unknown"


@pytest.mark.parametrize("padding", [[False] * 5, [True] * 5], ids=["nothing", "a whole input"])
def test_mask_that_hides_only_padding_is_not_causal(padding):
    def attend(q, k, v):
        mask = torch.tensor([[True] * 5, [not each for each in padding]])[:, None, None]
        return functional.scaled_dot_product_attention(split(q), split(k), split(v), mask)

    tape = tape_of(Projected(attend), torch.randn(2, 5, 12))
    assert tape.site(tape.sites[0]).causal is False


STACKS = {"encoder.0": "encoder", "decoder.0.self": "decoder", "decoder.0.cross": "cross"}


def stacks():
    return nn.Transformer(12, 2, 1, 1, 12, batch_first=True)


def kinds(tape):
    return {site: tape.site(site).kind for site in tape.sites}


def test_decoder_that_reads_the_tokens_of_its_encoder_attends_to_another_sequence():
    """As BART, called with input_ids alone."""

    class Copies(nn.Module):
        def __init__(self):
            super().__init__()
            self.stacks = stacks()

        def forward(self, x_BLD):
            mask = nn.Transformer.generate_square_subsequent_mask(5)
            return self.stacks(x_BLD, x_BLD, tgt_mask=mask)

    assert kinds(tape_of(Copies(), torch.randn(1, 5, 12))) == STACKS


def test_inputs_that_are_computed_inside_the_block_are_two_sequences():
    model, source, target = stacks().eval(), torch.randn(1, 5, 12), torch.randn(1, 3, 12)
    with torch.no_grad(), jarilab.record(model) as tape:
        model(source / 2, target / 2)
    assert kinds(tape) == STACKS


def test_tape_that_is_read_in_a_hook_records_nothing():
    model = stacks().eval()
    with torch.no_grad(), jarilab.record(model) as tape:
        hook = model.encoder.layers[0].register_forward_hook(lambda *_: tape.trust("encoder.0") and None)
        model(torch.randn(1, 5, 12), torch.randn(1, 3, 12))
    hook.remove()
    assert {site: len(calls) for site, calls in tape.calls.items()} == dict.fromkeys(STACKS, 1)


def test_attention_over_channels_is_noted():
    def attend(q, k, v):
        q, k, v = (split(x).transpose(-1, -2) for x in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v)

    tape = tape_of(Projected(attend), torch.randn(1, 5, 12))
    site = tape.site(tape.sites[0])
    assert (site.note, site.placed) == ("attends over channels", False)


# Weights that are no softmax ----------------------------------------------------------------------------------------


def sigmoid(q, k):
    return (q @ k.mT).sigmoid()


def normalized_exponential(q, k):
    scores = (q @ k.mT).exp()
    return scores / scores.sum(-1, keepdim=True)


def with_sink(q, k):
    scores = q @ k.mT
    sink = scores.new_zeros(*scores.shape[:-1], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]


def exponential_of_log(q, k):
    return (q @ k.mT).log_softmax(-1).exp()


def clipped(q, k):
    return (q @ k.mT).clip(min=0)


def gumbel(q, k):
    return functional.gumbel_softmax(q @ k.mT, dim=-1)


WEIGHTS = [sigmoid, normalized_exponential, with_sink, exponential_of_log, clipped, gumbel]


@pytest.mark.parametrize("weigh", WEIGHTS)
def test_weights_that_are_no_plain_softmax_are_recorded(weigh):
    used = []

    def attend(q, k, v):
        used.append(weigh(split(q), split(k)))
        return used[0] @ split(v)

    model = Projected(attend)
    tape = tape_of(model, torch.randn(2, 5, 12), quiet=False)
    (name,) = tape.sites
    assert torch.allclose(tape.weights(name), used[0], atol=1e-6)
    assert tape.trust(name).holds
    assert not tape.verified(name)
    assert tape.row(1).measures()[name]["entropy"].value.isfinite().all()


def test_weights_before_a_dropout_in_place_are_recorded():
    used = []

    def attend(q, k, v):
        weights = softmax_of(split(q), split(k))
        used.append(weights.clone())
        return functional.dropout(weights, 0.5, training=True, inplace=True) @ split(v)

    tape = tape_of(Projected(attend), torch.randn(2, 5, 12), quiet=False)
    assert torch.allclose(tape.weights(tape.sites[0]), used[0], atol=1e-6)


def test_heads_that_share_keys_in_an_einsum_are_heads():
    used = []

    def attend(q, k, v):
        k, v = k[..., :WIDTH], v[..., :WIDTH]
        used.append(torch.einsum("bhid,bjd->bhij", split(q), k).softmax(-1))
        return torch.einsum("bhij,bjd->bhid", used[0], v)

    tape = tape_of(Projected(attend), torch.randn(2, 5, 12), quiet=False)
    (site,) = tape.sites
    assert torch.allclose(tape.weights(site), used[0], atol=1e-6)
    assert tape.trust(site).holds
    assert tape.site(site).note == ""


# Completeness -------------------------------------------------------------------------------------------------------


def summed_by_hand(q, k, v):
    weights = softmax_of(split(q), split(k))
    return (weights.unsqueeze(-1) * split(v).unsqueeze(2)).cumsum(-2)[..., -1, :]


def test_one_recorded_call_does_not_hide_another_that_is_missing():
    def attend(q, k, v):
        return summed_by_hand(q, k, v) + functional.scaled_dot_product_attention(split(q), split(k), split(v))

    model, x = Projected(attend).eval(), torch.randn(1, 5, 12)
    with pytest.warns(UserWarning, match=r"some maps of these sites .*attention: its weights are not"):
        tape = tape_of_warning(model, x)
    assert list(tape.partial) == tape.sites
    assert not tape.missing


def tape_of_warning(model, x) -> Tape:
    with torch.no_grad(), jarilab.record(model) as tape:
        model(x)
    return tape


def test_nothing_recorded_names_what_looked_like_attention():
    with pytest.raises(UserError, match=r"nothing was recorded.*the model: its weights are not multiplied"):
        tape_of(Projected(summed_by_hand), torch.randn(1, 5, 12))


def test_layers_without_attention_are_listed():
    class Mixes(nn.Module):
        def __init__(self):
            super().__init__()
            attention = Projected(lambda q, k, v: functional.scaled_dot_product_attention(split(q), split(k), split(v)))
            self.layers = nn.ModuleList([nn.Linear(12, 12), attention, nn.Linear(12, 12)])

        def forward(self, x_BLD):
            x_BLD = self.layers[1](self.layers[0](x_BLD)).transpose(1, 2).flatten(2)
            return self.layers[2](x_BLD)

    assert tape_of(Mixes(), torch.randn(1, 5, 12)).not_attending == ["layers.0", "layers.2"]


def test_compiled_layer_is_recorded(unchecked):
    """Hooks make the compiler call the functions of the layer one by one."""
    model = Latents().eval()
    model.layers[1] = torch.compile(model.layers[1], backend="eager")
    tape = tape_of(model, torch.randn(2, 6, 12))
    assert len(tape.sites) == 2
