"""What the page shows, as plain data: maps in 16-bit fixed point, numbers that prove them, tokens as text.

A block is `{"dtype", "shape", "data"}`: the bytes, little end first, in base64.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch.nn import functional

from jarilab._version import __version__
from jarilab.attention.call import AttentionCall
from jarilab.errors import UserError
from jarilab.inspect.capture import Tape
from jarilab.inspect.maps import Map, Scored, allowed_of
from jarilab.inspect.measures import MEASURES, measure
from jarilab.inspect.sites import AttentionSite
from jarilab.inspect.softmax_lens import divisors_of, softmax_lens
from jarilab.inspect.steps import Step
from jarilab.predictors.base import PatchedImage, TracedSequence
from jarilab.shapes import Float, Tensor

FORMAT = "jari explorer 1"
LARGEST = 512
"""Rows or columns of a map that is shown as it is; a larger one is pooled."""
LARGEST_IMAGE = 320
"""Pixels along a side of an image that is shown."""
MEASURED = 2**22
"""Weights of a site up to which it is measured: so many take a second or two, and in float64 some ten times their
memory."""
AT_ONCE = MEASURED
"""Weights that are measured at a time, of a model and the untrained one together."""


def _described(
    name: str, label: str, about: str, range: Sequence[int | float] | None
) -> dict[str, Any]:
    return {"name": name, "label": label, "about": about, "range": range}


MEASURED_BY = [
    *(_described(one.name, one.label, one.about, one.range) for one in MEASURES.values()),
    _described(
        "importance",
        "importance",
        "|<output, gradient of the loss>| of the head, each site's L2-normalised (Michel et al. 2019)",
        [0, 1],
    ),
    _described(
        "ablation",
        "loss without it",
        "how much the loss of this answer, in nats, really rises with the head off",
        None,
    ),
    _described(
        "induction_probe",
        "induction, probed",
        "on a random block read twice: the weight on what followed the last time (Olsson et al. 2022)",
        [0, 1],
    ),
]
"""What the measures are; the last ones take forwards of their own."""
HIDDEN = -3.4e38
"""What stands for minus infinity."""

Names = Mapping[str, Sequence[str]]
"""The tokens of each side, `source` and `target`."""

_WIDTHS = {"uint8": "<u1", "uint16": "<u2", "float32": "<f4"}


def block(values: Tensor | np.ndarray, dtype: str) -> dict[str, Any]:
    """Numbers as the page reads them; `uint16` is for numbers from 0 to 1."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    if dtype == "uint16":
        array = np.rint(array * 65535)
    if dtype == "float32":
        array = np.maximum(array, HIDDEN)
    packed = np.ascontiguousarray(array.astype(_WIDTHS[dtype]))
    return {
        "dtype": dtype,
        "shape": list(array.shape),
        "data": base64.b64encode(packed.tobytes()).decode("ascii"),
    }


def side_of(sequence: TracedSequence) -> dict[str, Any]:
    """One sequence of a trace: its tokens, the image that they are patches of, and their boxes."""
    side: dict[str, Any] = {"tokens": sequence.names}
    if sequence.image is not None:
        side["picture"] = _image(sequence.image)
    if sequence.boxes is not None:
        side["boxes"] = sequence.boxes
    return side


def _image(image: PatchedImage) -> dict[str, Any]:
    """Its pixels row by row, as the page draws them, and where the patches lie on them."""
    return {
        "pixels": block(_small(image.pixels).permute(1, 2, 0), "uint8"),
        "rows": image.rows,
        "columns": image.columns,
        "height": image.height,
        "width": image.width,
        "first": image.first,
        "pool": image.pool,
    }


