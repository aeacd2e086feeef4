"""Hostile runs: each value of each JSON in the folder of a run replaced by others, with checksums that fit."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jarilab import api
from jarilab.comparison.study import Trial
from jarilab.comparison.table import tabulate
from jarilab.core.errors import UserError
from jarilab.core.storage.files import seal_record, sha256, write_json
from jarilab.runs import loaded, metrics_log
from jarilab.runs.catalog import runs_in
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_experiment, read_metrics, read_run
from jarilab.runs.verifying import verify
from jarilab.training import loop

from helpers.runs import held, newest_of  # isort: skip

HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    -0.5,
    "",
    "x",
    "../x",
    [],
    {},
    [[]],
    {"x": {"y": []}},
    ["x"],
)
MANIFEST = ("model.safetensors", "optimizer.safetensors", "state.json")
Where = tuple[str | int, ...]


@dataclass(frozen=True)
class Mutant:
    """A value in a file of a run, and what stands there instead."""

    file: str
    where: Where
    value: Any


def places(value: Any, where: Where = ()) -> Iterator[Where]:
    """Every place in a JSON, containers too; of a long list the first two."""
    if where:
        yield where
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*where, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:2]):
            yield from places(inner, (*where, number))


def changed(record: Any, where: Where, value: Any) -> Any:
    """A copy with another value there."""
    made = copy.deepcopy(record)
    inner = made
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = value
    return made


class HostileRun:
    """A copy of a run, whose files are replaced one after the other."""

    def __init__(self, run: Path, folder: Path, source: str):
        self.run, self.source = shutil.copytree(run, folder / run.name), source
        self.record = held(self.run / "run.json")
        self.experiment = read_experiment(read_run(self.run), self.run / "run.json")
        self.rows = read_metrics(self.run)
        self.state = newest_of(self.run) / "state.json"
        kept = [name for name in self.record["kept"] if name.endswith(".json")]
        self.records: dict[str, Any] = {
            "run.json": self.record,
            "result.json": held(self.run / "result.json"),
            "metrics.jsonl": self.rows[-1],
            "state.json": json.loads(self.state.read_text()),
            "manifest.json": json.loads((self.state.parent / "manifest.json").read_text()),
            **{name: json.loads((self.run / name).read_text()) for name in kept},
        }

    def mutants(self) -> list[Mutant]:
        """All of them."""
        return [
            Mutant(file, where, value)
            for file, record in self.records.items()
            for where in places(record)
            for value in HOSTILE
        ]

    def fault(self, mutant: Mutant) -> BaseException | None:
        """What goes wrong with a mutant but a UserError."""
        touched = [self.run / "run.json", self.run / "result.json", self.run / "metrics.jsonl", self.state]
        touched += [self.state.parent / "manifest.json"]
        if (self.run / mutant.file).exists():
            touched.append(self.run / mutant.file)
        before = {path: path.read_bytes() for path in touched}
        try:
            self._write(mutant, changed(self.records[mutant.file], mutant.where, mutant.value))
            for use in self._uses(mutant.file):
                try:
                    use()
                except UserError:
                    pass
                except Exception as error:
                    return error
        finally:
            for path, content in before.items():
                path.write_bytes(content)
        return None

    def _write(self, mutant: Mutant, record: Any) -> None:
        if mutant.file == "metrics.jsonl":
            lines = metrics_log.sealed_lines([*self.rows[:-1], record], self.record["hash"])
            (self.run / mutant.file).write_text("".join(lines))
        elif mutant.file in ("run.json", "result.json"):
            self._rehash(record, mutant)
            write_json(self.run / mutant.file, seal_record(record))
        elif mutant.file == "manifest.json":
            (self.state.parent / mutant.file).write_text(json.dumps(record))
        elif mutant.file == "state.json":
            self.state.write_text(json.dumps(record))
            self._reseal()
        else:
            (self.run / mutant.file).write_text(json.dumps(record))
            kept = self.record["kept"] | {mutant.file: sha256(self.run / mutant.file)}
            write_json(self.run / "run.json", seal_record(self.record | {"kept": kept}))

    def _rehash(self, record: Any, mutant: Mutant) -> None:
        """Name the run by the experiment that it has now, in its checkpoint too."""
        if mutant.file != "run.json" or mutant.where[0] != "experiment":
            return
        try:
            record["hash"] = Experiment(**record["experiment"]).hash
        except Exception:  # no experiment at all
            return
        self.state.write_text(json.dumps(self.records["state.json"] | {"run": record["hash"]}))
        self._reseal()

    def _reseal(self) -> None:
        manifest = {name: sha256(self.state.parent / name) for name in MANIFEST}
        (self.state.parent / "manifest.json").write_text(json.dumps(manifest))

    def _uses(self, file: str) -> list[Callable[[], object]]:
        uses: list[Callable[[], object]] = [lambda: verify(self.run)]
        if file != "result.json" and file != "metrics.jsonl":
            uses.append(lambda: list(api.predict(loaded.load(self.run), [self.source], at_once=1)))
        if file in ("run.json", "metrics.jsonl"):
            uses.append(lambda: api.report([self.run], self.run.parent / "page.html"))
        if file in ("run.json", "result.json", "metrics.jsonl"):
            uses += [lambda: runs_in(self.run), self._table]
        if file in ("state.json", "run.json"):
            uses.append(self._train)
        return uses

    def _table(self) -> None:
        task = self.experiment.resolved.build_task()
        tabulate([Trial("trial", self.experiment, self.run)], task)

    def _train(self) -> None:
        """Go on, as far as to the first step."""
        (self.run / "result.json").unlink()

        class ReachedError(UserError):
            pass

        def stop(*_: object) -> None:
            raise ReachedError

        before, loop.Trainer._finish = loop.Trainer._finish, stop
        try:
            loop.train(self.experiment, self.run, threads=1)
        finally:
            loop.Trainer._finish = before
