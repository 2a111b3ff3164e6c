"""The scripts of an operator: one signs the certificates of a plan, one starts its nodes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.deployed.own_models import DISK
from covey.deployed.plan import LOOPBACK, Process, is_loopback
from covey.deployed.plan_files import CONFIG_FOLDER, STATE_ROOT, unit_name, write_new

SIGN = "sign.sh"
START = "start.sh"
UNITS = "/etc/systemd/system"
"""Where the units lie that root has made."""
_SIGN = """\
# Signs the requests in this folder, on the machine of the authority:
#   sh sign.sh [--replace] [AUTHORITY]
# With --replace its certificates replace valid ones of the same names and seats.
# It may be started again after a failure.
set -eu
folder=$(dirname "$0")
replace=REPLACE
if test "${1:-}" = --replace; then
    replace=$1
    shift
fi
authority=${1:-AUTHORITY}

sign() {  # NAME, and options of covey certs issue
    if test -e "$folder/$1/certificate.pem"; then return; fi
    if ! test -e "$folder/$1/request.pem"; then
        echo "$folder/$1/request.pem is missing. Copy it from the machine of $1; there:" >&2
        echo "  covey certs request $1 --dir CONFIG/$1" >&2
        exit 1
    fi
    request=$folder/$1/request.pem
    if ! covey certs issue "$@" $replace --dir "$authority" --request "$request" > /dev/null; then
        if test -n "$replace"; then exit 2; fi
        echo "If this plan replaces an earlier one of the same tree: sh $0 --replace" >&2
        echo "Another tree needs an authority of its own: sh $0 AUTHORITY" >&2
        exit 2
    fi
    cp "$authority/$1/ca.pem" "$authority/$1/certificate.pem" "$folder/$1/"
    echo "signed $1"
}
"""
_INIT = """\
if ! test -e "$authority/ca.pem"; then
    covey certs init --dir "$authority" > /dev/null
    echo "made the authority $authority: keep its ca.key off every node"
fi
"""
_TELL_REVOKED = 'for own in "$folder"/*/; do cp "$authority/revoked.pem" "$own"; done'
_START = """\
# Copies every folder to its machine, and starts its node.
# It may be started again after a failure: what is done already stays as it is.
set -eu
folder=$(dirname "$0")
failed=
"""
_FUNCTIONS = """\

known() {  # PROCESS MACHINE: whether the name of its machine was put in
    if test "$2" != "$1".example; then return; fi
    echo "$2 is made up: put in the machine of $1 at the top of $0" >&2
    unknown=yes
}

try() {  # PROCESS COMMAND: runs it, unless something for this process has failed before
    process=$1
    shift
    case "$failed " in *" $process "*) return;; esac
    "$@" || failed="$failed $process"
}

on() {  # MACHINE COMMAND
    case $1 in
    HERE) sh -c "$2" ;;
    *) ssh "root@$1" "$2" ;;
    esac
}

copy() {  # PROCESS MACHINE: its folder, and its unit, which stays with root
    case $2 in
    HERE)
        mkdir -p "CONFIG/$1" || return 1
        cp -R "$folder/$1/." "CONFIG/$1/" || return 1
        install -m 644 "$folder/$1/covey-$1.service" UNITS/
        ;;
    *)
        case $2 in
        *:*) host="root@[$2]" ;;
        *) host="root@$2" ;;
        esac
        # Files belong to root there until the user of the process gets them: the number of the
        # user who has them here may be anybody's.
        rsync -a --no-owner --no-group --rsync-path="mkdir -p CONFIG && rsync" \\
            "$folder/$1/" "$host:CONFIG/$1/" || return 1
        rsync -a --no-owner --no-group "$folder/$1/covey-$1.service" "$host:UNITS/"
        ;;
    esac
}
"""
_KEEP = """
keep() {  # SEAT OLD-PROCESS OLD-MACHINE OLD-STATE MACHINE STATE: its disk comes along
    if test "$3" = "$5"; then
        on "$5" "
            if test $4/$1 = $6/$1 || ! test -e $4/$1; then exit 0; fi
            if test -e $6/$1; then
                echo \\"$5: $1 has a disk in $4 and one in $6; remove the older one\\" >&2
                exit 1
            fi
            if systemctl is-active --quiet covey-$2.service; then
                echo \\"$5: covey-$2 still runs; stop it first\\" >&2
                exit 1
            fi
            install -d -o covey -m 700 $6 && mv $4/$1 $6/$1" || return 1
    fi
    code=0
    on "$5" "test -e $6/$1/DISK" || code=$?
    case $code in
    0) on "$5" "chown -R covey $6/$1"; return $? ;;
    255) return 1 ;;  # ssh itself has failed
    esac
    echo "$5 has no disk of $1: move the folder $4/$1 from $3 to $6/$1 on $5." >&2
    echo "To start $1 with an empty disk, take out the line of $0 that keeps it." >&2
    return 1
}
"""
_END = """\
if test -n "$failed"; then
    echo "not done:$failed. When the cause is mended: sh $0" >&2
    exit 1
