"""Record the attention of a forward that runs as it always does, and compute the maps afterwards.

    with jarilab.record(model) as tape:
        model(x)
    tape.weights("encoder.0")           # (B, H, Q, K)

Nothing in the model knows of this: every attention ends in a parameter-free `Attend` whose call an ordinary forward
hook keeps. The map is the definition applied to the recorded queries and keys, a block of rows at a time, and weights
times values must give back the recorded output: the map shown is the map used. `tape.trust` says by how much they
differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any

import torch
from torch import nn

from jarilab.attention import call as definition
from jarilab.attention.call import AttentionCall
from jarilab.attention.kernels import choose
from jarilab.attention.module import Attend, Attention, split_heads
from jarilab.errors import UserError, unknown
from jarilab.shapes import Float, Tensor

BLOCK = 2**22
"""How many weights are worked out at a time; a map needs some four times as many numbers while it is computed."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """One call that went by, its output, and the kernel that computed it.

    inputs: what a multi-head attention was given, its queries' side and its keys'; None of other attentions.
    """

    call: AttentionCall
    output: Float[Tensor, "B H Q W"]
    kernel: str
    versions: list[tuple[int, ...]]
    owner: nn.Module | None = None
    inputs: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class Trust:
    """How far a map can be believed; all are largest absolute differences, over the whole batch.

    row_sum_error: of a row's sum from 1 (from 0 for a query without keys). masked_weight: the weight on hidden keys,
    exactly 0. rebuild_error: of weights times values from the recorded output, relative to its largest value.
    dropout: the share of weights that was dropped while recording; a map then is what was meant, not what was used.
    """

    row_sum_error: float
    masked_weight: float
    rebuild_error: float
    dropout: float


@dataclass
class Tape:
    """The attention calls of a forward, by site: `encoder.0`, `decoder.1.self`, `decoder.1.cross`.

    A site that ran several times, as in generation, has several calls; `index` picks one. Without an index there is one
    map where the calls are steps through one sequence over the very same keys, as a recurrent decoder takes: a row of
    the map is then a step. A tape holds as long as the parameters stand still, since an encoding's and a score's are
    not copied.
    """

    calls: dict[str, list[Recorded]] = field(default_factory=dict)

    @property
    def sites(self) -> list[str]:
        return list(self.calls)

    def recorded(self, site: str, index: int | None = None) -> Recorded:
        """The call at `site`. Raises UserError for an unknown site, or where one of several must be picked."""
        if site not in self.calls:
            raise unknown("site", site, self.calls)
        calls = self.calls[site]
        if index is None and len(calls) > 1:
            raise UserError(
                f"{site} ran {len(calls)} times while recording; pick one with index=0 ... {len(calls) - 1}"
            )
        try:
            recorded = calls[index or 0]
        except IndexError:
            raise UserError(
                f"{site} ran {len(calls)} times while recording; there is no index {index}"
            ) from None
        for owner, then, now in zip(
            _owners(recorded.call), recorded.versions, _versions(recorded.call), strict=True
        ):
            if then != now:
                raise UserError(
                    f"the parameters of {type(owner).__name__} have changed since {site} was recorded, so the map "
                    "would not be the one that was used; look at the tape before the next step"
                )
        return recorded

    def _rows(self, site: str, index: int | None) -> Iterator[AttentionCall]:
        for step in self._steps(site, index):
            yield from (rows for _, rows in blocks(step.call))

    def _steps(self, site: str, index: int | None) -> list[Recorded]:
        """The calls that make up one map. Raises UserError as `recorded` does."""
        calls = self.calls.get(site, [])
        if (
            index is None
            and len(calls) > 1
            and _follow_each_other([recorded.call for recorded in calls])
        ):
            return [self.recorded(site, step) for step in range(len(calls))]
        return [self.recorded(site, index)]

    @torch.no_grad()
    def weights(self, site: str, index: int | None = None) -> Float[Tensor, "B H Q K"]:
        """The attention weights, by the definition, before dropout."""
        return _joined([definition.weights(rows) for rows in self._rows(site, index)])

    @torch.no_grad()
    def pieces(self, site: str, index: int | None = None) -> Iterator[Float[Tensor, "B H R K"]]:
        """The same, a few rows at a time, for a map that is too large to be held."""
        for rows in self._rows(site, index):
            yield definition.weights(rows)

    @torch.no_grad()
    def scores(self, site: str, index: int | None = None) -> Float[Tensor, "B H Q K"]:
        """Scaled scores with all that the encoding adds, before mask and softmax."""
        return _joined([definition.scores(rows) for rows in self._rows(site, index)])

    @torch.no_grad()
    def before(
        self, site: str, index: int | None = None
    ) -> tuple[Float[Tensor, "B H Q E"], Float[Tensor, "B H K E"]]:
        """Queries and keys as they were before the encoding turned them; those of `recorded(site).call` are after.

        Raises UserError where keys come from a cache or the attention is a recurrent decoder's and they are not there.
        """
        recorded = self.recorded(site, index)
        call, owner = recorded.call, recorded.owner
        if "rotate" not in call.geometry.encoding.hooks:
            return call.q, call.k
        if (
            recorded.inputs is None
            or not isinstance(owner, Attention)
            or recorded.inputs[1].shape[1] != call.k.shape[2]
        ):
            raise UserError(
                f"{site} was recorded after its encoding only; run the model on whole sequences to see both"
            )
        encoding, (x, source) = call.geometry.encoding, recorded.inputs
        q = owner.query(encoding.inject(x, call.geometry.q_pos))
        k = owner.key(encoding.inject(source, call.geometry.k_pos))
        return split_heads(q, owner.site.heads), split_heads(k, owner.site.heads)

    @torch.no_grad()
    def trust(self, site: str, index: int | None = None) -> Trust:
        """Compare the map with what was recorded; of several steps, the worst of each."""
        each = [astuple(trust) for step in self._steps(site, index) for trust in _trust(step)]
        return Trust(*(max(values) for values in zip(*each, strict=True)))

    def show(
        self, tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None, title: str = "tape"
    ) -> Any:
        """The page of `jarilab explore` for this tape; a notebook draws it. See `jarilab.show`."""
        import jarilab  # the page stands above this room, and the front door finds it when asked

        return jarilab.show(self, tokens, title)

    def kernels(self) -> dict[str, str]:
        """The kernel that computed each site's first call."""
        return {site: calls[0].kernel for site, calls in self.calls.items()}


