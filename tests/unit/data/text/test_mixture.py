"""Several corpora with weights: names, and how often each row is read."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from jarilab.core.errors import UserError
from jarilab.data.text.mixture import Corpus, Mixture, corpora


def test_a_weight_ends_a_corpus() -> None:
    names = ["a.de", "a.en:2.0", "b.tsv:0.5", "c.de", "c.en"]
    files = [("a.de", "a.en"), ("b.tsv",), ("c.de", "c.en")]
    expected = [Corpus(tuple(map(Path, f)), w) for f, w in zip(files, (2.0, 0.5, 1.0), strict=True)]
    assert corpora("train", names) == expected
    assert corpora("train", ["a", "b:3"], single=True) == [Corpus((Path("a"),), 1.0), Corpus((Path("b"),), 3.0)]


def test_a_name_with_a_colon_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a:2"
    file.write_text("x")
    assert corpora("train", [str(file)]) == [Corpus((file,), 1.0)]
    assert corpora("train", [f"{file}:3"]) == [Corpus((file,), 3.0)]
    for name in ("C:\\texts\\a.de", "C:/texts/a.de", "missing:name"):
        assert corpora("train", [name]) == [Corpus((Path(name),), 1.0)]
    assert corpora("train", ["C:\\a.de:2"]) == [Corpus((Path("C:\\a.de"),), 2.0)]


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "1e7", "two", ""])
def test_weights_are_positive_numbers(tmp_path: Path, weight: str) -> None:
    (tmp_path / "a.en").write_text("x")
    with pytest.raises(UserError, match=rf"--train: expected a weight above 0 .*; got '{weight}' in .*; write such as"):
        corpora("train", [f"{tmp_path}/a.en:{weight}"])


def test_an_epoch_reads_rows_as_often_as_their_weight_says() -> None:
    mixture = Mixture([2.0, 0.5, 1.0], [3, 10, 4])
    assert len(mixture) == 6 + 5 + 4
    generator = torch.Generator().manual_seed(1)
    epochs = [mixture.rows(torch.arange(len(mixture)), generator).tolist() for _ in range(40)]
    for rows in epochs:
        counts = Counter(rows)
        assert [counts[row] for row in range(3)] == [2] * 3
        assert len(set(rows[6:11])) == 5
        assert rows[11:] == [13, 14, 15, 16]
    assert {row for rows in epochs for row in rows[6:11]} == set(range(3, 13)), "every row is read at some time"


def test_lengths_are_those_of_the_longest_that_may_be_read() -> None:
    lengths = torch.tensor([[5, 1], [9, 9], [2, 3], [4, 7], [1, 1]])
    mixture = Mixture([0.4, 1.0], [4, 1], lengths)
    generator = torch.Generator().manual_seed(2)
    bound = mixture.lengths(lengths)
    for _ in range(50):
        assert (lengths[mixture.rows(torch.arange(len(mixture)), generator)] <= bound).all()
