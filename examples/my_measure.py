"""A measure of one's own, in one file, without touching the package.

    jarilab explore runs/add --input 21+11 --measure examples/my_measure.py:Nearby:within=2

In Python, of any model:

    jarilab.trust_code("examples/my_measure.py")
    with jarilab.record(model) as tape:
        model(ids)
    tape.measures(names, ["entropy", "examples/my_measure.py:Nearby:within=2"])

One method is defined. Chance follows from it: what a head has that looks at all allowed keys alike.
"""

from typing import Annotated, final

from annotated_types import Ge

from jarilab import Measure
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.measure.maps import Map
from jarilab.inspect.measure.measures import SHARE, mass, undefined


@final
class Nearby(Measure):
    """The weight on keys near the query, itself included, mean over queries."""

    label = "nearby"
    range = SHARE

    def __init__(self, *, within: Annotated[int, Ge(0)] = 1):
        """within: the farthest of them, in tokens."""
        self.within = within

    def value(self, map: Map) -> Float[Tensor, " H"]:
        """The number of each head; not defined between two sequences."""
        if not map.same:
            return undefined(map)
        return mass(map, map.ahead.abs() <= self.within)
