"""Why zero ablation finds an effect in some heads that have a backup, in models with rotary positions.

    python -m circuits.backups --seeds 100 120 --json BACKUPS.json

The head is removed by hand, from the weights of a copy of the model, and the attention of its backup is counted.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

import jarilab

from .families import FAMILIES
from .hosts import HOSTS
from .methods import ROWS
from .planting import PlantedModel, answer_loss, plant

FAMILY = "backup head"
OUTPUT_PROJECTIONS = (".attention.out", ".self_attn.o_proj")


def without_head(planted: PlantedModel, name: str) -> nn.Module:
    """A copy of the model in which the output weights of a head are 0."""
    layer, index = map(int, name[1:].split("H"))
    model = copy.deepcopy(planted.model)
    modules = dict(model.named_modules())
    output: Any = [modules[path] for path in modules if path.endswith(OUTPUT_PROJECTIONS)][layer]
    n_heads = sum(each.startswith(f"L{layer}") for each in planted.names)
    width = output.in_features // n_heads
    output.weight.data[:, index * width : (index + 1) * width] = 0
    return model


@torch.no_grad()
def measure(seed: int) -> dict[str, Any]:
    """The change of the loss without the head, and how many queries of its backup rest, by position."""
    planted = plant(FAMILY, seed)
    heads = {design: name for name, design in planted.names.items()}
    batch = planted.examples(ROWS, 2)
    model = without_head(planted, heads["primary"])
    with jarilab.record(model) as tape:
        changed = answer_loss(batch.forward(model), batch)
    change = float((changed - answer_loss(batch.forward(planted.model), batch)).mean())
    layer, index = map(int, heads["backup"][1:].split("H"))
    rests = tape.weights(tape.sites[layer])[:, index, :, 0] > 0.5
    # The first query has nothing else to attend to, and the one after it has the start token before it.
    counts = rests[:, 2:].sum(0).tolist()
    shared = {"seed": seed, "host": planted.host, "head": heads["primary"]}
    return shared | {"change": change, "rests": counts, "queries": rests[:, 2:].numel()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 20), metavar=("FIRST", "END"))
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hosts = FAMILIES[FAMILY].hosts
    seeds = [seed for seed in range(*options.seeds) if HOSTS[hosts[seed % len(hosts)]].rotary]
    options.json.write_text("[\n" + ",\n".join(json.dumps(measure(seed)) for seed in seeds) + "\n]\n")


if __name__ == "__main__":
    main()
