"""Both ends of a process over gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from covey.deployed.node.disk import Disk, DiskAdmission
from covey.deployed.operate.certificates import Identity
from covey.deployed.plan.process import Process
from covey.deployed.transport.grpc_options import Limits
from covey.deployed.transport.grpc_port import GrpcPort
from covey.deployed.transport.grpc_transport import GrpcTransport
from covey.deployed.transport.transport import Seat


@dataclass(frozen=True)
class GrpcNetwork:
    """Listens and dials over mutual TLS; without an identity, on loopback alone."""

    identity: Identity | None

    def listen(
        self,
        process: Process,
        fingerprint: str,
        children: Mapping[str, Seat],
        admission: DiskAdmission,
    ) -> GrpcTransport:
        """The way to the children of a process, which dial in."""
        assert process.listen is not None
        return GrpcTransport(
            process.listen,
            children,
            fingerprint=fingerprint,
            identity=self.identity,
            admission=admission,
            evicted=admission.evicted,
            remember=admission.remember,
            limits=Limits(strikes=process.strikes),
            folder=Path(process.state),
        )

    def dial(self, process: Process, fingerprint: str, disks: Mapping[str, Disk]) -> GrpcPort:
        """The way to the parent of a process."""
        assert process.parent is not None
        return GrpcPort(
            process.parent,
            str(process.nodes[0].parent),
            {seat.name: seat.number for seat in process.nodes},
            fingerprint=fingerprint,
            identity=self.identity,
            last_key=lambda name: disks[name].last_key,
        )
