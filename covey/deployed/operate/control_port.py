"""The control ports of nodes, as an operator reaches them: their answers, and which are meant."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from covey.deployed.operate.certificates import Identity
from covey.deployed.operate.control import (
    CONTROL_HEADER,
    MISDIRECTED,
    PROCESS_HEADER,
    SECONDS,
    shown_by,
    tls_context,
)
from covey.deployed.plan.plan_files import DRAIN_SECONDS, NODE
from covey.deployed.plan.process import (
    ANY_ADDRESS,
    ANY_IPV6,
    LOOPBACK,
    Process,
    is_loopback,
    join_address,
    split_address,
)
from covey.deployed.plan.seats import check_name
from covey.errors import ConfigError

PORT = 9443
NOT_RUNNING = "not running"
_LONGEST = 1 << 28  # bytes of an answer: a node may have 100,000 children
_POLL = 0.2  # s between two looks at a node that ends
_AT_ONCE = 16  # nodes that are asked for their status at the same time


class NotListening(ConfigError):
    """Nothing listens on a control port: its node has not started, or has ended."""


class AnotherProcess(ConfigError):
    """A control port is that of another process than the one that is meant."""


@dataclass(frozen=True)
class ControlPort:
    """The control port of a node, and with which certificate it is asked."""

    name: str
    address: tuple[str, int]
    certs: Path | None = None
    """The folder of the operator's certificate, which is needed beyond loopback."""
    process: str | None = None
    """The process that must be there, where a plan tells it; otherwise whoever has the port."""
    seats: tuple[str, ...] = ()
    """Those that its certificate must name, where a plan or the operator tells them."""

    def __str__(self) -> str:
        return join_address(*self.address)

    def call(self, method: str, path: str) -> str:
        """What it answers."""
        host, port = self.address
        connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
        headers = {CONTROL_HEADER: "1"}
        if self.process is not None:
            headers[PROCESS_HEADER] = self.process
        if self.certs is not None:
            context = tls_context(Identity(self.certs), ssl.PROTOCOL_TLS_CLIENT)
            connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
        elif is_loopback(host) and method == "POST":
            headers[CONTROL_HEADER] = self._token()
        elif not is_loopback(host):
            fix = "give --certs with the folder of an operator's certificate"
            raise ConfigError(f"{self} is not on this machine; {fix}.")
        fix = "is the node running, and is this its control_port?"
        try:
            with closing(connection):
                connection.connect()
                self._check_shown(connection.sock)
                connection.request(method, quote(path), headers=headers)
                response = connection.getresponse()
                text = response.read(_LONGEST).decode()
        except ConnectionRefusedError as error:
            raise NotListening(f"nothing listens on {self}; {fix}") from error
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            if self.certs is None:
                fix += " Beyond loopback it answers with --certs alone."
            raise ConfigError(f"no answer from {self} ({error}); {fix}") from error
        if response.status == MISDIRECTED:
            raise AnotherProcess(f"{self}: {text}")
        if response.status != 200:
            raise ConfigError(f"{self}: {text}")
        return text

    def _token(self) -> str:
        """The token of the node that has this port of this machine.

        Another process on the port could name the folder of another node, and would get its token.
        """
        path = Path(self.call("GET", "/token"))
        try:
            with path.open(encoding="ascii") as file:
                token = file.read(100)
        except (OSError, ValueError) as error:
            fix = "orders on this machine are for the user of the node, and for root"
            raise ConfigError(f"cannot read {path}: {error}; {fix}.") from error
        port = self.address[1]
        if re.fullmatch(rf"{port} [0-9a-f]{{64}}", token) is None:
            raise ConfigError(f"{path} is not of the control port {port}; start the node again.")
        return token

    def _check_shown(self, peer: Any) -> None:
        """Refuse a control port that shows a certificate of other seats than those that are meant.

        Any node of the tree has a certificate of the same authority. One that is revoked is refused
        too: its node may have been stolen.
        """
        if self.certs is None or not isinstance(peer, ssl.SSLSocket):
            return
        shown = shown_by(peer)
        refusal = shown.refusal(Identity(self.certs).revoked(), datetime.now(UTC))
        if refusal is not None:
            raise ConfigError(f"{self}: {refusal}.")
        if not {*self.seats} <= {*shown.seats}:
            names = ", ".join(shown.seats)
            meant = ", ".join(self.seats)
            raise AnotherProcess(f"{self} shows the certificate of {names}, not of {meant}.")

    def words(self) -> list[str]:
        """The options that mean the same port and, with certificates, the same process."""
        if self.certs is None:
            return ["--node", str(self)]
        seat = f"{self.seats[0]}@" if self.seats else ""
        return ["--node", f"{seat}{self}", "--certs", str(self.certs)]

    def status(self, *, tolerant: bool) -> dict[str, Any]:
        """Its status; with `tolerant`, also where it does not answer."""
        try:
            text = self.call("GET", "/status")
        except ConfigError as error:
            if not tolerant:
                raise
            absent = isinstance(error, NotListening | AnotherProcess)
            state = NOT_RUNNING if absent else "no answer"
            return {"process": self.name, "state": state, "seats": [], "reason": str(error)}
        try:
            status: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{self.name} is no control port of covey: {error}.") from error
        if not isinstance(status, dict) or not {"process", "state", "seats"} <= status.keys():
            raise ConfigError(f"{self.name} is no control port of covey: it answers {text:.60}.")
        return status | {"control": str(self)}

    def ends(self) -> bool:
        """Wait until a node that was stopped has ended; False where it takes too long."""
        until = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < until:
            try:
                self.call("GET", "/status")
            except (NotListening, AnotherProcess):
                return True
            except ConfigError:  # a busy node may not answer in time, and has not ended
                pass
            time.sleep(_POLL)
        return False


