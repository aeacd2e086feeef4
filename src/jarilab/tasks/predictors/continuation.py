"""Text that goes on where a prompt ends, drawn token by token."""

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
from jarilab.models.decoding import sample
from jarilab.tasks.predictors.base import (
    AT_ONCE,
    NoOptions,
    Prediction,
    Predictor,
    Trace,
    TracedSequence,
    next_tokens,
    registry,
)
from jarilab.tasks.predictors.sequences import check_tokens, token_vocabulary

FIRST_FREE = END + 1
"""The first token number of a vocabulary that stands for text."""

UNFINISHED = "\ufffd"
"""What a character that is cut off inside its bytes shows as."""


@dataclass(frozen=True, kw_only=True)
class ContinuationOptions:
    """How text is drawn.

    max_new_tokens: how many to write at most. temperature: scores are divided by it; 0 takes the likeliest token
    always. top_k: draw from so many of the likeliest tokens only. top_p: draw from the likeliest tokens that together
    hold this probability only. min_p: leave out tokens below this share of the likeliest one's probability.
    repetition_penalty: above 1, what was written before counts less. stop: texts before which it ends. seed: decides
    what is drawn.
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
    """What a language model writes after a prompt.

    pieces: each as soon as it is drawn; they are drawn once, and kept.
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
        """All of what is written."""
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
    """Of language models: a `TokenTask` whose one sequence goes on."""

    needs = Generates
    options = ContinuationOptions
    scoring = NoOptions
    served_at_most: ClassVar[Mapping[str, int | float]] = {
        "max_new_tokens": 4096,
        "temperature": 1000,
        "repetition_penalty": 1000,
    }
    reported = False  # it goes on without an answer, which a report shows its maps behind
    continues = True

    def predict(
        self,
        sources: Iterable[str | UserError],
        options: ContinuationOptions,
        *,
        at_once: int = AT_ONCE,
    ) -> Iterator[Continuation]:
        if "" in options.stop:
            raise UserError(
                "a text to stop at has one character or more, got an empty one; omit it"
            )
        for prompt in sources:
            if isinstance(prompt, UserError):
                yield Continuation("", iter(()), str(prompt))
            else:
                yield Continuation(prompt, self._pieces(prompt, options))

    def _pieces(self, prompt: str, options: ContinuationOptions) -> Iterator[str]:
        read = self.task.read(prompt)
        drawn = sample(
            self.model,
            self.task.sources([read]).ids.to(device_of(self.model)),
            end=END,
            longest=options.max_new_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            seed=options.seed,
            context=self.task.longest["target"],
            places=self.task.answer_places(),
        )
        numbers = (int(token.ids[0]) for token in drawn)
        return _certain_pieces(self.task, read, numbers, options.stop)

    @torch.no_grad()
    def trace(self, line: str, most: int) -> Trace:
        """A language model only reads: after each token comes the next, and after the last what is likeliest."""
        read = self.task.read(line)
        check_tokens(len(read), most)
        batch = self.task.sources([read])
        sequence = TracedSequence(self.names(batch.ids[0].tolist()))
        labels = [*read[1:], _likeliest(self.says(batch))]
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


def _likeliest(outputs: Any) -> int:
    """What may come after the last token."""
    return int(scores_of(outputs)[0, -1].float().argmax())


def _certain_pieces(
    task: Any, prompt: Sequence[int], numbers: Iterable[int], stop: Sequence[str]
) -> Iterator[str]:
    """Text as soon as it is certain: whole characters only, and nothing that may be the beginning of a stop."""
    written = list(
        prompt
    )  # where words are put together with spaces, one stands between the prompt and the first
    begun = len(task.write(written))
    given = 0
    waiting = max((len(text) for text in stop), default=1) - 1
    text = ""
    for number in numbers:
        written.append(number)
        text = task.write(written)[begun:]
        found = _first_stop(text, stop, max(0, given - waiting))
        if found is not None:
            yield text[given:found]
            return
        certain = max(given, len(text.rstrip(UNFINISHED)) - waiting)
        if certain > given:
            yield text[given:certain]
            given = certain
    yield text[given:]


def _first_stop(text: str, stop: Sequence[str], start: int) -> int | None:
    """Where the first of the stops begins; None where there is none."""
    places = [text.find(one, start) for one in stop]
    return min((place for place in places if place >= 0), default=None)
