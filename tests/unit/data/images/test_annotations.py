import json
from pathlib import Path
from typing import Any

import pytest

from jarilab.core.errors import UserError
from jarilab.data.images.annotated import AnnotatedObject, is_held_out, usable_boxes
from jarilab.data.images.annotations import has_lists, read_annotations
from jarilab.data.images.notices import Notices

HERE = (10, 20)  # height and width


def coco(folder: Path, **changed: Any) -> list[str]:
    (folder / "images").mkdir(exist_ok=True)
    for name in ("a.png", "b.png"):
        (folder / "images" / name).write_bytes(b"")
    held = {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 7, "file_name": "b.png"}],
        "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 18, "bbox": [2, 3, 4, 5]}],
    }
    (folder / "coco.json").write_text(json.dumps({**held, **changed}))
    return [str(folder / "coco.json"), str(folder / "images")]


def box(name: str = "dog", left: Any = 1, top: Any = 2, right: Any = 5, bottom: Any = 9) -> str:
    sides = zip(("xmin", "ymin", "xmax", "ymax"), (left, top, right, bottom), strict=True)
    inner = "".join(f"<{side}>{value}</{side}>" for side, value in sides)
    return f"<object><name>{name}</name><bndbox>{inner}</bndbox></object>"


def voc(folder: Path, **texts: str) -> list[str]:
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / "Annotations" / f"{name}.xml").write_text(text)
        (folder / "JPEGImages" / f"{name}.jpg").write_bytes(b"")
    return [str(folder)]


def xml(*things: str) -> str:
    return f"<annotation><filename>elsewhere.jpg</filename>{''.join(things)}</annotation>"


def test_coco_boxes_become_corners_and_ids_become_names(tmp_path: Path) -> None:
    notices = Notices()
    annotations = read_annotations("train", coco(tmp_path), notices)
    assert annotations.classes == ["cat", "dog"]
    assert [image.path.name for image in annotations.images] == ["a.png", "b.png"]
    assert annotations.images[0].objects == (AnnotatedObject("dog", (2.0, 3.0, 6.0, 8.0)),)
    assert notices.lines() == ["images without any thing, kept as such: 1 (b.png)"]


def test_coco_classes_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    categories = [{"id": n, "name": f"c{n}"} for n in (18, 3, 100)]
    annotations = [{"image_id": 1, "category_id": 3, "bbox": [1, 1, 2, 2]}]
    result = read_annotations("train", coco(tmp_path, categories=categories, annotations=annotations), Notices())
    assert result.classes == ["c3", "c18", "c100"]


@pytest.mark.parametrize(
    ("annotation", "notice"),
    [
        ({"category_id": 99}, "of a category that is not listed: 1 (annotation 1, category 99)"),
        ({"bbox": [1, 2, 3]}, "which are not four finite numbers: 1 (annotation 1)"),
        ({"bbox": "1 2 3 4"}, "which are not four finite numbers: 1 (annotation 1)"),
        ({"image_id": 5}, "of images that are not listed: 1 (image_id 5)"),
        ({"image_id": None}, "entries left out, which lack an id, a name or an image_id: 1 (annotation {"),
    ],
)
def test_a_bad_coco_annotation_is_counted_and_named(tmp_path: Path, annotation: Any, notice: str) -> None:
    good = {"id": 1, "image_id": 1, "category_id": 18, "bbox": [2, 3, 4, 5]}
    notices = Notices()
    result = read_annotations("train", coco(tmp_path, annotations=[{**good, **annotation}]), notices)
    assert not any(image.objects for image in result.images)
    assert any(notice in line for line in notices.lines()), notices.lines()


