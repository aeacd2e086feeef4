"""The comparison report: one HTML file that needs no network."""

from typing import Any

from jarilab.comparison import preview
from jarilab.pages.kit.page import assemble

STYLES = ("kit/theme.css", "kit/base.css", "kit/maps.css", "report.css")


def render(payload: dict[str, Any]) -> str:
    """Return the report of one comparison as a self-contained HTML document."""
    return assemble(
        "jarilab.comparison",
        "report.html",
        STYLES,
        "report.js",
        payload,
        str(payload["title"]),
        live=False,
        description=preview.description(payload),
        image=preview.image(payload),
    )
