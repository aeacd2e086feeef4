"""Short names for the attentions of any model: `encoder.3`, `decoder.3.self`, `decoder.3.cross`.

A name is made of the path of the module that computed the attention: the stack it is in, its numbers, and what it looks
at. Where that would name two modules alike, more of the path is kept; a name never depends on what ran before.
"""

from __future__ import annotations

from torch import nn

CROSS = ("cross", "encdec", "encoder_attn", "encoder_attention", "multihead_attn", "context")
"""What is in the name of an attention to another sequence."""
STACKS = ("encoder", "decoder")


def names_of(model: nn.Module, module: nn.Module, backward: bool, cross: bool) -> dict[str, str]:
    """The site of each module of the same class, by path; how the first of them was heard decides what a stack without
    a name is. backward: it looks back alone. cross: it looks at another sequence."""
    alike = [path for path, each in model.named_modules() if type(each) is type(module)]
    kind = "decoder" if backward or cross else "encoder"
    path_of_module = next(path for path, each in model.named_modules() if each is module)
    heard_cross = {path_of_module} if cross else set()
    for numbers, context in ((1, False), (9, False), (9, True)):
        names = {
            path: _name(path, kind, path in heard_cross, numbers, context=context) for path in alike
        }
        if len(set(names.values())) == len(names):
            return names
    return {path: path for path in alike}


def _name(path: str, kind: str, cross: bool, numbers: int, *, context: bool) -> str:
    """context: with the words of the path that say nothing of stack and layer."""
    words = path.split(".")
    if not any(word.isdecimal() or _stack(word) for word in words):
        return path or "attention"  # of no stack: what pools an image, or an attention alone
    stack = next((found for word in reversed(words) if (found := _stack(word))), kind)
    layers = [word for word in words if word.isdecimal()][:numbers]
    cross = cross or any(part in words[-1].lower() for part in CROSS)
    looks = ["self"] if stack == "decoder" else []
    looks = ["cross"] if cross else looks
    before = [word for word in words[:-1] if not word.isdecimal()] if context else []
    before = [word for word in before if _stack(word) != stack]
    return ".".join([*before, stack, *layers, *looks])


def _stack(word: str) -> str | None:
    """The stack that a word of a path names: `text_encoder`, `decoder`."""
    lower = word.lower()
    if any(part in lower for part in CROSS):
        return None
    return next((stack for stack in STACKS if lower.endswith(stack)), None)
