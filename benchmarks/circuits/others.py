"""The same questions to TransformerLens, where it has the method: planted models in GPT-2 alone.

    python -m circuits.others --seeds 100 120 --json OTHERS.json

TransformerLens gives numbers without intervals and no rule for a name. Here a head has the role whose detection score
is largest and at least 0.5, and an effect is named beyond the threshold of `scoring`.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from .families import FAMILIES
from .methods import PAIRS, contributions_of, patch_pairs
from .planting import PlantedModel, plant

PATTERNS = {"previous": "previous_token_head", "same token": "duplicate_token_head", "induction": "induction_head"}
MIN_SCORE = 0.5


def bridge_of(planted: PlantedModel) -> Any:
    """The model as TransformerLens runs it, with norms folded into the weights."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    source = importlib.import_module("transformer_lens.model_bridge.sources.transformers")
    names = {name: token for token, name in enumerate(planted.token_names(range(planted.start + 1)))}
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<s>")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(names, unk_token="<s>")), **special
    )
    with tempfile.TemporaryDirectory() as folder:
        fast.save_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = copy.deepcopy(planted.model)
        bridge = source.boot("gpt2", hf_model=model, tokenizer=tokenizer, dtype=torch.float64)
    bridge.enable_compatibility_mode()
    return bridge


Values = dict[str, float]


@torch.no_grad()
def effects_of(bridge: Any, planted: PlantedModel) -> dict[str, Values]:
    """Denoising and direct contribution of each head by TransformerLens; nothing without pairs."""
    pairs = planted.pairs(PAIRS)
    if not pairs:
        return {}
    patching = importlib.import_module("transformer_lens.patching")
    clean, corrupt = (torch.tensor([getattr(pair, side).tolist() for pair in pairs]) for side in ("clean", "corrupt"))
    answers, position = torch.tensor([pair.answer for pair in pairs]), pairs[0].position

    def metric(logits: torch.Tensor) -> torch.Tensor:
        read = logits[:, position]
        return (read.gather(1, answers[:, None])[:, 0] - read.mean(1)).mean()

    logits, cache = bridge.run_with_cache(clean)
    best, worst = metric(logits), metric(bridge(corrupt))
    patched = patching.get_act_patch_attn_head_out_all_pos(bridge, corrupt, cache, metric)
    stack = cache.apply_ln_to_stack(cache.stack_head_results(layer=-1, pos_slice=position), pos_slice=position)
    direction = bridge.W_U[:, answers] - bridge.W_U.mean(1, keepdim=True)
    values = torch.einsum("cbd,db->c", stack, direction) / len(pairs)
    direct = values[: patched.numel()].view(patched.shape)
    return {"denoising": _by_head((patched - worst) / (best - worst)), "contribution": _by_head(direct)}


def effects_of_jarilab(planted: PlantedModel) -> dict[str, Values]:
    """The same numbers by jarilab."""
    rows = [row for row in patch_pairs(planted) if row["direction"] == "denoising"]
    denoising = {row["part"]: row["fraction"] for row in rows if row["metric"] == "logit over mean"}
    return {
        "denoising": denoising,
        "contribution": {row["part"]: row["contribution"] for row in contributions_of(planted)},
    }


def measure_others(planted: PlantedModel) -> dict[str, Any]:
    """What TransformerLens measures, by method and head, and its largest differences from jarilab's numbers."""
    bridge = bridge_of(planted)
    measured: dict[str, dict[str, Any]] = {"roles": _roles(bridge, planted)}
    gaps = {}
    effects = effects_of(bridge, planted)
    same = effects_of_jarilab(planted) if effects else {}
    for method, values in effects.items():
        # A number without an interval.
        measured[method] = {head: [round(value, 4)] * 3 for head, value in values.items()}
        gaps[method] = max(abs(value - same[method][head]) for head, value in values.items())
    return {"measured": measured, "gaps": gaps}


def _by_head(table: Any) -> Values:
    """Values `(L, H)` by the head's name."""
    return {f"L{layer}H{index}": float(each) for layer, row in enumerate(table) for index, each in enumerate(row)}


@torch.no_grad()
def _roles(bridge: Any, planted: PlantedModel) -> dict[str, str]:
    """The role whose mean detection score over examples is largest, if that is large enough."""
    detector = importlib.import_module("transformer_lens.head_detector")
    totals: dict[str, torch.Tensor] = {}
    rows = planted.examples(PAIRS).ids["target"][:, :-1]  # shorter than the context, as detect_head wants it
    for ids in rows:
        text = " ".join(planted.token_names(ids[1:].tolist()))
        bridge.to_tokens = lambda text, ids=ids: ids[None]
        for role, pattern in PATTERNS.items():
            totals[role] = totals.get(role, 0.0) + detector.detect_head(bridge, text, pattern) / len(rows)
    roles = {}
    for head in _by_head(totals["previous"]):
        layer, index = map(int, head[1:].split("H"))
        best = max(totals, key=lambda role: float(totals[role][layer, index]))
        roles[head] = best if totals[best][layer, index] >= MIN_SCORE else "no simple pattern"
    return roles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 20), metavar=("FIRST", "END"))
    parser.add_argument("--only", nargs="+", choices=list(FAMILIES), default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    for family in options.only:
        hosts = FAMILIES[family].hosts
        for seed in range(*options.seeds):
            if hosts[seed % len(hosts)] == "gpt2":
                planted = plant(family, seed)
                record = {"family": family, "host": "gpt2", "seed": seed, "facts": planted.circuit.facts}
                record |= {"names": planted.names, "errors": {}, **measure_others(planted)}
                records.append(record)
                options.json.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
                print(f"{family}, seed {seed}", flush=True)


if __name__ == "__main__":
    main()