def ports_of(
    node: Sequence[str] | None, plan: Path | None, certs: Path | None
) -> list[ControlPort]:
    """Every control port that is meant; those of a plan are on this machine, parents first."""
    if node and plan:
        raise ConfigError("--node and --plan are both given; keep one of them.")
    if plan is None:
        return [_named(text, certs) for text in node or [f"{LOOPBACK}:{PORT}"]]
    planned = [Process.load(file) for file in sorted(plan.glob(f"*/{NODE}"))]
    if not planned:
        raise ConfigError(f"{plan} has no NAME/{NODE}; give the folder of covey deploy plan.")
    planned.sort(key=lambda one: (one.parent is not None, one.listen is None, one.control_port))
    out = []
    for one in planned:
        anywhere = one.control_host in (ANY_ADDRESS, ANY_IPV6)
        address = (LOOPBACK if anywhere else one.control_host, one.control_port)
        out.append(ControlPort(one.name, address, certs, one.name, tuple(one.seats)))
    return out


def _named(text: str, certs: Path | None) -> ControlPort:
    """The control port that an operator names, as HOST:PORT or SEAT@HOST:PORT."""
    seat, at, place = text.rpartition("@")
    address = split_address(place, PORT, "--node")
    if not at:
        if certs is not None and not is_loopback(address[0]):
            why = "any node of the tree could answer there"
            raise ConfigError(f"{text}: {why}; give --node SEAT@{text}.")
        return ControlPort(text, address, certs)
    check_name(seat)
    if certs is None:
        fix = "give --certs, or the address alone"
        raise ConfigError(f"{text}: a seat is checked against a certificate; {fix}.")
    return ControlPort(text, address, certs, seats=(seat,))


def statuses_of(ports: Sequence[ControlPort], *, tolerant: bool) -> list[dict[str, Any]]:
    """The status of every node, asked at the same time: a busy one holds up no other.

    With `tolerant`, as of a planned tree, also of a node that does not answer.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda port: port.status(tolerant=tolerant), ports))
