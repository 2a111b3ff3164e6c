"""How this process was started: alone, or as one of several by torchrun, Slurm or Kubernetes.

A launcher sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and often LOCAL_RANK. Every process
has a rank from 0 on. Rank 0 prints and writes files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from covey.errors import ConfigError

_HELP = "start every process with torchrun, as in torchrun --nproc-per-node 2 -m covey run my.toml"
_LARGEST_PORT = 65535


@dataclass(frozen=True)
class Launch:
    """The place of this process among those that were started together."""

    rank: int
    world: int
    local_rank: int = 0
    address: str = ""
    port: int = 0
    hosts_store: bool = True
    """Whether rank 0 holds the table in which processes find each other; else torchrun does."""
    attempt: str = "0"
    """How often torchrun has restarted the processes."""

    @staticmethod
    def read(environ: Mapping[str, str] | None = None) -> Launch:
        """What the launcher says; a ConfigError names what is missing or wrong.

        >>> Launch.read({"RANK": "1", "WORLD_SIZE": "1"})
        Traceback (most recent call last):
        covey.errors.ConfigError: RANK = 1, but WORLD_SIZE = 1: ranks count from 0 to 0.
        """
        if environ is None:
            environ = os.environ
        world = _number(environ, "WORLD_SIZE", smallest=1)
        rank = _number(environ, "RANK", smallest=0)
        if rank >= world:
            rule = f"ranks count from 0 to {world - 1}"
            raise ConfigError(f"RANK = {rank}, but WORLD_SIZE = {world}: {rule}.")
        if world == 1:
            return Launch(rank, world)
        if not environ.get("MASTER_ADDR"):
            raise ConfigError(f"MASTER_ADDR is not set, the address of rank 0's machine; {_HELP}.")
        port = _number(environ, "MASTER_PORT", smallest=1)
        if port > _LARGEST_PORT:
            raise ConfigError(f"MASTER_PORT = {port} is no port; give 1 to {_LARGEST_PORT}.")
        local_rank = rank
        if "LOCAL_RANK" in environ:
            local_rank = _number(environ, "LOCAL_RANK", smallest=0)
        return Launch(
            rank,
            world,
            local_rank,
            environ["MASTER_ADDR"],
            port,
            hosts_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
            attempt=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        )


def several(environ: Mapping[str, str] | None = None) -> bool:
    """Whether a launcher has started this process as one of several.

    >>> several({}), several({"RANK": "0", "WORLD_SIZE": "1"})
    (False, False)
    """
    if environ is None:
        environ = os.environ
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return False
    return Launch.read(environ).world > 1


def _number(environ: Mapping[str, str], name: str, *, smallest: int) -> int:
    """A whole number that the launcher has set."""
    text = environ.get(name)
    if text is None:
        raise ConfigError(f"{name} is not set; {_HELP}.")
    if not text.isascii() or not text.isdigit() or int(text) < smallest:
        rule = f"it must be a whole number of {smallest} or more"
        raise ConfigError(f"{name} = {text!r}: {rule}; {_HELP}.")
    return int(text)
