"""The numbers that lessons quote: what each should be, how far a run may be off it, and how it is written.

A lesson says `<!--bag.none-->2.74 %<!--/-->`, and the build puts in what its run gave. It stops where that is not what
stands here, since the sentence around it would no longer be true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Quoted:
    """value: what is expected, or None where only the run can say, and the sentence holds whatever it is. within: how
    far off it may be. form: how it is written."""

    value: float | str | None
    within: float = 0.0
    form: str = "{}"

    def shown(self, number: object) -> str:
        """As a person reads it."""
        if isinstance(number, list):
            return ", ".join(self.form.format(one) for one in number)
        return self.form.format(number)

    def holds(self, number: object) -> bool:
        """Whether a run gave what is expected."""
        if self.value is None:
            return True
        if isinstance(self.value, str):
            return number == self.value
        return isinstance(number, int | float) and abs(number - self.value) <= self.within


PERCENT = "{:.2f} %"
ROW = "{:.4f}"
TINY = "{:.0e}"
LOSS = "{:.3f}"
QUOTED: dict[str, Quoted] = {
    "bag.examples": Quoted(500_000, 0, "{:,}"),
    "bag.none": Quoted(2.9, 1.3, PERCENT),
    "bag.rotary": Quoted(99.9, 0.5, PERCENT),
    "bag.ceiling": Quoted(4.33, 0.005, PERCENT),
    "bag.none_rows": Quoted(0.0, 0.0, "{:g}"),
    "bag.rotary_rows": Quoted(0.9, 0.4, "{:.2f}"),
    "bag.none_answer": Quoted(None),
    "bag.none_same": Quoted("the same"),
    "bag.rotary_answers": Quoted("232, 124"),
    # Of a walk: any numbers will do that make each other.
    "qkv.q": Quoted(None, form="{:.4f}"),
    "qkv.k": Quoted(None, form="{:.4f}"),
    "qkv.product": Quoted(None, form=ROW),
    "qkv.score": Quoted(None, form=ROW),
    "qkv.off": Quoted(0.0, 1e-9),
    "qkv.scores": Quoted(None, form=ROW),
    "qkv.weights": Quoted(None, form=ROW),
    "qkv.sum": Quoted(1.0, 1e-9, "{:.4f}"),
    "qkv.output": Quoted(None, form=ROW),
    "qkv.output_off": Quoted(0.0, 1e-9),
    "qkv.error": Quoted(0.0, 1e-10, TINY),
    "sqrt.count": Quoted(100_000, 0, "{:,}"),
    "sqrt.spread": Quoted(8.0, 0.05, "{:.2f}"),
    "sqrt.divided": Quoted(1.0, 0.01, "{:.2f}"),
    "sqrt.raw": Quoted(None, form=ROW),
    "sqrt.raw_slope": Quoted(0.0001, 0.00005, ROW),
    "sqrt.scaled": Quoted(None, form=ROW),
    "sqrt.scaled_slope": Quoted(0.3692, 0.0001, ROW),
    "masks.pairs": Quoted(400),
    "masks.allowed": Quoted(210),
    "masks.hidden": Quoted(0.0, 0.0, "{:g}"),
    "masks.first": Quoted(1.0, 0.0, "{:g}"),
    "masks.future": Quoted(0.0, 1e-12, TINY),
    "seq2seq.exact": Quoted(99.5, 1.0, PERCENT),
    "seq2seq.answer": Quoted("9 5 1 4 1 3"),
    "seq2seq.mirrored": Quoted(0.9, 0.15, "{:.2f}"),
    "seq2seq.even": Quoted(0.15, 0.02, "{:.2f}"),
    "sinusoids.first": Quoted(None, form=ROW),
    "sinusoids.shortest": Quoted(6.28, 0.01, "{:.2f}"),
    "sinusoids.longest": Quoted(54_410, 1, "{:,.0f}"),
    "sinusoids.itself": Quoted(64.0, 1e-9, "{:g}"),
    "sinusoids.three": Quoted(52.19, 0.01, "{:.2f}"),
    "sinusoids.elsewhere": Quoted(0.0, 1e-12, TINY),
    "where.learned": Quoted(32_768, 0, "{:,}"),
    "where.shaw": Quoted(528),
    "where.t5": Quoted(256),
    "where.alibi": Quoted(0),
    "where.slopes": Quoted(None, form="{:g}"),
    "where.alone": Quoted(8),
    "where.last_bucket": Quoted(91),
    "rotary.score": Quoted(None, form=ROW),
    "rotary.moved": Quoted(None, form=ROW),
    "rotary.shift": Quoted(0.0, 1e-6),
    "rotary.respelled": Quoted(0.0, 1e-12, "{:g}"),
    "rotary.mixed": Quoted(0.35, 0.01, "{:.2f}"),
    "rotary.mixed_at_0": Quoted(0.0, 0.0, "{:g}"),
    "beyond.none": Quoted(0.26, 0.12, LOSS),
    "beyond.none_far": Quoted(1.6, 1.1, LOSS),
    "beyond.sinusoidal": Quoted(0.13, 0.08, LOSS),
    "beyond.sinusoidal_far": Quoted(3.2, 2.0, LOSS),
    "beyond.rotary": Quoted(0.12, 0.08, LOSS),
    "beyond.rotary_far": Quoted(2.4, 1.8, LOSS),
    "beyond.alibi": Quoted(0.13, 0.08, LOSS),
    "beyond.alibi_far": Quoted(0.14, 0.1, LOSS),
    "beyond.refused": Quoted(None),
    "language.one": Quoted(0.0, 1e-12, TINY),
    "language.two": Quoted(0.25, 0.1, "{:.2f}"),
    "language.none": Quoted(0.28, 0.08, LOSS),
    "language.sinusoidal": Quoted(0.2, 0.05, LOSS),
    "heads.one": Quoted(16_640, 0, "{:,}"),
    "heads.eight": Quoted(16_640, 0, "{:,}"),
    "heads.square": Quoted(4_194_304, 0, "{:,}"),
    "heads.arithmetic": Quoted(48),
    "images.none": Quoted(72.0, 6.0, PERCENT),
    "images.rotary2d": Quoted(97.0, 2.0, PERCENT),
    "images.none_dealt": Quoted(0.0, 1e-5, TINY),
    "images.rotary2d_dealt": Quoted(1.2, 1.0, "{:.1f}"),
    "norms.before": Quoted(17.0, 6.0, "{:.0f}"),
    "norms.after": Quoted(120.0, 60.0, "{:.0f}"),
    "norms.mean": Quoted(0.0, 1e-6, "{:.1f}"),
    "norms.deviation": Quoted(1.0, 1e-4, "{:.1f}"),
    "norms.layer": Quoted(0.0, 0.0, "{:g}"),
    "norms.batch": Quoted(1.91, 0.05, "{:.2f}"),
    "break.heads": Quoted(48),
    "break.lines": Quoted(121),
    "break.whole": Quoted(100.0, 1.0, "{:.0f} %"),
    "break.least": Quoted(99.0, 2.0, "{:.0f} %"),
    "break.least_answer": Quoted("232"),
    "break.least_head": Quoted(None),
    "break.most": Quoted(23.0, 40.0, "{:.0f} %"),
    "break.most_answer": Quoted(None),
    "break.most_head": Quoted(None),
    "break.pronoun_head": Quoted(None),
    "causes.heads": Quoted(48),
    "causes.lead": Quoted(15.0, 8.0, "{:.1f}"),
    "causes.watching": Quoted(4, 3),
    "causes.deciding": Quoted(0),
    "causes.least": Quoted(None, form="{:.1f}"),
    "causes.strongest": Quoted(None),
    "causes.left": Quoted(None, form="{:.1f}"),
    "causes.passing": Quoted(None),
    "causes.chance": Quoted(2.4, 0.01, "{:.1f}"),
    "causes.decoys": Quoted(None),
    "causes.decoy_weight": Quoted(0.99, 0.03, "{:.2f}"),
    "causes.decoy_effect": Quoted(0.0, 0.01, "{:.2f}"),
    "causes.real": Quoted(None),
    "causes.real_effect": Quoted(3.3, 1.5, "{:.1f}"),
    "causes.primary": Quoted(None),
    "causes.backup": Quoted(None),
    "causes.primary_effect": Quoted(0.0, 0.01, "{:.2f}"),
    "causes.primary_direct": Quoted(3.3, 1.5, "{:.1f}"),
    "causes.both": Quoted(3.3, 1.5, "{:.1f}"),
}

KEPT: dict[str, tuple[str, tuple[str, ...]]] = {
    "lessons/language.md": ("results/text.md", ("0.3146", "0.2062")),
    "lessons/sqrt.md": ("results/arithmetic.md", ("86.62", "96.82", "0.74", "0.39")),
    "lessons/norms.md": ("results/text.md", ("98.8%", "93.2%", "14.3%")),
    "lessons/break.md": ("results/text.md", ("1.00", "100.0", "0.02", "116")),
    "lessons/heads.md": ("results/text.md", ("2248.7", "184.7", "4,096", "256")),
    "which-encoding.md": ("results/images.md", ("0.591", "0.384", "87.59", "75.28")),
    "five-minutes.md": ("results/arithmetic.md", ("236,608",)),
}
"""What pages quote from trainings that are too long for a build, and where these are told."""


def problems(numbers: Mapping[str, object]) -> list[str]:
    """The numbers that are missing, or off what lessons say, a sentence each."""
    found = [f"{name}: nothing measures it" for name in QUOTED if name not in numbers]
    for name, quoted in QUOTED.items():
        if name in numbers and not quoted.holds(numbers[name]):
            said = f"expected {quoted.value} within {quoted.within}"
            found.append(f"{name}: {said}, the run gives {numbers[name]}")
    return found
