"""The laws. Each is a function whose docstring is the law; it returns what was looked at, or raises."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from jarilab.attention import call as definition
from jarilab.attention.kernels import Kernel
from jarilab.conformance.attention import SCALE, call_of, cases, differentiate, slope
from jarilab.conformance.oracle import double_loop
from jarilab.conformance.subject import (
    BATCH,
    HEAD_WIDTH,
    LENGTH,
    NODES,
    VALUE_WIDTH,
    WIDE,
    BrokenError,
    SkippedError,
    Subject,
    answers,
    apart,
    complaint,
    near,
    near_all,
    noise,
    owned,
    randomise,
    tokens,
    variants,
)
from jarilab.encodings.compose import WITHOUT, build, canonical
from jarilab.encodings.oracle import Cell
from jarilab.errors import UserError
from jarilab.masks import Mask
from jarilab.positions import Positions, Tokens

KERNELS: tuple[Kernel, ...] = ("explicit", "fused")
SHIFTS = (1, 100, 5000)

EXACT = 1e-5  # float64 with a few float32 constants, computed in another order
POSITIONS = 2e-3  # angles in float32 are off by 2e-4 at position 5,000, which is allowed
SLOPE = 1e-2  # of a slope from a step of 0.001
HEARD = 1e-2  # a difference that nobody could take for rounding
PRECISIONS = {torch.float64: 1e-6, torch.float32: 2e-5, torch.bfloat16: 5e-2}

Law = Callable[[Subject], str]
LAWS: dict[str, Law] = {}


def law(name: str) -> Callable[[Law], Law]:
    """Enter a function into the table."""

    def enter(function: Law) -> Law:
        LAWS[name] = function
        return function

    return enter


@law("agrees with its formula")
def formula(subject: Subject) -> str:
    """What it adds to the input, and the output with all that it adds, are those of a float64 double loop."""
    if subject.oracle is None:
        raise SkippedError(
            "no formula was given; write jarilab.Oracle(score=..., value=..., embed=...) and pass it as "
            "laws(spec, oracle) or make it the class attribute `oracle`"
        )
    worst, add = 0.0, subject.oracle.embed
    for start, causal in itertools.product(subject.starts(), {subject.causal_only, True}):
        k_at = subject.scattered(start)
        q_at = [k_at[5], k_at[1], k_at[3]]
        q_pos, k_pos = subject.at(q_at), subject.at(k_at)
        encoding = subject.encoding(site=subject.site(causal))
        q, k = (
            noise(name, BATCH, subject.heads, len(at), HEAD_WIDTH)
            for name, at in (("q", q_at), ("k", k_at))
        )
        v = noise("v", BATCH, subject.heads, LENGTH, VALUE_WIDTH)
        mask = Mask(pairs=torch.tensor([[j <= i for j in k_at] for i in q_at])) if causal else None
        output = definition.output(call_of(encoding, q, k, v, q_pos, k_pos, mask))
        added = encoding.embed(
            torch.zeros(1, LENGTH, encoding.site.width, dtype=torch.float64), k_pos
        )[0]
        looped = double_loop(
            subject.oracle,
            encoding,
            q.numpy(),
            k.numpy(),
            v.numpy(),
            q_at,
            k_at,
            scale=SCALE,
            causal=causal,
        )
        embedded = np.stack([add(encoding, position) for position in k_at])
        where = f"positions {[tuple(at[:2]) if isinstance(at, Cell) else at for at in k_at]}{', causal' * causal}"
        worst = max(worst, near(output, torch.from_numpy(looped), POSITIONS, f"output at {where}"))
        worst = max(
            worst,
            near(
                added,
                torch.from_numpy(embedded),
                POSITIONS,
                f"what is added to the input at {where}",
            ),
        )
    return f"largest difference {worst:.1g}, from position {subject.starts()[0]} to {subject.starts()[-1]} on"


@law("every kernel equals the definition")
def kernels(subject: Subject) -> str:
    """Each kernel gives the definition's output and gradients in every precision, and exactly 0 without any key,
    or is refused when a model is built; and the definition's gradients are its slopes."""
    refused: set[Kernel] = set()
    for start, dtype, case in itertools.product((0, subject.far()), PRECISIONS, cases()):
        pos, encoding = subject.sequence(start), subject.encoding().to(dtype)
        expected = differentiate(copy.deepcopy(encoding).double(), dtype, pos, case, "definition")
        if dtype is torch.float64:
            for name in ("q", "k", "v", *dict(encoding.named_parameters())):
                what = f"gradient of {name}"
                along = (expected[what] * noise(f"towards {name}", *expected[what].shape)).sum()
                near(
                    along,
                    slope(encoding, pos, case, name),
                    SLOPE,
                    f"{what} of the definition, {case.name}",
                )
        for kernel in KERNELS:
            where = f"of {kernel}, {dtype}, {case.name}, from position {start} on"
            try:
                found = differentiate(encoding, dtype, pos, case, kernel)
            except UserError:
                refused.add(kernel)
                continue
            for what, tensor in found.items():
                near(tensor, expected[what], PRECISIONS[dtype], f"{what} {where}")
            allowed = case.mask and case.mask.dense(case.q_pos(pos), pos)
            if allowed is not None and (found["output"] * ~allowed.any(-1, keepdim=True)).any():
                raise BrokenError(f"a query without any key is not exactly 0 in the output {where}")
    if "explicit" in refused:
        raise BrokenError("no kernel can compute it: the explicit one is refused")
    for kernel in refused:
        if complaint(partial(subject.model, kernel=kernel)) is None:
            raise BrokenError(
                f"the {kernel} kernel is refused when it runs, but not when a model is built with it"
            )
    return "explicit equals it, fused is refused" if refused else "explicit and fused equal it"


