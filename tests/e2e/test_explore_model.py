"""`jarilab explore --model FOLDER`, as a person types it."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
from urllib.parse import quote

import pytest
from PIL import Image

from helpers import folders
from helpers.browser import Pages, ServedPages, read_change, until
from helpers.command import command
from helpers.folders import FELT, SENTENCE
from helpers.runs import tiny, train
from jarilab.explorer import explore, open_explorer, render
from jarilab.pages.kit.data_blocks import unpacked
from jarilab.pages.program import program

MASKED = SENTENCE.replace("tired", "[MASK]")

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    folders.bert(root / "bert")
    folders.bert(root / "other", seed=1)
    folders.bert(root / "felt", seed=1, **FELT)
    return root


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_page_of_a_folder_and_the_heads_of_a_link(models, here):
    words = ("--input", SENTENCE, "--link", "it", "animal")
    said = command("explore", "--model", str(models / "bert"), *words, "--save", "bert.html")
    assert (said.returncode, said.stderr) == (0, "")
    lines = said.stdout.splitlines()
    assert lines[1].split() == ["weight", "usual", "head"]
    assert len(lines) == 2 + 8 + 2
    assert "bert: BertForMaskedLM, 2 attentions; weights times values equal their outputs within" in said.stdout
    page = (here / "bert.html").read_text()
    assert '"query":8,"key":2' in page.replace(" ", "")
    assert SENTENCE.replace("'", "\\u0027") in page or SENTENCE in page


def test_two_models_beside_each_other(models, here):
    both = ("--model", str(models / "bert"), "--against", str(models / "other"))
    said = command("explore", *both, "--input", SENTENCE, "--save", "both.html")
    assert said.returncode == 0
    assert "other: BertForMaskedLM" in said.stdout
    assert (here / "both.html").exists()


def test_a_run_of_jari_beside_a_model(models, here):
    train(here / "run", tiny("none"))
    said = command("explore", "run", "--model", str(models / "bert"), "--input", "1+1", "--save", "both.html")
    assert (said.returncode, said.stderr) == (0, "")
    (held,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', (here / "both.html").read_text(), re.S)
    views = json.loads(held)["views"]
    assert [(view["name"], view["sites"][0]["site"]) for view in views] == [("bert", "encoder.0"), ("run", "encoder.0")]
    assert views[1]["sides"]["source"]["tokens"][:3] == ["1", "+", "1"]
    said = command("explore", "run", "--model", str(models / "bert"), "--input", SENTENCE, "--save", "both.html")
    assert said.returncode == 2
    assert said.stderr.startswith("jarilab: run: "), said.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "jarilab explore --model FOLDER --input TEXT"),
        (("--model", "bert"), "--input; add it"),
        (("--model", "nowhere", "--input", "a"), "got no such folder. Nothing is downloaded: pass"),
        (
            ("--model", "bert", "--input", "a", "--step", "1"),
            "--step works with runs only, not with --model; omit it",
        ),
        (("--model", "bert", "--input", "a", "--save", ""), "write such as --save page.html"),
        (("--model", "bert", "--input", "a", "--site", "encoder.7", "--save", "a.html"), "unknown site 'encoder.7'"),
        (("runs/add", "--link", "it", "animal"), "--link needs --model FOLDER; add it"),
        (("runs/add", "--image", "cat.png"), "--image needs --model FOLDER; add it"),
        (("--model", "bert", "--input", SENTENCE, "--image", "cat.png"), "such as LLaVA, got bert; leave out --image"),
        (("--model", "bert", "--input", SENTENCE, "--link", "it", "cat"), "unknown token 'cat'"),
    ],
)
def test_mistakes_are_one_line(models, here, words, message):
    (here / "bert").symlink_to(models / "bert")
    said = command("explore", *words)
    assert said.returncode == 2
    assert message in said.stderr
    assert len(said.stderr.splitlines()) == 1


@pytest.fixture
def live(models):
    """A page that is served, of a model each of whose heads is felt."""
    words = ("--input", MASKED, "--link", "it", "animal", "--port", "0")
    arguments = [sys.executable, "-m", "jarilab", "explore", "--model", str(models / "felt"), *words]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            told = iter(process.stdout.readline, "")
            yield next(line.split()[0] for line in told if line.startswith("http://127.0.0.1:"))
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.browser
def test_a_live_page_reads_another_text_and_switches_heads_links_and_tokens(browser, live, models, tmp_path):
    explorer = open_explorer(models=[models / "felt"], link=("it", "animal"))
    opens = explorer.look(MASKED, live=True)
    watched = ServedPages(browser, tmp_path, live)
    page = watched.visit(live)
    card = page.locator(".model")

    def says(*parts):
        until(page, lambda: all(part in card.inner_text() for part in parts), 60_000)

    says("under the mask", opens["views"][0]["answer"])
    # Once effects are known, the server opens at another head: a reload must not.
    assert {f"site={opens['site']}", f"head={opens['head']}"} <= set(page.url.partition("#")[2].split("&"))
    off = {"kind": "head", "site": opens["site"], "head": opens["head"]}
    effect = explorer.operate(MASKED, 0, [off])["effect"]
    assert effect["answer"] != opens["views"][0]["answer"]
    smaller = sum(one["divergence"] < effect["divergence"] for one in effect["controls"])
    page.locator("#tab-surgery").click()
    panel = page.locator("#panel-surgery")
    assert "Positions" not in panel.inner_text()
    assert [tab.inner_text() for tab in page.get_by_role("tab").all()] == ["Scale", "Surgery", "Measures"]
    page.get_by_role("button", name=f"Switch {opens['site']} head {opens['head']} off").click()
    says(f"{effect['answer']} instead of", f"A larger effect than {smaller} of 7 edits")
    assert "The likeliest" in panel.inner_text()

    page.locator("#input").fill(SENTENCE + " <script>alert(1)</script>")
    page.keyboard.press("Enter")
    says("This model fills in [MASK]", "edits of the same kind at random other places")
    page.get_by_role("button", name="Hide it from all").click()
    says("no query sees", "of 20 edits of the same kind at random other places")
    page.get_by_role("button", name="Undo: no query sees").first.click()
    assert panel.get_by_role("button", name="Add").is_disabled(), "of a head that is off no link can be cut"
    page.locator("#input").fill("the " * 200)
    page.keyboard.press("Enter")
    until(page, lambda: "felt reads 64 tokens at most" in page.locator("#error").inner_text(), 60_000)
    for context in watched.contexts:
        context.close()
    refused = [trouble for trouble in watched.troubles if "status of 400" not in trouble]
    assert (refused, watched.foreign) == ([], [])


@pytest.mark.long
@pytest.mark.browser
def test_no_token_is_hidden_where_attentions_count_their_keys_differently(browser, models, here):
    # Nobody serves these pages, so what they miss is not asked about.
    pages, offered = Pages(browser, here), []
    for folder in (models / "felt", folders.led(here / "led")):
        page = pages.open(render(open_explorer(models=[folder]).look(SENTENCE, live=True)))
        page.locator("#tab-surgery").click()
        buttons = page.get_by_role("button").all_inner_texts()
        assert "✂ cut this link" in buttons
        offered.append({"✂ hide this key from all", "Hide it from all queries"} & set(buttons))
    assert [len(of_page) for of_page in offered] == [2, 0]
    for context in pages.contexts:
        context.close()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("kind", ["masked", "words", "labels", "next", "seen", "class", "image", "both"])
def test_a_saved_page_of_a_model_answers_to_its_switches_as_python_does(pages, here, kind):
    Image.radial_gradient("L").resize((32, 32)).convert("RGB").save("round.png")
    folder, line = (
        here / kind,
        {"masked": MASKED, "image": "round.png", "both": "round.png\twhat is it"}.get(kind, SENTENCE),
    )
    MADE[kind](folder)
    explorer = open_explorer(models=[folder])
    document = explore(model=folder, input=line).html
    view = explorer.look(line, live=False)["views"][0]
    site = view["sites"][0]["site"]
    hidden = {"kind": "token", "side": view["sites"][0]["keys"], "key": 1}
    for edits in ([{"kind": "head", "site": site, "head": 1}], [hidden]):
        address = f"#edited={quote(json.dumps([[0, edits]]))}"
        page = pages.open(document, "html[data-engines=ready] .edited", address)
        assert "You can switch heads, links and tokens in this page" in page.locator("#input-note").inner_text()
        edited = page.locator(".edited").first
        until(page, lambda edited=edited: read_change(edited.inner_text()) is not None)
        effect = explorer.operate(line, 0, edits)["effect"]
        log = effect["log_probability"]
        change = (log["after"] - log["before"]) / len(effect["tokens"])
        assert read_change(edited.inner_text()) == pytest.approx(change, rel=0.02, abs=0.02), "16 bits"
        if effect["answer"] != view["answer"]:
            assert effect["answer"].strip() in page.locator(".model").inner_text()


NAMES = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
MADE = {
    "masked": lambda folder: folders.bert(folder, seed=1, **FELT),
    "words": lambda folder: folders.bert(folder, seed=1, **FELT),
    "labels": lambda folder: folders.saved(folder, "Bert", "ForTokenClassification", **FELT, **NAMES),
    "class": lambda folder: folders.saved(folder, "Bert", "ForSequenceClassification", **FELT, **NAMES),
    "next": lambda folder: folders.llama(folder, **FELT),
    "seen": lambda folder: folders.saved(folder, "Bloom", "ForCausalLM", **FELT, n_layer=2, n_head=4),
    "image": folders.vit,
    "both": folders.llava,
}


@pytest.mark.slow
@pytest.mark.browser
def test_a_word_of_a_text_shows_where_it_looks_in_the_image(pages, here):
    Image.radial_gradient("L").resize((32, 32)).convert("RGB").save("round.png")
    folders.llava(here / "llava")
    words = ("--model", "llava", "--image", "round.png", "--text", "what is it", "--site", "decoder.1.self")
    said = command("explore", *words, "--head", "2", "--save", "page.html")
    assert (said.returncode, said.stderr) == (0, "")
    page = pages.open((here / "page.html").read_text(), "html[data-engines=ready]")
    (view,) = open_explorer(models=[here / "llava"]).look("round.png\twhat is it", live=False)["views"]
    weights = unpacked(view["sites"][3]["weights"])[2]
    for query, word in ((17, "what"), (19, "it")):
        page.locator(".sentence").get_by_role("button", name=word, exact=True).click()
        share = re.search(r"▦ image, 16 patches: (?:> )?([\d.]+) %", page.locator(".sentence").inner_text())[1]
        assert float(share) == pytest.approx(100 * weights[query, 1:17].sum(), abs=0.6)
        best = weights[query, 1:17].argmax()
        said = page.locator(".image-said").inner_text()
        assert said.startswith(f"largest at {best // 4},{best % 4}: {weights[query, 1:17].max():.3f}"), said
        shown = page.locator("#image .word")
        assert [each[:-5] for each in shown.all_inner_texts()] == ["[CLS]", "what", "is", "it", "[SEP]"]
        assert float(shown.nth(3).locator("small").inner_text()) == pytest.approx(weights[query, 19], abs=6e-4)
    assert "Rows and columns: the text, with the patches" in page.locator("#head-about").inner_text()
    assert "--image round.png --input 'what is it'" in page.locator("body").inner_text()
    page.goto(page.url.split("#")[0] + "#site=encoder.0&head=0&query=1&key=3")
    page.wait_for_function("document.querySelector('#head-about').textContent.includes('patches')")
    assert page.locator("#image .word").count() == 0
    assert "Without a place" in page.locator("#image").inner_text()
    page = pages.open((here / "page.html").read_text(), "html[data-engines=ready]", "#query=18&key=6")
    assert page.locator(".image-said").inner_text().startswith("largest at")
    page.locator("button", has_text="Switch decoder.1.self, head 2 off").first.click()
    until(page, lambda page=page: "16 patches: 0 %" in page.locator(".sentence").inner_text())
    assert page.locator(".image-said").inner_text() == "", "the image has no weights of a head that is off"


@pytest.mark.browser
def test_a_saved_page_says_why_it_does_not_compute(pages, here, monkeypatch):
    monkeypatch.setattr(program, "LARGEST", 10)
    page = pages.open(explore(model=folders.t5(here / "t5"), input=SENTENCE).html, "html[data-engines=ready]")
    said = "This page cannot compute: a page carries models of 10 parameters at most"
    assert said in page.locator("#input-note").inner_text()


@pytest.mark.browser
def test_windows_of_one_layer_are_told_apart(pages, models, here):
    Image.new("RGB", (64, 64)).save("black.png")
    explorer = open_explorer(models=[folders.swin(here / "swin")])
    page = pages.open(render(explorer.look("black.png", live=False)))
    rows = page.locator("#overview .heads > span[title]")
    assert rows.all_inner_texts() == [
        *(f"0.{layer}·{window}" for layer in (0, 1) for window in (0, 5, 10, 15)),
        *(f"1.0·{window}" for window in range(4)),
    ]


def test_windows_of_an_attention_are_one_attention(here):
    Image.new("RGB", (64, 64)).save("black.png")
    said = command(
        "explore", "--model", str(folders.swin(here / "swin")), "--input", "black.png", "--save", "swin.html"
    )
    assert "swin: SwinForImageClassification, 3 attentions" in said.stdout
