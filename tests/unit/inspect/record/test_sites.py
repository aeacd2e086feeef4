"""The kind, layer and sequences of a site, read from its calls and never from its name."""

import pytest
import torch
from torch import nn

import jarilab
from jarilab.attention.module import Attention
from jarilab.core.errors import UserError
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.record.sites import AttentionSite
from jarilab.models.decoder import LanguageModel
from jarilab.models.detector import Detector
from jarilab.models.encoder_decoder import Decoder, Encoder, EncoderDecoder
from jarilab.models.recurrent import Recurrent
from jarilab.models.vision import VisionTransformer
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.positions.masks import Mask


def recorded(model: nn.Module, *inputs: object, **options: object) -> Tape:
    with torch.no_grad(), record(model.eval()) as tape:
        model(*inputs, **options)
    return tape


def kinds(tape: Tape) -> dict[str, str]:
    return {name: tape.site(name).kind for name in tape.sites}


IDS = torch.tensor([[3, 4, 5]])
X, SOURCE = torch.randn(1, 3, 16), torch.randn(1, 5, 16)


def test_site_has_kind_layer_and_sequences() -> None:
    tape = recorded(EncoderDecoder(9, 9, d_model=16, n_heads=2), IDS, IDS)
    assert tape.site("decoder.1.cross") == AttentionSite("decoder.1.cross", "cross", 1, "target", "source")
    assert tape.site("decoder.1.self") == AttentionSite("decoder.1.self", "decoder", 1, "target", "target")
    assert tape.site("encoder.0") == AttentionSite("encoder.0", "encoder", 0, "source", "source")
    assert tape.sites_of("cross") == ["decoder.0.cross", "decoder.1.cross"]
    with pytest.raises(UserError, match=r"unknown site 'encodr\.0'; did you mean 'encoder\.0'"):
        tape.site("encodr.0")


def test_kind_of_a_single_stack() -> None:
    """The example of the README is an encoder."""
    encoder = recorded(Encoder(16, 2, n_layers=3), X)
    assert kinds(encoder) == {"0": "encoder", "1": "encoder", "2": "encoder"}
    assert [encoder.site(name).layer for name in encoder.sites] == [0, 1, 2]
    assert kinds(recorded(Encoder(16, 2, n_layers=2), X, first=1)) == {"0": "encoder", "1": "encoder"}
    decoder = recorded(Decoder(16, 2, n_layers=1), X, SOURCE)
    assert kinds(decoder) == {"0.self": "decoder", "0.cross": "cross"}


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (None, "encoder"),
        (Mask(causal=True), "decoder"),
        (Mask(causal=True, keys=torch.tensor([[True, True, False]])), "decoder"),
        (Mask(causal=True, window=2), "decoder"),
        (Mask(keys=torch.tensor([[True, False, False]])), "encoder"),
        (Mask(pairs=torch.tensor([[True, True, False], [True, True, True], [True, True, True]])), "encoder"),
    ],
    ids=["none", "causal", "causal, padded", "window", "padded", "pairs"],
)
def test_kind_of_a_single_attention_follows_its_mask(mask: Mask | None, kind: str) -> None:
    assert kinds(recorded(Attention(16, 2), X, mask=mask)) == {"attention": kind}


def test_kind_of_a_single_attention_follows_its_inputs() -> None:
    assert kinds(recorded(Attention(16, 2), X, SOURCE)) == {"attention": "cross"}
    assert kinds(recorded(Attention(16, 2), X, X.clone())) == {"attention": "cross"}
    assert kinds(recorded(Attention(16, 2), X[:, :1], X)) == {"attention": "encoder"}
    places = Positions.sequence(3, frame="target"), Positions.sequence(3, frame="source")
    options = {"positions": places[0], "source_positions": places[1]}
    assert kinds(recorded(Attention(16, 2), X, X, **options)) == {"attention": "cross"}
    assert kinds(recorded(Attention(16, 2, causal=True), X[:, :1])) == {"attention": "decoder"}


