"""The arithmetic task: right answers, one held-out split, and the ceiling, each against a count in plain Python."""

import itertools
import re
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST, PADDING, CharacterVocabulary
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.tasks.base import registry
from jarilab.tasks.expressions import carries, source_tokens, target_tokens

OPTIONS = [
    {"operators": operators, "answers": answers, "operands": operands}
    for operators in ("+-", "+", "-")
    for answers in ("plain", "reversed", "padded")
    for operands in ("plain", "padded")
]
SPANS = [{"maximum": 30}, {"minimum": 7, "maximum": 34}, {"minimum": 95, "maximum": 112}]


def parsed(line):
    left, operator, right, answer = re.fullmatch(r"(\d+)([+-])(\d+)=(.+)", line).groups()
    return left, operator, right, answer


def value(left, operator, right):
    return int(left) + int(right) if operator == "+" else int(left) - int(right)


def expressions(task, numbers):
    """(i, operator, j) of the numbered expressions, however they are written."""
    lines = list(task.lines())
    return [(int(i), o, int(j)) for i, o, j, _ in (parsed(lines[n]) for n in numbers.tolist())]


def answer_of(task, left, operator, right):
    """The answer's tokens, written here."""
    number = value(left, operator, right)
    digits = str(abs(number)).zfill(task.answer_digits if task.answers == "padded" else 1)
    text = "-" * (number < 0) + digits
    return [*task.vocabulary.encode(text[::-1] if task.answers == "reversed" else text), END]


class Writes:
    """A learner whose answers are those of a function of the sources, a padded matrix."""

    model = judge = None

    def __init__(self, answers):
        self.answers = answers

    def write(self, sources):
        return [[token for token in row if token != PADDING] for row in self.answers(sources).tolist()]

    def scores(self, batch):
        raise AssertionError("exact match asks for answers alone")

    def most_attended(self, source, written):
        raise AssertionError("exact match asks for answers alone")


def generator(task, change=0):
    """What a model writes that reads the expression, computes the answer, and is off by `change`."""

    def generate(source):
        answers = []
        for ids in source.ids.tolist():
            left, operator, right = re.fullmatch(r"(\d+)([+-])(\d+)", task.vocabulary.decode(ids)).groups()
            answers.append(torch.tensor(answer_of(task, int(left) + change, operator, right)))
        return torch.nn.utils.rnn.pad_sequence(answers, batch_first=True, padding_value=PADDING)

    return generate


def brute_force_ceiling(task):
    """Count in plain Python: for each bag of characters, how often its commonest answer stands."""
    answers, totals, best = defaultdict(Counter), Counter(), Counter()
    for line in task.lines():
        source, _, answer = line.partition("=")
        answers["".join(sorted(source))][answer] += 1
    for bag, counts in answers.items():
        operator = "+" if "+" in bag else "-"
        for group in ("all", operator):
            totals[group] += counts.total()
            best[group] += counts.most_common(1)[0][1]
    shares = {group: best[group] / totals[group] for group in totals}
    return shares if len(task.operators) > 1 else {"all": shares["all"]}


# The file ------------------------------------------------------------------------------------------------------------


def test_the_file_goes_through_i_then_j_then_plus_and_minus():
    lines = list(Arithmetic(minimum=8, maximum=10, answers="plain").lines())[:6]
    assert lines[:4] == ["8+8=16", "8-8=0", "8+9=17", "8-9=-1"]
    order = [parsed(line)[:3] for line in Arithmetic(maximum=12).lines()]
    assert order == [(str(i), o, str(j)) for i in range(13) for j in range(13) for o in "+-"]


def test_the_default_is_the_two_million_expressions():
    task = Arithmetic()
    lines = task.lines()
    assert task.describe() == "i+j and i-j, 0 <= i, j <= 999: 2,000,000 expressions"
    assert list(itertools.islice(lines, 4)) == ["0+0=0", "0-0=0", "0+1=1", "0-1=-1"]
    position = (21 * 1000 + 211) * 2
    assert next(itertools.islice(lines, position - 4, None)) == "21+211=232"
    assert task.longest == {"source": 7, "target": 5}


