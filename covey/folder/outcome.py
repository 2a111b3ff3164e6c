"""What a run folder holds besides its rounds: how to repeat it, what it came to, pictures."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import safetensors
import torch

import covey
from covey.atomic import refused
from covey.files.config import Config
from covey.files.registry import method
from covey.folder.seeds import Histories
from covey.report.summary import Gain, Summary, summarise
from covey.runs.saved.run_folder import RunFolder
from covey.runs.scores.devices import DeviceScore, from_csv


def go_on(folder: RunFolder) -> str:
    """The command that continues the run in a folder."""
    return f"covey run --resume {shlex.quote(str(folder.path))}"


def write_commands(config: Config, folder: RunFolder, command: list[str]) -> None:
    """How to repeat the run, and on what it was run."""
    repeat = f"covey run {shlex.quote(str(folder.config))}"
    more = f"{go_on(folder)} rounds={config.rounds + 10}"
    if config.schedule() is not None:
        more = go_on(folder)
    folder.write(folder.repeat, f"{repeat}\n{more}\n")
    folder.write_json(folder.environment, environment(command))


def environment(command: list[str]) -> dict[str, Any]:
    """What a run ran on."""
    cuda = None
    if torch.cuda.is_available():
        cuda = torch.cuda.get_device_name()
    packages = (covey, torch, numpy, safetensors)
    versions = {package.__name__: package.__version__ for package in packages}
    versions["python"] = platform.python_version()
    machine = {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": cuda,
    }
    return {
        "versions": versions,
        "machine": machine,
        "command": command,
        "executable": sys.executable,
    }


def write_outcome(
    config: Config,
    folder: RunFolder,
    histories: Histories,
    others: Mapping[str, Histories],
    engine: Mapping[str, Any],
    command: list[str],
    show: Callable[[Summary], None] = lambda summary: None,
) -> Summary:
    """The summary and the pictures of a run whose seeds are all in their folders.

    `others` are the rounds of the algorithms that ran beside it, by method. The user need not wait
    for the pictures: `show` is called before they are drawn.
    """
    if not folder.writes:
        return summarise(histories, config.protocol)
    devices = device_scores(config, folder)
    first = folder.of_seeds(config.every_seed)[config.seed]
    compared = {}
    for name, other in config.yardsticks().items():
        if other.method() in others:
            scores = device_scores(other, folder.beside(name))
            compared[other.method()] = (others[other.method()], scores)
    described = first.read_json(first.described)
    summary = summarise(histories, config.protocol, devices, described, compared)
    folder.write_json(folder.environment, environment(command) | {"engine": dict(engine)})
    folder.write_json(folder.summary, summary.as_dict())
    show(summary)
    _draw(config, folder, histories, others, devices, summary.gains)
    return summary


def device_scores(config: Config, folder: RunFolder) -> list[list[DeviceScore]]:
    """The scores of every seed's devices, from its file."""
    seeds = folder.of_seeds(config.every_seed).values()
    return [from_csv(seed.devices.read_text(encoding="utf-8")) for seed in seeds]


def _draw(
    config: Config,
    folder: RunFolder,
    histories: Histories,
    others: Mapping[str, Histories],
    devices: list[list[DeviceScore]],
    gains: Sequence[Gain],
) -> None:
    from covey.report.pictures import compare
    from covey.report.pictures.plot import draw, draw_devices

    title = method(config.algorithm["name"])
    with refused(folder.plot):
        draw(histories, folder.plot, title, devices, config.protocol)
    with refused(folder.devices_plot):
        draw_devices(histories, folder.devices_plot, title, devices)
    if others:
        with refused(folder.compare_plot):
            runs = {config.method(): histories} | dict(others)
            compare.draw(runs, folder.compare_plot, gains, config.protocol)
