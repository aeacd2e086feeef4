import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jarilab.core.errors import UserError, closest_match
from jarilab.core.options import options_of
from jarilab.core.registry import Registry, spec_file, split_specs, trust_code, trust_recorded_code
from jarilab.encodings.base import registry as encodings
from jarilab.encodings.compose import canonical, split_sum

FILE = '''
from jarilab import Encoding


class Mine(Encoding):
    """One option."""

    def __init__(self, place, *, k: int = 3):
        self.place, self.k = place, k


class Other:
    pass
'''


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    trust_code(path)
    return path


def test_a_file_that_a_record_names_is_trusted_only_if_the_user_allows_it(tmp_path):
    path = tmp_path / "recorded.py"
    path.write_text(FILE)
    with pytest.raises(UserError, match=r"^run\.json names the Python file .*recorded\.py.* --trust-code$"):
        trust_recorded_code([path], "run.json", allowed=False)
    with pytest.raises(UserError, match="--trust-code"):
        encodings.spec(f"{path}:Mine")
    trust_recorded_code([], "run.json", allowed=False)
    trust_recorded_code([path], "run.json", allowed=True)
    assert encodings.spec(f"{path}:Mine").target.__name__ == "Mine"


def test_a_file_nobody_spoke_for_is_not_executed(tmp_path):
    path = tmp_path / "evil.py"
    path.write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()")
    with pytest.raises(UserError, match=r"to use it is to execute that file; .* with --trust-code, or .*trust_code\("):
        encodings.spec(f"{path}:Evil")
    assert not (tmp_path / "executed").exists()


def a_float(lowest, highest):
    return st.floats(lowest, highest, exclude_min=True, allow_nan=False)


@given(base=a_float(1, 1e9), fraction=a_float(1e-30, 1), pairing=st.sampled_from(["half", "interleaved"]))
def test_the_spec_of_rotary_goes_round(base, fraction, pairing):
    text = f"rotary:base={base!r},fraction={fraction!r},pairing={pairing}"
    spec = encodings.spec(text)
    assert spec.options == {"base": base, "fraction": fraction, "pairing": pairing}
    again = encodings.spec(str(spec))
    assert {**defaults("rotary"), **again.options} == spec.options
    assert str(again) == str(spec)


@given(clip=st.integers(0, 10**6), keys=st.booleans(), values=st.booleans())
def test_the_spec_of_shaw_goes_round(clip, keys, values):
    spec = encodings.spec(f"shaw:values={values},clip={clip},keys={keys}")
    again = encodings.spec(str(spec))
    assert {**defaults("shaw"), **again.options} == {**defaults("shaw"), "clip": clip, "keys": keys, "values": values}
    assert str(again) == str(spec)


def defaults(name):
    return {option.name: option.default for option in options_of(encodings.spec(name).target).values()}


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("rotary:base=10000", "rotary"),
        (" rotary: base = 1e+4 ", "rotary"),
        ("sinusoidal + alibi", "sinusoidal+alibi"),
        ("rotary:pairing=interleaved,base=500", "rotary:base=500,pairing=interleaved"),
        ("shaw:values=False", "shaw:values=false"),
        ("sinusoidal+rotary:base=5e+5+alibi", "sinusoidal+rotary:base=500000+alibi"),
        ("rope", "rotary"),
        ("RoPE:base=500", "rotary:base=500"),
        ("ALiBi", "alibi"),
        ("sin + NoPE", "sinusoidal+none"),
        ("Learned@text + RoPE2D@image", "learned@text+rotary2d@image"),
    ],
)
def test_the_canonical_text_leaves_defaults_out(typed, text):
    assert canonical(typed) == text


def test_a_plus_splits_specs_but_no_number():
    assert split_sum("rotary:base=1e+4 + t5+./mine.py:Mine:k=2") == ["rotary:base=1e+4", "t5", "./mine.py:Mine:k=2"]


def test_all_encodings_of_the_package_are_found():
    assert {"none", "sinusoidal", "learned", "rotary", "shaw", "t5", "alibi"} <= set(encodings.names())


