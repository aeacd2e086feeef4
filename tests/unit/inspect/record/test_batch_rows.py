"""One input of a batch as a tape of its own."""

import importlib.util

import pytest
import torch

import jarilab
from helpers.architectures import IDS, LEFT, RIGHT, of_text
from jarilab.core.errors import UserError
from jarilab.inspect.record.capture import record
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
ENCODINGS = ["none", "learned", "rotary", "shaw", "t5", "alibi", "deberta", "rotary+shaw+t5"]


def tokens_of(ids, keep, frame):
    return Tokens(ids, Positions.from_mask(keep, frame=frame), keep)


@torch.no_grad()
def tape_of(model, source, target):
    with record(model) as tape:
        model(source, target)
    return tape


@pytest.mark.parametrize("kernel", ["auto", "explicit", "definition"])
@pytest.mark.parametrize("spec", ENCODINGS)
def test_padded_row_of_jari_equals_the_row_alone(spec, kernel):
    model = EncoderDecoder(9, 9, d_model=16, n_heads=2, encoding=spec, kernel=kernel)
    initialise(model, 2)
    model.eval()
    keep = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    ids, target = torch.randint(9, (2, 6)), torch.randint(9, (2, 5))
    batch = tape_of(model, tokens_of(ids, keep, "source"), target)
    alone = tape_of(model, tokens_of(ids[1:, 2:], keep[1:, 2:], "source"), target[1:])
    row = batch.row(1)
    assert row.sites == batch.sites
    for site in row.sites:
        assert row.site(site) == batch.site(site)
        weights = row.weights(site)
        torch.testing.assert_close(weights[0], batch.weights(site)[1])
        assert row.trust(site).rebuild_error < 1e-5
        queries, keys = (slice(2, None) if side == "source" else slice(None) for side in sides(row, site))
        torch.testing.assert_close(weights[:, :, queries, keys], alone.weights(site))
        scores = row.summands(site, 1)
        torch.testing.assert_close(scores.scores, batch.scores(site)[1, 1])


def sides(tape, site):
    return tape.site(site).queries, tape.site(site).keys


@torch.no_grad()
def test_row_has_measures_a_page_and_its_inputs():
    model = EncoderDecoder(9, 9, d_model=16, n_heads=2, encoding="rotary").eval()
    ids, target = torch.randint(9, (3, 6)), torch.randint(9, (3, 5))
    batch = tape_of(model, ids, target)
    with pytest.raises(UserError, match="batch of 3"):
        batch.measures()
    alone = tape_of(model, ids[2:], target[2:])
    row, measured, expected = batch.row(2), batch.row(2).measures(), alone.measures()
    for site, measures in expected.items():
        for name, scored in measures.items():
            torch.testing.assert_close(measured[site][name].value, scored.value, equal_nan=True)
    for before, expected in zip(row.before_rotation("encoder.0"), alone.before_rotation("encoder.0"), strict=True):
        torch.testing.assert_close(before, expected)
    assert row.show().html


@torch.no_grad()
def test_row_of_packed_documents():
    model = jarilab.LanguageModel(9, d_model=16, n_heads=2, encoding="shaw").eval()
    ids, documents = torch.randint(9, (2, 6)), torch.tensor([[0] * 6, [0] * 3 + [1] * 3])
    with record(model) as tape:
        model(Tokens(ids, Positions.sequence(6), documents=documents))
    assert not tape.row(1).weights("decoder.0.self")[0, :, 3:, :3].any()
    for index in range(2):
        torch.testing.assert_close(tape.row(index).weights("decoder.0.self")[0], tape.weights("decoder.0.self")[index])


@needs_transformers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["sdpa", "eager"])
@pytest.mark.parametrize(("name", "mask"), [("Bert", RIGHT), ("Llama", LEFT), ("GPT2", LEFT)])
@torch.no_grad()
def test_padded_row_of_another_library_equals_the_row_alone(name, mask, way):
    model, _ = of_text(name)
    model.set_attn_implementation(way)
    places = {} if name == "Bert" else {"position_ids": (mask.cumsum(1) - 1).clamp_min(0)}
    with record(model) as batch:
        model(IDS, attention_mask=mask, **places)
    for index, keep in enumerate(mask.bool()):
        with record(model) as alone:
            model(IDS[index : index + 1, keep])
        row = batch.row(index)
        assert row.sites == batch.sites == alone.sites
        for site in row.sites:
            assert row.trust(site).rebuild_error < 1e-5
            assert row.site(site).kind == batch.site(site).kind
            weights = row.weights(site)
            torch.testing.assert_close(weights[0], batch.weights(site)[index])
            torch.testing.assert_close(weights[:, :, keep][..., keep], alone.weights(site), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_index_outside_the_batch_raises():
    model = jarilab.LanguageModel(9, d_model=16, n_heads=2)
    with record(model) as tape:
        model(torch.randint(9, (2, 6)))
    for index in (2, -1):
        with pytest.raises(UserError, match=rf"one of 2 inputs, from 0, got {index}"):
            tape.row(index)
    with record(model) as twice:
        model(torch.randint(9, (2, 6)))
        model(torch.randint(9, (3, 6)))
    with pytest.raises(UserError, match=r"2 at decoder\.\d\.self, 3 at decoder\.\d\.self; merge the steps"):
        twice.row(0)


@torch.no_grad()
def test_row_of_a_stale_tape_raises():
    model = jarilab.LanguageModel(9, d_model=16, n_heads=2, encoding="learned+t5")
    with record(model) as tape:
        model(torch.randint(9, (2, 6)))
    for parameter in model.parameters():
        parameter.data.add_(1)
        parameter.add_(1)
    with pytest.raises(UserError, match="changed since"):
        tape.row(0)
