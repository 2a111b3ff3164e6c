"""How many elements of tensors a piece of code visits: a cost that does not depend on the machine."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_BY_INDEX = ("index", "gather", "scatter", "take", "bucketize", "searchsorted", "slice_scatter")
"""Operations that visit as many elements of a tensor as the index has."""


class Visits(TorchDispatchMode):
    """Counts, in its block, the elements that torch reads and writes.

    An operation visits the largest of its tensors. Where it takes elements by an index, or changes
    a tensor so, it visits what the index names. A view visits nothing.

    >>> import torch
    >>> x = torch.zeros(1000)
    >>> with Visits() as visits:
    ...     y = x[torch.tensor([3, 5])] + 1
    >>> visits.elements < 10
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0
        self.operations = 0
        self.largest: dict[str, int] = {}

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__  # type: ignore[attr-defined]
        if not _is_view(function):
            self._count(name, args, kwargs or {}, out)
        return out

    def _count(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """Add what one operation visits."""
        given = [leaf.numel() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        made = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        visited = max([0, *given, *made])
        if any(word in name for word in _BY_INDEX) and len(given) > 1:
            in_place = name.endswith("_")
            visited = max([0, *(given[1:] if in_place else made)])
        self.elements += visited
        self.operations += 1
        self.largest[name] = max(visited, self.largest.get(name, 0))


def _is_view(function: Any) -> bool:
    """Whether an operation returns memory that it was given, and visits none of it."""
    schema = function._schema
    aliases = [value.alias_info for value in schema.returns]
    return bool(aliases) and all(info is not None and not info.is_write for info in aliases)
