"""The pictures of a run: every model by round, links, and every device.

Models are drawn against rounds, or against what the environment counts, such as seconds and joules.
A tier has the same colour in every picture; several models of one tier differ by line style.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from covey.links.meter import Meter
from covey.report.pictures.picture_file import save
from covey.report.summary import Devices, gains_over, most_personal, sent_in, trained_links
from covey.report.summary import Histories as Histories
from covey.runs.run import Round
from covey.runs.scores.devices import paired
from covey.runs.scores.headline import Headline, for_devices, headline, named
from covey.runs.scores.record import scored_rounds
from covey.runs.selection import Protocol, select

Values = npt.NDArray[np.float64]
Used = Callable[[Round], float]
"""What a round adds to the horizontal axis."""

COLOURS = {"server": "C0", "edge": "C1", "device": "C2", "new device": "C3"}
OTHER = "C4"
"""The colour of tiers that only deeper trees have, where they need not be told apart."""
_OTHERS = ("C4", "C5", "C6", "C8", "C9")  # tiers between these, in deeper trees
_STYLES = ("-", "--", ":", "-.")
_GAIN = "tab:green"
_LOSS = "tab:red"
_NAMED = 40  # devices that have room for a name each
_FEW = 12  # points of a curve that are marked one by one
_PANEL = (5.5, 4.2)  # inches


def draw(
    histories: Histories,
    path: Path,
    title: str = "",
    devices: Devices = (),
    protocol: Protocol = "honest",
) -> None:
    """Draw a PNG with one line per model, and links or devices.

    A line is the mean over seeds, its band one standard deviation. The protocol chooses the round
    that a ring marks.
    """
    save(run_figure(histories, title, devices, protocol), path)


def draw_devices(histories: Histories, path: Path, title: str, devices: Devices) -> bool:
    """Draw a PNG of every device's figure with its own model and with the global one.

    False where nothing was scored.
    """
    picture = devices_figure(histories, title, devices)
    if picture is None:
        return False
    save(picture, path)
    return True


def run_figure(
    histories: Histories,
    title: str = "",
    devices: Devices = (),
    protocol: Protocol = "honest",
) -> Figure:
    """Models by round; beside them the links or, where every message is dense, the devices."""
    first = histories[0]
    against = ["round"]
    if first[0].environment is not None:
        against = [*first[0].environment.axes]
    meter = sent_in(first)
    links = trained_links(meter)
    pairs = compare(devices, wanted=headline(first), against_global=bool(links))
    sent = [meter.traffic(link=link) for link in links]
    if all(abs(each.bytes - each.dense) <= 0.02 * each.dense for each in sent):
        links = []  # every message is dense
    panels = len(against)
    if links or pairs is not None:
        panels += 1
    figure, axes = _panels(panels)
    for part, unit in zip(axes, against, strict=False):
        _models(part, histories, unit, protocol)
    axes[0].set(title=title)
    if links:
        _links(axes[-1], first, links)
    elif pairs is not None:
        _sorted_devices(axes[-1], pairs)
    for part in axes:
        _finish(part)
    return figure


def devices_figure(histories: Histories, title: str, devices: Devices) -> Figure | None:
    """Devices sorted by their figures, and the gain of each by a model of its own.

    None where nothing was scored.
    """
    first = histories[0]
    sends = bool(trained_links(sent_in(first)))
    pairs = compare(devices, wanted=headline(first), against_global=sends)
    if pairs is None:
        return None
    if pairs.base is None:
        figure, axes = _panels(1)
    else:
        figure, axes = _panels(2)
        _gains(axes[1], pairs)
    _sorted_devices(axes[0], pairs)
    if title:
        axes[0].set(title=f"{title}: how every device does")
    for part in axes:
        _finish(part)
    return figure


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side."""
    width, height = _PANEL
    figure = Figure(figsize=(width * count, height), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)
    return figure, list(axes[0])


def colours(tiers: Iterable[str]) -> dict[str, str]:
    """A colour for each tier; those of server, edge and device are always the same.

    >>> colours(["server", "region", "device"])
    {'server': 'C0', 'region': 'C4', 'device': 'C2'}
    """
    others = cycle(_OTHERS)
    out: dict[str, str] = {}
    for tier in tiers:
        if tier not in out:
            out[tier] = COLOURS.get(tier) or next(others)
    return out


@dataclass(frozen=True)
class Pairs:
    """Each device's figure with its own model and with the global one.

    The devices of all seeds, worst first by their own model.
    """

    model: str
    own: Values
    base: Values | None  # None where the run has one model alone
    names: list[str]
    metric: Headline  # accuracies are in percent
    difference: str = ""  # over all examples, with its interval

    @property
    def gain(self) -> Values:
        """By how much each device's own model is better."""
        assert self.base is not None
        if self.metric.higher:
            return self.own - self.base
        return self.base - self.own


