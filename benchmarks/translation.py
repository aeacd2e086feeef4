"""How fast does jarilab train and write translations, beside other libraries, and what do encodings cost there?

    pip install 'jarilab[ctranslate2]' transformers x-transformers
    pip install --no-deps joeynmt && pip install importlib_metadata tensorboard sentencepiece subword-nmt
    python benchmarks/translation.py            all of it; what is not installed is left out

train: target and source tokens per CPU-second, padding not counted, of whole training steps. All models have 3+3
layers, width 256, 8 heads, a feed-forward of 1,024, one vocabulary of 8,000 and one matrix for both embeddings and the
readout; dropout 0.2, label smoothing 0.1, clipping at 1, fused AdamW (jari also with Muon, its default); the same
batches of at most --tokens tokens, of sentences as long as those of Multi30k. In float32, and in bfloat16 by autocast.
The peers run with the attention they choose themselves, x-transformers with its fused one, and need not be
deterministic.

encodings: the same step of jari under other encodings, over sinusoidal.

decode: sentences per CPU-second by a beam of 5 over batches of 32, in float32 and bfloat16, in evaluation mode. The
end token is forbidden until --length tokens are written, so that all do equal work. CTranslate2 runs jari's weights,
exported; Marian is of equal size. Weights are random in all: the work is the same.

products: all linear maps of a step of the decoder for these beams, by PyTorch's linear, with weights packed for oneDNN
as `jarilab.models.one_token` has them, and by PyTorch's int8 with dynamic scales. Int8 includes rounding the inputs,
bfloat16 their cast.

Speeds are medians of interleaved rounds, ratios are taken within a round.

Measured 2026-11-21, PyTorch 2.13, one core of an Intel Xeon with AVX-512 BF16 and AMX that others used too, 3 to 5
rounds, in float32; bfloat16: a step takes torch.nn.Transformer 1.2; 1.8 times as long as jari with AdamW, Marian 1.3;
1.5, x-transformers 1.2; 1.5, JoeyNMT 1.3; 1.4, jari with Muon 1.1; 1.3. rotary 1.02; 1.05 over sinusoidal, t5 0.99;
0.99, alibi 0.99; 0.98. Give or take 0.1.
"""

from __future__ import annotations

import importlib
import itertools
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import arithmetic
import steps
import timing
import torch
from torch import Tensor, nn
from torch.nn import functional

from jarilab.attention.cache import KVCache
from jarilab.core.devices import autocast
from jarilab.data.text import END, FIRST, PADDING
from jarilab.encodings.formulas.absolute import sinusoidal_embed
from jarilab.export.ctranslate2 import write
from jarilab.models.decoding import beam
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.nn.init import initialise
from jarilab.nn.loss import cross_entropy
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.runs.training_options import Training
from jarilab.tasks.base import Batch, right_padded
from jarilab.training.determinism import deterministic
from jarilab.training.memory import keep_freed_memory
from jarilab.training.optimization import BETAS, EPSILON, build_optimizers


class Size(NamedTuple):
    """Of a model; so many layers on each side."""

    vocab_size: int
    d_model: int
    n_heads: int
    d_ff: int
    n_layers: int
    dropout: float


SIZE = Size(8000, 256, 8, 1024, 3, 0.2)
VOCABULARY, WIDTH, HEADS, HIDDEN, LAYERS, DROPOUT = SIZE
SMOOTHING = 0.1
LONGEST = 512
BEAM, AT_ONCE = 5, 32
TARGETS = {"rotary": 1.05, "t5": 1.10, "alibi": 1.02}
PARTS = ("train", "encodings", "decode", "products")


# Data -----------------------------------------------------------------------------------------------------------------


def sentences(count: int, generator: torch.Generator) -> list[tuple[list[int], list[int]]]:
    """Pairs of random tokens as long as Multi30k's: a median of 14 pieces, from 4 to 45, both sides much alike."""
    noise = torch.randn(count, 2, generator=generator)
    lengths = 14 * torch.stack((0.3 * noise[:, 0], 0.3 * noise[:, 0] + 0.12 * noise[:, 1]), 1).exp()
    pairs = []
    for source, target in lengths.round().long().clamp(4, 45).tolist():
        ids = torch.randint(4, VOCABULARY, (source + target,), generator=generator).tolist()
        pairs.append((ids[:source], ids[source:]))
    return pairs


