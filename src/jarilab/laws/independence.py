"""The law that a position means the same among any others, unless the length decides."""

from __future__ import annotations

import torch

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding, Site
from jarilab.laws.checks import (
    EXACT,
    NOTICEABLE,
    BrokenError,
    SkippedError,
    check_close,
    max_difference,
)
from jarilab.laws.fixtures import LENGTH, noise
from jarilab.laws.hooks import (
    PAIR_HOOKS,
    READS_OTHER_KEYS,
    HookInputs,
    call_hooks,
)
from jarilab.laws.law_subject import Subject
from jarilab.positions.coordinates import Positions

ALL = torch.arange(LENGTH)
SOME = {
    "one query": (torch.tensor([4]), ALL),
    "some queries": (torch.tensor([2, 5, 6]), ALL),
    "the first tokens": (torch.arange(4), torch.arange(4)),
    "fewer keys than queries": (ALL, torch.tensor([1, 3, 6])),
    "one key": (torch.tensor([6]), torch.tensor([0])),
    "another order": (torch.tensor([3, 0, 6, 1, 5, 2, 4]), torch.tensor([6, 2, 0, 5, 1, 3, 4])),
}
"""Queries and keys that are compared alone."""


LONG = 2100
"""Keys of a long cache, over which few queries are computed alone."""
LATE = (70, 290, 650, LONG - 2, LONG - 1)
LATE_PARTS = {
    "one query over many keys": (slice(4, None), slice(None)),
    "some queries over many keys": (slice(1, 4), slice(None)),
    "some queries over the first 300 keys": (slice(None), slice(300)),
    "some queries over the first 12 keys": (slice(None), slice(12)),
}
"""Which of the queries, and which keys."""
SQUARE = 640
"""Queries, over as many keys, as in training."""

OF_KEYS = ("embed", "inject", "rotate of keys")
PAIRED = (*PAIR_HOOKS, "rotated q.k")


def same_among_others(subject: Subject) -> str:
    """A token's or pair's result depends on its own positions, not on which others there are.

    An encoding that claims `depends_on_length` may depend on the number of keys.
    """
    if subject.labels:
        raise SkippedError("it reads labels of pairs, and nodes have no order")
    sites = [subject.site(causal) for causal in sorted({subject.causal_only, True})]
    if subject.crosses:
        sites.append(subject.site(cross=True))
    places = _arranged(subject)
    decides = False
    for site in sites:
        encoding = subject.encoding(site=site)
        for where, pos in places.items():
            if subject.claims("depends_on_length") and not ignores_length(subject, pos):
                decides = True
                continue
            check_some(encoding, pos, where)
            _check_rows(encoding, pos, where)
        if not subject.claims("depends_on_length"):
            _check_long(encoding, subject.anywhere(LONG))
    if subject.claims("depends_on_length"):
        _check_length_decides(subject, decides)
        return "tokens alone and together, at lengths that change nothing"
    return "tokens alone, together and in another order, near and far"


def _arranged(subject: Subject) -> dict[str, Positions]:
    """Positions of all kinds, by a description."""
    arrangements = {}
    for start in subject.starts():
        arrangements[f"from position {start} on"] = subject.sequence(start)
        for name, pos in subject.arrangements(start).items():
            arrangements[f"at {name} positions from {start} on"] = pos
        arrangements[f"at scattered positions from {start} on"] = subject.at(
            subject.scattered(start)
        )
    return arrangements


def check_some(encoding: Encoding, pos: Positions, where: str) -> None:
    """Compare the results of some tokens alone with those among all."""
    inputs = HookInputs.random(encoding.site, pos)
    expected = compared(encoding, inputs)
    for name, (queries, keys) in SOME.items():
        if not _may_leave_out(encoding, queries, keys):
            continue
        results = compared(encoding, inputs.select(queries, keys))
        for hook, answer in results.items():
            part = expected[hook][:, :, keys if hook in OF_KEYS else queries]
            if hook in PAIRED:
                part = part[:, :, :, keys]
            check_close(answer, part, EXACT, f"{hook} for {name}, as among all, {where}")


def _check_long(encoding: Encoding, pos: Positions) -> None:
    """Compare a few queries over many keys with those among all, as in decoding with a long cache."""
    site, keys, queries = encoding.site, torch.arange(LONG), torch.tensor(LATE)
    inputs = HookInputs(
        pos,
        pos,
        noise("x", 1, LONG, site.d_model),
        noise("q", 1, site.n_heads, LONG, site.d_head),
        noise("k", 1, site.n_heads, LONG, site.d_head),
    )
    expected = compared(encoding, inputs.select(queries, keys))
    for name, (some, of_keys) in LATE_PARTS.items():
        if len(keys[of_keys]) < LONG and READS_OTHER_KEYS & encoding.extra_arguments("terms"):
            continue
        for hook, answer in compared(encoding, inputs.select(queries[some], keys[of_keys])).items():
            part = expected[hook][:, :, of_keys if hook in OF_KEYS else some]
            if hook in PAIRED:
                part = part[:, :, :, of_keys]
            check_close(answer, part, EXACT, f"{hook} for {name}, as among all")
    _check_square(encoding, inputs)


