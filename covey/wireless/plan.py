"""A plan: who gets which part of the band and prunes how much, round by round, what that takes, and
who is left out and why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from covey.errors import ConfigError
from covey.kernel.work import Work
from covey.wireless import reasons
from covey.wireless.channel import Channel
from covey.wireless.device import Cells, Devices
from covey.wireless.latency import (
    Timing,
    encoded_bits,
    formula_bits,
    mask_bits,
    rate,
    timing,
    wire_seconds,
)
from covey.wireless.policies import Policy, optimal
from covey.wireless.problem import Problem, Reason
from covey.wireless.solve import Allocation, Certificate

LATE = 1e-9  # relative: a device that ends at the deadline may end an ulp after it


@dataclass(frozen=True, eq=False)
class Scenario:
    """Everything a plan depends on; `mask` plans for the header and the mask of a real message,
    which the paper leaves out.
    """

    devices: Devices
    cells: Cells
    channel: Channel
    work: Work
    deadline: float  # T_th, s
    rho_max: float = 0.95
    mask: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.deadline > 0 and math.isfinite(self.deadline)):
            raise ConfigError(f"deadline = {self.deadline} s must be above 0 and finite.")
        if not 0 < self.rho_max <= 1:
            raise ConfigError(f"rho_max = {self.rho_max} must be above 0 and at most 1.")
        if len(self.devices) and int(self.devices.cell.max()) >= len(self.cells):
            most = int(self.devices.cell.max())
            raise ConfigError(
                f"a device stands in cell {most}, but there are {len(self.cells)} cells, counted from 0."
            )

    def gain(self, rounds: range) -> Tensor:
        """The channel gains, [rounds, n]."""
        return self.channel.gain(
            self.devices.distance, torch.arange(len(self.devices)), rounds=rounds, seed=self.seed
        )

    def problem(self, gain: Tensor) -> Problem:
        """The problem of these rounds, one entry per round and device."""
        devices, work, rounds = self.devices, self.work, len(gain)
        band = self.cells.bandwidth[devices.cell]
        whole = rate(band, gain, devices.power, self.channel.noise)
        budget = self.deadline - work.constant_cycles(devices.cycles) / devices.cpu
        group = torch.arange(rounds)[:, None] * len(self.cells) + devices.cell
        snr = (
            gain * devices.power / self.channel.noise.over(band)
            if self.channel.noise.per_hertz
            else None
        )
        return Problem(
            budget=budget.repeat(rounds),
            compute=(work.shared_cycles(devices.cycles) / devices.cpu).repeat(rounds),
            send=(work.bits * work.shared / whole).reshape(-1),
            mask=((mask_bits(work) if self.mask else 0) / whole).reshape(-1),
            weight=devices.weight.repeat(rounds),
            snr=None if snr is None else snr.reshape(-1),
            group=group.reshape(-1),
            groups=rounds * len(self.cells),
            rho_max=self.rho_max,
        )


def plan(scenario: Scenario, policy: Policy = optimal, *, rounds: int | range = 1) -> Plan:
    """The plan of a policy, for rounds 0, 1, ... or for a range of them."""
    rounds = range(rounds) if isinstance(rounds, int) else rounds
    return plan_for(scenario.gain(rounds), scenario, policy, rounds=rounds)


def plan_for(gain: Tensor, scenario: Scenario, policy: Policy, *, rounds: range) -> Plan:
    """The plan for channel gains [rounds, n] that are known, whatever the scenario's own would be."""
    doing = replace(scenario, work=policy.work(scenario.work))
    problem = doing.problem(gain)
    return Plan(doing, policy.name, rounds, gain, problem, policy.allocate(problem))


