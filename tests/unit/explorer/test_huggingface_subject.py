"""Hugging Face models in the explorer: effects of edits, and errors."""

import asyncio
import importlib.util
from contextlib import contextmanager

import httpx
import numpy
import pytest
import torch

from helpers import folders
from helpers.folders import FELT, SENTENCE
from helpers.linear_count import Count
from jarilab.core.errors import UserError
from jarilab.explorer import explore, huggingface_subject, open_explorer, payload, server
from jarilab.explorer.huggingface_subject import HuggingFaceSubject
from jarilab.explorer.page_file import POOLED, saved_page
from jarilab.huggingface import ModelInput
from jarilab.inspect.intervene.interventions import Link, operate
from jarilab.pages.kit.data_blocks import unpacked
from jarilab.pages.kit.image_data import data_url
from jarilab.positions.patches import PatchedImage

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
]

HOST = "127.0.0.1:8000"
MASKED = SENTENCE.replace("tired", "[MASK]")
OFF = {"kind": "head", "site": "encoder.0", "head": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    folders.bert(root / "masked", **FELT)
    folders.bert(root / "other", seed=1, **FELT)
    folders.llama(root / "next", **FELT)
    folders.bart(root / "written", vocab_size=17, init_std=0.4)
    names = {"id2label": {0: "<b>bad</b>", 1: "good"}, "label2id": {"<b>bad</b>": 0, "good": 1}}
    folders.saved(root / "class", "Bert", "ForSequenceClassification", **FELT, **names)
    folders.saved(root / "labels", "Bert", "ForTokenClassification", **FELT, **names)
    folders.saved(root / "vectors", "Bert", "Model", **FELT)
    folders.saved(root / "seen", "Bloom", "ForCausalLM", **FELT, n_layer=2, n_head=4)
    folders.led(root / "split", vocab_size=17)
    folders.saved(root / "shared", "Albert", "ForMaskedLM", **FELT, embedding_size=16)
    return root


def opened(models, *names, **options):
    return open_explorer(models=[models / name for name in names], **options)


def test_page_with_pooled_maps_has_no_model(models, monkeypatch):
    monkeypatch.setattr(payload, "MAX_WEIGHTS", 100)
    (view,) = saved_page(opened(models, "masked"), MASKED)["views"]
    assert view["engine"] == {"why": POOLED}


@contextmanager
def without(model, path, head, width=8):
    """The model while nothing of one head reaches W_O: by hand, and not by jari."""

    def hook(module, arguments):
        silenced = arguments[0].clone()
        silenced[..., head * width : (head + 1) * width] = 0
        return (silenced, *arguments[1:])

    handle = model.get_submodule(path).register_forward_pre_hook(hook)
    yield
    handle.remove()


@pytest.mark.parametrize(
    ("name", "line", "site", "path"),
    [
        ("masked", MASKED, "encoder.0", "bert.encoder.layer.0.attention.output.dense"),
        ("next", SENTENCE, "decoder.0.self", "model.layers.0.self_attn.o_proj"),
        ("written", SENTENCE, "encoder.0", "model.encoder.layers.0.self_attn.out_proj"),
        pytest.param(
            "class", SENTENCE, "encoder.0", "bert.encoder.layer.0.attention.output.dense", marks=pytest.mark.long
        ),
        ("seen", SENTENCE, "decoder.0.self", "transformer.h.0.self_attention.dense"),
    ],
)
def test_ablation_equals_a_zeroed_head(models, name, line, site, path):
    explorer = opened(models, name)
    changed = []
    for head in range(4):
        found = explorer.operate(line, 0, [{"kind": "head", "site": site, "head": head}], proceed=None)["effect"]
        reading, model = explorer.subjects[0].record(line).reading, explorer.subjects[0].loaded.model
        says = reading.output_reader
        with torch.no_grad(), without(model, path, head):
            outputs = model(**reading.inputs)
            answer = says.answer(outputs)
        shares = says.answer_scores(outputs).double().softmax(-1)
        expected = [float(share[label]) for share, label in zip(shares, says.answer_labels, strict=True)]
        assert [row["after"] for row in found["tokens"]] == pytest.approx(expected, abs=1e-5)
        assert found["answer"] == answer
        assert found["divergence"] > 1e-6
        changed.append(answer != reading.answer)
    assert any(changed) or name == "class"


def test_next_token_comes_with_likely_alternatives(models):
    explorer = opened(models, "next")
    view = explorer.look(SENTENCE, live=True)["views"][0]
    assert (view["says"], len(view["outputs"])) == ("next", 13)
    assert [row["token"] for row in view["outputs"]] == [*SENTENCE.split(), "[SEP]", view["answer"]]
    site = view["sites"][0]["site"]
    effect = explorer.operate(SENTENCE, 0, [{"kind": "head", "site": site, "head": 0}])["effect"]
    (row,) = effect["tokens"]
    assert row["token"] == view["answer"]
    assert effect["likeliest"]["before"][0] == [view["answer"], pytest.approx(row["before"], abs=1e-6)]
    assert effect["likeliest"]["after"][0][0] == effect["answer"]
    assert len(effect["controls"]) == 7


@pytest.mark.parametrize(
    ("name", "kind", "count"), [("vectors", "vectors", 0), ("masked", "words", 13), ("labels", "labels", 13)]
)
def test_model_without_answer_reports_effect_of_edit(models, name, kind, count):
    explorer = opened(models, name)
    page = explorer.look(SENTENCE, live=True)
    view = page["views"][0]
    assert (view["says"], view["answer"]) == (kind, None)
    assert view["mask"] == ("[MASK]" if kind == "words" else None)
    effect = explorer.operate(SENTENCE, 0, [OFF])["effect"]
    assert (effect["answer"], len(effect["tokens"]), len(effect["controls"])) == (None, count, 7)
    assert (effect["log_probability"] is None) == (kind == "vectors")
    assert effect["divergence"] > 0


def test_erased_link_changes_only_its_query(models):
    explorer = opened(models, "vectors")
    link = {"kind": "link", "site": "encoder.1", "head": None, "query": 3, "key": 1, "how": "erase"}
    found = explorer.operate(SENTENCE, 0, [link], proceed=None)
    model = explorer.subjects[0].loaded.model
    inputs = explorer.subjects[0].record(SENTENCE).reading.inputs
    with torch.no_grad():
        before = model(**inputs).last_hidden_state[0]
        with operate(model, [Link("encoder.1", None, 3, 1, "erase")]):
            after = model(**inputs).last_hidden_state[0]
    moved = [float((b - a).norm() / b.norm()) for b, a in zip(before, after, strict=True)]
    assert [place for place, share in enumerate(moved) if share] == [3]
    assert found["effect"]["divergence"] == pytest.approx(moved[3] / 13, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line", "side"),
    [("masked", MASKED, "source"), ("next", SENTENCE, "target"), ("written", SENTENCE, "source")],
)
def test_hidden_token_equals_padding(models, name, line, side):
    explorer = opened(models, name)
    found = explorer.operate(line, 0, [{"kind": "token", "side": side, "key": 3}])["effect"]
    reading, loaded = explorer.subjects[0].record(line).reading, explorer.subjects[0].loaded
    says, model, inputs = reading.output_reader, loaded.model, dict(reading.inputs)
    mask = torch.ones_like(inputs["input_ids"])
    mask[:, 3] = 0
    # Of padding a text without a key hides nothing more: its place is counted still.
    places = {"position_ids": torch.arange(mask.shape[1])[None]} if name == "next" else {}
    with torch.no_grad():
        outputs = model(**{**inputs, "attention_mask": mask, **places})
    shares = says.answer_scores(outputs).double().softmax(-1)
    expected = [float(share[label]) for share, label in zip(shares, says.answer_labels, strict=True)]
    assert [row["after"] for row in found["tokens"]] == pytest.approx(expected, abs=1e-5)
    assert found["divergence"] > 1e-6
    others = {control["what"].rpartition(" ")[2] for control in found["controls"]}
    assert others == {str(key) for key in range(mask.shape[1]) if key != 3}
    if name == "written":
        ids = model.generate(inputs["input_ids"], attention_mask=mask, num_beams=1, do_sample=False, max_new_tokens=48)
        assert found["answer"] == loaded.target_tokenizer.decode(ids[0], skip_special_tokens=True)
        assert found["answer"] != reading.answer


def test_shorter_answer_than_hidden_token(models, monkeypatch):
    explorer = opened(models, "written")
    explorer.record(SENTENCE)  # before what follows makes its answer shorter
    model = explorer.subjects[0].loaded.model
    writes = model.generate
    monkeypatch.setattr(model, "generate", lambda *given, **how: writes(*given, **{**how, "max_new_tokens": 3}))
    off = {"kind": "token", "side": "target", "key": 20}
    assert len(explorer.operate(SENTENCE, 0, [off], proceed=None)["effect"]["answer"].split()) == 2


def test_several_edits_have_controls(models):
    explorer = opened(models, "masked")
    link = {"kind": "link", "site": "encoder.0", "head": 0, "query": 3, "key": 0, "how": "force"}
    effect = explorer.operate(MASKED, 0, [OFF, link])["effect"]
    assert len(effect["controls"]) == 20


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("masked", {"site": "nowhere.0"}, "unknown site 'nowhere.0'; did you mean 'encoder.0'"),
        ("masked", {"head": 9}, "encoder.0 has the heads 0 to 3, got 9"),
        ("masked", {"kind": "link", "query": 99, "key": 0, "how": "erase"}, "has the queries 0 to 12, got 99"),
        ("masked", {"kind": "link", "query": 0, "key": 99, "how": "erase"}, "has the keys 0 to 12, got 99"),
        ("masked", {"kind": "token", "side": "source", "key": 13}, "the source has the tokens 0 to 12, got 13"),
        ("masked", {"kind": "token", "side": "target", "key": 0}, "unknown side with keys 'target'. Known: source"),
        (
            "split",
            {"kind": "token", "side": "source", "key": 1},
            "the attentions over the source have 13 to 16 keys",
        ),
        (
            "masked",
            {"kind": "place", "how": "off"},
            "masked is a model of another library, whose positions cannot be moved",
        ),
        (
            "next",
            {"kind": "link", "site": "decoder.0.self", "query": 0, "key": 5, "how": "erase"},
            "cannot erase the link from query 0 to key 5 at decoder.0.self",
        ),
        ("shared", {"site": "encoder.0/1"}, "One layer of this model runs several times"),
    ],
)
def test_impossible_edit_raises(models, name, edit, message):
    with pytest.raises(UserError, match=message):
        opened(models, name).operate(SENTENCE, 0, [{**OFF, **edit}])


