"""Edits, permutations, shifts and measures of models of images."""

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


def test_ablation_equals_head_off():
    model, batch = vit(), images()
    before = model(*batch).log_softmax(-1)[0, 3].detach()
    for site, rises in ablation(model, batch, [3]).items():
        for head, rise in enumerate(rises.tolist()):
            with operate(model, [HeadOff(site, head)]), torch.no_grad():
                after = model(*batch).log_softmax(-1)[0, 3]
            assert rise == pytest.approx(float(before - after))
            result = effect(model, batch, [3], [HeadOff(site, head)])
            assert result.log_before - result.log_after == pytest.approx(rise)
            assert result.before.tolist() == [pytest.approx(float(before.exp()))]


def test_importance_of_a_detector_is_normalised():
    model = Detector(1, 3, d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, queries=4)
    initialise(model, 1)
    batch = (Images(torch.randn(1, 1, 24, 20)),)
    result = importance(model.eval(), batch, [0, 1, 3, 2])
    assert list(result) == ["encoder.0", "decoder.0.self", "decoder.0.cross"]
    assert all(float(values.norm()) == pytest.approx(1, abs=1e-4) for values in result.values())
    with pytest.raises(UserError, match=r"each of \(1, 4\) places, got \(1, 2\)"):
        importance(model, batch, [0, 1])


@pytest.mark.parametrize("encoding", ["none", "rotary2d", "learned2d"])
def test_permuted_patches_equal_a_permuted_image(encoding):
    model, batch = vit(encoding), images()
    index = permutations(torch.ones(1, 16, dtype=torch.bool), 0)[0]
    dealt = Images(functional.fold(patchify(batch[0].pixels, 2)[:, index].mT, batch[0].size, 2, stride=2))
    with record(model) as tape:
        model(*batch)
    with record(model) as other:
        model(dealt)
    for site, result in permutation_error(model, batch).items():
        expected = tape.weights(site)[0][:, index][:, :, index] - other.weights(site)[0]
        assert result == pytest.approx(float(expected.abs().max()), abs=1e-7)
        assert (result == 0) == (encoding == "none")


def test_class_token_is_not_permuted():
    assert max(permutation_error(vit("none", pool="class", registers=1), images()).values()) == 0


def test_patches_move_inside_the_block_only():
    model, batch = vit("learned2d", pool="class"), images()
    before = model(*batch)
    with move_patches(model, PositionEdit("shuffle", seed=2)):
        places = model.places(batch[0])
        assert not torch.allclose(model(*batch), before)
    original = model.places(batch[0])
    assert torch.equal(model(*batch), before)
    assert torch.equal(places.unplaced, original.unplaced)
    assert torch.equal(places.coordinates[0], original.coordinates[0])
    assert sorted(places.coordinates[1:].tolist()) == original.coordinates[1:].tolist()
    assert places.coordinates.tolist() != original.coordinates.tolist()


def test_rotary2d_is_shift_invariant():
    assert max(shift_error(vit("rotary2d"), images(), 3).values()) < 1e-6
    assert min(shift_error(vit("sinusoidal2d"), images(), 3).values()) > 1e-3
    with (
        pytest.raises(UserError, match="takes places with its tokens"),
        move_patches(torch.nn.Linear(1, 1), PositionEdit("off")),
    ):
        pass


def test_distance_is_euclidean_and_omits_tokens_without_position():
    model, batch = vit(pool="class"), images()
    with record(model) as tape:
        model(*batch)
    names = [str(place) for place in range(17)]
    map = Map.of(tape, "encoder.1", names, names)
    result = MEASURES["distance"].of(map)
    for head in range(2):
        rows = []
        for query in range(16):
            weights = map.weights[head, query + 1, 1:].tolist()
            away = [math.hypot(query // 4 - key // 4, query % 4 - key % 4) for key in range(16)]
            rows.append(sum(w * d for w, d in zip(weights, away, strict=True)) / sum(weights))
        assert float(result.value[head]) == pytest.approx(sum(rows) / 16)


def test_offsets_in_an_image_are_rows_and_columns():
    model, batch = vit(pool="class"), images()
    with record(model) as tape:
        model(*batch)
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
def test_absent_positions_stay_absent(how):
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


def test_padded_captions_are_shuffled_separately():
    tokens = joined(painter(), ((1, 5, 3, 7), (1, 4, 0, 0)))
    after = move_tokens(tokens, PositionEdit("shuffle")).positions.coordinates
    assert after.shape == (2, 17, 3)
    assert after[1, :4, 0].tolist() == [1, 0, 2, 3]
    assert sorted(after[0, :4, 0].tolist()) == [0, 1, 2, 3] != after[0, :4, 0].tolist()


@pytest.mark.parametrize(("how", "amount"), [("shift", -1), ("stretch", -2)])
def test_position_read_as_absent_raises(how, amount):
    message = rf"-1 and less is no place in a sequence of the parts text, image, and {how} by {amount} would move"
    with pytest.raises(UserError, match=message):
        move_tokens(joined(painter()), PositionEdit(how, amount))


@pytest.mark.parametrize(
    ("encoding", "moves"),
    [("none", False), ("table2d@image", False), ("rotary2d@image", True), ("learned:positions=9@text", True)],
)
def test_painter_with_relative_encoding_is_shift_invariant(encoding, moves):
    """For words, which are not rotated, a rotation of codes alone is an absolute encoding."""
    model = painter(encoding)
    result = shift_error(model.one_sequence(), (joined(model),), 2)
    assert list(result) == ["decoder.0.self", "decoder.1.self"]
    assert all((value > 1e-4) is moves for value in result.values())
    without = PositionEdit("off")
    tokens = joined(model)
    away = effect(model.one_sequence(), (tokens,), tokens.ids[0].tolist(), [], (move_tokens(tokens, without),))
    assert (away.divergence > 1e-8) is (encoding != "none")


def test_painter_has_measures_and_importance():
    model = painter()
    one, tokens = model.one_sequence(), joined(model)
    for site, values in importance(one, (tokens,), tokens.ids[0].tolist()).items():
        assert float(values.norm()) == pytest.approx(1, abs=1e-4)
        assert ablation(one, (tokens,), tokens.ids[0].tolist())[site].isfinite().all()
    with torch.no_grad(), record(one) as tape:
        one(tokens)
    shown = Map.of(tape, "decoder.0.self", [str(i) for i in range(17)], [str(i) for i in range(17)])
    # The distance of a code is to other codes, on their grid.
    codes = shown.weights[0, 5:, 5:]
    at = torch.stack((torch.arange(12) // 4, torch.arange(12) % 4), 1).double()
    of_codes = (codes * torch.cdist(at, at)).sum(-1) / codes.sum(-1)
    words = shown.weights[0, :4, :4]
    of_words = (words * (torch.arange(4) - torch.arange(4).unsqueeze(1)).abs()).sum(-1)
    expected = torch.cat((of_words, of_codes)).mean()
    assert float(MEASURES["distance"].of(shown).value[0]) == pytest.approx(float(expected))
