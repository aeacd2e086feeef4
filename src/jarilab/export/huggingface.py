"""A run as a folder that transformers opens: for models that have an equal there.

    GPT-2       a language model whose positions are added to its input, pre-norm
    GPT-NeoX    the same with rotary positions
    Blenderbot  an encoder-decoder whose positions are added to its inputs, pre-norm
    Marian      the same, post-norm, with Marian's own sinusoids
    ViT         a Vision Transformer with a class token, whose positions are added to its patches, pre-norm

What is written is opened again and compared with the run, so that a difference nobody thought of is refused, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jarilab.errors import UserError
from jarilab.export.closeness import check_close, check_places
from jarilab.export.equal_decoders import of_language_model
from jarilab.export.equal_translators import of_encoder_decoder
from jarilab.export.equal_vision import of_vision
from jarilab.export.equals import Equal
from jarilab.export.out import check_empty, writing
from jarilab.huggingface import folder
from jarilab.models.decoder import LanguageModel
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.vision import VisionTransformer
from jarilab.runs.loaded import load

EQUALS: dict[type, Callable[[Any], Equal]] = {
    LanguageModel: of_language_model,
    EncoderDecoder: of_encoder_decoder,
    VisionTransformer: of_vision,
}


def export(run: str | Path, out: str | Path, *, trust_code: bool = False) -> dict[str, Any]:
    """Write the newest checkpoint of a run into `out`, a folder, and give what it is there (`kind`), and how far its
    scores are from the run's.

    Raises UserError for a folder that is no run, an `out` that is not empty, a model that has no equal, a missing
    package, and where the folder answers otherwise than the run.
    """
    out = check_empty(out)
    folder.library()
    loaded = load(run, trust_code=trust_code)
    check_places(loaded)
    with writing(out) as partial:
        return write(loaded.model, partial)


@torch.no_grad()
def write(model: nn.Module, out: Path) -> dict[str, Any]:
    """The same of a model, into a folder that is there."""
    transformers = folder.library()
    make = EQUALS.get(type(model))
    if make is None:
        known = ", ".join(kind.__name__ for kind in EQUALS)
        raise UserError(
            f"{type(model).__name__} has no equal in transformers: expected one of {known}; write graphs by --to onnx "
            "or --to torch, or answer with `jarilab predict`"
        )
    equal = make(model)
    config = getattr(transformers, equal.config)(**equal.settings)
    made = getattr(transformers, equal.kind)(config).eval()
    made.load_state_dict(equal.weights)
    made.save_pretrained(out)
    opened = folder.load(out)
    return {"kind": opened.kind, **check_close(equal.compared(opened.model))}
