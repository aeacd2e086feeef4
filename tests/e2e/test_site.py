"""What is written for the site is whole: each lesson in both languages, with a page or Python that runs, a question,
its answer and a check, and numbers and still figures that the build made. The site itself is built by `make docs`."""

import html
import json
import random
import re
import runpy
import shlex
import sys
import urllib.parse
from pathlib import Path

import pytest

import jarilab
from helpers.command import command
from jarilab.cli.setting_flags import parse_specs
from jarilab.encodings.base import registry
from jarilab.training import loop

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "docs" / "build"))

import config  # pyright: ignore[reportMissingImports]  # noqa: E402
import counting  # pyright: ignore[reportMissingImports]  # noqa: E402
import expected  # pyright: ignore[reportMissingImports]  # noqa: E402
import links  # pyright: ignore[reportMissingImports]  # noqa: E402
import live  # pyright: ignore[reportMissingImports]  # noqa: E402
import moved  # pyright: ignore[reportMissingImports]  # noqa: E402
import pages  # pyright: ignore[reportMissingImports]  # noqa: E402
import prose  # pyright: ignore[reportMissingImports]  # noqa: E402
import reference  # pyright: ignore[reportMissingImports]  # noqa: E402
import runs  # pyright: ignore[reportMissingImports]  # noqa: E402
import stills  # pyright: ignore[reportMissingImports]  # noqa: E402

TEXTS = ROOT / "docs" / "site"
WRITTEN = sorted(TEXTS.rglob("*.md"))
TYPED = (re.findall(r"^    (jarilab .*)$", path.read_text(encoding="utf-8"), re.M) for path in WRITTEN)
COMMANDS = sorted({line for lines in TYPED for line in lines if not line.startswith("jarilab compare runs/")})
BOTH = pytest.mark.parametrize("language", ["en", "ko"])
EACH = pytest.mark.parametrize("name", config.LESSONS)
HANGUL = re.compile(r"[가-힣]")


def text(language: str, name: str) -> str:
    return pages.lesson(language, name).read_text(encoding="utf-8")


def quoted(page: str) -> set[str]:
    return {slot for slot in pages.slots(page) if not slot.startswith(("live ", "state "))}


def code(page: str) -> list[str]:
    """The Python of a page."""
    return re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)


@BOTH
@EACH
def test_a_lesson_has_something_to_look_at_a_question_its_answer_and_a_check(language: str, name: str) -> None:
    page = text(language, name)
    assert page.startswith("# ")
    framed = [slot.split()[1] for slot in pages.slots(page) if slot.startswith("live ")]
    assert framed[:1] == [name] or code(page) or name == "choose"
    assert set(framed) <= set(live.PAGES)
    found = re.findall(r"<details markdown=\"1\"><summary>(.+?)</summary>\n\n(.+?)\n\n</details>", page, re.S)
    assert len(found) == 1
    question, answer = found[0]
    assert question.endswith("?")
    assert len(answer) > 60
    assert code(page) or re.search(r"^    jarilab ", page, re.M)


@BOTH
@EACH
def test_a_lesson_shows_one_figure_at_a_time_and_its_sentences_set_it(language: str, name: str) -> None:
    slots = [slot.split(" ", 2) for slot in pages.slots(text(language, name))]
    figures = [words[1:] for words in slots if words[0] == "live"]
    assert [figure for figure, *state in figures if not "".join(state).startswith("only=")] == [], "a whole page"
    assert {figure for figure, *_ in figures} == {words[1] for words in slots if words[0] == "state"}


@BOTH
def test_a_lesson_leads_to_the_next(language: str) -> None:
    led = [re.findall(r"\]\((\S+)\.md\)$", text(language, name).strip())[0] for name in config.LESSONS]
    assert led == [*config.LESSONS[1:], "index"]


@pytest.mark.filterwarnings("error")
@EACH
def test_the_python_of_a_lesson_runs(name: str) -> None:
    for one in code(text("en", name)):
        exec(compile(one, f"{name}.md", "exec"), {"__name__": "lesson"})


@EACH
def test_a_lesson_says_the_same_in_both_languages(name: str) -> None:
    english, korean = (text(language, name) for language in ("en", "ko"))
    assert quoted(korean) <= quoted(english)
    assert quoted(english) - quoted(korean) <= {"bag.none_same"}
    assert code(english) == code(korean)
    assert re.findall(r"figures/\S+", english) == re.findall(r"figures/\S+", korean)
    assert re.findall(r"^    jarilab.*$", english, re.M) == re.findall(r"^    jarilab.*$", korean, re.M)
    assert HANGUL.search(korean)
    assert not HANGUL.search(english)


@EACH
def test_a_lesson_is_among_all_lessons(name: str) -> None:
    assert all(f"]({name}.md)" in text(language, "index") for language in ("en", "ko"))


