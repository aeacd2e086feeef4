"""From how many keys on which kernel is taken: the package's lengths, or those that `jarilab tune` measured and kept on
this machine. A run is trained with one set of them from its first step to its last, since bits depend on them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from platformdirs import user_config_path

from jarilab.devices import processor
from jarilab.errors import UserError, unknown
from jarilab.options import check_fields, validated
from jarilab.storage.files import read_json, write_json

FORMAT = 1
FIELDS = {
    "format": Literal[1],
    "machine": dict[str, str],
    "gpu": str | None,
    "threads": int,
    "measured": str,
    "crossings": dict[str, int],
}
"""What the kept file holds."""
OF_THE_PACKAGE = "package"
"""The word for the package's own lengths."""
OFF = "off"
"""What JARILAB_TUNED says where no kept file is to be read."""


@dataclass(frozen=True)
class Crossings:
    """Each is the number of keys from which on the kernel of its name is taken. What stands here was measured on a CPU
    with AVX-512 BF16 and PyTorch 2.13 (docs/results/long.md), `flex` on no GPU yet.

    fused_*: PyTorch's kernel instead of explicit products, on a CPU. blocks_*: some queries at a time, of as many
    queries, too; in float32 that wins from some 256 on, but trainings of shorter sequences stay what they were. flex:
    FlexAttention, on a GPU.
    """

    fused_float32: int = 49
    fused_bfloat16: int = 1025
    blocks_float32: int = 512
    blocks_bfloat16: int = 1024
    flex: int = 128

    def fused(self, dtype: torch.dtype) -> int:
        """Of any other dtype PyTorch's kernel computes all there is."""
        lengths = {torch.float32: self.fused_float32, torch.bfloat16: self.fused_bfloat16}
        return max(1, lengths.get(dtype, 1))

    def blocks(self, dtype: torch.dtype) -> int:
        return self.blocks_bfloat16 if dtype is torch.bfloat16 else self.blocks_float32

    def __str__(self) -> str:
        """As `read` takes it, and as a run's record keeps it."""
        return ",".join(f"{name}={keys}" for name, keys in asdict(self).items())

    @staticmethod
    def of(lengths: Mapping[str, Any]) -> Crossings:
        """Those that are named; the others are the package's. Raises UserError."""
        names = [field.name for field in fields(Crossings)]
        read = {}
        for name, keys in lengths.items():
            if name not in names:
                raise unknown("crossing point", name, names)
            try:
                read[name] = validated(Annotated[int, Ge(0)], keys)
            except UserError as error:
                raise UserError(f"crossings: {name}: expected a number of keys: {error}") from None
        return Crossings(**read)

    @staticmethod
    def read(text: str) -> Crossings:
        """`package`, or such as `blocks_float32=256,flex=64`. Raises UserError."""
        if text == OF_THE_PACKAGE:
            return PACKAGE
        pairs = [piece.partition("=") for piece in text.split(",")]
        return Crossings.of({name.strip(): keys.strip() for name, _, keys in pairs})


PACKAGE = Crossings()

_chosen: Crossings | None = None
"""Those in use, once they are known. One for the whole process: a backward pass that computes a layer again does so in
a thread of its own."""
_told: set[str] = set()


def current() -> Crossings:
    """Those that kernels are chosen by: of `using`, else of this machine."""
    global _chosen
    if _chosen is None:
        _chosen = of_this_machine()
    return _chosen


@contextmanager
def using(crossings: Crossings) -> Iterator[None]:
    """Inside the block kernels are chosen by these, in all threads."""
    global _chosen
    before, _chosen = _chosen, crossings
    try:
        yield
    finally:
        _chosen = before


def of_this_machine() -> Crossings:
    """Those that `jarilab tune` kept here, where they are of this processor and PyTorch; else the package's. Why a file
    is not used is said once."""
    path = kept_file()
    if path is None or not os.path.lexists(path):
        return PACKAGE
    try:
        return _fitting(path)
    except UserError as error:
        if str(error) not in _told:
            _told.add(str(error))
            print(
                f"jarilab: {error}; kernels are chosen by the package's crossing points: `jarilab tune` measures them "
                "anew, `jarilab tune --forget` removes the file",
                file=sys.stderr,
            )
        return PACKAGE


def tell_difference(where: object, begun: Crossings, here: Crossings) -> None:
    """Say that what goes on keeps the lengths it was begun with, where they are not those of now."""
    then, now = asdict(begun), asdict(here)
    differ = [f"{name} {then[name]}, now {now[name]}" for name in then if then[name] != now[name]]
    if differ:
        print(
            f"jarilab: {where} goes on by the crossing points of kernels that it was begun with, which bits depend on: "
            f"{'; '.join(differ)}",
            file=sys.stderr,
        )


def kept_file() -> Path | None:
    """Where they are kept: $JARILAB_TUNED, else where the system keeps a person's settings, ~/.config/jarilab on Linux;
    None where JARILAB_TUNED is `off`."""
    own = os.environ.get("JARILAB_TUNED")
    if own == OFF:
        return None
    if own:
        return Path(own).expanduser()
    return user_config_path("jarilab", appauthor=False) / "kernels.json"


def keep(crossings: Crossings) -> Path:
    """Keep what was measured here, for this machine. Raises UserError where that cannot be."""
    global _chosen
    path = file_to_keep()
    record = {
        "format": FORMAT,
        "machine": _machine(),
        "gpu": gpu_here(),
        "threads": torch.get_num_threads(),
        "measured": time.strftime("%Y-%m-%d"),
        "crossings": asdict(crossings),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path.parent} cannot be made: {error.strerror or error}") from None
    write_json(path, record)
    _chosen = None  # read anew
    return path


def forget() -> Path | None:
    """Go back to the package's; gives the file that was removed, None where there was none. Raises UserError."""
    global _chosen
    path = file_to_keep()
    if not os.path.lexists(path):
        return None
    try:
        path.unlink()
    except OSError as error:
        raise UserError(f"{path} cannot be removed: {error.strerror or error}") from None
    _chosen = None
    return path


def gpu_here() -> str | None:
    """The name of the GPU that `flex` is of."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def file_to_keep() -> Path:
    """Where they are kept. Raises UserError where none are to be."""
    path = kept_file()
    if path is None:
        raise UserError(
            f"JARILAB_TUNED is {OFF}, so that no crossing points are kept; unset it, or give --dry-run to only measure"
        )
    return path


def _machine() -> dict[str, str]:
    """What lengths are measured for."""
    return {**processor(), "torch": torch.__version__}


def _fitting(path: Path) -> Crossings:
    """Those of a file. Raises UserError where it is none, or of another machine."""
    record = read_json(path)
    check_fields(str(path), FIELDS, record)
    then, here = record["machine"], _machine()
    differ = [
        f"{name} was {then.get(name)}, is {here[name]}"
        for name in here
        if then.get(name) != here[name]
    ]
    if record["gpu"] is not None and gpu_here() not in (None, record["gpu"]):
        differ.append(f"gpu was {record['gpu']}, is {gpu_here()}")
    if differ:
        raise UserError(f"{path} was measured elsewhere ({'; '.join(differ)})")
    try:
        return Crossings.of(record["crossings"])
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
