"""Empty models of jarilab and transformers, with views on the weights that a circuit sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import jarilab
from jarilab.models.layers import DecoderLayer, EncoderLayer
from jarilab.nn.norms import EPSILON
from jarilab.nn.sublayers import FeedForward, TokenEmbedding

from .stream import RATIO


@dataclass(frozen=True)
class Size:
    """D, H heads of width E, keys and values in groups, F hidden units, V tokens, L positions, layers."""

    d_model: int
    n_heads: int
    d_head: int
    n_kv_heads: int
    d_ff: int
    vocabulary: int
    length: int
    layers: int

    @property
    def rotary_base(self) -> float:
        return RATIO ** (-self.d_head / 2)


@dataclass(frozen=True)
class AttentionWeights:
    """Views `(D, H * E)` of W_Q, W_K and W_V, and `(H * E, D)` of W_O. prefix: of its heads' names in a study."""

    prefix: str
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


@dataclass(frozen=True)
class MlpWeights:
    """Views `(D, F)` and `(F, D)`. gate: None without one."""

    up: Tensor
    down: Tensor
    gate: Tensor | None = None


@dataclass(frozen=True)
class Weights:
    """Views on all weights of a model: embeddings `(V, D)` and `(L, D)`, sites in order, and read-out `(D, V)`."""

    tokens: list[Tensor]
    positions: list[Tensor]
    read_out: Tensor
    attention: list[AttentionWeights] = field(default_factory=list)
    mlps: list[MlpWeights] = field(default_factory=list)


@dataclass(frozen=True)
class Host:
    """A kind of model. make: builds one of a size. rotary: whether positions are rotations. sources: sequences."""

    make: Callable[[Size], tuple[nn.Module, Weights]]
    rotary: bool = False
    causal: bool = True
    sources: int = 1
    keywords: bool = False


# jarilab --------------------------------------------------------------------------------------------------------------


def _options(size: Size) -> dict[str, Any]:
    return {
        "d_model": size.d_model,
        "n_heads": size.n_heads,
        "d_head": size.d_head,
        "n_kv_heads": size.n_kv_heads,
        "d_ff": size.d_ff,
    }


def _learned(size: Size) -> str:
    return f"learned:positions={size.length}"


def _decoder(size: Size, encoding: str) -> tuple[nn.Module, Weights]:
    model = jarilab.LanguageModel(
        size.vocabulary,
        n_layers=size.layers,
        encoding=encoding,
        tied=False,
        embedding_scale="none",
        **_options(size),
    )
    assert model.generator is not None
    positions = [each.data for name, each in model.named_parameters() if name.endswith("table")]
    weights = Weights([model.embedding.weight.data], positions, model.generator.weight.data.T)
    for number, layer in enumerate(model.decoder.in_order()):
        _add_layer(weights, layer, f"L{number}")
    return model, weights


def _add_layer(weights: Weights, layer: EncoderLayer, prefix: str) -> None:
    weights.attention.append(_attention(layer.attention, prefix))
    weights.mlps.append(_mlp(layer.feed_forward))


def _attention(attention: jarilab.Attention, prefix: str) -> AttentionWeights:
    maps = (attention.query, attention.key, attention.value, attention.out)
    return AttentionWeights(prefix, *(each.weight.data.T for each in maps))


def _mlp(feed_forward: FeedForward) -> MlpWeights:
    return MlpWeights(feed_forward.up.weight.data.T, feed_forward.down.weight.data.T)


def _decoder_learned(size: Size) -> tuple[nn.Module, Weights]:
    return _decoder(size, _learned(size))


def _decoder_rotary(size: Size) -> tuple[nn.Module, Weights]:
    return _decoder(size, f"rotary:base={size.rotary_base!r}")


