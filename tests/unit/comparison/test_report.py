"""The comparison report: what is in the file, and what a browser makes of it."""

import base64
import copy
import hashlib
import html
import itertools
import json
import math
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import pytest

import jarilab
from helpers.browser import (
    Pages,
    assert_colours,
    assert_count,
    assert_linear_colours,
    colours_at,
    decode_png,
    read_cells,
    read_pixels,
    until,
)
from jarilab.comparison import report
from jarilab.comparison.examples import blind_of, lead_example
from jarilab.comparison.pairs import Difference, Pairs, describe_pairs, pair_row
from jarilab.comparison.report import render
from jarilab.comparison.study import Trial
from jarilab.comparison.table import tabulate
from jarilab.pages.kit.tones import TONES, tones_of
from jarilab.runs.experiment import Experiment
from jarilab.tasks.metrics import METRICS

Payload = dict[str, Any]
HOSTILE = "</script><img src=x onerror=\"window.attacked='yes'\"><!--<script>"
RIGHT_TO_LEFT = "שלום\u202e"


# ------------------------------------------------------------------------------------------------ a payload


def encode_weights(heads: list[list[list[float]]]) -> str:
    """Encode weights (head, query, key) as the payload does."""
    values = [round(65535 * weight) for rows in heads for row in rows for weight in row]
    return base64.b64encode(struct.pack(f"<{len(values)}H", *values)).decode()


def make_site(
    name: str, kind: str, query: list[str], key: list[str], heads: int, *, positions: bool, seed: int
) -> Payload:
    """Make up one attention: by characters alone, or drawn to a distance that depends on the head."""
    source = random.Random(f"{name} {seed}")
    taste = {(head, token): source.gauss(0, 1.3) for head in range(heads) for token in sorted(set(key))}
    weights = []
    for head in range(heads):
        pull = {token: source.gauss(0, 0.8) for token in sorted(set(query))}
        distance, sharpness = source.randint(-3, 3), source.uniform(0.5, 3.5)
        rows = []
        for row, asking in enumerate(query):
            scores = [taste[head, token] * (1 + pull[asking]) for token in key]
            if positions:
                scores = [score - sharpness * abs(row - column + distance) for column, score in enumerate(scores)]
            total = sum(math.exp(score) for score in scores)
            rows.append([math.exp(score) / total for score in scores])
        weights.append(rows)
    twins = [(a, b) for a in range(len(query)) for b in range(a) if query[a] == query[b] and query[a].isdigit()]
    equal: list[float | None] = [
        max((abs(x - y) for a, b in twins for x, y in zip(rows[a], rows[b], strict=True)), default=None)
        for rows in weights
    ]
    return {
        "name": name,
        "kind": kind,
        "query": query,
        "key": key,
        "heads": heads,
        "weights": encode_weights(weights),
        "equal_rows": equal if kind.startswith("encoder") else None,
        "equal_columns": None,
        "effects": [source.uniform(0, 0.5) for _ in range(heads)],
        "salience": [source.random() for _ in range(heads)],
        "trust": {"holds": True, "row_sum_error": 1.19e-7, "masked_weight": 0.0, "rebuild_error": 3.1e-7},
    }


def make_model(encoding: str, text: str, answer: str, expected: str, layers: int, heads: int, seed: int) -> Payload:
    """Make up one model's answer to an input."""
    source, target = list(text), ["<bos>", *answer]
    positions = encoding != "none"
    sites = [
        make_site(f"encoder.{i}", "encoder self-attention", source, source, heads, positions=positions, seed=seed)
        for i in range(layers)
    ] + [
        make_site(
            f"decoder.{i}.cross", "decoder cross-attention", target, source, heads, positions=positions, seed=seed
        )
        for i in range(layers)
    ]
    about = {"run": f"runs/demo/{encoding}-1", "step": 977, "experiment": "0123456789ab"}
    return about | {"encoding": encoding, "seed": 1, "answer": answer, "correct": answer == expected, "sites": sites}


def opened(payload: Payload) -> Payload:
    """The payload with what follows from the rest of it, as `report.payload` has it."""
    metric, rows = payload["task"]["metric"], payload["summary"]
    ranked = [row["encoding"] for row in sorted(rows, key=lambda row: row["mean"], reverse=metric["higher"])]
    examples = payload["examples"]
    payload |= {
        "tones": tones_of((name, name) for name in ranked),
        "blind": blind_of(examples),
        "opening": lead_example(examples, ranked),
    }
    return payload


def make_curve(goal: float, speed: float, seed: int) -> list[Payload]:
    """Make up a curve that converges."""
    source = random.Random(seed)
    curve = []
    for step in range(41):
        done = step / 40
        match = goal / (1 + math.exp(-speed * (done - 0.35))) if step else 0.0
        curve.append(
            {
                "examples": 17_500 * step,
                "cpu_seconds": 3.75 * step,
                "loss": 2.6 * math.exp(-speed * done * goal) + 0.012 + (1 - goal) * 0.9 + source.uniform(0, 0.01),
                "value": match if step % 2 == 0 else None,
            }
        )
    return curve


def make_payload(
    goals: dict[str, float] | None = None, seeds: int = 1, layers: int = 2, heads: int = 8, texts: int = 2
) -> Payload:
    """Make up a whole payload with sensible numbers."""
    goals = goals or {"none": 0.0412, "sinusoidal": 0.9655, "rotary": 0.9991}
    inputs = [("21+211", "232", "223"), ("808-188", "620", "602")][:texts]
    trials = [
        {
            "encoding": encoding,
            "seed": seed,
            "run": f"runs/demo/{encoding}-{seed}",
            "command": f"jarilab train arithmetic --out runs/demo/{encoding}-{seed}",
            "value": goal - 0.004 * (seed - 1) * goal,
            "best_value": goal,
            "cpu_seconds": 150.2 + seed,
            "examples": 700_000,
            "curve": make_curve(goal - 0.004 * (seed - 1) * goal, 9 + 3 * index, 10 * index + seed),
        }
        for index, (encoding, goal) in enumerate(goals.items())
        for seed in range(1, seeds + 1)
    ]
    summary = []
    for encoding, goal in goals.items():
        own = [trial["value"] for trial in trials if trial["encoding"] == encoding]
        summary.append(
            {
                "encoding": encoding,
                "trials": seeds,
                "mean": sum(own) / seeds,
                "low": min(own) if seeds > 1 else goal - 0.0005,
                "high": max(own) if seeds > 1 else goal + 0.0004,
                "interval": f"95 % over {seeds} seeds (Student's t)"
                if seeds > 1
                else "95 % for sampling 100,000 examples; one seed, so nothing about others",
                "groups": {
                    "+": min(1, goal * 1.6) if goal < 0.5 else goal,
                    "-": goal * 0.35 if goal < 0.5 else goal - 0.002,
                },
                "parts": {
                    "digits of the answer": {
                        str(digits): {
                            "value": goal * digits / 4,
                            "low": goal * digits / 5,
                            "high": goal * digits / 4,
                            "examples": 10**digits,
                        }
                        for digits in (1, 2, 3, 4)
                    }
                },
                "parameters": 1_234_567,
                "seconds_per_step": 0.0513,
                "best_mean": goal,
                "group_intervals": {"+": [0.9 * goal, goal]},
                "peak_memory": 450 * 2**20,
            }
        )
    best = max(summary, key=lambda row: row["mean"])
    found = []
    for row in summary:
        if row is not best:
            difference = best["mean"] - row["mean"]
            ends = (difference - 0.011, difference + 0.009) if seeds > 1 else ()
            found.append(Difference(best["encoding"], row["encoding"], difference, *ends))
    pairs = Pairs(found, seeds, 0.0123 if seeds > 1 else None)
    metric = METRICS["exact_match"]
    differences = [pair_row(one, metric, pairs) for one in found]
    made = {
        "title": f"arithmetic: {', '.join(goals)}",
        "model": "encoder_decoder",
        "task": {
            "name": "arithmetic",
            "sentence": "i+j and i-j, 0 <= i, j <= 999; 2,000,000 expressions",
            "groups": ["all", "+", "-"],
            "metric": asdict(METRICS["exact_match"]),
            "ceiling": {"all": 0.0433, "+": 0.0714, "-": 0.0152},
            "ceiling_sentence": "Without positions the input is a bag of characters: 21+211 and 12+112 are the same. "
            "Always giving the most frequent answer of a bag is right for 4.33 % of all expressions.",
            "held_out": 100_000,
        },
        "summary": summary,
        "differences": differences,
        "pairs": describe_pairs(pairs, 100_000, metric),
        "unfinished": [],
        "trials": trials,
        "examples": [
            {
                "input": text,
                "expected": expected,
                "source": list(text),
                "explore": f"jarilab explore runs/demo/none-1 runs/demo/rotary-1 --input {text}",
                "models": [
                    make_model(encoding, text, expected if goal > 0.5 else wrong, expected, layers, heads, index)
                    for index, (encoding, goal) in enumerate(goals.items())
                ],
            }
            for text, expected, wrong in inputs
        ],
        "what_ran": {
            "command": "jarilab compare --task arithmetic --encodings none,sinusoidal,rotary --seeds 1",
            "date": "2026-03-01 12:00",
            "torch": "2.13.0",
            "threads": 1,
            "precision": "bfloat16",
            "kernel": "explicit",
        },
    }
    return opened(made)


