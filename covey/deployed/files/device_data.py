"""Data that stay with their devices: describing them, and reading a device's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from covey.data import Shards
from covey.data.tables.census import DeviceFacts, number_of, own_part, read
from covey.data.tables.options import TableOptions
from covey.data.tables.table_readers import stem
from covey.deployed.plan.plan import SOURCE
from covey.deployed.plan.process import Process
from covey.errors import ConfigError
from covey.files import named
from covey.files.config import Config, expanded
from covey.files.data_form import is_census

CENSUS_FILE = "census.json"
LEAST = 5
"""Examples of a part below which a device keeps its sums, where a file does not say."""
_FORM = ("label", "decimal", "missing", "split")
"""Settings of a census that say how a device's own file is read."""


def with_names(config: Config, leaf: str) -> Config:
    """The file with the names of its census for the devices, where it does not name them itself.

    `leaf` is the tier of the devices.
    """
    order = config.data.get("order")
    deploy = dict(config.deploy or {})
    names = deploy.get("names", {})
    if not is_census(config) or not order or leaf in names:
        return config
    deploy["names"] = {**names, leaf: list(order)}
    return config.with_section("deploy", deploy)


def least_of(config: Config) -> int:
    """How many examples a device has that tells sums of them."""
    return config.least if "least" in config.given else LEAST


def described(config: Config, file: Path) -> dict[str, Any]:
    """What a device tells of its file: counts, moments and words, and no example."""
    if not is_census(config):
        name = config.data.get("name")
        raise ConfigError(f'data.name = "{name}": only the devices of a "census" have own files.')
    settings = named.resolved("data", config.data)
    options = TableOptions(
        features=settings["features"] or None,
        categorical=settings["categorical"],
        classes=settings["classes"],
        regression=settings["classes"] is None,
        normalise=settings["normalise"],
        seed=config.seed,
        **_form(settings),
    )
    number = number_of(stem(file), settings["order"]) or 0
    return DeviceFacts.of(file, options, number, least_of(config)).as_dict()


def check_files(config: Config, processes: list[Process]) -> None:
    """Refuse devices of a census without a file, and files where there is no census."""
    for process in processes:
        for seat in process.nodes:
            has_file = seat.name in process.data
            if is_census(config) and not seat.children and not has_file:
                fix = f'give deploy.data.{seat.tier} = "/srv/covey/{{seat}}.csv"'
                raise ConfigError(f"{seat.name} has no file; {fix}.")
            if has_file and seat.children:
                raise ConfigError(f"{seat.name} has children, and no data; leave out its file.")
            if has_file and not is_census(config):
                file = process.data[seat.name]
                fix = 'use data.name = "census", or leave out the file'
                raise ConfigError(f"{seat.name} has the file {file} of its own; {fix}.")
    if is_census(config) and config.protocol == "paper":
        raise ConfigError('protocol = "paper" is for shared data; with a census, leave it out.')


def check_whole_paths(processes: list[Process]) -> None:
    """Refuse files whose place depends on the folder in which a process is started."""
    for process in processes:
        for seat, file in process.data.items():
            if not Path(file).is_absolute():
                rule = "the file is on the machine of the device, so give its whole path"
                raise ConfigError(f'deploy.data: {seat} has "{file}"; {rule}.')


def with_whole_paths(config: Config, folder: Path) -> Config:
    """The same experiment, with files of devices on this machine, relative to a folder."""
    deploy = dict(config.deploy or {})
    files = deploy.get("data")
    if not isinstance(files, dict):
        return config
    whole = {
        key: str(folder.absolute() / expanded(text, f"deploy.data.{key}"))
        for key, text in files.items()
        if isinstance(text, str) and text != SOURCE
    }
    return config.with_section("deploy", deploy | {"data": files | whole})


def own_data(config: Config, process: Process, described: Shards) -> dict[str, Shards]:
    """The examples of every device of a process, from its own file; by seat."""
    check_files(config, [process])
    return {
        seat.name: own_examples(config, Path(process.data[seat.name]), described, seat.number)
        for seat in process.nodes
        if seat.name in process.data
    }


def own_examples(
    config: Config,
    file: Path,
    described: Shards,
    device: int,
) -> Shards:
    """The examples of one device, from its own file."""
    settings = named.resolved("data", config.data)
    told = read(Path(settings["path"]).expanduser(), settings["order"])[0][device]
    return own_part(file, described, device, told, seed=config.seed, **_form(settings))


def _form(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in _FORM}
