"""Export of a model as a program in JSON, which `pages/kit/static/program.js` runs in a page.

`torch.export` turns the forward into a graph of core ATen operators, so that the page needs no code for architectures.
The inputs of the graph are the token IDs (or pixels), their positions, and a mask for each attention site. So a page
can switch a head off, erase a link and move a token without changing the graph.

    {"format", "inputs", "lengths", "constants", "nodes", "outputs", "parameters", "rounding", "sample"}

inputs: `{name, kind, of, dtype, shape}`. Kinds are `ids`, `pixels`, `places` of a side, `(L,)`, and `links` of a site,
`(H, Q, K)`, which are 1 if a query may attend to a key. A size is a number or the name of a symbol. lengths: the least
and the most tokens of each side; null without a limit. constants: blocks; parameters have 16 bits. nodes: `[operator,
arguments, dtype]`, in order. `{"value": n}` is a value: inputs are counted first, then constants, then nodes.
`{"number": "Infinity"}` is a number that JSON lacks. outputs: scores and weights. rounding: the error of 16 bits on the
example. sample: the outputs of PyTorch on the example, with rounded parameters.
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
from jarilab.pages.kit.data_blocks import block
from jarilab.pages.program.graph import Graph, sizes_of, values_of
from jarilab.pages.program.inputs import FixedInput, Inputs, Read, read_of
from jarilab.pages.program.tracing import Ran, exported, exported_fixed, links_of, ran
from jarilab.positions.coordinates import Tokens
from jarilab.positions.patches import Images

FORMAT = "jari program 1"
LARGEST = 3_000_000
"""Parameters of a model in a page: 8 MB of text, and about a second for an answer."""


@torch.no_grad()
def program_of(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The program of a model, exported on an example.

    inputs: the model's arguments, a batch of one: Tokens (the last is the target) or Images. Tokens at positions 0, 1,
    2, ... may have any length afterwards. Tokens at other positions keep their positions and length. A `FixedInput`
    is part of the program, which reads masks alone.

    Raises UserError for a model that is too large, cannot be exported, or uses an operator that the page lacks.
    """
    _check_size(model)
    rounded = copy.deepcopy(model).float().eval()
    stored = halved(rounded)
    before = ran(model, inputs)
    followed = Followed(rounded, inputs)
    graph = Graph(followed.exported, stored, is_fixed=isinstance(inputs, FixedInput))
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
    """An exported forward and its description, which does not depend on the format.

    sites: attention sites, whose masks the graph reads and whose weights it returns. sample: the outputs on the
    example. described: `inputs`, `lengths`, `parameters` and `sample` of a program, and `padded`,
    the length of ids that may be shorter, and the axes of weights that have it.
    """

    def __init__(self, model: nn.Module, inputs: Inputs):
        """model: in evaluation mode; it is modified. Raises UserError if it cannot be exported."""
        self.sample = ran(model, inputs)
        count, ends = _count(model), getattr(model, "max_positions", dict)()
        padding: dict[str, Any] = {}
        names: list[tuple[str, str]] = []
        sample: dict[str, Any] = {}
        if isinstance(inputs, FixedInput):
            longest = inputs.longest()
            links = links_of(model, longest)
            self.exported = exported_fixed(model, longest, links)
            for ids_1L in inputs.ids:
                names, sample["target"] = [("ids", "target")], ids_1L[0].tolist()
            padding = _padding(inputs, self.sample, links)
        else:
            read = read_of(inputs)
            # By place: two inputs of one length would get one symbol for their sizes.
            longer = [one.longer(place) for place, one in enumerate(read)]
            links = links_of(model, [entry.value for entry in longer])
            self.exported = exported(model, longer, links)
            names = _names(longer)
            sample = {one.name: _written(one.value) for one in read}
        self.sites = list(links)
        names += [("links", site) for site in links]
        values = values_of(self.exported)
        symbols = [sizes_of(value) for value in values]
        described = zip(names, values, symbols, strict=True)
        self.described: dict[str, Any] = {
            "inputs": [_input(*name, value, shape) for name, value, shape in described],
            "lengths": _lengths(ends, self.exported, names, symbols),
            "parameters": count,
            "sample": {"inputs": sample, **_outputs(self.sample)},
            **padding,
        }


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


