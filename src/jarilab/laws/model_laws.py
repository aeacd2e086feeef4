"""Laws of models under an encoding: what caches, padding, packing and batches must not change."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from jarilab.core.shapes import Tensor
from jarilab.encodings.compose import NO_ENCODING
from jarilab.laws.beside import steady
from jarilab.laws.checks import EXACT, BrokenError, SkippedError, near
from jarilab.laws.hooks import Question, answers
from jarilab.laws.instance_laws import afresh
from jarilab.laws.material import BATCH, LENGTH, noise, owned, randomise, tokens
from jarilab.laws.stacks import Stack, stacks
from jarilab.laws.subject import WIDE, Subject
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.positions.coordinates import Positions, Tokens

SMALL = 1e-12


def steps(subject: Subject) -> str:
    """A decoder gives the same scores whether it reads the target at once or in pieces, with a cache, wherever its
    tokens stand."""
    model, differences, left_out = randomise(subject.model()), [], []
    model.eval()
    with torch.no_grad():
        for where, pos in _places_to_read(subject):
            if not steady(subject, pos):
                left_out.append(where)
                continue
            differences.append(_pieces_apart(subject, model, pos, where))
    if not differences:
        raise SkippedError("what it does depends on the length everywhere, as it claims")
    said = f"largest difference {max(differences):.1g}, reading 1, 2, 1 and 3 tokens at a time"
    if left_out:
        said += f"; not {'; '.join(left_out)}, where the length decides, as it claims"
    return said


def _places_to_read(subject: Subject) -> Iterator[tuple[str, Positions]]:
    for start in subject.starts():
        yield f"from position {start} on", subject.sequence(start, frame="target")
    last = subject.starts()[-1]
    for name, pos in subject.arrangements(last).items():
        yield f"at {name} places from {last} on", replace(pos, frame="target")


def _pieces_apart(subject: Subject, model: EncoderDecoder, pos: Positions, where: str) -> float:
    """How far the scores of a target read in pieces are from those of one read at once."""
    target_BQ = tokens("target")
    # As far away as it can compare the target with.
    nearest = 0 if subject.max_distance is None else int(pos.coordinates.min())
    source = Tokens(tokens("source")[:, :5], subject.sequence(nearest, 5, "source"))
    memory = model.start(source)
    expected = model.step(memory, target_BQ, pos, None)
    cache, pieces = model.new_cache(), []
    for first, last in itertools.pairwise((0, 1, 3, 4, LENGTH)):
        ids_BL, piece = target_BQ[:, first:last], pos.slice(first, last)
        pieces.append(model.step(memory, ids_BL, piece, cache))
    what = f"scores of 1, 2, 1 and 3 tokens at a time, {where}"
    return near(torch.cat(pieces, 1), expected, EXACT, what)


def padding(subject: Subject) -> str:
    """A sequence gives the same output alone and with padding on its left or right."""
    x_BLD = subject.encoder_input()
    for stack, start in itertools.product(stacks(subject), subject.starts()):
        for side in ("left", "right"):
            _check_beside(subject, stack, x_BLD, start, side)
        _check_between(subject, stack, x_BLD, start)
    return f"left, right and in between, in {_named(subject)}"


def _named(subject: Subject) -> str:
    return "a causal stack" if subject.causal_only else "an encoder and a causal stack"


def _check_beside(subject: Subject, stack: Stack, x_BLD: Tensor, start: int, side: str) -> None:
    """The second of two rows is padded on a side."""
    real, full = 4, subject.sequence(start)
    keep_BL = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    if side == "left":
        keep_BL[1, :-real] = False
    else:
        keep_BL[1, real:] = False
    index_BL = Positions.from_mask(keep_BL).index()
    padded = stack(x_BLD, subject.places(index_BL, start), keep_BL)
    real_L = keep_BL[1]
    own = subject.sequence(start, real)
    alone = stack(x_BLD[1:, real_L], own)
    where = f"padding on the {side}, from position {start} on, in {stack.name}"
    padded_row = padded[1:, real_L]
    near(padded_row, alone, EXACT, f"a row with {where}")
    above = stack(x_BLD[:1], full)
    near(padded[:1], above, EXACT, f"the row above one with {where}")


def _check_between(subject: Subject, stack: Stack, x_BLD: Tensor, start: int) -> None:
    """An image's padding lies between its rows: the real tokens stay where they are."""
    index_L = torch.arange(LENGTH)
    region_L = index_L % WIDE < WIDE - 1
    keep_BL = torch.stack((region_L, torch.ones_like(region_L)))
    padded = stack(x_BLD, subject.sequence(start), keep_BL)
    places = subject.places(index_L[region_L], start)
    alone = stack(x_BLD[:1, region_L], places)
    what = f"a row with padding in between, from position {start} on, in {stack.name}"
    near(padded[:1, region_L], alone, EXACT, what)


def packing(subject: Subject) -> str:
    """Two documents in one row, positions restarted and `Mask(documents=...)`, give what they give apart."""
    x_BLD, tried = subject.encoder_input(), 0
    index_L = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    document_L = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    document_BL = document_L.expand(BATCH, -1)
    parts = {"first": slice(0, 4), "second": slice(4, 7)}
    for stack, start in itertools.product(stacks(subject), subject.starts()):
        pos = subject.places(index_L, start)
        if not steady(subject, pos):
            continue
        tried += 1
        packed = stack.packed(x_BLD, pos, document_BL)
        for name, part in parts.items():
            own = subject.sequence(start, part.stop - part.start)
            alone = stack(x_BLD[:, part], own)
            what = f"the {name} of two packed documents, from position {start} on, in {stack.name}"
            near(packed[:, part], alone, EXACT, what)
    if not tried:
        raise SkippedError("what it does depends on the length everywhere, as it claims")
    return f"two documents in a row, in {_named(subject)}"


