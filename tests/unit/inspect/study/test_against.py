"""Two models on the same inputs: matched heads, their distance, and the noise of two halves."""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers.head_maps import HEADS, head_maps
from helpers.planted_heads import PlantedHeads, first_token, noise, offset, uniform
from jarilab.core.errors import UserError
from jarilab.inspect.measure.head_matching import divergence
from jarilab.inspect.study.against import Against, compare_heads
from jarilab.inspect.study.example import Batch, Example
from jarilab.inspect.study.model_batches import batch_of
from jarilab.inspect.study.progress_file import ProgressFile


def inputs(count: int = 12):
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        length = int(torch.randint(2, 7, (), generator=generator))
        yield torch.randn(6, length, length, generator=generator).mul(2).softmax(-1)


def by_site(weights, heads=HEADS, **options):
    """The weights of all heads as a map of each site."""
    sites = [head.site for head in heads]
    firsts = [sites.index(site) for site in dict.fromkeys(sites)]
    parts = zip(firsts, [*firsts[1:], len(sites)], strict=True)
    return [head_maps(weights[first:last], first, **options) for first, last in parts]


def compared(maps, other_maps) -> Against:
    against = Against(HEADS, HEADS)
    for index, (one, other) in enumerate(zip(maps, other_maps, strict=True)):
        example = Example(index, f"text.txt:{index + 1}", {})
        against.add(example, by_site(one), by_site(other))
    return against


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from jarilab.inspect.study import progress_file
from jarilab.inspect.study.against import compare_heads
from unit.inspect.study.test_against import pairs, two_models
progress_file.SECONDS_BETWEEN_SAVES = 0.0

def slow(count):
    print(count, flush=True)
    time.sleep(0.05)

