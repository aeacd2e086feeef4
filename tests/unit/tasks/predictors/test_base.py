"""Which model can learn a task, which options a run has, and a model of one's own from training to answers."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import jarilab
from jarilab import api
from jarilab.comparison.study import Study
from jarilab.core.errors import UserError
from jarilab.models.base import Generates, Paints, ReadsImages, check_protocol
from jarilab.models.base import registry as models
from jarilab.runs.experiment import Experiment
from jarilab.runs.task_settings import look_up, models_for
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.tasks.base import registry as tasks
from jarilab.tasks.predictors.base import predictor_class, predictor_for, registry

OWN_MODEL = '''
from torch import nn

from jarilab.models.encoder_decoder import EncoderDecoder


class Silent(nn.Module):
    """Whatever it is, it cannot write."""

    def __init__(self, source_vocab_size, target_vocab_size, *, d_model=16):
        super().__init__()

    def start(self, source): ...

    def new_cache(self): ...


class Mine(nn.Module):
    """One of the package inside, without an option for the encoding and without an end."""

    def __init__(self, source_vocab_size, target_vocab_size, *, d_model=16):
        super().__init__()
        small = {"n_heads": 2, "d_ff": 16, "n_encoder_layers": 1, "n_decoder_layers": 1}
        self.inside = EncoderDecoder(source_vocab_size, target_vocab_size, d_model=d_model, **small)

    def forward(self, source, target):
        return self.inside(source, target)

    def start(self, source):
        return self.inside.start(source)

    def step(self, state, ids, positions, cache):
        return self.inside.step(state, ids, positions, cache)

    def new_cache(self):
        return self.inside.new_cache()


class Other(Mine):
    """It wants to know more than a task tells."""

    def __init__(self, source_vocab_size, target_vocab_size, depth):
        super().__init__(source_vocab_size, target_vocab_size)
'''
BUDGET = {
    "training.batch_size": 16,
    "training.examples": 32,
    "training.evaluations": 1,
    "training.evaluation_examples": 8,
}


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN_MODEL)
    return str(tmp_path / "own.py")


# Which model can learn a task ----------------------------------------------------------------------------------------


def test_a_model_that_lacks_a_method_is_told_which_before_any_data_are_read(model_file: str) -> None:
    lacking = (
        "arithmetic needs a model that can write token by token, jarilab.models.base.Generates; Silent has no step: "
        "write step, or use another model"
    )
    with pytest.raises(UserError) as error:
        Experiment.of("arithmetic", model=f"{model_file}:Silent")
    message = f"arithmetic cannot be learned by the model {model_file}:Silent: {lacking}; use encoder_decoder or "
    message += "decoder or recurrent"
    assert str(error.value) == message


def test_a_model_that_takes_other_arguments_is_told_which_a_task_gives(model_file: str) -> None:
    with pytest.raises(UserError) as error:
        look_up("text", "encoder_decoder")
    assert str(error.value) == (
        "text cannot be learned by the model encoder_decoder: text gives a model vocab_size; EncoderDecoder takes "
        "source_vocab_size, target_vocab_size; use decoder"
    )
    with pytest.raises(UserError, match="Other takes source_vocab_size, target_vocab_size, depth; use encoder_decoder"):
        Experiment.of("arithmetic", model=f"{model_file}:Other")


def test_every_missing_method_is_named() -> None:
    class Nothing:
        pass

    with pytest.raises(UserError, match=r"Nothing has no start: write start and step and new_cache, or use another"):
        check_protocol(Nothing, Generates, "it")
    with pytest.raises(UserError, match=r"it needs a model that reads images, .*ReadsImages; Nothing has no places: "):
        check_protocol(Nothing, ReadsImages, "it")
    with pytest.raises(UserError, match=r"a model that paints images of codes .*: write steps and joined and one_seq"):
        check_protocol(Nothing, Paints, "it")


def test_a_model_that_cannot_answer_is_told_so_when_it_is_asked_to() -> None:
    with pytest.raises(UserError, match=r"^Arithmetic needs a model that can write .*; Linear has no start: "):
        predictor_for(torch.nn.Linear(2, 2), Arithmetic(maximum=9))


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("arithmetic", ["encoder_decoder", "decoder", "recurrent"]),
        ("translation", ["encoder_decoder", "decoder", "recurrent"]),
        ("text", ["decoder"]),
        ("digits", ["vit"]),
        ("detection", ["detector"]),
        ("captions", ["text_to_image"]),
    ],
)
def test_each_task_has_its_models_the_usual_one_first(task: str, expected: list[str]) -> None:
    assert models_for(tasks.spec(task).target) == expected
    assert look_up(task)[1].name == expected[0]
    assert {name for name in models.names() if _learns(task, name)} == set(expected)


def _learns(task: str, model: str) -> bool:
    try:
        return look_up(task, model)[1].name == model
    except UserError:
        return False


def test_a_model_of_ones_own_is_trained_and_answers(model_file: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    how: dict[str, Any] = {"model": f"{model_file}:Mine", "settings": BUDGET, "precision": "float32", "threads": 1}
    result = jarilab.train("arithmetic:maximum=30", run, **how)
    assert (result["steps"], result["encoding"]) == (2, "its own")
    with pytest.raises(UserError, match="--trust-code"):
        jarilab.load(run)
    opened = jarilab.load(run, trust_code=True)
    assert opened.example() in opened.task.sample_inputs()
    (answer,) = jarilab.predict(opened, ["1+2"])
    assert answer.error is None
    measured = jarilab.evaluate(run, threads=1, trust_code=True, beam_size=2)
    assert (measured["step"], measured["encoding"], 0 <= measured["exact_match"] <= 1) == (2, "its own", True)
    assert jarilab.evaluate(opened, threads=1)["exact_match"] == result["exact_match"]


# Which options a run has ---------------------------------------------------------------------------------------------

OPTIONS = {
    "sequences": "beam_size, length_penalty, no_repeat, shortest, longest, precision, n_best, alignments",
    "prompted": "beam_size, length_penalty, no_repeat, shortest, longest, precision, n_best, alignments",
    "continuation": "max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, stop, seed",
    "classes": "n_best",
    "text_classes": "n_best",
    "detection": "threshold, draw",
    "paintings": "count, out, guidance, temperature, top_k, top_p, rerank, seed",
}
SCORING: dict[str, str] = dict.fromkeys(
    ("sequences", "prompted"), "beam_size, length_penalty, no_repeat, shortest, longest, precision, comet, comet_model"
)


@pytest.mark.parametrize("name", registry.names())
def test_options_that_a_run_has_not_are_told_with_those_it_has(name: str) -> None:
    predictor = registry.spec(name).target
    with pytest.raises(UserError, match=f"has no option 'width'; Options: {OPTIONS[name]}$"):
        api._options("predict", predictor.options, {"width": 3})
    with pytest.raises(UserError, match=f"has no option 'width'; Options: {SCORING.get(name, 'nothing')}$"):
        api._options("evaluate", predictor.scoring, {"width": 3})


def test_a_misspelt_option_is_guessed() -> None:
    predictor = registry.spec("sequences").target
    with pytest.raises(UserError, match="has no option 'beam_sise'; did you mean 'beam_size'"):
        api._options("predict", predictor.options, {"beam_sise": 3})


@pytest.mark.parametrize(("name", "seed"), [("continuation", -1), ("paintings", 2**63)])
def test_a_seed_is_a_number_that_generators_take(name: str, seed: int) -> None:
    with pytest.raises(UserError, match=f"seed: expected .*(more|less).*, got {seed}"):
        api._options("predict", registry.spec(name).target.options, {"seed": seed})


# A kind of answer of one's own ---------------------------------------------------------------------------------------


def test_a_task_may_name_a_predictor_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = registry.spec("classes").target
    monkeypatch.setattr(Arithmetic, "predictor", classes)
    assert predictor_class(Arithmetic) is classes
    monkeypatch.setattr(Arithmetic, "predictor", "clases")
    with pytest.raises(UserError, match="unknown predictor 'clases'; did you mean 'classes'"):
        predictor_class(Arithmetic)


# One value in the place of a list -------------------------------------------------------------------------------------


def test_a_single_value_stands_for_a_list_of_one(tmp_path: Path) -> None:
    words, file, run = ["eins", "zwei", "drei", "vier"], tmp_path / "pairs.tsv", tmp_path / "run"
    file.write_text("".join(f"{one} {two}\t{two} {one}\n" for one, two in product(words, words)))
    settings = {**BUDGET, "task.train": str(file), "task.tokenizer": "words"}
    settings |= {"task.valid": str(file), "model.d_model": 16, "model.d_ff": 16, "model.n_heads": 2}
    settings |= {"model.n_encoder_layers": 1, "model.n_decoder_layers": 1}
    result = api.train("translation", run, settings=settings, eval_lengths=2, precision="float32")
    assert list(result["lengths"]) == ["2"]
    assert [one.input for one in api.predict(run, "eins zwei")] == ["eins zwei"]
    assert [one.input for one in api.predict(run, Path("eins"))] == ["eins"]
    assert api.evaluate(run, data=file)["examples"] == 16
    assert api.report(str(run)) == api.report(run) == run / "report.html"
    assert api.check_data("translation", file, {"task.valid": str(file)})
    api.compare("translation", tmp_path / "study", encodings="none", settings=settings, eval_lengths=2, sbatch=True)
    study = Study.read(tmp_path / "study")
    assert (study.encodings, study.eval_lengths) == (("none",), (2,))
