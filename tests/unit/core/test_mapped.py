"""Pages of mapped files: given back after a pass over all."""

import sys
from pathlib import Path

import numpy as np
import pytest

from jarilab.core.storage.mapped import release
from jarilab.data.text.scan import Keys, repeated
from jarilab.data.text.tokenizers import train

MEGABYTES = 96


def mapped_megabytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("RssFile:"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.full(MEGABYTES << 19, 9, np.uint16).tofile(tmp_path / "ids")
    return tmp_path / "ids"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_pass_over_a_mapped_file_leaves_no_pages(path: Path) -> None:
    ids, keys = np.memmap(path, np.uint16, "r"), np.memmap(path, np.uint64, "r")
    tokenizer = train("characters", ["abc"], size=10)
    before = mapped_megabytes()
    assert not tokenizer.has_unknown(ids)
    assert mapped_megabytes() < before + MEGABYTES // 2
    assert repeated(Keys(keys[: 1 << 20])) is not None
    assert mapped_megabytes() < before + MEGABYTES // 2
    assert ids.sum(dtype=np.int64) == 9 * len(ids), "what was released is read again"
    assert mapped_megabytes() > before + MEGABYTES // 2
    release(ids[7:])
    assert mapped_megabytes() < before + MEGABYTES // 2


def test_an_array_in_memory_stays_as_it_is() -> None:
    array = np.arange(10)
    release(array)
    assert array.tolist() == list(range(10))
