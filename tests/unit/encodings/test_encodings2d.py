"""Positions in images, encodings of two axes, and encodings of a part of the axes."""

import pytest
import torch

from jarilab.core.errors import UserError
from jarilab.encodings.base import Site
from jarilab.encodings.compose import LayerEncodings, build, canonical
from jarilab.positions.coordinates import Positions, offsets

SITE = Site(48, 6, 8, 8)
ONE_AXIS = ["sinusoidal", "learned", "rotary", "shaw", "t5", "alibi"]
TWO_AXES = ["sinusoidal2d", "learned2d", "rotary2d", "rotary2d:frequencies=mixed", "table2d", "shaw2d", "alibi2d"]


def results_of(encoding, pos):
    """The results of all hooks, as one tensor."""
    x_BLD = torch.ones(1, pos.length, SITE.d_model)
    x_BHLE = torch.linspace(-1, 1, 8).expand(1, 6, pos.length, 8)
    results = [encoding.embed(x_BLD, pos), encoding.inject(x_BLD, pos), encoding.rotate(x_BHLE, encoding.rotation(pos))]
    results.append(encoding.bias(pos, pos))
    results.append(encoding.terms(x_BHLE, x_BHLE, encoding.relation(pos, pos)))
    return torch.cat([part.flatten() for part in results if part is not None])


def moved(pos, by):
    return Positions(pos.coordinates + by, pos.order, pos.axes, pos.frame, extent=pos.extent)


def joint():
    """Two words, then an image of one row and two columns."""
    coordinates = torch.tensor([[0, -1, -1], [1, -1, -1], [-1, 0, 0], [-1, 0, 1]])
    return Positions(coordinates, torch.arange(4), ("text", "image.row", "image.column"))


def test_tokens_without_a_position_come_before_the_image():
    grid = Positions.grid(2, 3)
    both = Positions.nowhere(2, grid).concat(grid)
    assert both.unplaced.tolist() == [True] * 2 + [False] * 6
    assert both.order.tolist() == [-2, -1, 0, 1, 2, 3, 4, 5]
    assert (both.extent.tolist(), both.axes, both.frame) == ([2, 3], ("row", "column"), "image")


def test_images_of_different_extents_are_not_joined():
    with pytest.raises(UserError, match=r"cannot join positions of the extents \[2, 3\] and \[3, 2\]"):
        Positions.grid(2, 3).concat(Positions.grid(3, 2))


def test_an_extent_has_one_size_per_axis():
    with pytest.raises(UserError, match=r"extent must be \(A,\) or \(B, A\) with A = 2 .* got \(3,\)"):
        Positions(torch.zeros(1, 2), torch.arange(1), ("row", "column"), extent=torch.ones(3))


def test_only_selects_the_axes_of_a_part():
    image, text = joint().only("image"), joint().only("text")
    assert image.axes == ("image.row", "image.column")
    assert image.unplaced.tolist() == [True, True, False, False]
    assert image.coordinates.tolist() == [[0, 0], [0, 0], [0, 0], [0, 1]]
    assert text.index().tolist() == [0, 1, 0, 0]
    assert text.unplaced.tolist() == [False, False, True, True]


def test_positions_above_the_first_row_of_a_rescaled_grid_are_valid():
    pos = Positions(torch.tensor([[-0.25, 0.0]]), torch.arange(1), ("image.row", "image.column"))
    assert pos.only("image").unplaced.tolist() == [False]


def test_an_unknown_part_is_refused():
    with pytest.raises(UserError, match=r"no part 'sound', got the axes .*; choose one of text, image"):
        joint().only("sound")


def test_offsets_are_rows_down_and_columns_right():
    down, right = offsets(Positions.grid(1, 2), Positions.grid(2, 2))
    assert down.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1]]
    assert right.tolist() == [[0, 1, 0, 1], [-1, 0, -1, 0]]


@pytest.mark.parametrize("spec", ONE_AXIS)
def test_an_encoding_of_one_axis_names_one_for_images(spec):
    with pytest.raises(UserError, match=r"one coordinate expected.*choose an encoding for 2 axes"):
        results_of(build(spec, SITE), Positions.grid(2, 2))


@pytest.mark.parametrize("spec", TWO_AXES)
def test_an_encoding_of_two_axes_names_one_for_sequences(spec):
    with pytest.raises(UserError, match=r"two coordinates expected.*choose an encoding for 1 axis"):
        results_of(build(spec, SITE), Positions.sequence(4))


