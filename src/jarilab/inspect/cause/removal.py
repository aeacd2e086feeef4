"""Which method of relevance is right on a model, judged by removing the tokens that it names.

    removal = Removal(model, batches, answer, special=tokenizer.all_special_ids)
    removal.rows(), removal.verdict()["sentence"]

f(k) is the answer without the k most relevant of n tokens, g(k) the answer with these k alone. Deletion is the mean
over k of (f(k) - f(n)) / (f(0) - f(n)), insertion that of g. A good method has a low deletion and a high insertion. g
is f for the least relevant first, so that insertion less deletion is the area between the curves of both orders.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Tensor
from jarilab.inspect.cause.relevance import METHODS, Answer, InputRelevance, ids_of
from jarilab.inspect.cause.replays import repeat_rows
from jarilab.inspect.cause.screening import rank_correlation
from jarilab.inspect.intervene.edit import ScoreTable
from jarilab.inspect.intervene.interventions import change_outputs
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.measure_table import bootstrap
from jarilab.inspect.study.permutation import LEVEL, adjusted_p
from jarilab.inspect.study.tables import plain
from jarilab.positions.coordinates import Tokens

KINDS = {
    "mask": "no query attends to the token, and positions stay",
    "replace": "a random other token of the data stands in its place",
}
"""How tokens are removed. A model was trained on neither, so a ranking should hold for both."""
ORDERS = 20
"""Random orders of each example."""
MIN_RANK_CORRELATION = 0.7
"""Between both kinds of removal, for a ranking of methods that survives."""
SENTENCES = {
    "nothing": (
        "No method is shown to be better than random over {0} examples.",
        "예 {0}개에서 무작위 순서보다 낫다고 드러난 방법이 없습니다.",
    ),
    "winner": (
        "{1} wins over {0} examples: better than random and than all other methods.",
        "예 {0}개에서 {1} 방법이 가장 낫습니다. 무작위 순서와 다른 모든 방법보다 낫습니다.",
    ),
    "better": (
        "Better than random over {0} examples: {1}. Better than raw attention: {2}. None is shown to be better than "
        "all others.",
        "예 {0}개에서 무작위 순서보다 나은 방법: {1}. 어텐션 그대로보다 나은 방법: {2}. 다른 모든 방법보다 낫다고 "
        "드러난 것은 없습니다.",
    ),
    "survives": (
        "The ranking survives the second kind of removal (rank correlation {3:.2f}).",
        "순위는 다른 방식으로 지워도 유지됩니다(순위 상관 {3:.2f}).",
    ),
    "fails": (
        "The ranking does not survive the second kind of removal (rank correlation {3:.2f}).",
        "순위는 다른 방식으로 지우면 유지되지 않습니다(순위 상관 {3:.2f}).",
    ),
    "untested": (
        "It takes two kinds of removal and three methods to test the ranking.",
        "순위를 검사하려면 지우는 방식 두 가지와 방법 세 가지가 필요합니다.",
    ),
}
"""Of a verdict, in English and Korean."""
NOTHING = ("no method", "없음")
MAX_TOKENS = 4096
"""Tokens in one forward of copies."""

IdsBySide = dict[str, np.ndarray]


class Removal:
    """Deletion and insertion of methods of relevance over a data set.

    answer: of `InputRelevance`, or one for each batch. special: of `InputRelevance`. Removable are all tokens but
    padding, special tokens, the last of a causal sequence, and the one that the answer reads if it is one.
    steps: points of a curve, if there are more tokens.
    left_out: methods and kinds of removal that do not work here, with the reasons.
    shares: deletion and insertion of each example and method by kind, `(N, M + 1, 2)`; that of random orders is last.
    They are divided by the mean of f(0) - f(n) over examples, which is not near 0 as that of one example can be.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Batch],
        answer: Answer | Sequence[Answer],
        methods: Sequence[str] = tuple(METHODS),
        *,
        special: Collection[int] = (),
        steps: int = 10,
    ):
        if not batches or steps < 2:
            raise UserError(
                f"expected at least one batch and 2 steps, got {len(batches)} and {steps}; pass more"
            )
        self.methods, self.left_out, self._steps = list(methods), dict[str, str](), steps
        areas: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}
        pool = _pool(batches, special)
        answers = [answer] * len(batches) if callable(answer) else answer
        if len(answers) != len(batches):
            raise UserError(
                f"expected an answer for each of {len(batches)} batches, got {len(answers)}; pass one for all, "
                "or one each"
            )
        for number, (batch, of_batch) in enumerate(zip(batches, answers, strict=True)):
            relevance = InputRelevance(model, batch, of_batch, special=special)
            generator = np.random.default_rng([0, number])
            if not number:
                self._leave_out(relevance)
            # Draws do not depend on the methods: other ids and random orders come first.
            others = _other_ids(relevance, pool, generator)
            removed_TBN = self._removed(relevance, generator)
            for kind, ids in (("mask", None), ("replace", others)):
                if ids != {}:
                    areas[kind].append(self._areas(_answers(relevance, removed_TBN, ids)))
        self.shares = {kind: np.concatenate(each) for kind, each in areas.items() if each}
        if "replace" not in self.shares:
            self.left_out["replace"] = "expected token ids as inputs, two or more, got none"
        for kind in list(self.shares):
            self._divide(kind)

    def _leave_out(self, relevance: InputRelevance) -> None:
        for method in list(self.methods):
            if method not in METHODS:
                raise unknown("method of relevance", method, METHODS)
            try:
                self._scores(relevance, method)
            except UserError as error:
                self.left_out[method] = str(error)
                self.methods.remove(method)

    def _scores(self, relevance: InputRelevance, method: str) -> np.ndarray:
        """The relevance of the tokens of all sequences, `(B, N)`; 0 where a method has none."""
        scores = relevance.of(method).scores
        every = [scores.get(side, 0 * valid) for side, valid in relevance.valid.items()]
        return torch.cat(every, 1).double().cpu().numpy()

    def _removed(self, relevance: InputRelevance, generator: np.random.Generator) -> np.ndarray:
        """The removed tokens of each forward, `(T, B, N)`: none, all, then deletions and insertions by order and step.

        Random orders are deleted only: their insertions have the same mean.
        """
        removable_BN = _removable(relevance)
        scores = [self._scores(relevance, method) for method in self.methods]
        scores_OBN = np.stack(scores + [np.zeros(removable_BN.shape)] * ORDERS)
        # A constant map sorted by index would remove the first tokens first, which a causal model attends to most.
        ties_OBN = generator.random(scores_OBN.shape)[::-1]
        last_OBN = np.broadcast_to(~removable_BN, scores_OBN.shape)
        rank_OBN = np.lexsort((ties_OBN, -scores_OBN, last_OBN)).argsort(-1)
        count_B = removable_BN.sum(1)
        steps = max(1, min(self._steps, int(count_B.max(initial=0))))
        counts_SB1 = np.rint(count_B * np.arange(1, steps)[:, None] / steps)[..., None]
        deleted = (rank_OBN[:, None] < counts_SB1) & removable_BN
        inserted = ~deleted[: len(scores)] & removable_BN
        ends = np.stack([np.zeros_like(removable_BN), removable_BN])
        return np.concatenate([ends, *deleted, *inserted])

    def _areas(self, values_TB: np.ndarray) -> np.ndarray:
        """The sums under the curves and f(0) - f(n), `(B, M + 1, 3)`, from the answers of `_removed`."""
        methods, orders = len(self.methods), len(self.methods) + ORDERS
        total_B, inner_TB = values_TB[0] - values_TB[1], values_TB[2:] - values_TB[1]
        inner_CSB = inner_TB.reshape(orders + methods, -1, len(total_B))
        # The ends of each curve are f(0) and f(n).
        area_CB = (inner_CSB.sum(1) + total_B) / (inner_CSB.shape[1] + 2)
        random_1B = area_CB[methods:orders].mean(0, keepdims=True)
        deletion, insertion = (
            np.concatenate([each, random_1B]) for each in (area_CB[:methods], area_CB[orders:])
        )
        return np.stack(
            [deletion, insertion, np.broadcast_to(total_B, deletion.shape)], -1
        ).swapaxes(0, 1)

    def _divide(self, kind: str) -> None:
        areas = self.shares.pop(kind)
        mean, low, _, _ = bootstrap(areas[:, -1, 2:])
        if low[0] > 0:
            self.shares[kind] = areas[..., :2] / mean
        else:
            self.left_out[kind] = (
                f"expected a lower answer without the removable tokens, got a change of {-mean[0]:.3g} over "
                f"{len(areas)} examples, not shown to be below 0; pass more examples, or another answer"
            )

    # Results ----------------------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kind of removal and method, with 95 % intervals over examples, the largest gain first.

        below_random, above_random: how far deletion is below that of random orders, and insertion above it. gain: the
        mean of both. over_attention: the gain less that of raw attention. p_holm: of the gain, over methods.
        """
        rows = []
        for kind, shares in self.shares.items():
            gain = self._gains(kind)
            columns = {"deletion": shares[:, :-1, 0], "insertion": shares[:, :-1, 1], "gain": gain}
            columns["below_random"] = shares[:, -1:, 0] - columns["deletion"]
            columns["above_random"] = columns["insertion"] - shares[:, -1:, 1]
            if "attention" in self.methods:
                columns["over_attention"] = gain - gain[:, [self.methods.index("attention")]]
            table = {name: bootstrap(each)[:3] for name, each in columns.items()}
            p_holm = adjusted_p(gain)
            for number in np.argsort(-gain.mean(0), kind="stable"):
                row: dict[str, Any] = {"removal": kind, "method": self.methods[number]}
                row |= {"examples": len(gain), "p_holm": p_holm[number]}
                for name, ends in table.items():
                    for suffix, end in zip(("", "_low", "_high"), ends, strict=True):
                        row[name + suffix] = plain(float(end[number]))
                rows.append(row)
        return rows

    def _gains(self, kind: str) -> np.ndarray:
        deletion, insertion = np.moveaxis(self.shares[kind], -1, 0)
        return (((deletion[:, -1:] - deletion) + (insertion - insertion[:, -1:])) / 2)[:, :-1]

    def _are_positive(self, changes: np.ndarray) -> np.ndarray:
        """Whether the mean of each column is shown to be above 0, with Holm's correction."""
        p = adjusted_p(changes)
        is_significant = [not isinstance(each, str) and each < LEVEL for each in p]
        return np.array(is_significant) & (changes.mean(0) > 0)

    def verdict(self) -> dict[str, Any]:
        """The method that wins, those that are better than random, and whether the ranking survives, with a sentence.

        winner: better than random and than all others, for each kind of removal; else None. rank_correlation: of the
        gains of methods between both kinds (Spearman); None with one kind.
        """
        gains = [self._gains(kind) for kind in self.shares]
        if not gains or not self.methods:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.left_out.items())
            nothing = {"winner": None, "better_than_random": [], "better_than_attention": []}
            said = {
                "sentence": f"Not judged. {reasons}",
                "korean": f"판정하지 못했습니다. {reasons}",
            }
            return nothing | {"rank_correlation": None} | said
        mean = np.mean([each.mean(0) for each in gains], 0)
        better = self._named(gains, mean)
        raw = [self.methods.index("attention")] if "attention" in self.methods else []
        over_raw = self._named([each - each[:, raw] for each in gains], mean) if raw else []
        best = self.methods.index(better[0]) if better else 0
        wins = bool(better) and all(
            self._are_positive(np.delete(each[:, [best]] - each, best, 1)).all() for each in gains
        )
        kind = "winner" if wins else "better" if better else "nothing"
        names = [", ".join(each) for each in (better[:1] if wins else better, over_raw)]
        means = [each.mean(0) for each in gains]
        correlation = rank_correlation(*means) if len(means) == len(KINDS) else None
        survival = "untested" if correlation is None else "survives"
        if correlation is not None and correlation < MIN_RANK_CORRELATION:
            survival = "fails"
        sentence, korean = (
            f"{one} {other}".format(len(gains[0]), names[0], names[1] or nothing, correlation)
            for one, other, nothing in zip(
                SENTENCES[kind], SENTENCES[survival], NOTHING, strict=True
            )
        )
        return {
            "winner": better[0] if wins else None,
            "better_than_random": better,
            "better_than_attention": over_raw,
            "rank_correlation": correlation,
            "sentence": sentence,
            "korean": korean,
        }

    def _named(self, changes: list[np.ndarray], mean: np.ndarray) -> list[str]:
        """The methods whose change is positive for each kind of removal, the largest mean gain first."""
        are_positive = np.all([self._are_positive(each) for each in changes], 0)
        return [
            self.methods[each] for each in np.argsort(-mean, kind="stable") if are_positive[each]
        ]