@pytest.fixture
def payload() -> Payload:
    """A payload as `jarilab compare` makes one: one seed, three encodings, two examples."""
    return make_payload()


def make_hostile(payload: Payload) -> Payload:
    """Put markup, right-to-left text and an emoji wherever text may come from outside."""
    payload = copy.deepcopy(payload)
    payload["title"] = f"{HOSTILE}{RIGHT_TO_LEFT}"
    for rows in (payload["summary"], payload["trials"], *(example["models"] for example in payload["examples"])):
        for row in rows:
            row["encoding"] = {"none": HOSTILE, "sinusoidal": RIGHT_TO_LEFT}.get(row["encoding"], row["encoding"])
    payload["trials"][0]["run"] = payload["trials"][0]["command"] = f"runs/{HOSTILE}"
    payload["what_ran"]["command"] = payload["what_ran"][HOSTILE] = HOSTILE
    payload["task"] |= {"name": HOSTILE, "sentence": HOSTILE, "ceiling_sentence": HOSTILE}
    payload["task"]["groups"].append(HOSTILE)
    payload["summary"][0]["groups"][HOSTILE] = 0.5
    pair = {"first": HOSTILE, "second": "rotary", "difference": -0.9, "low": None, "high": None, "better": None}
    payload["differences"] = [pair | {"verdict": HOSTILE}]
    payload["unfinished"] = [{"encoding": HOSTILE, "seed": 2, "reason": HOSTILE, "log": HOSTILE}]
    payload["pairs"] |= {"seen": 0.1, "correction": HOSTILE, "power": HOSTILE}
    for example in payload["examples"]:
        example["input"] = example["expected"] = HOSTILE
        for model in example["models"]:
            model["answer"] = HOSTILE
            for site in model["sites"]:
                site["key"][:4] = [HOSTILE, RIGHT_TO_LEFT, "👩‍🔬", " "]
                site["query"][0] = HOSTILE
        example["explore"] = HOSTILE
    payload["summary"][0]["parts"] = {HOSTILE: {HOSTILE: {"value": 0.5, "examples": 1}}}
    return opened(payload)


def make_small_map(kind: str = "encoder self-attention") -> Payload:
    """Make a payload whose only maps are asymmetric: 2 queries down, 3 keys across, all weights different."""
    payload = make_payload({"none": 0.04, "rotary": 0.99}, layers=1, heads=1, texts=1)
    for model, scale in zip(payload["examples"][0]["models"], (1.0, 0.5), strict=True):
        weights = [[scale * weight for weight in row] for row in ([0.05, 0.25, 0.8], [0.4, 0.6, 0.0])]
        site = {"name": "encoder.0", "kind": kind, "query": ["a", "b"], "key": ["x", "y", "z"], "heads": 1}
        known = {"equal_rows": None, "equal_columns": None, "effects": None, "salience": [0.5], "trust": {}}
        model["sites"] = [site | known | {"weights": encode_weights([weights])}]
    return opened(payload)


def measured_by(payload: Payload, metric: str, scale: float, offset: float = 0.0) -> Payload:
    """The same payload judged by another metric: every value times `scale` plus `offset`; no groups, no ceiling."""

    def changed(row: Payload, keys: tuple[str, ...], offset: float = offset) -> None:
        row |= {key: scale * row[key] + offset for key in keys if row.get(key) is not None}

    payload["task"] |= {"groups": ["all"], "metric": asdict(METRICS[metric]), "ceiling": None, "ceiling_sentence": None}
    for trial in payload["trials"]:
        changed(trial, ("value", "best_value"))
        for point in trial["curve"]:
            changed(point, ("value",))
    for row in payload["summary"]:
        row |= {"groups": {}, "parts": {}}
        changed(row, ("mean", "low", "high", "best_mean"))
    for row in payload["differences"]:
        changed(row, ("difference", "low", "high"), 0.0)
    if payload["pairs"]["seen"] is not None:
        found = [Difference(row["first"], row["second"], row["difference"]) for row in payload["differences"]]
        pairs = Pairs(found, payload["pairs"]["seeds"], abs(scale) * payload["pairs"]["seen"])
        payload["pairs"] = describe_pairs(pairs, 100_000, METRICS[metric])
    return payload


def make_translation() -> Payload:
    """A comparison of three seeds by BLEU, with an example in tokens."""
    payload = measured_by(make_payload({"none": 0.1, "sinusoidal": 0.3, "rotary": 0.32}, 3, texts=1), "bleu", 100.0)
    source, target = ["▁Ein", "▁Mann", "▁lacht", ".", "."], ["<bos>", "▁A", "▁man"]
    (example,) = payload["examples"]
    example |= {"input": "Ein Mann lacht..", "expected": "A man laughs.", "source": source}
    for model in example["models"]:
        model["sites"] = [
            make_site(f"encoder.{i}", "encoder self-attention", source, source, 4, positions=True, seed=1)
            | {"equal_rows": [0.1, 0.5, 0.2, 0.3]}
            for i in range(2)
        ] + [make_site("decoder.0.cross", "decoder cross-attention", target, source, 4, positions=True, seed=1)]
    return opened(payload)


def make_language() -> Payload:
    """A comparison of one seed by loss, without examples."""
    payload = measured_by(make_payload({"alibi": 0.5, "rotary": 0.8}), "loss", -1.0, 2.0) | {"examples": []}
    payload["model"] = "decoder"
    for row in payload["summary"]:
        row |= {"low": None, "high": None, "interval": "not known from one seed"}
    return opened(payload)


def read_payload(document: str) -> str:
    """Return the text of the script element that holds the payload, up to the first end of a script."""
    found = re.search(r'<script type="application/json" id="payload">(.*?)</script>', document, re.DOTALL)
    assert found
    return found[1]


# ------------------------------------------------------------------------------------------------ the file


def test_payload_is_whole_and_cannot_end_its_element(payload: Payload) -> None:
    hostile = make_hostile(payload)
    text = read_payload(render(hostile))
    assert json.loads(text) == hostile
    assert not set("<>&") & set(text)
    assert text.isascii()


def test_title_is_escaped(payload: Payload) -> None:
    payload["title"] = f"</title>{HOSTILE}{RIGHT_TO_LEFT} ${{script}}"
    document = render(payload)
    found = re.search(r"<title>(.*?)</title>", document)
    assert found
    assert "<" not in found[1]
    assert html.unescape(found[1]) == payload["title"]


def test_half_a_surrogate_pair_can_be_written(payload: Payload) -> None:
    payload["title"] = payload["trials"][0]["run"] = "half \ud83d"
    assert render(payload).encode("utf-8")


def test_numbers_without_a_json_word_become_null(payload: Payload) -> None:
    payload["trials"][0]["curve"][3] |= {"loss": math.nan, "value": math.inf}
    point = json.loads(read_payload(render(payload)))["trials"][0]["curve"][3]
    assert point["loss"] is None
    assert point["value"] is None


@pytest.mark.parametrize(("element", "directive"), [('script type="module"', "script-src"), ("style", "style-src")])
def test_the_policy_contains_the_hash_of_inlined_code(payload: Payload, element: str, directive: str) -> None:
    document = render(payload)
    found = re.search(rf"<{element}>(.*?)</", document, re.DOTALL)
    assert found
    digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', document)
    assert policy
    assert f"{directive} 'sha256-{digest}';" in policy[1]
    assert policy[1].startswith("default-src 'none';")
    assert "unsafe" not in policy[1]


def test_nothing_outside_the_file_is_named(payload: Payload) -> None:
    document = render(payload).replace(read_payload(render(payload)), "").lower()
    document = document.replace("objecturl(", "").replace("dataurl(", "")  # of a figure that is saved
    for word in ("http:", "https:", "//cdn", " src=", "url(", "@import", "import(", "fetch(", "xmlhttp", "innerhtml"):
        assert word not in document
    assert re.findall(r'href="([^#].*?)"', document) == ["data:,"]


def test_page_is_small(payload: Payload) -> None:
    assert len(render(payload).encode()) - len(read_payload(render(payload))) < 138_000, "in two languages"


# ------------------------------------------------------------------------------------------------ in a browser