def batch(subject: Subject) -> str:
    """Reversing a batch reverses the outputs and does nothing else, with shared positions and with each row's own."""
    sizes = (BATCH, LENGTH, subject.n_heads)
    everything = itertools.product(stacks(subject), subject.starts(), sizes)
    for stack, start, samples in everything:
        x_BLD = noise("x", samples, LENGTH, subject.site().d_model)
        shared = subject.sequence(start)
        ordered = stack(x_BLD, shared)
        turned = stack(x_BLD.flip(0), shared)
        what = f"a reversed batch of {samples}, from position {start} on, in {stack.name}"
        near(turned.flip(0), ordered, EXACT, what)
        if not subject.labels:
            _check_own_positions(subject, stack, x_BLD, start)
    return f"batches of {BATCH}, {LENGTH} and {subject.n_heads}, in {_named(subject)}"


def _check_own_positions(subject: Subject, stack: Stack, x_BLD: Tensor, start: int) -> None:
    """Each row of the batch has positions of its own."""
    samples = len(x_BLD)
    offset_B1 = 3 * torch.arange(samples).unsqueeze(-1)
    index_BL = torch.arange(LENGTH) + offset_B1
    ordered = stack(x_BLD, subject.wrapped(index_BL, start))
    backwards = subject.wrapped(index_BL.flip(0), start)
    turned = stack(x_BLD.flip(0), backwards)
    what = f"a reversed batch of {samples} whose rows have positions of their own, in {stack.name}"
    near(turned.flip(0), ordered, EXACT, what)
    second = subject.wrapped(index_BL[1], start)
    alone = stack(x_BLD[1:2], second)
    what = f"a row with positions of its own in a batch of {samples}, and alone, in {stack.name}"
    near(ordered[1:2], alone, EXACT, what)


def gradients(subject: Subject) -> str:
    """In a model, each parameter of the encoding, in every layer, gets a gradient other than 0."""
    model = randomise(subject.model())
    parameters = owned(model)
    if not parameters:
        raise SkippedError("it has no parameters")
    source_pos = subject.sequence(0, frame="source")
    target_pos = subject.sequence(0, frame="target")
    source, target = Tokens(tokens("source"), source_pos), Tokens(tokens("target"), target_pos)
    scores_BQV = model(source, target)
    direction_BQV = noise("direction", *scores_BQV.shape)
    (scores_BQV * direction_BQV).sum().backward()
    for name, parameter in parameters.items():
        gradient = parameter.grad
        learns = gradient is not None and bool(gradient.abs().max() > SMALL)
        if not learns and not _moves_all_alike(subject, name):
            raise BrokenError(f"{name} gets no gradient")
    return f"{len(parameters)} parameters"


def _moves_all_alike(subject: Subject, name: str) -> bool:
    """Whether a parameter moves all scores of a query by the same, as the last bias of a network does: it is heard, and
    the softmax removes it."""
    encoding = subject.encoding()
    moving = [own for own in dict(encoding.named_parameters()) if name.endswith(f".{own}")]
    if not moving:
        return False
    parameter = dict(encoding.named_parameters())[max(moving, key=len)]
    asked = Question.about(encoding.site, subject.sequence(0))
    slopes = []
    for centred in (False, True):
        total = torch.zeros((), dtype=torch.float64)
        for hook, answer in answers(encoding, asked).items():
            direction = noise(f"direction of {hook}", *answer.shape)
            if centred and hook in ("bias", "terms"):
                direction = direction - direction.mean(-1, keepdim=True)
            total = total + (answer * direction).sum()
        if not total.requires_grad:
            return False
        (slope,) = torch.autograd.grad(total, parameter, allow_unused=True, materialize_grads=True)
        slopes.append(float(slope.abs().max()))
    return slopes[0] > SMALL >= slopes[1]


def initial_values(subject: Subject) -> str:
    """At a seed, every parameter that is not the encoding's is bit for bit what it is without an encoding, and the
    encoding's own are the same each time, whatever was drawn before."""
    default = torch.get_default_dtype()
    # In this order: its constructor may change torch's defaults.
    plain = subject.model(NO_ENCODING)
    own = subject.model()
    if torch.get_default_dtype() is not default:
        raise BrokenError(
            f"building it sets torch's default dtype to {torch.get_default_dtype()}, for all that is built later"
        )
    encodings = owned(own)
    rest = {name: value for name, value in own.named_parameters() if name not in encodings}
    expected = dict(plain.named_parameters())
    other = sorted(rest.keys() ^ expected.keys())
    if other:
        raise BrokenError(f"the model has other parameters: {', '.join(other)}")
    for name, value in expected.items():
        if not torch.equal(rest[name], value):
            raise BrokenError(f"{name} starts with other values than without the encoding")
    _check_own_values(subject, encodings)
    return f"{len(rest)} parameters, and the encoding's {len(encodings)} at a seed"


def _check_own_values(subject: Subject, expected: dict[str, nn.Parameter]) -> None:
    """Those of another model of that seed, built after other numbers were drawn."""
    torch.manual_seed(1)
    with afresh(subject.spec):
        again = owned(subject.model())
    for name, value in expected.items():
        if not value.isfinite().all():
            raise BrokenError(f"{name} does not start with finite numbers")
        if not torch.equal(again[name], value):
            raise BrokenError(
                f"{name} starts with other values in a second model of the same seed: draw from `generator` alone, "
                "and fill all of it"
            )
