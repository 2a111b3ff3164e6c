"""Every way through a module gives the same rows: many at once, one after the other, through vmap,
and each module alone.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from covey.engine.modules import single
from covey.engine.modules.forward import Forward, _vmapped, forward
from covey.engine.modules.layout import ParameterLayout
from covey.engine.modules.passing import Pass
from covey.models import cnn

N, B = 4, 3


class Skip(nn.Module):
    """A module with residuals, written as a class."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = (
            nn.Conv2d(2, 2, 3, padding=1),
            nn.Conv2d(2, 2, 3, padding="same"),
            nn.Linear(72, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.relu(self.first(x))
        x = x + self.second(x)
        return self.out(x.view(len(x), -1))


def stack(*layers: nn.Module, inputs: int) -> nn.Sequential:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, 3))


LENET = nn.Sequential(
    nn.Sequential(nn.Conv2d(1, 3, 5, padding=2), nn.Sigmoid(), nn.AvgPool2d(2, stride=2)),
    nn.Sequential(nn.Conv2d(3, 4, 5), nn.Sigmoid(), nn.AvgPool2d(2)),
    nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Sigmoid(), nn.Linear(6, 3)),
)
NORMS = (
    nn.Conv2d(2, 4, 3),
    nn.GroupNorm(2, 4),
    nn.ReLU(),
    nn.AvgPool2d(2),
    nn.GroupNorm(4, 4, affine=False),
)
MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "lenet": (LENET, (1, 16, 16)),
    "cnn": (cnn((1, 8, 8), channels=(2, 3), hidden=5, classes=3, kernel=3), (1, 8, 8)),
    "cnn of flat examples": (cnn((2, 6, 6), channels=(3,), hidden=4, classes=3, kernel=3), (72,)),
    "group norm": (stack(*NORMS, inputs=16), (2, 6, 6)),
    "stride": (stack(nn.Conv2d(2, 3, 3, stride=2, padding=(1, 2)), nn.GELU(), inputs=36), (2, 5, 6)),
    "dilation": (stack(nn.Conv2d(2, 3, 2, dilation=(2, 1), bias=False), nn.ReLU(), inputs=60), (2, 6, 6)),
    "groups": (stack(nn.Conv2d(4, 6, 3, groups=2), nn.Tanh(), nn.Conv2d(6, 6, 1, groups=6), inputs=54), (4, 5, 5)),
    "same, valid": (stack(nn.Conv2d(1, 2, (3, 5), padding="same"), nn.Conv2d(2, 1, 2, padding="valid"), inputs=16), (1, 5, 5)),
    "one axis": (stack(nn.Conv1d(2, 4, 3, padding=1), nn.ELU(), nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(2), inputs=8), (2, 9)),
    "three axes": (stack(nn.Conv3d(1, 2, 2), nn.MaxPool3d(2), nn.AdaptiveMaxPool3d(1), inputs=2), (1, 5, 5, 5)),
    "pooled to a point": (stack(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.0), nn.AdaptiveAvgPool2d(1), inputs=4), (1, 6, 6)),
    "overlapping pools": (stack(nn.Conv2d(1, 2, 2), nn.MaxPool2d(3, 1, padding=1, ceil_mode=True), inputs=32), (1, 5, 5)),
    "layer norm": (stack(nn.Conv2d(1, 2, 3), nn.LayerNorm([2, 4, 4]), nn.SiLU(), nn.Conv2d(2, 2, 2), inputs=18), (1, 6, 6)),
    "ends in a convolution": (nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 2)), (1, 6, 6)),
    "images made from features": (
        stack(nn.Linear(5, 18), nn.Unflatten(1, (2, 3, 3)), nn.Conv2d(2, 4, 2), nn.Flatten(2), nn.Linear(4, 5), inputs=20), (5,),
    ),
    "bare": (nn.Conv2d(2, 3, 2), (2, 4, 4)),
    "norms without convolutions": (
        nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Mish(), nn.LayerNorm(8, bias=False), nn.Linear(8, 3)), (6,),
    ),
    "linear on several axes": (stack(nn.Linear(4, 5), nn.LayerNorm((3, 5)), nn.Tanh(), nn.Linear(5, 2), inputs=12), (2, 3, 4)),
    "pools without convolutions": (stack(nn.Unflatten(-1, (2, 4, 4)), nn.MaxPool2d(2), nn.AvgPool2d(1), inputs=8), (32,)),
}  # fmt: skip
ODD: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "skip": (Skip(), (2, 6, 6)),
    "in place": (stack(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), inputs=32), (1, 6, 6)),
    "circular": (stack(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), inputs=50), (1, 5, 5)),
    "transposed": (stack(nn.ConvTranspose2d(1, 2, 2), inputs=72), (1, 5, 5)),
    "one convolution twice": (stack(*[nn.Conv2d(1, 1, 3, padding=1)] * 2, inputs=25), (1, 5, 5)),
}  # fmt: skip