@pytest.fixture
def open_report(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a payload's report; at the end no message, error or request may have come up."""
    contexts, troubles, requests, addresses = [], [], [], []

    def open_page(payload: Payload, width: int = 1280, scheme: str = "light") -> Any:
        path = tmp_path / f"report-{len(addresses)}.html"
        path.write_text(render(payload), encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce", offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        addresses.append(path.as_uri())
        page.set_default_timeout(60_000)  # a busy machine may let a new window wait
        page.goto(path.as_uri(), wait_until="commit")
        page.wait_for_selector("#bars svg", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert (troubles, set(requests)) == ([], set(addresses))


@pytest.mark.parametrize(("scheme", "width"), [("dark", 420), pytest.param("light", 1280, marks=pytest.mark.long)])
def test_page_fits_the_window_and_is_quiet(open_report: Any, scheme: str, width: int) -> None:
    page = open_report(make_payload(seeds=3), width, scheme)
    for kind in ("decoder cross-attention", "0 to 1", "equal digits together", "CPU seconds"):
        page.get_by_label(kind).check()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for words in page.locator("svg .ceiling-label").all():
        assert words.evaluate("one => one.getBBox().x + one.getBBox().width - one.ownerSVGElement.clientWidth") <= 0


def test_hostile_text_stays_text(open_report: Any, payload: Payload) -> None:
    page = open_report(make_hostile(payload), 420)
    page.get_by_label("decoder cross-attention").check()
    page.locator("#large .field").first.focus()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("window.attacked") is None
    assert page.locator("img").count() == 0
    assert_count(page.locator("script"), 2)
    assert page.title() == f"{HOSTILE}{RIGHT_TO_LEFT}"
    assert page.evaluate("document.documentElement.scrollWidth") == 420
    for place in (
        "#title",
        "#figures",
        "#hero",
        "#task",
        "#ceiling",
        "#ranking-table",
        "#what-ran",
        "#large",
        "#readout",
    ):
        assert HOSTILE in page.locator(place).text_content()
    assert "שלום‹202E›" in page.locator("#trial-table bdi").all_text_contents()
    assert page.locator("#large .keys").first.locator("bdi").all_text_contents()[2:4] == ["👩‍🔬", "␣"]


def test_query_goes_down_and_key_across(open_report: Any) -> None:
    page = open_report(make_small_map())
    assert page.locator("#large .queries").first.locator("bdi").all_text_contents() == ["a", "b"]
    assert page.locator("#large .keys").first.locator("bdi").all_text_contents() == ["x", "y", "z"]
    assert_colours(read_cells(page.locator("#large .field").first, 2, 3), [[0.05, 0.25, 0.8], [0.4, 0.6, 0.0]])
    # the label of a row or column stands beside that row or above that column
    size = page.locator("#large .field").first.bounding_box()
    assert size["width"] * 2 == size["height"] * 3
    query, key = (
        page.locator("#large .queries bdi").nth(1).bounding_box(),
        page.locator("#large .keys bdi").nth(2).bounding_box(),
    )
    assert query["y"] == pytest.approx(size["y"] + size["height"] / 2, abs=1)
    assert key["x"] == pytest.approx(size["x"] + size["width"] * 2 / 3, abs=1)


def test_small_map_is_the_large_one(open_report: Any) -> None:
    page = open_report(make_small_map())
    small = page.locator(".heads canvas").first
    small.scroll_into_view_if_needed()
    assert_colours(read_cells(small, 2, 3), [[0.05, 0.25, 0.8], [0.4, 0.6, 0.0]])


def test_one_scale_for_all_models(open_report: Any) -> None:
    page = open_report(make_small_map())
    second = page.locator("#large .field").nth(1)
    assert_colours(read_cells(second, 2, 3), [[0.025, 0.125, 0.4], [0.2, 0.3, 0.0]])
    assert page.locator("#legend").inner_text().split()[-3:] == ["1/16", "1", "16×"]
    page.get_by_label("0 to 1").check()
    assert page.locator("#legend").inner_text().split() == ["weight", "0", "0.500", "1"]
    assert_linear_colours(read_cells(page.locator("#large .field").first, 2, 3), [[0.05, 0.25, 0.8], [0.4, 0.6, 0.0]])
    assert_linear_colours(read_cells(second, 2, 3), [[0.025, 0.125, 0.4], [0.2, 0.3, 0.0]])


def test_legend_runs_through_the_colours_of_the_maps(open_report: Any) -> None:
    page = open_report(make_small_map())
    legend = read_pixels(page.locator("#legend canvas"))
    middle = legend[legend.shape[0] // 2]
    places = [0.02, 0.25, 0.5, 0.75, 0.98]
    found = numpy.array([[middle[int(place * len(middle))] for place in places]])
    assert numpy.abs(found - colours_at([places])).max() <= 8


def test_heads_and_layers_are_not_mixed_up(open_report: Any) -> None:
    payload = make_small_map()
    model = payload["examples"][0]["models"][0]
    flat = [[[value] * 3] * 2 for value in (0.0, 0.2, 0.4, 0.6)]
    model["sites"] = [
        model["sites"][0] | {"name": f"encoder.{layer}", "heads": 2, "weights": encode_weights(flat[2 * layer :][:2])}
        for layer in range(2)
    ]
    page = open_report(payload)
    for layer in range(2):
        for head in range(2):
            page.get_by_role("button", name=f"none, layer {layer}, head {head}").click()
            assert page.locator("#large-title").inner_text() == f"Layer {layer}, head {head}, enlarged"
            assert_colours(read_cells(page.locator("#large .field").first, 2, 3), flat[2 * layer + head])
    assert_count(page.get_by_text("This model has no such head."), 1)


def test_pointer_reads_the_weight_under_it(open_report: Any) -> None:
    page = open_report(make_small_map())
    field = page.locator("#large .field").first
    box = field.bounding_box()
    for across, down, words in (
        (0.5, 0.75, "From b (query 1) to y (key 1), weight: none 0.6000; rotary 0.3000"),
        (0.99, 0.49, "From a (query 0) to z (key 2), weight: none 0.8000; rotary 0.4000"),
    ):
        field.hover(position={"x": box["width"] * across, "y": box["height"] * down})
        assert page.locator("#readout").inner_text() == words


def test_keyboard_path(open_report: Any, payload: Payload) -> None:
    page = open_report(payload)
    pressed = "document.querySelector('#overview [aria-pressed=true]').getAttribute('aria-label')"
    page.evaluate("document.querySelector('#overview button[tabindex=\"0\"]').focus()")
    start = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert start == page.evaluate(pressed)
    layer, head = (int(digits) for digits in re.findall(r"\d+", start))
    page.keyboard.press("ArrowDown" if layer == 0 else "ArrowUp")
    page.keyboard.press("ArrowRight" if head < 7 else "ArrowLeft")
    chosen = (1 - layer, head + 1 if head < 7 else head - 1)
    assert page.evaluate(pressed) == start
    page.keyboard.press("Enter")
    assert page.evaluate(pressed) == f"none, layer {chosen[0]}, head {chosen[1]}"
    assert_count(page.locator("#overview [aria-pressed=true]"), 2)
    # one tab stop per model, then the enlarged maps
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("rotary, layer")
    for _ in range(3):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "field":
            break
    assert page.evaluate("document.activeElement.getAttribute('role')") == "application"
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowRight"):
        page.keyboard.press(key)
    values = []
    for model in (payload["examples"][0]["models"][index] for index in (0, 2)):
        raw = struct.unpack(f"<{8 * 36}H", base64.b64decode(model["sites"][chosen[0]]["weights"]))
        values.append(raw[chosen[1] * 36 + 2 * 6 + 1] / 65535)
    expected = f"From + (query 2) to 1 (key 1), weight: none {values[0]:.4f}; rotary {values[1]:.4f}"
    assert page.locator("#readout").inner_text() == expected
    # the same cell is marked in both maps
    assert_count(page.locator("#large .cross:visible"), 6)
    for place, mark in (("query", "#large .queries bdi.on"), ("key", "#large .keys bdi.on")):
        assert page.locator(mark).all_text_contents() == (["+", "+"] if place == "query" else ["1", "1"])
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    assert "(key 5)" in page.locator("#readout").inner_text()


@pytest.mark.long
def test_choices_work_from_the_keyboard(open_report: Any, payload: Payload) -> None:
    page = open_report(payload)
    page.locator("#controls select").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#large .queries").first.locator("bdi").all_text_contents() == list("808-188")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.locator("#large h4").all_text_contents() == ["none", "sinusoidal", "rotary"]
    boxes = page.locator("#controls [type=checkbox]")
    boxes.nth(2).uncheck()
    boxes.nth(1).uncheck()
    boxes.nth(0).click()
    assert page.locator("#large h4").all_text_contents() == ["none"], "the last model stays"


def test_equal_digits_are_joined_and_judged(open_report: Any, payload: Payload) -> None:
    page = open_report(payload)
    assert page.locator("#large figcaption strong").first.inner_text() == "identical, difference 0"
    best = max(value for site in payload["examples"][0]["models"][2]["sites"][:2] for value in site["equal_rows"])
    assert page.locator("#large figcaption strong").nth(1).inner_text() == f"differ by up to {best:.3g}"
    brackets = page.locator("#large .brackets").first.locator("path")
    assert_count(brackets, 2)
    box, field = brackets.nth(0).bounding_box(), page.locator("#large .field").first.bounding_box()
    step = field["height"] / 6
    assert box["y"] == pytest.approx(field["y"] + 0.5 * step, abs=1.5), "from the first 2 ..."
    assert box["height"] == pytest.approx(3 * step, abs=3), "... to the second"
    page.get_by_label("equal digits together").check()
    assert page.locator("#large .queries").first.locator("bdi").all_text_contents() == list("22111+")
    rows = read_cells(page.locator("#large .field").first, 6, 6)
    alike = [[bool((one == two).all()) for two in rows] for one in rows]
    assert alike == [[place in group for place in range(6)] for group in ([0, 1],) * 2 + ([2, 3, 4],) * 3 + ([5],)]
    page.locator("#large .field").first.focus()
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    assert page.locator("#readout").inner_text().startswith("From + (query 2) to 2 (key 0)")


@pytest.mark.long
def test_table_prints_0_only_for_exactly_0(open_report: Any, payload: Payload) -> None:
    payload["examples"][0]["models"][1]["sites"][0]["equal_rows"][:3] = [0.0, 1.234e-9, 0.41234]
    page = open_report(payload)
    cells = page.locator("#rows-table tbody").nth(1).locator("tr").first.locator("td")
    assert cells.all_text_contents()[:3] == ["0", "1.23·10⁻⁹", "0.412"]
    assert ["zero" in cells.nth(index).get_attribute("class") for index in range(3)] == [True, False, False]
    backgrounds = [cells.nth(index).evaluate("cell => getComputedStyle(cell).backgroundColor") for index in range(2)]
    assert backgrounds[0] != backgrounds[1]
    assert set(page.locator("#rows-table tbody").first.locator("td").all_text_contents()) == {"0"}


def test_bars_dots_and_ceiling_stand_where_the_numbers_say(open_report: Any) -> None:
    payload = make_payload({"none": 0.04, "rotary": 0.5}, seeds=2)
    payload["summary"][1] |= {"mean": 0.5, "low": 0.4, "high": 0.6}
    page = open_report(payload)
    bars = page.locator("#bars .bar")
    start, half = bars.nth(1).get_attribute("x"), bars.nth(1).get_attribute("width")
    left, full = float(start), 2 * float(half)
    assert float(bars.nth(0).get_attribute("width")) == pytest.approx(full * payload["summary"][0]["mean"])
    assert float(page.locator("#bars .ceiling").get_attribute("x1")) == pytest.approx(left + full * 0.0433)
    dots = [float(dot.get_attribute("cx")) for dot in page.locator("#bars .dot").all()]
    assert dots == pytest.approx([left + full * trial["value"] for trial in payload["trials"]])
    found = re.match(r"M([\d.]+) \S+H([\d.]+)M", page.locator("#bars .whisker").nth(1).get_attribute("d"))
    assert found
    assert [float(found[1]), float(found[2])] == pytest.approx([left + full * 0.4, left + full * 0.6])
    texts = page.locator("#bars text").all_text_contents()
    assert {"50.0\u00a0%", "40.0 – 60.0\u00a0%"} < set(texts)
    assert any(text.startswith("4.33\u00a0% ceiling") for text in texts)
    assert page.locator("#group-bars .ceiling-label").all_text_contents() == [
        "7.14\u00a0% ceiling without positions",
        "1.52\u00a0% ceiling without positions",
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("goals", "ceiling", "sentence"),
    [
        (
            {"rotary": 0.9991, "none": 0.0412},
            0.0433,
            "With positions 99.91 % right. Without: 4.12 %, at most 4.33 % on average.",
        ),
        (
            {"rotary": 0.999996, "none": 0.05},
            0.0433,
            "With positions 99.9996 % right. Without: 5.00 %, above the computed 4.33 %.",
        ),
        (
            {"none": 0.0412, "rotary": 0.01},
            0.0433,
            "rotary has not passed 4.33 %: train longer.",
        ),
        (
            {"none": 0.01, "sinusoidal": 0.03, "rotary": 0.02},
            0.0433,
            "Neither sinusoidal nor rotary has passed 4.33 %: train longer.",
        ),
        (
            {"none": 0.01, "alibi": 0.02, "sinusoidal": 0.03, "rotary": 0.02},
            0.0433,
            "With positions, none of 3 has passed 4.33 %: train longer.",
        ),
        (
            {"none": 0.006, "rotary": 0.133},
            0.0433,
            "rotary is at 13.3 %, past the 4.33 % without positions: train longer.",
        ),
        ({"alibi": 0.8, "rotary": 1.0}, None, "Exact match: rotary 100 %, alibi 80.0 %. Not ranked."),
        (
            {"t5": 0.5, "alibi": 0.8, "rotary": 1.0},
            None,
            "Exact match: rotary 100 %, alibi 80.0 %, 1 more. The best is unclear.",
        ),
        ({"rotary": 1.0}, None, "rotary: exact match 100 % on unseen data."),
    ],
)
def test_headline_says_what_the_data_say(
    open_report: Any, goals: dict[str, float], ceiling: float | None, sentence: str
) -> None:
    payload = make_payload(goals)
    payload["task"]["ceiling"] = None if ceiling is None else {"all": ceiling}
    said = open_report(payload).locator("h1").inner_text()
    assert said.replace("\u00a0", " ") == sentence
    assert len(said.split(" ")) <= 12


@pytest.mark.long
def test_a_recurrent_model_knows_the_order_by_itself(open_report: Any) -> None:
    payload = make_payload({"none": 0.96, "rotary": 0.99}) | {"model": "recurrent"}
    for example in payload["examples"]:
        for model in example["models"]:
            model["sites"] = [site for site in model["sites"] if site["name"].endswith(".cross")]
    page = open_report(payload)
    lede = page.locator(".lede").inner_text()
    assert lede.startswith("A recurrent network, a small neural network, reads 21+211 and should write 232.")
    assert "A recurrent network reads one character after the other, so it knows their order by itself" in lede
    assert "(none provides no positions)" in lede
    assert page.locator("h1").inner_text() == "Exact match: rotary 99.00\u00a0%, none 96.0\u00a0%. Not ranked."
    words = page.locator("body").inner_text()
    for untrue in ("does not know the order", "Transformer", "ceiling", "cannot do better", "bag of characters"):
        assert untrue not in words, f"{untrue} is true of Transformers only"
    assert not page.locator("#rows").is_visible()


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            "encoder_decoder",
            "does not know the order of the characters by itself: a positional encoding has to",
        ),
        ("decoder", "of the characters by itself. Each one sees only those before it, from which a model can"),
        ("recurrent", "A recurrent network reads one character after the other, so it knows their order by itself. A"),
    ],
)
def test_the_page_says_what_a_model_of_its_kind_knows_of_order(open_report: Any, model: str, said: str) -> None:
    page = open_report(make_payload() | {"model": model})
    assert said in page.locator(".lede").inner_text()
    assert len(page.locator("[data-model]:visible").all()) == 1


@pytest.mark.long
def test_errors_near_0_stand_on_a_logarithmic_axis(open_report: Any) -> None:
    payload = make_payload({"none": 0.03, "alibi": 0.995, "rotary": 0.9995, "learned": 1.0}, seeds=2)
    for row, mean in zip(payload["summary"], (0.03, 0.995, 0.9995, 1.0), strict=True):
        row |= {"mean": mean, "low": mean - 0.001, "high": mean}
    for trial in payload["trials"]:
        trial["value"] = next(row["mean"] for row in payload["summary"] if row["encoding"] == trial["encoding"])
    page = open_report(payload)
    bars = [
        (float(bar.get_attribute("x")), float(bar.get_attribute("width"))) for bar in page.locator("#errors .bar").all()
    ]
    none, alibi, rotary, learned = (left + width for left, width in bars)
    dots = [float(dot.get_attribute("cx")) for dot in page.locator("#errors .dot").all()]
    assert dots[2] == pytest.approx(alibi), "dots stand below their mean"
    decade = alibi - rotary
    assert none - alibi == pytest.approx(decade * math.log10(0.97 / 0.005), rel=1e-3)
    texts = [text.replace("\u00a0", " ") for text in page.locator("#errors text").all_text_contents()]
    assert {"0.01 %", "0.1 %", "1 %", "10 %", "100 %", "97.0 %", "0.50 %", "0.05 %", "0 %"} < set(texts)
    axis = [float(line.get_attribute("x1")) for line in page.locator("#errors .axis").all()]
    assert learned == pytest.approx(axis[0]), "no error is at the left end"
    assert "Wrong answers" in page.locator("#accuracy").inner_text()


@pytest.mark.long
def test_errors_are_drawn_only_where_bars_look_alike(open_report: Any) -> None:
    assert open_report(make_payload({"none": 0.03, "rotary": 0.97})).locator("#errors").count() == 0
    assert open_report(make_language()).locator("#errors").count() == 0


@pytest.mark.long
def test_what_the_upper_bound_and_scattered_seeds_decide_is_told(open_report: Any) -> None:
    payload = make_payload({"none": 0.03, "rotary": 0.9995, "alibi": 0.995}, seeds=2)
    bound = {"better": "rotary", "limit": 0.0433, "verdict": "rotary is better: above 4.33%"}
    scattered = {"encoding": HOSTILE, "gap": 0.95, "seeds": 6}
    payload["differences"][0] |= bound
    payload["differences"][1] |= {"better": None, "limit": None, "scattered": scattered, "verdict": "seeds lie apart"}
    page = open_report(payload)
    verdicts = [row.locator("td").last.inner_text() for row in page.locator("#ranking-table tbody tr").all()]
    assert verdicts == ["rotary is better: above 4.33%", "seeds lie apart"]
    page.locator("#language button").click()
    verdicts = [row.locator("td").last.inner_text() for row in page.locator("#ranking-table tbody tr").all()]
    assert "4.33" in verdicts[0]
    assert "rotary" in verdicts[0]
    assert all(part in verdicts[1] for part in (HOSTILE, "95.00", "--seeds 6"))


@pytest.mark.long
def test_bleu_is_drawn_as_it_is(open_report: Any) -> None:
    payload = make_translation()
    page = open_report(payload)
    assert page.locator("h1").inner_text() == ("rotary is best: BLEU 31.87; sinusoidal 29.88.")
    texts = page.locator("#bars text").all_text_contents()
    assert {"31.87", "31.74 – 32.00", "0", "10", "20", "30"} < set(texts)
    largest = max(row["high"] for row in payload["summary"])
    left = float(page.locator("#bars .bar").first.get_attribute("x"))
    top = float(page.locator("#bars .whisker").nth(2).get_attribute("d").split("H")[1].split("M")[0])
    for bar, row in zip(page.locator("#bars .bar").all(), payload["summary"], strict=True):
        assert float(bar.get_attribute("width")) == pytest.approx((top - left) * row["mean"] / largest)
    assert page.locator("#match-curve text").all_text_contents()[:4] == ["0", "10", "20", "30"]
    page.locator("#all-numbers summary").click()
    assert page.locator("#summary-table tbody tr").nth(2).inner_text().split("\t")[:5] == [
        "rotary", "3", "31.87", "31.74 – 32.00", "32.00",
    ]  # fmt: skip
    assert page.locator("#ranking-table td").all_inner_texts()[:2] == ["+21.91", "+20.81 to +22.81"]
    assert page.locator("#how-compared").inner_text() == (
        f"{payload['pairs']['correction']} {payload['pairs']['power']}"
    )
    page.locator("#folded > summary").click()
    assert page.locator("#trial-table tbody tr").first.inner_text().split("\t")[:4] == ["none", "1", "10.00", "10.00"]
    words = page.locator("body").inner_text()
    assert "The bars show BLEU: higher is better." in words
    assert "A small neural network reads Ein Mann lacht.. and should write A man laughs." in words
    for unfit in ("character", "exact", "Accuracy", "percentage", "\u00a0%", "ceiling", "Equal digits", "equal digits"):
        assert unfit not in words, f"{unfit} is a word of arithmetic"


def test_failed_trials_are_listed(open_report: Any) -> None:
    payload = make_translation()
    payload["unfinished"] = [{"encoding": "none", "seed": 4, "reason": "ValueError: x\n  <b>y", "log": "none-4.log"}]
    page = open_report(payload)
    assert page.locator("#left-out li").all_inner_texts() == ["none, seed 4: ValueError: x <b>y"]
    assert page.locator("#left-out b").count() == 0


def test_lines_by_what_an_example_is_like_have_their_intervals_behind_them(open_report: Any) -> None:
    page = open_report(make_payload({"none": 0.04, "rotary": 0.5}, seeds=2))
    bands = page.locator("#parts .band")
    assert_count(bands, 2)
    (low, high) = (float(page.locator("#parts .axis").nth(number).get_attribute("y1")) for number in (0, -1))
    corners = [[float(part) for part in point.split(" ")] for point in bands.nth(1).get_attribute("d")[1:-1].split("L")]
    shares = [(y - low) / (high - low) for _, y in corners]
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.375, 0.25, 0.125], abs=2e-3)
    assert_count(page.locator("#group-bars .whisker"), 2)  # of the group whose examples were counted
    assert "Shaded: the interval of each mean." in page.locator("#parts").inner_text()