def test_unsupported_edits_are_not_offered(models):
    names = ("masked", "seen", "shared", "split")
    views = {name: opened(models, name).look(SENTENCE, live=True)["views"][0] for name in names}
    assert {name: view["edits"] for name, view in views.items()} == {
        "masked": ["head", "link", "token"],
        "seen": ["head", "link", "token"],
        "shared": [],
        "split": ["head", "link"],
    }
    opens = {name: view["opens"] for name, view in views.items()}
    assert opens == {"masked": ["lens"], "seen": [], "shared": ["lens"], "split": []}
    assert views["shared"]["uneditable"][0].startswith("One layer of this model runs several times")
    detail = opened(models, "masked").head(SENTENCE, 0, "encoder.1", 2)
    assert detail["lens"]["own"] == 16  # sqrt(8)
    with pytest.raises(UserError, match=r"tape\.weights"):
        opened(models, "seen").head(SENTENCE, 0, "decoder.0.self", 0)


@torch.no_grad()
def test_rollout_equals_that_of_the_models_attentions(models):
    model = HuggingFaceSubject(models / "masked")
    shown = model.view(SENTENCE, 0)["rollout"]
    loaded = model.loaded.model
    loaded.set_attn_implementation("eager")
    maps = loaded(**model.record(SENTENCE).reading.inputs, output_attentions=True).attentions
    expected = torch.eye(maps[0].shape[-1])
    for of_layer in maps:
        expected = (of_layer[0].mean(0) + torch.eye(len(expected))) / 2 @ expected
    assert torch.allclose(torch.as_tensor(unpacked(shown)).float(), expected, atol=1e-4)
    causal = HuggingFaceSubject(models / "next")
    assert causal.view(SENTENCE, 0)["rollout"] is None


