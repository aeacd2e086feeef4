"""What each head matters to an answer: by the gradient of a gate on it, and by switching it off.

written, where it is asked for: see `jarilab.inspect.intervene.likelihood`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn
from torch.nn import functional

from jarilab.attention.definition import AttentionCall
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.intervene.interventions import change_outputs, check_evaluating
from jarilab.inspect.intervene.likelihood import Written, labels_of, log_softmax, losses
from jarilab.inspect.record.capture import record
from jarilab.inspect.record.model_io import Inputs, repeated


def importance(
    model: nn.Module, inputs: Inputs, written: Written
) -> dict[str, Float[Tensor, " H"]]:
    """How much the loss would change with a gate on each head: the mean over the batch of `|<Att_h, dL/dAtt_h>|`, each
    site's L2-normalised (Michel et al. 2019). L: the mean cross-entropy of an answer.
    """
    check_evaluating(model)
    labels = labels_of(inputs, written)
    # cuDNN has no gradient of a recurrence in evaluation.
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False), _gated(model) as gates:
        loss_B = losses(log_softmax(model(*inputs)), labels)
        gradients = torch.autograd.grad(loss_B.sum(), list(gates.values()))
    found = {}
    for site, gradient_BH11 in zip(gates, gradients, strict=True):
        share_H = gradient_BH11.flatten(1).abs().mean(0)
        found[site] = functional.normalize(share_H, dim=0)
    return found


@contextmanager
def _gated(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Multiply each head's output by a gate, `(B, H, 1, 1)`, that stands at 1: its gradient is `<Att_h, dL/dAtt_h>`."""
    gates: dict[str, Tensor] = {}

    def gated(site: str, call: AttentionCall, output: Tensor) -> Tensor:
        if site not in gates:
            gates[site] = output.new_ones(*output.shape[:2], 1, 1).requires_grad_()
        return output * gates[site]

    with change_outputs(model, gated):
        yield gates


def ablation(model: nn.Module, inputs: Inputs, written: Written) -> dict[str, Float[Tensor, " H"]]:
    """How much the loss of `importance`, in nats, really rises with each head off, as `HeadOff` has it: one forward for
    each site, over a copy of the batch for each head and one with all heads on."""
    check_evaluating(model)
    labels, found = labels_of(inputs, written), {}
    with torch.no_grad(), record(model) as tape:
        model(*inputs)
    for site in tape.sites:
        heads = tape.calls[site][0].call.q.shape[1]
        copies = heads + 1
        with torch.no_grad(), _each_head_off(model, site, heads):
            log_RLV = log_softmax(model(*(repeated(one, copies) for one in inputs)))
        loss_R = losses(log_RLV, labels.repeat(copies, 1))
        loss_C = loss_R.unflatten(0, (copies, -1)).mean(1)
        found[site] = loss_C[:-1] - loss_C[-1]
    return found


def _each_head_off(model: nn.Module, site: str, heads: int) -> AbstractContextManager[None]:
    """In the first copy of a batch the first head's output is zero, and so on; in what comes after, none is."""

    def one_off(site: str, call: AttentionCall, output: Tensor) -> Tensor:
        output = output.unflatten(0, (heads + 1, -1)).clone()
        for head in range(heads):
            output[head, :, head] = 0.0
        return output.flatten(0, 1)

    return change_outputs(model, one_off, [site])
