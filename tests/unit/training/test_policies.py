"""Runs under a position policy: the same bits after a power cut, the same name as before where there is none, and
answers at the places that were trained."""

import pytest
import torch

from helpers.runs import PowerCutError, at, cut, outcome, tiny, train
from jarilab import api
from jarilab.core.errors import UserError
from jarilab.data.text import FIRST
from jarilab.explorer import open_explorer
from jarilab.export import ctranslate2 as export
from jarilab.inspect.intervene.moved_positions import PositionEdit
from jarilab.inspect.record.capture import record
from jarilab.models.decoding.answers import Decoding
from jarilab.runs.experiment import Experiment
from jarilab.runs.loaded import load
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.tasks.policies.base import build
from jarilab.tasks.predictors.base import ModelLearner, write
from jarilab.tasks.text import Text
from jarilab.training.preflight import check_trainable

RANDOM = ["offset", "randomized:longest=64", "abacus", "coupling"]


def under(policy, **settings):
    return tiny("rotary", task__answers="reversed", training__positions=policy, **settings)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    for policy in RANDOM:
        train(folder / policy.partition(":")[0], under(policy))
    return folder


@pytest.mark.parametrize("policy", ["offset", *(pytest.param(policy, marks=pytest.mark.long) for policy in RANDOM[1:])])
def test_a_run_cut_off_goes_on_to_the_same_bits(runs, tmp_path, policy):
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", under(policy), report=at(4, cut))
    train(tmp_path / "run", under(policy))
    assert outcome(tmp_path / "run") == outcome(runs / policy.partition(":")[0])


def test_policies_are_different_runs_with_different_weights(runs):
    folders = [runs / policy.partition(":")[0] for policy in RANDOM]
    assert len({load(folder).experiment.hash for folder in folders}) == len(RANDOM)
    weights = {(folder / "checkpoints" / "step-000000012" / "model.safetensors").read_bytes() for folder in folders}
    assert len(weights) == len(RANDOM)


def test_the_policy_is_sequential_by_default_and_part_of_the_hash():
    experiment = Experiment.of("arithmetic", precision="float32")
    assert experiment.training["positions"] == "sequential"
    other = Experiment.of("arithmetic", settings={"training.positions": "offset"}, precision="float32")
    assert other.hash != experiment.hash
    assert other.difference(experiment) == ["training.positions: offset here, sequential there"]


def test_the_shortest_spec_is_kept():
    settings = {"training.positions": "randomized:longest=2048"}
    assert Experiment.of("arithmetic", settings=settings).training["positions"] == "randomized"


