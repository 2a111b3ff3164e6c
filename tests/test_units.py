"""The user's own units: modules take them, and targets that are scaled in training keep them."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covey
from covey import Experiment, Tree, data, models
from covey.algorithms import FedAvg, PerMFL, PFedMe
from covey.data.units import InUnits
from covey.engine.measures.named_losses import Huber
from tests.cli.command import exits
from tests.given import played

PUMPS = Path(__file__).parents[1] / "examples" / "own_data" / "pumps.csv"
HOMES = ("a", "b", "c", "d")
RUNTIMES = ("simulator", "loopback")


def raw(shards: data.Shards, rows: Tensor) -> Tensor:
    """Rows in the units of the table, float64."""
    return shards.scaling.undone(shards.x[rows].double())


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_pumps_module_takes_the_rows_of_its_table(runtime: str) -> None:
    """What the README shows: 65 % of pump-03's 40 readings are right; unscaled, 20 % were."""
    shards = data.files(str(PUMPS))
    tree = Tree.grouped([5, 4, 4, 3])
    run = played(Experiment(PerMFL(), shards, models.linear(6, 3), tree, rounds=3), runtime=runtime)
    with PUMPS.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["device"] == "pump-03"]
    names = shards.names.features
    readings = np.array([[float(row[name]) for name in names] for row in rows])
    wanted = [shards.names.classes.index(row["label"]) for row in rows]
    module = run.module("personal", node=2)
    forms: list[Any] = [
        torch.tensor(readings),
        torch.tensor(readings, dtype=torch.float32),
        readings,
        {name: readings[:, at] for at, name in enumerate(names)},
    ]
    for form in forms:
        right = module(form).argmax(1) == torch.tensor(wanted)
        assert float(right.double().mean()) > 0.6
    bare = run.module("personal", node=2, scaled=True)
    assert not isinstance(bare, InUnits)
    assert shards.scaling is not None
    inputs = shards.scaling(torch.tensor(readings)).float()
    torch.testing.assert_close(bare(inputs), module(torch.tensor(readings)))


