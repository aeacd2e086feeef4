"""Rates, order, optimizers, the record of an experiment, and the promise that a seed decides every bit."""

import itertools
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.runs import TINY_MODEL, dotted, timeless
from jarilab.core.errors import UserError
from jarilab.encodings.base import Encoding
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.init import generator_for, initialise
from jarilab.nn.sublayers import TokenEmbedding
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_experiment, read_metrics, read_run
from jarilab.runs.task_settings import settings_of
from jarilab.runs.training_options import Training, choose_precision, deciding
from jarilab.tasks.predictors.base import predictor_for
from jarilab.training import loop
from jarilab.training.batching import FixedSizeBatches, batches_of
from jarilab.training.optimization import build_optimizers

TINY = {
    **TINY_MODEL,
    "training.batch_size": 32,
    "training.examples": 32 * 8,
    "training.evaluations": 2,
    "training.evaluation_examples": 20,
}


def tiny(encoding="rotary", seed=1, task="arithmetic:maximum=30", **settings):
    """An experiment of 8 steps. settings: `training__batch_size=8`."""
    return Experiment.of(task, encoding, {**TINY, **dotted(settings)}, seed)


# The learning rate ---------------------------------------------------------------------------------------------------

TRAININGS = st.builds(
    Training,
    examples=st.integers(1, 3000),
    batch_size=st.integers(1, 100),
    warmup=st.floats(0, 1),
    lr=st.floats(1e-6, 10),
)


def steps_of(options):
    return batches_of(options, 7, None, 1).steps


@given(TRAININGS)
def test_the_rate_rises_then_falls_and_is_never_negative(options):
    steps = steps_of(options)
    rates = [options.rate(step, steps) for step in range(steps)]
    peak = rates.index(max(rates))
    assert all(0 < rate <= options.lr * (1 + 1e-9) for rate in rates)
    assert all(a < b for a, b in itertools.pairwise(rates[: peak + 1]))
    assert all(a > b for a, b in itertools.pairwise(rates[peak:]))
    assert peak <= options.warmup * steps


@given(TRAININGS)
def test_the_rate_ends_a_step_before_zero(options):
    steps = steps_of(options)
    falling = sum((step + 1) / steps >= options.warmup for step in range(steps))
    assert options.rate(steps - 1, steps) * falling <= options.lr * (1 + 1e-9)
    if options.warmup < 1:
        assert options.rate(steps, steps) == 0


