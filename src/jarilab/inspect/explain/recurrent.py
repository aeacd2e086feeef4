"""One step of a recurrent decoder, matrix by matrix: Luong et al. 2015, equations 5 to 8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.attention.recurrent import LuongAttention
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.explain.steps import (
    Names,
    Step,
    Walk,
    distance_to_output,
    of_parameter,
    step_of_bias,
    step_of_mask,
    step_of_terms,
    step_of_weights,
)
from jarilab.inspect.explain.visible import visible
from jarilab.inspect.record.calls import select_queries
from jarilab.inspect.record.capture import Tape

LIKELIEST = 5


def walk_of_step(
    tape: Tape,
    attention: LuongAttention,
    site: str,
    step: int,
    names: Names,
    vocabulary: Sequence[str] | None,
) -> Walk:
    """From the decoder's state after one query to the scores of the next token. Raises UserError for a step that is not
    there."""
    call = _call_of_step(tape, site, step)
    query = names.queries[step]
    after = f"the decoder's state after '{visible(query)}', step {step}"
    of_step = slice(step, step + 1)
    h, attentive = (states[of_step] for states in _states(tape, attention))
    names = Names([query], names.keys)
    steps = [names.of_queries("h_t", after, h)]
    steps += _steps_to_weights(attention, call, h, names)
    steps += _steps_from_context(attention, call, h, names)
    error = distance_to_output(site, steps[-1].matrix, attentive)
    readout = getattr(tape.inside.model, "readout", None)
    if isinstance(readout, Tensor):
        steps += _steps_to_vocabulary(steps[-1].matrix, readout, names, vocabulary)
        output = tape.inside.output[0][of_step]
        error = max(error, distance_to_output(site, steps[-2].matrix, output))
    return Walk(attention.encoding.spec, site, 0, steps, error, call)


def _call_of_step(tape: Tape, site: str, step: int) -> AttentionCall:
    """There is one call for each step, or one for all of them."""
    queries = []
    for recorded in tape.calls[site]:
        count = recorded.call.q.shape[2]
        queries += [(recorded.call, query) for query in range(count)]
    last = len(queries) - 1
    if not 0 <= step <= last:
        raise UserError(f"{site} has the steps 0 to {last}, got {step}")
    call, query = queries[step]
    return select_queries(call, slice(query, query + 1))


def _states(tape: Tape, attention: LuongAttention) -> tuple[Tensor, Tensor]:
    """h_t and h~ of all steps, as they went in and came out."""
    passages = tape.inside.calls_of(attention)
    h = [passage.inputs[0][0] for passage in passages]
    attentive = [passage.output[0] for passage in passages if passage.output is not None]
    return torch.cat(h), torch.cat(attentive)


def _steps_to_weights(
    attention: LuongAttention, call: AttentionCall, h: Float[Tensor, "1 D"], names: Names
) -> list[Step]:
    """From h_t to the weights, computed anew from the parameters. call: the attention of this one query."""
    outputs = call.v[0, 0]
    steps = [names.of_keys("h_1:m", "the encoder's outputs: keys and values", outputs)]
    q, k = _mapped(attention, call, h, outputs)
    of_q, of_k = attention.score.maps()
    to_q, name_of_q = _steps_of_map("h_t", of_q)
    to_k, name_of_k = _steps_of_map("h_1:m", of_k)
    steps += to_q
    if to_q:
        steps.append(names.of_queries(name_of_q, "each row times the matrix", q))
    steps += to_k
    if to_k:
        steps.append(names.of_keys(name_of_k, "each row times the matrix", k))
    if "rotate" in call.geometry.encoding.hooks:
        q, k = call.q[0, 0], call.k[0, 0]
        name_of_q = f"({name_of_q} rotated)"
        name_of_k = f"({name_of_k} rotated)"
        turned = "each pair turned by its position's angle"
        steps.append(names.of_queries(name_of_q, turned, q))
        steps.append(names.of_keys(name_of_k, turned, k))
    compared, scores = _compared(attention, q, k, name_of_q, name_of_k, names)
    return [*steps, *compared, *_steps_of_scores(call, scores, names)]


def _mapped(
    attention: LuongAttention, call: AttentionCall, h: Tensor, outputs: Tensor
) -> tuple[Tensor, Tensor]:
    """Query and keys as the score maps them, before the encoding turns them."""
    geometry, encoding, score = call.geometry, call.geometry.encoding, attention.score
    q = score.queries(encoding.inject(h.unsqueeze(0), geometry.q_pos))
    k = score.keys(encoding.inject(outputs.unsqueeze(0), geometry.k_pos))
    return q[0], k[0]


def _steps_of_map(name: str, mapping: tuple[str, Tensor] | None) -> tuple[list[Step], str]:
    """The matrix that one side is multiplied by, if any, and what the product is called."""
    if mapping is None:
        return [], name
    matrix_name, matrix = mapping
    return [of_parameter(matrix_name, "a learned matrix", matrix)], f"{name} {matrix_name}"


def _compared(
    attention: LuongAttention, q: Tensor, k: Tensor, name_of_q: str, name_of_k: str, names: Names
) -> tuple[list[Step], Float[Tensor, "1 K"]]:
    """How each key fits the query: the steps, and the scores in the last of them."""
    compare = attention.score.compare
    if compare is None:
        scores = q @ k.transpose(0, 1)
        formula = f"{name_of_q} {name_of_k}^T"
        return [names.of_pairs("scores", formula, scores)], scores
    formula = f"tanh({name_of_q} + {name_of_k})"
    tanh_KE = (q + k).tanh()
    scores = compare.v @ tanh_KE.transpose(0, 1)
    steps = [
        names.of_keys("tanh", f"{formula}, a row for each key", tanh_KE),
        Step("v", "a learned vector", compare.v, "parameter", ["v"]),
        names.of_pairs("scores", "v^T tanh, a number for each key", scores),
    ]
    return steps, scores


def _steps_of_scores(call: AttentionCall, product: Tensor, names: Names) -> list[Step]:
    """What an encoding and the mask do to the scores, and the weights. product: computed anew."""
    parts = replace(definition.summands(call).of_head(0), product=product)
    return [
        *step_of_terms(parts, names),
        *step_of_bias(parts, names),
        *step_of_mask(parts, call, names, "minus infinity on padding"),
        step_of_weights(call, 0, names, "w = softmax of the row"),
    ]


def _steps_from_context(
    attention: LuongAttention, call: AttentionCall, h: Float[Tensor, "1 D"], names: Names
) -> list[Step]:
    """From the weights to h~."""
    context = definition.output(call)[0, 0].to(h.dtype)
    both = torch.cat((h, context), -1)
    matrix = attention.combine.weight.t()
    attentive = (both @ matrix).tanh()
    return [
        names.of_queries("c", "w h_1:m, the weighted sum of the values", context),
        names.of_queries("[h_t; c]", "side by side", both),
        of_parameter("W_concat", "a learned matrix", matrix),
        names.of_queries("h~", "tanh([h_t; c] W_concat)", attentive),
    ]


def _steps_to_vocabulary(
    attentive: Float[Tensor, "1 D"],
    readout: Float[Tensor, "V D"],
    names: Names,
    vocabulary: Sequence[str] | None,
) -> list[Step]:
    """From h~ to the scores of the next token, and the likeliest of them."""
    matrix = readout.t()
    count = matrix.shape[1]
    tokens = list(vocabulary or map(str, range(count)))
    scores = attentive @ matrix
    shares_V = scores.softmax(-1)[0]
    best = shares_V.topk(min(LIKELIEST, count))
    likeliest = [tokens[token] for token in best.indices.tolist()]
    shares = best.values.unsqueeze(0)
    formula = "softmax of the scores, the largest"
    return [
        of_parameter("W_gen", "a learned matrix, a column for each token", matrix),
        names.of_queries("scores of the next token", "h~ W_gen", scores),
        Step("likeliest next tokens", formula, shares, "queries", names.queries, likeliest),
    ]