@dataclass(frozen=True, eq=False)
class Plan:
    """Shares, ratios, rates and times, [rounds, n]; what a device that is not asked has is 0, its
    ratio 1.
    """

    scenario: Scenario
    policy: str
    rounds: range
    gain: Tensor
    problem: Problem
    allocation: Allocation

    @property
    def share(self) -> Tensor:
        """b, the part of its cell's band."""
        return self.allocation.share.view(self.gain.shape)

    @property
    def ratio(self) -> Tensor:
        """rho, the part of the shared weights that is pruned."""
        return self.allocation.ratio.view(self.gain.shape)

    @property
    def kept(self) -> Tensor:
        """1 - rho, the part that is trained and sent."""
        return self.allocation.kept.view(self.gain.shape)

    @property
    def reason(self) -> Tensor:
        """Why a device is not asked, a `Reason`."""
        return self.allocation.reason.view(self.gain.shape)

    @property
    def asked(self) -> Tensor:
        return self.reason == Reason.ASKED

    @property
    def price(self) -> Tensor:
        """By how much the weighted sum of ratios would fall for one more band, [rounds, cells]; 0
        where band is left.
        """
        return self.allocation.price.view(len(self.gain), -1)

    @property
    def certificate(self) -> Certificate | None:
        return self.allocation.certificate

    @cached_property
    def rate(self) -> Tensor:
        """(13), bit/s."""
        devices = self.scenario.devices
        band = self.share * self.scenario.cells.bandwidth[devices.cell]
        return rate(band, self.gain, devices.power, self.scenario.channel.noise)

    def timing(self, bits: Tensor | None = None) -> Timing:
        """Seconds and joules, by the paper's count of bits or by `bits` [rounds, n] that were
        measured or encoded.
        """
        bits = formula_bits(self.scenario.work, self.kept) if bits is None else bits
        work, devices = self.scenario.work, self.scenario.devices
        return timing(work, devices, kept=self.kept, rate=self.rate, bits=bits, asked=self.asked)

    @cached_property
    def formula(self) -> Timing:
        """With q (1 - rho) N_u bits sent."""
        return self.timing()

    @cached_property
    def encoded(self) -> Timing:
        """With the bits of the message that is really sent: header, mask and the weights kept."""
        return self.timing(encoded_bits(self.scenario.work, self.kept))

    @property
    def starved(self) -> Tensor:
        """Asked, yet pruned as far as is allowed."""
        return self.asked & (self.ratio >= self.scenario.rho_max - 1e-9)

    def late(self, timing: Timing | None = None) -> Tensor:
        """Who ends after the deadline: by the message that is really sent, or by another clock."""
        return (timing or self.encoded).latency > self.scenario.deadline * (1 + LATE)

    def round_seconds(self, timing: Timing | None = None) -> Tensor:
        """(18) with the wires, [rounds]: the last device of each cell, then its edge's message to
        the server.
        """
        latency = (timing or self.formula).latency
        cells = torch.zeros(len(latency), len(self.scenario.cells), dtype=torch.float64)
        cells = cells.scatter_reduce(
            1, self.scenario.devices.cell.expand(latency.shape), latency, "amax"
        )
        return (
            cells
            + torch.where(cells > 0, wire_seconds(self.scenario.cells, self.scenario.work), 0.0)
        ).amax(1)

    def why(self, at: int, row: int = 0) -> str:
        """One sentence on why a device is left out, late or starved in a round; empty where it is
        none of these.
        """
        return reasons.why(self, at, row)

    def summary(self) -> dict[str, Any]:
        """The plan in a few figures, over all rounds, as JSON can hold them."""
        asked, ratio = self.asked, self.ratio
        count = max(int(asked.sum()), 1)
        sent = float(self.kept[asked].sum())
        certificate = self.certificate
        return {
            "policy": self.policy,
            "asked": int(asked.sum()) / len(ratio),
            "left_out": int((~asked).sum()) / len(ratio),
            "starved": int(self.starved.sum()) / len(ratio),
            "late": int(self.late().sum()) / len(ratio),
            "late_by_formula": int(self.late(self.formula).sum()) / len(ratio),
            "mean_ratio": 1 - sent / count,
            "worst_ratio": float(torch.where(asked, ratio, 0.0).max()) if len(ratio) else 0.0,
            "sum_ratio": float(ratio.sum()) / len(ratio),
            "band_used": float(self.share.sum()) / (len(ratio) * len(self.scenario.cells)),
            "round_ms": 1e3 * float(self.round_seconds().mean()),
            "round_ms_encoded": 1e3 * float(self.round_seconds(self.encoded).mean()),
            "joules": float(self.formula.joules.sum()) / len(ratio),
            "certificate": None if certificate is None else certificate.worst(),
        }
