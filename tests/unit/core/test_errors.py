import pytest

from jarilab.core.errors import UserError, closest_match, unknown


@pytest.mark.parametrize(("typed", "meant"), [("rotery", "rotary"), ("ROTARY", "rotary"), ("t6", "t5"), ("zzz", None)])
def test_the_nearest_name(typed, meant):
    assert closest_match(typed, ["rotary", "t5", "alibi"]) == meant


def test_an_unknown_name_is_told_with_the_nearest_and_all_known():
    error = unknown("encoding", "rotery", ["t5", "rotary"])
    assert str(error) == "unknown encoding 'rotery'; did you mean 'rotary'? Known: rotary, t5"
    assert isinstance(error, UserError)


def test_nothing_is_suggested_where_nothing_comes_near():
    assert str(unknown("encoding", "zzz", ["rotary"])) == "unknown encoding 'zzz'; Known: rotary"
    assert str(unknown("site", "encoder.0", [])) == "unknown site 'encoder.0'; Known: nothing"