def test_the_rate_by_hand():
    options = Training(examples=100, batch_size=10, warmup=0.2, lr=0.9)
    by_hand = [0.45, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    assert [options.rate(step, 10) for step in range(10)] == pytest.approx(by_hand)


@pytest.mark.parametrize(("examples", "batch", "steps"), [(1, 512, 1), (512, 512, 1), (513, 512, 2), (100, 10, 10)])
def test_the_number_of_steps(examples, batch, steps):
    order = batches_of(Training(examples=examples, batch_size=batch), 7, None, 1)
    assert (order.steps, order.examples) == (steps, steps * batch)


# The order of the data -----------------------------------------------------------------------------------------------

SIZES = {"size": st.integers(1, 40), "batch": st.integers(1, 90), "seed": st.integers(0, 2**63 - 1)}


@given(**SIZES, steps=st.integers(1, 12))
def test_each_pass_has_every_example_once(size, batch, seed, steps):
    order = FixedSizeBatches(size, batch, steps * batch, seed)
    batches = [order.at(step) for step in range(steps)]
    assert (order.steps, order.examples) == (steps, steps * batch)
    assert {len(b) for b in batches} == {batch}
    seen = torch.cat(batches).tolist()
    passes = [seen[start : start + size] for start in range(0, len(seen), size)]
    assert all(sorted(one) == list(range(size)) for one in passes if len(one) == size)
    assert len(set(passes[-1])) == len(passes[-1])


@given(**SIZES, steps=st.permutations(range(7)))
def test_a_step_computed_alone_is_the_one_in_sequence(size, batch, seed, steps):
    order = FixedSizeBatches(size, batch, 7 * batch, seed)
    sequence = [order.at(step) for step in range(7)]
    jumping = FixedSizeBatches(size, batch, 7 * batch, seed)
    for step in steps:
        assert torch.equal(jumping.at(step), sequence[step])
        assert torch.equal(FixedSizeBatches(size, batch, 7 * batch, seed).at(step), sequence[step])


def test_passes_and_seeds_differ():
    order = FixedSizeBatches(100, 100, 200, 1)
    assert not torch.equal(order.at(0), order.at(1))
    assert not torch.equal(order.at(0), FixedSizeBatches(100, 100, 200, 2).at(0))


def test_the_order_does_not_touch_the_global_generator():
    before = torch.get_rng_state()
    FixedSizeBatches(100, 30, 180, 1).at(5)
    assert torch.equal(torch.get_rng_state(), before)


# Optimizers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("encoding", ["none", "learned", "shaw", "t5", "learned+shaw+t5"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_in_one_group(encoding, optimizer, tied):
    model = EncoderDecoder(15, 15, d_model=16, n_heads=2, encoding=encoding, tied=tied)
    optimizers = build_optimizers(model, Training(optimizer=optimizer, weight_decay=0.1))
    held = [id(p) for o in optimizers.values() for group in o.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize("encoding", ["none", "learned+shaw+t5"])
def test_muon_has_the_matrices_and_no_table(encoding):
    model = EncoderDecoder(15, 15, d_model=16, n_heads=2, encoding=encoding)
    optimizers = build_optimizers(model, Training())
    muon = {id(p) for group in optimizers["muon"].param_groups for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in muon}
    tables = {f"{n}.{p}" for n, m in model.named_modules() if isinstance(m, TokenEmbedding | Encoding)
              for p, _ in m.named_parameters(recurse=False)} | {"generator.weight"}  # fmt: skip
    assert len(tables) > 2 * ("+" in encoding) + 2
    assert not names & tables
    assert names == {n for n, p in model.named_parameters() if p.ndim == 2} - tables
    assert {"encoder.layers.0.attention.query.weight", "decoder.layers.1.feed_forward.down.weight"} <= names


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_only_matrices_decay(optimizer):
    model = EncoderDecoder(15, 15, d_model=16, n_heads=2, encoding="learned")
    optimizers = build_optimizers(model, Training(optimizer=optimizer, weight_decay=0.1))
    decay = {id(p): g["weight_decay"] for o in optimizers.values() for g in o.param_groups for p in g["params"]}
    for name, parameter in model.named_parameters():
        table = any(part in name for part in ("embedding", "encoding", "generator"))
        assert decay[id(parameter)] == (0.1 if parameter.ndim == 2 and not table else 0.0), name


# Precision -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capabilities", "width", "precision"),
    [
        ({"avx512_bf16": True}, 64, "bfloat16"),
        ({"amx_bf16": True}, 512, "bfloat16"),
        ({"avx512_bf16": True}, 63, "float32"),
        ({"avx512_bf16": False, "avx2": True}, 512, "float32"),
        ({}, 512, "float32"),
    ],
)
def test_precision_on_a_cpu(monkeypatch, capabilities, width, precision):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert choose_precision(width) == precision
    experiment = Experiment.of("arithmetic", settings={"model.d_model": width - width % 8, "model.n_heads": 8})
    assert experiment.precision == precision


# The experiment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.d_modle": 16}, "has no option 'd_modle'; did you mean 'd_model'? Options: d_model, n_heads"),
        ({"modle.d_model": 16}, "'modle.d_model'; did you mean 'model.d_model'? Known: model.activation, "),
        ({"d_model": 16}, "unknown setting 'd_model'; did you mean 'model.d_model'?"),
        ({"training.batch_siz": 1}, "training has no option 'batch_siz'; did you mean 'batch_size'?"),
        ({"task.maximun": 9}, "arithmetic has no option 'maximun'; did you mean 'maximum'?"),
        ({"xyzzy": 9}, "unknown setting 'xyzzy'; Known: model.activation, "),
        ({"model.d_model": "wide"}, "d_model: expected an integer, "
         "got 'wide' (default 64)"),
        ({"model.d_model": 0}, "d_model: expected 1 or more, got 0 (default 64)"),
        ({"training.optimizer": "adam"}, "training: optimizer: expected 'muon' or 'adamw', got 'adam'"),
        ({"training.lr": "inf"}, "lr: expected a finite number, got 'inf'"),
        ({"training.lr": "nan"}, "lr: expected a finite number, got 'nan'"),
        ({"training.checkpoints": 3}, "training has no option 'checkpoints'"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(UserError) as error:
        Experiment.of("arithmetic", settings=settings)
    assert message in str(error.value)


def test_a_wrong_setting_is_answered_with_the_default_of_the_task():
    with pytest.raises(UserError, match=r"training: lr: expected a number, got 'fast' \(default 0\.004\)"):
        Experiment.of("text", settings={"training.lr": "fast"})


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_beyond_64_bits_is_refused(seed):
    with pytest.raises(UserError, match=rf"seed must be from 0 to 2\^63 - 1, got {seed}"):
        tiny(seed=seed)


def test_texts_become_what_the_options_are():
    texts = {"model.d_model": "128", "model.tied": "true", "training.lr": "1e-3", "task.operators": "-"}
    experiment = Experiment.of("arithmetic:maximum=99", "rotary", texts, precision="float32")
    assert experiment.model_options["d_model"] == 128
    assert experiment.model_options["tied"] is True
    assert experiment.training["lr"] == 0.001
    assert experiment.task_options["maximum"] == 99
    values = {"model.d_model": 128, "model.tied": True, "training.lr": 0.001, "task.operators": "-"}
    assert Experiment.of("arithmetic:maximum=99", "rotary", values, precision="float32") == experiment


def test_defaults_are_written_out():
    experiment = Experiment.of("arithmetic")
    flat = {f"training.{name}": value for name, value in experiment.training.items()}
    flat |= {f"model.{name}": value for name, value in experiment.model_options.items()}
    flat |= {f"task.{name}": value for name, value in experiment.task_options.items()}
    assert flat == {name: option.default for name, option in settings_of("arithmetic").items()}


def test_equal_experiments_have_equal_hashes():
    plain = tiny("rotary")
    assert plain.hash == tiny("rotary:base=10000").hash == tiny(" rotary:base=1e4,fraction=1.0 ").hash
    assert plain.hash == tiny("rotary", training__optimizer="muon", task__minimum="0").hash
    assert plain.hash == Experiment.read(json.loads(json.dumps(plain.as_dict())), "run.json").hash
    assert len(plain.hash) == 12


def test_an_experiment_with_lists_comes_back_from_its_record():
    experiment = Experiment.of("translation", settings={"task.train": '["a.de", "a.en"]'})
    assert experiment == Experiment.of("translation", settings={"task.train": ("a.de", "a.en")})
    again = Experiment.read(json.loads(json.dumps(experiment.as_dict())), "run.json")
    assert again == experiment
    assert experiment.difference(again) == []
    assert again.hash == experiment.hash


def test_different_experiments_have_different_hashes():
    others = [
        tiny("none"),
        tiny("rotary:base=500"),
        tiny("rotary+alibi"),
        tiny(seed=2),
        tiny(model__d_model=32),
        tiny(training__batch_size=33),
        tiny(training__lr=0.01),
        tiny(task__operators="+"),
        tiny(task="arithmetic:maximum=31"),
        Experiment.of("arithmetic:maximum=30", "rotary", TINY, precision="bfloat16"),
    ]
    assert len({experiment.hash for experiment in [tiny(), *others]}) == len(others) + 1


def test_encodings_are_kept_in_their_shortest_form():
    experiment = tiny("rotary:fraction=0.5,base=10000 + alibi", model__cross_encoding="none")
    assert experiment.encoding == "rotary:fraction=0.5+alibi"
    assert experiment.model_options["encoder_encoding"] is None
    assert tiny(model__encoder_encoding="learned:positions=512").model_options["encoder_encoding"] == "learned"


def test_the_difference_of_two_experiments():
    mine, other = tiny("rotary"), tiny("none", seed=3, model__d_model=32, training__batch_size=8)
    assert mine.difference(other) == [
        "model.d_model: 16 here, 32 there",
        "model.encoding: rotary here, none there",
        "seed: 1 here, 3 there",
        "training.batch_size: 32 here, 8 there",
    ]
    assert mine.difference(tiny("rotary")) == []


def test_a_table_that_is_too_short_is_refused_when_the_model_is_built():
    experiment = tiny("learned:positions=3")
    message = (
        "learned:positions=3 knows 3 positions, but the source side of arithmetic has 5; "
        "use positions=5 or an encoding without a limit"
    )
    with pytest.raises(UserError, match=f"^{message}$"):
        experiment.resolved.build_model(experiment.resolved.build_task())
    longer = tiny("learned:positions=5")
    longer.resolved.build_model(longer.resolved.build_task())


# Records of others ---------------------------------------------------------------------------------------------------


@pytest.fixture
def canary(tmp_path):
    """A Python file that leaves a trace when it is executed."""
    trace = tmp_path / "executed"
    file = tmp_path / "evil.py"
    file.write_text(f"open({str(trace)!r}, 'w').close()\nclass Evil:\n    pass\n")
    return file, trace


@pytest.mark.parametrize(
    ("where", "spec"),
    [
        ("encoding", "{file}:Evil"),
        ("encoding", "none + {file}:Evil:k=1"),
        ("encoder_encoding", " {file} "),
        ("cross_encoding", "{file}:Evil\n"),
        ("encoding", "{file}@x"),
        ("encoding", "none+{file}@x"),
        ("encoder_encoding", "{file}:Evil@x"),
        ("decoder_encoding", "none + {file} @ x"),
        ("task", "{file}:Evil"),
        ("task", "{file}\n"),
        ("model", "{file}:Evil"),
    ],
)
def test_a_record_that_names_a_file_executes_nothing(canary, where, spec):
    file, trace = canary
    record = tiny().as_dict()
    owner = record if where in ("task", "model") else record["model_options"]
    owner[where] = spec.format(file=file)
    where = str(file.parent / "run.json")
    digest = Experiment.read(record, where).hash
    read = read_experiment({"experiment": record, "hash": digest}, file.parent / "run.json")
    with pytest.raises(UserError, match=f"{file}.*--trust-code"):
        read.trust(where, False)
    with pytest.raises(UserError):  # even where nobody asked
        read.resolved.build_model(read.resolved.build_task())
    assert not trace.exists()
    trusted = read.trust(where, True)
    assert not trace.exists(), "reading executes nothing, trusted or not"
    with pytest.raises((UserError, AttributeError, TypeError)):
        trusted.resolved.build_model(trusted.resolved.build_task())
    assert trace.exists(), "the canary sings, so its silence above means something"


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda record: record.pop("seed"), "seed is missing; put the file back as it was written"),
        (lambda record: record.pop("precision"), "precision is missing"),
        (lambda record: record.update(seed="x"), "seed: expected an integer, got 'x'; put the file back"),
        (lambda record: record.update(seed="3"), "seed: expected an integer, got '3'; put the file back"),
        (lambda record: record.update(seed=-1), "seed: expected 0 or more, got -1"),
        (
            lambda record: record.update(precision="half"),
            "precision: expected 'float32' or 'bfloat16', got 'half'",
        ),
        (lambda record: record.update(task=None), "task: expected a text, got None"),
        (lambda record: record.update(model=3), "model: expected a text, got 3"),
        (lambda record: record.update(task_options=None), "task_options: expected named values, got None"),
        (
            lambda record: record.update(model_options=[]),
            r"model_options: expected named values, got \[\]",
        ),
        (lambda record: record.update(training=3), "training: expected named values, got 3"),
        (lambda record: record["model_options"].pop("encoding"), "model_options: encoding is missing"),
        (
            lambda record: record["model_options"].update(encoding=None),
            "model_options: encoding: expected a text",
        ),
        (
            lambda record: record["model_options"].update(cross_encoding=3),
            "model_options: cross_encoding: expected a text",
        ),
        (
            lambda record: record["model_options"].update(d_model=[]),
            r"d_model: expected an integer, got \[\]",
        ),
        (lambda record: record["model_options"].update(d_modle=3), "has no option 'd_modle'; did you mean 'd_model'"),
        (lambda record: record["task_options"].update(maximum="x"), "maximum: expected an integer"),
        (
            lambda record: record["training"].update(batch_size=0),
            "batch_size: expected 1 or more, got 0",
        ),
        (lambda record: record["training"].update(optimizer="sgd"), "optimizer: expected 'muon' or 'adamw'"),
    ],
)
def test_a_record_that_was_edited_names_the_field(spoil, told):
    record = tiny().as_dict()
    spoil(record)
    with pytest.raises(UserError, match=rf"^run\.json: experiment: .*{told}"):
        Experiment.read(record, "run.json")


