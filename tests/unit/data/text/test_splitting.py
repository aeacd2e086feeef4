"""Tokens split into the two that BPE merged."""

import pytest
import torch

from jarilab.data.text import PADDING
from jarilab.data.text.splitting import Splitting
from jarilab.data.text.tokenizers import Tokenizer, train

TEXTS = ["the cat sat on the mat", "a cat and a hat", "the rat that ate the hat of the cat", "x"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train("bpe", TEXTS * 3, size=300)


def padded(rows: list[list[int]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, PADDING)


def texts_of(tokenizer: Tokenizer, ids: torch.Tensor) -> list[str]:
    return [tokenizer.decode([token for token in row if token != PADDING]) for row in ids.tolist()]


def test_halves_spell_their_token(tokenizer: Tokenizer) -> None:
    merged = tokenizer.merged_from
    assert len(merged) == len(tokenizer) - 256 - 3
    for whole, halves in merged.items():
        assert tokenizer.decode([whole]) == tokenizer.decode(halves)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_split_rows_say_the_same_in_more_tokens(tokenizer: Tokenizer, share: float) -> None:
    splitting = Splitting.of(tokenizer, share, 40)
    rows = padded([tokenizer.encode(text) for text in TEXTS])
    split = splitting.split(rows, torch.Generator().manual_seed(1))
    assert texts_of(tokenizer, split) == TEXTS
    lengths, now = (rows != PADDING).sum(1), (split != PADDING).sum(1)
    wanted = (lengths + splitting.splits(lengths))[:3]
    characters = torch.tensor([len(text) for text in TEXTS[:3]])
    assert now[:3].equal(wanted.minimum(characters))
    assert now[3] == lengths[3], "a single letter has no halves"
    assert split.shape[1] == now.max()
    assert (split[0, : now[0]] != PADDING).all()


def test_splits_differ_each_time_and_repeat_with_their_seed(tokenizer: Tokenizer) -> None:
    splitting = Splitting.of(tokenizer, 0.3, 40)
    rows = padded([tokenizer.encode(text) for text in TEXTS])
    generator = torch.Generator().manual_seed(1)
    first, second = splitting.split(rows, generator), splitting.split(rows, generator)
    assert not first.equal(second)
    assert first.equal(splitting.split(rows, torch.Generator().manual_seed(1)))


def test_no_row_becomes_too_long(tokenizer: Tokenizer) -> None:
    rows = padded([tokenizer.encode(text) for text in TEXTS])
    longest = rows.shape[1]
    split = Splitting.of(tokenizer, 1.0, longest).split(rows, torch.Generator().manual_seed(1))
    assert split.shape == rows.shape
    assert split[-2].equal(rows[-2]), "the longest"


def test_each_token_is_as_likely(tokenizer: Tokenizer) -> None:
    row = tokenizer.encode("the cat")
    splitting, generator = Splitting.of(tokenizer, 1 / len(row), 40), torch.Generator().manual_seed(1)
    split = splitting.split(padded([row] * 4000), generator)
    counts = torch.unique(split, dim=0, return_counts=True)[1]
    assert len(counts) == sum(token in tokenizer.merged_from for token in row)
    assert ((counts / 4000 - 1 / len(counts)).abs() < 0.05).all()
