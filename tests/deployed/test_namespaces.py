"""Real processes on a network: each node of the tree on a machine of its own, over mutual TLS.

Whatever the network does, a tree without a quorum ends with the bits of the simulator.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from tests.deployed.fleet import Fleet
from tests.deployed.namespaces import Machines

pytestmark = pytest.mark.skipif(
    "COVEY_TEST_ALL" not in os.environ, reason="starts many processes: make test-deployed"
)
FEEDBACK = 'codec = {name = "int8", update = true, feedback = true}'


# What the network does while the tree trains. A round has 30 or more messages.


def nothing(fleet: Fleet) -> None:
    """A network without faults."""


def delays(fleet: Fleet) -> None:
    """20 ms in each direction, 100 ms to one edge."""
    for name, proxy in fleet.proxies.items():
        proxy.delay = 0.1 if name == "edge1" else 0.02


def stalls(fleet: Fleet) -> None:
    """Nothing comes through from two nodes for some seconds; nothing is lost."""
    for name, seconds in (("device3", 4.0), ("edge2", 8.0)):
        fleet.proxies[name].stall()
        time.sleep(seconds)
        fleet.proxies[name].flow()


def breaks(fleet: Fleet) -> None:
    """Connections are broken off, again and again."""
    for _ in range(8):
        for name in ("device0", "device7", "edge0", "edge1"):
            if name in fleet.proxies:
                fleet.proxies[name].reset()
                time.sleep(0.5)


def cuts(fleet: Fleet) -> None:
    """Everything that a device sends or gets is lost, until the pings have found it."""
    fleet.proxies["device5"].cut()
    cut = time.time()
    fleet.until(lambda: fleet.left("server", "device5", cut) is not None, 30, "word of it")
    print(json.dumps({"found": round(time.time() - cut, 1)}))
    time.sleep(max(0.0, cut + 20 - time.time()))
    fleet.proxies["device5"].mend()


def unplugs(fleet: Fleet) -> None:
    """The cables of a device and of an edge are out for some seconds, and nobody notices."""
    for name in ("device2", "edge1"):
        fleet.machines.unplug(name)
        time.sleep(5)
        fleet.machines.plug(name)


ON_A_TREE = {
    "permfl": ("edge_rounds = 3\nsteps = 3\nsample = 2\nstale = 'include'", "", nothing),
    "sfedhp": ("edge_rounds = 2\nsteps = 3\ngamma1 = 0.01\ngamma2 = 0.01", FEEDBACK, delays),
    "hierfavg": ("edge_rounds = 2\nsteps = 3\ndevice_sample = 0.5", FEEDBACK, stalls),
    "fedalt": ("edge_rounds = 2\ndevice_sample = 3", "", breaks),
    "al2gd": ("p = 0.1\nedge_p = 0.3", "", unplugs),
}
FLAT = {"scaffold": ("steps = 4\nsample = 5", FEEDBACK, cuts), "fedamp": ("steps = 4", "", breaks)}


@pytest.mark.parametrize("name", [*ON_A_TREE, *FLAT])
def test_a_tree_on_a_network_is_the_simulator(
    name: str, machines: Machines, tmp_path: Path
) -> None:
    lines, settings, trouble = {**ON_A_TREE, **FLAT}[name]
    algorithm = f'name = "{name}"\n{lines}'
    flat = name in FLAT
    proxies = trouble is not unplugs
    with Fleet(
        tmp_path,
        machines,
        algorithm,
        flat=flat,
        proxies=proxies,
        rounds=12,
        settings=settings,
        deploy="share_rows = true",  # also private layers: the server's files are compared
    ) as fleet:
        assert len(fleet.processes) == (13 if flat else 16)
        fleet.wait_rounds(1)
        trouble(fleet)
        fleet.wait_end()
        assert fleet.missing() == []
        assert fleet.differences(fleet.simulated()) == []
