"""Tokenizers: nothing of a text is lost, nothing in it becomes a special token, and equal texts make equal ones."""

import json
import os
import subprocess
import sys
import tracemalloc
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST, PADDING, training
from jarilab.data.text import tokenizers as module
from jarilab.data.text.pieces import KINDS, Kind
from jarilab.data.text.tokenizers import UNKNOWN, Tokenizer, train

TEXTS = [
    "the cat sat on the mat, and the other cat did not",
    "그 고양이는 매트 위에 앉았다, 다른 고양이는 아니었다",
    "<eos> <pad> <bos> <unk> typed by a person <eos> <eos> <eos>",
    "  numbers 12 123 1234, tabs\tand\nlines\r\n",
] * 5

TRAINED = {kind: train(kind, TEXTS, size=400) for kind in KINDS}
WITH_UNKNOWN = ("words", "characters")
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TRAINED[request.param]


@given(text=TEXT)
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_any_text_comes_back(kind: Kind, text: str) -> None:
    ids = TRAINED[kind].encode(text)
    assert TRAINED[kind].decode(ids) == unicodedata.normalize("NFC", text)
    assert not {PADDING, FIRST, END} & set(ids)
    assert TRAINED[kind].unknown(text) == []


@given(text=TEXT)
def test_any_text_of_known_characters_comes_back(text: str) -> None:
    characters = train("characters", [text, "x"], size=1000, nfc=False)
    assert characters.decode(characters.encode(text)) == text
    assert len(characters.encode(text)) == len(text)


@given(text=TEXT, at_blanks=st.booleans(), lowercase=st.booleans())
@pytest.mark.parametrize("kind", WITH_UNKNOWN)
def test_any_text_comes_back_where_bytes_spell_what_is_unknown(
    kind: Kind, text: str, at_blanks: bool, lowercase: bool
) -> None:
    tokenizer = train(kind, TEXTS, size=300, byte_fallback=True, at_blanks=at_blanks, lowercase=lowercase)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer.normalized(text)
    assert UNKNOWN not in ids
    assert tokenizer.refused(text) == []


@given(text=TEXT, at_blanks=st.booleans())
def test_words_keep_their_spacing(text: str, at_blanks: bool) -> None:
    words = train("words", [text, "x"], size=1000, at_blanks=at_blanks)
    assert words.decode(words.encode(text)) == words.normalized(text)


def test_words_between_white_space() -> None:
    line = "das ist nicht' s 7 U.S. haus@@ tür ."
    words = train("words", [line], size=100, at_blanks=True)
    assert words.pieces(line) == [f" {word}" for word in line.split()]
    assert words.decode(words.encode(line)) == line


def test_bytes_that_are_no_text() -> None:
    words = train("words", ["x"], size=300, byte_fallback=True)
    first = 4
    assert words.decode([first + 0x41, first + 0xC3, first + 0xA9, first + 0xC3, first + 0x28]) == "\ufffd" * 5
    assert words.decode([first + 0x41, first + 0xC3, first + 0xA9]) == "Aé"


def test_pieces_of_a_document_go_on(tokenizer: Tokenizer) -> None:
    parts = ["the cat", " sat\non", "e mat"]
    ids = [n for part in tokenizer.encode_batch(parts, inside=1) for n in part]
    whole = tokenizer.decode(ids, [piece for part in parts for piece in tokenizer.pieces(part)])
    assert whole.replace("\ufffd", "") == "the cat sat\none mat" or tokenizer.has_unknown(ids)


def test_texts_that_a_model_cannot_read() -> None:
    assert TRAINED["characters"].refused("the cät") == ["ä"]
    assert TRAINED["words"].refused("the cät") == []
    assert TRAINED["words"].refused("Ätna, Öl") == []
    assert TRAINED["words"].refused("Ätna Öl") == ["Ätna", "Öl"]
    assert TRAINED["words"].refused("tac") == [], "a model copies it"
    assert TRAINED["bpe"].refused("Ätna Öl") == []
    with pytest.raises(UserError, match="expected characters of the training text, got 'ä'; leave them out, or train"):
        TRAINED["characters"].encode_known("the cät")
    decomposed = unicodedata.normalize("NFD", "고양이는")
    for tokenizer in TRAINED.values():
        assert tokenizer.encode_known(decomposed) == tokenizer.encode("고양이는")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "   ",
        "  a  b  ",
        "\t\n\r\n\0",
        "👩‍👩‍👧 🇰🇷",
        "한글 각 각",
        "e\u0301 é \u0301",
        "שלום\u200f\u200b\ufeff",
        "▁Ġ <0x41>",
        "das ist nicht' s 7 U.S. haus@@ tür .",
        "one\n  two\n\n three\n \n",
        "\t<0x41> <0x41> a<0x41>",
    ],
)
def test_hard_texts_come_back(kind: Kind, text: str) -> None:
    for tokenizer in (TRAINED[kind], train(kind, [text, "x"], size=400)):
        if not tokenizer.unknown(text):
            assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)
    verbatim = train(kind, [text, "x"], size=400, nfc=False)
    assert not verbatim.unknown(text)
    assert verbatim.decode(verbatim.encode(text)) == text