@pytest.mark.parametrize("spec", TWO_AXES)
def test_a_transposed_image_gives_other_outputs(spec):
    """In row-major order the positions of an image and of its transpose differ, and so do the results."""
    encoding, grid = build(spec, SITE), Positions.grid(3, 3)
    flipped = Positions(grid.coordinates.flip(-1), grid.order, grid.axes, grid.frame, extent=grid.extent)
    across = grid.coordinates[:, 0] * 3 + grid.coordinates[:, 1]
    assert torch.equal(across, grid.order)
    same = torch.allclose(results_of(encoding, grid), results_of(encoding, flipped))
    assert same == (spec == "alibi2d"), "only a distance that knows no direction is blind to it"


@pytest.mark.parametrize("layout", ["axes", "table"])
def test_learned_vectors_are_interpolated(layout):
    encoding = build(f"learned2d:rows=4,columns=5,layout={layout}", SITE)
    x_BLD, grid = torch.zeros(1, 20, 48), Positions.grid(4, 5)
    vectors = encoding.embed(x_BLD, grid).view(4, 5, 48)
    at = Positions(torch.tensor([[1.0, 2.0], [1.5, 2.0], [1.0, 2.25], [-0.5, 4.4]]), torch.arange(4), grid.axes)
    got = encoding.embed(x_BLD[:, :4], at)[0]
    wanted = [vectors[1, 2], vectors[1:3, 2].mean(0), 0.75 * vectors[1, 2] + 0.25 * vectors[1, 3], vectors[0, 4]]
    torch.testing.assert_close(got, torch.stack(wanted))


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ((5, 5), r"learned2d knows the rows 0 to 3, got 4; use learned2d:rows=5, rescale"),
        ((4, 6), r"learned2d knows the columns 0 to 4, got 5; use learned2d:columns=6, rescale"),
    ],
)
def test_learned_axes_have_separate_limits(grid, message):
    encoding = build("learned2d:rows=4,columns=5", SITE)
    with pytest.raises(UserError, match=message):
        encoding.embed(torch.zeros(1, grid[0] * grid[1], 48), Positions.grid(*grid))
    with pytest.raises(UserError, match=r"got -1; shift them to start at 0"):
        encoding.embed(torch.zeros(1, 4, 48), moved(Positions.grid(2, 2), -1))


def test_a_table_of_offsets_raises_or_clips():
    grid = Positions.grid(1, 5)
    with pytest.raises(UserError, match=r"up to 2 columns, got 4; use table2d:columns=4 or clip=true"):
        build("table2d:rows=2,columns=2", SITE).bias(grid, grid)
    bias_HQK = build("table2d:rows=2,columns=2,clip=true", SITE).bias(grid, grid)
    assert torch.equal(bias_HQK[:, 0, 2], bias_HQK[:, 0, 4])
    assert not torch.equal(bias_HQK[:, 0, 1], bias_HQK[:, 0, 2])


def test_fractional_offsets_are_interpolated():
    encoding = build("table2d:rows=3,columns=3", SITE)
    at = Positions(torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 1.5]]), torch.arange(4), ("row", "column"))
    bias_HQK = encoding.bias(at, at)
    torch.testing.assert_close(bias_HQK[:, 0, 3], bias_HQK[:, 0, 1:3].mean(-1))


def test_images_of_a_padded_batch_are_scaled_to_their_extents():
    encoding = build("sinusoidal2d:normalised=true", SITE)
    grid = Positions.grid(4, 6)
    extent_BA = torch.tensor([[4, 6], [2, 3]])
    padded = Positions(grid.coordinates, grid.order, grid.axes, grid.frame, extent=extent_BA)
    got = encoding.embed(torch.zeros(2, 24, 48), padded)[1].view(4, 6, 48)[:2, :3].flatten(0, 1)
    torch.testing.assert_close(got, encoding.embed(torch.zeros(1, 6, 48), Positions.grid(2, 3))[0])
    with pytest.raises(UserError, match=r"make them with Positions\.grid"):
        encoding.embed(torch.zeros(1, 1, 48), Positions(torch.zeros(1, 2), torch.arange(1), ("row", "column")))


def test_mixed_frequencies_start_as_two_axes_at_right_angles():
    frequency_HFA = build("rotary2d:frequencies=mixed", SITE).frequency
    first, second = frequency_HFA.chunk(2, 1)
    torch.testing.assert_close(first.norm(dim=-1), torch.tensor([1.0, 10**-0.5]).expand(6, 2))
    torch.testing.assert_close((first * second).sum(-1), torch.zeros(6, 2))
    assert len(frequency_HFA[:, 0, 0].unique()) == 6


