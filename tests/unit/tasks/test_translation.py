"""Translation of a toy language: files, options and mistakes, and that a run lives without its files."""

import gzip
import hashlib
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch

import jarilab
from helpers.runs import held, seal
from helpers.tasks import training_pairs
from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST, PADDING, store
from jarilab.data.text.tokenizers import UNKNOWN
from jarilab.positions.coordinates import Tokens
from jarilab.runs.loaded import OpenRun
from jarilab.tasks.base import Batch
from jarilab.tasks.predictors import sequences
from jarilab.tasks.predictors.base import ModelLearner
from jarilab.tasks.translation import Translation

WORDS = ["eins", "zwei", "drei", "vier", "Fünf", "sechs", "sieben", "Acht"]
MEANING = dict(zip(WORDS, ["one", "two", "three", "four", "Five", "six", "seven", "Eight"], strict=True))
LINES = 300


def sentences(count: int = LINES, longest: int = 6, words: list[str] = WORDS, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(words, k=chance.randint(1, longest))) for _ in range(count)]


def meaning(sentence: str) -> str:
    return " ".join(MEANING.get(word, word) for word in sentence.split())


def written(folder: Path, pairs: list[tuple[str, str]], stem: str = "text") -> tuple[str, str]:
    """Two files of these pairs."""
    paths = folder / f"{stem}.de", folder / f"{stem}.en"
    for side, path in enumerate(paths):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return str(paths[0]), str(paths[1])


def weighted(folder: Path, corpora: Sequence[list[tuple[str, str]]], stem: str) -> tuple[str, ...]:
    """The files of each corpus, with a weight of 1."""
    files = [written(folder, pairs, f"{stem}{number}") for number, pairs in enumerate(corpora)]
    return tuple(name for one, other in files for name in (one, f"{other}:1"))


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return [(sentence, meaning(sentence)) for sentence in sentences()]


@pytest.fixture
def files(tmp_path: Path, pairs: list[tuple[str, str]]) -> tuple[str, str]:
    return written(tmp_path, pairs)


def prepared(train: tuple[str, ...], **options: Any) -> Translation:
    task = Translation(**{"train": train, "vocab_size": 300} | options)
    task.prepare()
    return task


# Files ---------------------------------------------------------------------------------------------------------------


def test_two_files_are_pairs_line_by_line(files: tuple[str, str], pairs: list[tuple[str, str]]) -> None:
    task = prepared(files)
    assert sorted(training_pairs(task) + task.held_out) == sorted(pairs)
    assert task.training_size + len(task.held_out) == LINES
    assert task.describe() == f"text.de and text.en: {task.training_size} pairs of lines; bpe, joint vocabulary of 300"
    (notice,) = task.notices()
    assert notice.startswith("training files: 66 of 300 pairs (22.0 %) repeat an earlier one")


def test_packed_files_and_columns_are_the_same_data(files: tuple[str, str], pairs, tmp_path: Path) -> None:
    plain = prepared(files)
    packed = [tmp_path / "x.de.gz", tmp_path / "x.en.gz"]
    for path, name in zip(packed, files, strict=True):
        path.write_bytes(gzip.compress(Path(name).read_bytes()))
    columns = tmp_path / "x.tsv"
    columns.write_text("".join(f"{one}\t{other}\tmore\n" for one, other in pairs))
    for train in (tuple(map(str, packed)), (str(columns),)):
        task = prepared(train)
        assert training_pairs(task) == training_pairs(plain)
        assert task.held_out == plain.held_out
        assert task.tokenizers == plain.tokenizers
        assert task.fingerprint() != plain.fingerprint()


def test_swapped_the_second_file_is_the_source(files: tuple[str, str], pairs: list[tuple[str, str]]) -> None:
    options = {"joint": False, "vocab_size": 280, "valid": files}  # what is held out goes by the source
    there, back = prepared(files, **options), prepared(files, **options, swap=True)
    assert back.tokenizers == there.tokenizers[::-1]
    there, back = prepared(files), prepared(files, swap=True)
    assert sorted(training_pairs(back) + back.held_out) == sorted((other, one) for one, other in pairs)
    assert back.describe().startswith("text.de and text.en swapped: ")
    valid = prepared(files, valid=files, swap=True)
    assert valid.held_out == [(other, one) for one, other in pairs]


def test_a_check_names_the_sides_of_swapped_files(tmp_path: Path) -> None:
    files = written(tmp_path, [("eins zwei", "one"), ("drei vier", "three")])
    task = Translation(train=files, valid=files, swap=True, joint=False, tokenizer="words", vocab_size=300)
    lengths = [finding.text for finding in task.check() if finding.topic == "tokens"]
    assert [text.partition(",")[0] for text in lengths] == ["target: 5 % 2", "source: 5 % 1"]


