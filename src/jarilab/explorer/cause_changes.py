"""Sections of the page of `jarilab causes` that change the model: screening, patching and steering."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.core.storage.files import read_bytes
from jarilab.explorer.cause_words import CERTAIN, Words, said, say
from jarilab.explorer.scored_input import ScoredInput
from jarilab.inspect.cause.parts import Kind, ModelParts
from jarilab.inspect.cause.patching import exchange
from jarilab.inspect.cause.screening import screen
from jarilab.inspect.cause.steering import MIN_EFFECT, steer_streams
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.losses import logits_of

MIN_CORRELATION = 0.5
"""Rank correlation below which a screen cannot be trusted."""
MISSED_SHARE = 0.25
"""A head is missed if its estimate is below this share of its effect, which is above this share of the largest."""
MAX_DRAWS = 9
"""Random directions of each layer and scale of a steering."""
MAX_POSITIONS = 64
"""Tokens of an input up to which the residual stream is patched at each position."""

ESTIMATES = ("head", "site", "index", "estimate", "actual", "checked")
EFFECTS = ("noised", "restored", "share", "control", "passes")

Section = dict[str, Any]


# Screening ------------------------------------------------------------------------------------------------------------


def screening(
    scored: ScoredInput, donor: Batch | None = None, count: int | None = None, seed: int = 0
) -> Section:
    """The effect of each head estimated by one backward, beside the real one of the best and of a random sample.

    donor: another input, whose heads are put in; else 0. count: heads of each kind that are checked; by default all.
    """
    total = len(ModelParts(scored.model, scored.batch).heads)
    top, sample = (total, 0) if count is None else (count, count)
    donors = None if donor is None else [donor]
    result = screen(
        scored.model, [scored.batch], scored.score, donors, top=top, sample=sample, seed=seed
    )
    rows = [columns_of(row, ESTIMATES) for row in result.rows]
    measured = [row for row in rows if row["actual"] is not None]
    measured.sort(key=lambda row: -abs(row["actual"]))
    threshold = max(MISSED_SHARE * abs(measured[0]["actual"]), MIN_EFFECT)
    missed = [
        row["head"]
        for row in measured
        if abs(row["actual"]) >= max(threshold, abs(row["estimate"]) / MISSED_SHARE)
    ]
    correlation = result.rank_correlation
    checked = [row["checked"] for row in rows]
    counts = [checked.count(how) for how in ("top", "random")]
    what = say("screened_by_zero" if donor is None else "screened_by_input")
    is_partial = sum(counts) < total
    words = [say("screened" if is_partial else "screened_all", what, *counts, total)]
    words.append(say("no_correlation") if correlation is None else say("correlation", correlation))
    of_random = [abs(row["actual"]) for row in measured if row["checked"] == "random"]
    if result.of_random is not None and max(of_random) >= MIN_EFFECT:
        words.append(say("correlation_of_random", result.of_random))
    trusted = not missed and correlation is not None and correlation >= MIN_CORRELATION
    if missed:
        words.append(say("screen_missed", ", ".join(missed)))
    elif not trusted and correlation is not None:
        words.append(say("screen_unordered"))
    with torch.no_grad():
        probability = scored.probability(scored.batch.forward(scored.model))
    if (probability or 0.0) > CERTAIN:
        words.append(say("screen_certain"))
    return {
        "rows": rows,
        "rank_correlation": correlation,
        "of_random": result.of_random,
        "missed": missed,
        "trusted": trusted,
        "replaced_by": "zero" if donor is None else "corrupt",
        **said(_joined(words)),
    }


# Patching -------------------------------------------------------------------------------------------------------------


def patching(
    scored: ScoredInput,
    donor: Batch,
    other: ScoredInput | None = None,
    *,
    controls: int,
    seed: int = 0,
) -> Section:
    """What each part carries of the difference to another input, or to another model at the same input."""
    parts = ModelParts(scored.model, scored.batch)
    kinds: list[Kind] = ["head"]
    left_out: dict[str, str] = {}
    for kind in ("mlp", "stream"):
        try:
            parts.select([kind])
            kinds.append(kind)
        except UserError as error:
            left_out[kind] = str(error)
    model = None if other is None else other.model
    # Of two inputs, the whole stream carries all of the difference in every layer.
    lengths = map(len, scored.batch.tokens[0].values())
    rows = exchange(
        scored.model,
        scored.batch,
        scored.score,
        donor,
        model,
        kinds,
        by_position=other is None and max(lengths, default=0) <= MAX_POSITIONS,
        controls=controls,
        seed=seed,
    )
    base, source = rows[0]["base"], rows[0]["donor"]
    first = say("patched_input" if other is None else "patched_model", base, source)
    words = [first, *_patching_words(rows, controls)]
    columns = ("part", "kind", "site", "index", "position", *EFFECTS)
    return {
        "rows": [columns_of(row, columns) for row in rows],
        "other": None if other is None else other.name,
        "base": base,
        "donor": source,
        "controls": controls,
        "left_out": left_out,
        **said(_joined(words)),
    }


def _patching_words(rows: Sequence[Section], controls: int) -> list[Words]:
    if rows[0]["share"] is None:
        is_alike = abs(rows[0]["base"] - rows[0]["donor"]) < MIN_EFFECT
        return [say("patched_alike" if is_alike else "patched_close")]
    single = [row for row in rows if row["kind"] in ("head", "mlp")]
    largest = max(single, key=lambda row: abs(row["noised"]))
    words = [
        say(row["part"].replace(" ", "_"), -row["noised"], 100 * row["share"])
        for row in rows
        if row["kind"] == "group"
    ]
    numbers = (largest["part"], -largest["noised"], 100 * largest["share"])
    key = "patched_largest" if largest["passes"] else "patched_chance"
    passes = [row["passes"] for row in rows if row["passes"] is not None]
    # The largest and the smallest of all are each as likely to be the part.
    by_chance = 2 * len(passes) / (controls + 1)
    return [
        *words,
        say(key, *numbers, controls),
        say("passing_parts", sum(passes), len(passes), controls, by_chance),
    ]


# Steering -------------------------------------------------------------------------------------------------------------


def steering(
    scored: ScoredInput,
    direction: Float[Tensor, " D"] | Batch,
    scales: Sequence[float],
    *,
    controls: int,
    seed: int = 0,
) -> Section:
    """The answer with a direction added to the residual stream after each layer, at several scales."""

    def read(outputs: Any, batch: Batch) -> Float[Tensor, "R 4"]:
        shares_RV = scored.scores(outputs)[:, 0].softmax(-1)
        share_R, id_R = shares_RV.max(-1)
        score_R = scored.score(outputs, batch)
        return torch.stack([score_R, id_R.double(), share_R, shares_RV[:, scored.labels[0]]], 1)

    with torch.no_grad():
        outputs = scored.batch.forward(scored.model)
    logits = logits_of(outputs)
    is_sequence = logits is not None and logits.ndim == 3
    position = scored.positions[0] if is_sequence else None
    draws = min(controls, MAX_DRAWS)
    rows = steer_streams(
        scored.model,
        scored.batch,
        read,
        direction,
        position=position,
        scales=scales,
        controls=draws,
        seed=seed,
    )
    clean = scored.show(int(read(outputs, scored.batch)[0, 1]))
    parts = list(dict.fromkeys(row["part"] for row in rows))
    after = dict(
        zip(parts, [None, *(part.removesuffix(" stream") for part in parts)], strict=False)
    )
    cells = []
    for row in rows:
        _, number, share, answer = row["values"]
        cell = {"after": after[row["part"]], "token": scored.show(int(number)), "share": share}
        names = ("scale", "change", "control", "passes", "norm", "stream_norm")
        cells.append(cell | {"answer": answer} | columns_of(row, names))
    words = _steering_words(cells, clean, draws)
    shared = {"scales": list(scales), "clean": clean, "controls": draws}
    return {"cells": cells, **shared, "position": position, **said(words)}


def _steering_words(cells: Sequence[Section], clean: str, draws: int) -> Words:
    passing = [cell for cell in cells if cell["passes"]]
    turned = [cell for cell in passing if cell["token"] != clean]
    if turned:
        cell = min(turned, key=lambda cell: (abs(cell["scale"]), -abs(cell["change"])))
        key, numbers = "steered", (cell["token"], 100 * cell["share"])
    elif passing:
        cell = max(passing, key=lambda cell: abs(cell["change"]))
        key, numbers = "steered_score", (cell["change"], cell["control"])
    else:
        return say("steered_chance", draws)
    name = cell["after"]
    place = say("lens_before") if name is None else say("lens_after", name)
    by_chance = len(cells) / (draws + 1)
    counted = say("passing_parts", len(passing), len(cells), draws, by_chance)
    return _joined([say(key, place, cell["scale"], *numbers, draws), counted])


def read_vector(path: Path) -> Float[Tensor, " D"]:
    """The vector of a .npy or .safetensors file. Raises UserError for any other content."""
    if not path.is_file():
        raise UserError(f"{path}: expected a file with a vector, got none; check the name")
    data = read_bytes(path.resolve())
    try:
        if path.suffix == ".safetensors":
            tensors = load(data)
        else:
            array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
            tensors = {path.name: torch.from_numpy(array.astype(np.float32, casting="same_kind"))}
    except (ValueError, TypeError, EOFError, MemoryError, SafetensorError):
        raise UserError(
            f"{path}: expected a vector of real numbers as .npy or .safetensors, got a file that is not one of them; "
            "save it with numpy.save or safetensors.torch.save_file"
        ) from None
    vectors = [tensor.squeeze() for tensor in tensors.values()]
    if len(vectors) != 1 or vectors[0].ndim != 1:
        got = ", ".join(f"{name} {tuple(each.shape)}" for name, each in sorted(tensors.items()))
        raise UserError(
            f"{path}: expected one vector as wide as the residual stream, got {got or 'no tensor'}; save one direction "
            "in a file"
        )
    vector = vectors[0].float()
    if not bool(vector.isfinite().all()) or not bool(vector.any()):
        raise UserError(
            f"{path}: expected finite numbers, not all 0, got NaN, infinity or only zeros; save another direction"
        )
    return vector


def columns_of(row: Section, names: Sequence[str]) -> Section:
    """Some columns of a row."""
    return {name: row[name] for name in names}


def _joined(words: Sequence[Words]) -> Words:
    english, korean = map(" ".join, zip(*words, strict=True))
    return english, korean
