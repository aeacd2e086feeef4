"""Hugging Face folders from somebody who means harm: each a small model of which one file was changed.

    python -m drills.hostile_folders --count 300 --seed 1, from tests/; --only 17 repeats one

Each is opened by a verb in a fork of this process, with bounds on its memory and its time, and an audit hook looks on.
Nothing may be executed, connected or unpickled; no traceback, no end by a signal, and never more than 2 GB.
"""

from __future__ import annotations

import argparse
import base64
import gc
import importlib
import json
import os
import platform
import random
import shutil
import struct
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

for _name, _value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RUST_BACKTRACE": "0"}.items():
    os.environ.setdefault(_name, _value)

from drills.measured import EXECUTED, Bounds, Measured  # noqa: E402
from drills.payloads import MARKER  # noqa: E402
from drills.watch import RefusedError, Watch  # noqa: E402
from helpers import folders  # noqa: E402

TEXT = "The animal didn't cross the street"

BASES: dict[str, Callable[[Path], Path]] = {
    "bert": folders.bert,
    "llama": folders.llama,
    "gpt2": lambda folder: folders.saved(folder, "GPT2", "LMHeadModel", n_inner=64),
    "gpt_neox": lambda folder: folders.saved(folder, "GPTNeoX", "ForCausalLM"),
    "roberta": lambda folder: folders.saved(folder, "Roberta", "ForMaskedLM"),
    "distilbert": lambda folder: folders.saved(
        folder, "DistilBert", "ForSequenceClassification", dim=32, hidden_dim=64
    ),
    "albert": lambda folder: folders.saved(folder, "Albert", "ForMaskedLM", embedding_size=16),
    "electra": lambda folder: folders.saved(folder, "Electra", "ForTokenClassification", embedding_size=32),
    "qwen2": lambda folder: folders.saved(folder, "Qwen2", "ForCausalLM", num_key_value_heads=2),
    "bart": folders.bart,
    "marian": folders.marian,
    "t5": folders.t5,
    "led": folders.led,
    "vit": folders.vit,
    "swin": folders.swin,
    "whisper": folders.whisper,
    "wav2vec2": folders.wav2vec2,
    "llava": folders.llava,
}
"""Small models of many architectures, by name."""
IMAGES, SOUNDS, BOTH = ("vit", "swin"), ("whisper", "wav2vec2"), ("llava",)
ODD: tuple[Any, ...] = (
    *(-1, 0, 1, 3, 10**6, 10**9, 2**31, 2**63, 10**30, 1e308, -0.5, 1e-30),
    *(None, True, "x", "", "-1", "\x1b[2J", "é" * 100_000, "http://127.0.0.1:9/x", "../../../etc/passwd"),
    *([], {}, [1] * 5, [10**9], {"a": 1}, [[[[[]]]]]),
)
"""In place of any value of a file of settings."""
LARGE = (10**6, 10**9, 2**31 - 1, 2**63 - 1)


@dataclass
class Case:
    """A folder, and what is drawn for it."""

    folder: Path
    base: str
    chance: random.Random

    def edit(self, name: str, change: Callable[[Any], Any]) -> None:
        path = self.folder / name
        held = json.loads(path.read_text()) if path.is_file() else {}
        changed = change(held)
        path.write_text(json.dumps(held if changed is None else changed))

    def set(self, name: str, **settings: Any) -> str:
        self.edit(name, lambda held: {**held, **settings})
        return f"{name}: {_short(settings)}"


def _short(value: Any) -> str:
    return repr(value)[:90]


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if path:
        yield path
    for key, each in inner:
        yield from _leaves(each, (*path, key))


def any_setting(name: str) -> Callable[[Case], str]:
    """Any value of a file of settings becomes an odd one."""

    def change(case: Case) -> str:
        held = json.loads((case.folder / name).read_text()) if (case.folder / name).is_file() else {"a": 1}
        path = case.chance.choice(list(_leaves(held)) or [("a",)])
        inner = held
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = odd = case.chance.choice(ODD)
        (case.folder / name).write_text(json.dumps(held))
        return f"{name}: {'.'.join(map(str, path))[:60]} = {_short(odd)}"

    return change


def numbers(case: Case) -> str:
    """A number of config.json becomes a large or a negative one."""
    held = json.loads((case.folder / "config.json").read_text())
    names = [name for name, value in held.items() if isinstance(value, int) and not isinstance(value, bool)]
    name = case.chance.choice([*names, "num_labels", "num_hidden_layers", "max_position_embeddings", "vocab_size"])
    return case.set("config.json", **{name: case.chance.choice((-1, *LARGE))})


