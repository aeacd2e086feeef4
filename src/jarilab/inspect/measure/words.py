"""Maps between words, merged from the maps between their tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.measure.maps import Map, allowed_of, is_numbered
from jarilab.inspect.record.capture import Tape

WordIndices = Sequence[int | None]
WordsOf = Mapping[str, WordIndices] | WordIndices | bool | None
"""The index of each token's word, as `word_ids()` of a tokenizer's encoding gives it; None for special tokens.

For all sequences or by sequence. True reads the marks of token names: `▁the`, `Ġthe`, `##ing`.
"""

STARTS_WORD = re.compile(r"[▁ĠĊ ]")
SPECIAL = re.compile(r"<(?!0x[0-9A-F]{2}>).+>|\[[A-Z0-9_]+\]")
"""Not the bytes of a character, `<0xEA>`."""
MARKS = re.compile(r"^##|[▁ĠĊ]")
HOW_TO_GET_WORDS = "pass words=tokenizer(text).word_ids(), special tokens included"


@dataclass(frozen=True)
class WordGroups:
    """The words of one sequence. names, sizes: the name and the number of tokens of each word."""

    names: list[str]
    sizes: list[int]

    @staticmethod
    def of(names: Sequence[str], indices: WordIndices) -> WordGroups:
        """The words: consecutive tokens with one index. A token with None is a word by itself."""
        numbered = enumerate(indices)
        word_names, sizes = [], []
        # A key of its own for each special token.
        for key, run in groupby(numbered, lambda pair: (pair[1], pair[1] is None and pair[0])):
            pieces = [names[place] for place, _ in run]
            joined = "".join(MARKS.sub("", piece) for piece in pieces) or "".join(pieces)
            word_names.append(pieces[0] if key[0] is None else joined)
            sizes.append(len(pieces))
        return WordGroups(word_names, sizes)

    @property
    def starts(self) -> Int[Tensor, " W"]:
        """The index of the first token of each word."""
        sizes_W = torch.tensor(self.sizes)
        return sizes_W.cumsum(0) - sizes_W

    @property
    def matrix(self) -> Float[Tensor, "W L"]:
        """1 for the tokens of each word, 0 for others."""
        word_L = torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes))
        return functional.one_hot(word_L, len(self.sizes)).T.double()


def word_groups(names: Mapping[str, Sequence[str]], words: WordsOf) -> dict[str, WordGroups]:
    """The words of each sequence; every token by itself for sequences without words.

    names: of the tokens of each sequence, see `names_of_sides`. Raises UserError if the number of indices is not that
    of tokens, for an unknown sequence, and if `words` is True and no token has a mark.
    """
    indices: dict[str, WordIndices] = {}
    if words is True:
        indices = {
            side: _by_marks(tokens)
            for side, tokens in names.items()
            if any(map(MARKS.search, tokens))
        }
        if not indices:
            raise UserError(
                "words=True reads the marks of tokens, such as ▁the, Ġthe and ##ing, got none in "
                f"{[list(tokens[:4]) for tokens in names.values()]}; {HOW_TO_GET_WORDS}"
            )
    elif isinstance(words, Mapping):
        indices = dict(words)
    elif words is not None and words is not False:
        indices = {side: words for side in names if not is_numbered(side)}
    for side, of_side in indices.items():
        _check_indices(side, of_side, names)
    alone: dict[str, WordIndices] = {side: [None] * len(names[side]) for side in names}
    return {side: WordGroups.of(names[side], each) for side, each in {**alone, **indices}.items()}


def merged_groups(
    names: Mapping[str, Sequence[str]], words: WordsOf
) -> dict[str, WordGroups] | None:
    """`word_groups`; None if no words are asked for, so that nothing is merged."""
    return None if words is None or words is False else word_groups(names, words)


def _check_indices(side: str, indices: WordIndices, names: Mapping[str, Sequence[str]]) -> None:
    if side not in names:
        raise UserError(f"expected words of {', '.join(names)}, got some of {side}; omit these")
    if not isinstance(indices, Sequence):
        raise UserError(
            f"expected a list of word indices of {side}, got {type(indices).__name__}; {HOW_TO_GET_WORDS}"
        )
    if len(indices) != len(names[side]):
        raise UserError(
            f"expected the index of a word for each of the {len(names[side])} tokens of {side}, got {len(indices)}; "
            f'{HOW_TO_GET_WORDS}, and words={{"source": ..., "target": ...}} for sequences of different tokens'
        )
    wrong = [index for index in indices if index is not None and not isinstance(index, int)]
    if wrong:
        raise UserError(
            f"expected whole numbers or None as words of {side}, got {wrong[0]!r}; {HOW_TO_GET_WORDS}"
        )


def _by_marks(tokens: Sequence[str]) -> list[int | None]:
    """The index of each token's word, by the marks of the tokens."""
    # WordPiece marks the pieces that continue a word, other tokenizers those that start one.
    marks_continuation = any(token.startswith("##") and token != "##" for token in tokens)
    marks_continuation = marks_continuation and not any(map(STARTS_WORD.match, tokens))
    indices: list[int | None] = []
    word = 0
    for token in tokens:
        if SPECIAL.fullmatch(token):
            indices.append(None)
            word += 1
            continue
        starts = not token.startswith("##") if marks_continuation else STARTS_WORD.match(token)
        word += bool(starts)
        indices.append(word)
    return indices


