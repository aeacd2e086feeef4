"""Gold links against a loop over words and links in plain Python."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch

from helpers.head_maps import HEADS, Links, head_maps
from jarilab.core.errors import UserError
from jarilab.inspect.measure.alignment import alignment_error_rate
from jarilab.inspect.study.example import Example
from jarilab.inspect.study.gold_links import OFFSETS, GoldLinks

# [CLS] the cat ##s [SEP], with a word of two tokens, and one that is cut off
WORDS = [None, 0, 1, 1, 2, 3, 3, 4, None]


def example(index: int, gold: Links, **words) -> Example:
    return Example(index, gold.origin, {}, words or {"source": WORDS}, gold)


def word_weights(weights: torch.Tensor, q_words: list, k_words: list) -> dict:
    """Of each pair of words: the sum over the tokens of the key word, the mean over those of the query word."""
    result = {}
    for w in {word for word in q_words if word is not None}:
        rows = [i for i, word in enumerate(q_words) if word == w]
        for v in {word for word in k_words if word is not None}:
            columns = [j for j, word in enumerate(k_words) if word == v]
            result[w, v] = sum(weights[i, j].item() for i in rows for j in columns) / len(rows)
    return result


def test_shares_are_those_of_a_loop():
    generator = torch.Generator().manual_seed(3)
    gold_links = GoldLinks(HEADS)
    hits, counts, offsets = defaultdict(Counter), Counter(), Counter()
    for index in range(40):
        weights = torch.rand(6, 9, 9, generator=generator) ** 4
        heads = torch.randint(0, 5, (5,), generator=generator).tolist()
        names = ["nmod", "nmod:poss", "obj", "punct", "obj"]
        links = [(name, word, head) for word, (name, head) in enumerate(zip(names, heads, strict=True)) if head != word]
        data = example(index, Links(tuple(links)))
        gold_links.add(data, [head_maps(weights[:4])])
        gold_links.add(data, [head_maps(weights[4:], 4)])
        for name, dependent, head in links:
            for relation in {name, name.partition(":")[0]} | ({"all"} - {name if name != "punct" else "all"}):
                counts[relation, index % 2] += 1
                offsets[relation, index % 2, head - dependent] += 1
                for h in range(6):
                    merged = word_weights(weights[h], WORDS, WORDS)
                    best = max((v for v in range(5) if v != dependent), key=lambda v: merged[dependent, v])
                    hits[relation, index % 2][h] += best == head
    rows = {(row["relation"], row["direction"]): row for row in gold_links.rows()}
    assert {relation for relation, _ in rows} == {"all", "nmod", "nmod:poss", "obj", "punct"}
    for (relation, direction), row in rows.items():
        if direction != "query to key":
            continue
        h = min(range(6), key=lambda h: (-hits[relation, 0][h], h))
        assert (row["head"], row["site"], row["index"]) == (HEADS[h].short, HEADS[h].site, HEADS[h].index)
        assert row["count"] == counts[relation, 1]
        assert row["accuracy"] == pytest.approx(hits[relation, 1][h] / counts[relation, 1])
        assert row["accuracy_low"] < row["accuracy"] < row["accuracy_high"]
        assert row["lowest"] < row["accuracy_low"]
        offset = min(OFFSETS, key=lambda o: (-offsets[relation, 0, o], o))
        assert row["baseline_half"] == pytest.approx(offsets[relation, 1, offset] / counts[relation, 1])
        best = max(offsets[relation, 0, o] + offsets[relation, 1, o] for o in OFFSETS)
        total = counts[relation, 0] + counts[relation, 1]
        assert row["baseline"] == pytest.approx(best / total)
        assert row["margin"] == pytest.approx(row["accuracy"] - row["baseline_half"])
        assert row["chance"] == pytest.approx(1 / 4)


def test_other_direction_counts_each_head_once():
    # Words 1 and 2 depend on word 0, which looks at 2; word 3 depends on 4, which looks at 0.
    weights = torch.zeros(6, 5, 5)
    weights[:, 0, 2] = weights[:, 4, 0] = 1
    gold = Links((("x", 1, 0), ("x", 2, 0), ("x", 3, 4)))
    gold_links = GoldLinks(HEADS)
    for index in range(2):
        gold_links.add(example(index, gold, source=list(range(5))), [head_maps(weights)])
    row = next(row for row in gold_links.rows() if row["direction"] == "key to query")
    assert (row["count"], row["accuracy"]) == (2, 0.5)
    assert row["chance"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert row["baseline"] == 0.5
    row = next(row for row in gold_links.rows() if row["direction"] == "query to key")
    assert (row["count"], row["accuracy"]) == (3, 0)


def test_causal_heads_are_not_asked_for_later_words():
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    weights = torch.eye(4).roll(-1, 1).expand(6, 4, 4) + torch.eye(4).roll(1, 0)  # the previous word, or the next
    gold = Links((("x", 1, 0), ("x", 2, 3)))
    gold_links = GoldLinks(HEADS)
    for index in range(2):
        gold_links.add(example(index, gold, source=[0, 1, 2, 3]), [head_maps(weights, allowed=causal)])
    rows = {row["direction"]: row for row in gold_links.rows()}
    assert {name: (row["count"], row["left_out"]) for name, row in rows.items()} == dict.fromkeys(rows, (1, 1))
    assert rows["query to key"]["accuracy"] == rows["query to key"]["chance"] == 1  # one earlier word
    assert rows["key to query"]["accuracy"] == 1
    assert rows["key to query"]["chance"] == pytest.approx(1 / 3)


def test_the_head_is_chosen_on_the_other_half():
    gold, words = Links((("x", 0, 1),)), list(range(3))
    gold_links = GoldLinks(HEADS)
    for index in range(4):
        weights = torch.zeros(6, 3, 3)
        weights[0 if index % 2 else 5, 0, 1] = 1  # head 0 is right on the reporting half, head 5 on the choosing half
        gold_links.add(example(index, gold, source=words), [head_maps(weights)])
    row = gold_links.rows()[0]
    assert (row["head"], row["accuracy"]) == ("L1H2", 0)
    assert row["accuracy_low"] == 0
    assert 0.5 < row["accuracy_high"] < 1


def test_intervals_cover_over_examples():
    """95 % intervals hold the true share although the links of an example are alike."""
    generator = torch.Generator().manual_seed(0)
    gold, words = Links(tuple(("x", i, 8) for i in range(8))), list(range(9))
    right, wrong = torch.zeros(6, 9, 9), torch.zeros(6, 9, 9)
    right[:, :, 8] = wrong[:, :8, :8] = 1
    covered, offset_covered = 0, 0
    for _ in range(40):
        gold_links = GoldLinks(HEADS)
        for index in range(40):
            is_right = torch.rand((), generator=generator) < 0.6
            gold_links.add(example(index, gold, source=words), [head_maps(right if is_right else wrong)])
        row = gold_links.rows()[0]
        covered += row["accuracy_low"] <= 0.6 <= row["accuracy_high"]
        offset_covered += row["margin_low"] <= 0.6 - 1 / 8 <= row["margin_high"]
    assert covered >= 34
    assert offset_covered >= 34


def test_alignments_and_their_error_rate():
    generator = torch.Generator().manual_seed(2)
    gold_links, reports = GoldLinks(HEADS), []
    q_words, k_words = [0, 1, 1, 2, None], [None, 0, 0, 1, 2, 3]
    sides = ("target", "source")
    sums = torch.zeros(2, 4, 2)
    found = torch.zeros(2, 2, 4)
    for index in range(30):
        weights = torch.rand(4, 5, 6, generator=generator) ** 3
        sure = [(q, int(torch.randint(0, 4, (), generator=generator))) for q in range(2)]
        possible = ((2, 1), sure[0])
        gold = Links(tuple(("alignment", *link) for link in sure), possible, cross=True)
        data = example(index, gold, source=k_words, target=q_words)
        gold_links.add(data, [head_maps(torch.rand(2, 6, 6))])  # the encoder, which is not asked
        gold_links.add(data, [head_maps(weights, 2, sides)])
        for h in range(4):
            merged = word_weights(weights[h], q_words, k_words)
            words = torch.tensor([[merged[w, v] for v in range(4)] for w in range(3)])
            rate = alignment_error_rate(words, sure, possible)
            links = 3 + len(set(sure))
            sums[index % 2, h] += torch.tensor([(1 - rate) * links, links])
            for q, k in sure:
                found[index % 2, 0, h] += words[q].argmax() == k
            for k in {k for _, k in sure}:
                found[index % 2, 1, h] += (int(words[:, k].argmax()), k) in sure
        reports.append(len({k for _, k in sure}))
    rates = 1 - sums[..., 0] / sums[..., 1]
    assert rates[0].argmin() != rates[1].argmin()
    forward, backward = (
        next(row for row in gold_links.rows() if row["direction"] == name)
        for name in ("target to source", "source to target")
    )
    assert {row["relation"] for row in (forward, backward)} == {"alignment"}
    assert forward["error_rate"] == pytest.approx(rates[1, rates[0].argmin()].item())
    assert forward["error_rate_head"] == HEADS[2 + rates[0].argmin()].short
    assert 0 < forward["error_rate_baseline"] < 1
    assert "error_rate" not in backward
    for row, hits, count in zip((forward, backward), found[1], (30, sum(reports[1::2])), strict=True):
        chosen = next(h for h, head in enumerate(HEADS[2:]) if head.short == row["head"])
        assert row["count"] == count
        assert row["accuracy"] == pytest.approx(hits[chosen].item() / count)
    assert forward["chance"] == pytest.approx(1 / 4)


def test_state_continues():
    generator = torch.Generator().manual_seed(2)
    data = []
    for index in range(12):
        gold = Links((("obj", 1, 0), (f"new{index % 5}:sub", 3, 4)))
        data.append((example(index, gold), [head_maps(torch.rand(6, 9, 9, generator=generator))]))
    through, first, second = (GoldLinks(HEADS) for _ in range(3))
    for each in data:
        through.add(*each)
    for each in data[:7]:
        first.add(*each)
    state = {name: array.copy() for name, array in first.state().items()}
    assert all(array.dtype.kind in "fbu" for array in state.values())
    second.load(state)
    for each in data[7:]:
        second.add(*each)
    assert second.rows() == through.rows()
    finished = GoldLinks(HEADS)
    finished.load(through.state())
    assert finished.rows() == through.rows()


def test_faults():
    gold = Links((("alignment", 0, 0),), cross=True)
    with pytest.raises(UserError, match=r"gold.txt:7: .* from words of the target .* got words of source and no such"):
        GoldLinks(HEADS).add(example(0, gold), [head_maps(torch.rand(6, 9, 9))])
    data = replace(example(0, Links(())), words={})
    with pytest.raises(UserError, match=r"gold.txt:7: expected a head that attends within one text.* got words of no"):
        GoldLinks(HEADS).add(data, [head_maps(torch.rand(6, 9, 9))])
    nothing = GoldLinks(HEADS)
    nothing.add(replace(example(0, gold), extra=None), [head_maps(torch.rand(6, 9, 9))])
    assert nothing.rows() == []
