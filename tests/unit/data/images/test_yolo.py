from pathlib import Path

import pytest

from jarilab.core.errors import UserError
from jarilab.data.images.annotated import AnnotatedObject
from jarilab.data.images.annotations import has_lists, read_annotations
from jarilab.data.images.notices import Notices


def yolo(folder: Path, part: str = "", classes: str = "dog\ncat\n", **labels: str | None) -> list[str]:
    """`part` as in `images/PART`; a label of None is a missing file."""
    images, texts = folder / "images" / part, folder / "labels" / part
    images.mkdir(parents=True, exist_ok=True)
    texts.mkdir(parents=True, exist_ok=True)
    for name, text in labels.items():
        (images / f"{name}.jpg").write_bytes(b"")
        if text is not None:
            (texts / f"{name}.txt").write_bytes(text.encode())
    if classes:
        (folder / "classes.txt").write_text(classes)
    return [str(folder)]


def test_lines_are_classes_and_boxes_in_shares(tmp_path: Path) -> None:
    text = "\ufeff1 0.5 0.25 0.2 0.1\r\n\r\n0 0.1 0.2 0.4 0.2 0.3 0.6\r\n"
    notices = Notices()
    read = read_annotations("train", yolo(tmp_path, a=text, b="", c=None), notices)
    assert read.classes == ["dog", "cat"]
    assert [image.path.name for image in read.images] == ["a.jpg", "b.jpg", "c.jpg"]
    cat, dog = read.images[0].in_pixels((100, 200))
    assert (cat.name, dog.name) == ("cat", "dog")
    assert cat.box == pytest.approx((80, 20, 120, 30))
    assert dog.box == pytest.approx((20, 20, 80, 60))  # around the polygon
    assert notices.lines() == [
        "images without a label file, taken as images without objects: 1 (c.jpg)",
        "images without any thing, kept as such: 2 (b.jpg, c.jpg)",
    ]


@pytest.mark.parametrize(
    ("line", "notice"),
    [
        ("0 0.5 0.5 0.1", "lines left out, which are not `class cx cy w h` or a polygon"),
        ("0 0.5 0.5 0.1 0.1 0.9", "lines left out, which are not `class cx cy w h` or a polygon"),
        ("dog 0.5 0.5 0.1 0.1", "lines left out, which are not `class cx cy w h` or a polygon"),
        ("0.5 0.5 0.5 0.1 0.1", "lines left out, which are not `class cx cy w h` or a polygon"),
        ("0 0.1 0.1 nan 0.1 0.1 0.1", "lines left out, which are not `class cx cy w h` or a polygon"),
        ("0 50 50 10 10", "boxes left out, whose numbers are not shares of the image from 0 to 1"),
        ("2 0.5 0.5 0.1 0.1", "boxes left out, of a class that has no name"),
    ],
)
def test_a_bad_line_is_counted_and_named_and_its_image_is_no_empty_one(tmp_path: Path, line: str, notice: str) -> None:
    notices = Notices()
    read = read_annotations("train", yolo(tmp_path, a=line, b="0 .5 .5 .1 .1"), notices)
    (told,) = notices.lines()
    assert told.startswith(notice)
    assert told.endswith(f": 1 ({line!r} in a.jpg)")
    assert read.images[0].usable((10, 10), notices) is None
    assert notices.lines()[-1] == "images left out, none of whose boxes is usable: 1 (a.jpg)"


@pytest.mark.parametrize(
    "text",
    [
        "train: images/train\nnc: 2\nnames: ['dog', \"my cat\"]  # two\n",
        "names:\n  0: dog\n  1: my cat\nnc: 2\n",
        "nc: 2\nnames:\n- dog\n- 'my cat' # of mine\n\ntrain: x\n",
        "names: {0: dog, 1: my cat}",
        "names: [dog,\n  my cat]\npath: .",
    ],
)
def test_names_of_classes_in_a_yaml(tmp_path: Path, text: str) -> None:
    paths = yolo(tmp_path, a="1 .5 .5 .1 .1")
    (tmp_path / "data.yaml").write_text(text)
    assert read_annotations("train", paths, Notices()).classes == ["dog", "my cat"]


@pytest.mark.parametrize("text", ["", "names:", "nc: 3\nnames: [a, b]", "names: {1: a, 2: b}", "names: []"])
def test_names_that_are_unclear_are_refused(tmp_path: Path, text: str) -> None:
    paths = yolo(tmp_path, a="0 .5 .5 .1 .1")
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(UserError, match=r"data\.yaml: expected a name for each class"):
        read_annotations("train", paths, Notices())


def test_without_names_classes_are_numbers_and_that_is_said(tmp_path: Path) -> None:
    notices = Notices()
    read = read_annotations("train", yolo(tmp_path, classes="", a="10 .5 .5 .1 .1\n2 .5 .5 .1 .1"), notices)
    assert read.classes == ["2", "10"]
    assert notices.lines() == [f"no data.yaml or classes.txt names the classes, so they are numbers: 1 ({tmp_path})"]


def test_parts_are_folders_inside_images_or_outside(tmp_path: Path) -> None:
    line = "0 .5 .5 .1 .1"
    for folder in (tmp_path / "inside", tmp_path / "outside"):
        folder.mkdir()
    inside = yolo(tmp_path / "inside", "train", a=line)
    assert not has_lists(inside)
    yolo(tmp_path / "inside", "val", b=line)
    for part, name in (("train", "a"), ("valid", "b")):
        yolo(tmp_path / "outside" / part, classes="", **{name: line})
    (tmp_path / "outside" / "data.yaml").write_text("names: [dog]")
    outside = [str(tmp_path / "outside")]
    for paths in (inside, outside):
        assert has_lists(paths)
        for part, name in (("train", "a.jpg"), ("val", "b.jpg")):
            read = read_annotations("train", paths, Notices(), part=part)
            assert [image.path.name for image in read.images] == [name]
            assert read.classes[0] == "dog"
    alone = read_annotations("train", [str(tmp_path / "outside" / "train")], Notices())
    assert alone.classes == ["dog"]


def test_labels_without_images_and_second_images(tmp_path: Path) -> None:
    paths = yolo(tmp_path, a="0 .5 .5 .1 .1")
    (tmp_path / "images" / "A.JPG").write_bytes(b"")
    (tmp_path / "images" / "a.png").write_bytes(b"")
    (tmp_path / "labels" / "A.txt").write_text("0 .5 .5 .2 .2")
    (tmp_path / "labels" / "gone.txt").write_text("0 .5 .5 .2 .2")
    (tmp_path / "labels" / "classes.txt").write_text("no label")
    notices = Notices()
    read = read_annotations("train", paths, notices)
    assert [image.path.name for image in read.images] == ["A.JPG", "a.jpg"]
    assert notices.lines() == [
        "second images of one annotation, left out: 1 (a.png)",
        "images left out, whose file is missing: 1 (gone.txt)",
    ]
    assert read.images[1].objects == (AnnotatedObject("dog", (0.45, 0.45, 0.55, 0.55)),)