def labels(case: Case) -> str:
    return case.set("config.json", num_labels=case.chance.choice(LARGE), id2label=None, label2id=None)


def classes(case: Case) -> str:
    """Another class of transformers, or a name in it that is no model."""
    import transformers

    models = [name for name in dir(transformers) if name.endswith(("Model", "ForCausalLM", "Generation"))]
    others = ["pipeline", "AutoModel", "Trainer", "logging", "__doc__", "utils", "RagModel", "EncoderDecoderModel"]
    return case.set("config.json", architectures=[case.chance.choice([*others, case.chance.choice(models)])])


def kinds(case: Case) -> str:
    """Another kind of model, as such or with its own class."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = case.chance.choice(list(CONFIG_MAPPING_NAMES))
    keep = case.chance.random() < 0.5
    return case.set("config.json", model_type=kind, **({} if keep else {"architectures": None}))


def implementations(case: Case) -> str:
    names = ("flex_attention", "flash_attention_2", "kernels-community/flash-attn", "x", "eager|sdpa", "paged|sdpa")
    key = case.chance.choice(("attn_implementation", "_attn_implementation", "_attn_implementation_internal"))
    return case.set("config.json", **{key: case.chance.choice(names)})


def extras(case: Case) -> str:
    """Settings that make transformers look for something else."""
    quantized = ("bitsandbytes", "gptq", "awq", "fp8", "torchao", "quanto", "x")
    chosen = case.chance.choice(
        [
            {"quantization_config": {"quant_method": case.chance.choice(quantized), "load_in_4bit": True}},
            {"auto_map": {"AutoModel": "evil.Mine"}},
            {"_name_or_path": "http://127.0.0.1:9/x", "base_model_name_or_path": "http://127.0.0.1:9/x"},
            {"dtype": case.chance.choice(("float1", "int8", "auto", "x", 3, "os"))},
            {"rope_parameters": case.chance.choice(({"rope_type": "x"}, {"rope_type": "yarn", "factor": 0}, 3))},
            {"layer_types": case.chance.choice((["x"] * 2, ["full_attention"] * 10**6, "x"))},
            {"text_config": {"model_type": "bert", "num_hidden_layers": 10**9}},
            {"hidden_act": case.chance.choice(("os.system", "x", 3, None))},
            {"jarilab_swap": case.chance.choice(("rotary", "x", "evil.py:Mine", 3, "rotary:base=0"))},
            {"max_position_embeddings": 10**9},
            {"transformers_version": "999.0.0"},
        ]
    )
    if case.chance.random() < 0.2:
        (case.folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "evil/evil"}))
    return case.set("config.json", **chosen)


def ids(case: Case) -> str:
    """Ids of config and generation_config that are no ids."""
    names = ("decoder_start_token_id", "pad_token_id", "bos_token_id", "eos_token_id", "forced_bos_token_id")
    file = case.chance.choice(("config.json", "generation_config.json"))
    return case.set(file, **{case.chance.choice(names): case.chance.choice((-1, 10**9, "x", [], [-1], 2**63, 1.5))})


def generation(case: Case) -> str:
    """How an answer is generated."""
    chosen = case.chance.choice(
        [
            {"num_beams": 10**9, "num_return_sequences": 10**9},
            {"max_length": 10**9, "min_length": 10**9},
            {"suppress_tokens": [10**9, -5, "x"]},
            {"begin_suppress_tokens": list(range(10**5))},
            {"forced_decoder_ids": [[10**9, 10**9]]},
            {"bad_words_ids": [[]]},
            {"sequence_bias": {"x": "y"}},
            {"cache_implementation": case.chance.choice(("static", "quantized", "offloaded", "x"))},
            {"custom_generate": "evil", "trust_remote_code": True},
            {"stop_strings": ["("] * 1000, "watermarking_config": {"bias": "x"}},
            {"assistant_model": "evil", "prompt_lookup_num_tokens": 10**9},
            {"no_timestamps_token_id": -1, "task_to_id": {"x": 10**9}, "is_multilingual": True},
        ]
    )
    return case.set("generation_config.json", **chosen)


def _pipeline(case: Case, part: str, value: Any) -> str:
    case.edit("tokenizer.json", lambda held: {**held, part: value})
    return f"tokenizer.json: {part} = {_short(value)}"


def replacements(case: Case) -> str:
    """Normalizers that make each other's output longer."""
    times, width = case.chance.choice(((30, 2), (12, 10), (3, 10**4), (60, 2)))
    one = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * width}
    part = case.chance.choice(("normalizer", "decoder"))
    if part == "normalizer" and case.chance.random() < 0.3:
        one = {"type": "ByteLevel"}  # two letters for each that is not ASCII
    return _pipeline(case, part, {"type": "Sequence", f"{part}s": [one] * times})