def test_special_tokens_have_their_numbers_and_a_text_never_becomes_one(tokenizer: Tokenizer) -> None:
    special = {PADDING, FIRST, END} | ({UNKNOWN} if tokenizer.kind in WITH_UNKNOWN else set())
    names = ["<pad>", "<bos>", "<eos>", "<unk>"][: len(special)]
    assert (PADDING, FIRST, END, UNKNOWN) == (0, 1, 2, 3)
    assert tokenizer.names(sorted(special)) == names
    for name in ("<pad>", "<bos>", "<eos>", "<unk>"):
        for text in (name, f" {name}", f"cat {name} {name}"):
            ids = tokenizer.encode(text)
            assert not special & set(ids)
            assert tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "")


def test_a_piece_with_the_name_of_a_special_token_is_another() -> None:
    words = Tokenizer.from_json(changed("words", pieces=["<unk>", "<eos>"]))
    assert words.encode("zebra") == [UNKNOWN]
    assert words.names(range(6)) == ["<pad>", "<bos>", "<eos>", "<unk>", "<unk>", "<eos>"]


def test_decoding_stops_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the cat")
    for stop in (END, PADDING):
        assert tokenizer.decode([FIRST, *ids, stop, *ids]) == "the cat"
    assert tokenizer.decode([]) == tokenizer.decode([END]) == ""


def test_a_batch_is_its_texts(tokenizer: Tokenizer) -> None:
    texts = [*TEXTS, "", "고양이 zzz"]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_names_are_what_a_person_reads() -> None:
    assert TRAINED["bpe"].names(TRAINED["bpe"].encode("the cat 고양이는")) == ["the", " cat", " 고양이는"]
    assert TRAINED["unigram"].names(TRAINED["unigram"].encode("é")) == [r"\xc3", r"\xa9"]
    assert TRAINED["words"].names(TRAINED["words"].encode("cat, 고양이는 zebra")) == [
        " cat",
        ",",
        " 고양이는",
        "<unk>",
    ]
    assert TRAINED["characters"].names(TRAINED["characters"].encode("는 z")) == ["는", " ", "<unk>"]


def test_what_is_unknown_is_said_once_and_in_order() -> None:
    assert TRAINED["words"].unknown("zebra cat yak zebra") == ["zebra", "yak"]
    assert TRAINED["characters"].unknown("z는Z z한") == ["z", "Z", "한"]
    assert TRAINED["characters"].encode("z는")[0] == UNKNOWN
    assert TRAINED["characters"].decode(TRAINED["characters"].encode("z는")) == "\ufffd는"


def test_the_most_frequent_come_first_and_ties_by_code_point() -> None:
    texts = ["b a d c", "c d x", "x x"]
    assert train("words", texts, size=8).names(range(4, 8)) == [" x", " c", " d", " a"]
    assert train("characters", ["ba dcx", "cdxx"], size=8).names(range(4, 8)) == ["x", "c", "d", " "]


def test_lower_case(tokenizer: Tokenizer) -> None:
    lower = train(tokenizer.kind, ["The CAT İs ΟΔΟΣ"], size=300, lowercase=True)
    assert lower.form.lowercase
    assert not tokenizer.form.lowercase
    assert lower.decode(lower.encode("THE CAT")) == "the cat"
    assert lower.unknown("the cat THE CAT") == []
    if tokenizer.kind in WITH_UNKNOWN:
        assert lower.unknown("CAT QQ") == (["QQ"] if tokenizer.kind == "words" else ["Q"])
        assert tokenizer.unknown("the CAT") == (["CAT"] if tokenizer.kind == "words" else ["C", "A", "T"])


