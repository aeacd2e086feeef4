"""What a model reads of a line: a text, the name of an image file, or that of a sound."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jarilab.core.errors import UserError, import_optional
from jarilab.huggingface.folder import Loaded, in_a_sentence
from jarilab.huggingface.saying import Says, names_of, says_class, says_of_text, says_written

LONGEST_LINE = 2048
"""Tokens of a line: a map has their square."""
LONGEST_ANSWER = 48
"""Tokens that are written at most."""
SPECIAL = "class"


@dataclass(frozen=True, eq=False)
class Reading:
    """inputs: what the model is called with, a batch of one. names: of the tokens of each side, `source` and `target`,
    where they are known. answer: what it makes of it, in words; None where it says nothing. says: the scores that this
    answer is, where it is some. grid: rows and columns of patches that an image was cut into, where that is known."""

    inputs: dict[str, Any]
    names: dict[str, list[str]]
    answer: str | None = None
    says: Says | None = None
    grid: tuple[int, int] | None = None


@torch.no_grad()
def read(loaded: Loaded, line: str) -> Reading:
    """Read a line, and answer it. Raises UserError for what the model cannot read."""
    reads = FILES.get(_main_input(loaded))
    return _text(loaded, line) if reads is None else reads(loaded, line.strip())


def reads_files(loaded: Loaded) -> bool:
    """Whether a line names a file."""
    return _main_input(loaded) in FILES


def _main_input(loaded: Loaded) -> str:
    return str(getattr(loaded.model, "main_input_name", "input_ids"))


# Text ----------------------------------------------------------------------------------------------------------------


def _text(loaded: Loaded, line: str) -> Reading:
    tokenizer = loaded.tokenizer
    with in_a_sentence(f"the tokenizer of {loaded.name} cannot read this line"):
        encoded = tokenizer(line, return_tensors="pt")
    ids_BL = encoded["input_ids"]
    _check_ids(loaded, ids_BL)
    inputs = {name: value for name, value in encoded.items() if name in _known(loaded)}
    ids = ids_BL[0].tolist()
    names = names_of(tokenizer)(ids)
    if loaded.config.is_encoder_decoder:
        return _written(loaded, inputs, {"source": names})
    with in_a_sentence(f"{loaded.name} cannot read this line"):
        output = loaded.model(**inputs)
    says = says_of_text(loaded, ids, output)
    answer = None if says is None else says.answer(output)
    return Reading(inputs, {"source": names, "target": names}, answer, says)


def _check_ids(loaded: Loaded, ids_BL: Tensor) -> None:
    length = ids_BL.shape[1]
    if length == 0:
        raise UserError("there is nothing to read: the line has no tokens; give some text")
    longest = _longest(loaded)
    if length > longest:
        raise UserError(
            f"{loaded.name} reads {longest} tokens at most, and the line has {length}; give a shorter one"
        )
    model: Any = loaded.model
    known = len(model.get_input_embeddings().weight)
    if int(ids_BL.max()) >= known:
        raise UserError(
            f"{loaded.name}: its tokenizer gives the id {int(ids_BL.max())}, and the model knows {known} tokens; the "
            "two are not of one model"
        )


def _longest(loaded: Loaded) -> int:
    """Tokens that a model reads, and a page shows. Tables like RoBERTa's begin behind the number of padding."""
    places = getattr(loaded.config, "max_position_embeddings", None)
    if not isinstance(places, int) or places < 1:
        return LONGEST_LINE
    modules: list[Any] = list(loaded.model.modules())
    tables = [module for module in modules if getattr(module, "num_embeddings", 0) == places]
    paddings = [table.padding_idx for table in tables if table.padding_idx is not None]
    behind = max(paddings, default=-1) + 1
    return min(places - behind, LONGEST_LINE)


def _written(loaded: Loaded, inputs: dict[str, Any], names: dict[str, list[str]]) -> Reading:
    """With what the decoder writes, greedily; a model without a head reads its source once more, and says nothing."""
    model: Any = loaded.model
    writes = hasattr(model, "generate") and model.get_output_embeddings() is not None
    written_BL = _write(loaded, inputs) if writes else inputs["input_ids"]
    start = getattr(loaded.config, "decoder_start_token_id", None)
    if start is not None and int(written_BL[0, 0]) != start:  # as Whisper gives its answers
        written_BL = torch.cat((written_BL.new_tensor([[start]]), written_BL), 1)
    read_BL = written_BL[:, :-1] if written_BL.shape[1] > 1 else written_BL
    target = names_of(loaded.target_tokenizer)(read_BL[0].tolist())
    inputs_of_both = {**inputs, "decoder_input_ids": read_BL}
    named = {**names, "target": target}
    if not writes:
        return Reading(inputs_of_both, named)

    def told(written_BL: Tensor) -> str:
        return loaded.target_tokenizer.decode(written_BL[0], skip_special_tokens=True)

    says = says_written(loaded, written_BL[0].tolist(), lambda: told(_write(loaded, inputs)))
    return Reading(inputs_of_both, named, told(written_BL), says)


