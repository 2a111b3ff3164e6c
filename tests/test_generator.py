"""Draws of layers from a generator of their own: torch's bits, and no other thread in them."""

import hashlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import draws
from covey.algorithms import FedAvg
from covey.data import Shards
from covey.engine.modules.generator import Seeded
from covey.engine.modules.layout import ParameterLayout
from covey.engine.task import Task
from covey.errors import ModelError
from covey.files.config import load
from tests.given import played

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(20, 3),
    "Conv2d": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(12, 3)),
    "LSTM": lambda: nn.LSTM(4, 5, 2),
    "Embedding": lambda: nn.Embedding(30, 8),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
}
SHAPES = {"Linear": (20,), "Conv2d": (1, 5, 4)}

DRAWS: dict[str, Callable[[], Tensor]] = {
    "randn": lambda: torch.randn(40),
    "rand in float64": lambda: torch.rand(4, 5, dtype=torch.float64),
    "randn_like": lambda: torch.randn_like(torch.ones(6, 7).t()),
    "rand_like": lambda: torch.rand_like(torch.ones(3)),
    "randint": lambda: torch.randint(3, 99, (20,)),
    "randperm": lambda: torch.randperm(50),
    "normal": lambda: torch.normal(torch.zeros(9), torch.ones(9)),
    "bernoulli_": lambda: torch.empty(30).bernoulli_(0.3),
    "random_": lambda: torch.empty(9).random_(),
    "multinomial": lambda: torch.multinomial(torch.ones(20), 10),
    "poisson": lambda: torch.poisson(torch.full((9,), 3.0)),
    "out": lambda: torch.randn(5, out=torch.empty(5)),
    "truncated": lambda: nn.init.trunc_normal_(torch.empty(40)),
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(6, 6)),
    "the default generator by name": lambda: torch.randn(9, generator=torch.default_generator),
}


@contextmanager
def drawing() -> Iterator[Callable[[], int]]:
    """Beside another thread that draws without end; gives how often it has."""
    stop, count = threading.Event(), 0

    def draw() -> None:
        nonlocal count
        while not stop.is_set():
            torch.rand(10)
            count += 1

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        yield lambda: count
    finally:
        stop.set()
        thread.join()


def by_torch(seed: int, make: Callable[[], Tensor]) -> Tensor:
    """What torch's default generator draws after this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def reset(module: nn.Module) -> Tensor:
    for layer in module.modules():
        start = getattr(layer, "reset_parameters", None) or getattr(
            layer, "_reset_parameters", None
        )
        if callable(start):
            start()
    return ParameterLayout(module).row(module)


def shards(shape: tuple[int, ...]) -> Shards:
    g = torch.Generator().manual_seed(1)
    devices = [(torch.randn(12, *shape, generator=g), torch.arange(12) % 3) for _ in range(2)]
    return covey.data.own(devices)


@pytest.mark.parametrize("name", LAYERS)
def test_initial_rows_are_the_bits_that_torchs_generator_gives(name: str) -> None:
    module = LAYERS[name]()
    other = LAYERS[name]()
    expected = by_torch(draws.key(5, "initial"), lambda: reset(other))
    state = torch.get_rng_state()
    assert torch.equal(ParameterLayout(module).initial(5), expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(ParameterLayout(module).initial(6), expected)


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("inference", [False, True])
def test_every_draw_of_a_constructor_is_torchs(name: str, inference: bool) -> None:
    expected = by_torch(7, DRAWS[name])
    state = torch.get_rng_state()
    with Seeded(7, "a test"), torch.inference_mode(inference):
        assert torch.equal(DRAWS[name](), expected)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_generator_of_the_modules_own_stays() -> None:
    expected = by_torch(2, lambda: torch.randn(5))
    with Seeded(7, "a test"):
        assert torch.equal(torch.randn(5, generator=torch.Generator().manual_seed(2)), expected)


def test_300_starts_beside_a_thread_that_draws_are_all_equal() -> None:
    modules = {name: make() for name, make in LAYERS.items()}
    data = {name: shards(shape) for name, shape in SHAPES.items()}
    expected = {}
    for name, make in LAYERS.items():
        other = make()
        expected[name] = by_torch(draws.key(3, "initial"), partial(reset, other))
    with drawing() as count:
        for at in range(300):
            name = list(LAYERS)[at % len(LAYERS)]
            if name in SHAPES:
                Task(modules[name], data[name])  # a draw elsewhere is none of the model's
            assert torch.equal(ParameterLayout(modules[name]).initial(3), expected[name]), (
                f"{name} in run {at}"
            )
        assert count() > 300


def test_runs_beside_a_thread_that_draws_are_all_equal() -> None:
    module, data = LAYERS["Linear"](), shards(SHAPES["Linear"])
    experiment = covey.Experiment(FedAvg(), data, module, covey.Tree.flat(2), rounds=2, seed=4)
    alone = played(experiment)
    with drawing() as count:
        for _ in range(20):
            run = played(experiment)
            assert torch.equal(run.w, alone.w)
        assert count() > 0


def test_models_of_a_file_beside_a_thread_that_draws_are_all_equal() -> None:
    config = load(None, ["model.name=mlp", "data.devices=2", "tree.edges=none"])
    shape = (64, 100, 10)
    expected = by_torch(draws.key(1, "module"), lambda: values(covey.models.mlp(*shape)))
    with drawing() as count:
        for _ in range(20):
            assert torch.equal(values(config.experiment(1).model), expected)
        assert count() > 0


def values(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


class Odd(nn.Module):
    """A layer that initialises itself by an operator without a generator."""

    def __init__(self, how: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.how, self.weight = how, nn.Parameter(torch.zeros(4, 3))

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.copy_(self.how(self.weight))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_a_draw_that_no_generator_decides_is_refused_by_name() -> None:
    odd = Odd(lambda weight: torch.ops.aten.native_dropout(weight + 1, 0.5, True)[0])
    with pytest.raises(
        ModelError,
        match=r"layer '1' \(Odd\) draws at random by aten\.native_dropout.*torch\.nn\.init",
    ):
        ParameterLayout(nn.Sequential(nn.Linear(4, 4), odd)).initial(0)
    ParameterLayout(
        Odd(lambda weight: torch.ops.aten.native_dropout(weight + 1, 0.0, True)[0])
    ).initial(0)  # draws nothing


def test_a_draw_on_another_device_is_refused() -> None:
    with pytest.raises(ModelError, match=r"\(Odd\) draws at random by aten\.randn.* on meta.*CPU"):
        ParameterLayout(Odd(lambda weight: torch.randn(4, 3, device="meta"))).initial(0)


def test_a_layer_that_cannot_initialise_itself_is_named_with_the_line() -> None:
    def lacking(weight: Tensor) -> Tensor:
        return {}["scale"]

    with pytest.raises(
        ModelError, match=r"\(Odd\) cannot be.*KeyError: 'scale' \(.*test_gen.*line \d"
    ):
        ParameterLayout(Odd(lacking)).initial(0)


class Noisy(nn.Module):
    """A convolution, for the path row by row, and something after it."""

    def __init__(self, noise: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inside, self.noise = nn.Conv1d(1, 1, 4), noise

    def forward(self, x: Tensor) -> Tensor:
        return self.noise(self.inside(x[:, None])[:, 0])


@pytest.mark.parametrize(
    "noise",
    [
        lambda x: x * torch.bernoulli(torch.full((), 0.99)),  # two outputs may well be equal
        lambda x: x + 0 * torch.randn(1),
        lambda x: x + torch.tensor(Counter.count()),
    ],
    ids=["seldom", "unused", "state"],
)
def test_a_forward_that_is_no_function_is_refused(noise: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ModelError, match="two passes of the same examples"):
        Task(Noisy(noise), shards((6,)))


class Counter:
    """A number that grows, out of torch's sight."""

    value = 0.0

    @classmethod
    def count(cls) -> float:
        cls.value += 1.0
        return cls.value


