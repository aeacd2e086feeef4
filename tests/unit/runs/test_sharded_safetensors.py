"""Tensors that several processes write together."""

import itertools

import pytest
import torch
from safetensors.torch import load_file, save_file

from jarilab.runs.sharded_safetensors import write_joined

WHOLE = {
    "b.weight": torch.arange(15.0).reshape(5, 3),
    "a.한글": torch.arange(4).to(torch.bfloat16),
    "long": torch.arange(6, dtype=torch.int64),
    "step": torch.tensor(7.0),
    "random": torch.arange(5, dtype=torch.uint8),
}
CUT = ("b.weight", "a.한글", "long")


def rows(first, last):
    return {name: WHOLE[name][first:last].clone() for name in CUT}


@pytest.mark.parametrize("bounds", [(9,), (2, 9), (2, 4, 9), (4, 9, 9)])
def test_the_joined_file_is_the_one_of_whole_tensors(tmp_path, bounds):
    """Of some tensors the last part has no rows."""
    own = WHOLE | rows(0, bounds[0]) if bounds[1:] else WHOLE
    others = []
    for number, (first, last) in enumerate(itertools.pairwise(bounds)):
        others.append(tmp_path / f"part-{number}")
        save_file(rows(first, last), others[-1])
    write_joined(own, others, tmp_path / "joined")
    save_file(WHOLE, tmp_path / "whole")
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "whole").read_bytes()
    read = load_file(tmp_path / "joined")
    assert all(torch.equal(read[name], tensor) for name, tensor in WHOLE.items())
