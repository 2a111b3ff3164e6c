"""A plan: each device's share of the band and pruning ratio, round by round."""

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
    """Everything a plan depends on.

    With `mask` it plans for the header and the mask of a real message, which the paper leaves out.
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
        last_cell = int(self.devices.cell.max()) if len(self.devices) else -1
        if last_cell >= len(self.cells):
            counts = f"there are {len(self.cells)} cells, counted from 0"
            raise ConfigError(f"a device stands in cell {last_cell}, but {counts}.")

    def gain(self, rounds: range) -> Tensor:
        """The channel gains, [rounds, n]."""
        ids = torch.arange(len(self.devices))
        return self.channel.gain(self.devices.distance, ids, rounds=rounds, seed=self.seed)

    def problem(self, gain: Tensor) -> Problem:
        """The problem of these rounds, one entry per round and device."""
        devices = self.devices
        work = self.work
        rounds = len(gain)
        noise = self.channel.noise
        band = self.cells.bandwidth[devices.cell]
        whole_rate = rate(band, gain, devices.power, noise)
        budget = self.deadline - work.constant_cycles(devices.cycles) / devices.cpu
        compute = work.shared_cycles(devices.cycles) / devices.cpu
        extra_bits: Tensor | int = 0
        if self.mask:
            extra_bits = mask_bits(work)
        snr = None
        if noise.per_hertz:
            snr = (gain * devices.power / noise.over(band)).reshape(-1)
        group = torch.arange(rounds)[:, None] * len(self.cells) + devices.cell
        return Problem(
            budget=budget.repeat(rounds),
            compute=compute.repeat(rounds),
            send=(work.bits * work.shared / whole_rate).reshape(-1),
            mask=(extra_bits / whole_rate).reshape(-1),
            weight=devices.weight.repeat(rounds),
            snr=snr,
            group=group.reshape(-1),
            groups=rounds * len(self.cells),
            rho_max=self.rho_max,
        )


def plan(scenario: Scenario, policy: Policy = optimal, *, rounds: int | range = 1) -> Plan:
    """The plan of a policy, for rounds 0, 1, ... or for a range of them."""
    if isinstance(rounds, int):
        rounds = range(rounds)
    return plan_for(scenario.gain(rounds), scenario, policy, rounds=rounds)


def plan_for(gain: Tensor, scenario: Scenario, policy: Policy, *, rounds: range) -> Plan:
    """The plan for these channel gains [rounds, n], instead of the scenario's own."""
    scenario = replace(scenario, work=policy.work(scenario.work))
    problem = scenario.problem(gain)
    allocation = policy.allocate(problem)
    return Plan(scenario, policy.name, rounds, gain, problem, allocation)


@dataclass(frozen=True, eq=False)
class Plan:
    """Shares, ratios, rates and times, [rounds, n].

    The figures of a device that is not asked are 0, its ratio is 1.
    """

    scenario: Scenario
    policy: str
    rounds: range
    gain: Tensor
    problem: Problem
    allocation: Allocation

    @property
    def share(self) -> Tensor:
        """b, the share of its cell's band."""
        return self.allocation.share.view(self.gain.shape)

    @property
    def ratio(self) -> Tensor:
        """rho, the share of the shared weights that is pruned."""
        return self.allocation.ratio.view(self.gain.shape)

    @property
    def kept(self) -> Tensor:
        """1 - rho, the share that is trained and sent."""
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
        """By how much one more band would lower the weighted sum of ratios, [rounds, cells].

        It is 0 where band is left.
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
        """Seconds and joules, by `bits` [rounds, n] or by the paper's count of bits."""
        work = self.scenario.work
        if bits is None:
            bits = formula_bits(work, self.kept)
        return timing(
            work,
            self.scenario.devices,
            kept=self.kept,
            rate=self.rate,
            bits=bits,
            asked=self.asked,
        )

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
        """Devices asked with the largest ratio allowed."""
        return self.asked & (self.ratio >= self.scenario.rho_max - 1e-9)

    def late(self, timing: Timing | None = None) -> Tensor:
        """Devices that end after the deadline, by the message really sent or by another timing."""
        timing = timing or self.encoded
        return timing.latency > self.scenario.deadline * (1 + LATE)

    def round_seconds(self, timing: Timing | None = None) -> Tensor:
        """(18) with the wires, [rounds].

        A cell takes the time of its last device, then of its edge's message to the server.
        """
        timing = timing or self.formula
        latency = timing.latency
        cell = self.scenario.devices.cell.expand(latency.shape)
        cells = len(self.scenario.cells)
        last = torch.zeros(len(latency), cells, dtype=torch.float64)
        last = last.scatter_reduce(1, cell, latency, "amax")
        wires = wire_seconds(self.scenario.cells, self.scenario.work)
        total = last + torch.where(last > 0, wires, 0.0)
        return total.amax(1)

    def why(self, device: int, row: int = 0) -> str:
        """One sentence on why a device is left out, late or starved in a round, or ""."""
        return reasons.why(self, device, row)

    def summary(self) -> dict[str, Any]:
        """The plan in a few figures, over all rounds, as JSON can hold them."""
        asked = self.asked
        ratio = self.ratio
        rounds = len(ratio)
        count = max(int(asked.sum()), 1)
        sent = float(self.kept[asked].sum())
        cells = rounds * len(self.scenario.cells)
        worst_ratio = 0.0
        if rounds:
            worst_ratio = float(torch.where(asked, ratio, 0.0).max())
        certificate = None
        if self.certificate is not None:
            certificate = self.certificate.worst()
        return {
            "policy": self.policy,
            "asked": int(asked.sum()) / rounds,
            "left_out": int((~asked).sum()) / rounds,
            "starved": int(self.starved.sum()) / rounds,
            "late": int(self.late().sum()) / rounds,
            "late_by_formula": int(self.late(self.formula).sum()) / rounds,
            "mean_ratio": 1 - sent / count,
            "worst_ratio": worst_ratio,
            "sum_ratio": float(ratio.sum()) / rounds,
            "band_used": float(self.share.sum()) / cells,
            "round_ms": 1e3 * float(self.round_seconds().mean()),
            "round_ms_encoded": 1e3 * float(self.round_seconds(self.encoded).mean()),
            "joules": float(self.formula.joules.sum()) / rounds,
            "certificate": certificate,
        }
