"""Everything that a run says of its scores: records, tables, files and the page, as plain data.

`python -m tests.laws.scored --write` takes `scored.json` anew; with the path of a file it writes
all facts there, to be compared by eye.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

import covey
from covey import Experiment, Run, Tree, data, models
from covey.algorithms import FedAvg, PFedMe
from covey.folder import recording, show
from covey.report.run_files import SeedRecord
from covey.report.seed_facts import ROUNDS, SeedFacts
from covey.report.summary import summarise
from covey.runs.scores import node_round, record
from covey.runs.scores.devices import from_csv, to_csv
from covey.runs.scores.headline import headline, names_of_devices, selected
from tests.laws import test_least as least
from tests.laws.capture import machine
from tests.laws.networks import lstm, sentences
from tests.test_metrics import experiment as asked
from tests.test_sampling import experiment as sampled

FILE = Path(__file__).with_name("scored.json")
RULE = "rewritten on purpose by `python -m tests.laws.scored --write`"
RUNTIMES = ("simulator", "loopback")


def numbers(outputs: int, **changes: Any) -> Experiment:
    """A regression of so many numbers per example; 0: one number, without an axis of its own."""
    rng = np.random.default_rng(3)
    pairs = []
    for size in (30, 9, 460, 55, 21):
        x = rng.normal(size=(size, 4))
        y = x @ rng.normal(size=(4, max(outputs, 1))) + 5 * (1 + np.arange(max(outputs, 1)))
        target = torch.tensor(y if outputs else y[:, 0], dtype=torch.float64)
        pairs.append((torch.tensor(x, dtype=torch.float64), target))
    settings: dict[str, Any] = {
        "rounds": 2,
        "parts": ("train", "validation", "test"),
        "dtype": torch.float64,
    }
    return Experiment(
        PFedMe(sample=2, lr=0.01, personal_lr=0.01),
        data.own(pairs),
        models.linear(4, max(outputs, 1)),
        Tree.flat(len(pairs)),
        **settings | changes,
    )


def tokens(**changes: Any) -> Experiment:
    """A model of sentences, scored by position."""
    settings = {"algorithm": FedAvg(steps=1, batch=4), "rounds": 2, **changes}
    return Experiment(data=sentences(), model=lstm(), tree=Tree.flat(5), **settings)


def cases() -> Iterator[tuple[str, Experiment]]:
    """Kinds of targets, metrics that are asked for, samples, new devices and small devices."""
    yield "classes", asked("classes", metrics=())
    yield "classes, all metrics", asked("classes")
    named = ("accuracy", "loss", "f1", "confusion")
    yield "classes, by name", asked("classes", metrics=named, select="f1")
    yield "classes, chosen by ece", asked("classes", metrics=(), select="ece")
    yield "classes, stopped", asked("classes", stop={"patience": 1, "metric": "top2"}, rounds=6)
    yield "labels", asked("labels", metrics=())
    yield "labels, by name", asked("labels", metrics=("f1", "accuracy", "auc"))
    yield "numbers", asked("numbers", metrics=())
    yield "numbers, by name", asked("numbers", metrics=("mae",), select="r2")
    for outputs in (0, 1, 3):
        yield f"{outputs} outputs", numbers(outputs)
    for tree, regression in product(("flat", "tree"), (False, True)):
        kind = f"{tree}, {'numbers' if regression else 'classes'}"
        yield f"a sample, {kind}", sampled(tree, regression, score_sample=7)
        names = ("loss",) if regression else ("accuracy", "f1", "balanced_accuracy")
        yield f"a sample, {kind}, by name", sampled(tree, regression, score_sample=7, metrics=names)
    yield "new devices", sampled("flat", holdout_devices=5)
    yield "new devices, by name", sampled("flat", holdout_devices=5, metrics=("f1", "confusion"))
    yield "new devices, numbers", sampled("tree", True, holdout_devices=5)
    yield "tokens", tokens()
    by_perplexity = {"metrics": ("top3", "perplexity"), "select": "perplexity"}
    yield "tokens, by name", tokens(algorithm=PFedMe(batch=4, sample=2), **by_perplexity)
    yield "tokens, a sample", tokens(score_sample=3)
    for form, changes in least.FORMS.items():
        yield f"small devices, {form}", least.experiment(**changes)


def facts(run: Run) -> dict[str, Any]:
    """All that a run says of its scores, as JSON has it, but for seconds."""
    rounds = []
    nodes = {}
    for entry in run:
        rounds.append(replace(entry, seconds=0.5, spent={}))
        of_nodes = node_round.of(run)
        if of_nodes is not None:
            nodes[entry.round] = of_nodes
    totals: dict[str, dict[str, list[float]]] = {tier: {} for tier, _ in run.totals}
    for (tier, name), values in run.totals.items():
        totals[tier][name] = values.tolist()
    described = recording.described(run, "method")
    seed = SeedRecord(0, Path("run"), described, rounds, nodes, totals, run.round)
    again = [record.read(json.loads(json.dumps(entry.as_dict()))) for entry in rounds]
    lines = run.devices()
    summary = summarise([rounds], devices=[lines])
    links = sorted(summary.links, key=attrgetter("link"))  # runtimes count them in another order
    summary = replace(summary, links=links)
    labels = [str(label) for label in range(run.experiment.data.classes or 0)]
    judged = headline(rounds)
    return {
        "records": [entry.as_dict() for entry in rounds],
        "read again": again == rounds,
        "figures": [entry.figures() for entry in rounds],
        "lines": [str(entry) for entry in rounds],
        "html": rounds[-1]._repr_html_(),
        "nodes": [entry.line() for entry in nodes.values()],
        "devices": to_csv(lines),
        "devices again": from_csv(to_csv(lines)) == lines,
        "metrics of devices": names_of_devices(lines),
        "confusion": recording.confusion_csv(rounds, labels),
        "summary": summary.as_dict(),
        "table": show.text(summary),
        "judged by": [judged.name, judged.higher],
        "chosen by": [selected(model).name for model in rounds[-1].models.values()],
        "traffic": sorted(map(str, run.meter.state())),
        "page": SeedFacts(seed, "honest").as_dict([], ROUNDS),
    }


def finished(case: Experiment, runtime: str) -> dict[str, Any]:
    """The facts of a run of one case, in the types that JSON gives back."""
    plain: dict[str, Any] = json.loads(json.dumps(facts(covey.run(case, runtime=runtime))))
    return plain


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|\bnan\b|-?\binf\b")
_HIDDEN = ("nodes", "page", "traffic")
"""Facts with packed bits, or with more than another machine reproduces."""


def digest(of_run: dict[str, Any]) -> str:
    """A hash of all facts, bit by bit."""
    return hashlib.sha256(json.dumps(of_run, sort_keys=True).encode()).hexdigest()[:16]


def form(of_run: dict[str, Any]) -> str:
    """A hash of everything but numbers: keys, columns, words and their order."""
    kept = {key: value for key, value in of_run.items() if key not in _HIDDEN}
    words = _NUMBER.sub("#", json.dumps(kept).replace("\\n", "\n"))
    return hashlib.sha256(" ".join(words.split()).encode()).hexdigest()[:16]


def outline(of_run: dict[str, Any]) -> dict[str, float]:
    """What another processor reproduces up to rounding: the figures of the last record."""
    kept = ("accuracy", "loss", "rmse", "mae", "r2", "perplexity", "error", "uniform", "worst", "/")
    last = of_run["figures"][-1]
    return {
        key: float(f"{value:.6g}")
        for key, value in last.items()
        if "/test/" in key and any(word in key.rpartition("/")[2] for word in kept)
    }


def taken(of_run: dict[str, Any]) -> dict[str, Any]:
    """What is written of a run."""
    return {"bits": digest(of_run), "form": form(of_run), "outline": outline(of_run)}


def main() -> None:
    """Write all facts into a file; with --write, the file of this law."""
    found = {name: finished(case, "simulator") for name, case in cases()}
    if "--write" in sys.argv:
        runs = {name: taken(of_run) for name, of_run in found.items()}
        text = json.dumps({"machine": machine(), "runs": runs}, indent=1, sort_keys=True)
        FILE.write_text(text + "\n")
        return
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
