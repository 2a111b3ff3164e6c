"""What `covey run` does: begin or resume a run, then show its table and write its page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from covey.advice.command import print_advice, quick
from covey.cli.options import load_and_note, split
from covey.cli.report import write_after_run
from covey.errors import ConfigError
from covey.files.assemble import Experiments
from covey.folder import show, trackers
from covey.folder.execute import resume, start
from covey.folder.terminal import Console
from covey.report.summary import Summary
from covey.runs.build import chosen
from covey.runs.experiment import Experiment
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
        makers = trackers.makers(log)
        if not ranks.leads:
            makers = {}
        experiments = Experiments(runtime, ranks)
        how = (console, sys.argv, experiments, makers, show_table)
        if resume_from is not None:
            _check_resumed(resume_from, out, path)
            folder, summary = resume(resume_from, changes, *how, anyway=anyway)
        elif anyway:
            raise ConfigError("--anyway is for a run that goes on; give --resume DIR too.")
        else:
            config = load_and_note(console, path, changes, demo=True)
            forced = _is_forced(console, experiments.of(config, config.seed), force)
            folder, summary = start(config, out, *how)
    if not ranks.leads:
        return
    write_after_run(folder.path, console)
    if as_json:
        print(json.dumps({"folder": str(folder.path), **summary.as_dict()}))
        return
    pictures = ["plot.png", "devices.png", *["compare.png"] * bool(summary.yardsticks)]
    console.print(f"folder: {folder.path}   pictures: {', '.join(pictures)}")
    console.print(f"look again: covey show {folder.path} --devices")
    again = " --force" if forced else ""
    console.print(f"repeat: covey run {folder.path / 'config.toml'}{again}")


def _check_resumed(folder: Path, out: Path | None, path: Path | None) -> None:
    """Refuse what a resumed run brings itself."""
    if out is not None:
        raise ConfigError(f"--resume {folder} resumes in its own folder; leave out --out {out}.")
    if path is not None:
        raise ConfigError(f"--resume {folder} brings its own file; leave out {path}.")


def _is_forced(console: Console, experiment: Experiment, force: bool) -> bool:
    """Show warnings, and refuse what is certain to diverge unless forced; return whether it was."""
    advice = quick(experiment)
    errors = [item for item in advice if item.level == "error"]
    print_advice(console, [item for item in advice if item.level == "warning"])
    if errors and not force:
        texts = " ".join(item.text for item in errors)
        raise ConfigError(f"{texts} To start it nevertheless: covey run --force.")
    print_advice(console, errors)
    return bool(errors)