def test_models_and_runs_are_numbered_views(models, runs):
    explorer = opened(models, "masked", runs=[runs / "rotary"])
    page = explorer.look("1+1", live=True)
    assert [view["name"] for view in page["views"]] == ["masked", "rotary"]
    assert [view["words"] for view in page["views"]] == [["--model", str(models / "masked")], [str(runs / "rotary")]]
    moved = [{"kind": "place", "how": "off"}]
    assert explorer.operate("1+1", 1, moved, proceed=None)["effect"]["divergence"] > 0
    assert explorer.head("1+1", 1, "encoder.0", 0)["walk_error"] < 1e-9
    assert explorer.look("1+1", {1: 0}, live=True)["views"][1]["step"] == 0
    with pytest.raises(UserError, match="masked is no run of jari, and keeps no training steps; got step 3"):
        explorer.look("1+1", {0: 3}, live=True)
    for view in (2, -1):
        with pytest.raises(UserError, match=f"expected a view from 0 to 1, got {view}"):
            explorer.head("1+1", view, "encoder.0", 0)


def test_page_opens_at_the_link(models):
    explorer = opened(models, "masked", "other", link=("it", "animal"))
    page = explorer.look(SENTENCE, live=True)
    assert (page["query"], page["key"]) == (8, 2)
    best = explorer.subjects[0].links(SENTENCE, "it", "animal")[0]
    assert (page["view"], page["site"], page["head"]) == (0, best.site, best.head)
    assert explorer.look("the street", live=True)["views"][0]["input"] == "the street"
    chosen = explorer.look(SENTENCE, live=True, site="encoder.1", head=3)
    assert (chosen["site"], chosen["head"]) == ("encoder.1", 3)
    with pytest.raises(UserError, match="this model has the heads 0 to 3, got 9"):
        explorer.look(SENTENCE, live=True, head=9)


