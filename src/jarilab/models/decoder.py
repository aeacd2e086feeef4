"""The decoder-only language model: *Language Modeling with Deep Transformers* (Irie et al. 2019); GPT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Unpack, cast

import torch
from annotated_types import Ge, Le
from torch import nn
from torch.nn import functional

from jarilab.attention.cache import KVCache
from jarilab.attention.geometry import geometry_of_layers
from jarilab.attention.module import check_positions
from jarilab.core.errors import UserError
from jarilab.core.options import unpack_options
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.models.base import one_a_row, registry
from jarilab.models.layers import EncoderLayer, LayerKeywords, LayerOptions, Layers
from jarilab.models.one_token import one_token, readout
from jarilab.models.stacks import last_token
from jarilab.nn.sublayers import Scale, TokenEmbedding
from jarilab.nn.token_before import NOTHING, REACH, TokenBefore
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.positions.masks import Mask


class CausalStack(nn.Module):
    """A stack in which each token sees itself and earlier tokens: `(B, L, D)` in, `(B, L, D)` out.

    window: number of tokens that each token sees, itself included; None for all. embedding_norm: a norm after the
    positions and before the first layer. Raises UserError for an impossible combination.
    """

    def __init__(
        self,
        options: LayerOptions,
        n_layers: int,
        *,
        encoding: str,
        window: int | None,
        embedding_norm: bool = False,
    ):
        super().__init__()
        self.mask = Mask(causal=True, window=window)
        self.encoding = options.encodings(encoding, n_layers, causal=True)
        self.embedding_norm = options.one_norm() if embedding_norm else nn.Identity()
        # Under the name `self`, so that the sites read like those of a decoder with a source: decoder.0.self.
        self.layers = nn.ModuleList(
            nn.ModuleDict({"self": EncoderLayer(options)}) for _ in range(n_layers)
        )
        self.norm = options.last_norm()

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        positions: Positions,
        keep: Bool[Tensor, "B K"] | None = None,
        documents: Int[Tensor, "B L"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Return a vector for each token.

        keep: False on padding; with a cache `(B, K)`, for all tokens so far. documents: document IDs; each token sees
        its own document. cache: keys and values of earlier tokens. Raises UserError for a cache with documents.
        """
        check_positions(positions, x)
        if cache is not None and documents is not None:
            raise UserError(
                "a cache does not know of documents; read such tokens at once, without a cache"
            )
        k_pos = positions if cache is None else self._extended(cache, positions)
        pairs = None if documents is None else (documents, documents)
        # A window may have dropped the first keys from the cache.
        keys = keep if keep is None or cache is None else keep[:, -k_pos.length :]
        bare = keys is None and pairs is None
        mask = self.mask if bare else replace(self.mask, keys=keys, documents=pairs)
        writes = one_token(self, self.in_order, x, cache)
        attention, hooks = self.in_order()[0].attention, self.encoding.hooks
        blockwise = writes is None and attention.is_blockwise(hooks, positions, k_pos, mask)
        geometries = geometry_of_layers(
            self.encoding, positions, k_pos, mask, new_k_pos=positions, blockwise=blockwise
        )
        x_BLD = self.embedding_norm(self.encoding.embed(x, positions))
        if cache is not None and writes is not None:
            return self.norm(writes(x_BLD, geometries, cache.target))
        for i, (layer, geometry) in enumerate(zip(self.in_order(), geometries, strict=True)):
            x_BLD = layer(x_BLD, geometry, None if cache is None else cache.target[i])
        return self.norm(x_BLD)

    def in_order(self) -> list[EncoderLayer]:
        """Return the layers in order."""
        return [cast(Any, layer)["self"] for layer in self.layers]

    def _extended(self, cache: KVCache, new: Positions) -> Positions:
        """Return the positions of all keys visible to the new tokens. Drops keys outside the window from the cache."""
        window, held = self.mask.window, cache.positions
        if window is not None and held is not None and held.length >= window:
            # A new token sees itself and the last window - 1 of the earlier ones.
            cache.drop_before(held.length - (window - 1))
        return cache.extend(new)


DecodingStep = tuple[Int[Tensor, "R N"], Positions, Bool[Tensor, "R K"] | None]
"""The tokens that one step reads, their positions, and False on padding among all tokens so far, if there is some."""


@dataclass(frozen=True)
class NoPrompt:
    """The state of a language model without a prompt."""

    def select(self, rows: Int[Tensor, " R"]) -> NoPrompt:
        return self

    def reading(
        self, ids: Int[Tensor, "R L"], positions: Positions, cache: KVCache | None
    ) -> DecodingStep:
        """Return the step of these tokens alone."""
        return ids, positions, None


