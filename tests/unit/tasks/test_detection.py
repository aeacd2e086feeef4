import json
import math
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import jarilab
from jarilab.cli import main
from jarilab.core.errors import UserError
from jarilab.models.detector import Detector
from jarilab.nn.init import generator_for
from jarilab.positions.boxes import Detected, iou_and_giou, to_xyxy
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_metrics
from jarilab.tasks import detection, detection_loss
from jarilab.tasks.base import Batch, evenly
from jarilab.tasks.detection import Detection
from jarilab.tasks.detection_data import flipped, padded_batch
from jarilab.tasks.detection_loss import Objects, matched
from jarilab.tasks.detection_metrics import ImageBoxes, average_precision
from jarilab.tasks.predictors.detection import DetectionResult
from jarilab.training import loop
from jarilab.training.distributed.batch_rows import even_parts, rows_of

pytest.importorskip("sklearn")
pytest.importorskip("pycocotools")

TINY = {
    "model.d_model": 16,
    "model.n_heads": 2,
    "model.n_encoder_layers": 1,
    "model.n_decoder_layers": 2,
    "model.d_ff": 32,
}


def found_by_chance(n_layers: int = 2, batch_size: int = 3, queries: int = 4, classes: int = 5) -> Detected:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(n_layers, batch_size, queries, classes + 1, generator=generator, requires_grad=True)
    return Detected(scores, torch.rand(n_layers, batch_size, queries, 4, generator=generator).requires_grad_())


def objects(*images: list[tuple[int, list[float]]]) -> Objects:
    most = max(len(image) for image in images)
    labels, boxes = torch.zeros(len(images), most, dtype=torch.long), torch.zeros(len(images), most, 4)
    real = torch.zeros(len(images), most, dtype=torch.bool)
    for row, image in enumerate(images):
        for i, (label, box) in enumerate(image):
            labels[row, i], boxes[row, i], real[row, i] = label, torch.tensor(box), True
    return Objects(labels, boxes, real)


SOME = objects([(1, [0.5, 0.5, 0.2, 0.2]), (0, [0.1, 0.2, 0.1, 0.1])], [], [(4, [0.9, 0.9, 0.2, 0.1])])


def test_matching_is_the_cheapest_of_all() -> None:
    """Against every way to pair, counted out."""
    chance = found_by_chance()
    detected = Detected(chance.scores.detach(), chance.boxes.detach())
    layer, image, query, thing = matched(detected, SOME)
    for s in range(2):
        for b in range(3):
            count = int(SOME.real[b].sum())
            here = (layer == s) & (image == b)
            pairs = dict(zip(thing[here].tolist(), query[here].tolist(), strict=True))
            assert sorted(pairs) == list(range(count))

            def cost(chosen: tuple[int, ...], s: int = s, b: int = b) -> float:
                total = 0.0
                for i, q in enumerate(chosen):
                    box, there = detected.boxes[s, b, q], SOME.boxes[b, i]
                    total -= float(detected.scores[s, b, q].softmax(-1)[SOME.labels[b, i]])
                    total += 5 * float((box - there).abs().sum())
                    total -= 2 * float(iou_and_giou(to_xyxy(box), to_xyxy(there))[1])
                return total

            if count:
                best = min(permutations(range(4), count), key=cost)
                assert [pairs[i] for i in range(count)] == list(best)


def test_the_loss_is_that_of_the_paper_for_one_layer() -> None:
    chance = found_by_chance(n_layers=1)
    detected = Detected(chance.scores.detach(), chance.boxes.detach())
    parts = detection_loss.loss(detected, SOME, 0.1)
    _, image, query, thing = matched(detected, SOME)
    labels = torch.full((3, 4), 5)
    labels[image, query] = SOME.labels[image, thing]
    weights = torch.tensor([1.0] * 5 + [0.1])[labels]
    log_p = detected.scores[0].log_softmax(-1).gather(-1, labels.unsqueeze(-1))[..., 0]
    assert parts["classes"].item() == pytest.approx(float(-(weights * log_p).sum() / weights.sum()), rel=1e-5)
    boxes, there = detected.boxes[0, image, query], SOME.boxes[image, thing]
    assert parts["l1"].item() == pytest.approx(5 * float((boxes - there).abs().sum()) / 3, rel=1e-5)
    giou = iou_and_giou(to_xyxy(boxes), to_xyxy(there))[1]
    assert parts["giou"].item() == pytest.approx(2 * float((1 - giou).sum()) / 3, rel=1e-5)