def compare(
    devices: Devices,
    *,
    wanted: Headline | None = None,
    against_global: bool = True,
) -> Pairs | None:
    """The test figures of the most personal model, beside the global one if wanted.

    None where there are none.
    """
    tested = [line for lines in devices for line in lines if line.part == "test"]
    metric = for_devices(wanted or named("accuracy"), tested)
    known = dict.fromkeys(line.model for line in tested if metric.of_device(line) is not None)
    model = most_personal(known)
    if model is None:
        return None
    compares = against_global and model != "global" and "global" in known
    figures = []
    for lines in devices:
        for line, other in paired(lines, lines, model, "global" if compares else model):
            own = metric.of_device(line)
            base = metric.of_device(other)
            if own is not None and base is not None:
                figures.append((metric.scaled(own), metric.scaled(base), line.device))
    figures.sort(key=lambda figure: figure[:2], reverse=not metric.higher)
    gains = gains_over(devices, devices, metric, model, "global") if compares else []
    return Pairs(
        model=model,
        own=np.array([own for own, _, _ in figures]),
        base=np.array([base for _, base, _ in figures]) if compares else None,
        names=[name for _, _, name in figures],
        metric=metric,
        difference=gains[0].difference if gains else "",
    )


def _sorted_devices(axes: Axes, pairs: Pairs) -> None:
    """One position per device, worst first: its own model's figure and the global one's.

    Of few devices, a line joins the two.
    """
    positions = np.arange(len(pairs.own))
    few = len(positions) <= _NAMED
    tier = {"edge": "edge", "global": "server"}.get(pairs.model, "device")
    base = pairs.base
    if base is not None and few:
        up = pairs.gain >= 0
        for mask, colour in ((up, _GAIN), (~up, _LOSS)):
            axes.vlines(
                positions[mask], base[mask], pairs.own[mask], color=colour, alpha=0.5, linewidth=2
            )
        axes.scatter(positions, base, s=30, color=COLOURS["server"], alpha=1, label="global")
    elif base is not None:
        axes.scatter(positions, base, s=6, color=COLOURS["server"], alpha=0.4, label="global")
    if few:
        axes.scatter(positions, pairs.own, s=30, color=COLOURS[tier], label=pairs.model, zorder=3)
    else:
        axes.plot(positions, pairs.own, color=COLOURS[tier], label=pairs.model, linewidth=2)
    if few and len(set(pairs.names)) == len(positions):
        axes.set_xticks(positions, pairs.names, rotation=90, fontsize=8)
    axes.set(
        xlabel=f"{len(positions)} devices, worst first; models in their chosen rounds",
        ylabel=f"test {pairs.metric.axis}",
        title="how every device does",
    )


