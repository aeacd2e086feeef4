"""Attention over a graph: relations need not be distances (Shaw et al. 2018, section 3.1).

    python examples/family.py

Each node of a random tree holds a digit, and has to say its parent's. Which node is whose parent stands only in the
labels of the edges. With `shaw:labels=4` one layer of attention learns to look it up; without, it can only guess.
"""

import torch
from torch import nn

import jarilab

NODES, DIGITS = 8, 10
STRANGER, SELF, PARENT, CHILD = range(4)


def families(
    count: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Digits `(B, L)`, labelled relations `(B, L, L)` and each node's parent's digit; the root is its own parent."""
    digits = torch.randint(DIGITS, (count, NODES), generator=generator)
    older = torch.rand(count, NODES, generator=generator) * torch.arange(NODES)
    parent = older.long()  # of node i one of 0 ... i - 1, so that there are no circles
    relations = torch.full((count, NODES, NODES), STRANGER)
    family, node = torch.arange(count).unsqueeze(1), torch.arange(NODES)
    relations[family, node, parent] = PARENT
    relations[family, parent, node] = CHILD
    relations[family, node, node] = SELF
    # Shuffle the nodes, or their order would give away who is old.
    order = torch.rand(count, NODES, generator=generator).argsort(1)
    relations = relations[family.unsqueeze(2), order.unsqueeze(2), order.unsqueeze(1)]
    return digits[family, order], relations, digits[family, parent][family, order]


class Family(nn.Module):
    """Digits in, scores of the parent's digit out."""

    def __init__(self, encoding: str):
        super().__init__()
        self.embedding = nn.Embedding(DIGITS, 32)
        self.encoder = jarilab.Encoder(32, n_heads=4, n_layers=1, encoding=encoding)
        self.scores = nn.Linear(32, DIGITS)

    def forward(self, digits: torch.Tensor, relations: torch.Tensor) -> torch.Tensor:
        positions = jarilab.Positions.graph(relations)
        return self.scores(self.encoder(self.embedding(digits), positions=positions))


def accuracy(encoding: str, steps: int = 400) -> float:
    """Train for some seconds; the share of parents' digits named right in families never seen."""
    model, generator = Family(encoding), torch.Generator().manual_seed(1)
    jarilab.initialise(model, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        digits, relations, wanted = families(64, generator)
        loss = nn.functional.cross_entropy(model(digits, relations).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        digits, relations, wanted = families(1000, generator)
        return float((model(digits, relations).argmax(-1) == wanted).float().mean())


if __name__ == "__main__":
    torch.set_num_threads(1)  # so small a model only waits for its second thread
    for encoding in ("none", "shaw:labels=4"):
        print(f"{encoding:>14}  {accuracy(encoding):7.1%} of parents named right")
