"""Record the attention of a forward that runs as it always does, and compute the maps afterwards.

    with jarilab.record(model) as tape:
        model(x)
    tape.weights("encoder.0")           # (B, H, Q, K)

Nothing in the model knows of this: every attention of jari ends in a parameter-free `AttentionKernel` whose call an
ordinary forward hook keeps, and those of other libraries are heard by PyTorch's own functions (`door.py`). The map is
the definition applied to the recorded queries and keys, a block of rows at a time, and weights times values must give
back the recorded output: the map shown is the map used. `tape.trust` says by how much they differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from typing import Any

import torch
from torch import nn

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall, Summands
from jarilab.attention.heads import split_heads
from jarilab.attention.module import Attention
from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.record.calls import blocks
from jarilab.inspect.record.foreign import hear
from jarilab.inspect.record.passages import Inside
from jarilab.inspect.record.recorded import Recorded, Recorder
from jarilab.inspect.record.sites import AttentionSite, Kind, Placed, attentions_of, site_of
from jarilab.inspect.record.trust import Trust, trust_of


@dataclass
class Tape:
    """The attention calls of a forward, by site: `encoder.0`, `decoder.1.self`, `decoder.1.cross`.

    A site that ran several times, as in generation, has several calls; `index` picks one. Without an index there is one
    map where the calls are steps through one sequence over the very same keys, as a recurrent decoder takes: a row of
    the map is then a step. A tape holds as long as the parameters stand still, since an encoding's and a score's are
    not copied. whole: what else went by, where it was recorded with `inside=True`. unheard: of a model of another
    library, the modules that seem to attend in a way that cannot be heard, so that their maps are missing here.
    """

    calls: dict[str, list[Recorded]] = field(default_factory=dict)
    whole: Inside | None = None
    unheard: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        names = ", ".join(self.calls) or "nothing"
        return f"<Tape of {names}>"

    @property
    def sites(self) -> list[str]:
        return list(self.calls)

    def site(self, name: str) -> AttentionSite:
        """Whose tokens look at whose there, as data. Raises UserError for an unknown site."""
        first = self._calls(name)[0]
        return site_of(name, first.placed, first.call, first.inputs)

    def sites_of(self, kind: Kind) -> list[str]:
        """The names of the sites of one kind, `encoder`, `decoder` or `cross`."""
        return [name for name in self.calls if self.site(name).kind == kind]

    def head(self, site: str, head: int) -> Placed:
        """The attention at `site`. Raises UserError where it or the head is not there."""
        first = self._calls(site)[0]
        heads = first.call.q.shape[1]
        if not 0 <= head < heads:
            raise UserError(f"{site} has the heads 0 to {heads - 1}, got {head}")
        return first.placed

    @property
    def inside(self) -> Inside:
        """What else went by. Raises UserError where it was not recorded."""
        if self.whole is None:
            raise UserError(
                "this tape holds attention alone, and what is asked for needs what went into stacks and through "
                "norms; record the forward with jarilab.record(model, inside=True)"
            )
        return self.whole

    def _calls(self, site: str) -> list[Recorded]:
        if site not in self.calls:
            raise unknown("site", site, self.calls)
        return self.calls[site]

    def recorded(self, site: str, index: int | None = None) -> Recorded:
        """The call at `site`. Raises UserError for an unknown site, or where one of several must be picked."""
        calls = self._calls(site)
        ran = f"{site} ran {len(calls)} times while recording"
        if index is None and len(calls) > 1:
            raise UserError(f"{ran}; pick one with index=0 ... {len(calls) - 1}")
        try:
            recorded = calls[index or 0]
        except IndexError:
            raise UserError(f"{ran}; there is no index {index}") from None
        recorded.check_unchanged(site)
        return recorded

    def _rows(self, site: str, index: int | None) -> Iterator[AttentionCall]:
        for step in self._steps(site, index):
            for _, rows in blocks(step.call):
                yield rows

    def _steps(self, site: str, index: int | None) -> list[Recorded]:
        """The calls that make up one map. Raises UserError as `recorded` does."""
        calls = [recorded.call for recorded in self.calls.get(site, [])]
        if index is None and len(calls) > 1 and _follow_each_other(calls):
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
    def summands(self, site: str, head: int, index: int | None = None) -> Summands:
        """What the scores of one head are the sum of, each `(Q, K)`."""
        if not self.proven(site):
            raise UserError(
                f"{site} wrote its scores out itself, so what they are the sum of is not known; its weights are: "
                "tape.weights"
            )
        pieces = [definition.summands(rows) for rows in self._rows(site, index)]
        return Summands.joined([piece.of_head(head) for piece in pieces])

    @torch.no_grad()
    def before(
        self, site: str, index: int | None = None
    ) -> tuple[Float[Tensor, "B H Q E"], Float[Tensor, "B H K E"]]:
        """Queries and keys as they were before the encoding turned them; those of `recorded(site).call` are after.

        Raises UserError where keys come from a cache or the attention is a recurrent decoder's and they are not there.
        """
        recorded = self.recorded(site, index)
        call, owner, inputs = recorded.call, recorded.placed.owner, recorded.inputs
        if recorded.is_heard:
            raise UserError(
                f"{site} is an attention of another library: queries and keys are known as it compared them, and not "
                "what they were before"
            )
        geometry, encoding = call.geometry, call.geometry.encoding
        if "rotate" not in encoding.hooks:
            return call.q, call.k
        if inputs is None or not isinstance(owner, Attention):
            raise _turned_only(site)
        x_BQD, source_BKD = inputs
        if source_BKD.shape[1] != call.k.shape[2]:
            raise _turned_only(site)
        q_BQD = owner.query(encoding.inject(x_BQD, geometry.q_pos))
        k_BKD = owner.key(encoding.inject(source_BKD, geometry.k_pos))
        heads, width = owner.site.heads, owner.site.head_width
        return split_heads(q_BQD, heads, width), split_heads(k_BKD, heads, width)

    @torch.no_grad()
    def trust(self, site: str, index: int | None = None) -> Trust:
        """Compare the map with what was recorded; of several steps, the worst of each."""
        each = []
        for step in self._steps(site, index):
            each += [astuple(trust) for trust in trust_of(step.call, step.output)]
        worst = [max(values) for values in zip(*each, strict=True)]
        return Trust(*worst)

    def show(
        self, tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None, title: str = "tape"
    ) -> Any:
        """The page of `jarilab explore` for this tape; a notebook draws it. See `jarilab.show`."""
        import jarilab  # imported here because the explorer imports this module

        return jarilab.show(self, tokens, title)

    def measures(
        self, tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Every measure of every head, with `value` and `chance`: see `jarilab.measure_heads`."""
        import jarilab  # imported here because measures are computed from tapes

        return jarilab.measure_heads(self, tokens)

    def joined(self) -> Tape:
        """A tape of whole maps of what `generate` wrote token by token: the rows of the prompt, then one of each step.
        Raises UserError where calls do not continue each other, as `inspect.joining` says."""
        from jarilab.inspect.record.joining import joined  # which reads what is heard, too

        return Tape(
            {site: [joined(site, calls)] for site, calls in self.calls.items()},
            unheard=self.unheard,
        )

    def proven(self, site: str) -> bool:
        """Whether the map was computed anew from queries and keys; False where a model of another library wrote its
        softmax out: the scores are its own then, and what is held against the output is the weights."""
        return self._calls(site)[0].proven

    def kernels(self) -> dict[str, str]:
        """The kernel that computed each site's first call."""
        return {site: calls[0].kernel for site, calls in self.calls.items()}


