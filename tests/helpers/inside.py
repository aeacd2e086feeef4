"""What a head computes inside one forward of a model."""

import torch

from jarilab.inspect.explain.score_parts import Parts, parts_of
from jarilab.inspect.explain.walk import Walk, walk_of
from jarilab.inspect.record.capture import look_inside
from jarilab.inspect.record.model_io import to_float64


def walk(model, inputs, *, site: str, head: int, **options) -> Walk:
    """`walk_of` for a batch of one."""
    in_float64 = next(model.parameters()).dtype is torch.float64
    tape = look_inside(model, to_float64(tuple(inputs)) if in_float64 else inputs)
    return walk_of(tape, site, head, **options)


def parts(model, inputs, site: str, head: int) -> Parts:
    """`parts_of` for a batch of one."""
    return parts_of(look_inside(model, inputs), site, head)
