"""The libraries of a deployed tree, imported when they are needed and not before."""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace
from typing import Any

from covey.errors import ConfigError, install


def needed(module: str) -> Any:
    """The module of that name, or an error that says what to install.

    >>> needed("json").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module if module.startswith("google.") else module.partition(".")[0]
        fix = install("deploy")
        raise ConfigError(f"A deployed tree needs {library} ({error}); {fix}.") from error


def cryptography() -> Any:
    """The parts of cryptography that certificates need."""
    return SimpleNamespace(
        x509=needed("cryptography.x509"),
        names=needed("cryptography.x509.oid").NameOID,
        usages=needed("cryptography.x509.oid").ExtendedKeyUsageOID,
        hashes=needed("cryptography.hazmat.primitives.hashes"),
        serialization=needed("cryptography.hazmat.primitives.serialization"),
        curves=needed("cryptography.hazmat.primitives.asymmetric.ec"),
        invalid=needed("cryptography.exceptions").InvalidSignature,
        unsupported=needed("cryptography.exceptions").UnsupportedAlgorithm,
    )


def grpc() -> Any:
    """gRPC, with its asynchronous part.

    Its core would log every handshake that fails, and any stranger can begin thousands a second.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    needed("grpc.aio")
    return needed("grpc")
