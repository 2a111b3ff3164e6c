"""A plan: each device's share of the band and pruning ratio, round by round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import torch
from torch import Tensor

from covey.fields import Positive, Range, check
from covey.kernel.work import Work
from covey.radio.channel import Channel
from covey.radio.device import Cells, Devices
from covey.radio.latency import Timing, encoded_bits, formula_bits, mask_bits, rate
from covey.radio.policies import Policy, optimal
from covey.radio.problem import MIN_SHARE, Problem, Reason
from covey.radio.solve import Certificate

MaxRatio = Annotated[float, Range(0, 1, above=True)]
"""The largest share of the shared weights that may be pruned."""
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
    deadline: Positive  # T_th, s
    rho_max: MaxRatio = 0.95
    mask: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check(self)
        self.cells.check_holds(self.devices)

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
        extra_bits = mask_bits(work) if self.mask else 0
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
    return Plan(
        scenario,
        policy.name,
        rounds,
        gain,
        problem,
        share=allocation.share.view(gain.shape),
        kept=allocation.kept.view(gain.shape),
        reason=allocation.reason.view(gain.shape),
        price=allocation.price.view(len(gain), -1),
        certificate=allocation.certificate,
    )


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
    share: Tensor  # b, of its cell's band
    kept: Tensor  # 1 - rho, the share of the shared weights that is trained and sent
    reason: Tensor  # why a device is not asked, a `Reason`
    price: Tensor
    """By how much one more band would lower the weighted sum of ratios, [rounds, cells].

    It is 0 where band is left.
    """
    certificate: Certificate | None

    @property
    def ratio(self) -> Tensor:
        """rho, the share of the shared weights that is pruned."""
        return 1 - self.kept

    @property
    def asked(self) -> Tensor:
        return self.reason == Reason.ASKED

    @cached_property
    def rate(self) -> Tensor:
        """(13), bit/s."""
        devices = self.scenario.devices
        band = self.share * self.scenario.cells.bandwidth[devices.cell]
        return rate(band, self.gain, devices.power, self.scenario.channel.noise)

    def timing(self, bits: Tensor | None = None) -> Timing:
        """Seconds and joules, by `bits` [rounds, n] or by the paper's count of bits."""
        work = self.scenario.work
        devices = self.scenario.devices
        if bits is None:
            bits = formula_bits(work, self.kept)
        shared = self.kept * work.shared_cycles(devices.cycles)
        cycles = self.asked * (work.constant_cycles(devices.cycles) + shared)
        upload = torch.where(self.asked & (bits > 0), bits / self.rate, 0.0)
        return Timing(
            compute=cycles / devices.cpu,
            upload=upload,
            compute_joules=devices.capacitance * devices.cpu**2 * cycles,
            upload_joules=devices.power * upload,
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
        last = torch.zeros(len(latency), len(self.scenario.cells), dtype=torch.float64)
        last = last.scatter_reduce(1, cell, latency, "amax")
        work = self.scenario.work
        widest = torch.as_tensor(work.shared, dtype=torch.float64).max()
        cells = self.scenario.cells
        wires = cells.wire_delay + work.bits * widest / cells.wire_rate
        total = last + torch.where(last > 0, wires, 0.0)
        return total.amax(1)

    def why(self, device: int, row: int = 0) -> str:
        """One sentence on why a device is left out, late or starved in a round, or ""."""
        reason = Reason(int(self.reason[row, device]))
        if reason != Reason.ASKED:
            return self._left_out(device, row, reason)
        causes = []
        if self.late()[row, device]:
            ends = f"it ends after {_ms(self.encoded.latency[row, device])}"
            ends += f", the deadline is {_ms(self.scenario.deadline)}"
            if not self.late(self.formula)[row, device]:  # the paper omits header and mask
                ends = f"with header and mask {ends}; mask = true plans for them"
            causes.append(ends)
        if self.starved[row, device]:
            causes.append(self._starved(device, row))
        return "; ".join(causes)

    def _left_out(self, device: int, row: int, reason: Reason) -> str:
        problem = self._problem_of(device, row)
        deadline = _ms(self.scenario.deadline)
        busy = _ms(self.scenario.deadline - float(problem.budget))
        needed = f"{deadline} need a ratio above {self.scenario.rho_max:g}"
        if reason == Reason.TIME:
            return f"its personal and probe steps take {busy}, the deadline is {deadline}"
        if reason == Reason.COMPUTING:
            return f"its steps take {busy} + (1 - ratio) {_ms(problem.compute)}: {needed}"
        if reason == Reason.CHANNEL:
            return f"its shared part takes {_ms(problem.send)} over the whole band: {needed}"
        share = float(problem.share(1 - self.scenario.rho_max))
        return f"its min share {share:.3g} does not fit beside the smaller ones of the others"

    def _starved(self, device: int, row: int) -> str:
        """What more band is worth to it and to others, and how its channel differs from theirs."""
        cells = self.scenario.devices.cell
        peers = self.asked[row] & (cells == cells[device])
        sends = self.problem.send.view(self.gain.shape)[row]
        problem = self._problem_of(device, row)
        own = f"its shared part takes {_ms(problem.send)} over the whole band"
        cause = f"{own}, the median device's {_ms(sends[peers].median())}"
        price = float(self.price[row, cells[device]])
        if not price:
            return cause
        share = self.share[row, device : device + 1].clamp(min=MIN_SHARE)
        worth = float(problem.weight * problem.slope(share))
        return f"more band is worth {worth:.3g} to it and {price:.3g} to others; {cause}"

    def _problem_of(self, device: int, row: int) -> Problem:
        """The problem of one device in one round."""
        entry = row * self.gain.shape[1] + device
        return self.problem.take(torch.tensor([entry]))

    def summary(self) -> dict[str, Any]:
        """The plan in a few figures, over all rounds, as JSON can hold them."""
        asked = self.asked
        ratio = self.ratio
        rounds = len(ratio)
        count = max(int(asked.sum()), 1)
        sent = float(self.kept[asked].sum())

        def per_round(values: Tensor) -> float:
            return values.sum().item() / rounds

        return {
            "policy": self.policy,
            "asked": per_round(asked),
            "left_out": per_round(~asked),
            "starved": per_round(self.starved),
            "late": per_round(self.late()),
            "late_by_formula": per_round(self.late(self.formula)),
            "mean_ratio": 1 - sent / count,
            "worst_ratio": float(torch.where(asked, ratio, 0.0).max()),
            "sum_ratio": per_round(ratio),
            "band_used": float(self.share.sum()) / (rounds * len(self.scenario.cells)),
            "round_ms": 1e3 * float(self.round_seconds().mean()),
            "round_ms_encoded": 1e3 * float(self.round_seconds(self.encoded).mean()),
            "joules": per_round(self.formula.joules),
            "certificate": None if self.certificate is None else self.certificate.worst(),
        }


def _ms(seconds: float | Tensor) -> str:
    return f"{1e3 * float(seconds):.3g} ms"
