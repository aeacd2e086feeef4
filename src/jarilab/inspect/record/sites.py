"""Which attentions a model has, where each of them stands, and whose tokens look at whose there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from jarilab.attention.definition import AttentionCall
from jarilab.attention.module import Attention, AttentionKernel
from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.inspect.record.calls import allowed_links

Inputs = tuple[Tensor, Tensor]
"""What a multi-head attention was given: its queries' side and its keys'."""

Kind = Literal["encoder", "decoder", "cross"]
Sequences = Literal["source", "target"]

SEQUENCES: dict[Kind, tuple[Sequences, Sequences]] = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
"""Whose tokens the queries and the keys of each kind are."""


@dataclass(frozen=True)
class AttentionSite:
    """One attention of a recorded model, as data.

    Not `jarilab.encodings.base.Site`, which tells an encoding what it is built for: this tells a reader what a map is
    of, and is read from the calls that went by. Nothing is ever read from its name.

    name: what people type, such as `decoder.1.cross`. kind: `encoder`, a sequence that looks at all of itself;
    `decoder`, one that is written and looks at what is written already; `cross`, one that looks at another. layer: of
    its stack, counted from 0. queries, keys: whose tokens they are, `source` for what is read and `target` for what is
    written.
    """

    name: str
    kind: Kind
    layer: int
    queries: str
    keys: str


@dataclass(frozen=True, eq=False)
class Placed:
    """An attention where it stands in a model.

    path: of `attend` in the model. above: the modules it is part of, the model first; the last of them owns it.
    attend: None for an attention of another library, of which `path` is the module that computed it.
    """

    path: str
    attend: AttentionKernel | None
    above: tuple[nn.Module, ...]

    def listen(self, hook: Any) -> Any:
        """Let a forward hook hear its calls. Raises UserError for an attention of another library."""
        if self.attend is None:
            raise UserError(
                f"{self.path} is no attention of jari, so that no hook can be set there"
            )
        return self.attend.register_forward_hook(hook)

    @property
    def owner(self) -> nn.Module:
        """The multi-head attention, or a recurrent decoder's."""
        return self.above[-1]

    @property
    def stack(self) -> nn.Module | None:
        """The stack of layers that it is in; None for an attention in none."""
        for module, part in zip(self.above, self.above[1:], strict=False):
            if part is layers_of(module):
                return module
        return None

    @property
    def layer(self) -> int:
        """Its number in its stack, or else in the last list of modules on the way to it; 0 where there is none."""
        number, layers = 0, None if self.stack is None else layers_of(self.stack)
        for module, name in zip(self.above, self.path.split("."), strict=False):
            if isinstance(module, nn.ModuleList | nn.Sequential):
                number = [child for child, _ in module.named_children()].index(name)
            if module is layers:
                break
        return number


def layers_of(module: nn.Module) -> nn.ModuleList | None:
    """The layers of a stack; None of what is no stack."""
    layers = getattr(module, "layers", None)
    return layers if isinstance(layers, nn.ModuleList) and len(layers) else None


def attentions_of(model: nn.Module) -> dict[str, Placed]:
    """All attentions of a model, by the name of their site."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, AttentionKernel):
            found[module.site or site_name(path)] = Placed(path, module, _above(model, path))
    return found


def heard_at(model: nn.Module, path: str) -> Placed:
    """Where an attention of another library stands: the module that computed it owns it."""
    return Placed(path, None, (*_above(model, path), model.get_submodule(path)))


def _above(model: nn.Module, path: str) -> tuple[nn.Module, ...]:
    above = [model]
    for name in path.split(".")[:-1]:
        above.append(above[-1].get_submodule(name))
    return tuple(above)


def site_name(path: str) -> str:
    """`decoder.layers.1.cross_attention.attend` -> `decoder.1.cross`."""
    parts = [part.removesuffix("_attention") for part in path.split(".")]
    shown = [part for part in parts if part not in ("layers", "attention", "attend")]
    return ".".join(shown) or "attention"


def site_of(name: str, placed: Placed, call: AttentionCall, inputs: Inputs | None) -> AttentionSite:
    """What one of its calls says of a site. inputs: what queries and keys were made of, where that is known."""
    kind: Kind = "encoder"
    if _reads_another(call, inputs):
        kind = "cross"
    elif _reads_what_came_before(call, placed.owner):
        kind = "decoder"
    queries, keys = SEQUENCES[kind]
    return AttentionSite(name, kind, placed.layer, queries, keys)


def _reads_another(call: AttentionCall, inputs: Inputs | None) -> bool:
    geometry = call.geometry
    if geometry.encoding.site.cross or geometry.q_pos.frame != geometry.k_pos.frame:
        return True
    # The first tokens of a sequence may look at all of it: a part of the same memory.
    return inputs is not None and not share_memory(*inputs)


def share_memory(x: Tensor, y: Tensor) -> bool:
    """Whether both are, or are parts of, the same numbers in memory."""
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def _reads_what_came_before(call: AttentionCall, owner: nn.Module) -> bool:
    """By what the encoding or the attention was built for, or else by the mask. Object queries are written, too, and
    see each other without a mask: their attention was built as a decoder's."""
    geometry = call.geometry
    built_for = isinstance(owner, Attention) and owner.site.causal
    if geometry.encoding.site.causal or built_for or geometry.causal:
        return True
    allowed_QK = allowed_links(call)
    later_QK = geometry.k_pos.order > geometry.q_pos.order.unsqueeze(-1)
    # Keys that no query sees are padding, and say nothing.
    later_QK = later_QK & allowed_QK.any(-2, keepdim=True)
    return bool(later_QK.any()) and not bool((later_QK & allowed_QK).any())
