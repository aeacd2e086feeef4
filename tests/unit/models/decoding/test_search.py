import itertools
import math

import pytest
import torch

from helpers.decoding import Read, Rows
from jarilab.attention.cache import KVCache
from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST, PADDING
from jarilab.models.decoding import beam, greedy
from jarilab.models.decoding.beam_search import _likeliest
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens

SOME = ["learned", "rotary+shaw", "t5"]  # of all others the laws ask whether a cache changes what is computed


class Scripted:
    """A model that writes what it is told: each row of the script is the answer to one source."""

    def __init__(self, script):
        self.script = torch.tensor(script)
        self.rows = []

    def start(self, source):
        return Rows(torch.arange(len(self.script)))

    def step(self, state, ids, positions, cache):
        script = self.script[state.rows].repeat_interleave(len(ids) // len(state.rows), 0)
        self.rows.append(len(ids))
        scores = torch.zeros(len(ids), ids.shape[1], 10)
        return scores.scatter(-1, script[:, positions.index()].unsqueeze(-1), 5.0)

    def new_cache(self):
        return KVCache(0)


class Table:
    """A model given as probabilities of the next token after what was written, `{"": {"a": 0.5, ".": 0.5}, ...}`."""

    def __init__(self, table, letters):
        self.table, self.letters, self.rows = table, letters, []

    def start(self, source):
        return Rows(torch.arange(len(source.ids)))

    def step(self, state, ids, positions, cache):
        self.rows.append(len(ids))
        read = ["".join(self.letters[i] for i in row[1:]) for row in cache.append(ids).tolist()]
        rows = [[self.table.get(text, {}).get(letter, 1e-9) for letter in self.letters] for text in read]
        return torch.tensor(rows).log().unsqueeze(1)

    def new_cache(self):
        return Read()


def source_of(ids, keep=None):
    keep = torch.ones_like(ids, dtype=torch.bool) if keep is None else keep
    return Tokens(ids, Positions.from_mask(keep, frame="source"), keep)


def model_of(spec, vocabulary=10, **options):
    model = EncoderDecoder(vocabulary, vocabulary, d_model=16, n_heads=2, encoding=spec, **options)
    initialise(model, 4)
    return model.eval()


def padded_source(rows):
    """Padding on either side or none."""
    keep = torch.tensor([[True] * 6, [False] * 2 + [True] * 4, [True] * 3 + [False] * 3])
    return source_of(torch.randint(3, 10, (3, 6)), keep) if rows == 3 else source_of(torch.randint(3, 10, (rows, 6)))


def search(model, source, **options):
    return beam(model, source, **{"beam_size": 4, "first": FIRST, "end": END, "longest": 8} | options)


def write(model, source, **options):
    return greedy(model, source, **{"first": FIRST, "end": END, "padding": PADDING, "longest": 8} | options)


@pytest.mark.parametrize("cached", [True, False])
def test_a_row_stops_at_its_end_and_is_padded_behind_it(cached):
    model = Scripted([[5, END, 7, 7, 7, 7, 7, 7], [6, 7, 8, END, 9, 9, 9, 9]])
    written = write(model, source_of(torch.zeros(2, 3, dtype=torch.long)), cached=cached)
    assert written.ids.tolist() == [[5, END, PADDING, PADDING], [6, 7, 8, END]]
    assert model.rows == [2, 2, 1, 1], "a row is read after it has ended"
    certain = torch.tensor([5.0] + [0.0] * 9).log_softmax(0)[0].item()
    assert written.log_probabilities[0].tolist() == pytest.approx([certain, certain, 0.0, 0.0])
    assert written.log_probabilities[1].tolist() == pytest.approx([certain] * 4)


def test_a_row_without_an_end_stops_at_the_longest():
    written = write(Scripted([[5] * 9]), source_of(torch.zeros(1, 3, dtype=torch.long)), longest=6)
    assert written.ids.tolist() == [[5] * 6]


@pytest.fixture(params=["pre", "post"])
def norm(request):
    return request.param


@pytest.mark.parametrize("spec", SOME)
def test_decoding_with_a_cache_writes_the_same(spec, norm):
    model = EncoderDecoder(10, 10, d_model=16, n_heads=2, encoding=spec, norm=norm)
    initialise(model, 4)
    ids = torch.randint(3, 10, (3, 6))
    keep = torch.tensor([[True] * 6, [False] * 2 + [True] * 4, [True] * 3 + [False] * 3])
    cached, uncached = (write(model.eval(), source_of(ids, keep), end=-1, cached=c) for c in (True, False))
    assert torch.equal(cached.ids, uncached.ids)
    torch.testing.assert_close(cached.log_probabilities, uncached.log_probabilities, rtol=1e-4, atol=1e-5)
    assert cached.ids.unique().numel() > 1


@pytest.mark.parametrize("spec", SOME)
def test_what_is_written_does_not_depend_on_the_padding_beside_it(spec):
    model = EncoderDecoder(10, 10, d_model=16, n_heads=2, encoding=spec)
    initialise(model, 4)
    ids, keep = torch.randint(3, 10, (2, 7)), torch.tensor([[True] * 7, [False] * 3 + [True] * 4])
    together = write(model.eval(), source_of(ids, keep), end=-1)
    alone = write(model, source_of(ids[1:, 3:]), end=-1)
    assert torch.equal(together.ids[1:], alone.ids)
    torch.testing.assert_close(together.log_probabilities[1:], alone.log_probabilities, rtol=1e-4, atol=1e-5)


def test_the_log_probabilities_are_those_of_the_full_forward():
    model = EncoderDecoder(10, 10, d_model=16, n_heads=2, encoding="rotary")
    initialise(model, 4)
    source = source_of(torch.randint(3, 10, (2, 6)))
    written = write(model.eval(), source, end=-1)
    read = torch.cat((torch.full((2, 1), FIRST), written.ids[:, :-1]), 1)
    wanted = model(source, read).log_softmax(-1).gather(-1, written.ids.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(written.log_probabilities, wanted, rtol=1e-4, atol=1e-5)


def test_the_source_is_read_once():
    model = EncoderDecoder(10, 10, d_model=16, n_heads=2)
    calls = []
    model.encoder.register_forward_hook(lambda *_: calls.append("encoder"))
    model.decoder.layers[0].cross_attention.key.register_forward_hook(lambda *_: calls.append("keys of the source"))
    write(model.eval(), source_of(torch.randint(3, 10, (2, 6))), end=-1)
    assert calls == ["encoder", "keys of the source"]


def test_a_cache_is_for_one_source():
    model = EncoderDecoder(9, 9, d_model=16, n_heads=2, encoding="rotary").eval()
    first, second = (model.start(source_of(torch.randint(3, 9, (2, 4)))) for _ in range(2))
    cache, ids = model.new_cache(), torch.full((2, 1), FIRST)
    model.step(first, ids, Positions.sequence(1, frame="target"), cache)
    with pytest.raises(UserError, match="got another one; make a new cache for each source"):
        model.step(second, ids, Positions.sequence(1, 1, frame="target"), cache)
    row, later = torch.tensor([1]), Positions.sequence(1, 1, frame="target")
    cache.select(row, row)
    model.step(first.select(row), ids[:1], later, cache)
    with pytest.raises(UserError, match="got another one; make a new cache"):
        model.step(second.select(row), ids[:1], Positions.sequence(1, 2, frame="target"), cache)


# ------------------------------------------------------------------------------------- hypotheses, states and caches


@pytest.mark.parametrize("read", [1, 3], ids=["token by token", "three at once"])
@pytest.mark.parametrize("spec", ["none", "rotary", "t5", "shaw:clip=2"])
def test_hypotheses_beside_each_other_score_like_the_source_repeated(spec, read):
    model = model_of("rotary", cross_encoding=spec)
    source, ids, pos = padded_source(3), torch.randint(3, 10, (6, 3)), Positions.sequence(3, frame="target")
    twice = torch.tensor([0, 0, 1, 1, 2, 2])
    wanted = model.step(model.start(source).select(twice), ids, pos, None)
    state, cache = model.start(source), model.new_cache()
    scores = [model.step(state, ids[:, i : i + read], pos.slice(i, i + read), cache) for i in range(0, 3, read)]
    torch.testing.assert_close(torch.cat(scores, 1), wanted)
    assert cache.source[0].rows == 3, "keys of the source are repeated"
    assert cache.target[0].rows == 6


@pytest.mark.parametrize("batched", [False, True], ids=["places shared", "places of each row"])
def test_selected_rows_go_on_as_if_they_had_been_read_alone(batched):
    model, source = model_of("rotary", cross_encoding="t5"), padded_source(3)
    ids, pos = torch.randint(3, 10, (6, 4)), Positions.sequence(4, 5, frame="target")
    if batched:
        later = torch.arange(6)[:, None, None]
        pos = Positions(pos.coordinates + later, pos.order, frame="target", unplaced=torch.rand(6, 4) < 0.3)
    rows, sources = torch.tensor([5, 5, 1, 0]), torch.tensor([2, 0])
    state, cache = model.start(source), model.new_cache()
    model.step(state, ids[:, :2], pos.slice(0, 2), cache)
    cache.select(rows, sources)
    pos = pos.select_rows(rows)
    scores = model.step(state.select(sources), ids[rows, 2:], pos.slice(2, 4), cache)
    wanted = model.step(model.start(source).select(torch.tensor([2, 2, 0, 0])), ids[rows], pos, None)[:, 2:]
    torch.testing.assert_close(scores, wanted)


def test_a_cache_and_a_state_of_different_rows_are_refused():
    model = model_of("rotary")
    state, cache, ids = model.start(padded_source(3)), model.new_cache(), torch.full((3, 1), FIRST)
    model.step(state, ids, Positions.sequence(1, frame="target"), cache)
    fewer, later = state.select(torch.tensor([0, 2])), Positions.sequence(1, 1, frame="target")
    with pytest.raises(UserError, match=r"keys of 2 sources, .* got 3; select the same ones in"):
        model.step(fewer, ids[:2], later, cache)
    with pytest.raises(UserError, match=r"expected a multiple of 2 rows of targets, got 3; select the same sources"):
        model.step(fewer, ids, later, None)


def test_a_shared_embedding_is_one_parameter():
    apart, shared = (EncoderDecoder(9, 9, d_model=16, n_heads=2, shared=s) for s in (False, True))
    all_one = EncoderDecoder(9, 9, d_model=16, n_heads=2, shared=True, tied=True)
    names = [set(dict(model.named_parameters())) for model in (apart, shared, all_one)]
    assert names[0] - names[1] == {"source_embedding.weight"}
    assert names[1] - names[2] == {"generator.weight"}
    ids = torch.randint(3, 9, (2, 4))
    all_one(ids, torch.full((2, 1), FIRST)).sum().backward()
    assert all_one.target_embedding.weight.grad[ids.unique()].abs().sum(-1).all()
    with pytest.raises(
        UserError, match="same size, got 9 source and 8 target tokens; use a joint vocabulary, or shared"
    ):
        EncoderDecoder(9, 8, d_model=16, n_heads=2, shared=True)
    with pytest.raises(UserError, match="this model reads a source: expected Tokens, got None"):
        all_one.start(None)


# -------------------------------------------------------------------------------------------------------- beam search


@pytest.mark.parametrize("spec", SOME)
def test_a_beam_of_width_1_is_greedy(spec):
    model, source = model_of(spec), padded_source(3)
    written = write(model, source)
    for i, (answer,) in enumerate(search(model, source, beam_size=1)):
        length = len(answer.ids)
        assert torch.equal(answer.ids, written.ids[i, :length])
        assert (written.ids[i, length:] == PADDING).all()
        torch.testing.assert_close(answer.log_probabilities, written.log_probabilities[i, :length])


@pytest.mark.parametrize("spec", SOME)
def test_scores_are_those_of_one_forward_over_the_answer(spec):
    model, source = model_of(spec), padded_source(3)
    answers = search(model, source, beam_size=5, best=5, length_penalty=0.7, shortest=3)
    for i, of_one in enumerate(answers):
        assert len(of_one) == 5
        for answer in of_one:
            read = torch.cat((torch.tensor([FIRST]), answer.ids[:-1])).unsqueeze(0)
            memory = model.start(source).select(torch.tensor([i]))
            scores_LV = model.step(memory, read, Positions.sequence(read.shape[1], frame="target"), None)[0]
            wanted = scores_LV.log_softmax(-1).gather(-1, answer.ids.unsqueeze(-1)).squeeze(-1)
            torch.testing.assert_close(answer.log_probabilities, wanted, rtol=1e-4, atol=1e-5)
            assert answer.total == pytest.approx(wanted.sum().item(), abs=1e-4)
            assert answer.score == pytest.approx(answer.total / len(answer.ids) ** 0.7)


def every_answer(model, source, longest, length_penalty):
    """All there are, best first: those that end, and those cut off."""
    answers = []
    state = model.start(source)
    for length in range(1, longest + 1):
        for ids in itertools.product(*[[0, 1, 3, 4]] * (length - 1), [0, 1, 2, 3, 4] if length == longest else [END]):
            answers.append(ids)
    by_length = [[ids for ids in answers if len(ids) == n + 1] for n in range(longest)]
    scored = []
    for group in by_length:
        ids = torch.tensor(group)
        read = torch.cat((torch.full((len(group), 1), FIRST), ids[:, :-1]), 1)
        scores = model.step(state, read, Positions.sequence(ids.shape[1], frame="target"), None)
        totals = scores.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).sum((1, 2))
        scored += zip((totals / ids.shape[1] ** length_penalty).tolist(), group, strict=True)
    return sorted(scored, reverse=True)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
def test_a_wide_beam_finds_what_exhaustive_search_finds(length_penalty):
    with torch.no_grad():
        model, source = model_of("rotary", 5), source_of(torch.randint(3, 5, (1, 6)))
        model.generator.weight *= 3
        wanted = every_answer(model, source, 4, length_penalty)
    assert len(wanted) == 1 + 4 + 16 + 320
    options = {"beam_size": 341, "longest": 4, "length_penalty": length_penalty}
    (every,) = search(model, source, best=341, **options)
    assert [answer.score for answer in every] == pytest.approx([score for score, _ in wanted], abs=1e-5)
    assert len({tuple(answer.ids.tolist()) for answer in every}) == 341
    (few,) = search(model, source, best=3, **options)
    assert [tuple(answer.ids.tolist()) for answer in few] == [ids for _, ids in wanted[:3]]


FORK = {
    "": {"a": 0.6, "b": 0.4},
    "a": {".": 0.55, "a": 0.45},
    "aa": {".": 0.4, "a": 0.6},
    "aaa": {".": 0.9, "a": 0.1},
    "b": {"b": 0.95, ".": 0.05},
    "bb": {"b": 0.95, ".": 0.05},
    "bbb": {".": 1.0},
}


@pytest.mark.parametrize(
    ("beam_size", "length_penalty", "wanted"),
    [
        (1, 0.0, {"a.": 0.33}),
        (2, 0.0, {"bbb.": 0.361, "a.": 0.33}),
        (2, 1.0, {"bbb.": 0.361, "aaa.": 0.1458}),
        (3, 0.0, {"bbb.": 0.361, "a.": 0.33, "aaa.": 0.1458}),
        (3, 2.0, {"bbb.": 0.361, "aaa.": 0.1458, "aa.": 0.108}),
    ],
)
def test_a_beam_finds_what_greedy_misses(beam_size, length_penalty, wanted):
    """Worked out by hand: 0.4 * 0.95 * 0.95 = 0.361, for instance; ln(0.1458) / 4 is above ln(0.33) / 2."""
    model, source = Table(FORK, "_^.ab"), source_of(torch.zeros(1, 2).long())
    (answers,) = search(model, source, beam_size=beam_size, best=beam_size, length_penalty=length_penalty)
    probabilities = {"".join("_^.ab"[i] for i in answer.ids): math.exp(answer.total) for answer in answers}
    assert list(probabilities) == list(wanted)
    assert probabilities == pytest.approx(wanted, rel=1e-4)


def test_a_power_that_overflows_ranks_by_length_first():
    """4**100 is more than float32 holds."""
    model, source = Table(FORK, "_^.ab"), source_of(torch.zeros(1, 2).long())
    (answers,) = search(model, source, beam_size=3, best=3, longest=8, length_penalty=100.0)
    exact = [100 * math.log(len(answer.ids)) - math.log(-answer.total) for answer in answers]
    assert len(answers) == 3
    assert exact == sorted(exact, reverse=True)
    assert [answer.score for answer in answers] == pytest.approx([-math.exp(-each) for each in exact])
    assert len(answers[0].ids) == 8


def test_a_source_is_done_when_nothing_open_can_win_and_not_before():
    """After `a .` the open `b` could still win with a length penalty, as a longer answer; without one it cannot."""
    table = {"": {"a": 0.8, "b": 0.2}, "a": {".": 0.9, "a": 0.1}, "b": {"b": 1.0}, "bb": {"b": 1.0}, "bbb": {".": 1.0}}
    source, letters = source_of(torch.zeros(1, 2).long()), "_^.ab"
    steps = {}
    for length_penalty in (0.0, 4.0):
        model = Table(table, letters)
        ((answer,),) = search(model, source, beam_size=2, longest=6, length_penalty=length_penalty)
        steps[length_penalty] = (len(model.rows), "".join(letters[i] for i in answer.ids))
    assert steps == {0.0: (2, "a."), 4.0: (4, "bbb.")}


@pytest.mark.parametrize(
    ("after_a", "steps", "answer"),
    [
        # `.` and `a.` have ended, and `aa` ranks below them now: ln(0.06) / 2 < ln(0.54) / 2. Longer, it would win.
        ({".": 0.9, "a": 0.1}, 2, "a."),
        # As many have ended, but `aa` ranks above them: ln(0.48) / 2 > ln(0.4).
        ({".": 0.2, "a": 0.8}, 3, "aa."),
    ],
)
def test_a_beam_stops_once_as_many_ended_as_it_is_wide_and_the_best_open_one_ranks_below(after_a, steps, answer):
    table = {"": {"a": 0.6, ".": 0.4}, "a": after_a, "aa": {".": 1.0} if steps == 3 else {"a": 1.0}}
    model, letters = Table(table, "_^.ab"), "_^.ab"
    ((best,),) = search(model, source_of(torch.zeros(1, 2).long()), beam_size=2, longest=20)
    assert (len(model.rows), "".join(letters[i] for i in best.ids)) == (steps, answer)


def test_sources_that_are_done_are_read_no_more():
    model = Scripted([[5, END, 7, 7, 7, 7], [6, 7, 8, END, 9, 9], [6, 7, 8, 7, 8, 9]])
    answers = search(model, source_of(torch.zeros(3, 3).long()), beam_size=2, longest=[6, 6, 5], length_penalty=0.0)
    assert [of_one[0].ids.tolist() for of_one in answers] == [[5, END], [6, 7, 8, END], [6, 7, 8, 7, 8]]
    assert model.rows == [3, 6, 4, 4, 2]


def test_a_batch_is_searched_as_each_source_alone():
    model, source = model_of("rotary"), padded_source(3)
    options = {"beam_size": 4, "best": 4, "shortest": 2, "no_repeat": 2}
    together = search(model, source, longest=torch.tensor([8, 5, 7]), **options)
    for i, longest in enumerate((8, 5, 7)):
        keep = source.keep[i]
        (alone,) = search(model, source_of(source.ids[i : i + 1, keep]), longest=longest, **options)
        assert [a.ids.tolist() for a in together[i]] == [a.ids.tolist() for a in alone]
        assert [a.score for a in together[i]] == pytest.approx([a.score for a in alone], abs=1e-4)
    assert len({tuple(a.ids.tolist()) for of_one in together for a in of_one}) > 6


def test_the_best_answers_are_distinct_and_in_order():
    for of_one in search(model_of("t5"), padded_source(3), beam_size=6, best=6):
        scores = [answer.score for answer in of_one]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(answer.ids.tolist()) for answer in of_one}) == 6
        assert all(END not in answer.ids[:-1] for answer in of_one)


