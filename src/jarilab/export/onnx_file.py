"""Writes a model as ONNX, which ONNX Runtime Web runs for a page in a folder.

Its inputs are those of a program (`pages/program`) in the same order: what is read, positions and the mask of each
site. Its outputs are the scores and the weights of each site. The page gets a program without constants and nodes.
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
OPSET = 18
"""The version of ONNX's operators."""
LARGEST_FILE = 2**31
"""Bytes of an ONNX file, which is one message of protobuf."""


def check_packages() -> None:
    """Raises UserError if the packages that write ONNX are missing."""
    import_optional("onnx", "onnx")
    import_optional("onnxscript", "onnx")


@torch.no_grad()
def write_onnx(model: nn.Module, inputs: Inputs, path: Path) -> dict[str, Any]:
    """Write a model and return its description for the page. inputs: see `program_of`.

    Raises UserError for a model that is too large or cannot be exported, and for a missing package.
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
    """Write an exported program. inputs, outputs: their names. Raises UserError for one too large or not supported."""
    _check_size(program)
    names = [one.name for one in inputs]
    try:
        with quiet():
            exported: Any = torch.onnx.export(
                program,
                input_names=names or None,
                output_names=list(outputs) or None,
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
            exported.save(path)
    except Exception as error:  # of many classes
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"this model cannot be written as ONNX: {why}") from error
    _name_axes(path, inputs)


def _check_size(model: nn.Module | ExportedProgram) -> None:
    size = sum(parameter.nbytes for parameter in model.parameters())
    if size >= LARGEST_FILE:
        raise UserError(
            f"a file of ONNX has {LARGEST_FILE:,} bytes at most, and this model {size:,}; look into it live, with "
            "jarilab explore"
        )


def _name_axes(path: Path, inputs: Sequence[Input]) -> None:
    """Name the dynamic axes `batch`, `source`, ... in the file, instead of PyTorch's s77 and s20."""
    if not inputs:
        return
    onnx: Any = import_optional("onnx", "onnx")
    model = onnx.load(path)
    graph_inputs = {value.name: value for value in model.graph.input}
    axis_names: dict[str, str] = {}
    for entry in inputs:
        sizes = graph_inputs[entry.name].type.tensor_type.shape.dim
        for size, axis in zip(sizes, entry.axes, strict=True):
            if size.dim_param.isidentifier():
                axis_names[size.dim_param] = str(axis)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                words = re.split(r"(\w+)", size.dim_param)
                size.dim_param = "".join(axis_names.get(word, word) for word in words)
    onnx.save(model, path)
