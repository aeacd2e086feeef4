"""The state and the cache of models that exist to be searched."""

from torch import Tensor, cat


class Rows:
    """A state: a tensor with a row for each source."""

    def __init__(self, rows: Tensor):
        self.rows = rows

    def select(self, rows: Tensor) -> "Rows":
        return Rows(self.rows[rows])


class Read:
    """The tokens read so far, as a cache."""

    ids: Tensor | None = None

    def append(self, ids: Tensor) -> Tensor:
        self.ids = ids if self.ids is None else cat((self.ids, ids), 1)
        return self.ids

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        self.ids = self.ids[rows]
