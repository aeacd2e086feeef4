"""Replaces the positions of a transformers model by an encoding of jarilab in its self-attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor, nn

from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.heads import site_of
from jarilab.attention.module import AttentionKernel
from jarilab.attention.position_encoding import split_mask, with_summand
from jarilab.core.errors import UserError, import_optional
from jarilab.encodings.base import Encoding, Site
from jarilab.encodings.compose import LayerEncodings, canonical
from jarilab.huggingface.key_positions import KeyPositions
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

IMPLEMENTATION = "jarilab"
"""The name of `_attend` among the attention implementations of transformers."""
CONFIG_KEY = "jarilab_swap"
"""The entry of config.json that holds the encoding of a swapped model."""
PARAMETERS = "jari_encodings"
"""The module that holds the encoding's parameters."""


class ZeroPositions(nn.Module):
    """Replaces a table of positions: a zero vector for each position."""

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("zeros", torch.zeros(1, 1, width), persistent=False)

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return cast(Tensor, self.zeros)


class NoRotation(nn.Module):
    """Replaces rotary angles: cosine 1 and sine 0 for each position."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, x: Tensor, position_ids: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        ones = x.new_ones(*position_ids.shape, self.width)
        return ones, torch.zeros_like(ones)


@dataclass(frozen=True)
class SwapRule:
    """How to swap the models of one configuration class.

    remove_positions: removes the model's own positions. attention: end of the paths of its self-attentions. cross: end
    of the paths of its cross-attentions, if it has any.
    """

    remove_positions: Callable[[nn.Module], None]
    attention: str
    cross: str | None = None


def _remove_tables(name: str) -> Callable[[nn.Module], None]:
    """A function that removes the tables of this name, whose vectors are added to tokens."""

    def remove(model: nn.Module) -> None:
        for owner in list(model.modules()):
            table = getattr(owner, name, None)
            if isinstance(table, nn.Parameter):  # ViT's
                setattr(owner, name, nn.Parameter(torch.zeros_like(table), requires_grad=False))
            elif hasattr(table, "weight"):  # not replaced yet
                setattr(owner, name, ZeroPositions(table.weight.shape[-1]))  # type: ignore[union-attr]

    return remove


def _remove_rotation(model: nn.Module) -> None:
    config: Any = model.config
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    for owner in list(model.modules()):
        if isinstance(getattr(owner, "rotary_emb", None), nn.Module):
            owner.rotary_emb = NoRotation(width)


def _remove_bias(model: nn.Module) -> None:
    for owner in list(model.modules()):
        if getattr(owner, "has_relative_attention_bias", False):
            owner.has_relative_attention_bias = False  # type: ignore[assignment]
            del owner.relative_attention_bias


SWAP_RULES: dict[str, SwapRule] = {
    "GPT2Config": SwapRule(_remove_tables("wpe"), ".attn", ".crossattention"),
    "BertConfig": SwapRule(
        _remove_tables("position_embeddings"), ".attention.self", ".crossattention.self"
    ),
    "ViTConfig": SwapRule(_remove_tables("position_embeddings"), ".attention"),
    "T5Config": SwapRule(_remove_bias, ".SelfAttention", ".EncDecAttention"),
    "LlamaConfig": SwapRule(_remove_rotation, ".self_attn"),
    "MistralConfig": SwapRule(_remove_rotation, ".self_attn"),
    "Qwen2Config": SwapRule(_remove_rotation, ".self_attn"),
    "BartConfig": SwapRule(_remove_tables("embed_positions"), ".self_attn", ".encoder_attn"),
    "MarianConfig": SwapRule(_remove_tables("embed_positions"), ".self_attn", ".encoder_attn"),
}
"""By configuration class."""


def swap(model: nn.Module, encoding: str) -> nn.Module:
    """Replace the positions of a transformers model by an encoding, in place.

        model = jarilab.swap(AutoModelForCausalLM.from_pretrained(FOLDER), "alibi")

    The encoding works inside self-attention, in encoder and decoder alike. All weights except those of positions stay.
    With `none` the model computes what it did with its positions at zero. Parameters of the encoding are registered as
    `jari_encodings`. Cross-attention does not change and has no positions. All attentions are recorded by jarilab,
    under the same names as before. `position_ids` are used; with a cache, they must count the tokens that
    `attention_mask` shows, as those of `generate` do. `save_pretrained` writes a folder that `jarilab.load_swapped`
    restores; transformers alone refuses it.
    Raises UserError if the model's positions cannot be removed, or the encoding works outside self-attention or reads
    the inputs of keys.
    """
    transformers: Any = import_optional("transformers", "huggingface")
    config: Any = getattr(model, "config", None)
    rule = SWAP_RULES.get(type(config).__name__)
    if rule is None:
        raise UserError(
            f"the positions of {type(model).__name__} cannot be removed: expected one of "
            f"{', '.join(name.removesuffix('Config') for name in SWAP_RULES)}; use one of these"
        )
    encodings = nn.ModuleDict()
    for stack, attentions in _attentions_by_stack(model, rule.attention).items():
        causal = any(getattr(attention, "is_causal", False) for attention in attentions)
        heads, width = _head_shape(config, stack)
        site = site_of(heads * width, heads, causal=causal)
        layers = LayerEncodings(encoding, site, len(attentions))
        _check_hooks(encoding, layers)
        encodings[stack] = layers
        _attach(attentions, layers, _site_pattern(stack, causal=causal))
    for stack, attentions in _attentions_by_stack(model, rule.cross).items():
        heads, width = _head_shape(config, stack)
        site = site_of(heads * width, heads, cross=True)
        _attach(attentions, LayerEncodings("none", site, len(attentions)), "decoder.{}.cross")
    rule.remove_positions(model)
    example = next(model.parameters())
    model.add_module(PARAMETERS, encodings.to(example.device, example.dtype))
    transformers.AttentionInterface.register(IMPLEMENTATION, _attend)
    masks = transformers.masking_utils
    transformers.AttentionMaskInterface.register(IMPLEMENTATION, masks.sdpa_mask)
    model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    setattr(config, CONFIG_KEY, canonical(encoding))
    # config.json then asks for an implementation that transformers alone does not have. Without it, a folder would be
    # read with the model's own positions, silently.
    config.attn_implementation = IMPLEMENTATION
    return model


def restore(model: nn.Module, spec: object, folder: Path) -> None:
    """Swap a model that transformers has read from `folder`, and load the parameters of its encoding.

    spec: the folder's entry for the encoding. Raises UserError if it is none, names a Python file that is not trusted,
    or if parameters are missing.
    """
    if not isinstance(spec, str):
        raise UserError(
            f"{folder / 'config.json'}: expected {CONFIG_KEY} to name an encoding, got {spec!r:.80}; put back a copy"
        )
    swap(model, spec)
    saved: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            names = [name for name in tensors.keys() if name.startswith(f"{PARAMETERS}.")]  # noqa: SIM118
            saved.update(
                (name.removeprefix(f"{PARAMETERS}."), tensors.get_tensor(name)) for name in names
            )
    try:
        model.get_submodule(PARAMETERS).load_state_dict(saved)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(
            f"{folder} expected the parameters of {spec}, got others: {reason:.200}; put back the files that were "
            "saved with its config.json"
        ) from None


def _attentions_by_stack(model: nn.Module, end: str | None) -> dict[str, list[nn.Module]]:
    """The attentions whose path ends with `end`, by stack: encoder, decoder or model."""
    attentions: dict[str, list[nn.Module]] = {}
    for path, module in model.named_modules():
        if end is None or not path.endswith(end):
            continue
        names = path.split(".")
        stack = next((name for name in ("decoder", "encoder") if name in names), "model")
        attentions.setdefault(stack, []).append(module)
    return attentions


def _attach(attentions: list[nn.Module], layers: LayerEncodings, site: str) -> None:
    """Store in each attention what `_attend` needs. site: its name, with {} for the number of the layer."""
    for number, (module, encoding) in enumerate(zip(attentions, layers.by_layer, strict=True)):
        # Not a submodule: the model registers it as `jari_encodings`.
        module.__dict__["jari_encoding"] = encoding
        module.add_module("attend", AttentionKernel(site=site.format(number)))


def _site_pattern(stack: str, *, causal: bool) -> str:
    """The names of a stack's self-attentions, as `jarilab.record` names them without a swap."""
    is_decoder = causal if stack == "model" else stack == "decoder"
    return "decoder.{}.self" if is_decoder else "encoder.{}"


