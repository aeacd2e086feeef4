"""Text that continues a prompt, drawn token by token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, final

import torch
from annotated_types import Ge, Le, Lt

from jarilab.core.devices import device_of
from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST
from jarilab.inspect.record.model_io import scores_of
from jarilab.models.base import Generates
from jarilab.models.decoding import rows_of, sample
from jarilab.tasks.predictors.base import (
    AT_ONCE,
    Inputs,
    Prediction,
    Predictor,
    Source,
    Trace,
    TracedSequence,
    chunks,
    next_tokens,
    read_each,
    registry,
)
from jarilab.tasks.predictors.sequences import check_tokens, token_vocabulary

FIRST_FREE = END + 1
"""The first token id of a vocabulary that stands for text."""

UNFINISHED = "\ufffd"
"""Shown for a character whose bytes are incomplete."""


@dataclass(frozen=True, kw_only=True)
class ContinuationOptions:
    """Options of sampling.

    max_new_tokens: maximal number of tokens to write. temperature: divides the scores; 0 always takes the most likely
    token. top_k: draw from this many most likely tokens. top_p: draw from the most likely tokens with this total
    probability. min_p: exclude tokens below this share of the largest probability. repetition_penalty: above 1, lowers
    the scores of earlier tokens. stop: end before any of these texts. seed: seed of the random numbers.
    """

    max_new_tokens: Annotated[int, Le(1_000_000)] = 200
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    seed: Annotated[int, Ge(0), Lt(2**63)] = 1


@final
@dataclass(eq=False)
class Continuation(Prediction):
    """The text that a language model writes after a prompt.

    pieces: each piece as soon as it is drawn. They are drawn once and kept.
    """

    input: str
    pieces: Iterator[str]
    error: str | None = None
    written: str = ""

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces:
            self.written += piece
            yield piece

    def stream(self) -> Iterator[str]:
        return iter(self)

    @property
    def continuation(self) -> str:
        """The whole written text."""
        for _ in self:
            pass
        return self.written

    def record(self) -> dict[str, Any]:
        record = {"prompt": self.input, "text": self.continuation}
        return record if self.error is None else record | {"error": self.error}

    def text(self) -> Iterator[str]:
        if self.error is None:
            yield self.input
            yield from self
        yield "\n"


@registry.register("continuation")
@final
class ContinuationPredictor(Predictor):
    """Predictor of language models: a `TokenTask` with one sequence."""

    needs = Generates
    options = ContinuationOptions
    served_at_most: ClassVar[Mapping[str, int | float]] = {
        "max_new_tokens": 4096,
        "temperature": 1000,
        "repetition_penalty": 1000,
    }
    reported = False  # a report shows maps of answers, and a continuation has none
    continues = True

    def predict(
        self, sources: Inputs, options: ContinuationOptions, *, at_once: int = AT_ONCE
    ) -> Iterator[Continuation]:
        if "" in options.stop:
            raise UserError(
                "--stop: expected a text of one character or more, got an empty one; omit it"
            )
        for chunk in chunks(read_each(sources, self.task.read), at_once):
            by_length: dict[int, list[Source]] = {}
            for source in chunk:
                if source.error is None:
                    by_length.setdefault(len(source.read), []).append(source)
            tokens: dict[int, Iterator[int]] = {}
            for equal in by_length.values():
                numbers = [source.number for source in equal]
                tokens |= zip(numbers, self._tokens(equal, options), strict=True)
            for source in chunk:
                pieces: Iterator[str] = iter(())
                if source.error is None:
                    drawn = tokens.pop(source.number)
                    pieces = _certain_pieces(self.task, source.read, drawn, options.stop)
                yield Continuation(source.text, pieces, source.error)

    def _tokens(
        self, sources: Sequence[Source], options: ContinuationOptions
    ) -> list[Iterator[int]]:
        """The tokens that follow each of some prompts of equal length, which are drawn together."""
        drawn = sample(
            self.model,
            self.task.sources([source.read for source in sources]).ids.to(device_of(self.model)),
            end=END,
            longest=options.max_new_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            seed=[options.seed] * len(sources),
            context=self.task.longest["target"],
            places=self.task.answer_places(),
        )
        return rows_of(drawn, len(sources))

    @torch.no_grad()
    def trace(self, line: str, most: int) -> Trace:
        """Trace a text: the label after each token is the next one, and after the last the most likely one."""
        read = self.task.read(line)
        check_tokens(len(read), most)
        batch = self.task.sources([read])
        sequence = TracedSequence(self.names(batch.ids[0].tolist()))
        labels = [*read[1:], int(scores_of(self.says(batch))[0, -1].float().argmax())]
        written = next_tokens(batch.ids)
        sequences = {"target": sequence}
        return Trace(line, read, (batch,), sequences, labels, written, is_text=True)

    def names(self, numbers: Iterable[int]) -> list[str]:
        return self.task.show_target(list(numbers))

    def text_of_page(self) -> dict[str, Any]:
        *_, size = self.task.model_options.values()
        names = self.names(range(size))
        return {
            "kind": "continuation",
            "tokens": {"source": names, "target": names},
            "first": FIRST,
            **asdict(self.task.spelling),
        }

    @property
    def vocabulary(self) -> str:
        return token_vocabulary(self.task)

    @property
    def block_tokens(self) -> Sequence[int]:
        size = next(iter(self.task.model_options.values()))
        return range(FIRST_FREE, size)


def _certain_pieces(
    task: Any, prompt: Sequence[int], numbers: Iterable[int], stop: Sequence[str]
) -> Iterator[str]:
    """Yield text as soon as it is certain: whole characters, and nothing that may begin a stop text."""
    # The prompt is decoded too: words are joined with spaces, also the first new word.
    written = list(prompt)
    begun = len(task.write(written))
    yielded = 0
    waiting = max((len(text) for text in stop), default=1) - 1
    text = ""
    for number in numbers:
        written.append(number)
        text = task.write(written)[begun:]
        places = [text.find(one, max(0, yielded - waiting)) for one in stop]
        starts = [place for place in places if place >= 0]
        if starts:
            yield text[yielded : min(starts)]
            return
        certain = max(yielded, len(text.rstrip(UNFINISHED)) - waiting)
        if certain > yielded:
            yield text[yielded:certain]
            yielded = certain
    yield text[yielded:]
