"""The model and the data of `jarilab heads`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from jarilab.core.errors import UserError, no_model
from jarilab.data.example_files import ExampleFile
from jarilab.inspect.record.capture import record
from jarilab.inspect.study.example import Accumulator, Batch, heads_of_batch
from jarilab.inspect.study.gold_links import GoldLinks
from jarilab.inspect.study.head import Head
from jarilab.inspect.study.importance import HeadImportance
from jarilab.inspect.study.losses import loss_of, pooled_embedding
from jarilab.inspect.study.mean_maps import MeanMaps
from jarilab.inspect.study.progress_file import ProgressFile

if TYPE_CHECKING:
    from jarilab.huggingface.batches import HuggingFaceBatches
    from jarilab.runs.batches import RunBatches

    Reader = HuggingFaceBatches | RunBatches

WHAT = {"text": "lines of text", "pairs": "pairs of texts", "image": "images", "sound": "sounds"}


def open_reader(folder: str, *, trust_code: bool) -> Reader:
    """The reader of a run or of a Hugging Face folder. Raises UserError for a folder that is neither."""
    path = Path(folder)
    if (path / "run.json").is_file():
        from jarilab.runs.batches import RunBatches
        from jarilab.runs.loaded import load as load_run

        return RunBatches(load_run(path, trust_code=trust_code))
    if (path / "config.json").is_file():
        from jarilab.huggingface import load
        from jarilab.huggingface.batches import HuggingFaceBatches

        return HuggingFaceBatches(load(path))
    raise no_model(path, or_run=True)


def check_rows(reader: Reader, data: ExampleFile) -> int:
    """The number of examples, each checked, so that a study does not stop halfway. Raises UserError for a wrong one."""
    wanted = reader.kind
    kind = "text" if data.kind == "pairs" and wanted == "text" else data.kind
    if kind != wanted:
        raise UserError(
            f"{data.path}: {reader.about()['model']} reads {WHAT[wanted]}, got {WHAT[data.kind]}; name data that it "
            "reads"
        )
    count = 0
    for row in data:
        reader.check(row)
        count += 1
    if not count:
        raise UserError(f"{data.path}: expected at least one example, got none; add a line")
    return count


def first_batch(reader: Reader, data: ExampleFile) -> Batch:
    """The first example as a batch."""
    return next(reader.batches([next(iter(data))], 1))


def statistics_of(
    heads: Sequence[Head], data: ExampleFile, *, mean_maps: bool
) -> list[Accumulator]:
    """The further statistics of a study: gold links if the data have some, and mean maps."""
    statistics: list[Accumulator] = []
    if data.has_gold:
        statistics.append(GoldLinks(heads, data.gold_digest))
    if mean_maps:
        statistics.append(MeanMaps(heads))
    return statistics


def importance_of(
    reader: Reader,
    data: ExampleFile,
    examples: int,
    batch_size: int,
    *,
    by_embedding: bool,
    report: Callable[[int, int], None],
    file: Path | None,
) -> HeadImportance:
    """Ablations over the first examples, the shortest first: rows of one length need no padding.

    file: of their progress.

    Raises UserError for a model without a loss, or with `by_embedding` for one without embeddings.
    """
    rows = sorted(islice(data, examples), key=lambda row: len(row.text))
    batches = list(reader.batches(rows, batch_size))
    loss = pooled_embedding
    if not by_embedding:
        with torch.no_grad(), record(reader.model) as tape:
            outputs = batches[0].forward(reader.model)
        loss = loss_of(reader.model, tape, outputs, batches[0])
    identity = {
        **identity_of(reader, data),
        "examples": examples,
        "batch": batch_size,
        "of": "embedding" if by_embedding else "loss",
    }
    progress = ProgressFile(file, identity)
    return HeadImportance(reader.model, batches, loss, report=report, progress=progress)


def identity_of(reader: Reader, data: ExampleFile) -> dict[str, Any]:
    """What a table of its own in the folder of a study was computed from."""
    return {**reader.about(), "data": data.path.name, "data_digest": data.digest}


def about(reader: Reader, data: ExampleFile, count: int) -> dict[str, Any]:
    """What is studied, as plain data: the model, the data, and the tokens of the first example."""
    first, batch = next(iter(data)), first_batch(reader, data)
    return {
        **identity_of(reader, data),
        "kind": data.kind,
        "unread": reader.unread,
        "examples": count,
        "first": first.origin,
        "tokens": _sides(batch.tokens[0]),
        "start_token": reader.start_token(first),
    }


def _sides(tokens: dict[str, list[str]]) -> dict[str, list[str]]:
    """The tokens by sequence; once if both sequences are the same."""
    source, target = tokens.get("source"), tokens.get("target")
    return {"source": source} if source is not None and source == target else dict(tokens)


@torch.no_grad()
def heads_of_reader(reader: Reader, data: ExampleFile) -> list[Head]:
    """The heads of the model, from a forward over the first example."""
    batch = first_batch(reader, data)  # may run the model, too
    with record(reader.model) as tape:
        batch.forward(reader.model)
    return heads_of_batch(tape, batch)
