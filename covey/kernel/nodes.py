"""The nodes of one tier during one program call: their data, memory, children and draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import torch
from torch import Tensor

from covey import draws
from covey.engine.batches import Draw
from covey.engine.solvers.objective import DataLoss, Objective
from covey.engine.solvers.optimiser import PLAIN
from covey.engine.task import Batch, Batches, Task
from covey.errors import ConfigError, ProgramError
from covey.kernel.algorithm import Algorithm, PerNode, Program
from covey.kernel.moved import on_device
from covey.kernel.replies import Exact, Masked, Message, Replies, exact
from covey.kernel.store.store import NEVER, Store
from covey.tree import Sample, Topology
from covey.types import Ids, Rows

if TYPE_CHECKING:
    from covey.kernel.environment import Environment

Weight = Literal["uniform", "samples"]
Each = tuple[Tensor, ...]
Where = Tensor | None


@dataclass(frozen=True, eq=False)
class Drawn:
    """Nodes of the tier below that are asked if they are children of those who ask.

    `ids` are in rising order, [m].
    """

    ids: Ids

    @staticmethod
    def of(
        tree: Topology, tier: str, count: int, seeds: Sequence[int], *address: int | str
    ) -> Drawn:
        """A draw of `count` from all nodes of a tier, for each seed."""
        size = tree.size(tier) // tree.copies
        keys = draws.keys(seeds, *address)
        group = torch.zeros_like(keys)
        sizes = torch.full_like(keys, size)
        picks = torch.full_like(keys, min(count, size))
        copy, number = draws.choose(keys, group, sizes=sizes, picks=picks)
        return Drawn(copy * size + number)


Cohort = Sample | Tensor | Drawn
"""Which children are asked: how many, or a bool for each child of the askers, in order."""
Idle = Literal["skip", "train"]
"""What a child that is not asked does: nothing, or the same as if it were, its answer dropped."""


@dataclass(frozen=True, eq=False)
class AskArguments:
    """The arguments of one `Nodes.ask`, and the path of the ask."""

    program: Program
    path: int
    rows: tuple[Rows | Exact, ...]
    each: Each
    sample: Cohort
    where: Where


class Services(Protocol):
    """What every runtime offers to the nodes of a program."""

    algorithm: Algorithm
    tree: Topology
    task: Task
    store: Store
    seeds: tuple[int, ...]
    batches: Batches
    environment: Environment

    @property
    def members(self) -> Topology:
        """The tree of those who can be asked now: only nodes with examples in training."""
        ...

    def ask(self, me: Nodes, ask: AskArguments) -> Any:
        """Run a program on the children of `me` and return their Replies."""
        ...

    def initial(self, tier: str, ids: Ids) -> Rows:
        """The common initial row of each node's tree, [n, P]."""
        ...

    def examples(self, tier: str, ids: Ids) -> Tensor:
        """How many training examples all devices under each node hold, [n].

        It is a fact of the population, whoever is asked: a deployed edge is told it.
        """
        ...


