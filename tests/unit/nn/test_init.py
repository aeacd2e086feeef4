import pytest
import torch

from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.init import generator_for, initialise

EVERY = ["none", "sinusoidal", "learned", "rotary", "shaw", "t5", "alibi", "learned+shaw+t5"]


def values_of(encoding, seed=0, **options):
    model = EncoderDecoder(11, 13, d_model=16, n_heads=2, encoding=encoding, **options)
    torch.rand(seed + 1)  # the global generator must not matter
    initialise(model, seed)
    return dict(model.named_parameters())


@pytest.mark.parametrize("encoding", EVERY[1:])
def test_parameters_outside_the_encoding_start_bit_identical(encoding):
    plain, other = values_of("none"), values_of(encoding)
    assert {name for name in other if name not in plain} == {name for name in other if "encoding." in name}
    assert plain.keys() <= other.keys()
    assert [name for name in plain if not torch.equal(plain[name], other[name])] == []


def test_a_longer_stack_starts_like_the_shorter_one():
    short, long = values_of("shaw"), values_of("shaw", n_encoder_layers=4)
    assert [name for name in short if not torch.equal(short[name], long[name])] == []


def test_no_two_drawn_parameters_are_equal():
    drawn = [p.flatten()[:8] for p in values_of("learned+shaw").values() if p.std() > 0]
    assert len(drawn) > 30
    assert len({tuple(p.tolist()) for p in drawn}) == len(drawn)


def test_another_seed_gives_other_values():
    first, second = values_of("shaw"), values_of("shaw", seed=1)
    same = {name for name in first if torch.equal(first[name], second[name])}
    assert same == {name for name in first if name.endswith("bias") or "norm" in name}


def test_the_dtype_of_the_model_does_not_change_the_draw():
    model = EncoderDecoder(11, 13, d_model=16, n_heads=2, encoding="shaw").to(torch.bfloat16)
    initialise(model, 0)
    reference = values_of("shaw")
    assert all(torch.equal(p, reference[name].to(torch.bfloat16)) for name, p in model.named_parameters())


def test_standard_deviations_and_constants():
    model = EncoderDecoder(50, 50, d_model=64, n_heads=2)
    initialise(model, 0)
    values = dict(model.named_parameters())
    assert values["encoder.layers.0.feed_forward.up.weight"].std().item() == pytest.approx(64**-0.5, rel=0.1)
    assert values["encoder.layers.0.feed_forward.down.weight"].std().item() == pytest.approx(256**-0.5, rel=0.1)
    assert values["source_embedding.weight"].std().item() == pytest.approx(64**-0.5, rel=0.1)
    assert (values["encoder.norm.weight"] == 1).all()
    assert (values["encoder.norm.bias"] == 0).all()


def test_a_generator_depends_on_seed_and_name():
    drawn = [
        torch.rand((), generator=generator_for(seed, name)).item() for seed, name in ((0, "a"), (1, "a"), (0, "b"))
    ]
    assert len(set(drawn)) == 3
    assert torch.rand((), generator=generator_for(0, "a")).item() == drawn[0]