def at_lengths(means: dict[int, dict[str, float]], seeds: int = 2) -> Payload:
    """The lengths of a payload, trained at 128; only the best of 512 is ranked, and learned has a notice there."""
    at = []
    for length, row in means.items():
        best = max(row, key=row.__getitem__)
        encodings = [
            {"encoding": name, "mean": mean, "low": mean - 0.05, "high": mean + 0.05, "notices": []}
            for name, mean in row.items()
        ]
        encodings[0]["notices"] = [f"rows {HOSTILE}"] if length == 512 else []
        unranked = [] if length == 512 else [name for name in row if name != best]
        at.append({"length": length, "best": best, "unranked": unranked, "encodings": encodings})
        at[-1] |= {"pairs": {"seeds": seeds, "missing": {}}, "differences": [], "examples": 100}
    return {"unit": "tokens of a window", "trained": 128, "at": at}


@pytest.mark.long
def test_lines_by_length(open_report: Any) -> None:
    payload = make_payload({"none": 0.04, "rotary": 0.5}, seeds=2)
    payload["lengths"] = at_lengths({n: {"none": 0.3, "rotary": 0.4 - 0.2 * (n > 300)} for n in (256, 512, 1024)})
    page = open_report(payload)
    circles = page.locator("#lengths circle")
    assert_count(circles, 6)
    x = [float(circles.nth(number).get_attribute("cx")) for number in range(3)]
    trained = float(page.locator("#lengths line.ceiling").get_attribute("x1"))
    assert x[1] - x[0] == pytest.approx(x[2] - x[1]) == pytest.approx(x[0] - trained), "equal ratios, equally far"
    (low, high) = (float(page.locator("#lengths .axis").nth(number).get_attribute("y1")) for number in (0, -1))
    shares = [(float(circles.nth(n).get_attribute("cy")) - low) / (high - low) for n in range(6)]
    assert shares == pytest.approx([0.3, 0.3, 0.3, 0.4, 0.2, 0.2], abs=1e-3)
    assert page.locator("#lengths .ceiling-label").text_content() == "trained: 128"
    assert_count(page.locator("#lengths .band"), 2)
    lines = page.locator("#lengths li").all_text_contents()
    assert lines[0] == "At 256: rotary is best. Not ranked above: none"
    assert lines[1] == "At 512: none is best. Ranked above all others."
    assert HOSTILE in lines[2]
    assert page.locator("#lengths li b").count() == 0
    payload["lengths"]["at"][0]["pairs"] = {"seeds": 1, "missing": {"none": 1}}
    (line, *_) = open_report(payload).locator("#lengths li").all_text_contents()
    assert line == "At 256: rotary is best. Fewer than two seeds in common, so not ranked."
    assert open_report(make_payload()).locator("#lengths").count() == 0


