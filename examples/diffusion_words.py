"""Where in the image does each word of a prompt act: one map a word, over all steps and layers of a diffusion model.

    pip install diffusers
    python examples/diffusion_words.py

It records a UNet, whose cross-attention reads the words, and two transformers that join words and image in a sequence,
SD3 (words after the image) and Flux (words before it). All have random weights, so their maps mean nothing: they show
the steps. With a pipeline, record `pipe.unet` or `pipe.transformer` around the call.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import jarilab
from jarilab.inspect.figures.images import draw_over_image

WORDS, STEPS = 5, (900, 500, 100)
SHAPE, SIZE = (8, 12), (64, 96)
"""Rows and columns of the latent image, and of the image in pixels."""


def word_maps(
    tape: jarilab.Tape,
    sites: Sequence[str],
    shape: tuple[int, int],
    size: tuple[int, int],
    *,
    words: slice = slice(None),
    image: slice = slice(None),
    row: int = -1,
) -> Tensor:
    """A map for each word, the mean over steps, sites and heads, resized to the image: `(words, height, width)`.

    shape: rows and columns of the latent image, or of its patches; layers may halve it. words, image: where the words
    and the image are, if both are one sequence. row: of the batch; with guidance, the last one is that of the prompt.
    """
    total, count = torch.zeros(()), 0
    for site in sites:
        for index in range(len(tape.calls[site])):
            weights = tape.weights(site, index)[row, :, image, words].mean(0)  # (pixels, words)
            maps = weights.T.unflatten(1, grid_of(len(weights), shape))
            resized = functional.interpolate(maps[None].float(), size, mode="bilinear")
            total, count = total + resized[0], count + 1
    return total / count


def grid_of(pixels: int, shape: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of a layer that has so many pixels, after halvings of `shape`."""
    rows, columns = shape
    while rows * columns > pixels:
        rows, columns = math.ceil(rows / 2), math.ceil(columns / 2)
    if rows * columns != pixels:
        raise ValueError(
            f"{pixels} pixels are no halving of {shape}; pass the shape of the latent image"
        )
    return rows, columns


def unet() -> tuple[nn.Module, list[dict[str, Any]]]:
    """A model, and what it is called with at each step."""
    from diffusers import UNet2DConditionModel  # pyright: ignore[reportMissingImports]

    model = UNet2DConditionModel(
        in_channels=4, out_channels=4, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), cross_attention_dim=24, attention_head_dim=2,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    # Two rows: the empty prompt of the guidance, and the prompt.
    words = torch.randn(2, WORDS, 24)
    return model.eval(), [
        {"sample": torch.randn(2, 4, *SHAPE), "timestep": step, "encoder_hidden_states": words}
        for step in STEPS
    ]


def sd3() -> tuple[nn.Module, list[dict[str, Any]]]:
    from diffusers import SD3Transformer2DModel  # pyright: ignore[reportMissingImports]

    model = SD3Transformer2DModel(
        patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=24, caption_projection_dim=32, pooled_projection_dim=16, pos_embed_max_size=16,
    )  # fmt: skip
    fixed = {
        "encoder_hidden_states": torch.randn(1, WORDS, 24),
        "pooled_projections": torch.randn(1, 16),
    }
    return model.eval(), [
        {"hidden_states": torch.randn(1, 4, *SHAPE), "timestep": torch.tensor([step]), **fixed}
        for step in STEPS
    ]


def flux() -> tuple[nn.Module, list[dict[str, Any]]]:
    from diffusers import FluxTransformer2DModel  # pyright: ignore[reportMissingImports]

    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=2, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=24, pooled_projection_dim=16, axes_dims_rope=(2, 2, 4),
    )  # fmt: skip
    rows, columns = torch.meshgrid(torch.arange(SHAPE[0]), torch.arange(SHAPE[1]), indexing="ij")
    places = torch.stack([torch.zeros_like(rows), rows, columns], -1).flatten(0, 1)
    fixed = {
        "encoder_hidden_states": torch.randn(1, WORDS, 24), "pooled_projections": torch.randn(1, 16),
        "img_ids": places.float(), "txt_ids": torch.zeros(WORDS, 3),
    }  # fmt: skip
    return model.eval(), [
        {
            "hidden_states": torch.randn(1, len(places), 4),
            "timestep": torch.tensor([step / 1000]),
            **fixed,
        }
        for step in STEPS
    ]


@torch.no_grad()
def recorded(model: nn.Module, steps: Sequence[dict[str, Any]]) -> jarilab.Tape:
    with jarilab.record(model) as tape:
        for step in steps:
            model(**step)
    return tape


def main(figure: str = "diffusion_words.png") -> dict[str, Tensor]:
    torch.manual_seed(0)
    tape = recorded(*unet())
    maps = {"UNet": word_maps(tape, tape.sites_of("cross"), SHAPE, SIZE)}
    patches = (SHAPE[0] // 2, SHAPE[1] // 2)
    count = patches[0] * patches[1]
    tape = recorded(*sd3())
    maps["SD3"] = word_maps(
        tape, tape.sites, patches, SIZE, image=slice(0, count), words=slice(count, None)
    )
    tape = recorded(*flux())
    maps["Flux"] = word_maps(
        tape, tape.sites, SHAPE, SIZE, image=slice(WORDS, None), words=slice(0, WORDS)
    )
    for name, of_model in maps.items():
        shares = ", ".join(f"{share:.3f}" for share in of_model.mean((1, 2)).tolist())
        print(f"{name}: mean weight of each word over the image {shares}")
    blank = torch.ones(*SIZE, 3).numpy()
    names = [f"word {number}" for number in range(WORDS)]
    draw_over_image(blank, maps["UNet"], names).save(figure)
    print(f"{figure}: the words of the UNet")
    return maps


if __name__ == "__main__":
    main(*sys.argv[1:2])
