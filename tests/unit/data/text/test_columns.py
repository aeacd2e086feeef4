"""Which columns of a file are read, and what is said about it."""

from pathlib import Path

import pytest

from jarilab.core.errors import UserError
from jarilab.data.text.columns import LABEL, SOURCE, TARGET, TEXT, open_table

PAIRS = [(f"eins zwei {n}.", f"one two {n}!") for n in range(40)]


def table(folder: Path, name: str, rows: list[str], columns: str = "", roles=(SOURCE, TARGET)):
    path = folder / name
    path.write_text("".join(f"{row}\n" for row in rows))
    opened = open_table(path, roles, (columns,) if columns else ())
    return opened.notice.removeprefix(f"{path}: "), [cells for _, cells in opened.rows()]


CASES = {
    "two columns": ("x.tsv", [f"{a}\t{b}" for a, b in PAIRS], ""),
    "numbers": ("x.tsv", [f"{n}\t{a}\t{n + 9}\t{b}" for n, (a, b) in enumerate(PAIRS)], "columns 2 and 4 of 4"),
    "a title": (
        "x.tsv",
        ["source\ttarget", *(f"{a}\t{b}" for a, b in PAIRS)],
        "first line is a title (source, target)",
    ),
    "names and numbers": (
        "x.tsv",
        ["id\tGerman\tEnglish\tscore", *(f"s{n}\t{a}\t{b}\t0.{n}" for n, (a, b) in enumerate(PAIRS))],
        "columns 2 and 3 of 4; first line is a title (German, English)",
    ),
    "a title of other words over numbers": (
        "x.tsv",
        ["row\tone side\tother side", *(f"{n}\t{a}\t{b}" for n, (a, b) in enumerate(PAIRS))],
        "columns 2 and 3 of 3; first line is a title (one side, other side)",
    ),
    "attributions": ("x.txt", [f"{a}\t{b}\tCC-BY 2.0 #{n}" for n, (a, b) in enumerate(PAIRS)], "columns 1 and 2 of 3"),
    "quoted": ("x.tsv", [f'"{a}"\t"{b}"' for a, b in PAIRS], "cells are in quotes"),
    "CSV with a long cell": (
        "x.csv",
        [f"{a};{b}" for a, b in [("viel " * 40_000, "much"), *PAIRS]],
        "a semicolon separates the cells",
    ),
    "CSV": ("x.csv", [f'"{a}", {b}' for a, b in PAIRS], ""),
    "CSV with semicolons": ("x.csv", [f"{a};{b}" for a, b in PAIRS], "a semicolon separates the cells"),
    "CSV of tabs": (
        "x.csv",
        ["de\ten", *(f"{a}\t{b}" for a, b in PAIRS)],
        "first line is a title (de, en); a tab separates the cells",
    ),
    "Korean titles": (
        "x.csv",
        ["SID,원문,번역문", *(f"{n},{a},{b}" for n, (a, b) in enumerate(PAIRS))],
        "columns 2 and 3 of 3; first line is a title (원문, 번역문)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_columns_are_recognised_and_said(tmp_path: Path, name: str) -> None:
    file, rows, notice = CASES[name]
    said, cells = table(tmp_path, file, rows)
    assert (said, cells[-len(PAIRS) :]) == (notice, PAIRS)


def test_only_cells_with_quotes_are_quoted(tmp_path: Path) -> None:
    # As csv.writer and pandas write a file of tabs.
    rows = [f'"er sagte ""ja {n}"""\t"he said ""yes {n}"""' if n % 5 == 0 else f"eins {n}\tone {n}" for n in range(50)]
    said, cells = table(tmp_path, "x.tsv", rows)
    assert (said, cells[0], cells[1]) == (
        "cells are in quotes",
        ('er sagte "ja 0"', 'he said "yes 0"'),
        ("eins 1", "one 1"),
    )
    rows[1] = 'a "quoted" word\tone 1'
    assert table(tmp_path, "x.tsv", rows)[1][0][1] == '"he said ""yes 0"""'


@pytest.mark.parametrize("title", ["review,sentiment", "tweet,target"])
def test_title_above_labels_is_no_class(tmp_path: Path, title: str) -> None:
    rows = [title, *(f"the film was so {n},{'good' if n % 3 else 'bad'}" for n in range(40))]
    said, cells = table(tmp_path, "x.csv", rows, roles=(TEXT, LABEL))
    assert f"first line is a title ({title.replace(',', ', ')})" in said
    assert len(cells) == 40
    # Where another label stands once, the first may be one, too.
    rows[5] = "the film was so odd,strange"
    assert len(table(tmp_path, "x.csv", rows, roles=(TEXT, LABEL))[1]) == 41


@pytest.mark.parametrize("chosen", ["4,2", "english,german"])
def test_columns_are_chosen_by_number_or_title(tmp_path: Path, chosen: str) -> None:
    rows = ["a\tGerman\tb\tEnglish", *(f"x {a}\t{a}\ty {b}\t{b}" for a, b in PAIRS)]
    notice, cells = table(tmp_path, "x.tsv", rows, chosen)
    assert notice == "columns 4 and 2 of 4; first line is a title (English, German)" or chosen == "4,2"
    assert cells[-len(PAIRS) :] == [(b, a) for a, b in PAIRS]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("", "is ambiguous"),
        ("1,5", "have the column '5'"),
        ("1,nope", "have the column 'nope'"),
        ("1", "is not read by 1 column"),
    ],
)
def test_ambiguous_columns_are_refused_with_the_first_lines(tmp_path: Path, columns: str, problem: str) -> None:
    rows = [f"{a}\t{b}\t{b} {a}" for a, b in PAIRS]
    message = (
        rf"(?s)x.tsv: expected columns for source and target; .*{problem}.*1: eins zwei 0\. \| 2: one.*--columns 1,2"
    )
    with pytest.raises(UserError, match=message):
        table(tmp_path, "x.tsv", rows, columns)


