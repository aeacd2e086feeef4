"""A saved page that goes on answering: what it computes in a browser, without Python, is what Python computes."""

import base64
import copy
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jaxtyping
import pytest

import jarilab
from helpers.browser import Pages, assert_colours, assert_count, canvas_bytes, change_in, decode_png, read_change, until
from helpers.command import command
from helpers.explorer import made_page, made_site, made_view
from helpers.runs import TINY_MODEL, train
from jarilab import api
from jarilab.explorer import Explorer, open_explorer, render
from jarilab.explorer.page_file import saved_page
from jarilab.pages.kit.data_blocks import unpacked
from jarilab.runs.experiment import Experiment

pytestmark = pytest.mark.browser

READY = "html[data-engines]"
NOTE = "#input-note"


@pytest.fixture(scope="module", autouse=True)
def as_a_person_runs_it() -> Iterator[None]:
    """Unchecked: where `torch.export` follows a model, a length is a symbol and no `int`."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def explorer(runs: Path) -> Explorer:
    return open_explorer([runs / "none", runs / "rotary"])


@pytest.fixture(scope="module")
def payload(explorer: Explorer) -> dict[str, Any]:
    return saved_page(explorer, "12+7", "encoder.0", 0)


def told(page: Any, view: int) -> str:
    return page.locator(".model").nth(view).locator(".said .token.big").get_attribute("title")


@pytest.mark.slow
def test_another_input_is_answered_in_the_page(pages: Pages, payload: dict[str, Any], runs: Path) -> None:
    page = pages.open(render(payload), READY)
    assert "without Python. Verified here" in page.locator(NOTE).text_content()
    for line in ("3+0", "47-12="):
        page.locator("#input").fill(line)
        page.keyboard.press("Enter")
        until(page, lambda line=line: page.title().startswith(line))
        for view, run in enumerate(("none", "rotary")):
            (answer,) = jarilab.predict(runs / run, [line])
            assert told(page, view) == (answer.answer or "∅")
        assert page.locator(".queries").first.inner_text().split() == list(line.removesuffix("="))
    page.reload()
    until(page, lambda: page.title().startswith("47-12"))
    for line in ("3+0", "12+7"):
        page.go_back()
        until(page, lambda line=line: page.title().startswith(line))


def test_an_input_that_no_page_can_read_is_told(pages: Pages, payload: dict[str, Any]) -> None:
    page = pages.open(render(payload), READY)
    for line, words in {
        "1+x": "no token for x",
        "1\u202e": "no token for ‹202E›;",
        "": "write an input",
        "1" * 40: "expected at most",
    }.items():
        page.locator("#input").fill(line)
        page.keyboard.press("Enter")
        until(page, lambda words=words: words in page.get_by_role("alert").text_content())
    assert page.title().startswith("12+7")


@pytest.mark.parametrize(
    "edits",
    [
        [{"kind": "head", "site": "encoder.0", "head": 1}],
        [{"kind": "link", "site": "encoder.0", "head": 0, "query": 1, "key": 2, "how": "erase"}],
        [{"kind": "token", "side": "source", "key": 2}],
    ],
)
def test_an_edit_does_in_the_page_what_it_does_in_python(
    pages: Pages, payload: dict[str, Any], explorer: Explorer, edits: list[dict[str, Any]]
) -> None:
    page = pages.open(render(payload), READY)
    (edit,) = edits
    proof = page.locator("#maps details.proof").nth(1).locator("summary")
    if edit["kind"] == "head":
        page.locator("[data-view='1'][data-site='encoder.0'][data-head='1']").click()
        until(page, lambda: "verified" in proof.text_content())
        page.get_by_role("switch", name="Switch encoder.0, head 1 off").click()
    else:
        page.locator("[data-view='1'][data-site='encoder.0'][data-head='0']").click()
        page.locator(".field").nth(1).press("Home")
        cut = "x" if edit["kind"] == "link" else "X"
        for key in ["ArrowUp"] * 4 + ["ArrowDown", "ArrowRight", "ArrowRight", "Enter", cut]:
            page.keyboard.press(key)
    edited = page.locator(".edited").first
    until(page, lambda: "other places" in edited.text_content())
    effect = explorer.operate("12+7", 1, edits)["effect"]
    if edit["kind"] == "token":
        assert not page.locator("[data-keep='cut 1']").count(), "a link to nobody can be cut"
        assert "no query sees + (2)" in edited.text_content()
        smaller = sum(control["divergence"] < effect["divergence"] for control in effect["controls"])
        assert f"A larger effect than {smaller} of 3 edits" in edited.text_content()
    assert edited.locator(".token.big").text_content() == (effect["answer"] or "∅")
    finding = page.locator("#finding").text_content()
    assert (" is off now." in finding) == (edit["kind"] == "head"), "and does not say what it looks at"
    checked = "off: it has no weights" if edit["kind"] == "head" else "checked in part"  # it knows no output of an edit
    assert checked in proof.text_content()
    assert read_change(edited.text_content()) == change_in(effect)
    assert page.locator(".model").first.locator(".edited").count() == 0, "of the other model nothing is edited"
    page.get_by_role("button", name="Undo:").first.click()
    until(page, lambda: not page.locator(".edited").count())
    until(page, lambda: "verified" in proof.text_content())


@pytest.mark.long
def test_a_switch_goes_by_key_and_stays_with_another_input(
    pages: Pages, payload: dict[str, Any], explorer: Explorer
) -> None:
    page = pages.open(render(payload), READY)
    page.locator("[data-view='1'][data-site='encoder.0'][data-head='1']").press("x")
    until(page, lambda: page.locator("#models .edited .answer").count() == 1)
    page.locator("#input").fill("3+0")
    page.keyboard.press("Enter")
    effect = explorer.operate("3+0", 1, [{"kind": "head", "site": "encoder.0", "head": 1}])["effect"]
    until(page, lambda: page.title().startswith("3+0") and page.locator("#models .edited .answer").count() == 1)
    edited = page.locator("#models .edited")
    until(page, lambda: edited.locator(".token.big").text_content() == (effect["answer"] or "∅"))
    assert read_change(edited.text_content()) == change_in(effect), "and what that does to its probability"


def test_a_token_belongs_to_its_input(pages: Pages, payload: dict[str, Any]) -> None:
    page = pages.open(render(payload), READY)
    models = page.locator("#models")
    page.locator("#tab-surgery").click()
    page.get_by_role("button", name="Hide it from all").click()
    in_hangul_mode = {"key": "ㅌ", "code": "KeyX", "bubbles": True}
    page.locator("[data-view='1'][data-site='encoder.0'][data-head='1']").dispatch_event("keydown", in_hangul_mode)
    until(page, lambda: "no query sees" in models.text_content() and "encoder.0 head 1 off" in models.text_content())
    page.locator("#input").fill("3+0")
    page.keyboard.press("Enter")
    until(page, lambda: page.title().startswith("3+0") and "encoder.0 head 1 off" in models.text_content())
    assert "no query sees" not in models.text_content()


@pytest.mark.long
def test_a_switch_redraws_only_what_it_changes(pages: Pages, payload: dict[str, Any]) -> None:
    page = pages.open(render(payload), READY)
    heads = page.locator("#overview [data-view='1']")
    states = "heads => heads.map((head) => [head.dataset.site, head.dataset.state])"
    before = heads.evaluate_all(states)
    switched = page.locator("#overview [data-view='1'][data-site='decoder.0.cross'][data-head='1']")
    switched.click()
    page.evaluate("window.kept = [...document.querySelectorAll('#overview button, .field canvas, #panels .panel > *')]")
    switched.press("x")
    until(page, lambda: page.locator("#models .edited .answer").count() == 1)
    assert page.evaluate("kept.length > 4 && kept.every((node) => node.isConnected)"), "nothing is put together again"
    switch = page.locator("[role=switch]:visible")
    assert switch.get_attribute("aria-checked") == "false"
    changed = {one[0] for one, two in zip(before, heads.evaluate_all(states), strict=True) if one != two}
    assert "decoder.0.cross" in changed
    assert not changed & {"encoder.0", "decoder.0.self"}, "what stands before it stays"
    switch.click()
    until(page, lambda: heads.evaluate_all(states) == before)
    assert switch.get_attribute("aria-checked") == "true"


def test_a_click_cuts_a_cell_where_that_was_chosen(pages: Pages, payload: dict[str, Any]) -> None:
    page = pages.open(render(payload), READY)
    page.locator("[data-keep=cutting]").check()
    page.locator(".field").nth(1).click(position={"x": 4, "y": 4})
    until(page, lambda: "query 0 no longer sees key 0" in page.locator(".edited").first.text_content())
    page.locator(".field").nth(1).click(position={"x": 4, "y": 4})
    until(page, lambda: not page.locator(".edited").count())


def test_a_page_that_computes_something_else_stays_still_and_says_so(pages: Pages, payload: dict[str, Any]) -> None:
    wrong = copy.deepcopy(payload)
    sample = wrong["views"][1]["engine"]["program"]["sample"]
    sample["scores"] = {**sample["scores"], "data": "A" * len(sample["scores"]["data"])}
    page = pages.open(render(wrong), READY)
    assert "cannot compute: the results of this page differ from" in page.locator(NOTE).text_content()
    assert page.locator("#input").get_attribute("readonly") is not None
    of_views = [page.locator(f".heads-of >> nth={view}").locator("[role=switch]").count() for view in (0, 1)]
    assert of_views[1] == 0
    assert of_views[0] > 0, "the other model still answers to its switches"


def test_another_answer_than_pythons_is_told(pages: Pages, payload: dict[str, Any]) -> None:
    wrong = copy.deepcopy(payload)
    wrong["views"][0]["outputs"][0]["token"] = "9+"
    page = pages.open(render(wrong), READY)
    assert "it answers" in page.locator(NOTE).text_content()


def test_a_still_page_offers_nothing_to_switch(pages: Pages, explorer: Explorer) -> None:
    page = pages.open(jarilab.explorer.page(explorer, "12+7", still=True).html, READY)
    assert page.get_by_role("switch").count() == 0
    assert "jarilab explore" in page.locator(NOTE).text_content()
    page.locator("#tab-surgery").click()
    assert "Run it live" in page.locator("#panel-surgery").text_content()


def test_a_model_that_no_page_can_run_says_why(pages: Pages, runs: Path) -> None:
    page = pages.open(jarilab.explore(runs / "recurrent", input="3 5 2").html, READY)
    note = page.locator(NOTE).text_content()
    assert "cannot compute" in note
    assert "torch.export cannot follow Recurrent" in note


SMALL = {
    "training.batch_size": 16,
    "training.examples": 320,
    "training.epochs": None,
    "training.tokens": None,
    "training.evaluations": 1,
    "training.evaluation_examples": 8,
    **TINY_MODEL,
}
PAIRS = "\n".join(f"Der Hund sah {n} Katzen.\tThe dog saw {n} cats." for n in range(90))
TRAINED: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "bpe": (
        "translation",
        {"task.vocab_size": 320, "task.longest": 40},
        ["Der Hund sah 7 Hunde.", "  고양이 👋🏽 sah! ", "e\u0301"],
    ),
    "unigram": (
        "translation",
        {"task.tokenizer": "unigram", "task.vocab_size": 320, "task.longest": 40},
        ["Die Katze sah 7."],
    ),
    "words": (
        "translation",
        {"task.tokenizer": "words", "task.vocab_size": 12, "task.lowercase": True},
        ["Der Hund sah Äpfel und 3 Katzen.", "sah ÄPFEL"],
    ),
    "number-words": ("number-words", {"task.maximum": 999}, ["two hundred and Twenty-Two", "이백이십이"]),
    "pronouns": ("pronouns", {}, ["The cat ate the bread, although it was sick."]),
    "copy": ("copy", {"task.lines": 500, "task.symbols": 20}, ["3 5 2 07", "1"]),
}


@pytest.fixture(scope="module")
def spelled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of each task whose text is cut by a rule of its own; trained when it is asked for."""
    folder = tmp_path_factory.mktemp("spelled")
    (folder / "pairs.tsv").write_text(PAIRS, encoding="utf-8")

    def run(name: str) -> Path:
        task, options, _ = TRAINED[name]
        pairs = str(folder / "pairs.tsv")
        files = {"task.train": pairs, "task.valid": pairs} if task == "translation" else {}
        if not (folder / name).exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("JARILAB_CACHE", str(folder / "cache"))
                train(folder / name, Experiment.of(task, "rotary", {**SMALL, **files, **options}, 1, "float32"))
        return folder / name

    return run