fi
"""
_CHECK = """\
for name in NAMES; do
    if ! test -e "$folder/$name/certificate.pem"; then
        echo "$name has no certificate yet. First: sh $folder/sign.sh" >&2
        exit 1
    fi
done
"""


def write_signing(
    processes: Sequence[Process], folder: Path, authority: Path, *, change: bool = False
) -> None:
    """Write the script that signs the requests and puts the certificates beside them.

    A change has an authority already, and its certificates replace those from before.
    """
    head = _SIGN.replace("AUTHORITY}", f"{_seen_from(folder, authority)}}}")
    head = head.replace("CONFIG", CONFIG_FOLDER)
    if change:
        lines = [head.replace("REPLACE", "--replace")]
    else:
        lines = [head.replace("REPLACE", ""), _INIT]
    for process in processes:
        seats = " ".join(f"--seat {seat.name}" for seat in process.seats)
        lines.append(f"sign {process.name} {seats}")
    _write_script(folder / SIGN, [*lines, _TELL_REVOKED])


def _seen_from(folder: Path, authority: Path) -> str:
    """The authority's folder as a script in another folder names it."""
    if authority.is_absolute():
        return shlex.quote(str(authority))
    return f'"$folder"/{shlex.quote(os.path.relpath(authority, folder))}'


def write_start(
    processes: Sequence[Process],
    folder: Path,
    *,
    signed: Sequence[Process] = (),
    before: Sequence[Process] = (),
) -> None:
    """Write the script that brings every process to its machine and starts it.

    `signed` are those that the other script signs first; `before` is the plan that this replaces.
    """
    plan = _Machines(processes, before)
    lines = [_START, *plan.variables(), _functions(before), *plan.check()]
    if signed:
        listed = " ".join(process.name for process in signed)
        lines.append(_CHECK.replace("NAMES", listed))
    names = {process.name for process in processes}
    lines += [_disable(old.name, plan.before(old.name)) for old in before if old.name not in names]
    moves = disk_moves(before, processes)
    for process in processes:
        lines += [plan.keep(move) for move in moves if move.new is process]
        lines += _begin(process, plan.now(process.name))
    _write_script(folder / START, [*lines, _END])


def _functions(before: Sequence[Process]) -> str:
    """The functions of the script that starts a plan; one that replaces another moves disks."""
    text = _FUNCTIONS
    if before:
        text += _KEEP
    for word, value in {"HERE": LOOPBACK, "CONFIG": CONFIG_FOLDER, "UNITS": UNITS}.items():
        text = text.replace(word, value)
    return text.replace("DISK", DISK)


@dataclass(frozen=True)
class DiskMove:
    """A seat whose process has another name or another machine in the new plan."""

    seat: str
    old: Process
    new: Process
    machines: tuple[str | None, str | None]
    """Those of the old and of the new process; None: the plan does not name it."""

    def __str__(self) -> str:
        old, new = (
            f"{machine or placeholder(process.name)}:{process.state}/{self.seat}"
            for machine, process in zip(self.machines, (self.old, self.new), strict=True)
        )
        if self.machines[0] == self.machines[1] and None not in self.machines:
            return f"{self.seat}: {START} moves its disk from {old} to {new}"
        way = f"{START} moves it where that is one machine, and otherwise waits until you have"
        return f"{self.seat}: its disk must go from {old} to {new}; {way}"


def disk_moves(before: Sequence[Process], processes: Sequence[Process]) -> list[DiskMove]:
    """The disks that another plan has elsewhere, by the order of the new processes.

    Processes of one name that neither plan knows the machine of are on the same one.
    """
    hosts = [hosts_of(before), hosts_of(processes)]
    owner = {seat.name: old for old in before for seat in old.seats}
    out = []
    for new in processes:
        for seat in new.seats:
            old = owner.get(seat.name)
            if old is None:
                continue
            machines = (_machine(old.name, hosts[0]), _machine(new.name, hosts[1]))
            if old.state != new.state or machines[0] != machines[1]:
                out.append(DiskMove(seat.name, old, new, machines))
    return out


