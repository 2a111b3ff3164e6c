"""Where the server stands, which every request says, and whom a node believes about it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from covey.deployed.node.disk import PENDING_ORDERS, Disk
from covey.deployed.node.missed import FollowedOrders
from covey.deployed.operate.certificates import Identity, read_again
from covey.deployed.transport.transport import AskKey
from covey.errors import ConfigError, DecodeError, TransportError
from covey.runtimes.alone.place import Place

LOG = logging.getLogger("covey.deployed")
BEHIND = "the disk of a node above it is behind, or a parent lied; restore that disk"
_JUMP = 1000
"""Rounds that may pass between two requests where no certificates tell who says so."""


@dataclass(frozen=True)
class Epoch:
    """Where the server stands.

    A node that was away finds out from it which of its pending rows are good.
    """

    run: str
    before: int
    """Everything that was kept in rounds before this one is good."""
    rollbacks: tuple[int, ...] = ()
    """The rounds that failed, in order; a round may have failed several times."""
    certificate: str = ""
    """That of the server, in PEM; empty where the tree has no certificates."""
    signature: str = ""
    """Of the first three with the key of that certificate, in hexadecimal digits."""

    @property
    def attempt(self) -> int:
        """The number of rollbacks so far."""
        return len(self.rollbacks)

    def undone(self, round: int, attempt: int) -> bool:
        """Whether what was kept in a round, after so many rollbacks, was rolled back since."""
        later = self.rollbacks[attempt:]
        return any(failed <= round for failed in later)

    @property
    def signed_text(self) -> bytes:
        """What the server signs: no node between can say that it stands elsewhere."""
        return b"covey epoch\0" + json.dumps([self.run, self.before, self.rollbacks]).encode()

    def signed(self, identity: Identity) -> Epoch:
        """The same, signed by the server."""
        identity.key()  # an error unless it is that of the certificate
        certificate = identity.certificate().decode()
        signature = identity.sign(self.signed_text).hex()
        return replace(self, certificate=certificate, signature=signature)

    @staticmethod
    def from_dict(values: Any) -> Epoch:
        """The inverse of `asdict`; the types of fields are checked before."""
        try:
            return Epoch(**{**values, "rollbacks": tuple(values["rollbacks"])})
        except (TypeError, KeyError):
            raise DecodeError("a request that does not say where the server stands.") from None


@dataclass(eq=False)
class Standing:
    """Where the server stands as a node knows it; a parent that lies about it is refused."""

    place: Place
    disk: Disk
    identity: Identity | None = None
    """Signs where the server stands, or checks it; None: nobody signs."""
    jump: int = 0
    """How many rounds from its disk the server may stand, once, as the operator says."""
    epoch: Epoch = field(default_factory=lambda: Epoch("", 0))

    def __post_init__(self) -> None:
        if self.jump and self.place.tier != self.place.tiers[0]:
            # Its children may owe orders of rounds that the server does not know.
            self.disk.note(**{PENDING_ORDERS: []})

    def follow(self, epoch: Epoch, key: AskKey) -> bool:
        """Believe what a request says, or refuse it; whether the operator had to allow it."""
        self._check(epoch, key)
        run = self.disk.fact("run")
        if run is None:
            self.disk.note(run=epoch.run)
        elif run != epoch.run:
            fix = "give this node an empty folder, or the server its own"
            raise TransportError(f"{self.place} has the disk of another run; {fix}.")
        jumped = self._jumps(epoch)
        self.epoch = epoch
        return jumped

    def _check(self, epoch: Epoch, key: AskKey) -> None:
        """Refuse what the server has not signed, and an ask of a later round than it says."""
        claim = f"{self.place} is told that round {epoch.before + 1} comes next"
        if self.identity is not None and (epoch != self.epoch or not epoch.signature):
            try:
                signed = (epoch.certificate.encode(), bytes.fromhex(epoch.signature))
                verify = partial(self.identity.verify, *signed, epoch.signed_text, ended=True)
                read_again(partial(verify, self.place.tiers[0]))
            except ConfigError:  # of this node's own files
                raise
            except (TransportError, ValueError) as error:
                reason = f"which the server has not signed: {error}".rstrip(".")
                raise TransportError(f"{claim}, {reason}; a parent lied.") from None
        if key.round > epoch.before:
            raise TransportError(f"{claim}, and asked for {key}; a parent lied.")

    def _jumps(self, epoch: Epoch) -> bool:
        """Whether the operator lets this node follow to where the server stands, which needs it.

        The server is behind the disk. Or it is far ahead, and nobody has signed that.
        """
        before, attempt = self.disk.fact("epoch") or (epoch.before, epoch.attempt)
        steps = (epoch.before - before, epoch.attempt - attempt)
        if min(steps) >= 0 and (self.identity is not None or max(steps) <= _JUMP):
            return False
        most = max(map(abs, steps))
        claim = f"round {epoch.before + 1} comes next, after round {before + 1} did"
        if most > self.jump:
            reason = f"{BEHIND}, or"
            if min(steps) >= 0:
                reason = f"more than {_JUMP} rounds at once, and no certificate tells who says so;"
            fix = f"let {self.place} believe it with covey node ... --jump {most}, once"
            raise TransportError(f"{self.place} is told that {claim}: {reason} {fix}.")
        LOG.warning("jumped: %s believes that %s", self.place, claim)
        self.jump = 0
        FollowedOrders(self.disk).forget()
        self.disk.note(epoch=[epoch.before, epoch.attempt])
        return True