# Removed tokens -----------------------------------------------------------------------------------------------------


def _removable(relevance: InputRelevance) -> np.ndarray:
    """The tokens that are removed, of all sequences, `(B, N)`; the same for all methods."""
    masks = []
    for side, valid_BL in relevance.valid.items():
        mask_BL = relevance.replaceable(side)
        if any(site.causal and site.queries == side for site in relevance.sites.values()):
            count_BL = valid_BL.cumsum(1)
            mask_BL = mask_BL & (count_BL < count_BL[:, -1:])
        if side == relevance.side:
            mask_BL = mask_BL & (relevance.reads < 1)
        masks.append(mask_BL)
    return torch.cat(masks, 1).cpu().numpy()


def _pool(batches: Sequence[Batch], special: Collection[int]) -> IdsBySide:
    """The ids of the tokens in the data, without special ones and padding."""
    pool: IdsBySide = {}
    for batch in batches:
        for side, ids in ids_of(batch).items():
            ids = ids[batch.valid[side]] if side in batch.valid else ids
            pool[side] = np.union1d(pool.get(side, []), ids.cpu().numpy()).astype(int)
    return {side: np.setdiff1d(ids, list(special)) for side, ids in pool.items()}


def _other_ids(
    relevance: InputRelevance, pool: IdsBySide, generator: np.random.Generator
) -> IdsBySide:
    """A random other id for each token by sequence, `(B, L)`; empty if a sequence has no ids to choose from."""
    others = {}
    for side, valid_BL in relevance.valid.items():
        choices = pool.get(side, np.empty(0))
        if side in relevance.ids and not bool(relevance.replaceable(side).any()):
            others[side] = relevance.ids[side].cpu().numpy()
            continue
        if side not in relevance.ids or len(choices) < 2:
            return {}
        drawn_BL = generator.integers(len(choices) - 1, size=valid_BL.shape)
        is_same = choices[drawn_BL] == relevance.ids[side].cpu().numpy()
        others[side] = choices[np.where(is_same, len(choices) - 1, drawn_BL)]
    return others


