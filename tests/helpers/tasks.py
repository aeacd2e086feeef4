"""What a task of a source and a target trains on, as text."""

import torch

from jarilab.tasks.seq2seq import PairsTask


def training_pairs(task: PairsTask) -> list[tuple[str, str]]:
    """Every training example: the source without its end, and the labels."""
    batch = task.training_batch(torch.arange(task.training_size), torch.Generator())
    source, target = task.tokenizers
    sides = zip(batch.inputs[0].ids.tolist(), batch.labels.tolist(), strict=True)
    return [(source.decode(one), target.decode(other)) for one, other in sides]
