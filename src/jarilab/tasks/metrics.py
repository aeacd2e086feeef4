"""The metrics of tasks, and how they are displayed."""

from __future__ import annotations

from dataclasses import dataclass


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
        Metric("ap", "AP", digits=3),
        Metric("ap50", "AP50", digits=3),
        Metric("ap75", "AP75", digits=3),
        Metric("psnr", "PSNR in dB"),
        Metric("bleu", "BLEU"),
        Metric("chrf", "chrF"),
        Metric("loss", "loss", higher=False, digits=4),
        Metric("perplexity", "perplexity", higher=False, digits=3),
        Metric("bits_per_character", "bits per character", higher=False, digits=4),
    )
}