@torch.no_grad()
def _answers(
    relevance: InputRelevance, removed_TBN: np.ndarray, others: IdsBySide | None
) -> np.ndarray:
    """The answers of each forward, `(T, B)`. others: what replaces removed tokens; None hides them from all queries."""
    rows, tokens = removed_TBN.shape[1:]
    copies = max(1, MAX_TOKENS // (rows * tokens))
    answers = []
    for first in range(0, len(removed_TBN), copies):
        part = torch.from_numpy(removed_TBN[first : first + copies]).flatten(0, 1)
        removed = dict(
            zip(relevance.lengths, part.split(list(relevance.lengths.values()), 1), strict=True)
        )
        batch = repeat_rows(relevance.batch, len(part) // rows)
        if others is None:
            with change_outputs(relevance.model, partial(_hide, relevance, removed)):
                outputs = batch.forward(relevance.model)
            batch = _without(batch, relevance, removed)
        else:
            outputs = _with_ids(batch, relevance, removed, others).forward(relevance.model)
        values = relevance.answer(outputs, batch)
        answers.append(values.double().cpu().reshape(-1, rows))
    values_TB = torch.cat(answers)
    clean_B = relevance.values.double().cpu()
    if not torch.allclose(values_TB[0], clean_B, rtol=1e-3, atol=1e-3):
        raise UserError(
            f"expected the answers {clean_B.tolist()} for copies of a batch, got {values_TB[0].tolist()}; rows of this "
            "model depend on each other, so tokens cannot be removed in copies"
        )
    return values_TB.numpy()


def _hide(
    relevance: InputRelevance,
    removed: Mapping[str, Tensor],
    site: str,
    call: AttentionCall,
    output: Tensor,
) -> Tensor:
    """The output of a site with removed keys hidden from all queries."""
    table = ScoreTable.of(site, call)
    removed_RK = removed[relevance.sites[site].keys].to(table.allowed.device)
    hidden = removed_RK[:, None, None] & table.allowed
    table.changed |= hidden.any(-1)
    table.allowed &= ~hidden
    return table.output(call, output)


def _without(batch: Batch, relevance: InputRelevance, removed: Mapping[str, Tensor]) -> Batch:
    """The batch as an answer reads it: without removed tokens if it pools tokens, and else with all positions."""
    valid = batch.valid.get(relevance.side)
    if valid is None or bool((relevance.reads == 1).any()):
        return batch
    left = valid & ~removed[relevance.side].to(valid.device)
    return replace(batch, valid={**batch.valid, relevance.side: left})


def _with_ids(
    batch: Batch, relevance: InputRelevance, removed: Mapping[str, Tensor], others: IdsBySide
) -> Batch:
    """A batch of copies with other ids in the place of removed tokens. Its own `ids`, which answers read, stay."""
    leaves, spec = tree_flatten((batch.args, batch.kwargs))
    changed: set[int] = set()
    for side, ids in relevance.ids.items():
        copies = len(batch) // len(ids)
        old = ids.repeat(copies, 1)
        new = torch.from_numpy(others[side]).to(old).repeat(copies, 1)
        new = torch.where(removed[side].to(old.device), new, old)
        for number, leaf in enumerate(leaves):
            value = leaf.ids if isinstance(leaf, Tokens) else leaf
            if number not in changed and isinstance(value, Tensor) and torch.equal(value, old):
                leaves[number] = replace(leaf, ids=new) if isinstance(leaf, Tokens) else new
                changed.add(number)
                break
    args, kwargs = tree_unflatten(leaves, spec)
    return replace(batch, args=args, kwargs=kwargs)