@law("cached decoding equals the full forward")
def steps(subject: Subject) -> str:
    """A decoder gives the same scores whether it reads the target at once or in pieces, with a cache."""
    model, worst = randomise(subject.model()), 0.0
    source, target = tokens("source"), tokens("target")
    with torch.no_grad():
        for start in subject.starts():
            pos = subject.sequence(start, frame="target")
            # As far away as it can compare the target with.
            first = 0 if subject.max_distance is None else start
            memory = model.start(Tokens(source[:, :5], subject.sequence(first, 5, "source")))
            expected = model.step(memory, target, pos, None)
            cache, pieces = model.new_cache(), []
            for first, last in itertools.pairwise((0, 1, 3, 4, LENGTH)):
                pieces.append(
                    model.step(memory, target[:, first:last], pos.slice(first, last), cache)
                )
            where = f"scores of 1, 2, 1 and 3 tokens at a time, from position {start} on"
            worst = max(worst, near(torch.cat(pieces, 1), expected, EXACT, where))
    return f"largest difference {worst:.1g}, reading 1, 2, 1 and 3 tokens at a time"


@law("padding changes no real token")
def padding(subject: Subject) -> str:
    """A sequence gives the same encoder output alone and with padding on its left or right."""
    encoder, x = subject.encoder(), noise("x", BATCH, LENGTH, subject.site().width)
    real = 4
    for start, side in itertools.product(subject.starts(), ("left", "right")):
        keep = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        keep[1, slice(0, LENGTH - real) if side == "left" else slice(real, None)] = False
        padded = encoder(
            x, positions=subject.places(Positions.from_mask(keep).index(), start), keep=keep
        )
        alone = encoder(x[1:, keep[1]], positions=subject.sequence(start, real))
        full = encoder(x[:1], positions=subject.sequence(start))
        near(
            padded[1:, keep[1]],
            alone,
            EXACT,
            f"a row with padding on the {side}, from position {start} on",
        )
        near(
            padded[:1],
            full,
            EXACT,
            f"the row above one with padding on the {side}, from position {start} on",
        )
        # An image's padding lies between its rows: the real tokens stay where they are.
        region = torch.arange(LENGTH) % WIDE < WIDE - 1
        padded = encoder(x, positions=subject.sequence(start), keep=torch.stack((region, keep[0])))
        alone = encoder(
            x[:1, region], positions=subject.places(torch.arange(LENGTH)[region], start)
        )
        near(
            padded[:1, region],
            alone,
            EXACT,
            f"a row with padding in between, from position {start} on",
        )
    return "left, right and in between"


