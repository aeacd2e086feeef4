"""Rows of a data set as batches of a transformers model, for studies of its heads."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from jarilab.core.errors import UserError, as_user_error
from jarilab.data.example_files import ExampleRow, Kind
from jarilab.data.text.conllu import word_indices
from jarilab.data.text.word_links import word_spans
from jarilab.huggingface.generation import start_token_id
from jarilab.huggingface.loading import Loaded
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
from jarilab.inspect.study.probes import ProbeInput, Rows, other_tokens
from jarilab.inspect.study.weights_digest import weights_digest

KINDS: dict[str, Kind] = {
    "pixel_values": "image",
    "input_features": "sound",
    "input_values": "sound",
}
WORD = re.compile(r"[▁Ġ]?[^\W\d_]{3,}")
MIN_WORDS = 200
"""With fewer words, probes are drawn from all tokens."""


@dataclass(frozen=True)
class EncodedText:
    """A text as a tokenizer gives it. words: the word of each token, or none if they are not needed."""

    inputs: dict[str, list[int]]
    words: list[int | None]

    @property
    def ids(self) -> list[int]:
        return self.inputs["input_ids"]


class HuggingFaceBatches:
    """Reads rows as batches of a model. kind: of the rows. unread: another kind that the model reads beside it."""

    def __init__(self, loaded: Loaded):
        self.loaded = loaded
        self.model: nn.Module = loaded.model
        self.kind: Kind = KINDS.get(main_input(loaded), "text")
        self._parameters = parameters_of(loaded)
        also: list[Kind] = [KINDS[name] for name in KINDS if name in self._parameters]
        self.unread: Kind | None = also[0] if also and self.kind == "text" else None
        self._has_decoder = bool(getattr(loaded.config, "is_encoder_decoder", False))

    def about(self) -> dict[str, Any]:
        """The model of a study: its name, class and a hash."""
        facts = {"model": self.loaded.name, "class": self.loaded.kind}
        return {**facts, "model_digest": self._model_digest}

    @cached_property
    def _model_digest(self) -> str:
        return _digest(self.loaded.folder)

    def start_token(self, row: ExampleRow) -> str | None:
        """The special token that the tokenizer puts in front of a text; None if it adds none."""
        if self.kind != "text":
            return None
        tokenizer = self.loaded.tokenizer
        first = self._encode(row).ids[:1]
        without = tokenizer(row.text, add_special_tokens=False)["input_ids"]
        is_added = first != without[:1] and first[0] in tokenizer.all_special_ids
        return str(tokenizer.convert_ids_to_tokens(first[0])) if is_added else None

    def probe_input(self, row: ExampleRow) -> ProbeInput | None:
        """How random sequences are drawn, with the special tokens of this row around them; None without tokens."""
        if self.kind != "text":
            return None
        tokenizer, model = self.loaded.tokenizer, self.model
        ids = self._encode(ExampleRow(row.origin, row.text)).ids
        inner = [place for place, each in enumerate(ids) if each not in self._special_ids]
        if not inner:
            return None
        start, end = ids[: inner[0]], ids[inner[-1] + 1 :]
        words, longest = self._word_ids(tokenizer, model), max_length(self.loaded)
        pads = "attention_mask" in self._parameters
        if not self._has_decoder:
            return ProbeInput(self.texts_of, words, start, end, longest, pads)
        decoder: Any = model.get_decoder()  # type: ignore[operator]
        others = other_tokens(words, self._word_ids(self.loaded.target_tokenizer, decoder))
        first = start_token_id(self.loaded)
        first_ids = [] if first is None else [first]

        def probe(rows: Rows) -> Batch:
            targets = []
            for each in map(result.inner, rows):
                targets.append([*first_ids, *(others[token] for token in each)])
            return self._pairs_of(rows, targets)

        ids = [*others]
        result = ProbeInput(probe, ids, start, end, longest - 1, pads, len(first_ids))
        return result

    @cached_property
    def _special_ids(self) -> set[int]:
        return {*self.loaded.tokenizer.all_special_ids}

    def _pairs_of(self, sources: Rows, targets: Rows) -> Batch:
        """A batch of pairs of token ids."""
        batch, names = self.texts_of(sources), []
        lengths = torch.tensor([len(each) for each in targets])
        valid = torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)
        ids = _padded(targets, 0)
        for tokens, target in zip(batch.tokens, targets, strict=True):
            names.append({**tokens, "target": list(map(str, target))})
        return replace(
            batch,
            kwargs={**batch.kwargs, "decoder_input_ids": ids},
            tokens=names,
            valid={**batch.valid, "target": valid},
            ids={**batch.ids, "target": ids},
        )

    @staticmethod
    def _word_ids(tokenizer: Any, model: Any) -> list[int]:
        """Tokens that are words of at least three letters; all tokens but special ones if these are few."""
        size = len(model.get_input_embeddings().weight)
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
                self._check_known(self._encode(row))
            elif self.kind == "image":
                read_pixels(self.loaded, row.text)
            else:
                read(self.loaded, row.text)

    def _check_known(self, text: EncodedText) -> None:
        """Raises UserError for a text of special tokens alone, or with more unknown tokens than known ones."""
        tokenizer = self.loaded.tokenizer
        special = self._special_ids - {tokenizer.unk_token_id}
        inner = [each for each in text.ids if each not in special]
        unknown = inner.count(tokenizer.unk_token_id)
        if 2 * unknown > len(inner) or not inner:
            raise UserError(
                f"expected a text in a language of {self.loaded.name}, got {unknown} unknown tokens of {len(inner)}; "
                "use a model of this language, or remove the text"
            )

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
        origins, golds = [row.origin for row in rows], [row.gold for row in rows]
        with _at(rows[0]):
            if self.kind == "image":
                return self._images(rows, origins)
            if self._has_decoder and rows[0].second is not None:
                return self._translation(rows[0])
            if self._has_decoder or self.kind == "sound":
                reading = read(self.loaded, rows[0].text)
                return Batch((), reading.inputs, [reading.names], {}, origins, golds)
            batch = self._texts([self._encode(row) for row in rows])
            return replace(batch, origins=origins, extras=golds)

    def _translation(self, row: ExampleRow) -> Batch:
        """A source with the target that the decoder is forced to write."""
        assert row.second is not None
        source = self._encode(ExampleRow(row.origin, row.text))
        target = self._encode(ExampleRow(row.origin, row.second), is_target=True)
        start = start_token_id(self.loaded)
        target_ids = [start, *target.ids[:-1]]
        names = {
            "source": token_names(self.loaded.tokenizer)(source.ids),
            "target": token_names(self.loaded.target_tokenizer)(target_ids),
        }
        ids = {"source": torch.tensor([source.ids]), "target": torch.tensor([target_ids])}
        inputs = {
            "input_ids": ids["source"],
            "decoder_input_ids": ids["target"],
            "labels": torch.tensor([target.ids]),
        }
        words = {"source": source.words, "target": [None, *target.words[:-1]]}
        kwargs = {name: value for name, value in inputs.items() if name in self._parameters}
        return Batch((), kwargs, [names], {}, [row.origin], [row.gold], [words], ids)

    def _images(self, rows: Sequence[ExampleRow], origins: list[str]) -> Batch:
        pixels = torch.cat([read_pixels(self.loaded, row.text) for row in rows])
        grid = patch_grid(self.loaded, pixels)
        names = {} if grid is None else {"source": patch_names(grid)}
        return Batch((), {"pixel_values": pixels}, [names] * len(rows), {}, origins)

    def _encode(self, row: ExampleRow, *, is_target: bool = False) -> EncodedText:
        """The ids of a row, what the model reads beside them, and the words of the tokens if links need them."""
        loaded = self.loaded
        tokenizer = loaded.target_tokenizer if is_target else loaded.tokenizer
        if row.second is not None or (row.gold is None and not self._has_decoder):
            encoded, words = tokenizer(*row.texts), []
        else:
            encoded, words = _with_words(tokenizer, row, is_target=is_target)
        check_ids(loaded, torch.tensor([encoded["input_ids"]]))
        return EncodedText({name: list(encoded[name]) for name in encoded}, words)

    def texts_of(self, ids: Sequence[Sequence[int]]) -> Batch:
        """A batch of token ids, padded on the right. Tokens are named by their ids, special ones by their names."""
        tokenizer = self.loaded.tokenizer
        special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        encoded = [EncodedText({"input_ids": list(each)}, []) for each in ids]
        names = []
        for each in ids:
            names.append([str(special.get(number, number)) for number in each])
        return self._texts(encoded, names)

    def _texts(
        self, encoded: Sequence[EncodedText], tokens: list[list[str]] | None = None
    ) -> Batch:
        """Rows padded on the right, where padding changes no position."""
        tokenizer = self.loaded.tokenizer
        lengths = torch.tensor([len(each.ids) for each in encoded])
        valid = torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)
        inputs: dict[str, Tensor] = {}
        model: Any = self.model
        pad = tokenizer.pad_token_id or 0
        # The model may lack the tokenizer's padding. Any token will do, since it is masked.
        pad = pad if pad < len(model.get_input_embeddings().weight) else 0
        for name in encoded[0].inputs:
            fill = pad if name == "input_ids" else 0
            inputs[name] = _padded([each.inputs[name] for each in encoded], fill)
        inputs["attention_mask"] = valid.long()
        if tokens is None:
            names = token_names(tokenizer)
            tokens = [names(each.ids) for each in encoded]
        ids = inputs["input_ids"]
        return Batch(
            kwargs={name: value for name, value in inputs.items() if name in self._parameters},
            tokens=[{"source": each, "target": each} for each in tokens],
            valid={"source": valid, "target": valid},
            words=[
                {"source": each.words, "target": each.words} if each.words else {}
                for each in encoded
            ],
            ids={"source": ids, "target": ids},
        )


def _with_words(
    tokenizer: Any, row: ExampleRow, *, is_target: bool
) -> tuple[Any, list[int | None]]:
    """A text with the word of each token: of the sentence of a CoNLL-U file, or words between white space."""
    text = {"text_target": row.text} if is_target else {"text": row.text}
    forms = getattr(row.gold, "forms", None)
    if forms is not None:
        try:
            encoded = tokenizer(list(forms), is_split_into_words=True)
            return encoded, encoded.word_ids()
        except (
            AssertionError,
            ValueError,
        ):  # a tokenizer of bytes, which needs the spaces of the text
            pass
    encoded = tokenizer(**text, return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")
    spans = word_spans(row.text) if forms is None else row.gold.spans
    return encoded, word_indices(offsets, spans)


def _padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])


@contextmanager
def _at(row: ExampleRow) -> Iterator[None]:
    """Put the origin of a row in front of errors of the block."""
    try:
        with as_user_error("the model of this folder cannot read it"):
            yield
    except UserError as error:
        raise UserError(f"{row.origin}: {error}") from None


def _digest(folder: Path) -> str:
    """A hash of the configuration, and of every tensor in the files of weights."""
    hashed = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors = ((name, file.get_tensor(name)) for name in sorted(file.keys()))
            hashed.update(f"{path.name} {weights_digest(tensors)}".encode())
    return hashed.hexdigest()
