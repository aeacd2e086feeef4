"""What a link to a report is shown with: a sentence, and a small image of the maps or bars at the top of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jarilab.comparison.opening import weights_of
from jarilab.pages.kit.images import data_url, png
from jarilab.pages.kit.tones import colours, tone_of
from jarilab.tasks.metrics import Metric

HEIGHT, WIDTH = 210, 400
EDGE = 20
PAPER = np.array([252, 251, 248])

Payload = Mapping[str, Any]


def description(payload: Payload) -> str:
    """What was measured, in one sentence."""
    task = payload["task"]
    metric = Metric(**task["metric"])
    means = [f"{row['encoding']} {metric.text(row['mean'])}" for row in payload["summary"]]
    measured = f"{task['name']}, {metric.title} on held-out data: {', '.join(means)}."
    ceiling = task["ceiling"] or {}
    if ceiling.get("all") is None:
        return measured
    most = metric.text(ceiling["all"])
    return f"{measured} Without positions at most {most} on average."


def image(payload: Payload) -> str:
    """The maps of the opening in the colours of their encodings, or bars where there are none, as a data URL."""
    canvas = np.tile(PAPER, (HEIGHT, WIDTH, 1))
    opening = payload.get("opening")
    if opening is None:
        _draw_bars(canvas, payload)
    else:
        example = payload["examples"][opening["example"]]
        _draw_maps(canvas, example["models"], opening)
    return data_url(png(canvas))


def _draw_maps(canvas: np.ndarray, models: Sequence[Any], opening: Mapping[str, Any]) -> None:
    """Side by side, each in a room of its own; the room of a model without that head stays empty."""
    width = WIDTH // len(opening["models"])
    for place, number in enumerate(opening["models"]):
        room = canvas[:, place * width : (place + 1) * width]
        model = models[number]
        for site in model["sites"]:
            if site["name"] == opening["site"] and opening["head"] < site["heads"]:
                weights_QK = weights_of(site, opening["head"])
                _draw_map(room, weights_QK, _colour(model["encoding"]))


def _draw_map(room: np.ndarray, weights_QK: np.ndarray, ink: np.ndarray) -> None:
    """In the middle of the room, with cells as large as there is space for."""
    free_height, free_width = room.shape[0] - 2 * EDGE, room.shape[1] - 2 * EDGE
    weights_QK = weights_QK[:free_height, :free_width]
    rows, columns = weights_QK.shape
    cell = min(free_height // rows, free_width // columns)
    enlarged = weights_QK.repeat(cell, 0).repeat(cell, 1)
    height, width = enlarged.shape
    top = (room.shape[0] - height) // 2
    left = (room.shape[1] - width) // 2
    strength = 0.06 + 0.94 * enlarged[..., None]
    room[top : top + height, left : left + width] = PAPER + (ink - PAPER) * strength


def _draw_bars(canvas: np.ndarray, payload: Payload) -> None:
    means = [row["mean"] for row in payload["summary"]]
    largest = 1.0 if payload["task"]["metric"]["share"] else max(*means, 0.0)
    step = (HEIGHT - 2 * EDGE) // max(1, len(means))
    thickness = max(1, 2 * step // 3)
    for place, row in enumerate(payload["summary"]):
        share = row["mean"] / largest if largest else 0.0
        length = round(min(1.0, max(0.0, share)) * (WIDTH - 2 * EDGE))
        top = EDGE + place * step
        bar = canvas[top : top + thickness, EDGE : EDGE + length]
        bar[:] = _colour(row["encoding"])


def _colour(encoding: str) -> np.ndarray:
    colour = colours()[tone_of(encoding)]
    return np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])
