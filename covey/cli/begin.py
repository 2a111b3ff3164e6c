"""What `covey run` does: begin or resume a run, then show its table and write its page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from covey import rooms
from covey.cli.options import load_and_note, split
from covey.errors import ConfigError
from covey.files.assemble import Experiments
from covey.folder import show, trackers
from covey.folder.execute import RunCommand
from covey.folder.terminal import Console
from covey.report.summary import Summary
from covey.runs.build import chosen
from covey.runtimes.ranks.ranks import ALONE, join


def begin(
    arguments: list[str] | None,
    *,
    out: Path | None,
    resume_from: Path | None,
    anyway: bool,
    force: bool,
    runtime: str,
    store: Path | None,
    log: list[str],
    as_json: bool,
) -> None:
    """Run a file into a folder, as the options of `covey run` say."""
    runtime = chosen(runtime)
    ranks = ALONE
    if runtime == "sharded":
        ranks = join()
    console = Console(stderr=as_json, quiet=not ranks.leads)
    path, changes = split(arguments)
    if store is not None:
        changes.append(f"store={json.dumps(str(store))}")
    forced = False

    def show_table(summary: Summary) -> None:
        if ranks.leads and not as_json:
            show.table(console, summary)

    with ranks.together():
        makers = trackers.makers(log) if ranks.leads else {}
        experiments = Experiments(runtime, ranks)
        command = RunCommand(console, sys.argv, experiments, makers, show_table, anyway)
        if resume_from is not None:
            _check_resumed(resume_from, out, path)
            folder, summary = command.resume(resume_from, changes)
        elif anyway:
            raise ConfigError("--anyway is for a run that goes on; give --resume DIR too.")
        else:
            config = load_and_note(console, path, changes, demo=True)
            experiment = experiments.of(config, config.seed)
            forced = any(rooms.call("before_run", console, experiment, force))
            folder, summary = command.start(config, out)
    if not ranks.leads:
        return
    rooms.call("after_run", folder.path, console)
    if as_json:
        print(json.dumps({"folder": str(folder.path), **summary.as_dict()}))
        return
    pictures = [folder.plot, folder.devices_plot]
    if summary.yardsticks:
        pictures.append(folder.compare_plot)
    console.print(f"folder: {folder.path}   pictures: {', '.join(path.name for path in pictures)}")
    console.print(f"look again: covey show {folder.path} --devices")
    again = " --force" if forced else ""
    console.print(f"repeat: covey run {folder.config}{again}")


def _check_resumed(folder: Path, out: Path | None, path: Path | None) -> None:
    """Refuse what a resumed run brings itself."""
    if out is not None:
        raise ConfigError(f"--resume {folder} resumes in its own folder; leave out --out {out}.")
    if path is not None:
        raise ConfigError(f"--resume {folder} brings its own file; leave out {path}.")
