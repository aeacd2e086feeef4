"""Classes of texts and of pairs: what is read, held out, measured, answered; and bad files."""

import json

import pytest
import torch

import jarilab
from jarilab import api
from jarilab.cli.result_output import metrics_text
from jarilab.comparison.card import card
from jarilab.comparison.curves import curve_of
from jarilab.core.errors import UserError
from jarilab.data.example_files import ExampleRow
from jarilab.data.text import END, FIRST
from jarilab.data.text.labelled_texts import OTHER, SAME, read_labelled_texts, role_pairs
from jarilab.models.decoder import LanguageModel
from jarilab.models.text_encoder import TextEncoder
from jarilab.runs.batches import RunBatches
from jarilab.tasks.classify import Classify
from jarilab.tasks.labels import macro_f1
from jarilab.tasks.metrics import confusion_table

ROWS = [("animal", f"the cat number {n} sat") for n in range(30)] + [
    ("thing", f"a table of {n} legs") for n in range(30)
]
TINY = {"model.d_model": 16, "model.n_heads": 2, "model.n_layers": 1, "training.batch_size": 8}
TINY |= {"training.examples": 64, "training.evaluations": 1, "training.evaluation_examples": 4}


def write(folder, rows=ROWS, name="texts.tsv", head=""):
    path = folder / name
    path.write_text(head + "".join("\t".join(row) + "\n" for row in rows))
    return str(path)


def prepared(**options):
    task = Classify(**options)
    task.prepare()
    return task


def trained(folder, out, **settings):
    return api.train("classify", out, settings={**TINY, "task.train": write(folder), **settings}, threads=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classify")
    trained(folder, folder / "run")
    return folder / "run"


# Its data ------------------------------------------------------------------------------------------------------------


def test_a_text_begins_with_the_class_token_and_ends(tmp_path):
    task = prepared(train=write(tmp_path))
    ids = task.read("the cat number 3 sat")
    assert (ids[0], ids[-1]) == (FIRST, END)
    assert task.model_options["classes"] == 2
    assert task.classes == ["animal", "thing"]
    batch = task.training_batch(torch.arange(4), torch.Generator())
    assert batch.inputs[0].ids.shape[0] == len(batch.labels) == 4


def test_every_text_is_trained_or_held_out_and_equal_ones_stay_together(tmp_path):
    task = prepared(train=write(tmp_path, [*ROWS, *ROWS]), held_out=0.3)
    trained_texts, held_out = set(task._trained.texts), set(task.held_out.texts)
    assert not trained_texts & held_out
    assert len(task._trained) + len(task.held_out) == 120
    assert any("60 of 120 texts (50.0 %) repeat an earlier one" in notice for notice in task.notices())


def test_columns_by_title_and_a_folder_a_class(tmp_path):
    rows = [(str(n), text, label) for n, (label, text) in enumerate(ROWS)]
    csv = tmp_path / "texts.csv"
    csv.write_text("id,text,label\n" + "".join(",".join(row) + "\n" for row in rows))
    texts = read_labelled_texts(csv, (), pairs=False)
    assert (texts.labels[0], texts.texts[0]) == ("animal", ("the cat number 0 sat",))
    for label, text in ROWS[::20]:
        folder = tmp_path / "folder" / label
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{len(text)}.txt").write_text(f"{text}\nand more\n")
    texts = read_labelled_texts(tmp_path / "folder", (), pairs=False)
    assert set(texts.labels) == {"animal", "thing"}
    assert texts.texts[0][0].endswith("and more")


def test_pairs_have_two_texts_with_ends(tmp_path):
    rows = [("yes" if n % 2 else "no", f"one {n}", f"two {n}") for n in range(40)]
    task = prepared(train=write(tmp_path, rows, head="label\ttext_a\ttext_b\n"), pairs=True)
    assert task.read("one 3\ttwo 3").count(END) == 2
    with pytest.raises(UserError, match="expected two texts with a tab between them, got 'one 3'"):
        task.read("one 3")


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (
            [("same", f"text {n}") for n in range(30)],
            {"columns": ("1,2",)},
            ["expected two classes or more", "'same' alone", "add texts of another class", "--columns"],
        ),
        (ROWS, {"valid": "other"}, ["got 'plant'", "no training text has"]),
        (
            [(f"x{n}", f"only one {n * 7}") for n in range(1, 21)],
            {"columns": ("1,2",)},
            ["expected training texts of each class, got 'x13'", "all held out", "--valid"],
        ),
    ],
)
def test_bad_files_are_refused(tmp_path, rows, options, words):
    if "valid" in options:
        options = {"valid": write(tmp_path, [*ROWS[:9], *[("plant", f"tree {n}") for n in range(9)]], "valid.tsv")}
    with pytest.raises(UserError) as error:
        prepared(train=write(tmp_path, rows), **options)
    assert [word for word in words if word not in str(error.value)] == []


