"""The signs for invisible characters, in terminals and on pages."""

import numpy
import pytest

from helpers.browser import Pages
from helpers.explorer import made_page, made_site, made_view
from jarilab.explorer import render
from jarilab.inspect.explain.steps import visible

TOKENS = [
    "der",
    " der",
    "der ",
    " ",
    "  ",
    "New York",
    "",
    "\n",
    "a\n",
    "\t",
    "\r",
    "\x1b[2J",
    "\x7f",
    "\u00a0",
    "\u3000",
]
TOKENS += ["\u202e", "\ud7ff\ue000", "a\u200db", "👩‍🔬", "👩🏽‍🔬", "🏳️‍🌈", "\u200d", "한국", "é", "<eos>"]


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("der", "der"),
        (" der", "␣der"),
        ("New York", "New York"),
        ("", "∅"),
        ("\n", "↵"),
        ("\x1b[2J", "␛[2J"),
        ("\u202e", "‹202E›"),
    ],
)
def test_invisible_characters_have_signs(token: str, shown: str) -> None:
    assert visible(token) == shown


@pytest.mark.long
@pytest.mark.browser
def test_terminal_and_pages_use_the_same_signs(pages: Pages) -> None:
    count = len(TOKENS)
    view = made_view([made_site("encoder.0", [numpy.eye(count)])], source=TOKENS)
    page = pages.open(render(made_page(view)), width=1600)
    shown = page.locator(".board .queries bdi").all_text_contents()
    assert shown == [visible(token) for token in TOKENS]