def test_words_and_gaps_are_in_the_first_layer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = ["device,label,heat,wear,kind"]
    for number in range(120):
        heat, wear = rng.normal(70, 9), rng.normal(2000, 300)
        shown = "" if number % 7 == 0 else f"{heat:.2f}"
        label = "hot" if heat > 70 else "ok"
        rows.append(f"{HOMES[number % 4]},{label},{shown},{wear:.1f},{'xy'[number % 2]}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(rows), encoding="utf-8")
    shards = data.files(str(table), missing="indicator")
    assert shards.names.features == ("heat", "heat is missing", "wear", "kind=x", "kind=y")
    run = played(Experiment(FedAvg(), shards, models.linear(5, 2), Tree.flat(4), rounds=2))
    module = run.module()
    expected = run.module(scaled=True)(shards.x)
    cells = [row.split(",") for row in rows[1:]]
    columns = dict(zip(("heat", "wear", "kind"), list(zip(*cells, strict=True))[2:], strict=True))
    torch.testing.assert_close(module(columns), expected)
    inputs = torch.tensor(
        [
            [
                float(heat or "nan"),
                float(not heat),
                float(wear),
                float(kind == "x"),
                float(kind == "y"),
            ]
            for _, _, heat, wear, kind in cells
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(module(inputs), expected)


def test_images_of_bytes_are_taken_as_bytes_and_floats_as_they_are() -> None:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, size=(12, 8, 8), dtype=np.uint8)
    labels = rng.integers(0, 2, 12)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    shards = data.own([(images, labels)] * 2)
    run = played(Experiment(FedAvg(), shards, net, Tree.flat(2), rounds=1))
    expected = run.module(scaled=True)(torch.tensor(images)[:, None] / 255)
    torch.testing.assert_close(run.module()(images[:, None]), expected)
    given = data.own([(images[:, None].astype(np.float32), labels)] * 2)
    run = played(Experiment(FedAvg(), given, net, Tree.flat(2), rounds=1))
    assert isinstance(run.module(), nn.Sequential)  # what the user gave is its unit


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Targets of 1e3 to 2e4 that are no linear function of two columns, on four devices."""
    rng = np.random.default_rng(7)
    rows = ["device,price,carat,depth"]
    for number in range(800):
        carat, depth = rng.uniform(0.2, 2.2), rng.normal(60, 2)
        price = 1000 + 3800 * carat**2 + 60 * (depth - 60) + 400 * (number % 4)
        rows.append(f"{HOMES[number % 4]},{price:.0f},{carat:.3f},{depth:.2f}")
    path = tmp_path_factory.mktemp("prices") / "prices.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def table(path: Path, **more: Any) -> data.Shards:
    return data.files(str(path), label="price", regression=True, **more)


def net() -> nn.Module:
    return models.mlp(2, 32, 1)


@pytest.mark.parametrize("algorithm", [FedAvg(), PFedMe(), PerMFL()])
def test_large_targets_are_learned_at_defaults(prices: Path, algorithm: Any) -> None:
    tree = Tree.grouped([2, 2]) if isinstance(algorithm, PerMFL) else Tree.flat(4)
    run = played(
        Experiment(algorithm, table(prices), net(), tree, rounds=15, loss="mse", score_every=15)
    )
    for name, model in run.history[-1].models.items():
        assert (model.scores["test"].r2 or 0) > 0.8, name


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_figures_of_scaled_targets_are_in_their_units(prices: Path, runtime: str) -> None:
    shards = table(prices)
    train = shards.y[shards.train.index].double()
    assert float(shards.target.shift) == pytest.approx(float(train.mean()))
    assert float(1 / shards.target.factor) == pytest.approx(float(train.std(correction=0)))
    assert float(shards.y.min()) >= 1000  # the data stay as they were
    metrics = (absolute,)
    experiment = Experiment(
        FedAvg(), shards, net(), Tree.flat(4), rounds=3, metrics=metrics, dtype=torch.float64
    )
    run = played(experiment, runtime=runtime)
    held = shards.test.index
    errors = (run.module()(raw(shards, held))[:, 0] - shards.y[held].double()).detach()
    score = run.history[-1].models["global"].scores["test"]
    squared = float(errors.square().mean())
    assert score.rmse == pytest.approx(squared**0.5)
    assert score.loss == pytest.approx(squared / 2)
    assert score.mae == pytest.approx(float(errors.abs().mean()))
    assert score.metrics["absolute"] == pytest.approx(score.mae)
    spread = float(shards.y[held].double().var(correction=0))
    assert score.r2 == pytest.approx(1 - squared / spread)
    first = next(row for row in run.devices() if row.part == "test")
    own = errors[: int(shards.test.counts()[0])]
    assert first.rmse == pytest.approx(float(own.square().mean()) ** 0.5)
    if runtime != "simulator":
        alone = played(experiment)
        assert torch.equal(alone.w, run.w)
        assert run.history[-1].models == alone.history[-1].models


def absolute(outputs: Tensor, y: Tensor) -> Tensor:
    """An error of the user's own, of numbers in their units."""
    return (outputs[:, 0] - y).abs()


def test_delta_of_huber_is_in_the_units_of_the_targets(prices: Path) -> None:
    """The steps are those on scaled targets by hand, and the loss is Huber's of the prices."""
    delta = 900.0
    settings: dict[str, Any] = {"rounds": 2, "dtype": torch.float64}
    shards = table(prices)
    scale = float(shards.target.factor)
    run = played(Experiment(FedAvg(), shards, net(), Tree.flat(4), loss=Huber(delta), **settings))
    parts: Any = {}
    for split in ("train", "validation", "test"):
        pieces = [shards.part(split).held(device) for device in range(4)]
        parts[split] = [(shards.x[at], shards.target(shards.y[at].double())) for at in pieces]
    by_hand = data.own_parts(**parts)
    other = Experiment(
        FedAvg(), by_hand, net(), Tree.flat(4), loss=Huber(delta * scale), **settings
    )
    torch.testing.assert_close(run.w, played(other).w)
    test = shards.test.index
    outputs = run.module()(raw(shards, test))
    expected = Huber(delta)(outputs, shards.y[test].double()).mean()
    score = run.history[-1].models["global"].scores["test"]
    assert score.loss == pytest.approx(float(expected.detach()))


def test_whose_targets_stay_as_they_are(prices: Path) -> None:
    """A loss of the user's own may need their units, and `normalise = "none"` scales nothing."""

    def own(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs[:, 0] - y).square()

    shards = table(prices)
    settings: Any = (net(), Tree.flat(4), 1)
    assert Experiment(FedAvg(), shards, *settings).data.target is not None
    assert Experiment(FedAvg(), shards, *settings, loss=own).data.target is None
    assert table(prices, normalise="none").target is None
    x, y = np.zeros((4, 2), dtype=np.float32), np.ones(4, dtype=np.float32)
    assert data.own([(x, y)] * 2).target is None
    classes = data.files(str(prices), label="price", split=(1, 0, 0))  # whole numbers
    assert Experiment(FedAvg(), classes, *settings, loss="mse").data.target is not None
    assert shards.only([1]).target is shards.target
    assert shards.fingerprint() != table(prices, normalise="half").fingerprint()


def test_several_targets_have_a_scale_each(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows = ["device,big,small,x"]
    for number in range(200):
        x = rng.normal()
        rows.append(f"{HOMES[number % 4]},{9000 * x + 30000:.2f},{0.02 * x - 1:.5f},{x:.4f}")
    path = tmp_path / "two.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    shards = data.files(str(path), label=["big", "small"])
    algorithm = FedAvg(lr=0.1, steps=50)
    run = played(Experiment(algorithm, shards, models.linear(1, 2), Tree.flat(4), rounds=10))
    test = shards.test.index
    errors = (run.module()(raw(shards, test)) - shards.y[test].double()).detach()
    explained = 1 - errors.square().mean(0) / shards.y[test].double().var(0, correction=0)
    assert bool((explained > 0.99).all())
    score = run.history[-1].models["global"].scores["test"]
    assert score.rmse == pytest.approx(float(errors.square().mean()) ** 0.5, rel=1e-3)


def test_predictions_and_files_are_in_the_units_of_the_targets(
    prices: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    made = tmp_path / "prices.toml"
    made.write_text(
        'loss = "mse"\nrounds = 3\n[algorithm]\nname = "pfedme"\n[data]\nname = "files"\n'
        f'path = "{prices}"\nlabel = "price"\n[model]\nname = "mlp"\n',
        encoding="utf-8",
    )
    exits(0, "run", made, "--out", folder)
    run = covey.load(folder)
    shards = run.experiment.data
    rows = raw(shards, shards.test.held(1))
    wanted = shards.y[shards.test.held(1)].double().numpy()
    predicted = run.predict(rows, device="b")
    line = next(
        row
        for row in run.devices()
        if (row.device, row.model, row.part) == ("b", "personal", "test")
    )
    assert np.sqrt(np.square(predicted - wanted).mean()) == pytest.approx(line.rmse, rel=1e-4)
    module = run.module("personal", "b")
    np.testing.assert_allclose(module(rows).detach().numpy()[:, 0], predicted, rtol=1e-4)
    written = run.export(tmp_path / "b.safetensors", "b")
    assert written.largest > 1000
    assert json.loads((folder / "data.json").read_text())["target"]["kind"] == "standard"
    run.export(tmp_path / "b.pt", "b", to="torchscript")  # compared with `predict` by itself
    new = tmp_path / "new.csv"
    new.write_text(
        "price,carat,depth\n" + "\n".join(f"{4000 + 9 * k},1.0,{55 + k / 9:.2f}" for k in range(40))
    )
    ended = exits(0, "personalize", folder, "--data", new, "--json")
    scores = json.loads(ended.out)["scores"]
    assert scores["global"]["test"]["rmse"] > 50  # in the units of the price
