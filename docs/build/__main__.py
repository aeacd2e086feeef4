"""Build the site: `make docs`, or `make docs FAST=1` to take the runs and pages that are kept from the last time.

`python docs/build --keep` also writes the numbers and figures of the runs into docs/site, where lessons are read in a
checkout.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping

import catalogue
import config
import expected
import header
import links
import live
import measured
import moved
import pages
import planted_heads
import reference
import runs
import stills
from places import CACHE, LANGUAGES, SITE


def main() -> None:
    """All steps in order. Raises SystemExit where a number or a link does not hold."""
    parser = argparse.ArgumentParser(prog="docs/build", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="take what is kept of the last time")
    parser.add_argument(
        "--keep", action="store_true", help="write numbers and figures into docs/site"
    )
    given = parser.parse_args()
    start = time.monotonic()
    if not given.fast:
        shutil.rmtree(CACHE, ignore_errors=True)
    print("runs", flush=True)
    runs.make()
    planted_heads.make()
    print("live pages", flush=True)
    live.make()
    print("laws", flush=True)
    catalogue.make()
    print("numbers", flush=True)
    numbers = known()
    stop(expected.problems(numbers))
    if given.keep:
        pages.keep(numbers)
        stills.keep(numbers)
    print("pages", flush=True)
    pages.assemble(numbers, {**reference.pages(), **catalogue.parts()})
    build()
    header.finish(SITE)
    moved.write(SITE)
    stop(links.problems(SITE))
    print(f"{SITE}/index.html, after {time.monotonic() - start:.0f} s")


def known() -> Mapping[str, object]:
    """The numbers that lessons quote, measured on the runs that are there."""
    path = CACHE / "numbers.json"
    if path.exists():
        return json.loads(path.read_text())
    numbers = measured.all_numbers()
    path.write_text(json.dumps(numbers, indent=1, ensure_ascii=False))
    return numbers


def build() -> None:
    """Both languages; the builder stops at a link or an anchor that is not there."""
    titles = pages.titles()
    for language in LANGUAGES:
        file = config.write(CACHE, language, titles)
        command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f"]
        if subprocess.run([*command, str(file)]).returncode:
            raise SystemExit(f"the builder refused {language}")
    shutil.rmtree(SITE, ignore_errors=True)
    for language in LANGUAGES:
        place = SITE if language == "en" else SITE / language
        shutil.copytree(CACHE / "built" / language, place, dirs_exist_ok=True)


def stop(found: list[str]) -> None:
    """Raises SystemExit where there are problems."""
    if found:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
