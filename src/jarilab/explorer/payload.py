"""The payload of a page: maps in 16-bit fixed point, their reconstruction errors, tokens as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch.nn import functional

from jarilab._version import __version__
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.inspect.measure.heads import SALIENT_MEASURES, measure
from jarilab.inspect.measure.maps import Map, Scored, allowed_of, named_site
from jarilab.inspect.measure.measures import MEASURES
from jarilab.inspect.measure.words import WordGroups, merge_words, merged_in_chunks
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.sites import AttentionSite
from jarilab.inspect.record.trust import LIMITS
from jarilab.pages.kit.data_blocks import block, unpacked
from jarilab.pages.kit.image_data import picture_of
from jarilab.pages.kit.tones import tones_of
from jarilab.tasks.predictors.base import TracedSequence

FORMAT = "jari explorer 1"
MAX_CELLS = 512
"""Rows or columns of a map; a larger one is pooled."""
MAX_WEIGHTS = 2_500_000
"""Weights of one model in a file, 6.8 MB; the maps of more are pooled."""
MAX_MEASURED = 2**22
"""Weights of a site up to which it is measured, in a second or two. In float64 it takes ten times the memory."""
CHUNK = MAX_MEASURED
"""Weights that are measured at a time, of the trained and the untrained model together."""


def _described(
    name: str, label: str, about: str, range: Sequence[int | float] | None
) -> dict[str, Any]:
    return {"name": name, "label": label, "about": about, "range": range}


FURTHER = [
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
"""Measures that need forwards of their own, in addition to `MEASURES`."""
HIDDEN = -3.4e38
"""Replaces minus infinity, which JSON lacks: almost the lowest float32."""

Names = Mapping[str, Sequence[str]]
"""The tokens of each side, `source` and `target`; see `names_of_sides`."""


def numbers(values: Tensor) -> dict[str, Any]:
    """A block of numbers, at least `HIDDEN`."""
    return block(values.clamp(min=HIDDEN), "float32")


def side_of(sequence: TracedSequence) -> dict[str, Any]:
    """A sequence of a trace: its tokens, the image of its patches, and their boxes."""
    side: dict[str, Any] = {"tokens": sequence.names}
    if sequence.image is not None:
        side["picture"] = picture_of(sequence.image)
    if sequence.boxes is not None:
        side["boxes"] = sequence.boxes
    return side


def sites_of(
    tape: Tape,
    names: Names,
    untrained: Tape | None = None,
    words: Mapping[str, WordGroups] | None = None,
) -> list[dict[str, Any]]:
    """The sites of a forward of one input.

    untrained: the same input through the model before training. words: of each sequence, whose tokens are merged.
    """
    sites = [named_site(tape, name, names) for name in tape.sites]
    return [_site(tape, site, names, untrained, words) for site in sites]


def _site(
    tape: Tape,
    site: AttentionSite,
    names: Names,
    untrained: Tape | None,
    words: Mapping[str, WordGroups] | None,
) -> dict[str, Any]:
    name = site.name
    measures = {}
    if measurable(tape, name):
        shown = _map(tape, site, names)
        if words is not None:
            shown = merge_words(shown, words[site.queries], words[site.keys])
        weights_HQK, factor = pooled(shown.weights)
        allowed_QK = shown.allowed
        before = None if untrained is None else _map(untrained, site, names)
        measures = measures_of(shown, before)
    elif words is not None:
        merged, allowed_QK = merged_in_chunks(tape, name, words[site.queries], words[site.keys])
        weights_HQK, factor = pooled(merged)
    else:
        weights_HQK, factor = pooled_in_chunks(tape, name)
        allowed_QK = allowed_of(tape, name)
    hidden = hidden_of(allowed_QK, factor)
    return {
        "site": name,
        "kind": site.kind,
        "layer": site.layer,
        "short": site.short,
        "path": site.path,
        "note": site.note,
        "placed": site.placed,
        "partial": tape.partial.get(name, ""),
        "heads": len(weights_HQK),
        "queries": site.queries,
        "keys": site.keys,
        "d_head": tape.calls[name][0].call.v.shape[-1],
        **_drawn(weights_HQK),
        "pooled": factor,
        "hidden": hidden,
        "trust": asdict(tape.trust(name)),
        "measures": measures,
        "details": {},
    }


def fitted(view: Mapping[str, Any]) -> Mapping[str, Any]:
    """A view for a file, with all maps pooled alike if it has more than `MAX_WEIGHTS` weights."""
    weights = sum(site["heads"] * math.prod(site["shape"]) for site in view["sites"])
    factor = math.ceil(math.sqrt(weights / MAX_WEIGHTS))
    # Pooled maps cannot be drawn over the patches of an image.
    if factor <= 1 or any("picture" in side for side in view["sides"].values()):
        return view
    return {
        **view,
        "sites": [_pooled_site(site, factor) for site in view["sites"]],
        "rollout": None,
    }


def _pooled_site(site: Mapping[str, Any], factor: int) -> dict[str, Any]:
    weights_1HQK = torch.from_numpy(unpacked(site["weights"]))[None]
    weights_HRC = functional.max_pool2d(weights_1HQK, factor, ceil_mode=True)[0]
    hidden = site["hidden"]
    if hidden is not None:
        hidden = hidden_of(torch.from_numpy(unpacked(hidden) == 0), factor)
    return {**site, **_drawn(weights_HRC), "hidden": hidden, "pooled": site["pooled"] * factor}


def hidden_of(allowed_QK: Bool[Tensor, "Q K"], factor: int) -> dict[str, Any] | None:
    """The block of cells that no query may attend to; None if there is none. factor: by which maps are pooled."""
    if factor > 1:
        pooled_1RC = functional.max_pool2d(allowed_QK.double()[None], factor, ceil_mode=True)
        allowed_QK = pooled_1RC[0] > 0
    return None if bool(allowed_QK.all()) else block(~allowed_QK, "uint8")


def changed_sites(tape: Tape, before: Tape) -> list[dict[str, Any]]:
    """The maps that edits changed, and their proofs. before: the forward without edits."""
    return [_weights_of(tape, site) for site in tape.sites if not _is_same(tape, before, site)]


def _is_same(tape: Tape, before: Tape, site: str) -> bool:
    """Whether a site has the maps and outputs of another tape, bit by bit."""
    if site not in before.calls or not measurable(tape, site):
        return False
    pairs = zip(tape.calls[site], before.calls[site], strict=True)
    is_same = all(torch.equal(recorded.output, other.output) for recorded, other in pairs)
    return is_same and torch.equal(tape.weights(site), before.weights(site))


def _weights_of(tape: Tape, site: str) -> dict[str, Any]:
    weights_HQK, _ = (
        pooled(tape.weights(site)[0].double().cpu())
        if measurable(tape, site)
        else pooled_in_chunks(tape, site)
    )
    return {"site": site, **_drawn(weights_HQK), "trust": asdict(tape.trust(site))}


def _drawn(weights_HQK: Float[Tensor, "H R C"]) -> dict[str, Any]:
    return {"shape": list(weights_HQK.shape[1:]), "weights": block(weights_HQK, "uint16")}


def measurable(tape: Tape, site: str) -> bool:
    """Whether a map is small enough to be measured and to be held in memory."""
    return math.prod(_size(tape, site)) <= MAX_MEASURED


def _size(tape: Tape, site: str) -> tuple[int, int, int]:
    """Heads, queries and keys."""
    calls = [recorded.call for recorded in tape.calls[site]]
    _, heads, keys, _ = calls[0].k.shape
    queries = sum(call.q.shape[2] for call in calls)
    return heads, queries, keys


def _map(tape: Tape, site: AttentionSite, names: Names) -> Map:
    queries = names[site.queries]
    keys = names[site.keys]
    return Map.of(tape, site.name, queries, keys)


def measures_of(shown: Map, untrained: Map | None) -> dict[str, Any]:
    """The measures by name: `value`, `chance` and `untrained`, a number for each head, None if undetermined."""
    heads = len(shown.weights)
    maps = [shown] if untrained is None else [shown, untrained]
    parts = _measured(maps)
    measures = {}
    for name in MEASURES:
        scored = [part[name] for part in parts]
        value = _numbers([score.value for score in scored])
        chance = _numbers([score.chance for score in scored])
        if any(number is not None for number in value):
            measures[name] = {
                "value": value[:heads],
                "chance": chance[:heads],
                "untrained": value[heads:] or None,
            }
    return measures


def _measured(maps: Sequence[Map]) -> list[dict[str, Scored]]:
    """The measures of the heads of all maps, in chunks of heads."""
    weights = torch.cat([map.weights for map in maps])
    scores = torch.cat([map.scores for map in maps])
    of_head = max(1, weights[0].numel())
    heads = max(1, CHUNK // of_head)
    chunks = zip(weights.split(heads), scores.split(heads), strict=True)
    measured = []
    for weights_HQK, scores_HQK in chunks:
        measured.append(measure(replace(maps[0], weights=weights_HQK, scores=scores_HQK)))
    return measured


def _numbers(pieces: list[Float[Tensor, " _"]]) -> list[float | None]:
    values = torch.cat(pieces).tolist()
    return [value if math.isfinite(value) else None for value in values]


def pooled(maps_HQK: Float[Tensor, "H Q K"]) -> tuple[Float[Tensor, "H R C"], int]:
    """The largest weight of each square of cells, at most `MAX_CELLS` a side, and the width of a square."""
    factor = _factor(maps_HQK.shape[1:])
    if factor == 1:
        return maps_HQK, 1
    maps_1HQK = maps_HQK.unsqueeze(0)
    pooled_1HRC = functional.max_pool2d(maps_1HQK, factor, ceil_mode=True)
    return pooled_1HRC[0], factor


def _factor(sides: Sequence[int]) -> int:
    """How many rows or columns become one."""
    return math.ceil(max(sides) / MAX_CELLS)


def pooled_in_chunks(
    tape: Tape, site: str, cells: int = MAX_CELLS
) -> tuple[Float[Tensor, "H R C"], int]:
    """As `pooled`, for a map that is never held in memory."""
    _, queries, keys = _size(tape, site)
    factor = math.ceil(max(queries, keys) / cells)
    chunks = []
    for chunk_BHRK in tape.weights_in_chunks(site):
        across = functional.max_pool2d(chunk_BHRK, (1, factor), ceil_mode=True)
        chunks.append(across.cpu())
    merged = torch.cat(chunks, 2)
    down = functional.max_pool2d(merged, (factor, 1), ceil_mode=True)
    return down[0].double(), factor


def outputs_of(
    scores_LV: Float[Tensor, "L V"],
    written: Sequence[str],
    show: Callable[[Sequence[int]], list[str]],
    best: int = 5,
) -> list[dict[str, Any]]:
    """The token after each token of the target, and the likeliest ones. show: names of tokens by ID."""
    count = min(best, scores_LV.shape[-1])
    top = scores_LV.softmax(-1).topk(count)
    rows = zip(written, top.indices.tolist(), top.values.tolist(), strict=True)
    outputs = []
    for token, ids, shares in rows:
        # One by one: these tokens are alternatives, not a text.
        likely = [[*show([each]), share] for each, share in zip(ids, shares, strict=True)]
        outputs.append({"token": token, "top": likely})
    return outputs


def page_of(
    views: Sequence[dict[str, Any]], *, live: bool, initial: Mapping[str, Any]
) -> dict[str, Any]:
    """The payload of a page. initial: the head and cell at which it opens, see `initial_view`."""
    described = [
        _described(name, one.label, one.about, one.range) for name, one in MEASURES.items()
    ]
    used: set[str] = set()
    for view in views:
        for site_of_view in view["sites"]:
            used |= site_of_view["measures"].keys()
    return {
        "format": FORMAT,
        "jari": __version__,
        "live": live,
        "language": None,
        "views": list(views),
        "measures": [row for row in [*described, *FURTHER] if row["name"] in used],
        "salient_measures": list(SALIENT_MEASURES),
        "trust_limits": LIMITS,
        "tones": tones_of((view["name"], view["encoding"] or "") for view in views),
        **initial,
    }