def test_one_vocabulary_or_two(files: tuple[str, str]) -> None:
    joint, separate = prepared(files, tokenizer="words"), prepared(files, tokenizer="words", joint=False)
    assert joint.model_options == {"source_vocab_size": 4 + 16, "target_vocab_size": 4 + 16}
    assert joint.tokenizers[0] == joint.tokenizers[1]
    assert separate.model_options == {"source_vocab_size": 4 + 8, "target_vocab_size": 4 + 8}
    assert separate.tokenizers[0] != separate.tokenizers[1]
    assert separate.tokenizers[0].unknown("eins one") == ["one"]


def test_nothing_is_both_trained_on_and_held_out(tmp_path: Path) -> None:
    # Many sources stand there several times, and with several meanings.
    lines = sentences(1000, longest=3)
    task = prepared(written(tmp_path, [(line, meaning(line) + " !" * (n % 3)) for n, line in enumerate(lines)]))
    sources = {source for source, _ in training_pairs(task)}
    held_out = {source for source, _ in task.held_out}
    assert not sources & held_out
    assert sources | held_out == set(lines)
    assert 0.02 < len(held_out) / len(set(lines)) < 0.2
    again = prepared(task.train)
    assert again.held_out == task.held_out


@pytest.mark.parametrize("kind", ["characters", "words", "bpe", "unigram"])
@pytest.mark.parametrize("swap", [False, True])
def test_a_tokenizer_is_trained_without_what_is_held_out(tmp_path: Path, kind: str, swap: bool) -> None:
    lines = sentences(300, longest=3)
    both = [(f"{line} x{n}", f"{meaning(line)} y{n}") for n, line in enumerate(lines)]
    options = {"tokenizer": kind, "swap": swap, "joint": False}
    for corpora in (both[:200],), (both[:200], both[200:]):
        task = prepared(weighted(tmp_path, corpora, "whole"), **options)
        held_out = {pair[::-1] if swap else pair for pair in task.held_out}
        rest = [[pair for pair in pairs if pair not in held_out] for pairs in corpora]
        apart = prepared(weighted(tmp_path, rest, "rest"), valid=written(tmp_path, both[:9], "valid"), **options)
        assert task.artifacts() == apart.artifacts()


def test_held_out_files_leave_all_pairs_to_train_on(files: tuple[str, str], tmp_path: Path, pairs) -> None:
    valid = [("eins Neun", "one nine"), ("zwei", "two")]
    task = prepared(files, valid=written(tmp_path, valid, "valid"))
    assert training_pairs(task) == pairs
    assert task.held_out == valid
    assert task.expected("zwei") == "two"
    assert task.expected("eins") is None
    task.hold_out(written(tmp_path, [("drei", "three")], "other"))
    assert task.held_out == [("drei", "three")]


