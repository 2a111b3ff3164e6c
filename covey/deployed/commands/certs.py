"""`covey certs`: the certificates of a deployed tree."""

from __future__ import annotations

import json
import os
import shlex
import sys
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer

from covey.cli.options import AsJson
from covey.deployed.operate.authority import AUTHORITY_DAYS, DAYS, Authority, Holders, check_seats
from covey.deployed.operate.authority import request as make_request
from covey.deployed.operate.certificates import REVOKED
from covey.errors import ConfigError
from covey.folder.terminal import Console

app = typer.Typer(no_args_is_help=True)

Folder = Annotated[
    Path,
    typer.Option("--dir", metavar="DIR", help="The authority's folder."),
]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME ...", help="Processes, named as their seats: device17."),
]
Days = Annotated[
    float,
    typer.Option(min=0.001, max=3650, help="How many days the certificates are valid."),
]
Key = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="COVEY_CA_KEY",
        help="The authority's key, where it lies elsewhere. Default: ca.key in --dir.",
    ),
]
CERTS = Path("certs")
PASSPHRASE = "COVEY_CA_PASSPHRASE"


@cache
def _passphrase(*, new: bool = False) -> str:
    """The passphrase of the authority's key: from the environment, or asked for once."""
    text = os.environ.get(PASSPHRASE, "")
    if not text and sys.stdin.isatty():
        words = "Passphrase of the authority's key"
        text = typer.prompt(words, hide_input=True, confirmation_prompt=new, err=True)
    if not text:
        raise ConfigError(f"the authority's key needs a passphrase; put it into {PASSPHRASE}.")
    return text


@app.command()
def init(
    folder: Folder = CERTS,
    days: Days = AUTHORITY_DAYS,
    key: Key = None,
    passphrase: Annotated[
        bool,
        typer.Option("--passphrase", help=f"A new key has one: that of {PASSPHRASE}, or asked."),
    ] = False,
) -> None:
    """Make the authority that signs the certificates of one tree.

    Its key, ca.key, stays with the operator: no node needs it. A key that lies in FILE is taken.

    Examples:

      covey certs init

      covey certs init --dir factory --passphrase

      covey certs init --key /media/stick/ca.key
    """
    ask = partial(_passphrase, new=True) if passphrase else None
    Authority.create(folder, days=days, key=key, passphrase=ask)
    _say(f"wrote {folder}: keep ca.key off every node")
    _say(f"next: {shlex.join(['covey', 'certs', 'issue', 'server', '--dir', str(folder)])}")


@app.command()
def issue(
    names: Names,
    folder: Folder = CERTS,
    days: Days = DAYS,
    seat: Annotated[
        list[str] | None,
        typer.Option(
            help="A seat of a process with several. May be repeated. Default: the seats of its "
            "last certificate, or the name."
        ),
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A signing request; its key stays where it was made."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Revoke valid certificates of the name and of its seats."),
    ] = False,
    key: Key = None,
) -> None:
    """Sign certificates; a folder of each name is what its machine needs.

    Examples:

      covey certs issue server edge0 device0 device1

      covey certs issue gateway --seat device2 --seat device3

      covey certs issue device4 --request request.pem

      covey certs issue device4 --replace              with a new key; the old one no longer counts
    """
    if len(names) > 1 and (seat or request):
        raise ConfigError("--seat and --request are of one process; issue one name at a time.")
    authority = Authority(folder, key, _passphrase)
    holders: Holders = "revoke" if replace else "refuse"
    before = _revoked(authority)
    for name in names:
        out = authority.issue(name, seats=seat or (), days=days, request=request, holders=holders)
        _say(f"wrote {out}: copy it to the machine of {name}")
    revoked = {name for serial, name in _revoked(authority).items() if serial not in before}
    if revoked:
        _say(f"revoked {', '.join(sorted(revoked))}: {_tell_all(folder)}")


@app.command()
def request(
    name: Annotated[str, typer.Argument(help="The process, named as its seat.")],
    folder: Annotated[
        Path,
        typer.Option("--dir", metavar="DIR", help="Where this machine keeps its certificate."),
    ] = CERTS,
    seat: Annotated[
        list[str] | None,
        typer.Option(help="A seat of a process with several. May be repeated. Default: the name."),
    ] = None,
) -> None:
    """Make a key on this machine, and the request to sign it.

    The authority decides about the seats: they stand in the command that is printed.

    Examples:

      covey certs request device4

      covey certs request edge0 --dir /etc/covey/edge0              beside its node.toml
    """
    seats = check_seats(seat or ())
    out = make_request(folder, name)
    _say(f"wrote {out}: send it to the authority")
    words = ["covey", "certs", "issue", name, "--request", out.name]
    for seat_name in seats:
        words += ["--seat", seat_name]
    _say(f"there: {shlex.join(words)}")


@app.command()
def renew(
    names: Names,
    folder: Folder = CERTS,
    days: Days = DAYS,
    key: Key = None,
) -> None:
    """Sign certificates anew, with the same keys; running nodes need no restart.

    Examples:

      covey certs renew device0 device1
    """
    for name in names:
        out = Authority(folder, key, _passphrase).renew(name, days=days)
        _say(f"wrote {out / 'certificate.pem'}: copy it to the machine of {name}")


@app.command()
def revoke(names: Names, folder: Folder = CERTS, key: Key = None) -> None:
    """Revoke every certificate of these names; parents close their open streams too.

    Every node checks its peers against its own revoked.pem: copy the new one to all of them.

    Examples:

      covey certs revoke device1
    """
    authority = Authority(folder, key, _passphrase)
    authority.check_issued(names)  # all of them, or none is revoked
    for name in names:
        _say(f"revoked {authority.revoke(name)} certificates of {name}")
    _say(_tell_all(folder))


@app.command(name="list")
def list_(folder: Folder = CERTS, as_json: AsJson = False) -> None:
    """List the certificates that were signed.

    Examples:

      covey certs list --json
    """
    entries = Authority(folder).issued()
    if as_json:
        print(json.dumps([entry.as_dict() for entry in entries]))
        return
    for entry in entries:
        state = "revoked" if entry.revoked else f"until {entry.ends:%Y-%m-%d}"
        _say(f"{entry.name}  {state}  {entry.serial:x}  seats: {', '.join(entry.seats)}")


def _revoked(authority: Authority) -> dict[int, str]:
    """The names of revoked certificates, by number."""
    return {entry.serial: entry.name for entry in authority.issued() if entry.revoked}


def _tell_all(folder: Path) -> str:
    """What to do after something was revoked.

    Children check their parent too, and control ports the operator.
    """
    return f"copy {folder / REVOKED} to the folder of every node"


def _say(line: str) -> None:
    Console().print(line)
