"""An experiment file with a table [deploy], checked, and the processes of its tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey.data.tables.census import read as read_census
from covey.data.tables.census import text as census_text
from covey.deployed.files.device_data import (
    CENSUS_FILE,
    check_files,
    check_whole_paths,
    least_of,
    with_names,
)
from covey.deployed.node.assemble import check
from covey.deployed.plan import plan_files
from covey.deployed.plan.plan import DeploySettings, processes_of
from covey.deployed.plan.process import Process
from covey.errors import ConfigError, shown
from covey.files.config import Config
from covey.files.data_form import is_census
from covey.folder.own_code import own_modules
from covey.runs.experiment import Experiment
from covey.tree import Tree

SCORE_EVERY = 10
"""Rounds between two scores where a file does not say: scores cost as many messages as training."""


@dataclass(frozen=True, eq=False)
class Deployment:
    """A file with a table [deploy], wholly checked, and the processes of its tree."""

    config: Config
    deploy: DeploySettings
    experiment: Experiment
    tree: Tree
    processes: Sequence[Process] = ()
    compare: Sequence[str | dict[str, Any]] = ()
    """Other algorithms, which run in the simulator after the tree."""

    @staticmethod
    def of(config: Config, *, local: bool = False) -> Deployment:
        """Check that the experiment can be deployed, and plan its processes.

        Processes of this machine alone get addresses of their own later.
        """
        compare: Sequence[str | dict[str, Any]] = ()
        if local:
            config = config.with_section("deploy", config.deploy or {})
            if not is_census(config):
                compare = config.compare
                config = replace(config, compare=[])
        planned = Deployment.without_processes(config, local=local)
        check([planned.experiment])
        settings = planned.deploy
        if local:
            address = dict.fromkeys(planned.tree.tiers[:-1], "{seat}.local")
            settings = replace(settings, address=address, machine={})
        processes = processes_of(planned.tree, settings)
        check_files(planned.config, processes)
        check_whole_paths(processes)
        return replace(planned, processes=processes, compare=compare)

    @staticmethod
    def without_processes(config: Config, *, local: bool = False) -> Deployment:
        """The experiment and its tree: all that one node of it has to know."""
        config = deployable(config, local=local)
        learner = config.learner()
        experiment = config.experiment(config.seed)
        # The tree that the algorithm runs on: one of two tiers puts all devices under the server.
        tree, _ = experiment.algorithm.fit(experiment.tree)
        config = with_names(config, tree.tiers[-1])
        settings = DeploySettings.read(config.deploy)
        if settings.quorum and not learner.idle_trains:
            keys = ", ".join(f"deploy.quorum.{key}" for key in settings.quorum)
            rule = f"{type(learner).__name__} counts on every answer"
            raise ConfigError(f"{keys}: {rule}; leave out quorum and deadline.")
        return Deployment(config, settings, experiment, tree)

    def compared(self) -> Config | None:
        """The experiment with the other algorithms beside it; None where there are none."""
        if not self.compare:
            return None
        return replace(self.config, compare=list(self.compare))

    def files(self) -> dict[str, str]:
        """The texts of the files that every process has, by name."""
        config = self.config
        out: dict[str, str] = {}
        if is_census(config):
            where = {key: config.data.get(key, "") for key in ("order", "columns")}
            out[CENSUS_FILE] = census_text(*read_census(Path(config.data["path"]), **where))
            data = config.data | {"path": CENSUS_FILE, "order": [], "columns": ""}
            config = replace(config, data=data)
        out[plan_files.EXPERIMENT] = config.text()
        return out | own_modules(self.config)


def deployable(config: Config, *, local: bool = False) -> Config:
    """The experiment as a deployed tree runs it; an error that says what such a tree cannot do.

    A `local` tree of this machine hides nothing where every node reads the source of all data.
    """
    if config.deploy is None:
        why = "has no table [deploy], which says where the nodes run"
        raise ConfigError(f"the file {why}; docs/deploy.md has an example.")
    _refuse_what_it_cannot(config)
    changes: dict[str, Any] = {"least": config.least}
    if "score_every" not in config.given:
        changes["score_every"] = SCORE_EVERY
    if not (local and DeploySettings.read(config.deploy).from_source):
        changes["least"] = least_of(config)
    given = config.given | changes.keys()
    if config.learner().splits and config.private not in ("", ()):
        config = config.with_section("deploy", {"share_rows": False, **config.deploy})
    return replace(config, **changes, given=given | {"deploy"})


def _refuse_what_it_cannot(config: Config) -> None:
    """Raise what a deployed tree cannot do of what a file says, and what to do."""
    absent: dict[str, tuple[Any, str]] = {
        "seeds": (1, "a deployed tree runs one seed at a time; use seeds=1"),
        "device": ("cpu", 'nodes exchange bytes in main memory; use "cpu"'),
        "holdout_devices": (0, "a device of a deployed tree is in the tree or not; leave it out"),
        "compare": ([], "a deployed tree runs one algorithm; leave it out, and use covey run"),
        "store": (None, "every node of a deployed tree has a disk of its own; leave it out"),
        "store_rows": ("dense", "it is for the simulator; leave it out"),
    }
    for key, (default, rule) in absent.items():
        value = getattr(config, key)
        if value != default:
            raise ConfigError(f"{key} = {shown(value)}: {rule}.")
    for name, table in config.environments.items():
        rule = f"[{name}] is a model of a network, and a deployed tree has a real one"
        raise ConfigError(f"{name} = {shown(table)}: {rule}; leave it out.")
