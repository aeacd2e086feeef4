"""`jarilab causes MODEL --text TEXT`, as a person types it: texts, masks, images, answers and runs; and its page."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import jarilab
from helpers import folders
from helpers.browser import Pages, assert_count
from helpers.command import command
from helpers.runs import tiny, train
from jarilab.cli import main
from jarilab.core.errors import UserError
from jarilab.training.progress import Working

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
]
TEXT = "The animal didn't cross"
FEW = ("--controls", 3)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    folders.llama(root / "llama", **folders.FELT)
    folders.llama(root / "other", seed=1, **folders.FELT)
    folders.bert(root / "bert", **folders.FELT)
    folders.saved(root / "embeds", "Bert", "Model")
    folders.vit(root / "vit")
    folders.bart(root / "bart")
    train(root / "run", tiny("rotary"))
    return root


def ask(folder: Path, *words: object) -> dict:
    said = command("causes", folder, *words, *FEW, "--json")
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_every_head_of_a_language_model(models: Path, tmp_path: Path) -> None:
    page = tmp_path / "causes.html"
    said = command("causes", models / "llama", "--text", TEXT, "--answer", "street", "--out", page, *FEW)
    assert said.returncode == 0, said.stderr
    first, _, header, *_ = said.stdout.splitlines()
    assert "heads are larger than each of 3 random directions; about 4.0 would be by chance" in first
    assert header.split()[:4] == ["head", "zero", "mean", "direct"]
    assert len(re.findall(r"^L[01]H[0-3] +[-+]", said.stdout, re.MULTILINE)) == 8
    assert "the positions of this input" in said.stdout
    assert page.read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.long
def test_what_is_printed_is_what_python_returns(models: Path) -> None:
    printed = ask(models / "llama", "--text", TEXT, "--answer", "street", "--rival", "it", "--seed", 2)
    causes = jarilab.causes(models / "llama", TEXT, answer="street", rival="it", controls=3, seed=2)
    assert printed == json.loads(json.dumps(causes.as_dict()))
    assert (printed["answer"], printed["rival"], printed["probability"]) == ("street", "it", None)
    assert printed["tokens"]["target"][-2:] == ["cross", "[SEP]"]
    assert len(printed["heads"]) == 8


def test_the_effects_are_those_of_switched_off_heads(models: Path) -> None:
    """Against an edited forward of the same model."""
    import torch

    from jarilab.huggingface import load
    from jarilab.inspect.intervene.interventions import HeadOff, operate

    printed = ask(models / "llama", "--text", TEXT, "--answer", "street")
    loaded = load(models / "llama")
    inputs = loaded.tokenizer(TEXT, return_tensors="pt")
    answer = loaded.tokenizer("street", add_special_tokens=False)["input_ids"][0]

    def log_probability() -> float:
        logits = loaded.model(input_ids=inputs["input_ids"]).logits[0, -1].double()
        return float(logits.log_softmax(-1)[answer])

    with torch.no_grad():
        clean = log_probability()
        assert printed["score"] == pytest.approx(clean, abs=1e-5)
        for row in printed["heads"]:
            with operate(loaded.model, [HeadOff(row["site"], row["index"])]):
                off = log_probability()
            assert row["total"] == pytest.approx(clean - off, abs=1e-4)


@pytest.mark.long
def test_a_continuation_is_scored_token_by_token(models: Path, tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    folder = folders.llama(tmp_path / "model", **folders.FELT)
    tokenizer = folders.tokenizer_of()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A")
    tokenizer.save_pretrained(folder)
    printed = ask(folder, "--text", "The animal", "--continuation", " didn't cross")
    assert printed["positions"] == [1, 2]
    assert (printed["answer"], printed["continuation"]) == (None, " didn't cross")
    one, other = (ask(folder, "--text", text, "--answer", word)["score"] for text, word in
                  (("The animal", "didn't"), ("The animal didn't", "cross")))  # fmt: skip
    assert printed["score"] == pytest.approx((one + other) / 2, abs=1e-6)
    # A tokenizer that ends a text with a token of its own has no border there.
    said = command("causes", models / "llama", "--text", "The animal", "--continuation", " didn't", *FEW)
    assert said.returncode == 2
    assert "begins with a new token" in said.stderr


@pytest.mark.long
def test_means_over_a_file(models: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("the street was wide\n\nit was too tired\n")
    printed = ask(models / "llama", "--text", TEXT, "--means", tmp_path / "lines.txt")
    assert printed["means"] == [2, "lines.txt"]
    own = ask(models / "llama", "--text", TEXT)
    assert [row["total"] for row in own["heads"]] == [row["total"] for row in printed["heads"]]
    assert [row["mean"] for row in own["heads"]] != [row["mean"] for row in printed["heads"]]


@pytest.mark.long
def test_heads_are_patched_between_two_inputs(models: Path) -> None:
    words = ("--text", "The animal was too tired", "--answer", "it")
    printed = ask(models / "llama", *words, "--corrupt", "The street was too wide")
    assert printed["corrupt"] == "The street was too wide"
    assert any(abs(row["noised"]) > 1e-3 for row in printed["heads"])
    same = command("causes", models / "llama", *words, "--corrupt", "The animal was too tired")
    assert same.returncode == 2
    assert "expected a second input that the model reads differently, got the same tokens" in same.stderr
    said = command("causes", models / "llama", *words, "--corrupt", "The street was too wide", *FEW)
    assert said.stdout.splitlines()[2].split()[4:6] == ["noised", "restored"]


def test_the_wait_names_what_is_quicker(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def working(description: str) -> Working:
        said.append(description)
        return Working(description)

    monkeypatch.setattr("jarilab.training.progress.working", working)
    for words in ([], ["--screen", "2"]):
        main(["causes", str(models / "llama"), "--text", TEXT, "--controls", "3", *words])
    assert ["--screen 8 is quicker" in each for each in said] == [True, False]


@pytest.mark.long
def test_heads_are_patched_from_a_second_model_and_screened(models: Path, tmp_path: Path) -> None:
    words = ("--text", "The animal was too tired", "--answer", "it", "--screen", 2)
    printed = ask(models / "llama", *words, "--against", models / "other")
    assert printed["against"] == "other"
    assert [row["checked"] for row in printed["heads"]].count("random") == 2
    assert any(abs(row["noised"]) > 1e-3 for row in printed["heads"])
    assert "of this model and" in printed["sections"]["patching"]["sentence"]
    np.save(tmp_path / "v.npy", np.ones(32))
    said = command(
        "causes", models / "llama", *words, "--against", models / "other", "--steer", tmp_path / "v.npy", *FEW
    )
    assert re.search(r"^Patching: The score is .* of this model", said.stdout, re.MULTILINE)
    assert re.search(r"^Steering: ", said.stdout, re.MULTILINE)
    assert "only the 2 with the largest estimates and 2 at random were switched off" in said.stdout
    header, *lines = said.stdout.splitlines()[2:7]
    assert header.split()[-3:] == ["estimate", "chosen", "verdict"]
    assert sorted(" ".join(lines).split().count(each) for each in ("top", "random")) >= [2, 2]


def test_a_mask_a_class_an_answer_and_a_run(models: Path, tmp_path: Path) -> None:
    masked = ask(models / "bert", "--text", "The animal was too [MASK]", "--answer", "tired")
    assert masked["positions"] == [5]
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    seen = ask(models / "vit", "--text", tmp_path / "red.png", "--answer", "cat", "--rival", "dog")
    assert (seen["answer"], seen["rival"]) == ("cat", "dog")
    written = ask(models / "bart", "--text", "The animal", "--at", 0)
    assert written["heads"][0]["head"] == "enc.L0H0"
    run = ask(models / "run", "--text", "12+1", "--answer", "1", "--corrupt", "13+1")
    assert {name for name, section in run["sections"].items() if not section} == set()
    assert (run["answer"], run["positions"]) == ("1", [0])
    assert {row["head"].partition(".")[0] for row in run["heads"]} == {"enc", "dec", "cross"}


@pytest.mark.parametrize(
    ("model", "words", "parts"),
    [
        ("llama", ["--answer", "street it"], ["one token", "2 tokens", "'street', 'it'", "continuation"]),
        ("llama", ["--answer", ""], ["one token", "empty", "write"]),
        ("llama", ["--answer", "zebra"], ["'zebra'", "does not know"]),
        ("llama", ["--at", "9"], ["0 to 5", "9", "'animal'"]),
        ("llama", ["--answer", "it", "--rival", "it"], ["rival other than the answer", "'it'"]),
        ("llama", ["--answer", "it", "--continuation", "it"], ["answer or a continuation", "both"]),
        ("llama", ["--at", "1", "--continuation", "it"], ["position or a continuation", "both"]),
        ("llama", ["--continuation", ""], ["a token or more", "empty", "leave it out"]),
        ("llama", ["--corrupt", "The animal"], ["equal length", "6 and 4 tokens", "replace"]),
        ("llama", ["--controls", "0"], ["--controls", "1"]),
        ("llama", ["--screen", "0"], ["--screen", "1"]),
        ("llama", ["--against", "nothing"], ["the second model", "nothing", "on disk"]),
        ("bert", [], ["[MASK]", "in the text"]),
        ("embeds", [], ["scores of tokens or classes", "BertModel", "head"]),
        (
            "run",
            ["--text", "12+1", "--answer", "25"],
            ["one token", "2 tokens of run", "'2', '5'", "the first of them"],
        ),
        ("run", ["--text", "12+1", "--answer", "many"], ["one token or class", "'many'"]),
        ("run", ["--text", "12+1", "--continuation", "25"], ["continues a text", "answer"]),
        ("nothing", [], ["run.json", "config.json", "on disk"]),
    ],
)
def test_what_cannot_be_asked_is_taught(models: Path, model: str, words: list[str], parts: list[str]) -> None:
    said = command("causes", models / model, "--text", TEXT, *words)
    assert said.returncode == 2
    for part in parts:
        assert part in said.stderr


def test_progress_has_a_rate_and_the_time_left(models: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("jarilab.training.progress.PLAIN_EVERY", 0.0)
    main(["causes", str(models / "llama"), "--text", TEXT, "--controls", "3"])
    line = r"(?m)^heads of .*: (\d+) of (\d+) ablations  [\d.,]+ ablations/s  [\d,]+ s left$"
    told = re.findall(line, capsys.readouterr().err)
    assert len(told) > 5
    assert told[-1][0] == told[-1][1]


def test_unknown_words_are_seen_among_the_tokens(models: Path) -> None:
    said = command("causes", models / "llama", "--text", "The zebra didn't cross", *FEW)
    *_, tokens, unknown = said.stdout.splitlines()
    assert tokens == "Tokens: [CLS] The [UNK] didn't cross [SEP]"
    assert unknown == "Unknown tokens: 1; use words that the tokenizer knows"


def test_an_answer_without_text_has_a_name(models: Path) -> None:
    from jarilab.explorer.scored_input import read_input
    from jarilab.huggingface import load

    size = len(load(models / "llama").tokenizer)  # rows that the embedding has beyond it are no tokens
    show = read_input(models / "llama", TEXT).show
    assert [show(size), show(size - 1)] == [f"token {size}", folders.WORDS[-1]]


def test_a_model_of_vectors_is_led_to_what_measures_it(models: Path, tmp_path: Path) -> None:
    folders.saved(tmp_path / "embeds", "Bert", "Model")
    said = command("causes", tmp_path / "embeds", "--text", "The animal")
    assert said.returncode == 2
    assert "got BertModel; use a model with a head" in said.stderr
    assert "jarilab heads FOLDER --data FILE --importance zero --importance-by embedding" in said.stderr


def test_a_model_with_nan_in_a_head_is_refused(tmp_path: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=17, n_embd=32, n_layer=1, n_head=4))
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path)
    folders.tokenizer_of().save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=r"finite parameters, got NaN or infinity in transformer\.h\.0\.attn\.c_attn\.weight"
    ):
        jarilab.causes(tmp_path, TEXT, controls=3)


def test_a_masked_model_without_a_mask_token_is_refused(tmp_path: Path) -> None:
    folder = folders.bert(tmp_path)
    tokenizer = folders.tokenizer_of()
    tokenizer.mask_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(UserError, match=r"its tokenizer has none; set tokenizer\.mask_token"):
        jarilab.causes(folder, TEXT)


def test_a_page_is_named_before_the_work(models: Path, tmp_path: Path) -> None:
    said = command("causes", models / "llama", "--text", TEXT, "--out", tmp_path / "none" / "page.html")
    assert (said.returncode, said.stdout) == (2, "")
    assert "folder" in said.stderr
    said = command("causes", models / "llama", "--text", TEXT, "--open")
    assert "--out" in said.stderr


def test_no_texts_for_means(models: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(UserError, match=r"expected a text a line, got none; add"):
        jarilab.causes(models / "llama", TEXT, means=tmp_path / "empty.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(UserError, match=r"latin.txt.*UTF-8"):
        jarilab.causes(models / "llama", TEXT, means=tmp_path / "latin.txt")


# The page -------------------------------------------------------------------------------------------------------------

SECTIONS = ("contributions", "lens", "composition", "relevance", "patching", "steering", "screening")


def open_sections(page: Any, names: Iterable[str]) -> None:
    """Open sections and wait until they are drawn, which is a moment later."""
    for name in names:
        page.locator(f"#{name} > summary").click()
        page.locator(f"#{name}-body > *").first.wait_for(state="attached")


HOSTILE = "</script><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def page_html(models: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hostile")
    folders.saved(folder / "model", "Llama", "ForCausalLM", num_key_value_heads=2, vocab_size=19, initializer_range=0.4)
    folders.tokenizer_of([*folders.WORDS, HOSTILE.replace(" ", ""), "<img/src=x>"]).save_pretrained(folder / "model")
    text = f"The animal {HOSTILE.replace(' ', '')} <img/src=x> cross"
    return jarilab.causes(folder / "model", text, answer="<img/src=x>", controls=3).html


@pytest.mark.browser
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (375, "dark"),
        *(pytest.param(*how, marks=pytest.mark.long) for how in ((1280, "light"), (1280, "dark"), (375, "light"))),
    ],
)
def test_the_page_is_quiet_and_fits(page_html: str, pages: Pages, width: int, scheme: str) -> None:
    page = pages.open(page_html, width=width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.title() != "owned"
    assert page.locator("#text").inner_text().count("<img/src=x>") >= 1
    assert page.locator("img").count() == 0
    assert_count(page.locator(".head"), 8)
    open_sections(page, SECTIONS)
    page.locator("#relevance .method").first.wait_for()
    assert_count(page.locator("#contributions svg a"), 8)
    for name in ("patching", "steering"):
        assert "--corrupt" in page.locator(f"#{name}-body").inner_text()
    page.locator("#screening circle").first.wait_for()
    assert_count(page.locator("#screening circle"), 8)
    assert_count(page.locator("#lens .lens tbody tr"), 3)
    assert_count(page.locator(".lens .read"), 3)
    assert "--means" in page.locator("#relevance").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("img").count() == 0
    assert not pages.troubles
    assert not pages.foreign


@pytest.mark.long
@pytest.mark.browser
def test_the_box_of_a_long_answer_fits(models: Path, pages: Pages) -> None:
    causes = jarilab.causes(models / "llama", TEXT, answer="street", controls=3)
    causes.about["answer"] = "a-street-with-a-long-name"
    box = pages.open(causes.html).locator("rect.answer")
    first, last, width = box.evaluate(
        "box => [box.getBBox().x, box.getBBox().x + box.getBBox().width, box.ownerSVGElement.clientWidth]"
    )
    assert 0 < first < last < width


@pytest.mark.browser
def test_the_page_is_used_by_keyboard_and_speaks_two_languages(page_html: str, pages: Pages) -> None:
    page = pages.open(page_html, at="#head=L0H1")
    assert page.locator("#head-title").inner_text() == "L0H1"
    page.locator('.head[aria-pressed="true"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#head-title", has_text="L1H2").wait_for()
    assert page.evaluate("document.activeElement.dataset.keep") == "L1H2", "the focus stays"
    page.keyboard.press("Enter")
    page.locator(".side button").first.click()
    assert_count(page.locator('.side button[aria-pressed="true"]'), 1)
    open_sections(page, SECTIONS)
    page.locator("#language button").click()
    assert page.locator("#headline").inner_text() == "jari: 어느 헤드가 하는가?"
    assert page.evaluate("document.documentElement.lang") == "ko"
    text = page.locator("body").inner_text()
    assert not re.search(r"\bv_\w+|\bnumber_\w+|\{\d\}", text), "every word is translated"
    assert "층마다 읽은 답" in text
    assert "The tallest bar" not in text
    assert not pages.troubles


@pytest.mark.browser
@pytest.mark.parametrize(
    ("only", "parts"), [("model", ["heads", "finding"]), ("map", ["map", "numbers"]), ("answer", ["text", "best"])]
)
def test_an_address_shows_one_figure(page_html: str, pages: Pages, only: str, parts: list[str]) -> None:
    page = pages.open(page_html, at=f"#only={only}&head=L0H1", width=720)
    every = ("heads", "map", "numbers", "text", "best", "headline", "paths", "table")
    assert [part for part in every if page.locator(f"#{part}").is_visible()] == [p for p in every if p in parts]
    assert all(page.locator(f"#{part}").is_visible() for part in parts)
    heights = page.locator("body *").evaluate_all("all => all.map(one => one.getBoundingClientRect().bottom)")
    assert max(heights) < 420
    assert not pages.troubles


@pytest.mark.browser
def test_the_page_of_two_inputs_and_a_screen(models: Path, pages: Pages) -> None:
    words = {"answer": "it", "corrupt": "The street was too wide", "screen": 2, "controls": 3}
    causes = jarilab.causes(models / "llama", "The animal was too tired", **words)
    page = pages.open(causes.html, width=375)
    assert_count(page.locator(".head"), 4)
    assert_count(page.locator("#heads .unmeasured"), 4)
    assert page.locator("#patching").get_attribute("open") is not None
    open_sections(page, ("contributions", "composition", "screening"))
    assert_count(page.locator("#contributions svg a"), 4)  # the others have no numbers to open
    assert_count(page.locator("#patching tbody tr"), 2 + 8 + 2 + 3)  # groups, heads, MLPs, and layers of the stream
    assert_count(page.locator("#steering tbody tr"), 3)
    assert_count(page.locator("#steering tbody td"), 3 * (6 + 1))
    assert_count(page.locator("#screening circle"), 4)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#language button").click()
    text = page.locator("body").inner_text()
    assert "조종" in text
    assert not re.search(r"\{\d\}|\b[a-z]+_[a-z]+\b", text.partition("관련도")[2]), "every word is translated"
    assert not pages.troubles


@pytest.mark.browser
def test_only_the_largest_of_many_paths_are_listed(page_html: str, pages: Pages) -> None:
    path = '{"source":"L0H1","target":"L1H2","input":"v","effect":%s}'
    many = ",".join(path.replace("H2", f"H{n % 4}") % (1 + n / 100) for n in range(40))
    html, replaced = re.subn(r'"edges":\[[^\]]*\]', f'"edges":[{many}]', page_html)
    assert replaced == 1
    page = pages.open(html, at="#head=L0H0")
    assert_count(page.locator("#paths li"), 24)
    assert page.locator("#paths .note").inner_text().startswith("24 of 40 paths")
    page.evaluate("location.hash = '#head=L0H1'")
    page.locator("#paths li").nth(39).wait_for()
