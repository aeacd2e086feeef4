"""One HTML file that needs no network: markup with style, data and script put in place.

The data travel as JSON that the script turns into text nodes and drawings, so a token or a run name is never read as
markup. A content security policy names the hashes of the one style and the one script: a browser runs nothing else and
fetches nothing.

A page is written as ES modules, style sheets and markup in the `static` folder of its package. What all pages share
lies in `kit/static`, the kit; a name that begins with `kit/` is one of the kit's files.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import posixpath
import re
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

KIT = "kit/"
POLICY = (
    "default-src 'none'; script-src {script}; style-src '{style}'; img-src data:; connect-src {connect}; "
    "base-uri 'none'; form-action 'none'"
)
_IMPORT = re.compile(r'^import \{([^}]*)\} from "([\w./-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function|class) (\w+))", re.MULTILINE)
_DIVIDER = re.compile(r"\s*([{};,])\s*")
_LITERAL = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)""")
_NESTED = re.compile(r"\$\{[^}]*`")
# Neither + and - (`a - -b` is no `a--b`) nor what may begin a regular expression.
_SIGN = re.compile(r" *([{}()\[\];,=<>?:&|*%!]) *")
_COMMENT = re.compile(r"^[ \t]*(?://.*|/\*(?:(?!\*/)[\s\S])*\*/[ \t]*)$", re.MULTILINE)


def assemble(
    package: str,
    body: str,
    styles: Sequence[str],
    script: str,
    payload: dict[str, Any],
    title: str,
    *,
    live: bool,
    beside: bool = False,
    noscript: str = "",
    description: str = "",
    image: str = "",
) -> str:
    """The page as one document. body, styles, script: files of `package` or of the kit.

    script: the module to begin with; those it imports are put before it, each once. live: it may ask the server it came
    from for more. beside: and run scripts from there, see `policy`. noscript: markup
    to look at where scripts are forbidden. description, image: what a link to it is shown with, see `document`.
    """
    code = bundle(package, script)
    filled = Template(read(package, f"{KIT}page.html")).substitute(
        body=read(package, body), payload=escape_json(payload), script=code, noscript=noscript
    )
    return document(
        package,
        filled,
        styles,
        title,
        script=code,
        live=live,
        beside=beside,
        description=description,
        image=image,
    )


def document(
    package: str,
    body: str,
    styles: Sequence[str],
    title: str,
    *,
    script: str = "",
    live: bool = False,
    beside: bool = False,
    description: str = "",
    image: str = "",
) -> str:
    """Markup as one HTML document, whose policy allows the styles and the one script that stands in it.

    description: one sentence, for those who are shown a link to the page. image: a small one for them, as a data URL.
    """
    style = "\n".join(slim_style(read(package, name)) for name in styles)
    return Template(read(package, f"{KIT}document.html")).substitute(
        policy=policy(script, style, live=live, beside=beside),
        title=escape_text(title),
        preview=_preview(title, description, image),
        style=style,
        body=body.removesuffix("\n"),
    )


def _preview(title: str, description: str, image: str) -> str:
    """What a link to the page is shown with, by those who show more than its address."""
    if not description:
        return ""
    rows = [f'<meta name="description" content="{escape_text(description)}">']
    told = {
        "og:type": "article",
        "og:title": title,
        "og:description": description,
        "og:image": image,
    }
    for name, value in told.items():
        if value:
            rows.append(f'<meta property="{name}" content="{escape_text(value)}">')
    return "".join(f"{row}\n" for row in rows)


def policy(script: str, style: str, *, live: bool, beside: bool = False) -> str:
    """What a browser may do with the page. beside: also run what lies in files beside it, WebAssembly among it."""
    connect = "'self'" if live or beside else "'none'"
    code = f"'{_source_hash(script)}'" + (" 'self' 'wasm-unsafe-eval'" if beside else "")
    return POLICY.format(script=code, style=_source_hash(style), connect=connect)


