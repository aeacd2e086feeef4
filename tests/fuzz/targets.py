"""What reads bytes, each as a function that may raise UserError and nothing else."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from pydantic import TypeAdapter, ValidationError
from torch import nn

from helpers.runs import save_checkpoint
from jarilab.cli.setting_flags import parse_specs
from jarilab.comparison.study import Study
from jarilab.core.errors import UserError
from jarilab.core.options import options_of, read_options
from jarilab.core.registry import split_specs
from jarilab.core.storage.files import seal_record
from jarilab.data.images import annotations, idx, listing
from jarilab.data.images.image_files import read_image
from jarilab.data.images.image_tokenizer import ImageTokenizer
from jarilab.data.images.notices import Notices
from jarilab.data.text import text_files
from jarilab.data.text.columns import LABEL, TEXT, open_table
from jarilab.data.text.pairs import PairCounts
from jarilab.data.text.pairs import pairs as read_pairs
from jarilab.data.text.tokenizers import Tokenizer
from jarilab.encodings import compose
from jarilab.explorer.server import HeadRequest, Look, Surgery
from jarilab.huggingface.limits import check_settings
from jarilab.huggingface.model_inputs import _read_wave
from jarilab.models.base import registry as models
from jarilab.runs import checkpoint, metrics_log
from jarilab.runs.folder import read_experiment, read_result, read_run
from jarilab.runs.outcomes import read_outcomes
from jarilab.runs.training_options import Training
from jarilab.tasks.base import registry as tasks
from jarilab.tasks.policies import base as policies

Target = Callable[[bytes], object]


@cache
def folder() -> Path:
    """Where inputs are written, in memory where that can be."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="jari-fuzz-", dir=memory if memory.is_dir() else None))


def remove_folder() -> None:
    shutil.rmtree(folder(), ignore_errors=True)


def file(data: bytes, name: str) -> Path:
    path = folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def text(data: bytes) -> str:
    """As the arguments of a command come: bytes that are no UTF-8 as lone surrogates."""
    return os.fsdecode(data[:400])


def _sealed(data: bytes) -> bytes:
    """A record with a checksum that fits; as it is where it is no record."""
    try:
        return json.dumps(seal_record(json.loads(data))).encode()
    except (ValueError, TypeError, RecursionError):
        return data


def run(data: bytes) -> object:
    """Somebody who means harm has the checksum fit."""
    path = file(_sealed(data), "run/run.json")
    return read_experiment(read_run(path.parent), path).encoding


def metrics(data: bytes) -> object:
    return metrics_log.read(file(data, "curve/metrics.jsonl"), "0123456789ab")


def result(data: bytes) -> object:
    return read_result(file(_sealed(data), "result/result.json").parent, "0123456789ab")


def outcomes(data: bytes) -> object:
    return read_outcomes(file(_sealed(data), "outcomes/outcomes.json").parent, "0123456789ab")


def study(data: bytes) -> object:
    path = file(data, "study/study.json")
    return Study.read(path.parent).trials(path.parent)


@cache
def _saved() -> Path:
    """A checkpoint of four numbers."""
    model = nn.Linear(1, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1)).sum().backward()
    optimizer.step()
    state = {"run": "0123456789ab", "best": None, "losses": [0.5]}
    return save_checkpoint(folder() / "saved", 3, model, {"adamw": optimizer}, state)


def manifest(data: bytes) -> object:
    (_saved() / "manifest.json").write_bytes(data)
    return checkpoint.verify(_saved())


