"""The page of the curves of runs: lines where the numbers are, in two languages, each run told from the others."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.browser import Pages
from helpers.runs import language_run, tiny, train
from jarilab.comparison import curves
from jarilab.comparison.curves import Curve, curve_of, render
from jarilab.core.errors import UserError
from jarilab.runs.experiment import Experiment
from jarilab.tasks.metrics import METRICS


def a_curve(run: str, encoding: str = "rotary", rows: int = 5, **last: Any) -> Curve:
    experiment = Experiment.of("arithmetic:maximum=30", encoding, {})
    made: list[dict[str, Any]] = [
        {"step": step, "steps": rows, "examples": 10.0 * step, "cpu_seconds": 2.0 * step, "loss": 10.0**-step}
        for step in range(1, rows + 1)
    ]
    for row in made[::2]:
        row |= {"value": row["step"] / 10, "exact_match": row["step"] / 10}
    made[-1] |= last
    return Curve(Path(run), experiment, made, METRICS["exact_match"])


def points(page: Any, chart: str, place: int = 0) -> list[list[float]]:
    path = page.locator(f"{chart} .line").nth(place).get_attribute("d")
    return [[float(number) for number in point.split()] for point in path[1:].split("L")]


def test_one_run_has_a_page(pages: Pages) -> None:
    page = pages.open(render([a_curve("runs/add")]), "#of-loss svg")
    assert page.locator("h1").inner_text() == "rotary: exact match 50.0\u00a0%, loss 0.0000 after 5 steps."
    assert page.locator("figcaption").all_inner_texts() == [
        "Exact match on held-out data",
        "Loss in training, on a logarithmic scale: equal distances are equal factors",
    ]
    assert page.locator(".command code").inner_text() == "jarilab explore runs/add"
    page.locator(".info summary").click()
    assert page.locator(".info dd").first.inner_text() == "runs/add"


def test_lines_lie_where_their_numbers_are(pages: Pages) -> None:
    page = pages.open(render([a_curve("runs/add")]), "#of-loss svg")
    loss, measured = points(page, "#of-loss"), points(page, "#of-exact_match")
    assert (len(loss), len(measured)) == (5, 3), "where it was measured"
    falls = [second[1] - first[1] for first, second in itertools.pairwise(loss)]
    assert falls == pytest.approx([falls[0]] * 4, abs=0.2), "equal factors are equal distances"
    rises = [first[1] - second[1] for first, second in itertools.pairwise(measured)]
    assert rises[0] == pytest.approx(rises[1], abs=0.2)
    assert rises[0] > 0, "up is less on a screen"
    page.get_by_label("CPU seconds").check()
    assert "CPU seconds" in page.locator("#of-loss svg").get_attribute("aria-label")


def test_a_crosshair_reads_values_and_lines_can_be_smoothed(pages: Pages) -> None:
    page = pages.open(render([a_curve("runs/add")]), "#of-exact_match svg")
    chart, values = page.locator("#of-exact_match svg"), page.locator("#of-exact_match .values")
    measured = points(page, "#of-exact_match")
    chart.hover(position={"x": measured[1][0] + 3, "y": 60})
    assert values.inner_text().endswith(": add 30\u00a0%")
    assert float(page.locator("#of-exact_match .crosshair").get_attribute("x1")) == pytest.approx(
        measured[1][0], abs=0.1
    )
    page.get_by_label("0.6").check()
    assert points(page, "#of-exact_match") == measured, "drawn weakly behind"
    _, second, _ = points(page, "#of-exact_match", 1)
    weights = [0.6 * 0.4 / 0.64, 0.4 / 0.64]
    assert second[1] == pytest.approx(weights[0] * measured[0][1] + weights[1] * measured[1][1], abs=0.2)


def test_runs_of_one_encoding_differ_in_colour_and_marks(pages: Pages) -> None:
    one = pages.open(render([a_curve("runs/a"), a_curve("runs/b"), a_curve("runs/c", "sinusoidal")]), "#of-loss svg")
    other = pages.open(render([a_curve("runs/c", "sinusoidal"), a_curve("runs/b")]), "#of-loss svg")

    def looks(page: Any) -> dict[str, tuple[str, str]]:
        names = [text.split("\n")[0] for text in page.locator("#of-loss .line-label").all_text_contents()]
        colour = "node => getComputedStyle(node).fill"
        colours = [label.evaluate(colour) for label in page.locator("#of-loss .line-label").all()]
        marks = [mark.get_attribute("d") for mark in page.locator("#of-loss g > path.mark").all()]
        return {
            name[: len(name) // 2]: look for name, look in zip(names, zip(colours, marks, strict=True), strict=True)
        }

    many, few = looks(one), looks(other)
    assert len({colour for colour, _ in many.values()}) == len({mark for _, mark in many.values()}) == 3
    assert (few["b"], few["c"]) == (many["a"], many["c"]), "the colour of the encoding comes first"


def test_the_page_speaks_korean_and_fits(pages: Pages) -> None:
    page = pages.open(render([a_curve("runs/a"), a_curve("runs/b", "none")]), "#of-loss svg", "#lang=ko", width=420)
    said = page.locator("h1, .eyebrow, legend, figcaption, thead th, .note, .savers span")
    unsaid = [text for text in said.all_inner_texts() if text and not re.search("[가-힣]", text)]
    assert unsaid == []
    assert page.evaluate("document.documentElement.scrollWidth") == 420
    page.locator("#language button").click()
    assert not re.search("[가-힣]", page.locator("main").inner_text())


def test_a_run_that_goes_on_says_so(pages: Pages) -> None:
    page = pages.open(render([a_curve("runs/a", steps=50)]), "#of-loss svg")
    assert "5 of 50" in page.locator("#runs").inner_text()
    assert "Not finished" in page.locator(".note").first.inner_text()


def test_names_stay_text(pages: Pages) -> None:
    name = "<b>\"'<script>"
    document = render([a_curve(f"runs/{name}"), a_curve(f"other/{name}")])
    page = pages.open(document, "#of-loss svg")
    assert page.title() == f"{name}, {name}"
    assert page.locator("#of-loss .line-label title").all_text_contents() == [f"runs/{name}", f"other/{name}"]
    found = re.search(r'<meta name="description" content="(.*?)">', document)
    assert found
    assert "step 5, loss 0.0000, exact match 50.00%" in found[1]


def test_losses_of_different_vocabularies_are_not_compared() -> None:
    one, other = (replace(a_curve(f"runs/{name}"), vocabulary=name) for name in "ab")
    assert curves.payload([one, one])["notes"] == []
    (note,) = curves.payload([one, other])["notes"]
    assert "not compared" in note


def test_curves_leave_the_report_of_a_study_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "curve_of", lambda run: a_curve(str(run)))
    runs = [tmp_path / "none-1", tmp_path / "rotary-1"]
    assert curves.write(runs) == tmp_path / "report.html"
    (tmp_path / "study.json").write_text("{}")
    assert curves.write(runs) == tmp_path / "curves.html"
    assert curves.write(runs, tmp_path / "mine.html") == tmp_path / "mine.html"


def test_what_was_trained_is_read(tmp_path: Path) -> None:
    train(tmp_path / "run", tiny("rotary"))
    curve = curve_of(tmp_path / "run")
    (told,) = curves.payload([curve])["runs"]
    assert (told["encoding"], told["step"], told["steps"]) == ("rotary", 12, 12)
    assert told["metric"]["name"] == "exact_match"
    assert told["curve"][-1]["value"] == told["value"]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["hash"] == told["experiment"]
    (tmp_path / "run" / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="has no curve yet: nothing of it was trained; train it first"):
        curve_of(tmp_path / "run")


def test_the_metric_is_that_of_the_task(tmp_path: Path) -> None:
    run = language_run(tmp_path, task__metric="perplexity", training__evaluation_examples=8)
    finished = curve_of(run)
    assert {"loss", "perplexity"} < finished.rows[-1].keys()
    (run / "result.json").unlink()
    assert finished.metric == curve_of(run).metric == METRICS["perplexity"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(pages: Pages, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    document = render([a_curve("runs/a"), a_curve("runs/b", "none")])
    page = pages.open(document, "#of-loss svg", color_scheme=scheme, bypass_csp=True)
    found = {violation["id"]: violation["nodes"][0]["html"] for violation in Axe().run(page).response["violations"]}
    assert found == {}
