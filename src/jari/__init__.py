"""jari: train attention models, choose how they know order, and see what they attend to.

Names are imported when they are used: `import jari` alone loads neither torch nor anything that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jari._version import __version__ as __version__

if TYPE_CHECKING:
    from jari.attention.cache import KVCache as KVCache
    from jari.attention.call import AttentionCall as AttentionCall
    from jari.attention.geometry import place as place
    from jari.attention.module import Attention as Attention
    from jari.conformance import laws as laws
    from jari.decoding import Hypothesis as Hypothesis
    from jari.decoding import beam as beam
    from jari.decoding import greedy as greedy
    from jari.decoding import sample as sample
    from jari.encodings.base import Encoding as Encoding
    from jari.encodings.base import Site as Site
    from jari.encodings.oracle import Oracle as Oracle
    from jari.errors import UserError as UserError
    from jari.explorer import explore as explore
    from jari.explorer import show as show
    from jari.init import initialise as initialise
    from jari.inspect.capture import Tape as Tape
    from jari.inspect.capture import record as record
    from jari.masks import Mask as Mask
    from jari.models.decoder import LanguageModel as LanguageModel
    from jari.models.detector import Detector as Detector
    from jari.models.encoder_decoder import Decoder as Decoder
    from jari.models.encoder_decoder import Encoder as Encoder
    from jari.models.encoder_decoder import EncoderDecoder as EncoderDecoder
    from jari.models.recurrent import Recurrent as Recurrent
    from jari.models.text_to_image import TextToImage as TextToImage
    from jari.models.vision import VisionTransformer as VisionTransformer
    from jari.patches import Pictures as Pictures
    from jari.positions import Positions as Positions
    from jari.positions import Tokens as Tokens
    from jari.registry import trust_code as trust_code
    from jari.seeing import find as find
    from jari.seeing import paint as paint
    from jari.seeing import reconstruct as reconstruct
    from jari.tasks.base import Task as Task
    from jari.training.answering import Decoding as Decoding
    from jari.verbs import compare as compare
    from jari.verbs import data as data
    from jari.verbs import evaluate as evaluate
    from jari.verbs import generate as generate
    from jari.verbs import load as load
    from jari.verbs import predict as predict
    from jari.verbs import train as train
    from jari.verbs import walk as walk

_HOME = {
    "KVCache": "jari.attention.cache",
    "AttentionCall": "jari.attention.call",
    "place": "jari.attention.geometry",
    "Attention": "jari.attention.module",
    "Oracle": "jari.encodings.oracle",
    "laws": "jari.conformance",
    "explore": "jari.explorer",
    "show": "jari.explorer",
    "Encoding": "jari.encodings.base",
    "Site": "jari.encodings.base",
    "UserError": "jari.errors",
    "initialise": "jari.init",
    "Tape": "jari.inspect.capture",
    "record": "jari.inspect.capture",
    "Mask": "jari.masks",
    "Decoder": "jari.models.encoder_decoder",
    "Encoder": "jari.models.encoder_decoder",
    "EncoderDecoder": "jari.models.encoder_decoder",
    "Detector": "jari.models.detector",
    "TextToImage": "jari.models.text_to_image",
    "VisionTransformer": "jari.models.vision",
    "Pictures": "jari.patches",
    "trust_code": "jari.registry",
    "find": "jari.seeing",
    "paint": "jari.seeing",
    "reconstruct": "jari.seeing",
    "Positions": "jari.positions",
    "Tokens": "jari.positions",
    "Task": "jari.tasks.base",
    "Hypothesis": "jari.decoding",
    "Decoding": "jari.training.answering",
    "generate": "jari.verbs",
    "sample": "jari.decoding",
    "greedy": "jari.decoding",
    "beam": "jari.decoding",
    "Recurrent": "jari.models.recurrent",
    "LanguageModel": "jari.models.decoder",
    "compare": "jari.verbs",
    "data": "jari.verbs",
    "evaluate": "jari.verbs",
    "load": "jari.verbs",
    "predict": "jari.verbs",
    "train": "jari.verbs",
    "walk": "jari.verbs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'jari' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(["__version__", *_HOME])
