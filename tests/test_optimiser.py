"""The optimiser of steps on data: its figures against torch.optim, its limits, what it refuses."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import Algorithm, Experiment, Nodes, Rows, Tree, data, models
from covey.algorithms import (
    AL2GD,
    APFL,
    L2GD,
    Centralised,
    FedAvg,
    FedMac,
    FedProx,
    PerFedAvg,
    PFedBayes,
    PFedGP,
    PFedMe,
    Scaffold,
)
from covey.engine.batches import Examples
from covey.engine.modules.layout import ParameterLayout
from covey.engine.solvers.optimiser import optimiser
from covey.errors import ConfigError
from covey.files.config import load
from covey.laws import differences, state
from tests.given import played
from tests.laws.cases import PLAIN, Case, every_algorithm
from tests.laws.cases import experiment as case_experiment

LR = 0.2
STEPS = 4
ROUNDS = 3
DRAW = torch.Generator().manual_seed(3)
X = torch.randn(30, 6, generator=DRAW, dtype=torch.float64)
Y = torch.randint(3, (30,), generator=DRAW)
SPACE = ParameterLayout(models.linear(6, 3).double())
ALONE = data.own_parts(train=[(X, Y)])

MOMENTUM = {"name": "sgd", "momentum": 0.9}
SPECS: dict[str, tuple[dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "decay": ({"decay": 0.1}, torch.optim.SGD, {"weight_decay": 0.1}),
    "momentum": (MOMENTUM, torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (
        {**MOMENTUM, "nesterov": True, "decay": 0.1}, torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "clip": ({**MOMENTUM, "clip": 0.3}, torch.optim.SGD, {"momentum": 0.9}),
    "adam": (
        {"name": "adam", "decay": 0.1, "beta1": 0.8, "eps": 1e-6}, torch.optim.Adam,
        {"weight_decay": 0.1, "betas": (0.8, 0.999), "eps": 1e-6},
    ),
    "adamw": ({"name": "adamw", "decay": 0.1, "schedule": "cosine"}, torch.optim.AdamW, {"weight_decay": 0.1}),
    "cosine": ({"schedule": "cosine"}, torch.optim.SGD, {}),
    "linear": ({**MOMENTUM, "schedule": "linear"}, torch.optim.SGD, {"momentum": 0.9}),
}  # fmt: skip


def alone(algorithm: Algorithm, **changes: Any) -> Experiment:
    """One device with all examples, in float64."""
    settings = {"dtype": torch.float64, "parts": ("train",), "score_every": ROUNDS, **changes}
    return Experiment(algorithm, ALONE, models.linear(6, 3), Tree.flat(1), ROUNDS, **settings)


def factor(schedule: str, round: int) -> float:
    share = round / ROUNDS
    return {"cosine": (1 + math.cos(math.pi * share)) / 2, "linear": 1 - share}.get(schedule, 1.0)


def by_torch(start: Tensor, spec: dict[str, Any], kind: Any, options: dict[str, Any]) -> Tensor:
    """The same rounds by torch.optim, whose state begins anew in every round unless it is kept."""
    module = SPACE.fill(start)
    optimizer = kind(module.parameters(), lr=LR, **options)
    for round in range(ROUNDS):
        lr = LR * factor(spec.get("schedule", ""), round)
        if spec.get("state") == "kept":
            optimizer.param_groups[0]["lr"] = lr
        else:
            optimizer = kind(module.parameters(), lr=lr, **options)
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(module(X), Y).backward()
            clip_to(module, spec.get("clip", math.inf))
            optimizer.step()
    return SPACE.row(module)


def clip_to(module: nn.Module, limit: float) -> None:
    """Exactly to the limit; torch's own clipping divides by the norm + 1e-6."""
    gradients = [parameter.grad for parameter in module.parameters()]
    norm = torch.cat([g.flatten() for g in gradients if g is not None]).norm()
    for gradient in gradients:
        gradient.mul_(min(1.0, limit / float(norm)))