# Merging ------------------------------------------------------------------------------------------------------------


def merge_words(map: Map, queries: WordGroups, keys: WordGroups) -> Map:
    """The map between words: weights are summed over the keys of a word, and their mean is taken over its queries.

    Queries without keys are left out of the mean. A query and its word are in the same place, so that the word itself
    is the diagonal. Scores are the logarithm of summed exponentials over keys, and their mean over queries. Chance is
    that of equal weights on all allowed tokens.
    """
    mean_WQ = query_means(queries, map.allowed)
    allowed_QK = map.allowed.double()
    allowed_WV = queries.matrix @ allowed_QK @ keys.matrix.T > 0
    unplaced_WV = None
    if map.unplaced is not None:
        placed_QK = (~map.unplaced).double()
        unplaced_WV = queries.matrix @ placed_QK @ keys.matrix.T == 0
    q_order_W, k_order_V = _word_order(map, queries, keys)
    is_line = map.q_at.shape[-1] == 1
    return Map(
        weights=mean_WQ @ map.weights @ keys.matrix.T,
        scores=_merge_scores(map, queries, keys),
        allowed=allowed_WV,
        queries=queries.names,
        keys=keys.names,
        q_at=q_order_W.double().unsqueeze(-1) if is_line else map.q_at[queries.starts],
        k_at=k_order_V.double().unsqueeze(-1) if is_line else map.k_at[keys.starts],
        q_order=q_order_W,
        k_order=k_order_V,
        same=map.same,
        unplaced=unplaced_WV,
        even_weights=mean_WQ @ map.even.weights @ keys.matrix.T,
    )


def query_means(queries: WordGroups, allowed: Bool[Tensor, "Q K"]) -> Float[Tensor, "W Q"]:
    """The matrix that takes the mean over the queries of each word that have keys."""
    matrix_WQ = queries.matrix * allowed.any(-1)
    return matrix_WQ / matrix_WQ.sum(-1, keepdim=True).clamp_min(1)


def _word_order(
    map: Map, queries: WordGroups, keys: WordGroups
) -> tuple[Int[Tensor, " W"], Int[Tensor, " V"]]:
    """The order of words. A query of the same sequence has that of the word with the same token."""
    word_V = torch.arange(len(keys.sizes))
    if not map.same:
        return torch.arange(len(queries.sizes)), word_V
    word_K = word_V.repeat_interleave(torch.tensor(keys.sizes))
    words = dict(zip(map.k_order.tolist(), word_K.tolist(), strict=True))
    first_W = map.q_order[queries.starts].tolist()
    return torch.tensor([words.get(order, order) for order in first_W]), word_V


def _merge_scores(map: Map, queries: WordGroups, keys: WordGroups) -> Float[Tensor, "H W V"]:
    hidden = map.scores.masked_fill(~map.allowed, float("-inf"))
    by_key_HQV = torch.stack([part.logsumexp(-1) for part in hidden.split(keys.sizes, -1)], -1)
    has_key_HQV = by_key_HQV.isfinite().double()
    sums_HWV = queries.matrix @ by_key_HQV.masked_fill(has_key_HQV == 0, 0.0)
    return sums_HWV / (queries.matrix @ has_key_HQV).clamp_min(1)


def merged_in_chunks(
    tape: Tape, site: str, queries: WordGroups, keys: WordGroups
) -> tuple[Float[Tensor, "H W V"], Bool[Tensor, "W V"]]:
    """Weights and allowed links between words, for a map between tokens that is never held in memory."""
    allowed_QK = allowed_of(tape, site)
    mean_WQ, sum_KV = query_means(queries, allowed_QK), keys.matrix.T
    allowed_WV = queries.matrix @ allowed_QK.double() @ sum_KV > 0
    merged_HWV, first = torch.zeros(()), 0
    for chunk_BHRK in tape.weights_in_chunks(site):
        rows_HRK = chunk_BHRK[0].double().cpu()
        rows = slice(first, first + rows_HRK.shape[1])
        merged_HWV = merged_HWV + mean_WQ[:, rows] @ (rows_HRK @ sum_KV)
        first = rows.stop
    return merged_HWV, allowed_WV
