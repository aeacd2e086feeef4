"""A training that is watched: the same bits, and maps and measures that equal those of a recording by hand."""

import errno
import importlib.util
import io

import numpy as np
import pytest
import torch
from torch import nn

import jarilab
from jarilab.core.errors import UserError

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("tensorboard") is None,
        reason="NO tensorboard: a watched training was NOT checked (pip install 'jarilab[tensorboard]')",
    ),
]
IDS = torch.tensor([[5, 17, 33, 5, 60, 71, 8], [9, 44, 12, 80, 3, 5, 61]])


class Copier(nn.Module):
    """IDs `(B, L)` to scores, with dropout, so that a change of the random state or of the mode would show."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(99, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.3, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.scores = nn.Linear(16, 99)

    def forward(self, ids):
        torch.rand(1)  # drawn in evaluation, too
        return self.scores(self.encoder(self.embedding(ids)))


def trained(folder=None, steps=6, **options):
    """A model after some steps, and the weights of each."""
    torch.manual_seed(1)
    model = Copier()
    model.encoder.layers[0].eval()  # a mode that is to stay
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    watch = jarilab.Watch(model, IDS, 3, folder=folder, **options) if folder else None
    states = [{name: value.clone() for name, value in model.state_dict().items()}]
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(IDS).flatten(0, 1), IDS.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        if watch:
            watch.step()
    if watch:
        watch.close()
    return model, states


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    return read.Reload()


def scalars(folder, tag):
    return [(event.step, event.value) for event in events(folder).Scalars(tag)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    return folder, *trained(folder)


def test_a_watched_training_is_the_same_training(watched):
    _, model, _ = watched
    plain, _ = trained()
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert not model.encoder.layers[0].training
    assert model.encoder.layers[1].training


def test_measures_equal_those_of_the_weights_of_that_step(watched):
    folder, _, states = watched
    model = Copier().eval()
    told = scalars(folder, "measures, entropy/encoder.1:1")
    by_chance = scalars(folder, "measures, duplicate/encoder.0:0 by chance")
    assert [step for step, _ in told] == [0, 3, 6]
    for at, (step, value) in enumerate(told):
        model.load_state_dict(states[step])
        with torch.no_grad(), jarilab.record(model) as tape:
            model(IDS)
        names = [[str(token) for token in ids] for ids in IDS.tolist()]
        rows = [tape.row(number).measures(names[number]) for number in range(2)]
        expected = [float(row["encoder.1"]["entropy"].value[1]) for row in rows]
        assert value == pytest.approx(np.mean(expected), rel=1e-5)
        chance = [float(row["encoder.0"]["duplicate"].chance[0]) for row in rows]
        # Of the first input alone: the second repeats no token, so that its measure is not defined.
        assert by_chance[at][1] == pytest.approx(np.nanmean(chance), rel=1e-5)


def test_maps_are_those_of_the_weights(watched):
    from PIL import Image

    folder, model, _ = watched
    model = Copier().eval()
    model.load_state_dict(watched[2][6])
    with torch.no_grad(), jarilab.record(model) as tape:
        model(IDS)
    image = events(folder).Images("maps of encoder.0:1/input 2")[-1]
    pixels = np.array(Image.open(io.BytesIO(image.encoded_image_string)))
    weights = tape.weights("encoder.0")[1, 1].numpy()
    cell = pixels.shape[0] // len(weights)
    middles = pixels[cell // 2 :: cell, cell // 2 :: cell]
    # Green grows with the weight all along the colours.
    assert (np.diff(middles.reshape(-1, 3)[np.argsort(weights.ravel())][:, 1].astype(int)) >= 0).all()
    (text, *_) = events(folder).Tensors("inputs/2/text_summary")
    assert text.tensor_proto.string_val[0] == b"    tokens of the source: 9 44 12 80 3 5 61"


def test_chosen_heads_and_names(tmp_path):
    names = [["a", "b", "c", "a", "d", "e", "f"], ["<b>", *"nopqrs"]]
    trained(tmp_path, 0, heads=["encoder.1:1"], tokens=names)
    assert set(events(tmp_path).Tags()["images"]) == {f"maps of encoder.1:1/input {n}" for n in (1, 2)}
    (text,) = events(tmp_path).Tensors("inputs/2/text_summary")
    assert text.tensor_proto.string_val[0] == b"    tokens of the source: <b> n o p q r s"


def test_what_is_written_again_replaces_what_was_written(tmp_path):
    trained(tmp_path)
    model, _ = trained()
    with jarilab.Watch(model, IDS, 3, folder=tmp_path, start=3) as watch:
        for _ in range(6):
            watch.step()
    assert [step for step, _ in scalars(tmp_path, "measures, self/encoder.0:0")] == [0, 3, 6, 9]


def test_a_writer_of_ones_own_is_used_and_stays_open(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    with jarilab.Watch(Copier(), IDS, writer=writer):
        pass
    writer.add_scalar("mine", 1.0, 5)
    writer.close()
    assert scalars(tmp_path, "mine") == [(5, 1.0)]
    assert scalars(tmp_path, "measures, self/encoder.0:0")


def bert(**sizes):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=99, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, **sizes
        )
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_counts_as_nothing(tmp_path, side):
    model, keep = bert(), torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    mask = keep if side == "right" else keep.flip(1)
    batch = {"input_ids": IDS, "attention_mask": mask, "labels": IDS}
    with jarilab.Watch(model, batch, folder=tmp_path / "padded"):
        pass
    alone = IDS[1][mask[1].bool()][None]
    for name, ids in (("first", IDS[:1]), ("second", alone)):
        with jarilab.Watch(model, (ids,), folder=tmp_path / name):
            pass
    for measure in ("entropy", "self", "previous"):
        tag = f"measures, {measure}/encoder.0:1"
        ((_, mean),) = scalars(tmp_path / "padded", tag)
        singles = [scalars(tmp_path / name, tag)[0][1] for name in ("first", "second")]
        assert mean == pytest.approx(np.mean(singles), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": ["encoder.7:0"]}, "unknown site 'encoder.7'"),
        ({"heads": ["encoder.0:2"]}, "encoder.0 has the heads 0 to 1, got 2"),
        ({"heads": ["encoder.0"]}, "expected SITE:HEAD, got 'encoder.0'"),
        ({"every": 0}, "got 0"),
        ({"every": 1.5}, "whole number of steps from 1, got 1.5"),
        ({"every": "3"}, "got '3'"),
        ({"batch": torch.zeros(0, 4, dtype=torch.long)}, "got an empty batch"),
        ({"tokens": [["a", "b"], ["c"]]}, "expected a name for each of the 7"),
        ({"tokens": []}, "got 0 lists"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        jarilab.Watch(Copier(), **{"batch": IDS, "folder": tmp_path / "watch", **options})
    assert not (tmp_path / "watch").exists()


def test_maps_that_are_too_large_are_refused(tmp_path):
    with pytest.raises(UserError, match="got 600 x 600"):
        jarilab.Watch(Copier(), torch.ones(1, 600).long(), folder=tmp_path, heads=["encoder.0:0"])


def test_numbers_that_are_none_and_a_full_disk_end_no_training(tmp_path, monkeypatch):
    from tensorboard.summary.writer.record_writer import RecordWriter

    model = Copier()
    watch = jarilab.Watch(model, IDS, 1, folder=tmp_path)
    with torch.no_grad():
        model.embedding.weight.fill_(float("nan"))
    watch.step()
    assert watch.steps == 1

    def fill(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RecordWriter, "write", fill)
    with pytest.warns(UserWarning, match="No space left on device; training goes on") as said:  # noqa: PT031
        for _ in range(20):
            watch.step()
        watch.close()
    assert len(said) == 1


def test_a_trainer_watches_its_model_and_goes_on(tmp_path):
    pytest.importorskip("accelerate", reason="NO accelerate: the callback was NOT run in a Trainer")
    transformers = pytest.importorskip("transformers")
    data = [{"input_ids": ids, "labels": ids} for ids in IDS.repeat(8, 1)]

    def train(folder, *, steps, resume=False, **options):
        arguments = transformers.TrainingArguments(
            str(folder), max_steps=steps, save_steps=2, per_device_train_batch_size=4, report_to=[],
            disable_tqdm=True, use_cpu=True, seed=1,
        )  # fmt: skip
        trainer = transformers.Trainer(bert(), arguments, train_dataset=data, **options)
        trainer.train(resume_from_checkpoint=resume)
        return trainer.model.state_dict()

    watching = {"callbacks": [jarilab.Watch.callback({"input_ids": IDS}, every=2)]}
    state = train(tmp_path / "watched", steps=4, **watching)
    plain = train(tmp_path / "plain", steps=4)
    assert all(torch.equal(state[name], value) for name, value in plain.items())
    tag = "measures, entropy/encoder.0:1"
    assert [step for step, _ in scalars(tmp_path / "watched" / "watch", tag)] == [0, 2, 4]
    train(tmp_path / "watched", steps=6, resume=True, **watching)
    assert [step for step, _ in scalars(tmp_path / "watched" / "watch", tag)] == [0, 2, 4, 6]
