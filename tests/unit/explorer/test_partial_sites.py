"""Sites of which some maps could not be recorded are marked in the page's payload and in measures."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import jarilab
from jarilab.explorer import payload
from jarilab.explorer.huggingface_subject import _split_calls
from jarilab.explorer.window_sites import Windows
from jarilab.inspect.measure.maps import names_of_sides
from jarilab.inspect.record.capture import Tape


class HalfRecorded(nn.Module):
    """Attends twice: by the fused kernel, and by products that the recorder does not follow."""

    def forward(self, x):
        x = x.unflatten(-1, (3, 4)).transpose(1, 2)
        weights = (x @ x.transpose(-1, -2)).softmax(-1)
        by_hand = (weights.unsqueeze(-1) * x.unsqueeze(2)).cumsum(-2)[..., -1, :]
        return by_hand + functional.scaled_dot_product_attention(x, x, x)


def half_recorded(batch: int) -> Tape:
    model = HalfRecorded()
    with pytest.warns(UserWarning, match=r"tape\.partial"), jarilab.record(model) as tape:
        model(torch.randn(batch, 5, 12))
    return tape


def test_partial_sites_are_marked_in_the_payload_and_in_measures():
    tape = half_recorded(1)
    (site,) = tape.sites
    (shown,) = payload.sites_of(tape, names_of_sides(tape, None))
    reasons = {shown["partial"], *(each.partial for each in tape.measures()[site].values())}
    assert reasons == {tape.partial[site]}


def test_windows_and_runs_of_a_partial_site_are_marked():
    tape = half_recorded(2)
    (site,) = tape.sites
    repeated = replace(tape, calls={site: tape.calls[site] * 2})
    for parts in (Windows.of(tape, None).tape, _split_calls(repeated)):
        assert len(parts.sites) == 2
        assert parts.partial == dict.fromkeys(parts.sites, tape.partial[site])


def test_a_complete_site_is_not_marked():
    attention = nn.MultiheadAttention(12, 3, batch_first=True)
    x = torch.randn(1, 5, 12)
    with jarilab.record(attention) as tape:
        attention(x, x, x)
    (shown,) = payload.sites_of(tape, names_of_sides(tape, None))
    assert shown["partial"] == ""
