import math
from pathlib import Path
from typing import Any

import pytest

from jarilab.core.errors import UserError
from jarilab.data.images.annotated import AnnotatedImage, AnnotatedObject, check_units, mask_box
from jarilab.data.images.notices import Notices

SIZE = (48, 64)  # height and width


def image(*boxes: Any, areas: Any = None, **options: Any) -> AnnotatedImage:
    areas = areas or [math.nan] * len(boxes)
    things = [AnnotatedObject("dog", box, area=area) for box, area in zip(boxes, areas, strict=True)]
    return AnnotatedImage(Path("a.png"), tuple(things), **options)


def test_an_image_of_another_size_than_annotated_is_left_out() -> None:
    notices = Notices()
    assert image((1, 1, 9, 9), sizes=frozenset([SIZE])).usable(SIZE, notices) is not None
    assert notices.lines() == []
    assert image((1, 1, 9, 9), sizes=frozenset([(64, 48)])).usable(SIZE, notices) is None
    assert notices.lines() == [
        "images left out, of another width and height than annotated, after turning by EXIF's orientation: 1 "
        "(a.png: 48 x 64 for 64 x 48)"
    ]


def test_an_image_none_of_whose_boxes_is_usable_is_left_out() -> None:
    notices = Notices()
    assert image().usable(SIZE, notices) == []
    assert notices.lines() == []
    assert image(unreadable=1).usable(SIZE, notices) is None
    assert image((5, 5, 5, 9)).usable(SIZE, notices) is None
    assert notices.lines()[-1] == "boxes left out, which have no area: 1 (dog in a.png)"
    assert "images left out, none of whose boxes is usable: 2 (a.png, a.png)" in notices.lines()
    assert len(image((5, 5, 5, 9), (1, 1, 3, 3)).usable(SIZE, notices) or []) == 1


def test_shares_among_pixels_are_left_out() -> None:
    notices = Notices()
    usable = image((0.1, 0.2, 0.4, 0.6), (0, 0, 1, 1), (3, 3, 20, 20)).usable(SIZE, notices)
    assert usable is not None
    assert [thing.box for thing in usable] == [(0, 0, 1, 1), (3, 3, 20, 20)]
    assert notices.lines() == ["boxes left out, which are shares from 0 to 1 and not pixels: 1 (dog in a.png)"]


@pytest.mark.parametrize("boxes", [[(0.1, 0.2, 0.4, 0.6)], [(0, 0, 1, 1), (0.5, 0.5, 1.5, 1.1)]])
def test_annotations_in_shares_are_refused(boxes: list[Any]) -> None:
    with pytest.raises(UserError, match=r"c\.json: expected boxes in pixels; got numbers from 0 to 1 only"):
        check_units("c.json", [(image(*boxes), SIZE)])
    check_units("labels", [(image(*boxes, shares=True), SIZE)])
    check_units("c.json", [(image(*boxes, (3, 3, 20, 20)), SIZE)])
    check_units("c.json", [])


def as_read(*corners: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """Boxes of two corners, read as left, top, width and height."""
    return [(left, top, left + right, top + bottom) for left, top, right, bottom in corners]


def test_corners_in_place_of_width_and_height_are_refused() -> None:
    corners = [(2, 3, 20, 30), (10, 10, 40, 20), (40, 20, 60, 40)]
    with pytest.raises(
        UserError, match=r"expected boxes .left, top, width, height.*got what looks like .left, top, ri"
    ):
        check_units("c.json", [(image(*as_read(*corners)), SIZE)])
    # The same numbers are right as they stand in a larger image, and as real corners.
    check_units("c.json", [(image(*as_read(*corners)), (480, 640))])
    check_units("c.json", [(image(*corners), SIZE)])
    # One box over the rim among others is no sign.
    check_units("c.json", [(image((40, 20, 100, 60), (10, 10, 15, 15)), SIZE)])


def test_areas_tell_corners_from_width_and_height() -> None:
    boxes = as_read((2, 3, 20, 30), (5, 5, 15, 25))
    with pytest.raises(UserError, match="2 boxes reach over the rim or have another `area`"):
        check_units("c.json", [(image(*boxes, areas=[486.0, 200.0]), (480, 640))])
    check_units("c.json", [(image(*boxes, areas=[600.0, 375.0]), (480, 640))])
    check_units("c.json", [(image(*boxes, areas=[311.0, 122.0]), (480, 640))])  # of masks


@pytest.mark.parametrize(
    "mask",
    [
        None,
        [],
        "text",
        [[1, 2, 3, 4]],
        [[1, 2, 3, 4, 5]],
        [[1, 2, 3, 4, 5, math.nan]],
        [[1, 2, 3, "x", 5, 6]],
        {"size": [4, 4]},
        {"size": [4, 4], "counts": [16]},
        {"size": [4, 4], "counts": [3, 4]},
        {"size": [4, 4], "counts": [20, -4]},
        {"size": [-4, -4], "counts": [3, 13]},
        {"size": [0, 4], "counts": [0, 0]},
        {"size": [4, 4], "counts": [2**70, 1]},
        {"size": [4, 4], "counts": "oooooooooooooooooooooo"},
        {"size": [4, 4], "counts": "\x00"},
        {"size": [4, 4], "counts": "o"},
        {"size": [4, 4], "counts": ""},
    ],
)
def test_damaged_and_empty_masks_have_no_box(mask: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, OverflowError)):
        mask_box(mask)


def test_several_polygons_and_one_that_is_not_nested() -> None:
    assert mask_box([[1, 2, 3, 2, 3, 9], [10, 0, 12, 0, 12, 4]]) == ((1, 0, 12, 9), None)
    assert mask_box([1, 2, 3, 2, 3, 9]) == ((1, 2, 3, 9), None)
