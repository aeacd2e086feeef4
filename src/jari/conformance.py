"""The laws that an encoding keeps, as code to run on one's own.

    for outcome in laws("my_encoding.py:Mine:k=3"):
        print(outcome.verdict, outcome.law, outcome.detail)

Each law is one function below; its docstring is the law. Most faults of encodings look right at position 0, in a square
of as many queries as keys and with small initial values, so the laws look far from 0, with queries and keys of different
number, and with the encoding's parameters drawn from a standard normal.

The formula of an encoding is an `Oracle`: what the paper says of one query and one key, in numpy. The double loop that
applies it, at the end of this file, shares no code with the package.
"""

from __future__ import annotations

import copy
import itertools
import re
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from jari.attention import call as definition
from jari.attention.call import AttentionCall
from jari.attention.geometry import place
from jari.attention.kernels import Kernel, attend
from jari.encodings.base import Encoding, Site, registry
from jari.encodings.compose import build, canonical, parts_of
from jari.errors import UserError
from jari.init import generator_for, initialise
from jari.masks import Mask
from jari.models.encoder_decoder import Encoder, EncoderDecoder
from jari.positions import Positions, Tokens
from jari.registry import options_of
from jari.shapes import Tensor

# Lengths that are all different, so that no axis passes for another: B 2, Q 3, K and L 7, H 6, E 8, E' 5, D 48.
BATCH, LENGTH, HEAD_WIDTH, VALUE_WIDTH = 2, 7, 8, 5
ALL = slice(0, LENGTH)
SCALE = 0.3  # not 1 / sqrt(E), which nobody may count on
KERNELS: tuple[Kernel, ...] = ("explicit", "fused")
STARTS = (0, 7, 1000, 5000)
SHIFTS = (1, 100, 5000)
VOCABULARY = 11

EXACT = 1e-5  # float64 with a few float32 constants, computed in another order
POSITIONS = 2e-3  # angles in float32 are off by 2e-4 at position 5,000, which is allowed
HEARD = 1e-2  # a difference that nobody could take for rounding
PRECISIONS = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 6e-2}

