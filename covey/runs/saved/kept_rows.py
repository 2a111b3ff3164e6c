"""What a checkpoint holds of rows that lie in files.

Beside the checkpoint is a folder with hard links to the files of rows, which are never copied, and
a log of who has which row. A row that a checkpoint counts on is not written again, so the next
checkpoint only has to say what changed: it appends to the log the nodes that kept a row since, each
with the slot, the round and a checksum of its row. The checkpoint names the length of the log, and
a checksum of that much of it. What lies behind was written by a save that did not end.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from covey.atomic import refused, sync
from covey.errors import CheckpointError
from covey.kernel.store import segments
from covey.kernel.store.segments import RowForm, Segment
from covey.kernel.store.slots import NEVER
from covey.kernel.store.store import PRESENT, Column, ColumnKey, Frozen, SavedNodes, Store, rising
from covey.links.meter import NodeKey
from covey.runs.saved import checkpoint
from covey.runs.saved.journal import CountedFile
from covey.runs.scores.figures import NodeTotals, Totals

_HEAD = 8
"""The bytes of a record's length."""
_SLACK = 10_000
"""Entries that a log may have beyond twice those of a new one."""
_DTYPES = {
    str(dtype): dtype
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.uint8)
}
Nodes = Mapping[str, slice]
"""The nodes of one seed, by tier."""


