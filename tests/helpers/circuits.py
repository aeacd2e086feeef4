"""Attention models with hand-built weights, whose circuit is known.

The residual stream holds the token (V), the position (L), a constant, a flag of the start token, and the output (V).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from jarilab.inspect.study.example import Batch

V, L, BETA, TEMPERATURE = 12, 10, 12.0, 10.0
T, P, C, S = slice(0, V), slice(V, V + L), V + L, V + L + 1
OUT = slice(V + L + 2, V + L + 2 + V)
D, E = V + L + 2 + V, V + 2
REST = V
"""The feature of queries and keys by which a head rests at the start token."""

Head = tuple[Tensor, Tensor, Tensor]
"""W_QK's factors of queries and keys and W_OV, as `(D, E)`, `(D, E)` and `(D, D)`."""


def previous(write: float = 1.0, rest_if_filled: float = 0.0) -> Head:
    """Attends to the previous token and writes it to the output; at the start token without a match.

    rest_if_filled: score of the start token for each unit of output that is there already.
    """
    q_DE, k_DE, ov_DD = torch.zeros(D, E), torch.zeros(D, E), torch.zeros(D, D)
    for i in range(1, L):
        q_DE[P.start + i, i - 1] = BETA
    for j in range(L):
        k_DE[P.start + j, j] = 1.0
    q_DE[C, REST] = BETA / 2
    q_DE[OUT, REST] = rest_if_filled
    k_DE[S, REST] = 1.0
    ov_DD[T, OUT] = write * torch.eye(V)
    return q_DE, k_DE, ov_DD


def sink(answer: int) -> Head:
    """Attends to the start token, and writes one answer everywhere."""
    q_DE, k_DE, ov_DD = torch.zeros(D, E), torch.zeros(D, E), torch.zeros(D, D)
    q_DE[C, REST], k_DE[S, REST] = 3 * BETA, 1.0
    ov_DD[S, OUT.start + answer] = 1.0
    return q_DE, k_DE, ov_DD


def silent() -> Head:
    """Attends to the previous token, and writes nothing."""
    return previous(write=0.0)


class Layer(nn.Module):
    """Attention with heads of full width, so that W_V is W_OV and W_O the identity."""

    def __init__(self, heads: list[Head]):
        super().__init__()
        self.heads = len(heads)
        self.query, self.key = (nn.Linear(D, self.heads * E, bias=False) for _ in range(2))
        self.value = nn.Linear(D, self.heads * D, bias=False)
        self.out = nn.Linear(self.heads * D, D, bias=False)
        with torch.no_grad():
            self.query.weight.copy_(torch.cat([q_DE.T * E**0.5 for q_DE, _, _ in heads]))
            self.key.weight.copy_(torch.cat([k_DE.T for _, k_DE, _ in heads]))
            self.value.weight.copy_(torch.cat([ov_DD.T for _, _, ov_DD in heads]))
            self.out.weight.copy_(torch.eye(D).repeat(1, self.heads))

    def forward(self, x_BLD: Tensor) -> Tensor:
        q, k, v = (
            layer(x_BLD).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        z_BHLD = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x_BLD + self.out(z_BHLD.transpose(1, 2).flatten(2))


class Circuit(nn.Module):
    """Layers of hand-built heads; ids `(B, L)` begin with the start token, V."""

    def __init__(self, *layers: list[Head]):
        super().__init__()
        self.layers = nn.ModuleList(Layer(heads) for heads in layers)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x_BLD = torch.zeros(*ids.shape, D)
        x_BLD[..., T] = functional.one_hot(ids, V + 1)[..., :V].float()
        x_BLD[..., P] = torch.eye(L)[: ids.shape[1]]
        x_BLD[..., C] = 1.0
        x_BLD[..., S] = (ids == V).float()
        for layer in self.layers:
            x_BLD = layer(x_BLD)
        return TEMPERATURE * x_BLD[..., OUT]


def examples(rows: int, seed: int = 0) -> Batch:
    """Random tokens after a start token."""
    ids = torch.randint(V, (rows, L), generator=torch.Generator().manual_seed(seed))
    ids[:, 0] = V
    return Batch((ids,), tokens=[{"target": list(map(str, row))} for row in ids.tolist()], ids={"target": ids})


def loss_of_previous(outputs: Tensor, batch: Batch) -> Tensor:
    """The answer at each position is the token before."""
    losses = functional.cross_entropy(outputs[:, 2:].transpose(1, 2), batch.args[0][:, 1:-1], reduction="none")
    return losses.mean(1)


def loss_of_three(outputs: Tensor, batch: Batch) -> Tensor:
    """The answer is always 3."""
    answers = torch.full(outputs.shape[:2], 3)
    return functional.cross_entropy(outputs.transpose(1, 2), answers, reduction="none").mean(1)
