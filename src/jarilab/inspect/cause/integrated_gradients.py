"""Integrated gradients of token embeddings, computed by captum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError, import_optional, unknown
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.cause.replays import repeat_rows
from jarilab.inspect.study.example import Batch

BASELINES = ("mean", "zero", "pad")
MAX_TOKENS = 4096
"""Tokens in one forward of interpolated embeddings."""


def integrate(
    model: nn.Module,
    batch: Batch,
    answer: Callable[[Any, Batch], Tensor],
    ids: Mapping[str, Int[Tensor, "B L"]],
    replaceable: Mapping[str, Bool[Tensor, "B L"]],
    *,
    baseline: str = "mean",
    pad: int | None = None,
    steps: int = 64,
) -> tuple[dict[str, Float[Tensor, "B L"]], Float[Tensor, " B"]]:
    """The attribution of each token by sequence, and the gap of completeness of each row.

    ids: by sequence. replaceable: tokens that the baseline replaces; others, and positions, are equal in both.
    baseline: the mean of all token embeddings, zeros, or the embedding of the padding token. pad: its id, that of the
    model's config by default.
    Raises UserError without captum, for a model whose token embeddings are not found, and for an attribution of 0.
    """
    if baseline not in BASELINES:
        raise unknown("baseline", baseline, BASELINES)
    captum: Any = import_optional("captum.attr", "attribution")
    numbers, embedded, starts = [], [], []
    for side, replaced_BL in replaceable.items():
        number, module, e_BLD = _embedding_of(model, batch, side, ids.get(side), numbers)
        start_D = _start(model, module, baseline, pad).to(e_BLD)
        numbers.append(number)
        embedded.append(e_BLD)
        starts.append(torch.where(replaced_BL.unsqueeze(-1).to(e_BLD.device), start_D, e_BLD))

    def answer_of(*inputs: Tensor) -> Tensor:
        given = dict(zip(numbers, inputs, strict=True))
        repeated = repeat_rows(batch, len(inputs[0]) // len(batch))
        with _each_embedding(model, lambda number, module, ids, output: given.get(number)):
            return answer(repeated.forward(model), repeated)

    tokens = sum(each.shape[0] * each.shape[1] for each in embedded)
    attributions, gap_B = captum.IntegratedGradients(answer_of).attribute(
        tuple(embedded),
        tuple(starts),
        n_steps=steps,
        internal_batch_size=len(batch) * max(1, MAX_TOKENS // tokens),
        return_convergence_delta=True,
    )
    scores = [each.sum(-1).detach() for each in attributions]
    total_B = torch.cat(scores, 1).abs().sum(1)
    if bool((total_B == 0).any()):
        raise UserError(
            f"expected an attribution, got 0 for all tokens of row {int(total_B.argmin())}: its embeddings are those "
            f"of the baseline {baseline!r}, or the answer does not depend on them; pass another baseline"
        )
    return dict(zip(replaceable, scores, strict=True)), gap_B


@contextmanager
def _each_embedding(
    model: nn.Module, change: Callable[[int, nn.Module, Tensor, Tensor], Tensor | None]
) -> Iterator[None]:
    """Inside the block, call `change` with number, module, ids and output of each embedding; returns its output."""
    numbers = count()

    def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if args and isinstance(args[0], Tensor) and not args[0].is_floating_point():
            return change(next(numbers), module, args[0], output)
        return None

    with ExitStack() as hooks:
        for module in model.modules():
            if any(each.ndim == 2 for each in module.parameters(recurse=False)):
                hooks.enter_context(module.register_forward_hook(hook))
        yield


def _embedding_of(
    model: nn.Module, batch: Batch, side: str, ids: Tensor | None, used: list[int]
) -> tuple[int, nn.Module, Float[Tensor, "B L D"]]:
    """The first embedding that reads the ids of a sequence: its number, module and output. used: numbers of others."""
    calls: list[tuple[int, nn.Module, Tensor]] = []

    def note(number: int, module: nn.Module, read: Tensor, output: Tensor) -> None:
        if number not in used and ids is not None and torch.equal(read, ids):
            calls.append((number, module, output.clone()))

    with torch.no_grad(), _each_embedding(model, note):
        batch.forward(model)
    if not calls:
        raise UserError(
            f"expected a token embedding that reads the ids of the {side}, got none in {type(model).__name__}; "
            "integrated gradients need token ids, so use attention_gradient"
        )
    return calls[0]


def _start(model: nn.Module, table: nn.Module, baseline: str, pad: int | None) -> Tensor:
    """The vector `(D,)` from which the embeddings of replaced tokens start."""
    if baseline == "zero":
        return torch.zeros(())
    weight = next(each for each in table.parameters(recurse=False) if each.ndim == 2)
    ids = torch.arange(len(weight), device=weight.device)
    if baseline == "pad":
        pad = getattr(getattr(model, "config", None), "pad_token_id", None) if pad is None else pad
        if pad is None or not 0 <= pad < len(weight):
            raise UserError(
                f"expected the id of the padding token below {len(weight)}, got {pad}; pass pad=ID or baseline='mean'"
            )
        ids = ids[pad : pad + 1]
    with torch.no_grad():
        return table(ids[None])[0].mean(0)
