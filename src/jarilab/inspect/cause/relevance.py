"""How relevant each input token is for one number that a model answers.

    relevance = InputRelevance(model, batch, answer, special=tokenizer.all_special_ids)
    relevance.of("attention_gradient").rows(0)

The tokens are those of the sequences that attention reads: of text, or patches of an image. `METHODS` has the formula
of each method, where A are the weights of a layer and y is the answer. `removal.py` judges the methods on a model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cosine_similarity, one_hot

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.cause.answers import AnswerMetric, checked, valid_of
from jarilab.inspect.cause.copies import CleanRun, Copies
from jarilab.inspect.cause.integrated_gradients import integrate
from jarilab.inspect.cause.parts import ModelParts, Part, is_within
from jarilab.inspect.intervene.interventions import change_outputs, check_evaluating
from jarilab.inspect.record.calls import allowed_links
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.record.sites import AttentionSite
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.losses import logits_of
from jarilab.inspect.study.model_batches import sequences_of
from jarilab.inspect.study.tables import rows_of

METHODS = {
    "attention_gradient": "R = I; in each layer R += mean over heads of max(0, A * dy/dA) times R; R - I "
    "(Chefer et al. 2021)",
    "gradient_rollout": "product over layers of (I + mean over heads of max(0, A * dy/dA)) / row sums",
    "rollout": "product over layers of (I + mean over heads of A) / 2 (Abnar and Zuidema 2020)",
    "attention": "mean over heads of A in the last layer",
    "value_weighted": "sum over heads of the norms |A_ij v_j W_O| in the last layer (Kobayashi et al. 2020)",
    "value_zeroing": "cosine distance of token i after the last layer to itself with v_j = 0 there, not normalized "
    "(Mohebbi et al. 2023)",
    "integrated_gradients": "(e - e0) times the mean of dy/de from e0 to e, summed over the model dimension; e are "
    "token embeddings, e0 a baseline (Sundararajan et al. 2017)",
}
"""The formula of each method. Of the resulting matrix, the rows that the answer reads are averaged."""

ROUNDING = 1e-10
"""The largest cosine distance of vectors that differ by rounding in float32."""

Answer = Callable[[Any, Batch], Tensor]
"""Takes outputs and their batch; returns the number to explain of each row, `(B,)`, such as the logit of a class."""
Sides = tuple[str, str]
"""The sequences of queries and of keys: `source` or `target`."""


@dataclass(frozen=True, eq=False)
class Relevance:
    """The relevance of each token by sequence, `(B, L)`; 0 on padding.

    gap: for integrated gradients, the sum of a row less y(e) - y(e0), `(B,)`, which is 0 for infinitely many steps.
    """

    method: str
    scores: dict[str, Float[Tensor, "B L"]]
    batch: Batch
    valid: Mapping[str, Bool[Tensor, "B L"]]
    gap: Float[Tensor, " B"] | None = None

    def rows(self, row: int) -> list[dict[str, Any]]:
        """The tokens of one row of the batch, as plain data. Raises UserError for a row that is not there."""
        rows, count = [], len(self.batch)
        if not isinstance(row, int) or not -count <= row < count:
            raise UserError(f"expected a row from {-count} to {count - 1}, got {row!r}; choose one")
        for side, scores_BL in self.scores.items():
            values = scores_BL[row][self.valid[side][row]].tolist()
            places = [*range(len(values))]
            names = self.batch.tokens[row].get(side, [])
            names = names if len(names) == len(values) else [*map(str, places)]
            columns = {"position": places, "token": names, "relevance": values}
            rows += [{"sequence": side} | each for each in rows_of(columns)]
        return rows


@dataclass(frozen=True, eq=False)
class _Layer:
    """One attention of a forward. gradient: of the answer with respect to its output z, before W_O."""

    site: AttentionSite
    call: AttentionCall
    weights: Float[Tensor, "B H Q K"]
    gradient: Float[Tensor, "B H Q W"]

    @property
    def sides(self) -> Sides:
        return self.site.queries, self.site.keys

    def positive_evidence(self) -> Float[Tensor, "B Q K"]:
        """The mean over heads of max(0, A * dy/dA)."""
        with torch.enable_grad():
            weights = self.weights.detach().requires_grad_()
            # What an encoding adds to values depends on the weights, too.
            output = definition.weighted(self.call, weights)
            (gradient,) = torch.autograd.grad(output, weights, self.gradient.to(output.dtype))
        return (self.weights * gradient).clamp_min(0).mean(1)

    def mean_weights(self) -> Float[Tensor, "B Q K"]:
        return self.weights.mean(1)

    def written_by(self, key: int) -> Float[Tensor, "B H Q W"]:
        """What a key adds to z, with what an encoding adds to its value."""
        weights = torch.zeros_like(self.weights)
        weights[..., key] = self.weights[..., key]
        return definition.weighted(self.call, weights).to(self.gradient.dtype)


class InputRelevance:
    """The relevance of input tokens for an answer, by any of `METHODS`.

    answer: see `Answer`. special: ids of tokens that integrated gradients leaves as they are, such as those of a
    tokenizer's `all_special_ids`.
    side: the sequence whose tokens the answer reads. reads: the share of each token in what it reads, `(B, L)`: of a
    class token or the position that predicts a token 1, of pooled tokens equal shares. They are the tokens at which
    the answer has a gradient in the last layer.
    Raises UserError for a model in training mode, an answer that is not a finite number a row or has no gradient, and
    attention that does not relate the tokens of a whole source and a whole target.
    """

    def __init__(
        self, model: nn.Module, batch: Batch, answer: Answer, *, special: Collection[int] = ()
    ):
        check_evaluating(model)
        self.model, self.batch, self.answer, self._special = model, batch, answer, special
        with torch.no_grad(), record(model) as tape:
            outputs = batch.forward(model)
        self._layers = self._run(tape)
        self.side = self._layers[-1].site.queries
        self.sites = {layer.site.name: layer.site for layer in self._layers}
        self.lengths = self._lengths()
        shapes = {side: (len(batch), length) for side, length in self.lengths.items()}
        self.ids = {
            side: ids for side, ids in ids_of(batch).items() if ids.shape == shapes.get(side)
        }
        device = self._layers[0].weights.device
        self.valid = {
            side: valid_of(batch, side, length).to(device) for side, length in self.lengths.items()
        }
        self.reads: Float[Tensor, "B L"] = self._shares_read(outputs)

    def _run(self, tape: Tape) -> list[_Layer]:
        """The attentions in the order in which they ran, with the gradients of the answer."""
        ran: list[tuple[str, Tensor]] = []

        def add_zeros(site: str, call: AttentionCall, output: Tensor) -> Tensor:
            ran.append((site, torch.zeros_like(output, requires_grad=True)))
            return output + ran[-1][1]

        with torch.enable_grad(), change_outputs(self.model, add_zeros):
            values = self.answer(self.batch.forward(self.model), self.batch)
        self.values: Float[Tensor, " B"] = checked(values, "the answer", self.batch)
        if not values.requires_grad:
            raise UserError(
                "expected an answer with a gradient, got one without; compute it from the outputs of the model by "
                "functions of PyTorch, without detach or no_grad"
            )
        zeros = [each for _, each in ran]
        with torch.enable_grad():
            total = values.sum()
        gradients = torch.autograd.grad(total, zeros, allow_unused=True, materialize_grads=True)
        layers, counts = [], dict.fromkeys(tape.sites, 0)
        for (name, _), gradient in zip(ran, gradients, strict=True):
            call = tape.recorded(name, counts[name]).call
            weights = tape.weights(name, counts[name])
            layers.append(_Layer(tape.site(name), call, weights, gradient))
            counts[name] += 1
        return layers

    def _lengths(self) -> dict[str, int]:
        lengths: dict[str, int] = {}
        for layer in self._layers:
            rows, _, queries, keys = layer.weights.shape
            site = layer.site
            if site.folded or rows != len(self.batch) or site.kind == "unknown":
                raise UserError(
                    f"{site.name}: expected queries and keys of {len(self.batch)} rows, got {rows} of kind "
                    f"{site.kind}; relevance needs attention between all tokens of a row, not within windows"
                )
            for side, length in ((site.queries, queries), (site.keys, keys)):
                if lengths.setdefault(side, length) != length:
                    raise UserError(
                        f"{site.name}: expected the {lengths[side]} tokens of the {side}, got {length}; relevance "
                        "needs one sequence in all layers, without pooling, windows or steps of generation"
                    )
        return lengths

    def _shares_read(self, outputs: Any) -> Float[Tensor, "B L"]:
        last, length = self._layers[-1], self.lengths[self.side]
        logits = logits_of(outputs)
        if isinstance(self.answer, AnswerMetric) and logits is not None and logits.ndim == 3:
            place_B = self.answer.read_at(outputs, self.batch)
            if place_B is not None and logits.shape[1] == length:
                return one_hot(place_B, length).to(last.weights)
        reads_BL = last.gradient.ne(0).any(-1).any(1).to(last.weights.dtype)
        count_B1 = reads_BL.sum(1, keepdim=True)
        if not bool(count_B1.all()):
            raise UserError(
                f"expected an answer that depends on {last.site.name}, the last attention, got one whose gradient "
                f"there is 0 in row {int(count_B1[:, 0].argmin())}; pass an answer that reads the outputs of the "
                "model, or one of jarilab.inspect.cause.answers"
            )
        return reads_BL / count_B1

    def replaceable(self, side: str) -> Bool[Tensor, "B L"]:
        """The tokens of a sequence that are neither padding nor special."""
        ids, valid_BL = self.ids.get(side), self.valid[side]
        if ids is None:
            return valid_BL
        special = torch.tensor(sorted(self._special), dtype=ids.dtype, device=ids.device)
        return valid_BL & ~torch.isin(ids, special).to(valid_BL.device)

    # Methods ----------------------------------------------------------------------------------------------------------

    def of(self, method: str, **options: Any) -> Relevance:
        """The relevance by one of `METHODS`.

        options: of `integrated_gradients.integrate`. Raises UserError for an unknown method, and for one that this
        model or environment does not allow.
        """
        if method not in METHODS:
            raise unknown("method of relevance", method, METHODS)
        gap = None
        if method == "integrated_gradients":
            replaceable = {side: self.replaceable(side) for side in self.lengths}
            scores, gap = integrate(
                self.model, self.batch, self.answer, self.ids, replaceable, **options
            )
        else:
            scores = self._read(self.maps(method))
        scores = {side: each.masked_fill(~self.valid[side], 0) for side, each in scores.items()}
        return Relevance(method, scores, self.batch, self.valid, gap)

    def maps(self, method: str) -> dict[Sides, Float[Tensor, "B Q K"]]:
        """The relevance of each key for each query, by sequences, for methods that read attention."""
        if method == "attention_gradient":
            return self._added_evidence()
        if method == "gradient_rollout":
            return self._rolled_out(_Layer.positive_evidence)
        if method == "rollout":
            self._check_is_plain_encoder()
            return self._rolled_out(_Layer.mean_weights)
        of_layer = {
            "attention": _Layer.mean_weights,
            "value_weighted": self._value_norms,
            "value_zeroing": self._zeroed_values,
        }
        last = {layer.sides: layer for layer in self._layers}
        return {sides: of_layer[method](layer) for sides, layer in last.items()}

    def _read(self, maps: Mapping[Sides, Tensor]) -> dict[str, Float[Tensor, "B L"]]:
        """The mean of the rows that the answer reads, by sequence of keys."""
        reads_B1L = self.reads.unsqueeze(1)
        return {
            keys: (reads_B1L @ each).squeeze(1)
            for (queries, keys), each in sorted(maps.items())
            if queries == self.side
        }

    def _identities(self) -> dict[Sides, Tensor]:
        like = self._layers[0].weights
        return {
            (side, side): torch.eye(length).to(like).repeat(len(self.batch), 1, 1)
            for side, length in self.lengths.items()
        }

    def _added_evidence(self) -> dict[Sides, Tensor]:
        """R - I by the rules of Chefer et al. 2021, "Generic Attention-model Explainability", equations 6 to 11."""
        eyes = self._identities()
        total = dict(eyes)
        for layer in self._layers:
            evidence, (queries, keys) = layer.positive_evidence(), layer.sides
            if queries == keys:
                for sides in [each for each in total if each[0] == queries]:
                    total[sides] = total[sides] + evidence @ total[sides]
                continue
            normalized = []
            for side in layer.sides:
                # I + (R - I) / row sums. A row of R - I without relevance stays 0: it would be 0/0.
                eye = eyes[side, side]
                rest = total[side, side] - eye
                sums = rest.sum(-1, keepdim=True)
                normalized.append(eye + rest / sums.where(sums > 0, 1))
            of_queries, of_keys = normalized
            update = of_queries.transpose(1, 2) @ evidence @ of_keys
            total[layer.sides] = total.get(layer.sides, 0) + update
        return {
            sides: each - eyes[sides] if sides in eyes else each for sides, each in total.items()
        }

    def _rolled_out(self, map_of: Callable[[_Layer], Tensor]) -> dict[Sides, Tensor]:
        """The product over layers of (I + map) / row sums. Rows sum to 1 over all sequences."""
        total = self._identities()
        for layer in self._layers:
            step, (queries, keys) = map_of(layer), layer.sides
            sums = 1 + step.sum(-1, keepdim=True)
            added = {
                (queries, side): step @ each
                for (reader, side), each in total.items()
                if reader == keys
            }
            for sides in {sides for sides in total if sides[0] == queries} | set(added):
                total[sides] = (total.get(sides, 0) + added.get(sides, 0)) / sums
        return total

    @cached_property
    def _copies(self) -> tuple[Copies, CleanRun]:
        copies = Copies(ModelParts(self.model, self.batch))
        clean = copies.run_clean(self.batch)
        copies.check(clean, lambda outputs, batch: self.answer(outputs, batch).detach())
        return copies, clean

    @torch.no_grad()
    def _value_norms(self, layer: _Layer) -> Float[Tensor, "B Q K"]:
        """The norms of what each key adds to each query through W_O, summed over heads."""
        project, columns = self._output_projection(layer), []
        _, heads, _, keys = layer.weights.shape
        nothing = project(layer.gradient.new_zeros(1, 1, layer.gradient[0, :, 0].numel()))
        each_head = torch.eye(heads).to(layer.gradient)[:, None, :, None, None]
        for key in range(keys):
            z_NHQW = (layer.written_by(key) * each_head).flatten(0, 1)
            written_NQD = project(z_NHQW.transpose(1, 2).flatten(2)) - nothing
            columns.append(written_NQD.norm(dim=-1).unflatten(0, (heads, -1)).sum(0))
        return torch.stack(columns, -1)

    def _output_projection(self, layer: _Layer) -> nn.Module:
        """The module that multiplies z by W_O. Raises UserError if it does not map z to its recorded output."""
        (copies, clean), name = self._copies, layer.site.name
        for path in copies.parts.output_projections(clean.events, [name]):
            module, z_BHQW = copies.parts.linear[path], clean.heads[name][0]
            output = clean.linear[path][0][1]
            if isinstance(module, nn.MultiheadAttention):
                module, output = module.out_proj, output[0]
            z_BQF = z_BHQW.transpose(1, 2).flatten(2)
            is_leaf = not list(module.children()) and isinstance(output, Tensor)
            is_of_tokens = is_leaf and output.shape[:2] == z_BQF.shape[:2]
            if is_of_tokens and torch.allclose(module(z_BQF), output, rtol=1e-3, atol=1e-4):
                return module
        raise UserError(
            f"expected an output projection W_O after {name} that reads all heads side by side, got none that gives "
            "its recorded output; use value_zeroing or attention_gradient"
        )

    def _zeroed_values(self, layer: _Layer) -> Float[Tensor, "B Q K"]:
        """The cosine distance of each token after the layer, by the key whose value is 0."""
        (copies, clean), site = self._copies, layer.site
        after = [
            leaves
            for enters, leaves in pairwise(copies.parts.streams())
            if not enters.index and is_within(site.path, enters.site)
        ]
        if not after:
            raise UserError(
                f"expected {site.name} within a list of layers, got it outside of one, so the vectors after its layer "
                "are not known; use value_weighted"
            )
        count = layer.weights.shape[-1]
        keys, zeroed = iter(range(count)), list[Tensor]()

        def without_next_key(part: Part, call: int, output: Tensor) -> Tensor:
            if part.kind != "stream":
                return output - layer.written_by(next(keys))
            zeroed.append(output.double())
            return output

        group = (Part("attention", site.name, 0, site.name, site.queries), after[0])
        for numbers in copies.forwards(clean, [group] * count):
            copies.run(clean, [group] * len(numbers), without_next_key)
        clean_BQD = copies.values(clean, after[0])[-1].double()
        similar = [cosine_similarity(each, clean_BQD, dim=-1) for each in zeroed]
        distance = 1 - torch.stack(similar, -1)
        # Rounding alone would order the keys that change nothing.
        return distance.where(distance > ROUNDING, 0).to(layer.weights.dtype)

    def _check_is_plain_encoder(self) -> None:
        for layer in self._layers:
            allowed_BQK = allowed_links(layer.call).squeeze(1)
            queries_BQ, keys_BK = (self.valid[side] for side in layer.sides)
            hidden = ~allowed_BQK & queries_BQ.unsqueeze(2) & keys_BK.unsqueeze(1)
            if layer.site.kind != "encoder" or bool(hidden.any()):
                raise UserError(
                    f"expected an encoder without a mask for rollout, got {layer.site.name}, a {layer.site.kind} "
                    "attention or one with hidden keys, where products of weights pile up on the first tokens; use "
                    "gradient_rollout or attention_gradient"
                )


def ids_of(batch: Batch) -> dict[str, Int[Tensor, "B L"]]:
    """The token ids that a batch says its model reads, or else those among its arguments, by sequence."""
    return batch.ids or sequences_of(batch.args, batch.kwargs)[0]
