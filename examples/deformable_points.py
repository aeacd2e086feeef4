"""Deformable attention: where it samples, and with which weights, over the image.

    python examples/deformable_points.py

Deformable attention (Zhu et al. 2021) has no map: each query samples some points between the cells of several feature
maps. A tape names such modules in `tape.missing`. This example keeps points and weights with hooks, and turns them into
a map over the cells, which equals what the module computes. The model is a small Deformable DETR with random weights,
so its points mean nothing: they show the steps.
"""

import contextlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DeformableDetrConfig, DeformableDetrModel, ResNetConfig

HEIGHT, WIDTH = 64, 96


class Sampling(NamedTuple):
    """What a deformable attention samples; S feature maps, P points in each.

    locations: x and y from 0 to 1, `(B, Q, H, S, P, 2)`. weights: `(B, Q, H, S, P)`, whose sum over S and P is 1.
    shapes: rows and columns of each feature map.
    """

    locations: Tensor
    weights: Tensor
    shapes: list[tuple[int, int]]


@contextlib.contextmanager
def record_sampling(model: nn.Module) -> Iterator[dict[str, Sampling]]:
    """What each deformable attention of a model of transformers samples inside the block, by the path of its module."""
    samplings: dict[str, Sampling] = {}
    handles = []
    for path, module in model.named_modules():
        signature = inspect.signature(module.forward)
        if not {"sampling_locations", "attention_weights"} <= set(signature.parameters):
            continue

        def keep(
            _: nn.Module, arguments: Any, keywords: Any, path=path, signature=signature
        ) -> None:
            given = signature.bind(*arguments, **keywords).arguments
            shapes = [(int(rows), int(columns)) for rows, columns in given["value_spatial_shapes"]]
            samplings[path] = Sampling(
                given["sampling_locations"], given["attention_weights"], shapes
            )

        handles.append(module.register_forward_pre_hook(keep, with_kwargs=True))
    try:
        yield samplings
    finally:
        for handle in handles:
            handle.remove()


def weights_on_cells(sampling: Sampling) -> list[Tensor]:
    """The weight of each cell of each feature map, `(B, H, Q, rows, columns)`.

    A point is shared by the 4 cells around it. What it has outside of the feature map is lost, as in the module.
    """
    maps = []
    for level, (rows, columns) in enumerate(sampling.shapes):
        x, y = (sampling.locations[:, :, :, level] * torch.tensor([columns, rows]) - 0.5).unbind(-1)
        map = torch.zeros(*x.shape[:3], rows * columns)
        for row in (y.floor(), y.floor() + 1):
            for column in (x.floor(), x.floor() + 1):
                share = (1 - (y - row).abs()) * (1 - (x - column).abs())
                inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
                cell = row.clamp(0, rows - 1) * columns + column.clamp(0, columns - 1)
                map.scatter_add_(-1, cell.long(), share * inside * sampling.weights[:, :, :, level])
        maps.append(map.transpose(1, 2).unflatten(-1, (rows, columns)))
    return maps


def small_model() -> DeformableDetrModel:
    torch.manual_seed(0)
    backbone: dict[str, Any] = {
        "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "layer_type": "basic",
        "out_features": ["stage2", "stage3", "stage4"],
    }  # fmt: skip
    parts = {"layers": 2, "attention_heads": 4, "ffn_dim": 32}
    sizes: dict[str, Any] = {
        f"{part}_{name}": count for part in ("encoder", "decoder") for name, count in parts.items()
    }
    own = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
    sizes |= {
        "num_queries": 5,
        "d_model": 32,
        "num_feature_levels": 3,
        "disable_custom_kernels": True,
        **own,
    }
    config = DeformableDetrConfig(backbone_config=ResNetConfig(**backbone), **sizes)
    return DeformableDetrModel(config).eval()


def draw_points(sampling: Sampling, image: Tensor, query: int, file: str) -> None:
    """The points of a query over the image; the area of a point is its weight."""
    from matplotlib.figure import Figure

    height, width = image.shape[:2]
    points, weights = sampling.locations[0, query], sampling.weights[0, query]
    sheet = Figure(figsize=(5, 5 * height / width))
    axes = sheet.add_axes((0, 0, 1, 1))
    axes.imshow(image, alpha=0.4)
    for head, (of_head, areas) in enumerate(
        zip(points.flatten(1, 2), weights.flatten(1), strict=True)
    ):
        x, y = (of_head * torch.tensor([width, height]) - 0.5).T
        axes.scatter(x, y, 400 * areas, label=f"head {head}")
    axes.legend(loc="lower right")
    axes.set_axis_off()
    sheet.savefig(file, dpi=100)


@torch.no_grad()
def main(figure: str = "deformable_points.png") -> dict[str, Sampling]:
    model = small_model()
    pixels = torch.rand(1, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(1))
    with record_sampling(model) as samplings:
        model(pixel_values=pixels)
    for path, sampling in samplings.items():
        inside = torch.stack([map.sum((-1, -2)) for map in weights_on_cells(sampling)]).sum(0)
        print(
            f"{path}: {sampling.weights[0, 0].numel()} points a query, {inside.mean():.2f} of their weight inside"
        )
    sampling = samplings["decoder.layers.1.encoder_attn.attn"]
    draw_points(sampling, pixels[0].permute(1, 2, 0), 2, figure)
    print(f"{figure}: the points of object query 2 in the last layer")
    return samplings


if __name__ == "__main__":
    main(*sys.argv[1:2])
