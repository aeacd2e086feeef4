"""HTML pages made of modules, styles and data."""

import base64
import hashlib
import json
import re
import zlib
from importlib.resources import files as resources
from pathlib import PurePosixPath
from typing import Any

import pytest

from jarilab.pages.kit import page

FILES = {
    "main.js": 'import { paint as draw } from "kit/draw.js";\nimport { shade } from "./parts/shade.js";\n'
    'const tone = 2;\ndraw("export const y", shade, tone);',
    "parts/shade.js": 'import { tone } from "../tones.js";\nexport const shade = `${tone}`;\n',
    "tones.js": "export const tone = 3;\n",
    "kit/draw.js": 'import { tone } from "./tones.js";\nexport async function paint(text) { return tone + text; }\n',
    "kit/tones.js": "export const tone = 1;\n",
    "kit/document.html": '<meta content="${policy}"><title>${title}</title><style>${style}</style>${body}',
    "kit/page.html": "${body}"
    '<script type="application/json">${payload}</script>${packed}<script type="module">${script}</script>',
    "body.html": "<main></main>",
    "a.css": "b { color: red }\r\n",
    "clash.js": 'import { tone as own } from "./tones.js";\nimport { tone as kit } from "kit/tones.js";\n'
    'import { shade } from "./parts/shade.js";\nconst tone = 2;\ndocument.title = [own, kit, shade, tone].join();',
    "one.js": 'import { two } from "./two.js";\nexport const one = 1;',
    "two.js": 'import { one } from "./one.js";\nexport const two = 2;',
    "wrong.js": 'import { tone, hue } from "./tones.js";',
}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "read", lambda package, name: FILES[name].replace("\r\n", "\n"))


@pytest.mark.usefixtures("files")
def test_modules_follow_their_imports() -> None:
    script = page.bundle("here", "main.js")
    modules = re.findall(r"^// (.*)$", script, re.MULTILINE)
    assert modules == ["kit/tones.js", "kit/draw.js", "tones.js", "parts/shade.js", "main.js"]
    assert not re.search("^import", script, re.MULTILINE)
    assert re.findall("export", script) == ["export"]  # the one inside a string is text
    assert "const{paint:draw}=kit_draw$;" in script
    assert 'draw("export const y",shade,tone);' in script  # what is text keeps its spaces


@pytest.mark.browser
@pytest.mark.usefixtures("files")
def test_modules_with_the_same_names_do_not_clash(browser: Any) -> None:
    opened = browser.new_page()
    opened.set_content(page.assemble("here", "body.html", ["a.css"], "clash.js", {}, "t", live=False))
    assert opened.title() == "3,1,3,2"
    opened.close()


@pytest.mark.usefixtures("files")
def test_modules_that_import_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got a circle: one\.js -> two\.js -> one\.js"):
        page.bundle("here", "one.js")


@pytest.mark.usefixtures("files")
def test_missing_export_is_refused() -> None:
    with pytest.raises(ValueError, match=r"wrong\.js: expected \['hue'\] among the exports of tones\.js"):
        page.bundle("here", "wrong.js")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("live", "words"), [(True, "connect-src 'self'"), (False, "connect-src 'none'")])
def test_only_a_live_page_may_ask_its_server(live: bool, words: str) -> None:
    assert words in page.assemble("here", "body.html", ["a.css"], "main.js", {}, "t", live=live)


@pytest.mark.usefixtures("files")
def test_hostile_text_ends_no_element() -> None:
    hostile = "</script><img src=x onerror=alert(1)>&\u2028\ud800"
    document = page.assemble("here", "body.html", ["a.css"], "main.js", {"token": hostile}, hostile, live=False)
    assert document.count("</script>") == 2
    assert "<img" not in document
    held = re.search('json">(.*?)</script>', document)
    assert held is not None
    assert json.loads(held[1])["token"] == hostile
    document.encode()


