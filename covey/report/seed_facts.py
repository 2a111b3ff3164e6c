"""The facts of one seed of a run: curves of models, bytes of links, and figures of single nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from covey import rooms
from covey.errors import CheckpointError, ConfigError
from covey.links.meter import Traffic
from covey.report.run_files import SeedRecord, intact
from covey.runs.saved.run_folder import RunFolder
from covey.runs.scores.headline import Headline, headline, named
from covey.runs.scores.packing import Array, pack, packed_size
from covey.runs.scores.record import scored_rounds
from covey.runs.selection import Protocol, Selection, select
from covey.runtimes.facts import ManyIds

ROUNDS = 160
"""Figures of single devices are given for this many rounds at most."""
_BYTES = 1_500_000
"""The figures of single devices of all runs take no more bytes than this, before base64."""
_FEWEST = 8
_OTHERS = ("perplexity", "mae", "r2", "loss")
"""Metrics that every record has where they exist, beside that of the devices' sums."""


def thinned_to(records: Iterable[SeedRecord]) -> int:
    """For how many rounds figures of single devices are given: `ROUNDS`, or fewer for many."""
    size = 0
    for record in records:
        for figures in list(record.nodes.values())[-1:]:
            for sums in figures.devices.values():
                size += packed_size(sums, whole=figures.metric == "accuracy")
            for values in figures.metrics.values():
                size += sum(packed_size(each, whole=False) for each in values.values())
    if not size:
        return ROUNDS
    return min(ROUNDS, max(_FEWEST, _BYTES // size))


class SeedFacts:
    """One seed of a run."""

    def __init__(self, record: SeedRecord, protocol: Protocol) -> None:
        self.record = record
        self.protocol = protocol
        self.described = record.described
        self.history = record.history
        self.nodes = record.nodes
        with intact(str(record.folder)):
            self.metric: str = record.described["metric"]
            self.tiers: list[str] = record.described["tiers"]
            """Their names, from the server down."""
            self.sizes: list[int] = record.described["sizes"]
            """The number of nodes of every tier."""
        self.scored = scored_rounds(record.history)
        self._asked: Mapping[str, bool] = record.described.get("metrics", {})
        """The metrics that the experiment asks for, and whether higher is better."""

    @cached_property
    def shown(self) -> Headline:
        """The metric by which the run is judged."""
        wanted = headline(self.scored)
        if wanted.name == "perplexity" and not self._asked:
            return named(self.metric)  # as tables of runs have it
        return wanted

    @cached_property
    def metrics(self) -> dict[str, Headline]:
        """The metrics that rounds have, that of devices' sums first."""
        last = self.scored[-1].models.values() if self.scored else ()
        scores = [model.scores["test"] for model in last if "test" in model.scores]
        out: dict[str, Headline] = {self.metric: named(self.metric)}
        for name in (*_OTHERS, *self._asked):
            if any(score.figure(name) is not None for score in scores):
                out[name] = Headline(name, self._asked.get(name, named(name).higher))
        return out

    @cached_property
    def selections(self) -> dict[str, Selection]:
        """The chosen, last and best round of every model that has them."""
        if not self.scored:
            return {}
        names = list(self.scored[-1].models)
        if not self.described["learns_global"]:
            names = [name for name in names if name not in ("global", "new_global")]
        out = {}
        for name in names:
            try:
                out[name] = select(self.scored, name, self.protocol)
            except ConfigError:  # no examples to choose a round on
                continue
        return out

    def chosen_value(self, name: str) -> float | None:
        """The figure of a model in its chosen round; None where there is none."""
        if name not in self.selections:
            return None
        score = self.selections[name].chosen.models[name].scores["test"]
        return _finite(self.shown.of(score))

    def as_dict(self, populations: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
        """All facts; a new population is added to `populations`."""
        with intact(str(self.record.folder)):
            history = self.history
            node_rounds: list[int] = []
            if self.nodes:
                recorded = list(self.nodes)
                chosen = {selection.chosen.round for selection in self.selections.values()}
                node_rounds = thinned(recorded, {recorded[-1], *(chosen & set(recorded))}, rounds)
            out: dict[str, Any] = {
                "seed": self.record.seed,
                "tiers": self.tiers,
                "sizes": self.sizes,
                "rounds": [record.round + 1 for record in self.scored],
                "node_rounds": [round + 1 for round in node_rounds],
                "seconds": sum(record.seconds for record in history),
                "gradients": sum(record.gradients for record in history),
                "models": self._models(node_rounds),
                "links": self._links(),
            }
            if "note" in self.described:
                out["note"] = self.described["note"]
            else:
                value = dict(self.described["population"])
                if value not in populations:
                    populations.append(value)
                out["population"] = populations.index(value)
                out["parents"] = self.described["parents"]
                out |= self._of_nodes()
            if history and history[0].environment is not None:
                name = history[0].environment.name
                if name in rooms.added("facts"):
                    out[name] = rooms.load(rooms.added("facts")[name])(self.record)
            newcomers = self._newcomers()
            if newcomers:
                out["newcomers"] = newcomers
            return out

    # Models

    def _models(self, node_rounds: Sequence[int]) -> dict[str, dict[str, Any]]:
        out = {}
        for name, selection in self.selections.items():
            if not name.startswith("new_"):
                facts = self._model(name, selection) | self._sums(name, node_rounds)
                for metric, of_metric in facts.get("metrics", {}).items():
                    values = np.full((len(node_rounds), self.sizes[-1]), np.nan)
                    for row, round in enumerate(node_rounds):
                        recorded = self.nodes[round].metrics.get(metric, {}).get(name)
                        if recorded is not None:
                            values[row] = recorded
                    if not np.isnan(values).all():
                        of_metric["devices"] = pack(values, whole=False)
                figures = self.nodes.get(selection.chosen.round)
                if figures is not None and name in figures.nonzeros:
                    facts["sparsity"] = _rounded(figures.nonzeros[name], 4)
                    holds = figures.holds[name]
                    if not holds.all():
                        facts["holds"] = [int(value) for value in holds]
                out[name] = facts
        return out

    def _model(self, name: str, selection: Selection) -> dict[str, Any]:
        """The figures of a model over all devices."""
        chosen = selection.chosen.models[name]
        score = chosen.scores["test"]
        own, *others = self.metrics.values()
        metrics = {metric.name: self._figures(name, selection, metric) for metric in others}
        out: dict[str, Any] = {
            "tier": chosen.tier,
            "chosen": selection.chosen.round + 1,
            **self._figures(name, selection, own),
            "worst": score.worst_decile,
            "mae": score.mae_fallback,
            "r2": score.r2_fallback,
            "nonzeros": chosen.nonzeros,
            "cut": chosen.cut,
            "layers": chosen.layers,
            "holders": chosen.holders,
            "metrics": metrics or None,
            "confusion": score.confusion,
        }
        return _known(out)

    def _figures(self, name: str, selection: Selection, metric: Headline) -> dict[str, Any]:
        """A metric of a model over all devices: in the rounds selected, and by round, shortened."""
        curve: list[float | None] = []
        for record in self.scored:
            model = record.models.get(name)
            value = None
            if model is not None and "test" in model.scores:
                value = _finite(metric.of(model.scores["test"]))
            curve.append(None if value is None else float(f"{value:.6g}"))
        score = selection.chosen.models[name].scores["test"]
        out = {
            "value": metric.of(score),
            "last": metric.of(selection.last.models[name].scores["test"]),
            "best": metric.of(selection.best_on_test.models[name].scores["test"]),
            "error": score.error(metric.name),
            "curve": curve,
        }
        return _known(out)

    def _sums(self, name: str, node_rounds: Sequence[int]) -> dict[str, Any]:
        """The sums of every device in some rounds; nothing where none was recorded.

        A CheckpointError unless they are those of the run's record.
        """
        if not node_rounds:
            return {}
        sums = np.full((len(node_rounds), self.sizes[-1]), np.nan)
        for row, round in enumerate(node_rounds):
            values = self.nodes[round].devices.get(name)
            if values is None:
                continue
            sums[row] = values
            score = self.history[round].models[name].scores["test"]
            recorded = _finite(named(self.metric).of(score))
            counted = ~np.isnan(values)
            examples = np.asarray(self.described["population"]["test"])[counted].sum()
            if recorded is None or not examples or score.uncounted:
                continue  # the answers of devices with few examples are in the record alone
            value = float(values[counted].sum() / examples)
            if self.metric == "rmse":
                value = math.sqrt(value)
            if math.isfinite(value) and not math.isclose(value, recorded, rel_tol=1e-5):
                raise CheckpointError(
                    f"{RunFolder(self.record.folder).nodes} is damaged: in round {round + 1} the "
                    f"devices' {name} has a test {self.metric} of {value:.6g}, "
                    f"the run's record says {recorded:.6g}."
                )
        return {"sums": pack(sums, whole=self.metric == "accuracy")}

    # Links and nodes

    def _links(self) -> dict[str, dict[str, list[int]]]:
        """The bytes of training in every round, by link."""
        out: dict[str, dict[str, list[int]]] = {}
        for link in map("-".join, pairwise(self.tiers)):
            down, up = (
                [record.traffic.get((link, way, "train"), Traffic()) for record in self.history]
                for way in ("down", "up")
            )
            dense = [one.dense + other.dense for one, other in zip(down, up, strict=True)]
            if sum(dense):
                out[link] = {
                    "down": [sent.bytes for sent in down],
                    "up": [sent.bytes for sent in up],
                    "dense": dense,
                }
        return out

    def _of_nodes(self) -> dict[str, Any]:
        """The names of nodes, their bytes, and how often they were asked."""
        out: dict[str, Any] = {}
        if self.described["names"]:
            out["names"] = self.described["names"]
        if self.record.totals_rounds:
            out["bytes"] = self._bytes()
            out["bytes_rounds"] = self.record.totals_rounds
        asked = {}
        for tier, size in zip(self.tiers[1:], self.sizes[1:], strict=True):
            cohorts = [record.cohorts.get(tier, []) for record in self.history]
            if any(isinstance(ids, ManyIds) and not ids.listed for ids in cohorts):
                continue  # there is but a hash of the ids
            counts = np.zeros(size, dtype=np.int64)
            for ids in cohorts:
                counts[list(ids)] += 1
            if bool((counts < len(self.history)).any()):
                asked[tier] = counts.tolist()
        if asked:
            out["asked"] = asked
        return out

    def _bytes(self) -> dict[str, dict[str, list[int]]]:
        """The bytes of every node, by tier and direction; checked against those of the links."""
        out: dict[str, dict[str, list[int]]] = {}
        rounds = self.record.totals_rounds
        links = self._links()
        for above, tier in pairwise(self.tiers):
            link = links.get(f"{above}-{tier}")
            if link is None:
                continue
            out[tier] = {}
            for direction in ("down", "up"):
                values = self.record.totals.get(tier, {}).get(direction, [])
                sent = sum(link[direction][:rounds])
                if sum(values) != sent:
                    raise CheckpointError(
                        f"{RunFolder(self.record.folder).totals} is damaged: the nodes of tier "
                        f"{tier} have {sum(values)} bytes {direction}, their link {sent}."
                    )
                size = self.sizes[self.tiers.index(tier)]
                out[tier][direction] = list(map(int, values)) or [0] * size
        return out

    # Newcomers

    def _newcomers(self) -> dict[str, Any]:
        """The devices that were held out of training; nothing where there are none."""
        models = {}
        for name, selection in self.selections.items():
            if name.startswith("new_"):
                facts = self._model(name, selection)
                kept = ("value", "last", "chosen", "curve", "nonzeros", "metrics")
                models[name] = {key: facts[key] for key in kept if key in facts}
                figures = self.nodes.get(selection.chosen.round)
                if figures is not None and name in figures.newcomers:
                    models[name]["sums"] = _rounded(figures.newcomers[name], 6)
        described = self.described.get("newcomers")
        if not models or described is None:
            return {}
        out = {"train": described["train"], "test": described["test"], "models": models}
        if described["names"]:
            out["names"] = described["names"]
        return out


def thinned(rounds: Sequence[int], needed: set[int], count: int) -> list[int]:
    """At most `count` of the rounds, evenly spaced, and those that are needed.

    >>> thinned(range(10), {3, 9}, 4)
    [0, 3, 5, 9]
    """
    room = max(count - len(needed), 0)
    others = [round for round in rounds if round not in needed]
    if len(others) > room:
        positions = {number * len(others) // room for number in range(room)}
        others = [others[position] for position in sorted(positions)]
    return sorted({*others, *needed})


def _finite(value: float | None) -> float | None:
    """The value; None where it is not known or not finite."""
    if value is None or not math.isfinite(value):
        return None
    return value


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that are there and, where they are numbers, finite."""
    out = {}
    for key, value in facts.items():
        infinite = isinstance(value, float) and not math.isfinite(value)
        if value is not None and not infinite:
            out[key] = value
    return out


def _rounded(values: Array, digits: int) -> list[float | None]:
    """Numbers as JSON can hold them; None where one is not known."""
    return [round(value, digits) if math.isfinite(value) else None for value in values.tolist()]


def shortened(values: Array) -> list[float | None]:
    """Numbers with six digits; None where one is not known."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]
