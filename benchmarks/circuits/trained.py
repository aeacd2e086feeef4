"""Five small decoders trained to copy, and which of their heads each method names.

    python -m circuits.trained --json TRAINED.json

A sequence holds a block of distinct random tokens, of random length at a random place, and the same block again at a
random distance. Nothing but the earlier copy tells the next token, neither its frequency nor a fixed offset. The loss
is that of the tokens of the second copy.

No one designed these circuits. What a head does is decided here by an intervention that no method of jarilab uses: the
model hides one kind of link in one head, and nothing else. `truth` has the kinds.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from jarilab.core.errors import UserError

from .expected import UP
from .methods import MEASURES
from .planting import PlantedModel
from .scoring import decide
from .stream import Circuit, Stream
from .tasks import NONE, Task, repeated_blocks

VOCABULARY, LENGTH = 40, 32
WIDTH, HEADS, LAYERS = 64, 4, 2
ROWS, LEARNING_RATE, WARM_UP = 64, 2e-3, 100
ENOUGH, BUDGET = 0.98, 300.0
"""Accuracy on the second copy at which training ends, and the most CPU-seconds."""
JUDGED_ROWS, MIN_CHANGE, MIN_PATH = 128, 0.05, 0.05
"""Sequences on which links are hidden, and the smallest change of the loss in nats, and of a weight, that counts."""


HeadIndex = tuple[int, int]
"""Layer and head."""
ALL_HEADS: list[HeadIndex] = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


class CopyModel(nn.Module):
    """A decoder of attention alone, pre-norm, with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY + 1, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(CopyLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.read_out = nn.Linear(WIDTH, VOCABULARY + 1, bias=False)

    def forward(
        self, ids: Tensor, hidden: dict[HeadIndex, Tensor] | None = None, weights: list[Tensor] | None = None
    ) -> Tensor:
        """Logits `(B, L, V)` of ids `(B, L)`.

        hidden: links `(B, L, L)` to hide, by layer and head. weights: is filled with those of each layer.
        """
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for number, layer in enumerate(self.layers):
            masks = {head: links for (at, head), links in (hidden or {}).items() if at == number}
            x = layer(x, masks, weights)
        return self.read_out(self.norm(x))


class CopyLayer(nn.Module):
    """Attention of a `CopyModel`, with its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor, hidden: dict[int, Tensor], weights: list[Tensor] | None = None) -> Tensor:
        normed = self.norm(x)
        q, k, v = (
            each(normed).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if hidden:
            allowed = allowed.repeat(len(x), HEADS, 1, 1)
            for head, links in hidden.items():
                allowed[:, head] &= ~links
        if weights is not None:
            scores = q @ k.mT / q.shape[-1] ** 0.5
            weights.append(scores.masked_fill(~allowed, -torch.inf).softmax(-1))
        z = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return x + self.output(z.transpose(1, 2).flatten(2))


def drawn(task: Task, generator: np.random.Generator, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Ids and answers, `(B, L)`."""
    ids, answers = zip(*(task.row(generator) for _ in range(rows)), strict=True)
    return torch.from_numpy(np.stack(ids)), torch.from_numpy(np.stack(answers))


def train(seed: int) -> tuple[CopyModel, dict[str, Any]]:
    """A trained model, and how that went."""
    torch.manual_seed(seed)
    task, model = repeated_blocks(VOCABULARY, LENGTH), CopyModel()
    generator, held_out = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    begin, step, accuracy = time.process_time(), 0, 0.0
    while accuracy < ENOUGH and time.process_time() - begin < BUDGET:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP)
        ids, answers = drawn(task, generator)
        loss = nn.functional.cross_entropy(model(ids).transpose(1, 2), answers, ignore_index=NONE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 100 == 0:
            ids, answers = drawn(task, held_out, 4 * ROWS)
            with torch.no_grad():
                accuracy = _accuracy(model(ids), answers)
            print(f"seed {seed}, step {step}: loss {loss.item():.3f}, held out {accuracy:.3f}", flush=True)
    seconds = round(time.process_time() - begin, 1)
    return model.eval(), {"steps": step, "seconds": seconds, "accuracy": accuracy}


def _accuracy(logits: Tensor, answers: Tensor) -> float:
    is_asked = answers != NONE
    return float((logits.argmax(-1) == answers)[is_asked].double().mean())


# The criterion --------------------------------------------------------------------------------------------------------

KINDS = ("previous", "same token", "induction")
"""Links from each token to the one before; from a token of the second copy to itself in the first; to the one after."""


@dataclass(frozen=True)
class Examples:
    """Held-out sequences, their answers, and the links of each kind, `(B, L, L)`."""

    ids: Tensor
    answers: Tensor
    links: dict[str, Tensor]

    @staticmethod
    def of(seed: int, rows: int) -> Examples:
        ids, answers = drawn(repeated_blocks(VOCABULARY, LENGTH), np.random.default_rng([seed, 3]), rows)
        is_asked = (answers != NONE).unsqueeze(2)
        same = (ids.unsqueeze(2) == ids.unsqueeze(1)).tril(-1) & is_asked
        previous = torch.eye(LENGTH, dtype=torch.bool).roll(-1, 1).tril(-1).repeat(rows, 1, 1)
        return Examples(ids, answers, {"previous": previous, "same token": same, "induction": same.roll(1, 2)})

    @torch.no_grad()
    def losses(self, model: CopyModel, hidden: dict[HeadIndex, Tensor]) -> Tensor:
        """The mean loss of the second copy of each row, in nats."""
        logits = model(self.ids, hidden).transpose(1, 2)
        losses = nn.functional.cross_entropy(logits, self.answers, ignore_index=NONE, reduction="none")
        return losses.sum(1) / (self.answers != NONE).sum(1)

    @torch.no_grad()
    def accuracy(self, model: CopyModel, hidden: dict[HeadIndex, Tensor]) -> float:
        return round(_accuracy(model(self.ids, hidden), self.answers), 4)

    @torch.no_grad()
    def copying(self, model: CopyModel, hidden: dict[HeadIndex, Tensor]) -> Tensor:
        """The weight of each head of the last layer on the links of induction, `(B, H)`, a mean over asked tokens."""
        weights: list[Tensor] = []
        model(self.ids, hidden, weights)
        links = self.links["induction"].unsqueeze(1)
        return (weights[-1] * links).sum((2, 3)) / links.sum((2, 3))


def interval(values: Tensor) -> list[float]:
    """The mean of rows with its 95 % interval, by the normal distribution."""
    mean, half = float(values.mean()), 1.96 * float(values.std()) / len(values) ** 0.5
    return [round(each, 4) for each in (mean, mean - half, mean + half)]


def truth_of(model: CopyModel, seed: int) -> dict[str, Any]:
    """What hiding links does.

    alone: the change of the loss, by head and kind. all: accuracy with the links of a kind hidden in all heads.
    rest: accuracy with the links of all kinds hidden in all heads but those that `acting` names, in which only links
    of other kinds are hidden. paths: the change of the weight of a later head on induction links if one link of an
    earlier head is hidden: that to the previous token where the later head looks (k), or that to the same token where
    it looks from (q).
    """
    examples = Examples.of(seed, JUDGED_ROWS)
    clean = examples.losses(model, {})
    alone: dict[str, dict[str, list[float]]] = {}
    for head in ALL_HEADS:
        changes = {kind: examples.losses(model, {head: links}) - clean for kind, links in examples.links.items()}
        alone[_name(head)] = {kind: interval(change) for kind, change in changes.items()}
    acting = {
        kind: [head for head in ALL_HEADS if decide(alone[_name(head)][kind], MIN_CHANGE) == UP] for kind in KINDS
    }
    rest: dict[HeadIndex, Tensor] = {}
    for head, kind in product(ALL_HEADS, KINDS):
        if head not in acting[kind]:
            links = examples.links[kind]
            rest[head] = rest[head] | links if head in rest else links
    answered = examples.links["induction"].any(1)
    of_inputs = {"k": examples.links["previous"] & answered.unsqueeze(2), "q": examples.links["same token"]}
    before = examples.copying(model, {})
    paths: dict[str, dict[str, list[float]]] = {}
    for (layer, head), (name, links) in product(ALL_HEADS, of_inputs.items()):
        if layer < LAYERS - 1:
            change = before - examples.copying(model, {(layer, head): links})
            for later in range(HEADS):
                path = f"{_name((layer, head))} {_name((LAYERS - 1, later))}"
                paths.setdefault(path, {})[name] = interval(change[:, later])
    every = {kind: dict.fromkeys(ALL_HEADS, links) for kind, links in examples.links.items()}
    return {
        "alone": alone,
        "accuracy": examples.accuracy(model, {}),
        "all": {kind: examples.accuracy(model, hidden) for kind, hidden in every.items()},
        "rest": examples.accuracy(model, rest),
        "paths": paths,
        "weights": dict(
            zip([_name((LAYERS - 1, head)) for head in range(HEADS)], before.mean(0).tolist(), strict=True)
        ),
    }


def _name(head: HeadIndex) -> str:
    return f"L{head[0]}H{head[1]}"


# Methods --------------------------------------------------------------------------------------------------------------


def measure(seed: int) -> dict[str, Any]:
    """Train a model; returns the record of its training, of the criterion and of all methods."""
    model, training = train(seed)
    circuit = Circuit(Stream(VOCABULARY, LENGTH), [])
    names = dict.fromkeys(map(_name, ALL_HEADS), "trained")
    task = repeated_blocks(VOCABULARY, LENGTH)
    subject = PlantedModel("trained", "decoder", seed, model, task, circuit, names, 1)
    measured: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for method, run in MEASURES.items():
        try:
            measured |= run(subject)
        except UserError as error:
            errors[method] = str(error)
    record = {"seed": seed, "training": training, "truth": truth_of(model, seed), "measured": measured}
    return record | {"errors": errors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 5), metavar=("FIRST", "END"))
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    records = []
    for seed in range(*options.seeds):
        records.append(measure(seed))
        options.json.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")


if __name__ == "__main__":
    main()
