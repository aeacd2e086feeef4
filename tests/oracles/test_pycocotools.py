"""AP of files with crowds, and boxes around masks, against pycocotools."""

import contextlib
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jarilab.data.images.annotated import AnnotatedObject, mask_box, usable_boxes
from jarilab.data.images.annotations import read_annotations
from jarilab.data.images.notices import Notices
from jarilab.tasks.detection_metrics import ImageBoxes, average_precision

coco = pytest.importorskip("pycocotools.coco")
cocoeval = pytest.importorskip("pycocotools.cocoeval")
mask = pytest.importorskip("pycocotools.mask")

HEIGHT, WIDTH = 48, 64


def random_box(draw: random.Random) -> list[int]:
    left, top = draw.randrange(WIDTH - 8), draw.randrange(HEIGHT - 8)
    return [left, top, draw.randint(4, WIDTH - left), draw.randint(4, HEIGHT - top)]


def random_mask(draw: random.Random) -> np.ndarray:
    pixels = np.zeros((HEIGHT, WIDTH), dtype=np.uint8, order="F")
    for _ in range(draw.randint(1, 3)):
        left, top, width, height = random_box(draw)
        pixels[top : top + height, left : left + width] = 1
    return pixels


def uncompressed(pixels: np.ndarray) -> list[int]:
    runs, value = [0], 0
    for pixel in pixels.flatten(order="F").tolist():
        if pixel != value:
            runs.append(0)
            value = pixel
        runs[-1] += 1
    return runs


def spelled(number: int, draw: random.Random) -> Any:
    return draw.choice([number, float(number), str(number), f"{number}.0"])


def random_annotation(number: int, image: int, draw: random.Random) -> tuple[dict[str, Any], list[float]]:
    """An annotation with a box, or with a mask in its place, and the box that it means."""
    annotation: dict[str, Any] = {"id": number, "image_id": image, "category_id": draw.randint(1, 3)}
    annotation["iscrowd"] = int(draw.random() < 0.3)
    form = draw.choice(["bbox", "runs", "text"])
    if form == "bbox":
        box = [float(side) for side in random_box(draw)]
        return {**annotation, "bbox": box, "area": box[2] * box[3]}, box
    pixels = random_mask(draw)
    encoded = mask.encode(pixels)
    counts = encoded["counts"].decode() if form == "text" else uncompressed(pixels)
    annotation["segmentation"] = {"size": [HEIGHT, WIDTH], "counts": counts}
    return annotation, mask.toBbox(encoded).tolist()


