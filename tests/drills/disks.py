"""Small disks, made of memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


class Disk:
    """A tmpfs on a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.folder)], check=True)


@contextlib.contextmanager
def disk(folder: Path, options: str) -> Iterator[Disk]:
    """A disk with these options of mount, gone when the block ends."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def why_no_disks(folder: Path) -> str:
    """Why none can be made here; nothing where they can."""
    if os.geteuid() != 0:
        return "only root may mount a small disk"
    try:
        with disk(folder / "probe", "size=64k"):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no small disk can be mounted: {error}"
