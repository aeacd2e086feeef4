"""What each head and MLP writes to one score itself, with the norms frozen (direct logit attribution).

    direct = contributions(ModelParts(model, batch), batch, logit_over_mean(answers))
    direct.values, direct.others            # they add up to direct.score
    rows = contribution_rows(model, batches, logit_over_mean(answers))

One forward and one backward: outputs of heads and MLPs are leaves, norms have a constant scale, and a contribution is
the sum of value times gradient. Effects through later heads and MLPs do not count. `lens.py` reads the residual stream
of each layer instead, with the norm's scale for that layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.cause.answers import checked
from jarilab.inspect.cause.copies import CleanRun, Copies
from jarilab.inspect.cause.frozen_norms import FrozenNorms, frozen_norms, has_no_matrix
from jarilab.inspect.cause.parts import ModelParts, Part, is_within
from jarilab.inspect.cause.replays import change_stream
from jarilab.inspect.intervene.interventions import check_evaluating
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.losses import Loss, logits_of
from jarilab.inspect.study.measure_table import interval_columns
from jarilab.inspect.study.tables import rows_of

TOLERANCE, TOLERANCE_IN_HALF = 1e-4, 3e-2
"""Largest difference of the sum from the score, relative to the largest contribution or 1. Norms of LLaMA compute in
float32 in a model in float64 too."""
EMBEDDINGS, BIASES = "embeddings", "biases"


@dataclass(frozen=True, eq=False)
class Contributions:
    """Direct contributions to the score of each row of a batch.

    values: of heads and MLPs. others: of each embedding by its path, `embeddings` for the rest of what enters the first
    layer, and `biases`. residue: the largest difference of the sum from the score.
    unembedding: the module whose output the score was read from, if the model changes its logits afterwards, as by a
    soft cap; else empty.
    """

    score: Float[Tensor, " B"]
    values: dict[Part, Float[Tensor, " B"]]
    others: dict[str, Float[Tensor, " B"]]
    residue: float
    unembedding: str


def contributions(parts: ModelParts, batch: Batch, answer: Loss) -> Contributions:
    """The contributions to `answer`, which is linear in the logits, as the difference of two of them.

    Raises UserError for a model in training mode, a model without layers or logits, an answer of another shape, and if
    the contributions do not add up to the score.
    """
    check_evaluating(parts.model)
    if not parts.can_freeze or not any(parts.layers.values()):
        raise UserError(
            "expected layers whose matrices belong to modules, got none in "
            f"{type(parts.model).__name__}, so contributions cannot be computed; use total effects"
        )
    run = _LinearRun(parts, batch)
    free_biases = _free_biases(parts)
    with torch.enable_grad(), _requiring_gradients(free_biases):
        logits, unembedding = run.logits(run.forward())
        score_B = answer(logits, batch)
        checked(score_B, "contributions", batch)
        if not score_B.requires_grad:
            raise UserError(
                "expected an answer with a gradient, got one without; compute it from the logits without detach, and "
                "leave torch.inference_mode"
            )
        values, others = run.backward(score_B)
        others[BIASES] = others[BIASES] + _by_row(score_B, free_biases)
    summands = torch.stack([*values.values(), *others.values()]).double()
    differences_B = (score_B.detach() - summands.sum(0)).abs()
    residue = float(differences_B.max())
    is_precise = logits.dtype in (torch.float32, torch.float64)
    tolerance = TOLERANCE if is_precise else TOLERANCE_IN_HALF
    if not residue <= tolerance * max(1.0, float(summands.abs().max())):
        row = int(differences_B.argmax())
        raise run.refusal(score_B, row, float(summands[:, row].sum()))
    return Contributions(score_B.detach(), values, others, residue, unembedding)


def _free_biases(parts: ModelParts) -> list[Tensor]:
    """The biases that a model adds itself, outside the modules whose outputs are followed."""
    covered: set[int] = set()
    free: dict[int, Tensor] = {}
    for path, module in parts.model.named_modules():
        is_linear = path in parts.linear and not isinstance(module, nn.MultiheadAttention)
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in tensors:
            if is_linear or has_no_matrix(module):
                covered.add(id(tensor))
            elif name.endswith("bias") and tensor.is_floating_point():
                free[id(tensor)] = tensor
    return [tensor for key, tensor in free.items() if key not in covered]


@contextmanager
def _requiring_gradients(tensors: Sequence[Tensor]) -> Iterator[None]:
    before = [tensor.requires_grad for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.requires_grad_()
        yield
    finally:
        for tensor, needed in zip(tensors, before, strict=True):
            tensor.requires_grad_(needed)


def _by_row(score_B: Tensor, biases: Sequence[Tensor]) -> Float[Tensor, " B"]:
    """The contribution of tensors that all rows share, by a backward for each row."""
    total_B = torch.zeros_like(score_B)
    for row in range(len(score_B)) if biases else ():
        gradients = _gradients(score_B[row], biases)
        for bias, gradient in zip(biases, gradients, strict=True):
            if gradient is not None:
                total_B[row] += (bias * gradient).sum()
    return total_B.detach()


def _gradients(score: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    if not tensors or not score.requires_grad:
        return (None,) * len(tensors)
    return torch.autograd.grad(score, tensors, retain_graph=True, allow_unused=True)


class _Term(NamedTuple):
    """A tensor of the forward, and the part of its value that is a summand of the logits.

    kind: of `head`, `linear`, `entry`, `bias`. name: site or path.
    """

    kind: str
    name: str
    value: Tensor
    tensor: Tensor


class _LinearRun:
    """A forward whose logits are linear in its leaves.

    Leaves are outputs of heads, outputs of linear parts within layers that are no output projections, and what enters
    the first layer of each stack.
    """

    def __init__(self, parts: ModelParts, batch: Batch):
        self._parts, self._batch = parts, batch
        self._terms: list[_Term] = []
        self._embeddings: list[_Term] = []
        # What entered a stack, and the leaf in its place.
        self._entries: list[tuple[Tensor, Tensor]] = []
        self._frozen = FrozenNorms()
        self._writing: set[str] = set()  # sites whose output projection has not run yet
        # The last linear part after the layers, and what it returned.
        self._last: tuple[str, Tensor] | None = None

    def forward(self) -> Any:
        """Run the batch; returns the outputs of the model."""
        parts = self._parts
        embeddings = [
            path
            for path, module in parts.model.named_modules()
            if isinstance(module, nn.Embedding) and path not in parts.linear
        ]
        paths = [*parts.linear, *embeddings]
        hooked = parts.hooked(self._on_head, self._on_linear, paths, on_entry=self._on_entry)
        with frozen_norms(parts.model, parts.stacked) as self._frozen, hooked:
            return self._batch.forward(parts.model)

    def _on_head(self, site: str, call: AttentionCall, output: Tensor) -> Tensor:
        self._writing.add(site)
        self._last = None
        return self._leaf(self._terms, "head", site, output)

    def _on_linear(self, path: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        parts, is_stacked = self._parts, path in self._parts.stacked
        if is_stacked and not self._writing:
            return tree_map_only(Tensor, partial(self._leaf, self._terms, "linear", path), output)
        if is_stacked:
            # A module with matrices that attends itself may have no output projection of its own.
            whole = isinstance(module, nn.MultiheadAttention)
            self._writing = {
                site for site in self._writing if not whole and is_within(parts.sites[site], path)
            }
        if not isinstance(output, Tensor):
            return None
        if args and isinstance(args[0], Tensor) and not args[0].is_floating_point():
            return self._leaf(self._embeddings, "embedding", path, output)
        bias = getattr(module, "bias", None)
        if isinstance(bias, Tensor) and bias.shape == output.shape[-1:]:
            self._terms.append(_Term("bias", path, bias, output))
        self._last = self._last if is_stacked else (path, output)
        return None

    @staticmethod
    def _leaf(terms: list[_Term], kind: str, name: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        leaf = tensor.detach().clone().requires_grad_()
        terms.append(_Term(kind, name, leaf, leaf))
        return leaf.clone()  # the model may write into it

    def _on_entry(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if not any(path == layers[0] for layers in self._parts.layers.values()):
            return None

        def replaced(stream: Tensor) -> Tensor:
            terms: list[_Term] = []
            result = self._leaf(terms, "entry", "", stream)
            self._entries.append((stream, terms[0].tensor))
            return result

        return change_stream((args, kwargs), len(self._batch), replaced)

    def logits(self, outputs: Any) -> tuple[Tensor, str]:
        """The logits as the unembedding returns them, and its path if the model changes them afterwards."""
        logits = logits_of(outputs)
        if logits is None:
            raise UserError(
                f"expected a model with logits, got the outputs {type(outputs).__name__}; load the model with its head"
            )
        if self._last is None or self._last[1].shape[-1] != logits.shape[-1]:
            return logits, ""
        path, last = self._last
        is_same = last.shape == logits.shape and torch.equal(last, logits)
        return last, "" if is_same else path

    def backward(self, score_B: Tensor) -> tuple[dict[Part, Tensor], dict[str, Tensor]]:
        """The contributions of heads and MLPs, and of embeddings and biases."""
        terms = [*self._terms]
        terms += [_Term("bias", path, bias, y) for path, bias, y in self._frozen.constants]
        terms += [_Term("entry", "", leaf, leaf) for _, leaf in self._entries]
        gradients = _gradients(score_B.sum(), [term.tensor for term in terms])
        parts = self._parts.select(["head", "mlp"] if any(self._parts.mlps.values()) else ["head"])
        values = {part: torch.zeros_like(score_B) for part in parts}
        heads = {(part.site, part.index): part for part in parts if part.kind == "head"}
        mlps = {
            path: part
            for part in parts
            for path in (self._parts.mlps[part.site] if part.kind == "mlp" else ())
        }
        others = {EMBEDDINGS: torch.zeros_like(score_B), BIASES: torch.zeros_like(score_B)}
        entered = iter(tensor for tensor, _ in self._entries)
        for term, gradient in zip(terms, gradients, strict=True):
            before = next(entered) if term.kind == "entry" else None
            if gradient is None:
                continue
            product = (term.value * gradient).detach()
            if term.kind == "head":
                for index, value_B in enumerate(product.sum((2, 3)).unbind(1)):
                    values[heads[term.name, index]] += value_B
                continue
            value_B = product.reshape(len(score_B), -1).sum(1)
            if term.kind == "linear":
                values[mlps[term.name]] += value_B
            else:
                others[BIASES if before is None else EMBEDDINGS] += value_B
            if before is not None:
                self._split(before, gradient, others)
        return values, others

    def _split(self, entered: Tensor, gradient: Tensor, others: dict[str, Tensor]) -> None:
        """Give each embedding that has a row for each example its share of what entered a stack."""
        rows = len(gradient)
        terms = [each for each in self._embeddings if each.tensor.shape[:1] == (rows,)]
        if not terms or not entered.requires_grad:
            return
        tensors = [term.tensor for term in terms]
        shares = torch.autograd.grad(
            entered, tensors, gradient, retain_graph=True, allow_unused=True
        )
        for term, share in zip(terms, shares, strict=True):
            if share is not None:
                value_B = (term.value * share).detach().reshape(rows, -1).sum(1)
                others[term.name] = others.get(term.name, 0.0) + value_B
                others[EMBEDDINGS] -= value_B

    def refusal(self, score_B: Tensor, row: int, total: float) -> UserError:
        """The error for contributions that do not add up, with the modules that are not linear."""
        nonlinear = self._frozen.nonlinear
        gradients = _gradients(score_B.sum(), [output for _, output in nonlinear])
        names = [
            path
            for (path, _), gradient in zip(nonlinear, gradients, strict=True)
            if gradient is not None
        ]
        name = type(self._parts.model).__name__
        what = ", ".join(dict.fromkeys(names)) or "something between its layers and its logits"
        return UserError(
            f"row {row + 1}: expected contributions that add up to its score {score_B[row].item():.6g}, got "
            f"{total:.6g}; {name} computes {what}, or answer itself, in a way that is not linear with "
            "the norms frozen. Use an answer that is linear in the logits, or total effects"
        )


# Data sets ----------------------------------------------------------------------------------------------------------


def contribution_rows(
    model: nn.Module, batches: Sequence[Batch], answer: Loss
) -> list[dict[str, Any]]:
    """A row for each head, MLP, embedding and the biases, the largest contribution first.

    contribution: mean over the examples, with its 95 % interval. recomputed: how much the score falls if the part
    writes 0 and every norm recomputes its scale, with later parts kept; it shows what freezing leaves out, and is None
    for embeddings and biases and where parts cannot be kept. residue, score: of all contributions. unembedding: as in
    `Contributions`. Raises UserError as `contributions`, and without a batch.
    """
    if not batches:
        raise UserError("expected a batch of examples or more, got none; pass examples")
    parts = ModelParts(model, batches[0])
    copies = Copies(parts)
    copies.check(copies.run_clean(batches[0]), answer)
    direct = [contributions(parts, batch, answer) for batch in batches]
    values = [torch.stack([*(each.values | each.others).values()], 1) for each in direct]
    effects = [_recomputed(copies, *pair, answer) for pair in zip(batches, direct, strict=True)]
    columns = interval_columns("contribution", torch.cat(values).double().cpu().numpy(), 0)
    columns |= interval_columns("recomputed", torch.cat(effects).numpy(), 0)
    names = [part.columns for part in direct[0].values]
    for name in direct[0].others:
        kind = "bias" if name == BIASES else "embedding"
        names.append({"part": name, "kind": kind, "site": "", "index": 0, "position": None})
    shared = {
        "residue": max(each.residue for each in direct),
        "score": float(torch.cat([each.score for each in direct]).mean()),
        "unembedding": direct[0].unembedding,
    }
    rows = [name | row | shared for name, row in zip(names, rows_of(columns), strict=True)]
    return sorted(rows, key=lambda row: -abs(row["contribution"]))


def _recomputed(
    copies: Copies, batch: Batch, direct: Contributions, answer: Loss
) -> Float[Tensor, "B P"]:
    """How much the score falls without each part, with later parts at their clean outputs and live norms.

    NaN for parts that cannot be replaced, and for what is no part.
    """
    parts = list(direct.values)
    count = len(parts) + len(direct.others)
    effect_BP = torch.full((len(batch), count), torch.nan, dtype=torch.double)
    if not copies.can_freeze:
        return effect_BP
    clean = copies.run_clean(batch)
    columns = [number for number, part in enumerate(parts) if _is_replaceable(copies, clean, part)]
    groups = [(parts[number],) for number in columns]
    logits: list[Any] = []
    # Without a path, the model itself.
    unembedding = copies.model.get_submodule(direct.unembedding)
    with unembedding.register_forward_hook(lambda module, args, output: logits.append(output)):
        scores_GB = copies.scores(
            clean,
            groups,
            copies.replacement(None),
            lambda outputs, rows: answer(logits.pop(), rows),
            frozen=True,
        )
    effect_BP[:, columns] = (direct.score - scores_GB.to(direct.score)).T.cpu().double()
    return effect_BP


def _is_replaceable(copies: Copies, clean: CleanRun, part: Part) -> bool:
    """Whether the outputs of a part have an axis of the batch, which those of experts have not."""
    try:
        return bool(copies.values(clean, part))
    except UserError:
        return False