def test_lower_case_everywhere(files: tuple[str, str], pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    task = prepared(files, tokenizer="words", lowercase=True)
    assert sorted(training_pairs(task) + task.held_out) == sorted((one.lower(), other.lower()) for one, other in pairs)
    assert task.show_source(task.read("FÜNF acht")) == [" fünf", " acht"]
    valid = prepared(files, tokenizer="words", lowercase=True, valid=written(tmp_path, [("Acht", "EIGHT")], "valid"))
    assert valid.held_out == [("acht", "eight")]


def test_split_tokens_say_the_same_and_are_counted(files: tuple[str, str]) -> None:
    options = {"vocab_size": 300, "longest": 9}
    whole, split = prepared(files, **options), prepared(files, split_tokens=0.5, **options)
    assert training_pairs(split) == training_pairs(whole)
    batch = split.training_batch(torch.arange(split.training_size), torch.Generator().manual_seed(1))
    lengths = torch.stack([(side != PADDING).sum(1) for side in (batch.inputs[0].ids, batch.labels)], 1)
    assert (lengths <= split.training_lengths).all(), "a letter is not split"
    assert lengths.sum() > 1.2 * whole.training_lengths.sum()
    assert split.training_lengths.max() == 9 + 1
    assert split.encode_input("eins zwei") == whole.encode_input("eins zwei"), "what is not trained on stays whole"


def test_tokens_of_one_part_are_not_split(files: tuple[str, str]) -> None:
    with pytest.raises(UserError, match=r"split_tokens: .* kind bpe, .* got words; omit --split-tokens or use"):
        prepared(files, tokenizer="words", split_tokens=0.1)


def test_tokens_of_a_run_are_split(files: tuple[str, str], tmp_path: Path) -> None:
    for name, content in prepared(files, vocab_size=300).artifacts().items():
        (tmp_path / name).write_bytes(content)
    split, whole = (prepared(files, tokenizer=str(tmp_path), split_tokens=share) for share in (0.5, 0.0))
    assert split.training_lengths.sum() > whole.training_lengths.sum()


def test_lines_longer_than_the_limit_are_left_out_and_counted(tmp_path: Path) -> None:
    short, long = ["eins zwei drei"] * 40, ["eins " * 5] * 3
    lines = [*sentences(100, longest=4), *short, *long, " ", ""]
    task = prepared(written(tmp_path, [(line, meaning(line) or "x") for line in lines]), tokenizer="words", longest=4)
    assert task.training_size + len(task.held_out) == 140
    assert task.notices()[:2] == [
        "2 pairs with a blank line on a side left out",
        "3 pairs of more than 4 tokens were left out; --longest keeps more",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": ()}, r"^--train expects two files, .* got 0: write --train text.de text.en$"),
        ({"train": ("a", "b", "c")}, "^--train expects two files, .* got 3"),
        ({"train": ("{nothing}", "{nothing}")}, "expected a file; got .*; check the path"),
        ({"train": ("{one}",)}, "1 pair is too few to hold some out; give held-out files with --valid"),
        ({"train": ("{empty}",), "valid": ("{one}",)}, "empty.tsv holds no usable lines"),
        ({"train": ("{one}",), "valid": ("{one}",) * 3}, "^--valid expects two files, .* got 3"),
        ({"train": ("{one}",), "valid": ("{one}",), "longest": 1}, "pairs of at most 1 tokens a side; got 1, all long"),
        ({"train": ("{one}",), "valid": ("{empty}",)}, "empty.tsv holds no usable lines"),
        (
            {"train": ("{one}",), "valid": ("{one}",), "vocab_size": 20},
            "bpe needs a size from 259 to 1,000,000; got 20",
        ),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "one.tsv").write_text("eins zwei\tone two\n")
    (tmp_path / "empty.tsv").write_text("\n\t\n")
    places = {f"{{{name}}}": str(tmp_path / f"{name}.tsv") for name in ("one", "empty", "nothing")}
    options = {key: tuple(places.get(v, v) for v in value) if isinstance(value, tuple) else value
               for key, value in options.items()}  # fmt: skip
    task = Translation(**options)
    with pytest.raises(UserError, match=message):
        _ = task.prepare(), task.held_out


def test_data_to_measure_on_that_cannot_be(files: tuple[str, str]) -> None:
    with pytest.raises(
        UserError,
        match=r"^--data expects two files, source and target, or one of tab-separated values; got 0: write --data",
    ):
        prepared(files).hold_out([])


def test_blank_lines_of_data_to_measure_on_are_counted(files: tuple[str, str], tmp_path: Path) -> None:
    data = written(tmp_path, [("eins", "one"), ("", "two"), ("drei", " ")], "data")
    task = prepared(files)
    assert not any("blank" in notice for notice in task.held_out_notices())
    task.hold_out(data)
    for measured in (task, prepared(files, valid=data)):
        assert f"{' and '.join(data)}: 2 pairs with a blank line on a side left out" in measured.held_out_notices()


def test_further_references(files: tuple[str, str], tmp_path: Path) -> None:
    task = prepared(files, tokenizer="words")
    pairs = [("eins", "one"), ("", "blank"), ("zwei drei", "two three"), ("drei", "three")]
    data = written(tmp_path, pairs, "more")
    (tmp_path / "other").write_text("two\nnothing\nTwo, three\n\n")
    task.hold_out(data)
    learner = Looks((), says=task.tokenizers[1].encode("two"))
    alone = task.evaluate(learner)
    task.hold_out([*data, str(tmp_path / "other")])
    metrics = task.evaluate(learner)
    assert (alone["exact_match"], metrics["exact_match"]) == (0.0, pytest.approx(1 / 3))
    answers, references = ["two"] * 3, [["one", "two three", "three"], ["two", "Two, three", None]]
    assert metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(answers, references).score)
    assert metrics["chrfpp"] == pytest.approx(sacrebleu.corpus_chrf(answers, references, word_order=2).score)
    assert "nrefs:var|" in metrics["signature"]
    (tmp_path / "other").write_text("two\n")
    with pytest.raises(
        UserError, match=r"other: expected a reference for each of 4 lines; got 1; an empty line stands"
    ):
        task.hold_out([*data, str(tmp_path / "other")])


def test_equal_pairs_keep_their_own_further_references(files: tuple[str, str], tmp_path: Path) -> None:
    task = prepared(files, tokenizer="words")
    data = written(tmp_path, [("drei", "three")] + [("eins zwei", "one")] * 2, "equal")
    others = ["five", "four", "two"]
    (tmp_path / "other").write_text("".join(f"{line}\n" for line in others))
    task.hold_out([*data, str(tmp_path / "other")])
    learner = Looks((), says=task.tokenizers[1].encode("two"))
    metrics = task.evaluate(learner)
    assert metrics["exact_match"] == pytest.approx(1 / 3)
    references = [["three", "one", "one"], others]
    assert metrics["chrf"] == pytest.approx(sacrebleu.corpus_chrf(["two"] * 3, references).score)
    assert task.at_length(2).evaluate(learner)["exact_match"] == 1 / 2


