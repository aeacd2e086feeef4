"""The metrics of tasks, and how they are displayed."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from jarilab.core.errors import UserError, shortened


@dataclass(frozen=True)
class Metric:
    """A metric. name: its key in results. share: it is 0 ... 1 and shown in percent. digits: decimals otherwise."""

    name: str
    title: str
    higher: bool = True
    share: bool = False
    digits: int = 2

    def better(self, one: float, other: float) -> bool:
        """Whether `one` is better than `other`."""
        return one > other if self.higher else one < other

    def text(self, value: float, sign: str = "") -> str:
        """Return the displayed value: `99.98%`, `41.20`, `1.7321`; sign `+` for a difference."""
        return f"{value:{sign}.2%}" if self.share else f"{value:{sign}.{self.digits}f}"


METRICS = {
    metric.name: metric
    for metric in (
        Metric("exact_match", "exact match", share=True),
        Metric("accuracy", "accuracy", share=True),
        Metric("macro_f1", "macro-F1", share=True),
        Metric("ap", "AP", digits=3),
        Metric("ap50", "AP50", digits=3),
        Metric("ap75", "AP75", digits=3),
        Metric("psnr", "PSNR in dB"),
        Metric("bleu", "BLEU"),
        Metric("chrf", "chrF"),
        Metric("chrfpp", "chrF++"),
        Metric("comet", "COMET", digits=4),
        Metric("loss", "loss", higher=False, digits=4),
        Metric("perplexity", "perplexity", higher=False, digits=3),
        Metric("bits_per_character", "bits per character", higher=False, digits=4),
    )
}


BUILT_IN = MappingProxyType(dict(METRICS))
"""The metrics of jarilab, whose names say the same in every run. METRICS also has those of your own tasks."""


def add_metric(metric: Metric) -> None:
    """Let tables and terminals show a metric of your own by its name.

    Raises UserError if jarilab has a metric of this name with another range or direction.
    """
    built_in = BUILT_IN.get(metric.name)
    if built_in is None:
        METRICS[metric.name] = metric
    elif (built_in.share, built_in.higher) != (metric.share, metric.higher):
        raise UserError(
            f"metric {metric.name!r}: expected the same as jarilab's of this name, share={built_in.share} and "
            f"higher={built_in.higher}, got share={metric.share} and higher={metric.higher}; give it another name"
        )


def checked_metrics(metrics: Mapping[str, Any], metric: Metric) -> dict[str, Any]:
    """What a task measured, with plain numbers: tensors and the like become floats.

    metric: that of the task, which must be there, in total and by group (`NAME_GROUP`). Raises UserError for numbers
    that are missing, not finite, or not from 0 to 1 in a share.
    """
    add_metric(metric)
    missing = [name for name in (metric.name, "examples") if name not in metrics]
    if missing:
        raise UserError(
            f"evaluate: expected {missing[0]!r} among the metrics of the task, got {', '.join(metrics) or 'nothing'}; "
            "return it too"
        )
    checked = {name: _plain(name, value) for name, value in metrics.items()}
    for name in checked:
        if name in (metric.name, "examples") or name.startswith(f"{metric.name}_"):
            checked[name] = _number(name, checked[name])
            if metric.share and name != "examples" and not 0 <= checked[name] <= 1:
                raise UserError(
                    f"evaluate: {name}: expected a share from 0 to 1, got {checked[name]:g}; return a share, or set "
                    "share=False in the metric of the task"
                )
    return checked


def _plain(name: str, value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {key: _plain(f"{name}: {key}", inner) for key, inner in value.items()}
    is_number = hasattr(value, "__float__") and not isinstance(value, int)
    return _number(name, value) if is_number else value


def _number(name: str, value: Any) -> float:
    # A tensor of several numbers raises RuntimeError in older versions of PyTorch.
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(
            f"evaluate: {name}: expected a finite number, got {shortened(repr(value))}; return a number, also where "
            "nothing can be measured"
        )
    return number


SHORT_TRAINING = 100
"""Steps below which a result says that it is of a short training."""


def score_notes(result: Mapping[str, Any]) -> list[str]:
    """Return what to print beside the scores of a result: how they were computed, and what spoils them."""
    notes = []
    if "signature" in result:
        notes.append(f"sacreBLEU {result['signature']}")
    if "signature_comet" in result:
        notes.append(f"COMET {result['signature_comet']}")
    if result.get("unknown_tokens"):
        shares = (f"{which} {share:.2%}" for which, share in result["unknown_tokens"].items())
        notes.append(f"unknown tokens: {', '.join(shares)}")
    if result.get("unwritable"):
        notes.append(
            f"{result['unwritable']:.2%} of the held-out targets cannot be written with this vocabulary and length, "
            "except by copies of source words, so scores stay below those of a vocabulary that knows all"
        )
    if result.get("steps", SHORT_TRAINING) < SHORT_TRAINING:
        notes.append(
            f"short training: expected {SHORT_TRAINING} steps or more to learn from, got {result['steps']}; raise "
            "--examples or --epochs, or lower --batch-size"
        )
    return notes


MAX_CONFUSION_CLASSES, MAX_CONFUSIONS = 12, 10
"""More classes have no table of all answers, but so many rows of wrong ones."""


def confusion_table(result: Mapping[str, Any]) -> list[list[str]]:
    """Return the `confusion` of a result as the titles and rows of a table; nothing for another result.

    A row has the answers to a class. Of many classes only the most frequent wrong answers are listed.
    """
    confusion: Mapping[str, Mapping[str, int]] = result.get("confusion", {})
    if len(confusion) <= MAX_CONFUSION_CLASSES:
        rows = []
        for name, counts in confusion.items():
            rows.append([name, *(f"{counts.get(answer, 0):,}" for answer in confusion)])
        return [["class", *confusion], *rows] if rows else []
    wrong = [
        (count, name, answer)
        for name, counts in confusion.items()
        for answer, count in counts.items()
        if answer != name
    ]
    most = sorted(wrong, key=lambda row: -row[0])[:MAX_CONFUSIONS]
    return [["class", "wrong answer", "times"], *([a, b, f"{n:,}"] for n, a, b in most)]


def vocabulary_note(vocabularies: Iterable[str | None]) -> list[str]:
    """Return what to print beside results per token of runs, if these have different vocabularies.

    vocabularies: a digest for each run; None without one.
    """
    if len(set(vocabularies) - {None}) < 2:
        return []
    return [
        "loss and perplexity are means per token, so they are not compared between runs of different vocabularies; "
        "bits per character are comparable"
    ]


SCRIPTS_WITHOUT_BLANKS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
"""First words of the names of characters, in scripts that put no blanks between words."""


def bleu_tokenizer(references: Iterable[str]) -> str:
    """Return the tokenizer with which sacreBLEU should judge these texts.

    13a for text with blanks between words, zh for Chinese, char for other text without blanks.
    """
    letters = islice((c for text in references for c in text if c.isalpha()), 10_000)
    counts = Counter(unicodedata.name(letter, "").partition(" ")[0] for letter in letters)
    without_blanks = sum(counts[script] for script in SCRIPTS_WITHOUT_BLANKS)
    if 2 * without_blanks <= counts.total():
        return "13a"
    return "zh" if 20 * counts["CJK"] > 19 * without_blanks else "char"
