"""Agreement with the transformers library's rotations of longer texts and of three axes: LLaMA, Qwen2-VL, Qwen3-VL."""

import pytest
import torch

from jarilab.attention.heads import site_of
from jarilab.encodings import compose
from jarilab.positions.coordinates import Positions

pytest.importorskip("transformers")

from transformers import LlamaConfig
from transformers.models.llama import modeling_llama
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig

WIDTH, HEADS, HEAD_WIDTH = 128, 4, 32
LENGTH = 9
FACTORS = "/".join(str(1 + 0.25 * pair) for pair in range(16))
NUMBERS = [1 + 0.25 * pair for pair in range(16)]

# Theirs turns the position into an angle in float32, which costs a position's 2^-24 parts of a radian; ours in float64.
CLOSE = {"rtol": 0, "atol": 1e-3}

CASES = {
    "linear": ("rotary_linear:factor=4", {"rope_type": "linear", "factor": 4.0}),
    "dynamic": ("rotary_dynamic:trained_length=512,factor=2", {"rope_type": "dynamic", "factor": 2.0}),
    "yarn": (
        "yarn:factor=8,trained_length=512",
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512},
    ),
    "yarn, its own ends and temperature": (
        "yarn:factor=8,trained_length=512,fast_turns=20,slow_turns=2,attention_factor=0.9,truncate=false",
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 20,
            "beta_slow": 2,
            "attention_factor": 0.9,
            "truncate": False,
        },
    ),
    "longrope": (
        f"longrope:short={FACTORS},long=3,trained_length=512,factor=8",
        {
            "rope_type": "longrope",
            "factor": 8.0,
            "short_factor": NUMBERS,
            "long_factor": [3.0] * 16,
            "original_max_position_embeddings": 512,
        },
    ),
    "llama3": (
        "llama3:factor=8,trained_length=512,base=10000",
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    ),
    "proportional": (
        "prope:fraction=0.25",
        {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    ),
}


def turned_by_theirs(parameters, x_BHLE, index):
    config = LlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        max_position_embeddings=512,
        rope_parameters={"rope_theta": 10000.0, **parameters},
    )
    rotation = modeling_llama.LlamaRotaryEmbedding(config)
    cosine, sine = rotation(x_BHLE, index[None])
    return modeling_llama.apply_rotary_pos_emb(x_BHLE, x_BHLE, cosine, sine)[0]


def turned_by_ours(spec, x_BHLE, pos):
    ours = compose.build(spec, site_of(WIDTH, HEADS))
    return ours.rotate(x_BHLE, ours.rotation_for(pos, "query", pos))


@pytest.mark.parametrize("start", [40, 1500], ids=["within the trained length", "beyond it"])
@pytest.mark.parametrize("case", CASES)
def test_rotations_of_longer_texts(case, start):
    spec, parameters = CASES[case]
    x_BHLE, index = torch.randn(2, HEADS, LENGTH, HEAD_WIDTH), torch.arange(start, start + LENGTH)
    wanted = turned_by_theirs(parameters, x_BHLE, index)
    pos = Positions.sequence(LENGTH, start)
    torch.testing.assert_close(turned_by_ours(spec, x_BHLE, pos), wanted, **CLOSE)
    plain = turned_by_ours("rotary", x_BHLE, pos)
    same = case == "dynamic" and start < 512
    assert torch.allclose(plain, wanted, **CLOSE) == same


def grid_of_tokens(start=700):
    """Frames of an image, as both have them: `(3, 1, L)`, and Positions."""
    spans = [torch.arange(start, start + count) for count in (2, 3, 4)]
    places_LA = torch.cartesian_prod(*spans)
    pos = Positions(places_LA, torch.arange(len(places_LA)), ("time", "row", "column"), "video")
    return places_LA.t().unsqueeze(1), pos


@pytest.mark.parametrize("sections", [[4, 6, 6], [6, 5, 5], [10, 3, 3]])
@pytest.mark.parametrize("layout", ["sections", "interleaved"])
def test_three_axes(layout, sections):
    modelling = {"sections": modeling_qwen2_vl, "interleaved": modeling_qwen3_vl}[layout]
    kind = {"sections": Qwen2VLTextConfig, "interleaved": Qwen3VLTextConfig}[layout]
    # Qwen3-VL's layout has no more turns than these for its second and third axis.
    if layout == "interleaved":
        sections = [16 - 2 * min(sections[1], 5), min(sections[1], 5), min(sections[1], 5)]
    config = kind(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        head_dim=HEAD_WIDTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections},
    )
    names = [name for name in vars(modelling) if name.endswith("RotaryEmbedding") and "Vision" not in name]
    (name,) = names
    places, pos = grid_of_tokens()
    x_BHLE = torch.randn(1, HEADS, pos.length, HEAD_WIDTH)
    cosine, sine = getattr(modelling, name)(config)(x_BHLE, places)
    wanted, _ = modeling_llama.apply_rotary_pos_emb(x_BHLE, x_BHLE, cosine, sine)
    spec = f"rotary3d:layout={layout},sections={'/'.join(map(str, sections))}"
    torch.testing.assert_close(turned_by_ours(spec, x_BHLE, pos), wanted, **CLOSE)
    other = Positions(pos.coordinates.roll(1, -1), pos.order, pos.axes, pos.frame)
    assert not torch.allclose(turned_by_ours(spec, x_BHLE, other), wanted, **CLOSE)