def read(package: str, name: str) -> str:
    """A file of a page; line ends become LF, as an HTML parser makes them before it checks a hash."""
    if name.startswith(KIT):
        package, name = "jarilab.pages.kit", name.removeprefix(KIT)
    return (files(package) / "static" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def bundle(package: str, name: str) -> str:
    """A module and all that it imports, as one script.

    Each module becomes a function that is called once and gives back what it exports, so its names are its own.
    Raises ValueError for modules that import each other, and for a name that a module imports and none exports.
    """
    modules = _in_order(package, name)
    exports = {module: _EXPORT.findall(text) for module, text in modules.items()}
    for module, text in modules.items():
        _check_imports(module, text, exports)
    whole = "\n".join(_scoped(module, text, exports[module]) for module, text in modules.items())
    return "\n".join(_tight(line) for line in whole.split("\n"))


def _tight(line: str) -> str:
    """A line of a script without the spaces around its signs.

    Text stays as it is. So do lines that need a parser to tell what is text: those with a slash, which may begin a
    regular expression, and those with a template literal inside another.
    """
    if _NESTED.search(line) or "/" in _LITERAL.sub("", line):
        return line
    parts = _LITERAL.split(line)
    parts[::2] = [_SIGN.sub(r"\1", code) for code in parts[::2]]
    return "".join(parts)


def _in_order(package: str, name: str) -> dict[str, str]:
    """The texts of a module and of all that it imports, each after what it imports itself."""
    found: dict[str, str] = {}

    def add(module: str, importers: tuple[str, ...]) -> None:
        if module in importers:
            circle = " -> ".join([*importers, module])
            raise ValueError(
                f"expected modules in an order, got a circle: {circle}; move what both need to a third"
            )
        if module in found:
            return
        text = slim(read(package, module))
        for _, path in _IMPORT.findall(text):
            add(resolve(module, path), (*importers, module))
        found[module] = text

    add(name, ())
    return found


def _check_imports(module: str, text: str, exports: dict[str, list[str]]) -> None:
    for names, path in _IMPORT.findall(text):
        source = resolve(module, path)
        # `name`, or `name as other`
        wanted = {part.split()[0] for part in names.split(",") if part.strip()}
        missing = sorted(wanted - set(exports[source]))
        if missing:
            raise ValueError(f"{module}: expected {missing} among the exports of {source}")


def resolve(importer: str, path: str) -> str:
    """The file that a module means: beside it where the path begins with a dot, otherwise in the kit."""
    if not path.startswith("."):
        return path
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))


def _scoped(name: str, text: str, exported: Sequence[str]) -> str:
    """A module as a function called once. It has the module's name, which is what an error's stack shows."""

    def taken(found: re.Match[str]) -> str:
        names, path = found.groups()
        return f"const {{{names.replace(' as ', ': ')}}} = {_scope(resolve(name, path))};"

    body = _EXPORT.sub("", _IMPORT.sub(taken, text))
    given = f"return {{ {', '.join(exported)} }};"
    return (
        f"// {name}\nconst {_scope(name)} = (function {_scope(name)}() {{\n{body}\n{given}\n}})();"
    )


def _scope(name: str) -> str:
    """`kit/draw.js` -> `kit_draw$`: no module has such a name of its own."""
    return re.sub(r"\W", "_", name.removesuffix(".js")) + "$"


def slim(text: str) -> str:
    """A script or a style without what only its source needs: comments on lines of their own, indentation, empty lines.

    Lines stay lines, so a script means the same. It must have no template literal of several lines.
    """
    lines = (line.strip() for line in _COMMENT.sub("", text).split("\n"))
    return "\n".join(line for line in lines if line)


def frame(document: str) -> str:
    """A page inside a page, such as a notebook: as high as its content, also when that changes."""
    fit = (
        "const f = this, d = f.contentDocument; new ResizeObserver(() => "
        "{ f.style.height = d.body.getBoundingClientRect().bottom + 40 + 'px'; }).observe(d.body)"
    )
    style = "width:100%;height:46rem;border:0"
    return f'<iframe srcdoc="{html.escape(document)}" title="jari" style="{style}" onload="{fit}"></iframe>'


def slim_style(text: str) -> str:
    """A style without comments, and without the space around what divides it."""
    return _DIVIDER.sub(r"\1", slim(text))


def escape_text(text: str) -> str:
    """Escape text for HTML, beyond ASCII as numbers: even half a surrogate pair can then be written as UTF-8."""
    return html.escape(text).encode("ascii", "xmlcharrefreplace").decode()


def escape_json(value: Any) -> str:
    """Encode JSON that cannot end the script element around it."""
    return to_json(value).replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def to_json(value: Any) -> str:
    """JSON in ASCII; numbers that it has no word for become null."""
    return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _source_hash(text: str) -> str:
    """Return the hash by which a content security policy allows an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _finite(value: Any) -> Any:
    """Replace numbers that JSON has no word for (a diverged loss) by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
