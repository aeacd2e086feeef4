"""The site's pages of encodings: each has what a person has to write, in both languages, and goes on with what the code
knows; and the reference tells what an encoding is made of."""

import json
import re
import sys
from pathlib import Path

import pytest

from jarilab.encodings.base import EXTRA_ARGUMENTS, HOOKS, Encoding, registry
from jarilab.runs.descriptions import describe_encoding

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "docs" / "build"))

import catalogue  # pyright: ignore[reportMissingImports]  # noqa: E402
import reference  # pyright: ignore[reportMissingImports]  # noqa: E402

TEXTS = ROOT / "docs" / "site"
HANGUL = re.compile(r"[가-힣]")
BOTH = pytest.mark.parametrize("language", ["en", "ko"])
ENCODING = pytest.mark.parametrize("name", registry.names())


@BOTH
@ENCODING
def test_a_page_has_one_sentence_and_one_formula(language: str, name: str) -> None:
    assert catalogue.what(name, language).endswith(".")
    assert len(formulas(catalogue.page(name, language).read_text(encoding="utf-8"))) == 1


def test_a_missing_page_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "TEXTS", tmp_path)
    with pytest.raises(SystemExit, match=r"encodings/rotary\.md: expected .*; got no file; write"):
        catalogue.what("rotary", "en")


@ENCODING
def test_an_encoding_has_the_same_page_in_both_languages(name: str) -> None:
    english, korean = (catalogue.page(name, language).read_text(encoding="utf-8") for language in ("en", "ko"))
    assert formulas(english) == formulas(korean)
    for part in (r"`([^`\n]+)`", r"\d(?:[\d,.]*\d)?"):
        assert set(re.findall(part, english)) == set(re.findall(part, korean))
    assert HANGUL.search(korean)
    assert not HANGUL.search(english)


def test_every_page_has_an_encoding() -> None:
    assert set(json.loads(catalogue.COSTS.read_text())) == set(registry.names())
    assert {path.stem for path in (TEXTS / "en/encodings").glob("*.md")} == {"index", *registry.names()}


@BOTH
@ENCODING
def test_a_page_has_its_cost_and_options_in_a_checkout(language: str, name: str) -> None:
    page = catalogue.page(name, language).read_text(encoding="utf-8")
    assert f"{json.loads(catalogue.COSTS.read_text())[name]:.2f}" in page
    options = describe_encoding(name)["options"]
    assert [option["name"] for option in options if f"| `{option['name']}` |" not in page] == []
    for table in (catalogue.page("index", language), TEXTS / language / "which-encoding.md"):
        assert f"[`{name}`](" in table.read_text(encoding="utf-8")


@BOTH
@pytest.mark.parametrize("name", ["none", "t5", "cope"])
def test_a_page_goes_on_with_what_the_code_knows(
    language: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "DRAWN", tmp_path / "drawn")
    monkeypatch.setattr(catalogue, "LAWS", tmp_path)
    (tmp_path / f"{name}.txt").write_text("holds    output depends on token order\n20 hold, 0 broken, 2 skipped\n")
    one = describe_encoding(name)
    told = catalogue.known(one, language, catalogue.WORDS[language])
    assert "\n20 hold, 0 broken, 2 skipped\n" in told
    drawn = re.findall(r"\]\((drawn/\S+\.svg)\)", told)
    assert bool(drawn) == bool(one["hooks"])
    for path in drawn:
        svg = (tmp_path / "drawn" / language / Path(path).name).read_text(encoding="utf-8")
        assert catalogue.STYLE[language] in svg
        assert "prefers-color-scheme" in svg


def test_the_reference_tells_the_hooks_and_what_an_encoding_says_of_itself() -> None:
    told = reference.python()
    assert told.count("| hook | called | from |") == 1
    encoding = told.split("\n## Encoding\n")[1].split("\n## ")[0]
    asked = [name for names in EXTRA_ARGUMENTS.values() for name in names]
    claims = [name for name in vars(Encoding)["__annotations__"] if not name.startswith("_")]
    assert [name for name in (*asked, *claims) if f"| `{name}` |" not in encoding] == []
    assert [hook for hook in HOOKS if f"\n{hook}(" not in encoding] == []
    assert "| `random_in_training` |" in told.split("\n## PositionPolicy\n")[1].split("\n## ")[0]


def formulas(page: str) -> list[str]:
    return re.findall(r"^```text\n(.*?)^```$", page, re.M | re.S)
