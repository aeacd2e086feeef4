"""The law that a place means the same whatever stands beside it, and where the length decides instead."""

from __future__ import annotations

import torch

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding, Site
from jarilab.laws.checks import EXACT, NOTICEABLE, BrokenError, SkippedError, apart, near
from jarilab.laws.hooks import OF_PAIRS, READS_KEYS_BETWEEN, Question, answers, pick
from jarilab.laws.material import LENGTH
from jarilab.laws.subject import Subject
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
"""Queries and keys that are asked about alone."""


OF_KEYS = ("embed", "inject", "rotate of keys")
PAIRED = (*OF_PAIRS, "rotated q.k")


def beside(subject: Subject) -> str:
    """What hooks give a token or a pair depends on its own places, however many others there are and in whatever order;
    but for how many keys there are, where that is claimed."""
    if subject.labels:
        raise SkippedError("it reads the labels of pairs, and nodes have no order")
    sites = [subject.site(causal) for causal in sorted({subject.causal_only, True})]
    if subject.crosses:
        sites.append(subject.site(cross=True))
    places = _arranged(subject)
    decides = False
    for site in sites:
        encoding = subject.encoding(site=site)
        for where, pos in places.items():
            if subject.claims("depends_on_length") and not steady(subject, pos):
                decides = True
                continue
            _check_some(encoding, pos, where)
            _check_rows(encoding, pos, where)
    if subject.claims("depends_on_length"):
        _check_length_decides(subject, decides)
        return "tokens alone and together, where the length decides nothing"
    return "tokens alone, together and in another order, near and far"


def _arranged(subject: Subject) -> dict[str, Positions]:
    """Places of all kinds, by words for them."""
    found = {}
    for start in subject.starts():
        found[f"from position {start} on"] = subject.sequence(start)
        for name, pos in subject.arrangements(start).items():
            found[f"at {name} places from {start} on"] = pos
        found[f"at scattered places from {start} on"] = subject.at(subject.scattered(start))
    return found


def _check_some(encoding: Encoding, pos: Positions, where: str) -> None:
    """Some tokens alone, against the same among all."""
    asked = Question.about(encoding.site, pos)
    expected = compared(encoding, asked)
    for name, (queries, keys) in SOME.items():
        if not _may_leave_out(encoding, queries, keys):
            continue
        found = compared(encoding, asked.picked(queries, keys))
        for hook, answer in found.items():
            of_some = expected[hook][:, :, keys if hook in OF_KEYS else queries]
            if hook in PAIRED:
                of_some = of_some[:, :, :, keys]
            near(answer, of_some, EXACT, f"{hook} for {name}, as among all, {where}")


def _may_leave_out(encoding: Encoding, queries: Tensor, keys: Tensor) -> bool:
    """Whether nothing may change without the other keys. Whoever asks for the keys between may hear of all that a query
    looks at."""
    if not READS_KEYS_BETWEEN & encoding.extra_arguments("terms"):
        return True
    if not torch.equal(keys, ALL[: len(keys)]):
        return False
    return len(keys) == LENGTH or (encoding.site.causal and int(queries.max()) < len(keys))


def compared(encoding: Encoding, asked: Question) -> dict[str, Tensor]:
    """What hooks give; of a rotation that asks for all keys only the product matters, which it may leave as it is."""
    found = answers(encoding, asked)
    if "keys" in encoding.extra_arguments("rotation"):
        q_BHQE, k_BHKE = found.pop("rotate"), found.pop("rotate of keys")
        found["rotated q.k"] = q_BHQE @ k_BHKE.transpose(-1, -2)
    return found


def _check_rows(encoding: Encoding, pos: Positions, where: str) -> None:
    """Two rows with places of their own, and with frames of their own size, against each alone."""
    rows = [pos, pick(pos, ALL.flip(0))]
    order = pos.order
    coordinates = torch.stack([row.coordinates for row in rows])
    extents = None if pos.extent is None else torch.stack((pos.extent, pos.extent + 4))
    both = Positions(coordinates, order, pos.axes, pos.frame, extent=extents)
    together = compared(encoding, Question.about(encoding.site, both))
    for number, row in enumerate(rows):
        extent = None if extents is None else extents[number]
        own = Positions(row.coordinates, order, pos.axes, pos.frame, extent=extent)
        alone = compared(encoding, Question.about(encoding.site, own))
        for hook, answer in alone.items():
            what = f"{hook} of a row with places and a frame of its own, {where}"
            near(together[hook][number], answer[number], EXACT, what)


def steady(subject: Subject, pos: Positions) -> bool:
    """Whether what it does at these places is the same for any number of these keys. So it is for all encodings but
    those that claim another thing."""
    if not subject.claims("depends_on_length"):
        return True
    for causal in sorted({subject.causal_only, True}):
        if _moved_by_length(subject.encoding(site=subject.site(causal)), pos) > EXACT:
            return False
    return True


def _moved_by_length(encoding: Encoding, pos: Positions) -> float:
    """How much later keys change what the first two tokens get."""
    asked, largest = Question.about(encoding.site, pos), 0.0
    first = torch.arange(2)
    whole = compared(encoding, asked)
    for count in range(2, pos.length):
        fewer = compared(encoding, asked.picked(first, torch.arange(count)))
        for hook, answer in fewer.items():
            of_whole = whole[hook][:, :, : answer.shape[2]]
            of_whole = of_whole[..., : answer.shape[3]] if hook in PAIRED else of_whole
            largest = max(largest, apart(answer, of_whole))
    return largest


def _check_length_decides(subject: Subject, decided: bool) -> None:
    """It says that the length decides: somewhere, it does."""
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
