"""The sequences that a model reads among its inputs: token ids, and which tokens are no padding."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor, nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Int
from jarilab.positions.coordinates import Tokens

DECODER = ("decoder_input_ids", "decoder_attention_mask")
NO_SEQUENCES = {"token_type_ids", "position_ids", "labels"}
"""Integer inputs of transformers models that are no sequence of token ids."""
KNOWN = {"input_ids", "attention_mask", *DECODER, *NO_SEQUENCES}
ID_WORDS = ("ids", "tgt", "target", "type", "segment")
"""Parts of the names of arguments that are no masks, although their values may be 0 and 1."""
TARGET_WORDS = ("decoder", "tgt", "target")
"""Parts of the names of masks of the target."""

Sequences = dict[str, Tensor]
Sides = dict[str, tuple[Any, Any]]
"""Ids and mask by sequence; None for those that are not known."""


def sequences_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], model: nn.Module | None = None
) -> tuple[Sequences, Sequences]:
    """Ids and valid tokens by sequence. A single sequence is both `source` and `target`.

    model: reads these inputs. The names of its arguments say which tensors are masks, and an encoder-decoder without
    ids for its decoder reads its labels, shifted right.
    Raises UserError for ids that are no tensor, and for labels that cannot be shifted.
    """
    names = _argument_names(model)
    texts = {name for name, value in zip(names, args, strict=False) if _is_matrix(value)}
    if kwargs or ("input_ids" in texts and texts <= KNOWN):
        sides = _named({**dict(zip(names, args, strict=False)), **kwargs}, names, model)
    else:
        sides = _positional(args, names)
    sides.setdefault("target", sides.get("source", (None, None)))
    ids, valid = {}, {}
    for side, (side_ids, keep) in sides.items():
        if side_ids is not None:
            if not isinstance(side_ids, Tensor):
                raise UserError(
                    f"expected ids of the {side} as a tensor, got a {type(side_ids).__name__}; call the tokenizer with "
                    "padding=True, return_tensors='pt'"
                )
            ids[side] = side_ids
            valid[side] = torch.ones_like(side_ids, dtype=torch.bool)
        if isinstance(keep, Tensor) and keep.ndim == 2:
            valid[side] = keep.bool()
    return ids, valid


def is_text(value: Any) -> bool:
    """Whether an input holds token ids: whole numbers of shape (B, L), or `Tokens`."""
    if not _is_matrix(value):
        return isinstance(value, Tokens)
    return not value.is_floating_point() and value.dtype != torch.bool


def _is_matrix(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2


def _argument_names(model: nn.Module | None) -> list[str]:
    """The names of the arguments of a model's forward; none without a model or a signature."""
    try:
        return [] if model is None else list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return []


# Positional arguments -------------------------------------------------------------------------------------------------


def _positional(args: tuple[Any, ...], names: Sequence[str]) -> Sides:
    """The first and the last text, with the masks among the other arguments. names: of the arguments, if known."""
    texts: list[tuple[Any, Any]] = []
    masks: list[tuple[str, Tensor]] = []
    for name, value in zip(chain(names, repeat("")), args, strict=False):
        first = texts[0][0] if texts else None
        if isinstance(value, Tokens):
            texts.append((value.ids, value.keep))
        elif _is_matrix(value) and _is_mask(name, value, first):
            masks.append((name, value))
        elif is_text(value) and name not in NO_SEQUENCES and not _continues(first, value):
            texts.append((value, None))
    sides: Sides = {"source": texts[0] if texts else (None, None)}
    if len(texts) > 1:
        sides["target"] = texts[-1]
    shapes = {side: getattr(ids, "shape", None) for side, (ids, _) in sides.items()}
    if not texts and args:
        # The mask of embeddings (B, L, D).
        shapes["source"] = getattr(args[0], "shape", ())[:2]
    for name, mask in masks:
        # PyTorch's name for the opposite.
        keep = ~mask.bool() if "key_padding" in name else mask.bool()
        is_of_target = "target" in sides and any(word in name for word in TARGET_WORDS)
        for side in ["target"] if is_of_target else list(sides):
            fits = name == "attention_mask" or mask.shape == shapes[side]
            if fits and sides[side][1] is None:
                sides[side] = sides[side][0], keep
                break
    return sides


def _is_mask(name: str, value: Tensor, first: Tensor | None) -> bool:
    """Whether an argument is a mask: by its type, its name, or its values 0 and 1 beside a first text of its shape."""
    if value.dtype == torch.bool or name.endswith("mask"):
        return True
    if first is None or value.shape != first.shape or any(word in name for word in ID_WORDS):
        return False
    return bool(((value == 0) | (value == 1)).all() and (value == 1).any(-1).all())


def _continues(first: Tensor | None, other: Tensor) -> bool:
    """Whether an argument has the next token of each token of the first text: labels, which the model does not read."""
    if first is None or first.shape != other.shape or first.shape[1] < 2:
        return False
    return bool(((other[:, :-1] == first[:, 1:]) | (other[:, :-1] < 0)).all())


# Named arguments ------------------------------------------------------------------------------------------------------


def _named(kwargs: Mapping[str, Any], names: Sequence[str], model: nn.Module | None) -> Sides:
    """The sequences of a transformers model. names: of its arguments."""
    source = kwargs.get("input_ids"), kwargs.get("attention_mask")
    sides: Sides = {"source": source}
    ids, mask = (kwargs.get(name) for name in DECODER)
    if ids is None and DECODER[0] in names:
        labels = kwargs.get("labels")
        if isinstance(labels, Tensor) and is_text(labels):
            ids, keep = _shifted(model, labels, labels >= 0)
        elif _start_id(model) is not None and isinstance(source[0], Tensor):
            # Such models, as BART, read the source, shifted right.
            is_token = source[1].bool() if isinstance(source[1], Tensor) else source[0] >= 0
            ids, keep = _shifted(model, source[0], is_token)
        else:
            keep = None
        mask = keep if mask is None else mask
    if ids is not None or mask is not None:
        sides["target"] = ids, mask
    return sides


def _start_id(model: nn.Module | None) -> int | None:
    return getattr(getattr(model, "config", None), "decoder_start_token_id", None)


def _shifted(
    model: nn.Module | None, labels: Int[Tensor, "B L"], is_token: Bool[Tensor, "B L"]
) -> tuple[Int[Tensor, "B L"], Bool[Tensor, "B L"]]:
    """The decoder's ids, as the model makes them from labels, and which are no padding after the last label.

    Raises UserError if the start token is not known.
    """
    start, shift = _start_id(model), getattr(model, "prepare_decoder_input_ids_from_labels", None)
    try:
        if shift is not None:
            ids = shift(labels)
        else:
            pad = getattr(getattr(model, "config", None), "pad_token_id", None) or 0
            first = labels.new_full((len(labels), 1), start)  # type: ignore[arg-type]
            ids = torch.cat((first, labels[:, :-1].masked_fill(labels[:, :-1] < 0, pad)), 1)
    except Exception as error:
        raise UserError(
            f"expected decoder_input_ids, or a config of {type(model).__name__} from which labels can be shifted "
            f"right, got decoder_start_token_id={start} ({error}); set it, or pass decoder_input_ids"
        ) from None
    # True up to the last token of a row; each of them is one further right in the decoder.
    is_before_end = is_token.long().flip(1).cummax(1).values.flip(1).bool()
    return ids, torch.cat((torch.ones_like(is_before_end[:, :1]), is_before_end[:, :-1]), 1)
