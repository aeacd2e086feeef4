"""Attentions of users' models: scores that are no product, keys in any axis, sums in place of products."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import jarilab
from jarilab.core.errors import UserError


class Model(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.q, self.k, self.one = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.vector, self.mix = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(2, 2))
        self.qkv, self.attend = nn.Linear(8, 24), attend

    def forward(self, *inputs):
        output, weights = self.attend(self, *inputs)
        self.weights = weights.detach()
        return output

    def heads(self, x):
        return (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))


def keys_as_rows(model, x):
    weights = (model.k(x) @ model.q(x).transpose(1, 2)).softmax(1)
    return x.transpose(1, 2) @ weights, weights.transpose(1, 2)[:, None]


def keys_as_rows_in_einsum(model, x):
    weights = torch.einsum("bkd,bqd->bkq", model.k(x), model.q(x)).softmax(1)
    return torch.einsum("bkq,bkd->bqd", weights, x), weights.mT[:, None]


def slots(model, x):
    weights = (model.k(x) @ model.q(x[:, :3]).mT).softmax(-1) + 1e-8
    weights = weights / weights.sum(-2, keepdim=True)
    return weights.mT @ x, weights.mT[:, None]


def pooled(model, x):
    weights = functional.softmax(model.one(x), dim=1)
    return torch.bmm(weights.transpose(1, 2), x), weights.mT[:, None]


def pooled_in_einsum(model, x):
    weights = torch.softmax(model.one(x).squeeze(-1), -1)
    return torch.einsum("bl,bld->bd", weights, x), weights[:, None, None]


def pooled_by_a_sum(model, x):
    weights = (torch.tanh(model.k(x)) @ model.vector).softmax(dim=1)
    return (x * weights.unsqueeze(-1)).sum(1), weights[:, None, None]


def summed(model, x):
    q, k, v = model.heads(x)
    weights = (q @ k.mT).softmax(-1)
    return (weights[..., None] * v[:, :, None]).sum(dim=-2), weights


def best_keys(model, x):
    q, k, v = model.heads(x)
    scores = q @ k.mT
    best, index = scores.topk(3, -1)
    weights = torch.zeros_like(scores).scatter(-1, index, best.softmax(-1))
    return weights @ v, weights


def mixed_heads(model, x):
    q, k, v = model.heads(x)
    weights = torch.einsum("bhqk,hg->bgqk", (q @ k.mT).softmax(-1), model.mix)
    return weights @ v, weights


def of_a_bag(model, x):
    weights = torch.softmax(model.qkv(x[0])[:, :2].transpose(1, 0), dim=1)
    return weights @ x[0], weights[None, None]


def averaged_over_heads(model, x):
    q, k, _ = model.heads(x)
    weights = (q @ k.mT).softmax(-1).mean(1)
    return weights @ x, weights[:, None]


def in_two_views(model, x):
    q, k, v = (each.flatten(0, 1) for each in model.heads(x))
    scores = torch.bmm(q, k.mT).unflatten(0, (-1, 2)) + 0.0
    weights = scores.flatten(0, 1).softmax(-1)
    return torch.bmm(weights, v), weights.unflatten(0, (-1, 2))


ATTENTIONS = [
    keys_as_rows,
    keys_as_rows_in_einsum,
    slots,
    pooled,
    pooled_in_einsum,
    pooled_by_a_sum,
    summed,
    best_keys,
    mixed_heads,
    of_a_bag,
    averaged_over_heads,
    in_two_views,
]


OF_ONE_TOKEN = [keys_as_rows, pooled, mixed_heads, averaged_over_heads, in_two_views]


@pytest.mark.parametrize(
    ("attend", "length"), [*((attend, 5) for attend in ATTENTIONS), *((attend, 1) for attend in OF_ONE_TOKEN)]
)
@torch.no_grad()
def test_map_is_the_models_own(attend, length):
    model, x = Model(attend).eval(), torch.randn(2, length, 8)
    with jarilab.record(model) as tape:
        model(x)
    (site,) = tape.sites
    torch.testing.assert_close(tape.weights(site), model.weights)
    assert tape.trust(site).holds
    assert not tape.missing
    assert not tape.partial
    assert tape.site(site).relation == "self"


def additive(model, h, source):
    weights = model.one(torch.tanh(h[:, None] + model.k(source))).squeeze(2).softmax(dim=1)
    return torch.bmm(weights.unsqueeze(1), source), weights[:, None, None]


def dot(model, h, source):
    weights = torch.sum(model.q(h)[:, None] * source, dim=2).softmax(1)
    return (weights.unsqueeze(2) * source).sum(1), weights[:, None, None]


@pytest.mark.parametrize("attend", [additive, dot])
@torch.no_grad()
def test_attention_of_a_recurrent_decoder_is_cross(attend):
    model = Model(attend).eval()
    with jarilab.record(model) as tape:
        model(torch.randn(2, 8), torch.randn(2, 5, 8))
    (site,) = tape.sites
    torch.testing.assert_close(tape.weights(site), model.weights)
    assert tape.site(site).kind == "cross"


@torch.no_grad()
def test_heads_that_are_multiplied_one_by_one_are_recorded():
    def attend(model, x):
        q, k, v = model.heads(x)
        weights = (q @ k.mT).softmax(-1)
        return torch.cat([weights[:, head] @ v[:, head] for head in range(2)], -1), weights

    model = Model(attend).eval()
    with jarilab.record(model) as tape:
        model(torch.randn(2, 5, 8))
    (site,) = tape.sites
    torch.testing.assert_close(torch.cat([tape.weights(site, head) for head in range(2)], 1), model.weights)


class Recurrent(nn.Module):
    """Bahdanau's decoder, which begins with the last state of its encoder."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.GRU(8, 8, batch_first=True), nn.GRU(16, 8, batch_first=True)
        self.both, self.one = nn.Linear(16, 8), nn.Linear(8, 1)

    def forward(self, source, target):
        keys, state = self.encoder(source)
        for x in target.split(1, 1):
            query = state.transpose(0, 1).expand_as(keys)
            weights = self.one(torch.tanh(self.both(torch.cat((query, keys), -1)))).mT.softmax(-1)
            output, state = self.decoder(torch.cat((x, weights @ keys), 2), state)
        return output


