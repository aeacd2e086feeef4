"""Answers that a language model writes behind their sources, in one sequence."""

import pytest
import torch

import jarilab
from jarilab.cli.run_arguments import all_answer_options
from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST
from jarilab.explorer.intervention import InterventionRequest
from jarilab.inspect.record.capture import Tape
from jarilab.models.decoder import LanguageModel
from jarilab.nn.init import initialise
from jarilab.runs.experiment import Experiment
from jarilab.runs.task_settings import look_up
from jarilab.tasks.predictors.base import ModelLearner, predictor_for
from jarilab.tasks.predictors.sequences import PromptedPredictor, SequenceOptions
from jarilab.tasks.sequences import Copy

LINES = ["3 1 4", "7", "1 2 3 4 5 6"]


@pytest.fixture(scope="module")
def predictor():
    task = Copy(symbols=10, lengths="1..6")
    task.join()
    model = LanguageModel(**task.model_options, d_model=32, n_heads=4, encoding="rotary", tied=False)
    initialise(model, 3)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():  # far from a model that says one token always
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return predictor_for(model.double().eval(), task)


def answers_of(predictor, lines, **options):
    predictions = predictor.predict(lines, SequenceOptions(longest=6, **options))
    return [(one.input, one.rank, one.answer, pytest.approx(one.log_probability)) for one in predictions]


@pytest.mark.parametrize("options", [{}, {"beam_size": 3, "n_best": 2}], ids=["greedy", "beam"])
def test_lines_are_answered_together_as_each_by_itself(predictor, options):
    alone = [answer for line in LINES for answer in answers_of(predictor, [line], **options)]
    assert answers_of(predictor, LINES, **options) == alone
    assert type(predictor) is PromptedPredictor


def test_a_trace_reads_the_source_and_the_answer_as_one_sequence(predictor):
    trace = predictor.trace("3 1 4", 100)
    (tokens,) = trace.inputs
    read = tokens.ids[0].tolist()
    source = predictor.task.sources([predictor.task.read("3 1 4")]).ids[0].tolist()
    assert read[: len(source) + 1] == [*source, FIRST]
    assert trace.labels[: len(source)] == read[1 : len(source) + 1], "after each token of the source comes the next"
    assert trace.sequences.keys() == {"target"}
    assert trace.names("target")[:5] == ["3", "1", "4", "<eos>", "<bos>"]
    assert trace.measured == trace.labels[len(source) :], "an edit is measured on the answer alone"
    assert trace.expected == "3 1 4"
    with torch.no_grad():
        predicted = predictor.model(tokens)[0].argmax(-1).tolist()
    assert predicted[len(source) :] == trace.measured, "it shows the forward that the answer came from"


def test_an_edited_model_answers_anew(predictor):
    trace = predictor.trace("3 1 4", 100)
    off = [{"kind": "head", "site": f"decoder.{layer}.self", "head": head} for layer in range(2) for head in range(4)]
    assert predictor.edited(trace, InterventionRequest([], Tape())) == trace.answer
    assert predictor.edited(trace, InterventionRequest(off, Tape())) != trace.answer
    # Rotary hears distances alone, and source and answer are moved together.
    assert (
        predictor.edited(trace, InterventionRequest([{"kind": "place", "how": "shift", "amount": 50}], Tape()))
        == trace.answer
    )
    assert predictor.edited(trace, InterventionRequest([{"kind": "place", "how": "off"}], Tape())) != trace.answer
    with pytest.raises(UserError, match="got shuffle; they are known only while it is written"):
        predictor.edited(trace, InterventionRequest([{"kind": "place", "how": "shuffle"}], Tape()))


def test_where_a_model_looked_is_told_by_the_tokens_of_the_source(predictor):
    learner = ModelLearner(predictor.model, predictor.task)
    looked = learner.most_attended(predictor.task.read("3 1 4"), [7, 8, END])
    assert len(looked) == 3
    assert all(0 <= place <= 3 for place in looked)


def test_no_page_answers_by_itself(predictor):
    assert predictor.text_of_page() is None


def test_each_kind_of_option_is_known_once():
    flags = [tuple(options) for options in all_answer_options("options")]
    assert len(flags) == len(set(flags))


def test_a_language_model_can_be_asked_for_where_source_and_target_can_be_joined():
    assert look_up("copy", "decoder")[1].name == "decoder"
    experiment = Experiment.of("copy", "none", {"task.lengths": "1..4", "task.lines": 10}, model="decoder")
    task = experiment.resolved.build_task()
    assert task.one_sequence
    assert isinstance(experiment.resolved.build_model(task), LanguageModel)
    with pytest.raises(UserError, match=r"text gives a model vocab_size; EncoderDecoder takes source_vocab_size, targ"):
        look_up("text", "encoder_decoder")


def test_both_together_must_be_within_the_positions_that_are_known():
    experiment = Experiment.of(
        "copy", "learned:positions=9", {"task.lengths": "1..4", "task.lines": 10}, model="decoder"
    )
    with pytest.raises(jarilab.UserError, match="knows 9 positions, but the target side of copy has 10"):
        experiment.resolved.build_model(experiment.resolved.build_task())
