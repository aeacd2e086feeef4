"""A model as an ONNX file, which ONNX Runtime Web runs for a page in a folder: of any size, faster than a page alone.

The graph is the one that `program.py` makes of a forward: what is read, the places of tokens and the links of each site
are its inputs, in this order; scores and the weights of each site its outputs. What a page has to know beside the file
is a program without constants and nodes, see `program.py`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from jarilab.core.errors import UserError, import_optional
from jarilab.export.parts import Input
from jarilab.pages.program.inputs import Inputs
from jarilab.pages.program.program import Followed
from jarilab.pages.program.tracing import quiet

FORMAT = "jari onnx 1"
LARGEST_FILE = 2**31
"""Bytes that a file of ONNX may have."""


def check_packages() -> None:
    """Raises UserError where the packages that write ONNX are missing, naming the extra."""
    import_optional("onnx", "onnx")
    import_optional("onnxscript", "onnx")


@torch.no_grad()
def write_onnx(model: nn.Module, inputs: Inputs, path: Path) -> dict[str, Any]:
    """Write a model, and give what a page has to know of it. inputs: as of `program_of`.

    Raises UserError where the model is too large for one file, cannot be followed or written, or a package is missing.
    """
    check_packages()
    plain = copy.deepcopy(model).float().eval()
    _check_size(plain)
    followed = Followed(plain, inputs)
    save_onnx(followed.exported, path)
    exact = {"scores": 0.0, "weights": 0.0}
    return {
        "format": FORMAT,
        **followed.described,
        "file": path.name,
        "sites": followed.sites,
        "rounding": exact,
    }


def save_onnx(
    program: ExportedProgram, path: Path, inputs: Sequence[Input] = (), outputs: Sequence[str] = ()
) -> None:
    """Write a program. inputs, outputs: as they are to be called, where they are. Raises UserError for one too large,
    and for what cannot be written."""
    _check_size(program)
    names = [one.name for one in inputs]
    try:
        with quiet():
            made: Any = torch.onnx.export(
                program,
                input_names=names or None,
                output_names=list(outputs) or None,
                external_data=False,
                verbose=False,
            )
            made.save(path)
    except Exception as error:  # of many classes, by what an operator lacks
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"this model cannot be written as ONNX: {why}") from error
    _name_axes(path, inputs)


def _check_size(held: nn.Module | ExportedProgram) -> None:
    size = sum(parameter.nbytes for parameter in held.parameters())
    if size >= LARGEST_FILE:
        raise UserError(
            f"a file of ONNX has {LARGEST_FILE:,} bytes at most, and this model {size:,}; look into it live, with "
            "jarilab explore"
        )


def _name_axes(path: Path, inputs: Sequence[Input]) -> None:
    """Call free sizes `batch` and `source` in the file, where PyTorch says s77 and s20."""
    if not inputs:
        return
    onnx: Any = import_optional("onnx", "onnx")
    model = onnx.load(path)
    given = {one.name: one for one in model.graph.input}
    called: dict[str, str] = {}
    for one in inputs:
        sizes = given[one.name].type.tensor_type.shape.dim
        for size, axis in zip(sizes, one.axes, strict=True):
            if size.dim_param.isidentifier():
                called[size.dim_param] = str(axis)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                words = re.split(r"(\w+)", size.dim_param)
                size.dim_param = "".join(called.get(word, word) for word in words)
    onnx.save(model, path)