@pytest.mark.long
def test_every_trial_says_its_command(open_report: Any) -> None:
    page = open_report(make_payload(seeds=2))
    page.locator("#folded > summary").click()
    page.locator("#commands > summary").click()
    assert page.locator("#commands code").all_inner_texts()[:2] == [
        "jarilab train arithmetic --out runs/demo/none-1", "jarilab train arithmetic --out runs/demo/none-2",
    ]  # fmt: skip
    assert page.locator("#commands dt").first.inner_text() == "none, seed 1"


def test_the_best_is_better_than_every_other(open_report: Any) -> None:
    """Told apart from the second but not from a third that scatters: not the best."""
    payload = make_translation()
    one = next(row for row in payload["differences"] if row["second"] == "none")
    one |= {"better": None, "low": -1.0, "verdict": "below the noise of the seeds; not ranked"}
    said = open_report(payload).locator("h1").inner_text()
    assert said == "BLEU: rotary 31.87, sinusoidal 29.88, 1 more. The best is unclear."


@pytest.mark.long
def test_the_ceiling_is_passed_where_the_whole_interval_is_above_it(open_report: Any) -> None:
    payload = make_payload({"none": 0.0436, "rotary": 0.9991})
    said = open_report(payload).locator("h1").inner_text()
    assert said.replace("\u00a0", " ") == "With positions 99.91 % right. Without: 4.36 %, at most 4.33 % on average."


