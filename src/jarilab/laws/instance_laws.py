"""Laws of encodings as objects: they share nothing, and survive every way to copy them."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding, registry
from jarilab.encodings.compose import build, canonical, files_of, split_sum
from jarilab.laws.checks import EXACT, BrokenError, complaint, near_all
from jarilab.laws.hooks import Question, answers, hook_outputs, prepare
from jarilab.laws.material import LENGTH, variants
from jarilab.laws.subject import NODES, Subject
from jarilab.positions.coordinates import Positions

_fresh_lengths = itertools.cycle(range(LENGTH + 4, NODES))


TIMES = 20  # what wears out does so by then


def repeats(subject: Subject) -> str:
    """The same question gets the same answer, whatever was asked before and in between; what was prepared from places
    can be used after others were, and twice; and neither vectors, places nor parameters are changed by it."""
    encoding = subject.encoding()
    questions = [Question.about(encoding.site, pos) for pos in _asked_about(subject)]
    _check_unchanged(encoding, questions)
    # Of each, first from an instance that was asked nothing else.
    expected = [_kept(answers(subject.encoding(), asked)) for asked in questions]
    hook_outputs(encoding, subject.anywhere(LENGTH + 5))
    prepared = [prepare(encoding, asked.q_pos, asked.k_pos) for asked in questions]
    for time in ("first", "second"):
        for asked, ready, answer in zip(questions, prepared, expected, strict=True):
            what = f"used for the {time} time, prepared before other questions were asked"
            near_all(answers(encoding, asked, ready), answer, what, EXACT)
        hook_outputs(encoding, subject.anywhere(LENGTH + 2))
    for asked, answer in zip(questions * TIMES, expected * TIMES, strict=True):
        near_all(answers(encoding, asked), answer, "asked again after other questions", EXACT)
    return f"in other orders, {TIMES} times, and nothing is changed by asking"


def _asked_about(subject: Subject) -> list[Positions]:
    """As many tokens, at places that have neither first nor last nor distances in common."""
    far = subject.sequence(subject.starts()[-1])
    return [subject.anywhere(LENGTH), far, *list(subject.arrangements(0).values())[-1:]]


def _check_unchanged(encoding: Encoding, questions: list[Question]) -> None:
    """Asking changes nothing that is given or held."""
    for asked in questions:
        held = {f"parameter {name}": value for name, value in encoding.named_parameters()}
        held |= {f"buffer {name}": value for name, value in encoding.named_buffers()}
        held |= asked.tensors | {"places": asked.q_pos.coordinates, "order": asked.q_pos.order}
        before = {name: tensor.detach().clone() for name, tensor in held.items()}
        answers(encoding, asked)
        for name, tensor in held.items():
            if not torch.equal(tensor, before[name]):
                raise BrokenError(f"asking it changes {name} in place")


def _kept(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {hook: answer.detach().clone() for hook, answer in found.items()}


def independence(subject: Subject) -> str:
    """What an instance gives does not depend on which others, with other options, were built or used before: each gives
    what it gives alone in a new process."""
    # A cache that instances share by mistake is mostly keyed by length, so take two lengths that are new to it: in
    # the first this encoding is asked before the others, in the second after them.
    earlier, later = next(_fresh_lengths), next(_fresh_lengths)
    larger = subject.site(n_heads=subject.n_heads + 1)
    texts = [text for text in variants(subject.spec) if _can_be(subject, text)]
    builders: list[Callable[[], Encoding]] = [partial(subject.encoding, text) for text in texts]
    builders.append(partial(subject.encoding, site=larger))
    builders.insert(0, subject.encoding)
    alone = [_alone(subject, builder, (earlier, later)) for builder in builders]
    together = [builder() for builder in builders]
    orders = {earlier: [0, *range(len(builders)), 0], later: [*reversed(range(len(builders)))]}
    for length, order in orders.items():
        for number in order:
            found = _asked_at(subject, together[number], length)
            what = "that was asked for" if number == 0 else "with other options"
            how = f"of an instance {what}, beside others, is not what it is alone in a new process"
            near_all(found, alone[number][length], how, EXACT)
    third = _asked_at(subject, subject.encoding(), earlier)
    near_all(third, alone[0][earlier], "of another instance with the same options", EXACT)
    return f"{len(builders) - 1} other instances change nothing"


def _can_be(subject: Subject, text: str) -> bool:
    return complaint(partial(build, text, subject.site())) is None


def _alone(
    subject: Subject, builder: Callable[[], Encoding], lengths: tuple[int, ...]
) -> dict[int, dict[str, Tensor]]:
    """What an instance gives at each length where there are no others."""
    with afresh(subject.spec):
        encoding = builder()
        return {length: _asked_at(subject, encoding, length) for length in lengths}


@contextmanager
def afresh(spec: str) -> Iterator[None]:
    """As in a new process: Python files that the spec names are executed anew, and their `hash` gives other numbers."""
    names = [_module_name(part) for part in split_sum(spec) if files_of(part)]
    old = {name: sys.modules.pop(name) for name in dict.fromkeys(names)}
    try:
        for part in split_sum(spec):
            if files_of(part):
                vars(sys.modules[_module_name(part)]).setdefault("hash", _other_hash)
        yield
    finally:
        sys.modules.update(old)


def _module_name(part: str) -> str:
    return registry.spec(part).target.__module__


def _other_hash(x: object) -> int:
    return hash((x, "afresh"))


def _asked_at(subject: Subject, other: Encoding, length: int) -> dict[str, Tensor]:
    return hook_outputs(other, subject.reading(other).anywhere(length))


def round_trips(subject: Subject) -> str:
    """The canonical spec, a state dict, a deep copy, the meta device and a detour through bfloat16 (but for rounded
    parameters) give back the same encoding, bit for bit."""
    pos = subject.sequence(min(4000, subject.starts()[-1]))
    encoding, spec = subject.encoding(), canonical(subject.spec)
    expected = hook_outputs(encoding, pos)
    if canonical(spec) != spec:
        raise BrokenError(f"the canonical spec of {spec} is {canonical(spec)}")
    copies = {
        "built from its canonical spec": subject.encoding(spec),
        "loaded from its state dict": _loaded(subject, encoding),
        "copied deeply": copy.deepcopy(encoding),
        "built on the meta device and loaded": _loaded_from_meta(subject, encoding),
    }
    for how, other in copies.items():
        near_all(hook_outputs(other, pos), expected, f"when {how}")
    rounded = copy.deepcopy(encoding).to(torch.bfloat16).double()
    for parameter, value in zip(encoding.parameters(), rounded.parameters(), strict=True):
        parameter.detach().copy_(value)
    found, expected = hook_outputs(rounded, pos), hook_outputs(encoding, pos)
    near_all(found, expected, "after a detour through bfloat16")
    return f"{', '.join(copies)}, and after bfloat16, at position {int(pos.order[0])}"


def _loaded(subject: Subject, encoding: Encoding) -> Encoding:
    loaded = build(subject.spec, subject.site()).double().eval()
    loaded.load_state_dict(encoding.state_dict())
    return loaded


class Unfilled(TorchFunctionMode):
    """Draws nothing for tensors without data: PyTorch takes 0.9 seconds to load what finds out that they have none."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" and "tensor" in named:
            return named["tensor"]
        return args[0] if func in (Tensor.normal_, Tensor.uniform_) else func(*args, **named)


def _loaded_from_meta(subject: Subject, encoding: Encoding) -> Encoding:
    """One that has nothing but what the state dict brings: all else is not a number."""
    with torch.device("meta"), Unfilled():
        empty = build(subject.spec, subject.site()).double().eval()
    empty.to_empty(device="cpu")
    for tensor in itertools.chain(empty.parameters(), empty.buffers()):
        tensor.detach().fill_(float("nan"))
    empty.load_state_dict(encoding.state_dict())
    return empty
