"""Laws about encodings as objects: they share nothing and can be copied in every way."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding, registry
from jarilab.encodings.compose import build, canonical, files_of, split_sum
from jarilab.laws.checks import EXACT, BrokenError, check_all_close, user_error_of
from jarilab.laws.fixtures import LENGTH, variants
from jarilab.laws.hooks import HookInputs, call_hooks, hook_outputs, prepare
from jarilab.laws.law_subject import NODES, Subject
from jarilab.nn.init import SkipInitialValues
from jarilab.positions.coordinates import Positions

# Lengths of which no earlier call can have filled a cache.
_fresh_lengths = itertools.cycle(range(LENGTH + 4, NODES))


TIMES = 20  # a fault that needs many calls shows by then


def repeats(subject: Subject) -> str:
    """Equal inputs give equal results, whatever was computed before or in between.

    After its parameters have changed, an instance gives what a new one with these parameters gives. What was prepared
    from positions can be used later, and twice. No call changes its vectors, positions or parameters.
    """
    encoding = subject.encoding()
    input_sets = [HookInputs.random(encoding.site, pos) for pos in _position_sets(subject)]
    _check_unchanged(encoding, input_sets)
    # Expected results come from new instances, which no other call has changed.
    expected = [_cloned(call_hooks(subject.encoding(), inputs)) for inputs in input_sets]
    hook_outputs(encoding, subject.anywhere(LENGTH + 5))
    prepared = [prepare(encoding, inputs.q_pos, inputs.k_pos) for inputs in input_sets]
    for time in ("first", "second"):
        for inputs, computed, answer in zip(input_sets, prepared, expected, strict=True):
            what = f"used for the {time} time, prepared before other calls"
            check_all_close(call_hooks(encoding, inputs, computed), answer, what, EXACT)
        hook_outputs(encoding, subject.anywhere(LENGTH + 2))
    for inputs, answer in zip(input_sets * TIMES, expected * TIMES, strict=True):
        check_all_close(
            call_hooks(encoding, inputs), answer, "called again after other calls", EXACT
        )
    _check_after_step(subject, encoding, input_sets[0])
    return f"in other orders, {TIMES} times, and calls change nothing"


def _check_after_step(subject: Subject, encoding: Encoding, inputs: HookInputs) -> None:
    """Check that results follow the parameters after an optimizer has changed them in place."""
    with torch.no_grad():
        call_hooks(encoding, inputs)
        for parameter in encoding.parameters():
            parameter.add_(0.1)
        fresh = subject.encoding()
        fresh.load_state_dict(encoding.state_dict())
        what = "after its parameters have changed, as of a new instance with them"
        check_all_close(call_hooks(encoding, inputs), call_hooks(fresh, inputs), what, EXACT)


def _position_sets(subject: Subject) -> list[Positions]:
    """Positions without a common first, last or distance."""
    far = subject.sequence(subject.starts()[-1])
    return [subject.anywhere(LENGTH), far, *list(subject.arrangements(0).values())[-1:]]


def _check_unchanged(encoding: Encoding, input_sets: list[HookInputs]) -> None:
    """Check that a call changes neither its inputs nor the encoding's tensors."""
    for inputs in input_sets:
        tensors = {f"parameter {name}": value for name, value in encoding.named_parameters()}
        tensors |= {f"buffer {name}": value for name, value in encoding.named_buffers()}
        tensors |= inputs.tensors | {
            "places": inputs.q_pos.coordinates,
            "order": inputs.q_pos.order,
        }
        before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        call_hooks(encoding, inputs)
        for name, tensor in tensors.items():
            if not torch.equal(tensor, before[name]):
                raise BrokenError(f"a call changes {name} in place")


def _cloned(results: dict[str, Tensor]) -> dict[str, Tensor]:
    return {hook: answer.detach().clone() for hook, answer in results.items()}


