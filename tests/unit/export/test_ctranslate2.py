"""CTranslate2 answers as the model does, if it is installed."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import jarilab
from jarilab.core.errors import UserError
from jarilab.data.text import END, FIRST, PADDING
from jarilab.encodings.compose import LayerEncodings
from jarilab.export import ctranslate2 as export
from jarilab.export.ctranslate2 import LEAST, _unique, write
from jarilab.export.positions import ExportedRotary, places_of
from jarilab.models.decoding import beam, greedy
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.recurrent import Recurrent
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens

VOCABULARY, LONGEST = 40, 20
NAMES = [f"t{number}" for number in range(VOCABULARY)]
ROTARY = "rotary:pairing=interleaved,fraction=0.5,base=500"
ENCODINGS = ("none", "sinusoidal", "learned:positions=32", "rotary", ROTARY, "t5:buckets=8,distance=16", "alibi",
             "sinusoidal+learned:positions=32", "t5+alibi")  # fmt: skip
ALWAYS = ("sinusoidal", ROTARY, "t5+alibi")
"""In every run of the tests; the others in the long ones."""
OTHERS: dict[str, Any] = {"norm": "post", "activation": "gelu", "tied": True, "shared": True, "n_decoder_layers": 3}


def model_of(encoding: str, **options: Any) -> EncoderDecoder:
    """A model whose answers are sharp, differ between greedy and beam, and sometimes end."""
    model = EncoderDecoder(
        VOCABULARY, VOCABULARY, d_model=32, n_heads=4, encoding=encoding, dropout=0.1, **options
    ).eval()
    initialise(model, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
        scores_VD = (model.generator or model.target_embedding).weight
        scores_VD *= 3
        scores_VD[END] *= 4
    return model


def sources_of(count: int) -> Tokens:
    lengths_B = torch.randint(1, LONGEST, (count,))
    place_K, ids_BK = torch.arange(LONGEST), torch.randint(3, VOCABULARY, (count, LONGEST))
    ids_BK = ids_BK.where(place_K < lengths_B.unsqueeze(1), PADDING)
    ids_BK[torch.arange(count), lengths_B] = END
    return Tokens(ids_BK, Positions.sequence(LONGEST, frame="source"), ids_BK != PADDING)


Answers = list[tuple[list[int], float]]


def ours(model: Any, source: Tokens, width: int) -> Answers:
    if width > 1:
        found = beam(model, source, beam_size=width, first=FIRST, end=END, longest=LONGEST)
        return [([i for i in h[0].ids.tolist() if i != END], h[0].score) for h in found]
    written = greedy(model, source, first=FIRST, end=END, padding=PADDING, longest=LONGEST)
    answers = []
    for ids, logs in zip(written.ids.tolist(), written.log_probabilities, strict=True):
        length = ids.index(END) + 1 if END in ids else len(ids)
        answers.append(([i for i in ids[:length] if i != END], float(logs.sum()) / length))
    return answers


def theirs(folder: Path, lines: Sequence[Sequence[str]], names: Sequence[str], width: int) -> Answers:
    library: Any = pytest.importorskip("ctranslate2", reason="the export is judged by CTranslate2; pip install it")
    translator = library.Translator(str(folder), intra_threads=1, inter_threads=1)
    found = translator.translate_batch(
        lines, beam_size=width, min_decoding_length=0, max_decoding_length=LONGEST, return_scores=True
    )
    return [([names.index(token) for token in answer.hypotheses[0]], answer.scores[0]) for answer in found]


def assert_same_answers(mine: Answers, other: Answers, width: int) -> None:
    """The same, greedily. A wider beam of CTranslate2 ends earlier, and may end with what scores less."""
    same = 0
    for (ids, score), (their_ids, their_score) in zip(mine, other, strict=True):
        same += ids == their_ids
        if ids == their_ids:
            assert their_score == pytest.approx(score, abs=2e-5)
        else:
            assert score > their_score
    assert same == len(mine) if width == 1 else same >= len(mine) / 2


@pytest.mark.parametrize("options", [{}, OTHERS], ids=["pre", "post"])
@pytest.mark.parametrize(
    "encoding", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.long) for name in ENCODINGS]
)
def test_ctranslate2_answers_as_the_model_does(encoding: str, options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="the export is judged by CTranslate2; pip install it")
    model, source = model_of(encoding, **options), sources_of(50)
    folder = tmp_path / "out"
    report = write(model, folder, source=NAMES, target=NAMES)
    assert report["largest_difference"] < 1e-5 * report["largest_score"]
    lines = [[NAMES[i] for i in row if i not in (PADDING, END)] for row in source.ids.tolist()]
    found = {width: ours(model, source, width) for width in (1, 5)}
    # The comparison is worth something: answers differ by source and by width, and some end. (Where the embedding is
    # the readout, untrained models repeat themselves.)
    assert found[1] != found[5]
    assert len({tuple(ids) for ids, _ in found[5]}) > 5
    assert options or any(len(ids) < LONGEST for ids, _ in found[1] + found[5])
    for width, mine in found.items():
        assert_same_answers(mine, theirs(folder, lines, NAMES, width), width)


@pytest.mark.parametrize("encoding", ["none", "rotary", "alibi"])
def test_scores_without_scale(encoding: str, tmp_path: Path) -> None:
    """CTranslate2 divides all of them, so that queries are written larger."""
    library: Any = pytest.importorskip("ctranslate2", reason="the export is judged by CTranslate2; pip install it")
    model = model_of(encoding, scale="none")
    folder = tmp_path / "out"
    write(model, folder, source=NAMES, target=NAMES)
    translator = library.Translator(str(folder), intra_threads=1, inter_threads=1)
    source, target = [5, 9, 5, 30], [7, 7, 21]
    (scored,) = translator.score_batch([[NAMES[i] for i in source]], [[NAMES[i] for i in target]])
    with torch.no_grad():
        scores_1QV = model(torch.tensor([[*source, END]]), torch.tensor([[FIRST, *target]])).log_softmax(-1)
    mine = scores_1QV[0, range(4), [*target, END]].tolist()
    assert scored.log_probs == pytest.approx(mine, abs=1e-4)


def test_ctranslate2_answers_as_a_run_does(tmp_path: Path) -> None:
    """Arithmetic, whose sources have no end token."""
    pytest.importorskip("ctranslate2", reason="the export is judged by CTranslate2; pip install it")
    run = tmp_path / "run"
    settings = {"model.d_model": 32, "model.n_encoder_layers": 1, "model.n_decoder_layers": 1, "task.maximum": 99}
    settings |= {"training.examples": 20_000, "training.evaluations": 1, "training.evaluation_examples": 100}
    jarilab.train("arithmetic", run, encoding="rotary", settings=settings, threads=1)
    loaded = jarilab.load(run)
    lines = [f"{i}{'+-'[i % 2]}{97 - i}" for i in range(50)]
    source = loaded.task.sources([loaded.task.read(line) for line in lines])
    names = loaded.task.show_target(range(loaded.model.target_embedding.weight.shape[0]))
    folder = tmp_path / "out"
    assert export.export(run, folder)["largest_difference"] < 1e-4
    for width in (1, 5):
        mine = ours(loaded.model, source, width)
        assert_same_answers(mine, theirs(folder, [list(line) for line in lines], names, width), width)
    assert len({tuple(ids) for ids, _ in ours(loaded.model, source, 1)}) > 5


# What is written of positions ----------------------------------------------------------------------------------------


def layers_of(encoding: str, *, causal: bool = False) -> LayerEncodings:
    model = EncoderDecoder(5, 5, d_model=32, n_heads=4, encoding=encoding)
    return (model.decoder if causal else model.encoder).encoding


@pytest.mark.parametrize(
    ("encoding", "expected"), [("rotary", ExportedRotary(8, 10000.0, False)), (ROTARY, ExportedRotary(4, 500.0, True))]
)
def test_rotary_options_are_found(encoding: str, expected: ExportedRotary) -> None:
    assert places_of(layers_of(encoding), LEAST).rotary == expected


@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_has_a_bucket_for_each_distance(causal: bool) -> None:
    with torch.no_grad():
        places = places_of(layers_of("alibi", causal=causal), 16)
    assert places.bias is not None
    assert places.bias.shape == (32 if causal else 64, 4)
    assert places.bias[:18, 0].tolist() == [-0.25 * min(d, 15) for d in range(18)]
    if not causal:
        assert places.bias[32:50, 0].tolist() == places.bias[:18, 0].tolist()


def test_table_has_the_length_of_the_encoding() -> None:
    for encoding, length in (("learned:positions=7", 7), ("sinusoidal", LEAST)):
        with torch.no_grad():
            table = places_of(layers_of(encoding), LEAST).table
        assert table is not None
        assert table.shape == (length, 32)


def test_names_are_unique() -> None:
    assert _unique(["a", "b", "a", "a<2>"]) == ["a", "b", "a<2>", "a<2><3>"]


# What is refused ------------------------------------------------------------------------------------------------------

OWN = '''
import torch
from typing import final
from jarilab.encodings.base import Encoding

@final
class Turned(Encoding):
    """Turns the first pair of all alike."""
    def rotation(self, pos): return pos.index().float()
    def rotate(self, x, rotation):
        c, s = (rotation * 0.5).cos(), (rotation * 0.5).sin()
        a, b = x[..., 0], x[..., 1]
        return torch.cat((torch.stack((a * c - b * s, b * c + a * s), -1), x[..., 2:]), -1)

@final
class Placed(Encoding):
    """A bias of the key's place alone."""
    def bias(self, q_pos, k_pos):
        return (k_pos.index() * 0.1).expand(self.site.n_heads, q_pos.length, -1)

