"""A walk: a step-by-step trace of one attention head, or of one step of a recurrent decoder.

The steps are recomputed from the input and the parameters of the attention. A walk whose last matrix differs from the
model's own output raises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.attention.heads import split_heads
from jarilab.attention.module import Attention
from jarilab.attention.recurrent_attention import LuongAttention
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.compose import LayerEncodings
from jarilab.inspect.explain.recurrent_step import walk_of_step
from jarilab.inspect.explain.steps import (
    Names,
    Step,
    Walk,
    distance_to_output,
    steps_to_weights,
)
from jarilab.inspect.record.activations import first_layer, input_encodings, is_norm
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.sites import Inputs, layers_of
from jarilab.nn.sublayers import TokenEmbedding
from jarilab.positions.patches import Images


@torch.no_grad()
def walk_of(
    tape: Tape,
    site: str,
    head: int,
    *,
    queries: Sequence[str],
    keys: Sequence[str],
    step: int | None = None,
    vocabulary: Sequence[str] | None = None,
) -> Walk:
    """Trace `head` of the attention at `site` (`encoder.0`, `decoder.1.cross`) through a recorded forward.

    tape: of one input, recorded with `inside=True`. queries, keys: the names of the tokens at this site.
    step: for a recurrent decoder, the query to trace, the first by default. Its walk ends at the scores of the next
    token. vocabulary: the names of these tokens, their IDs by default.
    Raises UserError for an unknown site, head or step, and for a step of an attention that has no steps.
    """
    attention, names = tape.head(site, head).owner, Names(queries, keys)
    if isinstance(attention, LuongAttention):
        return walk_of_step(tape, attention, site, step or 0, names, vocabulary)
    if not isinstance(attention, Attention):
        raise UserError(
            f"{site} is a {type(attention).__name__}: expected jarilab.Attention or the attention of a recurrent "
            "decoder, whose steps are known; look at its map with tape.weights"
        )
    if step is not None:
        raise UserError(
            f"{site} does all of its queries at once and has no steps; leave step={step} out"
        )
    recorded = tape.recorded(site)
    output = tape.inside.calls_of(attention)[-1].output
    assert recorded.inputs is not None
    assert output is not None
    steps = _steps_of_stack(tape, site, names)
    steps += _steps_of_head(attention, recorded.call, recorded.inputs, head, names)
    # W_O mixes all heads, so the last matrix has the output of all of them.
    error = distance_to_output(site, steps[-1].matrix, output[0])
    return Walk(_spec(tape, site), site, head, steps, error, recorded.call)


def goes_step_by_step(tape: Tape, site: str) -> bool:
    """Whether a walk at `site` traces one step, as of a recurrent decoder."""
    return isinstance(tape.calls[site][0].placed.owner, LuongAttention)


def _spec(tape: Tape, site: str) -> str:
    """The spec of the encoding at a site, or the name of its class for an attention outside of stacks."""
    recorded = tape.recorded(site)
    name = "cross_encoding" if tape.site(site).kind == "cross" else "encoding"
    encoding = getattr(recorded.placed.stack, name, recorded.call.geometry.encoding)
    return encoding.spec if isinstance(encoding, LayerEncodings) else type(encoding).__name__


# The input of the layers ---------------------------------------------------------------------------------------------


def _steps_of_stack(tape: Tape, site: str, names: Names) -> list[Step]:
    """The input of the stack and the positions added to it, or the input of its first layer."""
    recorded = tape.recorded(site)
    stack = recorded.placed.stack
    layers = None if stack is None else layers_of(stack)
    if stack is None or layers is None:
        return []
    first_input = tape.inside.calls_of(first_layer(layers))[-1].inputs[0][0]
    source = _input_formula(tape, site)
    encodings, norm = input_encodings(stack), getattr(stack, "embedding_norm", None)
    if encodings is None:
        return [names.of_queries("embedding", _normed(source, norm), first_input)]
    # A stack may have queries of its own, so that its input is what they attend to.
    before = tape.inside.calls_of(stack)[-1].inputs[:1]
    if before and before[0][0].shape == first_input.shape:
        q_pos = recorded.call.geometry.q_pos
        embedded = encodings.embed(before[0][:1], q_pos)[0]
        normed = norm(embedded) if is_norm(norm) else embedded
        if torch.equal(normed, first_input):
            formula = f"embedding + {encodings.spec}"
            steps = [
                names.of_queries("embedding", source, before[0][0]),
                names.of_queries("embedding + position", formula, embedded),
            ]
            if normed is not embedded:
                formula = "norm before the first layer"
                steps.append(names.of_queries("embedding norm", formula, normed))
            return steps
    formula = _normed(f"{source} + {encodings.spec}", norm)
    return [names.of_queries("embedding + position", formula, first_input)]


def _normed(formula: str, norm: nn.Module | None) -> str:
    return f"norm({formula})" if is_norm(norm) else formula


def _input_formula(tape: Tape, site: str) -> str:
    inputs = tape.inside.arguments[-1]
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        return "what the model makes of its input"
    if isinstance(inputs, Images):
        if tape.site(site).queries == "source":
            return "what the model makes of each patch"
        return "a learned vector of each query"
    model = tape.inside.model
    embeddings = [module for module in model.modules() if isinstance(module, TokenEmbedding)]
    scaled = any(embedding.scale != 1 for embedding in embeddings)
    formula = "E[token] * sqrt(D)" if scaled else "E[token]"
    return f"{formula} + S[segment]" if getattr(model, "segments", None) else formula


# One head ------------------------------------------------------------------------------------------------------------


def _steps_of_head(
    attention: Attention, call: AttentionCall, inputs: Inputs, head: int, names: Names
) -> list[Step]:
    x, source = inputs
    is_self = source is x
    key_input = "input" if is_self else "source"
    steps = [names.of_queries("input", "what reaches this attention", x[0])]
    if not is_self:
        steps.append(names.of_keys("source", "what its keys and values are made of", source[0]))

    q, k, v = _project(attention, call, x[:1], source[:1], head)
    biased = attention.query.bias is not None
    b_Q, b_K, b_V = (f" + b_{side}" if biased else "" for side in "QKV")
    steps.append(names.of_queries("Q", f"input W_Q{b_Q}", q))
    steps.append(names.of_keys("K", f"{key_input} W_K{b_K}", k))
    steps.append(names.of_keys("V", f"{key_input} W_V{b_V}", v))
    if "rotate" in call.geometry.encoding.hooks:
        q, k = call.q[0, head], call.k[0, head]
        rotated = "each pair turned by its position's angle"
        steps.append(names.of_queries("Q rotated", rotated, q))
        steps.append(names.of_keys("K rotated", rotated, k))
    product = q @ k.transpose(0, 1)
    steps.append(names.of_pairs("Q K^T", "how well each key fits each query", product))
    steps += steps_to_weights(
        call,
        head,
        product,
        names,
        scaled=_scaling(call),
        hidden="minus infinity where a query may not look",
        weights="softmax of each row",
    )
    outputs_HQW = definition.output(call)[0]
    side_by_side = outputs_HQW.transpose(0, 1).flatten(-2)
    output = attention.out(side_by_side.to(x.dtype))
    b_O = "" if attention.out.bias is None else " + b_O"
    return [
        *steps,
        names.of_queries("weights V", "the weighted sum of the values", outputs_HQW[head]),
        names.of_queries("output", f"all heads side by side, W_O{b_O}", output),
    ]


def _project(
    attention: Attention, call: AttentionCall, x: Tensor, source: Tensor, head: int
) -> list[Float[Tensor, "_ E"]]:
    """Queries, keys and values of a head, before any rotation."""
    geometry, encoding = call.geometry, call.geometry.encoding
    site = attention.site
    projections = [
        (attention.query(encoding.inject(x, geometry.q_pos)), site.d_head),
        (attention.key(encoding.inject(source, geometry.k_pos)), site.d_head),
        (attention.value(source), site.d_value),
    ]
    return [
        split_heads(all_heads, site.n_heads, width)[0, head] for all_heads, width in projections
    ]


def _scaling(call: AttentionCall) -> str:
    width = call.q.shape[3]
    if math.isclose(call.scale, width**-0.5):
        return f"divided by sqrt({width}) = {width**0.5:.4g}"
    if call.scale == 1:
        return f"not divided by sqrt({width}), as this model was trained"
    return f"multiplied by {call.scale:.4g}, as this model was trained"
