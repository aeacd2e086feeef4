"""Exports a run as a folder of transformers, if an equivalent model exists.

    GPT-2       a language model with added positions, pre-norm
    GPT-NeoX    the same with rotary positions
    Blenderbot  an encoder-decoder with added positions, pre-norm
    Marian      the same, post-norm, with Marian's sinusoids
    ViT         a Vision Transformer with a class token and added positions, pre-norm

The folder is opened again and compared with the run. A difference is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.export.equivalents import Equivalent, of_encoder_decoder, of_language_model, of_vision
from jarilab.export.output import check_close, check_empty, check_places, longest_of, writing
from jarilab.export.parts import LONG
from jarilab.export.readme import write_companions
from jarilab.huggingface import loading
from jarilab.models.decoder import LanguageModel
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.vision import VisionTransformer
from jarilab.runs.loaded import load

EQUIVALENTS: dict[type, Callable[[Any, Mapping[str, int]], Equivalent]] = {
    LanguageModel: of_language_model,
    EncoderDecoder: of_encoder_decoder,
    VisionTransformer: of_vision,
}


def export(run: str | Path, out: str | Path, *, trust_code: bool = False) -> dict[str, Any]:
    """Write the newest checkpoint of a run into the folder `out`, with its tokenizers or its image processor.

    Returns the class (`kind`), its tokenizer or image processor (`reads`), and the largest difference of scores.

    Raises UserError for a folder without a run, an `out` that is not empty, a model without equivalent, or a missing
    package. Raises it also if the written folder reads or answers differently from the run.
    """
    out = check_empty(out)
    loading.library()
    loaded = load(run, trust_code=trust_code)
    check_places(loaded)
    with writing(out) as partial:
        task = loaded.task
        report = write(
            loaded.model,
            partial,
            classes=getattr(task, "classes", ()),
            longest=longest_of(loaded),
            answer=task.longest.get("target") if "source" in task.longest else None,
        )
        return {**report, "reads": write_companions(loaded, partial, "huggingface")}


@torch.no_grad()
def write(
    model: nn.Module,
    out: Path,
    *,
    classes: Sequence[str] = (),
    longest: Mapping[str, int] = LONG,
    answer: int | None = None,
) -> dict[str, Any]:
    """Write a model into an existing folder, and compare it up to `longest` tokens of each side.

    classes: their names. answer: tokens of an answer at most.
    """
    transformers = loading.library()
    make = EQUIVALENTS.get(type(model))
    if make is None:
        known = ", ".join(kind.__name__ for kind in EQUIVALENTS)
        raise UserError(
            f"{type(model).__name__} has no equivalent in transformers: expected one of {known}; answer with "
            "`jarilab predict`; --to onnx has graphs of other models"
        )
    equivalent = make(model, longest)
    labels = {"id2label": dict(enumerate(map(str, classes)))} if classes else {}
    config = getattr(transformers, equivalent.config)(**equivalent.settings, **labels)
    exported = getattr(transformers, equivalent.kind)(config).eval()
    exported.load_state_dict(equivalent.weights)
    if exported.can_generate():
        # The generation settings of the run, without a model family's own defaults.
        ids = {name: id_ for name, id_ in equivalent.settings.items() if name.endswith("_token_id")}
        greedy = loading.library().GenerationConfig(**ids, max_new_tokens=answer)
        exported.generation_config = greedy
    exported.save_pretrained(out)
    opened = loading.load(out)
    return {"kind": opened.kind, **check_close(equivalent.compared(opened.model, longest))}
