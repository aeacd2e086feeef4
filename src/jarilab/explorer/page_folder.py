"""Saves a page as a folder: index.html, the models as ONNX, and ONNX Runtime Web."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.private_paths import relative_to_here
from jarilab.core.storage.files import write_bytes
from jarilab.explorer.page_file import saved_page
from jarilab.explorer.session import Explorer
from jarilab.export.onnx_file import check_packages, write_onnx

RUNTIME = "onnxruntime"
"""The folder of ONNX Runtime Web inside a page's, where `pages/kit/static/onnx.js` looks for it."""
RUNTIME_FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
DEFAULT_RUNTIME = Path("node_modules/onnxruntime-web/dist")
"""Where `npm install onnxruntime-web` puts it."""


def check(out: Path, runtime: Path) -> None:
    """Raises UserError for a folder that cannot be written or holds other files, and for a missing runtime."""
    check_packages()
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; expected a folder, such as page/")
    others = [path.name for path in out.iterdir() if not _is_of_page(path)] if out.exists() else []
    if others:
        raise UserError(
            f"{out} holds {sorted(others)[0]}, which is of no saved page; choose another folder"
        )
    missing = [name for name in RUNTIME_FILES if not (runtime / name).is_file()]
    if missing:
        raise UserError(
            f"{runtime / missing[0]} is not there: run `npm install onnxruntime-web` here, or say where its folder "
            "dist lies, with --onnx-runtime FOLDER"
        )


def _is_of_page(path: Path) -> bool:
    return path.name in ("index.html", RUNTIME) or path.match("model-*.onnx")


def write_models(
    explorer: Explorer, out: Path, runtime: Path, line: str, initial: dict[str, Any]
) -> dict[str, Any]:
    """Writes the models and the runtime, and returns the payload of the page.

    initial: the `site`, `head` and `steps` of `saved_page`. Raises UserError as `check` does, and if no model can be
    exported.
    """
    check(out, runtime)
    (out / RUNTIME).mkdir(parents=True, exist_ok=True)
    files = (out / f"model-{number}.onnx" for number in range(len(explorer.subjects)))
    page = saved_page(
        explorer,
        line,
        **initial,
        program=lambda model, inputs: write_onnx(model, inputs, next(files)),
    )
    _check_engines(page["views"])
    for name in RUNTIME_FILES:
        write_bytes(out / RUNTIME / name, (runtime / name).read_bytes())
    if runtime != DEFAULT_RUNTIME:
        page["again"] += ["--onnx-runtime", relative_to_here(str(runtime))]
    return page | {"folder": True}


def _check_engines(views: Sequence[dict[str, Any]]) -> None:
    """Raises UserError if no model of the page can run."""
    reasons = [view["engine"].get("why") for view in views]
    if all(reasons):
        raise UserError(f"no model of this page can run in a browser: {reasons[0][0]}")
