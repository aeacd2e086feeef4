"""What TensorBoard is shown: the curve and the heads of a run, whose numbers it changes not."""

import errno
import importlib.util
import io
import sys

import numpy as np
import pytest
import torch

import jarilab
from helpers.runs import PowerCutError, at, cut, outcome, tiny, train
from jarilab import api
from jarilab.cli.arguments import parse
from jarilab.core.errors import UserError
from jarilab.inspect.measure.heads import measure_heads
from jarilab.inspect.record.capture import record
from jarilab.inspect.record.model_io import to_float64
from jarilab.runs.folder import read_metrics
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.training import tensorboard
from jarilab.training.execution import Execution
from jarilab.training.tensorboard_heads import first_heads

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("tensorboard") is None,
        reason="NO tensorboard: what it is shown was NOT checked (pip install 'jarilab[tensorboard]')",
    ),
]
SHOWN = Execution(tensorboard=True)
LONE = {"training__examples": 32, "training__evaluations": 1}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run that nobody looked at."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    train(folder)
    return folder


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The same, shown, and cut off after a step of which there is no checkpoint."""
    folder = tmp_path_factory.mktemp("shown") / "run"
    with pytest.raises(PowerCutError):
        train(folder, execution=SHOWN, report=at(5, cut))
    train(folder, execution=SHOWN)
    return folder


def events(folder):
    """What TensorBoard itself reads of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    return read.Reload()


def scalars(folder, tag):
    return [(event.step, event.value) for event in events(folder).Scalars(tag)]


def tape_of(run, line):
    """What a run makes of an input, in float64, by the shortest way."""
    predictor = api.load(run).predictor
    trace = predictor.trace(line, 100)
    with torch.no_grad(), record(predictor.model.double()) as tape:
        predictor.model(*to_float64(trace.inputs))
    return tape, {frame: list(one.names) for frame, one in trace.sequences.items()}


def test_a_run_that_is_shown_is_the_same_run(plain, shown):
    assert outcome(shown) == outcome(plain)
    assert SHOWN.record() == {}


def test_the_curve_is_there_once_and_in_order_after_a_kill(shown):
    rows = read_metrics(shown)
    for name in ("loss", "lr", "gradient_norm"):
        told = [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in rows]
        assert scalars(shown, f"curve/{name}") == told
    measured = [(row["step"], pytest.approx(row["value"])) for row in rows if "value" in row]
    assert scalars(shown, "curve, validation/exact_match") == measured
    # The first row of each of the two processes has none before it.
    speeds = scalars(shown, "curve/examples_per_second")
    assert [step for step, _ in speeds] == [2, 3, 5, 6, 7, 8, 9, 10, 11, 12]
    assert all(speed > 0 for _, speed in speeds)


def test_maps_are_those_of_the_weights_that_were_saved(shown):
    from PIL import Image

    tape, _ = tape_of(shown, Arithmetic(maximum=30).sample_inputs()[0])
    for head in ("encoder.0:1", "decoder.0.self:0", "decoder.0.cross:1"):
        site, _, number = head.rpartition(":")
        images = events(shown).Images(f"maps of {head}/input 1")
        assert [image.step for image in images] == [3, 6, 9, 12]
        weights = tape.weights(site)[0, int(number)].numpy()
        pixels = np.array(Image.open(io.BytesIO(images[-1].encoded_image_string)))
        cell = pixels.shape[0] // weights.shape[0]
        assert pixels.shape == (cell * weights.shape[0], cell * weights.shape[1], 3)
        middles = pixels[cell // 2 :: cell, cell // 2 :: cell]
        grey = (middles == 128).all(-1)
        later = np.triu(np.ones_like(weights, dtype=bool), 1) & (site == "decoder.0.self")
        assert (grey == later).all()
        # Green grows with the weight all along the colours.
        order = np.argsort(weights[~grey])
        assert (np.diff(middles[~grey][order][:, 1].astype(int)) >= 0).all()


def test_measures_are_means_over_the_inputs_beside_chance(shown):
    found = []
    for line in Arithmetic(maximum=30).sample_inputs()[:3]:
        found.append(measure_heads(*tape_of(shown, line))["decoder.0.cross"]["entropy"])
    value = np.mean([float(one.value[1]) for one in found])
    chance = np.mean([float(one.chance[1]) for one in found])
    tag = "measures, entropy/decoder.0.cross:1"
    assert scalars(shown, tag)[-1] == (12, pytest.approx(value, rel=1e-6))
    assert scalars(shown, f"{tag} by chance")[-1] == (12, pytest.approx(chance, rel=1e-6))


def test_inputs_are_told_as_code(shown):
    (text, *_) = events(shown).Tensors("inputs/1/text_summary")
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    assert lines[0] == f"    input: {Arithmetic(maximum=30).sample_inputs()[0]}"
    assert all(line.startswith("    ") for line in lines), "a line of an input is never Markdown"


def test_chosen_heads_alone_are_shown(tmp_path):
    _, options = parse(["train", "arithmetic", "--tensorboard", "--tensorboard-heads", "encoder.0:1,decoder.0.cross:0"])
    execution = Execution(**options.verb)
    train(tmp_path / "run", tiny(**LONE), execution=execution)
    images = events(tmp_path / "run").Tags()["images"]
    assert {tag.partition("/")[0] for tag in images} == {"maps of encoder.0:1", "maps of decoder.0.cross:0"}


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ("decoder.0.crass:0", "unknown site 'decoder.0.crass'; did you mean 'decoder.0.cross'"),
        ("encoder.0:2", "encoder.0 has the heads 0 to 1, got 2"),
        (
            "encoder.0",
            r"expected SITE:HEAD, got 'encoder.0'",
        ),
    ],
)
def test_heads_that_are_not_there_are_refused_before_anything_is_written(tmp_path, heads, message):
    with pytest.raises(UserError, match=message):
        train(tmp_path / "run", execution=Execution(tensorboard=True, tensorboard_heads=heads))
    assert not (tmp_path / "run").exists()


