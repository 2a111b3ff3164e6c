"""What can be said of bandwidth and pruning plans without training: how exact they are, how fast,
and which orderings hold.

`python -m experiments.plan.run exact|printed|remarks|orderings|scale`. Instances follow the paper
where it gives a number (10 devices, 20 MHz, 28 dBm, -110 dBm, 3 GHz, 32 bits, 25 ms); where it
gives none, every instance draws its own: places on a ring of 20 to 300 m, path loss 30 + 35
log10(d) dB with Rayleigh fading, 10 to 60 cycles a weight, 10,000 to 200,000 shared weights (half
to one and a half times that for each device) and a quarter as many personal ones. An instance is a
cell; all are planned at once.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq, minimize
from torch import Tensor

from covey.radio.solve import admit, best
from covey.wireless import (
    POLICIES,
    Cells,
    Channel,
    Devices,
    Noise,
    Plan,
    Problem,
    Scenario,
    Spread,
    Work,
    fixed,
    plan,
)

DEVICES = 10
POWER = 10 ** ((28 - 30) / 10)
NOISES = {
    "fixed power": Noise(10 ** ((-110 - 30) / 10)),
    "density": Noise(10 ** ((-174 - 30) / 10), per_hertz=True),
}


def world(count: int, *, noise: str = "fixed power", rho_max: float = 1.0) -> Scenario:
    """`count` random instances, one to a cell."""
    cell = torch.arange(count).repeat_interleave(DEVICES)
    size = Spread("log_uniform", (1e4, 2e5)).draw(1, torch.arange(count))[cell]
    shared = (size * Spread("uniform", (0.5, 1.5)).draw(2, torch.arange(len(cell)))).round()
    cycles, places = Spread("uniform", (10.0, 60.0)), Spread("disc", (20.0, 300.0))
    return Scenario(
        Devices.of(cell, distance=places, cpu=3e9, cycles=cycles, power=POWER),
        Cells.of(20e6, count=count),
        Channel(NOISES[noise]),
        Work(shared, (shared / 4).round(), steps=5, personal_steps=3, probe_steps=1),
        deadline=0.025,
        rho_max=rho_max,
    )


def exact(count: int) -> None:
    """The closed form against a generic solver, and the certificates."""
    names = [
        "noise",
        "rho_max",
        "instances",
        "ours - generic, sum of ratios",
        "relative",
        "stationarity",
        "complementarity",
        "gap",
    ]
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for noise in NOISES:
        for rho_max in (1.0, 0.95):
            s = world(count, noise=noise, rho_max=rho_max)
            p = s.problem(s.gain(range(1)))
            found = best(p)
            assert found.certificate is not None
            differences, relative = [], []
            for g in range(count):
                mine = (p.group == g) & (found.reason == 0)
                if mine.any():
                    ours = float(found.ratio[mine].sum())
                    _, theirs = generic(
                        replace(
                            p.take(p.group == g),
                            group=torch.zeros(DEVICES, dtype=torch.int64),
                            groups=1,
                        )
                    )
                    differences.append(ours - theirs)
                    relative.append(abs(ours - theirs) / theirs if theirs > 1e-6 else 0.0)
            worst = [
                f"{found.certificate.worst()[key]:.1e}"
                for key in ("stationarity", "complementarity", "gap")
            ]
            ends = f"{min(differences):.1e} to {max(differences):.1e}"
            most = f"{max(relative):.1e}, 99 in 100 below {np.quantile(relative, 0.99):.1e}"
            print(
                "| "
                + " | ".join([noise, f"{rho_max:g}", str(len(differences)), ends, most, *worst])
                + " |",
                flush=True,
            )


def generic(p: Problem) -> tuple[Tensor, float]:
    """Shares and the sum of ratios of those asked in one group by SLSQP, started again from its own
    end.

    With noise by density it works on log b, which is the same problem; on b it fails where shares
    differ by many orders.
    """
    reason, least = admit(p)
    q = p.take(reason == 0)
    low = least[reason == 0].numpy()
    high = np.maximum(q.share(1.0).clamp(max=1.0).numpy(), low)
    log = q.snr is not None
    ends = [
        (math.log(max(a, 1e-30)), math.log(b)) if log else (a, b)
        for a, b in zip(low, high, strict=True)
    ]

    def shares(x: np.ndarray) -> np.ndarray:
        return np.exp(x) if log else x

    def cost(x: np.ndarray) -> float:
        return float((q.weight * (1 - q.kept(torch.from_numpy(shares(x))))).sum())

    def slope(x: np.ndarray) -> np.ndarray:
        b = shares(x)
        return -(q.weight * q.slope(torch.from_numpy(b))).numpy() * (b if log else 1.0)

    def room_slope(x: np.ndarray) -> np.ndarray:
        return -(shares(x) if log else np.ones_like(x))

    band = {"type": "ineq", "fun": lambda x: 1 - shares(x).sum(), "jac": room_slope}
    b = low + (high - low) * min(1.0, max(1 - low.sum(), 0.0) / max((high - low).sum(), 1e-300))
    for _ in range(2):
        x = np.clip(np.log(np.maximum(b, 1e-30)) if log else b, *np.array(ends).T)
        options = {"maxiter": 500, "ftol": 1e-15}
        b = shares(
            minimize(
                cost, x, jac=slope, bounds=ends, constraints=[band], method="SLSQP", options=options
            ).x
        )
        b = low + (b - low) * min(
            1.0, max(1 - low.sum(), 0.0) / max((b - low).sum(), 1e-300)
        )  # back inside the band
    return torch.from_numpy(b), float((q.weight * (1 - q.kept(torch.from_numpy(b)))).sum())


def printed(count: int) -> None:
    """Equation (47) as printed, its price chosen so that shares add up to 1, and (39) without the
    probe.
    """
    s = world(count)
    p = s.problem(s.gain(range(1)))
    usable = p.budget > 0
    p, bits = p.take(usable), (s.work.bits * torch.as_tensor(s.work.shared))[usable]
    theirs = torch.zeros_like(p.budget)
    for g in p.group.unique().tolist():
        theirs[p.group == g] = as_printed(p.take(p.group == g), bits[p.group == g])
    even = 1 / p.total(torch.ones_like(p.budget))[p.group]
    cap = p.share(1.0).clamp(max=1.0)
    ours, as_they, equally = (
        p.total((1 - p.kept(b)).clamp(0, 1)).numpy()
        for b in (best(p).share, theirs.minimum(cap), even)
    )
    prunes = ours > 1e-6
    more, added = as_they[prunes] / ours[prunes] - 1, (as_they - ours)[prunes] / DEVICES
    print(
        f"(47) as printed: a larger sum of ratios in {np.mean(more > 1e-9):.1%} of the {prunes.sum()} instances that prune,"
    )
    print(
        f"  by {np.median(more):.1%} in the median; the mean ratio by {np.median(added):.3f}, at most {added.max():.3f};"
    )
    print(
        f"  a larger sum than with equal shares in {np.mean(as_they[prunes] > equally[prunes]):.1%}"
    )
    probe = 1e3 * (s.work.shared * s.devices.cycles / s.devices.cpu).view(count, DEVICES).amax(1)
    print(
        f"(39) without the probe: the slowest device is {probe.median():.2f} ms late in the median, {probe.max():.1f} ms at most"
    )


def as_printed(p: Problem, bits: Tensor) -> Tensor:
    """b = sqrt((A s r / price - s) / (r c)), with s in bits and r in bit/s, the price such that
    shares add up to 1.
    """
    a, c, s = p.budget.numpy(), p.compute.numpy(), bits.numpy()
    r = s / p.send.numpy()

    def shares(x: float) -> Any:
        return np.sqrt(np.maximum(a * s * r / np.exp(x) - s, 0) / (r * c))

    top = math.log((a * r).max())
    return torch.from_numpy(shares(brentq(lambda x: shares(x).sum() - 1, top - 100, top)))


def remarks(count: int) -> None:
    """Remarks 1 and 2: what a device gets at the price of the others when its channel is worse or
    its processor faster.
    """
    s = world(count)
    p = s.problem(s.gain(range(1)))
    p = p.take(p.budget > 0)
    price = best(p).price[p.group]
    p, price = p.take(price > 0), price[price > 0]
    worse = replace(p, send=p.send * (1 + 1e-6))
    faster = replace(
        p, budget=s.deadline - (s.deadline - p.budget) / (1 + 1e-6), compute=p.compute / (1 + 1e-6)
    )
    share = [
        q.demand(price, price).clamp(min=0).minimum(q.share(1.0).clamp(max=1.0))
        for q in (p, worse, faster)
    ]
    ratio = [(1 - q.kept(b)).clamp(0, 1) for q, b in zip((p, worse, faster), share, strict=True)]
    served = share[0] > 0
    between = served & (ratio[0] > 1e-12) & (share[0] < 1)
    signs = {
        "1: a better channel, a smaller ratio": ratio[1] - ratio[0],
        "1: a faster processor, a smaller ratio": ratio[0] - ratio[2],
        "2: a worse channel, more band": share[1] - share[0],
        "2: a faster processor, more band": share[2] - share[0],
    }
    print(
        f"| remark | holds, {int(served.sum()):,} devices with band | {int(between.sum()):,} of them that prune |\n|---|---|---|"
    )
    for name, sign in signs.items():
        shares = [
            100
            * float((sign[group] > -1e-15 if "ratio" in name else sign[group] > 0).double().mean())
            for group in (served, between)
        ]
        print(f"| {name} | {shares[0]:.1f} % | {shares[1]:.1f} % |")
    rule = (
        100 * ((share[1] > share[0]) == (p.send < p.budget / (4 * price)))[between].double().mean()
    )
    print(
        f"of those that prune, a worse channel means more band exactly where r > 4 price s / A: {rule:.2f} %;"
    )
    print(
        f"  {100 * (p.compute > p.budget / 2)[between].double().mean():.1f} % of them train for more than half of their budget"
    )
    print(
        f"without a cap {100 * float((~served).double().mean()):.1f} % of the devices have no band at all"
    )


def orderings(count: int) -> None:
    """The paper's orderings of latencies and ratios, and equal shares shown twice; without a cap,
    as in the paper.
    """
    s = world(count)
    plans = {name: plan(s, policy) for name, policy in POLICIES.items()}
    ours = plans["optimal"]
    plans["equal, optimal's ratios"] = plan(s, fixed(ours.ratio[0], 1 / DEVICES))
    plans["whole model, optimal's ratios and shares"] = plan(
        replace(s, work=s.work.whole()), fixed(ours.ratio[0], ours.share[0])
    )
    plans["equal, at most .95"] = plan(replace(s, rho_max=0.95), POLICIES["equal"])
    usable = (
        ours.asked.view(count, DEVICES).all(1).numpy()
    )  # everybody can be in time at some ratio, and somebody has to prune
    usable &= ours.ratio.view(count, DEVICES).sum(1).numpy() > 1e-6
    ms = {name: _ms(one, count)[usable] for name, one in plans.items()}
    ratio = {
        name: one.ratio.view(count, DEVICES).mean(1).numpy()[usable] for name, one in plans.items()
    }
    worst = {
        name: one.ratio.view(count, DEVICES).amax(1).numpy()[usable] for name, one in plans.items()
    }
    mine, alone = ms["optimal"], ms["personal_only"]
    below = 1 + 1e-9
    sums = [
        plan(replace(s, deadline=t)).ratio.view(count, DEVICES).sum(1).numpy()[usable]
        for t in (0.015, 0.02, 0.025, 0.03)
    ]
    rows = {
        "latency: proposed < personalization only": mine * below < alone,
        "... whose shares are those that end soonest": mine * below < ms["personal_fastest"],
        "latency: proposed at most half of personalization only": mine <= 0.5 * alone,
        "... whose shares are those that end soonest, too": mine <= 0.5 * ms["personal_fastest"],
        "latency: proposed < equal shares, Theorem 2's ratios": mine * below < ms["equal"],
        "latency: proposed < equal shares, the proposed plan's ratios": mine * below
        < ms["equal, optimal's ratios"],
        "latency: proposed < equal shares, Theorem 2's ratios up to .95": mine * below
        < ms["equal, at most .95"],
        "latency: proposed < pruning only at its own ratios": mine * below < ms["pruning_only"],
        "latency: proposed < pruning only at the proposed ratios and shares": mine * below
        < ms["whole model, optimal's ratios and shares"],
        "latency: equal < pruning only < personalization only, as in Table I (first and last at the proposed ratios)": (
            (ms["equal, optimal's ratios"] < ms["whole model, optimal's ratios and shares"])
            & (ms["whole model, optimal's ratios and shares"] < alone)
        ),
        "mean ratio: proposed <= equal shares": ratio["optimal"] <= ratio["equal"] + 1e-12,
        "mean ratio: proposed <= pruning only": ratio["optimal"] <= ratio["pruning_only"] + 1e-12,
        "largest ratio: proposed <= equal shares": worst["optimal"] <= worst["equal"] + 1e-12,
        "weights sent: proposed at most half of personalization only": ratio["optimal"] >= 0.5,
        "sum of ratios falls as the deadline goes from 15 to 30 ms": np.all(
            [a >= b - 1e-12 for a, b in pairwise(sums)], axis=0
        ),
    }
    print(f"| ordering | share of {usable.sum()} draws |\n|---|---|")
    for name, values in rows.items():
        print(f"| {name} | {100 * values.mean():.1f} % |")
    print(
        "\n| plan | round, ms: median (10th to 90th percentile) | mean ratio | largest ratio |\n|---|---|---|---|"
    )
    for name in plans:
        low, middle, high = np.quantile(ms[name], [0.1, 0.5, 0.9])
        print(
            f"| {name} | {middle:.1f} ({low:.1f} to {high:.1f}) | {np.median(ratio[name]):.3f} | {np.median(worst[name]):.3f} |"
        )


def _ms(one: Plan, count: int) -> np.ndarray:
    """The last device of every cell."""
    return 1e3 * one.formula.latency.view(count, DEVICES).amax(1).numpy()


def scale(count: int) -> None:
    """100,000 devices in 100 cells."""
    places, cycles = Spread("disc", (20.0, 300.0)), Spread("uniform", (10.0, 60.0))
    devices = Devices.of(
        torch.arange(100_000) % 100, distance=places, cpu=3e9, cycles=cycles, power=POWER
    )
    for noise in NOISES:
        work = Work(20_000, 5_000, steps=5, personal_steps=3)
        s = Scenario(
            devices, Cells.of(2e9, count=100), Channel(NOISES[noise]), work, deadline=0.025
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start, used = time.perf_counter(), time.process_time()
        done = plan(s)
        seconds, busy = time.perf_counter() - start, time.process_time() - used
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
        assert done.certificate is not None
        print(
            f"{noise}: {seconds:.2f} s, {busy:.2f} s of CPU; {more:.0f} MiB more at the peak; {done.certificate.worst()}"
        )
        print(
            f"  asked {int(done.asked.sum())}, mean ratio {float(done.ratio.mean()):.3f}, starved {int(done.starved.sum())}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["exact", "printed", "remarks", "orderings", "scale"])
    parser.add_argument("--count", type=int, default=1000)
    torch.set_num_threads(1)
    words = parser.parse_args()
    {
        "exact": exact,
        "printed": printed,
        "remarks": remarks,
        "orderings": orderings,
        "scale": scale,
    }[words.what](words.count)


if __name__ == "__main__":
    main()