@law("packed documents equal separate ones")
def packing(subject: Subject) -> str:
    """Two documents in one row, positions restarted and `Mask(documents=...)`, give what they give apart."""
    encoder, x = subject.encoder(), noise("x", BATCH, LENGTH, subject.site().width)
    document = torch.tensor([0, 0, 0, 0, 1, 1, 1]).expand(BATCH, -1)
    for start in subject.starts():
        pos = subject.places(torch.tensor([0, 1, 2, 3, 0, 1, 2]), start)
        packed = encoder(x, positions=pos, mask=Mask(documents=(document, document)))
        for name, part in {"first": slice(0, 4), "second": slice(4, 7)}.items():
            alone = encoder(x[:, part], positions=subject.sequence(start, part.stop - part.start))
            near(
                packed[:, part],
                alone,
                EXACT,
                f"the {name} of two packed documents, from position {start} on",
            )
    return "two documents in a row"


@law("shift invariance is as claimed")
def shift(subject: Subject) -> str:
    """Moving all positions by the same amount changes no output where that is claimed, and some where it is not."""
    encoder, x = subject.encoder(), noise("x", BATCH, LENGTH, subject.site().width)
    claimed, worst = subject.claims("shift_invariant"), 0.0
    room = SHIFTS[-1] if subject.max_positions is None else subject.max_positions - subject.span
    here = encoder(x, positions=subject.places(torch.arange(LENGTH)))
    for by in itertools.chain(*(subject.moves(by) for by in SHIFTS if by <= room)):
        there = encoder(x, positions=subject.places(torch.arange(LENGTH), by))
        worst = max(worst, apart(here, there))
        if claimed:
            near(there, here, POSITIONS, f"output with all positions moved by {by}")
    if not claimed and worst < HEARD:
        raise BrokenError(
            f"it says shift_invariant = False, but moved positions change nothing (at most {worst:.1g}); claim True"
        )
    return (
        f"claimed, and outputs differ by {worst:.1g}"
        if claimed
        else f"not claimed: outputs differ by {worst:.1g}"
    )


@law("rotation keeps norms")
def norms(subject: Subject) -> str:
    """`rotate` leaves the length of every query and key as it is, unless the class says `keeps_norms = False`."""
    if "rotate" not in subject.encoding().hooks:
        raise SkippedError("it rotates nothing")
    if not subject.claims("keeps_norms"):
        raise SkippedError("it does not claim to: keeps_norms = False")
    for start in subject.starts():
        turned, still = (
            answers(e, subject.sequence(start))["rotate"]
            for e in (subject.encoding(), subject.nothing())
        )
        near(turned.norm(dim=-1), still.norm(dim=-1), EXACT, f"norms from position {start} on")
    return f"up to position {subject.starts()[-1] + LENGTH - 1}"


@law("order is heard")
def order(subject: Subject) -> str:
    """An encoder under an encoding without hooks follows every permutation of its tokens; under any other it does not.

    An encoding whose options leave it nothing to tell, such as Shaw's with all distances clipped to 0, is broken by
    this law, and rightly: it costs what an encoding costs, and the model stays a bag of tokens.
    """
    encoder, x = subject.encoder(), noise("x", BATCH, LENGTH, subject.site().width)
    hooks = ", ".join(sorted(subject.encoding().hooks))
    for start, (which, shuffle) in itertools.product(subject.starts(), subject.shuffles().items()):
        pos = subject.sequence(start)
        difference = apart(
            encoder(x[:, shuffle], positions=pos), encoder(x, positions=pos)[:, shuffle]
        )
        if hooks and not difference > HEARD:
            raise BrokenError(
                f"it overrides {hooks}, but the outputs follow a permutation {which} within {difference:.1g} (from "
                f"position {start} on): it is wired to nothing, or has nothing to tell with these options"
            )
        if not hooks and difference > EXACT:
            raise BrokenError(
                f"it says that it uses no hook, but a permutation changes outputs by {difference:.1g}"
            )
    return "by " + hooks if hooks else "by nothing, as it says: the encoder sees a bag of tokens"


