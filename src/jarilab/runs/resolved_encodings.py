"""The encodings that a model uses once its options for single attentions are resolved.

`encoding` holds for all attentions of a model; `encoder_encoding`, `cross_encoding` and the like for one of them. Where
such an option is None by default, its attention uses `encoding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jarilab.core.options import options_of
from jarilab.core.registry import spec_file
from jarilab.models.base import registry as models

SUFFIX = "_encoding"
NO_ENCODING = "its own"
"""The label of a model of another file that has no option `encoding`."""


def label(model: str, options: Mapping[str, Any]) -> str:
    """The encodings as tables show them: `rotary`, `rotary (decoder alibi)` or `encoder rotary, decoder alibi`."""
    encoding = options.get("encoding") or NO_ENCODING
    specific = _specific(model, options)
    replacing = overriding(model, options)
    if replacing:
        specs = {options[name] for name in replacing}
        if len(specs) > 1:
            return _join(specific)
        (encoding,) = specs
    others = {name: spec for name, spec in specific.items() if spec != encoding}
    return f"{encoding} ({_join(others)})" if others else encoding


def overriding(model: str, options: Mapping[str, Any]) -> list[str]:
    """The options that together replace `encoding` in the whole model; empty if some attention still uses it."""
    defaults = _defaults(model, options)
    inheriting = [name for name, default in defaults.items() if default is None]
    is_replaced = all(options[name] is not None for name in inheriting)
    return inheriting if is_replaced else []


def _specific(model: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The encodings that were set for one attention, by option."""
    defaults = _defaults(model, options)
    changed = {name: options[name] for name, value in defaults.items() if options[name] != value}
    return {name: spec for name, spec in changed.items() if spec is not None}


def _defaults(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for one attention, with their defaults."""
    names = [name for name in options if name.endswith(SUFFIX)]
    # To learn the defaults of a model of another file is to execute the file.
    if spec_file(model):
        return dict.fromkeys(names, "")
    known = options_of(models.spec(model).target)
    return {name: known[name].default for name in names}


def _join(encodings: Mapping[str, str]) -> str:
    return ", ".join(f"{name.removesuffix(SUFFIX)} {spec}" for name, spec in encodings.items())