def patterns(case: Case) -> str:
    """Regular expressions that take long, that are none, or that need much memory."""
    pattern = case.chance.choice(
        ("(a+)+$", "(a|a)*b", "((a{0,1000}){0,1000}){0,1000}", "(", "(?<=a*)", "\\p{X}", "a" * 10**6)
    )
    piece = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    many = {"type": "Sequence", "pretokenizers": [piece] * case.chance.choice((1, 50))}
    if case.chance.random() < 0.5:
        return _pipeline(case, "pre_tokenizer", many)
    return _pipeline(case, "normalizer", {"type": "Replace", "pattern": {"Regex": pattern}, "content": "aa"})


def charsmaps(case: Case) -> str:
    size = case.chance.choice((0, 3, 100, 10**5))
    data = struct.pack("<I", case.chance.choice((size, 2**32 - 1, 0))) + case.chance.randbytes(size)
    return _pipeline(
        case, "normalizer", {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}
    )


def processors(case: Case) -> str:
    """What is put around a text: without its token, with a length of 0 or 10^9."""
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}] * 2}
    many = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 10**5
    token = {"[CLS]": {"id": "[CLS]", "ids": [10**9], "tokens": ["[CLS]"]}}
    length = case.chance.choice((0, 10**9, 2**63 - 1, 8))
    padding = {
        "strategy": {"Fixed": length},
        "direction": "Right",
        "pad_to_multiple_of": case.chance.choice((None, 0, 10**9)),
    }
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    truncation = {"direction": "Right", "max_length": length, "strategy": "LongestFirst", "stride": length}
    part, value = case.chance.choice(
        [
            ("post_processor", {**template, "pair": [], "special_tokens": {}}),
            ("post_processor", {**template, "single": many, "pair": [], "special_tokens": token}),
            ("padding", padding),
            ("truncation", truncation),
        ]
    )
    return _pipeline(case, part, value)


def vocabularies(case: Case) -> str:
    """A model of a tokenizer whose parts do not fit each other."""
    vocab = {"[PAD]": 0, "[UNK]": 1, "The": case.chance.choice((10**9, 2**32 - 1, 5)), "": 7}
    model = case.chance.choice(
        [
            {"type": "WordLevel", "vocab": vocab, "unk_token": "[X]"},
            {"type": "BPE", "vocab": vocab, "merges": [["T", "h"]] * 3, "dropout": 2, "unk_token": "[X]"},
            {"type": "BPE", "vocab": {chr(n): n for n in range(97, 123)}, "merges": [], "byte_fallback": True},
            {"type": "Unigram", "vocab": [["a", float(10**300)]] * 3, "unk_id": 10**9},
            {"type": "Unigram", "vocab": [], "unk_id": 0},
            {"type": "WordPiece", "vocab": vocab, "unk_token": "[X]", "max_input_chars_per_word": 10**18},
        ]
    )
    case.edit("tokenizer.json", lambda held: {**held, "model": model})
    return f"tokenizer.json: model = {_short(model)}"


def tokenizer_classes(case: Case) -> str:
    """Another class of tokenizer, whose files are no vocabularies, or those of somebody else."""
    classes = (
        *("TransfoXLTokenizer", "RagTokenizer", "BertJapaneseTokenizer", "MarianTokenizer", "SpeechT5Tokenizer"),
        *("Wav2Vec2CTCTokenizer", "WhisperTokenizer", "MBartTokenizer", "CanineTokenizer", "ByT5Tokenizer"),
        *("MistralCommonTokenizer", "CLIPTokenizer", "LukeTokenizer", "TapexTokenizer", "EsmTokenizer", "T5Tokenizer"),
        *("PhobertTokenizer", "XLMTokenizer", "MgpstrTokenizer", "LayoutXLMTokenizer", "LlamaTokenizer"),
    )
    name = case.chance.choice(("spiece.model", "tokenizer.model", "vocab.txt", "vocab.json", "merges.txt"))
    if case.chance.random() < 0.5:
        (case.folder / "tokenizer.json").unlink()
        kinds = (case.chance.randbytes(10_000), b"\n\x08\n\x01a\x15\0\0\0\0" * 10**6, b"a\n" * 10**6, b"{}", b"")
        (case.folder / name).write_bytes(case.chance.choice(kinds))
    chosen, outside = case.chance.choice(classes), case.chance.choice(("/etc/passwd", "/dev/zero", "../../x"))
    return case.set("tokenizer_config.json", tokenizer_class=chosen, vocab_file=outside)


