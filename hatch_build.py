"""What a package index shows of a release: where the repository is, and the README with links that lead there.

`JARILAB_REPOSITORY` is its address, which `make release REPOSITORY=https://...` gives; without it, as in an editable
install, nothing is added, and the README stays as it is. The wheel is built from the sdist, whose PKG-INFO holds all
of it: whoever builds from that needs no address.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "JARILAB_REPOSITORY"
ADDRESS = re.compile(r"https://[^\s/<>]+(/[^\s/<>]+)+")
LINK = re.compile(r"(!?\[[^\]]*\])\((?!\w+:)([^)\s]+)\)")
UNKNOWN = "<this repository's address>"


def checked(address: str) -> str:
    """Raises ValueError for what is no address of a repository."""
    if not ADDRESS.fullmatch(address):
        raise ValueError(
            f"expected the address of a repository, such as https://host/owner/name, without a slash behind it; got "
            f"{address!r}: give it as make release REPOSITORY=..."
        )
    return address


def urls(address: str, version: str) -> dict[str, str]:
    """What the index shows beside the text."""
    return {
        "Homepage": address,
        "Repository": address,
        "Documentation": f"{address}/tree/v{version}/docs",
        "Changelog": f"{address}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def absolute(text: str, address: str, version: str) -> str:
    """The README with links to the files of this version, and commands that name the repository."""

    def led(found: re.Match[str]) -> str:
        shown, to = found.groups()
        kind = "raw" if shown.startswith("!") else "blob"
        path = f"README.md{to}" if to.startswith("#") else to
        return f"{shown}({address}/{kind}/v{version}/{path})"

    return LINK.sub(led, text).replace(UNKNOWN, address)


class Addressed(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        given = os.environ.get(VARIABLE, "")
        metadata["readme"], metadata["urls"] = "README.md", {}
        if given:
            address, version = checked(given), metadata["version"]
            text = Path(self.root, "README.md").read_text(encoding="utf-8")
            text = absolute(text, address, version)
            metadata["readme"] = {"content-type": "text/markdown", "text": text}
            metadata["urls"] = urls(address, version)
