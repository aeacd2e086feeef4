"""Another way to know order in a model of transformers: its own positions are silenced, and an encoding of jari takes
their place in its self-attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.heads import site_of
from jarilab.attention.module import AttentionKernel
from jarilab.core.errors import UserError
from jarilab.encodings.base import Encoding, Site
from jarilab.encodings.compose import LayerEncodings
from jarilab.huggingface.folder import library
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

NAME = "jarilab"
"""What transformers knows this way to attend by."""


class Silent(nn.Module):
    """Takes the place of a table of positions: nothing, for any place."""

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("nothing", torch.zeros(1, 1, width), persistent=False)

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return cast(Tensor, self.nothing)


class Still(nn.Module):
    """Takes the place of rotary angles: turns by nothing."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, x: Tensor, position_ids: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        ones = x.new_ones(*position_ids.shape, self.width)
        return ones, torch.zeros_like(ones)


@dataclass(frozen=True)
class Family:
    """Models that are alike. silence: takes their own positions away. attention: what the path of a self-attention ends
    in. cross: that of one to another sequence, where they have any."""

    silence: Callable[[nn.Module], None]
    attention: str
    cross: str | None = None


def _tables(name: str) -> Callable[[nn.Module], None]:
    """Tables of this name, whose vectors are added to tokens."""

    def silence(model: nn.Module) -> None:
        for owner in list(model.modules()):
            table = getattr(owner, name, None)
            if isinstance(table, nn.Parameter):  # ViT's, which it adds as it is
                setattr(owner, name, nn.Parameter(torch.zeros_like(table), requires_grad=False))
            elif hasattr(table, "weight"):  # not silent already
                setattr(owner, name, Silent(table.weight.shape[-1]))  # type: ignore[union-attr]

    return silence


def _rotary(model: nn.Module) -> None:
    config: Any = model.config
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    for owner in list(model.modules()):
        if isinstance(getattr(owner, "rotary_emb", None), nn.Module):
            owner.rotary_emb = Still(width)


def _relative_bias(model: nn.Module) -> None:
    for owner in list(model.modules()):
        if getattr(owner, "has_relative_attention_bias", False):
            owner.has_relative_attention_bias = False  # type: ignore[assignment]
            del owner.relative_attention_bias


FAMILIES: dict[str, Family] = {
    "GPT2Config": Family(_tables("wpe"), ".attn", ".crossattention"),
    "BertConfig": Family(_tables("position_embeddings"), ".attention.self", ".crossattention.self"),
    "ViTConfig": Family(_tables("position_embeddings"), ".attention"),
    "T5Config": Family(_relative_bias, ".SelfAttention", ".EncDecAttention"),
    "LlamaConfig": Family(_rotary, ".self_attn"),
    "MistralConfig": Family(_rotary, ".self_attn"),
    "Qwen2Config": Family(_rotary, ".self_attn"),
    "BartConfig": Family(_tables("embed_positions"), ".self_attn", ".encoder_attn"),
    "MarianConfig": Family(_tables("embed_positions"), ".self_attn", ".encoder_attn"),
}
"""By the class of the configuration."""


def swap(model: nn.Module, encoding: str) -> nn.Module:
    """Give a model of transformers another encoding, in place; its weights stay, but for what its positions were.

        model = jarilab.swap(AutoModelForCausalLM.from_pretrained(FOLDER), "alibi")

    The encoding works inside self-attention, in encoder and decoder alike; with `none` the model is what it was with
    its positions zero. What the encoding learns is among the model's parameters, under `jari_encodings`. Attention to
    another sequence is computed as before, without places; each attention is recorded as one of jari, under the name
    that it had. Relative places alone: tokens are counted from the first key, wherever padding is.
    Raises UserError for a model whose positions cannot be taken away, and an encoding that works elsewhere.
    """
    transformers = library()
    config: Any = getattr(model, "config", None)
    family = FAMILIES.get(type(config).__name__)
    if family is None:
        raise UserError(
            f"the positions of {type(model).__name__} cannot be taken away by one known name; models that can: "
            f"{', '.join(name.removesuffix('Config') for name in FAMILIES)}"
        )
    encodings = nn.ModuleDict()
    for stack, of_stack in _stacks(model, family.attention).items():
        causal = any(getattr(each, "is_causal", False) for each in of_stack)
        heads, width = _shape(config, stack)
        site = site_of(heads * width, heads, causal=causal)
        layers = LayerEncodings(encoding, site, len(of_stack))
        _check(encoding, layers)
        encodings[stack] = layers
        _take(of_stack, layers, _name(stack, causal=causal))
    for stack, of_stack in _stacks(model, family.cross).items():
        heads, width = _shape(config, stack)
        nowhere = LayerEncodings("none", site_of(heads * width, heads, cross=True), len(of_stack))
        _take(of_stack, nowhere, "decoder.{}.cross")
    family.silence(model)
    example = next(model.parameters())
    model.add_module("jari_encodings", encodings.to(example.device, example.dtype))
    transformers.AttentionInterface.register(NAME, _attend)
    masks = transformers.masking_utils
    transformers.AttentionMaskInterface.register(NAME, masks.sdpa_mask)
    model.set_attn_implementation(NAME)  # type: ignore[operator]
    return model


