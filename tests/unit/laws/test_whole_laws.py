"""Laws of whole models: what they say of models that are right, and that each finds the fault it is for."""

import importlib.util
import logging
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import jarilab
from helpers import folders
from helpers.architectures import MODELS
from helpers.command import command
from helpers.law_counts import small_model, table_of
from helpers.runs import tiny, train
from jarilab import Mask, Tokens
from jarilab.core.errors import UserError
from jarilab.laws.testing import model_laws
from jarilab.laws.whole_laws import LAWS, check_model

TRANSFORMERS = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="no transformers")
ROUNDS = "weights survive bfloat16"
FAR = "declared positions are computed"
QUICK = {"Bert", "Roberta", "GPT2", "Llama", "T5", "Swin", "ViTMAE", "Whisper"}
"""Tried in every run of the tests."""

KNOWN = {
    # 512 declared, of which 510 can be used
    "Roberta": {FAR},
    "XLMRoberta": {FAR},
    "Camembert": {FAR},
    "MPNet": {FAR},
    "ViTMAE": {"evaluation draws nothing"},  # which patches it hides
}
"""What is broken beside what bfloat16 does to angles."""


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


@TRANSFORMERS
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.long)
        for name in MODELS
        if name != "nn.Transformer"
    ],
)
def test_no_wrong_alarm_over_the_architectures(name):
    model = small_model(name)
    if model.main_input_name.startswith("input_") and model.main_input_name != "input_ids":
        with pytest.raises(UserError, match=f"reads {model.main_input_name}"):
            check_model(model)
        return
    outcomes = {one.law: one for one in check_model(model)}
    broken = {law for law, one in outcomes.items() if one.verdict == "broken"}
    if ROUNDS in broken:
        assert "buffers lost digits" in outcomes[ROUNDS].detail
    assert broken - {ROUNDS} == KNOWN.get(name, set())
    assert sum(one.verdict == "holds" for one in outcomes.values()) >= (2 if broken else 4)


def test_verdicts_are_counted_by_law():
    verdicts = {
        "A": dict.fromkeys(LAWS, "holds"),
        "B": dict.fromkeys(LAWS, "skipped") | {"rows do not mix": "broken"},
    }
    lines = table_of(verdicts).splitlines()
    assert len(lines) == 2 + len(LAWS)
    assert "| rows do not mix | 1 | 1 | B | 0 |" in lines
    assert f"| {ROUNDS} | 1 | 0 |  | 1 |" in lines


# Models with a fault -------------------------------------------------------------------------------------------------


class Small(nn.Module):
    """A decoder in the manner of transformers, of one layer and rotary in one pair; `fault` names what is wrong."""

    def __init__(self, fault=None):
        super().__init__()
        torch.manual_seed(0)
        self.fault = fault
        self.table = nn.Embedding(40, 8)
        self.project = nn.Linear(8, 24)
        self.norm = nn.BatchNorm1d(8, track_running_stats=False)
        self.register_buffer("frequency", torch.tensor([1.0, 0.123456789]), persistent=False)
        self.config = Configuration()

    def forward(self, input_ids, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False):
        x = self.table(input_ids)
        if self.fault == "draws":
            x = nn.functional.dropout(x, 0.1)
        if self.fault == "mixes":
            x = self.norm(x.mT).mT
        q, k, v = self.project(x).chunk(3, -1)
        past = 0 if past_key_values is None else past_key_values[0].shape[1]
        if position_ids is None:
            position_ids = torch.arange(x.shape[1]).expand(len(x), -1) + past
        if self.fault == "caches after padding" and past:
            # Of what is kept it sees all: the mask of a step says which of it is padding.
            attention_mask = None
        if self.fault == "caches":
            position_ids = position_ids - int(past > 0)
        if self.fault == "shifts":
            x = x + position_ids.unsqueeze(-1) / 10
        if self.fault == "ends" and int(position_ids.max()) >= 30:
            x = x * float("nan")
        frequency = self.frequency.double().float() if self.fault == "rounds" else torch.tensor([1.0, 0.123456789])
        q, k = (turned(each, position_ids, frequency) for each in (q, k))
        if past_key_values is not None:
            k, v = (torch.cat([old, new], 1) for old, new in zip(past_key_values, (k, v), strict=True))
        allowed = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        if self.fault == "looks ahead":
            allowed = torch.ones_like(allowed)
        mask = allowed.expand(len(x), 1, -1, -1)
        if attention_mask is not None and attention_mask.ndim == 4:
            mask = mask & (attention_mask >= 0) if self.fault != "packs" else mask
        elif attention_mask is not None and self.fault != "reads padding":
            mask = mask & attention_mask.bool()[:, None, None]
        y = scaled_dot_product_attention(*(each.unsqueeze(1) for each in (q, k, v)), mask).squeeze(1)
        y = y.nan_to_num(0.0) if self.fault != "ends" else y
        return Output(x + y, (k, v) if use_cache else None)


