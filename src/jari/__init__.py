"""jari: train attention models, choose how they know order, and see what they attend to.

Names are imported when they are used: `import jari` alone loads neither torch nor anything that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jari._version import __version__

if TYPE_CHECKING:
    from jari.attention.cache import KVCache
    from jari.attention.call import AttentionCall
    from jari.attention.geometry import place
    from jari.attention.module import Attention
    from jari.conformance import Oracle, laws
    from jari.encodings.base import Encoding, Site
    from jari.errors import UserError
    from jari.init import initialise
    from jari.inspect.capture import Tape, record
    from jari.masks import Mask
    from jari.models.encoder_decoder import Decoder, Encoder, EncoderDecoder
    from jari.positions import Positions, Tokens
    from jari.tasks.base import Task
    from jari.verbs import compare, data, evaluate, load, predict, train, walk

_HOME = {
    "KVCache": "jari.attention.cache",
    "AttentionCall": "jari.attention.call",
    "place": "jari.attention.geometry",
    "Attention": "jari.attention.module",
    "Oracle": "jari.conformance",
    "laws": "jari.conformance",
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
    "Positions": "jari.positions",
    "Tokens": "jari.positions",
    "Task": "jari.tasks.base",
    "compare": "jari.verbs",
    "data": "jari.verbs",
    "evaluate": "jari.verbs",
    "load": "jari.verbs",
    "predict": "jari.verbs",
    "train": "jari.verbs",
    "walk": "jari.verbs",
}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604 - the names are the table's


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'jari' has no attribute {name!r}")
    module, _, attribute = _HOME[name].partition(":")
    value = getattr(importlib.import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
