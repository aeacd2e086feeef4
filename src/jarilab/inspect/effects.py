"""What an edit of a forward does to the answer, beside the same edit elsewhere; what each head matters.

written, where it is asked for: what was written after each token of the last input; the class of an image, or that of
each object query.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, final

import torch
from torch import nn
from torch.nn import functional

from jarilab.attention.call import AttentionCall
from jarilab.attention.module import Attend
from jarilab.errors import UserError
from jarilab.inspect.capture import record
from jarilab.inspect.interventions import (
    Cut,
    Edit,
    Link,
    Places,
    allowed_links,
    attends_of,
    check_evaluating,
    displaced,
    operate,
)
from jarilab.inspect.model_io import Inputs, keep_of, repeated, scores_of
from jarilab.positions import Tokens
from jarilab.shapes import Float, Int, Tensor

IGNORED = -1  # the label where nothing was written


@final
@dataclass(frozen=True, eq=False)
class Effect:
    """What an edit did to an answer, the tokens before each being the original's.

    before, after: `(N,)`, the probability of each of the answer's tokens; log_before, log_after: the sum of their
    logarithms. divergence: Jensen-Shannon, in nats (ln 2 at most), between the distributions of the next token, the
    mean over all places of the answer, or of a language model's text.
    """

    before: Float[Tensor, " N"]
    after: Float[Tensor, " N"]
    log_before: float
    log_after: float
    divergence: float


def effect(
    model: nn.Module,
    inputs: Inputs,
    written: Sequence[int] | Int[Tensor, "B L"],
    edits: Sequence[Edit],
    placed: Inputs | Places | None = None,
) -> Effect:
    """Compare the forward with the edited one.

    written: what was written after each token of the last input; `(B, L)` numbers, below 0 where nothing was, or those
    of a batch of one. A language model's are the next of its tokens, whatever is given as a sequence.
    placed: for the edited forward, the same tokens at other places, see `moved`, or where an image's patches are.
    """
    labels = _labels(inputs, written)
    before = _logs(model, inputs)
    with displaced(model, placed) if isinstance(placed, Places) else nullcontext():
        after = _logs(model, placed if isinstance(placed, tuple) else inputs, edits)
    real = labels >= 0
    log_before, log_after = (_picked(log, labels)[real] for log in (before, after))
    divergence = _divergence(before, after, inputs)
    return Effect(
        log_before.exp(),
        log_after.exp(),
        float(log_before.sum()),
        float(log_after.sum()),
        divergence,
    )


def _logs(model: nn.Module, inputs: Inputs, edits: Sequence[Edit] = ()) -> Float[Tensor, "B L V"]:
    """Log-probabilities of the next token, in float64."""
    with torch.no_grad(), operate(model, edits):
        return _log_softmax(model(*inputs))


def _log_softmax(outputs: Any) -> Float[Tensor, "B L V"]:
    return scores_of(outputs).double().log_softmax(-1)


def _labels(inputs: Inputs, written: Sequence[int] | Tensor) -> Int[Tensor, "B L"]:
    """The number of what was written after each token, below 0 for nothing; of what is said of an image."""
    last = inputs[-1]
    if not isinstance(last, Tokens):
        return (
            written
            if isinstance(written, Tensor)
            else torch.tensor([list(written)], device=last.pixels.device)
        )
    ids, keep = last.ids, last.keep
    if isinstance(written, Tensor):
        labels = written.to(ids.device)
    elif len(inputs) > 1:
        labels = torch.tensor([list(written)], dtype=torch.long, device=ids.device)
    else:
        labels = torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], IGNORED)), 1)
        if keep is not None:
            labels[:, :-1].masked_fill_(~keep[:, 1:], IGNORED)
    if labels.shape != ids.shape:
        raise UserError(
            f"something is written after each token of the target: expected {tuple(ids.shape)} numbers, got "
            f"{tuple(labels.shape)}; take inputs and written from the same answer"
        )
    return labels


def _picked(log_BLV: Tensor, labels_BL: Tensor) -> Float[Tensor, "B L"]:
    """The log-probability of each label, 0 where there is none. Raises UserError for labels of other places."""
    if labels_BL.shape != log_BLV.shape[:2]:
        raise UserError(
            f"expected the number of what is said at each of {tuple(log_BLV.shape[:2])} places, got "
            f"{tuple(labels_BL.shape)}; take inputs and written from the same answer"
        )
    picked_BL = log_BLV.gather(-1, labels_BL.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return picked_BL.masked_fill(labels_BL < 0, 0.0)


def _losses(log_BLV: Tensor, labels_BL: Tensor) -> Float[Tensor, " B"]:
    """The mean cross-entropy of each row's labels, in nats."""
    return -_picked(log_BLV, labels_BL).sum(1) / (labels_BL >= 0).sum(1).clamp_min(1)


