"""What a language model writes for a person."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import jarilab
from helpers.runs import language_run
from jarilab.core.errors import UserError
from jarilab.data.text import END
from jarilab.data.text.tokenizers import Tokenizer
from jarilab.data.text.tokenizers import train as train_tokenizer
from jarilab.models.base import Generates
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.runs.experiment import Experiment
from jarilab.runs.loaded import OpenRun
from jarilab.tasks.predictors.continuation import Continuation
from jarilab.tasks.text import Text

TEXT = "one two three four five 가나다 🎉 "
BPE = train_tokenizer("bpe", [TEXT * 9], size=290)
WORDS = train_tokenizer("words", [TEXT], size=290)


class Script(nn.Module):
    """A model that writes what it was told, whatever it reads."""

    def __init__(self, ids: list[int], vocabulary: int):
        super().__init__()
        self.ids, self.vocabulary, self.read = [*ids, END], vocabulary, []

    def start(self, source: Tokens | None) -> Any:
        assert source is None
        return self

    def select(self, *_: Any) -> Any:
        return self

    def new_cache(self) -> Any:
        return self

    def step(self, state: Any, ids: torch.Tensor, positions: Positions, cache: Any) -> torch.Tensor:
        scores = torch.full((*ids.shape, self.vocabulary), -1000.0)
        scores[..., self.ids[len(self.read)]] = 0.0
        self.read.append(ids.tolist())
        return scores


def writes(tokenizer: Tokenizer, ids: list[int], context: int = 500) -> OpenRun:
    task = Text(context_length=context)
    task._tokenizer = tokenizer
    model = Script(ids, len(tokenizer))
    assert isinstance(model, Generates)
    return OpenRun(Path("script"), Experiment.of("text"), task, model, 1)


def gone_on(run: OpenRun | Path, prompt: str, **options: Any) -> Continuation:
    (continuation,) = jarilab.predict(run, [prompt], **options)
    assert isinstance(continuation, Continuation)
    assert (continuation.input, continuation.error) == (prompt, None)
    return continuation


def cut(tokenizer: Tokenizer, ids: list[int], stop: list[str]) -> str:
    """What is left of a text that ends before the first stop that comes up."""
    for length in range(len(ids) + 1):
        text = tokenizer.decode(ids[:length])
        if starts := [text.index(one) for one in stop if one in text]:
            return text[: min(starts)]
    return tokenizer.decode(ids)


@given(
    text=st.text("one twhrfu가나🎉", max_size=12),
    stop=st.lists(st.text("one tw가", min_size=1, max_size=3), max_size=3),
)
def test_a_stop_is_never_shown_and_a_character_never_cut(text: str, stop: list[str]) -> None:
    ids = BPE.encode(text)
    pieces = list(gone_on(writes(BPE, ids), "", stop=stop))
    shown = "".join(pieces)
    assert shown == cut(BPE, ids, stop)
    assert text.startswith(shown)
    assert not any(one in shown for one in stop)
    assert not any("\ufffd" in piece for piece in pieces)


@given(ids=st.lists(st.integers(3, len(BPE) - 1), max_size=12))
def test_bytes_that_are_no_character_stay_signs(ids: list[int]) -> None:
    assert gone_on(writes(BPE, ids), "one").continuation == BPE.decode(ids)


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    ids = BPE.encode("one 🎉 two")

    def shown(**options: Any) -> list[str]:
        return list(gone_on(writes(BPE, ids), "x", **options))

    pieces = shown()
    assert "".join(pieces) == "one 🎉 two"
    assert pieces[0] == BPE.decode(ids[:1]), "each token at once"
    assert len(pieces) > 2
    assert "".join(shown(stop=["twofold", "x"])) == "one 🎉 two", "what might have been a stop comes at the end"
    assert "".join(shown(max_new_tokens=1)) == BPE.decode(ids[:1])
    drawn = gone_on(writes(BPE, ids), "x")
    assert next(iter(drawn)) == pieces[0]
    assert drawn.continuation == "one 🎉 two", "whoever reads a piece misses none of the rest"
    model: Any = (late := writes(BPE, ids)).model
    next(iter(gone_on(late, "x", stop=["q" * 3])))
    assert len(model.read) < len(ids), "three letters behind, not the whole text"


def test_words_are_parted_from_the_prompt() -> None:
    assert gone_on(writes(WORDS, WORDS.encode("two three")), "one").continuation == " two three"
    assert gone_on(writes(WORDS, WORDS.encode("two three")), "").continuation == "two three"
    stopped = gone_on(writes(WORDS, WORDS.encode("two three four")), "one", stop=["three"])
    assert stopped.continuation == " two "


def test_the_end_ends_it() -> None:
    ids = [*BPE.encode("one"), END, *BPE.encode(" two")]
    assert gone_on(writes(BPE, ids), "").continuation == "one"


# A real one ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_run(tmp_path_factory.mktemp("language"))


@pytest.fixture(scope="module")
def model(language: Path) -> OpenRun:
    return jarilab.load(language)


def text_of(model: OpenRun, prompt: str = "one ", **options: Any) -> str:
    return gone_on(model, prompt, **options).continuation


def test_the_same_seed_gives_the_same_text(model: OpenRun, language: Path) -> None:
    first = text_of(model, max_new_tokens=40, seed=5)
    assert text_of(model, max_new_tokens=40, seed=5) == first
    assert gone_on(language, "one ", max_new_tokens=40, seed=5).continuation == first
    assert text_of(model, max_new_tokens=40, seed=6) != first


@torch.no_grad()
def greedy_by_hand(model: OpenRun, prompt: str, tokens: int) -> str:
    """The likeliest token each time, of a context read anew for each."""
    ids: list[int] = model.task.read(prompt)
    written: list[int] = []
    start, context = max(0, len(ids) - 16), 16
    for _ in range(tokens):
        if len(ids) - start > context:
            start = len(ids) - context // 2
        number = int(model.model(Tokens.of(torch.tensor([ids[start:]])))[0, -1].argmax())
        written.append(number)
        ids.append(number)
        if number == END:
            break
    return model.task.write(written)


@pytest.mark.parametrize("prompt", ["one ", "t", "one two three four five one two three "])
def test_temperature_0_takes_the_likeliest_whatever_the_length(model: OpenRun, prompt: str) -> None:
    text = text_of(model, prompt, max_new_tokens=60, temperature=0.0)
    assert text == greedy_by_hand(model, prompt, 60)
    assert len(text) == 60, "far beyond the context of 16"
    assert text == text_of(model, prompt, max_new_tokens=60, temperature=0.7, top_k=1, seed=3)


def test_several_prompts_each_go_on(model: OpenRun) -> None:
    prompts = ["one ", UserError("byte 4 is no UTF-8"), "two "]
    first, wrong, second = jarilab.predict(model, prompts, max_new_tokens=9, seed=5)
    assert first.record() == {"prompt": "one ", "text": text_of(model, "one ", max_new_tokens=9, seed=5)}
    assert second.record() == {"prompt": "two ", "text": text_of(model, "two ", max_new_tokens=9, seed=5)}
    assert wrong.messages == ["byte 4 is no UTF-8"]
    assert wrong.record() == {"prompt": "", "text": "", "error": "byte 4 is no UTF-8"}
    assert "".join(wrong.text()) == "\n", "its place stays"
    assert (
        "".join(next(jarilab.predict(model, ["one "], max_new_tokens=9, seed=5)).text())
        == f"one {first.record()['text']}\n"
    )


def test_texts_of_a_batch_are_those_of_each_alone(model: OpenRun) -> None:
    """Prompts of equal length are one batch, and some end before others."""
    prompts = ["one ", "two ", "one two ", "ten ", "two "]
    together = [one.continuation for one in jarilab.predict(model, prompts, max_new_tokens=60, seed=5, stop=["e"])]
    assert together == [text_of(model, prompt, max_new_tokens=60, seed=5, stop=["e"]) for prompt in prompts]
    assert len(set(map(len, together))) > 1


def test_a_language_model_searches_for_no_answers(model: OpenRun) -> None:
    names = "max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, stop, seed"
    with pytest.raises(UserError, match=f"has no option 'beam_size'; Options: {names}$"):
        jarilab.predict(model, ["one"], beam_size=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": [""]}, "--stop: expected a text of one character or more, got an empty one; omit it"),
        ({"top_p": 2.0}, "top_p: expected a probability above 0, 1 at most, got 2.0"),
        ({"max_new_tokens": 0}, "expected 1 token or more to draw, got longest 0"),
    ],
)
def test_drawing_that_cannot_be(model: OpenRun, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        next(jarilab.predict(model, ["one"], **options))