Vector = np.ndarray
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Oracle:
    """The formula of an encoding, for one query and one key, in float64 numpy.

    score(encoding, q_E, k_E, i, j, head, scale): the scaled score of the query at position i with the key at j, from
        the vectors as they are before any rotation; `scale * q_E @ k_E` by default.
    value(encoding, v_E, i, j, head): what the query at i takes from the key at j, before the weight; v_E by default.
    embed(encoding, position): what is added to the input, of width D; nothing by default.

    Parameters are read from the encoding: `encoding.table.detach().numpy()`. It is in float64.
    """

    score: Callable[[Any, Vector, Vector, int, int, int, float], float] | None = None
    value: Callable[[Any, Vector, int, int, int], Vector] | None = None
    embed: Callable[[Any, int], Vector] | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of one law. detail: what was looked at, what went wrong, or why the law was skipped."""

    law: str
    verdict: Literal["holds", "broken", "skipped"]
    detail: str


class BrokenError(Exception):
    """The law does not hold."""


class SkippedError(Exception):
    """The law says nothing about this encoding."""


def laws(spec: str, oracle: Oracle | None = None, *, heads: int = 6) -> list[Outcome]:
    """Try all laws on an encoding, about a second on one core. Raises UserError for a spec that cannot be built.

    spec: options and sums too. oracle: its formula, by default the class attribute `oracle`. heads: H of all sites.
    """
    with torch.random.fork_rng(devices=[]):
        subject = Subject.of(spec, oracle, heads)
        return [_judge(name, law, subject) for name, law in LAWS.items()]


def _judge(name: str, law: Law, subject: Subject) -> Outcome:
    try:
        return Outcome(name, "holds", law(subject))
    except BrokenError as broken:
        return Outcome(name, "broken", str(broken))
    except SkippedError as skipped:
        return Outcome(name, "skipped", str(skipped))
    except Exception as error:
        return Outcome(name, "broken", f"raised {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Subject:
    """The encoding on trial: how to build it, and what it and positions for it look like.

    labels: of the relations that it reads in place of distances, or 0. longest: as it claims, or None.
    """

    spec: str
    oracle: Oracle | None
    heads: int
    labels: int
    longest: int | None

    @staticmethod
    def of(spec: str, oracle: Oracle | None, heads: int) -> Subject:
        classes = [registry.spec(part).target for part in parts_of(spec)]
        if oracle is None and len(classes) == 1:
            oracle = getattr(classes[0], "oracle", None)
        subject = Subject(canonical(spec), oracle, heads, 0, None)
        encoding = build(spec, subject.site())
        labels = max(getattr(module, "labels", 0) for module in encoding.modules())
        if any(1 not in target.axes for target in classes):
            raise UserError(f"the laws look at sequences, and {spec} does not take positions with one axis")
        if encoding.longest is not None and encoding.longest < 2 * LENGTH:
            raise UserError(f"the laws need {2 * LENGTH} positions, and {spec} has {encoding.longest}; try it with more")
        return replace(subject, labels=labels, longest=encoding.longest)

    def claims(self, claim: str) -> bool:
        """Whether all parts of a sum make the claim."""
        return all(getattr(registry.spec(part).target, claim, True) for part in parts_of(self.spec))

    @property
    def causal_only(self) -> bool:
        return any(registry.spec(part).target.causal_only for part in parts_of(self.spec))

    def site(self, causal: bool | None = None, heads: int | None = None) -> Site:
        causal = self.causal_only if causal is None else causal
        heads = heads or self.heads
        return Site(heads * HEAD_WIDTH, heads, HEAD_WIDTH, VALUE_WIDTH, causal=causal)

    def encoding(self, spec: str | None = None, site: Site | None = None) -> Encoding:
        """A new one in float64, its parameters the same whenever spec and site are."""
        return randomise(build(spec or self.spec, site or self.site()).double())

    def encoder(self) -> Encoder:
        """Two layers in float64."""
        if self.causal_only:
            raise SkippedError("it works only where queries never see later keys, and this law looks at an encoder")
        encoder = Encoder(self.site().width, self.heads, encoding=self.spec, hidden=16).double()
        initialise(encoder, 0)
        return randomise(encoder)

    def model(self, spec: str | None = None, kernel: Kernel = "auto") -> EncoderDecoder:
        """Encoder, decoder and, if it may be there, cross-attention, all under the encoding."""
        spec = spec or self.spec
        crosses = self.claims("cross") and not self.labels and not self.causal_only
        model = EncoderDecoder(
            VOCABULARY,
            VOCABULARY,
            width=self.site().width,
            heads=self.heads,
            hidden=16,
            encoder_encoding="none" if self.causal_only else spec,
            decoder_encoding=spec,
            cross_encoding=spec if crosses else "none",
            kernel=kernel,
        ).double()
        initialise(model, 0)
        return model

    def starts(self) -> list[int]:
        """Where sequences begin, as far from 0 as it can go."""
        if self.labels:
            return [0, LENGTH]
        if self.longest is None:
            return list(STARTS)
        return sorted({start for start in STARTS if start + LENGTH <= self.longest} | {self.longest - LENGTH})

    def sequence(self, start: int, length: int = LENGTH, frame: str = "sequence") -> Positions:
        """Tokens that follow each other; where it reads labels, so many nodes of a graph."""
        if not self.labels:
            return Positions.sequence(length, start, frame=frame)
        nodes = start + length
        labels = torch.randint(self.labels, (nodes, nodes), generator=generator_for(0, "labels"))
        return Positions.graph(labels, frame=frame).slice(start, nodes)

    def places(self, index: Tensor) -> Positions:
        """Tokens at `index`, `(L,)` or `(B, L)`, in the order given."""
        if self.labels:
            raise SkippedError("it reads the labels of pairs: nodes of a graph have no line to be padded, packed or moved along")
        return Positions(index.unsqueeze(-1), torch.arange(index.shape[-1]))


Law = Callable[[Subject], str]
LAWS: dict[str, Law] = {}


def _law(name: str) -> Callable[[Law], Law]:
    def enter(law: Law) -> Law:
        LAWS[name] = law
        return law

    return enter


# --- The laws ---------------------------------------------------------------------------------------------------------


@_law("agrees with its formula")
def formula(subject: Subject) -> str:
    """What it adds to the input, the scores and the outputs are those of a float64 double loop written from its paper."""
    if subject.oracle is None:
        raise SkippedError(
            "no formula was given; write jari.conformance.Oracle(score=..., value=..., embed=...) and pass it as "
            "laws(spec, oracle) or make it the class attribute `oracle`"
        )
    worst, add = 0.0, subject.oracle.embed or (lambda encoding, position: np.zeros(encoding.site.width))
    for start, causal in itertools.product(subject.starts(), {subject.causal_only, True}):
        k_at = [(start + further) % (subject.longest or 10**9) for further in (0, 1, 2, 5, 9, 40, 300)]
        q_at = [k_at[5], k_at[1], k_at[3]]
        q_pos, k_pos = subject.places(torch.tensor(q_at)), subject.places(torch.tensor(k_at))
        encoding = subject.encoding(site=subject.site(causal))
        q, k = (_noise(name, BATCH, subject.heads, len(at), HEAD_WIDTH) for name, at in (("q", q_at), ("k", k_at)))
        v = _noise("v", BATCH, subject.heads, LENGTH, VALUE_WIDTH)
        mask = Mask(pairs=torch.tensor(q_at).unsqueeze(-1) >= torch.tensor(k_at)) if causal else None
        output = definition.output(_call(encoding, q, k, v, q_pos, k_pos, mask))
        added = encoding.embed(torch.zeros(1, LENGTH, encoding.site.width, dtype=torch.float64), k_pos)[0]
        looped = _double_loop(subject.oracle, encoding, q.numpy(), k.numpy(), v.numpy(), q_at, k_at, causal)
        embedded = np.stack([add(encoding, position) for position in k_at])
        where = f"positions {k_at}{', causal' if causal else ''}"
        worst = max(worst, _near(output, torch.from_numpy(looped), POSITIONS, f"output at {where}"))
        worst = max(worst, _near(added, torch.from_numpy(embedded), POSITIONS, f"what is added to the input at {where}"))
    return f"largest difference {worst:.1g}, from position {subject.starts()[0]} to {subject.starts()[-1]} on"


@_law("every kernel equals the definition")
def kernels(subject: Subject) -> str:
    """Each kernel gives the definition's output and gradients in every precision, a query without keys exactly 0, or is
    refused with a UserError."""
    refused: set[str] = set()
    for start, dtype, case in itertools.product(subject.starts(), PRECISIONS, _cases()):
        pos, encoding = subject.sequence(start), subject.encoding().to(dtype)
        expected = _differentiate(copy.deepcopy(encoding).double(), dtype, pos, case, "definition")
        for kernel in KERNELS:
            where = f"of {kernel}, {dtype}, {case.name}, from position {start} on"
            try:
                found = _differentiate(encoding, dtype, pos, case, kernel)
            except UserError:
                refused.add(kernel)
                continue
            for what, tensor in found.items():
                _near(tensor, expected[what], PRECISIONS[dtype], f"{what} {where}")
            allowed = case.mask and case.mask.dense(case.q_pos(pos), pos)
            if allowed is not None and (found["output"] * ~allowed.any(-1, keepdim=True)).any():
                raise BrokenError(f"a query without any key is not exactly 0 in the output {where}")
    if "explicit" in refused:
        raise BrokenError("no kernel can compute it: the explicit one is refused")
    for kernel in KERNELS:
        built = _complaint(lambda kernel=kernel: subject.model(kernel=kernel)) is None
        if built == (kernel in refused):
            raise BrokenError(f"the {kernel} kernel is {'not ' if built else ''}refused when a model is built, and later the opposite")
    return "explicit equals it, fused is refused" if refused else "explicit and fused equal it"


@_law("cached decoding equals the full forward")
def steps(subject: Subject) -> str:
    """A decoder gives the same scores whether it reads the target at once or in pieces, with a cache."""
    model, worst = randomise(subject.model()), 0.0
    source, target = _tokens("source"), _tokens("target")
    with torch.no_grad():
        for start in subject.starts():
            pos = subject.sequence(start, frame="target")
            memory = model.start(Tokens(source[:, :5], subject.sequence(0, 5, "source")))
            expected = model.step(memory, target, pos, None)
            cache, pieces = model.new_cache(), []
            for first, last in itertools.pairwise((0, 1, 3, 4, LENGTH)):
                pieces.append(model.step(memory, target[:, first:last], pos.slice(first, last), cache))
            worst = max(worst, _near(torch.cat(pieces, 1), expected, EXACT, f"scores in steps of 1, 2, 1, 3 from {start} on"))
    return f"largest difference {worst:.1g}, in steps of 1, 2, 1, 3"


@_law("padding changes no real token")
def padding(subject: Subject) -> str:
    """A sequence gives the same encoder output alone and with padding on its left or right."""
    encoder, x = subject.encoder(), _noise("x", BATCH, LENGTH, subject.site().width)
    real = 4
    for start, side in itertools.product(subject.starts(), ("left", "right")):
        keep = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        keep[1, slice(0, LENGTH - real) if side == "left" else slice(real, None)] = False
        padded = encoder(x, positions=subject.places(Positions.from_mask(keep).index() + start), keep=keep)
        alone = encoder(x[1:, keep[1]], positions=subject.sequence(start, real))
        _near(padded[1:, keep[1]], alone, EXACT, f"tokens with padding on the {side}, from position {start} on")
        _near(padded[:1], encoder(x[:1], positions=subject.sequence(start)), EXACT, f"the neighbour of padding, from {start} on")
    return "left and right"


@_law("packed documents equal separate ones")
def packing(subject: Subject) -> str:
    """Two documents in one row, positions restarted and `Mask(documents=...)`, give what they give apart."""
    encoder, x = subject.encoder(), _noise("x", BATCH, LENGTH, subject.site().width)
    document = torch.tensor([0, 0, 0, 0, 1, 1, 1]).expand(BATCH, -1)
    for start in subject.starts():
        pos = subject.places(torch.tensor([0, 1, 2, 3, 0, 1, 2]) + start)
        packed = encoder(x, positions=pos, mask=Mask(documents=(document, document)))
        for name, part in {"first": slice(0, 4), "second": slice(4, 7)}.items():
            alone = encoder(x[:, part], positions=subject.sequence(start, part.stop - part.start))
            _near(packed[:, part], alone, EXACT, f"the {name} of two packed documents, from position {start} on")
    return "two documents in a row"


@_law("shift invariance is as claimed")
def shift(subject: Subject) -> str:
    """Moving all positions by the same amount changes no encoder output where that is claimed, and does where it is not."""
    encoder, x = subject.encoder(), _noise("x", BATCH, LENGTH, subject.site().width)
    claimed, worst = subject.claims("shift_invariant"), 0.0
    room = SHIFTS[-1] if subject.longest is None else subject.longest - LENGTH
    for by in (by for by in SHIFTS if by <= room):
        index = torch.arange(LENGTH)
        here, there = encoder(x, positions=subject.places(index)), encoder(x, positions=subject.places(index + by))
        worst = max(worst, float((here - there).abs().max()))
        if claimed:
            _near(there, here, POSITIONS, f"output with all positions moved by {by}")
    if not claimed and worst < HEARD:
        raise BrokenError(f"it says shift_invariant = False, but moved positions change nothing (at most {worst:.1g}); claim True")
    return f"claimed and kept, within {worst:.1g}" if claimed else f"not claimed, and moved outputs differ by {worst:.1g}"


@_law("rotation keeps norms")
def norms(subject: Subject) -> str:
    """`rotate` leaves the length of every query and key as it is, unless the class says `keeps_norms = False`."""
    if "rotate" not in subject.encoding().hooks:
        raise SkippedError("it rotates nothing")
    if not subject.claims("keeps_norms"):
        raise SkippedError("it does not claim to: keeps_norms = False")
    for start in subject.starts():
        turned, still = (_answers(e, subject.sequence(start))["rotate"] for e in (subject.encoding(), _nothing(subject)))
        _near(turned.norm(dim=-1), still.norm(dim=-1), EXACT, f"norms from position {start} on")
    return f"up to position {subject.starts()[-1] + LENGTH - 1}"


@_law("order is heard")
def order(subject: Subject) -> str:
    """An encoder under an encoding without hooks follows every permutation of its tokens; under any other it does not.

    An encoding whose options leave it nothing to tell, such as Shaw's with all distances clipped to 0, is broken by
    this law, and rightly: it costs what an encoding costs, and the model stays a bag of tokens.
    """
    encoder, x = subject.encoder(), _noise("x", BATCH, LENGTH, subject.site().width)
    shuffle, hooks = torch.tensor([3, 0, 6, 1, 5, 2, 4]), ", ".join(sorted(subject.encoding().hooks))
    for start in subject.starts():
        pos = subject.sequence(start)
        difference = float((encoder(x[:, shuffle], positions=pos) - encoder(x, positions=pos)[:, shuffle]).abs().max())
        if hooks and not difference > HEARD:
            raise BrokenError(
                f"it overrides {hooks}, but the encoder is as blind to order as without it (outputs follow a permutation "
                f"within {difference:.1g}, from position {start} on): with these options it has nothing to tell, or is not wired"
            )
        if not hooks and difference > EXACT:
            raise BrokenError(f"it says that it uses no hook, but a permutation changes outputs by {difference:.1g}")
    return "by " + hooks if hooks else "by nothing, as it says: the encoder sees a bag of tokens"


@_law("the end is announced")
def end(subject: Subject) -> str:
    """It reads its longest position and refuses the next one with a UserError that names it; without a longest position
    it reads the millionth."""
    encoder, x = subject.encoder(), _noise("x", BATCH, LENGTH, subject.site().width)
    last = 1_000_000 if subject.longest is None else subject.longest - 1
    if not encoder(x, positions=subject.places(torch.arange(last + 1 - LENGTH, last + 1))).isfinite().all():
        raise BrokenError(f"the output at position {last} is not finite")
    if subject.longest is None:
        return f"no end is claimed, and position {last:,} can be read"
    beyond = subject.places(torch.arange(last + 2 - LENGTH, last + 2))
    complaint = _complaint(lambda: encoder(x, positions=beyond))
    if complaint is None:
        raise BrokenError(f"its longest is {subject.longest}, so the last position is {last}, but {last + 1} passes without a word")
    if not re.search(rf"\b{last + 1}\b", complaint):
        raise BrokenError(f"position {last + 1} is refused without being named: {complaint!r}")
    return f"position {last} can be read, {last + 1} is refused by its number"


_fresh_lengths = itertools.count(LENGTH + 4)


@_law("instances share nothing")
def independence(subject: Subject) -> str:
    """What one instance says does not depend on which others, with other options, were built or used before."""
    # A cache that instances share by mistake is mostly keyed by length, so take two lengths that it has not seen: in
    # the first this encoding is asked before the others, in the second after them.
    earlier, later = next(_fresh_lengths), next(_fresh_lengths)
    encoding, others = subject.encoding(), [subject.encoding(site=subject.site(heads=subject.heads + 1))]
    first = _answers(encoding, _anywhere(subject, earlier))
    for text in _variants(subject.spec):
        if _complaint(lambda text=text: build(text, subject.site())) is None:
            others.append(subject.encoding(text))
    for length in (earlier, later):
        for other in others:
            own = replace(subject, labels=max(getattr(m, "labels", 0) for m in other.modules()), longest=other.longest)
            _answers(other, _anywhere(own, length))
        again = _answers(encoding, _anywhere(subject, length))
        for hook, answer in first.items():
            _near(again[hook], answer, EXACT, f"{hook} after {len(others)} instances with other options were used")
    return f"{len(others)} other instances change nothing"


@_law("round trips change nothing")
def round_trips(subject: Subject) -> str:
    """The canonical spec, a state dict, a deep copy, the meta device and a detour through bfloat16 (but for rounded
    parameters) give back the same encoding, bit for bit."""
    pos = subject.sequence(min(4000, subject.starts()[-1]))
    encoding = subject.encoding()
    expected = _answers(encoding, pos)
    loaded = build(subject.spec, subject.site()).double()
    loaded.load_state_dict(encoding.state_dict())
    with torch.device("meta"):
        empty = build(subject.spec, subject.site()).double()
    empty.to_empty(device="cpu")
    for tensor in itertools.chain(empty.parameters(), empty.buffers()):
        tensor.detach().fill_(float("nan"))
    empty.load_state_dict(encoding.state_dict())
    if canonical(canonical(subject.spec)) != canonical(subject.spec):
        raise BrokenError(f"the canonical spec of {canonical(subject.spec)} is {canonical(canonical(subject.spec))}")
    copies = {
        "built from its canonical spec": subject.encoding(canonical(subject.spec)),
        "loaded from its state dict": loaded,
        "copied deeply": copy.deepcopy(encoding),
        "built on the meta device and loaded": empty,
    }
    for how, other in copies.items():
        _near_all(_answers(other, pos), expected, f"when {how}")
    rounded = copy.deepcopy(encoding).to(torch.bfloat16).double()
    for parameter, value in zip(encoding.parameters(), rounded.parameters(), strict=True):
        parameter.detach().copy_(value)
    _near_all(_answers(rounded, pos), _answers(encoding, pos), "after a detour through bfloat16")
    return f"{', '.join(copies)}, and after bfloat16, at position {int(pos.order[0])}"


@_law("every parameter learns")
def gradients(subject: Subject) -> str:
    """In a model, each parameter of the encoding, in every layer, gets a gradient other than 0."""
    model = randomise(subject.model())
    parameters = owned(model)
    if not parameters:
        raise SkippedError("it has no parameters")
    source = Tokens(_tokens("source"), subject.sequence(0, frame="source"))
    scores = model(source, Tokens(_tokens("target"), subject.sequence(0, frame="target")))
    (scores * _noise("direction", *scores.shape)).sum().backward()
    for name, parameter in parameters.items():
        if parameter.grad is None or not parameter.grad.abs().max() > 1e-12:
            raise BrokenError(f"{name} gets no gradient")
    return f"{len(parameters)} parameters"


@_law("tokens without a place have none")
def placeless(subject: Subject) -> str:
    """A token marked placeless gets no vector and no rotation, and is at distance 0 from all; the others notice nothing."""
    encoding, nothing, token = subject.encoding(), _nothing(subject), 2
    mark_L = torch.arange(LENGTH) == token
    others = torch.arange(LENGTH)[~mark_L]
    for start, mark in itertools.product(subject.starts(), (mark_L, mark_L.expand(BATCH, -1))):
        pos = subject.places(torch.arange(LENGTH) + start)
        marked = _answers(encoding, replace(pos, placeless=mark))
        plain, heaped = _answers(encoding, pos), _answers(encoding, subject.places(torch.full((LENGTH,), start)))
        for hook, answer in marked.items():
            where = f"{hook} at a token without a place, from position {start} on"
            if hook in ("embed", "inject", "rotate"):
                _near(answer[:, :, token], _answers(nothing, pos)[hook][:, :, token], EXACT, where)
                _near(answer[:, :, others], plain[hook][:, :, others], EXACT, f"{hook} beside a token without a place")
            else:
                _near(answer[:, :, token], heaped[hook][:, :, token], EXACT, f"{where}, as query")
                _near(answer[:, :, :, token], heaped[hook][:, :, :, token], EXACT, f"{where}, as key")
                rest, expected = answer[:, :, others][:, :, :, others], plain[hook][:, :, others][:, :, :, others]
                _near(rest, expected, EXACT, f"{hook} beside a token without a place")
    return "marked for all rows and row by row"


@_law("samples do not mix")
def batch(subject: Subject) -> str:
    """Reversing a batch reverses the outputs and does nothing else, with shared positions and with each row's own."""
    encoder = subject.encoder()
    for start, samples in itertools.product(subject.starts(), (BATCH, LENGTH, subject.heads)):
        x = _noise("x", samples, LENGTH, subject.site().width)
        shared = subject.sequence(start)
        expected = encoder(x, positions=shared).flip(0)
        _near(encoder(x.flip(0), positions=shared), expected, EXACT, f"a reversed batch of {samples}, from position {start} on")
        if not subject.labels:
            index_BL = (torch.arange(LENGTH) + 3 * torch.arange(samples).unsqueeze(-1) + start) % (subject.longest or 10**9)
            ordered = encoder(x, positions=subject.places(index_BL))
            turned = encoder(x.flip(0), positions=subject.places(index_BL.flip(0)))
            _near(turned.flip(0), ordered, EXACT, f"a reversed batch of {samples} whose rows have positions of their own")
            alone = encoder(x[1:2], positions=subject.places(index_BL[1]))
            _near(ordered[1:2], alone, EXACT, f"a row of a batch of {samples}, by positions of its own, and alone")
    return f"batches of {BATCH}, {LENGTH} and {subject.heads}"


