"""Importance of heads: models whose circuit is known, other ways to compute the same numbers, and bad input."""

import copy
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional

import jarilab
from helpers import circuits
from helpers.any_models import LENGTHS, OUTPUTS, any_model, hugging_face, output_projection, padded
from helpers.circuits import Circuit, examples, loss_of_previous, loss_of_three, previous, silent, sink
from jarilab.core.errors import UserError
from jarilab.inspect.cause import copies
from jarilab.inspect.cause.steering import changed as zeroed
from jarilab.inspect.cause.steering import random_direction
from jarilab.inspect.study import importance as module
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.importance import HeadImportance
from jarilab.inspect.study.losses import loss_of, next_token_loss, pooled_embedding
from jarilab.inspect.study.progress_file import ProgressFile


def study_of(*layers, loss=loss_of_previous) -> HeadImportance:
    return HeadImportance(Circuit(*layers), [examples(16, seed) for seed in (0, 1)], loss)


def effects(study, kind, columns=("total", "direct")) -> dict[str, tuple[float, ...]]:
    rows = study.rows([kind], controls=0)
    return {row["head"]: tuple(round(row[each], 2) for each in columns) for row in rows}


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from jarilab.inspect.study import progress_file
from unit.inspect.study.test_importance import resumable, tables
progress_file.SECONDS_BETWEEN_SAVES = 0.0

def slow(done, total):
    print(done, flush=True)
    time.sleep(0.1)

