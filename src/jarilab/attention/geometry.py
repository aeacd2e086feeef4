"""What attention computes from positions and masks: once per forward, shared by the layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from jarilab.attention import flex
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import Encoding
from jarilab.encodings.compose import LayerEncodings
from jarilab.encodings.skew import first_distance
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask


@dataclass(frozen=True, eq=False)
class Geometry:
    """An encoding applied to the queries' and the keys' positions, and the mask between them.

    allowed: `(B or 1, 1, Q or 1, K)`, True where a query may attend to a key; None if all may. The row of a query
        without any key is True, so that no kernel divides by zero; `has_key` removes its output.
    has_key: `(B or 1, H or 1, Q or 1, 1)`, False for queries without any key; None if there are no such queries. It
        differs between heads only if a mask of another library does.
    causal: the mask is plain causal attention of a sequence to itself, in the order of its indices, for which kernels
        have a flag.
    q_rotation, k_rotation: arguments of `rotate`. That of the keys covers new keys only, since cached keys are rotated
        already, unless `rotates_cached_keys`.
    bias: `(B or 1, H, Q, K)` float32, or None. relation: argument of `terms` and `values`.
    additive: sum of bias and mask, minus infinity where hidden; None if there is neither.
    mask: the rules behind `allowed`.
    blockwise: for kernels that compute block by block. It replaces `allowed`, `has_key`, `bias`, `relation` and
        `additive`, which are then None; `materialized` has them.
    """

    encoding: Encoding
    q_pos: Positions
    k_pos: Positions
    allowed: Bool[Tensor, "#B 1 #Q K"] | None = None
    has_key: Bool[Tensor, "#B #H #Q 1"] | None = None
    causal: bool = False
    q_rotation: Any = None
    k_rotation: Any = None
    bias: Float[Tensor, "#B H Q K"] | None = None
    relation: Any = None
    additive: Float[Tensor, "#B #H #Q K"] | None = None
    mask: Mask | None = None
    blockwise: flex.Blockwise | None = None

    @cached_property
    def materialized(self) -> Geometry:
        """The geometry with all tensors of pairs."""
        if self.blockwise is None:
            return self
        allowed, has_key = _materialize_mask(self.mask, self.q_pos, self.k_pos)
        relation = _relation(self.encoding, self.q_pos, self.k_pos)
        dense = replace(self, allowed=allowed, has_key=has_key, relation=relation, blockwise=None)
        return replace(dense, **_bias_fields(dense))

    @property  # torch.compile does not trace the lock of a cached one
    def bare(self) -> bool:
        """Whether scores are plain q.k: no mask, and no hook of the encoding inside attention."""
        unmasked = self.allowed is None and self.blockwise is None and not self.causal
        return unmasked and not self.encoding.hooks - {"embed"}

    @property
    def rotates_cached_keys(self) -> bool:
        """Whether the rotation depends on all keys, so that a cache keeps them unrotated."""
        return "keys" in self.encoding.extra_arguments("rotation")


def geometry_of(
    encoding: Encoding,
    q_pos: Positions,
    k_pos: Positions,
    mask: Mask | None = None,
    *,
    new_k_pos: Positions | None = None,
    blockwise: bool = False,
) -> Geometry:
    """Apply `encoding` to queries at `q_pos` and keys at `k_pos`.

    new_k_pos: positions of the keys that are not in the cache yet; all keys by default.
    blockwise: materialize no Q x K tensor if the attention can be computed block by block.
    Raises UserError if the positions belong to different frames and the encoding is not for cross-attention.
    """
    _check_frames(encoding, q_pos, k_pos)
    plain_causal = mask is not None and mask.plain_causal
    causal = plain_causal and q_pos is k_pos and q_pos.is_in_order
    allowed = has_key = block_form = None
    if blockwise and _supports_blockwise(encoding, q_pos, k_pos):
        blocks = None if _on_cpu(q_pos) else flex.mask_of(mask, q_pos, k_pos)
        block_form = flex.Blockwise(None, blocks)
    else:
        allowed, has_key = _materialize_mask(mask, q_pos, k_pos)
    geometry = Geometry(
        encoding, q_pos, k_pos, allowed, has_key, causal, mask=mask, blockwise=block_form
    )
    return _apply_encoding(geometry, k_pos if new_k_pos is None else new_k_pos)


def geometry_of_layers(
    encodings: LayerEncodings,
    q_pos: Positions,
    k_pos: Positions,
    mask: Mask | None = None,
    *,
    new_k_pos: Positions | None = None,
    blockwise: bool = False,
) -> list[Geometry]:
    """The Geometry of each layer of a stack; layers with the same encoding share one object."""
    first = geometry_of(
        encodings.by_layer[0], q_pos, k_pos, mask, new_k_pos=new_k_pos, blockwise=blockwise
    )
    new_k_pos = k_pos if new_k_pos is None else new_k_pos
    geometries = {first.encoding: first}
    for encoding in encodings.by_layer:
        if encoding not in geometries:
            _check_frames(encoding, q_pos, k_pos)
            # Layers share the mask of the first, in the form that this encoding supports.
            same_form = first.blockwise is None or _supports_blockwise(encoding, q_pos, k_pos)
            geometry = replace(first if same_form else first.materialized, encoding=encoding)
            geometries[encoding] = _apply_encoding(geometry, new_k_pos)
    return [geometries[encoding] for encoding in encodings.by_layer]


def _supports_blockwise(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> bool:
    """Whether attention with this encoding can be computed block by block."""
    # On a CPU the backward pass computes the encoding again, which must give the same.
    if _on_cpu(q_pos):
        return not encoding.random_in_training
    if not flex.supports(encoding, q_pos, k_pos):
        return False
    return "bias" not in encoding.hooks or flex.has_fewer_distances_than_pairs(q_pos, k_pos)


def _needs_pairs(q_pos: Positions, k_pos: Positions) -> bool:
    """Whether the kernel for a CPU evaluates a bias for pairs, since the positions are not consecutive."""
    if not _on_cpu(q_pos):
        return False
    return torch.compiler.is_compiling() or first_distance(q_pos, k_pos) is None


def _on_cpu(pos: Positions) -> bool:
    return pos.order.device.type == "cpu"


def _relation(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> Any:
    return encoding.relation(q_pos, k_pos) if encoding.hooks & {"terms", "values"} else None


def _check_frames(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> None:
    """Raises UserError if an encoding without cross=True would compare positions of two frames."""
    compares = bool(encoding.hooks - {"embed", "inject"})
    if compares and q_pos.frame != k_pos.frame and not encoding.site.cross:
        raise UserError(
            f"expected queries and keys in one frame of positions, got {q_pos.frame!r} and {k_pos.frame!r}; build the "
            "attention with cross=True if distances between the frames are meaningful"
        )


def _materialize_mask(
    mask: Mask | None, q_pos: Positions, k_pos: Positions
) -> tuple[Tensor | None, Tensor | None]:
    """`allowed` and `has_key` of a Geometry."""
    eager = _on_cpu(q_pos) and not torch.compiler.is_compiling()
    if eager and mask is not None and mask.hides_nothing(q_pos, k_pos):
        return None, None
    allowed = None if mask is None else mask.dense(q_pos, k_pos)
    if mask is None or allowed is None:
        return None, None
    if mask.plain_causal and q_pos is k_pos:  # each query sees at least itself
        return allowed, None
    # Rows without any key are rare. On a CPU, check for them and save the work; an accelerator would have to be
    # synchronized. The first check is for a batch without padding.
    if eager and allowed.shape[-2] == 1 and bool(allowed.all()):
        return None, None
    has_key = allowed.any(-1, keepdim=True)
    if eager and bool(has_key.all()):
        return allowed, None
    return allowed | ~has_key, has_key


def _apply_encoding(geometry: Geometry, new_k_pos: Positions) -> Geometry:
    """Fill in the fields that the encoding computes from the positions."""
    encoding, q_pos, k_pos = geometry.encoding, geometry.q_pos, geometry.k_pos
    hooks = encoding.hooks
    q_rotation = k_rotation = None
    if "rotate" in hooks:
        rotated_k_pos = k_pos if geometry.rotates_cached_keys else new_k_pos
        q_rotation = encoding.rotation_for(q_pos, "query", k_pos)
        # In self-attention without a cache, both sides rotate alike: computed once.
        k_rotation = q_rotation
        if rotated_k_pos is not q_pos or "side" in encoding.extra_arguments("rotation"):
            k_rotation = encoding.rotation_for(rotated_k_pos, "key", k_pos)
    relation = None if geometry.blockwise is not None else _relation(encoding, q_pos, k_pos)
    if geometry.bare:
        return geometry
    return replace(
        geometry,
        q_rotation=q_rotation,
        k_rotation=k_rotation,
        relation=relation,
        **_bias_fields(geometry),
    )


def _bias_fields(geometry: Geometry) -> dict[str, Any]:
    """The fields for what the encoding and the mask add to the scores."""
    encoding, q_pos, k_pos = geometry.encoding, geometry.q_pos, geometry.k_pos
    if geometry.blockwise is not None:
        bias = None
        if flex.has_distance_bias(encoding, q_pos, k_pos) and not _needs_pairs(q_pos, k_pos):
            bias = flex.distance_bias_of(encoding, q_pos, k_pos)
        return {"blockwise": replace(geometry.blockwise, bias=bias)}
    bias = None
    if "bias" in encoding.hooks:
        bias = encoding.bias(q_pos, k_pos)
        assert bias is not None
        bias = bias.unsqueeze(0) if bias.ndim == 3 else bias
    return {"bias": bias, "additive": _additive(bias, geometry.allowed)}


def _additive(bias: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    if allowed is None:
        return bias
    zeros = torch.zeros(allowed.shape, device=allowed.device)
    hidden = zeros.masked_fill(~allowed, float("-inf"))
    # The gradient of a sum takes half the time of that of `where`, for a learned bias at 512 keys.
    return hidden if bias is None else bias + hidden
