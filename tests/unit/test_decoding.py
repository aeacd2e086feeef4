import pytest
import torch

from jari.attention.cache import KVCache, LayerCache
from jari.decoding import greedy
from jari.errors import UserError
from jari.init import initialise
from jari.models.encoder_decoder import EncoderDecoder
from jari.positions import Positions, Tokens

PADDING, FIRST, END = 0, 1, 2
EVERY = ["none", "sinusoidal", "learned", "rotary", "shaw:clip=2", "shaw:values=false", "t5", "alibi", "rotary+shaw"]


class Scripted:
    """A model that writes what it is told: each row of the script is the answer to one source."""

    def __init__(self, script):
        self.script = torch.tensor(script)
        self.steps = 0

    def start(self, source):
        return None

    def step(self, state, ids, positions, cache):
        scores = torch.zeros(len(self.script), ids.shape[1], 10)
        wanted = self.script[:, positions.index()]
        self.steps += 1
        return scores.scatter(-1, wanted.unsqueeze(-1), 5.0)

    def new_cache(self):
        return KVCache(0)


def source_of(ids, keep=None):
    keep = torch.ones_like(ids, dtype=torch.bool) if keep is None else keep
    return Tokens(ids, Positions.from_mask(keep, frame="source"), keep)


def write(model, source, **options):
    return greedy(model, source, **{"first": FIRST, "end": END, "padding": PADDING, "longest": 8} | options)


@pytest.mark.parametrize("cached", [True, False])
def test_a_row_stops_at_its_end_and_is_padded_behind_it(cached):
    model = Scripted([[5, END, 7, 7, 7, 7, 7, 7], [6, 7, 8, END, 9, 9, 9, 9]])
    written = write(model, source_of(torch.zeros(2, 3, dtype=torch.long)), cached=cached)
    assert written.ids.tolist() == [[5, END, PADDING, PADDING], [6, 7, 8, END]]
    assert model.steps == 4, "it goes on after all rows have ended"
    certain = torch.tensor([5.0] + [0.0] * 9).log_softmax(0)[0].item()
    assert written.log_probabilities[0].tolist() == pytest.approx([certain, certain, 0.0, 0.0])
    assert written.log_probabilities[1].tolist() == pytest.approx([certain] * 4)


def test_a_row_without_an_end_stops_at_the_longest():
    written = write(Scripted([[5] * 9]), source_of(torch.zeros(1, 3, dtype=torch.long)), longest=6)
    assert written.ids.tolist() == [[5] * 6]


@pytest.fixture(params=["pre", "post"])
def norm(request):
    return request.param


@pytest.mark.parametrize("spec", EVERY)
def test_decoding_with_a_cache_writes_the_same(spec, norm):
    model = EncoderDecoder(10, 10, width=16, heads=2, encoding=spec, norm=norm)
    initialise(model, 4)
    ids = torch.randint(3, 10, (3, 6))
    keep = torch.tensor([[True] * 6, [False] * 2 + [True] * 4, [True] * 3 + [False] * 3])
    cached, uncached = (write(model.eval(), source_of(ids, keep), end=-1, cached=c) for c in (True, False))
    assert torch.equal(cached.ids, uncached.ids)
    torch.testing.assert_close(cached.log_probabilities, uncached.log_probabilities, rtol=1e-4, atol=1e-5)
    assert cached.ids.unique().numel() > 1


@pytest.mark.parametrize("spec", EVERY)
def test_what_is_written_does_not_depend_on_the_padding_beside_it(spec):
    model = EncoderDecoder(10, 10, width=16, heads=2, encoding=spec)
    initialise(model, 4)
    ids, keep = torch.randint(3, 10, (2, 7)), torch.tensor([[True] * 7, [False] * 3 + [True] * 4])
    together = write(model.eval(), source_of(ids, keep), end=-1)
    alone = write(model, source_of(ids[1:, 3:]), end=-1)
    assert torch.equal(together.ids[1:], alone.ids)
    torch.testing.assert_close(together.log_probabilities[1:], alone.log_probabilities, rtol=1e-4, atol=1e-5)


def test_the_log_probabilities_are_those_of_the_full_forward():
    model = EncoderDecoder(10, 10, width=16, heads=2, encoding="rotary")
    initialise(model, 4)
    source = source_of(torch.randint(3, 10, (2, 6)))
    written = write(model.eval(), source, end=-1)
    read = torch.cat((torch.full((2, 1), FIRST), written.ids[:, :-1]), 1)
    wanted = model(source, read).log_softmax(-1).gather(-1, written.ids.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(written.log_probabilities, wanted, rtol=1e-4, atol=1e-5)


def test_the_source_is_read_once():
    model = EncoderDecoder(10, 10, width=16, heads=2)
    calls = []
    model.encoder.register_forward_hook(lambda *_: calls.append("encoder"))
    model.decoder.layers[0].cross_attention.key.register_forward_hook(lambda *_: calls.append("keys of the source"))
    write(model.eval(), source_of(torch.randint(3, 10, (2, 6))), end=-1)
    assert calls == ["encoder", "keys of the source"]


def test_a_cache_gives_back_all_keys_in_order_however_they_came():
    cache, keys, values = LayerCache(), torch.randn(2, 3, 9, 4), torch.randn(2, 3, 9, 5)
    for start, stop in ((0, 1), (1, 2), (2, 7), (7, 9)):
        k, v = cache.append(keys[:, :, start:stop], values[:, :, start:stop])
        assert torch.equal(k, keys[:, :, :stop])
        assert torch.equal(v, values[:, :, :stop])
    assert cache.length == 9


def test_a_cache_keeps_the_positions_of_its_keys():
    cache = KVCache(1)
    cache.extend(Positions.sequence(3, 40))
    assert cache.extend(Positions.sequence(1, 77)).index().tolist() == [40, 41, 42, 77]
    assert cache.positions.order.tolist() == [40, 41, 42, 77]
    assert cache.memory() == 0
    cache.own[0].append(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4))
    assert cache.memory() == 2 * 2 * 4 * 4


def test_a_cache_is_for_one_source():
    model = EncoderDecoder(9, 9, width=16, heads=2, encoding="rotary").eval()
    first, second = (model.start(source_of(torch.randint(3, 9, (2, 4)))) for _ in range(2))
    cache, ids = model.new_cache(), torch.full((2, 1), FIRST)
    model.step(first, ids, Positions.sequence(1, frame="target"), cache)
    with pytest.raises(UserError, match="this cache holds the keys of another source; make a new one"):
        model.step(second, ids, Positions.sequence(1, 1, frame="target"), cache)
