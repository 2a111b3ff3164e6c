"""The work every program is given: data, model, first weights, and what it hands back.

Only numpy and torch are needed here, for this file is read in each peer's own environment.
"""

from __future__ import annotations

import json
import platform
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

FOLDER = Path(__file__).resolve().parents[2] / ".peers" / "data"
State = dict[str, Tensor]


@dataclass(frozen=True)
class Work:
    """FedAvg: `asked` of `devices` take `steps` SGD steps each from the global model, which becomes
    their plain mean.

    A batch is drawn uniformly with replacement from the device's own examples.
    """

    name: str
    module: Callable[[], nn.Module]
    shape: tuple[int, ...]
    devices: int
    asked: int
    examples: int
    steps: int
    batch: int
    lr: float
    scored: int | None = None  # examples of each device on which the loss is reported; None: all

    @property
    def folder(self) -> Path:
        """Works on the same data share it."""
        return FOLDER / "x".join(map(str, (self.devices, self.examples, *self.shape)))

    @property
    def first(self) -> Path:
        return self.folder / f"{self.name}.pt"


def dnn() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def mlr() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 10))


def cnn() -> nn.Module:
    """The 2-layer CNN of pfl-research's CIFAR10 benchmark, its dropout left out; 1.6 M parameters."""
    convolutions = [
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
    return nn.Sequential(*convolutions, nn.Linear(14 * 14 * 64, 128), nn.ReLU(), nn.Linear(128, 10))


WORKS = {
    work.name: work
    for work in (
        Work("W2", dnn, (784,), devices=20, asked=20, examples=200, steps=20, batch=20, lr=0.02),
        Work(
            "W3-DNN", dnn, (784,), devices=1000, asked=100, examples=200, steps=5, batch=20, lr=0.02
        ),
        Work(
            "W3-MLR", mlr, (784,), devices=1000, asked=100, examples=200, steps=5, batch=20, lr=0.02
        ),
        Work(
            "CIFAR",
            cnn,
            (3, 32, 32),
            devices=1000,
            asked=50,
            examples=50,
            steps=5,
            batch=10,
            lr=0.1,
            scored=5,
        ),
    )
}


def prepare(work: Work, *, images: Path | None = None) -> str:
    """What the data is, written once together with the first weights; `images` is a folder with
    CIFAR-10's data_batch_*.bin.
    """
    work.folder.mkdir(parents=True, exist_ok=True)
    torch.save(first(work.module()), work.first)
    what = work.folder / "what"
    real = images if work.shape == (3, 32, 32) else None
    if real is not None or not what.exists():
        x, y = synthetic(work) if real is None else cifar10(work, real)
        np.save(work.folder / "x.npy", x.numpy())
        np.save(work.folder / "y.npy", y.numpy())
        what.write_text("synthetic" if real is None else "CIFAR-10")
    return what.read_text()


def synthetic(work: Work) -> tuple[Tensor, Tensor]:
    """Ten classes, each a faint pattern under noise, so that the loss falls over several rounds."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(10, (work.devices, work.examples), generator=generator)
    patterns = 0.25 * torch.randn(10, *work.shape, generator=generator)
    if len(work.shape) == 3:  # a convolution sees shapes, not single points
        patterns = nn.functional.interpolate(patterns[..., ::4, ::4], scale_factor=4)
    x = torch.randn(work.devices, work.examples, *work.shape, generator=generator)
    return x.mul_(0.5).add_(patterns[y]), y


def cifar10(work: Work, images: Path) -> tuple[Tensor, Tensor]:
    """The 50,000 training pictures, normalised by channel and dealt out at random."""
    files = sorted(images.glob("data_batch_*.bin"))
    if len(files) != 5:
        raise SystemExit(
            f"{images} has {len(files)} files data_batch_*.bin, not 5; give the folder cifar-10-batches-bin."
        )
    records = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
    x = torch.from_numpy(records[:, 1:]).view(-1, *work.shape)[order].float() / 255
    spread, middle = torch.std_mean(x, (0, 2, 3), keepdim=True)
    y = torch.from_numpy(records[:, 0]).long()[order]
    return ((x - middle) / spread).view(work.devices, work.examples, *work.shape), y.view(
        work.devices, work.examples
    )


def first(module: nn.Module) -> State:
    """Weights uniform within 1 / sqrt(inputs), as torch has them, but from a generator of their
    own; biases zero.
    """
    generator = torch.Generator().manual_seed(0)
    state = {}
    for name, value in module.state_dict().items():
        bound = value[0].numel() ** -0.5 if value.ndim > 1 else 0.0
        state[name] = bound * (2 * torch.rand(value.shape, generator=generator) - 1)
    return state


def load(work: Work) -> tuple[Tensor, Tensor]:
    """(x [devices, examples, ...], y [devices, examples]), mapped from disk: processes share the
    pages.
    """
    x, y = (
        torch.from_numpy(np.load(work.folder / f"{name}.npy", mmap_mode="c")) for name in ("x", "y")
    )
    return x, y


def start(work: Work) -> nn.Module:
    """The model with its first weights."""
    module = work.module()
    module.load_state_dict(torch.load(work.first))
    return module


def draw(work: Work, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One device's batches of a round, one after the other, gathered at once."""
    pick = torch.randint(len(y), (work.steps * work.batch,), generator=generator)
    return x[pick], y[pick]


def descend(work: Work, module: nn.Module, x: Tensor, y: Tensor) -> None:
    """The local steps as a careful author writes them: no optimiser object, updates in place."""
    parameters = list(module.parameters())
    for batch_x, batch_y in zip(x.split(work.batch), y.split(work.batch), strict=True):
        gradients = torch.autograd.grad(
            nn.functional.cross_entropy(module(batch_x), batch_y), parameters
        )
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p.sub_(g, alpha=work.lr)


class Watch:
    """Seconds of each round and the weights after it; the time to copy the weights is not counted."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.states: list[State] = []
        self.began = time.perf_counter()

    def lap(self, state: Callable[[], State]) -> None:
        self.seconds.append(time.perf_counter() - self.began)
        self.states.append({name: value.detach().clone() for name, value in state().items()})
        self.began = time.perf_counter()


@torch.no_grad()
def loss(work: Work, state: State, x: Tensor, y: Tensor) -> float:
    """The mean loss of the global model on these examples of all devices."""
    module = work.module()
    module.load_state_dict(state)
    pieces = zip(x.flatten(0, 1).split(1000), y.flatten().split(1000), strict=True)
    return (
        sum(nn.functional.cross_entropy(module(a), b, reduction="sum").item() for a, b in pieces)
        / y.numel()
    )


def write(out: Path, work: Work, watch: Watch, *packages: str) -> None:
    """Hand the result to the driver."""
    torch.set_num_threads(2)
    x, y = load(work)
    losses = [loss(work, state, x[:, : work.scored], y[:, : work.scored]) for state in watch.states]
    versions = {"python": platform.python_version()} | {
        name: version(name) for name in ("torch", *packages)
    }
    out.write_text(json.dumps({"seconds": watch.seconds, "losses": losses, "versions": versions}))


def arguments() -> tuple[Work, int, Path]:
    """(work, rounds, out) from the command line of a program, its torch threads set."""
    parser = ArgumentParser()
    parser.add_argument("--work", choices=list(WORKS), required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    return WORKS[given.work], given.rounds, given.out
