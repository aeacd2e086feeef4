"""A forward as `torch.export` follows it: tensors in and out, with the links of each site among them."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.inspect.record.calls import allowed_links
from jarilab.inspect.record.capture import record
from jarilab.inspect.record.model_io import scores_of
from jarilab.inspect.record.sites import attentions_of
from jarilab.pages.program.inputs import Inputs, Read


@dataclass(frozen=True, eq=False)
class Ran:
    """scores: what was said at each place. weights: of each site."""

    scores: Float[Tensor, "L V"]
    weights: dict[str, Float[Tensor, "H Q K"]]


def ran(model: nn.Module, inputs: Inputs) -> Ran:
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
    return Ran(scores_of(outputs)[0].float(), weights)


def links_of(model: nn.Module, inputs: Inputs) -> dict[str, Bool[Tensor, "H Q K"]]:
    """For each site, that every query may look at every key."""
    found = ran(model, inputs).weights
    return {site: torch.ones_like(each, dtype=torch.bool) for site, each in found.items()}


class _Site:
    """Of one site: what is given and found while the forward goes by. No part of a module, which must not change."""

    links: Tensor
    weights: Tensor


class _Linked(nn.Module):
    """In the place of `AttentionKernel`: the definition, under links that are an input of the graph."""

    kernel = "definition"

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


class Forward(nn.Module):
    """The model with tensors alone as inputs and outputs: what `torch.export` can follow."""

    def __init__(self, model: nn.Module, read: Sequence[Read], names: Collection[str]):
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


def exported(
    model: nn.Module, read: Sequence[Read], links: Mapping[str, Tensor]
) -> ExportedProgram:
    """Raises UserError where the forward cannot be followed."""
    forward = Forward(model, read, links)
    tensors = [tensor for one in read for tensor in one.tensors()]
    sizes = [_free(tensor, one.counted) for one in read for tensor in one.tensors()]
    counted = any(one.counted for one in read)
    sizes += [{1: Dim.AUTO, 2: Dim.AUTO} if counted else {} for _ in links]
    shapes = {"tensors": tuple(sizes)}
    given = *tensors, *links.values()
    return followed(forward, given, shapes, type(model).__name__)


def followed(
    module: nn.Module, given: tuple[Tensor, ...], sizes: dict[str, Any], name: str
) -> ExportedProgram:
    """What `torch.export` makes of a module. sizes: which axes are free, of each argument of its forward. Raises
    UserError where it cannot be followed, calling it by its name."""
    try:
        with quiet():
            return torch.export.export(module, given, dynamic_shapes=sizes, strict=False)
    except Exception as error:  # of many classes, by what a forward does that cannot be followed
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"torch.export cannot follow {name}: {why}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """PyTorch says what it will do without, and prints the whole graph where it cannot go on."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _free(tensor: Tensor, counted: bool) -> dict[int, Any]:
    """Which axis is as long as there are tokens: the last, of ids `(1, L)` and places `(L,)`."""
    return {tensor.ndim - 1: Dim.AUTO} if counted else {}
