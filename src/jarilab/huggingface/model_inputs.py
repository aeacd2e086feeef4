"""Reads a line as the input of a transformers model: a text, the name of an image or audio file, or both."""

from __future__ import annotations

import base64
import inspect
import io
import itertools
import math
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from jarilab.core.bounds import bounded_memory, run_bounded
from jarilab.core.errors import UserError, as_user_error, import_optional
from jarilab.core.shapes import Float
from jarilab.data.images.image_files import IMAGE_END, INLINE_IMAGE, decode, read_bytes
from jarilab.huggingface.generation import (
    MAX_NEW_TOKENS,
    Generated,
    generate,
    start_token_id,
)
from jarilab.huggingface.limits import bounded_calls
from jarilab.huggingface.loading import Loaded
from jarilab.huggingface.outputs import (
    OutputReader,
    class_output_reader,
    generated_output_reader,
    text_output_reader,
    token_names,
)
from jarilab.positions.patches import PatchedImage

MAX_INPUT_TOKENS = 2048  # an attention map has their square
MAX_INPUT_VALUES = 1 << 24  # an RGB image of 2,364 x 2,364 pixels
CLASS_TOKEN = "class"
MAX_UNPLACED = 16
"""Tokens before the patches of an image, such as a class token and registers."""
MAX_MARK = 64
"""Letters of the token that stands for an image."""
MIN_RATE, MAX_RATE = 1_000, 400_000  # Hz of a sound
MAX_CHANNELS = 64
MAX_SOUND_SECONDS = 600
SPECTROGRAM = (96, 320)
"""Pixels of a spectrogram, rows and columns."""
IMAGE_AND_TEXT = ("LlavaForConditionalGeneration", "VipLlavaForConditionalGeneration")
"""Models whose text has a token for each patch of an image, row by row."""


@dataclass(frozen=True, eq=False)
class ModelInput:
    """A line as a model reads it, and the model's answer.

    inputs: keyword arguments of the model, for a batch of one. names: text of the tokens of each side, `source` and
    `target`, if known. answer: the answer as text, or None. output_reader: reads the answer from other outputs, if it
    consists of scores. image: of the source, if its patches are known. target_image: whose patches are tokens of the
    target. generated: the answer of an encoder-decoder.
    """

    inputs: dict[str, Any]
    names: dict[str, list[str]]
    answer: str | None = None
    output_reader: OutputReader | None = None
    image: PatchedImage | None = None
    target_image: PatchedImage | None = None
    generated: Generated | None = None

    def with_unplaced(self, lengths: Collection[int]) -> ModelInput:
        """The same with the tokens before the patches named. lengths: of the sequences that the model attends to."""
        if self.image is None:
            return self
        if self.image.seconds is not None:
            return self._with_frames(lengths)
        rows, columns = self.image.rows, self.image.columns
        unplaced = [length - rows * columns for length in lengths]
        first = next((each for each in unplaced if 0 <= each <= MAX_UNPLACED), None)
        if first is None:
            return self
        # A language model reads the patches, and no class token.
        reads_class = first and self.target_image is None
        image = replace(
            self.image, first=first, pool=self.image.pool or ("class" if reads_class else None)
        )
        names = {**self.names, "source": patch_names((rows, columns), first)}
        return replace(self, names=names, image=image)

    def _with_frames(self, lengths: Collection[int]) -> ModelInput:
        """The same with each frame of the encoder named by its time, if its sequence has one length."""
        assert self.image is not None
        if len(lengths) != 1:
            return replace(self, image=None)
        (frames,) = lengths
        step = (self.image.seconds or 0.0) / frames
        names = {**self.names, "source": [f"{step * frame:.2f} s" for frame in range(frames)]}
        return replace(self, names=names, image=replace(self.image, columns=frames, width=frames))


@torch.no_grad()
def read(loaded: Loaded, line: str) -> ModelInput:
    """The input and answer of the model for a line. Raises UserError if the model cannot read it."""
    read_file = FILE_READERS.get(main_input(loaded))
    message = f"{loaded.folder} cannot read {line[:80]!r}"
    if read_file is None and "pixel_values" in parameters_of(loaded):
        if reads_image_and_text(loaded):
            read_file = _read_image_and_text
        else:
            message = (
                f"{loaded.name}: of models that read an image and a text, expected {' or '.join(IMAGE_AND_TEXT)}, got "
                f"{loaded.kind}; record it in Python with jarilab.record(model)"
            )
            if IMAGE_END in line:
                raise UserError(message)
    folder = loaded.folder
    with as_user_error(message), bounded_memory(folder), bounded_calls(folder, loaded.model):
        return _read_text(loaded, line) if read_file is None else read_file(loaded, line.strip())