def test_a_number_is_no_title(tmp_path: Path) -> None:
    assert table(tmp_path, "x.tsv", ["1\ta\tb", "2\tc\td"], "2,3") == ("columns 2 and 3 of 3", [("a", "b"), ("c", "d")])


def test_codes_in_every_row_are_no_title(tmp_path: Path) -> None:
    rows = [f"deu\teng\t{a}\t{b}" for a, b in PAIRS]
    assert table(tmp_path, "x.tsv", ["", *rows]) == ("columns 3 and 4 of 4", [("", ""), *PAIRS])


def test_a_title_may_follow_a_blank_line(tmp_path: Path) -> None:
    assert table(tmp_path, "x.tsv", ["", "de\ten", "a\tb"])[1] == [("", ""), ("a", "b")]


def test_quotes_that_belong_to_the_text_stay(tmp_path: Path) -> None:
    rows = ['"Ja", sagte er.\t"Yes," he said.', '"Nein."\tNo.', 'Er sagte "ja"\t"Yes."']
    assert table(tmp_path, "x.tsv", rows) == ("", [tuple(row.split("\t")) for row in rows])


def test_quoted_cells_hold_tabs_quotes_and_line_breaks(tmp_path: Path) -> None:
    rows = ['"a\tb"\t"say ""c"""', '"d"\t"e"']
    assert table(tmp_path, "x.tsv", rows)[1] == [("a\tb", 'say "c"'), ("d", "e")]
    assert table(tmp_path, "x.csv", ['"a', 'b",c', "d,e"])[1] == [("a b", "c"), ("d", "e")]


def test_a_row_of_another_width_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x.csv:3: expected two columns with a comma between; got 3: 'e,f,g'; fix"):
        table(tmp_path, "x.csv", ["a,b", "c,d", "e,f,g"])
    with pytest.raises(UserError, match=r"x.csv:2: expected cells in the quotes of CSV .*; got: .*; close the quote"):
        table(tmp_path, "x.csv", ["a,b", '"c,d', "e,f"])


@pytest.mark.parametrize("rows", [["{l}\t{t}"], ["{t}\t{l}"], ["text\tid\tlabel", "{t}\t{n}\t{l}"]])
def test_labels_and_texts_are_told_apart(tmp_path: Path, rows: list[str]) -> None:
    *title, form = rows
    labels = [(str(n % 3), f"text of {n}") for n in range(30)]
    lines = [form.format(l=label, t=text, n=n) for n, (label, text) in enumerate(labels)]
    assert table(tmp_path, "x.tsv", [*title, *lines], roles=(LABEL, TEXT))[1] == labels


def test_a_file_of_one_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x.txt:1: expected two columns with a tab between; got one: 'only text'"):
        table(tmp_path, "x.txt", ["only text", "and more"])


def test_a_file_of_two_texts_a_label_names_the_option(tmp_path: Path) -> None:
    rows = ["text_a\ttext_b\tlabel", *(f"{a}\t{b}\t{len(b) % 2}" for a, b in PAIRS)]
    with pytest.raises(UserError, match=r"--columns 1,2; of two texts in each row, also pass --pairs"):
        table(tmp_path, "x.tsv", rows, roles=(LABEL, TEXT))


def test_json_in_each_line_is_named_with_a_command(tmp_path: Path) -> None:
    rows = ['{"de": "eins", "en": "one"}'] * 40
    with pytest.raises(UserError, match=r"got JSON in each line; convert it, such as: jq -r '\[.de, .en\] \| @tsv' x"):
        table(tmp_path, "x.jsonl", rows)
    table(tmp_path, "x.tsv", [f'{{"a": {n}}}\tone {n}' for n in range(40)])


def test_one_column_is_not_chosen_twice(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="got a file that has 1 and 1 in one column"):
        table(tmp_path, "x.tsv", [f"{a}\t{b}" for a, b in PAIRS], "1,1")


def test_column_without_labels_is_read(tmp_path: Path) -> None:
    rows = ["a film that was much longer than it had to be,fine", *(f"the film was so {n}," for n in range(40))]
    assert len(table(tmp_path, "x.csv", rows, "1,2", roles=(TEXT, LABEL))[1]) == 41
