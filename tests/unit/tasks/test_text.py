"""The task of a person's own text: its windows against a loop over documents, its figures by hand, and its files."""

import gzip
import math
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers as hf
import torch

import jarilab
from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.data.text import END, FIRST, PADDING
from jarilab.data.text.held_out import find_cut, parts
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.base import Batch
from jarilab.tasks.predictors.base import predictor_class
from jarilab.tasks.text import AT_ONCE, Text

DOCUMENTS = ["one two three", "a", "four five six seven eight", "no", "nine ten " * 12, "eleven"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("documents")
    for number, document in enumerate(DOCUMENTS):
        (path / f"{number}.txt").write_text(document)
    return path


def prepared(*train: Path, **options: Any) -> Text:
    task = Text(**{"train": tuple(map(str, train)), "context_length": 7} | options)
    task.prepare()
    return task


class Notices:
    """A learner that keeps the batches it is asked about and finds every token as likely, or as the table says."""

    model = judge = None

    def __init__(self, vocabulary: int, table: Tensor | None = None):
        self.table = torch.zeros(vocabulary, vocabulary) if table is None else table
        self.batches: list[Batch] = []

    def write(self, sources: Tokens) -> list[list[int]]:
        raise NotImplementedError

    def scores(self, batch: Batch) -> Tensor:
        self.batches.append(batch)
        return self.table[batch.inputs[0].ids]

    def most_attended(self, source: list[int], written: Sequence[int]) -> list[int]:
        raise NotImplementedError


def loop(task: Text, documents: list[str]) -> list[tuple[int, int, int, int]]:
    """Of each token of the stream: what stands there, what comes next, its document and its place in it."""
    rows = []
    for number, document in enumerate(documents):
        ids = task.read(document)
        inputs, labels = [FIRST, *ids], [*ids, END]
        rows += [(s, label, number, place) for place, (s, label) in enumerate(zip(inputs, labels, strict=True))]
    return rows


def window(batch: Batch, row: int) -> list[tuple[int, int, int | None, int]]:
    """The same of a row of a batch, without its padding."""
    (tokens,) = batch.inputs
    labels = batch.labels[row].tolist()
    length = sum(label != PADDING for label in labels)
    places = tokens.positions.index().expand(batch.labels.shape)[row].tolist()
    documents = [None] * len(labels) if tokens.documents is None else tokens.documents[row].tolist()
    assert set(labels[length:]) <= {PADDING}
    return list(zip(tokens.ids[row].tolist(), labels, documents, places, strict=True))[:length]


def assert_same_window(
    actual: list[tuple[int, int, int | None, int]], expected: list[tuple[int, int, int, int]]
) -> None:
    """Same tokens and labels; documents apart from one another; places from 0 where the window or a document begins."""
    assert [row[:2] for row in actual] == [row[:2] for row in expected]
    begun = expected[0][2]
    offset = expected[0][3]
    assert [row[3] for row in actual] == [p - offset if d == begun else p for _, _, d, p in expected]
    if actual[0][2] is None:
        assert {row[2] for row in expected} == {begun}, "documents in one window do not see each other"
    else:
        assert [row[2] for row in actual] == [row[2] for row in expected]


@pytest.mark.parametrize("context", [1, 3, 7, 1000])
@pytest.mark.parametrize("kind", ["characters", "words", "bpe"])
def test_windows_are_those_of_a_loop(folder: Path, context: int, kind: str) -> None:
    task = prepared(folder, context_length=context, tokenizer=kind, vocab_size=270, valid=str(folder))
    stream = loop(task, DOCUMENTS)
    learner = Notices(task.model_options["vocab_size"])
    metrics = task.evaluate(learner)
    rows = [window(batch, row) for batch in learner.batches for row in range(len(batch.labels))]
    for number, row in enumerate(rows):
        assert_same_window(row, stream[number * context : (number + 1) * context])
    assert sum(map(len, rows)) == len(stream)
    assert metrics["examples"] == len(rows) == math.ceil(len(stream) / context)
    assert all(len(batch.labels) <= AT_ONCE for batch in learner.batches)


def test_training_windows_begin_anywhere(folder: Path) -> None:
    task = prepared(folder, valid=str(folder))
    stream = loop(task, DOCUMENTS)
    begun = set()
    assert task.training_size == len(stream) // 7
    for seed in range(100):
        indices = torch.arange(task.training_size)
        batch = task.training_batch(indices, torch.Generator().manual_seed(seed))
        drawn = torch.randint(7, indices.shape, generator=torch.Generator().manual_seed(seed))
        starts = (7 * indices + drawn).clamp(max=len(stream) - 7).tolist()
        for row, start in enumerate(starts):
            assert_same_window(window(batch, row), stream[start : start + 7])
        begun |= set(starts)
    assert begun == set(range(len(stream) - 6))


def test_a_text_shorter_than_the_context(folder: Path) -> None:
    task = prepared(folder, valid=str(folder), context_length=1000)
    batch = task.training_batch(torch.tensor([0]), torch.Generator())
    assert task.training_size == 1
    assert_same_window(window(batch, 0), loop(task, DOCUMENTS))


def test_where_held_out_text_begins_is_worth_looking_at(folder: Path) -> None:
    task = prepared(folder, held_out=0.5)
    # 156 characters; the cut moves to the white space after 78.
    assert task.sample_inputs() == [(" ten nine ten" * 12)[: task.context_length]]
    assert Text().sample_inputs() == [], "of a run that is looked into there is no text at hand"
    assert not predictor_class(task).reported, "a report shows maps behind answers, and there is none"


@pytest.mark.parametrize("kind", ["characters", "words", "bpe", "unigram"])
def test_a_tokenizer_is_trained_without_what_is_held_out(tmp_path: Path, kind: str) -> None:
    texts = {"first": "one two three\n" * 90, "second": "four five six\n" * 90}
    whole, trained = [], []
    for name, text in texts.items():
        for paths, end in ((whole, "zwei drei\n" * 10), (trained, "")):
            paths.append(str(tmp_path / f"{name}-{len(end)}.txt"))
            Path(paths[-1]).write_text(text + end)
    for count in (1, 2):
        task = prepared(*whole[:count], held_out=0.075, tokenizer=kind, vocab_size=290)
        apart = prepared(*trained[:count], valid=str(whole[0]), tokenizer=kind, vocab_size=290)
        assert task.training_size == apart.training_size, "the cut is where the other words begin"
        assert task.artifacts() == apart.artifacts()


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5])
@pytest.mark.parametrize("kind", ["characters", "words", "bpe"])
def test_what_is_held_out_is_the_end(tmp_path: Path, share: float, kind: str) -> None:
    folder, documents = tmp_path, ["one two three nine ten eleven", *DOCUMENTS[1:]]  # every word is trained on
    for number, document in enumerate(documents):
        (folder / f"{number}.txt").write_text(document)
    task = prepared(folder, held_out=share, tokenizer=kind, vocab_size=270)
    before, after = ([list(part) for part in both] for both in parts(folder, find_cut(folder, share)))
    trained, held_out = ([text for text in map("".join, part) if text] for part in (before, after))
    assert "".join(trained + held_out) == "".join(documents)
    stream = loop(task, trained)
    learner = Notices(task.model_options["vocab_size"])
    metrics = task.evaluate(learner)
    rows = [window(batch, row) for batch in learner.batches for row in range(len(batch.labels))]
    assert [token[:2] for row in rows for token in row] == [token[:2] for token in loop(task, held_out)]
    bits = len(loop(task, held_out)) * math.log2(task.model_options["vocab_size"])
    # The last letter alone is no word of the vocabulary.
    bits += 8 * (kind == "words" and share == 0.001)
    assert metrics["bits_per_character"] == pytest.approx(bits / len("".join(held_out)), rel=1e-5)
    batches = [
        task.training_batch(torch.tensor([n]), torch.Generator().manual_seed(n)) for n in range(task.training_size)
    ]
    trained_on = [row[:2] for row in stream]
    for batch in batches:
        tokens = [row[:2] for row in window(batch, 0)]
        assert any(trained_on[at : at + 7] == tokens for at in range(len(stream) - 6))
    described = task.describe()
    assert f": {len(stream)} tokens of training text in {len(trained)} documents; " in described


