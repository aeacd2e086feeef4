"""What a model says of what it has read: scores of words or of classes at some places, and the answer that they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from jarilab.core.shapes import Float
from jarilab.huggingface.folder import Loaded

Kind = Literal["next", "masked", "words", "written", "class", "labels"]
Names = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True, eq=False)
class Says:
    """Scores at places, and what they say.

    kind: `next`, the token that follows a text; `masked`, the tokens under masks; `words`, of a masked model that was
        given no mask, the words where they stand; `written`, what an encoder-decoder writes; `class`, of the whole
        input; `labels`, a class of each token.
    places: whose scores are shown. labels: what is said at each. first: from which of them on it is the answer.
    names: of what can be said, by number. tells: the answer, of what is likeliest at its places; None for none.
    anew: to tell it runs the model again, which writes token by token. mask: of a masked model, how a mask is written.
    """

    kind: Kind
    places: list[int]
    labels: list[int]
    names: Names
    tells: Callable[[list[int]], str | None]
    first: int = 0
    anew: bool = False
    mask: str | None = None

    def shown(self, outputs: Any) -> Float[Tensor, "P V"]:
        """The scores at all places."""
        scores = outputs.logits[0]
        rows_LV = scores if scores.ndim == 2 else scores.unsqueeze(0)
        return rows_LV[self.places]

    def scores(self, outputs: Any) -> Float[Tensor, "A V"]:
        """The scores of the answer."""
        return self.shown(outputs)[self.first :]

    @property
    def said(self) -> list[int]:
        """The labels of the answer."""
        return self.labels[self.first :]

    def answer(self, outputs: Any) -> str | None:
        """The answer of a forward; inside `operate`, that of the changed model."""
        return self.tells(self.scores(outputs).argmax(-1).tolist())


def says_of_text(loaded: Loaded, ids: Sequence[int], outputs: Any) -> Says | None:
    """What a model of one text says; None of what gives no scores, or none that are shares of a whole."""
    scores = getattr(outputs, "logits", None)
    if not isinstance(scores, Tensor):
        return None
    if scores.ndim == 2:
        return says_class(loaded, outputs)
    tokenizer, names, text = (
        loaded.tokenizer,
        names_of(loaded.tokenizer),
        _text_of(loaded.tokenizer),
    )
    everywhere = list(range(len(ids)))
    if scores.shape[1] != len(ids):
        return None
    likeliest_L = scores[0].argmax(-1)
    if "MaskedLM" in loaded.kind:
        masks = [place for place in everywhere if ids[place] == tokenizer.mask_token_id]
        if not masks:
            return Says("words", everywhere, list(ids), names, _nothing, mask=tokenizer.mask_token)
        return Says("masked", masks, likeliest_L[masks].tolist(), names, text)
    if "CausalLM" in loaded.kind or "LMHead" in loaded.kind:
        labels = [*ids[1:], int(likeliest_L[-1])]
        return Says("next", everywhere, labels, names, text, len(ids) - 1)
    if "TokenClassification" in loaded.kind:
        return Says("labels", everywhere, likeliest_L.tolist(), _classes(loaded), _nothing)
    return None


def says_class(loaded: Loaded, outputs: Any) -> Says | None:
    """What a classifier says; None of numbers that are no shares of a whole, as of a regression."""
    scores = getattr(outputs, "logits", None)
    several = getattr(loaded.config, "problem_type", None) == "multi_label_classification"
    if not isinstance(scores, Tensor) or scores.ndim != 2 or scores.shape[1] < 2 or several:
        return None
    names = _classes(loaded)
    return Says("class", [0], [int(scores[0].argmax())], names, lambda said: names(said)[0])


def says_written(
    loaded: Loaded, written: Sequence[int], writes: Callable[[], str | None]
) -> Says | None:
    """What an encoder-decoder says, which has written these tokens, the first of them unasked."""
    labels = list(written[1:])
    if not labels:
        return None
    places = list(range(len(labels)))
    names = names_of(loaded.target_tokenizer)
    return Says("written", places, labels, names, lambda _: writes(), anew=True)


def _text_of(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """What tokens say together; by their names where that is no whole character, as one byte of Korean is not."""

    def text(ids: Sequence[int]) -> str:
        read = tokenizer.decode(ids)
        return " ".join(names_of(tokenizer)(ids)) if "�" in read else read

    return text


def names_of(tokenizer: Any) -> Names:
    """How each token reads; the tokenizer's own spelling of one that is no whole character."""

    def names(ids: Sequence[int]) -> list[str]:
        return [_name(tokenizer, number) for number in ids]

    return names


def _name(tokenizer: Any, number: int) -> str:
    text = tokenizer.decode([number])
    if text.strip() and "�" not in text:
        return text.strip()
    # A model may score more numbers than its tokenizer has tokens.
    return tokenizer.convert_ids_to_tokens(number) or f"#{number}"


def _classes(loaded: Loaded) -> Names:
    named = getattr(loaded.config, "id2label", None) or {}
    return lambda numbers: [str(named.get(number, number)) for number in numbers]


def _nothing(_: list[int]) -> None:
    """The answer of a model that gives none."""