@pytest.mark.parametrize("section", ["task", "model"])
def test_a_record_of_an_unknown_kind_is_refused(section):
    with pytest.raises(UserError, match=rf"^unknown {section} in run\.json 'mine'; Known: "):
        Experiment.read(tiny().as_dict() | {section: "mine"}, "run.json")


def test_an_unknown_precision_is_refused(unchecked):
    with pytest.raises(UserError, match=r"^unknown precision 'float16'; did you mean 'bfloat16'\? Known: auto, bf"):
        Experiment.of("arithmetic", precision="float16")


# What a seed decides -------------------------------------------------------------------------------------------------


def trained(folder, experiment):
    result = loop.train(experiment, folder, threads=1)
    rows = [timeless(row) for row in read_metrics(folder)]
    (newest, *_) = sorted((folder / "checkpoints").glob("step-*"), reverse=True)
    return timeless(result), rows, (newest / "model.safetensors").read_bytes()


@pytest.mark.parametrize("options", [{}, {"model__dropout": 0.2}, {"training__optimizer": "adamw"}], ids=str)
def test_the_same_seed_gives_the_same_bits(tmp_path, options):
    first = trained(tmp_path / "first", tiny("shaw", **options))
    torch.rand(7)  # what happened before must not matter
    assert trained(tmp_path / "second", tiny("shaw", **options)) == first


