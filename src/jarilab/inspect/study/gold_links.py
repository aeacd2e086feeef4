"""How often each head's largest weight is on a gold link: dependencies, alignments, any pairs of words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.measure.words import WordGroups, WordIndices, query_means
from jarilab.inspect.study.example import Example, HeadMaps
from jarilab.inspect.study.head import Head

MAX_OFFSET = 10
OFFSETS = np.arange(-MAX_OFFSET, MAX_OFFSET + 1)
"""Fixed offsets, from query word to key word, of which the best is the baseline."""
ALL, PUNCTUATION = "all", "punct"
DIRECTIONS = (("query to key", "key to query"), ("target to source", "source to target"))
"""Names of the two directions, within one text and between two."""
Z = NormalDist().inv_cdf(0.975)


class Gold(Protocol):
    """The gold links of one example: (relation, query word, key word), counted from 0.

    possible: links that the alignment error rate accepts besides. cross: whether queries and keys are of two texts.
    origin: file and line.
    """

    @property
    def links(self) -> Sequence[tuple[str, int, int]]: ...

    @property
    def possible(self) -> Sequence[tuple[int, int]]: ...

    @property
    def cross(self) -> bool: ...

    @property
    def origin(self) -> str: ...


class GoldLinks:
    """Shares of gold links that each head finds, by relation and direction.

    A head finds a link if its largest weight from the query word is on the key word. Weights are summed over the tokens
    of a key word, and their mean is taken over those of a query word; the word itself and special tokens are left out.
    The first, third, ... example choose a head for each relation, and the others give its share.
    source: a hash of the links; a folder with a study of other links is refused.
    """

    name = "gold_links"

    def __init__(self, heads: Sequence[Head], source: str | None = None):
        self.heads, self.source = list(heads), source
        self._relations: dict[tuple[str, str], int] = {}
        self._links: _ExampleLinks | None = None
        self._index = -1
        heads_, offsets = len(self.heads), len(OFFSETS)
        # The last axis is that of relations. The first of size 2: choosing and reporting examples.
        shapes: dict[str, tuple[int, ...]] = {
            "queries": (2,), "chance": (2,), "examples": (2,), "left_out": (2,), "queries_squared": (),
            "hits": (2, heads_), "hits_squared": (heads_,), "hits_queries": (heads_,),
            "offset_hits": (2, offsets), "offset_squared": (offsets,), "offset_queries": (offsets,),
            "hits_offset": (heads_, offsets),
        }  # fmt: skip
        self._sums = {name: np.zeros((*shape, 0)) for name, shape in shapes.items()}
        self._can_link = np.zeros(heads_, bool)
        self._errors = _ErrorSums(heads_)

    def add(self, example: Example, maps: Sequence[HeadMaps]) -> None:
        """Add maps of an example, whose `extra` has its links. Raises UserError if no head can have such links."""
        gold: Gold = example.extra
        if gold is None:
            return
        for part in maps:
            sizes = ((part.queries, len(part.map.queries)), (part.keys, len(part.map.keys)))
            has_words = all(len(example.words.get(side, ())) == size for side, size in sizes)
            if (part.queries != part.keys) == gold.cross and has_words:
                self._add(example, gold, part)
        if self._index != example.index and maps[-1].rows.stop == len(self.heads):
            wanted = "from words of the target to words of the source"
            raise UserError(
                f"{gold.origin}: expected a head that attends {wanted if gold.cross else 'within one text'}, with the "
                f"word of each token; got words of {', '.join(example.words) or 'no sequence'} and no such head; "
                "alignments need an encoder and decoder with cross-attention, dependencies need self-attention"
            )

    def _add(self, example: Example, gold: Gold, part: HeadMaps) -> None:
        half = example.index % 2
        is_first = self._index != example.index
        if is_first or self._links is None:
            self._index = example.index
            self._links = self._links_of(example, gold, part)
        links = self._links
        best_HN = links.best(part.map.weights)
        hits_HR = links.hits(best_HN)
        self._can_link[part.rows] = True
        sums, at = self._sums, links.relations
        if is_first:
            np.add.at(sums["left_out"][half], links.left_out, 1)
            sums["queries"][half, at] += links.queries
            sums["chance"][half, at] += links.chance
            sums["examples"][half, at] += 1
            sums["offset_hits"][half][:, at] += links.offset_hits
        sums["hits"][half, part.rows][:, at] += hits_HR
        if half:
            # The variances of shares and of their differences follow from products over the examples that report.
            queries, offsets_OR = links.queries, links.offset_hits
            sums["hits_squared"][part.rows, at] += hits_HR**2
            sums["hits_queries"][part.rows, at] += hits_HR * queries
            sums["hits_offset"][part.rows][:, :, at] += hits_HR[:, None] * offsets_OR
            if is_first:
                sums["queries_squared"][at] += queries**2
                sums["offset_squared"][:, at] += offsets_OR**2
                sums["offset_queries"][:, at] += offsets_OR * queries
        if links.alignment is not None:
            self._errors.add(half, part.rows, best_HN, links.alignment, is_first=is_first)

    def _links_of(self, example: Example, gold: Gold, part: HeadMaps) -> _ExampleLinks:
        forward, backward = getattr(gold, "directions", DIRECTIONS[gold.cross])
        named = [
            (name, query, key)
            for relation, query, key in dict.fromkeys(gold.links)
            for name in _names(relation, with_all=not gold.cross)
        ]
        pairs = [(self._relation(name, forward), query, key, False) for name, query, key in named]
        pairs += [(self._relation(name, backward), key, query, True) for name, query, key in named]
        return _ExampleLinks.of(example, gold, part, pairs)

    def _relation(self, name: str, direction: str) -> int:
        """The index of a relation, a new one at its first use."""
        index = self._relations.setdefault((name, direction), len(self._relations))
        size = self._sums["queries"].shape[-1]
        if index >= size:
            self._sums = {
                name: np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, 16 + size)])
                for name, array in self._sums.items()
            }
        return index

    def state(self) -> dict[str, np.ndarray]:
        """Sums over examples, and the names of relations as bytes of JSON."""
        names = json.dumps(list(self._relations)).encode()
        arrays = {**self._sums, "can_link": self._can_link, **self._errors.arrays}
        return {**arrays, "relations": np.frombuffer(names, np.uint8)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a state."""
        names = json.loads(bytes(state["relations"]))
        self._relations = {(name, direction): i for i, (name, direction) in enumerate(names)}
        self._sums = {name: np.array(state[name]) for name in self._sums}
        self._can_link = np.array(state["can_link"])
        self._errors.arrays = {name: np.array(state[name]) for name in self._errors.arrays}

    # Results ---------------------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """A row for each relation and direction, the most frequent first.

        head: chosen on one half of the examples. accuracy: its share of links on the other half, with a 95 % interval
        over examples. baseline: the share of the best fixed offset on all examples. baseline_half: that of the offset
        chosen as the head is, on the same half. margin: accuracy less baseline_half. lowest, margin_lowest: lower ends
        that hold for all rows at once. chance: of a word drawn at random. count, examples: of words with
        such a link, on the half that reports. left_out: links there that no head can find, as a causal model's later
        words. error_rate: of alignments, by the head that is best on the other half.
        """
        queries = self._sums["queries"]
        tested = [(*key, r) for key, r in self._relations.items() if queries[:, r].all()]
        if len({relation for relation, _, _ in tested} - {ALL}) == 1:
            tested = [row for row in tested if row[0] != ALL]
        if not self._can_link.any():
            return []
        tested.sort(key=lambda row: -queries[1, row[2]])
        z = NormalDist().inv_cdf(1 - 0.025 / max(1, len(tested)))
        rows = [self._row(relation, direction, r, z) for relation, direction, r in tested]
        error = self._errors.columns(self.heads, self._can_link)
        for row in rows:
            if row["direction"] == DIRECTIONS[1][0]:
                row |= error
        return rows

    def _row(self, relation: str, direction: str, r: int, z: float) -> dict[str, Any]:
        sums: dict[str, Any] = {name: array[..., r] for name, array in self._sums.items()}
        head = int(np.where(self._can_link, sums["hits"][0], -1).argmax())
        offset = int(sums["offset_hits"][0].argmax())
        best_offset = int(sums["offset_hits"].sum(0).argmax())
        count, squares = sums["queries"][1], sums["queries_squared"]
        hits, offset_hits = sums["hits"][1, head], sums["offset_hits"][1, offset]
        hits2, offset2 = sums["hits_squared"][head], sums["offset_squared"][offset]
        share, n = hits / count, sums["hits_queries"][head]
        error = _ratio_error(share, count, hits2, n, squares)
        difference2 = hits2 + offset2 - 2 * sums["hits_offset"][head, offset]
        margin = (hits - offset_hits) / count
        margin_n = n - sums["offset_queries"][offset]
        margin_error = _ratio_error(margin, count, difference2, margin_n, squares)
        low, high = _interval(share, error, count, sums["examples"][1], Z)
        return {
            "relation": relation,
            "direction": direction,
            **self.heads[head].columns,
            "accuracy": float(share),
            "accuracy_low": low,
            "accuracy_high": high,
            "lowest": _interval(share, error, count, sums["examples"][1], z)[0],
            "baseline": float(sums["offset_hits"].sum(0)[best_offset] / sums["queries"].sum()),
            "baseline_offset": int(OFFSETS[best_offset]),
            "baseline_half": float(offset_hits / count),
            "margin": float(margin),
            "margin_low": float(margin - Z * margin_error),
            "margin_high": float(margin + Z * margin_error),
            "margin_lowest": float(margin - z * margin_error),
            "chance": float(sums["chance"][1] / count),
            "count": int(count),
            "examples": int(sums["examples"][1]),
            "left_out": int(sums["left_out"][1]),
        }


def _names(relation: str, *, with_all: bool) -> list[str]:
    """The names under which a link counts: `nmod:poss` is `nmod` too, and all but punctuation are `all`."""
    base = relation.partition(":")[0]
    names = dict.fromkeys([relation, base or relation])
    return [*names, *([ALL] if with_all and base != PUNCTUATION else [])]


# One example ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _ExampleLinks:
    """The gold links of one example as arrays.

    means, sums: from tokens to the W query words and V key words that have tokens. relations: the indices of R
    relations. places, rows, targets: of each link, its place among these, its query word, and its target word. Between
    two texts, rows from W on are key words that ask for a query word. queries, chance, offset_hits: by relation.
    left_out: the relations of links that no head can find.
    """

    means: Float[Tensor, "W Q"]
    sums: Float[Tensor, "V K"]
    relations: np.ndarray
    places: np.ndarray
    rows: np.ndarray
    targets: np.ndarray
    queries: np.ndarray
    chance: np.ndarray
    left_out: list[int]
    alignment: _Alignment | None

    @staticmethod
    def of(
        example: Example, gold: Gold, part: HeadMaps, links: Iterable[tuple[int, int, int, bool]]
    ) -> _ExampleLinks:
        """links: relation, asking word, target word, and whether the asking word is the key of the gold link."""
        map = part.map
        q_groups, q_at, row_of = _words(map.queries, example.words[part.queries])
        k_groups, k_at, column_of = _words(map.keys, example.words[part.keys])
        w, v = len(row_of), len(column_of)
        is_causal = not gold.cross and not bool((map.allowed & (map.ahead > 0)).any())
        table, left_out = [], []
        for relation, word, target, is_backward in links:
            rows, columns = (column_of, row_of) if is_backward else (row_of, column_of)
            row, column = rows.get(word), columns.get(target)
            # Words without tokens were cut off. A causal head cannot attend to a later word.
            if (
                row is None
                or column is None
                or (is_causal and column > row)
                or (row == column and not gold.cross)
            ):
                left_out.append(relation)
                continue
            candidates = len(columns) if gold.cross else row if is_causal else w - 1
            first = w if gold.cross and is_backward else 0
            table.append((relation, first + row, column, candidates))
        relation_P, row_P, target_P, candidates_P = np.array(table, np.int64).reshape(-1, 4).T
        relation_R, place_P = np.unique(relation_P, return_inverse=True)
        asking = np.unique(place_P * (w + v) + row_P) // (w + v)
        return _ExampleLinks(
            means=query_means(q_groups, map.allowed)[q_at],
            sums=k_groups.matrix[k_at],
            relations=relation_R,
            places=place_P,
            rows=row_P,
            targets=target_P,
            queries=np.bincount(asking, minlength=len(relation_R)).astype(float),
            chance=np.bincount(place_P, 1 / candidates_P, len(relation_R)),
            left_out=left_out,
            alignment=_Alignment.of(gold, row_of, column_of) if gold.cross else None,
        )

    def best(self, weights_HQK: Float[Tensor, "H Q K"]) -> np.ndarray:
        """The word of each head's largest weight, (H, W), or (H, W + V) between two texts; -1 without weights."""
        words_HWV = self.means @ weights_HQK @ self.sums.T
        if self.alignment is not None:
            return np.concatenate([_largest(words_HWV), _largest(words_HWV.mT)], -1)
        words_HWV.diagonal(dim1=-2, dim2=-1).fill_(0.0)
        return _largest(words_HWV)

    @property
    def offset_hits(self) -> np.ndarray:
        """The hits of each fixed offset, (O, R)."""
        w, v = len(self.means), len(self.sums)
        parts = [(w, v), (v, w)] if self.alignment is not None else [(w, w)]
        return self.hits(np.concatenate([_fixed(*part) for part in parts], -1))

    def hits(self, best_HN: np.ndarray) -> np.ndarray:
        """The number of asking words of each relation whose best word is a target, (H, R)."""
        is_hit_HP = best_HN[:, self.rows] == self.targets
        return is_hit_HP @ np.eye(len(self.relations))[self.places]


