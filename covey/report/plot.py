"""The pictures of a run: every model by round (or by seconds and joules over the air), links, and
how every device does.

A tier has the same colour in every picture; several models of one tier differ by line style.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from covey.runs.devices import DeviceScore
from covey.runs.run import Round
from covey.runs.scoring import Score

Curves = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Values = npt.NDArray[np.float64]

LABELS = {"round": "round", "seconds": "seconds over the air", "joules": "joules of all devices"}
COLOURS = {"server": "C0", "edge": "C1", "device": "C2", "new device": "C3"}
_OTHERS = ("C4", "C5", "C6", "C8", "C9")  # tiers between these, in deeper trees
_STYLES = ("-", "--", ":", "-.")
_GAIN, _LOSS = "tab:green", "tab:red"
_NAMED = 40  # devices that have room for a name each
_FEW = 12  # points of a curve that are marked one by one
_PANEL = (5.5, 4.2)  # inches


def draw(
    histories: Sequence[Sequence[Round]],
    path: Path,
    title: str = "",
    devices: Sequence[Sequence[DeviceScore]] = (),
) -> None:
    """A PNG with one line per model (mean over seeds, a band of one standard deviation), and links
    or devices.
    """
    _save(run_figure(histories, title, devices), path)


def draw_devices(
    histories: Sequence[Sequence[Round]],
    path: Path,
    title: str,
    devices: Sequence[Sequence[DeviceScore]],
) -> bool:
    """A PNG of how every device does with its own model and with the global one; False where
    nothing was scored.
    """
    picture = devices_figure(histories, title, devices)
    if picture is None:
        return False
    _save(picture, path)
    return True


def run_figure(
    histories: Sequence[Sequence[Round]],
    title: str = "",
    devices: Sequence[Sequence[DeviceScore]] = (),
) -> Figure:
    """Models by round; beside them what the links saved or, where every message is dense, the
    devices.
    """
    against = ("seconds", "joules") if histories[0][0].radio is not None else ("round",)
    links = _saving_links(histories[0])
    pairs = compare(devices, against_global=_communicates(histories[0]))
    beside = bool(links) or pairs is not None
    panels = len(against) + beside
    figure = Figure(figsize=(_PANEL[0] * panels, _PANEL[1]), layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(1, panels)))
    for part, unit in zip(axes, against, strict=False):
        _models(part, histories, unit)
    axes[0].set(title=title)
    if links:
        _links(axes[-1], histories[0], links)
    elif pairs is not None:
        _sorted_devices(axes[-1], pairs)
    for part in axes:
        _finish(part)
    return figure


def devices_figure(
    histories: Sequence[Sequence[Round]],
    title: str,
    devices: Sequence[Sequence[DeviceScore]],
) -> Figure | None:
    """Devices sorted by how they do, and what each gains by a model of its own; None where nothing
    was scored.
    """
    pairs = compare(devices, against_global=_communicates(histories[0]))
    if pairs is None:
        return None
    panels = 1 if pairs.base is None else 2
    figure = Figure(figsize=(_PANEL[0] * panels, _PANEL[1]), layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(1, panels)))
    _sorted_devices(axes[0], pairs)
    if pairs.base is not None:
        _gains(axes[1], pairs)
    if title:
        axes[0].set(title=f"{title}: how every device does")
    for part in axes:
        _finish(part)
    return figure


def colours(tiers: Iterable[str]) -> dict[str, str]:
    """A colour for each tier; those of server, edge and device are always the same.

    >>> colours(["server", "region", "device"])
    {'server': 'C0', 'region': 'C4', 'device': 'C2'}
    """
    names = list(dict.fromkeys(tiers))
    others = [tier for tier in names if tier not in COLOURS]
    extra = {tier: _OTHERS[k % len(_OTHERS)] for k, tier in enumerate(others)}
    return {tier: COLOURS.get(tier) or extra[tier] for tier in names}


_AXES = {"accuracy": "test accuracy (%)", "rmse": "test RMSE", "loss": "test loss"}


@dataclass(frozen=True)
class Pairs:
    """Each device's figure with its own model and with the global one, worst first by its own; all
    seeds' devices.
    """

    model: str
    own: Values
    base: Values | None  # None where the run has one model alone
    names: list[str]
    figure: Literal["accuracy", "rmse", "loss"]  # accuracy in percent; of the others less is better

    @property
    def gain(self) -> Values:
        """How much better each device is off with its own."""
        assert self.base is not None
        difference = self.own - self.base
        return difference if self.figure == "accuracy" else -difference


def compare(
    devices: Sequence[Sequence[DeviceScore]], *, against_global: bool = True
) -> Pairs | None:
    """The figures of the most personal model, beside the global one if wanted, on test data; None:
    there are none.
    """
    lines = [
        (seed, line)
        for seed, scores in enumerate(devices)
        for line in scores
        if line.part == "test"
    ]
    kind: Literal["accuracy", "rmse", "loss"] = "loss"
    if any(line.accuracy is not None for _, line in lines):
        kind = "accuracy"
    elif any(line.rmse is not None for _, line in lines):
        kind = "rmse"
    scale = 100 if kind == "accuracy" else 1
    figures: dict[str, dict[tuple[int, str], float]] = {}
    for seed, line in lines:
        value: float | None = getattr(line, kind)
        if value is not None:
            figures.setdefault(line.model, {})[seed, line.device] = scale * value
    model = next(
        (name for name in ("personal", "edge", "global", *figures) if name in figures), None
    )
    if model is None:
        return None
    base = figures.get("global") if against_global and model != "global" else None
    keys = [key for key in figures[model] if base is None or key in base]
    sign = 1 if kind == "accuracy" else -1
    keys.sort(key=lambda key: (sign * figures[model][key], sign * (base or figures[model])[key]))
    own = np.array([figures[model][key] for key in keys])
    other = None if base is None else np.array([base[key] for key in keys])
    return Pairs(model, own, other, [name for _, name in keys], kind)


def _sorted_devices(axes: Axes, pairs: Pairs) -> None:
    """One place per device, worst first: its own model's figure and the global one's."""
    places = np.arange(len(pairs.own))
    few = len(places) <= _NAMED
    tier = {"edge": "edge", "global": "server"}.get(pairs.model, "device")
    if pairs.base is not None:
        if few:
            up = pairs.gain >= 0
            for mask, colour in ((up, _GAIN), (~up, _LOSS)):
                axes.vlines(
                    places[mask],
                    pairs.base[mask],
                    pairs.own[mask],
                    color=colour,
                    alpha=0.5,
                    linewidth=2,
                )
        size = 30 if few else 6
        axes.scatter(
            places,
            pairs.base,
            s=size,
            color=COLOURS["server"],
            alpha=1 if few else 0.4,
            label="global",
        )
    if few:
        axes.scatter(places, pairs.own, s=30, color=COLOURS[tier], label=pairs.model, zorder=3)
    else:
        axes.plot(places, pairs.own, color=COLOURS[tier], label=pairs.model, linewidth=2)
    if few and len(set(pairs.names)) == len(places):
        axes.set_xticks(places, pairs.names, rotation=90, fontsize=8)
    axes.set(
        xlabel=f"{len(places)} devices, worst first",
        ylabel=_AXES[pairs.figure],
        title="how every device does",
    )


def _gains(axes: Axes, pairs: Pairs) -> None:
    """What each device gains by its own model, from the greatest loss to the greatest gain."""
    gain = np.sort(pairs.gain)
    places = np.arange(len(gain))
    better, worse = int((gain > 0).sum()), int((gain < 0).sum())
    for mask, colour, label in (
        (gain > 0, _GAIN, f"{better} gain"),
        (gain < 0, _LOSS, f"{worse} lose"),
    ):
        if not mask.any():
            continue
        if len(gain) <= _NAMED:
            axes.bar(places[mask], gain[mask], color=colour, label=label)
        else:
            axes.fill_between(
                places[mask], 0, gain[mask], step="mid", color=colour, label=label, linewidth=0
            )
    axes.axhline(0, color="black", linewidth=0.8)
    unit = {"accuracy": "points of accuracy", "rmse": "RMSE", "loss": "loss"}[pairs.figure]
    equal = len(gain) - better - worse
    title = f"{pairs.model} against global" + (f"; {equal} equal" if equal else "")
    axes.set(
        xlabel=f"{len(gain)} devices, least gain first", ylabel=f"gain, in {unit}", title=title
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(-0.6, len(gain) - 0.4)


def _communicates(history: Sequence[Round]) -> bool:
    """Whether anything is ever sent in training; where nothing is, the global model stays as it
    began.
    """
    return any(lane == "train" for record in history for _, _, lane in record.traffic)


def _saving_links(history: Sequence[Round]) -> list[str]:
    """The links that carried something else than dense messages; bytes of the others say nothing
    new.
    """
    measured: dict[str, int] = {}
    dense: dict[str, int] = {}
    for record in history:
        for (link, _, lane), traffic in record.traffic.items():
            if lane == "train":
                measured[link] = measured.get(link, 0) + traffic.bytes
                dense[link] = dense.get(link, 0) + traffic.dense
    differ = [link for link in measured if abs(measured[link] - dense[link]) > 0.02 * dense[link]]
    return list(measured) if differ else []


def _links(
    axes: Axes,
    history: Sequence[Round],
    links: Sequence[str],
) -> None:
    """Bytes of each link by round, measured and as dense messages would be, in the colour of its
    lower tier.
    """
    rounds = [record.round + 1 for record in history]
    marker = "o" if len(rounds) <= _FEW else ""
    colour = colours(link.rpartition("-")[2] for link in links)
    for link in links:
        tier = link.rpartition("-")[2]
        dense = [
            sum(
                t.dense for key, t in record.traffic.items() if key[0] == link and key[2] == "train"
            )
            / 1e6
            for record in history
        ]
        megabytes = [record.bytes(link) / 1e6 for record in history]
        axes.plot(rounds, megabytes, color=colour[tier], marker=marker, label=link)
        axes.plot(rounds, dense, ":", color=colour[tier], label=f"{link}, if dense")
    axes.set(
        xlabel="round",
        ylabel="MB per round, measured",
        title="what the links carried",
        ylim=(0, None),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _models(
    axes: Axes,
    histories: Sequence[Sequence[Round]],
    against: str,
) -> None:
    """Every model against rounds, seconds or joules; of several seeds, whose seconds differ,
    against their mean.
    """
    scored = [[record for record in history if record.models] for history in histories]
    shortest = min(map(len, scored))
    axes.set(xlabel=LABELS[against])
    if not shortest:
        axes.text(0.5, 0.5, "no round was scored", ha="center", transform=axes.transAxes)
        return
    spent = np.array([_spent(history, against)[:shortest] for history in histories]).mean(0)
    tiers = {name: _tier(name, model.tier) for name, model in scored[0][-1].models.items()}
    if len(tiers) > 1 and not _communicates(histories[0]):
        tiers = {name: tier for name, tier in tiers.items() if name != "global"}
    colour = colours(tiers.values())
    drawn: dict[str, int] = {}
    for name, tier in tiers.items():
        curves = _curves(scored, name, shortest)
        mean, spread = curves.mean(0), curves.std(0)
        style = _STYLES[drawn.get(tier, 0) % len(_STYLES)]
        drawn[tier] = drawn.get(tier, 0) + 1
        marker = "o" if shortest <= _FEW else ""
        axes.plot(spent, mean, style, label=name, color=colour[tier], marker=marker, markersize=4)
        if len(curves) > 1:
            axes.fill_between(
                spent, mean - spread, mean + spread, color=colour[tier], alpha=0.2, linewidth=0
            )
    axes.set(ylabel=_figure(scored[0][-1]))
    if against == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _figure(record: Round) -> str:
    """What is drawn of the models of a run."""
    score = next(iter(record.models.values())).scores.get("test")
    if score is not None and score.accuracy is not None:
        return "test accuracy (%)"
    if score is not None and score.rmse is not None:
        return "test RMSE"
    return "test loss"


def _tier(name: str, tier: str) -> str:
    return "new device" if name.startswith("new_") else tier


def _spent(history: Sequence[Round], unit: str) -> list[float]:
    """What was spent until the end of each round that is scored."""
    each = [
        1.0 if unit == "round" or record.radio is None else getattr(record.radio, unit)
        for record in history
    ]
    return [total for record, total in zip(history, accumulate(each), strict=True) if record.models]


def _curves(
    scored: Sequence[Sequence[Round]],
    name: str,
    length: int,
) -> Curves:
    """One curve per seed: accuracy in percent, RMSE where numbers are predicted, else the loss."""
    curves = []
    for history in scored:
        scores = [
            record.models[name].scores.get("test")
            or next(iter(record.models[name].scores.values()))
            for record in history
        ]
        curves.append([_value(score) for score in scores[:length]])
    return np.array(curves)


def _value(score: Score) -> float:
    if score.accuracy is not None:
        return 100 * score.accuracy
    if score.rmse is not None:
        return score.rmse
    return score.loss or 0.0


def _finish(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


def _save(figure: Figure, path: Path) -> None:
    """The file, replaced in one step."""
    part = path.with_name(f".{path.name}.part")
    figure.savefig(part, dpi=120, format="png")
    os.replace(part, path)
