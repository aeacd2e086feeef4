import pytest

from jarilab.core.errors import UserError, closest_match, counted, no_model, unknown


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


def test_a_quote_of_any_length_is_shortened():
    long = "x y" * 1000
    message = str(UserError(f"unknown encoding {long!r}; did you mean 'rotary'?"))
    assert len(message) < 260
    assert message.startswith("unknown encoding 'x y")
    assert message.endswith("x y'; did you mean 'rotary'?")
    assert len(str(UserError(f"{'a' * 5000} is missing"))) < 220
    assert len(str(UserError(f"expected text, got {['rotary'] * 5000}; put the file back"))) < 260
    two = "the heads' " + "long words " * 30 + "differ from 'this'"
    assert str(UserError(two)) == two
    exact = "got '" + "x" * 190 + "'; do"
    assert str(UserError(exact)) == exact


@pytest.mark.parametrize(
    ("number", "nouns", "verb", "text"),
    [
        (1, "lines of 20 letters", "are", "1 line of 20 letters is"),
        (1_000, "pairs", "repeat", "1,000 pairs repeat"),
        (1, "held-out images", "repeat", "1 held-out image repeats"),
        (1, "classes", "", "1 class"),
        (0, "boxes", "have", "0 boxes have"),
    ],
)
def test_numbers_and_nouns_agree(number: int, nouns: str, verb: str, text: str) -> None:
    assert counted(number, nouns, verb) == text


def test_a_name_of_a_model_is_answered_with_what_a_folder_holds(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    for name, got in {
        "bert": "got no such folder. Nothing is downloaded: pass the path of a folder on disk",
        "file": "got a file. Nothing is downloaded",
        ".": "got a folder without config.json",
        "run": f"got a run of jari. Nothing is downloaded: see `jarilab explore {tmp_path / 'run'}`",
    }.items():
        message = str(no_model(tmp_path / name))
        assert "expected a folder with config.json and weights, as `model.save_pretrained(FOLDER)` writes it" in message
        assert got in message
    assert "expected a folder of a run (run.json), or one with config.json" in str(no_model(tmp_path, or_run=True))
