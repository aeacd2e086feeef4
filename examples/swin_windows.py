"""Windows put back into one image, and attention rollout through the stages of a hierarchical model: Swin.

    python examples/swin_windows.py

The model is a small Swin with random weights, so its maps mean nothing: they show the steps.
"""

import math
import sys

import torch
from torch import Tensor
from transformers import SwinConfig, SwinModel

import jarilab
from jarilab.inspect.fields.windows import (
    Grid,
    patches_of_windows,
    windows_of,
    windows_to_image,
)
from jarilab.inspect.figures.images import draw_over_image

IMAGE, PATCH = (44, 60), 4


def small_model() -> SwinModel:
    torch.manual_seed(0)
    config = SwinConfig(
        image_size=IMAGE,
        patch_size=PATCH,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    )
    model = SwinModel(config).eval()
    for parameter in model.parameters():
        parameter.data *= 4  # else all maps of random weights are nearly even
    return model


def maps_of_layers(tape: jarilab.Tape, grid: Grid) -> list[tuple[Grid, Tensor]]:
    """For each layer its grid and its map between all patches `(heads, L, L)`. tape: of one image."""
    maps = []
    for site in tape.sites:
        weights, windows = tape.weights(site), windows_of(tape.recorded(site).placed.above)
        if windows is None:
            raise ValueError(f"{site} has no windows; its map is tape.weights({site!r})")
        # Between stages, each 2 x 2 patches become one.
        while patches_of_windows(grid, *windows).shape != weights.shape[::3] and max(grid) > 1:
            grid = (math.ceil(grid[0] / 2), math.ceil(grid[1] / 2))
        maps.append((grid, windows_to_image(weights, patches_of_windows(grid, *windows))))
    return maps


def merged(grid: Grid) -> Tensor:
    """The matrix that takes the mean of 2 x 2 patches: `(patches after, patches before)`."""
    rows, columns = torch.meshgrid(*map(torch.arange, grid), indexing="ij")
    target = (rows // 2) * math.ceil(grid[1] / 2) + columns // 2
    member = torch.nn.functional.one_hot(target.flatten()).T.float()
    return member / member.sum(1, keepdim=True)


def rollout(maps: list[tuple[Grid, Tensor]]) -> Tensor:
    """How much of each first patch is in each last one, `(last, first)` (Abnar & Zuidema 2020).

    Half of each layer's output is its input. What attention gives to padding is lost.
    """
    grid = maps[0][0]
    total = torch.eye(grid[0] * grid[1])
    for layer_grid, weights in maps:
        if layer_grid != grid:
            total, grid = merged(grid) @ total, layer_grid
        total = (weights.mean(0) @ total + total) / 2
    return total


@torch.no_grad()
def main(figure: str = "swin_windows.png") -> tuple[list[tuple[Grid, Tensor]], Tensor]:
    model = small_model()
    pixels = torch.rand(1, 3, *IMAGE, generator=torch.Generator().manual_seed(1))
    with jarilab.record(model) as tape:
        model(pixel_values=pixels)
    grid = (IMAGE[0] // PATCH, IMAGE[1] // PATCH)
    maps = maps_of_layers(tape, grid)
    for site, (layer_grid, weights) in zip(tape.sites, maps, strict=True):
        print(f"{site}: {layer_grid[0]} x {layer_grid[1]} patches, map {tuple(weights.shape)}")
    total = rollout(maps)
    query = 5 * grid[1] + 6
    drawn = torch.stack([maps[0][1].mean(0)[query], maps[1][1].mean(0)[query], total.mean(0)])
    drawn = (drawn / drawn.amax(1, keepdim=True)).unflatten(1, grid)
    names = ["layer 0", "layer 1", "rollout"]
    draw_over_image(
        pixels[0].permute(1, 2, 0).numpy(), drawn, names, name="share of the largest"
    ).save(figure)
    print(f"{figure}: the patch in row 5, column 6 in two layers, and the rollout of all")
    return maps, total


if __name__ == "__main__":
    main(*sys.argv[1:2])