@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_answer_is_right(span, options):
    task = Arithmetic(**span, **options)
    width = len(str(task.maximum)) if task.operands == "padded" else 1
    answers = []
    for line in task.lines():
        left, operator, right, answer = parsed(line)
        assert (left, right) == (str(int(left)).zfill(width), str(int(right)).zfill(width)), line
        plain = answer[::-1] if task.answers == "reversed" else answer
        assert int(plain) == value(left, operator, right), line
        assert task.expected(f" {left} {operator} {right} = ") == answer
        answers.append(plain.lstrip("-"))
    if task.answers == "padded":
        assert len(set(map(len, answers))) == 1
        assert max(map(len, answers)) == task.answer_digits
    else:
        assert all(answer == str(int(answer)) for answer in answers)


@pytest.mark.parametrize("span", [*SPANS, {"minimum": 10**15 - 12, "maximum": 10**15 - 1}], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_row_of_tokens_is_that_of_the_expression_written_out(span, options):
    task = Arithmetic(**span, **options)
    numbers = range(task.minimum, task.maximum + 1)
    padded = task.operands == "padded"
    sources, targets = [], []
    for i, j, operator in itertools.product(numbers, numbers, task.operators):
        width = task.digits if padded else 1
        sources.append(task.vocabulary.encode(f"{i:0{width}}{operator}{j:0{width}}"))
        targets.append(answer_of(task, i, operator, j))
    which = task.minimum, task.maximum, task.operators
    tokens = source_tokens(*which, task.digits, padded=padded), target_tokens(*which, task.answer_digits, task.answers)
    for rows, expected, width in zip(tokens, (sources, targets), (2 * task.digits + 1, None), strict=True):
        width = width or max(map(len, expected))
        assert rows.dtype == np.uint8
        assert rows.tolist() == [row + [PADDING] * (width - len(row)) for row in expected]


def test_padded_answers_are_as_wide_as_the_longest():
    lines = list(Arithmetic(maximum=99, answers="padded", operands="padded").lines())
    assert lines[0] == "00+00=000"
    assert lines[3] == "00-01=-001"
    assert lines[-2] == "99+99=198"


@pytest.mark.parametrize("line", ["", "12", "+12", "12*3", "1+2+3", "1 1", "٣+٤", "12-"])
def test_what_is_no_expression_has_no_expected_answer(line):
    assert Arithmetic(maximum=30).expected(line) is None


# Batches -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_batch_says_the_right_answers(options):
    task = Arithmetic(maximum=30, **options)
    batch = task.training_batch(torch.arange(0, task.training_size, 7), torch.Generator())
    (source, target), labels = batch.inputs, batch.labels
    for ids, label in zip(source.ids.tolist(), labels.tolist(), strict=True):
        line = f"{task.vocabulary.decode(ids)}={task.vocabulary.decode(label)}"
        left, operator, right, _ = parsed(line)
        answer = answer_of(task, left, operator, right)
        assert label == answer + [PADDING] * (len(label) - len(answer)), line
    # What is said before each label: the start, then the labels.
    assert (target.ids[:, 0] == FIRST).all()
    assert torch.equal(target.ids[:, 1:], labels[:, :-1])
    assert source.ids.shape[1] == task.longest["source"]
    assert labels.shape[1] == target.ids.shape[1] == task.longest["target"]
    assert (labels[:, -1] == END).any(), "the last column is there for the longest answer"
    assert (source.positions.frame, target.positions.frame) == ("source", "target")


def test_padding_stands_behind_and_is_marked():
    task = Arithmetic(maximum=30)
    source = task.training_batch(torch.arange(task.training_size), torch.Generator()).inputs[0]
    lengths = (source.ids != PADDING).sum(1)
    assert set(lengths.tolist()) == {3, 4, 5}
    behind = torch.arange(5) >= lengths[:, None]
    assert torch.equal(source.ids == PADDING, behind)
    assert torch.equal(source.keep, ~behind)


def test_sources_of_a_person_are_those_of_the_data():
    task = Arithmetic(maximum=30)
    tokens = task.sources([task.read("12+3"), task.read("1-2"), task.read("30+30")])
    assert tokens.ids.tolist() == [[4, 5, 13, 6, 0], [4, 14, 5, 0, 0], [6, 3, 13, 6, 3]]
    assert torch.equal(tokens.keep, tokens.ids != PADDING)
    assert task.show_source(tokens.ids[0].tolist()) == ["1", "2", "+", "3", "<pad>"]


def test_the_loss_is_cross_entropy_over_what_is_no_padding():
    task = Arithmetic(maximum=30)
    batch = task.training_batch(torch.arange(50), torch.Generator())
    scores = torch.randn(*batch.labels.shape, len(task.vocabulary))
    real = batch.labels != PADDING
    logs = scores[real].log_softmax(-1)
    by_hand = -logs[torch.arange(len(logs)), batch.labels[real]].mean()
    assert task.loss(scores, batch).item() == pytest.approx(by_hand.item(), abs=1e-6)
    scores[~real] = 1e3 * torch.randn_like(scores[~real])
    assert task.loss(scores, batch).item() == pytest.approx(by_hand.item(), abs=1e-6)


def test_balanced_training_repeats_rare_lengths():
    plain, balanced = Arithmetic(maximum=99, balanced=False), Arithmetic(maximum=99)
    assert len(set(plain._training.tolist())) == plain.training_size
    assert set(balanced._training.tolist()) == set(plain._training.tolist())
    assert balanced._held_out.tolist() == plain._held_out.tolist()
    repeats = Counter(expressions(balanced, balanced._training))
    shapes = Counter((len(str(i)), len(str(j))) for i, _, j in repeats)
    for (i, _, j), times in repeats.items():
        count = shapes[len(str(i)), len(str(j))]
        assert times == round((max(shapes.values()) / count) ** 0.5)


# Held out ------------------------------------------------------------------------------------------------------------

SETS = [
    {"maximum": 30},
    {"maximum": 60, "balanced": False},
    {"minimum": 10, "maximum": 110},
    {"maximum": 40, "operators": "+"},
    {"maximum": 40, "operators": "-", "answers": "padded"},
    {"maximum": 30, "operands": "padded", "answers": "reversed"},
]


def test_an_expression_is_held_out_whatever_the_options_are():
    split = {}
    for options in SETS:
        task = Arithmetic(**options)
        for held_out, numbers in ((True, task._held_out), (False, task._training)):
            for expression in expressions(task, numbers):
                assert split.setdefault(expression, held_out) == held_out, (expression, options)
    assert len(split) > 60**2 * 2


def test_held_out_and_training_are_all_and_share_nothing():
    for options in SETS:
        task = Arithmetic(**options)
        held_out, training = set(task._held_out.tolist()), set(task._training.tolist())
        assert not held_out & training
        assert held_out | training == set(range(len(task._source)))


def test_about_one_in_fifty_is_held_out_of_either_operator():
    task = Arithmetic(maximum=199)
    for operator in "+-":
        count = sum(o == operator for _, o, _ in expressions(task, task._held_out))
        assert count / 200**2 == pytest.approx(1 / 50, rel=0.1)


def test_held_out_expressions_are_not_the_small_or_the_large_ones():
    task = Arithmetic(maximum=199)
    held_out = expressions(task, task._held_out)
    assert sum(i for i, _, _ in held_out) / len(held_out) == pytest.approx(99.5, rel=0.05)
    assert sum(j for _, _, j in held_out) / len(held_out) == pytest.approx(99.5, rel=0.05)


# The ceiling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "span", [{"maximum": 21}, {"minimum": 3, "maximum": 24}, {"minimum": 95, "maximum": 112}], ids=str
)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_ceiling_is_what_counting_gives(span, options):
    task = Arithmetic(**span, **options)
    assert task.ceiling() == brute_force_ceiling(task)


