"""Cross-entropy with label smoothing and padding, as tasks call it."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from jarilab.positions.coordinates import Tokens
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.tasks.base import Batch


def batch_of(labels):
    ids = torch.tensor(labels)
    return Batch((Tokens.of(ids, "target"),), ids)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_label_smoothing_by_hand(smoothing):
    scores = torch.randn(2, 3, 5)
    labels = [[3, 2, 0], [4, 0, 0]]  # 0 is padding
    by_hand = []
    for row, line in enumerate(labels):
        for place, label in enumerate(line):
            if label:
                values = scores[row, place].tolist()
                total = math.log(sum(math.exp(value) for value in values))
                share = [smoothing / 5 + (1 - smoothing) * (token == label) for token in range(5)]
                by_hand.append(-sum(s * (value - total) for s, value in zip(share, values, strict=True)))
    loss = Arithmetic(maximum=30).loss(scores, batch_of(labels), smoothing)
    assert loss.item() == pytest.approx(sum(by_hand) / 3, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("counted", [5, 2])  # most of the places, and so few that they are taken out first
def test_the_loss_and_its_gradient_are_those_of_torch(monkeypatch, dtype, smoothing, counted):
    monkeypatch.setattr("jarilab.nn.loss.CPU_CHUNK", 20)  # in pieces
    scores = torch.randn(4, 6, 7).to(dtype).requires_grad_()
    labels = torch.randint(1, 7, (4, 6)).index_fill(1, torch.arange(counted, 6), 0)
    loss = Arithmetic(maximum=30).loss(scores, batch_of(labels.tolist()), smoothing)
    (gradient,) = torch.autograd.grad(3 * loss, scores)
    plain = scores.detach().double().requires_grad_()
    wanted = cross_entropy(plain.flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=smoothing)
    (wanted_gradient,) = torch.autograd.grad(3 * wanted, plain)
    assert loss.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=0)
    exact = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(gradient.double(), wanted_gradient, rtol=exact, atol=exact / 10)


def test_the_loss_of_what_is_all_but_impossible_is_finite_and_of_what_is_all_but_sure_is_not_lost():
    scores = torch.tensor([[[0.0, 300.0, 0.0], [1000.0, 1000.0, 1010.0]]])
    unlikely = Arithmetic(maximum=30).loss(scores, batch_of([[2, 0]]))
    sure = Arithmetic(maximum=30).loss(scores, batch_of([[0, 2]]))
    assert unlikely.item() == 300
    assert sure.item() == pytest.approx(2 * math.exp(-10), rel=1e-3)


@pytest.mark.parametrize("score", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("padding", [1, 3])  # places, of four
def test_the_loss_does_not_depend_on_scores_where_padding_is(score, smoothing, padding):
    scores = torch.randn(1, 4, 5)
    labels = torch.tensor([[3, 2, 4, 1]]).index_fill(1, torch.arange(4 - padding, 4), 0)
    expected = Arithmetic(maximum=30).loss(scores, batch_of(labels.tolist()), smoothing)
    scores[:, 4 - padding :, 0] = score
    loss = Arithmetic(maximum=30).loss(scores, batch_of(labels.tolist()), smoothing)
    assert loss.item() == expected.item()


def test_scores_may_rule_padding_out():
    scores = torch.randn(1, 4, 5).index_fill(2, torch.tensor([0]), -math.inf).requires_grad_()
    loss = Arithmetic(maximum=30).loss(scores, batch_of([[3, 2, 4, 0]]))
    (gradient,) = torch.autograd.grad(loss, scores)
    wanted = cross_entropy(scores.flatten(0, 1), torch.tensor([3, 2, 4, 0]), ignore_index=0)
    (wanted_gradient,) = torch.autograd.grad(wanted, scores)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(gradient, wanted_gradient)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_batch_of_nothing_but_padding_teaches_nothing(smoothing):
    scores = torch.randn(2, 3, 5, requires_grad=True)
    loss = Arithmetic(maximum=30).loss(scores, batch_of([[0, 0, 0], [0, 0, 0]]), smoothing)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(scores.grad, torch.zeros(2, 3, 5))
