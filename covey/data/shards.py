"""All the examples of an experiment in one tensor, and which device holds which of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from covey import markup, native
from covey.data.tables.scaling import Moments, Scaling
from covey.errors import ConfigError, DataError, ProgramError, is_number, meant, shown

if TYPE_CHECKING:
    from covey.data.tables.encoding import Encoding

SPLITS = ("train", "validation", "test")
MOST_CLASSES = 1_000_000
NO_TARGET = -100
"""The target of a position that has none; it is the `ignore_index` of torch's cross-entropy."""


@dataclass(frozen=True, eq=False)
class Part:
    """One split: which examples each device holds.

    >>> part = Part.of([[4, 2], [], [7]])
    >>> part.counts().tolist()
    [2, 0, 1]
    """

    index: Tensor  # [total] int64, example numbers, device after device
    offset: Tensor  # [devices + 1] int64: device d holds index[offset[d]:offset[d + 1]]
    present: Tensor | None = None  # [devices] bool: whose examples are here; None for all

    def __post_init__(self) -> None:
        for name, tensor in (("index", self.index), ("offset", self.offset)):
            if tensor.dtype != torch.int64 or tensor.ndim != 1:
                raise DataError(
                    f"Part.{name} is {tensor.dtype} of shape {tuple(tensor.shape)}; "
                    "give one axis of int64, or build it with Part.of(...)."
                )
        ends = self.offset[[0, -1]].tolist() if len(self.offset) else []
        if ends != [0, len(self.index)] or bool((self.counts() < 0).any()):
            raise DataError(
                f"Part.offset must rise from 0 to {len(self.index)}, the length of index, but is "
                f"{self.offset[:5].tolist()}... (ends {ends}); build it with Part.of(...)."
            )
        here = self.present
        if here is not None and (here.dtype != torch.bool or here.shape != (self.devices,)):
            raise DataError(
                f"Part.present is {here.dtype} of shape {tuple(here.shape)}; "
                f"give one bool for each of {self.devices} devices."
            )

    @staticmethod
    def of(pieces: Sequence[Sequence[int] | npt.NDArray[np.int64]]) -> Part:
        """The part in which device d holds the examples pieces[d]."""
        arrays = [np.empty(0, dtype=np.int64)]
        for device, piece in enumerate(pieces):
            array = np.asarray(piece)
            # A fraction or a mask is not taken for the number of an example.
            if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
                raise DataError(
                    f"the examples of device {device} are {array.dtype} of shape {array.shape}; "
                    "give their numbers, a list of integers."
                )
            arrays.append(array.astype(np.int64))
        offset = np.cumsum(list(map(len, arrays)), dtype=np.int64)
        return Part(torch.from_numpy(np.concatenate(arrays)), torch.from_numpy(offset))

    @staticmethod
    def sized(index: Tensor, counts: Tensor, present: Tensor | None = None) -> Part:
        """The part in which device d holds the next counts[d] examples of the index."""
        offset = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Part(index, offset, present)

    @property
    def devices(self) -> int:
        """How many devices there are, those that hold nothing included."""
        return len(self.offset) - 1

    def counts(self) -> Tensor:
        """How many examples each device holds, [devices] int64."""
        return self.offset.diff()

    def held(self, device: int) -> Tensor:
        """The numbers of the examples one device holds, [count] int64."""
        if self.present is not None and not bool(self.present[device]):
            raise ProgramError(_absent(device))
        return self.index[self.offset[device] : self.offset[device + 1]]

    def owners(self) -> Tensor:
        """The device of every entry of the index."""
        return torch.arange(self.devices).repeat_interleave(self.counts())

    def followed_by(self, other: Part) -> Part:
        """The examples of both, for every device those of the other part last."""
        owners = torch.cat([self.owners(), other.owners()])
        index = torch.cat([self.index, other.index])
        return Part(index[owners.argsort(stable=True)], self.offset + other.offset)

    def entries(self, chosen: Tensor) -> Part:
        """The examples at some positions of the index, [total] bool; all devices stay."""
        counts = self.owners()[chosen].bincount(minlength=self.devices)
        return Part.sized(self.index[chosen], counts, self.present)

    def of_devices(self, devices: Tensor) -> Part:
        """The pieces of some devices, in this order."""
        counts = self.counts()[devices]
        shift = self.offset[devices] - (counts.cumsum(0) - counts)
        places = torch.arange(int(counts.sum())) + shift.repeat_interleave(counts)
        return Part.sized(self.index[places], counts)

    def only(self, present: Tensor, number: Tensor) -> Part:
        """The pieces of the chosen devices, [devices] bool.

        `number` maps an example's old number to its new one.
        """
        owned = self.entries(present[self.owners()])
        return Part(number[owned.index], owned.offset, present)


