"""Training from weights, frozen parts, and a finished run that goes on."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import jarilab
from helpers.runs import TINY, PowerCutError, at, cut, newest_of, outcome, tiny, train
from jarilab import api
from jarilab.comparison.card import card, plain
from jarilab.comparison.curves import curve_of
from jarilab.core.errors import UserError
from jarilab.core.storage.files import sha256
from jarilab.runs.catalog import runs_in
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_metrics, read_run
from jarilab.runs.origins import read_origin, settings_from

LONGER = 16 * 20
BUDGET = {name: value for name, value in TINY.items() if name.startswith("training.")}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("origin") / "base"
    train(folder, tiny())
    return folder


def start(base, out, task="arithmetic:maximum=40", report=None, **settings):
    settings = {**BUDGET, **settings}
    return api.train(task, out, init=base, settings=settings, threads=1, precision="float32", report=report)


# Several corpora with weights ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("task", ["translation", "text"])
def test_weighted_corpora_go_on_with_the_same_examples_to_the_bit(task, tmp_path):
    for name, count in (("a", 30), ("b", 90)):
        lines = (f"{name} line {n * n} {'more ' * (n % 7)}\t{name} target {n}\n" for n in range(count))
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    settings = {**BUDGET, "training.epochs": None, "model.d_model": 16, "model.n_heads": 2}
    settings |= {"training.evaluations": 2, "training.evaluation_examples": 2}
    settings["task.train"] = [f"{tmp_path}/a.tsv:2", f"{tmp_path}/b.tsv:0.5"]
    if task == "translation":
        layers = {"model.n_encoder_layers": 1, "model.n_decoder_layers": 1, "model.d_ff": 32}
        settings |= {**layers, "task.vocab_size": 280, "task.longest": 30, "training.tokens": 300}
        del settings["training.batch_size"]
    else:
        settings |= {"model.n_layers": 1, "task.context_length": 16}
    experiment = Experiment.of(task, "rotary", settings, 1, "float32")
    train(tmp_path / "whole", experiment)
    steps = read_metrics(tmp_path / "whole")[-1]["step"]
    assert steps > 6
    for step in (3, steps - 1):
        with pytest.raises(PowerCutError):
            train(tmp_path / "cut", experiment, report=at(step, cut))
    train(tmp_path / "cut", experiment)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


# From weights --------------------------------------------------------------------------------------------------------


def test_the_model_and_the_rate_of_the_task_come_with_the_weights(base, tmp_path):
    start(base, tmp_path / "run")
    record, origin = read_run(tmp_path / "run"), read_run(base)
    assert record["experiment"]["model_options"] == origin["experiment"]["model_options"]
    assert record["experiment"]["training"]["lr"] == origin["experiment"]["training"]["lr"]


def test_the_position_policy_comes_with_the_weights(base, tmp_path, capsys):
    offset = {"training.positions": "offset:largest=64"}
    start(base, tmp_path / "first", **offset)
    assert "positions offset:largest=64, instead of sequential before" in capsys.readouterr().err
    start(tmp_path / "first", tmp_path / "second")
    assert read_run(tmp_path / "second")["experiment"]["training"]["positions"] == "offset:largest=64"
    assert "positions" not in capsys.readouterr().err


def test_the_first_weights_are_those_of_the_origin(base, tmp_path):
    still = {"training.lr": 1e-30, "training.examples": 16, "training.evaluations": 1}
    start(base, tmp_path / "run", **still)
    trained, weights = (load_file(newest_of(folder) / "model.safetensors") for folder in (tmp_path / "run", base))
    assert all(torch.equal(trained[name], value) for name, value in weights.items())


def test_the_record_keeps_the_chain_of_origins(base, tmp_path):
    start(base, tmp_path / "second")
    start(tmp_path / "second", tmp_path / "third")
    origin = read_run(tmp_path / "third")["origin"]
    assert (origin["name"], origin["origin"]["name"]) == ("second", "base")
    assert origin["origin"]["weights"] == sha256(newest_of(base) / "model.safetensors")


def test_lists_cards_and_reports_show_the_chain(base, tmp_path):
    start(base, tmp_path / "second")
    start(tmp_path / "second", tmp_path / "third")
    (listed,) = runs_in(tmp_path / "third")
    assert [line[: line.index(" (")] for line in listed.history] == [
        "weights of second at step 12",
        "which came from base at step 12",
    ]
    assert curve_of(tmp_path / "third").history == list(listed.history)
    page = card(api.load(tmp_path / "third"))
    assert all(plain(line) in page for line in listed.history)


def test_a_training_from_weights_that_was_cut_goes_on_to_the_same_bits(base, tmp_path):
    start(base, tmp_path / "whole")
    with pytest.raises(PowerCutError):
        api.train(
            "arithmetic:maximum=40",
            tmp_path / "run",
            settings={**BUDGET, "training.init": str(base)},
            threads=1,
            precision="float32",
            report=at(7, cut),
        )
    start(base, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_the_best_checkpoint(base, tmp_path):
    start(base, tmp_path / "run", **{"training.init_checkpoint": "best"})
    best = json.loads((newest_of(base) / "state.json").read_text())["best"]["step"]
    assert read_run(tmp_path / "run")["origin"]["step"] == best


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        ("arithmetic", {"model.encoding": "none"}, ["model.encoding: expected shaw, got none", "Omit"]),
        ("arithmetic", {"model.d_model": "32"}, ["model.d_model: expected 16, got 32", "Omit"]),
        ("copy", {}, ["other tokens or classes", "expected", "got", "--fresh generator"]),
        (
            "copy",
            {"training.fresh": "generator"},
            ["source_embedding.weight: expected 53 x 16, got 15 x 16", "--fresh"],
        ),
        ("arithmetic", {"training.freeze": "nothing"}, ["'nothing'", "source_embedding, target_embedding, encoder"]),
        ("arithmetic", {"training.freeze": "source_embedding,target_embedding,encoder,decoder,generator"}, ["all of"]),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(base, tmp_path, task, settings, words):
    with pytest.raises(UserError) as error:
        start(base, tmp_path / "run", task, **settings)
    assert [word for word in words if word not in str(error.value)] == []
    assert not (tmp_path / "run").exists()


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"a folder of a run \(run.json\), or one with config.json.*got a folder without"
    ):
        start(tmp_path, tmp_path / "run")


@pytest.mark.slow
def test_parts_that_begin_anew(base, tmp_path):
    fresh = {"training.fresh": "source_embedding,target_embedding,generator"}
    start(base, tmp_path / "run", "copy", **fresh)
    assert (tmp_path / "run" / "result.json").exists()


# Frozen parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_frozen_parts_keep_their_values(base, tmp_path, average):
    start(base, tmp_path / "run", **{"training.freeze": "encoder,embedding", "training.average": average})
    trained, weights = (load_file(newest_of(folder) / "model.safetensors") for folder in (tmp_path / "run", base))
    same = {name for name, value in weights.items() if torch.equal(trained[name], value)}
    frozen = {name for name in weights if name.startswith(("encoder.", "source_embedding", "target_embedding"))}
    assert frozen <= same
    assert "generator.weight" not in same


def test_frozen_batch_norms_keep_their_statistics(tmp_path):
    train(tmp_path / "base", tiny(model__norm_kind="batch"))
    start(tmp_path / "base", tmp_path / "run", **{"training.freeze": "encoder"})
    trained, weights = (load_file(newest_of(tmp_path / name) / "model.safetensors") for name in ("run", "base"))
    changed = {name for name, value in weights.items() if not torch.equal(trained[name], value)}
    assert not [name for name in changed if name.startswith("encoder.")]
    assert "decoder.norm.mean" in changed


@pytest.mark.parametrize("frozen", ["encoder,decoder,embedding", "bias,norm,embedding,encoding,generator"])
def test_adamw_resumes_with_one_kind_of_parameters(base, tmp_path, frozen):
    settings = {"training.optimizer": "adamw", "training.freeze": frozen}
    start(base, tmp_path / "whole", **settings)
    with pytest.raises(PowerCutError):
        start(base, tmp_path / "run", report=at(7, cut), **settings)
    start(base, tmp_path / "run", **settings)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


# A finished run goes on ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    folder = tmp_path_factory.mktemp("continued") / "run"
    train(folder)
    train(folder, tiny(training__examples=LONGER))
    return folder


def test_a_finished_run_goes_on_with_a_warm_restart(continued):
    record = read_run(continued)["experiment"]
    rates = {row["step"]: row["lr"] for row in read_metrics(continued)}
    assert record["earlier"][0]["step"] == 12
    assert record["training"]["examples"] == LONGER
    assert max(rates) == 20
    assert rates[12] < rates[14] > rates[20]
    assert json.loads((continued / "result.json").read_text())["steps"] == 20
    assert runs_in(continued)[0].history == ("warm restart after step 12",)


def test_the_same_budget_again_is_finished(continued, capsys):
    before = outcome(continued)
    train(continued, tiny(training__examples=LONGER))
    assert outcome(continued) == before
    assert "is finished already" in capsys.readouterr().err


@pytest.mark.parametrize("step", [13, 17])
def test_a_continued_run_that_was_cut_goes_on_to_the_same_bits(continued, tmp_path, step):
    train(tmp_path / "run")
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", tiny(training__examples=LONGER), report=at(step, cut))
    train(tmp_path / "run", tiny(training__examples=LONGER))
    assert outcome(tmp_path / "run") == outcome(continued)


def test_a_power_cut_before_the_old_result_is_removed(continued, tmp_path):
    train(tmp_path / "run")
    old = (tmp_path / "run" / "result.json").read_bytes()
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", tiny(training__examples=LONGER), report=at(13, cut))
    (tmp_path / "run" / "result.json").write_bytes(old)
    train(tmp_path / "run", tiny(training__examples=LONGER))
    assert outcome(tmp_path / "run") == outcome(continued)


def test_a_smaller_budget_is_refused(continued):
    with pytest.raises(UserError, match=r"finished after 20 steps: expected a larger budget, got one of 12 steps"):
        train(continued, tiny())


def test_other_settings_are_still_another_run(continued):
    with pytest.raises(UserError, match=r"holds another run"):
        train(continued, tiny(training__examples=2 * LONGER, training__lr=0.5))


# From transformers ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    transformers, hf = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("gpt2") / "gpt2"
    tokenizer = hf.Tokenizer(hf.models.WordLevel({"<end>": 0, "one": 1, "two": 2, "three": 3}, unk_token="<end>"))
    tokenizer.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<end>"
    ).save_pretrained(folder)
    torch.manual_seed(1)
    sizes = {"vocab_size": 4, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 512}  # as learned has by default
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, eos_token_id=0, bos_token_id=0))
    model.save_pretrained(folder)
    return folder


def test_the_learning_rate_is_that_of_the_task_up_to_the_width_that_was_measured(gpt2, tmp_path):
    assert settings_from(read_origin(str(gpt2)), "text", None, None, {})[1]["training.lr"] == 4e-3
    transformers = pytest.importorskip("transformers")
    shutil.copytree(gpt2, tmp_path / "wide")
    sizes = {"vocab_size": 4, "n_embd": 264, "n_layer": 1, "n_head": 2, "n_positions": 32}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path / "wide")
    assert settings_from(read_origin(str(tmp_path / "wide")), "text", None, None, {})[1]["training.lr"] == 4e-4


def test_the_first_loss_is_that_of_the_model_in_the_folder(gpt2, tmp_path):
    (tmp_path / "text.txt").write_text("one two three two one two " * 40)
    settings = {"task.train": str(tmp_path / "text.txt"), "task.context_length": 8, "training.lr": 1e-30}
    settings |= {"training.examples": 4, "training.batch_size": 4, "training.evaluations": 1}
    api.train("text", tmp_path / "run", init=gpt2, settings=settings, threads=1, precision="float32")
    run = api.load(tmp_path / "run")
    theirs = jarilab.from_huggingface(gpt2)
    ids = torch.tensor([[1, 2, 3, 2, 1]])
    assert torch.allclose(run.model(ids + 4)[..., 4:], theirs(ids), atol=1e-5)
    assert run.task.read("one two three") == [5, 6, 7]
    assert read_run(tmp_path / "run")["origin"]["task"] == "GPT2LMHeadModel"
