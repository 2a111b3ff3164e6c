"""The virtual clock of a run: how long each answer takes, and how long its asker waits for it.

Times have two columns. The first is measured: the gradient steps taken and the bytes encoded. The
second is by the plan's formulas, with q (1 - rho) N_u bits a message. Without a plan both columns
are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from covey.errors import ConfigError
from covey.kernel.environment import Answered, Environment
from covey.kernel.work import Work
from covey.radio.device import Devices
from covey.radio.latency import formula_bits, whole_weights
from covey.radio.plan import LATE, Plan, Scenario, plan_for
from covey.radio.policies import Policy, optimal, personal_only
from covey.radio.problem import Reason
from covey.tree import Tree

if TYPE_CHECKING:
    from covey.radio.radio import Radio

TOTALS = ("answers", "ratio", "rate", "bandwidth", "seconds", "joules")
"""The figures of every device: the number of its answers, and sums over these answers."""
_ANY_DEADLINE = 1.0  # s: for policies that do not read the deadline


@dataclass(frozen=True)
class RadioRecord:
    """One round on the virtual clock."""

    name: ClassVar[str] = "radio"
    axes: ClassVar[Mapping[str, str]] = {
        "seconds": "seconds over the air",
        "joules": "joules of all devices",
    }

    seconds: float  # from the server's question to its new model
    joules: float  # of all devices
    upload_joules: float  # the part of `joules` for sending
    upload_bytes: int  # of all devices' answers, as encoded
    formula_seconds: float | None = None  # by the plan's count of steps and bits; None: no plan
    formula_bytes: float | None = None  # by the plan's count of bits; None: no plan
    left_out: list[int] = field(default_factory=list)
    """Devices excluded by the plan because no pruning ratio meets the deadline."""
    reasons: dict[str, list[int]] = field(default_factory=dict)
    """Excluded devices by reason: "time", "computing", "channel", "crowded" or "starved"."""
    late: list[int] = field(default_factory=list)  # devices that ended after the deadline
    certificate: float | None = None
    """The largest figure of the plans' certificates; None where no plan has one."""

    def figures(self) -> dict[str, float]:
        """Every number under its name; of a list of devices its length, of `reasons` nothing."""
        numbers = {name: v for name, v in vars(self).items() if isinstance(v, int | float)}
        return numbers | {"left_out": len(self.left_out), "late": len(self.late)}

    def __str__(self) -> str:
        return f"air {self.seconds:.3g} s {self.joules:.3g} J"


@dataclass(frozen=True, eq=False)
class RadioAllocation:
    """The pruning ratios and rates of the devices asked, [m]."""

    ids: Tensor
    asked: Tensor  # bool, of all candidates; the other columns are of the devices asked
    ratio: Tensor
    rate: Tensor  # bit/s
    bandwidth: Tensor  # Hz
    formula: Tensor | None  # s, the plan's latency of each answer
    formula_bits: Tensor | None


