"""A whole tree on this machine: its folder, its rounds on the screen, and what they came to."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from covey.cli import show
from covey.cli.config import Config
from covey.cli.config import load as load_config
from covey.cli.deployment import Deployment
from covey.cli.device_data import is_census
from covey.cli.execute import resume
from covey.cli.folder import Folder
from covey.cli.load import load as load_run
from covey.cli.load import summary
from covey.cli.report import write_after_run
from covey.cli.server_folder import RUN
from covey.cli.stop import Interrupted
from covey.deployed import plan_files
from covey.deployed.certificates import CERTIFICATE
from covey.deployed.local import LocalProcesses, ProcessFailed, on_this_machine
from covey.deployed.own_models import replace_text
from covey.deployed.plan import Process
from covey.errors import ConfigError
from covey.runs import record, status
from covey.runs.record import Round

_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_MAY_CHANGE = ("rounds", "name")
"""What a tree that goes on may have otherwise than before."""


@dataclass(eq=False)
class LocalTree:
    """The processes of a deployment on this machine, in a folder that is new or holds this run."""

    deployment: Deployment
    out: Path
    insecure: bool
    command: str
    """What the user types to go on."""
    file: Path
    """The experiment file; modules of the user may lie beside it."""

    @property
    def folder(self) -> Path:
        """The server's run folder."""
        return self.out / self.deployment.processes[0].name / "state" / RUN

    def run(self, console: Console) -> Path:
        """Run all rounds that are left; return the server's run folder."""
        compared = self.deployment.compared()
        if compared is not None:
            for other in compared.yardsticks().values():
                other.experiment(other.seed)  # an error before anything starts
        self._run_tree(console)
        if compared is not None:
            self._compare(console, compared)
        return self.folder

    def _compare(self, console: Console, compared: Config) -> None:
        """Run the other algorithms in the simulator, beside the run of the tree."""
        folder = Folder(self.folder)
        ran_on = (self.folder / "environment.json").read_text(encoding="utf-8")
        folder.write("config.toml", compared.text())
        resume(self.folder, [], console, sys.argv)
        folder.write("environment.json", ran_on)
        write_after_run(self.folder, Console(quiet=True))

    def _run_tree(self, console: Console) -> None:
        """Run all rounds of the tree that are left."""
        new = not self.out.exists() or not any(self.out.iterdir())
        processes = on_this_machine(self.deployment.processes, self.out)
        if new:
            self.deployment.write(self.out, processes)
        with Folder(self.out).lock():
            if not new:
                self._check_same()
                if self._finished(console):
                    return
                self._rewrite(processes)
            if not self.insecure and not (self.out / processes[0].name / CERTIFICATE).exists():
                plan_files.add_certificates(processes, self.out)
            self._start(console, [process.name for process in processes])

    # A folder from before

    def _check_same(self) -> None:
        """Refuse a folder of something else, or of another experiment."""
        name = self.deployment.processes[0].name
        file = self.out / name / plan_files.EXPERIMENT
        if not file.exists():
            raise ConfigError(f"{self.out} is not empty, and holds no tree; give another --out.")
        before = load_config(file)
        now = self.deployment.config
        unlike = _unlike(before.resolved(), now.resolved(), census=is_census(now))
        fix = f"give another --out, or remove {self.out}"
        if unlike is not None:
            raise ConfigError(f"{self.out} holds a run with {unlike}; {fix}.")
        if now.rounds != before.rounds and now.schedule() is not None:
            rule = "others would change the rates of the rounds before"
            raise ConfigError(f"{self.out} has a schedule over {before.rounds} rounds; {rule}.")
        if now.rounds < before.rounds:
            raise ConfigError(f"{self.out} holds a run of {before.rounds} rounds; {fix}.")

    def _finished(self, console: Console) -> bool:
        """Whether all rounds were run before, which is said."""
        if status.read(self.folder).state != "finished":
            return False
        rounds = self.deployment.config.rounds
        if rounds > load_config(self.folder / "config.toml").rounds:
            return False
        more = f"for more, add rounds={rounds + 10}; for a new run, give another --out"
        console.print(escape(f"note: {self.out} has run all rounds before; {more}"))
        return True

    def _rewrite(self, processes: list[Process]) -> None:
        """Give processes that were started before new ports, and the experiment of now."""
        files = self.deployment.files()
        for process in processes:
            own = self.out / process.name
            replace_text(own / plan_files.NODE, plan_files.node_file(process))
            for name, text in files.items():
                replace_text(own / name, text)

    # Rounds

    def _start(self, console: Console, names: list[str]) -> None:
        """Start all processes, show the rounds, and stop them."""
        look = f"covey ctl status --plan {self.out}"
        console.print(
            escape(f"{self.deployment.tree}: {len(names)} processes start; look at them: {look}")
        )
        modules = None
        if _names_own_modules(self.deployment.config.resolved()):
            modules = self.file.parent
        tree = LocalProcesses(self.out, names, insecure=self.insecure, modules=modules)
        records = NewRecords(self.folder / "metrics.jsonl")
        done = records.skip()
        if done:
            console.print(f"note: it goes on after round {done}")
        try:
            self._show(console, tree, records, done)
        except KeyboardInterrupt:
            state = f"all processes are stopped after round {records.rounds}"
            raise Interrupted(f"{state}; go on with: {self.command}") from None
        except ProcessFailed as error:
            raise ProcessFailed(f"{error} After the repair, go on with: {self.command}") from error
        if status.read(self.folder).state != "finished":
            state = f"the server was stopped after round {records.rounds}"
            raise Interrupted(f"{state}; go on with: {self.command}")

    def _show(self, console: Console, tree: LocalProcesses, records: NewRecords, done: int) -> None:
        hidden = () if self.deployment.experiment.algorithm.learns_global else ("global",)
        rounds = self.deployment.config.rounds
        with (
            tree.started(),
            show.progress(console, label="", rounds=rounds, done=done, hidden=hidden) as shown,
        ):
            for _ in tree.watch():
                for record in records.new():
                    shown([record])


