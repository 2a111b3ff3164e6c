"""A node's model as a file for use without covey, compared with the original."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import covey
from covey.atomic import refused, replacing
from covey.errors import ConfigError, CoveyError, ModelError, meant, needed
from covey.folder import nodes
from covey.folder.formats import FORMATS, ExportedModel, Format, units
from covey.folder.inputs import with_units
from covey.folder.load import MOST_PERSONAL, Loaded
from covey.folder.nodes import NodeAddress
from covey.models import merge
from covey.origin import FAULTS, told
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.snapshot import PRIVATE, Snapshot

ALL = "all"
_EXAMPLES = 64  # on which a file is compared with its model
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""How far outputs may be from the model's, in parts of the largest one, or of 1 if that is more."""


@dataclass(frozen=True)
class Exported:
    """One file, and by how much its outputs differ from those of the run's model."""

    file: str
    format: str
    node: str
    tier: str
    model: str
    round: int
    examples: int
    difference: float
    largest: float  # of the outputs that were compared, in absolute value
    bytes: int


def export(
    run: Loaded, node: NodeAddress, format: Format, model: str | None, out: Path | None
) -> Exported:
    """Write the model of one node, unless what was written disagrees with it."""
    if model is None:
        height = run.tree.tiers.index(node.tier)
        usable = [name for name in run.models() if _height(run, name) <= height]
        order = [*(name for name in MOST_PERSONAL if name in usable), *usable]
        model = max(order, key=lambda name: _height(run, name))
    read = run.snapshot(model)
    _check_holder(run, node, read)
    path = out or _default(run, node, read, format)
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder; name a file, as in {path / 'model'}.")
    examples = _examples(run)
    return _written(run, node, read, format, path, examples)


def export_all(
    run: Loaded,
    format: Format,
    model: str | None,
    out: Path | None,
) -> list[Exported]:
    """Write the model of every node that keeps one, each into a file of its own."""
    if format.name != "safetensors":
        raise ConfigError(
            f"--node all --to {format.name}: all models at once go into safetensors files alone; "
            "name one node, or leave out --to."
        )
    read = run.snapshot(model)
    folder = out or RunFolder(run.place).export
    if folder.is_file():
        raise ConfigError(f"--out {folder} is a file; with --node all, name a folder.")
    examples = _examples(run)
    written = []
    if PRIVATE in read.beside:  # each device has private layers of the model
        holders = nodes.nodes(run, run.tree.tiers[-1])
    else:
        kept = set(read.ids.tolist())
        holders = [node for node in nodes.nodes(run, read.tier) if node.number in kept]
    for node in holders:
        path = folder / _default(run, node, read, format).name
        written.append(_written(run, node, read, format, path, examples))
    return written


def format_of(name: str) -> Format:
    """The format of this name, with the libraries that it needs."""
    if name not in FORMATS:
        hint = meant(name, FORMATS)
        raise ConfigError(f"--to {name}{hint}: choose one of {', '.join(FORMATS)}.")
    if name == "onnx":
        for library in ("onnx", "onnxscript", "onnxruntime"):
            needed(library, extra="onnx", to="write an ONNX file and check it")
    return FORMATS[name]


def _height(run: Loaded, model: str) -> int:
    """Which tier keeps a model, counted from the server."""
    return run.tree.tiers.index(run.snapshot(model).tier)


def _check_holder(run: Loaded, node: NodeAddress, read: Snapshot) -> None:
    """An error unless the node alone decides what the model predicts."""
    tiers = run.tree.tiers
    last = tiers[-1]
    if tiers.index(read.tier) > tiers.index(node.tier):
        raise ConfigError(
            f"--node {node.name}: {read.model!r} is kept by {read.tier}s, not by the {node.tier}; "
            f"name one of them, as in --node {nodes.nodes(run, read.tier)[0].name}."
        )
    if PRIVATE in read.beside and node.tier != last:
        raise ConfigError(
            f"--node {node.name}: every device predicts with private layers of its own, so that "
            f"{read.model!r} alone is no whole model; name a device, as in "
            f"--node {nodes.nodes(run, last)[0].name}."
        )


