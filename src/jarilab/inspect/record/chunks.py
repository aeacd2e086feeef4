"""The map over all tokens of an attention that computes in chunks or blocks of tokens.

The output is linear in the values, whatever cuts and joins them. A weight is the derivative of the output of its query
by the value of its key: the output for values that are 1 for this key and 0 for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from jarilab.core.shapes import Float, Int, Tensor
from jarilab.inspect.record.axes import Arrange, HeadAxes
from jarilab.inspect.record.foreign_call import DeferredWeights, ForeignCall, versions_of
from jarilab.inspect.record.layout import HEADS, Factor
from jarilab.inspect.record.modules import ModuleFrame
from jarilab.inspect.record.value_paths import DetachedPath, Path, Replay

Factors = list[list[Factor]]


class JoinError(Exception):
    """Products over parts of the tokens that are not put together; the message is the reason."""


@dataclass(eq=False)
class ChunkProduct:
    """Weights over a part of the tokens, multiplied with values.

    call, output, axes: the product as an attention of its own. frame: the module that runs. event: its number.
    values: the path of the values. arrange: brings them into `(..., K, W)`.
    """

    call: ForeignCall
    output: Tensor
    axes: HeadAxes
    frame: ModuleFrame
    event: int
    values: Path
    arrange: Arrange


@dataclass(frozen=True, eq=False)
class Positions:
    """Where the elements of a tensor `(B, H, X, W)` are in a model's tensor."""

    index: Int[Tensor, "B H X W"]
    folded: int = 0

    def of(self, tensor: Tensor) -> Tensor:
        """The elements of a tensor like the model's, `(B, H, X, W)`."""
        return tensor.detach().flatten()[self.index]

    def placed(self, values: Tensor, like: Tensor, dtype: torch.dtype) -> Tensor:
        """A tensor like the model's that has these values `(B, H, X, W)` here and 0 elsewhere."""
        flat = torch.zeros(like.numel(), dtype=dtype, device=like.device)
        flat[self.index] = values.to(dtype)
        # Functions such as `as_strided` depend on the strides.
        result = torch.zeros_like(like, dtype=dtype)
        return result.copy_(flat.view(like.shape))


@dataclass(frozen=True, eq=False)
class JoinedCall:
    """The attention of all tokens: its call, its output `(B, H, Q, W)`, and where this is in the model's tensor."""

    call: ForeignCall
    output: Float[Tensor, "B H Q W"]
    positions: Positions

    def restored(self, changed: Float[Tensor, "B H Q W"], end: Tensor) -> Tensor:
        """The model's tensor with a changed output."""
        change = changed.to(self.output.dtype) - self.output
        return end + self.positions.placed(change, end, end.dtype)


def join(
    products: Sequence[ChunkProduct],
    path: Path,
    end: Tensor,
    factors_of: Callable[[Tensor], Factors],
) -> JoinedCall:
    """The attention whose output is `end`, which was computed from these products.

    factors_of: the parts of the axes of a tensor. Raises JoinError.
    """
    bases = [each.values.base for each in products]
    root = bases[0]
    if root is None or any(base is not root for base in bases):
        raise JoinError("its parts multiply the values of several projections")
    values = _value_positions(root, products, factors_of(root))
    output = _output_positions(root, values, path, end)
    first = products[0].call
    if len(products) == 1 and not products[0].values.selects:
        return JoinedCall(first, output.of(end), output)  # its queries alone are a part
    v_BHKW = values.of(root)
    dtype = torch.promote_types(products[0].call.v.dtype, torch.float32)
    # What does not depend on values, as a residual or a convolution, is not part of the attention's output.
    constant = Replay(path, end.dtype).of({id(root): torch.zeros_like(root)})
    q, k = v_BHKW.new_zeros(*output.index.shape[:3], 0), v_BHKW[..., :0]
    detached = DetachedPath(path)
    detached_root, detached_path = detached.of(root), detached.path

    def weights() -> Float[Tensor, "B H Q K"]:
        return _weights(detached_root, values, output, detached_path, dtype)

    call = replace(
        first,
        q=q,
        k=k,
        v=v_BHKW,
        mask=None,
        dropout=max(each.call.dropout for each in products),
        facts=replace(first.facts, folded=values.folded, placement="unknown", note=""),
        versions=versions_of(q, k, v_BHKW, None, None),
        # As large as queries times keys, and read by few.
        explicit_weights=DeferredWeights(weights, detached.tensors),
    )
    return JoinedCall(call, output.of(end) - output.of(constant), output)


