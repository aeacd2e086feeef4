"""Which head decides an answer: models whose circuit is known, and what is said of each head."""

from __future__ import annotations

import pytest
import torch
from benchmarks.circuits.planting import answer_loss, plant
from torch import Tensor, nn

from helpers import circuits
from helpers.any_models import any_model
from helpers.circuits import Circuit, examples, loss_of_previous, loss_of_three, previous, silent, sink
from jarilab.core.errors import UserError
from jarilab.inspect.cause import which_head
from jarilab.inspect.cause.answers import log_probability
from jarilab.inspect.cause.which_head import HeadCauses
from jarilab.inspect.study.model_batches import batch_of

BACKUP = previous(rest_if_filled=2 * circuits.BETA)


def lead_of_previous(outputs: Tensor, batch) -> Tensor:
    """The score of the token before the last one, less the best other."""
    scores_BV = outputs[:, -1].clone()
    answer_B1 = batch.args[0][:, -2:-1]
    lead_B = scores_BV.gather(1, answer_B1)[:, 0]
    return lead_B - scores_BV.scatter(1, answer_B1, -torch.inf).amax(1)


def causes(*layers, loss=loss_of_previous, lead=lead_of_previous, **options) -> HeadCauses:
    return HeadCauses(Circuit(*layers), examples(1), lambda outputs, batch: -loss(outputs, batch), lead, **options)


def verdicts(found: HeadCauses) -> dict[str, tuple[str, list[str]]]:
    return {row["head"]: (row["verdict"], row["via"]) for row in found.rows}


def test_a_head_that_copies_does_it_itself_and_a_decoy_does_nothing():
    found = causes([previous(), silent()])
    assert verdicts(found) == {"L0H0": ("itself", []), "L0H1": ("chance", [])}
    first, decoy = found.rows
    assert first["total"] == pytest.approx(2.484, abs=0.001)
    assert first["direct"] == pytest.approx(first["total"])
    assert first["control"] < 0.1, "a random direction hurts less"
    assert (first["passes"], decoy["passes"], decoy["total"]) == (True, False, 0.0)
    assert [(edge["source"], edge["target"]) for edge in found.edges] == [("L0H0", "answer")]
    conclusion = found.conclusion
    assert (conclusion["verdict"], conclusion["heads"]) == ("heads", ["L0H0"])
    assert (conclusion["passing"], conclusion["tested"], conclusion["by_chance"]) == (1, 2, 4 / 40)


def test_a_needed_constant_is_named_by_zero_and_mean_ablation():
    found = causes([sink(3), silent()], loss=loss_of_three, lead=None)
    row = found.rows[0]
    assert row["verdict"] == "constant"
    assert row["total"] == pytest.approx(2.484, abs=0.001)
    assert row["mean"] == pytest.approx(0.0, abs=1e-3)
    assert "zero and mean" in row["words"]


def test_a_primary_is_backed_up_and_its_backup_stands_in_for_it():
    found = causes([previous(), silent()], [BACKUP, silent()])
    expected = {"L0H0": ("backed_up", ["L1H0"]), "L1H0": ("backup", ["L0H0"])}
    assert verdicts(found) == expected | {"L0H1": ("chance", []), "L1H1": ("chance", [])}
    (pair,) = found.pairs
    assert (pair["head"], pair["other"]) == ("L0H0", "L1H0")
    assert pair["total"] == pytest.approx(2.484, abs=0.001)
    assert (found.conclusion["verdict"], found.conclusion["together"]) == ("pair", [["L0H0", "L1H0"]])
    assert "backed up by L1H0" in found.rows[0]["words"]


def test_of_two_equal_heads_each_is_backed_up_by_the_other():
    found = causes([previous(), previous(), silent()])
    assert verdicts(found)["L0H0"][1] == ["L0H1"]
    assert verdicts(found)["L0H1"][1] == ["L0H0"]
    assert found.conclusion["verdict"] == "pair"