def theirs(images: list[Any], annotations: list[Any], detections: list[Any]) -> dict[str, float]:
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        truth.dataset = {"images": images, "annotations": annotations, "categories": [{"id": n} for n in (1, 2, 3)]}
        truth.createIndex()
        judge = cocoeval.COCOeval(truth, truth.loadRes(detections), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return dict(zip(("ap", "ap50", "ap75"), judge.stats[:3].tolist(), strict=True))


def boxes_of(things: list[tuple[int, list[float], float]], ignored: list[bool] | None = None) -> ImageBoxes:
    corners = torch.tensor([box for _, box, _ in things], dtype=torch.float64).view(-1, 4)
    labels = torch.tensor([label for label, _, _ in things], dtype=torch.int64)
    sure = torch.tensor([sure for _, _, sure in things], dtype=torch.float64)
    return ImageBoxes(corners, labels, sure, None if ignored is None else torch.tensor(ignored, dtype=torch.bool))


@pytest.mark.parametrize("seed", range(12))
def test_average_precision_of_files_with_crowds_masks_and_ids_of_every_kind(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    images = [{"id": n, "file_name": f"{n}.png", "width": WIDTH, "height": HEIGHT} for n in range(1, 7)]
    written, meant, detections = [], [], []
    for image in images:
        (tmp_path / image["file_name"]).write_bytes(b"")
        for _ in range(draw.randint(1, 5)):
            annotation, box = random_annotation(len(written) + 1, image["id"], draw)
            meant.append({**annotation, "bbox": box, "area": box[2] * box[3]})
            annotation["image_id"] = spelled(image["id"], draw)
            annotation["category_id"] = spelled(annotation["category_id"], draw)
            written.append(annotation)
            for _ in range(draw.randint(0, 3)):  # near it, or smaller and inside
                left, top, width, height = box
                moved = [left + draw.randint(0, 3), top + draw.randint(0, 3), width * draw.choice([0.5, 1]), height]
                one = {"image_id": image["id"], "category_id": draw.choice([meant[-1]["category_id"], 1])}
                detections.append({**one, "bbox": moved, "score": draw.random()})
        image["id"] = spelled(image["id"], draw)
    categories = [{"id": spelled(n, draw), "name": f"c{n}"} for n in (1, 2, 3)]
    (tmp_path / "c.json").write_text(json.dumps({"images": images, "annotations": written, "categories": categories}))
    read = read_annotations("valid", [str(tmp_path / "c.json"), str(tmp_path)], Notices())
    assert read.classes == ["c1", "c2", "c3"]
    truth, submitted = [], []
    for number, image in enumerate(read.images, 1):
        things = image.usable((HEIGHT, WIDTH), Notices())
        assert things is not None
        rows = [(int(thing.name[1]) - 1, list(thing.box), 1.0) for thing in things]
        truth.append(boxes_of(rows, [thing.ignored for thing in things]))
        of_image = []
        for found in detections:
            if found["image_id"] == number:
                left, top, width, height = found["bbox"]
                box = [left, top, left + width, top + height]
                of_image.append((found["category_id"] - 1, box, found["score"]))
        submitted.append(boxes_of(of_image))
    expected = theirs([{"id": n} for n in range(1, 7)], meant, detections)
    assert average_precision(submitted, truth, 3) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_boxes_around_masks(seed: int) -> None:
    draw = random.Random(seed)
    pixels = random_mask(draw)
    encoded = mask.encode(pixels)
    left, top, width, height = mask.toBbox(encoded).tolist()
    expected = (left, top, left + width, top + height), (HEIGHT, WIDTH)
    for counts in (encoded["counts"].decode(), uncompressed(pixels)):
        assert mask_box({"size": [HEIGHT, WIDTH], "counts": counts}) == expected


def test_a_polygon_is_at_most_a_pixel_off_its_mask() -> None:
    """pycocotools draws polygons on the grid of pixels; the box here is that of the points."""
    polygon = [10.2, 5.1, 40.7, 8.3, 22.9, 30.6]
    (encoded,) = mask.frPyObjects([polygon], HEIGHT, WIDTH)
    left, top, width, height = mask.toBbox(encoded).tolist()
    corners, size = mask_box([polygon])
    assert corners == (10.2, 5.1, 40.7, 30.6)
    assert corners == pytest.approx((left, top, left + width, top + height), abs=1)
    assert size is None


def test_detections_in_a_crowd_are_no_mistakes() -> None:
    """One object found, three detections in a crowd."""
    things = [AnnotatedObject("x", (10, 10, 30, 30)), AnnotatedObject("x", (58, 8, 98, 33), ignored=True)]
    usable = usable_boxes(things, 50, 100, "a.png", Notices())
    truth = boxes_of([(0, list(thing.box), 1.0) for thing in usable], [thing.ignored for thing in usable])
    found = [(0, [10, 10, 30, 30], 0.7), *((0, [left, 10, left + 10, 30], 0.9) for left in (60, 72, 84))]
    assert average_precision([boxes_of(found)], [truth], 1)["ap"] == pytest.approx(1.0)
    alone = boxes_of([(0, [10, 10, 30, 30], 1.0)])
    assert average_precision([boxes_of(found)], [alone], 1)["ap"] == pytest.approx(0.25)
