"""Laws about what one attention computes: its kernels and its rotation."""

from __future__ import annotations

import copy
import itertools
from functools import partial

import torch

from jarilab.attention.kernels import Kernel
from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Encoding
from jarilab.laws.attention import TWO_SEQUENCES, Case, cases, differentiate, shapes, slope
from jarilab.laws.checks import (
    EXACT,
    POSITIONS,
    BrokenError,
    SkippedError,
    check_close,
    max_difference,
    user_error_of,
)
from jarilab.laws.fixtures import LENGTH, noise
from jarilab.laws.hooks import HookInputs, hook_outputs
from jarilab.laws.law_subject import Subject
from jarilab.positions.coordinates import Positions

KERNELS: tuple[Kernel, ...] = ("explicit", "fused")
# FlexAttention has no gradient on a CPU; tests/helpers/flex_probe.py compares it there.
ALL_KERNELS: tuple[Kernel, ...] = ("definition", *KERNELS, "blocks")
SLOPE = 1e-2
STEPS = (1e-3, 1e-5)  # a long one may step over a kink, a short one is lost in float32
SUMMED = 0.3  # a parameter's gradient in bfloat16 is a sum of many numbers that were rounded
PRECISIONS = {torch.float64: 1e-6, torch.float32: 2e-5, torch.bfloat16: 5e-2}


def kernels(subject: Subject) -> str:
    """Each kernel matches the definition's output and gradients, in every precision and under autocast.

    A query without any key gives exactly 0. A kernel that cannot compute the encoding is refused when a model is built.
    The definition's gradients match finite differences.
    """
    refused: set[Kernel] = set()
    for start in dict.fromkeys((0, subject.starts()[1], subject.far())):
        for dtype, case in itertools.product(PRECISIONS, cases()):
            refused |= _check_case(subject, start, dtype, case)
    if "explicit" in refused:
        raise BrokenError("no kernel can compute it: the explicit one is refused")
    for kernel in refused:
        if user_error_of(partial(subject.model, kernel=kernel)) is None:
            raise BrokenError(
                f"the {kernel} kernel is refused when it runs, but not when a model is built with it"
            )
    return "explicit equals it, fused is refused" if refused else "explicit and fused equal it"


def _check_case(subject: Subject, start: int, dtype: torch.dtype, case: Case) -> set[Kernel]:
    """The refused kernels; all others must match the definition.

    At the farthest position only outputs are compared. There the gradient of a frequency is multiplied by the position,
    and its rounding errors with it.
    """
    pos, encoding, refused = subject.sequence(start), subject.encoding().to(dtype), set()
    expected = differentiate(copy.deepcopy(encoding).double(), dtype, pos, case, "definition")
    at_start, is_far = start == 0, start > subject.starts()[1]
    if dtype is torch.float64 and at_start:
        _check_slopes(encoding, pos, case, expected)
    tolerance = max(PRECISIONS[dtype], POSITIONS) if is_far else PRECISIONS[dtype]
    autocasts = (False, True) if dtype is torch.float32 and case.mask is None else (False,)
    for kernel, autocast in itertools.product(KERNELS, autocasts):
        mode = ", under autocast" * autocast
        where = f"of {kernel}, {dtype}{mode}, {case.name}, from position {start} on"
        try:
            tensors = differentiate(encoding, dtype, pos, case, kernel, autocast)
        except UserError:
            refused.add(kernel)
            continue
        for what, tensor in tensors.items():
            if what == "output" or not (is_far or autocast):
                tolerance = PRECISIONS[torch.bfloat16] if autocast else tolerance
                if what != "output" and dtype is torch.bfloat16:
                    tolerance = SUMMED
                check_close(tensor, expected[what], tolerance, f"{what} {where}")
        _check_rows_without_keys(tensors["output"], pos, case, where)
    return refused


def _check_slopes(
    encoding: Encoding, pos: Positions, case: Case, expected: dict[str, Tensor]
) -> None:
    """Check the definition's gradients against finite differences."""
    for name, shape in shapes(encoding).items():
        what = f"gradient of {name}"
        directional = (expected[what] * noise(f"towards {name}", *shape)).sum()
        differences = [slope(encoding, pos, case, name, step) for step in STEPS]
        best = min(differences, key=lambda value: max_difference(value, directional))
        check_close(directional, best, SLOPE, f"{what} of the definition, {case.name}")


def rows_without_keys(subject: Subject) -> str:
    """A query without a key gives exactly 0 and finite gradients on every path, also between two sequences."""
    dtype, case, computed = torch.float32, TWO_SEQUENCES, dict.fromkeys(ALL_KERNELS, 0)
    for start, kernel in itertools.product(subject.starts(), ALL_KERNELS):
        pos, encoding = subject.sequence(start), subject.encoding().to(dtype)
        where = f"of {kernel}, {case.name}, from position {start} on"
        try:
            tensors = differentiate(encoding, dtype, pos, case, kernel)
        except UserError:
            continue  # the law of kernels checks that building a model refuses it, too
        computed[kernel] += 1
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise BrokenError(f"a query without any key gives NaN or Inf in the {name} {where}")
        _check_rows_without_keys(tensors["output"], pos, case, where)
    return f"between two sequences, by {', '.join(k for k, count in computed.items() if count)}"


def _check_rows_without_keys(output_BHQE: Tensor, pos: Positions, case: Case, where: str) -> None:
    allowed = None if case.mask is None else case.mask.dense(case.q_pos(pos), case.k_pos(pos))
    if allowed is None:
        return
    without_key = ~allowed.any(-1, keepdim=True)
    if (output_BHQE * without_key).any():
        raise BrokenError(f"a query without any key is not exactly 0 in the output {where}")


def norms(subject: Subject) -> str:
    """`rotate` keeps the norm of every query and key, unless the class says `keeps_norms = False`."""
    if "rotate" not in subject.encoding().hooks:
        raise SkippedError("it rotates nothing")
    if not subject.claims("keeps_norms"):
        raise SkippedError("it does not claim to: keeps_norms = False")
    for start in subject.starts():
        pos = subject.sequence(start)
        encoding = subject.encoding()
        inputs, turned = HookInputs.random(encoding.site, pos), hook_outputs(encoding, pos)
        for what, hook, still in (
            ("", "rotate", inputs.q),
            (" of keys", "rotate of keys", inputs.k),
        ):
            where = f"norms{what} from position {start} on"
            check_close(turned[hook].norm(dim=-1), still.norm(dim=-1), EXACT, where)
    return f"up to position {subject.starts()[-1] + LENGTH - 1}"
