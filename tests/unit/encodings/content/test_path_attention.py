"""PaTH at special points and under all masks."""

import pytest
import torch

from jarilab.attention.definition import AttentionCall, scores
from jarilab.attention.geometry import geometry_of
from jarilab.attention.heads import site_of
from jarilab.attention.module import Attention
from jarilab.encodings import compose
from jarilab.encodings.content import path_attention
from jarilab.encodings.formulas.content import ORACLES
from jarilab.encodings.formulas.oracle import array
from jarilab.laws.fixtures import randomise
from jarilab.models.decoder import LanguageModel, NoPrompt
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

WIDTH, HEADS, HEAD_WIDTH, SCALE = 24, 3, 8, 0.35


def encoding_of(spec="path"):
    return randomise(compose.build(spec, site_of(WIDTH, HEADS, causal=True)).double())


def call_of(encoding, length, x_BKD=None, mask=None, queries=None):
    pos = Positions.sequence(length)
    x_BKD = torch.randn(2, length, WIDTH, dtype=torch.float64) if x_BKD is None else x_BKD
    q, k, v = torch.randn(3, 2, HEADS, length, HEAD_WIDTH, dtype=torch.float64)
    first = 0 if queries is None else length - queries
    geometry = geometry_of(encoding, pos.slice(first, length), pos, mask or Mask(causal=True))
    states = encoding.key_states(x_BKD)
    return AttentionCall(q[:, :, first:], k, v, geometry, SCALE, states=states), x_BKD


@pytest.mark.parametrize("length", [1, path_attention.CHUNK, path_attention.CHUNK + 1, 2 * path_attention.CHUNK + 6])
def test_chunks_equal_one_token_at_a_time(length):
    encoding = encoding_of()
    call, x_BKD = call_of(encoding, length, queries=min(length, 3))
    got = scores(call)
    allowed = call.geometry.allowed
    allowed_QK = allowed[0, 0].numpy() if allowed is not None else None
    if allowed_QK is None:
        allowed_QK = torch.ones(got.shape[-2:], dtype=torch.bool).numpy()
    for head in range(HEADS):
        q, k, x = array(call.q[1, head]), array(call.k[1, head]), array(x_BKD[1])
        wanted = torch.tensor(ORACLES["path_attention"].scores(encoding, q, k, x, [], [], allowed_QK, head, SCALE))
        mine = got[1, head].where(torch.tensor(allowed_QK), 0.0)
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-9)


def test_tokens_with_beta_0_change_nothing():
    encoding = encoding_of()
    with torch.no_grad():
        encoding.strength.weight.zero_()
        encoding.strength.bias.fill_(-60.0)
    call, _ = call_of(encoding, 9)
    torch.testing.assert_close(scores(call), SCALE * call.q @ call.k.transpose(-1, -2), rtol=0, atol=1e-12)


@torch.no_grad()
def test_two_equal_reflections_cancel():
    """With beta = 2 each token is a reflection; two equal ones cancel."""
    encoding = encoding_of()
    encoding.strength.weight.zero_()
    encoding.strength.bias.fill_(60.0)
    x_BKD = torch.randn(2, 1, WIDTH, dtype=torch.float64).expand(-1, 9, -1)
    call, _ = call_of(encoding, 9, x_BKD)
    plain = SCALE * call.q @ call.k.transpose(-1, -2)
    behind = torch.arange(9).unsqueeze(-1) - torch.arange(9)
    even, odd = (behind >= 0) & (behind % 2 == 0), (behind >= 0) & (behind % 2 == 1)
    got = scores(call)
    torch.testing.assert_close(got[..., even], plain[..., even])
    assert not torch.isclose(got[..., odd], plain[..., odd]).any()


def test_no_key_gets_longer():
    """The eigenvalues of each H lie between -1 and 1, so a product over many tokens stays finite."""
    encoding = encoding_of()
    call, _ = call_of(encoding, 300)
    longest = SCALE * call.q.norm(dim=-1).unsqueeze(-1) * call.k.norm(dim=-1).unsqueeze(-2)
    assert (scores(call).abs() <= longest + 1e-9).tril().logical_or(torch.ones(300, 300).triu(1).bool()).all()


def model_of(spec, **options):
    model = LanguageModel(11, d_model=WIDTH, n_heads=HEADS, n_layers=2, encoding=spec, **options).double()
    initialise(model, 0)
    return randomise(model).eval()