def test_every_page_is_there_in_both_languages() -> None:
    english, korean = (
        {path.relative_to(TEXTS / language) for path in (TEXTS / language).rglob("*.md")} for language in ("en", "ko")
    )
    assert english == korean


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(TEXTS)))
def test_what_a_page_asks_for_can_be_put_in(path: Path) -> None:
    for slot in pages.slots(path.read_text(encoding="utf-8")):
        kind, *name = slot.split()[:2]
        assert name[0] in live.PAGES if name else kind in expected.QUOTED


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(TEXTS)))
def test_a_page_quotes_the_kept_numbers_and_shows_the_kept_figures(path: Path) -> None:
    page, numbers = path.read_text(encoding="utf-8"), json.loads(pages.KEPT_NUMBERS.read_text(encoding="utf-8"))
    assert page == pages.written(page, numbers), "run `python docs/build --fast --keep`"
    marked = [line for line in page.splitlines() if re.match(r"<!--(?!live )\w|    .*<!--", line)]
    assert marked == [], "a line that begins so is HTML, and code shows the mark"
    assert set(re.findall(r"figures/([\w-]+)\.svg", page)) <= set(stills.names())


def test_kept_numbers_and_figures_are_whole_and_small() -> None:
    assert expected.problems(json.loads(pages.KEPT_NUMBERS.read_text(encoding="utf-8"))) == []
    assert {path.stem for path in stills.FIGURES.iterdir()} == set(stills.names())
    assert stills.size() < 1_500_000


def test_a_number_that_differs_from_the_kept_one_is_found() -> None:
    page = "It is <!--bag.none-->2.9 %<!--/--> right.\n<!--live bag-->\n![a](b.svg)\n<!--/-->\n"
    assert pages.written(page, {"bag.none": 2.876}) == page.replace("2.9 %", "2.88 %")
    with pytest.raises(KeyError):
        pages.written("<!--bag.gone-->1<!--/-->", {})


def test_links_of_the_repository_lead_to_the_same_on_the_site() -> None:
    lesson = TEXTS / "ko/lessons/bag.md"
    given = "[a](../../../ko/how-to/text.md#언어-모델) [b](../../../results/text.md#pronouns) [c](sqrt.md)"
    assert pages.led(given, lesson, "ko") == (
        "[a](../how-to/text.md#언어-모델) [b](../../results/text.html#pronouns) [c](../lessons/sqrt.md)"
    )
    image = "![a](../../figures/masks.svg) ![b](../../../results/spread.svg)"
    assert pages.led(image, lesson, "ko") == "![a](../figures/masks.svg) ![b](../results/spread.svg)"
    guide = ROOT / "docs/ko/tutorials/walking.md"
    told = pages.led(guide.read_text(encoding="utf-8"), guide, "ko")
    assert "[English](../../tutorials/walking.html)" in told
    assert "(../how-to/translation.md#순환-모델)" in told
    english = ROOT / "docs/tutorials/walking.md"
    assert "[한국어](../ko/tutorials/walking.html)" in pages.led(english.read_text(encoding="utf-8"), english, "en")


def test_headings_have_the_names_that_github_gives_them() -> None:
    text = "# 글\n\n## 옵션, 합\n\n```\n## 1\n```\n\n### In use\n"
    assert (
        pages.anchored(text, "ko") == "# 글\n\n## 옵션, 합 { #옵션-합 }\n\n```\n## 1\n```\n\n### In use { #in-use }\n"
    )


def test_the_korean_side_names_an_english_page_only_where_there_is_no_korean_one(tmp_path: Path) -> None:
    titles = dict.fromkeys(config.LESSONS, ("title", "제목"))
    named = config.write(tmp_path, "ko", titles).read_text(encoding="utf-8")
    english = re.findall(r'"\.\./(\S+)\.html"', named)
    assert "results/arithmetic" in english
    assert [name for name in english if (ROOT / "docs/ko" / f"{name}.md").exists()] == []
    korean = re.findall(r'"([^"]+\.md)"', named)
    homes = (TEXTS / "ko", ROOT / "docs/ko")
    assert [name for name in korean if not any((home / name).exists() for home in homes)] == []


OF_RUNS = re.compile(r"jarilab (predict|evaluate) (runs/\w+)")
"""Their options depend on the run."""
KINDS = [ROOT / "docs" / kind for kind in pages.KINDS]
GUIDED = {line for kind in KINDS for path in kind.glob("*.md") for line in path.read_text().splitlines()}
"""What the guides say too, test_readme.py runs."""


