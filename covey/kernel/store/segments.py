"""Rows of one form in segments: memory that is never moved, or files that are mapped into it.

A slot is the number of a row over all segments. New segments come behind the last one, so a slot
stays valid for good. Rows on a GPU lie in one segment that grows by copying.
"""

from __future__ import annotations

import ctypes
import os
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from zlib import crc32

import torch
from torch import Tensor

from covey.errors import CheckpointError, ConfigError
from covey.kernel.store import bitmap_rows
from covey.kernel.store.bitmap_rows import CellLayout

RowForm = Literal["dense", "float16", "bitmap"]
"""How rows lie in segments: as they are, rounded to float16, or without their zeros."""

SEGMENT = 2**27
"""The bytes of a segment."""
BITMAPS = 2**24
"""The bytes of a segment of rows without their zeros: there is one for every size of cells."""
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14; an older one refuses it


@dataclass(frozen=True, eq=False)
class Segment:
    """Some rows, [n, ...], and the file that they lie in, if any.

    A file of another process is only read: a checkpoint may count on what is in it.
    """

    rows: Tensor
    path: Path | None = None
    writable: bool = True
    kind: int = 0
    """The kind of its cells, where rows differ in length."""

    def sums(self, numbers: Tensor) -> Tensor:
        """A checksum of each of these rows, which are in main memory, int64 [n]."""
        rows = self.rows.numpy()
        sums = [crc32(rows[number]) for number in numbers.tolist()]
        return torch.tensor(sums, dtype=torch.int64)


