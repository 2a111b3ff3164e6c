"""Every law case on the processor and on a GPU, in float64: `python -m experiments.agree.run`
(needs CUDA and pytest).

Prints the cases in which a kept row, the global row or a metered byte differs by more than the
bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch

import covey
from tests.laws.cases import CASES, Case, experiment, shards

BOUND = 1e-9


def states(case: Case, device: str) -> dict[str, Any]:
    """The global row, every kept row and the meter after three rounds."""
    changes = {
        "data": shards(torch.float64),
        "dtype": torch.float64,
        "device": device,
        "score_every": 1,
    }
    run = covey.run(experiment(case, **changes))
    list(run)
    out: dict[str, Any] = {"global": run.w.cpu(), "meter": sorted(run.meter.state())}
    for tier, name, ids, _, rows in run._columns():
        out[f"{tier} {name}"] = rows.cpu()
        out[f"{tier} {name} ids"] = ids.tolist()
    return out


def difference(case: Case) -> float:
    """The largest relative difference of any row; infinite where something else differs."""
    processor, gpu = states(case, "cpu"), states(case, "cuda")
    if processor.keys() != gpu.keys():
        return float("inf")
    worst = 0.0
    for name, value in processor.items():
        if not isinstance(value, torch.Tensor):
            worst = max(worst, 0.0 if value == gpu[name] else float("inf"))
        elif value.numel():
            far = (
                value.double() - gpu[name].double()
            ).abs().max() / value.double().abs().max().clamp(min=1e-300)
            worst = max(worst, float(far))
    return worst


def main() -> None:
    """Print the table's last line, and what is wrong."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not torch.cuda.is_available():
        sys.exit("this machine has no CUDA device")
    began = time.monotonic()
    found = {}
    for name, case in CASES.items():
        try:
            found[name] = difference(case)
        except covey.CoveyError as error:
            print(f"{name}: {error}", flush=True)
            found[name] = float("inf")
    wrong = {name: far for name, far in found.items() if not far <= BOUND}
    worst = max((far for far in found.values() if far <= BOUND), default=0.0)
    print(
        f"{len(found) - len(wrong)} of {len(found)} cases agree, the furthest to {worst:.1e}; {wrong or 'none differs'}"
    )
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.monotonic() - began:.0f} s"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
