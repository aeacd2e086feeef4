"""Colours of encodings."""

import re

import numpy
import pytest

from jarilab.pages.kit.page import read
from jarilab.pages.kit.tones import TONES, tone_of, tones_of

ENCODINGS = ["none", "sinusoidal", "rotary", "learned", "shaw", "t5", "alibi"]

# Machado, Oliveira and Fernandes 2009: what is seen without the long, and without the medium cones; and with all.
SIGHTS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "trichromacy": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
}
# Ottosson 2020, Oklab: equal distances look equally different.
TO_CONES = [
    [0.41222147, 0.53633254, 0.05144599],
    [0.21190350, 0.68069955, 0.10739696],
    [0.08830246, 0.28171884, 0.62997870],
]
TO_LAB = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.97799850, -2.42859221, 0.45059371],
    [0.02590404, 0.78277177, -0.80867577],
]


def oklab(colour: str, sight: str) -> numpy.ndarray:
    shares = numpy.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = numpy.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    seen = numpy.clip(numpy.array(SIGHTS[sight]) @ linear, 0, 1)
    return numpy.array(TO_LAB) @ numpy.cbrt(numpy.array(TO_CONES) @ seen)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("sight", SIGHTS)
def test_tones_differ_for_colour_blind_readers(sight: str, dark: bool) -> None:
    tones = re.findall(r"--tone-\d: (#[0-9a-f]{6});", read("jarilab.pages.kit", "kit/theme.css"))
    seen = [oklab(colour, sight) for colour in (tones[TONES:] if dark else tones[:TONES])]
    assert len(seen) == TONES
    apart = [numpy.linalg.norm(a - b) for number, a in enumerate(seen) for b in seen[:number]]
    assert min(apart) > 0.1, "five times what is just noticeable"


@pytest.mark.parametrize("name", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_lines_of_heads_differ_for_colour_blind_readers(sight: str, name: str) -> None:
    (listed,) = re.findall(rf"{name}: \[(.*?)\]", read("jarilab.explorer", "lines.js"))
    seen = [oklab(colour, sight) for colour in re.findall("#[0-9a-f]{6}", listed)]
    apart = [numpy.linalg.norm(a - b) for number, a in enumerate(seen) for b in seen[:number]]
    assert (len(seen), min(apart) > 0.1) == (8, True)


ROLES = {
    "tokens": "same_place previous next self duplicate induction first last offset even none",
    "patches": "neighbour row column ink self first even none",
}


@pytest.mark.parametrize("page", ROLES)
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("sight", SIGHTS)
def test_roles_of_a_page_have_different_tones(sight: str, dark: bool, page: str) -> None:
    found = re.findall(r"--role-(\w+): (#[0-9a-f]{6});", read("jarilab.explorer", "model_map.css"))
    tones = dict(found[len(found) // 2 :] if dark else found[: len(found) // 2])
    seen = [oklab(tones[role], sight) for role in ROLES[page].split()]
    apart = [numpy.linalg.norm(a - b) for number, a in enumerate(seen) for b in seen[:number]]
    assert min(apart) > 0.06


def test_encodings_of_the_package_have_different_tones() -> None:
    assert len({tone_of(encoding) for encoding in ENCODINGS}) == TONES
    assert tone_of("none") == TONES - 1, "grey"


def test_tone_depends_on_the_spec_alone() -> None:
    alone, among = tones_of([("rotary", "rotary")]), tones_of((name, name) for name in ENCODINGS)
    assert alone["rotary"] == among["rotary"]
    assert all(0 <= tone_of(f"mine.py:Mine:k={number}") < TONES for number in range(50))
    assert tone_of("half \ud83d") in range(TONES), "any text has one"


def test_models_of_one_encoding_have_different_tones() -> None:
    models = [("one", "rotary"), ("two", "rotary"), ("bare", "none"), ("three", "rotary")]
    tones = tones_of(models)
    assert (tones["one"], tones["bare"]) == (tone_of("rotary"), tone_of("none"))
    assert len(set(tones.values())) == 4
    many = tones_of((f"seed {number}", "rotary") for number in range(2 * TONES))
    assert sorted(many.values()) == sorted([*range(TONES)] * 2), "each tone twice"