def _written(
    run: Loaded,
    node: NodeAddress,
    read: Snapshot,
    format: Format,
    path: Path,
    examples: Tensor,
) -> Exported:
    """Write a file beside its place, compare it with the run's model, then put it there."""
    model = _model(run, node, read, format)
    under = nodes.devices_under(run, node)
    answered = []
    for x in (examples, examples[:1]):  # a file must take many examples, and one
        outputs = run.outputs(x, device=under[0], model=read.model, pooled=under)
        answered.append((x, outputs))
    with refused(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, format.suffix) as part:
            try:
                format.write(model, examples, part)
            except (CoveyError, OSError):
                raise
            except FAULTS as error:
                raise ModelError(
                    f"{type(model.network).__name__} cannot be written as {format.name}: "
                    f"{told(error)} Export it as safetensors, which holds the parameters alone."
                ) from error
            difference = _compared(model, format, part, answered)
    return Exported(
        file=str(path),
        format=format.name,
        node=node.name,
        tier=node.tier,
        model=read.model,
        round=read.round + 1,
        examples=len(examples),
        difference=difference,
        largest=max(float(outputs.abs().max()) for _, outputs in answered),
        bytes=path.stat().st_size,
    )


def _compared(
    model: ExportedModel,
    format: Format,
    part: Path,
    answered: Sequence[tuple[Tensor, Tensor]],
) -> float:
    """The max difference between a file's outputs and the run's; an error if they disagree.

    `answered` are batches of examples, each with the run's outputs.
    """
    predict = format.read(model, part)
    difference = 0.0
    limit = _TOLERANCE[model.dtype]
    for examples, expected in answered:
        with torch.no_grad():
            outputs = predict(examples)
        if outputs.shape != expected.shape:
            raise ModelError(
                f"the {format.name} file answers {tuple(outputs.shape)} where the model answers "
                f"{tuple(expected.shape)}; it was not kept. Export the model in another format."
            )
        scale = max(1.0, float(expected.abs().max()))
        error = float((outputs - expected).abs().max())
        if not error <= limit * scale:
            raise ModelError(
                f"the {format.name} file differs from the model by {error:.1e}, more than "
                f"{limit * scale:.1e}; it was not kept. Export the model in another format."
            )
        difference = max(difference, error)
    return difference


def _model(run: Loaded, node: NodeAddress, read: Snapshot, format: Format) -> ExportedModel:
    """The network of a node, and what its file says of it."""
    under = nodes.devices_under(run, node)
    if run.predicts_otherwise(under[0], read.model):
        raise ConfigError(
            f"{run.config.method()} predicts with {read.model!r} otherwise than by the network's "
            "outputs, which no exported file holds; use covey predict, or --model global."
        )
    network = run.module(read.model, under[0], pooled=under, scaled=True)
    network = merge(network.cpu()).eval()
    form = run.form
    scales_itself = format.name != "safetensors"
    facts = {
        "covey": covey.__version__,
        "algorithm": run.config.method(),
        "model": read.model,
        "node": node.name,
        "tier": node.tier,
        "round": read.round + 1,
        "seed": run.seed,
        "shape": list(form.shape),
        "dtype": str(run.experiment.dtype).removeprefix("torch."),
        **(units(None, None) if scales_itself else units(form.scaling, form.target)),
        "outputs": "values" if run.classes is None else "logits",
        "classes": run.class_names,
        "features": list(run.names.features),
    }
    if read.statistics is not None and len(under) == 1:
        facts["statistics"] = f"those of the training examples of {node.name}"
    elif read.statistics is not None:
        facts["statistics"] = f"those of the examples of {len(under)} devices together"
    return ExportedModel(network, with_units(network, run.form), run.experiment.dtype, facts)


def _examples(run: Loaded) -> Tensor:
    """Some examples of all devices, in the units of the data and the type of the model."""
    x = run.experiment.data.x
    x = x[torch.linspace(0, len(x) - 1, min(_EXAMPLES, len(x))).long()]
    if run.experiment.data.tokens is not None:
        return x.contiguous()
    scaling = run.form.scaling
    if scaling is not None and scaling.kind != "none":
        x = scaling.undone(x.double())
    return x.to(run.experiment.dtype).contiguous()


def _default(run: Loaded, node: NodeAddress, read: Snapshot, format: Format) -> Path:
    """RUN/export/d2-pump-03-personal.onnx; names of nodes may hold any characters."""
    words = [node.code, read.model]
    if node.name != node.code:
        words.insert(1, node.name)
    stem = re.sub(r"[^A-Za-z0-9_.-]", "-", "-".join(words))[:100]
    return RunFolder(run.place).export / f"{stem}{format.suffix}"