class TierNodes:
    """n nodes of a tier, as their places in the tree and their data make them."""

    tier: str
    ids: Ids
    _runtime: Services

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def device_ids(self) -> Ids:
        """The ids on the device of the data: on the GPU, if that is where training happens."""
        return on_device(self.ids, self._runtime.task.device)

    @cached_property
    def local(self) -> Ids:
        """Each node's id in its own tree, on the device of the data; draws are addressed by it.

        It differs from `device_ids` where several seeds run side by side, each in its own tree.
        """
        return self._runtime.tree.local(self.tier, self.device_ids)

    @property
    def task(self) -> Task:
        """What these nodes learn; for whoever scores models."""
        return self._runtime.task

    @property
    def children(self) -> Tensor:
        """The number of children of each node, [n]; in training, of those with examples."""
        return self._runtime.members.counts(self.tier, self.ids)

    @property
    def max_children(self) -> int:
        """The max number of children of a node of this tier; the same for a call without nodes."""
        return self._runtime.members.widest(self.tier)

    @property
    def leaf(self) -> bool:
        """Whether these are devices, with data and without children."""
        return self._runtime.tree.below(self.tier) is None

    @property
    def above_devices(self) -> bool:
        """Whether the children of these nodes are devices."""
        tree = self._runtime.tree
        return self.tier == tree.tiers[-2]

    @property
    def shared(self) -> slice:
        """The columns of the layers everybody shares, which come first in a row."""
        return slice(0, self._runtime.task.space.shared)

    @property
    def private(self) -> slice:
        """The columns of the private layers, which come last."""
        space = self._runtime.task.space
        return slice(space.shared, space.width)

    @property
    def count(self) -> Tensor:
        """Each node's number of training examples, [n, 1]; at an edge, of all devices under it."""
        task = self._runtime.task
        if self.leaf:
            counts = task.examples.counts("train", self.device_ids)
        else:
            counts = self._runtime.examples(self.tier, self.ids)
        return counts[:, None].to(task.device, task.dtype)

    @property
    def has_hessian(self) -> bool:
        """Whether `me.grad(...).hessian_product` works for this model and loss."""
        return self._runtime.task.no_hessian is None

    @property
    def labels(self) -> Tensor:
        """Which classes each node has training examples of, bool [n, classes]."""
        return self._runtime.task.examples.labels(self.device_ids)

    @property
    def most_labels(self) -> int:
        """The max number of classes of a node; the same for a call without nodes."""
        return self._runtime.task.examples.most_labels

    def initial(self) -> Rows:
        """The common initial rows; every node makes them from the seed, so they are never sent."""
        return self._runtime.initial(self.tier, self.device_ids)

    @overload
    def own(self, value: int | Sequence[int]) -> int | Tensor: ...
    @overload
    def own(self, value: PerNode) -> float | Tensor: ...
    def own(self, value: PerNode) -> float | Tensor:
        """Each node's value of a hyper-parameter.

        A number is the value of all nodes. A list has one entry per node of the tier, and the
        values come back as a column [n, 1].
        """
        if isinstance(value, int | float):
            return value
        tree = self._runtime.tree
        size = tree.size(self.tier) // tree.copies
        if len(value) != size:
            nodes = f"{size} nodes of tier {self.tier}"
            raise ConfigError(f"a list of {len(value)} values for {nodes}: {list(value)[:5]}...")
        values = self._runtime.task.constant(value)
        return values[self.local][:, None]

    def by_part(self, shared: float, private: float) -> float | Tensor:
        """A number for the shared and one for the private columns, as a row [1, P].

        It is a number where the two are equal, or where all columns are of one part.
        """
        task = self._runtime.task
        space = task.space
        if space.shared == 0:
            return private
        if shared == private or space.shared == space.width:
            return shared
        row = torch.full((1, space.width), shared, dtype=task.dtype, device=task.device)
        row[:, self.private] = private
        return row


def no_plan(who: str) -> ConfigError:
    """The error for pruning ratios that a plan should give, where no environment plans."""
    fix = "give a radio, or a number (docs/radio.md)"
    return ConfigError(f'{who} prunes as a plan says (ratio = "plan"), and there is none; {fix}.')


@dataclass(eq=False)
class Call:
    """Everything that n nodes kept, noted and worked while their program ran.

    The runtime owns it; the author's view of it is `Nodes`.
    """

    kept: dict[str, Tensor] = field(default_factory=dict)
    """Rows by name, [n, ...]."""
    recalled: set[str] = field(default_factory=set)
    """The names that were recalled from before this call."""
    needs: dict[str, set[str]] = field(default_factory=dict)
    """The names that predictions with a model recalled, by model."""
    notes: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    """Figures for the round's record, [n] each time."""
    reports: dict[str, Tensor] = field(default_factory=dict)
    """Figures of every single node, [n, k], for whoever plays the program."""
    gradients: Tensor | float = 0.0
    """How many gradients each node evaluated on its data, [n] or the same for all."""
    moved: Tensor | float = 0.0
    """How many weights each node moved, a weight as often as it moved.

    It is counted if the environment asks for it.
    """
    ratio: Tensor | None = None
    """The pruning ratio that the environment admits for each node, [n]."""
    elapsed: Tensor | float = 0.0
    """Seconds that each node waited for its children on the virtual clock, [n, 2]; 0 for none."""

    def worked(self, gradients: Tensor | float, moved: Tensor | float) -> None:
        """Count gradients that nodes evaluated, and weights that they moved."""
        self.gradients = self.gradients + gradients
        self.moved = self.moved + moved


