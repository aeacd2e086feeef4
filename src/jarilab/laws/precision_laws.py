"""Laws about hooks in other precisions and modes, and about their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding
from jarilab.laws.checks import EXACT, NOTICEABLE, BrokenError, check_close, max_difference
from jarilab.laws.fixtures import noise, trainable_parameters
from jarilab.laws.hooks import HookInputs, call_hooks, hook_outputs, prepare
from jarilab.laws.independence import check_some
from jarilab.laws.law_subject import Subject
from jarilab.positions.coordinates import Positions

FAR = (5000, 1_000_000)
HALF = torch.bfloat16
STEPS = (1e-3, 1e-4, 1e-5, 1e-6)
SLOPE = 1e-2
# In float32 an angle at 5,000 is off by 3e-4 and at 1,000,000 by 0.06; in bfloat16 it is any angle.
ALLOWED = {torch.float32: 2e-3, torch.float16: 1e-2, HALF: 5e-2}
FARTHEST = 0.3
POWER_OF_TWO = 16
"""The number of heads among OTHER_SITES with which fewer heads are compared."""


def precisions(subject: Subject) -> str:
    """Every hook agrees across float64, float32, float16, bfloat16 and autocast, also at far positions.

    So do its gradients in float32, other options in float32, and results while `torch.compile` traces or torch has
    another default dtype.
    """
    for start in _starts(subject):
        pos = _spread(subject, start)
        for dtype in ALLOWED:
            encoding = subject.encoding().to(dtype)
            inputs = HookInputs.random(encoding.site, pos).with_weights().to(dtype)
            precise = _as_precise(subject, encoding)
            expected = call_hooks(precise, inputs.to(torch.float64))
            allowed = ALLOWED[dtype] if start <= FAR[0] else FARTHEST
            where = f"in {_short(dtype)}, from position {start:,} on"
            _check_near(call_hooks(encoding, inputs), expected, allowed, where, dtype)
            if dtype is torch.float32:
                _check_autocast(encoding, inputs, expected, start)
    _check_gradients(subject)
    _check_options(subject)
    _check_compiling(subject)
    _check_defaults(subject)
    return "float32, float16, bfloat16 and autocast, at " + ", ".join(
        f"{x:,}" for x in _starts(subject)
    )


def _starts(subject: Subject) -> list[int]:
    """A near start, and the farthest ones."""
    end = subject.max_positions
    last = FAR[1] if end is None else end - subject.span
    starts = [start for start in (subject.starts()[1], *FAR) if start <= last]
    if subject.labels:
        return starts[:1]
    return sorted({*starts, *([] if end is None else [last])})


def _spread(subject: Subject, start: int) -> Positions:
    """Positions near to each other and far apart."""
    if subject.labels:
        return subject.sequence(start)
    return subject.at(subject.scattered(start))


def _as_precise(subject: Subject, encoding: Encoding) -> Encoding:
    """The same encoding in float64, with the same parameters."""
    precise = subject.encoding()
    with torch.no_grad():
        for parameter, value in zip(precise.parameters(), encoding.parameters(), strict=True):
            parameter.copy_(value)
    return precise


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_near(
    results: dict[str, Tensor],
    expected: dict[str, Tensor],
    tolerance: float,
    where: str,
    dtype: torch.dtype | None = None,
) -> None:
    for hook, answer in expected.items():
        check_close(results[hook], answer, tolerance, f"{hook} {where}")
        # A bias depends on positions alone, so it is float32 whatever the model's dtype.
        if dtype is not None and hook != "bias" and results[hook].dtype is not dtype:
            raise BrokenError(f"{hook} {where}: is {_short(results[hook].dtype)}")


def _check_autocast(
    encoding: Encoding, inputs: HookInputs, expected: dict[str, Tensor], start: int
) -> None:
    """Under autocast x stays in float32, and the linear maps before the heads return bfloat16."""
    tolerance = ALLOWED[HALF] if start <= FAR[0] else FARTHEST
    with torch.autocast("cpu", HALF):
        results = call_hooks(encoding, inputs.to(torch.float32, HALF))
    _check_near(results, expected, tolerance, f"under autocast, from position {start:,} on")
    allowed = ALLOWED[torch.float32] if start <= FAR[0] else FARTHEST
    where = f"in float32 after autocast, from position {start:,} on"
    _check_near(call_hooks(encoding, inputs), expected, allowed, where, torch.float32)


def _check_options(subject: Subject) -> None:
    """Compare float32 with float64 for the encoding with other options."""
    for other in subject.with_other_options():
        start = other.starts()[-1]
        encoding = other.encoding().float()
        inputs = HookInputs.random(encoding.site, _spread(other, start)).with_weights()
        inputs = inputs.to(torch.float32)
        expected = call_hooks(_as_precise(other, encoding), inputs.to(torch.float64))
        where = f"of {other.spec} in float32, from position {start:,} on"
        _check_near(call_hooks(encoding, inputs), expected, ALLOWED[torch.float32], where)


def _check_compiling(subject: Subject) -> None:
    """Check that an encoding computes the same where it is told that it is compiled."""
    encoding = subject.encoding()
    inputs = HookInputs.random(encoding.site, _spread(subject, subject.starts()[-1]))
    expected = call_hooks(subject.encoding(), inputs)
    with patch.object(torch.compiler, "is_compiling", return_value=True):
        results = call_hooks(encoding, inputs)
    _check_near(results, expected, EXACT, "where torch.compiler.is_compiling() is true")


def _check_defaults(subject: Subject) -> None:
    """Check that an encoding computes the same where torch has another default dtype.

    In bfloat16, constants may be rounded to it, but no positions.
    """
    pos = _spread(subject, subject.starts()[-1])
    inputs = HookInputs.random(subject.site(), pos)
    expected = call_hooks(subject.encoding(), inputs)
    for default in (torch.float64, HALF):
        with default_dtype(default):
            encoding = subject.encoding().float()
            results = call_hooks(encoding, inputs.to(torch.float32))
        allowed = ALLOWED[torch.float32 if default is torch.float64 else HALF]
        where = f"in float32, where torch's default dtype is {_short(default)}"
        _check_near(results, expected, allowed, where, torch.float32)


def _check_gradients(subject: Subject) -> None:
    pos = _spread(subject, subject.starts()[0])
    encoding = subject.encoding().float()
    inputs = HookInputs.random(encoding.site, pos).with_weights()
    precise = _as_precise(subject, encoding)
    expected = gradients(precise, inputs.to(torch.float32).to(torch.float64))
    for what, gradient in gradients(encoding, inputs.to(torch.float32)).items():
        check_close(gradient, expected[what], NOTICEABLE, f"{what} in float32")


def gradients(encoding: Encoding, inputs: HookInputs) -> dict[str, Tensor]:
    """The gradient of every hook, in a direction, with respect to every vector and parameter."""
    vectors = {name: x.detach().requires_grad_() for name, x in inputs.tensors.items()}
    tensors_by_name = {**vectors, **trainable_parameters(encoding)}
    named_gradients = {}
    for hook, answer in call_hooks(
        encoding, HookInputs(inputs.q_pos, inputs.k_pos, **vectors)
    ).items():
        if not answer.requires_grad:
            slopes: tuple[Tensor, ...] = tuple(map(torch.zeros_like, tensors_by_name.values()))
        else:
            loss = (answer * _direction(hook, answer)).sum()
            tensors = list(tensors_by_name.values())
            slopes = torch.autograd.grad(
                loss, tensors, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        for name, gradient in zip(tensors_by_name, slopes, strict=True):
            named_gradients[f"gradient of {hook} with respect to {name}"] = gradient
    return named_gradients


def _direction(hook: str, answer: Tensor) -> Tensor:
    return noise(f"direction of {hook}", *answer.shape).to(answer.dtype)


def slopes(subject: Subject) -> str:
    """The gradient of every hook matches finite differences, in training, for every vector and parameter."""
    encoding = subject.encoding().train()
    inputs = HookInputs.random(encoding.site, _spread(subject, subject.starts()[0])).with_weights()
    with _seeded():
        expected = gradients(encoding, inputs)
    for label, tensor in {**inputs.tensors, **trainable_parameters(encoding)}.items():
        towards = noise(f"towards {label}", *tensor.shape)
        _check_slope(encoding, inputs, label, tensor, towards, expected)
    return f"of {len(expected)} pairs of a hook and an input"


def _check_slope(
    encoding: Encoding,
    inputs: HookInputs,
    label: str,
    moved: Tensor,
    towards: Tensor,
    expected: dict[str, Tensor],
) -> None:
    """Check whether one of several steps matches.

    A long step may cross a kink. A short one is lost in rounding if the encoding computes in float32.
    """
    best: dict[str, tuple[float, float, float]] = {}
    for step in STEPS:
        for hook, slope in _slopes(encoding, inputs, moved, step * towards).items():
            directional = float(
                (expected[f"gradient of {hook} with respect to {label}"] * towards).sum()
            )
            finite = float(slope) / (2 * step)
            error = abs(directional - finite) / max(1.0, abs(finite))
            if hook not in best or not error >= best[hook][0]:
                best[hook] = (error, directional, finite)
        if all(error <= SLOPE for error, _, _ in best.values()):
            return
    for hook, (error, directional, finite) in best.items():
        if not error <= SLOPE:
            raise BrokenError(
                f"gradient of {hook} with respect to {label}: is {directional:.4g}, and the finite difference is "
                f"{finite:.4g}"
            )


@torch.no_grad()
def _slopes(encoding: Encoding, inputs: HookInputs, moved: Tensor, by: Tensor) -> dict[str, Tensor]:
    """How much every hook changes, in its direction, when a vector or parameter moves forwards and backwards."""
    projections = []
    for step in (by, -2 * by):
        moved += step  # in place, since the encoding or the inputs hold this tensor
        with _seeded():
            results = call_hooks(encoding, inputs)
        projections.append({h: (x * _direction(h, x)).sum() for h, x in results.items()})
    moved += by
    return {hook: projections[0][hook] - projections[1][hook] for hook in projections[0]}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """torch's default dtype within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _seeded() -> Iterator[None]:
    """Fixed random numbers, for encodings that draw some in training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        yield


def heads(subject: Subject) -> str:
    """With any number and width of heads, pairs do not depend on others, float32 suffices, and no head repeats another.

    No head repeats another among fewer heads than 16 if none does among 16. Keys with fewer heads than queries
    (`n_kv_heads`) are rotated as the first heads are, or refused.
    """
    repeated: dict[int, tuple[int, int] | None] = {}
    for site in subject.other_sites():
        encoding = subject.encoding(site=site)
        name = f"with {site.n_heads} heads of width {site.d_head}"
        for start in (subject.starts()[0], subject.starts()[-1]):
            pos = subject.sequence(start)
            where = f"from position {start} on, {name}"
            if not (subject.labels or subject.claims("depends_on_length")):
                check_some(encoding, pos, where)
            inputs = HookInputs.random(site, pos)
            expected = call_hooks(encoding, inputs)
            results = call_hooks(subject.encoding(site=site).float(), inputs.to(torch.float32))
            _check_near(results, expected, ALLOWED[torch.float32], f"in float32, {where}")
            if "rotate" in expected and site.n_heads > 1:
                _check_fewer_heads(encoding, inputs, expected["rotate of keys"], where)
        repeated[site.n_heads] = _repeated_heads(encoding, subject.sequence(subject.starts()[0]))
    for n_heads, pair in repeated.items():
        if pair is not None and repeated[POWER_OF_TWO] is None and n_heads < POWER_OF_TWO:
            raise BrokenError(
                f"with {n_heads} heads, heads {pair[0]} and {pair[1]} do the same; with {POWER_OF_TWO} all differ"
            )
    return f"{min(repeated)} to {max(repeated)} heads"


def _check_fewer_heads(encoding: Encoding, inputs: HookInputs, rotated: Tensor, where: str) -> None:
    """Half as many heads of keys are rotated as with the others, or refused."""
    half = rotated.shape[1] // 2
    rotation = prepare(encoding, inputs.q_pos, inputs.k_pos).k_rotation
    try:
        fewer = encoding.rotate(inputs.k[:, :half], rotation)
    # One that rotates each head by parameters of its own cannot; the tested class may raise anything.
    except Exception:
        return
    check_close(fewer, rotated[:, :half], EXACT, f"rotate with {half} heads of keys, {where}")


def _repeated_heads(encoding: Encoding, pos: Positions) -> tuple[int, int] | None:
    """Two heads that compute the same from the same vectors, or None."""
    inputs = HookInputs.random(encoding.site, pos)
    q, k = (x[:, :1].expand_as(x) for x in (inputs.q, inputs.k))
    by_hook = call_hooks(encoding, replace(inputs, q=q, k=k))
    results = [x for hook, x in by_hook.items() if hook not in ("embed", "inject")]
    for first, second in itertools.combinations(range(encoding.site.n_heads), 2):
        if all(torch.equal(x[:, first], x[:, second]) for x in results):
            return first, second
    return None


def modes(subject: Subject) -> str:
    """Hooks agree in training, in evaluation and without gradients.

    An encoding that claims `random_in_training` must be random there, reproducible by a seed, and constant in
    evaluation.
    """
    encoding = subject.encoding()
    expected = _fresh_outputs(subject, encoding)
    _check_near(_fresh_outputs(subject, encoding), expected, EXACT, "called twice in evaluation")
    for name, without in (("no_grad", torch.no_grad), ("inference_mode", torch.inference_mode)):
        with without():
            _check_near(_fresh_outputs(subject, encoding), expected, EXACT, f"under torch.{name}")
    fresh = subject.encoding()
    with torch.inference_mode():
        _fresh_outputs(subject, fresh)
    # A table that it cached there must not stop a later training.
    gradients(fresh, HookInputs.random(fresh.site, _spread(subject, subject.starts()[0])))
    encoding.train()
    if not subject.claims("random_in_training"):
        results = _fresh_outputs(subject, encoding)
        _check_near(results, expected, EXACT, "in training, as in evaluation")
        return "training, evaluation and no_grad"
    with _seeded():
        first = _fresh_outputs(subject, encoding)
    with _seeded():
        again = _fresh_outputs(subject, encoding)
    _check_near(again, first, 0.0, "in training, at the same seed")
    others = [_fresh_outputs(subject, encoding) for _ in range(3)]
    largest = max(
        max_difference(results[hook], first[hook]) for results in others for hook in first
    )
    if largest < NOTICEABLE:
        raise BrokenError(
            "it says random_in_training = True, but training gives the same each time; claim False"
        )
    return "evaluation is constant; training is random, and reproducible by a seed"


def _fresh_outputs(subject: Subject, encoding: Encoding) -> dict[str, Tensor]:
    """The outputs at positions that nothing has used yet."""
    return hook_outputs(encoding, _spread(subject, subject.starts()[0]))