def _value_positions(root: Tensor, products: Sequence[ChunkProduct], factors: Factors) -> Positions:
    """Where the values `(B, H, K, W)` are in their root."""
    counted = torch.arange(1, root.numel() + 1, device=root.device).view(root.shape)
    numbers = torch.zeros_like(root, dtype=torch.float64).copy_(counted)
    along_keys, along_width = set[int](), set[int]()
    rows = []
    for product in products:
        replayed = Replay(product.values, torch.float64, even=True).of({id(root): numbers})
        if product.values.products:
            continue  # a product of products: its values are outputs
        numbers_XKW = product.arrange(replayed).long() - 1
        is_value = (numbers_XKW >= 0).all(-1)
        places = torch.unravel_index(numbers_XKW.clamp_min(0), root.shape)
        for axis, place in enumerate(places):
            both = is_value[..., 1:] & is_value[..., :-1]
            if bool(((place.diff(dim=-2) != 0).any(-1) & both).any()):
                along_keys.add(axis)
            if bool(((place.diff(dim=-1) != 0).any(-1) & is_value).any()):
                along_width.add(axis)
        rows.append((places, is_value))
    feature_axis = next(iter(along_width), root.ndim - 1)
    if len(along_width) > 1 or along_width & along_keys or not along_keys or not rows:
        raise JoinError("the axes of its tokens and features are not known")
    groups = torch.cat([places[feature_axis][is_value] for places, is_value in rows]).unique(dim=0)
    if groups.unique().numel() != groups.numel():
        raise JoinError("the features of its heads overlap")
    tokens = sorted(along_keys)
    rest = [axis for axis in range(root.ndim) if axis != feature_axis and axis not in along_keys]
    index = torch.arange(root.numel(), device=root.device).view(root.shape)
    index = index.permute(*rest, *tokens, feature_axis)[..., groups]
    index = index.flatten(len(rest), len(rest) + len(tokens) - 1).transpose(-3, -2)
    heads = len(groups)
    all_factors = [*(factors[axis] for axis in rest), [(heads, HEADS)]]
    axes = HeadAxes.of(index.shape[:-2], all_factors)
    return Positions(axes.with_heads(index), axes.folded)


def _output_positions(root: Tensor, values: Positions, path: Path, end: Tensor) -> Positions:
    """Where the output `(B, H, Q, W)` is in `end`."""
    batch, heads, keys, width = values.index.shape
    replay = Replay(path, torch.float64, even=True)
    names_BHKW = torch.arange(1, batch * heads * width + 1, device=root.device)
    names_BHKW = names_BHKW.view(batch, heads, 1, width).expand(-1, -1, keys, -1)
    constant, sums, named = (
        replay.of({id(root): values.placed(each, root, torch.float64)}).flatten()
        for each in (torch.zeros_like(names_BHKW), torch.ones_like(names_BHKW), names_BHKW)
    )
    # All keys of a head have the same name, so the ratio is the name of the head that an element belongs to.
    ratio = (named - constant) / (sums - constant)
    name = ratio.round()
    if not bool(((ratio - name).abs() < 1e-6).all()):
        raise JoinError("its output has elements of no head or of several")
    counts = name.long().bincount(minlength=batch * heads * width + 1)[1:]
    if len(counts) > batch * heads * width or bool((counts != counts[0]).any()):
        raise JoinError("its output has not the same queries for all heads")
    order = name.sort(stable=True).indices
    return Positions(order.view(batch, heads, width, -1).transpose(-2, -1))


def _weights(
    root: Tensor, values: Positions, output: Positions, path: Path, dtype: torch.dtype
) -> Float[Tensor, "B H Q K"]:
    """The outputs for values that are 1 for one key in each feature, for all keys in turn."""
    batch, heads, keys, width = values.index.shape
    replay = Replay(path, dtype)

    def outputs(probe_KW: Tensor) -> Float[Tensor, "B H Q W"]:
        probe = values.placed(probe_KW.expand(batch, heads, -1, -1), root, dtype)
        return output.of(replay.of({id(root): probe}))

    constant_BHQW = outputs(torch.zeros(keys, width, device=root.device))
    columns = []
    for start in range(0, keys, width):
        probe_KW = torch.zeros(keys, width, device=root.device)
        probe_KW.diagonal(-start).fill_(1.0)
        columns.append((outputs(probe_KW) - constant_BHQW)[..., : keys - start])
    return torch.cat(columns, -1)
