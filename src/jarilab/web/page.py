"""One HTML file that needs no network: a template with style, data and script put in place.

The data travel as JSON that the script turns into text nodes and drawings, so a token or a run name is never read as
markup. A content security policy names the hashes of the one style and the one script: a browser runs nothing else and
fetches nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; connect-src {connect}; "
    "base-uri 'none'; form-action 'none'"
)
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";$', re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?://.*|/\*(?:(?!\*/)[\s\S])*\*/[ \t]*)$", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|let|function|class) )", re.MULTILINE)


def assemble(
    package: str,
    template: str,
    styles: Sequence[str],
    script: str,
    payload: dict[str, Any],
    title: str,
    *,
    live: bool,
) -> str:
    """The page as one document. styles, script, template: files in the `static` folder of `package`.

    script: the module to begin with; those it imports are put before it, each once. live: it may ask the server it came
    from for more.
    """
    style = "\n".join(slim(read(package, name)) for name in styles)
    code = bundle(package, script)
    return Template(read(package, template)).substitute(
        policy=policy(code, style, live=live),
        title=escape_text(title),
        style=style,
        payload=escape_json(payload),
        script=code,
    )


def policy(script: str, style: str, *, live: bool) -> str:
    """What a browser may do with the page."""
    connect = "'self'" if live else "'none'"
    return POLICY.format(script=_source_hash(script), style=_source_hash(style), connect=connect)


def read(package: str, name: str) -> str:
    """A file of a page; line ends become LF, as an HTML parser makes them before it checks a hash."""
    return (files(package) / "static" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def bundle(package: str, name: str) -> str:
    """A module and all that it imports, as one script: names at the top are then shared, so each must stand once."""
    found: dict[str, str] = {}

    def add(name: str) -> None:
        if name not in found:
            found[name] = ""  # two modules may import each other
            text = read(package, name)
            for wanted in _IMPORT.findall(text):
                add(wanted)
            del found[name]
            found[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    add(name)
    return "\n".join(slim(text) for text in found.values())


def slim(text: str) -> str:
    """A script or a style without what only its source needs: comments on lines of their own, indentation, empty lines.

    Lines stay lines, so a script means the same. It must have no template literal of several lines.
    """
    lines = (line.strip() for line in _COMMENT.sub("", text).split("\n"))
    return "\n".join(line for line in lines if line)


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
