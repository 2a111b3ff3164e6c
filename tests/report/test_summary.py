"""The figures a run ends with, against numbers worked out by hand."""

import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from covey.folder import show
from covey.folder.terminal import Console
from covey.links.meter import Traffic
from covey.report.paired import interval
from covey.report.summary import OverSeeds, gains_over, summarise
from covey.runs.run import Round
from covey.runs.scores.devices import DeviceScore
from covey.runs.scores.headline import named
from tests.report.rounds import link, record

# Validation chooses round 1 of the first seed and round 0 of the second; test is best in rounds 2
# and 1.
FIRST = [
    record(0, validation=0.5, test=0.4, nonzeros=1.0),
    record(1, validation=0.8, test=0.6, nonzeros=0.5),
    record(2, validation=0.7, test=0.9, nonzeros=0.25),
]
SECOND = [
    record(0, validation=0.9, test=0.8, nonzeros=0.75),
    record(1, validation=0.9, test=0.85, nonzeros=0.5),
    record(2, validation=0.1, test=0.2, nonzeros=0.25),
]


def test_one_seed() -> None:
    summary = summarise([FIRST])
    (model,) = summary.models
    assert (summary.rounds, summary.seeds, summary.seconds) == (3, 1, 1.5)
    assert (model.model, model.tier, model.chosen_round) == ("global", "server", [1])
    assert model.accuracy == OverSeeds(0.6, None)
    assert model.last == OverSeeds(0.9, None)
    assert model.best_on_test == OverSeeds(0.9, None)
    assert model.worst_decile == OverSeeds(0.3, None)
    assert model.loss == OverSeeds(0.4, None)
    assert model.nonzeros == OverSeeds(0.5, None)
    wind: Any = SimpleNamespace(name="wind")  # an environment of a user's own
    assert summarise([[replace(each, environment=wind) for each in FIRST]]) == summary


def test_two_seeds() -> None:
    """The deviation is that of a sample: |a - b| / sqrt(2) for two."""
    summary = summarise([FIRST, SECOND])
    (model,) = summary.models
    assert (summary.seeds, summary.seconds) == (2, 3.0)
    assert model.chosen_round == [1, 0]
    for figure, a, b in (
        (model.accuracy, 0.6, 0.8),
        (model.last, 0.9, 0.2),
        (model.best_on_test, 0.9, 0.85),
        (model.worst_decile, 0.3, 0.4),
        (model.nonzeros, 0.5, 0.75),
    ):
        assert figure is not None
        assert figure.mean == pytest.approx((a + b) / 2)
        assert figure.deviation == pytest.approx(abs(a - b) / 2**0.5)


def test_the_papers_choose_on_test() -> None:
    (model,) = summarise([FIRST, SECOND], "paper").models
    assert model.chosen_round == [2, 1]
    assert model.accuracy == model.best_on_test


def test_rounds_that_were_not_scored_count_only_as_rounds() -> None:
    unscored = Round(3, {}, {}, {}, 0.5)
    summary = summarise([[*FIRST, unscored]])
    assert summary.rounds == 4
    assert summary.models == summarise([FIRST]).models


def test_links_are_summed_over_rounds_and_weighed_by_the_formulas() -> None:
    down = Traffic(bytes=100, messages=1, values=50, nonzeros=20, dense=200)
    up = Traffic(40, 1, 50, 10, 200)
    history = [record(k, validation=0.5, test=0.5, traffic=link(down, up)) for k in range(2)]
    summary = summarise([history, SECOND])
    (edge,) = summary.links
    assert (edge.link, edge.down, edge.up, edge.dense) == ("server-device", 200, 80, 800)
    assert edge.nonzeros == 60 / 200
    assert edge.formula_dense == 64 * 200 / 8
    assert edge.formula_paper == (64 * 60 + 140 + 100) / 8
    assert edge.formula_bitmap == (64 * 60 + 200) / 8


def test_what_scoring_sends_is_not_training() -> None:
    traffic = {("server-device", "down", "score"): Traffic(bytes=999, values=9)}
    assert summarise([[record(0, validation=0.5, test=0.5, traffic=traffic)]]).links == []


def test_regression_has_a_loss_and_no_accuracy() -> None:
    history = [
        record(k, validation=None, test=None, loss=loss) for k, loss in enumerate((3.0, 1.0, 2.0))
    ]
    (model,) = summarise([history]).models
    assert model.chosen_round == [1]
    assert model.accuracy is None
    assert model.worst_decile is None
    assert model.loss == OverSeeds(1.0, None)


