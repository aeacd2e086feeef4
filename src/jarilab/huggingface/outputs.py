"""Reads the answer of a transformers model from its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from jarilab.core.shapes import Bool, Float, Int
from jarilab.data.text.pieces import BYTE
from jarilab.huggingface.generation import Generated
from jarilab.huggingface.greedy import greedy_rules, unsupported_setting, vocabulary_size
from jarilab.huggingface.loading import Loaded

Kind = Literal["next", "masked", "words", "written", "class", "labels"]
Names = Callable[[Sequence[int]], list[str]]

UNDECODABLE = "\ufffd"
"""What a tokenizer decodes bytes of an incomplete character to."""
PART_NUMBERS = "¹²³⁴⁵⁶⁷⁸"
MAX_PARTS = len(PART_NUMBERS)
"""Tokens that may share a character."""
BLANKS = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})


@dataclass(frozen=True, eq=False)
class OutputReader:
    """Scores of a model at some positions, and how they become an answer.

    kind: `next`, the token after a text; `masked`, the tokens at masks; `words`, the given tokens, for a masked model
        without a mask in its input; `written`, the output of an encoder-decoder; `class`, of the whole input; `labels`,
        a class of each token.
    positions: indices of the scores. labels: the token or class at each of them. names: from their ids to text.
    decode: from the most likely ids of the answer to text, or None if there is no answer.
    first: index of the first of `positions` that belongs to the answer.
    generates: whether `decode` runs the model again, to generate token by token.
    excluded: of generated text, the tokens that its rules exclude at each of `positions`; None if they are unknown.
    mask: the mask token of a masked model, as text. before: the id before the first label, of a text that goes on.
    """

    kind: Kind
    positions: list[int]
    labels: list[int]
    names: Names
    decode: Callable[[list[int]], str | None]
    first: int = 0
    generates: bool = False
    excluded: Bool[Tensor, "P V"] | None = None
    mask: str | None = None
    before: Sequence[int] = ()

    @property
    def label_names(self) -> list[str]:
        """The text of the labels."""
        return self.names([*self.before, *self.labels])[len(self.before) :]

    def position_scores(self, outputs: Any) -> Float[Tensor, "P V"]:
        """The scores at all positions."""
        scores = outputs.logits[0]
        rows_LV = scores if scores.ndim == 2 else scores.unsqueeze(0)
        return rows_LV[self.positions]

    def answer_scores(self, outputs: Any) -> Float[Tensor, "A V"]:
        """The scores at the positions of the answer."""
        return self.position_scores(outputs)[self.first :]

    @property
    def answer_labels(self) -> list[int]:
        """The labels at the positions of the answer."""
        return self.labels[self.first :]

    def chosen(self, scores_AV: Float[Tensor, "A V"]) -> Int[Tensor, " A"]:
        """The tokens that these scores choose at the positions of the answer."""
        if self.excluded is not None:
            scores_AV = scores_AV.masked_fill(self.excluded[self.first :], -math.inf)
        return scores_AV.argmax(-1)

    def answer(self, outputs: Any) -> str | None:
        """The answer in these outputs; inside `operate`, that of the changed model."""
        return self.decode(self.answer_scores(outputs).argmax(-1).tolist())


def text_output_reader(loaded: Loaded, ids: Sequence[int], outputs: Any) -> OutputReader | None:
    """The reader for a model of one text, or None if its outputs are no scores of a softmax."""
    scores = getattr(outputs, "logits", None)
    if not isinstance(scores, Tensor):
        return None
    if scores.ndim == 2:
        return class_output_reader(loaded, outputs)
    if scores.shape[1] != len(ids):
        return None
    tokenizer, names = loaded.tokenizer, token_names(loaded.tokenizer)
    decode = _decoder(loaded.tokenizer)
    positions = list(range(len(ids)))
    best_L = scores[0].argmax(-1)
    if "MaskedLM" in loaded.kind:
        masks = [position for position in positions if ids[position] == tokenizer.mask_token_id]
        if not masks:
            mask = tokenizer.mask_token
            return OutputReader("words", positions, list(ids), names, _no_answer, mask=mask)
        return OutputReader("masked", masks, best_L[masks].tolist(), names, decode)
    # Encoder-decoders for conditional generation have readers of their own.
    if any(head in loaded.kind for head in ("CausalLM", "LMHead", "ConditionalGeneration")):
        labels = [*ids[1:], int(best_L[-1])]
        return OutputReader("next", positions, labels, names, decode, len(ids) - 1, before=ids[:1])
    if "TokenClassification" in loaded.kind:
        return OutputReader("labels", positions, best_L.tolist(), _class_names(loaded), _no_answer)
    return None


def class_output_reader(loaded: Loaded, outputs: Any) -> OutputReader | None:
    """The reader for a classifier, or None if its outputs are no scores of a softmax, as in a regression."""
    scores = getattr(outputs, "logits", None)
    is_multi_label = getattr(loaded.config, "problem_type", None) == "multi_label_classification"
    if not isinstance(scores, Tensor) or scores.ndim != 2 or scores.shape[1] < 2 or is_multi_label:
        return None
    names = _class_names(loaded)
    return OutputReader("class", [0], [int(scores[0].argmax())], names, lambda ids: names(ids)[0])


def generated_output_reader(
    loaded: Loaded,
    generated: Generated,
    generate: Callable[[], str | None],
) -> OutputReader | None:
    """The reader for an encoder-decoder, whose answer does not include the prompt."""
    labels = generated.ids[1:]
    if len(labels) <= generated.prompt:
        return None
    positions = list(range(len(labels)))
    return OutputReader(
        "written",
        positions,
        labels,
        token_names(loaded.target_tokenizer),
        lambda _: generate(),
        first=generated.prompt,
        generates=True,
        excluded=_excluded(loaded, generated),
    )


def _excluded(loaded: Loaded, generated: Generated) -> Bool[Tensor, "P V"] | None:
    if unsupported_setting(loaded.model) is not None:
        return None
    rules = greedy_rules(loaded.model, generated.prompt, generated.limit)
    return rules.excluded(generated.ids, vocabulary_size(loaded.model))


def _decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """From ids to text; to the names of the tokens if they hold an incomplete character."""

    def decode(ids: Sequence[int]) -> str:
        text = tokenizer.decode(ids)
        return " ".join(token_names(tokenizer)(ids)) if UNDECODABLE in text else text

    return decode


def token_names(tokenizer: Any) -> Names:
    """A function from the ids of consecutive tokens to the text of each.

    Tokens that are parts of a character have its text and a number: `한¹`, `한²`, `한³`.
    """

    def names(ids: Sequence[int]) -> list[str]:
        found: list[str] = []
        while len(found) < len(ids):
            rest = ids[len(found) : len(found) + MAX_PARTS]
            texts = (tokenizer.decode(rest[:count]) for count in range(1, len(rest) + 1))
            whole = (
                (count, text) for count, text in enumerate(texts, 1) if UNDECODABLE not in text
            )
            count, text = next(whole, (1, ""))
            if count == 1:
                found.append(_token_name(tokenizer, rest[0]))
            else:
                found += [f"{text.strip()}{part}" for part in PART_NUMBERS[:count]]
        return found

    return names


def _token_name(tokenizer: Any, token_id: int) -> str:
    text = tokenizer.decode([token_id])
    if text and UNDECODABLE not in text:
        return text.strip() or text.translate(BLANKS)
    # A model may have scores for more ids than its tokenizer has tokens.
    piece = tokenizer.convert_ids_to_tokens(token_id) or f"#{token_id}"
    if not BYTE.keys() >= set(piece):
        return piece
    return bytes(BYTE[letter] for letter in piece).decode(errors="backslashreplace").strip()


def _class_names(loaded: Loaded) -> Names:
    names = getattr(loaded.config, "id2label", None) or {}
    return lambda ids: [str(names.get(class_id, class_id)) for class_id in ids]


def _no_answer(_: list[int]) -> None:
    return None
