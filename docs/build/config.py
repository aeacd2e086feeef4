"""What the builder is told: the names of pages, their order, and nothing that is fetched from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jarilab.encodings.base import registry

LESSONS = (
    *("embedding", "attention", "query-key-value", "sqrt", "masks", "heads"),
    *("bag", "sinusoids", "where", "rotary", "beyond", "language"),
    *("block", "norms", "cross", "training", "writing", "seq2seq", "images"),
    *("causes", "break", "choose"),
)
"""In the order in which they are read."""
Entry = tuple[str, str, "str | list[Entry]"]
"""The name in English, in Korean, and a page, or the entries below. A page that starts with / is English alone."""

TASKS: list[Entry] = [
    ("Install", "설치", "how-to/install.md"),
    ("Maps of your model", "내 모델의 맵", "how-to/maps.md"),
    ("Heads over your data set", "내 데이터로 헤드 재기", "how-to/study.md"),
    ("Longer texts", "더 긴 글", "how-to/longer-texts.md"),
    ("Compare two encodings", "두 인코딩 비교", "how-to/compare.md"),
    ("Train on your data", "내 데이터로 학습", "how-to/train.md"),
    ("Fine-tune", "미세 조정", "how-to/fine-tune.md"),
    ("Serve", "서버로 쓰기", "how-to/serve.md"),
    ("Export", "내보내기", "how-to/export.md"),
    ("Reproduce a run", "실행 재현", "how-to/reproduce.md"),
    ("On a GPU", "GPU에서", "how-to/gpu.md"),
    ("Write your own", "내 것 쓰기", "how-to/your-own.md"),
    ("Messages and their cure", "오류 메시지와 해결", "how-to/messages.md"),
]
"""One job each."""
GUIDE: list[Entry] = [
    ("Train, answer, measure", "학습하고 답하고 재기", "tutorials/training.md"),
    ("Your own text", "내 글로", "how-to/text.md"),
    ("Your own images", "내 이미지로", "how-to/images.md"),
    ("Compare fairly", "공정하게 비교하기", "explanation/comparing.md"),
    ("Follow one head", "헤드 하나 따라가기", "tutorials/walking.md"),
    ("Look inside", "들여다보기", "how-to/looking-inside.md"),
    ("Record any model", "어떤 모델이든 기록하기", "how-to/recording.md"),
    ("Heads over a data set", "데이터 전체에서 보는 헤드", "reference/heads.md"),
    ("Which head does it?", "어느 헤드가 하는가?", "how-to/causes.md"),
    (
        "Which tokens does the answer depend on?",
        "답은 어느 토큰에 달려 있는가?",
        "how-to/relevance.md",
    ),
    ("A figure for a paper", "논문에 넣을 그림", "how-to/figures.md"),
    ("Watch your own training", "내 학습 지켜보기", "how-to/watching.md"),
    ("Speech", "음성", "how-to/speech.md"),
    ("Vision-language models", "시각-언어 모델", "how-to/vision-language.md"),
    ("Diffusion", "확산 모델", "how-to/diffusion.md"),
    ("Windows and points over the image", "창과 점을 이미지 위에", "how-to/windows.md"),
    ("An encoding in your own attention", "내 어텐션에 인코딩 넣기", "how-to/own-attention.md"),
    ("In your PyTorch code", "PyTorch 코드에서", "how-to/python.md"),
    ("Serve a run", "실행을 서버로", "reference/serving.md"),
    ("A model for another program", "다른 프로그램에 줄 모델", "reference/exporting.md"),
    ("Encodings: draw, combine, check", "인코딩: 그리고 섞고 검사하기", "how-to/encodings.md"),
    ("What a run keeps", "실행 폴더에 남는 것", "reference/runs.md"),
]
RESULTS: list[Entry] = [
    ("Arithmetic", "산수", "/results/arithmetic.md"),
    ("Text", "글", "/results/text.md"),
    ("Images", "이미지", "/results/images.md"),
    ("Positions", "위치", "/results/positions.md"),
    ("Long sequences", "긴 시퀀스", "/results/long.md"),
    ("Recipes", "훈련법", "/results/recipes.md"),
    ("Reliability", "믿을 수 있는가", "/results/reliability.md"),
    ("Laws of models", "모델의 법칙", "/results/model-laws.md"),
    ("Comparisons", "비교의 오류와 검정력", "/results/comparison.md"),
    ("Architectures", "아키텍처", "/results/architectures.md"),
    ("Known circuits", "회로를 아는 모델", "/results/circuits.md"),
]
REFERENCE: list[Entry] = [
    ("The explorer", "보기와 척도", "reference/explorer.md"),
    ("Python", "파이썬", "/reference/python.md"),
    ("Commands", "명령", "/reference/commands.md"),
    ("Tasks and models", "과제와 모델", "/reference/tasks.md"),
    ("The design", "설계", "/explanation/design.md"),
]


def navigation(titles: dict[str, tuple[str, str]]) -> list[Entry]:
    """The whole of it. titles: of each lesson, in both languages."""
    lessons: list[Entry] = [
        ("All lessons", "모든 수업", "lessons/index.md"),
        *((*titles[name], f"lessons/{name}.md") for name in LESSONS),
        ("For teachers", "가르치는 사람에게", "lessons/teachers.md"),
    ]
    encodings: list[Entry] = [
        ("All encodings", "모든 인코딩", "encodings/index.md"),
        *((name, name, f"encodings/{name}.md") for name in registry.names()),
    ]
    return [
        ("Home", "처음", "index.md"),
        ("Five minutes", "5분", "five-minutes.md"),
        ("Lessons", "수업", lessons),
        ("Which encoding?", "어떤 인코딩?", "which-encoding.md"),
        (
            "How to",
            "하는 법",
            [("By what you have", "가진 것으로 찾기", "how-to/index.md"), *TASKS],
        ),
        ("Guides", "안내", [("All pages", "모든 글", "contents.md"), *GUIDE]),
        ("Reference", "참고", REFERENCE),
        ("Results", "결과", RESULTS),
        ("Gallery", "갤러리", "gallery.md"),
        ("Figures, by command", "명령으로 만드는 그림과 실험", "figures.md"),
        ("Glossary", "용어", "glossary.md"),
        # Last, since it is long: who goes by keyboard comes to all else before it.
        ("Encodings", "인코딩", encodings),
    ]


def _listed(entries: list[Entry], language: str) -> list[dict[str, Any]]:
    return [
        {(korean if language == "ko" else english): _target(target, language)}
        for english, korean, target in entries
    ]


def _target(target: str | list[Entry], language: str) -> Any:
    if not isinstance(target, str):
        return _listed(target, language)
    if not target.startswith("/"):
        return target
    english = target.removeprefix("/")
    return english if language == "en" else f"../{english.removesuffix('.md')}.html"


def write(root: Path, language: str, titles: dict[str, tuple[str, str]]) -> Path:
    """The builder's file for a language, below which it reads and writes; gives its path."""
    words = {
        "en": ("jari", "Train attention models, choose how they know order, and look inside"),
        "ko": ("jari 자리", "어텐션 모델을 학습하고, 순서를 아는 방법을 고르고, 들여다본다"),
    }[language]
    features = ["navigation.sections", "navigation.footer", "navigation.top", "content.code.copy"]
    homes = {"en": ("./index.html", "./ko/index.html"), "ko": ("../index.html", "./index.html")}[
        language
    ]
    palette = [
        {"media": "(prefers-color-scheme: light)", "scheme": "default"},
        {"media": "(prefers-color-scheme: dark)", "scheme": "slate"},
    ]
    project = {
        "site_name": words[0],
        "site_description": words[1],
        "docs_dir": f"source/{language}",
        "site_dir": f"built/{language}",
        "use_directory_urls": False,
        "extra_css": ["site.css"],
        "nav": _listed(navigation(titles), language),
        "theme": {"language": language, "font": False, "features": features, "palette": palette},
        "extra": {
            "generator": False,
            "alternate": [
                {"name": "English", "link": homes[0], "lang": "en"},
                {"name": "한국어", "link": homes[1], "lang": "ko"},
            ],
        },
    }
    path = root / f"{language}.yml"
    path.write_text(json.dumps(project, ensure_ascii=False, indent=1), encoding="utf-8")
    return path