class Nodes(TierNodes):
    """n nodes of a tier, one row each; the only thing a program may use besides its arguments."""

    def __init__(
        self,
        runtime: Services,
        tier: str,
        ids: Ids,
        *,
        round: int,
        path: int,
        idle: Tensor | None = None,
    ) -> None:
        self.tier = tier
        self.ids = ids
        self._runtime = runtime
        self.round = round
        self.idle = idle  # [n] bool: nodes that were not asked and train nevertheless; None: none
        self._path = path
        self._asks = 0
        self._calls: dict[str, int] = {}
        self._masks: list[tuple[Tensor, Tensor]] = []  # on the device, in main memory
        self.call = Call()

    @property
    def kept(self) -> Mapping[str, Rows]:
        """What this call has kept so far, by name."""
        return self.call.kept

    @property
    def planned(self) -> Tensor:
        """The pruning ratio of each node in the plan of this round, a column [n, 1]."""
        if self.call.ratio is None:
            raise no_plan(type(self._runtime.algorithm).__name__)
        task = self._runtime.task
        return self.call.ratio[:, None].to(task.device, task.dtype)

    # Data

    def batch(self, size: int | None, stream: str = "batch") -> Batch | None:
        """`size` training examples of each node's own; None means all of them, at every step."""
        if size is None:
            return None
        return self.grad(size, stream).batch_of(0)

    def distinct(self, size: int, stream: str = "batch") -> Batch:
        """Up to `size` different training examples of each node's own, at random; else weight 0."""
        if self._runtime.batches == "cyclic":
            return self._cyclic(size, stream)
        draw = self._runtime.task.examples.shuffled
        address = self._next(stream)
        [batch] = draw(address, self.device_ids, size, range(1), epochs=1, local=self.local)
        return batch

    def batches(
        self,
        size: int | None,
        count: int,
        stream: str = "batch",
    ) -> list[Batch] | None:
        """What `count` calls of `batch` give, drawn together; None means all examples."""
        if size is None:
            return None
        if self._runtime.batches == "cyclic":
            return [self._cyclic(size, stream) for _ in range(count)]
        task = self._runtime.task
        keys = [draws.spread(self._next(stream), self.local) for _ in range(count)]
        ids = self.device_ids.repeat(count)
        [drawn] = task.examples.draw(torch.cat(keys), ids, size, local=self.local.repeat(count))
        by_call = drawn.examples.view(count, len(self), size)
        return [Batch(drawn.data, examples) for examples in by_call]

    def grad(
        self,
        batch: Batch | int | Sequence[Batch] | None,
        stream: str = "batch",
        *,
        same_draw: bool = False,
    ) -> DataGradient:
        """The gradient of the data loss.

        `batch` is one batch for all steps, the size of a fresh batch per step, or None for all
        examples. A list has the batch of each turn of `alternate`. With `same_draw` all steps have
        the dropout masks and the augmentation of the first, as a difference of gradients needs
        them.
        """
        call = 0
        if isinstance(batch, int):
            call = self._call(stream)
        draw = None
        if self._runtime.task.draws_in_training:
            draw = Draw(self._next(_DRAW), self.local)
        return DataGradient(self, batch, stream, call, draw, same_draw=same_draw)

    def weight(self, kind: Weight) -> Exact | None:
        """Each node's weight in a mean: its `count`, or None for uniform weights."""
        if kind == "uniform":
            return None
        return exact(self.count)

    def loss(self, rows: Rows, batch: Batch | None) -> Tensor:
        """Each row's mean data loss on a batch of its node, [n, 1]; without l2.

        Without a batch it is the mean over all training examples of the node.
        """
        task = self._runtime.task
        if batch is not None:
            return task.loss(rows, batch)[:, None]
        score = task.evaluate(rows, "train", self.ids)
        mean = score.loss / score.count.clamp(min=1)
        return mean[:, None].to(rows)

    def outputs(self, rows: Rows, batch: Batch) -> Tensor:
        """The outputs of these models for the examples of a batch, [n, B, ...]."""
        return self._runtime.task.outputs(rows, batch)

    def gradient(
        self,
        rows: Rows,
        batch: Batch,
        loss: Callable[[Tensor], Tensor],
    ) -> Rows:
        """The gradient at `rows` of a loss of the algorithm's own.

        `loss` maps the outputs to one number per node, [n].
        """
        self.call.worked(1, rows.shape[1])
        task = self._runtime.task
        if task.draws_in_training:
            batch = batch.drawing(Draw(self._next(_DRAW), self.local))
        gradient = task.gradient_of(rows, batch, loss)
        if task.l2:
            gradient = gradient + task.l2 * rows
        return gradient

    def examples(self, size: int) -> Batch:
        """Up to `size` training examples of each node's own, the same every time.

        They are all of its examples, or `size` of them at even distances.
        """
        return self._runtime.task.examples.spread(self.device_ids, size)

    # Memory

    def keep(self, name: str, rows: Rows) -> Rows:
        """Keep rows under a name, with the number of this round.

        They are scored as models unless the name starts with "_".
        """
        if len(rows) != len(self):
            counts = f"{len(rows)} rows for {len(self)} nodes"
            raise ProgramError(f"{self.tier}: keep({name!r}) got {counts}; give one per node.")
        self.call.kept[name] = rows
        return rows

    @overload
    def recall(self, name: str, default: Rows, since: int = 0) -> Rows: ...
    @overload
    def recall(
        self,
        name: str,
        default: None = None,
        since: int = 0,
    ) -> Rows | None: ...
    def recall(
        self,
        name: str,
        default: Rows | None = None,
        since: int = 0,
    ) -> Rows | None:
        """What was kept under a name in round `since` or later, `default` where nothing was."""
        if name in self.call.kept:
            return self.call.kept[name]
        self.call.recalled.add(name)
        return self._runtime.store.get(self.tier, name, self.ids, default, since)

    def age(self, name: str) -> Tensor:
        """How many rounds ago each node kept a row under this name, [n, 1]; -1 for never."""
        kept = self._runtime.store.rounds(self.tier, name, self.ids)
        age = torch.where(kept == NEVER, NEVER, self.round - kept)
        return age[:, None]

    def rounds(self, count: int | Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """The numbers k = 0, 1, ... of an inner loop, each with a mask [n, 1] of the active nodes.

        `count` is the number of rounds of all nodes, or a list with one entry per node of the tier.
        The loop is as long as the longest. `ask(..., where=active)` lets only active nodes ask.
        """
        longest = count
        if not isinstance(longest, int):
            longest = max(longest)
        in_main_memory = torch.full((len(self), 1), longest)
        if not isinstance(count, int):
            self.own(count)  # an error if it has another length than the tier
            local = self._runtime.tree.local(self.tier, self.ids)
            in_main_memory = torch.tensor(count)[local][:, None]
        for k in range(longest):
            active = in_main_memory > k
            mask = on_device(active, self._runtime.task.device)
            self._masks = [*self._masks[-1:], (mask, active)]
            yield k, mask

    def in_main_memory(self, mask: Tensor) -> Tensor:
        """A mask of these nodes in main memory; one of `rounds` without waiting for a GPU."""
        for known, active in self._masks:
            if known is mask:
                return active
        return mask.cpu()

    # Figures

    def note(self, name: str, values: Tensor) -> None:
        """Put a figure of each node [n] into the round's record: its mean, min and max per tier.

        It is for whoever watches the run: it is not sent, costs no bytes, and no program can read
        it.
        """
        nodes = len(self)
        if values.shape not in ((nodes,), (nodes, 1)):
            have = f"shape {tuple(values.shape)} for {nodes} nodes"
            raise ProgramError(f"{self.tier}: note({name!r}) got {have}; give one number per node.")
        noted = self.call.notes.get(name, ())
        figures = values.detach().reshape(-1)
        self.call.notes[name] = (*noted, figures)

    # Draws

    def uniform(self, stream: str, width: int = 1) -> Tensor:
        """Numbers in [0, 1), [n, width]."""
        numbers = draws.uniform(self._next(stream), self.local, width)
        return numbers.to(self._runtime.task.dtype)

    def normal(self, stream: str, width: int) -> Tensor:
        """Standard normal numbers, [n, width]."""
        dtype = self._runtime.task.dtype
        return draws.normal(self._next(stream), self.local, width, dtype=dtype)

    # Children

    @overload
    def ask(
        self,
        program: Callable[..., Message],
        *rows: Rows | Exact,
        each: Each = (),
        sample: Cohort = None,
        where: Where = None,
    ) -> Replies: ...
    @overload
    def ask(
        self,
        program: Callable[..., tuple[Message, Message]],
        *rows: Rows | Exact,
        each: Each = (),
        sample: Cohort = None,
        where: Where = None,
    ) -> tuple[Replies, Replies]: ...
    @overload
    def ask(
        self,
        program: Callable[..., tuple[Message, Message, Message]],
        *rows: Rows | Exact,
        each: Each = (),
        sample: Cohort = None,
        where: Where = None,
    ) -> tuple[Replies, Replies, Replies]: ...
    @overload
    def ask(
        self,
        program: Callable[..., tuple[Message, ...]],
        *rows: Rows | Exact,
        each: Each = (),
        sample: Cohort = None,
        where: Where = None,
    ) -> tuple[Replies, ...]: ...
    def ask(
        self,
        program: Program,
        *rows: Rows | Exact,
        each: Each = (),
        sample: Cohort = None,
        where: Where = None,
    ) -> Any:
        """Run a program of the next tier on these nodes' children and return their Replies.

        They are a tuple of Replies if the program answers a tuple. Each asker's row goes to all its
        children. `each` holds tensors with one value per child of these nodes, in order. Links
        carry float32 and float64, 4 and 8 bytes a number, and refuse other types: convert them
        first. `sample` says how many children are asked, or which: a bool for each child of these
        nodes, in order. `where` [n] bool says which of these nodes ask at all.
        """
        text = f"{self.tier}: ask({program.__name__})"
        owner = type(getattr(program, "__self__", None))
        if getattr(owner, program.__name__, None) is not getattr(program, "__func__", program):
            fix = "ask for a method of the algorithm"
            raise ProgramError(f"{text}: {fix}; only its name can travel.")
        for message in rows:
            if isinstance(message, Masked):
                raise ProgramError(f"{text} got Masked rows; masks travel up, send rows down.")
            tensor = message.rows if isinstance(message, Exact) else message
            if len(tensor) != len(self):
                raise ProgramError(f"{text} got {len(tensor)} rows for {len(self)} nodes.")
        path = draws.path(self._path, self._asks)
        self._asks += 1
        return self._runtime.ask(self, AskArguments(program, path, rows, each, sample, where))

    def drawn(self, count: int, stream: str) -> Drawn:
        """A cohort of `count` for an ask, of which these nodes ask those that are their children.

        The cohort is drawn from all nodes of the children's tier. The draw has the address (seed,
        round, stream): every asker computes the same cohort by itself.
        """
        tree = self._runtime.tree
        tier = tree.tiers[tree.index(self.tier) + 1]
        return Drawn.of(tree, tier, count, self._runtime.seeds, self.round, stream)

    def reads(self, reason: str) -> None:
        """Called where a number that a program computes decides what runs; for runtimes.

        A captured program cannot do that.
        """

    def address(self, *words: int | str) -> draws.Address:
        """The key of a draw of this call, or one of each node with several seeds; for runtimes."""
        seeds = self._runtime.seeds
        address = (self.round, self._path, self.tier, *words)
        if len(seeds) == 1:
            return draws.key(seeds[0], *address)
        copy = self._runtime.tree.copy(self.tier, self.ids)
        keys = draws.keys(seeds, *address)[copy]
        return keys.to(self._runtime.task.device, non_blocking=True)

    def _call(self, stream: str) -> int:
        """The number of this draw among those of a stream."""
        k = self._calls.get(stream, 0)
        self._calls[stream] = k + 1
        return k

    def _next(self, stream: str) -> draws.Address:
        """The address of the next draw of a stream."""
        return self.address(stream, self._call(stream))

    def _cyclic(self, size: int, stream: str) -> Batch:
        """The next batch of an endless walk; the counter is an ordinary kept row."""
        name = f"_{stream}_turn"
        zeros = torch.zeros(len(self), 1, dtype=torch.int64)
        turn = self.recall(name, default=zeros)
        self.keep(name, turn + 1)
        return self._runtime.task.examples.cyclic(self.ids, size, turn[:, 0])


_AHEAD = 64
"""The max number of steps whose batches are drawn together.

Their examples are gathered one step at a time.
"""
_DRAW = "(training)"
"""The stream of what the engine draws in training; no author's stream has this name."""
_NOT_BY_SOLVER = (
    "the algorithm steps along gradients of its own making, so the experiment's solver cannot take "
    "its steps; leave out solver."
)
_OWN_STEPS = {"in place": "the algorithm takes its steps itself"}


class DataGradient(DataLoss):
    """The gradient of the nodes' data loss, Rows -> Rows; `descend` computes whole loops of it."""

    def __init__(
        self,
        me: Nodes,
        batch: Batch | int | Sequence[Batch] | None,
        stream: str,
        call: int,
        draw: Draw | None = None,
        *,
        same_draw: bool = False,
    ) -> None:
        self.task = me._runtime.task
        self.all_examples = batch is None
        self.fixed = batch if isinstance(batch, Batch) else None
        self.by_turn = isinstance(batch, Sequence)
        self._me = me
        self._batch = batch
        self._stream = stream
        self._call = call
        self._draw = draw
        self._same_draw = same_draw
        self._step = 0
        self._ahead: dict[int, Batch] = {}
        self._first = 0  # the first step of the descent that has begun
        self._expected = 0  # as `_until`, over several descents
        self._until = 0  # all steps before this one will be taken
        self._counted = 0  # future steps whose work is counted already

    def __call__(self, x: Rows) -> Rows:
        if self.all_examples:
            data = self.task.full_gradient(x, self._me.ids, self._draw_of(self._step))
        else:
            data = self.task.fast_gradient(x, self.batch_of(0))
        self._step += 1
        if self._counted:
            self._counted -= 1
        else:
            if self.task.optimiser != PLAIN:
                raise ConfigError(_NOT_BY_SOLVER)
            self._me.call.worked(1, x.shape[1])
            self.task.solvers.setdefault("step by step", _OWN_STEPS)
        return self._with_l2(data, x)

    @property
    def round(self) -> int:
        """The round of the descent."""
        return self._me.round

    def _with_l2(self, data: Rows, x: Rows) -> Rows:
        """A gradient at x, or a Hessian product with x, of the loss with l2."""
        if not self.task.l2:
            return data
        return data + self.task.l2 * x

    def hessian_product(self, x: Rows, v: Rows) -> Rows:
        """H(x) v of the loss of the next gradient, exact by autograd; counts as two gradients."""
        if self._batch is None:
            draw = self._draw_of(self._step)
            product = self.task.full_hessian_product(x, self._me.ids, v, draw)
        else:
            batch = self.batch_of(0)
            product = self.task.gradients.hessian_product(x, batch, v)
        self._step += 1
        self._me.call.worked(2, 2 * x.shape[1])
        return self._with_l2(product, v)

    def expect(self, steps: int) -> None:
        """Let the batches of so many steps be drawn together.

        With epochs every descent has draws of its own, so nothing is drawn beyond it.
        """
        if self.task.optimiser.epochs is None:
            self._expected = self._step + steps
            self._until = max(self._until, self._expected)

    def begin(self, start: Rows, terms: Objective) -> None:
        """Count the work of a descent, and refuse what batches in a cycle cannot do."""
        runtime = self._me._runtime
        steps = terms.steps
        if isinstance(steps, Tensor):
            steps = steps.reshape(-1)
        moved: Tensor | float = 0.0
        if not runtime.environment.ideal:
            moved = terms.moving(start)
        self._me.call.worked(steps, moved)
        self._counted = terms.longest
        if self.all_examples:
            return
        uneven = isinstance(terms.steps, Tensor) or terms.tol is not None
        if uneven and isinstance(self._batch, int) and runtime.batches == "cyclic":
            reason = 'batches="cyclic" counts batches'
            rule = "every device must take the same number of steps"
            raise ConfigError(f'{reason}, so {rule}; use "uniform".')
        if uneven:
            self._me.reads("its devices take numbers of steps that it computes")
        self._first = self._step
        self._until = max(self._expected, self._step + terms.longest)

    def epoch_steps(self, epochs: float) -> int | Tensor:
        """ceil(epochs n / batch) for a device of n examples; with all examples, ceil(epochs)."""
        if self.all_examples:
            return math.ceil(epochs)
        if not isinstance(self._batch, int):
            raise ConfigError(
                "solver: epochs need a new batch in every step, but the algorithm takes its steps "
                "on batches that it draws itself; leave out epochs."
            )
        self.task.examples.check_size(self._batch, epochs=epochs)
        counts = self.task.examples.counts("train", self._me.device_ids)
        return torch.ceil(epochs * counts.double() / self._batch).long()

    def batch_of(self, step: int) -> Batch:
        """The batch of a step of the descent that has begun, with the draw of that step."""
        step += self._step
        if isinstance(self._batch, Batch):
            batch = self._batch
        elif isinstance(self._batch, Sequence):
            batch = self._batch[step]
        else:
            batch = self._drawn(step)
        draw = self._draw_of(step)
        return batch if draw is None else batch.drawing(draw)

    def skip(self, steps: int) -> None:
        """Mark steps of the descent as taken; their work was counted when it began."""
        self._step += steps
        self._counted = 0

    def recall(self, name: str, default: Rows) -> Rows:
        """The solver's state of these nodes; each stream of examples has its own."""
        return self._me.recall(self._kept_name(name), default)

    def keep(self, name: str, rows: Rows) -> None:
        """Keep the solver's state as an ordinary row."""
        self._me.keep(self._kept_name(name), rows)

    def _kept_name(self, name: str) -> str:
        return f"_{self._stream}_solver_{name}"

    def of_turn(self, turn: int) -> DataGradient:
        """The gradient on the batch of a turn, where each has its own; else itself."""
        if isinstance(self._batch, Sequence):
            draw = self._draw_of(turn)
            return DataGradient(self._me, self._batch[turn], self._stream, self._call, draw)
        return self

    def _draw_of(self, step: int) -> Draw | None:
        """The draw of a step; None where nothing is drawn."""
        if self._draw is None:
            return None
        if self._same_draw:
            step = 0
        return self._draw.at(step)

    def _drawn(self, step: int) -> Batch:
        """The batch of any step; uniform batches are drawn for many steps at a time."""
        me = self._me
        size = self._batch
        assert isinstance(size, int)
        if me._runtime.batches == "cyclic":
            return me._cyclic(size, self._stream)
        if step not in self._ahead:
            steps = range(step, max(step + 1, min(step + _AHEAD, self._until)))
            examples = self.task.examples
            epochs = self.task.optimiser.epochs
            if epochs is None:
                address = me.address(self._stream, self._call)
                batches = examples.draw(address, me.device_ids, size, steps, local=me.local)
            else:
                address = me.address(self._stream, self._call, self._first)
                own = range(steps.start - self._first, steps.stop - self._first)
                batches = examples.shuffled(
                    address, me.device_ids, size, own, epochs=epochs, local=me.local
                )
            self._ahead = dict(zip(steps, batches, strict=True))
        return self._ahead.pop(step)  # so that its examples are freed