def test_another_seed_gives_other_values(tmp_path):
    (_, rows, weights), (_, others, other_weights) = (
        trained(tmp_path / str(seed), tiny(seed=seed, training__examples=64)) for seed in (1, 2)
    )
    assert rows[0]["loss"] != others[0]["loss"]
    assert weights != other_weights


def test_dropout_draws_differ_by_seed_alone(tmp_path):
    rows = [
        trained(tmp_path / str(share), tiny(model__dropout=share, training__examples=32))[1] for share in (0.0, 0.2)
    ]
    assert rows[0][0]["loss"] != rows[1][0]["loss"]


def test_encodings_without_parameters_start_from_the_same_bits(tmp_path):
    names = ("none", "sinusoidal", "rotary", "alibi", "rotary+alibi")
    models, losses = {}, {}
    for name in names:
        experiment = tiny(name, training__examples=32)
        model = experiment.resolved.build_model(experiment.resolved.build_task())
        initialise(model, experiment.seed)
        models[name] = model.state_dict()
        losses[name] = trained(tmp_path / name, experiment)[1][0]["loss"]
    for name in names:
        assert models[name].keys() == models["none"].keys()
        assert all(torch.equal(models[name][key], value) for key, value in models["none"].items())
    assert len(set(losses.values())) == len(names), "each encoding is wired to something"


