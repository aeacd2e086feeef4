"""How often comparisons of encodings err and what they see, by simulation: `compare` beside other methods.

    python benchmarks/comparison_error.py               # some minutes of one core; writes comparison.json and the page
    python benchmarks/comparison_error.py --studies 50  # to try it

Studies are drawn, so it is known which encodings are equal. A study errs if it calls any two encodings different whose
runs have the same distribution (scatter 100:1: the same mean). With `statsmodels` installed, mixed models are fitted by
it, too, on fewer studies. Without it, the page has only their closed form and says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from comparison_page import page
from scipy import stats

from jarilab.comparison.pairs import compare_pairs
from jarilab.comparison.seed_noise import bimodal_half_width, common_noise, seed_half_widths, tukey_quantile
from jarilab.comparison.statistics import student_quantile

RESULTS = Path(__file__).parents[1] / "docs" / "results"
ENCODINGS, SEEDS = (3, 6, 12), (3, 5, 10)
Numbers = np.ndarray
"""Values of M studies, E encodings and S seeds `(M, E, S)`."""
RESAMPLES = 2000
MAX_RESAMPLED = 10_000
"""Examples up to which the bootstrap is computed."""
LEVEL = 0.05
FITTED_CELLS = ((6, 3), (6, 5))
"""Encodings and seeds of the studies that statsmodels fits."""
HAS_STATSMODELS = importlib.util.find_spec("statsmodels") is not None


# Studies -------------------------------------------------------------------------------------------------------------


def tosses(shape: tuple[int, ...], chance: np.random.Generator, tossing: int, p: float, noise: float) -> Numbers:
    """Runs of the first encodings learn with probability p; those of the others never do."""
    numbers_MES = noise * chance.standard_normal(shape)
    numbers_MES[:, :tossing] += chance.random((shape[0], tossing, shape[2])) < p
    return numbers_MES


def loud(shape: tuple[int, ...], chance: np.random.Generator, count: int) -> Numbers:
    """So many encodings scatter a hundred times as far as the others."""
    scale_E = np.where(np.arange(shape[1]) < count, 1.0, 0.01)
    return scale_E[:, None] * chance.standard_normal(shape)


Draw = Callable[[tuple[int, ...], np.random.Generator], Numbers]
CASES: dict[str, tuple[Draw, Callable[[int], int]]] = {
    "normal": (lambda shape, chance: chance.standard_normal(shape), lambda count: count),
    "normal, and what each seed does to all": (
        lambda shape, chance: chance.standard_normal(shape) + 3 * chance.standard_normal((shape[0], 1, shape[2])),
        lambda count: count,
    ),
    "t with 2 degrees": (lambda shape, chance: chance.standard_t(2, shape), lambda count: count),
    "log-normal": (lambda shape, chance: chance.lognormal(size=shape), lambda count: count),
    "scatter from 1 to 100": (
        lambda shape, chance: np.geomspace(1, 0.01, shape[1])[:, None] * chance.standard_normal(shape),
        lambda count: count,
    ),
    "one scatters 100:1": (lambda shape, chance: loud(shape, chance, 1), lambda count: count),
    "two scatter 100:1": (lambda shape, chance: loud(shape, chance, 2), lambda count: count),
    "each learns with probability 0.5": (lambda shape, chance: tosses(shape, chance, shape[1], 0.5, 0.01), lambda c: c),
    "each learns with probability 0.8": (lambda shape, chance: tosses(shape, chance, shape[1], 0.8, 0.01), lambda c: c),
    "half learn with probability 0.5": (
        lambda shape, chance: tosses(shape, chance, (shape[1] + 1) // 2, 0.5, 0.01),
        lambda count: (count + 1) // 2,
    ),
    "the same, noisier": (
        lambda shape, chance: tosses(shape, chance, (shape[1] + 1) // 2, 0.5, 0.1),
        lambda count: (count + 1) // 2,
    ),
    "two learn with probability 0.5": (
        lambda shape, chance: tosses(shape, chance, 2, 0.5, 0.01),
        lambda count: 2,
    ),
    "three levels": (
        lambda shape, chance: chance.integers(0, 3, shape) / 2 + 0.01 * chance.standard_normal(shape),
        lambda count: count,
    ),
}
"""How studies are drawn, and how many encodings, the first, are equal."""


def outcomes_of(
    chance: np.random.Generator, skills: list[float], seeds: int, examples: int, scatter: float
) -> np.ndarray:
    """Right and wrong answers `(E, S, N)`: what is hard is hard for all. scatter: of seeds, in units of skill."""
    skill_ES = np.array(skills)[:, None] + scatter * chance.standard_normal((len(skills), seeds))
    hard_N = 1.5 * chance.standard_normal(examples)
    right_ESN = 1 / (1 + np.exp((hard_N - skill_ES[..., None]).astype(np.float32)))
    return (chance.random(right_ESN.shape, dtype=np.float32) < right_ESN).astype(np.float32)


def skill_for(share: float) -> float:
    """The skill with which so many answers are right, on average over examples."""
    hard_N = 1.5 * stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    low, high = -20.0, 20.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(hard_N - middle))).mean() < share else (low, middle)
    return low


# Methods: whether each pair is called different ----------------------------------------------------------------------


def paired(numbers_MES: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Mean difference of each pair `(M, P)`, and its standard error over seeds."""
    first, second = np.triu_indices(numbers_MES.shape[1], 1)
    difference_MPS = numbers_MES[:, first] - numbers_MES[:, second]
    return difference_MPS.mean(-1), difference_MPS.std(-1, ddof=1) / math.sqrt(numbers_MES.shape[2])


