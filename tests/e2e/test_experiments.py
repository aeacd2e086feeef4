"""The experiments do what they say, with budgets of seconds. Those that train more than a model or two are long."""

import json
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional

import jarilab
from helpers import folders
from helpers.runs import newest_of
from helpers.trials import trials_in_this_process
from jarilab.data.images import idx
from jarilab.data.images.labelled import Wanted, read_labelled
from jarilab.tasks.classification import LoadedImage
from jarilab.tasks.metrics import METRICS

EXPERIMENTS = Path(__file__).parent.parent.parent / "experiments"
TINY = {"model.d_model": 16, "training.batch_size": 8, "training.evaluations": 1, "training.evaluation_examples": 4}
Load = Callable[[str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """An experiment by its name, found as Python finds it when it is run as a script."""
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    before = set(sys.modules)

    def loaded(name: str) -> ModuleType:
        return __import__(name)

    yield loaded
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(EXPERIMENTS)):
            del sys.modules[name]


def tiny(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **settings: Any) -> None:
    """Make the experiment one of seconds."""
    changed = {**module.SETTINGS, **TINY, **{name.replace("__", "."): value for name, value in settings.items()}}
    for name, value in changed.items():
        monkeypatch.setitem(module.SETTINGS, name, value)


def study_of(folder: Path, results: Mapping[str, Sequence[Mapping[str, Any]]], metric: str) -> dict[str, Any]:
    """What jarilab.compare gives and leaves behind, for trials that ended so."""
    trials = []
    for encoding, of_seeds in results.items():
        for seed, result in enumerate(of_seeds, 1):
            run = folder / f"{encoding.replace(':', '_')}-{seed}"
            run.mkdir(parents=True)
            (run / "result.json").write_text(json.dumps(result))
            trials.append({"encoding": encoding, "seed": seed, "run": str(run), "held_out": result["examples"]})
    return {"metric": metric, "trials": trials}


def ended(accuracy: float, **more: Any) -> dict[str, Any]:
    return {"accuracy": accuracy, "examples": 360.0, "parameters": 1234, "cpu_seconds": 26.4, **more}


# What stands in the tables ----------------------------------------------------------------------------------------


def test_the_table_of_encodings_has_means_paired_differences_and_the_published_figures(
    load: Load, tmp_path: Path
) -> None:
    images = load("images")
    results = {
        "none": [ended(0.7), ended(0.8)],
        "rotary2d": [ended(0.95), ended(0.97)],
        "rotary2d:frequencies=mixed": [ended(0.9), ended(0.9)],
    }
    lines = images.table_of(study_of(tmp_path, results, "accuracy")).splitlines()
    assert lines[:2] == [
        "| encoding | accuracy | beyond none, paired | CIFAR-10, published | parameters | CPU-seconds |",
        "| :--- | ---: | ---: | ---: | ---: | ---: |",
    ]
    assert lines[2].startswith("| `none` | 75.00% (11.29% to 100.00%) |  | 79.63% | 1,234 | 26 |")
    assert "| `rotary2d` | 96.00% (83.04% to 100.00%) | +21.00% (-29.82% to +71.82%) | 88.49% |" in lines[3]
    assert "| 90.00% (86.47% to 92.69%) | +15.00% (-48.53% to +78.53%) |  | 1,234" in lines[4], "no figure of another's"
    alone = images.table_of(study_of(tmp_path / "one", {"none": [ended(0.5)], "learned": [ended(0.8)]}, "accuracy"))
    assert "| 80.00% (75.56% to 83.81%) | +30.00% | 86.52% |" in alone, "of one seed no paired interval"


def test_the_trained_part_of_mnist_is_its_first_images(load: Load, tmp_path: Path) -> None:
    images = load("images")
    mnist = tmp_path / "mnist"
    mnist.mkdir()
    pixels, labels = torch.arange(5 * 4 * 3, dtype=torch.uint8).view(5, 4, 3), torch.tensor([3, 1, 4, 1, 5])
    for part in ("train", "t10k"):
        (mnist / f"{part}-images-idx3-ubyte").write_bytes(
            idx.IMAGES + struct.pack(">3I", 5, 4, 3) + pixels.numpy().tobytes()
        )
        held = labels.to(torch.uint8).numpy().tobytes()
        (mnist / f"{part}-labels-idx1-ubyte").write_bytes(idx.LABELS + struct.pack(">I", 5) + held)
    images.write_first(mnist, tmp_path / "some", 3)
    some = read_labelled(tmp_path / "some", Wanted(1, None, "stretch", None))
    assert torch.equal(some.images(torch.arange(3))[:, 0], pixels[:3])
    assert [some.classes[int(label)] for label in some.labels] == ["3", "1", "4"]
    with pytest.raises(jarilab.UserError, match=r"--mnist expects a folder with MNIST's four idx files, got .*nowhere"):
        images.write_first(tmp_path / "nowhere", tmp_path / "some", 3)


def test_a_refused_resolution_is_named_with_its_reason(load: Load) -> None:
    resolution = load("resolution")
    measured = [
        {"as trained": 0.95, "resize": 0.5, "rescale": 0.25, "extrapolate": "it knows 4 rows"},
        {"as trained": 0.97, "resize": 0.5, "rescale": 0.25, "extrapolate": "it knows 4 rows"},
    ]
    table = resolution.table_of({"learned2d": measured}, 360)
    assert (
        table.splitlines()[0] == "| accuracy | as trained | 2 times, resize | 2 times, rescale | 2 times, extrapolate |"
    )
    assert table.splitlines()[2].startswith("| `learned2d` | 96.00% (83.04% to 100.00%) | 50.00% ")
    assert table.splitlines()[2].endswith("| refused |")
    assert table.splitlines()[-2:] == ["- `learned2d`, extrapolate: it knows 4 rows", ""]


def test_the_table_of_detection_holds_every_variant_against_detrs(load: Load) -> None:
    detection = load("detection_positions")
    scores = {"nowhere": 0.1, "once, at the input": 0.4, "at every attention": 0.5, "at every attention, rotary": 0.6}
    results = {
        name: [
            {"ap": ap + seed, "ap50": ap + seed + 0.2, "examples": 1000.0, "cpu_seconds": 175.2} for seed in (0, 0.02)
        ]
        for name, ap in scores.items()
    }
    lines = detection.table_of(results).splitlines()
    assert "| nowhere | `none` | 0.110 (-0.017 to 0.237) | -0.400 | 0.310 " in lines[2]
    assert lines[4].startswith("| at every attention | `sinusoidal2d:where=inject,normalised=true` | 0.510 ")
    assert "|  | 0.710 (0.583 to 0.837) |  | 175 |" in lines[4], "nothing is held against itself"
    assert "| +0.100 |" in lines[5]


def test_variants_of_detection_differ_in_their_encoding_alone_and_can_be_built(load: Load) -> None:
    detection = load("detection_positions")
    built = []
    for variant in detection.VARIANTS:
        for query_positions in ("boxes", "vectors"):
            settings = detection.settings_of(variant, 64, query_positions, None)
            experiment = jarilab.runs.experiment.Experiment.of("detection", variant.encoding, settings)
            options = {n: v for n, v in experiment.model_options.items() if n != "encoding"}
            jarilab.Detector(1, 10, encoding=variant.encoding, **options)
            built.append((query_positions, options.pop("cross_encoding"), options, experiment.training))
    assert [cross for _, cross, _, _ in built] == [None, None, "none", "none", None, None, None, None]
    assert all(
        options == built[i % 2][2] and training == built[0][3] for i, (_, _, options, training) in enumerate(built)
    )


def test_order_tells_a_right_bag_from_a_right_order(load: Load) -> None:
    order = load("caption_order").order_of(
        torch.tensor([[3, 1, 7], [3, 1, 7], [2, 2, 5], [4, 4, 4]]),
        torch.tensor([[3, 1, 7], [1, 9, 3], [5, 2, 2], [4, 4, 0]]),
    )
    assert order.exact == 1 / 4
    assert order.in_place == pytest.approx((3 + 0 + 1 + 2) / 12)
    assert order.in_any_order == pytest.approx((3 + 2 + 3 + 2) / 12)
    assert order.shown == [[0.5, 0.5, 0], [0, 0.5, 0], [0.5, 0, 0.5]]
    assert order.bag == pytest.approx((1 / 6 + 1 / 6 + 1 / 3 + 1) / 4)


def test_the_table_of_order_has_the_ceilings_and_which_word_stands_where(load: Load) -> None:
    caption_order = load("caption_order")
    eye = torch.eye(3).tolist()
    even = torch.full((3, 3), 1 / 3).tolist()
    measured = {
        "with": [caption_order.Order(0.9, 0.95, 0.97, eye, 0.22)],
        "without": [caption_order.Order(0.2, 0.4, 0.96, even, 0.22)],
    }
    lines = caption_order.table_of(measured, 0.985, 640).splitlines()
    assert lines[2].startswith("| `with` | 90.00% (87.43% to 92.09%) | 95.00% ")
    assert lines[4] == "| the first beyond the second, paired | +70.00% | +55.00% | +1.00% |"
    assert lines[5] == "| a bag of words, at most | 22.00% |  |  |"
    assert lines[6] == "| the judge on real images | 98.50% |  |  |"
    assert "| middle | 0.0% | 100.0% | 0.0% |" in lines
    assert lines[-1] == "| right | 33.3% | 33.3% | 33.3% |"


@pytest.mark.parametrize("name", ["images", "resolution", "detection_positions", "caption_order"])
def test_an_experiment_tells_what_is_missing_before_it_trains(
    load: Load, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jarilab, "compare", lambda *_, **__: pytest.fail("it trained"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert load(name).main(["--out", str(tmp_path)]) == 2
    assert "drawn by matplotlib; install it with pip install 'jarilab[dev]'" in capsys.readouterr().err


def test_lines_are_drawn_with_gaps_where_nothing_was_measured(load: Load, tmp_path: Path) -> None:
    series = {METRICS["ap"].title: [[0.1, 0.2], None], "other": [None, [0.3]]}
    load("images").draw(tmp_path / "figure.svg", ["none", "rotary2d"], series, "of a title")
    assert "<svg" in (tmp_path / "figure.svg").read_text()


# Whole, by training for seconds -----------------------------------------------------------------------------------


def whole(module: Any, out: Path, options: Sequence[str], capsys: pytest.CaptureFixture[str], *, again: bool) -> str:
    """The table, after running the experiment. again: twice; nothing more is trained then, and the same is said."""
    command = ["--out", str(out), "--seeds", "1", *options]
    assert module.main(command) == 0
    said = capsys.readouterr().out
    if again:
        ends = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
        assert module.main(command) == 0
        assert capsys.readouterr().out == said
        assert {path: path.stat().st_mtime_ns for path in out.rglob("result.json")} == ends
    name = module.__name__
    table, _, wrote = said.rpartition("wrote ")
    assert wrote == f"{out / name}.md and {out / name}.svg\n"
    assert (out / f"{name}.md").read_text() == table
    assert "<svg" in (out / f"{name}.svg").read_text()
    return table


@pytest.mark.long
def test_the_encodings_are_compared(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = load("images")
    tiny(monkeypatch, images, model__n_layers=1, training__epochs=1, training__batch_size=256)
    chosen = [spec for spec in images.specs_of(images.GRID) if spec[:5] in ("none", "table")]
    monkeypatch.setattr(images, "specs_of", lambda grid: chosen)
    table = whole(images, tmp_path / "out", [], capsys, again=True)
    assert [line.split()[1] for line in table.splitlines()[2:]] == ["`none`", "`table2d:rows=3,columns=3`"]


@pytest.mark.long
def test_a_model_is_measured_at_twice_its_size(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, resolution = load("images"), load("resolution")
    tiny(monkeypatch, recipe, model__n_layers=1, training__epochs=2, training__batch_size=64)
    table = whole(resolution, tmp_path / "out", ["--encoding", "learned2d:rows=4,columns=4"], capsys, again=True)
    row = [cell.strip().partition("%")[0] for cell in table.splitlines()[2].split("|")[2:-1]]
    assert row[3] == "refused"
    assert "learned2d knows the rows 0 to 3, got 7" in table
    run = next((tmp_path / "out").rglob("result.json")).parent
    trained = json.loads((run / "result.json").read_text())["accuracy"]
    loaded = jarilab.load(run)
    task: Any = loaded.task
    held_out = task.held_out
    there_and_back = held_out.images(torch.arange(len(held_out))).float()
    for side in (16, 8):
        there_and_back = functional.interpolate(there_and_back, (side, side), mode="bilinear", antialias=True).round()
    images = [LoadedImage(pixels.byte(), (8, 8)) for pixels in there_and_back]
    said = loaded.model(task.sources(images)).argmax(-1)
    assert float(row[0]) == pytest.approx(100 * trained, abs=0.006), "as trained is what was measured then"
    back = float((said == held_out.labels).float().mean())
    assert float(row[1]) == pytest.approx(100 * back, abs=1), "resize brings the large image back"
    assert float(row[2]) != float(row[1]), "and rescale does not"


@pytest.mark.long
def test_detectors_are_compared(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    detection = load("detection_positions")
    tiny(monkeypatch, detection, model__n_heads=2, model__n_encoder_layers=1, model__n_decoder_layers=1)
    monkeypatch.setattr(detection, "VARIANTS", detection.VARIANTS[1:3])
    monkeypatch.setattr(detection, "AS_DETR", 1)
    table = whole(detection, tmp_path / "out", ["--examples", "16"], capsys, again=False)
    assert [line.split(" | ")[1] for line in table.splitlines()[2:]] == [
        "`sinusoidal2d:normalised=true`",
        "`sinusoidal2d:where=inject,normalised=true`",
    ]


@pytest.mark.long
def test_the_order_of_captions_is_compared(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    caption_order = load("caption_order")
    tiny(monkeypatch, caption_order, task__scenes=60, task__code_steps=4, task__judge_steps=4, model__n_heads=2)
    options = ["--examples", "16", "--n-layers", "1", "--images", "8"]
    table = whole(caption_order, tmp_path / "out", options, capsys, again=False)
    assert [line.split(" | ")[0] for line in table.splitlines()[2:4]] == [
        "| `learned@text+rotary2d@image`",
        "| `rotary2d@image`",
    ]
    assert table.count(" shows |") == 2


# quantizers.py -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_quantizers_are_measured_side_by_side(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantizers = load("quantizers")
    monkeypatch.setattr(quantizers, "SCENES", 60)
    table = quantizers.run(tmp_path, seeds=1, digits="", steps=3)
    assert (tmp_path / "quantizers.md").read_text() in table
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    assert [row[1].strip() for row in rows] == ["`fsq`", "`gumbel`"]
    assert all(re.fullmatch(r" -?\d+\.\d\d dB \(-?\d+\.\d\d to -?\d+\.\d\d\) ", row[2]) for row in rows)


# Text ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pronouns_run(tmp_path: Path) -> Path:
    """A run that has learned next to nothing."""
    settings = {"model.d_model": 16, "model.n_heads": 2, "training.examples": 64, "training.batch_size": 16}
    settings |= {"training.evaluations": 1, "training.evaluation_examples": 4}
    jarilab.train("pronouns", tmp_path / "run", settings=settings, threads=1)
    return tmp_path / "run"


@pytest.mark.long
def test_what_a_head_has_to_do_with_a_pronoun(
    load: Load, pronouns_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pronouns = load("pronouns")
    assert pronouns.main([str(pronouns_run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| encoder.0 0 | it | ")
    assert sum(line.startswith("| decoder.1.cross ") for line in lines) == 2
    assert "| removed | right of 137 pronouns |" in lines
    assert any(line.startswith("| the encoder's links from `it` to both nouns | ") for line in lines)
    sentences = pronouns.Sentences.of(jarilab.load(pronouns_run))
    words = [english.split() for english, _ in sentences.pairs]
    assert all(line[pronouns.IT] == "it" and len(line) == len(pronouns.SHOWN) - 1 for line in words)
    germans = {german.replace(",", " ,").split()[sentences.written_at] for _, german in sentences.pairs}
    assert germans == {"er", "sie", "es"}
    assert pronouns.main([str(tmp_path / "nowhere")]) == 2


PLAIN = [
    ("Ein Mann hält seinen roten Hut.", "A man holds his red hat."),
    ("Zwei Frauen zeigen ihre Bilder.", "Two women show their pictures."),
    ("Ein Mädchen liest in ihrem Buch.", "A girl reads in her book."),
]
NOT_PLAIN = [
    ("Ein Mann und ein Junge mit seinem Hut.", "A man and a boy with his hat."),  # whose?
    ("Ein Mann läuft.", "A man runs."),
    ("Ein Mann sieht ihren Hund.", "A man sees her dog."),
]


@pytest.mark.long
def test_what_a_translator_looks_at_for_a_possessive(
    load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    possessives = load("possessives")
    files = [str(tmp_path / "de.txt"), str(tmp_path / "en.txt")]
    for path, lines in zip(files, zip(*PLAIN, *NOT_PLAIN, strict=True), strict=True):
        Path(path).write_text("\n".join(lines * 4) + "\n", encoding="utf-8")
    settings = {
        "task.train": files,
        "task.valid": files,
        "task.vocab_size": 300,
        "model.d_model": 16,
        "model.n_heads": 2,
    }
    settings |= {"training.epochs": 1, "training.evaluations": 1, "training.evaluation_examples": 4}
    jarilab.train("translation", tmp_path / "run", settings=settings, threads=1)
    run = jarilab.load(tmp_path / "run")
    sentences = possessives.sentences_of(run, files)
    told = [(one.pronoun, one.stem, one.misleads) for one in sentences]
    assert told == [("his", "sein", False), ("their", "ihr", True), ("her", "ihr", False)] * 8
    task: Any = run.task
    named = task.show_source(sentences[0].source)
    assert "".join(named[place] for place in sentences[0].referent) == " Mann"
    assert "".join(named[place] for place in sentences[0].possessive) == " seinen"
    assert task.write(sentences[0].before) == "A man holds"
    assert possessives.main([str(tmp_path / "run"), "--data", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| encoder.0 0 | sein, ihr | ")
    assert any(line.startswith("| all links to the noun | ") for line in lines)
    assert possessives.main([str(tmp_path / "run"), "--data", str(tmp_path / "gone"), files[1]]) == 2
    assert "gone" in capsys.readouterr().err


def test_one_causal_layer_without_positions_hears_no_order(
    load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = load("prefix")
    assert prefix.main(["--out", str(tmp_path), "--encodings", "none,rotary"]) == 0
    assert capsys.readouterr().out == (tmp_path / "prefix.md").read_text()
    assert prefix.apart("none", 1, seed=2) < 1e-12
    assert min(prefix.apart("none", 2, seed=2), prefix.apart("rotary", 1, seed=2)) > 1e-3
    assert prefix.main(["--out", str(tmp_path), "--encodings", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_the_spread_of_scores_grows_with_their_width(
    load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    spread = load("spread")
    assert spread.main(["--out", str(tmp_path), "--widths", "4,64"]) == 0
    assert capsys.readouterr().out == (tmp_path / "spread.md").read_text()
    assert (tmp_path / "spread.svg").read_text().startswith("<?xml")
    small, large = spread.Spread.of(4, 1), spread.Spread.of(64, 1)
    assert (small.deviation, large.deviation) == pytest.approx((2.0, 8.0), rel=0.03)
    assert small.largest[0] == pytest.approx(large.largest[0], abs=0.02)
    assert large.largest[1] > 3 * large.largest[0]
    with pytest.raises(SystemExit):
        spread.main(["--out", str(tmp_path), "--widths", "wide"])


@pytest.mark.long
def test_norms_are_measured_side_by_side(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms = load("norms")
    tiny(monkeypatch, norms, training__examples=16, task__lines=50, task__held_out=8)
    lines = norms.table_of(tmp_path, 1, 8).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| 1 to 12", "layer"], ["| 1 to 12", "batch"], ["| 12", "layer"], ["| 12", "batch"]
    ]  # fmt: skip
    of_layer = lines[2].strip("| ").split(" | ")[3:]
    assert len(set(of_layer)) == 1, "no token depends on another row"
    run, before = (
        jarilab.load(tmp_path / "batch-1-to-12-1"),
        jarilab.load(tmp_path / "batch-1-to-12-1").model.state_dict(),
    )
    norms.row_of(run, 8)
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())


# Positions ----------------------------------------------------------------------------------------------------------

SMALL = {
    "model.d_model": 8,
    "model.n_heads": 2,
    "training.examples": 16,
    "training.batch_size": 8,
    "training.evaluations": 1,
}


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """A text that nobody can guess without its order, a little over the least that is asked for."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{number} and {number + 1}, " for number in range(3000)), encoding="utf-8")
    return path


def rows_of(table: str) -> list[list[str]]:
    """The cells of a table in Markdown, below its head."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")][2:]


def trained_again(module: Any, command: Sequence[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What an experiment prints, twice the same, and nothing is trained the second time."""
    assert module.main(command) == 0
    said = capsys.readouterr().out
    ends = {path: path.stat().st_mtime_ns for path in folder.rglob("*.json")}
    assert module.main(command) == 0
    assert capsys.readouterr().out == said
    left = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
    assert left == {path: when for path, when in ends.items() if path.name == "result.json"}
    return said


@pytest.mark.parametrize("name", ["clipping", "masked", "longer_text", "answers", "every_encoding"])
def test_nothing_is_trained_no_times(load: Load, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"masked": ["--text", "a"], "longer_text": ["--text", "a"]}.get(name, [])
    with pytest.raises(SystemExit) as ended:
        load(name).main([*words, "--out", "out", "--seeds", "0"])
    assert ended.value.code == 2
    assert "--seeds: expected a whole number from 1 on, got '0'; write 1 or more" in capsys.readouterr().err


@pytest.mark.long
def test_clipping_distances_are_compared(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clipping = load("clipping")
    tiny(monkeypatch, clipping, training__examples=16, task__lines=50, task__held_out=8, model__n_heads=2)
    monkeypatch.setattr(clipping, "CLIPS", (0, 4))
    monkeypatch.setattr(clipping, "PUBLISHED", ("12.5", "25.9"))
    out = tmp_path / "out"
    said = trained_again(clipping, ["--out", str(out), "--seeds", "1", "--jobs", "1"], out, capsys)
    assert said == (out / "clipping.md").read_text()
    assert [row[0] for row in rows_of(said)] == ["keys and values", "keys", "keys and values, BLEU of the paper"]
    monkeypatch.setitem(clipping.SETTINGS, "model.n_heads", 3)
    assert clipping.main(["--out", str(out)]) == 2
    assert "heads" in capsys.readouterr().err


def test_a_row_of_clipping_is_of_its_own_part(load: Load) -> None:
    clipping = load("clipping")
    specs = [jarilab.encodings.compose.canonical(spec) for row in clipping.specs().values() for spec in row]
    trials = [{"encoding": spec, "value": at / 10 + seed} for at, spec in enumerate(specs) for seed in (0, 0.02)]
    both, keys, _ = rows_of(clipping.table_of({"trials": trials}))
    assert both[1:3] == ["1.0% (0.0% to 2.0%)", "11.0% (10.0% to 12.0%)"]
    assert keys[1] == "51.0% (50.0% to 52.0%)"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["addition", "reversal"])
def test_longer_texts_are_measured_by_policy(
    load: Load, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = load("longer")
    for name, value in SMALL.items():
        monkeypatch.setitem(longer.MODEL, name, value)
    monkeypatch.setitem(
        longer.TASKS, kind, f"{longer.TASKS[kind]}{',' if kind == 'reversal' else ':'}lines=50,held_out=8"
    )
    command = [kind, "--out", str(tmp_path), "--seeds", "1", "--examples", "16"]
    said = trained_again(longer, command, tmp_path, capsys)
    assert said == (tmp_path / "longer.md").read_text()
    assert [row[0] for row in rows_of(said)] == list(longer.POLICIES[kind])
    assert all(cell.endswith("%") for row in rows_of(said) for cell in row[2:]), "both groups of lengths are there"
    assert longer.main([*command, "--policies", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_sum_is_written_from_the_ones_up(load: Load) -> None:
    task = load("longer").Addition(digits=3, test_digits=6, lines=20, held_out=50)
    pairs = task._pairs(1, 50, 6)
    for source, target in pairs:
        left, _, right = source.partition("+")
        assert int(left[::-1]) + int(right[::-1]) == int(target[::-1])
    assert {task.group_of(*pair) for pair in pairs} == {"seen_lengths", "longer"}


@pytest.mark.slow
def test_masked_characters_are_guessed(
    load: Load, tmp_path: Path, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masked = load("masked")
    out = tmp_path / "out"
    command = ["--text", str(text_file), "--out", str(out), "--seeds", "1", "--steps", "3", "--encodings", "none,t5"]
    said = trained_again(masked, command, out, capsys)
    assert said == (out / "masked.md").read_text()
    assert [row[0] for row in rows_of(said)] == ["`none`", "`t5`", "*frequency of characters alone*"]
    assert masked.main([*command, "--steps", "4"]) == 2
    assert "another text or budget" in capsys.readouterr().err
    text_file.write_text("too short")
    assert masked.main(command) == 2
    assert "expects 1,280 characters or more, got" in capsys.readouterr().err


def test_without_positions_a_masked_character_is_guessed_from_a_bag(load: Load) -> None:
    masked = load("masked")
    generator = torch.Generator().manual_seed(1)
    ids_BL = torch.randint(9, (2, 12), generator=generator)
    covered_BL = torch.arange(12).expand(2, 12) == 5
    order = torch.cat((torch.randperm(5, generator=generator), torch.arange(5, 12)))
    for encoding, same in (("none", True), ("rotary", False)):
        model = masked.Guesser(10, encoding)
        jarilab.initialise(model, 1)
        scores, shuffled = (model.double()(ids, covered_BL) for ids in (ids_BL, ids_BL[:, order]))
        assert (float((scores - shuffled).detach().abs().max()) < 1e-12) is same
        hidden = ids_BL.clone()
        hidden[:, 5] = 0
        assert torch.equal(model(hidden, covered_BL), model(ids_BL, covered_BL)), "what is masked is not seen"


@pytest.mark.slow
def test_a_language_model_is_measured_on_longer_windows_of_the_same_text(
    load: Load, tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    longer_text = load("longer_text")
    for name, value in {**SMALL, "model.n_layers": 1, "task.context_length": 8}.items():
        monkeypatch.setitem(longer_text.SETTINGS, name, value)
    monkeypatch.setattr(longer_text, "LENGTHS", (8, 16))
    out = tmp_path / "out"
    command = ["--text", str(text_file), "--out", str(out), "--seeds", "1"]
    with trials_in_this_process():
        said = trained_again(longer_text, [*command, "--encodings", "alibi,rotary"], out, capsys)
    alibi, rotary, plain, linear, *_ = [row for row in rows_of(said) if row[0].startswith("`")]
    ended = json.loads(next(out.glob("study/alibi-1/result.json")).read_text())
    assert alibi[1] == f"{ended['loss']:.3f}", "as trained is what was measured then"
    assert rotary[1:] == plain[1:]
    assert linear[1] == plain[1], "nothing is stretched at the trained length"
    assert linear[2] != plain[2]
    assert longer_text.main(["--table", str(out / "longer_text.json")]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("page", ["results/positions.md", "site/en/which-encoding.md", "site/ko/which-encoding.md"])
def test_pages_have_the_tables_of_longer_texts_as_measured(
    load: Load, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = EXPERIMENTS.parent / "docs"
    assert load("longer_text").main(["--table", str(docs / "results" / "longer_text.json")]) == 0
    tables = capsys.readouterr().out.split("\n\n")
    text = (docs / page).read_text(encoding="utf-8")
    assert len(tables) == 2
    assert all(table.strip() in text for table in tables)


@pytest.mark.long
@pytest.mark.parametrize("model", ["encoder_decoder", "decoder"])
def test_plain_and_reversed_answers_are_compared(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    answers = load("answers")
    for name, value in SMALL.items():
        monkeypatch.setitem(answers.SETTINGS, name, value)
    monkeypatch.setattr(answers, "SIZES", (20, 40))
    monkeypatch.setattr(answers, "HELD_OUT", 10)
    command = ["--out", str(tmp_path), "--seeds", "1", "--model", model]
    said = trained_again(answers, command, tmp_path, capsys)
    assert jarilab.load(tmp_path / "plain-20-1").experiment.model == model
    assert [row[:2] for row in rows_of(said)] == [
        ["plain", "20"], ["plain", "40"], ["reversed", "20"], ["reversed", "40"]
    ]  # fmt: skip
    assert answers.main([*command, "--encoding", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
    sums = (tmp_path / "train-40.sums").read_text().splitlines()
    assert len(set(sums)) == 40
    assert not set(sums) & set((tmp_path / "valid.sums").read_text().splitlines())
    assert sums[:20] == (tmp_path / "train-20.sums").read_text().splitlines()
    plain, turned = ((tmp_path / f"train-40.{name}").read_text().splitlines() for name in ("plain", "reversed"))
    assert [answer[::-1] for answer in turned] == plain == [str(sum(map(int, line.split("+")))) for line in sums]


@pytest.mark.long
def test_every_encoding_is_tried_and_a_dash_has_its_reason(
    load: Load, tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    every = load("every_encoding")
    for settings in ("SMALL", "LINES", "TEXT"):
        monkeypatch.setattr(every, settings, {**getattr(every, settings), **SMALL})
    monkeypatch.setitem(every.STACK, "model.n_layers", 1)
    out = tmp_path / "out"
    command = [
        "--out",
        str(out),
        "--text",
        str(text_file),
        "--tasks",
        "sort,text",
        "--encodings",
        "rotary,cope,alibi2d,learned:positions=100",
    ]
    said = trained_again(every, command, out, capsys)
    assert said == (out / "every_encoding.md").read_text()
    rotary, cope, alibi2d, learned = rows_of(said)
    assert re.fullmatch(r"\d+\.\d% / \d+\.\d%", rotary[1])
    assert cope[1] == "-"
    assert re.fullmatch(r"\d\.\d{3} / \d\.\d{3}", cope[2])
    assert alibi2d[1:] == ["-", "-"]
    assert learned[2] == "-"
    assert "- `learned:positions=100`, text, loss: trained, and cannot be measured: learned knows" in said
    assert "- `cope`, sort: does not go with it: cope works only where" in said
    assert "One seed tells what runs" in said
    assert len((out / "every_encoding.csv").read_text().splitlines()) == 1 + 2 * 2 + 2 + 3 + 2 + 1
    assert every.main([*command, "--tasks", "walk"]) == 2
    assert "--tasks expects some of copy, reverse, sort, addition, text, digits; got 'walk'" in capsys.readouterr().err


@pytest.mark.long
def test_an_encoding_that_fails_stops_nothing(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = load("every_encoding")
    train = jarilab.train

    def broken(task: str, *more: Any, encoding: str, **options: Any) -> Any:
        if encoding == "t5":
            raise RuntimeError("no such thing")
        return train(task, *more, encoding=encoding, **options)

    monkeypatch.setattr(jarilab, "train", broken)
    (column,) = [one for one in every.columns_of(tmp_path, None, ()) if one.title == "sort"]
    column = every.Column("sort", "sort", {**column.settings, **SMALL}, column.figures)
    said = every.run([column], tmp_path, ["t5", "alibi"], 1)
    assert rows_of(said)[0][1] == "-"
    assert "/" in rows_of(said)[1][1]
    assert "- `t5`, sort: failed: RuntimeError: no such thing" in said


@pytest.mark.slow
def test_recipes_change_one_thing_and_put_it_back(load: Load, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    module = load("recipes")
    small = {**TINY, "model.n_heads": 2, "training.examples": 64, "task.maximum": 9}
    shapes = {"width of 8": {"model.d_model": 8}}
    row = module.Row("arithmetic", "none", small, "exact_match", True, shapes)
    monkeypatch.setattr(module, "ROWS", {"arithmetic": row})
    changes = ["cosine", "trapezoid", "3 steps of Newton and Schulz", "batches that grow"]
    names = [*changes, "twice the rate", "average of 0.99", "width of 8"]
    before = module.Training.rate
    assert module.main(["arithmetic", "--out", str(tmp_path), "--seeds", "1", "--variants", *names]) == 0
    assert module.Training.rate is before
    said = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[0] for line in said] == [f"| {name}" for name in ("default", *names)]
    weights = {newest_of(run).joinpath("model.safetensors").read_bytes() for run in tmp_path.glob("arithmetic/*/1")}
    assert len(weights) == 1 + len(names), "each changes something"


def test_schedules_begin_at_the_highest_rate_and_end_at_0(load: Load) -> None:
    module = load("recipes")
    options = module.Training(lr=2.0, warmup=0.1)
    for schedule in (module.cosine, module.trapezoid):
        with schedule():
            rates = [options.rate(step, 100) for step in range(100)]
        assert max(rates) == pytest.approx(2.0, rel=1e-2)
        assert rates[4] == pytest.approx(1.0)
        assert rates[-1] == pytest.approx(0.0, abs=1e-12)


def test_a_recipe_is_told_with_its_gain_over_the_same_seeds(load: Load) -> None:
    module = load("recipes")
    row = module.ROWS["language"]  # of which less is better
    base = [{"loss": 2.0, "cpu_seconds": 3}, {"loss": 1.0, "cpu_seconds": 5}]
    other = [{"loss": 1.5, "cpu_seconds": 3}, {"loss": 0.5, "cpu_seconds": 3}]
    assert module.told(row, "default", base, base) == "| default | 1.5000 |  | 4 |"
    assert module.told(row, "cosine", other, base) == "| cosine | 1.0000 | +0.5000 | 3 |", "equal gains: no interval"
    other[0]["loss"] = 1.25
    assert "| +0.6250 (-0.9633 to +2.2133) |" in module.told(row, "cosine", other, base)
    assert "| +0.6250 (-2.5565 to +3.8065) |" in module.told(row, "cosine", other, base, rows=2), "corrected"


def test_a_table_of_runs_has_a_row_for_each_kind_and_the_upper_bound(
    load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table_of_runs = load("table_of_runs")
    for name, share in (("none-1", 0.04), ("rotary-1", 0.9), ("rotary-2", 0.95)):
        (tmp_path / name).mkdir()
        result = {
            "exact_match": share,
            "exact_match_+": share / 2,
            "cpu_seconds": 1234.5,
            "ceiling": {"all": 0.043, "+": 0.07},
        }
        (tmp_path / name / "result.json").write_text(json.dumps(result))
        (tmp_path / name / "test.json").write_text(json.dumps({"bleu": 100 * share}))
    assert table_of_runs.main([str(tmp_path), "--figures", "exact_match,exact_match_+,test.bleu,cpu_seconds"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| run | exact match | exact match + | BLEU, test | CPU-seconds |",
        "| :--- | ---: | ---: | ---: | ---: |",
        "| none | 4.00% | 2.00% | 4.00 | 1,234 |",
        "| rotary | 90.00%, 95.00% | 45.00%, 47.50% | 90.00, 95.00 | 1,234, 1,234 |",
        "| upper bound without positions, on average | 4.30% | 7.00% |  |  |",
    ]
    assert table_of_runs.main([str(tmp_path / "none-1"), "--figures", "exact_match"]) == 2
    assert "expected runs called NAME-SEED" in capsys.readouterr().err


@pytest.mark.slow
def test_a_repeated_block_is_scored_without_each_head(
    load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers", reason="NO transformers: ablations of a block were NOT tried")
    from tokenizers import ByteLevelBPETokenizer

    words = " animal street crossing tired wide because"
    tokenizer = ByteLevelBPETokenizer(add_prefix_space=False)
    tokenizer.train_from_iterator([words] * 9, vocab_size=400, min_frequency=1, show_progress=False)
    folders.llama(tmp_path, vocab_size=400, initializer_range=0.4)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer).save_pretrained(tmp_path)
    module = load("repeated_block")
    block = module.block_of(tmp_path, 4, 1)
    assert len(block.split()) == len(set(block.split())) == 4
    assert len(tokenizer.encode(block).ids) == 4
    heads = ["L0H1", "L1H3"]
    assert module.main([str(tmp_path), "--heads", *heads, "--blocks", "1", "--words", "4"]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    causes = jarilab.causes(tmp_path, block, continuation=block, controls=1)
    effects = {row["head"]: [f"{row['total']:+.2f}", f"{row['mean']:+.2f}"] for row in causes.rows}
    assert [row[:4] for row in rows] == [["1", head, *effects[head]] for head in heads]
    assert effects[heads[0]] != ["+0.00", "+0.00"]
