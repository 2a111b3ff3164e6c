"""A whole tree on this machine: its folder, its rounds on the screen, and what they came to."""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from covey import rooms
from covey.deployed.files.deployment import Deployment
from covey.deployed.files.server_folder import RUN
from covey.deployed.plan import plan_files
from covey.deployed.plan.local import GRACE, LocalProcesses, ProcessFailed, on_this_machine
from covey.deployed.plan.process import Process
from covey.errors import ConfigError
from covey.files.config import load as load_config
from covey.files.data_form import is_census
from covey.folder import show
from covey.folder.execute import RunCommand
from covey.folder.load import load as load_run
from covey.folder.load import summary
from covey.folder.own_code import write_config, write_modules
from covey.folder.signals import Interrupted, stoppable
from covey.folder.terminal import Console
from covey.folder.trackers import flat
from covey.runs.saved import checkpoint, status
from covey.runs.saved.run_folder import Folder, GrowingFile, RunFolder
from covey.runs.scores.record import Round

_PROCESS_BYTES = 10**8
"""What a process takes of the memory at least, beside what all of them share."""
_START_WORDS = 10.0
"""Seconds between two words about processes that have not started yet."""


@dataclass(eq=False)
class LocalDeployment:
    """The processes of a deployment on this machine, in a folder that is new or holds this run."""

    deployment: Deployment
    out: Path
    insecure: bool
    command: str
    """What the user types to go on."""
    console: Console
    started_again: Counter[str] = field(default_factory=Counter)
    """How often a process was killed or has failed, and was started again."""

    @property
    def folder(self) -> Path:
        """The server's run folder."""
        return self.out / self.deployment.processes[0].name / "state" / RUN

    def run(self) -> Path:
        """Run all rounds that are left; return the server's run folder.

        Other algorithms run in the simulator then, beside the run of the tree.
        """
        compared = self.deployment.compared()
        if compared is not None:
            for other in compared.yardsticks().values():
                other.experiment(other.seed)  # an error before anything starts
        self._run_tree()
        if compared is not None:
            folder = RunFolder(self.folder)
            ran_on = folder.environment.read_text(encoding="utf-8")
            write_config(folder, compared)
            RunCommand(self.console, sys.argv).resume(self.folder, [])
            folder.write(folder.environment, ran_on)
            rooms.call("after_run", self.folder, Console(quiet=True))
        return self.folder

    def _run_tree(self) -> None:
        """Run all rounds of the tree that are left."""
        _check_memory(self.deployment.processes)
        if self.out.exists() and not self.out.is_dir():
            raise ConfigError(f"{self.out} is no folder; give another --out.")
        new = not self.out.exists() or not any(self.out.iterdir())
        processes = on_this_machine(self.deployment.processes, self.out)
        files = self.deployment.files()
        if new:
            plan_files.write(processes, files, self.out, self.deployment.deploy.image)
        with Folder(self.out).lock():
            if not new:
                self._check_same()
                if self._finished():
                    return
                for process in processes:  # it gets new ports, and the experiment of now
                    own = self.out / process.name
                    own.mkdir(mode=0o700, exist_ok=True)  # a command may have been killed before
                    Folder(own).write(plan_files.NODE, plan_files.node_file(process))
                    write_modules(own, files)
            if not self.insecure:
                plan_files.complete_certificates(processes, self.out)
            self._start([process.name for process in processes])

    # A folder from before

    def _check_same(self) -> None:
        """Refuse a folder of something else, or of another experiment."""
        name = self.deployment.processes[0].name
        file = self.out / name / plan_files.EXPERIMENT
        if not file.exists():
            raise ConfigError(f"{self.out} is not empty, and holds no tree; give another --out.")
        if (self.out / plan_files.START).exists():
            rule = "holds the files and keys of covey deploy plan"
            raise ConfigError(f"{self.out} {rule}; give another --out.")
        before = load_config(file)
        now = self.deployment.config
        fix = f"give another --out, or remove {self.out}"
        had, has = dict(flat(before.resolved())), dict(flat(now.resolved()))
        may_change = {"rounds", "name", *(["data.path"] if is_census(now) else [])}
        for key in sorted((had.keys() | has.keys()) - may_change):
            if had.get(key) != has.get(key):
                unlike = f"{key} = {had.get(key)!r}, not {has.get(key)!r}"
                raise ConfigError(f"{self.out} holds a run with {unlike}; {fix}.")
        if now.rounds != before.rounds and now.schedule() is not None:
            rule = "others would change the rates of the rounds before"
            raise ConfigError(f"{self.out} has a schedule over {before.rounds} rounds; {rule}.")
        if now.rounds < before.rounds:
            raise ConfigError(f"{self.out} holds a run of {before.rounds} rounds; {fix}.")

    def _finished(self) -> bool:
        """Whether the run has all its rounds and rows from before, which is said."""
        if status.read(self.folder).state != "finished":
            return False
        rounds = self.deployment.config.rounds
        if rounds > load_config(RunFolder(self.folder).config).rounds:
            return False
        lacks = RunFolder(self.folder).saved_facts().get(checkpoint.LACKS)
        # Without `share_rows` it can get no rows of the nodes.
        if lacks is not None and self.deployment.deploy.share_rows:
            self.console.print(f"note: {self.folder} lacks {lacks}; the tree completes it")
            return False
        more = f"for more, add rounds={rounds + 10}; for a new run, give another --out"
        self.console.print(f"note: {self.out} has run all rounds before; {more}")
        return True

    # Rounds

    def _start(self, names: list[str]) -> None:
        """Start all processes, show the rounds, and stop them."""
        console = self.console
        look = shlex.join(["covey", "ctl", "status", "--plan", str(self.out)])
        console.print(f"{self.deployment.tree}: {len(names)} processes start; look at them: {look}")
        tree = LocalProcesses(self.out, names, insecure=self.insecure, say=console.print)
        self.started_again = tree.started_again
        records = RunFolder(self.folder).growing_records()
        done = len(records.read())
        if done:
            console.print(f"note: it goes on after round {done}")
        try:
            with stoppable(console):
                self._show(tree, records)
        except KeyboardInterrupt:
            state = f"all processes are stopped after round {len(records.read())}"
            raise Interrupted(f"{state}; go on with: {self.command}") from None
        except ProcessFailed as error:
            text = f"{error} After the repair, go on with: {self.command}"
            raise ProcessFailed(text, error.code) from error
        if status.read(self.folder).state != "finished":
            state = f"the server was stopped after round {len(records.read())}"
            raise Interrupted(f"{state}; go on with: {self.command}")

    def _show(self, tree: LocalProcesses, records: GrowingFile[Round]) -> None:
        """Show rounds as they come, until the server has ended."""
        console = self.console
        learns_global = self.deployment.experiment.algorithm.learns_global
        hidden = () if learns_global else ("global",)
        rounds = self.deployment.config.rounds
        done = len(records.read())
        with tree.started(), show.ProgressBar(console, rounds, done, hidden=hidden) as shown:
            progress = StartProgress(console, tree)
            try:
                for _ in tree.watch():
                    progress.report_if_due()
                    for new in records.read()[done:]:
                        shown.log([new])
                        done += 1
            except KeyboardInterrupt:
                rest = "what takes longer is run again at the next start"
                console.print(f"stopping: the server has {GRACE:.0f} s to end its round; {rest}")
                raise


