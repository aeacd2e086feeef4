"""`jarilab heads MODEL --data FILE`, as a person types it: over texts, gold links, images, sounds and runs."""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import wavfile

from helpers import folders
from helpers.command import command
from helpers.runs import tiny, train
from jarilab.runs.experiment import Experiment

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
]
LINES = [" ".join(folders.WORDS[start : start + 3 + start % 4] * 2) for start in range(8)]
CONLLU = """\
# text = The animal was tired
1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tanimal\tanimal\tNOUN\t_\t_\t4\tnsubj\t_\t_
3\twas\tbe\tAUX\t_\t_\t4\tcop\t_\t_
4\ttired\ttired\tADJ\t_\t_\t0\troot\t_\t_

# text = the street was wide
1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tstreet\tstreet\tNOUN\t_\t_\t4\tnsubj\t_\t_
3\twas\tbe\tAUX\t_\t_\t4\tcop\t_\t_
4\twide\twide\tADJ\t_\t_\t0\troot\t_\t_

"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    folders.bert(root / "bert")
    folders.saved(root / "embeds", "Bert", "Model")
    folders.vit(root / "vit")
    return root


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n")
    return tmp_path


def rows_of(folder: str | Path, name: str = "heads") -> list[dict]:
    return json.loads((Path(folder) / f"{name}.json").read_text())


def test_every_head_over_lines_of_text(models: Path) -> None:
    said = command("heads", models / "bert", "--data", "lines.txt", "--batch", 3)
    assert said.returncode == 0, said.stderr
    assert "jarilab: source tokens of lines.txt:1: [CLS] The animal didn't" in said.stderr
    assert "the start token [CLS] is added" in said.stderr
    summary, header, *lines = said.stdout.splitlines()
    assert summary.endswith("of 8 heads have a role")
    assert header.split()[:2] == ["head", "role"]
    count = int(summary.split()[0])
    assert len([line for line in lines if line.startswith("L")]) == count + min(5, 8 - count)
    wrote = [line for line in said.stderr.splitlines() if "wrote" in line]
    assert len(wrote) == 1
    assert wrote[0].startswith("jarilab: wrote heads, roles (.csv, .json")
    rows = rows_of("heads-bert-lines")
    assert [row["head"] for row in rows] == [f"L{layer}H{head}" for layer in range(2) for head in range(4)]
    assert all(row["entropy_count"] == 8 for row in rows)
    record = json.loads(Path("heads-bert-lines/study.json").read_text())["about"]
    assert record["start_token"] == "[CLS]"
    assert record["tokens"]["source"][:2] == ["[CLS]", "The"]


def test_the_batch_changes_nothing_and_the_same_command_continues(models: Path) -> None:
    first = command("heads", models / "bert", "--data", "lines.txt", "--batch", 3, "--out", "a")
    command("heads", models / "bert", "--data", "lines.txt", "--batch", 1, "--out", "b")
    for one, other in zip(rows_of("a"), rows_of("b"), strict=True):
        assert one["entropy"] == pytest.approx(other["entropy"], abs=1e-5)
        assert one["sink_low"] == pytest.approx(other["sink_low"], abs=1e-5)
    again = command("heads", models / "bert", "--data", "lines.txt", "--batch", 3, "--out", "a")
    assert "continuing after 8 of 8 examples" in again.stderr
    assert again.stdout == first.stdout


def test_limit_json_and_mean_maps(models: Path) -> None:
    words = ("--limit", 2, "--json", "--mean-maps", "--out", "a")
    said = command("heads", models / "bert", "--data", "lines.txt", *words)
    printed = json.loads(said.stdout)
    assert (printed["examples"], printed["heads"]) == (2, rows_of("a"))
    assert rows_of("a", "mean_maps")


def test_pairs_of_texts(models: Path, here: Path) -> None:
    (here / "pairs.tsv").write_text("The animal\tit was tired\nthe street\twas wide\n")
    said = command("heads", models / "bert", "--data", "pairs.tsv", "--out", "a")
    assert said.returncode == 0, said.stderr
    assert rows_of("a")[0]["entropy_count"] == 2


@pytest.mark.parametrize("name", ["gold.conllu", "gold.conllu.gz"])
def test_gold_links_of_a_treebank(models: Path, here: Path, name: str) -> None:
    packed = gzip.compress(CONLLU.encode()) if name.endswith("gz") else CONLLU.encode()
    (here / name).write_bytes(packed)
    said = command("heads", models / "bert", "--data", name, "--out", "a")
    assert said.returncode == 0, said.stderr
    links = rows_of("a", "gold_links")
    (subject,) = [row for row in links if (row["relation"], row["direction"]) == ("nsubj", "dependent to head")]
    assert (subject["count"], subject["baseline"], subject["baseline_offset"]) == (1, 1.0, 2)
    assert "dependent to head" in said.stdout


@pytest.mark.long
def test_links_of_a_file(models: Path, here: Path) -> None:
    (here / "two.txt").write_text("The animal was tired\nthe street was wide\n")
    (here / "links.tsv").write_text("1\t0\t1\tdet\n2\t0\t1\tdet\n")
    said = command("heads", models / "bert", "--data", "two.txt", "--gold", "links.tsv", "--out", "a")
    assert said.returncode == 0, said.stderr
    assert {row["relation"] for row in rows_of("a", "gold_links")} == {"det"}
    said = command("heads", models / "bert", "--data", "two.txt", "--gold", "links.tsv", "--limit", 1, "--out", "one")
    assert said.returncode == 0, said.stderr
    assert "no table gold_links: expected a relation with links in two examples" in said.stderr
    assert not (here / "one" / "gold_links.csv").exists()
    (here / "links.tsv").write_text("1\t0\t9\tdet\n")
    said = command("heads", models / "bert", "--data", "two.txt", "--gold", "links.tsv", "--out", "b")
    assert said.returncode == 2
    assert "links.tsv:1: expected words counted from 0" in said.stderr
    assert not (here / "b").exists()


def test_against_another_model(models: Path, here: Path) -> None:
    printed = command("heads", models / "bert", "--data", "lines.txt", "--against", models / "bert", "--out", "same")
    assert printed.returncode == 0, printed.stderr
    rows = rows_of("same", "against")
    assert [row["match"] for row in rows] == [row["head"] for row in rows] == [row["head"] for row in rows_of("same")]
    assert {row["distance"] for row in rows} == {0}
    assert "0 of 8 heads moved" in printed.stdout
    assert "in MODEL2" not in printed.stdout
    folders.bert(here / "other", seed=1)
    printed = command("heads", models / "bert", "--data", "lines.txt", "--against", here / "other", "--out", "apart")
    assert printed.returncode == 0, printed.stderr
    assert all(row["distance"] > 0 for row in rows_of("apart", "against"))
    printed = command("heads", models / "bert", "--data", "lines.txt", "--against", here / "nothing", "--out", "none")
    assert printed.returncode == 2
    assert "nothing: expected a folder of a run" in printed.stderr
    folders.saved(here / "deep", "Bert", "Model", num_hidden_layers=3)
    printed = command("heads", models / "bert", "--data", "lines.txt", "--against", here / "deep", "--out", "none")
    assert printed.returncode == 2
    assert "same number of attention layers, got 2 and 3" in printed.stderr
    assert not (here / "none").exists()


def test_a_folder_of_images(models: Path, here: Path) -> None:
    (here / "images").mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(here / "images" / f"{number}.png")
    said = command("heads", models / "vit", "--data", "images", "--out", "a")
    assert said.returncode == 0, said.stderr
    assert "roles that are scored on your data need 10 examples, got 3; add some" in said.stdout
    assert "0,0 0,1" in said.stderr
    assert "start token" not in said.stderr
    assert rows_of("a")[0]["entropy_count"] == 3
    (here / "images" / "1.png").write_bytes(b"\x89PNG no image")
    said = command("heads", models / "vit", "--data", "images", "--out", "b")
    assert said.returncode == 2
    assert said.stderr.count("1.png") == 2  # the example and its file
    assert "1.png: expected PNG, JPEG" in said.stderr
    assert not (here / "b").exists()


def test_the_roles_as_a_figure(models: Path, here: Path) -> None:
    pytest.importorskip("matplotlib")
    said = command("heads", models / "bert", "--data", "lines.txt", "--out", "a", "--figure", "roles.jpg")
    assert (said.returncode, (here / "a").exists()) == (2, False)
    assert "--figure: expected a file that ends in .svg, .pdf, .png, got roles.jpg" in said.stderr
    said = command("heads", models / "bert", "--data", "lines.txt", "--out", "a", "--figure", "roles.svg")
    assert "jarilab: wrote roles.svg" in said.stderr
    assert "score of the role" in (here / "roles.svg").read_text()


def test_a_model_of_windows_leaves_nothing(here: Path) -> None:
    folders.swin(here / "swin")
    (here / "images").mkdir()
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(here / "images" / "a.png")
    printed = command("heads", "swin", "--data", "images", "--out", "a")
    assert printed.returncode == 2
    assert "divides its input, as into windows" in printed.stderr
    assert not (here / "a").exists()


def test_a_model_of_image_and_text_says_that_it_read_no_image(models: Path, here: Path) -> None:
    folders.llava(here / "llava")
    (here / "few.txt").write_text("what is it\n")
    with_image = command("heads", "llava", "--data", "few.txt", "--out", "a")
    assert "no image was read: llava reads images too, and this is text alone" in with_image.stderr
    assert "was read" not in command("heads", models / "bert", "--data", "few.txt", "--out", "b").stderr


@pytest.mark.long
def test_a_long_example_is_shown_in_part(models: Path, here: Path) -> None:
    (here / "long.txt").write_text("The " * 50 + "\n")
    printed = command("heads", models / "bert", "--data", "long.txt")
    assert "[CLS]" + " The" * 39 + " ... (52)\n" in printed.stderr


@pytest.mark.parametrize(("family", "sites"), [("whisper", {"encoder", "decoder"}), ("wav2vec2", {"encoder"})])
def test_a_folder_of_sounds(here: Path, family: str, sites: set[str]) -> None:
    getattr(folders, family)(here / family)
    (here / "sounds").mkdir()
    for number in range(2):
        wave = np.random.default_rng(number).integers(-9000, 9000, 4000 + 800 * number).astype(np.int16)
        wavfile.write(here / "sounds" / f"{number}.wav", 8000, wave)
    printed = command("heads", family, "--data", "sounds", "--out", "a")
    assert printed.returncode == 0, printed.stderr
    rows = rows_of("a")
    assert {row["site"].partition(".")[0] for row in rows} == sites
    assert {row["entropy_count"] for row in rows} == {2}
    (here / "sounds" / "1.wav").write_bytes(b"RIFF no sound")
    printed = command("heads", family, "--data", "sounds", "--out", "b")
    assert printed.returncode == 2
    assert printed.stderr.count("1.wav") == 2, printed.stderr  # the example and its file
    assert "audio" in printed.stderr
    assert not (here / "b").exists()


def test_a_run_of_jari(here: Path) -> None:
    train(here / "run", tiny("sinusoidal"))
    (here / "sums.txt").write_text("1+1\n12+3\n2+21\n")
    said = command("heads", "run", "--data", "sums.txt")
    assert "to heads-run-sums; --out names another folder" in said.stderr
    said = command("heads", "run", "--data", "sums.txt", "--out", "a")
    assert said.returncode == 0, said.stderr
    assert "--out" not in said.stderr
    rows = rows_of("a")
    assert {row["site"] for row in rows} >= {"encoder.0"}
    assert rows[0]["entropy_count"] == 3
    (here / "sums.txt").write_text("1+1\nhello\n")
    said = command("heads", "run", "--data", "sums.txt", "--out", "b")
    assert said.returncode == 2
    assert "sums.txt:2: " in said.stderr


def role_tests(folder: str | Path) -> dict[tuple[str, str], set[str | None]]:
    """On which inputs each role is tested, by kind of site; None if it is not testable."""
    tests: dict[tuple[str, str], set[str | None]] = {}
    for row in rows_of(folder, "roles"):
        kind = "cross" if row["site"].endswith("cross") else row["site"].partition(".")[0]
        offset = row["role"].startswith(("offset", "next", "previous"))
        name = "offset" if offset else row["role"]
        on = None if row["holds"] == "not testable here" else row["tested_on"]
        tests.setdefault((kind, name), set()).add(on)
    return tests


PAIRED = {
    ("encoder", "offset"): {"random"},
    ("decoder", "offset"): {"random"},
    ("cross", "offset"): {"random"},
    ("encoder", "same token"): {"repeats"},
    ("decoder", "same token"): {"repeats"},
    ("cross", "same token"): {None},
    ("encoder", "position alone"): {"random"},
    ("decoder", "position alone"): {"random"},
    ("cross", "position alone"): {"random"},
}


@pytest.mark.long
@pytest.mark.parametrize("family", ["t5", "marian", "bart"])
def test_roles_of_an_encoder_decoder_are_probed(here: Path, family: str) -> None:
    getattr(folders, family)(here / family)
    (here / "pairs.tsv").write_text("".join(f"{line}\t{line}\n" for line in LINES))
    printed = command("heads", family, "--data", "pairs.tsv", "--out", "a")
    assert printed.returncode == 0, printed.stderr
    tests = role_tests("a")
    assert tests.items() >= PAIRED.items()
    for kind in ("encoder", "decoder"):
        assert (tests[kind, "induction"], tests[kind, "content alone"]) == ({"induction"}, {"orders"})
    assert tests["cross", "induction"] == tests["cross", "content alone"] == {None}


@pytest.mark.long
@pytest.mark.parametrize("model", [None, "decoder"])
def test_roles_of_a_run_are_probed(here: Path, model: str | None) -> None:
    layers = {"model.n_layers": 1} if model else {"model.n_encoder_layers": 1, "model.n_decoder_layers": 1}
    settings = {**layers, "model.d_model": 16, "model.n_heads": 2, "training.examples": 64, "training.batch_size": 16}
    train(here / "run", Experiment.of("arithmetic:maximum=30", "sinusoidal", settings, 1, "float32", model))
    (here / "sums.txt").write_text("".join(f"{number}+12\n" for number in range(1, 13)))
    printed = command("heads", "run", "--data", "sums.txt", "--out", "a")
    assert printed.returncode == 0, printed.stderr
    tests = role_tests("a")
    assert tests["decoder", "offset"] == {"random"}
    assert tests["decoder", "position alone"] == {"random"}
    if not model:
        assert tests["encoder", "same token"] == {"repeats"}
        assert tests["cross", "offset"] == {"random"}


@pytest.mark.long
def test_importance_of_an_encoder_by_its_embedding(models: Path) -> None:
    words = ("--data", "lines.txt", "--importance-examples", 4, "--out", "a")
    said = command("heads", models / "embeds", *words, "--importance", "zero", "--importance-by", "embedding")
    assert said.returncode == 0, said.stderr
    assert {row["kind"] for row in rows_of("a", "importance")} == {"zero"}
    (first,) = [row for row in rows_of("a", "importance") if row["rank"] == 1]
    assert {(row["head"], row["other"]) for row in rows_of("a", "importance_pairs")}
    shown = [line.split() for line in said.stdout.splitlines() if line.startswith("zero")]
    assert (len(shown), shown[0][:2]) == (8, ["zero", first["head"]])
    words = (*words[:-1], "b")
    said = command("heads", models / "embeds", *words, "--importance", "zero")
    assert said.returncode == 2
    assert "expected a model with a loss" in said.stderr
    assert "--importance-by embedding" in said.stderr
    said = command("heads", models / "embeds", *words, "--importance", "much")
    assert not Path("b").exists()
    assert "unknown kind of ablation 'much'" in said.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("The\n\nit\n", "data.txt:2: expected a text, got an empty line"),
        ("", "data.txt: expected at least one example, got none"),
        ("The animal\tit\nthe\n", "data.txt:2: expected two texts with a tab between them"),
        ("The " * 80 + "\n", "data.txt:1: bert reads 64 tokens at most, and the line has 82"),
        ("The\n가나 다라 The\n", "data.txt:2: expected a text in a language of bert, got 2 unknown tokens of 3"),
        ("[SEP]\n", "data.txt:1: expected a text in a language of bert, got 0 unknown tokens of 0"),
    ],
)
def test_data_that_cannot_be_read_leaves_nothing(models: Path, here: Path, text: str, message: str) -> None:
    (here / "data.txt").write_text(text)
    said = command("heads", models / "bert", "--data", "data.txt", "--out", "a")
    assert said.returncode == 2
    assert message in said.stderr
    assert not (here / "a").exists()


def test_data_of_another_kind_and_missing_files(models: Path, here: Path) -> None:
    for model, data, message in (
        ("vit", "lines.txt", "lines.txt: vit reads images, got lines of text"),
        ("bert", "sounds", "sounds: bert reads lines of text, got sounds"),
        ("bert", "nothing.txt", "nothing.txt: expected a text file or a folder of images or sounds"),
        ("bert", "empty", "expected a folder of images or one of sounds (.wav), got an empty folder"),
        ("none", "lines.txt", "expected a folder of a run (run.json), or one with config.json and weights"),
    ):
        (here / "sounds").mkdir(exist_ok=True)
        (here / "empty").mkdir(exist_ok=True)
        wavfile.write(here / "sounds" / "a.wav", 8000, np.zeros(80, np.int16))
        said = command("heads", models / model, "--data", data, "--out", "a")
        assert said.returncode == 2
        assert message in said.stderr
        assert not (here / "a").exists()


def test_a_model_without_a_tokenizer(models: Path, here: Path) -> None:
    shutil.copytree(models / "bert", here / "bare")
    for path in (here / "bare").glob("tokenizer*"):
        path.unlink()
    said = command("heads", "bare", "--data", "lines.txt", "--out", "a")
    assert said.returncode == 2
    assert "has no tokenizer" in said.stderr
    assert not (here / "a").exists()


def test_a_folder_of_other_data_is_not_overwritten(models: Path, here: Path) -> None:
    command("heads", models / "bert", "--data", "lines.txt", "--out", "a")
    (here / "others.txt").write_text("the street\n")
    said = command("heads", models / "bert", "--data", "others.txt", "--out", "a")
    assert said.returncode == 2
    assert "got another study (data: lines.txt there, others.txt here" in said.stderr
    assert "digest" not in said.stderr


@pytest.mark.parametrize(("out", "message"), [("lines.txt", "got a file"), ("lines.txt/a", "which is a file")])
def test_a_folder_that_cannot_be_made_is_refused_first(out: str, message: str) -> None:
    printed = command("heads", "no-model", "--data", "lines.txt", "--out", out)
    assert printed.returncode == 2
    assert f"{message}; choose another folder" in printed.stderr


@pytest.mark.slow
def test_tables_are_added_to_a_finished_study(models: Path, here: Path) -> None:
    words = ("heads", models / "bert", "--data", "lines.txt", "--out", "a")
    command(*words)
    before = rows_of("a")
    (here / "links.tsv").write_text("1\t0\t1\tdet\n2\t0\t1\tdet\n")
    printed = command(*words, "--mean-maps", "--gold", "links.tsv")
    assert printed.returncode == 0, printed.stderr
    assert "continuing after" not in printed.stderr
    maps, links = rows_of("a", "mean_maps"), rows_of("a", "gold_links")
    printed = command(*words, "--mean-maps", "--gold", "links.tsv")
    assert "continuing after 8 of 8 examples" in printed.stderr
    command(*words)  # keeps what is there
    printed = command(*words, "--mean-maps", "--gold", "links.tsv")
    assert "continuing after 8 of 8 examples" in printed.stderr
    assert (rows_of("a"), rows_of("a", "mean_maps"), rows_of("a", "gold_links")) == (before, maps, links)
    command(*words[:-1], "b", "--mean-maps", "--gold", "links.tsv")
    assert (rows_of("b"), rows_of("b", "mean_maps"), rows_of("b", "gold_links")) == (before, maps, links)
    (here / "links.tsv").write_text("1\t1\t0\tdet\n2\t1\t0\tdet\n")
    printed = command(*words, "--gold", "links.tsv")
    assert printed.returncode == 2
    assert "got another study (gold_links: links.tsv " in printed.stderr


@pytest.mark.long
def test_importance_and_comparison_are_added_and_kept(models: Path, here: Path) -> None:
    folders.saved(here / "other", "Bert", "Model")
    words = ("heads", models / "embeds", "--data", "lines.txt", "--out", "a")
    ablation = ("--importance-by", "embedding", "--importance-examples", 4)
    command(*words)
    printed = command(*words, *ablation, "--importance", "zero", "--against", "other")
    assert printed.returncode == 0, printed.stderr
    zero, against = rows_of("a", "importance"), rows_of("a", "against")
    command(*words, *ablation, "--importance", "mean", "--against", "other")
    rows = rows_of("a", "importance")
    assert [row for row in rows if row["kind"] == "zero"] == zero
    assert len([row for row in rows if row["kind"] == "mean"]) == len(zero)
    assert rows_of("a", "against") == against
    printed = command(*words, *ablation[:-1], 5, "--importance", "zero")
    assert printed.returncode == 2
    assert "importance.safetensors: expected" in printed.stderr
    assert "(examples: 4 there, 5 here)" in printed.stderr
    printed = command(*words, "--against", models / "embeds")
    assert printed.returncode == 2
    assert "against.safetensors: expected" in printed.stderr
    assert rows_of("a", "against") == against


@pytest.mark.parametrize("number", ["0", "-2", "x", "1.5", ""])
@pytest.mark.parametrize("option", ["--limit", "--batch", "--importance-examples"])
def test_counts_are_whole_numbers(option: str, number: str) -> None:
    said = command("heads", "model", "--data", "lines.txt", f"{option}={number}")
    assert said.returncode == 2
    assert f"{option}: expected a whole number from 1, got {number!r}" in said.stderr