# Words that nobody knows ---------------------------------------------------------------------------------------------


class Looks:
    """A learner that looks at the same tokens whatever it is asked, by default at one after the other."""

    model = judge = None

    def __init__(self, at: tuple[int, ...], says: Sequence[int] = ()):
        self.at, self.says = at, says

    def write(self, sources: Tokens) -> list[list[int]]:
        return [[*self.says, END] for _ in sources.ids]

    def scores(self, batch: Batch) -> torch.Tensor:
        return torch.zeros(*batch.labels.shape, 50)

    def most_attended(self, source: list[int], written: Sequence[int]) -> list[int]:
        return list(self.at) or list(range(len(written)))


def test_what_is_unknown_is_copied_from_where_the_model_looked(files: tuple[str, str]) -> None:
    task = prepared(files, tokenizer="words", joint=False)
    one, two = task.tokenizers[1].encode("one two")
    line = "Berlin eins Seoul!"
    assert task.tokenizers[0].pieces(line) == [" Berlin", " eins", " Seoul", "!"]

    def copied(*numbers: int, at: tuple[int, ...]) -> str:
        return task.answer(Looks(at), line, task.read(line), numbers)

    assert copied(one, UNKNOWN, two, END, at=(0, 2, 1, 4)) == "one Seoul two"
    assert copied(UNKNOWN, UNKNOWN, one, END, at=(3, 0, 0, 0)) == "! Berlin one"
    assert copied(one, UNKNOWN, at=(0, 1)) == "one eins", "cut off without an end"
    assert copied(one, UNKNOWN, two, END, at=(0, 4, 1, 4)) == "one two", "nothing stands at the end token"
    assert copied(one, two, END, at=(0, 1, 2)) == "one two" == task.write([one, two, END])
    cut = task.answer(Looks((2, 0, 0)), line, task.read(line)[:2], [UNKNOWN, one, END])
    assert cut == "one", "where the line was cut off stands its end"
    known = prepared(files)
    assert known.answer(Looks(()), line, [3], [UNKNOWN]) == known.write([UNKNOWN]), "bpe has nothing unknown"


def test_the_sign_for_the_unknown_may_be_a_known_character(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    task = prepared(written(tmp_path, [*pairs, *[("eins \ufffd", "one \ufffd")] * 5]), tokenizer="words", joint=False)
    sign, one = task.tokenizers[1].encode("\ufffd one")
    assert sign != UNKNOWN
    line = "Seoul eins"
    assert task.answer(Looks((0, 0, 1, 1)), line, task.read(line), [sign, UNKNOWN, one, END]) == "\ufffd Seoul one"


def test_unknown_characters_are_copied_too(files: tuple[str, str]) -> None:
    task = prepared(files, tokenizer="characters", joint=False)
    o, n = task.tokenizers[1].encode("on")
    assert task.answer(Looks((0, 1, 0, 2)), "zß", task.tokenizers[0].encode("zß"), [o, UNKNOWN, n, END]) == "oßn"


@pytest.mark.parametrize("lines", [["eins Berlin", "Seoul zwei eins"], ["eins"] * 14 + ["Berlin"]])
def test_answers_are_judged_with_what_is_copied(files: tuple[str, str], tmp_path: Path, lines: list[str]) -> None:
    """Each source read to its end: the learner writes every word as unknown, and looks at each in turn."""
    task = prepared(files, tokenizer="words", valid=written(tmp_path, [(" ".join(lines), " ".join(lines))], "valid"))
    metrics = task.evaluate(Looks((), says=[UNKNOWN] * len(" ".join(lines).split())))
    assert metrics["exact_match"] == 1.0


@pytest.mark.parametrize("target", ["one, two.", "one, unheard."])
def test_words_are_judged_as_a_model_can_write_them(tmp_path: Path, pairs: list[tuple[str, str]], target: str) -> None:
    """Words include the space before them, so an answer can be `one, two.`"""
    files = written(tmp_path, [*pairs, ("eins, zwei.", "one, two.")])
    task = prepared(files, tokenizer="words", joint=False, valid=written(tmp_path, [(target, target)], "valid"))
    ids = task.tokenizers[1].encode(target)
    metrics = task.evaluate(Looks((), says=ids))
    assert metrics["exact_match"] == 1.0


def test_a_tokenizer_of_bleu_that_is_not_installed(files: tuple[str, str]) -> None:
    pytest.importorskip("sacrebleu")
    with pytest.raises(UserError, match=r"the package of ko-mecab, got none .*use --bleu-tokenizer char"):
        prepared(files, bleu_tokenizer="ko-mecab")


# Runs ----------------------------------------------------------------------------------------------------------------

SETTINGS = {
    "task.tokenizer": "words",
    "task.vocab_size": 300,
    "task.longest": 12,
    "model.d_model": 16,
    "model.n_heads": 2,
    "model.d_ff": 16,
    "model.dropout": 0.0,
    "model.n_encoder_layers": 1,
    "model.n_decoder_layers": 1,
    "training.epochs": None,
    "training.examples": 1200,
    "training.tokens": None,
    "training.batch_size": 12,
    "training.evaluations": 1,
}


def train(out: Path, files: tuple[str, ...], model: str | None = None, **settings: Any) -> dict[str, Any]:
    named = {key.replace("__", "."): value for key, value in settings.items()}
    chosen = SETTINGS | {"task.train": files} | named
    if model == "recurrent":
        chosen = {key: value for key, value in chosen.items() if key.startswith(("task", "training"))}
        chosen["model.d_model"] = 16
    return jarilab.train("translation", out, model=model, settings=chosen, threads=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]) -> tuple[Path, tuple[str, str]]:
    """A run, and the files it was trained on."""
    folder = tmp_path_factory.mktemp("finished")
    files = written(folder, pairs)
    train(folder / "run", files)
    return folder / "run", files