def _check_square(encoding: Encoding, inputs: HookInputs) -> None:
    """Compare a few queries over as many keys as in training with those among all."""
    every, some = torch.arange(SQUARE), torch.tensor([5, 70, 290, SQUARE - 1])
    full = compared(encoding, inputs.select(every, every))
    for hook, answer in compared(encoding, inputs.select(some, every)).items():
        part = full[hook] if hook in OF_KEYS else full[hook][:, :, some]
        check_close(answer, part, EXACT, f"{hook} of some of {SQUARE} queries over as many keys")


def _may_leave_out(encoding: Encoding, queries: Tensor, keys: Tensor) -> bool:
    """Whether nothing may change without the other keys.

    An encoding that asks for the keys between may depend on all keys that a query sees.
    """
    if not READS_OTHER_KEYS & encoding.extra_arguments("terms"):
        return True
    if not torch.equal(keys, ALL[: len(keys)]):
        return False
    return len(keys) == LENGTH or (encoding.site.causal and int(queries.max()) < len(keys))


def compared(encoding: Encoding, inputs: HookInputs) -> dict[str, Tensor]:
    """The results of the hooks. Of a rotation that asks for all keys, only the product q.k counts."""
    results = call_hooks(encoding, inputs)
    if "keys" in encoding.extra_arguments("rotation"):
        q_BHQE, k_BHKE = results.pop("rotate"), results.pop("rotate of keys")
        results["rotated q.k"] = q_BHQE @ k_BHKE.transpose(-1, -2)
    return results


def _check_rows(encoding: Encoding, pos: Positions, where: str) -> None:
    """Compare two rows with their own positions and frames with each row alone."""
    rows = [pos, pos.select(ALL.flip(0))]
    order = pos.order
    coordinates = torch.stack([row.coordinates for row in rows])
    extents = None if pos.extent is None else torch.stack((pos.extent, pos.extent + 4))
    both = Positions(coordinates, order, pos.axes, pos.frame, extent=extents)
    together = compared(encoding, HookInputs.random(encoding.site, both))
    for number, row in enumerate(rows):
        extent = None if extents is None else extents[number]
        row_positions = Positions(row.coordinates, order, pos.axes, pos.frame, extent=extent)
        alone = compared(encoding, HookInputs.random(encoding.site, row_positions))
        for hook, answer in alone.items():
            what = f"{hook} of a row with its own positions and frame, {where}"
            check_close(together[hook][number], answer[number], EXACT, what)


def ignores_length(subject: Subject, pos: Positions) -> bool:
    """Whether the results at these positions are equal for any number of these keys.

    Only an encoding that claims `depends_on_length` may return False.
    """
    if not subject.claims("depends_on_length"):
        return True
    for causal in sorted({subject.causal_only, True}):
        if _moved_by_length(subject.encoding(site=subject.site(causal)), pos) > EXACT:
            return False
    return True


def _moved_by_length(encoding: Encoding, pos: Positions) -> float:
    """How much later keys change the results of the first two tokens."""
    inputs, largest = HookInputs.random(encoding.site, pos), 0.0
    first = torch.arange(2)
    full = compared(encoding, inputs)
    for count in range(2, pos.length):
        fewer = compared(encoding, inputs.select(first, torch.arange(count)))
        for hook, answer in fewer.items():
            part = full[hook][:, :, : answer.shape[2]]
            part = part[..., : answer.shape[3]] if hook in PAIRED else part
            largest = max(largest, max_difference(answer, part))
    return largest


def _check_length_decides(subject: Subject, decided: bool) -> None:
    """Raises BrokenError if `depends_on_length` is claimed and later keys change nothing."""
    index_L = torch.tensor([0, 1, 2, 3, 40, 5000, 100_000])
    end = subject.max_positions
    index_L = index_L if end is None else index_L.clamp(max=end - 1)
    sites: list[Site] = [subject.site(causal) for causal in sorted({subject.causal_only, True})]
    far = subject.places(index_L)
    moved = max(_moved_by_length(subject.encoding(site=site), far) for site in sites)
    if not decided and moved < NOTICEABLE:
        raise BrokenError(
            "it says depends_on_length = True, but later keys change nothing for earlier ones (at most "
            f"{moved:.1g}, up to position {int(index_L.max()):,}); claim False"
        )
