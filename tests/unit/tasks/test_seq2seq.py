"""Tasks of a source and a target text: the tensors of a batch, and every figure of `evaluate` worked out by hand."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.data.text import END, FIRST, PADDING
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.base import Batch
from jarilab.tasks.metrics import METRICS
from jarilab.tasks.seq2seq import AT_ONCE, Matrix, PairsTask, Rows, Vocabulary

LETTERS = "abcdefgh ."
SIZE = 3 + len(LETTERS)


class Letters:
    """A token for each letter."""

    def __len__(self) -> int:
        return SIZE

    def encode(self, text: str) -> list[int]:
        return [3 + LETTERS.index(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        text = ""
        for token in ids:
            if token in (END, PADDING):
                break
            text += LETTERS[token - 3]
        return text

    def names(self, ids: Sequence[int]) -> list[str]:
        return [f"<{token}>" if token < 3 else LETTERS[token - 3] for token in ids]


class Toy(PairsTask):
    """Whatever pairs it is given."""

    def __init__(self, pairs: Sequence[tuple[str, str]], longest: int = 40):
        super().__init__(longest)
        self.pairs = list(pairs)

    @property
    def tokenizers(self) -> tuple[Vocabulary, Vocabulary]:
        return Letters(), Letters()

    def _read_data(self) -> tuple[Rows, Rows]:
        source, target = zip(*self.pairs, strict=True)
        return rows(source), rows(target)

    def _read_held_out(self) -> list[tuple[str, str]]:
        return self.pairs

    @property
    def groups(self) -> tuple[str, ...]:
        return ("all", "short", "long", "none")

    def group_of(self, source: str, target: str) -> str:
        return "short" if len(source) < 4 else "long"


def rows(texts: Sequence[str]) -> Matrix:
    encoded = [Letters().encode(text) for text in texts]
    lengths = np.array([len(row) for row in encoded])
    ids = np.zeros((len(encoded), 50), dtype=np.uint8)
    for row, numbers in zip(ids, encoded, strict=True):
        row[: len(numbers)] = numbers
    return Matrix(ids, lengths)


class Says:
    """A learner that says what it is told about a source; its scores are drawn from the tokens before."""

    model = judge = None

    def __init__(self, answers: dict[str, str]):
        self.answers = answers
        self.table = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(3))
        self.asked: list[list[list[int]]] = []

    def write(self, sources: Tokens) -> list[list[int]]:
        self.asked.append(sources.ids.tolist())
        return [[*Letters().encode(self.answers[Letters().decode(row)]), END] for row in self.asked[-1]]

    def scores(self, batch: Batch) -> Tensor:
        return self.table[batch.inputs[1].ids]

    def most_attended(self, source: list[int], written: Sequence[int]) -> list[int]:
        raise NotImplementedError


def texts(number: int, shortest: int = 1, longest: int = 30) -> list[str]:
    chance = random.Random(number)
    return ["".join(chance.choices(LETTERS, k=chance.randint(shortest, longest))) for _ in range(number)]


# Batches -------------------------------------------------------------------------------------------------------------


def test_a_batch_has_ends_and_padding_in_their_places() -> None:
    task = Toy([("abc", "h"), ("", "gh"), ("a", "")])
    task.prepare()
    batch = task.training_batch(torch.tensor([0, 1, 2]), torch.Generator())
    source, target = batch.inputs
    assert source.ids.tolist() == [[3, 4, 5, END], [END, 0, 0, 0], [3, END, 0, 0]]
    assert source.keep is not None
    assert source.keep.tolist() == [[True] * 4, [True, False, False, False], [True, True, False, False]]
    assert target.ids.tolist() == [[FIRST, 10, 0], [FIRST, 9, 10], [FIRST, 0, 0]]
    assert batch.labels.tolist() == [[10, END, 0], [9, 10, END], [END, 0, 0]]
    assert target.keep is None, "what is padding has no label, and nothing before it sees it"
    assert (source.positions.frame, target.positions.frame) == ("source", "target")
    assert source.positions.index().tolist() == [0, 1, 2, 3]
    assert target.positions.index().tolist() == [0, 1, 2]
    assert task.training_lengths.tolist() == [[4, 2], [1, 3], [2, 1]]


def test_a_batch_of_equal_lengths_needs_no_mask() -> None:
    task = Toy([("abc", "h"), ("fgh", "gh"), ("a", "")])
    task.prepare()
    source = task.training_batch(torch.tensor([1, 0]), torch.Generator()).inputs[0]
    assert source.ids.tolist() == [[8, 9, 10, END], [3, 4, 5, END]]
    assert source.keep is None


def test_a_batch_of_nothing() -> None:
    task = Toy([("abc", "h")])
    task.prepare()
    batch = task.training_batch(torch.tensor([], dtype=torch.long), torch.Generator())
    assert [inputs.ids.shape for inputs in batch.inputs] == [(0, 1), (0, 1)]
    assert batch.labels.shape == (0, 1)
    assert task.loss(torch.zeros(0, 1, SIZE), batch).item() == 0
    assert task.sources([]).ids.shape == (0, 1)


def test_padding_says_nothing_in_the_loss() -> None:
    task, learner = Toy([("abc", "hgf"), ("", "g")]), Says({})
    task.prepare()
    both, first, second = (task.training_batch(torch.tensor(i), torch.Generator()) for i in ([0, 1], [0], [1]))
    losses = [float(task.loss(learner.scores(batch), batch)) for batch in (both, first, second)]
    assert losses[0] == pytest.approx((4 * losses[1] + 2 * losses[2]) / 6)


def test_sources_a_person_wrote() -> None:
    task = Toy([], longest=4)
    source = task.sources([task.read(" ab "), task.read("abcd")])
    assert source.ids.tolist() == [[3, 4, END, 0, 0], [3, 4, 5, 6, END]]
    assert source.keep is not None
    assert source.keep.tolist() == [[True, True, True, False, False], [True] * 5]
    assert task.longest == {"source": 5, "target": 5}, "with its end"
    assert (
        task.show_source(source.ids[0].tolist()) == task.show_target([3, 4, 2, 0, 0]) == ["a", "b", "<2>", *["<0>"] * 2]
    )
    with pytest.raises(UserError, match="5 tokens are too many; this run reads at most 4: cut the line"):
        task.read("abcde")
    for line in ("", " \t"):
        with pytest.raises(UserError, match="the line is empty; write a text to answer"):
            task.read(line)


# Figures -------------------------------------------------------------------------------------------------------------


def test_bleu_and_chrf_are_those_of_sacrebleu() -> None:
    references = ["a cab had a fee.", "a bad bad bag", "he had a cab", "a bad head", "dead beef"]
    answers = ["a cab had fee.", "a bag bad bag", "he had a cab", "bad head", ""]
    sources = ["a", "ab", "abc", "abcd", "abcde"]
    task = Toy(list(zip(sources, references, strict=True)))
    learner = Says(dict(zip(sources, answers, strict=True)))
    for words in ("none", "13a"):
        task.words = words
        metrics = task.evaluate(learner)
        bleu = BLEU(tokenize=words)
        assert 0 < metrics["bleu"] < 100
        assert metrics["bleu"] == bleu.corpus_score(answers, [references]).score
        assert metrics["chrf"] == CHRF().corpus_score(answers, [references]).score
        assert f"tok:{words}" in metrics["signature"]
        assert metrics["examples"] == 5
    right = [answer == reference for answer, reference in zip(answers, references, strict=True)]
    assert sum(right) == 1
    assert metrics["exact_match"] == 1 / 5
    assert (metrics["exact_match_short"], metrics["exact_match_long"]) == (1 / 3, 0)
    assert "exact_match_none" not in metrics
    task.words = None
    assert not {"bleu", "chrf", "signature"} & task.evaluate(learner).keys()


def test_perplexity_is_of_the_tokens_of_the_right_answers() -> None:
    targets = texts(AT_ONCE + 30, shortest=0)
    pairs = list(zip(texts(AT_ONCE + 30), targets, strict=True))
    learner = Says({source: "" for source, _ in pairs})
    log_p = learner.table.double().log_softmax(-1)
    total, count = 0.0, 0
    for target in targets:
        ids = [*Letters().encode(target), END]
        total -= sum(float(log_p[before, after]) for before, after in zip([FIRST, *ids[:-1]], ids, strict=True))
        count += len(ids)
    assert Toy(pairs).evaluate(learner)["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)


def test_answers_stay_beside_their_questions() -> None:
    sources = list(dict.fromkeys(texts(2 * AT_ONCE + 100, shortest=3)))
    chance = random.Random(1)
    answers = {source: chance.choice(sources) for source in sources}
    learner = Says(answers)
    metrics = Toy(list(answers.items())).evaluate(learner)
    assert metrics["exact_match"] == 1.0
    assert metrics["bleu"] == pytest.approx(100)
    assert [len(batch) for batch in learner.asked] == [AT_ONCE, AT_ONCE, len(sources) - 2 * AT_ONCE]
    # Of like length together.
    lengths = [row.index(END) for batch in learner.asked for row in batch]
    assert lengths == sorted(lengths)


def test_exact_match_is_also_told_by_the_length_of_the_answer() -> None:
    targets = {"a": "ab", "b": "cd", "c": "abc"}
    task = Toy(list(targets.items()))
    learner = Says({"a": "ab", "b": "", "c": "abc"})
    task.metric = METRICS["bleu"]
    assert "parts" not in task.evaluate(learner)
    task.metric = METRICS["exact_match"]
    assert task.evaluate(learner)["parts"] == {
        "tokens of the answer": {"2": {"value": 0.5, "examples": 2}, "3": {"value": 1.0, "examples": 1}}
    }


def test_some_of_the_held_out_pairs_evenly() -> None:
    sources = list(dict.fromkeys(texts(50, shortest=5)))[:40]
    learner = Says({source: source for source in sources})
    metrics = Toy([(source, source) for source in sources]).evaluate(learner, examples=4)
    asked = {Letters().decode(row) for batch in learner.asked for row in batch}
    assert asked == {sources[0], sources[10], sources[20], sources[30]}
    assert metrics["examples"] == 4


def test_sources_that_predict_refuses_are_not_measured() -> None:
    learner = Says({"abc": "gh"})
    pairs = [("", "a"), ("abcdefgh", "gh"), ("abc", "gh"), ("  ", "b")]
    metrics = Toy(pairs, longest=4).evaluate(learner)
    assert learner.asked == [[[3, 4, 5, END]]]
    assert (metrics["exact_match"], metrics["examples"], metrics["refused"]) == (1.0, 1, 3)
    message = r"expected held-out sources of 1 to 4 tokens, got none among 2; give others \(the first: "
    with pytest.raises(UserError, match=message):
        Toy(pairs[:2], longest=4).evaluate(learner)
