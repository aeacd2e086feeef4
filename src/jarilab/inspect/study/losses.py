"""Losses of each row of a batch, for models of any library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.study.example import Batch

LOSS_TOLERANCE = 0.02
"""Relative difference up to which a loss can be that of the model, which may add terms or round."""
Loss = Callable[[Any, Batch], Tensor]
"""Takes outputs and their batch; returns a loss a row, `(B,)`, in nats a token.

It may return an embedding a row instead, `(B, D)`: the change is then the squared distance from the clean embedding.
"""


def loss_of(model: nn.Module, tape: Tape, outputs: Any, batch: Batch) -> Loss:
    """The loss that a model is trained with, chosen from one recorded forward.

    With `labels` in the batch, that of the labels. Without, the next-token loss of models whose decoder is causal.
    Raises UserError for other models, and for labels that are no classes or tokens.
    """
    logits, labels = logits_of(outputs), batch.kwargs.get("labels")
    decoders = [site for site in map(tape.site, tape.sites) if site.kind == "decoder"]
    is_causal = bool(decoders) and all(site.causal for site in decoders)
    if logits is not None and isinstance(labels, Tensor):
        _check_classes(model, logits, labels)
        if labels.shape == logits.shape[:-1]:
            is_of_text = is_causal and not tape.sites_of("encoder")
            return partial(label_loss, shift=_shift_of(outputs, batch, is_of_text=is_of_text))
    ids = batch.ids.get("target")
    if logits is not None and is_causal and ids is not None and ids.shape == logits.shape[:-1]:
        return next_token_loss
    raise UserError(
        f"expected a model with a loss, got {type(model).__name__}, "
        + ("an encoder without a head" if logits is None else "whose labels are not in the data")
        + "; load a model with a head for language modelling, add `labels` to its batches, or pass loss=FUNCTION of "
        "outputs and batch. For sentence embeddings use --importance-by embedding, or loss=pooled_embedding in Python"
    )


def _check_classes(model: nn.Module, logits: Tensor, labels: Tensor) -> None:
    """Raises UserError for labels without a cross-entropy: numbers, and labels of a single score."""
    is_one_score = logits.shape[-1] == 1 and labels.shape == logits.shape[:-1]
    is_number = labels.is_floating_point()
    if is_number or is_one_score:
        got = f"numbers ({labels.dtype})" if is_number else "one score a row"
        example = "(outputs.logits[:, 0] - batch.kwargs['labels']) ** 2"
        if logits.shape[-1] > 1:
            example = (
                "functional.binary_cross_entropy_with_logits(outputs.logits, batch.kwargs['labels'], "
                "reduction='none').mean(-1)"
            )
        raise UserError(
            f"expected labels that are classes or tokens of {type(model).__name__}, got {got}; pass loss=FUNCTION of "
            f"outputs and batch, such as lambda outputs, batch: {example}"
        )


def _shift_of(outputs: Any, batch: Batch, *, is_of_text: bool) -> int:
    """By how many tokens the model's own loss shifts labels: 1 where they are the tokens that it reads, else 0.

    The choice is that whose loss is nearer to the one among the outputs. Without one near to either, labels that are
    the tokens of a causal model are shifted. is_of_text: whether the model is causal and has no encoder.
    """
    labels, ids = batch.kwargs["labels"], batch.ids.get("target")
    if labels.ndim != 2:
        return 0
    own = getattr(outputs, "loss", None)
    if isinstance(own, Tensor) and own.numel() == 1:
        distances = [abs(_mean_loss(outputs, labels[:, shift:]) - own.item()) for shift in (0, 1)]
        if distances[0] != distances[1] and min(distances) <= LOSS_TOLERANCE * abs(own.item()):
            return int(distances[1] < distances[0])
    if ids is not None and ids.shape == labels.shape:
        is_label = labels >= 0
        is_of_text = is_of_text and torch.equal(ids[is_label], labels[is_label])
    return int(is_of_text)


def _mean_loss(outputs: Any, labels: Int[Tensor, "B L"]) -> float:
    """The mean cross-entropy over all labels, as models compute it; NaN without labels."""
    count_B = (labels >= 0).sum(1)
    return float((_losses(outputs, labels).nan_to_num() * count_B).sum() / count_B.sum())


def logits_of(outputs: Any) -> Tensor | None:
    """The logits among the outputs of a model of jarilab or transformers; None if there are none."""
    if isinstance(outputs, Tensor):
        return outputs
    logits = getattr(outputs, "logits", None)
    return logits if isinstance(logits, Tensor) else None


def next_token_loss(outputs: Any, batch: Batch) -> Float[Tensor, " B"]:
    """The mean cross-entropy of the next token over each row, in nats; NaN for a row of one token."""
    ids_BL = batch.ids["target"]
    valid_BL = batch.valid.get("target", torch.ones_like(ids_BL, dtype=torch.bool))
    has_next_BL = valid_BL[:, 1:] & valid_BL[:, :-1]
    return _losses(outputs, ids_BL[:, 1:].masked_fill(~has_next_BL, -100))


def label_loss(outputs: Any, batch: Batch, shift: int = 0) -> Float[Tensor, " B"]:
    """The mean cross-entropy of the labels of each row, in nats. Labels below 0 do not count.

    shift: 1 for a causal language model, whose labels are its tokens.
    """
    return _losses(outputs, batch.kwargs["labels"][:, shift:] if shift else batch.kwargs["labels"])


def _losses(outputs: Any, labels: Int[Tensor, "B L"] | Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    logits = logits_of(outputs)
    assert logits is not None
    if labels.ndim == 1:
        labels, logits = labels[:, None], logits[:, None]
    losses = []
    # A row at a time: log-probabilities over a large vocabulary take much memory.
    for logits_LV, labels_L in zip(logits[:, : labels.shape[1]], labels, strict=True):
        places = labels_L >= 0
        losses.append(functional.cross_entropy(logits_LV[places].float(), labels_L[places]))
    return torch.stack(losses)


def pooled_embedding(outputs: Any, batch: Batch) -> Float[Tensor, "B D"]:
    """The sentence embedding: the mean of the last hidden states over tokens, scaled to norm 1.

    A stand-in for encoders without a loss. It is not a loss: the squared distance of two embeddings is 2 - 2 cos, and
    never negative.
    """
    states_BLD = getattr(outputs, "last_hidden_state", outputs)
    if not isinstance(states_BLD, Tensor) or states_BLD.ndim != 3:
        raise UserError(
            f"expected last_hidden_state (B, L, D) to pool, got {type(outputs).__name__}; pass loss=FUNCTION instead"
        )
    valid_BL = batch.valid.get("source", torch.ones(states_BLD.shape[:2], dtype=torch.bool))
    weights_BL1 = valid_BL.to(states_BLD).unsqueeze(-1)
    mean_BD = (states_BLD * weights_BL1).sum(1) / weights_BL1.sum(1).clamp_min(1)
    return functional.normalize(mean_BD, dim=-1)
