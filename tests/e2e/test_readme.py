"""What the README and the guides show works, and shows the same in English and in Korean."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jarilab.cli.commands import names

ROOT = Path(__file__).parent.parent.parent
ENGLISH, KOREAN = (ROOT / name for name in ("README.md", "README.ko.md"))
KINDS = ("tutorials", "how-to", "reference", "explanation")
# In this order, so that a page finds the runs it looks into: what one trained, later ones use.
FIRST = (
    *(
        "tutorials/training",
        "how-to/text",
        "how-to/translation",
        "how-to/generated-tasks",
        "how-to/compare",
        "tutorials/walking",
    ),
    *("how-to/python", "reference/serving", "how-to/export", "how-to/study", "how-to/causes"),
    *("how-to/check-encoding", "how-to/verify", "how-to/looking-inside"),
)
DESIGN = "explanation/design.md"
ALL = [str(path.relative_to(ROOT / "docs")) for kind in KINDS for path in sorted((ROOT / "docs" / kind).glob("*.md"))]
GUIDES = list(dict.fromkeys([*(f"{name}.md" for name in FIRST), *(name for name in ALL if name != DESIGN)]))
CONTENTS = "contents.md"
"""The page that leads to all others."""
PAGES = [ENGLISH, *(ROOT / "docs" / name for name in GUIDES)]
PAIRS = [(ENGLISH, KOREAN), *((ROOT / "docs" / name, ROOT / "docs/ko" / name) for name in (*GUIDES, CONTENTS))]
SITES = tuple(ROOT / "docs" / "site" / language for language in ("en", "ko"))
"""Of the site: test_site.py and test_site_encodings.py hold its pages equal."""
BOTH = pytest.mark.parametrize(("english", "korean"), PAIRS, ids=lambda page: page.stem)
RESULTS = [
    "architectures",
    "arithmetic",
    "circuits",
    "comparison",
    "images",
    "long",
    "model-laws",
    "positions",
    "recipes",
    "reliability",
    "speed",
    "text",
]
OTHERS = [
    DESIGN,
    *(f"results/{name}.md" for name in RESULTS),
]
SMALL = {
    "arithmetic": ["--d-model=16", "--n-heads=2", "--maximum=220", "--examples=600"],
    "translation": ["--d-model=16", "--vocab-size=300", "--epochs=1", "--tokens=512", "--longest=40"],
    "number-words": ["--d-model=16", "--n-heads=2", "--maximum=999", "--examples=600"],
    "pronouns": ["--d-model=16", "--n-heads=2", "--examples=600"],
    "copy": ["--d-model=16", "--n-heads=2", "--lines=200", "--held-out=20", "--examples=400"],
    "reverse": ["--d-model=16", "--lines=200", "--held-out=20", "--examples=400"],
    "text": ["--d-model=16", "--n-heads=2", "--n-layers=1", "--context-length=32", "--epochs=1", "--batch-size=4"],
    "classify": ["--d-model=16", "--n-layers=1", "--examples=64"],
    "digits": ["--d-model=16", "--n-layers=1", "--epochs=1"],
    "images": ["--d-model=16", "--n-layers=1", "--epochs=1", "--batch-size=4"],
    "detection": [
        "--d-model=16",
        "--n-heads=2",
        "--n-encoder-layers=1",
        "--n-decoder-layers=1",
        "--examples=8",
        "--batch-size=4",
    ],
    "captions": ["--d-model=16", "--n-layers=1", "--examples=8", "--scenes=40", "--code-steps=3", "--judge-steps=3"],
}
SEEDS = {"arithmetic": "1", "digits": "1", "copy": "1", "text": "1"}
INSTALLING = {"git", "cd", "make", "python3", "source", "pip", "sudo", "!git", "%pip"}
PHRASES = {"de": "Ein Hund rennt durch den Schnee {}.", "en": "A dog runs through the snow {}."}


# Commands one after the other in one process, to import torch once; `main` is all that `python -m jarilab` runs.
TOGETHER = """
import contextlib, io, json, sys
from jarilab.cli import main
for words, typed in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(typed.encode()))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
    if code:
        break
"""


# Each code in a fork of one process, to import torch once. What is imported here was nothing but imported.
FORKS = """
import json, os, sys, tempfile, traceback
import torch, jarilab.api
for line in sys.stdin:
    code, folder = json.loads(line)
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            os.chdir(folder)
            for standard, instead in enumerate((os.open(os.devnull, os.O_RDWR), said.fileno(), said.fileno())):
                os.dup2(instead, standard)
            ended = 1
            try:
                exec(compile(code, "page", "exec"), {"__name__": "__main__"})
                ended = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(ended)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        print(json.dumps([ended, said.read().decode()]), flush=True)