class Configuration:
    max_position_embeddings = 30
    vocab_size = 40
    pad_token_id = 0


class Output:
    def __init__(self, scores, past_key_values):
        self.logits, self.past_key_values = scores, past_key_values


def turned(x, positions, frequency):
    angle = positions.unsqueeze(-1) * frequency
    pairs = x.unflatten(-1, (4, 2))[..., :2, :]
    one, two = pairs.unbind(-1)
    turned = torch.stack([one * angle.cos() - two * angle.sin(), one * angle.sin() + two * angle.cos()], -1)
    return torch.cat([turned.flatten(-2), x[..., 4:]], -1)


FAULTS = {
    "draws": "evaluation draws nothing",
    "mixes": "rows do not mix",
    "looks ahead": "no token sees a later one",
    "reads padding": "left padding changes nothing",
    "caches": "cached steps equal the full forward",
    "caches after padding": "cached steps after left padding equal rows alone",
    "packs": "packed documents equal separate ones",
    "shifts": "shifting all positions changes nothing",
    "rounds": ROUNDS,
    "ends": FAR,
}


def test_a_right_model_keeps_every_law():
    assert {one.law: one.verdict for one in check_model(Small())} == dict.fromkeys(LAWS, "holds")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_its_law(fault):
    verdicts = {one.law: one.verdict for one in check_model(Small(fault))}
    assert verdicts[FAULTS[fault]] == "broken"


def test_a_step_that_ignores_padding_breaks_one_law():
    broken = {one.law for one in check_model(Small("caches after padding")) if one.verdict == "broken"}
    assert broken == {"cached steps after left padding equal rows alone"}


class Reads(nn.Module):
    """Reads tokens and a mask that it does not heed."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 8)

    def forward(self, input_ids, attention_mask):
        x = self.table(input_ids)
        return x + x.mean(1, keepdim=True)


class Optional(Reads):
    def forward(self, input_ids, attention_mask=None):
        return super().forward(input_ids, attention_mask)


def test_padding_that_is_read_is_found_on_the_right():
    verdicts = {one.law: one.verdict for one in check_model(Optional())}
    assert verdicts["right padding changes nothing"] == "broken"
    assert verdicts["no token sees a later one"] == "skipped"


def test_causal_true_tests_a_model_without_a_cache():
    verdicts = {one.law: one for one in check_model(Optional(), causal=True)}
    assert verdicts["no token sees a later one"].verdict == "broken"
    assert "causal=True" in {one.law: one for one in check_model(Optional())}["no token sees a later one"].detail


class Unstored(nn.Module):
    """Hides what it reads from its state."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)

    def forward(self, ids):
        return self.table(ids)

    def load_state_dict(self, state, **_):
        return super().load_state_dict({name: each.round() for name, each in state.items()})


def test_tensors_missing_from_the_state_dict_are_detected():
    verdicts = {one.law: one.verdict for one in check_model(Unstored())}
    assert verdicts["state_dict holds all of it"] == "broken"


def test_a_model_must_say_what_it_reads():
    with pytest.raises(UserError, match="give vocab_size="):
        check_model(nn.Linear(3, 3))
    image = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    assert {one.verdict for one in check_model(image, image=(3, 2, 2))} == {"holds", "skipped"}


class Says(Unstored):
    """Says what it is told to."""

    def __init__(self, says, vocabulary=20):
        super().__init__()
        self.table, self.says = nn.Embedding(vocabulary, 8), says

    def forward(self, ids):
        return self.says(self.table(ids))


def test_scores_of_nan_are_reported():
    first = check_model(Says(lambda x: x * float("nan")))[0]
    assert (first.verdict, "its scores are NaN" in first.detail) == ("broken", True)


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (lambda x: (), "expected a tensor of scores"),
        (
            lambda x: x @ x,
            r"Says could not be called with model\(ids=\(\d+, \d+\)\): RuntimeError: .*; wrap it in",
        ),
    ],
)
def test_a_model_that_cannot_be_called_breaks_no_law(says, message):
    with pytest.raises(UserError, match=message):
        check_model(Says(says))


# Models of jari ------------------------------------------------------------------------------------------------------

PADDING, CACHE, AHEAD = (
    "right padding changes nothing",
    "cached steps equal the full forward",
    "no token sees a later one",
)
LEFT, STEPS = "left padding changes nothing", "cached steps after left padding equal rows alone"
PACKED, SHIFTED = "packed documents equal separate ones", "shifting all positions changes nothing"
ALWAYS = {"evaluation draws nothing", "rows do not mix", "state_dict holds all of it", ROUNDS}
TINY = {"d_model": 16, "n_heads": 2}


