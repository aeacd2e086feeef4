"""Names of options in other programs, to suggest those of jarilab in the error of an unknown option."""

from __future__ import annotations

from collections.abc import Collection

D_MODEL, N_HEADS, D_FF = ("--d-model",), ("--n-heads",), ("--d-ff",)
N_LAYERS = ("--n-layers", "--n-encoder-layers", "--n-decoder-layers")
BUDGET = ("--examples", "--epochs")

ALIASES: dict[str, tuple[str, ...]] = {
    "batch": ("--batch-size",),
    "beam": ("--beam-size",),
    "beams": ("--beam-size",),
    "block-size": ("--context-length",),
    "context": ("--context-length",),
    "decoder-layers": N_LAYERS[2:],
    "depth": N_LAYERS,
    "dim": D_MODEL,
    "dim-feedforward": D_FF,
    "embed-dim": D_MODEL,
    "encoder-layers": N_LAYERS[1:2],
    "ffn-dim": D_FF,
    "head-dim": ("--d-head",),
    "head-width": ("--d-head",),
    "heads": N_HEADS,
    "hidden": D_FF,
    "hidden-size": D_MODEL,
    "intermediate-size": D_FF,
    "key-value-heads": ("--n-kv-heads",),
    "layers": N_LAYERS,
    "learning-rate": ("--lr",),
    "max-length": ("--max-new-tokens",),
    "max-steps": BUDGET,
    "n-embd": D_MODEL,
    "n-epochs": ("--epochs",),
    "n-head": N_HEADS,
    "n-layer": N_LAYERS,
    "n-layers": N_LAYERS,
    "num-beams": ("--beam-size",),
    "num-epochs": ("--epochs",),
    "num-heads": N_HEADS,
    "num-kv-heads": ("--n-kv-heads",),
    "num-layers": N_LAYERS,
    "optim": ("--optimizer",),
    "output": ("--out",),
    "output-dir": ("--out",),
    "patch": ("--patch-size",),
    "pe": ("--encoding",),
    "position-encoding": ("--encoding",),
    "positional-encoding": ("--encoding",),
    "samples": ("--count",),
    "steps": BUDGET,
    "tokens": ("--max-new-tokens",),
    "vocabulary": ("--vocab-size",),
    "warm-up": ("--warmup",),
    "warmup-ratio": ("--warmup",),
    "wd": ("--weight-decay",),
    "width": D_MODEL,
}

DEVICES = dict.fromkeys(("gpu", "cuda"), "--device cuda")


def suggestions(flag: str, flags: Collection[str]) -> list[str]:
    """The flags among `flags` that may be meant by `flag`, which is none of them."""
    name = flag.removeprefix("--").partition("=")[0].replace("_", "-")
    if name in DEVICES and "--device" in flags:
        return [DEVICES[name]]
    # An option of both task and model has the section in its flag.
    spellings = [f"--{name}", f"--task-{name}", f"--model-{name}"]
    same = [spelling for spelling in spellings if spelling in flags]
    return same or [candidate for candidate in ALIASES.get(name, ()) if candidate in flags]
