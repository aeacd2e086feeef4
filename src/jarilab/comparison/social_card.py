"""The preview of a link to a report: one sentence, and a small image of its maps or bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jarilab.comparison.lead_example import weights_of
from jarilab.pages.kit.image_data import data_url, png
from jarilab.pages.kit.tones import colours, tone_of
from jarilab.tasks.metrics import Metric

HEIGHT, WIDTH = 210, 400
EDGE = 20
PAPER = np.array([252, 251, 248])

Payload = Mapping[str, Any]


def description(payload: Payload) -> str:
    """The measured values, in one sentence."""
    task = payload["task"]
    metric = Metric(**task["metric"])
    means = [f"{row['encoding']} {metric.text(row['mean'])}" for row in payload["summary"]]
    sentence = f"{task['name']}, {metric.title} on held-out data: {', '.join(means)}."
    ceiling = task["ceiling"] or {}
    if ceiling.get("all") is None:
        return sentence
    limit = metric.text(ceiling["all"])
    return f"{sentence} Without positions at most {limit} on average."


def image(payload: Payload) -> str:
    """The lead maps in the colours of their encodings, or bars without maps, as a data URL."""
    canvas = np.tile(PAPER, (HEIGHT, WIDTH, 1))
    lead = payload.get("opening")
    if lead is None:
        _draw_bars(canvas, payload)
    else:
        example = payload["examples"][lead["example"]]
        _draw_maps(canvas, example["models"], lead)
    return data_url(png(canvas))


def _draw_maps(canvas: np.ndarray, models: Sequence[Any], lead: Mapping[str, Any]) -> None:
    """Draw the lead head of each model, side by side; a model without that head leaves its part empty."""
    width = WIDTH // len(lead["models"])
    for column, number in enumerate(lead["models"]):
        part = canvas[:, column * width : (column + 1) * width]
        model = models[number]
        for site in model["sites"]:
            if site["name"] == lead["site"] and lead["head"] < site["heads"]:
                weights_QK = weights_of(site, lead["head"])
                _draw_map(part, weights_QK, _colour(model["encoding"]))


def _draw_map(part: np.ndarray, weights_QK: np.ndarray, ink: np.ndarray) -> None:
    """Draw a map in the middle of a part of the canvas, with the largest cells that fit."""
    free_height, free_width = part.shape[0] - 2 * EDGE, part.shape[1] - 2 * EDGE
    weights_QK = weights_QK[:free_height, :free_width]
    rows, columns = weights_QK.shape
    cell = min(free_height // rows, free_width // columns)
    enlarged = weights_QK.repeat(cell, 0).repeat(cell, 1)
    height, width = enlarged.shape
    top = (part.shape[0] - height) // 2
    left = (part.shape[1] - width) // 2
    strength = 0.06 + 0.94 * enlarged[..., None]  # a cell of weight 0 is still visible on the paper
    part[top : top + height, left : left + width] = PAPER + (ink - PAPER) * strength


def _draw_bars(canvas: np.ndarray, payload: Payload) -> None:
    means = [row["mean"] for row in payload["summary"]]
    largest = 1.0 if payload["task"]["metric"]["share"] else max(*means, 0.0)
    step = (HEIGHT - 2 * EDGE) // max(1, len(means))
    thickness = max(1, 2 * step // 3)
    for index, row in enumerate(payload["summary"]):
        share = row["mean"] / largest if largest else 0.0
        length = round(min(1.0, max(0.0, share)) * (WIDTH - 2 * EDGE))
        top = EDGE + index * step
        bar = canvas[top : top + thickness, EDGE : EDGE + length]
        bar[:] = _colour(row["encoding"])


def _colour(encoding: str) -> np.ndarray:
    colour = colours()[tone_of(encoding)]
    return np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)])