def test_every_tokenizer_is_measured_on_the_same_text(tmp_path: Path) -> None:
    """The cut is at the start of a line, recorded, and what is equal across it is counted exactly."""
    path = tmp_path / "text.txt"
    lines = [f"Line number {n} of this text, {'é' if n % 2 else 'e' + chr(0x301)}." for n in range(50)]
    path.write_text("\n".join([*lines, lines[0]]))
    read, starts = [], set()
    for kind in ("characters", "words", "bpe", "unigram"):
        task = prepared(path, tokenizer=kind, vocab_size=300, context_length=2000, held_out=0.2)
        read.append("".join(text for text, _ in task.held_out_pairs()))
        if kind == "words":  # it does not know the numbers from 41 to 49
            assert read.pop() == re.sub(r"4\d", "�", read[0])
        metrics = task.evaluate(Notices(task.model_options["vocab_size"]))
        assert metrics["loss"] == pytest.approx(math.log(task.model_options["vocab_size"]), rel=1e-5)
        tokens = len(task._measured())
        bits = tokens * math.log2(task.model_options["vocab_size"])
        bits += 8 * len(" 41" * 9) * (kind == "words")
        assert metrics["bits_per_character"] == pytest.approx(bits / len(read[0]), rel=1e-5)
        starts.add((task.describe().rpartition("; ")[2], task.fingerprint()))
        assert "1 of 10 lines of 20 letters or more (10.0 %) is also" in " ".join(task.held_out_notices())
    assert len(set(read)) == 1
    assert read[0] == unicodedata.normalize("NFC", "\n".join([*lines[41:], lines[0]]))
    ((described, fingerprint),) = starts
    assert described == "held out from text.txt:42 on"
    first = len("\n".join(lines[:41])) + 2
    assert fingerprint.endswith(f", held out from character {first:,} of document 1")