tables(resumable(progress_file.ProgressFile(Path({path!r})), slow))
"""


def resumable(progress: ProgressFile | None, report=None) -> HeadImportance:
    model = Circuit([previous(), silent()], [sink(3), previous(0.5)])
    batches = [examples(8, seed) for seed in range(4)]
    return HeadImportance(model, batches, loss_of_previous, report=report, progress=progress)


def tables(study: HeadImportance) -> list[dict]:
    rows = study.rows(["zero", "mean", "resample"], controls=2)
    return [*rows, *study.pair_rows(rows, "mean", top=3)]


@pytest.mark.slow
def test_killed_ablations_continue_with_the_same_numbers(tmp_path, monkeypatch):
    path = tmp_path / "importance.safetensors"
    code = SCRIPT.format(tests=str(Path(__file__).parents[3]), path=str(path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number, _ in enumerate(process.stdout):
            if number >= 9:
                break
        os.kill(process.pid, signal.SIGKILL)
    expected = tables(resumable(None))
    computed = []
    effects_of_batch = HeadImportance._effects_of_batch
    monkeypatch.setattr(
        HeadImportance,
        "_effects_of_batch",
        lambda study, kind, groups, number, effects: (
            computed.append((kind, number)) or effects_of_batch(study, kind, groups, number, effects)
        ),
    )
    study = resumable(ProgressFile(path))
    assert study.finished_kinds == ["zero"]
    assert tables(study) == expected
    assert ("zero", 0) not in computed
    assert ("mean", 3) in computed
    computed.clear()
    study = resumable(ProgressFile(path))
    assert study.finished_kinds == ["zero", "mean", "resample"]
    assert tables(study) == expected
    assert computed == []


# Known circuits -------------------------------------------------------------------------------------------------------


def test_a_head_that_copies_is_needed_whole():
    study = study_of([previous(), silent()])
    assert effects(study, "zero") == {"L0H0": (2.48, 2.48), "L0H1": (0.0, 0.0)}
    (mean, _), silent_mean = effects(study, "mean").values()
    assert mean == pytest.approx(2.47, abs=0.03)
    assert silent_mean == (0.0, 0.0)
    (resampled, _), _ = effects(study, "resample").values()
    assert resampled == pytest.approx(9.07, abs=0.4), "a wrong token costs more than none"


def test_a_constant_is_needed_though_it_tells_nothing():
    study = study_of([sink(3), silent()], loss=loss_of_three)
    assert effects(study, "zero")["L0H0"] == (2.48, 2.48)
    for kind in ("mean", "mean_by_position", "resample"):
        assert effects(study, kind)["L0H0"] == (0.0, 0.0)


def test_the_direct_effect_and_pairs_find_a_primary_head_and_its_backup():
    backup = previous(rest_if_filled=2 * circuits.BETA)
    study = study_of([previous(), silent()], [backup, silent()])
    zero = effects(study, "zero")
    assert zero["L0H0"] == (0.0, 2.48)
    assert zero["L1H0"] == (0.0, 0.0)
    assert effects(study, "mean")["L0H0"][0] == pytest.approx(2.46, abs=0.03)
    rows = study.pair_rows(study.rows(["zero"], controls=0), top=4)
    assert len(rows) == 6
    assert (rows[0]["head"], rows[0]["other"]) == ("L0H0", "L1H0")
    assert rows[0]["total"] == pytest.approx(2.484, abs=0.001)
    assert rows[0]["excess"] == pytest.approx(2.484, abs=0.001)
    assert rows[0]["p_holm"] < 0.01
    assert rows[1]["excess"] == pytest.approx(0.0, abs=1e-4)


def test_pairs_find_two_heads_of_which_one_is_enough():
    study = study_of([previous(), previous(), silent()])
    rows = study.rows(["zero"], controls=0)
    assert all(abs(row["total"]) < 0.002 for row in rows)
    first, *others = study.pair_rows(rows)
    assert (first["head"], first["other"]) == ("L0H0", "L0H1")
    assert first["excess"] == pytest.approx(2.48, abs=0.01)
    assert all(abs(other["excess"]) < 0.001 for other in others)


def test_a_head_that_makes_the_answer_worse_has_a_negative_effect():
    study = study_of([previous(), previous(write=-0.6), silent()])
    rows = {row["head"]: row for row in study.rows(["zero"], controls=0)}
    assert rows["L0H1"]["total"] == pytest.approx(-0.185, abs=0.001)
    assert rows["L0H1"]["positive_share"] == 0.0
    assert rows["L0H0"]["total"] == pytest.approx(8.2, abs=0.01)
    assert rows["L0H0"]["positive_share"] == 1.0
    assert rows["L0H0"]["rank"] == 1
    pair, *_ = study.pair_rows(list(rows.values()))
    singles = rows["L0H0"]["total"] + rows["L0H1"]["total"]
    assert pair["excess"] == pytest.approx(pair["total"] - singles, abs=1e-6)
    assert pair["excess"] == pytest.approx(2.30 - 8.01, abs=0.01)


def test_kinds_have_rankings_of_their_own_and_silent_heads_are_not_named():
    rows = study_of([previous(), silent()]).rows(["zero", "resample"], controls=1)
    assert [(row["kind"], row["rank"]) for row in rows] == [("zero", 1), ("zero", 2), ("resample", 1), ("resample", 2)]
    assert [row["head"] for row in rows] == ["L0H0", "L0H1"] * 2
    for row in rows:
        assert (row["p_holm"] < 0.05) == (row["head"] == "L0H0")
        assert (row["control"] is None) == (row["rank"] == 2)
        assert row["total_low"] <= row["total"] <= row["total_high"]
        assert row["unit"] == "nats a token"
        assert row["examples"] == 32
    assert abs(rows[0]["control"]) < 0.1, "a random direction hurts less"


# Any model ------------------------------------------------------------------------------------------------------------


def loss_for(name: str):
    return pooled_embedding if name == "bert" else next_token_loss


@pytest.mark.parametrize("name", OUTPUTS)
def test_zero_ablation_is_a_head_without_output_projection(name):
    model, batch = any_model(name)
    loss = loss_for(name)
    study = HeadImportance(model, [batch], loss)
    assert len(study.heads) == {"t5": 24, "jarilab": 24}.get(name, 12)
    groups = [(study.parts.of_head(head),) for head in study.heads]
    total, direct = study.changes("zero", groups)
    assert np.isfinite(direct).all()
    with torch.no_grad():
        clean = loss(batch.forward(model), batch).double()
        for column, head in enumerate(study.heads):
            cut = copy.deepcopy(model)
            weight = output_projection(name, cut, head.site).weight
            width = (weight.shape[0] if name == "gpt2" else weight.shape[1]) // 4
            rows = slice(head.index * width, (head.index + 1) * width)
            weight[(rows, slice(None)) if name == "gpt2" else (slice(None), rows)] = 0.0
            change = loss(batch.forward(cut), batch).double() - clean
            change = change.square().sum(-1) if change.ndim > 1 else change
            assert total[:, column] == pytest.approx(change.numpy(), abs=2e-6), head
    assert np.abs(total).max() > 0.01


@pytest.mark.parametrize(
    "kind",
    [
        "zero",
        "resample",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("mean", "mean_by_position", "random")),
    ],
)
@pytest.mark.parametrize("name", OUTPUTS)
def test_copies_along_the_batch_equal_a_loop_without_outputs_of_earlier_forwards(name, kind, monkeypatch):
    model, batch = any_model(name)
    study = HeadImportance(model, [batch], loss_for(name))
    assert study._copies.can_replay
    parts = list(map(study.parts.of_head, study.heads))
    groups = [(part,) for part in parts[::3]] + [(parts[0], parts[-1])]
    together, _ = study.changes(kind, groups, direct=False)
    alone = []
    study._copies.can_replay = False
    monkeypatch.setattr(copies, "MAX_TOKENS", 1)
    if kind == "random":  # the same directions, as they are drawn in the order of the groups
        alone = [study.changes(kind, groups, direct=False)[0]]
    else:
        alone = [study.changes(kind, [group], direct=False)[0] for group in groups]
    assert np.concatenate(alone, 1) == pytest.approx(together, abs=2e-6)
    assert np.isfinite(together).all()


def test_a_padded_row_has_the_effects_that_it_has_alone():
    model, batch = hugging_face("llama")
    study = HeadImportance(model, [batch], next_token_loss)
    groups = [(study.parts.of_head(head),) for head in study.heads]
    total, direct = study.changes("zero", groups)
    ids = batch.ids["target"][2:3, :6]
    alone = Batch((ids,), tokens=batch.tokens[:1], ids={"target": ids})
    expected = HeadImportance(model, [alone], next_token_loss).changes("zero", groups)
    assert total[2] == pytest.approx(expected[0][0], abs=1e-5)
    assert direct[2] == pytest.approx(expected[1][0], abs=1e-5)


def test_the_direct_effect_changes_the_last_residual_stream_alone():
    model, batch = hugging_face("llama")
    study = HeadImportance(model, [batch], next_token_loss)
    _, direct = study.changes("zero", [(study.parts.of_head(head),) for head in study.heads])
    last, writes = [], []
    hooks = [model.model.norm.register_forward_pre_hook(lambda module, args: last.append(args[0]))]
    for layer in model.model.layers:
        hook = layer.self_attn.o_proj.register_forward_pre_hook(lambda module, args: writes.append((module, args[0])))
        hooks.append(hook)
    with torch.no_grad():
        clean = next_token_loss(batch.forward(model), batch)
        for hook in hooks:
            hook.remove()
        column = 0
        for projection, z_BLF in writes:
            for head in range(4):
                rows = slice(head * 4, (head + 1) * 4)
                written = z_BLF[..., rows] @ projection.weight[:, rows].T
                logits = model.lm_head(model.model.norm(last[0] - written))
                change = next_token_loss(logits, batch) - clean
                assert direct[:, column] == pytest.approx(change.numpy(), abs=2e-6)
                column += 1


def test_means_leave_padding_out_and_positions_count_tokens():
    model, batch = hugging_face("llama")
    study = HeadImportance(model, [batch], next_token_loss)
    clean = study._copies.run_clean(batch)
    means = study._mean_outputs()["decoder.1.self"]
    z_BHQW = clean.heads["decoder.1.self"][0]
    rows = [z_BHQW[row, :, :length] for row, length in enumerate(LENGTHS)]
    expected = torch.cat([row.transpose(0, 1) for row in rows]).mean(0)
    assert torch.allclose(means["mean"][0].float(), expected, atol=1e-6)
    assert torch.allclose(means["mean_by_position"][8].float(), z_BHQW[:2, :, 8].mean(0), atol=1e-6)
    left = torch.tensor([[False, True, True], [True, True, True]])
    assert module._positions(left).tolist() == [[-1, 0, 1], [0, 1, 2]]


def test_a_row_without_another_of_its_length_is_not_resampled():
    model, batch = hugging_face("llama")
    valid = padded(batch.ids["target"], (9, 9, 6, 5))
    batch = Batch((), batch.kwargs, batch.tokens, {"target": valid}, ids=batch.ids)
    rows = HeadImportance(model, [batch], next_token_loss).rows(["resample"], controls=0)
    assert {row["examples"] for row in rows} == {2}
    others = module.other_rows(padded(torch.zeros(6, 9), (9, 9, 6, 5, 6, 6)), [0])
    assert others[3] == -1
    assert others[:2].tolist() == [1, 0]
    assert sorted(others[[2, 4, 5]].tolist()) == [2, 4, 5]
    assert all(int(other) != row for row, other in enumerate(others))


def test_the_control_is_the_output_turned_alike_at_all_positions_of_a_row():
    z_BQW = torch.randn(3, 5, 8)
    added = random_direction(zeroed(0.0), [1, 2])(SimpleNamespace(), 0, z_BQW) - z_BQW
    assert torch.allclose(added @ added.mT, z_BQW @ z_BQW.mT, atol=1e-4)
    alike = random_direction(zeroed(0.0), [1, 2])(SimpleNamespace(), 0, z_BQW[:1].expand(3, -1, -1))
    assert not torch.allclose(alike[0], alike[1], atol=0.1), "each row has a rotation of its own"
    again = random_direction(zeroed(0.0), [1, 2])(SimpleNamespace(), 0, z_BQW) - z_BQW
    assert torch.equal(added, again)


# Losses and bad input -------------------------------------------------------------------------------------------------


def chosen_loss(model, batch):
    with torch.no_grad(), jarilab.record(model) as tape:
        outputs = batch.forward(model)
    return loss_of(model, tape, outputs, batch), outputs


def test_the_next_token_loss_is_the_models_own():
    model, batch = hugging_face("llama")
    loss, outputs = chosen_loss(model, batch)
    assert loss is next_token_loss
    values = loss(outputs, batch)
    for row, length in enumerate(LENGTHS):
        ids = batch.ids["target"][row : row + 1, :length]
        assert values[row].item() == pytest.approx(model(input_ids=ids, labels=ids).loss.item(), abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_labels_in_the_data_give_the_models_own_loss(name):
    model, batch = hugging_face(name)
    labels = batch.ids["target"].clone()
    labels[:, 2] = -100
    batch = Batch((), {**batch.kwargs, "labels": labels}, batch.tokens, batch.valid, ids=batch.ids)
    loss, outputs = chosen_loss(model, batch)
    assert loss(outputs, batch).mean().item() == pytest.approx(outputs.loss.item(), abs=1e-5)


def test_labels_of_classes_are_not_shifted():
    config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=32, num_labels=3)
    config.pad_token_id = 0
    model = transformers.GPT2ForSequenceClassification(config).eval()
    _, batch = hugging_face("gpt2")
    batch = Batch((), {**batch.kwargs, "labels": torch.tensor([0, 2, 1, 1])}, batch.tokens, batch.valid)
    loss, outputs = chosen_loss(model, batch)
    assert loss(outputs, batch).mean().item() == pytest.approx(outputs.loss.item(), abs=1e-5)


def test_labels_of_a_causal_tagger_are_not_shifted():
    config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=32, num_labels=3)
    model = transformers.GPT2ForTokenClassification(config).eval()
    _, batch = hugging_face("gpt2")
    labels = torch.randint(3, (4, 9), generator=torch.Generator().manual_seed(0))
    labels = labels.masked_fill(~padded(labels), -100)
    batch = Batch((), {**batch.kwargs, "labels": labels}, batch.tokens, batch.valid, ids=batch.ids)
    loss, outputs = chosen_loss(model, batch)
    by_hand = functional.cross_entropy(outputs.logits[1], labels[1]).item()
    assert loss(outputs, batch)[1].item() == pytest.approx(by_hand, abs=1e-5)
    counts = (labels >= 0).sum(1)
    mean = (loss(outputs, batch) * counts).sum() / counts.sum()
    assert mean.item() == pytest.approx(outputs.loss.item(), abs=1e-5)


@pytest.mark.parametrize(("ahead", "shift"), [(0, 1), (1, 0), (None, 0)])
def test_without_the_models_own_loss_labels_that_are_its_tokens_are_shifted(ahead, shift):
    """ahead: by how many tokens labels are ahead of the tokens that the model reads; None for other labels."""
    model, batch = any_model("llama")
    ids = batch.ids["target"]
    labels = ids.flip(0) if ahead is None else functional.pad(ids[:, ahead:], (0, ahead), value=-100)
    batch = Batch((), {**batch.kwargs, "labels": labels}, batch.tokens, batch.valid, ids=batch.ids)
    with torch.no_grad(), jarilab.record(model) as tape:
        logits = batch.forward(model).logits
    loss = loss_of(model, tape, logits, batch)
    assert loss.keywords == {"shift": shift}


def test_labels_that_are_no_classes_are_refused():
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    _, batch = hugging_face("bert")
    one, three = torch.tensor([0.0, 2.5, 1.0, 4.0]), torch.ones(4, 3)
    for count, labels, got in ((1, one, "numbers"), (1, one.long(), "one score a row"), (3, three, "numbers")):
        config = transformers.BertConfig(**sizes, intermediate_size=24, num_labels=count)
        model = transformers.BertForSequenceClassification(config).eval()
        with torch.no_grad(), jarilab.record(model) as tape:
            outputs = model(**batch.kwargs)
        labelled = Batch((), {**batch.kwargs, "labels": labels}, batch.tokens, batch.valid)
        with pytest.raises(UserError, match=f"expected labels that are classes .*got .*{got}.*pass loss=FUNCTION"):
            loss_of(model, tape, outputs, labelled)


def test_rows_that_influence_each_other_are_refused():
    class Mixed(Circuit):
        def forward(self, ids: Tensor) -> Tensor:
            logits = super().forward(ids)
            return logits + logits.mean(0) * len(ids)

    with pytest.raises(UserError, match=r"Mixed.*each row of a batch"):
        HeadImportance(Mixed([previous()]), [examples(4)], loss_of_previous)


def test_a_model_without_a_loss_is_refused_by_name():
    model, batch = hugging_face("bert")
    with pytest.raises(UserError, match=r"BertModel, an encoder without a head.*loss=FUNCTION.*pooled_embedding"):
        chosen_loss(model, batch)


def test_embeddings_give_a_distance_that_is_never_tested_for_its_sign():
    model, batch = hugging_face("bert")
    rows = HeadImportance(model, [batch], pooled_embedding).rows(["zero"], controls=0)
    assert all(row["unit"] == "squared distance" and row["total"] >= 0 for row in rows)
    assert all("never negative" in row["p_holm"] for row in rows)
    states = model(**batch.kwargs).last_hidden_state[3, :6].mean(0)
    expected = functional.normalize(states, dim=0)
    assert torch.allclose(pooled_embedding(model(**batch.kwargs), batch)[3], expected, atol=1e-6)


def test_bad_input_raises():
    batch = examples(4)
    model = Circuit([previous()])
    with pytest.raises(UserError, match="evaluation mode"):
        HeadImportance(Circuit([previous()]).train(), [batch], loss_of_previous)
    with pytest.raises(UserError, match="got none"):
        HeadImportance(model, [], loss_of_previous)
    with pytest.raises(UserError, match="a loss for each of 4 rows, got \\(\\)"):
        HeadImportance(model, [batch], lambda outputs, batch: outputs.mean())
    with pytest.raises(UserError, match="gradient"):
        HeadImportance(model, [batch], loss_of_previous).rows(["gradient"])