@pytest.mark.parametrize("name", SPECS)
def test_steps_are_those_of_torch(name: str) -> None:
    spec, kind, options = SPECS[name]
    experiment = alone(FedAvg(steps=STEPS, lr=LR, batch=None), solver=spec)
    run = played(experiment)
    expected = by_torch(experiment.initial(), spec, kind, options)
    assert float((run.w[0] - expected).abs().max()) < 1e-12
    plain = by_torch(experiment.initial(), {}, torch.optim.SGD, {})
    assert float((expected - plain).abs().max()) > 1e-3


@pytest.mark.parametrize("name", [name for name in SPECS if name not in ("decay", "cosine")])
def test_kept_state_goes_on_as_that_of_torch(name: str) -> None:
    spec, kind, options = SPECS[name]
    experiment = alone(FedAvg(steps=STEPS, lr=LR, batch=None), solver={**spec, "state": "kept"})
    run = played(experiment)
    expected = by_torch(experiment.initial(), {**spec, "state": "kept"}, kind, options)
    assert float((run.w[0] - expected).abs().max()) < 1e-12
    reset = by_torch(experiment.initial(), spec, kind, options)
    assert float((expected - reset).abs().max()) > 1e-3


def test_a_device_counts_the_steps_of_the_rounds_it_took_part_in() -> None:
    """Adam's count, of devices that are drawn and whose epochs have different lengths."""
    solver = {"name": "adam", "state": "kept", "epochs": 1}
    case = case_experiment(PLAIN["FedAvg"], solver=solver)
    algorithm = FedAvg(lr=0.01, batch=6, sample=2)
    run = covey.run(Experiment(algorithm, case.data, case.model, Tree.flat(8), 4, solver=solver))
    gradients = sum(record.gradients for record in run)
    taken = {name: rows for _, name, _, _, rows in run.columns()}["_batch_solver_taken"]
    assert float(taken.sum()) == gradients
    assert len(set(taken.flatten().tolist())) > 1


def test_momentum_also_carries_an_algorithm_s_own_terms() -> None:
    """FedProx with momentum: v <- 0.9 v + (g + mu (x - w)), x <- x - lr v."""
    experiment = alone(
        FedProx(mu=0.5, steps=STEPS, lr=LR, batch=None), solver={**MOMENTUM, "clip": 0.3}
    )
    run = covey.run(experiment)
    w = experiment.initial()
    assert float(gradient(w).norm()) > 0.3
    for _ in run:
        x, v = w, torch.zeros_like(w)
        for _ in range(STEPS):
            g = gradient(x)
            g = g * min(1.0, 0.3 / float(g.norm()))  # of the loss alone
            v = 0.9 * v + g + 0.5 * (x - w)
            x = x - LR * v
        w = x
    assert float((run.w[0] - w).abs().max()) < 1e-12


def gradient(x: Tensor) -> Tensor:
    """Of the mean loss of all examples."""
    module = SPACE.fill(x)
    F.cross_entropy(module(X), Y).backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        parameter.data = parameter.grad
    return SPACE.row(module)


def test_the_default_changes_no_bit_and_no_fact() -> None:
    case = PLAIN["PFedMe"]
    run = played(case_experiment(case))
    named = case_experiment(case, solver={"name": "sgd", "momentum": 0.0, "schedule": "constant"})
    assert named.fingerprint() == run.experiment.fingerprint()
    same = played(named)
    assert torch.equal(run.w, same.w)
    assert same.engine == run.engine


def test_a_schedule_and_decay_keep_the_fast_solvers_and_others_tell_why_not() -> None:
    case = PLAIN["FedAvg"]
    plain = played(case_experiment(case))
    fast = played(case_experiment(case, solver={"schedule": "step", "decay": 0.01}))
    assert fast.engine["solver"] == plain.engine["solver"]
    assert not torch.equal(fast.w, plain.w)
    slow = played(case_experiment(case, solver="adam"))
    assert slow.engine["solver"] == "step by step"
    assert "the solver is adam" in slow.engine["why not faster"]


