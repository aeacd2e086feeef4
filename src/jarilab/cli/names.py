"""Names that other programs give to options of this one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from jarilab.core.errors import UserError

FIELD: dict[str, tuple[str, ...]] = {
    "batch-size": ("batch",),
    "beam-size": ("beam",),
    "beams": ("beam",),
    "block-size": ("context",),
    "context-length": ("context",),
    "d-ff": ("hidden",),
    "d-model": ("width",),
    "depth": ("layers", "encoder-layers", "decoder-layers"),
    "dim": ("width",),
    "dim-feedforward": ("hidden",),
    "embed-dim": ("width",),
    "hidden-size": ("width",),
    "layers": ("encoder-layers", "decoder-layers"),
    "lr": ("learning-rate",),
    "max-new-tokens": ("tokens",),
    "max-steps": ("examples", "epochs"),
    "n-embd": ("width",),
    "n-epochs": ("epochs",),
    "n-heads": ("heads",),
    "n-layers": ("layers", "encoder-layers", "decoder-layers"),
    "num-beams": ("beam",),
    "num-epochs": ("epochs",),
    "num-heads": ("heads",),
    "num-layers": ("layers", "encoder-layers", "decoder-layers"),
    "optim": ("optimizer",),
    "output": ("out",),
    "output-dir": ("out",),
    "patch-size": ("patch",),
    "pe": ("encoding",),
    "position-encoding": ("encoding",),
    "positional-encoding": ("encoding",),
    "samples": ("count",),
    "steps": ("examples", "epochs"),
    "vocab-size": ("vocabulary",),
    "warmup": ("warm-up",),
    "wd": ("weight-decay",),
}
"""Options as other programs call them, and what they may be here."""

ABSENT = dict.fromkeys(("gpu", "gpus", "cuda"), "a GPU is named by --device cuda")
"""Options that there are nowhere in jari, and why."""


def current(
    words: Sequence[str], flags: Collection[str], say: Callable[[str], None], help_command: str
) -> list[str]:
    """The words of a command with each flag by its name of here; one line is said for each that had another.

    Raises UserError for a flag that may mean several, and for one that is absent with a reason.
    """
    end = list(words).index("--") if "--" in words else len(words)
    return [
        word if number >= end else _current(word, flags, say, help_command)
        for number, word in enumerate(words)
    ]


def _current(
    word: str,
    flags: Collection[str],
    say: Callable[[str], None],
    help_command: str,
) -> str:
    flag, equals, value = word.partition("=")
    if not flag.startswith("--") or flag in flags:
        return word
    name = flag[2:].replace("_", "-")
    if name in ABSENT:
        raise UserError(f"{flag}: {ABSENT[name]}; omit {flag}; see `{help_command}`")
    there = [f"--{one}" for one in FIELD.get(name, ()) if f"--{one}" in flags]
    if len(there) > 1:
        raise UserError(f"{flag} may mean {' or '.join(there)}: give one; see `{help_command}`")
    if not there:
        return word
    say(f"{flag} is called {there[0]} here")
    return f"{there[0]}{equals}{value}"
