"""Each measure on maps with known values; chance is that of even weights or of random picks."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from jarilab.core.errors import UserError
from jarilab.core.registry import trust_code
from jarilab.inspect.measure.heads import measure, salience
from jarilab.inspect.measure.maps import Map
from jarilab.inspect.measure.measures import MEASURES, Measure, add_measure, mass, registry
from jarilab.inspect.measure.score_fit import _designs
from jarilab.inspect.record.capture import record
from jarilab.models.decoder import LanguageModel
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.recurrent import Recurrent
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens

FULL, CAUSAL = "full", "causal"
NOT_EVEN = {
    "positional",
    "offset",
    "offset_share",
    "key_share",
}  # their chance is that of random picks, or they have none
SELF_ONLY = {"distance", "previous", "duplicate", "induction", "self"}


def mask_of(kind, queries, keys):
    everything = torch.ones(queries, keys, dtype=torch.bool)
    return everything.tril() if kind == CAUSAL else everything


def map_of(weights, tokens=None, allowed=None, *, scores=None, keys=None, same=True, start=0):
    """A map of (Q, K) or (H, Q, K) weights; all tokens differ by default."""
    weights = torch.as_tensor(weights, dtype=torch.float64)
    weights = weights if weights.ndim == 3 else weights.unsqueeze(0)
    rows, columns = weights.shape[1:]
    allowed = torch.ones(rows, columns, dtype=torch.bool) if allowed is None else allowed
    names = [f"t{i}" for i in range(max(rows, columns))]
    q_order, k_order = torch.arange(start, start + rows), torch.arange(start, start + columns)
    return Map(
        weights,
        torch.zeros_like(weights)
        if scores is None
        else torch.as_tensor(scores, dtype=torch.float64).expand_as(weights),
        allowed,
        list(tokens or names[:rows]),
        list(keys or tokens or names[:columns]),
        q_order.unsqueeze(-1).double(),
        k_order.unsqueeze(-1).double(),
        q_order,
        k_order,
        same,
    )


def even(allowed):
    return allowed.double() / allowed.sum(-1, keepdim=True).clamp_min(1)


def random_map(kind=FULL, heads=3, length=7, tokens="abcabca", **options):
    allowed = mask_of(kind, length, length)
    scores = torch.randn(heads, length, length, dtype=torch.float64)
    weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
    return map_of(weights, tokens, allowed, scores=scores, **options)


def value(name, map):
    return MEASURES[name].of(map).value.tolist()


def chance(name, map):
    return MEASURES[name].of(map).chance.tolist()


NAN = pytest.approx(math.nan, nan_ok=True)

# The table -----------------------------------------------------------------------------------------------------------


def test_measures_are_ordered_and_described():
    map = random_map()
    assert list(measure(map)) == list(MEASURES)
    for name, one in MEASURES.items():
        assert registry.spec(name).target is type(one)
        assert one.about.endswith(".")
        assert len({other.label for other in MEASURES.values()}) == len(MEASURES)


@pytest.mark.parametrize("kind", [FULL, CAUSAL])
@pytest.mark.parametrize("same", [True, False], ids=["self", "cross"])
def test_measures_are_in_their_range(kind, same):
    for name, scored in measure(random_map(kind, same=same)).items():
        assert scored.value.shape == scored.chance.shape == (3,)
        assert scored.value.isnan().any() == (not same and name in SELF_ONLY), name
        if MEASURES[name].range is not None and not scored.value.isnan().any():
            low, high = MEASURES[name].range
            assert (scored.value >= low).all()
            assert (scored.value <= high).all()
            assert low <= scored.chance[0] <= high


@pytest.mark.parametrize("kind", [FULL, CAUSAL])
@pytest.mark.parametrize("name", [name for name in MEASURES if name not in NOT_EVEN])
def test_even_weights_equal_chance(name, kind):
    allowed = mask_of(kind, 7, 7)
    map = map_of(torch.stack([even(allowed)] * 2), "abcabca", allowed)
    scored = MEASURES[name].of(map)
    assert not scored.value.isnan().any()
    assert torch.equal(scored.value, scored.chance)


@pytest.mark.parametrize("kind", [FULL, CAUSAL])
def test_measures_follow_the_order_of_heads(kind):
    map, order = random_map(kind), torch.tensor([2, 0, 1])
    turned = dataclasses.replace(map, weights=map.weights[order], scores=map.scores[order])
    for name, scored in measure(map).items():
        torch.testing.assert_close(MEASURES[name].of(turned).value, scored.value[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [FULL, CAUSAL])
def test_measures_do_not_depend_on_the_first_position(kind):
    torch.manual_seed(1)
    near = measure(random_map(kind))
    torch.manual_seed(1)
    far = measure(random_map(kind, start=1000))
    for name in MEASURES:
        torch.testing.assert_close(far[name].value, near[name].value, equal_nan=True)


# Sharpness ---------------------------------------------------------------------------------------------------------


def test_entropy_effective_keys_and_confidence_of_known_rows():
    one, two = [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]
    map = map_of([[one, one, two, two], [two, two, two, two]])
    assert value("entropy", map) == pytest.approx([0.25, 0.5])
    assert value("effective_keys", map) == pytest.approx([1.5, 2.0])
    assert value("confidence", map) == pytest.approx([0.75, 0.5])
    assert chance("entropy", map) == pytest.approx([1, 1])
    assert chance("effective_keys", map) == pytest.approx([4, 4])
    assert chance("confidence", map) == pytest.approx([0.25, 0.25])


def test_entropy_omits_queries_with_one_key():
    """The first row of a causal map has one key, whatever the model learned."""
    allowed = mask_of(CAUSAL, 3, 3)
    map = map_of(even(allowed), None, allowed)
    assert value("entropy", map) == pytest.approx([1.0])
    assert value("effective_keys", map) == pytest.approx([2.0])
    assert chance("confidence", map) == pytest.approx([(1 + 1 / 2 + 1 / 3) / 3])


# Position ----------------------------------------------------------------------------------------------------------


def test_measures_of_a_head_that_attends_to_itself():
    map = map_of(torch.eye(5))
    assert value("self", map) == [1.0]
    assert chance("self", map) == pytest.approx([0.2])
    for name in ("entropy", "distance", "previous", "offset"):
        assert value(name, map) == [0.0], name
    assert value("confidence", map) == value("effective_keys", map) == value("positional", map) == [1.0]


@pytest.mark.parametrize("kind", [FULL, CAUSAL])
def test_measures_of_a_previous_token_head(kind):
    weights = torch.eye(5).roll(-1, 1)
    weights[0] = torch.eye(5)[0]
    map = map_of(weights, None, mask_of(kind, 5, 5))
    assert value("previous", map) == [1.0]
    assert value("offset", map) == [-1.0]
    assert value("positional", map) == pytest.approx([0.8 if kind == FULL else 1.0])  # query 0 has no previous token
    assert value("distance", map) == pytest.approx([0.8])
    assert chance("previous", map) == pytest.approx([0.2] if kind == FULL else [(1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 4])
    assert value("self", map) == pytest.approx([0.2])


def test_previous_token_follows_order_not_position():
    """Positions may be moved, or all be 0; the order stays."""
    map = map_of(torch.eye(4).roll(-1, 1))
    moved = dataclasses.replace(map, q_at=torch.zeros(4, 1).double(), k_at=torch.zeros(4, 1).double())
    assert value("previous", moved) == value("previous", map) == [1.0]
    assert value("distance", map) == pytest.approx([(3 + 1 + 1 + 1) / 4])
    assert value("distance", moved) == [0.0]


def test_distance_in_a_grid_is_euclidean():
    map = map_of([[0, 0, 0, 1.0]] * 4)
    at = torch.tensor([[0.0, 0], [0, 3], [4, 0], [4, 3]], dtype=torch.float64)
    assert value("distance", dataclasses.replace(map, q_at=at, k_at=at)) == pytest.approx([(5 + 4 + 3 + 0) / 4])


def test_commonest_offset_is_not_the_mean():
    rows = torch.tensor([2, 3, 4, 4, 4, 4])
    map = map_of(torch.nn.functional.one_hot(rows, 6))
    assert value("offset", map) == [2.0]
    assert value("positional", map) == pytest.approx([0.5])


def test_tied_largest_weights_count_in_parts():
    """Counting the first of them would give a head with even weights a commonest offset."""
    map = map_of(torch.full((1, 4, 4), 0.25))
    assert value("positional", map) == pytest.approx([0.25])
    assert value("offset", map) == [0.0]
    for noise in (1e-15, 1e-6):  # the last bits of float64, and of a float32 forward with other threads
        nearly = dataclasses.replace(map, weights=map.weights + torch.randn(1, 4, 4).double() * noise)
        assert value("positional", nearly) == pytest.approx([0.25])
        assert value("offset", nearly) == [0.0]


def test_chance_of_the_commonest_offset_is_that_of_random_picks():
    """Above 1 / 4, since the commonest offset is chosen afterwards. Counted over all picks of 4 queries."""
    shares = []
    for number in range(4**4):
        keys = [number // 4**i % 4 for i in range(4)]
        offsets = [key - query for query, key in enumerate(keys)]
        shares.append(max(offsets.count(offset) for offset in offsets) / 4)
    exact = sum(shares) / len(shares)
    assert exact > 0.43
    map = map_of(torch.full((2, 4, 4), 0.25))
    assert chance("positional", map) == pytest.approx([exact] * 2, abs=0.04)
    assert chance("positional", map) == chance("positional", map)
    assert chance("offset", map) == [NAN, NAN]
    before = torch.get_rng_state()
    measure(map)
    assert torch.equal(torch.get_rng_state(), before)


def test_sink_is_the_weight_on_the_first_key():
    first = torch.zeros(4, 4)
    first[:, 0] = 1
    assert value("sink", map_of(first)) == [1.0]
    assert chance("sink", map_of(first)) == pytest.approx([0.25])
    assert value("sink", map_of(torch.eye(4))) == pytest.approx([0.25])
    # The first key is padding: key 1 is the first that queries may attend to, and query 0 does not count.
    allowed = torch.ones(4, 4, dtype=torch.bool)
    allowed[:, 0] = False
    second = torch.zeros(4, 4)
    second[:, 1] = torch.tensor([1.0, 0.5, 0.5, 0.5])
    assert value("sink", map_of(second, None, allowed)) == pytest.approx([0.5])
    assert value("sink", map_of(second, None, allowed, same=False)) == pytest.approx([2.5 / 4])


# Tokens ------------------------------------------------------------------------------------------------------


def test_duplicate_is_the_weight_on_other_equal_tokens():
    weights = [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.6, 0.0, 0.4]]
    map = map_of(weights, "aba")
    assert value("duplicate", map) == pytest.approx([(0.7 + 0.6) / 2])
    assert chance("duplicate", map) == pytest.approx([1 / 3])
    causal = map_of([[1.0, 0, 0], [0.5, 0.5, 0], [0.6, 0.0, 0.4]], "aba", mask_of(CAUSAL, 3, 3))
    assert value("duplicate", causal) == pytest.approx([0.6])
    assert value("duplicate", map_of(weights, "abc")) == [NAN]


def test_induction_is_the_weight_after_earlier_equal_tokens():
    block = "abcd" * 2
    allowed = mask_of(CAUSAL, 8, 8)
    weights = torch.zeros(8, 8)
    weights[:4, 0] = 1
    for i in range(4, 8):
        weights[i, i - 3] = 1
    map = map_of(torch.stack((weights.double(), even(allowed))), block, allowed)
    assert value("induction", map) == pytest.approx([1.0, (1 / 5 + 1 / 6 + 1 / 7 + 1 / 8) / 4])
    assert chance("induction", map)[0] == pytest.approx((1 / 5 + 1 / 6 + 1 / 7 + 1 / 8) / 4)
    assert value("duplicate", map)[0] == 0.0


def test_induction_counts_all_earlier_occurrences():
    weights = torch.zeros(5, 5)
    weights[:, :] = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1])
    # a b a c a: query 2 has b; query 4 has b and c; queries 0, 1 and 3 have nothing.
    assert value("induction", map_of(weights, "abaca")) == pytest.approx([(0.2 + 0.5) / 2])
    # a a: what came after the first a is the second itself.
    assert value("induction", map_of([[1.0, 0], [0.3, 0.7]], "aa")) == pytest.approx([0.7])
    assert value("induction", map_of(weights, "abcde")) == [NAN]


# Explained variance ------------------------------------------------------------------------------------------


def score_map(scores, kind):
    allowed = mask_of(kind, *scores.shape[-2:])
    return map_of(scores.masked_fill(~allowed, -math.inf).softmax(-1), None, allowed, scores=scores)


@pytest.mark.parametrize("kind", [FULL, CAUSAL])
def test_scores_of_one_cause_are_fully_explained(kind):
    i = torch.arange(9)
    by_offset = torch.randn(17).double()[i - i.unsqueeze(-1) + 8]
    by_key = torch.randn(9).double().expand(9, 9)
    assert value("offset_share", score_map(by_offset, kind)) == pytest.approx([1.0])
    assert value("key_share", score_map(by_key, kind)) == pytest.approx([1.0])
    assert value("offset_share", score_map(by_key, kind))[0] < 0.95
    assert value("key_share", score_map(by_offset, kind))[0] < 0.95


@pytest.mark.parametrize("kind", [FULL, CAUSAL])
def test_constants_of_a_query_do_not_count(kind):
    """The softmax does not depend on it, and in most heads it is the larger part of the variance."""
    scores = torch.randn(9, 9).double()
    for name in ("offset_share", "key_share"):
        shifted = score_map(scores + 100 * torch.randn(9, 1).double(), kind)
        assert value(name, shifted) == pytest.approx(value(name, score_map(scores, kind)))


@pytest.mark.parametrize("kind", [FULL, CAUSAL])
@pytest.mark.parametrize("name", ["offset_share", "key_share"])
def test_explained_share_equals_least_squares(name, kind):
    scores = torch.randn(6, 6).double()
    map = score_map(scores, kind)
    row, column = map.allowed.nonzero().unbind(-1)
    label = column - row + 5 if name == "offset_share" else column
    one_hot = torch.nn.functional.one_hot
    queries, design = one_hot(row).double(), one_hot(label).double()
    y = scores[row, column].unsqueeze(-1)

    def left_over(matrix):
        return (y - matrix @ torch.linalg.lstsq(matrix, y, driver="gelsd").solution).square().sum()

    wanted = 1 - left_over(torch.cat((queries, design), 1)) / left_over(queries)
    assert value(name, map) == pytest.approx([wanted.item()])
    both = torch.linalg.matrix_rank(torch.cat((queries, design), 1)).item()
    assert chance(name, map) == pytest.approx([(both - 6) / (len(y) - 6)])


def test_random_scores_are_explained_by_chance():
    maps = [score_map(torch.randn(6, 6).double(), CAUSAL) for _ in range(150)]
    for name in ("offset_share", "key_share"):
        mean = sum(value(name, map)[0] for map in maps) / len(maps)
        assert mean == pytest.approx(chance(name, maps[0])[0], abs=0.04)
        assert chance(name, maps[0])[0] > 0.3, "few tokens are explained by anything"


def test_constant_scores_are_undefined():
    for scores in (torch.full((5, 5), 3.0), 1e3 + 1e-5 * torch.randn(5, 5)):  # the round-off of float32
        assert value("offset_share", score_map(scores.double(), FULL)) == [NAN]


def test_disconnected_groups_of_keys_are_counted():
    """Two documents in one sequence."""
    allowed = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).bool()
    map = map_of(even(allowed), None, allowed, scores=torch.randn(6, 6))
    assert chance("key_share", map) == pytest.approx([4 / 12])


# Edge cases -----------------------------------------------------------------------------------------------------------


def test_one_token():
    measured = {name: scored.value.tolist() for name, scored in measure(map_of([[1.0]], "a")).items()}
    assert measured["confidence"] == measured["self"] == measured["sink"] == measured["effective_keys"] == [1.0]
    assert measured["distance"] == [0.0]
    for name in ("entropy", "previous", "positional", "offset", "duplicate", "induction", "offset_share", "key_share"):
        assert measured[name] == [NAN], name


def test_one_key_for_every_query():
    allowed = torch.eye(4, dtype=torch.bool)
    measured = measure(map_of(torch.eye(4), "abab", allowed))
    assert measured["self"].value.tolist() == measured["self"].chance.tolist() == [1.0]
    for name in ("entropy", "previous", "positional", "offset", "duplicate", "induction", "offset_share", "key_share"):
        assert measured[name].value.isnan().all(), name
        assert measured[name].chance.isnan().all(), name


@pytest.mark.parametrize("name", MEASURES)
def test_query_without_keys_changes_no_measure(name):
    """A row of zeros beside three others changes no value and makes none undefined."""
    full = random_map(length=4, tokens="abab")
    allowed, weights = full.allowed.clone(), full.weights.clone()
    allowed[1], weights[:, 1] = False, 0.0
    masked = MEASURES[name].of(dataclasses.replace(full, allowed=allowed, weights=weights))
    rows = torch.tensor([0, 2, 3])
    cut = dataclasses.replace(
        full,
        weights=full.weights[:, rows],
        scores=full.scores[:, rows],
        allowed=full.allowed[rows],
        queries=["a", "a", "b"],
        q_at=full.q_at[rows],
        q_order=full.q_order[rows],
    )
    wanted = MEASURES[name].of(cut)
    assert not wanted.value.isnan().any()
    torch.testing.assert_close(masked.value, wanted.value)
    torch.testing.assert_close(masked.chance, wanted.chance, equal_nan=name == "offset")


def test_map_without_links_is_undefined():
    map = map_of(torch.zeros(2, 3, 3), "aba", torch.zeros(3, 3, dtype=torch.bool))
    for scored in measure(map).values():
        assert scored.value.isnan().all()
        assert scored.chance.isnan().all()


def test_wrong_number_of_names_raises():
    message = "expected a name for each of the 3 queries, got 2; name every token"
    with pytest.raises(UserError, match=message):
        map_of(torch.eye(3), "ab")
    with pytest.raises(UserError, match="expected a name for each of the 3 keys, got 4"):
        map_of(torch.eye(3), "abc", keys="abcd")


# From a tape ---------------------------------------------------------------------------------------------------------


SOURCE, TARGET = list("21+211"), list("<23")


def taped(model, *inputs):
    initialise(model, 4)
    with record(model.eval()) as tape:
        model(*inputs)
    return tape


def ids(length):
    return torch.arange(length).unsqueeze(0) + 1


def test_map_of_each_kind_of_site():
    tape = taped(EncoderDecoder(9, 9, d_model=16, n_heads=2, encoding="rotary"), ids(6), ids(3))
    encoder = Map.of(tape, "encoder.1", SOURCE, SOURCE)
    decoder = Map.of(tape, "decoder.0.self", TARGET, TARGET)
    cross = Map.of(tape, "decoder.1.cross", TARGET, SOURCE)
    assert (encoder.same, decoder.same, cross.same) == (True, True, False)
    assert encoder.allowed.all()
    assert torch.equal(decoder.allowed, mask_of(CAUSAL, 3, 3))
    assert cross.allowed.shape == (3, 6)
    torch.testing.assert_close(decoder.weights, tape.weights("decoder.0.self")[0].double(), rtol=0, atol=0)
    torch.testing.assert_close(decoder.scores, tape.scores("decoder.0.self")[0].double(), rtol=0, atol=0)
    assert decoder.q_at.flatten().tolist() == decoder.q_order.tolist() == [0, 1, 2]
    assert not measure(decoder)["previous"].value.isnan().any()
    assert measure(cross)["previous"].value.tolist() == [NAN, NAN]


def test_padding_and_empty_queries_are_hidden_in_the_map():
    keep = torch.tensor([[False, False, True, True]])
    tokens = Tokens(ids(4), Positions.from_mask(keep), keep)
    map = Map.of(
        taped(LanguageModel(9, d_model=16, n_heads=2, encoding="alibi"), tokens), "decoder.0.self", "aabc", "aabc"
    )
    assert map.allowed.int().tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert map.q_at.flatten().tolist() == [0, 0, 0, 1]
    assert map.count.tolist() == [0, 0, 1, 2]


def test_sliding_window_is_in_the_map():
    tape = taped(LanguageModel(9, d_model=16, n_heads=2, window=2), ids(4))
    map = Map.of(tape, "decoder.1.self", "abcd", "abcd")
    assert map.count.tolist() == [1, 2, 2, 2]


@pytest.mark.parametrize("input_feeding", [True, False])
def test_steps_of_a_recurrent_decoder_are_one_map(input_feeding):
    tape = taped(Recurrent(9, 9, d_model=8, input_feeding=input_feeding), ids(6), ids(3))
    (site,) = tape.sites
    map = Map.of(tape, site, TARGET, SOURCE)
    assert map.weights.shape == (1, 3, 6)
    assert map.q_order.tolist() == [0, 1, 2]
    assert not map.same
    assert measure(map)["confidence"].value.item() == pytest.approx(tape.weights(site)[0].amax(-1).mean().item())


def test_batch_of_several_raises():
    tape = taped(LanguageModel(9, d_model=16, n_heads=2), torch.ones(2, 4, dtype=torch.int64))
    with pytest.raises(UserError, match=r"a map is of one input, got a batch of 2; take one of them by tape\.row"):
        Map.of(tape, "decoder.0.self", "abcd", "abcd")


@pytest.mark.filterwarnings("ignore")
def test_an_input_without_tokens_raises():
    attention = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    with torch.no_grad(), record(attention) as tape:
        attention(torch.randn(1, 0, 16))
    with pytest.raises(UserError, match=r"expected queries and keys at .*; record an input that has tokens"):
        tape.measures()


# Custom measures --------------------------------------------------------------------------------------------

MINE = Path(__file__).parents[4] / "examples" / "my_measure.py"


class Backwards(Measure):
    """The weight on keys before the query."""

    label = "backwards"

    def value(self, map):
        return mass(map, map.ahead < 0)


@pytest.fixture
def tape():
    model = LanguageModel(11, d_model=16, n_heads=2, n_layers=1).eval()
    with record(model) as tape:
        model(Tokens(torch.tensor([[1, 2, 3, 1]]), Positions.sequence(4)))
    return tape


@pytest.fixture
def table():
    """The table; removes what the test adds."""
    before = dict(MEASURES)
    yield MEASURES
    MEASURES.clear()
    MEASURES.update(before)


def test_measures_are_selected_by_spec_or_instance(tape):
    trust_code(MINE)
    near, far = f"{MINE}:Nearby", f"{MINE}:Nearby:within=3"
    scored = tape.measures(None, ["entropy", near, far, Backwards()])["decoder.0.self"]
    assert list(scored) == ["entropy", near, far, "Backwards"]
    torch.testing.assert_close(scored[far].value, torch.ones(2, dtype=torch.float64))
    # Of 1, 2, 3 and 4 keys that each query may look at, 1, 2, 2 and 2 are near.
    torch.testing.assert_close(scored[near].chance, torch.full((2,), (1 + 1 + 2 / 3 + 2 / 4) / 4, dtype=torch.float64))


def test_added_measure_is_on_pages_and_tapes(tape, table):
    add_measure(Backwards())
    assert "Backwards" in table
    assert "Backwards" in tape.measures()["decoder.0.self"]
    page = tape.show(["a", "b", "c", "a"]).html
    assert "The weight on keys before the query." in page


def test_measure_in_an_untrusted_file_raises(tape, tmp_path):
    canary = tmp_path / "executed"
    (tmp_path / "theirs.py").write_text(f"open({str(canary)!r}, 'w').close()")
    with pytest.raises(UserError, match=r"theirs\.py.*trust_code"):
        tape.measures(None, [f"{tmp_path / 'theirs.py'}:Mine"])
    assert not canary.exists()


def test_invalid_measures_raise(tape, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import jarilab\nclass Other: pass\nclass Half(jarilab.Measure): pass\n")
    trust_code(file)
    with pytest.raises(UserError, match=r"Other: expected a subclass of .*Measure, got .*; derive"):
        tape.measures(None, [f"{file}:Other"])
    with pytest.raises(UserError, match=r"Half: expected all methods .*, got none for value; define"):
        tape.measures(None, [f"{file}:Half"])
    with pytest.raises(UserError, match="did you mean 'entropy'"):
        tape.measures(None, ["entrop"])


def test_measure_of_another_shape_raises(tape):
    class PerQuery(Backwards):
        def value(self, map):
            return map.weights.amax(-1)

    with pytest.raises(UserError, match=r"PerQuery: .*2 heads, got shape \(2, 4\); reduce"):
        tape.measures(None, [PerQuery()])


def test_salience_of_an_even_head_is_zero_and_of_a_previous_token_head_large():
    length = 5
    before = torch.eye(length, dtype=torch.float64).roll(-1, 1)
    before[0] = 1 / length
    even = torch.full((length, length), 1 / length, dtype=torch.float64)
    weights = torch.stack([even, before])
    order = torch.arange(length)
    place = order.unsqueeze(-1).double()
    names = list("abcde")
    allowed = torch.ones(length, length, dtype=torch.bool)
    map = Map(weights, torch.zeros_like(weights), allowed, names, names, place, place, order, order, True)
    even_salience, previous_salience = salience(map).tolist()
    assert even_salience == pytest.approx(0, abs=1e-12)
    assert previous_salience == pytest.approx(1 - 1 / length), "all weight on the previous token; chance is a fifth"


def test_rows_above_1_are_measured_by_their_shares():
    shares = torch.rand(2, 4, 4).softmax(-1)
    expected, measured = (measure(map_of(weights)) for weights in (shares, 3 * shares))
    for name in expected:
        torch.testing.assert_close(measured[name].value, expected[name].value, equal_nan=True)
    below = measure(map_of(torch.full((4, 4), 0.125)))["sink"]
    assert below.value.tolist() == [0.125]


def test_of_many_queries_a_sample_is_measured_and_it_says_so(monkeypatch):
    map = random_map(CAUSAL, length=12, tokens="abcabcabcabc")
    monkeypatch.setattr("jarilab.inspect.measure.heads.MAX_QUERIES", 4)
    sampled = measure(map)
    rows = torch.tensor([0, 4, 7, 11])
    assert {scored.partial for scored in sampled.values()} == {"4 of 12 queries, evenly spaced"}
    assert torch.equal(sampled["confidence"].value, map.weights[:, rows].amax(-1).mean(-1))
    assert torch.equal(sampled["self"].value, map.weights[:, rows, rows].mean(-1))
    assert measure(random_map(length=4, tokens="abca"))["self"].partial == ""


def test_queries_of_padding_are_left_out_and_it_says_so():
    alone = random_map(FULL, length=5, tokens="abcab")
    weights, scores = torch.full((2, *alone.weights.shape[:1], 8, 8), 1 / 8, dtype=torch.float64)
    weights[:, :5], scores[:, :5, :5] = 0.0, alone.scores
    weights[:, :5, :5] = alone.weights
    allowed = torch.zeros(8, 8, dtype=torch.bool)
    allowed[:, :5] = True
    padded = measure(map_of(weights, "abcab___", allowed, scores=scores))
    assert {scored.partial for scored in padded.values()} == {"without 3 queries of padding"}
    for name, scored in measure(alone).items():
        torch.testing.assert_close(padded[name].value, scored.value, equal_nan=True, msg=name)
    assert torch.equal(salience(map_of(weights, "abcab___", allowed, scores=scores)), salience(alone))


def test_no_query_is_taken_for_padding_where_none_may_attend_to_itself():
    earlier = torch.ones(4, 4, dtype=torch.bool).tril(-1)
    scored = measure(map_of(earlier / earlier.sum(-1, keepdim=True).clamp_min(1), "abcd", earlier))
    assert scored["sink"].partial == ""


def test_a_head_with_a_mask_of_its_own_is_measured_by_it():
    whole, near = mask_of(CAUSAL, 6, 6), mask_of(CAUSAL, 6, 6).triu(-1)
    scores = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[1] = scores[1].masked_fill(~near, -torch.inf)
    weights = scores.masked_fill(~whole, -torch.inf).softmax(-1)
    both = measure(map_of(weights, "abcabc", whole, scores=scores))
    for head, mask in enumerate((whole, near)):
        alone = measure(map_of(weights[head], "abcabc", mask, scores=scores[head]))
        for name, scored in alone.items():
            assert torch.equal(both[name].value[head : head + 1].nan_to_num(-9), scored.value.nan_to_num(-9)), name
            assert torch.equal(both[name].chance[head : head + 1].nan_to_num(-9), scored.chance.nan_to_num(-9)), name


def test_a_fit_is_not_that_of_another_mask_or_other_labels():
    """Parts of a fit are used again for the same mask and labels."""
    maps = [random_map(kind) for kind in (FULL, CAUSAL, FULL)]
    later = [dataclasses.replace(map, k_order=map.k_order.flip(0), q_order=map.q_order * 2) for map in maps]
    together = [value(name, map) for map in [*maps, *later] for name in ("offset_share", "key_share")]
    alone = []
    for map in [*maps, *later]:
        for name in ("offset_share", "key_share"):
            _designs.clear()
            alone.append(value(name, map))
    assert together == alone