@torch.no_grad()
def test_recurrent_decoder_attends_to_another_sequence_from_its_first_step():
    model = Recurrent().eval()
    with jarilab.record(model) as tape:
        model(torch.randn(2, 5, 8), torch.randn(2, 3, 8))
    assert {site: len(calls) for site, calls in tape.calls.items()} == {"attention": 3}
    assert tape.site("attention").kind == "cross"


@torch.no_grad()
def test_recurrent_scores_of_a_pooling_are_of_the_same_sequence():
    """As in RETAIN."""

    class Pools(Recurrent):
        def forward(self, x):
            return self.one(self.encoder(x)[0]).mT.softmax(-1) @ x

    model = Pools().eval()
    with jarilab.record(model) as tape:
        model(torch.randn(2, 5, 8))
    assert tape.site("attention").relation == "self"


@torch.no_grad()
def test_second_site_of_a_model_that_attends_itself_has_its_relation():
    def attend(model, x, source):
        x = functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])
        return functional.scaled_dot_product_attention(x, source[:, None], source[:, None]), x

    model = Model(attend).eval()
    with jarilab.record(model) as tape:
        model(torch.randn(2, 4, 8), torch.randn(2, 5, 8))
    assert tape.sites == ["attention", "attention.cross"]


@torch.no_grad()
def test_both_directions_of_one_product_of_scores_are_recorded():
    def attend(model, a, b):
        scores = a @ b.transpose(1, 2)
        to_b, to_a = scores.softmax(2), scores.softmax(1).transpose(1, 2)
        return (to_b @ b, to_a @ a), torch.cat([to_b.flatten(), to_a.flatten()])

    model = Model(attend).eval()
    with jarilab.record(model) as tape:
        model(torch.randn(2, 4, 8), torch.randn(2, 5, 8))
    (site,) = tape.sites
    maps = [tape.weights(site, index) for index in (0, 1)]
    assert [each.shape for each in maps] == [(2, 1, 4, 5), (2, 1, 5, 4)]
    torch.testing.assert_close(torch.cat([each.flatten() for each in maps]), model.weights)


def efficient(model, x):
    q, k, v = model.heads(x)
    return q.softmax(-1) @ (k.softmax(-2).mT @ v), x


def efficient_in_einsum(model, x):
    q, k, v = model.heads(x)
    context = torch.einsum("bhnd,bhne->bhde", k.softmax(-2), v)
    return torch.einsum("bhnd,bhde->bhne", q.softmax(-1), context), x


@pytest.mark.parametrize("attend", [efficient, efficient_in_einsum])
@torch.no_grad()
def test_linear_attention_has_no_map(attend):
    model = Model(attend).eval()
    with (
        pytest.raises(UserError, match="linear attention, which normalizes"),
        jarilab.record(model),
    ):
        model(torch.randn(2, 5, 8))


@torch.no_grad()
def test_random_features_are_no_scores():
    projection = torch.randn(8, 16)

    def performer(model, x):
        q, k = (torch.exp(each(x) @ model.random) for each in (model.q, model.k))
        return (q @ (k.transpose(1, 2) @ x)) / (q @ k.sum(1).unsqueeze(-1)), x

    model = Model(performer).eval()
    model.register_buffer("random", projection)
    with pytest.raises(UserError, match="nothing was recorded"), jarilab.record(model):
        model(torch.randn(2, 5, 8))


@torch.no_grad()
def test_routers_and_mixtures_of_streams_are_no_attention():
    def mixture(model, x):
        streams = torch.einsum("nm,blmd->blnd", model.mix.softmax(-1), torch.stack([x, x], 2))
        gates = model.one(x).repeat(1, 1, 2).flatten(0, 1).softmax(-1)
        x = (gates[..., None] * streams.flatten(0, 1)).view(-1, 2, 8).view(2, 5, 2, 8).sum(2)
        return functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]), x

    model = Model(mixture).eval()
    with jarilab.record(model) as tape:
        model(torch.randn(2, 5, 8))
    assert len(tape.calls["attention"]) == 1
    assert not tape.missing


@torch.no_grad()
def test_a_new_axis_leaves_the_batch():
    def attend(model, x):
        q, k, v = (each[:, :, None] for each in model.heads(x))
        return functional.scaled_dot_product_attention(q, k, v), (q @ k.mT / 2).detach()[:, :, 0]

    model = Model(attend).eval()
    with jarilab.record(model) as tape:
        model(torch.randn(2, 5, 8))
    torch.testing.assert_close(tape.weights("attention"), model.weights.softmax(-1))


@torch.no_grad()
def test_a_convolution_with_computed_kernels_is_no_attention():
    def convolve(model, x):
        kernels = model.qkv(x)[..., :3].reshape(-1, 3, 1).softmax(1)
        windows = functional.unfold(model.k(x).mT.unsqueeze(-1), (3, 1), padding=(1, 0))
        windows = windows.mT.reshape(-1, 8, 3)
        y = (windows @ kernels).view_as(x)[:, None]
        return functional.scaled_dot_product_attention(y, y, y), x

    model = Model(convolve).eval()
    with jarilab.record(model) as tape:
        model(torch.randn(2, 5, 8))
    assert len(tape.calls["attention"]) == 1
