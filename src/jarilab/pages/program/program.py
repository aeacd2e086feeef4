"""A model as a program in plain JSON, which a page runs by itself: `pages/kit/static/program.js`.

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
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.pages.kit.blocks import block
from jarilab.pages.program.graph import Graph, sizes_of, values_of
from jarilab.pages.program.inputs import Inputs, Read, read_of
from jarilab.pages.program.tracing import Ran, exported, links_of, ran
from jarilab.positions.coordinates import Tokens
from jarilab.positions.patches import Images

FORMAT = "jari program 1"
LARGEST = 3_000_000
"""Parameters of a model that a page carries: 8 MB as text, and a second for an answer in JavaScript."""


@torch.no_grad()
def program_of(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The program of a model, on an example of what it reads.

    inputs: what the model is called with, a batch of one: Tokens (the last of them is the target) or Images. Tokens at
    0, 1, 2, ... may be of any number afterwards; those with places of their own keep these, and so their number.

    Raises UserError, in words for the person who saves a page, where the model is too large, cannot be followed, or
    uses an operator that the page lacks.
    """
    _check_size(model)
    rounded = copy.deepcopy(model).float().eval()
    stored = halved(rounded)
    before = ran(model, inputs)
    followed = Followed(rounded, inputs)
    graph = Graph(followed.exported, stored)
    scores, *weights = graph.outputs
    outputs = {"scores": scores, "weights": dict(zip(followed.sites, weights, strict=True))}
    return {
        "format": FORMAT,
        **followed.described,
        "constants": graph.constants,
        "nodes": graph.nodes,
        "outputs": outputs,
        "rounding": _rounding(before, followed.sample),
    }


class Followed:
    """A forward as a graph of tensors, and what is said of it whoever computes it.

    sites: of attention, whose links the graph reads and whose weights it gives. sample: what the model says of the
    inputs. described: `inputs`, `lengths`, `parameters` and `sample` of a program.
    """

    def __init__(self, model: nn.Module, inputs: Inputs):
        """model: in evaluation mode, and changed by this. Raises UserError where it cannot be followed."""
        read = read_of(inputs)
        self.sample = ran(model, inputs)
        longer = [one.longer(place) for place, one in enumerate(read)]
        links = links_of(model, [one.given for one in longer])
        self.sites = list(links)
        count, ends = _count(model), getattr(model, "max_positions", dict)()
        self.exported = exported(model, longer, links)
        names = _names(longer) + [("links", site) for site in links]
        values = values_of(self.exported)
        symbols = [sizes_of(value) for value in values]
        described = zip(names, values, symbols, strict=True)
        self.described: dict[str, Any] = {
            "inputs": [_input(*name, value, shape) for name, value, shape in described],
            "lengths": _lengths(ends, self.exported, names, symbols),
            "parameters": count,
            "sample": _sample(read, self.sample),
        }


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _check_size(model: nn.Module) -> None:
    """Raises UserError for a model that is too large for a page."""
    count = _count(model)
    if count > LARGEST:
        raise UserError(
            f"a page carries models of {LARGEST:,} parameters at most, got {count:,}; save a folder, with --save "
            "page/, or look into this one live, with jarilab explore"
        )


def _names(read: Sequence[Read]) -> list[tuple[str, str]]:
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
    ends: Mapping[str, int | None],
    followed: ExportedProgram,
    names: Sequence[tuple[str, str]],
    shapes: Sequence[list[int | str]],
) -> dict[str, list[int | None]]:
    """The least and the most tokens of each side: what the model knows (`ends`), and what was taken for granted
    on the way."""
    found = {}
    for (kind, of), shape in zip(names, shapes, strict=True):
        if kind != "ids":
            continue
        size = shape[1]
        if isinstance(size, int):
            found[of] = [size, size]
            continue
        least, most = _range(followed, size)
        known = [end for end in (most, ends.get(of)) if end is not None]
        found[of] = [least, min(known, default=None)]
    return found


def _range(followed: ExportedProgram, symbol: str) -> tuple[int, int | None]:
    """What a symbol may be; None for no end."""
    ranges = {str(name): each for name, each in followed.range_constraints.items()}
    if symbol not in ranges:
        return 1, None
    lower, upper = int(ranges[symbol].lower), ranges[symbol].upper
    # `torch.export` says 2 of every size, since it takes 0 and 1 apart; what it does with 2 is right for 1.
    least = 1 if lower <= 2 else lower
    return least, int(upper) if upper.is_Integer and int(upper) < 2**31 else None


def _rounding(before: Ran, after: Ran) -> dict[str, float]:
    """The largest differences that 16 bits make to scores and weights of the example."""
    pairs = [(before.weights[site], each) for site, each in after.weights.items()]
    return {
        "scores": _largest(before.scores, after.scores),
        "weights": max((_largest(*pair) for pair in pairs), default=0.0),
    }


def _largest(x: Tensor, y: Tensor) -> float:
    return float((x - y).abs().max())


def _sample(read: Sequence[Read], ran: Ran) -> dict[str, Any]:
    """Inputs and outputs of one forward."""
    return {
        "inputs": {one.name: _written(one.given) for one in read},
        "scores": block(ran.scores, "float32"),
        "weights": {site: block(each, "uint16") for site, each in ran.weights.items()},
    }


def _written(given: Tokens | Images) -> list[int] | dict[str, Any]:
    return given.ids[0].tolist() if isinstance(given, Tokens) else block(given.pixels, "float32")


HALVES = (torch.float16, torch.bfloat16)


@torch.no_grad()
def halved(model: nn.Module) -> dict[str, str]:
    """Round the parameters of a model, in place, to 16 bits, and say by name to which: float16 or bfloat16, whichever
    is nearer. They stay float32."""
    stored = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        rounded = [parameter.to(dtype).float() for dtype in HALVES]
        errors = [
            float((parameter - each).abs().max()) if each.numel() else 0.0 for each in rounded
        ]
        nearer = int(not errors[0] <= errors[1])
        parameter.copy_(rounded[nearer])
        stored[name] = str(HALVES[nearer]).removeprefix("torch.")
    return stored