def tokens_of(rows: Sequence[list[int]]) -> Tokens:
    ids = right_padded([[*row, END] for row in rows])
    keep = ids != PADDING
    return Tokens(ids, Positions.sequence(ids.shape[1], frame="source"), keep)


def batches_of(tokens: int, count: int = 4) -> list[Batch]:
    """Batches of sentences of like length; source and target together are at most `tokens`, padding counted."""
    pairs = sorted(sentences(20_000, torch.Generator().manual_seed(1)), key=lambda pair: (len(pair[0]), len(pair[1])))
    batches = []
    for part in range(count):
        rows, size = [], 0
        for pair in pairs[(2 * part + 1) * len(pairs) // (2 * count) :]:
            size = max(size, len(pair[0]) + len(pair[1]) + 2)
            if size * (len(rows) + 1) > tokens:
                break
            rows.append(pair)
        said = right_padded([[FIRST, *target] for _, target in rows])
        labels = right_padded([[*target, END] for _, target in rows])
        batches.append(Batch((tokens_of([source for source, _ in rows]), Tokens.of(said, "target")), labels))
    return batches


# The peers: modules that take (source, target) as Tokens and give scores ----------------------------------------------


class TorchTransformer(nn.Module):
    """torch.nn.Transformer, norms first, with sinusoids; `start` and `step` as `greedy` asks."""

    def __init__(self, size: Size = SIZE) -> None:
        super().__init__()
        warnings.filterwarnings("ignore", "enable_nested_tensor is True")
        self.embedding = nn.Embedding(size.vocab_size, size.d_model)
        nn.init.normal_(self.embedding.weight, std=size.d_model**-0.5)
        self.transformer = nn.Transformer(
            size.d_model, size.n_heads, size.n_layers, size.n_layers, size.d_ff, dropout=size.dropout,
            batch_first=True, norm_first=True,
        )  # fmt: skip
        layout = SimpleNamespace(site=SimpleNamespace(d_model=size.d_model), base=10000.0, layout="interleaved")
        table = [torch.from_numpy(sinusoidal_embed(layout, place)).float() for place in range(LONGEST)]
        self.register_buffer("places_LD", torch.stack(table))

    def forward(self, source: Tokens, target: Tokens) -> Tensor:
        return self.step(self.start(source), target.ids, target.positions, None)

    def start(self, source: Tokens | None) -> arithmetic.Memory:
        assert source is not None
        is_padding = source.ids == PADDING
        hidden = is_padding if is_padding.any() else None
        return arithmetic.Memory(
            self.transformer.encoder(self._embedded(source.ids), src_key_padding_mask=hidden), hidden
        )

    def step(self, state: arithmetic.Memory, ids: Tensor, positions: Positions, cache: KVCache | None) -> Tensor:
        later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        y = self.transformer.decoder(
            self._embedded(ids), state.x, tgt_mask=later, memory_key_padding_mask=state.hidden, tgt_is_causal=True
        )
        return functional.linear(y, self.embedding.weight)

    def new_cache(self) -> KVCache:
        raise NotImplementedError("torch.nn.Transformer has none; write with cached=False")

    def _embedded(self, ids_BL: Tensor) -> Tensor:
        table_LD: Any = self.places_LD
        return self.embedding(ids_BL) * self.embedding.embedding_dim**0.5 + table_LD[: ids_BL.shape[1]]


class Marian(nn.Module):
    """Hugging Face's MarianMTModel: norms behind, sinusoids."""

    def __init__(self, size: Size = SIZE) -> None:
        super().__init__()
        library: Any = importlib.import_module("transformers")
        of_side = {"layers": size.n_layers, "attention_heads": size.n_heads, "ffn_dim": size.d_ff}
        sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in of_side.items()}
        dropout = {f"{part}dropout": size.dropout for part in ("", "attention_", "activation_")}
        config = library.MarianConfig(
            vocab_size=size.vocab_size, d_model=size.d_model, **sizes, activation_function="relu", scale_embedding=True,
            **dropout, max_position_embeddings=LONGEST,
            pad_token_id=PADDING, eos_token_id=END, decoder_start_token_id=FIRST, forced_eos_token_id=None,
        )  # fmt: skip
        self.model = library.MarianMTModel(config)

    def forward(self, source: Tokens, target: Tokens) -> Tensor:
        return self.model(
            input_ids=source.ids, attention_mask=source.keep, decoder_input_ids=target.ids, use_cache=False
        ).logits