def test_what_decides_bits_is_in_the_fingerprint() -> None:
    case = PLAIN["FedAvg"]
    specs: list[Any] = ["sgd", "adam", MOMENTUM, {**MOMENTUM, "clip": 1.0}, {"schedule": "cosine"}]
    facts = [str(case_experiment(case, solver=spec).fingerprint()) for spec in specs]
    assert len(set(facts)) == len(facts)
    longer = case_experiment(case, solver={"schedule": "cosine"}, rounds=9)
    assert str(longer.fingerprint()) not in facts  # the schedule is over the rounds
    constant = case_experiment(case, solver=MOMENTUM, rounds=9)
    assert str(constant.fingerprint()) in facts


@pytest.mark.parametrize(("epochs", "size"), [(1, 4), (2, 4), (1.5, 4), (3, 100), (0.3, 7)])
def test_epochs_pass_through_all_examples_in_random_orders(epochs: float, size: int) -> None:
    counts = [9, 1, 30]
    shards = data.own_parts(train=[(torch.randn(n, 2), torch.zeros(n).long()) for n in counts])
    examples = Examples(shards, torch.device("cpu"), torch.float32)
    steps = math.ceil(epochs * max(counts) / size)
    ids = torch.arange(3)
    batches = examples.shuffled(7, ids, size, range(steps), epochs=epochs, local=ids)
    first = 0
    orders = []
    for device, count in enumerate(counts):
        own = batches[: math.ceil(epochs * count / size)]
        weights = torch.cat([batch.weight[device] for batch in own if batch.weight is not None])
        seen = torch.cat([batch.examples[device] for batch in own])[weights > 0] - first
        assert len(seen) == math.ceil(epochs * count)
        for lap in seen.split(count):
            assert len(set(lap.tolist())) == len(lap)  # no example twice in a pass
            assert int(lap.min()) >= 0
            assert int(lap.max()) < count
        if count == 30:
            orders = [lap.tolist() for lap in seen.split(count) if len(lap) == count]
        first += count
    assert len({tuple(order) for order in orders}) == len(orders)
    assert list(range(30)) not in orders
    parts = [examples.shuffled(7, ids[2:], size, range(k, k + 1), epochs=epochs, local=ids[2:])
             for k in range(steps)]  # fmt: skip
    for [part], batch in zip(parts, batches, strict=True):
        assert torch.equal(part.examples[0], batch.examples[2])


def test_epochs_are_the_steps_of_each_device() -> None:
    case = PLAIN["FedAvg"]
    run = covey.run(case_experiment(case, solver={"epochs": 2}, rounds=1, score_every=1))
    [record] = run
    steps = [math.ceil(2 * int(n) / 6) for n in run.experiment.data.part("train").counts()]
    assert record.gradients == sum(steps)
    assert "native" in run.engine["solver"]


def test_an_epoch_of_full_batches_is_one_step() -> None:
    runs = []
    for steps, solver in ((2, "sgd"), (7, {"epochs": 2})):
        run = played(alone(FedAvg(steps=steps, lr=LR, batch=None), solver=solver))
        runs.append(run)
    assert torch.equal(runs[0].w, runs[1].w)


def test_an_epoch_in_one_batch_is_one_step_on_all_examples() -> None:
    whole = played(alone(FedAvg(steps=1, lr=LR, batch=None)))
    batch = played(alone(FedAvg(steps=9, lr=LR, batch=50), solver={"epochs": 1}))
    assert float((whole.w - batch.w).abs().max()) < 1e-12


def test_epochs_need_batches_of_their_own() -> None:
    with pytest.raises(ConfigError, match="epochs need a new batch in every step"):
        covey.run(alone(PFedMe(batch=5), solver={"epochs": 1}))
    with pytest.raises(ConfigError, match="cyclic"):
        covey.run(alone(FedAvg(batch=5), solver={"epochs": 1}, batches="cyclic"))


REFUSED = {cls.__name__: cls for cls in (
    AL2GD, APFL, L2GD, Centralised, PerFedAvg, PFedBayes, PFedGP, Scaffold,
)}  # fmt: skip


