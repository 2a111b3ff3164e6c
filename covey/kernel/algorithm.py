"""What an algorithm is: hyper-parameters as frozen fields, and one program per tier, named after the tier."""

from __future__ import annotations

import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from covey.errors import ConfigError, ProgramError, TreeError, shown
from covey.kernel.advice import Levers, Loss, Statement, by_name, unstated
from covey.tree import Tree
from covey.types import Rows

if TYPE_CHECKING:
    from covey.engine.task import Predict
    from covey.kernel.nodes import Nodes
    from covey.kernel.work import Work

Program = Callable[..., Any]
"""A method of an algorithm: it takes the nodes of a tier and the rows sent to them, and answers rows."""

PerNode = float | Sequence[float]
"""One number for all nodes of a tier, or a list with one for each."""


class Algorithm(ABC):
    """The base of every algorithm file: a frozen dataclass with `server`, `device` and perhaps `edge` programs.

    `server(me, w)` receives the global rows and returns the new ones; the other programs run when they are asked for.
    """

    sends: ClassVar[str]
    """What leaves a device, in words."""
    splits: ClassVar[bool] = False
    """Whether devices keep `me.private` layers to themselves: they get `me.shared` alone, and keep a whole model "personal"."""
    private_default: ClassVar[tuple[str, ...]] = ("head",)
    """Which layers those are by default: the first pattern that matches some layers of the model, not all."""
    learns_global: ClassVar[bool] = True
    """Whether the server's row is a model that training changes; where it is not, reports leave the global model out."""
    idle_trains: ClassVar[bool] = True
    """Whether those who are not asked may train all the same; not where what they keep is a part of the server's own sums."""
    eager: ClassVar[str | None] = None
    """Why its device programs run kernel by kernel on a GPU; None: captured where possible."""
    any_depth: ClassVar[bool] = False
    """Whether it runs on every tree, with as many tiers of edges as that has, or none."""

    @abstractmethod
    def server(self, me: Nodes, w: Rows) -> Rows:
        """The new global rows."""

    def tiers(self) -> tuple[str, ...]:
        """The tiers this algorithm has programs for, from the top."""
        return tuple(tier for tier in ("server", "edge", "device") if hasattr(type(self), tier))

    def cut(self, tier: str, round: int = 0) -> float | None:
        """Entries of rows sent by this tier in a round, at or below this size, are sent as zeros; None: nothing is cut."""
        return None

    def zero(self, tier: str, model: str) -> float | None:
        """Up to which size an entry of a kept model counts as zero; by default the cut of the tier that keeps it."""
        return self.cut(tier)

    def above(self) -> str:
        """Under which name the tier above keeps the model it sends to devices; "global", or what nobody keeps: the server's."""
        return "global"

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        """The personal models of devices that took no part in training, from the model above them: one run of `device`."""
        answer = getattr(self, "device")(me, w[:, me.shared] if self.splits else w)  # noqa: B009
        rows = me.kept.get("personal", answer[0] if isinstance(answer, tuple) else answer)
        if not isinstance(rows, Tensor) or rows.shape != w.shape:
            name = type(self).__name__
            raise ProgramError(f"{name} neither keeps nor answers a personal model; give it an `adapt` of its own.")
        return rows

    @property
    def hessians(self) -> bool:
        """Whether its programs ask for Hessian products; a run then says how they are computed."""
        return False

    @property
    def planned(self) -> bool:
        """Whether its devices prune as a radio plan says, `me.planned`."""
        return False

    def work(self, shared: int, private: int) -> Work | None:
        """What a device does for one answer, by which a radio plan reckons; None: not said. Both are numbers of weights."""
        return None

    def memory(self) -> int:
        """About how many bytes one device's programs need besides models and batches; chunks of devices are made by it."""
        return 0

    def predictor(self, me: Nodes, model: str, rows: Rows) -> Predict | None:
        """How devices predict with their rows of a model of this name; None, the default: as the module does.

        Called once when a model is scored; what it returns is called for every block of examples of any part.
        """
        return None

    def advice(self, loss: Loss) -> Iterator[Statement]:
        """What theory says of its steps and penalties on such losses; by default that nothing is stated.

        See `covey.kernel.advice` and `covey.kernel.conditions` for the words. A subclass states its own.
        """
        yield unstated(type(self).__name__)

    def levers(self, L: float) -> Levers:
        """Which fields are steps and penalties, where the median device's loss has curvature `L`.

        By default the fields called lr or something_lr are steps. A subclass states its own.
        """
        return by_name(self)

    def fit(self, tree: Tree) -> tuple[Tree, str | None]:
        """The tree this algorithm runs on, and a note where it is not the one given."""
        name, want = type(self).__name__, self.tiers()
        if tree.tiers == want or self.any_depth:
            return tree, None
        if len(want) == 2 and tree.depth > 2:
            flat = tree.flattened()
            note = f"{name} has two tiers: its {flat.devices} devices run directly under the server, not in {tree}."
            return flat, note
        if tree.depth < len(want):
            half = tree.devices // 2 or 1
            fix = f"put the devices under edges, for instance Tree.grouped([{half}, ...]); in a file, tree.edges = 2"
        else:
            fix = "use a tree with these tiers, or `Nested`, which takes any depth"
        raise TreeError(f"{name} needs the tiers {', '.join(want)}, but this tree has {', '.join(tree.tiers)}; {fix}.")


