"""Limits for folders from strangers: what their settings may ask for, checked before anything is allocated."""

from __future__ import annotations

import base64
import json
import math
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as hooks

from jarilab.core.errors import UserError
from jarilab.core.storage.files import open_checked

MAX_SETTINGS_BYTES = 1 << 27
"""Bytes of a file of settings; the largest tokenizers have some 40 MB."""
MAX_CONFIG_BYTES = 1 << 23
"""Bytes of a file of settings with `config` in its name; the names of 22,000 classes take 1 MB."""
MAX_GENERATION_BYTES = 1 << 18
"""Bytes of generation_config.json, whose lists are read again for each token of an answer."""
MAX_VALUES = 1 << 23
"""Values in a file of settings; the largest tokenizers have some 3 million. Each takes up to 70 bytes of memory."""
SETTINGS = (
    "*config*.json",
    "*token*.json",
    "*.jinja",
    "vocab*",
    "merges*",
    "*.index.json",
    "*.model",
)
SETTINGS += ("normalizer.json", "additional_chat_templates/*.jinja")
"""Files that transformers reads from a folder, except weights."""
MAX_COUNTS = {
    r"vocab_size": 1 << 20,
    r"(num_)?labels|id2label|label2id": 1 << 16,
    r"attention_window": 1 << 14,
    r"\w*layers?|depths?|\w*blocks?|\w*stages|\w*heads?|\w*experts?": 1 << 14,
}
"""Largest numbers, or numbers of entries, in settings whose whole name matches. Real models are below them."""
_COUNTS = [(re.compile(names), largest) for names, largest in MAX_COUNTS.items()]
MAX_GROWTH = 64
"""How many times longer the steps of a tokenizer may make a text together."""
MAX_STEPS = 1000
"""Steps of a tokenizer, and tokens that it puts around a text."""
WEIGHT_FACTOR = 4
"""A model may have so many times the weights of its files: ties, tables and buffers are not stored."""
UNSTORED_WEIGHTS = 1 << 26
MODULE_FACTOR = 64
"""A model may have so many times the modules of its tensors, and a forward so many times the calls of its modules."""
UNSTORED_MODULES = 1 << 14
MAX_TENSORS = 1 << 17


def read_settings(path: Path) -> Any:
    """A JSON file of a folder. Raises UserError, naming the file, for damaged, endless and too large ones."""
    largest = MAX_CONFIG_BYTES if "config" in path.name else MAX_SETTINGS_BYTES
    if path.name == "generation_config.json":
        largest = MAX_GENERATION_BYTES
    with open_checked(_target(path), MAX_SETTINGS_BYTES) as file:
        data = file.read()
        if len(data) > largest:
            raise UserError(
                f"{path}: expected at most {largest:,} bytes, got {len(data):,}; put back the file that was saved with "
                "the model"
            )
        if sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
            raise UserError(
                f"{path}: expected at most {MAX_VALUES:,} values, got more; put back the file that was saved with the "
                "model"
            )
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read: {error!s:.100}; put back a copy") from None


def _target(path: Path) -> Path:
    """The file that a link leads to: the cache of Hugging Face consists of links. Raises UserError for a circle."""
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{path}: expected a file, got a link that leads to none: {error}"
        ) from None


def check_settings(folder: Path) -> None:
    """Raises UserError for files of settings that are no files, no JSON, or ask for too much."""
    for path in {path for pattern in SETTINGS for path in folder.glob(pattern)}:
        if path.suffix != ".json":
            with open_checked(_target(path), MAX_SETTINGS_BYTES):
                continue
        settings = read_settings(path)
        if path.name == "tokenizer.json":
            _check_steps(path, settings)
        elif path.name.endswith("safetensors.index.json"):
            _check_shards(path, settings)
        elif isinstance(settings, dict) and "config" in path.name:
            _check_counts(path, settings)
            if "fast_tokenizer_files" in settings:  # of which none is checked
                raise UserError(
                    f"{path}: expected the tokenizer in tokenizer.json, got fast_tokenizer_files; rename the one that "
                    "you need to tokenizer.json, and remove that entry"
                )


