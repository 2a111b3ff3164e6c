"""`covey plan`: every device's bandwidth, pruning ratio, latency and energy.

It also says which devices are left out, and why.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.table import Table

from covey.atomic import refused
from covey.cli.options import AsJson
from covey.errors import ConfigError, meant
from covey.fields import read
from covey.files import config
from covey.folder.show import plural
from covey.folder.terminal import Console
from covey.radio.plan import Plan
from covey.radio.plan import plan as make
from covey.radio.policies import POLICIES, fixed
from covey.radio.radio import Radio
from covey.radio.scenario import ScenarioForm, ScenarioSettings, load

SWEEPS = {
    "deadline": ("deadline", "radio.deadline"),
    "bandwidth": ("cells.bandwidth", "radio.cells.bandwidth"),
    "devices": ("devices.count", "data.devices"),
}
"""The key of a scenario and of an experiment, by the name of what is swept."""
_ROWS = 40  # devices that a table on a terminal lists
_MOST_ANSWERS = 100_000_000  # of all devices in all rounds of a plan, which are held at once


def plan(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="SCENARIO.toml",
            help=escape("The scenario, or an experiment with a table [radio]."),
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE ...]", help="Changes to it."),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(metavar="NAME=A,B,...", help="Of deadline, bandwidth or devices."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The picture to write. Default: NAME.png here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Also say which devices are starved or left out, and why.

    Examples:

      covey plan examples/plan/scenario.toml

      covey plan examples/plan/scenario.toml policy=fair "deadline=40 ms" rounds=100

      covey plan examples/plan/scenario.toml --sweep "deadline=15 ms,20 ms,25 ms,30 ms"

      covey plan examples/radio.toml    the plans of a run's rounds, if all devices are asked
    """
    from covey.radio.plan_picture import draw

    changes = changes or []
    described = _described(file, changes)
    done = _plan(described)
    name, points = _swept(file, changes, sweep) if sweep is not None else ("", [])
    picture = out or Path(f"{described.file.name}.png")
    with refused(picture):
        draw(
            done,
            picture,
            f"{described.file.name}: {done.policy}, deadline {described.file.deadline}",
            sweep=name,
            points=points,
        )
    others = [
        make(described.scenario, policy, rounds=described.file.rounds).summary()
        for policy in POLICIES.values()
    ]
    if as_json:
        facts = {
            "summary": done.summary(),
            "devices": rows(done),
            "policies": others,
            "sweep": points,
            "picture": str(picture),
        }
        print(json.dumps(facts))
        return
    _show(Console(), done, others, name, points)
    Console().print(f"picture: {picture}")


def _described(file: Path, changes: list[str]) -> ScenarioForm:
    """A scenario, or that of an experiment."""
    if not _is_experiment(file):
        return load(file, changes)
    settings = config.load(file, changes)
    experiment = settings.experiment(settings.seed)
    radio = experiment.radio
    work = experiment.work()
    if not isinstance(radio, Radio):
        raise ConfigError(
            f"{file} is an experiment without a table [radio]; examples/radio.toml has one."
        )
    if work is None:
        name = type(experiment.algorithm).__name__
        raise ConfigError(
            f"{name} does not state the work of its devices, so no plan can be made; "
            "take fedalt, fedsim, or pruned by plan."
        )
    usual = "optimal" if experiment.algorithm.planned else "personal_only"
    scenario = radio.scenario(work, seed=settings.seed)
    table = {
        "name": settings.title,
        "policy": radio.policy.name if radio.policy else usual,
        "deadline": f"{1e3 * scenario.deadline:g} ms",
        "rounds": settings.rounds,
    }
    return ScenarioForm(read(ScenarioSettings, table, ""), scenario)


def _is_experiment(file: Path) -> bool:
    try:
        return "algorithm" in tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False  # and what is wrong is said where it is read as a scenario


def _plan(described: ScenarioForm) -> Plan:
    file = described.file
    devices = len(described.scenario.devices)
    if file.rounds * devices > _MOST_ANSWERS:
        most = _MOST_ANSWERS // devices
        raise ConfigError(f"rounds = {file.rounds} of {devices} devices: give {most} at most.")
    policy = fixed(file.ratio) if file.policy == "fixed" else POLICIES[file.policy]
    return make(described.scenario, policy, rounds=file.rounds)


def _swept(file: Path, changes: list[str], sweep: str) -> tuple[str, list[dict[str, Any]]]:
    """The name of what is swept, and the summary at each of its values."""
    name, _, values = sweep.partition("=")
    name = name.strip()
    if name not in SWEEPS or not values.strip():
        raise ConfigError(
            f"--sweep {sweep!r}{meant(name, SWEEPS)} must be one of {', '.join(SWEEPS)} and "
            'values, such as "deadline=15 ms,25 ms".'
        )
    key = SWEEPS[name][_is_experiment(file)]
    points = []
    for value in map(str.strip, values.split(",")):
        summary = _plan(_described(file, [*changes, f"{key}={value}"])).summary()
        points.append({name: value, **summary})
    return name, points


