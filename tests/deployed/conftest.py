"""What tests of deployed trees begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.deployed.node.local_tree import LocalTree
from covey.deployed.operate.authority import Authority


@pytest.fixture
def local(folder: Path) -> Iterator[LocalTree]:
    """A tree whose nodes pass bytes to each other in this process."""
    tree = LocalTree(folder)
    yield tree
    tree.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    pytest.importorskip("cryptography")
    return Authority.create(tmp_path / "certs")