def _check_counts(path: Path, settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        largest = next((largest for names, largest in _COUNTS if names.fullmatch(key)), math.inf)
        for each in value if isinstance(value, list) else [value]:
            number = len(each) if isinstance(each, Mapping) else each
            if isinstance(number, int | float) and number > largest:
                raise UserError(
                    f"{path}: expected {key} of at most {largest:,}, got {number!r:.40}; put back the file that was "
                    "saved with the model"
                )
        if isinstance(value, Mapping):
            _check_counts(path, value)


def _check_shards(path: Path, index: Any) -> None:
    """Raises UserError for weights in other files than the checked ones of this folder."""
    shards = index.get("weight_map") if isinstance(index, dict) else None
    known = {file.name for file in path.parent.glob("*.safetensors")}
    unknown = (
        [name for name in shards.values() if not isinstance(name, str) or name not in known]
        if isinstance(shards, dict)
        else [shards]
    )
    if unknown:
        raise UserError(
            f"{path}: expected the names of .safetensors files beside it, got {unknown[0]!r:.80}; put back the files "
            "that were saved with the model"
        )


def _check_steps(path: Path, tokenizer: Any) -> None:
    """Raises UserError for a tokenizer that makes a text too long, or has too many steps."""
    if not isinstance(tokenizer, dict):
        raise UserError(f"{path}: expected the settings of a tokenizer, got none; put back a copy")
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        growth, steps = 1, 0
        for step in _steps(tokenizer.get(part)):
            ids = step.get("ids")
            steps += len(ids) if isinstance(ids, list) else 1
            growth *= max(1, *(len(str(step.get(key, ""))) for key in ("content", "prepend")))
            if step.get("type") == "ByteLevel":
                growth *= 2  # it writes each byte of a letter as a letter of up to two bytes
            if "precompiled_charsmap" in step:
                growth *= _charsmap_growth(path, step["precompiled_charsmap"])
            if growth > MAX_GROWTH or steps > MAX_STEPS:
                raise UserError(
                    f"{path}: expected a {part} of at most {MAX_STEPS:,} steps that makes a text at most {MAX_GROWTH} "
                    "times longer, got more; put back the file that was saved with the model"
                )


def _charsmap_growth(path: Path, charsmap: Any) -> int:
    """The length of the longest text that a table of SentencePiece writes for a character.

    Raises UserError for a table that is longer than its data, which ends the process.
    """
    try:
        data = base64.b64decode(charsmap or "", validate=True)
    except (TypeError, ValueError):
        data = b""
    size = int.from_bytes(data[:4], "little")
    if charsmap and (len(data) < 8 or size % 4 or not 0 < size <= len(data) - 4):
        raise UserError(
            f"{path}: expected a precompiled_charsmap of SentencePiece, got {len(data):,} bytes that are none; put "
            "back the file that was saved with the model"
        )
    return max(1, *(len(text.decode(errors="replace")) for text in data[4 + size :].split(b"\0")))


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """All objects inside a part of a tokenizer; json has bounded their depth."""
    if isinstance(part, list):
        for each in part:
            yield from _steps(each)
    elif isinstance(part, dict):
        yield part
        yield from _steps(list(part.values()))


def stored_weights(folder: Path) -> tuple[int, int]:
    """Numbers of elements and of tensors in the headers of the safetensors files."""
    from safetensors import safe_open

    elements = tensors = 0
    for path in sorted(folder.glob("*.safetensors")):
        with open_checked(_target(path)):
            pass
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            tensors += len(names)
            if tensors > MAX_TENSORS:
                raise UserError(
                    f"{path}: expected a model of at most {MAX_TENSORS:,} tensors, got {tensors:,} or more; merge "
                    "those of its experts"
                )
            elements += sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    return elements, tensors


@contextmanager
def bounded_model(folder: Path) -> Iterator[None]:
    """Stop the construction of a model that is much larger than its files, while it is still on the meta device."""
    elements, tensors = stored_weights(folder)
    most = {
        "weights": WEIGHT_FACTOR * elements + UNSTORED_WEIGHTS,
        "modules": MODULE_FACTOR * tensors + UNSTORED_MODULES,
    }
    built, thread = dict.fromkeys(most, 0), threading.get_ident()

    def count(_: Any, __: str, added: Any) -> None:
        if threading.get_ident() != thread or added is None:
            return
        kind, size = ("weights", added.numel()) if isinstance(added, Tensor) else ("modules", 1)
        built[kind] += size
        if built[kind] > most[kind]:
            raise UserError(
                f"{folder}: expected a model of about the {elements:,} weights of its files, got a config.json that "
                f"asks for more than {most[kind]:,} {kind}; put back the config.json that was saved with them"
            )

    with ExitStack() as stack:
        for register in (
            hooks.register_module_parameter_registration_hook,
            hooks.register_module_buffer_registration_hook,
            hooks.register_module_module_registration_hook,
        ):
            stack.callback(register(count).remove)
        yield


@contextmanager
def bounded_calls(folder: Path, model: nn.Module) -> Iterator[None]:
    """Stop a forward of the model that calls its modules without end, as with 16,384 layers that share weights."""
    most = MODULE_FACTOR * sum(1 for _ in model.modules()) + UNSTORED_MODULES
    calls, thread = 0, threading.get_ident()

    def count(module: nn.Module, _: Any) -> None:
        nonlocal calls
        if threading.get_ident() != thread:
            return
        calls = 1 if module is model else calls + 1
        if calls > most:
            raise UserError(
                f"{folder / 'config.json'}: expected a forward of at most {most:,} calls of modules, got more; put "
                "back the config.json that was saved with the weights"
            )

    handle = hooks.register_module_forward_pre_hook(count)
    try:
        yield
    finally:
        handle.remove()