def _stacks(model: nn.Module, end: str | None) -> dict[str, list[nn.Module]]:
    """The attentions whose path ends so, by the stack that they are in."""
    found: dict[str, list[nn.Module]] = {}
    for path, module in model.named_modules():
        if end is None or not path.endswith(end):
            continue
        words = path.split(".")
        stack = next((word for word in ("decoder", "encoder") if word in words), "model")
        found.setdefault(stack, []).append(module)
    return found


def _take(modules: list[nn.Module], layers: LayerEncodings, site: str) -> None:
    """Give attentions what `_attend` asks them for. site: their name, around the number of the layer."""
    for number, (module, own) in enumerate(zip(modules, layers.by_layer, strict=True)):
        # Not among its modules: those of the model own it.
        module.__dict__["jari_encoding"] = own
        module.add_module("attend", AttentionKernel(site=site.format(number)))


def _name(stack: str, *, causal: bool) -> str:
    """The names of a stack's attentions to itself, as `jarilab.record` gives them where nothing is swapped."""
    writes = causal if stack == "model" else stack == "decoder"
    return "decoder.{}.self" if writes else "encoder.{}"


def _shape(config: Any, stack: str) -> tuple[int, int]:
    """Heads, and numbers in one, of a stack."""
    heads = getattr(config, f"{stack}_attention_heads", None) or config.num_attention_heads
    own = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
    return heads, own or config.hidden_size // heads


def _check(spec: str, layers: LayerEncodings) -> None:
    for own in layers.by_layer:
        if own.hooks & {"embed", "inject"}:
            raise UserError(
                f"{spec} adds to what a model reads, and a model of transformers is swapped inside its attention "
                "alone; use an encoding that works there, such as alibi, t5 or rotary"
            )
        if own.states:
            raise UserError(
                f"{spec} remembers what keys are made of, which a model of transformers does not hand to its "
                "attention; use another encoding"
            )


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for each attention; queries and keys `(B, H, L, E)`."""
    encoding: Encoding = module.__dict__["jari_encoding"]
    heads, queries, keys = query.shape[1], query.shape[2], key.shape[2]
    groups = heads // key.shape[1]
    key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    q_pos, k_pos = _places(encoding.site, queries, keys, query.device)
    mask = _mask(attention_mask, keys, encoding)
    if not encoding.site.cross and queries < keys:
        _check_cache(mask, queries)
    geometry = geometry_of(encoding, q_pos, k_pos, mask)
    query = encoding.rotate(query, geometry.q_rotation)
    key = encoding.rotate(key, geometry.k_rotation)  # a cache keeps them as they were
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = AttentionCall(query, key, value, geometry, scale * encoding.scale_factor, dropout)
    output: Tensor = module.attend(call)  # type: ignore[operator]
    return output.transpose(1, 2).contiguous(), None


def _places(
    site: Site, queries: int, keys: int, device: torch.device
) -> tuple[Positions, Positions]:
    """Of queries and keys: the last ones of one sequence, or two sequences of their own."""
    if site.cross:
        q_pos = Positions.sequence(queries, frame="target", device=device)
        return q_pos, Positions.sequence(keys, frame="source", device=device)
    k_pos = Positions.sequence(keys, device=device)
    return (k_pos if queries == keys else k_pos.slice(keys - queries, keys)), k_pos


def _check_cache(mask: Mask | None, queries: int) -> None:
    """Raises UserError where queries are not the last of the keys, as in a cache that has room for more: then they may
    not look at the last key, or transformers gives no mask for several of them."""
    pairs_BQK = None if mask is None else mask.pairs
    has_room = queries > 1 if pairs_BQK is None else not bool(pairs_BQK[..., -1, -1].any())
    if has_room:
        raise UserError(
            "a swapped model counts its places by a cache that grows, and this one is of fixed size; generate without "
            'cache_implementation="static"'
        )


def _mask(given: Tensor | None, keys: int, encoding: Encoding) -> Mask | None:
    if given is None:
        return Mask(causal=True) if encoding.site.causal else None
    allowed = given if given.dtype is torch.bool else given >= 0
    return Mask(pairs=allowed[:, 0, :, :keys])