@pytest.mark.parametrize(("family", "part"), [("induction, K-composition", "k"), ("two back, V-composition", "v")])
def test_a_head_works_through_the_head_that_reads_it(family: str, part: str):
    planted = plant(family, 0, "decoder")
    names = {design: head for head, design in planted.names.items()}
    first, second = (names[each] for each in planted.names.values() if not each.startswith("noise"))
    found = HeadCauses(planted.model, planted.examples(1, 2), lambda outputs, batch: -answer_loss(outputs, batch))
    named = verdicts(found)
    assert named[first] == ("through", [second])
    assert named[second] == ("itself", [])
    assert {row for row, (verdict, _) in named.items() if verdict != "chance"} == {first, second}
    (path,) = (edge for edge in found.edges if edge["target"] != "answer")
    assert (path["source"], path["target"], path["input"]) == (first, second, part)
    rows = {row["head"]: row for row in found.rows}
    assert path["effect"] == pytest.approx(rows[first]["total"], rel=0.1)


def test_a_head_that_an_mlp_reads_works_through_later_layers():
    planted = plant("AND of two heads", 0, "decoder")
    found = HeadCauses(planted.model, planted.examples(1, 2), lambda outputs, batch: -answer_loss(outputs, batch))
    arms = [head for head, design in planted.names.items() if design == "arm"]
    assert [verdicts(found)[arm][0] for arm in arms] == ["later", "later"]


def test_a_large_model_searches_backups_of_heads_that_write_more_than_is_lost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(which_head, "MAX_PAIRED", 3)
    found = causes([previous(), silent()], [BACKUP, silent()])
    assert verdicts(found)["L0H0"] == ("backed_up", ["L1H0"])


def test_heads_that_are_not_compared_say_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(which_head, "MAX_CONTROL_COPIES", 8 * 3)
    found = causes([previous(), *[silent()] * 9], controls=3)
    assert [row["verdict"] for row in found.rows].count("untested") == 2
    assert found.rows[0]["verdict"] == "itself"
    assert (found.conclusion["tested"], found.conclusion["all"]) == (8, 10)


def test_no_head_decides_an_answer_that_stays_the_same():
    """Its score falls by more than chance, and the answer keeps its lead."""
    weak = previous(write=0.2)
    found = causes([previous(), weak, silent()])
    assert found.rows[1]["total"] < found.rows[0]["total"]
    assert not found.rows[1]["decides"]


def test_a_head_off_to_the_mean_of_other_inputs():
    """The mean over a batch of other rows is not that over the positions of this one."""
    own = causes([previous(), silent()]).rows[0]["mean"]
    others = causes([previous(), silent()], means=[examples(16, 1)]).rows[0]["mean"]
    assert others == pytest.approx(2.46, abs=0.05)
    assert own < others - 0.3, "the few tokens of one input are part of their own mean"


def test_only_some_heads_are_ablated_and_followed():
    planted = plant("induction, K-composition", 0, "decoder")
    score, batch = (lambda outputs, batch: -answer_loss(outputs, batch)), planted.examples(1, 2)
    everything = HeadCauses(planted.model, batch, score, controls=9)
    first, second = (head for head, design in planted.names.items() if not design.startswith("noise"))
    some = HeadCauses(planted.model, batch, score, controls=9, only=[first, second])
    assert [row["head"] for row in some.rows] == [first, second]
    assert {edge["target"] for edge in some.edges} == {second, "answer"}
    totals = {row["head"]: row["total"] for row in everything.rows}
    assert {row["head"]: row["total"] for row in some.rows} == pytest.approx(
        {each: totals[each] for each in (first, second)}
    )
    assert some.conclusion["all"] == 2


def test_a_head_against_the_answer_keeps_its_sign():
    """Random directions hurt more than this head helps; none of them helps as much."""
    found = causes([previous(), previous(write=-0.6), silent()])
    row = found.rows[1]
    assert row["total"] == pytest.approx(-0.185, abs=0.01)
    assert (row["verdict"], row["passes"], row["decides"]) == ("itself", True, False)
    assert row["total"] < row["control"]
    assert row["words"] == "the answer is better without it: does it itself"


