"""Where the trials of a study run: on this machine, on a cluster, or nowhere yet, as a script to be submitted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jarilab.comparison import script
from jarilab.comparison.cluster import GRACE, Cluster
from jarilab.comparison.processes import Engine, ThisMachine, gpus_here, jobs_for
from jarilab.comparison.resources import Resources
from jarilab.comparison.trial import Trial
from jarilab.core.errors import UserError

ClusterKind = Literal["slurm", "local", "script"]


class NotRunError(Exception):
    """The trials were not run: their commands stand in a script, to be submitted."""

    def __init__(self, path: Path, trials: Sequence[Trial]):
        super().__init__(path)
        self.path = path
        self.trials = trials


@dataclass(frozen=True)
class Place:
    """jobs: trials at once. cores: of this machine. cluster: slurm, local or script; this machine by default.
    resources: what a trial asks of a cluster."""

    jobs: int | None
    cores: int
    cluster: ClusterKind | None = None
    resources: Resources | None = None

    def check(self) -> None:
        """Raises UserError for what cannot be asked of this place."""
        if self.cluster in ("slurm", "local") and sys.platform == "win32":
            raise UserError(
                f"--cluster {self.cluster} needs Linux or macOS; got Windows; omit it to train here, or use "
                "--cluster script to write what to submit elsewhere"
            )
        if self.cluster is None and self.resources is not None and self.resources.given:
            named = ", ".join(f"--{name}" for name in self.resources.given)
            raise UserError(f"{named}: for a cluster only; give --cluster slurm, or omit it")

    def engine(self, trials: Sequence[Trial], study: Path, snapshots: int = 0) -> Engine:
        """Who runs these trials of a study. Raises UserError where that is not to be had here, and NotRunError where
        they are to be submitted by a person."""
        resources = self.resources or Resources()
        left = [trial for trial in trials if not trial.finished]
        if self.cluster == "script" and left:
            path = script.write(left, study, resources, self.jobs, snapshots, GRACE)
            raise NotRunError(path, left)
        at_once = jobs_for(max(1, len(left)), self.cores, gpus_here())
        if self.cluster == "slurm" or self.cluster == "local":
            most = self.jobs or (at_once if self.cluster == "local" else None)
            return Cluster(study, self.cluster, resources, most, snapshots)
        return ThisMachine(self.jobs or at_once, snapshots)
