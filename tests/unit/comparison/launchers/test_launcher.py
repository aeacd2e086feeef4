"""Where the trials of a study may run."""

import pytest

from jarilab.comparison.launchers import launcher
from jarilab.comparison.launchers.launcher import Launcher
from jarilab.core.errors import UserError


@pytest.mark.parametrize("cluster", ["slurm", "local"])
def test_windows_has_no_cluster(monkeypatch, cluster):
    Launcher(1, 1, cluster).check()
    monkeypatch.setattr(launcher.sys, "platform", "win32")
    with pytest.raises(UserError, match=f"--cluster {cluster} needs Linux or macOS; got Windows; omit it"):
        Launcher(1, 1, cluster).check()
    Launcher(1, 1, "script").check()