@pytest.mark.parametrize(
    ("images", "notice"),
    [
        ([{"id": 2, "file_name": "gone.png"}], "images left out, whose file is missing: 1 (gone.png)"),
        (
            [{"id": 2, "file_name": "../coco.json"}],
            "images left out, whose file would lie outside the folder: 1 (../coco.json)",
        ),
        ([{"id": 2}], "entries left out, which lack an id, a name or an image_id: 1 (image {'id': 2})"),
        ([{"id": 1, "file_name": "b.png"}], "images listed again, left out: 1 (b.png)"),
        (["a.png"], "entries left out, which lack an id, a name or an image_id: 1 (image a.png)"),
    ],
)
def test_a_bad_coco_image_is_counted_and_named(tmp_path: Path, images: list[Any], notice: str) -> None:
    notices = Notices()
    annotations = read_annotations("train", coco(tmp_path, images=[{"id": 1, "file_name": "a.png"}, *images]), notices)
    assert [image.path.name for image in annotations.images] == ["a.png"]
    assert notice in notices.lines()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected COCO's JSON; got a file that is no JSON"),
        ("[" * 100_000, "expected COCO's JSON; got a file that is no JSON"),
        ("[]", "expected an object with the lists images, annotations, categories"),
        ('{"images": [], "annotations": {}, "categories": []}', "expected an object with the lists"),
        ('{"images": [], "annotations": [], "categories": []}', "expected images with boxes; got none"),
    ],
)
def test_what_is_no_coco_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    paths = coco(tmp_path)
    Path(paths[0]).write_text(text)
    with pytest.raises(UserError, match=message):
        read_annotations("train", paths, Notices())
    Path(paths[0]).unlink()
    with pytest.raises(UserError, match=r"expected a .*; got a path that does not exist"):
        read_annotations("train", paths, Notices())


def test_voc_is_read_by_the_names_of_its_files(tmp_path: Path) -> None:
    annotations = read_annotations("train", voc(tmp_path, p2=xml(box()), p10=xml(box("cat"), box())), Notices())
    assert [image.path.name for image in annotations.images] == ["p2.jpg", "p10.jpg"]
    assert annotations.classes == ["cat", "dog"]
    assert [thing.name for thing in annotations.images[1].objects] == ["cat", "dog"]
    assert annotations.images[0].objects[0].box == (0, 1, 5, 9)


def test_a_voc_list_chooses(tmp_path: Path) -> None:
    paths = voc(tmp_path, a=xml(box()), b=xml(box()), c=xml(box()))
    lists = tmp_path / "ImageSets" / "Main"
    (lists / "train.txt").write_text("a\n\nb  1\na\n")
    assert not has_lists(paths)
    (lists / "val.txt").write_text("c\n")
    assert has_lists(paths)
    assert [p.path.stem for p in read_annotations("train", paths, Notices(), part="train").images] == ["a", "b"]
    assert [p.path.stem for p in read_annotations("valid", paths, Notices(), part="val").images] == ["c"]
    assert [p.path.stem for p in read_annotations("valid", [str(lists / "val.txt")], Notices()).images] == ["c"]
    assert len(read_annotations("train", paths, Notices()).images) == 3


def test_voc_files_without_partners_are_counted_and_named(tmp_path: Path) -> None:
    paths = voc(tmp_path, a=xml(box()), b="<annotation>", c='<!DOCTYPE x [<!ENTITY a "b">]><x/>', d=xml())
    (tmp_path / "JPEGImages" / "alone.jpg").write_bytes(b"")
    (tmp_path / "Annotations" / "gone.xml").write_text(xml(box()))
    (tmp_path / "Annotations" / "a.xml").write_text(xml(box(), box("")))
    notices = Notices()
    assert [p.path.stem for p in read_annotations("train", paths, notices).images] == ["a", "d"]
    assert set(notices.lines()) == {
        "images left out, for which there is no annotation: 1 (alone)",
        "images left out, whose file is missing: 1 (gone)",
        "annotations left out, which are no complete XML: 1 (b.xml)",
        "annotations left out, which declare entities; remove those: 1 (c.xml)",
        "boxes left out, without the name of a class: 1 (a.xml)",
        "images without any thing, kept as such: 1 (d.jpg)",
    }