def decoder(encoding="rotary", kind=jarilab.LanguageModel):
    torch.manual_seed(0)
    return kind(40, n_layers=1, encoding=encoding, **TINY)


def translator(encoding="rotary", kind=jarilab.EncoderDecoder, vocab_size=40, **options):
    torch.manual_seed(0)
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 1}
    return kind(vocab_size, 30, encoding=encoding, **layers, **TINY, **options)


OF_JARI = {
    "decoder": (decoder, {PADDING, CACHE, AHEAD, LEFT, STEPS, PACKED, SHIFTED}),
    "decoder of a table": (lambda: decoder("learned:positions=16"), {PADDING, CACHE, AHEAD, LEFT, STEPS, PACKED, FAR}),
    "decoder of sines": (lambda: decoder("sinusoidal"), {PADDING, CACHE, AHEAD, LEFT, STEPS, PACKED}),
    "decoder by length": (lambda: decoder("rotary_dynamic"), {PADDING, AHEAD, LEFT, PACKED, SHIFTED}),
    "encoder-decoder": (translator, {PADDING, CACHE, AHEAD, SHIFTED}),
    "encoder-decoder by length": (lambda: translator("log_length"), {PADDING, AHEAD}),
    "one table": (lambda: translator(vocab_size=30, shared=True, tied=True), {PADDING, CACHE, AHEAD, SHIFTED}),
    "recurrent": (lambda: jarilab.Recurrent(20, 40, d_model=16), {PADDING, CACHE, AHEAD, SHIFTED}),
    "encoder": (lambda: jarilab.TextEncoder(40, n_layers=1, encoding="alibi", **TINY), {PADDING, SHIFTED}),
}


@pytest.mark.parametrize("name", OF_JARI)
def test_models_of_jari_keep_all_laws_that_concern_them(name):
    make, laws = OF_JARI[name]
    verdicts = {one.law: one.verdict for one in check_model(make())}
    expected = {law: "holds" if law in laws | ALWAYS else "skipped" for law in LAWS}
    assert verdicts == expected


class Deaf(jarilab.LanguageModel):
    """Does not heed padding."""

    def forward(self, tokens):
        return super().forward(replace(Tokens.of(tokens, "target"), keep=None))


class Forgetful(jarilab.LanguageModel):
    """Heeds padding in one forward, and not in steps."""

    def start(self, source):
        return super().start(None if source is None else replace(source, keep=None))


class Late(jarilab.LanguageModel):
    """Counts the places of steps one too far."""

    def step(self, state, ids, positions, cache):
        if cache.positions is not None:
            positions = replace(positions, coordinates=positions.coordinates + 1)
        return super().step(state, ids, positions, cache)


class Mixed(jarilab.LanguageModel):
    """Takes documents for one."""

    def forward(self, tokens):
        return super().forward(replace(Tokens.of(tokens, "target"), documents=None))


class Placed(jarilab.LanguageModel):
    """Says something of each place that its encoding knows nothing of."""

    def forward(self, tokens):
        tokens = Tokens.of(tokens, "target")
        return super().forward(tokens) + tokens.positions.coordinates / 10


class Boasts(jarilab.LanguageModel):
    """Declares a place too many."""

    def max_positions(self):
        return {"target": super().max_positions()["target"] + 1}


class Ahead(jarilab.LanguageModel):
    def __init__(self, *of, **options):
        super().__init__(*of, **options)
        self.decoder.mask = Mask()


class DeafToSource(jarilab.EncoderDecoder):
    def start(self, source):
        return super().start(replace(source, keep=None))


class LateAnswer(jarilab.EncoderDecoder):
    def step(self, state, ids, positions, cache):
        if cache is not None:
            positions = replace(positions, coordinates=positions.coordinates * 2)
        return super().step(state, ids, positions, cache)


class AheadInAnswer(jarilab.EncoderDecoder):
    def step(self, state, ids, positions, cache):
        scores = super().step(state, ids, positions, cache)
        return scores + scores.mean(1, keepdim=True)


class DeafRecurrent(jarilab.Recurrent):
    def start(self, source):
        return super().start(replace(source, keep=None))


OF_JARI_BROKEN = {
    "padding": (lambda: decoder(kind=Deaf), {LEFT}),
    "padding in steps": (lambda: decoder(kind=Forgetful), {STEPS}),
    "places of steps": (lambda: decoder(kind=Late), {CACHE, STEPS}),
    "documents": (lambda: decoder(kind=Mixed), {PACKED}),
    "places": (lambda: decoder(kind=Placed), {SHIFTED}),
    "declared": (lambda: decoder("learned:positions=16", Boasts), {FAR}),
    "later tokens": (lambda: decoder(kind=Ahead), {AHEAD}),
    "padding of a source": (lambda: translator(kind=DeafToSource), {PADDING}),
    "places of an answer": (lambda: translator(kind=LateAnswer), {CACHE}),
    "later tokens of an answer": (lambda: translator(kind=AheadInAnswer), {AHEAD, CACHE}),
    "padding of a recurrent source": (lambda: DeafRecurrent(20, 40, d_model=16), {PADDING}),
}