def test_each_layer_is_matched_afresh_and_adds_its_loss() -> None:
    chance = found_by_chance()
    detected = Detected(chance.scores.detach(), chance.boxes.detach())
    both = detection_loss.loss(detected, SOME, 0.1)
    alone = [detection_loss.loss(Detected(detected.scores[[s]], detected.boxes[[s]]), SOME, 0.1) for s in range(2)]
    for name, value in both.items():
        assert value.item() == pytest.approx(sum(part[name].item() for part in alone), rel=1e-5)
    swapped = Detected(detected.scores[:, :, [2, 0, 1, 3]], detected.boxes[:, :, [2, 0, 1, 3]])
    assert detection_loss.loss(swapped, SOME, 0.1)["l1"].item() == pytest.approx(both["l1"].item(), rel=1e-5)


def test_images_without_objects_teach_nothing_but_nothing() -> None:
    detected = found_by_chance(batch_size=1)
    parts = detection_loss.loss(detected, objects([]), 0.1)
    assert parts["l1"].item() == parts["giou"].item() == 0
    assert parts["classes"].item() > 0
    sum(parts.values(), torch.zeros(())).backward()
    assert detected.scores.grad is not None
    assert (detected.scores.grad[..., -1] < 0).all()


def test_more_objects_than_queries_are_matched_as_far_as_they_go() -> None:
    many = objects([(n % 5, [0.1 * n + 0.1, 0.5, 0.1, 0.1]) for n in range(7)])
    detected = found_by_chance(n_layers=1, batch_size=1)
    _, _, query, thing = matched(detected, many)
    assert sorted(query.tolist()) == [0, 1, 2, 3]
    assert len(set(thing.tolist())) == 4


def test_objects_are_taught_wherever_they_stand_in_a_row() -> None:
    """A scene lacks each digit that found no place, not only the last ones."""
    first, last = (1, [0.5, 0.5, 0.2, 0.2]), (4, [0.1, 0.2, 0.1, 0.1])
    several = objects([first, (0, [0.7, 0.7, 0.2, 0.2]), last])
    gap = Objects(several.labels, several.boxes, torch.tensor([[True, False, True]]))
    detected = found_by_chance(batch_size=1)
    _, _, query, thing = matched(detected, gap)
    _, _, there, other = matched(detected, objects([first, last]))
    assert (query.tolist(), thing.tolist()) == (there.tolist(), (2 * other).tolist())
    assert detection_loss.loss(detected, gap, 0.1) == detection_loss.loss(detected, objects([first, last]), 0.1)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_losses_of_parts_of_a_batch_are_that_of_the_batch(parts: int, smoothing: float) -> None:
    """Classes and boxes each by their own number: one image has no object, one more than there are queries."""
    box = [0.5, 0.5, 0.2, 0.2]
    several = objects([(1, box), (0, [0.1, 0.2, 0.1, 0.1])], [], [(label, box) for label in (4, 3, 2, 1, 0)])
    detected = found_by_chance()
    batch_counts = detection_loss.loss_counts(detected, several, 0.1)
    total = 0.0
    for rows in even_parts(3, parts):
        part_detected, piece = Detected(detected.scores[:, rows], detected.boxes[:, rows]), rows_of(several, rows)
        terms = detection_loss.loss(part_detected, piece, 0.1, smoothing).values()
        counts = detection_loss.loss_counts(part_detected, piece, 0.1)
        total += sum(term.item() * n / count for term, n, count in zip(terms, counts, batch_counts, strict=True))
    expected = detection_loss.loss(detected, several, 0.1, smoothing)
    assert total == pytest.approx(sum(term.item() for term in expected.values()), rel=1e-6)


def test_what_is_not_finite_is_matched_somehow_and_told_by_the_loss() -> None:
    detected = found_by_chance()
    broken = Detected(detected.scores, detected.boxes * math.nan)
    assert sum(detection_loss.loss(broken, SOME, 0.1).values(), torch.zeros(())).isnan()


