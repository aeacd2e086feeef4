"""jarilab: train attention models, choose how they know order, and see what they attend to.

Names are imported when they are used: `import jarilab` alone loads neither torch nor anything that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jarilab._version import __version__ as __version__

if TYPE_CHECKING:
    from jarilab.api import compare as compare
    from jarilab.api import evaluate as evaluate
    from jarilab.api import predict as predict
    from jarilab.api import report as report
    from jarilab.api import train as train
    from jarilab.api import walk as walk
    from jarilab.api import write_examples as write_examples
    from jarilab.attention.cache import KVCache as KVCache
    from jarilab.attention.definition import AttentionCall as AttentionCall
    from jarilab.attention.geometry import geometry_of as geometry_of
    from jarilab.attention.module import Attention as Attention
    from jarilab.core.errors import UserError as UserError
    from jarilab.core.registry import trust_code as trust_code
    from jarilab.encodings.base import Encoding as Encoding
    from jarilab.encodings.base import Site as Site
    from jarilab.encodings.formulas.oracle import Oracle as Oracle
    from jarilab.explorer import explore as explore
    from jarilab.explorer import show as show
    from jarilab.huggingface.families import from_huggingface as from_huggingface
    from jarilab.huggingface.swapping import swap as swap
    from jarilab.inspect.measure.heads import measure_heads as measure_heads
    from jarilab.inspect.measure.measures import Measure as Measure
    from jarilab.inspect.measure.measures import add_measure as add_measure
    from jarilab.inspect.record.capture import Tape as Tape
    from jarilab.inspect.record.capture import record as record
    from jarilab.laws import check_encoding as check_encoding
    from jarilab.models.base import Generates as Generates
    from jarilab.models.decoder import LanguageModel as LanguageModel
    from jarilab.models.decoder import positions_after as positions_after
    from jarilab.models.decoding import Hypothesis as Hypothesis
    from jarilab.models.decoding import beam as beam
    from jarilab.models.decoding import greedy as greedy
    from jarilab.models.decoding import sample as sample
    from jarilab.models.detector import Detector as Detector
    from jarilab.models.encoder_decoder import EncoderDecoder as EncoderDecoder
    from jarilab.models.recurrent import Recurrent as Recurrent
    from jarilab.models.stacks import Decoder as Decoder
    from jarilab.models.stacks import Encoder as Encoder
    from jarilab.models.text_encoder import TextEncoder as TextEncoder
    from jarilab.models.text_to_image import TextToImage as TextToImage
    from jarilab.models.vision import VisionTransformer as VisionTransformer
    from jarilab.nn.init import initialise as initialise
    from jarilab.pages.encodings import draw_encodings as draw_encodings
    from jarilab.pages.encodings import draw_softmax as draw_softmax
    from jarilab.positions.coordinates import Positions as Positions
    from jarilab.positions.coordinates import Tokens as Tokens
    from jarilab.positions.masks import Mask as Mask
    from jarilab.positions.patches import Images as Images
    from jarilab.runs.loaded import OpenRun as OpenRun
    from jarilab.runs.loaded import load as load
    from jarilab.runs.verifying import verify as verify
    from jarilab.tasks.base import Task as Task
    from jarilab.tasks.metrics import Metric as Metric
    from jarilab.tasks.policies.base import PositionPolicy as PositionPolicy
    from jarilab.tasks.policies.base import Sequences as Sequences
    from jarilab.tasks.predictors.base import Prediction as Prediction
    from jarilab.tasks.predictors.base import Predictor as Predictor
    from jarilab.tasks.predictors.base import Trace as Trace
    from jarilab.tasks.predictors.base import TracedSequence as TracedSequence

_HOME = {
    "KVCache": "jarilab.attention.cache",
    "AttentionCall": "jarilab.attention.definition",
    "geometry_of": "jarilab.attention.geometry",
    "Attention": "jarilab.attention.module",
    "Oracle": "jarilab.encodings.formulas.oracle",
    "check_encoding": "jarilab.laws",
    "draw_encodings": "jarilab.pages.encodings",
    "draw_softmax": "jarilab.pages.encodings",
    "explore": "jarilab.explorer",
    "show": "jarilab.explorer",
    "Encoding": "jarilab.encodings.base",
    "Site": "jarilab.encodings.base",
    "UserError": "jarilab.core.errors",
    "initialise": "jarilab.nn.init",
    "Tape": "jarilab.inspect.record.capture",
    "Measure": "jarilab.inspect.measure.measures",
    "add_measure": "jarilab.inspect.measure.measures",
    "measure_heads": "jarilab.inspect.measure.heads",
    "record": "jarilab.inspect.record.capture",
    "swap": "jarilab.huggingface.swapping",
    "from_huggingface": "jarilab.huggingface.families",
    "Mask": "jarilab.positions.masks",
    "Decoder": "jarilab.models.stacks",
    "Encoder": "jarilab.models.stacks",
    "EncoderDecoder": "jarilab.models.encoder_decoder",
    "Detector": "jarilab.models.detector",
    "TextEncoder": "jarilab.models.text_encoder",
    "TextToImage": "jarilab.models.text_to_image",
    "VisionTransformer": "jarilab.models.vision",
    "Images": "jarilab.positions.patches",
    "Generates": "jarilab.models.base",
    "Prediction": "jarilab.tasks.predictors.base",
    "Predictor": "jarilab.tasks.predictors.base",
    "Trace": "jarilab.tasks.predictors.base",
    "TracedSequence": "jarilab.tasks.predictors.base",
    "OpenRun": "jarilab.runs.loaded",
    "load": "jarilab.runs.loaded",
    "Metric": "jarilab.tasks.metrics",
    "trust_code": "jarilab.core.registry",
    "PositionPolicy": "jarilab.tasks.policies.base",
    "Sequences": "jarilab.tasks.policies.base",
    "Positions": "jarilab.positions.coordinates",
    "Tokens": "jarilab.positions.coordinates",
    "Task": "jarilab.tasks.base",
    "Hypothesis": "jarilab.models.decoding",
    "sample": "jarilab.models.decoding",
    "greedy": "jarilab.models.decoding",
    "beam": "jarilab.models.decoding",
    "Recurrent": "jarilab.models.recurrent",
    "LanguageModel": "jarilab.models.decoder",
    "positions_after": "jarilab.models.decoder",
    "compare": "jarilab.api",
    "write_examples": "jarilab.api",
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
