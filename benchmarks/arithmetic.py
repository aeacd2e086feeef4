"""How fast does jari learn arithmetic, beside torch.nn.Transformer?

    python benchmarks/arithmetic.py             training examples per CPU-second, optimizer step included

All have 2+2 layers, 8 heads, a feed-forward of 4 times the width, norms before the sublayers, no dropout, batches of
512 and the same padding masks; one thread. jari runs at its defaults (Muon and AdamW, sinusoidal, bfloat16 where the
machine has it), in float32, and in float32 with AdamW; the peer in float32 with fused AdamW and learned positions.

How soon 99 % are right: `time_to_quality.py`.

Measured 2026-11-24, PyTorch 2.13, one core of an AMD EPYC with AVX-512 BF16 that others used too: at width 64 and 128
jari trains 1.7 times as many examples a CPU-second as the peer, in float32 1.25 and 1.06, in float32 with AdamW 1.3 and
1.2; give or take 0.1.
"""

from __future__ import annotations

import itertools
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import steps
import timing
import torch
from torch import Tensor, nn
from torch.nn import functional

from jarilab.attention.cache import KVCache
from jarilab.data.text import END, FIRST, PADDING
from jarilab.models.decoding import greedy
from jarilab.nn.init import generator_for
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.runs.experiment import Experiment
from jarilab.runs.training_options import Precision
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.tasks.base import Batch, Task
from jarilab.training.batching import Batches
from jarilab.training.determinism import deterministic

OURS: dict[str, tuple[Precision, str]] = {
    "jari": ("auto", "muon"),
    "jari, float32": ("float32", "muon"),
    "jari, float32, adamw": ("float32", "adamw"),
}


@dataclass(frozen=True, eq=False)
class Memory:
    """What the peer's encoder made of the sources, and which of it is padding."""

    x: Tensor
    hidden: Tensor | None

    def select(self, rows: Tensor) -> Memory:
        return Memory(self.x[rows], None if self.hidden is None else self.hidden[rows])


class Peer(nn.Module):
    """torch.nn.Transformer with embeddings, learned positions and a generator; `start` and `step` as `greedy` asks."""

    def __init__(self, vocabulary: int, width: int, longest: int):
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.source_places, self.target_places = nn.Embedding(longest, width), nn.Embedding(longest, width)
        self.transformer = nn.Transformer(width, 8, 2, 2, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.generator = nn.Linear(width, vocabulary, bias=False)

    def forward(self, source: Tokens, target: Tokens) -> Tensor:
        return self.step(self.start(source), target.ids, target.positions, None)

    def start(self, source: Tokens | None) -> Memory:
        assert source is not None
        assert source.keep is not None
        hidden = ~source.keep
        x = self.source(source.ids) + self.source_places.weight[: source.ids.shape[1]]
        return Memory(self.transformer.encoder(x, src_key_padding_mask=hidden), hidden)

    def step(self, state: Memory, ids: Tensor, positions: Positions, cache: KVCache | None) -> Tensor:
        x = self.target(ids) + self.target_places.weight[: ids.shape[1]]
        later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        x = self.transformer.decoder(
            x, state.x, tgt_mask=later, memory_key_padding_mask=state.hidden, tgt_is_causal=True
        )
        return self.generator(x)

    def new_cache(self) -> KVCache:
        raise NotImplementedError("torch.nn.Transformer has none; write with cached=False")


def peer_step(task: Arithmetic, width: int, batches: Iterator[Batch]) -> steps.Step:
    torch.manual_seed(1)
    warnings.filterwarnings("ignore", "enable_nested_tensor is True")
    model = Peer(len(task.vocabulary), width, max(task.longest.values()))

    def loss() -> Tensor:
        batch = next(batches)
        scores = model(*batch.inputs)
        return functional.cross_entropy(scores.flatten(0, 1), batch.labels.flatten(), ignore_index=PADDING)

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True
    )
    return steps.not_deterministic(steps.training_step(model, loss, [optimizer], 1.0))


def rates(task: Arithmetic, widths: list[int], rounds: int, table: timing.Table) -> None:
    batches = steps.batches_of(task)
    for width in widths:
        contenders: dict[str, Callable[[], object]] = {}
        for name, (precision, optimizer) in OURS.items():
            settings = {"model.d_model": width, "training.optimizer": optimizer, "training.lr": 1e-3}
            experiment = Experiment.of("arithmetic", settings=settings, precision=precision)
            contenders[name] = steps.arithmetic_step(task, itertools.cycle(batches), experiment)[1]
        contenders["nn.Transformer"] = peer_step(task, width, itertools.cycle(batches))
        times = timing.measure(contenders, rounds)
        for name in contenders:
            table.add(
                width=width,
                contender=name,
                examples_per_s=round(512 / statistics.median(times[name])),
                times_as_fast=timing.ratio(times, "nn.Transformer", name),
            )


def batches_in_order(task: Task, order: Batches) -> Iterator[Batch]:
    return (task.training_batch(order.at(step), generator_for(1, f"batch/{step}")) for step in itertools.count())


@dataclass(frozen=True)
class PeerAnswers:
    """The peer as a task that measures it sees it: it reads the whole answer again for each token."""

    model: Peer
    longest: int
    judge: None = None

    def write(self, sources: Tokens) -> list[list[int]]:
        model: Any = self.model
        ids = greedy(model, sources, first=FIRST, end=END, padding=PADDING, longest=self.longest, cached=False).ids
        return [[token for token in row if token != PADDING] for row in ids.tolist()]

    def scores(self, batch: Batch) -> Tensor:
        return self.model(*batch.inputs)

    def most_attended(self, source: list[int], written: Sequence[int]) -> list[int]:
        raise NotImplementedError  # nothing is copied in arithmetic


def exact_match(task: Arithmetic, model: Peer, count: int) -> float:
    return task.evaluate(PeerAnswers(model, task.longest["target"]), count)["exact_match"]


def main() -> None:
    parser = timing.arguments(__doc__, rounds=15)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128])
    given = parser.parse_args()
    deterministic(threads=1)
    task, table = Arithmetic(), timing.Table(given.json)
    rates(task, given.widths, given.rounds, table)
    table.close()


if __name__ == "__main__":
    main()
