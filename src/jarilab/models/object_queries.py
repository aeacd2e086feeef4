"""The decoder of a detector, which reads an image through object queries (DETR, Carion et al. 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, final

import torch
from torch import Generator, nn

from jarilab.attention.geometry import geometry_of
from jarilab.core.errors import UserError
from jarilab.core.registry import Spec
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import Encoding, Site
from jarilab.encodings.compose import LayerEncodings, layer_specs, part_spec, split_sum
from jarilab.encodings.sums import Sum
from jarilab.models.layers import DecoderLayer, LayerOptions
from jarilab.nn.sublayers import Table
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

QUERIES = "queries"
"""The frame of queries without a position in the image."""

QueryPositions = Literal["boxes", "vectors"]


@final
class QueryDecoder(nn.Module):
    """The layers through which object queries read an image."""

    def __init__(
        self,
        options: LayerOptions,
        n_layers: int,
        specs: tuple[str, str],
        queries: int,
        positions: QueryPositions,
        refinement: bool,
    ):
        super().__init__()
        self.refinement = refinement and positions == "boxes"
        self.encoding = options.encodings(specs[0], n_layers)
        check_axes(self.encoding)
        self.cross_encoding = _between(options, specs[1], n_layers)
        self.layers = nn.ModuleList(DecoderLayer(options) for _ in range(n_layers))
        self.norm = options.last_norm()
        self.content = Table(queries, options.d_model)
        site = self.encoding.by_layer[0].site
        self.anchors = Table(queries, 4) if positions == "boxes" else None
        self.slots = Slots(site, queries) if positions == "vectors" else None

    def forward(
        self,
        memory: Float[Tensor, "B L D"],
        places: Positions,
        keep: Bool[Tensor, "B L"] | None,
        box: nn.Module,
    ) -> list[tuple[Float[Tensor, "B N D"], Float[Tensor, "B N 4"]]]:
        """Return the queries and the logits of their boxes for each layer. `box` moves the boxes."""
        x_BND = self.content(memory.shape[0])
        reference_BN4 = self._first_boxes(x_BND)
        mask = None if keep is None else Mask(keys=keep)
        outputs = []
        for i, layer in enumerate(self.layers):
            q_pos = self._places(reference_BN4, places)
            self_geometry = geometry_of(self._with_slots(self.encoding, i), q_pos, q_pos)
            cross = geometry_of(self._with_slots(self.cross_encoding, i), q_pos, places, mask)
            if i == 0:
                x_BND = self.encoding.embed(x_BND, q_pos)
            x_BND = layer(x_BND, memory, self_geometry, cross)
            normed_BND = self.norm(x_BND)
            moved_BN4 = reference_BN4 + box(normed_BND).float()
            outputs.append((normed_BND, moved_BN4))
            if self.refinement:
                # Each layer answers for its own step only (Deformable DETR, Zhu et al. 2021, appendix A.4).
                reference_BN4 = moved_BN4.detach()
        return outputs

    def _first_boxes(self, x_BND: Float[Tensor, "B N D"]) -> Float[Tensor, "B N 4"]:
        """Return the logits of the queries' first boxes."""
        if self.anchors is None:
            return x_BND.new_zeros(*x_BND.shape[:2], 4)
        return self.anchors(x_BND.shape[0])

    def _places(self, reference_BN4: Float[Tensor, "B N 4"], places: Positions) -> Positions:
        """Return the box centres on the grid of patches, or no positions for queries without boxes."""
        count = reference_BN4.shape[1]
        if self.anchors is None:
            return replace(Positions.nowhere(count, places), frame=QUERIES)
        assert places.extent is not None
        extent = places.extent if places.extent.ndim == 1 else places.extent.unsqueeze(1)
        # Coordinate 0 is the centre of the first patch. A box is x, y, ...; a grid is row, column.
        coordinates = reference_BN4[..., [1, 0]].float().sigmoid() * extent - 0.5
        order_N = torch.arange(count, device=coordinates.device)
        return replace(places, coordinates=coordinates, order=order_N)

    def _with_slots(self, encodings: LayerEncodings, layer: int) -> Encoding:
        encoding = encodings.by_layer[layer]
        return encoding if self.slots is None else Sum([encoding, self.slots])


def _between(options: LayerOptions, spec: str, n_layers: int) -> LayerEncodings:
    """Return the encoding between queries and image. Raises UserError if it works in self-attention only."""
    try:
        encodings = options.encodings(spec, n_layers, cross=True)
    except UserError as error:
        # An encoding that works for no layer of an image has its own message.
        check_axes(options.encodings(spec, n_layers))
        raise UserError(
            f"{error}, and none between queries and image, where there is no input to add to: "
            "--set model.cross_encoding=none"
        ) from None
    check_axes(encodings)
    return encodings


def check_axes(encodings: LayerEncodings) -> None:
    """Raises UserError for an encoding that does not use an image's rows and columns."""
    encodings.check_axes(Positions.grid(1, 1).axes)


def check_fractions(decoder: str, cross: str) -> None:
    """Raises UserError for queries with boxes if an encoding accepts integer positions only."""
    integer_only = {
        "decoder_encoding": _integer_only(decoder),
        "cross_encoding": _integer_only(cross),
    }
    wrong = {name: spec for name, spec in integer_only.items() if spec is not None}
    if not wrong:
        return
    first = next(iter(wrong.values()))
    others = " ".join(f"--set model.{name}=rotary2d" for name in wrong)
    raise UserError(
        f"{first} accepts integer positions only, but object queries lie between patches; keep it for the encoder and "
        f"choose another encoding for the queries, {others}, or give queries no positions, --set "
        "model.query_positions=vectors"
    )


def _integer_only(text: str) -> Spec | None:
    """Return the first encoding of a sum that accepts integer positions only."""
    parts = [part for spec in layer_specs(text) for part in split_sum(spec)]
    for part in parts:
        spec, _ = part_spec(part)
        if getattr(spec.target, "integer_only", False):
            return spec
    return None


@final
class Slots(Encoding):
    """A learned vector for each object query, added wherever queries and keys are computed (DETR, section 3.2)."""

    axes = (1, 2)

    def __init__(self, site: Site, queries: int):
        super().__init__(site)
        self.weight = nn.Parameter(torch.empty(queries, site.d_model))
        self.reset()

    def inject(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return x + self.weight.to(x.dtype) if pos.frame == QUERIES else x

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        nn.init.normal_(parameter, generator=generator)