@pytest.mark.parametrize("paths", [["a", "b", "c"], ["nowhere"], []])
def test_paths_of_no_known_form_are_refused(paths: list[str]) -> None:
    with pytest.raises(UserError, match="--valid expects scenes, a COCO file and its folder"):
        read_annotations("valid", paths, Notices())


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ((5, 1, 2, 4), "whose right or bottom side lies before the left or top one"),
        ((1, 4, 2, 3), "whose right or bottom side lies before the left or top one"),
        ((1, 1, 1, 4), "which have no area"),
        ((1, 4, 2, 4), "which have no area"),
        ((20, 1, 25, 4), "which lie outside their image"),
        ((-5, -5, 0, 4), "which lie outside their image"),
        ((1, 1, float("nan"), 4), "which are not four finite numbers"),
        ((1, 1, float("inf"), 4), "which are not four finite numbers"),
        ((1, None, 3, 4), "which are not four finite numbers"),
        (("1", "two", "3", "4"), "which are not four finite numbers"),
        ((True, 1, 3, 4), "which are not four finite numbers"),
        ((10**400, 1, 3, 4), "which are not four finite numbers"),
    ],
)
def test_boxes_that_can_be_none_are_left_out(box: tuple[Any, Any, Any, Any], reason: str) -> None:
    notices = Notices()
    assert usable_boxes([AnnotatedObject("dog", box)], *HERE, "a.png", notices) == []
    assert notices.lines() == [f"boxes left out, {reason}: 1 (dog in a.png)"]


def test_boxes_over_the_rim_are_cut_and_counted() -> None:
    notices = Notices()
    things = [AnnotatedObject("dog", (-3, -1, 30, 5)), AnnotatedObject("cat", ("0", "0", "20", "10"))]
    assert usable_boxes(things, *HERE, "a.png", notices) == [
        AnnotatedObject("dog", (0.0, 0.0, 20.0, 5.0)),
        AnnotatedObject("cat", (0.0, 0.0, 20.0, 10.0)),
    ]
    assert notices.lines() == ["boxes that reach over the rim of their image, cut there: 1 (dog in a.png)"]


def test_what_is_held_out_goes_by_the_name(tmp_path: Path) -> None:
    images = read_annotations("train", voc(tmp_path, **{f"p{n}": xml(box()) for n in range(300)}), Notices()).images
    chosen = [image.path.name for image in images if is_held_out(image, 0.1)]
    assert 15 <= len(chosen) <= 45
    assert all(is_held_out(image, 1.0) for image in images)


@pytest.mark.parametrize("name", ["a\0.png", "\ud800.png", "x" * 5000])
def test_names_that_no_file_can_have_are_told_in_a_line(tmp_path: Path, name: str) -> None:
    notices = Notices()
    images = [{"id": 1, "file_name": "a.png"}, {"id": 7, "file_name": name}]
    annotations = read_annotations("train", coco(tmp_path, images=images), notices)
    assert [image.path.name for image in annotations.images] == ["a.png"]
    (line,) = notices.lines()
    assert line.startswith("images left out, whose name no file can have: 1 (")
    assert line.isprintable()
    assert len(line) < 300