def frozen() -> nn.Module:
    module = stack(nn.Conv2d(1, 2, 3), inputs=32)
    module[0].bias.requires_grad_(False)
    return module


MODULES["frozen bias"] = (frozen(), (1, 6, 6))
each_module = pytest.mark.parametrize("name", MODULES | ODD)


def world(name: str, private: tuple[str, ...] = ()) -> tuple[ParameterLayout, Tensor, Tensor]:
    module, shape = (MODULES | ODD)[name]
    space = ParameterLayout(module.double(), private=private)
    draw = torch.Generator().manual_seed(1)
    rows = 0.3 * torch.randn(N, space.width, dtype=torch.float64, generator=draw)
    return space, rows, torch.randn(N, B, *shape, dtype=torch.float64, generator=draw)


def outcome(
    run: Callable[[Pass, Tensor], Tensor], space: ParameterLayout, rows: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs, and gradients as rows."""
    leaves = [slot.view(rows).detach().requires_grad_() for slot in space.slots]
    out = run(Pass(leaves), x)
    gradients = torch.autograd.grad(out.sin().sum(), leaves)
    return out.detach(), torch.cat([g.flatten(1) for g in gradients], 1)


def alone(space: ParameterLayout, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    outs, gradients = [], []
    for row, own in zip(rows, x, strict=True):
        module = space.fill(row)
        module.zero_grad()
        out = module(own)
        out.sin().sum().backward()
        outs.append(out.detach())
        grads = {key: p.grad for key, p in module.named_parameters()}
        gradients.append(
            torch.cat(
                [
                    (grads[s.name].t() if s.transposed else grads[s.name]).flatten()
                    for s in space.slots
                ]
            )
        )
    return torch.stack(outs), torch.stack(gradients)


def paths(space: ParameterLayout, shape: torch.Size) -> list[Forward]:
    """What would be chosen on either kind of device, and the ways that are always open."""
    chosen = [forward(space, shape, device) for device in ("cpu", "cuda")]
    return [
        *chosen,
        Forward("each", single.each(space, single.of_module(space))),
        Forward("vmap", _vmapped(space)),
    ]


@each_module
def test_all_paths_agree(name: str) -> None:
    space, rows, x = world(name)
    ways = [alone(space, rows, x)] + [
        outcome(path, space, rows, x) for path in paths(space, x.shape[2:])
    ]
    for one, other in pairwise(ways):
        for left, right in zip(one, other, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [0, 1])
@each_module
def test_no_rows_and_one(name: str, count: int) -> None:
    space, rows, x = world(name)
    out, gradients = alone(space, rows, x)
    for path in paths(space, x.shape[2:]):
        views = [slot.view(rows[:count]) for slot in space.slots]
        torch.testing.assert_close(
            path(Pass(views), x[:count]), out[:count], rtol=1e-12, atol=1e-12
        )
        if count:
            torch.testing.assert_close(
                outcome(path, space, rows[:1], x[:1])[1], gradients[:1], rtol=1e-12, atol=1e-12
            )


@pytest.mark.parametrize(
    "name", ["lenet", "group norm", "layer norm", "skip", "linear on several axes"]
)
def test_private_layers_stand_elsewhere_in_a_row_and_change_nothing(name: str) -> None:
    space, rows, x = world(name)
    first = space.slots[0].name
    moved = ParameterLayout(space.module, private=[first])
    assert [slot.name for slot in moved.slots] != [slot.name for slot in space.slots]
    there = torch.stack([moved.row(space.fill(row)) for row in rows])
    for path, other in zip(paths(space, x.shape[2:]), paths(moved, x.shape[2:]), strict=True):
        assert path.path == other.path
        torch.testing.assert_close(
            outcome(path, space, rows, x)[0], outcome(other, moved, there, x)[0], rtol=1e-12, atol=1e-12,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each_module
def test_bits_of_a_row_do_not_depend_on_its_neighbours(name: str, dtype: torch.dtype) -> None:
    space, rows, x = world(name)
    rows, x = rows.to(dtype), x.to(dtype)
    space = ParameterLayout(space.module.to(dtype))
    path = forward(space, x.shape[2:], "cpu")
    out, gradients = outcome(path, space, rows, x)
    for chosen in ([0], [3], [2, 0], [1, 2, 3]):
        some = outcome(path, space, rows[chosen], x[chosen])
        assert torch.equal(some[0], out[chosen])
        assert torch.equal(some[1], gradients[chosen])


@each_module
def test_which_path_is_chosen(name: str) -> None:
    space, _, x = world(name)
    convolves = any("Conv" in type(m).__name__ for m in space.module.modules())
    assert forward(space, x.shape[2:], "cpu").path == ("each" if convolves else "batched")
    assert forward(space, x.shape[2:], "cuda").path == "batched"
