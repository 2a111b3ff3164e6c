"""The models by which algorithms are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence

from covey.runs.run import Round


def models(history: Sequence[Round]) -> list[str]:
    """The models to compare: not new devices', and no global one where nothing was ever sent."""
    scored = [record for record in history if record.models]
    if not scored:
        return []
    names = [name for name in scored[-1].models if not name.startswith("new_")]
    if any(record.bytes() for record in history):
        return names
    return [name for name in names if name != "global"]


def candidates(history: Sequence[Round]) -> list[str]:
    """The models that may stand for an algorithm: of every tier, and of devices the personal one.

    What devices keep beside a personal model, such as pFedMe's local copy, is a step towards it.
    """
    names = models(history)
    if "personal" not in names:
        return names
    scored = [record for record in history if record.models]
    tiers = {name: scored[-1].models[name].tier for name in names}
    own = tiers["personal"]
    return [name for name in names if name == "personal" or tiers[name] != own]