def with_region(many: Objects, box: list[float]) -> Objects:
    """The same objects, with an ignored region behind those of the first image."""
    room = torch.zeros(len(many), 1)
    boxes = torch.cat((many.boxes, room.unsqueeze(-1).expand(-1, -1, 4)), 1)
    count = int(many.real[0].sum())
    boxes[0, count] = torch.tensor(box)
    real = torch.cat((many.real, room.bool()), 1)
    ignored = torch.zeros_like(real)
    ignored[0, count] = True
    return Objects(torch.cat((many.labels, room.long()), 1), boxes, real, ignored)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_queries_in_an_ignored_region_are_taught_nothing(smoothing: float) -> None:
    """By hand: what lies in it with half of its area adds no loss, whatever class it says; what is matched does."""
    detected = found_by_chance(n_layers=1, queries=6)
    whole, none = with_region(SOME, [0.5, 0.5, 1.0, 1.0]), with_region(SOME, [0.99, 0.01, 0.001, 0.001])
    plain = detection_loss.loss(detected, SOME, 0.1, smoothing)
    for name, value in detection_loss.loss(detected, none, 0.1, smoothing).items():
        assert value.item() == plain[name].item()
    terms = detection_loss.loss(detected, whole, 0.1, smoothing)
    assert terms["l1"].item() == plain["l1"].item()
    _, image, query, thing = matched(detected, SOME)
    labels = torch.full((3, 6), 5)
    labels[image, query] = SOME.labels[image, thing]
    weights = torch.tensor([1.0] * 5 + [0.1])
    losses = functional.cross_entropy(
        detected.scores[0].flatten(0, 1), labels.flatten(), weights, label_smoothing=smoothing, reduction="none"
    ).view(3, 6)
    losses[0] = losses[0] * (labels[0] != 5)
    by_hand = losses.sum().item() / weights[labels].sum().item()
    assert terms["classes"].item() == pytest.approx(by_hand, rel=1e-5)
    (grad,) = torch.autograd.grad(terms["classes"], detected.scores)
    assert torch.equal(grad[0, 0].abs().sum(-1) > 0, labels[0] != 5)
    assert detection_loss.loss_counts(detected, whole, 0.1) == detection_loss.loss_counts(detected, SOME, 0.1)


def test_a_batch_of_crowds_alone_has_a_finite_loss() -> None:
    crowd = with_region(objects([]), [0.5, 0.5, 1.0, 1.0])
    terms = detection_loss.loss(found_by_chance(batch_size=1), crowd, 0.1)
    assert [term.item() for term in terms.values()] == [0, 0, 0]


def test_average_precision_is_coco_s() -> None:
    there = [ImageBoxes(torch.tensor([[0.0, 0.0, 10.0, 10.0]]), torch.tensor([1]), torch.ones(1))] * 2
    right = ImageBoxes(there[0].boxes, torch.tensor([1]), torch.tensor([0.9]))
    # Moved by 2 of 10 pixels: IoU 8 / 12, so right at 0.50, 0.55, 0.60 and 0.65.
    near = ImageBoxes(there[0].boxes + torch.tensor([2.0, 0.0, 2.0, 0.0]), torch.tensor([1]), torch.tensor([0.8]))
    wrong = ImageBoxes(there[0].boxes, torch.tensor([2]), torch.tensor([0.8]))
    assert average_precision([right, right], there, 3) == {"ap": 1.0, "ap50": 1.0, "ap75": 1.0}
    half = 51 / 101  # of the 101 recalls asked for, up to 0.5
    assert average_precision([right, wrong], there, 3)["ap"] == pytest.approx(half)
    metrics = average_precision([right, near], there, 3)
    assert metrics["ap50"] == pytest.approx(1.0)
    assert metrics["ap75"] == pytest.approx(half)
    assert metrics["ap"] == pytest.approx((4 * 1 + 6 * half) / 10)


def test_average_precision_counts_what_is_unsure_and_says_nothing_aloud(capfd: pytest.CaptureFixture[str]) -> None:
    there = [ImageBoxes(torch.tensor([[0.0, 0.0, 10.0, 10.0]]), torch.tensor([0]), torch.ones(1))]
    unsure = ImageBoxes(there[0].boxes, torch.tensor([0]), torch.tensor([1e-6]))
    assert average_precision([unsure], there, 1)["ap"] == pytest.approx(1.0)
    nothing = ImageBoxes(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), torch.zeros(0))
    assert average_precision([nothing], there, 1)["ap"] == 0.0
    assert average_precision([unsure], [nothing], 1)["ap"] == 0.0
    assert capfd.readouterr() == ("", "")


# The task -------------------------------------------------------------------------------------------------------------


def task(**options: Any) -> Detection:
    made = Detection(**options)
    made.prepare()
    return made


def test_scenes_train_and_hold_out_other_digits() -> None:
    made = task(min_digits=0)
    batch = made.training_batch(torch.arange(16), generator_for(1, "x"))
    assert len(batch.labels) == 16
    images = batch.inputs[0].pixels
    assert images.shape == (16, 1, 48, 48)
    assert abs(float(images.mean())) < 0.3
    assert made.model_options == {"channels": 1, "classes": 10}
    assert made.training_size == 1_000_000
    assert "1,437 digits" in made.describe()
    assert made.fingerprint() == task(min_digits=0).fingerprint() != task(min_digits=0, largest=20).fingerprint()
    assert made.notices() == []


