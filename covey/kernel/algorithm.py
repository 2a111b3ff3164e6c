"""What an algorithm is: hyper-parameters as frozen fields, and one program per tier, named after
the tier.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from covey.errors import ProgramError, TreeError
from covey.kernel.advice import Levers, Loss, Statement, by_name, unstated
from covey.kernel.fields import PerNode as PerNode
from covey.kernel.fields import check, checked_first
from covey.kernel.fields import require as require
from covey.tree import Tree
from covey.types import Rows

if TYPE_CHECKING:
    from covey.engine.task import Predict
    from covey.kernel.nodes import Nodes
    from covey.kernel.work import Work

Program = Callable[..., Any]
"""A method of an algorithm: it takes the nodes of a tier and the rows sent to them, and answers
rows.
"""


class Algorithm(ABC):
    """The base of every algorithm file: a frozen dataclass with `server`, `device` and perhaps
    `edge` programs.

    `server(me, w)` receives the global rows and returns the new ones; the other programs run when
    they are asked for. A field is checked against its annotation, such as `lr: Positive`
    (covey/kernel/fields.py).
    """

    sends: ClassVar[str]
    """What leaves a device, in words."""
    splits: ClassVar[bool] = False
    """Whether devices keep `me.private` layers to themselves: they get `me.shared` alone, and keep
    a whole model "personal".
    """
    private_default: ClassVar[tuple[str, ...]] = ("head",)
    """Which layers those are by default: the first pattern that matches some layers of the model,
    not all.
    """
    learns_global: ClassVar[bool] = True
    """Whether the server's row is a model that training changes; where it is not, reports leave the
    global model out.
    """
    idle_trains: ClassVar[bool] = True
    """Whether those who are not asked may train all the same; not where what they keep is a part of
    the server's own sums.
    """
    eager: ClassVar[str | None] = None
    """Why its device programs run kernel by kernel on a GPU; None: captured where possible."""
    any_depth: ClassVar[bool] = False
    """Whether it runs on every tree, with as many tiers of edges as that has, or none."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__post_init__" in cls.__dict__:
            setattr(cls, "__post_init__", checked_first(cls.__dict__["__post_init__"]))  # noqa: B010

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
        """Entries of rows sent by this tier in a round, at or below this size, are sent as zeros;
        None: nothing is cut.
        """
        return None

    def zero(self, tier: str, model: str) -> float | None:
        """Up to which size an entry of a kept model counts as zero; by default the cut of the tier
        that keeps it.
        """
        return self.cut(tier)

    def above(self) -> str:
        """Under which name the tier above keeps the model it sends to devices; "global", or what
        nobody keeps: the server's.
        """
        return "global"

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        """The personal models of devices that took no part in training, from the model above them:
        one run of `device`.
        """
        answer = getattr(self, "device")(me, w[:, me.shared] if self.splits else w)  # noqa: B009
        rows = me.kept.get("personal", answer[0] if isinstance(answer, tuple) else answer)
        if not isinstance(rows, Tensor) or rows.shape != w.shape:
            name = type(self).__name__
            raise ProgramError(
                f"{name} neither keeps nor answers a personal model; give it an `adapt` of its own."
            )
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
        """What a device does for one answer, by which a radio plan reckons; None: not said. Both
        are numbers of weights.
        """
        return None

    def memory(self) -> int:
        """About how many bytes one device's programs need besides models and batches; chunks of
        devices are made by it.
        """
        return 0

    def predictor(self, me: Nodes, model: str, rows: Rows) -> Predict | None:
        """How devices predict with their rows of a model of this name; None, the default: as the
        module does.

        Called once when a model is scored; what it returns is called for every block of examples of
        any part.
        """
        return None

    def advice(self, loss: Loss) -> Iterator[Statement]:
        """What theory says of its steps and penalties on such losses; by default that nothing is
        stated.

        See `covey.kernel.advice` and `covey.kernel.conditions` for the words. A subclass states its
        own.
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
        raise TreeError(
            f"{name} needs the tiers {', '.join(want)}, but this tree has {', '.join(tree.tiers)}; {fix}."
        )