def _gains(axes: Axes, pairs: Pairs) -> None:
    """The gain of each device by its own model, from the greatest loss to the greatest gain."""
    gain = np.sort(pairs.gain)
    better = int((gain > 0).sum())
    worse = int((gain < 0).sum())
    _bars(axes, gain, gain > 0, _GAIN, f"{better} gain")
    _bars(axes, gain, gain < 0, _LOSS, f"{worse} lose")
    axes.axhline(0, color="black", linewidth=0.8)
    unit = "points of accuracy" if pairs.metric.percent else pairs.metric.title
    title = f"{pairs.model} against global"
    equal = len(gain) - better - worse
    if equal:
        title += f"; {equal} equal"
    axes.set_title(f"{title}\n{pairs.difference}".strip(), fontsize=10)
    axes.set(xlabel=f"{len(gain)} devices, smallest gain first", ylabel=f"gain, in {unit}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    room = 0.6 + len(gain) / 100  # the largest loss stands clear of the axis
    axes.set_xlim(-room, len(gain) - 1 + room)


def _bars(
    axes: Axes,
    gain: Values,
    mask: npt.NDArray[np.bool_],
    colour: str,
    label: str,
) -> None:
    """The gains under a mask: a bar each, or an area where there are many."""
    if not mask.any():
        return
    positions = np.arange(len(gain))
    if len(gain) <= _NAMED:
        axes.bar(positions[mask], gain[mask], color=colour, label=label)
        return
    edges = np.repeat(positions[mask], 2) + np.tile([-0.5, 0.5], mask.sum())
    # The line round the area shows a single device among thousands.
    heights = np.repeat(gain[mask], 2)
    axes.fill_between(edges, 0, heights, color=colour, label=label, linewidth=2)


def _links(axes: Axes, history: Sequence[Round], links: Sequence[str]) -> None:
    """Bytes of each link by round, measured and as dense messages, in its lower tier's colour."""
    rounds = [record.round + 1 for record in history]
    lower = {link: link.rpartition("-")[2] for link in links}
    colour = colours(lower.values())
    marker = "o" if len(rounds) <= _FEW else ""
    for link in links:
        sent = [Meter(record.traffic).traffic(link=link) for record in history]
        megabytes = [traffic.bytes / 1e6 for traffic in sent]
        dense = [traffic.dense / 1e6 for traffic in sent]
        own = colour[lower[link]]
        axes.plot(rounds, megabytes, color=own, marker=marker, label=link)
        axes.plot(rounds, dense, ":", color=own, label=f"{link}, if dense")
    axes.set(
        xlabel="round",
        ylabel="MB per round, measured",
        title="what the links carried",
        ylim=(0, None),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _models(axes: Axes, histories: Histories, against: str, protocol: Protocol) -> None:
    """Every model against rounds, seconds or joules, with its figure in the chosen round.

    The seconds of several seeds differ: models are drawn against their mean.
    """
    scored = [scored_rounds(history) for history in histories]
    shortest = min(map(len, scored))
    environment = histories[0][0].environment
    label = "round" if environment is None else environment.axes[against]
    axes.set(xlabel=f"{label}; {of_chosen(len(histories))}")
    if not shortest:
        axes.text(0.5, 0.5, "no round was scored", ha="center", transform=axes.transAxes)
        return
    tiers = {}
    for name, model in scored[0][-1].models.items():
        tiers[name] = "new device" if name.startswith("new_") else model.tier
    if len(tiers) > 1 and not trained_links(sent_in(histories[0])):
        tiers.pop("global", None)
    colour = colours(tiers.values())
    metric = headline(scored[0])
    number = "{:.1f}" if metric.percent else "{:.4g}"

    def used(record: Round) -> float:
        if against == "round":
            return 1.0
        return float(getattr(record.environment, against))

    drawn: list[str] = []
    for name, tier in tiers.items():
        line = model_line(name, histories, metric, protocol, used)
        style = _STYLES[drawn.count(tier) % len(_STYLES)]
        plot_line(
            axes,
            replace(line, colour=colour[tier], style=style),
            label=f"{name} {number.format(line.reported)}",
            marker="o" if shortest <= _FEW else "",
            markersize=4,
        )
        drawn.append(tier)
    axes.set(ylabel=f"test {metric.axis}")
    if against == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


@dataclass(frozen=True)
class Line:
    """A model by round, in the metric by which runs are judged; accuracies in percent.

    `values` are [seeds, scored rounds].
    """

    label: str
    colour: str
    style: str | tuple[int, tuple[float, ...]]
    rounds: Sequence[float]  # or what was used until then, the mean of the seeds
    values: npt.NDArray[np.float64]
    reported: float  # in the chosen rounds, the mean over seeds
    ring: int | None = None  # the place of the chosen round of a single seed
    tier: str = ""

    @property
    def end(self) -> float:
        """The mean over seeds in the last round."""
        return float(self.values[:, -1].mean())


def model_line(
    name: str, histories: Histories, metric: Headline, protocol: Protocol, used: Used
) -> Line:
    """A model of a run against what its rounds used; seeds end where the shortest does."""
    scored = [scored_rounds(history) for history in histories]
    length = min(map(len, scored))
    values = [[value_of(record, name, metric) for record in each[:length]] for each in scored]
    places = []  # what was used up to every scored round
    for history in histories:
        sums = np.cumsum([used(record) for record in history])
        places.append([sums[k] for k, record in enumerate(history) if record.models][:length])
    value, place = reported(scored, name, metric, protocol)
    tier = scored[0][-1].models[name].tier
    colour = COLOURS.get(tier, OTHER)
    rounds = np.mean(places, axis=0).tolist()
    return Line(name, colour, "-", rounds, np.array(values), value, place, tier)


def value_of(record: Round, name: str, metric: Headline) -> float:
    """The test figure of a model over all devices, accuracies in per cent; NaN if not known."""
    value = metric.of(record.models[name].tested)
    return float("nan") if value is None else metric.scaled(value)


def reported(
    scored: Histories, name: str, metric: Headline, protocol: Protocol
) -> tuple[float, int | None]:
    """A model's figure in its chosen round, the mean over seeds, and the place of that round.

    `scored` are the scored rounds of every seed; the place is among those of a single seed.
    """
    chosen = [select(history, name, protocol).chosen for history in scored]
    value = float(np.mean([value_of(record, name, metric) for record in chosen]))
    if len(chosen) > 1:
        return value, None
    return value, [record.round for record in scored[0]].index(chosen[0].round)


def of_chosen(seeds: int) -> str:
    """What the numbers of a picture are."""
    one = "rings and numbers: the chosen round"
    return one if seeds == 1 else "numbers: the chosen rounds, mean of seeds"


def plot_line(axes: Axes, line: Line, **looks: Any) -> None:
    """A line, a ring where its chosen round is, and a band of one standard deviation over seeds."""
    mean = line.values.mean(0)
    axes.plot(line.rounds, mean, ls=line.style, color=line.colour, **looks)
    if line.ring is not None:
        ring: dict[str, Any] = {"mfc": "white", "mec": line.colour, "ms": 6, "mew": 1.6}
        axes.plot(line.rounds[line.ring], mean[line.ring], "o", zorder=4, **ring)
    if len(line.values) > 1:
        spread = line.values.std(0, ddof=1)
        low, high = mean - spread, mean + spread
        axes.fill_between(line.rounds, low, high, color=line.colour, alpha=0.15, lw=0)


def _finish(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