@dataclass(frozen=True)
class Names:
    """What the data calls its things; each is empty where it does not say."""

    devices: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # of the targets of an example, where it has several


@dataclass(frozen=True, eq=False)
class Shards:
    """All examples, and which device holds which.

    Invalid examples raise a `DataError` at once. Where `tokens` is given, x holds token ids, and
    stays whole numbers. Labels may be per position, [examples, positions], where x has as many
    positions; a position without a label has `NO_TARGET`.

    >>> x, y = torch.zeros(4, 3), torch.tensor([0, 1, 1, 0])
    >>> train, nothing, test = Part.of([[0], [2]]), Part.of([[], []]), Part.of([[1], [3]])
    >>> shards = Shards(x, y, train=train, validation=nothing, test=test, classes=2)
    >>> shards.devices, shards.part("test").counts().tolist()
    (2, [1, 1])
    """

    x: Tensor  # [examples, ...] float, or int64 token ids
    y: Tensor  # [examples] or [examples, positions] int64 labels, or float targets
    train: Part
    validation: Part
    test: Part
    classes: int | None = None  # None for regression
    name: str = "own"
    edges: tuple[int, ...] = ()  # devices per edge, where the data has edges; they are consecutive
    names: Names = Names()
    scaling: Scaling | None = (
        None  # how x came from what was measured; None where x is as it was given
    )
    tokens: int | None = None  # how many token ids there are; None where x holds numbers
    encoding: Encoding | None = None  # how x came from the columns of a table with words or gaps
    notes: tuple[str, ...] = ()  # what was left out or moved when the data was read
    yes_no: bool = False
    """Whether targets are yes-or-no labels, several per example; the loss is then bce."""
    doubt: str = ""  # what to ask where classes may be numbers to predict, and no loss is named
    target: Scaling | None = None
    """How training scales y, which itself is in the user's units; None where it does not."""

    def __post_init__(self) -> None:
        _check_parts(self)
        _check_features(self)
        if self.tokens is not None:
            _check_tokens(self)
        elif not native.finite(self.x):
            _check_finite("x", self.x, self)
        if self.y.is_floating_point():
            _check_targets(self)
        else:
            _check_labels(self)
        _check_names(self)

    @property
    def devices(self) -> int:
        """How many devices hold the examples."""
        return self.train.devices

    @property
    def by_position(self) -> bool:
        """Whether every position of an example has a label of its own."""
        return self.classes is not None and self.y.ndim == 2

    @property
    def partial(self) -> bool:
        """Whether the examples of some devices are elsewhere."""
        return self.train.present is not None

    @property
    def present(self) -> Tensor:
        """Whose examples are here, [devices] bool."""
        if self.train.present is None:
            return torch.ones(self.devices, dtype=torch.bool)
        return self.train.present

    @property
    def receivers(self) -> Tensor:
        """The devices here without training examples, ids [k]: they receive, but never train."""
        return ((self.train.counts() == 0) & self.present).nonzero()[:, 0]

    def receiver_notes(self) -> tuple[str, ...]:
        """What a user should know of devices without training examples.

        >>> x, nobody = torch.zeros(2, 1), Part.of([[], []])
        >>> Shards(x, torch.zeros(2), Part.of([[0, 1], []]), nobody, nobody).receiver_notes()
        ('1 of 2 devices has no training examples: it receives, but never trains.',)
        """
        count = len(self.receivers)
        says = "has no training examples: it receives, but never trains."
        if count > 1:
            says = "have no training examples: they receive, but never train."
        return (f"{count} of {self.devices} devices {says}",) if count else ()

    def check_present(self, ids: Tensor) -> None:
        """Refuse to read the examples of devices that are elsewhere."""
        absent = ids[~self.present[ids]]
        if len(absent):
            raise ProgramError(_absent(int(absent[0])))

    def only(self, ids: Sequence[int] | Tensor) -> Shards:
        """The same devices under the same numbers, but the examples of these alone.

        Nothing of the other devices' examples is in `x` and `y`. Reading them is a ProgramError.

        >>> x, part = torch.tensor([[1.0], [2.0]]), Part.of([[0], [1]])
        >>> shards = Shards(x, torch.tensor([0, 1]), part, part, part, classes=2).only([1])
        >>> shards.devices, shards.x.tolist(), shards.train.held(1).tolist()
        (2, [[2.0]], [0])
        """
        devices = torch.as_tensor(ids, dtype=torch.int64).reshape(-1)
        if bool(((devices < 0) | (devices >= self.devices)).any()):
            raise ConfigError(
                f"devices {some(devices.tolist())} of {self.devices}; number them from 0."
            )
        self.check_present(devices)
        present = torch.zeros(self.devices, dtype=torch.bool)
        present[devices] = True
        held = torch.zeros(len(self.x), dtype=torch.bool)
        for split in SPLITS:
            part = self.part(split)
            held[part.index[present[part.owners()]]] = True
        number = held.cumsum(0) - 1
        parts: dict[str, Any] = {split: self.part(split).only(present, number) for split in SPLITS}
        return replace(self, x=self.x[held], y=self.y[held], **parts)

    @staticmethod
    def none(like: Shards) -> Shards:
        """No examples at all, for a node that trains on none.

        Devices, shapes, classes and names are those of `like`.
        """
        return like.only([])

    def part(self, split: str) -> Part:
        """The part of that name: "train", "validation" or "test"."""
        if split not in SPLITS:
            raise ConfigError(
                f"no split is called {split!r}{meant(split, SPLITS)}; "
                f"ask for one of {', '.join(map(repr, SPLITS))}."
            )
        part: Part = getattr(self, split)
        return part

    @staticmethod
    def stack(shards: Sequence[Shards]) -> Shards:
        """The devices of several shards side by side, in this order.

        Examples that they have in common are held once.
        """
        first = shards[0]
        if len(shards) == 1:
            return first
        others = shards[1:]
        shift = [0] * len(shards)
        x = first.x
        y = first.y
        if not all(torch.equal(s.x, x) and torch.equal(s.y, y) for s in others):
            shift = [0, *accumulate(len(s.x) for s in shards[:-1])]
            x = torch.cat([s.x for s in shards])
            y = torch.cat([s.y for s in shards])
        present = None
        if any(s.partial for s in shards):
            present = torch.cat([s.present for s in shards])
        parts: dict[str, Any] = {}
        for split in SPLITS:
            own = [s.part(split) for s in shards]
            index = [part.index + by for part, by in zip(own, shift, strict=True)]
            counts = torch.cat([part.counts() for part in own])
            parts[split] = Part.sized(torch.cat(index), counts, present)
        names = Names(classes=first.names.classes)
        return replace(first, x=x, y=y, edges=(), names=names, **parts)

    def chosen(self, devices: Sequence[int]) -> Shards:
        """The shards of some devices, in this order.

        Edges are kept where that order keeps the devices of an edge together.
        """
        numbers = torch.as_tensor(devices, dtype=torch.int64)
        self.check_present(numbers)
        parts: dict[str, Any] = {split: self.part(split).of_devices(numbers) for split in SPLITS}
        edge_of = np.repeat(np.arange(len(self.edges)), self.edges).tolist()
        under = groupby(edge_of[device] for device in devices if self.edges)
        runs = [(edge, len(list(run))) for edge, run in under]
        if len(dict(runs)) < len(runs):
            runs = []  # an edge's devices are apart
        edges, sizes = zip(*runs, strict=True) if runs else ((), ())
        own = self.names
        device_names = own.devices and tuple(map(own.devices.__getitem__, devices))
        edge_names = own.edges and tuple(map(own.edges.__getitem__, edges))
        names = replace(own, devices=device_names, edges=edge_names)
        return replace(self, edges=sizes, names=names, **parts)

    def _repr_html_(self) -> str:
        """The examples of every part, in all and per device, in a notebook."""
        heads = ["part", "examples", "devices", "min", "median", "max per device"]
        rows = []
        for split in SPLITS:
            held = self.part(split).counts().numpy()
            spread = (held.min(), np.median(held), held.max())
            figures = (f"{figure:g}" for figure in spread)
            rows.append([split, f"{held.sum():,}", str(np.count_nonzero(held)), *figures])
        shape = " x ".join(map(str, self.x.shape[1:])) or "1"
        words = [f"{self.name}: {len(self.x):,} examples of {shape}", f"{self.devices} devices"]
        if self.edges:
            words.append(f"{len(self.edges)} edges")
        if self.classes is None:
            words.append("numbers to predict")
        else:
            kinds = (self.labels() > 0).sum(1)
            each = {f"{kinds.min()}": None, f"{kinds.max()}": None}
            words += [f"{self.classes} classes", f"{' to '.join(each)} per device"]
        return markup.table(heads, rows, ", ".join(words))

    def labels(self) -> npt.NDArray[np.int64]:
        """The number of training examples per device and label, [devices, classes].

        For regression it has one column. Of labels per position, the positions are counted.
        """
        owner = self.train.owners().numpy()
        width = self.classes or 1
        label = np.zeros(len(owner), dtype=np.int64)
        if self.classes:
            label = self.y[self.train.index].numpy()
        if self.by_position:
            owner = np.repeat(owner, self.y.shape[1])
            label = label.reshape(-1)
            owner = owner[label != NO_TARGET]
            label = label[label != NO_TARGET]
        counts = np.bincount(owner * width + label, minlength=self.devices * width)
        return counts.reshape(self.devices, width)

    def target_counts(self, split: str) -> Tensor:
        """How many targets each device's examples of a part have, [devices] int64.

        They are as many as the examples, or as the positions with a label.
        """
        part = self.part(split)
        if not self.by_position:
            return part.counts()
        of_example = (self.y != NO_TARGET).sum(1)[part.index]
        before = torch.cat([of_example.new_zeros(1), of_example.cumsum(0)])
        return before[part.offset].diff()

    def numbers(self) -> Shards:
        """The same examples with labels as numbers to predict, by a squared error.

        Shards whose targets are numbers already stay as they are.

        >>> x, part = torch.zeros(2, 3), Part.of([[0, 1]])
        >>> names = Names(classes=("3", "7"))
        >>> Shards(x, torch.tensor([1, 0]), part, part, part, classes=2, names=names).numbers().y
        tensor([7., 3.])
        """
        if self.classes is None:
            return self
        if self.by_position:
            raise ConfigError(
                f"loss = 'squared_error' predicts numbers, but {self.name} has a label per "
                "position; leave loss out for cross_entropy."
            )
        try:
            values = [float(name) for name in self.names.classes or range(self.classes)]
        except ValueError as error:
            raise ConfigError(
                f"loss = 'squared_error' predicts numbers, but the labels of {self.name} are "
                f"{some(self.names.classes)}; "
                "leave loss out for cross_entropy, or choose a column of numbers as label."
            ) from error
        dtype = self.x.dtype if self.tokens is None else torch.float32
        y = torch.tensor(values, dtype=dtype)[self.y]
        target = None
        if self.scaling is not None and self.scaling.kind == "standard" and not self.partial:
            target = standard_targets(y, self.train)
        names = replace(self.names, classes=())
        return replace(self, y=y, classes=None, names=names, doubt="", target=target)

    def paper(self) -> Shards:
        """The same examples by the papers' protocol.

        Validation examples are trained on, and no example validates.
        """
        self.check_present(torch.arange(self.devices))
        both = self.train.followed_by(self.validation)
        nothing = Part(self.train.index[:0], torch.zeros_like(self.train.offset))
        return replace(self, train=both, validation=nothing)

    def fingerprint(self) -> str:
        """A sha256 in hex of the examples and the parts.

        It changes when a byte, a type or a shape of them changes.
        """
        tensors = {"x": self.x, "y": self.y}
        for split in SPLITS:
            tensors[f"{split}.index"] = self.part(split).index
            tensors[f"{split}.offset"] = self.part(split).offset
        if self.target is not None:
            tensors |= {"target.shift": self.target.shift, "target.factor": self.target.factor}
        digest = hashlib.sha256()
        for name, tensor in tensors.items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            if tensor.numel():  # torch may not view an empty tensor as bytes
                flat = tensor.detach().cpu().reshape(-1).contiguous()
                digest.update(flat.view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _absent(device: int) -> str:
    """Why a device's examples cannot be read."""
    return (
        f"the examples of device {device} are not on this node; "
        "only a node that holds them can read them."
    )


def _check_parts(shards: Shards) -> None:
    """That all parts are of the same devices, and name examples that are there."""
    counts = (shards.train.devices, shards.validation.devices, shards.test.devices)
    if len(set(counts)) > 1:
        raise DataError(
            "the parts have different numbers of devices, "
            f"{dict(zip(SPLITS, counts, strict=True))}; "
            "give a device without examples an empty piece."
        )
    if shards.devices == 0:
        raise DataError("the parts have 0 devices; give at least one device with examples.")
    if not shards.partial and not len(shards.train.index):
        raise DataError(
            f"none of {shards.devices} devices has a training example; "
            "give at least one device some."
        )
    edges = shards.edges
    if edges and (min(edges) < 1 or sum(edges) != shards.devices):
        raise DataError(
            f"edges = {some(edges)} have {sum(edges)} devices in all, "
            f"the data {shards.devices}; give each edge at least one."
        )


def _check_names(shards: Shards) -> None:
    """That there is a name for every thing, or none."""
    counts = {
        "devices": shards.devices,
        "edges": len(shards.edges),
        "classes": shards.classes or 0,
        "tokens": shards.tokens or 0,
        "labels": shards.y[:1].numel() if len(shards.y) else len(shards.names.labels),
    }
    for name, count in counts.items():
        have = getattr(shards.names, name)
        if have and len(have) != count:
            raise DataError(
                f"there are {len(have)} names of {name} ({some(have)}) for {count}; "
                "give each one, or none."
            )


def _check_features(shards: Shards) -> None:
    """That x and y are plain tensors of one length, and that parts name rows of them."""
    x = shards.x
    y = shards.y
    for name, tensor in (("x", x), ("y", y)):
        plain = isinstance(tensor, Tensor)
        have = f"{tensor.layout} on {tensor.device}" if plain else type(tensor).__name__
        if not plain or tensor.layout != torch.strided or tensor.device.type == "meta":
            raise DataError(
                f"{name} is {have}; give a plain tensor, as in torch.from_numpy(array)."
            )
    if shards.tokens is None and not x.is_floating_point():
        raise DataError(
            f"x is {x.dtype}, but features must be floats; "
            "convert them, as in x.float() / 255 for images. "
            "If they are token ids, say how many there are, as in tokens=256."
        )
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; "
            "give one row of x and one of y per example."
        )
    if 0 in x.shape[1:]:
        raise DataError(
            f"x has shape {tuple(x.shape)}, so that an example has no features; give at least one."
        )
    for split in SPLITS:
        index = shards.part(split).index
        wrong = index[(index < 0) | (index >= len(x))].tolist()
        if wrong:
            raise DataError(
                f"{split}.index names examples {some(wrong)}, "
                f"but the examples are 0 to {len(x) - 1}; use positions in x."
            )