def test_the_ceiling_of_long_numbers():
    # Sixteen equal digits in a line, which four bits could not count.
    task = Arithmetic(minimum=11_111_109, maximum=11_111_123)
    assert task.ceiling() == brute_force_ceiling(task)


@pytest.mark.parametrize(
    ("options", "published"),
    [
        ({}, {"all": 4.33, "+": 7.14, "-": 1.51}),
        ({"operands": "padded"}, {"all": 3.25, "+": 5.32, "-": 1.19}),
        ({"maximum": 99}, {"all": 23.4}),
    ],
    ids=["default", "padded operands", "two digits"],
)
def test_the_published_ceilings(options, published):
    ceiling = Arithmetic(**options).ceiling()
    for group, percent in published.items():
        digits = len(str(percent).partition(".")[2])
        assert round(100 * ceiling[group], digits) == percent


@pytest.mark.parametrize("options", [{}, {"answers": "reversed"}, {"operators": "-"}, {"operands": "padded"}], ids=str)
def test_the_commonest_answer_of_each_bag_reaches_the_ceiling_exactly(options):
    task = Arithmetic(maximum=30, **options)
    answers = defaultdict(Counter)
    for source, target in zip(task._source.tolist(), task._target.tolist(), strict=True):
        answers[tuple(sorted(source))][tuple(target)] += 1

    def generate(source):
        return torch.tensor([answers[tuple(sorted(ids))].most_common(1)[0][0] for ids in source.ids.tolist()])

    task._held_out = torch.arange(len(task._source))
    metrics = task.evaluate(Writes(generate))
    ceiling = task.ceiling()
    assert metrics["exact_match"] == pytest.approx(ceiling["all"], abs=1e-12)
    for operator in task.groups[1:]:
        assert metrics[f"exact_match_{operator}"] == pytest.approx(ceiling[operator], abs=1e-12)


