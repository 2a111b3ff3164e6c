"""The models by which algorithms are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence

from covey.runs.run import Round


def models(history: Sequence[Round]) -> list[str]:
    """The models to compare: not new devices', and no global one where nothing was ever sent.

    The one that is best on validation data stands for the algorithm, whichever tier keeps it.
    """
    scored = [record for record in history if record.models]
    if not scored:
        return []
    names = [name for name in scored[-1].models if not name.startswith("new_")]
    if any(record.bytes() for record in history):
        return names
    return [name for name in names if name != "global"]
