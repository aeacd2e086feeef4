"""The digest of a folder of weights, by which a study knows its model again."""

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from jarilab.huggingface.batches import _digest


def test_the_digest_of_a_folder_covers_every_tensor(tmp_path: Path) -> None:
    """Also those in the middle of a large file, of one that is split, and of another configuration."""
    (tmp_path / "config.json").write_text("{}")
    weights = {name: torch.zeros(400_000) for name in "abc"} | {"d": torch.zeros(3, dtype=torch.bfloat16)}
    digests = set()
    for changed in ("", "a", "b", "c", "d"):
        tensors = {name: each.clone() for name, each in weights.items()}
        if changed:
            tensors[changed][len(tensors[changed]) // 2] = 1
        save_file(tensors, tmp_path / "model-00002-of-00002.safetensors")
        digests.add(_digest(tmp_path))
    assert len(digests) == 5
    assert _digest(tmp_path) in digests
    save_file({"e": torch.zeros(2)}, tmp_path / "model-00001-of-00002.safetensors")
    digests.add(_digest(tmp_path))
    (tmp_path / "config.json").write_text("{ }")
    assert len({*digests, _digest(tmp_path)}) == 7