@law("the end is announced")
def end(subject: Subject) -> str:
    """It reads its longest position and refuses the next one with a UserError that names it; without a longest position
    it reads the millionth."""
    encoder, x = subject.encoder(), noise("x", BATCH, LENGTH, subject.site().width)
    last = 1_000_000 if subject.max_positions is None else subject.max_positions - 1
    index = torch.arange(LENGTH)
    if not encoder(x, positions=subject.places(index, last + 1 - subject.span)).isfinite().all():
        raise BrokenError(f"the output at position {last} is not finite")
    if subject.max_positions is None:
        return f"no end is claimed, and position {last:,} can be read"
    beyond = subject.places(index, last + 2 - subject.span)
    refusal = complaint(partial(encoder, x, positions=beyond))
    if refusal is None:
        raise BrokenError(
            f"it has {subject.max_positions} positions, so the last is {last}, but {last + 1} passes without a word"
        )
    if not re.search(rf"\b{last + 1}\b", refusal):
        raise BrokenError(f"position {last + 1} is refused without being named: {refusal!r}")
    return f"position {last} can be read, {last + 1} is refused by its number"


_fresh_lengths = itertools.cycle(range(LENGTH + 4, NODES))


@law("instances share nothing")
def independence(subject: Subject) -> str:
    """What one instance says does not depend on which others, with other options, were built or used before."""
    # A cache that instances share by mistake is mostly keyed by length, so take two lengths that it has not seen: in
    # the first this encoding is asked before the others, in the second after them.
    earlier, later = next(_fresh_lengths), next(_fresh_lengths)
    encoding, others = (
        subject.encoding(),
        [subject.encoding(site=subject.site(heads=subject.heads + 1))],
    )
    first = answers(encoding, subject.anywhere(earlier))
    for text in variants(subject.spec):
        if complaint(partial(build, text, subject.site())) is None:
            others.append(subject.encoding(text))
    for length in (earlier, later):
        for other in others:
            answers(other, subject.reading(other).anywhere(length))
        again = answers(encoding, subject.anywhere(length))
        for hook, answer in first.items():
            near(
                again[hook],
                answer,
                EXACT,
                f"{hook} after {len(others)} instances with other options were used",
            )
    return f"{len(others)} other instances change nothing"


@law("round trips change nothing")
def round_trips(subject: Subject) -> str:
    """The canonical spec, a state dict, a deep copy, the meta device and a detour through bfloat16 (but for rounded
    parameters) give back the same encoding, bit for bit."""
    pos = subject.sequence(min(4000, subject.starts()[-1]))
    encoding = subject.encoding()
    expected = answers(encoding, pos)
    loaded = build(subject.spec, subject.site()).double()
    loaded.load_state_dict(encoding.state_dict())
    with torch.device("meta"):
        empty = build(subject.spec, subject.site()).double()
    empty.to_empty(device="cpu")
    for tensor in itertools.chain(empty.parameters(), empty.buffers()):
        tensor.detach().fill_(float("nan"))
    empty.load_state_dict(encoding.state_dict())
    if canonical(canonical(subject.spec)) != canonical(subject.spec):
        raise BrokenError(
            f"the canonical spec of {canonical(subject.spec)} is {canonical(canonical(subject.spec))}"
        )
    copies = {
        "built from its canonical spec": subject.encoding(canonical(subject.spec)),
        "loaded from its state dict": loaded,
        "copied deeply": copy.deepcopy(encoding),
        "built on the meta device and loaded": empty,
    }
    for how, other in copies.items():
        near_all(answers(other, pos), expected, f"when {how}")
    rounded = copy.deepcopy(encoding).to(torch.bfloat16).double()
    for parameter, value in zip(encoding.parameters(), rounded.parameters(), strict=True):
        parameter.detach().copy_(value)
    near_all(answers(rounded, pos), answers(encoding, pos), "after a detour through bfloat16")
    return f"{', '.join(copies)}, and after bfloat16, at position {int(pos.order[0])}"


@law("every parameter learns")
def gradients(subject: Subject) -> str:
    """In a model, each parameter of the encoding, in every layer, gets a gradient other than 0."""
    model = randomise(subject.model())
    parameters = owned(model)
    if not parameters:
        raise SkippedError("it has no parameters")
    source = Tokens(tokens("source"), subject.sequence(0, frame="source"))
    scores = model(source, Tokens(tokens("target"), subject.sequence(0, frame="target")))
    (scores * noise("direction", *scores.shape)).sum().backward()
    for name, parameter in parameters.items():
        if parameter.grad is None or not parameter.grad.abs().max() > 1e-12:
            raise BrokenError(f"{name} gets no gradient")
    return f"{len(parameters)} parameters"


