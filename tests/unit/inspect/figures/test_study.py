"""Figures of a study's heads."""

from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.figures.maps import draw_map
from jarilab.inspect.figures.study import draw_heads
from jarilab.inspect.measure.measures import MEASURES
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.head import heads_of
from jarilab.inspect.study.mean_maps import MeanMaps
from jarilab.inspect.study.study import Study


def row_of(layer: int, head: int, **columns) -> dict:
    return {"head": f"dec.L{layer}H{head}", "site": f"decoder.{layer}.self", "index": head, **columns}


def texts_of(svg: bytes) -> set[str]:
    root = ElementTree.fromstring(svg)
    return {"".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")}


def test_a_measure_is_a_map_of_layers_and_heads():
    values = [[0.1, 0.2], [0.3, None]]
    rows = [row_of(layer, head, sink=values[layer][head], sink_low=0) for layer in (0, 1) for head in (0, 1)]
    expected = draw_map(
        np.array([[0.1, 0.2], [0.3, np.nan]]),
        ["dec.L0", "dec.L1"],
        ["0", "1"],
        name="sink",
        titles=("layer", "head"),
        blank="not defined",
    )
    figure = draw_heads(rows, "sink")
    assert figure.to_bytes(".svg") == expected.to_bytes(".svg")
    assert {"dec.L0", "1", "layer", "head", "sink", "not defined"} <= texts_of(figure.to_bytes(".svg"))


def test_roles_are_dots():
    rows = [row_of(0, 0, role="induction", role_score=0.9), row_of(1, 0, role="no simple pattern", role_score=None)]
    texts = texts_of(draw_heads(rows).to_bytes(".svg"))
    assert {"induction", "no simple pattern", "dec.L0", "dec.L1", "area of a dot: score of the role"} <= texts


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("roles", "heads with roles, got rows without.*study.figure"),
        ("skin", "unknown column of the heads 'skin'.*sink"),
        ("role", r"did you mean 'roles'\? Known: roles, sink$"),
    ],
)
def test_what_was_not_measured_is_refused(kind, message):
    with pytest.raises(UserError, match=message):
        draw_heads([row_of(0, 0, sink=0.5, sink_low=0.1, role_low=0.5)], kind)


def made_study(inputs: torch.Tensor) -> Study:
    torch.manual_seed(0)
    model = jarilab.LanguageModel(11, d_model=16, n_heads=2, n_layers=2, encoding="rotary").eval()
    with torch.no_grad(), jarilab.record(model) as tape:
        model(inputs)
    heads = heads_of(tape)
    study = Study(heads, measures={"sink": MEASURES["sink"]}, accumulators=[MeanMaps(heads, 8)])
    names = [{"target": [str(token) for token in row]} for row in inputs.tolist()]
    study.add(tape, Batch((inputs,), tokens=names))
    return study


def test_a_study_draws_its_heads():
    study = made_study(torch.randint(11, (3, 6)))
    assert {"L0", "L1", "sink"} <= texts_of(study.figure("sink").to_bytes(".svg"))


@pytest.mark.parametrize(("alignment", "positions"), [("left", range(6)), ("right", range(-6, 0))])
def test_a_study_draws_the_mean_map_of_a_head(alignment, positions):
    torch.manual_seed(0)
    study = made_study(torch.randint(11, (3, 6)))
    (means,) = (each for each in study.accumulators if isinstance(each, MeanMaps))
    map_PP = means.maps(alignment).weights[3]
    used = slice(0, 6) if alignment == "left" else slice(2, 8)
    names = [str(position).replace("-", "−") for position in positions]
    expected = draw_map(map_PP[used, used], names, names, np.tri(6), name="mean weight", blank="masked or no data")
    figure = study.figure("mean_maps", "decoder.1.self", 1, alignment=alignment)
    assert figure.to_bytes(".svg") == expected.to_bytes(".svg")
    assert study.figure("mean_maps").to_bytes(".svg").count(b"<image") == 4 + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mean_maps", "decoder.7.self"), "unknown site 'decoder.7.self'"),
        (("mean_maps", "decoder.0.self", 2), "one of its heads, got site='decoder.0.self' and head=2; such as"),
    ],
)
def test_heads_without_a_mean_map_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        made_study(torch.randint(11, (1, 3))).figure(*arguments)


def test_a_study_without_mean_maps_says_how_to_get_them():
    study = made_study(torch.randint(11, (1, 3)))
    study.accumulators.pop()
    with pytest.raises(UserError, match=r"got no mean maps; study with .*MeanMaps"):
        study.figure("mean_maps")
