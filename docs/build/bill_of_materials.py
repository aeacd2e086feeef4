"""What a release is made of: a bill of materials in CycloneDX, and the hashes of its files.

    python docs/build/bill_of_materials.py dist release    # what `make release` does

The bill lists what is installed here of the dependencies and of theirs, with versions and licences. It has no dates and
no serial number, so that whoever builds a commit in the same environment gets the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

NAME = "jarilab"
EXTRAS = ("all",)
"""Extras whose dependencies are listed beside those that are always installed."""
LICENCES = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "ISC License (ISCL)": "ISC",
    "ISC License": "ISC",
    "3-Clause BSD License": "BSD-3-Clause",
    "FreeBSD": "BSD-2-Clause",
    "Apache 2.0 License": "Apache-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""SPDX identifiers of what packages without an SPDX expression state: a classifier, or words of their own."""


def licence_of(name: str) -> str:
    """The licence that an installed package states, as an SPDX expression if it can be told."""
    about: Any = metadata.metadata(name)
    kinds = about.get_all("Classifier") or []
    named = [kind.rpartition("::")[2].strip() for kind in kinds if kind.startswith("License ::")]
    known = [LICENCES[kind] for kind in named if kind in LICENCES]
    text = about.get("License", "").partition("\n")[0][:60]
    return about.get("License-Expression") or (known or [LICENCES.get(text, text)])[0] or "unknown"


def packages(requirements: Iterable[str], extras: Iterable[str] = ("",)) -> Iterator[str]:
    """The packages that these requirements ask for, and what those ask for that are installed."""
    seen: set[tuple[str, str]] = set()
    queue = [(Requirement(each), extra) for each in requirements for extra in extras]
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        for own in ("", *requirement.extras):
            if (name, own) in seen:
                continue
            seen.add((name, own))
            yield name
            try:
                needs = metadata.requires(name) or []
            except metadata.PackageNotFoundError:  # see `component`
                continue
            queue += [(Requirement(each), own) for each in needs]


def component(name: str) -> dict[str, Any]:
    """A package in the bill. One that is not installed has no version, and standard error gets a warning."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        print(
            f"{name} is not installed, so its version and what it needs are missing; "
            "pip install '.[all]'",
            file=sys.stderr,
        )
        return {"type": "library", "name": name, "purl": f"pkg:pypi/{name}"}
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "licenses": [{"license": {"name": licence_of(name)}}],
    }


def bill(version: str) -> dict[str, Any]:
    """The bill of materials of this environment."""
    found = {*packages(metadata.requires(NAME) or [], ("", *EXTRAS))} - {NAME}
    components = [component(name) for name in sorted(found)]
    about = {
        "type": "library",
        "name": NAME,
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": about},
        "components": components,
    }


def hashes(folder: Path) -> str:
    """The SHA-256 of each file of a folder, as `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files
    )


def main(dist: str, out: str) -> None:
    """Write the bill and the hashes of the files in `dist` into the folder `out`."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(bill(metadata.version(NAME)), indent=2) + "\n"
    (folder / "jarilab.cdx.json").write_text(text, encoding="utf-8")
    (folder / "SHA256SUMS").write_text(hashes(Path(dist)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