ALWAYS = {"number-words"}
"""In every run of the tests; how each kind cuts and joins is in tests/unit/pages/kit/test_spelling.py."""


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.long) for name in TRAINED]
)
def test_another_input_is_cut_and_answered_as_in_python(pages: Pages, spelled: Any, name: str) -> None:
    run, (_, _, lines) = spelled(name), TRAINED[name]
    first = api.open_run(run).example()
    page = pages.open(jarilab.explore(run, input=first).html, READY)
    assert "without Python. Verified here" in page.locator(NOTE).text_content()
    explorer = open_explorer([run])
    for line in lines:
        page.locator("#input").fill(line)
        page.keyboard.press("Enter")
        until(page, lambda line=line: page.title().startswith(f"{line.strip()} ·"))
        (answer,) = jarilab.predict(run, [line])
        assert told(page, 0) == (answer.answer or "∅")
        view = explorer.look(line.strip(), live=False)["views"][0]
        assert_count(page.locator(".outputs button"), len(view["outputs"]))
        site = f"[data-site='{view['sites'][0]['site']}'][data-head='0']"
        page.locator(site).click()
        assert page.locator(".queries").first.inner_text().split("\n") == shown(view["sides"]["source"]["tokens"])


def shown(tokens: list[str]) -> list[str]:
    return [token.replace(" ", "␣") for token in tokens]


