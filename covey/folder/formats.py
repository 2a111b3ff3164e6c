"""Files that hold one model for use without covey: safetensors, ONNX, TorchScript, torch.export.

A safetensors file holds the parameters alone, and its metadata says how inputs are scaled. The
other files hold the whole computation, scaling included. Each format also reads its own files, so
that what was written can be compared with the model.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from covey.data import Scaling
from covey.errors import needed
from covey.runs.saved import checkpoint

Facts = dict[str, Any]
"""What a file says of its model, as JSON can hold it."""

Predict = Callable[[Tensor], Tensor]
KEY = "covey"
"""Under this name every format keeps the facts, as one JSON text."""


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """What is exported: a network, the whole in the units of the data, and what a file says."""

    network: nn.Module
    whole: nn.Module
    dtype: torch.dtype
    facts: Facts


class Format(Protocol):
    """One kind of file: its suffix, how it is written from a model, how it is read again."""

    name: str
    suffix: str

    def write(self, model: ExportedModel, example: Tensor, path: Path) -> None:
        """Write the model; `example` are inputs that it takes."""

    def read(self, model: ExportedModel, path: Path) -> Predict:
        """What the file computes; it is of this model."""


def units(scaling: Scaling | None, target: Scaling | None) -> Facts:
    """How a user of a file's network scales its inputs, and its answers back."""
    facts: Facts = {"inputs": "as measured", "scaling": None, "target": None}
    if scaling is not None and scaling.kind != "none":
        facts["inputs"] = "scaled by `scaling`"
        facts["scaling"] = {"rule": "(x - shift) * factor", **scaling.as_dict()}
    if target is not None:
        facts["target"] = {"rule": "output / factor + shift", **target.as_dict()}
    return facts


class Safetensors:
    """The parameters alone."""

    name = "safetensors"
    suffix = ".safetensors"

    def write(self, model: ExportedModel, example: Tensor, path: Path) -> None:
        state = model.network.state_dict()
        tensors = {name: value.detach().clone().contiguous() for name, value in state.items()}
        checkpoint.write_tensors(path, tensors, {KEY: json.dumps(model.facts)})

    def read(self, model: ExportedModel, path: Path) -> Predict:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()[KEY])
            state = checkpoint.tensors_of(file)
        network = copy.deepcopy(model.network)
        for value in network.state_dict().values():
            value.zero_()
        network.load_state_dict(state)
        scaling, target = (Scaling.read(facts[key]) for key in ("scaling", "target"))

        def predict(x: Tensor) -> Tensor:
            y: Tensor = network(x if scaling is None else scaling(x))
            return y if target is None else target.undone(y)

        return predict


class TorchScript:
    """The computation as torch.jit traces it."""

    name = "torchscript"
    suffix = ".pt"

    def write(self, model: ExportedModel, example: Tensor, path: Path) -> None:
        with _quiet():
            traced = torch.jit.trace(model.whole, example, check_trace=False)
            torch.jit.save(traced, path, _extra_files={KEY: json.dumps(model.facts)})

    def read(self, model: ExportedModel, path: Path) -> Predict:
        with _quiet():
            module: nn.Module = torch.jit.load(path)
        return module


class TorchExport:
    """The computation as a program of torch.export."""

    name = "torch.export"
    suffix = ".pt2"

    def write(self, model: ExportedModel, example: Tensor, path: Path) -> None:
        with _quiet():
            program = torch.export.export(model.whole, (example,), dynamic_shapes=_any_batch())
            torch.export.save(program, path, extra_files={KEY: json.dumps(model.facts)})

    def read(self, model: ExportedModel, path: Path) -> Predict:
        with _quiet():
            module: nn.Module = torch.export.load(path).module()
        return module


class Onnx:
    """The computation as an ONNX graph."""

    name = "onnx"
    suffix = ".onnx"

    def write(self, model: ExportedModel, example: Tensor, path: Path) -> None:
        onnx = needed("onnx", extra="onnx", to="write an ONNX file")
        needed("onnxscript", extra="onnx", to="write an ONNX file")
        with _quiet():
            program = torch.onnx.export(
                model.whole,
                (example,),
                input_names=["x"],
                output_names=["y"],
                dynamic_shapes=_any_batch(),
                dynamo=True,
                verbose=False,
            )
        assert program is not None
        proto = program.model_proto
        onnx.helper.set_model_props(proto, {KEY: json.dumps(model.facts)})
        onnx.checker.check_model(proto)
        onnx.save(proto, path)

    def read(self, model: ExportedModel, path: Path) -> Predict:
        runtime = needed("onnxruntime", extra="onnx", to="compare an ONNX file with its model")
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

        def predict(x: Tensor) -> Tensor:
            (y,) = session.run(["y"], {"x": x.numpy()})
            return torch.from_numpy(np.asarray(y))

        return predict


EVERY: tuple[Format, ...] = (Safetensors(), Onnx(), TorchScript(), TorchExport())
FORMATS = {format.name: format for format in EVERY}


def _any_batch() -> tuple[dict[int, Any]]:
    """The first axis of the inputs may have any length."""
    return ({0: torch.export.Dim("batch")},)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' warnings about themselves: what they write is checked."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
