"""The sharded runtime on a GPU against the plain run there: `python -m experiments.agree.sharded`.

Rows of ranks on GPUs travel by NCCL, which takes one rank per GPU. Without torchrun this process is
one rank that sends everything through NCCL all the same. With

    torchrun --nproc-per-node 2 -m experiments.agree.sharded --carrier gloo

several ranks share the first GPU, and gloo carries their rows. All plain law cases run in float64,
with gathered sums and, some of them, with all-reduced sums. Rank 0 prints what differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

import covey
from covey.runtimes.ranks import launch, ranks
from covey.runtimes.ranks.launch import Launch
from covey.runtimes.ranks.ranks import Ranks
from covey.runtimes.ranks.sharded import Sharded
from experiments.agree.run import BOUND, furthest, held
from tests.laws.cases import PLAIN, Case, experiment, shards

SOME = 6
"""Every so many cases run with all-reduced sums, too."""


def one_rank(backend: str) -> Ranks:
    """This process as the only rank, whose rows travel through a group of its own."""
    file = Path(tempfile.mkdtemp()) / "group"
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    own = Ranks(Launch(0, 1), group=dist.group.WORLD)
    ranks._joined = own
    if backend == "gloo":
        share_first_gpu(own)
    return own


def share_first_gpu(own: Ranks) -> None:
    """Let all ranks use the first GPU, where NCCL refuses a second one."""
    torch.cuda.set_device(0)
    own.local_rank = 0
    own._gpu_group = dist.new_group(backend="gloo")


def plain(case: Case) -> covey.Run:
    """The run of one process, round by round as ranks run it."""
    return covey.run(experiment(case, **settings()))


def settings() -> dict[str, object]:
    return {"data": shards(torch.float64), "dtype": torch.float64, "device": "cuda"}


def difference(case: Case, *, gathered: bool) -> float:
    """How far the rows of the ranks are from those of one process."""
    run = covey.run(experiment(case, **settings()), runtime="sharded")
    assert isinstance(run.runtime, Sharded)
    if not gathered:
        run.runtime.gathered = 0
    return furthest(held(plain(case)), held(run))


def main() -> None:
    """Run all cases and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--carrier", choices=("nccl", "gloo"), default="nccl")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this machine has no CUDA device")
    began = time.monotonic()
    if launch.several():
        own = ranks.join()
        if asked.carrier == "gloo":
            share_first_gpu(own)
    else:
        own = one_rank(asked.carrier)
    found = {}
    for number, (name, case) in enumerate(PLAIN.items()):
        found[name] = difference(case, gathered=True)
        if number % SOME == 0:
            found[f"{name}, all-reduced"] = difference(case, gathered=False)
    wrong = {name: far for name, far in found.items() if not far <= BOUND}
    worst = max((far for far in found.values() if far <= BOUND), default=0.0)
    equal = sum(far == 0 for far in found.values())
    if own.leads:
        print(
            f"{own.world} ranks, {asked.carrier}: {len(found) - len(wrong)} of {len(found)} cases"
        )
        print(f"agree, {equal} of them bit for bit, the furthest to {worst:.1e};", end=" ")
        print(f"{wrong or 'none differs'}; {own.messages} messages, {own.bytes:,} bytes sent")
        seconds = time.monotonic() - began
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {seconds:.0f} s")
    if not launch.several():
        dist.destroy_process_group()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
