"""When words are spoken, by the cross-attention of a speech model (Radford et al. 2022, Whisper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.measure.maps import Scored
from jarilab.inspect.measure.words import WordIndices, word_groups
from jarilab.inspect.record.capture import Tape

MEDIAN_WIDTH = 7
"""Frames of the median filter, as in Whisper."""
DIAGONAL, DOWN, RIGHT = 0, 1, 2


@dataclass(frozen=True)
class TimedWord:
    """A word with its start and end in seconds."""

    name: str
    start: float
    end: float


def words_to_time(
    tape: Tape,
    tokens: Sequence[str],
    heads: Sequence[tuple[str, int]],
    *,
    words: WordIndices | bool | None = None,
    prompt: int = 0,
    frames: int | None = None,
    seconds: float = 0.02,
) -> list[TimedWord]:
    """The time of each word, by dynamic time warping over the mean map of `heads`; of each token without `words`.

    A word starts where the path enters its first token, and ends where the next one starts.
    tape: of one input, such as `tape.merged_steps(beam_indices).row(0)`. tokens: the names of all tokens, the prompt
    included; the last one of a generation is never read, has no time and is left out. heads: site and head.
    prompt: tokens at the start that are not spoken. frames: of the encoder that have sound; all by default.
    seconds: of a frame. Raises UserError if the number of tokens does not fit.
    """
    weights_HQK = torch.stack(
        [tape.weights(site)[0, head, prompt:, :frames] for site, head in heads]
    )
    _, queries, keys = weights_HQK.shape
    spoken = len(tokens) - prompt
    if spoken not in (queries, queries + 1) or not queries:
        raise UserError(
            f"expected the names of {prompt + queries} tokens, or one more for the last one of a generation, got "
            f"{len(tokens)}, {prompt} of them the prompt; name every token, special ones included"
        )
    names = {"target": list(tokens[prompt : prompt + queries])}
    indices = words if isinstance(words, bool | None) else words[prompt : prompt + queries]
    groups = word_groups(names, indices)["target"]
    frames_Q = first_frames(weights_HQK)
    times = [frames_Q[start] * seconds for start in groups.starts.tolist()]
    times.append(keys * seconds)
    return list(map(TimedWord, groups.names, times, times[1:]))


def first_frames(weights: Float[Tensor, "H Q K"]) -> list[int]:
    """The first frame of each token on the cheapest path through the mean map of heads."""
    first: dict[int, int] = {}
    for query, key in dynamic_time_warping(-_sharpened(weights).mean(0)):
        first.setdefault(query, key)
    return list(first.values())


def alignment_scores(weights: Float[Tensor, "H Q K"]) -> Scored:
    """How well each head of a map follows the speech in time, from 0 to 1.

    value: the mean weight at most 2 frames from the head's own path. chance: the same of the same rows in random
    orders, as a mean over 10 draws. A head that looks at few frames in any order has a high value and a high chance.
    """
    generator = torch.Generator().manual_seed(0)
    weights = weights.double().cpu()
    orders = [torch.randperm(weights.shape[1], generator=generator) for _ in range(10)]
    chances = [_weight_on_path(weights[:, order]) for order in orders]
    return Scored(_weight_on_path(weights), torch.stack(chances).mean(0))


def _weight_on_path(weights: Float[Tensor, "H Q K"]) -> Float[Tensor, " H"]:
    near_HQK = torch.zeros_like(weights, dtype=torch.bool)
    for near_QK, matrix_QK in zip(near_HQK, _sharpened(weights), strict=True):
        for query, key in dynamic_time_warping(-matrix_QK):
            near_QK[query, max(0, key - 2) : key + 3] = True
    return (weights * near_HQK).sum(-1).mean(-1)


def _sharpened(weights: Float[Tensor, "H Q K"]) -> Float[Tensor, "H Q K"]:
    """Weights normalised over the tokens of each frame, then a median over frames, as in Whisper."""
    deviation_HQK = weights - weights.mean(-2, keepdim=True)
    spread_H1K = weights.std(-2, keepdim=True, correction=0)
    matrix_HQK = deviation_HQK / spread_H1K.where(spread_H1K > 0, 1.0)
    pad = MEDIAN_WIDTH // 2
    if weights.shape[-1] <= pad:
        return matrix_HQK
    padded = torch.nn.functional.pad(matrix_HQK, (pad, pad), mode="reflect")
    return padded.unfold(-1, MEDIAN_WIDTH, 1).median(-1).values


def dynamic_time_warping(cost: Float[Tensor, "Q K"]) -> list[tuple[int, int]]:
    """The cells (query, key) of the cheapest path from the first to the last (Sakoe & Chiba 1978).

    A step goes to the next query, the next key, or both. Of equal paths it is that of Whisper.
    """
    cost_QK = cost.detach().double().cpu().numpy()
    queries, keys = cost_QK.shape
    total = np.full((queries + 1, keys + 1), np.inf)
    step = np.zeros((queries + 1, keys + 1), dtype=np.int8)
    step[0] = RIGHT
    step[1:, 0] = DOWN
    total[0, 0] = 0
    # All cells of an antidiagonal follow from the two before it.
    for diagonal in range(2, queries + keys + 1):
        first, last = max(1, diagonal - keys), min(queries, diagonal - 1)
        i = np.arange(first, last + 1)
        j = diagonal - i
        both = total[i - 1, j - 1]
        down = total[i - 1, j]
        right = total[i, j - 1]
        straight = np.where((down < both) & (down < right), DOWN, RIGHT)
        step[i, j] = np.where((both < down) & (both < right), DIAGONAL, straight)
        total[i, j] = cost_QK[i - 1, j - 1] + np.choose(step[i, j], (both, down, right))
    path = []
    query, key = queries, keys
    while query or key:
        path.append((query - 1, key - 1))
        taken = step[query, key]
        query -= int(taken != RIGHT)
        key -= int(taken != DOWN)
    return path[::-1]
