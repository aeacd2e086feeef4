"""Laws of models under an encoding: caches, padding, packing and batches change nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from jarilab.core.shapes import Tensor
from jarilab.encodings.compose import NO_ENCODING
from jarilab.laws.checks import EXACT, BrokenError, SkippedError, check_close
from jarilab.laws.fixtures import BATCH, LENGTH, encoding_parameters, noise, randomise, tokens
from jarilab.laws.hooks import HookInputs, call_hooks
from jarilab.laws.independence import ignores_length
from jarilab.laws.instance_laws import fresh_modules
from jarilab.laws.law_subject import WIDE, Subject
from jarilab.laws.trial_stacks import Stack, stacks
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.positions.coordinates import Positions, Tokens

SMALL = 1e-12
MANY = 37
"""Rows of a batch, more than elsewhere."""


def steps(subject: Subject) -> str:
    """A decoder gives equal scores for the whole target and for pieces of it with a cache, at any positions."""
    model, differences, left_out = randomise(subject.model()), [], []
    model.eval()
    with torch.no_grad():
        for where, pos in _places_to_read(subject):
            if not ignores_length(subject, pos):
                left_out.append(where)
                continue
            differences.append(_pieces_apart(subject, model, pos, where))
    if not differences:
        raise SkippedError("its results depend on the length everywhere, as claimed")
    detail = f"largest difference {max(differences):.1g}, reading 1, 2, 1 and 3 tokens at a time"
    if left_out:
        detail += f"; not {'; '.join(left_out)}, where the length matters, as claimed"
    return detail


def _places_to_read(subject: Subject) -> Iterator[tuple[str, Positions]]:
    for start in subject.starts():
        yield f"from position {start} on", subject.sequence(start, frame="target")
    last = subject.starts()[-1]
    for name, pos in subject.arrangements(last).items():
        yield f"at {name} positions from {last} on", replace(pos, frame="target")


def _pieces_apart(subject: Subject, model: EncoderDecoder, pos: Positions, where: str) -> float:
    """The difference between the scores of a target read in pieces and at once."""
    target_BQ = tokens("target")
    # The source starts at 0, or near the target if distances are limited.
    nearest = 0 if subject.max_distance is None else int(pos.coordinates.min())
    source = Tokens(tokens("source")[:, :5], subject.sequence(nearest, 5, "source"))
    memory = model.start(source)
    expected = model.step(memory, target_BQ, pos, None)
    cache, pieces = model.new_cache(), []
    for first, last in itertools.pairwise((0, 1, 3, 4, LENGTH)):
        ids_BL, piece = target_BQ[:, first:last], pos.slice(first, last)
        pieces.append(model.step(memory, ids_BL, piece, cache))
    what = f"scores of 1, 2, 1 and 3 tokens at a time, {where}"
    return check_close(torch.cat(pieces, 1), expected, EXACT, what)


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
    """Pad the second of two rows on one side."""
    real, all_positions = 4, subject.sequence(start)
    keep_BL = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    if side == "left":
        keep_BL[1, :-real] = False
    else:
        keep_BL[1, real:] = False
    index_BL = Positions.from_mask(keep_BL).index()
    padded = stack(x_BLD, subject.places(index_BL, start), keep_BL)
    real_L = keep_BL[1]
    positions = subject.sequence(start, real)
    alone = stack(x_BLD[1:, real_L], positions)
    where = f"padding on the {side}, from position {start} on, in {stack.name}"
    padded_row = padded[1:, real_L]
    check_close(padded_row, alone, EXACT, f"a row with {where}")
    first_row = stack(x_BLD[:1], all_positions)
    check_close(padded[:1], first_row, EXACT, f"the row above one with {where}")


def _check_between(subject: Subject, stack: Stack, x_BLD: Tensor, start: int) -> None:
    """Pad an image between its rows; the real tokens keep their positions."""
    index_L = torch.arange(LENGTH)
    region_L = index_L % WIDE < WIDE - 1
    keep_BL = torch.stack((region_L, torch.ones_like(region_L)))
    padded = stack(x_BLD, subject.sequence(start), keep_BL)
    places = subject.places(index_L[region_L], start)
    alone = stack(x_BLD[:1, region_L], places)
    what = f"a row with padding in between, from position {start} on, in {stack.name}"
    check_close(padded[:1, region_L], alone, EXACT, what)


def packing(subject: Subject) -> str:
    """Two documents in one row, with restarted positions and a document mask, give what they give alone."""
    x_BLD, count = subject.encoder_input(), 0
    index_L = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    document_L = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    document_BL = document_L.expand(BATCH, -1)
    parts = {"first": slice(0, 4), "second": slice(4, 7)}
    for stack, start in itertools.product(stacks(subject), subject.starts()):
        pos = subject.places(index_L, start)
        if not ignores_length(subject, pos):
            continue
        count += 1
        packed = stack.packed(x_BLD, pos, document_BL)
        for name, part in parts.items():
            positions = subject.sequence(start, part.stop - part.start)
            alone = stack(x_BLD[:, part], positions)
            what = f"the {name} of two packed documents, from position {start} on, in {stack.name}"
            check_close(packed[:, part], alone, EXACT, what)
    if not count:
        raise SkippedError("its results depend on the length everywhere, as claimed")
    return f"two documents in a row, in {_named(subject)}"


def batch(subject: Subject) -> str:
    """Reversing a batch only reverses the outputs, with shared positions and with each row's own."""
    sizes = (BATCH, LENGTH, subject.n_heads, MANY)
    everything = itertools.product(stacks(subject), subject.starts(), sizes)
    for stack, start, samples in everything:
        x_BLD = noise("x", samples, LENGTH, subject.site().d_model)
        shared = subject.sequence(start)
        ordered = stack(x_BLD, shared)
        turned = stack(x_BLD.flip(0), shared)
        what = f"a reversed batch of {samples}, from position {start} on, in {stack.name}"
        check_close(turned.flip(0), ordered, EXACT, what)
        if not subject.labels:
            _check_own_positions(subject, stack, x_BLD, start)
    return f"batches of {BATCH}, {LENGTH}, {subject.n_heads} and {MANY}, in {_named(subject)}"


