"""`jarilab train --from RUN`: another training by the settings of one that is there."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jarilab.cli.arguments import Words
from jarilab.cli.runs import TRUST
from jarilab.runs.environment import environment_record, what_changed
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_run
from jarilab.runs.options import REPLACED, deciding


@dataclass(frozen=True)
class Pattern:
    """A run whose settings are taken."""

    folder: Path
    record: Mapping[str, Any]
    experiment: Experiment

    @staticmethod
    def read(name: str, *, trust_code: bool) -> Pattern:
        """The run of a folder, or of its run.json.

        trust_code: whether the Python files that it names may be executed. Raises UserError if it names one and this
        is False, and if there is no run.
        """
        path = Path(name)
        folder = path.parent if path.name == "run.json" else path
        record, source = read_run(folder), str(folder / "run.json")
        experiment = Experiment.read(record["experiment"], source).trust(source, trust_code)
        return Pattern(folder, record, experiment)

    @staticmethod
    def among(words: Words) -> Pattern | None:
        """The one that a command line names."""
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        finder.add_argument("--from", dest="pattern", nargs="?")
        finder.add_argument(TRUST, action="store_true")
        options, _ = finder.parse_known_args(list(words))
        if options.pattern is None:
            return None
        return Pattern.read(options.pattern, trust_code=options.trust_code)

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Its own, under those that were given."""
        sections = {
            "task": self.experiment.task_options,
            "model": self.experiment.model_options,
            "training": deciding(self.experiment.training),
        }
        own = {}
        for section, options in sections.items():
            for name, value in options.items():
                own[f"{section}.{name}"] = value
        for one, other in REPLACED.items():
            for asked, replaced in ((one, other), (other, one)):
                if f"training.{asked}" in given:
                    own.pop(f"training.{replaced}", None)
        return {**own, **given}

    def changes(self, given: Mapping[str, Any]) -> list[str]:
        """What was given otherwise, as a person reads it."""
        own = self.settings({})
        return [
            f"{name} is {value}, was {own.get(name, 'not set')}"
            for name, value in given.items()
            if value != own.get(name)
        ]

    def other_versions(self) -> list[str]:
        """What of this machine and its versions decides bits and is not as it was, before anything is trained. How it
        will be computed is told when it is: what was given of that is among the changes."""
        here = environment_record()
        then = self.record["environment"]
        return what_changed(then, {**then, **here, "threads": then["threads"]})

    def differences(self, folder: Path) -> list[str]:
        """What else decides the result of the run in `folder`, and is not as it was here."""
        record = read_run(folder)
        told = what_changed(self.record["environment"], record["environment"])
        same_data = [self.record[name] == record[name] for name in ("data", "kept")]
        if not all(same_data):
            told.append("the data, or what is kept of them, are not those of then")
        return told


class Telling:
    """Tells a person, each thing once, what is not as it was in the run that is repeated."""

    def __init__(self, pattern: Pattern, say: Callable[[str], None]):
        self._pattern, self._say = pattern, say
        self._told: set[str] = set()
        self._is_opened = False

    def tell(self, lines: Iterable[str]) -> None:
        for line in lines:
            if line not in self._told:
                self._told.add(line)
                self._say(f"not as in {self._pattern.folder}: {line}")

    def opened(self, folder: Path) -> None:
        """The run in `folder` is there, and with it the record of its data."""
        if not self._is_opened:
            self._is_opened = True
            self.tell(self._pattern.differences(folder))