def test_figures_by_hand(folder: Path) -> None:
    task = prepared(folder, valid=str(folder))
    size = task.model_options["vocab_size"]
    learner = Notices(size, torch.randn(size, size))
    log_p = learner.table.double().log_softmax(-1)
    loss = -sum(float(log_p[token, label]) for token, label, *_ in loop(task, DOCUMENTS))
    count, characters = len(loop(task, DOCUMENTS)), sum(map(len, DOCUMENTS))
    metrics = task.evaluate(learner)
    assert metrics["loss"] == pytest.approx(loss / count, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(loss / count), rel=1e-5)
    assert metrics["bits_per_character"] == pytest.approx(loss / math.log(2) / characters, rel=1e-5)
    some = Notices(size)
    assert task.evaluate(some, examples=3)["examples"] == 3
    assert [len(batch.labels) for batch in some.batches] == [3]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_bits_per_character_count_characters_and_not_bytes(tmp_path: Path, kind: str) -> None:
    text = "가나다라마바사 아자차카타파하🎉 " * 60
    (tmp_path / "text.txt").write_text(text)
    # Bytes alone are a vocabulary of 259, so that a window may end inside a character.
    task = prepared(
        tmp_path / "text.txt", valid=str(tmp_path / "text.txt"), tokenizer=kind, vocab_size=259, context_length=10
    )
    metrics = task.evaluate(Notices(259))
    tokens = len(text.encode()) + 1
    assert metrics["examples"] == math.ceil(tokens / 10) > AT_ONCE
    assert metrics["bits_per_character"] == pytest.approx(tokens * math.log2(259) / len(text), rel=1e-5)


def test_a_folder_and_a_packed_file(tmp_path: Path, folder: Path) -> None:
    deep = tmp_path / "deep"
    (deep / "inner").mkdir(parents=True)
    for number, document in enumerate(DOCUMENTS):
        name = deep / ("inner" if number > 3 else ".") / f"{number}.txt"
        name.write_text(document) if number % 2 else Path(f"{name}.gz").write_bytes(gzip.compress(document.encode()))
    (deep / "notes.md").write_text("not read")
    plain, packed = prepared(folder), prepared(deep)
    indices = torch.arange(plain.training_size)
    one, other = (task.training_batch(indices, torch.Generator().manual_seed(1)) for task in (plain, packed))
    assert torch.equal(one.labels, other.labels)
    single = tmp_path / "one.txt.gz"
    single.write_bytes(gzip.compress("\n\n".join(DOCUMENTS).encode()))
    assert " in 1 document; " in prepared(single).describe()