def test_coco_categories_have_printable_names_and_ids_of_their_own(tmp_path: Path) -> None:
    def read(*categories: tuple[int, str]) -> list[str]:
        listed = [{"id": number, "name": name} for number, name in categories]
        return read_annotations("train", coco(tmp_path, categories=listed), Notices()).classes

    assert read((1, "\ud800"), (18, "a\x1b[2J")) == ["\\ud800", "a\\x1b[2J"]
    with pytest.raises(UserError, match="expected a name for category 18; got ' '"):
        read((18, " "))
    with pytest.raises(UserError, match="got 18 for 'dog' and for 'cat'; give each its own"):
        read((18, "dog"), (18, "cat"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_voc_of_utf_16_cannot_hide_entities(tmp_path: Path, encoding: str) -> None:
    paths = voc(tmp_path, a=xml(box()), b=xml(box()))
    hidden = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE annotation [<!ENTITY e "dog">]>' + xml(box("&e;"))
    (tmp_path / "Annotations" / "b.xml").write_bytes(hidden.encode(encoding))
    notices = Notices()
    assert [image.path.stem for image in read_annotations("train", paths, notices).images] == ["a"]
    (line,) = notices.lines()
    assert line.startswith("annotations left out, which are UTF-16")
    assert line.endswith("save them as UTF-8: 1 (b.xml)")


def test_of_two_voc_images_of_one_annotation_the_first_by_name_is_taken(tmp_path: Path) -> None:
    paths = voc(tmp_path, a=xml(box()))
    (tmp_path / "JPEGImages" / "a.png").write_bytes(b"")
    notices = Notices()
    assert [image.path.name for image in read_annotations("train", paths, notices).images] == ["a.jpg"]
    assert notices.lines() == ["second images of one annotation, left out: 1 (a.png)"]


def test_crowds_and_difficult_objects_are_ignored_regions(tmp_path: Path) -> None:
    good = {"id": 1, "image_id": 1, "category_id": 18, "bbox": [2, 3, 4, 5]}
    annotations = [{**good, "iscrowd": 1}, {**good, "iscrowd": 0}, {**good, "iscrowd": None}, {**good, "ignore": 1}]
    notices = Notices()
    read = read_annotations("train", coco(tmp_path, annotations=annotations), notices)
    assert [thing.ignored for thing in read.images[0].objects] == [True, False, False, False]
    assert notices.lines()[0].startswith("objects marked `ignore`, which count as others, as in pycocotools")
    crowd = "crowds and difficult objects, which count neither in the loss nor in AP: 1 (dog in a.png)"
    assert crowd in notices.lines()
    hard = box().replace("<name>", "<difficult>1</difficult><name>")
    easy = box().replace("<name>", "<difficult>0</difficult><name>")
    notices = Notices()
    read = read_annotations("train", voc(tmp_path / "voc", a=xml(hard, easy, box())), notices)
    assert [thing.ignored for thing in read.images[0].objects] == [True, False, False]
    assert notices.lines() == [crowd.replace("a.png", "a.jpg")]


@pytest.mark.parametrize("spelled", [7, 7.0, "7", "7.0"])
@pytest.mark.parametrize("listed", [7, 7.0, "7"])
def test_one_id_may_be_written_in_many_ways(tmp_path: Path, spelled: Any, listed: Any) -> None:
    paths = coco(
        tmp_path,
        images=[{"id": listed, "file_name": "b.png"}],
        categories=[{"id": spelled, "name": "dog"}],
        annotations=[{"id": 1, "image_id": spelled, "category_id": listed, "bbox": [2, 3, 4, 5]}],
    )
    notices = Notices()
    assert [thing.name for thing in read_annotations("train", paths, notices).images[0].objects] == ["dog"]
    assert notices.lines() == []


def test_ids_of_letters_and_of_zeros_are_texts(tmp_path: Path) -> None:
    images = [{"id": "07", "file_name": "a.png"}, {"id": 7, "file_name": "b.png"}]
    annotations = [{"image_id": number, "category_id": 18, "bbox": [2, 3, 4, 5]} for number in ("07", "7", 7.5)]
    notices = Notices()
    read = read_annotations("train", coco(tmp_path, images=images, annotations=annotations), notices)
    assert [len(image.objects) for image in read.images] == [1, 1]
    assert notices.lines()[0].startswith("entries left out, which lack an id, a name or an image_id: 1 (annotation {")


def test_boxes_are_made_of_polygons_and_masks_where_they_are_missing(tmp_path: Path) -> None:
    base = {"id": 1, "image_id": 1, "category_id": 18}
    annotations = [
        {**base, "segmentation": [[1, 2, 9, 2, 9, 8]]},
        {**base, "bbox": [], "segmentation": {"size": [10, 20], "counts": [11, 3, 186]}},
        {**base, "bbox": None, "segmentation": {"size": [10, 20]}},
        {**base, "bbox": [2, 3, 4, 5], "segmentation": [[0, 0, 9, 0, 9, 9]]},
    ]
    images = [{"id": 1, "file_name": "a.png", "width": 20, "height": 10}]
    notices = Notices()
    (image,) = read_annotations("train", coco(tmp_path, images=images, annotations=annotations), notices).images
    assert [thing.box for thing in image.objects] == [(1, 2, 9, 8), (1, 1, 2, 4), (2, 3, 6, 8)]
    assert image.sizes == {(10, 20)}
    assert image.unreadable == 1
    assert notices.lines() == ["boxes left out, which are not four finite numbers: 1 (annotation 1)"]
    annotations[1]["segmentation"] = {"size": [20, 10], "counts": [11, 3, 186]}
    (image,) = read_annotations("train", coco(tmp_path, images=images, annotations=annotations), Notices()).images
    assert image.sizes == {(10, 20), (20, 10)}


def test_the_size_that_an_annotation_gives_is_read(tmp_path: Path) -> None:
    def size(width: Any, height: Any) -> str:
        return f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"

    texts = {"a": xml(box(), size(20, 10)), "b": xml(box(), size(0, 0)), "c": xml(box(), size("", "x"))}
    read = read_annotations("train", voc(tmp_path, **texts), Notices())
    assert [image.sizes for image in read.images] == [{(10, 20)}, set(), set()]


def test_voc_counts_pixels_from_1_and_includes_the_last(tmp_path: Path) -> None:
    """The box of the whole image, of one pixel, and of a file that counts from 0."""
    boxes = box(left=1, top=1, right=20, bottom=10), box(left=7, top=7, right=7, bottom=7), box(left=0)
    notices = Notices()
    (image,) = read_annotations("train", voc(tmp_path, a=xml(*boxes)), notices).images
    assert [thing.box for thing in image.objects] == [(0, 0, 20, 10), (6, 6, 7, 7), (0, 1, 5, 9)]
    (line,) = notices.lines()
    assert line.startswith("boxes that begin at 0, where Pascal VOC begins at 1")
    assert line.endswith(": 1 (a.xml)")
    usable = image.usable(HERE, notices)
    assert usable is not None
    assert usable[0].box == (0, 0, 20, 10)


def test_a_voc_list_has_names_of_any_kind(tmp_path: Path) -> None:
    paths = voc(tmp_path, **dict.fromkeys(("a", "my dog", "dog 1", "b.c", "d", "e"), xml(box())))
    (tmp_path / "Annotations" / "e.xml").rename(tmp_path / "Annotations" / "e.XML")
    text = "\ufeffa\r\nmy dog  1\r\ndog 1\r\nb.c -1\r\nd.jpg\r\nJPEGImages\\\\e.jpg 0\r\ngone 1\r\n\r\n"
    listed = tmp_path / "ImageSets" / "Main" / "train.txt"
    listed.write_bytes(text.encode())
    notices = Notices()
    read = read_annotations("train", paths, notices, part="train")
    assert [image.path.name for image in read.images] == [
        "a.jpg",
        "my dog.jpg",
        "dog 1.jpg",
        "b.c.jpg",
        "d.jpg",
        "e.jpg",
    ]
    assert notices.lines() == ["images left out, for which there is no annotation: 1 (gone)"]


@pytest.mark.parametrize(
    "doctype", ["<!DOCTYPE annotation>", '<!DOCTYPE annotation SYSTEM "http://127.0.0.1:9/voc.dtd">']
)
def test_a_doctype_without_entities_is_harmless(tmp_path: Path, doctype: str) -> None:
    notices = Notices()
    (image,) = read_annotations("train", voc(tmp_path, a=doctype + xml(box())), notices).images
    assert len(image.objects) == 1
    assert notices.lines() == []


def test_windows_paths_of_images_and_many_problems(tmp_path: Path) -> None:
    (tmp_path / "images" / "deep").mkdir(parents=True)
    (tmp_path / "images" / "deep" / "c.png").write_bytes(b"")
    images = [{"id": 1, "file_name": "deep\\c.png"}, *({"id": n, "file_name": f"{n}.png"} for n in range(2, 317))]
    notices = Notices()
    (image,) = read_annotations("train", coco(tmp_path, images=images), notices).images
    assert image.path == tmp_path / "images" / "deep" / "c.png"
    assert "images left out, whose file is missing: 315 (2.png, 3.png, 4.png and 312 more)" in notices.lines()