def test_a_name_is_found_without_importing_the_others():
    code = """
import sys
from jarilab.tasks.base import registry
assert "arithmetic" in registry
assert registry.spec("arithmetic").target.__module__ == "jarilab.tasks.arithmetic"
assert "jarilab.tasks.captions" not in sys.modules
assert "arithmetics" not in registry
assert "jarilab.tasks.captions" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("word", "members", "others"),
    [
        ("relative", {"rotary", "shaw", "t5", "alibi"}, {"none", "sinusoidal", "learned"}),
        ("Absolute", {"sinusoidal", "learned", "sinusoidal2d"}, {"none", "rotary", "alibi"}),
    ],
)
def test_a_word_for_several_lists_them(word, members, others):
    with pytest.raises(UserError, match=f"^'{word.lower()}' is more than one encoding") as error:
        encodings.spec(word)
    first, *lines = str(error.value).split("\n")
    assert first.endswith("name one of them:")
    sentences = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert members <= sentences.keys()
    assert not others & sentences.keys()
    assert all(sentence[0].isupper() for sentence in sentences.values())


def test_an_alias_is_no_name_of_its_own():
    assert "rope" not in encodings.names()
    assert encodings.aliases("rotary") == ["rope"]


def test_half_alike_is_not_near():
    assert closest_match("rope", ["none", "rotary"]) is None
    assert closest_match("Rotery", ["none", "Rotary"]) == "Rotary"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("rotery", r"^unknown encoding 'rotery'; did you mean 'rotary'\? Known: alibi, "),
        ("rotary:bse=3", r"^rotary has no option 'bse'; did you mean 'base'\? Options: base, fraction, pairing$"),
        ("none:zzz=3", r"^none has no option 'zzz'; Options: nothing$"),
        ("rotary:base=fast", r"^rotary: base: expected a number, got 'fast' \(default 10000.0\)$"),
        ("rotary:fraction=1.5", r"^rotary: fraction: expected 1 or less, got '1.5' \(default 1.0\)$"),
        ("rotary:pairing=whole", r"^rotary: pairing: .*'half' or 'interleaved', got 'whole' \(default 'half'\)$"),
        ("rotary:base", r"^rotary: expected key=value, got 'base'; write rotary:key=value,key=value$"),
        ("rotary:base=2, base=3", r"^rotary: option 'base' is given twice; give it once$"),
        ("rotary:base=2,base=3", r"^rotary: option 'base' is given twice; give it once$"),
        (
            "nowhere.py:Mine",
            r"^expected a .* file with the encoding, got no file nowhere.py; write its path as seen from /",
        ),
    ],
)
def test_a_mistake_in_a_spec_is_told(typed, message):
    with pytest.raises(UserError, match=message):
        encodings.spec(typed)


def test_a_class_in_a_file_of_the_users(mine):
    spec = encodings.spec(f"{mine}:Mine:k=5")
    assert (spec.build("here").place, spec.build("here").k) == ("here", 5)
    assert str(spec) == f"{mine}:Mine:k=5"
    assert encodings.spec(f"{mine}:Mine").target is spec.target, "the file is run once"
    assert spec_file(str(spec)) == mine
    assert spec_file("rotary:base=2") is None


def test_a_class_that_the_file_has_not(mine):
    with pytest.raises(UserError, match=r"unknown class in .*mine.py 'Mein'; did you mean 'Mine'\? Known: Mine, Other"):
        encodings.spec(f"{mine}:Mein")


def test_a_file_with_one_encoding_needs_no_class(tmp_path):
    path = tmp_path / "alone.py"
    trust_code(path)
    head = "from jarilab.encodings.base import Encoding\nclass Helper: pass\n"
    path.write_text(f"{head}class Mine(Encoding):\n    def __init__(self, site, *, k: int = 3): pass\n")
    assert encodings.spec(str(path)).name == f"{path}:Mine"
    assert canonical(f"rope+{path}:k=5") == f"rotary+{path}:Mine:k=5"


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (
            "class A(Encoding): pass\nclass B(Encoding): pass",
            r"has 2 classes that could be the encoding, A, B; name one ",
        ),
        (
            "class A: pass",
            r"has no class that could be the encoding; write one that derives from jarilab\..*\.Encoding",
        ),
    ],
)
def test_a_file_of_which_the_class_is_not_clear(tmp_path, classes, message):
    path = tmp_path / "several.py"
    trust_code(path)
    path.write_text(f"from jarilab.encodings.base import Encoding\n{classes}\n")
    with pytest.raises(UserError, match=message):
        encodings.spec(str(path))


def test_a_class_that_is_no_encoding_is_refused(mine):
    with pytest.raises(UserError, match=r"mine.py:Other: expected a subclass of .*Encoding, got .*; derive"):
        encodings.spec(f"{mine}:Other")


def test_a_file_that_fails_is_not_remembered_as_loaded(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("raise OSError('no luck')")
    trust_code(path)
    with pytest.raises(UserError, match=r"broken.py cannot be used: running it raised OSError: no luck"):
        encodings.spec(f"{path}:Mine")
    path.write_text(FILE)
    assert encodings.spec(f"{path}:Mine").name == f"{path}:Mine"


def test_a_name_belongs_to_one_class():
    registry = Registry("colour", "jarilab.encodings")
    first = registry.register("red")(type("Red", (), {}))
    assert registry.register("red")(first) is first
    with pytest.raises(ValueError, match=r"colour 'red' is .*Red already"):
        registry.register("red")(type("Crimson", (), {}))


@pytest.mark.parametrize("text", ["[rotary", "none,[rotary", "rotary]"])
def test_a_bracket_without_its_other_half_is_told(text: str) -> None:
    with pytest.raises(UserError, match=r"expected a \] for each \[, got .* write such as none,\[rotary,none\]"):
        split_specs(text)
