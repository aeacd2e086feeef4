"""A page of the explorer on its way to whoever asked for it: as a file, or served."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jarilab.explorer import Page
    from jarilab.explorer.explored import Explored


def save(options: argparse.Namespace, page: Page) -> None:
    """Write it where `--save` says."""
    page.save(options.save)
    size = len(page.html.encode()) / 1e6
    print(f"{options.save}: {size:.1f} MB, opens in any browser without a network")
    if options.open:
        webbrowser.open(Path(options.save).resolve().as_uri())


def serve(
    options: argparse.Namespace, explorer: Explored, line: str, opens: dict[str, Any]
) -> None:
    """Serve the page that is live until interrupted. opens: the `site`, `head` and `steps` that it opens at."""
    from jarilab.explorer import server
    from jarilab.serving import running
    from jarilab.training.progress import working

    with working(f"looking at {line}"):
        # A mistake is told here and not in a browser.
        explorer.look(line, live=True, **opens)
    listening = running.listen(options.host, options.port)
    address = running.address_of(listening)
    print(f"{address}    open this address in a browser; Ctrl-C ends it", flush=True)
    if options.open:
        webbrowser.open(address)  # which waits for the socket that listens already
    server.serve(explorer, line, listening, **opens)
