"""List encodings: what each does, where it acts, its properties, cost and paper."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from jarilab.cli.arguments import Parser, Words

WIDE = 100
HINT = """shift yes: shifting all positions by the same amount changes nothing. where causal: only if
queries never see later keys; self: not in cross-attention. learns: parameters in 2 layers with
d_model 64 and 8 heads. `jarilab encodings NAME` describes one encoding. Options:
rotary:base=500,fraction=0.5; a sum: sinusoidal+alibi."""


def arguments(parser: Parser, words: Words) -> None:
    parser.add_argument(
        "encodings", metavar="SPEC", nargs="*", help="describe these, such as kerple or fire"
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure the time of a training step relative to one without encoding, a second for each",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, with the options of each"
    )


def run(options: argparse.Namespace) -> None:
    from jarilab.cli.terminal import show
    from jarilab.runs.descriptions import describe_encodings, describe_typed_encodings

    chosen = [encoding for text in options.encodings for encoding in describe_typed_encodings(text)]
    encodings = chosen or describe_encodings()
    if options.measure:
        _measure(encodings)
    text = "\n\n".join(map(_in_full, chosen)) if chosen else _catalogue(encodings)
    show(options, {"encodings": encodings}, text)


def _measure(encodings: list[dict[str, Any]]) -> None:
    """Add the cost of each encoding, printing the progress."""
    from jarilab.cli.terminal import say
    from jarilab.laws.costs import cost

    for number, encoding in enumerate(encodings, 1):
        spec = encoding.get("spec", encoding["name"])
        say(f"measuring {spec}, {number} of {len(encodings)}")
        encoding["cost"] = round(cost(spec), 2)


def _catalogue(encodings: list[dict[str, Any]]) -> str:
    """Two lines for each: its facts, and what it does."""
    from jarilab.cli.terminal import table

    has_cost = "cost" in encodings[0]
    head = ["encoding", "axes", "acts in", "where", "shift", "learns", *["cost"] * has_cost]
    rows = [[*head, "paper"], *(_row(encoding) for encoding in encodings)]
    first, *lines = table(rows).splitlines()
    summaries = [_summary(encoding) for encoding in encodings]
    pairs = [f"{line}\n{summary}" for line, summary in zip(lines, summaries, strict=True)]
    return "\n".join([first, *pairs]) + f"\n\n{HINT}"


def _row(encoding: dict[str, Any]) -> list[str]:
    claims = encoding["claims"]
    where = "anywhere" if claims["cross"] else "self"
    return [
        encoding["name"],
        ",".join(map(str, encoding["axes"])),
        ", ".join(encoding["hooks"]) or "-",
        "causal" if claims["causal_only"] else where,
        "yes" if claims["shift_invariant"] else "no",
        f"{encoding['learns']:,}",
        *([f"{encoding['cost']:.2f}"] if "cost" in encoding else []),
        encoding["cited"] or "-",
    ]


def _summary(encoding: dict[str, Any]) -> str:
    return "    " + textwrap.shorten(encoding["what"], WIDE - 4, placeholder=" ...")


def _in_full(encoding: dict[str, Any]) -> str:
    from jarilab.runs.descriptions import CLAIMS, LAYERS, SITE

    name, about = encoding["name"], encoding["about"]
    aliases = f" ({', '.join(encoding['also'])})" if encoding["also"] else ""
    shape = f"{LAYERS} layers with d_model {SITE.d_model} and {SITE.n_heads} heads"
    facts = {
        **({"from": encoding["paper"]} if encoding["paper"] else {}),
        "axes": ", ".join(map(str, encoding["axes"])),
        "acts in": ", ".join(encoding["hooks"]) or "nothing",
        "learns": f"{encoding['learns']:,} parameters in {shape}",
    }
    if "cost" in encoding:
        facts["costs"] = (
            f"{encoding['cost']:.2f} of a training step without encoding, on this machine"
        )
    lines = [f"{name}{aliases}", "", about, ""]
    lines += [_fact(key, value) for key, value in facts.items()]
    lines += ["", "properties:"]
    claims = encoding["claims"]
    shown = [claim for claim in CLAIMS if claim != "keeps_norms" or "rotate" in encoding["hooks"]]
    lines += [f"  {'yes' if claims[claim] else 'no':<3}  {CLAIMS[claim]}" for claim in shown]
    if encoding["options"]:
        lines += ["", "options:", *(_option(option) for option in encoding["options"])]
    lines += ["", f"`jarilab show {name}` draws it; `jarilab laws {name}` checks it."]
    return "\n".join(lines)


def _fact(key: str, value: str) -> str:
    return textwrap.fill(value, WIDE, initial_indent=f"{key:<9}", subsequent_indent=" " * 9)


def _option(option: dict[str, Any]) -> str:
    choices = f" (or {', '.join(map(str, option['choices']))})" if option["choices"] else ""
    text = f"{option['name']}={option['default']}{choices}: {option['meaning']}"
    return textwrap.fill(text, WIDE, initial_indent="  ", subsequent_indent="    ")