def separate(subject: Subject) -> str:
    """An instance gives what it gives alone in a new process, whatever other instances were built or used."""
    # A cache that instances share by mistake is mostly keyed by length, so take two lengths that are new to it: in
    # the first this encoding is called before the others, in the second after them.
    earlier, later = next(_fresh_lengths), next(_fresh_lengths)
    larger = subject.site(n_heads=subject.n_heads + 1)
    texts = [
        text
        for text in variants(subject.spec)
        if user_error_of(partial(build, text, subject.site())) is None
    ]
    builders: list[Callable[[], Encoding]] = [partial(subject.encoding, text) for text in texts]
    builders.append(partial(subject.encoding, site=larger))
    builders.insert(0, subject.encoding)
    alone = [_alone(subject, builder, (earlier, later)) for builder in builders]
    together = [builder() for builder in builders]
    orders = {earlier: [0, *range(len(builders)), 0], later: [*reversed(range(len(builders)))]}
    for length, order in orders.items():
        for number in order:
            results = _results_at(subject, together[number], length)
            what = "under test" if number == 0 else "with other options"
            how = f"of an instance {what}, among others, is not what it is alone in a new process"
            check_all_close(results, alone[number][length], how, EXACT)
    third = _results_at(subject, subject.encoding(), earlier)
    check_all_close(third, alone[0][earlier], "of another instance with the same options", EXACT)
    return f"{len(builders) - 1} other instances change nothing"


def _alone(
    subject: Subject, builder: Callable[[], Encoding], lengths: tuple[int, ...]
) -> dict[int, dict[str, Tensor]]:
    """The results of an instance at each length, without other instances."""
    with fresh_modules(subject.spec):
        encoding = builder()
        return {length: _results_at(subject, encoding, length) for length in lengths}


@contextmanager
def fresh_modules(spec: str) -> Iterator[None]:
    """Simulate a new process: execute the spec's Python files again, with another `hash`."""
    names = [_module_name(part) for part in split_sum(spec) if files_of(part)]
    previous = {name: sys.modules.pop(name) for name in dict.fromkeys(names)}
    try:
        for part in split_sum(spec):
            if files_of(part):
                vars(sys.modules[_module_name(part)]).setdefault(
                    "hash", lambda x: hash((x, "afresh"))
                )
        yield
    finally:
        sys.modules.update(previous)


def _module_name(part: str) -> str:
    return registry.spec(part).target.__module__


def _results_at(subject: Subject, other: Encoding, length: int) -> dict[str, Tensor]:
    return hook_outputs(other, subject.reading(other).anywhere(length))


def round_trips(subject: Subject) -> str:
    """Copies give the same results, bit for bit.

    Copies by canonical spec, state dict, deep copy, meta device, and through bfloat16 (except for rounded parameters).
    """
    # Far enough that a constant rounded to bfloat16 would change angles.
    pos = subject.sequence(min(4000, subject.starts()[-1]))
    encoding, spec = subject.encoding(), canonical(subject.spec)
    expected = hook_outputs(encoding, pos)
    if canonical(spec) != spec:
        raise BrokenError(f"the canonical spec of {spec} is {canonical(spec)}")
    copies = {
        "built from its canonical spec": subject.encoding(spec),
        "loaded from its state dict": _loaded(subject, encoding),
        "copied deeply": copy.deepcopy(encoding),
    }
    # A constructor may need the numbers of its tensors, which that device does not have.
    with suppress(NotImplementedError):
        copies["built on the meta device and loaded"] = _loaded_from_meta(subject, encoding)
    for how, other in copies.items():
        check_all_close(hook_outputs(other, pos), expected, f"when {how}")
    rounded = copy.deepcopy(encoding).to(torch.bfloat16).double()
    for parameter, value in zip(encoding.parameters(), rounded.parameters(), strict=True):
        parameter.detach().copy_(value)
    results, expected = hook_outputs(rounded, pos), hook_outputs(encoding, pos)
    check_all_close(results, expected, "after a cast to bfloat16 and back")
    return f"{', '.join(copies)}, and after bfloat16, at position {int(pos.order[0])}"


def _loaded(subject: Subject, encoding: Encoding) -> Encoding:
    loaded = build(subject.spec, subject.site()).double().eval()
    loaded.load_state_dict(encoding.state_dict())
    return loaded


def _loaded_from_meta(subject: Subject, encoding: Encoding) -> Encoding:
    """An encoding that has only what the state dict contains; everything else is NaN."""
    with torch.device("meta"), SkipInitialValues():
        empty = build(subject.spec, subject.site()).double().eval()
    empty.to_empty(device="cpu")
    for tensor in itertools.chain(empty.parameters(), empty.buffers()):
        tensor.detach().fill_(float("nan"))
    empty.load_state_dict(encoding.state_dict())
    return empty