def _refuse(shards: Shards, wrong: Tensor, name: str, fault: str, advice: str) -> None:
    """Refuse examples where x or y is wrong, [examples, ...] bool; the first is named."""
    if not bool(wrong.any()):
        return
    count = int(wrong.reshape(len(wrong), -1).any(dim=1).sum())
    place = wrong.nonzero()[0].tolist()
    value = getattr(shards, name)[tuple(place)].tolist()
    holder = "which no device holds"
    for split in SPLITS:
        part = shards.part(split)
        entries = (part.index == place[0]).nonzero()
        if len(entries):
            holder = f"{split} of device {int(part.owners()[entries[0]])}"
    at = ", ".join(map(str, place))
    raise DataError(
        f"{name} has {fault} in {count} of {len(wrong)} examples, the first is example {place[0]}: "
        f"{name}[{at}] = {value} ({holder}); {advice}."
    )


def _check_tokens(shards: Shards) -> None:
    """That x holds token ids from 0 on, which nobody has scaled."""
    x = shards.x
    tokens = shards.tokens
    if not _is_count(tokens):
        raise DataError(
            f"tokens = {shown(tokens)}; give how many token ids there are, 1 to {MOST_CLASSES:,}."
        )
    if x.dtype != torch.int64:
        raise DataError(f"x is {x.dtype}, but token ids are int64; convert them, as in x.long().")
    if shards.scaling is not None and shards.scaling.kind != "none":
        raise DataError(
            f"token ids cannot be scaled, but scaling is {shards.scaling.kind!r}; leave it out."
        )
    _refuse(
        shards,
        (x < 0) | (x >= tokens),
        "x",
        f"ids that are not among the {tokens} tokens 0 to {tokens - 1}",
        "number the tokens from 0, or give tokens= their true number",
    )


