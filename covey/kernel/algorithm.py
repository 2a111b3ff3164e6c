"""The base of algorithms: hyper-parameters as frozen fields, and one program per tier."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from covey.errors import ProgramError, TreeError
from covey.fields import PerNode as PerNode
from covey.fields import check, checked_first
from covey.fields import require as require
from covey.kernel.advice import Advice, Levers, Loss, Statement, Step
from covey.kernel.conditions import inner_step
from covey.tree import Tree
from covey.types import Rows

if TYPE_CHECKING:
    from covey.engine.task import Predict
    from covey.kernel.nodes import Nodes
    from covey.kernel.work import Work

Program = Callable[..., Any]
"""A method of an algorithm: it takes the nodes of a tier and the rows sent to them.

It answers rows.
"""


class Algorithm(ABC):
    """The base of every algorithm: a frozen dataclass with one program for each tier.

    The programs are named `server`, `device` and perhaps `edge`. `server(me, w)` receives the
    global rows and returns the new ones; the other programs run when they are asked for. A field is
    checked against its annotation, such as `lr: Positive` (covey/fields.py).
    """

    sends: ClassVar[str]
    """What leaves a device in training, in words."""
    splits: ClassVar[bool] = False
    """Whether devices keep the layers `me.private` to themselves.

    Such devices receive `me.shared` alone, and keep a whole model "personal".
    """
    private_default: ClassVar[tuple[str, ...]] = ("head",)
    """Patterns of the private layers, tried in order.

    The first pattern that matches some layers of the model, but not all, is taken.
    """
    learns_global: ClassVar[bool] = True
    """Whether training changes the server's row; if not, reports leave the global model out."""
    idle_trains: ClassVar[bool] = True
    """Whether devices that are not asked may train nevertheless.

    They may not where the rows they keep are a part of the server's own sums.
    """
    eager: ClassVar[str | None] = None
    """Why its device programs run kernel by kernel on a GPU; None: captured where possible."""
    plain_steps: ClassVar[str | None] = None
    """Why an experiment's `solver` cannot take its steps on data; None: it can."""
    needs_examples: ClassVar[str | None] = None
    """Why all devices must have training examples; None: those without any receive models."""
    step_sizes: ClassVar[tuple[str, ...]]
    """The fields that are step sizes on the devices' losses alone, without a penalty.

    A class that states none says nothing of its steps; none are inherited.
    """
    any_depth: ClassVar[bool] = False
    """Whether it runs on every tree, with as many tiers of edges as that has, or none."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__post_init__" in cls.__dict__:
            checked = checked_first(cls.__dict__["__post_init__"])
            setattr(cls, "__post_init__", checked)  # noqa: B010

    def __post_init__(self) -> None:
        """Check the fields; a subclass may add checks of its own, which come after these."""
        check(self)

    @abstractmethod
    def server(self, me: Nodes, w: Rows) -> Rows:
        """The new global rows."""

    def tiers(self) -> tuple[str, ...]:
        """The tiers this algorithm has programs for, from the top."""
        return tuple(tier for tier in ("server", "edge", "device") if hasattr(type(self), tier))

    def cut(self, tier: str, round: int = 0) -> float | None:
        """The size up to which entries of rows from this tier are sent as zeros in a round.

        None: nothing is cut.
        """
        return None

    def zero(self, tier: str, model: str) -> float | None:
        """The size up to which an entry of a kept model counts as zero.

        By default it is the cut of the tier that keeps the model.
        """
        return self.cut(tier)

    def above(self) -> str:
        """The name under which the tier above the devices keeps the model that it sends to them.

        "global", or a name that no node keeps, stands for the server's row.
        """
        return "global"

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        """The personal models of devices that took no part in training: one run of `device`.

        `w` are the rows of the model above them.
        """
        received = w
        if self.splits:
            received = w[:, me.shared]
        answer = getattr(self, "device")(me, received)  # noqa: B009
        if isinstance(answer, tuple):
            answer = answer[0]
        rows = me.kept.get("personal", answer)
        if not isinstance(rows, Tensor) or rows.shape != w.shape:
            text = f"{type(self).__name__} neither keeps nor answers a personal model"
            raise ProgramError(f"{text}; give it an `adapt` of its own.")
        return rows

    @property
    def hessians(self) -> bool:
        """Whether its programs ask for Hessian products; a run then says how they are computed."""
        return False

    @property
    def planned(self) -> bool:
        """Whether its devices prune as the environment plans, `me.planned`."""
        return False

    def work(self, shared: int, private: int) -> Work | None:
        """The work of a device for one answer, with which a plan computes; None: not stated.

        `shared` and `private` are numbers of weights.
        """
        return None

    def memory(self) -> int:
        """An estimate of the bytes that one device's programs need besides models and batches.

        The simulator sizes its chunks of devices by it.
        """
        return 0

    def predictor(self, me: Nodes, model: str, rows: Rows) -> Predict | None:
        """How devices predict with their rows of a model of this name; None: as the module does.

        It is called once when a model is scored. The function that it returns is called for every
        block of examples of any part.
        """
        return None

    def advice(self, loss: Loss) -> Iterator[Statement]:
        """The conditions of theory on its steps and penalties, for such losses.

        By default they are the bounds of its `step_sizes`. A subclass states conditions of its own
        in the words of `covey.kernel.advice` and `covey.kernel.conditions`; those of covey's own
        papers stand in `covey/advice/theory`.
        """
        stated = vars(type(self)).get("step_sizes")
        if stated is None:
            reason = f"no condition on the steps of {type(self).__name__} is known here"
            yield Advice("note", "unknown algorithm", f"{reason}; nothing was checked.", {})
            return
        if self.splits and len(stated) > 1:  # a part curves at most as much as the whole
            loss = replace(loss, exact=False)
        for name in stated:
            yield from inner_step(getattr(self, name), 0.0, loss, steps=1, names=(name, "lam"))

    def levers(self, L: float) -> Levers:
        """The fields that are steps and penalties.

        `L` is the curvature of the median device's loss. By default the `step_sizes` are steps or,
        where none are stated, the fields called lr or something_lr.
        """
        names: list[str] = []
        if is_dataclass(self):
            names = [item.name for item in fields(self)]
        stated = vars(type(self)).get("step_sizes")
        if stated is None:
            stated = [name for name in names if re.fullmatch(r"([a-z]+_)?lr", name)]
        return Levers(tuple(Step(name) for name in names if name in stated))

    def fit(self, tree: Tree) -> tuple[Tree, str | None]:
        """The tree this algorithm runs on, and a note where it is not the one given."""
        name = type(self).__name__
        tiers = self.tiers()
        if tree.tiers == tiers or self.any_depth:
            return tree, None
        if len(tiers) == 2 and tree.depth > 2:
            flat = tree.flattened()
            devices = f"its {flat.devices} devices run directly under the server, not in {tree}"
            return flat, f"{name} has two tiers: {devices}."
        fix = "use a tree with these tiers, or `Nested`, which takes any depth"
        if tree.depth < len(tiers):
            half = tree.devices // 2 or 1
            example = f"for instance Tree.grouped([{half}, ...]); in a file, tree.edges = 2"
            fix = f"put the devices under edges, {example}"
        needed = ", ".join(tiers)
        present = ", ".join(tree.tiers)
        raise TreeError(f"{name} needs the tiers {needed}, but this tree has {present}; {fix}.")