def test_a_model_in_training_is_refused():
    model = Circuit([previous()]).train()
    with pytest.raises(UserError, match=r"expected.*evaluation.*eval"):
        HeadCauses(model, examples(1), lambda outputs, batch: -loss_of_previous(outputs, batch))


def score(outputs: Tensor, batch) -> Tensor:
    return -loss_of_previous(outputs, batch)


def test_one_input_of_one_length_with_a_finite_score_is_expected():
    model, one = Circuit([previous()]), examples(1)
    with pytest.raises(UserError, match=r"expected a finite number for row 1, got nan; check"):
        HeadCauses(model, one, lambda outputs, batch: score(outputs, batch) * torch.nan)
    with pytest.raises(UserError, match=r"expected a batch of one row.*got 4 rows.*HeadImportance"):
        HeadCauses(model, examples(4), score)
    with pytest.raises(UserError, match=r"a random direction or more, got 1 rows and 0"):
        HeadCauses(model, one, score, controls=0)
    with pytest.raises(UserError, match=r"expected a batch of examples or more, got none"):
        HeadCauses(model, one, score, means=[])


@pytest.mark.parametrize("lead", [lead_of_previous, None])
def test_what_is_done_and_expected_is_reported(lead):
    reports: list[tuple[int, int]] = []
    layers = [previous(), silent()], [BACKUP, silent()]
    found = causes(*layers, lead=lead, controls=9, report=lambda *each: reports.append(each))
    assert found.pairs
    done, expected = zip(*reports, strict=True)
    assert len(reports) > 5
    assert list(done) == sorted(set(done))
    assert list(expected) == sorted(expected)
    assert done[-1] == expected[-1]
    assert expected[0] >= 4 * (2 + 1) + 4 * 9 * 2, "zero, mean and random directions are known from the start"


def test_the_mean_over_one_position_says_nothing():
    model, one = any_model("gpt2")[0], batch_of({"input_ids": torch.tensor([[2]])})
    answer = log_probability(3)
    rows = HeadCauses(model, one, answer, controls=3).rows
    assert {row["mean"] for row in rows} == {None}
    assert "constant" not in {row["verdict"] for row in rows}
    others = [batch_of({"input_ids": torch.tensor([[1, 4, 5]])})]
    assert None not in {row["mean"] for row in HeadCauses(model, one, answer, controls=3, means=others).rows}


def test_heads_that_only_help_when_off_do_not_stand_in_for_each_other():
    """Off together they help less than both alone, so the excess is positive."""
    found = causes([previous(), previous(write=-0.6), previous(write=-0.6), silent()])
    effects = {row["head"]: row["total"] for row in found.rows}
    for pair in found.pairs:
        assert pair["total"] > max(effects[pair["head"]], effects[pair["other"]], 0)


def test_a_head_with_most_of_its_effect_direct_does_it_itself():
    row = {"passes": True, "direct_passes": False, "total": 0.59, "mean": 0.48, "direct": 0.52}
    assert which_head._verdict(row, [], []) == "itself"
    assert which_head._verdict(row | {"direct": 0.2}, [], []) == "later"


class PooledModel(nn.Module):
    """Two layers, of whose output the mean over positions is classified."""

    def __init__(self):
        super().__init__()
        self.embedding, self.places = nn.Embedding(20, 16), nn.Embedding(24, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 20)

    def forward(self, ids):
        x = self.embedding(ids) + self.places.weight
        return self.head(self.encoder(x).mean(1))


def answer_3(outputs: Tensor, batch) -> Tensor:
    return outputs.log_softmax(-1)[:, 3]


def test_where_positions_are_pooled_few_random_heads_beat_their_controls():
    passing = []
    for seed in range(8):
        torch.manual_seed(seed)
        model = PooledModel().eval()
        rows = HeadCauses(model, batch_of(torch.randint(20, (1, 24))), answer_3).rows
        passing += [bool(row["passes"]) for row in rows]
    assert sum(passing) < 0.25 * len(passing), "by chance, 1 of 20"
