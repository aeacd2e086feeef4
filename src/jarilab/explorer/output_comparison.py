"""Comparison of the outputs of two forwards of a Hugging Face model: as probabilities, or as vectors."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from jarilab.core.errors import UserError
from jarilab.explorer import payload
from jarilab.explorer.intervention import effect_payload
from jarilab.huggingface import OutputReader
from jarilab.huggingface.outputs import Names
from jarilab.inspect.intervene.effects import Effect
from jarilab.inspect.intervene.likelihood import divergences

BEST = 5
"""Likeliest tokens or classes in a payload."""


class ScoreComparison:
    """Compares probabilities of tokens or classes by the Jensen-Shannon divergence, in nats.

    kind: the key of the page's sentences about these outputs. anew: whether the answer needs further forwards, as
    generated text does.
    """

    def __init__(self, output_reader: OutputReader):
        self._reader = output_reader
        self.kind: str = output_reader.kind
        self.anew: bool = output_reader.generates

    def of(self, outputs: Any) -> Tensor:
        """Log-probabilities at each position of the answer, `(A, V)`, in float64."""
        return self._reader.answer_scores(outputs).double().log_softmax(-1)

    def rows(self, outputs: Any) -> Tensor:
        """The scores of all positions, `(P, V)`, which a saved page compares."""
        return outputs.logits[0] if self.anew else self._reader.position_scores(outputs)

    def distance(self, before: Tensor, after: Tensor) -> float:
        """The mean divergence over the positions of the answer, from 0 to log 2."""
        each_1A = divergences(before.unsqueeze(0), after.unsqueeze(0))
        return float(each_1A.mean().clamp(0.0, math.log(2)))

    def measured(self, before: Tensor, outputs: Any) -> tuple[Tensor, Tensor]:
        """The log-probability of each token of the answer, and the token that is chosen in its place."""
        logs_AV, labels_A = self.of(outputs), torch.tensor(self._reader.answer_labels)
        # Where a rule of generation that jarilab does not know set the token, it stays.
        is_chosen_A = self._reader.chosen(before) == labels_A
        chosen_A = torch.where(is_chosen_A, self._reader.chosen(logs_AV), labels_A)
        return logs_AV[range(len(labels_A)), labels_A], chosen_A

    @property
    def described(self) -> tuple[str, list[str], Names]:
        """The unit of what is `measured`, the names of the answer's tokens, and those of all."""
        reader = self._reader
        return "nats", reader.label_names[reader.first :], reader.names

    def shown(self, outputs: Any) -> list[dict[str, Any]]:
        """The payload of the outputs, one entry a position."""
        scores_PV = self._reader.position_scores(outputs).float()
        return payload.outputs_of(scores_PV, self._reader.label_names, self._reader.names, BEST)

    def effect(self, before: Tensor, after: Tensor) -> dict[str, Any]:
        """The payload of an edit's effect: `log_probability`, `divergence` and `tokens`."""
        labels = self._reader.answer_labels
        rows = torch.arange(len(labels))
        log_before, log_after = before[rows, labels], after[rows, labels]
        effect = Effect(
            before=log_before.exp(),
            after=log_after.exp(),
            log_before=float(log_before.sum()),
            log_after=float(log_after.sum()),
            divergence=self.distance(before, after),
        )
        effect_of_labels = effect_payload(effect, self._reader.label_names[self._reader.first :])
        if len(labels) > 1:
            return effect_of_labels
        likeliest = {"before": self._likeliest(before[0]), "after": self._likeliest(after[0])}
        return effect_of_labels | {"likeliest": likeliest}

    def _likeliest(self, log_V: Tensor) -> list[list[Any]]:
        top = log_V.exp().topk(min(BEST, len(log_V)))
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return [[*self._reader.names([each]), share] for each, share in pairs]

    def answer(self, outputs: Any) -> str | None:
        """The answer in words; None for a model that gives none."""
        return self._reader.answer(outputs)


class VectorComparison:
    """Compares vectors by their relative distance, the mean over all positions; else as `ScoreComparison`."""

    kind: str = "vectors"
    anew: bool = False

    def of(self, outputs: Any) -> Tensor:
        """The vectors `(..., D)`, in float64."""
        return self._vectors(outputs).double()

    def rows(self, outputs: Any) -> Tensor:
        """All vectors `(P, D)`, which a saved page compares."""
        return self._vectors(outputs).flatten(0, -2)

    @staticmethod
    def _vectors(outputs: Any) -> Tensor:
        """The last hidden state or the logits, whose last axis is that of a vector."""
        for name in ("last_hidden_state", "logits"):
            tensor = getattr(outputs, name, None)
            if isinstance(tensor, Tensor):
                return tensor
        tensors = [output for output in outputs.to_tuple() if isinstance(output, Tensor)]
        if not tensors:
            raise UserError(
                f"expected a tensor among the outputs of this model to compare, got {type(outputs).__name__} without "
                "one; look at its maps, without edits"
            )
        return tensors[0]

    def distance(self, before: Tensor, after: Tensor) -> float:
        moved = torch.linalg.vector_norm(after - before, dim=-1)
        length = torch.linalg.vector_norm(before, dim=-1).clamp_min(1e-12)
        return float((moved / length).mean())

    def measured(self, before: Tensor, outputs: Any) -> tuple[Tensor, Tensor]:
        """How far the vectors moved, below 0; nothing is likeliest."""
        moved = self.distance(before, self.of(outputs))
        return torch.tensor([-moved]), torch.zeros(1, dtype=torch.long)

    @property
    def described(self) -> tuple[str, list[str], Names]:
        return "moved", [], lambda ids: []

    def shown(self, outputs: Any) -> list[dict[str, Any]]:
        return []

    def effect(self, before: Tensor, after: Tensor) -> dict[str, Any]:
        return {"log_probability": None, "divergence": self.distance(before, after), "tokens": []}

    def answer(self, outputs: Any) -> str | None:
        return None


def rows_of(outputs: Any, rows: int) -> list[Any]:
    """The outputs of each row of a batch, as of a batch of one."""

    def cut(row: int, tensor: Tensor) -> Tensor:
        return tensor[row : row + 1] if tensor.ndim and len(tensor) == rows else tensor

    return [tree_map_only(Tensor, partial(cut, row), outputs) for row in range(rows)]


OutputComparison: TypeAlias = ScoreComparison | VectorComparison


def comparison_of(output_reader: OutputReader | None) -> OutputComparison:
    """The comparison for a model. output_reader: None if its outputs are no scores."""
    return VectorComparison() if output_reader is None else ScoreComparison(output_reader)
