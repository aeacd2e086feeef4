"""A folder as `save_pretrained` writes it, as a model and what reads for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from jarilab.core.errors import UserError, import_optional
from jarilab.core.storage.files import read_json

TARGET = "target"
"""The folder of what reads and writes answers, where it is not what reads."""
# Each is refused: `from_pretrained` would look for it elsewhere, or run it.
SAFE = {"local_files_only": True, "trust_remote_code": False}


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model of transformers, in evaluation, and where it lies."""

    folder: Path
    model: nn.Module

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def kind(self) -> str:
        """The name of its class."""
        return type(self.model).__name__

    @cached_property
    def tokenizer(self) -> Any:
        """What makes tokens of a text. Raises UserError where the folder has none."""
        patterns = ("tokenizer*", "vocab*", "*.model")
        if not any(any(self.folder.glob(pattern)) for pattern in patterns):
            raise UserError(
                f"{self.folder} has no tokenizer (tokenizer.json), without which nobody knows its words; save that, "
                "too: tokenizer.save_pretrained(FOLDER)"
            )
        return self._part("AutoTokenizer", "tokenizer", "tokenizer.json")

    @cached_property
    def target_tokenizer(self) -> Any:
        """What makes text of an answer: a tokenizer of its own in the folder `target`, where there is one."""
        own = self.folder / TARGET
        return Loaded(own, self.model).tokenizer if own.is_dir() else self.tokenizer

    @cached_property
    def image_processor(self) -> Any:
        """What makes numbers of an image. Raises UserError where the folder has none."""
        return self._part("AutoImageProcessor", "image processor", "preprocessor_config.json")

    @cached_property
    def feature_extractor(self) -> Any:
        """What makes a spectrogram of a sound. Raises UserError where the folder has none."""
        return self._part("AutoFeatureExtractor", "feature extractor", "preprocessor_config.json")

    def _part(self, auto: str, what: str, file: str) -> Any:
        transformers = library()
        with in_a_sentence(f"{self.folder} has no {what} that can be read ({file})"):
            return getattr(transformers, auto).from_pretrained(self.folder, **SAFE)


def load(folder: str | Path) -> Loaded:
    """The model in a folder. Raises UserError for a folder that is none of a model, that has pickled weights alone,
    whose model asks for code of its own, or whose weights are not all there: transformers would draw others at random.
    """
    folder = Path(folder)
    config = _checked(folder)
    transformers = library()
    model_class = _class_of(transformers, config)
    options: dict[str, Any] = {**SAFE, "use_safetensors": True, "output_loading_info": True}
    options["dtype"] = "float32"  # whatever it was saved in: proofs are to its digits
    options["ignore_mismatched_sizes"] = True  # told below
    with in_a_sentence(f"{folder} could not be loaded as a {config.get('model_type')}"):
        try:
            model, found = model_class.from_pretrained(folder, **options)
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            options["attn_implementation"] = "eager"  # it writes its softmax out
            model, found = model_class.from_pretrained(folder, **options)
    _check_whole(folder, found)
    return Loaded(folder, model.eval())


def _check_whole(folder: Path, found: dict[str, Any]) -> None:
    """Raises UserError where weights are missing, or of other sizes than the configuration says."""
    of_other_sizes = sorted(str(each[0]) for each in found["mismatched_keys"])
    if of_other_sizes:
        raise UserError(
            f"{folder} holds weights of other sizes than its config.json says: {', '.join(of_other_sizes[:3])}; put "
            "back the config.json that they were saved with"
        )
    # What a pooler makes of the first token no map depends on, and many folders have none.
    missing = sorted(name for name in found["missing_keys"] if "pooler" not in name)
    if missing:
        raise UserError(
            f"{folder} lacks weights that its config.json asks for: {', '.join(missing[:3])}; put back the files that "
            "were saved with it"
        )


def _checked(folder: Path) -> dict[str, Any]:
    """Its configuration. Raises UserError before anything of it is loaded."""
    if not folder.is_dir():
        raise UserError(
            f"{folder} is no folder: --model takes a folder on disk, as `model.save_pretrained(FOLDER)` writes it; "
            "nothing is downloaded"
        )
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} has no config.json, so it is no model of transformers; name the folder that holds it, beside "
            "model.safetensors"
        )
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} holds no settings; put back a copy")
    if "auto_map" in config:
        raise UserError(
            f"the model in {folder} asks for code of its own (auto_map in config.json), and jari runs none from a "
            "folder; import its class yourself, and look at it by jarilab.record(model)"
        )
    if not any(folder.glob("*.safetensors")):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        has = "pickled weights alone, which may hold code" if pickled else "no weights"
        raise UserError(
            f"{folder} has {has}; jari reads safetensors: load it where you trust it, and write it by "
            "model.save_pretrained(FOLDER)"
        )
    return config


def _class_of(transformers: Any, config: dict[str, Any]) -> Any:
    """The class that the weights were written by, with its head; of an unknown one the bare model."""
    names = config.get("architectures") or []
    first = names[0] if isinstance(names, list) and names else None
    known = isinstance(first, str) and first.isidentifier()
    found = getattr(transformers, first, None) if known and first is not None else None
    return transformers.AutoModel if found is None else found


def library() -> Any:
    """transformers, kept from the network. Raises UserError where it is not installed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    transformers: Any = import_optional("transformers", "huggingface")
    transformers.utils.logging.disable_progress_bar()
    return transformers


@contextmanager
def in_a_sentence(what: str) -> Iterator[None]:
    """Whatever another library says inside the block, as a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise UserError(f"{what}: {type(error).__name__}: {first[:300]}") from None
