"""Which heads decide the answer to one input: effects, controls, backups and a verdict for each head.

    causes = HeadCauses(model, batch, score)
    causes.rows, causes.pairs, causes.conclusion

The effect of a head is how much the score of the answer falls without it, in nats. A negative effect is a real result:
the answer is better without the head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.inspect.cause.answers import checked
from jarilab.inspect.cause.copies import Group
from jarilab.inspect.cause.paths import PathPatching
from jarilab.inspect.cause.steering import MIN_EFFECT, compared
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.importance import CONTROL, HeadImportance
from jarilab.inspect.study.losses import Loss
from jarilab.inspect.study.tables import plain

CONTROLS = 39
"""Random directions that a head is compared with: by chance, 1 head of 40 hurts more, and 1 helps more, than all."""
HALVES = math.log(2)
"""Nats that a deciding head takes from a score without a lead: the probability halves."""
MAX_CONTROL_COPIES = 2**11
"""Copies of the input with a random direction; of larger models, only the strongest heads are compared."""
MAX_PAIRED = 24
"""Heads of which all pairs are ablated; of larger models, pairs with a head that seems to be backed up."""
MAX_PATHS = 8
"""Heads whose effect is followed to later heads."""
MIN_SHARE, NAMED_SHARE = 0.1, 0.25
"""The share of a head's effect that a path must carry to be listed, and a head to be named."""
MAX_BACKED_UP = 4
"""Heads of a larger model whose backups are searched."""

VERDICTS = {
    "itself": ("does it itself", "직접 합니다"),
    "through": ("works through {0}", "{0} 헤드를 거쳐 작용합니다"),
    "later": (
        "works through later layers, no single head of them",
        "뒤 층을 거쳐 작용하지만, 헤드 하나로 좁혀지지 않습니다",
    ),
    "needed": (
        "is needed; this model does not allow to tell how",
        "필요합니다. 이 모델에서는 어떻게 작용하는지 알 수 없습니다",
    ),
    "backed_up": ("backed up by {0}", "{0} 헤드가 대신할 수 있습니다"),
    "backup": ("stands in for {0} where that is off", "{0} 헤드가 꺼지면 대신합니다"),
    "compensated": (
        "writes it, and later layers make up for it",
        "답에 쓰지만, 꺼지면 뒤 층이 메웁니다",
    ),
    "constant": ("a constant: zero and mean ablation differ", "상수: 0과 평균의 효과가 다릅니다"),
    "chance": ("not more than a random direction", "무작위 방향보다 크지 않습니다"),
    "untested": (
        "small, so not compared with random directions",
        "작아서 무작위 방향과 비교하지 않았습니다",
    ),
}
"""A head's verdict in words, in English and Korean."""
AGAINST = ("the answer is better without it: ", "이 헤드가 없으면 답이 나아집니다: ")
"""In front of the verdict of a head with a negative effect."""

Row = dict[str, Any]
Report = Callable[[int, int], None]


class _Progress:
    """Adds up the reports of several passes. report: takes the ablations that are done, and all that are expected."""

    def __init__(self, report: Report):
        self._report, self._before, self._expected = report, 0, 0

    def expect(self, count: int) -> None:
        """Expect so many more ablations."""
        self._expected += count

    def __call__(self, done: int, total: int) -> None:
        self._report(self._before + done, self._expected)
        if done == total:
            self._before += total


@dataclass(eq=False)
class _Effects:
    """Falls of the score, one a head; controls `(T, C)` of the tested heads, whose numbers are `tested`."""

    zero: np.ndarray
    mean: np.ndarray
    direct: np.ndarray
    tested: list[int]
    controls: np.ndarray
    direct_controls: np.ndarray

    def columns(self, head: int) -> Row:
        """The effects of a head and the largest of its controls in their direction; None if it is not tested."""
        row: Row = {"total": float(self.zero[head]), "mean": plain(self.mean[head])}
        row["direct"] = plain(self.direct[head])
        row |= dict.fromkeys(("control", "direct_control", "passes", "direct_passes"))
        if head in self.tested:
            place = self.tested.index(head)
            row["control"], row["passes"] = compared(row["total"], self.controls[place])
            if row["direct"] is not None:
                controls = self.direct_controls[place]
                row["direct_control"], row["direct_passes"] = compared(row["direct"], controls)
        return row


