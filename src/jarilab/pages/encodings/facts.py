"""Sentences about an encoding: what it does, its limits and its options."""

from __future__ import annotations

from jarilab.pages.encodings.drawn_encoding import DrawnEncoding
from jarilab.pages.encodings.svg import Words

ACTS: dict[str, Words] = {
    "embed": ("adds vectors to the input, once", "입력에 벡터를 한 번 더합니다"),
    "inject": (
        "adds vectors to queries and keys in every layer",
        "모든 층에서 쿼리와 키에 벡터를 더합니다",
    ),
    "rotate": ("rotates queries and keys", "쿼리와 키를 회전합니다"),
    "bias": ("adds to the score, from positions alone", "위치만으로 점수에 더합니다"),
    "terms": (
        "adds to the score, from positions and content",
        "위치와 내용에 따라 점수에 더합니다",
    ),
    "values": ("adds to the output", "출력에 더합니다"),
}
NOTHING: Words = (
    "changes no vector and no score, so there is nothing to draw",
    "벡터와 점수를 바꾸지 않으므로 그릴 것이 없습니다",
)
AXES: dict[int, Words] = {
    1: ("positions on a line", "한 줄의 위치"),
    2: ("rows and columns", "행과 열"),
    3: ("a text with its image", "이미지가 딸린 글"),
}


def facts(subject: DrawnEncoding) -> list[Words]:
    """The sentences about an encoding, in English and Korean."""
    encoding = subject.encoding
    lines = [ACTS[hook] for hook in subject.hooks] or [NOTHING]
    lines.append(_axes(encoding.axes))
    if subject.hooks:
        lines.append(_shift(encoding.shift_invariant))
        lines += _ends(encoding.max_positions, encoding.max_distance)
    if subject.site.causal:
        lines.append(("drawn with a causal mask", "인과 마스크를 두고 그렸습니다"))
    if encoding.causal_only:
        lines.append(("works only in a causal decoder", "인과적 디코더에서만 쓸 수 있습니다"))
    lines.append(_parameters(subject))
    options = ", ".join(subject.options)
    if options:
        lines.append((f"options: {options}", f"옵션: {options}"))
    return lines


def _axes(axes: tuple[int, ...]) -> Words:
    words = [AXES[count] for count in axes]
    return (
        f"for {' or '.join(w[0] for w in words)}",
        f"{' 또는 '.join(w[1] for w in words)}에 씁니다",
    )


def _shift(invariant: bool) -> Words:
    if invariant:
        return (
            "relative: moving all positions by the same amount changes nothing",
            "상대적: 모든 위치를 같은 만큼 옮겨도 달라지지 않습니다",
        )
    return (
        "absolute: depends on where each token stands",
        "절대적: 토큰마다의 위치에 따라 달라집니다",
    )


def _ends(known: int | None, farthest: int | None) -> list[Words]:
    lines: list[Words] = []
    if known is not None:
        lines.append(
            (
                f"supports positions 0 to {known - 1} and refuses larger ones",
                f"위치 0부터 {known - 1}까지 다루고, 그 너머는 거절합니다",
            )
        )
    if farthest is not None:
        lines.append(
            (
                f"supports distances up to {farthest} and refuses larger ones",
                f"거리 {farthest}까지 다루고, 그 너머는 거절합니다",
            )
        )
    return lines or [("no longest position", "가장 먼 위치가 따로 없습니다")]


def _parameters(subject: DrawnEncoding) -> Words:
    count = subject.parameters
    if not count:
        return ("no parameters", "파라미터 없음")
    shared = ("one set for all layers", "모든 층이 함께 쓰는 한 벌")
    separate = ("a set for each layer", "층마다 한 벌")
    english, korean = shared if subject.shared else separate
    seed = subject.seed
    return (
        f"{count:,} parameters, {english}; drawn with their initial values of seed {seed}, untrained",
        f"파라미터 {count:,}개, {korean}; 시드 {seed}의 초깃값(학습 전)으로 그렸습니다",
    )
