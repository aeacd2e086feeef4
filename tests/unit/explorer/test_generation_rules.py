"""What the explorer says of an answer whose tokens rules of generation exclude or set."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import folders
from helpers.folders import SENTENCE, writer
from jarilab.core.errors import UserError
from jarilab.explorer import open_explorer
from jarilab.explorer.page_file import saved_page
from jarilab.huggingface.greedy import greedy_rules, unsupported_setting
from jarilab.huggingface.loading import load
from jarilab.huggingface.model_inputs import read

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
            off = {"kind": "head", "site": site, "head": head}
            answer = explorer.operate(SENTENCE, 0, [off], proceed=None)["effect"]["answer"]
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
        ("forced_bos_token_id", [None]),
    ],
)
def test_settings_that_are_no_tokens_are_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    folder = writer(tmp_path / "t5", t5)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(UserError, match=rf"generation_config\.json: expected tokens from 0 to 16 in {name}, got"):
        saved_page(open_explorer(models=[folder]), SENTENCE)


@pytest.mark.parametrize(
    "rules",
    [
        {"min_new_tokens": 1, "min_length": 9},
        {"eos_token_id": [3, 6], "bad_words_ids": [[6]]},
        {"forced_eos_token_id": [6, 3]},
        {"forced_bos_token_id": [6]},
        {"no_repeat_ngram_size": -1},
        {"return_dict_in_generate": True},
        {"decoder_start_token_id": 7},
    ],
)
def test_the_answer_follows_from_the_rules(tmp_path: Path, rules: dict[str, Any]) -> None:
    loaded = load(writer(tmp_path / "t5", t5, seed=1, **rules))
    generated = read(loaded, SENTENCE).generated
    assert generated is not None
    assert generated.ids[0] == loaded.model.generation_config.decoder_start_token_id
    assert unsupported_setting(loaded.model) is None
    rules_of_model = greedy_rules(loaded.model, generated.prompt, generated.limit)
    inputs = read(loaded, SENTENCE).inputs
    with torch.no_grad():
        scores_LV = loaded.model(**inputs).logits[0]
    assert rules_of_model.reproduces(scores_LV, generated.ids)
    excluded_LV = rules_of_model.excluded(generated.ids, scores_LV.shape[1])
    assert not excluded_LV[range(len(generated.ids) - 1), generated.ids[1:]].any()


def test_a_limit_of_time_is_no_rule(tmp_path: Path) -> None:
    loaded = load(writer(tmp_path / "t5", t5, max_time=60.0))
    assert unsupported_setting(loaded.model) == "max_time"


LANGUAGES = {"is_multilingual": True, "lang_to_id": {"<|en|>": 5, "<|de|>": 6}, "no_timestamps_token_id": 9}


@pytest.mark.parametrize(
    ("settings", "detects"),
    [
        ({"task": "transcribe"}, True),
        ({"task": "transcribe", "language": "<|de|>"}, False),
        ({"forced_decoder_ids": [[1, 6], [2, 7], [3, 9]]}, False),
        ({"forced_decoder_ids": [[1, None], [2, 7]]}, True),
    ],
)
def test_whisper_recognizes_the_language_unless_it_is_given(
    tmp_path: Path, settings: dict[str, Any], detects: bool
) -> None:
    loaded = load(folders.whisper(tmp_path / "whisper"))
    for name, value in {**LANGUAGES, **settings}.items():
        setattr(loaded.model.generation_config, name, value)
    assert greedy_rules(loaded.model, 3, 20).allowed == ({0: [5, 6]} if detects else {})


def test_an_input_of_padding_outside_the_vocabulary_opens(tmp_path: Path) -> None:
    folder = writer(tmp_path / "t5", t5, seed=1)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token_id": 999}))
    (view,) = saved_page(open_explorer(models=[folder]), SENTENCE)["views"]
    assert view["engine"]["text"]["still"] is None