def added(case: Case) -> str:
    if case.chance.random() < 0.5:
        return many_tokens(case)
    tokens = [{"id": 10**9 + n, "content": "a" * n, "special": True, "normalized": True} for n in range(3)]
    more = {"single_word": False, "lstrip": True, "rstrip": True}
    case.edit("tokenizer.json", lambda held: {**held, "added_tokens": [{**token, **more} for token in tokens]})
    return "tokenizer.json: added_tokens with large ids"


def many_tokens(case: Case) -> str:
    """More tokens than any tokenizer has, or longer ones."""
    count, length = case.chance.choice(((200_000, 100), (50_000, 500), (10, 10**6), (300_000, 4)))
    texts = [f"{n} {'ab' * (length // 2)}" for n in range(count)]
    if case.chance.random() < 0.5:
        more = {"special": False, "normalized": True, "single_word": False, "lstrip": False, "rstrip": False}
        tokens = [{"id": 100 + n, "content": text, **more} for n, text in enumerate(texts)]
        case.edit("tokenizer.json", lambda held: {**held, "added_tokens": tokens})
        return f"tokenizer.json: {count:,} added_tokens of {length:,} letters"
    chosen = ({"type": "Unigram", "unk_id": 0, "vocab": [[text, -1.0] for text in texts]},)
    chosen += ({"type": "WordLevel", "unk_token": texts[0], "vocab": {text: n for n, text in enumerate(texts)}},)
    model = case.chance.choice(chosen)
    case.edit("tokenizer.json", lambda held: {**held, "model": model})
    return f"tokenizer.json: {model['type']} of {count:,} tokens of {length:,} letters"


