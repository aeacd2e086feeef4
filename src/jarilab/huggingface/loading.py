"""Loads a model and its tokenizer or processor from a folder that `save_pretrained` wrote."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from jarilab.core.bounds import bounded_memory, run_bounded
from jarilab.core.errors import UserError, as_user_error, import_optional, no_model
from jarilab.huggingface.limits import bounded_model, check_settings, read_settings
from jarilab.huggingface.swapping import CONFIG_KEY, restore

TARGET = "target"
"""The subfolder of a tokenizer of answers, if it differs from that of the input."""
# `from_pretrained` would otherwise download files, or execute code of the folder.
SAFE = {"local_files_only": True, "trust_remote_code": False}


@dataclass(frozen=True, eq=False)
class Loaded:
    """A transformers model in evaluation mode, and its folder."""

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
        """The name of the model's class."""
        return type(self.model).__name__

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the input. Raises UserError if the folder has none."""
        patterns = ("tokenizer*", "vocab*", "*.model")
        if not any(any(self.folder.glob(pattern)) for pattern in patterns):
            raise UserError(
                f"{self.folder} has no tokenizer (tokenizer.json), which text needs; save it there, too: "
                "tokenizer.save_pretrained(FOLDER)"
            )
        tokenizer = self._load_processor("AutoTokenizer", "tokenizer", "tokenizer.json")
        if not isinstance(tokenizer, library().PreTrainedTokenizerBase):
            raise UserError(
                f"{self.folder / 'tokenizer_config.json'}: expected one tokenizer, got {type(tokenizer).__name__}; put "
                "back the file that was saved with the model"
            )
        return tokenizer

    @cached_property
    def target_tokenizer(self) -> Any:
        """The tokenizer of answers: that of the subfolder `target` if there is one."""
        subfolder = self.folder / TARGET
        if not subfolder.is_dir():
            return self.tokenizer
        check_settings(subfolder)
        return Loaded(subfolder, self.model).tokenizer

    @cached_property
    def image_processor(self) -> Any:
        """The processor of images. Raises UserError if the folder has none."""
        return self._load_processor(
            "AutoImageProcessor", "image processor", "preprocessor_config.json"
        )

    @cached_property
    def feature_extractor(self) -> Any:
        """The extractor of features of audio. Raises UserError if the folder has none."""
        return self._load_processor(
            "AutoFeatureExtractor", "feature extractor", "preprocessor_config.json"
        )

    @cached_property
    def processor(self) -> Any:
        """The processor of images and text. Raises UserError if the folder has none, or one of something else."""
        processor = self._load_processor("AutoProcessor", "processor", "processor_config.json")
        needed = ("image_processor", "tokenizer", "image_token")
        missing = [name for name in needed if getattr(processor, name, None) is None]
        if missing:
            raise UserError(
                f"{self.folder}: expected a processor of images and text, got {type(processor).__name__} without "
                f"{' and '.join(missing)}; save it there, too: processor.save_pretrained(FOLDER)"
            )
        return processor

    def _load_processor(self, auto: str, what: str, file: str) -> Any:
        transformers = library()
        with as_user_error(f"{self.folder} has no {what} that can be read ({file})"):
            load_it = getattr(transformers, auto).from_pretrained
            return run_bounded(self.folder, file, lambda: load_it(self.folder, **SAFE))


def load(folder: str | Path, *, swapped: bool = True) -> Loaded:
    """The model of a folder.

    swapped: whether it may be one that `jarilab.swap` has changed. Raises UserError if the folder holds no model, has
    pickled weights only, needs code of its own, lacks weights, or asks for much more memory than its weights take.
    """
    folder = Path(folder)
    config = _read_config(folder)
    transformers = library()
    model_class = _class_of(transformers, config)
    options: dict[str, Any] = {**SAFE, "use_safetensors": True, "output_loading_info": True}
    options["dtype"] = "float32"  # checks of recorded attention need its precision
    options["ignore_mismatched_sizes"] = True  # `_check_weights` reports them
    options["attn_implementation"] = "sdpa"  # a config might name one that starts a compiler
    if CONFIG_KEY in config and not swapped:
        raise UserError(
            f"{folder} holds a model that jarilab.swap has changed, expected one with its own positions; read it by "
            "jarilab.load_swapped(FOLDER)"
        )
    with (
        as_user_error(f"{folder} could not be loaded as a {config.get('model_type')}"),
        bounded_memory(folder),
    ):
        try:
            with bounded_model(folder):
                model, loading_info = model_class.from_pretrained(folder, **options)
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            options["attn_implementation"] = "eager"
            with bounded_model(folder):
                model, loading_info = model_class.from_pretrained(folder, **options)
    if CONFIG_KEY in config:
        restore(model, config[CONFIG_KEY], folder)
    _check_weights(folder, loading_info, set(model.state_dict()))
    return Loaded(folder, model.eval())


def load_swapped(folder: str | Path) -> nn.Module:
    """The model that `save_pretrained` wrote after `jarilab.swap`, in evaluation mode.

    Raises UserError as `load` does, and if the folder's model was not swapped.
    """
    loaded = load(folder)
    if not hasattr(loaded.config, CONFIG_KEY):
        raise UserError(
            f"{folder} expected a model that jarilab.swap has changed, got one with its own positions; read it by "
            f"transformers: {loaded.kind}.from_pretrained(FOLDER)"
        )
    return loaded.model


def _check_weights(folder: Path, loading_info: dict[str, Any], names: set[str]) -> None:
    """Raises UserError if weights are missing, which transformers draws at random, or have wrong sizes."""
    mismatched = sorted(str(key[0]) for key in loading_info["mismatched_keys"])
    if mismatched:
        raise UserError(
            f"{folder} holds weights of other sizes than its config.json says: {', '.join(mismatched[:3])}; put "
            "back the config.json that they were saved with"
        )
    # No attention map depends on the pooler, and many folders have none.
    # A swap has removed the parameters of positions.
    missing_keys = loading_info["missing_keys"] & names
    missing = sorted(name for name in missing_keys if "pooler" not in name)
    if missing:
        raise UserError(
            f"{folder} lacks weights that its config.json asks for: {', '.join(missing[:3])}; put back the files that "
            "were saved with it"
        )


def _read_config(folder: Path) -> dict[str, Any]:
    """The configuration. Raises UserError if the folder cannot be loaded safely."""
    if not (folder / "config.json").is_file():
        raise no_model(folder)
    check_settings(folder)
    config = read_settings(folder / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("model_type", ""), str):
        raise UserError(
            f"{folder / 'config.json'} holds no settings, or a model_type that is no text; put back a copy"
        )
    if "auto_map" in config:
        raise UserError(
            f"the model in {folder} needs code of its own (auto_map in config.json), and jarilab executes no code of a "
            "folder; import its class yourself, and look at it by jarilab.record(model)"
        )
    if not any(folder.glob("*.safetensors")):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        has = "pickled weights only, which may hold code" if pickled else "no weights"
        raise UserError(
            f"{folder} has {has}; jarilab reads safetensors: load the model where you trust it, and save it by "
            "model.save_pretrained(FOLDER)"
        )
    return config


def _class_of(transformers: Any, config: dict[str, Any]) -> Any:
    """The class that saved the weights, with its head; for an unknown one the model without a head."""
    names = config.get("architectures") or []
    first = names[0] if isinstance(names, list) and names else None
    if not isinstance(first, str) or not first.isidentifier():
        return transformers.AutoModel
    named = getattr(transformers, first, None)
    is_model = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)
    return named if is_model else transformers.AutoModel


def library() -> Any:
    """The transformers library, offline. Raises UserError if it is not installed."""
    # Before the import, which reads both.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    transformers: Any = import_optional("transformers", "huggingface")
    transformers.utils.logging.disable_progress_bar()
    return transformers