@pytest.fixture(scope="module")
def loaded(finished: tuple[Path, tuple[str, str]]) -> OpenRun:
    return jarilab.load(finished[0])


def test_an_open_run_measured_on_other_files_keeps_its_own(
    loaded: OpenRun, finished: tuple[Path, tuple[str, str]], tmp_path: Path
) -> None:
    before = jarilab.evaluate(loaded)
    few = written(tmp_path, [("eins", "one")] * 3, "few")
    assert jarilab.evaluate(loaded, data=few)["examples"] == 3
    assert jarilab.evaluate(loaded) == before


def test_an_open_run_has_the_checkpoint_it_was_opened_with(
    loaded: OpenRun, finished: tuple[Path, tuple[str, str]]
) -> None:
    best = jarilab.load(finished[0], checkpoint="best")
    assert jarilab.evaluate(best)["step"] == jarilab.evaluate(best, checkpoint="best")["step"]
    with pytest.raises(UserError, match=r"is open with its last checkpoint; .*jarilab\.load\(run, checkpoint='best'\)"):
        jarilab.evaluate(loaded, checkpoint="best")


@pytest.fixture
def moved(finished: tuple[Path, tuple[str, str]], tmp_path: Path) -> Iterator[Path]:
    """A copy of the run elsewhere, while its training files are gone."""
    run, files = finished
    for name in files:
        Path(name).rename(f"{name}.gone")
    yield shutil.copytree(run, tmp_path / "elsewhere")
    for name in files:
        Path(f"{name}.gone").rename(name)


def test_the_embeddings_are_shared_unless_the_vocabularies_are_two(files: tuple[str, str], tmp_path: Path) -> None:
    pairs = [(f"eins {n}", "one") for n in range(50)]
    other = written(tmp_path, pairs, "other")
    with pytest.raises(
        UserError, match=r"^expected one vocabulary for a shared embedding, got two; use --joint or --no-shared$"
    ):
        train(tmp_path / "run", other, task__joint=False)
    assert not (tmp_path / "run").exists()
    train(tmp_path / "run", other, task__joint=False, model__shared=False, training__examples=12)
    train(tmp_path / "recurrent", other, "recurrent", task__joint=False, training__examples=12)


def test_a_run_says_what_it_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], pairs) -> None:
    files = written(tmp_path, [*pairs, ("eins " * 9, "one"), ("", "two")])
    train(tmp_path / "run", files, task__longest=8, training__examples=12)
    *left_out, repeats = capsys.readouterr().err.splitlines()
    assert repeats.startswith("jarilab: training files: 66 of 301 pairs (21.9 %) repeat")
    assert left_out == [
        "jarilab: 1 pair with a blank line on a side left out",
        "jarilab: 1 pair of more than 8 tokens was left out; --longest keeps more",
    ]


def test_a_run_is_not_gone_on_with_on_other_data(finished: tuple[Path, tuple[str, str]]) -> None:
    run, files = finished
    assert train(run, files)["steps"] == 100, "the same again is"
    source = Path(files[0])
    content = source.read_bytes()
    source.write_bytes(content.replace(b"eins", b"einz", 1))
    try:
        with pytest.raises(UserError, match=r"holds another run; (?s:.*)\n  data: 'sha256 \w+' here, 'sha256 "):
            train(run, files)
    finally:
        source.write_bytes(content)
    with pytest.raises(UserError, match=r"holds another run; .*\n  task.lowercase: True here, False there"):
        train(run, files, task__lowercase=True)


