"""Tokens of other libraries' tokenizers, joined by a page as the tokenizer joins them."""

import importlib.util
import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from helpers.folders import byte_tokenizer, tokenizer_of
from jarilab.huggingface.spelling import _written, writing_of
from jarilab.pages.kit.page import bundle

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
    pytest.mark.browser,
]

PIECES = ["<pad>", "</s>", "<unk>", "▁", "▁the", "▁cat", "s", "한", "▁<b>", ".", "'"]
BYTES = [f"<0x{byte:02X}>" for byte in (0xED, 0x95, 0x9C, 0x41, 0xFF)]
WORD_PIECES = ["[PAD]", "[UNK]", "[SEP]", "the", "##s", "cat", ".", ",", "한", "##국"]


def tokenizer(pieces: Sequence[str], decoder: Any) -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=pieces[2]))
    made.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token=pieces[2], pad_token=pieces[0], eos_token=pieces[1])


def made(kind: str) -> Any:
    from tokenizers import decoders

    marks = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return {
        "bytes": byte_tokenizer,
        "words": tokenizer_of,
        "pieces": lambda: tokenizer(PIECES, decoders.Metaspace()),
        "spelled": lambda: tokenizer([*PIECES, *BYTES], decoders.Sequence(marks)),
        "joined": lambda: tokenizer(WORD_PIECES, decoders.WordPiece()),
        "odd": lambda: tokenizer(PIECES, decoders.Sequence([decoders.Fuse(), decoders.Replace("cat", "dog")])),
    }[kind]()


@pytest.mark.parametrize("kind", ["bytes", "words", "pieces", "spelled", "joined", "odd"])
def test_a_page_joins_tokens_as_their_tokenizer_does(browser: Any, kind: str) -> None:
    opened = made(kind)
    writing, is_exact = writing_of(opened, len(opened), [5, 3])
    assert is_exact == (kind != "odd")
    generator = random.Random(1)
    rows = [generator.choices(range(len(opened)), k=generator.randint(0, 9)) for _ in range(200)]
    page = browser.new_page()
    page.set_content("<p>spelling</p>")
    page.add_script_tag(
        content=f"window.workerPayload = {{}};\n{bundle('jarilab.pages.kit', 'kit/spelling.js')}\n"
        "window.written = kit_spelling$.written;"
    )
    given = json.dumps([rows, asdict(writing)])
    joined = page.evaluate("([rows, rules]) => rows.map((row) => written(row, rules, []))", json.loads(given))
    page.close()
    if is_exact:
        assert joined == [opened.decode(row, skip_special_tokens=True) for row in rows]


def test_ids_without_a_token_are_not_written() -> None:
    writing, is_exact = writing_of(tokenizer_of(), 24, [5, 20])
    assert is_exact
    assert set(range(17, 24)) <= set(writing.skipped)


@pytest.mark.parametrize("cleanup", [False, True])
@pytest.mark.parametrize("decodes", [False, True])
def test_apostrophes_of_a_large_vocabulary_are_compared(cleanup: bool, decodes: bool) -> None:
    from tokenizers import decoders

    pieces = [*WORD_PIECES, "'", "n't", "don", "'s", *(f"w{number}" for number in range(5000))]
    opened = tokenizer(pieces, decoders.WordPiece(cleanup=cleanup))
    opened.clean_up_tokenization_spaces = decodes
    writing, is_exact = writing_of(opened, len(opened), [5, 3])
    assert is_exact
    for text in (["cat", "'", "##s"], ["don", "n't"], ["cat", "'s", "."], ["the", "'", "cat", "'", ","]):
        ids = [pieces.index(piece) for piece in text]
        assert _written(writing, ids) == opened.decode(ids, skip_special_tokens=True)
