"""All the examples of an experiment in one tensor, and which device holds which of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from covey import native
from covey.data import html
from covey.data.scaling import Moments, Scaling
from covey.errors import ConfigError, DataError, ProgramError, meant, shown

if TYPE_CHECKING:
    from covey.data.encoding import Encoding

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
                have = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
                raise DataError(
                    f"Part.{name} is {have}; give one axis of int64, or build it with Part.of(...)."
                )
        ends = self.offset[[0, -1]].tolist() if len(self.offset) else []
        if ends != [0, len(self.index)] or bool((self.counts() < 0).any()):
            raise DataError(
                f"Part.offset must rise from 0 to {len(self.index)}, the length of index, but is "
                f"{self.offset[:5].tolist()}... (ends {ends}); build it with Part.of(...)."
            )
        if self.present is not None and (
            self.present.dtype != torch.bool or self.present.shape != (self.devices,)
        ):
            have = f"{self.present.dtype} of shape {tuple(self.present.shape)}"
            raise DataError(
                f"Part.present is {have}; give one bool for each of {self.devices} devices."
            )

    @staticmethod
    def of(pieces: Sequence[Sequence[int] | npt.NDArray[np.int64]]) -> Part:
        """The part in which device d holds the examples pieces[d]."""
        arrays = [_example_numbers(piece, device) for device, piece in enumerate(pieces)]
        offset = np.cumsum([0] + [len(array) for array in arrays], dtype=np.int64)
        index = np.concatenate([np.empty(0, dtype=np.int64), *arrays])
        return Part(torch.from_numpy(index), torch.from_numpy(offset))

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

    def _followed_by(self, other: Part) -> Part:
        """The examples of both, for every device those of the other part last."""
        offset = self.offset + other.offset
        index = self.index.new_empty(len(self.index) + len(other.index))
        index[torch.arange(len(self.index)) + other.offset[self._owners()]] = self.index
        index[torch.arange(len(other.index)) + self.offset[other._owners() + 1]] = other.index
        return Part(index, offset)

    def _of(self, devices: Tensor) -> Part:
        """The pieces of some devices, in this order."""
        counts = self.counts()[devices]
        offset = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        shift = self.offset[devices] - offset[:-1]
        places = torch.arange(int(offset[-1])) + shift.repeat_interleave(counts)
        return Part(self.index[places], offset)

    def _owners(self) -> Tensor:
        """The device of every entry of the index."""
        return torch.arange(self.devices).repeat_interleave(self.counts())

    def _only(self, present: Tensor, number: Tensor) -> Part:
        """The pieces of the chosen devices, [devices] bool.

        `number` maps an example's old number to its new one.
        """
        counts = torch.where(present, self.counts(), 0)
        owned = present.repeat_interleave(self.counts())
        offset = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Part(number[self.index[owned]], offset, present)


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
        _check_indices(self)
        if self.tokens is None:
            _check_finite("x", self.x, self)
        else:
            _check_tokens(self)
        if self.edges and (min(self.edges) < 1 or sum(self.edges) != self.devices):
            raise DataError(
                f"edges = {some(self.edges)} have {sum(self.edges)} devices in all, "
                f"the data {self.devices}; "
                "give each edge at least one."
            )
        _check_names(self)
        if self.y.is_floating_point():
            _check_targets(self)
        else:
            _check_labels(self)

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
        empty = (self.train.counts() == 0) & self.present
        return empty.nonzero()[:, 0]

    def receiver_notes(self) -> tuple[str, ...]:
        """What a user should know of devices without training examples.

        >>> x, nobody = torch.zeros(2, 1), Part.of([[], []])
        >>> Shards(x, torch.zeros(2), Part.of([[0, 1], []]), nobody, nobody).receiver_notes()
        ('1 of 2 devices has no training examples: it receives, but never trains.',)
        """
        count = len(self.receivers)
        if not count:
            return ()
        devices = f"{count} of {self.devices} devices"
        if count == 1:
            return (f"{devices} has no training examples: it receives, but never trains.",)
        return (f"{devices} have no training examples: they receive, but never train.",)

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
            held[part.index[present.repeat_interleave(part.counts())]] = True
        number = held.cumsum(0) - 1
        train, validation, test = (self.part(split)._only(present, number) for split in SPLITS)
        return replace(
            self,
            x=self.x[held],
            y=self.y[held],
            train=train,
            validation=validation,
            test=test,
        )

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
        return {
            "train": self.train,
            "validation": self.validation,
            "test": self.test,
        }[split]

    @staticmethod
    def stack(shards: Sequence[Shards]) -> Shards:
        """The devices of several shards side by side, in this order.

        Examples that they have in common are held once.
        """
        first = shards[0]
        if len(shards) == 1:
            return first
        same = all(torch.equal(s.x, first.x) and torch.equal(s.y, first.y) for s in shards[1:])
        shift = [0] * len(shards)
        if not same:
            sizes = [len(other.x) for other in shards[:-1]]
            shift = [0, *accumulate(sizes)]

        def part(split: str) -> Part:
            index = torch.cat(
                [s.part(split).index + by for s, by in zip(shards, shift, strict=True)]
            )
            counts = torch.cat([s.part(split).counts() for s in shards])
            offset = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
            if not any(s.partial for s in shards):
                return Part(index, offset)
            return Part(index, offset, torch.cat([s.present for s in shards]))

        x = first.x
        y = first.y
        if not same:
            x = torch.cat([s.x for s in shards])
            y = torch.cat([s.y for s in shards])
        train, validation, test = (part(split) for split in SPLITS)
        names = Names(classes=first.names.classes)
        return replace(
            first,
            x=x,
            y=y,
            edges=(),
            names=names,
            train=train,
            validation=validation,
            test=test,
        )

    def chosen(self, devices: Sequence[int]) -> Shards:
        """The shards of some devices, in this order.

        Edges are kept where that order keeps the devices of an edge together.
        """
        numbers = torch.as_tensor(devices, dtype=torch.int64)
        self.check_present(numbers)
        train, validation, test = (self.part(split)._of(numbers) for split in SPLITS)
        edge = np.empty(0, dtype=np.int64)
        if self.edges:
            edge = np.repeat(np.arange(len(self.edges)), self.edges)[list(devices)]
        order = list(dict.fromkeys(edge.tolist()))
        changes = int((np.diff(edge) != 0).sum())
        if len(order) > 0 and len(order) != 1 + changes:
            order = []  # an edge's devices are apart
        sizes = tuple(int((edge == e).sum()) for e in order)
        device_names = self.names.devices and tuple(self.names.devices[d] for d in devices)
        edge_names = self.names.edges and tuple(self.names.edges[e] for e in order)
        names = replace(self.names, devices=device_names, edges=edge_names)
        return replace(
            self,
            edges=sizes,
            names=names,
            train=train,
            validation=validation,
            test=test,
        )

    def _repr_html_(self) -> str:
        """The examples of every part, in a notebook."""
        return html.of_shards(self)

    def labels(self) -> npt.NDArray[np.int64]:
        """The number of training examples per device and label, [devices, classes].

        For regression it has one column. Of labels per position, the positions are counted.
        """
        owner = np.repeat(np.arange(self.devices), self.train.counts().numpy())
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
        values = list(map(float, range(self.classes)))
        if self.names.classes:
            try:
                values = [float(name) for name in self.names.classes]
            except ValueError as error:
                raise ConfigError(
                    f"loss = 'squared_error' predicts numbers, but the labels of {self.name} are "
                    f"{some(self.names.classes)}; "
                    "leave loss out for cross_entropy, or choose a column of numbers as label."
                ) from error
        dtype = self.x.dtype
        if self.tokens is not None:
            dtype = torch.float32
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
        both = self.train._followed_by(self.validation)
        nothing = Part(self.train.index[:0], torch.zeros_like(self.train.offset))
        return replace(self, train=both, validation=nothing)

    def fingerprint(self) -> str:
        """A sha256 in hex of the examples and the parts.

        It changes when a byte, a type or a shape of them changes.
        """
        digest = hashlib.sha256()
        for name, tensor in _tensors(self):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            if tensor.numel():  # torch may not view an empty tensor as bytes
                digest.update(
                    tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data
                )
        return digest.hexdigest()


def _absent(device: int) -> str:
    """Why a device's examples cannot be read."""
    rule = "only a node that holds them can read them"
    return f"the examples of device {device} are not on this node; {rule}."


