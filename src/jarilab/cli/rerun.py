"""`jarilab train --from RUN`: train again with the settings of a run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jarilab.cli.arguments import Words
from jarilab.cli.run_arguments import TRUST
from jarilab.runs.environment import environment_record, what_changed
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_run
from jarilab.runs.training_options import REPLACED, deciding
from jarilab.tasks.base import full_names


@dataclass(frozen=True)
class SourceRun:
    """The run of `--from`, whose settings are used."""

    folder: Path
    record: Mapping[str, Any]
    experiment: Experiment

    @staticmethod
    def read(name: str, *, trust_code: bool) -> SourceRun:
        """The run in the folder `name`, which may also be the path of its run.json.

        trust_code: whether Python files that it names may be executed. Raises UserError if it names one and this is
        False, and if there is no run.
        """
        path = Path(name)
        folder = path.parent if path.name == "run.json" else path
        record, source = read_run(folder), str(folder / "run.json")
        experiment = Experiment.read(record["experiment"], source).trust(source, trust_code)
        return SourceRun(folder, record, experiment)

    @staticmethod
    def among(words: Words) -> SourceRun | None:
        """The run that a command line names with `--from`; None without it."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--from", dest="source", nargs="?")
        parser.add_argument(TRUST, action="store_true")
        options, _ = parser.parse_known_args(list(words))
        if options.source is None:
            return None
        return SourceRun.read(options.source, trust_code=options.trust_code)

    def settings(self, changed: Mapping[str, Any]) -> dict[str, Any]:
        """The run's settings, updated by `changed`."""
        recorded = full_names(
            task=self.experiment.task_options,
            model=self.experiment.model_options,
            training=deciding(self.experiment.training),
        )
        # Of two options that exclude each other, a changed one replaces the recorded one.
        for first, second in REPLACED.items():
            for set_now, excluded in ((first, second), (second, first)):
                if f"training.{set_now}" in changed:
                    recorded.pop(f"training.{excluded}", None)
        return {**recorded, **changed}

    def changes(self, changed: Mapping[str, Any]) -> list[str]:
        """The changed settings that differ from the run's, one line each."""
        recorded = self.settings({})
        return [
            f"{name} is {value}, was {recorded.get(name, 'not set')}"
            for name, value in changed.items()
            if value != recorded.get(name)
        ]

    def other_versions(self) -> list[str]:
        """Versions and machine properties that change bits and differ from the run's, one line each.

        The number of threads is not compared, since `changes` covers it.
        """
        then = self.record["environment"]
        now = {**then, **environment_record(), "threads": then["threads"]}
        return what_changed(then, now)

    def differences(self, folder: Path) -> list[str]:
        """What differs in the environment and the data of the run in `folder`, one line each."""
        record = read_run(folder)
        lines = what_changed(self.record["environment"], record["environment"])
        if any(self.record[name] != record[name] for name in ("data", "kept")):
            lines.append("the data, or the files that the run keeps of them, are different")
        return lines


class DifferenceReport:
    """Prints differences from the source run, each once."""

    def __init__(self, source: SourceRun, say: Callable[[str], None]):
        self._source, self._say = source, say
        self._printed: set[str] = set()
        self._has_compared_folder = False

    def add(self, lines: Iterable[str]) -> None:
        """Print the lines that were not printed yet."""
        for line in lines:
            if line not in self._printed:
                self._printed.add(line)
                self._say(f"not as in {self._source.folder}: {line}")

    def compare_folder(self, folder: Path) -> None:
        """Print the differences of the new run, once its folder exists."""
        if not self._has_compared_folder:
            self._has_compared_folder = True
            self.add(self._source.differences(folder))