class EncoderTagger(nn.Module):
    """jarilab's encoder between an embedding and scores `(B, L, V)` for each token."""

    def __init__(self, size: Size):
        super().__init__()
        self.embedding = TokenEmbedding(size.vocabulary, size.d_model, "none")
        self.encoder = jarilab.Encoder(n_layers=size.layers, encoding=_learned(size), **_options(size))
        self.generator = nn.Linear(size.d_model, size.vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.generator(self.encoder(self.embedding(ids)))


def _encoder(size: Size) -> tuple[nn.Module, Weights]:
    model = EncoderTagger(size)
    positions = [each.data for name, each in model.named_parameters() if name.endswith("table")]
    weights = Weights([model.embedding.weight.data], positions, model.generator.weight.data.T)
    for number, layer in enumerate(model.encoder.layers):
        assert isinstance(layer, EncoderLayer)
        _add_layer(weights, layer, f"L{number}")
    return model, weights


def _encoder_decoder(size: Size) -> tuple[nn.Module, Weights]:
    """One layer in each stack; sites are those of the encoder, the decoder, and the cross-attention."""
    model = jarilab.EncoderDecoder(
        size.vocabulary,
        size.vocabulary,
        n_encoder_layers=1,
        n_decoder_layers=1,
        encoding=_learned(size),
        embedding_scale="none",
        **_options(size),
    )
    assert model.generator is not None
    assert model.source_embedding is not None
    positions = [each.data for name, each in model.named_parameters() if name.endswith("table")]
    tokens = [model.source_embedding.weight.data, model.target_embedding.weight.data]
    weights = Weights(tokens, positions, model.generator.weight.data.T)
    encoder, decoder = model.encoder.layers[0], model.decoder.layers[0]
    assert isinstance(encoder, EncoderLayer)
    assert isinstance(decoder, DecoderLayer)
    _add_layer(weights, encoder, "enc.L0")
    weights.attention.append(_attention(decoder.self_attention, "dec.L0"))
    weights.attention.append(_attention(decoder.cross_attention, "cross.L0"))
    weights.mlps.append(_mlp(decoder.feed_forward))
    return model, weights


# transformers ---------------------------------------------------------------------------------------------------------


def _gpt2(size: Size) -> tuple[nn.Module, Weights]:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=size.vocabulary,
        n_positions=size.length,
        n_embd=size.d_model,
        n_layer=size.layers,
        n_head=size.n_heads,
        n_inner=size.d_ff,
        activation_function="relu",
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.GPT2LMHeadModel(config)
    body: Any = model.transformer
    weights = Weights([body.wte.weight.data], [body.wpe.weight.data], model.lm_head.weight.data.T)
    for number, layer in enumerate(body.h):
        q, k, v = layer.attn.c_attn.weight.data.split(size.d_model, 1)
        output = layer.attn.c_proj.weight.data
        weights.attention.append(AttentionWeights(f"L{number}", q, k, v, output))
        weights.mlps.append(MlpWeights(layer.mlp.c_fc.weight.data, layer.mlp.c_proj.weight.data))
    return model, weights


def _llama(size: Size) -> tuple[nn.Module, Weights]:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.d_model,
        intermediate_size=size.d_ff,
        num_hidden_layers=size.layers,
        num_attention_heads=size.n_heads,
        num_key_value_heads=size.n_kv_heads,
        head_dim=size.d_head,
        hidden_act="relu",
        rms_norm_eps=EPSILON,
        rope_parameters={"rope_type": "default", "rope_theta": size.rotary_base},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config)
    body: Any = model.model
    weights = Weights([body.embed_tokens.weight.data], [], model.lm_head.weight.data.T)
    for number, layer in enumerate(body.layers):
        attention, mlp = layer.self_attn, layer.mlp
        maps = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        weights.attention.append(AttentionWeights(f"L{number}", *(each.weight.data.T for each in maps)))
        up, down, gate = (each.weight.data.T for each in (mlp.up_proj, mlp.down_proj, mlp.gate_proj))
        weights.mlps.append(MlpWeights(up, down, gate))
    return model, weights


HOSTS: dict[str, Host] = {
    "decoder": Host(_decoder_learned),
    "rotary decoder": Host(_decoder_rotary, rotary=True),
    "encoder": Host(_encoder, causal=False),
    "encoder-decoder": Host(_encoder_decoder, sources=2),
    "gpt2": Host(_gpt2, keywords=True),
    "llama": Host(_llama, rotary=True, keywords=True),
}


def empty_model(host: Host, size: Size) -> tuple[nn.Module, Weights]:
    """A model in float64 and eval mode, all of whose weights are 0. The views are those of this model."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        model, weights = host.make(size)
    finally:
        torch.set_default_dtype(dtype)
    model.eval()
    for parameter in model.parameters():
        parameter.data.zero_()
    return model, weights


def norms_of(model: nn.Module) -> list[Tensor]:
    """The scales of all norms."""
    return [each.data for name, each in model.named_parameters() if each.ndim == 1 and name.endswith("weight")]