@pytest.mark.long
def test_an_unknown_word_is_copied_from_where_the_page_looked(pages: Pages, spelled: Any) -> None:
    run = spelled("words")
    (answer,) = jarilab.predict(run, ["Der Hund sah Äpfel und 3 Katzen."])
    assert answer.answer
    assert "\ufffd" not in answer.answer
    assert "<unk>" in [token for token, _ in answer.tokens], "nothing would be copied"


@pytest.mark.long
def test_a_language_model_reads_another_text_and_answers_to_switches(pages: Pages, runs: Path) -> None:
    page = pages.open(jarilab.explore(runs / "lm", input="one two").html, READY)
    explorer = open_explorer([runs / "lm"])
    for line in ("three 1+2", " one ", ""):
        page.locator("#input").fill(line)
        page.keyboard.press("Enter")
        view = explorer.look(line, live=False)["views"][0]
        until(page, lambda view=view: page.locator(".sentence .word").count() == len(view["outputs"]))
        page.locator(".outputs button").focus()
        token, share = view["outputs"][-1]["top"][0]
        likely = page.locator(".likely span").first.text_content().removesuffix(" %")
        assert float(likely.rpartition(" ")[2]) == pytest.approx(100 * share, abs=0.11), token
        assert page.locator("#input").input_value() == line
    page.locator("#input").fill("one two")
    page.keyboard.press("Enter")
    until(page, lambda: page.title().startswith("one two ·"))
    page.locator("[data-site='decoder.0.self'][data-head='0']").press("x")
    edited = page.locator(".edited").first
    until(page, lambda: read_change(edited.text_content()) is not None)
    edits = [{"kind": "head", "site": "decoder.0.self", "head": 0}]
    effect = explorer.operate("one two", 0, edits)["effect"]
    assert read_change(edited.text_content()) == change_in(effect)
    changes = {one["token"]: abs(math.log(one["after"] / one["before"])) for one in effect["tokens"]}
    assert f" nats a token, most at {max(changes, key=changes.__getitem__)} (" in edited.text_content()


