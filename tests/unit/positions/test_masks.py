import pytest
import torch

from jarilab.core.errors import UserError
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask


def rows(mask, queries=4, keys=4, *, first_query=0):
    """The mask written out: a string for each query of the first sample, x where it may attend."""
    allowed = mask.dense(Positions.sequence(queries, first_query), Positions.sequence(keys))
    return ["".join("x" if a else "." for a in row) for row in allowed.expand(-1, -1, queries, -1)[0, 0]]


def test_no_rule_hides_nothing():
    assert Mask().dense(Positions.sequence(3), Positions.sequence(3)) is None


def test_causal_sees_itself_and_what_came_before():
    assert rows(Mask(causal=True)) == ["x...", "xx..", "xxx.", "xxxx"]


def test_causal_goes_by_order_not_by_coordinates():
    restarting = Positions(torch.tensor([[0], [1], [0], [1]]), torch.arange(4))
    assert Mask(causal=True).dense(restarting, restarting)[0, 0].tolist() == torch.ones(4, 4).tril().bool().tolist()


def test_the_last_query_sees_every_key():
    assert rows(Mask(causal=True), queries=1, first_query=3) == ["xxxx"]


def test_a_window_counts_the_token_itself():
    assert rows(Mask(window=2)) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert rows(Mask(window=2, causal=True)) == ["x...", "xx..", ".xx.", "..xx"]


def test_padding_hides_keys_from_every_query():
    keep = torch.tensor([[True, True, False, True], [True] * 4])
    assert rows(Mask(keys=keep), queries=2) == ["xx.x"] * 2
    assert Mask(keys=keep).dense(Positions.sequence(2), Positions.sequence(4)).shape == (2, 1, 1, 4)


def test_documents_see_only_themselves():
    document = torch.tensor([[7, 7, 9, 9]])
    assert rows(Mask(documents=(document, document), causal=True)) == ["x...", "xx..", "..x.", "..xx"]


@pytest.mark.parametrize("shape", [(4, 4), (1, 4, 4)])
def test_any_rule_of_ones_own_is_combined_with_the_others(shape):
    odd = (torch.arange(16) % 2 == 1).view(shape)
    assert rows(Mask(pairs=odd)) == [".x.x"] * 4
    assert rows(Mask(pairs=odd, causal=True)) == ["....", ".x..", ".x..", ".x.x"]


@pytest.mark.parametrize(
    ("rules", "plain"),
    [
        ({"causal": True}, True),
        ({}, False),
        ({"causal": True, "window": 3}, False),
        ({"causal": True, "keys": torch.ones(1, 4, dtype=torch.bool)}, False),
        ({"causal": True, "pairs": torch.ones(4, 4, dtype=torch.bool)}, False),
    ],
)
def test_plain_causal_means_no_other_rule(rules, plain):
    assert Mask(**rules).plain_causal is plain


def test_an_empty_window_is_refused():
    with pytest.raises(UserError, match="a window holds at least the query itself: expected 1 or more, got 0"):
        Mask(window=0)


@pytest.mark.usefixtures("unchecked")
def test_a_mask_that_is_not_boolean_is_refused():
    with pytest.raises(
        UserError, match=r"mask keys must be boolean, True = may attend; got torch.int64: convert with .bool()"
    ):
        Mask(keys=torch.ones(1, 4, dtype=torch.long))


def test_a_padding_mask_of_another_length_is_refused():
    with pytest.raises(UserError, match="a padding mask of 4 keys, got 3"):
        rows(Mask(keys=torch.ones(1, 3, dtype=torch.bool)))


def kept(*shape):
    return torch.ones(shape, dtype=torch.bool)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"keys": kept(4)}, r"mask keys must be \(B, K\), got \(4,\); .*unsqueeze\(0\)"),
        ({"pairs": kept(2, 1, 4, 4)}, r"mask pairs must be \(Q, K\) or \(B, Q, K\), got \(2, 1, 4, 4\); .*remove"),
        ({"documents": (kept(1, 4), kept(4))}, r"mask documents must be \(B, Q\) and \(B, K\), got \(4,\)"),
        ({"keys": kept(2, 4), "pairs": kept(3, 4, 4)}, r"1 row or of equally many, got \[2, 3\]"),
    ],
)
def test_rules_of_another_shape_are_refused(rules, message):
    with pytest.raises(UserError, match=message):
        Mask(**rules)


@pytest.mark.parametrize("size", [(3, 4), (4, 5)])
def test_rules_for_other_numbers_of_tokens_are_refused(size):
    queries, keys = size
    message = f"{{}} of 4 queries and 4 keys, got {queries} and {keys}; select"
    with pytest.raises(UserError, match=message.format("pairs")):
        rows(Mask(pairs=kept(queries, keys)))
    with pytest.raises(UserError, match=message.format("documents")):
        rows(Mask(documents=(kept(1, queries).long(), kept(1, keys).long())))


@pytest.mark.usefixtures("unchecked")
def test_documents_may_differ_between_rows_for_keys_alone():
    mask = Mask(documents=(torch.zeros(1, 4, dtype=torch.long), torch.tensor([[0] * 4, [0, 0, 1, 1]])))
    allowed = mask.dense(Positions.sequence(4), Positions.sequence(4))
    assert allowed[:, 0, 0].tolist() == [[True] * 4, [True, True, False, False]]


SIZE, LENGTH = 4, 14  # the last block is shorter
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 9, [0] * 8 + [3] * 6])
KEPT = torch.arange(LENGTH) < torch.tensor([[LENGTH], [6]])


@pytest.mark.parametrize(
    ("mask", "exact"),
    [
        (Mask(causal=True), True),
        (Mask(window=3), True),
        (Mask(causal=True, window=9), True),
        (Mask(keys=KEPT), True),
        (Mask(causal=True, documents=(DOCUMENTS, DOCUMENTS), keys=KEPT), False),
    ],
)
@pytest.mark.parametrize("first_query", [0, 6])
def test_blocks_are_seen_where_a_pair_is(mask, exact, first_query):
    q_pos, k_pos = Positions.sequence(LENGTH, first_query), Positions.sequence(LENGTH)
    some, every = mask.of_blocks(q_pos, k_pos, SIZE)
    allowed = mask.dense(q_pos, k_pos)[:, 0].expand(-1, LENGTH, -1)
    blocks = [part.flatten(1) for row in allowed.split(SIZE, 1) for part in row.split(SIZE, 2)]
    any_pair, all_pairs = (torch.stack([check(b, 1) for b in blocks], 1) for check in (torch.any, torch.all))
    assert every.expand_as(some).flatten(1).equal(all_pairs)
    found = some.flatten(1)
    assert found.equal(any_pair) if exact else bool((found >= any_pair).all()) and not found.all()


def test_a_rule_of_pairs_has_no_blocks():
    pos = Positions.sequence(3)
    assert Mask(pairs=torch.ones(3, 3, dtype=torch.bool)).of_blocks(pos, pos, SIZE) is None
