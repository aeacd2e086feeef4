"""Models that are not jari's, side by side on the same line, and runs of jari behind them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.explorer import page_file, payload
from jarilab.explorer.explored import check_file
from jarilab.explorer.foreign import ExploredModel, Looked
from jarilab.explorer.opening import check_head, opening_of
from jarilab.explorer.session import Explorer
from jarilab.huggingface import load, reads_files
from jarilab.inspect.measure.link import HeadOfLink

MODEL, AGAINST = "--model", "--against"
"""How the command line calls the first folder, and another beside it."""


class ForeignExplorer:
    """Folders of Hugging Face, each read by its own tokenizer, and runs of jari, which cut a line by theirs. One caller
    at a time computes; the others wait."""

    def __init__(
        self,
        folders: Sequence[str | Path],
        runs: Sequence[str | Path] = (),
        *,
        link: tuple[str, str] | None = None,
        trust_code: bool = False,
    ):
        """link: two tokens; pages open at the head of the first model that connects them most, where one does. Raises
        UserError for a folder that holds no model, and for a run that is none."""
        if not folders:
            raise UserError("nothing to explore: expected the folder of a model, got none")
        self.models = [
            ExploredModel(load(folder), AGAINST if number else MODEL)
            for number, folder in enumerate(folders)
        ]
        self._runs = Explorer(runs, trust_code=trust_code) if runs else None
        self._link = link
        self._lock = threading.Lock()

    def check(self, line: str, first: str) -> None:
        """Raises UserError for an input that names a file which nobody has shown."""
        if any(reads_files(model.loaded) for model in self.models):
            check_file(line.strip(), first.strip(), numbered=False)
        if self._runs is not None:
            self._runs.check(line, first)

    def looked(self, line: str) -> list[Looked]:
        """What each model read, and its attention. Raises UserError where they make other tokens of the line."""
        with self._lock:
            return self._looked(line)

    def _looked(self, line: str) -> list[Looked]:
        looked = []
        for model in self.models:
            with self._read_by(model.loaded.name):
                looked.append(model.look(line))
        first = looked[0]
        for other in looked[1:]:
            if other.reading.names.get("source") != first.reading.names.get("source"):
                raise UserError(
                    f"{first.loaded.name} and {other.loaded.name} make other tokens of the line, so their maps cannot "
                    "stand side by side; look at each alone"
                )
        return looked

    def look(
        self,
        line: str,
        steps: Mapping[int, int] | None = None,
        *,
        live: bool,
        site: str | None = None,
        head: int | None = None,
    ) -> dict[str, Any]:
        """The page, see `Explored.look`. It opens at the link, where there is one in the line and no head is given."""
        with self._lock:
            steps = steps or {}
            for number in range(len(self.models)):
                self._check_step(number, steps.get(number))
            first = self._looked(line)[0]
            check_head(first.tape, site, head)
            link = self._link_in(first) if site is None and head is None else None
            views = [model.view(line) for model in self.models]
            views += self._views_of_runs(line, steps, live)
            at = (site, head) if link is None else (link.site, link.head)
            opening = opening_of(views[:1] if link else views, *at)
            if link is not None:
                opening |= {"query": link.row, "key": link.column}
            page = payload.page_of(views, live=live, opening=opening)
            return page | {"noise": None, "without": self._without(line, opening)} if live else page

    def _link_in(self, looked: Looked) -> HeadOfLink | None:
        """The head that connects the two tokens most; None where the line has no such link."""
        try:
            return None if self._link is None else looked.link(*self._link)[0]
        except UserError:
            return None

    def _views_of_runs(
        self, line: str, steps: Mapping[int, int], live: bool
    ) -> list[dict[str, Any]]:
        if self._runs is None:
            return []
        before = len(self.models)
        own = {number - before: step for number, step in steps.items() if number >= before}
        with self._read_by(", ".join(opened.name for opened in self._runs.opened)):
            if not live:
                return page_file.whole(self._runs, line, None, None, still=True)["views"]
            return self._runs.look(line, own, live=True)["views"]

    @contextmanager
    def _read_by(self, name: str) -> Iterator[None]:
        """Where several read a line, an error says who could not."""
        try:
            yield
        except UserError as error:
            alone = len(self.models) == 1 and self._runs is None
            if alone or str(error).startswith(name):
                raise
            raise UserError(f"{name}: {error}") from None

    def _without(self, line: str, opening: Mapping[str, Any]) -> str | None:
        """The answer without the head that the page opens at, of a model that is not jari's."""
        if opening["view"] >= len(self.models):
            return None
        model = self.models[opening["view"]]
        return model.without(line, opening["site"], opening["head"])

    def head(
        self, line: str, view: int, site: str, head: int, step: int | None = None, query: int = 0
    ) -> dict[str, Any]:
        """What is shown of one head that is opened."""
        runs, number = self._owner(view)
        if runs is not None:
            return runs.head(line, number, site, head, step, query)
        self._check_step(number, step)
        with self._lock:
            return self.models[number].detail(line, site, head)

    def operate(
        self,
        line: str,
        view: int,
        changes: Sequence[Mapping[str, Any]],
        step: int | None = None,
        *,
        controls: bool = True,
    ) -> dict[str, Any]:
        """What becomes of one view's answer and maps under changes; see `Explored.operate`."""
        runs, number = self._owner(view)
        if runs is not None:
            return runs.operate(line, number, changes, step, controls=controls)
        self._check_step(number, step)
        with self._lock:
            return self.models[number].operate(line, changes, controls=controls)

    def _owner(self, view: int) -> tuple[Explorer | None, int]:
        """The runs, and which of them; of a model of another library None, and its number. Raises UserError where there
        is no such view."""
        before = len(self.models)
        if 0 <= view < before:
            return None, view
        last = before - 1 + (0 if self._runs is None else len(self._runs.opened))
        if self._runs is None or not before <= view <= last:
            raise UserError(f"expected a view from 0 to {last}, got {view}")
        return self._runs, view - before

    def _check_step(self, view: int, step: int | None) -> None:
        """Raises UserError for a training step of a model that has none."""
        if step:
            raise UserError(
                f"{self.models[view].loaded.name} is no run of jari, and keeps no training steps; got step {step}, "
                "leave it out"
            )
