"""The planted circuits of `benchmarks/circuits` answer right, and the tables of expected answers fit them."""

import importlib.util
import sys
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest
import torch

import jarilab
from jarilab.inspect.intervene.interventions import change_outputs

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
FAMILIES = [
    *("previous token", "fixed offset, sinusoids", "fixed offset, rotary", "same token", "copy by cross-attention"),
    *("reverse", "largest so far", "uniform head that counts", "constant from the sink", "decoy that writes nothing"),
    *("OR of two heads", "AND of two heads", "negative head", "delimiter", "grouped queries", "noise only"),
    *("induction, K-composition", "two back, V-composition", "induction, Q-composition"),
    *("offset decoy of induction", "backup head", "syntactic relation", "carry of a sum", "sort"),
]
NEEDS_TRANSFORMERS = {"gpt2", "llama"}

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of other libraries at import


@pytest.fixture
def circuits(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import circuits.backups
    import circuits.page
    import circuits.planting
    import circuits.trained

    yield circuits
    for name in [each for each in sys.modules if each.partition(".")[0] == "circuits"]:
        sys.modules.pop(name)


def hosts_of(circuits, family: str) -> list[str]:
    has_transformers = importlib.util.find_spec("transformers") is not None
    return [
        host for host in circuits.families.FAMILIES[family].hosts if has_transformers or host not in NEEDS_TRANSFORMERS
    ]


def test_all_families_are_tested(circuits):
    assert set(circuits.families.FAMILIES) == set(FAMILIES)
    assert set(circuits.expected.EXPECTED) == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_host_of_a_family_answers_right_and_has_expected_answers(circuits, family):
    for host in hosts_of(circuits, family):
        planted = circuits.planting.plant(family, 0, host)
        assert next(planted.model.parameters()).dtype is torch.float64
        designs = set(planted.names.values())
        assert designs == set(circuits.expected.EXPECTED[family])
        pairs = set(combinations_with_replacement(sorted(designs), 2))
        assert set(circuits.expected.PAIRS.get(family, ())) <= pairs
        if not planted.task.chance_labels:
            assert planted.accuracy() == 1.0, host


@pytest.mark.long
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("constant from the sink", "noise only")])
def test_the_two_inputs_of_a_pair_have_different_answers(circuits, family):
    planted = circuits.planting.plant(family, 1, circuits.families.FAMILIES[family].hosts[0])
    for pair in planted.pairs(8):
        assert pair.clean.shape == pair.corrupt.shape
        assert pair.answer != pair.rival
        with torch.no_grad():
            outputs = planted.batch([pair.clean, pair.corrupt]).forward(planted.model)
        logits = circuits.planting.logits_of(outputs)[:, pair.position]
        assert int(logits[0].argmax()) == pair.answer
        assert logits[1, pair.answer] < logits[0, pair.answer] - 2


def test_sums_and_orders_are_those_of_python(circuits):
    generator = np.random.default_rng(0)
    sums, sorting = circuits.tasks.sums(6), circuits.tasks.sorting(13, 5)
    carried = 0
    for _ in range(50):
        ids, answers = sums.row(generator)
        one, other = ("".join(map(str, digits[::-1])) for digits in (ids[1:7], ids[7:]))
        total = str(int(one) + int(other)).zfill(7)[::-1]
        asked = np.flatnonzero(answers != circuits.tasks.NONE)
        assert [total[at - 7] for at in asked] == [str(answers[at]) for at in asked]
        carried += sum(int(total[at - 7]) != (ids[at] + ids[at - 6]) % 10 for at in asked)
        ids, answers = sorting.row(generator)
        assert answers[5:].tolist() == sorted(ids[1:6])
    assert carried > 20