@_law("the rest starts out the same")
def initial_values(subject: Subject) -> str:
    """At a seed, every parameter that is not the encoding's is bit for bit what it is without an encoding."""
    own, plain = subject.model(), subject.model("none")
    rest = {name: value for name, value in own.named_parameters() if name not in owned(own)}
    expected = dict(plain.named_parameters())
    if rest.keys() != expected.keys():
        raise BrokenError(f"the model has other parameters: {', '.join(sorted(rest.keys() ^ expected.keys()))}")
    for name, value in expected.items():
        if not torch.equal(rest[name], value):
            raise BrokenError(f"{name} starts with other values than without the encoding")
    return f"{len(rest)} parameters"


# --- What the laws are written with -----------------------------------------------------------------------------------


def owned(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of the encodings in a model."""
    encodings = {path: module for path, module in model.named_modules() if isinstance(module, Encoding)}
    return {f"{path}.{name}": p for path, module in encodings.items() for name, p in module.named_parameters()}


def randomise(model: M) -> M:
    """Draw the encodings' parameters from a standard normal: nothing is then too small to be noticed, or symmetric."""
    with torch.no_grad():
        for name, parameter in owned(model).items():
            parameter.copy_(_noise(name, *parameter.shape))
    return model


def _noise(name: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator_for(0, name), dtype=torch.float64)


def _tokens(name: str) -> Tensor:
    return torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator_for(0, name))