class XTransformers(nn.Module):
    """x-transformers' encoder and decoder, norms first, learned positions, fused attention."""

    def __init__(self) -> None:
        super().__init__()
        library: Any = importlib.import_module("x_transformers")
        options: dict[str, Any] = {"dim": WIDTH, "depth": LAYERS, "heads": HEADS, "attn_dim_head": WIDTH // HEADS}
        options |= {"attn_dropout": DROPOUT, "ff_dropout": DROPOUT, "attn_flash": True}
        wrapped: dict[str, Any] = {"num_tokens": VOCABULARY, "max_seq_len": LONGEST}
        self.encoder = library.TransformerWrapper(
            **wrapped, return_only_embed=True, attn_layers=library.Encoder(**options)
        )
        self.decoder = library.TransformerWrapper(
            **wrapped, tie_embedding=True, token_emb=self.encoder.token_emb,
            attn_layers=library.Decoder(cross_attend=True, **options),
        )  # fmt: skip

    def forward(self, source: Tokens, target: Tokens) -> Tensor:
        memory = self.encoder(source.ids, mask=source.keep, return_embeddings=True)
        return self.decoder(target.ids, context=memory, context_mask=source.keep)


class Joey(nn.Module):
    """JoeyNMT's Transformer, norms first, sinusoids."""

    def __init__(self) -> None:
        super().__init__()
        library: Any = importlib.import_module("joeynmt.model")
        special = SimpleNamespace(
            unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None, lang_tags=[],
            unk_id=0, pad_id=1, bos_id=2, eos_id=3, sep_id=None,
        )  # fmt: skip
        vocabulary = importlib.import_module("joeynmt.vocabulary").Vocabulary(
            [f"t{number}" for number in range(VOCABULARY - 4)], special
        )
        stack = {
            "type": "transformer", "hidden_size": WIDTH, "ff_size": HIDDEN, "num_layers": LAYERS, "num_heads": HEADS,
            "dropout": DROPOUT, "layer_norm": "pre", "embeddings": {"embedding_dim": WIDTH, "scale": True},
        }  # fmt: skip
        config = {"encoder": stack, "decoder": stack, "tied_embeddings": True, "tied_softmax": True}
        self.model = library.build_model(config, vocabulary, vocabulary)

    def forward(self, source: Tokens, target: Tokens) -> Tensor:
        keep = torch.ones_like(source.ids, dtype=torch.bool) if source.keep is None else source.keep
        said = (target.ids != PADDING).unsqueeze(1)
        lengths = keep.sum(1)
        return self.model._encode_decode(source.ids, target.ids, keep.unsqueeze(1), lengths, said)[0]


PEERS: dict[str, Callable[[], nn.Module]] = {
    "torch.nn.Transformer": TorchTransformer,
    "Marian (transformers)": Marian,
    "x-transformers": XTransformers,
    "JoeyNMT": Joey,
}


def installed() -> dict[str, nn.Module]:
    """The peers that can be imported."""
    found = {}
    for name, build in PEERS.items():
        torch.manual_seed(1)
        try:
            found[name] = build()
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


# Training -------------------------------------------------------------------------------------------------------------


def ours(encoding: str = "sinusoidal") -> EncoderDecoder:
    model = EncoderDecoder(
        VOCABULARY, VOCABULARY, d_model=WIDTH, n_heads=HEADS, d_ff=HIDDEN, n_encoder_layers=LAYERS,
        n_decoder_layers=LAYERS, dropout=DROPOUT, tied=True, shared=True, encoding=encoding,
    )  # fmt: skip
    initialise(model, 1)
    return model


def our_step(model: nn.Module, batches: Iterator[Batch], precision: str, optimizer: Any) -> steps.Step:
    """As `jarilab.training.loop` takes it."""

    def loss() -> Tensor:
        batch = next(batches)
        with autocast(precision):
            scores = model(*batch.inputs)
        labels = batch.labels.flatten()
        return cross_entropy(scores.flatten(0, 1), labels, ignore=PADDING, smoothing=SMOOTHING)

    options = Training(optimizer=optimizer, lr=1e-4)
    return steps.training_step(model, loss, build_optimizers(model, options).values(), options.clip)


def their_step(model: nn.Module, batches: Iterator[Batch], precision: str) -> steps.Step:
    def loss() -> Tensor:
        batch = next(batches)
        with autocast(precision):
            scores = model(*batch.inputs).flatten(0, 1)
            labels = batch.labels.flatten()
            return functional.cross_entropy(scores, labels, ignore_index=PADDING, label_smoothing=SMOOTHING)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=BETAS, eps=EPSILON, weight_decay=0.0, fused=True)
    return steps.not_deterministic(steps.training_step(model, loss, [optimizer], 1.0))


