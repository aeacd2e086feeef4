"""Where the trials of a study may run."""

import pytest

from jarilab.comparison import places
from jarilab.comparison.places import Place
from jarilab.core.errors import UserError


@pytest.mark.parametrize("cluster", ["slurm", "local"])
def test_windows_has_no_cluster(monkeypatch, cluster):
    Place(1, 1, cluster).check()
    monkeypatch.setattr(places.sys, "platform", "win32")
    with pytest.raises(UserError, match=f"--cluster {cluster} needs Linux or macOS; got Windows; omit it"):
        Place(1, 1, cluster).check()
    Place(1, 1, "script").check()