def photographs(folder: Path, count: int = 30, **changed: list[float]) -> list[str]:
    """Images of 40 x 20 pixels with one bright box each; `p3=[...]` changes the box of number 3."""
    from PIL import Image

    (folder / "images").mkdir()
    images, annotations = [], []
    for n in range(count):
        image = Image.new("RGB", (40, 20), (20, 30, 40))
        left, top, width, height = 2 + n % 20, 3, 10, 8
        image.paste((250, 200 if n % 2 else 20, 20), (left, top, left + width, top + height))
        image.save(folder / "images" / f"p{n}.png")
        images.append({"id": n, "file_name": f"p{n}.png"})
        box = changed.get(f"p{n}", [left, top, width, height])
        annotations.append({"id": n, "image_id": n, "category_id": 1 + n % 2, "bbox": box})
    categories = [{"id": 1, "name": "red"}, {"id": 2, "name": "yellow"}]
    held = {"images": images, "categories": categories, "annotations": annotations}
    (folder / "coco.json").write_text(json.dumps(held))
    return [str(folder / "coco.json"), str(folder / "images")]


def test_photographs_are_scaled_and_their_boxes_are_shares(tmp_path: Path) -> None:
    made = task(train=tuple(photographs(tmp_path)), size=20)
    assert made.classes == ["red", "yellow"]
    assert made.training_size + len(made.held_out) == 30
    assert 0 < len(made.held_out) < 12
    batch = made.training_batch(torch.arange(2), generator_for(1, "x"))
    assert batch.inputs[0].pixels.shape == (2, 3, 10, 20)
    box = batch.labels.boxes[0, 0]
    assert box[2:].tolist() == pytest.approx([10 / 40, 8 / 20])
    bright = batch.inputs[0].pixels[0, 0] > 0.5
    columns = bright.any(0).nonzero()[:, 0].tolist()
    assert columns[0] == pytest.approx(20 * float(box[0] - box[2] / 2), abs=1.01)
    image = made.read("#0")
    assert image.size == (20, 40)


def test_a_photograph_stored_as_jpeg_keeps_its_size(tmp_path: Path) -> None:
    """Large ones are decoded smaller, and boxes are in the pixels of the file."""
    from PIL import Image

    paths = photographs(tmp_path)
    for path in (tmp_path / "images").glob("*.png"):
        Image.open(path).resize((640, 320)).save(path, format="JPEG")
    held = json.loads(Path(paths[0]).read_text())
    for annotation in held["annotations"]:
        annotation["bbox"] = [16 * side for side in annotation["bbox"]]
    Path(paths[0]).write_text(json.dumps(held))
    made = task(train=tuple(paths), size=32, valid=tuple(paths))
    assert made.read("#0").size == (320, 640)
    assert made.notices() == []


def test_what_a_list_holds_out_is_read_as_large_as_asked_for(tmp_path: Path) -> None:
    """However small the images to train on are."""
    from PIL import Image

    lists = tmp_path / "ImageSets" / "Main"
    for folder in (lists, tmp_path / "Annotations", tmp_path / "JPEGImages"):
        folder.mkdir(parents=True)
    box = "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>12</xmax><ymax>11</ymax></bndbox>"
    for name, width, part in (("small", 32, "train"), ("large", 64, "val")):
        Image.new("RGB", (width, 16)).save(tmp_path / "JPEGImages" / f"{name}.png")
        (tmp_path / "Annotations" / f"{name}.xml").write_text(f"<a><object><name>x</name>{box}</object></a>")
        (lists / f"{part}.txt").write_text(f"{name}\n")
    made = task(train=(str(tmp_path),), size=64)
    assert made.training_batch(torch.arange(1), generator_for(1, "x")).inputs[0].pixels.shape[2:] == (16, 32)
    assert made.read("#0").pixels.shape[1:] == (16, 64)


def changed(paths: list[str], change: Any) -> None:
    held = json.loads(Path(paths[0]).read_text())
    for part in ("images", "annotations"):
        for record in held[part]:
            change(part, record)
    Path(paths[0]).write_text(json.dumps(held))


