"""The catalogue of encodings: what each is, where it acts, what it claims, costs and is from."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from jarilab.cli.arguments import Parser, Words

WIDE = 100
HINT = """shift yes: moving all positions by the same amount changes nothing. where causal: only where
queries never see later keys; self: not in cross-attention. learns: numbers in 2 layers of width 64
with 8 heads. `jarilab encodings NAME` tells all of one; with options: rotary:base=500,fraction=0.5;
a sum: sinusoidal+alibi."""


def arguments(parser: Parser, words: Words) -> None:
    parser.add_argument(
        "encodings", metavar="SPEC", nargs="*", help="tell all of these, such as kerple or fire"
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure what a training step takes over one without an encoding, here: a second each",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, with what options mean"
    )


def run(options: argparse.Namespace) -> None:
    from jarilab.cli.terminal import show
    from jarilab.runs.catalog import describe_encodings, describe_typed_encodings

    named = [encoding for text in options.encodings for encoding in describe_typed_encodings(text)]
    encodings = named or describe_encodings()
    if options.measure:
        _measure(encodings)
    text = "\n\n".join(map(_in_full, named)) if named else _catalogue(encodings)
    show(options, {"encodings": encodings}, text)


def _measure(encodings: list[dict[str, Any]]) -> None:
    """Add what each costs; on a terminal, say how far it is."""
    from jarilab.cli.terminal import say
    from jarilab.laws.costs import cost

    for number, encoding in enumerate(encodings, 1):
        spec = encoding.get("spec", encoding["name"])
        say(f"measuring {spec}, {number} of {len(encodings)}")
        encoding["cost"] = round(cost(spec), 2)


def _catalogue(encodings: list[dict[str, Any]]) -> str:
    """Two lines for each: the facts, and what it does."""
    from jarilab.cli.terminal import table

    measured = "cost" in encodings[0]
    head = ["encoding", "axes", "acts in", "where", "shift", "learns", *["cost"] * measured]
    rows = [[*head, "paper"], *(_row(encoding) for encoding in encodings)]
    first, *lines = table(rows).splitlines()
    told = [_what(encoding) for encoding in encodings]
    pairs = [f"{line}\n{what}" for line, what in zip(lines, told, strict=True)]
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


def _what(encoding: dict[str, Any]) -> str:
    return "    " + textwrap.shorten(encoding["what"], WIDE - 4, placeholder=" ...")


def _in_full(encoding: dict[str, Any]) -> str:
    """All that is known of one."""
    from jarilab.runs.catalog import CLAIMS, LAYERS, SITE

    name, about = encoding["name"], encoding["about"]
    also = f" ({', '.join(encoding['also'])})" if encoding["also"] else ""
    shape = f"{LAYERS} layers of width {SITE.d_model} with {SITE.n_heads} heads"
    facts = {
        **({"from": encoding["paper"]} if encoding["paper"] else {}),
        "axes": ", ".join(map(str, encoding["axes"])),
        "acts in": ", ".join(encoding["hooks"]) or "nothing",
        "learns": f"{encoding['learns']:,} numbers in {shape}",
    }
    if "cost" in encoding:
        facts["costs"] = f"{encoding['cost']:.2f} of a training step without an encoding, here"
    lines = [f"{name}{also}", "", about, ""]
    lines += [_fact(key, value) for key, value in facts.items()]
    lines += ["", "it claims:"]
    claims = encoding["claims"]
    said = [claim for claim in CLAIMS if claim != "keeps_norms" or "rotate" in encoding["hooks"]]
    lines += [f"  {'yes' if claims[claim] else 'no':<3}  {CLAIMS[claim]}" for claim in said]
    if encoding["options"]:
        lines += ["", "options:", *(_option(option) for option in encoding["options"])]
    lines += ["", f"`jarilab show {name}` draws it; `jarilab laws {name}` tries it."]
    return "\n".join(lines)


def _fact(key: str, value: str) -> str:
    return textwrap.fill(value, WIDE, initial_indent=f"{key:<9}", subsequent_indent=" " * 9)


def _option(option: dict[str, Any]) -> str:
    choices = f" (or {', '.join(map(str, option['choices']))})" if option["choices"] else ""
    text = f"{option['name']}={option['default']}{choices}: {option['meaning']}"
    return textwrap.fill(text, WIDE, initial_indent="  ", subsequent_indent="    ")
