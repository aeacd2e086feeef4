"""One step of a recurrent decoder, matrix by matrix: Luong et al. 2015, equations 5 to 8."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jarilab.attention import call as definition
from jarilab.attention.call import AttentionCall
from jarilab.attention.recurrent import LuongAttention
from jarilab.inspect.steps import Side, Step
from jarilab.shapes import Float, Tensor

LIKELIEST = 5


def steps_to_weights(
    attention: LuongAttention,
    call: AttentionCall,
    h: Float[Tensor, "1 D"],
    query: Sequence[str],
    keys: Sequence[str],
) -> list[Step]:
    """From h_t to the weights, computed anew from the parameters. call: the attention of this one query."""
    geometry, encoding, score = call.geometry, call.geometry.encoding, attention.score
    outputs = call.v[0, 0]
    steps = [Step("h_1:m", "the encoder's outputs: keys and values", outputs, "keys", keys)]
    q = encoding.inject(h.unsqueeze(0), geometry.q_pos)
    k = encoding.inject(outputs.unsqueeze(0), geometry.k_pos)
    q, k = score.queries(q)[0], score.keys(k)[0]
    mapped = []
    sides: tuple[tuple[Side, Sequence[str]], ...] = (("queries", query), ("keys", keys))
    for name, mapping, made, (side, rows) in zip(
        ("h_t", "h_1:m"), score.maps(), (q, k), sides, strict=True
    ):
        if mapping is not None:
            matrix_name, matrix = mapping
            steps.append(
                Step(matrix_name, "a learned matrix", matrix, "parameter", _components(matrix))
            )
            name = f"{name} {matrix_name}"
            steps.append(Step(name, "each row times the matrix", made, side, rows))
        mapped.append(name)
    if "rotate" in encoding.hooks:
        q, k = call.q[0, 0], call.k[0, 0]
        mapped = [f"({name} rotated)" for name in mapped]
        steps.append(
            Step(mapped[0], "each pair turned by its position's angle", q, "queries", query)
        )
        steps.append(Step(mapped[1], "each pair turned by its position's angle", k, "keys", keys))
    if score.compare is None:
        scores, formula = q @ k.transpose(0, 1), f"{mapped[0]} {mapped[1]}^T"
    else:
        formula = f"tanh({mapped[0]} + {mapped[1]})"
        steps.append(Step("tanh", f"{formula}, a row for each key", (q + k).tanh(), "keys", keys))
        steps.append(Step("v", "a learned vector", score.compare.v, "parameter", ["v"]))
        scores, formula = (
            score.compare.v @ (q + k).tanh().transpose(0, 1),
            "v^T tanh, a number for each key",
        )
    steps.append(Step("scores", formula, scores, "queries", query, keys))
    return steps + _steps_of_place(call, scores, query, keys)


def _steps_of_place(
    call: AttentionCall, scores: Tensor, query: Sequence[str], keys: Sequence[str]
) -> list[Step]:
    """What an encoding and the mask do to the scores, and the weights."""
    geometry, steps = call.geometry, []
    terms = geometry.encoding.terms(call.q, call.k, geometry.relation)
    if terms is not None:
        scores = scores + terms[0, 0]
        steps.append(
            Step(
                "+ terms",
                "what the encoding adds, by content and place",
                scores,
                "queries",
                query,
                keys,
            )
        )
    if geometry.bias is not None:
        scores = scores + geometry.bias[0, 0]
        steps.append(
            Step("+ bias", "what the encoding adds, by place alone", scores, "queries", query, keys)
        )
    if geometry.allowed is not None and not bool(geometry.allowed.all()):
        scores = scores.masked_fill(~geometry.allowed[0, 0], float("-inf"))
        steps.append(Step("masked", "minus infinity on padding", scores, "queries", query, keys))
    steps.append(
        Step(
            "weights",
            "w = softmax of the row",
            definition.weights(call)[0, 0],
            "queries",
            query,
            keys,
        )
    )
    return steps


def steps_from_context(
    attention: LuongAttention, call: AttentionCall, h: Float[Tensor, "1 D"], query: Sequence[str]
) -> list[Step]:
    """From the weights to h~."""
    context = definition.output(call)[0, 0].to(h.dtype)
    both = torch.cat((h, context), -1)
    matrix = attention.combine.weight.t()
    return [
        Step("c", "w h_1:m, the weighted sum of the values", context, "queries", query),
        Step("[h_t; c]", "side by side", both, "queries", query),
        Step("W_concat", "a learned matrix", matrix, "parameter", _components(matrix)),
        Step("h~", "tanh([h_t; c] W_concat)", (both @ matrix).tanh(), "queries", query),
    ]


def steps_to_vocabulary(
    attentive: Float[Tensor, "1 D"],
    readout: Float[Tensor, "V D"],
    query: Sequence[str],
    vocabulary: Sequence[str] | None,
) -> list[Step]:
    """From h~ to the scores of the next token, and the likeliest of them."""
    matrix = readout.t()
    names = list(vocabulary) if vocabulary else [str(token) for token in range(matrix.shape[1])]
    scores = attentive @ matrix
    best = scores.softmax(-1)[0].topk(min(LIKELIEST, matrix.shape[1]))
    tops = [names[token] for token in best.indices.tolist()]
    return [
        Step(
            "W_gen",
            "a learned matrix, a column for each token",
            matrix,
            "parameter",
            _components(matrix),
        ),
        Step("scores of the next token", "h~ W_gen", scores, "queries", query),
        Step(
            "likeliest next tokens",
            "softmax of the scores, the largest",
            best.values.unsqueeze(0),
            "queries",
            query,
            tops,
        ),
    ]


def _components(matrix: Tensor) -> list[str]:
    return [str(row) for row in range(len(matrix))]
