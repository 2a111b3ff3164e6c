"""The demo's experiment over five seeds, beside Local, FedAvg and FineTune: a table, and the
picture of docs/index.md.

    python examples/compare.py [compare.png]

100 devices hold three of ten digits and about eleven training images each, under ten edges of
devices whose first updates are similar; ten devices do not train. Every method evaluates as many
gradients, with a step size chosen on validation data of other seeds. It takes two to four minutes
on two cores; the figures are kept in compare.json beside the picture, and drawn from there the next
time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

import covey
from covey.files.config import DEMO, Config, load
from covey.report.pictures.compare import STYLES, Line, models, plot
from covey.report.pictures.plot import COLOURS
from covey.runs.selection import select

SEEDS = range(5)
FEDAVG = {"name": "fedavg", "steps": 50, "lr": 0.7, "batch": 20}
INK, SOFT, RULE = "#20262d", "#66707c", "#c9ced5"
SHOWN = (
    ("sFedHP", "edge"),
    ("sFedHP", "personal"),
    ("FineTune", "personal"),
    ("FedAvg", "global"),
    ("sFedHP", "global"),
    ("Local", "personal"),
)
"""The lines of the picture: a method and one of its models. FineTune's global model is FedAvg's."""
METHODS = ("sFedHP", "FineTune", "FedAvg", "Local")
TIERS = {"global": "server", "edge": "edge", "personal": "device"}


def methods() -> dict[str, Config]:
    """The demo, the algorithms that run beside it, and FedAvg: files that differ in [algorithm]
    alone.
    """
    demo = load(Path(str(DEMO)))
    beside = demo.yardsticks()
    fedavg = replace(beside["local"], algorithm=FEDAVG)
    return {
        "sFedHP": demo,
        "FineTune": beside["finetune"],
        "FedAvg": fedavg,
        "Local": beside["local"],
    }


def train() -> dict[str, Any]:
    """By method and model: accuracies in percent [seeds][rounds], the reported and the worst;
    megabytes at the server.
    """
    out: dict[str, Any] = {}
    for name, config in methods().items():
        for seed in SEEDS:
            run = covey.run(config.experiment(seed))
            for record in run:
                print(f"\r{name}, seed {seed}: {record}", end="", flush=True)
            print()
            for model in [
                *models(run.history),
                *(each for each in run.history[-1].models if each.startswith("new_")),
            ]:
                figures = out.setdefault(
                    f"{name} {model}", {key: [] for key in ("curve", "chosen", "worst")}
                )
                _add(figures, run.history, model)
            out.setdefault(f"{name} MB", []).append(_megabytes(run.history, "server"))
            out.setdefault(f"{name} device MB", []).append(_megabytes(run.history, ""))
            if seed == 0:
                out[f"{name} devices"] = _devices(run)
    out["rounds"] = [record.round + 1 for record in run.history if record.models]
    return out


def _add(figures: dict[str, list[Any]], history: Sequence[covey.Round], model: str) -> None:
    """One more seed of a model."""
    scores = [record.models[model].scores["test"] for record in history if record.models]
    figures["curve"].append([100 * (score.accuracy_fallback or 0.0) for score in scores])
    chosen = select(history, model).chosen.models[model].scores["test"]
    figures["worst"].append(100 * (chosen.worst_decile or 0.0))
    figures["chosen"].append(100 * (chosen.accuracy_fallback or 0.0))


def _megabytes(history: Sequence[covey.Round], start: str) -> float:
    """What training sent over the links whose name starts so, both ways."""
    links = {link for record in history for link, _, _ in record.traffic if link.startswith(start)}
    return sum(record.bytes(link) for record in history for link in links) / 1e6


def _devices(run: covey.Run) -> list[list[dict[str, float]]]:
    """Edge by edge, every device's test accuracy in percent with the model of each tier, in the
    model's chosen round.
    """
    edges: dict[str | None, dict[str, dict[str, float]]] = {}
    for score in run.devices():
        if score.part == "test" and score.model in TIERS:
            device = edges.setdefault(score.edge, {}).setdefault(
                score.device, {"examples": score.examples}
            )
            device[score.model] = 100 * (score.accuracy or 0.0)
    return [list(devices.values()) for devices in edges.values()]


def table(data: dict[str, Any]) -> None:
    """Means and standard deviations over the seeds."""
    heads = f"{'last round':>14}  {'chosen on val.':>14}  worst 10 %  MB, server  MB, all links"
    print(f"\n{'':18} {heads}")
    for name, figures in data.items():
        if isinstance(figures, dict):
            method = name.split()[0]
            last = [curve[-1] for curve in figures["curve"]]
            both = "  ".join(
                f"{np.mean(values):6.1f} ± {np.std(values, ddof=1):4.1f} "
                for values in (last, figures["chosen"])
            )
            megabytes = [np.mean(data[f"{method} {key}"]) for key in ("MB", "device MB")]
            worst = np.mean(figures["worst"])
            sent = f"{megabytes[0]:10.0f}  {megabytes[1]:13.0f}"
            print(f"{name:18} {both}  {worst:9.0f}  {sent}")


def picture(data: dict[str, Any], path: Path) -> None:
    """The tree of seed 0 with its models, accuracy by round, the worst-served devices and the
    bytes.
    """
    figure = plt.figure(figsize=(12.5, 5.0))
    draw_tree(figure.add_axes((0.005, 0.01, 0.345, 0.92)), data)
    axes = figure.add_axes((0.395, 0.11, 0.215, 0.79))
    drawn = [_line(data, method, model) for method, model in SHOWN]
    plot(axes, drawn, size=10)
    axes.set(xlabel="round", ylim=(84, 100))
    axes.tick_params(colors=SOFT, labelsize=9.5)
    axes.grid(axis="y", color="#e8ebee", lw=0.8)
    bars(figure.add_axes((0.888, 0.24, 0.1, 0.65)), data)
    sent = {
        key: [float(np.mean(data[f"{method} {key}"])) for method in ("sFedHP", "FedAvg")]
        for key in ("device MB", "MB")
    }
    text = "MB, sFedHP and FedAvg\n"
    text += "all links: {:,.0f} and {:.0f}\n".format(*sent["device MB"])
    text += "at the server: {:.0f} and {:.0f}".format(*sent["MB"])
    figure.text(0.775, 0.09, text, fontsize=10.5, color=INK, linespacing=1.4)
    titles = (
        (0.012, "a model at every tier (seed 0)"),
        (0.37, "test accuracy in %, five seeds"),
        (0.775, "worst 10 % of devices, in %"),
    )
    for x, title in titles:
        figure.text(x, 0.945, title, fontsize=12, color=INK, weight="bold")
    figure.savefig(path, dpi=140, facecolor="white")


def _line(data: dict[str, Any], method: str, model: str) -> Line:
    values = np.array(data[f"{method} {model}"]["curve"])
    style = STYLES[METHODS.index(method)]
    reported = float(np.mean(data[f"{method} {model}"]["chosen"]))
    return Line(f"{method} {model}", COLOURS[TIERS[model]], style, data["rounds"], values, reported)


def draw_tree(axes: Axes, data: dict[str, Any]) -> None:
    """Server, edges, devices, each with the accuracy of its model; below, the same devices as
    others serve them.
    """
    edges = data["sFedHP devices"]
    everybody = [device for devices in edges for device in devices]
    axes.set(xlim=(-0.6, len(edges) - 0.4), ylim=(-0.4, 10.4), aspect="equal")
    axes.axis("off")
    middle = (len(edges) - 1) / 2
    for x, devices in enumerate(edges):
        axes.plot([middle, x], [9.5, 7.6], color=RULE, lw=1.2, zorder=1)
        axes.plot([x, x], [7.6, 6.3], color=RULE, lw=1.2, zorder=1)
        _node(axes, x, 7.6, 0.43, COLOURS["edge"], _mean(devices, "edge"), 9.5)
    _node(axes, middle, 9.5, 0.65, COLOURS["server"], _mean(everybody, "global"), 13)
    axes.text(
        -0.5,
        9.7,
        f"server: {_mean(everybody, 'global'):.1f} %",
        fontsize=10.5,
        color=COLOURS["server"],
    )
    axes.text(
        -0.5, 8.7, f"edges: {_mean(everybody, 'edge'):.1f} %", fontsize=10.5, color=COLOURS["edge"]
    )
    columns = [x for x, devices in enumerate(edges) for _ in devices]
    _rows(axes, 5.4, columns, edges, "personal", "devices, a model each")
    _rows(
        axes,
        2.9,
        columns,
        data["FedAvg devices"],
        "global",
        "the same devices with FedAvg's one model",
    )
    _rows(axes, 0.4, columns, data["Local devices"], "personal", "each device alone")


def _rows(
    axes: Axes,
    top: float,
    columns: list[int],
    edges: list[list[dict[str, float]]],
    model: str,
    text: str,
) -> None:
    """Every device as a square below its edge, the paler the lower its accuracy; white is half
    right, or less.
    """
    colour = COLOURS[TIERS[model]]
    size = 0.31
    everybody = [device for devices in edges for device in devices]
    for k, (column, device) in enumerate(zip(columns, everybody, strict=True)):
        place = k - columns.index(column)
        x = column - 0.47 + size * (place % 3)
        y = top + size * (1 - place // 3)
        shade = max(0.0, device[model] - 50) / 50
        square = Rectangle(
            (x, y), 0.85 * size, 0.85 * size, fc=colour, alpha=shade, ec="none", zorder=2
        )
        frame = Rectangle((x, y), 0.85 * size, 0.85 * size, fc="none", ec=colour, lw=0.5, zorder=3)
        axes.add_patch(square)
        axes.add_patch(frame)
    axes.text(
        -0.5, top - 0.75, f"{text}: {_mean(everybody, model):.1f} %", fontsize=10.5, color=colour
    )


def _mean(devices: list[dict[str, float]], model: str) -> float:
    """The accuracy over all examples of some devices."""
    return float(np.average([d[model] for d in devices], weights=[d["examples"] for d in devices]))


def _node(
    axes: Axes, x: float, y: float, radius: float, colour: str, value: float, size: float
) -> None:
    axes.add_patch(Circle((x, y), radius, fc=colour, ec="white", lw=1.5, zorder=3))
    axes.text(
        x,
        y - 0.02,
        f"{value:.0f}",
        ha="center",
        va="center",
        size=size,
        color="white",
        weight="bold",
        zorder=4,
    )


def bars(axes: Axes, data: dict[str, Any]) -> None:
    """The mean accuracy of the worst-served tenth in the chosen rounds."""
    for k, (method, model) in enumerate(SHOWN):
        values = data[f"{method} {model}"]["worst"]
        mean = float(np.mean(values))
        colour = COLOURS[TIERS[model]]
        axes.barh(-k, mean, 0.62, color=colour, alpha=1.0 if method == "sFedHP" else 0.45)
        axes.text(-3, -k, f"{method} {model}", ha="right", va="center", fontsize=10, color=INK)
        axes.text(mean + 2, -k, f"{mean:.0f}", va="center", fontsize=10, color=INK)
    axes.set(xlim=(0, 100), xticks=[], yticks=[])
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def main() -> None:
    """Train or reuse, print, draw."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "compare.png")
    kept = path.with_suffix(".json")
    if not kept.exists():
        kept.write_text(json.dumps(train()))
    data = json.loads(kept.read_text())
    table(data)
    picture(data, path)
    print(f"\npicture: {path}   figures: {kept}")


if __name__ == "__main__":
    main()
