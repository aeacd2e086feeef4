"""Record the attention calls of a forward, and compute their maps afterwards.

    with jarilab.record(model) as tape:
        model(x)
    tape.weights("encoder.0")           # (B, H, Q, K)

The model runs its own kernels. A forward hook records attention layers of jarilab; `function_mode.py` records those of
other libraries. The map is the definition applied to the recorded queries and keys, one block of rows at a time.
`tape.trust` compares weights times values with the recorded output.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall, Summands
from jarilab.attention.heads import split_heads
from jarilab.attention.module import Attention
from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.record.activations import Activations
from jarilab.inspect.record.calls import blocks, check_has_sites, check_has_values
from jarilab.inspect.record.foreign_call import ForeignCall
from jarilab.inspect.record.function_mode import AttentionMode
from jarilab.inspect.record.generation_steps import merge_steps
from jarilab.inspect.record.modules import ModuleFrame, SiteNames, layers_without_attention
from jarilab.inspect.record.recorded_call import RecordedCall, record_layer
from jarilab.inspect.record.sites import (
    AttentionSite,
    Kind,
    Placed,
    attends_besides,
    attentions_of,
    foreign_attention,
    foreign_site,
    is_of_jarilab,
    site_of,
)
from jarilab.inspect.record.sources import NOTHING, Sources
from jarilab.inspect.record.trust import Trust, trust_of
from jarilab.inspect.record.unrecordable import (
    check_is_recordable,
    scripted_attentions,
    unreported_in,
)

Words = Mapping[str, Sequence[int | None]] | Sequence[int | None] | bool | None
"""The words of tokens: see `jarilab.show`."""


@contextmanager
def _without_recording() -> Iterator[None]:
    """Compute without gradients, and without being recorded, as in a hook of a model that is recorded."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        yield


