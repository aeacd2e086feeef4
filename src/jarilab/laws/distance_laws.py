"""The law of `distance_vectors` and `affine_bias`, which kernels use in place of the hooks."""

from __future__ import annotations

import torch

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding
from jarilab.encodings.skew import skew
from jarilab.laws.checks import EXACT, SkippedError, check_close
from jarilab.laws.fixtures import LENGTH, noise
from jarilab.laws.hooks import HookInputs, call_hooks
from jarilab.laws.law_subject import Subject
from jarilab.positions.coordinates import Positions, distance


def distance_forms(subject: Subject) -> str:
    """`distance_vectors` and `affine_bias` match `terms`, `values` and `bias`, with equal gradients."""
    if subject.axes != 1 or subject.labels:
        raise SkippedError("it has no distances on one axis")
    compared = dict[str, None]()
    for start in subject.starts():
        encoding, k_pos = subject.encoding(), subject.sequence(start)
        q_pos = k_pos.slice(2, 5)
        inputs = HookInputs.random(encoding.site, q_pos, k_pos).with_weights()
        results = _distance_results(encoding, inputs, q_pos, k_pos)
        if not results:
            raise SkippedError("it has no distance form")
        expected = call_hooks(encoding, inputs)
        for hook, answer in results.items():
            where = f"in distance form, from position {start} on"
            check_close(answer, expected[hook], EXACT, f"{hook} {where}")
            slopes = _gradients(encoding, expected[hook])
            for name, gradient in _gradients(encoding, answer).items():
                check_close(
                    gradient, slopes[name], EXACT, f"gradient of {name} through {hook} {where}"
                )
        compared |= dict.fromkeys(results)
    return " and ".join(compared)


def _distance_results(
    encoding: Encoding, inputs: HookInputs, q_pos: Positions, k_pos: Positions
) -> dict[str, Tensor]:
    """The result of each hook in its distance form."""
    ahead_QK = distance(q_pos, k_pos)
    first, last = int(ahead_QK.min()), int(ahead_QK.max())
    results = dict[str, Tensor | None]()
    vectors = encoding.distance_vectors(first, last)
    if vectors is not None and "terms" in encoding.hooks:
        terms = vectors.terms(inputs.q, inputs.k, ahead_QK)
        results["terms"] = terms.masked_fill(ahead_QK > 0, 0.0) if encoding.site.causal else terms
    if vectors is not None and "values" in encoding.hooks:
        assert inputs.weights is not None
        results["values"] = vectors.weighted_sum(inputs.weights, ahead_QK)
    lines = encoding.affine_bias(q_pos, first, last) if "bias" in encoding.hooks else None
    if lines is not None:
        bias_HQK = skew(lines.materialized(q_pos.length), k_pos.length)
        results["bias"] = bias_HQK.expand(*inputs.q.shape[:3], LENGTH)
    return {hook: answer for hook, answer in results.items() if answer is not None}


def _gradients(encoding: Encoding, answer: Tensor) -> dict[str, Tensor]:
    """The gradients of the parameters, by name."""
    named = {name: each for name, each in encoding.named_parameters() if each.requires_grad}
    if not answer.requires_grad:
        return {name: torch.zeros_like(each) for name, each in named.items()}
    gradients = torch.autograd.grad(
        answer,
        list(named.values()),
        noise("towards", *answer.shape),
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(named, gradients, strict=True))