def _words(
    names: Sequence[str], indices: WordIndices
) -> tuple[WordGroups, list[int], dict[int, int]]:
    """The words of tokens, which of them are no special token, and the place of each word among those."""
    groups = WordGroups.of(names, indices)
    labels = [indices[start] for start in groups.starts.tolist()]
    words = [(place, label) for place, label in enumerate(labels) if label is not None]
    return groups, [place for place, _ in words], {label: i for i, (_, label) in enumerate(words)}


def _largest(words_HWV: Float[Tensor, "H W V"]) -> np.ndarray:
    if not words_HWV.shape[-1]:
        return np.full(words_HWV.shape[:2], -1)
    largest = words_HWV.max(-1)
    return torch.where(largest.values > 0, largest.indices, -1).numpy()


def _fixed(rows: int, columns: int) -> np.ndarray:
    """The word at each fixed offset from each word, (O, rows); -1 outside."""
    target_OW = np.arange(rows) + OFFSETS[:, None]
    return np.where((target_OW >= 0) & (target_OW < columns), target_OW, -1)


# Error rates of alignments --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Alignment:
    """Sure links, and those that are sure or possible, as maps between words."""

    sure: np.ndarray
    accepted: np.ndarray

    @staticmethod
    def of(gold: Gold, row_of: Mapping[int, int], column_of: Mapping[int, int]) -> _Alignment:
        sure = np.zeros((len(row_of), len(column_of)), bool)
        accepted = sure.copy()
        certain = [(query, key) for _, query, key in gold.links]
        for cells, links in ((sure, certain), (accepted, [*certain, *gold.possible])):
            for query, key in links:
                if query in row_of and key in column_of:
                    cells[row_of[query], column_of[key]] = True
        return _Alignment(sure, accepted)

    def counts(self, best_HW: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`|A and S| + |A and P|`, and `|A| + |S|`, where A links each query to its best word."""
        has_link_HW = best_HW >= 0
        row_W = np.arange(best_HW.shape[1])
        matches_HW = 1 * self.sure[row_W, best_HW] + self.accepted[row_W, best_HW]
        return (matches_HW * has_link_HW).sum(-1), has_link_HW.sum(-1) + self.sure.sum()


class _ErrorSums:
    """Sums for the alignment error rate (Och & Ney 2003) over all examples of a half, by head and by fixed offset."""

    def __init__(self, heads: int):
        sizes = {"errors": heads, "offset_errors": len(OFFSETS)}
        self.arrays = {name: np.zeros((2, 2, size)) for name, size in sizes.items()}

    def add(
        self, half: int, heads: slice, best_HN: np.ndarray, gold: _Alignment, *, is_first: bool
    ) -> None:
        size = gold.sure.shape
        self.arrays["errors"][half, :, heads] += gold.counts(best_HN[:, : size[0]])
        if is_first:
            self.arrays["offset_errors"][half] += gold.counts(_fixed(*size))

    def columns(self, heads: Sequence[Head], can_link: np.ndarray) -> dict[str, Any]:
        """The error rate of the head, and of the offset, that are best on the other half."""
        with np.errstate(invalid="ignore", divide="ignore"):
            rates = {name: 1 - each[:, 0] / each[:, 1] for name, each in self.arrays.items()}
        head = int(np.where(can_link, rates["errors"][0], np.inf).argmin())
        offset = int(rates["offset_errors"][0].argmin())
        return {
            "error_rate": float(rates["errors"][1, head]),
            "error_rate_head": heads[head].short,
            "error_rate_baseline": float(rates["offset_errors"][1, offset]),
        }


# Intervals ------------------------------------------------------------------------------------------------------------


def _ratio_error(ratio: float, n: float, hits2: float, hits_n: float, n2: float) -> float:
    """The standard error of a ratio of sums over examples, linearized; examples are independent, not their links."""
    return math.sqrt(max(0.0, hits2 - 2 * ratio * hits_n + ratio**2 * n2)) / n


def _interval(
    share: float, error: float, count: float, examples: float, z: float
) -> tuple[float, float]:
    """Wilson's interval, with as many independent links as explain the standard error."""
    # Without a hit or without a miss the error is 0 and says nothing: an example then counts as one link.
    size = min(count, share * (1 - share) / error**2) if error > 0 else examples
    middle = (share + z**2 / (2 * size)) / (1 + z**2 / size)
    width = math.sqrt(share * (1 - share) / size + z**2 / (4 * size**2)) * z / (1 + z**2 / size)
    return float(max(0.0, middle - width)), float(min(1.0, middle + width))