# Evaluation ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_evaluation_of_a_perfect_and_of_a_wrong_model(options):
    task = Arithmetic(maximum=30, **options)
    right, wrong = task.evaluate(Writes(generator(task))), task.evaluate(Writes(generator(task, change=1)))
    names = {"exact_match", *(f"exact_match_{o}" for o in task.operators if len(task.operators) > 1)}
    shares = [
        {part["value"] for parts in metrics.pop("parts").values() for part in parts.values()}
        for metrics in (right, wrong)
    ]
    assert shares == [{1.0}, {0.0}]
    assert [metrics.pop("outcomes") for metrics in (right, wrong)] == [
        [share] * len(task._held_out) for share in (1.0, 0.0)
    ]
    counted = [metrics.pop("group_examples", {}) for metrics in (right, wrong)]
    assert counted[0] == counted[1]
    assert sum(counted[0].values()) == (len(task._held_out) if len(task.groups) > 1 else 0)
    assert right == {"examples": float(len(task._held_out)), **dict.fromkeys(names, 1.0)}
    assert wrong == {"examples": float(len(task._held_out)), **dict.fromkeys(names, 0.0)}


def test_only_the_whole_answer_counts():
    task = Arithmetic(maximum=30)
    perfect = generator(task)

    def without_end(source):
        return perfect(source).masked_fill(perfect(source) == END, PADDING)

    def one_digit_more(source):
        ids = functional.pad(perfect(source), (0, 1))
        ends = (ids == END).nonzero()
        ids[ends[:, 0], ends[:, 1]], ids[ends[:, 0], ends[:, 1] + 1] = 3, END
        return ids

    assert task.evaluate(Writes(without_end))["exact_match"] == 0.0
    assert task.evaluate(Writes(one_digit_more))["exact_match"] == 0.0