def blocks(call: AttentionCall) -> Iterator[tuple[slice, AttentionCall]]:
    """The same attention a few queries at a time, so that what is computed of it at once stays bounded."""
    queries = call.q.shape[2]
    size = max(1, BLOCK // max(1, call.q.shape[0] * call.q.shape[1] * call.k.shape[2]))
    if size >= queries:
        yield slice(0, queries), call
        return
    for first in range(0, queries, size):
        rows = slice(first, min(first + size, queries))
        yield rows, of_queries(call, rows)


def of_queries(call: AttentionCall, rows: slice) -> AttentionCall:
    """The same attention for some of its queries alone."""
    whole = call.geometry

    def cut(of_queries: Tensor | None) -> Tensor | None:
        return (
            of_queries
            if of_queries is None or of_queries.shape[-2] == 1
            else of_queries[..., rows, :]
        )

    encoding, q_pos = whole.encoding, whole.q_pos.slice(rows.start, rows.stop)
    relation = None if whole.relation is None else encoding.relation(q_pos, whole.k_pos)
    allowed, has_key, bias = cut(whole.allowed), cut(whole.has_key), cut(whole.bias)
    geometry = replace(
        whole,
        q_pos=q_pos,
        relation=relation,
        allowed=allowed,
        has_key=has_key,
        bias=bias,
        additive=None,
    )
    return replace(call, q=call.q[:, :, rows], geometry=geometry)


@contextmanager
def record(model: nn.Module, sites: Collection[str] | None = None) -> Iterator[Tape]:
    """Keep every attention call of `model` that runs inside the `with` block, or those at `sites` alone.

    Raises UserError at its end if none did: a module compiled by `torch.compile` before runs past the hooks, and has to
    be recorded through its original (`compiled._orig_mod`), which shares its parameters.
    """
    model = getattr(model, "_orig_mod", model)
    tape = Tape()
    found = {
        site_name(path): path
        for path, module in model.named_modules()
        if isinstance(module, Attend)
    }
    if not found:
        raise UserError(
            f"{type(model).__name__} has no attention of jari in it, so there is nothing to record"
        )
    for site in found if sites is None else sites:
        if site not in found:
            raise unknown("site", site, found)
    handles: list[Any] = []
    for site, path in found.items():
        if sites is None or site in sites:
            owner = model.get_submodule(path.rpartition(".")[0])
            keeper = _Keeper(tape, site, owner)
            handles.append(model.get_submodule(path).register_forward_hook(keeper.keep))
            if isinstance(owner, Attention):
                handles.append(owner.register_forward_pre_hook(keeper.see))
    try:
        yield tape
    finally:
        for handle in handles:
            handle.remove()
    if not tape.calls:
        raise UserError(
            "nothing was recorded: no attention of this model ran inside the block. A compiled model runs past the "
            "hooks; call its original (compiled._orig_mod), which shares its parameters, while recording"
        )


def site_name(path: str) -> str:
    """`decoder.layers.1.cross_attention.attend` -> `decoder.1.cross`."""
    parts = [part.removesuffix("_attention") for part in path.split(".")]
    return (
        ".".join(part for part in parts if part not in ("layers", "attention", "attend"))
        or "attention"
    )


def _joined(pieces: list[Float[Tensor, "B H _ K"]]) -> Float[Tensor, "B H Q K"]:
    """One below the other. A map that came in one piece is not copied."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)


def _trust(recorded: Recorded) -> Iterator[Trust]:
    """That of each block of rows."""
    largest = max(_largest(recorded.output), 1e-30)
    for rows, call in blocks(recorded.call):
        weights_BHQK = definition.weights(call)
        sums = weights_BHQK.sum(-1, keepdim=True)
        has_key = call.geometry.has_key
        expected = torch.ones_like(sums) if has_key is None else has_key.expand_as(sums).to(sums)
        masked = 0.0
        if call.geometry.allowed is not None:
            masked = _largest(weights_BHQK.masked_fill(call.geometry.allowed, 0.0))
        output = recorded.output[:, :, rows].to(weights_BHQK.dtype)
        difference = _largest(definition.weighted(call, weights_BHQK) - output)
        yield Trust(_largest(sums - expected), masked, difference / largest, call.dropout)


def _follow_each_other(calls: list[AttentionCall]) -> bool:
    """Whether they are steps through one sequence, each later than all before it, over the very same keys."""
    keys = {(call.k.data_ptr(), call.k.shape) for call in calls}
    order = torch.cat([call.geometry.q_pos.order for call in calls])
    return len(keys) == 1 and bool((order.diff() > 0).all())


class _Keeper:
    """Listens to one attention."""

    def __init__(self, tape: Tape, site: str, owner: nn.Module):
        self._tape, self._site, self._owner = tape, site, owner
        self._inputs: tuple[Tensor, Tensor] | None = None

    def see(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        # Queries' side first; what keys are made of second, the same where there is none.
        given = [argument.detach() for argument in arguments[:2] if isinstance(argument, Tensor)]
        self._inputs = given[0], given[-1]

    def keep(self, module: Attend, arguments: tuple[AttentionCall], output: Tensor) -> None:
        call = arguments[0]
        kernel = choose(call) if module.kernel == "auto" else module.kernel
        still = _still(call)
        recorded = Recorded(
            still, output.detach(), kernel, _versions(still), self._owner, self._inputs
        )
        self._tape.calls.setdefault(self._site, []).append(recorded)


def _still(value: Any) -> Any:
    """The call without its graph. Tensors are shared, not copied: nothing writes into them afterwards, except that a
    growing cache is written beyond the keys that a call saw."""
    geometry = replace(
        value.geometry,
        **{f.name: _detached(getattr(value.geometry, f.name)) for f in fields(value.geometry)},
    )
    return replace(
        value, q=value.q.detach(), k=value.k.detach(), v=value.v.detach(), geometry=geometry
    )


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple | list):
        return type(value)(_detached(item) for item in value)
    return value


def _owners(call: AttentionCall) -> list[nn.Module]:
    """Whose parameters the definition reads."""
    return [call.geometry.encoding] if call.score is None else [call.geometry.encoding, call.score]


def _versions(call: AttentionCall) -> list[tuple[int, ...]]:
    return [
        tuple(parameter._version for parameter in owner.parameters()) for owner in _owners(call)
    ]


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0
