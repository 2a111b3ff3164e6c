"""Machines on a switch: network namespaces, each with a cable (a veth pair) to one bridge.

To everything but the disk a namespace is a machine of its own: it has its own addresses, its own
loopback and its own ports. Taking its end at the switch down is pulling its cable.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

NETWORK = "10.98"
SWITCH = f"{NETWORK}.255.1"
"""The address of the switch itself, where proxies listen."""
_BRIDGE = "switch"
_CABLE = "cable"
_CLONE_NEWNET = 0x40000000


def skip_without_namespaces() -> None:
    """Skip a test where the system allows no network namespaces, with the reason."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip (iproute2)")
    if os.geteuid() != 0:
        pytest.skip("needs root, for network namespaces")
    trial = f"covey-{os.getpid()}-trial"
    try:
        _ip("netns", "add", trial)
        _ip("netns", "del", trial)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the system allows no network namespaces: {error.stderr.strip()}")


class Machines:
    """Namespaces by name, all on one switch; use it as a context."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.addresses = {
            name: f"{NETWORK}.{number // 250}.{number % 250 + 1}"
            for number, name in enumerate(names)
        }
        self._prefix = f"covey-{os.getpid()}"

    def __enter__(self) -> Machines:
        try:
            self._make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def _make(self) -> None:
        hub = self._space(_BRIDGE)
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", _BRIDGE, "type", "bridge")
        _ip("-n", hub, "addr", "add", f"{SWITCH}/16", "dev", _BRIDGE)
        _ip("-n", hub, "link", "set", _BRIDGE, "up")
        _ip("-n", hub, "link", "set", "lo", "up")
        for name in self.names:
            self._join(name, hub)

    def _join(self, name: str, hub: str) -> None:
        """A machine with a cable to the switch."""
        space = self._space(name)
        _ip("netns", "add", space)
        ends = ("type", "veth", "peer", "name", _end(name), "netns", hub)
        _ip("link", "add", "name", _CABLE, "netns", space, *ends)
        _ip("-n", space, "addr", "add", f"{self.addresses[name]}/16", "dev", _CABLE)
        _ip("-n", space, "link", "set", _CABLE, "up")
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", hub, "link", "set", _end(name), "master", _BRIDGE)
        _ip("-n", hub, "link", "set", _end(name), "up")

    def remove(self) -> None:
        """Remove all namespaces, with their cables."""
        for name in (*self.names, _BRIDGE):
            space = self._space(name)
            if Path("/run/netns", space).exists():
                _ip("netns", "del", space)

    def command(self, name: str) -> list[str]:
        """The words before a command that runs on a machine."""
        return ["ip", "netns", "exec", self._space(name)]

    def unplug(self, name: str) -> None:
        """Pull the cable of a machine out of the switch."""
        _ip("-n", self._space(_BRIDGE), "link", "set", _end(name), "down")

    def plug(self, name: str) -> None:
        """Put it in again."""
        _ip("-n", self._space(_BRIDGE), "link", "set", _end(name), "up")

    @contextmanager
    def inside(self, name: str = _BRIDGE) -> Iterator[None]:
        """Sockets that this thread makes meanwhile are those of a machine, or of the switch."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(Path("/run/netns", self._space(name)), os.O_RDONLY)
        try:
            _enter(there)
            yield
            _enter(here)
        finally:
            os.close(here)
            os.close(there)

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"


def _end(name: str) -> str:
    """The end of a machine's cable at the switch; names of interfaces have 15 letters at most."""
    return f"to-{name}"[:15]


def _enter(namespace: int) -> None:
    """Let this thread be in a namespace."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
