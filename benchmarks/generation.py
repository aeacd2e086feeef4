"""How fast does a language model write one text, token after token, beside Hugging Face's GPT-2 of equal shape?

    pip install transformers
    python benchmarks/generation.py

Greedy, one row, with caches, one thread, random weights, float32; the end token is none of the vocabulary, so that both
write --tokens. small: 4 layers of width 128, 4 heads, 65 characters, nanoGPT's shape for a CPU. gpt2: 12 layers of
width 768, 12 heads, 50,257 tokens, where reading the weights takes the time.

Measured 2026-11-24 on one core of an AMD EPYC that others used too, 9 and 3 rounds, --tokens 40 for the second: small
969 tokens a second, GPT-2 406; gpt2 23 and 24.

Tokens per CPU-second are medians of interleaved rounds, ratios are taken within a round.
"""

from __future__ import annotations

import importlib
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import steps
import timing
import torch

from jarilab.models.decoder import LanguageModel, positions_after
from jarilab.models.decoding import greedy
from jarilab.positions.coordinates import Tokens
from jarilab.training.determinism import deterministic

PROMPT, FIRST = 5, 2


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    vocabulary: int


SHAPES = {"small": Shape(4, 128, 4, 65), "gpt2": Shape(12, 768, 12, 50257)}


def ours(shape: Shape, tokens: int) -> Callable[[], object]:
    model = LanguageModel(
        shape.vocabulary, n_layers=shape.layers, d_model=shape.width, n_heads=shape.heads, d_ff=4 * shape.width,
        encoding="learned", activation="gelu_tanh",
    ).eval()  # fmt: skip
    prompt = Tokens.of(torch.tensor([[PROMPT]]), "target")

    def write() -> int:
        written = greedy(model, prompt, first=FIRST, end=-1, padding=0, longest=tokens, places=positions_after(prompt))
        return written.ids.shape[1]

    return write


def theirs(shape: Shape, tokens: int) -> Callable[[], object]:
    library: Any = importlib.import_module("transformers")
    config = library.GPT2Config(
        vocab_size=shape.vocabulary, n_layer=shape.layers, n_embd=shape.width, n_head=shape.heads,
        bos_token_id=FIRST, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = library.GPT2LMHeadModel(config).eval()
    prompt = torch.tensor([[PROMPT, FIRST]])

    def write() -> int:
        ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=tokens)
        return ids.shape[1] - prompt.shape[1]

    return steps.not_deterministic(write)


def main() -> None:
    parser = timing.arguments(__doc__, rounds=7)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--tokens", type=int, default=150, help="written (default: %(default)s)")
    given = parser.parse_args()
    deterministic(1)
    table = timing.Table(given.json)
    for name in given.shapes:
        contenders = {"jari": ours(SHAPES[name], given.tokens)}
        try:
            contenders["GPT-2 (transformers)"] = theirs(SHAPES[name], given.tokens)
        except ImportError as error:
            print(f"transformers is left out: {error}", file=sys.stderr)
        for contender, write in contenders.items():
            wrote = write()
            assert wrote == given.tokens, (contender, wrote)
        times = timing.measure(contenders, given.rounds)
        for contender in contenders:
            table.add(
                shape=name,
                contender=contender,
                tokens_per_s=round(given.tokens / statistics.median(times[contender])),
                time_over_jari=timing.ratio(times, contender, "jari"),
            )
    table.close()


if __name__ == "__main__":
    main()
