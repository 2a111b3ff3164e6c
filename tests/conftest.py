"""One intra-op thread in every test: two on a busy machine can be thirty times slower. No deadlines
for the same reason.

CI draws the same examples every time, so that a red run is a change's own; anywhere else, new ones
are tried, and more of them.
"""

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from covey.files import config
from tests import own_folder
from tests.pictures import draw_each_kind_once

torch.set_num_threads(1)
CI = "CI" in os.environ
EXAMPLES = 60 if CI and "COVEY_TEST_ALL" not in os.environ else 100
settings.register_profile(
    "covey", deadline=None, database=None, derandomize=CI, max_examples=EXAMPLES
)
settings.load_profile("covey")


def pytest_configure(config: pytest.Config) -> None:
    """Every test, doctests of `covey/` too, runs in a folder of its own."""
    config.pluginmanager.register(own_folder)


def pytest_collection_finish() -> None:
    """The tests themselves stay until the end: collections of garbage need not look at them."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _base() -> Iterator[None]:
    """Where a test names no file, tests/base.toml stands in for the demo: small, and it stays as it
    is.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "DEMO", Path(__file__).parent / "base.toml")
        yield


@pytest.fixture(autouse=True, scope="module")
def _pictures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each kind of picture is drawn once, but in modules with the mark `pictures`."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("pictures") is None:
            draw_each_kind_once(patch)
        yield


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: nodes have databases, and disks are slow."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as path:
        yield Path(path)
