"""What the encoding of a call adds, in the cheapest way that it can be asked for."""

from __future__ import annotations

from jarilab.attention.cpu.added import Added, ByLine, Together
from jarilab.attention.cpu.added_hooks import ByHooks
from jarilab.attention.cpu.added_lines import ByLines
from jarilab.attention.cpu.added_vectors import ByVectors
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import Geometry
from jarilab.encodings.skew import first_distance


def added_by(call: AttentionCall) -> Added:
    """What `blocks.py` asks."""
    geometry, parts = call.geometry, list[Added]()
    encoding = geometry.encoding
    hooks = encoding.hooks & {"bias", "terms", "values"}
    ahead = first_distance(geometry.q_pos, geometry.k_pos) if hooks else None
    if ahead is not None:
        line = None if geometry.blockwise is None else geometry.blockwise.bias
        seen = _greatest_seen(geometry, ahead)
        if line is not None:
            parts.append(ByLine(line, ahead))
            hooks -= {"bias"}
        elif "bias" in hooks and encoding.affine_bias(geometry.q_pos.slice(0, 1), ahead, ahead):
            parts.append(ByLines(call, ahead, seen))
            hooks -= {"bias"}
        if hooks & {"terms", "values"}:
            last = ahead + call.k.shape[2] - 1
            last = last if seen is None else min(last, seen + 1)
            found = encoding.distance_vectors(ahead - call.q.shape[2] + 1, last)
            if found is not None:
                parts.append(ByVectors(found, call, ahead, seen))
                hooks -= {"terms", "values"}
    if hooks:
        parts.append(ByHooks(call, hooks))
    return parts[0] if len(parts) == 1 else Together(parts)


def _greatest_seen(geometry: Geometry, ahead: int) -> int | None:
    """The greatest distance at which a causal mask lets a query look at a key, where their order follows the places."""
    if geometry.mask is None or not geometry.mask.causal:
        return None
    q_order, k_order = geometry.q_pos.order, geometry.k_pos.order
    if not all(bool((order.diff() == 1).all()) for order in (q_order, k_order)):
        return None
    return ahead - int(k_order[0] - q_order[0])