@dataclass
class Tape:
    """The recorded attention calls of a forward, by site: `encoder.0`, `decoder.1.self`, `decoder.1.cross`.

    Valid until a parameter of an encoding or a score changes.
    A site that ran several times, as in generation, has several calls; `index` selects one. Without an index, calls
    that are steps through one sequence over the same keys, as of a recurrent decoder, make one map with a row a step.
    calls: the recorded calls of each site. activations: the inputs of stacks and norms, recorded with `inside=True`.
    missing: modules that seem to attend in a way that cannot be recorded, each with the reason. partial: sites of
    which some calls could not be recorded, each with the reason. not_attending: layers without attention beside layers
    that have one, such as Mamba's. unmerged: sites that `merged_steps` left out, each with the reason.
    """

    calls: dict[str, list[RecordedCall]] = field(default_factory=dict)
    activations: Activations | None = None
    missing: dict[str, str] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)
    not_attending: list[str] = field(default_factory=list)
    unmerged: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        names = ", ".join(self.calls) or "nothing"
        return f"<Tape of {names}>"

    @property
    def sites(self) -> list[str]:
        """The names of all recorded attention layers."""
        return list(self.calls)

    def site(self, name: str) -> AttentionSite:
        """The attention layer: its kind, depth, and sequences. Raises UserError for an unknown site."""
        first = self._calls(name)[0]
        if isinstance(first.source, ForeignCall):
            sources = (each.source for each in self._calls(name))
            foreign = [each for each in sources if isinstance(each, ForeignCall)]
            # One key alone does not show whether later ones are hidden, as in the first step of a generation.
            source = next((each for each in foreign if each.v.shape[2] > 1), first.source)
            return foreign_site(name, first.placed, source, self._reading)
        return site_of(name, first.placed, first.call, first.inputs)

    @property
    def _reading(self) -> set[Sources]:
        """The sources of queries that read another sequence, and that no queries of another sequence read."""
        calls = [each.source for calls in self.calls.values() for each in calls]
        facts = [call.facts for call in calls if isinstance(call, ForeignCall) and call.is_cross]
        return {each.rows for each in facts} - {each.columns or NOTHING for each in facts}

    def sites_of(self, kind: Kind) -> list[str]:
        """The names of the sites of one kind, `encoder`, `decoder` or `cross`."""
        return [name for name in self.calls if self.site(name).kind == kind]

    def head(self, site: str, head: int) -> Placed:
        """The attention layer at `site`. Raises UserError for an unknown site or head."""
        first = self._calls(site)[0]
        heads = first.call.q.shape[1]
        if not 0 <= head < heads:
            raise UserError(f"{site} has the heads 0 to {heads - 1}, got {head}")
        return first.placed

    @property
    def inside(self) -> Activations:
        """The activations. Raises UserError if they were not recorded."""
        if self.activations is None:
            raise UserError(
                "this tape holds attention calls only, and the inputs of stacks and norms are needed; record the "
                "forward with jarilab.record(model, inside=True)"
            )
        return self.activations

    def _calls(self, site: str) -> list[RecordedCall]:
        if site not in self.calls:
            raise unknown("site", site, self.calls)
        return self.calls[site]

    def recorded(self, site: str, index: int | None = None) -> RecordedCall:
        """The call at `site`. Raises UserError for an unknown site, or if `index` is needed to select a call."""
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

    def _blocks(self, site: str, index: int | None) -> Iterator[AttentionCall]:
        for step in self._steps(site, index):
            for _, block in blocks(step.call):
                yield block

    def _steps(self, site: str, index: int | None) -> list[RecordedCall]:
        """The calls that make up one map. Raises UserError as `recorded` does."""
        calls = [recorded.call for recorded in self.calls.get(site, [])]
        if index is None and len(calls) > 1 and _are_steps(calls):
            return [self.recorded(site, step) for step in range(len(calls))]
        return [self.recorded(site, index)]

    @_without_recording()
    def weights(self, site: str, index: int | None = None) -> Float[Tensor, "B H Q K"]:
        """The attention weights that the forward used, before dropout, computed by the definition.

        Edits of `operate` are included if recording began inside its block.
        """
        return _concatenate(list(self.weights_in_chunks(site, index)))

    @torch.no_grad()
    def weights_in_chunks(
        self, site: str, index: int | None = None
    ) -> Iterator[Float[Tensor, "B H R K"]]:
        """The weights a few rows at a time, for maps that do not fit in memory."""
        for step in self._steps(site, index):
            for _, _, used in step.blocks():
                yield used.weights

    @_without_recording()
    def scores(self, site: str, index: int | None = None) -> Float[Tensor, "B H Q K"]:
        """Scaled scores with all that the encoding adds, before edits, mask and softmax."""
        return _concatenate([definition.scores(block) for block in self._blocks(site, index)])

    @_without_recording()
    def summands(self, site: str, head: int, index: int | None = None) -> Summands:
        """The summands of the scores of one head, each `(Q, K)`."""
        if not self.verified(site):
            raise UserError(
                f"{site} computed its scores itself, so their summands are not known; its weights are: tape.weights"
            )
        chunks = [definition.summands(block) for block in self._blocks(site, index)]
        return Summands.joined([chunk.of_head(head) for chunk in chunks])

    @_without_recording()
    def before_rotation(
        self, site: str, index: int | None = None
    ) -> tuple[Float[Tensor, "B H Q E"], Float[Tensor, "B H K E"]]:
        """Queries and keys before the encoding rotates them; `recorded(site).call` has them after.

        Raises UserError where they are not known: for keys from a cache, recurrent decoders and other libraries.
        """
        recorded = self.recorded(site, index)
        call, owner, inputs = recorded.call, recorded.placed.owner, recorded.inputs
        if recorded.is_foreign:
            raise UserError(
                f"{site} is an attention of another library, of which queries and keys are known after their rotation "
                "only; use tape.recorded(site).call"
            )
        geometry, encoding = call.geometry, call.geometry.encoding
        if "rotate" not in encoding.hooks:
            return call.q, call.k
        is_known = inputs is not None and inputs[1].shape[1] == call.k.shape[2]
        if inputs is None or not is_known or not isinstance(owner, Attention):
            raise UserError(
                f"{site} was recorded after its rotation only; run the model on whole sequences to get both"
            )
        x_BQD, source_BKD = inputs
        q_BQD = owner.query(encoding.inject(x_BQD, geometry.q_pos))
        k_BKD = owner.key(encoding.inject(source_BKD, geometry.k_pos))
        heads, width = owner.site.n_heads, owner.site.d_head
        return split_heads(q_BQD, heads, width), split_heads(k_BKD, heads, width)

    @_without_recording()
    def trust(self, site: str, index: int | None = None) -> Trust:
        """Compare the map with the recorded output; over several steps, the largest error of each kind.

        Raises UserError if one of the two has NaN or infinity.
        """
        steps = self._steps(site, index)
        return Trust.largest(trust for step in steps for trust in trust_of(site, step))

    def show(
        self,
        tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
        title: str = "tape",
        *,
        words: Words = None,
    ) -> Any:
        """The page of `jarilab explore` for this tape, drawn by notebooks. See `jarilab.show`."""
        import jarilab  # imported here because the explorer imports this module

        return jarilab.show(self, tokens, title, words=words)

    def _repr_html_(self) -> str | None:
        """One map of about 300 pixels with a control for the head, for notebooks: see `jarilab.preview`."""
        import jarilab  # imported here because the explorer imports this module

        try:
            return jarilab.preview(self)._repr_html_() if self.calls else None
        except UserError:
            return None  # a notebook then prints the names of the sites

    def figure(
        self,
        site: str | None = None,
        head: int | None = None,
        kind: str | None = None,
        **options: Any,
    ) -> Any:
        """A figure for a paper, to save as SVG, PDF or PNG: see `jarilab.draw_attention`."""
        import jarilab  # imported here because figures are drawn from tapes

        return jarilab.draw_attention(self, site, head, kind, **options)

    def measures(
        self,
        tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
        measures: Sequence[Any] | None = None,
        *,
        words: Words = None,
    ) -> dict[str, Any]:
        """Measures of every head, with `value` and `chance`: see `jarilab.measure_heads`."""
        import jarilab  # imported here because measures are computed from tapes

        return jarilab.measure_heads(self, tokens, measures, words=words)

    def merged_steps(self, beam_indices: Tensor | None = None) -> Tape:
        """A tape with one whole map a site, of the calls that `generate` made token by token.

        The first rows are the prompt's, then each token has one. Each input of the batch is a sequence that was
        generated; an encoder's call is repeated for each. A site that cannot be merged is left out, with a warning and
        its reason in `unmerged`. Tokens that speculative decoding rejected have no rows, except for those of the last
        call, which no later call shows.
        beam_indices: after a beam search, `beam_indices` of what transformers' `generate` returned. A sequence that
        ended earlier than others has rows of zeros then.
        Raises UserError if no site can be merged, for reordered beams without `beam_indices`, and if these do not fit.
        """
        calls, reasons = merge_steps(self.calls, beam_indices)
        for reason in reasons.values():
            warnings.warn(f"left out of the merged tape: {reason}", stacklevel=2)
        return replace(self, calls=calls, activations=None, unmerged=reasons)

    def row(self, index: int) -> Tape:
        """A tape of one input of the batch.

        Raises UserError for an index outside the batch, and if sites have batches of different sizes.
        """
        check_has_sites(self.calls)
        sizes = {len(call.output): site for site, calls in self.calls.items() for call in calls}
        if len(sizes) > 1:
            listed = ", ".join(f"{size} at {site}" for size, site in sizes.items())
            raise UserError(
                f"expected the same number of inputs at all sites, got {listed}; merge the steps of a generation "
                "first: tape.merged_steps().row(index)"
            )
        (batch,) = sizes
        if not isinstance(index, int) or not 0 <= index < batch:
            raise UserError(f"expected the number of one of {batch} inputs, from 0, got {index!r}")
        calls: dict[str, list[RecordedCall]] = {}
        for site, calls_of_site in self.calls.items():
            for recorded in calls_of_site:
                recorded.check_unchanged(site)
            rows = slice(index, index + 1)
            calls[site] = [recorded.select_rows(rows) for recorded in calls_of_site]
        return replace(self, calls=calls, activations=None)

    def verified(self, site: str) -> bool:
        """Whether scores are recomputed from queries and keys.

        False if a model of another library computed its softmax itself: its own scores are used then. The mark of a
        page, `trust(site).holds`, is another test.
        """
        return self._calls(site)[0].verified

    def kernels(self) -> dict[str, str]:
        """The kernel that computed each site's first call."""
        return {site: calls[0].kernel for site, calls in self.calls.items()}