def _check_own_positions(subject: Subject, stack: Stack, x_BLD: Tensor, start: int) -> None:
    """Each row of the batch has its own positions, and its own distances between them."""
    samples = len(x_BLD)
    number_B1 = torch.arange(samples).unsqueeze(-1)
    steps = 1 if subject.max_distance is not None else 3
    index_BL = (1 + number_B1 % steps) * torch.arange(LENGTH) + 3 * number_B1
    ordered = stack(x_BLD, subject.wrapped(index_BL, start))
    backwards = subject.wrapped(index_BL.flip(0), start)
    turned = stack(x_BLD.flip(0), backwards)
    what = f"a reversed batch of {samples} whose rows have their own positions, in {stack.name}"
    check_close(turned.flip(0), ordered, EXACT, what)
    second = subject.wrapped(index_BL[1], start)
    alone = stack(x_BLD[1:2], second)
    what = f"a row with its own positions in a batch of {samples}, and alone, in {stack.name}"
    check_close(ordered[1:2], alone, EXACT, what)


def gradients(subject: Subject) -> str:
    """In a model, each parameter of the encoding, in every layer, has a gradient other than 0."""
    model = randomise(subject.model())
    every = encoding_parameters(model)
    parameters = {name: value for name, value in every.items() if value.requires_grad}
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
            raise BrokenError(
                f"{name} gets no gradient, so no training changes it; use it in a hook, or remove it"
            )
    return f"{len(parameters)} parameters"


def _moves_all_alike(subject: Subject, name: str) -> bool:
    """Whether a parameter moves all scores of a query equally, as the last bias of a network does.

    The softmax removes such a change, so the gradient is rightly 0. So is that of what is added to the input, in a
    cross-attention, which has none of its own.
    """
    encoding = subject.encoding()
    parameters = dict(encoding.named_parameters())
    matches = [own_name for own_name in parameters if name.endswith(f".{own_name}")]
    if not matches:
        return False
    parameter = parameters[max(matches, key=len)]
    results = call_hooks(encoding, HookInputs.random(encoding.site, subject.sequence(0)))
    if not _slope(results, parameter) > SMALL:
        return False
    if ".cross_encoding." in name:
        results = {hook: x for hook, x in results.items() if hook not in ("embed", "inject")}
    centred = {
        hook: x - x.mean(-1, keepdim=True) if hook in ("bias", "terms") else x
        for hook, x in results.items()
    }
    return _slope(centred, parameter) <= SMALL


def _slope(results: dict[str, Tensor], parameter: nn.Parameter) -> float:
    """The largest gradient of a parameter, of the results in a direction."""
    total = torch.zeros((), dtype=torch.float64)
    for hook, answer in results.items():
        total = total + (answer * noise(f"direction of {hook}", *answer.shape)).sum()
    if not total.requires_grad:
        return 0.0
    (slope,) = torch.autograd.grad(
        total, parameter, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return float(slope.abs().max())


def initial_values(subject: Subject) -> str:
    """At a seed, all other parameters are those without an encoding, and the encoding's own are reproducible.

    Both hold bit for bit, whatever was drawn before.
    """
    default = torch.get_default_dtype()
    # The plain model first: the encoding's constructor may change torch's defaults.
    plain = subject.model(NO_ENCODING)
    encoded = subject.model()
    if torch.get_default_dtype() is not default:
        raise BrokenError(
            f"building it sets torch's default dtype to {torch.get_default_dtype()}, for all that is built later"
        )
    encodings = encoding_parameters(encoded)
    rest = {name: value for name, value in encoded.named_parameters() if name not in encodings}
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
    """Compare with a second model of the same seed, built after other numbers were drawn."""
    torch.manual_seed(1)
    with fresh_modules(subject.spec):
        again = encoding_parameters(subject.model())
    for name, value in expected.items():
        if not value.isfinite().all():
            raise BrokenError(f"{name} does not start with finite numbers")
        if not torch.equal(again[name], value):
            raise BrokenError(
                f"{name} starts with other values in a second model of the same seed: draw from `generator` alone, "
                "and fill all of it"
            )
