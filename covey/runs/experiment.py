"""An experiment: everything that decides a run, as one plain frozen description."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import isfunction
from typing import Any, Literal

import torch
from torch import nn

from covey.codecs import codec
from covey.data import Shards
from covey.engine.layout import Space, private_default
from covey.engine.population import block_size
from covey.engine.task import Batches, Loss, resolved_loss
from covey.errors import ConfigError, DataError, shown
from covey.installed import declared
from covey.kernel.algorithm import LARGEST, Algorithm
from covey.kernel.nodes import Idle
from covey.links.spec import Spec, wires
from covey.origin import FAULTS
from covey.runs import source
from covey.tree import Tree
from covey.wireless import Radio, Work

_PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Experiment:
    """What to run. Only the first five have no default; `covey.run(experiment)` runs it.

    Every `score_every` rounds, and in the last, every kept model is scored on `parts` of the data, and every
    `score_train_every` rounds on the training part too, which takes longer. `idle` says what devices that are not asked do:
    nothing, or train as the papers have it. `codec` is one name for all links, or one per link such as {"server-edge": "bitmap",
    "edge-device": {"down": "dense", "up": {"name": "int8", "update": True}}} (covey/links/spec.py). `protocol="paper"` trains on
    the validation part too and reports the round that was best on test. `private`, a pattern or several, says which layers stay
    on the device where the algorithm splits models: "conv*" for a kind of layer, "head" for the last, or names of layers or
    parameters; "" for none; "auto" for the last layer (Pruned: the convolutions, if there are any), which the run's
    notes name. `start="seed"` initialises every layer anew from the seed, "module" starts from the values the module came with,
    for instance a pretrained one. `workers` (None: as many as torch has threads, fewer for small models) and `memory` (bytes for
    rows in training) change speed, never a result; so does `capture`, which on a GPU turns the devices' program into a CUDA graph
    where it can. `loss="auto"` is cross_entropy for classes and squared_error for numbers; whole-number labels are
    numbers where squared_error, also called mse, is named. `holdout_devices`, a number or a list of devices, take no
    part in training: when models are scored, so is what each of them makes of the models it finds
    (covey/runs/newcomers.py). With a `radio` every round has seconds and joules, and an algorithm may prune as its plan
    says (covey/wireless/radio.py).
    """

    algorithm: Algorithm
    data: Shards
    model: nn.Module
    tree: Tree
    rounds: int
    loss: Loss = "auto"
    l2: float = 0.0
    private: str | tuple[str, ...] = "auto"
    seed: int = 0
    idle: Idle = "skip"
    codec: Spec = "dense"
    batches: Batches = "uniform"
    protocol: Literal["honest", "paper"] = "honest"
    start: Literal["seed", "module"] = "seed"
    score_every: int = 1
    score_train_every: int | None = None
    parts: tuple[str, ...] = ("validation", "test")
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    workers: int | None = None
    memory: int = 2**31
    capture: bool = True
    holdout_devices: int | tuple[int, ...] = 0
    radio: Radio | None = None

    def __post_init__(self) -> None:
        for name, kind, example in _KINDS:
            if not isinstance(getattr(self, name), kind) or isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} = {shown(getattr(self, name))}: give {example}.")
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"seed = {shown(self.seed)}: give a whole number of 64 bits.")
        if isinstance(self.private, str) and self.private == "auto":
            object.__setattr__(self, "private", self._private_default())
        for name, what in (("private", "a pattern or a list of patterns"), ("parts", "a list of parts")):
            value = getattr(self, name)
            listed = isinstance(value, str | list | tuple) and all(isinstance(v, str) for v in value)
            if not listed:
                raise ConfigError(f"{name} = {shown(value)}: give {what}.")
        patterns = (self.private,) if isinstance(self.private, str) else tuple(self.private)
        object.__setattr__(self, "private", tuple(pattern for pattern in patterns if pattern))
        object.__setattr__(self, "parts", tuple(self.parts))
        for name, most in _COUNTS.items():
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                rule = f"a whole number of 1 or more, {most} at most"
                raise ConfigError(f"{name} = {shown(value)} must be {rule}.")
        for name, choices in _CHOICES.items():
            if not _among(getattr(self, name), choices):
                rule = f"choose one of {', '.join(map(repr, choices))}"
                raise ConfigError(f"{name} = {shown(getattr(self, name))}: {rule}.")
        number = isinstance(self.l2, int | float) and not isinstance(self.l2, bool)
        if not number or not 0 <= self.l2 <= LARGEST:
            raise ConfigError(f"l2 = {shown(self.l2)} must be a number of 0 or more, {LARGEST:g} at most.")
        if not isinstance(self.loss, str) and not callable(self.loss):
            raise ConfigError(f"loss = {shown(self.loss)}: give the name of a loss or a function.")
        if not isinstance(self.codec, str | Mapping):
            raise ConfigError(f"codec = {shown(self.codec)}: give a codec's name or a table.")
        if not isinstance(self.capture, bool):
            raise ConfigError(f"capture = {shown(self.capture)} must be True or False.")
        if not self.parts or set(self.parts) - set(_PARTS):
            raise ConfigError(f"parts = {shown(self.parts)}: give one or more of {', '.join(_PARTS)}.")
        if self.private and not self.algorithm.splits:
            name = type(self.algorithm).__name__
            why = f"but {name} shares all layers, so they would be sent; leave it out"
            raise ConfigError(f"private = {shown(self.private)}, {why}.")
        if self.idle == "train" and not self.algorithm.idle_trains:
            name = type(self.algorithm).__name__
            raise ConfigError(f"idle = 'train', but {name} counts on what devices keep when they are asked; use 'skip'.")
        self._check_loss()
        if self.data.devices != self.tree.devices:
            raise DataError(f"the data has {self.data.devices} devices, the tree {self.tree.devices}; they must be the same.")
        self._check_holdout()
        self._check_radio()
        _check_device(self.device)

    def _private_default(self) -> tuple[str, ...]:
        if not self.algorithm.splits:
            return ()
        return private_default(self.model, self.algorithm.private_default)

    def _check_holdout(self) -> None:
        wanted, devices = self.holdout_devices, self.tree.devices
        ids: tuple[Any, ...] = ()
        if isinstance(wanted, int) and not isinstance(wanted, bool) and 0 <= wanted <= devices:
            ids, fits = tuple(range(wanted)), True
        elif isinstance(wanted, list | tuple):
            ids = tuple(wanted)
            whole = all(isinstance(d, int) and not isinstance(d, bool) and 0 <= d < devices for d in ids)
            fits = whole and len(set(ids)) == len(ids)
            object.__setattr__(self, "holdout_devices", ids)
        else:
            fits = False
        if not fits:
            what = f"how many of the {devices} devices, or a list of different ones, 0 to {devices - 1}"
            raise ConfigError(f"holdout_devices = {shown(wanted)}: give {what}.")
        if len(ids) == devices:
            what = f"leaves none of the {devices} devices to train on"
            raise ConfigError(f"holdout_devices = {shown(wanted)} {what}.")

    def _check_loss(self) -> None:
        """Replace "auto" and "mse" by the loss they mean, and labels by numbers where numbers are to be predicted."""
        loss = resolved_loss(self.loss, self.data)
        object.__setattr__(self, "loss", loss)
        if loss == "squared_error":
            object.__setattr__(self, "data", self.data.numbers())
        if loss == "cross_entropy" and self.data.classes is None and self.data.y.ndim == 1:
            raise ConfigError(
                "loss = 'cross_entropy', but the targets are numbers, not classes; leave loss out for squared_error, "
                "or give integer labels."
            )

    def _check_radio(self) -> None:
        name = type(self.algorithm).__name__
        if self.radio is None:
            return
        if not isinstance(self.radio, Radio):
            raise ConfigError(f"radio = {shown(self.radio)}: give a covey.wireless.Radio.")
        self.radio.fits(self.tree)
        if self.radio.late == "drop" and not self.algorithm.idle_trains:
            raise ConfigError(f"radio: late = 'drop', but {name} counts on every answer; use 'wait'.")
        if self.idle == "train" and self.algorithm.planned:
            raise ConfigError("idle = 'train', but a plan gives ratios to those who are asked alone; use 'skip'.")

    def fingerprint(self) -> dict[str, str]:
        """What decides the bits of a round, each as text or a hash; two experiments that agree can share a checkpoint."""
        links = self.codec
        if not isinstance(links, str):
            links = json.dumps(links, sort_keys=True, default=str)
        kind = type(self.algorithm)
        out = {
            "algorithm": describe(self.algorithm),
            "code": f"{kind.__module__}.{kind.__qualname__} {source.digest([kind])}",
            "data": self.data.fingerprint(),  # before what follows from it: shapes of the model, the loss, the tree
            "model": self._model(),
            "initial": _digest(self.initial()),
            "loss": _name(self.loss),
            "codec": links + _codec_code(self.codec),
        }
        out |= {"tree": f"{self.tree.tiers} {self.tree.children}"}
        plain = ("l2", "private", "seed", "idle", "batches", "protocol", "start", "dtype", "holdout_devices")
        out |= {} if self.radio is None else {"radio": str(self.radio)}
        return {name: str(getattr(self, name)) for name in plain} | out  # simple facts first: the first difference is named

    def initial(self) -> torch.Tensor:
        """The row everybody starts from, [P], in the type of the run."""
        space = Space(self.model, private=self.private)
        row = space.initial(self.seed) if self.start == "seed" else space.row(self.model)
        return row.to(self.dtype)

    def work(self) -> Work | None:
        """What a device does for one answer, by which a radio plan reckons; None where the algorithm does not say."""
        space = Space(self.model, private=self.private)
        work = self.algorithm.work(space.shared, space.width - space.shared) if space.shared else None
        if work is None:
            return None
        tree = self.algorithm.fit(self.tree)[0]
        return work.sent_by(wires(self.codec, tree.links)[tree.links[-1], "up"].codec, torch.finfo(self.dtype).bits // 8)

    def protocol_data(self) -> Shards:
        """The data as the protocol has it: "paper" trains on the validation part too."""
        return self.data.paper() if self.protocol == "paper" else self.data

    def regular(self, round: int) -> bool:
        """Whether this round is scored even if it is not the last."""
        every = [number for number in (self.score_every, self.score_train_every) if number is not None]
        return any((round + 1) % number == 0 for number in every)

    def due(self, round: int) -> tuple[str, ...]:
        """The parts of the data to score on in this round, counted from 0."""
        now, last = round + 1, round + 1 == self.rounds
        if self.score_train_every is not None and (last or now % self.score_train_every == 0):
            return self.parts if "train" in self.parts else (*self.parts, "train")
        return self.parts if last or now % self.score_every == 0 else ()

    def _model(self) -> str:
        """The module's layers, and what training does not change: frozen parameters and buffers."""
        space = Space(self.model, private=self.private)
        fixed = [p for p in self.model.parameters() if not p.requires_grad] + list(self.model.buffers())
        kinds: list[Any] = [type(module) for module in self.model.modules()]
        values = [value for module in self.model.modules() for value in vars(module).values()]
        held = [value for value in values if isfunction(value)]
        code = source.digest(kinds + held)  # the layers may be the same and `forward` another
        slots = [(slot.name, tuple(slot.shape)) for slot in space.slots]
        return f"{_shown(self.model)} {slots} {_digest(*fixed)} {code}"