def test_the_first_loss_is_that_of_the_initial_values_on_the_first_batch(tmp_path):
    experiment = tiny(training__examples=32)
    task = experiment.resolved.build_task()
    model = experiment.resolved.build_model(task)
    initialise(model, experiment.seed)
    order = batches_of(experiment.options, task.training_size, task.training_lengths, experiment.seed)
    batch = task.training_batch(order.at(0), generator_for(experiment.seed, "batch/0"))
    first = trained(tmp_path / "run", experiment)[1][0]
    assert first["loss"] == pytest.approx(task.loss(model(*batch.inputs), batch).item(), rel=1e-6)
    assert first["loss"] == pytest.approx(math.log(15), rel=0.5)


# The run -------------------------------------------------------------------------------------------------------------


def test_a_run_says_what_it_was(tmp_path):
    experiment = tiny()
    result = loop.train(experiment, tmp_path / "run", threads=1)
    record = read_run(tmp_path / "run")
    assert record["hash"] == result["hash"] == experiment.hash
    assert record["experiment"] == experiment.as_dict()
    assert record["environment"]["threads"] == 1
    assert record["environment"]["torch"] == torch.__version__
    assert set(record["kernels"]) == {"encoder.0", "decoder.0.self", "decoder.0.cross"}
    task = experiment.resolved.build_task()
    assert result["ceiling"] == task.ceiling()
    assert (result["steps"], result["trained_examples"]) == (8, 256)
    assert result["examples"] == len(task._held_out), "the last evaluation is on all held-out data"
    assert result["parameters"] == sum(p.numel() for p in experiment.resolved.build_model(task).parameters())
    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert [row["step"] for row in rows if "exact_match" in row] == [4, 8]
    assert [row["lr"] for row in rows] == [experiment.options.rate(step, 8) for step in range(8)]
    assert [row["examples"] for row in rows] == [32 * step for step in range(1, 9)], "trained on, not looked at"
    assert [row["held_out"] for row in rows if "exact_match" in row] == [20, 20]
    assert all(row["gradient_norm"] > 0 for row in rows)


