"""Batch norm equals torch's over all tokens of a batch, in a module and in a run."""

import pytest
import torch
from torch import nn

from helpers.runs import PowerCutError, at, cut, newest_of, outcome, tiny, train
from jarilab import LanguageModel, api
from jarilab.core.errors import UserError
from jarilab.nn.init import initialise
from jarilab.nn.norms import BatchNorm, norm_of
from jarilab.nn.sublayers import Residual
from jarilab.training.state import TrainingState

WIDTH = 6


def both() -> tuple[BatchNorm, nn.BatchNorm1d]:
    """Ours and torch's, with the same gains."""
    norm, reference = BatchNorm(WIDTH), nn.BatchNorm1d(WIDTH)
    with torch.no_grad():
        reference.weight.normal_(mean=1.0)
        reference.bias.normal_()
        norm.weight.copy_(reference.weight)
        norm.bias.copy_(reference.bias)
    return norm, reference


def test_it_equals_torchs_over_all_tokens_of_a_batch():
    norm, reference = both()
    for _ in range(3):
        x_BLD = torch.randn(4, 5, WIDTH) * 2 + 1
        x_BLD.requires_grad_()
        y_BLD, expected_ND = norm(x_BLD), reference(x_BLD.flatten(0, 1))
        torch.testing.assert_close(y_BLD.flatten(0, 1), expected_ND)
        gradients = [torch.autograd.grad(y.pow(3).sum(), x_BLD)[0] for y in (y_BLD, expected_ND)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.mean, reference.running_mean)
    torch.testing.assert_close(norm.variance, reference.running_var)
    x_BLD = torch.randn(2, 3, WIDTH)
    torch.testing.assert_close(norm.eval()(x_BLD).flatten(0, 1), reference.eval()(x_BLD.flatten(0, 1)))


def test_a_token_depends_on_the_others_only_in_training():
    """So padding and future tokens influence the output in training."""
    norm, x_BLD = BatchNorm(WIDTH), torch.randn(2, 4, WIDTH)
    padded_BLD = torch.cat((x_BLD, torch.zeros(2, 9, WIDTH)), 1)
    assert not torch.allclose(norm(padded_BLD)[:, :4], norm(x_BLD), atol=0.1)
    norm.eval()
    torch.testing.assert_close(norm(padded_BLD)[:, :4], norm(x_BLD))


def test_a_causal_model_with_it_sees_later_tokens_only_in_training():
    model = LanguageModel(9, d_model=WIDTH, n_heads=2, norm_kind="batch")
    ids_BL = torch.tensor([[3, 4, 5, 6]])
    other_BL = torch.tensor([[3, 4, 5, 7]])
    with torch.no_grad():
        assert not torch.allclose(model(ids_BL)[:, :3], model(other_BL)[:, :3], atol=1e-3)
        model.eval()
        torch.testing.assert_close(model(ids_BL)[:, :3], model(other_BL)[:, :3])


def test_contributions_of_summands_add_up():
    norm = both()[0].eval()
    norm.variance.uniform_(0.5, 2.0)
    one_BLD, other_BLD = torch.randn(1, 3, WIDTH), torch.randn(1, 3, WIDTH)
    torch.testing.assert_close(norm(one_BLD + other_BLD) - norm(other_BLD), norm.of_part(one_BLD))


def test_bfloat16_is_normed_in_float32():
    norm, x_BLD = BatchNorm(WIDTH), torch.randn(8, 50, WIDTH).bfloat16()
    y_BLD = norm(x_BLD)
    assert y_BLD.dtype is torch.bfloat16
    torch.testing.assert_close(y_BLD.float(), BatchNorm(WIDTH)(x_BLD.float()), rtol=1e-2, atol=1e-2)


def test_a_single_token_is_refused_in_training():
    with pytest.raises(UserError, match="expected 2 tokens or more, got 1; use larger batches, or norm_kind=layer"):
        BatchNorm(WIDTH)(torch.randn(1, 1, WIDTH))
    assert BatchNorm(WIDTH).eval()(torch.randn(1, 1, WIDTH)).isfinite().all()


def test_another_kind_is_refused(unchecked):
    with pytest.raises(UserError, match="unknown norm kind 'bach'; did you mean 'batch'"):
        norm_of("bach", WIDTH)
    assert isinstance(Residual(WIDTH, "pre", kind="batch").norm, BatchNorm)


def test_it_starts_as_it_does_in_torch():
    norm = both()[0]
    initialise(norm, 1)
    assert norm.weight.tolist() == [1.0] * WIDTH
    assert norm.bias.tolist() == [0.0] * WIDTH


# In a run ------------------------------------------------------------------------------------------------------------

BATCH = {"model__norm_kind": "batch"}


@pytest.mark.parametrize("average", [pytest.param(0.0, marks=pytest.mark.long), 0.9])
def test_a_run_cut_off_goes_on_to_the_same_bits(tmp_path, average):
    experiment = tiny(**BATCH, training__average=average)
    train(tmp_path / "whole", experiment)
    with pytest.raises(PowerCutError):
        train(tmp_path / "cut", experiment, report=at(7, cut))
    train(tmp_path / "cut", experiment)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_running_statistics_are_averaged_saved_and_used_to_predict(tmp_path, monkeypatch):
    followed, update = [], TrainingState.update

    def follow(state, rate):
        update(state, rate)
        followed.append(state.model.encoder.norm.variance.clone())

    monkeypatch.setattr(TrainingState, "update", follow)
    train(tmp_path / "run", tiny(**BATCH, training__average=0.75), snapshots=1)
    by_hand_D = followed[0]
    for variance_D in followed[1:]:
        by_hand_D = 0.75 * by_hand_D + 0.25 * variance_D
    model = api.load(tmp_path / "run").model
    norm = model.encoder.norm
    torch.testing.assert_close(norm.variance, by_hand_D)
    assert (norm.variance - 1).abs().max() > 1e-2
    assert "encoder.norm.variance" in model.state_dict()
    assert newest_of(tmp_path / "run").name == "step-000000012"
    (alone,) = api.predict(tmp_path / "run", ["12+3"])
    beside, _ = api.predict(tmp_path / "run", ["12+3", "1-2"])
    assert alone.answer == beside.answer
    assert alone.log_probability == pytest.approx(beside.log_probability, abs=1e-5)