def state(data: bytes) -> object:
    """Somebody who means harm has the hashes fit."""
    (_saved() / "state.json").write_bytes(data)
    model = nn.Linear(1, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint.load_model(_saved(), model, "0123456789ab")
    return checkpoint.load_training(_saved(), {"adamw": optimizer})


def weights(data: bytes) -> object:
    return checkpoint.fill(nn.Linear(1, 2), file(data, "model.safetensors"))


def image_tokenizer(data: bytes) -> object:
    return ImageTokenizer.read(file(data, "codes.safetensors"))


def tokenizer(data: bytes) -> object:
    made = Tokenizer.read(file(data, "tokenizer.json"))
    return made.encode("one two"), made.decode(list(range(min(5, len(made)))))


def lines(data: bytes) -> object:
    return list(text_files.lines(file(data, "text.txt"), longest_line=100))


def compressed(data: bytes) -> object:
    return list(text_files.lines(file(data, "text.txt.gz"), longest_line=100))


def pairs(data: bytes) -> object:
    first, _, second = data.partition(b"\0\0")
    return list(read_pairs([(file(first, "one.txt"), file(second, "other.txt"))], PairCounts()))


def columns(data: bytes) -> object:
    return list(read_pairs([(file(data, "pairs.tsv"),)], PairCounts()))


def cells(data: bytes) -> object:
    return list(open_table(file(data, "pairs.csv"), (LABEL, TEXT)).rows())


def idx_images(data: bytes) -> object:
    path = file(data, "t-images-idx3-ubyte")
    return idx.read(path, idx.IMAGES) if idx.holds_images(path) else None


def coco_json(data: bytes) -> object:
    file(PNG, "coco/p.png")
    path = file(data, "coco/list.json")
    return annotations.read_coco(path, path.parent, Notices())


def voc_xml(data: bytes) -> object:
    file(PNG, "voc/JPEGImages/p.png")
    path = file(data, "voc/Annotations/p.xml")
    return annotations.read_voc(path.parent.parent, None, Notices())


def yolo_text(data: bytes) -> object:
    file(PNG, "yolo/images/p.png")
    path = file(data, "yolo/labels/p.txt")
    file(data, "yolo/data.yaml")
    return annotations.read_yolo(path.parent.parent, path.parent.parent / "images", path.parent, Notices())


def image_list(data: bytes) -> object:
    return listing.list_csv(file(data, "listed/list.csv"), Notices())


def image(data: bytes) -> object:
    return read_image(file(data, "image.png"), 3)


def sound(data: bytes) -> object:
    return _read_wave(file(data, "sound.wav"))


def folder_settings(data: bytes) -> object:
    """What a Hugging Face folder says of its model and its tokenizer."""
    for name in ("config.json", "tokenizer.json"):
        file(data, f"huggingface/{name}")
    return check_settings(folder() / "huggingface")


def encoding(data: bytes) -> object:
    spec = compose.canonical(text(data))
    return compose.canonical(spec)


def policy(data: bytes) -> object:
    return policies.build(policies.canonical(text(data)))


def task(data: bytes) -> object:
    return str(tasks.spec(text(data)))


def model(data: bytes) -> object:
    return str(models.spec(text(data)))


def spec_list(data: bytes) -> object:
    return parse_specs("--encodings", text(data)), split_specs(text(data))


def settings(data: bytes) -> object:
    pairs = dict(item.partition("=")[::2] for item in text(data).split("\n"))
    return read_options("training", options_of(Training), pairs)


def record(data: bytes) -> object:
    """Options as run.json has them."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return read_options("training", options_of(Training), given) if isinstance(given, dict) else None


def body(data: bytes) -> object:
    """What the explorer's page asks for, as the server reads it."""
    for asked in (Look, HeadRequest, Surgery):
        try:
            TypeAdapter(asked).validate_json(data)
        except ValidationError as error:
            str(error)
    return None


def _png() -> bytes:
    held = io.BytesIO()
    Image.new("RGB", (4, 4)).save(held, "png")
    return held.getvalue()


PNG = _png()
IDX = idx.IMAGES + struct.pack(">III", 1, 2, 2) + bytes(4)
TARGETS: dict[str, Target] = {
    function.__name__: function
    for function in (
        run, metrics, result, outcomes, study, manifest, state, weights, image_tokenizer, tokenizer, lines, compressed,
        pairs, columns, cells, idx_images, coco_json, voc_xml, yolo_text, image_list, image, sound, folder_settings,
        encoding, policy, task, model, spec_list, settings, record, body,
    )
}  # fmt: skip


def feed(target: Target, data: bytes) -> Any:
    """Give a reader an input: it may refuse it, in words."""
    try:
        return target(data)
    except UserError as error:
        if not str(error).strip():
            raise AssertionError("refused without a word") from error
        return None