def _head_shape(config: Any, stack: str) -> tuple[int, int]:
    """The number of heads of a stack, and their width."""
    heads = getattr(config, f"{stack}_attention_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
    return heads, width or config.hidden_size // heads


def _check_hooks(spec: str, layers: LayerEncodings) -> None:
    """Raises UserError for an encoding that works outside self-attention."""
    for encoding in layers.by_layer:
        if encoding.hooks & {"embed", "inject"}:
            raise UserError(
                f"{spec} adds to the input: expected an encoding that works inside attention, the only part of a "
                "transformers model that is swapped; use one such as alibi, t5 or rotary"
            )
        if encoding.n_states:
            raise UserError(
                f"{spec} needs the inputs of keys, which a transformers model does not pass to its attention; use "
                "another encoding, such as alibi, t5 or rotary"
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
    """The attention function that transformers calls. Queries and keys are `(B, H, L, E)`."""
    encoding: Encoding | None = module.__dict__.get("jari_encoding")
    if encoding is None:
        raise UserError(
            f"expected a model that jarilab.swap has changed, got a {type(module).__name__} that transformers has read "
            "from the folder of such a model; read it by jarilab.load_swapped(FOLDER)"
        )
    heads, queries, keys = query.shape[1], query.shape[2], key.shape[2]
    groups = heads // key.shape[1]
    # transformers passes keys and values that several heads share once.
    key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    mask, summand = _mask(attention_mask, encoding.site, query.shape[:3], keys)
    if not encoding.site.cross and queries < keys:
        _check_cache(mask, queries)
    in_order = Positions.sequence(keys, device=query.device)
    q_pos, k_pos = _positions(encoding, mask, queries, in_order, rest)
    geometry = geometry_of(encoding, q_pos, k_pos, mask)
    if summand is not None:
        geometry = with_summand(geometry, summand.to(query.dtype))
    query = encoding.rotate(query, geometry.q_rotation)
    key = encoding.rotate(key, geometry.k_rotation)  # a cache stores them unrotated
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = AttentionCall(query, key, value, geometry, scale * encoding.scale_factor, dropout)
    output: Tensor = module.attend(call)  # type: ignore[operator]
    return output.transpose(1, 2).contiguous(), None


def _positions(
    encoding: Encoding, mask: Mask | None, queries: int, in_order: Positions, rest: dict[str, Any]
) -> tuple[Positions, Positions]:
    """Of queries and keys. in_order: 0, 1, 2, ... for all keys. rest: more arguments of transformers."""
    keys, order_K = in_order.length, in_order.order
    if encoding.site.cross:
        q_pos = Positions.sequence(queries, frame="target", device=order_K.device)
        return q_pos, replace(in_order, frame="source")
    counted, visible_BK = in_order, torch.ones_like(order_K, dtype=torch.bool)[None]
    if mask is not None and mask.pairs is not None:
        visible_BK = mask.pairs.any(1)
        counted = Positions.from_mask(visible_BK)
    by_distance = encoding.shift_invariant and not encoding.depends_on_length
    known = KeyPositions(in_order, counted, visible_BK, by_distance)
    k_pos, ids = known.default, rest.get("position_ids")
    if ids is not None:
        ids_BQ = ids.reshape(-1, queries).to(order_K)
        # A check would interrupt the graph of a compiled model.
        caches = bool(rest.get("use_cache")) and not torch.compiler.is_compiling()
        k_pos = known.of(ids_BQ, rest.get("sliding_window"), caches=caches)
    return (k_pos if queries == keys else k_pos.slice(keys - queries, keys)), k_pos


def _check_cache(mask: Mask | None, queries: int) -> None:
    """Raises UserError for a cache of fixed size, in which queries are not the last of the keys."""
    # Then queries may not see the last key, or transformers passes no mask for several queries.
    pairs_BQK = None if mask is None else mask.pairs
    is_static = queries > 1 if pairs_BQK is None else not bool(pairs_BQK[..., -1, -1].any())
    if is_static:
        raise UserError(
            "a swapped model counts positions in its cache: expected a cache that grows, got one of fixed size; "
            'generate without cache_implementation="static"'
        )


def _mask(
    attention_mask: Tensor | None, site: Site, queries: torch.Size, keys: int
) -> tuple[Mask | None, Tensor | None]:
    """The mask, and what is added to scores. queries: `(B, H, Q)`."""
    if attention_mask is None:
        return (Mask(causal=True) if site.causal else None), None
    visible = attention_mask[..., :keys]
    if visible.dtype is torch.bool and visible.shape[1] == 1:
        return Mask(pairs=visible[:, 0]), None
    pairs, summand = split_mask(visible, torch.Size((*queries, keys)))
    return Mask(pairs=pairs), summand
