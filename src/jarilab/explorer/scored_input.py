"""An input of a run or of a Hugging Face model, and the score of one answer to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from jarilab.core.errors import UserError, closest_match, no_model
from jarilab.core.shapes import Float, Tensor
from jarilab.data.text import END
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.losses import logits_of
from jarilab.positions.coordinates import Tokens

if TYPE_CHECKING:
    from jarilab.huggingface import Loaded
    from jarilab.runs.loaded import OpenRun

MAX_TOKENS = 2048
MAX_NAMES = 12
"""Tokens that an error quotes."""
MAX_COMPARED = 512
"""Answers of two models whose names are compared."""


@dataclass(frozen=True, eq=False)
class ScoredInput:
    """A batch of one row, and the answer whose score is read in the outputs.

    text, continuation: what is read; the continuation is empty if one answer is scored. positions: indices of the
    scores; several for a continuation. labels: the id of the answer, or those of the continuation, one a position.
    rival: the id that the answer is compared with. read: reads another text. find: from the text of an answer and the
    number of ids to its id; raises UserError. show: from an id to text. special: ids of special tokens. unknown: how
    many tokens of the input the tokenizer does not know.
    """

    name: str
    text: str
    continuation: str
    model: nn.Module
    batch: Batch
    positions: list[int]
    read: Callable[[str], ScoredInput]
    find: Callable[[str, int], int]
    show: Callable[[int], str]
    labels: list[int]
    special: Sequence[int] = ()
    unknown: int = 0
    rival: int | None = None

    def scores(self, outputs: Any) -> Float[Tensor, "B P V"]:
        """The scores at the positions, in float64. Raises UserError for outputs without scores."""
        logits = logits_of(outputs)
        if logits is None or logits.ndim not in (2, 3):
            raise _no_scores(self.name, type(outputs).__name__)
        logits_BLV = logits if logits.ndim == 3 else logits.unsqueeze(1)
        return logits_BLV[:, self.positions].double()

    def score(self, outputs: Any, batch: Batch) -> Float[Tensor, " B"]:
        """The mean log-probability of the labels; with a rival, the difference of the two scores."""
        if self.rival is not None:
            return self.lead(outputs, batch)
        scores_BPV = self.scores(outputs)
        return self._of_labels(scores_BPV.log_softmax(-1))

    def linear_score(self, outputs: Any, batch: Batch) -> Float[Tensor, " B"]:
        """The mean logit of the labels less that of the rival, or less the mean logit: linear in the logits."""
        if self.rival is not None:
            return self.lead(outputs, batch)
        scores_BPV = self.scores(outputs)
        return self._of_labels(scores_BPV - scores_BPV.mean(-1, keepdim=True))

    def _of_labels(self, values_BPV: Tensor) -> Float[Tensor, " B"]:
        labels_P = torch.tensor(self.labels, device=values_BPV.device)
        labels_BP1 = labels_P.expand(len(values_BPV), -1).unsqueeze(-1)
        return values_BPV.gather(-1, labels_BP1).mean((1, 2))

    def lead(self, outputs: Any, batch: Batch) -> Float[Tensor, " B"]:
        """The score of the answer less that of the rival, or of the best other answer."""
        scores_BV = self.scores(outputs)[:, 0]
        (label,) = self.labels
        others_BV = scores_BV.clone()
        others_BV[:, label] = -torch.inf
        others_B = others_BV.amax(1) if self.rival is None else scores_BV[:, self.rival]
        return scores_BV[:, label] - others_B

    def probability(self, outputs: Any) -> float | None:
        """That of the answer; None with a rival, and for a continuation."""
        if self.continuation or self.rival is not None:
            return None
        return math.exp(float(self.score(outputs, self.batch)[0]))

    @torch.no_grad()
    def with_answer(self, answer: str | None, rival: str | None) -> ScoredInput:
        """The same input with an answer, by default the most likely one. Raises UserError for an unknown one."""
        scores_V = self.scores(self.batch.forward(self.model))[0, 0]
        labels = self.labels or [int(scores_V.argmax())]
        if answer is not None:
            labels = [self.find(answer, len(scores_V))]
        other = None if rival is None else self.find(rival, len(scores_V))
        if other == labels[0]:
            raise UserError(
                f"expected a rival other than the answer, got {rival!r} for both; name another"
            )
        return replace(self, labels=labels, rival=other)

    def corrupt(self, text: str) -> Batch:
        """Another input for the same model and answer.

        Raises UserError if it has another number of tokens, or the same ones.
        """
        other = self.read(text)
        side = "source" if "source" in self.batch.tokens[0] else "target"
        names, other_names = self.batch.tokens[0][side], other.batch.tokens[0][side]
        if len(names) != len(other_names):
            raise UserError(
                f"expected two inputs of equal length, got {len(names)} and {len(other_names)} tokens: "
                f"{' '.join(names)!r} and {' '.join(other_names)!r}; replace tokens by as many others"
            )
        if _inputs(other.batch)[0] == _inputs(self.batch)[0] and names:
            raise UserError(
                f"expected a second input that the model reads differently, got the same tokens: {' '.join(names)!r}; "
                "replace a token by another one that the model knows"
            )
        args = (*other.batch.args[:1], *self.batch.args[1:])
        kwargs = self.batch.kwargs
        answer = {name: value for name, value in kwargs.items() if name.startswith("decoder_")}
        return replace(self.batch, args=args, kwargs={**other.batch.kwargs, **answer})

    def check_alike(self, other: ScoredInput) -> None:
        """Raise UserError unless another model reads the input as the same ids, and scores the same answers."""
        if _inputs(self.batch) != _inputs(other.batch):
            ours, theirs = (
                f"{each.name}, which reads {' '.join(_names(each.batch)[:MAX_NAMES])!r}"
                for each in (self, other)
            )
            raise UserError(
                f"expected two models that read the same token ids, got {ours}, and {theirs} as other inputs; compare "
                "models of one tokenizer, such as two checkpoints"
            )
        sizes = [each.answers for each in (self, other)]
        numbers = [*self.labels, *range(min(*sizes, MAX_COMPARED))]
        if sizes[0] != sizes[1] or list(map(self.show, numbers)) != list(map(other.show, numbers)):
            raise UserError(
                f"expected two models with one vocabulary, got {sizes[0]} answers of {self.name} and {sizes[1]} of "
                f"{other.name}, or others; compare two checkpoints of one model"
            )

    @property
    @torch.no_grad()
    def answers(self) -> int:
        """The number of tokens or classes that are scored."""
        return self.scores(self.batch.forward(self.model)).shape[-1]


def read_input(
    folder: str | Path, text: str, continuation: str = "", at: int | None = None, **options: Any
) -> ScoredInput:
    """The input of a run, or of a Hugging Face folder, still without an answer.

    continuation: text after `text`, whose tokens are scored. at: index of the score, where a model gives several.
    Raises UserError for a folder that is neither, and for an input that the model cannot read.
    """
    path = Path(folder)
    if continuation and at is not None:
        raise UserError("expected a position or a continuation, got both; leave out one of them")
    if (path / "run.json").is_file():
        from jarilab.runs.loaded import load

        return _of_run(load(path, **options), text, continuation, at)
    if (path / "config.json").is_file():
        from jarilab.huggingface import load as load_model

        return _of_huggingface(load_model(path), text, continuation, at)
    raise no_model(path, or_run=True)


def _of_run(run: OpenRun, text: str, continuation: str, at: int | None) -> ScoredInput:
    predictor, name = run.predictor, run.folder.resolve().name
    if continuation:
        _check_continues(name, continues=predictor.continues)
    trace = predictor.trace(text + continuation, MAX_TOKENS)
    tokens = {side: list(each.names) for side, each in trace.sequences.items()}
    is_measured = (trace.written[0] >= 0).tolist()
    position = len(trace.labels) - 1 if predictor.continues else is_measured.index(True)
    positions, labels = [_position(at, position, tokens.get("target", [""]))], []
    if continuation:
        before = predictor.trace(text, MAX_TOKENS).read
        positions, labels = _continued(list(before), list(trace.read), text, continuation)
    return ScoredInput(
        name,
        text,
        continuation,
        predictor.traced_model,
        Batch(trace.inputs, {}, [tokens]),
        positions,
        read=lambda other: _of_run(run, other, "", None),
        find=lambda answer, size: _named(predictor.names(range(size)), answer, name),
        show=lambda number: predictor.names([number])[0],
        labels=labels,
        special=range(END + 1) if trace.is_text else (),
    )


def _of_huggingface(loaded: Loaded, text: str, continuation: str, at: int | None) -> ScoredInput:
    from jarilab.huggingface import read

    reading, name = read(loaded, text + continuation), loaded.name
    reader = reading.output_reader
    if reader is None:
        raise _no_scores(name, loaded.kind)
    if reader.kind == "words" and reader.mask is None:
        raise UserError(
            f"{name} fills in a mask token, but its tokenizer has none; set tokenizer.mask_token and save the tokenizer"
        )
    if reader.kind == "words":
        raise UserError(
            f"{name} fills in {reader.mask}: expected it in the text, got none; put it where the answer stands"
        )
    tokenizer = None
    if reader.kind in ("next", "masked", "written"):
        is_written = reader.kind == "written"
        tokenizer = loaded.target_tokenizer if is_written else loaded.tokenizer
    default = reader.positions[reader.first]
    positions, labels = [_position(at, default, reading.names.get("target", [""]))], []
    read_ids = reading.inputs["input_ids"][0].tolist() if "input_ids" in reading.inputs else []
    if continuation:
        _check_continues(name, continues=reader.kind == "next")
        before = loaded.tokenizer(text)["input_ids"]
        positions, labels = _continued(before, read_ids, text, continuation)

    def find(answer: str, size: int) -> int:
        if tokenizer is None:
            return _named(reader.names(range(size)), answer, name)
        return _token_id(tokenizer, answer, name, size)

    return ScoredInput(
        name,
        text,
        continuation,
        loaded.model,
        Batch((), reading.inputs, [dict(reading.names)]),
        positions,
        read=lambda other: _of_huggingface(loaded, other, "", None),
        find=find,
        show=lambda each: _token_text(tokenizer, each) if tokenizer else reader.names([each])[0],
        labels=labels,
        special=loaded.tokenizer.all_special_ids if read_ids else (),
        unknown=read_ids.count(loaded.tokenizer.unk_token_id) if read_ids else 0,
    )


def _token_text(tokenizer: Any, number: int) -> str:
    """A token as text; its name or number if the tokenizer decodes it to nothing."""
    name = tokenizer.convert_ids_to_tokens(number)
    return tokenizer.decode([number]) or name or f"token {number}"


def _position(at: int | None, default: int, tokens: Sequence[str]) -> int:
    """The index of the score; `at` may count from the end."""
    if at is None:
        return default
    if not -len(tokens) <= at < len(tokens):
        names = ", ".join(f"{place} {name!r}" for place, name in enumerate(tokens))
        raise UserError(
            f"expected a position from 0 to {len(tokens) - 1}, got {at}; choose one of {names}"
        )
    return at % len(tokens)


def _continued(
    before: list[int], ids: list[int], text: str, continuation: str
) -> tuple[list[int], list[int]]:
    """The positions before the tokens of a continuation, and these tokens."""
    if ids[: len(before)] != before or len(ids) == len(before):
        raise UserError(
            f"expected a continuation that begins with a new token, got {continuation!r} after {text[-20:]!r}, which "
            "are read as one; move the border, such as the space before a word, into the continuation"
        )
    return list(range(len(before) - 1, len(ids) - 1)), ids[len(before) :]


def _names(batch: Batch) -> list[str]:
    names = batch.tokens[0]
    return names["source"] if "source" in names else names["target"]


def _inputs(batch: Batch) -> list[Any]:
    """The ids that are read first, and the names of all inputs: an answer that the model wrote itself may differ."""
    inputs = [
        each.ids if isinstance(each, Tokens) else each
        for each in tree_leaves((batch.args, batch.kwargs))
    ]
    first = inputs[0].tolist() if isinstance(inputs[0], Tensor) else None
    return [first, len(inputs), sorted(batch.kwargs)]


# Errors and names ----------------------------------------------------------------------------------------------------


def _no_scores(name: str, kind: str) -> UserError:
    return UserError(
        f"{name}: expected a model that gives scores of tokens or classes, got {kind}; use a model with a head for "
        "language modelling or classification. For a model of vectors, jarilab heads FOLDER --data FILE --importance "
        "zero --importance-by embedding measures how far each head moves them"
    )


def _check_continues(name: str, *, continues: bool) -> None:
    if not continues:
        raise UserError(
            f"{name}: expected a model that continues a text, got one that answers; name an answer instead of a "
            "continuation"
        )


def _named(names: Sequence[str], answer: str, model: str) -> int:
    """The id of a token or class by its name."""
    for text in (answer, answer.strip()):
        if text in names:
            return list(names).index(text)
    pieces = answer.split() if len(answer.split()) > 1 else list(answer)
    if len(pieces) > 1 and all(piece in names for piece in pieces):
        raise UserError(
            f"expected an answer of one token, got {answer!r}, which is {len(pieces)} tokens of {model}: "
            f"{', '.join(map(repr, pieces))}; give the first of them"
        )
    closest = closest_match(answer.strip(), names)
    examples = [closest] if closest else names[:12]
    raise UserError(
        f"expected one token or class of {model} as answer, got {answer!r}, which is none; name one such as "
        + ", ".join(map(repr, examples))
    )


def _token_id(tokenizer: Any, answer: str, model: str, size: int) -> int:
    """The id of an answer of one token."""
    ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    if len(ids) == 2 and not tokenizer.decode(ids[:1]).strip():
        # Some tokenizers mark the start of a word, and read a space before it as a token of its own.
        ids = tokenizer(answer.strip(), add_special_tokens=False)["input_ids"]
    if not ids:
        raise UserError(
            f"expected an answer of one token, got {answer!r}, an empty text; write the token"
        )
    if len(ids) != 1:
        pieces = ", ".join(repr(tokenizer.decode([each])) for each in ids)
        raise UserError(
            f"expected an answer of one token, got {answer!r}, which is {len(ids)} tokens of {model}: {pieces}; give "
            "the first of them, or score all of them with --continuation"
        )
    if ids[0] >= size or ids[0] == tokenizer.unk_token_id:
        raise UserError(
            f"expected a token of {model} as answer, got {answer!r}, which it does not know; write it as in the text"
        )
    return int(ids[0])