class ModelSizeError(UserError):
    """A model of too many parameters for a page. korean: the message on a Korean page."""

    def __init__(self, count: int):
        super().__init__(
            f"a page carries models of {LARGEST:,} parameters at most, got {count:,}; save a folder, with --save "
            "page/, or look into this one live, with jarilab explore"
        )
        self.korean = (
            f"페이지에는 파라미터 {LARGEST:,}개까지의 모델만 담기는데, 이 모델은 {count:,}개입니다. --save page/ 로 "
            "폴더에 저장하거나 jarilab explore로 직접 여세요"
        )


def why_not(error: UserError) -> tuple[str, str]:
    """Why a page has no program, in English and Korean; what PyTorch says is English in both."""
    return str(error), getattr(error, "korean", str(error))


def _check_size(model: nn.Module) -> None:
    """Raises UserError for a model that is too large for a page."""
    count = _count(model)
    if count > LARGEST:
        raise ModelSizeError(count)


def _names(read: Sequence[Read]) -> list[tuple[str, str]]:
    """The kind and the side of each input tensor."""
    names = []
    for one in read:
        image = isinstance(one.value, Images)
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
    """The least and the most tokens of each side, by the model's limits (`ends`) and the exported constraints."""
    lengths = {}
    for (kind, of), shape in zip(names, shapes, strict=True):
        if kind != "ids":
            continue
        size = shape[1]
        if isinstance(size, int):
            lengths[of] = [size, size]
            continue
        least, most = _range(followed, size)
        limits = [end for end in (most, ends.get(of)) if end is not None]
        lengths[of] = [least, min(limits, default=None)]
    return lengths


def _range(followed: ExportedProgram, symbol: str) -> tuple[int, int | None]:
    """The range of a symbol; None without an upper limit."""
    ranges = {str(name): each for name, each in followed.range_constraints.items()}
    if symbol not in ranges:
        return 1, None
    lower, upper = int(ranges[symbol].lower), ranges[symbol].upper
    # torch.export gives 2 as the least size, since it specializes on 0 and 1. Its graph is right for 1, too.
    least = 1 if lower <= 2 else lower
    return least, int(upper) if upper.is_Integer and int(upper) < 2**31 else None


def _rounding(before: Ran, after: Ran) -> dict[str, float]:
    """The largest errors of scores and weights from 16-bit parameters."""
    pairs = [(before.weights[site], each) for site, each in after.weights.items()]
    return {
        "scores": _largest(before.scores, after.scores),
        "weights": max((_largest(*pair) for pair in pairs), default=0.0),
    }


def _largest(x: Tensor, y: Tensor) -> float:
    return float((x - y).abs().max())


def _padding(inputs: FixedInput, ran: Ran, links: Mapping[str, Tensor]) -> dict[str, Any]:
    """The axes that have the length of padded ids, in the weights of each site; nothing without such ids."""
    if inputs.padded is None:
        return {}
    axes = {}
    for site, weights in ran.weights.items():
        sizes = zip(weights.shape, links[site].shape, strict=True)
        axes[site] = [axis for axis, (shorter, longer) in enumerate(sizes) if shorter != longer]
    return {"padded": {"length": inputs.padded.length, "axes": axes}}


def _outputs(ran: Ran) -> dict[str, Any]:
    """The outputs of one forward."""
    return {
        "scores": block(ran.scores, "float32"),
        "weights": {site: block(each, "uint16") for site, each in ran.weights.items()},
    }


def _written(value: Tokens | Images) -> list[int] | dict[str, Any]:
    return value.ids[0].tolist() if isinstance(value, Tokens) else block(value.pixels, "float32")


HALVES = (torch.float16, torch.bfloat16)


@torch.no_grad()
def halved(model: nn.Module) -> dict[str, str]:
    """Round the parameters of a model in place to float16 or bfloat16, whichever is nearer.

    Returns the type of each parameter by name. The parameters stay float32.
    """
    # float16 has more digits, bfloat16 the range of float32.
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
