"""What a language model writes for a person, and mistakes with text on the command line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import jarilab
from jarilab.cli import main
from jarilab.errors import UserError
from jarilab.models.base import Generates
from jarilab.positions import Positions, Tokens
from jarilab.predictors.continuation import Continuation
from jarilab.runs.experiment import Experiment
from jarilab.runs.loaded import OpenRun
from jarilab.tasks.text import Text
from jarilab.text import END
from jarilab.text.tokenizers import Tokenizer
from jarilab.text.tokenizers import train as train_tokenizer

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
    task = Text(context=context)
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
        if found := [text.index(one) for one in stop if one in text]:
            return text[: min(found)]
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
    assert "".join(shown(tokens=1)) == BPE.decode(ids[:1])
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

SETTINGS = {
    "task.context": 16,
    "model.width": 16,
    "model.heads": 2,
    "model.layers": 1,
    "model.encoding": "rotary",
    "training.epochs": None,
    "training.examples": 320,
    "training.batch": 16,
    "training.evaluations": 1,
}


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    (folder / "text.txt").write_text("one two three four five " * 40)
    settings = SETTINGS | {"task.train": str(folder / "text.txt")}
    jarilab.train("text", folder / "run", settings=settings, threads=1)
    return folder / "run"


@pytest.fixture(scope="module")
def model(language: Path) -> OpenRun:
    return jarilab.load(language)


def text_of(model: OpenRun, prompt: str = "one ", **options: Any) -> str:
    return gone_on(model, prompt, **options).continuation


def test_the_same_seed_gives_the_same_text(model: OpenRun, language: Path) -> None:
    first = text_of(model, tokens=40, seed=5)
    assert text_of(model, tokens=40, seed=5) == first
    assert gone_on(language, "one ", tokens=40, seed=5).continuation == first
    assert text_of(model, tokens=40, seed=6) != first


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
    text = text_of(model, prompt, tokens=60, temperature=0.0)
    assert text == greedy_by_hand(model, prompt, 60)
    assert len(text) == 60, "far beyond the context of 16"
    assert text == text_of(model, prompt, tokens=60, temperature=0.7, top_k=1, seed=3)


def test_several_prompts_each_go_on(model: OpenRun) -> None:
    prompts = ["one ", UserError("byte 4 is no UTF-8"), "two "]
    first, wrong, second = jarilab.predict(model, prompts, tokens=9, seed=5)
    assert first.record() == {"prompt": "one ", "text": text_of(model, "one ", tokens=9, seed=5)}
    assert second.record() == {"prompt": "two ", "text": text_of(model, "two ", tokens=9, seed=5)}
    assert wrong.messages == ["byte 4 is no UTF-8"]
    assert wrong.record() == {"prompt": "", "text": "", "error": "byte 4 is no UTF-8"}
    assert "".join(wrong.text()) == "\n", "its place stays"
    assert "".join(next(jarilab.predict(model, ["one "], tokens=9, seed=5)).text()) == f"one {first.record()['text']}\n"


def test_a_language_model_searches_for_no_answers(model: OpenRun) -> None:
    own = "tokens, temperature, top_k, top_p, min_p, repetition_penalty, stop, seed"
    with pytest.raises(UserError, match=f"has no option 'beam'; Options: {own}$"):
        jarilab.predict(model, ["one"], beam=2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stop": [""]}, "a text to stop at has one character or more, got an empty one; omit it"),
        ({"top_p": 2.0}, "top_p: expected a probability above 0, 1 at most, got 2.0"),
        ({"tokens": 0}, "expected 1 token or more to draw, got longest 0"),
    ],
)
def test_drawing_that_cannot_be(model: OpenRun, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        next(jarilab.predict(model, ["one"], **options))


# The command line ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, language: Path) -> dict[str, str]:
    """Files by name, good and bad, and two runs."""
    folder = tmp_path_factory.mktemp("files")
    contents = {
        "source": b"".join(b"%d eins\n" % n for n in range(200)),
        "target": b"".join(b"%d one\n" % n for n in range(200)),
        "short": b"".join(b"%d one\n" % n for n in range(190)),
        "empty": b"",
        "blank": b"\n \n",
        "latin": b"eins\nf\xfcnf\nzwei\n",
        "nul": b"eins\nzw\0ei\n",
        "columns": b"eins\tone\nzwei two\n",
    }
    found = {name: str(folder / name) for name in [*contents, "missing", "new"]}
    for name, content in contents.items():
        Path(found[name]).write_bytes(content)
    options = [
        "--width",
        "8",
        "--heads",
        "2",
        "--hidden",
        "8",
        "--epochs",
        "1",
        "--vocabulary",
        "300",
        "--longest",
        "20",
    ]
    options += ["--encoder-layers", "1", "--decoder-layers", "1", "--evaluations", "1", "--threads", "1"]
    found["run"] = str(folder / "run")
    train = ["train", "translation", "--train", found["source"], found["target"], "--out", found["run"]]
    assert main([*train, *options]) == 0
    return found | {"language": str(language)}


TRAIN = ["train", "translation", "--out", "{new}", "--train"]
TEXT_TRAIN = ["train", "text", "--out", "{new}", "--train"]
MISTAKES: dict[str, tuple[list[str], str]] = {
    "lengths": (
        [*TRAIN, "{source}", "{short}"],
        "expected as many lines in both files; got 200 in {source} and 190 in {short}; line 191 is first without",
    ),
    "lengths of held-out files": (
        [*TRAIN, "{source}", "{target}", "--valid", "{short}", "{target}"],
        "got 190 in {short} and 200 in {target}; line 191 is first without a partner",
    ),
    "empty": ([*TRAIN, "{empty}", "{empty}"], "{empty} and {empty} hold no usable lines; expected text"),
    "blank": ([*TRAIN, "{blank}", "{blank}"], "{blank} and {blank} hold no usable lines; expected text"),
    "no utf-8": (
        [*TRAIN, "{latin}", "{target}"],
        "{latin}:2: expected UTF-8; byte offset 1 of the line holds 0xfc, which is none; save the file as UTF-8",
    ),
    "nul": ([*TRAIN, "{nul}", "{target}"], "{nul}:2: expected text; got a NUL, as binary files"),
    "missing": ([*TRAIN, "{source}", "{missing}"], "{missing}: expected a file; there is none of this name"),
    "folder": ([*TRAIN, "{run}", "{target}"], "{run}: expected a file; got a folder; name a file"),
    "one column": ([*TRAIN, "{columns}"], "{columns}:2: expected two columns with a tab between; got one: 'zwei two'"),
    "three files": (
        [*TRAIN, "{source}", "{target}", "{short}"],
        "--train expects two files, source and target, or one of tab-separated values; got 3: write --train text.de",
    ),
    "no files": (["train", "translation", "--out", "{new}"], "or one of tab-separated values; got 0: write --train"),
    "model": (
        [*TRAIN, "{source}", "{target}", "--model", "decoder"],
        "translation cannot be learned by the model decoder: translation gives a model source_vocabulary,",
    ),
    "vocabulary": (
        [*TRAIN, "{source}", "{target}", "--vocabulary", "5"],
        "bpe needs a size from 259 to 1,000,000; got 5; choose one between",
    ),
    "tokenizer": ([*TRAIN, "{source}", "{target}", "--tokenizer", "wrods"], "tokenizer: input should be 'bpe'"),
    "text missing": ([*TEXT_TRAIN, "{missing}"], "{missing}: expected a file; there is none of this name"),
    "text empty": ([*TEXT_TRAIN, "{empty}"], "expected text to train a tokenizer on; got none but white space"),
    "text no utf-8": ([*TEXT_TRAIN, "{latin}"], "{latin}:2: expected UTF-8; byte offset 1 of the line holds 0xfc"),
    "beam": (["predict", "{run}", "--beam", "0"], "a beam is 1 hypothesis wide or more, got width 0; 1 is greedy"),
    "beam of evaluate": (["evaluate", "{run}", "--beam", "0"], "a beam is 1 hypothesis wide or more, got width 0"),
    "best": (
        ["predict", "{run}", "--n-best", "5", "--beam", "2"],
        "a beam of width 2 can be asked for its 1 to 2 best answers, got best 5; widen the beam",
    ),
    "no best": (["predict", "{run}", "--n-best", "0"], "its 1 to 1 best answers, got best 0"),
    "penalty": (
        ["predict", "{run}", "--length-penalty", "nan"],
        "--length-penalty: input should be a finite number; got 'nan'",
    ),
    "top p": (["predict", "{language}", "--prompt", "one", "--top-p", "2"], "top_p: expected a probability above 0"),
    "stop": (["predict", "{language}", "--prompt", "one", "--stop", ""], "a text to stop at has one character or more"),
    "temperature": (["predict", "{language}", "--temperature", "-1"], "temperature: expected 0 (the likeliest always)"),
    "data": (["evaluate", "{run}", "--data", "{source}", "{short}"], "line 191 is first without a partner"),
    "data missing": (["evaluate", "{run}", "--data", "{missing}"], "{missing}: expected a file; there is none"),
    "data of a text": (
        ["evaluate", "{language}", "--data", "{source}", "{target}"],
        "--data expects one file or folder",
    ),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Runs a command with lines on standard input: its exit code and what it printed."""

    def ask(command: list[str], lines: bytes = b"") -> tuple[int, str, str]:
        (tmp_path / "lines").write_bytes(lines)
        capsys.readouterr()
        with (tmp_path / "lines").open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            code = main(command)
        return code, *capsys.readouterr()

    return ask


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_a_line_and_exits_2(asked: Any, places: dict[str, str], name: str) -> None:
    command, message = MISTAKES[name]
    code, out, err = asked([word.format_map(places) for word in command], b"one eins\n")
    assert (code, out) == (2, "")
    assert message.format_map(places) in err
    assert err.startswith("jarilab: ")
    assert err.count("\n") == 1
    assert not Path(places["new"]).exists()


