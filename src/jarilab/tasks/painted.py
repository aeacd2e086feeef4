"""One caption and the image that is painted for it, as one sequence: words, a mark, and codes row by row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import UInt8
from torch import Tensor

from jarilab.shapes import Int
from jarilab.tasks.captions import SEED, Captions, Draws

BETWEEN = ("<picture>", "<no caption>")
"""What stands between words and codes in the one vocabulary: the mark, and the token for a caption that is left out."""


def paint(task: Captions, model: Draws, read: list[int]) -> Int[Tensor, "1 N"]:
    """The codes of the first image that `jarilab.paint` paints, with the run's guidance and temperature."""
    steps = model.steps(
        task.sources([read]), guidance=task.guidance, temperature=task.temperature, seed=SEED
    )
    return torch.stack(list(steps), 1)


def image_of(task: Captions, ids: Sequence[int]) -> UInt8[Tensor, "3 H W"]:
    """What the codes at the end of a sequence stand for."""
    rows, columns = task.grid
    codes = torch.tensor(ids[-rows * columns :]) - len(task.words) - len(BETWEEN)
    return task.codes.decode(codes.view(1, rows, columns))[0]


def judged(task: Captions, ids: Sequence[int]) -> str | None:
    """What the judge reads in the image at the end of a sequence; None where nobody judges."""
    return task.judged(image_of(task, ids))


def names_of(task: Captions, numbers: Sequence[int]) -> list[str]:
    """The name of each token of such a sequence, or of what may follow it."""
    names = [*task.words.names(range(len(task.words))), *BETWEEN]
    return [
        names[number] if number < len(names) else f"code {number - len(names)}"
        for number in numbers
    ]
