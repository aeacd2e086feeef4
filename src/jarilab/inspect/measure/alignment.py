"""Links between the words of two sequences: those of a map, those a person wrote, and how far they agree."""

from __future__ import annotations

import re
from collections.abc import Collection

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor

Link = tuple[int, int]
"""A query and the key it belongs to."""


def alignment(weights: Float[Tensor, "Q K"]) -> list[Link]:
    """Each query with the key it weighs most; none for a query without keys."""
    totals = weights.sum(-1).tolist()
    largest = weights.argmax(-1).tolist()
    rows = enumerate(zip(totals, largest, strict=True))
    return [(query, key) for query, (total, key) in rows if total > 0]


def alignment_error_rate(
    weights: Float[Tensor, "Q K"], sure: Collection[Link], possible: Collection[Link]
) -> float:
    """`1 - (|A and S| + |A and P|) / (|A| + |S|)` of the links A in a map (Och & Ney 2003, equation 23); 0 is best.

    weights: a row for each target word that is written, a column for each source word, without first and last tokens.
    sure, possible: links (query, key); what is sure is possible as well.
    Raises UserError for links outside of the map, and where there are neither links nor sure ones.
    """
    rows, columns = weights.shape
    for query, key in (*sure, *possible):
        if not (0 <= query < rows and 0 <= key < columns):
            raise UserError(
                f"the map has {rows} target and {columns} source words, counted from 0, got the link {key}-{query} "
                "(source-target); cut first and last tokens off the map, and check that words and tokens are the same"
            )
    found = set(alignment(weights))
    certain = set(sure)
    if not found and not certain:
        raise UserError("there is nothing to compare: no query has a key, and no link is sure")
    allowed = certain | set(possible)
    agreeing = len(found & certain) + len(found & allowed)
    linked = len(found) + len(certain)
    return 1 - agreeing / linked


def pharaoh(line: str) -> list[Link]:
    """Links written as `0-0 1-2`, source word and target word counted from 0, as (query, key): (target, source).

    Raises UserError for anything else.
    """
    links = []
    for number, written in enumerate(line.split()):
        found = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", written)
        if found is None:
            raise UserError(
                f"expected links such as 0-0 1-2, source word and target word counted from 0, got {written!r} as link "
                f"{number + 1}; possible links go on a line of their own"
            )
        source, target = (int(word) for word in found.groups())
        links.append((target, source))
    return links
