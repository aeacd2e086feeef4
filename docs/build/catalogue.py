"""A page for each encoding: what a person wrote of it, then what the code knows, drawn, measured and tried."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jarilab as package
from jarilab.encodings.base import registry
from jarilab.laws.costs import COLUMNS, ROWS
from jarilab.pages.encodings import Drawings
from jarilab.pages.encodings.svg import Drawing
from jarilab.runs.descriptions import LAYERS, SITE, describe_encoding
from places import CACHE, LANGUAGES, TEXTS, jarilab
from tables import table

FOLDER = "encodings"
COSTS = Path(__file__).parent / "costs.json"
"""What `jarilab encodings --measure` gave: the median of several runs."""
SMALLER = {"continuous_bias2d": "continuous_bias2d:hidden=16"}
"""Where the laws would take minutes with the options that it has by default."""
LAWS, DRAWN = CACHE / "laws", CACHE / "drawn"
FIRST = re.compile(r"^# [^\n]*\n\n(.+?)\n\n", re.S)
"""The first paragraph of a page: what the encoding does, in a sentence."""
STYLE = {"en": ".ko{display:none}", "ko": ".en{display:none}"}
WORDS: dict[str, dict[str, str]] = {
    "en": {
        "index": "encoding|what it does|cost|from",
        "fact": "property|value",
        "also": "also named",
        "axes": "axes",
        "hooks": "acts in",
        "nothing": "nothing",
        "where": "can be used",
        "anywhere": "in every attention",
        "self": "in self-attention, not in cross-attention",
        "causal": "only with a causal mask",
        "shift": "if all positions move by the same amount",
        "same": "nothing changes",
        "changed": "something changes",
        "layers": "layers",
        "shared": "one for all",
        "own": "each has its own",
        "learns": "learned",
        "count": f"{{}} parameters in {LAYERS} layers of width {SITE.d_model} with {SITE.n_heads} heads",
        "cost": "cost",
        "times": f"{{}} times a training step without an encoding, of 64 tokens or {ROWS} x {COLUMNS} patches",
        "from": "from",
        "option": "option|default|one of|meaning",
        "drawn": "## Drawn",
        "drawing": "By `jarilab show {}`; what learns has its initial values.",
        "tried": "## Under the laws",
        "trying": "What `jarilab laws {}` printed when this page was built:",
    },
    "ko": {
        "index": "인코딩|하는 일|비용|출처",
        "fact": "성질|값",
        "also": "다른 이름",
        "axes": "축",
        "hooks": "작용하는 곳",
        "nothing": "없음",
        "where": "쓸 수 있는 곳",
        "anywhere": "어디서나",
        "self": "디코더와 그 입력 사이는 빼고",
        "causal": "쿼리가 뒤의 키를 보지 않는 곳에서만",
        "shift": "모든 자리를 똑같이 옮기면",
        "same": "아무것도 바뀌지 않는다",
        "changed": "무언가 바뀐다",
        "layers": "층",
        "shared": "모든 층이 하나를 함께 쓴다",
        "own": "층마다 따로 있다",
        "learns": "학습하는 수",
        "count": f"폭 {SITE.d_model}, 헤드 {SITE.n_heads}, 층 {LAYERS}에서 {{}}개",
        "cost": "비용",
        "times": f"인코딩 없는 학습 스텝의 {{}}배(토큰 64개 또는 {ROWS} x {COLUMNS} 패치)",
        "from": "출처",
        "option": "옵션|기본값|고를 수 있는 값|뜻(코드에 적힌 영어 그대로)",
        "drawn": "## 그림",
        "drawing": "`jarilab show {}`로 그렸고, 학습하는 것은 초깃값으로 그린다.",
        "tried": "## 법칙에 따라 검사하면",
        "trying": "이 페이지를 만들 때 `jarilab laws {}`가 출력한 것:",
    },
}


def tried(name: str) -> str:
    """The spec that the laws are asked for."""
    return SMALLER.get(name, name)


def make() -> None:
    """Hold every encoding to the laws, but those that were. Raises SystemExit where one is broken."""
    LAWS.mkdir(parents=True, exist_ok=True)
    for name in registry.names():
        path = LAWS / f"{name}.txt"
        if not path.exists():
            path.write_text(jarilab("laws", tried(name)), encoding="utf-8")


def parts() -> dict[str, str]:
    """By the mark in a page that each takes the place of, on the site alone."""
    records = [describe_encoding(name) for name in registry.names()]
    return {
        mark(one["name"], language): known(one, language, words)
        for language, words in WORDS.items()
        for one in records
    }


def mark(name: str, language: str) -> str:
    """What a page has where the code goes on."""
    return f"encoding-{name}-{language}"


def page(name: str, language: str) -> Path:
    """Where an encoding's page is written."""
    return TEXTS / language / FOLDER / f"{name}.md"


