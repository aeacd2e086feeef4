"""Trained runs to look into, and pages made up by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from helpers.once import make_once
from helpers.runs import tiny, train
from jarilab.data.captions import judges, sources
from jarilab.explorer.initial_view import initial_view
from jarilab.explorer.payload import page_of
from jarilab.inspect.record.sites import SEQUENCES
from jarilab.pages.kit.data_blocks import block
from jarilab.runs.experiment import Experiment

TEXT = "one two three four five six seven eight nine ten\n1+2-3\n" * 40
KINDS = {sides: kind for kind, sides in SEQUENCES.items()}
PROOF = {"row_sum_error": 1e-7, "masked_weight": 0.0, "rebuild_error": 2e-7, "dropout": 0.0}


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest) -> Path:
    """Folders of small runs: none, rotary (arithmetic), recurrent, lm (a language model that knows `1+2` too)."""
    return make_once(request, "runs", train_runs)


def train_runs(folder: Path) -> None:
    for encoding in ("none", "rotary"):
        train(folder / encoding, tiny(encoding))
    budget = {"training.batch_size": 16, "training.examples": 64, "training.epochs": None, "training.tokens": None}
    small = {**budget, "training.evaluations": 1, "training.evaluation_examples": 8, "model.d_model": 16}
    train(folder / "recurrent", Experiment.of("reverse", None, small, 1, "float32", "recurrent"))
    (folder / "text.txt").write_text(TEXT)
    text = {"task.train": str(folder / "text.txt"), "task.context_length": 32, "task.tokenizer": "characters"}
    with pytest.MonkeyPatch.context() as patch:  # a session's fixture comes before the cache of a file of tests
        patch.setenv("JARILAB_CACHE", str(folder / "cache"))
        train(folder / "lm", Experiment.of("text", "alibi", {**small, **text, "model.n_heads": 2}, 1, "float32"))


@pytest.fixture(scope="session")
def image_runs(request: pytest.FixtureRequest) -> Path:
    """Folders of small runs on images: none, rotary2d, learned2d (digits), class (a class token and two registers,
    patches that are counted), detection."""
    return make_once(request, "image_runs", train_image_runs)


def train_image_runs(folder: Path) -> None:
    small = {"training.examples": 512, "training.evaluations": 1, "training.evaluation_examples": 16}
    vit = {**small, "model.d_model": 16, "model.n_heads": 2, "model.n_layers": 2, "model.patch_size": 2}
    for encoding in ("none", "rotary2d", "learned2d"):
        train(folder / encoding, Experiment.of("digits", encoding, vit, 1, "float32"))
    tokens = {**vit, "model.pool": "class", "model.registers": 2}
    train(folder / "class", Experiment.of("digits", "learned:positions=16", tokens, 1, "float32"))
    found = {**small, "training.examples": 64, "model.d_model": 16, "model.n_heads": 2, "model.d_ff": 16}
    found |= {"model.n_encoder_layers": 1, "model.n_decoder_layers": 2, "model.queries": 4}
    train(
        folder / "detection",
        Experiment.of("detection", "sinusoidal2d:where=inject,normalised=true", found, 1, "float32"),
    )


@pytest.fixture(scope="session")
def painted_runs(request: pytest.FixtureRequest) -> Path:
    """Folders of small runs that paint: painter (a table for words, a rotation for codes, and kept steps), table (of
    distances between codes), folder (images with texts, which nobody judges)."""
    return make_once(request, "painted_runs", train_painted_runs)


def train_painted_runs(folder: Path) -> None:
    (folder / "data").mkdir()
    for number in range(60):
        grey = numpy.full((16, 16, 3), 4 * number, dtype="uint8")
        pytest.importorskip("PIL.Image").fromarray(grey).save(folder / "data" / f"p{number}.png")
        (folder / "data" / f"p{number}.txt").write_text("light" if number > 30 else "dark")
    small = {"training.examples": 32, "training.batch_size": 8, "training.evaluations": 1, "task.code_steps": 4}
    small |= {"training.evaluation_examples": 2, "model.d_model": 16, "model.n_heads": 2, "model.n_layers": 2}
    scenes = {**small, "task.captions": "attributes", "task.scenes": 60, "task.judge_steps": 4}
    files = {**small, "task.train": str(folder / "data"), "task.size": 16}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JARILAB_CACHE", str(folder / "cache"))
        patch.setattr(sources, "HELD_OUT", 2)
        patch.setattr(judges, "REAL_IMAGES", 40)
        both = "learned:positions=7@text+rotary2d@image"
        train(folder / "painter", Experiment.of("captions", both, scenes, 1, "float32"), snapshots=2)
        train(folder / "table", Experiment.of("captions", "table2d@image", scenes, 1, "float32"))
        train(folder / "folder", Experiment.of("captions", None, files, 1, "float32"))


def random_rows(heads: int, queries: int, keys: int, seed: int = 3) -> numpy.ndarray:
    """Weights whose rows add up to 1, some of them tiny."""
    drawn = numpy.random.default_rng(seed).random((heads, queries, keys)) ** 8 + 1e-9
    return drawn / drawn.sum(-1, keepdims=True)


def made_site(
    name: str, weights: Any, queries: str = "source", keys: str = "source", hidden: Any = None
) -> dict[str, Any]:
    """A site with these weights (head, query, key). hidden: 1 where a query may not look at a key."""
    weights = numpy.asarray(weights, dtype=float)
    return {
        "site": name,
        "kind": KINDS[queries, keys],
        "layer": int(name.split(".")[1]),
        "heads": len(weights),
        "queries": queries,
        "keys": keys,
        "d_head": 16,
        "shape": list(weights.shape[1:]),
        "pooled": 1,
        "weights": block(torch.as_tensor(weights.copy()), "uint16"),
        "hidden": None if hidden is None else block(torch.as_tensor(hidden), "uint8"),
        "trust": PROOF,
        "measures": {},
        "details": {},
    }


def made_view(sites: Sequence[dict[str, Any]], name: str = "made", **sides: Sequence[str]) -> dict[str, Any]:
    """One model's part of a page; sides: the tokens of source and target."""
    return {
        "run": f"runs/{name}",
        "name": name,
        "task": "arithmetic",
        "purpose": ["Adds numbers.", "수를 더합니다."],
        "model": "encoder_decoder",
        "encoding": "rotary",
        "seed": 1,
        "step": 1954,
        "steps": [1954],
        "experiment": "9f3a0123456789",
        "curve": [],
        "metric": {"title": "exact match", "share": True, "digits": 2},
        "input": " ".join(sides.get("source", [])),
        "answer": "3",
        "expected": "3",
        "sides": {side: {"tokens": list(tokens)} for side, tokens in sides.items()},
        "outputs": [],
        "sites": list(sites),
        "vocabulary": "abc",
        "checks": [],
        "lens": None,
        "words": [f"runs/{name}"],
        "edits": ["place", "head", "link"],
        "opens": ["walk", "lens", "parts", "erasure"],
        "says": None,
    }


def made_page(*views: dict[str, Any], site: str | None = None, head: int = 0) -> dict[str, Any]:
    """A saved page of these models."""
    opening = initial_view(views[:1], site or views[0]["sites"][0]["site"], head)
    return page_of(views, live=False, initial=opening)
