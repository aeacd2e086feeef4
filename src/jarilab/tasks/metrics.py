"""The metrics of tasks, and how they are displayed."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any


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
