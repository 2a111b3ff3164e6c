"""A device with fewer than `least` examples of a part sends no sums of their targets; the simulator
and the loopback have the same figures, bit for bit (a deployed tree: test_deployed.py).
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

import covey
from covey import Experiment, Tree
from covey.algorithms import FedAvg, FedPer, HierFAVG
from covey.codecs import codec
from covey.data import Shards, own_parts
from covey.errors import ConfigError
from covey.folder import show
from covey.report.summary import summarise
from covey.runs.saved.fingerprint import program_fingerprint
from covey.runs.scores.scoring import Scorer
from covey.runtimes.alone.envelope import open_sealed
from covey.runtimes.alone.loopback import Station
from tests.given import drained, played
from tests.laws.cases import differences
from tests.laws.networks import lstm, sentences
from tests.laws.test_loopback import everything

LEAST = 5
COUNTS = [(6, 8), (1, 2), (3, 3), (9, 4), (5, 5), (4, 12), (2, 1), (7, 6)]
"""Validation and test examples of every device."""
GROUPS = [3, 1, 4]
METRICS = ("confusion", "f1", "auc")


def shards(*, numbers: bool = False, counts: list[tuple[int, int]] = COUNTS) -> Shards:
    draws = torch.Generator().manual_seed(0)

    def part(sizes: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        out = []
        for size in sizes:
            x = torch.randn(size, 3, generator=draws)
            y = 1000 * x.sum(1) if numbers else (x.sum(1) > 0).long()
            out.append((x, y))
        return out

    validation, test = (list(sizes) for sizes in zip(*counts, strict=True))
    train = part([8] * len(counts))
    classes = None if numbers else 2
    return own_parts(train=train, validation=part(validation), test=part(test), classes=classes)


def experiment(numbers: bool = False, **changes: Any) -> Experiment:
    plain: dict[str, Any] = {
        "algorithm": HierFAVG(steps=2, lr=0.1, edge_rounds=1),
        "data": shards(numbers=numbers),
        "model": covey.models.linear(3, 1 if numbers else 2),
        "tree": Tree.grouped(GROUPS),
        "rounds": 3,
        "least": LEAST,
    }
    if not numbers:
        plain["metrics"] = METRICS
    return Experiment(**plain | changes)


FORMS: dict[str, dict[str, Any]] = {
    "classes": {},
    "numbers": {"numbers": True, "loss": "squared_error"},
    "a sample": {"score_sample": 5},
    "private layers": {"algorithm": FedPer(steps=2), "private": "*bias", "tree": Tree.flat(8)},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_loopback_counts_alike(form: str) -> None:
    simulated, run = [
        played(experiment(**FORMS[form]), runtime=runtime) for runtime in ("simulator", "loopback")
    ]
    assert differences(everything(simulated), everything(run)) == []


def test_the_rows_of_training_are_those_without_a_limit() -> None:
    """`least` changes what is told of scores, and nothing of training."""
    limited = drained(covey.run(experiment()))
    plain = drained(covey.run(experiment(least=1)))
    assert torch.equal(limited.rows("global")[1], plain.rows("global")[1])
    assert "uncounted" not in plain.history[-1].as_dict()["models"]["global"]["scores"]["test"]
    assert limited.history[-1].as_dict()["models"]["global"]["scores"]["test"]["uncounted"] == 4


def test_figures_are_those_of_devices_with_enough_examples() -> None:
    """But for the accuracy, which has the answers of the others where they are enough together."""
    few = [test < LEAST for _, test in COUNTS]
    run = drained(covey.run(experiment(tree=Tree.flat(8), algorithm=FedAvg(steps=2, lr=0.1))))
    score = run.history[-1].models["global"].scores["test"]
    only = [(validation, 0 if hidden else test) for (validation, test), hidden in zip(COUNTS, few, strict=True)]  # fmt: skip
    assert score.uncounted == sum(few) == 4
    assert score.devices == 4
    assert score.confusion is not None
    assert sum(map(sum, score.confusion)) == sum(test for _, test in only)
    lines = [line for line in run.devices() if line.part == "test"]
    assert [line.examples for line in lines] == [8, 5, 12, 6]
    right = sum(round(line.accuracy * line.examples) for line in lines if line.accuracy is not None)
    assert score.accuracy is not None
    of_few = score.accuracy * sum(test for _, test in COUNTS) - right
    assert of_few == pytest.approx(round(of_few), abs=1e-9)  # 2 + 3 + 4 + 1 examples add up


def test_a_few_answers_go_on_only_with_others() -> None:
    """Under the first edge 2 and 3 examples are five; under the second one has 4, and under the
    third 1, which go no further.
    """
    run = drained(covey.run(experiment()))
    score = run.history[-1].models["global"].scores["test"]
    counted = sum(test for _, test in COUNTS) - 4 - 1
    assert score.accuracy is not None
    assert score.accuracy * counted == pytest.approx(round(score.accuracy * counted), abs=1e-9)
    assert score.uncounted == 4


@pytest.mark.parametrize(
    ("numbers", "counted"), [(False, "in the accuracy alone"), (True, "in no")]
)
def test_the_table_says_how_many_are_not_counted(numbers: bool, counted: str) -> None:
    loss = "squared_error" if numbers else "auto"
    summaries = []
    for least in (1, LEAST):
        run = drained(covey.run(experiment(numbers, loss=loss, least=least)))
        summaries.append(summarise([run.history]))
    plain, limited = summaries
    assert "uncounted" not in plain.as_dict()
    assert limited.as_dict()["uncounted"] == 4
    said = f"4 devices with fewer test examples than `least` counted {counted}"
    assert said in " ".join(show.text(limited).split())
    assert "least" not in show.text(plain)


def test_no_answer_tells_the_target_of_one_example(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    serve = Station.serve

    def heard(self: Station, request: bytes) -> bytes:
        answer = serve(self, request)
        header, messages = open_sealed(answer)
        if header.get("facts", {}).get("reports"):
            for part in messages:
                for message in part.messages:
                    row, _ = codec("dense").decode(bytes(message), limit=part.schema.width)
                    told.append((str(self.place), row))
        return answer

    monkeypatch.setattr(Station, "serve", heard)
    data = shards(numbers=True, counts=[(1, 2), (6, 7)])
    flat = {"tree": Tree.flat(2), "algorithm": FedAvg(steps=1, lr=0.01), "data": data, "rounds": 1}
    run = experiment(True, loss="squared_error", **flat)
    drained(covey.run(run, runtime="loopback"))
    target = float(data.y[int(data.validation.index[0])])
    sums = float(data.y[data.test.index[:2]].sum())
    secret = [target, target**2, sums]
    of_small = [row for place, row in told if place == "device 0"]
    assert of_small
    assert len(told) > len(of_small)
    for row in of_small:
        assert row.abs().max() < 100  # counts, ages and non-zeros; targets are of the order 1000
        assert not any(abs(float(value) - one) < 1e-3 for value in row for one in secret)


@pytest.mark.parametrize(("holders", "others"), [(4, 9), (9, 4), (9, 9), (0, 4), (4, 0)])
def test_neither_few_examples_of_holders_nor_of_the_others_are_sent_on(
    holders: int, others: int
) -> None:
    scorer = Scorer(FedAvg(), (), ("test",), least=LEAST)
    total = torch.zeros(1, sum(scorer._widths), dtype=torch.float64)
    told = [2.0, 3, holders, 4, 5, holders + others, 6]
    few = scorer._split(total)[0][3]
    few[0, 0] = torch.tensor(told)
    left = scorer._split(scorer._enough(total))[0][3][0, 0].tolist()
    hidden = 0 < holders < LEAST or 0 < others < LEAST
    assert left == ([0.0] * 6 + [6] if hidden else told)


def test_a_node_goes_by_its_own_experiment() -> None:
    """A parent cannot ask for more: what it says of a scorer does not hold `least`."""
    runs = covey.run(experiment())._runs
    metrics = runs.runtime.task.metrics
    scorer = Scorer(runs.experiment.algorithm, (), ("test",), metrics=metrics, least=LEAST)
    parameters = scorer.parameters()
    assert "least" not in parameters
    assert type(scorer).made(runs.experiment.algorithm, LEAST, scorer.metrics, parameters) == scorer


def test_it_is_in_the_fingerprint_where_it_decides_figures() -> None:
    one, five = experiment(least=1), experiment()
    assert "least" not in program_fingerprint(one)
    assert program_fingerprint(five)["least"] == "5"


@pytest.mark.parametrize("least", [0, -1, 2.5, True, None, "5"])
def test_a_bad_value_says_what_to_do(least: Any) -> None:
    with pytest.raises(ConfigError, match=r"least = .* must be a whole number"):
        replace(experiment(), least=least)


def test_positions_are_no_examples() -> None:
    """One sentence has many tokens, and is one example."""
    data = sentences()
    counts = data.test.counts()
    least = int(counts.max())
    few = (counts > 0) & (counts < least)
    tree = Tree.flat(data.devices)
    flat: dict[str, Any] = {"tree": tree, "algorithm": FedAvg(steps=1, lr=0.1), "metrics": ()}
    run = drained(covey.run(experiment(data=data, model=lstm(), least=least, rounds=1, **flat)))
    score = run.history[-1].models["global"].scores["test"]
    assert score.uncounted == int(few.sum()) > 0
    lines = [line for line in run.devices() if line.part == "test"]
    assert [int(line.device) for line in lines] == (~few).nonzero()[:, 0].tolist()
