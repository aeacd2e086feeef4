"""The sentences of `jarilab causes` in English and Korean, for the terminal and the page."""

from __future__ import annotations

Words = tuple[str, str]
"""The same text in English and in Korean."""

SENTENCES: dict[str, Words] = {
    "head": (
        "{0} decides this answer: without it {1}. Verdict: {2}.",
        "{0} 헤드가 이 답을 정합니다. 끄면 {1}. 판정: {2}.",
    ),
    "heads": (
        "{0} heads are each needed for this answer, by nats lost without them: {1}.",
        "이 답에는 헤드 {0}개가 각각 필요합니다. 끄면 잃는 nat: {1}.",
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
