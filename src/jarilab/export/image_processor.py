"""Exports the preprocessing of images as an image processor of transformers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from jarilab.core.errors import UserError, import_optional
from jarilab.core.shapes import Tensor
from jarilab.core.storage.files import write_json
from jarilab.export.description import described
from jarilab.huggingface import loading
from jarilab.runs.loaded import OpenRun

FILE = "preprocessor_config.json"
BILINEAR = 2
"""Pillow's number of bilinear resampling."""
LEVELS = 255
"""Steps between black and white."""
NEAR, ROUNDED = 0.01, 1.01
"""Tolerances of a pixel in levels: of an image that has the size of the model, and of a resized one."""


def write(loaded: OpenRun, out: Path, *, in_colour: bool = True) -> str:
    """Write the image processor of a run; returns a sentence that says what was compared, or why there is none.

    in_colour: a grey image becomes three equal channels, see `equivalents.of_vision`.
    """
    pixels = described(loaded)["pixels"]
    factor, offset = (
        torch.tensor(pixels[name], dtype=torch.float64) for name in ("factor", "offset")
    )
    _, height, width = pixels["shape"]
    if in_colour:
        factor, offset = factor.expand(3), offset.expand(3)
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": in_colour,
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / LEVELS,
        "do_normalize": True,
        "image_mean": (-offset / factor).tolist(),
        "image_std": (1 / factor).tolist(),
    }
    write_json(out / FILE, settings)
    try:
        _compare(loaded, out, tuple(pixels["shape"]), factor)
    except UserError as error:
        (out / FILE).unlink()
        return f"no {FILE}: {error}"
    return f"{FILE}, which makes of images what the run does"


def _compare(loaded: OpenRun, out: Path, shape: tuple[int, int, int], factor: Tensor) -> None:
    """Raises UserError if the processor and the run turn an image into different numbers, and without Pillow."""
    library: Any = import_optional("PIL.Image", "vision")
    task: Any = loaded.task
    opened = loading.Loaded(out, loaded.model).image_processor
    channels, height, width = shape
    generator = torch.Generator().manual_seed(1)
    wider, higher = (2 * height, 3 * width + 1), (3 * height + 1, width)
    for size in ((height, width), wider, higher, (max(1, height // 2), width)):
        pixels_HWC = torch.randint(256, (*size, channels), generator=generator, dtype=torch.uint8)
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "drawn.png"
            picture = library.fromarray(pixels_HWC.squeeze(-1).numpy())
            picture.save(path)
            expected_CHW = task.sources([task.read(str(path))]).pixels[0]
        expected_CHW = expected_CHW.expand(len(factor), -1, -1)
        processed_CHW = opened(images=picture, return_tensors="pt")["pixel_values"][0]
        if processed_CHW.shape != expected_CHW.shape:
            raise UserError(f"an image becomes {tuple(processed_CHW.shape)}, not {shape}")
        difference = (processed_CHW - expected_CHW).abs() / factor.view(-1, 1, 1) * LEVELS
        if not float(difference.max()) <= (NEAR if size == (height, width) else ROUNDED):
            raise UserError(
                f"no image processor brings images of {size[0]} x {size[1]} pixels to {height} x {width} as the run "
                "does; bring them there first, and take the mean and deviation of pixels from its jarilab.json: "
                "--to onnx writes it"
            )
