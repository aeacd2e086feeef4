"""Attentions that compute in chunks or blocks of tokens are recorded as maps over all tokens."""

import importlib.util
import logging
import warnings

import pytest
import torch
from torch import nn

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.intervene.interventions import HeadOff, operate
from jarilab.inspect.record.function_mode import AttentionMode

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # warnings of other libraries at import
]
IDS = torch.randint(3, 99, (2, 16), generator=torch.Generator().manual_seed(2))
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 99,
}
SEQ2SEQ = {
    "vocab_size": 99,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


@pytest.fixture(autouse=True)
def quiet():
    """Silence warnings of other libraries about small configurations."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def longformer():
    from transformers import LongformerConfig, LongformerModel

    return LongformerModel(LongformerConfig(**SMALL, attention_window=[4, 4], pad_token_id=0))


def led():
    from transformers import LEDConfig, LEDModel

    return LEDModel(LEDConfig(**SEQ2SEQ, d_model=32, attention_window=4, max_encoder_position_embeddings=64))


def big_bird():
    from transformers import BigBirdConfig, BigBirdModel

    settings = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}
    return BigBirdModel(BigBirdConfig(**SMALL, **settings, max_position_embeddings=128))


def reformer(kind, hashes=1):
    from transformers import ReformerConfig, ReformerModel

    settings = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "attention_head_size": 16,
        "attn_layers": [kind, kind],
        "vocab_size": 99,
        "axial_pos_embds": False,
        "max_position_embeddings": 64,
        "feed_forward_size": 32,
        "lsh_attn_chunk_length": 4,
        "local_attn_chunk_length": 4,
        "num_buckets": 4,
        "num_hashes": hashes,
        "is_decoder": False,
        "hash_seed": 0,
    }
    return ReformerModel(ReformerConfig(**settings))


def nystromformer():
    from transformers import NystromformerConfig, NystromformerModel

    settings = {"segment_means_seq_len": 16, "num_landmarks": 4, "conv_kernel_size": 3}
    return NystromformerModel(NystromformerConfig(**SMALL, **settings))


def long_t5(kind):
    from transformers import LongT5Config, LongT5Model

    settings = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 99}
    return LongT5Model(LongT5Config(**settings, local_radius=3, global_block_size=4, encoder_attention_type=kind))


def prophet_net():
    from transformers import ProphetNetConfig, ProphetNetModel

    settings = dict.fromkeys(("hidden_size", "encoder_ffn_dim", "decoder_ffn_dim"), 32)
    settings |= {f"num_{part}_{count}": 2 for part in ("encoder", "decoder") for count in ("layers", "attention_heads")}
    return ProphetNetModel(ProphetNetConfig(vocab_size=99, **settings))


def built(build, *args):
    torch.manual_seed(0)
    return build(*args).eval()


@torch.no_grad()
def recorded(model, **inputs):
    """The tape, and the model's outputs with its own attentions, which are those of a plain forward."""
    plain = model(**inputs)
    with jarilab.record(model) as tape:
        again = model(**inputs)
    assert torch.equal(plain[0], again[0])
    assert tape.missing == tape.partial == {}
    for site in tape.sites:
        for index in range(len(tape.calls[site])):
            assert tape.trust(site, index).holds, site
    return tape, model(**inputs, output_attentions=True)


def dense(band_BHQN, extra=0):
    """The map `(B, H, L, L)` of a band `(B, H, L, extra + 2w + 1)` whose first columns are of the first tokens."""
    batch, heads, length, columns = band_BHQN.shape
    window = (columns - extra) // 2
    result = torch.zeros(batch, heads, length, length)
    for query in range(length):
        result[:, :, query, :extra] += band_BHQN[:, :, query, :extra]
        for offset in range(-window, window + 1):
            if 0 <= query + offset < length:
                result[:, :, query, query + offset] += band_BHQN[:, :, query, extra + window + offset]
    return result


@pytest.mark.parametrize("padding", [0, 3])
def test_longformer_gives_maps_over_all_tokens(padding):
    mask = torch.ones_like(IDS)
    mask[0, 16 - padding :] = 0
    tape, outputs = recorded(built(longformer), input_ids=IDS, attention_mask=mask)
    assert tape.sites == ["encoder.0", "encoder.1"]
    for site, band in zip(tape.sites, outputs.attentions, strict=True):
        assert (tape.weights(site) - dense(band)).abs().max() < 1e-6
        assert tape.site(site).kind == "encoder"


def test_longformer_gives_the_keys_that_all_attend_to():
    global_mask = torch.zeros_like(IDS)
    global_mask[:, 0] = 1
    tape, outputs = recorded(built(longformer), input_ids=IDS, global_attention_mask=global_mask)
    for layer in range(2):
        assert (tape.weights(f"encoder.{layer}") - dense(outputs.attentions[layer], extra=1)).abs().max() < 1e-6
        # Transformers gives `(B, H, L, G)`.
        of_global = outputs.global_attentions[layer].transpose(2, 3)
        assert (tape.weights(f"encoder.{layer}.attention2") - of_global).abs().max() < 1e-6
    assert tape.row(0).measures()


def test_led_gives_maps_over_all_tokens():
    tape, outputs = recorded(built(led), input_ids=IDS, decoder_input_ids=IDS[:, :6])
    for layer, band in enumerate(outputs.encoder_attentions):
        assert (tape.weights(f"encoder.{layer}") - dense(band)).abs().max() < 1e-6
    assert (tape.weights("decoder.0.cross") - outputs.cross_attentions[0]).abs().max() < 1e-6


@pytest.mark.parametrize("padding", [0, 5])
def test_big_bird_gives_one_map_of_its_blocks(padding):
    ids = torch.randint(3, 99, (2, 64), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, 64 - padding :] = 0
    tape, outputs = recorded(built(big_bird), input_ids=ids, attention_mask=mask)
    for site, expected in zip(tape.sites, outputs.attentions, strict=True):
        weights = tape.weights(site)
        # Random blocks may repeat others: transformers then writes one weight over the other.
        # Rows of padding are set to 0.
        rows_BQ = mask.bool()
        differs = ((weights - expected).abs() > 1e-6) & rows_BQ[:, None, :, None]
        assert not bool((differs & (weights < expected)).any())
        assert (weights.sum(-1) - 1).abs().transpose(1, 2)[rows_BQ].max() < 1e-5
        assert float(differs.float().mean()) < 0.1


@pytest.mark.parametrize(("kind", "hashes"), [("local", 1), ("lsh", 1), ("lsh", 2)])
def test_reformer_gives_maps_over_all_tokens(kind, hashes):
    tape, _ = recorded(built(reformer, kind, hashes), input_ids=IDS)
    for site in tape.sites:
        weights = tape.weights(site)
        assert weights.shape == (2, 2, 16, 16)
        assert (weights.sum(-1) - 1).abs().max() < 1e-5


def test_reformer_local_weights_are_the_models():
    tape, outputs = recorded(built(reformer, "local"), input_ids=IDS)
    for site, chunks in zip(tape.sites, outputs.attentions, strict=True):
        expected = torch.zeros(2, 2, 16, 16)
        for chunk in range(4):
            rows = slice(4 * chunk, 4 * chunk + 4)
            before = 4 * ((chunk - 1) % 4)
            expected[:, :, rows, before : before + 4] = chunks[:, :, chunk, :, :4]
            expected[:, :, rows, rows] = chunks[:, :, chunk, :, 4:]
        assert (tape.weights(site) - expected).abs().max() < 1e-6


def test_nystromformer_gives_the_product_of_its_three_kernels():
    tape, outputs = recorded(built(nystromformer), input_ids=IDS)
    for site, to_landmarks in zip(tape.sites, outputs.attentions, strict=True):
        weights = tape.weights(site)
        assert weights.shape == (2, 4, 16, 16)
        # Rows of the last kernel, of landmarks over tokens, add up to 1.
        assert (weights.sum(-1) - to_landmarks.sum(-1)).abs().max() < 1e-5
        assert torch.linalg.matrix_rank(weights[0, 0].double(), tol=1e-5) <= 4


@pytest.mark.parametrize("kind", ["local", "transient-global"])
def test_long_t5_gives_rows_that_add_up_to_one(kind):
    tape, _ = recorded(built(long_t5, kind), input_ids=IDS, decoder_input_ids=IDS[:, :6])
    assert tape.sites[:2] == ["encoder.0", "encoder.1"]
    if kind == "local":
        distance = (torch.arange(16)[:, None] - torch.arange(16)).abs()
        weights = tape.weights("encoder.1")
        assert (weights.sum(-1) - 1).abs().max() < 1e-5
        assert not bool(weights[..., distance > 3].any())


def test_prophet_net_gives_the_maps_of_both_streams():
    tape, outputs = recorded(built(prophet_net), input_ids=IDS, decoder_input_ids=IDS[:, :6])
    for layer in range(2):
        main, streams = (tape.weights(f"decoder.{layer}.self{part}") for part in ("", ".attention2"))
        assert (main - outputs.decoder_attentions[layer]).abs().max() < 1e-6
        expected = outputs.decoder_ngram_attentions[layer]  # (B, N, H, T, 2T): keys of the main stream and its own
        assert streams.shape == (2, 2, 12, 18)
        for stream in range(2):
            rows = slice(6 * stream, 6 * stream + 6)
            keys = torch.cat((torch.arange(6), torch.arange(6) + 6 * (stream + 1)))
            assert (streams[:, :, rows][..., keys] - expected[:, stream]).abs().max() < 1e-6


def test_edits_of_chunks_are_recorded_and_change_the_output():
    model = built(longformer)
    with torch.no_grad():
        before = model(IDS)[0]
        with operate(model, [HeadOff("encoder.0", 1)]), jarilab.record(model) as tape:
            after = model(IDS)[0]
    assert not torch.equal(before, after)
    assert not bool(tape.weights("encoder.0")[:, 1].any())
    assert float(tape.weights("encoder.0")[:, 0].sum()) > 0
    assert tape.trust("encoder.0").holds


class Blocks(nn.Module):
    """Attention whose queries read the blocks of keys before and at their own, gated before the projection."""

    def __init__(self, gate):
        super().__init__()
        self.project, self.out, self.gate = nn.Linear(8, 24), nn.Linear(8, 8), gate

    def forward(self, x):
        q, k, v = self.project(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        outputs = []
        for start in (0, 4):
            weights = (q[:, :, start : start + 4] @ k[:, :, : start + 4].mT).softmax(-1)
            outputs.append(weights @ v[:, :, : start + 4])
            self.weights = weights
        output = torch.cat(outputs, 2).transpose(1, 2).flatten(2)
        if self.gate:
            output = output * x.sigmoid()
        return self.out(output)


@pytest.mark.parametrize("gate", [False, True])
def test_blocks_of_queries_are_one_map(gate):
    torch.manual_seed(0)
    model, x = Blocks(gate), torch.randn(3, 8, 8)
    with jarilab.record(model) as tape:
        model(x)
    (site,) = tape.sites
    q, k, v = model.project(x).view(3, 8, 3, 2, 4).permute(2, 0, 3, 1, 4)
    allowed = torch.arange(8)[:, None] // 4 >= torch.arange(8) // 4
    expected = (q @ k.mT).masked_fill(~allowed, float("-inf")).softmax(-1)
    assert (tape.weights(site) - expected).abs().max() < 1e-6
    assert tape.trust(site).holds
    assert (tape.recorded(site).output - expected @ v).abs().max() < 1e-6


def head_by_head(q, k, v):
    """Two of all heads of the batch at a time, as diffusers' sliced attention."""
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    output = torch.zeros_like(q)
    for start in range(0, len(q), 2):
        part = slice(start, start + 2)
        output[part] = torch.bmm(torch.bmm(q[part], k[part].mT).softmax(-1), v[part])
    return output.unflatten(0, (-1, 2))


def online_softmax(q, k, v):
    """As FlashAttention, with the sums of the keys before."""
    output, total, largest = 0.0, 0.0, torch.full((*q.shape[:3], 1), -torch.inf)
    for start in (0, 4):
        scores = q @ k[:, :, start : start + 4].mT
        new = torch.maximum(largest, scores.amax(-1, True))
        weights, rescaled = (scores - new).exp(), (largest - new).exp()
        total = total * rescaled + weights.sum(-1, True)
        output, largest = output * rescaled + weights @ v[:, :, start : start + 4], new
    return output / total


@pytest.mark.parametrize("attend", [head_by_head, online_softmax])
@torch.no_grad()
def test_parts_of_a_whole_attention_are_one_map(attend):
    class Parts(Blocks):
        def forward(self, x):
            output = attend(*self.project(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4))
            return self.out(output.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model, x = Parts(gate=False).eval(), torch.randn(2, 8, 8)
    with jarilab.record(model) as tape:
        model(x)
    (site,) = tape.sites
    q, k, _ = model.project(x).view(2, 8, 3, 2, 4).permute(2, 0, 3, 1, 4)
    assert (tape.weights(site) - (q @ k.mT).softmax(-1)).abs().max() < 1e-6
    assert tape.trust(site).holds
    assert (tape.partial, tape.site(site).note) == ({}, "")


def test_an_attention_without_a_projection_after_it_is_recorded():
    torch.manual_seed(0)
    model = Blocks(gate=False)
    model.out, x = nn.Identity(), torch.randn(3, 8, 8)
    model.eval()
    with torch.no_grad(), jarilab.record(model) as tape:
        plain = model(x)
    (site,) = tape.sites
    assert tape.weights(site).shape == (3, 2, 8, 8)
    with torch.no_grad(), operate(model, [HeadOff(site, 1)]):
        edited = model(x)
    assert not bool(edited[..., 4:].any())
    assert (edited - plain)[..., :4].abs().max() < 1e-6


def test_parts_that_cannot_be_joined_are_said_to_be_partial():
    def share_features(module, args, output):
        # Both heads read the same features of the projection, in another order.
        return output.unflatten(2, (3, 8))[..., [0, 1, 2, 3, 2, 3, 0, 1]].flatten(2)

    torch.manual_seed(0)
    model, x = Blocks(gate=False).eval(), torch.randn(3, 8, 8)
    model.project.register_forward_hook(share_features)
    with torch.no_grad(), pytest.warns(UserWarning, match="partial"), jarilab.record(model) as tape:
        model(x)
    (site,) = tape.sites
    assert "2 products over parts of the tokens" in tape.partial[site]
    assert [tape.weights(site, index).shape for index in range(2)] == [(3, 2, 4, 4), (3, 2, 4, 8)]
    with torch.no_grad(), pytest.raises(UserError, match="cannot be edited"), operate(model, [HeadOff(site, 1)]):
        model(x)


def test_weights_before_dropout_are_recorded():
    torch.manual_seed(0)
    model = built(longformer)
    model.train()
    with torch.no_grad(), jarilab.record(model) as tape:
        model(IDS)
    weights = tape.weights("encoder.0")
    assert (weights.sum(-1) - 1).abs().max() < 1e-5
    assert tape.trust("encoder.0").dropout == pytest.approx(0.1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_maps_of_chunks_in_other_precisions(dtype):
    model = built(longformer).to(dtype)
    with torch.no_grad(), jarilab.record(model) as tape:
        model(IDS)
    assert tape.trust("encoder.0").holds
    assert tape.weights("encoder.0").shape == (2, 4, 16, 16)


def test_chunks_of_a_forward_with_gradients_are_recorded():
    model = built(longformer)
    with jarilab.record(model) as tape:
        model(IDS)[0].sum().backward()
    assert not tape.weights("encoder.0").requires_grad
    assert model.encoder.layer[0].attention.self.value.weight.grad.abs().max() > 0


def test_ordinary_heads_are_not_joined(monkeypatch):
    """Attentions whose product has all queries and keys are reported at once."""
    from transformers import GPT2Config, GPT2Model

    monkeypatch.setattr(AttentionMode, "_defer", None)
    settings = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "attn_implementation": "eager"}
    model = built(lambda: GPT2Model(GPT2Config(**settings)))
    with torch.no_grad(), jarilab.record(model) as tape:
        cached = model(IDS, use_cache=True)
        model(IDS[:, :1], past_key_values=cached.past_key_values)
    assert [each.output.shape[2] for each in tape.calls["decoder.0.self"]] == [16, 1]


def test_a_map_over_all_tokens_is_computed_when_it_is_read():
    model = built(longformer)
    with torch.no_grad(), jarilab.record(model) as tape:
        model(IDS)
    call = tape.recorded("encoder.0").source
    assert "value" not in vars(call.explicit_weights)
    weights = tape.weights("encoder.0")
    assert vars(call.explicit_weights)["value"].data_ptr() == weights.data_ptr()


def test_a_deferred_map_refuses_weights_that_have_changed():
    model, x = Blocks(gate=False), torch.randn(3, 8, 8)
    with torch.no_grad(), jarilab.record(model) as tape:
        model(x)
    model.weights.zero_()
    with pytest.raises(UserError, match="has written over weights"):
        tape.trust(tape.sites[0])