def _is_count(number: Any) -> TypeGuard[int]:
    """Whether there can be so many classes or tokens."""
    return is_number(number, whole=True) and 1 <= number <= MOST_CLASSES


def _check_finite(name: str, tensor: Tensor, shards: Shards) -> None:
    _refuse(shards, ~torch.isfinite(tensor), name, "NaN or infinity", "repair or drop them")


def _check_targets(shards: Shards) -> None:
    """That y holds numbers to predict."""
    y = shards.y
    if shards.classes is not None:
        raise DataError(
            f"y is {y.dtype}, so this is regression, but classes is {shards.classes}; "
            "give classes=None, or integer labels, as in y.long()."
        )
    of_one_type = y.dtype == shards.x.dtype or shards.tokens is not None
    if not of_one_type or y.ndim > 2:
        raise DataError(
            f"y is {y.dtype} of shape {tuple(y.shape)} and x is {shards.x.dtype}; "
            "give targets of x's type, as in y.to(x.dtype), with one or two axes."
        )
    _check_finite("y", y, shards)
    if shards.yes_no and not bool(((y == 0) | (y == 1)).all()):
        raise DataError("yes_no is True, but y has other numbers than 0 and 1; leave it out.")


def _check_labels(shards: Shards) -> None:
    """That y holds classes from 0 on, one for each example or for each position of it."""
    x = shards.x
    y = shards.y
    classes = shards.classes
    several = x.ndim > 2 or (x.ndim == 2 and shards.tokens is not None)
    by_position = y.ndim == 2 and several and x.shape[1] == y.shape[1]
    if y.dtype != torch.int64 or not (y.ndim == 1 or by_position):
        raise DataError(
            f"y is {y.dtype} of shape {tuple(y.shape)}, but labels are one axis of int64; "
            "convert them, as in y.long().reshape(-1). "
            "Labels per position need as many positions in x, of token ids or of several features."
        )
    if classes is None:
        raise DataError(
            "y holds labels but classes is None; "
            f"give classes={int(y.max()) + 1}, or float targets."
        )
    if not _is_count(classes):
        raise DataError(
            f"classes = {shown(classes)}; give how many there are, 1 to {MOST_CLASSES:,}, "
            "with the labels numbered from 0."
        )
    wrong = (y < 0) | (y >= classes)
    fault = f"labels that are not among the {classes} classes 0 to {classes - 1}"
    advice = "number the labels from 0, or give classes= their true number"
    if by_position:
        wrong &= y != NO_TARGET
        advice = f"number the labels from 0, and give {NO_TARGET} to a position without one"
        nothing = (y == NO_TARGET).all(dim=1)
        _refuse(shards, nothing, "y", "no label at any position", "drop them")
    elif bool(wrong.any()) and int(y.min()) >= 1 and int(y.max()) == classes:
        remedy = f"give y - 1, or classes={classes + 1} if no example has the label 0"
        advice = f"they seem to count from 1: {remedy}"
    _refuse(shards, wrong, "y", fault, advice)