@pytest.mark.parametrize("name", OF_JARI_BROKEN)
def test_a_model_of_jari_with_a_fault_is_found_by_its_law(name):
    make, laws = OF_JARI_BROKEN[name]
    broken = {one.law for one in check_model(make()) if one.verdict == "broken"}
    assert laws <= broken


class Pairs(nn.Module):
    """Reads one sequence of ids and writes another, by names of its own, and with fewer ids."""

    def __init__(self, ahead=False):
        super().__init__()
        torch.manual_seed(0)
        self.read, self.write, self.ahead = nn.Embedding(40, 8), nn.Embedding(9, 8), ahead
        self.score = nn.Linear(8, 9)

    def forward(self, src, tgt):
        written = self.write(tgt)
        so_far = written.mean(1, keepdim=True) if self.ahead else written.cumsum(1)
        return self.score(self.read(src).mean(1, keepdim=True) + written + so_far)


def test_a_module_of_two_sequences_is_tested():
    expected = {law: "holds" if law in ALWAYS | {AHEAD} else "skipped" for law in LAWS}
    assert {one.law: one.verdict for one in check_model(Pairs())} == expected
    assert [one.law for one in check_model(Pairs(ahead=True)) if one.verdict == "broken"] == [AHEAD]


class Masked(Unstored):
    def forward(self, ids, mask):
        return self.table(ids) * mask


def test_a_required_mask_is_no_second_sequence():
    with pytest.raises(UserError, match=r"Masked could not be called with model\(ids=\(3, 11\)\)"):
        check_model(Masked())


class Beside(nn.Module):
    """Has a matrix that no state_dict holds."""

    def __init__(self):
        super().__init__()
        self.table, self.turned = nn.Embedding(20, 8), torch.randn(8, 8)

    def forward(self, ids):
        return self.table(ids) @ self.turned


def test_tensors_outside_of_the_state_are_named():
    (stored,) = [one for one in check_model(Beside()) if one.law == "state_dict holds all of it"]
    assert stored.detail.endswith("; not in it, so that no checkpoint brings it back: turned")


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (nn.Module, {"vocab_size": 9}, "has no forward that reads anything"),
        (lambda: Says(abs, 1), {}, "expected a vocabulary of more than 5, got 1"),
        (lambda: Says(abs), {"vocab_size": 0}, "expected a vocabulary of more than 5, got 0"),
        (nn.Flatten, {"image": (0, 1, 2)}, r"expected image=\(C, H, W\) of 1 or more each"),
    ],
)
def test_invalid_models_are_refused(make, options, message):
    with pytest.raises(UserError, match=message):
        check_model(make(), **options)


test_of_a_person = model_laws(Small)


# The command ---------------------------------------------------------------------------------------------------------


@TRANSFORMERS
@pytest.mark.filterwarnings("ignore")
def test_the_command_checks_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders.bert(tmp_path / "bert")
    result = command("laws", "--model", "bert")
    assert (result.returncode, result.stderr) == (0, "")
    assert "holds    right padding changes nothing: off by" in result.stdout
    assert " 0 broken," in result.stdout
    for words, message in {
        (): "such as jarilab laws rotary or jarilab laws --model FOLDER",
        ("rotary", "--model", "bert"): "either an encoding or a model",
        ("--model", "nowhere"): "nowhere: expected a folder with config.json",
    }.items():
        refused = command("laws", *words)
        assert (refused.returncode, message in refused.stderr) == (2, True)


def test_the_command_checks_a_run(tmp_path):
    train(tmp_path / "run", tiny("rotary"))
    result = command("laws", "--model", tmp_path / "run")
    assert (result.returncode, result.stderr) == (0, "")
    assert "holds    cached steps equal the full forward: off by" in result.stdout


def test_the_command_checks_a_run_on_images(image_runs):
    result = command("laws", "--model", image_runs / "class")
    assert (result.returncode, result.stderr) == (0, "")
    assert "holds    rows do not mix" in result.stdout


@pytest.mark.parametrize("name", ["image_runs/detection", "painted_runs/painter"])
def test_the_command_refuses_a_run_without_scores(name, request):
    fixture, _, run = name.partition("/")
    refused = command("laws", "--model", request.getfixturevalue(fixture) / run)
    assert refused.returncode == 2
    assert "expected a model that returns scores of tokens or classes, got one of" in refused.stderr
    assert "check its encoding alone: jarilab laws " in refused.stderr