class NewRecords:
    """The records that a process appends to a file of rounds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = 0
        self._offset = 0
        self.rounds = 0
        """How many rounds the file has had so far."""

    def skip(self) -> int:
        """Pass over all records that are there; return how many rounds there were."""
        for _ in self.new():
            pass
        return self.rounds

    def new(self) -> Iterator[Round]:
        """The rounds that were not there before; half a line waits for its end."""
        for line in self._lines():
            new = record.read(json.loads(line))
            if new.round >= self.rounds:
                self.rounds = new.round + 1
                yield new

    def _lines(self) -> list[str]:
        """Whole lines behind those that were read; a file that was replaced is read anew."""
        try:
            with open(self._path, "rb") as file:
                number = os.fstat(file.fileno()).st_ino
                if number != self._file:
                    self._file = number
                    self._offset = 0
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode().splitlines()


def _unlike(before: Mapping[str, Any], now: Mapping[str, Any], *, census: bool) -> str | None:
    """The first setting that differs, with both values; None where none does."""
    ours = dict(_flat(now))
    theirs = dict(_flat(before))
    for key in sorted(ours.keys() | theirs.keys()):
        if key in _MAY_CHANGE or (census and key == "data.path"):
            continue
        if ours.get(key) != theirs.get(key):
            return f"{key} = {theirs.get(key)!r}, not {ours.get(key)!r}"
    return None


def _names_own_modules(settings: Mapping[str, Any]) -> bool:
    """Whether an experiment names something as package.module:name."""
    for key, value in _flat(settings):
        for text in value if isinstance(value, list) else [value]:
            if not key.startswith("deploy.") and isinstance(text, str) and _OWN.fullmatch(text):
                return True
    return False


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a table under its whole key."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def show_end(console: Console, folder: Path, out: Path) -> None:
    """The table of a run, where everything lies, and what to do next."""
    loaded = load_run(folder)
    show.table(console, summary([loaded]))
    device = next(iter(sorted(out.glob("*/state/device*/models"))), None)
    pictures = "plot.png, devices.png"
    if loaded.config.compare:
        pictures += ", compare.png"
    lines = [
        f"open first: {folder / 'report.html'}",
        f"folder: {folder}   pictures: {pictures}",
    ]
    if device is not None:
        own = device.parent
        lines.append(f"each device has its models on its own disk: covey predict {own} --data FILE")
    lines += [
        f"look again: covey show {folder} --devices",
        f"check it in the simulator: covey replay {out}",
    ]
    if not loaded.config.compare and not is_census(loaded.config):
        others = 'the same command with \'compare=["local", "finetune"]\''
        lines.append(f"compare with devices alone and fine-tuned FedAvg: {others}")
    for line in lines:
        console.print(escape(line))