def test_operators_are_measured_apart():
    task = Arithmetic(maximum=30)
    plus, perfect = task.vocabulary.number["+"], generator(task)

    def adds_only(source):
        return perfect(source) * (source.ids == plus).any(1, keepdim=True)

    metrics = task.evaluate(Writes(adds_only))
    additions = sum(o == "+" for _, o, _ in expressions(task, task._held_out))
    assert (metrics["exact_match_+"], metrics["exact_match_-"]) == (1.0, 0.0)
    assert metrics["exact_match"] == additions / len(task._held_out)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("1+2", 0),
        ("5+5", 1),
        ("95+5", 2),
        ("19+22", 1),
        ("30-1", 1),
        ("1-30", 1),
        ("22-11", 0),
        ("100-1", 2),
        ("0-0", 0),
    ],
)
def test_carries_are_those_of_the_written_sum(line, count):
    left, sign, right = re.fullmatch(r"(\d+)([+-])(\d+)", line).groups()
    assert carries(np.array([int(left)]), np.array([int(right)]), np.array([ord(sign)])).tolist() == [count]


@pytest.mark.parametrize("options", [{}, {"answers": "padded"}, {"operators": "-", "minimum": 3}], ids=str)
def test_answers_are_also_measured_by_their_digits_and_by_carries(options):
    task = Arithmetic(maximum=30, **options)
    perfect = generator(task)
    lines = expressions(task, task._held_out)
    values = [i + j if sign == "+" else i - j for i, sign, j in lines]
    width = task.answer_digits if task.answers == "padded" else 0
    digits = Counter(len(str(abs(value)).zfill(width)) for value in values)
    counted = Counter(carries(np.array([i]), np.array([j]), np.array([ord(sign)])).item() for i, sign, j in lines)
    parts = task.evaluate(Writes(perfect))["parts"]
    if len(digits) > 1:
        assert {int(name): part["examples"] for name, part in parts["digits of the answer"].items()} == digits
    assert {int(name): part["examples"] for name, part in parts["carries and borrows"].items()} == counted
    assert "parts" not in task.evaluate(Writes(perfect), 10), "a few examples would say little"