def train(given: Any, table: timing.Table) -> None:
    batches = batches_of(given.tokens)
    real = sum(int((b.inputs[0].ids != PADDING).sum() + (b.labels != PADDING).sum()) for b in batches) / len(batches)
    for precision in given.precisions:
        models: dict[str, nn.Module] = {"jari, muon": ours(), "jari": ours(), **installed()}
        contenders: dict[str, Callable[[], object]] = {}
        for name, model in models.items():
            mine = itertools.cycle(batches)
            if name in PEERS:
                contenders[name] = their_step(model.train(), mine, precision)
            else:
                contenders[name] = our_step(model, mine, precision, "muon" if "muon" in name else "adamw")
        times = timing.measure(contenders, given.rounds)
        for name, model in models.items():
            table.add(
                precision=precision,
                contender=name,
                parameters_M=round(sum(p.numel() for p in model.parameters()) / 1e6, 2),
                tokens_per_s=round(real / statistics.median(times[name])),
                time_over_jari=timing.ratio(times, name, "jari"),
            )


def encodings(given: Any, table: timing.Table) -> None:
    batches = batches_of(given.tokens)
    for precision in given.precisions:
        contenders = {
            name: our_step(ours(name), itertools.cycle(batches), precision, "adamw")
            for name in ("sinusoidal", *given.encodings)
        }
        timing.compare_encodings(contenders, "sinusoidal", TARGETS, given.rounds, table, precision=precision)


# Writing --------------------------------------------------------------------------------------------------------------


def our_beam(
    rows: list[list[int]], length: int, model: EncoderDecoder, precision: str = "float32"
) -> Callable[[], Any]:
    source = tokens_of(rows)

    def write_all() -> list[int]:
        with autocast(precision):
            found = beam(model, source, beam_size=BEAM, first=FIRST, end=END, longest=length, shortest=length)
        return [len(hypotheses[0].ids) for hypotheses in found]

    return write_all


def marian_beam(rows: list[list[int]], length: int, marian: Any, precision: str = "float32") -> Callable[[], Any]:
    source = tokens_of(rows)

    def write_all() -> list[int]:
        with autocast(precision):
            ids = marian.model.generate(
                input_ids=source.ids, attention_mask=source.keep, num_beams=BEAM, do_sample=False, length_penalty=1.0,
                min_new_tokens=length, max_new_tokens=length,
            )  # fmt: skip
        return [ids.shape[1] - 1] * len(rows)

    return steps.not_deterministic(write_all)