def _small(pixels: UInt8[Tensor, "C H W"]) -> UInt8[Tensor, "C _ _"]:
    """At most `LARGEST_IMAGE` pixels along a side."""
    factor = max(pixels.shape[1:]) / LARGEST_IMAGE
    if factor <= 1:
        return pixels
    size = [max(1, round(side / factor)) for side in pixels.shape[1:]]
    batch = pixels.unsqueeze(0).float()
    smaller = functional.interpolate(batch, size, mode="bilinear", antialias=True)
    return smaller[0].round().clamp(0, 255).to(pixels.dtype)


def sites_of(tape: Tape, names: Names, untrained: Tape | None = None) -> list[dict[str, Any]]:
    """Every site of a forward of one input. untrained: the same input through the model as it was before training."""
    return [_site(tape, tape.site(name), names, untrained) for name in tape.sites]


def _site(tape: Tape, site: AttentionSite, names: Names, untrained: Tape | None) -> dict[str, Any]:
    name = site.name
    shown = _map(tape, site, names) if measurable(tape, name) else None
    if shown is not None:
        weights_HQK, factor = pooled(shown.weights)
        allowed_QK = shown.allowed
    else:
        weights_HQK, factor = _pooled_in_pieces(tape, name)
        allowed_QK = allowed_of(tape, name)
    if factor > 1:
        allowed_QK = pooled(allowed_QK.double().unsqueeze(0))[0][0] > 0
    measures = {}
    if shown is not None:
        measures = measures_of(shown, untrained and _map(untrained, site, names))
    return {
        "site": name,
        "kind": site.kind,
        "layer": site.layer,
        "heads": len(weights_HQK),
        "queries": site.queries,
        "keys": site.keys,
        "head_width": tape.calls[name][0].call.v.shape[-1],
        "shape": list(weights_HQK.shape[1:]),
        "pooled": factor,
        "weights": block(weights_HQK, "uint16"),
        "hidden": None if bool(allowed_QK.all()) else block(~allowed_QK, "uint8"),
        "trust": asdict(tape.trust(name)),
        "measures": measures,
        "details": {},
    }


def measurable(tape: Tape, site: str) -> bool:
    """Whether a map is small enough to be measured, and to be held whole."""
    return math.prod(_size(tape, site)) <= MEASURED


def _size(tape: Tape, site: str) -> tuple[int, int, int]:
    calls = [recorded.call for recorded in tape.calls[site]]
    return calls[0].k.shape[1], sum(call.q.shape[2] for call in calls), calls[0].k.shape[2]


def _map(tape: Tape, site: AttentionSite, names: Names) -> Map:
    return Map.of(tape, site.name, names[site.queries], names[site.keys])


def measures_of(shown: Map, untrained: Map | None) -> dict[str, Any]:
    """Each measure of every head, beside what chance and the untrained model have; those that mean something here."""
    heads, both = len(shown.weights), [shown] if untrained is None else [shown, untrained]
    parts = _measured(both)
    found = {}
    for name in MEASURES:
        value = _numbers(torch.cat([part[name].value for part in parts]))
        chance = _numbers(torch.cat([part[name].chance for part in parts]))
        if any(one is not None for one in value):
            found[name] = {
                "value": value[:heads],
                "chance": chance[:heads],
                "untrained": value[heads:] or None,
            }
    return found


