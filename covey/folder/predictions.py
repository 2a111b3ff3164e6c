"""Predictions of the examples in a file: a row for each, with the model that answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from covey.data.tables.files import unlabelled
from covey.data.tables.options import ROLES, TableOptions
from covey.data.tables.tables import Table
from covey.errors import ConfigError
from covey.folder.load import Loaded


def predictions(
    run: Loaded,
    file: Path,
    device: str | None,
    model: str | None,
    unknown: str | None,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """A row for each example, in order; `say` hears what was done to the file's rows.

    `device` has the model that predicts; None: each row's own. `unknown` is the model for devices
    that did not train; None: they are refused.
    """
    table = _examples(run, file)
    for note in table.notes:
        say(f"{file}: {note}")
    owners = _owners(run, table, file, device, model, unknown)
    rows: list[dict[str, Any]] = [{} for _ in owners]
    for owner, chosen in dict.fromkeys(owners):
        places = [row for row, pair in enumerate(owners) if pair == (owner, chosen)]
        answering = run.answering(owner, chosen)
        for row, cells in zip(places, _cells(run, table.x[places], owner, chosen), strict=True):
            name = owner if owner is not None or not table.device else table.device[row]
            rows[row] = {"model": answering, **cells}
            if name is not None:
                rows[row] = {"device": name, **rows[row]}
    return rows


def _examples(run: Loaded, file: Path) -> Table:
    """The rows of the file, all of them fit to be predicted."""
    data = run.config.data
    names = [name for name in (*ROLES, "decimal") if isinstance(data.get(name), str | list)]
    table = unlabelled(
        file,
        TableOptions(**{name: data[name] for name in names}),
        features=run.names.features,
        shape=run.form.shape,
        encoding=run.form.encoding,
    )
    table.faults.refuse("correct or remove them")
    return table


def _owners(
    run: Loaded,
    table: Table,
    file: Path,
    device: str | None,
    model: str | None,
    unknown: str | None,
) -> list[tuple[str | None, str | None]]:
    """Whose model each row is predicted by, None where all have the same, and its name."""
    if device is not None:
        run.module(device=device)  # which refuses a name that the run does not know
        return [(device, model)] * len(table)
    if run.alike(model) and table.device is not None:
        return [(owner, model) for owner in run.owners(table.device, model)]
    if table.device is None and (run.alike(model) or run.source.only_device is not None):
        return [(None, model)] * len(table)
    if table.device is None:
        name = run.snapshot(model).model
        raise ConfigError(
            f"every device has a {name!r} model of its own or of its edge, "
            f"and {file} has no column of devices;"
            f" name a device, as in --device {run.device_names[0]}, or take --model global."
        )
    trained = set(run.device_names)
    reason = "did not train in this run"
    if run.source.only_device is not None:
        trained = {run.source.only_device}
        reason = f"has its models elsewhere; these are those of device {run.source.only_device}"
    if unknown is not None:
        if not run.experiment.algorithm.learns_global or not run.alike(unknown):
            fix = "train models for such devices by covey personalize, or give --device NAME"
            raise ConfigError(f"--unknown {unknown}: this run has no whole global model; {fix}.")
        return [(name, model) if name in trained else (None, unknown) for name in table.device]
    for row, name in enumerate(table.device):
        if name not in trained:
            table.reject([row], f"device {name!r} {reason}")
    table.faults.refuse(
        "correct them, or predict by --unknown global, --device NAME or --model global"
    )
    return [(name, model) for name in table.device]


def _cells(
    run: Loaded,
    x: Any,
    device: str | None,
    model: str | None,
) -> list[dict[str, Any]]:
    """The predictions of a model, a column each."""
    if run.classes is None:
        values = np.asarray(run.predict(x, device=device, model=model))
        heads = ["prediction"]
        table = values.reshape(len(values), -1)
        if values.ndim > 1:
            kind = "probability" if run.yes_no else "prediction"
            heads = [f"{kind}_{label}" for label in run.names.labels or range(table.shape[1])]
        return [dict(zip(heads, row, strict=True)) for row in table.tolist()]
    names = run.class_names
    shares = run.probabilities(x, device=device, model=model)
    if shares.ndim == 3:
        by_position = shares.argmax(2).tolist()
        return [{f"prediction_{t}": names[k] for t, k in enumerate(row)} for row in by_position]
    heads = [f"probability_{name}" for name in names]
    return [
        {"prediction": names[best], **dict(zip(heads, (round(p, 6) for p in row), strict=True))}
        for best, row in zip(shares.argmax(1).tolist(), shares.tolist(), strict=True)
    ]
