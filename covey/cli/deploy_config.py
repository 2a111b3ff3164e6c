"""The table [deploy] of a file: where the nodes of a tree run, and what each of them has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from covey.cli.validate import STRICT, check
from covey.deployed.plan import LOOPBACK, SOURCE, Settings
from covey.errors import ConfigError
from covey.kernel.algorithm import Algorithm
from covey.runs.experiment import Experiment
from covey.tree import Tree

if TYPE_CHECKING:
    from covey.cli.config import Config

Quorum = Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Norm = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=4096)]
_STATE = re.compile(r"/[A-Za-z0-9_./-]+")


def _state_folder(text: str) -> str:
    """A folder that a systemd unit, a compose file and a shell command can name alike."""
    path = PurePosixPath(text)
    if _STATE.fullmatch(text) is None or ".." in path.parts or path == PurePosixPath("/"):
        raise ValueError("give a whole path without .. in it, of letters, digits, _, - and dots")
    return str(path)


SCORE_EVERY = 10
"""Rounds between two scores where a file does not say: scores cost as many messages as training."""
LEAST = 5
"""Examples of a part below which a device keeps its sums, where a file does not say."""


class DeployFile(BaseModel):
    """Where the nodes of a tree run. The tables are by tier, or by the name of a seat.

    `names` are lists of names by tier; without them a node is called by its tier and its number.
    `address` says where a node with children is reached, `machine` where a process of devices runs.
    `data` are files of devices on their own machines; with "source", each device takes its own part
    of the experiment's data. `quorum` and `deadline` say how many children are enough after how
    many seconds. `norm_bound` is the largest norm of a row that a node may answer in training.
    After `strikes` bad messages a parent evicts their sender. With `diverged` = "drop" and a
    quorum, a device whose training diverged does not end the run: its answer is a bad one.
    `processes` names devices that share a process; `devices_per_process` puts neighbours together.
    `state` is the folder of a node's disk on its machine. Without `share_rows`, edges and devices
    keep what they keep to themselves: the server's folder has no models of theirs. So it is where
    the algorithm leaves layers private and the file does not say otherwise.
    """

    model_config = STRICT
    address: dict[str, Text] = {}
    machine: dict[str, Text] = {}
    names: dict[str, list[str]] = {}
    data: Literal["source"] | dict[str, Text] = "source"
    quorum: dict[str, Quorum] = {}
    deadline: dict[str, Seconds] = {}
    norm_bound: dict[str, Norm] = {}
    strikes: int = Field(3, ge=1, le=1_000_000)
    diverged: Literal["end", "drop"] = "end"
    processes: dict[str, list[str]] = {}
    devices_per_process: int = Field(1, ge=1)
    port: int = Field(8443, ge=1, le=65535)
    control_port: int = Field(9443, ge=1, le=65535)
    control_host: str = Field(LOOPBACK, pattern=r"^[A-Za-z0-9_.:-]+$")
    state: Annotated[str, AfterValidator(_state_folder)] = "/var/lib/covey"
    durability: Literal["process", "power"] = "process"
    share_rows: bool = True
    image: str = Field("covey", pattern=r"^[A-Za-z0-9_./:@-]+$")

    def settings(self) -> Settings:
        """The table as the plan of a tree takes it."""
        fields = self.model_dump(exclude={"image", "data"})
        data = self.data
        if isinstance(data, str):
            data = {}
        return Settings(data=data, **fields)

    @property
    def from_source(self) -> bool:
        """Whether every device takes its own part of the experiment's data."""
        if isinstance(self.data, str):
            return True
        return all(text == SOURCE for text in self.data.values())


def read(table: Mapping[str, Any]) -> DeployFile:
    """The table, checked."""
    return check(DeployFile, table, "deploy.")


def deployable(config: Config, *, local: bool = False) -> Config:
    """The experiment as a deployed tree runs it; an error that says what such a tree cannot do.

    A `local` tree of this machine hides nothing where every node reads the source of all data.
    """
    if config.deploy is None:
        why = "has no table [deploy], which says where the nodes run"
        raise ConfigError(f"the file {why}; docs/deploy.md has an example.")
    reason = _refusal(config)
    if reason is not None:
        raise ConfigError(f"{reason}.")
    changes: dict[str, Any] = {"deploy": config.deploy, "least": config.least}
    if "score_every" not in config.model_fields_set:
        changes["score_every"] = SCORE_EVERY
    if not (local and read(config.deploy).from_source):
        changes["least"] = least_of(config)
    if config.learner().splits and config.private not in ("", []):
        changes["deploy"] = {"share_rows": False, **config.deploy}
    return config.model_copy(update=changes)


def least_of(config: Config) -> int:
    """How many examples a device has that tells sums of them."""
    return config.least if "least" in config.model_fields_set else LEAST


def _refusal(config: Config) -> str | None:
    """What a deployed tree cannot do of what a file says, and what to do; None: it can do all."""
    refusals = [
        (
            config.seeds > 1,
            f"seeds = {config.seeds}: a deployed tree runs one seed at a time; use seeds=1",
        ),
        (
            config.radio is not None,
            "[radio] is a model of a network, and a deployed tree has a real one; leave it out",
        ),
        (
            bool(config.holdout_devices),
            "holdout_devices: a device of a deployed tree is in the tree or not; leave it out",
        ),
        (
            bool(config.compare),
            "compare: a deployed tree runs one algorithm; compare in covey run, or leave it out",
        ),
        (
            config.device != "cpu",
            f'device = "{config.device}": nodes exchange bytes in main memory; use "cpu"',
        ),
        (
            config.store is not None,
            "store: every node of a deployed tree has a disk of its own; leave it out",
        ),
        (
            config.store_rows != "dense",
            f'store_rows = "{config.store_rows}" is for the simulator; leave it out',
        ),
    ]
    return next((sentence for refused, sentence in refusals if refused), None)


def check_quorum(deploy: DeployFile, algorithm: Algorithm) -> None:
    """Refuse a quorum where the algorithm counts on every answer."""
    if deploy.quorum and not algorithm.idle_trains:
        name = type(algorithm).__name__
        keys = ", ".join(f"deploy.quorum.{key}" for key in deploy.quorum)
        raise ConfigError(f"{keys}: {name} counts on every answer; leave out quorum and deadline.")


def tree_of(experiment: Experiment) -> Tree:
    """The tree that the algorithm runs on: one of two tiers puts all devices under the server."""
    tree, _ = experiment.algorithm.fit(experiment.tree)
    return tree
