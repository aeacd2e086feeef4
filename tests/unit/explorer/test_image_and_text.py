"""Models that read an image and a text in the explorer: the tokens of the image lie over it."""

import importlib.util
import json

import pytest
import torch

from helpers import folders
from jarilab.core.errors import UserError
from jarilab.explorer import explore, open_explorer
from jarilab.explorer.huggingface_subject import HuggingFaceSubject
from jarilab.explorer.page_file import saved_page
from jarilab.huggingface import load, read
from jarilab.pages.kit.data_blocks import unpacked

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="pillow is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
]

PATCHES = [f"{row},{column}" for row in range(4) for column in range(4)]
TEXT = "what is it"


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder of a model and two images of its size."""
    from PIL import Image

    here = tmp_path_factory.mktemp("here")
    folders.llava(here / "llava")
    folders.llava(here / "vip", "VipLlava")
    for seed, name in enumerate(("cat", "dog")):
        pixels = torch.randint(0, 256, (32, 32, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(here / f"{name}.png")
    return here


@pytest.fixture(scope="module")
def explorer(here):
    return open_explorer(models=[here / "llava"])


@pytest.fixture(scope="module")
def line(explorer, here):
    return explorer.input_of(TEXT, here / "cat.png")


def test_patches_are_tokens_of_the_text_and_of_the_vision_model(explorer, line, here):
    from PIL import Image

    page = explorer.look(line, live=False)
    (view,) = page["views"]
    sides = view["sides"]
    assert sides["target"]["tokens"] == ["[CLS]", *PATCHES, "what", "is", "it", "[SEP]"]
    assert sides["source"]["tokens"] == ["class", *PATCHES]
    pixels = torch.tensor(list(Image.open(here / "cat.png").tobytes())).view(32, 32, 3)
    for side in sides.values():
        assert (torch.as_tensor(unpacked(side["picture"].pop("pixels"))) == pixels).all()
        # The language model does not read the class token.
        assert side["picture"] == {"rows": 4, "columns": 4, "height": 4, "width": 4, "first": 1, "pool": None}
    assert [(site["kind"], site["keys"], site["shape"]) for site in view["sites"]] == [
        *[("encoder", "source", [17, 17])] * 2,
        *[("decoder", "target", [21, 21])] * 2,
    ]
    assert (view["with_image"], view["says"], len(view["outputs"])) == (True, "next", 21)
    opened = [explorer.look(line, live=False, site="decoder.0.self", head=head)["query"] for head in range(4)]
    assert min(opened) > 16, "a word after the image, which can look at it"


@torch.no_grad()
@pytest.mark.parametrize("name", ["llava", "vip"])
def test_maps_equal_the_models_attentions(here, line, name):
    subject = HuggingFaceSubject(here / name)
    tape, inputs = subject.tape(line, 0), subject.record(line).reading.inputs
    model = subject.loaded.model
    model.set_attn_implementation("eager")
    outputs = model(**inputs, output_attentions=True)
    for layer, weights in enumerate(outputs.attentions):
        assert torch.allclose(tape.weights(f"decoder.{layer}.self"), weights, atol=1e-5)
    assert outputs.logits[0, -1].argmax() == subject.record(line).reading.output_reader.answer_labels[0]


def test_head_off_and_patch_hidden(explorer, line):
    model, recording = explorer.subjects[0].loaded.model, explorer.subjects[0].record(line)
    inputs, reader = recording.reading.inputs, recording.reading.output_reader

    def silenced(module, arguments):
        changed = arguments[0].clone()
        changed[..., 8:16] = 0
        return (changed,)

    projection = model.get_submodule("model.language_model.layers.0.self_attn.o_proj")
    handle = projection.register_forward_pre_hook(silenced)
    with torch.no_grad():
        outputs = model(**inputs)
    handle.remove()
    off = {"kind": "head", "site": "decoder.0.self", "head": 1}
    effect = explorer.operate(line, 0, [off], proceed=None)["effect"]
    share = float(reader.answer_scores(outputs).double().softmax(-1)[0, reader.answer_labels[0]])
    assert effect["tokens"][0]["after"] == pytest.approx(share, abs=1e-5)
    hidden = {"kind": "token", "side": "target", "key": 6}
    found = explorer.operate(line, 0, [hidden], proceed=None)
    assert found["effect"]["divergence"] > 1e-6
    assert {site["site"] for site in found["view"]["sites"]} == {"decoder.0.self", "decoder.1.self"}
    weights = unpacked(found["view"]["sites"][0]["weights"])
    assert weights[:, 7:, 6].max() == 0
    measured = explorer.look(line, live=False)["views"][0]["effects"]
    before, after = (effect["tokens"][0][when] for when in ("before", "after"))
    nats = measured["sites"]["decoder.0.self"]["effect"][1]
    assert (measured["done"], nats) == (True, pytest.approx(float(torch.tensor(after / before).log()), abs=1e-3))


def test_links_from_words_to_patches(explorer, line):
    subject = explorer.subjects[0]
    links = subject.links(line, "it", "1,1")
    assert sorted((link.site, link.head) for link in links) == [
        (f"decoder.{layer}.self", head) for layer in range(2) for head in range(4)
    ]
    weights = subject.tape(line, 0).weights(links[0].site)
    assert links[0].weight == pytest.approx(float(weights[0, links[0].head, 19, 6]), abs=1e-6)
    with pytest.raises(UserError, match="may look from 'what' \\(17\\) to 'is' \\(18\\): a causal model"):
        subject.links(line, "what", "is")


@pytest.mark.slow
def test_saved_page_computes_and_names_no_path(explorer, line, here):
    page = saved_page(explorer, line)
    (view,) = page["views"]
    assert view["engine"]["text"]["kind"] == "fixed"
    assert "program" in view["engine"]
    assert view["input"] == f"cat.png\t{TEXT}"
    assert str(here) not in json.dumps(page)
    assert str(here) not in explore(model=here / "llava", input=TEXT, image=here / "cat.png").html


def test_another_image_is_one_of_the_folder(explorer, line, here, tmp_path):
    assert explorer.files(line) == [str(here / "cat.png"), str(here / "dog.png")]
    explorer.check(explorer.input_of("it is", here / "dog.png"), line)
    for other in (tmp_path / "cat.png", "/etc/passwd"):
        with pytest.raises(UserError, match="expected a file in the folder"):
            explorer.check(explorer.input_of(TEXT, other), line)
    one, two = (explorer.look(explorer.input_of(TEXT, here / name), live=True) for name in ("cat.png", "dog.png"))
    assert one["views"][0]["outputs"] != two["views"][0]["outputs"]


def test_the_image_token_stands_where_the_text_has_it(explorer, here):
    (view,) = explorer.look(explorer.input_of("what <image> is it", here / "cat.png"), live=True)["views"]
    assert view["sides"]["target"]["tokens"] == ["[CLS]", "what", *PATCHES, "is", "it", "[SEP]"]
    assert view["sides"]["target"]["picture"]["first"] == 2


@pytest.mark.parametrize(
    ("text", "image", "message"),
    [
        (TEXT, None, "llava reads an image and a text, got one of them only, 'what is it'; give both"),
        (" ", "cat.png", "llava reads an image and a text, got one of them only"),
        (TEXT, "none.png", "this model reads an image: expected the name of a file, got"),
        ("what <image> is <image>", "cat.png", "expected one <image> in the text, for one image, got 2"),
        ("it " * 90, "cat.png", "llava reads 64 tokens at most, and the line has 108"),
    ],
)
def test_refused_inputs(explorer, here, text, image, message):
    with pytest.raises(UserError, match=message):
        explorer.look(explorer.input_of(text, image and here / image), live=True)


def test_models_of_one_input_refuse_an_image(here, tmp_path):
    with pytest.raises(UserError, match="expected a model that reads an image and a text, such as LLaVA, got bert"):
        explore(model=folders.bert(tmp_path / "bert"), input=TEXT, image=here / "cat.png")


def test_other_models_of_images_and_text_are_refused_in_a_sentence(here, tmp_path):
    from transformers import CLIPConfig, CLIPModel

    sizes = {**folders.SMALL, "projection_dim": 8}
    config = CLIPConfig(text_config=sizes, vision_config={**sizes, "image_size": 32, "patch_size": 8}, projection_dim=8)
    CLIPModel(config).save_pretrained(tmp_path / "clip")
    folders.tokenizer_of().save_pretrained(tmp_path / "clip")
    with pytest.raises(UserError, match=r"expected LlavaFor\w+ or VipLlavaFor\w+, got CLIPModel; record it in Python"):
        read(load(tmp_path / "clip"), TEXT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_token": "it"}, "expected a processor for this model, with its image token, number 10, .* got 'it'"),
        ({"patch_size": 1}, "got '<image>' and patches of 1 pixels"),
        (
            {"num_additional_image_tokens": 10**9},
            r"/processor_config\.json: expected settings that need at most 1,536 MB",
        ),
        ({"num_additional_image_tokens": 2}, "expected 16 tokens of the image in a row, one for each patch, got 17"),
        (
            {"image_processor": {"crop_size": {"height": 10**9, "width": 8}}},
            r"/processor_config\.json: expected settings that",
        ),
        (
            {"image_processor": {"crop_size": {"height": 4, "width": 4}}},
            "expected an image of 1 to 2,048 patches, got 0",
        ),
        ({"image_processor": {"crop_size": {"height": 800, "width": 800}}}, "patches, got 10,000"),
    ],
)
def test_damaged_processors_are_refused(here, tmp_path, changes, message):
    folder = folders.llava(tmp_path / "llava")
    path = folder / "processor_config.json"
    settings = json.loads(path.read_text())
    own = changes.pop("image_processor", {}) if "image_processor" in changes else {}
    path.write_text(json.dumps({**settings, **changes, "image_processor": {**settings["image_processor"], **own}}))
    with pytest.raises(UserError, match=message):
        read(load(folder), f"{here / 'cat.png'}\t{TEXT}")


def test_a_folder_without_a_processor_says_so(here, tmp_path):
    folder = folders.llava(tmp_path / "llava")
    (folder / "processor_config.json").unlink()
    with pytest.raises(UserError, match="processor"):
        read(load(folder), f"{here / 'cat.png'}\t{TEXT}")