def some(items: Sequence[Any], most: int = 5) -> str:
    """The first of them, for a message.

    >>> some(range(9))
    '0, 1, 2, 3, 4, ...'
    """
    words = [str(item) for item in items[:most]]
    if len(items) > most:
        words.append("...")
    return ", ".join(words)


def numbered(names: Iterable[str]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """The names in order of first appearance, and the number that each has among them.

    >>> numbered(["north", "south", "north"])
    (('north', 'south'), array([0, 1, 0]))
    """
    every = list(names)
    number = {name: index for index, name in enumerate(dict.fromkeys(every))}
    return tuple(number), np.array([number[name] for name in every], dtype=np.int64)


def rows_by_device(train: Part) -> list[npt.NDArray[np.int64]]:
    """The training rows of each device, to be measured as a deployed tree does: one by one.

    A row that several devices have is of the first of them.
    """
    index = train.index.numpy()
    first = np.zeros(len(index), dtype=bool)
    first[np.unique(index, return_index=True)[1]] = True
    cuts = train.offset[1:-1].numpy()
    pieces = zip(np.split(index, cuts), np.split(first, cuts), strict=True)
    return [rows[own] for rows, own in pieces]


def standard_targets(y: Tensor, train: Part) -> Scaling:
    """The standard scaling of targets, by the devices' training rows."""
    moments = [Moments.of(y.numpy(), rows) for rows in rows_by_device(train)]
    return Moments.merged(moments).scaling(len(torch.unique(train.index)))