def test_crowds_reach_the_loss_and_ap_and_are_no_objects(tmp_path: Path) -> None:
    paths = photographs(tmp_path, 4)
    plain = task(train=tuple(paths), valid=tuple(paths))

    def crowd(part: str, record: dict[str, Any]) -> None:
        if part == "annotations" and record["id"] in (0, 1):
            record["iscrowd"] = 1

    changed(paths, crowd)
    made = task(train=tuple(paths), valid=tuple(paths))
    assert made.describe() == "4 images with 2 objects of 2 classes; 4 held out"
    assert made.fingerprint() != plain.fingerprint()
    batch = made.training_batch(torch.tensor([0, 2]), generator_for(1, "x"))
    assert batch.labels.real.tolist() == [[False], [True]]
    assert batch.labels.ignored.tolist() == [[True], [False]]

    class Perfect:
        """Finds all that there is, crowds twice."""

        def scores(self, batch: Any) -> Detected:
            boxes = batch.labels.boxes.repeat(1, 2, 1)
            scores = torch.zeros(len(boxes), 2, 3)
            scores[..., 2] = 5
            scores.scatter_(2, batch.labels.labels.repeat(1, 2).unsqueeze(-1), 20)
            scores[batch.labels.real[:, 0], 1] = torch.tensor([0.0, 0.0, 20.0])
            return Detected(scores[None], boxes[None])

    assert made.evaluate(Perfect())["ap"] == pytest.approx(1.0)
    assert plain.evaluate(Perfect())["ap"] == pytest.approx(1.0)


