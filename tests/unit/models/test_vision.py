"""The Vision Transformer."""

import pytest
import torch
from torch.nn import functional

import jarilab
import jarilab.positions.patches
from helpers.inside import parts
from jarilab import Images, UserError, VisionTransformer
from jarilab.encodings.base import registry

SHAPE = (1, 8, 12)
ENCODINGS = sorted(
    name
    for name in registry.names()
    if {1, 2} & set(registry.spec(name).target.axes) and not registry.spec(name).target.causal_only
)


def model_of(encoding="sinusoidal2d", **options):
    options = {"patch_size": 4, "d_model": 16, "n_heads": 2, "n_layers": 2, **options}
    model = VisionTransformer(SHAPE, 5, encoding=encoding, **options).double()
    jarilab.initialise(model, 1)
    for parameter in model.encoder.encoding.parameters():
        # Large enough to be noticed; what sums many numbers would saturate.
        large = 1.0 if parameter.numel() < 1000 else 0.1
        torch.nn.init.normal_(parameter, std=large, generator=torch.Generator().manual_seed(1))
    return model.eval()


def images(seed=1, shape=SHAPE, count=3):
    return torch.randn(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def shuffled(pixels, order, patch=4):
    """The same patches in other places."""
    patches = jarilab.positions.patches.patchify(pixels, patch)[:, order]
    return functional.fold(patches.mT, tuple(pixels.shape[2:]), patch, stride=patch)


@pytest.mark.parametrize("encoding", ENCODINGS)
@torch.no_grad()
def test_only_without_positions_does_the_order_of_patches_not_matter(encoding):
    model, pixels = model_of(encoding, registers=1), images()
    hears = encoding != "none" and model.encoder.encoding.by_layer[0].uses_order
    for model.pool in ("mean", "class"):
        difference = (model(pixels) - model(shuffled(pixels, [4, 2, 0, 5, 1, 3]))).abs().max()
        assert (difference < 1e-12) != hears, (model.pool, difference)


@torch.no_grad()
def test_without_positions_not_a_bit_depends_on_where_patches_are():
    model, pixels = model_of("none").float(), images().float()
    # Whole rows of patches change places, so that sums are of the same numbers in the same order of magnitude.
    assert (model(pixels) - model(pixels.flip(2).unflatten(2, (2, 4)).flip(3).flatten(2, 3))).abs().max() < 1e-6


@torch.no_grad()
def test_a_transposed_image_is_another_one_even_for_encodings_of_distance():
    square = images(shape=(1, 8, 8))
    model = (
        VisionTransformer((1, 8, 8), 5, patch_size=4, d_model=16, n_heads=2, n_layers=2, encoding="rotary2d")
        .double()
        .eval()
    )
    assert (model(square) - model(square.transpose(2, 3))).abs().max() > 1e-3


@pytest.mark.parametrize("encoding", ["learned2d", "rotary2d", "rotary+shaw", "table2d", "log_length"])
@pytest.mark.parametrize(("norm", "layers"), [("pre", 3), ("post", 1)])
def test_what_the_last_layer_leaves_out_changes_neither_scores_nor_gradients(encoding, norm, layers):
    model = model_of(encoding, pool="class", registers=1, norm=norm, n_layers=layers, resolution="extrapolate")
    keep = torch.ones(3, 8, 12, dtype=torch.bool)
    keep[1, :, 8:] = False
    results = {}
    for answer_only in (True, False):
        with jarilab.record(model) as tape:
            scores = model(Images(images(), keep), answer_only)
        gradients = torch.autograd.grad(scores.square().sum(), tuple(model.parameters()))
        assert tape.weights(f"encoder.{layers - 1}").shape[2] == (1 if answer_only else 8)
        results[answer_only] = (scores, *gradients)
    for left_out, complete in zip(results[True], results[False], strict=True):
        torch.testing.assert_close(left_out, complete, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_the_mean_of_the_patches_leaves_nothing_out():
    model = model_of(pool="mean")
    assert torch.equal(model(images(), True), model(images()))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("first", [1, 3, 5])
@torch.no_grad()
def test_the_first_outputs_are_those_of_the_whole(norm, first):
    encoder, x = jarilab.Encoder(16, n_heads=2, encoding="rotary", norm=norm).double(), torch.randn(2, 5, 16).double()
    torch.testing.assert_close(encoder(x, first=first), encoder(x)[:, :first], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("first", [0, -1, 5])
def test_as_many_first_outputs_as_there_are_tokens(first):
    with pytest.raises(UserError, match=f"first is a number of tokens: expected 1 to 4, got {first}"):
        jarilab.Encoder(16, n_heads=2)(torch.randn(1, 4, 16), first=first)


def test_the_first_outputs_alone_are_not_for_a_mask_of_ones_own():
    encoder, x = jarilab.Encoder(16, n_heads=2), torch.randn(1, 4, 16)
    with pytest.raises(UserError, match="first goes with keep"):
        encoder(x, mask=jarilab.Mask(causal=True), first=1)


@pytest.mark.parametrize("encoding", ["sinusoidal2d", "rotary2d"])
def test_scores_of_the_first_tokens_alone_are_not_taken_apart(encoding):
    model = model_of(encoding, pool="class")
    with pytest.raises(UserError, match=r"attention ran for the first 1 of 7 tokens"):
        parts(model, (images(count=1), True), "encoder.1", 0)
    assert parts(model, (images(count=1),), "encoder.1", 0)


@torch.no_grad()
def test_padding_changes_nothing():
    model, pixels = model_of("rotary2d", resolution="extrapolate", pool="class", registers=1), images()
    padded = torch.nn.functional.pad(pixels, (0, 8, 0, 4), value=9.0)
    keep = torch.zeros(3, 12, 20, dtype=torch.bool)
    keep[:, :8, :12] = True
    for pool in ("class", "mean"):
        model.pool = pool
        assert (model(pixels) - model(Images(padded, keep))).abs().max() < 1e-12, pool


def test_tokens_without_a_place_come_first_and_have_none():
    model = model_of(pool="class", registers=2)
    places = model.places(Images(images()))
    assert places.unplaced.tolist() == [True] * 3 + [False] * 6
    assert places.coordinates[3:].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    with jarilab.record(model) as tape, torch.no_grad():
        model(images())
    assert tape.weights("encoder.1").shape == (3, 2, 9, 9)


def test_an_encoding_for_a_line_counts_the_patches_row_by_row():
    model = model_of("learned:positions=6")
    assert model.places(Images(images())).index().tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(UserError, match="learned:positions=5 knows 5 positions, but an image has 6 patches"):
        model_of("learned:positions=5")


# Another resolution ---------------------------------------------------------------------------------------------------

LARGE = (1, 16, 24)


def test_images_of_another_size_are_refused_unless_it_is_said_what_to_do_with_them():
    with pytest.raises(UserError, match=r"trained on images of 8 x 12 pixels, got 16 x 24; .*rescale or extrapolate"):
        model_of()(images(shape=LARGE))


@torch.no_grad()
def test_each_way_with_another_size_puts_patches_elsewhere():
    large = Images(images(shape=LARGE))
    places = {how: model_of(resolution=how).places(large) for how in ("resize", "rescale", "extrapolate")}
    assert places["resize"].coordinates.tolist() == jarilab.Positions.grid(2, 3).coordinates.tolist()
    assert places["extrapolate"].coordinates.tolist() == jarilab.Positions.grid(4, 6).coordinates.tolist()
    rescaled = places["rescale"].coordinates
    assert rescaled[0].tolist() == [-0.25, -0.25]
    assert rescaled[-1].tolist() == [1.25, 2.25]
    assert places["rescale"].extent.tolist() == [2, 3]


@pytest.mark.parametrize("encoding", ["none", "sinusoidal2d", "learned2d", "rotary2d", "table2d", "alibi2d"])
@torch.no_grad()
def test_every_encoding_for_a_plane_can_be_rescaled(encoding):
    assert model_of(encoding, resolution="rescale")(images(shape=LARGE)).isfinite().all()


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned:positions=12", "sinusoidal2d:normalised=true", "rotary2d"])
@pytest.mark.parametrize("resolution", ["extrapolate", "rescale", "resize"])
@torch.no_grad()
def test_an_image_has_the_same_scores_alone_and_padded_beside_a_larger_one(resolution, encoding):
    if resolution == "rescale" and encoding.startswith("learned"):
        pytest.skip("integer positions only")
    model = model_of(encoding, resolution=resolution, pool="class")
    alone, padded = images(shape=(1, 8, 8)), images(shape=(1, 12, 16))
    padded[:, :, :8, :8] = alone
    keep = torch.ones(3, 12, 16, dtype=torch.bool)
    keep[:2, 8:], keep[:2, :, 8:] = False, False
    scores = model(Images(padded, keep))
    torch.testing.assert_close(scores[:2], model(alone[:2]), rtol=0, atol=1e-12)
    torch.testing.assert_close(scores[2:], model(padded[2:]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("encoding", ["shaw2d:clip=2", "rotary+t5"])
@torch.no_grad()
def test_an_encoding_of_integers_is_not_rescaled(encoding):
    model = model_of(encoding, resolution="rescale")
    model(images())
    with pytest.raises(UserError, match=r"accepts integer positions only.*; use resolution=extrapolate"):
        model(images(shape=LARGE))


def test_colour_where_grey_is_read_is_refused():
    with pytest.raises(UserError, match="reads images of 1 channels, got 3; convert them to grey"):
        model_of()(images(shape=(3, 8, 12)))


# Training -------------------------------------------------------------------------------------------------------------


def test_drop_path_leaves_out_whole_sublayers_of_some_examples_in_training_only():
    model, pixels = model_of(drop_path=0.5), images(count=64)
    assert [layer.attention_residual.drop_path for layer in model.encoder.layers] == [0.0, 0.5]
    assert (model(pixels) == model(pixels)).all()
    layer = model.encoder.layers[1].feed_forward_residual.train()
    x = torch.ones(64, 6, 16, dtype=torch.float64)
    added = layer(x, lambda x: torch.ones_like(x)) - x
    assert set(added.flatten().tolist()) == {0.0, 2.0}
    assert (added == added[:, :1, :1]).all(), "an example keeps all of it or nothing"


def test_every_parameter_learns():
    model = model_of("learned2d", pool="class", registers=1).train()
    model(images()).square().sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for n, p in model.named_parameters() if "encoding" not in n
    )


@pytest.mark.parametrize("option", ["pool", "resolution"])
def test_a_choice_that_is_not_there_is_refused(option, unchecked) -> None:
    with pytest.raises(UserError, match=f"{option}.*'gone'"):
        VisionTransformer((1, 8, 8), 3, **{option: "gone"})


# Patches that vary most -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if not registry.spec(name).target.depends_on_length])
@pytest.mark.parametrize("options", [{"registers": 2}, {"pool": "class"}], ids=["mean", "class"])
@torch.no_grad()
def test_patches_left_out_in_training_are_those_hidden_afterwards(encoding, options):
    model, pixels = model_of(encoding, kept_patches=3, **options), images()
    answer = model(pixels)
    whole = model_of(encoding, **options)(pixels)
    torch.testing.assert_close(model.train()(pixels), answer, rtol=0, atol=1e-12)
    assert (answer - whole).abs().max() > 1e-6


@torch.no_grad()
def test_blank_patches_are_left_out_and_padding_before_them():
    model, pixels = model_of("sinusoidal2d", kept_patches=3), images(count=1)
    pixels[..., :4] = 0.3  # two of six patches
    other = pixels.clone()
    other[..., :4] = -0.7
    torch.testing.assert_close(model(pixels), model(other), rtol=0, atol=0)
    keep = torch.ones(1, 8, 12, dtype=torch.bool)
    keep[..., 8:] = False
    padded = Images(pixels, keep)
    torch.testing.assert_close(model(padded), model.train()(padded), rtol=0, atol=1e-12)
    assert (model(padded) - model(pixels)).abs().max() > 1e-6


def test_as_many_patches_as_there_are_change_nothing():
    pixels = images()
    torch.testing.assert_close(model_of(kept_patches=6)(pixels), model_of()(pixels), rtol=0, atol=1e-12)


def test_an_encoding_of_the_number_of_patches_refuses_hidden_ones():
    with pytest.raises(UserError, match="log_length depends on the number of patches, and kept_patches=3 hides some"):
        model_of("rotary2d+log_length", kept_patches=3)