def _divergence(first_BLV: Tensor, second_BLV: Tensor, inputs: Inputs) -> float:
    """The mean Jensen-Shannon divergence of distributions given by their logarithms, padding left out."""
    middle = torch.logaddexp(first_BLV, second_BLV) - math.log(2)
    # What has no probability in either adds nothing.
    logs_2BLV = torch.stack((first_BLV, second_BLV))
    each_BL = 0.5 * (logs_2BLV.exp() * (logs_2BLV - middle).nan_to_num(0.0, neginf=0.0)).sum(
        (0, -1)
    )
    keep = keep_of(inputs)
    return float((each_BL if keep is None else each_BL[keep]).mean().clamp(0.0, math.log(2)))


# Beside others -------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Controls:
    """Edits of the same kind at random other places, and what each did.

    each: edits and their divergence, as in `Effect`. divergence: of the real edits. asked: how many controls were asked
    for; there are fewer where there are not so many other places.
    """

    each: list[tuple[tuple[Edit, ...], float]]
    divergence: float
    asked: int

    @property
    def rank(self) -> str:
        """`larger than 19 of 20`."""
        if not self.each:
            return "there is no other place of this kind to compare with"
        smaller = sum(divergence < self.divergence for _, divergence in self.each)
        return f"larger than {smaller} of {len(self.each)}"


@dataclass(frozen=True, eq=False)
class _Place:
    """A site as controls see it. kind: encoder, decoder or cross. links: `(N, 2)`, each query with each key that it may
    look at. choices: `(N,)`, how many keys this query has."""

    kind: str
    heads: int
    links: Int[Tensor, "N 2"]
    choices: Int[Tensor, " N"]


def controls(
    model: nn.Module, inputs: Inputs, edits: Sequence[Edit], count: int = 20, seed: int = 0
) -> Controls:
    """Make the same edits at `count` random other places, and compare what they do with what `edits` do.

    Another place is another head, or link that the mask leaves open, of sites of the same kind (encoder, decoder's own,
    cross), and is never one of `edits`. A link is forced only where its query has another key to lose.
    """
    if not edits or count < 1:
        raise UserError(
            f"expected an edit or more and 1 control or more, got {len(edits)} edits and {count} controls"
        )
    before = _logs(model, inputs)

    def measured(edits: Sequence[Edit]) -> float:
        return _divergence(before, _logs(model, inputs, edits), inputs)

    divergence = measured(edits)
    drawn = _drawn(edits, _places(model, inputs), count, seed)
    return Controls([(others, measured(others)) for others in drawn], divergence, count)


def _places(model: nn.Module, inputs: Inputs) -> dict[str, _Place]:
    """Every attention of a forward."""
    with torch.no_grad(), record(model) as tape:
        model(*inputs)
    return {
        site: _place([recorded.call for recorded in calls]) for site, calls in tape.calls.items()
    }


def _place(calls: Sequence[AttentionCall]) -> _Place:
    links, choices = [], []
    for call in calls:
        allowed_QK = allowed_links(call).all(0).squeeze(0).cpu()
        index = allowed_QK.nonzero()
        q_order, k_order = call.geometry.q_pos.order.cpu(), call.geometry.k_pos.order.cpu()
        links.append(torch.stack((q_order[index[:, 0]], k_order[index[:, 1]]), 1))
        choices.append(allowed_QK.sum(1)[index[:, 0]])
    return _Place(kind_of(calls[0]), calls[0].q.shape[1], torch.cat(links), torch.cat(choices))