def test_the_curve_has_the_mean_loss_since_the_row_before(tmp_path, monkeypatch):
    every = [row["loss"] for row in trained(tmp_path / "every", tiny())[1]]
    monkeypatch.setattr(loop, "CURVE_POINTS", 2)
    rows = trained(tmp_path / "some", tiny(training__evaluations=1))[1]
    assert [row["step"] for row in rows] == [4, 8]
    assert [row["loss"] for row in rows] == pytest.approx([sum(every[:4]) / 4, sum(every[4:]) / 4])


def test_the_report_hears_of_every_step(tmp_path):
    rows = []
    loop.train(tiny(), tmp_path / "run", threads=1, report=rows.append)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert all({"steps", "examples", "loss"} <= row.keys() for row in rows)


def test_evaluation_leaves_the_model_in_training(tmp_path):
    experiment = tiny(model__dropout=0.5)
    task = experiment.resolved.build_task()
    model = experiment.resolved.build_model(task)
    model.train()
    state = torch.get_rng_state()
    assert predictor_for(model, task).evaluate(5)["examples"] == 5
    assert model.training
    assert torch.equal(torch.get_rng_state(), state), "looking draws nothing"


@pytest.mark.long
def test_a_small_task_is_learnt_by_heart(tmp_path):
    experiment = tiny(
        "sinusoidal",
        task="arithmetic:maximum=9,operators=-",
        model__d_model=32,
        training__batch_size=99,
        training__examples=99 * 200,
        training__evaluations=1,
    )
    loop.train(experiment, tmp_path / "run", threads=1)
    losses = [row["loss"] for row in read_metrics(tmp_path / "run")]
    assert losses[0] > 2
    assert losses[-1] < 0.05


def test_a_budget_that_is_asked_for_takes_the_place_of_the_task_s_passes() -> None:
    assert Experiment.of("digits").training["epochs"] == 40
    asked = Experiment.of("digits", settings={"training.examples": "128"})
    assert (asked.training["examples"], asked.training["epochs"]) == (128, None)
    assert asked.options.budget(1437) == 128
    sized = Experiment.of("translation", settings={"training.batch_size": 32}).training
    assert (sized["batch_size"], sized["tokens"]) == (32, None)
    passes = Experiment.of("digits", settings={"training.epochs": 2, "training.evaluations": 1})
    assert passes.options.budget(100) == 200
    with pytest.raises(
        UserError, match=r"training\.epochs takes the place of training\.examples: expected one of them"
    ):
        Experiment.of("digits", settings={"training.examples": 128, "training.epochs": 3})
    both = {"training.examples": 128, "training.epochs": None}
    assert Experiment.of("digits", settings=both) == asked
    shown = settings_of("digits")
    assert (shown["training.examples"].default, shown["training.epochs"].default) == (None, 40)


def test_what_another_option_takes_the_place_of_decides_nothing() -> None:
    training = Experiment.of("digits").training
    assert deciding(training).keys() == training.keys() - {"examples"}
    assert deciding(Experiment.of("arithmetic").training).keys() == training.keys()
