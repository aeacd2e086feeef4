"""What an attention needs to know of places: worked out once per forward and shared by the layers."""

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
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask


@dataclass(frozen=True, eq=False)
class Geometry:
    """An encoding applied to the queries' and the keys' positions, and the mask between them.

    allowed: `(B or 1, 1, Q or 1, K)`, True where a query may attend to a key; None where all may. In the row of a query
        without any key everything is True, so that no kernel divides by zero; `has_key` then removes its output.
    has_key: `(B or 1, 1, Q or 1, 1)`, False for queries without any key; None where there is none such.
    causal: the mask is the plain causal one of a sequence with itself, which a kernel may know a shorter way to do.
    q_rotation, k_rotation: what `rotate` takes; the keys' covers the new keys only, cached ones being rotated already,
        unless `rotates_anew`.
    bias: `(B or 1, H, Q, K)` float32, or None. relation: what `terms` and `values` take.
    additive: bias and mask in one, minus infinity where hidden; None where there is neither.
    mask: the rules that `allowed` writes out.
    blockwise: where it is computed block by block, by FlexAttention or on a CPU: what takes the place of `allowed`,
        `has_key`, `bias`, `relation` and `additive`, which are None then; `materialized` has them.
    """

    encoding: Encoding
    q_pos: Positions
    k_pos: Positions
    allowed: Bool[Tensor, "#B 1 #Q K"] | None = None
    has_key: Bool[Tensor, "#B 1 #Q 1"] | None = None
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
        """The same with everything written out."""
        if self.blockwise is None:
            return self
        allowed, has_key = _written_out(self.mask, self.q_pos, self.k_pos)
        relation = _relation(self.encoding, self.q_pos, self.k_pos)
        whole = replace(self, allowed=allowed, has_key=has_key, relation=relation, blockwise=None)
        return replace(whole, **_added(whole))

    @property  # torch.compile does not trace the lock of a cached one
    def bare(self) -> bool:
        """All that an attention between these places does is q.k: nothing is turned, added, hidden or remembered."""
        nothing = self.allowed is None and self.blockwise is None and not self.causal
        return nothing and not self.encoding.hooks - {"embed"}

    @property
    def rotates_anew(self) -> bool:
        """The rotation depends on all keys, so that a cache keeps them unrotated."""
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

    new_k_pos: the keys that are not in the cache yet; by default all of them.
    blockwise: materialize no Q x K tensor if the attention can be computed block by block.
    Raises UserError for distances between frames that no one asked for.
    """
    _check_frames(encoding, q_pos, k_pos)
    causal = mask is not None and mask.plain_causal and q_pos is k_pos
    allowed = has_key = replaced = None
    if blockwise and _supports_blockwise(encoding, q_pos, k_pos):
        blocks = None if _on_cpu(q_pos) else flex.mask_of(mask, q_pos, k_pos)
        replaced = flex.Blockwise(None, blocks)
    else:
        allowed, has_key = _written_out(mask, q_pos, k_pos)
    geometry = Geometry(
        encoding, q_pos, k_pos, allowed, has_key, causal, mask=mask, blockwise=replaced
    )
    return _encoded(geometry, k_pos if new_k_pos is None else new_k_pos)


def geometry_of_layers(
    encodings: LayerEncodings,
    q_pos: Positions,
    k_pos: Positions,
    mask: Mask | None = None,
    *,
    new_k_pos: Positions | None = None,
    blockwise: bool = False,
) -> list[Geometry]:
    """One Geometry for each layer of a stack: the same object where the layers share their encoding."""
    first = geometry_of(
        encodings.by_layer[0], q_pos, k_pos, mask, new_k_pos=new_k_pos, blockwise=blockwise
    )
    new_k_pos = k_pos if new_k_pos is None else new_k_pos
    found = {first.encoding: first}
    for encoding in encodings.by_layer:
        if encoding not in found:
            _check_frames(encoding, q_pos, k_pos)
            able = first.blockwise is None or _supports_blockwise(encoding, q_pos, k_pos)
            like = first if able else first.materialized
            found[encoding] = _encoded(replace(like, encoding=encoding), new_k_pos)
    return [found[encoding] for encoding in encodings.by_layer]


def _supports_blockwise(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> bool:
    """Whether it can be computed block by block. On a CPU an encoding is asked twice, and has to say the same."""
    if _on_cpu(q_pos):
        return not encoding.random_in_training
    return flex.supports(encoding, q_pos, k_pos)


def _on_cpu(pos: Positions) -> bool:
    return pos.order.device.type == "cpu"


def _relation(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> Any:
    return encoding.relation(q_pos, k_pos) if encoding.hooks & {"terms", "values"} else None


def _check_frames(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> None:
    """Raises UserError where an encoding would compare positions of two frames that no one asked it to compare."""
    compares = bool(encoding.hooks - {"embed", "inject"})
    if compares and q_pos.frame != k_pos.frame and not encoding.site.cross:
        raise UserError(
            f"positions in the frame {q_pos.frame!r} cannot be compared with those in {k_pos.frame!r}: "
            "build the attention with cross=True if distances between them mean something"
        )


def _written_out(
    mask: Mask | None, q_pos: Positions, k_pos: Positions
) -> tuple[Tensor | None, Tensor | None]:
    """`allowed` and `has_key` of a Geometry."""
    eager = _on_cpu(q_pos) and not torch.compiler.is_compiling()
    if eager and mask is not None and mask.hides_nothing(q_pos, k_pos):
        return None, None
    allowed = None if mask is None else mask.dense(q_pos, k_pos)
    if mask is None or allowed is None:
        return None, None
    if mask.plain_causal and q_pos is k_pos:  # each sees itself at least
        return allowed, None
    # Rows without any key are rare. Ask whether there are any and save the work if not, where the answer costs nothing:
    # an accelerator would have to finish first.
    # A batch without padding, as one query sees it.
    if eager and allowed.shape[-2] == 1 and bool(allowed.all()):
        return None, None
    has_key = allowed.any(-1, keepdim=True)
    if eager and bool(has_key.all()):
        return allowed, None
    return allowed | ~has_key, has_key


def _encoded(geometry: Geometry, new_k_pos: Positions) -> Geometry:
    """Fill in what the encoding makes of the positions."""
    encoding, q_pos, k_pos = geometry.encoding, geometry.q_pos, geometry.k_pos
    hooks = encoding.hooks
    q_rotation = k_rotation = None
    if "rotate" in hooks:
        turned_k_pos = k_pos if geometry.rotates_anew else new_k_pos
        q_rotation = encoding.rotation_for(q_pos, "query", k_pos)
        k_rotation = q_rotation
        if turned_k_pos is not q_pos or "side" in encoding.extra_arguments("rotation"):
            k_rotation = encoding.rotation_for(turned_k_pos, "key", k_pos)
    relation = None if geometry.blockwise is not None else _relation(encoding, q_pos, k_pos)
    if geometry.bare:
        return geometry
    added = _added(geometry)
    return replace(
        geometry, q_rotation=q_rotation, k_rotation=k_rotation, relation=relation, **added
    )


def _added(geometry: Geometry) -> dict[str, Any]:
    """The fields that hold what the encoding adds to the scores."""
    encoding, q_pos, k_pos = geometry.encoding, geometry.q_pos, geometry.k_pos
    if geometry.blockwise is not None:
        bias = None
        if flex.has_distance_bias(encoding, q_pos, k_pos):
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
    # A sum, since the gradient of a sum is cheaper than that of a choice: half the time for a learned bias at 512 keys.
    return hidden if bias is None else bias + hidden
