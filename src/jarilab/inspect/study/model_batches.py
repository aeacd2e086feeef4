"""Inputs of any PyTorch model as batches of a study."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jarilab.core.devices import evaluating
from jarilab.core.errors import UserError
from jarilab.inspect.measure.measures import Measure
from jarilab.inspect.record.capture import record
from jarilab.inspect.study.example import Accumulator, Batch, heads_of_batch
from jarilab.inspect.study.model_sequences import is_text, sequences_of
from jarilab.inspect.study.probes import MAX_LENGTH, ProbeInput
from jarilab.inspect.study.study import Study
from jarilab.inspect.study.weights_digest import weights_digest
from jarilab.positions.coordinates import Tokens

Namer = Callable[[list[int]], Sequence[str]]
TokenNames = Namer | Sequence[Sequence[Sequence[str]]] | None


def study(
    model: nn.Module,
    batches: Iterable[Any],
    tokens: TokenNames = None,
    *,
    out: str | Path | None = None,
    measures: Mapping[str, Measure] | None = None,
    accumulators: Sequence[Accumulator | type[Any]] = (),
    probes: bool | ProbeInput = True,
    seed: int = 0,
    report: Callable[[int], None] | None = None,
) -> Study:
    """Study all heads of a model over a data set, in evaluation mode and in memory that does not grow with it.

    batches: inputs of the model: a tensor, a tuple of arguments, a mapping of keyword arguments such as a tokenizer
        returns, or a `Batch`. Masks named `attention_mask`, the `keep` of `jarilab.Tokens`, and in a tuple a second
        tensor of 0 and 1 or of the type bool say what is padding.
    tokens: a function from ids to names, such as `tokenizer.convert_ids_to_tokens`; or, for each batch, the names of
        the tokens of each row without padding; None shows ids, or numbers.
    out: a folder to keep the study in, from which the same call continues. It then needs the same batches and the same
        weights again.
    measures: by name (default: all). accumulators: further statistics, or their classes.
    probes: whether roles are also tested on random sequences of the ids in `batches`, or how these are made; only
        possible if ids are the model's input. The sequences are at most as long as the longest row, or as 40 tokens
        where the model's config says that it has the positions. With less than two ids to draw, a warning says that
        there are none.
    seed: of intervals and probes. report: called with the number of examples after each batch.
    Raises UserError for no batches, for names that do not match, and for a folder of another study.
    """
    # A compiled model shares its parameters with its original.
    model = getattr(model, "_orig_mod", model)
    result: Study | None = None
    skip, first = 0, None
    data = _SourceTokens()
    with evaluating(model):
        for number, inputs in enumerate(_checked(batches)):
            batch = batch_of(inputs, tokens, number, model)
            data.add(batch)
            if result is None:
                first = inputs, batch
                result = _start(model, batch, out, measures, accumulators, seed)
                skip = result.examples
            if skip >= len(batch):
                skip -= len(batch)
                continue
            result.add_batch(model, batch, skip)
            skip = 0
            if report is not None:
                report(result.examples)
        if result is None or first is None:
            raise UserError(
                "expected at least one batch, got none; pass an iterable of inputs of the model"
            )
        if skip:
            raise UserError(
                f"{out}: expected the batches of this study, {result.examples} examples, got {skip} fewer; pass the "
                "same batches again, or choose another folder"
            )
        result.save()
        if probes is True:
            probes = _probe_input(model, *first, data) or False
        if isinstance(probes, ProbeInput) and probes.shortage is not None:
            warnings.warn(probes.shortage, stacklevel=2)
        result.name_roles(model, probes or None)
    return result


def _checked(batches: Iterable[Any]) -> Iterable[Any]:
    """The batches. Raises UserError for a single one."""
    if isinstance(batches, Tensor | Mapping):
        raise UserError(
            f"expected an iterable of batches, got one {type(batches).__name__}; pass a list: study(model, [batch])"
        )
    return batches


PADDED = {"input_ids", "attention_mask", "token_type_ids"}
"""Inputs of a transformers model of one text."""


@dataclass
class _SourceTokens:
    """What probes need of all batches. ids: of the sources. longest: the number of tokens of the longest row."""

    ids: set[int] = field(default_factory=set)
    longest: int = 0

    def add(self, batch: Batch) -> None:
        ids = batch.ids.get("source")
        if ids is not None:
            valid = batch.valid.get("source", torch.ones_like(ids))
            self.ids |= {*ids.unique().tolist()}
            self.longest = max(self.longest, int(valid.sum(-1).max()))


def _probe_input(
    model: nn.Module, inputs: Any, batch: Batch, data: _SourceTokens
) -> ProbeInput | None:
    """How random sequences are made for a model of one text; None for other inputs."""
    has_mask = isinstance(inputs, Mapping) and "input_ids" in inputs and inputs.keys() <= PADDED
    if not has_mask and not (isinstance(inputs, Tensor) and is_text(inputs)):
        return None
    ids_BL, valid_BL = batch.ids["source"], batch.valid["source"]
    rows = [ids[valid].tolist() for ids, valid in zip(ids_BL, valid_BL, strict=True)]
    start = rows[0][:1] if len(rows) > 2 and len({row[0] for row in rows}) == 1 else []
    end = rows[0][-1:] if len(rows) > 2 and len({row[-1] for row in rows}) == 1 else []
    end = end if min(map(len, rows)) > 1 else []
    padding = {*ids_BL[~valid_BL].tolist()}
    free = sorted(data.ids - {*start, *end} - padding)

    def probe(rows: Sequence[Sequence[int]]) -> Batch:
        lengths = torch.tensor([len(row) for row in rows])
        valid = torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)
        ids = torch.zeros(valid.shape, dtype=torch.long)
        ids[valid] = torch.tensor(list(chain.from_iterable(rows)))
        ids = ids.to(ids_BL.device)
        kwargs = {"input_ids": ids, "attention_mask": valid.long().to(ids.device)}
        return batch_of(kwargs if has_mask else ids, model=model)

    # A decoder that reads its source shifted right has a start token before it.
    target_start = len(start) + 1 if _has_two_texts(batch.ids) else None
    longest = max(data.longest, min(MAX_LENGTH, _positions_of(model)))
    return ProbeInput(probe, free, start, end, longest, has_mask, target_start)


def _positions_of(model: nn.Module) -> int:
    """The number of positions that a model of transformers says it has; 0 for other models."""
    config = getattr(model, "config", None)
    config = getattr(config, "text_config", config)
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int):
        return 0
    # Tables like RoBERTa's start after the row of padding.
    tables = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    paddings = [each.padding_idx for each in tables if each.num_embeddings == positions]
    return positions - 1 - max([each for each in paddings if each is not None], default=-1)


@torch.no_grad()
def _start(
    model: nn.Module,
    batch: Batch,
    out: str | Path | None,
    measures: Mapping[str, Measure] | None,
    accumulators: Sequence[Accumulator | type[Any]],
    seed: int,
) -> Study:
    with record(model) as tape:
        batch.forward(model)
    labels = batch.kwargs.get("labels")
    if tape.sites_of("cross") and not _has_two_texts(batch.ids) and is_text(labels):
        raise UserError(
            f"expected the ids that the decoder of {type(model).__name__} reads, got its labels; pass "
            "decoder_input_ids, or a Batch with the ids of source and target"
        )
    heads = heads_of_batch(tape, batch)
    statistics = [each(heads) if isinstance(each, type) else each for each in accumulators]
    about: dict[str, Any] = {"model": type(model).__name__, "tokens": batch.tokens[0]}
    folder = None if out is None else Path(out)
    if folder is not None:
        state = model.state_dict()
        tensors = {name: each for name, each in state.items() if isinstance(each, Tensor)}
        about["weights_digest"] = weights_digest(tensors.items())[:16]
    return Study(heads, folder, measures=measures, accumulators=statistics, seed=seed, about=about)


def batch_of(
    inputs: Any, tokens: TokenNames = None, number: int = 0, model: nn.Module | None = None
) -> Batch:
    """Inputs of a model as a batch. number: of the batch, which selects its names if `tokens` is a sequence.

    model: reads them; see `sequences_of`.
    """
    if isinstance(inputs, Batch):
        return inputs
    if isinstance(inputs, Mapping):
        args, kwargs = (), dict(inputs)
    else:
        args, kwargs = inputs if isinstance(inputs, tuple) else (inputs,), {}
    ids, valid = sequences_of(args, kwargs, model)
    _check_masks(ids, valid, number)
    size = _batch_size(args, kwargs)
    if tokens is None or callable(tokens):
        names = [_names_of(row, ids, valid, tokens) for row in range(size)]
        return Batch(args, kwargs, names, valid, ids=ids)
    rows = tokens[number] if number < len(tokens) else []
    if len(rows) != size:
        raise UserError(
            f"batch {number + 1}: expected names of the tokens of each of its {size} rows, got {len(rows)}; pass a "
            "list of rows for each batch, or a function from ids to names"
        )
    names = [_names_of(row, ids, valid, None) for row in range(size)]
    for row, of_row in zip(rows, names, strict=True):
        of_row["source"] = list(row)
        if not _has_two_texts(ids):
            of_row["target"] = list(row)
    return Batch(args, kwargs, names, valid, ids=ids)


def _has_two_texts(ids: Mapping[str, Tensor]) -> bool:
    return ids.get("source") is not ids.get("target")


def _check_masks(ids: Mapping[str, Tensor], valid: Mapping[str, Tensor], number: int) -> None:
    """Raises UserError for masks that do not fit the ids, and for rows of padding alone."""
    for side, valid_BL in valid.items():
        shape = ids.get(side, valid_BL).shape
        empty = (~valid_BL.any(-1)).nonzero().flatten().tolist()
        if valid_BL.shape != shape or empty:
            got = f"only padding in row {empty[0] + 1}" if empty else tuple(valid_BL.shape)
            raise UserError(
                f"batch {number + 1}: expected a mask {tuple(shape)} with a token in each row, got {got}; pass the "
                "mask of these ids, and leave out empty rows"
            )


def _batch_size(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The number of rows: the length of the first tensor."""
    for value in [*args, *kwargs.values()]:
        tensor = value.ids if isinstance(value, Tokens) else value
        shape = getattr(tensor, "shape", None)
        if shape:
            return int(shape[0])
    raise UserError(
        f"expected tensors as inputs of the model, got {[type(value).__name__ for value in args]}; pass a tensor, a "
        "tuple of arguments, or a mapping of keyword arguments"
    )


def _names_of(
    row: int, ids: Mapping[str, Tensor], valid: Mapping[str, Tensor], namer: Namer | None
) -> dict[str, list[str]]:
    names = {}
    for side, ids_BL in ids.items():
        of_row = ids_BL[row][valid[side][row]].tolist()
        names[side] = [str(name) for name in (of_row if namer is None else namer(of_row))]
    return names
