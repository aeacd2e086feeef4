"""A model as a program in plain JSON, which a page runs by itself: `web/static/program.js`.

What differs between models and encodings is Python, and a page that knew architectures would need each of them twice.
So the page gets what `torch.export` makes of the forward: some hundred nodes of core ATen operators and the weights.
Three things are inputs of that graph: the tokens (or pixels), their places, and who may look at whom at each site, so
that a head is switched off, a link erased and a token moved without touching the graph.

    {"format", "inputs", "lengths", "constants", "nodes", "outputs", "parameters", "rounding", "sample"}

inputs: `{name, kind, of, dtype, shape}`. kind `ids` and `pixels` are what is read; `places` of a side, `(L,)`; `links`
of a site, `(H, Q, K)`, 1 where a query may look at a key. A size is a number or the name of a symbol, said by the ids.
lengths: of each side the least and the most tokens; null for no end. constants: blocks, parameters with 16 bits.
nodes: `[operator, arguments, dtype]`, in order; `{"value": n}` is a value: inputs are counted first, then constants,
then nodes. `{"number": "Infinity"}` is a number that JSON has no word for. outputs: of the scores and the weights.
rounding: what 16 bits do to the example. sample: the example as PyTorch computes it with the rounded parameters.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from jarilab.attention import call as definition
from jarilab.attention.call import AttentionCall
from jarilab.errors import UserError
from jarilab.export.blocks import block, halved
from jarilab.export.graph import Graph, sizes_of
from jarilab.inspect.calls import allowed_links
from jarilab.inspect.capture import record
from jarilab.inspect.model_io import scores_of
from jarilab.inspect.sites import attentions_of
from jarilab.patches import Images
from jarilab.positions import Positions, Tokens
from jarilab.shapes import Bool, Float, Tensor

FORMAT = "jari program 1"
LARGEST = 3_000_000
"""Parameters of a model that a page carries: 8 MB as text, and a second for an answer in JavaScript."""

Inputs = Sequence[Tokens | Images]


@torch.no_grad()
def program_of(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The program of a model, on an example of what it reads.

    inputs: what the model is called with, a batch of one: Tokens (the last of them is the target) or Images. Tokens at
    0, 1, 2, ... may be of any number afterwards; those with places of their own keep these, and so their number.

    Raises UserError, in words for the person who saves a page, where the model is too large, cannot be followed, or
    uses an operator that the page lacks.
    """
    _check_size(model)
    read = _read(inputs)
    rounded = copy.deepcopy(model).float().eval()
    stored = halved(rounded)
    sample, before = _forward(rounded, inputs), _forward(model, inputs)
    longer = [one.longer(place) for place, one in enumerate(read)]
    shapes = _links_of(rounded, [one.given for one in longer])
    exported = _exported(rounded, longer, shapes)
    names = _names(longer) + [("links", site) for site in shapes]
    graph = Graph(exported, stored)
    symbols = [sizes_of(value) for value in graph.inputs]
    described = zip(names, graph.inputs, symbols, strict=True)
    scores, *weights = graph.outputs
    return {
        "format": FORMAT,
        "inputs": [_input(*name, value, shape) for name, value, shape in described],
        "lengths": _lengths(model, exported, names, symbols),
        "constants": graph.constants,
        "nodes": graph.nodes,
        "outputs": {"scores": scores, "weights": dict(zip(shapes, weights, strict=True))},
        "parameters": _count(model),
        "rounding": _rounding(before, sample),
        "sample": _sample(read, sample),
    }


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _check_size(model: nn.Module) -> None:
    """Raises UserError for a model that is too large for a page."""
    count = _count(model)
    if count > LARGEST:
        raise UserError(
            f"a page carries models of {LARGEST:,} parameters at most, got {count:,}; look into this one live, with "
            "jarilab explore"
        )