@pytest.mark.parametrize(
    "noise",
    [
        lambda x: F.dropout(x, 0.0),
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: F.rrelu(x, training=False),
        lambda x: F.scaled_dot_product_attention(*[x[:, :, None]] * 3)[:, :, 0],
        lambda x: x * float("nan"),
    ],
    ids=["p = 0", "evaluation", "rrelu", "attention", "nan"],
)
def test_what_could_draw_but_does_not_is_welcome(noise: Callable[[Tensor], Tensor]) -> None:
    Task(Noisy(noise), shards((6,)))


@pytest.mark.parametrize("name", LAYERS)
def test_float64_starts_from_the_same_numbers(name: str) -> None:
    module = LAYERS[name]()
    single = ParameterLayout(module).initial(5)
    double = ParameterLayout(module.double()).initial(5)
    assert double.dtype == torch.float64
    assert torch.equal(double, single.double())


def test_a_parameter_that_nothing_resets_keeps_all_its_digits() -> None:
    odd = Odd(lambda weight: weight).double()
    odd.weight.data.fill_(1 / 3)
    odd.reset_parameters = None  # type: ignore[assignment]
    assert ParameterLayout(odd).initial(0).tolist() == [1 / 3] * 12


def test_runs_in_float64_start_from_the_row_in_the_fingerprint() -> None:
    module, data = LAYERS["Linear"](), shards(SHAPES["Linear"])
    single = covey.Experiment(FedAvg(), data, module, covey.Tree.flat(2), rounds=1)
    double = replace(single, dtype=torch.float64)
    rows = [covey.run(experiment).w for experiment in (single, double)]
    assert torch.equal(rows[0].double(), rows[1])
    for experiment, row in zip((single, double), rows, strict=True):
        assert torch.equal(row[0], experiment.initial())
        digest = hashlib.sha256(row.numpy().tobytes()).hexdigest()
        assert experiment.fingerprint()["initial"] == digest


def test_seeds_side_by_side_start_from_their_own_modules() -> None:
    """A parameter that no layer resets may differ from seed to seed."""
    data = shards((4,))
    experiments = []
    for seed in (1, 2):
        module = nn.Sequential(nn.Linear(4, 4), Odd(lambda weight: weight))
        module[1].reset_parameters = None  # type: ignore[assignment]
        module[1].weight.data.fill_(float(seed))
        experiments.append(
            covey.Experiment(FedAvg(), data, module, covey.Tree.flat(2), rounds=1, seed=seed)
        )
    together = covey.runs(experiments)
    for run, experiment in zip(together.seeds, experiments, strict=True):
        assert (run.w == float(experiment.seed)).sum() == 12
        assert torch.equal(run.w[0], experiment.initial())


def test_a_module_is_made_without_the_compiler() -> None:
    """Torch's compiler takes a second to import, and 70 MB, in every process of a tree."""
    code = (
        "import sys, torch\n"
        "from covey.engine.modules.generator import Seeded\n"
        "with Seeded(3, 'a test'):\n"
        "    torch.nn.Linear(2, 2)\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False"]
