"""Look inside a model of one's own, and take away what it looks at.

    python examples/look_inside.py

A layer of attention learns in some seconds to say which digit stands just before each digit. What its heads attend to
goes into `tape.html`, a page for any browser. That the image is right is then shown by surgery: without its link to
the place before, a digit's answer is lost, and all other answers stay as they were, bit by bit.
"""

import sys

import torch
from torch import nn

import jarilab
from jarilab.inspect.intervene.interventions import Link, operate

DIGITS, LENGTH = 10, 8


class Before(nn.Module):
    """Digits `(B, L)` in, scores of the digit before each `(B, L, 10)` out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(DIGITS, 32)
        self.encoder = jarilab.Encoder(32, n_heads=2, n_layers=1, encoding="rotary")
        self.scores = nn.Linear(32, DIGITS)

    def forward(self, digits: torch.Tensor) -> torch.Tensor:
        return self.scores(self.encoder(self.embedding(digits)))


def trained(steps: int = 200) -> Before:
    """A model that knows the digit before each; the first has none, and may say anything."""
    model, generator = Before(), torch.Generator().manual_seed(1)
    jarilab.initialise(model, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(steps):
        digits = torch.randint(DIGITS, (64, LENGTH), generator=generator)
        loss = nn.functional.cross_entropy(
            model(digits)[:, 1:].flatten(0, 1), digits[:, :-1].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def without(model: Before, digits: torch.Tensor, query: int, key: int) -> torch.Tensor:
    """The scores where `query` may not look at `key`, in any head."""
    with operate(model, [Link("encoder.0", None, query, key, "erase")]):
        return model(digits)


def main(page: str = "tape.html") -> None:
    torch.set_num_threads(1)  # so small a model only waits for its second thread
    model, digits = trained(), torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.no_grad(), jarilab.record(model) as tape:
        scores = model(digits)
    tape.show([str(digit) for digit in digits[0].tolist()], "the digit before").save(page)
    print(f"{page}: opens in any browser; {tape.trust('encoder.0')}")

    said = scores.argmax(-1)[0, 1:].tolist()
    print(f"the digits before {digits[0, 1:].tolist()}: {said}")
    edited = without(model, digits, query=5, key=4).argmax(-1)[0, 1:].tolist()
    print(f"without the link of the 9 to the 5:    {edited}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