# What is read --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Read:
    """One of the inputs, and the tensors that stand for it in the graph: ids and places, ids alone, or pixels."""

    name: str
    given: Tokens | Images

    @cached_property
    def counted(self) -> bool:
        """Whether these are tokens at 0, 1, 2, ..., of which there may be any number."""
        if isinstance(self.given, Images):
            return False
        there = self.given.positions
        plain = Positions.sequence(there.length, frame=there.frame)
        alike = [
            there.axes == plain.axes,
            there.unplaced is None and there.relations is None and there.extent is None,
            torch.equal(there.coordinates, plain.coordinates),
            torch.equal(there.order, plain.order),
        ]
        return all(alike)

    def tensors(self) -> list[Tensor]:
        if isinstance(self.given, Images):
            return [self.given.pixels]
        if self.counted:
            return [self.given.ids, self.given.positions.index()]
        return [self.given.ids]

    def again(self, tensors: Iterator[Tensor]) -> Tokens | Images:
        """The input that the next of these tensors stand for."""
        if isinstance(self.given, Images):
            return Images(next(tensors))
        ids_1L, positions = next(tensors), self.given.positions
        if self.counted:
            index_L = next(tensors)
            order_L = torch.arange(ids_1L.shape[1])
            positions = replace(positions, coordinates=index_L.unsqueeze(-1), order=order_L)
        return Tokens(ids_1L, positions)

    def longer(self, least: int) -> _Read:
        """With two tokens at least, and more: `torch.export` takes sizes of 0 and 1, and sizes that are alike, for
        granted."""
        if not self.counted or not isinstance(self.given, Tokens):
            return self
        ids_1L = self.given.ids
        missing = max(0, 2 + least - ids_1L.shape[1])
        more_1L = ids_1L[:, -1:].expand(1, missing)
        ids_1L = torch.cat((ids_1L, more_1L), 1)
        places = Positions.sequence(ids_1L.shape[1], frame=self.given.positions.frame)
        return _Read(self.name, Tokens(ids_1L, places))


def _read(inputs: Inputs) -> list[_Read]:
    """The inputs by name. Raises UserError for more than one row, and for padding."""
    read = []
    for place, given in enumerate(inputs):
        last = place == len(inputs) - 1
        if isinstance(given, Images):
            _check_one(len(given.pixels), given.keep)
            read.append(_Read("image", Images(given.pixels)))
            continue
        _check_one(len(given.ids), given.keep)
        read.append(_Read("target" if last else "source", Tokens(given.ids, given.positions)))
    return read


def _check_one(rows: int, keep: Tensor | None) -> None:
    if rows != 1 or (keep is not None and not bool(keep.all())):
        raise UserError(
            "a page runs one input at a time, without padding: expected a batch of one whole input"
        )


# Running it ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Ran:
    """scores: what was said at each place. weights: of each site."""

    scores: Float[Tensor, "L V"]
    weights: dict[str, Float[Tensor, "H Q K"]]


def _forward(model: nn.Module, inputs: Inputs) -> _Ran:
    """Raises UserError where a site ran several times, as in a recurrent decoder that goes step by step."""
    with record(model) as tape:
        outputs = model(*inputs)
    repeated = [site for site, calls in tape.calls.items() if len(calls) > 1]
    if repeated:
        raise UserError(
            f"{repeated[0]} runs step by step, and a page runs whole forwards; look into this model live, with jarilab "
            "explore"
        )
    weights = {site: tape.weights(site)[0].float() for site in tape.sites}
    return _Ran(scores_of(outputs)[0].float(), weights)


def _links_of(model: nn.Module, inputs: Inputs) -> dict[str, Bool[Tensor, "H Q K"]]:
    """For each site, that every query may look at every key."""
    ran = _forward(model, inputs)
    return {site: torch.ones_like(each, dtype=torch.bool) for site, each in ran.weights.items()}


class _Site:
    """Of one site: what is given and found while the forward goes by. No part of a module, which must not change."""

    links: Tensor
    weights: Tensor


class _Linked(nn.Module):
    """In the place of `Attend`: the definition, under links that are an input of the graph."""

    def __init__(self, site: _Site):
        super().__init__()
        self.site = site

    def forward(self, call: AttentionCall) -> Tensor:
        allowed = allowed_links(call) & self.site.links
        empty_BHQ1 = ~allowed.any(-1, keepdim=True)
        # As a ScoreTable has it: a row without any key is opened for the softmax, and 0 throughout.
        hidden = ~allowed & ~empty_BHQ1
        scores_BHQK = definition.scores(call).masked_fill(hidden, float("-inf"))
        weights_BHQK = scores_BHQK.softmax(-1).masked_fill(empty_BHQ1, 0.0)
        self.site.weights = weights_BHQK
        return definition.weighted(call, weights_BHQK)