def test_only_the_last_long_input_is_cached(models, monkeypatch):
    model = HuggingFaceSubject(models / "masked")
    for line in ("the animal", "the street"):
        model.record(line)
    assert list(model._recordings) == ["the animal", "the street"]
    monkeypatch.setattr(huggingface_subject, "MAX_CELLS", 3)
    model.record("the animal was tired")
    assert list(model._recordings) == ["the animal was tired"]


def test_explore_in_python(models):
    page = explore(input=SENTENCE, model=models / "masked", against=models / "other", link=("it", "animal"))
    assert '"query":8,"key":2' in page.html.replace(" ", "")
    with pytest.raises(UserError, match="against and link go with a model of another library"):
        explore(input=SENTENCE, link=("it", "animal"))
    with pytest.raises(UserError, match="step and align are for runs of jari alone"):
        explore(input=SENTENCE, model=models / "masked", step=1)


# Its server ----------------------------------------------------------------------------------------------------------


def ask(explorer, path, body, line):
    async def asked():
        app = server.application(explorer, line, {HOST})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{HOST}") as client:
            how = {"content": body} if isinstance(body, bytes) else {"json": body}
            return await client.post(path, headers={"content-type": "application/json"}, **how)

    return asyncio.run(asked())


def test_server_survives_invalid_inputs(models):
    explorer = opened(models, "masked")
    for body, words in (
        ({"input": "the " * 200}, "masked reads 64 tokens at most, and the line has 202"),
        (b'{"input": "\\ud800 zqxjk"}', ""),
        ({"input": SENTENCE, "steps": {"0": 5}}, "keeps no training steps"),
    ):
        response = ask(explorer, "/api/look", body, SENTENCE)
        assert (response.status_code in (400, 422), words in response.json()["error"]) == (True, True), response.text
        assert "zqxjk" not in response.text
    for line in ("", "<script>alert(1)</script>", "\0", "the " * 62):
        assert ask(explorer, "/api/look", {"input": line}, SENTENCE).status_code == 200


def test_only_files_of_the_first_inputs_folder_are_read(models, tmp_path):
    image = pytest.importorskip("PIL.Image")
    explorer = open_explorer(models=[folders.vit(tmp_path / "vit")])
    here = tmp_path / "here"
    here.mkdir()
    for folder in (tmp_path, here):
        image.new("RGB", (40, 30), (200, 30, 30)).save(folder / "a.png")
    image.new("RGB", (40, 30), (20, 30, 200)).save(here / "b.png")
    (here / "link.png").symlink_to(tmp_path / "a.png")
    first = str(here / "a.png")
    for asked in (first, f" {here}/b.png "):
        assert ask(explorer, "/api/look", {"input": asked}, first).json()["views"][0]["answer"] in ("cat", "dog")
    for asked in (str(tmp_path / "a.png"), str(here / "link.png"), "/etc/passwd", "#3", ""):
        response = ask(explorer, "/api/look", {"input": asked}, first)
        assert response.status_code == 400
        assert response.json()["error"].startswith(f"expected a file in the folder {here}; got ")
    off = {"input": first, "edits": [OFF]}
    assert ask(explorer, "/api/surgery", off, first).json()["effect"]["answer"] in ("cat", "dog")