class HeadCauses:
    """The effect of each head on the score of one answer, and what follows from it.

    batch: one row. score: takes outputs and their batch, and returns a score a row, in nats, such as a log-probability
    or a difference of logits. lead: likewise, above 0 where the answer wins; a head decides if it no longer does.
    means: batches over which mean ablation takes the mean; by default the positions of `batch`, and without an effect
    for a single position, whose mean is itself. only: the short names of the heads that are ablated, and among which
    backups and paths are searched; by default all.
    report: is called after each forward, with the ablations that are done, and with all that are expected so far.
    Raises UserError as `HeadImportance` does, and for several rows, and a score that is not finite.

    rows: one a head, in the order of the model. pairs: heads that stand in for each other. edges: from the heads that
    matter to the heads that carry their effect, and to the answer. conclusion: for the whole input.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        score: Loss,
        lead: Loss | None = None,
        *,
        means: Sequence[Batch] | None = None,
        only: Collection[str] | None = None,
        controls: int = CONTROLS,
        seed: int = 0,
        report: Report | None = None,
    ):
        def loss(outputs: Any, batch: Batch) -> Any:
            return -checked(score(outputs, batch), "score", batch)

        _check(batch, controls)
        self._progress = _Progress(report or (lambda done, total: None))
        self._importance = HeadImportance(
            model, [batch], loss, means=means, seed=seed, report_groups=self._progress
        )
        self._controls, all_heads = controls, self._importance.heads
        self.heads = [head for head in all_heads if only is None or head.short in only]
        self._parts = [self._importance.parts.of_head(head) for head in self.heads]
        singles: list[Group] = [(part,) for part in self._parts]
        effects = 1 + self._importance.has_direct
        expected = min(self._max_tested, len(singles)) * controls * effects
        self._progress.expect(expected + (effects + 1 + (lead is not None)) * len(singles))
        zero, direct = self._falls("zero", singles)
        mean, _ = self._falls("mean", singles, direct=False)
        if means is None:
            mean[[len(batch.tokens[0].get(part.side, ())) == 1 for part in self._parts]] = np.nan
        self.pairs = self._pairs(zero, direct)
        tested = self._tested(np.fmax(np.abs(zero), np.abs(np.nan_to_num(direct))))
        copies: list[Group] = [(self._parts[each],) for each in tested for _ in range(controls)]
        random, random_direct = (
            falls.reshape(-1, controls) for falls in self._falls(CONTROL, copies)
        )
        self._effects = _Effects(zero, mean, direct, tested, random, random_direct)
        self.rows = [
            head.columns | self._effects.columns(number) for number, head in enumerate(self.heads)
        ]
        self.edges = self._edges(lambda: PathPatching(model, batch, score, report=self._progress))
        by_name = {row["head"]: row for row in self.rows}
        for row in self.rows:
            _judge(row, by_name, self.pairs, self.edges)
        by = self._add_decisions(model, batch, lead, singles)
        self.conclusion = {"by": by, **_conclusion(self.rows, self.pairs, controls)}

    def _falls(
        self, kind: str, groups: Sequence[Group], *, direct: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Total and direct fall of the score for each group of heads."""
        total, frozen = self._importance.changes(kind, groups, direct=direct)
        return total[0], frozen[0]

    def _add_decisions(
        self, model: nn.Module, batch: Batch, lead: Loss | None, singles: Sequence[Group]
    ) -> str:
        """Add to heads and pairs whether they decide the answer.

        Returns the test: `turns` if the answer wins, and another one must win without them; else `halves`.
        """
        by_name = {part.short: part for part in self._parts}
        pairs = [(by_name[row["head"]], by_name[row["other"]]) for row in self.pairs]
        rows = [*self.rows, *self.pairs]
        decides, by = np.array([row["total"] >= HALVES for row in rows]), "halves"
        if lead is not None:
            with torch.no_grad():
                clean = float(lead(batch.forward(model), batch)[0])
            self._progress.expect(len(pairs) if clean > 0 else -len(singles))
            if clean > 0:
                importance = HeadImportance(model, [batch], lead, report_groups=self._progress)
                changes, _ = importance.changes("zero", [*singles, *pairs], direct=False)
                decides, by = clean + changes[0] <= 0, "turns"
        for row, is_decisive in zip(rows, decides, strict=True):
            row["decides"] = bool(is_decisive) and row.get("passes", True) is True
        return by

    # Backups --------------------------------------------------------------------------------------------------------

    def _pairs(self, zero: np.ndarray, direct: np.ndarray) -> list[Row]:
        """Pairs of heads that take more together than one by one, and more than random directions do."""
        numbers = self._candidates(zero, np.nan_to_num(direct))
        if not numbers:
            return []
        groups: list[Group] = [(self._parts[one], self._parts[other]) for one, other in numbers]
        self._progress.expect(len(groups))
        together, _ = self._falls("zero", groups, direct=False)
        first, second = np.array(numbers).T
        excess = together - zero[first] - zero[second]
        # Heads that the answer is better without do not stand in for others.
        lost_together = together - zero.clip(0)[first] - zero.clip(0)[second]
        rows: list[Row] = []
        for each in np.argsort(-excess):
            # Half of the pair's effect must come from their being off together.
            if lost_together[each] < max(MIN_EFFECT, together[each] / 2):
                continue
            self._progress.expect(self._controls)
            random, _ = self._falls(CONTROL, [groups[each]] * self._controls, direct=False)
            control, is_larger = compared(float(together[each]), random)
            if not is_larger:
                continue
            names = {"head": groups[each][0].short, "other": groups[each][1].short}
            numbers_of_pair = {"total": float(together[each]), "excess": float(excess[each])}
            rows.append(names | numbers_of_pair | {"control": control})
            if len(rows) == MAX_PAIRED:
                break
        return rows

    def _candidates(self, zero: np.ndarray, direct: np.ndarray) -> list[tuple[int, int]]:
        """The pairs to ablate: all of a small model, else those of heads with a larger direct than total effect."""
        if len(self.heads) <= MAX_PAIRED:
            return list(combinations(range(len(self.heads)), 2))
        # Others make up for most of what such a head writes.
        is_hidden = (np.abs(direct) > MIN_EFFECT) & (np.abs(zero) < np.abs(direct) / 2)
        hidden = [each for each in np.argsort(-np.abs(direct)) if is_hidden[each]]
        pairs = {
            tuple(sorted((int(one), other)))
            for one in hidden[:MAX_BACKED_UP]
            for other in range(len(self.heads))
            if other != one
        }
        return sorted(pairs)  # type: ignore[arg-type]

    # Rows -----------------------------------------------------------------------------------------------------------

    @property
    def _max_tested(self) -> int:
        return max(8, MAX_CONTROL_COPIES // max(1, self._controls))

    def _tested(self, strength: np.ndarray) -> list[int]:
        """The heads that are compared with random directions: those of pairs, then the strongest."""
        in_pairs = {row[name] for row in self.pairs for name in ("head", "other")}
        order = sorted(
            range(len(self.heads)),
            key=lambda each: (self.heads[each].short not in in_pairs, -strength[each]),
        )
        return sorted(order[: self._max_tested])

    def _edges(self, make: Callable[[], PathPatching]) -> list[Row]:
        """From heads that matter to the heads that carry their effect, and to the answer. make: the path patching."""
        edges = [
            {"source": row["head"], "target": "answer", "input": None, "effect": row["direct"]}
            for row in self.rows
            if row["direct_passes"]
        ]
        indirect = [
            (abs(row["total"]), number)
            for number, row in enumerate(self.rows)
            if row["passes"] and row["direct"] is not None and not _is_direct(row)
        ]
        patching = make() if indirect else None
        for total, number in sorted(indirect, reverse=True)[:MAX_PATHS]:
            assert patching is not None
            self._progress.expect(len(patching.edges(self.heads[number], self.heads)))
            rows = patching.rows(self.heads[number], self.heads)
            edges += [
                row for row in rows if abs(row["effect"]) > max(MIN_EFFECT, total * MIN_SHARE)
            ]
        return edges


def _check(batch: Batch, controls: int) -> None:
    if len(batch) != 1 or controls < 1:
        raise UserError(
            f"expected a batch of one row and a random direction or more, got {len(batch)} rows and {controls}; pass "
            "one input, or use HeadImportance for a data set"
        )


def _is_direct(row: Row) -> bool:
    """Whether most of a head's effect is its direct effect."""
    direct, total = row["direct"] or 0.0, row["total"]
    return direct * total > 0 and abs(direct) >= abs(total) / 2


# Verdicts -----------------------------------------------------------------------------------------------------------


def _judge(row: Row, rows: Mapping[str, Row], pairs: Iterable[Row], edges: Iterable[Row]) -> None:
    """Add a head's verdict: its name, the heads that it names, and words in both languages. rows, pairs: of all."""
    name = row["head"]
    partners = [
        rows[pair["other" if pair["head"] == name else "head"]]
        for pair in pairs
        if name in (pair["head"], pair["other"]) and abs(row["total"]) < pair["total"] / 2
    ]
    carried: dict[str, float] = {}
    for edge in edges:
        if edge["source"] == name and edge["target"] != "answer":
            carried[edge["target"]] = carried.get(edge["target"], 0.0) + edge["effect"]
    carriers = [each for each, effect in carried.items() if effect / row["total"] > NAMED_SHARE]
    verdict = _verdict(row, partners, carriers)
    via = {"through": carriers}.get(verdict, [])
    if verdict in ("backed_up", "backup"):
        via = [partners[0]["head"]]
    against = AGAINST if row["passes"] and row["total"] < 0 else ("", "")
    words, korean = (
        start + text.format(link.join(via))
        for start, text, link in zip(against, VERDICTS[verdict], (" and ", ", "), strict=True)
    )
    row |= {"verdict": verdict, "via": via, "words": words, "korean": korean}


def _verdict(row: Row, partners: Sequence[Row], carriers: Sequence[str]) -> str:
    direct = abs(row["direct"] or 0.0)
    if partners:  # a backup writes little while the other head works
        is_idle = direct < abs(partners[0]["direct"] or 0.0) / 4
        return "backup" if is_idle else "backed_up"
    if row["passes"] is None:
        return "untested"
    if row["direct_passes"] and abs(row["total"]) < direct / 2:
        return "compensated"
    if not row["passes"]:
        return "chance"
    if row["mean"] is not None and abs(row["mean"]) < abs(row["total"]) / 4:
        return "constant"
    if row["direct"] is None:
        return "needed"
    if _is_direct(row):
        return "itself"
    return "through" if carriers else "later"


def _conclusion(rows: Sequence[Row], pairs: Sequence[Row], controls: int) -> Row:
    """The verdict on the whole input: which heads decide, and how many are larger than chance."""
    order = sorted(rows, key=lambda row: -row["total"])
    deciding = [row["head"] for row in order if row["decides"]]
    together = [[pair["head"], pair["other"]] for pair in pairs if pair["decides"]]
    strongest = max(rows, key=lambda row: abs(row["total"]))
    passing = sum(bool(row["passes"]) for row in rows)
    verdict = "no_single" if passing else "no_head"
    if deciding or together:
        verdict = "heads" if deciding else "pair"
    return {
        "verdict": verdict,
        "heads": deciding,
        "together": together,
        "strongest": strongest["head"],
        "effect": strongest["total"],
        "passing": passing,
        "tested": sum(row["passes"] is not None for row in rows),
        "all": len(rows),
        "controls": controls,
        "by_chance": 2 * len(rows) / (controls + 1),
    }
