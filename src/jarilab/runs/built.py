"""Which encodings a model is built with: what a table calls it, and what takes the place of its option `encoding`.

`encoding` is for all attentions, `encoder_encoding` and its like are for one of them alone. Where such an option is not
set by default, its attention takes `encoding`; where all of these are set, nothing of the model has `encoding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jarilab.core.options import options_of
from jarilab.core.registry import spec_file
from jarilab.models.base import registry as models

SUFFIX = "_encoding"
NO_ENCODING = "its own"
"""Of a model of one's own without the option `encoding`."""


def label(model: str, options: Mapping[str, Any]) -> str:
    """The encodings in the words of a table: `rotary`, `rotary (decoder alibi)` or `encoder rotary, decoder alibi`."""
    encoding = options.get("encoding") or NO_ENCODING
    own = _own(model, options)
    replaced = overriding(model, options)
    if replaced:
        specs = {options[name] for name in replaced}
        if len(specs) > 1:
            return _listed(own)
        (encoding,) = specs
    others = {name: spec for name, spec in own.items() if spec != encoding}
    return f"{encoding} ({_listed(others)})" if others else encoding


def overriding(model: str, options: Mapping[str, Any]) -> list[str]:
    """The options that together take the place of `encoding`, so that no part of the model has it; none where some
    part does."""
    following = [name for name, default in _defaults(model, options).items() if default is None]
    is_replaced = all(options[name] is not None for name in following)
    return following if is_replaced else []


def _own(model: str, options: Mapping[str, Any]) -> dict[str, str]:
    """What was chosen for one attention alone."""
    defaults = _defaults(model, options)
    chosen = {name: options[name] for name, default in defaults.items() if options[name] != default}
    return {name: spec for name, spec in chosen.items() if spec is not None}


def _defaults(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for one attention alone, with their defaults. To learn those of a model of one's own is to execute
    its file, so nothing is taken to be one."""
    names = [name for name in options if name.endswith(SUFFIX)]
    if spec_file(model):
        return dict.fromkeys(names, "")
    known = options_of(models.spec(model).target)
    return {name: known[name].default for name in names}


def _listed(own: Mapping[str, str]) -> str:
    return ", ".join(f"{name.removesuffix(SUFFIX)} {spec}" for name, spec in own.items())
