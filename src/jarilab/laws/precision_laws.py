"""Laws of what hooks give in other precisions and modes, and of their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding
from jarilab.laws.checks import EXACT, NOTICEABLE, BrokenError, apart, near
from jarilab.laws.hooks import Question, answers, hook_outputs
from jarilab.laws.material import noise
from jarilab.laws.subject import Subject
from jarilab.positions.coordinates import Positions

FAR = (5000, 1_000_000)
HALF = torch.bfloat16
STEPS = (1e-3, 1e-4, 1e-5, 1e-6)
SLOPE = 1e-2
# In float32 an angle at 5,000 is off by 3e-4 and at 1,000,000 by 0.06; in bfloat16 it is any angle.
ALLOWED = {torch.float32: 2e-3, HALF: 5e-2}
FARTHEST = 0.3


def precisions(subject: Subject) -> str:
    """Every hook gives in float32, in bfloat16 and under autocast what it gives in float64, near, at 5,000 and at
    1,000,000; and each of its gradients in float32, too."""
    for start in _starts(subject):
        pos = _spread(subject, start)
        for dtype in ALLOWED:
            encoding = subject.encoding().to(dtype)
            asked = Question.about(encoding.site, pos).weighted().to(dtype)
            precise = _as_precise(subject, encoding)
            expected = answers(precise, asked.to(torch.float64))
            allowed = ALLOWED[dtype] if start <= FAR[0] else FARTHEST
            where = f"in {_short(dtype)}, from position {start:,} on"
            _check_near(answers(encoding, asked), expected, allowed, where, dtype)
            if dtype is torch.float32:
                _check_autocast(encoding, asked, expected, start)
    _check_gradients(subject)
    return "float32, bfloat16 and autocast, at " + ", ".join(f"{x:,}" for x in _starts(subject))


def _starts(subject: Subject) -> list[int]:
    """Near, and as far as it goes."""
    end = subject.max_positions
    last = FAR[1] if end is None else end - subject.span
    starts = [start for start in (subject.starts()[1], *FAR) if start <= last]
    if subject.labels:
        return starts[:1]
    return sorted({*starts, *([] if end is None else [last])})


def _spread(subject: Subject, start: int) -> Positions:
    """Places near to each other and far apart."""
    if subject.labels:
        return subject.sequence(start)
    return subject.at(subject.scattered(start))


def _as_precise(subject: Subject, encoding: Encoding) -> Encoding:
    """One in float64 with the parameters that this one has."""
    precise = subject.encoding()
    with torch.no_grad():
        for own, value in zip(precise.parameters(), encoding.parameters(), strict=True):
            own.copy_(value)
    return precise


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_near(
    found: dict[str, Tensor],
    expected: dict[str, Tensor],
    allowed: float,
    where: str,
    dtype: torch.dtype | None = None,
) -> None:
    for hook, answer in expected.items():
        near(found[hook], answer, allowed, f"{hook} {where}")
        # A bias is made of places alone: float32 whatever the model is in.
        if dtype is not None and hook != "bias" and found[hook].dtype is not dtype:
            raise BrokenError(f"{hook} {where}: comes out in {_short(found[hook].dtype)}")


def _check_autocast(
    encoding: Encoding, asked: Question, expected: dict[str, Tensor], start: int
) -> None:
    """Under autocast x stays in float32, and the linear maps before the heads give bfloat16."""
    allowed = ALLOWED[HALF] if start <= FAR[0] else FARTHEST
    with torch.autocast("cpu", HALF):
        found = answers(encoding, asked.to(torch.float32, HALF))
    _check_near(found, expected, allowed, f"under autocast, from position {start:,} on")


def _check_gradients(subject: Subject) -> None:
    pos = _spread(subject, subject.starts()[0])
    encoding = subject.encoding().float()
    asked = Question.about(encoding.site, pos).weighted()
    precise = _as_precise(subject, encoding)
    expected = gradients(precise, asked.to(torch.float32).to(torch.float64))
    for what, gradient in gradients(encoding, asked.to(torch.float32)).items():
        near(gradient, expected[what], NOTICEABLE, f"{what} in float32")


def gradients(encoding: Encoding, asked: Question) -> dict[str, Tensor]:
    """The gradient of every hook, in a direction, with respect to every vector and parameter."""
    given = {name: x.detach().requires_grad_() for name, x in asked.tensors.items()}
    parameters = {f"parameter {name}": value for name, value in encoding.named_parameters()}
    everything = {**given, **parameters}
    found = {}
    for hook, answer in answers(encoding, _with(asked, given)).items():
        if not answer.requires_grad:
            slopes: tuple[Tensor, ...] = tuple(map(torch.zeros_like, everything.values()))
        else:
            loss = (answer * _direction(hook, answer)).sum()
            tensors = list(everything.values())
            slopes = torch.autograd.grad(
                loss, tensors, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        for name, gradient in zip(everything, slopes, strict=True):
            found[f"gradient of {hook} with respect to {name}"] = gradient
    return found


def _with(asked: Question, tensors: dict[str, Tensor]) -> Question:
    return Question(asked.q_pos, asked.k_pos, **tensors)


def _direction(hook: str, answer: Tensor) -> Tensor:
    return noise(f"direction of {hook}", *answer.shape).to(answer.dtype)


def slopes(subject: Subject) -> str:
    """The gradient of every hook, with respect to every vector and parameter, in training, says how fast it changes."""
    encoding = subject.encoding().train()
    asked = Question.about(encoding.site, _spread(subject, subject.starts()[0])).weighted()
    with _seeded():
        expected = gradients(encoding, asked)
    parameters = {f"parameter {name}": value for name, value in encoding.named_parameters()}
    for label, tensor in {**asked.tensors, **parameters}.items():
        towards = noise(f"towards {label}", *tensor.shape)
        _check_slope(encoding, asked, label, tensor, towards, expected)
    return f"of {len(expected)} pairs of a hook and what it hears"


def _check_slope(
    encoding: Encoding,
    asked: Question,
    label: str,
    moved: Tensor,
    towards: Tensor,
    expected: dict[str, Tensor],
) -> None:
    """Whether one of several steps gives the slope: a long one may step over a kink, a short one is lost in rounding
    where the encoding counts in float32."""
    nearest: dict[str, tuple[float, float, float]] = {}
    for step in STEPS:
        for hook, slope in _slopes(encoding, asked, moved, step * towards).items():
            along = float((expected[f"gradient of {hook} with respect to {label}"] * towards).sum())
            found = float(slope) / (2 * step)
            off = abs(along - found) / max(1.0, abs(found))
            if hook not in nearest or not off >= nearest[hook][0]:
                nearest[hook] = (off, along, found)
        if all(off <= SLOPE for off, _, _ in nearest.values()):
            return
    for hook, (off, along, found) in nearest.items():
        if not off <= SLOPE:
            raise BrokenError(
                f"gradient of {hook} with respect to {label}: says {along:.4g}, and the slope is {found:.4g}"
            )


@torch.no_grad()
def _slopes(encoding: Encoding, asked: Question, moved: Tensor, by: Tensor) -> dict[str, Tensor]:
    """By how much every hook changes, in its direction, when a vector or parameter is moved there and back."""
    heights = []
    for step in (by, -2 * by):
        moved += step
        with _seeded():
            found = answers(encoding, asked)
        heights.append({h: (x * _direction(h, x)).sum() for h, x in found.items()})
    moved += by
    return {hook: heights[0][hook] - heights[1][hook] for hook in heights[0]}


@contextmanager
def _seeded() -> Iterator[None]:
    """The same random numbers each time, for encodings that draw some in training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        yield


