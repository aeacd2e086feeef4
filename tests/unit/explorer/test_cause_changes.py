"""Screening, patching and steering as `jarilab causes` shows them, on models whose circuit is known."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.circuits.planting import plant
from safetensors.torch import save_file

import jarilab
from helpers import folders
from helpers.runs import tiny, train
from jarilab.core.errors import UserError
from jarilab.explorer.cause_changes import patching, read_vector, screening, steering
from jarilab.explorer.scored_input import ScoredInput, read_input

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
FAMILY = "induction, K-composition"
TEXT, OTHER = "<s> w3 w7 w1 w9 w4 w3 w7 w1 w9", "<s> w3 w7 w1 w9 w5 w3 w7 w1 w9"
SCALES = (-1.0, 1.0, 2.0)


@pytest.fixture(scope="module")
def induction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with an induction circuit, and a tokenizer of its words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("induction")
    planted: Any = plant(FAMILY, 1, "gpt2")
    planted.model.float().save_pretrained(folder)
    words = planted.token_names(range(planted.start + 1))
    tokenizer = Tokenizer(models.WordLevel({word: id for id, word in enumerate(words)}, unk_token=words[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def circuit() -> tuple[str, str]:
    """The previous-token head and the induction head."""
    first, second = (head for head, design in plant(FAMILY, 1, "gpt2").names.items() if not design.startswith("noise"))
    return first, second


@pytest.fixture(scope="module")
def scored(induction: Path) -> ScoredInput:
    return read_input(induction, TEXT).with_answer("w4", "w5")


def test_the_gradient_misses_the_previous_token_head_of_an_induction_circuit(
    induction: Path, circuit: tuple[str, str]
) -> None:
    certain = read_input(induction, TEXT).with_answer(None, None)
    section = screening(certain)
    rows = {row["head"]: row for row in section["rows"]}
    assert len(rows) == 10
    assert {row["checked"] for row in section["rows"]} == {"top"}
    assert abs(rows[circuit[0]]["estimate"]) < 1e-3
    assert rows[circuit[0]]["actual"] < -2.8
    assert circuit[0] in section["missed"]
    assert section["trusted"] is False
    assert f"misses {circuit[0]}" in section["sentence"]
    assert "All 10 heads were switched off" in section["sentence"]
    assert "10개" in section["korean"]


def test_a_screen_checks_the_largest_and_a_random_sample(scored: ScoredInput, circuit: tuple[str, str]) -> None:
    section = screening(scored, scored.corrupt(OTHER), count=2)
    checked = [row["checked"] for row in section["rows"]]
    assert (checked[:2], checked.count("random")) == (["top", "top"], 2)
    assert section["rows"][0]["head"] == circuit[1], "it copies the word that differs"
    assert section["replaced_by"] == "corrupt"
    assert "only the 2 with the largest estimates and 2 at random were patched" in section["sentence"]
    few = screening(scored, count=1)
    assert few["rank_correlation"] is None
    assert "fewer than 3 heads" in few["sentence"]


def test_the_induction_head_carries_the_difference_of_two_inputs(scored: ScoredInput, circuit: tuple[str, str]) -> None:
    section = patching(scored, scored.corrupt(OTHER), controls=9)
    rows = {(row["part"], row["position"]): row for row in section["rows"]}
    assert section["base"] - section["donor"] > 15
    assert rows[circuit[1], None]["share"] == pytest.approx(1.0, abs=0.02)
    assert rows[circuit[1], None]["passes"]
    assert rows["all heads", None]["share"] == pytest.approx(1.0, abs=0.02)
    assert rows["L0 stream", 5]["share"] == pytest.approx(1.0, abs=1e-3), "the word that differs"
    assert f"{circuit[1]}, -" in section["sentence"]
    passing = [row["passes"] for row in section["rows"] if row["passes"] is not None]
    chance = 2 * len(passing) / 10
    told = f"{sum(passing)} of {len(passing)} tested are larger than each of 9 random directions; about {chance:.1f} "
    assert told in section["sentence"]
    assert circuit[1] in section["korean"]


def test_two_scores_that_are_too_close_have_no_shares(induction: Path) -> None:
    other = read_input(induction, TEXT).with_answer("w3", "w9")
    section = patching(other, other.corrupt("<s> w3 w7 w9 w1 w4 w3 w7 w1 w9"), controls=9)
    difference = abs(section["base"] - section["donor"])
    assert max(abs(row["noised"]) for row in section["rows"]) > 10 * difference
    assert {row["share"] for row in section["rows"]} == {None}
    assert "%" not in section["sentence"]
    assert "effects are given in nats alone" in section["sentence"]


def test_a_model_with_another_head_differs_by_that_head(
    scored: ScoredInput, circuit: tuple[str, str], induction: Path, tmp_path: Path
) -> None:
    other = read_input(induction, TEXT)
    part = circuit[1].partition("H")
    attention = other.model.transformer.h[int(part[0][1:])].attn
    width = attention.head_dim
    with torch.no_grad():
        attention.c_proj.weight[int(part[2]) * width : (int(part[2]) + 1) * width] *= -1
    rows = {row["part"]: row for row in patching(scored, other.batch, other, controls=3)["rows"]}
    # The head's z is the same in both: the difference lies in W_O, which only the stream passes on.
    assert rows[circuit[1]]["noised"] == pytest.approx(0.0, abs=1e-4)
    assert rows["L1 stream out"]["share"] == pytest.approx(1.0, abs=1e-4)
    assert rows["L1 stream"]["share"] == pytest.approx(0.0, abs=1e-4)


def test_steering_turns_the_answer_into_that_of_the_other_input(scored: ScoredInput) -> None:
    section = steering(scored, scored.corrupt(OTHER), SCALES, controls=5)
    cells = {(cell["after"], cell["scale"]): cell for cell in section["cells"]}
    assert len(cells) == 3 * 3
    assert (section["clean"], cells["L1", 1.0]["token"], cells["L1", -1.0]["token"]) == ("w4", "w5", "w4")
    assert cells["L1", 1.0]["passes"]
    assert cells[None, 1.0]["change"] == 0.0, "the last words are the same"
    assert "'w5'" in section["sentence"]
    assert "after L1" in section["sentence"]
    assert "L1 뒤" in section["korean"]


@pytest.mark.parametrize("name", ["bert", "vit", "t5"])
def test_models_of_masks_classes_and_two_stacks_are_steered_and_patched(name: str, tmp_path: Path) -> None:
    from PIL import Image

    folder = getattr(folders, name)(tmp_path / name)
    texts = ["The animal was too [MASK]", "The street was too [MASK]"]
    if name == "vit":
        texts = [str(tmp_path / "red.png"), str(tmp_path / "blue.png")]
        for path in texts:
            Image.new("RGB", (32, 32), Path(path).stem).save(path)
    asked = read_input(folder, texts[0]).with_answer(None, None)
    donor = asked.corrupt(texts[1])
    section = steering(asked, donor, SCALES, controls=2)
    last = [cell for cell in section["cells"] if cell["scale"] == 1.0][-1]
    kinds = {row["kind"] for row in patching(asked, donor, controls=2)["rows"]}
    assert kinds == {"head", "mlp", "stream", "group"}
    if name != "vit":  # whose answer is read at one of many positions
        with torch.no_grad():
            expected = float(
                (
                    asked.score(donor.forward(asked.model), donor)
                    - asked.score(asked.batch.forward(asked.model), asked.batch)
                )[0]
            )
        assert last["change"] == pytest.approx(expected, abs=1e-4)


def test_two_runs_that_write_other_answers_are_compared_on_one(tmp_path: Path) -> None:
    """The decoder of each would read its own answer."""
    train(tmp_path / "one", tiny("rotary"))
    train(tmp_path / "other", tiny("rotary", training__lr=0.3))
    asked, other = (read_input(tmp_path / name, "12+1") for name in ("one", "other"))
    assert asked.batch.tokens[0]["target"] != other.batch.tokens[0]["target"]
    place = len(asked.batch.tokens[0]["target"]) - 1
    causes = jarilab.causes(tmp_path / "one", "12+1", answer="1", at=place, against=tmp_path / "other", controls=2)
    scored = read_input(tmp_path / "one", "12+1", at=place).with_answer("1", None)
    with torch.no_grad():
        expected = [float(scored.score(scored.batch.forward(each.model), scored.batch)[0]) for each in (asked, other)]
    assert [causes.patching["base"], causes.patching["donor"]] == pytest.approx(expected, abs=1e-5)


def test_what_the_python_function_returns(induction: Path, tmp_path: Path, circuit: tuple[str, str]) -> None:
    np.save(tmp_path / "v.npy", np.ones(read_input(induction, TEXT).model.config.n_embd))
    causes = jarilab.causes(induction, TEXT, rival="w5", corrupt=OTHER, steer=tmp_path / "v.npy", screen=2, controls=3)
    assert len(causes.rows) == 4
    assert {row["checked"] for row in causes.rows} == {"top", "random"}
    row = next(row for row in causes.rows if row["head"] == circuit[1])
    assert row["noised"] > 15
    assert "only the 2 with the largest" in causes.sentence
    assert {name for name, section in causes.sections.items() if section is None} == set()
    assert len(causes.maps["layout"]) == 10
    plain = jarilab.causes(induction, TEXT, controls=3)
    assert (plain.patching, plain.steering) == (None, None)


def test_a_head_that_decides_by_little_is_said_to_turn_the_answer(induction: Path) -> None:
    causes = jarilab.causes(induction, TEXT, controls=9)
    assert causes.conclusion["by"] == "turns"
    assert "decide" in causes.sentence
    assert "another answer is the most likely" in causes.sentence
    with_rival = jarilab.causes(induction, TEXT, rival="w5", controls=9)
    assert "another answer is the most likely" not in with_rival.sentence


def test_a_direction_of_0_is_refused(scored: ScoredInput) -> None:
    with pytest.raises(UserError, match="expected a second input that the model reads differently, got the same"):
        scored.corrupt(TEXT)
    with pytest.raises(UserError, match="expected a direction to steer by, got 0 in every layer"):
        steering(scored, scored.batch, SCALES, controls=2)


# Bad input ------------------------------------------------------------------------------------------------------------


class Harmful:
    def __reduce__(self) -> Any:
        return print, ("executed",)


def test_files_without_one_vector_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "matrix.npy", np.ones((3, 4)))
    np.save(tmp_path / "nan.npy", np.full(4, np.nan))
    np.save(tmp_path / "complex.npy", np.ones(4, complex))
    np.save(tmp_path / "object.npy", np.array([Harmful()] * 4), allow_pickle=True)
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(Harmful()))
    save_file({"a": torch.ones(4), "b": torch.ones(4)}, tmp_path / "two.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"cut")
    expected = {
        "matrix.npy": r"one vector as wide as the residual stream, got matrix.npy \(3, 4\); save one",
        "nan.npy": r"finite numbers, not all 0, got NaN, infinity or only zeros; save",
        "two.safetensors": r"one vector.*got a \(4,\), b \(4,\); save",
        "nothing.npy": "expected a file with a vector, got none; check",
    }
    others = dict.fromkeys(("complex.npy", "object.npy", "pickle.npy", "cut.safetensors"), "not one of them; save")
    for name, message in (expected | others).items():
        with pytest.raises(UserError, match=message):
            read_vector(tmp_path / name)
    assert capsys.readouterr().out == "", "nothing was unpickled"
    np.save(tmp_path / "row.npy", np.arange(4, dtype=np.float16)[None])
    save_file({"a": torch.arange(4.0).bfloat16()}, tmp_path / "row.safetensors")
    for name in ("row.npy", "row.safetensors"):
        assert read_vector(tmp_path / name).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_two_models_of_other_tokens_or_answers_are_refused(induction: Path, tmp_path: Path) -> None:
    llama = folders.llama(tmp_path / "llama", **folders.FELT)
    wide = folders.llama(tmp_path / "wide", **folders.FELT | {"vocab_size": 24})
    with pytest.raises(
        UserError, match=r"same token ids, got llama, which reads '.*', and .* as other inputs; compare"
    ):
        jarilab.causes(llama, TEXT, against=induction)
    with pytest.raises(UserError, match=r"one vocabulary, got 17 answers of llama and 24 of wide, or others; compare"):
        jarilab.causes(llama, "The animal", against=wide)
    with pytest.raises(UserError, match=r"the second model: .*none: expected a folder of a run"):
        jarilab.causes(llama, "The animal", against=tmp_path / "none")
    with pytest.raises(UserError, match=r"a second input or a second model, got both; patch"):
        jarilab.causes(llama, "The animal", against=llama, corrupt="The street")
    with pytest.raises(UserError, match=r"expected a direction to scale, got a scale of 2 alone; name"):
        jarilab.causes(llama, "The animal", scale=2.0)
    np.save(tmp_path / "v.npy", np.ones(7))
    with pytest.raises(UserError, match=r"L0 stream: expected a vector of 32 numbers, got 7"):
        jarilab.causes(llama, "The animal", steer=tmp_path / "v.npy")
