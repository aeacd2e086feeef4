"""Export of a forward by `torch.export`, with the mask of each attention site as an input."""

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
from jarilab.pages.program.fixed import FixedForward
from jarilab.pages.program.inputs import FixedInput, Inputs, Read


@dataclass(frozen=True, eq=False)
class Ran:
    """The outputs of a forward of one row, in float32. scores: of the vocabulary at each position. weights: by site."""

    scores: Float[Tensor, "L V"]
    weights: dict[str, Float[Tensor, "H Q K"]]


def ran(model: nn.Module, inputs: Inputs) -> Ran:
    """The outputs of a model for a batch of one. Raises UserError if a site runs several times (recurrent models)."""
    with record(model) as tape:
        if isinstance(inputs, FixedInput):
            scores_LV = inputs.scores(model(**inputs.arguments))
        else:
            scores_LV = scores_of(model(*inputs))[0]
    repeated = [site for site, calls in tape.calls.items() if len(calls) > 1]
    if repeated:
        raise UserError(
            f"{repeated[0]} runs step by step, and a page runs whole forwards; look into this model live, with jarilab "
            "explore"
        )
    weights = {site: tape.weights(site)[0].float() for site in tape.sites}
    return Ran(scores_LV.float(), weights)


def links_of(model: nn.Module, inputs: Inputs) -> dict[str, Bool[Tensor, "H Q K"]]:
    """For each site a mask that allows all links."""
    weights = ran(model, inputs).weights
    return {site: torch.ones_like(each, dtype=torch.bool) for site, each in weights.items()}


class _Site:
    """The mask and the weights of one site during a forward. Not part of a module, whose state must not change."""

    links: Tensor
    weights: Tensor


class _Linked(nn.Module):
    """Replaces `AttentionKernel`: attention by its definition, with a mask that is an input of the graph."""

    kernel = "definition"

    def __init__(self, site: _Site):
        super().__init__()
        self.site = site

    def forward(self, call: AttentionCall) -> Tensor:
        allowed = allowed_links(call) & self.site.links
        empty_BHQ1 = ~allowed.any(-1, keepdim=True)
        # As in ScoreTable: a query without keys attends everywhere in the softmax, then gets zeros.
        hidden = ~allowed & ~empty_BHQ1
        scores_BHQK = definition.scores(call).masked_fill(hidden, float("-inf"))
        weights_BHQK = scores_BHQK.softmax(-1).masked_fill(empty_BHQ1, 0.0)
        self.site.weights = weights_BHQK
        return definition.weighted(call, weights_BHQK)


class Forward(nn.Module):
    """A model whose inputs and outputs are tensors, as `torch.export` requires.

    model: its attention is replaced in place. read: its inputs on the example. names: the sites, in the masks' order.
    """

    def __init__(self, model: nn.Module, read: Sequence[Read], names: Collection[str]):
        super().__init__()
        self.read = read
        self.sites = [_Site() for _ in names]
        placed = attentions_of(model)
        for name, site in zip(names, self.sites, strict=True):
            model.set_submodule(placed[name].path, _Linked(site))
        self.model = model

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """The scores, then the weights of each site. tensors: of all inputs, then the mask of each site."""
        rest = iter(tensors)
        inputs = [one.again(rest) for one in self.read]
        for site in self.sites:
            site.links = next(rest)
        scores_BLV = scores_of(self.model(*inputs))
        return [scores_BLV, *(site.weights for site in self.sites)]


def exported_fixed(
    model: nn.Module, inputs: FixedInput, links: Mapping[str, Tensor]
) -> ExportedProgram:
    """The exported forward of one input. Raises UserError if it cannot be exported."""
    forward = FixedForward(model, inputs, links)
    arguments = (*inputs.ids, *links.values())
    sizes = {"tensors": tuple({} for _ in arguments)}
    return followed(forward, arguments, sizes, type(model).__name__)


def exported(
    model: nn.Module, read: Sequence[Read], links: Mapping[str, Tensor]
) -> ExportedProgram:
    """The exported forward. Raises UserError if it cannot be exported."""
    forward = Forward(model, read, links)
    tensors = [tensor for one in read for tensor in one.tensors()]
    sizes = [_free(tensor, one.counted) for one in read for tensor in one.tensors()]
    counted = any(one.counted for one in read)
    sizes += [{1: Dim.AUTO, 2: Dim.AUTO} if counted else {} for _ in links]
    shapes = {"tensors": tuple(sizes)}
    arguments = *tensors, *links.values()
    return followed(forward, arguments, shapes, type(model).__name__)


def followed(
    module: nn.Module, arguments: tuple[Tensor, ...], sizes: dict[str, Any], name: str
) -> ExportedProgram:
    """Export a module. sizes: the dynamic axes of each argument. name: of the module in errors.

    Raises UserError if it cannot be exported.
    """
    try:
        with quiet():
            return torch.export.export(module, arguments, dynamic_shapes=sizes, strict=False)
    except Exception as error:  # of many classes
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"torch.export cannot follow {name}: {why}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses warnings, logs and standard error of the block."""
    # PyTorch prints the whole graph when an export fails.
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _free(tensor: Tensor, counted: bool) -> dict[int, Any]:
    """The dynamic axis of a tensor: the last one of IDs `(1, L)` and positions `(L,)`."""
    return {tensor.ndim - 1: Dim.AUTO} if counted else {}