def _nothing(subject: Subject) -> Encoding:
    return build("none", subject.site())


def _near(found: Tensor, expected: Tensor, tolerance: float, what: str) -> float:
    """The largest difference, relative to the largest expected number where that is above 1. Raises BrokenError."""
    if found.shape != expected.shape:
        raise BrokenError(f"{what}: shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
    if not expected.numel():
        return 0.0
    found, expected = found.detach().double(), expected.detach().double()
    difference = float((found - expected).abs().max() / expected.abs().max().clamp_min(1.0))
    if not difference <= tolerance:
        raise BrokenError(f"{what}: off by {difference:.2g}, allowed {tolerance:g}")
    return difference


def _near_all(found: dict[str, Tensor], expected: dict[str, Tensor], how: str) -> None:
    for hook, answer in expected.items():
        _near(found[hook], answer, 0.0, f"{hook} {how}")


def _complaint(action: Callable[[], Any]) -> str | None:
    """The text of the UserError that it raises, or None."""
    try:
        action()
    except UserError as error:
        return str(error)
    return None


def _anywhere(subject: Subject, length: int) -> Positions:
    """So many tokens, starting over where the encoding ends."""
    if subject.labels:
        return subject.sequence(0, length)
    return subject.places(torch.arange(length) % (subject.longest or length))


def _variants(spec: str) -> Iterator[str]:
    """The same encoding with one option changed at a time; its constructor may not accept it."""
    parts = [registry.spec(part) for part in parts_of(spec)]
    for i, part in enumerate(parts):
        for name, option in options_of(part.target).items():
            value, others = part.options.get(name, option.default), []
            if typing.get_origin(option.annotation) is Literal:
                others = [choice for choice in typing.get_args(option.annotation) if choice != value]
            elif isinstance(value, bool | int | float):
                others = [not value if isinstance(value, bool) else value + 2 if isinstance(value, int) else value / 2]
            for other in others:
                changed = replace(part, options={**part.options, name: other})
                yield "+".join(str(part) for part in (*parts[:i], changed, *parts[i + 1 :]))


def _answers(encoding: Encoding, pos: Positions) -> dict[str, Tensor]:
    """What every hook says about the first LENGTH tokens: tokens (queries) on axis 2, keys on axis 3 if it is about pairs."""
    site, hooks, length = encoding.site, encoding.hooks, pos.length
    pad = (0, 0, 0, length - LENGTH)
    x = functional.pad(_noise("x", BATCH, LENGTH, site.width), pad)
    q, k = (functional.pad(_noise(name, BATCH, site.heads, LENGTH, site.head_width), pad) for name in "qk")
    answers: dict[str, Tensor | None] = {
        "embed": encoding.embed(x, pos).unsqueeze(1),
        "inject": encoding.inject(x, pos).unsqueeze(1),
        "rotate": encoding.rotate(q, encoding.rotation(pos)),
        "bias": encoding.bias(pos, pos),
    }
    if answers["bias"] is not None:
        answers["bias"] = answers["bias"].expand(BATCH, site.heads, length, length)[..., :LENGTH]
    if hooks & {"terms", "values"}:
        relation = encoding.relation(pos, pos)
        terms = encoding.terms(q, k, relation)
        answers["terms"] = None if terms is None else terms[..., :LENGTH]
        if "values" in hooks:
            # All weight on one key after the other, so that this too is about pairs.
            weights = torch.eye(length, dtype=torch.float64)[:LENGTH, None].expand(-1, length, -1)
            alone = [encoding.values(w.expand(BATCH, site.heads, -1, -1), relation) for w in weights]
            answers["values"] = torch.stack([a for a in alone if a is not None], 3)
    return {hook: answer[:, :, :LENGTH].detach() for hook, answer in answers.items() if answer is not None}


@dataclass(frozen=True, eq=False)
class Case:
    """Some of the tokens as queries, and a mask."""

    name: str
    queries: slice
    mask: Mask | None

    def q_pos(self, pos: Positions) -> Positions:
        return pos if self.queries == ALL else pos.slice(self.queries.start, self.queries.stop)


def _cases() -> list[Case]:
    some, end, dead = slice(2, 5), torch.tensor([[4], [0]]), torch.tensor([[True], [False], [True]])
    return [
        Case("without a mask", some, None),
        Case("causal", some, Mask(causal=True)),
        Case("causal over all tokens", ALL, Mask(causal=True)),
        Case("padding, of one row nothing else", some, Mask(keys=torch.arange(LENGTH) < end)),
        Case("one query without keys", some, Mask(causal=True, pairs=dead.expand(-1, LENGTH))),
    ]


def _call(
    encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, q_pos: Positions, k_pos: Positions, mask: Mask | None
) -> AttentionCall:
    """An attention between heads that are not rotated yet."""
    geometry = place(encoding, q_pos, k_pos, mask)
    if "rotate" in encoding.hooks:
        q, k = encoding.rotate(q, geometry.q_rotation), encoding.rotate(k, geometry.k_rotation)
    return AttentionCall(q, k, v, geometry, SCALE)


def _differentiate(encoding: Encoding, dtype: torch.dtype, pos: Positions, case: Case, kernel: Kernel) -> dict[str, Tensor]:
    """Output and gradients of an attention by `kernel`, from inputs rounded to `dtype`. The definition is given them in
    float64 again: it is what the kernels are measured with."""
    site = encoding.site
    widths = {"q": site.head_width, "k": site.head_width, "v": site.value_head_width, "direction": site.value_head_width}
    rounded = (_noise(name, BATCH, site.heads, LENGTH, width).to(dtype) for name, width in widths.items())
    q, k, v, direction = (t.double() if kernel == "definition" else t for t in rounded)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    call = _call(encoding, q[:, :, case.queries], k, v, case.q_pos(pos), pos, case.mask)
    output = attend(call, kernel)
    loss = (output * direction[:, :, case.queries]).sum()
    inputs = {"q": q, "k": k, "v": v, **dict(encoding.named_parameters())}
    gradients = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True, materialize_grads=True)
    named = {f"gradient of {name}": gradient for name, gradient in zip(inputs, gradients, strict=True)}
    return {"output": output.detach(), **named}


# --- The double loop, which knows attention and nothing of the package ------------------------------------------------


def _double_loop(
    oracle: Oracle, encoding: Any, q: Vector, k: Vector, v: Vector, q_at: list[int], k_at: list[int], causal: bool
) -> Vector:
    """Softmax of the scores and weighted sum of the values, one query and one key after the other."""
    score = oracle.score or (lambda encoding, q_E, k_E, i, j, head, scale: scale * float(q_E @ k_E))
    value = oracle.value or (lambda encoding, v_E, i, j, head: v_E)
    output = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h, query in np.ndindex(*q.shape[:3]):
        i = q_at[query]
        seen = [(key, j) for key, j in enumerate(k_at) if j <= i or not causal]
        scores = np.array([score(encoding, q[b, h, query], k[b, h, key], i, j, h, SCALE) for key, j in seen])
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        output[b, h, query] = sum(w * value(encoding, v[b, h, key], i, j, h) for w, (key, j) in zip(weights, seen, strict=True))
    return output
