"""Rows of a data set as batches of a transformers model, for studies of its heads."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jarilab.core.errors import UserError
from jarilab.data.example_files import ExampleRow, Kind
from jarilab.huggingface.loading import Loaded, as_user_error
from jarilab.huggingface.model_inputs import (
    check_ids,
    main_input,
    max_length,
    parameters_of,
    patch_grid,
    patch_names,
    read,
    read_pixels,
)
from jarilab.huggingface.outputs import token_names
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.probes import ProbeInput

KINDS: dict[str, Kind] = {
    "pixel_values": "image",
    "input_features": "sound",
    "input_values": "sound",
}
WORD = re.compile(r"[▁Ġ]?[^\W\d_]{3,}")
MIN_WORDS = 200
"""With fewer words, probes are drawn from all tokens."""
MAX_DIGEST_BYTES = 1 << 20
"""Bytes at both ends of a file of weights that its digest covers."""


class HuggingFaceBatches:
    """Reads rows as batches of a model. kind: of the rows that it reads."""

    def __init__(self, loaded: Loaded):
        self.loaded = loaded
        self.model: nn.Module = loaded.model
        self.kind: Kind = KINDS.get(main_input(loaded), "text")
        self._parameters = parameters_of(loaded)
        self._has_decoder = bool(getattr(loaded.config, "is_encoder_decoder", False))

    def about(self) -> dict[str, Any]:
        """The model of a study: its name, class and a hash."""
        digest = _digest(self.loaded.folder)
        return {"model": self.loaded.name, "class": self.loaded.kind, "model_digest": digest}

    def start_token(self, row: ExampleRow) -> str | None:
        """The special token that the tokenizer puts in front of a text; None if it adds none."""
        if self.kind != "text":
            return None
        tokenizer = self.loaded.tokenizer
        first = self._encode(row)["input_ids"][:1]
        without = tokenizer(row.text, add_special_tokens=False)["input_ids"]
        is_added = first != without[:1] and first[0] in tokenizer.all_special_ids
        return str(tokenizer.convert_ids_to_tokens(first[0])) if is_added else None

    def probe_input(self, row: ExampleRow) -> ProbeInput | None:
        """How random sequences are drawn, with the special tokens of this row around them; None without tokens."""
        if self.kind != "text" or self._is_alone:
            return None
        tokenizer = self.loaded.tokenizer
        special = {*tokenizer.all_special_ids}
        ids = self._encode(ExampleRow(row.origin, row.text))["input_ids"]
        inner = [place for place, each in enumerate(ids) if each not in special]
        start, end = ids[: inner[0]], ids[inner[-1] + 1 :]
        words = self._word_ids()
        return ProbeInput(self.texts_of, words, start, end, max_length(self.loaded))

    def _word_ids(self) -> list[int]:
        """Tokens that are words of at least three letters; all tokens but special ones if these are few."""
        tokenizer, size = self.loaded.tokenizer, self.model.get_input_embeddings().num_embeddings
        vocabulary = {
            number: text for text, number in tokenizer.get_vocab().items() if number < size
        }
        words = [number for number, text in vocabulary.items() if WORD.fullmatch(text)]
        rest = vocabulary.keys() - {*tokenizer.all_special_ids}
        return sorted(words if len(words) >= MIN_WORDS else rest)

    def check(self, row: ExampleRow) -> None:
        """Raises UserError, with the origin of the row, if the model cannot read it."""
        with _at(row):
            if self.kind == "text":
                self._encode(row)
            elif self.kind == "image":
                read_pixels(self.loaded, row.text)
            else:
                read(self.loaded, row.text)

    def batches(self, rows: Iterable[ExampleRow], size: int) -> Iterator[Batch]:
        """Batches of at most `size` rows in order."""
        at_once = 1 if self._is_alone else size
        iterator = iter(rows)
        while chunk := list(islice(iterator, at_once)):
            yield self._batch(chunk)

    @property
    def _is_alone(self) -> bool:
        """Whether the model reads one row at a time: sounds, and texts whose answer it generates."""
        if self.kind == "text":
            return self._has_decoder or "attention_mask" not in self._parameters
        return self.kind == "sound"

    def _batch(self, rows: Sequence[ExampleRow]) -> Batch:
        origins = [row.origin for row in rows]
        with _at(rows[0]):
            if self.kind == "image":
                return self._images(rows, origins)
            if self._has_decoder or self.kind == "sound":
                reading = read(self.loaded, rows[0].text)
                return Batch((), reading.inputs, [reading.names], {}, origins)
            return self._texts([self._encode(row) for row in rows], origins)

    def _images(self, rows: Sequence[ExampleRow], origins: list[str]) -> Batch:
        pixels = torch.cat([read_pixels(self.loaded, row.text) for row in rows])
        grid = patch_grid(self.loaded, pixels)
        names = {} if grid is None else {"source": patch_names(grid)}
        return Batch((), {"pixel_values": pixels}, [names] * len(rows), {}, origins)

    def _encode(self, row: ExampleRow) -> dict[str, list[int]]:
        """The ids of a row and what the model reads beside them."""
        texts = [row.text] if row.second is None else [row.text, row.second]
        with as_user_error(f"the tokenizer of {self.loaded.name} cannot read this text"):
            encoded = self.loaded.tokenizer(*texts)
        check_ids(self.loaded, torch.tensor([encoded["input_ids"]]))
        return dict(encoded)

    def texts_of(self, ids: Sequence[Sequence[int]]) -> Batch:
        """A batch of token ids, padded on the right. Tokens are named by their ids, special ones by their names."""
        tokenizer = self.loaded.tokenizer
        special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        encoded = [{"input_ids": list(each)} for each in ids]
        names = []
        for each in ids:
            names.append([str(special.get(number, number)) for number in each])
        return self._texts(encoded, [], names)

    def _texts(
        self,
        encoded: Sequence[dict[str, list[int]]],
        origins: list[str],
        tokens: list[list[str]] | None = None,
    ) -> Batch:
        """Rows padded on the right, where padding changes no position."""
        tokenizer = self.loaded.tokenizer
        pad = tokenizer.pad_token_id
        lengths = torch.tensor([len(each["input_ids"]) for each in encoded])
        valid = torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)
        inputs: dict[str, Tensor] = {"attention_mask": valid.long()}
        for name in encoded[0]:
            fill = (pad or 0) if name == "input_ids" else 0
            inputs[name] = _padded([each[name] for each in encoded], fill)
        inputs["attention_mask"] = valid.long()
        if tokens is None:
            names = token_names(tokenizer)
            tokens = [names(each["input_ids"]) for each in encoded]
        ids = inputs["input_ids"]
        return Batch(
            kwargs={name: value for name, value in inputs.items() if name in self._parameters},
            tokens=[{"source": each, "target": each} for each in tokens],
            valid={"source": valid, "target": valid},
            origins=origins,
            ids={"source": ids, "target": ids},
        )


def _padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])


@contextmanager
def _at(row: ExampleRow) -> Iterator[None]:
    """Put the origin of a row in front of errors of the block."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{row.origin}: {error}") from None


def _digest(folder: Path) -> str:
    """A hash of the configuration, and of the size and both ends of each file of weights."""
    hashed = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        with path.open("rb") as file:
            hashed.update(f"{path.name} {size} ".encode() + file.read(MAX_DIGEST_BYTES))
            file.seek(max(0, size - MAX_DIGEST_BYTES))
            hashed.update(file.read(MAX_DIGEST_BYTES))
    return hashed.hexdigest()