@law("tokens without a place have none")
def unplaced(subject: Subject) -> str:
    """A token marked placeless gets no vector, no rotation, and nothing between it and others; they are as ever."""
    encoding, nothing, token = subject.encoding(), subject.nothing(), 2
    mark_L = torch.arange(LENGTH) == token
    others = torch.arange(LENGTH)[~mark_L]
    for start, mark in itertools.product(subject.starts(), (mark_L, mark_L.expand(BATCH, -1))):
        pos = subject.places(torch.arange(LENGTH), start)
        marked, plain = answers(encoding, replace(pos, unplaced=mark)), answers(encoding, pos)
        for hook, answer in marked.items():
            where = f"{hook} at a token without a place, from position {start} on"
            if hook in ("embed", "inject", "rotate"):
                near(answer[:, :, token], answers(nothing, pos)[hook][:, :, token], EXACT, where)
                near(
                    answer[:, :, others],
                    plain[hook][:, :, others],
                    EXACT,
                    f"{hook} beside a token without a place",
                )
            else:
                near(
                    answer[:, :, token],
                    torch.zeros_like(answer[:, :, token]),
                    EXACT,
                    f"{where}, as query",
                )
                near(
                    answer[:, :, :, token],
                    torch.zeros_like(answer[:, :, :, token]),
                    EXACT,
                    f"{where}, as key",
                )
                rest, expected = (
                    answer[:, :, others][:, :, :, others],
                    plain[hook][:, :, others][:, :, :, others],
                )
                near(rest, expected, EXACT, f"{hook} beside a token without a place")
    return "marked for all rows and row by row"


@law("samples do not mix")
def batch(subject: Subject) -> str:
    """Reversing a batch reverses the outputs and does nothing else, with shared positions and with each row's own."""
    encoder = subject.encoder()
    for start, samples in itertools.product(subject.starts(), (BATCH, LENGTH, subject.heads)):
        x = noise("x", samples, LENGTH, subject.site().width)
        shared = subject.sequence(start)
        ordered, turned = encoder(x, positions=shared), encoder(x.flip(0), positions=shared)
        near(
            turned.flip(0),
            ordered,
            EXACT,
            f"a reversed batch of {samples}, from position {start} on",
        )
        if subject.labels:
            continue
        index_BL = torch.arange(LENGTH) + 3 * torch.arange(samples).unsqueeze(-1)
        ordered = encoder(x, positions=subject.wrapped(index_BL, start))
        turned = encoder(x.flip(0), positions=subject.wrapped(index_BL.flip(0), start))
        near(
            turned.flip(0),
            ordered,
            EXACT,
            f"a reversed batch of {samples} whose rows have positions of their own",
        )
        alone = encoder(x[1:2], positions=subject.wrapped(index_BL[1], start))
        near(
            ordered[1:2],
            alone,
            EXACT,
            f"a row with positions of its own in a batch of {samples}, and alone",
        )
    return f"batches of {BATCH}, {LENGTH} and {subject.heads}"


@law("a grid of one row is a line")
def line(subject: Subject) -> str:
    """An encoding for one axis and for two gives an image of 1 x n what it gives a sequence of n."""
    if not {1, 2} <= set(subject.encoding().axes):
        raise SkippedError("it does not take both one axis and two")
    encoder, x = subject.encoder(), noise("x", BATCH, LENGTH, subject.site().width)
    grid = encoder(x, positions=Positions.grid(1, LENGTH))
    near(
        grid,
        encoder(x, positions=Positions.sequence(LENGTH)),
        EXACT,
        f"output of a grid of 1 x {LENGTH}",
    )
    return f"1 x {LENGTH}"


@law("the rest starts out the same")
def initial_values(subject: Subject) -> str:
    """At a seed, every parameter that is not the encoding's is bit for bit what it is without an encoding."""
    plain, own = (
        subject.model(WITHOUT),
        subject.model(),
    )  # in this order: its constructor may change torch's defaults
    encodings = owned(own)
    rest = {name: value for name, value in own.named_parameters() if name not in encodings}
    expected = dict(plain.named_parameters())
    if rest.keys() != expected.keys():
        raise BrokenError(
            f"the model has other parameters: {', '.join(sorted(rest.keys() ^ expected.keys()))}"
        )
    for name, value in expected.items():
        if not torch.equal(rest[name], value):
            raise BrokenError(f"{name} starts with other values than without the encoding")
    return f"{len(rest)} parameters"