def _check_device(name: Any) -> None:
    """An error that lists the devices of this machine unless it is one of them."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device = {name!r} is not a device; use {_devices()}.") from error
    count = {"cpu": 1, "cuda": _cuda_devices()}.get(device.type)
    reason = ""
    if count is None:
        reason = f": covey does not run on {device.type}"
    elif count == 0:
        reason = ", but this machine has no CUDA device"
    elif device.index is not None and device.index >= count:
        reason = f", but this machine has {count} of the type {device.type}"
    if reason:
        raise ConfigError(f"device = {name!r}{reason}; use {_devices()}.")


def _cuda_devices() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _devices() -> str:
    """The devices of this machine, as a file would name them."""
    count = _cuda_devices()
    if count == 0:
        return "'cpu'"
    last = f" to 'cuda:{count - 1}'" if count > 1 else ""
    return f"'cpu', 'cuda' or 'cuda:0'{last}"


def unlike(experiments: Sequence[Experiment]) -> str | None:
    """What keeps experiments from running side by side, which may differ in seed and data alone; None if nothing does."""
    if not experiments:
        return "there is none"
    if len(experiments) == 1:
        return None
    first, mine = experiments[0], experiments[0].fingerprint()
    for other in experiments[1:]:
        theirs = other.fingerprint()
        for name in (mine | theirs).keys() - {"seed", "data", "initial"}:
            if mine.get(name) != theirs.get(name):
                return f"they differ in {name}"
        for name in ("rounds", "score_every", "score_train_every", "parts", "device", "workers", "memory"):
            if getattr(first, name) != getattr(other, name):
                return f"they differ in {name}"
        if first.data.classes != other.data.classes or first.data.x.shape[1:] != other.data.x.shape[1:]:
            return "their data differ in shape or classes"
        if callable(first.loss) and first.loss is not other.loss:
            return "their losses are two functions, which may differ"
        if not _alike(first, other):
            return "their models differ in what they compute"
        for part in _PARTS:
            sizes = [block_size(e.protocol_data().part(part)) for e in (first, other)]
            if sizes[0] != sizes[1]:
                return f"their largest {part} parts are so unlike ({sizes[0]} and {sizes[1]}) that the last bits would differ"
    return None


def _alike(first: Experiment, other: Experiment) -> bool:
    """Whether two models give the same on the same weights; a module may hold settings that its text does not show."""
    if first.model is other.model:
        return True
    like = next(first.model.parameters())
    x = first.data.x[:2].to(like)
    weights: dict[str, torch.Tensor] = dict(first.model.named_parameters())
    try:
        with torch.no_grad():
            expected = first.model(x)
            return torch.equal(expected, torch.func.functional_call(other.model, weights, (x,)))
    except FAULTS:
        return True  # a model that cannot run at all is refused by the task, with a better message


def _digest(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


_KINDS: tuple[tuple[str, type, str], ...] = (
    ("algorithm", Algorithm, "an instance of an algorithm, for instance FedAvg()"),
    ("data", Shards, "shards, for instance covey.data.digits() or covey.data.own(...)"),
    ("model", nn.Module, "an instance of a module, for instance covey.models.mlp(64, 32, 10)"),
    ("tree", Tree, "a tree, for instance Tree.flat(20)"),
    ("seed", int, "a whole number"),
)
_COUNTS = {
    "rounds": 2**53,
    "score_every": 2**53,
    "score_train_every": 2**53,
    "memory": 2**63 - 1,
    "workers": 4096,
}
"""Whole numbers from 1, and the largest that is meant."""
_MAY_BE_NONE = ("score_train_every", "workers")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "idle": ("skip", "train"),
    "batches": ("uniform", "cyclic"),
    "protocol": ("honest", "paper"),
    "start": ("seed", "module"),
    "dtype": (torch.float32, torch.float64),
}


def _among(value: Any, choices: tuple[Any, ...]) -> bool:
    """Whether a value is one of the choices, by type too: an array would compare entry by entry."""
    return any(type(value) is type(choice) and value == choice for choice in choices)


def _name(loss: Loss) -> str:
    """A loss by name and a hash of its code; an object also by how it shows itself."""
    if isinstance(loss, str):
        return loss
    named = loss if hasattr(loss, "__qualname__") else type(loss)
    shown = "" if named is loss else f" {_shown(loss)}"
    return f"{named.__module__}.{named.__qualname__}{shown} {source.digest([named])}"


def _codec_code(spec: Any) -> str:
    """A hash of the code of every codec that an installed package brings, or nothing."""
    values = spec.values() if isinstance(spec, Mapping) else [spec]
    names = [value for value in values if isinstance(value, str) and value in declared("codecs")]
    inside = [_codec_code(value) for value in values if isinstance(value, Mapping)]
    return "".join([f" {name} {source.digest([type(codec(name))])}" for name in names] + inside)


def _shown(value: object) -> str:
    """How a value shows itself, without addresses in memory, which no other process has."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def describe(value: Any) -> str:
    """A dataclass by its name and all its fields."""
    if not is_dataclass(value):
        return _shown(value)
    inside = ", ".join(f"{f.name}={describe(getattr(value, f.name))}" for f in fields(value))
    return f"{type(value).__name__}({inside})"