def _example_numbers(piece: Any, device: int) -> npt.NDArray[np.int64]:
    """The numbers of a device's examples; a fraction or a mask is not taken for one."""
    array = np.asarray(piece)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
        have = f"{array.dtype} of shape {array.shape}"
        raise DataError(
            f"the examples of device {device} are {have}; give their numbers, a list of integers."
        )
    return array.astype(np.int64)


def _tensors(shards: Shards) -> Iterator[tuple[str, Tensor]]:
    yield "x", shards.x
    yield "y", shards.y
    for split in SPLITS:
        yield f"{split}.index", shards.part(split).index
        yield f"{split}.offset", shards.part(split).offset
    if shards.target is not None:
        yield "target.shift", shards.target.shift
        yield "target.factor", shards.target.factor


def _check_parts(shards: Shards) -> None:
    devices = {split: shards.part(split).devices for split in SPLITS}
    if len(set(devices.values())) > 1:
        raise DataError(
            f"the parts have different numbers of devices, {devices}; "
            "give a device without examples an empty piece."
        )
    if shards.devices == 0:
        raise DataError("the parts have 0 devices; give at least one device with examples.")
    if not shards.partial and not len(shards.train.index):
        raise DataError(
            f"none of {shards.devices} devices has a training example; "
            "give at least one device some."
        )


