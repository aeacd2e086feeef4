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

Loss = Callable[[Any, Batch], Tensor]
"""Takes outputs and their batch; returns a loss a row, `(B,)`, in nats a token.

It may return an embedding a row instead, `(B, D)`: the change is then the squared distance from the clean embedding.
"""


def loss_of(model: nn.Module, tape: Tape, outputs: Any, batch: Batch) -> Loss:
    """The loss that a model is trained with, chosen from one recorded forward.

    With `labels` in the batch, that of the labels. Without, the next-token loss of models whose decoder is causal.
    Raises UserError for other models.
    """
    logits, labels = logits_of(outputs), batch.kwargs.get("labels")
    decoders = [site for site in map(tape.site, tape.sites) if site.kind == "decoder"]
    is_causal = bool(decoders) and all(site.causal for site in decoders)
    if logits is not None and isinstance(labels, Tensor) and labels.shape == logits.shape[:-1]:
        is_of_tokens = is_causal and labels.ndim == 2 and not tape.sites_of("encoder")
        return partial(label_loss, shift=int(is_of_tokens))
    ids = batch.ids.get("target")
    if logits is not None and is_causal and ids is not None and ids.shape == logits.shape[:-1]:
        return next_token_loss
    raise UserError(
        f"expected a model with a loss, got {type(model).__name__}, "
        + ("an encoder without a head" if logits is None else "whose labels are not in the data")
        + "; load a model with a head for language modelling, add `labels` to its batches, or pass loss=FUNCTION of "
        "outputs and batch. For sentence embeddings use --importance-by embedding, or loss=pooled_embedding in Python"
    )


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
