"""Exports Vision Transformers as ViT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from jarilab.core.shapes import Tensor
from jarilab.export.equals import (
    ROWS,
    Equivalent,
    activation_of,
    check_options,
    check_stack,
    named_weights,
    refuse,
)
from jarilab.huggingface.families import VIT
from jarilab.positions.patches import Images


def of_vision(model: Any) -> Equivalent:
    """The equivalent of a Vision Transformer. Raises UserError for options that transformers lacks."""
    stack, width = model.encoder, model.embedding.out_features
    layers = list(stack.layers)
    check_options(model)
    check_stack(layers, "pre")
    if model.pool != "class" or len(model.nowhere.weight) > 1:
        refuse(
            "it has registers, or reads the mean of the patches",
            "--set model.pool=class, without registers",
        )
    encoding = stack.encoding.by_layer[0]
    if not encoding.hooks <= {"embed"}:
        refuse(
            f"{stack.encoding.spec} acts inside attention", "--encoding sinusoidal2d or learned2d"
        )
    channels, height, wide = model.shape
    places = model.places(Images(torch.zeros(1, *model.shape)))
    zeros_1LD = torch.zeros(1, places.length, width)
    weight = model.embedding.weight.unflatten(1, (channels, model.patch_size, model.patch_size))
    weights = {
        **named_weights(model, VIT),
        "vit.embeddings.cls_token": model.nowhere.weight.unsqueeze(0),
        "vit.embeddings.position_embeddings": encoding.embed(zeros_1LD, places),
        "vit.embeddings.patch_embeddings.projection.weight": weight,
    }
    settings = {
        "hidden_size": width,
        "num_hidden_layers": len(layers),
        "num_attention_heads": layers[0].attention.site.n_heads,
        "intermediate_size": layers[0].feed_forward.up.out_features,
        "hidden_act": activation_of(layers[0]),
        "layer_norm_eps": stack.norm.eps,
        "image_size": (height, wide),
        "patch_size": model.patch_size,
        "num_channels": channels,
        "num_labels": model.generator.out_features,
    }

    def compared(other: Any) -> Iterator[tuple[Tensor, Tensor]]:
        pixels = torch.randn(ROWS, *model.shape, generator=torch.Generator().manual_seed(1))
        yield other(pixels).logits, model(pixels)

    return Equivalent("ViTForImageClassification", "ViTConfig", settings, weights, compared)