@dataclass(frozen=True, eq=False)
class Prompt:
    """The state of a language model with a prompt `(B, K)`, which it reads together with the first step's tokens.

    Padding stands before the prompt's tokens, so that new tokens follow them directly.
    """

    tokens: Tokens

    def select(self, rows: Int[Tensor, " R"]) -> Prompt:
        tokens = self.tokens
        keep = None if tokens.keep is None else tokens.keep.index_select(0, rows)
        ids = tokens.ids.index_select(0, rows)
        return Prompt(Tokens(ids, tokens.positions.select_rows(rows), keep))

    def reading(
        self, ids: Int[Tensor, "R L"], positions: Positions, cache: KVCache | None
    ) -> DecodingStep:
        """Return the step of these tokens, with the prompt before them in the first step.

        Raises UserError for tokens whose order is not after the prompt, and for rows that do not divide evenly.
        """
        prompt = self._of_rows(ids.shape[0]).tokens
        if cache is not None and cache.positions is not None:
            return ids, positions, _kept(prompt, *cache.orders(positions))
        _check_behind(prompt.positions, positions)
        everywhere = prompt.positions.concat(positions)
        return torch.cat((prompt.ids, ids), 1), everywhere, _kept(prompt, everywhere.order)

    def _of_rows(self, rows: int) -> Prompt:
        """Return the prompt repeated for this number of rows."""
        prompts = self.tokens.ids.shape[0]
        if rows == prompts:
            return self
        if rows % prompts:
            raise UserError(
                f"each prompt has the same number of rows: expected a multiple of {prompts}, got {rows}"
            )
        index_R = torch.arange(prompts, device=self.tokens.ids.device)
        return self.select(index_R.repeat_interleave(rows // prompts))


def _kept(prompt: Tokens, *orders: Int[Tensor, " _"]) -> Bool[Tensor, "R K"] | None:
    """Return which keys of these orders are not padding. Tokens after the prompt never are."""
    if prompt.keep is None:
        return None
    # The added column is for all tokens after the prompt.
    keep = functional.pad(prompt.keep, (0, 1), value=True)
    index_K = torch.cat(orders) - prompt.positions.order[0]
    return keep[:, index_K.clamp_max(prompt.positions.length)]


def _check_behind(prompt: Positions, written: Positions) -> None:
    """Raises UserError if new tokens would be read as if they stood before the end of the prompt."""
    last, first = int(prompt.order[-1]), int(written.order[0])
    if first <= last:
        raise UserError(
            f"what is written after a prompt follows it: expected an order from {last + 1} on, got {first}; pass "
            "places=jarilab.positions_after(prompt) to the search"
        )


def positions_after(prompt: Tokens) -> Callable[[Tensor, int, Tensor], Positions]:
    """Return a function for the positions of tokens after a prompt, as `places` of a search."""
    length = prompt.positions.length
    last = prompt.positions.slice(length - 1, length)
    # Read once: encodings with a table then check their bounds without reading the device at each token.
    least, most = map(int, last.coordinates.aminmax())
    counted = len(last.axes) == 1 and not last.coordinates.is_floating_point()

    def following(ids: Int[Tensor, "R L"], start: int, rows: Int[Tensor, " R"]) -> Positions:
        before, first, end = last.select_rows(rows), start + 1, ids.shape[1] + 1
        step_L = torch.arange(first, end, device=ids.device)
        coordinates = before.coordinates + step_L.unsqueeze(-1)
        unplaced = before.unplaced
        if unplaced is not None:
            unplaced = unplaced.expand(*unplaced.shape[:-1], end - first)
        return replace(
            before,
            coordinates=coordinates,
            order=before.order + step_L,
            unplaced=unplaced,
            cached_bounds=(least + first, most + end - 1, coordinates) if counted else None,
        )

    return following


@registry.register("decoder")
class LanguageModel(nn.Module):
    """Tokens in, scores of the next token out. No token sees a later one.

        model = jarilab.LanguageModel(vocab_size=65, d_model=128, n_layers=4, encoding="none")
        scores_BLV = model(ids_BL)

    encoding: positional encoding; with `none`, two layers or more can still learn order from the causal mask.
    window: tokens that each token attends to in a layer, including itself (default: all before it). A cache then holds
        at most `window - 1` tokens and the new ones.
    classes: number of classes of a text, whose scores are then returned.
    tied: share the weights of the output layer and the embedding.
    parallel: attention and feed-forward network read the same input and are added together (GPT-NeoX, PaLM).
    embedding_norm: add a norm before the first layer, after the positions (BLOOM).
    embedding_scale: multiply embeddings by the square root of d_model (sqrt), or not (none, GPT-2).
    generator_bias: add a bias to the score of each token.
    token_before: add to each token's vector what the two tokens before it are, which shortens training. It reveals the
        order of tokens, so `jarilab compare` refuses it.
    n_layers: layers of the stack.

    `__init__` has the options of layers, from `d_model` to `kernel`.
    """

    @unpack_options(LayerOptions())
    def __init__(
        self,
        vocab_size: int,
        classes: int | None = None,
        *,
        n_layers: Layers = 2,
        encoding: str = "sinusoidal",
        window: Annotated[int, Ge(1), Le(2**24)] | None = None,
        tied: bool = True,
        parallel: bool = False,
        embedding_norm: bool = False,
        embedding_scale: Scale = "sqrt",
        generator_bias: bool = False,
        token_before: bool = False,
        **layer: Unpack[LayerKeywords],
    ):
        super().__init__()
        options = LayerOptions(**layer, parallel=parallel)
        self.embedding = TokenEmbedding(vocab_size, options.d_model, embedding_scale)
        self.token_before = TokenBefore(vocab_size, options.d_model) if token_before else None
        self.decoder = CausalStack(
            options, n_layers, encoding=encoding, window=window, embedding_norm=embedding_norm
        )
        self.classes = classes
        size = vocab_size if classes is None else classes
        tied = tied and classes is None
        self.generator = None if tied else nn.Linear(options.d_model, size, bias=False)
        self.generator_bias = nn.Parameter(torch.zeros(size)) if generator_bias else None

    def forward(self, tokens: Int[Tensor, "B L"] | Tokens) -> Float[Tensor, "B *L V"]:
        """Return the scores of the token after each; with `classes`, scores `(B, V)` at the last token of each text.

        Padding is hidden; scores at padding have no meaning.
        """
        tokens = Tokens.of(tokens, "target")
        x_BLD = self.decoder(
            self._embedded(tokens.ids, tokens.keep, tokens.documents),
            positions=tokens.positions,
            keep=tokens.keep,
            documents=tokens.documents,
        )
        if self.classes is not None:
            x_BLD = last_token(x_BLD, tokens.keep)
        return self._scores(x_BLD)

    def start(self, source: Tokens | None) -> NoPrompt | Prompt:
        """Return the state for `step`, with or without a prompt.

        source: a prompt with padding before shorter rows, or None if the first ids of `step` are the prompt. Raises
        UserError for several documents in a row, and for padding elsewhere.
        """
        if source is None:
            return NoPrompt()
        source = one_a_row(source)
        if source.keep is not None and not bool(source.keep[:, -1].all()):
            raise UserError(
                "what is written follows the prompt: expected padding before it, got some behind; move it to the front"
            )
        return Prompt(source)

    def step(
        self,
        state: NoPrompt | Prompt,
        ids: Int[Tensor, "R L"],
        positions: Positions,
        cache: KVCache | None,
    ) -> Float[Tensor, "R L V"]:
        """Return the scores after each of `ids`. With a cache, `ids` are only the tokens that it lacks."""
        read, places, keep = state.reading(ids, positions, cache)
        x_RND = self._embedded(read, keep, cache=cache)
        x_RND = self.decoder(x_RND, positions=places, keep=keep, cache=cache)
        return self._scores(x_RND[:, -ids.shape[1] :], cache)

    def new_cache(self) -> KVCache:
        return KVCache(len(self.decoder.layers))

    def max_positions(self) -> dict[str, int | None]:
        """Return the number of supported positions, None for no limit."""
        return {"target": self.decoder.encoding.max_positions}

    def _embedded(
        self,
        ids: Int[Tensor, "B L"],
        keep: Bool[Tensor, "B K"] | None,
        documents: Int[Tensor, "B L"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B L D"]:
        x_BLD = self.embedding(ids)
        if self.token_before is None:
            return x_BLD
        real_BL = ids if keep is None else ids.masked_fill(~keep[:, -ids.shape[1] :], NOTHING)
        held = None if cache is None else cache.last_ids
        earlier = real_BL.new_full((len(ids), REACH), NOTHING) if held is None else held
        row_BK = torch.cat((earlier, real_BL), 1)
        if cache is not None:
            cache.last_ids = row_BK[:, -REACH:]
        return x_BLD + self.token_before(self.embedding, row_BK, documents)

    def _scores(
        self, x_BLD: Float[Tensor, "B *L D"], cache: KVCache | None = None
    ) -> Float[Tensor, "B *L V"]:
        weight = self.embedding.weight if self.generator is None else self.generator.weight
        return readout(cache, x_BLD, weight, self.generator_bias)
