"""BERT and the Vision Transformer as encoders of jari."""

from __future__ import annotations

from typing import Any

from torch import nn

from jarilab.huggingface.copying import Copying
from jarilab.models.text_encoder import TextEncoder
from jarilab.models.vision import VisionTransformer
from jarilab.shapes import Tensor


def bert(copying: Copying) -> nn.Module:
    """A vector for each token. What it makes of the first alone, its pooler, is not copied."""
    copying.leave("pooler.")
    return _bert(copying, "", words=False)


def bert_of_words(copying: Copying) -> nn.Module:
    """Scores of the words under masks."""
    return _bert(copying, "bert.", words=True)


def _bert(copying: Copying, at: str, *, words: bool) -> nn.Module:
    config = copying.config
    copying.require(is_decoder=False, add_cross_attention=False)
    model = TextEncoder(
        config.vocab_size,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        layers=config.num_hidden_layers,
        hidden=config.intermediate_size,
        activation=copying.activation(config.hidden_act),
        norm_eps=config.layer_norm_eps,
        encoding=f"learned:positions={config.max_position_embeddings}",
        segments=config.type_vocab_size,
        words=words,
        embedding_scale="none",
    )
    embeddings = f"{at}embeddings"
    copying.module("embedding", f"{embeddings}.word_embeddings")
    copying.module("segments", f"{embeddings}.token_type_embeddings")
    table = copying.take(f"{embeddings}.position_embeddings.weight")
    copying.put("encoder.encoding.parts.0.0.table", table)
    copying.module("encoder.embedding_norm", f"{embeddings}.LayerNorm")
    names = {
        "attention.query": "attention.self.query",
        "attention.key": "attention.self.key",
        "attention.value": "attention.self.value",
        "attention.out": "attention.output.dense",
        "attention_residual.norm": "attention.output.LayerNorm",
        "feed_forward.up": "intermediate.dense",
        "feed_forward.down": "output.dense",
        "feed_forward_residual.norm": "output.LayerNorm",
    }
    for layer in range(config.num_hidden_layers):
        copying.modules(f"encoder.layers.{layer}", f"{at}encoder.layer.{layer}", names)
    if words:
        head = "cls.predictions"
        copying.module("words.map", f"{head}.transform.dense")
        copying.module("words.norm", f"{head}.transform.LayerNorm")
        copying.put("words.bias", copying.take(f"{head}.bias"))
        copying.leave(f"{head}.decoder.")  # the embeddings and this bias once more
    return copying.finish(model)


def vit(copying: Copying) -> nn.Module:
    """Classes, read from the class token."""
    config = copying.config
    height, width = _pair(config.image_size)
    patch, other = _pair(config.patch_size)
    if patch != other:
        copying.refuse(f"patches of {patch} x {other} pixels", "expected squares")
    patches = (height // patch) * (width // patch)
    model = VisionTransformer(
        (config.num_channels, height, width),
        config.num_labels,
        patch=patch,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        layers=config.num_hidden_layers,
        hidden=config.intermediate_size,
        activation=copying.activation(config.hidden_act),
        norm_eps=config.layer_norm_eps,
        encoding=f"learned:positions={patches}",
        pool="class",
    )
    embeddings = "vit.embeddings"
    copying.module("embedding", f"{embeddings}.patch_embeddings.projection", _of_patches)
    places = copying.take(f"{embeddings}.position_embeddings")[0]
    # The class token has a place there, and none here: it is added once and for all.
    token = copying.take(f"{embeddings}.cls_token")[0]
    copying.put("nowhere.weight", token + places[:1])
    copying.put("encoder.encoding.parts.0.0.table", places[1:])
    copying.module("encoder.norm", "vit.layernorm")
    copying.module("generator", "classifier")
    names = {
        "attention_residual.norm": "layernorm_before",
        "attention.query": "attention.q_proj",
        "attention.key": "attention.k_proj",
        "attention.value": "attention.v_proj",
        "attention.out": "attention.o_proj",
        "feed_forward_residual.norm": "layernorm_after",
        "feed_forward.up": "mlp.fc1",
        "feed_forward.down": "mlp.fc2",
    }
    for layer in range(config.num_hidden_layers):
        copying.modules(f"encoder.layers.{layer}", f"vit.layers.{layer}", names)
    return copying.finish(model)


def _pair(size: Any) -> tuple[int, int]:
    """Height and width, of which a configuration may name one."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _of_patches(weight: Tensor) -> Tensor:
    """A convolution that takes one patch at a time, as a map of its pixels."""
    return weight.flatten(1)