@pytest.mark.parametrize("name", ["vocabulary.source.json", "vocabulary.target.json"])
def test_a_vocabulary_that_is_not_the_one_of_training(moved: Path, name: str) -> None:
    path = moved / name
    vocabulary = json.loads(path.read_text())
    vocabulary["pieces"] = vocabulary["pieces"][::-1]
    path.write_text(json.dumps(vocabulary, ensure_ascii=False))
    with pytest.raises(UserError, match=rf"{name} is not the one this run was trained with; put it back"):
        jarilab.load(moved)
    # Even one that run.json was made to name must be a vocabulary.
    path.write_text("{}")
    record = held(moved / "run.json")
    record["kept"][name] = hashlib.sha256(b"{}").hexdigest()
    seal(moved / "run.json", record)
    with pytest.raises(UserError, match=r"expected a tokenizer .*; got no 'jari tokenizer 2'"):
        jarilab.load(moved)
    path.unlink()
    with pytest.raises(UserError, match=rf"{name} is missing or not a plain file; the run cannot answer without it"):
        jarilab.load(moved)


def test_a_run_answers_without_its_files(loaded: OpenRun, moved: Path, tmp_path: Path) -> None:
    lines = ["eins zwei", "Acht"]
    assert list(jarilab.predict(moved, lines)) == list(jarilab.predict(loaded, lines))
    metrics = jarilab.evaluate(moved, data=written(tmp_path, [(line, meaning(line)) for line in lines]), threads=1)
    assert metrics["examples"] == 2
    assert {"bleu", "chrf", "perplexity", "exact_match"} <= metrics.keys()
    with pytest.raises(UserError, match=r"text.de: expected a file; got .*; check the path"):
        jarilab.evaluate(moved)


def test_a_run_is_measured_on_what_it_held_out(finished: tuple[Path, tuple[str, str]]) -> None:
    run, files = finished
    held_out = prepared(files, tokenizer="words").held_out
    result = json.loads((run / "result.json").read_text())
    metrics = jarilab.evaluate(run, threads=1)
    assert metrics["examples"] == result["examples"] == len(held_out) > 10
    assert metrics["perplexity"] == pytest.approx(result["perplexity"])


# Answers -------------------------------------------------------------------------------------------------------------


def test_answers_stand_beside_their_lines(loaded: OpenRun) -> None:
    lines = [*sentences(30, longest=12, seed=3), "", "eins " * 200, *sentences(30, seed=4)]
    alone = [next(jarilab.predict(loaded, [line])) for line in lines]
    together = list(jarilab.predict(loaded, lines))
    assert [answer.line for answer in together] == list(range(1, len(lines) + 1))
    for line, one, among in zip(lines, alone, together, strict=True):
        assert (among.answer, among.error) == (one.answer, one.error)
        assert among.input == (line.strip() if among.error is None else line[:80])
        assert among.log_probability == pytest.approx(one.log_probability, abs=1e-4)
    errors = {answer.line: answer.error for answer in together if answer.error is not None}
    assert errors == {
        31: "the line is empty; write a text to answer",
        32: "200 tokens are too many; this run reads at most 12: cut the line",
    }
    assert len({answer.answer for answer in together}) > 3, "or no order could be wrong"