def test_lower_case(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Hello HELLO hello " * 10)
    task = prepared(tmp_path / "text.txt", lowercase=True, tokenizer="words")
    assert task.write(task.read("HELLO Hello")) == "hello hello"


def test_what_a_run_keeps_is_enough_to_read_and_to_measure(tmp_path: Path, folder: Path) -> None:
    source = tmp_path / "own.txt"
    source.write_text("one two three four " * 20)
    task = prepared(source, valid=str(folder))
    for name, held in task.artifacts().items():
        (tmp_path / name).write_bytes(held)
    again = Text(train=(str(source),), valid=str(folder), context_length=7)
    again.restore(tmp_path)
    assert again.read("two four") == task.read("two four")
    assert again.model_options == task.model_options
    source.unlink()
    size = task.model_options["vocab_size"]
    measured = task.evaluate(Notices(size))
    assert measured["unknown_tokens"].pop("training") == 0
    assert again.evaluate(Notices(size)) == measured, "the training text is not needed"
    another = Text(train=(str(source),), context_length=7)
    another.restore(tmp_path)
    with pytest.raises(UserError, match=r"own.txt: expected a file; got .*; check the path"):
        another.evaluate(Notices(size))
    another.hold_out([str(folder)])
    assert another.evaluate(Notices(size)) == measured
    with pytest.raises(UserError, match="--data expects one file or folder of text, got 2; give one"):
        another.hold_out(["a", "b"])


def test_the_fingerprint_is_of_the_content(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "b.txt").write_text("some text")
    (tmp_path / "c.txt").write_text("some tent")
    one, same, other = (prepared(tmp_path / f"{name}.txt").fingerprint() for name in "abc")
    assert one == same != other


def test_a_prompt_begins_a_document_where_it_is_empty(folder: Path) -> None:
    task = prepared(folder)
    assert task.sources([task.read("")]).ids.tolist() == [[FIRST]]
    assert task.sources([task.read("one"), task.read("two")]).ids.tolist() == [task.read("one"), task.read("two")]
    assert task.show_source([FIRST, *task.read("no")]) == ["<bos>", "n", "o"]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, {}, "^--train names no text; write --train FILE, or a folder of "),
        ("a", {}, "1 character is too few to hold 10% out; give more, or a text to measure on with --valid"),
        (" \n ", {}, "text.txt holds no usable lines; expected text"),
        ("text " * 99, {"valid": "{blank}"}, "blank.txt holds no usable lines; expected text"),
        ("text " * 99, {"valid": "{none}"}, "none.txt: expected a file; got a path that"),
        ("text " * 99, {"tokenizer": "bpe", "vocab_size": 9}, "bpe needs a size from 259 to 1,000,000; got 9"),
    ],
)
def test_texts_that_cannot_be(tmp_path: Path, content: str | None, options: dict[str, Any], message: str) -> None:
    (tmp_path / "blank.txt").write_text("\n")
    path = tmp_path / "text.txt"
    path.write_text(content or "")
    options = {k: str(tmp_path / f"{v[1:-1]}.txt") if k == "valid" else v for k, v in options.items()}
    with pytest.raises(UserError, match=message):
        Text(train=() if content is None else (str(path),), **options).prepare()