def test_answers_keep_to_the_lengths_asked_for():
    model, source = model_of("rotary"), padded_source(3)
    free = search(model, source, beam_size=4, best=4, length_penalty=0.0)
    assert min(len(a.ids) for of_one in free for a in of_one) < 4
    bounded = search(model, source, beam_size=4, best=4, length_penalty=0.0, shortest=4, longest=[4, 5, 6])
    for of_one, longest in zip(bounded, (4, 5, 6), strict=True):
        assert all(4 <= len(a.ids) <= longest for a in of_one)
        assert all(len(a.ids) == longest or a.ids[-1] == END for a in of_one)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_no_n_gram_is_written_twice(number):
    model, source = model_of("none"), padded_source(3)

    def repeats(ids):
        grams = [tuple(ids[i : i + number].tolist()) for i in range(len(ids) - number + 1)]
        return len(grams) - len(set(grams))

    options = {"beam_size": 3, "best": 3, "end": -1, "longest": 9}
    assert sum(repeats(a.ids) for of_one in search(model, source, **options) for a in of_one)
    ruled = search(model, source, no_repeat=number, **options)
    assert [len(of_one) for of_one in ruled] == [3] * 3
    assert not sum(repeats(a.ids) for of_one in ruled for a in of_one)


def test_an_answer_ends_where_every_token_is_forbidden():
    model, source = model_of("none"), padded_source(3)
    for of_one in search(model, source, beam_size=3, no_repeat=1, shortest=60, longest=60):
        ids = of_one[0].ids.tolist()
        assert ids[-1] == END
        assert len(set(ids)) == len(ids) < 60


