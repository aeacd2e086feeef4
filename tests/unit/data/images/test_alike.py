"""Equal and nearly equal images are named before training, by every task on images."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import jarilab
from jarilab.data.images.alike import Thumbnails, find_alike


def picture(seed: int, side: int = 64) -> Image.Image:
    cells = torch.randint(256, (3, 6, 6), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return Image.fromarray(cells.permute(1, 2, 0).numpy()).resize((side, side), Image.Resampling.BICUBIC)


def write_pictures(folder: Path, count: int) -> list[str]:
    """The last one is a smaller and compressed copy of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number}.png" for number in range(count)]
    for number, name in enumerate(names):
        picture(number).save(folder / name)
    picture(0, 48).save(folder / "copy.jpg", quality=80)
    return [*names, "copy.jpg"]


def found(task: str, path: Path, **settings: object) -> list[str]:
    findings = jarilab.api.check_data(task, [str(path)], {f"task.{name}": value for name, value in settings.items()})
    return [finding.line for finding in findings if finding.topic in ("repeats", "overlap")]


def test_images_of_classes_are_compared(tmp_path: Path) -> None:
    for name in "ab":
        write_pictures(tmp_path / "train" / name, 20)
    lines = found("images", tmp_path / "train", size="32", held_out=0.3)
    assert any("an earlier one, or nearly so, such as " in line for line in lines)
    assert any(" a training image, or nearly so" in line for line in lines)


def test_images_with_boxes_are_compared(tmp_path: Path) -> None:
    names = write_pictures(tmp_path, 20)
    images = [{"id": n, "file_name": name} for n, name in enumerate(names)]
    boxes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [5, 5, 20, 20]} for n in range(len(names))]
    record = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "a"}]}
    (tmp_path / "boxes.json").write_text(json.dumps(record))
    findings = jarilab.api.check_data("detection", [str(tmp_path / "boxes.json"), str(tmp_path)], {})
    (line,) = [finding.line for finding in findings if finding.topic in ("repeats", "overlap")]
    assert "1 of " in line
    assert "0.png" in line
    assert "copy.jpg" in line


def test_captioned_images_are_compared(tmp_path: Path) -> None:
    for name in write_pictures(tmp_path, 60):
        (tmp_path / name).with_suffix(".txt").write_text("a picture")
    (line,) = found("captions", tmp_path)
    assert "copy.jpg" in line


def test_other_images_are_not_alike() -> None:
    images = [torch.randint(256, (1, 28, 28), dtype=torch.uint8) for _ in range(40)]
    names = [str(number) for number in range(40)]
    train, held_out = Thumbnails.of(images[:30], names[:30]), Thumbnails.of(images[30:], names[30:])
    assert list(find_alike(train, held_out)) == []
    (finding,) = find_alike(train, Thumbnails.of(images[29:31], ["x", "y"]))
    assert (finding.topic, finding.count, finding.total) == ("overlap", 1, 2)
    assert finding.severity == "serious"
    assert "such as x and 29" in finding.text
    (finding,) = find_alike(Thumbnails.of([*images[:3], images[1]], names[:4]), held_out)
    assert "1 of 4 training images (25.0 %) equals an earlier one, or nearly so, such as 3 and 1" in finding.text


@pytest.mark.parametrize("side", [5, 8, 100])
def test_images_of_any_size_have_thumbnails(side: int) -> None:
    image = torch.full((3, side, side), 7, dtype=torch.uint8)
    assert torch.equal(Thumbnails.of([image], ["a"]).cells, torch.full((1, 64), 7.0))
