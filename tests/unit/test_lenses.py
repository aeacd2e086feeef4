"""What maps say together or beside something known, on cases worked out by hand."""

import itertools
import math

import pytest
import torch

from jarilab.errors import UserError
from jarilab.inspect.alignment import alignment, alignment_error_rate, pharaoh
from jarilab.inspect.digit_places import Place, place_share, places_of
from jarilab.inspect.head_matching import divergence, match_heads
from jarilab.inspect.induction import induction_ids, induction_score
from jarilab.inspect.maps import Map
from jarilab.inspect.measures import MEASURES
from jarilab.inspect.rollout import rollout


def map_of(weights, allowed=None, *, names=None, same=True):
    weights = torch.as_tensor(weights, dtype=torch.float64)
    weights = weights if weights.ndim == 3 else weights.unsqueeze(0)
    rows, columns = weights.shape[1:]
    allowed = torch.ones(rows, columns, dtype=torch.bool) if allowed is None else allowed
    q_order, k_order = torch.arange(rows), torch.arange(columns)
    at = [order.unsqueeze(-1).double() for order in (q_order, k_order)]
    names = names or [f"t{i}" for i in range(max(rows, columns))]
    return Map(weights, torch.zeros_like(weights), allowed, names[:rows], names[:columns], *at, q_order, k_order, same)


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).tril()


# Induction -----------------------------------------------------------------------------------------------------------


def test_the_block_is_random_and_comes_again():
    ids = induction_ids(range(3, 40), 8, copies=3, first=1, seed=5)
    assert ids.shape == (1, 25)
    assert ids[0, 0] == 1
    blocks = ids[0, 1:].view(3, 8)
    assert torch.equal(blocks[0], blocks[1])
    assert torch.equal(blocks[0], blocks[2])
    assert len(blocks[0].unique()) == 8
    assert set(blocks[0].tolist()) <= set(range(3, 40))
    assert torch.equal(induction_ids(range(3, 40), 8, copies=3, first=1, seed=5), ids)
    assert not torch.equal(induction_ids(range(3, 40), 8, copies=3, first=1, seed=6), ids)


@pytest.mark.parametrize("first", [False, True])
def test_an_induction_head_has_all_of_the_score_and_even_weights_have_chance(first):
    block, length = 4, 8 + first
    head = torch.zeros(length, length)
    head[:, 0] = 1
    for i in range(block + first, length):
        head[i] = torch.nn.functional.one_hot(torch.tensor(i - block + 1), length)
    allowed = causal(length)
    even = allowed.double() / allowed.sum(-1, keepdim=True)
    names = [str(number) for number in induction_ids(range(50), block, first=99 if first else None)[0].tolist()]
    map = map_of(torch.stack((head.double(), even)), allowed, names=names)
    scored = induction_score(map, block, first=first)
    wanted = sum(1 / (i + 1) for i in range(block + first, length)) / block
    assert scored.value.tolist() == pytest.approx([1.0, wanted])
    assert scored.chance.tolist() == pytest.approx([wanted, wanted])
    assert torch.equal(MEASURES["induction"].of(map).value, scored.value), "the same as on any other tokens"


def test_a_block_that_cannot_be_is_refused():
    with pytest.raises(UserError, match=r"2 to 5 different tokens, as many as there are to draw from, got block=6"):
        induction_ids(range(5), 6)
    with pytest.raises(UserError, match="a block and at least one copy of it, copies=2 or more, got copies=1"):
        induction_ids(range(5), 3, copies=1)
    told = "copies of a block of 3 tokens, got 7 queries and 7 keys; make the tokens with induction_ids"
    with pytest.raises(UserError, match=told):
        induction_score(map_of(torch.eye(7)), 3)
    with pytest.raises(UserError, match="expected a map of a sequence with itself"):
        induction_score(map_of(torch.eye(6), same=False), 3)


# Rollout -------------------------------------------------------------------------------------------------------------


def test_rollout_of_two_layers_by_hand():
    swap, even = torch.tensor([[0.0, 1], [1, 0]]), torch.full((2, 2), 0.5)
    first = map_of(torch.stack((swap, torch.eye(2))))  # on the mean of heads: half itself, half the other
    assert torch.equal(rollout([first]), torch.tensor([[0.75, 0.25], [0.25, 0.75]]).double())
    layers = [map_of(swap), map_of([[1.0, 0], [0.5, 0.5]])]
    # ((A_2 + I) / 2) ((A_1 + I) / 2) = [[1, 0], [1/4, 3/4]] [[1/2, 1/2], [1/2, 1/2]]
    torch.testing.assert_close(rollout(layers), even.double())
    backwards = rollout(layers[::-1])
    torch.testing.assert_close(backwards, torch.tensor([[0.625, 0.375], [0.625, 0.375]]).double())


