"""What a task says that its models do, to whoever opens a page of one."""

import json
import re
from pathlib import Path

import pytest

from jarilab.tasks import base

ASKED = [
    *(name for name in base.registry.names() if name != "images"),  # whose classes are read from files
    *(f"arithmetic:operators={operators}" for operators in ("+", "-")),
    *(f"number-words:direction={direction}" for direction in ("ko-en", "en-ko")),
]
ENGLISH, KOREAN = re.compile(r"[A-Z][^\uac00-\ud7a3]+\."), re.compile(r".*[\uac00-\ud7a3]니다\.")


@pytest.mark.parametrize("spec", ASKED)
def test_every_task_says_what_its_models_do_in_both_languages(spec: str) -> None:
    english, korean = base.registry.spec(spec).build().purpose()
    assert ENGLISH.fullmatch(english)
    assert KOREAN.fullmatch(korean)


def test_the_numbers_and_verbs_of_arithmetic_are_its_own() -> None:
    english, korean = base.registry.spec("arithmetic:operators=+,minimum=2,maximum=1200").build().purpose()
    assert english == "Adds two whole numbers from 2 to 1,200."
    assert korean == "2에서 1,200까지의 정수 둘을 더합니다."


def test_images_say_how_many_classes_there_are(tmp_path: Path) -> None:
    task = base.registry.spec("images").build()
    facts = {"classes": ["cat", "dog"], "shape": [1, 8, 8], "mean": [0.5], "deviation": [0.5]}
    (tmp_path / "pictures.json").write_text(json.dumps(facts))
    task.restore(tmp_path)
    english, korean = task.purpose()
    assert english == "Says which of 2 classes an image belongs to."
    assert KOREAN.fullmatch(korean)