"""


def documentation() -> list[Path]:
    """The pages below docs/, but for those of the site: test_site.py."""
    docs = ROOT / "docs"
    return [path for path in docs.rglob("*.md") if not path.is_relative_to(docs / "site")]


def without_blocks(path: Path) -> str:
    """A page without its fenced blocks, those in lists among them."""
    return re.sub(r"^( *)```.*?^\1```$", "", path.read_text(), flags=re.M | re.S)


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    fences = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", path.read_text(), re.M | re.S)
    return [text for _, name, text in fences if name == language]


def commands(path: Path) -> list[str]:
    """The indented lines: what is to be typed."""
    return re.findall(r"^    (\S.*)$", without_blocks(path), re.M)


def demo() -> str:
    """What `make demo` types."""
    found = re.search(r"^demo:.*\n\t\$\(BIN\)/(.*) --set .*$", (ROOT / "Makefile").read_text(), re.M)
    assert found
    return found[1]


def smaller(line: str) -> tuple[list[str], str]:
    """The words of a command, for a smaller task and model, and what it reads."""
    piped, _, line = line.rpartition(" | ")
    words = shlex.split(line)[1:]
    if words[0] == "compare" and "/" in words[1]:  # a study that is there
        return [word.replace("5", "2") for word in words if word != "--report"], ""
    if words[0] in ("data", "train", "compare"):
        words += SMALL.get(words[1], [])  # none where `--from` names a run
        if words[1] == "translation" and "recurrent" not in words:
            words += ["--n-heads=2", "--n-encoder-layers=1", "--n-decoder-layers=1"]
    if words[0] == "compare" and "--seeds" in words:
        words[words.index("--seeds") + 1] = SEEDS[words[1]]
    for many in ("--encodings", "--tune"):  # the first and the last of them
        if many in words:
            at = words.index(many) + 1
            every = words[at].split(",")
            words[at] = ",".join(dict.fromkeys([every[0], every[-1]]))
    if "--tune" in words:  # which trains each rate and encoding
        words[words.index("--encodings") + 1] = "rotary"
    if words[0] == "explore":
        words += ["--still"] if "--save" in words else ["--save", "page.html", "--still"]  # ends by itself, and soon
    return words, piped.removeprefix('echo "').removesuffix('"') + "\n" if piped else ""


def images(folder: Path) -> None:
    """What the pages call data/images, data/held-out, data/photographs with coco.json, and image.png."""
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


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error", "-c", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    dict.fromkeys(code for page in PAGES for code in blocks(page, "python")),
    ids=lambda code: code.split("\n")[2],
)
def test_python_in_the_pages_runs(code: str, forks: subprocess.Popen[str], tmp_path: Path) -> None:
    if "from diffusers" in code:
        pytest.importorskip("diffusers", reason="NO diffusers: Python of a page was NOT run")
    assert forks.stdin
    assert forks.stdout
    print(json.dumps([code, str(tmp_path)]), file=forks.stdin, flush=True)
    ended, told = json.loads(forks.stdout.readline())
    assert ended == 0, told


@pytest.mark.slow
@pytest.mark.parametrize(
    "pages", [PAGES[:1], pytest.param(PAGES, marks=pytest.mark.long)], ids=["README", "every page"]
)
def test_commands_in_the_pages_run_one_after_another(
    pages: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they stand there, but for a smaller task and model, so that they take seconds."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "data").mkdir()
    for language, phrase in PHRASES.items():
        for start, part in ((0, "train"), (60, "val"), (120, "test")):  # no line is trained on and held out
            lines = "".join(phrase.format(n) + "\n" for n in range(start, start + 60))
            (tmp_path / "data" / f"{part}.{language}").write_text(lines)
    (tmp_path / "input.txt").write_text("ROMEO: What light is this?\nJULIET: None, sir.\n" * 120)
    images(tmp_path)
    monkeypatch.setenv("JARILAB_CACHE", str(tmp_path / "cache"))
    typed = dict.fromkeys(line for page in pages for line in commands(page))
    lines = [demo() if line == "make demo" else line for line in typed if line.split()[0] not in INSTALLING - {"make"}]
    elsewhere = r"jarilab (serve|export)\b"  # test_serve_command.py, test_programs.py, which take their time
    lines = [line for line in lines if not re.match(elsewhere, line)]
    given = [smaller(line) for line in lines]
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER],
        cwd=tmp_path,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    for line, (code, _, told) in zip(lines, ended, strict=False):
        assert code == 0, f"{line}\n{told}"
        assert "Traceback" not in told, f"{line}\n{told}"
    assert len(ended) == len(lines), f"{lines[len(ended)]}\n{done.stderr}"
    if pages == PAGES:
        assert {words[0] for words, _ in given} == set(names()) - {"serve", "export"}  # whose tests are their own
        assert files_of_runs(tmp_path) - spans(ROOT / "docs/reference/runs.md") == set()


def files_of_runs(folder: Path) -> set[str]:
    """What lies in the folders of runs, by name."""
    runs = [path.parent for path in folder.rglob("run.json")]
    assert len(runs) > 20
    return {f"{path.name}/" if path.is_dir() else path.name for run in runs for path in run.iterdir()}


def test_every_indented_line_of_the_pages_is_a_command() -> None:
    """So that nothing is shown as one that the tests do not run; two pages say how to install."""
    for page in PAGES:
        known = {"jarilab", "echo"} | (INSTALLING if page in (ENGLISH, ROOT / "docs/how-to/install.md") else set())
        unknown = [line for line in commands(page) if line.split()[0] not in known]
        assert not unknown, f"{page.name}: {unknown}"


def test_every_page_of_the_documentation_is_tested_or_known_to_be_a_report() -> None:
    docs = {str(path.relative_to(ROOT / "docs")) for path in documentation()}
    decisions = {name for name in docs if name.startswith("explanation/decisions/")}
    assert docs - decisions == {*OTHERS, *(part + name for name in (*GUIDES, CONTENTS) for part in ("", "ko/"))}


def test_the_design_leads_to_every_decision() -> None:
    design = ROOT / "docs" / DESIGN
    pages = {*(design.parent / "decisions").glob("*.md")}
    assert pages
    assert pages - targets(design) == set()


@pytest.mark.parametrize(("readme", "folder"), [(ENGLISH, "docs"), (KOREAN, "docs/ko")], ids=["en", "ko"])
def test_the_contents_lead_to_every_page_and_the_readme_to_them(readme: Path, folder: str) -> None:
    contents = ROOT / folder / CONTENTS
    pages = {*(ROOT / folder / name for name in GUIDES), *(ROOT / "docs" / name for name in OTHERS)}
    assert pages - targets(contents) == set()
    assert contents in targets(readme)


def test_make_targets_in_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in (*PAGES, KOREAN):
        named = set(re.findall(r"(?:`|^    )make ([a-z]+)", page.read_text(), re.M))
        assert named <= targets, page.name
        assert named or page not in (ENGLISH, KOREAN)


def anchors(page: Path) -> set[str]:
    """What a link can name behind `#`: the headings, as GitHub writes them."""
    titles = re.findall(r"^#+ (.*)$", without_blocks(page), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere() -> None:
    lost = []
    for page in (ENGLISH, KOREAN, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        links = [link for link in re.findall(r"\]\(([^)]+)\)", without_blocks(page)) if "://" not in link]
        assert links or page.parent != ROOT
        for link in links:
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                text = page.read_text()
                line = text[: text.index(f"({link})")].count("\n") + 1
                lost.append(f"{page.relative_to(ROOT)}:{line}: {link}")
    assert lost == []


@BOTH
def test_both_languages_show_the_same(english: Path, korean: Path) -> None:
    """Commands, code, outputs, names and numbers are equal; only the prose is translated."""
    assert commands(english) == commands(korean)
    for language in ("", "python", "text"):
        assert blocks(english, language) == blocks(korean, language)
    headings = [re.findall(r"^(#+) ", without_blocks(page), re.M) for page in (english, korean)]
    assert headings[0] == headings[1]
    assert spans(english) - spans(korean) == set()
    assert numbers(english) - numbers(korean) == set()


def spans(page: Path) -> set[str]:
    """What the prose quotes of code."""
    return {" ".join(span.split()) for span in re.findall(r"`([^`]+)`", without_blocks(page))}


def numbers(page: Path) -> set[str]:
    """The numbers in the prose and in the tables."""
    return set(re.findall(r"\d(?:[\d,.]*\d)?", without_blocks(page)))


@BOTH
def test_both_languages_lead_to_the_same_pages(english: Path, korean: Path) -> None:
    """To the Korean page where there is one, and each to the other."""
    korean_of = {one.resolve(): other.resolve() for one, other in PAIRS}
    meant = {korean_of.get(target) or in_korean(target) for target in targets(english)}
    assert meant - {korean.resolve()} == targets(korean) - {english.resolve()}
    assert korean.resolve() in targets(english)
    assert english.resolve() in targets(korean)


def in_korean(target: Path) -> Path:
    """The Korean page of one of the site; any other file is itself."""
    english, korean = SITES
    return korean / target.relative_to(english) if target.is_relative_to(english) else target


def targets(page: Path) -> set[Path]:
    """The files that a page leads to."""
    links = re.findall(r"\]\(([^)#]+)", without_blocks(page))
    return {(page.parent / link).resolve() for link in links if "://" not in link}
