"""The reported round is chosen on validation; the best on test is named as such."""

import pytest
import torch
from torch import nn

import covey
from covey import Experiment, Tree, data
from covey.algorithms import PFedMe
from covey.errors import ConfigError
from covey.runs.models import Chosen, better, label
from covey.runs.run import Round
from covey.runs.scores.scoring import Model, Score
from covey.runs.selection import select
from tests.report.rounds import score as made


def score(accuracy: float | None, loss: float | None = 1.0) -> Score:
    return made(accuracy, accuracy, accuracy, loss, 10, accuracy, loss)


def history(*figures: tuple[Score | None, Score | None], model: str = "global") -> list[Round]:
    """One round for each pair (validation, test); (None, None) is a round that was not scored."""
    rounds = []
    for at, pair in enumerate(figures):
        scores = {
            part: s for part, s in zip(("validation", "test"), pair, strict=True) if s is not None
        }
        models = {model: Model("server", 1, 0.0, 1.0, 0.0, scores)} if scores else {}
        rounds.append(Round(at, {}, {}, models, 0.0))
    return rounds


RUN = history(
    (score(0.5), score(0.6)), (None, None), (score(0.8), score(0.7)), (score(0.7), score(0.9)),
    (score(0.8), score(0.1)), (score(0.6), score(0.5)),
)  # fmt: skip


def test_chosen_on_validation_and_the_first_of_equals() -> None:
    assert select(RUN).chosen.round == 2
    assert select(RUN).best_on_test.round == 3
    assert select(RUN).last.round == 5


def test_the_rows_held_are_of_the_round_that_is_reported_also_among_equals() -> None:
    """A run holds rows as it goes; `select` looks back at all rounds."""
    chosen: dict[str, Chosen] = {}
    for record in RUN:
        for name, model in record.models.items():
            quality = better(model, "validation", chosen, name)
            if quality is not None:
                chosen[label(name)] = Chosen(record.round, quality, torch.zeros(1, 1), {})
    held = chosen[label("global")]
    assert (held.round, held.quality) == (select(RUN).chosen.round, 0.8)
    assert better(RUN[0].models["global"], "train", chosen, "global") is None


def test_the_papers_protocol_chooses_on_test() -> None:
    without = history(*((None, score(a)) for a in (0.2, 0.9, 0.3)))
    picked = select(without, protocol="paper")
    assert (picked.chosen.round, picked.best_on_test.round, picked.last.round) == (1, 1, 2)
    with pytest.raises(ConfigError, match="round 1 was not scored on 'validation'; add it"):
        select(without)


def test_regression_is_chosen_by_the_smallest_loss() -> None:
    runs = history(
        *((score(None, v), score(None, t)) for v, t in ((3.0, 1.0), (1.0, 5.0), (2.0, 0.5)))
    )
    assert select(runs).chosen.round == 1
    assert select(runs).best_on_test.round == 2


def test_other_models() -> None:
    assert select(history((score(0.1), score(0.1)), model="personal"), "personal").chosen.round == 0
    with pytest.raises(ConfigError, match="no round of this run scored a model 'personal'"):
        select(RUN, "personal")
    with pytest.raises(ConfigError, match="no round"):
        select([])


def test_nothing_to_choose_on_is_an_error() -> None:
    empty = made(None, None, None, None, 0, None, None)
    with pytest.raises(ConfigError, match="validation"):
        select(history((empty, score(0.1)), (empty, score(0.9))))


def test_a_round_in_which_few_hold_the_model_does_not_win_by_luck() -> None:
    lucky = made(1.0, 1.0, 1.0, 0.0, 2, 0.2, 2.0)
    settled = made(0.7, 0.7, 0.5, 1.0, 40, 0.7, 1.0)
    assert select(history((lucky, lucky), (settled, settled))).chosen.round == 1


def test_in_regression_a_round_with_few_holders_does_not_win_either() -> None:
    lucky = made(None, None, None, 0.01, 2, None, 5.0)
    settled = made(None, None, None, 1.0, 40, None, 1.0)
    assert select(history((lucky, lucky), (settled, settled))).chosen.round == 1


def test_a_loss_that_is_no_number_is_never_chosen() -> None:
    broken = made(None, None, None, float("nan"), 4, None, float("nan"))
    assert select(history((broken, broken), (score(None, 3.0), score(None, 3.0)))).chosen.round == 1


@pytest.mark.parametrize("seed", range(20))
def test_in_sampled_regression_most_devices_hold_the_reported_model(seed: int) -> None:
    """By the loss of holders alone, 9 of these 20 runs report a round in which at most 2 of 10
    devices hold one.
    """
    draw = torch.Generator().manual_seed(seed)
    slopes = torch.randn(10, 1, generator=draw)
    pairs = [(x := torch.randn(24, 3, generator=draw), x @ torch.ones(3, 1) * k) for k in slopes]
    shards = data.own(pairs, classes=None, seed=seed)
    experiment = Experiment(
        PFedMe(sample=1, lam=1.0, lr=0.1, personal_lr=0.05, local_rounds=3, batch=6),
        shards, nn.Linear(3, 1), Tree.flat(10), 40, loss="squared_error", seed=seed,
    )  # fmt: skip
    chosen = select(list(covey.run(experiment)), "personal").chosen
    assert chosen.models["personal"].holders > 2