def test_a_view_without_an_engine_is_as_it_was(pages: Pages) -> None:
    site = made_site("decoder.0.cross", [[[0.5, 0.5]]], "target", "source")
    page = pages.open(render(made_page(made_view([site], source="xy", target="a"))), READY)
    assert page.get_by_role("switch").count() == 0


@pytest.mark.long
def test_what_digits_stand_for_is_found_as_in_python(pages: Pages, payload: dict[str, Any], explorer: Explorer) -> None:
    page = pages.open(render(payload), READY)
    for line in ("47-12", "5-91", "99+8"):
        page.locator("#input").fill(line)
        page.keyboard.press("Enter")
        until(page, lambda line=line: page.title().startswith(line))
        page.locator("#tab-tasklens").click()
        lens = explorer.look(line, live=False)["views"][payload["view"]]["lens"]
        panel = page.locator("#panel-tasklens")
        shares = [value for of_site in lens["share"].values() for value in of_site["value"] if value is not None]
        shown = [float(text.rstrip(" %")) for text in panel.locator("td button").all_text_contents()]
        assert shown == pytest.approx([100 * share for share in shares], abs=0.11)
        carries = panel.locator(".tasklens-digits").nth(1).locator("tr").nth(2).locator("td").all_text_contents()
        assert carries == ["" if carry is None else str(int(carry)) for carry in lens["carries"]]
        titles = page.locator(".queries .meant").evaluate_all("nodes => nodes.map((node) => node.title)")
        assert titles[0] == f"{line[0]}: {'tens' if line[1].isdigit() else 'ones'}"


