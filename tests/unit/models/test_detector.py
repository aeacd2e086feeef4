import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from jarilab import record
from jarilab.core.errors import UserError
from jarilab.encodings.base import Site
from jarilab.encodings.base import registry as encodings
from jarilab.encodings.compose import build
from jarilab.models.base import registry
from jarilab.models.detector import Detector
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions
from jarilab.positions.patches import Images
from jarilab.runs.experiment import Experiment

TINY: dict[str, Any] = {"d_model": 24, "n_heads": 2, "n_encoder_layers": 2, "n_decoder_layers": 3, "queries": 5}
ENCODINGS = ["none", "sinusoidal2d:where=inject,normalised=true", "sinusoidal2d:where=inject", "rotary2d"]
SITES = ["encoder.0", "encoder.1"] + [f"decoder.{i}.{kind}" for i in range(3) for kind in ("self", "cross")]


def detector(seed: int = 1, **options: Any) -> Detector:
    model = Detector(1, 4, **{**TINY, **options})
    initialise(model, seed)
    return model.eval()


def images(height: int = 32, width: int = 48, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 1, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("query_positions", ["boxes", "vectors"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_layer_says_boxes_and_classes(encoding: str, query_positions: str) -> None:
    model = detector(encoding=encoding, query_positions=query_positions)
    with record(model) as tape:
        detected = model(images())
    assert detected.scores.shape == (3, 2, 5, 5)
    assert detected.boxes.shape == (3, 2, 5, 4)
    assert ((detected.boxes >= 0) & (detected.boxes <= 1)).all()
    assert tape.sites == SITES
    assert tape.weights("decoder.2.cross").shape == (2, 2, 5, 24)
    assert tape.weights("decoder.1.self").shape == (2, 2, 5, 5)
    assert all(tape.trust(site).rebuild_error < 1e-4 for site in SITES)


def test_it_is_registered() -> None:
    assert registry.spec("detector").target is Detector


@pytest.mark.parametrize("options", [{}, {"query_positions": "vectors"}, {"refinement": False}, {"stem": "patches"}])
def test_every_parameter_gets_a_gradient(options: dict[str, Any]) -> None:
    model = detector(encoding="learned2d:where=inject", **options)
    detected = model(images())
    (detected.scores.square().sum() + detected.boxes.square().sum()).backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not without


@pytest.mark.parametrize("options", [{}, {"query_positions": "vectors"}])
def test_queries_differ_from_each_other_and_from_image_to_image(options: dict[str, Any]) -> None:
    """The failure that everybody meets first is the same box for every query and every image."""
    detected = detector(**options)(images())
    last = detected.boxes[-1]
    assert (last[0, 1:] - last[0, :1]).abs().amax(-1).min() > 1e-3
    assert (last[0] - last[1]).abs().max() > 1e-4


@pytest.mark.parametrize("encoding", ENCODINGS[1:])
@pytest.mark.parametrize("query_positions", ["boxes", "vectors"])
def test_padding_changes_nothing(encoding: str, query_positions: str) -> None:
    """Boxes are shares of what is no padding, so all stays the same, normalised places included."""
    model = detector(encoding=encoding, query_positions=query_positions, stem="patches")
    plain = images(32, 48)
    padded = torch.full((2, 1, 48, 64), 0.0)
    padded[:, :, :32, :48] = plain
    keep = torch.zeros(2, 48, 64, dtype=torch.bool)
    keep[:, :32, :48] = True
    alone, among = model(plain), model(Images(padded, keep))
    assert torch.allclose(alone.boxes, among.boxes, atol=1e-5)
    assert torch.allclose(alone.scores, among.scores, atol=1e-4)
    without = model(padded)
    assert not torch.allclose(alone.scores, without.scores, atol=1e-3)


def test_images_of_any_size_are_padded_to_the_stride() -> None:
    model = detector(stem="patches")
    odd = images(29, 43)
    keep = torch.zeros(2, 32, 48, dtype=torch.bool)
    keep[:, :29, :43] = True
    by_hand = torch.nn.functional.pad(odd, (0, 5, 0, 3))
    assert torch.equal(model(odd).boxes, model(Images(by_hand, keep)).boxes)
    places = model.places(Images(odd))
    assert places.length == 24
    assert places.extent is not None
    assert places.extent.tolist() == [[29 / 8, 43 / 8]] * 2


def test_without_positions_the_order_of_patches_says_nothing() -> None:
    permuted = images().unflatten(2, (4, 8)).flip(2).flatten(2, 3)  # the rows of patches upside down
    for encoding, same in (("none", True), (ENCODINGS[1], False), ("rotary2d", False)):
        model = detector(encoding=encoding, stem="patches")
        assert torch.allclose(model(images()).boxes, model(permuted).boxes, atol=1e-5) is same


def test_a_box_stands_at_row_y_and_column_x() -> None:
    model = detector()
    places = []
    inner = model.decoder._places
    model.decoder._places = lambda *arguments: places.append(inner(*arguments)) or places[-1]  # type: ignore
    model(images())
    anchors = model.decoder.anchors.weight.sigmoid()  # type: ignore[union-attr]
    expected = torch.stack((anchors[:, 1] * 4 - 0.5, anchors[:, 0] * 6 - 0.5), -1)
    assert torch.allclose(places[0].coordinates[0], expected)
    assert places[0].axes == ("row", "column")
    assert places[0].frame == "image"


def test_refinement_looks_from_where_the_layer_before_left_the_box() -> None:
    for refinement in (True, False):
        model = detector(refinement=refinement)
        places: list[Any] = []
        inner = model.decoder._places
        model.decoder._places = lambda *arguments, i=inner, p=places: p.append(i(*arguments)) or p[-1]  # type: ignore
        detected = model(images())
        middles = [torch.stack((b[..., 1] * 4 - 0.5, b[..., 0] * 6 - 0.5), -1) for b in detected.boxes]
        assert torch.allclose(places[1].coordinates, middles[0], atol=1e-5) is refinement
        assert torch.equal(places[1].coordinates, places[0].coordinates) is not refinement


def test_layers_answer_for_their_own_step_only() -> None:
    model = detector()
    model(images()).boxes[-1].sum().backward()
    first = model.decoder.anchors.weight.grad  # type: ignore[union-attr]
    assert first is not None
    assert first.abs().max() > 0  # through where the first layer looks
    model.zero_grad()
    detected = model(images())
    detected.boxes[0].sum().backward()
    assert not torch.equal(first, model.decoder.anchors.weight.grad)  # type: ignore[union-attr]


def test_learned_slots_are_added_again_in_every_layer() -> None:
    model = detector(query_positions="vectors", encoding="none")
    frames: list[str] = []
    slots = model.decoder.slots
    assert slots is not None
    inject = slots.inject
    slots.inject = lambda x, pos: frames.append(pos.frame) or inject(x, pos)  # type: ignore
    model(images())
    # In each of three layers: queries with themselves, queries to the image, the image's keys.
    assert frames.count("queries") == 6
    assert frames.count("image") == 3


def test_slots_alone_tell_queries_apart() -> None:
    """DETR's queries start from nothing."""
    model = detector(query_positions="vectors", encoding="none")
    slots = model.decoder.slots
    assert slots is not None
    with torch.no_grad():
        model.decoder.content.weight.zero_()
        last = model(images()).boxes[-1]
        assert (last[:, 1:] - last[:, :1]).abs().amax(-1).min() > 1e-3
        slots.weight.zero_()
        last = model(images()).boxes[-1]
    assert torch.allclose(last, last[:, :1].expand_as(last), atol=1e-6)


def test_boxes_go_round_through_a_state_dict() -> None:
    for options in ({}, {"query_positions": "vectors"}, {"encoding": "table2d"}):
        model, other = detector(**options), detector(2, **options)
        other.load_state_dict(model.state_dict())
        assert torch.equal(model(images()).boxes, other(images()).boxes)
        assert len({p.data_ptr() for p in model.state_dict().values()}) == len(model.state_dict())


def test_images_of_other_channels_are_refused() -> None:
    with pytest.raises(UserError, match="1 channels, got 3; convert them to grey"):
        detector()(torch.zeros(1, 3, 16, 16))


def test_an_encoding_for_one_axis_says_so() -> None:
    with pytest.raises(UserError, match="2 axes"):
        detector(encoding="rotary")(images())


def test_what_is_added_to_the_input_cannot_be_between_queries_and_image() -> None:
    message = (
        "sinusoidal2d cannot be the encoding of cross-attention; use it in the encoder and the decoder, and none "
        "between queries and image, where there is no input to add to: --set model.cross_encoding=none"
    )
    with pytest.raises(UserError) as error:
        detector(encoding="sinusoidal2d")
    assert str(error.value) == message
    assert detector(encoding="sinusoidal2d", cross_encoding="none")(images()).boxes.isfinite().all()
    with pytest.raises(UserError, match=r"^unknown encoding 'sinusoidal3d'") as error:
        detector(cross_encoding="sinusoidal3d")
    assert "cross_encoding=none" not in str(error.value)


def advice(**options: Any) -> dict[str, Any]:
    """What the error for these options says to write; nothing where there is none."""
    try:
        Detector.check({**TINY, **options})
    except UserError as error:
        return options_in(str(error))
    return {}


def options_in(text: str) -> dict[str, Any]:
    """What a text says to write: --set model.name=value."""
    return {name: value.rstrip(",") for name, value in re.findall(r"--set model\.(\w+)=(\S+)", text)}


def trains(**options: Any) -> None:
    model = detector(**options).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    detected = model(images())
    (detected.scores.square().sum() + detected.boxes.square().sum()).backward()
    optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert any((parameter != before[name]).any() for name, parameter in model.named_parameters())


PLANE = [
    *(name for name in encodings.names() if 2 in getattr(encodings.spec(name).target, "axes", ())),
    "learned2d:layout=table", "learned2d:where=inject", "sinusoidal2d:where=inject", "rotary2d:frequencies=mixed",
    "sinusoidal2d+shaw2d", "rotary2d+learned2d", "t5@row+shaw@column", "learned@row+learned@column",
]  # fmt: skip
ADDED = {"learned2d", "learned2d:layout=table", "sinusoidal2d", "sinusoidal_mae", "rotary2d+learned2d"}
WHOLE = {"shaw2d", "sinusoidal2d+shaw2d", "t5@row+shaw@column", "learned@row+learned@column"}


@pytest.mark.parametrize("encoding", PLANE)
def test_every_encoding_of_the_plane_trains_or_says_what_does(encoding: str) -> None:
    assert {"learned2d", "sinusoidal2d", "rotary2d", "shaw2d", "table2d", "alibi2d", "none"} <= set(PLANE)
    advised = advice(encoding=encoding)
    expected = {"cross_encoding"} if encoding in ADDED else set()
    expected = {"decoder_encoding", "cross_encoding", "query_positions"} if encoding in WHOLE else expected
    assert advised.keys() == expected
    vectors = advised.pop("query_positions", None)
    trains(encoding=encoding, **advised)
    if vectors:
        others: dict[str, Any] = {"query_positions": vectors}
        trains(encoding=encoding, **others, **advice(encoding=encoding, **others))


def test_an_encoding_of_whole_places_for_one_site_changes_that_alone() -> None:
    for site in ("decoder_encoding", "cross_encoding"):
        with pytest.raises(
            UserError, match="shaw2d:clip=4 accepts integer positions only, but object queries"
        ) as error:
            detector(**{site: "shaw2d:clip=4"})
        assert options_in(str(error.value)).keys() == {site, "query_positions"}
        trains(**options_in(str(error.value)) | {site: "shaw2d:clip=4"})
    trains(encoder_encoding="shaw2d")


@pytest.mark.parametrize("site", ["encoding", "encoder_encoding", "decoder_encoding", "cross_encoding"])
@pytest.mark.parametrize("query_positions", ["boxes", "vectors"])
def test_the_first_error_is_that_of_the_axes(site: str, query_positions: str) -> None:
    wrong = {
        "rotary": "rotary cannot encode row and column: expected an encoding for 2 axes; use such as rotary2d",
        "sinusoidal": "sinusoidal cannot encode row and column: expected an encoding for 2 axes; use such as rotary2d",
        "sinusoidal@text+rotary2d@image": "sinusoidal@text is for a part 'text', expected one of row, column",
        "rotary2d@row": "rotary2d@row cannot encode row: expected an encoding for 1 axis; use such as rotary2d",
    }
    for encoding, message in wrong.items():
        with pytest.raises(UserError) as error:
            detector(**{site: encoding}, query_positions=query_positions)
        assert str(error.value).startswith(message)


def test_an_encoding_that_looks_places_up_says_that_it_takes_whole_ones_alone() -> None:
    """What `whole` claims is what happens at places between."""
    for name in encodings.names():
        target: Any = encodings.spec(name).target
        encoding = build(name, Site(24, 2, 12, 12, causal=target.causal_only))
        integers = Positions.grid(2, 2) if 2 in target.axes else Positions.sequence(4)
        between = replace(integers, coordinates=integers.coordinates.float())
        refused = ""
        try:
            encoding.embed(torch.zeros(1, 4, 24), between)
            encoding.inject(torch.zeros(1, 4, 24), between)
            encoding.rotation_for(between, "query", between)
            encoding.relation(between, between)
            encoding.bias(between, between)
        except UserError as error:
            refused = str(error)
        assert ("looks up positions in a table" in refused) is bool(refused)
        for spec in (name, f"none+{name}", f"{name}@part"):
            assert build(spec, encoding.site).integer_only is bool(refused), spec


def test_what_no_detector_can_be_made_with_is_told_before_the_data_are_read(tmp_path: Path) -> None:
    settings = {"task.train": (str(tmp_path / "nowhere.json"), str(tmp_path))}
    with pytest.raises(UserError, match=r"--set model\.cross_encoding=none"):
        Experiment.of("detection", "learned2d", settings).resolved.build_task()
    with pytest.raises(UserError, match=r"nowhere\.json"):
        Experiment.of("detection", "rotary2d", settings).resolved.build_task()


def test_each_site_may_have_an_encoding_of_its_own() -> None:
    model = detector(encoding="none", cross_encoding="rotary2d")
    assert model.encoder.encoding.spec == "none"
    assert model.decoder.encoding.spec == "none"
    assert model.decoder.cross_encoding.spec == "rotary2d"
    assert detector(encoder_encoding="none").decoder.encoding.spec == "rotary2d"


def test_places_of_padded_images_have_extents_of_their_own() -> None:
    keep = torch.zeros(2, 16, 24, dtype=torch.bool)
    keep[0, :16, :8] = keep[1, :8, :20] = True
    places = detector().places(Images(torch.zeros(2, 1, 16, 24), keep))
    assert places.extent is not None
    assert places.extent.tolist() == [[2.0, 1.0], [1.0, 2.5]]
    assert replace(places, extent=None).coordinates.tolist()[:4] == [[0, 0], [0, 1], [0, 2], [1, 0]]
