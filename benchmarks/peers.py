"""The contenders of `time_to_quality.py` that are not jari: each makes its model, its training step and its evaluation.

Each takes the folder of data, a seed and a recipe. Two kinds of recipe, told apart by `today`:

usual: the optimizer and positions of its authors. Rate and number of steps are searched, in either recipe.
today: what one writes now: Muon (jari's, which stacks matrices) for the linear maps between the first and the last,
queries, keys and values apart; bfloat16 where it is faster; rotary in language models, sinusoids in nn.Transformer;
memory and kernels that are kept. As of November 2026. Nobody compiles.

All have a warm-up of 5 %, a line to 0 and clipping at 1, as jari has in this benchmark.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arithmetic
import steps
import torch
import translation
import vision
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from jarilab.core.devices import CPU, autocast, has_bfloat16
from jarilab.data.images import augment, idx
from jarilab.data.text import PADDING
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.tasks.base import evenly
from jarilab.tasks.translation import Translation
from jarilab.training.batching import FixedSizeBatches, TokenBudgetBatches
from jarilab.training.memory import grow_onednn_cache, keep_freed_memory
from jarilab.training.optimization import AdamW, StackedMuon

LAST_MAPS = ("generator", "to_logits", "mlp_head")
"""Names of the maps to the classes, which Muon leaves to AdamW, as it does embeddings."""
JOINED_MAPS = ("qkv", "to_qkv")
"""Names of the linear maps that compute queries, keys and values together."""


@dataclass(frozen=True)
class Recipe:
    """rate: the highest. steps: of the whole schedule. precision: of autocast, if the processor has it."""

    rate: float
    steps: int
    today: bool = False
    precision: str = "bfloat16"


@dataclass(frozen=True)
class Trainee:
    """step: takes one step. measure: the quality on so many held-out examples."""

    step: steps.Step
    measure: Callable[[int], float]


Peer = Callable[[Path, int, Recipe], Trainee]


def rates(recipe: Recipe) -> Iterator[float]:
    """A learning rate for each step: up to the highest in 5 % of the steps, then in a line to 0."""
    warmup = max(1, recipe.steps // 20)
    for step in range(recipe.steps):
        left = (recipe.steps - step) / max(1, recipe.steps - warmup)
        yield recipe.rate * min((step + 1) / warmup, left)


def trainee(
    model: nn.Module, loss: Callable[[], Tensor], measure: Callable[[int], float], recipe: Recipe, usual: Any
) -> Trainee:
    """usual: makes the optimizer of the authors from the model."""

    precision = recipe.precision if has_bfloat16(CPU) else "float32"

    def cast_loss() -> Tensor:
        with autocast(precision):
            return loss()

    if not recipe.today:
        step = steps.training_step(model, cast_loss, [usual(model)], 1.0, rates(recipe))
        return Trainee(steps.not_deterministic(step), measure)
    keep_freed_memory()
    grow_onednn_cache()
    split_joined_maps(model)
    matrices, others = [], []
    for owner_name, owner in model.named_modules():
        last = any(name in owner_name for name in LAST_MAPS)
        is_map = isinstance(owner, nn.Linear | nn.MultiheadAttention | parametrize.ParametrizationList)
        for name, parameter in owner.named_parameters(recurse=False):
            inner = parameter.ndim == 2 and is_map and not last
            (matrices if inner else others).append((f"{owner_name}.{name}", parameter))
    optimizers = [
        StackedMuon(matrices, lr=recipe.rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        AdamW(others, lr=recipe.rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True),
    ]
    step = steps.training_step(model, cast_loss, optimizers, 1.0, rates(recipe))
    return Trainee(steps.not_deterministic(step), measure)


class Joined(nn.Module):
    """One weight of three that are trained apart."""

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        return weight.chunk(3)


def split_joined_maps(model: nn.Module) -> None:
    """Let Muon see queries, keys and values as three matrices, as in jari and x-transformers."""
    for name, owner in list(model.named_modules()):
        if isinstance(owner, nn.MultiheadAttention):
            parametrize.register_parametrization(owner, "in_proj_weight", Joined())
        elif isinstance(owner, nn.Linear) and name.rpartition(".")[2] in JOINED_MAPS:
            parametrize.register_parametrization(owner, "weight", Joined())


# Arithmetic -----------------------------------------------------------------------------------------------------------


def nn_transformer(data: Path, seed: int, recipe: Recipe) -> Trainee:
    """torch.nn.Transformer of the same size; learned positions and AdamW, or sinusoids and today's recipe."""
    task = Arithmetic()
    order = FixedSizeBatches(task.training_size, 512, recipe.steps * 512, seed)
    batches = arithmetic.batches_in_order(task, order)
    torch.manual_seed(seed)
    model = arithmetic.Peer(len(task.vocabulary), 64, max(task.longest.values()))
    if recipe.today:
        for table in (model.source_places, model.target_places):
            table.weight.data = sinusoids(*table.weight.shape)
            table.weight.requires_grad = False

    def usual(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True)

    def loss() -> Tensor:
        batch = next(batches)
        scores = model(*batch.inputs).float()
        return functional.cross_entropy(scores.flatten(0, 1), batch.labels.flatten(), ignore_index=PADDING)

    return trainee(model, loss, lambda count: arithmetic.exact_match(task, model, count), recipe, usual)


