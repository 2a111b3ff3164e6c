"""Processes that do the same things in the same order, and what they do together.

Before anything that all ranks do together they meet: each says what comes next for it, and whether
an error has ended it. So an error of one rank is an error of all, with its message, and ranks that
do different things are told so and do not wait for each other for ever.
"""

from __future__ import annotations

import atexit
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from covey.errors import ConfigError, CoveyError, ProgramError, RankError
from covey.origin import told
from covey.runtimes.alone.envelope import raised
from covey.runtimes.ranks.heartbeat import Heartbeat
from covey.runtimes.ranks.launch import Launch

_JOIN = 60.0
"""Seconds in which all processes must have started covey."""
_FOREVER = timedelta(days=365)
"""How long a rank waits for others that compute; the heartbeat says whether they still live."""

_AGREED = "_covey_raised_by_all_ranks"
"""The attribute of an error that all ranks raise, so that nobody tells the others again."""

T = TypeVar("T")
_stores: Any = dist
"""torch.distributed with its stores, which its types leave out."""


class Ranks:
    """This process among those that run one experiment together."""

    def __init__(
        self, launch: Launch, heartbeat: Heartbeat | None = None, group: Any = None
    ) -> None:
        self.rank = launch.rank
        self.world = launch.world
        self.local_rank = launch.local_rank
        self.alone = launch.world == 1 and group is None
        """Whether nothing is exchanged: one process without a group that carries its rows."""
        self.stop = False
        """Whether this process was asked to stop; all know after the next meeting."""
        self.stopping = False
        """Whether any rank had been asked to stop when ranks met last."""
        self.messages = 0
        """How often rows or facts were exchanged."""
        self.bytes = 0
        """How many bytes of rows and facts this rank has sent."""
        self._heartbeat = heartbeat
        self._cpu_group = group
        self._gpu_group: Any = None
        self._broken: RankError | None = None

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world}"

    # What ranks do together

    def meet(self, what: str, size: int = 0) -> list[int]:
        """Wait until all ranks are about to do `what`; return the `size` that each of them gives.

        If an error has ended one of them, it is raised here.
        """
        statuses = self._statuses(what, size)
        names = {status[0] for status in statuses}
        if len(names) > 1:
            raise _mark(
                RankError(
                    f"the ranks do different things: {self} is about to {what}, another is not. "
                    "Call run, save and rows on all ranks, in the same order."
                )
            )
        return [status[2] for status in statuses]

    def gather(
        self,
        rows: Tensor,
        counts: Sequence[int],
        *,
        everyone: bool = True,
    ) -> Tensor:
        """The rows of all ranks in the order of ranks; `counts` are how many each of them has.

        With `everyone=False` only rank 0 gets them, and the others get none.
        """
        if self.alone:
            return rows
        form = f"{list(rows.shape[1:])} {rows.dtype}"
        self.meet(f"gather {list(counts)} rows of {form}")
        most = max(counts)
        if not most:
            return rows
        padded = rows
        if len(rows) < most:
            padded = rows.new_zeros((most, *rows.shape[1:]))
            padded[: len(rows)] = rows
        parts = self._gather_bytes(_bytes_of(padded), everyone=everyone)
        if not parts:
            return rows[:0]
        pieces = []
        for part, count in zip(parts, counts, strict=True):
            piece = part.view(rows.dtype).view(most, *rows.shape[1:])
            pieces.append(piece[:count])
        return torch.cat(pieces)

    def add(self, sums: Sequence[Tensor]) -> list[Tensor]:
        """The sums of all ranks' tensors, which change in place.

        They are added in an order that depends on the number of ranks.
        """
        if self.alone:
            return list(sums)
        forms = [f"{list(rows.shape)} {rows.dtype}" for rows in sums]
        self.meet(f"add {', '.join(forms)}")
        out = []
        for rows in sums:
            total = rows.contiguous()
            if total.numel():
                self._call(dist.all_reduce, total, group=self._group(total))
                self._count(total)
            out.append(total)
        return out

    def gather_json(self, what: str, value: Any) -> list[Any]:
        """The value of every rank, as JSON can hold it, in the order of ranks."""
        if self.alone:
            return [value]
        text = json.dumps(value).encode()
        sizes = self.meet(what, len(text))
        return self._exchange_json(text, sizes)

    def told(self, value: T) -> T:
        """The value of rank 0, as JSON can hold it."""
        own = None
        if self.leads:
            own = value
        out: T = self.gather_json("hear rank 0", own)[0]
        return out

    @contextmanager
    def together(self, done: str = "") -> Iterator[None]:
        """Do something on all ranks; an error of one of them is an error of all.

        With `done`, nobody goes on before all have done it.
        """
        try:
            yield
            if done:
                self.meet(done)
        except BaseException as error:
            if self.alone or _is_agreed(error):
                raise
            try:
                self._statuses("", 0, fine=False)
                agreed = self._error_of_others(error)  # the one that all raise
            except RankError:  # nobody is left to tell
                agreed = error
            if agreed is error:
                raise
            raise agreed from error

    def use(self, device: torch.device) -> None:
        """Let rows lie on this device: with CUDA, each rank takes the GPU of its local rank."""
        if self.alone or device.type != "cuda":
            return
        if device.index is not None:
            fix = 'give device = "cuda": each rank takes the GPU of its LOCAL_RANK'
            raise ConfigError(f'device = "{device}" with {self.world} ranks; {fix}.')
        if not dist.is_nccl_available():
            raise ConfigError(
                'device = "cuda" with several ranks needs NCCL, which this torch lacks; '
                'install a CUDA build of torch on Linux, or use device = "cpu".'
            )
        gpus = torch.cuda.device_count()
        if self.local_rank >= gpus:
            raise ConfigError(
                f"{self} has LOCAL_RANK = {self.local_rank}, but its machine has {gpus} GPUs; "
                f"start at most {gpus} processes per machine (--nproc-per-node {gpus})."
            )
        torch.cuda.set_device(self.local_rank)
        if self._gpu_group is None:
            self._gpu_group = dist.new_group(backend="nccl", timeout=_FOREVER)

    def speaks_of(self, error: BaseException) -> bool:
        """Whether this rank should print an error: rank 0, or who alone knows of it."""
        return self.leads or not _is_agreed(error)

    # How

    def _statuses(
        self,
        what: str,
        size: int,
        *,
        fine: bool = True,
    ) -> list[list[int]]:
        """(what it does, whether it is fine, a size) of every rank; errors are raised."""
        if self.alone:
            return [[0, 1, size]]
        name = zlib.crc32(what.encode())
        status = torch.tensor([name, int(fine), size, int(self.stop)])
        gathered = self._gather_bytes(_bytes_of(status))
        statuses = [part.view(torch.int64).tolist() for part in gathered]
        self.stopping = self.stopping or any(status[3] for status in statuses)
        if all(status[1] for status in statuses):
            return statuses
        if fine:
            raise self._error_of_others(None)
        return statuses

    def _error_of_others(self, own: BaseException | None) -> BaseException:
        """The error of the lowest rank that has one; all ranks ask for it at the same time."""
        facts = None
        if own is not None:
            facts = [type(own).__name__, str(own), told(own), isinstance(own, CoveyError)]
        text = json.dumps(facts).encode()
        sizes = self._gather_bytes(_bytes_of(torch.tensor([len(text)])))
        lengths = [int(part.view(torch.int64)) for part in sizes]
        everyone = self._exchange_json(text, lengths)
        failed = [rank for rank, facts in enumerate(everyone) if facts is not None]
        first = failed[0]
        if own is not None and type(own).__name__ == everyone[first][0]:
            return _mark(own)
        kind, text, line, own_kind = everyone[first]
        if own_kind:
            return _mark(raised(kind, text))
        return _mark(ProgramError(f"rank {first}: {line}"))

    def _exchange_json(self, text: bytes, sizes: Sequence[int]) -> list[Any]:
        """The values whose texts have these sizes, in the order of ranks."""
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        parts = self._gather_bytes(padded)
        values = []
        for part, size in zip(parts, sizes, strict=True):
            values.append(json.loads(part[:size].numpy().tobytes()))
        return values

    def _gather_bytes(self, own: Tensor, *, everyone: bool = True) -> list[Tensor]:
        """The bytes of every rank, which are equally many."""
        group = self._group(own)
        self._count(own)
        if everyone:
            parts = [torch.empty_like(own) for _ in range(self.world)]
            self._call(dist.all_gather, parts, own, group=group)
            return parts
        parts = []
        if self.leads:
            parts = [torch.empty_like(own) for _ in range(self.world)]
        self._call(dist.gather, own, parts or None, dst=0, group=group)
        return parts

    def _call(self, operation: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """One collective operation; if it fails, a rank has ended, and nothing more is tried."""
        if self._broken is not None:
            raise self._broken
        try:
            operation(*arguments, **options)
        except RuntimeError as error:
            # The error of a rank that has lost others; rank 0 prints it, or who has lost rank 0.
            missing: list[int] = []
            if self._heartbeat is not None:
                missing = self._heartbeat.missing()
            reason = f"a rank cannot be reached ({error})"
            if missing:
                listed = ", ".join(map(str, missing))
                reason = f"rank {listed} has ended, or cannot be reached"
            lost = RankError(f"{reason}; the run ends, and its last checkpoint is intact.")
            if 0 not in missing:
                _mark(lost)
            self._broken = lost
            raise self._broken from error

    def _group(self, rows: Tensor) -> Any:
        """The group that carries rows of this device: NCCL for a GPU, gloo else."""
        if rows.is_cuda:
            return self._gpu_group
        return self._cpu_group

    def _count(self, rows: Tensor) -> None:
        self.messages += 1
        self.bytes += rows.numel() * rows.element_size()


ALONE = Ranks(Launch(0, 1))
"""A process that runs alone: it meets nobody and waits for nobody."""

_joined: Ranks | None = None


def join() -> Ranks:
    """This process among the others that a launcher has started; they meet once."""
    global _joined
    if _joined is None:
        _joined = _join(Launch.read())
    return _joined


def joined() -> Ranks:
    """The ranks that this process has joined; itself alone where it has not."""
    return _joined or ALONE


def _join(launch: Launch) -> Ranks:
    if launch.world == 1:
        return Ranks(launch)
    if not dist.is_available() or not dist.is_gloo_available():
        raise ConfigError(
            "several ranks need torch.distributed with gloo, which this torch lacks; "
            "install another build of torch, or run one process."
        )
    hosts = launch.hosts_store and launch.rank == 0
    prefix = f"covey-{launch.attempt}"
    try:
        table = _stores.TCPStore(
            launch.address,
            launch.port,
            is_master=hosts,
            timeout=timedelta(seconds=_JOIN),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        where = f"{launch.address}:{launch.port}"
        first_line = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"rank {launch.rank} cannot reach rank 0 at {where} (MASTER_ADDR, MASTER_PORT): "
            f"{first_line}."
        ) from error
    heartbeat = Heartbeat(table.clone(), launch.rank, launch.world, prefix=prefix, hosts=hosts)
    _wait_for_all(table, launch, prefix)
    heartbeat.start()
    group = None
    if dist.is_initialized():
        group = dist.new_group(backend="gloo", timeout=_FOREVER)
    else:
        dist.init_process_group(
            "gloo",
            store=_stores.PrefixStore(prefix, table),
            rank=launch.rank,
            world_size=launch.world,
            timeout=_FOREVER,
        )
        atexit.register(dist.destroy_process_group)
    atexit.register(heartbeat.leave)
    return Ranks(launch, heartbeat, group)


def _wait_for_all(table: Any, launch: Launch, prefix: str) -> None:
    """Wait until every rank has a heartbeat; an error names those that have not come."""
    keys = [f"{prefix}/beat/{rank}" for rank in range(launch.world)]
    try:
        table.wait(keys, timedelta(seconds=_JOIN))
    except RuntimeError as error:
        absent = [rank for rank, key in enumerate(keys) if not table.check([key])]
        listed = ", ".join(map(str, absent[:5]))
        raise ConfigError(
            f"WORLD_SIZE = {launch.world}, but after {_JOIN:.0f} s rank {listed} has not started "
            "covey; start all processes with the same command."
        ) from error


def _mark(error: BaseException) -> BaseException:
    """Note that all ranks raise this error."""
    setattr(error, _AGREED, True)
    return error


def _is_agreed(error: BaseException | None) -> bool:
    """Whether all ranks raise this error, or one that was made from it."""
    while error is not None:
        if getattr(error, _AGREED, False):
            return True
        error = error.__cause__
    return False


def _bytes_of(rows: Tensor) -> Tensor:
    """The bytes of a tensor, on its device."""
    return rows.contiguous().view(-1).view(torch.uint8)
