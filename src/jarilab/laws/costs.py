"""The cost of an encoding: its training step over one without an encoding, measured now."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from jarilab.encodings.base import Site
from jarilab.encodings.compose import NO_ENCODING, build
from jarilab.models.decoder import LanguageModel
from jarilab.models.stacks import Encoder
from jarilab.nn.init import generator_for, initialise
from jarilab.positions.coordinates import Positions

WIDTH, HEADS, LAYERS = 64, 4, 2
BATCH, ROWS, COLUMNS = 16, 8, 8
VOCABULARY = 32
SECONDS, LEAST = 0.8, 5

Step = Callable[[], Tensor]


def cost(spec: str) -> float:
    """Time of a forward and backward pass with the encoding over that without one.

    The model is small and reads 64 tokens, or an image of 8 x 8 if the encoding takes no line. The result is the median
    of pairs, one after the other. Other work on the machine affects both, but not equally: expect an error of a tenth.
    """
    site = Site(WIDTH, HEADS, WIDTH // HEADS, WIDTH // HEADS, causal=True)
    reads_sequences = 1 in build(spec, site).axes
    make = _of_text if reads_sequences else _of_image
    plain, encoded = make(NO_ENCODING), make(spec)
    ratios: list[float] = []
    # The first step allocates memory and takes longer.
    for step in (plain, encoded):
        _seconds(step)
    end = time.perf_counter() + SECONDS
    while len(ratios) < LEAST or time.perf_counter() < end:
        ratios.append(1 / _seconds(plain) * _seconds(encoded))
    return statistics.median(ratios)


def _seconds(step: Step) -> float:
    """Processor time, which other processes disturb less than wall-clock time."""
    begin = time.process_time()
    step().backward()
    return time.process_time() - begin


def _of_text(spec: str) -> Step:
    model = LanguageModel(VOCABULARY, d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, encoding=spec)
    initialise(model, 0)
    shape = (BATCH, ROWS * COLUMNS)
    ids_BL = torch.randint(VOCABULARY, shape, generator=generator_for(0, "cost"))
    return lambda: model(ids_BL).square().mean()


def _of_image(spec: str) -> Step:
    encoder = Encoder(WIDTH, HEADS, LAYERS, encoding=spec)
    initialise(encoder, 0)
    pos = Positions.grid(ROWS, COLUMNS)
    x_BLD = torch.randn(BATCH, ROWS * COLUMNS, WIDTH, generator=generator_for(0, "cost"))
    return lambda: encoder(x_BLD, positions=pos).square().mean()