class Segments:
    """Rows like `template`, [0, ...], in main memory or in files of a folder."""

    def __init__(
        self,
        template: Tensor,
        nodes: int,
        folder: Path | None = None,
        form: RowForm = "dense",
    ) -> None:
        self.template = template.new_empty((0, *template.shape[1:]))
        self.form = form
        self._nodes = nodes
        self.stored = stored(self.template, form)
        """Empty rows of the shape and type in which segments hold them."""
        self.folder = folder
        self.segments: list[Segment] = []
        self.capacity = 0
        self.dirty: set[Path] = set()
        """Files that were written since they were last synced."""
        self.links: dict[Path, set[Path]] = {}
        """Other names that this process gave its files."""
        self._ends = torch.empty(0, dtype=torch.int64)
        self.row_bytes = _bytes_of(self.stored)
        """The bytes of a row; those of the longest, where rows differ in length."""
        self.per_segment = self._per_segment(0)
        """Rows of a file; in memory, the most rows that a segment has beyond those asked for."""

    @property
    def has_kinds(self) -> bool:
        """Whether rows differ in length, so that a slot is for some of them alone."""
        return self.form == "bitmap" and _has_bitmaps(self.template)

    def kinds(self, rows: Tensor) -> Tensor:
        """The kind of slot that each row needs, int64 [n]."""
        if not self.has_kinds:
            return torch.zeros(len(rows), dtype=torch.int64)
        return bitmap_rows.kinds(rows)

    def _per_segment(self, kind: int) -> int:
        size = SEGMENT
        if self.has_kinds:
            size = min(size, BITMAPS)
        largest = max(1, size // _bytes_of(self._stored(kind)))
        return min(largest, 2 * max(self._nodes, 1))

    def _stored(self, kind: int) -> Tensor:
        """Empty rows of the shape and type in which segments of a kind hold them."""
        return stored(self.template, self.form, kind)

    def grow(self, count: int, kind: int = 0) -> Tensor:
        """At least `count` new slots of a kind."""
        before = self.capacity
        like = self._stored(kind)
        per_segment = self._per_segment(kind)
        if self.folder is not None:
            while self.capacity < before + count:
                self.add(_created(like, self.folder, per_segment, kind))
            return torch.arange(before, self.capacity)
        more = max(count, min(self.capacity // 2, per_segment))
        rows = like.new_empty((more, *like.shape[1:]))
        if self.template.is_cuda and self.segments:
            rows = torch.cat([self.segments[0].rows, rows])
            self.segments.clear()
            self.capacity = 0
        self.add(Segment(rows, kind=kind))
        return torch.arange(before, self.capacity)

    def add(self, segment: Segment) -> None:
        """A segment behind the last one."""
        self.segments.append(segment)
        self.capacity += len(segment.rows)
        sizes = [len(segment.rows) for segment in self.segments]
        self._ends = torch.tensor(sizes).cumsum(0)

    def last(self) -> list[Segment]:
        """The last segment of every kind, which is being filled."""
        by_kind = {segment.kind: segment for segment in self.segments}
        return list(by_kind.values())

    def read(self, slots: Tensor) -> Tensor:
        """A copy of the rows in these slots."""
        if len(self.segments) == 1:
            slots = self.on_device(slots)
            return self._read(self.segments[0], slots)
        out = self.template.new_empty((len(slots), *self.template.shape[1:]))
        for segment, positions, offsets in self._by_segment(slots):
            out[positions] = self._read(segment, offsets)
        return out

    def _read(self, segment: Segment, offsets: Tensor) -> Tensor:
        """A copy of some rows of a segment, in the type of the run."""
        rows = torch.index_select(segment.rows, 0, offsets)
        if self.has_kinds:
            return _cell(self.template, segment.kind).decode(rows)
        return rows.to(self.template.dtype)

    def read_into(self, slots: Tensor, out: Tensor) -> None:
        """Copy the rows in these slots, numbers on the device of the rows, without waiting."""
        if len(self.segments) == 1 and self.stored.dtype == out.dtype:
            torch.index_select(self.segments[0].rows, 0, slots, out=out)
        else:
            out.copy_(self.read(slots))

    def write(self, slots: Tensor, rows: Tensor) -> None:
        """Rows into slots, which are all different."""
        if self.form == "float16" and rows.is_floating_point():
            rows = _rounded(rows, self.stored.dtype)
        if len(self.segments) == 1:
            self._write(self.segments[0], self.on_device(slots), rows)
            return
        for segment, positions, offsets in self._by_segment(slots):
            self._write(segment, offsets, rows[positions])

    def _write(self, segment: Segment, offsets: Tensor, rows: Tensor) -> None:
        if self.has_kinds:
            rows = _cell(self.template, segment.kind).encode(rows)
        where: Tensor | slice = offsets
        if not offsets.is_cuda:  # nobody waits for a GPU here
            where = _as_slice(offsets)
        if isinstance(where, slice):
            segment.rows[where].copy_(rows)
        else:
            segment.rows.index_copy_(0, where, rows)
        if segment.path is not None:
            self.dirty.add(segment.path)

    def sums(self, slots: Tensor) -> Tensor:
        """A checksum of the row in each of these slots, int64 [n]."""
        out = torch.empty(len(slots), dtype=torch.int64)
        for segment, positions, offsets in self._by_segment(slots):
            out[positions] = segment.sums(offsets)
        return out

    def shared(self, slots: Tensor) -> Tensor:
        """Which slots lie in files that somebody else has given a name too, bool [n].

        It may be a run that goes on from a checkpoint of this one, or a copy that a user made.
        """
        others = []
        for segment in self.segments:
            own = 1
            if segment.path is not None:
                own += sum(name.exists() for name in self.links.get(segment.path, ()))
            others.append(segment.path is not None and segment.path.stat().st_nlink > own)
        return torch.tensor(others, dtype=torch.bool)[self.number_of(slots)]

    def starts(self) -> list[int]:
        """The first slot of every segment."""
        return [0, *self._ends.tolist()][:-1]

    def number_of(self, slots: Tensor) -> Tensor:
        """The number of the segment that each slot lies in."""
        return torch.bucketize(slots, self._ends, right=True)

    def on_device(self, numbers: Tensor) -> Tensor:
        """The numbers on the device of the rows, without waiting for what a GPU is doing."""
        return numbers.to(self.template.device, non_blocking=True)

    def _by_segment(self, slots: Tensor) -> Iterator[tuple[Segment, Tensor | slice, Tensor]]:
        """(segment, positions of its slots in `slots`, their numbers in the segment)."""
        numbers = self.number_of(slots)
        order = torch.argsort(numbers, stable=True)
        present, counts = torch.unique_consecutive(numbers[order], return_counts=True)
        start = 0
        for number, count in zip(present.tolist(), counts.tolist(), strict=True):
            positions = order[start : start + count]
            segment = self.segments[number]
            first = int(self._ends[number]) - len(segment.rows)
            yield segment, _as_slice(positions), slots[positions] - first
            start += count


def stored(template: Tensor, form: RowForm, kind: int = 0) -> Tensor:
    """Empty rows [0, ...] of the shape and type in which rows like `template` lie in a segment."""
    if form == "bitmap" and _has_bitmaps(template):
        return torch.empty(0, _cell(template, kind).bytes, dtype=torch.uint8)
    if form == "float16" and template.is_floating_point():
        return template.half()
    if form not in get_args(RowForm):
        raise ValueError(f"rows of the form {form!r}")
    return template


def _has_bitmaps(template: Tensor) -> bool:
    """Whether rows like these can be without their zeros: they are vectors of real numbers."""
    return template.ndim == 2 and template.is_floating_point()


def _cell(template: Tensor, kind: int) -> CellLayout:
    return CellLayout(template.shape[1], kind, template.dtype)


def _bytes_of(template: Tensor) -> int:
    """The bytes of one row."""
    return max(1, template.new_empty((1, *template.shape[1:])).nbytes)


def _rounded(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows in a shorter type; an error where one of their numbers is too large for it."""
    limit = torch.finfo(dtype).max
    if rows.numel():
        least, most = torch.aminmax(rows)
        if not (float(least) >= -limit and float(most) <= limit):  # NaN too
            finite = rows[torch.isfinite(rows)].abs()
            if bool((finite > limit).any()):
                largest = float(finite.max())
                raise ConfigError(
                    f"store_rows = 'float16': a node keeps a number of size {largest:.3g}, and "
                    f"float16 ends at {limit:g}; use store_rows = 'dense'."
                )
    return rows.to(dtype)


def _as_slice(positions: Tensor) -> Tensor | slice:
    """Different positions; a slice, which copies nothing, where each is one behind the last."""
    if not len(positions):
        return slice(0, 0)
    first = int(positions[0])
    last = int(positions[-1])
    consecutive = last - first + 1 == len(positions)
    if consecutive and bool((positions.diff() == 1).all()):
        return slice(first, last + 1)
    return positions


def _created(template: Tensor, folder: Path, count: int, kind: int) -> Segment:
    """A new file of `count` rows; its bytes are reserved on the disk."""
    path = folder / f"{uuid.uuid4().hex}.rows"
    size = count * _bytes_of(template)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file:
            _reserve(file.fileno(), size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise CheckpointError(
            f"cannot make a file of {size:,} bytes for kept rows in {folder}: {error}; "
            "free some of the disk, or give store= a folder with more room."
        ) from error
    rows = _mapped(path, template, count, shared=True)
    # Have the pages of a new file in memory. Linux does that at half the price of one page after
    # the other when it is first written.
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        address = ctypes.c_void_p(rows.data_ptr())
        library.madvise(address, ctypes.c_size_t(rows.nbytes), _POPULATE_WRITE)
    return Segment(rows, path, kind=kind)


def opened(template: Tensor, path: Path, count: int, kind: int = 0) -> Segment:
    """The rows in a file that another process wrote, which are only read."""
    rows = _mapped(path, template, count, shared=False)
    return Segment(rows, path, writable=False, kind=kind)


def _mapped(path: Path, template: Tensor, count: int, *, shared: bool) -> Tensor:
    """The rows in a file; it is mapped into memory as long as they are used."""
    numbers = count * template.shape[1:].numel()
    if path.stat().st_size < numbers * template.element_size():
        raise ValueError(f"it is shorter than {count} rows")
    flat = torch.from_file(str(path), shared=shared, size=numbers, dtype=template.dtype)
    return flat.view(count, *template.shape[1:])


def _reserve(handle: int, size: int) -> None:
    """Give a file its length; a full disk is an error here, not a signal at the first write."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.ftruncate(handle, size)


def sync(paths: Iterable[Path]) -> None:
    """Wait until files are on the disk."""
    for path in paths:
        handle = os.open(path, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
