"""A model card says what the run's files say, in Markdown that no name of a person can change."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.command import command
from tests.helpers.runs import held, newest_of, seal, tiny, train

import jarilab
from jarilab.comparison.card import card, maps, plain, write
from jarilab.comparison.statistics import wilson
from jarilab.core.storage.files import sha256

HOSTILE = "a | b\n## c <script>alert(1)</script> [x](javascript:y) ![z](http://z) `\"'*_ &amp;"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "add"
    train(folder, tiny("learned:positions=9"))
    return folder


def test_a_card_says_what_the_run_says(run: Path) -> None:
    text = card(jarilab.load(run))
    result = json.loads((run / "result.json").read_text())
    _, head, body = text.split("---\n", 2)
    rows = dict(line.split(": ", 1) for line in head.splitlines())
    assert json.loads(rows["tags"])[-2:] == ["encoder_decoder", "learned:positions=9"]
    (measured,) = json.loads(rows["model-index"])[0]["results"]
    assert measured["metrics"] == [{"type": "exact_match", "value": result["exact_match"]}]
    low, high = wilson(result["exact_match"], int(result["examples"]))
    assert f"all | {result['exact_match']:.2%} | {low:.2%} to {high:.2%} | {int(result['examples']):,}" in body
    assert sha256(newest_of(run) / "model.safetensors") in body
    assert "It cannot read more than 9 positions of the source." in body
    assert "| model.d&#95;model | 16 |" in body
    assert "It is one run of one seed" in body


def test_the_picture_shows_every_head(run: Path, tmp_path: Path) -> None:
    from PIL import Image

    picture = write(jarilab.load(run), tmp_path / "card.md")
    assert picture == tmp_path / "card-attention.png"
    assert f"({picture.name})" in (tmp_path / "card.md").read_text()
    with Image.open(picture) as opened:
        pixels = np.asarray(opened)
    assert (pixels == 255).all(-1).any()  # between maps
    assert pixels.min() < 150 < pixels.max()


def test_groups_that_another_metric_measures_are_left_out(run: Path, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(run, tmp_path / "run")
    path = copy / "result.json"
    measured = {"metric": "perplexity", "perplexity": 3.25, "best": {"step": 12, "perplexity": 3.25}}
    seal(path, held(path) | measured)
    assert "| all | 3.250 | not known |" in card(jarilab.load(copy))


def test_a_card_without_a_result_claims_none(run: Path, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "result.json").unlink()
    text = card(jarilab.load(copy))
    assert "Nothing was measured yet" in text
    assert "It was not measured." in text
    assert "model-index" not in text


def test_no_name_becomes_markup(run: Path, tmp_path: Path) -> None:
    import shutil

    shown = plain(HOSTILE)
    assert not set(shown) & set("<>|[]`*_!\n\\")
    folder = tmp_path / "a [x](y) <b> | `c`"
    shutil.copytree(run, folder)
    text = card(jarilab.load(folder))
    _, head, body = text.split("---\n", 2)
    assert json.loads(dict(line.split(": ", 1) for line in head.splitlines())["model-index"])[0]["name"] == folder.name
    assert "<b>" not in body
    assert "[x](y)" not in body


def test_the_command_prints_or_writes(run: Path, tmp_path: Path) -> None:
    result = command("card", run)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("---\nlibrary_name")
    result = command("card", run, "--out", tmp_path / "README.md")
    assert result.stdout == f"{tmp_path / 'README.md'}, {tmp_path / 'README-attention.png'}\n"
    result = command("card", run, "--out", tmp_path / "new" / "folder" / "card.md")
    assert (tmp_path / "new" / "folder" / "card-attention.png").exists(), result.stderr
    result = command("card", run, "--out", tmp_path / "README.md" / "card.md")
    assert (result.returncode, result.stderr.count("README.md/card.md cannot be written: ")) == (2, 1)
    result = command("card", run, "--out", tmp_path)
    assert (result.returncode, result.stderr.count("is a folder")) == (2, 1)
    result = command("card", tmp_path / "nowhere")
    assert result.returncode == 2
    assert maps(jarilab.load(run)) == (tmp_path / "README-attention.png").read_bytes()