def test_the_size_is_kept(tokenizer: Tokenizer) -> None:
    least = 4 + 1 if tokenizer.kind in WITH_UNKNOWN else 3 + 256
    for size in (least, least + 5):
        small = train(tokenizer.kind, TEXTS, size=size)
        assert len(small) == len(small.names(range(size))) == size
        assert max(small.encode("any text at all 한")) < size
    with pytest.raises(UserError, match=rf"needs a size from {least} to 1,000,000; got {least - 1}; choose"):
        train(tokenizer.kind, TEXTS, size=least - 1)


def test_numbers_of_another_tokenizer(tokenizer: Tokenizer) -> None:
    for number in (-1, len(tokenizer)):
        for call in (tokenizer.decode, tokenizer.names):
            with pytest.raises(UserError, match=rf"from 0 to {len(tokenizer) - 1}; got {number}; use the tokenizer"):
                call([number])


@pytest.mark.parametrize("texts", [[], [""], [" \n", "\t\u3000"]])
def test_nothing_to_train_on(tokenizer: Tokenizer, texts: list[str]) -> None:
    with pytest.raises(UserError, match="expected text to train a tokenizer on; got only white space; add"):
        train(tokenizer.kind, texts, size=400)


def test_half_a_surrogate_pair(tokenizer: Tokenizer) -> None:
    for call in (tokenizer.encode, lambda text: train(tokenizer.kind, [text], size=400)):
        with pytest.raises(UserError, match="expected text; got half a surrogate pair"):
            call("a\ud800b")
    if tokenizer.kind in WITH_UNKNOWN:
        with pytest.raises(UserError, match="half a surrogate pair"):
            tokenizer.unknown("a\ud800b")


def test_an_unknown_kind() -> None:
    with pytest.raises(UserError, match="unknown tokenizer 'bpee'; did you mean 'bpe'"):
        train("bpee", TEXTS, size=400)


def test_an_error_while_reading_goes_through_training(tokenizer: Tokenizer) -> None:
    def texts() -> Any:
        yield "some"
        raise UserError("line 7 is broken")

    with pytest.raises(UserError, match="line 7 is broken"):
        train(tokenizer.kind, texts(), size=400)


def test_training_reads_no_more_than_its_bound(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def texts() -> Any:
        while True:
            yield from TEXTS

    monkeypatch.setattr(training, "TRAINING_BYTES", len("".join(TEXTS).encode()) + 2)
    assert train(tokenizer.kind, texts(), size=400) == train(tokenizer.kind, [*TEXTS, "th"], size=400)


def test_long_words_are_cut_for_training_alone() -> None:
    words = "AC" * 1200, f"{'G' * 1000} {'T' * 999}", "a b"
    assert list(training.training_sample(words)) == [words[0][:1000], words[0][1000:2000], words[0][2000:], *words[1:]]
    bpe = train("bpe", [words[0]], size=300)
    assert bpe.decode(bpe.encode(words[0])) == words[0]


def test_json_and_back(tokenizer: Tokenizer) -> None:
    for one in (tokenizer, train(tokenizer.kind, ["A b"], size=300, lowercase=True)):
        other = Tokenizer.from_json(one.to_json())
        assert other == one
        assert hash(other) == hash(one)
        assert other.to_json() == one.to_json()
        assert other.fingerprint == one.fingerprint
        assert other.encode_batch(TEXTS) == one.encode_batch(TEXTS)
    assert len({t.fingerprint for t in (tokenizer, one, *TRAINED.values())}) == len(KINDS) + 1


def changed(kind: str, /, **values: Any) -> str:
    return json.dumps(json.loads(TRAINED[kind].to_json()) | values)


SPELLED = {"lowercase": False, "nfc": True, "at_blanks": False, "byte_fallback": True}
PIECES = json.loads(TRAINED["bpe"].to_json())["pieces"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("null", "no 'jari tokenizer 2'"),
        ('{"version": "1.0", "model": {"type": "BPE"}}', "no 'jari tokenizer 2'"),
        (changed("bpe", format="jari tokenizer 1"), "no 'jari tokenizer 2'"),
        (changed("bpe", more=1), "no 'jari tokenizer 2'"),
        (changed("bpe", kind="wordpiece"), "the kind 'wordpiece'"),
        (changed("bpe", kind=["bpe"]), "the kind"),
        (changed("bpe", form={}), "the kind 'bpe' of the form"),
        (changed("bpe", form={"lowercase": 1, "nfc": True, "at_blanks": False, "byte_fallback": False}), "the form"),
        (changed("words", form=SPELLED), "all 256 bytes"),
        (changed("bpe", pieces="abc"), "not text"),
        (changed("bpe", pieces=[*PIECES, 1]), "not text"),
        (changed("bpe", pieces=[*PIECES, ""]), "not text"),
        (changed("bpe", pieces=[*PIECES, PIECES[0]]), "duplicate"),
        (changed("bpe", pieces=PIECES[1:]), "all 256 bytes"),
        (changed("bpe", pieces=[*PIECES, "a b"]), "all 256 bytes"),
        (changed("bpe", pieces=[*PIECES, "한"]), "all 256 bytes"),
        (changed("bpe", merges=None), "merges that do not fit"),
        (changed("bpe", merges=["ab"]), "merges that do not fit"),
        (changed("bpe", merges=[["a"]]), "merges that do not fit"),
        (changed("bpe", merges=[["a", {}]]), "merges that do not fit"),
        (changed("bpe", merges=[["z", "z"]]), "merges that do not fit"),
        (changed("bpe", scores=[1.0]), "merges or scores that the kind does not have"),
        (changed("unigram", scores=[]), "scores that do not fit"),
        (changed("unigram", scores=[float("nan")] * (len(TRAINED["unigram"]) - 3)), "scores that do not fit"),
        (changed("unigram", scores=["1"] * (len(TRAINED["unigram"]) - 3)), "scores that do not fit"),
        (changed("words", pieces=[]), "no pieces"),
        (changed("words", pieces=["a\ud800"]), "surrogate"),
        (changed("words", pieces=["a b"]), "a word with a space"),
        (changed("characters", pieces=["ab"]), "several characters"),
    ],
)
def test_foreign_json(text: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"expected a tokenizer .*; got .*{message}.*; train it again"):
        Tokenizer.from_json(text)