def test_no_fixed_offset_finds_the_subjects_of_verbs(circuits):
    task, generator = circuits.tasks.subject_of_verb(24), np.random.default_rng(0)
    distances = []
    for _ in range(60):
        ids, answers = task.row(generator)
        links = task.links(ids)
        assert len({(relation, at) for relation, at, _ in links}) == len(links), "one head each"
        names = [circuits.tasks.WORDS[token][0] for token in ids[1:]]
        for relation, at, head in links:
            if relation == "nsubj":
                assert (names[at - 1], names[head - 1]) == ("subject", "verb")
                assert answers[head] == ids[at]
                distances.append(head - at)
    assert np.bincount(distances).max() < 0.6 * len(distances)
    assert max(distances) == 6 or max(distances) == 5


def test_a_norm_is_nearly_the_identity_on_the_circuit(circuits):
    planted = circuits.planting.plant("previous token", 0, "decoder")
    seen = []
    norm = circuits.hosts.norms_of(planted.model)
    modules = [each for each in planted.model.modules() if isinstance(each, torch.nn.LayerNorm)]
    for module in modules:
        module.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
    with torch.no_grad():
        planted.examples(4).forward(planted.model)
    assert len(seen) == len(norm)
    for before, after in seen:
        assert before.mean(-1).abs().max() < 1e-9, "every written vector sums to 0"
        assert (after - before).norm(dim=-1).max() < 1e-3 * before.norm(dim=-1).max()


def test_a_decision_needs_an_interval_beyond_the_threshold(circuits):
    decide = circuits.scoring.decide
    assert decide([0.1, 0.06, 0.2, 0.01], 0.05) == "+"
    assert decide([-0.1, -0.2, -0.06, 0.01], 0.05) == "-"
    assert decide([0.1, 0.04, 0.2, 0.01], 0.05) == "open"
    assert decide([0.1, 0.06, 0.2, 0.2], 0.05) == "open"
    assert decide([0.1, 0.06, 0.2, "not enough examples"], 0.05) == "open"
    assert decide([0.1, 0.06, 0.2], 0.05) == "+", "a method without p-values"
    assert decide([0.01, -0.01, 0.02, 0.01], 0.05) == "no", "significant, but too small"
    assert decide([None, None, None], 0.05) == "open"


def record_of(**measured) -> dict:
    """What was measured on one OR circuit."""
    names = {"L0H0": "arm", "L0H1": "noise", "L0H2": "arm"}
    return {
        **{"family": "OR of two heads", "host": "gpt2", "seed": 0, "draws": 1, "facts": {}, "names": names},
        **{"measured": measured, "errors": {}},
    }


def test_answers_are_right_wrong_or_undecided(circuits):
    roles = {"L0H0": "previous", "L0H1": "uniform", "L0H2": "induction"}
    zero = {"L0H0": [0, -0.01, 0.01, 1.0], "L0H1": [0.5, 0.4, 0.6, 0.01], "L0H2": [0, -0.1, 0.1, 1.0]}
    pairs = {"L0H0 L0H2": [2, 1, 3, 0.01], "L0H0 L0H1": [2, 1, 3, 0.01]}
    items = list(circuits.scoring.verdicts(record_of(roles=roles, zero=zero, pairs=pairs)))
    assert [(each.method, each.head, each.outcome) for each in items] == [
        ("roles", "L0H0", "right"),
        ("roles", "L0H1", "right"),
        ("roles", "L0H2", "wrong"),
        ("zero", "L0H0", "right"),
        ("zero", "L0H1", "wrong"),
        ("zero", "L0H2", "undecided"),
        ("pairs", "L0H0 L0H2", "right"),
        ("pairs", "L0H0 L0H1", "wrong"),
    ]


def test_a_refused_model_is_undecided_and_listed(circuits):
    record = record_of() | {"errors": {"contributions": "UserError: no layers"}}
    items = list(circuits.scoring.verdicts(record))
    assert [each.outcome for each in items] == ["undecided"] * 3
    page = circuits.page.page([record])
    assert "Not measured, 1 times: contributions of gpt2: UserError: no layers" in page
    assert "| undecided | OR of two heads | gpt2 | direct contribution | arm | open | + | 2 |" in page


