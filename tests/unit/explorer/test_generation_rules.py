"""What the explorer says of an answer whose tokens rules of generation exclude or set."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from helpers import folders
from helpers.folders import SENTENCE, writer
from jarilab.core.errors import UserError
from jarilab.explorer import open_explorer
from jarilab.explorer.page_file import saved_page

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
]


def t5(folder: Path) -> Path:
    return folders.t5(folder, vocab_size=17)


RULES = {"seed": 1, "suppress_tokens": [1, 2, 4], "no_repeat_ngram_size": 2}


def test_a_head_turns_a_token_where_it_changes_the_answer(tmp_path: Path) -> None:
    explorer = open_explorer(models=[writer(tmp_path / "t5", t5, **RULES)])
    page = saved_page(explorer, SENTENCE)
    (view,) = page["views"]
    turned = {}
    for site, effects in view["effects"]["sites"].items():
        for head, (_, _, turns) in enumerate(effects["hit"]):
            answer = explorer.operate(SENTENCE, 0, [{"kind": "head", "site": site, "head": head}])["effect"]["answer"]
            assert (turns is None) == (answer == view["answer"]), (site, head, turns, answer)
            turned[site, head] = turns
    assert 0 < sum(turns is not None for turns in turned.values()) < len(turned)


@pytest.mark.parametrize(
    "rules",
    [{"suppress_tokens": [1, 500, -1]}, {"begin_suppress_tokens": [500]}, {"eos_token_id": [3, 500], "min_length": 9}],
)
def test_rules_of_tokens_that_a_model_lacks_do_nothing(tmp_path: Path, rules: dict[str, Any]) -> None:
    folder = writer(tmp_path / "t5", t5, seed=1, **rules)
    (view,) = saved_page(open_explorer(models=[folder]), SENTENCE)["views"]
    assert view["engine"]["text"]["still"] is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("forced_bos_token_id", 777),
        ("bad_words_ids", [[400]]),
        ("eos_token_id", "three"),
        ("suppress_tokens", [1, "x"]),
    ],
)
def test_settings_that_are_no_tokens_are_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    folder = writer(tmp_path / "t5", t5)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(UserError, match=rf"generation_config\.json: expected tokens from 0 to 16 in {name}, got"):
        saved_page(open_explorer(models=[folder]), SENTENCE)