def test_images_turned_by_exif_fit_the_size_they_are_seen_in(tmp_path: Path) -> None:
    from PIL import Image

    paths = photographs(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("p0", "p1"):
        path = tmp_path / "images" / f"{name}.png"
        Image.open(path).transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    sizes = {"p1.png": (20, 40), "p3.png": (80, 40)}

    def size(part: str, record: dict[str, Any]) -> None:
        if part == "images":
            record["width"], record["height"] = sizes.get(record["file_name"], (40, 20))

    changed(paths, size)
    made = task(train=tuple(paths), valid=tuple(paths))
    assert made.training_size == 28
    assert made.notices()[0].endswith(": 2 (p1.png: 20 x 40 for 40 x 20, p3.png: 80 x 40 for 40 x 20)")
    assert made.training_batch(torch.arange(1), generator_for(1, "x")).inputs[0].pixels.shape[2:] == (20, 40)


def test_boxes_in_other_units_are_refused_as_a_whole(tmp_path: Path) -> None:
    paths = photographs(tmp_path)

    def shares(part: str, record: dict[str, Any]) -> None:
        if part == "annotations":
            record["bbox"] = [side / 40 for side in record["bbox"]]

    changed(paths, shares)
    with pytest.raises(UserError, match="got numbers from 0 to 1 only, as shares of the image; multiply"):
        task(train=tuple(paths))

    def corners(part: str, record: dict[str, Any]) -> None:
        if part == "annotations":
            left, top, width, height = (40 * side for side in record["bbox"])
            record["bbox"] = [left, top, left + width, top + height]

    changed(paths, corners)
    with pytest.raises(UserError, match="subtract left and top from the last two numbers"):
        task(train=tuple(paths))


def test_bad_boxes_and_files_are_counted_and_named(tmp_path: Path) -> None:
    bad = {
        "p1": [5, 5, -3, 4],
        "p3": [5, 5, 0, 4],
        "p5": [50, 5, 3, 4],
        "p7": [30, 5, 30, 4],
        "p9": [1, float("nan"), 2, 3],
    }
    paths = photographs(tmp_path, **bad)
    (tmp_path / "images" / "p11.png").unlink()
    (tmp_path / "images" / "p13.png").write_bytes(b"no image")
    text = "\n".join(task(train=tuple(paths)).notices())
    for notice in (
        "before the left or top one: 1 (yellow in p1.png)",
        "which have no area: 1 (yellow in p3.png)",
        "which lie outside their image: 1 (yellow in p5.png)",
        "cut there: 1 (yellow in p7.png)",
        "which are not four finite numbers: 1 (yellow in p9.png)",
        "none of whose boxes is usable: 4 (p1.png, p3.png, p5.png and 1 more)",
        "whose file is missing: 1 (p11.png)",
        "which cannot be read as images: 1 (p13.png)",
    ):
        assert notice in text


def test_classes_that_were_not_trained_on_are_counted(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    train, valid = photographs(tmp_path), photographs(tmp_path / "more", 4)
    held = json.loads(Path(valid[0]).read_text())
    held["categories"][1]["name"] = "blue"
    Path(valid[0]).write_text(json.dumps(held))
    made = task(train=tuple(train), valid=tuple(valid))
    assert any("do not have: 2 (blue in p1.png, blue in p3.png)" in line for line in made.notices())
    assert made.training_size == 30


def test_unreadable_files_are_counted_for_each_reading_and_told(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    train, valid = photographs(tmp_path, 42), photographs(tmp_path / "more", 3)
    for broken in ("images/p1.png", "images/p3.png", "more/images/p2.png"):
        (tmp_path / broken).write_bytes(b"no image")
    made = task(train=tuple(train), valid=tuple(valid))
    (of_train, of_valid) = made.notices()
    assert of_train.startswith("files left out, which cannot be read as images: 2 (p1.png, p3.png)")
    assert of_valid.startswith("held out: files left out, which cannot be read as images: 1 (p2.png)")
    assert made.held_out_notices() == [of_valid.removeprefix("held out: ")]
    made.hold_out(train)
    assert made.held_out_notices() == [of_train]


def test_few_held_out_images_are_told_where_nobody_named_them(tmp_path: Path) -> None:
    paths = tuple(photographs(tmp_path))
    made = task(train=paths)
    count = len(made.held_out)
    notice = f"only {count} of 30 images are held out, so that one alone counts for {100 / count:.1f} % of the score; "
    assert made.notices() == made.held_out_notices() == [notice + "name more with --valid"]
    assert task(train=paths, valid=paths).notices() == []


def test_nothing_usable_and_too_few_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected objects with boxes; got none that can be used"):
        task(train=tuple(photographs(tmp_path, 1, p0=[5, 5, 0, 0])))
    (tmp_path / "one").mkdir()
    with pytest.raises(UserError, match="1 image is too few to hold some out"):
        task(train=tuple(photographs(tmp_path / "one", 1)))
    with pytest.raises(UserError, match="expected images of the same kind as"):
        task(valid=("coco.json", "images"))


def test_more_things_than_queries_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a scene has up to 3; use model\.queries=3 or more"):
        task().check_model({"queries": 2})
    paths = photographs(tmp_path)
    held = json.loads(Path(paths[0]).read_text())
    held["annotations"] *= 3
    Path(paths[0]).write_text(json.dumps(held))
    made = task(train=tuple(paths), valid=tuple(paths))
    made.check_model({"queries": 3})
    assert made.notices() == []
    made.check_model({"queries": 2})
    assert len(made.notices()) == 2
    assert "more objects than the 2 queries, up to 3 (p0.png, p1.png, " in made.notices()[0]
    assert "model.queries=3" in made.notices()[0]


def test_images_of_several_sizes_are_padded() -> None:
    small, large = torch.full((3, 2, 5), 7, dtype=torch.uint8), torch.full((3, 4, 3), 9, dtype=torch.uint8)
    images = padded_batch([small, large])
    assert images.pixels.shape == (2, 3, 4, 5)
    assert images.keep is not None
    assert images.keep.sum((1, 2)).tolist() == [10, 12]
    assert images.pixels[0].sum() == 7 * 30
    assert padded_batch([small, small]).keep is None


def test_flipping_moves_boxes_with_their_images(tmp_path: Path) -> None:
    paths = tuple(photographs(tmp_path))
    plain, flipping = task(train=paths, size=40), task(train=paths, size=40, flip=True)
    numbers = torch.arange(20)
    one, other = (t.training_batch(numbers, generator_for(1, "x")) for t in (plain, flipping))
    moved = (one.labels.boxes != other.labels.boxes).any(-1).any(-1)
    assert 3 < int(moved.sum()) < 17
    for row in range(20):
        left, top, right, bottom = (to_xyxy(other.labels.boxes[row, 0]) * torch.tensor([40, 20, 40, 20])).round().int()
        bright = other.inputs[0].pixels[row, 0] > 0.5
        assert bright[top:bottom, left:right].all()
        assert int(bright.sum()) == 80


def test_padding_stays_where_it_is_when_images_areflipped() -> None:
    from jarilab.positions.patches import Images

    pixels = torch.tensor([[[[1.0, 2.0, 0.0]]]] * 8)
    keep = torch.tensor([[[True, True, False]]] * 8)
    batch = objects(*[[(0, [0.25, 0.5, 0.5, 1.0])]] * 8)
    images, there = flipped(Images(pixels, keep), batch, torch.Generator().manual_seed(0))
    rows = {(tuple(p[0, 0].tolist()), b[0, 0].item()) for p, b in zip(images.pixels, there.boxes, strict=True)}
    assert rows == {((1.0, 2.0, 0.0), 0.25), ((2.0, 1.0, 0.0), 0.75)}
    assert torch.equal(images.keep, keep)  # type: ignore[arg-type]


class Knowing:
    """A learner that says the truth, in the form of a model."""

    model = judge = None

    def write(self, sources: Any) -> list[list[int]]:
        raise NotImplementedError

    def most_attended(self, source: Any, written: Any) -> list[int]:
        raise NotImplementedError

    def scores(self, batch: Any) -> Detected:
        there = batch.labels
        scores = functional.one_hot(torch.where(there.real, there.labels, 10), 11).float() * 20
        return Detected(scores.unsqueeze(0), there.boxes.unsqueeze(0))


def test_the_truth_has_an_average_precision_of_1() -> None:
    measured = task(min_digits=0).evaluate(Knowing(), 100)
    assert measured["ap"] == measured["ap50"] == pytest.approx(1.0)
    assert measured["examples"] == 100


class Constant(Knowing):
    """A learner that says the same of every image."""

    def scores(self, batch: Any) -> Detected:
        scores = torch.zeros(2, len(batch.labels), 5, 11)
        scores[..., 10] = 2
        return Detected(scores, torch.full((2, len(batch.labels), 5, 4), 0.4))


def test_the_held_out_loss_does_not_depend_on_what_is_measured_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made, empty = task(min_digits=0), objects([], [])
    losses = []
    for at_once in (1, 7, 60):
        monkeypatch.setattr(detection, "AT_ONCE", at_once)
        losses.append(made.evaluate(Constant(), 60)["loss"])
    whole = made._batch(made.held_out, evenly(len(made.held_out), 60))
    batch = Batch((whole[0],), whole[1])
    assert losses == pytest.approx([float(made.loss(Constant().scores(batch), batch))] * 3, rel=1e-6)
    monkeypatch.setattr(type(made.held_out), "objects", lambda images, numbers: empty)
    assert made.evaluate(Constant(), 2)["loss"] == pytest.approx(2 * (math.log(10 + math.e**2) - 2))


def test_what_is_said_is_in_pixels_of_the_file_the_surest_first(tmp_path: Path) -> None:
    made = task(train=tuple(photographs(tmp_path)), size=20)
    scores = torch.tensor([[[[0.0, 1.0, 2.0], [5.0, 0.0, 0.0]]]])
    outputs = Detected(scores, torch.tensor([[[[0.5, 0.5, 0.5, 0.5], [0.25, 0.5, 0.1, 0.2]]]]))
    ((first, second),) = made.interpret(outputs, [made.read(str(tmp_path / "images" / "p0.png"))])
    assert first.box == pytest.approx((8, 8, 12, 12))
    assert (first.number, second.number) == (0, 1)
    assert first.probability == pytest.approx(float(scores[0, 0, 1].softmax(-1)[0]))
    assert second.box == pytest.approx((10, 5, 30, 15))


def test_held_out_images_have_numbers() -> None:
    made = task()
    assert made.sample_inputs() == ["#0", "#1", "#2", "#3"]
    expected = made.expected("#2")
    assert expected is not None
    assert set(expected) <= set("0123456789, ")
    assert made.expected("image.png") is None
    for wrong in ("#1000", "#-1", "#x"):
        with pytest.raises(UserError, match="#0 to #999"):
            made.read(wrong)


@pytest.mark.slow
def test_a_run_trains_goes_on_and_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**TINY, "training.examples": 32 * 6, "training.evaluations": 2, "training.evaluation_examples": 20}
    experiment = Experiment.of("detection", settings=settings, precision="float32")
    first = loop.train(experiment, tmp_path / "run", threads=1)
    assert 0 <= first["ap"] <= 1
    assert first["metric"] == "ap"
    assert {"ap50", "ap75", "loss"} <= first.keys()
    rows = read_metrics(tmp_path / "run")
    assert rows[-1]["loss"] < rows[0]["loss"]
    again = experiment.resolved.build_task(tmp_path / "run")
    model = experiment.resolved.build_model(again)
    assert isinstance(model, Detector)
    image = again.read("#0")
    assert len(again.interpret(model(again.sources([image])), [image])[0]) == 8  # type: ignore[attr-defined]
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), "#0", "--threshold", "1"]) == 0
    output = capsys.readouterr()
    assert (output.out, output.err) == (
        "",
        "jarilab: #0: no object is as probable as --threshold; lower it to see more\n",
    )
    assert main(["predict", str(tmp_path / "run"), "#0", "--threshold", "0"]) == 0
    output = capsys.readouterr()
    assert (len(output.out.splitlines()), output.err) == (8, "")