def _encoded(loaded: Loaded, file: str, processor: Any, *given: Any, **options: Any) -> Any:
    """What a tokenizer or processor returns. Raises UserError for too much of it, see `run_bounded`."""
    encoded = run_bounded(
        loaded.folder, file, lambda: processor(*given, return_tensors="pt", **options)
    )
    sizes = [value.numel() for value in encoded.values() if isinstance(value, Tensor)]
    if max(sizes, default=0) > MAX_INPUT_VALUES:
        raise UserError(
            f"{loaded.folder}: expected inputs of at most {MAX_INPUT_VALUES:,} numbers, got {max(sizes):,} by {file}; "
            "put back the file that was saved with the model"
        )
    return encoded


def reads_image_and_text(loaded: Loaded) -> bool:
    """Whether a line for the model is the name of an image, `IMAGE_END` and a text."""
    return loaded.kind in IMAGE_AND_TEXT


def reads_files(loaded: Loaded) -> bool:
    """Whether the model reads files, so that a line is the name of one."""
    return main_input(loaded) in FILE_READERS


def main_input(loaded: Loaded) -> str:
    """The name of the model's main input."""
    return str(getattr(loaded.model, "main_input_name", "input_ids"))


# Text ----------------------------------------------------------------------------------------------------------------


def _read_text(loaded: Loaded, line: str) -> ModelInput:
    tokenizer = loaded.tokenizer
    texts = _texts_of(loaded, line)
    segments = {"return_token_type_ids": True} if len(texts) > 1 else {}
    encoded = _encoded(loaded, "tokenizer.json", tokenizer, *texts, **segments)
    ids_BL = encoded["input_ids"]
    check_ids(loaded, ids_BL)
    inputs = {name: value for name, value in encoded.items() if name in parameters_of(loaded)}
    ids = ids_BL[0].tolist()
    names = token_names(tokenizer)(ids)
    if loaded.config.is_encoder_decoder:
        return _generate(loaded, inputs, {"source": names})
    output = loaded.model(**inputs)
    output_reader = text_output_reader(loaded, ids, output)
    answer = None if output_reader is None else output_reader.answer(output)
    return ModelInput(inputs, {"source": names, "target": names}, answer, output_reader)


def _texts_of(loaded: Loaded, line: str) -> list[str]:
    """The line, or the two texts of a model of sentence pairs, between which it has a tab or the separator token."""
    separator = loaded.tokenizer.sep_token
    if separator is None or getattr(loaded.config, "type_vocab_size", 1) < 2:
        return [line]
    texts = [text.strip() for text in line.replace("\t", separator).split(separator)]
    return texts if len(texts) == 2 and all(texts) else [line]


def check_ids(loaded: Loaded, ids_BL: Tensor) -> None:
    """Raises UserError for no tokens, too many tokens or unknown ids."""
    length = ids_BL.shape[1]
    if length == 0:
        raise UserError("expected some text, got a line without tokens; write some text")
    longest = max_length(loaded)
    if length > longest:
        raise UserError(
            f"{loaded.name} reads {longest} tokens at most, and the line has {length}; give a shorter one"
        )
    model: Any = loaded.model
    vocabulary_size = len(model.get_input_embeddings().weight)
    if int(ids_BL.max()) >= vocabulary_size:
        raise UserError(
            f"{loaded.name}: the model has {vocabulary_size} tokens, got the id {int(ids_BL.max())} from its "
            "tokenizer; use the tokenizer that the model was trained with"
        )


def max_length(loaded: Loaded) -> int:
    """The largest number of tokens of an input."""
    config = getattr(loaded.config, "text_config", loaded.config)
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return MAX_INPUT_TOKENS
    # Tables like RoBERTa's start after the row of padding.
    modules: list[Any] = list(loaded.model.modules())
    tables = [module for module in modules if getattr(module, "num_embeddings", 0) == positions]
    paddings = [table.padding_idx for table in tables if table.padding_idx is not None]
    unused = max(paddings, default=-1) + 1
    return min(positions - unused, MAX_INPUT_TOKENS)


