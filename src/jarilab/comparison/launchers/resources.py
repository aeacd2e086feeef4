"""Resources that a trial requests from SLURM."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated

from annotated_types import Ge, Le

from jarilab.core.errors import UserError

_WORD = re.compile(r"[A-Za-z0-9_.,:@=+/\[\]&|*-]+")
_TIME = re.compile(r"((?P<days>\d{1,4})-)?(?P<parts>\d{1,5}(:\d{1,2}){0,2})")
_MEMORY = re.compile(r"[1-9]\d{0,8}[KMGT]?")
FACTORS = {1: (1,), 2: (1, 1 / 60), 3: (60, 1, 1 / 60)}
"""Minutes of the numbers of a time without days, by how many they are."""
FACTORS_OF_DAYS = {1: (60,), 2: (60, 1), 3: (60, 1, 1 / 60)}
"""The same behind days, where hours come first."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of each trial in SLURM.

    partition: SLURM partition (default: that of the cluster).
    time: time limit of a job, such as 2:00:00 or 1-12; a longer trial is queued again and continues.
    gpus: GPUs of each trial.
    cpus: CPU cores of each trial.
    memory: memory of each trial, such as 8G (default: that of the cluster).
    account: account that is charged (default: that of the user).
    qos: quality of service (default: that of the user).
    constraint: required features of a node (default: any node).
    """

    partition: str | None = None
    time: str = "1:00:00"
    gpus: Annotated[int, Ge(0), Le(1024)] = 0
    cpus: Annotated[int, Ge(1), Le(4096)] = 1
    memory: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None

    def __post_init__(self) -> None:
        for name in ("partition", "account", "qos", "constraint"):
            value = getattr(self, name)
            if value is not None and not _WORD.fullmatch(value):
                raise UserError(
                    f"{name}: expected a name that SLURM knows, without spaces or quotes; got {value!r}"
                )
        if self.memory is not None and not _MEMORY.fullmatch(self.memory):
            raise UserError(f"memory: expected such as 8G or 500M; got {self.memory!r}")
        if self.minutes < 1:
            raise UserError(f"time: expected a minute or more; got {self.time!r}")

    @property
    def minutes(self) -> int:
        """The time in minutes, rounded up. Raises UserError for a text that SLURM cannot read."""
        match = _TIME.fullmatch(self.time)
        if match is None:
            raise UserError(
                f"time: expected hours:minutes:seconds, minutes or days-hours, such as 2:00:00, 90 or 1-12; got "
                f"{self.time!r}"
            )
        numbers = [int(part) for part in match["parts"].split(":")]
        days = match["days"]
        factors = (FACTORS if days is None else FACTORS_OF_DAYS)[len(numbers)]
        minutes = sum(number * factor for number, factor in zip(numbers, factors, strict=True))
        return int(-(-(minutes + 1440 * int(days or 0)) // 1))

    @property
    def changed(self) -> list[str]:
        """The names of the options that differ from their defaults."""
        return [one.name for one in fields(self) if getattr(self, one.name) != one.default]

    def sbatch_lines(self, limit: int | None, trials: int, grace: int) -> list[str]:
        """The #SBATCH lines of a script. limit: tasks at once, or None. grace: seconds between signal and end."""
        suffix = f"%{limit}" if limit else ""
        options = {
            "array": f"0-{trials - 1}{suffix}",
            "time": self.time,
            "cpus-per-task": self.cpus,
        }
        options |= {"gpus-per-node": self.gpus or None, "partition": self.partition}
        options |= {"mem": self.memory, "account": self.account, "qos": self.qos}
        options |= {"constraint": self.constraint}
        options |= {"signal": f"B:USR2@{min(grace, 30 * self.minutes)}", "open-mode": "append"}
        lines = [f"#SBATCH --{key}={value}" for key, value in options.items() if value is not None]
        return [*lines, "#SBATCH --requeue"]
