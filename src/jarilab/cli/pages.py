"""Saves or serves a page of the explorer."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jarilab.explorer import Explorer, Page


def save(options: argparse.Namespace, page: Page) -> None:
    """Write the page to the file of `--save`."""
    page.save(options.save)
    size = len(page.html.encode()) / 1e6
    print(f"{options.save}: {size:.1f} MB, opens in any browser without a network")
    if options.open:
        webbrowser.open(Path(options.save).resolve().as_uri())


def report_folder(folder: Path) -> None:
    """Print the size of a page that was saved as a folder, and how to serve it."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    print(
        f"{folder}: {size:.1f} MB, for any server of files, such as python -m http.server -d {folder}"
    )


def serve(
    options: argparse.Namespace, explorer: Explorer, line: str, opens: dict[str, Any]
) -> None:
    """Serve the live page until interrupted. opens: the `site`, `head` and `steps` that it opens at."""
    from jarilab.explorer import server
    from jarilab.serving import running
    from jarilab.training.progress import working

    with working(f"looking at {line}"):
        # Errors appear here rather than in the browser.
        explorer.look(line, live=True, **opens)
    listening = running.listen(options.host, options.port)
    address = running.address_of(listening)
    print(f"{address}    open this address in a browser; Ctrl-C ends it", flush=True)
    if options.open:
        webbrowser.open(address)  # the socket listens already
    server.serve(explorer, line, listening, **opens)