def rows(plan: Plan) -> list[dict[str, Any]]:
    """One entry per device, means over the rounds it is asked in, as JSON can hold them."""
    asked = plan.asked
    devices = plan.scenario.devices
    times = torch.clamp(asked.sum(0), min=1)
    means = {
        "share": plan.share,
        "ratio": plan.ratio * asked,
        "latency_ms": 1e3 * plan.formula.latency,
        "latency_ms_encoded": 1e3 * plan.encoded.latency,
        "compute_ms": 1e3 * plan.formula.compute,
        "upload_ms": 1e3 * plan.formula.upload,
        "joules": plan.formula.joules,
        "mbit_per_s": plan.rate / 1e6,
    }
    sums = {key: (value * asked).sum(0) for key, value in means.items()}
    columns = {key: (total / times).tolist() for key, total in sums.items()}
    columns |= {
        "asked": asked.sum(0).tolist(),
        "starved": plan.starved.sum(0).tolist(),
        "late": plan.late().sum(0).tolist(),
    }
    return [
        {
            "device": devices.name(device),
            "cell": int(devices.cell[device]),
            "distance_m": float(devices.distance[device]),
            **{key: column[device] for key, column in columns.items()},
            "why": _why(plan, device),
        }
        for device in range(len(devices))
    ]


def _why(plan: Plan, device: int) -> str:
    """The reason in the first round that has one."""
    trouble = (~plan.asked | plan.starved | plan.late())[:, device]
    troubled = trouble.nonzero()[:, 0].tolist()
    if not troubled:
        return ""
    row = troubled[0]
    state = "starved"
    if not plan.asked[row, device]:
        state = "excluded"
    elif plan.late()[row, device]:
        state = "late"
    when = ""
    if len(plan.rounds) > 1:
        when = f" in {len(troubled)} of {len(plan.rounds)} rounds"
    return f"{state}{when}: {plan.why(device, row)}"


_OF_DEVICES = {
    "device": lambda row: row["device"],
    "cell": lambda row: str(row["cell"]),
    "m": lambda row: f"{row['distance_m']:.0f}",
    "band %": lambda row: f"{100 * row['share']:.2f}",
    "pruned %": lambda row: f"{100 * row['ratio']:.2f}",
    "Mbit/s": lambda row: f"{row['mbit_per_s']:.2f}",
    "ms": lambda row: f"{row['latency_ms']:.2f}",
    "ms encoded": lambda row: f"{row['latency_ms_encoded']:.2f}",
    "mJ": lambda row: f"{1e3 * row['joules']:.2f}",
    "asked": lambda row: str(row["asked"]),
}
_OF_PLANS = {
    "mean %": lambda plan: f"{100 * plan['mean_ratio']:.2f}",
    "worst %": lambda plan: f"{100 * plan['worst_ratio']:.2f}",
    "starved": lambda plan: _count(plan["starved"]),
    "excluded": lambda plan: _count(plan["left_out"]),
    "late": lambda plan: _count(plan["late"]),
    "ms": lambda plan: f"{plan['round_ms']:.2f}",
    "encoded": lambda plan: f"{plan['round_ms_encoded']:.2f}",
    "mJ": lambda plan: f"{1e3 * plan['joules']:.1f}",
}


def _count(mean: float) -> str:
    """A mean number of devices, with a decimal only where it has one."""
    if mean == int(mean):
        return f"{mean:g}"
    return f"{mean:.1f}"


def _table(
    columns: Mapping[str, Callable[[dict[str, Any]], str]], entries: Sequence[dict[str, Any]]
) -> Table:
    """A table with the words that each column makes of every entry."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for entry in entries:
        table.add_row(*(words(entry) for words in columns.values()))
    return table


def _show(
    console: Console,
    plan: Plan,
    others: list[dict[str, Any]],
    name: str,
    points: list[dict[str, Any]],
) -> None:
    scenario = plan.scenario
    sizes = [
        plural(len(scenario.devices), "device"),
        plural(len(scenario.cells), "cell"),
        plural(len(plan.rounds), "round"),
    ]
    limits = f"deadline {1e3 * scenario.deadline:g} ms, max ratio {scenario.rho_max:g}"
    console.print(f"{plan.policy}: {', '.join(sizes)}, {limits}")
    entries = rows(plan)
    console.print(_table(_OF_DEVICES, entries[:_ROWS]))
    if len(entries) > _ROWS:
        console.print(f"and {len(entries) - _ROWS} more; --json has them all")
    for row in [row for row in entries if row["why"]][:_ROWS]:
        console.print(f"[yellow]{escape(row['device'])}[/] {escape(row['why'])}", markup=True)
    if certificate := plan.summary()["certificate"]:
        figures = [f"{key} {value:.1e}" for key, value in certificate.items()]
        console.print(f"certificate: {', '.join(figures)}")
    console.print(
        "\nall policies, per round: pruning ratio; devices starved, excluded and late; "
        "time by formula and as encoded (with header and mask); energy"
    )
    by_policy = {"policy": lambda row: str(row["policy"]), **_OF_PLANS}
    console.print(_table(by_policy, others))
    if points:
        console.print(f"\nsweep of {name}")
        by_value = {name: lambda row: str(row[name]), **_OF_PLANS}
        console.print(_table(by_value, points))
