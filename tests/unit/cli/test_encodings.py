"""`jarilab encodings` as text and as JSON."""

import json

import pytest

from jarilab import cli
from jarilab.encodings.base import registry
from jarilab.laws import costs
from jarilab.runs.descriptions import describe_encoding


def printed(capsys, *words):
    code = cli.main(["encodings", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_every_encoding_has_two_lines_of_at_most_100_columns(capsys):
    _, out, _ = printed(capsys)
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    names = registry.names()
    assert [line.split()[0] for line in lines[1 : 2 * len(names) : 2]] == names
    assert all(line.startswith("    ") for line in lines[2 : 2 * len(names) + 1 : 2])
    rows = {line.split()[0]: line.split() for line in filter(None, lines)}
    assert rows["kerple"][:8] == ["kerple", "1", "bias", "anywhere", "yes", "32", "Chi", "et"]
    assert rows["fire"][3:5] == ["causal", "no"]
    assert rows["learned"][3:5] == ["self", "no"]


def test_an_encoding_names_its_paper():
    assert describe_encoding("shaw")["cited"] == "Shaw et al. 2018"


@pytest.mark.parametrize(
    ("spec", "learned"),
    [("kerple", 2 * 2 * 8), ("alibi", 0), ("alibi:slopes=learned", 8), ("fire:hidden=4", 2 * (4 + 4 + 4 * 8 + 2))],
)
def test_learned_parameters_are_counted_over_all_layers(spec, learned):
    assert describe_encoding(spec)["learns"] == learned


def test_one_encoding_is_described_in_full(capsys):
    _, out, _ = printed(capsys, "fox")
    assert out.startswith("forgetting (fox)\n\nAdds the logarithms of forget gates")
    assert "from     Forgetting attention: *Forgetting Transformer" in out
    assert "  yes  works only if queries never see later keys\n" in out
    assert "  no   one instance for all layers\n" in out
    assert "length of vectors" not in out
    assert out.count("initial value of b") == 1
    assert "  remembered=5.0: initial value of b; with 5 a gate is 0.993" in out
    rotary = printed(capsys, "rotary")[1]
    assert "rotation keeps the length of vectors" in rotary
    assert "Source:" not in rotary
    assert "pairing=half (or half, interleaved): the two of the R components that form pair i" in rotary


def test_json_has_properties_and_measured_costs(capsys, monkeypatch):
    monkeypatch.setattr(costs, "cost", lambda spec: {"alibi": 1.014, "xpos": 1.5}[spec])
    _, out, err = printed(capsys, "alibi", "xpos", "--measure", "--json")
    alibi, xpos = json.loads(out)["encodings"]
    assert (alibi["cost"], xpos["cost"]) == (1.01, 1.5)
    assert alibi["claims"]["causal_only"] is False
    assert xpos["claims"]["causal_only"] is True
    assert "measuring xpos, 2 of 2" in err
    (alibi,) = json.loads(printed(capsys, "alibi", "--json")[1])["encodings"]
    assert "cost" not in alibi


def test_an_unknown_name_is_refused(capsys):
    code, _, err = printed(capsys, "kerpel")
    assert code == 2
    assert "kerple" in err
