"""The comparison report: one HTML file that needs no network."""

from typing import Any

from jarilab.web.page import assemble


def render(payload: dict[str, Any]) -> str:
    """Return the report of one comparison as a self-contained HTML document."""
    return assemble(
        "jarilab.comparison", "report.html", ["report.css"], "report.js", payload, str(payload["title"]), live=False
    )