def test_a_vit_has_its_image_with_patches_and_class_token(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = torch.randint(0, 256, (32, 32, 3), dtype=torch.uint8).numpy()
    image.fromarray(pixels).save(tmp_path / "a.png")
    (view,) = opened(tmp_path, folders.vit(tmp_path / "vit").name).look(str(tmp_path / "a.png"), live=False)["views"]
    side = view["sides"]["source"]
    assert (unpacked(side["picture"].pop("pixels")) == pixels).all()
    assert side["picture"] == {"rows": 4, "columns": 4, "height": 4, "width": 4, "first": 1, "pool": "class"}
    assert (len(side["tokens"]), side["tokens"][:3]) == (17, ["class", "0,0", "0,1"])
    html = explore(model=tmp_path / "vit", input=str(tmp_path / "a.png")).html
    assert "--model" in html
    assert str(tmp_path) not in html, "a path of this machine is nobody else's"


def test_another_image_is_one_of_the_folder_or_sent_by_the_page(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, level in (("a", 10), ("b", 200)):
        image.new("RGB", (32, 32), (level, level, level)).save(tmp_path / f"{name}.png")
    explorer = opened(tmp_path, folders.vit(tmp_path / "vit").name)
    first = str(tmp_path / "a.png")
    assert explorer.files(first) == [first, str(tmp_path / "b.png")]
    assert explorer.files("a text") == []
    sent = data_url((tmp_path / "b.png").read_bytes())
    explorer.check(sent, first)
    (view,) = explorer.look(sent, live=True)["views"]
    assert (unpacked(view["sides"]["source"]["picture"]["pixels"]) == 200).all()
    with pytest.raises(UserError, match="expected an image in base64, got 'data:image/png;base64,x'"):
        explorer.look("data:image/png;base64,x", live=True)
    assert saved_page(explorer, sent)["views"][0]["input"] == "image"


def test_tokens_before_the_patches_are_counted():
    reading = ModelInput({}, {}, image=PatchedImage(torch.zeros(3, 4, 4, dtype=torch.uint8), 2, 2, 2, 2, first=0))
    assert reading.with_unplaced({7}).names["source"] == ["class", "[1]", "[2]", "0,0", "0,1", "1,0", "1,1"]
    assert reading.with_unplaced({4}).names["source"] == ["0,0", "0,1", "1,0", "1,1"]
    assert reading.with_unplaced({3, 90}) is reading


def test_the_next_tokens_of_a_korean_text_are_its_text(tmp_path):
    (view,) = opened(tmp_path, folders.gpt2(tmp_path / "gpt2").name).look("한국", live=False)["views"]
    assert view["sides"]["target"]["tokens"] == ["한¹", "한²", "한³", "국¹", "국²", "국³"]
    assert [one["token"] for one in view["outputs"]][:5] == ["한²", "한³", "국¹", "국²", "국³"]


@pytest.mark.parametrize("between", ["\t", " [SEP] "])
def test_a_model_of_pairs_reads_two_sentences(tmp_path, between):
    subject = HuggingFaceSubject(folders.bert(tmp_path / "bert"))
    reading = subject.record(f"The animal{between}it was tired").reading
    assert reading.names["source"] == ["[CLS]", "The", "animal", "[SEP]", "it", "was", "tired", "[SEP]"]
    assert reading.inputs["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert subject.view(f"The animal{between}it was tired", 0)["sides"]["source"]["second"] == 4
    assert "second" not in subject.view("The animal it was tired", 0)["sides"]["source"]
    alone = subject.record("The animal it was tired").reading
    assert alone.names["source"].count("[SEP]") == 1
    decoder = HuggingFaceSubject(folders.llama(tmp_path / "llama"))
    assert decoder.record(f"The animal{between}it").reading.names["source"].count("[SEP]") == 1 + ("SEP" in between)


def test_a_sound_has_its_spectrogram_and_frames_named_by_time(tmp_path):
    wavfile = pytest.importorskip("scipy.io.wavfile")
    tone = numpy.sin(numpy.arange(16_000) / 4) * numpy.linspace(0, 20_000, 16_000)
    wavfile.write(tmp_path / "tone.wav", 16_000, tone.astype("int16"))
    subject = HuggingFaceSubject(folders.whisper(tmp_path / "whisper"))
    view = subject.view(str(tmp_path / "tone.wav"), 0)
    source = view["sides"]["source"]
    assert "writes down the words of a sound" in view["purpose"][0]
    assert (source["tokens"][0], source["tokens"][1], len(source["tokens"])) == ("0.00 s", "0.02 s", 50)
    picture = source["picture"]
    assert (picture["rows"], picture["columns"], picture["seconds"]) == (1, 50, 1.0)
    pixels = unpacked(picture["pixels"])[..., 0]
    assert pixels.shape == (96, 320)
    # The tone is low (640 Hz) and becomes louder.
    assert 48 < pixels[:, -40].argmax() < 96
    assert pixels[:, -40].max() > pixels[:, 40].max()


def test_effects_give_way_to_another_request(models):
    explorer, asked = opened(models, "masked"), []

    def proceed():
        asked.append(len(asked))
        return len(asked) < 5

    first = explorer.effects(MASKED, 0, proceed=proceed)
    assert (first["sites"], len(asked)) == ({}, 6), "it stopped in the middle of the first forward"
    # A busy machine may need several slices of time for a forward.
    assert any(explorer.effects(MASKED, 0)["sites"] for _ in range(50))


def test_controls_give_way_in_the_middle_of_a_forward(models):
    explorer, asked = opened(models, "masked"), []
    alone = explorer.operate(MASKED, 0, [OFF], proceed=None)

    def proceed():
        asked.append(len(asked))
        return len(asked) < 5

    left = explorer.operate(MASKED, 0, [OFF], proceed=proceed)
    assert (left["effect"]["interrupted"], left["effect"]["controls"], len(asked)) == (True, [], 5)
    assert left["view"] == alone["view"]
    assert left["effect"]["tokens"] == alone["effect"]["tokens"]
    whole = explorer.operate(MASKED, 0, [OFF])["effect"]
    assert (len(whole["controls"]), whole["interrupted"]) == (7, False)


def test_linear_layers_before_an_edit_are_not_computed_again(models):
    explorer, counts = opened(models, "next"), []
    sites = [site["site"] for site in explorer.look(SENTENCE, live=True)["views"][0]["sites"]]
    explorer.operate(SENTENCE, 0, [{"kind": "head", "site": sites[0], "head": 1}], proceed=None)
    for site in sites:
        with Count() as count:
            explorer.operate(SENTENCE, 0, [{"kind": "head", "site": site, "head": 0}], proceed=None)
        counts.append(count.layers)
    # Four to attend and three of the MLP in a layer, and one that gives the scores.
    assert counts == [12, 5]
    with Count() as count:
        explorer.operate(SENTENCE, 0, [{"kind": "head", "site": sites[-1], "head": 0}], proceed=None)
    assert count.layers == 0, "the same edits again"


def test_a_draft_comes_without_an_answer_that_is_generated(models, monkeypatch):
    explorer, generated = opened(models, "written"), []
    off = [{"kind": "head", "site": "encoder.0", "head": 1}]
    model = explorer.subjects[0].loaded.model
    explorer.subjects[0].record(SENTENCE)
    generate = model.generate
    monkeypatch.setattr(model, "generate", lambda **how: generated.append(how) or generate(**how))
    draft = explorer.operate(SENTENCE, 0, off, proceed=None, draft=True)
    assert (draft["effect"]["answer"], len(generated)) == (None, 0)
    whole = explorer.operate(SENTENCE, 0, off, proceed=None)
    assert (isinstance(whole["effect"]["answer"], str), len(generated)) == (True, 1)
    assert whole["view"] == draft["view"]
    assert whole["effect"] | {"answer": None} == draft["effect"]
    assert explorer.operate(SENTENCE, 0, off, proceed=None, draft=True) == whole, "it is known by now"
    explorer = opened(models, "next")
    off = [{"kind": "head", "site": "decoder.0.self", "head": 1}]
    assert explorer.operate(SENTENCE, 0, off, proceed=None, draft=True)["effect"]["answer"] is not None


def test_an_image_file_that_changed_is_edited_as_it_is_now(tmp_path):
    image = pytest.importorskip("PIL.Image")
    folder = folders.vit(tmp_path / "vit")
    pixels = numpy.random.default_rng(0).integers(0, 255, (10, 32, 32, 3), dtype=numpy.uint8)
    lines = [str(tmp_path / f"{number}.png") for number in range(9)]
    for line, each in zip(lines, pixels, strict=False):
        image.fromarray(each).save(line)
    explorer = open_explorer(models=[folder])
    explorer.operate(lines[0], 0, [OFF], proceed=None)
    for line in lines[1:]:
        explorer.look(line, live=True)
    image.fromarray(pixels[9]).save(lines[0])
    now, fresh = (
        each.operate(lines[0], 0, [OFF], proceed=None)["effect"]["divergence"]
        for each in (explorer, open_explorer(models=[folder]))
    )
    assert now == fresh
