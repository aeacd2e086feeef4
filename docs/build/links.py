"""What the builder does not look at: that frames, images and links lead somewhere, and nothing to the network."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
UNFETCHED_RELATIONS = {"canonical", "alternate", "next", "prev", "edit"}


class Page(HTMLParser):
    """The addresses in a page, and its anchors."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        address = given.get(FETCHED.get(tag, "href" if tag == "a" else ""))
        if not address or given.get("rel") in UNFETCHED_RELATIONS:
            return
        self.links.append(address)
        if tag in FETCHED:
            self.fetched.append(address)


def problems(site: Path) -> list[str]:
    """What leads nowhere, or to the network, a sentence each."""
    live = site / "live"
    paths = [path for path in sorted(site.rglob("*.html")) if not path.is_relative_to(live)]
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in paths}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [f"{name} fetches {url}" for url in page.fetched if urlsplit(url).netloc]
        if name.name != "404.html":  # whose addresses start at the root of a server
            found += [f"{name}: {link} leads nowhere" for link in _lost(path, page, pages)]
    return found


def _lost(path: Path, page: Page, pages: dict[Path, Page]) -> list[str]:
    lost = []
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        anchors = pages[target].anchors if target in pages else None
        missing = anchors is not None and parts.fragment and unquote(parts.fragment) not in anchors
        if not target.exists() or (missing and not parts.fragment.startswith("__")):
            lost.append(link)
    return lost
