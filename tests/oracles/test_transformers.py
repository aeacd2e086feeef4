"""Agreement with the implementations of the transformers library."""

import pytest
import torch

from jarilab.attention.module import Attention
from jarilab.encodings import compose
from jarilab.encodings.bias.distance_functions import alibi_slopes
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

pytest.importorskip("transformers")

from transformers import BloomConfig, CodeGenConfig, GPTJConfig, GPTNeoXConfig, LlamaConfig, T5Config
from transformers.models.bloom import modeling_bloom
from transformers.models.codegen import modeling_codegen
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.t5 import modeling_t5

WIDTH, HEADS, LENGTH = 64, 4, 9
START = 200

# Theirs turns the position into an angle in float32, which costs 200 * 2^-24 radians; ours does it in float64.
CLOSE = {"rtol": 0, "atol": 1e-4}


def attention_like(theirs, encoding):
    """Our attention with the weights of one of theirs, which has no biases."""
    ours = Attention(WIDTH, HEADS, encoding=encoding, causal=True)
    with torch.no_grad():
        for own, name in ((ours.query, "q"), (ours.key, "k"), (ours.value, "v")):
            own.weight.copy_(getattr(theirs, f"{name}_proj").weight)
            own.bias.zero_()
        ours.out.weight.copy_((theirs.o_proj if hasattr(theirs, "o_proj") else theirs.out_proj).weight)
        ours.out.bias.zero_()
    return ours


def causal_bias():
    return torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_llama_attention_has_half_pairing(base):
    config = LlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        rope_parameters={"rope_type": "default", "rope_theta": base},
        attn_implementation="eager",
    )
    theirs = modeling_llama.LlamaAttention(config, layer_idx=0)
    x_BLD, index = torch.randn(2, LENGTH, WIDTH), torch.arange(START, START + LENGTH)
    turn = modeling_llama.LlamaRotaryEmbedding(config)(x_BLD, index[None])
    wanted, _ = theirs(x_BLD, position_embeddings=turn, attention_mask=causal_bias())

    def ours(pairing):
        attention = attention_like(theirs, f"rotary:base={base},pairing={pairing}")
        return attention(x_BLD, positions=Positions.sequence(LENGTH, START), mask=Mask(causal=True))

    torch.testing.assert_close(ours("half"), wanted, **CLOSE)
    assert not torch.allclose(ours("interleaved"), wanted, **CLOSE)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_gpt_neox_rotates_a_fraction_in_half_pairing(fraction):
    config = GPTNeoXConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": fraction},
    )
    q_BHLE, k_BHLE = torch.randn(2, 2, HEADS, LENGTH, WIDTH // HEADS)
    index = torch.arange(START, START + LENGTH)
    cosine, sine = modeling_gpt_neox.GPTNeoXRotaryEmbedding(config)(q_BHLE, index[None])
    wanted = modeling_gpt_neox.apply_rotary_pos_emb(q_BHLE, k_BHLE, cosine, sine)

    ours = compose.build(f"rotary:fraction={fraction}", Attention(WIDTH, HEADS).site)
    rotation = ours.rotation(Positions.sequence(LENGTH, START))
    torch.testing.assert_close((ours.rotate(q_BHLE, rotation), ours.rotate(k_BHLE, rotation)), wanted, **CLOSE)


@pytest.mark.parametrize("rotated", [8, 16])
def test_gptj_attention_has_interleaved_pairing(rotated):
    config = GPTJConfig(n_embd=WIDTH, n_head=HEADS, rotary_dim=rotated, n_positions=START + LENGTH, attn_pdrop=0.0)
    theirs = modeling_gptj.GPTJAttention(config, layer_idx=0).eval()
    x_BLD, index = torch.randn(2, LENGTH, WIDTH), torch.arange(START, START + LENGTH)
    wanted = theirs(x_BLD, attention_mask=causal_bias(), position_ids=index.expand(2, -1))[0]

    ours = attention_like(theirs, f"rotary:pairing=interleaved,fraction={rotated / (WIDTH // HEADS)}")
    got = ours(x_BLD, positions=Positions.sequence(LENGTH, START), mask=Mask(causal=True))
    torch.testing.assert_close(got, wanted, **CLOSE)


def test_codegen_has_interleaved_pairing():
    d_head = CodeGenConfig(n_embd=WIDTH, n_head=HEADS).n_embd // HEADS
    x_BHLE = torch.randn(2, HEADS, LENGTH, d_head)
    waves = modeling_codegen.create_sinusoidal_positions(START + LENGTH, d_head)[START:]
    sine, cosine = waves.chunk(2, -1)
    wanted = modeling_codegen.apply_rotary_pos_emb(x_BHLE.transpose(1, 2), sine[None], cosine[None]).transpose(1, 2)

    ours = compose.build("rotary:pairing=interleaved", Attention(WIDTH, HEADS).site)
    torch.testing.assert_close(ours.rotate(x_BHLE, ours.rotation(Positions.sequence(LENGTH, START))), wanted, **CLOSE)


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "back only"])
@pytest.mark.parametrize(
    ("buckets", "farthest"), [(32, 128), (32, 256), (16, 64), (8, 20), (4, 5), (64, 128), (128, 4096), (10, 33)]
)
def test_t5_buckets(buckets, farthest, causal):
    ours = compose.build(f"t5:buckets={buckets},distance={farthest}", Attention(WIDTH, HEADS, causal=causal).site)
    ahead_1L = torch.arange(-2 * farthest, 2 * farthest + 1)[None]
    wanted = modeling_t5.T5Attention._relative_position_bucket(ahead_1L, not causal, buckets, farthest)
    assert torch.equal(ours.bucket(ahead_1L), wanted)


@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
def test_t5_bias_from_the_same_table(causal):
    config = T5Config(d_model=WIDTH, num_heads=HEADS, d_kv=16, is_decoder=causal)
    theirs = modeling_t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = compose.build("t5", Attention(WIDTH, HEADS, causal=causal).site)
    with torch.no_grad():
        ours.table.copy_(torch.randn(32, HEADS))
        theirs.relative_attention_bias.weight.copy_(ours.table)
    far = Positions.sequence(150, START)
    torch.testing.assert_close(ours.bias(far, far), theirs.compute_bias(150, 150)[0])


@pytest.mark.parametrize("heads", [6, 8, 12, 40])
def test_bloom_alibi(heads):
    """Bloom writes slope * key index, which differs from -slope * (i - j) by a constant in each row."""
    padding = torch.ones(1, LENGTH, dtype=torch.long)
    their_H1K = modeling_bloom.build_alibi_tensor(padding, BloomConfig(n_head=heads).n_head, torch.float32)
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), modeling_bloom._get_alibi_slopes(heads, "cpu"))

    far = Positions.sequence(LENGTH, START)
    our_HQK = compose.build("alibi", Attention(2 * heads, heads, causal=True).site).bias(far, far)
    difference_HQK = (our_HQK - their_H1K).tril()
    torch.testing.assert_close(difference_HQK, difference_HQK[..., :1].expand_as(difference_HQK).tril())
    torch.testing.assert_close(our_HQK.diagonal(dim1=-2, dim2=-1), torch.zeros(heads, LENGTH))
