"""CoNLL-U files: words, links, multiword tokens, empty nodes, and what is refused."""

import gzip
from pathlib import Path

import pytest

from jarilab.core.errors import UserError
from jarilab.data.text.conllu import Sentence, read_conllu, word_indices

ENGLISH = """\
# sent_id = 1
# text = I don't see her.
1\tI\tI\tPRON\t_\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\t_\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t_\t_
4\tsee\tsee\tVERB\t_\t_\t0\troot\t_\t_
4.1\tsee\tsee\tVERB\t_\t_\t_\t_\t_\t_
5\ther\tshe\tPRON\t_\t_\t4\tobj\t_\tSpaceAfter=No
6\t.\t.\tPUNCT\t_\t_\t4\tpunct\t_\t_
"""
FRENCH = """\
1\tvient\tvenir\tVERB\t_\t_\t0\troot\t_\t_
2-3\tdu\t_\t_\t_\t_\t_\t_\t_\t_
2\tde\tde\tADP\t_\t_\t4\tcase\t_\t_
3\tle\tle\tDET\t_\t_\t4\tdet\t_\t_
4\tparc\tparc\tNOUN\t_\t_\t1\tobl\t_\tGloss=park|SpaceAfter=No
5\t.\t.\tPUNCT\t_\t_\t1\tpunct\t_\t_
"""


def read(folder: Path, text: str) -> list[Sentence]:
    path = folder / "gold.conllu"
    path.write_text(text, encoding="utf-8")
    return list(read_conllu(path))


def test_words_and_links(tmp_path: Path) -> None:
    first, second = read(tmp_path, ENGLISH + "\n# newdoc\n\n" + FRENCH)
    assert first.text == "I don't see her."
    assert first.forms == ("I", "do", "n't", "see", "her", ".")
    assert [first.text[start:end] for start, end in first.spans] == list(first.forms)
    assert first.links == (("nsubj", 0, 3), ("aux", 1, 3), ("advmod", 2, 3), ("obj", 4, 3), ("punct", 5, 3))
    assert first.origin.endswith("gold.conllu:3")
    # `du` is not spelled by its words, so that it is one word, with the links of both.
    assert second.text == "vient du parc."
    assert second.forms == ("vient", "du", "parc", ".")
    assert second.spans == ((0, 5), (6, 8), (9, 13), (13, 14))
    assert second.links == (("case", 1, 2), ("det", 1, 2), ("obl", 2, 0), ("punct", 3, 0))


def test_links_inside_a_word_are_left_out(tmp_path: Path) -> None:
    text = "1-2\tdámelo\t_\t_\t_\t_\t_\t_\t_\t_\n1\tda\t_\t_\t_\t_\t0\troot\t_\t_\n2\tme\t_\t_\t_\t_\t1\tiobj\t_\t_\n"
    (sentence,) = read(tmp_path, text)
    assert (sentence.forms, sentence.links) == (("dámelo",), ())
    (sentence,) = read(tmp_path, text.replace("\tda\t", "\ta\t").replace("\tme\t", "\ta\t"))
    assert (sentence.forms, sentence.spans) == (("dámelo",), ((0, 6),)), "equal parts are one word too"


def test_gzip_windows_lines_and_no_last_blank_line(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu.gz"
    path.write_bytes(gzip.compress((ENGLISH + "\n" + FRENCH).rstrip().replace("\n", "\r\n").encode()))
    assert [len(sentence.forms) for sentence in read_conllu(path)] == [6, 4]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1\tI\tI", "1 I\tI", r":3: expected 10 columns with a tab .* got 1 I"),
        ("\tobj\t_\t", "\tobj\t\t", r":9: expected 10 columns with a tab between, none empty"),
        ("1\tI", "x\tI", r":3: expected an ID such as 1, 1-2 or 1.1 in column 1; got x; correct"),
        ("5\ther", "7\ther", r":9: expected word 5, with a blank line between sentences; got 7"),
        ("\t4\tobj", "\t_\tobj", r":9: expected the ID of a word, or 0 .* column 7; got _"),
        ("\t4\tobj", "\t9\tobj", r":9: expected another word of the sentence, 0 to 6, .* got 9"),
        ("\t4\tobj", "\t5\tobj", r":9: expected another word of the sentence, 0 to 6, .* got 5"),
        ("\t4\tobj", "\t4\t_", r":9: expected a relation such as nsubj in column 8; got _"),
        ("2-3\t", "2-9\t", r":4: expected a range within the words 1 to 6; got 2-9"),
        ("2-3\t", "3-2\t", r":4: expected a range within the words 1 to 6; got 3-2"),
        ("4\tsee\tsee", "3-4\tx\t_\t_\t_\t_\t_\t_\t_\t_\n4\tsee\tsee",
         r":7: expected ranges in order that do not overlap; got 3-4 after 2-3"),
        ("see her.", "see him.", r":9: expected 'her' as in column 2; got 'him.' in # text \(line 2\); correct"),
    ],
)  # fmt: skip
def test_faults_are_named_with_their_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in ENGLISH
    with pytest.raises(UserError, match=r"gold\.conllu" + message):
        read(tmp_path, ENGLISH.replace(old, new, 1))


def test_a_file_without_sentences(tmp_path: Path) -> None:
    for text in ("", "\n\n", "# only comments\n"):
        with pytest.raises(UserError, match=r"gold\.conllu: expected sentences in CoNLL-U, got none; fill"):
            read(tmp_path, text)


def test_words_of_tokens() -> None:
    #       [CLS]   see    space    Ġn't   empty   "er.    split bytes        .       [SEP]
    offsets = [(0, 0), (0, 3), (3, 4), (3, 6), (5, 5), (7, 9), (9, 10), (9, 10), (10, 11), (0, 0)]
    spans = [(0, 3), (4, 6), (7, 8), (8, 10)]
    assert word_indices(offsets, spans) == [None, 0, None, 1, None, 2, 3, 3, None, None]
