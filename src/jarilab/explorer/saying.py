"""What a model that is not jari's says of an input, as two forwards are compared by it: shares, or vectors alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from jarilab.core.errors import UserError
from jarilab.explorer import payload
from jarilab.explorer.intervention import effect_told
from jarilab.huggingface import Says
from jarilab.inspect.intervene.effects import Effect
from jarilab.inspect.intervene.likelihood import divergences

BEST = 5
"""How many of the likeliest are told."""


class Saying(Protocol):
    """What of a model's outputs is compared, and how it is told."""

    @property
    def kind(self) -> str:
        """In a word, which the page has sentences for."""
        ...

    @property
    def anew(self) -> bool:
        """Whether to answer is to run the model again."""
        ...

    def of(self, outputs: Any) -> Tensor:
        """What is compared."""
        ...

    def apart(self, before: Tensor, after: Tensor) -> float:
        """How far two are from each other."""
        ...

    def shown(self, outputs: Any) -> list[dict[str, Any]]:
        """What is said at each place."""
        ...

    def told(self, before: Tensor, after: Tensor) -> dict[str, Any]:
        """What an edit did."""
        ...

    def answer(self, outputs: Any) -> str | None:
        """What a person reads; None of a model that gives no answer."""
        ...


def saying_of(says: Says | None) -> Saying:
    """How a model's forwards are compared. says: None of a model whose outputs are no scores."""
    return Vectors() if says is None else Scores(says)


class Scores:
    """Scores of words or classes: compared are the probabilities, by the Jensen-Shannon divergence, in nats."""

    def __init__(self, says: Says):
        self._says = says
        self.kind: str = says.kind
        self.anew: bool = says.anew

    def of(self, outputs: Any) -> Tensor:
        """The logarithms of the probabilities at each place of the answer, `(A, V)`, in float64."""
        return self._says.scores(outputs).double().log_softmax(-1)

    def apart(self, before: Tensor, after: Tensor) -> float:
        """The mean over the places of the answer."""
        each_1A = divergences(before.unsqueeze(0), after.unsqueeze(0))
        return float(each_1A.mean().clamp(0.0, math.log(2)))

    def shown(self, outputs: Any) -> list[dict[str, Any]]:
        scores_PV = self._says.shown(outputs).float()
        return payload.outputs_of(scores_PV, self._says.labels, self._says.names, BEST)

    def told(self, before: Tensor, after: Tensor) -> dict[str, Any]:
        said = self._says.said
        rows = torch.arange(len(said))
        log_before, log_after = before[rows, said], after[rows, said]
        effect = Effect(
            before=log_before.exp(),
            after=log_after.exp(),
            log_before=float(log_before.sum()),
            log_after=float(log_after.sum()),
            divergence=self.apart(before, after),
        )
        told = effect_told(effect, self._says.names(said))
        if len(said) > 1:
            return told
        likeliest = {"before": self._likeliest(before[0]), "after": self._likeliest(after[0])}
        return told | {"likeliest": likeliest}

    def _likeliest(self, log_V: Tensor) -> list[list[Any]]:
        top = log_V.exp().topk(min(BEST, len(log_V)))
        return _pairs(self._says.names, top.indices.tolist(), top.values.tolist())

    def answer(self, outputs: Any) -> str | None:
        return self._says.answer(outputs)


class Vectors:
    """Vectors without any meaning that a person could read: compared is how far they lie apart, over how long they
    were, the mean over all places."""

    kind: str = "vectors"
    anew: bool = False

    def of(self, outputs: Any) -> Tensor:
        """What the model ends in, the last axis being that of a vector."""
        for name in ("last_hidden_state", "logits"):
            found = getattr(outputs, name, None)
            if isinstance(found, Tensor):
                return found.double()
        found = next((one for one in outputs.to_tuple() if isinstance(one, Tensor)), None)
        if found is None:
            raise UserError(
                f"what this model ends in is no tensor that could be compared: {type(outputs).__name__}; look at its "
                "maps, without edits"
            )
        return found.double()

    def apart(self, before: Tensor, after: Tensor) -> float:
        moved = torch.linalg.vector_norm(after - before, dim=-1)
        length = torch.linalg.vector_norm(before, dim=-1).clamp_min(1e-12)
        return float((moved / length).mean())

    def shown(self, outputs: Any) -> list[dict[str, Any]]:
        return []

    def told(self, before: Tensor, after: Tensor) -> dict[str, Any]:
        return {"log_probability": None, "divergence": self.apart(before, after), "tokens": []}

    def answer(self, outputs: Any) -> str | None:
        return None


def _pairs(
    names: Callable[[Sequence[int]], list[str]], numbers: Sequence[int], shares: Sequence[float]
) -> list[list[Any]]:
    return [list(pair) for pair in zip(names(numbers), shares, strict=True)]
