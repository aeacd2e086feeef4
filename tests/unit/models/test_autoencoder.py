"""Images as codes and back: each quantizer against its formula, and what is known of the tokenizer."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.data.images.fitting import fit, progress_bar
from jarilab.data.images.image_tokenizer import ImageTokenizer, decibels, measure, train_image_tokenizer
from jarilab.models.autoencoder import FSQ, Autoencoder, Gumbel


def blobs(numbers: Int[Tensor, " B"]) -> Tensor:
    """Coloured rectangles on black, 16 x 16."""
    images = torch.zeros(len(numbers), 3, 16, 16, dtype=torch.uint8)
    for image, number in zip(images, numbers.tolist(), strict=True):
        top, left, colour = number % 9, number // 9 % 9, number % 7 + 1
        for channel in range(3):
            image[channel, top : top + 7, left : left + 7] = 200 * (colour >> channel & 1)
    return images


@pytest.fixture(scope="module")
def trained() -> ImageTokenizer:
    return train_image_tokenizer(blobs, 500, {"width": 16}, seed=3, steps=150, batch_size=32)


def test_fsq_takes_each_level_and_numbers_them_as_digits_of_a_number() -> None:
    quantizer = FSQ((8, 5, 5))
    z = torch.linspace(-6, 6, 4001)
    for axis, levels in enumerate((8, 5, 5)):
        grid = torch.zeros(1, 3, 1, 4001)
        grid[0, axis, 0] = z
        quantized = quantizer(grid)
        assert len(quantized.vectors[0, axis].unique()) == levels
        assert (quantized.vectors[0, axis, 0].diff() >= 0).all()
    ids = torch.arange(200).view(1, 10, 20)
    vectors = quantizer.vectors(ids)
    assert len(vectors.flatten(2)[0].T.unique(dim=0)) == 200
    # The least vector of all is code 0, the greatest the last.
    assert vectors[0, :, 0, 0].tolist() == [-1, -1, -1]
    assert vectors[0, :, -1, -1].tolist() == [0.75, 1, 1]


def test_fsq_at_zero_is_the_middle_and_its_gradient_passes_the_rounding() -> None:
    z = torch.zeros(1, 3, 1, 1, requires_grad=True)
    quantized = FSQ((8, 5, 5))(z)
    assert torch.allclose(quantized.vectors, torch.zeros(1, 3, 1, 1), atol=1e-6)
    quantized.vectors.sum().backward()
    assert z.grad is not None
    # d/dz of tanh(z + shift) * half / (levels // 2): by Mentzer et al. 2023, section 3.1.
    half = 7 * (1 + 1e-3) / 2
    assert z.grad[0, 0, 0, 0].item() == pytest.approx(half * (1 - (0.5 / half) ** 2) / 4, rel=1e-5)
    assert z.grad[0, 1, 0, 0].item() == pytest.approx(2 * (1 + 1e-3) / 2, rel=1e-5)


@pytest.mark.parametrize("quantizer", ["fsq", "gumbel"])
def test_decoding_codes_is_what_the_forward_decodes(quantizer: str) -> None:
    model = Autoencoder(width=8, quantizer=quantizer, codes=32).eval()  # type: ignore[arg-type]
    pixels = torch.rand(2, 3, 8, 12)
    again, quantized = model(pixels)
    assert quantized.ids.shape == (2, 2, 3)
    assert torch.equal(model.encode(pixels), quantized.ids)
    assert torch.allclose(model.decode(quantized.ids), again.clamp(0, 1), atol=1e-6)


def test_gumbel_cools_down_and_is_hard_in_evaluation() -> None:
    quantizer = Gumbel(8, 3).train()
    quantizer.anneal(0.0)
    assert quantizer.temperature == 1
    quantizer.anneal(0.75)
    assert quantizer.temperature == pytest.approx(1 / 16)
    z = torch.randn(1, 8, 4, 4, requires_grad=True)
    soft = quantizer(z)
    assert torch.allclose(soft.vectors, quantizer.vectors(soft.ids), atol=1e-5), "forward is the hard choice"
    soft.vectors.square().sum().backward()
    assert z.grad is not None
    assert z.grad.abs().sum() > 0
    assert soft.loss >= 0
    quantizer.eval()
    assert torch.equal(quantizer(z).ids, z.argmax(1))


def test_training_makes_images_come_back(trained: ImageTokenizer) -> None:
    untrained = measure(ImageTokenizer(Autoencoder(width=16).eval(), {}, {}), blobs, 100)
    assert trained.measured["psnr"] > 18 > untrained["psnr"] + 5


def test_decibels_of_two_images() -> None:
    black, grey = torch.zeros(3, 4, 4, dtype=torch.uint8), torch.full((3, 4, 4), 51, dtype=torch.uint8)
    assert decibels(black, grey) == pytest.approx(20 * math.log10(5), rel=1e-6)
    assert decibels(grey, grey) == 100


def test_measures_are_over_all_images() -> None:
    codes = ImageTokenizer(Autoencoder(width=8, levels=(2, 2)).eval(), {}, {})
    measures = measure(codes, blobs, 300)
    ids = codes.encode(blobs(torch.arange(300)))
    share = torch.bincount(ids.flatten(), minlength=4) / ids.numel()
    assert measures["codes_used"] == (share > 0).float().mean()
    entropy = -sum(p * math.log(p) for p in share.tolist() if p)
    assert measures["perplexity"] == pytest.approx(math.exp(entropy), rel=1e-5)
    again = codes.autoencoder.decode(ids)
    error = (again - blobs(torch.arange(300)).float() / 255).square().mean().item()
    assert measures["psnr"] == pytest.approx(-10 * math.log10(error), rel=1e-5)


def test_the_same_seed_gives_the_same_tokenizer_and_leaves_random_numbers_alone() -> None:
    state = torch.get_rng_state()
    one, other = (train_image_tokenizer(blobs, 50, {"width": 8}, seed=seed, steps=3, batch_size=4) for seed in (1, 1))
    assert {one.fingerprint for _ in range(20)} == {other.fingerprint}
    assert one.fingerprint != train_image_tokenizer(blobs, 50, {"width": 8}, seed=2, steps=3, batch_size=4).fingerprint
    assert torch.equal(torch.get_rng_state(), state)


def test_a_tokenizer_is_kept_and_read(trained: ImageTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "codes.safetensors"
    path.write_bytes(trained.to_bytes())
    read = ImageTokenizer.read(path)
    assert read.fingerprint == trained.fingerprint
    assert read.measured == trained.measured
    images = blobs(torch.arange(5))
    assert torch.equal(read.encode(images), trained.encode(images))


def test_what_is_no_tokenizer_is_refused(trained: ImageTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "codes.safetensors"
    with pytest.raises(UserError, match=r"cannot be read: .*the run cannot answer without it"):
        ImageTokenizer.read(path)
    path.write_bytes(b"\x80\x04pickled")
    with pytest.raises(UserError, match="cannot be read"):
        ImageTokenizer.read(path)
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(UserError, match="holds other weights than expected"):
        ImageTokenizer.read(path)
    save_file({"x": torch.zeros(2)}, path, metadata={"codes": '{"options": {"width": 8}, "measured": {}}'})
    with pytest.raises(UserError, match=r"holds other weights than expected: .*Missing key"):
        ImageTokenizer.read(path)
    save_file({"x": torch.zeros(2)}, path, metadata={"codes": '{"options": {"witdh": 8}, "measured": {}}'})
    with pytest.raises(UserError, match="did you mean 'width'"):
        ImageTokenizer.read(path)


def test_each_step_is_told() -> None:
    calls: list[tuple[int, int]] = []
    train_image_tokenizer(
        blobs, 8, {"width": 8}, steps=3, batch_size=2, progress=lambda step, steps: calls.append((step, steps))
    )
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(UserError, match="step 3 of 5: the loss of the Linear is nan; a lower learning rate may help"):
        fit(model, lambda step: model.weight.sum() * (math.nan if step == 2 else 0), optimizer, 5)


def test_progress_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    for terminal in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", terminal)
        with progress_bar("image tokenizer") as progress:
            for step in range(1, 4):
                progress(step, 3)
        out, err = capsys.readouterr()
        assert out == ""
        assert ("image tokenizer" in err and "step 3/3" in err) == bool(terminal)
        assert bool(err) == bool(terminal)


def test_sizes_and_numbers_that_cannot_be(trained: ImageTokenizer) -> None:
    with pytest.raises(UserError, match=r"multiples of 4, got 16 x 18; resize or pad"):
        trained.autoencoder(torch.zeros(1, 3, 16, 18))
    with pytest.raises(UserError, match="codes from 0 to 199, got 3 to 200"):
        trained.autoencoder.decode(torch.tensor([[[3, 200]]]))
    with pytest.raises(UserError, match="2 levels or more"):
        Autoencoder(levels=(8, 1))