def _generate(loaded: Loaded, inputs: dict[str, Any], names: dict[str, list[str]]) -> ModelInput:
    """The source with the decoder's greedy output; a model without a head reads the source as its target."""
    model: Any = loaded.model
    has_head = hasattr(model, "generate") and model.get_output_embeddings() is not None
    start = start_token_id(loaded)
    if not has_head:
        target_BL = inputs["input_ids"]
        if start is not None and int(target_BL[0, 0]) != start:
            target_BL = torch.cat((target_BL.new_tensor([[start]]), target_BL), 1)
        target_BL = target_BL[:, :-1] if target_BL.shape[1] > 1 else target_BL
        target_names = token_names(loaded.target_tokenizer)(target_BL[0].tolist())
        return ModelInput(
            {**inputs, "decoder_input_ids": target_BL}, {**names, "target": target_names}
        )
    limit = min(MAX_NEW_TOKENS, max_length(loaded) - 1)
    generated = generate(loaded, inputs, limit)

    def decode(ids: Sequence[int]) -> str:
        return loaded.target_tokenizer.decode(ids, skip_special_tokens=True)

    target = generated.ids[:-1] or generated.ids
    target_names = token_names(loaded.target_tokenizer)(target)
    output_reader = generated_output_reader(
        loaded, generated, lambda: decode(generate(loaded, inputs, limit).ids)
    )
    return ModelInput(
        {**inputs, "decoder_input_ids": torch.tensor([target])},
        {**names, "target": target_names},
        decode(generated.ids),
        output_reader,
        generated=generated,
    )


def parameters_of(loaded: Loaded) -> set[str]:
    """The parameters of the model's forward."""
    return set(inspect.signature(loaded.model.forward).parameters)


# Images and audio -----------------------------------------------------------------------------------------------------


def read_pixels(loaded: Loaded, line: str, **options: Any) -> Float[Tensor, "1 C H W"]:
    """The image of a line, as the model reads it. Raises UserError if it cannot be read.

    line: the name of a file, or a data URL. options: of the image processor.
    """
    image, processor = _open_image(loaded, line), loaded.image_processor
    encoded = _encoded(loaded, "preprocessor_config.json", processor, images=image, **options)
    return encoded["pixel_values"].float()


def _open_image(loaded: Loaded, line: str) -> Any:
    library: Any = import_optional("PIL.Image", "vision")
    channels = 1 if getattr(loaded.config, "num_channels", None) == 1 else 3
    pixels = decode(_image_source(line), channels).pixels
    return library.fromarray(pixels[0] if channels == 1 else pixels.permute(1, 2, 0).numpy())


def _image_source(line: str) -> Path | bytes:
    if not line.startswith(INLINE_IMAGE):
        return _check_file(line, "an image")
    try:
        return base64.b64decode(line.partition(",")[2])
    except ValueError as error:
        raise UserError(f"expected an image in base64, got {line[:80]!r}: {error}") from None


def _read_image(loaded: Loaded, line: str) -> ModelInput:
    pixels = read_pixels(loaded, line)
    output = loaded.model(pixel_values=pixels)
    grid = patch_grid(loaded, pixels)
    names = {} if grid is None else {"source": patch_names(grid)}
    image = None if grid is None else _shown_image(loaded, line, grid)
    output_reader = class_output_reader(loaded, output)
    answer = None if output_reader is None else output_reader.answer(output)
    return ModelInput({"pixel_values": pixels}, names, answer, output_reader, image)


def _shown_image(loaded: Loaded, line: str, grid: tuple[int, int]) -> PatchedImage:
    """The pixels that the model reads, in the colours of the image."""
    pixels = read_pixels(loaded, line, do_normalize=False, do_rescale=False)[0]
    size: int = _vision_config(loaded).patch_size
    height, width = (side / size for side in pixels.shape[1:])
    pool = "mean" if getattr(loaded.config, "use_mean_pooling", False) else None
    shown = pixels.round().clamp(0, 255).byte()
    return PatchedImage(shown, *grid, height, width, first=0, pool=pool)


