"""jarilab: train attention models, choose how they know order, and see what they attend to.

Names are imported when they are used: `import jarilab` alone loads neither torch nor anything that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jarilab._version import __version__ as __version__

if TYPE_CHECKING:
    from jarilab.api import compare as compare
    from jarilab.api import data as data
    from jarilab.api import evaluate as evaluate
    from jarilab.api import predict as predict
    from jarilab.api import report as report
    from jarilab.api import train as train
    from jarilab.api import walk as walk
    from jarilab.attention.cache import KVCache as KVCache
    from jarilab.attention.definition import AttentionCall as AttentionCall
    from jarilab.attention.geometry import geometry_of as geometry_of
    from jarilab.attention.module import Attention as Attention
    from jarilab.conformance import laws as laws
    from jarilab.decoding import Hypothesis as Hypothesis
    from jarilab.decoding import beam as beam
    from jarilab.decoding import greedy as greedy
    from jarilab.decoding import sample as sample
    from jarilab.drawing import draw_encodings as draw_encodings
    from jarilab.drawing import draw_softmax as draw_softmax
    from jarilab.encodings.base import Encoding as Encoding
    from jarilab.encodings.base import Site as Site
    from jarilab.encodings.oracle import Oracle as Oracle
    from jarilab.errors import UserError as UserError
    from jarilab.explorer import explore as explore
    from jarilab.explorer import show as show
    from jarilab.huggingface.families import from_huggingface as from_huggingface
    from jarilab.huggingface.swapping import swap as swap
    from jarilab.inspect.capture import Tape as Tape
    from jarilab.inspect.capture import record as record
    from jarilab.inspect.measuring import measure_heads as measure_heads
    from jarilab.masks import Mask as Mask
    from jarilab.models.base import Generates as Generates
    from jarilab.models.decoder import LanguageModel as LanguageModel
    from jarilab.models.decoder import after as after
    from jarilab.models.detector import Detector as Detector
    from jarilab.models.encoder_decoder import EncoderDecoder as EncoderDecoder
    from jarilab.models.recurrent import Recurrent as Recurrent
    from jarilab.models.stacks import Decoder as Decoder
    from jarilab.models.stacks import Encoder as Encoder
    from jarilab.models.text_encoder import TextEncoder as TextEncoder
    from jarilab.models.text_to_image import TextToImage as TextToImage
    from jarilab.models.vision import VisionTransformer as VisionTransformer
    from jarilab.nn.init import initialise as initialise
    from jarilab.patches import Images as Images
    from jarilab.policies.base import Policy as Policy
    from jarilab.policies.base import Sequences as Sequences
    from jarilab.positions import Positions as Positions
    from jarilab.positions import Tokens as Tokens
    from jarilab.predictors.base import Prediction as Prediction
    from jarilab.predictors.base import Predictor as Predictor
    from jarilab.predictors.base import Trace as Trace
    from jarilab.predictors.base import TracedSequence as TracedSequence
    from jarilab.registry import trust_code as trust_code
    from jarilab.runs.loaded import OpenRun as OpenRun
    from jarilab.runs.loaded import load as load
    from jarilab.runs.verifying import verify as verify
    from jarilab.tasks.base import Task as Task
    from jarilab.tasks.metrics import Metric as Metric

_HOME = {
    "KVCache": "jarilab.attention.cache",
    "AttentionCall": "jarilab.attention.definition",
    "geometry_of": "jarilab.attention.geometry",
    "Attention": "jarilab.attention.module",
    "Oracle": "jarilab.encodings.oracle",
    "laws": "jarilab.conformance",
    "draw_encodings": "jarilab.drawing",
    "draw_softmax": "jarilab.drawing",
    "explore": "jarilab.explorer",
    "show": "jarilab.explorer",
    "Encoding": "jarilab.encodings.base",
    "Site": "jarilab.encodings.base",
    "UserError": "jarilab.errors",
    "initialise": "jarilab.nn.init",
    "Tape": "jarilab.inspect.capture",
    "measure_heads": "jarilab.inspect.measuring",
    "record": "jarilab.inspect.capture",
    "swap": "jarilab.huggingface.swapping",
    "from_huggingface": "jarilab.huggingface.families",
    "Mask": "jarilab.masks",
    "Decoder": "jarilab.models.stacks",
    "Encoder": "jarilab.models.stacks",
    "EncoderDecoder": "jarilab.models.encoder_decoder",
    "Detector": "jarilab.models.detector",
    "TextEncoder": "jarilab.models.text_encoder",
    "TextToImage": "jarilab.models.text_to_image",
    "VisionTransformer": "jarilab.models.vision",
    "Images": "jarilab.patches",
    "Generates": "jarilab.models.base",
    "Prediction": "jarilab.predictors.base",
    "Predictor": "jarilab.predictors.base",
    "Trace": "jarilab.predictors.base",
    "TracedSequence": "jarilab.predictors.base",
    "OpenRun": "jarilab.runs.loaded",
    "load": "jarilab.runs.loaded",
    "Metric": "jarilab.tasks.metrics",
    "trust_code": "jarilab.registry",
    "Policy": "jarilab.policies.base",
    "Sequences": "jarilab.policies.base",
    "Positions": "jarilab.positions",
    "Tokens": "jarilab.positions",
    "Task": "jarilab.tasks.base",
    "Hypothesis": "jarilab.decoding",
    "sample": "jarilab.decoding",
    "greedy": "jarilab.decoding",
    "beam": "jarilab.decoding",
    "Recurrent": "jarilab.models.recurrent",
    "LanguageModel": "jarilab.models.decoder",
    "after": "jarilab.models.decoder",
    "compare": "jarilab.api",
    "data": "jarilab.api",
    "evaluate": "jarilab.api",
    "predict": "jarilab.api",
    "report": "jarilab.api",
    "train": "jarilab.api",
    "walk": "jarilab.api",
    "verify": "jarilab.runs.verifying",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'jarilab' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(["__version__", *_HOME])