def test_json_beyond_all_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_JSON_CHARACTERS", 100)
    with pytest.raises(UserError, match=r"got [\d,]+ characters, beyond 100; train"):
        Tokenizer.from_json(TRAINED["bpe"].to_json())


SAME = """
import itertools
from jarilab.data.text.pieces import KINDS
from jarilab.data.text.tokenizers import train
words = ["".join(letters) for letters in itertools.product("가나다라 ", "abcde", "xyz ", "12")]
texts = [" ".join(words[n::7]) for n in range(7)] * 3
print([train(kind, texts, size=size).fingerprint for kind in KINDS for size in (270, 400)])
"""


@pytest.mark.slow
def test_training_is_the_same_in_every_process() -> None:
    settings = [{"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "1"}, {"PYTHONHASHSEED": "2", "RAYON_NUM_THREADS": "3"}]
    made = [
        subprocess.run(
            [sys.executable, "-c", SAME], env=os.environ | setting, capture_output=True, text=True, check=True
        )
        for setting in settings
    ]
    assert made[0].stdout == made[1].stdout
    assert len(set(made[0].stdout.split(","))) >= 2 * len(KINDS) - 1


def test_the_vocabularies_are_imported_without_the_library() -> None:
    program = "import sys, jarilab.data.text; sys.exit('tokenizers' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_endless_file_of_a_tokenizer_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_JSON_CHARACTERS", 1000)
    path = tmp_path / "vocabulary.json"
    with path.open("wb") as file:
        file.truncate(5 << 30)
    with pytest.raises(UserError, match="1,001 characters, beyond 1,000"):
        Tokenizer.read(path)


def test_a_file_that_a_run_keeps_is_read_again(tmp_path):
    path = tmp_path / "vocabulary.json"
    path.write_text(TRAINED["words"].to_json(), encoding="utf-8")
    assert Tokenizer.read(path) == TRAINED["words"]
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"vocabulary.json cannot be read: .*; restore the file"):
        Tokenizer.read(path)


def test_unknown_tokens_of_a_corpus_are_found_in_little_memory():
    tokenizer = train("characters", ["abc"], size=10)
    ids = np.full(8_000_000, 4, np.uint16)
    tracemalloc.start()
    try:
        assert not tokenizer.has_unknown(ids)
        ids[-1] = UNKNOWN
        assert tokenizer.has_unknown(ids)
        assert tokenizer.count_unknown(ids) == tokenizer.count_unknown(ids[-9:].tolist()) == 1
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
