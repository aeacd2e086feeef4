"""The sections of the page of `jarilab causes`: the same numbers as the Python API, and refusals by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import jarilab
from helpers import folders
from jarilab.explorer.cause_sections import sections_of
from jarilab.explorer.causes import Causes
from jarilab.explorer.scored_input import ScoredInput, read_input
from jarilab.inspect.cause.answers import logit_over_mean
from jarilab.inspect.cause.contributions import contribution_rows
from jarilab.inspect.cause.relevance import METHODS, InputRelevance

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = "The animal didn't cross"
TEXTS = [f"The {one} {two} too {three}" for one in ("animal", "street") for two in ("was", "cross")
         for three in ("tired", "wide", "it")]  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.llama(tmp_path_factory.mktemp("model"), **folders.FELT)


@pytest.fixture(scope="module")
def scored(llama: Path) -> ScoredInput:
    return read_input(llama, TEXT).with_answer(None, None)


@pytest.fixture(scope="module")
def sections(scored: ScoredInput) -> dict[str, Any]:
    return sections_of(scored, TEXTS)


def test_contributions_are_those_of_the_python_api(scored: ScoredInput, sections: dict[str, Any]) -> None:
    shown = {row["part"]: row["contribution"] for row in sections["contributions"]["rows"]}
    rows = contribution_rows(scored.model, [scored.batch], logit_over_mean(scored.labels[0]))
    assert shown == pytest.approx({row["part"]: row["contribution"] for row in rows}, abs=1e-6)
    assert sum(shown.values()) == pytest.approx(sections["contributions"]["score"], abs=1e-4)


def test_the_score_of_contributions_is_linear_in_the_logits(scored: ScoredInput, llama: Path) -> None:
    logits = torch.randn(1, 6, 17)
    for one in (scored, read_input(llama, TEXT).with_answer("it", "was")):
        twice, once = (one.linear_score(factor * logits, one.batch) for factor in (2, 1))
        assert torch.allclose(twice, 2 * once)
    assert scored.linear_score(logits, scored.batch) == pytest.approx(
        float(logits[0, -1, scored.labels[0]] - logits[0, -1].mean()), abs=1e-5
    )


def test_the_last_layer_of_the_lens_is_the_model(scored: ScoredInput, sections: dict[str, Any]) -> None:
    lens = sections["lens"]
    with torch.no_grad():
        shares = scored.batch.forward(scored.model).logits[0].softmax(-1)
    *_, last = lens["layers"]
    assert last["tokens"] == [scored.show(int(each)) for each in shares.argmax(-1)]
    assert last["shares"] == pytest.approx(shares.max(-1).values.tolist(), abs=1e-5)
    (place,) = lens["places"]
    assert last["answers"][place] == pytest.approx(float(shares[-1].max()), abs=1e-5)
    assert [share is not None for share in last["answers"]] == [number == place for number in range(6)]
    assert [layer["after"] for layer in lens["layers"]] == [None, "L0", "L1"]
    answer = scored.show(scored.labels[0])
    assert lens["sentence"].startswith(repr(answer))
    assert repr(answer) in lens["korean"]


def test_relevance_is_that_of_the_python_api_and_judged(scored: ScoredInput, sections: dict[str, Any]) -> None:
    relevance = InputRelevance(scored.model, scored.batch, scored.score, special=scored.special)
    methods = {row["method"]: row for row in sections["relevance"]["methods"]}
    assert list(methods) == list(METHODS)
    assert methods["attention_gradient"]["tokens"] == relevance.of("attention_gradient").rows(0)
    assert "without a mask" in methods["rollout"]["refused"]
    judged = sections["relevance"]["judged"]
    assert "12 examples" in judged["sentence"]
    assert "12개" in judged["korean"]
    for row in judged["rows"]:
        assert row["gain_low"] <= row["gain"] <= row["gain_high"]


def test_a_sequence_of_special_tokens_needs_no_others(tmp_path: Path) -> None:
    """The decoder of an untrained model has read its start token alone, and no other id to put in its place."""
    asked = read_input(folders.t5(tmp_path / "t5"), TEXT).with_answer(None, None)
    left_out = sections_of(asked, TEXTS[:2])["relevance"]["judged"]["left_out"]
    assert "token ids" not in left_out.get("replace", "")


def test_one_input_is_not_judged(scored: ScoredInput) -> None:
    assert "--means" in sections_of(scored)["relevance"]["judged"]["refused"]


def test_what_a_model_does_not_allow_is_said_by_name(tmp_path: Path) -> None:
    asked = read_input(folders.bert(tmp_path / "bert"), "The animal was too [MASK]").with_answer(None, None)
    sections = sections_of(asked)
    assert "post-norm" in sections["composition"]["refused"]
    assert "post-norm" in sections["lens"]["warning"]
    assert "refused" not in sections["contributions"]


def test_composition_lists_what_is_above_chance(tmp_path: Path) -> None:
    """A later head whose keys read exactly what an earlier head writes."""
    folder = folders.saved(tmp_path / "gpt2", "GPT2", "LMHeadModel", n_head=4, n_embd=32, n_layer=2, n_positions=64)
    asked = read_input(folder, TEXT).with_answer(None, None)
    before = sections_of(asked)["composition"]
    assert (before["links"], before["sentence"][:4]) == ([], "None")
    first, second = asked.model.transformer.h
    with torch.no_grad():
        written = first.attn.c_proj.weight[8:16]  # (W, D) of head 1
        second.attn.c_attn.weight[:, 32 + 16 : 32 + 24] = written.T  # keys of head 2
    (link, *_) = sections_of(asked)["composition"]["links"]
    assert (link["head"], link["to"], link["input"]) == ("L0H1", "L1H2", "k")
    assert link["to_chance"] > 2


def test_sections_are_computed_when_they_are_read(llama: Path) -> None:
    causes: Causes = jarilab.causes(llama, TEXT, controls=3)
    assert "sections" not in vars(causes)
    asked = {"contributions", "lens", "composition", "relevance", "screening"}
    assert {name for name, section in causes.sections.items() if section is not None} == asked
    assert causes.as_dict()["sections"] is causes.sections


@pytest.mark.parametrize(("passing", "is_said"), [(0, False), (1, True), (2, True), (3, False)])
def test_the_sentence_says_when_as_many_heads_may_pass_by_chance(
    scored: ScoredInput, passing: int, is_said: bool
) -> None:
    conclusion = {"verdict": "no_head", "passing": passing, "all": 40, "controls": 39, "by_chance": 1.0}
    causes = Causes({"probability": 0.5}, [], [], [], conclusion, {}, scored)
    assert ("So many may pass by chance: try more --controls." in causes.sentence) == is_said