@pytest.mark.long
def test_a_longer_input_while_edits_are_in_force(pages: Pages, payload: dict[str, Any], runs: Path) -> None:
    page = pages.open(render(payload), READY)
    page.locator("[data-view='1'][data-site='encoder.0'][data-head='1']").press("x")
    until(page, lambda: page.locator("#models .edited .answer").count() == 1)
    page.locator(".field").first.press("End")
    page.locator("#input").fill(" 97+98 ")
    page.keyboard.press("Enter")
    until(page, lambda: page.title().startswith("97+98 ·"))
    assert page.locator("#error").text_content() == ""
    (answer,) = jarilab.predict(runs / "rotary", ["97+98"])
    assert told(page, 1) == (answer.answer or "∅")


@pytest.mark.long
def test_an_answer_that_stays_is_not_told_as_another(pages: Pages, payload: dict[str, Any], explorer: Explorer) -> None:
    shown = copy.deepcopy(payload)
    for view in shown["views"]:  # as of a task whose answers only Python can put together
        view["engine"]["text"]["write"] = None
        view["answer"] = f"so: {view['answer']}"
    page = pages.open(render(shown), READY)
    page.locator("[data-keep=cutting]").check()
    edits = [{"kind": "link", "site": "encoder.0", "head": 0, "query": 0, "key": 0, "how": "erase"}]
    page.locator(".field").nth(1).click(position={"x": 4, "y": 4})
    edited = page.locator("#models .edited").first
    until(page, lambda: read_change(edited.text_content()) is not None)
    before = explorer.look("12+7", live=False)["views"][1]["answer"]
    stays = explorer.operate("12+7", 1, edits)["effect"]["answer"] == before
    assert ("as before" in edited.text_content()) == stays


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        pytest.param(["rotary"], ["--input=12+7", "--align", "0-0 1-2", "--head", "0"], marks=pytest.mark.long),
        (["none", "rotary"], ["--input=-3+5", "--site", "decoder.0.cross", "--head", "1", "--step", "0", "--still"]),
    ],
)
def test_the_command_below_a_page_makes_that_page(
    pages: Pages, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], asked: list[str]
) -> None:
    folders = [tmp_path / f"{name} run" for name in names]
    for folder, name in zip(folders, names, strict=True):
        folder.symlink_to(runs / name)
    monkeypatch.chdir(tmp_path)
    command("explore", *folders, *asked, "--save", "first.html")
    first = (tmp_path / "first.html").read_text(encoding="utf-8")
    page = pages.open(first, READY)
    line = page.locator("#again code").text_content()
    words = shlex.split(line)
    assert words[: 2 + len(folders)] == ["jarilab", "explore", *(folder.name for folder in folders)]
    assert words[-2:] == ["--save", "page-0.html"]
    command(*words[1:-1], "again.html")
    again = (tmp_path / "again.html").read_text(encoding="utf-8")
    assert again == first


def test_the_command_goes_with_what_is_looked_at(pages: Pages, payload: dict[str, Any], runs: Path) -> None:
    shown = copy.deepcopy(payload)
    shown["views"][0]["words"] = ["it's; rm -rf $HOME"]
    page = pages.open(render(shown), READY)
    page.locator("[data-view='1'][data-site='decoder.0.self'][data-head='1']").click()
    page.locator("#input").fill("3+0")
    page.keyboard.press("Enter")
    until(page, lambda: page.title().startswith("3+0"))
    words = shlex.split(page.locator("#again code").text_content())
    assert words[2:4] == ["it's; rm -rf $HOME", "rotary"], "the name of a folder elsewhere"
    assert words[4:] == ["--input", "3+0", "--site", "decoder.0.self", "--head", "1", "--save", "page-0.html"]


def test_without_scripts_there_is_still_something_to_look_at(pages: Pages, payload: dict[str, Any]) -> None:
    shown = copy.deepcopy(payload)
    shown["views"][0]["answer"] = "<b>19</b>"
    page = pages.open(render(shown), "noscript img", java_script_enabled=False)
    said = page.locator("body").inner_text()
    assert "Please allow it to run" in said
    assert "12+7 → <b>19</b>" in said
    assert " / ".join(shown["views"][0]["purpose"]) in said
    view = shown["views"][shown["view"]]
    assert f"{view['name']}, encoder.0, head 0" in said
    assert "Rows / 행: 1 · 2 · + · 7" in said
    figure = page.locator("noscript img")
    weights = unpacked(next(site for site in view["sites"] if site["site"] == "encoder.0")["weights"])[0]
    assert_colours(
        decode_png(base64.b64decode(figure.get_attribute("src").partition(",")[2]))[50::100, 50::100], weights
    )
    assert "Shown: encoder.0, head 0." in figure.get_attribute("alt")