@pytest.mark.long
def test_lower_is_better_for_such_a_metric(open_report: Any) -> None:
    payload = make_language()
    page = open_report(payload)
    assert page.locator("h1").inner_text() == "Loss: rotary 1.2000, alibi 1.5000. Not ranked."
    figures = page.locator("#figures").inner_text()
    assert figures == "Loss on 100,000 unseen examples (lower is better): rotary 1.2000, alibi 1.5000."
    assert "The bars show loss: lower is better." in page.locator("#accuracy").inner_text()
    alibi, rotary = (float(bar.get_attribute("width")) for bar in page.locator("#bars .bar").all())
    assert rotary / alibi == pytest.approx(1.2 / 1.5), "bars begin at 0, so the better is the shorter"
    assert page.locator("#match-curve svg").get_attribute("aria-label").startswith("Loss against")
    assert page.locator("#ranking-table td").first.inner_text() == "−0.3000"


@pytest.mark.long
def test_one_seed_without_an_interval_shows_none(open_report: Any) -> None:
    page = open_report(make_language())
    assert page.locator("#bars .whisker").count() == 0
    assert not page.locator("#interval").is_visible()
    assert page.locator("#no-interval").is_visible()


def test_a_page_without_examples_has_no_empty_headings(open_report: Any) -> None:
    page = open_report(make_language())
    assert page.locator("nav a:visible").all_inner_texts() == ["Results", "Learning", "What was run"]
    assert page.locator("h2:visible").all_inner_texts() == [
        "How good the models are", "How the models learned", "What was run",
    ]  # fmt: skip
    assert page.locator(".lede").inner_text().startswith("Attention does not know the order of the tokens by itself")