def layers(case: Case) -> str:
    """Many layers, which may share their weights, or wide windows."""
    names = ("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "inner_group_num", "attention_window")
    name, count = case.chance.choice(names), case.chance.choice((100, 1000, 4000, 16_000))
    return case.set("config.json", **{name: [count] * 2 if name == "attention_window" else count})


def lists(case: Case) -> str:
    """Long lists in settings."""
    size = case.chance.choice((10_000, 300_000, 3_000_000))
    file, settings = case.chance.choice(
        [
            ("generation_config.json", {"bad_words_ids": [[n % 20, n % 7] for n in range(size // 3)]}),
            ("generation_config.json", {"suppress_tokens": list(range(size))}),
            ("config.json", {"id2label": {str(n): "x" * 20 for n in range(size // 10)}}),
            ("config.json", {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * size}}),
            ("tokenizer_config.json", {"extra_special_tokens": [f"t{n}" for n in range(size // 10)]}),
            ("preprocessor_config.json", {"image_mean": [0.5] * size, "mel_filters": [0.5] * size}),
            ("special_tokens_map.json", {"x": [[]] * (3 * size)}),
        ]
    )
    return case.set(file, **settings)[:60] + f" ... {size:,}"


def tiles(case: Case) -> str:
    """What makes one image many or large, and one sound many frames."""
    side = case.chance.choice((2000, 4096, 8192, 20_000))
    image = [
        {"size": {"height": side, "width": side}},
        {"size": {"shortest_edge": side, "longest_edge": side}},
        {
            "image_processor_type": "GotOcr2ImageProcessor",
            "min_patches": side,
            "max_patches": 10**6,
            "crop_to_patches": True,
        },
        {"image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": [[side, side]] * 10**4},
        {
            "image_processor_type": "Pix2StructImageProcessor",
            "max_patches": side,
            "patch_size": {"height": 1, "width": 1},
        },
        {"image_processor_type": "Swin2SRImageProcessor", "pad_size": side, "size_divisor": 2**40},
        {"image_processor_type": "Qwen2VLImageProcessor", "size": {"shortest_edge": side**2, "longest_edge": side**2}},
    ]
    sound = [
        {"n_fft": side, "feature_size": 1024, "hop_length": 1},
        {"chunk_length": side, "n_samples": side * 16_000, "nb_max_frames": side * 100},
        {"sampling_rate": case.chance.choice((399_989, 400_000, 1000)), "feature_size": 1},
        {"feature_extractor_type": "SeamlessM4TFeatureExtractor", "num_mel_bins": side, "stride": side},
        {
            "feature_extractor_type": "ClapFeatureExtractor",
            "max_length_s": side,
            "fft_window_size": side,
            "hop_length": 1,
        },
    ]
    return case.set("preprocessor_config.json", **case.chance.choice(image if case.base in IMAGES else sound))


def tokenizer_settings(case: Case) -> str:
    chosen = case.chance.choice(
        [
            {
                "tokenizer_class": case.chance.choice(
                    ("Mine", "LlamaTokenizer", "PreTrainedModel", "TapasTokenizer", "x.y")
                )
            },
            {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"},
            {"auto_map": {"AutoTokenizer": ["evil.Mine", None]}},
            {"mask_token": case.chance.choice((3, None, "", "é" * 10**5)), "unk_token": None},
            {"model_max_length": case.chance.choice((-1, 0, 10**30, "x"))},
            {"added_tokens_decoder": {"x": "y"}},
            {"added_tokens_decoder": {str(10**9): {"content": "x", "special": True}}},
            {"chat_template": "{% for a in range(10**9) %}{{ a }}{% endfor %}"},
            {"extra_special_tokens": case.chance.choice((["x"] * 10**4, {"x": 3}, 3))},
            {"padding_side": "x", "truncation_side": 3, "clean_up_tokenization_spaces": "x"},
        ]
    )
    return case.set("tokenizer_config.json", **chosen)


def features(case: Case) -> str:
    """What an image or a sound becomes: sizes, filters, rates."""
    huge = case.chance.choice((0, -1, 10**5, 10**6, 10**9, 2**63, "x", None))
    image = [
        {"size": {"height": huge, "width": huge}},
        {"size": huge},
        {"size": {"shortest_edge": huge}},
        {"crop_size": huge, "do_center_crop": True},
        {"image_mean": [1e308], "image_std": [0]},
        {"resample": case.chance.choice((99, -1, "x"))},
        {"rescale_factor": float(10**300)},
        {"do_pad": True, "pad_size": {"height": huge, "width": huge}},
        {"image_processor_type": case.chance.choice(("Mine", "os", "BertModel", "SegformerImageProcessor", 3))},
    ]
    sound = [
        {"feature_size": huge},
        {"n_fft": huge},
        {"hop_length": huge},
        {"chunk_length": huge},
        {"n_samples": huge, "nb_max_frames": huge},
        {"sampling_rate": huge},
        {"padding_value": "x", "return_attention_mask": "x"},
        {"mel_filters": [[1e308]]},
        {"feature_extractor_type": case.chance.choice(("Mine", "BertModel", "ClapFeatureExtractor", 3))},
    ]
    return case.set("preprocessor_config.json", **case.chance.choice(image if case.base in IMAGES else sound))


def both(case: Case) -> str:
    """What puts the tokens of an image among those of a text."""
    huge = case.chance.choice((0, -1, 10**5, 10**9, 2**63, "x", None))
    sides = {"height": huge, "width": case.chance.choice((32, huge))}
    chosen = case.chance.choice(
        [
            {"image_token": case.chance.choice(("x" * 10**6, "it", "", 3, None, ["<image>"]))},
            {"patch_size": huge},
            {"num_additional_image_tokens": huge},
            {"vision_feature_select_strategy": huge},
            {"processor_class": case.chance.choice(("Mine", "os", "BertModel", "Blip2Processor", 3))},
            {"auto_map": {"AutoProcessor": "evil.Mine", "AutoImageProcessor": "evil.Mine"}},
            {"chat_template": "{% for a in range(10**9) %}{{ a }}{% endfor %}"},
            {"image_processor": {"image_processor_type": "CLIPImageProcessor", "size": sides, "crop_size": sides}},
            {"image_processor": case.chance.choice((3, [], {"image_processor_type": "Mine"}))},
        ]
    )
    return case.set("processor_config.json", **chosen)


def weights(case: Case) -> str:
    """The header of the weights, and what it says of the rest."""
    path = case.folder / "model.safetensors"
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    name = case.chance.choice([key for key in header if key != "__metadata__"])
    kind = case.chance.choice(
        ("length", "shape", "overlap", "cut", "deep", "names", "dtype", "nan", "zero", "empty", "many")
    )
    if kind == "length":
        path.write_bytes(struct.pack("<Q", case.chance.choice((2**63, 2**40, 0, size - 1))) + data[8:])
        return "model.safetensors: the length of its header"
    if kind == "cut":
        path.write_bytes(data[: case.chance.randrange(len(data))])
    elif kind == "deep":
        path.write_bytes(struct.pack("<Q", 10**6) + b"[" * 10**6)
    elif kind == "nan":
        path.write_bytes(data[: 8 + size] + b"\xff" * len(body))
    else:
        if kind == "shape":
            header[name]["shape"] = case.chance.choice(([2**40], [0], [-1], [1] * 10**4, [10**9, 10**9, 10**9], []))
        elif kind == "overlap":
            header[name]["data_offsets"] = [0, case.chance.choice((8, 2**60))]
        elif kind == "dtype":
            header[name]["dtype"] = case.chance.choice(("F64", "BOOL", "F8_E4M3", "F4", "x", 3, "I64"))
        elif kind == "many":
            header |= {f"x{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(2 * 10**5)}
        elif kind == "names":
            header["../../x\x1b[2J"] = header.pop(name)
        elif kind == "zero":
            header |= {f"x.{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(10**4)}
        else:
            header = {}
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return f"model.safetensors: {kind} {name}"


def shards(case: Case) -> str:
    """An index of weights that names other files, or weights that lie elsewhere."""
    if case.chance.random() < 0.4:
        return links(case)
    (case.folder / "model.safetensors").rename(case.folder / "model-1.safetensors")
    names = (
        "../../../etc/passwd",
        "/etc/passwd",
        "model-1.safetensors",
        "pytorch_model.bin",
        "http://127.0.0.1:9/x",
        3,
        None,
    )
    chosen = case.chance.choice(names)
    index = {"metadata": {"total_size": 10**18}, "weight_map": {f"w{n}": chosen for n in range(3)}}
    (case.folder / "model.safetensors.index.json").write_text(json.dumps(case.chance.choice((index, {}, [], "x"))))
    return f"model.safetensors.index.json: {_short(chosen)}"


def links(case: Case) -> str:
    """Weights that are elsewhere, endless or a pipe, by a link or by the index."""
    outside, pipe = case.folder.parent / "outside", case.folder.parent / "pipe"
    shutil.copy(case.folder / "model.safetensors", outside)
    if not pipe.exists():
        os.mkfifo(pipe)
    path = case.folder / "model.safetensors"
    chosen = case.chance.choice(("../outside", "../pipe", "/dev/zero", "pipe", "../.."))
    if chosen == "pipe":
        os.mkfifo(case.folder / chosen)
    if case.chance.random() < 0.5:
        path.unlink()
        path.symlink_to(chosen)
        return f"model.safetensors: a link to {chosen}"
    path.rename(case.folder / "a.safetensors")
    index = {"metadata": {}, "weight_map": {"x": chosen, "y": "a.safetensors"}}
    (case.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return f"model.safetensors.index.json: {chosen}"


def files(case: Case) -> str:
    """A file that is no file, or no JSON, or that never ends."""
    name = case.chance.choice([path.name for path in case.folder.iterdir()])
    path = case.folder / name
    kind = case.chance.choice(
        ("fifo", "zero", "folder", "deep", "large", "junk", "empty", "digits", "utf", "gone", "loop")
    )
    if kind in ("deep", "junk", "empty", "digits", "utf"):
        data = {
            "deep": b"[" * 10**6,
            "junk": case.chance.randbytes(500),
            "empty": b"",
            "digits": b'{"a":' + b"9" * 10**5 + b"}",
        }
        path.write_bytes(data.get(kind, '{"a": "\ud800"}'.encode("utf-16", "surrogatepass")))
    else:
        path.unlink()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "zero":
            path.symlink_to("/dev/zero")
        elif kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "large":
            with path.open("wb") as file:
                file.truncate(5 << 30)
    return f"{name}: {kind}"


ATTACKS: dict[Callable[[Case], str], float] = {
    any_setting("config.json"): 5,
    numbers: 3,
    labels: 1,
    classes: 2,
    kinds: 2,
    implementations: 1,
    extras: 2,
    ids: 2,
    any_setting("generation_config.json"): 1,
    generation: 1,
    any_setting("tokenizer.json"): 3,
    replacements: 1,
    patterns: 1,
    charsmaps: 1,
    processors: 2,
    vocabularies: 1,
    added: 1,
    tokenizer_classes: 2,
    layers: 2,
    lists: 1,
    tiles: 1.5,
    any_setting("tokenizer_config.json"): 2,
    tokenizer_settings: 2,
    any_setting("preprocessor_config.json"): 2,
    features: 3,
    both: 2,
    any_setting("processor_config.json"): 1,
    weights: 3,
    shards: 1,
    files: 2,
}
"""What is changed, and how often it is drawn."""


@dataclass
class Findings:
    """What came of the folders. bad: what must not be, each with the words that repeat it."""

    counts: Counter[str] = field(default_factory=Counter)
    bad: dict[str, list[str]] = field(default_factory=dict)
    peak: int = 0
    longest: float = 0.0


class Folders:
    """Hostile folders, made and opened one after the other."""

    def __init__(self, root: Path, seed: int):
        self.root, self.seed = root, seed
        self.findings = Findings()
        # In a fork, so that torch has computed nothing when the others are taken, and lost no thread in them.
        made = Measured.of(root / "log.txt", self._make_bases, Bounds(seconds=200))
        if made.code:
            raise AssertionError(made.said)

    def _make_bases(self) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, make in BASES.items():
                make(self.root / "bases" / name)
        self._write_inputs()
        evil = f"open({str(self.root / MARKER)!r}, 'w').close()\nclass Mine: pass\n"
        for name in BASES:
            (self.root / "bases" / name / "evil.py").write_text(evil)
        return 0

    def _write_inputs(self) -> None:
        import numpy as np
        from PIL import Image
        from scipy.io import wavfile

        Image.new("RGB", (40, 30), (200, 30, 30)).save(self.root / "picture.png")
        wavfile.write(self.root / "wave.wav", 8000, (np.sin(np.arange(4000) / 9) * 9000).astype(np.int16))
        (self.root / "lines.txt").write_text(f"{TEXT}\naaaaaaaa b aaaaaaaaaaaaaaaaaaaa\n")

    def make(self, number: int) -> tuple[Case, str]:
        """The folder of this number, and what is wrong with it."""
        chance = random.Random(f"{self.seed}/{number}")
        attack = chance.choices(list(ATTACKS), list(ATTACKS.values()))[0]
        names = list(BASES)
        if attack in (features, tiles):
            names = [*IMAGES, *SOUNDS]
        elif attack is both:
            names = [*BOTH]
        elif attack.__name__ in (
            "replacements",
            "patterns",
            "charsmaps",
            "processors",
            "vocabularies",
            "added",
            "tokenizer_classes",
        ):
            names = [name for name in names if name not in (*IMAGES, *SOUNDS, *BOTH)]
        base = chance.choice(names)
        folder = self.root / f"folder-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.root / "bases" / base, folder)
        case = Case(folder, base, chance)
        return case, f"{base}: {attack(case)}"

    def words(self, case: Case) -> list[str]:
        """The command that opens it; `open` stands for what every verb does first."""
        folder, lines = str(case.folder), str(self.root / "lines.txt")
        page = ["--still", "--save", str(self.root / "page.html")]
        if case.base in (*IMAGES, *SOUNDS, *BOTH):
            line = str(self.root / ("wave.wav" if case.base in SOUNDS else "picture.png"))
            line += "\twhat is it" if case.base in BOTH else ""
            choices = {"open": 4, "explore": 1}
        else:
            choices = {"open": 4, "explore": 1, "heads": 2, "causes": 1, "laws": 1, "train": 1}
            line = case.chance.choice((TEXT, "a" * 24))
        verbs = {
            "open": ["open", folder, line],
            "explore": ["explore", "--model", folder, "--input", line, *page],
            "heads": ["heads", folder, "--data", lines, "--threads", "1", "--out", str(self.root / "study")],
            "causes": ["causes", folder, "--text", line],
            "laws": ["laws", "--model", folder],
            "train": ["train", "text", "--train", lines, "--init", folder, "--out", str(self.root / "again")],
        }
        verb = case.chance.choices(list(choices), list(choices.values()))[0]
        few = ["--set", "training.examples=8", "--set", "training.evaluations=1", "--threads", "1"]
        return [*verbs[verb], *(few if verb == "train" else [])]

    def open(self, number: int) -> str:
        """Open the folder of this number; gives what came of it."""
        case, what = self.make(number)
        words = self.words(case)
        begun = time.monotonic()
        cache = {"JARILAB_CACHE": str(self.root / "cache")}
        # A page of a model that generates its answers takes 20 seconds and more, whoever made it.
        bounds = Bounds(seconds=90 if words[0] == "explore" else 20)
        attempt = Measured.of(self.root / "log.txt", lambda: self._called(case, words), bounds, cache)
        seconds, said, outcome = time.monotonic() - begun, attempt.said, attempt.outcome
        if (self.root / MARKER).exists():
            outcome = "executed"
            (self.root / MARKER).unlink()
        findings = self.findings
        findings.counts[outcome] += 1
        findings.peak, findings.longest = max(findings.peak, attempt.peak), max(findings.longest, seconds)
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
        took = f"{attempt.peak >> 20} MB {seconds:.0f} s"
        note = f"{number}: {outcome} {attempt.code} | {words[0]} | {what} | {took} | {last[:200]}"
        if is_bad := outcome not in ("read", "refused"):
            findings.bad.setdefault(outcome, []).append(note)
        if is_bad or os.environ.get("JARI_FOLDERS_SAY"):
            print(note, file=sys.stderr, flush=True)
        shutil.rmtree(case.folder, ignore_errors=True)
        for left in ("study", "again"):
            shutil.rmtree(self.root / left, ignore_errors=True)
        return outcome

    def _called(self, case: Case, words: list[str]) -> int:
        from jarilab.cli import main as command

        watch = Watch(case.folder, MARKER)
        watch.on = True
        try:
            code = opened(*words[1:]) if words[0] == "open" else command(words)
        except RefusedError:
            code = EXECUTED
        finally:
            watch.on = False
        if watch.seen:
            print(watch.seen, file=sys.stderr)
        return EXECUTED if watch.seen else code


def opened(folder: str, line: str) -> int:
    """Load the model, read a line, record a forward, and report on it."""
    from jarilab.core.errors import UserError
    from jarilab.explorer.huggingface_subject import HuggingFaceSubject

    try:
        print(HuggingFaceSubject(folder).report(line))
    except UserError as error:
        print(f"jarilab: {error}", file=sys.stderr)
        return 2
    return 0


def warm_up() -> None:
    """Import what every command on a folder imports, once."""
    import transformers

    import jarilab.cli.commands.causes
    import jarilab.cli.commands.explore
    import jarilab.cli.commands.heads
    import jarilab.explorer.causes
    import jarilab.explorer.huggingface_subject
    import jarilab.huggingface.batches
    import jarilab.laws.whole_laws
    import jarilab.training.progress  # noqa: F401

    for name in transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES:
        if name in BASES:
            importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    platform.platform()  # runs `uname`, once in each process that trains
    gc.freeze()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of one folder, as a finding names it")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="jari-folders-"))
    os.chdir(root)
    warm_up()
    drill = Folders(root, options.seed)
    begun, used = time.monotonic(), time.process_time()
    chosen = [options.only] if options.only else range(options.first, options.first + options.count)
    for number in chosen:
        drill.open(number)
    findings = drill.findings
    print(table(findings, len(list(chosen))))
    spent = sum(os.times()[:4]) - used
    print(f"\nIn {(time.monotonic() - begun) / 60:.1f} minutes, {spent / 60:.1f} of the processor.")
    shutil.rmtree(root, ignore_errors=True)
    return 1 if findings.bad else 0


def table(findings: Findings, count: int) -> str:
    """What came of the folders, in Markdown."""
    counts = findings.counts
    rows = {
        "hostile folders": f"{count:,}",
        "read; refused in a sentence": f"{counts['read']:,}; {counts['refused']:,}",
        "executed, connected or started a process": counts["executed"],
        "tracebacks; ended by a signal": f"{counts['traceback']}; {counts['ended by a signal']}",
        "endless; above 2 GB": f"{counts['endless']}; {counts['above 2 GB']}",
        "most memory; longest time": f"{findings.peak >> 20:,} MB; {findings.longest:.0f} s",
    }
    return "\n".join(
        ["| what | figure |", "| :--- | ---: |", *(f"| {name} | {value} |" for name, value in rows.items())]
    )


if __name__ == "__main__":
    raise SystemExit(main())
