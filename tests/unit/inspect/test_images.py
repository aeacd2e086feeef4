"""Looking inside models of images: edits, orders and measures on two axes, against what they are by definition."""

import math

import pytest
import torch
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.inspect.intervene.effects import ablation, effect, importance
from jarilab.inspect.intervene.interventions import HeadOff, operate
from jarilab.inspect.intervene.invariance import permutation_error, shift_error
from jarilab.inspect.intervene.moved_positions import PositionEdit, move_patches, move_tokens, permutations
from jarilab.inspect.measure.maps import Map
from jarilab.inspect.measure.measures import MEASURES
from jarilab.inspect.record.capture import record
from jarilab.models.detector import Detector
from jarilab.models.text_to_image import TextToImage
from jarilab.models.vision import VisionTransformer
from jarilab.nn.init import initialise
from jarilab.positions.patches import Images, patchify


def vit(encoding="rotary2d", **options):
    model = VisionTransformer(
        (1, 8, 8), 5, patch_size=2, d_model=16, n_heads=2, n_layers=2, encoding=encoding, **options
    )
    initialise(model, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.double().eval()


def images():
    return (Images(torch.randn(1, 1, 8, 8, dtype=torch.float64)),)


def test_switching_a_head_off_is_what_ablation_says():
    model, given = vit(), images()
    before = model(*given).log_softmax(-1)[0, 3].detach()
    for site, rises in ablation(model, given, [3]).items():
        for head, rise in enumerate(rises.tolist()):
            with operate(model, [HeadOff(site, head)]), torch.no_grad():
                after = model(*given).log_softmax(-1)[0, 3]
            assert rise == pytest.approx(float(before - after))
            found = effect(model, given, [3], [HeadOff(site, head)])
            assert found.log_before - found.log_after == pytest.approx(rise)
            assert found.before.tolist() == [pytest.approx(float(before.exp()))]


def test_every_head_of_a_detector_matters_and_importance_has_length_one():
    model = Detector(1, 3, d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, queries=4)
    initialise(model, 1)
    given = (Images(torch.randn(1, 1, 24, 20)),)
    found = importance(model.eval(), given, [0, 1, 3, 2])
    assert list(found) == ["encoder.0", "decoder.0.self", "decoder.0.cross"]
    assert all(float(values.norm()) == pytest.approx(1, abs=1e-4) for values in found.values())
    with pytest.raises(UserError, match=r"each of \(1, 4\) places, got \(1, 2\)"):
        importance(model, given, [0, 1])


@pytest.mark.parametrize("encoding", ["none", "rotary2d", "learned2d"])
def test_dealing_patches_out_is_dealing_them_out_in_the_image(encoding):
    model, given = vit(encoding), images()
    index = permutations(torch.ones(1, 16, dtype=torch.bool), 0)[0]
    dealt = Images(functional.fold(patchify(given[0].pixels, 2)[:, index].mT, given[0].size, 2, stride=2))
    with record(model) as tape:
        model(*given)
    with record(model) as other:
        model(dealt)
    for site, found in permutation_error(model, given).items():
        expected = tape.weights(site)[0][:, index][:, :, index] - other.weights(site)[0]
        assert found == pytest.approx(float(expected.abs().max()), abs=1e-7)
        assert (found == 0) == (encoding == "none")


def test_a_class_token_is_never_dealt_out():
    assert max(permutation_error(vit("none", pool="class", registers=1), images()).values()) == 0


def test_patches_are_elsewhere_inside_the_block_only():
    model, given = vit("learned2d", pool="class"), images()
    before = model(*given)
    with move_patches(model, PositionEdit("shuffle", seed=2)):
        places = model.places(given[0])
        assert not torch.allclose(model(*given), before)
    own = model.places(given[0])
    assert torch.equal(model(*given), before)
    assert torch.equal(places.unplaced, own.unplaced)
    assert torch.equal(places.coordinates[0], own.coordinates[0])
    assert sorted(places.coordinates[1:].tolist()) == own.coordinates[1:].tolist()
    assert places.coordinates.tolist() != own.coordinates.tolist()


def test_only_distances_count_under_a_rotation():
    assert max(shift_error(vit("rotary2d"), images(), 3).values()) < 1e-6
    assert min(shift_error(vit("sinusoidal2d"), images(), 3).values()) > 1e-3
    with (
        pytest.raises(UserError, match="takes places with its tokens"),
        move_patches(torch.nn.Linear(1, 1), PositionEdit("off")),
    ):
        pass


def test_distance_is_in_a_straight_line_and_leaves_tokens_without_a_place_out():
    model, given = vit(pool="class"), images()
    with record(model) as tape:
        model(*given)
    names = [str(place) for place in range(17)]
    map = Map.of(tape, "encoder.1", names, names)
    found = MEASURES["distance"].of(map)
    for head in range(2):
        rows = []
        for query in range(16):
            weights = map.weights[head, query + 1, 1:].tolist()
            away = [math.hypot(query // 4 - key // 4, query % 4 - key % 4) for key in range(16)]
            rows.append(sum(w * d for w, d in zip(weights, away, strict=True)) / sum(weights))
        assert float(found.value[head]) == pytest.approx(sum(rows) / 16)


def test_offsets_in_a_image_are_rows_and_columns():
    model, given = vit(pool="class"), images()
    with record(model) as tape:
        model(*given)
    map = Map.of(tape, "encoder.0", [""] * 17, [""] * 17)
    numbers: dict[object, int] = {}
    for query in range(17):
        for key in range(17):
            q, k = divmod(query - 1, 4), divmod(key - 1, 4)
            way = (k[0] - q[0], k[1] - q[1]) if query and key else None
            assert numbers.setdefault(way, int(map.offset[query, key])) == int(map.offset[query, key])
    assert len(set(numbers.values())) == len(numbers) == 7 * 7 + 1
    assert bool(MEASURES["offset"].of(map).value.isnan().all())
    assert bool(MEASURES["previous"].of(map).value.isnan().all())
    assert bool(MEASURES["offset_share"].of(map).value.isfinite().all())


# A caption and its image in one sequence ---------------------------------------------------------------------------


def painter(encoding="rotary2d@image"):
    model = TextToImage(12, 20, 6, 3, 4, d_model=16, n_heads=2, n_layers=2, encoding=encoding)
    initialise(model, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.double().eval()


def joined(model, captions=((1, 5, 3, 7),)):
    return model.joined(torch.tensor(captions), torch.arange(12).expand(len(captions), 12))


@pytest.mark.parametrize("how", ["off", "shift", "stretch", "shuffle"])
def test_what_has_no_place_in_a_part_still_has_none_when_places_move(how):
    tokens = joined(painter())
    before, after = (one.positions.coordinates for one in (tokens, move_tokens(tokens, PositionEdit(how, 2))))
    assert torch.equal(before == -1, after == -1)
    text, image = after[:4, 0], after[5:, 1:]
    rows, columns = torch.arange(12) // 4, torch.arange(12) % 4
    if how == "shuffle":
        assert sorted(text.tolist()) == [0, 1, 2, 3] != text.tolist()
        grid = list(zip(rows.tolist(), columns.tolist(), strict=True))
        assert sorted(map(tuple, image.tolist())) == grid != list(map(tuple, image.tolist()))
        return
    change = {"off": lambda x: 0 * x, "shift": lambda x: x + 2, "stretch": lambda x: 2 * x}[how]
    assert torch.equal(text, change(torch.arange(4)))
    assert torch.equal(image, change(torch.stack((rows, columns), 1)))


def test_padded_captions_are_shuffled_each_by_itself():
    tokens = joined(painter(), ((1, 5, 3, 7), (1, 4, 0, 0)))
    after = move_tokens(tokens, PositionEdit("shuffle")).positions.coordinates
    assert after.shape == (2, 17, 3)
    assert after[1, :4, 0].tolist() == [1, 0, 2, 3]
    assert sorted(after[0, :4, 0].tolist()) == [0, 1, 2, 3] != after[0, :4, 0].tolist()


@pytest.mark.parametrize(("how", "amount"), [("shift", -1), ("stretch", -2)])
def test_a_place_that_would_be_read_as_none_is_refused(how, amount):
    told = rf"-1 and less is no place in a sequence of the parts text, image, and {how} by {amount} would move"
    with pytest.raises(UserError, match=told):
        move_tokens(joined(painter()), PositionEdit(how, amount))


@pytest.mark.parametrize(
    ("encoding", "moves"),
    [("none", False), ("table2d@image", False), ("rotary2d@image", True), ("learned:positions=9@text", True)],
)
def test_a_painter_that_knows_only_distances_does_not_mind_a_shift(encoding, moves):
    """A rotation of codes alone is absolute to words, which are not turned."""
    model = painter(encoding)
    found = shift_error(model.one_sequence(), (joined(model),), 2)
    assert list(found) == ["decoder.0.self", "decoder.1.self"]
    assert all((value > 1e-4) is moves for value in found.values())
    without = PositionEdit("off")
    tokens = joined(model)
    away = effect(model.one_sequence(), (tokens,), tokens.ids[0].tolist(), [], (move_tokens(tokens, without),))
    assert (away.divergence > 1e-8) is (encoding != "none")


def test_a_painter_has_measures_and_heads_that_matter():
    model = painter()
    one, tokens = model.one_sequence(), joined(model)
    for site, values in importance(one, (tokens,), tokens.ids[0].tolist()).items():
        assert float(values.norm()) == pytest.approx(1, abs=1e-4)
        assert ablation(one, (tokens,), tokens.ids[0].tolist())[site].isfinite().all()
    with torch.no_grad(), record(one) as tape:
        one(tokens)
    shown = Map.of(tape, "decoder.0.self", [str(i) for i in range(17)], [str(i) for i in range(17)])
    # A code's distance is that to codes, as on a grid, whatever it looks at besides.
    codes = shown.weights[0, 5:, 5:]
    at = torch.stack((torch.arange(12) // 4, torch.arange(12) % 4), 1).double()
    of_codes = (codes * torch.cdist(at, at)).sum(-1) / codes.sum(-1)
    words = shown.weights[0, :4, :4]
    of_words = (words * (torch.arange(4) - torch.arange(4).unsqueeze(1)).abs()).sum(-1)
    expected = torch.cat((of_words, of_codes)).mean()
    assert float(MEASURES["distance"].of(shown).value[0]) == pytest.approx(float(expected))
