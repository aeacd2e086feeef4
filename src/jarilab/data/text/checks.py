"""Checks of texts before training: repeats, overlap, lengths, scripts, copies and alignment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np

from jarilab.core.errors import counted
from jarilab.data.finding import WARNING_SHARE, Finding, overlap_severity, share
from jarilab.data.text.alignment import check_alignment
from jarilab.data.text.scan import SCRIPT, SCRIPTS, Keys, Scan, repeated, shared
from jarilab.data.text.tokenizers import Tokenizer, UnknownPieces

MIN_CORRELATION = 0.1
"""Median correlation of sides below which they may not be translations."""
_RATIO, _MIN_RATIO_CHARACTERS = 3.0, 20
_SHOWN = 20  # characters before and after a difference
_QUANTILES = (0.05, 0.5, 0.95, 1.0)


def _counted(topic: str, text: str, remedy: str, count: int, total: int) -> Finding:
    """A finding about some of the examples: a warning from `WARNING_SHARE` of them on, else a note."""
    severity = "warning" if count >= WARNING_SHARE * total else "note"
    return Finding(severity, topic, text, remedy, count, total)


def find_repeats(scan: Scan, unit: str) -> Iterator[Finding]:
    """Yield a finding if texts of a scan repeat earlier ones. unit: `pairs` or `lines`."""
    equal = repeated(scan.keys)
    if equal is None:
        return
    text = (
        f"training files: {share(equal.examples, len(scan), unit, 'repeat')} an earlier one, apart from case, "
        f"punctuation and white space, such as {scan.place(equal.row)} and {scan.place(equal.other)}"
    )
    remedy = "they count several times; remove them if that is not meant"
    yield _counted("repeats", text, remedy, equal.examples, len(scan))


def find_overlap(
    held_out: Scan,
    train: Scan,
    unit: str,
    is_held_out: np.ndarray | None = None,
    is_trained: np.ndarray | None = None,
    *,
    side: int = 0,
) -> Iterator[Finding]:
    """Yield a finding if held-out texts are training texts too.

    unit: `sources` or `lines`. is_held_out, is_trained: which rows of the scans are meant, `(N,)`; all by default.
    side: of pairs, the one that models read.
    """
    keys, known = held_out.keys_of(side, is_held_out), train.keys_of(side, is_trained)
    equal = shared(keys, known)
    if equal is None:
        return
    places = f"{held_out.place(equal.row, side)} and {train.place(equal.other, side)}"
    text = (
        f"held out: {share(equal.examples, len(keys), unit, 'are')} also in the training files, apart from case, "
        f"punctuation and white space, such as {places}"
    )
    remedy = "they make scores better than they are; hold out others"
    severity = overlap_severity(equal.examples, len(keys))
    yield Finding(severity, "overlap", text, remedy, equal.examples, len(keys))


def find_in_pairs(scan: Scan, names: Sequence[str]) -> Iterator[Finding]:
    """Yield what is to know of pairs as they stand: blank sides, lengths, copies, ratios, scripts and alignment.

    names: what the first and the second side are called.
    """
    for name, (count, line) in zip(names, scan.blank, strict=True):
        if count:
            total = len(scan) + max(number for number, _ in scan.blank)
            text = f"{name}: {share(count, total, 'lines', 'are')} blank, the first is line {line}"
            remedy = "they are left out; look whether the files are aligned there"
            yield _counted("blank", text, remedy, count, total)
    for side, name in enumerate(names):
        lengths = scan.rows[:, side]["length"]
        yield Finding("note", "characters", f"{name}: {quantiles(lengths)} characters")
    yield from _copies(scan)
    yield from _ratios(scan, names)
    for side, name in enumerate(names):
        yield from find_scripts(scan, scan.rows[:, side], f"{name} lines", side)
    yield from _slip(scan, names)


def quantiles(lengths: np.ndarray) -> str:
    """Return lengths as `5 % 3, median 20, 95 % 60, longest 99`."""
    low, median, high, longest = (int(value) for value in np.quantile(lengths, _QUANTILES))
    return f"5 % {low:,}, median {median:,}, 95 % {high:,}, longest {longest:,}"


def _copies(scan: Scan) -> Iterator[Finding]:
    is_copy = scan.rows[:, 0]["key"] == scan.rows[:, 1]["key"]
    if count := int(is_copy.sum()):
        place = scan.place(int(is_copy.argmax()))
        text = f"{share(count, len(scan), 'pairs', 'have')} the same text on both sides, such as {place}"
        remedy = "they teach to copy; remove what is not translated"
        yield _counted("copies", text, remedy, count, len(scan))


def _ratios(scan: Scan, names: Sequence[str]) -> Iterator[Finding]:
    """Pairs whose ratio of lengths is far from the median."""
    lengths = scan.rows["length"].astype(np.float64)
    ratio = np.log(lengths[:, 1] / np.maximum(1, lengths[:, 0]))
    median = np.median(ratio)
    is_long = lengths.max(1) >= _MIN_RATIO_CHARACTERS
    is_far = is_long & (np.abs(ratio - median) > np.log(_RATIO))
    if count := int(is_far.sum()):
        text = (
            f"{share(count, len(scan), 'pairs', 'have')} a {names[1]} that is more than {_RATIO:g} times as long, or "
            f"as short, as usual ({np.exp(median):.2f} characters for one of the {names[0]}), such as "
            f"{scan.place(int(is_far.argmax()))}"
        )
        remedy = "read some of them; remove those that are no translations"
        yield _counted("ratio", text, remedy, count, len(scan))


def find_scripts(scan: Scan, rows: np.ndarray, unit: str, side: int = 0) -> Iterator[Finding]:
    """Yield a finding for lines in another script than most. unit: what they are called."""
    script = rows["marks"] & SCRIPT
    counts = np.bincount(script, minlength=len(SCRIPTS))
    counts[0] = 0  # a line without letters is in no script
    usual = int(counts.argmax())
    is_other = (script != usual) & (script != 0)
    if count := int(is_other.sum()):
        names = ", ".join(SCRIPTS[n] for n in np.argsort(-counts)[1:4] if counts[n])
        text = (
            f"{share(count, len(rows), unit, 'are')} not in the {SCRIPTS[usual]} script of most, but in {names}, such "
            f"as {scan.place(int(is_other.argmax()), side)}"
        )
        remedy = "remove them if they are in another language"
        yield _counted("script", text, remedy, count, len(rows))


def _slip(scan: Scan, names: Sequence[str]) -> Iterator[Finding]:
    alignment = check_alignment(scan.rows)
    if alignment is None:
        return
    if (slip := alignment.slip) is not None:
        lines = counted(abs(slip.shift), "lines")
        where, missing = ("after", names[1]) if slip.shift > 0 else ("before", names[0])
        to = "to the end"
        if slip.stop < len(scan):
            to = f"to about line {scan.place(slip.stop).line:,}"
        text = (
            f"the sides slip: from about {scan.place(slip.start)} {to}, a {names[1]} belongs to the {names[0]} {lines} "
            f"{where} it, by lengths, digits and question marks"
        )
        remedy = f"look for {lines} missing from the {missing} there, or too many on the other side"
        count = slip.stop - slip.start
        yield Finding("serious", "alignment", text, remedy, count, len(scan))
    elif alignment.correlation < MIN_CORRELATION:
        text = (
            f"the lengths of {' and '.join(names)} hardly correlate ({alignment.correlation:.2f} in windows), so that "
            "the alignment cannot be checked"
        )
        yield Finding("warning", "alignment", text, "read some pairs: are they translations?")
    else:
        text = f"the sides do not slip: they correlate by {alignment.correlation:.2f} in windows"
        yield Finding("note", "alignment", text)


def find_unknown(pieces: UnknownPieces, where: str) -> Finding:
    """Return the share of tokens that are unknown."""
    severity = "warning" if pieces.share >= WARNING_SHARE else "note"
    remedy = "raise --vocab-size, or take --tokenizer bpe" if severity == "warning" else ""
    return Finding(
        severity, "unknown", f"{where}: {pieces.share:.2%} of the tokens are unknown", remedy
    )


def find_lost(text: str, tokenizer: Tokenizer, name: str) -> list[Finding]:
    """Return a finding if a tokenizer does not give a text back. name: of the tokenizer."""
    back = tokenizer.decode(tokenizer.encode(text))
    if back == text:
        return []
    pairs = zip(text, back, strict=False)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    start, end = max(0, same - _SHOWN), same + _SHOWN
    one, other = text[start:end], back[start:end]
    problem = f"held-out text: the tokenizer of {name} gives {other!r} back for {one!r}"
    remedy = "bits do not count what it drops, so compare them only between runs of this tokenizer"
    return [Finding("warning", "tokenizer", problem, remedy)]


def find_too_long(lengths: np.ndarray, omitted: int, longest: int, name: str) -> Finding:
    """Return the lengths in tokens. omitted: the pairs that are longer than `longest`."""
    total = len(lengths) + omitted
    text = f"{name}: {quantiles(lengths)} tokens"
    if not omitted:
        return Finding("note", "tokens", text)
    text += (
        f"; {share(omitted, total, 'pairs', 'are')} longer than --longest {longest} and left out"
    )
    return _counted("tokens", text, "raise --longest", omitted, total)


def find_equal_documents(scan: Scan) -> Iterator[Finding]:
    """Yield a finding if documents are equal."""
    equal = repeated(Keys(scan.documents))
    if equal is not None:
        total = len(scan.documents)
        files = scan.files[equal.row][0], scan.files[equal.other][0]
        repeats = share(equal.examples, total, "documents", "repeat")
        text = f"{repeats} an earlier one, such as {files[0]} and {files[1]}"
        remedy = "remove them: a part may be held out"
        yield _counted("documents", text, remedy, equal.examples, total)


def lines_of(findings: Sequence[Finding] | Iterator[Finding]) -> list[str]:
    """Return findings as notices."""
    return [finding.line for finding in findings]
