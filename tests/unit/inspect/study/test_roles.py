"""Heads whose weights are written for a role get its name, and heads that only look like it do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import jarilab
from helpers.head_maps import Links
from helpers.planted_heads import (
    LENGTH,
    POSITION,
    START,
    TOKEN,
    TOKENS,
    PlantedHeads,
    first_token,
    induction,
    noise,
    offset,
    random_between,
    same_token,
    uniform,
)
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.gold_links import GoldLinks
from jarilab.inspect.study.model_batches import batch_of
from jarilab.inspect.study.probes import ProbeInput, other_tokens
from jarilab.inspect.study.roles import NO_PATTERN, NOT_TESTABLE
from jarilab.inspect.study.targets import is_delimiter

Heads = dict[str, Callable[[], Tensor]]
PLANTED: Heads = {
    "previous": lambda: offset(-1),
    "next": lambda: offset(1),
    "offset -7": lambda: offset(-7),
    "offset +3": lambda: offset(3),
    "offset 0": lambda: offset(0),
    "same token": same_token,
    "induction": induction,
    "first token": first_token,
    "uniform": uniform,
    "position alone": random_between(POSITION),
    "content alone": random_between(TOKEN),
    NO_PATTERN: noise,
}
CAUSAL = [name for name in PLANTED if name not in ("next", "offset +3", "offset 0")]
# Without a mask, the key after a token has it as the token before: the planted head attends there, too.
BOTH_SIDES = [name for name in PLANTED if name != "induction"]


def random_batches(count: int = 4, rows: int = 8, seed: int = 0) -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        length = int(torch.randint(20, 40, (), generator=generator))
        ids = torch.randint(1, TOKENS, (rows, length), generator=generator)
        ids[:, 0] = START
        yield {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def roles(heads: Heads, batches: Any = None, *, causal: bool = True, **options: Any) -> list[dict[str, Any]]:
    torch.manual_seed(3)
    model = PlantedHeads(heads, causal=causal)
    return jarilab.study(model, random_batches() if batches is None else batches, **options).rows()


@pytest.mark.parametrize("causal", [True, False])
def test_each_planted_head_has_its_role(causal: bool) -> None:
    names = CAUSAL if causal else BOTH_SIDES
    rows = roles({name: PLANTED[name] for name in names}, causal=causal)
    assert [row["role"] for row in rows] == names


def test_a_named_role_has_its_score_its_interval_and_a_margin() -> None:
    (row,) = roles({"previous": PLANTED["previous"]})
    assert row["role_strength"] == "strong"
    assert 0.9 < row["role_low"] <= row["role_score"] <= row["role_high"]
    assert row["role_margin_low"] > 0
    assert row["role_queries"] >= 30
    assert row["role_examples"] >= 10
    assert row["role_data_score"] > 0.9


def test_a_fixed_offset_is_not_induction_where_all_blocks_have_one_length() -> None:
    """On blocks of 8, a head that looks 7 back has a perfect score for induction."""
    generator = torch.Generator().manual_seed(1)
    blocks = [torch.randperm(TOKENS - 1, generator=generator)[:8] + 1 for _ in range(40)]
    ids = torch.stack([torch.cat((torch.tensor([START]), *[block] * 3)) for block in blocks])
    fixed, true = roles({"fixed": lambda: offset(-7), "true": induction}, [ids[:20], ids[20:]])
    assert fixed["induction"] > 0.99  # the measure on this data is fooled
    assert fixed["role"] == "offset -7"
    assert true["role"] == "induction"


def test_without_probes_two_roles_that_coincide_on_the_data_are_not_named() -> None:
    generator = torch.Generator().manual_seed(1)
    blocks = [torch.randperm(TOKENS - 1, generator=generator)[:8] + 1 for _ in range(40)]
    ids = torch.stack([torch.cat((torch.tensor([START]), *[block] * 3)) for block in blocks])
    rows = roles({"fixed": lambda: offset(-7), "true": induction}, [ids], probes=False)
    assert "induction" not in {row["role"] for row in rows}


@pytest.mark.slow
def test_noise_has_no_role_over_many_seeds() -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        model = PlantedHeads({str(head): noise for head in range(6)}, causal=bool(seed % 2))
        rows = jarilab.study(model, random_batches(seed=seed)).rows()
        assert {row["role"] for row in rows} == {NO_PATTERN}


def test_a_significant_head_below_the_effect_size_has_no_role() -> None:
    """A head with a third of its weight on the token before is far above chance on each query."""

    def weak() -> Tensor:
        scores = offset(-1)
        return scores / scores.max() * 3.0

    (row,) = roles({"weak": weak})
    assert row["previous"] > 3 * row["previous_chance"]
    assert row["previous_low"] > row["previous_chance"]
    # Its weights do depend on positions alone.
    assert row["role"] == "position alone"
    assert 0.9 <= row["role_low"] <= row["role_score"] <= row["role_high"] <= 1


def test_a_head_that_was_not_tested_comes_close_to_no_role() -> None:
    rows = jarilab.study(PlantedHeads({"weak": lambda: offset(-1)}), [torch.tensor([[1, 2]])], probes=False).rows()
    assert [(row["role"], row["role_candidate"]) for row in rows] == [(NOT_TESTABLE, None)]


def test_a_role_on_probes_that_the_data_contradict_is_not_named() -> None:
    """The head looks back only from tokens that the data do not have."""

    def rare() -> Tensor:
        scores = first_token()
        scores[POSITION, POSITION] = 400 * torch.diag(torch.ones(LENGTH - 1), -1)
        scores[1:9] = 0
        scores[1:9, TOKENS + LENGTH + 1] = 800  # the first eight tokens rest on the start
        return scores

    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 9, (40, 24), generator=generator)
    ids[:, 0] = START
    model = PlantedHeads({"rare": rare}, causal=True)

    def padded(rows: list[list[int]]) -> Any:
        length = max(map(len, rows))
        ids = torch.tensor([[*row, *[1] * (length - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
        return batch_of({"input_ids": ids, "attention_mask": mask})

    probes = ProbeInput(padded, range(9, TOKENS), [START])
    (row,) = jarilab.study(model, [ids], probes=probes).rows()
    assert row["role"] != "previous"
    assert "previous on probes only" in row["role_partial"]


def test_few_examples_are_not_testable() -> None:
    ids = torch.tensor([[START, 1, 2, 3]])
    (row,) = roles({"previous": PLANTED["previous"]}, [ids], probes=False)
    assert row["role"] == NOT_TESTABLE


def test_a_relation_with_one_candidate_word_is_not_testable() -> None:
    """The second word of a causal model has one earlier word, so every head finds it."""
    ids = torch.randint(1, TOKENS, (24, 5), generator=torch.Generator().manual_seed(0))
    words, gold = {"source": list(range(5)), "target": list(range(5))}, Links((("det", 1, 0), ("obj", 3, 0)))
    batch = replace(batch_of(ids), words=[words] * 24, extras=[gold] * 24)
    torch.manual_seed(0)
    model = PlantedHeads({"noise": noise}, causal=True)
    study = jarilab.study(model, [batch], accumulators=[GoldLinks], probes=False)
    roles = {row["role"]: row for row in study.all_rows()["roles"]}
    one = roles["relation det (query to key)"]
    assert (one["holds"], one["low"], one.get("score")) == (NOT_TESTABLE, None, None)
    assert roles["relation obj (query to key)"]["score"] is not None


def test_a_role_whose_targets_are_all_keys_is_not_testable() -> None:
    """Where every token is punctuation, a head cannot miss the delimiters."""
    batches = list(random_batches())
    names = [[["."] * len(ids) for ids in batch["input_ids"]] for batch in batches]
    torch.manual_seed(0)
    model = PlantedHeads({"noise": noise}, causal=True)
    rows = jarilab.study(model, batches, names, probes=False).all_rows()["roles"]
    (delimiter,) = [row for row in rows if row["role"] == "delimiter"]
    assert (delimiter["holds"], delimiter["low"]) == (NOT_TESTABLE, None)


def test_probes_do_not_depend_on_padding_and_the_same_seed_gives_the_same_roles() -> None:
    first, second = (roles({"previous": PLANTED["previous"], "noise": noise}, seed=4) for _ in range(2))
    assert first == second


def test_padded_rows_do_not_change_a_role() -> None:
    def padded() -> Iterator[dict[str, Tensor]]:
        for batch in random_batches():
            ids, mask = batch["input_ids"], batch["attention_mask"].clone()
            mask[1::2, 15:] = 0
            yield {"input_ids": ids, "attention_mask": mask}

    rows = roles({"previous": PLANTED["previous"], "next": PLANTED["next"]}, padded(), causal=False)
    assert [row["role"] for row in rows] == ["previous", "next"]


def test_a_target_of_probes_repeats_as_its_source_with_other_tokens() -> None:
    for source, target in ((range(5, 17), range(5, 17)), ([3, 9, 40], range(50)), (range(90), [1, 2, 3])):
        others = other_tokens(source, target)
        assert len({*others.values()}) == len(others) == min(len(source), len(target))
        assert {*others} <= {*source}
        assert {*others.values()} <= {*target}
        assert all(one != other for one, other in others.items()) or source != target
    probe = ProbeInput(lambda rows: Batch(), range(9), start=[1, 2], end=[3], target_start=1)
    assert probe.inner([1, 2, 7, 8, 3]) == [7, 8]
    assert (probe.start_of("source"), probe.start_of("target")) == (2, 1)
    assert replace(probe, target_start=None).start_of("target") == 2


@pytest.mark.parametrize("name", [",", "▁,", "Ġ(", " -", "##.", "##", "[SEP]", "<s>", "。"])
def test_punctuation_and_special_tokens_are_delimiters(name: str) -> None:
    assert is_delimiter(name)


@pytest.mark.parametrize("name", ["", "▁", "Ġ", " ", "Ġthe", "a.", "<0xEA>", "$"])
def test_other_tokens_are_no_delimiters(name: str) -> None:
    assert not is_delimiter(name)


class Positions(PlantedHeads):
    """A model that refuses more positions than it has, as one with learned positions does."""

    def __init__(self, limit: int, **config: int):
        super().__init__({"previous": PLANTED["previous"]}, causal=True)
        self.limit, self.longest, self.config = limit, 0, SimpleNamespace(**config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        self.longest = max(self.longest, input_ids.shape[1])
        if self.longest > self.limit:
            raise IndexError("index out of range in self")
        return super().forward(input_ids, attention_mask)


@pytest.mark.parametrize("has_mask", [True, False])
def test_probes_are_no_longer_than_the_data_or_the_positions_that_are_known(has_mask: bool) -> None:
    def rows(*lengths: int) -> list[Any]:
        generator = torch.Generator().manual_seed(0)
        ids = [torch.randint(1, TOKENS, (12, length), generator=generator) for length in lengths]
        return [{"input_ids": each, "attention_mask": torch.ones_like(each)} for each in ids] if has_mask else ids

    for lengths in ((16,), (12, 16), (16, 12)):
        (row,) = jarilab.study(model := Positions(16), rows(*lengths)).rows()
        assert (row["role"], model.longest) == ("previous", 16)
    jarilab.study(model := Positions(30, max_position_embeddings=30), rows(16))
    assert 16 < model.longest <= 30
    jarilab.study(model := Positions(64, max_position_embeddings=64), rows(16))
    assert 30 < model.longest <= 40


@pytest.mark.parametrize(
    "ids",
    [[[0] * 8] * 2, [[1, 5, 5, 2]] * 3, [[1]] * 3, [[4], [5], [6]], [[3, 4, 2], [3, 5, 2], [3, 6, 2]]],
    ids=["one token", "one token inside", "no token inside", "one position", "one position inside"],
)
def test_without_two_tokens_to_draw_or_place_there_are_no_probes(ids: list[list[int]]) -> None:
    torch.manual_seed(0)
    model = PlantedHeads({"noise": noise}, causal=True)
    with pytest.warns(
        UserWarning, match=r"no random sequences: expected at least 2 .*got .*; add texts .*on your data alone"
    ):
        study = jarilab.study(model, [torch.tensor(ids)])
    assert study.rows() == jarilab.study(model, [torch.tensor(ids)], probes=False).rows()
