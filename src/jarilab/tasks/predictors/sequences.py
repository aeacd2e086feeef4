"""Sequences of tokens that answer sequences of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, final

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.data.text import END, FIRST, PADDING
from jarilab.inspect.intervene.interventions import operate
from jarilab.inspect.intervene.moved_positions import MovedModel, move_tokens
from jarilab.models.base import Generates
from jarilab.models.decoding.answers import Decoding
from jarilab.models.decoding.hypotheses import Hypothesis
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.predictors.base import (
    AT_ONCE,
    NO_LABEL,
    SHOWN,
    Inputs,
    Intervention,
    ModelLearner,
    Prediction,
    Predictor,
    Source,
    Trace,
    TracedSequence,
    chunks,
    expected_of,
    read_each,
    registry,
    write,
)
from jarilab.tasks.predictors.comet import Comet
from jarilab.tasks.predictors.links import Linking


@dataclass(frozen=True, kw_only=True)
class SequenceOptions(Decoding):
    """n_best: different answers to each source, best first, with their scores; at most the beam's size. alignments:
    append the source token that each token of the answer attends to most, as `answer ||| 0-0 1-2` (source-target, from
    0). With auto, by the mean head of the last layer but one; with a site and a head, such as decoder.1.cross:2, by
    that head.
    """

    n_best: int = 1
    alignments: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(Decoding):
    """comet: judge translations by COMET, too, with the program comet-score on PATH, which downloads its model once.
    comet_model: model of COMET: its name on Hugging Face, or a checkpoint file.
    """

    comet: bool = False
    comet_model: str = "Unbabel/wmt22-comet-da"


@final
@dataclass(frozen=True)
class Answer(Prediction):
    """An answer to one line, or the error.

    rank: 1 for the best answer. tokens: the written tokens, with the end, and their probabilities. score:
    log_probability / length ** length_penalty. ranked: whether there are several answers. source: the source tokens.
    alignment: pairs (source, target), or None if not requested.
    """

    line: int
    input: str
    answer: str | None = None
    rank: int = 1
    log_probability: float | None = None
    score: float | None = None
    tokens: tuple[tuple[str, float], ...] = ()
    error: str | None = None
    ranked: bool = False
    source: tuple[str, ...] = ()
    alignment: tuple[tuple[int, int], ...] | None = None

    def record(self) -> dict[str, Any]:
        tokens = [{"token": token, "probability": share} for token, share in self.tokens]
        record = {
            "line": self.line,
            "input": self.input,
            "answer": self.answer,
            "rank": self.rank,
            "log_probability": self.log_probability,
            "score": self.score,
            "tokens": tokens,
            "error": self.error,
        }
        if self.alignment is None:
            return record
        return {**record, "source": list(self.source), "alignment": list(map(list, self.alignment))}

    def text(self) -> Iterator[str]:
        # An error gives an empty line, so that line n answers input n.
        answer = self.answer or ""
        if self.alignment is not None:
            links = " ".join(f"{source}-{target}" for source, target in self.alignment)
            answer = f"{answer} ||| {links}"
        if self.ranked and self.score is not None:
            answer = f"{self.line}\t{self.score:.4f}\t{answer}"
        yield f"{answer}\n"

    @property
    def messages(self) -> list[str]:
        return [] if self.error is None else [f"line {self.line}: {self.error}"]


@registry.register("sequences")
class SequencePredictor(Predictor):
    """Predictor of tasks that answer a text or a number with another, a `TokenTask`."""

    needs = Generates
    options = SequenceOptions
    scoring = ScoringOptions
    served_at_most: ClassVar[Mapping[str, int | float]] = {
        "beam_size": 16,
        "n_best": 16,
        "length_penalty": 16,
        "no_repeat": 64,
        "shortest": 4096,
        "longest": 4096,
    }
    source_frame: ClassVar[str] = "source"
    """The frame of the source."""

    def predict(
        self, sources: Inputs, options: SequenceOptions, *, at_once: int = AT_ONCE
    ) -> Iterator[Answer]:
        linking = None if options.alignments is None else Linking.of(self.model, options.alignments)
        yield from answer_each(
            sources, self.task.read, at_once, lambda some: self._answers(some, options, linking)
        )

    def _answers(
        self, sources: Sequence[Source], options: SequenceOptions, linking: Linking | None
    ) -> dict[int, list[Answer]]:
        # Similar lengths share a batch, so that little is padded and no short answer waits for a long one.
        by_length = sorted(sources, key=lambda source: len(source.read))
        answers: dict[int, list[Answer]] = {}
        for some in chunks(by_length, max(1, AT_ONCE // max(1, options.beam_size))):
            batch = self.task.sources([source.read for source in some])
            # All of a beam, since some may have an equal text.
            every = options.beam_size if 1 < options.n_best <= options.beam_size else options.n_best
            written = write(self.model, self.task, batch, options, every)
            for source, hypotheses in zip(some, written, strict=True):
                best = self._best(source, hypotheses, options.n_best)
                answers[source.number] = [
                    self._linked(answer, source, hypothesis, linking) for answer, hypothesis in best
                ]
        return answers

    def _best(
        self, source: Source, hypotheses: Sequence[Hypothesis], n_best: int
    ) -> list[tuple[Answer, Hypothesis]]:
        """Return the best answers with different texts. A text keeps its best hypothesis."""
        best: dict[str | None, tuple[Answer, Hypothesis]] = {}
        for hypothesis in hypotheses:
            answer = self._answer(source, len(best) + 1, hypothesis, n_best > 1)
            best.setdefault(answer.answer, (answer, hypothesis))
            if len(best) == n_best:
                break
        return list(best.values())

    def _linked(
        self, answer: Answer, source: Source, hypothesis: Hypothesis, linking: Linking | None
    ) -> Answer:
        """Return the answer with its links to the source, if requested."""
        if linking is None:
            return answer
        links = linking.links(self.model, self.task, source.read, hypothesis.ids.tolist())
        names = tuple(self.task.show_source(source.read))
        return replace(answer, source=names, alignment=tuple(links))

    def _answer(self, source: Source, rank: int, hypothesis: Hypothesis, ranked: bool) -> Answer:
        ids = hypothesis.ids.tolist()
        line = source.text.strip()
        text = self.task.answer(ModelLearner(self.model, self.task), line, source.read, ids)
        probabilities = hypothesis.log_probabilities.exp().tolist()
        tokens = tuple(zip(self.names(ids), probabilities, strict=True))
        total, score = hypothesis.total, hypothesis.score
        return Answer(source.number, line, text, rank, total, score, tokens, ranked=ranked)

    def learner(self, options: Decoding | None = None) -> ModelLearner:
        judge = None
        if isinstance(options, ScoringOptions) and options.comet:
            if getattr(self.task, "words", None) is None:
                raise UserError(
                    "comet: expected a run that BLEU judges, as of translation; omit --comet"
                )
            judge = Comet.find(options.comet_model).judge
        return ModelLearner(self.model, self.task, options or Decoding(), judge)

    def trace(self, line: str, most: int) -> Trace:
        source = self.task.read(line)
        check_tokens(len(source), most)
        batch = self.task.sources([source])
        ids = write(self.model, self.task, batch)[0][0].ids.tolist()
        text = self.task.answer(ModelLearner(self.model, self.task), line.strip(), source, ids)
        expected = expected_of(self.task, line.strip())
        inputs = self.task.answered(source, ids)
        sequences, labels, written = self._followed(inputs, ids)
        return Trace(
            line.strip(), source, inputs, sequences, labels, written, text, expected, is_text=True
        )

    def _followed(
        self, inputs: tuple[Tokens, ...], answer: list[int]
    ) -> tuple[dict[str, TracedSequence], list[int], Int[Tensor, "1 L"]]:
        """Return sequences, labels and written tokens for a trace."""
        source, target = (tokens.ids[0].tolist() for tokens in inputs)
        sequences = {
            "source": TracedSequence(self.task.show_source(source)),
            "target": TracedSequence(self.names(target)),
        }
        return sequences, answer, torch.tensor([answer])

    def names(self, numbers: Iterable[int]) -> list[str]:
        return self.task.show_target(list(numbers))

    def text_of_page(self) -> dict[str, Any] | None:
        task = self.task
        sizes = list(task.model_options.values())
        shown = (task.show_source, task.show_target)
        names = [show(range(size)) for show, size in zip(shown, sizes, strict=True)]
        return {
            "kind": "sequence",
            "tokens": dict(zip(("source", "target"), names, strict=True)),
            "first": FIRST,
            "end": END,
            "padding": PADDING,
            "longest": task.longest,
            **asdict(task.spelling),
        }

    @property
    def vocabulary(self) -> str:
        return token_vocabulary(self.task)

    def edited(self, trace: Trace, intervention: Intervention) -> str:
        writer: Any = self.model
        places = intervention.places
        if "target" in places:
            self._check_movable(places["target"].how)
            writer = MovedModel(self.model, places["target"], len(trace.labels))
        batch = self.task.sources([trace.read])
        if self.source_frame in places:
            batch = move_tokens(batch, places[self.source_frame])
        with operate(self.model, intervention.edits, free=True):
            ids = write(writer, self.task, batch)[0][0].ids.tolist()
            learner = ModelLearner(self.model, self.task)
            return self.task.answer(learner, trace.line, trace.read, ids)

    def _check_movable(self, how: str) -> None:
        """Raises UserError for positions that are needed before they are known."""
        if how == "shuffle" and not self.task.policy.plain:
            raise UserError(
                f"expected a shift or a stretch of the answer's positions, got {how}; they are known only while it is "
                "written. Shift or stretch them, or shuffle those of the source"
            )


def check_tokens(count: int, most: int) -> None:
    """Raises UserError for an input of more than `most` tokens."""
    if count > most:
        raise UserError(f"expected at most {most} tokens, got {count}; shorten the input")


def token_vocabulary(task: Any) -> str:
    """Return the tokens of a task as one text, and the number on each side."""
    sizes = task.model_options
    sides = [f"{name}={size}:{task.show_target(range(size))}" for name, size in sizes.items()]
    return "".join(sides)


def answer_each(
    sources: Inputs,
    read: Callable[[str], Any],
    at_once: int,
    answers_of: Callable[[list[Source]], dict[int, list[Answer]]],
) -> Iterator[Answer]:
    """Yield the answers to each source in order; an unreadable one gets its error.

    answers_of: from the readable sources of a batch to their answers by number.
    """
    for chunk in chunks(read_each(sources, read), at_once):
        readable = [source for source in chunk if source.error is None]
        answers = answers_of(readable) if readable else {}
        for source in chunk:
            unread = [Answer(source.number, source.text[:SHOWN], error=source.error)]
            yield from answers.get(source.number, unread)


@registry.register("prompted")
@final
class PromptedPredictor(SequencePredictor):
    """Predictor of tasks that answer a text with a text, for models that read both as one sequence: see `Task.join`."""

    source_frame = "target"

    def _followed(
        self, inputs: tuple[Tokens, ...], answer: list[int]
    ) -> tuple[dict[str, TracedSequence], list[int], Int[Tensor, "1 L"]]:
        (tokens,) = inputs
        read = tokens.ids[0].tolist()
        # The label of a source token is the token after it; effects are measured on the answer alone.
        before = len(read) - len(answer)
        labels = [*read[1 : before + 1], *answer]
        no_labels = torch.full((1, before), NO_LABEL)
        written = torch.cat((no_labels, torch.tensor([answer])), 1)
        return {"target": TracedSequence(self.names(read))}, labels, written

    def _check_movable(self, how: str) -> None:
        if how == "shuffle":
            raise UserError(
                "expected a shift or a stretch of the answer's positions, got shuffle; they are known only while it is "
                "written. Shift or stretch them"
            )

    def text_of_page(self) -> dict[str, Any] | None:
        """Return None: pages support answers of two sequences, and continuations."""
        return None