@pytest.fixture(scope="module")
def asked_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs that pages ask for answers, which have learned nothing."""
    folder = tmp_path_factory.mktemp("asked")
    tiny = ["--d-model=16", "--lines=50", "--held-out=5", "--examples=64", "--threads=1"]
    assert command("train", "reverse", *tiny, "--out", folder / "runs" / "add").returncode == 0
    (folder / "runs" / "which").mkdir()
    for name in ("deen", "mine", "none", "rotary-64", "which/rotary-1"):
        (folder / "runs" / name).symlink_to(folder / "runs" / "add")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in COMMANDS if OF_RUNS.match(line) and f"    {line}" not in GUIDED])
def test_a_run_takes_the_options_that_it_is_asked_with(
    line: str, asked_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(asked_runs)
    assert_options(shlex.split(line)[1:])


@pytest.mark.parametrize("line", [line for line in COMMANDS if not OF_RUNS.match(line)])
def test_a_command_has_the_options_that_it_is_given(line: str) -> None:
    assert_options(shlex.split(line.replace(" TASK ", " arithmetic "))[1:])


def assert_options(words: list[str]) -> None:
    told = command(*words, "--help")
    assert told.returncode == 0, told.stderr
    assert [word for word in words if word.startswith("--") and word not in told.stdout] == []


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("jarilab train ")])
def test_a_training_has_values_that_its_options_take(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ready(*_: object, **__: object) -> None:
        raise jarilab.UserError("ready to train")

    monkeypatch.setattr(loop, "train", ready)
    assert "ready to train" in command(*shlex.split(line)[1:]).stderr


@BOTH
@pytest.mark.parametrize("name", expected.KEPT)
def test_a_number_of_a_longer_training_is_told_among_the_results(language: str, name: str) -> None:
    source, numbers = expected.KEPT[name]
    page, told = (path.read_text(encoding="utf-8") for path in (TEXTS / language / name, ROOT / "docs" / source))
    assert [one for one in numbers if one.strip() not in page or one not in told] == []


# Figures and experiments, by command ------------------------------------------------------------------------------


def figures(language: str) -> str:
    return (TEXTS / language / "figures.md").read_text(encoding="utf-8")


def typed(page: str) -> list[str]:
    """All commands of a page."""
    return re.findall(r"^    (\S.*)$", page, re.M)


FIGURES = typed(figures("en"))
SCRIPTS = [line for line in FIGURES if line.startswith("python ")]
DRAWN = [line for line in FIGURES if line.startswith("jarilab show ")]


def test_figures_are_made_by_the_same_commands_in_both_languages() -> None:
    assert typed(figures("ko")) == FIGURES
    assert {line.split()[0] for line in FIGURES} == {"jarilab", "python", "make"}


@BOTH
def test_every_figure_has_a_page_and_a_command(language: str) -> None:
    parts = re.split(r"^(?=\*\*)", figures(language), flags=re.M)[1:]
    assert len(parts) > 40
    assert [part[:40] for part in parts if "](" not in part or not typed(part)] == []


def test_a_figure_is_of_runs_that_were_made_before_it() -> None:
    made: set[str] = set()
    for line in FIGURES:
        words = shlex.split(line)
        out = words[words.index("--out") + 1] if "--out" in words else None
        read = {word for word in words if word.startswith("runs/") and word != out}
        trained = {str(Path(name).parent) if name.endswith("-1") else name for name in read}
        assert trained <= made, line
        made |= {out} if out else set()


@pytest.mark.parametrize("line", SCRIPTS)
def test_a_script_has_the_options_that_it_is_given(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, name, *words = shlex.split(line)
    path = ROOT / name
    assert path.is_file()
    if not words:
        return  # an example: test_examples.py runs it
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr(sys, "argv", [str(path), *words, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert [word for word in words if word.startswith("--") and word not in told] == []


@pytest.mark.parametrize("line", DRAWN)
def test_a_drawing_is_made(line: str, tmp_path: Path) -> None:
    told = command(*shlex.split(line)[1:], "--save", tmp_path / "page.html")
    assert (told.returncode, (tmp_path / "page.html").exists()) == (0, True), told.stderr


def test_figures_compare_encodings_that_there_are() -> None:
    compared = [shlex.split(line) for line in FIGURES if line.startswith("jarilab compare ")]
    for words in compared:
        for spec in parse_specs("--encodings", words[words.index("--encodings") + 1]):
            assert registry.spec(spec).target


# The build ----------------------------------------------------------------------------------------------------------


def test_live_pages_are_of_runs_that_the_build_makes() -> None:
    named = {word for words in live.PAGES.values() for word in words if word.startswith("runs/")}
    assert {name.removeprefix("runs/") for name in named} <= set(runs.TRAININGS)


def test_a_number_that_a_run_does_not_give_stops_the_build() -> None:
    numbers = {name: one.value for name, one in expected.QUOTED.items()}
    assert expected.problems(numbers) == []
    off = expected.problems({**numbers, "bag.none": 12.0})
    assert off == ["bag.none: expected 2.9 within 1.3, the run gives 12.0"]
    assert expected.problems({name: numbers[name] for name in numbers if name != "bag.none"}) == [
        "bag.none: nothing measures it"
    ]


def test_a_page_that_leads_nowhere_or_fetches_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text('<h2 id="here">x</h2><a href="good.html#here">x</a>')
    assert links.problems(tmp_path) == []
    (tmp_path / "bad.html").write_text(
        '<a href="good.html#gone">x</a><iframe src="live/gone.html"></iframe><script src="https://cdn.example/x.js">'
    )
    assert links.problems(tmp_path) == [
        "bad.html fetches https://cdn.example/x.js",
        "bad.html: good.html#gone leads nowhere",
        "bad.html: live/gone.html leads nowhere",
    ]


@pytest.mark.parametrize("kind", pages.KINDS)
def test_no_page_has_more_than_1500_words(kind: str) -> None:
    words = {
        path.name: sum(map(len, prose.sentences(path.read_text(encoding="utf-8"))))
        for path in (ROOT / "docs" / kind).rglob("*.md")
    }
    assert words
    assert {name: count for name, count in words.items() if count > 1500} == {}


@pytest.mark.parametrize("path", reference.marked(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_has_the_tables_of_the_code(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert page == reference.written(page), "run `python docs/build/reference.py`"
    assert not re.search(r"^\|.*\n[^|\n]", page, re.M), "a line below a table becomes one of its rows: leave one empty"


def test_every_picture_has_a_maker() -> None:
    pytest.importorskip("playwright.sync_api")
    import pictures

    drawn = {path.stem for path in (ROOT / "docs").glob("*.png")}
    assert drawn == set(pictures.PICTURES), "add it to docs/build/pictures.py"


def test_addresses_of_before_lead_on(tmp_path: Path) -> None:
    english = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    targets = {target for new in moved.MOVED.values() for target in new.split()}
    assert targets - english == set()
    assert english & set(moved.MOVED) == set(), "a page stands where another leads on"
    for name in (*targets, *(f"ko/{name}" for name in targets if f"ko/{name}" in english)):
        page = tmp_path / f"{name}.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("")
    moved.write(tmp_path)
    assert links.problems(tmp_path) == []
    assert 'url=../tutorials/walking.html"' in (tmp_path / "ko/guide/walking.html").read_text(encoding="utf-8")
    assert not (tmp_path / "ko/design.html").exists()


def test_numbers_and_frames_are_put_in() -> None:
    given = "<!--bag.none-->?<!--/--> <!--qkv.q-->?<!--/--> <!--live bag-->\n![a](b)\n<!--/-->"
    filled = pages.filled(given, "ko", 1, {"bag.none": 2.876, "qkv.q": [1, 2]})
    assert filled.startswith("2.88 % 1.0000, 2.0000 ")
    assert 'src="../../live/bag.html#lang=ko"' in filled


def test_a_link_in_a_sentence_sets_the_figure_above_it() -> None:
    figure = "<!--live break only=map&at=break.most_head-->\n<!--/-->"
    given = f"{figure} Without <!--state break off=break.most_head-->it<!--/-->."
    filled = pages.filled(given, "en", 1, {"break.most_head": "encoder.0, head 3"})
    opened = "lang=en&amp;only=map&amp;site=encoder.0&amp;head=3"
    assert f'<iframe src="../live/break.html#{opened}" name="break"' in filled
    assert '<a href="../live/break.html#lang=en" target="_blank">' in filled, "the whole page"
    link = html.unescape(re.search(r'<a class="state" href="(.+?)" target="break">it</a>', filled)[1])
    state = dict(urllib.parse.parse_qsl(link.partition("#")[2]))
    assert json.loads(state["edited"]) == [[0, [{"kind": "head", "site": "encoder.0", "head": 3}]]]
    with pytest.raises(KeyError):
        pages.filled("<!--state bag view=1-->no figure above<!--/-->", "en", 1, {})


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(TEXTS)))
def test_each_state_of_a_lesson_can_be_written_as_an_address(path: Path) -> None:
    numbers = json.loads(pages.KEPT_NUMBERS.read_text(encoding="utf-8"))
    filled = pages.filled(path.read_text(encoding="utf-8"), "en", 1, numbers)
    for address in re.findall(r'(?:src|href)="(\.\./live/[^"]+)"', filled):
        state = dict(urllib.parse.parse_qsl(html.unescape(address).partition("#")[2], strict_parsing=True))
        assert not set(state.values()) & set(expected.QUOTED), "a number of no kept run"


def test_the_text_to_count_by_is_the_same_everywhere() -> None:
    assert counting.line(random.Random(1)) == counting.line(random.Random(1))
    assert counting.line(random.Random(1)).count(", ") >= 3