def _write(loaded: Loaded, inputs: dict[str, Any]) -> Tensor:
    model: Any = loaded.model
    with in_a_sentence(f"{loaded.name} cannot answer this line"):
        return model.generate(
            **inputs,
            max_new_tokens=min(LONGEST_ANSWER, _longest(loaded) - 1),
            do_sample=False,
            num_beams=1,
            # A step of a cache has one query, and which one it is cannot be told where it looks at the source.
            use_cache=False,
        )


def _known(loaded: Loaded) -> set[str]:
    return set(inspect.signature(loaded.model.forward).parameters)


# Images and sounds ---------------------------------------------------------------------------------------------------


def _image(loaded: Loaded, line: str) -> Reading:
    path = _file(line, "an image")
    library: Any = import_optional("PIL.Image", "vision")
    try:
        with library.open(path) as opened:
            grey = getattr(loaded.config, "num_channels", None) == 1
            picture = opened.convert("L" if grey else "RGB")
    except (OSError, ValueError, library.DecompressionBombError) as error:
        raise UserError(f"{path} could not be read as an image: {error}") from None
    pixels = loaded.image_processor(images=picture, return_tensors="pt")["pixel_values"]
    with in_a_sentence(f"{loaded.name} cannot read {path}"):
        output = loaded.model(pixel_values=pixels)
    grid = _grid(loaded, pixels)
    names = {} if grid is None else {"source": _patches(*grid)}
    says = says_class(loaded, output)
    answer = None if says is None else says.answer(output)
    return Reading({"pixel_values": pixels}, names, answer, says, grid)


def _grid(loaded: Loaded, pixels: Tensor) -> tuple[int, int] | None:
    size = getattr(loaded.config, "patch_size", None)
    if not isinstance(size, int):
        return None
    return pixels.shape[-2] // size, pixels.shape[-1] // size


def _patches(rows: int, columns: int) -> list[str]:
    """`row,column` of each patch behind the class token, in words where the model has such."""
    places = [f"{row},{column}" for row in range(rows) for column in range(columns)]
    return [SPECIAL, *places]


def _sound(loaded: Loaded, line: str) -> Reading:
    from scipy.io import wavfile
    from scipy.signal import resample_poly

    path = _file(line, "a sound (.wav)")
    try:
        rate, wave = wavfile.read(path)
    except (ValueError, OSError) as error:
        raise UserError(f"{path} could not be read as a sound: {error}; give a .wav file") from None
    if not len(wave):
        raise UserError(f"{path} holds no sound; give a .wav file that is longer")
    extractor = loaded.feature_extractor
    heard = resample_poly(
        _mono(torch.as_tensor(wave.copy())).numpy(), extractor.sampling_rate, rate
    )
    encoded = extractor(heard, sampling_rate=extractor.sampling_rate, return_tensors="pt")
    inputs = {name: value for name, value in encoded.items() if name in _known(loaded)}
    if loaded.config.is_encoder_decoder:
        return _written(loaded, inputs, {})
    return Reading(inputs, {})


def _mono(wave: Tensor) -> Tensor:
    """One channel from -1 to 1, as loud as the file says: whole numbers over the largest, 8 bits around 128."""
    sound = wave.double()
    if wave.dtype == torch.uint8:
        sound = (sound - 128) / 128
    elif not wave.dtype.is_floating_point:
        sound = sound / -torch.iinfo(wave.dtype).min
    return sound.mean(-1) if sound.ndim == 2 else sound


def _file(line: str, what: str) -> Path:
    path = Path(line)
    try:
        there = path.is_file()
    except OSError:  # a name longer than any file's, as a text is
        there = False
    if not there:
        raise UserError(f"this model reads {what}: --input names a file, and {line[:80]!r} is none")
    return path


FILES = {"pixel_values": _image, "input_features": _sound, "input_values": _sound}
"""What a model that reads no text is given, by the name of its input."""
