"""The radio that laws run with, and the variants of algorithms that it adds to those of the laws."""

from dataclasses import replace
from typing import Any

import torch

from covey import Tree
from covey.wireless import Cells, Channel, Devices, Noise, Radio, Spread, fair

AIR = Radio(  # the edges of the tree with three are its cells; some devices are late, and some that can never be in time
    Devices.of(
        [0, 0, 0, 1, 2, 2, 2, 2], distance=[60.0, 90.0, 1500.0, 30.0, 50.0, 70.0, 80.0, 500.0], cpu=1e8,
        cycles=Spread("uniform", (15.0, 60.0)), power=0.6,
    ),
    Cells.of([2e5, 1e5, 3e5], wire_rate=1e6, wire_delay=0.001), Channel(Noise(1e-14)), deadline=0.01,
)  # fmt: skip
DROPS = replace(AIR, late="drop")
TIGHT = replace(AIR, deadline=0.002)  # device 2 is left out of some rounds
ALONE = replace(  # so is device 3 of all, and its edge has nobody else
    TIGHT,
    devices=replace(
        AIR.devices, distance=torch.where(torch.arange(8) == 3, 5000.0, AIR.devices.distance)
    ),
)

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "Pruned": {
        "planned": {"ratio": "plan", "@radio": TIGHT},
        "planned-nobody-at-an-edge": {
            "ratio": "plan", "weight": "samples", "edge_rounds": 2, "@radio": ALONE,
        },
        "planned-fair-drop": {
            "ratio": "plan",
            "device_sample": 0.5,
            "@radio": replace(DROPS, policy=fair),
            "!idle": False,
        },
    },
    "FedAvg": {
        "late": {"@tree": Tree.grouped([3, 1, 4]), "@radio": DROPS},
    },
    "HierFAVG": {
        "late-train": {"device_sample": 0.5, "@idle": "train", "@radio": DROPS},
    },
}  # fmt: skip
