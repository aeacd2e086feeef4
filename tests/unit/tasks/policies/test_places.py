"""Where each policy says that tokens are, by hand."""

import pytest
import torch

from jarilab.core.errors import UserError
from jarilab.core.registry import trust_code
from jarilab.tasks.policies.base import Numbers, Sequences, Sequential, build, canonical, registry

WORDS = "0123456789+=-_"
"""Tokens by number: ten digits, three signs, and what stands for padding."""
SPECS = ["sequential", "offset:largest=5", "randomized:longest=64", "abacus:largest=5", "coupling:largest=5"]


def ids_of(*lines):
    return torch.tensor([[WORDS.index(letter) for letter in line] for line in lines])


def sequences(*lines, **more):
    """Lines of equal length, of which `_` is padding."""
    ids = ids_of(*lines)
    keep = ids != WORDS.index("_")
    numbers = more.pop("numbers", Numbers(tuple(range(10))))
    return Sequences(ids, "source", None if keep.all() else keep, numbers=numbers, **more)


def placed(spec, batch, seed=None):
    return build(spec).positions(batch, seed).index().tolist()


def test_sequential_counts_from_0_and_gives_all_rows_the_same():
    assert placed("sequential", sequences("21+2", "1+1_")) == [0, 1, 2, 3]


def test_padding_before_a_text_is_not_counted():
    before = sequences("__21", "1+12")
    assert placed("sequential", before) == [[0, 0, 0, 1], [0, 1, 2, 3]]
    assert placed("offset", before) == [[0, 0, 0, 1], [0, 1, 2, 3]]


def test_each_document_of_a_row_starts_anew_unless_it_is_told_to_run_on():
    packed = sequences("21345", documents=torch.tensor([[7, 7, 8, 8, 8]]))
    assert placed("sequential", packed) == [[0, 1, 0, 1, 2]]
    assert placed("sequential:restart=false", packed) == [0, 1, 2, 3, 4]
    assert placed("offset", packed) == [[0, 1, 0, 1, 2]]
    assert placed("randomized:longest=12", packed) == [[3, 9, 2, 6, 10]]


def test_offset_moves_each_row_by_one_amount_in_training_and_by_nothing_after_it():
    batch = sequences(*["1234"] * 200)
    assert placed("offset:largest=5", batch)[0] == [0, 1, 2, 3]
    moved = torch.tensor(placed("offset:largest=5", batch, seed=1))
    assert (moved - moved[:, :1] == torch.arange(4)).all()
    assert set(moved[:, 0].tolist()) == {0, 1, 2, 3, 4, 5}


def test_randomized_places_are_drawn_in_order_without_repetition_from_all_of_the_range():
    batch = sequences(*["1234"] * 500, *["12__"] * 500)
    drawn = torch.tensor(placed("randomized:longest=10", batch, seed=1))
    full, short = drawn[:500], drawn[500:, :2]
    assert (full.diff(dim=1) > 0).all()
    assert (short.diff(dim=1) > 0).all()
    assert set(full.flatten().tolist()) == set(short.flatten().tolist()) == set(range(10))
    # Of 2 from 0 ... 9 the smaller is (10 + 1) / 3 - 1 on the mean, the larger twice 11 / 3, less 1.
    assert short.double().mean(0).tolist() == pytest.approx([8 / 3, 19 / 3], abs=0.4)


def test_randomized_places_are_evenly_spread_outside_training():
    assert placed("randomized:longest=8", sequences("1234", "12__")) == [[1, 3, 5, 7], [2, 6, 7, 7]]
    # What is being written is spread over the most that it may come to have, so that a place once given stays.
    assert placed("randomized:longest=8", sequences("12", max_new_tokens=4)) == [[1, 3]]


def test_randomized_without_room_says_how_much_is_needed():
    with pytest.raises(UserError, match=r"expected longest=4 or more, a position for each token; got longest=3"):
        placed("randomized:longest=3", sequences("1234"), seed=1)
    with pytest.raises(UserError, match=r"expected longest=9 or more"):
        build("randomized:longest=8").reach(9)


def test_abacus_counts_the_digits_of_each_number():
    batch = sequences("21+345=9", "1-98765_")
    assert placed("abacus", batch) == [[1, 2, 0, 1, 2, 3, 0, 1], [1, 0, 1, 2, 3, 4, 5, 0]]
    drawn = torch.tensor(placed("abacus:largest=5", batch, seed=3))
    offset = drawn[:, :1] - 1
    assert offset.tolist() != [[0], [0]]
    plain = torch.tensor(placed("abacus", batch))
    assert torch.equal(drawn, torch.where(plain > 0, plain + offset, 0))