class _Forward(nn.Module):
    """The model with tensors alone as inputs and outputs: what `torch.export` can follow."""

    def __init__(self, model: nn.Module, read: Sequence[_Read], names: Collection[str]):
        super().__init__()
        self.read = read
        self.sites = [_Site() for _ in names]
        placed = attentions_of(model)
        for name, site in zip(names, self.sites, strict=True):
            model.set_submodule(placed[name].path, _Linked(site))
        self.model = model

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """Those of what is read, then the links of each site; the scores, then the weights of each site."""
        rest = iter(tensors)
        inputs = [one.again(rest) for one in self.read]
        for site in self.sites:
            site.links = next(rest)
        scores_BLV = scores_of(self.model(*inputs))
        return [scores_BLV, *(site.weights for site in self.sites)]


def _exported(
    model: nn.Module, read: Sequence[_Read], links: Mapping[str, Tensor]
) -> ExportedProgram:
    """Raises UserError where the forward cannot be followed."""
    forward = _Forward(model, read, links)
    tensors = [tensor for one in read for tensor in one.tensors()]
    sizes = [_free(tensor, one.counted) for one in read for tensor in one.tensors()]
    counted = any(one.counted for one in read)
    sizes += [{1: Dim.AUTO, 2: Dim.AUTO} if counted else {} for _ in links]
    shapes = {"tensors": tuple(sizes)}
    given = *tensors, *links.values()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch's own parts that it will do without
            return torch.export.export(forward, given, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # of many classes, by what a forward does that cannot be followed
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"torch.export cannot follow {type(model).__name__}: {why}") from error


def _free(tensor: Tensor, counted: bool) -> dict[int, Any]:
    """Which axis is as long as there are tokens: the last, of ids `(1, L)` and places `(L,)`."""
    return {tensor.ndim - 1: Dim.AUTO} if counted else {}


# What is written -----------------------------------------------------------------------------------------------------


def _names(read: Sequence[_Read]) -> list[tuple[str, str]]:
    """Kind and whose, of each tensor that stands for what is read."""
    names = []
    for one in read:
        image = isinstance(one.given, Images)
        names.append(("pixels" if image else "ids", one.name))
        if one.counted:
            names.append(("places", one.name))
    return names


def _input(kind: str, of: str, value: Tensor, shape: list[int | str]) -> dict[str, Any]:
    name = of if kind in ("ids", "pixels") else f"{kind} of {of}"
    dtype = str(value.dtype).removeprefix("torch.")
    return {"name": name, "kind": kind, "of": of, "dtype": dtype, "shape": shape}


def _lengths(
    model: nn.Module,
    exported: ExportedProgram,
    names: Sequence[tuple[str, str]],
    shapes: Sequence[list[int | str]],
) -> dict[str, list[int | None]]:
    """The least and the most tokens of each side: what the model knows, and what was taken for granted on the way."""
    ends = getattr(model, "max_positions", dict)()
    found = {}
    for (kind, of), shape in zip(names, shapes, strict=True):
        if kind != "ids":
            continue
        size = shape[1]
        if isinstance(size, int):
            found[of] = [size, size]
            continue
        least, most = _range(exported, size)
        known = [end for end in (most, ends.get(of)) if end is not None]
        found[of] = [least, min(known, default=None)]
    return found


def _range(exported: ExportedProgram, symbol: str) -> tuple[int, int | None]:
    """What a symbol may be; None for no end."""
    ranges = {str(name): each for name, each in exported.range_constraints.items()}
    if symbol not in ranges:
        return 1, None
    lower, upper = int(ranges[symbol].lower), ranges[symbol].upper
    # `torch.export` says 2 of every size, since it takes 0 and 1 apart; what it does with 2 is right for 1.
    least = 1 if lower <= 2 else lower
    return least, int(upper) if upper.is_Integer and int(upper) < 2**31 else None


def _rounding(before: _Ran, after: _Ran) -> dict[str, float]:
    """The largest differences that 16 bits make to scores and weights of the example."""
    pairs = [(before.weights[site], each) for site, each in after.weights.items()]
    return {
        "scores": _largest(before.scores, after.scores),
        "weights": max((_largest(*pair) for pair in pairs), default=0.0),
    }


def _largest(x: Tensor, y: Tensor) -> float:
    return float((x - y).abs().max())


def _sample(read: Sequence[_Read], ran: _Ran) -> dict[str, Any]:
    """Inputs and outputs of one forward."""
    return {
        "inputs": {one.name: _written(one.given) for one in read},
        "scores": block(ran.scores, "float32"),
        "weights": {site: block(each, "uint16") for site, each in ran.weights.items()},
    }


def _written(given: Tokens | Images) -> list[int] | dict[str, Any]:
    return given.ids[0].tolist() if isinstance(given, Tokens) else block(given.pixels, "float32")
