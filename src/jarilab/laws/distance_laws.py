"""The law of what an encoding says of its hooks by distance, which a kernel reads in their place."""

from __future__ import annotations

import torch

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding
from jarilab.encodings.skew import skew
from jarilab.laws.checks import EXACT, SkippedError, near
from jarilab.laws.hooks import Question, answers
from jarilab.laws.material import LENGTH, noise
from jarilab.laws.subject import Subject
from jarilab.positions.coordinates import Positions, distance


def claimed(subject: Subject) -> str:
    """`distance_vectors` and `affine_bias` say what `terms`, `values` and `bias` give, with the same gradients."""
    if subject.axes != 1 or subject.labels:
        raise SkippedError("it has no distances on one axis")
    told = dict[str, None]()
    for start in subject.starts():
        encoding, k_pos = subject.encoding(), subject.sequence(start)
        q_pos = k_pos.slice(2, 5)
        asked = Question.about(encoding.site, q_pos, k_pos).weighted()
        found = _said(encoding, asked, q_pos, k_pos)
        if not found:
            raise SkippedError("it says nothing by distance")
        expected = answers(encoding, asked)
        for hook, answer in found.items():
            where = f"by distance, from position {start} on"
            near(answer, expected[hook], EXACT, f"{hook} {where}")
            slopes = _gradients(encoding, expected[hook])
            for name, gradient in _gradients(encoding, answer).items():
                near(gradient, slopes[name], EXACT, f"gradient of {name} through {hook} {where}")
        told |= dict.fromkeys(found)
    return " and ".join(told)


def _said(
    encoding: Encoding, asked: Question, q_pos: Positions, k_pos: Positions
) -> dict[str, Tensor]:
    """What it says each hook gives."""
    ahead_QK = distance(q_pos, k_pos)
    first, last = int(ahead_QK.min()), int(ahead_QK.max())
    found = dict[str, Tensor | None]()
    vectors = encoding.distance_vectors(first, last)
    if vectors is not None and "terms" in encoding.hooks:
        terms = vectors.terms(asked.q, asked.k, ahead_QK)
        found["terms"] = terms.masked_fill(ahead_QK > 0, 0.0) if encoding.site.causal else terms
    if vectors is not None and "values" in encoding.hooks:
        assert asked.weights is not None
        found["values"] = vectors.weighted_sum(asked.weights, ahead_QK)
    lines = encoding.affine_bias(q_pos, first, last) if "bias" in encoding.hooks else None
    if lines is not None:
        bias_HQK = skew(lines.materialized(q_pos.length), k_pos.length)
        found["bias"] = bias_HQK.expand(*asked.q.shape[:3], LENGTH)
    return {hook: answer for hook, answer in found.items() if answer is not None}


def _gradients(encoding: Encoding, answer: Tensor) -> dict[str, Tensor]:
    """Of its parameters, by name."""
    named = {name: each for name, each in encoding.named_parameters() if each.requires_grad}
    if not answer.requires_grad:
        return {name: torch.zeros_like(each) for name, each in named.items()}
    found = torch.autograd.grad(
        answer,
        list(named.values()),
        noise("towards", *answer.shape),
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(named, found, strict=True))
