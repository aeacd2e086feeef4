"""Count what each law of whole models says of the small architectures of the tests, as a table.

python -m helpers.law_counts, from tests/
"""

import logging
import sys
import warnings
from collections.abc import Mapping

import torch

from helpers.architectures import MODELS
from jarilab.core.errors import UserError
from jarilab.laws.whole_laws import LAWS, check_model


def small_model(name: str) -> torch.nn.Module:
    """A small model whose attention matters: random weights of transformers are so small that it hardly does."""
    torch.manual_seed(0)
    model, _ = MODELS[name]()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    return model


def table_of(verdicts: Mapping[str, Mapping[str, str]]) -> str:
    """A row for each law: how many models keep it, which break it, of how many it says nothing.

    verdicts: by model, then by law.
    """
    rows = []
    for law in LAWS:
        of_models = {name: by_law[law] for name, by_law in verdicts.items()}
        broken = [name for name, verdict in of_models.items() if verdict == "broken"]
        counts = [sum(verdict == kind for verdict in of_models.values()) for kind in ("holds", "skipped")]
        rows.append([law, f"{counts[0]}", f"{len(broken)}", ", ".join(broken), f"{counts[1]}"])
    lines = [["law", "holds", "broken", "broken by", "says nothing"], [":---", "---:", "---:", ":---", "---:"], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> int:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    verdicts: dict[str, dict[str, str]] = {}
    for name in MODELS:
        if name == "nn.Transformer":
            continue
        try:
            verdicts[name] = {outcome.law: outcome.verdict for outcome in check_model(small_model(name))}
        except UserError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    print(table_of(verdicts), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