@final
class Louder(Encoding):
    """Scales the input by its place."""
    def embed(self, x, pos): return x * (1 + pos.index().unsqueeze(-1))

@final
class Each(Encoding):
    """A bias of distance, each layer its own."""
    shared = False
    def __init__(self, site):
        super().__init__(site)
        self.weight = torch.nn.Parameter(torch.ones(()))
    def bias(self, q_pos, k_pos):
        away = (q_pos.index().unsqueeze(-1) - k_pos.index()).abs()
        return (self.weight * away).expand(self.site.n_heads, -1, -1)
'''


@pytest.mark.parametrize(
    ("encoding", "why"),
    [
        ("shaw", "it uses terms and values"),
        ("sinusoidal+rotary", "it uses embed and rotate"),
        ("rotary+rotary:base=500", "it rotates differently"),
        ("Turned", "it rotates differently"),
        ("Placed", "depends on more than the distance"),
        ("Louder", "more to the input than add"),
        ("Each", "each layer has its own"),
    ],
)
def test_unsupported_encodings_are_refused(encoding: str, why: str, tmp_path: Path) -> None:
    if encoding[0].isupper():
        (tmp_path / "own.py").write_text(OWN)
        jarilab.trust_code(tmp_path / "own.py")
        encoding = f"{tmp_path / 'own.py'}:{encoding}"
    model = EncoderDecoder(VOCABULARY, VOCABULARY, d_model=32, encoding=encoding)
    with pytest.raises(UserError, match=rf"cannot be exported: .*{why}.*jarilab predict"):
        write(model, tmp_path / "out", source=NAMES, target=NAMES)
    assert not (tmp_path / "out").exists()


def test_cross_encoding_is_refused(tmp_path: Path) -> None:
    model = EncoderDecoder(VOCABULARY, VOCABULARY, d_model=32, cross_encoding="rotary")
    with pytest.raises(UserError, match=r"rotary cannot be exported: .*between decoder and source"):
        write(model, tmp_path / "out", source=NAMES, target=NAMES)


@pytest.mark.parametrize(
    ("options", "setting", "instead"),
    [
        ({"norm_kind": "batch"}, "norm_kind=batch", "--norm-kind layer"),
        ({"norm_kind": "rms"}, "norm_kind=rms", "--norm-kind layer"),
        ({"gated": True}, "gated=true", "model.gated=false"),
    ],
)
def test_other_layers_are_refused(options: dict[str, Any], setting: str, instead: str, tmp_path: Path) -> None:
    model = EncoderDecoder(VOCABULARY, VOCABULARY, d_model=32, **options)
    with pytest.raises(UserError, match=rf"original Transformer alone, got {setting}; .*{instead}"):
        write(model, tmp_path / "out", source=NAMES, target=NAMES)
    assert not (tmp_path / "out").exists()


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    model: Any = Recurrent(VOCABULARY, VOCABULARY)
    with pytest.raises(UserError, match="expected an encoder_decoder, got Recurrent"):
        export._checked_model(model)


def test_another_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2", reason="the export is judged by CTranslate2; pip install it")
    monkeypatch.setattr(export, "_query_factor", lambda attention: 1.1)
    model = EncoderDecoder(VOCABULARY, VOCABULARY, d_model=32, encoding="rotary")
    initialise(model, 1)
    with pytest.raises(UserError, match="the exported model differs from the run"):
        write(model, tmp_path / "out", source=NAMES, target=NAMES)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(UserError, match=r"pip install 'jarilab\[ctranslate2\]'"):
        write(EncoderDecoder(VOCABULARY, VOCABULARY, d_model=32), tmp_path / "out", source=NAMES, target=NAMES)
    assert not (tmp_path / "out").exists()
