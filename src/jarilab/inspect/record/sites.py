"""The attention layers of a model: where each one stands, what it is called, and which sequences it relates."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from jarilab.attention.definition import AttentionCall
from jarilab.attention.module import Attention, AttentionKernel
from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.inspect.record.calls import allowed_links
from jarilab.inspect.record.foreign_call import ForeignCall, Relation
from jarilab.inspect.record.layout import share_memory
from jarilab.inspect.record.sources import Sources

Inputs = tuple[Tensor, Tensor]
"""What queries and what keys of a multi-head attention are projected from."""

Kind = Literal["encoder", "decoder", "cross", "unknown"]
Sequences = Literal["source", "target"]

SEQUENCES: dict[Kind, tuple[Sequences, Sequences]] = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
    "unknown": ("target", "source"),
}
"""The sequences of queries and keys, by kind."""


@dataclass(frozen=True)
class AttentionSite:
    """An attention layer of a recorded model: its kind, its depth, and the sequences of queries and keys.

    name: for example `decoder.1.cross`. kind: `encoder` attends within the sequence that is read, `decoder` within the
    one that is written, `cross` to another sequence; `unknown` if the recorder could not follow the tensors.
    layer: index in its stack, from 0. queries, keys: `source`, the sequence that is read, or `target`, the one that is
    written. path: of the module that attends. relation: whether queries and keys are of one sequence.
    causal: whether the mask hides all later keys; None if positions are not known. placed: whether the positions of
    queries and keys are known. note: what is special, such as `learned queries` or `pooled keys`; empty otherwise.
    folded: the size of an axis that has batch and heads in an unknown order, else 0.
    """

    # `jarilab.encodings.base.Site` is what an encoding is built for. This one is read from recorded calls, never from
    # the name.

    name: str
    kind: Kind
    layer: int
    queries: str
    keys: str
    path: str = field(default="", compare=False)
    relation: Relation = field(default="self", compare=False)
    causal: bool | None = field(default=None, compare=False)
    placed: bool = field(default=True, compare=False)
    note: str = field(default="", compare=False)
    folded: int = field(default=0, compare=False)

    @property
    def short(self) -> str:
        """The layer as papers write it: `L3`; head 1 of it is `L3H1`."""
        return f"L{self.layer}"


@dataclass(frozen=True, eq=False)
class Placed:
    """An attention layer in its model.

    path: of `attend` in the model. above: the modules that contain it, the model first and its owner last.
    attend: None for another library; `path` is then that of the module that attends.
    """

    path: str
    attend: AttentionKernel | None
    above: tuple[nn.Module, ...]

    def add_hook(self, hook: Any) -> Any:
        """Register a forward hook on `attend`. Raises UserError for an attention of another library."""
        if self.attend is None:
            raise UserError(
                f"expected an attention layer of jarilab to hook, got {self.path} of another library; use "
                "jarilab.record, which records it without hooks"
            )
        return self.attend.register_forward_hook(hook)

    @property
    def owner(self) -> nn.Module:
        """The multi-head attention, or the attention of a recurrent decoder."""
        return self.above[-1]

    @property
    def stack(self) -> nn.Module | None:
        """The stack of layers that contains it; None if there is none."""
        for module, part in zip(self.above, self.above[1:], strict=False):
            if part is layers_of(module):
                return module
        return None

    @property
    def layer(self) -> int:
        """The index in its stack, or else in the innermost list of modules that contains it; 0 without either."""
        index, layers = 0, None if self.stack is None else layers_of(self.stack)
        in_equal = False
        parts = self.path.split(".")
        for depth, (module, name) in enumerate(zip(self.above, parts, strict=False)):
            if isinstance(module, nn.ModuleList | nn.Sequential):
                # T5 lists the parts of a layer, too, which are of different classes.
                is_equal = len({type(child) for child in module.children()}) == 1
                # A layer may list its heads, each a module that attends.
                is_head = depth == len(parts) - 1 and isinstance(module, nn.ModuleList)
                if not in_equal or (is_equal and not is_head):
                    index = [child for child, _ in module.named_children()].index(name)
                in_equal |= is_equal
            if module is layers:
                break
        return index


def layers_of(module: nn.Module) -> nn.ModuleList | None:
    """The layers of a stack; None if the module is no stack."""
    layers = getattr(module, "layers", None)
    return layers if isinstance(layers, nn.ModuleList) and len(layers) else None


def attentions_of(model: nn.Module) -> dict[str, Placed]:
    """The attention layers of jarilab in a model, by the name of their site."""
    attentions = {}
    for path, module in model.named_modules():
        if isinstance(module, AttentionKernel):
            attentions[module.site or site_name(path)] = Placed(path, module, _above(model, path))
    return attentions


def attends_besides(model: nn.Module) -> bool:
    """Whether modules of other libraries, which may attend, stand beside the attentions of jarilab."""
    libraries = {type(module).__module__ for module in model.modules()}
    has_others = any(not each.startswith(("jarilab.", "torch.nn.")) for each in libraries)
    return has_others or any(isinstance(each, nn.MultiheadAttention) for each in model.modules())


def is_of_jarilab(model: nn.Module, path: str) -> bool:
    """Whether the module at `path` is an attention of jarilab or a part of one."""
    above = foreign_attention(model, path).above
    return any(isinstance(module, AttentionKernel | Attention) for module in above)


def foreign_attention(model: nn.Module, path: str) -> Placed:
    """An attention of another library; the module that attends is its owner."""
    return Placed(path, None, (*_above(model, path), model.get_submodule(path)))


def _above(model: nn.Module, path: str) -> tuple[nn.Module, ...]:
    above = [model]
    for name in path.split(".")[:-1]:
        above.append(above[-1].get_submodule(name))
    return tuple(above)


def site_of(name: str, placed: Placed, call: AttentionCall, inputs: Inputs | None) -> AttentionSite:
    """The site of one of its calls. inputs: what queries and keys are projected from, if known."""
    geometry, owner = call.geometry, placed.owner
    is_cross = geometry.encoding.site.cross or geometry.q_pos.frame != geometry.k_pos.frame
    # Queries may be the first tokens of the sequence of the keys: a part of the same memory.
    is_cross = is_cross or (inputs is not None and not share_memory(*inputs))
    hides_later_keys = not is_cross and _hides_later_keys(call)
    # Object queries attend to each other without a mask, but their attention is built as a decoder's.
    is_built_causal = isinstance(owner, Attention) and owner.site.causal
    is_built_causal = is_built_causal or geometry.encoding.site.causal or geometry.causal
    kind: Kind = "decoder" if hides_later_keys or is_built_causal else "encoder"
    kind, relation = ("cross", "cross") if is_cross else (kind, "self")
    queries, keys = SEQUENCES[kind]
    return AttentionSite(
        name, kind, placed.layer, queries, keys, placed.path, relation, causal=hides_later_keys
    )


def foreign_site(
    name: str, placed: Placed, call: ForeignCall, reading: Collection[Sources]
) -> AttentionSite:
    """The site of a call of another library. reading: sources of queries that read another sequence."""
    facts = call.facts
    causal = call.looks_back_only()
    kind: Kind = "encoder"
    if facts.relation != "self":
        kind = facts.relation
    elif causal or facts.rows in reading:
        kind = "decoder"
    return AttentionSite(
        name,
        kind,
        placed.layer,
        *SEQUENCES[kind],
        placed.path,
        facts.relation,
        causal=causal if call.placed else None,
        placed=call.placed,
        note=facts.note,
        folded=facts.folded,
    )


def _hides_later_keys(call: AttentionCall) -> bool:
    geometry = call.geometry
    allowed_QK = allowed_links(call)
    later_QK = geometry.k_pos.order > geometry.q_pos.order.unsqueeze(-1)
    # Keys that no query attends to are padding.
    later_QK = later_QK & allowed_QK.any(-2, keepdim=True)
    return bool(later_QK.any()) and not bool((later_QK & allowed_QK).any())


# Names --------------------------------------------------------------------------------------------------------------


def site_name(path: str) -> str:
    """The name of an attention of jarilab: `decoder.layers.1.cross_attention.attend` -> `decoder.1.cross`."""
    parts = [part.removesuffix("_attention") for part in path.split(".")]
    shown = [part for part in parts if part not in ("layers", "attention", "attend")]
    return ".".join(shown) or "attention"


CROSS = ("cross", "encdec", "encoder_attn", "encoder_attention", "multihead_attn", "context")
"""Parts of names that libraries give to cross-attention."""
STACKS = ("encoder", "decoder")


def foreign_site_numbers(model: nn.Module, module: nn.Module) -> tuple[int, bool] | None:
    """How many numbers of their paths, and whether their other words, tell modules of the same class apart.

    None if these do not suffice: their sites are then named by the whole path.
    """
    paths = [path for path, other in model.named_modules() if type(other) is type(module)]
    for numbers, context in ((1, False), (9, False), (9, True)):
        names = {
            foreign_site_name(path, lambda: None, False, numbers, context=context) for path in paths
        }
        if len(names) == len(paths):
            return numbers, context
    return None


def foreign_site_name(
    path: str, is_decoder: Callable[[], bool | None], is_cross: bool, numbers: int, *, context: bool
) -> str:
    """The site of a module: `encoder.3`, `decoder.3.self`, `decoder.3.cross`.

    is_decoder: returns whether it is causal or reads another sequence; None before it has run. It decides the stack
        where the path names none or both.
    numbers: how many numbers of the path are used. context: whether its other words are.
    """
    words = path.split(".")
    stacks = {stack for word in words if (stack := _stack_of(word))}
    if not stacks and not any(word.isdecimal() for word in words):
        return path or "attention"  # in no stack: pools an image, or is the whole model
    if len(stacks) == 1:
        (stack,) = stacks
    else:
        # `decoder.bert.encoder.layer.0`: a decoder that was built from an encoder.
        decides = is_decoder()
        stack = "decoder" if decides or (decides is None and stacks) else "encoder"
    layers = [word for word in words if word.isdecimal()][:numbers]
    is_cross = is_cross or any(part in words[-1].lower() for part in CROSS)
    suffix = ["self"] if stack == "decoder" else []
    suffix = ["cross"] if is_cross else suffix
    prefix = [word for word in words[:-1] if not word.isdecimal()] if context else []
    prefix = [word for word in prefix if _stack_of(word) != stack]
    return ".".join([*prefix, stack, *layers, *suffix])


def _stack_of(word: str) -> str | None:
    """The stack that a word of a path names: `text_encoder` -> `encoder`."""
    lower = word.lower()
    if any(part in lower for part in CROSS):
        return None
    return next((stack for stack in STACKS if lower.endswith(stack)), None)
