"""Builds one HTML file from markup, styles, a script and data, which needs no network.

The script turns JSON data into text nodes and drawings, so that a token or a run name is never parsed as markup. A
content security policy holds the hashes of the style and the script. A browser runs and loads nothing else.

A package has its ES modules, styles and markup in a folder `static`. `kit/static` has those that pages share; a name
that begins with `kit/` is a file of the kit.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import posixpath
import re
import zlib
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

from jarilab.core.private_paths import without_home

KIT = "kit/"
POLICY = (
    "default-src 'none'; script-src {script}; style-src '{style}'; img-src data:; connect-src {connect}; "
    "base-uri 'none'; form-action 'none'"
)
LOADER = "kit/loader.js"
"""The first module of a script that unpacks and runs another."""
_IMPORT = re.compile(r'^import \{([^}]*)\} from "([\w./-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function|class) (\w+))", re.MULTILINE)
_DIVIDER = re.compile(r"\s*([{};,>])\s*")
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
    packed: bool = False,
    worker: str = "",
    noscript: str = "",
    description: str = "",
    image: str = "",
) -> str:
    """The HTML document of a page. body, styles, script: files of `package` or of the kit.

    script: the first module; the modules that it imports come before it. payload: data as JSON, NaN as null. live: the
    page may send requests to its server. beside: it may also run scripts of its server, see `policy`. packed: the
    script is compressed, in base64. worker: the first module of a script that the page runs in a worker, always
    compressed. noscript: markup for browsers without scripts. description, image: see
    `document`.
    """
    code = bundle(package, script)
    scripts = [bundle(package, LOADER), code] if packed else [code]
    worker_code = bundle(package, worker) if worker else ""
    texts = {"code": code if packed else "", "worker": worker_code}
    filled = Template(read(package, f"{KIT}page.html")).substitute(
        body=read(package, body),
        payload=without_home(escape_json(payload)),
        script=scripts[0],
        packed="".join(_packed(name, text) for name, text in texts.items() if text),
        noscript=without_home(noscript),
    )
    return document(
        package,
        filled,
        styles,
        without_home(title),
        scripts=scripts,
        live=live,
        beside=beside,
        worker=bool(worker),
        description=without_home(description),
        image=image,
    )


def document(
    package: str,
    body: str,
    styles: Sequence[str],
    title: str,
    *,
    scripts: Sequence[str] = (),
    live: bool = False,
    beside: bool = False,
    worker: bool = False,
    description: str = "",
    image: str = "",
) -> str:
    """Markup as an HTML document whose policy allows its styles and its scripts.

    description, image: one sentence and the data URL of an image, for the preview of a link to the page.
    """
    style = "\n".join(slim_style(read(package, name)) for name in styles)
    return Template(read(package, f"{KIT}document.html")).substitute(
        policy=policy(scripts, style, live=live, beside=beside, worker=worker),
        title=escape_text(title),
        preview=_preview(title, description, image),
        style=style,
        body=body.removesuffix("\n"),
    )


def _packed(name: str, script: str) -> str:
    """A script as text in base64, compressed by zlib; `kit/static/blocks.js` unpacks it."""
    text = base64.b64encode(zlib.compress(script.encode(), 9)).decode()
    return f'<script type="text/plain" id="{name}">{text}</script>\n'


def _preview(title: str, description: str, image: str) -> str:
    """The meta elements for the preview of a link to the page."""
    if not description:
        return ""
    title, description = escape_text(title), escape_text(description)
    return (
        f'<meta name="description" content="{description}">\n<meta property="og:type" content="article">\n'
        f'<meta property="og:title" content="{title}">\n<meta property="og:description" content="{description}">\n'
    ) + (f'<meta property="og:image" content="{image}">\n' if image else "")


def policy(
    scripts: Sequence[str], style: str, *, live: bool, beside: bool = False, worker: bool = False
) -> str:
    """The content security policy.

    beside: also allow files next to the page and WebAssembly. worker: also allow scripts that the page makes itself,
    in a worker.
    """
    connect = "'self'" if live or beside else "'none'"
    hashes = " ".join(f"'{_source_hash(script)}'" for script in scripts or [""])
    code = hashes + (" 'self' 'wasm-unsafe-eval'" if beside else "")
    allowed = POLICY.format(script=code, style=_source_hash(style), connect=connect)
    return allowed + ("; worker-src blob:" if worker else "")


def read(package: str, name: str) -> str:
    """The text of a static file of a package, or of the kit, with LF as line end."""
    # LF: an HTML parser converts line ends before it checks the hash of a script.
    if name.startswith(KIT):
        package, name = "jarilab.pages.kit", name.removeprefix(KIT)
    return (files(package) / "static" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def bundle(package: str, name: str) -> str:
    """A module and all modules that it imports, as one script.

    Each module becomes a function that is called once and returns its exports, so that its names are local. Raises
    ValueError for modules that import each other, and for a missing export.
    """
    modules = _in_order(package, name)
    exports = {module: _EXPORT.findall(text) for module, text in modules.items()}
    for module, text in modules.items():
        _check_imports(module, text, exports)
    script = "\n".join(_scoped(module, text, exports[module]) for module, text in modules.items())
    return "\n".join(_tight(line) for line in script.split("\n"))


def _tight(line: str) -> str:
    """A line of a script without the spaces around its signs, except in strings."""
    # A slash may begin a regular expression, and a template literal may hold another: only a parser finds their ends.
    if _NESTED.search(line) or "/" in _LITERAL.sub("", line):
        return line
    parts = _LITERAL.split(line)
    parts[::2] = [_SIGN.sub(r"\1", code) for code in parts[::2]]
    return "".join(parts)


def _in_order(package: str, name: str) -> dict[str, str]:
    """The texts of a module and of its imports, each after its own imports."""
    modules: dict[str, str] = {}

    def add(module: str, importers: tuple[str, ...]) -> None:
        if module in importers:
            circle = " -> ".join([*importers, module])
            raise ValueError(
                f"expected modules in an order, got a circle: {circle}; move their shared code to a third module"
            )
        if module in modules:
            return
        text = slim(read(package, module))
        for _, path in _IMPORT.findall(text):
            add(resolve(module, path), (*importers, module))
        modules[module] = text

    add(name, ())
    return modules


def _check_imports(module: str, text: str, exports: dict[str, list[str]]) -> None:
    for names, path in _IMPORT.findall(text):
        source = resolve(module, path)
        # `name`, or `name as other`
        wanted = {part.split()[0] for part in names.split(",") if part.strip()}
        missing = sorted(wanted - set(exports[source]))
        if missing:
            raise ValueError(f"{module}: expected {missing} among the exports of {source}")


def resolve(importer: str, path: str) -> str:
    """The file of an import: relative if the path begins with a dot, otherwise of the kit."""
    if not path.startswith("."):
        return path
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))


def _scoped(name: str, text: str, exported: Sequence[str]) -> str:
    """A module as a function that is called once, named after the module for stack traces."""

    def destructured(match: re.Match[str]) -> str:
        names, path = match.groups()
        return f"const {{{names.replace(' as ', ': ')}}} = {_scope(resolve(name, path))};"

    body = _EXPORT.sub("", _IMPORT.sub(destructured, text))
    returned = f"return {{ {', '.join(exported)} }};"
    return f"// {name}\nconst {_scope(name)} = (function {_scope(name)}() {{\n{body}\n{returned}\n}})();"


def _scope(name: str) -> str:
    """The JavaScript name of a module: `kit/draw.js` -> `kit_draw$`."""
    return re.sub(r"\W", "_", name.removesuffix(".js")) + "$"


def slim(text: str) -> str:
    """A script or style without comment lines, indentation and empty lines."""
    # It would change a template literal of several lines, so scripts must have none.
    lines = (line.strip() for line in _COMMENT.sub("", text).split("\n"))
    return "\n".join(line for line in lines if line)


def frame(document: str, height: int | None = None) -> str:
    """A page in an iframe, such as in a notebook, as high as its content. height: at most, in pixels."""
    needed = "d.body.getBoundingClientRect().bottom + 40"
    fitted = needed if height is None else f"Math.min({needed}, {height})"
    fit = (
        "const f = this, d = f.contentDocument; new ResizeObserver(() => "
        f"{{ f.style.height = {fitted} + 'px'; }}).observe(d.body)"
    )
    style = f"width:100%;height:{min(height or 736, 736)}px;border:0"
    return f'<iframe srcdoc="{html.escape(document)}" title="jari" style="{style}" onload="{fit}"></iframe>'


def slim_style(text: str) -> str:
    """A style without comments, needless spaces and the last semicolons of blocks."""
    bare = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return _DIVIDER.sub(r"\1", slim(bare)).replace(": ", ":").replace(";}", "}")


def escape_text(text: str) -> str:
    """Escape text for HTML, as ASCII with character references."""
    # As ASCII: an unpaired surrogate, which a token may hold, cannot be written as UTF-8.
    return html.escape(text).encode("ascii", "xmlcharrefreplace").decode()


def escape_json(value: Any) -> str:
    """ASCII JSON for a script element, with NaN and infinities as null."""
    # A token such as "</script>" must not end the element.
    return to_json(value).replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def to_json(value: Any) -> str:
    """ASCII JSON; NaN and infinities become null."""
    return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _source_hash(text: str) -> str:
    """The hash of an inline script or style in a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _finite(value: Any) -> Any:
    """Replace NaN and infinities by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
