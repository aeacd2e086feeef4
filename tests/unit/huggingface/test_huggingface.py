"""Hugging Face folders: which are loaded, which are refused, and how lines are read."""

import base64
import importlib.util
import itertools
import json
import math
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch

from helpers import folders
from helpers.folders import SENTENCE
from jarilab.core import bounds
from jarilab.core.errors import UserError
from jarilab.huggingface import limits, load, model_inputs, read
from jarilab.huggingface.batches import HuggingFaceBatches
from jarilab.huggingface.loading import Loaded
from jarilab.huggingface.model_inputs import _read_wave
from jarilab.huggingface.outputs import token_names

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
]
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")

BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
LONG_CHARSMAP = base64.b64encode(b"\x04\0\0\0" + b"\0" * 4 + b"a" * 65 + b"\0").decode()
DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return folders.bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def copy(bert, tmp_path):
    return shutil.copytree(bert, tmp_path / "copy")


def edit_config(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


def edit_tokenizer(folder, **parts):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))
    return folder


def endless(path):
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def test_a_model_is_loaded_with_its_head_and_without_a_network(bert, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    loaded = load(bert)
    assert (loaded.kind, loaded.name, loaded.model.training) == ("BertForMaskedLM", "bert", False)
    assert loaded.tokenizer.mask_token == "[MASK]"


def test_text_is_tokenized_and_masks_are_filled_in(bert):
    loaded = load(bert)
    reading = read(loaded, SENTENCE)
    assert reading.names["source"] == ["[CLS]", *SENTENCE.split(), "[SEP]"]
    assert reading.inputs["input_ids"].shape == (1, 13)
    assert reading.answer is None
    masked = read(loaded, SENTENCE.replace("tired", "[MASK]"))
    with torch.no_grad():
        best = loaded.model(**masked.inputs).logits[0, 11].argmax()
    assert masked.answer == loaded.tokenizer.decode([int(best)])


def test_an_answer_with_an_incomplete_character_has_token_names(tmp_path, monkeypatch):
    llama = load(folders.llama(tmp_path / "llama"))
    monkeypatch.setattr(llama.tokenizer, "decode", lambda ids: "\ufffd")
    reading = read(llama, SENTENCE)
    with torch.no_grad():
        best = int(llama.model(**reading.inputs).logits[0, -1].argmax())
    tokens = llama.tokenizer.convert_ids_to_tokens(range(llama.model.config.vocab_size))
    assert reading.answer == (tokens[best] or f"#{best}")


def test_a_decoder_predicts_the_next_token_and_an_encoder_decoder_generates(tmp_path):
    llama = load(folders.llama(tmp_path / "llama"))
    reading = read(llama, SENTENCE)
    with torch.no_grad():
        best = llama.model(**reading.inputs).logits[0, -1].argmax()
    assert reading.answer == llama.tokenizer.decode([int(best)])
    bart = load(folders.bart(tmp_path / "bart"))
    reading = read(bart, SENTENCE)
    assert len(reading.names["target"]) == reading.inputs["decoder_input_ids"].shape[1] > 1
    assert len(reading.names["source"]) == 13


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda folder: shutil.rmtree(folder),
            "expected a folder with config.json and weights, .* got no such folder. Nothing is downloaded",
        ),
        (lambda folder: (folder / "config.json").unlink(), r"got a folder without config\.json"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "holds no settings"),
        (lambda folder: edit_config(folder, model_type=1e-30), "a model_type that is no text"),
        (lambda folder: edit_config(folder, auto_map={"AutoModel": "evil.Evil"}), "auto_map in config.json"),
        (
            lambda folder: edit_config(folder, model_type="nowhere", architectures=None),
            "could not be loaded as a nowhere",
        ),
        (lambda folder: edit_config(folder, hidden_size=48), r"weights of other sizes than its config\.json says"),
        (lambda folder: edit_config(folder, num_hidden_layers=3), r"lacks weights that its config\.json asks for"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"junk"), "could not be loaded as a bert"),
        (
            lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
            "pickled weights",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
        (lambda folder: edit_config(folder, num_labels=10**9), r"num_labels of at most 65,536, got 1000000000"),
        (lambda folder: edit_config(folder, num_hidden_layers=10**9), "num_hidden_layers of at most 16,384"),
        (lambda folder: edit_config(folder, num_hidden_layers=9000), "a config.json that asks for more than"),
        (lambda folder: edit_config(folder, max_position_embeddings=10**9), "a config.json that asks for more than"),
        (lambda folder: edit_config(folder, architectures=["RagModel"], model_type="rag"), "could not be loaded|asks"),
        (lambda folder: endless(folder / "generation_config.json"), r"zero is missing or not a plain file"),
        (lambda folder: (folder / "vocab.json").write_text("[" * 10**5), r"vocab\.json cannot be read"),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_refused_in_one_line(copy, spoil, message):
    spoil(copy)
    with pytest.raises(UserError, match=message) as error:
        load(copy)
    assert "\n" not in str(error.value)


def test_a_link_that_leads_to_itself_is_refused(copy):
    (copy / "generation_config.json").unlink(missing_ok=True)
    (copy / "generation_config.json").symlink_to("generation_config.json")
    with pytest.raises(UserError, match=r"generation_config.json: expected a file, got a link that leads to none"):
        load(copy)


def test_code_in_the_folder_is_never_executed(copy):
    (copy / "evil.py").write_text("raise SystemExit('executed')")
    (copy / "configuration_bert.py").write_text("raise SystemExit('executed')")
    assert load(copy).kind == "BertForMaskedLM"
    # A name in transformers that is no model is not called.
    assert load(edit_config(copy, architectures=["pipeline"])).kind == "BertModel"


def test_input_that_a_model_cannot_read_is_refused(copy, bert):
    loaded = load(bert)
    with pytest.raises(UserError, match="reads 64 tokens at most, and the line has 202"):
        read(loaded, "the " * 200)
    short = load(bert)
    table = torch.nn.Embedding(4, short.config.hidden_size)
    short.model.set_input_embeddings(table)
    with pytest.raises(UserError, match=r"the model has 4 tokens, got the id \d+ from its tokenizer"):
        read(short, SENTENCE)
    assert read(loaded, "the " * 62).inputs["input_ids"].shape == (1, 64)
    table = loaded.model.bert.embeddings.position_embeddings
    table.padding_idx = 3  # as in RoBERTa, whose positions start after it
    with pytest.raises(UserError, match="reads 60 tokens at most, and the line has 64"):
        read(loaded, "the " * 62)
    for file in copy.glob("token*"):
        file.unlink()
    with pytest.raises(UserError, match="has no tokenizer"):
        read(load(copy), SENTENCE)
    with pytest.raises(UserError, match="has no image processor that can be read"):
        _ = loaded.image_processor


@pytest.mark.long
def test_the_settings_of_every_architecture_are_within_the_limits(tmp_path):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    checked = 0
    for name in CONFIG_MAPPING:
        try:
            settings = CONFIG_MAPPING[name]().to_json_string(use_diff=False)
        except Exception:  # one that needs other settings, or a library
            continue
        (tmp_path / "config.json").write_text(settings)
        limits.check_settings(tmp_path)
        checked += 1
    assert checked > 300


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"normalizer": {"type": "Sequence", "normalizers": [DOUBLED] * 7}},
            "a text at most 64 times longer, got more",
        ),
        ({"decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 65}}, "64 times longer"),
        # Each writes one letter that is not ASCII as two of them.
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 7}}, "64 times longer"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": LONG_CHARSMAP}}, "64 times longer"),
        ({"post_processor": {"type": "TemplateProcessing", "single": [{}] * 1001}}, "at most 1,000 steps"),
        (
            {"post_processor": {"type": "TemplateProcessing", "special_tokens": {"x": {"ids": [2] * 1001}}}},
            "1,000 steps",
        ),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 65}}, "64 times longer"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}}, "charsmap of SentencePiece"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}}, "charsmap of SentencePiece"),
        # A panic of the library in Rust, which is no Exception.
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(.*)*x$"}, "content": ""}}, "PanicException|Onig"),
    ],
)
def test_a_tokenizer_from_a_stranger_is_bounded(copy, parts, message):
    edit_tokenizer(copy, **parts)
    with pytest.raises(UserError, match=message) as error:
        read(load(copy), "a" * 60 + "x b")
    assert str(copy) in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "special_tokens_map.json",
            f"[{'[],' * (1 << 22)}1]",
            "special_tokens_map.json: expected at most 8,388,608 va",
        ),
        ("tokenizer_config.json", '{"fast_tokenizer_files": ["tokenizer.4.0.0.json"]}', "rename .* to tokenizer.json"),
        ("preprocessor_config.json", '{"attention_window": [4, 1000000]}', "attention_window of at most 16,384, got 1"),
        ("model.safetensors.index.json", '{"weight_map": {"x": "../pipe"}}', "files beside it, got '../pipe'"),
        ("model.safetensors.index.json", '{"weight_map": {"x": ["a"]}}', "files beside it, got .'a'"),
        (
            "config.json",
            '{"a": "%s"}' % ("x" * (1 << 23)),
            "config.json: expected at most 8,388,608 bytes, got 8,388,617",
        ),
        ("generation_config.json", '{"a": "%s"}' % ("x" * (1 << 18)), "expected at most 262,144 bytes, got 262,153"),
        ("model.safetensors.index.json", "[]", "files beside it, got None"),
        ("chat_template.jinja", None, "chat_template.jinja is larger than"),
        ("normalizer.json", None, "normalizer.json is larger than"),
        ("additional_chat_templates/tools.jinja", None, "tools.jinja is larger than"),
    ],
)
def test_no_file_of_settings_takes_much_memory(tmp_path, name, text, message):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text or "{}")
    if text is None:
        os.truncate(path, 1 << 30)
    with pytest.raises(UserError, match=message):
        limits.check_settings(tmp_path)