LINES = "eins\n\n7 eins\neins \xff\n".encode("latin-1") + b"eins " * 99 + b"\n7 eins\n"


def test_answers_stay_beside_their_questions(asked: Any, places: dict[str, str]) -> None:
    code, out, err = asked(["predict", places["run"], "--beam", "2"], LINES)
    answers = out.split("\n")
    assert code == 2
    assert [re.sub(r"\d+ tokens", "N tokens", line) for line in err.splitlines()] == [
        "jarilab: line 2: the line is empty; write a text to answer",
        "jarilab: line 4: byte 6 is no UTF-8; save the file as UTF-8",
        "jarilab: line 5: N tokens are too many; this run reads at most 20: cut the line",
    ]
    assert len(answers) == 7
    assert answers[6] == answers[1] == answers[3] == answers[4] == ""
    assert answers[2] == answers[5]
    assert asked(["predict", places["run"]]) == (0, "", "")
    assert asked(["predict", places["run"], "--beam", "2", "--prompt", "7 eins"]) == (0, f"{answers[2]}\n", "")


def test_several_answers_a_line(asked: Any, places: dict[str, str]) -> None:
    command = ["predict", places["run"], "--beam", "3", "--n-best", "3"]
    code, out, _ = asked(command, LINES)
    rows = [line.split("\t") for line in out.split("\n")]
    assert code == 2
    assert [row[0] for row in rows] == [*"111", "", *"333", "", "", *"666", ""]
    scores = [float(row[1]) for row in rows if row != [""]]
    assert scores[3:6] == sorted(scores[3:6], reverse=True)
    assert scores[3:6] == scores[6:9]
    _, out, _ = asked([*command, "--json"], LINES)
    found = [json.loads(line) for line in out.splitlines()]
    assert [(row["line"], row["rank"]) for row in found if row["error"] is None] == [
        (line, rank) for line in (1, 3, 6) for rank in (1, 2, 3)
    ]


def test_a_text_is_gone_on_with(asked: Any, places: dict[str, str]) -> None:
    command = ["predict", places["language"], "--tokens", "9", "--seed", "2"]
    code, out, err = asked([*command, "--prompt", "one two"])
    assert (code, err) == (0, "")
    assert out.startswith("one two")
    assert len(out) == len("one two") + 9 + 1
    assert asked(command, b"one two\none two\n") == (0, out + out, "")
    code, found, _ = asked([*command, "--json"], b"one two\n")
    assert json.loads(found) == {"prompt": "one two", "text": out[len("one two") : -1]}
    code, found, _ = asked([*command, "--prompt", "one two", "--stop", out[9:11]])
    assert (code, found) == (0, out[: out.index(out[9:11], 7)] + "\n")