def drawn(run: Path, out: Path | str, *images: str, **options: Any) -> DetectionResult:
    (result,) = jarilab.predict(run, images or ["#3"], draw=str(out), **options)
    assert isinstance(result, DetectionResult)
    return result


def test_what_is_found_is_what_each_query_says_and_is_drawn(image_runs: Path, tmp_path: Path) -> None:
    run = image_runs / "detection"
    opened = jarilab.load(run)
    image = opened.task.read("#3")
    with torch.no_grad():
        (labels,) = opened.task.interpret(opened.model(opened.task.sources([image])), [image])
    everything = drawn(run, tmp_path / "all.PNG", threshold=0)
    assert [(one.label, one.probability, one.box) for one in everything.objects] == [
        (opened.task.classes[one.number], one.probability, one.box) for one in labels
    ]
    record = everything.record()
    assert (record["input"], record["error"], len(record["objects"])) == ("#3", None, 4)
    assert "".join(everything.text()).count("\n") == 4
    sure = labels[1].probability
    (some,) = jarilab.predict(run, ["#3"], threshold=sure)
    assert some.objects == everything.objects[:2]
    nothing = drawn(run, tmp_path / "nothing.png", threshold=1)
    assert (nothing.objects, "".join(nothing.text())) == ((), "")
    pillow = pytest.importorskip("PIL.Image")
    with pillow.open(tmp_path / "all.PNG") as boxed, pillow.open(tmp_path / "nothing.png") as plain:
        assert boxed.size == plain.size
        assert boxed.tobytes() != plain.tobytes()