def holm(p_MP: np.ndarray) -> np.ndarray:
    """Holm's correction of the p-values of each study."""
    order_MP = np.argsort(p_MP, 1)
    pairs = p_MP.shape[1]
    passes_MP = np.take_along_axis(p_MP, order_MP, 1) <= LEVEL / (pairs - np.arange(pairs))
    called_MP = np.zeros_like(passes_MP)
    np.put_along_axis(called_MP, order_MP, np.logical_and.accumulate(passes_MP, 1), 1)
    return called_MP


def t_test(numbers_MES: Numbers) -> np.ndarray:
    mean_MP, error_MP = paired(numbers_MES)
    return 2 * stats.t.sf(np.abs(mean_MP) / np.maximum(error_MP, 1e-12), numbers_MES.shape[2] - 1)


def mixed_model(numbers_MES: Numbers) -> np.ndarray:
    """p-values of a linear mixed model with random seeds, by REML in closed form for balanced studies (Wald)."""
    mean_MP, _ = paired(numbers_MES)
    error_M = common_noise(numbers_MES) * math.sqrt(2 / numbers_MES.shape[2])
    return 2 * stats.norm.sf(np.abs(mean_MP) / error_M[:, None])


def tukey(numbers_MES: Numbers) -> np.ndarray:
    _, encodings, seeds = numbers_MES.shape
    mean_MP, _ = paired(numbers_MES)
    error_M = common_noise(numbers_MES) * math.sqrt(2 / seeds)
    return np.abs(mean_MP) > tukey_quantile(encodings, (encodings - 1) * (seeds - 1)) * error_M[:, None]


METHODS: dict[str, Callable[[Numbers], np.ndarray]] = {
    "compare": lambda numbers: np.abs(paired(numbers)[0]) > seed_half_widths(numbers),
    "Tukey": tukey,
    "Holm": lambda numbers: holm(t_test(numbers)),
    "mixed model": lambda numbers: holm(mixed_model(numbers)),
    "pairs alone": lambda numbers: t_test(numbers) <= LEVEL,
}


def crossed(difference_PSN: np.ndarray) -> np.ndarray:
    """p-values of a mixed model with crossed seeds and examples, by REML in closed form (Wald)."""
    _, seeds, examples = difference_PSN.shape
    of_seeds_P = difference_PSN.mean(2).var(1, ddof=1) / seeds
    of_means_P, of_each_P = difference_PSN.mean(1).var(1, ddof=1), difference_PSN.var(2, ddof=1).mean(1)
    of_examples_P = np.maximum(0, seeds * of_means_P - of_each_P) / (seeds - 1) / examples
    error_P = np.sqrt(of_seeds_P + of_examples_P)
    return 2 * stats.norm.sf(np.abs(difference_PSN.mean((1, 2))) / np.maximum(error_P, 1e-12))


def bootstrap(difference_PSN: np.ndarray, weights_RN: np.ndarray) -> np.ndarray:
    """Whether 0 is outside the percentile interval over resampled examples, corrected by Bonferroni."""
    resampled_RP = weights_RN @ difference_PSN.mean(1).T
    tail = LEVEL / 2 / len(difference_PSN)
    low_P, high_P = np.quantile(resampled_RP, [tail, 1 - tail], axis=0)
    return (low_P > 0) | (high_P < 0)


