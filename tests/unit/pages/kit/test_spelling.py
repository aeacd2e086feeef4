"""Tokenizers in a page equal those in Python."""

import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest

from jarilab.core.errors import UserError
from jarilab.data.text import END, PADDING
from jarilab.data.text.pieces import KINDS
from jarilab.data.text.spelling import Spelling
from jarilab.data.text.tokenizers import Tokenizer, train
from jarilab.pages.kit.page import bundle
from jarilab.tasks.base import registry
from jarilab.tasks.token_task import TokenTask

pytestmark = pytest.mark.browser

LEARNED = [
    "The cat sat on the mat, and the other cat didn't; they're 12 and I'll be 1234.",
    "그 고양이는 매트 위에 앉았다, 다른 고양이는 아니었다. 이백이십이",
    "Ein Äffchen öffnet die Tür: ΣΊΣΥΦΟΣ, naïve café — „Straße“ 👩‍👩‍👧 e\u0301",
    "  numbers 12 123, tabs\tand\nlines\r\n İstanbul",
] * 5

WRITTEN = [
    "",
    " ",
    "\t\n",
    "the cat",
    "The  Cat ",
    " the mat.",
    "don't we're I'LL it's'd",
    "  two  spaces   here ",
    "a\tb\nc\r\nd",
    "\u00a0hard\u00a0space\u3000wide",
    "\ufeffmark\ufeff",
    "\u2028line\u2029paragraph\u0085next",
    "\x1cfile\x1d group\x1f",
    "이백이십이",
    "고양이는 매트",
    "가\u1100\u1161\u11a8",
    "안녕하세요👋🏽 세계",
    "👩‍👩‍👧👍🏿🇰🇷",
    "e\u0301 cafe\u0301 n\u0303",
    "\u0301\u0308",
    "ΣΊΣΥΦΟΣ ΟΔΟΣ.",
    "İstanbul Iı ǅ ẞ",
    "ﬁ Ⅻ ² ½ ٣ ১২ ①",
    "漢字かなカナ",
    "العربية עברית",
    "\u200bzero\u200dwidth\u2060",
    "<pad> <bos> <eos> <unk>",
    " <eos>",
    "_under_score x_1",
    "a-b a--b a - b",
    "!!!???...",
    "\U0001d54f\U00010348\U000e0001",
    "12+7=",
    "12 + 7 =",
    "=",
    "1=2",
    "٣+٤",
    "9" * 70,
    "3 5 2",
    " 03 5\x1f7 ",
    "0000000001 5",
    "000000005",
    "49 50",
    "-1",
    "1.5",
    "３ ５",
    "\ufeff3 5",
    "<pad> 3",
    "two hundred twenty-two",
    "Two Hundred AND twenty–two",
    "two hundred and  twenty,two",
    "band sand and",
    "and",
    "이만 이천이백이",
    "이만이천",
    "만 만",
    "이 만 two",
    "이and삼",
    "and이",
    "two_and_three",
    "seven-",
    "ninety - nine",
    "two\nhundred",
    "thirty\u00a0thousand",
    "zwei",
    "the animal did not cross the street because it was too tired",
    "The animal didn't cross the street, because it was too tired.",
    "the animal didn’t cross . the street",
    ". the dog ate the bread .\t\n",
    "the,dog",
    "the dog\u00a0ate",
    "THE DOG",
    "the unicorn ate",
    "<bos> dog",
    ",",
    "x" * 3000,
    "the " * 400,
    "가" * 900,
    "1+1",
    "0-9=",
    " 12 +7 ",
    "200+200",
    "1000+2000",
    "7 7",
    "0 1 2",
    "1\t2",
    "nineteen",
    "구십구",
    "one hundred thousand",
    "the cat ate the bread although it was sick",
    "because it was too heavy the old dog did not carry the small ladder",
]


def drawn(count: int) -> list[str]:
    """Strings of pieces that meet by chance."""
    chance = random.Random(5)
    parts = [
        *"aZ09+-=,.'’ \t\n\u00a0\x1f_",
        "the",
        " cat",
        "didn't",
        "and",
        "two",
        "ty",
        "만",
        "이",
        " ",
        "고양이",
        "é",
        "e\u0301",
        "İ",
        "Σ",
        "👍🏿",
        "²",
        "\ufeff",
    ]
    return ["".join(chance.choices(parts, k=chance.randint(1, 14))) for _ in range(count)]


TEXTS = WRITTEN + drawn(400)


class Tokens:
    """A tokenizer as a task that reads a text by it."""

    most, some = 100_000, False

    def __init__(self, tokenizer: Tokenizer):
        self.names, self.write = tokenizer.names(range(len(tokenizer))), tokenizer.decode
        self.read, self.spelling = tokenizer.encode, Spelling(tokenizer.reading(), tokenizer.writing())


class Task:
    """What a task says of text, none of which may be empty."""

    some = True

    def __init__(self, task: TokenTask):
        self.most = task.longest["source"]
        source, target = task.model_options.values()
        self.names = task.show_source(range(source))
        self.targets = task.show_target(range(target))
        self.read, self.write, self.spelling = task.read, task.write, task.spelling


def of_kind(kind: str, lowercase: bool) -> Tokens:
    return Tokens(train(kind, LEARNED, size=420, lowercase=lowercase))


FORMS = {"at_blanks": ("words",), "byte_fallback": ("words", "characters")}
"""Further forms of tokenizers, and the kinds that they change."""


def of_task(spec: str, **options: Any) -> Task:
    task = registry.spec(spec).target(**options)
    if spec == "arithmetic":
        task.prepare()
    return Task(task)


