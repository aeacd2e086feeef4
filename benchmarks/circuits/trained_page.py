"""The section of docs/results/circuits.md about trained models, from the records of `trained`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from .expected import METHODS, NO, UP
from .scoring import OPEN, RIGHT, THRESHOLDS, UNDECIDED, WRONG, Tally, decide, decide_composition, wilson
from .trained import ALL_HEADS, BUDGET, JUDGED_ROWS, KINDS, LAYERS, LENGTH, MIN_CHANGE, MIN_PATH, VOCABULARY, WIDTH

Record = Mapping[str, Any]
NUMBERS = {5: "Five"}
DIRECT = ("direct", "contribution")
"""Methods that see what a head itself writes to the answer."""


@dataclass(frozen=True)
class Comparison:
    """What a method says of a head or a pair of heads, and what the criterion says."""

    seed: int
    method: str
    head: str
    said: str
    right: str
    outcome: str


def wrapped(text: str) -> str:
    """A paragraph in lines of 120 characters at most."""
    return fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def criterion_of(record: Record, head: str) -> dict[str, str]:
    """For each kind of link, whether hiding it in this head changes the loss."""
    return {kind: decide(values, MIN_CHANGE) for kind, values in record["truth"]["alone"][head].items()}


def comparisons(record: Record) -> Iterator[Comparison]:
    """All answers about one model on which the criterion has a clear answer."""
    for head in record["truth"]["alone"]:
        criterion = criterion_of(record, head)
        acting = [kind for kind, sign in criterion.items() if sign == UP]
        if acting:
            said = record["measured"]["roles"][head]
            is_named = said != "no simple pattern"
            outcome = RIGHT if said in acting else WRONG if is_named else UNDECIDED
            yield Comparison(record["seed"], "roles", head, said, " or ".join(acting), outcome)
        is_clear = bool(acting) or set(criterion.values()) == {NO}
        is_last = head.startswith(f"L{LAYERS - 1}")
        for method in METHODS:
            right = UP if acting else NO if is_clear else OPEN
            if method in DIRECT:
                right = criterion["induction"] if is_last else NO
            if right != OPEN and head in record["measured"].get(method, {}):
                said = decide(record["measured"][method][head], THRESHOLDS[method])
                yield _compared(record, method, head, said, right)
    for path, inputs in record["truth"]["paths"].items():
        changes = {name: decide(values, MIN_PATH) for name, values in inputs.items()}
        right = max((name for name in changes if changes[name] == UP), key=lambda name: inputs[name][0], default=NO)
        if OPEN not in changes.values():
            said = decide_composition(record["measured"].get("composition", {}).get(path, {}))
            yield _compared(record, "composition", path.replace(" ", " > "), said, right)


def _compared(record: Record, method: str, head: str, said: str, right: str) -> Comparison:
    outcome = RIGHT if said == right else UNDECIDED if said == OPEN else WRONG
    return Comparison(record["seed"], method, head, said, right, outcome)


def section(records: Sequence[Record], titles: Mapping[str, str]) -> str:
    """The text and tables. titles: of methods."""
    items = [each for record in records for each in comparisons(record)]
    return "\n\n".join([_about(records), _models(records), _methods(items, titles), _differences(items, titles)])


ABOUT = f"""These decoders have {LAYERS} layers of {len(ALL_HEADS) // LAYERS} heads, width {WIDTH} and no feed-forward
network. They were trained ([`trained.py`](../../benchmarks/circuits/trained.py)) to copy: a sequence of {LENGTH} tokens
out of {VOCABULARY} has a block of distinct random tokens, of random length at a random place, and the same block again
at a random distance. Nothing but the earlier copy tells the next token. The budget was {BUDGET / 60:g} minutes of one
CPU each."""
CRITERION = f"""Nobody designed these circuits, so there is no list of right answers. The methods are compared with a
criterion that none of them uses: one kind of link is hidden in one head, in {JUDGED_ROWS} held-out sequences. The link
is that to the previous token, to the same token in the earlier copy, or to the token after that (induction). A head
acts by a link if hiding it raises the loss by more than {MIN_CHANGE} nats a token, with its 95 % interval. An earlier
head and a later one form a path if hiding one link in the earlier one takes more than {MIN_PATH} of the later one's
weight off the links of induction."""
UNKNOWN = """What cannot be known here: whether the criterion is complete. A hidden link gives its weight to other
links. Heads that do the same hide each other, as backups do. A head may act by links of another kind, and then the
criterion calls it unneeded. The thresholds of the methods are those above, in units of their own, so that a head with a
small effect can lie on either side. So the tables show agreement, not how often a method is right. They also show one
task, one size and one kind of model."""
COLUMNS = """Copied: right answers in the second copy of held-out sequences. The next three columns: the same with links
hidden in all heads. Named links alone: with the three kinds hidden in all heads but those in the last columns, which
show the change of the loss in nats."""


def _about(records: Sequence[Record]) -> str:
    title = f"## {NUMBERS.get(len(records), len(records))} trained models, apart"
    return "\n\n".join([title, *map(wrapped, (ABOUT, CRITERION, UNKNOWN))])


def _models(records: Sequence[Record]) -> str:
    lines = [
        "| model | steps | CPU-s | copied | no previous links | no same-token links | no induction links "
        "| named links alone | acts by previous | acts by same token | acts by induction |",
        "| ---: " * 8 + "| --- " * 3 + "|",
    ]
    for record in records:
        training, truth = record["training"], record["truth"]
        shares = [truth["accuracy"], *(truth["all"][kind] for kind in KINDS), truth["rest"]]
        acting = [
            ", ".join(
                f"{head} {values[kind][0]:+.2f}"
                for head, values in truth["alone"].items()
                if criterion_of(record, head)[kind] == UP
            )
            for kind in KINDS
        ]
        numbers = [str(record["seed"]), str(training["steps"]), f"{training['seconds']:.0f}"]
        lines.append(f"| {' | '.join([*numbers, *(f'{share:.1%}' for share in shares), *acting])} |")
    return "\n".join([*lines, "", wrapped(COLUMNS)])


def _methods(items: Sequence[Comparison], titles: Mapping[str, str]) -> str:
    lines = [
        "| method | answers | agree | 95 % interval | differ | undecided |",
        "| --- | ---: | ---: | --- | ---: | ---: |",
    ]
    for method, title in titles.items():
        tally = Tally.of([each.outcome for each in items if each.method == method])
        if tally.count:
            low, high = wilson(tally.right, tally.count)
            share = f"{tally.right / tally.count:.0%} | {low:.0%} to {high:.0%}"
            lines.append(f"| {title} | {tally.count} | {share} | {tally.wrong} | {tally.undecided} |")
    return "\n".join(lines)


def _differences(items: Sequence[Comparison], titles: Mapping[str, str]) -> str:
    lines = ["| model | method | head | said | criterion |", "| ---: | --- | --- | --- | --- |"]
    for each in items:
        if each.outcome == WRONG:
            lines.append(f"| {each.seed} | {titles[each.method]} | {each.head} | {each.said} | {each.right} |")
    return "\n".join(["Where they differ:", "", *lines])
