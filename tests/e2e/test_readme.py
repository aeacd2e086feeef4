"""What the README shows works, and both READMEs show the same."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ENGLISH, KOREAN = (ROOT / name for name in ("README.md", "README.ko.md"))
SMALL = {
    "arithmetic": ["--width=16", "--heads=2", "--maximum=220", "--examples=600"],
    "translation": ["--width=16", "--vocabulary=300", "--epochs=1", "--tokens=512"],
    "number-words": ["--width=16", "--heads=2", "--maximum=999", "--examples=600"],
    "reverse": ["--width=16", "--lines=200", "--held-out=20", "--examples=400"],
    "text": ["--width=16", "--heads=2", "--layers=1", "--context=32", "--epochs=1", "--batch=4"],
    "digits": ["--width=16", "--layers=1", "--epochs=1"],
    "images": ["--width=16", "--layers=1", "--epochs=1", "--batch=4"],
    "detection": ["--width=16", "--heads=2", "--encoder-layers=1", "--decoder-layers=1", "--examples=8", "--batch=4"],
    "captions": ["--width=16", "--layers=1", "--examples=8", "--scenes=40", "--code-steps=3", "--judge-steps=3"],
}
PHRASES = {"de": "Ein Hund rennt durch den Schnee {}.", "en": "A dog runs through the snow {}."}


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.M | re.S)
    return [text for name, text in fences if name == language]


def commands(path: Path) -> list[str]:
    """The indented command lines."""
    return [line.strip() for line in path.read_text().split("\n") if re.match(r"    (jarilab|echo|make) ", line)]


def images(folder: Path) -> None:
    """What the README calls data/images, data/held-out, data/photographs with coco.json, and image.png."""
    library, array = pytest.importorskip("PIL.Image"), pytest.importorskip("numpy")
    noise = array.random.default_rng(1)

    def draw(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        library.fromarray(noise.integers(0, 255, (28, 28), dtype="uint8")).save(path)

    for part, count in (("images", 6), ("held-out", 2)):
        for number in range(2 * count):
            draw(folder / "data" / part / "ab"[number % 2] / f"{number}.png")
    draw(folder / "image.png")
    for number in range(60):
        draw(folder / "data" / "photographs" / f"{number}.png")
    images = [{"id": n, "file_name": f"{n}.png", "height": 28, "width": 28} for n in range(60)]
    things = [{"id": n, "image_id": n, "category_id": 1, "bbox": [4, 4, 12, 10]} for n in range(60)]
    coco = {"images": images, "annotations": things, "categories": [{"id": 1, "name": "cat"}]}
    (folder / "data" / "coco.json").write_text(json.dumps(coco))


def run(command: list[str], folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, input=stdin, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("code", blocks(ENGLISH, "python"), ids=lambda code: code.split("\n")[2])
def test_python_in_the_readme_runs(code: str, tmp_path: Path) -> None:
    done = run([sys.executable, "-W", "error", "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_commands_in_the_readme_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand there, but for a smaller task and model, so that they take seconds."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "data").mkdir()
    for language, phrase in PHRASES.items():
        for part in ("train", "val", "test"):
            lines = "".join(phrase.format(n) + "\n" for n in range(60))
            (tmp_path / "data" / f"{part}.{language}").write_text(lines)
    (tmp_path / "input.txt").write_text("ROMEO: What light is this?\nJULIET: None, sir.\n" * 40)
    images(tmp_path)
    monkeypatch.setenv("JARILAB_CACHE", str(tmp_path / "cache"))
    ran = set()
    for line in commands(ENGLISH):
        piped, _, line = line.rpartition(" | ")
        words = shlex.split(line)
        if words[0] != "jarilab":
            continue
        if words[1] in ("data", "train", "compare"):
            words += SMALL[words[2]]
            if words[2] == "translation" and "recurrent" not in words:
                words += ["--heads=2", "--encoder-layers=1", "--decoder-layers=1"]
        if words[1] == "compare":
            words[words.index("3")] = "2"
        if words[1] == "explore":
            words += [] if "--save" in words else ["--save", "page.html"]  # which ends by itself
        stdin = piped.removeprefix('echo "').removesuffix('"') + "\n" if piped else ""
        done = run([sys.executable, "-m", *words], tmp_path, stdin)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        ran.add(words[1])
    assert ran == {"data", "train", "evaluate", "predict", "compare", "explore", "walk", "laws"}


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"make ([a-z]+)", ENGLISH.read_text() + KOREAN.read_text()))
    assert named
    assert named <= targets


def test_links_in_the_readmes_lead_somewhere() -> None:
    for page in (ENGLISH, KOREAN):
        links = [link for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link]
        assert links
        missing = [link for link in links if not (ROOT / link.partition("#")[0]).exists()]
        assert not missing, f"{page.name}: {missing}"


def test_both_readmes_show_the_same() -> None:
    """Commands, code and outputs are equal; only the prose is translated."""
    assert commands(ENGLISH) == commands(KOREAN)
    for language in ("", "python"):
        assert blocks(ENGLISH, language) == blocks(KOREAN, language)
    headings = [re.findall(r"^(#+) ", page.read_text(), re.M) for page in (ENGLISH, KOREAN)]
    assert headings[0] == headings[1]