def test_the_labels_of_a_stranger_are_counted(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"id2label": dict.fromkeys(map(str, range(70_000)), "x")}))
    with pytest.raises(UserError, match="expected id2label of at most 65,536, got 70000"):
        limits.check_settings(tmp_path)


@pytest.mark.parametrize("start", [-1, 10**9, "x"])
def test_a_start_token_that_is_none_is_refused(tmp_path, start):
    folder = edit_config(folders.bart(tmp_path / "bart"), decoder_start_token_id=start)
    saved = folder / "generation_config.json"  # which `generate` prefers
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {"decoder_start_token_id": start}))
    with pytest.raises(UserError, match=r"decoder_start_token_id|could not be loaded") as error:
        read(load(folder), SENTENCE)
    assert "\n" not in str(error.value)


def test_opening_a_folder_keeps_a_limit_of_memory(tmp_path):
    bounds.use_memory(1e-3)
    try:
        with pytest.raises(
            UserError, match="need at most 1 MB, got ones that need more; allow more with --limit-memory"
        ):
            load(folders.bert(tmp_path / "bert", vocab_size=30_000))
    finally:
        bounds.use_memory(None)
    assert load(tmp_path / "bert").kind == "BertForMaskedLM"
    with pytest.raises(UserError, match="expected gigabytes above 0, got -1"):
        bounds.use_memory(-1)