def test_rollout_is_for_encoders():
    with pytest.raises(UserError, match="rollout is for encoders only, layer 1 is causal: the first tokens would win"):
        rollout([map_of(torch.eye(3)), map_of(torch.eye(3), causal(3))])
    with pytest.raises(UserError, match="rollout is for encoders only, layer 0 is cross-attention; leave it out"):
        rollout([map_of(torch.eye(3), same=False)])
    with pytest.raises(UserError, match="expected the maps of an encoder's layers, the first layer first, got none"):
        rollout([])
    with pytest.raises(UserError, match=r"maps of one encoder, \(3, 3\) each, got \(2, 2\) in layer 1"):
        rollout([map_of(torch.eye(3)), map_of(torch.eye(2))])
    assert rollout([map_of([[1.0]])]).tolist() == [[1.0]]


# Divergence ----------------------------------------------------------------------------------------------------------


def test_the_divergence_of_known_rows():
    p = torch.tensor([[[1.0, 0], [1, 0]], [[0.5, 0.5], [0.5, 0.5]]])
    q = torch.tensor([[[0.0, 1], [1, 0]]])
    between = divergence(p, q)
    half = 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2)  # of (1, 0) and (1/2, 1/2)
    assert between.shape == (2, 1)
    assert between[:, 0].tolist() == pytest.approx([math.log(2) / 2, half])
    assert divergence(p, p).diagonal().tolist() == [0.0, 0.0]
    torch.testing.assert_close(divergence(q, p), between.t())
    assert divergence(torch.eye(3)[None], torch.eye(3).roll(1, 0)[None]).item() == pytest.approx(math.log(2))


def test_a_query_without_keys_does_not_count_as_agreement():
    p = torch.tensor([[[1.0, 0], [0, 0]]])
    q = torch.tensor([[[0.0, 1], [0, 0]]])
    assert divergence(p, q).item() == pytest.approx(math.log(2))
    assert divergence(p * 0, q * 0).isnan().all()


def test_maps_of_different_inputs_have_no_divergence(unchecked):
    told = r"the same queries and keys, got \(2, 3\) and \(3, 3\); give both models the same input"
    with pytest.raises(UserError, match=told):
        divergence(torch.rand(1, 2, 3), torch.rand(1, 3, 3))


@pytest.mark.parametrize(("heads", "others"), [(1, 1), (4, 4), (5, 5), (3, 6), (6, 3)])
def test_the_matching_is_the_best_of_all(heads, others):
    for seed in range(20):
        cost = torch.rand(heads, others, generator=torch.Generator().manual_seed(seed)).double()
        wide = cost if heads <= others else cost.t()
        orders = itertools.permutations(range(wide.shape[1]), len(wide))
        best = min(sum(wide[h, g].item() for h, g in enumerate(order)) for order in orders)
        matching = match_heads(cost)
        assert len({h for h, _ in matching.pairs}) == len({g for _, g in matching.pairs}) == len(wide)
        assert sum(cost[pair].item() for pair in matching.pairs) == pytest.approx(best)
        assert matching.distance == pytest.approx(best / len(wide))


def test_the_nearest_pair_is_not_always_in_the_best_matching():
    matching = match_heads(torch.tensor([[0.1, 0.2], [0.2, 0.9]]))
    assert matching.pairs == [(0, 1), (1, 0)]
    assert matching.distance == pytest.approx(0.2)


def test_heads_that_changed_places_are_found():
    maps = torch.randn(16, 5, 5).softmax(-1)
    order = torch.randperm(16)
    matching = match_heads(divergence(maps, maps[order]))
    assert [order[g].item() for _, g in matching.pairs] == list(range(16))
    assert matching.distance == pytest.approx(0, abs=1e-12)
    with pytest.raises(UserError, match="heads can be matched by finite divergences only"):
        match_heads(torch.tensor([[math.nan]]))


# Alignment -----------------------------------------------------------------------------------------------------------


def test_the_alignment_error_rate_by_hand():
    weights = torch.tensor([[0.9, 0.1, 0], [0.2, 0.1, 0.7], [0, 0, 0], [0.3, 0.3, 0.4]])
    assert alignment(weights) == [(0, 0), (1, 2), (3, 2)]
    # A = {00, 12, 32}, S = {00, 21}, P = {00, 21, 12}: 1 - (1 + 2) / (3 + 2)
    assert alignment_error_rate(weights, {(0, 0), (2, 1)}, {(1, 2)}) == pytest.approx(0.4)
    everything = alignment(weights)
    assert alignment_error_rate(weights, everything, []) == 0.0
    assert alignment_error_rate(weights, [(2, 0)], []) == 1.0


def test_pharaoh_puts_the_source_first():
    assert pharaoh("0-0 1-2  12-3\n") == [(0, 0), (2, 1), (3, 12)]
    assert pharaoh("") == []
    for wrong in ("0-0 1:2", "0-0 1-", "0-0 -1-2", "0-0 1-2-3", "0-0 １-2"):
        with pytest.raises(UserError, match=r"links such as 0-0 1-2, .* got '.*' as link 2; possible links go on a"):
            pharaoh(wrong)


