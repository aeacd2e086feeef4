"""Pages put together from their parts."""

import json
import re
from importlib.resources import files as resources

import pytest

from jarilab.web import page

FILES = {
    "main.js": 'import { paint, tone } from "./draw.js";\nexport const panel = { id: "x" };\npaint("export const y");',
    "draw.js": 'import { panel } from "./main.js";\nexport const tone = 1;\nexport function paint(text) {}\n',
    "page.html": '<meta content="${policy}"><title>${title}</title><style>${style}</style>'
    '<script type="application/json">${payload}</script><script type="module">${script}</script>',
    "a.css": "b { color: red }\r\n",
}


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "read", lambda package, name: FILES[name].replace("\r\n", "\n"))


def test_modules_become_one_script_each_after_what_it_imports() -> None:
    script = page.bundle("here", "main.js")
    assert script.index("const tone = 1") < script.index('const panel = { id: "x" }')
    assert "import" not in script
    assert re.findall("export", script) == ["export"]  # the one inside a string is text
    assert script.count("function paint") == 1


@pytest.mark.parametrize(("live", "words"), [(True, "connect-src 'self'"), (False, "connect-src 'none'")])
def test_only_a_live_page_may_ask_its_server(live: bool, words: str) -> None:
    assert words in page.assemble("here", "page.html", ["a.css"], "main.js", {}, "t", live=live)


def test_hostile_text_ends_no_element() -> None:
    hostile = "</script><img src=x onerror=alert(1)>&\u2028\ud800"
    document = page.assemble("here", "page.html", ["a.css"], "main.js", {"token": hostile}, hostile, live=False)
    assert document.count("</script>") == 2
    assert "<img" not in document
    held = re.search('json">(.*?)</script>', document)
    assert held is not None
    assert json.loads(held[1])["token"] == hostile
    document.encode()


def test_what_only_the_source_needs_is_left_out() -> None:
    source = """
    // why
    const one = 1; // beside code it stays

      /* several
         lines */
    const two = "/* text */";
      /** one line */
      const three = one /* inside */ + two;
    const four = `// text`;
    /* not alone */ const five = 5;
    """
    assert page.slim(source).split("\n") == [
        "const one = 1; // beside code it stays",
        'const two = "/* text */";',
        "const three = one /* inside */ + two;",
        "const four = `// text`;",
        "/* not alone */ const five = 5;",
    ]


@pytest.mark.parametrize("package", ["jarilab.explorer", "jarilab.comparison"])
def test_no_template_literal_of_a_page_spans_lines(package: str) -> None:
    modules = [entry for entry in (resources(package) / "static").iterdir() if entry.name.endswith(".js")]
    assert modules
    for module in modules:
        for number, line in enumerate(module.read_text(encoding="utf-8").split("\n"), 1):
            assert line.count("`") % 2 == 0, f"{module.name}:{number} would lose its indentation"
