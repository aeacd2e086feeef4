"""A run as a folder that transformers opens: for models that have an equal there.

    GPT-2       a language model whose positions are added to its input, pre-norm
    GPT-NeoX    the same with rotary positions
    Blenderbot  an encoder-decoder whose positions are added to its inputs, pre-norm
    Marian      the same, post-norm, with Marian's own sinusoids
    ViT         a Vision Transformer with a class token, whose positions are added to its patches, pre-norm

What is written is opened again and compared with the run, so that a difference nobody thought of is refused, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.export import image_processor, tokenizer
from jarilab.export.equal_decoders import of_language_model
from jarilab.export.equal_translators import of_encoder_decoder
from jarilab.export.equal_vision import of_vision
from jarilab.export.equals import Equal
from jarilab.export.output import check_close, check_empty, check_places, writing
from jarilab.huggingface import loading
from jarilab.models.base import Generates
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
    """Write the newest checkpoint of a run into `out`, a folder, with the tokenizers or the image processor of the run,
    and give what it is there (`kind`), what reads for it (`reads`), and how far its scores are from the run's.

    Raises UserError for a folder that is no run, an `out` that is not empty, a model that has no equal, a missing
    package, and where the folder reads or answers otherwise than the run.
    """
    out = check_empty(out)
    loading.library()
    loaded = load(run, trust_code=trust_code)
    check_places(loaded)
    with writing(out) as partial:
        made = write(loaded.model, partial, **_known(loaded.task))
        reads = tokenizer if isinstance(loaded.model, Generates) else image_processor
        return {**made, "reads": reads.write(loaded, partial)}


def _known(task: Any) -> dict[str, Any]:
    """What a task tells a folder of answers."""
    answers = task.longest.get("target") if "source" in task.longest else None
    return {"classes": getattr(task, "classes", ()), "longest": answers}


@torch.no_grad()
def write(
    model: nn.Module, out: Path, *, classes: Sequence[str] = (), longest: int | None = None
) -> dict[str, Any]:
    """The same of a model alone, into a folder that is there. classes: their names, where it has such. longest: tokens
    of an answer at most, where it writes such."""
    transformers = loading.library()
    make = EQUALS.get(type(model))
    if make is None:
        known = ", ".join(kind.__name__ for kind in EQUALS)
        raise UserError(
            f"{type(model).__name__} has no equal in transformers: expected one of {known}; write graphs by --to onnx "
            "or --to torch, or answer with `jarilab predict`"
        )
    equal = make(model)
    labels = {"id2label": dict(enumerate(map(str, classes)))} if classes else {}
    config = getattr(transformers, equal.config)(**equal.settings, **labels)
    made = getattr(transformers, equal.kind)(config).eval()
    made.load_state_dict(equal.weights)
    if made.can_generate():
        made.generation_config = _greedy(equal.settings, longest)
    made.save_pretrained(out)
    opened = loading.load(out)
    return {"kind": opened.kind, **check_close(equal.compared(opened.model))}


def _greedy(settings: Mapping[str, Any], longest: int | None) -> Any:
    """How a run answers, if nobody asks for more: what a kind of model has for itself, such as Blenderbot, which never
    repeats three tokens of its source, is left out."""
    numbers = {name: number for name, number in settings.items() if name.endswith("_token_id")}
    return loading.library().GenerationConfig(**numbers, max_new_tokens=longest)