# Edits are part of the address --------------------------------------------------------------------------------------


def off_in(page: Any) -> list[str]:
    return [text.strip() for text in page.locator("#models .edit").all_text_contents()]


def test_an_edit_survives_a_reload_and_the_way_back(pages: Pages, payload: dict[str, Any]) -> None:
    page = pages.open(render(payload), READY)
    page.locator("[data-view='0'][data-site='encoder.0'][data-head='1']").click()
    switch = page.get_by_role("switch")
    switch.click()
    until(page, lambda: page.locator("details.proof.off").count() == 1)
    assert [text.split("×")[0].strip() for text in off_in(page)] == ["✂ encoder.0 head 1 off"]
    assert canvas_bytes(page)[..., 3].max() == 0  # a head that is off is hatched, not dark
    page.reload()
    until(page, lambda: page.locator("details.proof.off").count() == 1)
    page.go_back()
    until(page, lambda: off_in(page) == [])
    page.go_forward()
    until(page, lambda: len(off_in(page)) == 1)
    page.keyboard.press("Escape")
    switch.evaluate("element => element.click()")
    until(page, lambda: off_in(page) == [])
    page.locator("#head-title").click()
    page.keyboard.press("Control+z")
    until(page, lambda: len(off_in(page)) == 1)


@pytest.mark.parametrize(
    "edited",
    [
        "[",
        '[[0,[{"kind":"head"}]]]',
        *(pytest.param(edited, marks=pytest.mark.long) for edited in ("7", '[[0,[{"kind":5}]]]', '[["a",[]]]', "null")),
    ],
)
def test_a_hostile_address_of_edits_changes_nothing(pages: Pages, payload: dict[str, Any], edited: str) -> None:
    page = pages.open(render(payload), READY, f"#edited={quote(edited)}")
    assert page.locator("details.proof.off").count() == 0


@pytest.mark.slow
def test_a_state_is_passed_on_as_a_link_a_page_and_a_figure(
    pages: Pages, payload: dict[str, Any], tmp_path: Path
) -> None:
    page = pages.open(render(payload), READY, permissions=["clipboard-read", "clipboard-write"])
    page.locator("#input").fill("3+0")
    page.keyboard.press("Enter")
    until(page, lambda: page.title().startswith("3+0"))
    page.get_by_role("button", name="Copy link").click()
    until(page, lambda: page.get_by_role("button", name="Copied").count() == 1)
    link = page.evaluate("() => navigator.clipboard.readText()")
    assert re.fullmatch(r"page-0\.html#.*input=3%2B0.*", link), link
    with page.expect_download() as download:
        page.get_by_role("button", name="Save this page as it is").click()
    saved = Path(download.value.path()).read_text(encoding="utf-8")
    assert f"<title>{page.title()}</title>" in saved
    assert page.locator("#finding").text_content().strip() in saved, "its description is its sentence"
    again = pages.open(saved, READY)
    until(again, lambda: again.title() == page.title())
    again.evaluate("() => { location.hash = '#query=1&key=2&input=7%2B8'; }")  # as a link of a lesson does
    until(again, lambda: again.title().startswith("7+8"))
    until(again, lambda: again.locator("#input").input_value() == "7+8")
    assert "query=1&key=2" in again.evaluate("() => location.hash"), "the cell of the link, not the sharpest one"
    for only, parts in (("model", ".heads-of"), ("answer", ".model")):
        figure = pages.open(render(payload), READY, f"#only={only}", width=320)
        assert_count(figure.locator(parts).filter(visible=True), 1)  # of the model that is looked at
    figure = pages.open(render(payload), READY, "#only=model", width=720)
    assert (
        figure.evaluate(
            "Math.max(...[...document.querySelectorAll('main *')].map(one => one.getBoundingClientRect().bottom))"
        )
        < 330
    )
    wide = [
        figure.locator(part).filter(visible=True).first.bounding_box()["width"]
        for part in (".size .disc", "[data-head]")
    ]
    assert wide[0] == wide[1] < 25, "sizes can be compared with the legend"
    figure = pages.open(render(payload), READY, "#only=map", width=320)
    assert_count(figure.locator("#maps .pane:visible"), 1)
    assert figure.locator("#finding").is_visible()
    assert not figure.locator("#ask, #overview, #tools, #panels").filter(visible=True).count()
    assert figure.locator(".field:visible").bounding_box()["width"] > 90