def what(name: str, language: str) -> str:
    """What it does, as its page says first. Raises SystemExit where it says nothing."""
    file = page(name, language)
    found = FIRST.match(file.read_text(encoding="utf-8")) if file.is_file() else None
    if not found:
        got = "other text" if file.is_file() else "no file"
        raise SystemExit(
            f"{file}: expected a heading, then what the encoding does; got {got}; write it as in "
            f"{page('rotary', language)}"
        )
    return found[1].replace("\n", " ")


def index(language: str) -> str:
    """A line for each encoding."""
    costs, words = _costs(), WORDS[language]
    rows = [
        [
            f"[`{one['name']}`]({one['name']}.md)",
            what(one["name"], language),
            f"{costs[one['name']]:.2f}",
            one["cited"] or "",
        ]
        for one in map(describe_encoding, registry.names())
    ]
    return table(words["index"].split("|"), rows)


def known(one: dict[str, Any], language: str, words: dict[str, str]) -> str:
    """What takes long to make: drawings, and the results of the laws."""
    spec = f"{one['name']} --causal" if one["claims"]["causal_only"] else one["name"]
    drawn = [words["drawn"], words["drawing"].format(spec), *_drawings(one, language)]
    results = (LAWS / f"{one['name']}.txt").read_text(encoding="utf-8").rstrip()
    return "\n\n".join(
        [
            *(drawn if len(drawn) > 2 else []),
            words["tried"],
            words["trying"].format(tried(one["name"])),
            f"```text\n{results}\n```",
        ]
    )


def facts(name: str, language: str) -> str:
    """A table of what the class of an encoding claims and costs."""
    one, words = describe_encoding(name), WORDS[language]
    claims = one["claims"]
    also = ", ".join(f"`{name}`" for name in one["also"])
    rows = [
        *([[words["also"], also]] if also else []),
        [words["axes"], ", ".join(map(str, one["axes"]))],
        [words["hooks"], _hooks(one, words)],
        [words["where"], words[_where(one)]],
        [words["shift"], words["same" if claims["shift_invariant"] else "changed"]],
        [words["layers"], words["shared" if claims["shared"] else "own"]],
        [words["learns"], words["count"].format(f"{one['learns']:,}")],
        [words["cost"], words["times"].format(f"{_costs()[one['name']]:.2f}")],
        [words["from"], one["paper"]],
    ]
    return table(words["fact"].split("|"), rows)


def _where(one: dict[str, Any]) -> str:
    if one["claims"]["causal_only"]:
        return "causal"
    return "anywhere" if one["claims"]["cross"] else "self"


def _hooks(one: dict[str, Any], words: dict[str, str]) -> str:
    return ", ".join(f"`{hook}`" for hook in one["hooks"]) or words["nothing"]


def options(name: str, language: str) -> str:
    """A table of the options that a spec may give."""
    words = WORDS[language]
    rows = [
        [
            f"`{option['name']}`",
            "" if option["default"] is None else f"`{option['default']}`",
            ", ".join(f"`{choice}`" for choice in option["choices"]),
            " ".join(option["meaning"].split()),
        ]
        for option in describe_encoding(name)["options"]
    ]
    return table(words["option"].split("|"), rows)


def _costs() -> dict[str, float]:
    return json.loads(COSTS.read_text(encoding="utf-8"))


def _drawings(one: dict[str, Any], language: str) -> list[str]:
    """Each drawing of an encoding, and how to read it."""
    found: Drawings = package.draw_encodings(one["name"], causal=one["claims"]["causal_only"])
    return [_figure(name, drawing, language) for name, drawing in found.files().items()]


def _figure(name: str, drawing: Drawing, language: str) -> str:
    at = LANGUAGES.index(language)
    path = DRAWN / language / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(drawing.file().replace(STYLE["en"], STYLE[language]), encoding="utf-8")
    return (
        f"**{drawing.title[at]}**\n\n![{drawing.title[at]}](drawn/{name})\n\n{drawing.caption[at]}"
    )