def test_figures_as_text() -> None:
    assert OverSeeds(0.98404, 0.0031).percent() == "98.40 ± 0.31"
    assert OverSeeds(0.98404, None).percent() == "98.40"
    assert str(OverSeeds(0.98404, 0.0031)) == "0.984 ± 0.0031"


def test_the_table_has_a_row_for_every_model_and_link() -> None:
    out = io.StringIO()
    traffic = link(
        Traffic(2_000_000, 1, 50, 20, 4_000_000), Traffic(1_000_000, 1, 50, 10, 4_000_000)
    )
    first = [record(0, validation=0.5, test=0.6, traffic=traffic)]
    show.table(Console(file=out, width=200), summarise([first, SECOND]))
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    heads = "test % (all) worst 10 % last round best on test (optimistic) non-zero %"
    assert f"model kept by {heads}" in rows
    assert (
        "global 1 server 70.00 ± 14.14 35.00 ± 7.07 40.00 ± 28.28 72.50 ± 17.68 62.50 ± 17.68"
        in rows
    )
    assert "server-device 2.000 1.000 0.375 0.319 30.0" in rows


def test_the_table_of_regression_without_errors_has_the_loss() -> None:
    out = io.StringIO()
    show.table(
        Console(file=out, width=200), summarise([[record(0, validation=None, test=None, loss=1.0)]])
    )
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert ["model", "kept", "by", "test", "loss", "(all)", "non-zero", "%"] in rows
    assert ["global", "1", "server", "1", "50.00"] in rows


def test_a_narrow_console_cuts_no_figure() -> None:
    outs = []
    for width in (60, 200):
        outs.append(io.StringIO())
        show.table(Console(file=outs[-1], width=width, soft_wrap=True), summarise([FIRST, SECOND]))
    narrow, wide = (out.getvalue() for out in outs)
    assert "…" not in narrow
    assert "best on test" not in narrow  # a column that a narrow console does without
    assert "best on test" in wide
    assert set(narrow.split()) < set(wide.split())


def scores(model: str, shares: list[float], examples: list[int]) -> list[DeviceScore]:
    """Devices with these accuracies, which are their losses and errors too."""
    out = []
    for k, (share, n) in enumerate(zip(shares, examples, strict=True)):
        figures: dict[str, float | None] = {"accuracy": share, "loss": share, "rmse": share}
        out.append(DeviceScore(str(k), None, model, "test", n, 1, 1, True, figures, figures))
    return out


OWN, BASE, EXAMPLES = [0.9, 0.5, 0.8, 1.0], [0.5, 0.75, 0.8, 0.75], [10, 4, 5, 8]


def test_a_gain_over_all_examples_is_paired_over_devices() -> None:
    seed = scores("personal", OWN, EXAMPLES) + scores("global", BASE, EXAMPLES)
    (gain,) = gains_over([seed], [seed], named("accuracy"), "personal", "global")
    weights = np.array(EXAMPLES) / sum(EXAMPLES)
    differences = 100 * (np.array(OWN) - BASE)
    total = float(weights @ differences)
    assert gain.all == pytest.approx(total)  # the difference of the two figures of the table
    left = (total - weights * differences) / (1 - weights)  # without each device
    half = 3.1824 * np.sqrt(3 / 4 * ((left - left.mean()) ** 2).sum())  # of the jackknife
    assert (gain.low, gain.high) == pytest.approx((total - half, total + half), abs=2e-3 * half)
    assert gain.difference.endswith(", not distinguishable)")
    even = scores("personal", OWN, [5] * 4) + scores("global", BASE, [5] * 4)
    (gain,) = gains_over([even], [even], named("accuracy"), "personal", "global")
    assert (gain.low, gain.high) == pytest.approx(interval(differences))
    (gain,) = gains_over([even], [even], named("rmse"), "personal", "global")
    assert gain.all == pytest.approx(100 * (1 - np.linalg.norm(OWN) / np.linalg.norm(BASE)))


def test_a_gain_of_several_seeds_is_paired_over_seeds() -> None:
    seeds = []
    for step in (0.1, 0.2, 0.4):
        own = scores("personal", [0.5 + step, 0.6 + step], [3, 3])
        seeds.append(own + scores("global", [0.5, 0.6], [3, 3]))
    (gain,) = gains_over(seeds, seeds, named("accuracy"), "personal", "global", "FedAvg")
    assert (gain.other, gain.over, gain.devices) == ("FedAvg global", "seeds", 6)
    assert (gain.low, gain.high) == pytest.approx(interval([10, 20, 40]))
    assert gain.difference == "+23.3 points (95 % over seeds: -14.6 to +61.3, not distinguishable)"