def test_a_few_examples_are_spread_over_the_held_out_ones():
    task, asked = Arithmetic(maximum=60), []

    def generate(source):
        asked.extend(task.vocabulary.decode(ids) for ids in source.ids.tolist())
        return source.ids

    assert task.evaluate(Writes(generate), 20)["examples"] == 20.0
    assert len(set(asked)) == 20
    held_out = [f"{i}{o}{j}" for i, o, j in expressions(task, task._held_out)]
    places = [held_out.index(line) for line in asked]
    assert places == [k * len(held_out) // 20 for k in range(20)]
    assert task.evaluate(Writes(generate), 10**6)["examples"] == float(len(held_out))


def test_an_operator_without_held_out_expressions_is_no_group():
    task = Arithmetic(maximum=9)
    assert [o for _, o, _ in expressions(task, task._held_out)] == ["-"]
    assert task.groups == ("all", "-")
    assert task.evaluate(Writes(generator(task))) == {
        "examples": 1.0, "exact_match": 1.0, "exact_match_-": 1.0, "group_examples": {"-": 1}, "outcomes": [1.0],
    }  # fmt: skip


def test_examples_of_one_operator_give_no_figure_for_the_other():
    task = Arithmetic(maximum=30)
    assert task.groups == ("all", "+", "-")
    assert set(task.evaluate(Writes(generator(task)), 1)) == {"examples", "exact_match", "exact_match_-"}


# What a person types -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["21+21", " 21 + 21 = \n", "21+21="])
def test_reading_an_expression(line):
    task = Arithmetic(maximum=30)
    assert task.write(task.read(line)) == "21+21"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "the line is empty; write an expression such as 21+211"),
        ("  = ", "the line is empty; write an expression such as 21+211"),
        ("1" * 10_000, "10,000 characters are too many; expressions of this run have at most 5: shorten it"),
        ("21x3", "no token for 'x'; the model knows the characters 0123456789+-"),
        ("fabcd", "no token for 'a', 'b', 'c', 'd', 'f'; the model knows the characters 0123456789+-"),
        ("١+\0<", "no token for '\\x00', '<', '١'; the model knows the characters 0123456789+-"),
    ],
)
def test_reading_what_is_no_expression(line, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        Arithmetic(maximum=30).read(line)


def test_only_five_strange_characters_are_shown():
    with pytest.raises(UserError, match=r"no token for 'a', 'b', 'c', 'd', 'e', \.\.\.; the model knows"):
        CharacterVocabulary("01").encode("fedcba10")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("span", [{"maximum": 30}, {"minimum": 11, "maximum": 99}], ids=str)
def test_sample_inputs_are_expressions_of_the_task(span, options):
    task = Arithmetic(**span, **options)
    lines = dict(line.split("=") for line in task.lines())
    assert 1 <= len(task.sample_inputs()) <= 4
    assert [task.expected(line) for line in task.sample_inputs()] == [lines[line] for line in task.sample_inputs()]
    assert all(task.read(line) for line in task.sample_inputs())


@given(st.text("0123456789+-", max_size=40))
def test_encoding_and_decoding_go_round(text):
    vocabulary = CharacterVocabulary("0123456789+-")
    numbers = vocabulary.encode(text)
    assert len(numbers) == len(text)
    assert vocabulary.decode(numbers) == vocabulary.decode([*numbers, END, 5, 6]) == text
    assert vocabulary.decode([*numbers, PADDING, 5]) == text
    assert not {PADDING, FIRST, END} & set(numbers)


@given(i=st.integers(0, 99), j=st.integers(0, 99), operator=st.sampled_from("+-"))
def test_what_is_read_is_what_is_shown(i, j, operator):
    line = f"{i}{operator}{j}"
    numbers = TWO_DIGITS.read(line)
    assert "".join(TWO_DIGITS.show_source(numbers)) == TWO_DIGITS.write(numbers) == line
    assert TWO_DIGITS.expected(line) == str(value(i, operator, j))


TWO_DIGITS = Arithmetic(maximum=99)


# What cannot be ------------------------------------------------------------------------------------------------------


def test_too_many_expressions_are_refused():
    message = (
        "arithmetic: 200,000,000 expressions do not fit into memory; at most 20,000,000 do: lower maximum or use one"
    )
    with pytest.raises(UserError, match=message):
        Arithmetic(maximum=9999)


def test_a_prediction_computes_no_expressions(monkeypatch):
    monkeypatch.setattr("jarilab.tasks.arithmetic.expressions", None)
    monkeypatch.setattr("jarilab.tasks.arithmetic.source_tokens", None)
    monkeypatch.setattr("jarilab.tasks.arithmetic.target_tokens", None)
    task = Arithmetic()
    assert task.sources([task.read("1+1")]).ids.shape == (1, 3)
    assert task.longest == {"source": 7, "target": 5}
    assert task.expected("1+1") == "2"


@pytest.mark.parametrize("maximum", [0, 1, 3])
def test_too_few_expressions_are_refused(maximum):
    with pytest.raises(UserError, match=r"expressions are too few to hold some out; widen minimum \.\.\. maximum"):
        Arithmetic(maximum=maximum)


def test_a_task_of_nothing_but_held_out_expressions_is_refused():
    alone = next(n for n in range(999) if (n, "+", n) in HELD_OUT_SUMS)
    with pytest.raises(UserError, match="1 expressions are too few to hold some out"):
        Arithmetic(minimum=alone, maximum=alone, operators="+")


HELD_OUT_SUMS = set(expressions(TWO_DIGITS, TWO_DIGITS._held_out))


def test_an_empty_span_is_refused():
    with pytest.raises(UserError, match="expected minimum <= maximum, got minimum=5, maximum=4"):
        Arithmetic(minimum=5, maximum=4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("arithmetic:minimum=-1", "arithmetic: minimum: expected 0 or more, got '-1'"),
        (
            "arithmetic:maximum=1000000000000000",
            "arithmetic: maximum: expected 999999999999999 or less",
        ),
        ("arithmetic:operators=*", "arithmetic: operators: expected '+-', '+' or '-', got '*' (default '+-')"),
        ("arithmetic:answer=padded", "arithmetic has no option 'answer'; did you mean 'answers'?"),
        ("arithmetik", "unknown task 'arithmetik'; did you mean 'arithmetic'?"),
    ],
)
def test_options_that_cannot_be(spec, message):
    with pytest.raises(UserError, match=re.escape(message)):
        registry.spec(spec)
