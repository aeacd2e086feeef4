"""Watch a training loop of your own: maps and measures of heads in TensorBoard.

    python examples/watch_training.py
    tensorboard --logdir runs

A plain PyTorch encoder learns to name the digit before each digit. `jarilab.Watch` records the same two inputs every 50
steps. Under *Scalars*, the measure `previous` of a head rises from its chance: it has become a previous-token head.
"""

import sys

import torch
from torch import nn

import jarilab

DIGITS, LENGTH, WIDTH = 10, 8, 32


class Before(nn.Module):
    """Digits `(B, L)` in, scores of the digit before each `(B, L, 10)` out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(DIGITS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.scores = nn.Linear(WIDTH, DIGITS)

    def forward(self, digits: torch.Tensor) -> torch.Tensor:
        places = torch.arange(digits.shape[1])
        return self.scores(self.encoder(self.embedding(digits) + self.places(places)))


def main(folder: str = "runs/watched", *, steps: int = 300) -> None:
    torch.set_num_threads(1)  # so small a model only waits for its second thread
    torch.manual_seed(1)
    model = Before()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    watched = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]])
    loss = torch.zeros(())
    with jarilab.Watch(model, watched, every=50, folder=folder) as watch:
        for _ in range(steps):
            digits = torch.randint(DIGITS, (64, LENGTH))
            scores = model(digits)[:, 1:]
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), digits[:, :-1].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step()
    print(f"loss {loss.item():.3f} after {steps} steps; tensorboard --logdir {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
