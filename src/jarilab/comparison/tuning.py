"""Learning rates chosen for each encoding with equal budgets: the same rates, each trained as long as a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jarilab.comparison.trial import Trial
from jarilab.core.errors import UserError
from jarilab.core.options import options_of
from jarilab.runs.options import Training
from jarilab.runs.results import read_result
from jarilab.tasks.metrics import Metric

SEED = 0
"""Of the trials that are tuned by; those that are compared have seeds from 1."""


def tuned(trials: Sequence[Trial], metric: Metric) -> list[dict[str, Any]]:
    """What each finished trial reached: encoding, lr, value."""
    found = []
    for trial in trials:
        if trial.finished:
            experiment = trial.experiment
            result = read_result(trial.folder, experiment.hash)
            rate = experiment.training["lr"]
            reached = {"lr": rate, "value": result[metric.name]}
            found.append({"encoding": experiment.encoding, **reached})
    return found


def best_rates(found: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, float]:
    """The learning rate with which each encoding was best; of equals, the first that was asked for."""
    best: dict[str, Mapping[str, Any]] = {}
    for one in found:
        held = best.setdefault(one["encoding"], one)
        if metric.better(one["value"], held["value"]):
            best[one["encoding"]] = one
    return {encoding: one["lr"] for encoding, one in best.items()}


def check_rates(rates: Sequence[float], settings: Mapping[str, Any]) -> None:
    """Raises UserError for rates that cannot be tuned by."""
    wrong = [rate for rate in rates if not 0 < rate < float("inf")]
    if wrong or len(rates) == 1 or len(set(rates)) < len(rates):
        listed = ", ".join(map(str, rates))
        raise UserError(
            f"expected two different learning rates above 0 or more to choose among, got {listed}; such as 0.002,0.004"
        )
    for rate in rates:
        options_of(Training)["lr"].read_as("learning rates to choose among", rate)
    if rates and "training.lr" in settings:
        raise UserError("the learning rate is tuned, so it cannot be given too; omit training.lr")