class StartProgress:
    """Says now and then how many processes have started, until all have: each imports torch."""

    def __init__(self, console: Console, tree: LocalProcesses) -> None:
        self._console = console
        self._tree = tree
        self._began = time.monotonic()
        self._next = self._began + _START_WORDS
        self._all = False

    def report_if_due(self) -> None:
        """Say how many have started, if it is time."""
        now = time.monotonic()
        if self._all or now < self._next:
            return
        started, count = self._tree.started_count()
        self._all = started == count
        self._next = now + _START_WORDS
        seconds = f"after {now - self._began:.0f} s"
        self._console.print(f"{started} of {count} processes have started {seconds}")


def _check_memory(processes: Sequence[Process]) -> None:
    """Refuse more processes than this machine can hold: each imports torch."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):  # Windows has none of them
        return
    fit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _PROCESS_BYTES
    if len(processes) <= fit:
        return
    parents = sum(process.listen is not None for process in processes)
    devices = sum(len(process.seats) for process in processes) - parents
    together = math.ceil(devices / max(1, fit // 2 - parents))
    fix = f"let devices share processes, as with deploy.devices_per_process={together}"
    raise ConfigError(
        f"{len(processes)} processes are too many for the memory of this machine; {fix}."
    )


def show_end(tree: LocalDeployment) -> None:
    """The table of a run, where everything lies, and what to do next."""
    folder, out, console = tree.folder, tree.out, tree.console
    loaded = load_run(folder)
    show.table(console, summary([loaded]))
    if tree.started_again:
        counts = ", ".join(f"{name} {count}" for name, count in tree.started_again.items())
        console.print(f"started again: {counts}")
    process = tree.deployment.processes[-1]  # of a device
    device = out / process.name / "state" / process.seats[0]
    run = RunFolder(folder)
    pictures = [run.plot, run.devices_plot]
    if loaded.config.compare:
        pictures.append(run.compare_plot)
    lines = [
        f"open first: {run.report}",
        f"folder: {folder}   pictures: {', '.join(path.name for path in pictures)}",
    ]
    if RunFolder(device).models.exists():
        predict = shlex.join(["covey", "predict", str(device), "--data", "FILE"])
        lines.append(f"each device has its models on its own disk: {predict}")
    lines.append(f"look again: {shlex.join(['covey', 'show', str(folder), '--devices'])}")
    if not is_census(loaded.config):
        lines.append(f"check it in the simulator: {shlex.join(['covey', 'replay', str(out)])}")
    if not loaded.config.compare and not is_census(loaded.config):
        others = 'the same command with \'compare=["local", "finetune"]\''
        lines.append(f"compare with devices alone and fine-tuned FedAvg: {others}")
    for line in lines:
        console.print(line)