def test_comments_are_removed() -> None:
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


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("if (a === b) return [ a, `${a} : ${b}` ];", "if(a===b)return[a,`${a} : ${b}`];"),
        ("const c = a - -b + +d;", "const c=a - -b + +d;"),
        ("const s = \"a , 'b' \\\" = \" + ' { ' ;", "const s=\"a , 'b' \\\" = \" + ' { ';"),
        ("const r = a ? .5 : b ? [ c ] : { d };", "const r=a?.5:b?[c]:{d};"),
        # what only a parser can tell stays as it is
        ("const n = `${a ? ` ${b} , c` : d}`;", "const n = `${a ? ` ${b} , c` : d}`;"),
        ("const q = /a , b/.test( c );", "const q = /a , b/.test( c );"),
        ("const h = a / b , d = 1 / 2;", "const h = a / b , d = 1 / 2;"),
    ],
)
def test_needless_spaces_are_removed(monkeypatch: pytest.MonkeyPatch, line: str, left: str) -> None:
    monkeypatch.setattr(page, "read", lambda package, name: f"{line}\n")
    assert page.bundle("here", "main.js").split("\n")[2] == left


PAGES = {"jarilab.explorer": "explore.js", "jarilab.comparison": "report.js", "jarilab.serving": "serve.js"}


def modules_of(package: str) -> dict[str, str]:
    folder = resources(package) / "static"
    folders = [folder, *(entry for entry in folder.iterdir() if entry.is_dir())]
    found = [entry for one in folders for entry in one.iterdir() if entry.name.endswith(".js")]
    paths = [PurePosixPath(str(entry)).relative_to(PurePosixPath(str(folder))) for entry in found]
    return {str(path): entry.read_text(encoding="utf-8") for path, entry in zip(paths, found, strict=True)}


@pytest.mark.parametrize("package", ["jarilab.pages.kit", *PAGES])
def test_no_template_literal_of_a_page_spans_lines(package: str) -> None:
    modules = modules_of(package)
    assert modules
    for name, text in modules.items():
        for number, line in enumerate(text.split("\n"), 1):
            assert line.count("`") % 2 == 0, f"{name}:{number} would lose its indentation"


@pytest.mark.parametrize("package", ["jarilab.pages.kit", *PAGES])
def test_files_of_pages_are_short(package: str) -> None:
    for name, text in modules_of(package).items():
        assert len(text.splitlines()) <= 300, name
        exported = re.findall(r"^export \S+ \S+", text, re.MULTILINE)
        assert not [line for line in exported if line.startswith("export let")], f"{name}: an import is a copy"


def test_every_module_of_the_kit_is_used_by_a_page() -> None:
    packed = [("jarilab.explorer", "worker.js"), ("jarilab.pages.kit", "kit/loader.js")]
    used = {
        name
        for package, script in [*PAGES.items(), *packed]
        for name in re.findall(r"^// kit/(.*)$", page.bundle(package, script), re.MULTILINE)
    }
    assert used == set(modules_of("jarilab.pages.kit"))


def test_style_keeps_its_meaning() -> None:
    source = (
        "/* a comment */\na:hover , b {\n  color: red;\n  margin: 0 calc(1px + 2px);\n}\n@media print { p { x: y } }\n"
    )
    assert page.slim_style(source) == "a:hover,b{color:red;margin:0 calc(1px + 2px)}@media print{p{x:y}}"


def test_preview_of_a_link() -> None:
    told = page.document("jarilab.comparison", "<p>", [], 'a "title"', description="<b> & more")
    assert '<meta name="description" content="&lt;b&gt; &amp; more">' in told
    assert '<meta property="og:title" content="a &quot;title&quot;">' in told
    assert '<meta property="og:description" content="&lt;b&gt; &amp; more">' in told
    plain = page.document("jarilab.comparison", "<p>", [], "title")
    assert "og:" not in plain
    assert 'name="description"' not in plain


def test_only_pages_with_a_model_carry_what_runs_it() -> None:
    plain = page.bundle("jarilab.explorer", "explore.js")
    assert not re.findall(r"^// (?:engine[.]|kit/program|kit/spelling|kit/onnx)", plain, re.MULTILINE)


def test_a_script_is_packed_and_the_policy_has_the_hash_of_what_it_becomes() -> None:
    html = page.assemble("jarilab.explorer", "preview.html", [], "preview.js", {}, "t", live=False, packed=True)
    (packed,) = re.findall(r'id="code">(.*?)</script>', html)
    code = zlib.decompress(base64.b64decode(packed)).decode()
    assert code == page.bundle("jarilab.explorer", "preview.js")
    for script in (code, page.bundle("jarilab.explorer", "kit/loader.js")):
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in html
