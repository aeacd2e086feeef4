"""Every test runs with jari's tensors checked at run time where axes are named: a wrong shape or dtype is an error."""

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

# As the command line sets it: threads that spin stand still beside a busy neighbour.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Processes that tests start compute with one thread each: there are at least as many test processes as cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Lists and help are kept in the cache: not in the user's, and not in that of another checkout.
os.environ.setdefault("JARILAB_CACHE", str(Path(tempfile.gettempdir()) / f"jarilab-tests-{os.getuid()}"))
# Processes that tests start need not each compile the modules of jari anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

assert "jarilab" not in sys.modules, "jarilab was imported before its annotations could be checked"
sys.path.insert(0, str(Path(__file__).parent))  # for `helpers`
from helpers.shape_checks import check_shapes  # noqa: E402 - after what torch reads from the environment

decorator = functools.partial(check_shapes, jaxtyping.jaxtyped)
jaxtyping.jaxtyped = functools.partial(functools.partial, decorator)
jaxtyping.install_import_hook("jarilab", "beartype.beartype")


import torch  # noqa: E402 - after the hook

from jarilab.core.registry import trust_code  # noqa: E402

HERE = Path(__file__).parent
for ours in (
    "laws/broken.py",
    "laws/rare_faults.py",
    "laws/adversaries.py",
    "laws/sound.py",
    "helpers/toy_encodings.py",
):
    trust_code(HERE / ours)

torch.set_num_threads(1)

pytest_plugins = ("helpers.browser", "helpers.explorer", "helpers.trials")  # fixtures that several folders share

# The same examples in every run, and no time limit that a busy machine could break.
hypothesis.settings.register_profile("jari", derandomize=True, deadline=None, database=None, max_examples=50)
hypothesis.settings.load_profile("jari")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    # One process more than cores: some of them wait for a browser or for a process that they started.
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Files with slow tests come first, so that all processes end at about the same time.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU here: run `pytest -m gpu` on a machine that has one")


@pytest.fixture(autouse=True)
def seed() -> int:
    """The same random numbers whichever tests ran before."""
    torch.manual_seed(20)
    return 20


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Whoever trains asks for deterministic algorithms, and the whole process keeps them."""
    yield
    # As `torch.use_deterministic_algorithms(False)`, which imports the compiler: seconds in each process.
    torch.set_deterministic_debug_mode("default")


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Texts are encoded into a cache of each file of tests, not into that of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JARILAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """jari as a user's program runs it, without the annotations checked: for errors that would come after the check."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
