"""Quantities of the rows of the papers' tables beside accuracies."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from covey import run
from covey.papers import quantities, report, tables, verdicts
from covey.papers.measure import Options, make_experiment, measure
from covey.papers.quantities import FALLS, LAST, LATENCY, LOSS, NON_ZEROS, SENT, SeedRounds
from covey.papers.tables import Ordering, PaperTable, Row
from covey.runs.run import Round
from covey.runs.scores.scoring import Model
from tests.report.rounds import score

ONE_SEED = Options(seeds=1)


def row_of(table: str, name: str, **changes: Any) -> Row:
    """A row of a table that trains on digits in a moment."""
    row = next(row for row in tables.read(table).rows if row.name == name)
    algorithm = {**row.algorithm, "batch": 4}
    data = {"name": "digits", "devices": 4, "labels": 2}
    return replace(row, algorithm=algorithm, data=data, rounds=3, score_every=1, **changes)


def sparse(name: str = "figure-4/fedmac") -> Row:
    row = row_of("fedmac/sparse", name, model={"name": "linear"})
    return replace(row, algorithm={**row.algorithm, "sample": 2})


def pruned(name: str) -> Row:
    model = {"name": "cnn", "channels": [2], "hidden": 20, "kernel": 3}
    return row_of("wireless/figures", name, model=model)


@pytest.mark.parametrize("name", tables.names())
def test_a_table_asks_for_quantities_that_there_are(name: str) -> None:
    for row in tables.read(name).rows:
        assert set(row.quantities) <= set(quantities.NAMES)


def test_a_row_that_asks_for_none_keeps_its_digest_and_its_figures() -> None:
    row = sparse()
    plain = replace(row, quantities=())
    assert plain.digest() != row.digest()
    models = measure(row, "paper", ONE_SEED)["models"]
    assert measure(plain, "paper", ONE_SEED)["models"] == {
        name: models[name] for name in ("global", "local", "personal")
    }


def test_accuracy_non_zeros_and_loss_are_of_the_last_round() -> None:
    row = replace(sparse(), quantities=(LAST, NON_ZEROS, LOSS))
    figures = measure(row, "paper", ONE_SEED)["models"]
    history = list(run(make_experiment(row, "paper", ONE_SEED, seed=0)))
    last = history[-1].models
    for name in ("global", "local", "personal"):
        share = 100 * last[name].nonzeros
        assert figures[f"{name} {NON_ZEROS}"] == [pytest.approx(share, abs=1e-3)]
        assert 0 < share < 100
        score = last[name].scores["test"]
        accuracy = 100 * (score.accuracy or 0.0)
        assert figures[f"{name} {LAST}"] == [pytest.approx(accuracy, abs=1e-3)]
        loss = score.loss
        assert figures[f"{name} {LOSS}"] == [pytest.approx(loss, abs=1e-3)]


def test_weights_sent_are_those_that_all_devices_kept() -> None:
    def sent(name: str) -> float:
        row = replace(pruned(name), quantities=(SENT,))
        (value,) = measure(row, "paper", ONE_SEED)["models"][SENT]
        return 1e3 * float(value)

    row = pruned("ratios/ratio-0")
    layers = make_experiment(row, "paper", ONE_SEED, seed=0).model.modules()
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    shared = sum(weights.numel() for layer in linear for weights in layer.parameters())
    assert sent("ratios/ratio-0") == sent("radio/personalization") == 4 * shared
    assert sent("ratios/ratio-30") == pytest.approx(4 * 0.7 * shared, abs=4)


def test_a_row_over_the_air_has_its_quantities_beside_its_latency() -> None:
    figures = measure(pruned("radio/fedsim"), "paper", ONE_SEED)["models"]
    names = ["global", "personal", LATENCY, f"global {LOSS}", f"personal {LOSS}", SENT]
    assert list(figures) == names


def curve(accuracies: Sequence[float], *, diverged: bool = False) -> SeedRounds:
    """Rounds with these accuracies of the global model."""

    def model(accuracy: float) -> Model:
        scored = score(accuracy, accuracy, accuracy, 1.0, 4, accuracy, 1.0)
        return Model("server", 1, 0.0, 1.0, 0.0, {"test": scored})

    rounds = [
        Round(number, {}, {}, {"global": model(accuracy)}, 0.0)
        for number, accuracy in enumerate(accuracies)
    ]
    return SeedRounds(rounds, "paper", diverged)


@pytest.mark.parametrize(
    ("accuracies", "diverged", "falls"),
    [
        ([0.5, 0.6, 0.9], False, 0.0),
        ([0.5, 0.9, 0.6, 0.8, 0.7], False, 10.0),
        ([0.5, 0.6], True, 30.0),
        ([0.5], False, 0.0),
    ],
)
def test_falls_are_the_points_lost_from_a_round_to_the_next(
    accuracies: list[float], diverged: bool, falls: float
) -> None:
    figures = dict(curve(accuracies, diverged=diverged).quantities([FALLS]))
    assert figures == {f"global {FALLS}": pytest.approx(falls)}


def test_without_a_scored_round_there_is_no_quantity() -> None:
    assert not dict(SeedRounds([], "paper", diverged=True).quantities(quantities.NAMES))


def test_a_row_that_diverges_at_once_has_the_largest_loss_and_no_known_sparsity() -> None:
    assert quantities.without_a_score("global") == -math.inf
    assert quantities.without_a_score(f"global {LAST}") == -math.inf
    assert quantities.without_a_score(f"global {FALLS}") == math.inf
    assert quantities.without_a_score(f"global {NON_ZEROS}") is None
    assert quantities.without_a_score(LATENCY) is None


def claimed(table: PaperTable, figure: str, stable: list[float]) -> str:
    """What is said of the claim that the first row, which diverged, is above the second."""
    first, second = table.rows[:2]
    chain = ((f"{first.method}:{figure}",), (f"{second.method}:{figure}",))
    size = {"rounds": first.rounds, "seeds": 3, "seconds": 1.0}
    gone = {**size, "models": {}, "diverged": "round 1: w is not finite"}
    content = {
        first.key: {"settings": first.digest(), "paper": gone},
        second.key: {"settings": second.digest(), "paper": {**size, "models": {figure: stable}}},
    }
    table = replace(table, orderings=(Ordering("claim", chain, settings=first.setting),))
    (claim,) = verdicts.claims(table, content)
    return report.claim_cells(claim)[-1]


def test_a_row_that_diverges_at_once_is_the_less_stable_one() -> None:
    table = tables.read("pfedme/figures")
    assert claimed(table, f"global {FALLS}", [1.0] * 3) == "holds (a row diverged)"
    assert claimed(table, "global", [90.0] * 3) == "does not hold (a row diverged)"
    assert claimed(table, f"global {NON_ZEROS}", [50.0] * 3) == "not run"