def sinusoids(length: int, width: int) -> Tensor:
    """Vaswani et al. 2017."""
    angles = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)


# Language -------------------------------------------------------------------------------------------------------------

WIDTH, LAYERS, HEADS, CONTEXT, BATCH = 128, 4, 4, 64, 12


class Block(nn.Module):
    """nanoGPT's: norms before, no bias; with rotations if it is given some."""

    def __init__(self, turns: Tensor | None):
        super().__init__()
        self.turns = turns
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x_BLD: Tensor) -> Tensor:
        qkv_BLD = self.qkv(self.norms[0](x_BLD)).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in qkv_BLD)
        if self.turns is not None:
            q, k = rotated(q, self.turns), rotated(k, self.turns)
        y_BHLE = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BLD = x_BLD + self.out(y_BHLE.transpose(1, 2).flatten(-2))
        return x_BLD + self.down(functional.gelu(self.up(self.norms[1](x_BLD))))


def rotated(x_BHLE: Tensor, turns_2LF: Tensor) -> Tensor:
    """Su et al. 2021, in halves. turns: cosines and sines."""
    one, other = x_BHLE.chunk(2, -1)
    cos_LF, sin_LF = turns_2LF[:, : x_BHLE.shape[-2]].to(x_BHLE.dtype)
    return torch.cat((one * cos_LF - other * sin_LF, one * sin_LF + other * cos_LF), -1)


class Before(nn.Module):
    """A product with the token before and a sum over the two before, as `model.token_before` of jari has them."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.before, self.this = nn.Embedding(vocabulary, WIDTH), nn.Embedding(vocabulary, WIDTH)
        self.factors = nn.ParameterList(torch.zeros(WIDTH) for _ in range(2))
        nn.init.zeros_(self.before.weight)
        nn.init.normal_(self.this.weight, 1.0, 0.5)

    def forward(self, x_BLD: Tensor, ids_BL: Tensor) -> Tensor:
        product_BLD = self.before(ids_BL[:, :-1]) * self.this(ids_BL[:, 1:])
        y_BLD = functional.pad(product_BLD, (0, 0, 1, 0))
        for distance, factor_D in enumerate(self.factors, 1):
            y_BLD = y_BLD + functional.pad(factor_D * x_BLD[:, :-distance], (0, 0, distance, 0))
        return x_BLD + math.sqrt(WIDTH) * y_BLD


class NanoGPT(nn.Module):
    def __init__(self, vocabulary: int, rotary: bool, before: bool = False):
        super().__init__()
        turns = None
        if rotary:
            size = WIDTH // HEADS
            angles = torch.arange(CONTEXT)[:, None] * 10_000 ** (-torch.arange(0, size, 2) / size)
            turns = torch.stack((angles.cos(), angles.sin()))
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), None if rotary else nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block(turns) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if residual else 0.02)
        self.before = Before(vocabulary) if before else None

    def forward(self, ids_BL: Tensor) -> Tensor:
        x_BLD = self.tokens(ids_BL)
        if self.before is not None:
            x_BLD = self.before(x_BLD, ids_BL)
        if self.places is not None:
            x_BLD = x_BLD + self.places.weight[: ids_BL.shape[1]]
        return functional.linear(self.norm(self.blocks(x_BLD)), self.tokens.weight)


def nanogpt(data: Path, seed: int, recipe: Recipe) -> Trainee:
    """GPT-2 as nanoGPT has it: learned positions, AdamW with weight decay; or today's recipe with rotary."""
    return _language(data, seed, recipe, lambda letters: NanoGPT(letters, recipe.today))