def test_answers_do_not_depend_on_how_many_are_asked_for_together(loaded: OpenRun) -> None:
    lines = sentences(40, seed=6)
    few, many = (list(jarilab.predict(loaded, lines, beam_size=3, n_best=2, at_once=n)) for n in (3, 100))
    assert [(one.line, one.rank, one.answer) for one in few] == [(one.line, one.rank, one.answer) for one in many]
    assert [(one.line, one.rank) for one in few] == [(line, rank) for line in range(1, 41) for rank in (1, 2)]
    for best, second in zip(few[::2], few[1::2], strict=True):
        assert best.score is not None
        assert second.score is not None
        assert best.score >= second.score


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "a beam is 1 hypothesis wide or more, got beam_size 0; 1 is greedy, 4 or 5 is usual"),
        ({"beam_size": -4}, "a beam is 1 hypothesis wide or more, got beam_size -4"),
        ({"beam_size": 2, "n_best": 5}, "expected 1 to 2, got best 5"),
        ({"n_best": 0}, "expected 1 to 1, got best 0"),
        ({"longest": 0}, "longest 1 or more, got shortest 0 and longest 0"),
        ({"shortest": 500}, "expected 0 <= shortest <= longest .* got shortest 500 and longest 13"),
        ({"no_repeat": -1}, "no_repeat is the length of an n-gram, or 0 for no rule; got -1"),
        ({"length_penalty": -1.0}, "the length penalty is 0 or more, got -1.0"),
        ({"length_penalty": float("nan")}, "length_penalty: expected a finite number, got nan"),
    ],
)
def test_decoding_that_cannot_be(loaded: OpenRun, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(jarilab.predict(loaded, ["eins"], **options))


def test_unknown_words_are_copied_into_answers(loaded: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    one = loaded.task.read("one")
    asked: list[list[int]] = []

    def says(model: Any, task: Any, read: Tokens, options: Any, n_best: int) -> list[list[jarilab.Hypothesis]]:
        known, unknown = torch.tensor([*one, *one, END]), torch.tensor([*one, UNKNOWN, END])
        return [[jarilab.Hypothesis(ids, torch.zeros(3), 0.0, 0.0) for ids in (known, unknown)] for _ in read.ids]

    def looks(self: Any, source: list[int], written: list[int]) -> list[int]:
        asked.append(source)
        return [0, 2, 3]

    monkeypatch.setattr(sequences, "write", says)
    monkeypatch.setattr(ModelLearner, "most_attended", looks)
    answers = list(jarilab.predict(loaded, ["eins zwei Berlin", " Seoul zwei Busan "], beam_size=2, n_best=2))
    assert [answer.answer for answer in answers] == ["one one", "one Berlin", "one one", "one Busan"]
    assert asked == [loaded.task.read("eins zwei Berlin"), loaded.task.read("Seoul zwei Busan")]
    assert [name for name, _ in answers[1].tokens] == [" one", "<unk>", "<eos>"], (
        "what the model wrote stays to be seen"
    )


def test_the_best_answers_have_different_texts(loaded: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A beam may hold a text twice, in other tokens."""
    one, two = loaded.task.read("one"), loaded.task.read("two")
    beam = [torch.tensor([*ids, END]) for ids in (one, one, two, [*one, *two])]

    def says(model: Any, task: Any, read: Tokens, options: Any, n_best: int) -> list[list[jarilab.Hypothesis]]:
        return [[jarilab.Hypothesis(ids, torch.zeros(len(ids)), 0.0, -1.0 * n) for n, ids in enumerate(beam[:n_best])]]

    monkeypatch.setattr(sequences, "write", says)
    answers = list(jarilab.predict(loaded, ["eins"], beam_size=4, n_best=2))
    assert [(answer.rank, answer.answer, answer.score) for answer in answers] == [(1, "one", 0), (2, "two", -2)]


def test_what_the_last_attention_looked_at(loaded: OpenRun) -> None:
    task, ids = loaded.task, loaded.task.read("eins zwei drei Berlin")
    written = [UNKNOWN, 7, UNKNOWN, END]
    with jarilab.record(loaded.model) as tape:
        loaded.model(task.sources([ids]), Tokens.of(torch.tensor([[FIRST, *written[:-1]]]), "target"))
    (weights_HQK,) = tape.weights("decoder.0.cross")
    expected = [max(range(5), key=lambda k, q=q: float(weights_HQK[:, q, k].sum())) for q in range(4)]
    assert ModelLearner(loaded.model, task).most_attended(ids, written) == expected


def test_a_translation_is_no_language_model(loaded: OpenRun) -> None:
    options = "Options: beam_size, length_penalty, no_repeat, shortest, longest, precision, n_best, alignments"
    with pytest.raises(UserError, match=f"has no option 'temperature'; {options}$"):
        jarilab.predict(loaded, ["eins"], temperature=0.5)


# What is held out of the training files ------------------------------------------------------------------------------


@pytest.mark.parametrize("swap", [False, True])
def test_every_tokenizer_holds_out_the_same_pairs(tmp_path: Path, swap: bool) -> None:
    lines = sentences(300, longest=4)
    files = written(tmp_path, [(line, meaning(line)) for line in lines])
    tasks = [prepared(files, tokenizer=kind, vocab_size=300, swap=swap) for kind in ("words", "characters", "bpe")]
    first, *others = (task.held_out for task in tasks)
    assert 10 < len(first) < 60
    assert all(other == first for other in others)


@pytest.mark.parametrize("swap", [False, True])
def test_held_out_lines_are_those_of_the_file(tmp_path: Path, swap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of words do not say what stood between them, nor what the unknown words were."""
    monkeypatch.setattr(store, "_BATCH_ROWS", 40)
    lines = [f"{line},  {line}! Ort{n}" for n, line in enumerate(sentences(300, longest=4))]
    lines[::7] = [f"{line} much too long" for line in lines[::7]]
    pairs = [(line, f"{meaning(line)}; place{n} ") for n, line in enumerate(lines)]
    files = written(tmp_path, [*pairs[:50], ("", "blank"), *pairs[50:]])
    task = prepared(files, tokenizer="words", vocab_size=30, longest=15, swap=swap)
    expected = [(other, one) for one, other in pairs] if swap else pairs
    assert 5 < len(task.held_out) < 60
    assert set(task.held_out) < set(expected)
    source, target = task.tokenizers
    tokens = [(source.decode(source.encode(one)), target.decode(target.encode(other))) for one, other in expected]
    lengths = [max(len(source.encode(one)), len(target.encode(other))) for one, other in expected]
    short = [pair for pair, length in zip(tokens, lengths, strict=True) if length <= 15]
    held_out = [(source.decode(source.encode(s)), target.decode(target.encode(t))) for s, t in task.held_out]
    assert 200 < len(short) < 300, "some are left out for their length"
    assert sorted(training_pairs(task) + held_out) == sorted(short)
    lower = prepared(files, tokenizer="words", vocab_size=30, longest=15, swap=swap, lowercase=True)
    assert {one for one, _ in lower.held_out} < {one.lower() for one, _ in expected}


def test_a_run_is_not_measured_on_lines_of_changed_training_files(
    finished: tuple[Path, tuple[str, str]], tmp_path: Path
) -> None:
    run, files = finished
    target = Path(files[1])
    content = target.read_bytes()
    target.write_bytes(content + b"new line\n")
    Path(files[0]).write_bytes(Path(files[0]).read_bytes() + b"neue Zeile\n")
    try:
        with pytest.raises(
            UserError,
            match=rf"^{run}: expected {files[0]} and {files[1]} as they were at training, 'sha256 \w+', "
            r"got 'sha256 \w+'\. .*; restore the files, or measure on others with --data$",
        ):
            jarilab.evaluate(run, threads=1)
        other = written(tmp_path, [("drei", "three")], "other")
        assert jarilab.evaluate(run, data=other, threads=1)["examples"] == 1
    finally:
        target.write_bytes(content)
        source = Path(files[0])
        source.write_bytes(source.read_bytes().removesuffix(b"neue Zeile\n"))
    assert jarilab.evaluate(run, threads=1)["examples"] > 10


def test_held_out_files_do_not_depend_on_the_training_files(files: tuple[str, str], tmp_path: Path) -> None:
    valid = written(tmp_path, [("drei", "three")], "valid")
    train(tmp_path / "run", files, task__valid=valid, training__examples=12)
    for name in files:
        Path(name).unlink()
    assert jarilab.evaluate(tmp_path / "run", threads=1)["examples"] == 1


def test_several_corpora_are_read_by_their_weights(tmp_path: Path) -> None:
    for name, count in (("a", 30), ("b", 20)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{name}{n} x\t{name}{n} y\n" for n in range(count)))
    (tmp_path / "valid.tsv").write_text("v x\tv y\n")
    names = (f"{tmp_path}/a.tsv:2", f"{tmp_path}/b.tsv:0.5")
    task = Translation(train=names, valid=(f"{tmp_path}/valid.tsv",), tokenizer="words", vocab_size=100)
    task.prepare()
    assert task.training_size == 60 + 10
    seen: dict[str, int] = {}
    for _ in range(2):
        batch = task.training_batch(torch.arange(70), torch.Generator().manual_seed(3))
        texts = [task.write(row.tolist()) for row in batch.labels]
        seen = {text: texts.count(text) for text in texts}
        assert sum(text.startswith("a") for text in texts) == 60
        assert all(count == (2 if text.startswith("a") else 1) for text, count in seen.items())
    again = Translation(train=names, valid=(f"{tmp_path}/valid.tsv",), tokenizer="words", vocab_size=100)
    again.prepare()
    assert [again.write(row.tolist()) for row in again.training_batch(
        torch.arange(70), torch.Generator().manual_seed(3)).labels] == texts  # fmt: skip
    assert (again.training_lengths == 3).all()


def test_equal_pairs_are_counted_once(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("ja\tyes\n" * 40)
    with pytest.raises(UserError, match="40 pairs of 1 different source are too few"):
        Translation(train=(f"{tmp_path}/a.tsv",)).prepare()


def test_overlap_with_the_training_files_is_said(tmp_path: Path) -> None:
    train, valid = tmp_path / "train.tsv", tmp_path / "valid.tsv"
    train.write_text("".join(f"eins {n}\tone {n}\n" for n in range(60)))
    valid.write_text("Eins 5.\tOne 5.\nneu\tnew\n")
    task = Translation(train=(str(train),), valid=(str(valid),), vocab_size=300)
    task.prepare()
    assert task.notices() == []
    (notice,) = task.held_out_notices()
    assert notice.startswith("held out: 1 of 2 sources (50.0 %) is also in the training files")
    assert f"{valid}:1 and {train}:6; " in notice
    task.hold_out([str(train)])
    (notice,) = task.held_out_notices()
    assert notice.startswith("held out: 60 of 60 sources (100.0 %)")
    train.unlink()
    task.hold_out([str(valid)])
    assert task.held_out_notices() == [f"whether data are also in the training files is not known: {train} is gone"]
