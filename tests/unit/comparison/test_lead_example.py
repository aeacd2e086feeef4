"""What a report opens with: input, models, head and cell."""

import base64
from typing import Any

import numpy
import pytest

from jarilab.comparison.examples import KINDS, blind_of, lead_example


def a_site(name: str, effects: list[float] | None, weights: Any = None, equal: float = 0.5) -> dict[str, Any]:
    heads = 2
    made = numpy.full((heads, 2, 3), 0.2) if weights is None else numpy.array(weights)
    data = base64.b64encode(numpy.rint(made * 65535).astype("<u2").tobytes()).decode()
    held = {"query": ["a", "b"], "key": ["x", "y", "z"], "heads": heads, "weights": data, "equal_rows": [equal] * heads}
    return held | {"name": name, "kind": "encoder self-attention", "effects": effects, "salience": [0.1, 0.4]}


def a_model(encoding: str, correct: bool | None, sites: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    equal = 0.0 if encoding == "deaf" else 0.5
    return {
        "encoding": encoding,
        "correct": correct,
        "sites": [a_site("encoder.0", [0.0, 0.0], None, equal)] if sites is None else sites,
    }


def test_the_lead_input_is_answered_by_the_better_model_alone() -> None:
    sides = [(True, True), (False, False), (False, True), (False, True)]
    examples = [{"models": [a_model("deaf", deaf), a_model("loud", loud)]} for deaf, loud in sides]
    opening = lead_example(examples, ["loud", "deaf"])
    assert opening is not None
    assert (opening["example"], opening["models"]) == (2, [0, 1]), "the first of these"


def test_the_lead_models_are_the_one_without_positions_and_the_best() -> None:
    models = [a_model("loud", True), a_model("best", True), a_model("deaf", False)]
    assert blind_of([{"models": models}]) == "deaf"
    assert lead_example([{"models": models}], ["best", "loud", "deaf"])["models"] == [2, 1]
    assert lead_example([{"models": models}], ["deaf", "loud", "best"])["models"] == [2, 0], "the best that is told"
    assert lead_example([{"models": models[:2]}], ["best", "loud"])["models"] == [0, 1], "the second beside the best"
    assert lead_example([{"models": models[:1]}], ["loud"])["models"] == [0]
    assert lead_example([{"models": models[2:]}], ["deaf"])["models"] == [0]


def test_the_cell_is_no_token_that_can_look_at_nothing_else() -> None:
    weights = [[[1.0, 0.0], [0.3, 0.7]]] * 2
    site = a_site("decoder.0.self", [0.1, 0.2]) | {"query": ["a", "b"], "key": ["a", "b"]}
    site["weights"] = base64.b64encode(numpy.rint(numpy.array(weights) * 65535).astype("<u2").tobytes()).decode()
    cells = {}
    for kind in KINDS.values():
        opening = lead_example([{"models": [a_model("loud", True, [site | {"kind": kind}])]}], ["loud"])
        assert opening is not None
        cells[kind] = opening["query"], opening["key"]
    assert cells == {KINDS["encoder"]: (0, 0), KINDS["cross"]: (0, 0), KINDS["decoder"]: (1, 1)}


@pytest.mark.parametrize(
    ("effects", "where", "measured"),
    [
        (([0.0, 0.3], [0.9, 0.1]), ("encoder.1", 0), True),
        (([0.0, 0.3], [0.2, 0.3]), ("encoder.0", 1), True),
        ((None, None), ("encoder.0", 1), False),
    ],
)
def test_the_lead_head_has_the_largest_effect(effects: Any, where: Any, measured: bool) -> None:
    sites = [a_site(f"encoder.{layer}", of_layer) for layer, of_layer in enumerate(effects)]
    opening = lead_example([{"models": [a_model("loud", True, sites)]}], ["loud"])
    assert opening is not None
    assert (opening["site"], opening["head"], opening["measured"]) == (*where, measured)


def test_the_cell_is_the_largest_weight() -> None:
    weights = [[[0.1, 0.2, 0.1], [0.1, 0.1, 0.1]], [[0.1, 0.2, 0.1], [0.3, 0.1, 0.9]]]
    opening = lead_example([{"models": [a_model("loud", True, [a_site("encoder.0", [0.0, 1.0], weights)])]}], ["loud"])
    assert opening is not None
    assert (opening["head"], opening["query"], opening["key"]) == (1, 1, 2)


def test_there_is_no_lead_example_without_maps() -> None:
    assert lead_example([], ["loud"]) is None
    assert lead_example([{"models": [a_model("loud", True, [])]}], ["loud"]) is None
    assert blind_of([]) is None