def test_heads_without_tensorboard_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"got 'encoder\.0:0' without it; add --tensorboard"):
        train(tmp_path / "run", execution=Execution(tensorboard_heads="encoder.0:0"))


def test_the_library_that_is_missing_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"needs the package tensorboard; pip install 'jarilab\[tensorboard\]'"):
        train(tmp_path / "run", execution=SHOWN)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("written", [0, 3, 20, 150])
def test_a_full_disk_ends_nothing_and_is_told_once(tmp_path, monkeypatch, capsys, plain, written):
    from tensorboard.summary.writer.record_writer import RecordWriter

    count, write = iter(range(10_000)), RecordWriter.write

    def fill(writer, data):
        if next(count) >= written:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(writer, data)

    monkeypatch.setattr(RecordWriter, "write", fill)
    train(tmp_path / "run", execution=SHOWN)
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if "TensorBoard" in line]
    assert line.endswith("No space left on device; training goes on without TensorBoard")
    assert "Traceback" not in said
    assert outcome(tmp_path / "run") == outcome(plain)


def test_a_task_without_inputs_and_one_that_is_too_long_are_told_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Arithmetic, "sample_inputs", lambda _: [])
    train(tmp_path / "none", tiny(training__examples=32, training__evaluations=2), execution=SHOWN)
    assert capsys.readouterr().err.count("shows no maps: the task has no sample_inputs") == 1
    monkeypatch.setattr(Arithmetic, "sample_inputs", lambda _: ["1+1", "what?"])
    train(tmp_path / "one", tiny(training__examples=32, training__evaluations=2), execution=SHOWN)
    assert capsys.readouterr().err.count("TensorBoard shows no maps of 'what?': ") == 1
    assert len(scalars(tmp_path / "one", "measures, entropy/encoder.0:0")) == 2


def test_a_model_that_cannot_be_looked_at_is_trained(tmp_path, monkeypatch, capsys):
    def refuse(inputs):
        raise RuntimeError("expected scalar type Float")

    monkeypatch.setattr(tensorboard, "to_float64", refuse)
    train(tmp_path / "run", tiny(**LONE), execution=SHOWN)
    assert "shows no maps of '12+1': expected scalar type Float\n" in capsys.readouterr().err


def test_a_model_whose_attention_cannot_be_heard_shows_its_curve(tmp_path, monkeypatch, capsys):
    def unheard(*_):
        raise UserError("no attention could be heard")

    monkeypatch.setattr(tensorboard, "record", unheard)
    train(tmp_path / "run", tiny(**LONE), execution=SHOWN)
    assert capsys.readouterr().err.count("TensorBoard shows only the curve: no attention could be heard") == 1
    tags = events(tmp_path / "run").Tags()
    assert (tags["images"], tags["tensors"]) == ([], [])
    assert [step for step, _ in scalars(tmp_path / "run", "curve/loss")] == [1, 2]
    with pytest.raises(UserError, match="no attention could be heard"):
        train(tmp_path / "named", execution=Execution(tensorboard=True, tensorboard_heads="encoder.0:0"))


@pytest.mark.parametrize(("layers", "wanted"), [
    (1, ["0:0", "0:1", "0:2"]),
    (3, ["0:0", "0:1", "1:0", "1:1", "2:0", "2:1"]),
    (15, ["0:0", "2:0", "4:0", "6:0", "8:0", "10:0", "12:0", "14:0"]),
])  # fmt: skip
def test_the_first_heads_of_each_site_or_of_some(layers, wanted):
    model = jarilab.Encoder(24, n_heads=3, n_layers=layers, encoding="rotary")
    with torch.no_grad(), jarilab.record(model) as tape:
        model(torch.randn(1, 4, 24))
    assert [str(head) for head in first_heads(tape)] == wanted
