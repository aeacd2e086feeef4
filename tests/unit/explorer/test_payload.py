"""The maps in a payload equal those of the tape, up to 16-bit rounding."""

import numpy as np
import pytest
import torch

import jarilab
from jarilab.core.errors import UserError
from jarilab.explorer import detail, payload
from jarilab.explorer.tape_subject import view_of_tape
from jarilab.inspect.record import calls
from jarilab.inspect.record.capture import Tape, record
from jarilab.pages.kit.data_blocks import unpacked
from jarilab.pages.kit.page import to_json

NAMES = {"source": list("12+12"), "target": ["<bos>", "2", "4"]}


@pytest.fixture
def tape() -> Tape:
    model = jarilab.EncoderDecoder(
        9, 9, d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=3, encoding="alibi"
    ).eval()
    with record(model) as tape, torch.no_grad():
        model(torch.tensor([[3, 4, 5, 3, 4]]), torch.tensor([[1, 4, 6]]))
    return tape


def test_all_sites_of_unequal_stacks(tape: Tape) -> None:
    sites = payload.sites_of(tape, NAMES)
    assert [(site["site"], site["kind"], site["layer"]) for site in sites] == [
        ("encoder.0", "encoder", 0),
        *(
            (f"decoder.{layer}.{kind}", name, layer)
            for layer in range(3)
            for kind, name in (("self", "decoder"), ("cross", "cross"))
        ),
    ]


def test_map_equals_the_tape(tape: Tape) -> None:
    for site in payload.sites_of(tape, NAMES):
        weights = tape.weights(site["site"])[0].numpy()
        assert unpacked(site["weights"]).shape == weights.shape
        assert np.abs(unpacked(site["weights"]) - weights).max() <= 0.5 / 65535 + 1e-9
        assert site["shape"] == [len(NAMES[site["queries"]]), len(NAMES[site["keys"]])]


def test_hidden_pairs_are_marked(tape: Tape) -> None:
    hidden = {site["site"]: site["hidden"] for site in payload.sites_of(tape, NAMES)}
    assert hidden["encoder.0"] is None
    assert hidden["decoder.2.cross"] is None
    assert unpacked(hidden["decoder.0.self"]).tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]


def test_scores_are_products_times_scale_plus_bias(tape: Tape) -> None:
    parts = detail.scores_of(tape, "encoder.0", 1)
    scores = unpacked(parts["products"]) * parts["scale"] + unpacked(parts["bias"])
    assert np.allclose(scores, tape.scores("encoder.0")[0, 1], atol=1e-5)
    assert np.abs(unpacked(parts["bias"])).max() > 0.01


def test_large_map_is_max_pooled() -> None:
    maps = torch.rand(2, 1025, 600)
    small, factor = payload.pooled(maps)
    assert (factor, small.shape) == (3, (2, 342, 200))
    assert small[1, 5, 7] == maps[1, 15:18, 21:24].max()
    assert payload.pooled(maps[:, :512, :512])[1] == 1


@pytest.mark.parametrize(("length", "causal"), [(1025, False), (700, True)])
def test_pooling_in_chunks(length: int, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = jarilab.Attention(8, 2, encoding="alibi", causal=causal).eval()
    monkeypatch.setattr(calls, "MAX_BLOCK_WEIGHTS", 2**16)  # chunks that end in the middle of a square of cells
    with torch.no_grad(), record(attention) as tape:
        attention(torch.randn(1, length, 8), mask=jarilab.Mask(causal=True) if causal else None)
    (site,) = tape.sites
    assert len(list(tape.weights_in_chunks(site))) > 5
    whole, factor = payload.pooled(tape.weights(site)[0].double())
    pieces, factor_of_pieces = payload.pooled_in_chunks(tape, site)
    assert factor_of_pieces == factor > 1
    assert torch.equal(pieces, whole)


def test_map_above_the_limit_is_not_measured(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tape.weights("encoder.0").numel()
    assert weights == 2 * 5 * 5, "the largest site: two heads of 5 tokens"
    monkeypatch.setattr(payload, "MAX_MEASURED", weights)
    assert all(site["measures"] for site in payload.sites_of(tape, NAMES))
    monkeypatch.setattr(payload, "MAX_MEASURED", weights - 1)
    first, *others = payload.sites_of(tape, NAMES)
    assert first["measures"] == {}
    assert np.abs(unpacked(first["weights"]) - tape.weights("encoder.0")[0].numpy()).max() <= 0.5 / 65535 + 1e-9
    assert all(site["measures"] for site in others)


def test_a_file_pools_the_maps_of_a_long_text(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of_tape(tape, NAMES, "tape")
    assert payload.fitted(view) is view
    before = {site["site"]: site for site in view["sites"]}
    count = sum(unpacked(site["weights"]).size for site in before.values())
    monkeypatch.setattr(payload, "MAX_WEIGHTS", count // 2)
    fitted = payload.fitted(view)
    for site in fitted["sites"]:
        weights, pooled = unpacked(before[site["site"]]["weights"]), unpacked(site["weights"])
        assert site["pooled"] == 2
        assert site["shape"] == [-(-side // 2) for side in weights.shape[1:]] == list(pooled.shape[1:])
        assert pooled[0, 0, 0] == weights[0, :2, :2].max()
    assert fitted["rollout"] is None
    shown = jarilab.show(tape, NAMES).payload["views"][0]["sites"]
    assert [site["pooled"] for site in shown] == [2] * len(shown), "the same for tapes and models"


def test_limit_of_measured_weights() -> None:
    assert payload.MAX_MEASURED == 4 * 1024**2  # of 8 heads, 724 tokens; of 4, 1,024


def test_nan_and_infinity_become_null() -> None:
    assert to_json({"a": [float("nan"), float("inf"), 1.0]}) == '{"a":[null,null,1.0]}'
    assert unpacked(payload.numbers(torch.tensor([float("-inf"), 1.0])))[0] == np.float32(payload.HIDDEN)


def test_view_of_a_tape(tape: Tape) -> None:
    view = view_of_tape(tape, None, "tape")
    assert view["sides"]["source"]["tokens"] == ["0", "1", "2", "3", "4"]
    assert view_of_tape(tape, NAMES, "tape")["sides"]["target"]["tokens"] == NAMES["target"]
    with pytest.raises(UserError, match="expected a name for each of the 5 queries, got 2"):
        view_of_tape(tape, {"source": ["a", "b"]}, "tape")
