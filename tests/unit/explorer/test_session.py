"""Runs in the explorer: views, training steps, edits, and errors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import jarilab
from helpers.runs import TINY_MODEL, tiny, train
from jarilab.core.errors import UserError
from jarilab.explorer import open_explorer, page_file, summaries
from jarilab.explorer.page_file import saved_page
from jarilab.explorer.run_subject import MAX_TOKENS
from jarilab.explorer.subject import MAX_CACHED
from jarilab.pages.kit.data_blocks import unpacked
from jarilab.runs.experiment import Experiment


def test_seeds_whose_answers_have_different_lengths_are_compared_where_they_can_be() -> None:
    model = jarilab.EncoderDecoder(9, 9, d_model=16, n_heads=2).eval()
    tapes = []
    for length in (2, 4):
        with jarilab.record(model) as tape, torch.no_grad():
            model(torch.arange(3)[None], torch.arange(length)[None])
        tapes.append(("one recipe", tape))
    noise = summaries.noise(tapes)
    assert noise["value"] == pytest.approx(0, abs=1e-6), "the encoder's maps alone, which are equal"


def test_view_equals_predict(runs: Path) -> None:
    view = open_explorer([runs / "rotary"]).look("12+7", live=False)["views"][0]
    (answer,) = jarilab.predict(runs / "rotary", ["12+7"])
    assert view["answer"] == answer.answer
    assert view["expected"] == "19"
    assert [output["token"] for output in view["outputs"]] == [token for token, _ in answer.tokens]
    assert view["sides"]["source"]["tokens"] == ["1", "2", "+", "7"]
    for output, (_, probability) in zip(view["outputs"], answer.tokens, strict=True):
        assert output["top"][0] == [output["token"], pytest.approx(probability, abs=1e-5)]


@pytest.mark.parametrize(
    ("run", "line", "sites"),
    [
        ("rotary", "1+2", {"encoder.0", "decoder.0.self", "decoder.0.cross"}),
        ("recurrent", "3 5 2", {"decoder.cross"}),
        ("lm", "one two", {"decoder.0.self", "decoder.1.self"}),
    ],
)
def test_details_of_every_kind_of_model(runs: Path, run: str, line: str, sites: set[str]) -> None:
    explorer = open_explorer([runs / run])
    page = explorer.look(line, live=False)
    shown = page["views"][0]["sites"]
    assert sites <= {site["site"] for site in shown} or run == "recurrent"
    for site in shown:
        detail = explorer.head(line, 0, site["site"], site["heads"] - 1)
        assert detail["walk_error"] < 1e-9
        assert detail["scores"]["shape"] == site["shape"]
        assert site["trust"]["rebuild_error"] < 1e-4


@pytest.mark.parametrize(("run", "line"), [("rotary", "12+7"), ("recurrent", "3 5 2"), ("lm", "one two")])
def test_forwards_of_a_detail(runs: Path, run: str, line: str) -> None:
    explorer = open_explorer([runs / run])
    sites = explorer.look(line, live=False)["views"][0]["sites"]
    opened, calls = explorer.subjects[0], []
    step = opened.run.step
    for model in (opened.model(step), opened.model(step, precise=True)):
        model.register_forward_pre_hook(lambda model, inputs: calls.append(model))
    counts = []
    for site in (sites[0], sites[-1]):
        explorer.head(line, 0, site["site"], site["heads"] - 1)
        counts.append(len(calls))
    assert counts == [2, 3]


def test_runs_side_by_side(runs: Path) -> None:
    page = open_explorer([runs / "none", runs / "rotary"]).look("11+1", live=True)
    first, second = page["views"]
    assert (first["name"], second["name"]) == ("none", "rotary")
    assert first["vocabulary"] == second["vocabulary"]
    assert first["sites"][0]["weights"] != second["sites"][0]["weights"]


def test_step_0_is_the_model_before_training(runs: Path) -> None:
    explorer = open_explorer([runs / "rotary"])
    begun = explorer.look("12+7", {0: 0}, live=False)["views"][0]
    trained = explorer.look("12+7", live=False)["views"][0]
    assert (begun["step"], trained["step"], trained["steps"]) == (0, 12, [0, 12])
    assert begun["sites"][0]["weights"] != trained["sites"][0]["weights"]
    untrained = trained["sites"][0]["measures"]["entropy"]["untrained"]
    assert untrained == pytest.approx(begun["sites"][0]["measures"]["entropy"]["value"])


def test_only_the_last_inputs_are_cached(runs: Path) -> None:
    explorer = open_explorer([runs / "rotary"])
    for number in range(MAX_CACHED + 3):
        explorer.look(f"{number}+1", live=False)
    assert len(explorer.subjects[0]._recorded) == MAX_CACHED


def test_saved_page_has_all_heads_and_steps_within_its_size(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = open_explorer([runs / "rotary"])
    page = saved_page(explorer, "1+2", "decoder.0.cross", 1)
    assert all(len(site["details"]) == site["heads"] for site in page["views"][0]["sites"])
    assert [frame["step"] for frame in page["frames"]] == [0, 12]
    monkeypatch.setattr(page_file, "MAX_EXTRAS", 0)
    page = saved_page(explorer, "1+2", "decoder.0.cross", 1)
    opened = {site["site"]: set(site["details"]) for site in page["views"][0]["sites"]}
    assert opened == {"encoder.0": set(), "decoder.0.self": set(), "decoder.0.cross": {"1"}}
    assert "frames" not in page


def test_a_saved_page_has_the_step_of_each_view(runs: Path) -> None:
    explorer = open_explorer([runs / "none", runs / "rotary"])
    views = saved_page(explorer, "1+2", steps={0: 0})["views"]
    assert [view["step"] for view in views] == [0, 12]
    opened = explorer.head("1+2", 0, "encoder.0", 0, 0)
    assert views[0]["sites"][0]["details"]["0"]["scores"] == opened["scores"]


def test_a_text_that_ends_like_an_image_lists_no_files(runs: Path) -> None:
    explorer = open_explorer([runs / "lm"])
    assert explorer.files(f"{runs}/one.png") == explorer.files("no folder/one.png") == []


def test_errors_of_inputs_views_and_heads(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        open_explorer([tmp_path])
    with pytest.raises(UserError, match="given twice"):
        open_explorer([runs / "none", runs / "none"])
    with pytest.raises(UserError, match="expected the folder of a run"):
        open_explorer([])
    explorer = open_explorer([runs / "lm"])
    with pytest.raises(UserError, match=f"at most {MAX_TOKENS} tokens"):
        explorer.look("o" * (MAX_TOKENS + 1), live=False)
    with pytest.raises(UserError, match="keeps its weights of the steps 0, 4, not of 3"):
        explorer.look("one", {0: 3}, live=False)
    with pytest.raises(UserError, match="view from 0 to 0, got 7"):
        explorer.head("one", 7, "decoder.0.self", 0)
    with pytest.raises(UserError, match="unknown site 'encoder'"):
        explorer.head("one", 0, "encoder", 0)
    with pytest.raises(UserError, match="heads 0 to 1, got 9"):
        saved_page(explorer, "one", "decoder.0.self", 9)
    with pytest.raises(UserError, match="unknown site 'encoder'"):
        explorer.look("one", live=False, site="encoder")
    assert not explorer.subjects[0]._views  # told before the page is made


def test_effects_of_heads_are_those_of_an_edit(runs: Path) -> None:
    explorer = open_explorer([runs / "none", runs / "rotary"])
    page = explorer.look("12+7", live=False)
    off = {"kind": "head", "site": page["site"], "head": page["head"]}
    effect = explorer.operate("12+7", page["view"], [off], proceed=None)["effect"]
    effects = page["views"][page["view"]]["effects"]
    measured = effects["sites"][page["site"]]
    change = effect["log_probability"]["after"] - effect["log_probability"]["before"]
    assert measured["effect"][page["head"]] == pytest.approx(change / len(effect["tokens"]), abs=1e-5)
    place, largest, turns = measured["hit"][page["head"]]
    changes = [np.log(token["after"] / token["before"]) for token in effect["tokens"]]
    assert largest == pytest.approx(max(changes, key=abs), abs=1e-4) == pytest.approx(changes[place], abs=1e-4)
    before = page["views"][page["view"]]["answer"]
    assert (turns is None) == (effect["answer"] == before)
    assert effects["done"]
    assert effects["sites"]["encoder.0"]["layer"] != 0


def test_effect_of_an_edit(runs: Path) -> None:
    explorer = open_explorer([runs / "rotary"])
    page = explorer.look("12+7", live=True)
    off = [{"kind": "head", "site": "decoder.0.cross", "head": head} for head in range(2)]
    edited = explorer.operate("12+7", 0, off)
    effect = edited["effect"]
    before = [output["top"][0][1] for output in page["views"][0]["outputs"]]
    assert [row["before"] for row in effect["tokens"]] == pytest.approx(before, abs=1e-5)
    assert effect["log_probability"]["after"] != effect["log_probability"]["before"]
    assert 0 < effect["divergence"] < 0.7
    assert effect["rank"] == "there is no other place of this kind to compare with"
    own = {site["site"]: site for site in page["views"][0]["sites"]}
    for site in edited["view"]["sites"]:
        assert site["shape"] == own[site["site"]]["shape"], "the maps go along the original answer"
        assert set(site) == {"site", "shape", "weights", "trust"}, "a page has what edits do not change"
        assert site["trust"]["rebuild_error"] < 1e-4, "the edited forward is verified"
        assert site["trust"]["row_sum_error"] < 1e-5
    changed = {site["site"] for site in edited["view"]["sites"]}
    assert own.keys() - changed == {"encoder.0", "decoder.0.self"}, "what stands before the edit stays, bit by bit"


def test_forced_link_is_in_the_map(runs: Path) -> None:
    explorer = open_explorer([runs / "rotary"])
    link = {"kind": "link", "site": "encoder.0", "head": 1, "query": 2, "key": 0, "how": "force"}
    edited = explorer.operate("12+7", 0, [link])
    weights = unpacked(next(s for s in edited["view"]["sites"] if s["site"] == "encoder.0")["weights"])
    assert weights[1, 2].tolist() == [1, 0, 0, 0]
    assert weights[0, 2].max() < 1
    assert len(edited["effect"]["controls"]) == 20


def test_hidden_token_has_no_weight(runs: Path) -> None:
    explorer = open_explorer([runs / "rotary"])
    found = explorer.operate("12+7", 0, [{"kind": "token", "side": "source", "key": 1}])
    maps = {site["site"]: unpacked(site["weights"]) for site in found["view"]["sites"]}
    for site in ("encoder.0", "decoder.0.cross"):
        assert not maps[site][:, :, 1].any()
        assert maps[site][:, :, [0, 2, 3]].all()
    assert maps.keys() == {"encoder.0", "decoder.0.cross"}, "the other side stays"
    assert {control["what"].rpartition(": ")[2] for control in found["effect"]["controls"]} == {
        f"no key {key}" for key in (0, 2, 3)
    }


def test_rotary_is_invariant_to_shifted_positions(runs: Path) -> None:
    explorer = open_explorer([runs / "none", runs / "rotary"])
    shift = [{"kind": "place", "side": "both", "how": "shift", "amount": 5}]
    off = [{"kind": "place", "side": "source", "how": "off"}]
    assert explorer.operate("12+7", 1, shift)["effect"]["divergence"] < 1e-9
    assert explorer.operate("12+7", 0, off)["effect"]["divergence"] < 1e-12
    assert explorer.operate("12+7", 1, off)["effect"]["divergence"] > 1e-9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "head", "site": "encoder.0"}, "needs site, head; head is missing"),
        ({"kind": "head", "site": "encoder.7", "head": 0}, "unknown site"),
        ({"kind": "link", "site": "encoder.0", "query": 0, "key": 9, "how": "erase"}, "keys 0 to 3, got 9"),
        ({"kind": "token", "side": "source", "key": 4}, "the source has the tokens 0 to 3, got 4"),
        ({"kind": "token", "key": 0}, "an edit of kind token needs side, key; side is missing"),
        ({"kind": "place", "how": "stretch", "amount": 1e300}, "places are moved by"),
    ],
)
def test_impossible_edits_raise(runs: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        open_explorer([runs / "rotary"]).operate("12+7", 0, [change])


def test_order_checks(runs: Path) -> None:
    none, rotary = open_explorer([runs / "none", runs / "rotary"]).look("12+7", live=False)["views"]
    value = {check["label"]: check["value"] for check in none["checks"]}
    assert value["permutation, encoder.0"] == 0
    assert next(check["value"] for check in rotary["checks"] if check["name"] == "permutation") > 1e-6
    assert all(check["value"] < 1e-6 for check in rotary["checks"] if check["name"] == "shift")


def test_digit_places_and_carries(runs: Path) -> None:
    lens = open_explorer([runs / "rotary"]).look("19+7", live=False)["views"][0]["lens"]
    assert lens["kind"] == "arithmetic"
    assert lens["places"]["source"] == [
        {"role": "left", "place": 1},
        {"role": "left", "place": 0},
        {"role": "operator", "place": None},
        {"role": "right", "place": 0},
    ]
    assert "decoder.0.cross" in lens["share"]


def test_rollout_of_an_encoder(runs: Path) -> None:
    rolled = unpacked(open_explorer([runs / "rotary"]).look("19+7", live=False)["views"][0]["rollout"])
    assert rolled.shape == (4, 4)
    assert np.allclose(rolled.sum(1), 1, atol=1e-4)
    assert open_explorer([runs / "lm"]).look("one", live=False)["views"][0]["rollout"] is None


def test_missing_data_leave_no_expected_answer(tmp_path: Path) -> None:
    lines = ["one two", "three", "two one three", "one", "two", "three two"] * 4
    for name, side in (("de", lines), ("en", lines)):
        (tmp_path / f"{name}.txt").write_text("\n".join(side) + "\n")
    files = {"task.train": (str(tmp_path / "de.txt"), str(tmp_path / "en.txt")), "task.tokenizer": "words"}
    small = {**TINY_MODEL, **files, "training.batch_size": 8, "training.examples": 16, "training.evaluations": 1}
    train(tmp_path / "run", Experiment.of("translation", "rotary", small, 1, "float32"))
    task: Any = jarilab.load(tmp_path / "run").task
    held_out = task.held_out[0]
    assert open_explorer([tmp_path / "run"]).look(held_out[0], live=False)["views"][0]["expected"] == held_out[1]
    (tmp_path / "de.txt").rename(tmp_path / "elsewhere.txt")
    view = open_explorer([tmp_path / "run"]).look(held_out[0], live=False)["views"][0]
    assert view["expected"] is None
    assert view["answer"] is not None


def test_gold_links_give_an_error_rate(runs: Path) -> None:
    lens = open_explorer([runs / "recurrent"], align="0-0").look("3 5 2", live=False)["views"][0]["lens"]
    assert lens["kind"] == "alignment"
    assert 0 <= lens["error_rate"] <= 1
    with pytest.raises(UserError, match="expected links such as 0-0 1-2"):
        open_explorer([runs / "recurrent"], align="0:0")


def test_noise_of_runs_with_other_seeds(runs: Path, tmp_path: Path) -> None:
    train(tmp_path / "rotary-2", replace(tiny("rotary"), seed=2))
    both = open_explorer([runs / "rotary", tmp_path / "rotary-2"]).look("12+7", live=False)
    assert 0 < both["noise"]["value"] < 0.7
    assert open_explorer([runs / "none", runs / "rotary"]).look("12+7", live=False)["noise"] is None


def test_score_terms_and_erasure_of_a_head(runs: Path) -> None:
    detail = open_explorer([runs / "rotary"]).head("12+7", 0, "encoder.0", 1)
    summed = sum(unpacked(part["matrix"]) for part in detail["parts"])
    assert np.allclose(summed, unpacked(detail["scores"]), atol=1e-4)
    assert detail["parts_error"] < 1e-9
    assert {"largest", "random"} <= detail["erasure"].keys()
    assert detail["valued"]["shape"] == [4, 4]
