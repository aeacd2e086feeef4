from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jarilab.core.devices import to_device
from jarilab.core.errors import UserError
from jarilab.positions.coordinates import Positions, Tokens, distance, undefined_pairs


def test_a_sequence_counts_from_its_start():
    positions = Positions.sequence(3, 70, frame="target")
    assert positions.index().tolist() == positions.order.tolist() == [70, 71, 72]
    assert (positions.length, positions.frame) == (3, "target")


def test_a_mask_numbers_the_real_tokens_wherever_the_padding_is():
    keep = torch.tensor([[False, False, True, True], [True, False, True, False]])
    positions = Positions.from_mask(keep)
    assert positions.index().tolist() == [[0, 0, 0, 1], [0, 0, 1, 0]]
    assert positions.order.tolist() == [0, 1, 2, 3]


def test_a_grid_goes_row_by_row():
    positions = Positions.grid(2, 3)
    assert positions.coordinates.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert positions.axes == ("row", "column")


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(-500, 500), st.booleans())
def test_slices_joined_again_are_the_whole(a, b, c, start, per_row):
    first, second, length = *sorted((a, b)), max(a, b, c)
    positions = Positions.sequence(length, start)
    if per_row:
        offsets = torch.tensor([0, 9, -7]).view(3, 1, 1)
        positions = Positions(
            positions.coordinates + offsets, positions.order, unplaced=(positions.order % 3 == 0).expand(3, -1)
        )
    joined = positions.slice(0, first).concat(positions.slice(first, second)).concat(positions.slice(second, length))
    assert torch.equal(joined.coordinates, positions.coordinates)
    assert torch.equal(joined.order, positions.order)
    assert (joined.unplaced is None) == (positions.unplaced is None)
    assert positions.unplaced is None or torch.equal(joined.unplaced, positions.unplaced)


def test_joining_shared_positions_to_those_of_a_batch_gives_each_row_its_own():
    rows = Positions(torch.tensor([[[5], [6]], [[8], [9]]]), torch.arange(2), unplaced=torch.tensor([True, False]))
    joined = rows.concat(Positions.sequence(1, 40))
    assert joined.index().tolist() == [[5, 6, 40], [8, 9, 40]]
    assert joined.unplaced.tolist() == [True, False, False]


def test_joining_other_frames_is_refused():
    with pytest.raises(
        UserError, match=r"cannot join positions of frame 'source' \('index',\) with 'target' \('index',\)"
    ):
        Positions.sequence(2, frame="source").concat(Positions.sequence(2, 2, frame="target"))


def test_joining_other_relations_is_refused():
    first, second = (Positions.graph(torch.zeros(2, 2, dtype=torch.long)) for _ in range(2))
    with pytest.raises(UserError, match="tokens of one sequence share frame, axes and relations"):
        first.concat(second)


def test_a_missing_axis_is_refused_with_the_way_to_add_it():
    with pytest.raises(
        UserError, match=r"A = 1 for the axes \('index',\), got \(4,\); add the last axis with unsqueeze"
    ):
        Positions(torch.arange(4), torch.arange(4))


def test_one_coordinate_is_not_taken_from_several():
    with pytest.raises(UserError, match=r"one coordinate expected, got \('row', 'column'\)"):
        Positions.grid(2, 2).index()


def test_distance_is_key_minus_query():
    assert distance(Positions.sequence(2, 10), Positions.sequence(3, 50)).tolist() == [[40, 41, 42], [39, 40, 41]]


def test_distance_is_each_rows_own():
    rows = Positions.from_mask(torch.tensor([[False, True, True], [True, True, True]]))
    assert distance(rows, rows).tolist() == [[[0, 0, 1], [0, 0, 1], [-1, -1, 0]], [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]]


def test_distance_is_0_where_one_side_has_no_place():
    queries = Positions(torch.tensor([[30], [31]]), torch.arange(2), unplaced=torch.tensor([True, False]))
    assert distance(queries, Positions.sequence(2, 40)).tolist() == [[0, 0], [9, 10]]


JOINT = Positions(
    torch.tensor([[0, -1, -1], [1, -1, -1], [-1, -1, -1], [-1, 0, 0], [-1, 0, 1]]),
    torch.arange(5),
    ("text", "image.row", "image.column"),
)


def test_a_sequence_of_parts_says_where_its_tokens_have_no_place():
    assert JOINT.parts == ["text", "image"]
    assert JOINT.absent is not None
    assert JOINT.absent.tolist() == (JOINT.coordinates == -1).tolist()
    for plain in (Positions.sequence(4, start=-3), Positions.grid(2, 3)):
        assert plain.parts == []
        assert plain.absent is None


def test_no_distance_lies_between_the_parts_of_a_sequence():
    words, codes = {(0, 0), (0, 1), (1, 0), (1, 1)}, {(3, 3), (3, 4), (4, 3), (4, 4)}
    apart = undefined_pairs(JOINT, JOINT)
    assert apart is not None
    assert {tuple(pair) for pair in (~apart).nonzero().tolist()} == words | codes
    assert undefined_pairs(Positions.grid(2, 3), Positions.grid(2, 3)) is None


def test_plain_token_numbers_are_placed_from_0():
    tokens = Tokens.of(torch.zeros(2, 3, dtype=torch.long), "source")
    assert (tokens.positions.index().tolist(), tokens.positions.frame, tokens.keep) == ([0, 1, 2], "source", None)
    assert Tokens.of(tokens, "target") is tokens


def test_the_order_is_known_to_rise_where_positions_were_made_in_order(monkeypatch):
    places = Positions.sequence(6, 3)
    places_of_rows = Positions.from_mask(torch.tensor([[False, True, True], [True, True, False]]))
    permuted = places.select(torch.tensor([2, 0, 1]))
    assert not permuted.is_in_order
    assert not replace(places, order=torch.zeros(6, dtype=torch.long)).is_in_order
    assert replace(places, order=torch.arange(0, 12, 2)).is_in_order

    def never(self, *_, **__):
        raise AssertionError("the device was asked")

    monkeypatch.setattr(torch.Tensor, "diff", never)
    moved = to_device(places, torch.device("meta"))
    for known in (places, moved, places.slice(2, 4), places_of_rows, Positions.grid(2, 3)):
        assert known.is_in_order
    assert not to_device(permuted, torch.device("meta")).is_in_order


def test_bounds_are_known_of_what_was_made_in_order_and_asked_of_the_rest(monkeypatch):
    places = Positions.sequence(6, 3)
    moved = replace(places, coordinates=places.coordinates + 40)
    assert moved.bounds() == (43, 48)

    def never(self, *_, **__):
        raise AssertionError("the device was asked")

    monkeypatch.setattr(torch.Tensor, "aminmax", never)
    assert places.bounds() == (3, 8)
    assert places.slice(2, 4).bounds() == (3, 8)
    assert places.concat(Positions.sequence(2, 20)).bounds() == (3, 21)
    assert to_device(places, torch.device("meta")).bounds() == (3, 8)
    assert Positions.from_mask(torch.ones(2, 5, dtype=torch.bool)).bounds() == (0, 4)