def _check_names(shards: Shards) -> None:
    names = shards.names
    for name, have, want in (
        ("devices", names.devices, shards.devices),
        ("edges", names.edges, len(shards.edges)),
        ("classes", names.classes, shards.classes or 0),
        ("tokens", names.tokens, shards.tokens or 0),
        ("labels", names.labels, shards.y[:1].numel() if len(shards.y) else len(names.labels)),
    ):
        if have and len(have) != want:
            raise DataError(
                f"there are {len(have)} names of {name} ({some(have)}) for {want}; "
                "give each one, or none."
            )


def _check_plain(tensor: object, name: str) -> None:
    """Refuse what is no dense tensor with values."""
    have = ""
    if not isinstance(tensor, Tensor):
        have = type(tensor).__name__
    elif tensor.layout != torch.strided or tensor.device.type == "meta":
        have = f"{tensor.layout} on {tensor.device}"
    if have:
        raise DataError(f"{name} is {have}; give a plain tensor, as in torch.from_numpy(array).")


def _check_features(shards: Shards) -> None:
    x = shards.x
    y = shards.y
    _check_plain(x, "x")
    _check_plain(y, "y")
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


def _check_tokens(shards: Shards) -> None:
    """That x holds token ids from 0 on, which nobody has scaled."""
    x = shards.x
    tokens = shards.tokens
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= MOST_CLASSES:
        raise DataError(
            f"tokens = {shown(tokens)}; give how many token ids there are, 1 to {MOST_CLASSES:,}."
        )
    if x.dtype != torch.int64:
        raise DataError(f"x is {x.dtype}, but token ids are int64; convert them, as in x.long().")
    if shards.scaling is not None and shards.scaling.kind != "none":
        raise DataError(
            f"token ids cannot be scaled, but scaling is {shards.scaling.kind!r}; leave it out."
        )
    flat = x.unsqueeze(1).flatten(1)
    wrong = ((flat < 0) | (flat >= tokens)).any(dim=1).nonzero().flatten().tolist()
    if wrong:
        bad = flat[wrong[0]]
        value = int(bad[(bad < 0) | (bad >= tokens)][0])
        raise DataError(
            f"{len(wrong)} examples have ids that are not among the {tokens} tokens 0 to "
            f"{tokens - 1}, the first is {value} in example {wrong[0]}{_holder(shards, wrong[0])}; "
            "number the tokens from 0, or give tokens= their true number."
        )


