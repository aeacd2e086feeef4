"""The sentences of `jarilab causes` in English and Korean, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Words = tuple[str, str]
"""The same text in English and in Korean."""

CERTAIN = 0.999
"""A probability above this changes little when the scores change much."""

SENTENCES: dict[str, Words] = {
    "head": (
        "{0} decides this answer: without it {1}. Verdict: {2}.",
        "이 답은 {0} 헤드가 정합니다. 끄면 {1}. 판정: {2}.",
    ),
    "heads": (
        "{0} heads decide this answer: without any one of them, {2}. Nats lost without each: {1}.",
        "이 답은 헤드 {0}개가 정합니다. 그중 하나만 꺼도 {2}. 끄면 잃는 nat: {1}.",
    ),
    "turns": ("another answer is the most likely", "다른 답이 가장 그럴듯해집니다"),
    "halves": ("its probability falls to half or less", "확률이 절반 이하로 떨어집니다"),
    "lead_is_lost": ("its lead is gone", "앞서던 점수가 사라집니다"),
    "and_turns": (
        "{0}, and another answer is the most likely",
        "{0}. 다른 답이 가장 그럴듯해집니다",
    ),
    "pair": (
        "No single head decides this answer: {0} and {1} stand in for each other, and without both {2}.",
        "이 답을 혼자 정하는 헤드는 없습니다. {0}, {1} 헤드가 서로 대신합니다. 둘 다 끄면 {2}.",
    ),
    "no_single": (
        "No single head decides this answer: without the strongest, {0}, {1}.",
        "이 답을 혼자 정하는 헤드는 없습니다. 가장 강한 {0} 헤드를 끄면 {1}.",
    ),
    "no_head": (
        "No head changes this answer more than a random direction does.",
        "무작위 방향보다 이 답을 더 바꾸는 헤드는 없습니다.",
    ),
    "certain": (
        "Its probability is so high that it hides effects: name a rival answer.",
        "확률이 너무 높아 효과가 가려집니다. 견줄 다른 답을 주세요.",
    ),
    "passing": (
        "{0} of {1} heads are larger than each of {2} random directions; about {3:.1f} would be by chance.",
        "헤드 {1}개 중 {0}개가 무작위 방향 {2}개 모두보다 큽니다. 우연이라면 약 {3:.1f}개입니다.",
    ),
    "passing_parts": (
        "{0} of {1} tested are larger than each of {2} random directions; about {3:.1f} would be by chance.",
        "시험한 {1}개 중 {0}개가 무작위 방향 {2}개 모두보다 큽니다. 우연이라면 약 {3:.1f}개입니다.",
    ),
    "perhaps_chance": (
        "So many may pass by chance: try more --controls.",
        "이만큼은 우연히도 나옵니다. --controls를 늘려 보세요.",
    ),
    "probability_falls": (
        "the probability of {0!r} goes from {1:.3g} % to {2:.3g} %",
        "{0!r}의 확률이 {1:.3g} %에서 {2:.3g} %로 바뀝니다",
    ),
    "continuation_falls": (
        "the mean log-probability of the continuation goes from {0:.2f} to {1:.2f} nats",
        "이어지는 글의 평균 로그 확률이 {0:.2f}에서 {1:.2f} nat로 바뀝니다",
    ),
    "lead_falls": (
        "the lead of {2!r} over {3!r} goes from {0:.2f} to {1:.2f} nats",
        "{3!r}보다 {2!r}의 점수가 앞서는 정도가 {0:.2f}에서 {1:.2f} nat로 바뀝니다",
    ),
    "contributions": (
        "Score: {0}, {1:.2f}. With the norms frozen it is a sum of what each part writes. The largest: {2}.",
        "점수: {0}, {1:.2f}. 노름의 크기를 고정하면 각 부분이 쓰는 것의 합입니다. 가장 큰 것: {2}.",
    ),
    "logit_over_rival": (
        "the logit of {0!r} less that of {1!r}",
        "{0!r}의 로짓에서 {1!r}의 로짓을 뺀 값",
    ),
    "logit_over_mean": (
        "the logit of {0!r} less the mean of all logits",
        "{0!r}의 로짓에서 모든 로짓의 평균을 뺀 값",
    ),
    "lens_from": (
        "{0!r} is the most likely answer {1}, and from there on.",
        "{0!r}: {1}부터 끝까지 가장 그럴듯한 답입니다.",
    ),
    "lens_never": (
        "{0!r} is not the most likely answer of the model.",
        "{0!r}: 이 모델의 가장 그럴듯한 답이 아닙니다.",
    ),
    "lens_continuation": (
        "What the model would continue with if each layer were its last.",
        "각 층이 마지막 층이라면 모델이 이어서 쓸 것입니다.",
    ),
    "lens_before": ("before the first layer", "첫 층 앞"),
    "lens_after": ("after {0}", "{0} 뒤"),
    "composition": (
        "Scores of {2:g} times chance (1/√D) or more: {0} of {1}. The largest: {3} → {4} by {5}, {6:.1f} times.",
        "점수 {1}개 중 {0}개가 우연 수준 1/√D의 {2:g}배 이상입니다. 가장 큰 것: {3} → {4}, {5}, {6:.1f}배.",
    ),
    "composition_none": (
        "None of {1} scores is {2:g} times the chance level 1/√D or more.",
        "점수 {1}개 가운데 우연 수준 1/√D의 {2:g}배에 이르는 것이 없습니다.",
    ),
    "screened": (
        "Of {3} heads, only the {1} with the largest estimates and {2} at random were {0}.",
        "헤드 {3}개 가운데 추정이 가장 큰 {1}개와 무작위로 뽑은 {2}개만 {0}.",
    ),
    "screened_all": (
        "All {3} heads were {0}, beside an estimate from one gradient.",
        "헤드 {3}개를 모두 {0}. 기울기 하나로 얻은 추정과 견줍니다.",
    ),
    "screened_by_zero": ("switched off", "껐습니다"),
    "screened_by_input": ("patched with the second input", "둘째 입력으로 패칭했습니다"),
    "correlation": (
        "Rank correlation (Spearman) of estimate and measured effect: {0:.2f}.",
        "추정과 실제 효과의 순위 상관(스피어만): {0:.2f}.",
    ),
    "correlation_of_random": ("Of the random ones alone: {0:.2f}.", "무작위로 뽑은 것만: {0:.2f}."),
    "no_correlation": (
        "No rank correlation: fewer than 3 heads, or equal effects.",
        "순위 상관 없음: 헤드가 3개보다 적거나 효과가 모두 같습니다.",
    ),
    "screen_missed": (
        "The gradient misses {0}: do not trust it on this input. A head that acts through a saturated softmax has "
        "almost no gradient.",
        "기울기가 놓친 헤드: {0}. 이 입력에서는 믿지 마세요. "
        "포화된 소프트맥스를 거쳐 작용하는 헤드는 기울기가 거의 0입니다.",
    ),
    "screen_unordered": (
        "The estimates do not order the heads: do not choose heads by them.",
        "추정의 순서가 맞지 않습니다. 추정으로 헤드를 고르지 마세요.",
    ),
    "screen_certain": (
        "The probability of the answer is so high that its gradient vanishes: name a rival.",
        "답의 확률이 너무 높아 기울기가 사라집니다. 견줄 다른 답을 주세요.",
    ),
    "patched_input": (
        "The score is {0:.2f} for this input and {1:.2f} for the second one.",
        "점수는 이 입력에서 {0:.2f}, 둘째 입력에서 {1:.2f}입니다.",
    ),
    "patched_model": (
        "The score is {0:.2f} of this model and {1:.2f} of the other one.",
        "점수는 이 모델에서 {0:.2f}, 다른 모델에서 {1:.2f}입니다.",
    ),
    "patched_close": (
        "They are too close to divide by their difference, so effects are given in nats alone.",
        "두 점수의 차이가 너무 작아 몫을 내지 않습니다. 효과는 nat로만 적습니다.",
    ),
    "patched_alike": (
        "The two do not differ, so there is no share to give.",
        "둘의 차이가 없어 몫을 낼 수 없습니다.",
    ),
    "all_heads": (
        "All heads of the other together change it by {0:+.2f} nats ({1:z.0f} %).",
        "다른 쪽의 헤드를 모두 넣으면 {0:+.2f} nat({1:z.0f} %) 바뀝니다.",
    ),
    "all_MLPs": (
        "All its MLPs change it by {0:+.2f} nats ({1:z.0f} %).",
        "MLP를 모두 넣으면 {0:+.2f} nat({1:z.0f} %) 바뀝니다.",
    ),
    "patched_largest": (
        "The largest single part: {0}, {1:+.2f} nats ({2:z.0f} %), more than each of {3} random directions.",
        "가장 큰 부분: {0}, {1:+.2f} nat({2:z.0f} %). 무작위 방향 {3}개 모두보다 큽니다.",
    ),
    "patched_chance": (
        "The largest single part, {0} with {1:+.2f} nats ({2:z.0f} %), does not exceed {3} random directions.",
        "가장 큰 부분: {0}, {1:+.2f} nat({2:z.0f} %). 무작위 방향 {3}개보다 크지 않습니다.",
    ),
    "steered": (
        "Added {0} at scale {1:g}, the direction makes {2!r} the most likely answer ({3:.0f} %), and changes the score "
        "more than each of {4} random directions of its length.",
        "{0}에서 {1:g}배를 더하면 가장 그럴듯한 답: {2!r}({3:.0f} %). "
        "길이가 같은 무작위 방향 {4}개 모두보다 점수를 많이 바꿉니다.",
    ),
    "steered_score": (
        "The most likely answer stays. Added {0} at scale {1:g}, the direction changes the score by {2:+.2f} nats, "
        "each of {4} random directions of its length by at most {3:.2f}.",
        "가장 그럴듯한 답은 그대로입니다. {0}에서 {1:g}배를 더하면 점수가 {2:+.2f} nat 바뀝니다. "
        "길이가 같은 무작위 방향 {4}개는 많아야 {3:.2f} nat입니다.",
    ),
    "steered_chance": (
        "The direction changes the score no more than {0} random directions of its length.",
        "길이가 같은 무작위 방향 {0}개보다 점수를 더 바꾸지 않습니다.",
    ),
    "q": ("queries", "쿼리로"),
    "k": ("keys", "키로"),
    "v": ("values", "값으로"),
}


def say(key: str, *values: object) -> Words:
    """A sentence in both languages. values: its parts; a pair of words stands for itself in its language."""
    both = []
    for language, text in enumerate(SENTENCES[key]):
        parts = [each[language] if isinstance(each, tuple) else each for each in values]
        both.append(text.format(*parts))
    return both[0], both[1]


def said(words: Words) -> dict[str, str]:
    """The columns of a sentence."""
    return {"sentence": words[0], "korean": words[1]}


def words_of(row: Mapping[str, Any]) -> Words:
    """The sentence in the columns of a row."""
    return row["sentence"], row["korean"]
