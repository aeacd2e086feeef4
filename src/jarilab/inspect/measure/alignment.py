"""Word alignments of a map, and their error rate."""

from __future__ import annotations

from collections.abc import Collection

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor

Link = tuple[int, int]
"""The indices of a query and of its key."""


def alignment(weights: Float[Tensor, "Q K"]) -> list[Link]:
    """Each query with the key of its largest weight; queries without keys are left out."""
    totals = weights.sum(-1).tolist()
    largest = weights.argmax(-1).tolist()
    rows = enumerate(zip(totals, largest, strict=True))
    return [(query, key) for query, (total, key) in rows if total > 0]


def alignment_error_rate(
    weights: Float[Tensor, "Q K"], sure: Collection[Link], possible: Collection[Link]
) -> float:
    """`1 - (|A and S| + |A and P|) / (|A| + |S|)` of the links A of a map (Och & Ney 2003, equation 23); 0 is best.

    weights: a row for each target word, a column for each source word, without special tokens.
    sure, possible: links (query, key); sure links count as possible too.
    Raises UserError for links outside of the map, and if there are neither links nor sure ones.
    """
    rows, columns = weights.shape
    for query, key in (*sure, *possible):
        if not (0 <= query < rows and 0 <= key < columns):
            raise UserError(
                f"the map has {rows} target and {columns} source words, counted from 0, got the link {key}-{query} "
                "(source-target); cut special tokens off the map, and check that words and tokens are the same"
            )
    links = set(alignment(weights))
    sure_links = set(sure)
    if not links and not sure_links:
        raise UserError(
            "expected a query with a key or a sure link, got neither; omit maps without keys"
        )
    possible_links = sure_links | set(possible)
    matches = len(links & sure_links) + len(links & possible_links)
    return 1 - matches / (len(links) + len(sure_links))