def _check_indices(shards: Shards) -> None:
    for split in SPLITS:
        index = shards.part(split).index
        wrong = index[(index < 0) | (index >= len(shards.x))].tolist()
        if wrong:
            raise DataError(
                f"{split}.index names examples {some(wrong)}, "
                f"but the examples are 0 to {len(shards.x) - 1}; use positions in x."
            )


def _holder(shards: Shards, example: int) -> str:
    """Who holds an example, for a message."""
    for split in SPLITS:
        part = shards.part(split)
        places = (part.index == example).nonzero().flatten().tolist()
        if places:
            device = int(torch.searchsorted(part.offset, places[0], right=True)) - 1
            return f" ({split} of device {device})"
    return " (which no device holds)"


def _check_finite(name: str, tensor: Tensor, shards: Shards) -> None:
    if native.finite(tensor):  # in one pass that makes no copy, where there is a kernel
        return
    wrong = (
        (~torch.isfinite(tensor)).reshape(len(tensor), -1).any(dim=1).nonzero().flatten().tolist()
    )
    if wrong:
        raise DataError(
            f"{name} has NaN or infinity in {len(wrong)} of {len(tensor)} examples, "
            f"the first is example {wrong[0]}{_holder(shards, wrong[0])}; repair or drop them."
        )


def _check_targets(shards: Shards) -> None:
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
    y = shards.y
    classes = shards.classes
    if y.dtype != torch.int64 or not (y.ndim == 1 or _has_positions(shards)):
        have = f"{y.dtype} of shape {tuple(y.shape)}"
        raise DataError(
            f"y is {have}, but labels are one axis of int64; "
            "convert them, as in y.long().reshape(-1). "
            "Labels per position need as many positions in x, of token ids or of several features."
        )
    if classes is None:
        raise DataError(
            "y holds labels but classes is None; "
            f"give classes={int(y.max()) + 1}, or float targets."
        )
    if (
        isinstance(classes, bool)
        or not isinstance(classes, int)
        or not 1 <= classes <= MOST_CLASSES
    ):
        rule = f"give how many there are, 1 to {MOST_CLASSES:,}"
        raise DataError(f"classes = {shown(classes)}; {rule}, with the labels numbered from 0.")
    if y.ndim == 2:
        _check_positions(shards, classes)
        return
    wrong = ((y < 0) | (y >= classes)).nonzero().flatten().tolist()
    if wrong:
        advice = "number the labels from 0, or give classes= their true number"
        if int(y.min()) >= 1 and int(y.max()) == classes:
            remedy = f"give y - 1, or classes={classes + 1} if no example has the label 0"
            advice = f"they seem to count from 1: {remedy}"
        raise DataError(
            f"{len(wrong)} labels are not among the {classes} classes 0 to {classes - 1}, "
            "the first is "
            f"y[{wrong[0]}] = {int(y[wrong[0]])}{_holder(shards, wrong[0])}; {advice}."
        )


def _has_positions(shards: Shards) -> bool:
    """Whether labels [examples, positions] can be those of the positions of x."""
    x = shards.x
    several = x.ndim > 2 or (x.ndim == 2 and shards.tokens is not None)
    return shards.y.ndim == 2 and several and x.shape[1] == shards.y.shape[1]


def _check_positions(shards: Shards, classes: int) -> None:
    """That every label per position is a class or none, and that every example has one."""
    y = shards.y
    without = y == NO_TARGET
    wrong = (~without & ((y < 0) | (y >= classes))).nonzero().tolist()
    if wrong:
        example, position = wrong[0]
        raise DataError(
            f"{len(wrong)} labels are not among the {classes} classes 0 to {classes - 1}, "
            f"the first is y[{example}, {position}] = {int(y[example, position])}"
            f"{_holder(shards, example)}; number the labels from 0, "
            f"and give {NO_TARGET} to a position without one."
        )
    empty = without.all(dim=1).nonzero().flatten().tolist()
    if empty:
        raise DataError(
            f"{len(empty)} examples have no label at any position, the first is example "
            f"{empty[0]}{_holder(shards, empty[0])}; drop them."
        )


def some(numbers: Sequence[Any]) -> str:
    """The first five of them, for a message.

    >>> some(range(9))
    '0, 1, 2, 3, 4, ...'
    """
    return ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")


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