def test_mixed_frequencies_differ_by_layer_and_axial_ones_are_shared():
    assert LayerEncodings("rotary2d", SITE, 3).shared
    assert len(list(LayerEncodings("rotary2d:frequencies=mixed", SITE, 3).parameters())) == 3


@pytest.mark.parametrize(
    ("spec", "width", "message"),
    [
        (
            "rotary2d",
            36,
            r"multiple of 4 components: got 6 \(d_model=36, n_heads=6\); use d_model=48, or fraction=0.6666",
        ),
        ("rotary2d:fraction=0.3", 48, "fraction=0.3 of the head width 8 is 2; use fraction=0.5"),
        ("sinusoidal2d", 45, "expected an even width of 4 or more, got 45; use d_model=46"),
    ],
)
def test_widths_that_do_not_divide_are_refused(spec, width, message):
    with pytest.raises(UserError, match=message):
        build(spec, Site(width, 6, width // 6, 8))


@pytest.mark.parametrize("spec", ["sinusoidal2d", "learned2d"])
def test_only_injected_encodings_are_allowed_in_cross_attention(spec):
    cross = Site(48, 6, 8, 8, cross=True)
    assert build(f"{spec}:where=inject", cross).hooks == {"inject"}
    with pytest.raises(UserError, match=f"{spec} cannot be the encoding of cross-attention"):
        build(spec, cross)


@pytest.mark.parametrize("spec", [*TWO_AXES, "learned2d:where=inject"])
def test_an_encoding_of_a_part_depends_on_that_part_only(spec):
    wrapped, plain = build(f"{spec}@image", SITE), build(spec, SITE)
    wrapped.encoding.load_state_dict(plain.state_dict())
    assert wrapped.hooks == plain.hooks
    torch.testing.assert_close(results_of(wrapped, joint()), results_of(plain, joint().only("image")), rtol=0, atol=0)
    assert (wrapped.shift_invariant, wrapped.cross, wrapped.shared) == (
        plain.shift_invariant,
        plain.cross,
        plain.shared,
    )


def test_parts_are_summed_in_a_stack():
    stack = LayerEncodings("learned:positions=9@text + rotary2d:base=50@image", SITE, 2)
    assert stack.spec == canonical(stack.spec) == "learned:positions=9@text+rotary2d:base=50@image"
    added_L = stack.embed(torch.zeros(1, 4, 48), joint()).abs().sum(-1)[0]
    assert (added_L > 0).tolist() == [True, True, False, False]
    x_BHLE = torch.randn(1, 6, 4, 8)
    encoding = stack.by_layer[0]
    changed_L = (encoding.rotate(x_BHLE, encoding.rotation(joint())) != x_BHLE).flatten(0, 1).any(-1).any(0)
    assert changed_L.tolist() == [False, False, False, True], "the first cell of the image is turned by nothing"


def test_the_part_must_be_named_last():
    with pytest.raises(UserError, match="got 'learned@text:positions=9'; write learned:positions=9@text"):
        canonical("learned@text:positions=9")


@pytest.mark.parametrize("spec", ["t5", "shaw", "table2d", "shaw2d", "alibi2d"])
def test_tokens_without_a_position_have_no_bias(spec):
    encoding = build(spec, SITE)
    like = Positions.sequence(3) if 1 in encoding.axes else Positions.grid(1, 3)
    pos = Positions.nowhere(1, like).concat(like)
    q_BHLE = torch.randn(1, 6, 4, 8)
    added = encoding.bias(pos, pos)
    if added is None:
        added = encoding.terms(q_BHLE, q_BHLE, encoding.relation(pos, pos))[0]
        weights_BHQK = torch.eye(4).expand(1, 6, 4, 4)
        assert not encoding.values(weights_BHQK, encoding.relation(pos, pos))[:, :, 0].any()
    assert not added[:, 0].any()
    assert not added[:, :, 0].any()
    assert added[:, 1, 3].all()


@pytest.mark.parametrize("spec", ["alibi2d", "alibi2d:distance=manhattan", "alibi2d:distance=chebyshev", "table2d"])
def test_learned_positions_have_gradients_at_distance_0(spec):
    """Boxes of object queries are learned, and the norm has no gradient at 0."""
    pos = Positions.grid(2, 3)
    places = (pos.coordinates * 1.3).requires_grad_()
    pos = Positions(places, pos.order, pos.axes, pos.frame)
    bias = build(spec, SITE).bias(pos, pos)
    assert spec == "table2d" or bias.diagonal(dim1=-2, dim2=-1).eq(0).all()
    (bias * torch.arange(36.0).view(6, 6)).sum().backward()
    assert places.grad.isfinite().all()
    assert places.grad.abs().sum() > 0