def test_overlap_and_cut_texts_are_told(tmp_path):
    task = prepared(train=write(tmp_path), valid=write(tmp_path, ROWS[25:35], "valid.tsv"), longest=3)
    assert any(
        "10 of 10 held-out texts (100.0 %) are among the training texts" in each for each in task.held_out_notices()
    )
    assert any("longer than 3 tokens and cut" in each for each in task.notices())
    with pytest.raises(UserError, match="at most 3 tokens"):
        task.read("the cat number 3 sat on a mat")


# Who did what to whom ------------------------------------------------------------------------------------------------


def test_no_bag_of_words_decides_a_pair():
    for part in role_pairs(0.1):
        labels = {}
        for texts, label in zip(part.texts, part.labels, strict=True):
            labels.setdefault(tuple(sorted(" ".join(texts).split())), []).append(label)
        assert all(each.count(SAME) == each.count(OTHER) for each in labels.values())


def test_the_ceiling_of_pairs_is_chance_for_an_encoder():
    task = prepared()
    task.check_model({"pool": "class"})
    assert task.ceiling() == {"all": 0.5}
    task.check_model({})
    assert task.ceiling() is None


def test_no_trained_pair_is_held_out():
    training, held_out = role_pairs(0.1)
    assert not set(training.texts) & set(held_out.texts)


# Models --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_padding_changes_no_answer_of_an_encoder(pool):
    torch.manual_seed(0)
    model = TextEncoder(20, 3, d_model=16, n_heads=2, encoding="rotary", pool=pool).eval()
    check_padding(model)


def test_padding_changes_no_answer_of_a_decoder():
    torch.manual_seed(0)
    check_padding(LanguageModel(20, 3, d_model=16, n_heads=2, encoding="rotary").eval())


def check_padding(model):
    text, longer = [1, 5, 6, 2], [1, 5, 6, 7, 8, 2]
    alone = model(torch.tensor([text]))
    for padded in ([*text, 0, 0], [0, 0, *text], [0, *text, 0]):
        ids = torch.tensor([padded, longer])
        both = model(jarilab.Tokens(ids, jarilab.Positions.from_mask(ids != 0), ids != 0))
        assert both.shape == (2, 3)
        assert torch.allclose(both[:1], alone, atol=1e-5)


def test_the_class_token_of_an_encoder_without_positions_hears_no_order():
    model = TextEncoder(20, 3, d_model=16, n_heads=2, encoding="none").eval()
    one, other = torch.tensor([[1, 5, 6, 7, 2]]), torch.tensor([[1, 7, 5, 6, 2]])
    assert torch.allclose(model(one), model(other), atol=1e-5)


# Metrics and answers -------------------------------------------------------------------------------------------------


def test_macro_f1_by_hand():
    counts = torch.tensor([[3, 1, 0], [0, 4, 0], [0, 0, 0]])
    assert macro_f1(counts) == pytest.approx((6 / 7 + 8 / 9) / 2)


def test_the_result_has_a_confusion_table(run):
    result = json.loads((run / "result.json").read_text())
    table = result["confusion"]
    assert set(table) == {"animal", "thing"}
    assert sum(sum(row.values()) for row in table.values()) == result["examples"]
    right = sum(row.get(name, 0) for name, row in table.items())
    assert right / result["examples"] == result["accuracy"]
    assert 0 <= result["macro_f1"] <= 1


def test_a_run_answers_without_its_data(run):
    first, second = api.predict(run, ["the cat number 99 sat", "\t"])
    assert first.record()["answer"] in ("animal", "thing")
    assert "expected one text" in second.error