def _machine(name: str, hosts: Mapping[str, str]) -> str | None:
    """The machine of a process; all names of loopback are one."""
    host = hosts.get(name)
    if host is not None and is_loopback(host):
        return LOOPBACK
    return host


class _Machines:
    """The machines of a plan and of the one before it, as words of a script.

    A machine that the plan does not know is a variable of the script, whose value is made up.
    """

    def __init__(self, processes: Sequence[Process], before: Sequence[Process]) -> None:
        self._now = hosts_of(processes)
        self._before = hosts_of(before)
        unknown = [process.name for process in processes if process.name not in self._now]
        unknown += [process.name for process in before if process.name not in self._before]
        self._unknown = list(dict.fromkeys(unknown))

    def variables(self) -> list[str]:
        """The lines that name the machines that nobody dials."""
        if not self._unknown:
            return []
        lines = ["# Nobody dials these machines: put in their real names."]
        lines += [f"{_variable(name)}={placeholder(name)}" for name in self._unknown]
        return lines

    def check(self) -> list[str]:
        """The lines that refuse names that are made up."""
        if not self._unknown:
            return []
        lines = ["unknown="]
        lines += [f'known {name} "${_variable(name)}"' for name in self._unknown]
        return [*lines, 'if test -n "$unknown"; then exit 1; fi']

    def now(self, name: str) -> str:
        """The machine of a process."""
        return _machine_word(name, self._now)

    def before(self, name: str) -> str:
        """The machine that a process was on."""
        return _machine_word(name, self._before)

    def keep(self, move: DiskMove) -> str:
        """The line that moves the disk of a seat, or refuses to go on without it."""
        # The states are words of a command that a second shell reads.
        states = [shlex.quote(shlex.quote(process.state)) for process in (move.old, move.new)]
        machines = [self.before(move.old.name), self.now(move.new.name)]
        words = [move.seat, move.old.name, machines[0], states[0], machines[1], states[1]]
        return f"try {move.new.name} keep {' '.join(words)}"


def _machine_word(name: str, hosts: Mapping[str, str]) -> str:
    """The machine of a process as a word of a script."""
    machine = _machine(name, hosts)
    if machine is None:
        return f'"${_variable(name)}"'
    return shlex.quote(machine)


def _variable(name: str) -> str:
    """The variable of the machine of a process; no name has a "_" of its own."""
    return f"on_{name.replace('-', '_')}"


def _begin(process: Process, machine: str) -> list[str]:
    """The lines that bring a process to its machine and start it."""
    own = f"{CONFIG_FOLDER}/{process.name}"
    start = f"chown -R covey {own} && systemctl enable --now {unit_name(process)}"
    if not process.state.startswith(STATE_ROOT):  # systemd makes the others
        start = f"install -d -o covey -m 700 {shlex.quote(process.state)} && {start}"
    return [
        f"try {process.name} copy {process.name} {machine}",
        f"try {process.name} on {machine} {shlex.quote(start)}",
    ]


def _disable(name: str, machine: str) -> str:
    """The line that keeps a removed process from starting again with its machine."""
    unit = f"covey-{name}.service"
    disable = f"! systemctl cat {unit} > /dev/null 2>&1 || systemctl disable --now {unit}"
    return f"try {name} on {machine} {shlex.quote(disable)}"


def placeholder(name: str) -> str:
    """What stands for the machine of a process whose address nobody has to know."""
    return f"{name}.example"


def hosts_of(processes: Sequence[Process]) -> dict[str, str]:
    """The machine of each process, as far as addresses tell, by the name of the process."""
    out: dict[str, str] = {}
    for process in processes:
        if process.machine is not None:
            out[process.name] = process.machine
        parent = process.seats[0].parent
        if parent is None or process.parent is None:
            continue
        host = process.parent.rpartition(":")[0].strip("[]")
        out[parent] = host
        if is_loopback(host):
            out.setdefault(process.name, host)
    return out


def host_of(processes: Sequence[Process], name: str) -> str:
    """The machine of a process as the scripts name it."""
    return hosts_of(processes).get(name, placeholder(name))


def _write_script(path: Path, lines: Sequence[str]) -> None:
    write_new(path, "\n".join(["#!/bin/sh", *lines]) + "\n")
