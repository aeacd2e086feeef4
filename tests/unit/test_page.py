"""Pages put together from their parts."""

import json
import re

import pytest

from jari import page

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
