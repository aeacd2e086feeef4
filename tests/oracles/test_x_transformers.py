"""Agreement with x-transformers 2.31.10, which is no dependency: it brings six packages, three of them for notation.

What it gave is kept here as numbers, made of inputs that are sines, so that no generator of random numbers comes into
it. `python tests/oracles/test_x_transformers.py` prints them where that package is installed; there the whole is
compared, too.
"""

import pytest
import torch

from jarilab.attention.heads import site_of
from jarilab.encodings import compose
from jarilab.positions.coordinates import Positions

WIDTH, HEADS, LENGTH, SCALE = 12, 3, 9, 0.5
HEAD_WIDTH = WIDTH // HEADS

# Of the last query in the last head: what is added for keys 0, 3, 6 and 8; of `dynamic_bias` less that for key 8.
GIVEN = {
    "cope": [-1.3072538, 0.5536126, 0.9065962, -1.2360392],
    "forgetting": [-9.5217819, -5.3640285, -1.1858721, 0.0],
    "dynamic_bias": [4.0499692, 3.2311099, 1.8097261, 0.0],
    "alibi": [-2.0, -1.25, -0.5, 0.0],
}


def waves(*shape, phase):
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) * 0.37 + phase).sin().view(shape).float()


Q, K = waves(2, HEADS, LENGTH, HEAD_WIDTH, phase=0.1), waves(2, HEADS, LENGTH, HEAD_WIDTH, phase=2.0)
X = waves(2, LENGTH, WIDTH, phase=1.0)
ALLOWED = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
PLACES = Positions.sequence(LENGTH)


@torch.no_grad()
def fill(module, phase=0.3):
    """Every parameter with waves, one after the other as they are called."""
    for number, parameter in enumerate(module.parameters()):
        parameter.copy_(waves(*parameter.shape, phase=phase + number))
    return module


def built(spec):
    return compose.build(spec, site_of(WIDTH, HEADS, causal=True))


@torch.no_grad()
def ours(name):
    """What is added to the scaled score, `(B, H, Q, K)`."""
    if name == "alibi":
        return built("alibi").bias(PLACES, PLACES).unsqueeze(0)
    if name == "dynamic_bias":
        encoding = built("dynamic_bias:hidden=5")
        # Key minus query is query minus key of the other sign.
        bias = fill(encoding).bias(PLACES, PLACES).mT
        return (bias - bias.diagonal(0, 1, 2)[:, :1, None]).unsqueeze(0)
    encoding = fill(built("cope:positions=5" if name == "cope" else "forgetting"))
    around = {"product": Q @ K.mT, "allowed": ALLOWED, "scale": SCALE, "state": encoding.key_states(X)}
    return SCALE * encoding.terms_for(Q, K, None, around)


@torch.no_grad()
def theirs(name):
    from x_transformers import x_transformers as other

    if name == "alibi":
        return other.AlibiPositionalBias(HEADS)(LENGTH, LENGTH).unsqueeze(0)
    if name == "dynamic_bias":
        bias = fill(other.DynamicPositionBias(5, heads=HEADS, depth=2, log_distance=True))(LENGTH, LENGTH)
        return (bias - bias.diagonal(0, 1, 2)[:, :1, None]).unsqueeze(0)
    if name == "cope":
        encoding = fill(other.CoPE(HEAD_WIDTH, HEADS, 5))
        logits = (SCALE * Q @ K.mT).masked_fill(~ALLOWED, -torch.finfo(torch.float32).max)
        return encoding(Q, logits)
    return fill(other.DataDependentAlibi(WIDTH, HEADS))(X)


def shown(added_BHQK):
    return added_BHQK[-1, -1, -1, [0, 3, 6, 8]].tolist()


@pytest.mark.parametrize("name", GIVEN)
def test_what_it_gave(name):
    assert shown(ours(name)) == pytest.approx(GIVEN[name], abs=2e-6)


@pytest.mark.parametrize("name", GIVEN)
def test_what_it_gives(name):
    pytest.importorskip("x_transformers", reason="x-transformers is not installed; its numbers of 2.31.10 are compared")
    torch.testing.assert_close(ours(name) * ALLOWED, theirs(name) * ALLOWED, rtol=0, atol=2e-6)


if __name__ == "__main__":
    for each in GIVEN:
        print(each, [round(value, 7) for value in shown(theirs(each))])