class RadioClock(Environment):
    """The radio of a run under way.

    Every seed has a population and cells of its own; devices and cells are numbered through all
    seeds.
    """

    ideal: ClassVar[bool] = False

    def __init__(
        self,
        radio: Radio,
        work: Work | None,
        prunes: bool,
        *,
        tree: Tree,
        seeds: Sequence[int],
        chosen: Sequence[Sequence[int]],
    ) -> None:
        """A clock at rest.

        `work` is the work that a plan assumes, where the algorithm states it. `prunes` says whether
        the algorithm takes its ratios from a plan. `chosen` are each seed's training devices, by
        the radio's numbers.
        """
        self._tree = tree
        self.radio = radio
        self.work = work
        self.policy = _policy(radio, work, prunes)
        self._seeds = seeds
        self._chosen = [torch.tensor(ids, dtype=torch.int64) for ids in chosen]
        self._per_seed = len(self._chosen[0])
        populations = [radio.devices.take(ids) for ids in self._chosen]
        self.devices = Devices.stack(populations, cells=len(radio.cells))
        self.cells = radio.cells.times(len(seeds))
        self._gains: tuple[int, Tensor] = (-1, torch.zeros(0))
        self.begin()

    def begin(self) -> None:
        """Start a round."""
        seeds = len(self._seeds)
        self._joules = torch.zeros(seeds, 2, dtype=torch.float64)  # computing, sending
        self._bits = torch.zeros(seeds, 2, dtype=torch.float64)  # as encoded, by formula
        self._left_out: dict[str, list[Tensor]] = {}
        self._late: list[Tensor] = []
        self._certificate = torch.full((seeds,), -torch.inf, dtype=torch.float64)
        self._totals = {
            name: torch.zeros(len(self.devices), dtype=torch.float64) for name in TOTALS
        }

    def admit(self, tier: str, ids: Tensor, round: int) -> RadioAllocation | None:
        """Shares of the bands, and ratios, for devices that are asked together.

        None for edges, which have wires.
        """
        if tier != self._tree.tiers[-1]:
            return None
        if not len(ids):
            nothing = torch.zeros(0, dtype=torch.float64)
            formula = None if self.work is None else nothing
            return RadioAllocation(ids, nothing.bool(), nothing, nothing, nothing, formula, formula)
        devices = self.devices.take(ids)
        cells = torch.unique(devices.cell)  # where a device is asked
        scenario = Scenario(
            replace(devices, cell=torch.searchsorted(cells, devices.cell)),
            self.cells.take(cells),
            self.radio.channel,
            self.work or Work(shared=1.0),
            self.radio.deadline or _ANY_DEADLINE,
            self.radio.rho_max,
            self.radio.mask and self.policy.prunes,
        )
        gain = self._gain(round)[ids][None]
        plan = plan_for(gain, scenario, self.policy, rounds=range(round, round + 1))
        if plan.certificate is not None:
            seed = cells // len(self.radio.cells)
            figures = plan.certificate.largest()
            self._certificate = self._certificate.scatter_reduce(0, seed, figures, "amax")
        return self._planned(plan, ids)

    def answered(self, answers: Answered) -> tuple[Tensor, Tensor | None]:
        """Seconds that each asker waits, [n, 2], and a mask of the answers that count, [k].

        The mask is None where all answers count.
        """
        asker = answers.asker
        sent = answers.effort.sent[answers.answers]
        allocation = answers.effort.admission
        if not isinstance(allocation, RadioAllocation):
            return self._waited_for_edges(answers, sent), None
        idle = torch.zeros_like(asker, dtype=torch.bool)
        if answers.asker_idle is not None:
            idle = answers.asker_idle[asker]
        took = self.took(allocation, answers, idle)
        counts = self.in_time(allocation, answers, took, idle)
        ends = took
        if self.radio.deadline is not None:
            ends = torch.where(counts[:, None], took, self.radio.deadline)
        cell = self.devices.cell[allocation.ids]
        ends = max_per_group(ends, cell, len(self.cells))  # when each cell has its last answer
        if answers.tier == self._tree.tiers[0]:  # no edges: cells relay their devices' messages
            total = torch.zeros_like(ends).index_add_(
                0, cell[counts], _both_bits(allocation, sent)[counts]
            )
            ends = ends + self._wire_seconds(torch.arange(len(self.cells)), total)
        waited = max_per_group(ends[cell], asker, answers.askers)
        if bool(counts.all()):
            return waited, None
        return waited, counts

    def _waited_for_edges(self, answers: Answered, sent: Tensor) -> Tensor:
        """Seconds until the last of the edges below each asker has answered, [n, 2].

        The answer of an edge above devices crosses the wire of its cell, that of its first device.
        """
        ends = answers.effort.elapsed[answers.answers]
        if self._tree.below(answers.below) == self._tree.tiers[-1]:
            edges = answers.effort.ids[answers.answers]
            first_device = self._tree.first(answers.below, edges)
            formula = measured = 8.0 * sent
            if self.work is not None:
                formula = torch.full_like(sent, self.work.bits * float(self.work.shared))
            bits = torch.stack([measured, formula], dim=1)
            bits = torch.where(sent[:, None] > 0, bits, 0.0)
            ends = ends + self._wire_seconds(self.devices.cell[first_device], bits)
        return max_per_group(ends, answers.asker, answers.askers)

    def _planned(self, plan: Plan, ids: Tensor) -> RadioAllocation:
        """A plan's figures for the devices asked; the others are noted by reason.

        Ratios are of whole weights where work is known.
        """
        asked = plan.asked[0]
        if self.policy.prunes:  # with rho_max = 1 a plan may give no band, not even for a mask
            asked = asked & (plan.rate[0] > 0)
        reasons = plan.reason[0]
        for reason in torch.unique(reasons[~asked]).tolist():
            name = "starved" if reason == Reason.ASKED else Reason(reason).name.lower()
            self._left_out.setdefault(name, []).append(ids[~asked & (reasons == reason)])
        ratio = plan.ratio[0][asked]
        rate = plan.rate[0][asked]
        band = self.cells.bandwidth[self.devices.cell[ids]]
        bandwidth = (plan.share[0] * band)[asked]
        if self.work is None:
            return RadioAllocation(ids[asked], asked, ratio, rate, bandwidth, None, None)
        width = float(self.work.shared)
        kept = whole_weights(plan.kept[0][asked], width) / width
        latency = plan.formula.latency[0][asked]
        bits = formula_bits(plan.scenario.work, plan.kept)[0][asked]
        return RadioAllocation(ids[asked], asked, 1 - kept, rate, bandwidth, latency, bits)

    def took(self, allocation: RadioAllocation, answers: Answered, idle: Tensor) -> Tensor:
        """Seconds of each answer, [m, 2].

        `idle` [m] bool: devices below a node that was not asked. They train for no one, and are
        charged nothing.
        """
        devices = self.devices.take(allocation.ids)
        sent = answers.effort.sent[answers.answers]
        cycles = devices.cycles * answers.effort.moved[answers.answers]  # steps times weights
        bits = 8.0 * sent
        upload = torch.where(bits > 0, bits / allocation.rate, 0.0)
        measured = cycles / devices.cpu + upload
        compute_joules = devices.capacitance * devices.cpu**2 * cycles
        upload_joules = devices.power * upload
        joules = torch.stack([compute_joules, upload_joules], dim=1)
        seed = allocation.ids[~idle] // self._per_seed
        self._joules.index_add_(0, seed, joules[~idle])
        self._bits.index_add_(0, seed, _both_bits(allocation, sent)[~idle])
        sums = {
            "answers": torch.ones_like(measured),
            "ratio": allocation.ratio,
            "rate": allocation.rate,
            "bandwidth": allocation.bandwidth,
            "seconds": measured,
            "joules": joules.sum(1),
        }
        charged = allocation.ids[~idle]
        for name, figures in sums.items():
            self._totals[name].index_add_(0, charged, figures[~idle].double())
        formula = measured if allocation.formula is None else allocation.formula
        return torch.stack([measured, formula], dim=1)

    def in_time(
        self, allocation: RadioAllocation, answers: Answered, took: Tensor, idle: Tensor
    ) -> Tensor:
        """Which answers count, [m] bool.

        With `late = "drop"` those in time count, or the first where all answers to an asker are
        late.
        """
        seconds = took[:, 0]
        deadline = self.radio.deadline
        if deadline is None:
            return torch.ones_like(seconds, dtype=torch.bool)
        late = seconds > deadline * (1 + LATE)
        self._late.append(allocation.ids[late & ~idle])
        if self.radio.late == "wait" or not bool(late.any()):
            return torch.ones_like(late)
        asker = answers.asker
        has_answer = torch.zeros(answers.askers, dtype=torch.bool)
        has_answer = has_answer.index_put_((asker[~late],), torch.tensor(True))
        order = torch.argsort(seconds, stable=True)  # of two that end at once the first
        rank = torch.argsort(order)
        last_rank = torch.full((answers.askers,), len(rank))
        first = last_rank.scatter_reduce(0, asker, rank, "amin")
        return ~late | (~has_answer[asker] & (rank == first[asker]))

    def _wire_seconds(self, cell: Tensor, bits: Tensor) -> Tensor:
        """Seconds of bits [m, 2] on the wires of cells [m]; 0 where there are no bits."""
        delay = self.cells.wire_delay[cell][:, None]
        rate = self.cells.wire_rate[cell][:, None]
        return torch.where(bits > 0, delay + bits / rate, 0.0)

    def read(self, elapsed: Tensor) -> tuple[list[RadioRecord], dict[str, Tensor]]:
        """The record of the round for each seed; `elapsed` [seeds, 2] is the servers' wait.

        Beside it are the sums over the answers of every device of all seeds, by `TOTALS`.
        """
        late = torch.cat([self._chosen[0][:0], *self._late])
        planned = self.work is not None
        records = []
        for seed, (seconds, formula_seconds) in enumerate(elapsed.tolist()):
            computing, sending = self._joules[seed].tolist()
            bits, formula_bits = self._bits[seed].tolist()
            certificate = float(self._certificate[seed])
            excluded = {
                name: self._devices_of(seed, torch.cat(parts))
                for name, parts in sorted(self._left_out.items())
            }
            reasons = {name: devices for name, devices in excluded.items() if devices}
            record = RadioRecord(
                seconds=seconds,
                joules=computing + sending,
                upload_joules=sending,
                upload_bytes=round(bits / 8),
                formula_seconds=formula_seconds if planned else None,
                formula_bytes=formula_bits / 8 if planned else None,
                left_out=sorted({device for devices in reasons.values() for device in devices}),
                reasons=reasons,
                late=self._devices_of(seed, late),
                certificate=certificate if certificate >= 0 else None,
            )
            records.append(record)
        return records, dict(self._totals)

    def _devices_of(self, seed: int, ids: Tensor) -> list[int]:
        """The ids that are devices of a seed, by the numbers of its training tree."""
        own = ids[ids // self._per_seed == seed]
        return sorted({device % self._per_seed for device in own.tolist()})

    def _gain(self, round: int) -> Tensor:
        """The channel gains of all seeds' devices in a round, [n].

        A device's gain does not depend on which other devices train.
        """
        if self._gains[0] != round:
            rounds = range(round, round + 1)
            distance = self.radio.devices.distance
            gains = [
                self.radio.channel.gain(distance[ids], ids, rounds=rounds, seed=seed)[0]
                for ids, seed in zip(self._chosen, self._seeds, strict=True)
            ]
            self._gains = (round, torch.cat(gains))
        return self._gains[1]


def max_per_group(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """The maximum of each group by column, [groups, k]; 0 where a group is empty."""
    out = torch.zeros(groups, values.shape[1], dtype=torch.float64)
    index = group[:, None].expand(values.shape)
    return out.scatter_reduce(0, index, values, "amax")


def _both_bits(allocation: RadioAllocation, sent: Tensor) -> Tensor:
    """The bits of each answer, as encoded and by formula, [m, 2]; `sent` is in bytes."""
    encoded = 8.0 * sent
    formula = encoded if allocation.formula_bits is None else allocation.formula_bits
    return torch.stack([encoded, formula], dim=1)


def _policy(radio: Radio, work: Work | None, prunes: bool) -> Policy:
    """The policy that shares the band; an error where it does not suit the algorithm."""
    policy = radio.policy
    if policy is None:
        policy = optimal if prunes else personal_only
    if prunes:
        radio.planned_deadline()
    problem = ""
    if policy.prunes and not prunes:
        problem = (
            "prunes, but this algorithm takes no ratio from a plan; leave it out, or take "
            'personal_only or personal_fastest; Pruned(ratio="plan") prunes as a plan says'
        )
    elif policy.listed:
        problem = (
            "has a value for each device, but a run asks some of them; give the weights of "
            "devices as a column of Devices, and ratios of your own as a list, Pruned(ratio=[...])"
        )
    elif work is not None and policy.work(work).shared != work.shared:
        problem = (
            "prunes and sends the private layers too, which stay here; "
            'take optimal, or give private = ""'
        )
    elif policy.name != personal_only.name and work is None:
        problem = "needs to know a device's work, which this algorithm does not say"
    if problem:
        raise ConfigError(f"radio: the policy {policy.name} {problem}.")
    return policy