@dataclass(eq=False)
class Log:
    """The records of one checkpoint path, as far as this process wrote them."""

    file: CountedFile
    entries: int = 0
    marks: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """For each tier, name and label: the moment up to which changes are recorded."""
    totals: Totals = field(default_factory=dict)
    """The totals that are recorded."""

    def append(self, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Write one record behind the last good one, and wait for the disk."""
        plain = {name: tensor.clone() for name, tensor in tensors.items()}
        blob = save(plain, metadata={"record": json.dumps(record)})
        self.file.append(len(blob).to_bytes(_HEAD, "little") + blob)


class RowsFolder:
    """The folder of rows beside one checkpoint."""

    def __init__(self, target: Path) -> None:
        self.path = target.with_suffix(".rows")
        self.saves: list[int] = []
        """The numbers of the saves that the last checkpoints here are of, the last one first."""
        self._log: Log | None = None
        self._files = _files_of(target)

    def save(self, store: Store, nodes: Nodes, totals: Totals) -> dict[str, Any]:
        """Everything on the disk that a checkpoint of these nodes counts on; how to find it."""
        with refused(self.path, "an older checkpoint is untouched"):
            store.commit()
            for column in store.columns.values():
                column.compact()
            self.path.mkdir(parents=True, exist_ok=True)
            columns = [self._linked(key, column) for key, column in sorted(store.columns.items())]
            store.sync()
            log = self._written(store, nodes, totals)
            sync(self.path)
        return {
            "folder": self.path.name,
            "log": log.file.path.name,
            **log.file.facts(),
            "columns": columns,
        }

    def clean(self, facts: Mapping[str, Any]) -> None:
        """Remove files that neither the checkpoint with these facts nor the one before names."""
        files = _named(facts)
        if self._files is not None:
            for name in set(os.listdir(self.path)) - files - self._files:
                (self.path / name).unlink(missing_ok=True)
        self._files = files

    def _linked(self, key: ColumnKey, column: Column) -> dict[str, Any]:
        """A column in the words of a checkpoint, its files linked into this folder."""
        tier, name = key
        listed = []
        own = column.segments
        for start, segment in zip(own.starts(), own.segments, strict=True):
            if segment.path is None or (not segment.writable and not column.slots.borrowed):
                continue
            link = self.path / segment.path.name
            _link(segment.path, link)
            own.links.setdefault(segment.path, set()).add(link)
            listed.append([start, len(segment.rows), segment.path.name, segment.kind])
        return {
            "tier": tier,
            "name": name,
            "dtype": str(column.template.dtype),
            "form": own.form,
            "shape": list(column.template.shape[1:]),
            "segments": listed,
        }

    def _written(self, store: Store, nodes: Nodes, totals: Totals) -> Log:
        """The log with everything up to now: one more record, or a new log where that is short."""
        log = self._log or Log(CountedFile(self.path / f"{uuid.uuid4().hex}.log"))
        record, tensors = _changes(store, nodes, totals, log)
        entries = sum(len(values) for name, values in tensors.items() if name.endswith("ids"))
        anew = sum(column.capacity for column in store.columns.values())
        if self._log is not None and log.entries + entries > 2 * anew + _SLACK:
            self._log = None
            return self._written(store, nodes, totals)
        log.append(record, tensors)
        log.entries += entries
        log.totals = dict(totals)
        for (tier, name), column in store.columns.items():
            for label in (PRESENT, *column.held):
                log.marks[tier, name, label] = column.version(label).changes.now
        self._log = log
        return log


def _named(facts: Mapping[str, Any]) -> set[str]:
    """The files that a checkpoint counts on."""
    files = {str(facts["log"])}
    for column in facts["columns"]:
        files |= {entry[2] for entry in column["segments"]}
    return files


def _files_of(path: Path) -> set[str] | None:
    """The files that the checkpoint at a path counts on; None where that cannot be read."""
    if not path.exists():
        return set()
    try:
        facts = checkpoint.read_facts(path)
        return _named(facts.get(checkpoint.ROWS, {"log": "", "columns": []}))
    except (CheckpointError, KeyError, ValueError, TypeError):
        return None


def _changes(
    store: Store, nodes: Nodes, totals: Totals, log: Log
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One record: the nodes whose entries changed since the log was written, and the totals."""
    tensors: dict[str, Tensor] = {}
    columns = []
    for number, ((tier, name), column) in enumerate(sorted(store.columns.items())):
        labels = [PRESENT, *sorted(column.held)]
        columns.append([tier, name, labels])
        first, stop, _ = nodes[tier].indices(column.nodes)
        changed = []
        for label in labels:
            ids = column.version(label).changes.since(log.marks.get((tier, name, label), 0))
            changed.append(ids[(ids >= first) & (ids < stop)])
        pairs = list(zip(labels, changed, strict=True))
        slots = [column.version(label).slots(ids) for label, ids in pairs]
        unique, inverse = torch.unique(torch.cat(slots), return_inverse=True)
        known = torch.zeros_like(unique)  # several versions may share a row
        kept = unique != NEVER
        known[kept] = column.segments.sums(unique[kept])
        sums = torch.split(known[inverse], [len(ids) for ids in changed])
        for k, (label, ids) in enumerate(pairs):
            tensors[f"{number}.{k}.ids"] = ids - first
            tensors[f"{number}.{k}.slots"] = slots[k]
            tensors[f"{number}.{k}.rounds"] = column.version(label).rounds(ids)
            tensors[f"{number}.{k}.sums"] = sums[k]
    words = []
    nothing = torch.zeros(0, dtype=torch.int64)
    for number, (key, total) in enumerate(totals.items()):
        before = log.totals.get(key)
        addends = None if before is None else total.since(before)
        if addends is None:
            kind = "whole"
            more = {"values": total.dense()}
        else:  # what was added since it was recorded
            kind = "more"
            more = {
                "at": torch.cat([nothing, *(ids for ids, _ in addends)]),
                "values": torch.cat([total.base[:0], *(values for _, values in addends)]),
            }
        words.append([*key, kind])
        for name, values in more.items():
            tensors[f"totals.{number}.{name}"] = values
    return {"columns": columns, "totals": words}, tensors


def _link(source: Path, target: Path) -> None:
    """A second name for a file, unless it has that already."""
    if source == target or target.exists():
        return
    try:
        os.link(source, target)
    except OSError as error:
        raise CheckpointError(
            f"cannot link {source} to {target}: {error}; "
            "keep the folder that store= names and the checkpoint on one disk."
        ) from error


# Reading


@dataclass(frozen=True, eq=False)
class ReadColumn:
    """A column of a checkpoint: its rows where they lie, and its versions."""

    tier: str
    name: str
    template: Tensor
    segments: Sequence[tuple[int, Segment]]
    versions: Mapping[str, SavedNodes]
    nodes: int
    form: RowForm

    def attach(self, store: Store, nodes: slice) -> None:
        """Take over the rows where they lie, or as a copy where the store has another form."""
        column = store.opened(self.tier, self.name, self.template)
        if self.form == store.form:
            column.attach(nodes.start, self.segments, self.versions)
        else:
            store.thaw(self.frozen(), nodes)

    def frozen(self) -> Frozen:
        """The rows in memory, as any runtime takes them."""
        column = Column(self.nodes, self.template, form=self.form)
        column.attach(0, self.segments, self.versions)
        return Frozen(self.tier, self.name, *column.freeze(slice(0, self.nodes)))


def read(
    path: Path,
    facts: Mapping[str, Any],
    sizes: Mapping[str, int],
    live: Path | None,
) -> tuple[list[ReadColumn], dict[NodeKey, NodeTotals]]:
    """The columns and totals of a checkpoint; an error where they are damaged.

    `sizes` are the nodes of each tier. `live` is the folder of a run that goes on with the files:
    a name there tells the process that writes them not to use rows again.
    """
    folder = path.with_name(checkpoint.file_name(facts["folder"]))
    by_key = _Replay(sizes)
    for record, tensors in _records(folder, facts):
        by_key.add(record, tensors)
    columns = [_read_column(folder, column, by_key, live) for column in facts["columns"]]
    totals = {key: NodeTotals(values) for key, values in by_key.totals.items()}
    return columns, totals


class _Replay:
    """The entries of all records, the later ones in place of the earlier."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.entries: dict[tuple[str, str], dict[str, Tensor]] = {}
        """By column and label: slots, rounds and checksums of all nodes, [3, nodes]."""
        self.totals: dict[NodeKey, Tensor] = {}

    def add(self, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take one record."""
        for number, (tier, name, labels) in enumerate(record["columns"]):
            for k, label in enumerate(labels):
                prefix = f"{number}.{k}"
                versions = self.entries.setdefault((tier, name), {})
                if label not in versions:
                    versions[label] = torch.full((3, self.sizes[tier]), NEVER)
                ids = tensors[f"{prefix}.ids"]
                if not rising(ids, self.sizes[tier]):
                    raise ValueError(
                        f"{tier} {name}: ids that are not those of {self.sizes[tier]} nodes"
                    )
                for row, part in enumerate(("slots", "rounds", "sums")):
                    versions[label][row, ids] = tensors[f"{prefix}.{part}"]
        for number, (tier, name, kind) in enumerate(record["totals"]):
            values = tensors[f"totals.{number}.values"]
            if kind == "whole":
                self.totals[tier, name] = values.clone()
            else:
                self.totals[tier, name].index_add_(0, tensors[f"totals.{number}.at"], values)


def _records(
    folder: Path, facts: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Tensor]]]:
    """The records of a log, once all of it is known to be what was written."""
    path = folder / checkpoint.file_name(facts["log"])
    try:
        text = CountedFile(path).read(facts)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); keep a checkpoint and its folder of rows together."
        ) from error
    if text is None:
        raise CheckpointError(f"{path} is damaged: it is not what was written.")
    start = 0
    while start < len(text):
        size = int.from_bytes(text[start : start + _HEAD], "little")
        start += _HEAD
        blob = text[start : start + size]
        start += size
        head = int.from_bytes(blob[:8], "little")
        metadata = json.loads(blob[8 : 8 + head])["__metadata__"]
        yield json.loads(metadata["record"]), load(blob)


