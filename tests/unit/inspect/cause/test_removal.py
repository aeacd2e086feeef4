"""Deletion and insertion: loops over single forwards, planted models, ties, padding, kinds of removal, bad input."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from helpers.relevance_models import NAMES, answer, model_and_batch, row_alone
from jarilab.core.errors import UserError
from jarilab.inspect.cause import removal as module
from jarilab.inspect.cause.answers import logit_over_mean
from jarilab.inspect.cause.relevance import InputRelevance
from jarilab.inspect.cause.removal import KINDS, Removal
from jarilab.inspect.intervene.interventions import TokenOff, operate
from jarilab.inspect.study.model_batches import batch_of

OF_ATTENTION = ["attention_gradient", "attention", "gradient_rollout"]
MARKED = range(5, 9)
"""Tokens of which one stands in each row of the planted data, and is the answer."""
DECOY = 4


class Planted(nn.Module):
    """Head 0 copies the marked token. Head 1 looks at the decoy, and writes nothing."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(torch.eye(9))
        scores = torch.zeros(2, 9)
        scores[0, MARKED.start :], scores[1, DECOY] = 6.0, 9.0
        self.scores = nn.Parameter(scores)
        self.eval()

    def forward(self, ids):
        x_BLD = self.embed(ids)
        k_BHLE = (x_BLD @ self.scores.T).transpose(1, 2).unsqueeze(-1)
        q_BHLE = torch.ones_like(k_BHLE) + 0 * x_BLD.sum()
        v_BHLD = torch.stack([x_BLD, torch.zeros_like(x_BLD)], 1)
        z_BHLD = nn.functional.scaled_dot_product_attention(q_BHLE, k_BHLE, v_BHLD, is_causal=True)
        return 10 * z_BHLD.sum(1)