@contextmanager
def record(
    model: nn.Module, sites: Collection[str] | None = None, *, inside: bool = False
) -> Iterator[Tape]:
    """Record every attention call of `model` inside the `with` block, or those at `sites`.

    inside: also record the inputs and outputs of stacks, norms and attentions, for `inspect.walk` and
    `inspect.score_parts`.
    Raises UserError at the end of the block if nothing was recorded. Hooks do not run in a compiled module: call its
    original (`compiled._orig_mod`), which shares its parameters.
    """
    model = getattr(model, "_orig_mod", model)
    check_is_recordable(model)
    sites = [sites] if isinstance(sites, str) else sites
    attentions = attentions_of(model)
    if inside and not attentions:
        raise UserError(
            f"inside=True records stacks and norms of jari, and {type(model).__name__} has none; record its "
            "attention only: jarilab.record(model)"
        )
    tape = Tape(activations=Activations(model) if inside else None)
    others = nullcontext()
    if not attentions or attends_besides(model):
        others = _record_foreign(model, tape, sites, attentions)
    else:
        for site in sites or ():
            if site not in attentions:
                raise unknown("site", site, attentions)
    handles: list[Any] = [] if tape.activations is None else tape.activations.attach()
    for site, placed in attentions.items():
        if sites is None or site in sites:
            handles += record_layer(tape.calls, site, placed)
    try:
        with others:
            yield tape
    finally:
        for handle in handles:
            handle.remove()
    if attentions and not tape.calls:
        raise UserError(
            "nothing was recorded: no attention of this model ran inside the block. Hooks do not run in a compiled "
            "model; call its original (compiled._orig_mod), which shares its parameters, while recording"
        )