@ON_LINUX
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bytearray(3 << 30), "x.json: expected settings that need at most 1,536 MB, got ones that need more"),
        (lambda: torch.empty(3 << 30), "x.json: expected settings that need at most 1,536 MB"),
        (lambda: -1 in itertools.count(), "x.json: expected settings that take at most 1 seconds"),
        (lambda: time.sleep(60), "x.json: expected settings that take at most 1 seconds"),
        (os.abort, r"x.json: .* got ones that end the process \(code -6\)"),
    ],
)
def test_what_settings_ask_for_is_tried_within_limits(tmp_path, monkeypatch, call, message):
    monkeypatch.setattr(bounds, "MAX_CPU_SECONDS", 1)
    monkeypatch.setattr(bounds, "MAX_SECONDS", 3)
    (tmp_path / "x.json").write_text("{}")
    with ThreadPoolExecutor(1) as pool, pytest.raises(UserError, match=message):
        pool.submit(bounds.run_bounded, tmp_path, "x.json", call).result()  # a server reads in a thread


def test_a_call_within_limits_gives_its_value_and_its_errors(tmp_path):
    assert bounds.run_bounded(tmp_path, "x.json", lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        bounds.run_bounded(tmp_path, "x.json", lambda: 1 // 0)


READING = """
import sys
from jarilab.core import bounds, errors
from jarilab.huggingface import load, read

loaded = load(sys.argv[1])
bounds.use_memory(int(sys.argv[3]) / 1024)
try:
    read(loaded, sys.argv[2])
except errors.UserError as error:
    print(error)
"""


@pytest.mark.slow
@ON_LINUX
def test_added_tokens_and_image_sizes_from_a_stranger_are_bounded(tmp_path):
    from PIL import Image

    bert = folders.bert(tmp_path / "bert")
    added = {"special": False, "normalized": True, "single_word": False, "lstrip": False, "rstrip": False}
    edit_tokenizer(bert, added_tokens=[{"id": 100 + n, "content": f"t{n}" * 20, **added} for n in range(20_000)])
    vit, picture = folders.vit(tmp_path / "vit"), tmp_path / "picture.png"
    settings = json.loads((vit / "preprocessor_config.json").read_text())
    settings["size"] = {"height": 8192, "width": 8192}
    (vit / "preprocessor_config.json").write_text(json.dumps(settings))
    Image.new("RGB", (40, 30)).save(picture)
    cases = ((bert, SENTENCE, "tokenizer.json", 64), (vit, str(picture), "preprocessor_config.json", 640))
    script = tmp_path / "read.py"
    script.write_text(READING)
    for folder, line, file, most in cases:
        # A process of its own: one with freed memory could use that again.
        command = [sys.executable, script, folder, line, str(most)]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        assert re.search(rf"{file}: expected settings that .* {most} MB", ended.stdout), ended


def test_a_tokenizer_that_is_two_is_refused(copy):
    (copy / "tokenizer_config.json").write_text('{"tokenizer_class": "RagTokenizer"}')
    with pytest.raises(UserError, match=r"tokenizer_config\.json: expected one tokenizer, got RagTokenizer"):
        read(load(copy), SENTENCE)


def test_rows_are_padded_by_a_token_that_the_model_has(bert):
    loaded = load(bert)
    loaded.tokenizer.add_tokens([f"new{number}" for number in range(24)])
    loaded.tokenizer.add_special_tokens({"pad_token": "[NEW]"})
    assert loaded.tokenizer.pad_token_id >= 24
    batch = HuggingFaceBatches(loaded).texts_of([[2, 5, 3], [2]])
    assert batch.kwargs["input_ids"].tolist() == [[2, 5, 3], [2, 0, 0]]
    assert batch.kwargs["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_a_forward_without_end_is_stopped(tmp_path):
    settings = {"embedding_size": 16, "num_hidden_layers": 10_000}  # which share their weights
    loaded = load(folders.saved(tmp_path / "albert", "Albert", "ForMaskedLM", **settings))
    with pytest.raises(UserError, match=r"config\.json: expected a forward of at most 18,\d+ calls of modules"):
        read(loaded, SENTENCE)


def test_an_input_of_too_many_numbers_is_refused(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setattr(model_inputs, "MAX_INPUT_VALUES", 3000)
    vit, picture = folders.vit(tmp_path / "vit"), tmp_path / "picture.png"
    Image.new("RGB", (40, 30)).save(picture)
    with pytest.raises(UserError, match=r"of at most 3,000 numbers, got 3,072 by preprocessor_config\.json"):
        read(load(vit), str(picture))


def test_the_tensors_of_a_stranger_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_TENSORS", 3)
    with pytest.raises(UserError, match=r"model\.safetensors: expected a model of at most 3 tensors, got "):
        load(folders.bert(tmp_path / "bert"))


@ON_LINUX
def test_blocks_of_two_threads_leave_no_limit_of_memory(tmp_path):
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(bounds.bounded_memory(tmp_path))
        second.enter_context(bounds.bounded_memory(tmp_path))
        assert resource.getrlimit(resource.RLIMIT_DATA) != before
        first.close()
        assert resource.getrlimit(resource.RLIMIT_DATA) != before
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_config_cannot_choose_how_attention_is_computed(copy):
    for key in ("attn_implementation", "_attn_implementation"):
        edit_config(copy, **{key: "flex_attention"})
        assert load(copy).config._attn_implementation == "sdpa"


def test_a_missing_transformers_names_the_extra(monkeypatch, bert):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'jarilab\[huggingface\]'"):
        load(bert)


def test_images_and_audio_are_read_from_files(tmp_path):
    image = pytest.importorskip("PIL.Image")
    from scipy.io import wavfile

    picture, wave = tmp_path / "picture.png", tmp_path / "wave.wav"
    image.new("RGB", (40, 30), (200, 30, 30)).save(picture)
    samples = (torch.arange(8000).div(9).sin() * 9000).to(torch.int16)
    wavfile.write(wave, 8000, samples.numpy())

    vit = load(folders.vit(tmp_path / "vit"))
    reading = read(vit, str(picture))
    assert reading.names["source"][:3] == ["class", "0,0", "0,1"]
    assert len(reading.names["source"]) == 17
    assert reading.answer in ("cat", "dog")
    with pytest.raises(UserError, match=r"reads an image: expected the name of a file, got 'nothing\.png'"):
        read(vit, "nothing.png")
    with pytest.raises(UserError, match=r"the name of a file, got 'wordword\w{72}'"):
        read(vit, "word" * 100)  # longer than a file's name may be
    with pytest.raises(UserError, match=r"wave\.wav: expected PNG, JPEG"):
        read(vit, str(wave))

    whisper = load(folders.whisper(tmp_path / "whisper"))
    reading = read(whisper, str(wave))
    assert reading.inputs["input_features"].shape[:2] == (1, 16)
    assert reading.names["target"][0] == "[CLS]"
    with pytest.raises(UserError, match="could not be read as audio"):
        read(whisper, str(picture))
    wavfile.write(wave, 8000, samples[:0].numpy())
    with pytest.raises(UserError, match=r"holds no samples; give a \.wav file that is longer"):
        read(whisper, str(wave))


@pytest.mark.parametrize(
    ("rate", "channels", "samples"), [(2**31 - 1, 1, 8), (999, 1, 8), (8000, 65, 8), (1000, 1, 600_001), (0, 1, 8)]
)
def test_a_sound_is_bounded_before_it_is_resampled(tmp_path, rate, channels, samples):
    from scipy.io import wavfile

    wave = tmp_path / "wave.wav"
    wavfile.write(wave, rate, torch.zeros(samples, channels, dtype=torch.uint8).numpy())
    with pytest.raises(UserError, match=r"wave\.wav: expected a sound of 1,000 to 400,000 Hz with at most 64 channels"):
        _read_wave(wave)


@pytest.mark.parametrize(
    ("samples", "size", "message"),
    [
        (struct.pack("<f", math.nan) * 3, 12, "expected samples that are numbers, got NaN or infinity 3 times"),
        (struct.pack("<f", -math.inf), 4, "expected samples that are numbers, got NaN or infinity 1 times"),
        (bytes(8), 2**32 - 1, "expected 4,294,967,295 bytes, as its header says, got 8"),
    ],
)
def test_a_sound_that_is_not_what_its_header_says_is_refused(tmp_path, samples, size, message):
    form = struct.pack("<HHIIHH", 3, 1, 8000, 32000, 4, 32)
    header = b"RIFF" + struct.pack("<I", 36 + len(samples)) + b"WAVEfmt " + struct.pack("<I", 16)
    header += form + b"data" + struct.pack("<I", size)
    wave = tmp_path / "wave.wav"
    wave.write_bytes(header + samples)
    with pytest.raises(UserError, match=rf"wave\.wav.*{message}"):
        _read_wave(wave)


def test_a_sound_that_is_too_large_is_called_a_sound(tmp_path):
    wave = tmp_path / "wave.wav"
    wave.write_bytes(b"RIFF")
    os.truncate(wave, 5 << 30)
    with pytest.raises(UserError, match=r"wave\.wav: expected a sound of at most 536,870,912 bytes; got 5,368,709,120"):
        _read_wave(wave)


def test_audio_has_the_amplitude_of_its_file(tmp_path):
    from scipy.io import wavfile

    wave = tmp_path / "wave.wav"
    whisper = load(folders.whisper(tmp_path / "whisper"))
    sound = torch.arange(16000).div(9).sin() / 4
    extractor = whisper.feature_extractor
    rate = extractor.sampling_rate
    in_16, in_8 = sound.mul(2**15).round(), sound.mul(128).round()
    in_files = {
        "float": (sound, sound),
        "16 bits": (in_16.to(torch.int16), in_16 / 2**15),
        "8 bits": ((in_8 + 128).to(torch.uint8), in_8 / 128),
        "two channels": (torch.stack((sound, -sound / 2), 1), sound / 4),
    }
    for name, (samples, amplitudes) in in_files.items():
        wavfile.write(wave, rate, samples.numpy())
        features = read(whisper, str(wave)).inputs["input_features"]
        expected = extractor(amplitudes.numpy(), sampling_rate=rate, return_tensors="pt").input_features
        assert torch.allclose(features, expected, atol=1e-3), name


def test_the_name_is_that_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Loaded(tmp_path / ".", torch.nn.Linear(1, 1)).name == tmp_path.name


def test_bytes_are_named_by_the_character_that_they_are_part_of():
    tokenizer = folders.byte_tokenizer()
    names = token_names(tokenizer)(tokenizer("a 한국!\n")["input_ids"])
    assert names == ["a", "한¹", "한²", "한³", "국¹", "국²", "국³", "!", "↵"]
    first, second, _ = tokenizer("한")["input_ids"]
    assert token_names(tokenizer)([second]) == [r"\x95"]
    assert token_names(tokenizer)([first, first, 65]) == [r"\xed", r"\xed", tokenizer.decode([65])]
