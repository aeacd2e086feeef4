"""Tokenizers of other programs: their own tokens and texts, and files that are none."""

import base64
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers as hf

from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST, PADDING
from jarilab.data.text.tokenizers import UNKNOWN, Tokenizer, from_file, train

TEXTS = ["the cat sat on the mat", "a dog ran to the cat", "The Dogs and Cats, again!"] * 20
SPECIAL = 4


def word_pieces() -> hf.Tokenizer:
    tokenizer = hf.Tokenizer(hf.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = hf.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = hf.decoders.WordPiece()
    trainer = hf.trainers.WordPieceTrainer(vocab_size=80, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def byte_pairs() -> hf.Tokenizer:
    tokenizer = hf.Tokenizer(hf.models.BPE())
    tokenizer.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = hf.decoders.ByteLevel()
    alphabet = hf.pre_tokenizers.ByteLevel.alphabet()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.enable_truncation(3)
    return tokenizer


def pieces() -> hf.Tokenizer:
    tokenizer = hf.Tokenizer(hf.models.Unigram())
    tokenizer.pre_tokenizer = hf.pre_tokenizers.Metaspace()
    tokenizer.decoder = hf.decoders.Metaspace()
    trainer = hf.trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


@pytest.fixture(params=[word_pieces, byte_pairs, pieces])
def both(request, tmp_path) -> tuple[hf.Tokenizer, Tokenizer]:
    theirs = request.param()
    theirs.save(str(tmp_path / "tokenizer.json"))
    theirs.no_truncation()
    return theirs, from_file(str(tmp_path / "tokenizer.json"))


def test_tokens_are_those_of_the_file_behind_the_special_ones(both):
    theirs, ours = both
    assert len(ours) == theirs.get_vocab_size() + SPECIAL
    for text in TEXTS[:3]:
        assert ours.encode(text) == [number + SPECIAL for number in theirs.encode(text).ids]
        assert ours.decode([FIRST, *ours.encode(text), END, 9, PADDING]) == theirs.decode(theirs.encode(text).ids)
        assert all(piece in text for piece in ours.pieces(text))


def test_it_comes_back_from_the_file_of_a_run(both):
    _, ours = both
    again = Tokenizer.from_json(ours.to_json())
    assert again == ours
    assert again.encode(TEXTS[0]) == ours.encode(TEXTS[0])
    assert (again.reading(), again.writing()) == (None, None)
    assert len(again.names(range(len(again)))) == len(again)


def test_what_it_does_not_know_is_unknown(tmp_path):
    word_pieces().save(str(tmp_path / "tokenizer.json"))
    ours = from_file(str(tmp_path))
    ids = ours.encode("the 東 cat")
    assert ids.count(UNKNOWN) == 1
    assert ours.unknown("the 東 cat") == ["東"]
    assert ours.decode(ids) == "the \ufffd cat"
    assert ours.form.lowercase


def test_the_vocabulary_of_another_run(tmp_path):
    source, target = train("words", TEXTS, size=30), train("characters", TEXTS, size=30)
    (tmp_path / "vocabulary.source.json").write_text(source.to_json())
    (tmp_path / "vocabulary.target.json").write_text(target.to_json())
    assert from_file(str(tmp_path)) == source
    assert from_file(str(tmp_path), "target") == target
    assert from_file(str(tmp_path / "vocabulary.target.json")) == target


@pytest.mark.parametrize(
    ("name", "contents", "told"),
    [
        ("tokenizer.json", "{", "expected a tokenizer.json that tokenizer.save.*, got a file that it refuses"),
        ("tokenizer.json", '{"model": {}}', "expected a tokenizer.json that tokenizer.save"),
        (
            "vocabulary.json",
            "{}",
            "vocabulary.json: expected a tokenizer written by jarilab; got no 'jari tokenizer 2'",
        ),
        ("text.txt", "words", "expected a SentencePiece model or a tokenizer.json|needs the package sentencepiece"),
    ],
)
def test_other_files_are_refused(tmp_path, name, contents, told):
    (tmp_path / name).write_text(contents)
    with pytest.raises(UserError, match=told):
        from_file(str(tmp_path / name))


def test_a_panic_of_the_library_is_a_sentence(tmp_path):
    """A table of characters of SentencePiece whose numbers lead out of it."""
    table = (8).to_bytes(4, "little") + b"\xff" * 12
    normalizer = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "normalizer": normalizer, "model": model}))
    with pytest.raises(UserError, match=r"tokenizer.json: expected .*PanicException"):
        from_file(str(file))


def test_no_file_names_what_there_is(tmp_path):
    with pytest.raises(UserError, match=r"expected bpe, unigram, words, characters, a tokenizer.json.*no file"):
        from_file("bp")
    with pytest.raises(UserError, match=r"a folder without vocabulary.json, tokenizer.json"):
        from_file(str(tmp_path))


def test_sentencepiece_is_named_where_it_is_missing(tmp_path):
    if importlib.util.find_spec("sentencepiece"):
        pytest.skip("SentencePiece is installed")
    (tmp_path / "m.model").write_bytes(b"\n\x00")
    with pytest.raises(UserError, match=r"needs the package sentencepiece; pip install 'jarilab\[sentencepiece\]'"):
        from_file(str(tmp_path / "m.model"))


def test_a_sentencepiece_model(tmp_path):
    package = pytest.importorskip("sentencepiece")
    (tmp_path / "text").write_text("\n".join(TEXTS))
    package.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "m"), vocab_size=28, minloglevel=2
    )
    theirs = package.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    ours = from_file(str(tmp_path / "m.model"))
    assert Tokenizer.from_json(ours.to_json()) == ours
    for text in TEXTS[:3]:
        assert ours.encode(text) == [number + SPECIAL for number in theirs.encode(text)]
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    assert UNKNOWN in ours.encode("東")
    (tmp_path / "bad.model").write_bytes(Path(__file__).read_bytes())
    with pytest.raises(UserError, match="expected a SentencePiece model"):
        from_file(str(tmp_path / "bad.model"))


READING = """
import sys
from jarilab.core import bounds, errors
from jarilab.data.text.tokenizers import from_file

bounds.use_memory(20 / 1024)
try:
    from_file(sys.argv[1])
except errors.UserError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_tokenizer_of_too_much_memory_is_refused_wherever_it_lies(tmp_path: Path):
    file, vocabulary = tmp_path / "tokenizer.json", tmp_path / "vocabulary.json"
    theirs = byte_pairs()
    theirs.add_tokens([f"{number} {'x' * 500}" for number in range(3000)])
    theirs.save(str(file))
    vocabulary.write_text(from_file(str(file)).to_json())
    script = tmp_path / "read.py"
    script.write_text(READING)
    for path in (file, vocabulary):
        # A process of its own: one with freed memory could use that again.
        ended = subprocess.run([sys.executable, script, path], capture_output=True, text=True, check=True)
        assert re.match(rf"{path}: expected settings that (keep to|need at most) 20 MB", ended.stdout), ended
