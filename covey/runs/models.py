"""The models that the nodes of a run keep: their names, and the kept rows that each consists of."""

from __future__ import annotations

from covey.kernel.algorithm import Algorithm
from covey.runtimes.simulator import Simulator

GLOBAL = "global"
PERSONAL = "personal"


def kept(simulator: Simulator) -> tuple[tuple[str, str], ...]:
    """(tier, name) of every column that holds whole models, the upper tiers' first."""
    order = simulator.tree.tiers.index
    width = simulator.task.space.width
    whole = []
    for (tier, name), column in simulator.store.columns.items():
        is_model = column.rows.shape[1:] == (width,) and column.rows.is_floating_point()
        if is_model and not name.startswith("_"):
            whole.append((tier, name))
    return tuple(sorted(whole, key=lambda key: (order(key[0]), key[1])))


def names(simulator: Simulator) -> list[str]:
    """The names of all models that are scored, "global" first."""
    return [GLOBAL, *(name for _, name in kept(simulator))]


def lead(simulator: Simulator) -> str:
    """The model whose choice decides for what is saved but never scored."""
    return PERSONAL if PERSONAL in names(simulator) else GLOBAL


def unscored(simulator: Simulator, algorithm: Algorithm) -> list[tuple[str, str]]:
    """(tier, name) of what the tier above devices keeps for new devices, where that is no scored model."""
    above = algorithm.above()
    if above in names(simulator):
        return []
    return [key for key in simulator.store.columns if key[1] == above]


def belonging(
    simulator: Simulator, algorithm: Algorithm, needs: dict[str, set[str]], tier: str, name: str
) -> list[tuple[str, str]]:
    """(tier, name) of all kept rows that a model consists of, and of those it is saved with.

    `needs` are the names that devices recall to predict with each model.
    """
    device = simulator.tree.tiers[-1]
    space = simulator.task.space
    columns = []
    if name != GLOBAL:
        columns.append((tier, name))
    columns += [(device, other) for other in sorted(needs.get(name, ())) if other != name]
    if algorithm.splits and tier != device and space.shared < space.width:
        columns.append((device, PERSONAL))
    if name == lead(simulator):
        columns += unscored(simulator, algorithm)
    return [column for column in dict.fromkeys(columns) if column in simulator.store.columns]
