"""Path patching: how much of a head's effect goes into one later head, through its queries, keys or values.

    patching = PathPatching(model, batch, logit_over_mean(answers))
    rows = patching.rows(head)              # to each later head and input, the largest first

Two runs for each edge (Wang et al. 2022, "Interpretability in the Wild"). The first replaces the sender and keeps all
later heads and MLPs at their clean outputs, so that the receiver reads the change on the direct path alone. The second
replaces the receiver's output by the one for the changed queries, keys or values, and everything after it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.cause.answers import checked
from jarilab.inspect.cause.composition import INPUTS, Input
from jarilab.inspect.cause.copies import Copies, Group
from jarilab.inspect.cause.parts import SITE, ModelParts, Part, is_within
from jarilab.inspect.intervene.interventions import check_evaluating
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.head import Head
from jarilab.inspect.study.losses import Loss
from jarilab.inspect.study.measure_table import interval_columns
from jarilab.inspect.study.tables import rows_of


@dataclass(frozen=True)
class Edge:
    """From the output of a head to an input of a later head."""

    sender: Part
    receiver: Part
    input: Input


class PathPatching:
    """Path patching of one batch. score: a metric of outputs and batch, one number a row.

    donors: a batch of as many rows and tokens, whose heads replace the senders; they write 0 by default. report: of
    `Copies`, over edges.
    Raises UserError for a model in training mode, a score of another shape, and a model whose parts cannot be kept.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        score: Loss,
        donors: Batch | None = None,
        *,
        seed: int = 0,
        report: Callable[[int, int], None] | None = None,
    ):
        check_evaluating(model)
        self.parts = ModelParts(model, batch)
        self._copies, self._score, self._seed = Copies(self.parts, report), score, seed
        with self._calls() as self._clean_calls:
            self._clean = self._copies.run_clean(batch)
        self._base_B = checked(score(self._clean.outputs, batch), "path patching", batch)
        self._copies.check(self._clean, score)
        if not self._copies.can_freeze:
            raise UserError(
                "expected a model whose heads and MLPs can be kept at their clean outputs, got "
                f"{type(model).__name__}, so direct paths cannot be told from others; use total effects"
            )
        of_donors = None if donors is None else self._copies.run_clean(donors)
        self._replacement = self._copies.replacement(of_donors)

    @contextmanager
    def _calls(self) -> Iterator[dict[str, AttentionCall]]:
        calls: dict[str, AttentionCall] = {}

        def keep(site: str, call: AttentionCall, output: Tensor) -> Tensor:
            calls[site] = call
            return output

        with torch.no_grad(), self.parts.hooked(keep):
            yield calls

    def rows(self, head: Head, receivers: Sequence[Head] | None = None) -> list[dict[str, Any]]:
        """A row for each later head and input that can read a head. receivers: of all heads, by default all.

        effect: how much the score falls without this path, with its 95 % interval over the examples.
        """
        edges = self.edges(head, receivers)
        if not edges:
            return []
        columns = interval_columns("effect", self.effects(edges).cpu().numpy(), self._seed)
        rows = [
            {"source": edge.sender.short, "target": edge.receiver.short, "input": edge.input} | row
            for edge, row in zip(edges, rows_of(columns), strict=True)
        ]
        return sorted(rows, key=lambda row: -abs(row["effect"] or 0.0))

    def edges(self, head: Head, receivers: Sequence[Head] | None = None) -> list[Edge]:
        """The edges of `rows`."""
        sender = self.parts.of_head(head)
        place = self._order(sender)
        edges = []
        for receiver in map(self.parts.of_head, receivers or self.parts.heads):
            inputs = INPUTS if self._has_queries(receiver.site) else ("v",)
            if self._order(receiver) > place:
                edges += [Edge(sender, receiver, each) for each in inputs]
        return edges

    @torch.no_grad()
    def effects(self, edges: Sequence[Edge]) -> Float[Tensor, "B E"]:
        """How much the score of each row falls if the receiver does not read the sender by this input.

        Raises UserError for an unknown input, a receiver that does not come after the sender, and queries or keys of a
        model that computes its scores itself.
        """
        for edge in edges:
            if edge.input not in INPUTS:
                raise unknown("input", edge.input, INPUTS)
            if self._order(edge.receiver) <= self._order(edge.sender):
                raise UserError(
                    f"expected a receiver that runs after {edge.sender.short}, got {edge.receiver.short}; choose a "
                    "head of a later attention"
                )
            if edge.input != "v" and not self._has_queries(edge.receiver.site):
                raise UserError(
                    f"{edge.receiver.short}: expected queries and keys to patch, got an attention that computes its "
                    "scores itself; patch its values, input v"
                )
        outputs = self._receivers_without(edges)
        receivers = (replace(edge.receiver, short=str(at)) for at, edge in enumerate(edges))
        groups: list[Group] = [(receiver,) for receiver in receivers]
        scores_EB = self._copies.scores(
            self._clean,
            groups,
            lambda part, call, z: outputs[int(part.short)],
            self._score,
            name="path patching",
        )
        return (self._base_B - scores_EB.to(self._base_B)).T

    def _order(self, part: Part) -> int:
        return self._clean.events.index(SITE + part.site)

    def _has_queries(self, site: str) -> bool:
        call = self._clean_calls[site]
        return call.q.shape[3] > 0 and call.explicit_weights is None

    def _receivers_without(self, edges: Sequence[Edge]) -> list[Float[Tensor, "B Q W"]]:
        """The output of each edge's receiver, whose input lacks the sender."""
        senders = list(dict.fromkeys(edge.sender for edge in edges))
        groups: list[Group] = [(sender,) for sender in senders]
        outputs: dict[int, Tensor] = {}
        live = self._projections({edge.receiver.site for edge in edges})
        for numbers in self._copies.forwards(self._clean, groups, frozen=True):
            chosen = [groups[number] for number in numbers]
            with self._calls() as calls:
                self._copies.run(self._clean, chosen, self._replacement, frozen=True, live=live)
            for number, edge in enumerate(edges):
                if (edge.sender,) in chosen:
                    copy = chosen.index((edge.sender,))
                    outputs[number] = self._output(edge, calls[edge.receiver.site], copy)
        return [outputs[number] for number in range(len(edges))]

    def _projections(self, sites: set[str]) -> set[str]:
        """The linear parts inside these attentions, apart from output projections."""
        parts, events = self.parts, self._clean.events
        paths = {parts.sites[site] for site in sites}
        inside = {each for each in parts.stacked for path in paths if is_within(each, path)}
        # An `nn.MultiheadAttention` is one linear part: without it, the site would not run.
        return inside - (parts.output_projections(events, parts.sites) - paths)

    def _output(self, edge: Edge, changed: AttentionCall, copy: int) -> Float[Tensor, "B Q W"]:
        """The output of the receiver with one input of a copy's call, the others clean."""
        site, head = edge.receiver.site, edge.receiver.index
        clean, size = self._clean_calls[site], len(self._clean.batch)
        rows = slice(copy * size, (copy + 1) * size)
        new: dict[str, Any] = {edge.input: getattr(changed, edge.input)[rows]}
        if edge.input == "k":
            new["states"] = tuple(each[rows] for each in changed.states)
        # The difference of two outputs of the definition: without a change the kernel's own output stays.
        both = [definition.output(call)[:, head] for call in (replace(clean, **new), clean)]
        z_BQW = self._copies.values(self._clean, edge.receiver)[0]
        return z_BQW + (both[0] - both[1]).to(z_BQW.dtype)