def test_a_run_is_not_measured_on_a_part_of_another_text(tmp_path: Path, folder: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three " * 60)
    settings = {
        "task.train": str(text),
        "task.context_length": 16,
        "model.d_model": 8,
        "model.n_heads": 1,
        "model.n_layers": 1,
    }
    settings |= {"training.epochs": 0.1, "training.evaluations": 1}
    jarilab.train("text", tmp_path / "run", settings=settings, threads=1)
    measured = jarilab.evaluate(tmp_path / "run", threads=1)
    assert measured["loss"] > 0
    text.write_text("one two three " * 60 + "one")
    with pytest.raises(
        UserError, match=r"expected .*text.txt as they were at training, .* measure on others with --data"
    ):
        jarilab.evaluate(tmp_path / "run", threads=1)
    assert jarilab.evaluate(tmp_path / "run", data=[str(text)], threads=1)["loss"] > 0
    assert Text(train=(str(text),)).held_out_of == (str(text),)
    assert Text(train=(str(text),), valid=str(folder)).held_out_of == ()


def test_the_rate_of_a_training_is_told_in_tokens(folder: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    model = {"model.d_model": 8, "model.n_heads": 2, "model.n_layers": 1}
    settings = {
        **model,
        "task.train": str(folder),
        "task.context_length": 7,
        "training.batch_size": 4,
        "training.epochs": 2,
    }
    jarilab.train("text", tmp_path / "run", settings=settings, threads=1, report=rows.append)
    assert [row["tokens"] for row in rows] == [7 * row["examples"] for row in rows]


def test_unknown_tokens_cost_their_letters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("aa bbb aa cccc " * 20)
    task = prepared(path, tokenizer="words", vocab_size=5, valid=str(path))
    metrics = task.evaluate(Notices(5))
    # Of four words one is known; the last blank and an end follow. A word includes the blank before it.
    bits = 82 * math.log2(5) + 8 * (20 * (4 + 5) + 1)
    characters = len("aa bbb aa cccc " * 20)
    assert metrics["bits_per_character"] == pytest.approx(bits / characters, rel=1e-5)
    assert metrics["unknown_tokens"] == {"training": 41 / 81, "held-out": 41 / 81}
    for notices in (task.notices(), task.held_out_notices()):
        notice, *_ = notices
        assert str(path) in notice
        assert "50.62%" in notice
    assert prepared(path).notices() == []
    (notice,) = prepared(path, context_length=1000, valid=str(path)).notices()
    assert notice.startswith("the training text has 301 tokens, fewer than a window of 1,000; later positions are not")


def test_a_prompt_takes_the_form_that_the_vocabulary_knows(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("하나 둘 셋 " * 20)
    task = prepared(path)
    decomposed = unicodedata.normalize("NFD", "하나")
    assert decomposed != "하나"
    assert task.read(decomposed) == task.read("하나")
    with pytest.raises(UserError, match="expected characters of the training text, got 'x', 'y'"):
        task.read("x하y")
    assert prepared(path, tokenizer="bpe", vocab_size=300).read(decomposed)


def test_a_tokenizer_that_drops_something_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("The cat sat on the mat.\n" * 40)
    for normalizer, count in ((hf.normalizers.Lowercase(), 1), (None, 0)):
        tokenizer = hf.Tokenizer(hf.models.BPE())
        tokenizer.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = hf.decoders.ByteLevel()
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        alphabet = hf.pre_tokenizers.ByteLevel.alphabet()
        trainer = hf.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator([path.read_text()], trainer)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        task = prepared(path, tokenizer=str(tmp_path / "tokenizer.json"))
        lost = [notice for notice in task.held_out_notices() if "back for" in notice]
        assert len(lost) == count
    task = prepared(path, tokenizer="bpe", vocab_size=300, lowercase=True)
    assert not any("back for" in notice for notice in task.held_out_notices())


def test_several_texts_are_read_by_their_weights(tmp_path: Path) -> None:
    for name, count in (("a", 40), ("b", 80)):
        (tmp_path / f"{name}.txt").write_text(name * count)
    task = Text(train=(f"{tmp_path}/a.txt:2", f"{tmp_path}/b.txt:0.5"), context_length=4)
    task.prepare()
    assert task.describe().endswith("held out from a.txt, character 37, and b.txt, character 73, on")
    # 36 letters of a and 72 of b, and an end of each; a tenth of each is held out.
    assert task.training_size == 2 * (37 // 4) + round(0.5 * (73 // 4))
    batch = task.training_batch(torch.arange(task.training_size), torch.Generator().manual_seed(1))
    texts = [task.write(row[row > END].tolist()) for row in batch.labels]
    assert ["".join(sorted(set(text))) for text in texts] == ["a"] * 18 + ["b"] * 9
    held_out = [text for text, _ in task.held_out_pairs()]
    assert "".join(held_out) == "aaaa" + "bbbbbbbb"
