"""What a run folder holds besides its rounds: how to repeat it, what it came to, pictures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from covey.files.config import Config
from covey.files.registry import method
from covey.folder.folder import Folder, environment, refused
from covey.folder.seeds import Histories, folders_of
from covey.report.reported import beside
from covey.report.summary import Gain, Summary, summarise
from covey.runs.run import private_part
from covey.runs.scores.devices import DeviceScore, from_csv


def go_on(folder: Folder) -> str:
    """The command that continues the run in a folder."""
    return f"covey run --resume {shlex.quote(str(folder.path))}"


def write_commands(config: Config, folder: Folder, command: list[str]) -> None:
    """How to repeat the run, and on what it was run."""
    repeat = f"covey run {shlex.quote(str(folder.path / 'config.toml'))}"
    more = f"{go_on(folder)} rounds={config.rounds + 10}"
    if config.schedule() is not None:
        more = go_on(folder)
    folder.write("repeat.txt", f"{repeat}\n{more}\n")
    folder.write_json("environment.json", environment(command))


def write_outcome(
    config: Config,
    folder: Folder,
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
    private = private_part(next(iter(folders_of(config, folder).values())).checkpoint)
    summary = summarise(histories, config.protocol, devices, config.learner(), private)
    compared = {}
    for name, other in config.yardsticks().items():
        if other.method() in others:
            scores = device_scores(other, folder.beside(name))
            compared[other.method()] = (others[other.method()], scores)
    if compared:
        summary = beside(summary, devices, compared)
    folder.write_json("environment.json", environment(command) | {"engine": dict(engine)})
    folder.write_json("summary.json", summary.as_dict())
    show(summary)
    _draw(config, folder, histories, others, devices, summary.gains)
    return summary


def device_scores(config: Config, folder: Folder) -> list[list[DeviceScore]]:
    """The scores of every seed's devices, from its file."""
    files = [seed.path / "devices.csv" for seed in folders_of(config, folder).values()]
    return [from_csv(file.read_text(encoding="utf-8")) for file in files]


def _draw(
    config: Config,
    folder: Folder,
    histories: Histories,
    others: Mapping[str, Histories],
    devices: list[list[DeviceScore]],
    gains: Sequence[Gain],
) -> None:
    from covey.report.pictures import compare
    from covey.report.pictures.plot import draw, draw_devices

    title = method(config.algorithm["name"])
    plot = folder.path / "plot.png"
    per_device = folder.path / "devices.png"
    compared = folder.path / "compare.png"
    with refused(plot):
        draw(histories, plot, title, devices, config.protocol)
    with refused(per_device):
        draw_devices(histories, per_device, title, devices)
    if others:
        with refused(compared):
            runs = {config.method(): histories} | dict(others)
            compare.draw(runs, compared, gains, config.protocol)