def patch_names(grid: tuple[int, int], unplaced: int = 1) -> list[str]:
    """The names of the tokens of an image: the class token, others without a place, and patches row by row."""
    cells = itertools.product(*map(range, grid))
    others = [f"[{number}]" for number in range(1, unplaced)]
    return [*[CLASS_TOKEN][:unplaced], *others, *(f"{row},{column}" for row, column in cells)]


def patch_grid(loaded: Loaded, pixels: Tensor) -> tuple[int, int] | None:
    """Rows and columns of patches; None for a model without patches."""
    size = getattr(_vision_config(loaded), "patch_size", None)
    if not isinstance(size, int):
        return None
    return pixels.shape[-2] // size, pixels.shape[-1] // size


def _vision_config(loaded: Loaded) -> Any:
    return getattr(loaded.config, "vision_config", loaded.config)


def _read_image_and_text(loaded: Loaded, line: str) -> ModelInput:
    """The text with a token for each patch in place of its image token, or before it if it has none."""
    name, _, text = (part.strip() for part in line.partition(IMAGE_END))
    if not (name and text):
        raise UserError(
            f"{loaded.name} reads an image and a text, got one of them only, {line.strip()[:80]!r}; "
            'give both, such as --image cat.png --text "what is it?"'
        )
    processor, number = loaded.processor, loaded.config.image_token_id
    mark, patch = processor.image_token, getattr(processor, "patch_size", None)
    is_known = len(mark) <= MAX_MARK and processor.tokenizer.convert_tokens_to_ids(mark) == number
    if not is_known or patch != _vision_config(loaded).patch_size:
        raise UserError(
            f"{loaded.folder}: expected a processor for this model, with its image token, number {number}, and its "
            f"patches, got {mark!r:.40} and patches of {patch!r:.40} pixels; put back the processor_config.json that "
            "was saved with the model"
        )
    if text.count(mark) > 1:
        raise UserError(
            f"expected one {mark} in the text, for one image, got {text.count(mark)}; remove the others"
        )
    grid = patch_grid(loaded, read_pixels(loaded, name))
    count = 0 if grid is None else grid[0] * grid[1]
    if grid is None or not 0 < count <= MAX_INPUT_TOKENS:
        raise UserError(
            f"{loaded.name}: expected an image of 1 to {MAX_INPUT_TOKENS:,} patches, got {count:,}; put back the "
            "processor_config.json that was saved with the model"
        )
    marked = text if mark in text else f"{mark}\n{text}"
    given = {"images": _open_image(loaded, name), "text": marked}
    encoded = _encoded(loaded, "processor_config.json", processor, **given)
    check_ids(loaded, encoded["input_ids"])
    ids = encoded["input_ids"][0].tolist()
    places = [place for place, each in enumerate(ids) if each == number]
    if len(places) != count or places[-1] - places[0] != count - 1:
        raise UserError(
            f"{loaded.folder}: expected {count:,} tokens of the image in a row, one for each patch, got "
            f"{len(places):,}; put back the processor_config.json that was saved with the model"
        )
    names = token_names(processor.tokenizer)(ids)
    names[places[0] : places[-1] + 1] = patch_names(grid, 0)
    inputs = {key: value for key, value in encoded.items() if key in parameters_of(loaded)}
    output = loaded.model(**inputs)
    output_reader = text_output_reader(loaded, ids, output)
    answer = None if output_reader is None else output_reader.answer(output)
    shown = _shown_image(loaded, name, grid)
    sides = {"source": patch_names(grid, 0), "target": names}
    at_text = replace(shown, first=places[0])
    return ModelInput(inputs, sides, answer, output_reader, shown, at_text)