@contextmanager
def record(
    model: nn.Module, sites: Collection[str] | None = None, *, inside: bool = False
) -> Iterator[Tape]:
    """Keep every attention call of `model` that runs inside the `with` block, or those at `sites` alone.

    inside: keep what goes into stacks, norms and attentions as well, and what comes out, for `inspect.walk` and
    `inspect.score_parts`. Raises UserError at its end if nothing was recorded: a module compiled by `torch.compile`
    before runs past the hooks, and has to be recorded through its original (`compiled._orig_mod`), which shares its
    parameters.
    """
    model = getattr(model, "_orig_mod", model)
    sites = [sites] if isinstance(sites, str) else sites  # of letters there are no sites
    found = attentions_of(model)
    if not found:
        if inside:
            raise UserError(
                f"inside=True looks into stacks and norms of jari, and {type(model).__name__} has none; record its "
                "attention alone: jarilab.record(model)"
            )
        tape = Tape()
        with hear(model, tape.calls, tape.unheard, sites):
            yield tape
        return
    chosen = list(found) if sites is None else list(sites)
    for site in chosen:
        if site not in found:
            raise unknown("site", site, found)
    tape = Tape(whole=Inside(model) if inside else None)
    handles: list[Any] = [] if tape.whole is None else tape.whole.listen()
    for site in chosen:
        handles += Recorder(tape.calls, site, found[site]).listen()
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


@torch.no_grad()
def look_inside(model: nn.Module, arguments: Sequence[Any]) -> Tape:
    """The tape of one forward over `arguments`, with all that goes by inside."""
    with record(model, inside=True) as tape:
        model(*arguments)
    return tape


def _turned_only(site: str) -> UserError:
    return UserError(
        f"{site} was recorded after its encoding only; run the model on whole sequences to see both"
    )


def _joined(pieces: list[Float[Tensor, "B H _ K"]]) -> Float[Tensor, "B H Q K"]:
    """One below the other. A map that came in one piece is not copied."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)


def _follow_each_other(calls: list[AttentionCall]) -> bool:
    """Whether they are steps through one sequence, each later than all before it, over the very same keys."""
    keys = {(call.k.data_ptr(), call.k.shape) for call in calls}
    order = torch.cat([call.geometry.q_pos.order for call in calls])
    later = order.diff() > 0
    return len(keys) == 1 and bool(later.all())
