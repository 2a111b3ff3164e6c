"""What tests of deployed trees begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.deployed.node.local_tree import LocalTree


@pytest.fixture
def local(folder: Path) -> Iterator[LocalTree]:
    """A tree whose nodes pass bytes to each other in this process."""
    tree = LocalTree(folder)
    yield tree
    tree.close()
