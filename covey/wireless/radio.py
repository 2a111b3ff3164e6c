"""The radio of a run: who stands where and computes how fast, which band a cell has, and how it is
shared.

A device's answer takes the time of its gradient steps, cycles per step and weight that moves, and
of its upload: the bytes its message really has, over its share of the band. Sending down is free,
as in Liu and Ratnarajah (2023). A node that asks waits for the last of those it asked; then its own
answer crosses the wire of its cell. Where a method has no edges, the base station of a cell passes
its devices' messages on, one after the other, once it has them all.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from covey.errors import ConfigError
from covey.kernel.work import Work
from covey.tree import Tree
from covey.wireless.channel import Channel
from covey.wireless.device import Cells, Devices
from covey.wireless.plan import Scenario
from covey.wireless.policies import Policy


@dataclass(frozen=True, eq=False)
class Radio:
    """A run's virtual clock runs by this; the channel's draws are those of the run's seed.

    `policy` shares each cell's band among those asked; None is `optimal` for an algorithm that
    takes its ratios from a plan, and the same share for all for one that does not. `deadline`, in
    seconds, is what a plan meets. `late` says what becomes of an answer after it: it is waited for,
    or dropped; where all of a node's are late, the first is waited for. `mask` plans for the header
    and the mask of a message, which the paper does not count and which are sent.

    >>> import covey
    >>> from covey.wireless import Cells, Channel, Devices, Noise, Radio
    >>> devices = Devices.of([0, 0], distance=[60.0, 90.0], cpu=1e9, cycles=20.0, power=0.1)
    >>> radio = Radio(devices, Cells.of(1e6), Channel(Noise(1e-14), fading="none"))
    >>> shards, model = covey.data.digits(devices=2), covey.models.linear(64, 10)
    >>> run = covey.run(covey.Experiment(covey.algorithms.FedAvg(), shards, model, covey.Tree.flat(2), rounds=1, radio=radio))
    >>> f"{1e3 * next(run).radio.seconds:.2f} ms"
    '4.23 ms'
    """

    devices: Devices
    cells: Cells
    channel: Channel
    deadline: float | None = None
    policy: Policy | None = None
    late: Literal["wait", "drop"] = "wait"
    rho_max: float = 0.95
    mask: bool = True

    def __post_init__(self) -> None:
        if self.deadline is not None and not (self.deadline > 0 and math.isfinite(self.deadline)):
            raise ConfigError(f"radio: deadline = {self.deadline} s must be above 0 and finite.")
        if self.late not in ("wait", "drop"):
            raise ConfigError(f"radio: late = {self.late!r} must be 'wait' or 'drop'.")
        if self.late == "drop" and self.deadline is None:
            raise ConfigError("radio: late = 'drop' needs a deadline.")
        if not 0 < self.rho_max <= 1:
            raise ConfigError(f"radio: rho_max = {self.rho_max} must be above 0 and at most 1.")
        if wrong := [
            cell for cell in self.devices.cell.tolist() if not 0 <= cell < len(self.cells)
        ]:
            raise ConfigError(
                f"radio: a device stands in cell {wrong[0]}, but there are {len(self.cells)} cells, counted from 0."
            )

    def scenario(self, work: Work, *, seed: int) -> Scenario:
        """The scenario that a run of this seed plans by, where all its devices are asked."""
        if self.deadline is None:
            raise ConfigError(
                "radio: a plan needs a deadline; give one, in a file such as deadline = '25 ms' in [radio]."
            )
        return Scenario(
            self.devices,
            self.cells,
            self.channel,
            work,
            self.deadline,
            self.rho_max,
            self.mask,
            seed,
        )

    def fits(self, tree: Tree) -> None:
        """An error unless there is a device for every leaf of a tree and the cells are its edges,
        where it has any.
        """
        if len(self.devices) != tree.devices:
            raise ConfigError(
                f"radio: it has {len(self.devices)} devices, the tree {tree.devices}; they must be the same."
            )
        if tree.depth == 2:
            return
        counts = torch.tensor(tree.children[-1])
        if len(self.cells) != len(counts):
            raise ConfigError(
                f"radio: it has {len(self.cells)} cells for {len(counts)} edges; every edge is a cell."
            )
        edge = torch.repeat_interleave(torch.arange(len(counts)), counts)
        if wrong := (self.devices.cell != edge).nonzero()[:, 0].tolist():
            at, cell = wrong[0], int(self.devices.cell[wrong[0]])
            raise ConfigError(
                f"radio: device {at} stands in cell {cell} but under edge {int(edge[at])}; a cell is its edge."
            )

    def __str__(self) -> str:
        """What decides a run, for its fingerprint; columns by a hash."""
        digest = hashlib.sha256()
        for part in (self.devices, self.cells):
            for column in vars(part).values():
                if isinstance(column, Tensor):
                    digest.update(column.double().numpy().tobytes())
        plain: dict[str, Any] = {
            name: getattr(self, name) for name in ("channel", "deadline", "late", "rho_max", "mask")
        }
        return f"{plain} {self.policy.name if self.policy else None} {digest.hexdigest()[:16]}"
