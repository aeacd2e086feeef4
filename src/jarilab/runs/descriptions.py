"""Descriptions of the package's tasks and encodings, for lists and pages."""

from __future__ import annotations

import inspect
import re
from typing import Any

from jarilab.core.options import Option, options_of
from jarilab.core.registry import first_sentence, trust_code
from jarilab.encodings.base import Site, hooks_of
from jarilab.encodings.base import registry as encodings
from jarilab.encodings.compose import LayerEncodings, files_of, layer_specs, part_spec, split_sum
from jarilab.runs.task_settings import models_for
from jarilab.tasks.base import registry as tasks


def describe_tasks() -> list[dict[str, Any]]:
    """Every task of the package: name, description, models that can learn it, metric, options."""
    return [_task(name, tasks.spec(name).target) for name in tasks.names()]


def _task(name: str, target: Any) -> dict[str, Any]:
    options = options_of(target)
    metric = getattr(target.metric, "name", None)  # a class of yours may have a property
    return {
        "name": name,
        "what": first_sentence(target),
        "models": models_for(target),
        "metric": options["metric"].default if "metric" in options else metric,
        "options": _options(target),
    }


CLAIMS = {
    "shift_invariant": "moving all positions by the same amount changes nothing",
    "causal_only": "works only if queries never see later keys",
    "cross": "can be used in cross-attention",
    "shared": "one instance for all layers",
    "integer_only": "positions must be integers",
    "keeps_norms": "rotation keeps the length of vectors",
    "random_in_training": "two forwards in training differ",
}
"""The claims of an encoding, in words."""
SITE = Site(d_model=64, n_heads=8, d_head=8, d_value=8, causal=True)
LAYERS = 2
"""The attention layer and the depth for which parameters are counted: the defaults of most models."""

_CITED = re.compile(r"\(([A-Z][^()]*?\d{4})")
_AUTHORS = re.compile(r"^(\w+),.* (\d{4})$")


def describe_encodings() -> list[dict[str, Any]]:
    """`describe_encoding` of every encoding of the package."""
    return [describe_encoding(name) for name in encodings.names()]


def describe_encoding(spec: str) -> dict[str, Any]:
    """Facts about an encoding: names, description, axes, hooks, claims, number of parameters, source, options.

    Description and source are those of the class docstring, whose paragraph `Source: ...` names the paper. Raises
    UserError for an unknown encoding.
    """
    parsed = encodings.spec(spec)
    target = parsed.target
    description, source = _described(target)
    citation = _CITED.search(source)
    encoding = parsed.build(SITE)
    return {
        "name": parsed.name,
        "also": encodings.aliases(parsed.name),
        "what": first_sentence(target),
        "about": description,
        "axes": list(target.axes),
        "hooks": sorted(hooks_of(target)),
        "claims": {claim: getattr(encoding, claim) for claim in CLAIMS},
        "learns": count_parameters(str(parsed)),
        "paper": source,
        "cited": _AUTHORS.sub(r"\1 et al. \2", citation[1]) if citation else None,
        "options": _options(target),
    }


def _described(target: type) -> tuple[str, str]:
    """The description and the source in a class docstring, without its options."""
    option = re.compile(rf"({'|'.join(options_of(target))})(, \w+)*: ")
    description, source = [], ""
    for paragraph in (inspect.getdoc(target) or "").split("\n\n"):
        if paragraph.startswith("Source: "):
            source = " ".join(paragraph.removeprefix("Source: ").split())
        elif not (options_of(target) and option.match(paragraph)):
            description.append(paragraph)
    return "\n\n".join(description), source


def describe_typed_encodings(text: str) -> list[dict[str, Any]]:
    """`describe_encoding`, and `spec`, for each part of a sum and each layer of an encoding that a person typed.

    Raises UserError for an unknown encoding.
    """
    # Only for typed text: whoever types a file's name agrees to execute it.
    for path in files_of(text):
        trust_code(path)
    parts = [part_spec(part)[0] for of_layer in layer_specs(text) for part in split_sum(of_layer)]
    specs = dict.fromkeys(map(str, parts))
    return [describe_encoding(spec) | {"spec": spec} for spec in specs]


def count_parameters(spec: str) -> int:
    """The number of parameters of an encoding in a causal stack of `LAYERS` layers at `SITE`."""
    stack = LayerEncodings(spec, SITE, LAYERS)
    return sum(parameter.numel() for parameter in stack.parameters())


def _options(target: type) -> list[dict[str, Any]]:
    return [_option(option) for option in options_of(target).values()]


def _option(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "kind": option.kind,
        "choices": list(option.choices),
        "default": option.default,
        "meaning": option.meaning,
    }
