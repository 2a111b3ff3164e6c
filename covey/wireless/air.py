"""The virtual clock of a run: what every answer takes over the air, and how long whoever asked
waits for it.

Times have two columns: by what was measured, the gradient steps taken and the bytes encoded; and by
the plan's formulas, with q (1 - rho) N_u bits a message. Where nothing is planned both are the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from covey.errors import ConfigError
from covey.kernel.environment import Answered
from covey.kernel.work import Work
from covey.tree import Tree
from covey.wireless.device import Cells, Devices
from covey.wireless.latency import formula_bits, whole_weights
from covey.wireless.plan import LATE, Scenario, plan_for
from covey.wireless.policies import Policy, optimal, personal_only
from covey.wireless.problem import Reason
from covey.wireless.radio import Radio

_SOME_TIME = 1.0  # s: a deadline for policies that do not look at it


@dataclass(frozen=True)
class RadioRecord:
    """A round on the virtual clock."""

    seconds: float  # from the server's question to its new model
    joules: float  # of all devices
    upload_joules: float  # of these, for sending
    upload_bytes: int  # of all devices' answers, as encoded
    formula_seconds: float | None = (
        None  # with the plan's count of steps and bits; None where nothing is planned
    )
    formula_bytes: float | None = None
    left_out: list[int] = field(
        default_factory=list
    )  # devices that the plan did not ask, whom no ratio brings to the deadline
    reasons: dict[str, list[int]] = field(
        default_factory=dict
    )  # why: "time", "computing", "channel", "crowded" or "starved"
    late: list[int] = field(default_factory=list)  # devices that ended after the deadline
    certificate: float | None = (
        None  # the largest figure of its plans' certificates; None where none comes with one
    )


@dataclass(frozen=True, eq=False)
class Allocation:
    """What those asked are given, [m]."""

    ids: Tensor
    asked: Tensor  # bool, of all; the rest is of those asked alone
    ratio: Tensor
    rate: Tensor  # bit/s
    formula: Tensor | None  # s, what a plan says their answers take
    formula_bits: Tensor | None


class RadioClock:
    """The radio of a run under way, for every seed a population of its own; cells are counted
    through.
    """

    ideal = False

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
        """`work` is what a plan reckons with, if that is known; `prunes`, whether the algorithm
        takes its ratios from a plan; `chosen`, each seed's devices that train, as the radio counts
        them.
        """
        self._tree = tree
        self.radio, self.work, self.policy, self._seeds = (
            radio,
            work,
            _policy(radio, work, prunes),
            tuple(seeds),
        )
        self._chosen = [torch.tensor(ids, dtype=torch.int64) for ids in chosen]
        copies = len(self._seeds)
        self.devices = Devices.stack(
            [radio.devices.take(ids) for ids in self._chosen], cells=len(radio.cells)
        )
        self.cells: Cells = radio.cells.times(copies)
        self._each, self._gain = len(self._chosen[0]), (-1, torch.zeros(0))
        self.begin()

    def begin(self) -> None:
        """Start a round."""
        copies = len(self._seeds)
        self._joules = torch.zeros(copies, 2, dtype=torch.float64)  # computing, sending
        self._bits = torch.zeros(copies, 2, dtype=torch.float64)  # as encoded, by formula
        self._left_out: dict[str, list[Tensor]] = {}
        self._late: list[Tensor] = []
        self._certificate = torch.full((copies,), -torch.inf, dtype=torch.float64)

    def admit(self, tier: str, ids: Tensor, round: int) -> Allocation | None:
        """What devices that are asked together are granted; edges have wires."""
        return self.grant(ids, round) if tier == self._tree.tiers[-1] else None

    def answered(self, answers: Answered) -> tuple[Tensor, Tensor | None]:
        """Seconds that each asker waits, [n, 2], and a mask of the answers that count, [k] (None:
        all).
        """
        effort, asker = answers.effort, answers.asker
        sent = effort.sent[answers.answers]
        grant = effort.admission
        if not isinstance(grant, Allocation):
            return self._waited_for_edges(answers, sent), None
        idle = torch.zeros_like(asker, dtype=torch.bool)
        if answers.asker_idle is not None:
            idle = answers.asker_idle[asker]
        took = self.took(grant, effort.moved[answers.answers], sent, idle)
        counts = self.in_time(grant, took, asker, answers.askers, idle)
        relay = answers.tier == self._tree.tiers[0]
        waited = self.waits(grant, took, counts, sent, asker, answers.askers, relay)
        return waited, None if bool(counts.all()) else counts

    def _waited_for_edges(self, answers: Answered, sent: Tensor) -> Tensor:
        """Seconds until the last of the edges below each asker has answered, [n, 2]."""
        ends = answers.effort.elapsed[answers.answers]
        if (
            self._tree.below(answers.below) == self._tree.tiers[-1]
        ):  # the cells' edges, which have wires
            first = self._tree.first(answers.below, answers.effort.ids[answers.answers])
            ends = ends + self.wire(first, sent)
        return most(ends, answers.asker, answers.askers)

    def grant(self, ids: Tensor, round: int) -> Allocation:
        """Shares of the bands, and ratios, for devices that are asked together."""
        if not len(ids):
            nothing = torch.zeros(0, dtype=torch.float64)
            known = None if self.work is None else nothing
            return Allocation(ids, nothing.bool(), nothing, nothing, known, known)
        devices, radio = self.devices.take(ids), self.radio
        here = torch.tensor(
            sorted(set(devices.cell.tolist()))
        )  # cells in which nobody is asked have no problem
        scenario = Scenario(
            replace(devices, cell=torch.searchsorted(here, devices.cell)), self.cells.take(here), radio.channel,
            self.work or Work(shared=1.0), radio.deadline or _SOME_TIME, radio.rho_max, radio.mask and self.policy.prunes,
        )  # fmt: skip
        plan = plan_for(
            self._gains(round)[ids][None], scenario, self.policy, rounds=range(round, round + 1)
        )
        if plan.certificate is not None:
            copy = here // len(radio.cells)
            self._certificate = self._certificate.scatter_reduce(
                0, copy, plan.certificate.largest(), "amax"
            )
        asked = plan.asked[0]
        if self.policy.prunes:
            asked = asked & (
                plan.rate[0] > 0
            )  # with rho_max = 1 a plan may give no band, over which not even a mask is sent
        for reason in set(plan.reason[0][~asked].tolist()):
            name = Reason(reason).name.lower() if reason != Reason.ASKED else "starved"
            self._left_out.setdefault(name, []).append(ids[~asked & (plan.reason[0] == reason)])
        if self.work is None:
            return Allocation(
                ids[asked], asked, plan.ratio[0][asked], plan.rate[0][asked], None, None
            )
        size = float(self.work.shared)
        kept = whole_weights(plan.kept[0][asked], size) / size
        bits = formula_bits(plan.scenario.work, plan.kept)[0][asked]
        return Allocation(
            ids[asked], asked, 1 - kept, plan.rate[0][asked], plan.formula.latency[0][asked], bits
        )

    def took(self, grant: Allocation, work: Tensor, sent: Tensor, idle: Tensor) -> Tensor:
        """Seconds of each answer, [m, 2], of those that a grant asks: `work` in steps times
        weights, `sent` in bytes.

        `idle` [m] bool: who stands under a node that was not asked, and trains for nobody; that
        costs nothing.
        """
        devices = self.devices.take(grant.ids)
        cycles, bits = devices.cycles * work, 8.0 * sent
        upload = torch.where(bits > 0, bits / grant.rate, 0.0)
        measured = cycles / devices.cpu + upload
        spent = torch.stack(
            [devices.capacitance * devices.cpu**2 * cycles, devices.power * upload], dim=1
        )
        formula_bits = bits if grant.formula_bits is None else grant.formula_bits
        copy = grant.ids[~idle] // self._each
        self._joules.index_add_(0, copy, spent[~idle])
        self._bits.index_add_(0, copy, torch.stack([bits, formula_bits], dim=1)[~idle])
        return torch.stack([measured, measured if grant.formula is None else grant.formula], dim=1)

    def in_time(
        self, grant: Allocation, took: Tensor, asker: Tensor, askers: int, idle: Tensor
    ) -> Tensor:
        """Whose answers count, [m] bool: with `late = "drop"` those in time, or the first where an
        asker has none.
        """
        deadline, seconds = self.radio.deadline, took[:, 0]
        if deadline is None:
            return torch.ones_like(seconds, dtype=torch.bool)
        late = seconds > deadline * (1 + LATE)
        self._late.append(grant.ids[late & ~idle])
        if self.radio.late == "wait" or not bool(late.any()):
            return torch.ones_like(late)
        anyone = torch.zeros(askers, dtype=torch.bool).index_put_(
            (asker[~late],), torch.tensor(True)
        )
        place = torch.argsort(
            torch.argsort(seconds, stable=True)
        )  # of two that end at once the first
        first = torch.full((askers,), len(place)).scatter_reduce(0, asker, place, "amin")
        return ~late | (~anyone[asker] & (place == first[asker]))

    def waits(
        self,
        grant: Allocation,
        took: Tensor,
        counts: Tensor,
        sent: Tensor,
        asker: Tensor,
        askers: int,
        relay: bool,
    ) -> Tensor:
        """Seconds that each asker waits, [n, 2]; with `relay` its devices' messages cross the wires
        of their cells as well.
        """
        ends = (
            took
            if self.radio.deadline is None
            else torch.where(counts[:, None], took, self.radio.deadline)
        )
        cell = self.devices.cell[grant.ids]
        lasts = most(ends, cell, len(self.cells))
        if relay:
            bits = torch.stack(
                [8.0 * sent, 8.0 * sent if grant.formula_bits is None else grant.formula_bits],
                dim=1,
            )
            total = torch.zeros(len(self.cells), 2, dtype=torch.float64).index_add_(
                0, cell[counts], bits[counts]
            )
            lasts = lasts + self._crossing(torch.arange(len(self.cells)), total)
        return most(lasts[cell], asker, askers)

    def wire(self, first_device: Tensor, sent: Tensor) -> Tensor:
        """Seconds of the edges' own answers on their wires, [m, 2]; an edge is the cell of its
        first device.
        """
        cell = self.devices.cell[first_device]
        formula = (
            8.0 * sent
            if self.work is None
            else torch.full_like(sent, self.work.bits * float(self.work.shared))
        )
        return self._crossing(
            cell, torch.where(sent[:, None] > 0, torch.stack([8.0 * sent, formula], dim=1), 0.0)
        )

    def _crossing(self, cell: Tensor, bits: Tensor) -> Tensor:
        """Seconds of bits [m, 2] on the wires of cells [m]; a wire that nothing crosses takes no
        time.
        """
        crossing = self.cells.wire_delay[cell][:, None] + bits / self.cells.wire_rate[cell][:, None]
        return torch.where(bits > 0, crossing, 0.0)

    def read(self, elapsed: Tensor) -> list[RadioRecord]:
        """What the round came to for each seed; `elapsed` is how long the servers waited, [seeds,
        2].
        """
        out, planned = [], self.work is not None
        late = torch.cat([self._chosen[0][:0], *self._late])
        left_out = {name: torch.cat(found) for name, found in sorted(self._left_out.items())}
        for at in range(len(self._seeds)):
            seconds, (computing, sending), bits = (
                elapsed[at].tolist(),
                self._joules[at].tolist(),
                self._bits[at].tolist(),
            )
            reasons = {
                name: mine for name, ids in left_out.items() if (mine := self._names(at, ids))
            }
            aired = RadioRecord(
                seconds=seconds[0],
                joules=computing + sending,
                upload_joules=sending,
                upload_bytes=round(bits[0] / 8),
                formula_seconds=seconds[1] if planned else None,
                formula_bytes=bits[1] / 8 if planned else None,
                left_out=sorted({device for mine in reasons.values() for device in mine}),
                reasons=reasons,
                late=self._names(at, late),
                certificate=known if (known := float(self._certificate[at])) >= 0 else None,
            )
            out.append(aired)
        return out

    def _names(self, at: int, ids: Tensor) -> list[int]:
        """Which of these are devices of a seed, as the tree of its training counts them."""
        return sorted({int(one) % self._each for one in ids[ids // self._each == at].tolist()})

    def _gains(self, round: int) -> Tensor:
        """The channel gains of all seeds' devices in a round, [n]; those of a device whoever else
        is there.
        """
        if self._gain[0] != round:
            channel, rounds = self.radio.channel, range(round, round + 1)
            found = [
                channel.gain(self.radio.devices.distance[ids], ids, rounds=rounds, seed=seed)[0]
                for ids, seed in zip(self._chosen, self._seeds, strict=True)
            ]
            self._gain = (round, torch.cat(found))
        return self._gain[1]


def most(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """The largest of each group by column, [groups, k]; 0 where it has none."""
    out = torch.zeros(groups, values.shape[1], dtype=torch.float64)
    return out.scatter_reduce(0, group[:, None].expand(values.shape), values, "amax")


def _policy(radio: Radio, work: Work | None, prunes: bool) -> Policy:
    """How the band is shared; an error where that does not suit the algorithm."""
    policy = radio.policy or (optimal if prunes else personal_only)
    if prunes and radio.deadline is None:
        raise ConfigError(
            "radio: a plan needs a deadline; give one, in a file such as deadline = '25 ms' in [radio]."
        )
    if policy.prunes and not prunes:
        rule = 'leave it out, or take personal_only or personal_fastest; Pruned(ratio="plan") prunes as a plan says'
        raise ConfigError(
            f"radio: the policy {policy.name} prunes, but this algorithm takes no ratio from a plan; {rule}."
        )
    if policy.listed:
        rule = "give the weights of devices as a column of Devices, and ratios of your own as a list, Pruned(ratio=[...])"
        raise ConfigError(
            f"radio: the policy {policy.name} has a value for each device, but a run asks some of them; {rule}."
        )
    if work is not None and policy.work(work).shared != work.shared:
        rule = 'take optimal, or give private = ""'
        raise ConfigError(
            f"radio: the policy {policy.name} prunes and sends the private layers too, which stay here; {rule}."
        )
    if policy.name != personal_only.name and work is None:
        raise ConfigError(
            f"radio: the policy {policy.name} needs to know a device's work, which this algorithm does not say."
        )
    return policy