def _read_column(
    folder: Path, facts: Mapping[str, Any], replay: _Replay, live: Path | None
) -> ReadColumn:
    tier = facts["tier"]
    name = facts["name"]
    template = torch.empty((0, *facts["shape"]), dtype=_DTYPES[facts["dtype"]])
    form = facts["form"]
    parts = []
    for start, count, file, kind in facts["segments"]:
        path = folder / checkpoint.file_name(file)
        if live is not None and path.exists():
            _link(path, live / file)
            path = live / file
        try:
            stored = segments.stored(template, form, int(kind))
            parts.append((int(start), segments.opened(stored, path, count, int(kind))))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}); keep a checkpoint and its folder together."
            ) from error
    versions = {}
    found = replay.entries.get((tier, name), {})
    for label, (slots, rounds, sums) in found.items():
        ids = (slots != NEVER).nonzero()[:, 0]
        _check_rows(folder, parts, slots[ids], sums[ids])
        versions[label] = SavedNodes(ids, slots[ids], rounds[ids])
    return ReadColumn(tier, name, template, parts, versions, replay.sizes[tier], form)


def _check_rows(
    folder: Path, parts: Sequence[tuple[int, Segment]], slots: Tensor, sums: Tensor
) -> None:
    """Raise unless every row is the one whose checksum was recorded."""
    checked = 0
    for start, segment in parts:
        inside = ((slots >= start) & (slots < start + len(segment.rows))).nonzero()[:, 0]
        checked += len(inside)
        have = segment.sums(slots[inside] - start)
        wrong = int((have != sums[inside]).sum())
        if wrong:
            name = segment.path.name if segment.path is not None else ""
            raise CheckpointError(
                f"{folder / name} is damaged: {wrong} of its {len(inside)} rows are not those "
                "that were written."
            )
    if checked != len(slots):
        raise ValueError(f"{len(slots) - checked} rows lie in none of its files")