def test_whoever_answers_explains_or_walks_is_at_the_places_that_were_trained(runs):
    view = open_explorer([runs / "coupling"]).look("12+7", live=False)["views"][0]
    (answer,) = api.predict(runs / "coupling", ["12+7"])
    assert view["answer"] == answer.answer
    for output, (token, probability) in zip(view["outputs"], answer.tokens, strict=True):
        assert output["top"][0] == [token, pytest.approx(probability, abs=1e-5)]
    run = load(runs / "coupling")
    trace = run.predictor.trace("12+7", 100)
    with record(run.model) as tape:
        run.model(*trace.inputs)
    call = tape.calls["encoder.0"][0].call
    assert call.geometry.q_pos.index().tolist() == [[2, 1, 0, 1]]
    walked = api.walk(run, "12+7", site="encoder.0").walk
    weights = next(step.matrix for step in walked.steps if step.name == "weights")
    torch.testing.assert_close(weights, tape.weights("encoder.0")[0, 0].double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("policy", RANDOM)
def test_what_predict_writes_is_read_again_at_the_same_places(runs, policy, beam):
    run = load(runs / policy.partition(":")[0])
    line, task = "12+7", run.task
    decoding = Decoding(beam_size=beam, shortest=0 if beam == 1 else 3)
    learner = ModelLearner(run.model, task, decoding)
    ((hypothesis, *_),) = write(run.model, task, task.sources([task.read(line)]), decoding)
    ids, logs = hypothesis.ids, hypothesis.log_probabilities
    assert learner.write(task.sources([task.read(line)])) == [ids.tolist()]
    read = task.tokens(torch.cat((torch.tensor([FIRST]), ids[:-1]))[None], "target")
    scores_LV = run.model(task.sources([task.read(line)]), read)[0].log_softmax(-1)
    torch.testing.assert_close(logs, scores_LV.gather(1, ids[:, None])[:, 0], rtol=0, atol=1e-5)


def test_programs_that_count_tokens_themselves_are_refused(runs, tmp_path):
    with pytest.raises(UserError, match=r"trained with --positions coupling; answer with `jarilab predict`"):
        export.export(runs / "coupling", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    opened = open_explorer([runs / "coupling"]).subjects[0]
    engine = opened.engine("12+7", opened.run.step)
    assert engine["why"][0] == "a page cannot compute the position IDs of --positions coupling, which this run uses"


def test_places_of_an_answer_cannot_be_dealt_out_before_they_are_known(runs):
    predictor = load(runs / "coupling").predictor
    trace = predictor.trace("12+7", 100)
    with pytest.raises(UserError, match="got shuffle; they are known only while it is written"):
        predictor.edited(trace, Moved({"target": PositionEdit("shuffle")}))
    assert isinstance(predictor.edited(trace, Moved({"target": PositionEdit("shift", 2)})), str)


class Moved:
    """An intervention that moves tokens and edits nothing."""

    edits = ()

    def __init__(self, places):
        self.places = places

    def moving(self, model, inputs):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"training.positions": "randomized:longest=4"},
            r"randomized: expected longest=5 or more, .*; got longest=4; give",
        ),
        ({"training.positions": "coupling"}, r"use --answers reversed or padded"),
        ({"training.positions": "randomised"}, r"did you mean 'randomized'\?"),
        (
            {"training.positions": "randomized:longest=64", "model.encoding": "learned:positions=9"},
            r"the source side of arithmetic has 64 under randomized:longest=64; use positions=64 or",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_step(settings, text):
    with pytest.raises(UserError, match=text):
        tried(settings)


def tried(settings):
    experiment = Experiment.of("arithmetic:maximum=30", settings=settings)
    check_trainable(experiment, experiment.resolved.build_task())


def test_a_task_without_digits_or_tokens_says_so():
    copies = Experiment.of("copy", settings={"training.positions": "abacus", "task.lines": 9})
    with pytest.raises(UserError, match=r"does not say which tokens of the source are digits"):
        check_trainable(copies, copies.resolved.build_task())
    with pytest.raises(UserError, match=r"Digits .* expected the policy sequential; use --positions"):
        Experiment.of("digits", settings={"training.positions": "offset"}).resolved.build_task()


def test_a_training_batch_of_a_policy_without_chance_draws_as_it_ever_did(tmp_path):
    (tmp_path / "a.txt").write_text("1+2=3\n" * 50)
    (tmp_path / "b.txt").write_text("17-4=13\n" * 50)
    task = Text(train=(str(tmp_path),), context_length=16)
    task.prepare()
    numbers = torch.arange(task.training_size)
    plain = task.training_batch(numbers, torch.Generator().manual_seed(1))
    task.set_position_policy(build("offset"))
    moved = task.training_batch(numbers, torch.Generator().manual_seed(1))
    assert torch.equal(plain.labels, moved.labels)
    (read,), (read_moved,) = plain.inputs, moved.inputs
    apart = read_moved.positions.index() - read.positions.index()
    assert (apart == apart[:, :1]).all()
    assert len(set(apart[:, 0].tolist())) > 3
    task.set_position_policy(build("abacus:largest=0"))
    (digits,) = task.training_batch(numbers, torch.Generator().manual_seed(1)).inputs
    names = task.show_source(digits.ids.flatten().tolist())
    places = digits.positions.index().flatten().tolist()
    assert [place > 0 for place in places] == [name in set("0123456789") for name in names]
    assert max(places) == 2
    assert Arithmetic.policy.plain