def nanogpt_before(data: Path, seed: int, recipe: Recipe) -> Trainee:
    """The same with what stands before each token."""
    return _language(data, seed, recipe, lambda letters: NanoGPT(letters, recipe.today, before=True))


def x_transformers(data: Path, seed: int, recipe: Recipe) -> Trainee:
    """lucidrains' decoder with rotary."""
    library: Any = importlib.import_module("x_transformers")

    def build(letters: int) -> nn.Module:
        layers = library.Decoder(dim=WIDTH, depth=LAYERS, heads=HEADS, attn_dim_head=WIDTH // HEADS,
                                 rotary_pos_emb=True, attn_flash=True)  # fmt: skip
        return library.TransformerWrapper(
            num_tokens=letters, max_seq_len=CONTEXT, use_abs_pos_emb=False, attn_layers=layers
        )

    return _language(data, seed, recipe, build)


def _language(data: Path, seed: int, recipe: Recipe, build: Callable[[int], nn.Module]) -> Trainee:
    text = (data / "tinyshakespeare" / "input.txt").read_text()
    number = {letter: place for place, letter in enumerate(sorted(set(text)))}
    ids = torch.tensor([number[letter] for letter in text])
    learned, held_out = ids[: int(0.9 * len(ids))], ids[int(0.9 * len(ids)) :]
    torch.manual_seed(seed)
    model = build(len(number))

    def usual(model: nn.Module) -> torch.optim.Optimizer:
        matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
        others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=True)

    def loss_of(windows_BL: Tensor) -> Tensor:
        scores = model(windows_BL[:, :-1]).float()
        return functional.cross_entropy(scores.flatten(0, 1), windows_BL[:, 1:].flatten())

    def loss() -> Tensor:
        starts = torch.randint(len(learned) - CONTEXT, (BATCH,))
        return loss_of(learned[starts.unsqueeze(1) + torch.arange(CONTEXT + 1)])

    @torch.no_grad()
    def measure(count: int) -> float:
        windows_NL = held_out.unfold(0, CONTEXT + 1, CONTEXT)
        return float(loss_of(windows_NL[evenly(len(windows_NL), count)]))

    return trainee(model, loss, measure, recipe, usual)


# Images ---------------------------------------------------------------------------------------------------------------

KEPT_PATCHES = 25


class KeptPatches(nn.Module):
    """lucidrains' ViT, reading the patches whose pixels vary most, as `model.kept_patches` of jari does."""

    def __init__(self, vit: Any):
        super().__init__()
        self.vit = vit

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        cut, *embed = self.vit.to_patch_embedding
        patches_BLN = cut(pixels_BCHW)
        index_BK1 = patches_BLN.var(-1).topk(KEPT_PATCHES).indices.unsqueeze(-1)
        x_BLD = nn.Sequential(*embed)(patches_BLN) + self.vit.pos_embedding
        x_BKD = x_BLD.take_along_dim(index_BK1, 1)
        return self.vit.mlp_head(self.vit.transformer(x_BKD).mean(1))


def vit_pytorch_kept(data: Path, seed: int, recipe: Recipe) -> Trainee:
    """The same without the other patches."""
    return vit_pytorch(data, seed, recipe, KeptPatches)