@pytest.mark.long
@pytest.mark.parametrize("make", [make_translation, make_language])
@pytest.mark.parametrize("width", [1280, 420])
def test_other_metrics_fit_the_window(open_report: Any, make: Callable[[], Payload], width: int) -> None:
    page = open_report(make(), width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    drawn = page.locator("#bars text").evaluate_all("all => all.map((text) => text.getBoundingClientRect().right)")
    assert max(drawn) <= width


def test_a_perplexity_that_falls_far_is_drawn_on_a_logarithmic_scale(open_report: Any) -> None:
    payload = measured_by(make_payload(), "perplexity", -4999.0, 5000.0) | {"examples": []}
    page = open_report(opened(payload))
    assert page.locator("#match-logarithmic").is_visible()
    assert page.locator("#match-curve .small").all_text_contents()[:3] == ["10", "100", "1K"]


def test_model_without_positions_is_known_by_its_rows_not_its_name(open_report: Any) -> None:
    text = json.dumps(make_payload({"rotary": 0.99, "alibi": 0.98, "none": 0.04})).replace('"none"', '"nil"')
    page = open_report(json.loads(text))
    assert page.locator("#large h4").all_text_contents() == ["rotary", "nil"]
    assert "Without: 4.00" in page.locator("h1").inner_text()


def test_curves_follow_the_data_and_the_chosen_axis(open_report: Any, payload: Payload) -> None:
    payload["trials"][0]["curve"][3]["loss"] = math.nan
    page = open_report(payload)
    assert_count(page.locator("#match-curve .line"), 3)
    assert page.locator("#match-curve .line-label").all_text_contents() == [
        "rotaryrotary",
        "sinusoidalsinusoidal",
        "nonenone",
    ], "from top to bottom, each with its full name as a tooltip"
    assert len({line.get_attribute("stroke-dasharray") for line in page.locator("#match-curve .line").all()}) == 3
    heights = [float(label.get_attribute("y")) for label in page.locator("#match-curve .line-label").all()]
    assert all(second - first >= 17 for first, second in itertools.pairwise(heights))
    points = page.locator("#match-curve .line").nth(2).get_attribute("d")[1:].split("L")
    assert len(points) == 21, "points without a measurement are left out"
    assert len(page.locator("#loss-curve .line").first.get_attribute("d").split("L")) == 40
    first, last = ([float(part) for part in point.split()] for point in (points[0], points[-1]))
    assert first[0] < last[0]
    assert first[1] > last[1], "up is less on a screen"
    assert "training examples seen" in page.locator("#match-curve svg").get_attribute("aria-label")
    page.get_by_label("CPU seconds").check()
    assert "CPU seconds" in page.locator("#match-curve svg").get_attribute("aria-label")
    assert "150" in page.locator("#match-curve text").all_text_contents()


@pytest.mark.long
def test_the_proof_is_a_chip_that_opens(open_report: Any, payload: Payload) -> None:
    payload["examples"][0]["models"][2]["sites"][1]["trust"] |= {"rebuild_error": 0.5, "holds": False}
    page = open_report(payload)
    for layer, chips in ((0, ["✓ verified", "✓ verified"]), (1, ["✓ verified", "✗ not verified"])):
        page.get_by_role("button", name=f"rotary, layer {layer}, head 0").click()
        assert page.locator("#large .chip summary").all_inner_texts() == chips
    assert not page.locator("#large .chip li").first.is_visible()
    page.locator("#large .chip summary").first.click()
    assert page.locator("#large .chip").first.locator("li").all_inner_texts() == [
        "Each row adds up to 1; largest error 1.19·10⁻⁷.",
        "Weight on hidden places: 0.",
        "Weights times values give the recorded output; largest error 3.10·10⁻⁷.",
    ]


@pytest.mark.long
def test_whose_map_it_is_stands_behind_an_i(open_report: Any, payload: Payload) -> None:
    page = open_report(payload)
    info = page.locator("#hero .info").nth(1)
    assert not info.locator("dd").first.is_visible()
    info.locator("summary").click()
    assert info.locator("dt").all_inner_texts() == ["Run", "Step", "Seed", "Experiment"]
    assert info.locator("dd").all_inner_texts() == ["runs/demo/rotary-1", "977", "1", "0123456789ab"]


@pytest.mark.long
def test_both_colour_schemes_can_be_read(open_report: Any, payload: Payload) -> None:
    script = """() => {
        const style = getComputedStyle(document.documentElement);
        const tones = [0, 1, 2, 3, 4, 5, 6].map((tone) => `tone-${tone}`);
        const names = ['paper', 'ink', 'muted', 'accent', 'good', 'bad', ...tones];
        return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    }"""

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    papers, maps = [], []
    for scheme in ("light", "dark"):
        page = open_report(payload, scheme=scheme)
        colours = page.evaluate(script)
        papers.append(luminance(colours.pop("paper")))
        for name, colour in colours.items():
            low, high = sorted((papers[-1], luminance(colour)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, f"{name} in the {scheme} scheme"
        corner = read_pixels(page)[2, 2]
        assert (corner.mean() > 200) == (scheme == "light")
        maps.append(read_cells(page.locator("#large .field").first, 6, 6).mean(-1))
    assert papers[0] > 0.9
    assert papers[1] < 0.02
    order = [numpy.argsort(grey.ravel(), kind="stable") for grey in (maps[0], 255 - maps[1])]
    assert maps[0].ravel()[order[0][0]] == maps[0].ravel()[order[1][0]], "the largest weight stands out in both schemes"


@pytest.mark.long
def test_missing_parts_are_left_out(open_report: Any, payload: Payload) -> None:
    payload["task"] |= {"ceiling": None, "ceiling_sentence": None, "groups": ["all"]}
    payload |= {"examples": [], "differences": []}
    for row in payload["summary"]:
        row |= {"groups": {}, "parts": {}, "low": None, "high": None, "interval": None}
    page = open_report(opened(payload))
    assert not page.locator("#why").is_visible()
    assert not page.locator("#rows").is_visible()
    assert page.locator(".ceiling, .whisker").count() == 0
    assert page.locator("#no-interval").is_visible()
    assert page.locator("#no-ranking").is_visible()
    assert not page.locator("#ranking").is_visible()
    assert_count(page.locator("#trial-table tbody tr"), 3)


@pytest.mark.long
def test_an_unknown_right_answer_is_not_judged(open_report: Any, payload: Payload) -> None:
    page = open_report(payload)
    assert "reads 21+211 and should write 232." in page.locator(".lede").inner_text()
    assert page.locator("#overview .answer").all_inner_texts() == ["answers 223 ✗ wrong", "answers 232 ✓ right"]
    for example in payload["examples"]:
        example["expected"] = None
        for model in example["models"]:
            model["correct"] = None
    page = open_report(payload)
    assert "reads 21+211 ." not in page.locator(".lede").inner_text()
    assert "reads 21+211. Its attention" in page.locator(".lede").inner_text()
    assert page.locator("#overview .answer").all_inner_texts() == ["answers 223", "answers 232"]
    assert page.locator("#controls option").all_text_contents() == ["21+211", "808-188"]


@pytest.mark.long
def test_intervals_are_named(open_report: Any, payload: Payload) -> None:
    page = open_report(payload)
    assert (
        "(95 % for sampling 100,000 examples; one seed, so nothing about others)"
        in page.locator("#interval").inner_text()
    )
    assert not page.locator("#no-interval").is_visible()
    assert_count(page.locator("#bars .whisker"), 3)
    assert page.locator("#ranking-table td").all_inner_texts()[:3] == [
        "+95.79",
        "–",
        "one seed each, so not ranked: --seeds 5 would tell chance from encoding",
    ]


@pytest.mark.long
def test_large_models_stay_usable(open_report: Any) -> None:
    tokens = [str(index % 10) for index in range(64)]
    weights = base64.b64encode(bytes(range(256)) * (2 * 12 * 64 * 64 // 256)).decode()
    names = ["none", *(f"encoding {index}" for index in range(5))]
    payload = make_payload({name: 0.5 + 0.05 * index for index, name in enumerate(names)}, layers=1, heads=1, texts=1)
    for model in payload["examples"][0]["models"]:
        site = {"kind": "encoder self-attention", "query": tokens, "key": tokens, "heads": 12, "weights": weights}
        unmeasured = {"equal_columns": None, "effects": None, "salience": [0.5] * 12}
        model["sites"] = [
            site | {"name": f"encoder.{layer}", "equal_rows": [0.5] * 12, "trust": {}, **unmeasured}
            for layer in range(12)
        ]
    page = open_report(opened(payload), 420)
    for box in page.locator("#controls [type=checkbox]").all():
        box.check()
    assert_count(page.locator("#overview button"), 6 * 12 * 12)
    assert page.evaluate("document.documentElement.scrollWidth") == 420, "large maps scroll inside their frame"
    assert page.locator("#large .field").first.bounding_box()["width"] >= 64 * 13
    page.locator("#large .field").nth(1).focus()
    for _ in range(63):
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
    assert page.locator("#readout").inner_text().startswith("From 3 (query 63) to 3 (key 63)")
    page.wait_for_function(
        "() => document.querySelector('#large .scroll').scrollLeft > 400"
    )  # the first map moves along
    frame, spot = (page.locator(part).nth(1).bounding_box() for part in ("#large .scroll", "#large .spot"))
    assert frame["x"] <= spot["x"] <= frame["x"] + frame["width"] - spot["width"] + 1
    assert 0 <= spot["y"] <= 900 - spot["height"]


def test_print_shows_tables_and_hides_controls(open_report: Any, payload: Payload) -> None:
    page = open_report(payload, scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.evaluate("document.querySelector('main > *').id = 'in-dark-ink'")
    page.emulate_media(media="print", color_scheme="light")
    until(page, lambda: page.locator("#in-dark-ink").count() == 0)  # drawn again for white paper
    until(page, lambda: page.locator("#summary-table").is_visible())  # a moment after it is opened
    page.set_viewport_size({"width": 690, "height": 900})
    until(page, lambda: page.evaluate("document.documentElement.scrollWidth") == 690)  # the tables fit on a sheet of A4
    assert not page.locator("#controls").is_visible()
    assert read_pixels(page)[2, 2].mean() > 200, "dark ink on white paper"


# ------------------------------------------------------------------------------------------------ what it opens with


def test_the_page_opens_with_two_answers_and_their_maps(open_report: Any, payload: Payload) -> None:
    example = payload["examples"][0]
    site = example["models"][2]["sites"][1]
    site["effects"][5] = 0.9
    opened(payload)
    opening = payload["opening"]
    assert (opening["site"], opening["head"]) == ("encoder.1", 5)
    page = open_report(payload)
    hero = page.locator("#hero")
    assert hero.locator(".said").all_inner_texts() == ["21+211 → 223 ✗\nwrong", "21+211 → 232 ✓\nright"]
    box = hero.locator(".panels").bounding_box()
    assert box["y"] + box["height"] < 900, "on the first screen"
    assert read_cells(hero.locator(".field").first, 6, 6).shape == (6, 6, 3)
    raw = struct.unpack(f"<{8 * 36}H", base64.b64decode(site["weights"]))[5 * 36 : 6 * 36]
    assert raw[6 * opening["query"] + opening["key"]] == max(raw)
    said = hero.locator("figcaption").inner_text()
    names = [site["query"][opening["query"]], site["key"][opening["key"]]]
    assert f"Framed: from {names[0]} to {names[1]}, weight none" in said
    assert said.startswith(
        "Encoder self-attention, layer 1, head 5: the head of rotary whose removal raises the loss most."
    )
    assert "none gives equal characters exactly equal rows: it cannot tell them apart." in said
    hero.get_by_role("button", name="Open this head below").click()
    assert page.locator("#large-title").inner_text() == "Layer 1, head 5, enlarged"
    assert page.locator("#large h4").all_text_contents() == ["none", "rotary"]
    assert page.locator("#readout").inner_text().startswith(f"From {names[0]} (query {opening['query']})")


def test_both_answers_are_on_the_first_screen_of_a_phone(open_report: Any, payload: Payload) -> None:
    page = open_report(payload, 420)
    boxes = [part.bounding_box() for part in page.locator("#hero .field").all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[1]["x"] + boxes[1]["width"] <= 420
    assert boxes[1]["y"] + boxes[1]["height"] < 700


def test_the_headline_claims_no_more_than_the_table(open_report: Any, payload: Payload) -> None:
    for example in payload["examples"]:
        for model in example["models"]:
            for site in model["sites"]:
                site |= {"effects": None, "equal_rows": None if site["equal_rows"] is None else [0.25] * 8}
    page = open_report(opened(payload))
    said = page.locator("#hero figcaption").inner_text()
    assert "that is farthest from chance" in said
    assert "suffers" not in said
    assert "equal" not in said, "no model here is blind"


@pytest.mark.long
def test_without_maps_there_is_no_hero(open_report: Any) -> None:
    assert open_report(make_language()).locator("#hero").count() == 0


def test_the_cross_map_is_judged_by_its_columns(open_report: Any, payload: Payload) -> None:
    for model, apart in zip(payload["examples"][0]["models"], (0.0, 0.5, 0.5), strict=True):
        cross = model["sites"][2]
        cross |= {"effects": [9.0] * 8, "equal_columns": [apart] * 8}
    page = open_report(opened(payload))
    said = page.locator("#hero figcaption").inner_text()
    assert (
        "none gives equal characters exactly equal weights: it cannot tell them apart. With rotary they differ by"
        in said
    )


# ------------------------------------------------------------------------------------------------ what it takes along


PLACES = [
    ("#hero", "opening"),
    ("#accuracy", "accuracy"),
    ("#why", "heads"),
    ("#learning", "curve-loss"),
    ("#parts", "by-1"),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("scheme", "place", "name"),
    [
        ("dark", *PLACES[1]),
        *(pytest.param("light", *place, marks=pytest.mark.long) for place in PLACES),
        *(pytest.param("dark", *place, marks=pytest.mark.long) for place in (PLACES[0], *PLACES[2:])),
    ],
)
def test_figures_are_saved_as_svg_and_png(
    open_report: Any, payload: Payload, scheme: str, place: str, name: str
) -> None:
    page = open_report(payload, scheme=scheme)
    savers = page.locator(f"{place} .savers").first if place != "#learning" else page.locator(f"{place} .savers").last
    with page.expect_download() as waiting:
        savers.get_by_role("button", name="Save as SVG").click()
    drawing = Path(waiting.value.path()).read_text(encoding="utf-8")
    assert waiting.value.suggested_filename == f"{name}.svg"
    assert "var(" not in drawing, "colours are written into it"
    assert "class=" not in drawing
    with page.expect_download() as waiting:
        savers.get_by_role("button", name="Save as PNG").click()
    assert waiting.value.suggested_filename == f"{name}.png"
    pixels = decode_png(Path(waiting.value.path()).read_bytes())
    paper = pixels[2, 2]
    assert (paper.mean() > 200) == (scheme == "light")
    assert len(numpy.unique(pixels.reshape(-1, 3), axis=0)) > 8, "something is drawn on it"


def test_the_command_that_opens_the_explorer_can_be_copied(open_report: Any, payload: Payload) -> None:
    page = open_report(payload)
    assert page.locator("#why .command code").inner_text() == payload["examples"][0]["explore"]
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#why .command button").click()
    until(page, lambda: page.locator("#why .command button").inner_text() == "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == payload["examples"][0]["explore"]


def test_a_link_to_it_is_shown_with_a_sentence(payload: Payload) -> None:
    document = render(payload)
    told = dict(re.findall(r'<meta (?:name|property)="(description|og:\w+)" content="(.*?)">', document))
    assert told["og:title"] == payload["title"]
    assert (
        told["description"]
        == told["og:description"]
        == (
            "arithmetic, exact match on held-out data: none 4.12%, sinusoidal 96.55%, rotary 99.91%. "
            "Without positions at most 4.33% on average."
        )
    )


# ------------------------------------------------------------------------------------------------ colours, parts


@pytest.mark.long
def test_an_encoding_has_its_colour_in_every_report(open_report: Any) -> None:
    fill = "node => getComputedStyle(node).fill"

    def colours(payload: Payload) -> dict[str, str]:
        page = open_report(payload)
        bars = [bar.evaluate(fill) for bar in page.locator("#bars .bar").all()]
        return dict(zip([row["encoding"] for row in payload["summary"]], bars, strict=True))

    few = colours(make_payload({"rotary": 0.9, "alibi": 0.8}))
    many = colours(make_payload({"shaw": 0.7, "t5": 0.6, "alibi": 0.8, "none": 0.04, "rotary": 0.9}))
    assert few == {name: many[name] for name in few}
    assert len(set(many.values())) == 5


def test_encodings_of_one_colour_differ_in_marks(open_report: Any) -> None:
    page = open_report(make_payload({f"rotary:base={base}": 0.9 - base / 100 for base in range(2, TONES + 3)}))
    assert_count(page.locator("#bars .bar.second"), 1)
    styles = (
        "lines => lines.map((line) => [getComputedStyle(line).stroke, line.getAttribute('stroke-dasharray')].join())"
    )
    looks = page.locator("#match-curve .line").evaluate_all(styles)
    assert len(set(looks)) == TONES + 1


def test_accuracy_is_shown_by_part(open_report: Any, payload: Payload) -> None:
    page = open_report(payload)
    figure = page.locator("#parts figure")
    assert figure.locator("figcaption").inner_text().split("\n") == [
        "Exact match by digits of the answer", "Held-out examples of each, from left to right: 10, 100, 1,000, 10,000. "
        "Shaded: the interval of each mean.",
    ]  # fmt: skip
    path = figure.locator(".line").nth(2).get_attribute("d")
    heights = [float(point.split()[1]) for point in path[1:].split("L")]
    assert len(heights) == 4
    assert heights == sorted(heights, reverse=True), "it rises with the digits"
    steps = [first - second for first, second in itertools.pairwise(heights)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert figure.locator(".small").all_text_contents()[-5:] == [
        "1",
        "2",
        "3",
        "4",
        "digits of the answer",
    ]
    page.locator("#language button").click()
    assert figure.locator("h3").inner_text() == "답의 자릿수별 완전 일치"


# ------------------------------------------------------------------------------------------------ the payload's data


def test_budget_and_model_are_listed(tmp_path: Path) -> None:
    settings = {
        "task.lines": 40,
        "task.held_out": 5,
        "task.lengths": "1..4",
        "model.d_model": 8,
        "training.evaluations": 1,
    }
    settings |= {"training.epochs": 1.0, "training.tokens": 30}
    experiment = Experiment.of("copy", "none", settings, model="recurrent")
    jarilab.train("copy", tmp_path / "none-1", encoding="none", model="recurrent", settings=settings, threads=1)
    task = experiment.resolved.build_task()
    table = tabulate([Trial("none-1", experiment, tmp_path / "none-1")], task)
    made = report.payload(table, [(experiment, tmp_path / "none-1")], task)
    assert made["model"] == made["what_ran"]["model"] == "recurrent"
    told = {name: value for name, value in made["what_ran"].items() if name.startswith("training: ")}
    assert told["training: epochs"] == 1.0
    assert told["training: tokens"] == 30
    assert not {"training: examples", "training: batch"} & told.keys(), "these decide nothing here"
    plain = report.deciding(Experiment.of("copy", "none").training)
    assert {"examples", "batch_size"} <= plain.keys(), "and these do"


# ------------------------------------------------------------------------------------------------ in Korean

HANGUL = re.compile("[가-힣]")
SECTIONS = ["accuracy", "why", "rows", "learning", "run"]


@pytest.mark.parametrize(
    ("make", "width"),
    [
        (make_payload, 420),
        *(pytest.param(make, 1280, marks=pytest.mark.long) for make in (make_translation, make_language)),
    ],
)
def test_the_report_speaks_korean(open_report: Any, make: Callable[[], Payload], width: int) -> None:
    page = open_report(make(), width)
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("#language button").inner_text() == "한국어"
    before = page.locator("#bars text").all_text_contents()
    page.locator("#language button").click()
    assert HANGUL.findall(page.locator("#language").inner_text()) == [], "the way back is in English"
    assert page.evaluate("document.activeElement.closest('#language') !== null")
    assert page.locator("html").get_attribute("lang") == "ko"
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert [text for text in page.locator("#bars text").all_text_contents() if "ceiling" not in text][:3] == [
        text for text in before if "ceiling" not in text
    ][:3]
    said = "h1, h2, h3:visible, .lede, nav a, legend, summary, thead th, figcaption, .note, #readout, main section > p"
    places = page.locator(said).all()
    english = [place.inner_text() for place in places if not place.get_attribute("lang")]
    unsaid = [text for text in english if text.strip() and not HANGUL.search(text)]
    assert set(unsaid) <= {"BLEU", "+", "-", "i"}, "names of metrics and groups stay"
    page.locator("#language button").click()
    assert HANGUL.findall(page.locator("main").inner_text()) == []


@pytest.mark.long
def test_the_language_of_the_report_stays_when_it_is_read_again(open_report: Any, payload: Payload) -> None:
    page = open_report(payload)
    page.locator("#language button").click()
    page.locator("nav a").nth(3).click()
    until(page, lambda: page.evaluate("location.hash").endswith("lang=ko"))
    assert page.evaluate("location.hash") == "#learning&lang=ko"
    page.reload()
    page.wait_for_selector("#bars svg", state="attached")
    assert page.locator("h1").inner_text() == (
        "위치를 알면 정답률 99.91\u00a0%, 모르면 4.12\u00a0%(평균 상한 4.33\u00a0%)."
    )
    assert page.locator("#learning").bounding_box()["y"] < 900


def test_the_encoding_that_lacks_seeds_is_named_in_korean(open_report: Any, payload: Payload) -> None:
    payload["pairs"]["missing"] = {"rotary": 4}
    page = open_report(payload)
    page.locator("#language button").click()
    verdict = page.locator("#ranking-table td").nth(2).inner_text()
    assert verdict.startswith("공통인 시드가 하나뿐이라 순위를 매기지 않음. rotary: 다른 인코딩에 있는 시드 4개가 없음")


def test_the_cell_and_its_map_are_described_in_korean(open_report: Any) -> None:
    page = open_report(make_small_map())
    page.locator("#language button").click()
    page.locator("#large .field").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#readout").inner_text() == "b(쿼리 1) → x(키 0), 가중치: none 0.4000; rotary 0.2000"
    assert "어텐션 맵" in page.locator("#large .field").first.get_attribute("aria-roledescription")
    assert_colours(read_cells(page.locator("#large .field").first, 2, 3), [[0.05, 0.25, 0.8], [0.4, 0.6, 0.0]])


@pytest.mark.parametrize(("language", "scheme"), [("ko", "dark"), pytest.param("en", "light", marks=pytest.mark.long)])
def test_axe_finds_nothing(pages: Pages, payload: Payload, scheme: str, language: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = pages.open(render(payload), "#bars svg", f"#lang={language}", color_scheme=scheme, bypass_csp=True)
    assert page.locator("html").get_attribute("lang") == language
    found = {violation["id"]: violation["nodes"][0]["html"] for violation in Axe().run(page).response["violations"]}
    assert found == {}


@pytest.mark.long
@pytest.mark.parametrize(("ones_first", "answer"), [(False, "HTO"), (True, "OTH")])
def test_numbers_on_the_axes_have_brackets_and_places(
    pages: Pages, payload: Payload, ones_first: bool, answer: str
) -> None:
    payload["task"]["ones_first"] = ones_first
    for model in payload["examples"][0]["models"]:
        cross = make_site(
            "decoder.0.cross", "decoder cross-attention", ["<bos>", *"232"], list("21+211"), 4, positions=True, seed=1
        )
        model["sites"] = [*model["sites"][:1], cross]
    page = pages.open(render(payload | {"opening": None}), "#large .field", width=1440)
    read = "nodes => nodes.map((node) => [node.textContent, node.dataset.short, node.classList.contains('start')])"
    columns = [["2", "T", True], ["1", "O", False], ["2", "H", True], ["1", "T", False], ["1", "O", False]]
    assert page.locator("#large .keys").first.locator(".meant").evaluate_all(read) == columns
    page.get_by_label("equal digits together").check()
    together = page.locator("#large .queries").first.locator(".meant").evaluate_all(read)
    assert [start for _, _, start in together].count(True) > 2, "digits that are put together are no number"
    page.get_by_label("decoder cross-attention").check()
    rows = page.locator("#large .queries").first.locator(".meant").evaluate_all(read)
    assert [letter for _, letter, _ in rows] == list(answer)
