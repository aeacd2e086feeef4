"""Text from end to end: a toy language is learned and translated, a small text is learned by heart."""

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import jarilab
from helpers.command import command
from jarilab.data.text import FIRST
from jarilab.models.decoding.answers import GREEDY, Decoding
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.predictors.base import write

pytestmark = pytest.mark.slow

# With a few words only, an end is among the four likeliest tokens at every step, and a beam is done before it begins.
WORDS = {f"wort{n}": f"word{n}" for n in range(20)}
MODELS = {
    "encoder_decoder": "--encoding rotary --d-model 32 --n-heads 2 --d-ff 64 --n-encoder-layers 1 --n-decoder-layers 1 "
    "--lr 0.02",
    "recurrent": "--model recurrent --d-model 64 --lr 0.01",
}
every_model = pytest.mark.parametrize("kind", ["encoder_decoder", pytest.param("recurrent", marks=pytest.mark.long)])


def run(*arguments: Any, text: str = "") -> str:
    """What a command that goes well prints."""
    said = command(*arguments, text=text.encode())
    assert said.returncode == 0, said.stderr
    return said.stdout


def sentences(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(list(WORDS), k=chance.randint(1, 6))) for _ in range(count)]


def named(sentence: str, name: str, at: int) -> str:
    """The sentence with a name for one of its words."""
    words = sentence.split()
    words[at % len(words)] = name
    return " ".join(words)


def meaning(sentence: str) -> str:
    return " ".join(WORDS.get(word, word) for word in sentence.split())


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """A function that gives a run of a model, trained at its first call, and what training it printed."""
    folder = tmp_path_factory.mktemp("toy")
    # A name here and there is too rare for the vocabulary, so that the models meet unknown words.
    lines = [line if n % 3 else named(line, f"Stadt{n}", n) for n, line in enumerate(sentences(4000, 1))]
    (folder / "text.de").write_text("".join(f"{line}\n" for line in lines))
    (folder / "text.en").write_text("".join(f"{meaning(line)}\n" for line in lines))
    options = ["--tokenizer", "words", "--vocab-size", 4 + 2 * len(WORDS), "--longest", 10, "--dropout", 0.0]
    options += ["--label-smoothing", 0, "--tokens", 600, "--epochs", 7, "--evaluations", 1, "--threads", 1, "--json"]

    @cache
    def trained(kind: str) -> tuple[Path, Any]:
        files = folder / "text.de", folder / "text.en"
        words = ["train", "translation", "--train", *files, "--out", folder / kind]
        return folder / kind, json.loads(run(*words, *options, *MODELS[kind].split()))

    return trained


@every_model
def test_a_toy_language_is_learned(translated: Any, kind: str) -> None:
    folder, result = translated(kind)
    assert result["steps"] < 600
    assert result["bleu"] > 90
    lines = sentences(50, 2)
    answers = run("predict", folder, "--threads", 1, text="".join(f"{line}\n" for line in lines))
    right = [answer == meaning(line) for line, answer in zip(lines, answers.splitlines(), strict=True)]
    assert sum(right) > 40


@every_model
def test_an_unknown_word_is_copied(translated: Any, kind: str) -> None:
    lines = ["wort1 Seoul wort2", "wort3 wort4 Berlin"]
    answers = [answer.answer for answer in jarilab.predict(translated(kind)[0], lines)]
    assert [[word for word in answer.split() if word not in WORDS.values()] for answer in answers] == [
        ["Seoul"],
        ["Berlin"],
    ]


@every_model
def test_a_beam_is_no_worse_than_greedy(translated: Any, kind: str) -> None:
    loaded = jarilab.load(translated(kind)[0])
    lines = sentences(60, 3)
    greedy = list(jarilab.predict(loaded, lines))
    best = list(jarilab.predict(loaded, lines, beam_size=4, n_best=4))
    assert [answer.rank for answer in best] == [1, 2, 3, 4] * len(lines)
    for one, start in zip(greedy, range(0, len(best), 4), strict=True):
        scores = [answer.score for answer in best[start : start + 4]]
        assert scores == sorted(scores, reverse=True)
        # A first word with and without the space before it is written alike.
        assert len({answer.answer for answer in best[start : start + 4]}) >= 3
        assert scores[0] >= one.score - 1e-5
        assert best[start].input == one.input


@every_model
@torch.no_grad()
def test_the_probabilities_are_those_of_the_model(translated: Any, kind: str) -> None:
    loaded = jarilab.load(translated(kind)[0])
    task, model = loaded.task, loaded.model
    source = task.sources([task.read("wort1 wort9 wort2")])
    for decoding in (GREEDY, Decoding(beam_size=4)):
        ((found, *_),) = write(model, task, source, decoding)
        said = Tokens.of(torch.tensor([[FIRST, *found.ids.tolist()[:-1]]]), "target")
        log_p = model(source, said).log_softmax(-1)[0]
        expected = log_p.gather(1, found.ids.unsqueeze(1)).squeeze(1)
        assert torch.allclose(found.log_probabilities, expected, atol=1e-4)
        assert found.score == pytest.approx(float(expected.sum()) / len(found.ids), abs=1e-4)


@every_model
def test_what_it_attends_to(translated: Any, kind: str) -> None:
    folder, _ = translated(kind)
    site = "decoder.0.cross"
    walked = json.loads(run("walk", folder, "--input", "wort1 wort9 wort2", "--site", site, "--json"))
    assert (walked["answer"], walked["site"]) == ("word1 word9 word2", site)
    assert walked["error"] < 1e-10
    loaded = jarilab.load(folder)
    trace = loaded.predictor.trace("wort1 wort9 wort2", 100)
    with jarilab.record(loaded.model) as tape, torch.no_grad():
        loaded.model(*trace.inputs)
    weights_HQK = tape.weights(site)[0]
    assert weights_HQK.shape[1:] == (4, 4)
    assert torch.allclose(weights_HQK.sum(-1), torch.ones_like(weights_HQK[..., 0]))
    assert trace.source == [" wort1", " wort9", " wort2", "<eos>"]


def test_a_text_is_learned_by_heart(tmp_path: Path) -> None:
    verse = "alle meine entchen schwimmen auf dem see. "
    (tmp_path / "text.txt").write_text(verse * 100)
    options = [
        "--train",
        tmp_path / "text.txt",
        "--context-length",
        48,
        "--d-model",
        32,
        "--n-layers",
        2,
        "--n-heads",
        2,
    ]
    options += ["--dropout", 0.0, "--epochs", 25, "--batch-size", 8, "--evaluations", 2, "--threads", 1, "--json"]
    options += ["--encoding", "rotary"]
    result = json.loads(run("train", "text", *options, "--out", tmp_path / "run"))
    # At the start of a window it cannot know where in the verse it is.
    assert result["loss"] < 0.15
    assert result["bits_per_character"] < 0.25
    assert result["perplexity"] == pytest.approx(2.718281828459045 ** result["loss"])
    written = run("predict", tmp_path / "run", "--prompt", verse, "--temperature", 0, "--max-new-tokens", 60)
    assert written == verse + (verse * 2)[:60] + "\n"
    stopped = run("predict", tmp_path / "run", "--prompt", verse, "--temperature", 0, "--stop", "auf")
    assert stopped == f"{verse}alle meine entchen schwimmen \n"
