"""Words in seconds: against transformers' Whisper, against a search through all paths, and of planted heads."""

import functools
import importlib.util
import itertools

import numpy as np
import pytest
import torch

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.fields.speech import alignment_scores, dynamic_time_warping, first_frames, words_to_time

HEADS = [("decoder.0.cross", 1), ("decoder.1.cross", 2)]


def cheapest(cost):
    """The least sum of a path, by trying all of them."""
    rows, columns = cost.shape

    @functools.cache
    def least(i, j):
        if i == j == 0:
            return cost[0, 0]
        before = [(i - 1, j - 1), (i - 1, j), (i, j - 1)]
        return cost[i, j] + min(least(*cell) for cell in before if min(cell) >= 0)

    return least(rows - 1, columns - 1)


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (4, 9), (9, 4)])
def test_the_path_is_the_cheapest_and_takes_steps_of_one(shape):
    for seed in range(5):
        cost = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()
        path = dynamic_time_warping(cost)
        assert path[0] == (0, 0)
        assert path[-1] == (shape[0] - 1, shape[1] - 1)
        steps = np.diff(path, axis=0).tolist()
        assert all(step in ([0, 1], [1, 0], [1, 1]) for step in steps)
        assert sum(float(cost[cell]) for cell in path) == pytest.approx(cheapest(cost.numpy()))


def spoken(peaks, frames=80, width=1.5):
    """Maps whose tokens look around a frame each."""
    frame = torch.arange(frames).double()
    return torch.softmax(-((frame - torch.tensor(peaks).double().unsqueeze(-1)) ** 2) / width, -1)


def test_planted_times_are_returned():
    peaks = [3, 11, 20, 34, 47, 66]
    # Each frame is normalised over tokens, so that a token begins where it is looked at more than the one before.
    middles = [(before + peak) / 2 for before, peak in itertools.pairwise(peaks)]
    frames = first_frames(spoken(peaks)[None])
    assert frames[0] == 0
    assert all(abs(frame - middle) <= 1 for frame, middle in zip(frames[1:], middles, strict=True))


def test_the_head_that_aligns_is_told_from_heads_that_look_sharply_elsewhere():
    starts = list(range(4, 76, 6))
    noise = torch.rand(len(starts), 80, generator=torch.Generator().manual_seed(1)).double()
    mixed = torch.randperm(len(starts), generator=torch.Generator().manual_seed(2)).tolist()
    heads = torch.stack([
        noise / noise.sum(-1, keepdim=True),
        spoken(starts),
        spoken([0] * len(starts)),
        spoken([starts[index] for index in mixed]),
    ])  # fmt: skip
    before = heads.clone()
    scored = alignment_scores(heads)
    assert torch.equal(heads, before)
    above = (scored.value - scored.chance).tolist()
    assert above[1] > 0.5
    assert max(above[0], above[2]) < 0.1
    assert above[3] < 0.3


@functools.cache
def whisper():
    import transformers

    torch.manual_seed(0)
    sizes = {f"{part}_{name}": count for part in ("encoder", "decoder")
             for name, count in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 32))}  # fmt: skip
    config = transformers.WhisperConfig(
        vocab_size=60, num_mel_bins=8, d_model=32, max_source_positions=50, max_target_positions=30, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, attn_implementation="eager", **sizes,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        parameter.data *= 4  # else all maps are nearly even
    return model


def generated(beams):
    from transformers.generation import GenerationMixin

    model = whisper()
    with jarilab.record(model) as tape:
        answer = GenerationMixin.generate(
            model, input_features=torch.randn(2, 8, 100, generator=torch.Generator().manual_seed(3)),
            decoder_input_ids=torch.tensor([[3, 5], [3, 5]]), num_beams=beams, num_return_sequences=beams,
            max_new_tokens=12, return_dict_in_generate=True, output_scores=True, output_attentions=True,
            suppress_tokens=None, begin_suppress_tokens=None,
        )  # fmt: skip
    return answer, tape.merged_steps(answer.get("beam_indices"))


@pytest.mark.parametrize("frames", [None, 60])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="NO transformers: NOT compared")
def test_times_are_those_of_transformers(beams, frames):
    answer, tape = generated(beams)
    expected = whisper()._extract_token_timestamps(answer, [[0, 1], [1, 2]], num_frames=frames, num_input_ids=2)
    crop = None if frames is None else frames // 2
    assert len(answer.sequences) == 2 * beams
    for row, ids in enumerate(answer.sequences.tolist()):
        timed = words_to_time(tape.row(row), [str(token) for token in ids], HEADS, prompt=2, frames=crop)
        assert [word.name for word in timed] == [str(token) for token in ids[2:-1]]
        assert [word.start for word in timed] == pytest.approx(expected[row, 2:-1].tolist(), abs=1e-6)
        assert [word.end for word in timed[:-1]] == [word.start for word in timed[1:]]
        assert timed[-1].end == pytest.approx(0.02 * (crop or 50))
    assert len({tuple(times) for times in expected.tolist()}) > 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="NO transformers: NOT checked")
def test_words_of_pieces_and_names_that_do_not_fit():
    _, tape = generated(1)
    names = ["<s>", "<en>", "▁he", "ll", "o", "▁wor", "ld", "▁a", "▁b", "c", "d", "▁e", "f"]
    tokens = words_to_time(tape.row(0), names, HEADS, prompt=2)
    by_marks = words_to_time(tape.row(0), names, HEADS, prompt=2, words=True)
    by_index = words_to_time(tape.row(0), names, HEADS, prompt=2, words=[None, None, 0, 0, 0, 1, 1, 2, 3, 3, 3, 4, 4])
    assert by_marks == by_index
    assert [word.name for word in by_marks] == ["hello", "world", "a", "bcd", "ef"]
    assert [word.start for word in by_marks] == [tokens[at].start for at in (0, 3, 5, 6, 9)]
    with pytest.raises(UserError, match=r"names of 13 tokens, or one more .* got 5, 2 of them"):
        words_to_time(tape.row(0), names[:5], HEADS, prompt=2)