@every_algorithm
def test_every_algorithm_honours_a_solver_or_says_why_not(case: Case) -> None:
    name = str(case)
    settings = {"solver": {**MOMENTUM, "clip": 1.0}, "rounds": 1, "score_every": 1}
    if name in REFUSED:
        with pytest.raises(ConfigError, match=f"solver: {name} takes plain steps, because"):
            case_experiment(case, **settings)
        return
    plain = played(case_experiment(case, rounds=1, score_every=1))
    run = played(case_experiment(case, **settings))
    assert "momentum" in run.engine["why not faster"]
    assert differences(state(plain), state(run)) != []


@dataclass(frozen=True)
class Mine(Algorithm):
    """Devices that step along a gradient of their own making."""

    sends: ClassVar[str] = "its model"

    def server(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Rows) -> Rows:
        return w - 0.1 * me.grad(None)(w)


def test_steps_of_a_program_s_own_are_refused_before_the_first_round() -> None:
    with pytest.raises(ConfigError, match=r"of its own making.*leave out solver"):
        covey.run(alone(Mine(), solver=MOMENTUM))


@pytest.mark.parametrize("algorithm", [PFedMe(method="nesterov"), FedMac(method="nesterov")])
def test_accelerated_steps_and_a_solver_are_refused(algorithm: Algorithm) -> None:
    with pytest.raises(ConfigError, match=r'method = "nesterov".*leave out solver'):
        covey.run(alone(algorithm, solver=MOMENTUM))


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("lamb", "choose one of sgd, adam, adamw"),
        (3, "solver = 3(:| must be) (give a name, or a|text or a) table"),
        ({"name": ["sgd"]}, "choose one of"),
        ({"lr": 0.1}, "unknown key solver.lr; known are .*momentum"),
        ({"rounds": 3}, "unknown key solver.rounds"),
        ({"name": "adam", "momentum": 0.9}, "unknown key solver.momentum; known are .*beta1"),
        ({"beta1": 0.9}, "unknown key solver.beta1"),
        ({"momentum": 1.0}, "momentum = 1.0 must be between 0 and 0.9999"),
        ({"momentum": True}, "momentum = true must be a number"),
        ({"momentum": math.nan}, "momentum = (NaN|nan) must be a finite number"),
        ({"nesterov": True}, "needs momentum; set momentum = 0.9"),
        ({"momentum": 0.5, "nesterov": 1}, "nesterov = 1 must be true or false"),
        ({"decay": -1}, "decay = -1 must be 0 or more"),
        ({"epochs": 0}, "epochs = 0 must be above 0, at most 10000"),
        ({"clip": 0}, "clip = 0 must be above 0"),
        ({"schedule": "cosin"}, r'schedule = "cosin" .did you mean cosine\?. must be "constant" or'),
        ({"schedule": []}, "schedule = .* must be"),
        ({"momentum": 0.9, "state": "keep"}, r'state = "keep" \(did you mean kept\?\) must be "reset" or "kept"'),
        ({"state": "kept"}, 'state = "kept", but sgd has no state; set momentum'),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(spec: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        optimiser(spec)
    with pytest.raises(ConfigError, match=error):
        case_experiment(PLAIN["FedAvg"], solver=spec)


def test_a_file_has_a_solver(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    text = 'rounds = 4\nsolver = {name = "sgd", momentum = 0.9, nesterov = true, clip = 1.0}\n'
    tables = '[algorithm]\nname = "fedavg"\n[data]\nname = "digits"\ndevices = 4\n[model]\nname = "linear"\n'
    file.write_text(text + tables, encoding="utf-8")
    made = load(file).experiment(0).optimiser()
    assert (made.momentum, made.nesterov, made.clip) == (0.9, True, 1.0)
    assert load(file, ["solver.momentum=0.5"]).experiment(0).optimiser().momentum == 0.5
    assert load(file, ["solver=adam"]).experiment(0).optimiser().name == "adam"
    with pytest.raises(
        ConfigError, match=r"unknown key solver.moment .did you mean solver.momentum"
    ):
        load(file, ["solver.moment=0.5"])
