"""The table [radio] of an experiment, from a row of a paper's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.radio.device import Spread, column


def table(fields: Mapping[str, Any], devices: int) -> dict[str, Any]:
    """The table [radio] of a row, whose numbers are in SI units: one cell with a free wire.

    Places and cycles are drawn here, as they were before a file could draw them: a file draws
    others of the same seed.
    """
    seed = fields["seed"]
    places = column(Spread("disc", tuple(fields["distance"])), devices, "distance", seed)
    cycles = column(Spread("uniform", tuple(fields["cycles"])), devices, "cycles", seed)
    return {
        "policy": fields["policy"],
        "deadline": f"{fields['deadline']} s",
        "cells": {
            "bandwidth": f"{fields['bandwidth']} Hz",
            "wire_rate": "1e30 bit/s",
            "wire_delay": "0 s",
        },
        "devices": {
            "distance": [f"{metres} m" for metres in places.tolist()],
            "cycles": cycles.tolist(),
            "cpu": f"{fields['cpu']} Hz",
            "power": f"{fields['power']} W",
        },
        "channel": {"noise": f"{fields['noise']} W"},
    }