def test_the_interval_of_a_share(circuits):
    low, high = circuits.scoring.wilson(351, 360)
    assert low == pytest.approx(0.953, abs=0.001)
    assert circuits.scoring.wilson(20, 20)[0] == pytest.approx(0.839, abs=0.001)
    assert circuits.scoring.wilson(0, 200)[1] == pytest.approx(0.019, abs=0.001)
    assert high < 1


# Trained models -------------------------------------------------------------------------------------------------------


def test_hidden_links_have_no_weight_and_others_share_it(circuits):
    trained = circuits.trained
    torch.manual_seed(0)
    model, examples = trained.CopyModel(), trained.Examples.of(0, 4)
    asked = examples.answers != circuits.tasks.NONE
    for row, query in asked.nonzero().tolist():
        (key,) = examples.links["induction"][row, query].nonzero()[:, 0].tolist()
        assert examples.ids[row, key] == examples.answers[row, query]
        assert examples.ids[row, key - 1] == examples.ids[row, query]
        assert examples.links["same token"][row, query].nonzero()[:, 0].tolist() == [key - 1]
    assert examples.links["previous"].sum() == 4 * (trained.LENGTH - 1)
    clean, hidden = [], []
    with torch.no_grad():
        expected = model(examples.ids, None, clean)
        model(examples.ids, {(0, 2): examples.links["previous"]}, hidden)
    assert torch.allclose(expected, model(examples.ids), atol=1e-6)
    assert torch.equal(hidden[0][:, 1], clean[0][:, 1])
    assert not hidden[0][:, 2][examples.links["previous"]].any()
    assert torch.allclose(hidden[0].sum(-1), torch.ones(()), atol=1e-5)
    assert examples.copying(model, {}).shape == (4, trained.HEADS)


def test_the_criterion_of_a_model_that_does_not_copy_names_no_head(circuits):
    torch.manual_seed(0)
    truth = circuits.trained.truth_of(circuits.trained.CopyModel(), 0)
    assert truth["accuracy"] == pytest.approx(truth["all"]["induction"], abs=0.1)
    record = {"seed": 0, "training": {"steps": 1, "seconds": 1.0}, "truth": truth}
    record["measured"] = {"zero": {"L0H0": [1.0, 0.9, 1.1, 0.01], "L0H1": 0}, "roles": {}}
    items = list(circuits.trained_page.comparisons(record | {"measured": {**record["measured"], "composition": {}}}))
    assert [(each.head, each.outcome) for each in items if each.method == "zero"] == [
        ("L0H0", "wrong"),
        ("L0H1", "right"),
    ]
    text = circuits.trained_page.section([record], circuits.page.TITLES)
    assert "| zero ablation | 2 | 50% | " in text
    assert "| 0 | zero ablation | L0H0 | + | no |" in text


@pytest.mark.parametrize("host", ["rotary decoder", "llama"])
def test_a_head_removed_from_the_weights_is_zero_ablation(circuits, host):
    if host in NEEDS_TRANSFORMERS:
        pytest.importorskip("transformers")
    planted = circuits.planting.plant("backup head", 0, host)
    head = next(name for name, design in planted.names.items() if design == "primary")
    batch = planted.examples(2)
    model = circuits.backups.without_head(planted, head)
    with torch.no_grad(), jarilab.record(planted.model) as tape:
        logits = circuits.planting.logits_of(batch.forward(planted.model))
    with torch.no_grad():
        changed = circuits.planting.logits_of(batch.forward(model))
        layer, index = map(int, head[1:].split("H"))
        with change_outputs(planted.model, lambda site, call, z: off(z, index), [tape.sites[layer]]):
            expected = circuits.planting.logits_of(batch.forward(planted.model))
    assert torch.allclose(changed, expected, atol=1e-9)
    assert not torch.allclose(changed, logits, atol=1e-2)


def off(z: torch.Tensor, index: int) -> torch.Tensor:
    z = z.clone()
    z[:, index] = 0
    return z