def planted_batch(seed: int, rows: int = 8, length: int = 7):
    """Rows of other tokens with a decoy and a marked token, the last token 0; and the answer of each row."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(1, 4, (rows, length))
    ids[:, -1] = 0
    marked = generator.integers(MARKED.start, MARKED.stop, rows)
    for row in range(rows):
        places = generator.choice(length - 1, 2, replace=False)
        ids[row, places] = marked[row], DECOY
    return batch_of(torch.from_numpy(ids)), logit_over_mean(marked.tolist())


def planted_removal(methods, batches=3, **options) -> Removal:
    data, answers = zip(*(planted_batch(seed) for seed in range(batches)), strict=True)
    return Removal(Planted(), data, answers, methods, **options)


def by_method(removal: Removal, kind: str) -> dict[str, dict]:
    return {row["method"]: row for row in removal.rows() if row["removal"] == kind}


# Planted models -------------------------------------------------------------------------------------------------------


def test_a_method_that_names_the_token_of_the_answer_wins_over_one_that_follows_a_decoy():
    removal = planted_removal(["attention", "attention_gradient"])
    assert removal.left_out == {}
    for kind in KINDS:
        rows = by_method(removal, kind)
        good, raw = rows["attention_gradient"], rows["attention"]
        assert next(iter(rows)) == "attention_gradient"
        assert good["examples"] == 24
        assert good["gain"] > 0.2
        assert good["gain"] == pytest.approx((good["below_random"] + good["above_random"]) / 2)
        assert good["gain"] == pytest.approx((good["insertion"] - good["deletion"]) / 2)
        assert 0 < good["over_attention_low"] <= good["over_attention"] == pytest.approx(good["gain"] - raw["gain"])
        assert raw["over_attention"] == raw["over_attention_high"] == 0
        assert good["p_holm"] < 0.01
        for name in ("deletion", "insertion", "gain", "below_random", "above_random"):
            assert good[f"{name}_low"] <= good[name] <= good[f"{name}_high"]
    verdict = removal.verdict()
    assert verdict["winner"] == "attention_gradient"
    assert verdict["sentence"].startswith("attention_gradient wins over 24 examples")
    json.dumps([*removal.rows(), verdict], allow_nan=False)


def test_methods_with_the_same_order_are_not_told_apart_and_rank_alike_with_both_kinds():
    removal = planted_removal(["attention", "attention_gradient", "gradient_rollout"])
    verdict = removal.verdict()
    assert verdict["winner"] is None
    assert "attention_gradient" in verdict["better_than_random"]
    assert "None is shown to be better than all others" in verdict["sentence"]
    assert -1 <= verdict["rank_correlation"] <= 1


def test_equal_relevances_are_in_random_order(monkeypatch):
    """Sorted by index, a constant map would remove the decoy first where it stands first."""

    class First(Planted):
        def forward(self, ids):
            x_BLD = self.embed(ids)
            k = torch.zeros(*ids.shape, 1)
            k[:, 0] = 8.0
            k, v = (k + 0 * x_BLD[..., :1]).unsqueeze(1), x_BLD.unsqueeze(1)
            return (
                10 * nn.functional.scaled_dot_product_attention(torch.ones_like(k) + 0 * k, k, v, is_causal=True)[:, 0]
            )

    batches = [planted_batch(seed, 20)[0] for seed in range(4)]
    answers = [logit_over_mean(batch.ids["target"][:, 0]) for batch in batches]

    def constant(self, relevance, method):
        shape = len(relevance.batch), sum(relevance.lengths.values())
        return np.zeros(shape) if method == "attention" else np.arange(shape[1], 0.0, -1.0) + np.zeros(shape)

    monkeypatch.setattr(Removal, "_scores", constant)
    removal = Removal(First(), batches, answers, ["attention", "gradient_rollout"])
    rows = by_method(removal, "mask")
    assert rows["gradient_rollout"]["gain"] > 0.3, "by index, the first token is removed first"
    assert rows["attention"]["gain"] == pytest.approx(0.0, abs=0.12)
    assert rows["attention"]["gain_low"] < 0 < rows["attention"]["gain_high"]
    assert removal.verdict()["better_than_random"] == ["gradient_rollout"]


def test_relevances_at_random_are_not_better_than_random(monkeypatch):
    generator = np.random.default_rng(0)
    monkeypatch.setattr(Removal, "_scores", lambda self, relevance, method: generator.random((len(relevance.batch), 7)))
    verdict = planted_removal(OF_ATTENTION).verdict()
    assert verdict["winner"] is None
    assert verdict["better_than_random"] == []
    assert verdict["sentence"].startswith("No method is shown to be better than random over 24 examples.")


@pytest.mark.parametrize(("other", "word"), [([3.0, 2.0, 1.0], "survives"), ([1.0, 2.0, 3.0], "does not survive")])
def test_the_verdict_says_whether_the_ranking_survives_the_second_kind_of_removal(other, word):
    removal = planted_removal(OF_ATTENTION)
    noise = np.random.default_rng(0).normal(0, 0.01, (24, 4))
    for kind, gains in zip(KINDS, ([3.0, 2.0, 1.0], other), strict=True):
        insertion = np.array([*gains, 0.0]) + noise
        removal.shares[kind] = np.stack([np.zeros_like(insertion), insertion], -1)
    verdict = removal.verdict()
    assert f"The ranking {word} the second kind of removal" in verdict["sentence"]
    assert verdict["rank_correlation"] == pytest.approx(1.0 if word == "survives" else -1.0)
    assert verdict["winner"] == ("attention_gradient" if word == "survives" else None)


# Loops ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Llama", "Bert", "T5", "jarilab"])
def test_curves_are_those_of_single_forwards(name):
    """A row at a time, with hidden keys as edits, and with ids that are replaced by hand."""
    model, batch = model_and_batch(name)
    removal = Removal(model, [batch], answer, OF_ATTENTION, steps=99)
    relevance = InputRelevance(model, batch, answer)
    generator = np.random.default_rng([0, 0])
    removed = removal._removed(relevance, generator)
    others = module._other_ids(relevance, module._pool([batch], ()), generator)
    sites = {side: tuple(n for n, site in relevance.sites.items() if site.keys == side) for side in relevance.lengths}
    for kind in KINDS:
        values = module._answers(relevance, removed, others if kind == "replace" else None)
        for number in (1, 2, 3, len(removed) - 1):
            for row in range(2):
                places = np.split(removed[number, row], np.cumsum(list(relevance.lengths.values()))[:-1])
                places = dict(zip(relevance.lengths, places, strict=True))
                changed, edits = batch, []
                if kind == "mask":
                    edits = [TokenOff(sites[s], None, int(key)) for s in places for key in places[s].nonzero()[0]]
                else:
                    for side, mask in places.items():
                        changed = _replaced(changed, side, row, mask, others[side][row])
                with torch.no_grad(), operate(model, edits):
                    expected = answer(changed.forward(model), batch)[row]
                assert values[number, row] == pytest.approx(float(expected), abs=1e-5), (kind, number, row)


def _replaced(batch, side, row, mask, others):
    def new_ids(ids):
        ids = ids.clone()
        ids[row, torch.from_numpy(mask)] = torch.from_numpy(others[mask])
        return ids

    if batch.args:
        number = {"source": 0, "target": -1}[side] % len(batch.args)
        args = list(batch.args)
        args[number] = replace(args[number], ids=new_ids(args[number].ids))
        return replace(batch, args=tuple(args))
    name = "decoder_input_ids" if side == "target" and "decoder_input_ids" in batch.kwargs else "input_ids"
    return replace(batch, kwargs={**batch.kwargs, name: new_ids(batch.kwargs[name])})


def test_areas_are_means_of_curves_between_both_ends():
    removal = planted_removal(["attention", "gradient_rollout"], 1)
    values = np.random.default_rng(0).normal(size=(2 + (2 + 20) * 3 + 2 * 3, 5))
    areas = removal._areas(values)
    whole, empty = values[0], values[1]
    deletions = values[2 : 2 + 22 * 3].reshape(22, 3, 5)
    insertions = values[2 + 22 * 3 :].reshape(2, 3, 5)
    for row, method in product(range(5), range(2)):
        deletion = [whole[row], *deletions[method, :, row], empty[row]]
        insertion = [empty[row], *insertions[method, :, row], whole[row]]
        assert areas[row, method, 0] == pytest.approx(np.mean(deletion) - empty[row])
        assert areas[row, method, 1] == pytest.approx(np.mean(insertion) - empty[row])
    curves = [[whole[0], *each[:, 0], empty[0]] for each in deletions[2:]]
    assert areas[0, 2, 0] == areas[0, 2, 1] == pytest.approx(np.mean(curves) - empty[0])
    assert areas[3, :, 2].tolist() == pytest.approx([whole[3] - empty[3]] * 3)


def test_insertion_is_the_deletion_of_the_least_relevant_first(monkeypatch):
    removal = planted_removal(["attention_gradient", "attention"], 1)
    relevance = InputRelevance(Planted(), *planted_batch(0))
    scores = np.random.default_rng(0).random((8, 7))

    def both_orders(self, relevance, method):
        return scores if method == "attention" else -scores

    monkeypatch.setattr(Removal, "_scores", both_orders)
    removed = removal._removed(relevance, np.random.default_rng(0))
    least_first, inserted = removed[2:7], removed[-5:]
    assert (least_first == inserted[::-1]).all()


# Which tokens ---------------------------------------------------------------------------------------------------------


def test_all_methods_remove_the_same_tokens_and_never_special_ones_padding_and_the_last():
    model, batch = model_and_batch("Llama")
    relevance = InputRelevance(model, batch, answer, special=[5])
    removal = Removal(model, [batch], answer, OF_ATTENTION, special=[5])
    removed = removal._removed(relevance, np.random.default_rng(0))
    ids, valid = batch.ids["target"], batch.valid["target"]
    expected = (ids != 5) & valid
    expected[0, 6] = expected[1, 4] = False
    assert (removed.any(0) == expected.numpy()).all()
    early = module._removable(InputRelevance(model, batch, logit_over_mean(5, position=2)))
    assert early.tolist() == [[True, True, False, True, True, True, False], [True, True, False, True] + [False] * 3]
    assert not removed[0].any()
    assert (removed[1] == expected.numpy()).all()
    counts = removed[2:].reshape(3 + 20 + 3, -1, 2, 7).sum(-1)
    assert (counts[:23] == counts[:1]).all(), "as many tokens at each step"
    assert (counts[23:] == expected.sum(1).numpy() - counts[:1]).all()


def test_the_class_token_is_not_removed_and_a_pooled_answer_loses_the_removed_tokens():
    model, batch = model_and_batch("Bert")
    assert not module._removable(InputRelevance(model, batch, answer))[:, 0].any()

    def pooled(outputs, batch):
        keep = batch.valid["source"].unsqueeze(-1)
        return ((outputs.last_hidden_state * keep).sum(1) / keep.sum(1))[:, 5]

    relevance = InputRelevance(model, batch, pooled)
    assert module._removable(relevance)[:, 0].all()
    removed = {"source": torch.zeros(2, 7, dtype=torch.bool)}
    removed["source"][0, 3] = True
    left = module._without(batch, relevance, removed).valid["source"]
    assert left.sum(1).tolist() == [6, 5]
    single = InputRelevance(model, batch, answer)
    assert module._without(batch, single, removed) is batch


def test_hidden_tokens_do_not_move_the_position_that_an_answer_reads():
    model, batch = model_and_batch("Llama")
    relevance = InputRelevance(model, batch, logit_over_mean(5, position=2))
    removed = np.zeros((2, 2, 7), bool)
    removed[1, :, 4] = True  # behind the position that is read
    values = module._answers(relevance, removed, None)
    assert values[1] == pytest.approx(values[0], abs=1e-5)
    removed[1, :, 0] = True
    values = module._answers(relevance, removed, None)
    with torch.no_grad(), operate(model, [TokenOff(tuple(relevance.sites), None, 0)]):
        expected = relevance.answer(batch.forward(model), batch)
    assert values[1] == pytest.approx(expected.numpy(), abs=1e-5)


def test_other_ids_are_of_the_data_and_differ_from_the_token():
    model, batch = model_and_batch("T5")
    relevance = InputRelevance(model, batch, answer, special=[8])
    pool = module._pool([batch], [8])
    others = module._other_ids(relevance, pool, np.random.default_rng(0))
    for side, ids in relevance.ids.items():
        assert (others[side] != ids.numpy()).all()
        assert set(others[side].ravel()) <= set(batch.ids[side][batch.valid[side]].tolist()) - {8}
    removed = {side: torch.ones_like(ids, dtype=torch.bool) for side, ids in relevance.ids.items()}
    changed = module._with_ids(batch, relevance, removed, others)
    assert changed.kwargs["input_ids"].tolist() == others["source"].tolist()
    assert changed.kwargs["decoder_input_ids"].tolist() == others["target"].tolist()
    assert changed.ids is batch.ids, "the answer still reads the data"


def test_equal_ids_of_source_and_target_are_replaced_apart():
    model, batch = model_and_batch("T5")
    ids = batch.kwargs["input_ids"]
    batch = batch_of({**batch.kwargs, "decoder_input_ids": ids.clone()})
    relevance = InputRelevance(model, batch, answer)
    others = {side: np.full(ids.shape, 7) for side in ("source", "target")}
    removed = {"source": torch.zeros(ids.shape, dtype=torch.bool), "target": torch.ones(ids.shape, dtype=torch.bool)}
    changed = module._with_ids(batch, relevance, removed, others)
    assert changed.kwargs["input_ids"].tolist() == ids.tolist()
    assert bool((changed.kwargs["decoder_input_ids"] == 7).all())


def test_a_padded_row_has_the_shares_that_it_has_alone():
    model, batch = model_and_batch("Llama")

    def areas_of(batch):
        relevance = InputRelevance(model, batch, answer)
        removal = Removal(model, [batch], answer, OF_ATTENTION, steps=4)
        values = module._answers(relevance, removal._removed(relevance, np.random.default_rng(0)), None)
        return removal._areas(values)

    together, alone = areas_of(batch), areas_of(row_alone(batch, 1))
    assert together[1, :3] == pytest.approx(alone[0, :3], abs=1e-5)


# Any model and bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_family_of_models_is_judged_or_says_why_not(name):
    model, batch = model_and_batch(name)
    removal = Removal(model, [batch], answer, ["rollout", *OF_ATTENTION], steps=3)
    assert ("rollout" in removal.left_out) == (name not in ("Bert", "ViT"))
    assert {*removal.left_out, *removal.shares} - {"rollout"} == {*KINDS}
    assert isinstance(removal.verdict()["sentence"], str)
    for row in removal.rows():
        assert row["p_holm"] == "not enough examples"
    if name == "ViT":
        assert "token ids" in removal.left_out["replace"]


def test_an_answer_that_does_not_fall_is_not_judged():
    data, answers = zip(*(planted_batch(seed) for seed in range(2)), strict=True)
    worse = [lambda o, b, each=each: -each(o, b) for each in answers]
    removal = Removal(Planted(), data, worse, OF_ATTENTION)
    assert removal.rows() == []
    assert "lower answer" in removal.left_out["mask"]
    assert removal.verdict()["winner"] is None
    assert "16 examples" in removal.verdict()["sentence"]


def test_bad_options_are_refused():
    batch, target = planted_batch(0)
    with pytest.raises(UserError, match="2 steps, got 1 and 1"):
        Removal(Planted(), [batch], target, steps=1)
    with pytest.raises(UserError, match=r"at least one batch.*got 0"):
        Removal(Planted(), [], target)
    with pytest.raises(UserError, match=r"answer for each of 2 batches, got 1; pass"):
        Removal(Planted(), [batch, batch], [target])
    with pytest.raises(UserError, match=r"atention.*attention"):
        Removal(Planted(), [batch], target, ["atention"])


def test_a_model_whose_rows_depend_on_each_other_is_refused():
    class Mixed(Planted):
        def forward(self, ids):
            logits = super().forward(ids)
            return logits - logits.mean(0) / len(ids)

    batch, target = planted_batch(0)
    with pytest.raises(UserError, match="rows of this model depend on each other"):
        Removal(Mixed(), [batch], target, ["attention"])