@pytest.mark.parametrize("kernel", ["explicit", "fused", "definition"])
@pytest.mark.parametrize("spec", ["path", "rotary+path", "path+forgetting"])
@torch.no_grad()
def test_chunked_decoding_equals_one_forward(spec, kernel):
    model = model_of(spec, kernel=kernel)
    ids, pos, cache = torch.randint(11, (2, 41)), Positions.sequence(41, frame="target"), model.new_cache()
    pieces = [model.step(NoPrompt(), ids[:, i:j], pos.slice(i, j), cache) for i, j in ((0, 1), (1, 34), (34, 41))]
    at_once = model.step(NoPrompt(), ids, pos, None)
    torch.testing.assert_close(torch.cat(pieces, 1), at_once, rtol=0, atol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("spec", ["path", "fire", "cope", "forgetting", "xpos"])
@torch.no_grad()
def test_padding_and_other_documents_change_nothing(spec, side):
    """Encodings of causal stacks on padding and packed documents."""
    stack = model_of(spec).decoder
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    alone = stack(x[:, 3:8], positions=Positions.sequence(5))
    keep = torch.zeros(2, 9, dtype=torch.bool)
    keep[:, 3:8] = True
    padded = stack(x, positions=Positions.from_mask(keep), keep=keep)[:, 3:8]
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-7)
    documents = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2]).expand(2, -1)
    starts = torch.tensor([0, 1, 2, 0, 1, 2, 3, 4, 0])
    pos = Positions(starts.unsqueeze(-1), torch.arange(9))
    packed = stack(x, positions=pos, documents=documents)[:, 3:8]
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-7)
    one_row = stack(x[:1, 3:8], positions=Positions.sequence(5))
    torch.testing.assert_close(one_row, alone[:1], rtol=0, atol=1e-7)


@pytest.mark.parametrize("kernel", ["auto", "blocks"])
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("spec", ["path", "fire", "cope", "forgetting", "xpos"])
@torch.no_grad()
def test_padding_between_keys_changes_nothing(spec, first, kernel):
    stack = model_of(spec, kernel=kernel).decoder
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    keep = torch.tensor([True, True, False, True, False, False, True, True, True])
    keep[:first] = False
    keep = keep.expand(2, -1)
    padded = stack(x, positions=Positions.from_mask(keep), keep=keep)[:, keep[0]]
    alone = stack(x[:, keep[0]], positions=Positions.sequence(6 - first))
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-7)


@torch.no_grad()
def test_a_key_that_the_last_query_alone_sees_counts_for_it():
    encoding = encoding_of()
    pairs = torch.ones(5, 5, dtype=torch.bool)
    pairs[1:4, 1] = False
    torch.manual_seed(0)
    some, _ = call_of(encoding, 5, mask=Mask(causal=True, pairs=pairs))
    torch.manual_seed(0)
    every, _ = call_of(encoding, 5, mask=Mask(causal=True))
    torch.testing.assert_close(scores(some)[:, :, -1], scores(every)[:, :, -1])


@torch.no_grad()
def test_keys_hidden_from_one_query_do_not_count_for_it():
    """No two queries have the same gaps, so a sum over keys alone is wrong."""
    encoding = compose.build("forgetting", site_of(WIDTH, HEADS, causal=True))
    encoding = randomise(encoding.double())
    pairs = torch.tensor([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [0, 1, 1, 0, 1]]).bool()
    call, x_BKD = call_of(encoding, 5, mask=Mask(pairs=pairs))
    for head in range(HEADS):
        q, k, x = array(call.q[0, head]), array(call.k[0, head]), array(x_BKD[0])
        wanted = torch.tensor(ORACLES["forgetting"].scores(encoding, q, k, x, [], [], pairs.numpy(), head, SCALE))
        torch.testing.assert_close(scores(call)[0, head].where(pairs, 0.0), wanted, rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_window_equals_a_separate_sequence():
    attention = Attention(WIDTH, HEADS, encoding="path", causal=True).double()
    randomise(attention)
    x = torch.randn(1, 40, WIDTH, dtype=torch.float64)
    windowed = attention(x, mask=Mask(causal=True, window=5))
    last = attention(x[:, -5:], mask=Mask(causal=True))
    torch.testing.assert_close(windowed[:, -1], last[:, -1])


def test_bfloat16_is_near_float64():
    exact = encoding_of()
    rounded = compose.build("path", exact.site)
    rounded.load_state_dict(exact.state_dict())
    call, x_BKD = call_of(exact, 70)
    pos = Positions.sequence(70)
    with torch.autocast("cpu", torch.bfloat16):
        (state,) = rounded.key_states(x_BKD.float())
        allowed = call.geometry.allowed
        q, k = call.q.bfloat16(), call.k.bfloat16()
        terms = rounded.terms(q, k, rounded.relation(pos, pos), allowed=allowed, state=state)
    wanted = exact.terms(call.q, call.k, None, allowed=allowed, state=call.states[0])
    visible = torch.ones(70, 70).tril().bool()
    assert terms.dtype is torch.bfloat16
    assert (terms.double() - wanted)[..., visible].abs().mean() < 0.05 * wanted[..., visible].abs().mean()
