"""Comparisons at other lengths: trials against `evaluate`, what is measured again, the table, and what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import jarilab
from helpers.command import command
from helpers.trials import trials_in_this_process
from jarilab import comparison
from jarilab.comparison.pairs import compare_pairs
from jarilab.core.errors import UserError
from jarilab.tasks.base import registry
from jarilab.tasks.captions import Captions
from jarilab.training.evaluation import Evaluator

TEXT = "".join(chr(97 + number * number % 26) for number in range(3000))
SETTINGS = {"model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "training.epochs": 1}
SETTINGS |= {"training.batch_size": 8, "task.context_length": 16}
ENCODINGS = ["none", "learned:positions=64", "alibi"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


def compared(text: Path, out: Path, lengths: list[int], **options: Any) -> dict[str, Any]:
    settings = SETTINGS | {"task.train": str(text)}
    with trials_in_this_process():
        return jarilab.compare(
            "text", out, encodings=ENCODINGS, seeds=2, settings=settings, eval_lengths=lengths, **options
        )


@pytest.fixture(scope="module")
def study(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("study") / "study"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "home", lambda: out.parent)
        return out, compared(text, out, [64, 16, 32])


@pytest.mark.slow
def test_no_file_of_results_names_the_home(study: tuple[Path, dict[str, Any]]) -> None:
    out, _ = study
    for name in ("table.json", "table.csv", "trials.csv", "table.tex", "report.html"):
        content = (out / name).read_text()
        at = content.find(str(out.parent))
        assert at < 0, f"{name}: {content[max(0, at - 80) : at + 80]}"


def test_each_length_is_what_evaluate_measures(study: tuple[Path, dict[str, Any]]) -> None:
    out, table = study
    assert [at["length"] for at in table["lengths"]["at"]] == [16, 32, 64]
    assert table["lengths"]["trained"] == 16
    assert "window" in table["lengths"]["unit"]
    for row in table["trials"]:
        assert row["lengths"]["16"]["value"] == row["value"], "at the trained length nothing changes"
        measured = jarilab.evaluate(row["run"], length=64, threads=1)
        assert row["lengths"]["64"]["value"] == pytest.approx(measured["loss"], rel=1e-6)
        assert row["lengths"]["64"]["notices"] == measured["notices"]
        assert bool(measured["notices"]) == row["encoding"].startswith("learned")
        assert "--eval-lengths 16,32,64" in row["command"]
    for at in table["lengths"]["at"]:
        values: dict[str, list[float]] = {}
        for row in table["trials"]:
            values.setdefault(row["encoding"], []).append(row["lengths"][str(at["length"])]["value"])
        means = {row["encoding"]: row["mean"] for row in at["encodings"]}
        assert means == {name: pytest.approx(sum(seeds) / 2) for name, seeds in values.items()}
        assert at["best"] == min(means, key=means.__getitem__)
        differences = compare_pairs(values, at["examples"], share=False).differences
        assert [row["difference"] for row in at["differences"]] == [one.difference for one in differences]
        undecided = [{one.first, one.second} for one in differences if not one.ranked]
        assert set(at["unranked"]) == {name for pair in undecided if at["best"] in pair for name in pair - {at["best"]}}
    assert json.loads((out / "table.json").read_text())["lengths"] == table["lengths"]


def test_the_files_have_every_length(study: tuple[Path, dict[str, Any]]) -> None:
    out, table = study
    rows = [row for row in csv.DictReader((out / "table.csv").read_text().splitlines()) if row["by"] == "length"]
    assert [(row["encoding"], int(row["of"])) for row in rows] == [
        (row["encoding"], length) for row in table["encodings"] for length in (16, 32, 64)
    ]
    assert all(f"at {length}" in (out / "table.tex").read_text() for length in (16, 32, 64))


@pytest.mark.long
def test_what_is_measured_is_not_measured_again(
    study: tuple[Path, dict[str, Any]], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, table = study
    measured: list[list[int]] = []
    measure = Evaluator.evaluate_lengths

    def spy(self: Evaluator, longer: Any) -> Any:
        measured.append(list(longer))
        return measure(self, longer)

    monkeypatch.setattr(Evaluator, "evaluate_lengths", spy)
    results = [Path(row["run"]) / "result.json" for row in table["trials"]]
    before = [path.read_bytes() for path in results]
    assert compared(text, out, [16, 32, 64])["lengths"] == table["lengths"]
    assert [path.read_bytes() for path in results] == before
    assert measured == []
    with trials_in_this_process():
        more = jarilab.compare(out, eval_lengths=[48])
    assert measured == [[48]] * 6, "no trial is trained, and only what lacks is measured"
    assert [at["length"] for at in more["lengths"]["at"]] == [16, 32, 48, 64]
    assert [at for at in more["lengths"]["at"] if at["length"] != 48] == table["lengths"]["at"]
    with trials_in_this_process():
        printed = command("compare", str(out)).stdout
    for length in (16, 32, 48, 64):
        assert any(f"at {length}" in line for line in printed.splitlines()[:6])
        (verdict,) = (line for line in printed.splitlines() if line.startswith(f"at {length}: "))
        best = next(at["best"] for at in more["lengths"]["at"] if at["length"] == length)
        assert best in verdict
    assert printed.count("*") == 5, "one for each length, and the line that explains them"
    assert "trained at 16" in printed
    assert "learned:positions=64: the encoding reads positions 16 to 31" in printed


def test_a_finished_run_is_measured_where_it_lacks(text: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"task.train": str(text)}
    first = jarilab.train("text", tmp_path / "run", encoding="alibi", settings=settings, threads=1)
    longer = jarilab.train("text", tmp_path / "run", encoding="alibi", settings=settings, threads=1, eval_lengths=[32])
    anew = jarilab.train("text", tmp_path / "new", encoding="alibi", settings=settings, threads=1, eval_lengths=[32])
    assert "lengths" not in first
    assert longer["lengths"] == anew["lengths"]
    assert {name: longer[name] for name in first} == first
    assert longer["lengths"]["32"]["value"] == jarilab.evaluate(tmp_path / "run", length=32, threads=1)["loss"]


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [
        ([32, 65], ["learned", "0 to 63", "got 64", "without a limit"]),
        ([1], ["--eval-lengths", "2 or more", "got 1", "give"]),
        ([400], ["400", "got 301", "smaller length"]),
    ],
)
def test_lengths_that_cannot_be_measured_are_refused_first(
    text: Path, tmp_path: Path, lengths: list[int], parts: list[str]
) -> None:
    settings = SETTINGS | {"task.train": str(text)}
    with pytest.raises(UserError) as error:
        compared(text, tmp_path / "study", lengths)
    assert all(part in str(error.value) for part in parts), error.value
    with pytest.raises(UserError):
        jarilab.train("text", tmp_path / "run", encoding=ENCODINGS[1], settings=settings, eval_lengths=lengths)
    assert not any(tmp_path.iterdir())


def test_a_task_without_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before its data are prepared, which takes minutes."""
    monkeypatch.setattr(Captions, "prepare", lambda _: pytest.fail("the data were prepared"))
    for verb, encoding in ((jarilab.compare, {"encodings": ["none"]}), (jarilab.train, {})):
        with pytest.raises(UserError, match="have a length, got Captions; omit the length"):
            verb("captions", tmp_path / "out", **encoding, eval_lengths=[64])
    assert not any(tmp_path.iterdir())
    with pytest.raises(UserError, match="have a length, got Captions; omit the length"):
        Captions().at_length(64)


def test_every_unit_of_length_is_translated() -> None:
    (static,) = (Path(folder) / "static" for folder in comparison.__path__)
    script = (static / "lengths.js").read_text(encoding="utf-8")
    units = {registry.spec(name).target.length_unit for name in registry.names()} - {""}
    assert len(units) >= 5
    assert [unit for unit in sorted(units) if f'"{unit}": "' not in script] == []


def test_lengths_that_are_no_numbers(tmp_path: Path) -> None:
    out = tmp_path / "study"
    refused = command("compare", "copy", "--encodings", "none", "--out", str(out), "--eval-lengths", "64,long")
    assert "128,256,512" in refused.stderr
    assert "'64,long'" in refused.stderr
    assert not out.exists()