LARGEST = 1e30
"""The largest size of a field's number, which a float32 still holds."""


def require(algorithm: Any, **bounds: tuple[float, float] | None) -> None:
    """Raise unless all fields are of their types, finite and, where named, in [low, high].

    None is above 0. Of a list, every entry has to be. Called from `__post_init__`, so that a wrong number is refused
    where it is written.
    """
    hints = typing.get_type_hints(type(algorithm))
    for field in fields(algorithm):
        if not _fits(getattr(algorithm, field.name), hints[field.name]):
            value, hint = getattr(algorithm, field.name), hints[field.name]
            kind = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "").replace("collections.abc.", "")
            owner = type(algorithm).__name__
            raise ConfigError(f"{owner}: {field.name} = {shown(value)} must be {kind}.")
        _check_numbers(f"{type(algorithm).__name__}: {field.name}", getattr(algorithm, field.name))
    for name, bound in bounds.items():
        value = getattr(algorithm, name)
        for number in value if isinstance(value, list | tuple) else [value]:
            low, high = bound if bound is not None else (0.0, float("inf"))
            if number is None or (low <= number <= high and (bound is not None or number > 0)):
                continue
            rule = "above 0" if bound is None else f"between {low:g} and {high:g}"
            owner = type(algorithm).__name__
            raise ConfigError(f"{owner}: {name} = {shown(value)} must be {rule}.")


def _check_numbers(name: str, value: Any) -> None:
    """Raise if a number, or one in a list, cannot be computed with, or if a list is empty."""
    if isinstance(value, list | tuple):
        if not value:
            raise ConfigError(f"{name} = [] is empty; give one value for all nodes, or one for each.")
        for item in value:
            _check_numbers(name, item)
    # So written that NaN is refused, and that a whole number of any length can be compared.
    elif isinstance(value, int | float) and not abs(value) <= LARGEST:
        rule = f"must be a finite number, of size {LARGEST:g} at most"
        raise ConfigError(f"{name} = {shown(value)} {rule}.")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the plain type a field is annotated with; a whole number may stand for a float."""
    inside = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inside)
    if typing.get_origin(hint) is typing.Literal:
        return value in inside
    if typing.get_origin(hint) is not None:  # Sequence, tuple
        return isinstance(value, list | tuple) and all(_fits(item, inside[0]) for item in value)
    if hint in (int, float):
        return isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint)
