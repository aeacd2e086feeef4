"""The language model of captions and images: what may see what, and generation against the full forward."""

import pytest
import torch

import jarilab
from jarilab.core.errors import UserError
from jarilab.inspect.intervene.effects import effect
from jarilab.inspect.intervene.interventions import HeadOff
from jarilab.models.decoding.sample import Filters
from jarilab.models.text_to_image import CodeChoice, TextToImage
from jarilab.nn.init import initialise
from jarilab.runs.experiment import Experiment

ROWS, COLUMNS = 3, 4
ENCODINGS = ["learned@text+rotary2d@image", "learned@text+learned2d@image", "none", "rotary2d@image"]


def model_of(encoding: str = ENCODINGS[0], **options: object) -> TextToImage:
    model = TextToImage(12, 20, 6, ROWS, COLUMNS, d_model=32, n_heads=2, n_layers=2, encoding=encoding, **options)  # type: ignore[arg-type]
    initialise(model, 1)
    return model.eval()


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(1, 12, (3, 4)), torch.randint(20, (3, ROWS * COLUMNS))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_padding_of_the_caption_changes_nothing(encoding: str, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, (captions, codes) = model_of(encoding), batch
    padded = torch.nn.functional.pad(captions, (0, 2))
    bare, more = model(captions, codes), model(padded, codes)
    assert bare.text.shape == (3, 4, 12)
    assert bare.image.shape == (3, ROWS * COLUMNS, 20)
    assert torch.allclose(bare.image, more.image, atol=1e-5)
    assert torch.allclose(bare.text, more.text[:, :4], atol=1e-5)
    assert more.text.isfinite().all()


def test_no_score_sees_what_it_is_to_say(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, (captions, codes) = model_of(), batch
    before = model(captions, codes)
    changed = codes.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 20
    after = model(captions, changed)
    differs = (before.image - after.image).abs().amax((0, 2)) > 1e-6
    assert differs.tolist() == [False] * 6 + [True] * 6
    assert torch.equal(before.text, after.text)
    words = captions.clone()
    words[:, 2] = words[:, 2] % 11 + 1
    after = model(words, codes)
    assert ((before.text - after.text).abs().amax((0, 2)) > 1e-6).tolist() == [False, False, True, True]
    assert ((before.image - after.image).abs().amax((0, 2)) > 1e-6).all()


def test_without_a_caption_no_word_is_heard(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, (captions, codes) = model_of(), batch
    gone = torch.tensor([True, False, True])
    other = captions.roll(1, 1)
    one, two = model(captions, codes, gone), model(other, codes, gone)
    assert torch.equal(one.image[gone], two.image[gone])
    assert not torch.allclose(one.image[~gone], two.image[~gone])
    assert torch.allclose(one.image[1], model(captions, codes).image[1], atol=1e-5)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_drawing_step_by_step_is_the_full_forward(
    encoding: str, guidance: float, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """The cache knows row and column of each code, and the caption is guided away from none."""
    model, captions = model_of(encoding), batch[0]
    drawn = torch.stack(list(model.steps(captions, guidance=guidance, temperature=0.0, seed=1)), 1)
    assert drawn.shape == (3, ROWS * COLUMNS)
    conditional = model(captions, drawn).image
    bare = model(captions, drawn, torch.ones(3, dtype=torch.bool)).image
    assert torch.equal((bare + guidance * (conditional - bare)).argmax(-1), drawn)


def test_each_code_stands_at_its_row_and_column(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    """With places in the image alone, exchanging two codes is heard; with none of it, only by their order."""
    places = model_of()._places(4, ROWS * COLUMNS - 1, torch.device("cpu"))
    assert places.axes == ("text", "image.row", "image.column")
    assert places.coordinates[:4].tolist() == [[i, -1, -1] for i in range(4)]
    assert places.coordinates[4].tolist() == [-1, -1, -1]
    assert places.coordinates[5:].tolist() == [[-1, i // COLUMNS, i % COLUMNS] for i in range(ROWS * COLUMNS - 1)]


def test_drawing_is_repeatable_and_follows_its_seed(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, captions = model_of(), batch[0]
    one, same, other = (torch.stack(list(model.steps(captions, seed=seed)), 1) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_model_is_recorded_like_any_language_model(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, (captions, codes) = model_of(), batch
    with jarilab.record(model) as tape:
        model(captions, codes)
    assert tape.sites == ["decoder.0.self", "decoder.1.self"]
    assert tape.weights("decoder.0.self").shape == (3, 2, 4 + ROWS * COLUMNS, 4 + ROWS * COLUMNS)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_one_sequence_scores_as_the_painter_does(encoding: str, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    """After a word words, from the mark on codes; the mark alone where there is nothing to choose."""
    model, (captions, codes) = model_of(encoding).double(), batch
    expected, scores = model(captions, codes), model.one_sequence()(model.joined(captions, codes))
    assert scores.shape == (3, 4 + 1 + ROWS * COLUMNS, 12 + 2 + 20)
    assert torch.allclose(scores[:, :3, :12], expected.text[:, :3], rtol=0, atol=1e-12)
    assert torch.allclose(scores[:, 4:-1, 14:], expected.image, rtol=0, atol=1e-12)
    may = scores.softmax(-1) > 0
    assert may[:, :3].all((0, 1)).tolist() == may[:, :3].any(0).any(0).tolist() == [True] * 12 + [False] * 22
    assert may[:, 4:-1].all((0, 1)).tolist() == may[:, 4:-1].any(0).any(0).tolist() == [False] * 14 + [True] * 20
    for last in (3, -1):
        assert may[:, last].nonzero()[:, 1].tolist() == [model.mark] * 3
    assert scores.isfinite().all()
    assert scores.log_softmax(-1).isfinite().all()


def test_a_image_that_is_begun_goes_on_with_codes(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, (captions, codes) = model_of(), batch
    begun = model.one_sequence()(model.joined(captions, codes[:, :5]))
    assert ((begun[:, -1].softmax(-1) > 0).sum(1) == 20).all()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_painted_is_the_likeliest_of_one_sequence(
    encoding: str, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    model, captions = model_of(encoding), batch[0]
    drawn = torch.stack(list(model.steps(captions, guidance=1.0, temperature=0.0, seed=1)), 1)
    scores = model.one_sequence()(model.joined(captions, drawn))
    assert torch.equal(scores[:, 4:-1].argmax(-1) - model.offset, drawn)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_sequence_shares_the_painter_and_is_edited_like_a_language_model(
    dtype: torch.dtype, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    model, (captions, codes) = model_of().to(dtype), batch
    one, tokens = model.one_sequence(), model.joined(captions[:1], codes[:1])
    assert {id(p) for p in one.parameters()} == {id(p) for p in model.parameters()}
    assert not one.training
    result = effect(one, (tokens,), tokens.ids[0].tolist(), [HeadOff("decoder.0.self", 1)])
    assert 0 < result.divergence < 0.7
    assert len(result.before) == 4 + ROWS * COLUMNS  # a word, the mark or a code after each token but the last
    assert float(result.before[3]) == float(result.after[3]) == 1
    probabilities = model(captions[:1], codes[:1]).image[0].softmax(-1)
    assert torch.allclose(result.before[4:].to(dtype), probabilities[range(ROWS * COLUMNS), codes[0]], atol=1e-6)


def test_top_k_is_a_count_and_top_p_a_probability() -> None:
    scores = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().repeat(500, 1)
    chance = (torch.arange(500, dtype=torch.float64) + 0.5) / 500

    def drawn(**options: object) -> set[int]:
        full = {"temperature": 1.0, "top_k": None, "top_p": None} | options
        return set(CodeChoice(1.0, Filters(**full)).take(scores, chance).tolist())  # type: ignore[arg-type]

    full = CodeChoice(1.0, Filters(1.0, None, None))
    assert torch.bincount(full.take(scores, chance)).tolist() == [250, 150, 75, 25]
    assert full.take(scores[:2], torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)).tolist() == [0, 3]
    assert drawn(top_k=2) == {0, 1}
    assert drawn(top_k=99) == {0, 1, 2, 3}
    assert drawn(top_p=0.9) == {0, 1, 2}
    assert drawn(temperature=0.0) == {0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guidance": -1.0}, "guidance: expected 0 .* got -1"),
        ({"temperature": float("inf")}, "temperature: expected 0 .* got inf"),
        ({"top_k": 0}, "top_k: expected 1 token or more, got 0"),
        ({"top_p": 1.5}, "top_p: expected a probability above 0, 1 at most, got 1.5"),
    ],
)
def test_drawing_that_cannot_be_is_refused_before_it_begins(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        model_of().steps(torch.ones(1, 2, dtype=torch.long), seed=1, **options)


def test_captions_that_cannot_be_drawn_together_are_refused() -> None:
    model = model_of()
    for captions in (torch.tensor([[1, 5, 0]]), torch.ones(1, 7, dtype=torch.long), torch.ones(1, 0, dtype=torch.long)):
        with pytest.raises(UserError, match="of one length, 1 to 6 tokens and no padding"):
            model.steps(captions, seed=1)


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("table2d", "table2d cannot encode text and image.row and image.column: expected an encoding for 3 axes"),
        ("rotary", "rotary cannot encode text and image.row and image.column: expected an encoding for 3 axes"),
        ("learned@text+rotary@image", "rotary@image cannot encode image.row and image.column: expected .* for 2 axes"),
        ("rotary@words", "rotary@words is for a part 'words', expected one of text, image"),
    ],
)
def test_an_encoding_that_is_not_of_words_and_codes_is_told_before_anything_is_trained(
    encoding: str, message: str
) -> None:
    experiment = Experiment.of("captions", encoding, {"task.train": "nowhere"})
    with pytest.raises(UserError, match=f"{message}.*; use such as learned@text.rotary2d@image"):
        experiment.resolved.build_task()
