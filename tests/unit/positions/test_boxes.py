import pytest
import torch

from jarilab.positions.boxes import MIN_SIDE, area, iou, iou_and_giou, to_cxcywh, to_xyxy


def test_formats_go_there_and_back() -> None:
    boxes = torch.tensor([[1.0, 2.0, 5.0, 10.0], [0.0, 0.0, 3.0, 1.0]])
    assert to_cxcywh(boxes).tolist() == [[3.0, 6.0, 4.0, 8.0], [1.5, 0.5, 3.0, 1.0]]
    assert torch.equal(to_xyxy(to_cxcywh(boxes)), boxes)


def test_overlaps_are_those_counted_by_hand() -> None:
    one = torch.tensor([0.0, 0.0, 4.0, 4.0])
    others = torch.tensor([[2.0, 2.0, 6.0, 6.0], [0.0, 0.0, 4.0, 4.0], [5.0, 0.0, 6.0, 4.0]])
    shares, giou = iou_and_giou(one, others)
    assert shares.tolist() == iou(one, others).tolist() == pytest.approx([4 / 28, 1.0, 0.0])
    # Around both: 36, 16 and 24 squares, of which 28, 16 and 20 are covered.
    assert giou.tolist() == pytest.approx([4 / 28 - 8 / 36, 1.0, -4 / 24])


def test_giou_tells_how_far_apart_boxes_are() -> None:
    one = torch.tensor([0.0, 0.0, 1.0, 1.0])
    moved = torch.stack([one + torch.tensor([d, 0.0, d, 0.0]) for d in (2.0, 5.0, 50.0)])
    giou = iou_and_giou(one, moved)[1]
    assert giou[0] > giou[1] > giou[2] > -1


@pytest.mark.parametrize(
    "box",
    [
        [0.5, 0.5, 0.0, 0.0],
        [0.5, 0.5, -0.2, 0.3],
        [0.5, 0.5, 0.2, 0.0],
        [0.0, 0.0, 1e-30, 1e-30],
        [1.0, 1.0, 1.0, 1.0],
    ],
)
@pytest.mark.parametrize("other", [[0.5, 0.5, 0.0, 0.0], [0.2, 0.2, 0.1, 0.1]])
def test_degenerate_boxes_are_finite_forward_and_backward(box: list[float], other: list[float]) -> None:
    boxes = torch.tensor(box, requires_grad=True)
    iou, giou = iou_and_giou(to_xyxy(boxes), to_xyxy(torch.tensor(other)))
    (iou + giou).backward()
    assert boxes.grad is not None
    assert boxes.grad.isfinite().all()
    assert 0 <= iou <= 1
    assert -1 <= giou <= 1


def test_sides_count_as_the_smallest_at_least() -> None:
    assert float(area(torch.tensor([3.0, 3.0, 3.0, 5.0]))) == pytest.approx(2 * MIN_SIDE)
    assert float(area(torch.tensor([3.0, 3.0, 1.0, 5.0]))) == pytest.approx(2 * MIN_SIDE)