def _read_audio(loaded: Loaded, line: str) -> ModelInput:
    from scipy.signal import resample_poly

    rate, wave = _read_wave(_check_file(line, "audio (.wav)"))
    extractor = loaded.feature_extractor
    asked = extractor.sampling_rate
    if not isinstance(asked, int) or not MIN_RATE <= asked <= MAX_RATE:
        raise UserError(
            f"{loaded.folder / 'preprocessor_config.json'}: expected a sampling_rate of {MIN_RATE:,} to {MAX_RATE:,} "
            f"Hz, got {asked!r:.40}; put back the file that was saved with the model"
        )
    factor = math.gcd(asked, rate)
    samples = resample_poly(_to_mono(wave).numpy(), asked // factor, rate // factor)
    file = "preprocessor_config.json"
    encoded = _encoded(loaded, file, extractor, samples, sampling_rate=asked)
    inputs = {name: value for name, value in encoded.items() if name in parameters_of(loaded)}
    if loaded.config.is_encoder_decoder:
        reading = _generate(loaded, inputs, {})
        return replace(reading, image=_spectrogram(extractor, inputs.get("input_features")))
    return ModelInput(inputs, {})


def _spectrogram(extractor: Any, features: Tensor | None) -> PatchedImage | None:
    """The mel spectrogram that a model reads, low tones below; None for other features."""
    hop, size = (getattr(extractor, name, None) for name in ("hop_length", "feature_size"))
    if features is None or features.ndim != 3 or features.shape[1] != size or not hop:
        return None
    low, high = features.aminmax()
    grey_1MT = (features - low) / (high - low).clamp_min(1e-9) * 255
    # Its columns are far more than its rows.
    shown = functional.interpolate(grey_1MT.flip(1).unsqueeze(0), SPECTROGRAM, mode="bilinear")
    seconds = features.shape[2] * hop / extractor.sampling_rate
    return PatchedImage(shown[0].round().byte(), 1, 1, 1, 1, first=0, seconds=seconds)


def _read_wave(path: Path) -> tuple[int, Tensor]:
    """The rate and the samples of a .wav file. Raises UserError for a damaged, empty, endless or too large one."""
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # of chunks that it skips
            warnings.filterwarnings("error", "Reached EOF", wavfile.WavFileWarning)
            rate, wave = wavfile.read(_Chunks(read_bytes(path, "a sound")))
    except UserError:
        raise
    except Exception as error:  # scipy raises almost any exception for damaged files
        raise UserError(
            f"{path} could not be read as audio: {str(error) or type(error).__name__:.120}; give a .wav file"
        ) from None
    if not len(wave):
        raise UserError(f"{path} holds no samples; give a .wav file that is longer")
    samples = torch.as_tensor(wave.copy())
    channels = samples.shape[1] if samples.ndim == 2 else 1
    seconds = len(wave) / max(rate, 1)
    if not (
        MIN_RATE <= rate <= MAX_RATE and channels <= MAX_CHANNELS and seconds <= MAX_SOUND_SECONDS
    ):
        raise UserError(
            f"{path}: expected a sound of {MIN_RATE:,} to {MAX_RATE:,} Hz with at most {MAX_CHANNELS} channels and "
            f"{MAX_SOUND_SECONDS} seconds, got {rate:,} Hz, {channels:,} channels and {seconds:,.0f} seconds; cut or "
            "resample it"
        )
    if samples.is_floating_point() and not samples.isfinite().all():
        count = int((~samples.isfinite()).sum())
        raise UserError(
            f"{path}: expected samples that are numbers, got NaN or infinity {count:,} times; write the sound again"
        )
    return rate, samples


class _Chunks(io.BytesIO):
    """Bytes of a .wav file, of which scipy would read less than a header says without an error."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        # The file may end in place of the name of a chunk, 4 bytes.
        if size is not None and len(data) < size and size > 4:
            raise ValueError(
                f"expected {size:,} bytes, as its header says, got {len(data):,}: it was cut short or came from a pipe"
            )
        return data


def _to_mono(wave: Tensor) -> Tensor:
    """One channel from -1 to 1; 8-bit samples have their zero at 128."""
    samples = wave.double()
    if wave.dtype == torch.uint8:
        samples = (samples - 128) / 128
    elif not wave.dtype.is_floating_point:
        samples = samples / -torch.iinfo(wave.dtype).min
    return samples.mean(-1) if samples.ndim == 2 else samples


def _check_file(line: str, kind: str) -> Path:
    """The file that a line names. Raises UserError if there is none."""
    path = Path(line)
    try:
        is_file = path.is_file()
    except OSError:  # a name longer than any file's, such as a text
        is_file = False
    if not is_file:
        raise UserError(f"this model reads {kind}: expected the name of a file, got {line[:80]!r}")
    return path


FILE_READERS = {
    "pixel_values": _read_image,
    "input_features": _read_audio,
    "input_values": _read_audio,
}
"""Readers of files, by the name of the model's main input."""
