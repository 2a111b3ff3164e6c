"""`covey doctor`: what this machine can run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rich.table import Table

from covey.cli.options import AsJson, What, load_and_note, split
from covey.folder.terminal import Console

if TYPE_CHECKING:
    from covey.files.config import Config

_EXTRAS = {
    "hub": ("datasets", "PIL"),
    "parquet": ("pyarrow",),
    "images": ("PIL",),
    "demlearn": ("scipy",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "optuna": ("optuna",),
    "deploy": ("grpc", "cryptography"),
}
"""The modules of every optional extra of pyproject.toml that a user may want."""


def doctor(arguments: What = None, as_json: AsJson = False) -> None:
    """Print versions, devices, the compiled kernel, extras, data sets, the engine, disk and memory.

    Examples:

      covey doctor

      covey doctor examples/permfl.toml
    """
    path, changes = split(arguments)
    console = Console(stderr=True)
    config = load_and_note(console, path, changes, demo=True)
    facts = _diagnose(config)
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        text = str(value)
        if isinstance(value, dict):
            text = ", ".join(f"{key} {fact}" for key, fact in value.items())
        table.add_row(name, text)
    Console(soft_wrap=False).print(table)


def _diagnose(config: Config) -> dict[str, Any]:
    import torch

    from covey import native
    from covey.folder.outcome import environment
    from covey.runs.run import Run

    facts = environment(sys.argv)
    experiment = config.experiment(config.seed)
    run = Run(experiment)
    data = experiment.data
    algorithm = type(experiment.algorithm).__name__
    extras = {}
    for extra, modules in _EXTRAS.items():
        lacking = ", ".join(module for module in modules if find_spec(module) is None)
        fix = f"lacks {lacking} (in the clone: pip install '.[{extra}]')"
        extras[extra] = fix if lacking else "installed"
    cuda = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    return {
        "versions": facts["versions"],
        "machine": facts["machine"],
        "experiment": f"{config.name or 'unnamed'}: {algorithm} on {run.runtime.tree}",
        "engine": run.engine,
        "compiled kernel": native.status(),
        "data": f"{data.name}: {len(data.x)} examples, {data.devices} devices",
        "data built in": "digits, synthetic",
        "data sets": _data_sets(),
        "extras": extras,
        "devices": ", ".join(["cpu", *(f"cuda:{k} {name}" for k, name in enumerate(cuda))]),
        "disk free": f"{shutil.disk_usage('.').free / 2**30:.1f} GiB",
        "memory free": memory_free(),
    }


def memory_free() -> str:
    """The free memory, where the system says it: macOS and Windows do not."""
    if sys.platform == "win32" or "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return "unknown on this system"
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{pages / 2**30:.1f} GiB"


def _data_sets() -> dict[str, str]:
    """Which of the sets that are not built in lie on this machine, and where."""
    from covey.data.published import inventory

    sets = inventory.present()
    present = [f"{status.name} ({status.source})" for status in sets if status.present]
    lacking = [status.name for status in sets if not status.present]
    out = {"here": ", ".join(present) or "none"}
    if lacking:
        out["not here"] = f"{', '.join(lacking)} (covey data says how to get them)"
    return out
