"""Place values and carries of digits, and the weight on the same place value."""

import itertools

import pytest
import torch

from helpers.maps import map_of
from jarilab.core.errors import UserError
from jarilab.inspect.measure.digit_places import DigitPlace, place_share, places_of


def test_roles_of_a_sum():
    left = [DigitPlace("left", 1), DigitPlace("left", 0), DigitPlace("operator")]
    right = [DigitPlace("right", 2), DigitPlace("right", 1), DigitPlace("right", 0)]
    answer = [DigitPlace("answer", 2, False), DigitPlace("answer", 1, False), DigitPlace("answer", 0, False)]
    assert places_of("21+211=232") == [*left, *right, DigitPlace("equals"), *answer]
    assert places_of("21-211") == [*left, *right]
    assert places_of(["<s>", *"1+2", "=", "</s>"]) == [
        DigitPlace("other"), DigitPlace("left", 0), DigitPlace("operator"), DigitPlace("right", 0),
        DigitPlace("equals"), DigitPlace("other"),
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
def test_carry_into_each_place(expression, carries):
    answer = [place for place in places_of(expression) if place.part == "answer"]
    assert "".join(str(int(place.carry)) for place in answer) == carries
    turned = expression.partition("=")[0] + "=" + expression.partition("=")[2][::-1]
    ones_first = [place for place in places_of(turned, ones_first=True) if place.part == "answer"]
    assert ones_first == answer[::-1]


def test_carries_follow_arithmetic():
    for a, b in itertools.product((0, 7, 38, 95, 604, 999), repeat=2):
        for sign in "+-":
            value = a + b if sign == "+" else a - b
            for place in places_of(f"{a}{sign}{b}={value}"):
                if place.part == "answer":
                    large, small = max(a, b) % 10**place.place, min(a, b) % 10**place.place
                    assert place.carry == (large + small >= 10**place.place if sign == "+" else large < small)


def test_sign_has_no_place_value():
    assert [place.part for place in places_of("1-3=-2")][-2:] == ["sign", "answer"]
    assert [place.part for place in places_of("1-3=2-", ones_first=True)][-2:] == ["answer", "sign"]
    assert places_of("1-13=21-", ones_first=True)[5:] == [
        DigitPlace("answer", 0, False), DigitPlace("answer", 1, False), DigitPlace("sign"),
    ]  # fmt: skip


@pytest.mark.parametrize("tokens", ["", "abc", "12", "+12", "1+2+3", "12+=3", ["21", "+", "2"], ["2", "11", "+", "3"]])
def test_other_texts_raise(tokens):
    with pytest.raises(UserError, match=r"expected an expression such as 21\+211 or 21\+211=232, a token for each"):
        places_of(tokens)


def test_weight_on_digits_of_the_same_place():
    source = places_of("21+34")
    written = places_of([*"21+34", "=", *"55"])[6:]
    by_place = torch.zeros(3, 5)  # 5 5 and the end
    by_place[0, 0], by_place[0, 3], by_place[0, 1] = 0.5, 0.25, 0.25
    by_place[1, 4], by_place[2, 2] = 1.0, 1.0
    even = torch.full((3, 5), 0.2)
    scored = place_share(map_of(torch.stack((by_place, even)), same=False), [*written, DigitPlace("other")], source)
    assert scored.value.tolist() == pytest.approx([(0.75 + 1) / 2, 0.4])
    assert scored.chance.tolist() == pytest.approx([0.4, 0.4])


def test_weight_on_itself_does_not_count():
    places = places_of("21+34")
    assert place_share(map_of(torch.eye(5)), places, places).value.tolist() == [0.0]
    turned = torch.eye(5)[torch.tensor([3, 4, 2, 0, 1])]
    scored = place_share(map_of(turned), places, places)
    assert scored.value.tolist() == [1.0]
    assert scored.chance.tolist() == pytest.approx([0.2])
    other_places = places_of("2+300")
    assert place_share(map_of(torch.eye(5)), other_places, other_places).chance.tolist() == pytest.approx([0.2])


def test_number_of_places_must_match_the_map():
    with pytest.raises(UserError, match="expected 3 and 3 places, one for each query and key of the map, got 3 and 5"):
        place_share(map_of(torch.eye(3)), places_of("1+2"), places_of("21+34"))
