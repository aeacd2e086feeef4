"""The program of a Hugging Face model with one input, and what a saved page says with it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from jarilab.core.errors import UserError
from jarilab.explorer.output_comparison import comparison_of
from jarilab.explorer.subject import Writer
from jarilab.huggingface import Loaded, ModelInput, OutputReader
from jarilab.huggingface.greedy import GreedyRules, greedy_rules, unsupported_setting
from jarilab.huggingface.spelling import writing_of
from jarilab.inspect.record.capture import Tape
from jarilab.pages.kit.data_blocks import unpacked
from jarilab.pages.program.inputs import FixedInput, PaddedIds
from jarilab.pages.program.program import why_not

MORE_TOKENS = 16
"""How many tokens a changed answer may have more than the answer before."""


def engine_of(loaded: Loaded, reading: ModelInput, tape: Tape, program: Writer) -> dict[str, Any]:
    """The `program` and `text` of a page, or `why` it has none."""
    reader = reading.output_reader
    rules, still = _rules(loaded, reading)
    padded = None if rules is None else _padded(reading, rules)
    paths = {site: tape.site(site).path for site in tape.sites}
    fixed = FixedInput(reading.inputs, comparison_of(reader).rows, paths, padded)
    try:
        exported = program(loaded.model, fixed)
    except UserError as error:
        return {"why": why_not(error)}
    if reader is None:
        return {"program": exported, "text": {"kind": "vectors"}}
    count = unpacked(exported["sample"]["scores"]).shape[-1]
    text = _text(reader, count)
    if rules is not None:
        text["rewriting"] = _rewriting(loaded, rules, reader, count)
    return {"program": exported, "text": {**text, "still": still}}


def _text(reader: OutputReader, count: int) -> dict[str, Any]:
    """What stands at the places of a fixed input. count: of tokens or classes."""
    # Given tokens of a text are not the model's answer; a text that the model wrote is written anew elsewhere.
    is_given = reader.kind in ("words", "written")
    return {
        "kind": "fixed",
        "labels": reader.labels,
        "first": reader.first,
        "given": len(reader.labels) if is_given else reader.first,
        "tokens": {"target": [name for each in range(count) for name in reader.names([each])]},
    }


def _rewriting(
    loaded: Loaded, rules: GreedyRules, reader: OutputReader, count: int
) -> dict[str, Any]:
    """How a page writes the answer anew."""
    writing, is_exact = writing_of(loaded.target_tokenizer, count, reader.labels)
    return {**asdict(rules), "write": asdict(writing), "exact": is_exact}


Why = tuple[str, str]


def _rules(loaded: Loaded, reading: ModelInput) -> tuple[GreedyRules | None, Why | None]:
    """How the model writes its answer; else why a page cannot write it anew, in English and Korean."""
    generated = reading.generated
    if generated is None or reading.output_reader is None:
        return None, None
    setting = unsupported_setting(loaded.model)
    if setting is not None:
        return None, (
            f"generation_config.json sets {setting}, which a page does not follow",
            f"generation_config.json의 {setting} 설정은 페이지가 따르지 못합니다",
        )
    rules = greedy_rules(loaded.model, generated.prompt, generated.limit)
    with torch.no_grad():
        scores_LV = loaded.model(**reading.inputs).logits[0]
    if not rules.reproduces(scores_LV, generated.ids):
        return None, (
            "Python did not write the most likely token each time",
            "파이썬이 쓴 토큰이 매번 가장 그럴듯한 토큰은 아닙니다",
        )
    return rules, None


def _padded(reading: ModelInput, rules: GreedyRules) -> PaddedIds:
    """The ids of the answer, as an input of the program."""
    length = reading.inputs["decoder_input_ids"].shape[1]
    # It is larger, so that shapes show which axes belong to the answer.
    longest = max(length + 1, min(length + MORE_TOKENS, rules.max_length))
    return PaddedIds("decoder_input_ids", longest)
