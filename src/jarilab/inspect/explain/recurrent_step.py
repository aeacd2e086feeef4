"""The walk through one step of a recurrent decoder: Luong et al. 2015, equations 5 to 8."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.attention.recurrent_attention import LuongAttention
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.explain.steps import (
    Names,
    Step,
    Walk,
    distance_to_output,
    of_parameter,
    steps_to_weights,
    visible,
)
from jarilab.inspect.record.calls import select_queries
from jarilab.inspect.record.capture import Tape

LIKELIEST_TOKENS = 5


def walk_of_step(
    tape: Tape,
    attention: LuongAttention,
    site: str,
    step: int,
    names: Names,
    vocabulary: Sequence[str] | None,
) -> Walk:
    """The walk from the decoder's state to the scores of the next token. Raises UserError for an unknown step."""
    call = _call_of_step(tape, site, step)
    query = names.queries[step]
    after = f"the decoder's state after '{visible(query)}', step {step}"
    row = slice(step, step + 1)
    # The inputs and outputs of the attention are h_t and h~ of all steps.
    calls = tape.inside.calls_of(attention)
    h = torch.cat([each.inputs[0][0] for each in calls])[row]
    attentive = torch.cat([each.output[0] for each in calls if each.output is not None])[row]
    names = Names([query], names.keys)
    steps = [names.of_queries("h_t", after, h)]
    steps += _steps_to_weights(attention, call, h, names)
    steps += _steps_from_context(attention, call, h, names)
    error = distance_to_output(site, steps[-1].matrix, attentive)
    readout = getattr(tape.inside.model, "readout", None)
    if isinstance(readout, Tensor):
        steps += _steps_to_vocabulary(steps[-1].matrix, readout, names, vocabulary)
        output = tape.inside.output[0][row]
        error = max(error, distance_to_output(site, steps[-2].matrix, output))
    return Walk(attention.encoding.spec, site, 0, steps, error, call)


def _call_of_step(tape: Tape, site: str, step: int) -> AttentionCall:
    """The call of one step; the tape has one call for each step, or one for all."""
    queries = []
    for recorded in tape.calls[site]:
        count = recorded.call.q.shape[2]
        queries += [(recorded.call, query) for query in range(count)]
    last = len(queries) - 1
    if not 0 <= step <= last:
        raise UserError(f"{site} has the steps 0 to {last}, got {step}")
    call, query = queries[step]
    return select_queries(call, slice(query, query + 1))


def _steps_to_weights(
    attention: LuongAttention, call: AttentionCall, h: Float[Tensor, "1 D"], names: Names
) -> list[Step]:
    """From h_t to the weights, recomputed from the parameters. call: of this query."""
    outputs = call.v[0, 0]
    steps = [names.of_keys("h_1:m", "the encoder's outputs: keys and values", outputs)]
    geometry, encoding, score = call.geometry, call.geometry.encoding, attention.score
    q = score.queries(encoding.inject(h.unsqueeze(0), geometry.q_pos))[0]
    k = score.keys(encoding.inject(outputs.unsqueeze(0), geometry.k_pos))[0]
    q_map, k_map = score.maps()
    q_steps, q_name = _steps_of_map("h_t", q_map)
    k_steps, k_name = _steps_of_map("h_1:m", k_map)
    steps += q_steps
    if q_steps:
        steps.append(names.of_queries(q_name, "each row times the matrix", q))
    steps += k_steps
    if k_steps:
        steps.append(names.of_keys(k_name, "each row times the matrix", k))
    if "rotate" in encoding.hooks:
        q, k = call.q[0, 0], call.k[0, 0]
        q_name = f"({q_name} rotated)"
        k_name = f"({k_name} rotated)"
        rotated = "each pair turned by its position's angle"
        steps.append(names.of_queries(q_name, rotated, q))
        steps.append(names.of_keys(k_name, rotated, k))
    score_steps, scores = _score_steps(attention, q, k, q_name, k_name, names)
    formulas = {"hidden": "minus infinity on padding", "weights": "w = softmax of the row"}
    return [*steps, *score_steps, *steps_to_weights(call, 0, scores, names, **formulas)]


def _steps_of_map(name: str, mapping: tuple[str, Tensor] | None) -> tuple[list[Step], str]:
    """The step of the matrix that one side is multiplied by, if any, and the name of the product."""
    if mapping is None:
        return [], name
    matrix_name, matrix = mapping
    return [of_parameter(matrix_name, "a learned matrix", matrix)], f"{name} {matrix_name}"


def _score_steps(
    attention: LuongAttention, q: Tensor, k: Tensor, q_name: str, k_name: str, names: Names
) -> tuple[list[Step], Float[Tensor, "1 K"]]:
    """The steps from query and keys to the scores, and the scores."""
    compare = attention.score.compare
    if compare is None:
        scores = q @ k.transpose(0, 1)
        formula = f"{q_name} {k_name}^T"
        return [names.of_pairs("scores", formula, scores)], scores
    formula = f"tanh({q_name} + {k_name})"
    tanh_KE = (q + k).tanh()
    scores = compare.v @ tanh_KE.transpose(0, 1)
    steps = [
        names.of_keys("tanh", f"{formula}, a row for each key", tanh_KE),
        Step("v", "a learned vector", compare.v, "parameter", ["v"]),
        names.of_pairs("scores", "v^T tanh, a number for each key", scores),
    ]
    return steps, scores


def _steps_from_context(
    attention: LuongAttention, call: AttentionCall, h: Float[Tensor, "1 D"], names: Names
) -> list[Step]:
    """From the weights to h~."""
    context = definition.output(call)[0, 0].to(h.dtype)
    concatenated = torch.cat((h, context), -1)
    matrix = attention.combine.weight.t()
    attentive = (concatenated @ matrix).tanh()
    return [
        names.of_queries("c", "w h_1:m, the weighted sum of the values", context),
        names.of_queries("[h_t; c]", "side by side", concatenated),
        of_parameter("W_concat", "a learned matrix", matrix),
        names.of_queries("h~", "tanh([h_t; c] W_concat)", attentive),
    ]


def _steps_to_vocabulary(
    attentive: Float[Tensor, "1 D"],
    readout: Float[Tensor, "V D"],
    names: Names,
    vocabulary: Sequence[str] | None,
) -> list[Step]:
    """From h~ to the scores of the next token, and the likeliest tokens."""
    matrix = readout.t()
    count = matrix.shape[1]
    tokens = list(vocabulary or map(str, range(count)))
    scores = attentive @ matrix
    probabilities_V = scores.softmax(-1)[0]
    best = probabilities_V.topk(min(LIKELIEST_TOKENS, count))
    likeliest = [tokens[token] for token in best.indices.tolist()]
    probabilities = best.values.unsqueeze(0)
    formula = "softmax of the scores, the largest"
    return [
        of_parameter("W_gen", "a learned matrix, a column for each token", matrix),
        names.of_queries("scores of the next token", "h~ W_gen", scores),
        Step("likeliest next tokens", formula, probabilities, "queries", names.queries, likeliest),
    ]
