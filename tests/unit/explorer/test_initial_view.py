"""Where a page opens, on views made by hand."""

from typing import Any

import numpy as np
import pytest
import torch

import jarilab
from helpers.explorer import made_site, made_view
from jarilab.core.errors import UserError
from jarilab.explorer.initial_view import check_head, initial_view

EVEN = np.full((2, 3, 3), 1 / 3)


def scored(value: list[float | None], chance: list[float | None]) -> dict[str, Any]:
    return {"value": value, "chance": chance, "untrained": None}


def view_of(answer: str = "3", effects: Any = None, **measures: Any) -> dict[str, Any]:
    """A view of two sites; effects, measures: of each, of the first site's heads and of the second's."""
    sites = [made_site("encoder.0", EVEN), made_site("encoder.1", EVEN)]
    for name, values in measures.items():
        for site, value in zip(sites, values, strict=True):
            site["measures"][name] = scored(value, [0.2, 0.2])
    of_sites = {f"encoder.{site}": {"effect": of, "largest": [0.2, 0.2]} for site, of in enumerate(effects or ())}
    return made_view(sites, source="abc") | {"answer": answer, "effects": {"sites": of_sites}}


def opened(*views: dict[str, Any], **asked: Any) -> tuple[int, str, int]:
    found = initial_view(views, **asked)
    return found["view"], found["site"], found["head"]


def test_opens_at_the_largest_effect_above_random_changes() -> None:
    view = view_of(effects=([-0.1, 4.0], [-2.5, -0.3]), previous=([1.0, 1.0], [0.2, 0.2]))
    assert opened(view) == (0, "encoder.0", 1), "of either sign"
    view["effects"]["sites"]["encoder.0"]["largest"][1] = 4.1
    assert opened(view) == (0, "encoder.1", 0), "not one that random changes reach"


def test_opens_far_from_chance_without_effects() -> None:
    assert opened(view_of(previous=([0.5, 0.2], [0.3, 0.9]), self=([0.1, 0.8], [None, None]))) == (0, "encoder.1", 1)
    lens = {"share": {"encoder.0": {"value": [0.2, 0.99], "chance": [0.1, 0.17]}}}
    assert opened(view_of(previous=([0.5, 0.2], [0.3, 0.9])) | {"lens": lens}) == (0, "encoder.0", 1)


def test_right_answers_come_first() -> None:
    wrong, right = view_of("4", effects=([9.0, 0.0], [0.0, 0.0])), view_of(effects=([0.0, 0.0], [0.0, 0.5]))
    assert opened(wrong, right) == (1, "encoder.1", 1)
    assert opened(wrong, wrong) == (0, "encoder.0", 0), "where none is right, all count"


def test_requested_site_and_head() -> None:
    view = view_of(effects=([0.1, 0.2], [2.5, 0.3]))
    assert opened(view, site="encoder.0") == (0, "encoder.0", 1)
    assert opened(view, head=1) == (0, "encoder.1", 1)
    assert opened(view, site="encoder.0", head=0) == (0, "encoder.0", 0)


def test_a_site_of_any_model_may_be_requested() -> None:
    tapes = []
    for layers in (1, 2):
        model = jarilab.EncoderDecoder(9, 9, d_model=16, n_heads=2, n_encoder_layers=layers).eval()
        with jarilab.record(model) as tape, torch.no_grad():
            model(torch.arange(3)[None], torch.arange(2)[None])
        tapes.append(tape)
    check_head(tapes, "encoder.1", 1)
    with pytest.raises(UserError, match=r"encoder\.1 has the heads 0 to 1, got 2"):
        check_head(tapes, "encoder.1", 2)
    with pytest.raises(UserError, match=r"unknown site 'encoder\.2'.*encoder\.1"):
        check_head(tapes, "encoder.2", None)


@pytest.mark.parametrize("hidden", [None, [[0, 1, 1], [0, 0, 1], [0, 0, 0]]])
def test_cell_of_the_largest_relative_weight(hidden: Any) -> None:
    weights = np.array([[[1.0, 0, 0], [0.2, 0.8, 0], [0.1, 0.3, 0.6]]])
    found = initial_view([made_view([made_site("encoder.0", weights, hidden=hidden)], source="abc")])
    assert (found["query"], found["key"]) == ((0, 0) if hidden is None else (2, 2))


@pytest.mark.parametrize(("pool", "cell"), [(None, (1, 0)), ("mean", (1, 0)), ("class", (0, 1))])
def test_query_is_a_patch_or_the_class_token(pool: str | None, cell: tuple[int, int]) -> None:
    weights = np.array([[[0.1, 0.9], [0.8, 0.2]]])
    view = made_view([made_site("encoder.0", weights)], source=["red", "0,0"])
    view["sides"]["source"]["picture"] = {"first": 1, "pool": pool}
    found = initial_view([view])
    assert (found["query"], found["key"]) == cell


def test_query_of_a_text_with_an_image_comes_after_the_image() -> None:
    weights = np.array([[[1.0, 0, 0], [0.1, 0.9, 0], [0.5, 0.2, 0.3]]])
    view = made_view([made_site("encoder.0", weights)], source=["red", "0,0", "what"]) | {"with_image": True}
    picture = view["sides"]["source"]["picture"] = {"first": 1, "rows": 1, "columns": 1, "pool": None}
    assert initial_view([view])["query"] == 2
    picture["columns"] = 2  # the image ends the text
    assert initial_view([view])["query"] == 1