def test_the_likeliest_are_those_of_topk():
    for hypotheses, vocabulary, number in ((1, 5, 5), (1, 64, 3), (3, 700, 2), (4, 700, 8), (10, 1000, 20)):
        log_BHV, totals_BH = torch.randn(7, hypotheses, vocabulary), torch.randn(7, hypotheses)
        wanted = (log_BHV + totals_BH.unsqueeze(-1)).flatten(1).topk(number)
        values, indices = _likeliest(log_BHV, totals_BH, number)
        assert torch.equal(values, wanted.values)
        assert torch.equal(indices, wanted.indices)


def test_a_small_vocabulary_has_unused_continuations():
    values, indices = _likeliest(torch.zeros(1, 1, 3), torch.ones(1, 1), 5)
    assert values.tolist() == [[1, 1, 1, float("-inf"), float("-inf")]]
    assert set(indices.flatten().tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "a beam is 1 hypothesis wide or more, got beam_size 0; 1 is greedy"),
        ({"best": 5}, "expected 1 to 4, got best 5"),
        ({"best": 0}, "expected 1 to 4, got best 0"),
        ({"no_repeat": -1}, "no_repeat is the length of an n-gram, or 0 for no rule; got -1"),
        ({"beam_size": 10**20}, "a beam is 1,000 hypotheses wide at most, got beam_size 100,000,000,000,000,000,000"),
        ({"length_penalty": 1e308}, "the length penalty is 0 or more, 100 at most, got 1e"),
        ({"length_penalty": -0.5}, "the length penalty is 0 or more, got -0.5; 0 ranks by probability alone"),
        ({"shortest": 9}, "expected 0 <= shortest <= longest and longest 1 or more, got shortest 9 and longest 8"),
        ({"longest": 0}, "got shortest 0 and longest 0; both count the end token"),
        ({"longest": [8, 8]}, r"longest is one number, or one for each of the 3 sources; got \(2,\)"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        search(model_of("none"), padded_source(3), **options)


def test_greedy_writes_one_token_or_more():
    with pytest.raises(UserError, match="longest 1 or more, got shortest 0 and longest 0"):
        write(model_of("none"), padded_source(3), longest=0)
