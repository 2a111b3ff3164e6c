"""The model of a process that only aggregates, in files that are mapped into memory.

Such a process computes with rows, and hardly ever with the parameters of its module or with the
initial row. Memory holds the pages of the files that somebody has read.
"""

from __future__ import annotations

import logging
import mmap
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from covey.deployed.node.disk_store import LARGE
from covey.deployed.node.node import Node
from covey.deployed.node.node_rows import as_bytes
from covey.deployed.transport.grpc_options import say
from covey.runs.parts import Parts


def mapped_parts(parts: Parts, folder: Path) -> Parts:
    """The parts of nodes, with large parameters that train and the initial row in files.

    The files have no names: they are gone when the process ends.
    """
    for parameter in parts.module.parameters():
        if parameter.requires_grad:
            parameter.data = mapped_tensor(parameter.data, folder)
    return replace(parts, start=mapped_tensor(parts.start, folder))


def share(node: Node, parts: Parts) -> None:
    """Let a node use the parameters and the initial row of its process, instead of copies."""
    own = dict(node.task.space.module.named_parameters())
    for name, parameter in parts.module.named_parameters():
        copied = own[name]
        if parameter.requires_grad and parameter.dtype == copied.dtype:
            copied.data = parameter.data
    if parts.start.dtype == node.start.dtype:
        node.start = parts.start


def mapped_tensor(tensor: Tensor, folder: Path) -> Tensor:
    """A large tensor's numbers in a file of a folder; writing to them changes memory alone.

    Where the folder takes no file, as on a full disk, the tensor stays in memory, which is logged.

    >>> mapped_tensor(torch.ones(2), Path())
    tensor([1., 1.])
    """
    if tensor.nbytes <= LARGE or tensor.device.type != "cpu":
        return tensor
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(as_bytes(tensor))
            file.flush()
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        text = f"a part of the model stays in memory, since {folder} takes no file: {error}"
        say(logging.WARNING, "model_held", text)
        return tensor
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)