def vit_pytorch(
    data: Path, seed: int, recipe: Recipe, wrap: Callable[[nn.Module], nn.Module] = lambda vit: vit
) -> Trainee:
    """lucidrains' ViT of the same size, learned places and the mean of the patches; the same shifts as jari."""
    module = vision.peer()
    if module is None:
        raise ImportError("vit_pytorch")
    learned, held_out = mnist(data, held_out=False), mnist(data, held_out=True)
    model = wrap(vision.theirs(module, vision.SHAPES["28"], vision.SETTINGS["mean"], seed))
    order = FixedSizeBatches(len(learned[0]), vision.BATCH, recipe.steps * vision.BATCH, seed)
    numbers, generator = itertools.count(), torch.Generator().manual_seed(seed)

    def usual(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), weight_decay=0.05, fused=True)

    def loss() -> Tensor:
        rows = torch.as_tensor(order.at(next(numbers)))
        scores = model(augment.shift(learned[0][rows], 2, generator)).float()
        return functional.cross_entropy(scores, learned[1][rows], label_smoothing=vision.SMOOTHING)

    @torch.no_grad()
    def measure(count: int) -> float:
        rows = evenly(len(held_out[0]), count)
        parts = zip(held_out[0][rows].split(500), held_out[1][rows].split(500), strict=True)
        return sum(int((model(pixels).argmax(-1) == labels).sum()) for pixels, labels in parts) / count

    return trainee(model, loss, measure, recipe, usual)


def mnist(data: Path, held_out: bool) -> tuple[Tensor, Tensor]:
    """Images of mean 0 and variance 1, `(N, 1, 28, 28)`, and their classes."""
    path = idx.find(data / "mnist", held_out)
    assert path is not None
    pixels_NHW = idx.read(path, idx.IMAGES).float() / 255
    labels_N = idx.read(idx.labels_of(path), idx.LABELS).long()
    return ((pixels_NHW - 0.1307) / 0.3081).unsqueeze(1), labels_N


# Translation ----------------------------------------------------------------------------------------------------------

PAIRS = translation.Size(4000, 128, 8, 512, 2, 0.0)
"""The size of all models. A batch has at most so many tokens, and so many pairs of Multi30k on average."""
TOKENS, PAIRS_OF_BATCH = 2048, 55
LONGEST_ANSWER = 45
"""Tokens: a model that has learned little ends no sentence. No reference that is compared is longer."""


def files_of_translation(data: Path) -> dict[str, tuple[str, ...]]:
    """German to English."""
    parts = {"train": "train", "valid": "val"}
    return {
        name: tuple(str(data / "multi30k" / f"{part}.{language}.gz") for language in ("de", "en"))
        for name, part in parts.items()
    }


class MarianAnswers(arithmetic.PeerAnswers):
    """Marian with its own cache."""

    def write(self, sources: Tokens) -> list[list[int]]:
        marian: Any = self.model.model
        ids = marian.generate(
            input_ids=sources.ids, attention_mask=sources.ids != PADDING, num_beams=1, do_sample=False,
            max_new_tokens=self.longest,
        )  # fmt: skip
        return [[token for token in row if token != PADDING] for row in ids[:, 1:].tolist()]


def marian(data: Path, seed: int, recipe: Recipe) -> Trainee:
    """Hugging Face's Marian: norms behind, sinusoids, AdamW."""
    return _translation(data, seed, recipe, translation.Marian, MarianAnswers)


def translator(data: Path, seed: int, recipe: Recipe, dropout: float = 0.0) -> Trainee:
    """torch.nn.Transformer, norms first, sinusoids, one matrix for both embeddings and the readout."""
    return _translation(data, seed, recipe, translation.TorchTransformer, arithmetic.PeerAnswers, dropout)


def _translation(
    data: Path,
    seed: int,
    recipe: Recipe,
    build: Callable[[translation.Size], Any],
    answers: Callable[..., Any],
    dropout: float = 0.0,
) -> Trainee:
    task = Translation(**files_of_translation(data), vocab_size=PAIRS.vocab_size)
    task.prepare()
    torch.manual_seed(seed)
    model = build(PAIRS._replace(dropout=dropout))
    order = TokenBudgetBatches(task.training_lengths, TOKENS, 2 * recipe.steps * PAIRS_OF_BATCH, seed)
    batches = arithmetic.batches_in_order(task, order)

    def usual(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True)

    def loss() -> Tensor:
        batch = next(batches)
        scores = model(*batch.inputs).float()
        labels = batch.labels.flatten()
        return functional.cross_entropy(scores.flatten(0, 1), labels, ignore_index=PADDING, label_smoothing=0.1)

    @torch.no_grad()
    def measure(count: int) -> float:
        return task.evaluate(answers(model, LONGEST_ANSWER), count)["bleu"]

    return trainee(model, loss, measure, recipe, usual)
