"""A run as programs of tensors: files of ONNX, or of torch.export, beside a description of what they read.

Each part of the model (`parts.py`) is a file. `jarilab.json` says what a person needs to run them without jari: names,
types and shapes of inputs and outputs, tokens, how an answer starts and ends, how pixels become numbers, and how far
scores are from what the run itself says, which is measured before anything is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from jarilab._version import __version__
from jarilab.core.errors import UserError, import_optional
from jarilab.core.shapes import Tensor
from jarilab.core.storage.files import write_json
from jarilab.export.description import described
from jarilab.export.image_parts import DetectorParts, VisionParts
from jarilab.export.onnx_file import check_packages, save_onnx
from jarilab.export.output import check_close, check_empty, check_places, writing
from jarilab.export.parts import Exportable, Part
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
    """A kind of file, and what runs it. Raises UserError where a package is missing."""

    name: ClassVar[str]
    suffix: ClassVar[str]

    @abstractmethod
    def save(self, program: ExportedProgram, part: Part, path: Path) -> None:
        """Raises UserError for what cannot be written."""

    @abstractmethod
    def opened(self, path: Path, part: Part) -> Any:
        """What computes the outputs of a file from inputs: a function of a sequence of tensors."""


@final
class Onnx(Target):
    """Run by ONNX Runtime."""

    name, suffix = "onnx", ".onnx"

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
            found = session.run(part.outputs, dict(zip(names, arrays, strict=True)))
            return [torch.from_numpy(array) for array in found]

        return run


@final
class Torch(Target):
    """Run by PyTorch, without the classes of the model."""

    name, suffix = "torch", ".pt2"

    def save(self, program: ExportedProgram, part: Part, path: Path) -> None:
        torch.export.save(program, path)

    def opened(self, path: Path, part: Part) -> Any:
        module = torch.export.load(path).module()
        return lambda tensors: module(*tensors)


TARGETS: dict[str, type[Target]] = {target.name: target for target in (Onnx, Torch)}


class _Listed(nn.Module):
    """A function of tensors, however many."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *tensors: Tensor) -> Any:
        found = self.module(*tensors)
        return (found,) if isinstance(found, Tensor) else tuple(found)


def export(
    run: str | Path, out: str | Path, *, to: str, trust_code: bool = False
) -> dict[str, Any]:
    """Write the newest checkpoint of a run into `out`, a folder, and give what its description says.

    to: `onnx` or `torch`. Raises UserError for a folder that is no run, an `out` that is not empty, a model without
    parts, places that a graph cannot count, a missing package, and where the files answer otherwise than the run.
    """
    out = check_empty(out)
    target = TARGETS[to]()
    loaded = load(run, trust_code=trust_code)
    return write(loaded, out, target)


def write(loaded: OpenRun, out: Path, target: Target) -> dict[str, Any]:
    """As `export`."""
    found = exportable(loaded.model)
    check_places(loaded)
    with writing(out) as partial:
        description = {
            "format": FORMAT,
            **saved(found, partial, target),
            **described(loaded),
            "model": loaded.experiment.model,
            "step": loaded.step,
            "versions": {"jarilab": __version__, "torch": torch.__version__},
        }
        write_json(partial / DESCRIPTION, description)
    return description


@torch.no_grad()
def saved(found: Exportable, folder: Path, target: Target) -> dict[str, Any]:
    """Write the parts of a model, open the files, and compare them with it. Raises UserError where they differ."""
    runs: dict[str, Any] = {}
    parts = []
    for part in found.parts():
        path = folder / f"{part.name}{target.suffix}"
        target.save(program_of(part), part, path)
        runs[part.name] = target.opened(path, part)
        inputs = [one.described for one in part.inputs]
        parts.append({"file": path.name, "inputs": inputs, "outputs": list(part.outputs)})
    compared = found.compared(lambda name, tensors: runs[name](tensors))
    return {"parts": parts, **check_close(compared)}


def exportable(model: nn.Module) -> Exportable:
    """Raises UserError for a model that nobody has taken apart."""
    found = KINDS.get(type(model))
    if found is None:
        known = ", ".join(kind.__name__ for kind in KINDS)
        raise UserError(
            f"{type(model).__name__} cannot be exported as a graph: expected one of {known}; answer with `jarilab "
            "predict`, or for other programs with `jarilab serve`"
        )
    return found(model)


def program_of(part: Part) -> ExportedProgram:
    """Raises UserError where `torch.export` cannot follow it, and for axes whose size would not stay free."""
    sizes = [dict.fromkeys(one.free, Dim.AUTO) for one in part.inputs]
    examples = tuple(one.example for one in part.inputs)
    return followed(_Listed(part.module), examples, {"tensors": tuple(sizes)}, part.name)
