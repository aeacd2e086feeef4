"""Sets of labelled images: class folders, idx, CSV; and what is wrong with them."""

import gzip
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from jarilab.core.errors import UserError, printable
from jarilab.data.images import image_files
from jarilab.data.images.labelled import Labelled, Wanted, read_labelled
from jarilab.data.images.listing import natural
from jarilab.data.images.resize import Fit, fitted, resize

GRAY = Wanted(1)


def draw(path: Path, value: int = 0, size: tuple[int, int] = (4, 6), form: str = "PNG") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size[::-1], value).save(path, form)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Classes 2 and 10, three images each, whose gray says which."""
    for label, first in (("10", 100), ("2", 20)):
        for number in range(3):
            draw(tmp_path / "set" / label / f"{number}.png", first + number)
    return tmp_path / "set"


def idx(pixels: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{pixels.ndim}I", 0, 0, 8, pixels.ndim, *pixels.shape) + pixels.tobytes()


def write_idx(folder: Path, name: str = "train", count: int = 5, *, packed: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    pixels = np.arange(count * 12, dtype=np.uint8).reshape(count, 3, 4)
    labels = (np.arange(count) % 3).astype(np.uint8)
    end = ".gz" if packed else ""
    images = folder / f"{name}-images-idx3-ubyte{end}"
    for path, data in ((images, idx(pixels)), (folder / f"{name}-labels-idx1-ubyte{end}", idx(labels))):
        path.write_bytes(gzip.compress(data) if packed else data)
    return images


def refused(path: Path, wanted: Wanted = GRAY, **options: bool) -> str:
    with pytest.raises(UserError) as error:
        read_labelled(path, wanted, **options)
    return str(error.value)


def everything(labelled: Labelled) -> torch.Tensor:
    return labelled.images(torch.arange(len(labelled)))


# Class folders ----------------------------------------------------------------------------------------------------


def test_class_folders_in_the_order_of_people(folder: Path) -> None:
    draw(folder / "10" / "deeper" / "x.jpg", 109)
    draw(folder / ".hidden" / "0.png")
    (folder / "2" / ".DS_Store").write_bytes(b"x")
    labelled = read_labelled(folder, GRAY)
    assert labelled.classes == ["2", "10"]
    assert labelled.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert everything(labelled)[:, 0, 0, 0].tolist() == [20, 21, 22, 100, 101, 102, 109]
    assert (len(labelled), labelled.shape, labelled.notices) == (7, (1, 4, 6), [])
    assert read_labelled(folder, Wanted(3, (8, 2))).images(torch.tensor([3])).shape == (1, 3, 8, 2)


def test_what_is_left_out_is_counted_and_named(folder: Path) -> None:
    for number in range(4):
        (folder / "2" / f"bad{number}.png").write_bytes(b"<html>")
    (folder / "list.txt").write_text("x")
    (folder / "empty").mkdir()
    (folder / "2" / "link").symlink_to(folder / "10", target_is_directory=True)
    first, second = Image.new("L", (6, 4), 0), Image.new("L", (6, 4), 255)
    first.save(folder / "10" / "moving.gif", save_all=True, append_images=[second])
    labelled = read_labelled(folder, GRAY)
    assert len(labelled) == 7
    assert labelled.classes == ["2", "10"]
    notices = sorted(labelled.notices)
    assert notices[0] == "animations, of which the first frame is taken: 1 (10/moving.gif)"
    assert notices[1] == "classes left out, of which there is no image: 1 (empty)"
    assert notices[
        2
    ] == "files left out, which cannot be read as images: 4 (2/bad0.png, 2/bad1.png, 2/bad2.png and 1 more); " + (
        "2/bad0.png: expected PNG, JPEG, GIF, BMP, WebP, TIFF or PPM with at least one pixel; this begins with "
        "b'<html>': it is no such, or has a damaged header; convert it, or fetch it again"
    )
    assert notices[3] == "files left out, which lie beside the class folders: 1 (list.txt)"
    assert notices[4] == "links to folders inside the class folders, not followed: 1 (2/link)"


def test_too_many_unreadable_files_are_an_error(folder: Path) -> None:
    for number in range(10):
        (folder / "2" / f"bad{number}.png").write_bytes(b"")
    assert len(read_labelled(folder, GRAY)) == 6
    (folder / "10" / "bad.png").write_bytes(b"")
    words = refused(folder)
    assert words.startswith(
        f"{folder}: expected images; got 11 of 17 files that cannot be read, the first: 2/bad0.png: "
    )
    assert words.endswith("mend them, or take them away")


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        (tmp_path / label / "x.png").write_bytes(b"x")
    assert "got 2 of 2 files that cannot be read" in refused(tmp_path)


def test_folders_without_classes_are_refused(tmp_path: Path) -> None:
    assert "expected a folder for each class, or idx files; got neither" in refused(tmp_path)
    (tmp_path / "a").mkdir()
    assert refused(tmp_path) == f"{tmp_path}: expected images; got none; name another place"
    draw(tmp_path / "a" / "x.png")
    assert "expected images of two classes or more; got only ['a']" in refused(tmp_path)


def test_images_of_several_sizes_need_one(folder: Path) -> None:
    draw(folder / "10" / "large.png", size=(5, 6))
    words = refused(folder)
    assert "expected images of one size, as (4, 6) of the first; got (5, 6) in 10/large.png" in words
    assert "--size" in words
    assert read_labelled(folder, Wanted(1, (4, 4))).shape == (1, 4, 4)


def test_memory_is_bounded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "MAX_DATASET_BYTES", 6 * 4 * 6)
    read_labelled(folder, GRAY)
    words = "at most 144 bytes of pixels; got 6 images of 5 x 6 and 1 channels, which take 180; make them smaller with"
    assert words in refused(folder, Wanted(1, (5, 6)))
    images = write_idx(tmp_path, count=13)
    assert "13 images of 3 x 4 and 1 channels, which take 156" in refused(images)


def test_classes_of_the_training_data_are_kept(folder: Path) -> None:
    draw(folder / "7" / "x.png")
    labelled = read_labelled(folder, Wanted(1, classes=["10", "5", "2"]))
    assert labelled.classes == ["10", "5", "2"]
    assert labelled.labels.tolist() == [2, 2, 2, 0, 0, 0]
    assert labelled.notices == ["images left out, of classes that the training data does not have: 1 (x.png of 7)"]
    words = refused(folder, Wanted(1, classes=["a", "b"]))
    assert "expected images of the classes a, b; got none; images left out" in words


def test_names_of_strangers_cannot_steer_a_terminal(folder: Path) -> None:
    (folder / "2" / "\x1b[31m\n.png").write_bytes(b"x")
    assert "(2/\\x1b[31m\\n.png)" in read_labelled(folder, GRAY).notices[0]
    assert printable("가\udc80") == "가\\udc80"


# CSV ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["set/2/0.png,two\nset/10/1.png,ten\n", "\ufefflabel,note,path\r\ntwo,x,set/2/0.png\r\n\r\nten,,set/10/1.png"],
)
def test_csv_with_and_without_a_first_line_of_names(folder: Path, text: str) -> None:
    path = folder.parent / "list.csv"
    path.write_text(text, encoding="utf-8", newline="")
    labelled = read_labelled(path, GRAY)
    assert labelled.classes == ["ten", "two"]
    assert labelled.labels.tolist() == [1, 0]
    assert everything(labelled)[:, 0, 0, 0].tolist() == [20, 101]


@pytest.mark.parametrize(
    "titles", ["label,image_path", "class,file_name", "Category,FileName", "target,Image Path", "label,img"]
)
def test_csv_of_windows_with_titles_of_others(folder: Path, titles: str) -> None:
    path = folder.parent / "list.csv"
    path.write_text(f"{titles}\r\ntwo,set\\2\\0.png\r\nten,set\\10\\1.png\r\n", newline="")
    assert read_labelled(path, GRAY).classes == ["ten", "two"]


@pytest.mark.parametrize("first", ["photo,kind", "kind,photo", "two,set/2/0.png"])
def test_csv_with_unknown_titles_or_order_is_refused(folder: Path, first: str) -> None:
    path = folder.parent / "list.csv"
    path.write_text(f"{first}\nset/2/0.png,two\nset/10/1.png,ten\n")
    words = refused(path)
    assert "list.csv:1: expected a path and a label with a comma between, or a first line that names such" in words
    assert "title the columns path, file_name or image_path, and label or class" in words


def test_csv_leaves_out_and_says_so(folder: Path) -> None:
    path = folder.parent / "list.csv"
    path.write_text(f"set/2/0.png,a\n{folder}/10/1.png,b\nset/2/1.png,\nset/none.png,b\nset,a\n")
    labelled = read_labelled(path, GRAY)
    assert len(labelled) == 2
    assert labelled.notices[0] == "lines left out, without a path or without a label: 1 (line 3)"
    assert labelled.notices[1].startswith("files left out, which cannot be read as images: 2 (set/none.png, set); ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.png;x\n", ":1: expected a path and a label with a comma between, or a first line that names such columns "
         "(path,label); got 1 columns: 'a.png;x'; fix the line"),
        ("a.png,x,y\n", ":1: expected a path and a label"),
        ("path,label\na.png\n", ":2: expected a path and a label"),
        ('"a.png,x\n', ":1: expected cells in the quotes of CSV from this line on; got: unexpected end of data"),
        ("", ": expected images; got none"),
    ],
)  # fmt: skip
def test_csv_that_is_none(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "list.csv"
    path.write_text(text)
    assert f"{path}{words}" in refused(path)


def test_other_files_are_refused(folder: Path) -> None:
    assert "expected a folder of class folders, an idx file of images, or a *.csv of path and label" in refused(
        folder / "2" / "0.png"
    )
    assert "got a path that does not exist" in refused(folder / "none")


# idx ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_idx_beside_its_labels(tmp_path: Path, packed: bool) -> None:
    images = write_idx(tmp_path, packed=packed)
    for path in (images, tmp_path):
        labelled = read_labelled(path, GRAY)
        assert labelled.classes == ["0", "1", "2"]
        assert labelled.labels.tolist() == [0, 1, 2, 0, 1]
        assert everything(labelled).flatten().tolist() == list(range(60))
        assert labelled.shape == (1, 3, 4)
    assert read_labelled(images, Wanted(3, (6, 6))).images(torch.tensor([4, 0])).shape == (2, 3, 6, 6)


def test_a_folder_of_two_pairs(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", 6)
    write_idx(tmp_path, "t10k", 4, packed=True)
    assert len(read_labelled(tmp_path, GRAY)) == 6
    assert len(read_labelled(tmp_path, GRAY, held_out=True)) == 4
    write_idx(tmp_path, "more", 4)
    assert "expected one idx file of images to take; got more-images-idx3-ubyte, t10k-images" in refused(
        tmp_path, held_out=True
    )


def test_idx_leaves_out_unknown_labels(tmp_path: Path) -> None:
    labelled = read_labelled(write_idx(tmp_path), Wanted(1, classes=["2", "1"]))
    assert labelled.labels.tolist() == [1, 0, 1]
    assert everything(labelled)[:, 0, 0, 0].tolist() == [12, 24, 48]
    assert labelled.notices == [
        "images left out, of classes that the training data does not have: 2 (number 0 of 0, number 3 of 0)"
    ]
    assert "expected images of the classes a; got none" in refused(tmp_path, Wanted(1, classes=["a"]))


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
PIXELS = np.zeros((5, 3, 4), np.uint8)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({IMAGES: idx(PIXELS)[:-1]}, f"{IMAGES}: expected 60 bytes, as its header says (5, 3, 4); got only 59"),
        ({IMAGES: idx(PIXELS) + b"x"}, f"{IMAGES}: expected 60 bytes, as its header says (5, 3, 4); got more"),
        ({IMAGES: idx(PIXELS)[:9]}, "expected idx of images (magic 00 00 08 03); got 00 00 08 03"),
        ({IMAGES: gzip.compress(idx(PIXELS))[:-9]}, f"{IMAGES}: expected complete gzip"),
        ({IMAGES: idx(np.zeros((0, 3, 4), np.uint8))}, "expected images; its header says (0, 3, 4), which is none"),
        ({IMAGES: idx(np.zeros((5, 0, 4), np.uint8))}, "its header says (5, 0, 4), which is none"),
        ({IMAGES: idx(PIXELS[:4])}, "expected as many labels as images; got 5 and 4"),
        ({IMAGES: struct.pack(">BBBBIII", 0, 0, 8, 3, 2**32 - 1, 2**31, 9)}, "of pixels; got 4,294,967,295 images of"),
        ({IMAGES: b"\0\0\x0d\x03" + bytes(12)}, "expected idx of bytes in three dimensions"),
        ({LABELS: b"text"}, f"{LABELS}: expected idx of labels (magic 00 00 08 01); got 74 65 78 74"),
        ({LABELS: b""}, "expected idx of labels (magic 00 00 08 01); got nothing"),
        ({LABELS: None}, f"{IMAGES}: expected its labels beside it, in {LABELS} or {LABELS}.gz; got none"),
    ],
)  # fmt: skip
def test_damaged_idx(tmp_path: Path, changed: Mapping[str, bytes | None], words: str) -> None:
    images = write_idx(tmp_path)
    for name, data in changed.items():
        if data is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_bytes(data)
    assert words in refused(images)


def test_labels_alone_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path)
    assert "got the labels of an idx pair; name the file of the images" in refused(tmp_path / LABELS)


# What makes a score say less than it seems ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fit", "how"),
    [
        ("stretch", "stretched to 4 x 6"),
        ("crop", "scaled to 4 x 6 and cut where too long"),
        ("pad", "scaled to 4 x 6 and padded where too short"),
    ],
)
def test_images_of_other_sizes_are_counted_and_named(folder: Path, fit: Fit, how: str) -> None:
    assert read_labelled(folder, Wanted(1, (4, 6), fit)).notices == []
    draw(folder / "2" / "0.png", 3, (6, 4))
    draw(folder / "10" / "1.jpg", 4, (400, 600), "JPEG")
    (folder / "10" / "bad.png").write_bytes(b"x")
    notices = read_labelled(folder, Wanted(1, (4, 6), fit)).notices
    assert notices[1:] == [f"2 of 7 images were {how} (2/0.png, 10/1.jpg)"]
    draw(folder / "10" / "1.jpg", 4, (6, 4), "JPEG")


def test_colours_that_are_lost_are_told_once(folder: Path) -> None:
    for number in range(4):
        Image.new("RGB", (6, 4), (200, number, 10)).save(folder / "2" / f"red{number}.png")
    Image.new("RGB", (6, 4), (77, 80, 82)).save(folder / "2" / "scan.png")
    Image.new("RGBA", (6, 4), (255, 0, 0, 0)).save(folder / "2" / "clear.png")
    (notice,) = read_labelled(folder, GRAY).notices
    assert notice == (
        "4 of 12 images were in colour and read as gray; --colours colour keeps the colours "
        "(2/red0.png, 2/red1.png, 2/red2.png and 1 more)"
    )
    assert read_labelled(folder, Wanted(3)).notices == []
    assert read_labelled(folder, Wanted(1, classes=("2", "10"))).notices == []


def test_idx_images_of_another_size_are_counted(tmp_path: Path) -> None:
    images = write_idx(tmp_path)
    assert read_labelled(images, Wanted(1, (3, 4))).notices == []
    (notice,) = read_labelled(images, Wanted(1, (6, 6))).notices
    assert notice == "5 of 5 images were stretched to 6 x 6 (number 0, number 1, number 2 and 2 more)"


def test_equal_images_of_different_classes_are_told(folder: Path) -> None:
    draw(folder / "2" / "twin.png", 21)  # equal, and of one class
    assert read_labelled(folder, GRAY).notices == []
    draw(folder / "10" / "x.bmp", 21, form="BMP")  # the same pixels in other bytes
    draw(folder / "10" / "y.png", 20)
    notice = "equal images in different classes, which nothing can tell apart"
    assert read_labelled(folder, GRAY).notices == [
        f"{notice}: 5 (2/0.png of 2, 10/y.png of 10, 2/1.png of 2 and 2 more)"
    ]


def test_equal_idx_images_of_different_classes_are_told(tmp_path: Path) -> None:
    images = write_idx(tmp_path)
    pixels = np.zeros((5, 3, 4), np.uint8)
    pixels[[0, 3], 1, 1] = 9  # both of class 0
    pixels[2] = 8
    images.write_bytes(idx(pixels))
    assert read_labelled(images, GRAY).notices == []  # 1 and 4 are equal too, both of class 1
    pixels[2] = 0
    images.write_bytes(idx(pixels))
    notice = "equal images in different classes, which nothing can tell apart"
    assert read_labelled(images, GRAY).notices == [f"{notice}: 3 (number 1 of 1, number 2 of 2, number 4 of 1)"]


# Parts of a set -------------------------------------------------------------------------------------------------------


def test_held_out_images_are_chosen_by_content(tmp_path: Path) -> None:
    for number in range(200):
        draw(tmp_path / "ab"[number % 2] / f"{number}.png", number)
    draw(tmp_path / "a" / "twin.png", 7)
    labelled = read_labelled(tmp_path, GRAY)
    train, held_out = labelled.split(0.2)
    assert len(train) + len(held_out) == 201
    assert 20 <= len(held_out) <= 60
    grays = [set(everything(part)[:, 0, 0, 0].tolist()) for part in (train, held_out)]
    assert not grays[0] & grays[1]  # the twins are on one side
    assert torch.equal(held_out.labels, everything(held_out)[:, 0, 0, 0].long() % 2)
    # An image stays where it is when others go.
    draw(tmp_path / "a" / "198.png", 0)
    assert set(everything(read_labelled(tmp_path, GRAY).split(0.2)[1])[:, 0, 0, 0].tolist()) == grays[1] - {198}
    again = train.only(torch.tensor([5, 2])).only(torch.tensor([1]))
    assert torch.equal(everything(again), train.images(torch.tensor([2])))
    assert again.labels.tolist() == [int(train.labels[2])]


def test_too_few_to_hold_out(folder: Path) -> None:
    with pytest.raises(UserError, match="6 images are too few to hold some out; give held-out images with --valid"):
        read_labelled(folder, GRAY).split(1e-9)


def test_few_held_out_images_are_told(tmp_path: Path) -> None:
    """29 of them are few, 30 are not: below, one alone is more than 3 points."""
    for number in range(60):
        draw(tmp_path / "ab"[number % 2] / f"{number}.png", number)
    labelled = read_labelled(tmp_path, GRAY)
    marks = labelled.marks.sort().values
    for count in (29, 30):
        train, held_out = labelled.split(int(marks[count]) / 2**32)
        assert len(held_out) == count
        notice = "only 29 of 60 images are held out, so that one alone counts for 3.4 % of the score; name more with"
        assert train.notices == held_out.notices == ([f"{notice} --valid"] if count == 29 else [])
    assert labelled.notices == []


def test_the_fingerprint_follows_content_labels_and_names(folder: Path) -> None:
    fingerprints = {read_labelled(folder, GRAY).fingerprint()}
    assert fingerprints == {read_labelled(folder, Wanted(3, (9, 9))).fingerprint()}  # not what is made of the files
    (folder / "2" / "0.png").rename(folder / "10" / "0a.png")
    fingerprints.add(read_labelled(folder, GRAY).fingerprint())
    draw(folder / "10" / "1.png", 9)
    fingerprints.add(read_labelled(folder, GRAY).fingerprint())
    (folder / "10").rename(folder / "11")
    fingerprints.add(read_labelled(folder, GRAY).fingerprint())
    assert len(fingerprints) == 4


# Sizes ----------------------------------------------------------------------------------------------------------------


def test_one_image_is_fitted_as_in_a_set(tmp_path: Path) -> None:
    for number, label in enumerate("ab"):
        pixels = torch.randint(0, 256, (300, 420, 3), dtype=torch.uint8)
        path = tmp_path / label / f"{number}.jpg"
        path.parent.mkdir()
        Image.fromarray(pixels.numpy()).save(path)
    decoded = fitted(tmp_path / "a" / "0.jpg", 3, (20, 30), "crop")
    assert torch.equal(everything(read_labelled(tmp_path, Wanted(3, (20, 30), "crop")))[0], decoded.pixels)
    assert (decoded.height, decoded.width) == (300, 420)


def test_natural_order() -> None:
    assert natural(["b", "a10", "a9", "a09", "10", "2", "", "a"]) == ["", "2", "10", "a", "a09", "a9", "a10", "b"]


def test_decoding_a_photograph_small_changes_little(tmp_path: Path) -> None:
    """Noise at quality 95: 1.3 of 255 off, and 2.5 were it decoded half as large."""
    path = tmp_path / "noise.jpg"
    Image.fromarray(torch.randint(0, 256, (400, 400, 3), dtype=torch.uint8).numpy()).save(path, quality=95)
    expected = resize(image_files.read_image(path, 3)[None], (40, 40))[0].float()
    assert (fitted(path, 3, (40, 40), "stretch").pixels.float() - expected).pow(2).mean().sqrt() < 1.8