@contextmanager
def _record_foreign(
    model: nn.Module, tape: Tape, sites: Collection[str] | None, hooked: Mapping[str, Placed]
) -> Iterator[None]:
    """`record` for the attentions of other libraries. hooked: those of jarilab beside them, by site."""
    names, called = SiteNames(model, hooked), set()

    def handler(frame: ModuleFrame, call: ForeignCall, output: Tensor) -> Tensor:
        if is_of_jarilab(model, frame.path):
            return output
        check_has_values(output)
        site = names.name_of(frame, call)
        called.add(site)
        if sites is None or site in sites:
            placed = foreign_attention(model, frame.path)
            recorded = RecordedCall.of_foreign(call, output, placed)
            tape.calls.setdefault(site, []).append(recorded)
        return output

    with AttentionMode(model, handler) as mode:
        yield
    missing = mode.events.not_recorded(is_partial=False)
    missing = {path: reason for path, reason in missing.items() if not is_of_jarilab(model, path)}
    tape.missing |= missing | scripted_attentions(model)
    for path, reason in mode.events.not_recorded(is_partial=True).items():
        tape.partial |= dict.fromkeys(names.names_at(path), reason)
    attending = [*names.paths, *tape.missing, *(each.path for each in hooked.values())]
    tape.not_attending += layers_without_attention(model, attending)
    if not called and not hooked:
        raise _nothing_recorded(model, missing)
    for places in (tape.missing, tape.partial):
        if places:
            text = _incomplete_text(places, is_partial=places is tape.partial)
            warnings.warn(text, stacklevel=5)  # at the caller's `with`
    for site in sites or ():
        if site not in called and site not in hooked:
            raise unknown("site", site, sorted({*called, *hooked}))


def _nothing_recorded(model: nn.Module, missing: Mapping[str, str]) -> UserError:
    attempts = "; ".join(f"{path or 'the model'}: {reason}" for path, reason in _first(missing))
    looked = f" What looked like attention: {attempts}." if attempts else ""
    unreported = ", ".join(unreported_in(model)[:3])
    names = f" PyTorch does not report what these compute: {unreported}." if unreported else ""
    return UserError(
        f"nothing was recorded: {type(model).__name__} made no attention call that can be recorded inside the block."
        f"{looked}{names} jarilab records scaled_dot_product_attention, flex_attention, and weights over keys that are "
        "multiplied with values by a matrix product, or one by one and summed, called by modules of the model. It does "
        "not record compiled models and graphs of torch.export (record the original, such as compiled._orig_mod), or "
        "extensions such as flash-attn (choose another attention of the model). Recurrent, state-space and "
        "linear-attention layers have no weights over keys, so they have no map"
    )


def _incomplete_text(places: Mapping[str, str], *, is_partial: bool) -> str:
    reasons = "; ".join(f"{place}: {reason}" for place, reason in _first(places))
    more = f"; and {len(places) - 3} more" if len(places) > 3 else ""
    if is_partial:
        return f"some maps of these sites are not on the tape (tape.partial): {reasons}{more}"
    return (
        "modules seem to attend in a way that cannot be recorded, so their maps are not on the tape (tape.missing): "
        f"{reasons}{more}"
    )


def _first(places: Mapping[str, str]) -> list[tuple[str, str]]:
    return list(places.items())[:3]


@torch.no_grad()
def look_inside(model: nn.Module, arguments: Sequence[Any]) -> Tape:
    """The tape of one forward with its activations."""
    with record(model, inside=True) as tape:
        model(*arguments)
    return tape


def _concatenate(chunks: list[Float[Tensor, "B H _ K"]]) -> Float[Tensor, "B H Q K"]:
    """Concatenate rows, without a copy if there is one chunk."""
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks, 2)


def _are_steps(calls: list[AttentionCall]) -> bool:
    """Whether calls are steps through one sequence, each later than those before, over the same keys."""
    keys = {(call.k.data_ptr(), call.k.shape) for call in calls}
    order = torch.cat([call.geometry.q_pos.order for call in calls])
    return len(keys) == 1 and bool((order.diff() > 0).all())