def test_one_forward_shows_what_the_class_token_looks_at(run):
    opened = api.load(run)
    trace = opened.predictor.trace("the cat number 3 sat", 64)
    assert trace.names("source")[0] == "<bos>"
    with jarilab.record(opened.model) as tape:
        scores = opened.model(*trace.inputs)
    assert opened.task.classes[int(scores.argmax())] == trace.answer
    weights = tape.weights("encoder.0")
    assert weights.shape[-2:] == (len(trace.names("source")),) * 2
    with pytest.raises(UserError, match="at most 2 tokens"):
        opened.predictor.trace("the cat number 3 sat", 2)


@pytest.mark.slow
def test_a_decoder_learns_classes_too(tmp_path):
    result = api.train(
        "classify",
        tmp_path / "run",
        model="decoder",
        settings={**TINY, "task.train": write(tmp_path), "training.examples": 640, "training.lr": 0.01},
        threads=1,
    )
    assert result["accuracy"] > 0.9


def test_other_data_are_measured(run, tmp_path):
    path = write(tmp_path, ROWS[:20], "others.tsv")
    metrics = api.evaluate(run, data=[path])
    assert metrics["examples"] == 20


def test_other_data_are_compared_with_the_training_texts(tmp_path):
    task = prepared(train=write(tmp_path))
    task.hold_out([write(tmp_path, [*ROWS[:2], ("animal", "a new one")], "others.tsv")])
    shared = sum(text in {line for _, line in ROWS[:2]} for (text,) in task._read()[0].texts)
    assert f"{shared} of 3 held-out texts (" in "".join(task.held_out_notices())
    (tmp_path / "texts.tsv").unlink()
    task.hold_out([str(tmp_path / "others.tsv")])
    assert "texts.tsv is gone" in task.held_out_notices()[-1]


def test_unknown_characters_are_no_input(tmp_path):
    task = prepared(train=write(tmp_path), tokenizer="characters")
    with pytest.raises(UserError, match="expected characters of the training text, got '자'"):
        task.read("the 자 sat")
    spelled = prepared(train=write(tmp_path), tokenizer="characters", byte_fallback=True, vocab_size=400)
    assert len(spelled.read("the 자 sat")) == len("the 자 sat") + 2 + 2


def test_answers_to_each_class_are_printed_and_on_the_card(run):
    text = metrics_text(api.evaluate(run), "run")
    assert "  answers (columns) to each class\n   class  animal  thing\n" in text
    assert "| class | animal | thing |" in card(api.load(run))
    assert curve_of(run).confusion[0] == ["class", "animal", "thing"]


def test_many_classes_have_their_most_frequent_confusions():
    counts = {f"c{n}": {f"c{n}": 5, "c0": n} for n in range(1, 20)}
    table = confusion_table({"confusion": {"c0": {"c0": 9}} | counts})
    assert table[:3] == [["class", "wrong answer", "times"], ["c19", "c0", "19"], ["c18", "c0", "18"]]
    assert len(table) == 11


def test_heads_of_a_classifier_are_probed(run):
    reader = RunBatches(api.load(run))
    row = ExampleRow("texts:1", "the cat number 3 sat")
    assert reader.start_token(row) == "<bos>"
    probes = reader.probe_input(row)
    assert (probes.start, probes.end) == ([FIRST], [END])
    batch = probes.batch([[FIRST, *probes.ids[:4], END]] * 2)
    assert len(batch.forward(reader.model)) == 2


def test_a_check_counts_the_texts_of_each_class(tmp_path):
    findings = api.check_data("classify", [write(tmp_path)])
    lines = {(finding.topic, finding.severity): finding.line for finding in findings}
    training, held_out = (finding.text for finding in findings if finding.topic == "classes")
    assert training.startswith("training: ")
    assert held_out.startswith("held out: ")
    counts = [int(part.split()[-1]) for text in (training, held_out) for part in text.split("; ")[1].split(", ")]
    assert sum(counts) == len(ROWS)
    assert lines["unknown", "note"].endswith("0.00% of the tokens are unknown")
    assert "characters" in lines["characters", "note"]