def test_kinds_of_every_model() -> None:
    assert set(kinds(recorded(LanguageModel(9, d_model=16, n_heads=2), IDS)).values()) == {"decoder"}
    recurrent = recorded(Recurrent(9, 9, d_model=8, n_layers=2), IDS, IDS)
    assert recurrent.site("decoder.1.cross") == AttentionSite("decoder.1.cross", "cross", 1, "target", "source")
    seeing = VisionTransformer((1, 8, 8), 5, patch_size=2, d_model=16, n_heads=2, n_layers=2, pool="class")
    assert set(kinds(recorded(seeing, torch.randn(1, 1, 8, 8), answer_only=True)).values()) == {"encoder"}


@pytest.mark.parametrize("positions", ["boxes", "vectors"])
def test_object_queries_are_target_and_patches_source(positions: str) -> None:
    model = Detector(
        1, 3, d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, queries=4, query_positions=positions
    )
    expected = {"encoder.0": "encoder", "decoder.0.self": "decoder", "decoder.0.cross": "cross"}
    assert kinds(recorded(model, torch.randn(1, 1, 24, 24))) == expected


def test_kind_does_not_depend_on_the_name() -> None:
    class Misnamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = Encoder(16, 2, n_layers=1)
            self.encoder_cross = nn.Sequential(nn.Identity(), Attention(16, 2, causal=True))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder_cross(self.decoder(x))

    tape = recorded(Misnamed(), X)
    assert kinds(tape) == {"decoder.0": "encoder", "encoder_cross.1": "decoder"}
    assert [tape.site(name).layer for name in tape.sites] == [0, 1]


def test_layer_is_counted_in_its_stack() -> None:
    """As in the README, with an encoder that is second in a list; and with a layer that is a list."""
    listed = recorded(nn.Sequential(nn.Linear(4, 16), Encoder(16, 2, n_layers=3)), X[..., :4])
    assert [(name, listed.site(name).layer) for name in listed.sites] == [("1.0", 0), ("1.1", 1), ("1.2", 2)]

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), Attention(16, 2)) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    nested = recorded(Stack(), X)
    assert [nested.site(name).layer for name in nested.sites] == [0, 1, 2]

    class Block(nn.Module):  # as in T5
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.ModuleList([Attention(16, 2), nn.LayerNorm(16)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer[1](self.layer[0](x))

    parts = recorded(nn.Sequential(Block(), Block(), Block()), X)
    assert [parts.site(name).layer for name in parts.sites] == [0, 1, 2]


def test_heads_of_a_layer_that_are_modules_have_its_number() -> None:
    class Head(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x.mT).softmax(-1) @ x

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList([Head(), Head()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.heads[0](x) + self.heads[1](x)

    tape = recorded(nn.Sequential(Heads(), Heads()), X)
    assert [tape.site(name).short for name in tape.sites] == ["L0", "L0", "L1", "L1"]
    listed = recorded(nn.Sequential(nn.Sequential(Head(), Head()), nn.Sequential(Head(), Head())), X)
    assert [listed.site(name).short for name in listed.sites] == ["L0", "L1", "L0", "L1"]


def test_cached_step_is_of_kind_decoder() -> None:
    model = EncoderDecoder(9, 9, d_model=16, n_heads=2).eval()
    with torch.no_grad(), record(model) as tape:
        state, cache = model.start(Tokens.of(IDS, "source")), model.new_cache()
        model.step(state, IDS[:, :1], Positions.sequence(1, frame="target"), cache)
        model.step(state, IDS[:, 1:2], Positions.sequence(1, 1, frame="target"), cache)
    assert tape.site("decoder.0.self").kind == "decoder"
    assert tape.site("decoder.0.cross").kind == "cross"


def test_page_of_an_encoder_names_its_kind() -> None:
    encoder = jarilab.Encoder(16, 2, n_layers=2)
    page = jarilab.show(recorded(encoder, X), ["a", "b", "c"]).html
    assert '"kind":"encoder"' in page
    assert '"kind":"decoder"' not in page