def test_coupling_gives_digits_of_equal_significance_one_place():
    assert placed("coupling", sequences("21+345=", "1-98765")) == [[2, 1, 0, 3, 2, 1, 0], [1, 0, 5, 4, 3, 2, 1]]
    ones_first = Numbers(tuple(range(10)), ones_first=True)
    assert placed("coupling", sequences("=663-", numbers=ones_first, max_new_tokens=9)) == [[0, 1, 2, 3, 0]]
    padded = Numbers(tuple(range(10)), width=4)
    assert placed("coupling", sequences("=-0366", numbers=padded, max_new_tokens=9)) == [[0, 0, 4, 3, 2, 1]]
    # An untrained model may write on.
    assert placed("coupling", sequences("=036671", numbers=padded, max_new_tokens=9)) == [[0, 4, 3, 2, 1, 1, 1]]


def test_coupling_moves_source_and_target_of_an_example_alike():
    source, ones_first = sequences(*["21+345"] * 20), Numbers(tuple(range(10)), ones_first=True)
    target = Sequences(ids_of(*["=663"] * 20), "target", numbers=ones_first, max_new_tokens=9)
    read, written = (torch.tensor(placed("coupling", one, seed=2)) for one in (source, target))
    assert (read[:, 2] == written[:, 0]).all()
    assert len(set(read[:, 2].tolist())) > 5


def test_coupling_refuses_numbers_whose_length_is_not_known_yet():
    with pytest.raises(UserError, match=r"expected answers written from .* use --answers reversed or padded"):
        placed("coupling", sequences("=366", max_new_tokens=9))


@pytest.mark.parametrize("spec", ["abacus", "coupling"])
def test_digits_must_be_known(spec):
    with pytest.raises(UserError, match=r"source are digits; use sequential, offset or randomized"):
        placed(spec, sequences("12", numbers=None))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", [None, 4])
def test_a_place_never_reaches_past_what_the_policy_says(spec, seed):
    batch = sequences(*["2134+345"] * 100, *["1+1_____"] * 10)
    places = torch.tensor(placed(spec, batch, seed))
    assert 0 <= int(places.min()) <= int(places.max()) < build(spec).reach(8)


@pytest.mark.parametrize("spec", SPECS)
def test_places_are_a_matter_of_the_seed_alone_and_only_in_training(spec):
    policy, batch = build(spec), sequences(*["2134+345"] * 10)
    same, other = placed(spec, batch, seed=4), placed(spec, batch, seed=5)
    assert placed(spec, batch, seed=4) == same
    assert (same != other) == policy.random_in_training
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    assert (policy.seed(generator) is None) == torch.equal(generator.get_state(), before) != policy.random_in_training


@pytest.mark.parametrize("spec", SPECS)
def test_what_is_written_later_moves_nothing(spec):
    ones_first = Numbers(tuple(range(10)), ones_first=True)
    complete = Sequences(ids_of("=213+45", "=2+3456"), "target", numbers=ones_first, max_new_tokens=12)
    every = build(spec).positions(complete)
    for length in range(1, 8):
        so_far = Sequences(complete.ids[:, :length], "target", numbers=ones_first, max_new_tokens=12)
        new = build(spec).positions(so_far, start=length - 1)
        assert new.index().tolist() == every.slice(length - 1, length).index().tolist()
        assert new.order.tolist() == [length - 1]


def test_a_policy_of_ones_own_gives_every_token_a_place(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import jarilab\n"
        "class Halves(jarilab.PositionPolicy):\n"
        "    def places(self, sequences, seed):\n"
        "        return sequences.index / 2\n"
        "class Short(jarilab.PositionPolicy):\n"
        "    def places(self, sequences, seed):\n"
        "        return sequences.index[:1]\n"
        "class No:\n"
        "    pass\n"
    )
    with pytest.raises(UserError, match="to use it is to execute that file"):
        build(f"{file}:Halves")
    trust_code(file)
    assert placed(f"{file}:Halves", sequences("123")) == [0.0, 0.5, 1.0]
    with pytest.raises(UserError, match=r"Short.places: .* each token, \(3,\) or \(1, 3\), got \(1,\)"):
        placed(f"{file}:Short", sequences("123"))
    with pytest.raises(UserError, match=r"No: expected a subclass of .*Policy, got .*; derive"):
        build(f"{file}:No")


def test_what_is_registered():
    assert registry.names() == ["abacus", "coupling", "offset", "randomized", "sequential"]
    assert canonical("randomized:longest=2048") == "randomized"
    assert [name for name in registry.names() if build(name).plain] == ["sequential"]
    assert isinstance(build("sequential"), Sequential)
