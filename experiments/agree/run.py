"""Every law case and network on the processor and on a GPU: `python -m experiments.agree.run`.

It runs in float64 and needs CUDA and pytest. It prints the cases in which a kept row, the global
row or a metered byte differs by more than the bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import covey
from covey import Experiment
from tests.laws.cases import CASES, experiment, shards
from tests.laws.networks import NETWORKS

BOUND = 1e-9
Make = Callable[..., Experiment]
"""Builds an experiment on a device, with some fields changed."""


def makers() -> dict[str, Make]:
    """Every law case and every network, by name."""
    out: dict[str, Make] = {}
    for name, case in CASES.items():
        out[name] = partial(experiment, case, data=shards(torch.float64), score_every=1)
    for name, network in NETWORKS.items():
        if "compute" not in network.settings:  # products in bf16 are for float32
            out[f"network: {name}"] = network.experiment
    return out


def states(make: Make, device: str) -> dict[str, Any]:
    """What a run on this device holds after its last round, in float64."""
    return held(covey.run(make(dtype=torch.float64, device=device)))


def held(run: covey.Run) -> dict[str, Any]:
    """The global row, every kept row and the meter after the last round."""
    list(run)
    out: dict[str, Any] = {"global": run.w.cpu(), "meter": sorted(run.meter.state())}
    for tier, name, ids, _, rows in run.columns():
        out[f"{tier} {name}"] = rows.cpu()
        out[f"{tier} {name} ids"] = ids.tolist()
    return out


def difference(make: Make) -> float:
    """The largest relative difference of any row; infinite where something else differs."""
    return furthest(states(make, "cpu"), states(make, "cuda"))


def furthest(expected: dict[str, Any], got: dict[str, Any]) -> float:
    """The largest relative difference of any row; infinite where something else differs."""
    if expected.keys() != got.keys():
        return float("inf")
    worst = 0.0
    for name, value in expected.items():
        if not isinstance(value, Tensor):
            if value != got[name]:
                return float("inf")
        elif value.shape != got[name].shape:
            return float("inf")
        elif value.numel():
            worst = max(worst, _distance(value.double(), got[name].double()))
    return worst


def _distance(a: Tensor, b: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest entry."""
    scale = a.abs().max().clamp(min=1e-300)
    return float((a - b).abs().max() / scale)


def main() -> None:
    """Print the table's last line, and what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", default="0/1", help="k/n: every n-th case from the k-th")
    part, parts = map(int, parser.parse_args().share.split("/"))
    if not torch.cuda.is_available():
        sys.exit("this machine has no CUDA device")
    began = time.monotonic()
    found = {}
    for name, make in list(makers().items())[part::parts]:
        try:
            found[name] = difference(make)
        except covey.CoveyError as error:
            print(f"{name}: {error}", flush=True)
            found[name] = float("inf")
    wrong = {name: far for name, far in found.items() if not far <= BOUND}
    worst = max((far for far in found.values() if far <= BOUND), default=0.0)
    agree = f"{len(found) - len(wrong)} of {len(found)} cases agree, the furthest to {worst:.1e}"
    print(f"{agree}; {wrong or 'none differs'}")
    seconds = time.monotonic() - began
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {seconds:.0f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
