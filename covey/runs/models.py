"""The models that the nodes of a run keep: their names, and the kept rows that each consists of."""

from __future__ import annotations

from covey.kernel.algorithm import Algorithm
from covey.runtimes.contract import Runtime

GLOBAL = "global"
PERSONAL = "personal"


def kept(runtime: Runtime) -> tuple[tuple[str, str], ...]:
    """(tier, name) of every column that holds whole models, the upper tiers' first."""
    tiers = runtime.tree.tiers
    width = runtime.task.space.width
    whole = []
    for (tier, name), rows in runtime.kept().items():
        is_model = rows.shape[1:] == (width,) and rows.is_floating_point()
        if is_model and not name.startswith("_"):
            whole.append((tiers.index(tier), name))
    whole.sort()
    return tuple((tiers[number], name) for number, name in whole)


def names(runtime: Runtime) -> list[str]:
    """The names of all models that are scored, "global" first."""
    return [GLOBAL, *(name for _, name in kept(runtime))]


def lead(runtime: Runtime) -> str:
    """The model whose choice decides for what is saved but never scored."""
    if PERSONAL in names(runtime):
        return PERSONAL
    return GLOBAL


def unscored(runtime: Runtime, algorithm: Algorithm) -> list[tuple[str, str]]:
    """(tier, name) of what the tier above devices keeps for new devices, if it is not scored."""
    above = algorithm.above()
    if above in names(runtime):
        return []
    return [key for key in runtime.kept() if key[1] == above]


def belonging(
    runtime: Runtime,
    algorithm: Algorithm,
    needs: dict[str, set[str]],
    tier: str,
    name: str,
) -> list[tuple[str, str]]:
    """(tier, name) of all kept rows that a model consists of, and of those it is saved with.

    `needs` are the names that devices recall to predict with each model.
    """
    device = runtime.tree.tiers[-1]
    space = runtime.task.space
    columns = []
    if name != GLOBAL:
        columns.append((tier, name))
    others = needs.get(name, set()) - {name}
    columns += [(device, other) for other in sorted(others)]
    if algorithm.splits and tier != device and space.shared < space.width:
        columns.append((device, PERSONAL))
    if name == lead(runtime):
        columns += unscored(runtime, algorithm)
    kept_names = runtime.kept()
    return [column for column in dict.fromkeys(columns) if column in kept_names]
