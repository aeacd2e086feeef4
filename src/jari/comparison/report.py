"""The comparison report: one HTML file that needs no network.

The page is `static/report.html` with the style, the script and the payload put in place. The payload travels as
JSON that the script turns into text nodes and drawings, so a token or a run name is never read as markup. A content
security policy names the hashes of the one style and the one script: a browser runs nothing else and fetches nothing.
"""

import base64
import hashlib
import html
import json
import math
from importlib.resources import files
from string import Template
from typing import Any

POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'"
)


def render(payload: dict[str, Any]) -> str:
    """Return the report of one comparison as a self-contained HTML document."""
    script, style = _static("report.js"), _static("report.css")
    return Template(_static("report.html")).substitute(
        policy=POLICY.format(script=_source_hash(script), style=_source_hash(style)),
        title=_escape_text(str(payload["title"])),
        style=style,
        payload=_escape_json(payload),
        script=script,
    )


def _static(name: str) -> str:
    """Read a file of the page; line ends become LF, as an HTML parser makes them before it checks a hash."""
    return (files("jari.comparison") / "static" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _source_hash(text: str) -> str:
    """Return the hash by which a content security policy allows an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _escape_text(text: str) -> str:
    """Escape text for HTML, beyond ASCII as numbers: even half a surrogate pair can then be written as UTF-8."""
    return html.escape(text).encode("ascii", "xmlcharrefreplace").decode()


def _escape_json(value: Any) -> str:
    """Encode JSON that cannot end the script element around it."""
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _finite(value: Any) -> Any:
    """Replace numbers that JSON has no word for (a diverged loss) by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