def kind_of(call: AttentionCall) -> str:
    """Which of the three kinds of attention it is: `encoder`, `decoder` (its own) or `cross`."""
    site = call.geometry.encoding.site
    return "cross" if site.cross else "decoder" if site.causal else "encoder"


class _Pool:
    """Where else an edit could be, numbered without being listed: a map of 1,000 tokens has a million links."""

    def __init__(self, like: Edit, places: dict[str, _Place], edits: Sequence[Edit]):
        kind = places[like.site].kind
        # What is no link is at one place of each head.
        links = {
            site: _links(place, like.how)
            if isinstance(like, Link)
            else torch.zeros(1, 2, dtype=torch.long)
            for site, place in places.items()
            if place.kind == kind
        }
        heads = {
            site: [None] if like.head is None else list(range(places[site].heads)) for site in links
        }
        self._like = like
        self._where = [(site, head, links[site]) for site in links for head in heads[site]]
        self._ends = list(accumulate(len(of_head) for _, _, of_head in self._where))
        same = [edit for edit in edits if type(edit) is type(like) and edit.site in links]
        self._taken = {
            _elsewhere(like, edit.site, head, link)
            for edit in same
            for head in heads[edit.site]
            for link in [_link(edit)]
            if (head is None or edit.head in (None, head))
            and bool((links[edit.site] == link).all(1).any())
        }
        self.size = self._ends[-1] - len(self._taken)

    def draw(self, numbers: random.Random, count: int) -> list[Edit]:
        """So many different ones, none of which is among the edits."""
        while True:
            drawn = [
                self._numbered(number) for number in numbers.sample(range(self._ends[-1]), count)
            ]
            if self._taken.isdisjoint(drawn):
                return drawn

    def _numbered(self, number: int) -> Edit:
        index = bisect_right(self._ends, number)
        site, head, links = self._where[index]
        return _elsewhere(self._like, site, head, links[number - self._ends[index]])


def _links(place: _Place, how: str) -> Int[Tensor, "N 2"]:
    return place.links[place.choices > 1] if how == "force" else place.links


def _link(edit: Edit) -> Int[Tensor, " 2"]:
    return torch.tensor([edit.query, edit.key] if isinstance(edit, Link) else [0, 0])


def _elsewhere(edit: Edit, site: str, head: int | None, link: Int[Tensor, " 2"]) -> Edit:
    if isinstance(edit, Link):
        query, key = link.tolist()
        return replace(edit, site=site, head=head, query=query, key=key)
    return replace(edit, site=site, head=head)  # type: ignore[arg-type]


def _drawn(
    edits: Sequence[Edit], places: dict[str, _Place], count: int, seed: int
) -> list[tuple[Edit, ...]]:
    """Different sets of edits, each with as many of every kind as there are in `edits`."""
    alike: dict[Edit, list[Edit]] = {}
    for edit in edits:
        head, kind = None if edit.head is None else 0, places[edit.site].kind
        alike.setdefault(_elsewhere(edit, kind, head, torch.zeros(2, dtype=torch.long)), []).append(
            edit
        )
    pools = [(_Pool(group[0], places, edits), len(group)) for group in alike.values()]
    possible = math.prod(math.comb(pool.size, number) for pool, number in pools)
    numbers = random.Random(seed)
    found: dict[frozenset[Edit], tuple[Edit, ...]] = {}
    while len(found) < min(count, possible):
        others = tuple(edit for pool, number in pools for edit in pool.draw(numbers, number))
        found.setdefault(frozenset(others), others)
    return list(found.values())


# What matters --------------------------------------------------------------------------------------------------------


def importance(
    model: nn.Module, inputs: Inputs, written: Sequence[int] | Int[Tensor, "B L"]
) -> dict[str, Float[Tensor, " H"]]:
    """How much the loss would change with a gate on each head: the mean over the batch of `|<Att_h, dL/dAtt_h>|`, each
    site's L2-normalised (Michel et al. 2019). L: the mean cross-entropy of an answer. written: see `effect`.
    """
    check_evaluating(model)
    labels = _labels(inputs, written)
    # cuDNN has no gradient of a recurrence in evaluation.
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False), _gated(model) as gates:
        loss_B = _losses(_log_softmax(model(*inputs)), labels)
        gradients = torch.autograd.grad(loss_B.sum(), list(gates.values()))
    each = (gradient_BH11.flatten(1).abs().mean(0) for gradient_BH11 in gradients)
    return {
        site: functional.normalize(share_H, dim=0)
        for site, share_H in zip(gates, each, strict=True)
    }


