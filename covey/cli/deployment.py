"""An experiment file with a table [deploy], checked, and the processes of its tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey.cli.config import Config
from covey.cli.deploy_config import DeployFile, check_quorum, deployable, read, tree_of
from covey.cli.device_data import (
    CENSUS_FILE,
    check_files,
    check_whole_paths,
    is_census,
    with_names,
)
from covey.cli.named import resolved
from covey.cli.own_code import own_modules
from covey.data import locations
from covey.data.census import read as read_census
from covey.data.census import text as census_text
from covey.deployed import plan_files
from covey.deployed.assemble import check
from covey.deployed.plan import Process, processes_of
from covey.runs.experiment import Experiment
from covey.tree import Tree


@dataclass(frozen=True, eq=False)
class Deployment:
    """A file with a table [deploy], wholly checked, and the processes of its tree."""

    config: Config
    deploy: DeployFile
    experiment: Experiment
    tree: Tree
    processes: list[Process]
    compare: Sequence[str | dict[str, Any]] = ()
    """Other algorithms, which run in the simulator after the tree."""

    @staticmethod
    def of(config: Config, *, local: bool = False) -> Deployment:
        """Check that the experiment can be deployed, and plan its processes.

        Processes of this machine alone get addresses of their own later.
        """
        compare: Sequence[str | dict[str, Any]] = ()
        if local:
            config = config.model_copy(update={"deploy": config.deploy or {}})
            if not is_census(config):
                compare = config.compare
                config = config.model_copy(update={"compare": []})
        config = deployable(config, local=local)
        check_quorum(read(config.deploy or {}), config.learner())
        experiment = config.experiment(config.seed)
        check([experiment])
        tree = tree_of(experiment)
        config = with_names(config, tree.tiers[-1])
        deploy = read(config.deploy or {})
        settings = deploy.settings()
        if local:
            address = dict.fromkeys(tree.tiers[:-1], "{seat}.local")
            settings = replace(settings, address=address, machine={})
        processes = processes_of(tree, settings)
        check_files(config, processes)
        check_whole_paths(processes)
        return Deployment(config, deploy, experiment, tree, processes, compare)

    def compared(self) -> Config | None:
        """The experiment with the other algorithms beside it; None where there are none."""
        if not self.compare:
            return None
        return self.config.model_copy(update={"compare": list(self.compare)})

    def write(
        self, folder: Path, processes: list[Process], *, compose: bool = True
    ) -> dict[str, Path]:
        """Write the files of all processes; return the folder of each."""
        image = None
        if compose:
            image = self.deploy.image
        return plan_files.write(processes, self.files(), folder, image)

    def files(self) -> dict[str, str]:
        """The texts of the files that every process has, by name."""
        config = self.config
        out: dict[str, str] = {}
        if is_census(config):
            where = {key: config.data.get(key, "") for key in ("order", "columns")}
            out[CENSUS_FILE] = census_text(*read_census(Path(config.data["path"]), **where))
            data = config.data | {"path": CENSUS_FILE, "order": [], "columns": ""}
            config = config.model_copy(update={"data": data})
        out[plan_files.EXPERIMENT] = config.text()
        return out | self.modules()

    def modules(self) -> dict[str, str]:
        """The texts of modules of the user's own that the experiment names, by path."""
        return own_modules(self.config)

    def needed_files(self) -> dict[str, str]:
        """Files that the experiment names and that do not travel with it, by key."""
        named = {"data.data_dir": self.config.data.get("data_dir")}
        named["model.weights"] = self.config.model.get("weights")
        if not is_census(self.config):
            named["data.path"] = self.config.data.get("path")
        return {key: path for key, path in named.items() if path not in (None, "none")}

    def found_set(self) -> tuple[str, Path] | None:
        """The data set that was found in the data folder of this machine, and that folder.

        None where the file names the folder, or the data are in no such folder.
        """
        settings = resolved("data", self.config.data)
        if "data_dir" not in settings or settings["data_dir"] not in (None, "none"):
            return None
        return settings["name"], locations.folder().absolute()
