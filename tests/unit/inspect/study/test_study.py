"""A study measures each example as if it were alone, in constant memory, and continues after an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import jarilab
from helpers.planted_heads import PlantedHeads, induction, noise, offset
from jarilab.core.errors import UserError
from jarilab.inspect.measure.measures import MEASURES
from jarilab.inspect.study import example as examples
from jarilab.inspect.study import measure_table
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.head import Head
from jarilab.inspect.study.mean_maps import MeanMaps
from jarilab.inspect.study.measure_table import bootstrap
from jarilab.inspect.study.weights_digest import weights_digest

HEADS = {"previous": lambda: offset(-1), "noise": noise, "induction": induction}


def model() -> PlantedHeads:
    torch.manual_seed(0)
    return PlantedHeads(HEADS, causal=True)


def batches(count: int = 3) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        ids = torch.randint(1, 40, (3, 12), generator=generator)
        mask = torch.ones_like(ids)
        mask[1, 7:], mask[2, 10:] = 0, 0
        made.append({"input_ids": ids, "attention_mask": mask})
    return made


def alone(made: list[dict[str, Tensor]]) -> list[Tensor]:
    rows = []
    for batch in made:
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            rows.append(ids[mask.bool()].unsqueeze(0))
    return rows


def test_a_padded_row_equals_the_row_alone() -> None:
    padded = jarilab.study(model(), batches(), probes=False).values()
    single = jarilab.study(model(), alone(batches()), probes=False).values()
    np.testing.assert_allclose(padded, single, atol=1e-5, equal_nan=True)


def test_measures_equal_those_of_a_tape() -> None:
    rows = alone(batches())
    values = jarilab.study(model(), rows, tokens=lambda ids: list(map(str, ids)), probes=False).values()
    for number, ids in enumerate(rows):
        with jarilab.record(planted := model()) as tape:
            planted(ids)
        (scored,) = tape.measures(list(map(str, ids[0].tolist()))).values()
        for column, name in enumerate(MEASURES):
            expected = np.stack((scored[name].value, scored[name].chance), -1)
            np.testing.assert_allclose(values[number, :, column], expected, atol=1e-5, equal_nan=True)


def test_a_row_has_the_mean_over_examples_its_interval_chance_and_count() -> None:
    study = jarilab.study(model(), batches(), probes=False)
    values, row = study.values(), study.rows()[1]
    column = list(MEASURES).index("confidence")
    each = values[:, 1, column, 0]
    assert row["confidence"] == pytest.approx(each.mean(), abs=1e-6)
    assert row["confidence_chance"] == pytest.approx(values[:, 1, column, 1].mean(), abs=1e-6)
    assert row["confidence_low"] < each.mean() < row["confidence_high"]
    assert row["confidence_count"] == len(each) == study.examples == 9
    assert (row["head"], row["site"], row["index"]) == ("L0H1", "attend", 1)


def test_the_interval_is_that_of_scipys_bootstrap() -> None:
    from scipy.stats import bootstrap as of_scipy

    values = np.random.default_rng(0).gamma(2.0, size=(60, 1)).astype(np.float32)
    mean, low, high, count = bootstrap(values)
    expected = of_scipy((values[:, 0],), np.mean, method="percentile", rng=1).confidence_interval
    assert mean[0] == pytest.approx(values.mean(), abs=1e-6)
    assert count[0] == 60
    wider = mean + (np.array(expected) - mean) * measure_table.widening(60)
    np.testing.assert_allclose((low[0], high[0]), wider, atol=0.03)


@pytest.mark.parametrize("count", [2, 3, 5, 8, 20])
def test_an_interval_of_few_examples_holds_the_mean_as_often_as_it_says(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_table, "RESAMPLES", 400)
    values = np.random.default_rng(0).normal(size=(count, 2000)).astype(np.float32)
    _, low, high, _ = bootstrap(values)
    assert 0.91 < ((low <= 0) & (high >= 0)).mean() < 0.99


def test_undefined_values_are_left_out_of_mean_interval_and_count() -> None:
    values = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, 5.0]], np.float32)
    mean, low, high, count = bootstrap(values)
    assert mean.tolist() == [2.0, 5.0]
    assert count.tolist() == [2, 1]
    assert low[0] < 2 < high[0]
    assert np.isnan(low[1])
    assert np.isnan(high[1])


def test_parts_of_the_examples_give_the_interval_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=(300, 5)).astype(np.float32)
    values[generator.random((300, 5)) < 0.1] = np.nan
    at_once = bootstrap(values)
    monkeypatch.setattr(measure_table, "CELLS_AT_ONCE", 700)
    for part, all_values in zip(bootstrap(values), at_once, strict=True):
        np.testing.assert_allclose(part, all_values, atol=1e-6)


@pytest.mark.slow
def test_intervals_need_no_more_memory_for_more_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_table, "CELLS_AT_ONCE", 2**12)
    monkeypatch.setattr(measure_table, "RESAMPLES", 40)
    heads = [Head(f"site.{number}", 0, f"L{number}H0") for number in range(100)]
    peaks = []
    for count in (1000, 4000):
        table = measure_table.MeasureTable(heads, {"previous": MEASURES["previous"]}, tmp_path / str(count))
        for _ in range(count):
            table.append(np.zeros(table.shape, np.float32))
        tracemalloc.start()
        table.rows()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_long_examples_in_parts_equal_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = jarilab.study(model(), batches(), probes=False)
    monkeypatch.setattr(examples, "MAX_CELLS", 200)
    monkeypatch.setattr(examples, "MAX_BLOCK_CELLS", 300)
    parts = jarilab.study(model(), batches(), probes=False)
    np.testing.assert_allclose(whole.values(), parts.values(), atol=1e-6, equal_nan=True)
    assert whole.rows() == parts.rows()


def test_a_study_continues_in_its_folder_and_refuses_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    expected = jarilab.study(model(), batches(4)).rows()
    jarilab.study(model(), batches(2), out=folder, probes=False)
    reports: list[int] = []
    continued = jarilab.study(model(), batches(4), out=folder, report=reports.append)
    assert reports == [9, 12]
    assert continued.rows() == expected
    with pytest.raises(UserError, match=r"another study .*seed: 0 there, 1 here"):
        jarilab.study(model(), batches(4), out=folder, seed=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="or a study to continue, got other files; choose another folder"):
        jarilab.study(model(), batches(4), out=tmp_path / "other")


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_a_study_of_another_checkpoint_is_refused(tmp_path: Path, kind: str) -> None:
    """One number of the model differs, by its last bit."""
    folder = tmp_path / "study"
    jarilab.study(model(), batches(2), out=folder, probes=False)
    other = model()
    changed = other.embed.tokens.weight if kind == "parameter" else other.attend.scores
    with torch.no_grad():
        changed.view(torch.int32).flatten()[77] += 1
    with pytest.raises(UserError, match=r"another study .*weights_digest: \w+ there, \w+ here"):
        jarilab.study(other, batches(2), out=folder, probes=False)
    assert jarilab.study(model(), batches(3), out=folder, probes=False).examples == 9


def test_a_digest_of_weights_is_that_of_their_values() -> None:
    weights = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    digest = weights_digest([("w", weights)])
    assert weights_digest([("w", weights.T.contiguous().T)]) == digest
    for other in (weights.flip(0), weights.T, weights.half(), weights.view(-1), weights * 1.001):
        assert weights_digest([("w", other)]) != digest
    assert weights_digest([("v", weights)]) != digest
    kinds = [torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128]
    some = [(str(kind), torch.ones(shape).to(kind)) for kind in kinds for shape in ((), (0, 3), (5, 3))]
    assert weights_digest(some) != weights_digest(some[:-1])


def test_a_damaged_progress_is_refused(tmp_path: Path) -> None:
    jarilab.study(model(), batches(2), out=tmp_path / "a", probes=False)
    (tmp_path / "a" / "progress.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match=r"progress\.safetensors is damaged"):
        jarilab.study(model(), batches(2), out=tmp_path / "a")
    jarilab.study(model(), batches(2), out=tmp_path / "b", probes=False)
    (tmp_path / "b" / "measures.f32").write_bytes(b"")
    with pytest.raises(UserError, match="shorter"):
        jarilab.study(model(), batches(2), out=tmp_path / "b")


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
import jarilab
from jarilab.inspect.study import progress_file
from unit.inspect.study.test_study import batches, model
progress_file.SECONDS_BETWEEN_SAVES = 0.0

def slow(count):
    print(count, flush=True)
    time.sleep(0.05)

jarilab.study(model(), batches(40), out={folder!r}, probes=False, report=slow)
"""