@contextmanager
def _gated(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Multiply each head's output by a gate, `(B, H, 1, 1)`, that stands at 1: its gradient is `<Att_h, dL/dAtt_h>`."""
    gates: dict[str, Tensor] = {}

    def gate(site: str) -> Any:
        def hook(module: Attend, arguments: tuple[AttentionCall], output: Tensor) -> Tensor:
            if site not in gates:
                gates[site] = output.new_ones(*output.shape[:2], 1, 1).requires_grad_()
            return output * gates[site]

        return hook

    handles = [
        attend.register_forward_hook(gate(site)) for site, attend in attends_of(model).items()
    ]
    try:
        yield gates
    finally:
        for handle in handles:
            handle.remove()


def ablation(
    model: nn.Module, inputs: Inputs, written: Sequence[int] | Int[Tensor, "B L"]
) -> dict[str, Float[Tensor, " H"]]:
    """How much the loss of `importance`, in nats, really rises with each head off, as `HeadOff` has it: one forward for
    each site, over a copy of the batch for each head and one with all heads on."""
    check_evaluating(model)
    labels, found = _labels(inputs, written), {}
    for site, place in _places(model, inputs).items():
        copies = place.heads + 1
        with torch.no_grad(), _each_head_off(model, site, place.heads):
            log_RLV = _log_softmax(model(*(repeated(one, copies) for one in inputs)))
        loss_C = _losses(log_RLV, labels.repeat(copies, 1)).unflatten(0, (copies, -1)).mean(1)
        found[site] = loss_C[:-1] - loss_C[-1]
    return found


@contextmanager
def _each_head_off(model: nn.Module, site: str, heads: int) -> Iterator[None]:
    """In the first copy of a batch the first head's output is zero, and so on; in what comes after, none is."""

    def hook(module: Attend, arguments: tuple[AttentionCall], output: Tensor) -> Tensor:
        output = output.unflatten(0, (heads + 1, -1)).clone()
        for head in range(heads):
            output[head, :, head] = 0.0
        return output.flatten(0, 1)

    handle = attends_of(model)[site].register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@final
@dataclass(frozen=True)
class Erasure:
    """What it does to take the largest weights away, and random ones, the mean over `draws`.

    largest, random: the change of the answer's log-probability. largest_flips, random_flips: the share of places
    where another token is now the likeliest.
    """

    largest: float
    random: float
    largest_flips: float
    random_flips: float
    draws: int


def erasure(
    model: nn.Module,
    inputs: Inputs,
    written: Sequence[int] | Int[Tensor, "B L"],
    site: str,
    head: int | None,
    k: int,
    draws: int = 10,
    seed: int = 0,
) -> Erasure:
    """Take from every query its `k` most attended keys, and `k` random ones instead (Serrano and Smith 2019).

    Weights that say what matters do more harm than random ones. A query with `k` keys or fewer loses all, both ways.
    """
    if draws < 1:
        raise UserError(f"expected 1 or more random draws, got {draws}")
    labels, before = _labels(inputs, written), _logs(model, inputs)

    def change(cut: Cut) -> tuple[float, float]:
        after = _logs(model, inputs, [cut])
        flipped_BL = before.argmax(-1) != after.argmax(-1)
        keep = keep_of(inputs)
        flips = float((flipped_BL if keep is None else flipped_BL[keep]).double().mean())
        return float((_picked(after, labels) - _picked(before, labels)).sum()), flips

    largest, largest_flips = change(Cut(site, head, k))
    each = [change(Cut(site, head, k, "random", seed + draw)) for draw in range(draws)]
    chance, chance_flips = (sum(values) / draws for values in zip(*each, strict=True))
    return Erasure(largest, chance, largest_flips, chance_flips, draws)
