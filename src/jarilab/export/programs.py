"""Exports a run as ONNX or torch.export files with a description.

Each part of the model (`parts.py`) is a file. `jarilab.json` has what a program needs to run them: names, types and
shapes of inputs and outputs, tokens, how an answer starts and ends, and the preprocessing of pixels. It also has the
largest difference from the scores of the run, which is checked before anything is written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from jarilab._version import __version__
from jarilab.core.errors import UserError, import_optional
from jarilab.core.shapes import Tensor
from jarilab.core.storage.files import write_json
from jarilab.export.description import check_answer, described
from jarilab.export.image_parts import DetectorParts, VisionParts
from jarilab.export.onnx_file import OPSET, check_packages, save_onnx
from jarilab.export.output import check_close, check_empty, check_places, longest_of, writing
from jarilab.export.parts import LONG, Exportable, Part
from jarilab.export.readme import write_companions
from jarilab.export.text_parts import EncoderDecoderParts, LanguageModelParts
from jarilab.models.decoder import LanguageModel
from jarilab.models.detector import Detector
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.vision import VisionTransformer
from jarilab.pages.program.tracing import followed
from jarilab.runs.loaded import OpenRun, load

FORMAT = "jarilab export 1"
DESCRIPTION = "jarilab.json"

KINDS: dict[type, Callable[[Any], Exportable]] = {
    EncoderDecoder: EncoderDecoderParts,
    LanguageModel: LanguageModelParts,
    VisionTransformer: VisionParts,
    Detector: DetectorParts,
}


class Target(ABC):
    """A file format and its runtime. Raises UserError for a missing package."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    facts: ClassVar[Mapping[str, Any]] = {}
    """Of the format, for the description."""

    @abstractmethod
    def save(self, program: ExportedProgram, part: Part, path: Path) -> None:
        """Write a part. Raises UserError if that fails."""

    @abstractmethod
    def opened(self, path: Path, part: Part) -> Any:
        """A function from a list of input tensors to the outputs of a file."""


@final
class Onnx(Target):
    """Files for ONNX Runtime."""

    name, suffix, facts = "onnx", ".onnx", {"opset": OPSET}

    def __init__(self) -> None:
        check_packages()
        self.runtime: Any = import_optional("onnxruntime", "onnx")

    def save(self, program: ExportedProgram, part: Part, path: Path) -> None:
        save_onnx(program, path, inputs=part.inputs, outputs=part.outputs)

    def opened(self, path: Path, part: Part) -> Any:
        session = self.runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [one.name for one in part.inputs]

        def run(tensors: Sequence[Tensor]) -> list[Tensor]:
            arrays = [tensor.contiguous().numpy() for tensor in tensors]
            outputs = session.run(part.outputs, dict(zip(names, arrays, strict=True)))
            return [torch.from_numpy(array) for array in outputs]

        return run


@final
class Torch(Target):
    """Files for PyTorch, without the classes of the model."""

    name, suffix = "torch", ".pt2"

    def save(self, program: ExportedProgram, part: Part, path: Path) -> None:
        torch.export.save(program, path)

    def opened(self, path: Path, part: Part) -> Any:
        module = torch.export.load(path).module()
        return lambda tensors: module(*tensors)


TARGETS: dict[str, type[Target]] = {target.name: target for target in (Onnx, Torch)}


class _TensorFunction(nn.Module):
    """A function of any number of tensors."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *tensors: Tensor) -> Any:
        outputs = self.module(*tensors)
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def export(
    run: str | Path, out: str | Path, *, to: str, trust_code: bool = False
) -> dict[str, Any]:
    """Write the newest checkpoint of a run into the folder `out`, and return its description.

    to: `onnx` or `torch`. Raises UserError for a folder without a run, an `out` that is not empty, a model without
    parts, position IDs that a graph cannot count, a missing package, and files that answer differently from the run.
    """
    out = check_empty(out)
    target = TARGETS[to]()
    loaded = load(run, trust_code=trust_code)
    return write(loaded, out, target)


def write(loaded: OpenRun, out: Path, target: Target) -> dict[str, Any]:
    """Write a loaded run; see `export`."""
    model = exportable(loaded.model)
    check_places(loaded)
    with writing(out) as partial:
        description = {
            "format": FORMAT,
            **target.facts,
            **saved(model, partial, target, longest_of(loaded)),
            **described(loaded),
            "model": loaded.experiment.model,
            "step": loaded.step,
            "versions": {"jarilab": __version__, "torch": torch.__version__},
        }
        write_json(partial / DESCRIPTION, description)
        reads = write_companions(loaded, partial, target.name, **target.facts)
    return description | {"reads": reads}


@torch.no_grad()
def saved(
    model: Exportable, folder: Path, target: Target, longest: Mapping[str, int] = LONG
) -> dict[str, Any]:
    """Write the parts of a model, compare them with it up to `longest` tokens of each side; returns their description.

    Raises UserError if they differ.
    """
    runs: dict[str, Any] = {}
    parts = []
    for part in model.parts():
        path = folder / f"{part.name}{target.suffix}"
        target.save(program_of(part), part, path)
        runs[part.name] = target.opened(path, part)
        inputs = [one.described for one in part.inputs]
        parts.append({"file": path.name, "inputs": inputs, "outputs": list(part.outputs)})
    compared = model.compared(lambda name, tensors: runs[name](tensors), longest)
    return {"parts": parts, **check_close(compared)}


def exportable(model: nn.Module) -> Exportable:
    """A model as parts. Raises UserError for an unsupported model."""
    make = KINDS.get(type(model))
    if make is None:
        known = ", ".join(kind.__name__ for kind in KINDS)
        raise UserError(
            f"{type(model).__name__} cannot be exported as a graph: expected one of {known}; answer with `jarilab "
            "predict`, or for other programs with `jarilab serve`"
        )
    check_answer(model)
    return make(model)


def program_of(part: Part) -> ExportedProgram:
    """The exported part. Raises UserError if it cannot be exported."""
    # With AUTO an axis may become constant; `saved` then fails on inputs of other sizes.
    sizes = [dict.fromkeys(one.free, Dim.AUTO) for one in part.inputs]
    examples = tuple(one.example for one in part.inputs)
    return followed(_TensorFunction(part.module), examples, {"tensors": tuple(sizes)}, part.name)