def modes(subject: Subject) -> str:
    """Hooks give in training, in evaluation and without gradients the same; what claims to be random in training is
    that, is the same for a seed, and keeps still in evaluation."""
    encoding = subject.encoding()
    expected = _asked(subject, encoding)
    _check_near(_asked(subject, encoding), expected, EXACT, "asked twice in evaluation")
    for name, without in (("no_grad", torch.no_grad), ("inference_mode", torch.inference_mode)):
        with without():
            _check_near(_asked(subject, encoding), expected, EXACT, f"under torch.{name}")
    encoding.train()
    if not subject.claims("random_in_training"):
        found = _asked(subject, encoding)
        _check_near(found, expected, EXACT, "in training, as in evaluation")
        return "training, evaluation and no_grad"
    with _seeded():
        first = _asked(subject, encoding)
    with _seeded():
        again = _asked(subject, encoding)
    _check_near(again, first, 0.0, "in training, at the same seed")
    other = [_asked(subject, encoding) for _ in range(3)]
    worst = max(apart(one[hook], first[hook]) for one in other for hook in first)
    if worst < NOTICEABLE:
        raise BrokenError(
            "it says random_in_training = True, but in training it gives the same each time; claim False"
        )
    return "evaluation keeps still; training differs, and is the same at a seed"


def _asked(subject: Subject, encoding: Encoding) -> dict[str, Tensor]:
    """About places that nothing has touched yet."""
    return hook_outputs(encoding, _spread(subject, subject.starts()[0]))