def test_links_outside_of_the_map_are_refused():
    told = r"the map has 2 target and 3 source words, counted from 0, got the link 1-2 \(source-target\); cut first"
    with pytest.raises(UserError, match=told):
        alignment_error_rate(torch.eye(2, 3), pharaoh("0-0 1-2"), [])
    with pytest.raises(UserError, match="got the link 3-0"):
        alignment_error_rate(torch.eye(2, 3), [], [(0, 3)])
    with pytest.raises(UserError, match="there is nothing to compare: no query has a key, and no link is sure"):
        alignment_error_rate(torch.zeros(2, 3), [], [(0, 0)])


# Digit places --------------------------------------------------------------------------------------------------------


def test_the_places_of_a_sum():
    left = [Place("left", 1), Place("left", 0), Place("operator")]
    right = [Place("right", 2), Place("right", 1), Place("right", 0)]
    answer = [Place("answer", 2, False), Place("answer", 1, False), Place("answer", 0, False)]
    assert places_of("21+211=232") == [*left, *right, Place("equals"), *answer]
    assert places_of("21-211") == [*left, *right]
    assert places_of(["<s>", *"1+2", "=", "</s>"]) == [
        Place("other"), Place("left", 0), Place("operator"), Place("right", 0), Place("equals"), Place("other"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "carries"),
    [
        ("95+7=102", "110"),  # into the hundreds and the tens
        ("999+1=1000", "1110"),
        ("12+34=46", "00"),
        ("45+55=100", "110"),
        ("100-1=99", "10"),
        ("52-37=15", "10"),
        ("1-100=-99", "10"),
        ("300-211=089", "110"),  # padded
        ("5+5=00010", "00010"),
        ("12+34=9999", "0000"),  # wrong, and longer than it can be
    ],
)
def test_what_is_carried_into_each_place_of_an_answer(expression, carries):
    answer = [place for place in places_of(expression) if place.part == "answer"]
    assert "".join(str(int(place.carry)) for place in answer) == carries
    turned = expression.partition("=")[0] + "=" + expression.partition("=")[2][::-1]
    ones_first = [place for place in places_of(turned, ones_first=True) if place.part == "answer"]
    assert ones_first == answer[::-1]


def test_the_carries_are_those_of_the_numbers():
    for a, b in itertools.product((0, 7, 38, 95, 604, 999), repeat=2):
        for sign in "+-":
            value = a + b if sign == "+" else a - b
            for place in places_of(f"{a}{sign}{b}={value}"):
                if place.part == "answer":
                    large, small = max(a, b) % 10**place.place, min(a, b) % 10**place.place
                    assert place.carry == (large + small >= 10**place.place if sign == "+" else large < small)


def test_a_sign_in_the_answer_has_no_place_wherever_it_stands():
    assert [place.part for place in places_of("1-3=-2")][-2:] == ["sign", "answer"]
    assert [place.part for place in places_of("1-3=2-", ones_first=True)][-2:] == ["answer", "sign"]
    assert places_of("1-13=21-", ones_first=True)[5:] == [
        Place("answer", 0, False), Place("answer", 1, False), Place("sign"),
    ]  # fmt: skip


@pytest.mark.parametrize("tokens", ["", "abc", "12", "+12", "1+2+3", "12+=3", ["21", "+", "2"], ["2", "11", "+", "3"]])
def test_what_is_no_expression_is_refused(tokens):
    with pytest.raises(UserError, match=r"expected an expression such as 21\+211 or 21\+211=232, a token for each"):
        places_of(tokens)


def test_the_weight_on_digits_of_the_same_place():
    source = places_of("21+34")
    written = places_of([*"21+34", "=", *"55"])[6:]
    by_place = torch.zeros(3, 5)  # 5 5 and the end
    by_place[0, 0], by_place[0, 3], by_place[0, 1] = 0.5, 0.25, 0.25
    by_place[1, 4], by_place[2, 2] = 1.0, 1.0
    even = torch.full((3, 5), 0.2)
    scored = place_share(map_of(torch.stack((by_place, even)), same=False), [*written, Place("other")], source)
    assert scored.value.tolist() == pytest.approx([(0.75 + 1) / 2, 0.4])
    assert scored.chance.tolist() == pytest.approx([0.4, 0.4])


def test_a_digit_that_looks_at_itself_looks_at_no_other_of_its_place():
    places = places_of("21+34")
    assert place_share(map_of(torch.eye(5)), places, places).value.tolist() == [0.0]
    turned = torch.eye(5)[torch.tensor([3, 4, 2, 0, 1])]
    scored = place_share(map_of(turned), places, places)
    assert scored.value.tolist() == [1.0]
    assert scored.chance.tolist() == pytest.approx([0.2])
    other_places = places_of("2+300")
    assert place_share(map_of(torch.eye(5)), other_places, other_places).chance.tolist() == pytest.approx([0.2])


def test_places_must_be_those_of_the_map():
    with pytest.raises(UserError, match="expected 3 and 3 places, one for each query and key of the map, got 3 and 5"):
        place_share(map_of(torch.eye(3)), places_of("1+2"), places_of("21+34"))
