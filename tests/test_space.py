"""A module's parameters as a row, and back."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.engine.modules.layout import ParameterLayout
from covey.errors import ModelError
from covey.models import mlp


class Mixed(nn.Module):
    """Linear, convolution, a bare parameter and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 3)
        self.head = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor([2.0]))
        self.fixed = nn.Parameter(torch.arange(3.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x[:, None]).flatten(1)) * self.scale + self.fixed


def test_row_to_module_to_row() -> None:
    for module in (mlp(3, 4, 2), Mixed(), nn.Linear(2, 3, bias=False)):
        space = ParameterLayout(module)
        row = torch.randn(space.width)
        assert torch.equal(space.row(space.fill(row)), row)
        assert torch.equal(space.row(module), space.row(space.fill(space.row(module))))


def test_filling_leaves_the_module_alone() -> None:
    module = mlp(3, 2)
    before = [p.clone() for p in module.parameters()]
    space = ParameterLayout(module)
    space.fill(torch.zeros(space.width))
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_only_linear_weights_lie_transposed() -> None:
    module = Mixed()
    space = ParameterLayout(module)
    assert {slot.name: slot.transposed for slot in space.slots} == {
        "scale": False, "conv.weight": False, "conv.bias": False, "head.weight": True, "head.bias": False,
    }  # fmt: skip
    row = space.row(module)
    by_name = {slot.name: slot for slot in space.slots}
    head = by_name["head.weight"]
    assert torch.equal(row[head.start : head.stop].view(4, 3), module.head.weight.t())
    assert torch.equal(by_name["conv.weight"].view(row[None])[0], module.conv.weight)
    assert [slot.start for slot in space.slots[1:]] == [slot.stop for slot in space.slots[:-1]]
    assert space.slots[-1].stop == space.width


def test_a_view_shares_the_rows_memory() -> None:
    space = ParameterLayout(mlp(2, 2))
    rows = torch.zeros(3, space.width)
    space.slots[0].view(rows)[1] = 7.0
    assert rows[1].tolist() == [7.0] * 4 + [0.0] * 2
    assert rows[[0, 2]].abs().sum() == 0


def test_private_parameters_come_last() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    space = ParameterLayout(module, private=["0.*", "2.bias"])
    assert [slot.name for slot in space.slots] == [
        "1.weight", "1.bias", "2.weight", "0.weight", "0.bias", "2.bias",
    ]  # fmt: skip
    assert (space.shared, space.width) == (8, 17)
    assert torch.equal(space.row(space.fill(torch.arange(17.0))), torch.arange(17.0))
    assert ParameterLayout(module).shared == 17
    assert ParameterLayout(module, private=["*"]).shared == 0


class Named(nn.Module):
    """A convolution, two linear layers, a parameter of its own and a head that does not come last."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.first, self.head, self.out = nn.Conv2d(1, 2, 2), nn.Linear(2, 3), nn.Linear(3, 1)


@pytest.mark.parametrize(
    ("private", "names"),
    [
        ("conv*", {"first.weight", "first.bias"}),
        ("linear", {"head.weight", "head.bias", "out.weight", "out.bias"}),
        ("head", {"head.weight", "head.bias"}),
        ("out", {"out.weight", "out.bias"}),
        (["first", "*.bias"], {"first.weight", "first.bias", "head.bias", "out.bias"}),
        ("scale", {"scale"}),
        ("named", {"scale"}),
    ],
)  # fmt: skip
def test_a_pattern_may_name_parameters_layers_and_kinds_of_layers(
    private: Any, names: set[str]
) -> None:
    space = ParameterLayout(Named(), private=private)
    assert {slot.name for slot in space.slots if slot.start >= space.shared} == names


def test_the_head_is_the_last_layer_where_none_is_called_so() -> None:
    for module in (
        mlp(3, 4, 2),
        nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))),
    ):
        space = ParameterLayout(module, private="head")
        assert (space.shared, space.width) == (16, 26)


def test_frozen_parameters_are_left_out_and_kept() -> None:
    space = ParameterLayout(Mixed())
    assert "fixed" not in [slot.name for slot in space.slots]
    filled = space.fill(torch.zeros(space.width))
    assert filled.fixed.tolist() == [0.0, 1.0, 2.0]
    assert filled(torch.zeros(1, 4)).tolist() == [[0.0, 1.0, 2.0]]


def test_the_initial_row_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = ParameterLayout(mlp(5, 4, 3))
    a = first.initial(0)
    torch.manual_seed(2)
    second = ParameterLayout(mlp(5, 4, 3))
    state = torch.get_rng_state()
    assert torch.equal(second.initial(0), a)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(second.initial(1), a)
    # initial does not change the module either
    assert not torch.equal(second.row(second.module), first.row(first.module))


def test_the_initial_row_is_each_layers_own_law() -> None:
    row = ParameterLayout(nn.Linear(400, 50)).initial(3)
    weight = row[: 400 * 50]
    assert weight.abs().max() <= 1 / 20
    assert weight.std() == pytest.approx(1 / 20 / 3**0.5, rel=0.02)


def test_a_bare_parameter_keeps_its_value() -> None:
    space = ParameterLayout(Mixed())
    (slot,) = [slot for slot in space.slots if slot.name == "scale"]
    assert space.initial(9)[slot.start] == 2.0


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), "'1' is SyncBatchNorm.*BatchNorm2d"),
        (nn.LazyBatchNorm1d(), "lazy layers; run one example through it first"),
        (nn.GRU(2, 2, num_layers=2, dropout=0.5), r"GRU with dropout = 0.5.*nn.Dropout"),
        (nn.Sequential(nn.ReLU()), "Sequential has no trainable parameter"),
        (nn.Linear(2, 2).requires_grad_(False), "Linear has no trainable parameter"),
        (nn.LazyLinear(2), "lazy layers; run one example through it first"),
    ],
)
def test_modules_that_cannot_be_a_row(module: nn.Module, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        ParameterLayout(module)


def test_dropout_has_no_columns() -> None:
    assert ParameterLayout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))).width == 6


def test_a_pattern_that_matches_nothing_names_the_parameters() -> None:
    with pytest.raises(ModelError, match=r"'head\.\*' matches no parameter; they are 1\.weight"):
        ParameterLayout(mlp(2, 2), private=["head.*"])