file = progress_file.ProgressFile(Path({path!r}))
compare_heads(two_models(), pairs(), slow, progress=file)
"""


def two_models() -> tuple[PlantedHeads, PlantedHeads]:
    torch.manual_seed(0)
    one = PlantedHeads({"previous": lambda: offset(-1), "noise": noise}, causal=True)
    return one, PlantedHeads({"noise": noise, "first": first_token}, causal=True)


def pairs(first: int = 0) -> list[tuple[Batch, Batch]]:
    """40 batches of 3 examples, without the first ones."""
    ids = torch.randint(1, 40, (40, 3, 12), generator=torch.Generator().manual_seed(0))
    return [(batch_of(each), batch_of(each)) for each in ids[first:]]


@pytest.mark.slow
def test_a_killed_comparison_continues_with_the_same_numbers(tmp_path):
    path = tmp_path / "against.safetensors"
    code = SCRIPT.format(tests=str(Path(__file__).parents[3]), path=str(path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 12:
                break
        os.kill(process.pid, signal.SIGKILL)
    models, file = two_models(), ProgressFile(path)
    against = Against(*(model.heads for model in compare_heads(models, pairs()[:1]).models))
    against.load(file.arrays)
    assert 3 <= against.examples < 120
    counts = []
    left = pairs(against.examples // 3)
    compare_heads(models, left, counts.append, against=against, progress=file)
    assert (len(counts), counts[-1]) == (len(left), 120)
    assert against.rows() == compare_heads(models, pairs()).rows()
    finished = Against(*(model.heads for model in against.models))
    finished.load(ProgressFile(path).arrays)
    assert compare_heads(models, [], against=finished).rows() == against.rows()


def test_identical_models_have_distance_0_and_keep_their_places():
    for row, head in zip(compared(inputs(), inputs()).rows(), HEADS, strict=True):
        assert (row["head"], row["match"]) == (head.short, head.short)
        assert row["distance"] == row["distance_low"] == row["distance_high"] == row["same_index"] == 0
        assert row["moved"] == -row["noise"] < 0
        assert not row["has_moved"]
        assert row["examples"] == 12


def test_equal_heads_keep_their_places():
    maps = [weights[:1].expand(6, -1, -1) for weights in inputs()]
    assert [row["match"] for row in compared(maps, maps).rows()] == [head.short for head in HEADS]


def test_distance_is_the_mean_over_rows():
    rows = list(inputs())
    others = [torch.rand(6, *one.shape[1:]).softmax(-1) for one in rows]
    against = compared(rows, others)
    counts = [len(one[0]) for one in rows]
    total = sum(divergence(a[:3], b[:3]) * n for a, b, n in zip(rows, others, counts, strict=True))
    distance = total / sum(counts)
    for h, row in enumerate(against.rows()[:3]):
        g = next(index for index, head in enumerate(HEADS) if head.short == row["match"])
        assert row["distance"] == pytest.approx(distance[h, g].item())
        assert row["same_index"] == pytest.approx(distance[h, h].item())
        assert row["distance_low"] < row["distance"] < row["distance_high"]


def test_permuted_and_changed_heads_are_named():
    """Heads 0 and 1 change places, head 3 changes less than by noise, head 5 attends elsewhere."""
    maps = [weights * 0.1 + 0.9 * torch.eye(weights.shape[1]).roll(1, 1) for weights in inputs(40)]
    others = [weights[[1, 0, 2, 3, 4, 5]].clone() for weights in maps]
    for weights in others:
        weights[3] = weights[3] * 0.999 + 0.001 / weights.shape[1]
        weights[5] = torch.eye(weights.shape[1])
    rows = compared(maps, others).rows()
    assert [row["match"] for row in rows] == ["L0H1", "L0H0", "L0H2", "L1H0", "L1H1", "L1H2"]
    assert [row["has_moved"] for row in rows] == [False] * 5 + [True]
    assert 0 < rows[3]["distance"] < rows[3]["noise"]
    assert rows[5]["moved"] == pytest.approx(rows[5]["distance"] - rows[5]["noise"])
    assert rows[5]["moved_lowest"] < rows[5]["moved"]
    assert rows[5]["distance"] > 0.4
    assert rows[0]["same_index"] > 0


def test_noise_is_the_distance_of_two_halves():
    """The first model attends to the first key on one half of the examples, to the second on the other."""
    maps = []
    for index in range(8):
        weights = torch.zeros(6, 3, 3)
        weights[:, :, index % 2] = 1
        weights[1:, :, index % 2], weights[1:, :, 2] = 0, 1
        maps.append(weights)
    steady = [weights[1:2].expand(6, -1, -1) for weights in maps]
    noises = [row["noise"] for row in compared(maps, steady).rows()]
    assert noises == pytest.approx([math.log(2), 0, 0, 0, 0, 0])
    assert max(row["noise"] for row in compared(steady, maps).rows()) == pytest.approx(math.log(2))


def test_intervals_cover_over_examples():
    generator = torch.Generator().manual_seed(1)
    covered = 0
    for _ in range(30):
        maps = [torch.eye(4).expand(6, -1, -1)] * 40
        moved = torch.eye(4).roll(1, 1).expand(6, -1, -1)
        others = [moved if torch.rand((), generator=generator) < 0.3 else maps[0] for _ in range(40)]
        row = compared(maps, others).rows()[0]
        covered += row["distance_low"] <= 0.3 * math.log(2) <= row["distance_high"]
    assert covered >= 25


def test_a_state_continues():
    maps, others = list(inputs()), [weights.roll(1, 0) for weights in inputs()]
    through, first, second = compared(maps, others), compared(maps[:5], others[:5]), Against(HEADS, HEADS)
    second.load({name: array.copy() for name, array in first.state().items()})
    for index in range(5, 12):
        second.add(Example(index, "", {}), by_site(maps[index]), by_site(others[index]))
    assert second.rows() == through.rows()
    finished = Against(HEADS, HEADS)
    finished.load(through.state())
    assert finished.rows() == through.rows()
    sizes = [sum(array.nbytes for array in each.state().values()) for each in (first, through)]
    assert sizes[0] == sizes[1]


def test_fewer_heads_in_the_other_model():
    maps = list(inputs())
    others = [HEADS[0], *HEADS[3:]]
    against = Against(HEADS, others)
    for index, weights in enumerate(maps):
        other = weights[[2, 3, 4, 5]]
        against.add(Example(index, "", {}), by_site(weights), by_site(other, others))
    rows = against.rows()
    assert [row["match"] for row in rows] == [None, None, "L0H0", "L1H0", "L1H1", "L1H2"]
    assert rows[1]["same_index"] is None
    assert rows[2]["distance"] == 0


def test_queries_without_keys_are_left_out():
    allowed = torch.tensor([[False, False], [True, True]])
    one, other = torch.tensor([[1.0, 0], [1, 0]]).expand(6, 2, 2), torch.tensor([[1.0, 0], [0, 1]]).expand(6, 2, 2)
    against = Against(HEADS, HEADS)
    against.add(Example(0, "", {}), by_site(one, allowed=allowed), by_site(other))
    assert [row["distance"] for row in against.rows()] == pytest.approx([math.log(2)] * 6)


def test_faults():
    with pytest.raises(UserError, match="same number of attention layers, got 2 and 1; compare checkpoints"):
        Against(HEADS, HEADS[:3])
    message = r"text.txt:3: expected maps of the same size .* got \(3, 3\) and \(4, 4\) .*same tokenizer"
    with pytest.raises(UserError, match=message):
        Against(HEADS, HEADS).add(
            Example(2, "text.txt:3", {}), by_site(torch.rand(6, 3, 3)), by_site(torch.rand(6, 4, 4))
        )
    assert Against(HEADS, HEADS).rows() == []


def planted(*roles) -> PlantedHeads:
    return PlantedHeads({f"{index}": role for index, role in enumerate(roles)}, causal=True)


def padded_batches() -> list[Batch]:
    ids = torch.randint(1, 40, (3, 12), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = 0  # the start token
    mask = torch.ones_like(ids)
    mask[1, 7:], mask[2, 10:] = 0, 0
    return [batch_of({"input_ids": ids, "attention_mask": mask}, number=number) for number in range(3)]


def test_models_are_compared_over_batches():
    roles = [lambda: offset(-1), uniform, first_token]
    models = planted(*roles), planted(roles[2], roles[0], lambda: offset(-2))
    counts = []
    batches = [(batch, batch) for batch in padded_batches()]
    rows = compare_heads(models, batches, counts.append).rows()
    assert [row["match"] for row in rows] == ["L0H1", "L0H2", "L0H0"]
    assert [row["distance"] for row in rows] == pytest.approx([0, rows[1]["distance"], 0], abs=1e-9)
    assert [row["has_moved"] for row in rows] == [False, True, False]
    assert counts == [3, 6, 9]


def test_other_tokens_and_no_batches():
    model = planted(uniform)
    batch = padded_batches()[0]
    other = batch_of(batch.kwargs, lambda ids: [f"<{number}>" for number in ids])
    with pytest.raises(
        UserError, match=r"expected the same tokens from both models, got '.*' and '<.*; compare models"
    ):
        compare_heads((model, model), [(batch, other)])
    with pytest.raises(UserError, match="expected at least one batch"):
        compare_heads((model, model), [])