MADE: dict[str, Callable[[], Any]] = {
    **{
        f"{kind} {lower}": (lambda kind=kind, lower=lower: of_kind(kind, lower))
        for kind in KINDS
        for lower in (False, True)
    },
    **{
        f"{kind} {form}": (lambda kind=kind, form=form: Tokens(train(kind, LEARNED, size=420, **{form: True})))
        for form, kinds in FORMS.items()
        for kind in kinds
    },
    "arithmetic": lambda: of_task("arithmetic", maximum=200),
    "copy": lambda: of_task("copy", lengths="1..60"),
    "number-words": lambda: of_task("number-words"),
    "pronouns": lambda: of_task("pronouns"),
}


@pytest.fixture(scope="module", params=MADE)
def made(request: pytest.FixtureRequest) -> Any:
    return MADE[request.param]()


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page()
    opened.set_content('<script type="application/json" id="payload">{"language": "en"}</script>')
    opened.add_script_tag(content=f"{bundle('jarilab.pages.kit', 'kit/spelling.js')}\nwindow.spelling = kit_spelling$;")
    yield opened
    opened.close()


def plain(spelling: Spelling) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(spelling)))


def read_here(made: Any, text: str) -> list[int] | None:
    try:
        return made.read(text)
    except UserError:
        return None


def test_tokenization_equals_python(page: Any, made: Any) -> None:
    script = """([read, names, most, some, texts]) => {
        const reader = new spelling.Reader(read, names);
        const ids = (text) => (some ? spelling.readSome(reader, text, most) : reader.read(text, most)).ids;
        return texts.map((text) => { try { return ids(text); } catch (error) { return null; } });
    }"""
    found = page.evaluate(script, [plain(made.spelling)["read"], made.names, made.most, made.some, TEXTS])
    behind = [] if made.spelling.read.end is None else [END]
    read = 0
    for text, ids in zip(TEXTS, found, strict=True):
        expected = read_here(made, text)
        assert ids == (None if expected is None else [*expected, *behind]), text
        read += expected is not None
    assert read > 10, "too few of the texts have tokens to tell anything"


def test_a_text_to_answer_is_refused_as_in_python(page: Any) -> None:
    script = """([read, texts]) => {
        const reader = new spelling.Reader(read, []);
        return texts.map((text) => {
             try { return reader.readKnown(text, 100000).ids; } catch (error) { return null; } });
    }"""
    for kind, lowercase in itertools.product(KINDS, (False, True)):
        tokenizer = train(kind, LEARNED[:1], size=420, lowercase=lowercase)
        found = page.evaluate(script, [plain(Spelling(tokenizer.reading()))["read"], [*TEXTS, "ÄPFEL", "Mat"]])
        expected = []
        for text in (*TEXTS, "ÄPFEL", "Mat"):
            try:
                expected.append(tokenizer.encode_known(text))
            except UserError:
                expected.append(None)
        assert found == expected, kind
        assert None in expected or tokenizer.knows_all


def test_unknown_token_keeps_its_text(page: Any) -> None:
    for kind, lowercase in itertools.product(("words", "characters"), (False, True)):
        tokenizer = train(kind, LEARNED, size=420, lowercase=lowercase)
        script = """([read, texts]) => {
            const reader = new spelling.Reader(read, []);
            return texts.map((text) => reader.read(text, 100000).originals);
        }"""
        found = page.evaluate(script, [plain(Spelling(tokenizer.reading()))["read"], TEXTS])
        assert found == [tokenizer.pieces(text) for text in TEXTS]


def test_detokenization_equals_python(page: Any, made: Any) -> None:
    chance = random.Random(7)
    names = getattr(made, "targets", made.names)
    open_numbers = [number for number in range(len(names)) if number not in (PADDING, END)]
    rows = [chance.choices(open_numbers, k=chance.randint(0, 12)) for _ in range(300)]
    for text in TEXTS:
        rows.append([number for number in read_here(made, text) or [] if number not in (PADDING, END)])
    script = (
        """([write, names, rows]) => rows.map((row) => spelling.written(row, write, names, () => write.unknown_text))"""
    )
    found = page.evaluate(script, [plain(made.spelling)["write"], names, rows])
    assert found == [made.write(row) for row in rows]


def test_unreadable_text(page: Any) -> None:
    script = """([read, names, text, most]) => {
        const reader = new spelling.Reader(read, names);
        try { return spelling.readSome(reader, text, most).ids; } catch (error) { return error.message; }
    }"""
    task = of_task("copy")
    assert "write an input" in page.evaluate(script, [plain(task.spelling)["read"], task.names, "  ", 9])
    assert "no token for 77; this model knows 0 1" in page.evaluate(
        script, [plain(task.spelling)["read"], task.names, "1 77", 9]
    )
    assert "at most 3 tokens, got 5" in page.evaluate(
        script, [plain(task.spelling)["read"], task.names, "1 2 3 4 5", 4]
    )
    bpe = of_kind("bpe", False)
    assert "at most 4 tokens, got" in page.evaluate(script, [plain(bpe.spelling)["read"], bpe.names, "x" * 500_000, 4])
    half = """([read]) => {
        try { new spelling.Reader(read, []).read("\\ud83d", 9); } catch (error) { return error.message; }
    }"""
    assert "half a surrogate" in page.evaluate(half, [plain(bpe.spelling)["read"]])


def test_task_without_spelling() -> None:
    assert TokenTask.spelling.fget(object()) == Spelling()