def ctranslate2_beam(
    rows: list[list[int]], length: int, model: EncoderDecoder, threads: int, precision: str = "float32"
) -> Callable[[], Any]:
    library: Any = importlib.import_module("ctranslate2")
    names = [f"t{number}" for number in range(VOCABULARY)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        write(model, out, source=names, target=names)
        translator = library.Translator(str(out), compute_type=precision, intra_threads=threads, inter_threads=1)
    lines = [[names[number] for number in row] for row in rows]

    def write_all() -> list[int]:
        found = translator.translate_batch(
            lines, beam_size=BEAM, length_penalty=1.0, min_decoding_length=length, max_decoding_length=length
        )
        return [len(answer.hypotheses[0]) for answer in found]

    return write_all


def decode(given: Any, table: timing.Table) -> None:
    rows = [source for source, _ in sentences(AT_ONCE, torch.Generator().manual_seed(2))]
    model = ours().eval()
    builders: dict[str, Callable[[], Callable[[], Any]]] = {
        "jari": lambda: our_beam(rows, given.length, model),
        "jari, bfloat16": lambda: our_beam(rows, given.length, model, "bfloat16"),
        "CTranslate2, jari's weights": lambda: ctranslate2_beam(rows, given.length, model, given.threads),
        "CTranslate2, bfloat16": lambda: ctranslate2_beam(rows, given.length, model, given.threads, "bfloat16"),
        "CTranslate2, int8": lambda: ctranslate2_beam(rows, given.length, model, given.threads, "int8"),
        "Marian (transformers)": lambda: marian_beam(rows, given.length, Marian().eval()),
        "Marian (transformers), bfloat16": lambda: marian_beam(rows, given.length, Marian().eval(), "bfloat16"),
    }
    contenders: dict[str, Callable[[], object]] = {}
    for name, build in builders.items():
        try:
            contenders[name] = build()
        except (ImportError, ValueError) as error:  # not installed, or not for this processor
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        wrote = contenders[name]()
        assert wrote == [given.length] * AT_ONCE, (name, wrote)
    times = timing.measure(contenders, given.rounds)
    for name in contenders:
        table.add(
            contender=name,
            sentences_per_s=round(AT_ONCE / statistics.median(times[name]), 2),
            time_over_jari=timing.ratio(times, name, "jari"),
        )


def products(given: Any, table: timing.Table) -> None:
    warnings.filterwarnings("ignore", "torch.quantize_per")
    sizes = [(WIDTH, WIDTH)] * 6 + [(WIDTH, HIDDEN), (HIDDEN, WIDTH)]
    sizes = [*sizes * LAYERS, (WIDTH, VOCABULARY)]
    inputs = {width: torch.randn(BEAM * AT_ONCE, width) for width in (WIDTH, HIDDEN)}
    weights = [torch.randn(out, width) * width**-0.5 for width, out in sizes]
    half = [weight.bfloat16() for weight in weights]
    pack, packed_linear = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise.default

    def each(maps: Sequence[Callable[[Tensor], Tensor]]) -> Callable[[], None]:
        def step() -> None:
            for (width, _), linear in zip(sizes, maps, strict=True):
                linear(inputs[width])

        return step

    def packed(weights: list[Tensor], dtype: torch.dtype) -> Callable[[], None]:
        layouts = [pack(weight, BEAM * AT_ONCE) for weight in weights]
        return each([lambda x, w=w: packed_linear(x.to(dtype), w, None, "none", [], "") for w in layouts])

    def int8(engine: str) -> Callable[[], None]:
        torch.backends.quantized.engine = engine
        maps = []
        for weight in weights:
            scale = weight.abs().amax(1).double() / 127
            rounded = torch.quantize_per_channel(
                weight, scale, torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8
            )
            maps.append(torch.ops.quantized.linear_prepack(rounded, None))
        return each([lambda x, w=w: torch.ops.quantized.linear_dynamic(x, w) for w in maps])

    contenders: dict[str, Callable[[], object]] = {
        "float32": each([lambda x, w=w: functional.linear(x, w) for w in weights]),
        "float32, packed": packed(weights, torch.float32),
        "bfloat16": each([lambda x, w=w: functional.linear(x.bfloat16(), w) for w in half]),
        "bfloat16, packed": packed(half, torch.bfloat16),
        **{f"int8, {engine}": int8(engine) for engine in ("fbgemm", "onednn")},
    }
    with torch.no_grad():
        times = timing.measure(contenders, given.rounds)
    for name in contenders:
        table.add(
            contender=name,
            ms_a_step=round(1e3 * statistics.median(times[name]), 2),
            time_over_float32=timing.ratio(times, name, "float32"),
        )


def main() -> None:
    parser = timing.arguments(__doc__, rounds=7)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16"), default=("float32", "bfloat16"))
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch (default: %(default)s)")
    parser.add_argument("--encodings", nargs="+", default=list(TARGETS), help="specs (default: rotary t5 alibi)")
    parser.add_argument("--length", type=int, default=60, help="tokens written (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--keep-memory", action="store_true", help="that a step frees, as `jarilab train` does")
    given = parser.parse_args()
    deterministic(given.threads)
    if given.keep_memory:
        keep_freed_memory()
    table = timing.Table(given.json)
    for part in given.parts:
        {"train": train, "encodings": encodings, "decode": decode, "products": products}[part](given, table)
    table.close()


if __name__ == "__main__":
    main()