def _measured(maps: Sequence[Map]) -> list[dict[str, Scored]]:
    """The measures of the heads of all maps, one after the other: what is measured does not mix heads."""
    weights = torch.cat([map.weights for map in maps])
    scores = torch.cat([map.scores for map in maps])
    some = max(1, AT_ONCE // max(1, weights[0].numel()))
    pieces = zip(weights.split(some), scores.split(some), strict=True)
    return [measure(replace(maps[0], weights=of_w, scores=of_s)) for of_w, of_s in pieces]


def _numbers(values: Float[Tensor, " H"]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def pooled(maps_HQK: Float[Tensor, "H Q K"]) -> tuple[Float[Tensor, "H R C"], int]:
    """The largest weight of each square of cells, so that no side has more than `LARGEST`, and how wide a square is."""
    factor = -(-max(maps_HQK.shape[1:]) // LARGEST)
    if factor == 1:
        return maps_HQK, 1
    return functional.max_pool2d(maps_HQK.unsqueeze(0), factor, ceil_mode=True)[0], factor


def _pooled_in_pieces(tape: Tape, site: str) -> tuple[Float[Tensor, "H R C"], int]:
    """The same for a map that is never held whole."""
    factor = -(-max(_size(tape, site)[1:]) // LARGEST)
    pieces = []
    for piece_BHRK in tape.pieces(site):
        across = functional.max_pool2d(piece_BHRK, (1, factor), ceil_mode=True)
        pieces.append(across.cpu())
    down = functional.max_pool2d(torch.cat(pieces, 2), (factor, 1), ceil_mode=True)
    return down[0].double(), factor


def outputs_of(
    scores_LV: Float[Tensor, "L V"],
    written: Sequence[int],
    show: Callable[[Sequence[int]], list[str]],
    best: int = 5,
) -> list[dict[str, Any]]:
    """What was written after each token of the target, and what was likeliest. show: names of tokens by number."""
    top = scores_LV.softmax(-1).topk(min(best, scores_LV.shape[-1]))
    found = []
    for token, numbers, likely in zip(show(written), top.indices, top.values, strict=True):
        best_tokens = zip(show(numbers.tolist()), likely.tolist(), strict=True)
        found.append({"token": token, "top": [list(pair) for pair in best_tokens]})
    return found


def page_of(
    views: Sequence[dict[str, Any]], *, live: bool, site: str, head: int = 0
) -> dict[str, Any]:
    """The whole payload. site, head: what the page opens at."""
    used = {name for view in views for site in view["sites"] for name in site["measures"]}
    return {
        "format": FORMAT,
        "jari": __version__,
        "live": live,
        "language": None,
        "views": list(views),
        "measures": [row for row in MEASURED_BY if row["name"] in used],
        "site": site,
        "head": head,
    }


def scores_of(tape: Tape, site: str, head: int) -> dict[str, Any]:
    """The scores of a head and what they are made of: `products * scale + bias`."""
    parts = tape.summands(site, head)
    scores_QK, scale = parts.scores, parts.scale
    # What the page multiplies and adds up again must be the scores, so that it is taken from them.
    scaled_QK = scores_QK if parts.bias is None else scores_QK - parts.bias
    return {
        "scores": block(scores_QK, "float32"),
        "products": block(scaled_QK / scale, "float32"),
        "bias": None if parts.bias is None else block(parts.bias, "float32"),
        "scale": scale,
    }


def lens_of(call: AttentionCall, head: int) -> dict[str, Any] | None:
    """What other divisors would make of the softmax; None where every query may look at one key only."""
    try:
        rows = softmax_lens(call, head, divisors_of(call.q.shape[-1]))
    except UserError:
        return None
    apart = [abs(row.divisor * call.scale - 1) for row in rows]
    own = apart.index(min(apart))
    columns = ("entropy", "largest", "trace", "jacobian", "gradient")
    lens = {name: [getattr(row, name) for row in rows] for name in columns}
    return {"divisors": [row.divisor for row in rows], "own": own, **lens}


def step_of(step: Step, whole: int = 64) -> dict[str, Any]:
    """One matrix of a walk. Of a parameter, the first `whole` rows and columns: a vocabulary has thousands."""
    matrix = step.matrix
    if step.side == "parameter":
        matrix = matrix[:whole, :whole]
    columns = "components"
    if step.columns is not None:
        columns = "tokens" if step.name == "likeliest next tokens" else "keys"
    return {
        "name": step.name,
        "formula": step.formula,
        "rows": step.side,
        "columns": columns,
        "row_names": list(step.rows[: len(matrix)]),
        "column_names": None if step.columns is None else list(step.columns),
        "of": list(step.matrix.shape),
        "matrix": block(matrix.float(), "float32"),
        "equal": step.equal,
    }