def statsmodels_calls(numbers_ES: np.ndarray) -> np.ndarray:
    """Pairs that a mixed model with random seeds, fitted by statsmodels (REML, Wald, Holm), calls different `(P,)`.

    A fit that fails calls none.
    """
    import statsmodels.api as sm  # pyright: ignore[reportMissingImports]

    encodings, seeds = numbers_ES.shape
    first, second = np.triu_indices(encodings, 1)
    columns = np.repeat(np.eye(encodings), seeds, 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fits whose variance of seeds is 0 warn
            model = sm.MixedLM(numbers_ES.ravel(), columns, groups=np.tile(np.arange(seeds), encodings)).fit(reml=True)
    except np.linalg.LinAlgError:
        return np.zeros(len(first), dtype=bool)
    covariance = np.asarray(model.cov_params())[:encodings, :encodings]
    variance_P = np.diag(covariance)[first] + np.diag(covariance)[second] - 2 * covariance[first, second]
    far_P = np.abs(model.fe_params[first] - model.fe_params[second])
    return holm(2 * stats.norm.sf(far_P / np.sqrt(np.maximum(variance_P, 1e-24)))[None])[0]


def on_examples(outcomes_ESN: np.ndarray, weights_RN: np.ndarray | None) -> dict[str, np.ndarray]:
    """What each method calls different, given the outcomes of one study."""
    examples = outcomes_ESN.shape[2]
    outcomes = {str(number): values_SN for number, values_SN in enumerate(outcomes_ESN)}
    values = {name: values_SN.mean(1).tolist() for name, values_SN in outcomes.items()}
    numbers_MES = outcomes_ESN.mean(2, dtype=np.float64)[None]
    first, second = np.triu_indices(len(outcomes), 1)
    difference_PSN = outcomes_ESN[first] - outcomes_ESN[second]
    kept = compare_pairs(values, examples, outcomes=outcomes)
    without = compare_pairs(values, examples)
    called = {
        "compare": np.array([one.ranked for one in kept.differences]),
        "without outcomes": np.array([one.ranked for one in without.differences]),
        "Tukey": tukey(numbers_MES)[0],
        "Holm": holm(t_test(numbers_MES))[0],
        "mixed model": holm(crossed(difference_PSN)[None])[0],
    }
    if HAS_STATSMODELS:
        called["statsmodels"] = statsmodels_calls(numbers_MES[0])
    return called if weights_RN is None else {**called, "bootstrap": bootstrap(difference_PSN, weights_RN)}


# Measurements --------------------------------------------------------------------------------------------------------


def errors(studies: int) -> list[dict[str, Any]]:
    """The share of studies that call equals different, by case, method, encodings and seeds."""
    rows = []
    for number, (name, (draw, equal)) in enumerate(CASES.items()):
        for encodings in ENCODINGS:
            for seeds in SEEDS:
                chance = np.random.default_rng([number, encodings, seeds])
                numbers_MES = draw((studies, encodings, seeds), chance)
                _, second = np.triu_indices(encodings, 1)
                among = second < equal(encodings)
                row: dict[str, Any] = {"case": name, "encodings": encodings, "seeds": seeds, "studies": studies}
                for method, call in METHODS.items():
                    row[method] = float(call(numbers_MES)[:, among].any(1).mean())
                rows.append(row)
    return rows


def coverage(studies: int) -> list[dict[str, Any]]:
    """The share of intervals of single means that hold the true mean."""
    rows = []
    truths = {"normal": 0.0, "each learns with probability 0.5": 0.5, "half learn with probability 0.5": 0.5}
    for number, (name, truth) in enumerate(truths.items()):
        draw, equal = CASES[name]
        for encodings in ENCODINGS:
            for seeds in SEEDS:
                numbers_MES = draw((studies, encodings, seeds), np.random.default_rng([number, encodings, seeds]))
                at_least_M = np.array([bimodal_half_width(numbers_ES.tolist()) for numbers_ES in numbers_MES])
                own_ME = student_quantile(seeds - 1) * numbers_MES.std(-1, ddof=1) / math.sqrt(seeds)
                far_ME = np.abs(numbers_MES.mean(-1) - truth)[:, : equal(encodings)]
                own_ME = own_ME[:, : equal(encodings)]
                row = {"case": name, "encodings": encodings, "seeds": seeds, "studies": studies}
                row["compare"] = float((far_ME <= np.maximum(own_ME, at_least_M[:, None])).mean())
                row["Student's t"] = float((far_ME <= own_ME).mean())
                rows.append(row)
    return rows


def seen(studies: int, gap: float, encodings: int, seeds: int, examples: int, scatter: float) -> dict[str, Any]:
    """How often one encoding that is `gap` better than the equal others is told from the second; and errors.

    scatter: of the runs' true shares, as a share.
    """
    chance = np.random.default_rng([round(1e4 * gap), encodings, seeds, examples, round(1e4 * scatter)])
    weights_RN = None
    if examples <= MAX_RESAMPLED:
        counts_RN = chance.multinomial(examples, np.full(examples, 1 / examples), RESAMPLES)
        weights_RN = counts_RN.astype(np.float32) / examples
    base, better = skill_for(0.75), skill_for(0.75 + gap)
    slope = (skill_for(0.76) - skill_for(0.74)) / 0.02
    first_pair, equal_P = 0, np.triu_indices(encodings, 1)[0] > 0
    power: dict[str, int] = {}
    error: dict[str, int] = {}
    for _ in range(studies):
        skills = [better] + [base] * (encodings - 1)
        outcomes_ESN = outcomes_of(chance, skills, seeds, examples, scatter * slope)
        for method, called_P in on_examples(outcomes_ESN, weights_RN).items():
            power[method] = power.get(method, 0) + int(called_P[first_pair])
            error[method] = error.get(method, 0) + int(called_P[equal_P].any())
    row = {"gap": gap, "encodings": encodings, "seeds": seeds, "examples": examples, "scatter": scatter}
    row |= {"studies": studies, "power": {name: count / studies for name, count in power.items()}}
    return row | {"error": {name: count / studies for name, count in error.items()}}


def fitted(studies: int) -> list[dict[str, Any]]:
    """The share of studies that mixed models call different, by statsmodels and in closed form on the same studies."""
    rows = []
    for number, (name, (draw, equal)) in enumerate(CASES.items()):
        row: dict[str, Any] = {"case": name, "studies": studies}
        for encodings, seeds in FITTED_CELLS:
            numbers_MES = draw((studies, encodings, seeds), np.random.default_rng([number, encodings, seeds]))
            among = np.triu_indices(encodings, 1)[1] < equal(encodings)
            closed_MP = holm(mixed_model(numbers_MES))
            fitted_MP = np.stack([statsmodels_calls(numbers_ES) for numbers_ES in numbers_MES])
            cell = {"closed form": closed_MP, "statsmodels": fitted_MP}
            row[f"{encodings} x {seeds}"] = {key: float(one[:, among].any(1).mean()) for key, one in cell.items()}
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Error and power of comparisons, by simulation.")
    parser.add_argument("--studies", type=int, default=1000, help="simulated studies (%(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for comparison.json and comparison.md")
    options = parser.parse_args()
    begun, studies = time.process_time(), options.studies
    if not HAS_STATSMODELS:
        print("statsmodels is not installed: mixed models only in closed form", flush=True)
    measured: dict[str, Any] = {"errors": errors(8 * studies), "coverage": coverage(studies)}
    print(f"errors after {time.process_time() - begun:.0f} s", flush=True)
    few = max(20, studies // 5)
    cells: list[Mapping[str, Any]] = []
    for scatter in (0.005, 0.01):
        cells += [seen(few, 0.054, 6, seeds, 1000, scatter) for seeds in SEEDS]
    for gap in (0.01, 0.02, 0.05):
        cells += [seen(few, gap, 6, 5, 1000, scatter) for scatter in (0.003, 0.01)]
        cells += [seen(max(20, few // 4), gap, 6, 5, 39_537, scatter) for scatter in (0.003, 0.01)]
    for encodings in ENCODINGS:
        cells += [seen(few, 0.0, encodings, seeds, 500, 0.005) for seeds in (3, 5)]
    measured["examples"] = cells
    measured["statsmodels"] = version("statsmodels") if HAS_STATSMODELS else None
    measured["fitted"] = fitted(few) if HAS_STATSMODELS else []
    measured["cpu_seconds"] = round(time.process_time() - begun)
    (options.out / "comparison.json").write_text(json.dumps(measured, indent=1) + "\n")
    (options.out / "comparison.md").write_text(page(measured))


if __name__ == "__main__":
    main()