@pytest.mark.slow
def test_a_killed_study_continues_with_the_same_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    code = SCRIPT.format(tests=str(Path(__file__).parents[3]), folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 12:
                break
        os.kill(process.pid, signal.SIGKILL)
    reports: list[int] = []
    continued = jarilab.study(model(), batches(40), out=folder, probes=False, report=reports.append)
    assert reports[0] > 3
    assert continued.examples == 120
    expected = jarilab.study(model(), batches(40), probes=False)
    np.testing.assert_array_equal(continued.values(), expected.values())
    assert continued.rows() == expected.rows()


def test_tables_are_files(tmp_path: Path) -> None:
    study = jarilab.study(model(), batches())
    files = {path.name for path in study.write(tmp_path)}
    assert {"heads.csv", "heads.json", "roles.csv", "roles.json"} <= files
    rows = json.loads((tmp_path / "heads.json").read_text())
    assert rows == study.rows()
    lines = (tmp_path / "heads.csv").read_text().splitlines()
    assert lines[0].split(",") == list(rows[0])
    assert len(lines) == 1 + len(rows)


@pytest.mark.skipif(find_spec("pandas") is None, reason="pip install pandas, to try tables as frames")
def test_a_table_is_a_frame_of_pandas() -> None:
    frame = jarilab.study(model(), batches(), probes=False).table()
    assert list(frame["head"]) == ["L0H0", "L0H1", "L0H2"]
    assert "entropy_low" in frame.columns


@pytest.mark.skipif(find_spec("pandas") is not None, reason="pandas is installed, so a table is a frame")
def test_a_table_is_records_without_pandas() -> None:
    study = jarilab.study(model(), batches(), probes=False)
    assert study.table() == study.rows()
    with pytest.raises(UserError, match=r"unknown table 'nothing'.*heads"):
        study.table("nothing")


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pip install pyarrow, to try Parquet")
def test_a_table_is_a_parquet_file(tmp_path: Path) -> None:
    from pyarrow import parquet

    study = jarilab.study(model(), batches(), probes=False)
    study.write(tmp_path)
    assert parquet.read_table(tmp_path / "heads.parquet").to_pylist() == study.rows()


@pytest.mark.skipif(find_spec("transformers") is None, reason="pip install transformers")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("side", ["left", "right"])
def test_maps_equal_those_of_transformers_eager(side: str) -> None:
    """Weights of BERT and GPT-2, and sums over them, as transformers gives them without jari."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    small: dict[str, Any] = {"vocab_size": 40}
    bert = BertConfig(**small, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40)
    gpt = GPT2Config(**small, n_embd=24, n_layer=2, n_head=4, n_positions=16)
    inputs = batches(1)[0]
    if side == "left":
        inputs = {name: value.flip(1) for name, value in inputs.items()}
    for config, make in ((bert, BertModel), (gpt, GPT2Model)):
        torch.manual_seed(1)
        net = make(config).eval()
        values = jarilab.study(net, [inputs], probes=False).values()
        net.set_attn_implementation("eager")
        with torch.no_grad():
            layers = net(**inputs, output_attentions=True).attentions
        valid = inputs["attention_mask"].bool()
        for row in range(3):
            places = valid[row].nonzero()[:, 0]
            weights = torch.stack([layer[row][:, places][:, :, places] for layer in layers]).flatten(0, 1).double()
            confidence = weights.amax(-1).mean(-1)
            previous = weights.diagonal(-1, 1, 2).mean(-1)
            for name, expected in (("confidence", confidence), ("previous", previous)):
                got = values[row, :, list(MEASURES).index(name), 0]
                np.testing.assert_allclose(got, expected, atol=1e-5)


def test_batches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="at least one batch, got none"):
        jarilab.study(model(), [])
    with pytest.raises(UserError, match=r"batch 1: expected names .* 3 rows, got 1"):
        jarilab.study(model(), batches(1), [[["a"]]])
    (batch,) = batches(1)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with pytest.raises(UserError, match=r"expected an iterable of batches, got one Tensor"):
        jarilab.study(model(), ids)
    with pytest.raises(UserError, match=r"expected an iterable of batches, got one dict"):
        jarilab.study(model(), batch)
    with pytest.raises(UserError, match=r"as a tensor, got a list; call the tokenizer with .*return_tensors='pt'"):
        jarilab.study(model(), [{"input_ids": ids.tolist()}])
    with pytest.raises(UserError, match=r"batch 2: expected a mask \(3, 12\) .*got \(3, 11\)"):
        jarilab.study(model(), [batch, {"input_ids": ids, "attention_mask": mask[:, 1:]}])
    with pytest.raises(UserError, match=r"batch 1: expected a mask .*got only padding in row 2"):
        jarilab.study(model(), [{"input_ids": ids, "attention_mask": mask * torch.tensor([[1], [0], [1]])}])
    with pytest.raises(UserError, match=r"expected a torch.nn.Module, got str"):
        jarilab.study("model", [batch])  # type: ignore[arg-type]


def test_a_batch_without_padding_needs_no_mask() -> None:
    ids = batches(1)[0]["input_ids"]
    tokens = [{key: list(map(str, row.tolist())) for key in ("source", "target")} for row in ids]
    made = Batch((ids,), tokens=tokens, ids={"source": ids})
    np.testing.assert_array_equal(
        jarilab.study(model(), [made]).values(), jarilab.study(model(), [ids], probes=False).values()
    )


def test_a_study_needs_all_its_batches_again(tmp_path: Path) -> None:
    jarilab.study(model(), batches(), out=tmp_path / "a", probes=False)
    with pytest.raises(UserError, match=r"this study, 9 examples, got 3 fewer"):
        jarilab.study(model(), batches()[:2], out=tmp_path / "a", probes=False)


def test_a_model_in_training_mode_is_studied_without_dropout_and_trained_on() -> None:
    config = {"d_model": 16, "n_heads": 2, "n_layers": 2, "dropout": 0.5}
    torch.manual_seed(0)
    trained = torch.nn.Sequential(torch.nn.Embedding(40, 16), jarilab.Encoder(**config))
    ids = [torch.randint(40, (4, 8))]
    one, other = (jarilab.study(trained.train(), ids, probes=False).values() for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert all(module.training for module in trained.modules())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_compiled_model_is_studied_as_its_original() -> None:
    compiled = torch.compile(model())
    one, other = (jarilab.study(each, batches(1), probes=False) for each in (compiled, model()))
    np.testing.assert_array_equal(one.values(), other.values())
    assert one.about == other.about


def test_a_statistic_is_made_for_the_heads_of_the_model() -> None:
    study = jarilab.study(model(), batches(1), accumulators=[MeanMaps], probes=False)
    assert len(study.all_rows()["mean_maps"])


def test_mean_maps_of_another_size_are_refused(tmp_path: Path) -> None:
    heads = jarilab.study(model(), batches(1), probes=False).heads
    options: dict[str, Any] = {"out": tmp_path / "a", "probes": False}
    jarilab.study(model(), batches(1), accumulators=[MeanMaps(heads, 12)], **options)
    with pytest.raises(UserError, match=r"another study .*mean_maps: 12 positions there, 8 positions here"):
        jarilab.study(model(), batches(2), accumulators=[MeanMaps(heads, 8)], **options)
    assert jarilab.study(model(), batches(2), accumulators=[MeanMaps(heads, 12)], **options).examples == 6


def test_memory_does_not_grow_with_the_number_of_examples() -> None:
    """The state of the roles has one size, and a table in a folder is not held in memory."""
    few, many = (jarilab.study(model(), batches(count), probes=False) for count in (1, 5))
    sizes = [sum(array.nbytes for array in study.role_sums.state().values()) for study in (few, many)]
    assert sizes[0] == sizes[1]