def test_an_image_that_cannot_be_read_gets_its_error_and_stops_nothing(image_runs: Path, tmp_path: Path) -> None:
    wrong = UserError("byte 3 is no UTF-8")
    missing, unread, detected = jarilab.predict(image_runs / "detection", [Path("no.png"), wrong, "#3"], threshold=0)
    assert missing.input == "no.png"
    assert "no.png" in str(missing.error)
    assert (unread.input, unread.messages) == ("", ["byte 3 is no UTF-8"])
    assert len(detected.objects) == 4
    assert drawn(image_runs / "detection", tmp_path / "x.png", "no.png").error is not None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("threshold", [-0.1, 1.1])
def test_a_threshold_is_a_probability(image_runs: Path, threshold: float) -> None:
    with pytest.raises(UserError, match=rf"threshold: expected [01] or (more|less), got {threshold}"):
        jarilab.predict(image_runs / "detection", ["#3"], threshold=threshold)


def test_an_image_is_drawn_over_no_folder_and_one_at_a_time(image_runs: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match=r"folder\.png is there already and no file that could be replaced"):
        drawn(image_runs / "detection", tmp_path / "folder.png")
    with pytest.raises(UserError, match="--draw: expected one image, got 2; give one"):
        drawn(image_runs / "detection", tmp_path / "two.png", "#3", "#4")


@pytest.mark.parametrize("name", ["o.jpg", "o", "png", "o.png.gif", ""])
def test_an_image_is_drawn_as_png_only(image_runs: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"expected a name that ends in \.png, since PNG is what is written"):
        drawn(image_runs / "detection", tmp_path / name)
    assert not list(tmp_path.iterdir())
    drawn(image_runs / "detection", tmp_path / "o.PNG")
    assert (tmp_path / "o.PNG").read_bytes().startswith(b"\x89PNG")


def test_an_image_is_not_drawn_over_itself(image_runs: Path, tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    pytest.importorskip("PIL.Image").new("L", (48, 48), 9).save(image)
    before = image.read_bytes()
    (tmp_path / "link.png").symlink_to(image)
    run = image_runs / "detection"
    for out in (image, tmp_path / "link.png", tmp_path / ".." / tmp_path.name / "image.png"):
        with pytest.raises(UserError, match="expected another file than the image itself, which would be gone"):
            drawn(run, out, str(image))
    assert image.read_bytes() == before
    drawn(run, tmp_path / "other.png", str(image))
    drawn(run, tmp_path / "other.png", str(image))  # what was drawn may be drawn again
    assert (tmp_path / "link.png").is_symlink()


@pytest.mark.long
def test_sixteen_scenes_are_learned_by_heart(tmp_path: Path) -> None:
    settings = {"task.scenes": 16, "training.examples": 16 * 600, "training.batch_size": 16, "training.evaluations": 1}
    experiment = Experiment.of("detection", settings=settings, precision="float32")
    loop.train(experiment, tmp_path / "run", threads=1)
    from jarilab.runs.checkpoint import load_model, newest
    from jarilab.tasks.predictors.base import predictor_for

    learned = experiment.resolved.build_task()
    model = experiment.resolved.build_model(learned)
    begun, _ = newest(tmp_path / "run" / "checkpoints")
    assert begun is not None
    load_model(begun, model, experiment.hash)
    assert isinstance(learned, Detection)
    learned._held_out = learned._training
    assert predictor_for(model, learned).evaluate()["ap"] > 0.95
